"""Conditions of affordances: a small part of Python's expressions, compiled to numbers that the kernel can run.

Names, numbers, comparisons, and, or, not. No calls, no attributes, no arithmetic: a rule file is data.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from holdfast.town.kernel import jit

LOAD, CONST, LT, LE, GT, GE, EQ, NE, AND, OR, NOT = range(11)
COMPARE = {ast.Lt: LT, ast.LtE: LE, ast.Gt: GT, ast.GtE: GE, ast.Eq: EQ, ast.NotEq: NE}
DEPTH = 16  # of the stack


class Bad(ValueError):
    """Why an expression is refused."""


def compile_condition(text: str, names: Mapping[str, tuple[int, int]]) -> list[tuple[int, int]]:
    """The operations in order; `names` says of each name its place and how many units its 1 is (0: it is yes or no)."""
    try:
        tree = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise Bad(f"is no expression: {error.msg}") from None
    code: list[tuple[int, int]] = []
    _put(tree, names, code)
    if _deepest(code) > DEPTH:
        raise Bad("is nested too deeply")
    return code


def _put(node: ast.expr, names: Mapping[str, tuple[int, int]], code: list[tuple[int, int]]) -> None:
    if isinstance(node, ast.BoolOp):
        for place, value in enumerate(node.values):
            _put(value, names, code)
            if place:
                code.append((AND if isinstance(node.op, ast.And) else OR, 0))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        _put(node.operand, names, code)
        code.append((NOT, 0))
    elif isinstance(node, ast.Name):
        place, unit = _known(node.id, names)
        if unit:
            raise Bad(f"{node.id} is a number: compare it with one")
        code.append((LOAD, place))
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARE:
        left, right = node.left, node.comparators[0]
        unit = _unit(left, names) or _unit(right, names)
        if not unit:
            raise Bad("compares no number that is known")
        code += [_side(side, names, unit) for side in (left, right)]
        code.append((COMPARE[type(node.ops[0])], 0))
    else:
        raise Bad(f"{ast.unparse(node)!r} is not allowed; use names, numbers, < <= > >= == !=, and, or, not")


def _known(name: str, names: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    if name not in names:
        raise Bad(f"{name} is unknown; there are {', '.join(sorted(names))}")
    return names[name]


def _unit(node: ast.expr, names: Mapping[str, tuple[int, int]]) -> int:
    return _known(node.id, names)[1] if isinstance(node, ast.Name) else 0


def _side(node: ast.expr, names: Mapping[str, tuple[int, int]], unit: int) -> tuple[int, int]:
    if isinstance(node, ast.Name):
        place, own = _known(node.id, names)
        if own != unit:
            raise Bad(f"{node.id} is measured otherwise than what it is compared with")
        return LOAD, place
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return CONST, round(node.value * unit)  # type: ignore[operator, arg-type]
    raise Bad(f"{ast.unparse(node)!r} cannot be compared: use a name or a number")


def _deepest(code: list[tuple[int, int]]) -> int:
    depth = deepest = 0
    for operation, _ in code:
        depth += 1 if operation in (LOAD, CONST) else 0 if operation == NOT else -1
        deepest = max(deepest, depth)
    return deepest


@jit
def holds(code: NDArray[np.int64], first: int, last: int, values: NDArray[np.int64], stack: NDArray[np.int64]) -> bool:
    """Whether the condition that code[first:last] spells is true of the values; an empty one is."""
    if first == last:
        return True
    top = -1
    for place in range(first, last):
        operation, operand = code[place, 0], code[place, 1]
        if operation == LOAD:
            top += 1
            stack[top] = values[operand]
        elif operation == CONST:
            top += 1
            stack[top] = operand
        elif operation == NOT:
            stack[top] = 1 - min(stack[top], 1)
        else:
            a, b = stack[top - 1], stack[top]
            top -= 1
            if operation == LT:
                stack[top] = a < b
            elif operation == LE:
                stack[top] = a <= b
            elif operation == GT:
                stack[top] = a > b
            elif operation == GE:
                stack[top] = a >= b
            elif operation == EQ:
                stack[top] = a == b
            elif operation == NE:
                stack[top] = a != b
            elif operation == AND:
                stack[top] = min(a, 1) & min(b, 1)
            else:
                stack[top] = min(a, 1) | min(b, 1)
    return bool(stack[0] != 0)
