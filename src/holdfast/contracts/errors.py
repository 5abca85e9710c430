"""The vocabulary of failure: each error says what failed, why, and the remedy, in one line.

A failed rollout is data and is recorded; a broken invariant is a crash and is not caught. Who prints an
error, and with which exit code, is the command line's business: the codes live here so that they are one list.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache, partial
from math import inf, isfinite
from typing import Any


def reason_of(error: OSError) -> str:
    """What the operating system says, without the words that libraries add."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else error.strerror or str(error)


class HoldfastError(Exception):
    """Something went wrong that a person can act upon."""

    exit_code = 1

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what, self.why, self.remedy = what, why, remedy
        super().__init__(what, why, remedy)

    def __str__(self) -> str:
        line = f"{self.what}: {self.why}" if self.why else self.what
        return f"{line}; {self.remedy}" if self.remedy else line

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled by position, and ours take their parts by name: they must cross to another process.
        return partial(type(self), why=self.why, remedy=self.remedy), (self.what,)


class BadInput(HoldfastError):
    """A file, flag or value that cannot be used; nothing was started."""

    exit_code = 2


class BadRecord(BadInput):
    """A record that breaks its own contract, or one of a version this build does not know."""


HEX = {"pattern": "^[0-9a-f]{64}$"}  # of a sha256
SHARE = {"minimum": 0, "maximum": 1}
COUNT = {"minimum": 0}


LATER: Mapping[str, Any] = {"x-later": True}  # of a field: not written where it has its default; older records lack it
_FLOATS = ("float", "float | None")


def check_fields(where: str, record: Any, *, filled: Iterable[str] = ()) -> None:
    """BadRecord for the first field that is blank, not finite or outside the bounds that it declares; None passes.

    The bounds are the JSON Schema keywords in a field's metadata, so that schema and record refuse the same."""
    for name in filled:
        value = getattr(record, name)
        if value is not None and not value.strip():
            raise BadRecord(f"{where}: {name}", why="must not be blank")
    kind: Any = type(record)
    for name, holds, why in _bounds(kind):
        value = getattr(record, name)
        if value is not None and not holds(value):
            raise BadRecord(f"{where}: {name} = {value!r:.80}", why=why)


@cache
def _bounds(cls: Any) -> list[tuple[str, Callable[[Any], Any], str]]:
    """The name of each number and of each field with a bound, whether a value is within it, and the error."""
    found = [
        (f.name, {name: rule for name, rule in f.metadata.items() if name not in LATER}, f.type in _FLOATS)
        for f in fields(cls)
    ]
    return [(name, _within(rules), _why(rules, is_float)) for name, rules, is_float in found if rules or is_float]


def _within(rules: Mapping[str, Any]) -> Callable[[Any], Any]:
    if "pattern" in rules:
        return re.compile(rules["pattern"]).fullmatch
    if "minItems" in rules:
        least, is_set = rules["minItems"], "uniqueItems" in rules
        return lambda value: len(value) >= least and (not is_set or len(set(value)) == len(value))
    if not rules:
        return isfinite  # also of True and False: a scorer may say right or wrong
    low, high = rules.get("minimum", -inf), rules.get("maximum", inf)
    above, below = rules.get("exclusiveMinimum", -inf), rules.get("exclusiveMaximum", inf)
    return lambda value: low <= value <= high and above < value < below and value is not True and value is not False


def _why(rules: Mapping[str, Any], is_number: bool) -> str:
    if "pattern" in rules:
        return "must be 64 lower-case hex digits"
    if "minItems" in rules:
        return f"needs at least {rules['minItems']}{', each of them once' if 'uniqueItems' in rules else ''}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    ends = [f"{word} {rules[name]}" for name, word in words.items() if name in rules]
    return "must be " + " and ".join([*(["finite"] if is_number else []), *ends])


class StoreError(HoldfastError):
    """The store cannot do what was asked; what it had acknowledged is still there."""

    exit_code = 5


class StoreBusy(StoreError):
    """Another process kept the store locked for longer than we were willing to wait."""


class StoreFull(StoreError):
    """The disk is full: nothing of this write was kept."""


class StoreCorrupt(StoreError):
    """The file is damaged, or is not a store."""


class StoreTooNew(StoreError):
    """The store was written by a newer version."""


class Lost(StoreError):
    """A saved artifact that a run would go on from is missing or damaged."""


class Refused(StoreError):
    """A write that would break a rule of the life cycle; nothing of it was kept."""


class StaleLease(Refused):
    """The attempt no longer holds its rollout: its lease ran out, or it was finished or cancelled."""


class IllegalMove(Refused):
    """The life cycle has no such move."""


class Conflict(Refused):
    """The same id with other content."""


class QueueFull(Refused):
    """The run's queue is at its limit."""


class NotFound(StoreError):
    """There is no such record in this project."""

    exit_code = 2


class Fault(HoldfastError):
    """Our side failed, not the agent: the attempt is retried, and is never scored as zero."""


class NoSuccess(HoldfastError):
    """The first rollouts of a run all failed by one error, or nothing is left to pay for more: it ends here."""

    exit_code = 3


class Killed(Fault):
    """A process of ours was killed from outside before it could do anything: another one may fare better."""


class Interrupted(BaseException):
    """Raised inside an agent that was cancelled or ran out of time."""


def error_line(error: BaseException) -> str:
    """An exception in one line of text, even when its own text cannot be had."""
    try:
        text = str(error)
    except Exception as second:
        text = f"(its text cannot be had: {type(second).__name__})"
    if isinstance(error, HoldfastError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@contextmanager
def boundary(kind: type[HoldfastError], where: str) -> Iterator[None]:
    """Name the place where a foreign exception crossed into ours; our own errors pass as they are."""
    try:
        yield
    except HoldfastError:
        raise
    except Exception as error:
        raise kind(where, why=f"{type(error).__name__}: {error}") from error
