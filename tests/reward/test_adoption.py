from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from statsmodels.stats.proportion import proportion_confint

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.prove.estimate import wilson
from holdfast.reward.tools import DAY_S, AdoptionRate, ToolAttempt, adoption_rates, marks, rate_drop, split_version
from tests.reward.conversation import SCHEMAS, lookup, talk, tool

GOOD = lookup("oak.price", "17")
BAD = tool("lookup", error="error: bad arguments", text="{")
BUSY = lookup("oak.price", error="error: busy, try again")
GONE = lookup("oak.price", error="error: unknown key")


def record(*calls: Any, needs: tuple[str, ...] | None = ("lookup",), answer: str = "17", **fields: Any) -> ToolAttempt:
    found = marks(talk("What? Or unknown.", *calls, answer=answer), needs=needs, schemas=SCHEMAS)
    given_ = {"task": "t", "model": "sprout", "version": "3", "at": 0.0, "offered": ("lookup",)}
    return ToolAttempt(**(given_ | fields), needs=needs, marks=found)


def of(*records: ToolAttempt, **how: Any) -> Any:
    (row,) = adoption_rates(records, wilson, by=(), **how)
    return row


def test_adoption_counts_tasks_that_need_a_tool_and_overuse_those_that_do_not() -> None:
    row = of(
        record(GOOD, task="a"),
        record(task="b"),  # needed, and not called
        record(BAD, GOOD, task="c"),  # at first badly formed
        record(GOOD, needs=(), task="d"),
        record(needs=(), task="e"),
        record(GOOD, needs=None, task="f"),  # nobody knows what it needs
    )
    assert (row.adoption.hits, row.adoption.of) == (1.0, 3)
    assert (row.overuse.hits, row.overuse.of) == (1.0, 2)
    assert (row.formed.hits, row.formed.of) == (3.0, 4)
    low, high = proportion_confint(1, 3, method="wilson")
    assert (row.adoption.interval.low, row.adoption.interval.high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("calls", "answer", "worked", "mended"),
    [
        ([GOOD], "17", 1.0, None),
        ([BUSY, GOOD], "17", 1.0, 1.0),  # a busy tool is nobody's failure
        ([BUSY], "unknown", 0.0, 0.0),
        ([GONE], "unknown", 0.0, 1.0),
        ([GONE], "42", 0.0, 0.0),  # made up
        ([BAD, GOOD], "17", 0.0, 1.0),  # the first call counts
    ],
)
def test_what_worked_and_what_was_mended(calls: list[Any], answer: str, worked: float, mended: float | None) -> None:
    row = of(record(*calls, answer=answer))
    assert (row.worked.share, row.mended.share) == (worked, mended)


def test_tries_at_one_task_are_one_task() -> None:
    row = of(record(GOOD, task="a"), record(task="a"), record(GOOD, task="b"))
    assert row.adoption == AdoptionRate(of=2, tries=3, hits=1.5, interval=wilson(1.5, 2))


def test_rows_stand_apart_by_what_is_asked() -> None:
    records = [
        record(GOOD, task="a", at=0.0),
        record(GOOD, task="b", at=1.5 * DAY_S, version="4"),
        record(tool("clock", "12:30"), GOOD, task="c", at=1.6 * DAY_S, version="4"),
    ]
    plain = adoption_rates(records, wilson)
    assert [(row.tool, row.model, row.version, row.window) for row in plain] == [
        ("clock", "sprout", "4", None), ("lookup", "sprout", "3", None), ("lookup", "sprout", "4", None),
    ]  # fmt: skip
    by_day = adoption_rates(records, wilson, by=("window",))
    assert [(row.window, row.adoption.of) for row in by_day] == [(0.0, 1), (DAY_S, 2)]
    by_tool = adoption_rates(records, wilson, by=("tool",))
    assert [row.overuse.of for row in by_tool] == [1, 0]  # the clock was not needed


def test_a_tool_that_was_offered_and_left_alone_is_there_too() -> None:
    (row,) = adoption_rates([record(needs=(), offered=("calc",))], wilson, by=("tool",))
    assert (row.tool, row.overuse.share, row.adoption.of) == ("calc", 0.0, 0)
    assert row.adoption.share is None and row.adoption.interval == Interval(low=0.0, high=1.0)


@given(
    st.lists(st.sampled_from([GOOD, BAD, BUSY, GONE, tool("clock", "12:30")]), max_size=4),
    st.sampled_from([(), ("lookup",)]),
    st.lists(st.sampled_from([GOOD, BAD, GONE]), min_size=1, max_size=3),
)
def test_more_calls_make_no_rate_better(calls: list[Any], needs: tuple[str, ...], more: list[Any]) -> None:
    """But the first call that a task needs, which is what adoption is, and what mends a failure."""
    if not any(call.tool == "lookup" and call is not BUSY for call in calls):
        calls = [GOOD, *calls]
    fewer, padded = (of(record(*some, needs=needs)) for some in (calls, [*calls, *more]))
    assert padded.adoption.hits <= fewer.adoption.hits
    assert padded.overuse.hits >= fewer.overuse.hits
    assert padded.formed.hits <= fewer.formed.hits
    assert padded.worked.hits <= fewer.worked.hits


def test_a_drop_is_what_the_intervals_leave_between_them() -> None:
    before, now = (AdoptionRate(of=100, hits=hits, interval=wilson(hits, 100)) for hits in (80.0, 40.0))
    assert rate_drop(now, before) == pytest.approx(wilson(80, 100).low - wilson(40, 100).high)
    assert (rate_drop(now, before) or 0.0) > 0.2 > 0.0 > (rate_drop(before, before) or 0.0)
    assert rate_drop(AdoptionRate(), before) is None


@pytest.mark.parametrize(
    ("model", "name", "version"),
    [("local/sprout@7", "local/sprout", "7"), ("gpt", "gpt", None), (None, None, None), ("odd@", "odd@", None)],
)
def test_a_version_is_read_from_the_models_name_and_impossible_questions_are_refused(
    model: str | None, name: str | None, version: str | None
) -> None:
    read = split_version(replace(record(), model=model, version=None))
    assert (read.model, read.version) == (name, version)
    with pytest.raises(BadInput, match="adoption by colour"):
        adoption_rates([], wilson, by=("colour",))
    with pytest.raises(BadInput, match="a window of 0"):
        adoption_rates([], wilson, window_s=0.0)
