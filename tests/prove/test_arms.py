"""Two arms of units that arrive one by one: whoever tells less gains nothing, and hours that change prove nothing."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.contracts.evidence import Outcome
from holdfast.prove.arms import UnitOutcome, compare_arms, differences

HOW = {"alpha": 0.05, "min_effect": 0.0, "worthwhile": 0.05}


def units(
    seed: int, n: int, treatment: float, control: float, *, told: float = 1.0, part: float = 0.5, drift: float = 0.0
) -> list[UnitOutcome]:
    """`told`: so large a part of the treatment's failures; `drift`: from the first hour to the last."""
    rng = np.random.default_rng(seed)
    found: list[UnitOutcome] = []
    for number in range(n):
        is_treated = bool(rng.random() < part)
        rate = (treatment if is_treated else control) + drift * (number / n - 0.5)
        is_good = rng.random() < rate
        is_told = is_good or not is_treated or rng.random() < told
        found.append((float(is_good) if is_told else None, is_treated))
    return found


def outcome(came: list[UnitOutcome], part: float = 0.5) -> Outcome:
    return compare_arms(came, part=part, **HOW).outcome


def arrivals(words: str) -> list[UnitOutcome]:
    return [(None if word[1] == "-" else float(word[1]), word[0] == "t") for word in words.split()]


def test_differences_by_hand() -> None:
    """What a unit came to beyond the mean of those before (a half is imagined first), over the chance of its arm."""
    failed, passed = differences(arrivals("t1 c1 t- c0"), part=0.5, min_effect=0.0)
    assert failed == pytest.approx([0.5 * 2, -(1 - 1.5 / 2) * 2, (0 - 2.5 / 3) * 2, 2.5 / 4 * 2])
    assert passed == pytest.approx([0.5 * 2, -(0 + 0.5 / 2) * 2, 0.5 / 3 * 2, -(-1 + 0.5 / 4) * 2])
    failed, _ = differences(arrivals("t1 c1"), part=0.25, min_effect=0.1)  # the control is given the margin
    assert failed == pytest.approx([(1 - 0.55) / 0.25, -(1.1 - 1.55 / 2) / 0.75])
    assert [found.size for found in differences([], part=0.5, min_effect=0.0)] == [0, 0]


@pytest.mark.parametrize("part", [0.5, 0.2])
def test_the_difference_is_right_in_the_mean_whatever_is_expected(part: float) -> None:
    """Over both arms that the last unit can have, after any units before: E[d] = y_treatment − y_control."""
    before = arrivals("t1 t1 c1 t- c0")
    ends = [differences([*before, one], part=part, min_effect=0.0)[0][-1] for one in ((0.9, True), (0.6, False))]
    assert part * ends[0] + (1 - part) * ends[1] == pytest.approx(0.3)


def test_where_all_is_told_silence_costs_nothing() -> None:
    failed, passed = differences(units(1, 400, 0.7, 0.5), part=0.5, min_effect=0.1)
    assert failed == pytest.approx(passed)


def test_a_better_treatment_is_promoted_and_a_worse_one_is_not() -> None:
    assert outcome(units(2, 1500, 0.65, 0.5)) is Outcome.PROMOTE
    assert outcome(units(3, 1500, 0.35, 0.5)) is Outcome.REJECT
    assert outcome(units(4, 1500, 0.65, 0.5, part=0.25), 0.25) is Outcome.PROMOTE
    held = compare_arms(units(5, 80, 0.55, 0.5), part=0.5, **HOW)
    assert held.outcome is Outcome.HOLD and held.needs is not None and held.needs > 100
    assert compare_arms([], part=0.5, **HOW).outcome is Outcome.HOLD


@pytest.mark.parametrize(("treatment", "told"), [(0.5, 0.7), (0.45, 0.6), (0.5, 0.0)])
def test_failures_that_nobody_tells_promote_nothing(treatment: float, told: float) -> None:
    found = [outcome(units(seed, 2000, treatment, 0.5, told=told)) for seed in range(10)]
    assert found.count(Outcome.PROMOTE) <= 1


def test_successes_of_the_control_that_nobody_tells_promote_nothing() -> None:
    hidden = [
        [
            (None if value == 1.0 and not which and n % 3 == 0 else value, which)
            for n, (value, which) in enumerate(found)
        ]
        for found in (units(seed, 2000, 0.5, 0.5) for seed in range(10))
    ]
    assert [outcome(found) for found in hidden].count(Outcome.PROMOTE) <= 1


@pytest.mark.parametrize("part", [0.5, 0.2])
@pytest.mark.parametrize("hours", ["jump", "turns", "saw"])
def test_hours_that_change_promote_nothing(hours: str, part: float) -> None:
    """Pairs first in, first out would: a third of equal arms, where all succeed and all fail by turns."""
    number = np.arange(1000)
    rates = {
        "jump": np.where(number > 500, 0.9, 0.1),
        "turns": (number // 50 % 2).astype(float),
        "saw": number % 20 / 19,
    }[hours]
    rng, found = np.random.default_rng(0), []
    for _ in range(60):
        which = rng.random(1000) < part
        values = (rng.random(1000) < rates).astype(float)
        found.append(outcome(list(zip(values.tolist(), which.tolist(), strict=True)), part))
    assert found.count(Outcome.PROMOTE) <= 7  # 3 are expected at most
