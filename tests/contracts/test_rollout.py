"""The life of rollouts and attempts is one table, and a task says how it may be tried."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, IllegalMove
from holdfast.contracts.rollout import (
    ATTEMPT_TRANSITIONS,
    DONE,
    OPEN,
    TRANSITIONS,
    AttemptState,
    Backoff,
    OutcomeKind,
    RolloutState,
    Task,
    move,
    outcome_kind,
    statuses_of,
)

LEGAL = {
    ("queuing", "running"),  # claimed
    ("queuing", "cancelled"),
    ("requeuing", "queuing"),  # its backoff is over
    ("requeuing", "cancelled"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "dead"),  # no tries left
    ("running", "requeuing"),  # another try, later
    ("running", "queuing"),  # handed back unharmed
    ("running", "cancelled"),
    ("failed", "queuing"),  # an operator's requeue
    ("dead", "queuing"),
    ("cancelled", "queuing"),
}


@pytest.mark.parametrize(("old", "new"), list(product(RolloutState, RolloutState)))
def test_only_the_moves_of_the_table_are_made(old: RolloutState, new: RolloutState) -> None:
    if (old, new) in LEGAL:
        assert move("r", old, new) is new
    else:
        with pytest.raises(IllegalMove, match=rf"^rollout r: cannot go from {old} to {new}; from {old} it may go to "):
            move("r", old, new)


def test_an_illegal_move_says_what_would_have_been_allowed() -> None:
    with pytest.raises(IllegalMove) as refusal:
        move("a/t", RolloutState.QUEUING, RolloutState.SUCCEEDED)
    line = "rollout a/t: cannot go from queuing to succeeded; from queuing it may go to cancelled, running"
    assert str(refusal.value) == line


def test_success_is_final() -> None:
    with pytest.raises(IllegalMove, match=r"it may go to nothing: it is final$"):
        move("r", RolloutState.SUCCEEDED, RolloutState.QUEUING)


def test_every_state_has_its_row_and_is_either_open_or_done() -> None:
    assert set(TRANSITIONS) == set(RolloutState)
    assert set(ATTEMPT_TRANSITIONS) == set(AttemptState)
    assert {"queuing", "requeuing", "running"} == OPEN
    assert {"succeeded", "failed", "dead", "cancelled"} == DONE


def test_an_attempt_ends_once() -> None:
    ends = set(AttemptState) - {AttemptState.RUNNING}
    assert ATTEMPT_TRANSITIONS[AttemptState.RUNNING] == ends
    assert all(not ATTEMPT_TRANSITIONS[state] for state in ends)


SHAPE = "must be 1 to 200 characters without '/' or outer spaces"
REFUSED: list[tuple[dict[str, Any], str]] = [
    # no name
    ({"name": ""}, f"task name '': {SHAPE}"),
    # outer spaces
    ({"name": " a"}, f"task name ' a': {SHAPE}"),
    # the run's own separator
    ({"name": "a/b"}, f"task name 'a/b': {SHAPE}"),
    # too long
    ({"name": "x" * 201}, f"task name '{'x' * 201}': {SHAPE}"),
    # never tried
    ({"max_attempts": 0}, "task t: max_attempts = 0: must be at least 1"),
    # no time at all
    ({"timeout_s": 0.0}, "task t: timeout_s = 0.0: must be a finite number above 0"),
    # endless time is written as None
    ({"timeout_s": float("inf")}, "task t: timeout_s = inf: must be a finite number above 0"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_task_that_cannot_be_tried_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        Task(**{"name": "t", "input": None, **changes})
    assert str(refusal.value) == message


def test_the_edges_of_a_task_are_allowed() -> None:
    Task(name="x" * 200, input=None, max_attempts=1, timeout_s=0.001)
    Task(name="a b", input=None, priority=-1)


WAITS = [
    # faults, chance, seconds: 1, 2, 4 and then the cap of 5, of which chance leaves at least a half
    (1, 0.0, 0.5),
    (1, 0.5, 0.75),
    (2, 0.0, 1.0),
    (3, 0.0, 2.0),
    (4, 0.0, 2.5),
    (4, 0.5, 3.75),
    (10_000, 0.0, 2.5),
]


@pytest.mark.parametrize(("faults", "chance", "seconds"), WAITS)
def test_a_wait_doubles_up_to_its_cap(faults: int, chance: float, seconds: float) -> None:
    assert Backoff(initial_s=1.0, cap_s=5.0).delay_s(faults, chance) == seconds


BAD_WAITS = [
    (-1.0, 5.0, "backoff -1.0 to 5.0 s: must be 0 <= initial <= cap, and finite"),
    (6.0, 5.0, "backoff 6.0 to 5.0 s: must be 0 <= initial <= cap, and finite"),
    (1.0, float("inf"), "backoff 1.0 to inf s: must be 0 <= initial <= cap, and finite"),
]


@pytest.mark.parametrize(("initial", "cap", "message"), BAD_WAITS)
def test_a_wait_that_never_ends_is_refused(initial: float, cap: float, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        Backoff(initial_s=initial, cap_s=cap)
    assert str(refusal.value) == message


def test_a_wait_may_be_nothing_or_always_the_same() -> None:
    assert Backoff(initial_s=0.0, cap_s=0.0).delay_s(3, 0.9) == 0.0
    assert Backoff(initial_s=2.0, cap_s=2.0).delay_s(9, 0.0) == 1.0


@pytest.mark.parametrize(
    ("status", "outcome", "kind"),
    [
        (RolloutState.SUCCEEDED, "right", "right"),
        (RolloutState.SUCCEEDED, "wrong", "wrong"),
        (RolloutState.SUCCEEDED, None, "not_checked"),  # to answer is not to be right
        (RolloutState.FAILED, "wrong", "failed"),
        (RolloutState.FAILED, None, "failed"),
        (RolloutState.DEAD, None, "no_answer"),
        (RolloutState.CANCELLED, None, "no_answer"),
        (RolloutState.QUEUING, None, None),
        (RolloutState.REQUEUING, None, None),
        (RolloutState.RUNNING, None, None),
    ],
)
def test_what_came_of_a_rollout(status: RolloutState, outcome: str | None, kind: str | None) -> None:
    assert outcome_kind(status, outcome) == kind
    assert kind is None or status in statuses_of(OutcomeKind(kind))
