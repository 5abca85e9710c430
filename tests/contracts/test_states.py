"""What may become of rollouts, releases and runs, who may tell them, and which processes live: tables, each by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from itertools import product

import pytest

from holdfast.contracts.commands import GUARDS, RUN_COMMANDS, WANTS, Role, Severity, check_why, guarded
from holdfast.contracts.errors import BadInput, IllegalMove
from holdfast.contracts.release import MOVES, SHARES, PolicyKind, Release, Stage, check_name
from holdfast.contracts.release import move as move_release
from holdfast.contracts.rollout import (
    ATTEMPT_TRANSITIONS,
    DONE,
    OPEN,
    TRANSITIONS,
    AttemptState,
    Backoff,
    OutcomeKind,
    RolloutState,
    move,
    outcome_kind,
    statuses_of,
)
from holdfast.contracts.run import DesiredState, Process, RunState, is_alive, is_gone, this_process

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
        return
    allowed = ", ".join(sorted(to for by, to in LEGAL if by == old)) or "nothing: it is final"
    with pytest.raises(IllegalMove) as refusal:
        move("r", old, new)
    assert str(refusal.value) == f"rollout r: cannot go from {old} to {new}; from {old} it may go to {allowed}"


def test_every_state_has_its_row_is_open_or_done_and_an_attempt_ends_once() -> None:
    assert set(TRANSITIONS) == set(RolloutState) and set(ATTEMPT_TRANSITIONS) == set(AttemptState)
    assert {"queuing", "requeuing", "running"} == OPEN
    assert {"succeeded", "failed", "dead", "cancelled"} == DONE
    ends = set(AttemptState) - {AttemptState.RUNNING}
    assert ATTEMPT_TRANSITIONS[AttemptState.RUNNING] == ends
    assert all(not ATTEMPT_TRANSITIONS[state] for state in ends)


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
    assert Backoff(initial_s=0.0, cap_s=0.0).delay_s(faults, chance) == 0.0
    assert Backoff(initial_s=2.0, cap_s=2.0).delay_s(faults, 0.0) == 1.0


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


# Releases -------------------------------------------------------------------------------------------------------------

S = Stage


@pytest.mark.parametrize(("old", "new"), list(product(Stage, repeat=2)))
def test_a_release_moves_exactly_as_the_table_says(old: Stage, new: Stage) -> None:
    given = {"id": "sprout@3", "project": "p", "policy": "sprout", "number": 3, "source": "shelf:sprout"}
    release = Release(**given, kind=PolicyKind.WEIGHTS, stage=old, created_at=1.0, changed_at=1.0)  # type: ignore[arg-type]
    if new in MOVES[old]:
        assert move_release(release, new) is new
        return
    allowed = ", ".join(sorted(MOVES[old]))
    with pytest.raises(IllegalMove) as refusal:
        move_release(release, new)
    assert str(refusal.value) == f"release sprout@3: cannot go from {old} to {new}; from {old} it may go to {allowed}"


def test_who_was_never_live_is_rejected_and_who_was_is_rolled_back_and_both_may_begin_again() -> None:
    """A canary answers people: it is taken back, and never merely refused."""
    assert set(MOVES) == set(Stage) and all(MOVES.values())  # no dead end
    assert [stage for stage in Stage if S.REJECTED in MOVES[stage]] == [S.CANDIDATE, S.SHADOW]
    assert [stage for stage in Stage if S.ROLLED_BACK in MOVES[stage]] == [S.CANARY, S.LIVE]
    assert MOVES[S.ROLLED_BACK] == MOVES[S.REJECTED] == {S.CANDIDATE}
    assert MOVES[S.RETIRED] == {S.LIVE}
    assert SHARES == (5, 25, 50, 100)


BLANK, HIDDEN = "must not be blank, nor begin or end with a blank", "has characters in it that cannot be seen"
NAMES = [
    ("", BLANK),
    (" a", BLANK),
    ("a\u3000", BLANK),
    ("a\x00b", HIDDEN),
    ("a\nb", HIDDEN),
    ("a\x1b[31m", HIDDEN),
    ("a\u202eb", HIDDEN),  # turns the text round
    ("a\u2066b", HIDDEN),
    ("a\u200bb", HIDDEN),  # as wide as nothing
    ("a\ud800", HIDDEN),
    ("a@1", "'@' comes before the number of a release"),
]


def test_a_name_that_could_be_taken_for_another_is_refused() -> None:
    for name in ("a", "tools", "my tools 2", "Grüße", "日本語", "x" * 100, "a.b/c-d_e:f"):
        check_name("policy", name)
    long = "x" * 101
    for name, shown, why in (
        *((name, repr(name), why) for name, why in NAMES),
        (long, f"'{long[:100]}…'", "has 101 characters, 100 at most are allowed"),
    ):
        with pytest.raises(BadInput) as refused:
            check_name("policy", name)
        assert str(refused.value) == f"policy {shown}: {why}; give it a plain name"


# Runs and who may tell them -------------------------------------------------------------------------------------------


def test_the_states_and_severities_are_the_documented_ones() -> None:
    assert list(RunState) == ["running", "completed", "failed", "cancelled", "timed_out"]
    assert list(DesiredState) == ["running", "paused", "frozen", "draining", "cancelled"]
    assert list(Severity) == ["critical", "warning", "info"]


def test_a_role_may_do_what_it_and_those_before_it_may() -> None:
    may = {(role.value, needed.value) for role in Role for needed in Role if role.may(needed)}
    admin = {("admin", "viewer"), ("admin", "operator"), ("admin", "admin")}
    assert may == {("viewer", "viewer"), ("operator", "viewer"), ("operator", "operator"), *admin}


def test_a_reason_is_there_and_is_no_book() -> None:
    check_why("x", "y" * 2000)
    for wrong in ("", " \n", "y" * 2001):
        with pytest.raises(BadInput, match="x: why: is "):
            check_why("x", wrong)


def test_the_table_of_orders_has_a_letter_for_every_state_every_wish_and_every_order() -> None:
    assert set(GUARDS) == set(RunState)
    assert all(set(row) == set(DesiredState) for row in GUARDS.values())
    assert {len(letters) for row in GUARDS.values() for letters in row.values()} == {len(RUN_COMMANDS)}
    assert set(WANTS.values()) == set(DesiredState)


@pytest.mark.parametrize(("state", "wanted"), list(product(RunState, DesiredState)), ids=str)
def test_what_a_run_may_be_told(state: RunState, wanted: DesiredState) -> None:
    """In words, against the table."""
    for order in RUN_COMMANDS:
        if wanted is DesiredState.CANCELLED and not (order == "cancel" or (order == "recover" and state == "running")):
            expected = "run r: is cancelled; start a new run"  # cancelled is for good
        elif state is RunState.COMPLETED:
            expected = "run r: is completed; there is nothing left to order"
        elif order == "recover":
            expected = "?" if state is RunState.RUNNING else "="  # what has ended holds nothing
        elif WANTS[order] is wanted and (state is RunState.RUNNING or order == "cancel"):
            expected = "="
        elif state is not RunState.RUNNING and order != "cancel":
            expected = f"run r: is {state}, not running; the command that began it takes it up again"
        else:
            expected = "+"
        try:
            found = guarded("r", state, wanted, order)
        except IllegalMove as refusal:
            found = str(refusal)
        assert found == expected, order


# Processes ------------------------------------------------------------------------------------------------------------

CHILD = (
    "import dataclasses, json, sys; from holdfast.contracts.run import this_process; "
    "print(json.dumps(dataclasses.asdict(this_process())), flush=True); sys.stdin.read()"
)


def test_a_process_that_was_killed_is_gone_and_one_that_lives_is_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        process = Process(**json.loads(child.stdout.readline()))
        assert process.pid == child.pid and process.machine == this_process().machine
        assert is_alive(process.pid) and not is_gone(process)
        child.kill()
    assert not is_alive(process.pid) and is_gone(process)
    assert not is_gone(replace(process, machine="another one"))  # nobody here knows
    assert not is_gone(this_process()) and is_alive(1)  # the last is somebody else's, as a rule


def test_a_process_that_has_the_number_of_another_is_not_taken_for_it() -> None:
    me = this_process()
    assert not is_gone(me) and me.started
    assert is_gone(replace(me, started="1"))  # its number was given again
    assert not is_gone(replace(me, started=""))  # noted before start times were
    assert not is_gone(replace(me, machine=f"{me.machine}x", started="1"))  # of another namespace: nobody can tell
