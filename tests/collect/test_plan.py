"""A plan says what a run does, and cannot be changed on the way."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from holdfast.collect.plan import Plan
from holdfast.collect.pool import Pace
from holdfast.collect.seats import Seat
from holdfast.contracts.rollout import Task


def no_seat() -> Seat:
    raise NotImplementedError


def test_a_plan_has_no_limits_that_nobody_asked_for_and_cannot_be_changed() -> None:
    plan = Plan(
        tasks=[Task(name="t", input=1)],
        resources={},
        model_ref="m",
        settings={},
        seats=no_seat,
        close=lambda: None,
        workers=2,
        pace=Pace(),
    )
    assert (plan.queue_limit, plan.timeout_s, plan.seed) == (None, None, 0)
    with pytest.raises(FrozenInstanceError):
        plan.workers = 3  # type: ignore[misc]
