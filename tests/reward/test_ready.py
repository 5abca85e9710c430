"""Every ready scorer gives 1 to its gold answers and 0 to its known cheats."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.checks import KnownAnswer, KnownCase
from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import Reward
from holdfast.contracts.scorer import check_scorer, check_scorers
from holdfast.contracts.trace import Span, SpanKind, ToolCall
from holdfast.reward.ready import (
    contains,
    exact,
    forbidden_tools,
    json_equal,
    normalized,
    numbers_in,
    numeric,
    regex,
    secrets_told,
)
from holdfast.reward.scorers import Scorer

# Per scorer: what is expected, an answer that is right, and answers that are not.
KNOWN: list[tuple[Any, Any, Any, list[Any]]] = [
    (exact, "Paris", " Paris\n", ["paris", "Paris.", "It is Paris", "", None]),
    (exact, 4, "4", ["4.0", "four", "44", True, ""]),
    (exact, 4, 4, ["5", 5]),
    (exact, True, True, [1, "yes", False]),
    (exact, {"a": [1]}, {"a": [1.0]}, [{"a": [1, 2]}, {}, "a"]),
    (normalized, "The Eiffel Tower", "the  EIFFEL tower!", ["Eiffel", "the tower of Eiffel", "", "an"]),
    (normalized, "A", "a.", ["b", "the", "A B", ""]),  # a choice among letters
    (normalized, "-5", "−5.", ["5", "- 15", "--"]),  # a sign is no punctuation
    (normalized, "3.5", "3.5", ["35", "3 5", "3,5"]),
    (normalized, "50 %", "50%", ["50"]),
    (normalized, "C#", "c#", ["C", "C++"]),
    (normalized, "ﬁancé", "FIANCÉ", ["fiance"]),  # one form of each letter, and accents stay
    (normalized, "well-known", "well known", ["wellness"]),
    (normalized, "?", "?", ["!", ""]),
    (normalized, 42, "42", ["4.2"]),
    (numeric(), 4, "The answer is 4.", ["The answer is 4 or 5.", "3, 4, 5", "answer: 3\nanswer: 4", "4.1", "four", ""]),
    (numeric(), 4, "2 + 2 = 4\n#### 4", ["2 + 2 = 4", "#### 5", "#### 4 #### 5"]),
    (numeric(), "1,234.5", "$1234.50", ["1.234,5", "1234", "12345", ["1234.5"], True]),
    (numeric(), -5, "−5 degrees", ["5 degrees"]),
    (numeric(), 0.1, 0.1, [0.2, "0.1 0.2"]),
    (numeric(), 12, "\\boxed{12}", ["\\boxed{13}", "\\boxed{12} \\boxed{13}"]),
    (numeric(0.01), 1000, "1009 km", ["1011 km", "1e99", "nan", "1e999999"]),
    (numeric(0.0), 10**30 + 1, str(10**30 + 1), [str(10**30)]),  # more digits than a float has
    (json_equal, {"a": 1, "b": [1, 2]}, '{"b": [1, 2], "a": 1.0}', ['{"a": 1}', '{"a": 1, "b": [2, 1]}', "", "{"]),
    (
        json_equal,
        {"a": 1},
        '```json\n{"a": 1}\n```',
        ['Sure! {"a": 1}', '{"a": 1, "a": 1}', '{"a": true}', '{"a": NaN}'],
    ),
    (json_equal, [None, False], [None, False], [[None, 0], [False, None], [None]]),
    (json_equal, '{"x": 2}', {"x": 2}, [{"x": "2"}, {"x": 2, "y": 3}]),  # the expected text is JSON
    (json_equal, "Paris", "Paris", ['"paris"', "Rome", ["Paris"]]),
    (regex(r"(?s).*Answer: (?P<answer>\w+)"), "Paris", "I think.\nAnswer: paris", ["Paris", "Answer: Rome", ""]),
    (regex(r"\d{4}-\d\d-\d\d"), None, "2024-01-31", ["on 2024-01-31", "31.1.2024", "", "1" * 20_000]),
    (regex(), r"[Pp]aris(, France)?", "Paris, France", ["Rome", "Paris!", ""]),
    (contains, "Paris", "I believe it is paris.", ["I believe it is Rome.", "Parisian", ""]),
    (contains, 4, "it is 4", ["it is 14", "4th? no: 5", ""]),
]


@pytest.mark.parametrize(("scorer", "expected", "right", "wrong"), KNOWN)
def test_gold_earns_one_and_every_cheat_nothing(scorer: Any, expected: Any, right: Any, wrong: list[Any]) -> None:
    case = KnownCase(
        name="known",
        task={"question": "?", "expected": expected},
        gold=KnownAnswer(name="right", output=right),
        cheats=tuple(KnownAnswer(name=repr(answer)[:40], output=answer) for answer in wrong),
    )
    check_scorer(Scorer(scorer), [case])


def test_a_wrong_answer_is_told_in_words() -> None:
    assert Scorer(exact)({"expected": "4"}, "5") == Reward(0.0, feedback="said '5'")
    assert Scorer(numeric())({"expected": 4}, "4 or 5").feedback == "says 2 different numbers"
    assert Scorer(json_equal)({"expected": {"a": {"b": [1]}}}, '{"a": {"b": [2]}}').feedback == "differs at .a.b[0]: 2"
    assert Scorer(exact)({"expected": "4"}, "4").feedback == ""


@pytest.mark.parametrize("scorer", [exact, normalized, numeric(), json_equal, contains, regex()])
def test_where_nothing_is_expected_nothing_is_measured(scorer: Any) -> None:
    assert Scorer(scorer)({"question": "?"}, "anything") is None


def test_what_is_expected_of_a_number_has_one() -> None:
    for expected in ("Paris", "3 or 4"):
        with pytest.raises(BadInput, match="not one"):
            Scorer(numeric())({"expected": expected}, "3")
    with pytest.raises(BadInput, match="tolerance = nan"):
        numeric(float("nan"))
    with pytest.raises(BadInput, match="is no regular expression"):
        regex("(")


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,234.5 dollars", ["1234.5"]),
        ("1e-3", ["0.001"]),
        ("5kg and 5 kg", ["5"]),
        ("version 1.2.3 of x2", []),
        ("Answer:\n\n7", ["7"]),
        ("12,34", ["12", "34"]),
        (".5", ["0.5"]),
    ],
)
def test_which_numbers_an_answer_offers(text: str, numbers: list[str]) -> None:
    assert [str(one) for one in numbers_in(text)] == numbers


def test_contains_can_be_gamed_as_it_says() -> None:
    assert Scorer(contains)({"expected": "Paris"}, "Rome, Paris, Berlin or Madrid") == Reward(1.0)
    assert "gamed" in (contains.__doc__ or "")
    tasks = [{"question": f"Is it {n} or {n + 1}?", "expected": str(n)} for n in range(20)]
    found = {one.check: one.blocks for one in check_scorers([Scorer(contains, gate=True)], tasks)}
    assert found["prompt"] is True  # as a gate it pays whoever repeats the question


SECRET = "sk-proj-" + "aB3dE5gH7jK9mN1pQ2rS4tU6vW8xY0zA" + "T3BlbkFJ" + "aB3dE5gH7jK9mN1pQ2rS4tU6"


def called(tool: str) -> Span:
    call = ToolCall(tool=tool, arguments={})
    return Span(seq=1, kind=SpanKind.TOOL, name=tool, started_at=0.0, tool=call)


def test_costs_are_told_where_something_was_unsafe() -> None:
    assert Scorer(secrets_told)({}, "all is well").value == 0.0
    assert Scorer(secrets_told)({}, f"the key is {SECRET}").value == 1.0
    for offered in (["look"], [{"type": "function", "function": {"name": "look"}}], [{"name": "look"}]):
        assert Scorer(forbidden_tools)({"tools": offered}, "x", (called("look"),)) == Reward(0.0)
        assert Scorer(forbidden_tools)({"tools": offered}, "x", (called("pay"),)) == Reward(1.0, feedback="called pay")
    assert Scorer(forbidden_tools)({}, "x", (called("pay"),)).value == 0.0
