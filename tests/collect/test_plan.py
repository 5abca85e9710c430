"""A plan says what a run does, and cannot be changed on the way; its course says what comes next."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from holdfast.collect.plan import Follow, Learnt, Lesson, Plan, Proposal, Standing, once

from holdfast.collect.pool import Pace
from holdfast.collect.seats import Seat
from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import StepRecord


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
    over = StepRecord(run="run-1", step=1, at=0.0, body={"lesson": "rollouts"})
    assert course(Standing(run="run-1", folder=Path("there"), done=[over])) is None


def test_a_lesson_may_have_nothing_to_run_and_nothing_to_learn() -> None:
    lesson = Lesson(name="a pause")
    assert (lesson.tasks, lesson.learn, lesson.follow) == ((), None, None)


def test_what_is_learnt_is_not_proposed_unless_a_lesson_says_so() -> None:
    assert Learnt(body={}).proposal is None
    follow = Follow(run="run-1", least=2)
    assert follow.taken == frozenset()


def test_an_open_gate_leads_into_service_unless_another_stage_is_named() -> None:
    reason = Reason(code="promotion_allowed", text="because")
    asked = Proposal(
        policy="p",
        kind=PolicyKind.WEIGHTS,
        baseline="shelf:sprout",
        candidate="checkpoint:c",
        manifest={},
        samples=b"",
        weigh=lambda baseline, candidate, samples: Evidence(
            policy="p", baseline=baseline, candidate=candidate, suite="s", primary="success", episodes=0
        ),
        decide=lambda evidence: Decision(open=True, reasons=(reason,)),
        publish=lambda evidence, decision: {},
    )
    assert (asked.to, asked.share) == (Stage.LIVE, None)
    with pytest.raises(FrozenInstanceError):
        asked.to = Stage.SHADOW  # type: ignore[misc]
