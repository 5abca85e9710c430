"""Iterations of improvement: what comes next follows from the record, a candidate is measured on the same tasks as what
is live, and what is not promoted is left behind.

Attempts are made up and the model is tiny; whole runs are the business of the command's tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast.collect.plan import Follow, Learnt, Lesson, Standing
from holdfast.workloads.improve import Course, plan_for, weighing
from holdfast.workloads.pupil import Pupil, where

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.contracts.reward import Sheet, Signal
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.run import StepRecord
from holdfast.contracts.settings import ImproveBlock, OptimizeSettings
from holdfast.policies.weights import transformer
from tests.workloads.scene import RUN, attempt, tiny

SHELF = "shelf:"
TRAIN = [{"prompt": f"train {n}"} for n in range(5)]
VAL = [{"prompt": f"val {n}"} for n in range(6)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def pupils(base: str) -> Iterator[Callable[[], Pupil]]:
    made: list[Pupil] = []

    def new() -> Pupil:
        made.append(Pupil(base, seed=0, slots=2))
        return made[-1]

    yield new
    for pupil in made:
        pupil.close()


def settings(base: str, **improve: Any) -> OptimizeSettings:
    block = {"steps": 2, "step_tasks": 2, "samples": 2, "prove": {"batch": 4, "seeds": 2}, **improve}
    given = {"model": f"local/{base}", "optimize": TRAIN, "validate": VAL, "improve": block}
    return OptimizeSettings.model_validate(given)


class Play:
    """A run of the course: each lesson's attempts are made up, and what it left is put on record as the loop does."""

    def __init__(self, base: str, pupil: Pupil, folder: Path, **improve: Any) -> None:
        self.settings, self.pupil, self.folder = settings(base, **improve), pupil, folder
        self.course = Course(self.settings, self.settings.improve or ImproveBlock(), pupil)
        self.done: list[StepRecord] = []
        self.live: Release | None = None

    def lesson(self) -> Lesson:
        found = self.course.lesson(self.standing)
        assert found is not None
        return found

    @property
    def standing(self) -> Standing:
        reports = self.folder / "reports"
        return Standing(run=RUN, folder=self.folder, done=list(self.done), live=self.live, reports=reports)

    def teach(self, won: Callable[[int], float | None], **fields: Any) -> Learnt:
        """The next lesson, in which the attempt at each place was worth that."""
        lesson = self.lesson()
        given = [
            attempt(task, n, won(n), asked=task.input["prompt"], version=self.pupil.version, **fields)
            for n, task in enumerate(lesson.tasks)
        ]
        return self.learn(lesson, given)

    def learn(self, lesson: Lesson, given: Sequence[Experience]) -> Learnt:
        assert lesson.learn is not None
        learnt = lesson.learn(given)
        body = {**learnt.body, **({} if learnt.checkpoint is None else {"checkpoint": learnt.checkpoint.id})}
        kept = json.loads(json.dumps(body, allow_nan=False))
        self.done.append(StepRecord(run=RUN, step=len(self.done) + 1, at=0.0, body=kept))
        return learnt

    def practise(self, steps: int = 2) -> str:
        """Practice in which every second attempt does better; the checkpoint it led to."""
        for _ in range(steps):
            made = self.teach(lambda n: float(n % 2)).checkpoint
        assert made is not None
        return made.id

    def prove(self, before: float, after: float) -> Learnt:
        """Both versions on all batches."""
        while True:
            arm = "candidate" if "candidate" in self.lesson().name else "baseline"
            found = self.teach(lambda n, won=after if arm == "candidate" else before: won)  # type: ignore[misc]
            if "proposed" in found.body:
                return found


@pytest.fixture
def play(base: str, pupils: Callable[[], Pupil], tmp_path: Path) -> Callable[..., Play]:
    return lambda **improve: Play(base, pupils(), tmp_path, **improve)


def release(source: str) -> Release:
    return Release(
        id="default@3",
        project="default",
        policy="default",
        number=3,
        kind=PolicyKind.WEIGHTS,
        source=source,
        stage=Stage.LIVE,
        share=100,
        created_at=0.0,
        changed_at=0.0,
    )


def parameters(model: Any) -> list[float]:
    return [float(number) for tensor in model.state_dict().values() for number in tensor.flatten()]


def test_an_iteration_practises_and_proves_on_other_tasks_in_batches_for_both_versions(
    play: Callable[..., Play],
) -> None:
    run = play()
    names, asked = [], []
    for step in range(6):
        lesson = run.lesson()
        names.append(lesson.name)
        asked.append([(task.input["prompt"], task.split) for task in lesson.tasks])
        run.teach(lambda n, s=step: float(n % 2) if s < 2 else 0.5)  # type: ignore[misc]
    assert names == [
        "iteration 1: practice 1 of 2",
        "iteration 1: practice 2 of 2",
        "iteration 1: proving, baseline on tasks 1 to 4",
        "iteration 1: proving, candidate on tasks 1 to 4",
        "iteration 1: proving, baseline on tasks 5 to 6",
        "iteration 1: proving, candidate on tasks 5 to 6",
    ]
    assert asked[0] == [(f"train {n}", Split.TRAIN) for n in (0, 0, 1, 1)]
    assert asked[1] == [(f"train {n}", Split.TRAIN) for n in (2, 2, 3, 3)]
    assert asked[2] == asked[3] == [(f"val {n}", Split.VAL) for n in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert asked[4] == asked[5] == [(f"val {n}", Split.VAL) for n in (4, 4, 5, 5)]
    assert run.course.lesson(run.standing) is None
    assert [update.body.get("proposed") for update in run.done] == [None] * 5 + [True]


def test_a_file_shorter_than_a_step_is_gone_through_again_under_other_names(play: Callable[..., Play]) -> None:
    tasks = play(step_tasks=7).lesson().tasks
    assert len({task.name for task in tasks}) == 14
    assert [task.input["prompt"] for task in tasks[::2]] == [f"train {n % 5}" for n in range(7)]
    assert [task.metadata["group"] for task in tasks[10:12]] == ["practice-0-0-5"] * 2


def test_each_arm_is_measured_with_its_own_weights(play: Callable[..., Play], base: str) -> None:
    run = play(prove={"batch": 3, "seeds": 1})
    first = parameters(run.pupil.model)
    candidate = run.practise()
    weights = []
    for _ in range(4):
        run.lesson()
        weights.append(parameters(run.pupil.model))
        run.teach(lambda n: 0.5)
    taught = parameters(transformer(where(run.folder, candidate))[0])
    assert weights == [first, taught, first, taught]
    assert taught != first


def test_proving_stops_at_the_first_look_that_decides(play: Callable[..., Play], base: str) -> None:
    run = play(prove={"batch": 2, "seeds": 1, "alpha": 0.45, "max_safety_regression": 0.9})
    run.practise()
    found = run.prove(1.0, 0.0)
    assert found.body["verdict"]["outcome"] == "reject"
    looked = [update.body for update in run.done if "verdict" in update.body]
    assert 1 <= len(looked) < 3  # of three batches


def test_the_proposal_has_all_that_was_measured_and_found(play: Callable[..., Play], base: str) -> None:
    run = play(policy="tools", stage="canary")
    candidate = run.practise()
    asked = run.prove(0.0, 1.0).proposal
    assert asked is not None
    assert (asked.policy, asked.to, asked.share) == ("tools", Stage.CANARY, 5)
    assert (asked.baseline, asked.candidate) == (f"{SHELF}{base}", f"checkpoint:{candidate}")
    assert asked.manifest == {"run": RUN, "checkpoint": candidate, "grew_from": None, "steps": 2}
    samples = json.loads(asked.samples)
    assert (len(samples["baseline"]), len(samples["candidate"])) == (12, 12)
    evidence = asked.weigh("tools@1", "tools@2", "0" * 64)
    assert evidence.comparisons["success"].difference == 1.0
    assert evidence.audit is not None
    assert {one.of for one in evidence.audit if one.name == "required_fields"} == {8}  # of both steps


def test_what_was_live_when_proving_began_is_what_the_candidate_is_measured_against(
    play: Callable[..., Play], base: str
) -> None:
    run = play()
    run.practise()
    run.teach(lambda n: 0.0)
    run.live = release("checkpoint:another")  # promoted by hand, meanwhile: the loop will say so
    asked = run.prove(0.0, 1.0).proposal
    assert asked is not None
    assert asked.baseline == f"{SHELF}{base}"


def test_what_other_weights_measured_is_missing(play: Callable[..., Play]) -> None:
    """A lesson that was taken up after another version had gone live."""
    run = play()
    run.practise()
    lesson = run.lesson()
    versions = ["local/other@7", None, *[run.pupil.version] * 6]
    given = [attempt(task, n, 1.0, version=versions[n]) for n, task in enumerate(lesson.tasks)]
    body = run.learn(lesson, given).body
    assert [(one["task"], one["seed"]) for one in body["episodes"]][:2] == [("val-1", 1), ("val-2", 0)]
    assert len(body["episodes"]) == 7


def test_the_next_iteration_begins_with_what_is_live(play: Callable[..., Play], base: str) -> None:
    run = play(iterations=3)
    origin = parameters(run.pupil.model)
    first = run.practise()
    assert run.prove(1.0, 0.0).proposal is not None  # refused: nothing is live but what it came with
    run.live = release(f"{SHELF}{base}")
    assert run.lesson().name == "iteration 2: practice 1 of 2"
    assert parameters(run.pupil.model) == origin
    second = run.practise()
    found = run.prove(0.0, 1.0)
    assert found.proposal is not None
    assert found.proposal.baseline == f"{SHELF}{base}"
    run.live = release(f"checkpoint:{second}")  # promoted
    run.lesson()
    assert parameters(run.pupil.model) == parameters(transformer(where(run.folder, second))[0])
    third = run.practise()
    asked = run.prove(0.0, 1.0).proposal
    assert asked is not None
    assert (asked.baseline, asked.candidate) == (f"checkpoint:{second}", f"checkpoint:{third}")
    assert len({first, second, third}) == 3
    assert run.course.lesson(run.standing) is None


def test_an_iteration_has_a_trainer_of_its_own(play: Callable[..., Play]) -> None:
    """Else the second would go on at the pace that the first ended with."""
    run = play(iterations=2)
    run.practise()
    run.live = release(f"checkpoint:{run.done[-1].body['checkpoint']}")
    run.prove(0.0, 1.0)
    run.practise(1)
    assert run.pupil.trainer(run.standing, "practice 2", run.course._player).steps == 1


def test_another_process_goes_on_with_the_same_lesson_and_the_same_weights(
    play: Callable[..., Play], base: str, pupils: Callable[[], Pupil]
) -> None:
    run = play()
    for won in (lambda n: float(n % 2), lambda n: float(n % 2), lambda n: 0.5):
        other = Play(base, pupils(), run.folder)
        other.done, other.live = list(run.done), run.live
        assert other.lesson().tasks == run.lesson().tasks
        assert parameters(other.pupil.model) == parameters(run.pupil.model)
        run.teach(won)


def test_where_nothing_was_learnt_nothing_is_measured(play: Callable[..., Play]) -> None:
    run = play()
    for _ in range(2):
        assert run.teach(lambda n: 0.0).checkpoint is None
    assert run.lesson().tasks == []
    found = run.learn(run.lesson(), [])
    assert (found.body["proposed"], found.proposal) == (False, None)
    assert found.body["why"] == "nothing was learnt, so there is nothing to prove"
    assert run.course.lesson(run.standing) is None


def test_where_too_little_came_back_nothing_is_proposed(play: Callable[..., Play]) -> None:
    run = play(prove={"batch": 1, "seeds": 1})
    run.practise()
    found = run.prove(None, None)  # type: ignore[arg-type]
    assert (found.body["proposed"], found.proposal) == (False, None)
    assert found.body["why"] == "fewer than two tasks have a success of both versions"
    assert len(run.done) == 2 + 12


def test_a_batch_of_one_task_is_no_obstacle(play: Callable[..., Play]) -> None:
    run = play(prove={"batch": 1, "seeds": 1})
    run.practise()
    assert run.prove(0.0, 0.0).proposal is not None


def test_a_spent_budget_ends_the_practice_and_what_is_there_is_proved(play: Callable[..., Play]) -> None:
    run = play(iterations=2, budget_s=1e-9)
    run.practise(1)
    assert run.lesson().name == "iteration 1: proving, baseline on tasks 1 to 4"
    run.prove(0.0, 0.0)
    assert run.lesson().tasks == []  # the second iteration has learnt nothing
    run.learn(run.lesson(), [])
    assert run.course.lesson(run.standing) is None


def test_a_task_in_both_lists_is_put_aside_and_the_gate_is_told(
    play: Callable[..., Play],
) -> None:
    run = play()
    shared = [{"prompt": "val 3"}, *TRAIN[1:]]
    run.course._settings = run.settings.model_copy(update={"train": shared})
    run.practise()
    assert run.done[0].body["audit"]["rollouts"] == 2
    asked = run.prove(0.0, 1.0).proposal
    assert asked is not None
    evidence = asked.weigh("a@1", "a@2", "0" * 64)
    (aside,) = [one for one in evidence.audit or () if one.name == "put_aside"]
    assert aside.count == 2 and "held_out_leakage" in aside.detail
    assert not [reason for reason in asked.decide(evidence).reasons if reason.code.startswith("data_quality")]


# Following


def followed(n: int, won: float, run: str = "run-9", **fields: Any) -> Experience:
    task = Task(name=f"s{n}", input={"prompt": f"hello {n}"}, split=Split.TRAIN)
    return attempt(task, n, won, rollout=f"{run}/s{n}", run=run, asked=f"hello {n}", **fields)


def test_a_run_is_followed_with_a_critic_and_nothing_is_taken_twice(play: Callable[..., Play]) -> None:
    run = play(follow="run-9", follow_least=3)
    lesson = run.lesson()
    assert (lesson.tasks, lesson.left, lesson.follow) == ([], 0, Follow(run="run-9", least=3))
    found = run.learn(lesson, [followed(n, float(n % 2)) for n in range(4)])
    assert found.checkpoint is not None
    assert (found.checkpoint.algorithm, found.body["reward"]) == ("ppo", 0.5)
    assert found.body["followed"] == ["s0", "s1", "s2", "s3"]
    assert found.body["rl_optimizer"]["trajectories"] == 4
    again = run.lesson()
    assert again.name == "iteration 1: following 2 of 2"
    assert again.follow == Follow(run="run-9", least=3, taken=frozenset(["s0", "s1", "s2", "s3"]))
    run.learn(again, [])  # that run is over
    assert run.lesson().name.startswith("iteration 1: proving")


def test_what_is_followed_goes_through_the_data_gates(play: Callable[..., Play]) -> None:
    run = play(follow="run-9")
    given = [followed(n, float(n % 2)) for n in range(4)]
    secret = replace(followed(4, 1.0), spans=attempt_asking("the key AKIAIOSFODNN7EXAMPLE"))
    held_out = replace(followed(5, 1.0), spans=attempt_asking("val 3"))
    body = run.learn(run.lesson(), [*given, secret, held_out]).body
    assert {one["name"]: one["count"] for one in body["quality"] if one["count"]} == {"put_aside": 2}
    assert body["rl_optimizer"]["trajectories"] == 4
    assert body["followed"][-2:] == ["s4", "s5"]  # they are not looked at again


def attempt_asking(text: str) -> Any:
    return attempt(Task(name="x", input=1), 1, 1.0, asked=text).spans


# What cannot be


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"validate": []}, "validate: is empty; improvement is proved on"),
        ({"validate": VAL[:1]}, "validate: has one task; improvement is proved on"),
        ({"optimize": []}, "optimize: is empty; give tasks to learn from, or a run to follow"),
        ({"model": "openai/gpt"}, "model openai/gpt: its weights are out of reach"),
        ({"model": None, "agent": "a:b"}, "model None: its weights are out of reach"),
        (
            {"agent": "holdfast.workloads.tooluse.agent:agent", "improve": {"prove": {"primary": "reward"}}},
            r"improve.prove.reward_range = \[0, 1\]: the agent's rewards go from 0 to 1.1; a proof by reward",
        ),
    ],
)
def test_what_cannot_be_improved_is_refused_before_any_work(base: str, change: Mapping[str, Any], said: str) -> None:
    given = settings(base).record() | change
    with pytest.raises(BadInput, match=f"^{said}"):
        plan_for(OptimizeSettings.model_validate(given))


def test_a_line_that_another_model_serves_is_not_improved_with_this_one(play: Callable[..., Play]) -> None:
    run = play()
    run.live = release("shelf:oak")
    with pytest.raises(BadInput, match=r"^policy default: shelf:oak is live, and not this model; name another policy"):
        run.course.lesson(run.standing)
    run.live = release("resources:4")
    with pytest.raises(BadInput, match=r"^policy default: resources:4 is live, and has no weights to go on from; "):
        run.course.lesson(run.standing)


@pytest.mark.parametrize(
    ("prove", "signal", "said"),
    [
        ({}, "taste", "improve.prove.primary = success: no rollout has a signal called success or exact_match; "),
        ({"primary": "reward"}, "taste", r"improve.prove.reward_range = \[0, 1\]: the reward of run-1/.* is 2; "),
    ],
)
def test_what_cannot_be_measured_is_said_after_the_first_step(
    play: Callable[..., Play], prove: dict[str, Any], signal: str, said: str
) -> None:
    run = play(prove=prove)
    sheet = Sheet(signals=(Signal(name=signal, value=2.0, source="rule"),))
    with pytest.raises(BadInput, match=f"^{said}"):
        run.teach(lambda n: None, sheet=sheet)


def test_the_plan_is_of_its_policy_and_can_be_made_again_from_its_settings(base: str) -> None:
    plan = plan_for(settings(base, policy="tools", follow="run-1"))
    plan.close()
    assert (plan.kind, plan.policy, plan.model_ref) == ("improve", "tools", f"local/{base}")
    again = plan_for(OptimizeSettings.model_validate(json.loads(json.dumps(dict(plan.settings)))))
    again.close()
    assert again.settings == plan.settings


def test_what_is_asked_of_a_proof_reaches_the_weighing(base: str) -> None:
    given = {"alpha": 0.01, "primary": "reward", "reward_range": [-1, 2], "max_cost": 3, "max_seed_spread": 0.2}
    block = settings(base, prove=given).improve
    assert block is not None
    how = weighing(block.prove)
    assert (how.alpha, how.primary, how.reward_range, how.max_cost) == (0.01, "reward", (-1.0, 2.0), 3.0)
    assert how.seed_delta_spread == 0.2
