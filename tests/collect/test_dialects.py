"""The dialects: one conversation is the same in all three, and what a model does not know is refused by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import anthropic
import openai
import pytest

from holdfast.collect.agent import Context
from holdfast.collect.client import Client
from holdfast.collect.gateway_app import as_said
from holdfast.contracts.trace import ModelCall
from tests.collect.clients import (
    FLAT,
    HELLO,
    THEIRS,
    answered,
    asking,
    calls,
    message,
    named,
    posted,
)
from tests.collect.test_endpoint import CALC, Script
from tests.endpoint import serving

# Tools, turn after turn


async def chat_tools(context: Context) -> str:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        ask = partial(client.chat.completions.create, model=context.model, tools=[CALC])
        first = (await ask(messages=HELLO)).choices[0].message
        (call,) = first.tool_calls or ()
        result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
        again: list[Any] = [*HELLO, first.model_dump(exclude_none=True), result]
        return (await ask(messages=again)).choices[0].message.content or ""


async def response_tools(context: Context) -> str:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        ask = partial(client.responses.create, model=context.model, tools=[FLAT])
        first = await ask(input=HELLO)
        (call,) = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
        again: Any = [*HELLO, *(item.model_dump(exclude_none=True) for item in first.output), result]
        return (await ask(input=again)).output_text


async def message_tools(context: Context) -> str:
    async with anthropic.AsyncAnthropic(base_url=context.base_url, api_key=context.api_key) as client:
        ask = partial(client.messages.create, model=context.model, tools=[THEIRS], max_tokens=60)
        first = await ask(messages=HELLO)
        assert first.stop_reason == "tool_use"
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert call.input == {"expression": "2+2"}
        said = [block.model_dump(exclude_none=True) for block in first.content]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "4"}
        again: Any = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        return "".join(block.text for block in (await ask(messages=again)).content if block.type == "text")


@pytest.mark.parametrize("client", [chat_tools, response_tools, message_tools], ids=named)
async def test_the_second_turn_begins_with_the_tokens_of_the_first(client: Any) -> None:
    said, spans = await answered(asking(client), Script())
    first, second = calls(spans)
    assert said == second.response["content"] == "It is 4."
    assert second.messages[-1] == {"role": "tool", "tool_call_id": "call_0", "content": "4"}
    # Its client may have written the arguments anew; what the model reads is what it said, to the letter.
    assert second.messages[1]["tool_calls"] == first.response["tool_calls"]
    if client is not chat_tools:  # which has no way to give a thought back
        assert first.prompt_ids and first.completion_ids and second.prompt_ids
        before = first.prompt_ids + first.completion_ids
        assert second.prompt_ids[: len(before)] == before


class Slip(Script):
    def answer(self, messages: Any, sampling: Mapping[str, Any]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return super().answer(messages, sampling)
        return {"content": "", "tool_calls": [{"function": {"name": "calc", "arguments": '{"expression": "2+'}}]}


async def test_arguments_that_are_no_json_reach_the_agent_and_come_back_as_they_were() -> None:
    async def agent(task: Any, context: Context) -> Any:
        async with anthropic.AsyncAnthropic(base_url=context.base_url, api_key=context.api_key) as client:
            ask = partial(client.messages.create, model=context.model, tools=[THEIRS], max_tokens=60)
            (call,) = [block for block in (await ask(messages=HELLO)).content if block.type == "tool_use"]
            async with client.messages.stream(
                model=context.model, tools=[THEIRS], max_tokens=60, messages=HELLO
            ) as stream:
                streamed = (await stream.get_final_message()).content[-1]
            assert streamed.type == "tool_use" and streamed.input == call.input
            said = {"role": "assistant", "content": [call.model_dump(exclude_none=True)]}
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "?"}
            again: Any = [*HELLO, said, {"role": "user", "content": [result]}]
            await ask(messages=again)
        return call.input

    given, spans = await answered(agent, Slip())
    assert given == {"raw_arguments": '{"expression": "2+'}
    first, _, last = calls(spans)
    assert last.messages[1]["tool_calls"] == first.response["tool_calls"]


@pytest.mark.parametrize(
    ("given", "limit"), [({"type": "enabled", "budget_tokens": 64}, 64), ({"type": "disabled"}, 0)]
)
async def test_anthropics_thinking_is_a_limit_of_thinking(given: Any, limit: int) -> None:
    model = Script()
    await answered(asking(message, thinking=given), model)
    assert model.asked[0]["thinking"] == limit


REFUSED: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
    ("v1/chat/completions", {"logit_bias": {"5": 1}}, "logit_bias"),
    ("v1/chat/completions", {"min_p": 0.1}, "min_p"),
    ("v1/chat/completions", {"frequency_penalty": 0.5}, "frequency_penalty"),
    ("v1/chat/completions", {"presence_penalty": -1}, "presence_penalty"),
    ("v1/chat/completions", {"repetition_penalty": 1.1}, "repetition_penalty"),
    ("v1/chat/completions", {"n": 2}, "n = 2"),
    ("v1/chat/completions", {"tool_choice": "required", "tools": [CALC]}, "tool_choice"),
    ("v1/chat/completions", {"reasoning_effort": "high"}, "reasoning_effort"),
    ("v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
    ("v1/responses", {"messages": HELLO}, "messages"),
    ("v1/responses", {"input": "hi", "text": {"format": {"type": "json_object"}}}, "response_format"),
    ("v1/responses", {"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
    ("v1/responses", {"input": "hi", "truncation": "auto"}, "truncation"),
    ("v1/responses", {"input": "hi", "reasoning": {"effort": "low"}}, "reasoning_effort"),
    ("v1/messages", {"tool_choice": {"type": "any"}, "tools": [THEIRS]}, "tool_choice"),
    ("v1/messages", {"thinking": {"type": "adaptive"}}, "thinking"),
    ("v1/messages", {"output_config": {"effort": "low"}}, "output_config"),
    ("v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ("v1/messages", {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "messages[0]"),
)


@pytest.mark.parametrize(("path", "body", "name"), REFUSED, ids=[f"{row[0]} {row[2]}" for row in REFUSED])
async def test_what_the_model_does_not_know_is_refused_by_name(path: str, body: Any, name: str) -> None:
    async def agent(task: Any, context: Context) -> Any:
        return await posted(context, path, **body)

    model = Script()
    (status, told), spans = await answered(agent, model)
    assert status == 400 and told["error"]["message"].startswith(name)
    assert told["error"]["type"] == "invalid_request_error" and (path != "v1/messages" or told["type"] == "error")
    assert model.calls == [] and calls(spans) == []


NEUTRAL: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "v1/chat/completions",
        {"response_format": {"type": "text"}, "n": 1, "logit_bias": {}, "frequency_penalty": 0, "presence_penalty": 0.0}
        | {"min_p": 0, "stop": None, "user": "me", "store": False, "parallel_tool_calls": True, "tool_choice": "auto"},
    ),
    (
        "v1/responses",
        {"input": "hi", "text": {"format": {"type": "text"}, "verbosity": "medium"}, "include": []}
        | {"truncation": "disabled", "reasoning": {}, "store": False, "parallel_tool_calls": True, "background": False},
    ),
    ("v1/messages", {"metadata": {"user_id": "me"}, "service_tier": "auto", "tool_choice": {"type": "auto"}}),
)


@pytest.mark.parametrize(("path", "body"), NEUTRAL, ids=[row[0] for row in NEUTRAL])
async def test_what_changes_nothing_is_taken(path: str, body: Any) -> None:
    async def agent(task: Any, context: Context) -> Any:
        return await posted(context, path, **body)

    model = Script()
    (status, told), _ = await answered(agent, model)
    assert status == 200, told
    assert set(model.asked[0]) <= {"max_tokens"}


async def test_an_endpoint_judges_itself_what_it_is_asked_for() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
    flat = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}

    async def agent(task: Any, context: Context) -> Any:
        first = await posted(context, response_format=form, min_p=0.1, tool_choice="required", tools=[CALC])
        second = await posted(context, "v1/responses", text={"format": flat}, reasoning={"effort": "low"})
        return [first[0], first[1]["choices"][0]["message"]["content"], second[0]]

    with serving() as endpoint:
        said, spans = await answered(agent, Client("tiny", endpoint.url))
    first, second = (one.body for one in endpoint.asked)
    assert said == [200, "echo: What is 2+2?", 200] and len(calls(spans)) == 2
    assert (first["response_format"], first["min_p"], first["tool_choice"]) == (form, 0.1, "required")
    assert first["model"] == second["model"] == "tiny"  # by whatever name it was asked for
    assert (second["response_format"], second["reasoning_effort"]) == (form, "low")


# Whole and streamed


def call_of(name: str, arguments: str, identity: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


ANSWERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "text": ({"content": "Four, I  think.\n"}, "stop"),
    "thought": ({"reasoning_content": "2 + 2", "content": "Four."}, "stop"),
    "only a thought": ({"reasoning_content": "2 + 2", "content": ""}, "length"),
    "cut": ({"content": "Four, I"}, "length"),
    "filtered": ({"content": "Fo"}, "content_filter"),
    "nothing": ({"content": None}, "stop"),
    "calls": (
        {"content": "Let me see.", "tool_calls": [call_of("calc", '{"x": "1"}', "a"), call_of("look", "", "b")]},
        "stop",
    ),
    "a slip": ({"content": "", "tool_calls": [call_of("calc", "[1, 2]", "a")]}, "tool_calls"),
}


def saying(answer: str) -> Any:
    response, reason = ANSWERS[answer]

    async def say(messages: Any, /, **sampling: Any) -> ModelCall:
        said = {"role": "assistant", **response}
        return ModelCall(
            model="m@1",
            messages=tuple(messages),
            response=said,
            finish_reason=reason,
            prompt_tokens=3,
            completion_tokens=2,
        )

    return say


def without_ids(dumped: Any) -> Any:
    """Names that are new in every answer are left out; those of calls are the model's own."""
    if isinstance(dumped, list):
        return [without_ids(one) for one in dumped]
    if not isinstance(dumped, dict):
        return dumped
    own = ("id", "created_at", "completed_at") if dumped.get("type") != "tool_use" else ()
    return {name: without_ids(value) for name, value in dumped.items() if name not in own}


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_stream_of_responses_adds_up_to_the_whole_response(answer: str) -> None:
    async def agent(task: Any, context: Context) -> Any:
        async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
            whole = await client.responses.create(model=context.model, input=HELLO)
            async with client.responses.stream(model=context.model, input=HELLO) as stream:
                events = [event async for event in stream]
            raw = await client.responses.create(model=context.model, input=HELLO, stream=True)
            last = [event async for event in raw][-1]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return [whole.model_dump(mode="json"), last.response.model_dump(mode="json")]

    (whole, streamed), _ = await answered(agent, saying(answer))
    assert without_ids(streamed) == without_ids(whole)
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(ANSWERS[answer][1])
    assert (whole["status"], whole["incomplete_details"]) == (
        ("completed", None) if cut is None else ("incomplete", {"reason": cut})
    )
    assert whole["usage"]["total_tokens"] == 5


@pytest.mark.parametrize("answer", ANSWERS)
async def test_a_stream_of_messages_adds_up_to_the_whole_message(answer: str) -> None:
    async def agent(task: Any, context: Context) -> Any:
        async with anthropic.AsyncAnthropic(base_url=context.base_url, api_key=context.api_key) as client:
            whole = await client.messages.create(model=context.model, messages=HELLO, max_tokens=9)
            async with client.messages.stream(model=context.model, messages=HELLO, max_tokens=9) as stream:
                streamed = await stream.get_final_message()
        return [whole.model_dump(mode="json"), streamed.model_dump(mode="json")]

    (whole, streamed), _ = await answered(agent, saying(answer))
    for block in streamed["content"]:
        block.pop("parsed_output", None)  # the stream's own
    assert without_ids({**streamed, "model": ""}) == without_ids({**whole, "model": ""})
    reasons = {"calls": "tool_use", "a slip": "tool_use", "only a thought": "max_tokens", "cut": "max_tokens"}
    assert whole["stop_reason"] == {**reasons, "filtered": "refusal"}.get(answer, "end_turn")


@pytest.mark.parametrize(
    ("given", "said", "read"),
    [
        ('{"a":1}', '{"a": 1}', '{"a": 1}'),  # written anew
        ('{"a":2}', '{"a": 1}', '{"a":2}'),  # changed: it is what the agent says now
        ("{}", "", ""),  # no arguments at all
        ('{"raw_arguments":"{\\"a"}', '{"a', '{"a'),  # what was no JSON
        ("also no json", "no json", "also no json"),
    ],
)
def test_arguments_are_read_as_the_model_wrote_them(given: str, said: str, read: str) -> None:
    before = [call_of("calc", '{"b": 1}', "a"), call_of("calc", said, "a"), call_of("look", '{"a" : 1}', "a")]
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call_of("calc", given, "a")]}]
    question, answer = as_said(messages, before)
    assert question == HELLO[0] and answer["tool_calls"] == [call_of("calc", read, "a")]
    assert as_said(messages, ()) == tuple(messages)
