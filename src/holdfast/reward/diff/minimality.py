"""Measures how much more was changed than had to be.

The cost of a change is compared with the cost of a known minimal fix, or with a guess. Similarity of whole files plays
no part, because it grows with the file. Whether a change is right is decided by the outcome gate. Scaffolding is what a
change added and nothing needs; only nodes that were not there before are looked at.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardTerm
from holdfast.reward.diff.edits import Change, EditFinding, compare, cost
from holdfast.reward.diff.trees import FOLDED, TEXT, Tree, language_of, normalise_newlines, parse

SOURCE = "rule:minimal_diff@1"
SLACK = 10.0  # nodes: so much beyond the least halves the multiplier of a small fix
BROKEN = 0.01  # the multiplier of a change that no longer parses
GUESS = 6.0  # cost of a small fix, where no reference is known
MOST_TOLD = 20  # places of scaffolding that are kept in words

References = Mapping[str, str | float] | float  # per path the text or cost of the least fix; or one cost for all


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What a change cost, what it had to, and the difference where that is above 0."""

    cost: float
    reference_cost: float
    excess: float
    is_broken: bool = False  # a text that parsed before no longer does


def excess(before: str, after: str, reference: str | float, *, language: str = "python") -> Excess:
    """`reference`: the text of a least fix, or what one costs."""
    script = compare(before, after, language)
    least = cost(before, reference, language) if isinstance(reference, str) else float(reference)
    if not (math.isfinite(least) and least >= 0.0):
        raise BadInput(f"reference cost {least}", why="must be finite and at least 0")
    is_broken = bool(script.both.after.errors) and not script.both.before.errors
    over = max(0.0, script.cost - least)
    return Excess(cost=script.cost, reference_cost=least, excess=over, is_broken=is_broken)


def total_excess(change: Change, references: References | None = None) -> Excess:
    """All files of a change. With references by path, a file that has none needed no change at all."""
    by_path = references if isinstance(references, Mapping) else {}
    excesses = [
        excess(before or "", after or "", by_path.get(path, 0.0), language=language_of(path))
        for path, (before, after) in sorted(change.items())
        if before != after
    ]
    spent = sum(one.cost for one in excesses)
    is_broken = any(one.is_broken for one in excesses)
    if isinstance(references, Mapping):
        least, over = sum(one.reference_cost for one in excesses), sum(one.excess for one in excesses)
    else:
        least = GUESS if references is None else float(references)
        over = max(0.0, spent - least)
    return Excess(cost=spent, reference_cost=least, excess=over, is_broken=is_broken)


def multiplier(excess: float, scaffolding: float = 0.0, *, reference_cost: float = 0.0) -> float:
    """m = 1 / ((1 + excess / (slack + reference)) · (1 + scaffolding)): 1 for the minimal fix, never 0, never
    rising."""
    for name, value in (("excess", excess), ("scaffolding", scaffolding), ("reference cost", reference_cost)):
        if not (math.isfinite(value) and value >= 0.0):
            raise BadInput(f"{name} {value}", why="must be finite and at least 0")
    return 1.0 / ((1.0 + excess / (SLACK + reference_cost)) * (1.0 + scaffolding))


def signals(
    change: Change,
    *,
    references: References | None = None,
    files: Collection[str] = (),
    uses: Sequence[str] = (),
    weight: float = 0.3,
    has_scaffolding: bool = True,
) -> tuple[RewardTerm, ...]:
    """The term `minimality`, and its parts `excess_edits`, `scaffolding` and `parse_errors` with weight 0. `files` are
    the paths that the task is about (empty: any); `uses` are other texts, such as tests, that may use a name. Without
    scaffolding only the size of the change counts. What was found is kept in words with the first."""
    spent = total_excess(change, references)
    findings = unneeded_scaffolding(change, references, files=files, uses=uses) if has_scaffolding else ()
    amount = scaffold_amount(findings)
    value = multiplier(spent.excess, amount, reference_cost=spent.reference_cost)
    value, message = min(value, BROKEN) if spent.is_broken else value, analysis(spent, findings, references)
    return (
        RewardTerm(name="minimality", value=value, weight=weight, source=SOURCE, feedback=message),
        RewardTerm(name="excess_edits", value=spent.excess, weight=0.0, source=SOURCE),
        RewardTerm(name="scaffolding", value=amount, weight=0.0, source=SOURCE),
        RewardTerm(name="parse_errors", value=float(spent.is_broken), weight=0.0, source=SOURCE),
    )


def analysis(spent: Excess, found: Sequence[EditFinding], references: References | None) -> str:
    """What a change cost, what the least one does, and what nobody needed, with its places."""
    least = "the least fix" if references else "a guess at the least fix"
    over = f"{spent.excess:.3g} edits beyond" if spent.excess else "no larger than"
    lines = [f"{over} {least} (cost {spent.cost:.1f}, {spent.reference_cost:.1f})"]
    lines += map(str, found[:MOST_TOLD])
    lines += [f"{len(found) - MOST_TOLD} more places"] if len(found) > MOST_TOLD else []
    return "; ".join([*lines, "does not parse any more"] if spent.is_broken else lines)


def unneeded_scaffolding(
    change: Change, references: References | None = None, *, files: Collection[str] = (), uses: Sequence[str] = ()
) -> tuple[EditFinding, ...]:
    """The scaffolding of a change, less what the least fix has of the same kind in the same file."""
    texts = references if isinstance(references, Mapping) else {}
    findings = scaffolding(change, files=files, uses=uses)
    if not findings:
        return ()
    needed = {path: (change[path][0], text) for path, text in texts.items() if isinstance(text, str) and path in change}
    allowed = Counter((finding.path, finding.rule) for finding in scaffolding(needed, uses=uses))
    kept = []
    for finding in findings:
        if allowed[finding.path, finding.rule] > 0:
            allowed[finding.path, finding.rule] -= 1
        else:
            kept.append(finding)
    return tuple(kept)


WEIGHTS: Mapping[str, float] = {
    **dict.fromkeys(("unused_import", "unused_parameter", "single_caller"), 0.25),
    **dict.fromkeys(("unused_name", "forwarder", "one_child_interface", "one_method_class", "guard"), 0.5),
    **dict.fromkeys(("swallow_all", "duplicate", "dead_branch", "stub", "sprawl"), 1.0),
}
LEAST_DUPLICATE = 20  # nodes
MOST_LINES = 3_000  # of a file in which duplicates of old code are looked for; beyond, only among what is new
SHORT = 3  # statements of a function that is worth no name of its own when one place calls it

FUNCTIONS = frozenset(
    {"function_definition", "function_declaration", "generator_function_declaration", "method_definition"}
)
CLASSES = frozenset({"class_definition", "class_declaration", "abstract_class_declaration", "interface_declaration"})
BLOCKS = frozenset({"block", "statement_block"})
PARAMETERS = frozenset({"parameters", "formal_parameters"})
NAMES = frozenset({"identifier", "property_identifier", "type_identifier", "shorthand_property_identifier"})
CALLS = frozenset({"call", "call_expression"})
ENDS = frozenset({"return_statement", "raise_statement", "throw_statement", "continue_statement", "break_statement"})
BROAD = frozenset({"Exception", "BaseException"})
_ABSTRACT = frozenset({"ABC", "Protocol", "ABCMeta"})
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    path: str
    tree: Tree
    added: frozenset[int]
    after: str
    lines: Sequence[str]
    words: Counter[str]  # of all texts after, and of those that may use a name

    def new(self, kinds: Collection[str]) -> Iterator[int]:
        return (at for at in sorted(self.added) if self.tree.kind[at] in kinds)

    def finding(self, rule: str, node: int, what: str) -> EditFinding:
        return EditFinding(rule, self.path, self.tree.line[node], what, WEIGHTS[rule])


def scaffolding(change: Change, *, files: Collection[str] = (), uses: Sequence[str] = ()) -> tuple[EditFinding, ...]:
    """Scaffolding in what a change added. `files` are those the task is about (empty: any); `uses` may use a name."""
    words: Counter[str] = Counter()
    for text in (*uses, *(after or "" for _, after in change.values())):
        words.update(_WORD.findall(text))
    findings: list[EditFinding] = []
    for path, (before, after) in sorted(change.items()):
        if files and path not in files and before != after:
            findings.append(EditFinding("sprawl", path, 1, "outside the task", WEIGHTS["sprawl"]))
        language = language_of(path)
        if not after or before == after or language == TEXT:
            continue
        script = compare(before or "", after, language)
        if script.both.is_coarse or script.both.after.errors or script.both.before.errors:
            continue
        lines, added = normalise_newlines(after).split("\n"), frozenset(script.added())
        file = _File(path=path, tree=script.both.after, added=added, after=after, lines=lines, words=words)
        for rule in _RULES:
            findings += rule(file)
    return tuple(sorted(findings, key=lambda finding: (finding.path, finding.line, finding.rule)))


def scaffold_amount(findings: Sequence[EditFinding]) -> float:
    """How much scaffolding there is: the sum of the weights."""
    return sum(finding.weight for finding in findings)


def name_of(tree: Tree, node: int) -> str:
    """What a definition is called: its first child that is a name."""
    for child in tree.children(node):
        if tree.kind[child] in NAMES:
            return tree.text[child]
    return ""


def body_of(tree: Tree, node: int) -> list[int]:
    """The statements of a definition, without remarks."""
    for child in reversed(tree.children(node)):
        if tree.kind[child] in BLOCKS or tree.kind[child] in ("class_body", "interface_body"):
            inner = tree.children(child)
            return [one for one in inner if tree.kind[one] not in ("comment", "docstring")]
    return []


def _parameters(tree: Tree, node: int) -> list[tuple[int, str]]:
    for child in tree.children(node):
        if tree.kind[child] in PARAMETERS:
            inner = tree.children(child)
            first = {one: next((tree.text[x] for x in tree.leaves(one) if tree.kind[x] in NAMES), "") for one in inner}
            return [(one, name) for one, name in first.items() if name not in ("", "self", "cls")]
    return []


def _unused(file: _File) -> Iterator[EditFinding]:
    tree = file.tree
    for node in file.new(FUNCTIONS | CLASSES):
        name = name_of(tree, node)
        if name and not _is_special(name) and file.words[name] <= 1 and not _is_exported(tree, node):
            yield file.finding("unused_name", node, f"{name} is never used")
    for node in file.new({"import_statement", "import_from_statement"}):
        own = Counter(_WORD.findall(tree.words(node)))
        for name in _imported(tree, node):
            if file.words[name] <= own[name] and not file.path.endswith(("__init__.py", "index.ts", "index.js")):
                yield file.finding("unused_import", node, f"{name} is never used")
    for node in file.new({"assignment", "variable_declarator"}):
        first = tree.children(node)[:1]
        if not first or tree.kind[first[0]] != "identifier" or _is_exported(tree, node):
            continue
        name = tree.text[first[0]]
        if file.words[name] <= 1 and not _is_special(name) and name != "_":
            yield file.finding("unused_name", node, f"{name} is never read")
    for node in file.new(FUNCTIONS):
        told = Counter(tree.text[leaf] for leaf in tree.leaves(node))
        if len(body_of(tree, node)) > 0 and not _is_stub(tree, node):
            for one, name in _parameters(tree, node):
                if told[name] <= 1 and not name.startswith("_"):
                    yield file.finding("unused_parameter", one, f"{name} is never read")


def _is_special(name: str) -> bool:
    return (name.startswith("__") and name.endswith("__")) or name in ("constructor", "main")


def _is_exported(tree: Tree, node: int) -> bool:
    for one in (node, *tree.above(node)):
        if tree.kind[one] in ("export_statement", "decorated_definition"):
            return True
        if tree.kind[one] in BLOCKS:
            return False
    return False


def _imported(tree: Tree, node: int) -> list[str]:
    """The names that an import binds."""
    names = []
    aliased = ("aliased_import", "import_specifier", "namespace_import")
    parts = tree.children(node)
    if tree.kind[node] == "import_from_statement":
        parts = parts[1:]  # where from
    for part in parts:
        inner = [one for one in tree.within(part) if tree.kind[one] in (*aliased, "import_clause")]
        if inner and tree.kind[inner[0]] == "import_clause":
            bound = range(part + 1, part + tree.size[part])
            names += [
                [tree.text[leaf] for leaf in tree.leaves(one)][-1]
                for one in bound
                if tree.kind[one] in aliased or (tree.kind[one] == "identifier" and tree.parent[one] == inner[0])
            ]
            continue
        leaves = [tree.text[leaf] for leaf in tree.leaves(part) if tree.kind[leaf] == "identifier"]
        if leaves:
            names.append(leaves[-1] if tree.kind[part] == "aliased_import" else leaves[0])
    return [name for name in names if name and name != "annotations"]


def _forwarders(file: _File) -> Iterator[EditFinding]:
    tree = file.tree
    for node in file.new(FUNCTIONS):
        body, name = body_of(tree, node), name_of(tree, node)
        given = [name for _, name in _parameters(tree, node)]
        passed = _passed_on(tree, body[0]) if len(body) == 1 else None
        if passed is not None and passed == given and (given or tree.kind[body[0]] == "return_statement"):
            yield file.finding("forwarder", node, f"{name} only calls something else with what it was given")
        elif 0 < len(body) <= SHORT and file.words[name] == 2 and not _is_stub(tree, node) and not _is_special(name):
            yield file.finding("single_caller", node, f"{name} is short, and one place uses it")


def _passed_on(tree: Tree, statement: int) -> list[str] | None:
    """The arguments of a statement that is nothing but one call with plain names."""
    at = statement
    while tree.kind[at] in ("return_statement", "expression_statement", "await", "await_expression"):
        inner = tree.children(at)
        if len(inner) != 1:
            return None
        at = inner[0]
    if tree.kind[at] not in CALLS:
        return None
    last = tree.children(at)[-1]
    arguments = tree.children(last)
    if any(tree.height[argument] and tree.kind[argument] != "keyword_argument" for argument in arguments):
        return None
    return [tree.text[list(tree.leaves(argument))[-1]] for argument in arguments]


def _interfaces(file: _File) -> Iterator[EditFinding]:
    tree = file.tree
    for node in file.new(CLASSES):
        name = name_of(tree, node)
        heads = [child for child in tree.children(node) if tree.kind[child] in ("argument_list", "class_heritage")]
        bases = {tree.text[leaf] for head in heads for leaf in tree.leaves(head)}
        is_abstract = tree.kind[node].startswith(("interface", "abstract")) or bool(bases & _ABSTRACT)
        if is_abstract:
            pattern = rf"(?:class\s+\w+\s*\([^)]*\b{name}\b|(?:extends|implements)\s[^{{]*\b{name}\b)"
            children = len(re.findall(pattern, file.after))
            if children <= 1:
                yield file.finding("one_child_interface", node, f"{name} has {children} implementations")
        elif not bases and tree.kind[node] != "interface_declaration":
            methods = [one for one in body_of(tree, node) if tree.kind[one] in FUNCTIONS]
            own = [method for method in methods if not _is_special(name_of(tree, method))]
            if len(own) <= 1 and methods and len(methods) == len(body_of(tree, node)):
                yield file.finding("one_method_class", node, f"{name} has one method")


def _swallows(file: _File) -> Iterator[EditFinding]:
    tree = file.tree
    for node in file.new({"except_clause", "catch_clause"}):
        inside = {tree.kind[at] for at in tree.within(node)}
        if inside & {"raise_statement", "throw_statement"}:
            continue
        parts = tree.children(node)
        if tree.kind[node] == "except_clause":
            caught = {tree.text[leaf] for leaf in (() if tree.kind[parts[0]] in BLOCKS else tree.leaves(parts[0]))}
            if caught and not caught & BROAD:
                continue
        elif len(body_of(tree, node)) > 1:
            continue
        yield file.finding("swallow_all", node, "catches everything and goes on")
    for node in file.new(CALLS):
        if tree.words(tree.children(node)[0]).endswith("suppress") and BROAD & set(tree.words(node).split()):
            yield file.finding("swallow_all", node, "suppresses everything")


def _guards(file: _File) -> Iterator[EditFinding]:
    """Early exits for a missing value or a wrong type that no caller is known to pass."""
    tree = file.tree
    for node in file.new({"if_statement"}):
        parts = tree.children(node)
        body = body_of(tree, node) if tree.kind[parts[-1]] in BLOCKS else parts[1:]
        if len(parts) != 2 or len(body) != 1 or tree.kind[body[0]] not in ENDS:
            continue
        condition = tree.words(parts[0])
        if re.fullmatch(_GUARD, condition):
            yield file.finding("guard", node, f"if {condition}: a way out that may not be needed")


_GUARD = re.compile(
    r"not [\w ]+|[\w ]+ is (?:not )?None|None is \w+|not isinstance [\w ]+|! [\w ]+|typeof \w+ [!=]==? \S+"
    r"|[\w ]+ [!=]==? (?:null|undefined|None)(?: \|\| [\w ]+ [!=]==? (?:null|undefined))?|len \w+ == 0|\w+ length === 0"
)


def _duplicates(file: _File) -> Iterator[EditFinding]:
    tree = file.tree
    large = [at for at in sorted(file.added) if tree.size[at] >= LEAST_DUPLICATE and tree.kind[at] in _UNITS]
    large = [at for at in large if sum(one in file.added for one in tree.within(at)) > tree.size[at] // 2]
    if not large:
        return
    whole = parse(file.after, tree.language) if file.after.count("\n") <= MOST_LINES else tree
    seen: dict[tuple[int, ...], set[int]] = defaultdict(set)
    for at in range(len(whole)):
        if whole.size[at] >= LEAST_DUPLICATE and whole.kind[at] in _UNITS:
            seen[_outline(whole, at)].add(whole.line[at])
    end = 0
    for at in large:
        twins = seen[_outline(tree, at)] - {tree.line[at]}
        if at >= end and twins:
            end = at + tree.size[at]
            yield file.finding("duplicate", at, f"the same as line {min(twins)} but for names")


_UNITS = FUNCTIONS | CLASSES | {"if_statement", "for_statement", "while_statement", "try_statement", "with_statement"}


def _outline(tree: Tree, node: int) -> tuple[int, ...]:
    """Kinds and literals, without names."""
    nodes = tree.within(node)
    kept = [(tree.kind[at], "" if tree.kind[at] in NAMES else tree.text[at], tree.size[at]) for at in nodes]
    return (len(kept), hash(tuple(kept)))


def _dead(file: _File) -> Iterator[EditFinding]:
    tree = file.tree
    for node in file.new({"if_statement", "while_statement"}):
        condition = tree.children(node)[0]
        text = tree.words(condition)
        never = {"False", "false", "0", "None", "null"}
        always = {"True", "true", "1"} if tree.kind[node] == "if_statement" else set()
        if text in never | always or _is_same_on_both_sides(tree, condition):
            yield file.finding("dead_branch", node, f"the condition {text} never changes")
    for node in sorted(file.added):
        if tree.kind[node] in BLOCKS or tree.parent[node] < 0 or tree.kind[tree.parent[node]] not in BLOCKS:
            continue
        row = tree.children(tree.parent[node])
        place = row.index(node)
        if place and _is_end(file, row[place - 1], node) and tree.kind[node] not in ("comment", "docstring"):
            yield file.finding("dead_branch", node, "is never reached")


def _is_end(file: _File, node: int, after: int) -> bool:
    """Whether control never passes a statement. Of a folded block, the last line decides, if it is as deep as the
    next."""
    if file.tree.kind[node] != FOLDED:
        return file.tree.kind[node] in ENDS
    last, line = file.lines[file.tree.end[node] - 1], file.lines[file.tree.line[after] - 1]
    is_way_out = re.match(r"\s*(?:return|raise|throw|continue|break)\b", last) is not None
    return is_way_out and _depth(last) == _depth(line) and last.rstrip()[-1] not in "([{,\\"


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_same_on_both_sides(tree: Tree, node: int) -> bool:
    if tree.kind[node] not in ("comparison_operator", "binary_expression"):
        return False
    parts = tree.children(node)
    return len(parts) == 3 and tree.hash[parts[0]] == tree.hash[parts[2]]


def _stubs(file: _File) -> Iterator[EditFinding]:
    tree = file.tree
    for node in file.new(FUNCTIONS):
        if _is_stub(tree, node) and not _is_abstract_member(tree, node):
            yield file.finding("stub", node, f"{name_of(tree, node)} does nothing")
    for node in file.new({"comment"}):
        if re.search(r"\b(?:TODO|FIXME|XXX)\b", tree.text[node]):
            yield file.finding("stub", node, "left to be done")


def _is_stub(tree: Tree, node: int) -> bool:
    if not any(tree.kind[child] in BLOCKS for child in tree.children(node)):
        return False  # a declaration
    body = body_of(tree, node)
    if not body:
        return True
    if len(body) > 1:
        return False
    text = tree.words(body[0])
    if tree.kind[body[0]] == "return_statement":
        return text in ("", "None", "null", "undefined")
    return (
        tree.kind[body[0]] == "pass_statement" or text == "..." or "NotImplemented" in text or "not implemented" in text
    )


def _is_abstract_member(tree: Tree, node: int) -> bool:
    above = tree.parent[node]
    if tree.kind[above] == "decorated_definition":
        decorators = {word for child in tree.children(above)[:-1] for word in tree.words(child).split()}
        return bool(decorators & {"abstractmethod", "overload"})
    owner = next((one for one in tree.above(node) if tree.kind[one] in CLASSES), None)
    return owner is not None and bool(_ABSTRACT & set(tree.first_words(owner, 6).split()[:6]))


_RULES = (_unused, _forwarders, _interfaces, _swallows, _guards, _duplicates, _dead, _stubs)
