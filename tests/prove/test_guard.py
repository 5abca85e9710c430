from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, inf, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import ServedRequest
from holdfast.prove.guard import (
    METRICS,
    GuardLimits,
    GuardStatus,
    alarm,
    block_means,
    bounds,
    difference,
    spans,
    watch,
    within,
)
from holdfast.prove.sequential import log_e

NONE: dict[str, Any] = dict.fromkeys(METRICS)


def only(metric: str, limit: float | None = None, **more: Any) -> GuardLimits:
    """One metric watched, at its usual limit if no other is given."""
    return GuardLimits(**{**NONE, metric: limit or getattr(GuardLimits(), metric), **more})


def asked(arm: str, number: int, **told: Any) -> ServedRequest:
    return ServedRequest(id=f"{arm}-{number}", trial="t", arm=arm, unit=f"u{number}", at=float(number), **told)


def side_by_side(
    live: Callable[[int], dict[str, Any]], canary: Callable[[int], dict[str, Any]], n: int, every: int = 4
) -> tuple[list[ServedRequest], list[ServedRequest]]:
    """n requests of the canary, each after `every` − 1 of live."""
    sides: tuple[list[ServedRequest], list[ServedRequest]] = ([], [])
    for number in range(n * every):
        is_canary = number % every == every - 1
        how = canary if is_canary else live
        sides[is_canary].append(asked("canary" if is_canary else "live", number, **how(number)))
    return sides


def coin(seed: int, rate: float, metric: str = "success") -> Callable[[int], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return lambda _: {metric: bool(rng.random() < rate) if metric == "error" else float(rng.random() < rate)}


def state(found: GuardStatus, metric: str) -> str:
    return found.readings[metric].state


@pytest.mark.parametrize(
    ("arrivals", "ours", "theirs"),
    [
        ("l1 l0 c1", [1.0], [0.5]),  # live's mean since the canary's last
        ("c0 c1 l1", [0.5], [1.0]),  # the canary waits for one of live's
        ("l1 c0 c1 l0 l1 c1", [0.0, 1.0, 1.0], [1.0, 0.0, 1.0]),
        ("l1 l1", [], []),
        ("l1 c1 l0 c0", [1.0, 0.0], [1.0, 0.0]),  # each pair is a block of its own
        ("l0 l1 c1 c0 c1 c1 l1 l0", [1.0, 2 / 3], [0.5, 1.0]),  # the last of live's waits
        ("c1 c1", [], []),
        ("", [], []),
    ],
)
def test_neighbours_in_time_are_paired(arrivals: str, ours: list[float], theirs: list[float]) -> None:
    values = np.array([float(word[1]) for word in arrivals.split()])
    is_canary = np.array([word[0] == "c" for word in arrivals.split()], np.bool_)
    found = block_means(values, is_canary, spans(is_canary))
    assert (found[0].tolist(), found[1].tolist()) == (ours, theirs)


@pytest.mark.parametrize(
    ("metric", "limit", "canary", "live"),
    [
        ("success", 0.10, 0.72, 0.80),  # a tenth of 0.80 less
        ("reward", 0.15, 0.34, 0.40),
        ("latency", 0.50, 0.05, 0.05),  # shares beyond a threshold, which has the limit in it
        ("safety", 0.05, 0.07, 0.02),
        ("errors", 0.05, 0.05, 0.90),  # whatever live's is
    ],
)
def test_the_difference_is_0_exactly_at_the_limit_and_below_0_beyond(
    metric: str, limit: float, canary: float, live: float
) -> None:
    at, beside = np.array([canary]), np.array([live])
    assert difference(metric, limit, at, beside) == pytest.approx([0.0])
    worse = at - 0.01 if metric in ("success", "reward") else at + 0.01
    assert difference(metric, limit, worse, beside) == pytest.approx([-0.01])
    low, high = bounds(metric, limit)
    corners = [difference(metric, limit, np.array([c]), np.array([v]))[0] for c in (0.0, 1.0) for v in (0.0, 1.0)]
    assert (min(corners), max(corners)) == pytest.approx((low, high))


def test_half_of_the_alarms_stake_begins_at_once_and_the_rest_later() -> None:
    many = np.random.default_rng(0).choice((-1.0, 0.0, 1.0), size=(3, 100))
    assert alarm(many, -1.0, 1.0) == pytest.approx(np.stack([alarm(row, -1.0, 1.0) for row in many]))
    d = np.array([-0.5, 0.2, -0.9])
    begun = np.exp(log_e(-d, low=-1.0, high=1.0))
    assert np.exp(alarm(d, -1.0, 1.0)) == pytest.approx(0.5 * begun + 0.5)
    long = np.concatenate([d, np.zeros(29), [-0.5]])  # the second begins after 32
    second = np.exp(log_e(-long[32:], low=-1.0, high=1.0))[-1]
    first = np.exp(log_e(-long, low=-1.0, high=1.0))[-1]
    assert exp(alarm(long, -1.0, 1.0)[-1]) == pytest.approx(first / 2 + second / 6 + 1 / 3)


@given(st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=150), st.data())
def test_what_comes_later_does_not_change_what_was_seen(seen: list[float], data: st.DataObject) -> None:
    d = np.array(seen)
    now = data.draw(st.integers(1, len(seen)))
    for process in (alarm, within):
        assert process(d[:now], -1.0, 1.0) == pytest.approx(process(d, -1.0, 1.0)[:now])


def test_a_canary_that_fails_twice_as_often_is_a_breach_with_its_code_and_numbers() -> None:
    found = watch(*side_by_side(coin(1, 0.8), coin(2, 0.4), 200), only("success"))
    (breach,) = found.breaches
    reading = found.readings["success"]
    assert breach.code == "canary_breach_success"
    assert f"the canary's mean is {reading.canary:.4g}, live's {reading.live:.4g}, after 200" in breach.text
    assert reading.e >= 20.0 and reading.state == "breach"
    assert not found.is_clear and found.needs is None


def test_a_canary_like_live_becomes_clear_and_says_until_then_how_much_it_needs() -> None:
    live, canary = side_by_side(lambda _: {"success": 1.0}, lambda _: {"success": 1.0}, 100)
    early = watch(live[:60], canary[:20], only("success"))
    assert state(early, "success") == "open" and early.needs is not None
    clear = [n for n in range(20, 101) if watch(live[: 3 * n], canary[:n], only("success")).is_clear]
    assert clear == list(range(clear[0], 101))  # and it stays so
    assert 0.5 <= early.needs / (clear[0] - 20) <= 2.0
    late = watch(live, canary, only("success"))
    assert late.readings["success"].e_within >= 20.0
    assert late.breaches == () and late.needs is None


@pytest.mark.parametrize(
    ("metric", "live", "canary"),
    [
        ("success", {"success": 1.0}, {"success": 0.5}),
        ("reward", {"reward": 0.8}, {"reward": 0.2}),
        ("latency", {"latency_s": 1.0}, {"latency_s": 6.0}),
        ("errors", {"error": False}, {"error": True}),
        ("safety", {"safety_cost": 0.0}, {"safety_cost": 0.5}),
    ],
)
def test_every_metric_can_be_broken_and_can_be_clear(metric: str, live: dict[str, Any], canary: dict[str, Any]) -> None:
    broken = watch(*side_by_side(lambda _: live, lambda _: canary, 150), only(metric))
    assert [reason.code for reason in broken.breaches] == [f"canary_breach_{metric}"]
    good = watch(*side_by_side(lambda _: live, lambda _: live, 150), only(metric))
    assert good.is_clear and not good.breaches


def test_a_breach_must_be_surer_the_more_metrics_are_watched() -> None:
    requests = side_by_side(lambda _: {"success": 1.0}, lambda n: {"success": float(n % 8 == 3)}, 22)
    e = watch(*requests, only("success")).readings["success"].e
    assert 20.0 <= e < 100.0  # of 1 metric 1/α is enough, of 5 it takes 5/α
    assert state(watch(*requests, only("success")), "success") == "breach"
    assert state(watch(*requests, GuardLimits()), "success") == "open"


def test_a_metric_that_nobody_tells_stays_open_and_keeps_the_canary_where_it_is() -> None:
    live, canary = side_by_side(lambda _: {"success": 1.0}, lambda _: {"success": 1.0}, 200)
    found = watch(live, canary, GuardLimits(latency=None, errors=None, safety=None))
    assert state(found, "success") == "clear"
    reward = found.readings["reward"]
    assert (reward.state, reward.n, reward.live, reward.canary, reward.e) == ("open", 0, None, None, 1.0)
    assert not found.is_clear and found.needs is None
    assert set(found.readings) == {"success", "reward"}


def test_a_canary_that_turns_bad_after_a_good_while_is_caught_soon() -> None:
    requests = side_by_side(lambda _: {"success": 1.0}, lambda number: {"success": float(number < 4 * 1000)}, 1060)
    found = watch(*requests, only("success"))  # 1000 good ones, then only bad ones
    assert state(found, "success") == "breach"
    d = difference("success", 0.1, np.repeat([1.0, 0.0], [1000, 200]), np.ones(1200))
    low, high = bounds("success", 0.1)
    one_bet = log_e(-d, low=-high, high=-low) >= log(20.0)
    assert one_bet.argmax() >= 1140  # all that was lost on the good ones has first to be won back


def test_the_order_in_which_requests_are_handed_in_does_not_matter_and_live_comes_first() -> None:
    """So that live outcomes of before can be laid beside those of a canary that has all the requests."""
    live, canary = side_by_side(coin(7, 0.8), coin(8, 0.7), 60)
    assert watch(live[::-1], canary[::-1], only("success")) == watch(live, canary, only("success"))
    canary = [asked("canary", number, success=1.0) for number in range(30)]
    live = [replace(one, id=f"l{one.id}", arm="live") for one in canary]
    assert watch(live, canary, only("success")).readings["success"].n == 30
    nothing = watch([], [], GuardLimits())
    assert {one.state for one in nothing.readings.values()} == {"open"}
    assert (nothing.breaches, nothing.is_clear, nothing.needs) == ((), False, None)


def test_errors_are_held_to_their_own_level_and_need_nobody_beside() -> None:
    canary = [asked("canary", number, error=number % 4 == 0) for number in range(100)]
    found = watch([], canary, only("errors"))
    assert state(found, "errors") == "breach"
    assert found.readings["errors"].live is None
    assert "above 0.05: the canary's mean is 0.25, after 100" in found.breaches[0].text


def test_one_monstrous_latency_is_one_outcome_and_proves_nothing() -> None:
    live, canary = side_by_side(lambda _: {"latency_s": 1.0}, lambda _: {"latency_s": 1.0}, 300)
    canary[200] = replace(canary[200], latency_s=1e6)
    reading = watch(live, canary, only("latency")).readings["latency"]
    assert reading.state == "clear" and reading.canary == pytest.approx((299 + 1e6) / 300)  # told as it was


def test_live_sets_the_scale_with_its_earlier_answers() -> None:
    live, canary = side_by_side(lambda _: {"latency_s": 1.0}, lambda _: {"latency_s": 1.0}, 30)
    assert watch(live[:19], canary[:6], only("latency", least=20)).readings["latency"].n == 0
    # live's 20th is number 25 of all; of the 30 canary requests 6 were before it, and one is in the block of that time
    assert watch(live, canary, only("latency", least=20)).readings["latency"].n == 23


def lognormal(seed: int, sigma: float = 0.6, slow: float = 0.0) -> Callable[[int], dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return lambda _: {"latency_s": 300.0 if rng.random() < slow else float(rng.lognormal(sigma=sigma))}


def test_four_answers_of_a_hundred_that_take_five_minutes_are_a_breach_at_the_99th_percentile() -> None:
    found = watch(*side_by_side(lognormal(1), lognormal(2, slow=0.04), 700), only("latency"))
    (breach,) = found.breaches
    median, p95, p99 = found.readings["latency"].quantiles
    assert "latency is proved more than 50% above live's at p99: the canary's is 300 s" in breach.text
    assert (median.e, p99.canary) == (1.0, 300.0) and p99.e > 100.0 > p95.e
    assert 0.03 < p99.canary_beyond < 0.06 and 0.003 < p99.live_beyond < 0.02


def test_equal_latencies_are_clear_at_every_quantile_and_slower_ones_are_not() -> None:
    equal = watch(*side_by_side(lognormal(3), lognormal(4), 600), only("latency")).readings["latency"]
    assert equal.state == "clear" and all(one.e_within >= 20.0 for one in equal.quantiles)
    rng = np.random.default_rng(5)
    slower = side_by_side(lognormal(6), lambda _: {"latency_s": 2.2 * float(rng.lognormal(sigma=0.6))}, 600)
    assert state(watch(*slower, only("latency")), "latency") == "breach"


def test_requests_count_in_the_order_in_which_they_began() -> None:
    """A canary whose failures come late, because they hang, is not ahead for as long as they do."""
    live, canary = side_by_side(lambda _: {"success": 1.0}, lambda _: {"success": 1.0}, 100)
    late = [replace(one, at=one.at + 500.0, latency_s=500.0) if n % 2 else one for n, one in enumerate(canary)]
    found, expected = (watch(live, ours, only("success")).readings["success"] for ours in (late, canary))
    assert (found.e_within, found.n) == (expected.e_within, expected.n)


def hidden(seed: int, rate: float, told: float) -> Callable[[int], dict[str, Any]]:
    """Successes are told, and so large a part of the failures."""
    rng = np.random.default_rng(seed)

    def outcome(_: int) -> dict[str, Any]:
        is_good = rng.random() < rate
        return {"success": float(is_good) if is_good or rng.random() < told else None}

    return outcome


def test_failures_that_nobody_tells_do_not_clear_a_canary_that_is_worse() -> None:
    served = side_by_side(hidden(1, 0.8, 1.0), hidden(2, 0.64, 0.5), 2000)
    reading = watch(*served, only("success")).readings["success"]
    assert (reading.canary or 0.0) > 0.95 * (reading.live or 0.0)  # what was told looks as good
    assert reading.state == "breach" and reading.e_within < 20.0
    assert reading.canary_told == pytest.approx(0.82, abs=0.03) and reading.live_told == 1.0
    assert "that were told" in watch(*served, only("success")).breaches[0].text


def test_successes_of_live_that_nobody_tells_do_not_clear_it_either() -> None:
    rng = np.random.default_rng(3)

    def live(_: int) -> dict[str, Any]:
        is_good = rng.random() < 0.8
        return {"success": float(is_good) if not is_good or rng.random() < 0.5 else None}

    served = side_by_side(live, coin(4, 0.64), 1500)
    assert watch(*served, only("success")).readings["success"].state != "clear"


def test_silence_that_is_alike_in_both_is_no_breach_and_becomes_clear() -> None:
    rng = np.random.default_rng(5)

    def half(_: int) -> dict[str, Any]:
        return {"success": float(rng.random() < 0.9) if rng.random() < 0.5 else None}

    assert state(watch(*side_by_side(half, half, 1500), only("success")), "success") == "clear"


def test_what_is_told_counts_when_its_time_has_come() -> None:
    live, canary = side_by_side(lambda _: {"success": 1.0}, lambda _: {"success": 1.0}, 100)
    young = watch(live, canary, only("success", mature_after=400.0), now=400.0).readings["success"]
    assert young.n == 0 and young.canary == 1.0
    old = watch(live, canary, only("success", mature_after=400.0), now=800.0).readings["success"]
    assert old.n == 100
    errors = watch(live, canary, only("errors", mature_after=400.0), now=400.0).readings["errors"]
    assert errors.n == 100  # what the service sees itself counts at once


def test_a_caller_counts_once_in_an_hour_however_often_it_asks() -> None:
    live, canary = side_by_side(lambda _: {"success": 1.0}, lambda _: {"success": 0.0}, 200)
    one_caller = [replace(one, unit="ann") for one in canary]
    assert state(watch(live, canary, only("success")), "success") == "breach"
    reading = watch(live, one_caller, only("success")).readings["success"]
    assert (reading.state, reading.n) == ("open", 1)
    each_hour = only("success", caller_window_s=100.0)
    assert watch(live, one_caller, each_hour).readings["success"].n == 8
    over_days = [replace(one, at=one.at * 3600.0) for one in one_caller]
    assert watch(live, over_days, only("success", caller_window_s=inf)).readings["success"].n == 1  # however long


@pytest.mark.parametrize("metric", ["success", "errors", "latency"])
def test_callers_who_return_for_days_clear_nothing_that_their_first_visits_do_not(metric: str) -> None:
    """Fault: chance gave the canary the callers with easy jobs, and each hour of them counted as further evidence: of
    canaries exactly at their limit 20 to 28 % were cleared."""
    live, canary = side_by_side(*[lambda _: {"success": 1.0, "latency_s": 0.1}] * 2, 400)
    assert state(watch(live, canary, only(metric)), metric) == "clear"
    few = [
        [replace(one, unit=f"{one.arm}{n % 12}", at=3600.0 * n) for n, one in enumerate(side)]
        for side in (live, canary)
    ]
    seen = watch(few[0], few[1], only(metric))
    assert (state(seen, metric), seen.readings[metric].n > 300) == ("open", True)
    worse = [replace(one, success=0.0, error=True, latency_s=9.0) for one in few[1]]
    assert state(watch(few[0], worse, only(metric)), metric) == "breach"  # decay is seen by every visit


@given(st.floats(-50.0, 50.0), st.floats(0.1, 100.0))
def test_rewards_mean_the_same_on_any_scale(low: float, width: float) -> None:
    rng = np.random.default_rng(9)
    draws = rng.random(80)
    plain = side_by_side(lambda n: {"reward": draws[n]}, lambda n: {"reward": draws[n] / 2}, 20)
    moved = [[replace(one, reward=low + width * (one.reward or 0.0)) for one in side] for side in plain]
    expected = watch(*plain, only("reward")).readings["reward"]
    found = watch(*moved, only("reward", reward_range=(low, low + width))).readings["reward"]
    assert (found.state, found.n) == (expected.state, expected.n)
    assert (found.e, found.e_within) == pytest.approx((expected.e, expected.e_within), rel=1e-6)


def test_costs_are_measured_against_the_most_that_one_can_be() -> None:
    plain = side_by_side(coin(10, 0.1, "safety_cost"), coin(11, 0.3, "safety_cost"), 100)
    dear = [[replace(one, safety_cost=10.0 * (one.safety_cost or 0.0)) for one in side] for side in plain]
    expected = watch(*plain, only("safety", 0.05)).readings["safety"]
    found = watch(*dear, only("safety", 0.5, most_cost=10.0)).readings["safety"]
    assert (found.e, found.state) == (pytest.approx(expected.e), expected.state)
    assert watch(*dear, only("safety", 0.05)).readings["safety"].capped > 0


def test_few_outcomes_are_never_clear_however_good() -> None:
    requests = side_by_side(lambda _: {"success": 0.0}, lambda _: {"success": 1.0}, 15)
    found = watch(*requests, only("success"))
    assert found.readings["success"].e_within >= 20.0
    assert state(found, "success") == "open" and found.needs == 5
    assert state(watch(*requests, only("success", least=10)), "success") == "clear"


def test_an_equal_canary_is_rarely_taken_back_however_often_one_looks() -> None:
    """Every metric at once, at the rates of live; a look at the end sees every earlier one."""
    breaches = 0
    for seed in range(50):
        rng = np.random.default_rng(seed)

        def told(_: int, rng: np.random.Generator = rng) -> dict[str, Any]:
            return {
                "success": float(rng.random() < 0.8),
                "reward": float(rng.beta(0.5, 1.5)),
                "latency_s": float(rng.lognormal()),
                "error": bool(rng.random() < 0.05),  # exactly at its level
                "safety_cost": float(rng.random() < 0.02),
            }

        breaches += bool(watch(*side_by_side(told, told, 100), GuardLimits()).breaches)
    assert breaches <= 5


REFUSED: Sequence[dict[str, Any]] = (
    {"success": 0.0},
    {"success": 1.0},
    {"errors": 0.0},
    {"latency": 0.0},
    {"quantiles": ()},
    {"quantiles": (0.5, 1.0)},
    {"mature_after": -1.0},
    {"caller_window_s": 0.0},
    {"safety": 1.0},
    {"alpha": 0.0},
    {"reward_range": (1.0, 1.0)},
    {"reward_range": (0.0, float("inf"))},
    {"least": 0},
    NONE,
)


@pytest.mark.parametrize("given", REFUSED, ids=str)
def test_limits_that_cannot_be_kept_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="limits"):
        GuardLimits(**given)


def test_failures_that_nobody_tells_of_a_caller_who_asks_five_times_clear_nothing() -> None:
    """A caller of whom one request is told is not told of altogether: the others were left out for a reason."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        sides: tuple[list[ServedRequest], list[ServedRequest]] = ([], [])
        for caller in range(800):
            is_canary = bool(rng.random() < 0.25)
            for number in range(5):
                is_good = rng.random() < (0.4 if is_canary else 0.8)
                told = None if is_canary and not is_good else float(is_good)
                one = asked("canary" if is_canary else "live", 5 * caller + number, success=told)
                sides[is_canary].append(replace(one, unit=f"caller-{caller}"))
        found = watch(*sides, only("success"))
        assert not found.is_clear
        told = found.readings["success"].canary_told
        assert told == pytest.approx(0.4, abs=0.05)
