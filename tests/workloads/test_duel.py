"""Duels: both arms do the same with the same chance, each look rests on what is on record, and a kill loses nothing.

The looks are worked by hand on made-up experiences; whole duels are run with models so small that they take no time.
"""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast.workloads.duel import (
    ARMS,
    Duel,
    contestant,
    duel_from,
    episodes_of,
    plan_for,
    settings_of,
    suite_of,
    weighed,
)

from holdfast import loop
from holdfast.collect.agent import Assignment, Context
from holdfast.collect.plan import Lesson, Plan, Standing
from holdfast.collect.tracer import Tracer
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Outcome
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import Sheet, Signal
from holdfast.contracts.rollout import RolloutState, Split, Task
from holdfast.contracts.run import RunState, Status, StepRecord
from holdfast.contracts.trace import ModelCall
from holdfast.pipeline.versions import Version, resolve
from holdfast.policies.lm import Shape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.prove.suite import Suite, to_document
from holdfast.prove.weigh import Weighing
from holdfast.store.store import Store, open_store
from holdfast.workloads import duel as duels
from tests.conftest import Files

PATIENCE_S = 60.0
SHIPPED = Path(__file__).resolve().parents[2] / "examples/suites"
LAX = Weighing(max_safety_regression=0.9)  # so that a few tasks decide


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models that know nothing."""
    made = []
    for seed in (0, 1):
        folder = tmp_path_factory.mktemp("weights")
        model = Transformer(Shape(width=16, layers=1, heads=2, context=512), seed=seed)
        save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
        made.append(str(folder))
    return made


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh()) as opened:
        yield opened


def versions(store: Store, folders: Sequence[str]) -> tuple[Version, Version]:
    one, two = (resolve(store, folder) for folder in folders)
    return one, two


def short(suite: Suite) -> Suite:
    """The same cases, each over after a few tokens."""
    given = {"sampling": {"max_tokens": 4}, "max_turns": 1}
    return replace(suite, cases=tuple(replace(case, input={**case.input, **given}) for case in suite.cases))


@pytest.fixture
def duel(store: Store, folders: list[str]) -> Duel:
    baseline, candidate = versions(store, folders)
    suite = replace(short(suite_of("tooluse:6")), seeds=(1, 2))
    return Duel(suite=suite, baseline=baseline, candidate=candidate, batch=4, workers=4, how=LAX)


def lesson_after(duel: Duel, *bodies: Mapping[str, Any]) -> Lesson | None:
    done = [StepRecord(run="run-1", step=place, at=0.0, body=body) for place, body in enumerate(bodies, 1)]
    return duels._lesson(duel, Standing(run="run-1", folder=Path(), done=done))


def experience(task: Task, success: float | None, **how: Any) -> Experience:
    """An attempt that got so much; None: it was never scored."""
    scored = () if success is None else (Signal(name="success", value=success, source="rule"),)
    return Experience(
        rollout=f"run-1/{task.name}",
        run="run-1",
        task=str(task.metadata["group"]),
        split=Split.TEST,
        is_final=True,
        state=how.get("state", RolloutState.SUCCEEDED),
        spans=(),
        sheet=Sheet(signals=scored),
    )


def looked(duel: Duel, results: Mapping[str, float | None], *bodies: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body of the next look, when the arms get so much on every task."""
    lesson = lesson_after(duel, *bodies)
    assert lesson is not None
    assert lesson.learn is not None
    return lesson.learn([experience(task, results[task.input["arm"]]) for task in lesson.tasks]).body


def drive(
    store: Store, plan: Plan, *, resume: str | None = None, control: loop.Control | None = None, later_s: float = 0.0
) -> Status:
    async def main() -> Status:
        return await loop.optimize(
            store,
            plan,
            control or loop.Control(),
            clock=lambda: time.time() + later_s,
            observe=lambda status: None,
            who="ada",
            salt="aa",
            resume=resume,
        )

    return asyncio.run(main())


def test_both_arms_do_the_same_tasks_with_the_same_chance_side_by_side(duel: Duel) -> None:
    lesson = lesson_after(duel)
    assert lesson is not None
    assert (lesson.name, len(lesson.tasks), lesson.left) == ("look 1 of 2", 16, 8)  # 4 cases × 2 seeds × 2 arms
    for old, new in zip(lesson.tasks[::2], lesson.tasks[1::2], strict=True):
        assert (old.input["arm"], new.input["arm"]) == ARMS
        assert {**old.input, "arm": None} == {**new.input, "arm": None}
        assert old.metadata["seed"] == new.metadata["seed"]
    assert len({task.input["chance"] for task in lesson.tasks}) == 8
    assert all(task.split is Split.TEST for task in lesson.tasks)


def test_a_version_against_itself_has_another_chance_in_each_arm(duel: Duel) -> None:
    lesson = lesson_after(replace(duel, candidate=duel.baseline, is_null=True))
    assert lesson is not None
    assert len({task.input["chance"] for task in lesson.tasks}) == 16


def test_another_seed_is_another_chance(duel: Duel) -> None:
    one, two = lesson_after(duel), lesson_after(replace(duel, seed=1))
    assert one is not None
    assert two is not None
    assert not {task.input["chance"] for task in one.tasks} & {task.input["chance"] for task in two.tasks}


def test_the_arms_of_prompts_are_given_their_own_resources(duel: Duel) -> None:
    lesson = lesson_after(replace(duel, candidate=replace(duel.baseline, name="p@2", resources=7)))
    assert lesson is not None
    assert {(task.input["arm"], task.resources) for task in lesson.tasks} == {("baseline", None), ("candidate", 7)}


def test_a_look_keeps_its_episodes_and_says_what_all_of_them_prove(duel: Duel) -> None:
    first = looked(duel, {"baseline": 0.0, "candidate": 1.0})
    assert (first["look"], first["tasks"], first["difference"], first["missing"]) == (1, 4, 1.0, 0)
    assert [len(first["episodes"][arm]) for arm in ARMS] == [8, 8]
    second = looked(duel, {"baseline": 1.0, "candidate": 0.0}, first)
    assert (second["look"], second["tasks"]) == (2, 6)
    assert second["difference"] == pytest.approx((4 - 2) / 6)
    assert lesson_after(duel, first, second) is None
    json.dumps(second, allow_nan=False)


def test_what_a_fault_of_ours_left_unscored_is_missing_and_not_a_zero(duel: Duel) -> None:
    body = looked(duel, {"baseline": 1.0, "candidate": None})
    assert (body["missing"], body["tasks"]) == (8, 0)
    assert "verdict" not in body


def test_an_agent_that_itself_failed_counts_as_a_zero(duel: Duel) -> None:
    lesson = lesson_after(duel)
    assert lesson is not None
    assert lesson.learn is not None
    body = lesson.learn([experience(task, None, state=RolloutState.FAILED) for task in lesson.tasks]).body
    assert body["missing"] == 0
    assert {one["success"] for one in body["episodes"]["candidate"]} == {0.0}


def test_only_who_wants_it_stops_at_a_verdict(duel: Duel) -> None:
    many = replace(duel, suite=replace(suite_of("tooluse:60"), seeds=(1,)), batch=40, stop_early=True)
    decided = looked(many, {"baseline": 0.0, "candidate": 1.0})
    assert decided["verdict"]["outcome"] == Outcome.PROMOTE
    assert lesson_after(many, decided) is None
    assert lesson_after(replace(many, stop_early=False), decided) is not None
    assert looked(many, {"baseline": 1.0, "candidate": 0.0})["verdict"]["outcome"] == Outcome.REJECT
    held = looked(many, {"baseline": 1.0, "candidate": 1.0})
    assert held["verdict"]["outcome"] == Outcome.HOLD
    assert lesson_after(many, held) is not None


def test_the_same_version_twice_has_to_be_meant(duel: Duel) -> None:
    with pytest.raises(BadInput, match="is the same as baseline"):
        replace(duel, candidate=replace(duel.baseline, name="another name"))
    with pytest.raises(BadInput, match="is between a version and itself"):
        replace(duel, is_null=True)
    with pytest.raises(BadInput, match="batch = 0"):
        replace(duel, batch=0)


def test_a_duel_comes_back_from_the_settings_of_its_run(duel: Duel) -> None:
    assert duel_from(json.loads(json.dumps(settings_of(duel)))) == duel
    made = replace(duel, suite=replace(suite_of("tooluse:3:5"), seeds=(1, 4)), source="tooluse:3:5")
    settings = json.loads(json.dumps(settings_of(made)))
    assert duel_from(settings) == made
    assert "document" not in settings["suite"]  # thousands of tasks are made again, not kept
    settings["suite"]["sha256"] = "0" * 64
    with pytest.raises(BadInput, match="makes other tasks of it"):
        duel_from(settings)


def test_a_generated_suite_has_tasks_that_nobody_has_learnt_from() -> None:
    suite = suite_of("tooluse:30:2")
    assert len({case.case_id for case in suite.cases}) == 30
    assert suite_of("tooluse:30:2").fixture_sha256 == suite.fixture_sha256
    assert suite_of("tooluse:30:3").fixture_sha256 != suite.fixture_sha256
    assert suite_of("tooluse:20:2").cases == suite.cases[:20]
    assert all(case.case_id.startswith(case.input["family"]) for case in suite.cases)
    assert to_document(suite)


@pytest.mark.parametrize(
    "source", ["tooluse", "tooluse:x", "tooluse:0", "tooluse:1:2:3", "tooluse:5:-1", "tooluse:9999999"]
)
def test_a_generated_suite_that_cannot_be_is_refused(source: str) -> None:
    with pytest.raises(BadInput, match=f"suite {source}"):
        suite_of(source)


def test_a_suite_that_cannot_be_run_or_scored_is_refused_before_anything_runs(tmp_path: Path) -> None:
    document = json.loads((SHIPPED / "tool-use-suite.json").read_text())
    path = tmp_path / "s.json"
    document["cases"][1]["input"]["style"] = "haiku"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"cases\[1\].input: task.style = 'haiku' is unknown"):
        suite_of(str(path))
    document["cases"][0]["scoring_rubric"] = {"charm": 1.0}
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"cases\[0\].scoring_rubric.charm: nothing here measures it"):
        suite_of(str(path))


async def test_the_task_says_who_answers_and_with_which_chance() -> None:
    asked: list[tuple[str, int]] = []

    def model(name: str) -> Any:
        async def complete(messages: Any, /, **sampling: Any) -> ModelCall:
            asked.append((name, sampling["seed"]))
            return ModelCall(model=name, messages=tuple(messages), response={"role": "assistant", "content": "7"})

        return complete

    agent = contestant({arm: model(arm) for arm in ARMS})
    case = suite_of("tooluse:1").cases[0]
    for arm in ARMS:
        task = duels.job(case, arm, 1, name="x", chance=99)
        assignment = Assignment(
            rollout="r", attempt="a", number=1, split=None, input=task.input, resources={}, seed=hash(arm)
        )
        trace = Tracer(record=lambda span: None, clock=lambda: 0.0)
        assert await agent(task.input, Context(assignment=assignment, trace=trace, complete=None)) == "7"
    assert asked == [("baseline", 99), ("candidate", 99)]


def test_what_a_case_asks_for_in_sampling_is_kept_and_a_replay_is_stronger() -> None:
    case = short(suite_of("tooluse:1")).cases[0]
    assert duels.job(case, "baseline", 1, name="x", chance=1).input["sampling"] == {"temperature": 1.0, "max_tokens": 4}
    greedy = duels.job(case, "replay", 1, name="x", chance=1, temperature=0.0)
    assert greedy.input["sampling"] == {"temperature": 0.0, "max_tokens": 4}


def test_a_duel_runs_to_its_end_and_its_episodes_can_be_read(store: Store, duel: Duel) -> None:
    status = drive(store, plan_for(duel))
    assert (status.run_state, status.total_rollouts, status.succeeded) == (RunState.COMPLETED, 24, 24)
    baseline, candidate = episodes_of(store, status.run_id)
    keys = [(case.case_id, seed) for case in duel.suite.cases for seed in (1, 2)]
    assert [(one.task, one.seed) for one in baseline] == [(one.task, one.seed) for one in candidate] == keys
    assert all(one.latency_s is not None and one.tokens for one in baseline)
    for arm, some in zip((duel.baseline, duel.candidate), (baseline, candidate), strict=True):
        (first, *_) = store.experiences.of([str(some[0].rollout)])
        assert first.version == f"local/{arm.name}@{arm.sha256[:12]}"  # each was answered by its own weights
    found = weighed(store, status.run_id)
    assert found is not None
    assert len(found.tasks) == 6
    assert found.comparisons["success"].candidate == duel.candidate.name


def test_a_run_of_another_kind_has_no_episodes(store: Store) -> None:
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="aa", who="ada", now=0.0).result()
    with pytest.raises(BadInput, match="is of the kind optimize, and compared nothing"):
        episodes_of(store, run.id)


def test_a_duel_that_nobody_has_looked_at_has_nothing_to_weigh(store: Store, duel: Duel) -> None:
    run = store.runs.begin(
        kind="prove", model_ref="m", settings=settings_of(duel), salt="aa", who="ada", now=0.0
    ).result()
    assert episodes_of(store, run.id) == ([], [])
    assert weighed(store, run.id) is None


def finals(store: Store, run: str) -> dict[str, str | None]:
    return {
        one.name: one.final_attempt for one in store.views.rollouts(run, most=1000) if one.final_attempt is not None
    }


def test_a_duel_that_was_killed_goes_on_where_it_stopped(files: Files, folders: list[str]) -> None:
    path = files.fresh()
    words = ["tooluse:16", "--baseline", folders[0], "--candidate", folders[1]]
    words += ["--seeds", "1", "--batch", "4", "--workers", "2"]
    command = [sys.executable, "-m", "holdfast.cli", "prove", "run", *words, "--store", path]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open_store(path) as store:
        patience = time.monotonic() + PATIENCE_S
        while not any(store.steps.of_run(run.id) for run in store.runs.newest(most=1)):
            assert child.poll() is None
            assert time.monotonic() < patience
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        (run,) = store.runs.newest(most=1)
        assert run.state is RunState.RUNNING  # it had no time to say anything
        before, looks = finals(store, run.id), store.steps.of_run(run.id)
        assert 0 < len(looks) < 4
        again = duel_from(run.settings)
        status = drive(store, plan_for(again), resume=run.id, later_s=60.0)  # its lease has run out by then
        assert (status.run_state, status.total_rollouts) == (RunState.COMPLETED, 32)
        after = finals(store, run.id)
        assert len(after) == 32
        assert {name: after[name] for name in before} == before  # nothing was done twice
        assert store.steps.of_run(run.id)[: len(looks)] == looks
        for some in episodes_of(store, run.id):
            assert [one.task for one in some] == [case.case_id for case in again.suite.cases]
