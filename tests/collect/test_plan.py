"""A plan says what a run does, and cannot be changed on the way; its course says what comes next."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from holdfast.collect.plan import Lesson, Plan, Standing, once
from holdfast.collect.pool import Pace
from holdfast.collect.seats import Seat
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import LearnUpdate


def no_seat() -> Seat:
    raise NotImplementedError


def test_a_plan_has_no_limits_that_nobody_asked_for_and_cannot_be_changed() -> None:
    plan = Plan(
        course=once([Task(name="t", input=1)]),
        resources={},
        model_ref="m",
        settings={},
        seats=no_seat,
        close=lambda: None,
        workers=2,
        pace=Pace(),
    )
    assert (plan.kind, plan.queue_limit, plan.timeout_s, plan.seed) == ("optimize", None, None, 0)
    with pytest.raises(FrozenInstanceError):
        plan.workers = 3  # type: ignore[misc]


def test_a_course_of_one_lesson_is_over_once_that_lesson_is_done() -> None:
    tasks = [Task(name="a", input=1), Task(name="b", input=2)]
    course, begun = once(tasks), Standing(run="run-1", folder=Path("there"), done=[])
    assert course(begun) == Lesson(name="rollouts", tasks=tasks)
    assert course(begun) == course(begun)  # asked again, as after a restart, it says the same
    over = LearnUpdate(run="run-1", step=1, at=0.0, body={"lesson": "rollouts"})
    assert course(Standing(run="run-1", folder=Path("there"), done=[over])) is None


def test_a_lesson_may_have_nothing_to_run_and_nothing_to_learn() -> None:
    lesson = Lesson(name="a pause")
    assert (lesson.tasks, lesson.learn) == ((), None)
