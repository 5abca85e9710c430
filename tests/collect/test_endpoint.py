"""The endpoint on a real socket, driven by OpenAI's own client and by ours: what was sampled comes back as it was."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from random import Random
from typing import Any

import jsonschema
import openai
import pytest
from starlette.applications import Starlette
from starlette.requests import Request as Asked
from starlette.responses import Response

from holdfast.collect.chat_format import Piece, spell_byte
from holdfast.collect.client import Client, ModelRefused
from holdfast.collect.endpoint import REQUEST, app, listen, server
from holdfast.collect.http_limits import WAIT_S
from holdfast.collect.openapi import JSON, TEXT, ApiOperation, ApiRoute, document, obj, refusals
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Fault, StoreFull
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens
from tests.collect.fuzz import fuzz
from tests.collect.scene import PATIENCE_S

HELLO: list[Any] = [{"role": "user", "content": "What is 2+2?"}]
CALC: Any = {
    "type": "function",
    "function": {"name": "calc", "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}}},
}
TOKEN = "s3cret-of-20-letters"
EXACTLY = {"logprobs": True, "return_token_ids": True}


@dataclass
class Script:
    """A model that answers as it is told and keeps its calls. Its ids are those of our template."""

    calls: list[ModelCall] = field(default_factory=list)
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    fails: Exception | None = None
    waits: bool = False
    waiting: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        self.asked.append(sampling)
        if self.fails is not None:
            raise self.fails
        if self.waits:
            await self.wait()
        call = self.call(messages, sampling)
        self.calls.append(call)
        return call

    async def wait(self) -> None:
        self.waiting.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    def call(self, messages: Any, sampling: Mapping[str, Any]) -> ModelCall:
        prompt = tokens.prompt(messages, sampling.get("tools", ()))
        written = tokens.answer(self.answer(messages, sampling))
        chance = Random(sampling.get("seed", len(self.calls)))
        return ModelCall(
            model="script@1",
            messages=tuple(messages),
            response=tokens.read(written),
            finish_reason="stop",
            prompt_tokens=len(prompt),
            completion_tokens=len(written),
            prompt_ids=tuple(prompt),
            completion_ids=tuple(written),
            logprobs=tuple(-chance.expovariate(1.0) for _ in written),
            sampling=sampling,
        )

    def answer(self, messages: Any, sampling: Mapping[str, Any]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return {"content": f"It is {messages[-1]['content']}."}
        if "tools" in sampling:
            call = {"function": {"name": "calc", "arguments": '{"expression": "2+2"}'}}
            return {"content": "", "reasoning_content": "A sum.", "tool_calls": [call]}
        return {
            "content": f"Vier, würde ich sagen. {sampling.get('seed', '')}".strip(),
            "reasoning_content": "2 + 2 = 4",
        }


class Speaker(Script):
    """One that can be heard while it speaks: each byte a piece, then the call."""

    async def stream(self, messages: Any, /, **sampling: Any) -> AsyncIterator[Piece | ModelCall]:
        call = self.call(messages, sampling)
        assert call.completion_ids and call.logprobs
        for token, logprob in zip(call.completion_ids, call.logprobs, strict=True):
            if token < 128:
                yield {"content": chr(token), "token_ids": [token], "logprobs": [logprob]}
                if self.fails is not None:
                    raise self.fails
                if self.waits:
                    await self.wait()
            else:
                yield {"token_ids": [token], "logprobs": [logprob]}
        self.calls.append(call)
        yield call


@contextmanager
def serving(complete: Complete, **how: Any) -> Iterator[str]:
    """The endpoint while the block lasts; gives its base URL."""
    how = {"name": "script", "token_bytes": spell_byte, "clock": lambda: 1000.0, **how}
    listening = listen("127.0.0.1", 0, token=how.get("token"))
    serves = server(app(complete, **how), wait_s=how.get("wait_s", WAIT_S))
    thread = threading.Thread(target=serves.run, kwargs={"sockets": [listening]}, name="endpoint")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        serves.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[dict[str, Complete], str]]:
    """One server for all tests here; what answers is put into it by each."""
    behind: dict[str, Complete] = {}
    with serving(Script(), choose_version=lambda key: behind["now"]) as url:
        yield behind, url


@pytest.fixture
def script(door: tuple[dict[str, Complete], str]) -> Script:
    script = door[0]["now"] = Script()
    return script


@pytest.fixture
def speaker(door: tuple[dict[str, Complete], str]) -> Speaker:
    speaker = door[0]["now"] = Speaker()
    return speaker


@pytest.fixture
def url(door: tuple[dict[str, Complete], str]) -> str:
    return door[1]


@pytest.fixture
def client(url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE_S) as client:
        yield client


def post(url: str, body: Any, path: str = "/chat/completions", **headers: str) -> tuple[int, Any]:
    """A request made by hand: status and decoded body."""
    host, _, rest = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=PATIENCE_S)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request("POST" if body is not None else "GET", f"/{rest}{path}".replace("//", "/"), content, given)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def test_the_official_client_gets_an_answer(script: Script, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="script", messages=HELLO, temperature=0.5, top_p=0.9, max_completion_tokens=64, stop=["\n"], seed=7
    )
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", "Vier, würde ich sagen. 7")
    assert choice.message.reasoning_content == "2 + 2 = 4"  # type: ignore[attr-defined]
    assert (choice.finish_reason, choice.logprobs, answer.model, answer.created) == ("stop", None, "script@1", 1000)
    assert answer.usage is not None
    call = script.calls[0]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (call.prompt_tokens, call.completion_tokens)
    assert script.asked == [{"temperature": 0.5, "top_p": 0.9, "max_tokens": 64, "stop": ("\n",), "seed": 7}]


def test_ids_and_log_probs_round_trip_exactly(script: Script, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="script", messages=HELLO, logprobs=True, top_logprobs=1, extra_body={"return_token_ids": True, "top_k": 5}
    )
    (call,), (choice,) = script.calls, answer.choices
    assert script.asked == [{"top_k": 5}]
    assert (answer.prompt_token_ids, choice.token_ids) == (list(call.prompt_ids or ()), list(call.completion_ids or ()))  # type: ignore[attr-defined]
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert tuple(entry.logprob for entry in choice.logprobs.content) == call.logprobs
    letters = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs.content)
    assert letters.decode() == "<|think|>2 + 2 = 4<|/think|>Vier, würde ich sagen.<|end|>"
    assert [entry.top_logprobs[0].logprob for entry in choice.logprobs.content] == list(call.logprobs or ())


async def test_our_own_client_gives_the_same_call_back(script: Script, url: str) -> None:
    client = Client("script", url)
    call = await client(HELLO, tools=[CALC], **EXACTLY)
    await client.close()
    (made,) = script.calls
    for name in ("model", "messages", "response", "prompt_ids", "completion_ids", "logprobs", "prompt_tokens"):
        assert getattr(call, name) == getattr(made, name), name
    assert call.finish_reason == "tool_calls"


def test_a_tool_is_called_and_its_result_read(script: Script, client: openai.OpenAI) -> None:
    messages: list[Any] = list(HELLO)
    asked = client.chat.completions.create(model="script", messages=messages, tools=[CALC])
    assert asked.choices[0].finish_reason == "tool_calls"
    message = asked.choices[0].message
    assert message.tool_calls is not None
    (called,) = message.tool_calls
    assert called.type == "function"
    assert (called.function.name, json.loads(called.function.arguments)) == ("calc", {"expression": "2+2"})
    messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": called.id, "content": "4"}]
    answer = client.chat.completions.create(model="script", messages=messages, tools=[CALC])
    assert answer.choices[0].message.content == "It is 4."
    first, second = script.calls
    assert first.prompt_ids is not None and first.completion_ids is not None and second.prompt_ids is not None
    so_far = (*first.prompt_ids, *first.completion_ids)
    assert second.prompt_ids[: len(so_far)] == so_far  # the second turn begins with what was sampled in the first


def test_several_choices_are_several_calls(script: Script, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="script", messages=HELLO, n=3, seed=5)
    assert [choice.message.content for choice in answer.choices] == [f"Vier, würde ich sagen. {n}" for n in (5, 6, 7)]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_a_stream_says_what_the_whole_answer_would(script: Script, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="script",
        messages=HELLO,
        stream=True,
        stream_options={"include_usage": True},
        logprobs=True,
        extra_body={"return_token_ids": True},
    )
    *chunks, end, last = list(stream)
    (call,) = script.calls
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == call.response["content"]
    thought = [getattr(chunk.choices[0].delta, "reasoning_content", "") for chunk in chunks]
    assert "".join(thought) == call.response["reasoning_content"]
    assert len(chunks) > 5
    assert end.choices[0].finish_reason == "stop"
    assert (tuple(end.choices[0].token_ids), tuple(end.prompt_token_ids)) == (call.completion_ids, call.prompt_ids)  # type: ignore[attr-defined]
    assert end.choices[0].logprobs is not None and end.choices[0].logprobs.content is not None
    assert tuple(entry.logprob for entry in end.choices[0].logprobs.content) == call.logprobs
    assert (last.choices, last.usage and last.usage.completion_tokens) == ([], call.completion_tokens)


def test_the_official_accumulator_puts_a_streamed_tool_call_together(script: Script, client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="script", messages=HELLO, tools=[CALC]) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls is not None
    (called,) = message.tool_calls
    assert (called.function.name, called.function.arguments) == ("calc", '{"expression": "2+2"}')
    assert called.id == script.calls[0].response["tool_calls"][0]["id"]


def test_a_model_that_streams_gives_its_tokens_as_they_come(speaker: Speaker, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="script", messages=HELLO, stream=True, logprobs=True, n=2, extra_body={"return_token_ids": True}
    )
    ids: dict[int, list[int]] = {0: [], 1: []}
    logprobs: dict[int, list[float]] = {0: [], 1: []}
    for chunk in stream:
        (choice,) = chunk.choices
        ids[choice.index] += getattr(choice, "token_ids", None) or []
        logprobs[choice.index] += [entry.logprob for entry in (choice.logprobs and choice.logprobs.content) or ()]
    assert sorted(ids.values()) == sorted(list(call.completion_ids or ()) for call in speaker.calls)
    assert sorted(logprobs.values()) == sorted(list(call.logprobs or ()) for call in speaker.calls)


def test_models_and_health_are_told(url: str, client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert (model.id, model.owned_by, model.model_dump()["tokenizer"]) == ("script", "holdfast", "bytes")
    assert post(url.removesuffix("/v1"), None, "/health") == (200, {"status": "ok", "model": "script"})


@pytest.mark.parametrize(
    ("body", "path", "headers", "status", "says"),
    [
        (b"{", "/chat/completions", {}, 400, "request: is not JSON"),
        (b"\xff", "/chat/completions", {}, 400, "request: is not JSON"),
        (b"[" * 100_000, "/chat/completions", {}, 400, "request: is not JSON"),
        (b'{"a":' + b"[" * 200 + b"]" * 200 + b"}", "/chat/completions", {}, 400, "request: is nested deeper than 100"),
        ([], "/chat/completions", {}, 400, "request: is a list, not an object"),
        ({}, "/chat/completions", {}, 400, "model: is missing"),
        ({"model": "gpt", "messages": HELLO}, "/chat/completions", {}, 404, "model 'gpt': is not served here"),
        ({"model": "script", "messages": HELLO, "temperature": 3}, "/chat/completions", {}, 400, "temperature = 3: "),
        ({}, "/completions", {}, 404, "Not Found"),
        ({"id": "chatcmpl-1", "success": 1}, "/feedback", {}, 404, "Not Found"),  # nobody listens
        (None, "/chat/completions", {}, 405, "Method Not Allowed"),
        ({}, "/chat/completions", {"Content_Type": "text/plain"}, 415, "Content-Type must be application/json"),
        *(
            ({}, "/chat/completions", {"Host": host}, 403, "Host is not this machine's name")
            for host in ("evil.example", "evil.com@localhost", "evil.com#localhost", "localhost/x", "[::1", "", "a b")
        ),
        *(
            ({}, "/chat/completions", {"Host": host}, 400, "model: is")
            for host in ("[::1]:80", "LOCALHOST", "127.0.0.1")
        ),
        (None, "/models/", {"Host": "evil.example"}, 404, "Not Found"),  # and not sent there
        (b" " * (8 * 2**20 + 1), "/chat/completions", {}, 413, "the request is larger than 8388608 bytes; send less"),
    ],
)
def test_what_cannot_be_answered_has_its_status_and_openais_shape(
    script: Script, url: str, body: Any, path: str, headers: dict[str, str], status: int, says: str
) -> None:
    answered, content = post(url, body, path, **headers)
    assert answered == status
    assert content["error"]["message"].startswith(says) and script.asked == []
    assert set(content["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("what", "param"),
    [
        ("sampling.temperature = 1e-40", "temperature"),
        ("messages[3].content[0].text", "messages[3].content[0].text"),
        ("a prompt of 600 tokens", None),
        ("model call", None),
        ("tempature", None),
    ],
)
def test_only_a_field_of_the_request_is_named_as_one(script: Script, url: str, what: str, param: str | None) -> None:
    script.fails = BadInput(what, why="is not possible")
    status, content = post(url, {"model": "script", "messages": HELLO})
    assert (status, content["error"]["param"]) == (400, param)


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    ("half", "answered"),
    [
        (b"", b""),
        (HEAD, b""),
        (HEAD + b'Content-Length: 99\r\n\r\n{"a', b"HTTP/1.1 408 Request Timeout"),
    ],
)
def test_half_a_request_is_not_waited_for_for_ever(script: Script, half: bytes, answered: bytes) -> None:
    with serving(script, wait_s=0.2) as url, connected(url) as connection:
        connection.sendall(half)
        said = b"".join(iter(lambda: received(connection), b""))  # up to where the server hangs up
        assert said.startswith(answered) and bool(said) == bool(answered)


def test_nor_is_half_of_the_next_one(script: Script) -> None:
    with serving(script, wait_s=0.2) as url, connected(url) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 200 OK")
        connection.sendall(b"\r\n")
        assert received(connection) == b""


def test_a_server_that_ends_hangs_up_on_who_is_still_asking(script: Script, caplog: pytest.LogCaptureFixture) -> None:
    script.waits = True
    body = json.dumps({"model": "script", "messages": HELLO}).encode()
    with ExitStack() as asking:
        with serving(script) as url:
            slow, patient = (asking.enter_context(connected(url)) for _ in range(2))
            slow.sendall(HEAD + b'Content-Length: 99\r\n\r\n{"a')
            patient.sendall(HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
            assert script.waiting.wait(PATIENCE_S)
        assert script.cancelled.is_set() and (received(slow), received(patient)) == (b"", b"")
    assert caplog.records == []


def connected(url: str) -> socket.socket:
    host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def received(connection: socket.socket) -> bytes:
    try:
        return connection.recv(4096)
    except ConnectionResetError:
        return b""


def test_a_body_that_hides_its_length_is_cut_all_the_same(script: Script) -> None:
    with serving(script, largest=1000) as url:
        host, _, _ = url.removeprefix("http://").partition("/")
        connection = HTTPConnection(host, timeout=PATIENCE_S)
        parts = iter([b" " * 600, b" " * 600])
        connection.request("POST", "/v1/chat/completions", parts, {"Content-Type": "application/json"})
        assert connection.getresponse().status == 413
        connection.close()


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (
            BadInput("600 tokens", why="the context is 512", remedy="shorten the text"),
            400,
            "600 tokens: the context is 512",
        ),
        (BadRecord("model call: logprobs", why="must be finite"), 500, "model call: logprobs: must be finite"),
        (Fault("model", why="is closed"), 503, "model: is closed"),
        (ModelRefused("model", why="will not"), 500, "model: will not"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_fails_has_a_status(
    script: Script, client: openai.OpenAI, error: Exception, status: int, says: str, stream: bool
) -> None:
    script.fails = error
    with pytest.raises(openai.APIStatusError, match=says) as caught:
        client.chat.completions.create(model="script", messages=HELLO, stream=stream)
    assert caught.value.status_code == status


def test_a_bug_is_said_without_its_secrets(
    script: Script, client: openai.OpenAI, caplog: pytest.LogCaptureFixture
) -> None:
    script.fails = RuntimeError("the password is 1234")
    with pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(model="script", messages=HELLO)
    assert "the model failed: RuntimeError" in str(caught.value) and "1234" not in str(caught.value)


def test_a_stream_that_breaks_says_so_in_the_stream(speaker: Speaker, client: openai.OpenAI) -> None:
    speaker.fails = Fault("model", why="was closed")
    stream = client.chat.completions.create(model="script", messages=HELLO, stream=True)  # its status was 200
    with pytest.raises(openai.APIError, match="model: was closed"):
        list(stream)


def test_a_stream_without_an_end_is_a_fault(script: Script, url: str, door: tuple[dict[str, Complete], str]) -> None:
    class Stopped(Script):
        async def stream(self, messages: Any, /, **sampling: Any) -> AsyncIterator[Piece | ModelCall]:
            yield {"content": "I"}

    door[0]["now"] = Stopped()
    events = raw_events(url)
    assert '"content":"I"' in events[1] and "its stream broke off" in events[2] and events[3] == "data: [DONE]"


def raw_events(url: str) -> list[str]:
    host, _, _ = url.removeprefix("http://").partition("/")
    connection = HTTPConnection(host, timeout=PATIENCE_S)
    body = json.dumps({"model": "script", "messages": HELLO, "stream": True})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.headers["content-type"].startswith("text/event-stream")
    text = response.read().decode()
    connection.close()
    return text.strip().split("\n\n")


@pytest.mark.parametrize("kind", [Script, Speaker])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_call(
    url: str, door: tuple[dict[str, Complete], str], kind: Callable[[], Script], stream: bool
) -> None:
    model = door[0]["now"] = kind()
    model.waits = True
    host, _, port = url.removeprefix("http://").removesuffix("/v1").partition(":")
    body = json.dumps({"model": "script", "messages": HELLO, "stream": stream}).encode()
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        assert model.waiting.wait(PATIENCE_S)
        assert not model.cancelled.is_set()
    assert model.cancelled.wait(PATIENCE_S)


def test_the_token_is_asked_for(script: Script) -> None:
    with serving(script, token=TOKEN) as url:
        for key in (TOKEN[:-1], f"{TOKEN}t", "ß"):
            status, content = post(url, {"model": "script", "messages": HELLO}, Authorization=f"Bearer {key}")
            assert (status, content["error"]["code"]) == (401, "invalid_api_key")
        assert post(url, None, "/models")[0] == 401
        assert post(url.removesuffix("/v1"), None, "/health")[0] == 200
        with pytest.raises(Fault, match="HTTP 401: the token is missing or wrong"):
            asyncio.run(Client("script", url, tries=1, backoff=Backoff(initial_s=0, cap_s=0))(HELLO))
        assert asyncio.run(Client("script", url, api_key=TOKEN)(HELLO)).response["content"]
        assert len(script.calls) == 1
        with openai.OpenAI(base_url=url, api_key=TOKEN) as client:  # with a token, any name of the machine will do
            assert client.chat.completions.create(
                model="script", messages=HELLO, extra_headers={"Host": "models.example"}
            ).choices


def test_a_version_is_chosen_once_a_request_by_who_asks() -> None:
    keys: list[str] = []
    versions = {"ann": Script(), "bob": Script()}

    def choose(key: str) -> Complete:
        keys.append(key)
        return versions.get(key, versions["bob"])

    with serving(Script(), choose_version=choose) as url:
        for user in ("ann", "bob", None):
            assert post(url, {"model": "script", "messages": HELLO, "user": user, "n": 2})[0] == 200
    assert keys[:2] == ["ann", "bob"] and len(keys) == 3 and keys[2]
    assert (len(versions["ann"].calls), len(versions["bob"].calls)) == (2, 4)


def test_only_a_token_opens_the_door_to_others() -> None:
    with pytest.raises(BadInput) as caught:
        listen("0.0.0.0", 0, token=None)
    says = "host 0.0.0.0: everyone who reaches this machine could use the model; give a token, or listen at 127.0.0.1"
    assert str(caught.value) == says
    listen("0.0.0.0", 0, token=TOKEN).close()
    listen("localhost", 0, token=None).close()
    with pytest.raises(BadInput, match="token: cannot stand in a header"):
        listen("127.0.0.1", 0, token="two\nlines")
    with pytest.raises(BadInput, match="token: has 19 characters, and needs 20"):
        listen("127.0.0.1", 0, token=TOKEN[:19])


def test_an_address_in_use_is_said() -> None:
    with listen("127.0.0.1", 0, token=None) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"127.0.0.1:{port}: .*in use.*; choose another --host or --port"):
            listen("127.0.0.1", port, token=None)


@dataclass
class Listener:
    """Who is told what came of answers; it knows one of them."""

    said: list[tuple[str, Mapping[str, float]]] = field(default_factory=list)
    raises: Exception | None = None

    async def __call__(self, identity: str, said: Mapping[str, float]) -> bool:
        if self.raises is not None:
            raise self.raises
        self.said.append((identity, said))
        return identity == "chatcmpl-1"


@pytest.fixture(scope="module")
def counter() -> Iterator[tuple[Listener, str]]:
    told = Listener()
    with serving(Script(), feedback=told) as url:
        yield told, url


@pytest.fixture
def told(counter: tuple[Listener, str]) -> Listener:
    counter[0].said.clear()
    counter[0].raises = None
    return counter[0]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"success": True}, {"success": 1.0}),
        ({"success": 0}, {"success": 0.0}),
        ({"reward": -3}, {"reward": -3.0}),
        ({"success": 0.5, "reward": 0.25, "safety_cost": 0}, {"success": 0.5, "reward": 0.25, "safety_cost": 0.0}),
    ],
)
def test_what_came_of_an_answer_is_told(
    told: Listener, counter: tuple[Listener, str], given: dict[str, Any], said: dict[str, float]
) -> None:
    status, answer = post(counter[1], {"id": "chatcmpl-1", **given}, "/feedback")
    assert (status, answer) == (200, {"id": "chatcmpl-1", "object": "feedback", "taken": True})
    assert told.said == [("chatcmpl-1", said)]
    assert all(type(value) is float for value in told.said[0][1].values())


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "id: is missing"),
        ([], "id: is missing"),
        ("chatcmpl-1", "id: is missing"),
        ({"id": "", "success": 1}, "id: is missing"),
        ({"id": 7, "success": 1}, "id: is missing"),
        ({"id": "chatcmpl-1"}, "feedback: says nothing; send one or more of success, reward, safety_cost"),
        ({"id": "chatcmpl-1", "score": 1}, "score: is unknown; send success, reward, safety_cost"),
        ({"id": "chatcmpl-1", "success": 1.5}, "success = 1.5: must be a number from 0 to 1"),
        ({"id": "chatcmpl-1", "success": "yes"}, "success = 'yes': must be a number from 0 to 1"),
        ({"id": "chatcmpl-1", "success": None}, "success = None: must be a number from 0 to 1"),
        ({"id": "chatcmpl-1", "reward": True}, "reward = True: must be a number"),
        ({"id": "chatcmpl-1", "reward": 1e300}, "must be a number from -1000 to 1000"),
        ({"id": "chatcmpl-1", "safety_cost": -1}, "safety_cost = -1: must be a number from 0 to 1000"),
        (b'{"id": "chatcmpl-1", "reward": NaN}', "request: is not JSON"),
        (b'{"id": "chatcmpl-1"', "request: is not JSON"),
    ],
)
def test_feedback_that_says_nothing_sound_is_refused(
    told: Listener, counter: tuple[Listener, str], body: Any, says: str
) -> None:
    status, answer = post(counter[1], body, "/feedback")
    assert status == 400 and says in answer["error"]["message"]
    assert answer["error"]["type"] == "invalid_request_error"
    assert told.said == []


def test_feedback_on_what_is_not_known_is_not_found(told: Listener, counter: tuple[Listener, str]) -> None:
    status, answer = post(counter[1], {"id": "chatcmpl-2", "success": 1}, "/feedback")
    assert status == 404 and answer["error"]["code"] == "not_found"
    assert answer["error"]["message"] == "answer 'chatcmpl-2': is not known, or nothing is compared at the moment"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Conflict("request chatcmpl-1", why="success was told before: 1.0, not 0.0"), 409),
        (Fault("answer chatcmpl-1", why="the run takes nothing"), 503),
        (StoreFull("store", why="the disk is full"), 500),
    ],
)
def test_feedback_that_contradicts_or_cannot_be_kept_has_a_status(
    told: Listener, counter: tuple[Listener, str], error: Exception, status: int
) -> None:
    told.raises = error
    answered, answer = post(counter[1], {"id": "chatcmpl-1", "success": 0}, "/feedback")
    assert answered == status and answer["error"]["message"] == str(error)


def test_feedback_asks_for_the_token_and_for_json(told: Listener, counter: tuple[Listener, str]) -> None:
    good = {"id": "chatcmpl-1", "success": 1}
    with serving(Script(), feedback=told, token=TOKEN) as url:
        assert post(url, good, "/feedback")[0] == 401
        assert post(url, good, "/feedback", Authorization="Bearer wrong")[0] == 401
        assert told.said == []
        assert post(url, good, "/feedback", Authorization=f"Bearer {TOKEN}")[0] == 200
    assert post(counter[1], good, "/feedback", Content_Type="text/plain")[0] == 415
    assert post(counter[1], good, "/feedback", Host="evil.example")[0] == 403


def test_who_answers_knows_the_id_that_the_caller_will_see() -> None:
    seen = []

    class Knowing(Script):
        async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
            seen.append(REQUEST.get())
            return await super().__call__(messages, **sampling)

    with serving(Knowing()) as url:
        answers = [post(url, {"model": "script", "messages": HELLO})[1]["id"] for _ in range(2)]
    assert seen == answers and len(set(seen)) == 2


KEY = "sk-planted-0123456789abcdefghijklmnop"


async def nothing(request: Asked) -> Response:
    return Response()


def place(path: str, **more: Any) -> ApiRoute:
    told = ApiOperation(
        name="ask", says="Ask", gives={200: ("an answer", {JSON: obj(text=TEXT)}), **refusals(400)}, **more
    )
    return ApiRoute(path, nothing, told, method="POST")


def test_a_route_is_told_with_what_is_in_its_path_its_headers_and_its_body() -> None:
    named = [{"name": "x-id", "in": "header", "required": True, "schema": TEXT}]
    made = document(
        "t",
        "says",
        [place("/a/{name:path}/{n:int}/ask", takes={JSON: obj()}, headers=named), place("/ask", headers=named)],
        has_token=False,
    )
    assert made["openapi"].startswith("3.1") and "security" not in made
    below, plain = made["paths"]["/a/{name}/{n}/ask"]["post"], made["paths"]["/ask"]["post"]
    assert [(one["name"], one["in"]) for one in below["parameters"]] == [("name", "path"), ("n", "path")]
    assert below["requestBody"]["content"][JSON]["schema"]["type"] == "object"
    assert plain["parameters"] == named and "requestBody" not in plain
    assert below["operationId"] != plain["operationId"]
    assert set(plain["responses"]) == {"200", "400"}


def test_a_token_is_told_of_and_where_none_is_asked_for() -> None:
    made = document("t", "", [place("/closed"), place("/open", is_open=True)], has_token=True)
    assert made["security"] == [{"token": []}] and made["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert made["paths"]["/open"]["post"]["security"] == [] and "security" not in made["paths"]["/closed"]["post"]


def told_by(application: Starlette) -> None:
    for route in application.routes:
        assert isinstance(route, ApiRoute), f"{route} is served, and nobody is told"


def test_all_that_the_endpoint_serves_is_told() -> None:
    told_by(app(Script(), name="m", feedback=Listener()))


def fetched_document(url: str, **headers: str) -> tuple[int, Any]:
    connection = HTTPConnection(url.removeprefix("http://").partition("/")[0], timeout=60)
    connection.request("GET", "/openapi.json", headers=headers)
    answer = connection.getresponse()
    try:
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def test_every_form_is_a_schema_and_the_document_asks_for_the_token_too() -> None:
    with serving(Script(), feedback=Listener(), token=TOKEN) as url:
        assert fetched_document(url)[0] == 401
        status, made = fetched_document(url, Authorization=f"Bearer {TOKEN}")
    assert status == 200
    for path in made["paths"].values():
        for operation in path.values():
            forms = [one["content"] for one in (*operation["responses"].values(), operation.get("requestBody")) if one]
            for form in (media["schema"] for content in forms for media in content.values()):
                jsonschema.Draft202012Validator.check_schema(form)


def test_nothing_that_is_asked_breaks_the_endpoint_or_gets_an_answer_that_it_does_not_tell_of(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    known = {"model": "script", "messages": HELLO, "id": "chatcmpl-1"}
    known |= dict.fromkeys(("stream_options", "top_logprobs", "max_completion_tokens"))  # wrong only beside others
    with caplog.at_level(logging.INFO), serving(Script(), feedback=Listener()) as url:
        headers = {"Authorization": f"Bearer {KEY}", "x-api-key": KEY}
        seen = fuzz(url.removesuffix("/v1"), tries=15, headers=headers, known=known)
    chat, feedback = seen["POST /v1/chat/completions"], seen["POST /v1/feedback"]
    assert chat[200] >= 3 and chat[400] >= 12 and feedback[200] >= 3 and feedback[400] >= 12  # else nothing was tried
    assert set(seen) == {f"GET {path}" for path in ("/v1/models", "/health", "/openapi.json")} | {
        f"POST /v1/{name}" for name in ("chat/completions", "feedback")
    }
    told = capfd.readouterr()
    ours = [record.getMessage() for record in caplog.records if record.name.startswith(("holdfast", "uvicorn"))]
    assert not [text for text in (told.out, told.err, *ours) if KEY in text]
