"""What the forms tell is what the readers take and the writers write."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from holdfast.collect import openapi
from holdfast.collect.chat_format import KNOWN, Envelope, Request, completion, read_request
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

HELLO = [{"role": "user", "content": "hi"}]


def fits(value: Any, schema: openapi.Schema) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def test_every_field_that_is_read_is_told_and_no_other() -> None:
    assert openapi.REQUEST["properties"].keys() == KNOWN


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"temperature": 0.5, "top_p": 1, "top_k": -1, "max_tokens": 3, "stop": "x", "seed": 0, "thinking": 0},
        {"n": 2, "logprobs": True, "top_logprobs": 20, "return_token_ids": True, "user": "ann", "metadata": {"a": 1}},
        {"stream": True, "stream_options": {"include_usage": True}, "tools": [{"function": {"name": "f"}}]},
        {"temperature": None, "anything": None, "logit_bias": {}, "modalities": ["text"], "presence_penalty": 0},
        {"messages": [*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]},
    ],
)
def test_what_is_taken_fits(more: dict[str, Any]) -> None:
    body = {"model": "m", "messages": HELLO, **more}
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
    body = {"model": "m", "messages": HELLO, **more}
    assert not fits(body, openapi.REQUEST)
    with pytest.raises(BadInput):
        read_request(body)


def test_an_answer_fits() -> None:
    call = ModelCall(model="m@1", messages=(), response={"role": "assistant", "content": "hi"}, completion_ids=(1,))
    request = Request(model="m", messages=(), token_ids=True)
    assert fits(completion(request, [call], Envelope(id="c", created=1)), openapi.COMPLETION)
    assert not fits({"id": "c"}, openapi.COMPLETION)


def test_refusals_have_words_for_each_status() -> None:
    assert {status: words for status, (words, _) in openapi.refusals(401, 413).items()} == {
        401: openapi.WORDS[401],
        413: openapi.WORDS[413],
    }
