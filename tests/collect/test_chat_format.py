"""OpenAI's format: what was given arrives, what is wrong is named, and answers lose nothing of what was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect import openapi
from holdfast.collect.chat_format import (
    DEEPEST,
    KNOWN,
    Chunks,
    Envelope,
    Piece,
    Request,
    completion,
    cut,
    finish_reason,
    pieces,
    read_passing,
    read_request,
    spell_byte,
    usage,
)
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

HELLO = [{"role": "user", "content": "hello"}]
CALC = {"type": "function", "function": {"name": "calc", "parameters": {"properties": {"expression": {}}}}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, **fields}


def test_the_shortest_request_leaves_everything_to_the_model() -> None:
    request = read_request(body())
    assert (request.model, request.messages, request.sampling) == ("tiny", tuple(HELLO), {})
    assert (request.choices, request.logprobs, request.token_ids, request.stream) == (1, False, False, False)


def test_sampling_arrives_as_it_was_given() -> None:
    request = read_request(
        body(temperature=0, top_p=0.5, top_k=7, max_tokens=9, stop="\n", seed=3, thinking=0, tools=[CALC], user="ann")
    )
    assert request.sampling == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 7,
        "max_tokens": 9,
        "stop": ("\n",),
        "seed": 3,
        "thinking": 0,
        "tools": [CALC],
    }
    assert request.user == "ann"


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"top_k": -1}, {"top_k": 0}),  # vLLM's "all"
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"tools": [CALC], "tool_choice": "none"}, {}),  # the model is not told of them
        ({"tools": [], "tool_choice": "auto"}, {}),
        ({"temperature": None, "tools": None, "stop": None, "n": None}, {}),  # null is not given
        ({"frequency_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}, "store": True}, {}),
    ],
)
def test_the_same_can_be_said_in_several_ways(fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    assert read_request(body(**fields)).sampling == sampling


def test_several_choices_with_a_seed_are_several_answers() -> None:
    assert read_request(body(n=3, seed=7)).samplings() == [{"seed": 7}, {"seed": 8}, {"seed": 9}]
    assert read_request(body(n=2, top_k=1)).samplings() == [{"top_k": 1}] * 2


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        CALLED,
        {"role": "tool", "content": "4", "tool_call_id": "a"},
        {"role": "developer", "content": "", "name": "dan"},
        {"role": "assistant", "content": "4", "reasoning_content": "2+2"},
        {**CALLED, "tool_calls": [{"function": {"name": ""}}]},  # a model's own slip may come back to it
    ],
)
def test_messages_of_every_role_are_taken_as_they_are(message: dict[str, Any]) -> None:
    assert read_request(body(messages=[*HELLO, message])).messages == (*HELLO, message)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": None}, "model: is missing; give a string"),
        ({"model": ["tiny"]}, "model: is a list, not text; give a string"),
        ({"messages": []}, "messages: is a list, not a list with messages; give at least one"),
        ({"messages": ["hi"]}, "messages[0]: is text; give an object"),
        (
            {"messages": [{"role": "bot"}]},
            "messages[0].role = 'bot': is unknown; use system, developer, user, assistant, tool",
        ),
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content: is null, not text; give a string, or a list of text parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type = 'image_url': only text is read here",
        ),
        (
            {"messages": [*HELLO, {**CALLED, "tool_calls": [{"function": {}}]}]},
            "messages[1].tool_calls[0].function.name: is missing; give a string",
        ),
        ({"top_k": 2**31}, "top_k = 2147483648: is not possible; give a whole number from -1 to 2147483647"),
        ({"temperature": 2.5}, "temperature = 2.5: is not possible; give 0 to 2"),
        ({"temperature": True}, "temperature = True: is not possible; give 0 to 2"),
        ({"temperature": 10**400}, f"temperature = 1{'0' * 58}…: is not possible; give 0 to 2"),
        ({"top_p": 0}, "top_p = 0: must be above 0; give at most 1"),
        ({"max_tokens": 0}, "max_tokens = 0: is not possible; give a whole number from 1 to 2147483647"),
        (
            {"max_tokens": 3, "max_completion_tokens": 4},
            "max_tokens: differs from max_completion_tokens; give one of the two",
        ),
        ({"seed": 1.5}, "seed = 1.5: is not possible; give a whole number from 0 to 9223372036854775679"),
        ({"n": 129}, "n = 129: is not possible; give a whole number from 1 to 128"),
        ({"stop": [""]}, "stop[0]: is empty; give a string"),
        ({"stop": ["x"] * 17}, "stop: has 17 strings; give at most 16"),
        ({"top_logprobs": 3}, "top_logprobs: need log-probs; set logprobs to true"),
        ({"logprobs": 3}, "logprobs: is a whole number; give true or false"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options: are for streams; set stream to true, or leave them out",
        ),
        ({"tool_choice": "required"}, 'tool_choice: a model here cannot be made to call a tool; give "auto" or "none"'),
        ({"tools": [{"type": "web"}]}, "tools[0].type = 'web': only functions are known; give function"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name: is missing; give a string"),
        (
            {"tools": [{"function": {"name": "f", "parameters": [1]}}]},
            "tools[0].function.parameters: is a list; give an object",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format: is not supported here; leave it out"),
        ({"tempature": 1}, "tempature: is unknown; did you mean temperature?"),
        ({"zzz": 1}, "zzz: is unknown; leave it out"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_request(body(**fields))
    assert str(caught.value) == says


def test_a_request_that_is_nested_too_deep_is_refused() -> None:
    nest: Any = {}
    for _ in range(DEEPEST):
        nest = [nest]
    with pytest.raises(BadInput, match="request: is nested deeper than 100 levels"):
        read_request(body(metadata=nest))
    with pytest.raises(BadInput, match="request: is a list, not an object"):
        read_request([])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "function"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), anything, max_size=6))
def test_no_request_breaks_the_reading(fields: dict[str, Any]) -> None:
    try:
        read_request(body(**fields))
    except BadInput as error:
        assert error.why


def test_what_is_passed_on_keeps_all_that_shapes_the_answer_known_here_or_not() -> None:
    shaping = {"response_format": {"type": "json_object"}, "tool_choice": "required", "tools": [CALC], "seed": 4}
    asked = body(**shaping, n=2, stream=True, stream_options={"include_usage": True}, user="ann", temperature=None)
    request = read_passing(asked)
    assert request.sampling == {**shaping, "stream_options": {"include_usage": True}}
    assert (request.choices, request.stream, request.usage, request.user) == (2, True, True, "ann")
    assert [one["seed"] for one in request.samplings()] == [4, 5]
    with pytest.raises(BadInput, match="response_format"):
        read_request(asked)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "request: is a list, not an object"),
        ({"messages": HELLO}, "model: is missing"),
        (body(messages=[]), "messages: is empty"),
        (body(messages=["hi"]), r"messages\[0\]: is text"),
        (body(n=0), "n = 0: is not possible"),
    ],
)
def test_what_is_passed_on_must_still_be_a_request(wrong: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read_passing(wrong)


SAID = ({"role": "user", "content": "hello"},)
ENVELOPE = Envelope(id="chatcmpl-1", created=12, token_bytes=lambda token: bytes([token]))
CALL = ModelCall(
    model="tiny@3",
    messages=SAID,
    response={"role": "assistant", "content": "hé"},
    finish_reason="stop",
    prompt_tokens=2,
    completion_tokens=3,
    prompt_ids=(7, 8),
    completion_ids=(104, 195, 169),
    logprobs=(-0.1, -1 / 3, 0.0),
    forced=(2,),
    sampling={"temperature": 1.0},
)


def request(**fields: Any) -> Request:
    return Request(model="tiny", messages=SAID, **fields)


def test_a_plain_answer_has_neither_ids_nor_log_probs() -> None:
    assert completion(request(), [CALL], ENVELOPE) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 12,
        "model": "tiny@3",
        "choices": [{"index": 0, "message": CALL.response, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }


def test_ids_and_log_probs_come_when_they_are_asked_for() -> None:
    answer = completion(request(logprobs=True, top_logprobs=1, token_ids=True), [CALL], ENVELOPE)
    (choice,) = answer["choices"]
    assert (answer["prompt_token_ids"], choice["token_ids"], choice["forced"]) == ([7, 8], [104, 195, 169], [2])
    assert choice["sampling"] == {"temperature": 1.0}  # in force, though nobody asked for it
    h, e, _ = choice["logprobs"]["content"]
    assert h == {**(top := {"token": "h", "logprob": -0.1, "bytes": [104]}), "top_logprobs": [top]}
    assert (e["token"], e["bytes"], e["logprob"]) == ("�", [195], -1 / 3)  # half of a letter has its byte


def test_a_model_that_gives_no_ids_is_not_made_to() -> None:
    call = ModelCall(model="far", messages=SAID, response={"role": "assistant", "content": "hi"})
    answer = completion(request(logprobs=True, token_ids=True), [call], ENVELOPE)
    (choice,) = answer["choices"]
    assert (answer["prompt_token_ids"], choice["token_ids"], choice["logprobs"]) == (None, None, None)
    assert (choice["finish_reason"], answer["usage"]) == ("stop", None)


def test_tokens_without_a_spelling_are_named_by_their_ids() -> None:
    answer = completion(request(logprobs=True), [CALL], Envelope(id="a", created=1))
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert first == {"token": "token_id:104", "logprob": -0.1, "bytes": None, "top_logprobs": []}


def test_bytes_are_spelled_by_themselves_and_marks_by_name() -> None:
    assert [spell_byte(token) for token in (104, 195, 263, 300)] == [b"h", b"\xc3", b"<|end|>", b"<|300|>"]


@pytest.mark.parametrize(
    ("reason", "calls", "said"),
    [("stop", True, "tool_calls"), ("stop", False, "stop"), ("length", True, "length"), (None, False, "stop")],
)
def test_an_answer_that_ends_with_a_call_of_a_tool_ended_for_it(reason: str | None, calls: bool, said: str) -> None:
    response = {"content": "", "tool_calls": [{"function": {"name": "f"}}] if calls else None}
    assert finish_reason(ModelCall(model="m", messages=(), response=response, finish_reason=reason)) == said


def test_usage_counts_what_was_read_once() -> None:
    assert usage([CALL, CALL]) == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}


texts = st.text(max_size=30)
tool_calls = st.builds(
    lambda number, name, arguments: {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    st.integers(0, 9),
    st.text(min_size=1, max_size=9),
    texts,
)


@given(texts, texts, st.lists(tool_calls, max_size=3))
def test_the_pieces_of_a_message_make_it_whole_again(thought: str, text: str, calls: list[dict[str, Any]]) -> None:
    made: dict[str, Any] = {"reasoning_content": "", "content": "", "tool_calls": []}
    for piece in cut({"reasoning_content": thought, "content": text, "tool_calls": calls}):
        for name in ("reasoning_content", "content"):
            made[name] += piece.get(name, "")
        for delta in piece.get("tool_calls", ()):
            if "id" in delta:
                made["tool_calls"].append({**delta, "function": dict(delta["function"])})
            else:
                made["tool_calls"][delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    assert (made["reasoning_content"], made["content"]) == (thought, text)
    assert made["tool_calls"] == [{"index": index, **call} for index, call in enumerate(calls)]


def test_chunks_carry_each_token_once_wherever_it_came() -> None:
    chunks = Chunks(request(logprobs=True, token_ids=True, usage=True), ENVELOPE)
    first = {"content": "h", "token_ids": [104], "logprobs": [-0.1]}
    sent = [
        *chunks.begin(),
        chunks.add(0, first),
        chunks.add(0, {"content": "é"}),
        chunks.add(0, CALL),
        *chunks.close(),
    ]
    assert [chunk["choices"][0].get("token_ids") for chunk in sent[:-1]] == [None, [104], None, [195, 169]]
    given_back = [chunk["choices"][0].get("logprobs") or {"content": []} for chunk in sent[:-1]]
    assert [entry["logprob"] for part in given_back for entry in part["content"]] == list(CALL.logprobs or ())
    assert [chunk["choices"][0]["delta"].get("content") for chunk in sent[:-1]] == ["", "h", "é", None]
    assert [chunk["choices"][0]["finish_reason"] for chunk in sent[:-1]] == [None, None, None, "stop"]
    assert (sent[-2]["prompt_token_ids"], sent[-2]["choices"][0]["forced"], sent[-2]["model"]) == (
        [7, 8],
        [2],
        "tiny@3",
    )
    assert (sent[-1]["choices"], sent[-1]["usage"]["total_tokens"]) == ([], 5)


async def test_a_model_that_cannot_stream_is_waited_for_and_cut() -> None:
    async def complete(messages: Any, /, **sampling: Any) -> ModelCall:
        assert (messages, sampling) == (SAID, {"seed": 3})
        return CALL

    assert [piece async for piece in pieces(complete, SAID, seed=3)] == [{"content": "hé"}, CALL]


async def test_a_model_that_can_stream_is_heard_while_it_speaks() -> None:
    class Speaker:
        async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
            raise AssertionError("it has a stream")

        async def stream(self, messages: Any, /, **sampling: Any) -> AsyncIterator[Piece | ModelCall]:
            assert (messages, sampling) == (SAID, {"seed": 3})
            yield {"content": "h", "token_ids": [104], "logprobs": [-0.1]}
            yield CALL

    heard = [piece async for piece in pieces(Speaker(), SAID, seed=3)]
    assert heard == [{"content": "h", "token_ids": [104], "logprobs": [-0.1]}, {"content": "é"}, CALL]


@given(st.integers(0, 5), st.integers(0, 5), st.lists(tool_calls, max_size=2))
def test_what_a_stream_leaves_out_is_said_before_its_end(thought: int, text: int, calls: list[dict[str, Any]]) -> None:
    response = {"content": "hello", "reasoning_content": "think", "tool_calls": calls}
    call = ModelCall(model="m", messages=SAID, response=response)

    class Mumbler:
        async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
            raise AssertionError("it has a stream")

        async def stream(self, messages: Any, /, **sampling: Any) -> AsyncIterator[Piece | ModelCall]:
            yield {"reasoning_content": "think"[:thought]}
            yield {"content": "hello"[:text]}
            yield call

    async def hear() -> list[Piece | ModelCall]:
        return [piece async for piece in pieces(Mumbler(), SAID)]

    *heard, last = asyncio.run(hear())
    assert last is call
    for name in ("content", "reasoning_content"):
        assert "".join(piece.get(name, "") for piece in heard if isinstance(piece, dict)) == response[name]
    begun = [delta for piece in heard if isinstance(piece, dict) for delta in piece.get("tool_calls", ())]
    assert [delta["id"] for delta in begun if "id" in delta] == [call["id"] for call in calls]


def test_usage_tells_thinking_apart_where_it_was_counted() -> None:
    thought = replace(CALL, thinking_tokens=2)
    assert usage([thought, thought]) == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
        "completion_tokens_details": {"reasoning_tokens": 4},
    }


HI = [{"role": "user", "content": "hi"}]


def fits(value: Any, schema: openapi.Schema) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.5, "top_p": 1, "top_k": -1, "max_tokens": 3, "stop": "x", "seed": 0, "thinking": 0},
        {"n": 2, "logprobs": True, "top_logprobs": 20, "return_token_ids": True, "user": "ann", "metadata": {"a": 1}},
        {"stream": True, "stream_options": {"include_usage": True}, "tools": [{"function": {"name": "f"}}]},
        {"temperature": None, "anything": None, "logit_bias": {}, "modalities": ["text"], "presence_penalty": 0},
        {"messages": [*HI, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
def test_what_is_taken_fits(more: dict[str, Any]) -> None:
    body = {"model": "m", "messages": HI, **more}
    read_request(body)
    assert fits(body, openapi.REQUEST)


@pytest.mark.parametrize(
    "more",
    [
        {"model": ""},
        {"messages": []},
        {"messages": [{"role": "wizard", "content": "hi"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "text": "x"}]}]},
        {"temperature": 2.5},
        {"top_p": 0},
        {"n": 0},
        {"stop": [""]},
        {"logit_bias": {"1": 2}},
        {"anything": 1},
        {"tool_choice": "required"},
        {"stream_options": {"include_usage": None}, "stream": True},
    ],
)
def test_what_does_not_fit_is_refused(more: dict[str, Any]) -> None:
    body = {"model": "m", "messages": HI, **more}
    assert not fits(body, openapi.REQUEST)
    with pytest.raises(BadInput):
        read_request(body)
