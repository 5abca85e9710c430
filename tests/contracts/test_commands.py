"""Commands say who and why; alerts stand until they are cleared."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from holdfast.contracts.commands import GUARDS, ORDERS, WANTS, Alert, Command, Overrides, Severity, check_why, guarded
from holdfast.contracts.errors import BadInput, BadRecord, IllegalMove
from holdfast.contracts.run import DesiredState, RunState


def test_overrides_are_of_their_kind() -> None:
    Overrides(enabled=False, update_interval_rollouts=1, max_rollouts_per_update=2**53 - 1)
    for wrong in ({"enabled": 1}, {"update_interval_rollouts": 0}, {"max_rollouts_per_update": True}):
        with pytest.raises(BadRecord):
            Overrides(**wrong)  # type: ignore[arg-type]


def test_a_reason_is_there_and_is_no_book() -> None:
    check_why("x", "y" * 2000)
    for wrong in ("", " \n", "y" * 2001):
        with pytest.raises(BadInput, match="x: why: is "):
            check_why("x", wrong)


NAN, INF = float("nan"), float("inf")


def command(**changes: Any) -> Command:
    return Command(
        **{"id": "c1", "action": "pause", "subject": "r", "who": "ann", "why": "noisy", "at": 1.0, **changes}
    )


def alert(**changes: Any) -> Alert:
    return Alert(**{"code": "stalled", "severity": Severity.WARNING, "message": "no claims", "at": 5.0, **changes})


BAD_COMMANDS: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "command : id: must not be blank"),
    ({"action": " "}, "command c1: action: must not be blank"),
    ({"subject": ""}, "command c1: subject: must not be blank"),
    ({"who": ""}, "command c1: who: must not be blank"),
    ({"why": "\n"}, "command c1: why: must not be blank"),
    ({"id": "a\tb"}, "command 'a\\tb': id: must be at most 100 letters to be seen"),
    ({"id": "x" * 101}, f"command '{'x' * 100}': id: must be at most 100 letters to be seen"),
    ({"at": NAN}, "command c1: at = nan: must be finite"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_COMMANDS)
def test_a_command_without_its_who_what_and_why_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        command(**changes)
    assert str(refusal.value) == message


BAD_ALERTS: list[tuple[dict[str, Any], str]] = [
    ({"code": " "}, "alert ' ': code and message 'no claims' must not be blank"),
    ({"message": ""}, "alert 'stalled': code and message '' must not be blank"),
    ({"at": INF}, "alert stalled: times inf to None are not finite and in order"),
    # cleared before it was raised
    ({"cleared_at": 4.0}, "alert stalled: times 5.0 to 4.0 are not finite and in order"),
    ({"cleared_at": INF}, "alert stalled: times 5.0 to inf are not finite and in order"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_ALERTS)
def test_an_alert_that_nobody_could_read_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        alert(**changes)
    assert str(refusal.value) == message


def test_a_command_may_bring_arguments_and_an_alert_may_be_cleared_at_once() -> None:
    assert command(args={"n": 3}).args == {"n": 3}
    assert alert(cleared_at=5.0).cleared_at == 5.0


def test_there_are_three_severities() -> None:
    assert list(Severity) == ["critical", "warning", "info"]


def test_the_table_of_orders_has_a_letter_for_every_state_every_wish_and_every_order() -> None:
    assert set(GUARDS) == set(RunState)
    assert all(set(row) == set(DesiredState) for row in GUARDS.values())
    assert {len(letters) for row in GUARDS.values() for letters in row.values()} == {len(ORDERS)}
    assert set(WANTS.values()) == set(DesiredState)


@pytest.mark.parametrize(("state", "wanted"), list(product(RunState, DesiredState)), ids=str)
def test_what_a_run_may_be_told(state: RunState, wanted: DesiredState) -> None:
    """In words, against the table."""
    for order in ORDERS:
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
