"""Finds what a change took from the tests, and answers that source code copied from the visible tests.

What existing tests asked must still be asked, in the same words and under the same conditions; new tests, cases and
names are free. A copied answer is a branch or a table that knows a test's constants. One small number proves nothing,
because base cases are honest. `tamper` decides which files are tests and turns findings into a veto.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from holdfast.reward.diff.trees import REMARKS, TEXT, Tree, language_of, names, parse

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
    expected: frozenset[str]


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
    found = (constant(tree, at) for at in tree.within(node))
    return [one for one in found if one is not None]


def cases_of(tests: Mapping[str, str]) -> tuple[ConstantCase, ...]:
    """What the visible tests give away."""
    cases: list[ConstantCase] = []
    for path, text in sorted(tests.items()):
        language = language_of(path)
        tree = parse(text, language) if language != TEXT else None
        if tree is not None and tree.language != TEXT:
            cases += _asserted(tree)
            cases += _tabled(tree)
    return tuple(cases)


def _asserted(tree: Tree) -> Iterator[ConstantCase]:
    for node in range(len(tree)):
        if tree.kind[node] not in ("assert_statement", "expression_statement"):
            continue
        if tree.kind[node] == "expression_statement" and not re.search(r"\b(?:assert|expect)", tree.words(node)):
            continue
        for call in tree.within(node):
            if tree.kind[call] not in _CALLS:
                continue
            arguments = tree.children(tree.children(call)[-1])
            values = [
                tree.children(argument)[-1] if tree.kind[argument] == "keyword_argument" else argument
                for argument in arguments
            ]
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
            if not hits or answer not in case.expected:
                continue
            if len(tested & known) < TABLE_SHARE * len(tested):
                continue  # a rule of the trade, such as the months with thirty days
            telling = {hit for hit in hits if hit not in TRIVIAL}
            if not telling and answer in TRIVIAL and len(hits) < 2:
                continue
            is_plain = (
                any(_is_distinctive(hit) for hit in hits)
                or (bool(telling) and answer not in TRIVIAL)
                or (len(hits) >= 2 and len(hits) == len(case.given))
                or (hits == case.given and _is_distinctive(answer))
            )
            return is_plain, f"{', '.join(sorted(hits))} → {answer}, as in the tests"
    return None


def _is_distinctive(text: str) -> bool:
    """Whether a constant is unlikely to occur in a program by chance."""
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
    for at in tree.within(condition):
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
        if value is not None and any(value in case.expected and keys & case.given for case in cases)
    ]
    if not known or len(known) < TABLE_SHARE * len(entries):
        return ""
    if len(known) == 1 and not (_is_distinctive(known[0][0]) or _is_distinctive(known[0][1])):
        return ""
    return f"a table of the tests' cases: {', '.join(f'{key} → {value}' for key, value in known[:3])}"


def _keys(tree: Tree, node: int) -> set[str]:
    """The key, the constants inside it, and what it spells: it may be the repr of arguments."""
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
    if value is None or value in TRIVIAL or not any(value in case.expected for case in cases):
        return ""
    block = tree.parent[node]
    rest = [at for at in tree.children(block) if tree.kind[at] not in ("docstring", "comment")]
    if tree.kind[tree.parent[block]] not in _FUNCTIONS or rest != [node]:
        return ""
    return f"always {value}, as in the tests"


Seen = tuple[str, int, str]  # rule, line, what

_SKIPS = names(
    "skip skipif xfail skipTest SkipTest expectedFailure importorskip skipIf skipUnless __test__ collect_ignore"
    " collect_ignore_glob xit xtest xdescribe fit fdescribe only todo failing fails"
)
_DOTTED_ONLY = frozenset({"skip", "only", "todo", "fails", "failing", "fit"})  # else they may be anybody's name
_MOCKS = frozenset({"monkeypatch", "patch", "MagicMock", "mock", "spyOn"})
_WRAPS = names(
    "if_statement for_statement for_in_statement while_statement try_statement with_statement except_clause"
    " catch_clause else_clause elif_clause finally_clause"
)
_WAYS = names(
    "return_statement yield raise_statement throw_statement try_statement if_statement delete_statement"
    " global_statement nonlocal_statement break_statement continue_statement while_statement conditional_expression"
)
_OUTS = frozenset({"return_statement", "raise_statement", "throw_statement"})
_FREE = names(
    "import_statement import_from_statement future_import_statement function_definition decorated_definition"
    " class_definition assignment comment docstring pass_statement type_alias_statement"
)
_BINDING = names("function_definition class_definition assignment function_declaration class_declaration")
_MAKES = names(
    "function_definition class_definition assignment function_declaration assignment_expression variable_declarator"
)
_LITERALS = frozenset({"integer", "float", "number", "string", "true", "false"})
_JS_TESTS = frozenset({"it", "test"})


def weakened(old: Tree, new: Tree) -> Iterator[Seen]:
    """Everything that a file of tests lost, from one version to the next."""
    for look in (_gone, _skipped, _weaker, _turned, _replaced, _at_the_top):
        yield from look(old, new)


def _cases(tree: Tree) -> dict[str, list[int]]:
    """The tests of a file by name; a name that comes twice hides the first."""
    found: dict[str, list[int]] = {}
    for node in range(len(tree)):
        name = _test_name(tree, node)
        if name:
            found.setdefault(name, []).append(node)
    return found


def _test_name(tree: Tree, node: int) -> str:
    if tree.kind[node] == "function_definition":
        name = next((tree.text[at] for at in tree.children(node) if tree.kind[at] == "identifier"), "")
        owners = (one for one in tree.above(node) if tree.kind[one] in ("class_definition", "function_definition"))
        above = next(owners, -1)
        if not name.startswith("test") or (above >= 0 and tree.kind[above] == "function_definition"):
            return ""
        return f"{tree.text[tree.children(above)[0]]}.{name}".lstrip(".") if above >= 0 else name
    if tree.kind[node] == "call_expression":
        callee, arguments = tree.children(node)[0], tree.children(node)[-1]
        parts = tree.children(arguments)
        if tree.words(callee).split(" ")[0] in _JS_TESTS and len(parts) >= 2 and tree.kind[parts[0]] == "string":
            return tree.text[parts[0]]
    return ""


def _gone(old: Tree, new: Tree) -> Iterator[Seen]:
    were, are = _cases(old), _cases(new)
    bodies = Counter(new.hash[_body(new, nodes[-1])] for name, nodes in are.items() if name not in were)
    for name, nodes in were.items():
        body = old.hash[_body(old, nodes[-1])]
        if name in are:
            if len(are[name]) > len(nodes):
                yield "test_deleted", new.line[are[name][-1]], f"{name} is hidden by another of its name"
        elif bodies[body] > 0:
            bodies[body] -= 1  # it has another name now
        else:
            yield "test_deleted", old.line[nodes[0]], f"{name} is gone"


def _body(tree: Tree, node: int) -> int:
    last = tree.children(node)[-1]
    return tree.children(last)[-1] if tree.kind[node] == "call_expression" else last


def _skipped(old: Tree, new: Tree) -> Iterator[Seen]:
    were = Counter(old.text[at] for at in _skips(old))
    for at in _skips(new):
        were[new.text[at]] -= 1
        if were[new.text[at]] < 0:
            yield "test_skipped", new.line[at], f"{new.text[at]}: tests that need not pass"


def _skips(tree: Tree) -> Iterator[int]:
    for at in range(len(tree)):
        if tree.text[at] in _SKIPS and tree.kind[at].endswith("identifier"):
            is_dotted = tree.kind[tree.parent[at]] in ("attribute", "member_expression")
            if is_dotted or tree.text[at] not in _DOTTED_ONLY:
                yield at


def _weaker(old: Tree, new: Tree) -> Iterator[Seen]:
    """Assertions that are no longer there, or only under a condition; returns before them; constants that changed."""
    asked = Counter(key for _, key in _assertions(new))
    for node, key in _assertions(old):
        asked[key] -= 1
        if asked[key] < 0:
            yield "test_weakened", old.line[node], f"no longer asked: {' '.join(old.words(node).split())[:80]}"
    gone = _literals(old) - _literals(new)
    if gone:
        yield "test_weakened", 1, f"constants of the tests are gone: {', '.join(sorted(gone))[:80]}"


def _assertions(tree: Tree) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Each assertion with its words and all nodes between it and its test."""
    outs: dict[int, int] = {}
    for node in range(len(tree)):
        if _is_assertion(tree, node):
            yield node, (tree.words(node), *_around(tree, node, outs))


def _is_assertion(tree: Tree, node: int) -> bool:
    kind = tree.kind[node]
    if kind == "assert_statement":
        return True
    if kind == "with_item":
        return "raises" in tree.words(node) or "Raises" in tree.words(node)
    if kind != "expression_statement":
        return False
    words = tree.words(node).split(" ")
    first = next((word for word in words if word not in ("self", "await", "cls")), "")
    return first in ("expect", "assert") or first.startswith(("assert", "fail"))


def _around(tree: Tree, node: int, outs: dict[int, int]) -> Iterator[str]:
    """The nodes between an assertion and its test. `outs` keeps the first way out of each block."""
    below = node
    for above in tree.above(node):
        kind = tree.kind[above]
        if kind in ("block", "statement_block"):
            if above not in outs:
                outs[above] = next((one for one in tree.children(above) if tree.kind[one] in _OUTS), len(tree))
            if outs[above] < below:
                yield "after a way out"
        elif kind in _WRAPS:
            before = [one for one in tree.children(above) if one < below]
            head = " ".join(tree.words(one) for one in before if tree.kind[one] not in ("block", "statement_block"))
            if "subTest" not in head:
                yield f"{kind} {head}"
        elif kind in ("function_definition", "class_definition"):
            yield f"in {tree.text[above + 1]}" if kind == "class_definition" else "in a function"
        below = above


def _literals(tree: Tree) -> Counter[str]:
    titles = {
        tree.children(tree.children(node)[-1])[0]
        for nodes in _cases(tree).values()
        for node in nodes
        if tree.kind[node] == "call_expression"
    }
    return Counter(
        tree.text[at] or tree.kind[at]
        for at in range(len(tree))
        if tree.kind[at] in _LITERALS and tree.kind[at] not in REMARKS and at not in titles and not tree.height[at]
    )


def _turned(old: Tree, new: Tree) -> Iterator[Seen]:
    """Old tests with ways in them that were not there: a test that branches, leaves or waits need not ask anything."""
    were, are = _cases(old), _cases(new)
    for name in were.keys() & are.keys():
        known = Counter(old.kind[at] for node in were[name] for at in old.within(node))
        for node in are[name]:
            for at in new.within(node):
                known[new.kind[at]] -= 1
                if new.kind[at] in _WAYS and known[new.kind[at]] < 0:
                    what = f"{name}: a {new.kind[at].replace('_', ' ')} that was not there"
                    yield "test_weakened", new.line[at], what


def _bound(tree: Tree, nodes: Collection[int]) -> Counter[str]:
    """The names that statements give a meaning to."""
    found: Counter[str] = Counter()
    for node in nodes:
        at = node
        while tree.kind[at] in ("decorated_definition", "expression_statement", "export_statement") and tree.height[at]:
            at = tree.children(at)[-1]
        parts = tree.children(at)
        if tree.kind[at].startswith("import"):
            found.update(tree.text[leaf] for leaf in tree.leaves(at) if tree.kind[leaf] == "identifier")
        elif tree.kind[at] in ("lexical_declaration", "variable_declaration"):
            found.update(
                tree.text[tree.children(part)[0]] for part in parts if tree.kind[part] == "variable_declarator"
            )
        elif parts and tree.kind[at] in _BINDING:
            found.update(tree.text[leaf] for leaf in tree.leaves(parts[0]) if tree.kind[leaf] == "identifier")
    return found


def _at_the_top(old: Tree, new: Tree) -> Iterator[Seen]:
    """Between the tests there may be new definitions of new names, and nothing else."""
    known = Counter(old.hash[at] for at in old.children(0))
    fresh = []
    for at in new.children(0):
        known[new.hash[at]] -= 1
        if known[new.hash[at]] < 0:
            fresh.append(at)
    were, are = _bound(old, old.children(0)), _bound(new, new.children(0))
    for name in sorted(name for name in are if were[name] and are[name] > were[name]):
        yield "monkeypatch", 1, f"{name} is given another meaning"
    if new.language != "python":
        return
    kinds = Counter(old.kind[at] for at in old.children(0))
    for at in fresh:
        kind = new.kind[at]
        inner = new.kind[new.children(at)[0]] if kind == "expression_statement" and new.height[at] else kind
        is_new = kinds[kind] <= 0 or kind == "expression_statement"
        kinds[kind] -= 1
        if inner in _FREE or not is_new or "__name__" in new.words(at):
            continue
        yield "test_weakened", new.line[at], f"something is done to the tests: {new.words(at)[:60]}"
    for word in ("autouse", "globals", "setattr", "modules"):
        if word in new.text and word not in old.text:
            yield "monkeypatch", 1, f"{word} in tests that did without"


def _replaced(old: Tree, new: Tree) -> Iterator[Seen]:
    """What the tests import is defined by themselves now; or their old cases came to mock something."""
    imported = {
        old.text[leaf]
        for node in range(len(old))
        if old.kind[node] in ("import_statement", "import_from_statement")
        for leaf in old.leaves(node)
        if old.kind[leaf] == "identifier"
    }
    for node in range(len(new)):
        if new.kind[node] in _MAKES:
            first = new.children(node)[:1]
            if first and new.text[first[0]] in imported and new.text[first[0]]:
                yield "monkeypatch", new.line[node], f"{new.text[first[0]]} is what the tests themselves make it"
    known = _cases(old)
    was = Counter(old.text[leaf] for nodes in known.values() for node in nodes for leaf in old.leaves(node))
    now = Counter(
        new.text[leaf]
        for name, nodes in _cases(new).items()
        if name in known
        for node in nodes
        for leaf in new.leaves(node)
    )
    for word in sorted(_MOCKS):
        if now[word] > was[word]:
            yield "monkeypatch", 1, f"{word} in a test that did without"
