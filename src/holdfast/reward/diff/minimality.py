"""Measures how much more was changed than had to be.

The cost of a change is compared with the cost of a known minimal fix, or with a guess. Similarity of whole files plays
no part, because it grows with the file. Whether a change is right is decided by the outcome gate.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardTerm
from holdfast.reward.diff import scaffold
from holdfast.reward.diff.edits import Change, EditFinding, compare, cost
from holdfast.reward.diff.trees import language_of

SOURCE = "rule:minimal_diff@1"
SLACK = 10.0  # nodes: so much beyond the least halves the multiplier of a small fix
BROKEN = 0.01  # the multiplier of a change that no longer parses
GUESS = 6.0  # cost of a small fix, where no reference is known

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
) -> tuple[RewardTerm, ...]:
    """The term `minimality`, and its parts `excess_edits`, `scaffolding` and `parse_errors` with weight 0. `files` are
    the paths that the task is about (empty: any); `uses` are other texts, such as tests, that may use a name."""
    spent = total_excess(change, references)
    found = unneeded_scaffolding(change, references, files=files, uses=uses)
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


def unneeded_scaffolding(
    change: Change, references: References | None = None, *, files: Collection[str] = (), uses: Sequence[str] = ()
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
