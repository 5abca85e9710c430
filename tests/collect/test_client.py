"""The client against a real endpoint: what was sampled arrives as it was, and trouble on the way is not the agent's."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.collect.client import EXTRAS, Client, ModelRefused, checked, hidden
from holdfast.contracts.budget import Mode
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.trace import ModelCall
from tests.endpoint import Endpoint, Scripted, completion, serving

HELLO = [{"role": "user", "content": "hello"}]
AT_ONCE = Backoff(initial_s=0.0, cap_s=0.0)


@pytest.fixture(scope="module")
def shared_endpoint() -> Iterator[Endpoint]:
    with serving() as found:
        yield found


@pytest.fixture
def endpoint(shared_endpoint: Endpoint) -> Endpoint:
    """The one server of this file, as if it were new."""
    vars(shared_endpoint).update(vars(Endpoint(url=shared_endpoint.url)))
    return shared_endpoint


def client_of(endpoint: Endpoint, **how: Any) -> Client:
    return Client("tiny", endpoint.url, **{"backoff": AT_ONCE, **how})


def ask(endpoint: Endpoint, *, sampling: dict[str, Any] | None = None, **how: Any) -> ModelCall:
    async def asking() -> ModelCall:
        return await client_of(endpoint, **how)(HELLO, **(sampling or {}))

    return asyncio.run(asking())


def test_ids_and_log_probs_are_kept_as_they_were_sampled(endpoint: Endpoint) -> None:
    call = ask(endpoint, sampling={"temperature": 0.5, "return_token_ids": True})
    assert call == ModelCall(
        model="tiny@1",
        messages=tuple(HELLO),
        response={"role": "assistant", "content": "echo: hello"},
        finish_reason="stop",
        prompt_tokens=4,
        completion_tokens=3,
        prompt_ids=(1, 2, 3, 4),
        completion_ids=(5, 6, 7),
        logprobs=(-0.5, -0.25, 0.0),
        sampling={"temperature": 0.5, "return_token_ids": True},
    )
    (asked,) = endpoint.asked
    assert asked.body == {"model": "tiny", "messages": HELLO, "temperature": 0.5, **EXTRAS}
    assert ask(endpoint, sampling={"logprobs": False}).sampling == {"logprobs": False}
    assert endpoint.asked[-1].body["logprobs"] is False  # what the agent says goes
    endpoint.reply = lambda body: completion("a", choice={"sampling": {"temperature": 1.0, "top_k": 0}})
    assert ask(endpoint, sampling={"temperature": 0.5}).sampling == {"temperature": 0.5, "top_k": 0}  # as ours says it


@pytest.mark.parametrize(
    "complaint",
    ["Unrecognized request argument supplied: return_token_ids", "'logprobs' is not supported with this model"],
)
def test_an_endpoint_that_gives_no_ids_is_asked_once_and_then_left_alone(endpoint: Endpoint, complaint: str) -> None:
    endpoint.script.append(Scripted(400, {"error": {"message": complaint}}))

    async def twice() -> None:
        client = client_of(endpoint)
        assert (await client(HELLO)).response["content"] == "echo: hello"
        await client(HELLO)
        await client.close()

    asyncio.run(twice())
    assert ["return_token_ids" in asked.body for asked in endpoint.asked] == [True, False, False]


@pytest.mark.parametrize(("key", "header"), [("s3cret", "Bearer s3cret"), (None, None), ("", None)])
def test_the_key_travels_in_the_header(endpoint: Endpoint, key: str | None, header: str | None) -> None:
    ask(endpoint, api_key=key)
    assert endpoint.asked[0].headers.get("Authorization") == header


def test_no_redirect_is_followed_and_the_key_stays_here(endpoint: Endpoint) -> None:
    with serving() as elsewhere:
        elsewhere.models = {"data": [{"id": "tiny", "owned_by": "vllm"}]}
        away = {"Location": f"{elsewhere.url}/chat/completions"}
        for status in (302, 307):
            endpoint.script.append(Scripted(status, {}, headers=away))
            with pytest.raises(Fault, match=f"HTTP {status}.*check --base-url"):
                ask(endpoint, api_key="tell-nobody")
        assert not elsewhere.asked


def test_a_key_that_is_said_back_is_not_told(endpoint: Endpoint) -> None:
    for said in ({"error": {"message": "no: Bearer tell-nobody"}}, b"<p>tell-nobody</p>"):
        endpoint.script.append(Scripted(401, said))
        with pytest.raises(Fault, match="HTTP 401") as caught:
            ask(endpoint, api_key="tell-nobody")
        assert "tell-nobody" not in str(caught.value)


def test_what_the_endpoint_does_not_give_is_missing_and_not_made_up(endpoint: Endpoint) -> None:
    endpoint.reply = lambda body: {"choices": [{"message": {"role": "assistant", "content": None}}]}
    call = ask(endpoint)
    assert call.model == "tiny"
    given = (call.finish_reason, call.prompt_tokens, call.prompt_ids, call.completion_ids, call.logprobs)
    assert given == (None, None, None, None, None)


@pytest.mark.parametrize(
    "choice",
    [
        {"token_ids": None},  # log-probs of nothing
        {"token_ids": [5, 6]},  # of something else
        {"logprobs": None},
        {"logprobs": {"content": None}},
    ],
)
def test_log_probs_without_their_ids_are_not_used(endpoint: Endpoint, choice: dict[str, Any]) -> None:
    endpoint.reply = lambda body: completion("yes", choice=choice)
    call = ask(endpoint)
    assert call.logprobs is None
    assert call.response["content"] == "yes"


def logprobs(*values: float) -> dict[str, Any]:
    return {"token_ids": [1] * len(values), "logprobs": {"content": [{"logprob": value} for value in values]}}


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 0.7])
def test_what_is_no_log_prob_is_refused_and_never_becomes_certainty(endpoint: Endpoint, value: float) -> None:
    endpoint.reply = lambda body: completion("yes", choice=logprobs(2e-7, -1.0))
    assert ask(endpoint).logprobs == (0.0, -1.0)  # a hair above one is rounding
    endpoint.reply = lambda body: completion("yes", choice=logprobs(-1.0, value))
    with pytest.raises(Fault, match="not a chat completion .*logprobs: must be finite and at most 0"):
        ask(endpoint)


# Trouble


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 520, 529])
def test_a_passing_trouble_is_tried_again(endpoint: Endpoint, status: int) -> None:
    endpoint.script.extend([Scripted(status, {"error": {"message": "busy"}})] * 3)
    assert ask(endpoint).response["content"] == "echo: hello"
    assert len(endpoint.asked) == 4


def test_a_trouble_that_does_not_pass_is_a_fault(endpoint: Endpoint) -> None:
    endpoint.script.extend([Scripted(503, {"error": {"message": "no  room\nhere"}})] * 4)
    with pytest.raises(Fault) as caught:
        ask(endpoint)
    why = "HTTP 503: no room here (4 tries); is it running and reachable?"
    assert str(caught.value) == f"model endpoint {endpoint.url}/chat/completions: {why}"
    assert len(endpoint.asked) == 4


def test_an_endpoint_that_is_not_there_is_a_fault() -> None:
    with socket.socket() as held:  # bound and not listening: nobody else can take the port meanwhile
        held.bind(("127.0.0.1", 0))
        nowhere = Endpoint(url=f"http://127.0.0.1:{held.getsockname()[1]}/v1")
        with pytest.raises(
            Fault, match=r": cannot connect: Connection refused \(3 tries\); is it running and reachable\?"
        ):
            ask(nowhere, tries=3)


def test_an_endpoint_that_takes_too_long_is_a_fault(endpoint: Endpoint) -> None:
    endpoint.script.extend([Scripted(body={}, pause_s=2.0)] * 2)
    with pytest.raises(Fault, match=r"TimeoutError.* \(2 tries\)"):
        ask(endpoint, timeout_s=0.2, tries=2)


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_a_wrong_key_or_address_is_a_fault_at_once_and_says_what_to_check(endpoint: Endpoint, status: int) -> None:
    endpoint.script.append(Scripted(status, {"error": "not yours"}))
    with pytest.raises(Fault) as caught:
        ask(endpoint)
    assert (caught.value.why, caught.value.remedy) == (
        f"HTTP {status}: not yours",
        "check --base-url, --model and the API key",
    )
    assert len(endpoint.asked) == 1


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_refused_is_the_agents_own_error(endpoint: Endpoint, status: int) -> None:
    endpoint.script.append(Scripted(status, {"error": {"message": "too long", "type": "invalid_request_error"}}))
    with pytest.raises(ModelRefused) as caught:
        ask(endpoint)
    assert str(caught.value) == f"model tiny: HTTP {status}: too long"
    assert not isinstance(caught.value, Fault) and len(endpoint.asked) == 1
    endpoint.script.append(Scripted(status, {"error": {"message": "x" * 5000}}))
    with pytest.raises(ModelRefused) as caught:
        ask(endpoint)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "body",
    [b"<html>Bad gateway</html>", b"", b'{"choices": [', b"\xff\xfe\x00garbage", b"[" * 100_000],
    ids=["html", "empty", "torn", "bytes", "deep"],
)
def test_an_answer_that_is_no_json_is_tried_again(endpoint: Endpoint, body: bytes) -> None:
    endpoint.script.extend([Scripted(200, body)] * 2)
    assert ask(endpoint).response["content"] == "echo: hello"
    endpoint.script.extend([Scripted(200, body)] * 4)
    with pytest.raises(Fault, match=r"not JSON: .*\(4 tries\)"):
        ask(endpoint)


@pytest.mark.parametrize(
    "body",
    [
        [],
        "hello",
        None,
        {"error": {"message": "still loading"}},
        {"choices": []},
        {"choices": [{"text": "an older kind of answer"}]},
        {"choices": [{"message": "hello"}]},
        completion("yes", choice={"token_ids": ["five"]}),
        completion("yes", choice={"token_ids": [-5, 6, 7]}),
        completion("yes", choice={"finish_reason": 7}),
        completion("yes", prompt_token_ids=3),
        completion("yes", usage={"prompt_tokens": "four"}),
        completion("yes", usage=[4, 3]),
        completion("yes", choice={"message": {"content": float("nan")}}),
    ],
    ids=str,
)
def test_an_answer_that_is_no_completion_is_a_fault_and_not_the_agents(endpoint: Endpoint, body: Any) -> None:
    endpoint.reply = lambda _: body
    with pytest.raises(Fault, match="not a chat completion"):
        ask(endpoint)
    assert len(endpoint.asked) == 1


# Connections


async def test_calls_on_one_loop_share_their_connections(endpoint: Endpoint) -> None:
    client = client_of(endpoint)
    for _ in range(5):
        await client(HELLO)
    assert len({asked.peer for asked in endpoint.asked}) == 1
    await client.close()
    await client(HELLO)  # and it can be used again
    assert len({asked.peer for asked in endpoint.asked}) == 2


def test_one_client_serves_many_event_loops_at_once_and_leaves_nothing_open(
    endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(endpoint, tries=1)
    answers: list[str] = []

    async def several(name: str) -> None:
        calls = [client([{"role": "user", "content": f"{name} {n}"}]) for n in range(5)]
        answers.extend([call.response["content"] for call in await asyncio.gather(*calls)])

    def loops(name: str) -> None:
        for turn in range(3):  # each a new event loop, as an agent has it that calls asyncio.run
            asyncio.run(several(f"{name} {turn}"))

    with caplog.at_level(logging.WARNING):
        threads = [threading.Thread(target=loops, args=(f"thread {n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
    assert sorted(answers) == sorted(
        f"echo: thread {n} {turn} {i}" for n in range(4) for turn in range(3) for i in range(5)
    )
    assert caplog.records == []


def owned_by(owner: Any, name: str = "tiny") -> dict[str, Any]:
    return {"object": "list", "data": [{"id": "another", "owned_by": "nobody"}, {"id": name, "owned_by": owner}]}


@pytest.mark.parametrize(
    ("models", "how", "sent", "mode"),
    [
        (owned_by("holdfast"), {}, {"thinking": 9}, "parameter"),
        (owned_by("vllm"), {"thinking": Mode.PARAMETER}, {"thinking_token_budget": 9}, "parameter"),
        (owned_by("vllm"), {}, {"max_tokens": 9}, "forcing"),
        (owned_by("openai"), {}, {"max_completion_tokens": 1033}, "hint"),
        (owned_by(7), {}, {"max_tokens": 1033}, "hint"),  # who knows what that is
        ({"data": "none"}, {}, {"max_tokens": 1033}, "hint"),
        (None, {}, {"max_tokens": 1033}, "hint"),  # it has no list
        (owned_by("holdfast"), {"thinking": Mode.HINT}, {"max_tokens": 1033}, "hint"),
        (None, {"thinking": Mode.FORCING}, {"max_tokens": 9}, "forcing"),
    ],
)
def test_thinking_is_limited_in_the_way_that_the_endpoint_knows(
    endpoint: Endpoint, models: Any, how: dict[str, Any], sent: dict[str, Any], mode: str
) -> None:
    endpoint.models = models
    call = ask(endpoint, sampling={"thinking": 9}, **how)
    (asked,) = endpoint.asked
    assert {name: value for name, value in asked.body.items() if name not in ("model", "messages", *EXTRAS)} == sent
    assert ("Think for at most 9 tokens" in str(asked.body["messages"])) == (mode == "hint")
    assert (call.sampling["thinking"], call.sampling["thinking_mode"]) == (9, mode)


async def test_who_serves_the_model_is_asked_once_and_not_without_need(endpoint: Endpoint) -> None:
    endpoint.models = owned_by("holdfast")
    client = client_of(endpoint)
    await client(HELLO)
    endpoint.models = owned_by("vllm")
    await client(HELLO, thinking=3)
    endpoint.models = owned_by("holdfast")
    call = await client(HELLO, thinking=3)
    assert call.sampling["thinking_mode"] == "forcing"
    await client.close()


def test_thinking_tokens_are_those_that_the_endpoint_counted(endpoint: Endpoint) -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 3, "completion_tokens_details": {"reasoning_tokens": 2}}
    endpoint.reply = lambda body: completion("hi", usage=usage)
    assert ask(endpoint).thinking_tokens == 2


@pytest.mark.parametrize(
    "url", ["http://h", "https://api.example.com/v1", "http://127.0.0.1:8000/v1", "http://[::1]:80", "http://bücher.de"]
)
def test_an_address_is_taken_without_the_slash_at_its_end(url: str) -> None:
    assert checked("endpoint", url) == checked("endpoint", f"{url}/") == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://h", "is not http:// or https://"),
        ("me:tell-nobody@h", "is not http:// or https://"),
        ("http://me:tell-nobody@h/v1", "a name or a password"),
        ("http://tell-nobody@h", "a name or a password"),
        ("http://h/x?key=tell-nobody", "a query or a fragment"),
        ("http://h/x#tell-nobody", "a query or a fragment"),
        ("http://h:99999", "a port from 1 to 65535"),
        ("http://h:x", "a port from 1 to 65535"),
        ("http://h:0", "no address of a host"),
        ("http://", "no address of a host"),
        ("http:///v1", "no address of a host"),
        ("http://u%40h", "no address of a host"),
        ("http://h/ x", "a letter in it"),
        ("http://h/\r\nX: y", "a letter in it"),
        ("http://h\\x", "a letter in it"),
    ],
)
def test_what_is_none_is_refused_and_its_secrets_are_not_shown(url: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        checked("endpoint", url)
    assert "tell-nobody" not in str(caught.value)
    with pytest.raises(BadInput, match=f"base URL .*{why}.*; for example http://127.0.0.1:8000/v1"):
        Client("tiny", url)


def test_what_is_said_back_of_a_secret_is_hidden() -> None:
    said = "bad key 'Bearer sk-tell-nobody' (sk-tell-nobody)"
    assert hidden(said, "Bearer sk-tell-nobody", None, "") == "bad key '…' (…)"
    assert hidden("a key", "key") == "a key"  # too short to be one


LISTED = {"data": [{"id": "small"}, {"id": "large"}]}
UNKNOWN = {"error": {"message": "The model `tiny` does not exist", "code": "model_not_found"}}


@pytest.mark.parametrize("models", [LISTED, None], ids=["a list", "no list"])
@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (400, UNKNOWN, "does not exist; (it has small, large|check the name)"),
        (404, UNKNOWN, "does not exist; (it has small, large|check the name)"),
        (401, {"error": {"message": "no such key"}}, "HTTP 401: no such key; check the API key"),
        (404, "nothing here", "HTTP 404: nothing here; check the address .* most end in /v1"),
    ],
)
def test_a_model_that_the_endpoint_does_not_know_is_refused_before_any_work(
    endpoint: Endpoint, models: Any, status: int, body: Any, said: str
) -> None:
    endpoint.models, endpoint.probe = models, (status, body)
    with pytest.raises(BadInput, match=f"model tiny at .*{said}"):
        asyncio.run(client_of(endpoint).check_reachable())
    assert endpoint.probed == ["tiny"]


def test_a_model_that_is_listed_or_answers_is_not_refused(endpoint: Endpoint) -> None:
    endpoint.models = {"data": [{"id": "tiny"}]}
    asyncio.run(client_of(endpoint).check_reachable())
    assert endpoint.probed == []
    for models, probe in (
        (None, None),  # no list, and it answers
        (LISTED, None),  # an alias that no list has
        (LISTED, (400, {"error": {"message": "this model takes no max_tokens of 1"}})),  # an error of another kind
    ):
        endpoint.models, endpoint.probe = models, probe
        asyncio.run(client_of(endpoint).check_reachable())
    assert len(endpoint.probed) == 3
