"""The proxy on a real socket: bytes as they came, every call a span, refusals as documented, nothing lost by force."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import jsonschema
import openai
import pytest

from holdfast.collect import endpoint, lookups
from holdfast.collect.chat_format import spell_byte
from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.collect.proxy import budgets
from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.app import REQUESTS, ProxyLimits, app
from holdfast.collect.proxy.attribution import AttributionLog, BadHeader, Identity, base_url, from_headers, from_path
from holdfast.collect.proxy.budgets import own_token_bytes
from holdfast.collect.proxy.dialect import Chat, ModelRequest
from holdfast.collect.proxy.responses import Responses
from holdfast.collect.proxy.span_recorder import FIRST, CallRecord, SpanRecorder, TokenPrice
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.errors import BadInput, NotFound, StaleLease
from holdfast.contracts.rollout import Attempt, AttemptState
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.policies import tokens
from holdfast.privacy.scrub import Scrub
from holdfast.store.store import Store, open_store
from tests.collect.fuzz import fuzz
from tests.collect.proxy.far import (
    HELLO,
    STREAM,
    WORDS,
    Far,
    Road,
    Step,
    asking,
    chunk,
    completion,
    listing,
    road,
    running,
    served,
)
from tests.collect.scene import PATIENCE_S, until
from tests.collect.test_endpoint import Script, told_by

KEY = b"k" * 32
TOKEN = "an-operators-own-token"


@pytest.fixture(scope="module")
def shared_road(shared_store: Store) -> Iterator[Road]:
    with road(shared_store) as built:
        yield built


@pytest.fixture
def here(shared_road: Road) -> Road:
    """The one proxy of this file, with a new attempt and an upstream that knows of nothing."""
    vars(shared_road.far).update(vars(Far()))
    shared_road.attempt = running(shared_road.store)
    return shared_road


def eventually(condition: Callable[[], object]) -> None:
    patience = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < patience, "it never came true"
        time.sleep(0.01)


def code(answer: tuple[int, Any, bytes]) -> tuple[int, str]:
    return answer[0], json.loads(answer[2])["error"]["code"].removeprefix("training_proxy_")


def test_a_whole_answer_passes_and_is_kept(file_store: Store, tmp_path: Path) -> None:
    with road(file_store, state_folder=tmp_path) as here:
        here.far.usual = Step(headers={"x-request-id": "abc", "set-cookie": "no"})
        asked = asking(temperature=0.25)
        quoted = here.path.replace(here.attempt.rollout, here.attempt.rollout.replace("/", "%2F"))
        for path in (here.path, quoted):
            status, headers, body = here.post(
                path, asked, x_sequence_id="9", x_trace_id="tr", x_tag="plan", cookie="a=b", openai_beta="x"
            )
            assert (status, body) == (200, completion())
            assert headers["x-request-id"] == "abc" and "set-cookie" not in headers
        sent, passed = here.far.asked[0]
        assert passed == asked and sent["openai-beta"] == "x"
        assert not {"cookie", "x-sequence-id", "x-trace-id", "x-tag", "user-agent"} & set(sent)
    first, second = here.spans()
    assert second.seq == first.seq + 1 > 1_000_000
    assert first.model is not None and first.model.response == {"role": "assistant", "content": "hello"}
    assert (first.model.prompt_tokens, first.model.sampling, first.trace_id) == (3, {"temperature": 0.25}, "tr")
    notes = {"path": "/v1/chat/completions", "streamed": False, "sequence_id": 9, "status": 200, "tag": "plan"}
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


def test_a_stream_passes_byte_for_byte_however_it_is_cut(here: Road) -> None:
    text = b"".join(STREAM)
    for size in (1, 7, 50, 10_000):
        here.far.usual = Step([text[place : place + size] for place in range(0, len(text), size)])
        status, headers, body = here.post(body=asking(stream=True))
        assert (status, body, headers["content-type"].split(";")[0]) == (200, text, "text/event-stream")
    for span in here.spans():
        assert span.model is not None and "partial" not in span.attributes and span.ended_at is not None
        assert (span.model.response["content"], span.model.finish_reason, span.model.model) == ("hello", "stop", "m@1")
        assert span.attributes["first_token_s"] >= 0


def test_the_first_bytes_come_before_the_last_and_the_record_before_the_last(here: Road) -> None:
    go_on = threading.Event()
    here.far.usual = Step(WORDS, waits_for=go_on)
    connection = HTTPConnection(urlsplit(here.url).netloc, timeout=40)
    connection.request("POST", here.path, asking(stream=True), {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.read1(10_000).startswith(b"data: ")
    eventually(lambda: [span.ended_at for span in here.spans()] == [None])
    go_on.set()
    answer.read()
    assert here.spans()[0].ended_at is not None
    connection.close()


def test_a_stream_that_breaks_is_cut_and_kept_as_far_as_it_came(file_store: Store, tmp_path: Path) -> None:
    hole = b'data: {"choices": [{"index": 0, "delta": {"content": "\xff"}}]}\n\n'
    with road(file_store, state_folder=tmp_path) as here:
        here.far.usual = Step(WORDS[:2], breaks=True)
        with pytest.raises(IncompleteRead) as cut:
            here.post(body=asking(stream=True))
        assert cut.value.partial == b"".join(WORDS[:2])
        here.far.usual = Step(WORDS[:3])  # ends, and never says why
        assert here.post(body=asking(stream=True))[2] == b"".join(WORDS[:3])
        here.far.usual = Step([*WORDS[:2], hole, *WORDS[2:], b"data: [DONE]\n\n"])
        assert hole in here.post(body=asking(stream=True))[2]
    broken, silent, holed = here.spans()
    assert broken.model is not None and broken.model.response["content"] == "hel" and broken.ended_at is not None
    assert broken.attributes["partial"].startswith("the upstream: BrokenConnection: it hung up")
    assert silent.attributes["partial"] == "the upstream broke off"
    assert holed.attributes["partial"] == "an event of the stream could not be read"
    assert [line.get("error_code") for line in here.lines(tmp_path)] == ["upstream_response_read_failed", None, None]


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


def test_a_client_that_leaves_ends_its_call_upstream_and_leaves_what_had_come(here: Road) -> None:
    here.far.usual = Step(WORDS[:2] * 200, gap_s=0.05)
    connection = HTTPConnection(urlsplit(here.url).netloc, timeout=40)
    connection.request("POST", here.path, asking(stream=True), {"content-type": "application/json"})
    assert connection.getresponse().read1(10_000)
    connection.close()
    eventually(lambda: [span for span in here.spans() if span.ended_at is not None])
    gate = here.application.state.proxy.upstreams.each[0].gate
    eventually(lambda: gate.inside == 0)
    assert here.spans()[0].attributes["partial"] == "the client left"


def test_an_upstreams_refusal_passes_as_it_is_and_counts_for_nothing(here: Road) -> None:
    statuses = (400, 401, 429, 500)
    for status in statuses:
        here.far.usual = Step(b'{"error": {"message": "no"}}', status, {"retry-after": "7"})
        found, headers, body = here.post()
        assert (found, headers["retry-after"], body) == (status, "7", b'{"error": {"message": "no"}}')
    said = [(span.attributes["partial"], span.ended_at is not None) for span in here.spans()]
    assert said == [(f"the upstream said {status}", True) for status in statuses]


def test_refusals_have_their_documented_codes(file_store: Store, tmp_path: Path) -> None:
    with road(file_store, {"timeout_s": 1}, state_folder=tmp_path, limits=ProxyLimits(largest=2000)) as here:
        rollout, other = here.attempt.rollout, "/rollout/run-1-x/nope/attempt/1/v1/chat/completions"
        assert code(here.post(other)) == (404, "unknown_attempt")
        assert code(here.post(f"/rollout/{rollout}/attempt/2/v1/chat/completions")) == (404, "unknown_attempt")
        for wrong in (b"nope", asking(n=3)):
            assert code(here.post(body=wrong)) == (400, "invalid_request")
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
        upstream = on.enter_context(served(lambda: endpoint.app(Script(), name="script", token_bytes=spell)))
        how = {"scrub": Scrub(KEY).call, "scrub_spelt": Scrub(KEY, token_bytes=budgets.own_token_bytes).call}
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
    spelt = Scrub(KEY, token_bytes=budgets.own_token_bytes).call
    with road(file_store, scrub=Scrub(KEY).call, scrub_spelt=spelt) as here:
        assert here.post()[0] == 200 and not here.far.lists
        here.far.usual = Step(completion(prompt_token_ids=[1, 2]))
        assert here.post()[0] == here.post()[0] == 200 and len(here.far.lists) == 1


def test_an_answer_that_came_after_the_attempt_was_over_is_not_given(here: Road) -> None:
    here.far.usual = Step(pause_s=0.3)
    ending = threading.Timer(0.1, lambda: here.store.queue.finish(here.attempt, AttemptState.FAULT, now=time.time()))
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
    mine = {"authorization": f"Bearer {TOKEN}"}
    with road(file_store, {"hold_s": 0.05}, token=TOKEN) as here:
        here.application.state.proxy.hold(here.upstream)
        wrong = here.post("/training/proxy/hold", b'{"upstream": "http://x"}', **mine)
        assert code(wrong) == (400, "invalid_request")
        assert here.post("/training/proxy/other", b"{}", **mine)[0] == 404
        held = here.post("/training/proxy/hold", b"{}", **mine)
        assert json.loads(held[2]) == {"name": here.upstream, "calls": 0, "held": True}
        answer = here.post(**mine)
        assert code(answer) == (429, "upstream_busy") and answer[1]["retry-after"] == "1"
        assert here.far.asked == []
        assert json.loads(here.post("/training/proxy/release", b"{}", **mine)[2])["held"] is False
        assert here.post(**mine)[0] == 200


def test_the_base_url_names_the_attempt() -> None:
    assert base_url("http://h:1/", "run-1-a/t 1", 2) == "http://h:1/rollout/run-1-a%2Ft%201/attempt/2"


def test_headers_name_the_attempt_by_its_id_or_its_number() -> None:
    for said in (b"r/t:attempt-3", b"attempt-3", b" 3 "):
        given = {b"x-rollout-id": b" r/t ", b"x-attempt-id": said, b"x-sequence-id": b"7", b"x-trace-id": b" "}
        assert from_headers(given) == Identity(rollout="r/t", number=3, sequence=7, trace=None)
    assert from_path("r/t", "1", {b"x-trace-id": b"abc"}) == Identity(rollout="r/t", number=1, trace="abc")


WHOLE = {b"x-rollout-id": b"r/t", b"x-attempt-id": b"1"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (b"x-rollout-id", None, "missing required header 'x-rollout-id'"),
        (b"x-attempt-id", None, "missing required header 'x-attempt-id'"),
        (b"x-rollout-id", b" ", "header 'x-rollout-id' cannot be empty"),
        (b"x-attempt-id", b"\xff", "header 'x-attempt-id' must be valid utf-8"),
        (b"x-trace-id", b"\xff", "header 'x-trace-id' must be valid utf-8"),
        (b"x-tag", b"a" * 201, "header 'x-tag' must have at most 200 characters"),
        (b"x-sequence-id", b"-1", "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", b"1.5", "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", b"", "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", str(2**64).encode(), "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", b"9" * 5000, "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-attempt-id", b"x", "header 'x-attempt-id' must name an attempt of the rollout, as in r/t:attempt-1"),
        (b"x-attempt-id", b"q/t:attempt-1", "header 'x-attempt-id' must name an attempt of the rollout, as in r/t:a"),
    ],
)
def test_a_header_that_cannot_be_used_is_named(name: bytes, value: bytes | None, message: str) -> None:
    given = {key: said for key, said in {**WHOLE, name: value}.items() if said is not None}
    with pytest.raises(BadHeader) as caught:
        from_headers(given)
    assert str(caught.value).startswith(message)


async def test_lines_are_appended_without_anybody_waiting(tmp_path: Path) -> None:
    log, other = AttributionLog(tmp_path), AttributionLog(tmp_path)
    for number in range(50):
        log.add({"rollout_id": f"r/{number}", "status_code": None})
        other.add({"rollout_id": f"o/{number}"})
    await until(log.path.exists)
    await log.close()
    await other.close()
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert len(lines) == 100 and all(line["schema_version"] == 1 for line in lines)
    assert [line["rollout_id"] for line in lines if line["rollout_id"][0] == "r"] == [f"r/{n}" for n in range(50)]
    assert "status_code" not in lines[0]
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


async def test_a_line_that_was_cut_short_stays_alone(tmp_path: Path) -> None:
    log = AttributionLog(tmp_path)
    log.path.parent.mkdir()
    log.path.write_text('{"half":')
    log.add({"a": 1})
    await log.close()
    assert log.path.read_text() == '{"half":\n{"schema_version":1,"a":1}\n'


async def test_a_folder_that_vanished_is_made_again_and_one_that_cannot_be_is_counted(tmp_path: Path) -> None:
    log = AttributionLog(tmp_path / "s")
    log.add({"a": 1})
    await log.close()
    shutil.rmtree(tmp_path / "s")
    log.add({"a": 2})
    await log.close()
    assert log.path.is_file() and log.failures == 0
    shutil.rmtree(tmp_path / "s")
    (tmp_path / "s").touch()
    log.add({"a": 3})
    await log.close()
    assert log.failures == 1


OWN, THEIRS = "sk-planted-own-0123456789abcdefghij", "sk-planted-their-0123456789abcdefghij"
DIALECTS = (Chat(), Responses(), Messages())


@pytest.mark.usefixtures("untraced")
def test_nothing_that_is_asked_breaks_the_proxy_gets_what_is_not_told_or_leaves_a_key_behind(
    file_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    far, attempt, scrub = Far(models=listing({"id": "m"})), running(file_store), Scrub(KEY)
    keys = {"OPENAI_API_KEY": OWN, "ANTHROPIC_API_KEY": OWN}
    asked = [*HELLO, {"role": "user", "content": f"my key is {THEIRS}"}]
    known = {"rollout": attempt.rollout, "number": 1, "x-rollout-id": attempt.rollout, "x-attempt-id": "1"}
    known |= {"messages": asked, "input": asked, "n": None}
    taker = SpanReceiver(file_store, clock=time.time, scrub=scrub.span)

    def make() -> object:
        return app(
            file_store,
            [Upstream(upstream, keys=keys, hold_s=0.05)],
            state_folder=tmp_path / "state",
            scrub=scrub.call,
            scrub_spelt=Scrub(KEY, token_bytes=own_token_bytes).call,
            dialects=DIALECTS,
            routes=routes(taker),
        )

    with caplog.at_level(logging.INFO), served(far.app) as upstream, served(make) as url:  # type: ignore[arg-type]
        headers = {"Authorization": f"Bearer {THEIRS}", "x-api-key": THEIRS}
        seen = fuzz(url, tries=6, headers=headers, known=known)
    for dialect in DIALECTS:
        below = seen[f"POST /rollout/{{rollout}}/attempt/{{number}}{dialect.path}"]
        assert below[200] and below[404], below  # some named the attempt that runs, others none
    assert sum(one[400] for one in seen.values()) >= 20
    assert far.asked and file_store.traces.spans(attempt.token)  # some were passed on, and kept
    assert all(sent["authorization"] == f"Bearer {OWN}" for sent, _ in far.asked)
    file_store.close()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "proxy-attribution.jsonl" for path in written)
    assert not [path for path, text in written.items() if b"sk-planted" in text]
    told = capfd.readouterr()
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("urllib3")]
    assert not [text for text in (told.out, told.err, *logged) if "sk-planted" in text]


def test_all_that_the_proxy_serves_is_told(file_store: Store) -> None:
    taker = SpanReceiver(file_store, clock=time.time)
    told_by(app(file_store, [Upstream("http://127.0.0.1:1")], dialects=DIALECTS, routes=routes(taker)))


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Chat(), {"model": "m", "messages": []}),
        (Chat(), {"model": "m", "messages": HELLO, "n": 1, "stream": True, "whatever": [1]}),
        (Responses(), {"model": "m", "input": "hi"}),
        (Responses(), {"model": "m"}),
        (Messages(), {"model": "m", "messages": HELLO, "max_tokens": 5}),
    ],
)
def test_what_a_dialect_reads_fits(dialect: Chat | Responses | Messages, body: dict[str, object]) -> None:
    dialect.read_request(json.dumps(body).encode())
    jsonschema.validate(body, REQUESTS[dialect.path])


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Chat(), {"model": "m", "messages": HELLO, "n": 3}),
        (Chat(), {"model": "", "messages": HELLO}),
        (Responses(), {"model": "m", "input": 5}),
        (Messages(), {"model": "m", "messages": ["hi"]}),
    ],
)
def test_what_does_not_fit_is_refused(dialect: Chat | Responses | Messages, body: dict[str, object]) -> None:
    assert not jsonschema.Draft202012Validator(REQUESTS[dialect.path]).is_valid(body)
    with pytest.raises(BadInput):
        dialect.read_request(json.dumps(body).encode())


ASKED: ModelRequest = Chat().read_request(asking(temperature=0.5))


def answered(text: str = "hello", **more: Any) -> ModelCall:
    given = {"model": "m@1", "response": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}
    return ModelCall(messages=tuple(HELLO), sampling={"temperature": 0.5}, **given)


async def begin(store: Store, attempt: Attempt, **how: Any) -> CallRecord:
    recorder = SpanRecorder(store, clock=time.time, **how)
    return await recorder.open(attempt, ASKED, trace_id="t1", notes={"path": "/v1"})


def kept(store: Store, attempt: Attempt) -> Span:
    (span,) = store.traces.spans(attempt.token)
    return span


async def test_a_call_is_there_while_it_runs_and_whole_when_it_ended(file_store: Store) -> None:
    attempt = running(file_store)
    record = await begin(file_store, attempt, prices={"m": TokenPrice(read=2.0, written=4.0)})
    await record.opened()
    opened = kept(file_store, attempt)
    assert (opened.seq, opened.kind, opened.name, opened.ended_at) == (FIRST, SpanKind.MODEL, "model.m", None)
    assert opened.attributes == {"path": "/v1", "partial": "it never ended"}
    assert opened.model == ModelCall(model="m", messages=tuple(HELLO), response={}, sampling={"temperature": 0.5})
    call = answered(prompt_tokens=1000, completion_tokens=500)
    await record.close(call)
    closed = kept(file_store, attempt)
    assert (closed.model, closed.trace_id, closed.name) == (call, "t1", "model.m@1")
    assert closed.attributes == {"path": "/v1", "cost": 0.004}
    assert closed.started_at == opened.started_at <= (closed.ended_at or 0)
    await record.close(answered("late"))
    assert kept(file_store, attempt) == closed  # it ends once


async def test_a_stream_is_written_down_while_it_runs(file_store: Store) -> None:
    attempt = running(file_store)
    record = await begin(file_store, attempt, amend_s=0.02)
    record.arrived(lambda: answered("hel", finish_reason=None), is_answer=True)  # before it is known to be open
    await until(lambda: [s for s in file_store.traces.spans(attempt.token) if s.model != opened_call()])
    partial = kept(file_store, attempt)
    assert partial.model is not None and partial.model.response["content"] == "hel"
    assert partial.ended_at is None and partial.attributes["partial"] == "it never ended"
    record.arrived(lambda: answered("hello", finish_reason=None), is_answer=True)
    await record.close(answered())
    attributes = kept(file_store, attempt).attributes
    assert "partial" not in attributes and 0 <= attributes["first_token_s"] < 10
    assert len(attributes["arrivals_ms"]) == 2
    await asyncio.sleep(0.05)  # what was still to be amended is not
    assert kept(file_store, attempt).model == answered()


def opened_call() -> ModelCall:
    return ModelCall(model="m", messages=tuple(HELLO), response={}, sampling={"temperature": 0.5})


async def test_calls_are_numbered_in_their_order_and_apart_from_the_workers_own(store: Store) -> None:
    attempt = running(store)
    own = Span(seq=1, kind=SpanKind.TELEMETRY, name="own", started_at=1.0)
    store.traces.add(attempt, [own], now=time.time()).result()
    keepers = [SpanRecorder(store, clock=time.time) for _ in range(2)]  # two proxies, or one that was started again
    asked = [replace(ASKED, model=f"m{n}") for n in range(6)]
    records = [await keepers[n % 2].open(attempt, asked[n], trace_id=None, notes={}) for n in range(6)]
    for record in reversed(records):
        await record.close(answered())
    spans = store.traces.spans(attempt.token)
    assert [span.seq for span in spans] == [1, *range(FIRST, FIRST + 6)]
    assert [span.started_at for span in spans[1:]] == sorted(span.started_at for span in spans[1:])


SPAN = {"traceId": "a" * 32, "spanId": "b" * 16, "name": "s", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
OTLP = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN]}]}]}
LOOKS = [  # what hangs, and who is asked
    ("views.attempt", "v1/chat/completions"),
    ("runs.get", "v1/chat/completions"),
    ("views.rollout", "v1/chat/completions"),
    ("budgets.get", "v1/chat/completions"),
    ("views.attempt", "v1/traces"),
    ("traces.spans", "v1/traces"),
]


@pytest.mark.parametrize(("hanging", "path"), LOOKS)
def test_a_look_into_the_store_that_hangs_costs_one_request_alone(
    hanging: str, path: str, file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, entered, let_go = running(file_store, thinking_budgets=True), threading.Event(), threading.Event()
    room, name = hanging.split(".")

    def hang(*_: object) -> None:
        entered.set()
        assert let_go.wait(PATIENCE_S)

    monkeypatch.setattr(lookups, "LOOKUP_S", 0.3)
    with road(file_store, attempt=attempt, routes=routes(SpanReceiver(file_store, clock=time.time))) as here:
        monkeypatch.setattr(getattr(file_store, room), name, hang)
        body = json.dumps(OTLP).encode() if path == "v1/traces" else None
        with ThreadPoolExecutor(1) as asking:
            hung = asking.submit(here.post, f"/rollout/{attempt.rollout}/attempt/1/{path}", body)
            assert entered.wait(PATIENCE_S)
            began = time.monotonic()
            with urlopen(f"{here.url}/training/proxy/health", timeout=PATIENCE_S) as health:  # others are answered
                assert health.status == 200 and time.monotonic() - began < PATIENCE_S / 4
            status, _, said = hung.result()
        let_go.set()
    assert status == 503 and b"did not answer within" in said


async def test_an_attempt_that_does_not_run_is_refused_at_every_step(file_store: Store) -> None:
    attempt, keeper = running(file_store), SpanRecorder(file_store, clock=time.time)
    assert keeper.attempt(attempt.rollout, 1) == attempt
    for rollout, number in ((attempt.rollout, 2), (attempt.rollout + "x", 1), ("nothing", 1)):
        with pytest.raises(NotFound):
            keeper.attempt(rollout, number)
    late = SpanRecorder(file_store, clock=lambda: attempt.lease_until + 1.0)
    assert late.attempt(attempt.rollout, 1) == attempt  # its worker may still renew it
    record = await begin(file_store, attempt)
    await record.not_refused()
    await record.opened()
    file_store.queue.finish(attempt, AttemptState.FAULT, now=time.time()).result()
    with pytest.raises(StaleLease, match="it is fault"):
        keeper.attempt(attempt.rollout, 1)
    with pytest.raises(StaleLease):
        await record.close(answered())
    refused = await begin(file_store, attempt)
    with pytest.raises(StaleLease):
        await refused.opened()
    await refused.give_up(None, "something else")  # is quiet about it
    assert kept(file_store, attempt).attributes["partial"] == "it never ended"


async def test_nothing_is_written_before_it_is_scrubbed(file_store: Store) -> None:
    def scrub(call: ModelCall) -> ModelCall:
        def clean(message: Any) -> Any:
            return {key: str(value).replace("hel", "***").replace("hi", "**") for key, value in message.items()}

        return replace(call, messages=tuple(map(clean, call.messages)), response=clean(call.response))

    attempt = running(file_store)
    record = await begin(file_store, attempt, scrub=scrub, amend_s=0.01)
    await record.opened()
    seen = [kept(file_store, attempt)]
    record.arrived(lambda: answered("hel lo"), is_answer=True)
    await until(lambda: kept(file_store, attempt) != seen[0])
    seen.append(kept(file_store, attempt))
    await record.close(answered("hello"))
    seen.append(kept(file_store, attempt))
    texts = [(span.model.messages[0]["content"], span.model.response.get("content")) for span in seen if span.model]
    assert texts == [("**", None), ("**", "*** "), ("**", "***lo")]


async def test_other_calls_go_on_while_one_is_scrubbed(file_store: Store) -> None:
    loop, threads = threading.get_ident(), list[int]()

    def scrub(call: ModelCall) -> ModelCall:
        threads.append(threading.get_ident())
        return call

    record = await begin(file_store, running(file_store), scrub=scrub, amend_s=0.01)
    await record.opened()
    record.arrived(lambda: answered("hel lo"), is_answer=True)
    await until(lambda: len(threads) > 1)
    await record.close(answered("hello"))
    assert len(threads) >= 3 and loop not in threads


async def test_an_answer_that_cannot_be_kept_leaves_the_call_and_the_reason(file_store: Store) -> None:
    attempt = running(file_store)
    record = await begin(file_store, attempt)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    await record.close(answered(response={"role": "assistant", "content": deep}))
    span = kept(file_store, attempt)
    assert span.model == opened_call() and span.ended_at is not None
    assert span.attributes["partial"].startswith("the answer cannot be kept: ")
    while deep:  # taken apart step by step: Python would do it by recursion
        deep = deep[0]


async def test_the_last_word_of_what_goes_on_is_held_back_for_it_may_begin_a_secret(file_store: Store) -> None:
    attempt = running(file_store)
    record = await begin(file_store, attempt, amend_s=0.02, scrub=lambda call: call)
    so_far = answered("the key is sk-ab", finish_reason=None, completion_ids=(1, 2), logprobs=(-1.0, -1.0))
    record.arrived(lambda: so_far, is_answer=True)
    await until(lambda: [s for s in file_store.traces.spans(attempt.token) if s.model != opened_call()])
    partial = kept(file_store, attempt).model
    assert partial is not None and (partial.response["content"], partial.completion_ids) == ("the key is ", None)
    await record.close(answered("the key is gone"))
    assert kept(file_store, attempt).model == answered("the key is gone")  # once it is whole, all of it is looked at


@pytest.mark.parametrize(
    ("said", "left"),
    [
        ("pay with 4111 1111 1111 ", "pay with"),
        ("pay with card:4111 1111 1111 11", "pay with card:"),
        ("my account is GB82 WEST 1234 56", "my account is"),
        ("call +44 (0)20 79", "call"),
        ("it costs 12 euro, yes ", "it costs 12 euro, yes "),
        ("the key is sk-ab", "the key is "),
        ("THE BIG END ", "THE BIG END "),
        ("word", ""),
        ("", ""),
    ],
)
def test_numbers_at_the_end_of_what_goes_on_are_held_back_with_the_last_word(
    shared_store: Store, said: str, left: str
) -> None:
    keeper = SpanRecorder(shared_store, clock=time.time, scrub=lambda call: call)
    item = {"type": "web search", "id": "ws 12 3", "query": said, "more": [{"text": said}]}
    response = {"role": "assistant", "content": said, "items": [item]}
    kept = asyncio.run(keeper.scrubbed(answered(response=response), is_whole=False)).response
    assert kept["content"] == left
    assert kept["items"] == [{"type": "web search", "id": "ws 12 3", "query": left, "more": [{"text": left}]}]
