"""The proxy on a real socket: bytes as they came, every call a span, refusals as documented, nothing lost by force."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from starlette.applications import Starlette

from holdfast.collect import endpoint
from holdfast.collect.chat_format import spell_byte
from holdfast.collect.proxy import budgets
from holdfast.collect.proxy.app import ProxyLimits, app
from holdfast.collect.proxy.attribution import base_url
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.rollout import Attempt, AttemptState
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import Span
from holdfast.policies import tokens
from holdfast.privacy.scrub import Scrub
from holdfast.store.store import Store, open_store
from tests.collect.proxy.far import STREAM, WORDS, Far, Step, asking, chunk, completion
from tests.collect.proxy.street import running, served
from tests.collect.scene import PATIENCE_S, until
from tests.collect.test_endpoint import Script

JSON = {"content-type": "application/json"}
KEY = b"k" * 32


@dataclass
class Road:
    """A proxy, what is behind it, and an attempt whose calls go through."""

    store: Store
    far: Far
    url: str
    upstream: str
    attempt: Attempt
    application: Starlette
    loop: asyncio.AbstractEventLoop  # the proxy's

    @property
    def path(self) -> str:
        return f"/rollout/{self.attempt.rollout}/attempt/1/v1/chat/completions"

    def post(self, path: str | None = None, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=40)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request("POST", path or self.path, asking() if body is None else body, {**JSON, **named})
        answer = connection.getresponse()
        try:
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def spans(self) -> list[Span]:
        return self.store.traces.spans(self.attempt.token)

    def lines(self, folder: Path) -> list[dict[str, Any]]:
        path = folder / "training" / "proxy-attribution.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def road(store: Store, remote: dict[str, Any] | None = None, **more: Any) -> Iterator[Road]:
    far, made, loops = Far(), list[Starlette](), list[asyncio.AbstractEventLoop]()
    with served(far.app) as upstream:

        def make() -> Starlette:
            made.append(app(store, [Upstream(upstream, **{"is_extended": False, **(remote or {})})], **more))
            loops.append(asyncio.get_running_loop())
            return made[0]

        with served(make) as url:
            yield Road(store, far, url, upstream, running(store), made[0], loops[0])


def eventually(condition: Callable[[], object]) -> None:
    patience = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < patience, "it never came true"
        time.sleep(0.01)


def code(answer: tuple[int, Any, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["code"].removeprefix("training_proxy_")


def test_a_whole_answer_passes_and_is_kept(store: Store, tmp_path: Path) -> None:
    with road(store, state_folder=tmp_path) as here:
        here.far.usual = Step(headers={"x-request-id": "abc", "set-cookie": "no"})
        asked = asking(temperature=0.25)
        quoted = here.path.replace(here.attempt.rollout, here.attempt.rollout.replace("/", "%2F"))
        for path in (here.path, quoted):
            status, headers, body = here.post(
                path, asked, x_sequence_id="9", x_trace_id="tr", cookie="a=b", openai_beta="x"
            )
            assert (status, body) == (200, completion())
            assert headers["x-request-id"] == "abc" and "set-cookie" not in headers
        sent, passed = here.far.asked[0]
        assert passed == asked and sent["openai-beta"] == "x"
        assert not {"cookie", "x-sequence-id", "x-trace-id", "user-agent"} & set(sent)
    first, second = here.spans()
    assert second.seq == first.seq + 1 > 1_000_000
    assert first.model is not None and first.model.response == {"role": "assistant", "content": "hello"}
    assert (first.model.prompt_tokens, first.model.sampling, first.trace_id) == (3, {"temperature": 0.25}, "tr")
    notes = {"path": "/v1/chat/completions", "streamed": False, "sequence_id": 9, "status": 200}
    assert first.attributes == {**notes, "upstream": here.upstream}
    line, _ = here.lines(tmp_path)
    assert line.pop("timestamp_unix_ms") > 1e12 and line.pop("duration_ms") >= 0
    assert line == {
        "schema_version": 1,
        "method": "POST",
        "path": here.path,
        "upstream_url": f"{here.upstream}/v1/chat/completions",
        "rollout_id": here.attempt.rollout,
        "attempt_id": here.attempt.id,
        "sequence_id": 9,
        "trace_id": "tr",
        "request_bytes": len(asked),
        "response_bytes": len(completion()),
        "status_code": 200,
    }


def test_the_documented_headers_name_the_attempt_as_well(file_store: Store, tmp_path: Path) -> None:
    path = "/v1/chat/completions"
    with road(file_store, state_folder=tmp_path) as here:
        named = {"x_rollout_id": here.attempt.rollout, "x_attempt_id": here.attempt.id}
        assert here.post(path, **named)[0] == 200
        for wrong in ({}, {**named, "x_attempt_id": " "}, {**named, "x_sequence_id": "-1"}):
            assert code(here.post(path, **wrong)) == (400, "missing_or_invalid_attribution_header")
    assert len(here.spans()) == len(here.far.asked) == len(here.lines(tmp_path)) == 1


def test_a_stream_passes_byte_for_byte_however_it_is_cut(file_store: Store) -> None:
    text = b"".join(STREAM)
    with road(file_store) as here:
        for size in (1, 7, 50, 10_000):
            here.far.usual = Step([text[place : place + size] for place in range(0, len(text), size)])
            status, headers, body = here.post(body=asking(stream=True))
            assert (status, body, headers["content-type"].split(";")[0]) == (200, text, "text/event-stream")
    for span in here.spans():
        assert span.model is not None and "partial" not in span.attributes and span.ended_at is not None
        assert (span.model.response["content"], span.model.finish_reason, span.model.model) == ("hello", "stop", "m@1")
        assert span.attributes["first_token_s"] >= 0


def test_the_first_bytes_come_before_the_last_and_the_record_before_the_last(file_store: Store) -> None:
    go_on = threading.Event()
    with road(file_store) as here:
        here.far.usual = Step(WORDS, waits_for=go_on)
        connection = HTTPConnection(urlsplit(here.url).netloc, timeout=40)
        connection.request("POST", here.path, asking(stream=True), JSON)
        answer = connection.getresponse()
        assert answer.read1(10_000).startswith(b"data: ")
        eventually(lambda: [span.ended_at for span in here.spans()] == [None])
        go_on.set()
        answer.read()
        assert here.spans()[0].ended_at is not None
        connection.close()


def test_a_stream_that_breaks_is_cut_and_kept_as_far_as_it_came(file_store: Store, tmp_path: Path) -> None:
    with road(file_store, state_folder=tmp_path) as here:
        here.far.usual = Step(WORDS[:2], breaks=True)
        with pytest.raises(IncompleteRead) as cut:
            here.post(body=asking(stream=True))
        assert cut.value.partial == b"".join(WORDS[:2])
        here.far.usual = Step(WORDS[:3])  # ends, and never says why
        assert here.post(body=asking(stream=True))[2] == b"".join(WORDS[:3])
    broken, silent = here.spans()
    assert broken.model is not None and broken.model.response["content"] == "hel" and broken.ended_at is not None
    assert broken.attributes["partial"].startswith("the upstream: BrokenConnection: it hung up")
    assert silent.attributes["partial"] == "the upstream broke off"
    assert [line.get("error_code") for line in here.lines(tmp_path)] == ["upstream_response_read_failed", None]


def test_a_stream_of_which_an_event_cannot_be_read_passes_and_counts_for_nothing(file_store: Store) -> None:
    hole = b'data: {"choices": [{"index": 0, "delta": {"content": "\xff"}}]}\n\n'
    with road(file_store) as here:
        here.far.usual = Step([*WORDS[:2], hole, *WORDS[2:], b"data: [DONE]\n\n"])
        assert hole in here.post(body=asking(stream=True))[2]
    (span,) = here.spans()
    assert span.attributes["partial"] == "an event of the stream could not be read"


def test_a_client_that_reads_nothing_gives_its_place_to_others(file_store: Store, tmp_path: Path) -> None:
    with road(file_store, state_folder=tmp_path, limits=ProxyLimits(unread_s=0.3)) as here:
        here.far.usual = Step([chunk(content="x" * 2**20)] * 40)
        body, netloc = asking(stream=True), urlsplit(here.url)
        with socket.create_connection((netloc.hostname, netloc.port)) as client:
            head = f"POST {here.path} HTTP/1.1\r\nHost: {netloc.netloc}\r\nContent-Type: application/json\r\n"
            client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            gate = here.application.state.proxy.upstreams.each[0].gate
            eventually(lambda: gate.inside == 1)
            eventually(lambda: gate.inside == 0)
            eventually(lambda: here.lines(tmp_path))
    assert here.spans()[0].attributes["partial"] == "the client left"
    assert [line["error_code"] for line in here.lines(tmp_path)] == ["client_left"]


def test_a_client_that_leaves_ends_its_call_upstream_and_leaves_what_had_come(file_store: Store) -> None:
    with road(file_store) as here:
        here.far.usual = Step(WORDS[:2] * 200, gap_s=0.05)
        connection = HTTPConnection(urlsplit(here.url).netloc, timeout=40)
        connection.request("POST", here.path, asking(stream=True), JSON)
        assert connection.getresponse().read1(10_000)
        connection.close()
        eventually(lambda: [span for span in here.spans() if span.ended_at is not None])
        gate = here.application.state.proxy.upstreams.each[0].gate
        eventually(lambda: gate.inside == 0)
    assert here.spans()[0].attributes["partial"] == "the client left"


@pytest.mark.parametrize("status", [400, 401, 429, 500])
def test_an_upstreams_refusal_passes_as_it_is_and_counts_for_nothing(file_store: Store, status: int) -> None:
    with road(file_store) as here:
        here.far.usual = Step(b'{"error": {"message": "no"}}', status, {"retry-after": "7"})
        found, headers, body = here.post()
        assert (found, headers["retry-after"], body) == (status, "7", b'{"error": {"message": "no"}}')
    (span,) = here.spans()
    assert span.attributes["partial"] == f"the upstream said {status}" and span.ended_at is not None


def test_refusals_have_their_documented_codes(file_store: Store, tmp_path: Path) -> None:
    with road(file_store, {"timeout_s": 1}, state_folder=tmp_path, limits=ProxyLimits(largest=2000)) as here:
        rollout, other = here.attempt.rollout, "/rollout/run-1-x/nope/attempt/1/v1/chat/completions"
        assert code(here.post(other)) == (404, "unknown_attempt")
        assert code(here.post(f"/rollout/{rollout}/attempt/2/v1/chat/completions")) == (404, "unknown_attempt")
        assert code(here.post(body=b"nope")) == (400, "invalid_request")
        assert code(here.post(body=asking(x=json.loads("[" * 700 + "]" * 700)))) == (400, "invalid_request")
        assert here.post(body=asking(x="y" * 3000))[0] == 413
        assert here.post(content_type="text/plain")[0] == 415
        assert here.post(host="evil.example")[0] == 403
        here.far.usual = Step(pause_s=3)
        assert code(here.post()) == (502, "upstream_request_failed")
        here.far.usual = Step()
        here.store.queue.finish(here.attempt, AttemptState.FAULT, now=time.time()).result()
        assert code(here.post()) == (409, "attempt_not_running")
    assert [(line.get("status_code"), line["error_code"]) for line in here.lines(tmp_path)] == [
        (None, "invalid_request"),
        (None, "upstream_request_failed"),
    ]
    assert [span.attributes["partial"] for span in here.spans()] == [f"{here.upstream}: no answer within 1 s"]


def test_calls_of_a_run_that_is_stopped_are_refused_and_those_of_one_that_drains_go_on(file_store: Store) -> None:
    with road(file_store) as here, open_store(file_store.url) as operator:
        run, go_on = here.attempt.rollout.partition("/")[0], threading.Event()

        def order(wanted: DesiredState) -> None:
            operator.runs.want(run, wanted, who="ann", why="because", now=time.time()).result()

        for wanted in (DesiredState.PAUSED, DesiredState.DRAINING, DesiredState.RUNNING):
            order(wanted)
            assert here.post()[0] == 200
        order(DesiredState.FROZEN)
        eventually(lambda: here.post()[0] == 409)
        status, _, body = here.post()
        assert code((status, None, body)) == (409, "attempt_not_running")
        assert "its run is frozen" in json.loads(body)["error"]["message"]
        order(DesiredState.RUNNING)
        eventually(lambda: here.post()[0] == 200)
        here.far.usual = Step(WORDS, waits_for=go_on)
        answers: list[int] = []
        stream = threading.Thread(target=lambda: answers.append(here.post(body=asking(stream=True))[0]))
        stream.start()
        eventually(lambda: here.far.sent and here.far.sent[-1])
        order(DesiredState.DRAINING)
        go_on.set()
        stream.join(PATIENCE_S)
        assert answers == [200] and here.spans()[-1].attributes.get("partial") is None
        order(DesiredState.CANCELLED)
        eventually(lambda: here.post()[0] == 409)
        assert "its run is cancelled" in json.loads(here.post()[2])["error"]["message"]


def test_several_choices_are_refused_and_nothing_of_them_is_asked_or_kept(file_store: Store) -> None:
    with road(file_store) as here:
        status, _, body = here.post(body=asking(n=3))
        assert (status, json.loads(body)["error"]["code"]) == (400, "training_proxy_invalid_request")
        assert "n = 3: of several answers nobody could tell which one was gone on with" in body.decode()
        assert here.post(body=asking(n=1))[0] == 200
    assert len(here.far.asked) == len(here.spans()) == 1


def test_an_attempt_with_a_number_beyond_all_is_not_found(store: Store) -> None:
    with road(store) as here:
        for number in ("0", "1000000000", "9" * 40):
            path = f"/rollout/{here.attempt.rollout}/attempt/{number}/v1/chat/completions"
            assert code(here.post(path)) == (404, "unknown_attempt")
        assert code(here.post("/rollout/run%00/x%00/attempt/1/v1/chat/completions")) == (404, "unknown_attempt")


SECRET = "AK" + "IA" + "IOSFODNN7EXAMPL2"


@pytest.mark.parametrize(("tokenizer", "streamed"), [("bytes", False), ("bytes", True), ("other", False)])
def test_where_tokens_are_our_own_only_those_of_what_was_scrubbed_are_lost(
    file_store: Store, tokenizer: str, streamed: bool
) -> None:
    attempt, spell = running(file_store), spell_byte if tokenizer == "bytes" else (lambda token: spell_byte(token))
    with ExitStack() as on:
        upstream = on.enter_context(served(lambda: endpoint.app(Script(), name="script", spell=spell)))
        how = {"scrub": Scrub(KEY).call, "scrub_spelt": Scrub(KEY, token_bytes=budgets.spell).call}
        url = on.enter_context(served(lambda: app(file_store, [Upstream(upstream)], **how)))
        client = on.enter_context(openai.OpenAI(base_url=f"{base_url(url, attempt.rollout, 1)}/v1", api_key="x"))
        said: Any = [{"role": "user", "content": f"my key is {SECRET}, keep it"}]
        made = client.chat.completions.create(model="script", messages=said, stream=streamed)
        assert not streamed or list(made)
    (span,) = file_store.traces.spans(attempt.token)
    assert span.model is not None and SECRET not in str(span.model.messages)
    if tokenizer == "other":  # nobody says how they are spelt
        assert span.model.prompt_ids is None and span.model.completion_ids is None
        return
    prompt, whole = span.model.prompt_ids or (), tokens.prompt(said)
    ((start, end),) = span.model.scrubbed
    assert bytes(prompt[start:end]) != SECRET.encode() == bytes(whole[start:end])
    assert (*whole[:start], *[0] * len(SECRET), *whole[end:]) == prompt
    assert span.model.logprobs is not None and len(span.model.completion_ids or ()) == len(span.model.logprobs) > 10


def test_what_stands_in_a_header_is_scrubbed_like_what_is_said(file_store: Store, tmp_path: Path) -> None:
    secret, plain = "sk-ant-api03-" + "Zz9yXw8vUt" * 3, ["0af7651916cd43dd8448eb211c80319c", "run-7:step.3"]
    with road(file_store, state_folder=tmp_path, scrub=Scrub(KEY).call) as here:
        for trace in (f"tr-{secret}", *plain):
            assert here.post(x_trace_id=trace)[0] == 200
    traces = [line["trace_id"] for line in here.lines(tmp_path)]
    assert traces == [span.trace_id for span in here.spans()] and traces[1:] == plain
    assert secret not in traces[0] and "<secret:" in traces[0]


def test_an_upstream_without_token_ids_is_not_asked_what_its_tokens_are(file_store: Store) -> None:
    with road(file_store, scrub=Scrub(KEY).call, scrub_spelt=Scrub(KEY, token_bytes=budgets.spell).call) as here:
        assert here.post()[0] == 200 and not here.far.lists
        here.far.usual = Step(completion(prompt_token_ids=[1, 2]))
        assert here.post()[0] == here.post()[0] == 200 and len(here.far.lists) == 1


def test_an_answer_that_came_after_the_attempt_was_over_is_not_given(file_store: Store) -> None:
    with road(file_store) as here:
        here.far.usual = Step(pause_s=0.3)
        ending = threading.Timer(
            0.1, lambda: file_store.queue.finish(here.attempt, AttemptState.FAULT, now=time.time())
        )
        ending.start()
        assert code(here.post()) == (409, "attempt_not_running")
    assert here.spans()[0].attributes["partial"] == "it never ended"


def test_a_token_is_asked_for_and_never_passed_on(file_store: Store, tmp_path: Path) -> None:
    with road(
        file_store, {"keys": {"OPENAI_API_KEY": "sk-upstream-key"}}, token="s3cret-token", state_folder=tmp_path
    ) as here:
        assert here.post()[0] == here.post(authorization="Bearer wrong")[0] == 401
        assert here.post(authorization="Bearer s3cret-token")[0] == here.post(x_api_key="s3cret-token")[0] == 200
        assert {sent["authorization"] for sent, _ in here.far.asked} == {"Bearer sk-upstream-key"}
        assert not any("s3cret-token" in str(sent) for sent, _ in here.far.asked)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"sk-upstream" not in written and b"s3cret" not in written


def test_without_a_key_of_its_own_the_callers_is_passed_on_and_kept_nowhere(file_store: Store, tmp_path: Path) -> None:
    with road(file_store, state_folder=tmp_path) as here:
        here.far.steps.append(Step(b'{"error": "no"}', 401))
        for _ in range(2):
            here.post(authorization="Bearer sk-planted-key")
        assert [sent["authorization"] for sent, _ in here.far.asked] == ["Bearer sk-planted-key"] * 2
    file_store.close()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert here.attempt.rollout.encode() in written and b"sk-planted" not in written


def test_health_says_where_calls_go(file_store: Store, tmp_path: Path) -> None:
    with road(file_store, state_folder=tmp_path) as here:
        connection = HTTPConnection(urlsplit(here.url).netloc, timeout=40)
        connection.request("GET", "/training/proxy/health")
        assert json.loads(connection.getresponse().read()) == {
            "schema_version": 1,
            "status": "ready",
            "upstream_chat_completions_url": f"{here.upstream}/v1/chat/completions",
            "attribution_log_path": str(tmp_path / "training" / "proxy-attribution.jsonl"),
            "attribution_log_failures": 0,
            "upstreams": [{"name": here.upstream, "calls": 0, "held": False}],
        }
        connection.close()


async def test_fifty_streams_during_a_swap_all_end_well(file_store: Store) -> None:
    """Those under way go on, those that come wait until it is over."""
    version = ["old"]

    def by_version(body: dict[str, Any]) -> Step:
        return Step([piece.replace(b"hel", version[0].encode()) for piece in STREAM], gap_s=0.05)

    with road(file_store, {"hold_s": 20.0}) as here:
        here.far.usual = Step(decide=by_version)
        proxy = here.application.state.proxy
        client = openai.AsyncOpenAI(base_url=f"{here.url}{here.path.removesuffix('/chat/completions')}", api_key="x")

        async def one(number: int) -> str:
            await asyncio.sleep(number * 0.005)
            stream: Any = await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            return "".join([part.choices[0].delta.content or "" async for part in stream])

        async def swap() -> None:
            await until(lambda: not proxy.upstreams.named(here.upstream).gate.inside)
            version[0] = "new"
            await asyncio.sleep(0.1)
            proxy.release(here.upstream)

        calls = [asyncio.create_task(one(number)) for number in range(25)]
        await until(lambda: len(here.far.asked) >= 5)
        proxy.hold(here.upstream)  # with some under way and some on their way
        calls += [asyncio.create_task(one(number)) for number in range(25)]
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(swap(), here.loop))
        said = await asyncio.gather(*calls)
        await client.close()
    assert set(said) == {"oldlo", "newlo"}
    assert len(here.spans()) == 50 and not any("partial" in span.attributes for span in here.spans())


def test_calls_that_are_held_too_long_are_told_when_to_come_back(file_store: Store) -> None:
    with road(file_store, {"hold_s": 0.05}) as here:
        here.application.state.proxy.hold(here.upstream)
        assert code(here.post("/training/proxy/hold", b'{"upstream": "http://x"}')) == (400, "invalid_request")
        assert here.post("/training/proxy/other", b"{}")[0] == 404
        held = here.post("/training/proxy/hold", b"{}")
        assert json.loads(held[2]) == {"name": here.upstream, "calls": 0, "held": True}
        answer = here.post()
        assert code(answer) == (429, "upstream_busy") and answer[1]["retry-after"] == "1"
        assert here.far.asked == []
        assert json.loads(here.post("/training/proxy/release", b"{}")[2])["held"] is False
        assert here.post()[0] == 200
