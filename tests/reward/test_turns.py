from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import TURN_REWARD, RewardBreakdown, RewardTerm
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.reward.breakdown import OutcomeGate, total
from holdfast.reward.tools import SHARES as TOOL
from holdfast.reward.turns import TURN, TurnRewards
from tests.reward.conversation import SCHEMAS, Talk, calc, lookup, talk, tool

PRICE = lookup("oak.price", "17")
STOCK = lookup("oak.stock", "3")
SUM = calc("17*3", "51")
QUESTION = "What is oak.price times oak.stock?"
TASK = {"prompt": QUESTION, "expected": "51", "needs": ["lookup", "calc"], "tools": list(SCHEMAS)}
CATALOG = [{"function": {"name": name, "parameters": schema}} for name, schema in SCHEMAS.items()]
MEASURE = TurnRewards(catalog=CATALOG)
PAID = TurnRewards(catalog=CATALOG, weights={name: share / 10 for name, share in TOOL.items()})


def checked(value: float, weight: float = 1.0) -> tuple[RewardTerm, ...]:
    return total([RewardTerm(name="success", value=value, weight=weight, source="scorer:exact")], OutcomeGate()).signals


def terms(
    spans: Sequence[Span], output: Any = "51", task: Any = TASK, signals: Sequence[RewardTerm] | None = None
) -> list[dict[str, float]]:
    """What was measured of each turn."""
    judged = checked(float(output == "51")) if signals is None else signals
    found = MEASURE(task, output, spans, judged)
    count = 1 + max((one.turn for one in found if one.turn is not None), default=-1)
    return [{one.name: one.value for one in found if one.turn == turn} for turn in range(count)]


def column(told: Sequence[Mapping[str, float]], name: str) -> list[Any]:
    return [pytest.approx(turn[name]) for turn in told]


def test_every_turn_has_its_four_measures_and_their_total() -> None:
    told = terms(talk(QUESTION, PRICE, STOCK, SUM, lookup("elm.owner", "Ann"), answer="51"))
    assert column(told, "information_gain") == [1.0, 1.0, 1.0, 0.0, 0.0]  # Ann led nowhere
    assert column(told, "format") == column(told, "safety") == [1.0] * 5
    # Three marks on the way: both needed tools, and the expected number in a result. The check has the last word.
    assert column(told, "progress") == [1 / 3, 0.0, 2 / 3, 0.0, 0.0]
    assert column(told, TURN_REWARD) == [0.8 + 0.2 / 3, 0.8, 0.8 + 0.4 / 3, 0.4, 0.4]
    assert sum(TURN.values()) == sum(TOOL.values()) == pytest.approx(1.0)


def test_nothing_of_a_turn_is_paid_and_an_attempt_that_nobody_scored_stays_unscored() -> None:
    spans = talk(QUESTION, PRICE, answer="17")
    found = MEASURE(TASK, "17", spans, ())
    assert {one.weight for one in found} == {0.0} and RewardBreakdown(signals=found).total is None
    assert RewardBreakdown(signals=MEASURE(TASK, "51", spans, checked(1.0))).total == 1.0
    assert MEASURE(TASK, "51", [], checked(1.0)) == checked(1.0)  # no turn, nothing to say


@pytest.mark.parametrize(
    ("prompt", "call"),
    [
        ("Is oak.price 17?", PRICE),  # the question said it already
        ("Say it", tool("echo", "17", text="17")),  # the call said it itself
        ("What is it?", lookup("oak.price", error="17 is busy")),  # an error is no result
    ],
)
def test_what_was_known_before_is_not_gained(prompt: str, call: Any) -> None:
    assert terms(talk(prompt, call, answer="17"), "17")[0]["information_gain"] == 0.0


def test_a_long_result_gains_no_more_than_a_short_one() -> None:
    results = ["17", "17 " + " ".join(f"pad{n}" for n in range(99)), "17 " * 100]
    gains = [terms(talk("Oak?", lookup("oak", one), answer="17"), "17")[0]["information_gain"] for one in results]
    assert gains == [1.0, pytest.approx(0.01), 1.0]


@given(
    st.lists(st.sampled_from([PRICE, STOCK, SUM, lookup("oak.x", error="error: unknown key"), tool("clock", "51")])),
    st.sampled_from(["51", "42"]),
)
def test_progress_adds_up_to_what_the_check_says_however_an_attempt_went(calls: list[Any], answer: str) -> None:
    told = terms(talk(QUESTION, *calls, answer=answer), answer)
    assert sum(turn["progress"] for turn in told) == pytest.approx(float(answer == "51"))


def test_whoever_had_everything_and_answered_wrong_lost_it_in_the_last_turn() -> None:
    told = terms(talk(QUESTION, PRICE, STOCK, SUM, answer="42"), "42")
    assert column(told, "progress") == [1 / 3, 0.0, 2 / 3, -1.0]
    failed = terms(talk(QUESTION, PRICE, SUM), None, signals=())  # its agent raised
    assert sum(turn["progress"] for turn in failed) == 0.0


def test_format_is_that_of_the_calls_or_of_the_answer() -> None:
    spans = talk(QUESTION, PRICE, tool("lookup", "3", keys="oak.stock"), SUM, answer="51")
    assert column(terms(spans), "format") == [1.0, 0.0, 1.0, 1.0]
    styled = (*checked(1.0), RewardTerm(name="format", value=0.0, weight=0.0, source="scorer:style"))
    assert column(terms(spans, signals=styled), "format") == [1.0, 0.0, 1.0, 0.0]  # a scorer has judged the style
    own = (*checked(1.0), RewardTerm(name="agent.format", value=0.0, weight=0.0, source="agent"))
    assert column(terms(spans, signals=own), "format") == [1.0, 0.0, 1.0, 1.0]  # no agent judges itself
    assert terms(talk(QUESTION, answer=""), "")[0]["format"] == 0.0
    cut = talk(QUESTION, answer="51")
    call = cut[0].model
    assert call is not None
    assert terms([replace(cut[0], model=replace(call, finish_reason="length"))])[0]["format"] == 0.0


def test_safety_names_the_turn_that_was_unsafe() -> None:
    leaking = tool("lookup", "ok", key="sk-proj-" + "a1B2c3D4e5" * 5)
    assert column(terms(talk(QUESTION, PRICE, leaking, answer="51")), "safety") == [1.0, 0.0, 1.0]
    assert column(terms(talk(QUESTION, PRICE, tool("shell", "x"), answer="51")), "safety") == [1.0, 0.0, 1.0]
    costly = (*checked(1.0), RewardTerm(name="safety_cost", value=1.0, weight=0.0, source="rule:x"))
    assert column(terms(talk(QUESTION, PRICE, answer="51"), signals=costly), "safety") == [1.0, 0.0]  # made up


def test_a_call_that_was_cut_short_is_no_turn() -> None:
    spans = Talk(QUESTION).cut().turn(PRICE).answer("17").spans
    assert len(terms(spans, "17")) == 2


def test_an_agent_that_ran_its_own_tools_behind_a_proxy_has_turns_too() -> None:
    asked = [{"id": "a", "function": {"name": "lookup", "arguments": '{"keys": "oak.price"}'}}]
    question: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    after = [*question, {"role": "assistant", "tool_calls": asked}]
    after.append({"role": "tool", "tool_call_id": "a", "content": "17"})
    offered = {"tools": [{"type": "function", **CATALOG[0]}, {"type": "web_search"}]}
    calls = [
        ModelCall(model="m", messages=tuple(question), response={"tool_calls": asked}, sampling=offered),
        ModelCall(model="m", messages=tuple(after), response={"content": "17"}, sampling=offered),
    ]
    spans = [
        Span(seq=place, kind=SpanKind.MODEL, name="m", started_at=place, ended_at=place, model=call)
        for place, call in enumerate(calls, 1_000_001)
    ]
    told = terms(spans, "17", {"question": QUESTION}, signals=())
    assert column(told, "information_gain") == [1.0, 0.0] and column(told, "format") == [0.0, 1.0]
    assert told[0]["structure"] == 0.0 and told[0]["utility"] == 1.0  # the request says what the tool takes
    found = [{"id": "a", "function": {"name": "web_search", "arguments": "{}"}}]
    searched = replace(spans[0], model=replace(calls[0], response={"tool_calls": found}))
    assert terms([searched], None, {}, signals=())[0]["safety"] == 1.0  # offered by its type, as servers' own tools are


@pytest.mark.parametrize("content", [{"text": 3}, 7, [None, {"x": [1]}]])
def test_a_trace_that_cannot_be_measured_is_told_and_costs_nobody_his_reward(content: Any) -> None:
    calls = [{"id": "a", "function": {"name": "lookup", "arguments": "{}"}}]
    broken = ModelCall(model="m", messages=({"role": "tool", "content": content},), response={"tool_calls": calls})
    broken = replace(broken, sampling={"tools": [{"name": "lookup", "parameters": {"type": 3}}]})
    span = Span(seq=1, kind=SpanKind.MODEL, name="m", started_at=0.0, ended_at=0.0, model=broken)
    found = MEASURE(TASK, "51", [span], checked(1.0))
    assert RewardBreakdown(signals=found).total == 1.0 and any(one.turn == 0 for one in found)
    odd = replace(span, model=replace(broken, response={"tool_calls": 3}))
    (said,) = [one for one in MEASURE(TASK, "51", [odd], checked(1.0)) if one.turn is not None]
    assert "could not be measured" in (said.feedback or "")


# What is paid for the use of tools


def test_tools_are_paid_by_their_weights_where_the_check_was_passed_and_nowhere_else() -> None:
    spans = talk(QUESTION, PRICE, STOCK, SUM, answer="51")
    right, wrong = (PAID(TASK, "51", spans, checked(value)) for value in (1.0, 0.0))
    assert RewardBreakdown(signals=right).total == pytest.approx(1.1)
    assert RewardBreakdown(signals=wrong).total == 0.0 and not any(one.weight for one in wrong if one.turn is not None)
    double = PAID(TASK, "51", spans, checked(1.0, weight=2.0))
    assert RewardBreakdown(signals=double).total == pytest.approx(2.2)  # shares of what the check counts
    for nobody in ((), (RewardTerm(name="tone", value=1.0, source="judge"),)):
        assert not any(one.weight for one in PAID(TASK, "51", spans, nobody) if one.turn is not None)
    own = (RewardTerm(name="success", value=1.0, source="agent"),)
    assert RewardBreakdown(signals=PAID(TASK, "51", spans, own)).total == 1.0  # no agent opens the gate


def test_no_call_where_none_is_needed_is_the_right_choice() -> None:
    idle = {**TASK, "needs": []}
    without, with_call = (PAID(idle, "51", talk(QUESTION, *calls, answer="51"), checked(1.0)) for calls in ([], [SUM]))
    assert (RewardBreakdown(signals=without).total or 0.0) == pytest.approx(1.04)
    assert (RewardBreakdown(signals=with_call).total or 0.0) < 1.0 + 0.1


BUSY = lookup("x", error="error: busy")
SHAPES = st.lists(st.sampled_from([PRICE, STOCK, SUM, tool("clock", "1"), BUSY]), max_size=4)
OTHERS = st.lists(st.floats(-3, 3), max_size=3)


@given(SHAPES, SHAPES, OTHERS, OTHERS, st.floats(0, 0.125))
def test_whatever_was_called_a_wrong_answer_never_earns_more_than_a_right_one(
    good: list[Any], bad: list[Any], over: list[float], under: list[float], weight: float
) -> None:
    pays = TurnRewards(weights=dict.fromkeys(TOOL, weight))

    def worth(calls: list[Any], shaping: list[float], success: float) -> float:
        others = [RewardTerm(name=f"s{n}", value=value, source="scorer:s") for n, value in enumerate(shaping)]
        judged = total([RewardTerm(name="success", value=success, source="scorer:exact"), *others], OutcomeGate())
        found = pays(TASK, "51", talk(QUESTION, *calls, answer="51"), judged.signals)
        return RewardBreakdown(signals=found).total or 0.0

    assert worth(bad, under, 0.0) <= 0.0 < 0.5 <= worth(good, over, 1.0) + 1e-9 <= 1.5 + 2e-9


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ({"tone": 0.1}, "is unknown"),
        ({"choice": -0.1}, "at least 0"),
        ({"choice": "much"}, "must be finite"),
        ({"choice": 0.3, "utility": 0.3}, "add up to 0.6"),
        (0.1, "is not a table"),
    ],
)
def test_impossible_weights_are_refused(weights: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        TurnRewards(weights=weights)
