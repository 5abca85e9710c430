"""Writes docs/api.md: a heading for every public name, which mkdocstrings fills from its docstring and signature."""

from __future__ import annotations

from pathlib import Path

import holdfast

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
HEAD = """# Python API

What `import holdfast as hf` gives. Names are loaded when they are first used.
"""


def page() -> str:
    places = (place for place in holdfast._PLACES.values() if ":" in place)
    return "\n".join([HEAD, *(f"::: {place.replace(':', '.')}\n" for place in sorted(places, key=_name))])


def _name(place: str) -> str:
    return place.rpartition(":")[2].lower()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
