"""What tests no longer ask.

The tests that were there are the requirement: what they asked must still be asked, in the same words and under the same
conditions. New tests, new cases and new names are free. Whether a file holds tests is `tamper`'s to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from holdfast.reward.diff.trees import REMARKS, Tree, names

Seen = tuple[str, int, str]  # rule, line, what

_SKIPS = names(
    "skip skipif xfail skipTest SkipTest expectedFailure importorskip skipIf skipUnless __test__ collect_ignore"
    " collect_ignore_glob xit xtest xdescribe fit fdescribe only todo failing fails"
)
_DOTTED_ONLY = frozenset({"skip", "only", "todo", "fails", "failing", "fit"})  # else they may be anybody's name
_MOCKS = frozenset({"monkeypatch", "patch", "MagicMock", "mock", "spyOn"})
_WRAPS = frozenset(
    {
        "if_statement",
        "for_statement",
        "for_in_statement",
        "while_statement",
        "try_statement",
        "with_statement",
        "except_clause",
        "catch_clause",
        "else_clause",
        "elif_clause",
        "finally_clause",
    }
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
        above = tree.parent[node]
        while above >= 0 and tree.kind[above] not in ("class_definition", "function_definition"):
            above = tree.parent[above]
        if above >= 0 and tree.kind[above] == "function_definition":
            return ""
        owner = tree.text[tree.children(above)[0]] if above >= 0 else ""
        return f"{owner}.{name}".lstrip(".") if name.startswith("test") else ""
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
    """Each with its words and all that stands between it and its test."""
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
    """What stands between an assertion and its test. `outs` keeps the first way out of each block."""
    below, above = node, tree.parent[node]
    while above >= 0:
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
        below, above = above, tree.parent[above]


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
        known = Counter(old.kind[at] for node in were[name] for at in range(node, node + old.size[node]))
        for node in are[name]:
            for at in range(node, node + new.size[node]):
                known[new.kind[at]] -= 1
                if new.kind[at] in _WAYS and known[new.kind[at]] < 0:
                    yield (
                        "test_weakened",
                        new.line[at],
                        f"{name}: a {new.kind[at].replace('_', ' ')} that was not there",
                    )


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
            found.update(tree.text[tree.children(one)[0]] for one in parts if tree.kind[one] == "variable_declarator")
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
        if new.kind[node] in (
            "function_definition",
            "class_definition",
            "assignment",
            "function_declaration",
            "assignment_expression",
            "variable_declarator",
        ):
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
