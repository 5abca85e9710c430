from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.reward.evidence import answer_of, evidence, facts, read, with_tool_calls
from tests.reward.conversation import Talk, calc, lookup, talk

PRICE = lookup("oak.price", "17")
STOCK = lookup("oak.stock", "3")
SUM = calc("17*3", "51")
QUESTION = "What is oak.price times oak.stock?"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("It is 1,234.50 on 2024-03-01.", {"1234.5", "2024-03-01"}),  # numbers and days have one spelling
        ("oak.price OAK.PRICE", {"oak.price"}),  # keys stay whole, whatever their case
        ("the answer is the", set()),  # words that every text has are no facts
        ({"key": "oak.price", "n": 2, "deep": [{"x": "Friday"}]}, {"oak.price", "2", "friday"}),  # values, not names
        ("12-3", {"12", "3"}),  # a sum is its numbers
        ([True, None, -4.0], {"4"}),
        ("", set()),
    ],
)
def test_facts_are_what_can_be_looked_for_later(value: object, found: set[str]) -> None:
    assert facts(value) == found


@given(st.lists(st.sampled_from(["oak", "17", "Friday", "x.y"]), min_size=1, max_size=30))
def test_saying_a_thing_again_adds_no_fact(words: list[str]) -> None:
    assert facts(" ".join(words)) == facts(" ".join(sorted(set(words))))


def test_a_turn_is_one_to_the_learner_too() -> None:
    cut = Talk(QUESTION).cut().turn(PRICE).answer("17").spans
    experience = Experience(
        rollout="r", run="r", task="t", split=None, is_final=True, state=RolloutState.SUCCEEDED, spans=tuple(cut),
        breakdown=None,
    )  # fmt: skip
    assert len(read(cut)) == len(experience.calls) == 2
    assert evidence(cut)[0].turn == 0
    assert answer_of(cut) == "17" and answer_of(talk(QUESTION, PRICE)) == ""


@pytest.mark.parametrize(
    ("turns", "answer", "used"),
    [
        ([PRICE, STOCK, SUM, lookup("elm.owner", "Ann")], "The answer is 51.", ["17", "3", "51", ""]),
        ([PRICE, calc("17+0", "seventeen")], "51", ["", ""]),  # copied into a call that leads nowhere
        ([[PRICE, SUM]], "51", ["", "51"]),  # calls of one turn did not see one another
        ([PRICE, SUM], "51", ["17", "51"]),
    ],
)
def test_what_is_used_stands_in_the_answer_or_in_a_call_that_led_there(
    turns: list[Any], answer: str, used: list[str]
) -> None:
    assert [one.used for one in evidence(talk(QUESTION, *turns, answer=answer))] == [set(one.split()) for one in used]


@pytest.mark.parametrize(("role", "fresh"), [("system", ""), ("user", ""), ("assistant", "17")])
def test_what_was_told_before_a_tool_said_it_is_not_found_out(role: str, fresh: str) -> None:
    told = Talk(QUESTION)
    told._add(SpanKind.MESSAGE, attributes={"role": role, "content": "An oak is 17 today."})
    [found] = evidence(told.turn(PRICE).answer("17").spans)
    assert found.fresh == set(fresh.split())


def request(seq: int, messages: list[dict[str, Any]], **response: Any) -> Span:
    call = ModelCall(model="m", messages=tuple(messages), response={"role": "assistant", **response})
    return Span(seq=seq, kind=SpanKind.MODEL, name="m", started_at=seq, ended_at=seq, model=call)


def asked(name: str, arguments: str, identity: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_tools_that_an_agent_ran_out_of_our_sight_are_read_from_its_next_request() -> None:
    """Through a proxy only the requests are seen."""
    question = {"role": "user", "content": "What is oak.price times two?"}
    first = {"role": "assistant", "tool_calls": [asked("lookup", '{"key": "oak.price"}', "a")]}
    second = {"role": "assistant", "tool_calls": [asked("calc", "17 by 2", "b")]}
    results = [{"role": "tool", "tool_call_id": "a", "content": "17"}]
    results.append({"role": "tool", "tool_call_id": "b", "content": "Error: no expression"})
    spans = [
        request(1_000_001, [question], tool_calls=first["tool_calls"]),
        request(1_000_002, [question, first, results[0]], tool_calls=second["tool_calls"]),
        request(1_000_003, [question, first, results[0], second, results[1]], content="34, from 17"),
    ]
    found = with_tool_calls(spans)
    calls = [span.tool for span in found if span.tool is not None]
    assert [(one.tool, dict(one.arguments), one.result) for one in calls] == [
        ("lookup", {"key": "oak.price"}, "17"),
        ("calc", {"arguments": "17 by 2"}, None),
    ]
    assert calls[1].error == "Error: no expression"
    assert [(one.turn, set(one.used)) for one in evidence(found)] == [(0, {"17"}), (1, set())]
    recorded = talk(QUESTION, PRICE, answer="17")
    assert with_tool_calls(recorded) is recorded  # what was recorded is not read twice
