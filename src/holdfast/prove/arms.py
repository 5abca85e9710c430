"""Which of two arms is better, told from units that arrive one by one; valid at every look.

Nobody is paired. A unit had the treatment with a chance of p, drawn without regard to anything, so that one unit alone
says what the difference is, in the mean (inverse-probability weights; A is 1 for the treatment, x the outcome, c what
is expected of it from the units before):
    d = (x − c) (A / p − (1 − A) / (1 − p)),      E[d | the units before] = x̄_treatment − x̄_control
whatever c is, and whatever the hour does to both. Pairs first in, first out have that mean only while hours do not
change: where units all succeeded and all failed by turns of 50, a third of equal arms was promoted.

What nobody has told counts against the treatment as far as the arms differ in it: see `guard`. With T whether it was
told, y the outcome and m the least effect, two differences must both be proved above 0:
    d_failed = (T y)_treatment − (T y)_control − m T_control           its surplus of untold outcomes has failed
    d_passed = (T (1 − y))_control − (T (1 − y))_treatment − m T_treatment         the control's surplus has succeeded
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.evidence import Outcome, Verdict
from holdfast.prove.sequential import judge

Differences = NDArray[np.float64]  # [units]
UnitOutcome = tuple[float | None, bool]  # from 0 to 1, None: not told; and whether it is the treatment's


def differences(outcomes: Sequence[UnitOutcome], *, part: float, min_effect: float) -> tuple[Differences, Differences]:
    """d_failed and d_passed of each unit. `part` of the units is meant to have the treatment."""
    is_treated = np.array([which for _, which in outcomes], np.bool_)
    told = np.array([value is not None for value, _ in outcomes], np.float64)
    good = np.array([value or 0.0 for value, _ in outcomes], np.float64)
    margin = min_effect * told
    failed = good + np.where(is_treated, 0.0, margin)
    passed = good - told - np.where(is_treated, margin, 0.0)
    middle = (1.0 + min_effect) / 2.0  # of what either can be: expected of the first unit
    return _weighed(failed, middle, is_treated, part), _weighed(passed, -middle, is_treated, part)


def _weighed(x: Differences, first: float, is_treated: NDArray[np.bool_], part: float) -> Differences:
    before = np.cumsum(np.concatenate([[first], x]))[:-1]
    expected = before / np.arange(1, x.size + 1)
    weighed: Differences = (x - expected) * np.where(is_treated, 1.0 / part, -1.0 / (1.0 - part))
    return weighed


def compare_arms(
    outcomes: Sequence[UnitOutcome], *, part: float, alpha: float, min_effect: float, worthwhile: float
) -> Verdict:
    """Promote once both differences are proved to be above 0, reject once one is proved below. `needs` is in units."""
    most = (1.0 + min_effect) / min(part, 1.0 - part)
    verdicts = [
        judge(d, low=-most, high=most, alpha=alpha, worthwhile=worthwhile)
        for d in differences(outcomes, part=part, min_effect=min_effect)
    ]
    rejected = next((verdict for verdict in verdicts if verdict.outcome is Outcome.REJECT), None)
    if rejected is not None:
        return rejected
    if all(verdict.outcome is Outcome.PROMOTE for verdict in verdicts):
        return verdicts[0]
    return max((verdict for verdict in verdicts if verdict.needs is not None), key=lambda verdict: verdict.needs or 0)
