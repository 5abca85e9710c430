"""Two versions against one another: the same tasks with the same chance, looks that rest on what is on record, and runs
that go on: after a kill, from a version before durable steps, and where another left a candidate held."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.evidence import Episode, Outcome, Verdict
from holdfast.contracts.records import encode
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Rollout, RolloutState, Split, Task
from holdfast.contracts.run import LEGACY_STEP, RunState
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.more import unmeasured
from holdfast.pipeline.paired import (
    Continued,
    PairedEvaluation,
    comparison_of,
    episodes_of_run,
    looked,
    measured,
    settled,
    shown_looks,
)
from holdfast.pipeline.prove import (
    ARMS,
    InterimAnalysis,
    ProveConfig,
    completed,
    episode,
    episodes,
    is_checked,
    judged,
    missing,
)
from holdfast.pipeline.run import _digest as digest
from holdfast.promote.gate import Criteria
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.store import Store
from tests.pipeline.paired_scene import RAISES, RIGHT, UNSCORED, UNTOLD, WRONG, compared, drive, evaluation, spec, tasks
from tests.workloads.scene import attempt


def rollouts(store: Store, made: PairedEvaluation) -> list[Rollout]:
    return store.views.rollouts(compared(store, made), most=1000)


def looks(store: Store, run: str) -> list[InterimAnalysis]:
    return [InterimAnalysis.from_record(one.body) for one in shown_looks(store, run)]


def chances(found: list[Rollout]) -> set[str]:
    return {str(one.metadata["seed"]) for one in found}


def test_both_arms_do_the_same_tasks_with_the_same_chance_side_by_side(store: Store) -> None:
    found = rollouts(store, evaluation())
    assert len(found) == 24  # 6 tasks × 2 seeds × 2 arms
    assert [one.name for one in found[:4]] == ["baseline-0-1", "candidate-0-1", "baseline-0-2", "candidate-0-2"]
    for old, new in zip(found[::2], found[1::2], strict=True):
        assert (old.name.split("-")[0], new.name.split("-")[0]) == ARMS
        assert old.input == new.input and old.metadata["seed"] == new.metadata["seed"]
        assert old.version != new.version
    assert len(chances(found)) == 12 and all(one.split is Split.TEST for one in found)
    by_arm = {one.name.split("-")[0]: store.versions.get(int(one.resources or 0)).resources for one in found}
    assert by_arm == {"baseline": {"says": WRONG}, "candidate": {"says": RIGHT}}  # each its own prompt
    null = evaluation(RIGHT, seed=1)
    null = replace(null, candidate=null.baseline, is_null=True)
    others = chances(rollouts(store, null))
    assert len(others) == 24 and not others & chances(found)  # a version against itself; another seed


def test_a_look_keeps_its_episodes_and_says_what_all_of_them_prove(store: Store) -> None:
    spoilt = [replace(one, input={**one.input, "always": WRONG}) for one in tasks(2, 4)]
    run = compared(store, evaluation(tasks=(*tasks(4), *spoilt)))
    first, second = looks(store, run)
    assert (first.number, first.tasks, first.missing) == (1, 4, {"baseline": 0, "candidate": 0})
    assert (second.number, second.tasks, second.planned) == (2, 6, 12)
    assert second.difference == pytest.approx(4 / 6)
    assert [len(some) for some in episodes_of_run(store, run)] == [12, 12]
    assert second.blobs == (first.episodes, second.episodes)  # a step refers to episodes, and holds none
    found = comparison_of(store, run)
    assert found is not None and len(found.tasks) == 6
    assert found.comparisons["success"].candidate == "new"


@pytest.mark.parametrize(
    ("before", "after", "lost", "difference"),
    [
        (RIGHT, UNSCORED, {"baseline": 0, "candidate": 8}, -1.0),  # a fault of ours counts against the candidate …
        (UNSCORED, RIGHT, {"baseline": 8, "candidate": 0}, 0.0),  # … and for the baseline
        (RIGHT, RAISES, {"baseline": 0, "candidate": 0}, -1.0),  # an agent that itself failed was wrong
        (RIGHT, UNTOLD, {"baseline": 0, "candidate": 8}, -1.0),  # a score that does not say whether it was right
        (UNTOLD, RIGHT, {"baseline": 8, "candidate": 0}, 0.0),
    ],
)
def test_nobody_gains_by_not_finishing(
    store: Store, before: str, after: str, lost: dict[str, int], difference: float
) -> None:
    run = compared(store, evaluation(before, after))
    first = looks(store, run)[0]
    assert (first.missing, first.tasks, first.difference) == (lost, 4, difference)
    assert after == RIGHT or {one.success for one in episodes_of_run(store, run)[1]} == {0.0}


def test_where_nobody_is_told_whether_it_was_right_nobody_is_worse(store: Store) -> None:
    first = looks(store, compared(store, evaluation(UNTOLD, f"{UNTOLD} and other words")))[0]
    assert (first.missing, first.tasks, first.verdict) == ({"baseline": 0, "candidate": 0}, 0, None)


def test_only_who_wants_it_stops_at_a_verdict(store: Store) -> None:
    many = evaluation(tasks=tasks(60), seeds=(1,), batch=40, stop_early=True)
    run = compared(store, many)
    (decided,) = looks(store, run)
    assert decided.verdict is not None and decided.verdict.outcome is Outcome.PROMOTE
    assert store.runs.get(run).state is RunState.COMPLETED
    assert len(looks(store, compared(store, replace(many, stop_early=False)))) == 2
    worse = replace(many, baseline=many.candidate, candidate=many.baseline)
    (rejected,) = looks(store, compared(store, worse))
    assert rejected.verdict is not None and rejected.verdict.outcome is Outcome.REJECT
    held = looks(store, compared(store, replace(many, baseline=replace(many.candidate, name="old", sha256="0" * 64))))
    assert [one.verdict and one.verdict.outcome for one in held] == [Outcome.HOLD, Outcome.HOLD]


def test_a_better_candidate_is_measured_on_as_many_tasks_as_the_gate_asks_for(store: Store) -> None:
    """A verdict after fewer would stand, and the gate stay closed."""
    sure = ComparisonConfig(alpha=0.2, max_safety_regression=0.9)
    made = evaluation(tasks=tasks(40), seeds=(1, 2), batch=10, stop_early=True, how=sure)
    first, second = looks(store, compared(store, made))
    assert first.verdict is not None and first.verdict.outcome is Outcome.PROMOTE
    assert (first.tasks, second.tasks) == (10, Criteria().min_episodes)
    worse = replace(made, baseline=made.candidate, candidate=made.baseline)
    assert [one.tasks for one in looks(store, compared(store, worse))] == [10]  # no gate would open for it
    before = replace(made, least=0)
    assert "least" not in before.settings  # as runs that older versions began have them
    assert settled(before.settings)["least"] == 0 and settled(made.settings)["least"] == made.least


def test_a_single_task_has_no_verdict_yet_and_the_next_one_is_looked_at(store: Store) -> None:
    run = compared(store, evaluation(tasks=tasks(2), batch=1, stop_early=True))
    assert [(one.tasks, one.verdict is None) for one in looks(store, run)] == [(1, True), (2, False)]
    assert comparison_of(store, compared(store, evaluation(tasks=tasks(1)))) is None


def test_the_same_version_twice_has_to_be_meant() -> None:
    made = evaluation()
    with pytest.raises(BadInput, match="is the same as baseline"):
        replace(made, candidate=replace(made.baseline, name="another name"))
    with pytest.raises(BadInput, match="is between a version and itself"):
        replace(made, is_null=True)
    with pytest.raises(BadInput, match="batch = 0"):
        replace(made, batch=0)


def test_a_run_without_looks_has_nothing_to_weigh_and_one_of_another_kind_no_episodes(store: Store) -> None:
    how: dict[str, Any] = {"model_ref": "m", "settings": evaluation().settings, "salt": "aa", "who": "ada", "now": 0.0}
    run = store.runs.begin(kind="prove", **how).result().id
    assert episodes_of_run(store, run) == ([], []) and comparison_of(store, run) is None
    with pytest.raises(BadInput, match="is of the kind optimize, and compared nothing"):
        episodes_of_run(store, store.runs.begin(kind="optimize", **how).result().id)


# Runs that versions before durable steps began -----------------------------------------------------------------------


def old_run(store: Store, made: PairedEvaluation) -> str:
    """One look is taken, as it was kept then, and the next batch had begun."""
    kept = {**made.settings, **{arm: {**made.settings[arm]} for arm in ARMS}}
    run = store.runs.begin(kind="prove", model_ref="m", settings=kept, salt="aa", who="ada", now=0.0).result().id
    episodes = {
        arm: [
            encode(Episode(task=task.id, seed=seed, reward=value, success=value, safety_cost=0.0))
            for task in made.tasks[: made.batch]
            for seed in made.seeds
        ]
        for arm, value in zip(ARMS, (0.0, 1.0), strict=True)
    }
    body = {"phase": "look", "look": 1, "missing": 0, "episodes": episodes, "tasks": 4, "difference": 1.0}
    store.steps.add(run, "lesson-1", body, function=LEGACY_STEP, now=1.0).result()
    begun = Task(name="baseline-4-1", input={"arm": "baseline", "chance": 7}, split=Split.TEST, metadata={"seed": 1})
    store.queue.enqueue(run, [begun], now=1.0).result()
    return run


def test_an_old_run_goes_on_with_the_batches_that_are_left(store: Store) -> None:
    made = evaluation()
    run = old_run(store, made)
    assert [len(some) for some in episodes_of_run(store, run)] == [8, 8]  # read as it was kept
    assert [one.body["look"] for one in shown_looks(store, run)] == [1]
    found = measured(store, run, planned=9)
    assert (found.looks, found.lost) == (1, {"baseline": 1, "candidate": 1})
    status = drive(store, spec(store, made), resume=run, later_s=60.0)
    assert status.run_state is RunState.COMPLETED
    names = {one.name: one.status for one in store.views.rollouts(run, most=100)}
    assert names.pop("baseline-4-1") is RolloutState.CANCELLED  # what it was in the midst of is done anew
    assert sorted(names) == sorted(f"again-{arm}-{place}-{seed}" for arm in ARMS for place in (4, 5) for seed in (1, 2))
    assert [one.body["look"] for one in shown_looks(store, run)] == [1, 2]
    keys = [(task.id, seed) for task in made.tasks for seed in (1, 2)]
    for some in episodes_of_run(store, run):
        assert [(one.task, one.seed) for one in some] == keys
    last = looked(store, run)[-1].body
    assert (last["planned"], last["tasks"], last["difference"]) == (12, 6, 1.0)
    assert drive(store, spec(store, made), resume=run, later_s=120.0).run_state is RunState.COMPLETED  # read, not run


# Runs that continue another ------------------------------------------------------------------------------------------


def continuing(store: Store, run: str, **given: object) -> PairedEvaluation:
    last = measured(store, run)
    continues = Continued(run=run, planned=last.planned, looks=last.looks)
    return replace(evaluation(**given), continues=continues)  # type: ignore[arg-type]


def test_a_run_that_continues_another_adds_to_its_evidence_in_order(store: Store) -> None:
    first = compared(store, evaluation())
    second = compared(store, continuing(store, first, tasks=tasks(3, 6)))
    both = episodes_of_run(store, second)
    asked = [one.task for one in both[0]]
    assert [{*asked[:12]}, {*asked[12:]}] == [{f"t{place}" for place in some} for some in (range(6), range(6, 9))]
    assert {str(one.rollout).partition("/")[0] for one in both[0]} == {first, second}
    (last,) = looks(store, second)
    assert (last.number, last.tasks, last.planned) == (3, 9, 18)
    assert [one.name for one in store.views.rollouts(second, most=2)] == ["baseline-0-1", "candidate-0-1"]
    json.dumps(asdict(measured(store, second)), allow_nan=False)


def test_a_verdict_that_stands_already_is_not_measured_further(store: Store) -> None:
    first = compared(store, evaluation(tasks=tasks(40), seeds=(1,), batch=40))
    second = compared(store, continuing(store, first, tasks=tasks(3, 40), seeds=(1,), stop_early=True))
    assert (shown_looks(store, second), store.views.rollouts(second, most=1)) == ([], [])


def test_a_task_is_not_measured_twice_with_a_seed(store: Store) -> None:
    first = compared(store, evaluation())
    with pytest.raises(BadInput, match="is there twice"):
        compared(store, continuing(store, first))


def test_a_look_comes_back_from_its_record() -> None:
    verdict = Verdict(outcome=Outcome.HOLD, reasons=("not yet",), needs=5)
    look = InterimAnalysis(
        number=2,
        iteration=1,
        tasks=8,
        planned=16,
        missing={"baseline": 0, "candidate": 1},
        episodes="ab" * 32,
        earlier=("cd" * 32,),
        difference=0.25,
        verdict=verdict,
    )
    assert InterimAnalysis.from_record(json.loads(json.dumps(look.record()))) == look
    assert look.blobs == ("cd" * 32, "ab" * 32) and not look.is_decided


TASK = Task(name="t-0", input=1)


def scored(**values: float) -> RewardBreakdown:
    weights = {"safety_cost": 0.0}
    return RewardBreakdown(
        signals=tuple(
            RewardTerm(name=name, value=value, weight=weights.get(name, 1.0), source="rule")
            for name, value in values.items()
        )
    )


def test_an_episode_has_reward_cost_success_time_and_tokens() -> None:
    given = attempt(TASK, 12, None, breakdown=scored(success=1.0, format=0.5, safety_cost=0.25))
    assert episode(given, task="calc-0", seed=1) == Episode(
        task="calc-0",
        seed=1,
        reward=1.5,  # what it costs is not paid
        safety_cost=0.25,
        success=1.0,
        latency_s=2.5,
        tokens=3,  # two digits and the end
        rollout="run-1/t-0",
    )


@pytest.mark.parametrize("breakdown", [scored(success=2.0), scored(success=1.0, safety_cost=-1.0)])
def test_a_signal_out_of_its_range_is_refused_with_the_task(breakdown: RewardBreakdown) -> None:
    with pytest.raises(BadRecord, match="episode of calc-0 with seed 3"):
        episode(attempt(TASK, 1, None, breakdown=breakdown), task="calc-0", seed=3)


def test_only_rollouts_with_a_place_become_episodes_in_the_order_they_came() -> None:
    given = [attempt(Task(name=f"p-{n}", input=n), n, won) for n, won in ((2, 1.0), (0, 0.0), (1, None), (3, 1.0))]
    found = episodes(given, {"p-0": ("a", 0), "p-1": ("b", 0), "p-2": ("a", 1)})
    assert [(one.task, one.seed, one.success) for one in found] == [("a", 1, 1.0), ("a", 0, 0.0)]


def test_what_never_came_back_is_the_worst_for_a_candidate_and_the_best_for_a_baseline() -> None:
    places = {"p-0": ("a", 0), "p-1": ("a", 1), "p-2": ("b", 0)}
    found = episodes([attempt(Task(name="p-1", input=1), 1, 0.0)], places)
    how = ComparisonConfig(reward_range=(-1.0, 2.0), max_cost=3.0)
    worst = missing(found, places, how, is_candidate=True)
    of = partial(Episode, seed=0, is_missing=True)
    assert worst == [of(task=task, reward=-1.0, safety_cost=3.0, success=0.0) for task in ("a", "b")]
    best = missing(found, places, how, is_candidate=False)
    assert best == [of(task=task, reward=2.0, safety_cost=0.0, success=1.0) for task in ("a", "b")]
    assert missing([*found, *worst], places, how, is_candidate=True) == []


@pytest.mark.parametrize(
    ("breakdown", "state", "wanted"),
    [
        (scored(success=0.0, exact_match=1.0), RolloutState.SUCCEEDED, (0.0, 1.0)),  # the first name wins
        (scored(exact_match=1.0), RolloutState.SUCCEEDED, (1.0, 1.0)),
        (scored(taste=1.0), RolloutState.SUCCEEDED, (None, 1.0)),
        (scored(exact_match=1.0, safety=-2.5), RolloutState.FAILED, (0.0, -1.5)),  # rejected: it keeps its reward
        (None, RolloutState.FAILED, (0.0, 0.0)),  # an agent that failed got nothing
        *((none, state, None)  # what was never scored is missing, and not wrong
          for none in (None, RewardBreakdown(signals=()))
          for state in (RolloutState.SUCCEEDED, RolloutState.DEAD, RolloutState.CANCELLED)),
    ],
)  # fmt: skip
def test_an_episode_tells_success_by_its_signal_and_what_was_never_scored_is_missing(
    breakdown: RewardBreakdown | None, state: RolloutState, wanted: tuple[float | None, float] | None
) -> None:
    given = attempt(TASK, 1, None, breakdown=breakdown, state=state)
    found = episode(given, task="t", seed=0)
    assert (None if found is None else (found.success, found.reward)) == wanted
    checked = {"success", "exact_match"} & {one.name for one in (breakdown.signals if breakdown else ())}
    assert is_checked(given) is bool(checked)


def test_two_tasks_of_both_are_needed_to_say_anything_and_a_certain_gain_decides() -> None:
    def of(values: list[float]) -> list[Episode]:
        return [
            Episode(task=f"t{place}", seed=0, reward=value, success=value, safety_cost=0.0)
            for place, value in enumerate(values)
        ]

    how = ProveConfig(how=ComparisonConfig(max_safety_regression=0.9))
    assert judged(of([0.0]), of([1.0]), how) == {"tasks": 1} and judged([], [], how) == {"tasks": 0}
    better, same = (judged(of([low] * 40), of([high] * 40), how) for low, high in ((0.0, 1.0), (0.5, 0.5)))
    assert (better["verdict"].outcome, better["difference"]) == (Outcome.PROMOTE, 1.0)
    assert (same["verdict"].outcome, same["difference"]) == (Outcome.HOLD, 0.0)
    with pytest.raises(BadInput, match="must be at least 1"):
        ProveConfig(batch=0)


def test_further_tasks_are_those_that_nobody_measured_or_learnt_from() -> None:
    known = [HeldOut(id="a", input={"q": 1}), HeldOut(id="b", input={"q": 2})]
    new = [HeldOut(id="z", input={"q": 1}), HeldOut(id="a", input={"q": 3}), HeldOut(id="c", input={"q": 3})]
    found = unmeasured(new, known, [], "more.jsonl")
    assert [(one.id, one.input) for one in found] == [("a+1", {"q": 3})]  # names do not collide
    with pytest.raises(BadInput, match=r"more.jsonl: task z: is one that it learnt from"):
        unmeasured(new, known, [{"q": 1}], "more.jsonl")
    with pytest.raises(BadInput, match="has no task that is not measured yet"):
        unmeasured(known, known, [], "more.jsonl")


def test_another_question_to_a_document_that_was_measured_is_no_further_evidence() -> None:
    def asked(number: int, document: str) -> HeldOut:
        return HeldOut(id=f"t{number}", input={"q": number, "page": document, "metadata": {"document": document}})

    known, new = [asked(1, "lease"), asked(2, "will")], [asked(3, "will"), asked(4, "deed"), asked(5, "deed")]
    for cluster in (None, "page"):
        assert [one.id for one in unmeasured(new, known, [], "more.jsonl", cluster)] == ["t4", "t5"]


def test_a_look_of_a_run_that_a_version_before_began_is_known_by_the_same_inputs() -> None:
    """Its recorded steps are read only if what they are given has the hash that was noted then."""
    tasks = [HeldOut(id="a", input={"x": 1}), HeldOut(id="b", input=2, rng_key="k")]
    known = "0f5e5cfddc08a35f7ac2d9ad47ecf0783786fbb6321c7bca3c4f0450c627f132"
    asked = ProveConfig(least=20, seeds=(0, 1, 2), criteria=Criteria(), cluster="user")
    assert digest([asked.as_before, tasks]) == known != digest([asked, tasks])


def test_an_episode_whose_safety_nobody_measured_is_not_a_safe_one() -> None:
    """With 400 certain gains and no safety cost at all, today's zero was "proved" safe after 80 tasks."""
    given = attempt(TASK, 12, None, breakdown=scored(success=1.0))
    found = episode(given, task="calc-0", seed=1)
    assert found is not None and found.safety_cost is None

    def of(value: float, cost: float | None) -> list[Episode]:
        return [Episode(task=f"t{n}", seed=0, reward=value, success=value, safety_cost=cost) for n in range(400)]

    def outcome(before: float | None, after: float | None, how: ComparisonConfig) -> Outcome:
        verdict: Verdict = judged(of(0.0, before), of(1.0, after), ProveConfig(how=how))["verdict"]
        return verdict.outcome

    usual, waived = ComparisonConfig(), ComparisonConfig(max_safety_regression=None)
    assert outcome(None, None, usual) is Outcome.HOLD and outcome(0.0, 0.0, usual) is Outcome.PROMOTE
    assert outcome(0.0, None, usual) is Outcome.HOLD  # the worst is assumed of a candidate, and proves nothing of it
    assert outcome(None, None, waived) is Outcome.PROMOTE


def test_failures_that_are_scored_without_success_are_not_left_out() -> None:
    """An equal candidate, half of whose failures had no success signal: their tasks were dropped, and it won so."""
    rng, how = np.random.default_rng(1), ComparisonConfig(max_safety_regression=None)
    places = {f"p-{n}-{seed}": (f"t{n}", seed) for n in range(400) for seed in (0, 1)}

    def of(hidden: float) -> list[Episode]:
        won = [float(rng.random() < 0.5) for _ in places]
        told = [None if not one and rng.random() < hidden else one for one in won]
        rows = zip(places.values(), told, strict=True)
        return [Episode(task=task, seed=seed, reward=0.5, success=one) for (task, seed), one in rows]

    before, after = of(0.0), of(0.5)
    config = ProveConfig(how=how)
    assert judged(before, after, config)["verdict"].outcome is Outcome.PROMOTE  # what leaving them out would say
    whole, lost = completed(after, places, how, is_candidate=True)
    assert lost == sum(one.success is None for one in after) and len(whole) == 800
    assert judged(before, whole, config)["verdict"].outcome is Outcome.HOLD
    best, _ = completed(after, places, how, is_candidate=False)
    assert {one.success for one in best if one.rollout is None and one.reward == 1.0} == {1.0}


def test_an_agent_that_failed_earned_the_lowest_reward_in_every_range() -> None:
    """From −1 to 0 a zero is the best there is: one that did as live and crashed on three of ten tasks was promoted."""
    failed = attempt(Task(name="p", input=1), 1, None, breakdown=None, state=RolloutState.FAILED)
    found = episodes([failed], {"p": ("t", 0)}, -1.0)
    assert [(one.reward, one.success) for one in found] == [(-1.0, 0.0)]


def test_looking_does_not_go_on_until_a_limit_of_latency_or_tokens_passes() -> None:
    """Their tests are for one look: read at eight, an error of 2.2 % became one of 8.3 %."""
    rng = np.random.default_rng(4)

    def of(value: float, seconds: float) -> list[Episode]:
        return [
            Episode(
                task=f"t{n}",
                seed=0,
                reward=value,
                success=value,
                latency_s=seconds + rng.random(),
                tokens=int(100 * seconds),
            )
            for n in range(60)
        ]

    how = ComparisonConfig(max_safety_regression=None)
    asked = Criteria(max_safety_regression=None, max_latency_increase=0.1, max_cost_increase=1.0)
    config = ProveConfig(how=how, criteria=asked)
    told = judged(of(0.0, 1.0), of(1.0, 3.0), config)
    assert told["verdict"].outcome is Outcome.PROMOTE and not any(
        "latency" in one or "cost" in one for one in told["unmet"]
    )
