"""The tree of the source in docs/architecture.md: every file with the first sentence of its docstring.

`python tools/tree.py` writes it anew; a test compares it with what is there.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BLOCK = re.compile(r"(<!-- tree -->\n```\n).*?(```\n)", re.S)
WIDTH = 200


def sentence(path: Path) -> str:
    """What a file says it is for: the first sentence of its docstring, in one line."""
    told = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
    return re.split(r"(?<=\.)\s", told, maxsplit=1)[0].rstrip(".")


def lines(folder: Path, depth: int = 0) -> list[str]:
    """The folder's own files first, then its folders."""
    files = [path for path in sorted(folder.glob("*.py")) if path.name not in ("__init__.py", "__main__.py")]
    found = [_line(path.name, sentence(path), depth) for path in files]
    for path in sorted(one for one in folder.iterdir() if (one / "__init__.py").is_file() and one.name != "versions"):
        found += [_line(f"{path.name}/", sentence(path / "__init__.py"), depth), *lines(path, depth + 1)]
    return found


def _line(name: str, about: str, depth: int) -> str:
    line = f"{'  ' * depth}{name:<{max(26 - 2 * depth, len(name) + 1)}}{about}".rstrip()
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…"


def written(page: str) -> str:
    """The page with the tree as it is now."""
    tree = "\n".join(lines(ROOT / "src" / "holdfast"))
    return BLOCK.sub(lambda found: f"{found[1]}{tree}\n{found[2]}", page)


if __name__ == "__main__":
    before = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(written(before), encoding="utf-8")
    sys.exit(0)
