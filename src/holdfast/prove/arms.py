"""Which of two arms is better, told from units that arrive one by one; valid at every look.

Units are paired first in, first out: the first of the one arm that has no partner yet with the next of the other. Where
the arms have unequal parts, so many of the larger one make up a partner by their mean. Who is paired with whom hangs on
who came when, and never on what came of it. At most MOST_WAITING wait, the oldest is let go: without that one arm runs
ahead by chance, and where hours change its lead looks like a difference (of 1,000 equal arms 144 were promoted when
success rose from 0.1 to 0.9 in the middle of them, with it 33).

What nobody has told counts against the treatment as far as the arms differ in it: see `guard`. With T whether it was
told, y the outcome and m the least effect, two differences must both be proved above 0:
    d_failed = (T y)_treatment − (T y)_control − m T_control           its surplus of untold outcomes has failed
    d_passed = (T (1 − y))_control − (T (1 − y))_treatment − m T_treatment         the control's surplus has succeeded
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.evidence import Outcome, Verdict
from holdfast.prove.sequential import judge

MOST_WAITING = 8  # partners of one arm that wait for the other

Differences = NDArray[np.float64]  # [pairs]
UnitOutcome = tuple[float | None, bool]  # from 0 to 1, None: not told; and whether it is the treatment's


def pairs(outcomes: Sequence[UnitOutcome], *, part: float) -> NDArray[np.float64]:
    """[pairs, 4]: of the treatment how much was told and how much of that was good, and the same of the control. `part`
    of the units is meant to have the treatment."""
    sizes = {True: max(1, int(part / (1.0 - part) + 1e-9)), False: max(1, int((1.0 - part) / part + 1e-9))}
    open_groups: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    waiting: dict[bool, deque[tuple[float, float]]] = {which: deque(maxlen=MOST_WAITING) for which in sizes}
    found: list[tuple[float, ...]] = []
    for value, which in outcomes:
        group = open_groups[which]
        group.append((0.0, 0.0) if value is None else (1.0, value))
        if len(group) < sizes[which]:
            continue
        told, good = (sum(column) / len(group) for column in zip(*group, strict=True))
        waiting[which].append((told, good))
        group.clear()
        if waiting[True] and waiting[False]:
            found.append((*waiting[True].popleft(), *waiting[False].popleft()))
    return np.array(found, np.float64).reshape(-1, 4)


def differences(outcomes: Sequence[UnitOutcome], *, part: float, min_effect: float) -> tuple[Differences, Differences]:
    """d_failed and d_passed of each pair."""
    told_t, good_t, told_c, good_c = pairs(outcomes, part=part).T
    failed = good_t - good_c - min_effect * told_c
    passed = (told_c - good_c) - (told_t - good_t) - min_effect * told_t
    return failed, passed


def compare_arms(
    outcomes: Sequence[UnitOutcome], *, part: float, alpha: float, min_effect: float, worthwhile: float
) -> Verdict:
    """Promote once both differences are proved to be above 0, reject once one is proved below. `needs` is in units."""
    both = differences(outcomes, part=part, min_effect=min_effect)
    low, high = -1.0 - min_effect, 1.0
    verdicts = [judge(d, low=low, high=high, alpha=alpha, worthwhile=worthwhile) for d in both]
    rejected = next((one for one in verdicts if one.outcome is Outcome.REJECT), None)
    if rejected is not None:
        return rejected
    if all(one.outcome is Outcome.PROMOTE for one in verdicts):
        return verdicts[0]
    held = max((one for one in verdicts if one.needs is not None), key=lambda one: one.needs or 0)
    units_a_pair = len(outcomes) / both[0].size if both[0].size else 1.0 / min(part, 1.0 - part)
    return Verdict(outcome=Outcome.HOLD, reasons=held.reasons, needs=max(1, round((held.needs or 1) * units_a_pair)))
