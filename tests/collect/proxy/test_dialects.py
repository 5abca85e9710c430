"""Each dialect reads requests and answers, whole and from their events; the span says it in chat form.

Anthropic's and OpenAI's own clients call through the proxy: they get what the upstream sent, byte for byte.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.dialect import (
    Assembler,
    Chat,
    Event,
    MessageBuilder,
    ModelRequest,
    Splitter,
    count,
    kind,
    loads,
    part,
    read_object,
    spliced,
    token_ids,
    written,
)
from holdfast.collect.proxy.responses import Responses
from holdfast.contracts.errors import BadInput
from holdfast.contracts.records import encode
from holdfast.contracts.trace import PARTIAL, ModelCall
from holdfast.store.store import Store
from tests.collect.proxy.far import Road, Step, cut, events, road, running

# Chat completions

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "2+2?"}],
    "temperature": 0.5,
    "tools": [{"type": "function"}],
}
ASKED = Chat().read_request(json.dumps(BODY).encode())


def entry(logprob: Any) -> dict[str, Any]:
    return {"token": "t", "logprob": logprob, "bytes": None, "top_logprobs": []}


def assembled(*chunks: Any) -> ModelCall:
    made = Chat().stream(ASKED)
    for chunk in chunks:
        made.feed(Event("message", chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()))
    return made.result()


def delta(more: dict[str, Any] | None = None, /, **said: Any) -> dict[str, Any]:
    return {"model": "m@2", "choices": [{"index": 0, "delta": said, "finish_reason": None, **(more or {})}]}


def test_a_request_says_what_shapes_the_answer_and_keeps_its_bytes() -> None:
    body = json.dumps(BODY | {"stream": True, "user": "u", "n": 1, "logprobs": None, "stop": None}).encode()
    asked = Chat().read_request(body)
    assert (asked.model, asked.messages, asked.is_streamed) == ("m", tuple(BODY["messages"]), True)
    assert asked.sampling == {"temperature": 0.5, "tools": [{"type": "function"}], "n": 1}
    assert asked.body == body
    assert asked.extended == b'{"return_token_ids":true,' + body[1:]  # the log-probs it has spoken of itself


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model: is missing"),
        ({"messages": "x"}, "messages: is"),
        ({"messages": [1]}, "messages: is"),
        ({"n": 2}, "n = 2: .*; ask for one at a time"),  # nobody could tell which one was gone on with
        ({"n": "2"}, "n = '2': "),  # some upstreams take it for a number
        ({"n": 2.0}, "n = 2.0: "),
    ],
)
def test_a_request_that_cannot_be_kept_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Chat().read_request(json.dumps(BODY | change).encode())


COMPLETION: dict[str, Any] = {
    "model": "m@1",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "4", "extra": {"kept": 1}},
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "logprobs": {"content": [entry(-0.25), entry(1e-9)]},
            "forced": [1],
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2},
}


def whole(change: dict[str, Any] | None = None, **choice: Any) -> ModelCall:
    changed = {"choices": [COMPLETION["choices"][0] | choice], **(change or {})}
    return Chat().whole(ASKED, json.dumps(COMPLETION | changed).encode())


def test_what_our_own_server_says_of_its_sampling_is_kept_beside_what_was_asked() -> None:
    in_force = {"temperature": 1.0, "top_k": 0}
    asked = {"temperature": 0.5, "tools": BODY["tools"]}
    assert whole(sampling=in_force).sampling == {"top_k": 0, **asked}
    assert whole(sampling="?").sampling == asked
    chunk = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "sampling": in_force}]}
    assert assembled(chunk).sampling == {"top_k": 0, **asked}


def test_a_whole_answer_is_kept_as_it_was_sampled() -> None:
    assert whole() == ModelCall(
        model="m@1",
        messages=tuple(BODY["messages"]),
        response={"role": "assistant", "content": "4", "extra": {"kept": 1}},
        finish_reason="stop",
        prompt_tokens=9,
        completion_tokens=2,
        prompt_ids=(1, 2),
        completion_ids=(7, 8),
        logprobs=(-0.25, 0.0),  # a hair above 0 is rounding
        forced=(1,),
        sampling={"temperature": 0.5, "tools": [{"type": "function"}]},
    )


@pytest.mark.parametrize("logprobs", [[-0.1], [-0.1, 0.5], [-0.1, None], [-0.1, "x"], [-0.1, True], [-0.1, -(10**400)]])
def test_log_probs_that_cannot_be_are_left_out(logprobs: list[Any]) -> None:
    call = whole(logprobs={"content": [entry(value) for value in logprobs]})
    assert (call.completion_ids, call.logprobs) == ((7, 8), None)


@pytest.mark.parametrize(("told", "kept"), [(1, None), (3, None), (0, None), (2, (7, 8)), (True, (7, 8))])
def test_ids_that_are_not_as_many_as_the_upstream_counts_are_not_kept(told: Any, kept: tuple[int, ...] | None) -> None:
    call = whole({"usage": {"completion_tokens": told}})
    assert (call.completion_ids, call.logprobs is None, call.forced) == (kept, kept is None, (1,) if kept else ())


@pytest.mark.parametrize("absurd", [-1, 2**53 + 1, 10**25, 10**400, 1.5, "3"])
def test_a_count_that_nobody_can_have_counted_to_counts_as_not_told(absurd: Any) -> None:
    counts = {"prompt_tokens": absurd, "completion_tokens": absurd}
    call = whole({"usage": {**counts, "completion_tokens_details": {"reasoning_tokens": absurd}}})
    assert (call.prompt_tokens, call.completion_tokens, call.thinking_tokens) == (2, 2, None)  # as many as ids
    assert whole({"prompt_token_ids": [absurd]}).prompt_ids is None


def test_chunks_are_put_together_with_tools_thoughts_ids_and_usage() -> None:
    call = assembled(
        delta(role="assistant", content=""),
        delta({"token_ids": [1], "logprobs": {"content": [entry(-0.5)]}}, reasoning_content="hm"),
        delta({"token_ids": [2], "logprobs": {"content": [entry(-0.25)]}}, reasoning_content="m"),
        delta(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "calc", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"e":'}}, {"index": 1, "id": "c2"}]),
        delta(
            {"token_ids": [3], "logprobs": {"content": [entry(-1)]}},
            tool_calls=[{"index": 0, "function": {"arguments": "1}"}}],
        ),
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        {"prompt_token_ids": [5], "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}},
        b"[DONE]",
    )
    assert call.response == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hmm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"e":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "", "arguments": ""}},
        ],
    }
    assert (call.model, call.finish_reason, call.prompt_tokens, call.completion_tokens) == ("m@2", "tool_calls", 4, 3)
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == ((5,), (1, 2, 3), (-0.5, -0.25, -1.0))


def test_a_long_answer_in_single_tokens_is_put_together_in_a_moment() -> None:
    word = {"token_ids": [1], "logprobs": {"content": [entry(-0.5)]}}
    call = {"index": 0, "function": {"arguments": "x"}}
    event = Event("message", json.dumps(delta(word, content="a", tool_calls=[call])).encode())
    made = Chat().stream(ASKED)
    started = time.process_time()
    for _ in range(40_000):
        made.feed(event)
    assert time.process_time() - started < 3.0  # each list anew for each of them took ten
    assert made.result().completion_ids == (1,) * 40_000
    assert made.result().response["tool_calls"][0]["function"]["arguments"] == "x" * 40_000


@pytest.mark.parametrize("unreadable", [b'{"choices": [{"delta": {"content": "\xff"}}]}', b"{", b"5", b"NaN"])
def test_an_event_that_cannot_be_read_leaves_a_hole(unreadable: bytes) -> None:
    made = Chat().stream(ASKED)
    for data in (json.dumps(delta(content="a")).encode(), unreadable, b"[DONE]"):
        assert made.has_holes == (data == b"[DONE]")
        made.feed(Event("message", data))
    assert made.has_holes


def test_what_has_come_so_far_can_be_had_at_any_time() -> None:
    made = Chat().stream(ASKED)
    assert made.result().response == {"role": "assistant", "content": None} and not made.has_begun
    made.feed(Event("message", json.dumps(delta(role="assistant", content="")).encode()))
    assert not made.has_begun
    made.feed(Event("message", json.dumps(delta(content="fo")).encode()))
    assert made.has_begun and not made.is_ended
    assert (made.result().response["content"], made.result().finish_reason) == ("fo", None)
    made.feed(Event("message", b"[DONE]"))
    assert made.is_ended


# What all dialects read with


def test_members_are_added_and_nothing_else_is_touched() -> None:
    body = b' {"a" : 1.50, "b": false}\n'
    made = spliced(body, json.loads(body), {"b": True, "c": [1]})
    assert made == b' {"c":[1],"a" : 1.50, "b": false}\n'  # what it says already it goes on saying
    assert spliced(body, json.loads(body), {"a": 1}) is None
    assert spliced(b"{}", {}, {"a": 1}) is None


@pytest.mark.parametrize("body", [b"", b"nope", b"[1]", b'"x"', b"\xff"])
def test_a_request_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput, match="request: is not"):
        read_object(body)


def test_half_a_character_is_read_and_what_is_no_json_is_not() -> None:
    assert loads(b'"\\ud83d"') == "\ud83d"
    for text in (b"NaN", b"{", b"[" * 100_000, b"[1e999]", b"-1e999"):
        with pytest.raises(ValueError, match="no JSON|Expecting|nested"):
            loads(text)


def test_what_may_be_anything_is_asked_without_harm() -> None:
    assert token_ids([1, 0]) == (1, 0)
    assert [token_ids(value) for value in (None, [True], [-1], [1.0], "1", [None])] == [None] * 6
    assert part({"a": 1}, "a") == 1 and part([], "a") is None and part({}, "a") is None
    assert (count(3), count(True), count(-1), count("3")) == (3, None, None, None)
    assert (kind({"type": "x"}), kind({"type": []}, "y"), kind(3)) == ("x", "y", "")


def test_parts_become_one_message_in_their_order() -> None:
    said = MessageBuilder()
    said.thought("")
    assert said.message() == {"role": "assistant", "content": None}
    said.thought("Hm. ")
    said.text("One, ")
    said.thought("Two.")
    said.text("two.")
    said.text(None)
    said.call("c1", "add", '{"a":1}')
    said.call(5, None, "")
    assert said.message() == {
        "role": "assistant",
        "content": "One, two.",
        "reasoning_content": "Hm. Two.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
            {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
        ],
    }


def test_arguments_are_written_in_one_form_and_can_be_read_back() -> None:
    assert written({"city": "Köln", "n": [1, 2]}) == '{"city":"Köln","n":[1,2]}'
    assert json.loads(written({"half": "\ud83d"})) == {"half": "\ud83d"}
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="deeply"):
        written(deep)


# Server-sent events


def read(*chunks: bytes, **how: int) -> list[Event]:
    splitter = Splitter(**how)
    return [event for chunk in chunks for event in splitter.feed(chunk)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"data: a\n\ndata: b\n\n", [("message", b"a"), ("message", b"b")]),
        (b"data:a\n\n", [("message", b"a")]),  # the space is optional
        (b"data:  a\n\n", [("message", b" a")]),  # and only one is taken away
        (b"event: x\ndata: a\ndata: b\nid: 7\n\n", [("x", b"a\nb")]),
        (b": ping\n\ndata: a\n\n", [("message", b"a")]),  # a comment
        (b"\n\n\ndata: a\n\n\n\n", [("message", b"a")]),
        (b"event: x\n\n", []),  # nothing in it
        (b"data\n\n", [("message", b"")]),
        (b"\xef\xbb\xbfdata: a\n\n", [("message", b"a")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [("message", b"a"), ("message", b"b"), ("message", b"c")]),
        (b"data: a\r\ndata: b\r\n\r\n", [("message", b"a\nb")]),
        (b"data: a\n\ndata: not whole\n", [("message", b"a")]),
    ],
)
def test_events_are_read_as_the_standard_says(text: bytes, expected: list[tuple[str, bytes]]) -> None:
    assert read(text) == expected
    assert read(*(text[place : place + 1] for place in range(len(text)))) == expected


LINES = st.sampled_from([b"data: x", b"data:", b"event: e", b": c", b"id: 1", b"", b"strange", b"data: \xff{"])


@given(st.lists(st.tuples(LINES, st.sampled_from([b"\n", b"\r\n", b"\r"]))), st.lists(st.integers(0, 200)))
def test_no_cut_changes_what_is_read(lines: list[tuple[bytes, bytes]], places: list[int]) -> None:
    text = b"".join(line + end for line, end in lines) + b"\n"
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    assert read(*(text[a:b] for a, b in pairwise(marks))) == read(text)


def test_an_event_that_is_too_large_ends_the_reading_and_nothing_else() -> None:
    splitter = Splitter(largest=10)
    assert splitter.feed(b"data: a\n\n") == [("message", b"a")]
    assert splitter.feed(b"data: " + b"x" * 20) == [] and splitter.is_overfull
    assert splitter.feed(b"\n\ndata: b\n\n") == []


# Anthropic's messages

WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
THEIRS: dict[str, Any] = {
    "model": "claude-test",
    "max_tokens": 300,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Wie ist das Wetter in Köln?"}],
    "tools": [WEATHER],
    "tool_choice": {"type": "any"},
    "stop_sequences": ["END"],
    "temperature": 0.5,
}
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Köln: I must look.", "signature": "c2ln"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln", "days": [1, 2]}},
]
USAGE = {"input_tokens": 20, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 3, "output_tokens": 41}
MESSAGE: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-test-20260101",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE | {"output_tokens_details": {"thinking_tokens": 9}},
}


def told(sort: str, **more: Any) -> tuple[str, bytes]:
    return sort, json.dumps({"type": sort, **more}, ensure_ascii=False).encode()


def block(index: int, sort: str, **more: Any) -> tuple[str, bytes]:
    return told("content_block_delta", index=index, delta={"type": sort, **more})


def opened(index: int, sort: str, **more: Any) -> tuple[str, bytes]:
    return told("content_block_start", index=index, content_block={"type": sort, **more})


START = told(
    "message_start", message={**MESSAGE, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
)
BLOCKS = events(
    START,
    opened(0, "thinking", thinking="", signature=""),
    told("ping"),
    block(0, "thinking_delta", thinking="Köln: "),
    block(0, "thinking_delta", thinking="I must look."),
    block(0, "signature_delta", signature="c2ln"),
    told("content_block_stop", index=0),
    opened(1, "text", text=""),
    block(1, "text_delta", text="Let me "),
    block(1, "text_delta", text="look."),
    told("content_block_stop", index=1),
    opened(2, "tool_use", id="toolu_1", name="weather", input={}),
    block(2, "input_json_delta", partial_json=""),
    block(2, "input_json_delta", partial_json='{"city": "Kö'),
    block(2, "input_json_delta", partial_json='ln", "days": [1, 2]}'),
    told("content_block_stop", index=2),
    told(
        "message_delta",
        delta={"stop_reason": "tool_use", "stop_sequence": None},
        usage={"output_tokens": 41, "output_tokens_details": {"thinking_tokens": 9}},
    ),
    told("message_stop"),
)

# OpenAI's responses

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
OURS: dict[str, Any] = {
    "model": "gpt-test",
    "instructions": "Be brief.",
    "input": "Wie ist das Wetter in Köln?",
    "tools": [
        {"type": "function", "name": "weather", "description": "Tells.", "parameters": PARAMETERS, "strict": True}
    ],
    "tool_choice": {"type": "function", "name": "weather"},
    "max_output_tokens": 300,
    "temperature": 0.5,
    "store": False,
}
THOUGHT: dict[str, Any] = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Köln:"}, {"type": "summary_text", "text": "I must look."}],
    "encrypted_content": "c2VjcmV0",
}
TEXT: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}],
}
CALL: dict[str, Any] = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Köln"}',
}
OUTPUT = [THOUGHT, TEXT, CALL]
RESPONSE: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt-test-2026",
    "output": OUTPUT,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 41,
        "output_tokens_details": {"reasoning_tokens": 9},
        "total_tokens": 61,
    },
}


def numbered(*named: tuple[str, dict[str, Any]]) -> Iterator[tuple[str, bytes]]:
    for number, (sort, more) in enumerate(named):
        yield told(sort, sequence_number=number, **more)


def piece(sort: str, place: int, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return f"response.{sort}.delta", {"output_index": place, "item_id": "x", "delta": text, **more}


def item(end: str, place: int, given: dict[str, Any], **more: Any) -> tuple[str, dict[str, Any]]:
    return f"response.output_item.{end}", {"output_index": place, "item": {**given, **more}}


BEGUN: dict[str, Any] = {**RESPONSE, "status": "in_progress", "output": [], "usage": None}
NAMED: list[tuple[str, dict[str, Any]]] = [
    ("response.created", {"response": BEGUN}),
    ("response.in_progress", {"response": BEGUN}),
    item("added", 0, THOUGHT, summary=[]),
    piece("reasoning_summary_text", 0, "Köln:", summary_index=0),
    piece("reasoning_summary_text", 0, "I must ", summary_index=1),
    piece("reasoning_summary_text", 0, "look.", summary_index=1),
    item("done", 0, THOUGHT),
    item("added", 1, TEXT, status="in_progress", content=[]),
    (
        "response.content_part.added",
        {"output_index": 1, "item_id": "msg_1", "content_index": 0, "part": {**TEXT["content"][0], "text": ""}},
    ),
    piece("output_text", 1, "Let me ", content_index=0, logprobs=[]),
    piece("output_text", 1, "look.", content_index=0, logprobs=[]),
    item("done", 1, TEXT),
    item("added", 2, CALL, arguments=""),
    piece("function_call_arguments", 2, '{"city": '),
    piece("function_call_arguments", 2, '"Köln"}'),
    item("done", 2, CALL),
    ("response.completed", {"response": RESPONSE}),
]
ITEMS = events(*numbered(*NAMED))


# Both through the proxy, by the vendors' own clients


def no_names(given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the client has names for, and what the API knows and its client no longer."""
    return {name: value for name, value in given.items() if name != "temperature"}, {"temperature": 0.5}


def anthropic_client(way: Road) -> Any:
    return anthropic.Anthropic(api_key="sk-planted", base_url=way.base_url, max_retries=0).messages


def openai_client(way: Road) -> Any:
    return openai.OpenAI(api_key="sk-planted", base_url=f"{way.base_url}/v1", max_retries=0).responses


@dataclass(frozen=True)
class Case:
    dialect: Messages | Responses
    asked: dict[str, Any]
    answer: dict[str, Any]
    stream: bytes
    client: Callable[[Road], Any]
    last: str  # the method for a stream's last word
    thought: str
    call: tuple[str, str]  # id, arguments
    counts: tuple[int, int, int]
    sampling: dict[str, Any]
    strange: tuple[str, ...]  # words that are in no stream
    kinds: tuple[str, ...]

    def request(self, **more: Any) -> ModelRequest:
        return self.dialect.read_request(json.dumps({**self.asked, **more}).encode())

    def whole(self, **more: Any) -> ModelCall:
        return self.dialect.whole(self.request(), json.dumps({**self.answer, **more}).encode())

    def fed(self, said: list[tuple[str, bytes]]) -> Assembler:
        assembler = self.dialect.stream(self.request())
        for event in said:
            assembler.feed(Event(*event))
        return assembler

    @property
    def said(self) -> dict[str, Any]:
        function = {"name": "weather", "arguments": self.call[1]}
        calls = [{"id": self.call[0], "type": "function", "function": function}]
        texts = {"content": "Let me look.", "reasoning_content": self.thought}
        return {"role": "assistant", **texts, "tool_calls": calls}

    def is_the_answer(self, call: ModelCall) -> bool:
        assert call.response == self.said
        assert call.messages == (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Wie ist das Wetter in Köln?"},
        )
        assert call.model == self.answer["model"] and call.finish_reason == "tool_calls"
        assert (call.prompt_tokens, call.completion_tokens, call.thinking_tokens) == self.counts
        assert call.sampling == {"max_tokens": 300, "temperature": 0.5, **self.sampling}
        return True


function = {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER["input_schema"]}
flat = {"name": "weather", "description": "Tells.", "parameters": PARAMETERS, "strict": True}
CASES = {
    "messages": Case(
        Messages(),
        THEIRS,
        MESSAGE,
        BLOCKS,
        anthropic_client,
        "get_final_message",
        "Köln: I must look.",
        ("toolu_1", '{"city":"Köln","days":[1,2]}'),
        (123, 41, 9),
        {"stop": ["END"], "tool_choice": "required", "tools": [{"type": "function", "function": function}]},
        ("tool_result", "source", "image", "system", "messages", "tools", "tool_choice", "error"),
        ("message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop"),
    ),
    "responses": Case(
        Responses(),
        OURS,
        RESPONSE,
        ITEMS,
        openai_client,
        "get_final_response",
        "Köln:\n\nI must look.",
        ("call_1", '{"city": "Köln"}'),
        (20, 41, 9),
        {
            "tool_choice": {"type": "function", "function": {"name": "weather"}},
            "tools": [{"type": "function", "function": flat}],
        },
        ("refusal", "custom_tool_call", "function_call_output", "incomplete_details", "input_image", "image_url"),
        (*{name for name, _ in NAMED}, "response.incomplete", "response.failed"),
    ),
}
both = pytest.mark.parametrize("name", CASES)


@pytest.fixture(scope="module")
def built(shared_store: Store) -> Iterator[Road]:
    with road(shared_store, dialects=[Messages(), Responses()]) as way:
        yield way


@pytest.fixture
def way(built: Road) -> Road:
    built.attempt = running(built.store)
    built.far.asked.clear()
    return built


def only(way: Road) -> ModelCall:
    (span,) = way.spans()
    assert span.ended_at is not None and PARTIAL not in span.attributes and span.model is not None
    return span.model


@both
def test_a_whole_answer_reaches_the_client_and_the_store(way: Road, name: str) -> None:
    case = CASES[name]
    way.far.usual = Step(json.dumps(case.answer).encode())
    asked, others = no_names(case.asked)
    sent = case.client(way).with_raw_response.create(**asked, extra_body=others, extra_headers={"x-secret": "planted"})
    got = sent.parse()
    assert (got.output_text if name == "responses" else got.content[1].text) == "Let me look."
    assert case.is_the_answer(only(way))
    ((head, body),) = way.far.asked
    assert body == sent.http_request.content and "x-secret" not in head and "user-agent" not in head
    assert head["authorization"] == "Bearer sk-planted"
    assert head.get("anthropic-version") == sent.http_request.headers.get("anthropic-version")


@both
def test_a_stream_reaches_the_client_and_is_kept_as_the_whole_answer_is(way: Road, name: str) -> None:
    case = CASES[name]
    way.far.usual = Step(cut(case.stream, range(0, len(case.stream), 971)), gap_s=0.005)
    asked, others = no_names(case.asked)
    with case.client(way).stream(**asked, extra_body=others) as stream:
        got = getattr(stream, case.last)()
    parts = got.output if name == "responses" else got.content
    assert [one.type for one in parts][:1] == ["reasoning" if name == "responses" else "thinking"]
    given = parts[2].arguments if name == "responses" else written(parts[2].input)
    assert given == case.call[1]
    assert case.is_the_answer(only(way))
    assert "first_token_s" in way.spans()[0].attributes


@both
def test_the_bytes_of_a_stream_pass_as_they_are(way: Road, name: str) -> None:
    case = CASES[name]
    way.far.usual = Step(cut(case.stream, range(0, len(case.stream), 13)))
    asked, others = no_names(case.asked)
    with case.client(way).with_streaming_response.create(**asked, extra_body=others, stream=True) as got:
        assert b"".join(got.iter_bytes()) == case.stream
        assert [body for _, body in way.far.asked] == [got.http_request.content]


BROKEN = {
    "messages": events(
        START,
        opened(0, "text", text=""),
        block(0, "text_delta", text="Let me "),
        told("error", error={"type": "overloaded_error", "message": "Overloaded"}),
    ),
    "responses": events(
        *numbered(*NAMED[:10], ("response.failed", {"response": {**BEGUN, "status": "failed", "error": {"code": "x"}}}))
    ),
}


@both
def test_a_stream_that_ends_with_an_error_never_counts_as_whole(way: Road, name: str) -> None:
    way.far.usual = Step([BROKEN[name]])
    asked, others = no_names(CASES[name].asked)
    with suppress(anthropic.APIStatusError):
        list(CASES[name].client(way).create(**asked, extra_body=others, stream=True))
    (span,) = way.spans()
    assert span.model is not None and span.model.response["content"] == "Let me "
    assert span.attributes[PARTIAL] == "the upstream broke off"


def test_an_answer_found_again_in_the_next_request_is_the_same_message() -> None:
    """What was said once and is sent back must be told for the same: else no two turns of a conversation join."""
    case, result = CASES["messages"], {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True}
    results = [{**result, "content": [{"type": "text", "text": "rain"}]}, {"type": "text", "text": "And tomorrow?"}]
    more = [{"role": "assistant", "content": CONTENT}, {"role": "user", "content": results}]
    call, second = case.whole(), case.request(messages=[*THEIRS["messages"], *more])
    tool, again = {"role": "tool", "content": "rain"}, {"role": "user", "content": "And tomorrow?"}
    assert second.messages == (
        *call.messages,
        call.response,
        {**tool, "tool_call_id": "toolu_1", "is_error": True},
        again,
    )
    case, output = CASES["responses"], {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    asked = {"role": "user", "content": [{"type": "input_text", "text": "And tomorrow?"}]}
    first = {"role": "user", "content": OURS["input"]}
    call, second = case.whole(), case.request(input=[first, *OUTPUT, output, asked])
    assert second.messages == (*call.messages, call.response, {**tool, "tool_call_id": "call_1"}, again)


def test_pictures_refusals_and_what_has_no_form_in_chat_are_kept() -> None:
    case, picture = CASES["messages"], {"type": "base64", "media_type": "image/png", "data": "aGk="}
    paper = {"type": "document", "source": {"type": "text", "data": "paper"}}
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    content = [{"type": "image", "source": picture}, paper]
    assert case.request(messages=[{"role": "user", "content": content}]).messages[1]["content"] == [shown, paper]
    searched = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    call = case.whole(content=[searched])
    assert call.response == {"role": "assistant", "content": None, "items": [searched]}
    case, picture = CASES["responses"], {"type": "input_image", "image_url": "data:image/png;base64,aGk="}
    assert case.request(input=[{"role": "user", "content": [picture]}]).messages[1]["content"] == [shown]
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    call = case.whole(output=[searched, refusal])
    assert call.response == {"role": "assistant", "content": None, "refusal": "No.", "items": [searched]}
    assert call.finish_reason == "stop"
    assert case.request(previous_response_id="resp_0").sampling["previous_response_id"] == "resp_0"


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
        (None, None),
    ],
)
def test_reasons_are_told_in_the_words_of_chat_completions(reason: str | None, kept: str | None) -> None:
    assert CASES["messages"].whole(stop_reason=reason).finish_reason == kept


@pytest.mark.parametrize(
    ("details", "kept"),
    [({"reason": "max_output_tokens"}, "length"), ({"reason": "content_filter"}, "content_filter"), (None, "length")],
)
def test_an_incomplete_answer_says_why(details: Any, kept: str) -> None:
    answer = {"status": "incomplete", "incomplete_details": details}
    assert CASES["responses"].whole(**answer).finish_reason == kept
    ended = [*NAMED[:-1], ("response.incomplete", {"response": {**RESPONSE, **answer}})]
    assert CASES["responses"].fed(list(numbered(*ended))).result().finish_reason == kept


@pytest.mark.parametrize("status", ["failed", "queued", "in_progress", "cancelled", None])
def test_what_is_no_answer_yet_or_never_will_be_is_not_read_as_one(status: str | None) -> None:
    with pytest.raises(ValueError, match="a response that is"):
        CASES["responses"].whole(status=status)


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        *((Messages(), body) for body in (b"[]", b"{", b"{}", b'{"model":"m"}', b'{"model":"m","messages":[1]}')),
        (Messages(), b'{"model":1,"messages":[]}'),
        *((Responses(), body) for body in (b"[]", b"{", b"{}", b'{"model":1}', b'{"model":"m","input":[1]}')),
    ],
)
def test_what_is_no_request_is_refused(dialect: Any, body: bytes) -> None:
    with pytest.raises(BadInput):
        dialect.read_request(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"null", b'{"content":1}', b'{"choices": []}', b'{"output": 1}'])
@pytest.mark.parametrize("dialect", [Chat(), Messages(), Responses()])
def test_what_is_no_answer_is_told_as_such(dialect: Any, body: bytes) -> None:
    with pytest.raises(ValueError, match=r"no (chat completion|message|response)|JSON|Expecting"):
        dialect.whole(ASKED, body)
    with pytest.raises(ValueError, match="no chat completion"):
        Chat().whole(ASKED, b'{"choices": [{"message": 1}]}')


def test_an_event_of_messages_that_cannot_be_read_leaves_a_hole() -> None:
    unreadable = block(0, "text_delta", text="b")[1].replace(b"b", b"\xff")
    made = CASES["messages"].fed([block(0, "text_delta", text="a")])
    assert not made.has_holes
    for event in (("content_block_delta", unreadable), told("message_stop")):
        made.feed(Event(*event))
    assert made.has_holes


def test_an_event_of_responses_leaves_a_hole_unless_the_end_says_all_of_it_again() -> None:
    for output, has_holes in (([], True), ([{"type": "message", "content": "ab"}], False)):
        made = CASES["responses"].fed([("response.output_text.delta", b'{"delta": "\xff"}')])
        assert made.has_holes
        made.feed(Event(*told("response.completed", response={"status": "completed", "output": output})))
        assert made.has_holes == has_holes


def test_arguments_that_were_cut_off_are_kept_as_far_as_they_came() -> None:
    begun = [opened(0, "tool_use", id="t", name="weather", input={})]
    made = CASES["messages"].fed([*begun, block(0, "input_json_delta", partial_json='{"city": "Kö')])
    (call,) = made.result().response["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Kö'}
    assert made.has_begun and not made.is_ended and made.result().finish_reason is None


def test_before_the_end_is_told_the_pieces_are_what_there_is() -> None:
    case, named = CASES["responses"], list(numbered(*NAMED))
    assembler = case.fed(named[:-1])
    assert not assembler.is_ended and assembler.result().response == case.said
    assert assembler.result().finish_reason is None
    for length in range(len(named)):
        half = case.fed(named[:length]).result().response
        assert case.thought.startswith(half.get("reasoning_content", ""))
        assert "Let me look.".startswith(half["content"] or "")


@both
@given(places=st.lists(st.integers(0, 20_000), max_size=60))
def test_however_the_stream_is_cut_it_is_read_the_same(name: str, places: list[int]) -> None:
    case = CASES[name]
    splitter, assembler = Splitter(), case.dialect.stream(case.request())
    for part_ in cut(case.stream, places):
        for event in splitter.feed(part_):
            assembler.feed(event)
    assert assembler.is_ended and case.is_the_answer(assembler.result())


def anything(words: Any) -> Any:
    return st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | words,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=5),
        max_leaves=12,
    )


@cache
def strange(name: str) -> tuple[Any, Any]:
    """Events, and objects, of words that the dialect knows."""
    found = {word.decode() for word in re.findall(rb"[a-z_.]+", CASES[name].stream)}
    words = st.sampled_from([*sorted(found), *CASES[name].strange, "\ud83d"])
    rest = st.dictionaries(words, anything(words), max_size=6)
    sorts = st.sampled_from([*CASES[name].kinds, "error", "?"])
    return st.builds(lambda sort, rest: json.dumps({**rest, "type": sort}).encode(), sorts, rest), rest


@both
@given(data=st.data())
def test_no_stream_makes_it_fail(name: str, data: Any) -> None:
    assembler = CASES[name].dialect.stream(CASES[name].request())
    for said in data.draw(st.lists(strange(name)[0] | st.binary(max_size=20), max_size=12)):
        assembler.feed(Event("message", said))
        assert isinstance(assembler.result(), ModelCall)


@both
@given(data=st.data())
def test_no_request_and_no_answer_makes_it_fail_otherwise_than_it_may(name: str, data: Any) -> None:
    case, body = CASES[name], data.draw(strange(name)[1])
    with suppress(BadInput):
        case.dialect.read_request(json.dumps({"messages": [body], "input": [body], **body, "model": "m"}).encode())
    with suppress(ValueError):
        answer = {"content": [body, body], "output": [body, body], **body}
        encode(case.dialect.whole(case.request(), json.dumps(answer).encode()))


KEYS = (
    *("choices", "index", "delta", "content", "tool_calls", "function", "name", "arguments", "logprobs", "logprob"),
    *("token_ids", "usage", "model", "prompt_token_ids", "prompt_tokens", "forced", "finish_reason", "id"),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=12,
)


@given(st.lists(ANYTHING.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20), max_size=6))
def test_nothing_that_an_upstream_sends_breaks_the_reading(chunks: list[bytes]) -> None:
    assert assembled(*chunks).messages == ASKED.messages
    for chunk in chunks:
        with suppress(ValueError):
            Chat().whole(ASKED, chunk)
