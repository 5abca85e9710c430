"""Raw answers, whole and streamed: nothing is tidied away, and what is no completion says so."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.endpoint_probe import (
    EndpointProbe,
    EndpointRefused,
    EndpointSession,
    ProbeAnswer,
    events,
    joined,
    whole,
)
from holdfast.contracts.errors import BadInput, Fault
from tests.collect.doctor.toys import Toy
from tests.collect.doctor.toys import serving as serving_toy
from tests.endpoint import Endpoint, Scripted, completion, serving

HELLO: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "hello"}]}


def test_an_answer_is_kept_as_it_came() -> None:
    answer = whole(HELLO, completion("yes"))
    assert (answer.text, answer.ids, answer.prompt_ids) == ("yes", (5, 6, 7), (1, 2, 3, 4))
    assert (answer.logprobs, answer.spelled) == ((-0.5, -0.25, 0.0), (b"a", b"b", b"c"))
    assert answer.call().completion_ids == (5, 6, 7) and answer.call().messages == tuple(HELLO["messages"])


@pytest.mark.parametrize(
    ("choice", "ids", "logprobs"),
    [
        ({"token_ids": [5, 6]}, (5, 6), (-0.5, -0.25, 0.0)),  # as many as there are, though they do not fit
        ({"token_ids": None, "logprobs": None}, None, None),
        ({"token_ids": None, "logprobs": {"content": [{"token": "token_id:17", "logprob": -1}]}}, (17,), (-1.0,)),
        ({"logprobs": {"content": [{"token": "x", "logprob": 7.5}]}}, (5, 6, 7), (7.5,)),
    ],
)
def test_what_does_not_fit_together_is_kept_too(choice: Any, ids: Any, logprobs: Any) -> None:
    answer = whole(HELLO, completion("yes", choice=choice))
    assert (answer.ids, answer.logprobs) == (ids, logprobs)


@pytest.mark.parametrize(
    "body", [[], None, {"choices": []}, {"error": {"message": "no"}}, completion("x", choice={"token_ids": ["a"]})]
)
def test_what_is_no_completion_is_refused(body: Any) -> None:
    with pytest.raises(EndpointRefused, match="not a chat completion"):
        whole(HELLO, body)


def test_a_stream_put_together_is_the_whole_answer() -> None:
    async def both(url: str) -> tuple[ProbeAnswer, ProbeAnswer]:
        async with EndpointProbe(url) as probe:
            body = HELLO | {"temperature": 0.0, "logprobs": True, "return_token_ids": True, "tools": [TOOL]}
            return await probe.ask(body), await probe.hear(body)

    with serving_toy(Toy()) as url:
        asked, heard = asyncio.run(both(url))
    assert heard.message == asked.message and heard.calls[0]["id"] == "call_1"
    for name in ("ids", "prompt_ids", "logprobs", "spelled", "usage", "finish", "model"):
        assert getattr(heard, name) == getattr(asked, name), name


TOOL = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("data: {\n\n", "an event that is not JSON"),
        ("data: [DONE]\n\n", "a stream without a choice"),
        ('data: {"error": {"message": "broke off"}}\n\n', "broke off"),
        ("data: 7\n\n", "not a stream of a chat completion"),
        ('data: {"choices": [{"delta": {"tool_calls": [{}]}}]}\n\n', "not a stream of a chat completion"),
    ],
)
def test_a_broken_stream_says_so(text: str, says: str) -> None:
    with pytest.raises(EndpointRefused, match=says):
        joined(HELLO, list(events(text)))


@given(st.text())
def test_no_text_breaks_the_events(text: str) -> None:
    data = json.dumps({"text": text}, ensure_ascii=False)
    assert list(events(f": a comment\r\nevent: x\ndata: {data}\r\n\r\ndata: [DONE]\n\n")) == [{"text": text}]


@given(st.text())
def test_no_stream_does_more_than_be_refused(text: str) -> None:
    with suppress(EndpointRefused):
        joined(HELLO, list(events(text)))


# Over a socket


def ask(endpoint: Endpoint, **how: Any) -> ProbeAnswer:
    async def asking() -> ProbeAnswer:
        async with EndpointProbe(endpoint.url, **how) as probe:
            return await EndpointSession(probe, "toy", lambda check: None).ask(["hello"])

    return asyncio.run(asking())


def test_what_the_endpoint_refuses_by_name_is_left_out() -> None:
    with serving() as endpoint:
        endpoint.script.append(Scripted(400, {"error": {"message": "unknown argument: return_token_ids"}}))
        assert ask(endpoint).text == "echo: hello"
        sent = [set(asked.body) & {"logprobs", "return_token_ids"} for asked in endpoint.asked]
        assert sent == [{"logprobs", "return_token_ids"}, {"logprobs"}]


def test_a_refusal_keeps_its_status_and_its_words() -> None:
    with serving() as endpoint:
        endpoint.script.append(Scripted(429, {"error": {"message": "later\nplease"}}))
        with pytest.raises(EndpointRefused) as caught:
            ask(endpoint)
        assert (caught.value.status, caught.value.says) == (429, "later please")


def test_the_key_is_sent_and_never_told() -> None:
    with serving() as endpoint:
        endpoint.script.append(Scripted(401, {"error": "who are you?"}))
        with pytest.raises(EndpointRefused) as caught:
            ask(endpoint, api_key="s3cret")
        assert endpoint.asked[0].headers["Authorization"] == "Bearer s3cret" and "s3cret" not in str(caught.value)


def test_a_key_that_is_said_back_is_not_told() -> None:
    with serving() as endpoint:
        endpoint.script.append(Scripted(401, {"error": {"message": "no: Bearer tell-nobody"}}))
        with pytest.raises(EndpointRefused, match="HTTP 401: no: Bearer …") as caught:
            ask(endpoint, api_key="tell-nobody")
        assert "tell-nobody" not in str(caught.value)
        endpoint.script.append(Scripted(200, completion("you are tell-nobody")))
        assert ask(endpoint, api_key="tell-nobody").text == "you are …"


def test_no_redirect_is_followed() -> None:
    with serving() as endpoint, serving() as elsewhere:
        away = {"Location": f"{elsewhere.url}/chat/completions"}
        endpoint.script.append(Scripted(307, {"error": "elsewhere"}, headers=away))
        with pytest.raises(EndpointRefused, match="HTTP 307"):
            ask(endpoint, api_key="tell-nobody")
        assert not elsewhere.asked


def test_nobody_there_is_a_fault_and_no_address_is_bad_input() -> None:
    with pytest.raises(Fault, match="is it running and reachable"):
        ask(Endpoint(url="http://127.0.0.1:9/v1"))
    with pytest.raises(BadInput, match="is not http:// or https://"):
        EndpointProbe("localhost:8377")
