from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode, Outcome
from holdfast.prove.comparison import (
    ComparisonConfig,
    ComparisonResult,
    compare_versions,
    holm,
    improvement,
    pairs,
    verdict,
)
from holdfast.prove.estimate import wilson
from holdfast.prove.sequential import judge, sequence

VERSIONS = ("sprout-1", "sprout-2")


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def measured(
    success: float, *, tasks: int = 120, seeds: int = 2, harm: float = 0.0, slow: float = 1.0, seed: int = 0
) -> list[Episode]:
    """Tasks differ: half of them are half as easy again as the other half."""
    rng = chance(seed)
    return [
        Episode(
            task=f"task {task}",
            seed=column,
            reward=round(float(np.clip(success + 0.2 * rng.normal(), 0.0, 1.0)), 3),
            success=float(rng.random() < success * (1.2 if task % 2 else 0.8)),
            safety_cost=float(rng.random() < harm),
            latency_s=slow * float(rng.uniform(1.0, 2.0)),
            tokens=int(rng.integers(90, 110)),
        )
        for task in range(tasks)
        for column in range(seeds)
    ]


def weighed(baseline: list[Episode], candidate: list[Episode], how: ComparisonConfig | None = None) -> ComparisonResult:
    return compare_versions(baseline, candidate, how or ComparisonConfig(), versions=VERSIONS, rng=chance(9))


def test_a_better_candidate_that_is_as_safe_is_promoted_and_both_proofs_are_told() -> None:
    found = weighed(measured(0.3, seed=1), measured(0.6, seed=2))
    assert found.verdict.outcome is Outcome.PROMOTE and found.verdict.needs is None
    gain, safety = found.verdict.reasons
    assert gain.startswith("success proved: a mean difference above 0 was proved after ") and "over 120 tasks" in gain
    assert safety.startswith("safety worse by at most 0.05 proved: a mean difference above -0.05 was proved after ")


def test_a_better_candidate_that_does_harm_is_rejected_for_it() -> None:
    found = weighed(measured(0.3, seed=1), measured(0.7, seed=2, harm=0.4))
    assert found.verdict.outcome is Outcome.REJECT
    assert found.verdict.reasons[0].startswith("success proved:")
    assert "safety worse by at most 0.05 proved worse: a mean difference below -0.05" in found.verdict.reasons[1]
    assert found.safety_bounds.high[-1] < -0.05


def test_a_worse_candidate_is_rejected() -> None:
    found = weighed(measured(0.6, seed=1), measured(0.3, seed=2))
    assert found.verdict.outcome is Outcome.REJECT
    assert found.verdict.reasons[0].startswith("success proved worse:")


def test_a_gain_without_enough_tasks_to_exclude_harm_is_held_and_says_how_many_episodes_it_takes() -> None:
    found = weighed(measured(0.1, tasks=30, seed=1), measured(0.9, tasks=30, seed=2))
    assert found.verdict.outcome is Outcome.HOLD
    assert found.verdict.reasons[0].startswith("success proved:")
    safety = judge(np.zeros(30), low=-1.0, high=1.0, min_effect=-0.05, worthwhile=0.05)
    assert safety.needs is not None
    assert found.verdict.needs == 2 * safety.needs  # tasks, with two seeds each
    wider = weighed(
        measured(0.1, tasks=30, seed=1), measured(0.9, tasks=30, seed=2), ComparisonConfig(max_safety_regression=0.2)
    )
    assert wider.verdict.outcome is Outcome.PROMOTE


def test_no_difference_is_held_for_want_of_a_gain() -> None:
    same = measured(0.5, seed=1)
    found = weighed(same, same)
    assert found.verdict.outcome is Outcome.HOLD and found.verdict.needs
    assert found.verdict.reasons[0].startswith(
        "success undecided: a mean difference above 0 is not proved: evidence 1 of 20"
    )
    assert set(found.differences) == {0.0} and found.effect == 0.0 and found.improvement > 0.5 - 1e-9


def test_all_that_is_weighed_is_what_its_parts_say() -> None:
    baseline, candidate = measured(0.3, seed=1), measured(0.6, seed=2)
    how = ComparisonConfig(max_latency_increase=0.1, level=0.9)
    found = weighed(baseline, candidate, how)
    tasks, before, after = pairs(baseline, candidate, "success")
    gains = (after - before).mean(axis=1)
    assert found.tasks == tasks == tuple(f"task {at}" for at in range(120))
    assert found.differences == pytest.approx(gains)
    assert found.bounds == sequence(gains, low=-1.0, high=1.0, level=0.9)
    assert found.effect == pytest.approx(gains.mean() / gains.std(ddof=1))
    assert found.improvement == improvement(before, after)
    assert set(found.comparisons) == {"success", "reward", "safety", "latency", "cost"}
    assert found.comparisons["success"].difference == pytest.approx(gains.mean())
    assert {(c.baseline, c.candidate) for c in found.comparisons.values()} == {VERSIONS}
    assert found.adjusted == holm({metric: c.p_value for metric, c in found.comparisons.items()})
    assert found.missing == {}


def test_what_is_better_when_it_is_less_has_its_margin_in_its_own_unit() -> None:
    how = ComparisonConfig(max_latency_increase=0.1, max_cost_increase=0.5, max_safety_regression=0.02)
    baseline = measured(0.3, seed=1)
    found = weighed(baseline, measured(0.3, seed=2, slow=1.5), how).comparisons
    assert found["latency"].margin == pytest.approx(0.1 * np.mean([e.latency_s or 0.0 for e in baseline]))
    assert found["latency"].difference == pytest.approx(-0.75, abs=0.1) and found["latency"].p_value > 0.99
    assert found["cost"].margin == pytest.approx(50.0, rel=0.02) and found["cost"].p_value < 0.001
    assert found["safety"].margin == 0.02 and found["success"].margin == found["reward"].margin == 0.0
    assert weighed(baseline, measured(0.3, seed=2)).comparisons["latency"].margin == 0.0


def test_the_same_generator_gives_the_same_and_nothing_else_is_by_chance() -> None:
    baseline, candidate = measured(0.4, seed=1), measured(0.5, seed=2)
    assert weighed(baseline, candidate) == weighed(baseline, candidate)
    other = compare_versions(baseline, candidate, ComparisonConfig(), versions=VERSIONS, rng=chance(10))
    assert other.verdict == weighed(baseline, candidate).verdict and other != weighed(baseline, candidate)


def test_the_seed_band_needs_two_seeds_and_compares_them() -> None:
    baseline, candidate = measured(0.3, seed=1), measured(0.6, seed=2)
    band = weighed(baseline, candidate).bands["seed"]
    _, before, after = pairs(baseline, candidate, "success")
    assert band.of == 2
    assert band.delta_spread == pytest.approx(abs(np.subtract(*(after - before).mean(axis=0))))
    alone = weighed(measured(0.3, seeds=1, seed=1), measured(0.6, seeds=1, seed=2))
    assert set(alone.bands) == {"sample"}
    strict = weighed(baseline, candidate, ComparisonConfig(seed_delta_spread=0.0, sample_delta_spread=0.0))
    assert not strict.bands["seed"].within and not strict.bands["sample"].within


def test_the_sample_band_compares_half_three_quarters_and_all() -> None:
    baseline, candidate = measured(0.3, seed=1), measured(0.6, seed=2)
    found = weighed(baseline, candidate)
    means = [np.mean(found.differences[:size]) for size in (60, 90, 120)]
    assert found.bands["sample"].of == 3
    assert found.bands["sample"].delta_spread == pytest.approx(np.abs(np.diff(means)).max())
    least = weighed(measured(0.3, tasks=2, seed=1), measured(0.6, tasks=2, seed=2))
    assert least.bands["sample"].of == 2


def test_tasks_that_only_one_has_are_named_and_the_rest_is_weighed() -> None:
    baseline, candidate = measured(0.3, seed=1), measured(0.6, seed=2)
    candidate[0] = replace(candidate[0], success=None)
    found = weighed(baseline, candidate[:-1])
    assert found.missing == {
        "task 0": "the candidate has no success with seed 0",
        "task 119": "the candidate has no success with seed 1",
    }
    assert len(found.tasks) == 118 and found.comparisons["reward"].pairs == 119


def test_what_nobody_measured_is_not_compared() -> None:
    bare = [[replace(e, success=None, latency_s=None, tokens=None) for e in measured(s, seed=1)] for s in (0.3, 0.6)]
    found = weighed(*bare, ComparisonConfig(primary="reward"))
    assert set(found.comparisons) == {"reward", "safety"}
    assert found.verdict.outcome is Outcome.PROMOTE


def test_rewards_are_judged_in_their_own_range() -> None:
    baseline, candidate = measured(0.3, tasks=20, seed=1), measured(0.5, tasks=20, seed=2)
    scaled = [[replace(e, reward=200.0 * e.reward - 100.0) for e in side] for side in (baseline, candidate)]
    plain = weighed(baseline, candidate, ComparisonConfig(primary="reward"))
    wide = weighed(*scaled, ComparisonConfig(primary="reward", reward_range=(-100.0, 100.0)))
    assert wide.differences == pytest.approx([200.0 * gain for gain in plain.differences])
    assert wide.bounds.low == pytest.approx([200.0 * low for low in plain.bounds.low])
    assert wide.verdict.outcome is plain.verdict.outcome


def test_nothing_that_is_no_better_or_no_safer_is_promoted_more_often_than_alpha() -> None:
    rng, repeats = chance(3), 300
    how = ComparisonConfig(alpha=0.1, max_safety_regression=0.2)
    nothing = bad = 0
    for _ in range(repeats):
        gains, harm = rng.choice([-1.0, 0.0, 1.0], (2, 120), p=[0.2, 0.6, 0.2])
        false_gain = [verdict(gains[:n], np.zeros(n), how).outcome for n in (40, 80, 120)]
        false_safety = [verdict(np.ones(n), harm[:n] * 0.5 - 0.2, how).outcome for n in (40, 80, 120)]
        nothing += Outcome.PROMOTE in false_gain
        bad += Outcome.PROMOTE in false_safety
    assert wilson(nothing, repeats, level=0.999).low <= 0.1
    assert wilson(bad, repeats, level=0.999).low <= 0.1


GOOD = measured(0.5, tasks=4)
REFUSED: dict[str, Callable[[], Any]] = {
    "a primary without a range": lambda: ComparisonConfig(primary="latency"),
    "an alpha of 1": lambda: ComparisonConfig(alpha=1.0),
    "a level of 0": lambda: ComparisonConfig(level=0.0),
    "a range turned round": lambda: ComparisonConfig(reward_range=(1.0, 0.0)),
    "a margin as large as all harm": lambda: ComparisonConfig(max_safety_regression=1.0),
    "a margin below 0": lambda: ComparisonConfig(max_safety_regression=-0.1),
    "a latency that must fall": lambda: ComparisonConfig(max_latency_increase=-0.1),
    "a gain that is impossible": lambda: ComparisonConfig(min_effect=1.0),
    "nothing worthwhile": lambda: ComparisonConfig(worthwhile=0.0),
    "a primary that nobody measured": lambda: weighed(*([[replace(e, success=None) for e in GOOD]] * 2)),
    "no task in common": lambda: weighed(GOOD, [replace(e, task=f"other {e.task}") for e in GOOD]),
    "one task in common": lambda: weighed(GOOD, GOOD[:2]),
    "a reward outside its range": lambda: weighed(
        GOOD, [replace(GOOD[0], reward=1.5), *GOOD[1:]], ComparisonConfig(primary="reward")
    ),
    "harm beyond the most": lambda: weighed(GOOD, [replace(GOOD[0], safety_cost=1.5), *GOOD[1:]]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_void_the_proof_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()
