from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput
from holdfast.operate.alerts import ADOPTION_DROP, QUIET, AlarmRule, AlarmState, step
from holdfast.prove.estimate import wilson
from holdfast.reward.tools import AdoptionRate, rate_drop

HIGH = AlarmRule(name="too-hot", fires_above=10.0, clears_at=8.0, hold_s=5.0, least=3, severity=Severity.CRITICAL)
LOW = AlarmRule(name="too-slow", fires_below=0.5, clears_at=0.6)


def watch(
    rule: AlarmRule, looks: Iterable[tuple[float, float | None, int | None]], state: AlarmState = QUIET
) -> tuple[AlarmState, list[Alert]]:
    """Many steps in a row, each a time, a value and its number of cases."""
    told = []
    for now, value, n in looks:
        state, alert = step(rule, state, value, now, n=n)
        told += [] if alert is None else [alert]
    return state, told


def test_it_fires_after_it_held_and_clears_after_it_held_further_down() -> None:
    looks = [(0.0, 11.0), (4.0, 12.0), (5.0, 11.0), (6.0, 9.0), (7.0, 8.0), (12.0, 7.0), (13.0, 7.0)]
    state, told = watch(HIGH, [(now, value, 3) for now, value in looks])
    raised, cleared = told
    assert (raised.code, raised.severity, raised.at, raised.cleared_at) == ("too-hot", Severity.CRITICAL, 5.0, None)
    assert raised.message == "too-hot: 11 is above 10 (of 3)"
    assert (cleared.at, cleared.cleared_at) == (5.0, 12.0) and state == QUIET


def test_a_value_between_the_two_changes_nothing_and_breaks_what_held() -> None:
    _, told = watch(HIGH, [(0.0, 11.0, 3), (4.0, 9.0, 3), (6.0, 11.0, 3), (10.0, 11.0, 3)])
    assert told == []
    _, told = watch(HIGH, [(0.0, 11.0, 3), (4.0, 9.0, 3), (6.0, 11.0, 3), (11.0, 11.0, 3)])
    assert [alert.at for alert in told] == [11.0]


@pytest.mark.parametrize(("value", "n"), [(None, 99), (11.0, 2)])
def test_too_little_is_no_evidence_either_way(value: float | None, n: int) -> None:
    held = AlarmState(since=0.0)
    assert step(HIGH, held, value, 9.0, n=n) == (QUIET, None)
    fired, _ = watch(HIGH, [(0.0, 11.0, 3), (5.0, 11.0, 3)])
    assert step(HIGH, fired, value, 99.0, n=n) == (fired, None)


def test_below_is_above_turned_round() -> None:
    _, told = watch(LOW, [(0.0, 0.5, None), (1.0, 0.49, None), (2.0, 0.55, None), (3.0, 0.6, None)])
    assert [(alert.at, alert.cleared_at) for alert in told] == [(1.0, None), (1.0, 3.0)]
    assert told[0].message == "too-slow: 0.49 is below 0.5"
    _, told = watch(LOW, [(float(at), 0.5 + 0.04 * (-1) ** at, None) for at in range(100)])
    assert len(told) == 1  # what flutters about the limit is one alarm


def test_a_clock_that_is_set_back_delays_and_never_breaks_it() -> None:
    state, told = watch(HIGH, [(100.0, 11.0, 3), (50.0, 11.0, 3), (54.0, 11.0, 3), (55.0, 11.0, 3), (1.0, 1.0, 3)])
    assert [alert.at for alert in told] == [55.0]
    _, told = watch(HIGH, [(6.0, 1.0, 3)], state)
    assert [alert.cleared_at for alert in told] == [55.0]


@settings(deadline=None)
@given(st.lists(st.none() | st.floats(0, 20), max_size=60), st.floats(0, 3))
def test_it_is_raised_and_cleared_in_turns(values: list[float | None], hold_s: float) -> None:
    rule = AlarmRule(name="r", fires_above=10.0, clears_at=8.0, hold_s=hold_s)
    state, told = watch(rule, [(float(at), value, None) for at, value in enumerate(values)])
    assert [alert.cleared_at is None for alert in told] == [place % 2 == 0 for place in range(len(told))]
    assert (state.fired is not None) == (len(told) % 2 == 1)


interval = cache(wilson)


def rates(rng: np.random.Generator, share: float, of: int = 100) -> AdoptionRate:
    hits = float(rng.binomial(of, share))
    return AdoptionRate(of=of, tries=of, hits=hits, interval=interval(hits, of))


def test_a_drop_in_adoption_fires_once_and_clears_when_it_is_back() -> None:
    rng = np.random.default_rng(0)
    baseline = rates(rng, 0.7, 300)
    windows = [0.7] * 10 + [0.35] * 6 + [0.7] * 10
    looks = [(float(day), rate_drop(now, baseline), now.of) for day, now in enumerate(rates(rng, p) for p in windows)]
    state, (raised, cleared) = watch(ADOPTION_DROP, looks)
    assert (raised.at, cleared.cleared_at) == (10.0, 16.0) and state == QUIET


def test_few_tasks_raise_no_alarm() -> None:
    none, all_of_them = (
        AdoptionRate(of=n, hits=hits, interval=wilson(hits, n)) for n, hits in ((29, 0.0), (300, 300.0))
    )
    assert (rate_drop(none, all_of_them) or 0.0) > 0.5
    assert step(ADOPTION_DROP, QUIET, rate_drop(none, all_of_them), 0.0, n=none.of) == (QUIET, None)


def test_an_alarm_is_rarely_false_and_finds_a_fall_of_a_third() -> None:
    """A baseline of 300 tasks, windows of 100; 2000 of each, looked at singly."""
    rng = np.random.default_rng(1)

    def fired(share: float) -> float:
        looks = [rate_drop(rates(rng, share), rates(rng, 0.6, 300)) or 0.0 for _ in range(2000)]
        return float(np.mean([value > 0.0 for value in looks]))

    assert fired(0.6) < 0.01
    assert fired(0.4) > 0.7


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"fires_above": 1.0, "fires_below": 0.0, "clears_at": 0.5}, "fires above a value or below one"),
        ({"clears_at": 0.5}, "fires above a value or below one"),
        ({"fires_above": 1.0, "clears_at": 2.0}, "would clear at 2.0 while it fires at 1.0"),
        ({"fires_below": 1.0, "clears_at": 0.5}, "would clear at 0.5"),
        ({"fires_above": float("nan"), "clears_at": 0.5}, "finite"),
        ({"fires_above": 1.0, "clears_at": 0.5, "hold_s": -1.0}, "hold_s = -1.0"),
        ({"fires_above": 1.0, "clears_at": 0.5, "least": 0}, "least = 0"),
        ({"fires_above": 1.0, "clears_at": 0.5, "name": " "}, "no name"),
    ],
)
def test_impossible_rules_are_refused(fields: dict[str, object], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        AlarmRule(**({"name": "r"} | fields))  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="value = inf"):
        step(HIGH, QUIET, float("inf"), 0.0)
