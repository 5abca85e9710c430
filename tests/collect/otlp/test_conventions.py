"""Calls in all the forms in which instrumentations have written them, and ours written and read back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.otlp.conventions import SAID, model_attributes, model_call, tool_attributes, tool_call
from holdfast.collect.otlp.wire import JSON, PROTOBUF, OtelEvent, OtelSpan, read, written
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.trace import ModelCall, ToolCall

MESSAGES = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"a":2}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
)
ANSWER = {"role": "assistant", "content": "Four."}
CALL = {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"a":2}'}}
BASE = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def foreign(attributes: dict[str, Any] | None = None, *events: tuple[str, dict[str, Any]], **more: Any) -> OtelSpan:
    noted = tuple(OtelEvent(name=name, at_ns=1, attributes=body) for name, body in events)
    given: dict[str, Any] = {"trace_id": "ab" * 16, "span_id": "cd" * 8, "name": "x", "started_ns": 1, "ended_ns": 2}
    return OtelSpan(**given, attributes=attributes or {}, events=noted, **more)


PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "2+2?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "calc", "arguments": {"a": 2}}]},
    {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "name": "calc", "result": "4"}]},
]
TODAY = {
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
    "gen_ai.input.messages": PARTS,
    "gen_ai.output.messages": [
        {"role": "assistant", "parts": [{"type": "text", "content": "Four."}], "finish_reason": "stop"}
    ],
}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("gen_ai.system.message", {"content": "Be brief."}),
    ("gen_ai.user.message", {"content": "2+2?"}),
    ("gen_ai.assistant.message", {"tool_calls": [CALL]}),
    ("gen_ai.tool.message", {"id": "c1", "content": "4"}),
    ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Four."}}),
]
NUMBERED = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "2+2?",
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.id": "c1",
    "gen_ai.prompt.2.tool_calls.0.name": "calc",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"a":2}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.content": "4",
    "gen_ai.prompt.3.tool_call_id": "c1",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Four.",
    "gen_ai.completion.0.finish_reason": "stop",
}
FORMS = {
    "today, structured": foreign({**BASE, **TODAY}),
    "today, as JSON": foreign({**BASE, **{name: json.dumps(value) for name, value in TODAY.items()}}),
    "today, in an event": foreign(BASE, ("gen_ai.client.inference.operation.details", TODAY)),
    "an event a message": foreign(BASE, *BODIES),
    "an event a message, flat": foreign(
        BASE,
        *((name, {k: v if isinstance(v, str) else json.dumps(v) for k, v in body.items()}) for name, body in BODIES),
    ),
    "events in an attribute": foreign({**BASE, "events": json.dumps([{"event.name": n, **b} for n, b in BODIES])}),
    "by number": foreign({**BASE, **NUMBERED}),
    "whole": foreign(
        BASE,
        ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(MESSAGES)}),
        ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([{**ANSWER, "finish_reason": "stop"}])}),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str) -> None:
    call = model_call(FORMS[form])
    assert call is not None
    assert call.messages == MESSAGES
    assert call.response == ANSWER and call.finish_reason == "stop" and call.model == "m"


@pytest.mark.parametrize(
    ("attributes", "kept"),
    [
        ({"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 6}, (5, 6, None)),
        ({"gen_ai.usage.prompt_tokens": 5, "gen_ai.usage.completion_tokens": 6}, (5, 6, None)),
        ({"gen_ai.usage.output_tokens": 6, "gen_ai.usage.reasoning.output_tokens": 2}, (None, 6, 2)),
        ({"gen_ai.usage.input_tokens": -1, "gen_ai.usage.prompt_tokens": "5"}, (None, None, None)),
    ],
)
def test_usage_has_older_names(attributes: dict[str, Any], kept: Any) -> None:
    call = model_call(foreign({**BASE, **attributes}))
    assert call is not None and (call.prompt_tokens, call.completion_tokens, call.thinking_tokens) == kept


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m", "gen_ai.input.messages": PARTS},
        {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "m"},
        {"gen_ai.operation.name": "chat"},  # of which model?
        {"http.method": "POST"},
    ],
)
def test_what_is_no_call_of_a_model_is_not_taken_for_one(attributes: dict[str, Any]) -> None:
    assert model_call(foreign(attributes)) is None and tool_call(foreign(attributes)) is None


def test_tools_have_older_names_and_errors() -> None:
    old = {"gen_ai.tool.name": "calc", "tool_arguments": '{"a":2}', "tool_response": '"4"'}
    assert tool_call(foreign(old)) == ToolCall(tool="calc", arguments={"a": 2}, result="4")
    failed = tool_call(foreign({**old, "gen_ai.operation.name": "execute_tool"}, error="no"))
    assert failed is not None and failed.error == "no"


CALLS = [
    ModelCall(model="m", messages=(), response={}),
    ModelCall(
        model="m",
        messages=(*MESSAGES, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}),
        response={"role": "assistant", "content": "Ja.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
        finish_reason="tool_calls",
        prompt_tokens=7,
        completion_tokens=4,
        thinking_tokens=1,
        prompt_ids=(1, 2, 0),
        completion_ids=(3, 0, 5),
        logprobs=(-0.1, 0.0, -2.5),
        forced=(1,),
        scrubbed=((2, 3), (4, 5)),
        sampling={
            "temperature": 0.7,
            "top_k": 5,
            "stop": ["END"],
            "thinking": 12,
            "tools": [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}],
        },
    ),
    ModelCall(  # arguments in a form of their own stay as they were sampled
        model="m",
        messages=({"role": "user", "content": "x"},),
        response={
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": None, "type": "function", "function": {"name": "f", "arguments": '{"a" : 1'}}],
        },
        finish_reason="length",
    ),
]


@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_ours_comes_back_exactly(call: ModelCall, media_type: str) -> None:
    ((span,), _) = read(written([foreign(model_attributes(call))], media_type), media_type)
    assert model_call(span) == call
    assert all(SAID.match(name) for name in span.attributes if "messages" in name or "holdfast." in name)


def test_a_tool_of_ours_comes_back_exactly() -> None:
    call = ToolCall(tool="calc", arguments={"a": [1, "ü"]}, result={"b": None}, error="e", call_id="c1")
    assert tool_call(foreign(tool_attributes(call), error="e")) == call


NAMES = st.sampled_from(
    [*TODAY, *NUMBERED, "events", "gen_ai.tool.definitions", "gen_ai.prompt", "holdfast.prompt_ids"]
)
WORDS = st.sampled_from(
    ["role", "parts", "type", "content", "tool_call", "arguments", "text", "id", "name", "function"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(NAMES, VALUES | VALUES.map(json.dumps), max_size=5),
    st.lists(
        st.tuples(st.sampled_from([n for n, _ in BODIES]), st.dictionaries(WORDS, VALUES, max_size=3)), max_size=3
    ),
)
def test_no_attributes_make_it_fail_otherwise_than_it_may(attributes: dict[str, Any], events: list[Any]) -> None:
    """What cannot be a record is refused as one span; see take."""
    try:
        model_call(foreign({**BASE, **attributes}, *events))
    except (BadRecord, ValueError, TypeError):
        assert "holdfast.prompt_ids" in attributes
