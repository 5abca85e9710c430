"""Errors say what, why and the remedy in one line, survive a process boundary, and have an exit code."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from holdfast.contracts.errors import (
    BadInput,
    BadRecord,
    Fault,
    HoldfastError,
    Interrupted,
    NotFound,
    QueueFull,
    StaleLease,
    StoreBusy,
    StoreError,
    boundary,
)

LINES = [
    # only what
    ({"what": "store"}, "store"),
    # what and why
    ({"what": "store", "why": "is locked"}, "store: is locked"),
    # all three
    ({"what": "store", "why": "is locked", "remedy": "wait"}, "store: is locked; wait"),
    # a remedy without a reason
    ({"what": "store", "remedy": "wait"}, "store; wait"),
]


@pytest.mark.parametrize(("parts", "line"), LINES)
def test_an_error_is_one_line(parts: dict[str, str], line: str) -> None:
    assert str(HoldfastError(**parts)) == line


CODES = [
    (HoldfastError, 1), (Fault, 1), (BadInput, 2), (BadRecord, 2), (NotFound, 2), (StoreError, 5), (StoreBusy, 5),
    (StaleLease, 5), (QueueFull, 5),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "code"), CODES)
def test_an_error_has_its_exit_code(kind: type[HoldfastError], code: int) -> None:
    assert kind("x").exit_code == code


def test_the_place_where_a_foreign_error_crossed_is_named() -> None:
    with pytest.raises(Fault) as crossed, boundary(Fault, "judge tone@3"):
        raise ValueError("no number in it")
    assert str(crossed.value) == "judge tone@3: ValueError: no number in it"
    assert isinstance(crossed.value.__cause__, ValueError)


def test_our_own_errors_cross_as_they_are() -> None:
    inner = BadRecord("span x")
    with pytest.raises(BadRecord) as crossed, boundary(Fault, "store"):
        raise inner
    assert crossed.value is inner


def test_an_interruption_is_no_error_and_crosses_every_boundary() -> None:
    assert not issubclass(Interrupted, Exception)
    with pytest.raises(Interrupted), boundary(Fault, "agent"):
        raise Interrupted


def test_nothing_wrong_crosses_nothing() -> None:
    with boundary(Fault, "agent"):
        pass


@pytest.mark.parametrize("again", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))], ids=["copy", "pickle"])
def test_an_error_survives_a_process_boundary(again: Callable[[StaleLease], StaleLease]) -> None:
    error = again(StaleLease("attempt a", why="ran out", remedy="claim again"))
    assert type(error) is StaleLease
    assert (error.what, error.why, error.remedy) == ("attempt a", "ran out", "claim again")
    assert str(error) == "attempt a: ran out; claim again"
