"""From two texts to the edits between them, and what these cost.

An edit inserts, deletes, updates or moves one node. Comments and docstrings cost a tenth, by the line, so that a flood
of them still shows; layout costs nothing. Whether a cost is too high depends on what was needed: `minimality`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from holdfast.reward.diff.lines import rising
from holdfast.reward.diff.matching import Matches, match
from holdfast.reward.diff.trees import REMARKS, Both, Tree, both

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
        parent, found = self.both.after.parent, set(self.added())
        found |= {int(self.matches[edit.node.at]) for edit in self.edits if edit.verb == "update"}
        for at in list(found):
            above = parent[at]
            while above >= 0 and above not in found:
                found.add(above)
                above = parent[above]
        return sorted(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class EditFinding:
    """One thing seen in a change, and where."""

    rule: str
    path: str
    line: int  # of the text after, from 1; before where the thing is gone
    what: str
    weight: float = 1.0


@lru_cache(maxsize=16)  # minimality, scaffold and tamper ask for the same two texts
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
        stays |= {row[at] for at in rising(row)}
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
    for edit in sorted(script.edits, key=lambda one: one.node.at):
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
    return tuple(sorted(parts, key=lambda one: (one.line, one.verb)))
