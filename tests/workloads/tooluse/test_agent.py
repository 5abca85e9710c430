"""The agent with scripted models: an oracle solves every task, and no bad call breaks the conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.collect.agent import Context, Tracer
from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.trace import TRUNCATED, ModelCall, SpanKind
from holdfast.workloads.tooluse.agent import MAX_TURNS, agent
from holdfast.workloads.tooluse.dialogues import styled
from holdfast.workloads.tooluse.score import adoption, score
from holdfast.workloads.tooluse.tasks import HARD, SPLITS, UNKNOWN, SolvedTask, case, to_input
from holdfast.workloads.tooluse.tools import is_error
from tests.collect.scene import assignment


class Script:
    """A model that says what it is told to, and remembers what it was asked."""

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        self._answers, self.asked = list(answers), list[tuple[list[Mapping[str, Any]], dict[str, Any]]]()

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        self.asked.append((list(messages), sampling))
        response = self._answers[min(len(self.asked), len(self._answers)) - 1]
        return ModelCall(model="script", messages=tuple(messages), response=response)


class Oracle:
    """Knows which calls to make, not what they give: its answer is what the tools said last."""

    def __init__(self, drawn: SolvedTask) -> None:
        self._drawn, self._turn = drawn, 0

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        calls, task = self._drawn.calls, self._drawn.task
        self._turn += 1
        if self._turn <= len(calls):
            call = calls[self._turn - 1]
            response = asking(call.tool, call.arguments)
        else:
            told = [str(message["content"]) for message in messages if message["role"] == "tool"]
            answer = told[-1] if told else UNKNOWN if task.family == "unoffered" else self._drawn.plausible
            response = saying(styled(UNKNOWN if is_error(answer) else answer, task.style))
        return ModelCall(model="oracle", messages=tuple(messages), response=response)


def saying(text: str | None) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def asking(name: str, arguments: Any, identity: str = "call_0") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {**saying(None), "tool_calls": [{"id": identity, "type": "function", "function": function}]}


def context(model: Any, **fields: Any) -> Context:
    return Context(assignment=assignment(**fields), trace=Tracer(lambda span: None, lambda: 0.0), complete=model)


def seen(drawn: SolvedTask) -> dict[str, Any]:
    """What an agent is given: nothing that is hidden."""
    given = to_input(drawn.task)
    del given["expected"]
    return given


def first(family: str, form: str) -> SolvedTask:
    cases = (case("train", place) for place in range(5000))
    return next(drawn for drawn in cases if (drawn.task.family, drawn.task.form) == (family, form))


@pytest.mark.parametrize("split", SPLITS)
def test_every_task_can_be_solved_with_the_tools(split: str) -> None:
    async def solve() -> None:
        for place in range(500):
            drawn = case(split, place) if place % 2 else case(split, place, HARD)
            given = context(Oracle(drawn))
            answer = await agent(seen(drawn), given)
            signals = score(to_input(drawn.task), answer, given.trace.spans)
            assert RewardBreakdown(signals=signals).total == pytest.approx(1.1), drawn
            assert adoption(to_input(drawn.task), given.trace.spans) is (True if drawn.task.needs else None)

    asyncio.run(solve())


async def test_the_conversation_is_handed_on_as_it_was_said() -> None:
    drawn = first("lookup", "lookup")
    call = drawn.calls[0]
    asked = {**asking("lookup", call.arguments, "abc"), "reasoning_content": "hm"}
    model = Script(asked, saying("done"))
    given = context(model)
    assert await agent({**seen(drawn), "sampling": {"temperature": 0.5}}, given) == "done"
    (opening, sampling), (messages, later) = model.asked
    assert opening == drawn.task.messages
    assert [tool["function"]["name"] for tool in sampling["tools"]] == list(drawn.task.tools)
    assert sampling["temperature"] == 0.5 and sampling["seed"] == 7 and later["seed"] != 7
    assert messages == [*opening, asked, {"role": "tool", "tool_call_id": "abc", "content": call.result}]
    kinds = [span.kind for span in given.trace.spans]
    assert kinds == [SpanKind.MESSAGE, SpanKind.MODEL, SpanKind.TOOL, SpanKind.MODEL, SpanKind.MESSAGE]


@pytest.mark.parametrize(
    ("name", "arguments", "error"),
    [
        ("lookup", "{", "error: bad arguments"),
        ("lookup", None, "error: bad arguments"),
        ("lookup", {"key": "a"}, "error: bad arguments"),  # an object where text belongs
        ("lookup", '{"key":"nowhere"}', "error: unknown key"),
        ("sing", "{}", "error: unknown tool"),
        ("", "", "error: unknown tool"),
    ],
)
async def test_a_bad_call_is_answered_with_an_error(name: str, arguments: Any, error: str) -> None:
    model = Script(asking(name, arguments), saying("so be it"))
    given = context(model)
    assert await agent(seen(first("lookup", "lookup")), given) == "so be it"
    assert model.asked[1][0][-1]["content"] == error
    (call,) = [span.tool for span in given.trace.spans if span.tool is not None]
    assert call.error == error and call.result is None


@pytest.mark.parametrize("call", [None, "lookup", {}, {"function": "lookup"}, {"function": {"name": None}}])
async def test_what_is_no_call_at_all_is_an_error_too(call: Any) -> None:
    model = Script({**saying(None), "tool_calls": [call]}, saying("5"))
    assert await agent(seen(first("lookup", "lookup")), context(model)) == "5"
    assert model.asked[1][0][-1]["content"].startswith("error: ")


async def test_several_calls_in_one_answer_are_run_in_order() -> None:
    drawn = first("lookup", "lookup")
    call = asking("lookup", drawn.calls[0].arguments)["tool_calls"][0]
    model = Script({**saying(None), "tool_calls": [call, {**call, "id": "call_1"}]}, saying("5"))
    await agent(seen(drawn), context(model))
    assert [message["tool_call_id"] for message in model.asked[1][0][-2:]] == ["call_0", "call_1"]


@pytest.mark.parametrize(("turns", "expected"), [({}, MAX_TURNS), ({"max_turns": 2}, 2)])
async def test_a_model_that_never_answers_has_no_answer(turns: dict[str, int], expected: int) -> None:
    model = Script(asking("lookup", "{"))
    ctx = context(model)
    assert await agent({**seen(first("lookup", "lookup")), **turns}, ctx) == ""
    assert len(model.asked) == expected
    cut = [span.attributes for span in ctx.trace.spans if span.name == TRUNCATED]
    assert cut == [{"why": "max_turns"}]  # it had not come to its end


async def test_a_model_that_answers_in_its_last_turn_is_not_cut() -> None:
    model = Script(asking("lookup", "{"), saying("5"))
    await agent({**seen(first("lookup", "lookup")), "max_turns": 2}, ctx := context(model))
    assert len(model.asked) == 2 and not [span for span in ctx.trace.spans if span.name == TRUNCATED]


async def test_no_tools_are_no_empty_list_and_the_prompt_in_force_stands_first() -> None:
    drawn = next(d for d in (case("train", place) for place in range(2000)) if not d.task.tools)
    model = Script(saying(None))
    assert await agent(seen(drawn), context(model, resources={"system_prompt": "Be kind."})) == ""
    messages, sampling = model.asked[0]
    assert "tools" not in sampling and messages[0]["content"] == f"Be kind. {drawn.task.system}"


@pytest.mark.parametrize("change", [{"sampling": "hot"}, {"max_turns": 0}, {"max_turns": True}, {"style": "loud"}])
async def test_a_task_that_makes_no_sense_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        await agent({**seen(first("calc", "calc")), **change}, context(Script(saying("5"))))
