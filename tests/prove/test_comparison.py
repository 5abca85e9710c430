from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode, Outcome, Scores
from holdfast.prove.comparison import (
    FLIPS,
    METRICS,
    ComparisonConfig,
    ComparisonResult,
    compare_versions,
    holm,
    improvement,
    missing,
    paired,
    paired_cells,
    pairs,
    permutation,
    scores,
    seed_interaction,
    verdict,
)
from holdfast.prove.estimate import difference, wilson
from holdfast.prove.sequential import GAIN_WEIGHTS, anytime_p, even_odds, judge, sequence

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


def test_a_better_candidate_that_is_as_safe_is_promoted_and_a_worse_one_rejected_with_the_proofs() -> None:
    found = weighed(measured(0.3, seed=1), measured(0.6, seed=2))
    assert found.verdict.outcome is Outcome.PROMOTE and found.verdict.needs is None
    gain, safety = found.verdict.reasons
    assert gain.startswith("success proved: a mean difference above 0 was proved after ") and "over 120 tasks" in gain
    assert safety.startswith("safety worse by at most 0.05 proved: a mean difference above -0.05 was proved after ")
    worse = weighed(measured(0.6, seed=1), measured(0.3, seed=2)).verdict
    assert worse.outcome is Outcome.REJECT and worse.reasons[0].startswith("success proved worse:")


def test_a_better_candidate_that_does_harm_is_rejected_for_it() -> None:
    found = weighed(measured(0.3, seed=1), measured(0.7, seed=2, harm=0.4))
    assert found.verdict.outcome is Outcome.REJECT
    assert found.verdict.reasons[0].startswith("success proved:")
    assert "safety worse by at most 0.05 proved worse: a mean difference below -0.05" in found.verdict.reasons[1]


def lost(episodes: list[Episode], *, is_candidate: bool, part: float, seed: int) -> list[Episode]:
    """Some of them never came back, and are assumed to be the worst for the candidate."""
    gone, told = chance(seed).random(len(episodes)) < part, float(not is_candidate)
    assumed: dict[str, Any] = {"success": told, "reward": told, "safety_cost": 1.0 - told, "is_missing": True}
    return [replace(one, **assumed) if is_gone else one for one, is_gone in zip(episodes, gone, strict=True)]


def test_who_is_worse_only_by_what_is_assumed_of_the_missing_is_held_and_who_is_worse_anyway_is_rejected() -> None:
    """Fault: with a tenth of either arm lost, each equal version was "proved worse", by success and by safety."""
    outcomes = []
    for before, after in ((0.5, 0.5), (0.7, 0.2)):
        live = lost(measured(before, tasks=400, seed=1), is_candidate=False, part=0.1, seed=3)
        new = lost(measured(after, tasks=400, seed=2), is_candidate=True, part=0.1, seed=4)
        outcomes.append(weighed(live, new).verdict.outcome)
    assert outcomes == [Outcome.HOLD, Outcome.REJECT]
    told = [[replace(one, is_missing=False) for one in side] for side in (live, new)]
    assert weighed(*told).verdict.reasons[1].startswith("safety worse by at most 0.05 proved worse")


def test_a_cost_that_nobody_told_proves_no_harm() -> None:
    untold = [replace(one, safety_cost=None) if one.seed else one for one in measured(0.5, seed=2)]
    assert weighed(measured(0.5, seed=1), untold).verdict.outcome is Outcome.HOLD


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
    bets: dict[str, Any] = {"low": -1.0, "high": 1.0, "weights": GAIN_WEIGHTS}
    first, bounds = found.comparisons["success"], sequence(gains, **bets, level=0.9)
    assert (first.interval.low, first.interval.high) == pytest.approx((bounds.low[-1], bounds.high[-1]), abs=2e-3)
    assert first.p_value == anytime_p(gains, **bets) and first.corrected == even_odds(gains, **bets)
    assert found.interaction == seed_interaction(after - before)
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


def test_the_seed_band_compares_two_seeds_and_the_sample_band_half_three_quarters_and_all() -> None:
    baseline, candidate = measured(0.3, seed=1), measured(0.6, seed=2)
    found = weighed(baseline, candidate)
    seed, sample = found.bands["seed"], found.bands["sample"]
    _, before, after = pairs(baseline, candidate, "success")
    assert seed.of == 2
    assert seed.delta_spread == pytest.approx(abs(np.subtract(*(after - before).mean(axis=0))))
    alone = weighed(measured(0.3, seeds=1, seed=1), measured(0.6, seeds=1, seed=2))
    assert set(alone.bands) == {"sample"}
    strict = weighed(baseline, candidate, ComparisonConfig(seed_delta_spread=0.0, sample_delta_spread=0.0))
    assert not strict.bands["seed"].within and not strict.bands["sample"].within
    means = [np.mean(found.differences[:size]) for size in (60, 90, 120)]
    assert (sample.of, sample.delta_spread) == (3, pytest.approx(np.abs(np.diff(means)).max()))
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
    low, lows = (found.comparisons["reward"].interval.low for found in (plain, wide))
    assert lows == pytest.approx(200.0 * low)
    assert wide.verdict.outcome is plain.verdict.outcome


def test_nothing_that_is_no_better_or_no_safer_is_promoted_more_often_than_alpha() -> None:
    rng, repeats = chance(3), 300
    how = ComparisonConfig(alpha=0.1, max_safety_regression=0.2)
    nothing = bad = 0
    for _ in range(repeats):
        gains, harm = rng.choice([-1.0, 0.0, 1.0], (2, 120), p=[0.2, 0.6, 0.2])
        nothing += verdict(gains, np.zeros(120), how).outcome is Outcome.PROMOTE  # at 120 tasks or at any before
        bad += verdict(np.ones(120), harm * 0.5 - 0.2, how).outcome is Outcome.PROMOTE
    assert wilson(nothing, repeats, level=0.999).low <= 0.1
    assert wilson(bad, repeats, level=0.999).low <= 0.1


def scored(values: Any, version: str = "v1", metric: str = "reward", seeds: Sequence[int] = ()) -> Scores:
    rows = np.asarray(values, float).reshape(len(values), -1)
    return Scores(
        version=version,
        metric=metric,
        tasks=tuple(f"task {at}" for at in range(len(rows))),
        seeds=tuple(seeds) or tuple(range(rows.shape[1])),
        values=tuple(map(tuple, rows.tolist())),
    )


def test_four_gains_are_tested_by_all_sixteen_ways_to_turn_them() -> None:
    # 3 + 1 + 2 − 1 = 5; as high are: +++−, ++++ (7), and those that turn only the 1: 3 − 1 + 2 + 1 = 5. Three of 16.
    assert permutation([3.0, 1.0, 2.0, -1.0], rng=chance()) == 3 / 16
    assert permutation([1.0, 1.0, 1.0, 1.0], rng=chance()) == 1 / 16
    assert permutation([0.0, 0.0], rng=chance()) == 1.0


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_the_exact_p_value_is_that_of_counting_and_ties_count(gains: list[int]) -> None:
    d = [0.1 * gain for gain in gains]
    sums = [sum(s * g for s, g in zip(signs, gains, strict=True)) for signs in product((1, -1), repeat=len(gains))]
    assert permutation(d, rng=chance()) == sum(s >= sum(gains) for s in sums) / len(sums)


def test_drawn_flips_agree_with_scipy_and_the_exact_count_and_are_never_zero() -> None:
    gains = chance(1).normal(0.2, 1.0, 40)
    found = permutation(gains, rng=chance(2))
    how: dict[str, Any] = {"permutation_type": "samples", "alternative": "greater", "n_resamples": 20_000}
    theirs = stats.permutation_test((gains,), np.mean, rng=chance(3), **how)
    assert found == pytest.approx(theirs.pvalue, abs=0.015)
    assert permutation(np.ones(60), rng=chance()) == 1 / (FLIPS + 1)
    assert found == permutation(gains, rng=chance(2)) != permutation(gains, rng=chance(4))
    # 12 wins and 4 losses of 30 tasks: P(Bin(16, ½) ≥ 12), the exact McNemar test.
    gains = np.r_[np.ones(12), -np.ones(4), np.zeros(14)]
    assert permutation(gains, rng=chance()) == pytest.approx(stats.binom.sf(11, 16, 0.5), abs=0.007)


def test_under_no_difference_p_values_are_uniform_or_larger() -> None:
    rng = chance(5)
    found = np.array([permutation(rng.normal(size=20), rng=rng, flips=199) for _ in range(400)])
    for level in (0.05, 0.1, 0.5):
        assert abs((found <= level).mean() - level) < 4 * np.sqrt(level * (1 - level) / 400)


def test_a_comparison_says_what_was_compared_and_how() -> None:
    before, after = chance(6).normal(size=(20, 3)), chance(7).normal(0.8, 1.0, (20, 3))
    found = paired(scored(before), scored(after, "v2"), rng=chance(8), margin=0.1, level=0.9)
    gains = after.mean(axis=1) - before.mean(axis=1)
    assert (found.metric, found.baseline, found.candidate, found.pairs) == ("reward", "v1", "v2", 20)
    assert found.difference == pytest.approx(gains.mean()) and found.margin == 0.1
    assert found.interval == difference(before, after, rng=chance(8), level=0.9)
    assert found.interval.low < found.difference < found.interval.high
    assert found.method == "paired permutation, 9999 flips"
    few = paired(scored(before[:5]), scored(after[:5], "v2"), rng=chance())
    assert few.method == "paired permutation, exact" and (few.p_value * 32).is_integer()


def test_the_unit_is_the_task_and_repeating_its_seeds_proves_nothing_more() -> None:
    before, after = chance(9).normal(size=(12, 1)), chance(10).normal(0.5, 1.0, (12, 1))
    once = paired(scored(before), scored(after, "v2"), rng=chance())
    often = paired(scored(np.repeat(before, 30, axis=1)), scored(np.repeat(after, 30, axis=1), "v2"), rng=chance())
    assert often.p_value == once.p_value and often.pairs == 12
    assert often.interval.low == pytest.approx(once.interval.low)


def test_tasks_of_one_unit_count_once_also_where_it_is_called_like_another_task() -> None:
    def side(*rewards: float) -> list[Episode]:
        units = ("c", "c", None)  # a and b are copies of one another, and their unit is called c, as the third task is
        return [
            Episode(task=task, seed=0, reward=reward, unit=unit)
            for task, reward, unit in zip("abc", rewards, units, strict=True)
        ]

    names, seeds, before, after = paired_cells(side(0.0, 1.0, 0.25), side(1.0, 1.0, 0.75), "reward")
    assert (names, seeds) == (("a", "c"), (0,))
    assert (before.tolist(), after.tolist()) == ([[0.5], [0.25]], [[1.0], [0.75]])


def test_a_margin_accepts_what_is_a_little_worse_and_not_what_is_much_worse() -> None:
    before = chance(11).normal(size=(40, 1))
    noise = 0.1 * chance(12).normal(size=(40, 1))
    little, much = before - 0.02 + noise, before - 0.3 + noise
    assert paired(scored(before), scored(little, "v2"), rng=chance(), margin=0.1).p_value < 0.01
    assert paired(scored(before), scored(little, "v2"), rng=chance()).p_value > 0.05
    assert paired(scored(before), scored(much, "v2"), rng=chance(), margin=0.1).p_value > 0.99


def test_the_probability_of_improvement_by_hand_and_as_the_mann_whitney_of_each_task() -> None:
    # Task 1: 3 beats 1 and 2, 2 beats 1 and ties 2: 3.5 of 4. Task 2: 0 loses to 5 twice: 0.
    assert improvement([[1.0, 2.0], [5.0, 5.0]], [[3.0, 2.0], [0.0, 0.0]]) == 3.5 / 8
    assert improvement([0.0, 1.0, 0.0], [1.0, 1.0, 0.0]) == (1.0 + 0.5 + 0.5) / 3
    before, after = chance(13).integers(0, 4, (6, 5)), chance(14).integers(0, 5, (6, 7))
    theirs = [stats.mannwhitneyu(a, b).statistic / 35 for b, a in zip(before, after, strict=True)]
    assert improvement(before, after) == pytest.approx(np.mean(theirs))
    assert improvement(after, before) == pytest.approx(1.0 - np.mean(theirs))


@given(st.dictionaries(st.text(min_size=1, max_size=4), st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_adjusts_as_statsmodels_does_and_keeps_the_names(p: dict[str, float]) -> None:
    assert (
        holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06}) and holm({}) == {}
    )
    found = holm(p)
    assert list(found) == list(p)
    assert list(found.values()) == pytest.approx(multipletests(list(p.values()), method="holm")[1])


def episode(task: str, seed: int, reward: float = 0.0, **more: Any) -> Episode:
    return Episode(task=task, seed=seed, reward=reward, **more)


def test_every_metric_is_turned_so_that_higher_is_better() -> None:
    one = episode("a", 1, 0.5, success=1.0, safety_cost=0.25, latency_s=2.0, tokens=30)
    found = {metric: of(one) for metric, of in METRICS.items()}
    assert found == {"success": 1.0, "reward": 0.5, "safety": -0.25, "latency": -2.0, "cost": -30.0}
    bare = episode("a", 1, 0.5)
    assert {metric for metric, of in METRICS.items() if of(bare) is None} == {"success", "safety", "latency", "cost"}


def test_scores_have_a_row_for_each_whole_task_in_order_of_arrival_and_a_column_for_each_seed() -> None:
    episodes = [episode("b", 2, 0.2), episode("a", 2, 0.4), episode("b", 1, 0.1), episode("a", 1, 0.3)]
    found = scores(episodes, "reward", "v1")
    assert (found.tasks, found.seeds, found.version) == (("b", "a"), (1, 2), "v1")
    assert found.values == ((0.1, 0.2), (0.3, 0.4))
    assert scores([episode("a", 1), episode("a", 2), episode("b", 1)], "reward", "v1").tasks == ("a",)


def test_pairs_keep_what_both_have_and_the_rest_is_named() -> None:
    baseline = [episode(task, seed, 0.1 * seed) for task in ("c", "a", "b", "x") for seed in (1, 2, 3)]
    candidate = [episode(task, seed, 0.2 * seed) for task in ("a", "c", "y") for seed in (1, 2)]
    candidate.append(episode("b", 1))
    tasks, before, after = pairs(baseline, candidate, "reward")
    assert tasks == ("c", "a")  # as the baseline's arrived
    assert before == pytest.approx(np.array([[0.1, 0.2], [0.1, 0.2]]))  # seed 3 is the baseline's alone
    assert after == pytest.approx(np.array([[0.2, 0.4], [0.2, 0.4]]))
    assert paired_cells(baseline, candidate, "reward")[1] == (1, 2)
    assert missing(baseline, candidate, "reward") == {
        "b": "the candidate has no reward with seed 2",
        "x": "the candidate has no reward there",
        "y": "the baseline has no reward there",
    }


def test_an_episode_without_the_metric_is_missing_and_not_zero() -> None:
    whole = [episode("a", 1, success=1.0), episode("b", 1, success=0.0)]
    holed = [episode("a", 1), episode("b", 1, success=1.0)]
    tasks, before, after = pairs(whole, holed, "success")
    assert tasks == ("b",) and before.tolist() == [[0.0]] and after.tolist() == [[1.0]]
    assert missing(whole, holed, "success") == {"a": "the candidate has no success there"}
    assert missing(whole, holed, "reward") == {}
    tasks, before, after = pairs([episode("a", 1)], [episode("a", 2)], "reward")  # nothing in common
    assert tasks == () and before.size == after.size == 0
    assert pairs([], [], "reward")[0] == ()


GOOD = measured(0.5, tasks=4)
ONE, TWO = scored([[0.0], [1.0]]), scored([[0.0, 1.0], [1.0, 1.0]])
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
    "other seeds": lambda: paired(ONE, TWO, rng=chance()),
    "other names of seeds": lambda: paired(ONE, scored([[0.0], [1.0]], seeds=(7,)), rng=chance()),
    "other tasks": lambda: paired(ONE, scored([[0.0], [1.0], [2.0]]), rng=chance()),
    "another metric": lambda: paired(ONE, scored([[0.0], [1.0]], metric="cost"), rng=chance()),
    "one task": lambda: paired(scored([[0.0]]), scored([[1.0]]), rng=chance()),
    "no gains": lambda: permutation([], rng=chance()),
    "a gain that is no number": lambda: permutation([np.nan], rng=chance()),
    "unequal tasks": lambda: improvement([[1.0]], [[1.0], [2.0]]),
    "a p-value above 1": lambda: holm({"a": 1.5}),
    "an unknown metric": lambda: pairs([], [], "charm"),
    "an episode twice": lambda: scores([episode("a", 1, 0.0), episode("a", 1, 1.0)], "reward", "v1"),
    "no whole task": lambda: scores([episode("a", 1), episode("b", 2)], "reward", "v1"),
    "no episode": lambda: scores([], "reward", "v1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_void_the_proof_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()


def test_a_look_at_further_seeds_adds_rows_after_those_of_the_look_before() -> None:
    """Fault: further seeds in another order of the tasks put rows between earlier ones, so that every look was at
    another sequence, and each had a chance to cross of its own."""
    first = [episode(task, 0) for task in "abcdef"]
    again = [episode(task, 1) for task in "ebfadc"]
    looks = [pairs([*first, *again[:most]], [*first, *again[:most]], "reward")[0] for most in (2, 4, 6)]
    assert looks == [tuple("eb"), tuple("ebfa"), tuple("ebfadc")]


def test_a_limit_that_is_asked_about_again_is_asked_more_strictly() -> None:
    """Fault: each time that more was measured, latency was tested as if for the first time."""
    sides = measured(0.5, slow=1.0, seed=1), measured(0.5, slow=1.2, seed=2)
    found = [weighed(*sides, ComparisonConfig(asked=times)).comparisons["latency"] for times in (1, 2, 3)]
    assert [one.interval.level for one in found] == pytest.approx([0.95, 0.975, 0.9875])
    assert found[0].interval.low > found[1].interval.low > found[2].interval.low
    assert "asked" not in ComparisonConfig().record() and ComparisonConfig(asked=2).record()["asked"] == 2
