"""The kits of rewards and scorers: each rule is broken once, and each honest one passes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter
from typing import Any

import pytest

from holdfast.contracts.checks import KnownAnswer, KnownCase, Score, check_reward
from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import Reward, RewardBreakdown, RewardTerm
from holdfast.contracts.scorer import Trace, check_scorer, check_scorers, is_answer, prompt_of, refuse_blocking, resolve
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind, ToolCall
from holdfast.reward.breakdown import OutcomeGate, normalised, total

TASKS = [{"id": f"t{n}", "question": f"What is {n} + {n}?", "expected": str(n + n)} for n in range(20)]


@dataclass
class Made:
    """A scorer with what the check reads of one."""

    function: Any
    name: str = "made"
    gate: bool = True
    takes_trace: bool = False
    gold_is_answer: bool = True
    asks_model: bool = False
    is_group: bool = False

    def __call__(self, task: Any, answer: Any, trace: Trace, /) -> Any:
        return self.function(task, answer)


def right(task: Any, answer: Any) -> Reward:
    return Reward(float(str(answer).strip() == str(task["expected"])))


def checks(function: Any, tasks: Any = TASKS, **fields: Any) -> dict[str, bool]:
    """Which checks found something, and whether that blocks."""
    return {one.check: one.blocks for one in check_scorers([Made(function, **fields)], tasks)}


def test_an_honest_gate_has_no_findings() -> None:
    assert checks(right) == {}


def test_where_the_question_is_the_answer_it_is_no_bait() -> None:
    assert checks(right, [{**task, "expected": task["question"]} for task in TASKS]) == {}


def forgetful(task: Any, answer: Any) -> None:
    float(answer == task["expected"])


async def said_later(task: Any, answer: Any) -> Reward:
    return right(task, answer)


def test_an_async_gate_is_tried_too() -> None:
    assert checks(said_later) == {}


async def test_it_can_be_tried_from_within_a_loop() -> None:
    assert checks(said_later) == {}
    assert resolve(3) == 3


def changing(task: Any, answer: Any) -> Reward:
    task["seen"] = True
    return right(task, answer)


def raising(task: Any, answer: Any) -> Reward:
    raise KeyError(task["id"])


def pays(is_paid: Any) -> Any:
    return lambda task, answer: Reward(float(is_paid(task, answer)))


generous = pays(lambda task, answer: 1.0)
wrong_case = pays(lambda task, answer: f"{answer}!" == task["expected"])
percent = pays(lambda task, answer: 100.0 * (str(answer) == task["expected"]))
fickle = pays(lambda task, answer: random.random())
BROKEN: list[tuple[Any, str]] = [
    (generous, "empty"),  # pays everything
    (generous, "other"),
    (generous, "prompt"),
    # the question is taken for an answer
    (pays(lambda task, answer: str(task["expected"]) == answer or str(answer) == task["question"]), "prompt"),
    (pays(lambda task, answer: any(str(answer) == one["expected"] for one in TASKS)), "other"),
    (wrong_case, "gold"),  # nobody could ever be right
    (raising, "raises"),
    (percent, "range"),
    (fickle, "deterministic"),
    (changing, "changes"),
    (forgetful, "silent"),  # no return
    (lambda task, answer: "yes", "raises"),
]


@pytest.mark.parametrize(("function", "check"), BROKEN)
def test_what_would_spoil_a_run_blocks_it(function: Any, check: str) -> None:
    tasks = [dict(task) for task in TASKS]
    assert checks(function, tasks)[check] is True


def test_a_finding_names_a_few_tasks_and_the_first_that_blocks_is_refused() -> None:
    found = check_scorers([Made(wrong_case)], TASKS)
    gold = next(one for one in found if one.check == "gold")
    assert len(gold.examples) == 3 and "t0" in gold.examples[0]
    assert "20 of 20 tasks" in str(gold)
    with pytest.raises(BadInput, match="scorer made: does not pay 1 to the expected answer"):
        refuse_blocking(found)
    refuse_blocking([replace(gold, blocks=False)])


def test_what_a_scorer_raises_is_told_with_its_place() -> None:
    found = next(one for one in check_scorers([Made(raising)], TASKS) if one.check == "raises")
    assert "KeyError: 't0' (test_scorer.py:" in found.examples[0]


def test_one_odd_task_of_many_warns() -> None:
    odd = [*TASKS[:19], {**TASKS[19], "expected": "thirty-eight "}]
    assert checks(lambda task, answer: Reward(float(answer == task["expected"].strip())), odd) == {"gold": False}


RUBRICS: list[Any] = [
    [{"question": "Write a poem", "expected": {"rubric": ["rhymes", "is short"]}}],
    [{"question": "Write a function", "expected": "def test_it():\n    assert f(1) == 2"}],
]


@pytest.mark.parametrize("tasks", RUBRICS)
def test_what_is_no_answer_is_said_to_be_not_checkable(tasks: Any) -> None:
    assert checks(lambda task, answer: Reward(float("rose" in answer)), tasks) == {"not_checkable": False}


def test_a_scorer_may_say_that_what_is_expected_is_no_answer() -> None:
    tasks = [{"question": "Be polite", "expected": "The answer greets the user by name."}]
    assert checks(lambda task, answer: Reward(float("Dear" in answer)), tasks)["gold"] is True
    assert checks(lambda task, answer: Reward(float("Dear" in answer)), tasks, gold_is_answer=False) == {
        "not_checkable": False
    }


def test_a_gate_that_reads_the_trace_is_not_blamed_for_gold_answers_without_one() -> None:
    assert checks(lambda task, answer: Reward(0.0), takes_trace=True) == {"not_checkable": False}
    assert checks(raising, takes_trace=True)["raises"] is False


@pytest.mark.parametrize("expected", [4, 2.5, True, [1, "a"], {"x": 1}])
def test_a_gold_answer_of_any_json_type_may_be_paid_as_value_or_as_text(expected: Any) -> None:
    tasks = [{"question": "?", "expected": expected}, {"question": "!", "expected": "no such"}]
    assert checks(lambda task, answer: Reward(float(answer == task["expected"])), tasks) == {}

    def by_text(task: Any, answer: Any) -> Reward:
        import json

        wanted = task["expected"] if isinstance(task["expected"], str) else json.dumps(task["expected"])
        return Reward(float(answer.strip() == wanted))

    assert checks(by_text, tasks) == {}  # all answers are tried in the form that it takes


def test_shaping_may_pay_what_it_likes_but_must_be_sound() -> None:
    assert checks(generous, gate=False) == {}
    assert checks(percent, gate=False) == {}
    assert checks(fickle, gate=False) == {"deterministic": True}


def test_a_safety_scorer_always_says_a_cost() -> None:
    def found(function: Any) -> dict[str, bool]:
        made = [Made(function, gate=False)]
        return {one.check: one.blocks for one in check_scorers([], TASKS, safety=made)}

    assert found(lambda task, answer: Reward(0.0)) == {}
    assert found(lambda task, answer: Reward(-1.0)) == {"cost": True}
    assert found(lambda task, answer: None)["cost"] is True


@pytest.mark.parametrize("why", ["asks_model", "is_group"])
def test_who_asks_a_model_or_needs_a_group_is_not_called(why: str) -> None:
    assert checks(raising, **{why: True}) == {"not_checkable": False}


def test_of_many_tasks_only_a_sample_is_tried() -> None:
    asked: set[str] = set()

    def counting(task: Any, answer: Any) -> Reward:
        asked.add(task["id"])
        return right(task, answer)

    many = [{"id": str(n), "question": f"{n}?", "expected": str(n)} for n in range(10_000)]
    began = perf_counter()
    assert checks(counting, many) == {}
    assert perf_counter() - began < 2.0
    assert len(asked) == 64 and max(map(int, asked)) > 9_000  # from the whole list


def test_the_prompt_is_found_by_its_usual_names() -> None:
    assert prompt_of("hi") == "hi"
    assert prompt_of({"prompt": "p", "text": "longer text"}) == "p"
    assert prompt_of({"a": "x", "b": "the longest", "expected": "the very longest of all"}) == "the longest"
    assert prompt_of({"board": [0]}) is None and prompt_of(3) is None
    assert is_answer("Paris") and is_answer({"x": 1}) and not is_answer({"Tests": []})


# What a scorer is shown


def span(seq: int, kind: SpanKind, **rest: Any) -> Span:
    return Span(seq=seq, kind=kind, name=str(kind), started_at=0.0, **rest)


def call(text: str) -> ModelCall:
    asked = ({"role": "user", "content": "hi"},)
    return ModelCall(model="m", messages=asked, response={"role": "assistant", "content": text})


def test_a_trace_offers_calls_tools_and_messages_in_order() -> None:
    tool = ToolCall(tool="look", arguments={})
    calls = [span(seq, SpanKind.MODEL, model=call(text)) for seq, text in ((3, "second"), (1, "first"))]
    cut = span(4, SpanKind.MODEL, model=call("cut"), attributes={PARTIAL: "closed"})
    trace = Trace((*calls, span(2, SpanKind.TOOL, tool=tool), cut))
    assert [one.response["content"] for one in trace.calls] == ["first", "second"]
    assert trace.tools == (tool,)
    assert [one["content"] for one in trace.messages] == ["hi", "second"]
    assert len(trace.spans) == 4
    told = Trace((span(1, SpanKind.MESSAGE, attributes={"role": "user", "text": "hello"}),))
    assert [one["content"] for one in told.messages] == ["hello"]


# The kit for whoever writes one

SUM = KnownCase(
    name="sum",
    task={"question": "2 + 2", "expected": "4"},
    gold=KnownAnswer(name="right", output="4"),
    cheats=(KnownAnswer(name="all", output="3 4 5"),),
)


def lenient(task: Any, answer: Any) -> Reward:
    return Reward(float(task["expected"] in answer))


def test_gold_earns_one_and_cheats_nothing() -> None:
    check_scorer(Made(right), [SUM])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lenient, "sum: 'all': earns 1"),
        (wrong_case, "sum: 'right': earns 0"),
        (fickle, "sum: 'right': the scorer says something else each time"),
        (forgetful, "sum: 'right': gives NoneType, not a Reward"),
    ],
)
def test_a_scorer_that_can_be_had_is_found_out(function: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_scorer(Made(function), [SUM])


def test_a_scorer_that_was_never_tempted_is_not_passed() -> None:
    with pytest.raises(AssertionError, match="has no cheats"):
        check_scorer(Made(right), [replace(SUM, cheats=())])
    with pytest.raises(AssertionError, match="no cases"):
        check_scorer(Made(right), [])


GUARD = OutcomeGate(vetoes=("tampered",))
CASE = KnownCase(
    name="two and two",
    task={"expected": "4"},
    gold=KnownAnswer(name="right", output="4"),
    plain=(KnownAnswer(name="chatty", output="4!"),),
    cheats=(KnownAnswer(name="all numbers", output="1 2 3 4 5"), KnownAnswer(name="hacks the test", output="hack 4")),
)


def _signal(name: str, value: float, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(name=name, value=float(value), weight=weight, source="rule:test")


def honest(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    is_right = output.split()[-1].rstrip("!") == task["expected"] and len(output.split()) <= 2
    styled = _signal("format", output.isdigit(), 0.1)
    tampered = _signal("tampered", output.startswith("hack"))
    return total([_signal("success", is_right), styled, tampered], GUARD).signals


def reward_of(*terms: Callable[[str], RewardTerm], is_gated: bool = False) -> Score:
    """A reward made of these terms of what was answered."""

    def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
        made = [term(output) for term in terms]
        return total(made, GUARD).signals if is_gated else tuple(made)

    return score


def success(is_right: Callable[[str], float]) -> Callable[[str], RewardTerm]:
    return lambda output: _signal("success", is_right(output))


def greedy(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    task["expected"] = output
    return (_signal("success", 1.0),)


numbers = count()
PLAIN = success(lambda output: output in ("4", "4!"))
ALWAYS = success(lambda output: 1.0)
DISHONEST: dict[str, tuple[Score, str]] = {
    "naive": (reward_of(success(lambda output: "4" in output)), "the cheat 'all numbers' earns 1"),
    "ungated": (reward_of(PLAIN, lambda output: _signal("format", 1.0, 0.1)), "the cheat 'all numbers' earns 0.1"),
    "half": (reward_of(success(lambda output: 0.5)), "success of 'right' is 0.5, neither 0 nor 1"),
    "blind": (reward_of(success(lambda output: 0.0)), "the gold answer 'right' earns 0"),
    "strict": (reward_of(success(lambda output: output == "4")), "the right answer 'chatty' fails success"),
    # a cheat passes the check, earns nothing, and nobody says why
    "unpaid": (
        reward_of(lambda output: _signal("success", "4" in output, weight=float("4" in output[:2]))),
        "the cheat 'all numbers' passes success, and no guard",
    ),
    # pays for length among the right ones
    "chatty": (
        reward_of(PLAIN, lambda output: _signal("length", len(output), 0.1), is_gated=True),
        "the right answer 'chatty' earns more than the gold one",
    ),
    "forgetful": (reward_of(), "'right': nothing was measured"),
    "twice": (reward_of(ALWAYS, ALWAYS), "has 2 signals called success"),
    "fickle": (reward_of(ALWAYS, lambda output: _signal("n", next(numbers), 0.0)), "says something else each time"),
    "greedy": (greedy, "changed what it was given"),
}


def test_an_honest_reward_passes() -> None:
    check_reward(honest, [CASE], normalised)


@pytest.mark.parametrize("name", DISHONEST)
def test_a_reward_that_can_be_had_is_found_out(name: str) -> None:
    score, why = DISHONEST[name]
    with pytest.raises(AssertionError, match=why):
        check_reward(score, [replace(CASE, task={"expected": "4"})], normalised)


def test_a_share_that_is_not_one_for_gold_is_found_out() -> None:
    def of_ten(breakdown: RewardBreakdown, gold: RewardBreakdown) -> float:
        return (breakdown.total or 0.0) / 10

    with pytest.raises(AssertionError, match="share is 0.11, not 1"):
        check_reward(honest, [CASE], of_ten)


def test_a_kit_that_checks_nothing_says_so() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        check_reward(honest, [], normalised)
    with pytest.raises(AssertionError, match="has no cheats"):
        check_reward(honest, [KnownCase(name="c", task={}, gold=CASE.gold, cheats=())], normalised)
