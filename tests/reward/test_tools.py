from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import Span
from holdfast.reward.tools import SHARES as TOOL
from holdfast.reward.tools import CallMark, fits, is_busy, marks, problems, schemas_of, signals
from tests.reward.conversation import SCHEMAS, calc, lookup, talk, tool

QUESTION = "What is oak.price times oak.stock? If unsure: unknown."
PRICE = lookup("oak.price", "17")
STOCK = lookup("oak.stock", "3")
SUM = calc("17*3", "51")
BUSY = "error: busy, try again"
GONE = "error: unknown key"
BOTH = ("lookup", "calc")


def judged(spans: Sequence[Span], needs: Collection[str] | None = BOTH) -> tuple[CallMark, ...]:
    return marks(spans, needs=needs, schemas=SCHEMAS)


def worth(spans: Sequence[Span], needs: Collection[str] | None = BOTH) -> float:
    return sum(one.value * one.weight * TOOL[one.name] for one in signals(judged(spans, needs), needs))


def test_every_call_right_is_worth_one() -> None:
    spans = talk(QUESTION, PRICE, STOCK, SUM, answer="51")
    assert worth(spans) == pytest.approx(1.0)
    assert {one.turn for one in signals(judged(spans), BOTH)} == {0, 1, 2}
    unjudged = signals(marks(talk(QUESTION, PRICE, answer="17")))  # nobody knows what was needed
    assert {one.name for one in unjudged} == {"utility", "error_handling"}


def test_choice_and_execution_are_told_apart() -> None:
    """Four calls that are each wrong in one way: how they went changes nothing of whether they were right to make."""
    failed = lookup("oak.price", error=GONE)
    (well,) = judged(talk(QUESTION, PRICE, answer="17"), ("lookup",))
    (badly,) = judged(talk(QUESTION, failed, answer="unknown"), ("lookup",))
    (wrong,) = judged(talk(QUESTION, PRICE, answer="17"), ("calc",))
    (garbled,) = judged(talk(QUESTION, tool("lookup", "17", keys="oak.price"), answer="17"), ("lookup",))
    assert (well.choice, well.structure, well.utility) == (1.0, 1.0, 1.0)
    assert (badly.choice, badly.structure, badly.utility) == (1.0, 1.0, 0.0)
    assert (wrong.choice, wrong.structure, wrong.utility) == (0.0, 1.0, 1.0)
    assert (garbled.choice, garbled.structure, garbled.utility) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("calls", "needs", "value"),
    [
        ([], (), 1.0),  # nothing was needed, and nothing called
        ([PRICE], (), 0.0),  # a call where none is needed is wrong
        ([], ("lookup",), 0.0),  # no call where one is needed is wrong
        ([PRICE], ("lookup",), 1.0),
        ([PRICE], BOTH, 0.5),  # one of two needs
    ],
)
def test_choice_is_against_what_the_task_needed(calls: list[Any], needs: tuple[str, ...], value: float) -> None:
    found = signals(judged(talk(QUESTION, *calls, answer="17"), needs), needs)
    assert sum(one.value * one.weight for one in found if one.name == "choice") == pytest.approx(value)


def test_a_duplicate_and_a_dummy_earn_nothing_and_cost_the_others() -> None:
    spans = talk(QUESTION, PRICE, PRICE, tool("clock", "12:30"), STOCK, SUM, answer="51")
    assert [mark.idle for mark in judged(spans)] == ["", "duplicate", "dummy", "", ""]
    assert worth(spans) == pytest.approx(3 / 5)
    paid = [one for one in signals(judged(spans), BOTH) if one.turn in (1, 2)]
    assert paid and all(one.weight == 0.0 for one in paid)
    first, second = tool("convert", "9", a=1, b=2), tool("convert", "9", b=2, a=1)  # in another order, the same
    assert [mark.idle for mark in marks(talk("?", first, second, answer="9"))] == ["", "duplicate"]


def test_a_needed_call_counts_though_its_result_was_reckoned_with_in_the_head() -> None:
    spans = talk(QUESTION, PRICE, STOCK, answer="51")
    assert [mark.idle for mark in judged(spans, ("lookup",))] == ["", "dummy"]  # once, however many there are
    assert [mark.utility for mark in judged(spans, ("lookup",))] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("turns", "answer", "handled"),
    [
        ([lookup("oak.price", error=BUSY), PRICE], "17", 1.0),  # retried when busy
        ([lookup("oak.price", error=BUSY)], "17", 0.0),  # given up, and made up
        ([lookup("oak.price", error=BUSY)], "unknown", 0.0),  # given up
        ([lookup("oak.price", error=BUSY), lookup("elm.price", "17")], "17", 0.0),  # something else instead
        ([lookup("oak.price", error=GONE), lookup("oak.price", error=GONE)], "unknown", 0.0),  # repeated word for word
        ([lookup("oak.pricey", error=GONE), PRICE], "17", 1.0),  # mended
        ([lookup("oak.price", error=GONE)], "unknown", 1.0),  # told as it is
        ([lookup("oak.price", error=GONE)], "I am unable to find oak.price", 1.0),
        ([lookup("oak.price", error=GONE)], "42", 0.0),  # an invention
        ([lookup("oak.price", error=GONE)], "unknown, perhaps 42", 0.0),  # an invention with an excuse
        ([lookup("oak.price", error=GONE)], "blue", 0.0),
    ],
)
def test_what_is_done_about_an_error(turns: list[Any], answer: str, handled: float) -> None:
    first, *_ = judged(talk(QUESTION, *turns, answer=answer), ("lookup",))
    assert first.error_handling == handled


def test_the_turn_that_reacts_answers_for_it_and_a_busy_tool_costs_whoever_tries_again_nothing() -> None:
    spans = talk(QUESTION, lookup("oak.price", error=BUSY), PRICE, answer="17")
    found = [one for one in signals(judged(spans, ("lookup",)), ("lookup",)) if one.name == "error_handling"]
    assert [(one.turn, one.value) for one in found] == [(1, 1.0), (1, 1.0)]
    assert worth(spans, ("lookup",)) == pytest.approx(worth(talk(QUESTION, PRICE, answer="17"), ("lookup",))) == 1.0


@pytest.mark.parametrize("error", [BUSY, "HTTP 429: Too Many Requests", "request timed out", "503 Service Unavailable"])
def test_errors_that_pass(error: str) -> None:
    assert is_busy(error)
    assert not is_busy("error: unknown key") and not is_busy("no business of yours")


IDLE = st.sampled_from(
    [
        tool("clock", "12:30"),
        tool("clock", error="error: no such clock"),
        tool("clock", error=BUSY),
        tool("nonsense", "fnord", x=1),
    ]
)
REAL = [PRICE, STOCK, SUM, lookup("oak.price", error=BUSY), lookup("oak.x", error=GONE), tool("lookup", "3", k="oak")]


@given(
    st.lists(st.sampled_from(REAL), max_size=5),
    st.lists(IDLE, max_size=4),
    st.integers(0, 5),
    st.sampled_from([None, (), ("lookup",), BOTH]),
    st.sampled_from(["51", "unknown", "42"]),
)
def test_calls_that_are_of_no_use_never_raise_what_is_paid(
    calls: list[Any], idle: list[Any], at: int, needs: Collection[str] | None, answer: str
) -> None:
    plain = worth(talk(QUESTION, *calls, answer=answer), needs)
    assert 0.0 <= plain <= 1.0 + 1e-12
    assert worth(talk(QUESTION, *calls[:at], *idle, *calls[at:], answer=answer), needs) <= plain + 1e-12
    if calls and not any(call.error == BUSY for call in calls):  # a busy tool is meant to be asked again
        assert worth(talk(QUESTION, *calls, *calls, answer=answer), needs) <= plain + 1e-12


def test_schemas_are_taken_from_what_an_endpoint_is_given() -> None:
    assert not fits(tool("fly"), SCHEMAS) and fits(PRICE, SCHEMAS)  # no such tool
    specs = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}, {"name": "g"}]
    assert schemas_of(specs) == {"f": {"type": "object"}, "g": {"type": "object"}}
    with pytest.raises(BadInput, match="has no name"):
        schemas_of([{"type": "function"}])


def test_a_problem_says_where_it_is() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}, "required": ["b"]}
    found = problems({**schema, "additionalProperties": False}, {"a": (1, "x"), "c": 0})
    assert {one.partition(": ")[0] for one in found} == {"arguments", "arguments.a[1]"}
    assert len(found) == 3  # b is missing, x is no integer, c is no parameter
    assert problems(schema, {"a": (1,), "b": True}) == ()  # a tuple is an array


@pytest.mark.parametrize("schema", [{"type": "colour"}, {"$ref": "https://example.org/schema.json"}])
def test_a_schema_that_cannot_be_checked_is_refused_and_nothing_is_fetched(schema: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="schema"):
        problems(schema, {})
