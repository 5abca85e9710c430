"""Commands say who and why; alerts stand until they are cleared."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.orders import Alert, Command, Severity

NAN, INF = float("nan"), float("inf")


def command(**changes: Any) -> Command:
    return Command(**{"id": "c1", "action": "pause", "run": "r", "who": "ann", "why": "noisy", "at": 1.0, **changes})


def alert(**changes: Any) -> Alert:
    return Alert(**{"code": "stalled", "severity": Severity.WARNING, "message": "no claims", "at": 5.0, **changes})


BAD_COMMANDS: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "command : id: must not be blank"),
    ({"action": " "}, "command c1: action: must not be blank"),
    ({"run": ""}, "command c1: run: must not be blank"),
    ({"who": ""}, "command c1: who: must not be blank"),
    ({"why": "\n"}, "command c1: why: must not be blank"),
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
