"""Writes docs/api.md: every public name under its short name; mkdocstrings adds signature and docstring."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import holdfast

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# Python API

What `import holdfast as hf` gives. Names are loaded when they are first used.
"""
FUNCTIONS, BROUGHT, ERRORS = "Calls", "What you bring and get", "Errors"


def page() -> str:
    groups: dict[str, list[str]] = defaultdict(list)
    for name, place in sorted(holdfast._PLACES.items(), key=lambda item: item[0].lower()):
        if ":" in place:
            group = ERRORS if place.startswith("contracts.errors") or ".errors:" in place else BROUGHT
            groups[FUNCTIONS if name.islower() else group].append(_entry(name, place.replace(":", ".")))
    parts = [f"## {group}\n\n" + "\n".join(groups[group]) for group in (FUNCTIONS, BROUGHT, ERRORS)]
    return "\n".join([HEAD, *parts])


def _entry(name: str, path: str) -> str:
    return f"::: {path}\n    options:\n      heading: hf.{name}\n      toc_label: {name}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
