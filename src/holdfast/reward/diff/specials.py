"""Answers that were copied from the visible tests: branches and tables that know the very cases.

A case is what a test calls with constants, and the constants it compares the result with. Which nodes are looked at is
the caller's business. One small number proves nothing, since base cases are honest; `tamper` makes a veto of what is
found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from holdfast.reward.diff.trees import TEXT, Tree, language_of, names, parse

TRIVIAL = names("0 1 2 -1 0.0 1.0 True False None true false null undefined") | {""}
LONGEST = 2_000  # nodes of a branch that are searched for its answer, since branches stand in branches
DEEPEST = 20  # levels of a constant
TABLE_SHARE = 0.75  # of the pairs of a table that are cases of the tests

_LEAVES = frozenset(
    {"integer", "float", "number", "string", "true", "false", "none", "null", "undefined", "identifier"}
)
_NAMED = frozenset({"true", "false", "none", "null", "undefined"})
_MANY = frozenset({"list", "tuple", "set", "array", "expression_list", "dictionary", "object", "pair"})
_CALLS = frozenset({"call", "call_expression"})
_EQUALS = frozenset({"==", "===", "is", "in"})
_BRANCHES = frozenset(
    {"if_statement", "elif_clause", "conditional_expression", "ternary_expression", "case_clause", "switch_case"}
)
_FUNCTIONS = frozenset({"function_definition", "function_declaration", "method_definition", "arrow_function"})


@dataclass(frozen=True, slots=True)
class ConstantCase:
    """Constants that went in, and constants that the result was compared with."""

    given: frozenset[str]
    wanted: frozenset[str]


def constant(tree: Tree, node: int) -> str | None:
    """A constant in one spelling, without quotes; None for anything that is computed."""
    kind, text = tree.kind[node], tree.text[node]
    if tree.height[node] > DEEPEST:
        return None
    if not tree.height[node]:
        if kind in _MANY:
            return f"{'tuple' if kind == 'expression_list' else kind}()"
        if kind not in _LEAVES or (kind == "identifier" and text != "undefined"):
            return None
        return kind.capitalize() if kind in _NAMED and not text else _plain(text)
    parts = tree.children(node)
    if kind in ("unary_operator", "unary_expression") and len(parts) == 2 and tree.text[parts[0]] == "-":
        inner = constant(tree, parts[1])
        return None if inner is None else f"-{inner}"
    if kind not in _MANY:
        return None
    inside = [constant(tree, part) for part in parts]
    if any(one is None for one in inside):
        return None
    return f"{'tuple' if kind == 'expression_list' else kind}({','.join(str(one) for one in inside)})"


def _plain(text: str) -> str:
    bare = re.fullmatch(r'[a-z]*"(.*)"', text, re.DOTALL)
    return bare.group(1) if bare else text.replace("_", "")


def constants(tree: Tree, node: int) -> list[str]:
    """All constants below a node, those inside of others too."""
    found = (constant(tree, at) for at in range(node, node + tree.size[node]))
    return [one for one in found if one is not None]


def cases_of(tests: Mapping[str, str]) -> tuple[ConstantCase, ...]:
    """What the visible tests give away."""
    found: list[ConstantCase] = []
    for path, text in sorted(tests.items()):
        language = language_of(path)
        tree = parse(text, language) if language != TEXT else None
        if tree is not None and tree.language != TEXT:
            found += _asserted(tree)
            found += _tabled(tree)
    return tuple(found)


def _asserted(tree: Tree) -> Iterator[ConstantCase]:
    for node in range(len(tree)):
        if tree.kind[node] not in ("assert_statement", "expression_statement"):
            continue
        if tree.kind[node] == "expression_statement" and not re.search(r"\b(?:assert|expect)", tree.words(node)):
            continue
        for call in range(node, node + tree.size[node]):
            if tree.kind[call] not in _CALLS:
                continue
            arguments = tree.children(tree.children(call)[-1])
            values = [tree.children(one)[-1] if tree.kind[one] == "keyword_argument" else one for one in arguments]
            given = [constant(tree, one) for one in values]
            if not given or any(one is None for one in given):
                continue
            outside = _outside(tree, node, call)
            if outside:
                yield ConstantCase(frozenset(str(one) for one in given), frozenset(outside))


def _outside(tree: Tree, node: int, call: int) -> list[str]:
    """The outermost constants of an assertion that are not arguments of this call."""
    found, at, end = [], node + 1, node + tree.size[node]
    while at < end:
        if at == call:
            at += tree.size[at]
            continue
        value = constant(tree, at)
        if value is not None:
            found.append(value)
            at += tree.size[at]
        else:
            at += 1
    return found


def _tabled(tree: Tree) -> Iterator[ConstantCase]:
    """Rows of a table of cases: the last column is what is wanted."""
    for node in range(len(tree)):
        if tree.kind[node] not in ("tuple", "array", "list", "pair", "arguments", "argument_list"):
            continue
        parts = [constant(tree, part) for part in tree.children(node)]
        if len(parts) >= 2 and all(part is not None for part in parts):
            yield ConstantCase(frozenset(str(part) for part in parts[:-1]), frozenset({str(parts[-1])}))


def special_cases(tree: Tree, nodes: Iterable[int], cases: tuple[ConstantCase, ...]) -> Iterator[tuple[int, str]]:
    """Those of the nodes that answer a case of the tests by name, and what they answer."""
    if not cases:
        return
    new = sorted(set(nodes))
    faint: list[tuple[int, str]] = []
    for node in new:
        if tree.kind[node] in ("dictionary", "object", "list", "tuple", "array"):
            known = _known_pairs(tree, node, cases)
            if known:
                yield node, known
        elif tree.kind[node] in _BRANCHES:
            found = _branch(tree, node, cases)
            if found is not None:
                is_plain, what = found
                if is_plain:
                    yield node, what
                else:
                    faint.append((node, what))
        elif tree.kind[node] == "return_statement":
            what = _whole_answer(tree, node, cases)
            if what:
                yield node, what
    if len({what for _, what in faint}) >= 2:  # one may be an honest base case
        yield from faint


def _branch(tree: Tree, node: int, cases: tuple[ConstantCase, ...]) -> tuple[bool, str] | None:
    """A condition on constants of a case, with its answer: whether that is plain, and in words."""
    tested, answers = _tested(tree, node), _answers(tree, node)
    known = {one for case in cases for one in case.given}
    known |= {one for one in tested if one.startswith("tuple(")}
    for answer in answers:
        for case in cases:
            hits = {one for one in tested if one in case.given}
            if not hits or answer not in case.wanted:
                continue
            if len(tested & known) < TABLE_SHARE * len(tested):
                continue  # a rule of the trade, such as the months with thirty days
            telling = {one for one in hits if one not in TRIVIAL}
            if not telling and answer in TRIVIAL and len(hits) < 2:
                continue
            is_plain = (
                any(_is_distinctive(one) for one in hits)
                or (bool(telling) and answer not in TRIVIAL)
                or (len(hits) >= 2 and len(hits) == len(case.given))
                or (hits == case.given and _is_distinctive(answer))
            )
            return is_plain, f"{', '.join(sorted(hits))} → {answer}, as in the tests"
    return None


def _is_distinctive(text: str) -> bool:
    """Nothing that stands in a program by chance."""
    if re.fullmatch(r"-?[\d.]+", text):
        return len(text.lstrip("-").replace(".", "")) >= 2 and text not in ("10", "100", "1000")
    return text not in TRIVIAL and (len(text) >= 3 or "(" in text)


def _tested(tree: Tree, node: int) -> set[str]:
    """The constants that the condition of a branch asks for equality with."""
    parts = tree.children(node)
    if tree.kind[node] in ("case_clause", "switch_case"):
        return set(constants(tree, parts[0])) if parts else set()
    condition = parts[1] if tree.kind[node] == "conditional_expression" and len(parts) > 1 else parts[0]
    found: set[str] = set()
    for at in range(condition, condition + tree.size[condition]):
        if tree.kind[at] in ("comparison_operator", "binary_expression"):
            sides = tree.children(at)
            if any(tree.kind[side] == "operator" and tree.text[side] in _EQUALS for side in sides):
                for side in sides:
                    found |= set(constants(tree, side))
    return found


def _answers(tree: Tree, node: int) -> set[str]:
    """What a branch gives back, where that is a constant."""
    parts = tree.children(node)
    if tree.kind[node] == "conditional_expression":
        tried = parts[:1]
    elif tree.kind[node] == "ternary_expression":
        tried = parts[1:2]
    else:
        scope = parts[1:2] if tree.kind[node] in ("if_statement", "elif_clause") else parts[1:]
        inside = [at for part in scope for at in range(part, part + min(tree.size[part], LONGEST))]
        tried = [tree.children(at)[-1] for at in inside if tree.kind[at] in _GIVING and tree.children(at)]
    return {one for at in tried if (one := constant(tree, at)) is not None}


_GIVING = frozenset({"return_statement", "assignment", "assignment_expression", "yield"})


def _entries(tree: Tree, node: int) -> list[tuple[set[str], str | None]]:
    """The rows of a table: keys and values of a dictionary, or the columns of rows, of which the last is the value."""
    parts = tree.children(node)
    if tree.kind[node] in ("dictionary", "object"):
        rows = [tree.children(part) for part in parts if tree.kind[part] == "pair"]
    else:
        rows = [tree.children(part) for part in parts if tree.kind[part] in ("tuple", "list", "array")]
    keyed = [row for row in rows if len(row) >= 2]
    return [({one for part in row[:-1] for one in _keys(tree, part)}, constant(tree, row[-1])) for row in keyed]


def _known_pairs(tree: Tree, node: int, cases: tuple[ConstantCase, ...]) -> str:
    entries = _entries(tree, node)
    known = [
        (min(keys, key=len, default=""), value)
        for keys, value in entries
        if value is not None and any(_is_case(keys, value, case) for case in cases)
    ]
    if not known or len(known) < TABLE_SHARE * len(entries):
        return ""
    if len(known) == 1 and not (_is_distinctive(known[0][0]) or _is_distinctive(known[0][1])):
        return ""
    return f"a table of the tests' cases: {', '.join(f'{key} → {value}' for key, value in known[:3])}"


def _is_case(keys: set[str], value: str, case: ConstantCase) -> bool:
    return value in case.wanted and bool(keys & case.given)


def _keys(tree: Tree, node: int) -> set[str]:
    """What a key stands for: itself, what is inside it, and what it spells, for it may be the repr of arguments."""
    found = set(constants(tree, node))
    key = constant(tree, node)
    if key is not None and key.startswith(("(", "[", "{")):
        spelled = parse(key, "python")
        if spelled.language != TEXT:
            found |= {one for at in range(len(spelled)) if (one := constant(spelled, at)) is not None}
    return found


def _whole_answer(tree: Tree, node: int, cases: tuple[ConstantCase, ...]) -> str:
    """A function that does nothing but give back what a test wants."""
    parts = tree.children(node)
    value = constant(tree, parts[0]) if len(parts) == 1 else None
    if value is None or value in TRIVIAL or not any(value in case.wanted for case in cases):
        return ""
    block = tree.parent[node]
    rest = [at for at in tree.children(block) if tree.kind[at] not in ("docstring", "comment")]
    if tree.kind[tree.parent[block]] not in _FUNCTIONS or rest != [node]:
        return ""
    return f"always {value}, as in the tests"
