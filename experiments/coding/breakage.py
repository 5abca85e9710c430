"""Ways to break a function that is right, each a single edit whose undoing is the exact minimal repair.

Edits are made in the text, at places found in its syntax tree, so that nothing else moves. Whether the result is really
broken, that is, whether a hidden call tells it from the original, is for `tasks` to find out.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

BOUNDARIES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPERATORS = {
    "==": "!=",
    "!=": "==",
    "<": ">",
    "<=": ">=",
    ">": "<",
    ">=": "<=",
    "in": "not in",
    "not in": "in",
    "is": "is not",
    "is not": "is",
    "+": "-",
    "-": "+",
    "*": "+",
    "//": "*",
    "/": "*",
    "%": "//",
    "**": "*",
    "and": "or",
    "or": "and",
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "popleft": "pop", "islower": "isupper"}
TOKEN = re.compile(r"not\s+in|is\s+not|\*\*|//|[<>=!]=|[-+*/%<>]|\b(?:in|is|and|or)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakage:
    """One edit, and the text it makes."""

    kind: str
    line: int  # of the text that was right, from 1
    text: str  # broken


def breakages(source: str) -> tuple[Breakage, ...]:
    """All of them, in the order of the text; none is equal to the source or to another."""
    text = _Text(source)
    seen, found = {source}, []
    for function in [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]:
        names = _names(function)
        for statement in function.body:
            for node in ast.walk(statement):
                for kind, start, end, by in _edits(node, text, names):
                    broken = source[:start] + by + source[end:]
                    if broken not in seen and _parses(broken):
                        seen.add(broken)
                        found.append(Breakage(kind=kind, line=source.count("\n", 0, start) + 1, text=broken))
    return tuple(sorted(found, key=lambda one: (one.line, one.kind, one.text)))


class _Text:
    """Where the nodes of a syntax tree are in the text; plain ASCII, so that a column is a letter."""

    def __init__(self, source: str) -> None:
        assert source.isascii()
        self.source = source
        self.starts = [0, *(place.end() for place in re.finditer("\n", source))]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = self.starts[node.lineno - 1] + node.col_offset
        return start, self.starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.source[start:end]

    def sign(self, left: ast.expr, right: ast.expr) -> tuple[int, int, str]:
        """The operator between two expressions: where, and which."""
        begin, end = self.span(left)[1], self.span(right)[0]
        found = TOKEN.search(self.source, begin, end)
        assert found is not None
        return found.start(), found.end(), " ".join(found.group().split())


Edit = tuple[str, int, int, str]  # kind, start, end, what stands there then


def _edits(node: ast.AST, text: _Text, names: list[str]) -> Iterator[Edit]:
    if isinstance(node, ast.Compare):
        for left, right in pairwise([node.left, *node.comparators]):
            start, end, sign = text.sign(left, right)
            if sign in BOUNDARIES:
                yield "boundary", start, end, BOUNDARIES[sign]
            yield "operator", start, end, OPERATORS[sign]
    elif isinstance(node, ast.BinOp):
        start, end, sign = text.sign(node.left, node.right)
        yield "operator", start, end, OPERATORS[sign]
    elif isinstance(node, ast.BoolOp):
        start, end, sign = text.sign(node.values[0], node.values[1])
        yield "operator", start, end, OPERATORS[sign]
    elif isinstance(node, ast.AugAssign):
        start, end, sign = text.sign(node.target, node.value)
        yield "operator", start, end, OPERATORS[sign]
        yield from _dropped(node, text, "dropped step")
    elif isinstance(node, ast.Constant):
        yield from _constants(node, text)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _names_instead(node, text, names)
    elif isinstance(node, ast.Call):
        yield from _calls(node, text)
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        yield from _negated(node.test, text)
    if (
        isinstance(node, ast.If)
        and not node.orelse
        and isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
    ):
        yield from _dropped(node, text, "dropped guard")


def _constants(node: ast.Constant, text: _Text) -> Iterator[Edit]:
    start, end = text.span(node)
    if isinstance(node.value, bool):
        yield "constant", start, end, str(not node.value)
    elif isinstance(node.value, int):
        kind = "off by one" if node.value in (0, 1) else "constant"
        yield kind, start, end, str(node.value + 1)
        if node.value > 0:
            yield kind, start, end, str(node.value - 1)


def _names_instead(node: ast.Name, text: _Text, names: list[str]) -> Iterator[Edit]:
    """The two names after it in the alphabet of the function: all others would drown the other kinds."""
    if node.id in names:
        start, end = text.span(node)
        place = names.index(node.id)
        for other in (names + names)[place + 1 : place + 3]:
            if other != node.id:
                yield "wrong variable", start, end, other


def _calls(node: ast.Call, text: _Text) -> Iterator[Edit]:
    if isinstance(node.func, ast.Name | ast.Attribute):
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        if name in CALLS:
            end = text.span(node.func)[1]
            yield "wrong call", end - len(name), end, CALLS[name]
        if name == "len":
            end = text.span(node)[1]
            yield "off by one", end, end, " - 1"
    for left, right in pairwise(node.args):
        start, end = text.span(left)[0], text.span(right)[1]
        between = text.source[text.span(left)[1] : text.span(right)[0]]
        yield "argument order", start, end, text.of(right) + between + text.of(left)


def _negated(test: ast.expr, text: _Text) -> Iterator[Edit]:
    start, end = text.span(test)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield "negated condition", start, end, text.of(test.operand)
    elif isinstance(test, ast.BoolOp | ast.Compare):
        yield "negated condition", start, end, f"not ({text.of(test)})"
    else:
        yield "negated condition", start, end, f"not {text.of(test)}"


def _dropped(node: ast.stmt, text: _Text, kind: str) -> Iterator[Edit]:
    """The statement with its lines; a body that would be empty does not parse, and is left out for it."""
    assert node.end_lineno is not None
    line = text.source[text.starts[node.lineno - 1] :]
    if line.lstrip().startswith("elif"):  # it shares its head with the statement before
        return
    last = text.starts[node.end_lineno] if node.end_lineno < len(text.starts) else len(text.source)
    yield kind, text.starts[node.lineno - 1], last, ""


def _names(function: ast.FunctionDef) -> list[str]:
    """What the function calls its own."""
    found = {one.arg for one in function.args.args}
    found |= {one.id for one in ast.walk(function) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    return sorted(found)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
