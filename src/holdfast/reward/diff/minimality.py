"""How much more was changed than had to be.

The cost of a change is set against what the least fix costs: one that is known, what is left of this one when every
hunk that the tests do not need is gone, the cheapest that passed in the group, or a guess by the kind of task.
Similarity of whole files plays no part, for it grows with the file. Whether a change is right is not asked here: the
sheet's outcome gates all of this.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardTerm
from holdfast.reward.diff import scaffold
from holdfast.reward.diff.edits import Change, EditFinding, compare, cost
from holdfast.reward.diff.lines import changed, tidy
from holdfast.reward.diff.trees import language_of

SOURCE = "rule:minimal_diff@1"
SLACK = 10.0  # nodes: so much beyond the least halves the multiplier of a small fix
BROKEN = 0.01  # the multiplier of a change that no longer parses
PRIORS = {"fix": 6.0, "feature": 80.0, "refactor": 120.0, "docs": 2.0}  # guesses, for when nothing better is known

References = Mapping[str, str | float] | float  # per path the text or cost of the least fix; or one cost for all


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """What a change cost, what it had to, and the difference where that is above 0."""

    cost: float
    reference_cost: float
    excess: float
    is_broken: bool = False  # a text that parsed before no longer does


@dataclass(frozen=True, slots=True, kw_only=True)
class Minimised:
    """What is left of a change once all that the tests do not need is gone."""

    text: str  # it passes, if the change did
    hunks: int
    dropped: int  # of them: scaffolding, proven
    calls: int  # of `passes`
    is_least: bool  # no hunk that is left can go alone; false: the budget ran out, or the change never passed


def excess(before: str, after: str, reference: str | float, *, language: str = "python") -> Excess:
    """`reference`: the text of a least fix, or what one costs."""
    script = compare(before, after, language)
    least = cost(before, reference, language) if isinstance(reference, str) else float(reference)
    if not (math.isfinite(least) and least >= 0.0):
        raise BadInput(f"reference cost {least}", why="must be finite and at least 0")
    is_broken = bool(script.both.after.errors) and not script.both.before.errors
    over = max(0.0, script.cost - least)
    return Excess(cost=script.cost, reference_cost=least, excess=over, is_broken=is_broken)


def weigh(change: Change, references: References | None = None) -> Excess:
    """All files of a change. With references by path, a file that has none needed no change at all."""
    by_path = references if isinstance(references, Mapping) else {}
    found = [
        excess(before or "", after or "", by_path.get(path, 0.0), language=language_of(path))
        for path, (before, after) in sorted(change.items())
        if before != after
    ]
    spent = sum(one.cost for one in found)
    is_broken = any(one.is_broken for one in found)
    if isinstance(references, Mapping):
        least, over = sum(one.reference_cost for one in found), sum(one.excess for one in found)
    else:
        least = PRIORS["fix"] if references is None else float(references)
        over = max(0.0, spent - least)
    return Excess(cost=spent, reference_cost=least, excess=over, is_broken=is_broken)


def multiplier(excess: float, scaffolding: float = 0.0, *, reference_cost: float = 0.0) -> float:
    """m = 1 / ((1 + excess / (slack + reference)) · (1 + scaffolding)): 1 for the least fix, and never 0.

    More of either never raises it, whatever the other is.
    """
    for name, value in (("excess", excess), ("scaffolding", scaffolding), ("reference cost", reference_cost)):
        if not (math.isfinite(value) and value >= 0.0):
            raise BadInput(f"{name} {value}", why="must be finite and at least 0")
    return 1.0 / ((1.0 + excess / (SLACK + reference_cost)) * (1.0 + scaffolding))


def cheapest(costs: Iterable[tuple[float, bool]]) -> float | None:
    """The reference of a group: the least cost among the changes that passed; None when none did."""
    return min((spent for spent, has_passed in costs if has_passed), default=None)


def signals(
    change: Change,
    *,
    references: References | None = None,
    files: Collection[str] = (),
    uses: Sequence[str] = (),
    weight: float = 0.3,
) -> tuple[RewardTerm, ...]:
    """`minimality` (counts), and `excess_edits`, `scaffolding`, `parse_errors` (weight 0: already in it, to look at).

    `files`: the paths that the task is about; empty: any. `uses`: texts that are not part of the change, tests say, in
    which a name may be used. Scaffolding that the least fix has as well is not held against a change.
    """
    spent = weigh(change, references)
    found = surplus(change, references, files=files, uses=uses)
    amount = scaffold.amount(found)
    value = multiplier(spent.excess, amount, reference_cost=spent.reference_cost)
    return (
        RewardTerm(
            name="minimality", value=min(value, BROKEN) if spent.is_broken else value, weight=weight, source=SOURCE
        ),
        RewardTerm(name="excess_edits", value=spent.excess, weight=0.0, source=SOURCE),
        RewardTerm(name="scaffolding", value=amount, weight=0.0, source=SOURCE),
        RewardTerm(name="parse_errors", value=float(spent.is_broken), weight=0.0, source=SOURCE),
    )


def surplus(
    change: Change,
    references: References | None = None,
    *,
    files: Collection[str] = (),
    uses: Sequence[str] = (),
) -> tuple[EditFinding, ...]:
    """The scaffolding of a change, less what the least fix has of the same kind in the same file."""
    texts = references if isinstance(references, Mapping) else {}
    found = scaffold.inspect(change, files=files, uses=uses)
    if not found:
        return ()
    needed = {path: (change[path][0], text) for path, text in texts.items() if isinstance(text, str) and path in change}
    allowed = Counter((one.path, one.rule) for one in scaffold.inspect(needed, uses=uses))
    kept = []
    for one in found:
        if allowed[one.path, one.rule] > 0:
            allowed[one.path, one.rule] -= 1
        else:
            kept.append(one)
    return tuple(kept)


def minimise(before: str, after: str, passes: Callable[[str], bool], *, budget: int = 64) -> Minimised:
    """Drop hunks while the tests still pass: ddmin, Zeller and Hildebrandt 2002. At most `budget` calls of `passes`."""
    lines, hunks = split(before, after)
    work = _Dropping(lines=lines, passes=passes, budget=budget)
    if not hunks or not work.holds(hunks):
        return Minimised(text=after, hunks=len(hunks), dropped=0, calls=work.calls, is_least=not hunks)
    kept, is_least = ([], True) if work.holds([]) else work.ddmin(hunks)
    text = after if len(kept) == len(hunks) else joined(lines, kept)
    return Minimised(text=text, hunks=len(hunks), dropped=len(hunks) - len(kept), calls=work.calls, is_least=is_least)


Hunk = tuple[int, int, tuple[str, ...]]  # lines before, from and to, and what stands there instead


def split(before: str, after: str) -> tuple[list[str], list[Hunk]]:
    """The lines before, and the hunks: each line of its own where lines were changed one for one, and each statement
    of its own where whole ones were added."""
    old, new = tidy(before).split("\n"), tidy(after).split("\n")
    hunks: list[Hunk] = []
    for b0, b1, a0, a1 in changed(old, new):
        if b1 - b0 == a1 - a0:
            hunks += [(b0 + at, b0 + at + 1, (new[a0 + at],)) for at in range(b1 - b0)]
        elif b0 == b1:
            starts = _starts(new[a0:a1])
            hunks += [
                (b0, b0, tuple(new[a0 + s : a0 + e])) for s, e in zip(starts, [*starts[1:], a1 - a0], strict=True)
            ]
        else:
            hunks.append((b0, b1, tuple(new[a0:a1])))
    return old, hunks


def _starts(lines: Sequence[str]) -> list[int]:
    """Where statements of the outermost level begin."""
    depths = [len(line) - len(line.lstrip()) for line in lines if line.strip()]
    if not depths:
        return [0]
    least = min(depths)
    found = [at for at, line in enumerate(lines) if line.strip() and len(line) - len(line.lstrip()) == least]
    return [0, *[at for at in found if at > 0 and lines[at].strip()[0] not in ")]}"]]


def joined(lines: Sequence[str], hunks: Iterable[Hunk]) -> str:
    made: list[str] = []
    at = 0
    for b0, b1, there in hunks:
        made += [*lines[at:b0], *there]
        at = b1
    return "\n".join([*made, *lines[at:]])


@dataclass(slots=True, kw_only=True)
class _Dropping:
    lines: Sequence[str]
    passes: Callable[[str], bool]
    budget: int
    calls: int = 0

    def holds(self, hunks: Sequence[Hunk]) -> bool:
        if self.calls >= self.budget:
            return False
        self.calls += 1
        return self.passes(joined(self.lines, hunks))

    def ddmin(self, hunks: list[Hunk]) -> tuple[list[Hunk], bool]:
        parts = 2
        while len(hunks) > 1:
            size = math.ceil(len(hunks) / parts)
            slices = [(at, min(at + size, len(hunks))) for at in range(0, len(hunks), size)]
            for start, end in slices:
                rest = hunks[:start] + hunks[end:]
                if rest and self.holds(rest):
                    hunks, parts = rest, max(parts - 1, 2)
                    break
            else:
                if parts >= len(hunks):
                    break
                parts = min(len(hunks), 2 * parts)
        return hunks, self.calls < self.budget
