"""Two versions against one another: the same tasks with the same chance, looks that rest on what is on record, and runs
that go on: after a kill, from a version before durable steps, and where another left a candidate held."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode, Outcome
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import Rollout, RolloutState, Split, Task
from holdfast.contracts.run import LEGACY_STEP, RunState
from holdfast.pipeline.paired import (
    Continued,
    PairedEvaluation,
    episodes_of_run,
    looked,
    measured,
    settled,
    shown_looks,
    weighed,
)
from holdfast.pipeline.prove import ARMS, Look
from holdfast.promote.gate import Criteria
from holdfast.prove.comparison import ComparisonConfig
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.pipeline.paired_scene import RAISES, RIGHT, UNSCORED, WRONG, compared, drive, evaluation, spec, tasks


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh()) as opened:
        yield opened


def rollouts(store: Store, made: PairedEvaluation) -> list[Rollout]:
    return store.views.rollouts(compared(store, made), most=1000)


def looks(store: Store, run: str) -> list[Look]:
    return [Look.from_record(one.body) for one in shown_looks(store, run)]


def chances(found: list[Rollout]) -> set[str]:
    return {str(one.metadata["seed"]) for one in found}


def test_both_arms_do_the_same_tasks_with_the_same_chance_side_by_side(store: Store) -> None:
    found = rollouts(store, evaluation())
    assert len(found) == 24  # 6 tasks × 2 seeds × 2 arms
    assert [one.name for one in found[:4]] == ["baseline-0-1", "candidate-0-1", "baseline-0-2", "candidate-0-2"]
    for old, new in zip(found[::2], found[1::2], strict=True):
        assert (old.name.split("-")[0], new.name.split("-")[0]) == ARMS
        assert old.input == new.input
        assert old.metadata["seed"] == new.metadata["seed"]
        assert old.version != new.version
    assert len(chances(found)) == 12
    assert all(one.split is Split.TEST for one in found)


def test_a_version_against_itself_has_another_chance_in_each_arm(store: Store) -> None:
    made = evaluation(RIGHT)
    found = rollouts(store, replace(made, candidate=made.baseline, is_null=True))
    assert len(chances(found)) == 24


def test_another_seed_is_another_chance(store: Store) -> None:
    assert not chances(rollouts(store, evaluation())) & chances(rollouts(store, evaluation(seed=1)))


def test_the_arms_of_prompts_are_given_their_own_resources(store: Store) -> None:
    found = rollouts(store, evaluation())
    by_arm = {one.name.split("-")[0]: store.versions.get(int(one.resources or 0)).resources for one in found}
    assert by_arm == {"baseline": {"says": WRONG}, "candidate": {"says": RIGHT}}


def test_a_look_keeps_its_episodes_and_says_what_all_of_them_prove(store: Store) -> None:
    spoilt = [replace(one, input={**one.input, "always": WRONG}) for one in tasks(2, 4)]
    run = compared(store, evaluation(tasks=(*tasks(4), *spoilt)))
    first, second = looks(store, run)
    assert (first.look, first.tasks, first.difference, first.missing) == (1, 4, 1.0, {"baseline": 0, "candidate": 0})
    assert (second.look, second.tasks, second.planned) == (2, 6, 12)
    assert second.difference == pytest.approx(4 / 6)
    assert [len(some) for some in episodes_of_run(store, run)] == [12, 12]
    assert second.blobs == (first.episodes, second.episodes)  # a step refers to episodes, and holds none
    found = weighed(store, run)
    assert found is not None and len(found.tasks) == 6
    assert found.comparisons["success"].candidate == "new"


def test_what_a_fault_of_ours_left_unscored_counts_against_the_candidate_and_is_told(store: Store) -> None:
    (first, _) = looks(store, compared(store, evaluation(RIGHT, UNSCORED)))
    assert (first.missing, first.tasks, first.difference) == ({"baseline": 0, "candidate": 8}, 4, -1.0)
    (first, _) = looks(store, compared(store, evaluation(UNSCORED, RIGHT)))
    assert (first.missing, first.difference) == ({"baseline": 8, "candidate": 0}, 0.0)  # and for the baseline


def test_an_agent_that_itself_failed_counts_as_a_zero(store: Store) -> None:
    run = compared(store, evaluation(RIGHT, RAISES))
    assert looks(store, run)[0].missing == {"baseline": 0, "candidate": 0}
    assert {one.success for one in episodes_of_run(store, run)[1]} == {0.0}


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


def test_a_single_task_has_no_verdict_yet(store: Store) -> None:
    run = compared(store, evaluation(tasks=tasks(1)))
    (only,) = looks(store, run)
    assert (only.tasks, only.verdict) == (1, None)
    assert weighed(store, run) is None


def test_the_same_version_twice_has_to_be_meant() -> None:
    made = evaluation()
    with pytest.raises(BadInput, match="is the same as baseline"):
        replace(made, candidate=replace(made.baseline, name="another name"))
    with pytest.raises(BadInput, match="is between a version and itself"):
        replace(made, is_null=True)
    with pytest.raises(BadInput, match="batch = 0"):
        replace(made, batch=0)


def test_a_run_of_another_kind_has_no_episodes(store: Store) -> None:
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="aa", who="ada", now=0.0).result()
    with pytest.raises(BadInput, match="is of the kind optimize, and compared nothing"):
        episodes_of_run(store, run.id)


def test_a_run_that_nobody_has_looked_at_has_nothing_to_weigh(store: Store) -> None:
    settings = evaluation().settings
    run = store.runs.begin(kind="prove", model_ref="m", settings=settings, salt="aa", who="ada", now=0.0).result()
    assert episodes_of_run(store, run.id) == ([], [])
    assert weighed(store, run.id) is None


# Runs that versions before durable steps began -----------------------------------------------------------------------


def old_run(store: Store, made: PairedEvaluation) -> str:
    """One look is taken, as it was kept then, and the next batch had begun."""
    kept = {**made.settings, **{arm: {**made.settings[arm]} for arm in ARMS}}
    run = store.runs.begin(kind="prove", model_ref="m", settings=kept, salt="aa", who="ada", now=0.0).result().id
    episodes = {
        arm: [
            encode(Episode(task=task.id, seed=seed, reward=value, success=value))
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


def test_an_old_run_is_read_as_it_was_kept(store: Store) -> None:
    run = old_run(store, evaluation())
    assert [len(some) for some in episodes_of_run(store, run)] == [8, 8]
    assert [one.body["look"] for one in shown_looks(store, run)] == [1]
    found = measured(store, run, planned=9)
    assert (found.looks, found.lost) == (1, {"baseline": 1, "candidate": 1})


def test_an_old_run_goes_on_with_the_batches_that_are_left(store: Store) -> None:
    made = evaluation()
    run = old_run(store, made)
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
    assert [one.task for one in both[0]] == [f"t{place}" for place in range(9) for _ in (1, 2)]
    assert {str(one.rollout).partition("/")[0] for one in both[0]} == {first, second}
    (last,) = looks(store, second)
    assert (last.look, last.tasks, last.planned) == (3, 9, 18)
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
