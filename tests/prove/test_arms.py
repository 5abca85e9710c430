"""Two arms of units that arrive one by one: whoever tells less gains nothing, and hours that change prove nothing."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.contracts.evidence import Outcome
from holdfast.prove.arms import MOST_WAITING, UnitOutcome, compare_arms, differences, pairs

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


def test_pairs_by_hand() -> None:
    """Told and good of the treatment, then of the control."""
    assert pairs(arrivals("t1 t- c0 c1 c1"), part=0.5).tolist() == [[1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 1.0, 1.0]]
    assert pairs(arrivals("c1 c0 c- t1 c1"), part=0.25).tolist() == [[1.0, 1.0, 2 / 3, 1 / 3]]
    late = arrivals(" ".join(["t0"] * 5 + ["t1"] * MOST_WAITING + ["c0"] * 20))
    assert pairs(late, part=0.5)[:, 1].tolist() == [1.0] * MOST_WAITING  # the first five were let go
    failed, passed = differences(arrivals("t1 c1 t- c0"), part=0.5, min_effect=0.1)
    assert failed == pytest.approx([-0.1, -0.1]) and passed == pytest.approx([-0.1, 1.0])
    assert pairs([], part=0.5).shape == (0, 4)


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


def test_hours_that_change_promote_nothing() -> None:
    """Were nobody let go, one in seven of these would be promoted."""
    rng, found = np.random.default_rng(0), []
    for _ in range(40):
        which = rng.random(2000) < 0.5
        rates = np.where(np.arange(2000) > 1000, 0.9, 0.1)
        values = (rng.random(2000) < rates).astype(float)
        found.append(outcome(list(zip(values.tolist(), which.tolist(), strict=True))))
    assert found.count(Outcome.PROMOTE) <= 3
