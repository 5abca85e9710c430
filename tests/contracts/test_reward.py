"""Signals are finite and say where they come from; a sheet without signals has no total."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.reward import Sheet, Signal


def signal(**changes: Any) -> Signal:
    return Signal(**{"name": "match", "value": 1.0, "source": "rule:match", **changes})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": " "}, "signal ' ': name and source 'rule:match' must not be blank"),
    ({"source": ""}, "signal 'match': name and source '' must not be blank"),
    ({"value": float("nan")}, "signal match: value nan and weight 1.0 must be finite"),
    ({"weight": float("inf")}, "signal match: value 1.0 and weight inf must be finite"),
    ({"turn": -1}, "signal match: turn = -1: must be between 0 and 2147483647"),
    ({"turn": 2**31}, "signal match: turn = 2147483648: must be between 0 and 2147483647"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_signal_that_cannot_be_added_up_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        signal(**changes)
    assert str(refusal.value) == message


def test_the_first_turn_is_zero() -> None:
    assert signal(turn=0).turn == 0


def test_a_total_is_the_weighted_sum() -> None:
    assert Sheet(signals=(signal(value=2.0, weight=0.5), signal(value=-1.0, turn=0))).total == 0.0


def test_nothing_measured_is_not_zero() -> None:
    assert Sheet(signals=()).total is None
