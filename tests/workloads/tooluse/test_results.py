"""What the course came to: rates with their intervals, a lift only where they are apart, the gain task by task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.evidence import Interval
from holdfast.contracts.run import LEGACY_STEP, StepRecord
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.quickstart import RATES, RateChange, Results, SuccessRate, curve, results, turned
from tests.conftest import Files

Counted = tuple[int, int]  # how many, of how many


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh()) as opened:
        yield opened


def updates(*bodies: Mapping[str, Any], function: str = "f") -> list[StepRecord]:
    how: dict[str, Any] = {"run": "run-1", "function": function, "inputs_sha256": "", "at": 0.0}
    return [StepRecord(step=n, name=str(body.get("name")), body=body, **how) for n, body in enumerate(bodies, 1)]


def kept(store: Store, *bodies: Mapping[str, Any]) -> list[StepRecord]:
    """As a run keeps them: both measurements in one look, and the marks in a step of their own."""
    both = [body for body in bodies if body["phase"] in ("baseline", "trained")]
    others = [body for body in bodies if body not in both]
    if len(both) < 2:
        return updates(*others)
    episodes = {arm: body["episodes"] for arm, body in zip(("baseline", "candidate"), both, strict=True)}
    blob = store.blobs.put(json.dumps(episodes).encode(), now=1.0)
    marks = {arm: body.get("marks") for arm, body in zip(episodes, both, strict=True)}
    look = {"phase": "prove", "look": 1, "episodes": blob}
    return updates(*others, look, {"name": "marks", "tries": both[0].get("tries", 1), **marks})


def measured(
    phase: str, success: Counted, scores: Sequence[float | None] = (0.0, 1.0), **families: Counted
) -> dict[str, Any]:
    """The body of a measurement; the other rates are 3 of 4 and 2 of 10."""
    marks = {"success": list(success), "adoption": [3, 4], "format": [2, 10]}
    tries = [{"task": f"calc-{n}", "seed": 0, "success": one} for n, one in enumerate(scores) if one is not None]
    return {
        "phase": phase,
        "tries": 1,
        "marks": {**marks, "families": {name: {"success": list(counted)} for name, counted in families.items()}},
        "episodes": tries,
    }


def practised(success: float | None, rollouts: int, **counts: int) -> dict[str, Any]:
    return {"phase": "grpo", "success": success, "audit": {"rollouts": rollouts, "counts": counts}}


Found = Callable[..., Results]


@pytest.fixture
def found(store: Store) -> Found:
    def read(*bodies: Mapping[str, Any], seed: int = 0) -> Results:
        made = results(store, kept(store, *bodies), rng=np.random.default_rng(seed))
        assert made is not None
        return made

    return read


@pytest.mark.parametrize("phases", [[], ["baseline"], ["trained"]])
def test_there_is_no_result_before_both_measurements(store: Store, phases: list[str]) -> None:
    bodies = [measured(phase, (1, 2)) for phase in phases]
    for some in (kept(store, *bodies), updates(*bodies, function=LEGACY_STEP)):
        assert results(store, some, rng=np.random.default_rng(0)) is None


def test_a_run_of_a_version_before_durable_steps_is_read_as_well(store: Store, found: Found) -> None:
    both = measured("baseline", (0, 10)), measured("trained", (8, 10), calc=(1, 2))
    old = results(store, updates(*both, function=LEGACY_STEP), rng=np.random.default_rng(0))
    assert old == found(*both)


def test_a_rate_comes_with_its_wilson_interval(found: Found) -> None:
    changes = found(measured("baseline", (0, 10)), measured("trained", (8, 10))).changes
    assert tuple(changes) == tuple(RATES) == ("success", "adoption", "format")
    before, after = changes["success"].baseline, changes["success"].trained
    assert (before.value, after.value) == (0.0, 0.8)
    # z = 1.95996, so z² = 3.84146. For 0 of 10: z²/(10 + z²); for 8 of 10: (8 + z²/2 ± z √(1.6 + z²/4)) / (10 + z²).
    assert (before.interval.low, before.interval.high) == pytest.approx((0.0, 0.277533), abs=1e-6)
    assert (after.interval.low, after.interval.high) == pytest.approx((0.490162, 0.943318), abs=1e-6)
    assert (changes["adoption"].baseline.right, changes["adoption"].baseline.of) == (3, 4)


def test_tries_at_one_task_make_an_interval_no_narrower(found: Found) -> None:
    twice = [{**measured(phase, (16, 20)), "tries": 2} for phase in ("baseline", "trained")]
    rate = found(*twice).changes["success"].baseline
    assert (rate.right, rate.of, rate.value) == (16, 20, 0.8)
    assert (rate.interval.low, rate.interval.high) == pytest.approx((0.490162, 0.943318), abs=1e-6)  # as of 8 of 10


def test_a_rate_of_nothing_could_be_anything(found: Found) -> None:
    rate = found(measured("baseline", (0, 0)), measured("trained", (1, 2))).changes["success"].baseline
    assert (rate.value, rate.interval) == (0.0, Interval(low=0.0, high=1.0))


def between(low: float, high: float) -> SuccessRate:
    return SuccessRate(right=1, of=2, interval=Interval(low=low, high=high))


@pytest.mark.parametrize(
    ("baseline", "trained", "is_lifted"),
    [
        ((0.1, 0.3), (0.4, 0.6), True),
        ((0.1, 0.4), (0.4, 0.6), False),  # they touch
        ((0.1, 0.5), (0.4, 0.6), False),
        ((0.4, 0.6), (0.1, 0.3), False),  # apart, but down
    ],
)
def test_a_rate_is_lifted_only_if_the_intervals_do_not_touch(
    baseline: tuple[float, float], trained: tuple[float, float], is_lifted: bool
) -> None:
    assert RateChange(name="success", baseline=between(*baseline), trained=between(*trained)).is_lifted is is_lifted


def test_half_of_ten_is_no_lift_over_none_of_ten_and_eight_of_ten_is(found: Found) -> None:
    """5 of 10 reach down to 0.237, 0 of 10 up to 0.278."""
    lifted = [found(measured("baseline", (0, 10)), measured("trained", (n, 10))).changes["success"] for n in (5, 8)]
    assert [change.is_lifted for change in lifted] == [False, True]


def test_the_gain_is_taken_task_by_task_and_leaves_out_what_was_not_marked_twice(found: Found) -> None:
    before = measured("baseline", (2, 6), [0.0, 0.0, None, 1.0, 0.0, 0.0])
    after = measured("trained", (4, 6), [1.0, 1.0, 0.0, None, 1.0, 1.0])
    gain = found(before, after).gain
    assert (gain.low, gain.high) == (1.0, 1.0)  # each of the four pairs gained exactly 1


def test_the_gain_depends_on_its_seed_alone(found: Found) -> None:
    rng = np.random.default_rng(5)
    before, after = (list(map(float, rng.random(40) < share)) for share in (0.2, 0.7))
    bodies = (measured("baseline", (8, 40), before), measured("trained", (28, 40), after))
    gain = found(*bodies, seed=1).gain
    assert gain == found(*bodies, seed=1).gain != found(*bodies, seed=2).gain
    assert gain.low < np.mean(after) - np.mean(before) < gain.high


def test_tries_at_one_task_count_as_one_task(found: Found) -> None:
    def tries(*successes: float | None) -> list[dict[str, Any]]:
        return [{"task": f"calc-{n // 2}", "seed": n % 2, "success": one} for n, one in enumerate(successes)]

    before = measured("baseline", (0, 2)) | {"episodes": tries(0.0, 0.0, 0.0, 0.0)}
    after = measured("trained", (2, 2)) | {"episodes": tries(1.0, None, 0.0, 1.0)}  # None: there was no score for it
    gain = found(before, after).gain
    assert (gain.low, gain.high) == (0.5, 0.5)  # each task half solved: two pairs, not four


@pytest.mark.parametrize("scores", [[None, None], [None, 1.0]])
def test_with_fewer_than_two_pairs_any_gain_is_possible(found: Found, scores: list[float | None]) -> None:
    gain = found(measured("baseline", (1, 2), [0.0, 0.0]), measured("trained", (1, 1), scores)).gain
    assert (gain.low, gain.high) == (-1.0, 1.0)


def test_families_are_told_apart_where_both_measurements_have_them(found: Found) -> None:
    families = found(
        measured("baseline", (1, 4), calc=(1, 2), chat=(0, 2)), measured("trained", (3, 4), calc=(2, 2), two=(1, 2))
    ).families
    assert {name: (old.value, new.value) for name, (old, new) in families.items()} == {"calc": (0.5, 1.0)}


def test_the_reasons_for_silence_are_summed_over_the_practice(found: Found) -> None:
    made = found(
        measured("baseline", (0, 2)),
        {"phase": "warm-up", "success": 0.1},
        practised(0.2, 16, zero_variance_group=8, missing_reward=1),
        practised(0.3, 12, zero_variance_group=4),
        measured("trained", (2, 2)),
    )
    assert made.silent == {"zero_variance_group": 12, "missing_reward": 1}
    assert made.practised == 28
    assert [(point.step, point.phase) for point in made.curve] == [(1, "warm-up"), (2, "grpo"), (3, "grpo")]


def test_the_curve_holds_what_each_step_said_and_none_for_what_it_did_not() -> None:
    made = {"approx_kl": 0.01, "entropy": 0.3}
    points = curve(
        updates(
            measured("baseline", (0, 2)),
            {"phase": "warm-up", "success": 0.25, "adoption": None, "entropy": 0.5, "is_warm": False},
            {"phase": "warm-up", "success": None, "adoption": None, "is_warm": True},
            {"phase": "grpo", "success": 0.5, "adoption": 0.4, "reward": 0.6, "update": made},
            {"phase": "grpo", "success": 0.75, "adoption": 0.5, "reward": 0.8},  # nothing to compare: no update
        )
    )
    assert [(p.success, p.adoption, p.reward, p.kl, p.entropy) for p in points] == [
        (0.25, None, None, None, 0.5),
        (None, None, None, None, None),
        (0.5, 0.4, 0.6, 0.01, 0.3),
        (0.75, 0.5, 0.8, None, None),
    ]


def test_what_was_wrong_and_is_right_now_is_found_with_its_rollouts(store: Store) -> None:
    def side(phase: str, *won: float | None) -> dict[str, Any]:
        tries = [(n // 2, n % 2, one) for n, one in enumerate(won) if one is not None]
        told = [{"task": f"t{n}", "seed": s, "success": one, "rollout": f"{phase}-{n}-{s}"} for n, s, one in tries]
        return {"phase": phase, "episodes": told, "marks": {}}

    before, after = side("baseline", 0.0, 1.0, 0.0, None), side("trained", 1.0, 1.0, 0.0, 1.0)
    assert turned(store, kept(store, before, after)) == [("baseline-0-0", "trained-0-0")]
    assert turned(store, kept(store, before)) == turned(store, []) == []
