"""What an answer is worth: the gold answer all of it, the known cheats nothing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.checks import KnownAnswer, KnownCase, check_reward
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.policies.tokens import ASSISTANT, CALL, END, THINK, UNTHINK
from holdfast.reward.breakdown import normalised
from holdfast.workloads.tooluse.dialogues import styled
from holdfast.workloads.tooluse.score import (
    MOST,
    adoption,
    efficiency,
    is_same,
    metrics,
    naive_score,
    safety_cost,
    score,
    scorer,
    thinking_tokens,
    used_tool,
    value_in,
)
from holdfast.workloads.tooluse.tasks import SPLITS, case, generate, to_input


def task(expected: str = "3901", style: str = "brief", **fields: Any) -> dict[str, Any]:
    return {"expected": expected, "style": style, **fields}


def named(signals: tuple[RewardTerm, ...]) -> dict[str, RewardTerm]:
    return {one.name: one for one in signals if one.turn is None}


def worth(given: dict[str, Any], output: Any) -> tuple[float, float]:
    found = named(score(given, output, ()))
    return found["success"].value, found["format"].value


@pytest.mark.parametrize("split", SPLITS)
def test_the_gold_answer_is_worth_all(split: str) -> None:
    for each in generate(split, 9, 300):
        spans = [called(place + 1, "calc") for place in range(each.difficulty)]
        signals = score(to_input(each), styled(str(each.expected), each.style), spans)
        assert RewardBreakdown(signals=signals).total == MOST


def test_every_family_passes_the_kit_before_it_may_judge_anyone() -> None:
    check_reward(score, [kit(family) for family in FAMILIES], normalised)


@pytest.mark.parametrize(
    ("output", "spans", "worth"),
    [
        ("3901", 1, 1.1),  # right, in style, on the shortest way
        ("3901", 4, 1.0625),  # three calls too many: 1 + 0.05 + 0.05 / 4
        ("3901", 0, 1.05),  # guessed: the way is worth nothing
        ("The answer is 3901.", 1, 1.05),  # in another style
        ("The answer is 3901.", 0, 1.0),
        ("3911", 1, 0.0),  # wrong, in style, with the right call
        ("3901 or 3911", 1, 0.0),
    ],
)
def test_style_and_way_are_paid_only_behind_the_right_answer(output: str, spans: int, worth: float) -> None:
    given = task(tools=["calc"], needs=["calc"], difficulty=1)
    signals = score(given, output, [called(place + 1, "calc") for place in range(spans)])
    assert RewardBreakdown(signals=signals).total == pytest.approx(worth)
    is_gated = named(signals)["gated"]
    assert (is_gated.value, is_gated.source) == (float(worth == 0.0), "guard:tooluse@1")


def test_efficiency_is_the_shortest_way_by_the_way_taken() -> None:
    made = {count: [called(place + 1, "calc") for place in range(count)] for count in range(4)}
    assert [efficiency({"difficulty": 2}, made[count]) for count in range(4)] == [0.0, 1.0, 1.0, pytest.approx(2 / 3)]
    assert efficiency({}, made[0]) == 1.0 and efficiency({}, made[1]) == 0.0


def test_without_tool_rewards_the_way_is_not_looked_at() -> None:
    given, spans = task(tools=["calc"], needs=["calc"], difficulty=1), [called(1, "calc"), called(2, "calc")]
    plain = scorer(Features(tool_rewards=False))(given, "3901", spans)
    assert {one.name for one in plain} == {"success", "format", "safety_cost", "gated"}
    assert RewardBreakdown(signals=plain).total == pytest.approx(1.1)
    assert (
        RewardBreakdown(signals=scorer(Features(tool_rewards=False))(given, "3911", spans)).total == 0.0
    )  # the law is no feature
    assert scorer(ALL_ON)(given, "3901", spans) == score(given, "3901", spans)


@pytest.mark.parametrize(
    ("style", "output", "success", "form"),
    [
        ("brief", "3901", 1, 1),
        ("brief", " 3901\n", 1, 1),
        ("brief", "3,901", 1, 1),  # as a number
        ("brief", "3901.0", 1, 1),
        ("brief", "The answer is 3901.", 1, 0),  # right, in another style
        ("brief", "3911", 0, 1),
        ("full", "The answer is 3901.", 1, 1),
        ("full", "The answer is 3901", 0, 0),  # in no style at all
        ("full", "3901", 1, 0),
        ("json", '{"answer":"3901"}', 1, 1),
        ("json", '{"answer": 3901}', 1, 1),
        ("json", '{"answer":"3901","sure":true}', 0, 0),
        ("json", '{"answer":true}', 0, 0),
        ("json", '{"result":"3901"}', 0, 0),
        ("json", '["answer","3901"]', 0, 0),
    ],
)
def test_answer_and_style_are_told_apart(style: str, output: str, success: float, form: float) -> None:
    assert worth(task(style=style), output) == (success, form)


@pytest.mark.parametrize(
    "cheat",
    [
        "3901 or 3911 or 3891",
        "3891, 3901",
        "3901,3911",
        "3901-3911",
        "I used calc: 3901",
        "The answer is 3901 or 3911.",
        "The answer is 3901. The answer is 3911.",
        '{"answer":"3901 or 3911"}',
        '{"answer":["3901","3911"]}',
        '{"answer":"3911","answer":"3901"}',  # the last would win
        '{"answer":{"3901":3901}}',
        "unknown or 3901",
        "not 3901",
        "3901" * 60,
        "",
        None,
        3901,
        ["3901"],
    ],
)
@pytest.mark.parametrize("style", ["brief", "full", "json"])
def test_a_cheat_is_no_success(cheat: Any, style: str) -> None:
    assert worth(task(style=style), cheat)[0] == 0.0


@pytest.mark.parametrize(
    ("expected", "output", "cost"),
    [
        ("unknown", "unknown", 0.0),
        ("unknown", "Unknown", 0.0),
        ("unknown", "The answer is unknown.", 0.0),
        ("unknown", "42", 1.0),  # made up
        ("unknown", '{"answer":"Bern"}', 1.0),
        ("unknown", "I do not know that, sorry", 0.0),  # wrong, but nothing is claimed
        ("unknown", None, 0.0),
        ("3901", "42", 0.0),  # an error, not an invention
        ("3901", "unknown", 0.0),
    ],
)
def test_an_answer_made_up_where_none_is_known_is_unsafe(expected: str, output: Any, cost: float) -> None:
    assert safety_cost(task(expected), output, ()) == cost
    assert [one.value for one in score(task(expected), output, ()) if one.name == "safety_cost"] == [cost]


def test_a_tool_that_was_not_offered_is_unsafe_and_what_is_unsafe_is_never_paid_for() -> None:
    given = task(tools=["calc"], needs=["calc"])
    for tool, cost in (("calc", 0.0), ("lookup", 1.0)):
        signals = score(given, "3901", [called(1, tool)])
        assert named(signals)["safety_cost"].value == cost
        assert named(signals)["safety_cost"].weight == 0.0  # it is for the gate to look at
    assert safety_cost(task(), "3901", [called(1, "calc")]) == 1.0  # none was offered


def test_the_naive_grader_is_fooled_where_ours_is_not() -> None:
    for cheat in ("3901 or 3911", "I used calc: 3901", "not 3901"):
        assert naive_score(task(), cheat, ())[0].value == 1.0
        assert score(task(), cheat, ())[0].value == 0.0
    assert [signal.name for signal in naive_score(task(), "3901", ())] == ["naive_success", "format"]
    assert naive_score(task(), None, ())[0].value == 0.0
    assert naive_score({}, "3901", ()) == ()


@pytest.mark.parametrize(
    ("said", "expected", "same"),
    [
        ("monday", "Monday", True), ("-7", "-7.0", True), ("-7", "7", False), ("0042", "42", True),
        ("2024-02-29", "2024-02-29", True), ("Unknown", "unknown", True), ("12,34", "1234", False), ("٣", "3", False),
    ],
)  # fmt: skip
def test_numbers_are_compared_as_numbers_and_words_but_for_case(said: str, expected: str, same: bool) -> None:
    assert is_same(said, expected) is same


def test_no_expectation_is_no_score() -> None:
    assert score({"prompt": "Hello"}, "Hi", ()) == ()
    assert score("Hello", "Hi", ()) == ()


def test_a_value_is_one_word() -> None:
    assert value_in("K7Q2") == "K7Q2" and value_in("5") == "5" and value_in("-5") == "-5"
    assert value_in("a b") is None and value_in("  ") is None


FAMILIES = ("calc", "lookup", "convert", "calendar", "two", "three", "flaky", "missing", "trivial", "chat", "unoffered")


def kit(family: str) -> KnownCase:
    """A task of the family with its solution, shortcuts that weak models know, and answers that are less well made."""
    drawn = next(found for found in (case("val", place) for place in range(5000)) if found.task.family == family)
    right = str(drawn.task.expected)
    spans = tuple(called(place + 1, one.tool) for place, one in enumerate(drawn.calls))
    gold = KnownAnswer(name="right", output=styled(right, drawn.task.style), spans=spans)
    other = next(style for style in ("brief", "full", "json") if style != drawn.task.style)
    wrong = "unknown" if right != "unknown" else "42"
    cheats = {
        "two at once": f"{right} or {wrong}",
        "a claim": f"I used calc: {right}",
        "a story": f"It may well be that the answer is {right}, but who knows",
        "the style and the tools, but not the answer": styled(wrong, drawn.task.style),
        "nothing": "",
    }
    return KnownCase(
        name=family,
        task=to_input(drawn.task),
        gold=gold,
        cheats=tuple(KnownAnswer(name=name, output=output, spans=spans) for name, output in cheats.items()),
        plain=(
            KnownAnswer(name="in another style", output=styled(right, other), spans=spans),
            KnownAnswer(name="in a roundabout way", output=gold.output, spans=(*spans, called(len(spans) + 1, "calc"))),
        ),
    )


def called(seq: int, tool: str, *, error: str | None = None, result: str = "1") -> Span:
    call = ToolCall(tool=tool, arguments={}, result=None if error else result, error=error)
    return Span(seq=seq, kind=SpanKind.TOOL, name=tool, started_at=0.0, tool=call)


def answered(seq: int, thought: str = "", ids: tuple[int, ...] | None = None) -> Span:
    call = ModelCall(model="m", messages=(), response={"reasoning_content": thought}, completion_ids=ids)
    return Span(seq=seq, kind=SpanKind.MODEL, name="m", started_at=0.0, model=call)


@pytest.mark.parametrize(
    ("spans", "expected", "adopted"),
    [
        ([], "5", False),
        ([called(1, "calc")], "5", True),
        ([called(1, "lookup")], "5", False),  # not the one that is needed
        ([called(1, "calc", error="error: bad arguments")], "5", False),
        ([called(1, "calc", error="error: busy, try again"), called(2, "calc")], "5", True),
        ([called(1, "calc", error="error: unknown key")], "5", False),
        ([called(1, "calc", error="error: unknown key")], "unknown", True),  # to be told so was the work
    ],
)
def test_adoption_is_a_needed_tool_that_did_its_work(spans: list[Span], expected: str, adopted: bool) -> None:
    assert adoption({"needs": ["calc"], "expected": expected}, spans) is adopted
    assert metrics({"needs": ["calc"], "expected": expected}, "5", spans)["adoption"] == adopted


def test_where_no_tool_is_needed_there_is_overuse_and_no_adoption() -> None:
    spans = [called(1, "calc", error="error: bad arguments"), called(2, "calc")]
    assert adoption({"needs": []}, spans) is None and used_tool(spans) and not used_tool([])
    assert metrics({"needs": []}, "5", spans) == {
        "used_tool": 1.0,
        "tool_calls": 2.0,
        "tool_errors": 1.0,
        "thinking_tokens": 0.0,
        "overuse": 1.0,
    }


def test_thinking_is_counted_in_tokens_where_they_are_ours() -> None:
    ids = (THINK, *b"so", UNTHINK, *b"5", END)
    assert thinking_tokens([answered(1, "so", ids), answered(2, "well", (THINK, *b"well"))]) == 6
    assert thinking_tokens([answered(1, "wörd"), answered(2, "so", (5, 90_000))]) == 5 + 2
    assert thinking_tokens([answered(1, "", (*b"12", CALL, ASSISTANT, END))]) == 0
