"""The trial of safety: its arms, what a lesson does, and what the runs of several seeds come to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.plan import Standing
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import Sheet, Signal
from holdfast.contracts.run import StepRecord
from holdfast.learn.constrain import from_dict
from holdfast.workloads.pupil import Pupil
from holdfast.workloads.safety import (
    ARMS,
    CONSTRAINED,
    UNCONSTRAINED,
    Course,
    Outcome,
    Trial,
    outcome,
    plan_for,
    quick,
    rates,
    weigh,
)
from tests.workloads.scene import RUN, attempt, tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def pupil(base: str) -> Iterator[Pupil]:
    made = Pupil(base, seed=0, slots=2)
    yield made
    made.close()


def test_an_arm_is_known_by_its_name() -> None:
    assert Trial(arm=CONSTRAINED).constraint is not None and Trial(arm=CONSTRAINED).penalty == 0.0
    assert Trial(arm=UNCONSTRAINED).constraint is None and Trial(arm=UNCONSTRAINED).penalty == 0.0
    assert [Trial(arm=arm).penalty for arm in ARMS] == [0.0, 0.05, 0.5, 2.0, 0.0]
    with pytest.raises(BadInput, match="is unknown; use one of unconstrained"):
        Trial(arm="penalty-7")


def test_a_plan_keeps_its_trial(base: str) -> None:
    trial = Trial(arm=CONSTRAINED, model=base, workers=2)
    plan = plan_for(trial)
    assert (plan.kind, dict(plan.settings)) == ("safety", asdict(trial))
    plan.close()


class Run:
    """A course whose rollouts are made up: `cost` of each attempt of a group, by its place in it."""

    def __init__(self, pupil: Pupil, folder: Path, trial: Trial) -> None:
        self.course, self.pupil, self.folder, self.done = Course(trial, pupil), pupil, folder, list[StepRecord]()

    def step(self, costs: tuple[float, ...] = ()) -> dict[str, Any] | None:
        standing = Standing(run=RUN, folder=self.folder, done=list(self.done))
        lesson = self.course.lesson(standing)
        if lesson is None:
            return None
        assert lesson.learn is not None
        made = [self._attempt(task, place, costs[place % len(costs)]) for place, task in enumerate(lesson.tasks)]
        learnt = lesson.learn(made)
        body = dict(learnt.body) | ({} if learnt.checkpoint is None else {"checkpoint": learnt.checkpoint.id})
        self.done.append(StepRecord(run=RUN, step=len(self.done) + 1, at=0.0, body=body))
        return body

    def _attempt(self, task: Any, place: int, cost: float) -> Experience:
        sheet = Sheet(
            signals=(
                Signal(name="success", value=1.0, source="r"),
                Signal(name="safety_cost", value=cost, weight=0.0, source="r"),
            )
        )
        return attempt(task, place, 1.0, version=self.pupil.version, sheet=sheet)


def trial(arm: str, base: str) -> Trial:
    return quick(Trial(arm=arm, model=base, workers=2))


def test_the_course_warms_up_practises_and_measures(pupil: Pupil, base: str, tmp_path: Path) -> None:
    run = Run(pupil, tmp_path, trial(CONSTRAINED, base))
    warm = run.step()
    assert warm is not None and warm["phase"] == "warm-up" and warm["loss"] > 0.0
    first, second = run.step((1.0, 0.0)), run.step((1.0, 0.0))
    assert first is not None and second is not None
    assert (first["success"], first["cost"]) == (1.0, 0.5)
    assert first["constraint"]["mean_cost"] == 0.5 and first["audit"]["constraint"] == first["constraint"]
    lam = [body["constraint"]["multiplier"]["value"] for body in (first, second)]
    assert 0.0 < lam[0] < lam[1]
    last = run.step((0.0,))
    assert last is not None and (last["phase"], last["cost"], last["of"]) == ("after", 0.0, 24)
    assert run.step() is None


def test_equal_successes_teach_nothing_without_a_constraint(pupil: Pupil, base: str, tmp_path: Path) -> None:
    run = Run(pupil, tmp_path, trial(UNCONSTRAINED, base))
    run.step()
    body = run.step((1.0, 0.0))
    assert body is not None and "constraint" not in body and "update" not in body
    assert set(body["audit"]["counts"]) == {"zero_variance_group"}


def test_a_resumed_run_has_the_multiplier_and_the_weights_of_the_straight_one(base: str, tmp_path: Path) -> None:
    def weights(is_stopped: bool) -> tuple[dict[str, Any], Any]:
        folder = tmp_path / str(is_stopped)
        pupil = Pupil(base, seed=0, slots=2)
        run = Run(pupil, folder, trial(CONSTRAINED, base))
        run.step()
        run.step((1.0, 0.0))
        if is_stopped:  # another process, which has only what is on disk and on record
            pupil.close()
            pupil = Pupil(base, seed=0, slots=2)
            run.pupil, run.course = pupil, Course(trial(CONSTRAINED, base), pupil)
        body = run.step((1.0, 0.0, 0.0))
        pupil.close()
        assert body is not None
        return body["constraint"]["multiplier"], pupil.model.state_dict()

    straight, resumed = weights(False), weights(True)
    assert from_dict(straight[0]) == from_dict(resumed[0])
    assert all(tensor.equal(resumed[1][name]) for name, tensor in straight[1].items())


def test_what_was_not_measured_is_missing() -> None:
    assert rates([]) == {"success": None, "cost": None, "of": 0}


def ended(arm: str, seed: int, success: float, cost: float) -> Outcome:
    trial = Trial(arm=arm, seed=seed)
    return Outcome(
        trial=trial, run=f"r-{arm}-{seed}", success=success, cost=cost, of=100, successes=[], costs=[], multipliers=[]
    )


def test_what_the_arms_come_to_by_hand() -> None:
    made = [ended(arm, seed, 0.9, 1.0) for arm in ARMS[:-1] for seed in (0, 1)]
    made += [ended(CONSTRAINED, 0, 0.9, 0.02), ended(CONSTRAINED, 1, 0.82, 0.06)]
    made += [ended(UNCONSTRAINED, 2, 0.1, 1.0)]  # a seed that lacks arms does not count
    found = weigh(made)
    assert found is not None and found.seeds == [0, 1] and found.attempts == 200
    held = found.arms[CONSTRAINED]
    assert (held.cost, held.worst_cost, held.success) == (pytest.approx(0.04), 0.06, pytest.approx(0.86))
    assert held.kept == pytest.approx(0.86 / 0.9) and held.is_held and held.is_kept and found.is_shown
    assert not found.arms[UNCONSTRAINED].is_held
    assert held.success_interval.low < 0.86 < held.success_interval.high
    assert weigh([ended(CONSTRAINED, 0, 1.0, 0.0)]) is None


def test_an_outcome_is_read_from_the_record() -> None:
    def update(step: int, **body: Any) -> StepRecord:
        return StepRecord(run="run-9", step=step, at=0.0, body=body)

    held = {"multiplier": {"value": 0.5}}
    done = [
        update(1, phase="warm-up"),
        update(2, phase="grpo", success=0.5, cost=0.4, constraint=held),
        update(3, phase="after", success=0.75, cost=0.01, of=8),
    ]
    found = outcome(Trial(arm=CONSTRAINED), done)
    assert found is not None
    assert (found.run, found.success, found.cost, found.of) == ("run-9", 0.75, 0.01, 8)
    assert (found.successes, found.costs, found.multipliers) == ([0.5], [0.4], [0.5])
    assert outcome(Trial(arm=CONSTRAINED), done[:2]) is None
