"""Finds the edits between two texts, and what they cost.

Nodes are matched in the manner of GumTree (Falleri et al. 2014, https://doi.org/10.1145/2642937.2642982): equal
subtrees from the largest down, then parents that share most of their descendants, then the optimal mapping (Zhang and
Shasha 1989) where little is left. An edit inserts, deletes, updates or moves one node. Comments and docstrings cost a
tenth of that for each line; layout costs nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.reward.diff.trees import FOLDED, REMARKS, Both, Tree, both, line_changes, longest_increasing

LEAST_HEIGHT = 2  # of an equal subtree that is looked for everywhere; smaller ones are found inside their parents
LEAST_DICE = 0.4  # 2 · shared / (one + other): parents with less in common are not the same parent
MOST_OPTIMAL = 40  # nodes of either side that are matched the optimal way
MOST_CANDIDATES = 12  # that are looked at for one parent
MOST_TWINS = 64  # equal subtrees on both sides: more of them are matched in order
LEAST_ALONE = 3  # nodes of what is looked for on other levels
LEAST_ALIKE = 0.65
MOST_ALONE = 6_000  # pairs: more are not compared

_GENERIC = frozenset(
    {"block", "statement_block", "argument_list", "arguments", "parameters", "formal_parameters", "line"}
)

Matches = NDArray[np.int32]  # node before → node after; −1: gone


def match(both: Both) -> Matches:
    """The node after for each node before; a match is one to one and never changes the kind."""
    work = _Work(both)
    work.top_down()
    work.bottom_up()
    work.inside(0)
    work.elsewhere()
    return work.to


class _Work:
    def __init__(self, both: Both) -> None:
        self.old, self.new = both.before, both.after
        self.to: Matches = np.full(len(self.old), -1, np.int32)
        self.back: Matches = np.full(len(self.new), -1, np.int32)
        for one, other in both.pairs:
            self.tie(one, other)
        folds = {self.new.text[at]: at for at in range(len(self.new)) if self.new.kind[at] == FOLDED}
        for at in range(len(self.old)):
            if self.old.kind[at] == FOLDED:
                self.tie(at, folds[self.old.text[at]])

    def tie(self, one: int, other: int) -> bool:
        if self.to[one] >= 0 or self.back[other] >= 0 or self.old.kind[one] != self.new.kind[other]:
            return False
        self.to[one], self.back[other] = other, one
        return True

    def tie_below(self, one: int, other: int) -> None:
        """All of two equal subtrees, unless a part of them belongs elsewhere already."""
        for at in range(self.old.size[one]):
            self.tie(one + at, other + at)

    def top_down(self) -> None:
        old, new = self.old, self.new
        twins: dict[int, list[int]] = defaultdict(list)
        for at in range(len(new)):
            if new.height[at] >= LEAST_HEIGHT and self.back[at] < 0:
                twins[new.hash[at]].append(at)
        same: dict[int, list[int]] = defaultdict(list)
        for at in range(len(old)):
            if old.height[at] >= LEAST_HEIGHT and old.hash[at] in twins and self.to[at] < 0:
                same[old.hash[at]].append(at)
        for key in sorted(same, key=lambda one: (-old.height[same[one][0]], same[one][0])):
            here = [at for at in same[key] if self.to[at] < 0]
            there = [at for at in twins[key] if self.back[at] < 0]
            for one, other in self.in_place(here, there):
                self.tie_below(one, other)

    def in_place(self, here: list[int], there: list[int]) -> list[tuple[int, int]]:
        """Which of several equal subtrees is which: the ones whose surroundings are alike, else in order."""
        if len(here) == len(there) == 1 or len(here) * len(there) > MOST_TWINS**2:
            return list(zip(here, there, strict=False))
        ranked = sorted(
            (
                (-self.likeness(one, other), abs(a - b), one, other)
                for a, one in enumerate(here)
                for b, other in enumerate(there)
            )
        )
        used: set[int] = set()
        taken: set[int] = set()
        pairs = []
        for _, _, one, other in ranked:
            if one not in used and other not in taken:
                used.add(one)
                taken.add(other)
                pairs.append((one, other))
        return pairs

    def likeness(self, one: int, other: int) -> float:
        """How many parents in a row are matched or equal, and whether the neighbours are."""
        score, weight = 0.0, 1.0
        a, b = self.old.parent[one], self.new.parent[other]
        while a >= 0 and b >= 0 and self.old.kind[a] == self.new.kind[b] and weight > 0.01:
            score += weight * (2.0 if self.to[a] == b else 1.0 if self.old.hash[a] == self.new.hash[b] else 0.5)
            score += weight * (0.5 if _name(self.old, a) == _name(self.new, b) else 0.0)
            a, b, weight = self.old.parent[a], self.new.parent[b], weight / 2
        return score

    def bottom_up(self) -> None:
        old, new = self.old, self.new
        for at in range(len(old) - 1, -1, -1):
            if self.to[at] >= 0 or not old.height[at]:
                continue
            below = self.to[at + 1 : at + old.size[at]]
            partners = below[below >= 0]
            if not partners.size:
                continue
            best, most = -1, LEAST_DICE
            for candidate in self.candidates(old.kind[at], partners):
                inside = (partners > candidate) & (partners < candidate + new.size[candidate])
                dice = 2.0 * float(np.count_nonzero(inside)) / (old.size[at] + new.size[candidate] - 2)
                dice += 0.2 * (_name(old, at) == _name(new, candidate) != "")
                if dice > most:
                    best, most = candidate, dice
            if best >= 0:
                self.tie(at, best)

    def candidates(self, kind: str, partners: Matches) -> list[int]:
        found: list[int] = []
        seen: set[int] = set()
        for partner in partners.tolist():
            above = self.new.parent[partner]
            while above >= 0 and above not in seen:
                seen.add(above)
                if self.back[above] < 0 and self.new.kind[above] == kind:
                    found.append(above)
                    if len(found) == MOST_CANDIDATES:
                        return found
                above = self.new.parent[above]
        return found

    def inside(self, root: int) -> None:
        """From a node down, so that a pair made here is looked into as well."""
        old, new, done = self.old, self.new, 0  # nodes up to `done` were matched the optimal way, with all around them
        for at in old.within(root):
            other = int(self.to[at])
            if other < 0 or not old.height[at] or not new.height[other]:
                continue
            if old.shape[at] == new.shape[other]:
                self.tie_below(at, other)
            elif at < done:
                continue
            elif max(old.size[at], new.size[other]) <= MOST_OPTIMAL:
                self.optimal(at, other)
                done = at + old.size[at]
            else:
                self.children(at, other)

    def elsewhere(self) -> None:
        """What is alone still, and went up or down a level as into a `try`: the most alike of its kind, large first."""
        old, new = self.old, self.new
        there: dict[str, list[int]] = defaultdict(list)
        for at in range(len(new)):
            if self.back[at] < 0 and new.size[at] >= LEAST_ALONE and new.kind[at] not in _GENERIC:
                there[new.kind[at]].append(at)
        here = [
            at for at in range(len(old)) if self.to[at] < 0 and old.size[at] >= LEAST_ALONE and old.kind[at] in there
        ]
        if not here or sum(len(there[old.kind[at]]) for at in here) > MOST_ALONE:
            return
        bags = {at: _bag(old, at) for at in here}
        others = {at: _bag(new, at) for nodes in there.values() for at in nodes}
        ranked = []
        for one in here:
            for other in there[old.kind[one]]:
                alike = _alike(bags[one], others[other])
                if alike >= LEAST_ALIKE:
                    shared = alike * min(old.size[one], new.size[other])
                    ranked.append((-shared, -self.likeness(one, other), one, other))
        for _, _, one, other in sorted(ranked):
            if self.tie(one, other):
                self.inside(one)

    def children(self, one: int, other: int) -> None:
        """Children in order: equal ones, then those of one name, of one shape, of one kind."""
        old, new = self.old, self.new
        keys: Sequence[tuple[Callable[[int], Hashable], Callable[[int], Hashable]]] = (
            (lambda at: old.hash[at], lambda at: new.hash[at]),
            (lambda at: (old.kind[at], _name(old, at) or at), lambda at: (new.kind[at], _name(new, at) or -at)),
            (lambda at: old.shape[at], lambda at: new.shape[at]),
            (lambda at: old.kind[at], lambda at: new.kind[at]),
        )
        for here, there in keys:
            left = [at for at in old.children(one) if self.to[at] < 0]
            right = [at for at in new.children(other) if self.back[at] < 0]
            if not left or not right:
                return
            for a, b in _in_order([here(at) for at in left], [there(at) for at in right]):
                if old.hash[left[a]] == new.hash[right[b]]:
                    self.tie_below(left[a], right[b])
                else:
                    self.tie(left[a], right[b])

    def trim(self, one: int, other: int) -> tuple[tuple[int, list[int]], tuple[int, list[int]]] | None:
        """The innermost two nodes below which all differences are, with the children among which they are."""
        old, new = self.old, self.new
        while True:
            left, right = old.children(one), new.children(other)
            while left and right and old.hash[left[0]] == new.hash[right[0]]:
                self.tie_below(left.pop(0), right.pop(0))
            while left and right and old.hash[left[-1]] == new.hash[right[-1]]:
                self.tie_below(left.pop(), right.pop())
            if not left or not right:
                return None
            is_single = len(left) == len(right) == 1 and old.kind[left[0]] == new.kind[right[0]]
            if not is_single:
                return (one, left), (other, right)
            self.tie(left[0], right[0])
            one, other = left[0], right[0]

    def optimal(self, one: int, other: int) -> None:
        """Nodes that are matched already stay so; the others follow the cheapest mapping, then equal ones may move."""
        old, new = self.old, self.new
        inner = self.trim(one, other)
        if inner is not None:
            for a, b in mapping(old, *inner[0], new, *inner[1]):
                self.tie(a, b)
        left: dict[int, list[int]] = defaultdict(list)
        for at in range(new.size[other]):
            if self.back[other + at] < 0:
                left[new.hash[other + at]].append(other + at)
        for at in old.within(one):
            if self.to[at] < 0 and left.get(old.hash[at]):
                self.tie_below(at, left[old.hash[at]].pop(0))


def _bag(tree: Tree, node: int) -> tuple[Counter[str], Counter[str]]:
    """The texts below a node, and the kinds."""
    inside = tree.within(node)
    return Counter(tree.text[at] for at in inside if tree.text[at]), Counter(tree.kind[at] for at in inside)


def _alike(one: tuple[Counter[str], Counter[str]], other: tuple[Counter[str], Counter[str]]) -> float:
    """Dice of the texts and of the kinds, half and half: a renamed thing keeps its kinds."""
    shares = [2.0 * (a & b).total() / max(1, a.total() + b.total()) for a, b in zip(one, other, strict=True)]
    return sum(shares) / 2


def _name(tree: Tree, node: int) -> str:
    """What a definition is called: its first leaf that is an identifier."""
    if "def" not in tree.kind[node] and "decl" not in tree.kind[node]:
        return ""
    for child in range(node + 1, min(node + 8, node + tree.size[node])):
        if tree.kind[child].endswith("identifier"):
            return tree.text[child]
    return ""


def _in_order(left: Sequence[Hashable], right: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Places of equal things that stand in the same order."""
    found: list[tuple[int, int]] = []
    at = there = 0
    for b0, b1, a0, a1 in [*line_changes(left, right), (len(left), len(left), len(right), len(right))]:
        found += zip(range(at, b0), range(there, a0), strict=True)
        at, there = b1, a1
    return found


def mapping(
    old: Tree, one: int, ones: Sequence[int], new: Tree, other: int, others: Sequence[int]
) -> list[tuple[int, int]]:
    """The cheapest mapping of two nodes and some children that keeps order and ancestors; Zhang and Shasha 1989.
    Inserting and deleting cost 1, a changed text 0.5; nodes of different kinds never match."""
    left, right = _Post(old, one, ones), _Post(new, other, others)
    tree = [[0.0] * right.many for _ in range(left.many)]
    for i in left.roots:
        for j in right.roots:
            _forest(left, right, i, j, tree)
    pairs: list[tuple[int, int]] = []
    todo = [(left.many - 1, right.many - 1)]
    while todo:
        i, j = todo.pop()
        costs = _forest(left, right, i, j, tree)
        low, deep = left.first[i], right.first[j]
        a, b = i, j
        while a >= low and b >= deep:
            here = costs[a - low + 1][b - deep + 1]
            if here == costs[a - low][b - deep + 1] + 1.0:
                a -= 1
            elif here == costs[a - low + 1][b - deep] + 1.0:
                b -= 1
            elif left.first[a] == low and right.first[b] == deep:
                if left.kind[a] == right.kind[b]:
                    pairs.append((left.node[a], right.node[b]))
                a, b = a - 1, b - 1
            else:
                todo.append((a, b))
                a, b = left.first[a] - 1, right.first[b] - 1
    return pairs


class _Post:
    """A node with some of its children and all below them, in postorder, with the leftmost leaf below each."""

    def __init__(self, tree: Tree, root: int, children: Sequence[int]) -> None:
        self.node: list[int] = []
        self.first: list[int] = []
        todo = [(root, False)]
        begun: dict[int, int] = {}
        while todo:
            at, is_done = todo.pop()
            if is_done:
                self.first.append(begun[at])
                self.node.append(at)
                continue
            begun[at] = len(self.node)
            todo.append((at, True))
            todo += [(child, False) for child in reversed(children if at == root else tree.children(at))]
        self.many = len(self.node)
        self.kind = [tree.kind[at] for at in self.node]
        self.text = [tree.text[at] for at in self.node]
        highest = {first: at for at, first in enumerate(self.first)}
        self.roots = sorted(highest.values())


def _forest(left: _Post, right: _Post, i: int, j: int, tree: list[list[float]]) -> list[list[float]]:
    """Costs of all prefixes of two forests; the distances of whole subtrees are kept in `tree`."""
    low, deep = left.first[i], right.first[j]
    rows, columns = i - low + 2, j - deep + 2
    costs = [[float(b) for b in range(columns)]]
    firsts = right.first
    for a in range(1, rows):
        x = low + a - 1
        above, here = costs[a - 1], [float(a)]
        is_left = left.first[x] == low
        kind, text, row = left.kind[x], left.text[x], tree[x]
        start = costs[left.first[x] - low]
        for b in range(1, columns):
            y = deep + b - 1
            least = above[b] if above[b] < here[b - 1] else here[b - 1]
            least += 1.0
            if is_left and firsts[y] == deep:
                if kind == right.kind[y]:
                    other = above[b - 1] + (0.0 if text == right.text[y] else 0.5)
                    least = other if other < least else least
                row[y] = least
            else:
                other = start[firsts[y] - deep] + row[y]
                least = other if other < least else least
            here.append(least)
        costs.append(here)
    return costs


Change = Mapping[str, tuple[str | None, str | None]]  # path → text before and after; None: there is no such file

COSTS = {"insert": 1.0, "delete": 1.0, "update": 0.5, "move": 0.3}
REMARK_COST = 0.1  # of a line of comment, as a share


class NodeRef(NamedTuple):
    """A node: number `at` of the text before or, if it was inserted, of the text after."""

    is_new: bool
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """One edit. `parent` and `left` (None: first) say where an inserted or moved node goes."""

    verb: str  # insert, delete, update, move
    node: NodeRef
    kind: str
    text: str  # of the leaf, after; before where it is deleted
    was: str = ""  # the text before an update
    line: int  # of the text after; before where it is deleted
    cost: float
    parent: NodeRef | None = None
    left: NodeRef | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EditScript:
    """All edits between two texts."""

    edits: tuple[Edit, ...]
    cost: float
    both: Both
    matches: Matches

    @property
    def is_broken(self) -> bool:
        """The text after does not parse, though it is in a language that could."""
        return bool(self.both.after.errors)

    def added(self) -> list[int]:
        """Nodes after that were not there before."""
        known = set(self.matches.tolist())
        return [at for at in range(len(self.both.after)) if at not in known]

    def touched(self) -> list[int]:
        """Nodes after that are new, have another text, or have such nodes below them."""
        found = set(self.added())
        found |= {int(self.matches[edit.node.at]) for edit in self.edits if edit.verb == "update"}
        for at in list(found):
            found.update(takewhile(lambda above: above not in found, self.both.after.above(at)))
        return sorted(found)


@dataclass(frozen=True, slots=True)
class EditFinding:
    """One thing seen in a change, and where."""

    rule: str
    path: str
    line: int  # of the text after, from 1; before where the thing is gone
    what: str
    weight: float = 1.0

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.rule}, {self.what}"


@lru_cache(maxsize=16)  # minimality and tamper ask for the same two texts
def compare(before: str, after: str, language: str = "python", *, fold: bool = True) -> EditScript:
    """The edits from one text to another; an empty text is a file that is not there."""
    sides = both(before, after, language, fold=fold)
    matches = match(sides)
    matches.flags.writeable = False
    edits = _script(sides.before, sides.after, matches)
    return EditScript(edits=edits, cost=sum(edit.cost for edit in edits), both=sides, matches=matches)


def cost(before: str, after: str, language: str = "python") -> float:
    return 0.0 if before == after else compare(before, after, language).cost


def weight(tree: Tree, node: int) -> float:
    """What inserting or deleting a node counts for: 1; a remark a tenth for each line; a whole line its words."""
    kind = tree.kind[node]
    if kind in REMARKS:
        return REMARK_COST * (1 + tree.text[node].count("\n"))
    if kind == "line" and not tree.height[node]:
        return float(1 + tree.text[node].count(" "))
    return 1.0


def _script(old: Tree, new: Tree, matches: Matches) -> tuple[Edit, ...]:
    to = matches.tolist()
    back = [-1] * len(new)
    for one, other in enumerate(to):
        if other >= 0:
            back[other] = one
    stays = _stays(old, new, to, back)

    def place(at: int) -> NodeRef:
        return NodeRef(True, at) if back[at] < 0 else NodeRef(False, back[at])

    edits: list[Edit] = []
    lefts: dict[int, int] = {}  # parent after → the last child that was looked at
    for at in range(len(new)):
        above, one = new.parent[at], back[at]
        left = lefts.get(above)
        lefts[above] = at
        here = {"kind": new.kind[at], "text": new.text[at], "line": new.line[at]}
        there = {
            "parent": None if above < 0 else place(above),
            "left": None if left is None or above < 0 else place(left),
        }
        if one < 0:
            paid = COSTS["insert"] * weight(new, at)
            edits.append(Edit(verb="insert", node=NodeRef(True, at), cost=paid, **here, **there))  # type: ignore[arg-type]
            continue
        share = REMARK_COST if new.kind[at] in REMARKS else 1.0
        if at not in stays:
            paid = COSTS["move"] * share
            edits.append(Edit(verb="move", node=NodeRef(False, one), cost=paid, **here, **there))  # type: ignore[arg-type]
        if old.text[one] != new.text[at]:
            paid = COSTS["update"] * _update(old, one, new, at)
            edits.append(Edit(verb="update", node=NodeRef(False, one), was=old.text[one], cost=paid, **here))  # type: ignore[arg-type]
    for one in range(len(old) - 1, -1, -1):  # children before their parents
        if to[one] < 0:
            paid = COSTS["delete"] * weight(old, one)
            gone = {"kind": old.kind[one], "text": old.text[one], "line": old.line[one]}
            edits.append(Edit(verb="delete", node=NodeRef(False, one), cost=paid, **gone))  # type: ignore[arg-type]
    return tuple(edits)


def _update(old: Tree, one: int, new: Tree, other: int) -> float:
    """A remark counts by its lines, whichever side has more; a whole line by the words that differ."""
    if new.kind[other] in REMARKS:
        return max(weight(old, one), weight(new, other))
    if new.kind[other] == "line":
        gone, come = Counter(old.text[one].split()), Counter(new.text[other].split())
        return float(max((gone - come).total(), (come - gone).total(), 1))
    return 1.0


def _stays(old: Tree, new: Tree, to: Sequence[int], back: Sequence[int]) -> set[int]:
    """Nodes after that kept their parent and their place among its children."""
    rows: dict[int, list[int]] = {}
    for one, other in enumerate(to):
        if other >= 0 and old.parent[one] >= 0 and new.parent[other] >= 0 and to[old.parent[one]] == new.parent[other]:
            rows.setdefault(old.parent[one], []).append(other)
    stays = {at for at in range(len(new)) if new.parent[at] < 0 and back[at] >= 0}
    for row in rows.values():
        stays |= {row[at] for at in longest_increasing(row)}
    return stays


@dataclass(frozen=True, slots=True, kw_only=True)
class EditPart:
    """Edits to look at: a whole subtree that came or went is one."""

    verb: str
    line: int  # after; before where it is deleted
    kind: str
    text: str  # after; before where it is deleted
    was: str = ""
    cost: float


def outline(script: EditScript, before: str, after: str) -> tuple[EditPart, ...]:
    """The script as people read it, in the order of the text; inserted and deleted lines are quoted as they stand."""
    old, new = before.split("\n"), after.split("\n")
    gone = {edit.node.at for edit in script.edits if edit.verb == "delete"}
    come = {edit.node.at for edit in script.edits if edit.verb == "insert"}
    costs: dict[tuple[str, int], float] = {}
    tops: dict[tuple[str, int], Edit] = {}
    for edit in sorted(script.edits, key=lambda edit: edit.node.at):
        tree, inside = (script.both.before, gone) if edit.verb == "delete" else (script.both.after, come)
        top = edit.node.at
        if edit.verb in ("insert", "delete"):
            while tree.parent[top] in inside:
                top = tree.parent[top]
        costs[edit.verb, top] = costs.get((edit.verb, top), 0.0) + edit.cost
        tops.setdefault((edit.verb, top), edit)
    parts = []
    for key, edit in tops.items():
        lines = old if edit.verb == "delete" else new
        quoted = lines[edit.line - 1].strip() if edit.line <= len(lines) else ""
        text = edit.text if edit.verb == "update" else quoted or edit.text
        parts.append(EditPart(verb=edit.verb, line=edit.line, kind=edit.kind, text=text, was=edit.was, cost=costs[key]))
    return tuple(sorted(parts, key=lambda part: (part.line, part.verb)))
