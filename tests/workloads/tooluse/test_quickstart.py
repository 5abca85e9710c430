"""The course: what comes next follows from the record, each split has its own place in it, and a lesson learns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from holdfast.collect.plan import Learnt, Lesson, Standing
from holdfast.workloads.pupil import FOLDER, Pupil
from holdfast.workloads.tooluse.course import QUICK, Course, Quickstart, plan_for

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.features import Features
from holdfast.contracts.reward import Sheet, Signal
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import StepRecord
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.policies import tokens
from holdfast.policies.lm import Shape, Transformer
from holdfast.policies.weights import Manifest, save_transformer, transformer
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.tasks import SPLITS, generate, to_input
from holdfast.workloads.tooluse.templates import TEMPLATES

RUN = "run-1"
BASELINE = {"phase": "baseline"}
COLD, WARM = {"phase": "warm-up", "is_warm": False}, {"phase": "warm-up", "is_warm": True}
PRACTISED = {"phase": "grpo"}
TRAINED = {"phase": "trained"}
RIGHT, WRONG = (1.0, 1.0), (0.0, 0.0)  # success and style


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Quickstart:
    """A course for a model so small that it learns in no time."""
    folder = tmp_path_factory.mktemp("weights")
    model = Transformer(Shape(width=16, layers=1, heads=2, context=512), seed=0)
    save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
    return Quickstart(
        model=str(folder),
        seed=3,
        test_tasks=4,
        probe_tasks=8,
        warm_up_target=0.25,
        warm_up_rounds=2,
        warm_up_updates=1,
        warm_up_batch=2,
        grpo_steps=2,
        grpo_tasks=2,
        grpo_samples=3,
        workers=2,
    )


@pytest.fixture
def pupil(settings: Quickstart) -> Iterator[Pupil]:
    pupil = Pupil(settings.model, seed=0, slots=2)
    yield pupil
    pupil.close()


@pytest.fixture
def course(settings: Quickstart, pupil: Pupil) -> Course:
    return Course(settings, pupil)


def after(folder: Path, *bodies: Mapping[str, Any]) -> Standing:
    done = [StepRecord(run=RUN, step=place + 1, at=0.0, body=body) for place, body in enumerate(bodies)]
    return Standing(run=RUN, folder=folder, done=done)


def lesson_after(course: Course, folder: Path, *bodies: Mapping[str, Any]) -> Lesson:
    lesson = course.lesson(after(folder, *bodies))
    assert lesson is not None
    return lesson


def attempt(lesson: Lesson, place: int, marks: tuple[float, float] | None, **fields: Any) -> Experience:
    """What the loop hands over of the lesson's task there: one call, and its marks; None: it was never scored."""
    job = lesson.tasks[place]
    prompt, completion = tokens.prompt([{"role": "user", "content": "1?"}]), (*str(place).encode(), tokens.END)
    call = ModelCall(
        model="m",
        messages=(),
        response={"role": "assistant", "content": str(place)},
        finish_reason="stop",
        prompt_ids=tuple(prompt),
        completion_ids=completion,
        logprobs=(-5.0,) * len(completion),
        sampling={"temperature": 1.0},
    )
    success, style = marks or WRONG
    signals = (
        Signal(name="success", value=success, source="rule:tooluse"),
        Signal(name="format", value=style, weight=0.1, source="rule:tooluse"),
    )
    given: dict[str, Any] = {
        "rollout": f"{RUN}/{job.name}",
        "run": RUN,
        "task": str(job.metadata["group"]),
        "split": job.split,
        "is_final": True,
        "state": RolloutState.SUCCEEDED,
        "spans": (Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=0.0, ended_at=1.0, model=call),),
        "sheet": None if marks is None else Sheet(signals=signals),
    }
    return Experience(**given | fields)


def learn(lesson: Lesson, experiences: Sequence[Experience]) -> Learnt:
    assert lesson.learn is not None
    learnt = lesson.learn(experiences)
    json.dumps(learnt.body, allow_nan=False)  # it can be kept in the store
    return learnt


def successes(found: Learnt) -> dict[int, float]:
    """By the place of the task."""
    return {int(one["task"].rpartition("-")[2]): one["success"] for one in found.body["episodes"]}


@pytest.mark.parametrize(
    ("done", "name"),
    [
        ([], "baseline: 4 held-out tasks"),
        ([BASELINE], "warm-up 1"),
        ([BASELINE, COLD], "warm-up 2"),
        ([BASELINE, WARM], "GRPO 1 of 2"),
        ([BASELINE, COLD, COLD, WARM], "GRPO 1 of 2"),
        ([BASELINE, COLD, WARM, PRACTISED], "GRPO 2 of 2"),
        ([BASELINE, COLD, WARM, PRACTISED, PRACTISED], "trained: 4 held-out tasks"),
        ([BASELINE, COLD, WARM, PRACTISED, PRACTISED, TRAINED], None),
    ],
)
def test_the_next_lesson_follows_from_the_record(
    course: Course, tmp_path: Path, done: list[Mapping[str, Any]], name: str | None
) -> None:
    lesson = course.lesson(after(tmp_path, *done))
    assert (None if lesson is None else lesson.name) == name


def test_another_process_gives_the_same_lesson_for_the_same_record(settings: Quickstart, tmp_path: Path) -> None:
    asked = []
    for before in ([], [BASELINE], [BASELINE, WARM]):  # one has given other lessons already, the other none
        pupils = [Pupil(settings.model, seed=seed, slots=2) for seed in (0, 1)]
        used, fresh = (Course(settings, each) for each in pupils)
        used.lesson(after(tmp_path, BASELINE, COLD, WARM, PRACTISED))
        asked.append([lesson_after(each, tmp_path, *before).tasks for each in (used, fresh)])
        for each in pupils:
            each.close()
    assert all(one == other for one, other in asked)


def test_without_practice_the_measurement_follows_the_warm_up(
    settings: Quickstart, pupil: Pupil, tmp_path: Path
) -> None:
    course = Course(replace(settings, grpo_steps=0), pupil)
    assert lesson_after(course, tmp_path, BASELINE, WARM).name.startswith("trained")


def whole(course: Course, folder: Path) -> dict[str, list[Lesson]]:
    """Every lesson of a course that needs all of its warm-up, by phase."""
    found: dict[str, list[Lesson]] = {}
    done: list[Mapping[str, Any]] = []
    for body in (BASELINE, COLD, COLD, WARM, PRACTISED, PRACTISED, TRAINED):
        found.setdefault(str(body["phase"]), []).append(lesson_after(course, folder, *done))
        done.append(body)
    assert course.lesson(after(folder, *done)) is None
    return found


def asked_of(lesson: Lesson) -> list[str]:
    """The tasks as the store would keep them, without how they are to be sampled."""
    plain = [{key: job.input[key] for key in job.input if key not in ("sampling", "max_turns")} for job in lesson.tasks]
    return [json.dumps(given, sort_keys=True) for given in plain]


def test_test_tasks_are_only_measured_validation_tasks_only_probed_train_tasks_only_practised(
    course: Course, settings: Quickstart, tmp_path: Path
) -> None:
    lessons = whole(course, tmp_path)
    where = {"baseline": Split.TEST, "warm-up": Split.VAL, "grpo": Split.TRAIN, "trained": Split.TEST}
    for phase, some in lessons.items():
        assert {job.split for lesson in some for job in lesson.tasks} == {where[phase]}, phase

    by_phase = {phase: {text for lesson in some for text in asked_of(lesson)} for phase, some in lessons.items()}

    def drawn(split: str, seed: int, n: int) -> set[str]:
        return {json.dumps(to_input(task), sort_keys=True) for task in generate(split, seed, n)}

    assert by_phase["baseline"] == by_phase["trained"] == drawn("test", settings.seed, 4)
    assert by_phase["warm-up"] == drawn("val", settings.seed, 8)
    assert by_phase["grpo"] == drawn("train", 3001, 2) | drawn("train", 3002, 2)  # other tasks in each step
    for one, other in combinations(("trained", "warm-up", "grpo"), 2):
        assert not by_phase[one] & by_phase[other]


def wordings(split: str) -> dict[str, re.Pattern[str]]:
    """The templates of a split, each as what its questions look like."""
    every = {text for texts in TEMPLATES[split].values() for text in texts}
    return {text: re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(text))) for text in every}


def test_the_wordings_of_the_measurements_are_met_nowhere_else(
    settings: Quickstart, pupil: Pupil, tmp_path: Path
) -> None:
    course = Course(replace(settings, test_tasks=100, probe_tasks=100, grpo_tasks=100, grpo_samples=1), pupil)
    known = {split: wordings(split) for split in SPLITS}
    assert all(not set(known[one]) & set(known[other]) for one, other in combinations(SPLITS, 2))
    for lessons in whole(course, tmp_path).values():
        for job in (job for lesson in lessons for job in lesson.tasks):
            shapes = known[str(job.split)].values()
            assert any(shape.fullmatch(job.input["prompt"]) for shape in shapes), job.input["prompt"]
    with pytest.raises(BadInput, match="is not to be learnt from"):
        corpus("strong", "test", 0, 1)  # where the examples of the warm-up come from


def test_a_missing_rollout_is_missing_in_a_measurement_and_not_wrong(course: Course, tmp_path: Path) -> None:
    lesson = lesson_after(course, tmp_path)
    found = learn(lesson, [attempt(lesson, 0, RIGHT), attempt(lesson, 1, (0.0, 1.0)), attempt(lesson, 2, None)])
    assert successes(found) == {0: 1.0, 1: 0.0}  # the third was given up, of the others nothing is known
    assert (found.body["marks"]["success"], found.body["marks"]["format"]) == ([1, 2], [2, 2])
    assert (found.body["phase"], found.checkpoint) == ("baseline", None)  # nothing is learnt from a measurement


def test_a_rollout_in_which_the_agent_itself_failed_is_wrong(course: Course, tmp_path: Path) -> None:
    lesson = lesson_after(course, tmp_path)
    failed = attempt(lesson, 1, None, state=RolloutState.FAILED)
    given_up = attempt(lesson, 2, None, state=RolloutState.DEAD)
    found = learn(lesson, [attempt(lesson, 0, RIGHT), failed, given_up])
    assert successes(found) == {0: 1.0, 1: 0.0}
    assert found.body["marks"]["success"] == [1, 2]


def test_held_out_tasks_are_tried_with_two_seeds_and_all_tries_count(course: Course, tmp_path: Path) -> None:
    lesson = lesson_after(course, tmp_path)
    assert [job.name for job in lesson.tasks] == [f"baseline-{n}{seed}" for seed in ("", "-1") for n in range(4)]
    assert asked_of(lesson)[:4] == asked_of(lesson)[4:]
    assert len({job.metadata["group"] for job in lesson.tasks}) == 8  # they are not compared with one another
    found = learn(lesson, [attempt(lesson, place, RIGHT if place < 4 else WRONG) for place in range(8)])
    assert (found.body["marks"]["success"], found.body["tries"]) == ([4, 8], 2)
    tries = [(one["task"], one["seed"], one["success"]) for one in found.body["episodes"]]
    families = [job.input["family"] for job in lesson.tasks[:4]]
    assert tries == [(f"{families[n]}-{n}", seed, 1.0 - seed) for seed in (0, 1) for n in range(4)]


@pytest.mark.parametrize(
    ("earlier", "right", "of", "is_warm"),
    [
        (0, 2, 8, True),  # a quarter is the target
        (0, 1, 8, False),
        (1, 1, 8, False),
        (2, 0, 8, True),  # two rounds are all it gets
        (0, 1, 4, True),  # of those that came back
        (0, 0, 0, False),  # none came back: that is no reason to stop
    ],
)
def test_the_warm_up_goes_on_until_its_target_or_its_last_round(
    course: Course, tmp_path: Path, earlier: int, right: int, of: int, is_warm: bool
) -> None:
    lesson = lesson_after(course, tmp_path, BASELINE, *[COLD] * earlier)
    found = learn(lesson, [attempt(lesson, place, RIGHT if place < right else WRONG) for place in range(of)])
    assert found.body["phase"] == "warm-up" and found.body["is_warm"] is is_warm
    assert found.body["success"] == (right / of if of else None)
    assert (found.checkpoint is None) is is_warm  # one that is warm has learnt nothing in this lesson
    assert ("loss" in found.body) is not is_warm


def test_a_round_of_the_warm_up_leaves_other_weights_behind(course: Course, pupil: Pupil, tmp_path: Path) -> None:
    before = pupil.model.state_dict()["embed.weight"].clone()
    lesson = lesson_after(course, tmp_path, BASELINE)
    found = learn(lesson, [attempt(lesson, place, WRONG) for place in range(8)])
    assert found.checkpoint is not None and found.checkpoint.algorithm == "sft"
    kept, _ = transformer(tmp_path / FOLDER / found.checkpoint.id)
    assert not kept.state_dict()["embed.weight"].equal(before)
    assert kept.state_dict()["embed.weight"].equal(pupil.model.state_dict()["embed.weight"])


def test_while_learning_is_switched_off_the_course_is_run_and_nothing_is_taught(
    course: Course, pupil: Pupil, tmp_path: Path
) -> None:
    before = pupil.model.state_dict()["embed.weight"].clone()
    for done, phase in (([BASELINE], "warm-up"), ([BASELINE, WARM], "grpo")):
        lesson = course.lesson(replace(after(tmp_path, *done), features=Features(learning=False)))
        assert lesson is not None
        marks = [RIGHT if not place else WRONG for place in range(len(lesson.tasks))]
        version = pupil.version
        found = learn(lesson, [attempt(lesson, place, mark, version=version) for place, mark in enumerate(marks)])
        assert found.checkpoint is None
        assert (found.body["phase"], found.body["skipped"]) == (phase, "learning is switched off")
        assert found.body.get("is_warm", True)  # so that the course goes on
    assert pupil.model.state_dict()["embed.weight"].equal(before)


def test_practice_makes_several_attempts_at_each_task_and_compares_those(
    course: Course, pupil: Pupil, tmp_path: Path
) -> None:
    lesson = lesson_after(course, tmp_path, BASELINE, WARM)
    assert [job.metadata["group"] for job in lesson.tasks] == ["grpo-0-0"] * 3 + ["grpo-0-1"] * 3
    assert len({job.name for job in lesson.tasks}) == 6 and len(set(asked_of(lesson))) == 2

    marks = [RIGHT, WRONG, WRONG, WRONG, WRONG, WRONG]  # in the second group there is nothing to compare
    mine = pupil.version
    found = learn(lesson, [attempt(lesson, place, mark, version=mine) for place, mark in enumerate(marks)])
    assert found.checkpoint is not None and found.checkpoint.algorithm == "grpo"
    assert (found.body["phase"], found.body["success"]) == ("grpo", pytest.approx(1 / 6))
    assert found.body["reward"] == found.checkpoint.mean_reward == pytest.approx(1.1 / 6)
    assert found.body["update"]["delta_norm"] > 0
    assert (found.body["audit"]["rollouts"], found.body["audit"]["taught"]) == (6, 3)
    assert found.body["audit"]["counts"] == {"zero_variance_group": 3}


def test_practice_without_any_difference_changes_nothing_and_says_why(
    course: Course, pupil: Pupil, tmp_path: Path
) -> None:
    before = pupil.model.state_dict()["embed.weight"].clone()
    lesson = lesson_after(course, tmp_path, BASELINE, WARM)
    found = learn(lesson, [attempt(lesson, place, WRONG, version=pupil.version) for place in range(5)])
    assert found.checkpoint is None and "update" not in found.body
    assert found.body["audit"]["counts"] == {"zero_variance_group": 5}
    assert pupil.model.state_dict()["embed.weight"].equal(before)


def test_practice_takes_nothing_that_other_weights_did(course: Course, pupil: Pupil, tmp_path: Path) -> None:
    lesson = lesson_after(course, tmp_path, BASELINE, WARM)
    versions = [pupil.version, pupil.version, None, *[f"{pupil.version}-old"] * 3]
    marks = [RIGHT, WRONG, RIGHT, RIGHT, WRONG, WRONG]
    given = zip(marks, versions, strict=True)
    found = learn(lesson, [attempt(lesson, n, mark, version=made) for n, (mark, made) in enumerate(given)])
    assert (found.body["audit"]["taught"], found.body["audit"]["counts"]) == (2, {"stale_policy": 4})


def before_the_end(course: Course, folder: Path, marks: tuple[float, float]) -> list[Mapping[str, Any]]:
    """A course that measured this baseline and was then taught."""
    lesson = lesson_after(course, folder)
    baseline = learn(lesson, [attempt(lesson, place, marks) for place in range(8)]).body
    lesson = lesson_after(course, folder, baseline)
    cold = learn(lesson, [attempt(lesson, place, WRONG) for place in range(8)])
    assert cold.checkpoint is not None
    taught = {**cold.body, "checkpoint": cold.checkpoint.id}
    finding = {"name": "no_secrets", "severity": "critical", "count": 1, "of": 6, "detail": "grpo-0-0-0: a key"}
    return [baseline, taught, WARM, {**PRACTISED, "quality": [finding]}, {**PRACTISED, "quality": [finding]}]


def test_what_was_learnt_is_brought_before_the_gate_with_all_that_was_found(course: Course, tmp_path: Path) -> None:
    done = before_the_end(course, tmp_path, WRONG)
    lesson = lesson_after(course, tmp_path, *done)
    found = learn(lesson, [attempt(lesson, place, RIGHT) for place in range(8)])
    asked = found.proposal
    assert asked is not None
    assert (asked.policy, asked.candidate) == (RUN, f"checkpoint:{done[1]['checkpoint']}")
    assert asked.baseline.startswith("shelf:")
    evidence = asked.weigh(f"{RUN}@1", f"{RUN}@2", "0" * 64)
    assert (evidence.episodes, evidence.comparisons["success"].difference) == (4, 1.0)
    assert evidence.comparisons["reward"].difference == pytest.approx(1.1)
    assert set(evidence.bands) == {"seed", "sample"}
    assert [(one.name, one.count, one.of) for one in evidence.audit or ()] == [("no_secrets", 2, 12)]
    decision = asked.decide(evidence)
    assert not decision.open
    assert {"population_below_minimum", "data_quality_no_secrets"} <= {reason.code for reason in decision.reasons}


def test_a_measurement_of_what_learnt_nothing_brings_nothing_forward(course: Course, tmp_path: Path) -> None:
    done = before_the_end(course, tmp_path, WRONG)
    for short in ([done[0], WARM, *done[3:]], [{**done[0], "episodes": []}, *done[1:]]):
        lesson = lesson_after(course, tmp_path, *short)
        assert learn(lesson, [attempt(lesson, place, RIGHT) for place in range(8)]).proposal is None
    assert learn(lesson, []).proposal is None


def test_the_plan_is_known_by_its_settings_and_counts_what_is_sure_to_come(settings: Quickstart) -> None:
    plan = plan_for(settings)
    plan.close()
    assert (plan.kind, plan.model_ref, plan.seed, plan.workers) == ("quickstart", f"local/{settings.model}", 3, 2)
    assert Quickstart(**json.loads(json.dumps(plan.settings))) == settings


def test_the_quick_course_is_the_same_course_with_less_of_everything() -> None:
    assert QUICK.model == Quickstart().model
    for name in ("test_tasks", "probe_tasks", "warm_up_rounds", "grpo_steps", "grpo_tasks", "grpo_samples"):
        assert 0 < getattr(QUICK, name) < getattr(Quickstart(), name)
