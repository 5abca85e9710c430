"""Python that is right though the grammar does not read it, spelled so that it does.

Stars in subscripts and in bare tuples are the known case: `a[*b]`, `return *a, b`, `for x in *a, b`. Each star becomes
a plus, so that every place in the text stays what it was. Whether a text needs this is up to `trees`.
"""

from __future__ import annotations

import ast
import warnings

LONGEST = 400_000  # characters: the interpreter's own parser takes much memory


def parsed(source: str) -> ast.Module | None:
    """What Python itself reads; None where it refuses."""
    if len(source) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def mended(source: str) -> str | None:
    """The same text without such stars; None where there are none, or where it is no Python."""
    module = parsed(source)
    places = [] if module is None else _stars(module)
    if not places:
        return None
    lines = [line.encode("utf-8", errors="replace") for line in source.split("\n")]
    for row, column in places:
        line = lines[row - 1]
        if line[column : column + 1] == b"*":
            lines[row - 1] = line[:column] + b"+" + line[column + 1 :]
    return b"\n".join(lines).decode("utf-8", errors="replace")


def respelled(source: str) -> str:
    """All of it as the interpreter would write it; empty where it is no Python. Places are not kept."""
    module = parsed(source)
    try:
        return "" if module is None else ast.unparse(module)
    except RecursionError:
        return ""


def _stars(module: ast.Module) -> list[tuple[int, int]]:
    """Where starred values stand in tuples that are read, not written to."""
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.Tuple) and isinstance(node.ctx, ast.Load):
            found += [(one.lineno, one.col_offset) for one in node.elts if isinstance(one, ast.Starred)]
        elif isinstance(node, ast.arg) and isinstance(node.annotation, ast.Starred):
            found.append((node.annotation.lineno, node.annotation.col_offset))
    return found
