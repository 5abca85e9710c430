"""Upstreams on real sockets: connections, gates, retries, keys, models; and a model behind them as a Complete."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import openai
import pytest

from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.app import app
from holdfast.collect.proxy.budgets import FRESH_S, UNKNOWN_S, ModelInfo, UpstreamModels, own_token_bytes
from holdfast.collect.proxy.dialect import Chat
from holdfast.collect.proxy.upstream import (
    MOST_HEAD,
    MOST_WAITING,
    BrokenConnection,
    BrokenOff,
    Busy,
    Connections,
    Gate,
    Relay,
    Silent,
    Unreachable,
    Upstream,
    UpstreamAnswer,
    Upstreams,
)
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens
from holdfast.store.store import Store
from tests.collect.proxy.far import HELLO, STREAM, WORDS, Far, Step, asking, chunk, completion, listing, served
from tests.conftest import Clock

QUICK = Backoff(initial_s=0.001, cap_s=0.002)
NOWHERE = "http://127.0.0.1:9"


async def asked(
    *remotes: Upstream, body: bytes | None = None, rollout: str = "r/t", headers: dict[str, str] | None = None
) -> tuple[str, int, dict[str, str], bytes]:
    """Who answered, and all of the answer."""
    upstreams = Upstreams(remotes, backoff=QUICK)
    try:
        one, answer = await upstreams.ask(Chat(), Chat().read_request(body or asking()), headers or {}, rollout)
        found = await whole(answer)
        assert one.gate.inside == 0
        return one.name, answer.status, dict(answer.headers), found
    finally:
        await upstreams.close()


async def whole(answer: UpstreamAnswer) -> bytes:
    try:
        return b"".join([chunk async for chunk in answer.chunks()])
    finally:
        answer.close()


async def test_an_answer_comes_back_as_it_is_with_the_headers_that_may_pass() -> None:
    far = Far(usual=Step(headers={"x-request-id": "7", "set-cookie": "a=b", "x-ratelimit-left": "3", "server": "x"}))
    with served(far.app) as url:
        _, status, headers, body = await asked(Upstream(url + "/v1/"), headers={"content-type": "application/json"})
    assert (status, body) == (200, completion())
    assert headers == {"content-type": "application/json", "x-request-id": "7", "x-ratelimit-left": "3"}
    assert far.paths == ["/v1/chat/completions"]
    (sent, _) = far.asked[0]
    assert set(sent) == {"host", "content-type", "content-length", "accept-encoding"}
    assert sent["accept-encoding"] == "identity"


async def test_what_may_pass_is_asked_again_and_then_told_as_it_is() -> None:
    far = Far()
    with served(far.app) as url:
        for status in (429, 502, 503, 504):
            far.usual = Step(answer=b"{}", status=status, headers={"retry-after": "0"})
            far.asked.clear()
            _, found, headers, body = await asked(Upstream(url))
            assert (found, headers["retry-after"], body, len(far.asked)) == (status, "0", b"{}", 3)
            far.steps.append(Step(answer=b"{}", status=status))
            far.usual = Step()
            assert (await asked(Upstream(url)))[1] == 200


async def test_what_will_not_pass_is_told_at_once_and_no_redirect_is_followed() -> None:
    far, other = Far(), Far()
    with served(other.app) as elsewhere, served(far.app) as url:
        for status in (401, 403, 500, 302):
            far.usual = Step(answer=b"{}", status=status, headers={"location": elsewhere})
            assert (await asked(Upstream(url)))[1] == status
    assert len(far.asked) == 4 and other.asked == []


async def test_an_upstream_that_wants_us_much_later_is_not_waited_for() -> None:
    far = Far(usual=Step(answer=b"{}", status=429, headers={"retry-after": "60"}))
    with served(far.app) as url:
        _, status, headers, _ = await asyncio.wait_for(asked(Upstream(url)), 40)
    assert (status, headers["retry-after"], len(far.asked)) == (429, "60", 1)


async def test_nobody_there_is_said_and_silence_is_not_asked_twice() -> None:
    with pytest.raises(Unreachable, match=r"127.0.0.1:9: ConnectionRefused"):
        await asked(Upstream(NOWHERE))
    far = Far(usual=Step(pause_s=1.6))
    with served(far.app) as url, pytest.raises(Silent, match="no answer within 1 s"):
        await asked(Upstream(url, timeout_s=0.01))  # never less than a second
    assert len(far.asked) == 1


async def test_a_stream_that_breaks_is_told_and_not_asked_again() -> None:
    far = Far(usual=Step(answer=WORDS[:2], breaks=True))
    with served(far.app) as url, pytest.raises(BrokenOff, match="the upstream: "):
        await asked(Upstream(url))
    assert len(far.asked) == 1


async def test_rollouts_keep_to_their_upstream_and_spread_over_all() -> None:
    three = [Upstream(f"http://h{number}") for number in range(3)]
    upstreams = Upstreams(three)
    first = {f"r/{number}": upstreams.ordered(f"r/{number}")[0].name for number in range(600)}
    assert first == {rollout: upstreams.ordered(rollout)[0].name for rollout in first}
    assert all(150 < count < 250 for count in Counter(first.values()).values())
    fewer = Upstreams(three[:2])  # only those of the third move
    assert all(fewer.ordered(rollout)[0].name == name for rollout, name in first.items() if name != "http://h2")


async def test_where_one_is_gone_the_next_answers() -> None:
    far = Far()
    with served(far.app) as url:
        for number in range(6):
            assert (await asked(Upstream(url), Upstream(NOWHERE), rollout=f"r/{number}"))[0] == url
    assert len(far.asked) == 6


def with_ids(body: dict[str, Any]) -> Step:
    return Step(completion(prompt_token_ids=[1])) if "return_token_ids" in body else Step()


def refusing(body: dict[str, Any]) -> Step:
    return Step(b'{"error": "unknown field"}', 400) if "return_token_ids" in body else Step()


async def test_ids_are_asked_for_and_an_upstream_that_refuses_is_not_asked_for_them_again() -> None:
    far = Far(usual=Step(decide=with_ids))
    with served(far.app) as url:
        assert json.loads((await asked(Upstream(url)))[3])["prompt_token_ids"] == [1]
        assert (await asked(Upstream(url, is_extended=False)))[3] == completion()
        far.usual, remote = Step(decide=refusing), Upstream(url, most=1)
        far.asked.clear()
        for _ in range(2):
            assert (await asked(remote))[1::2] == (200, completion())
    assert [b"return_token_ids" in body for _, body in far.asked] == [True, False, False]


async def test_a_request_that_is_wrong_anyway_teaches_nothing() -> None:
    far = Far(usual=Step(b'{"error": "bad"}', 400))
    with served(far.app) as url:
        remote = Upstream(url)
        assert (await asked(remote))[1::2] == (400, b'{"error": "bad"}')
        far.usual = Step(decide=with_ids)
        assert b"prompt_token_ids" in (await asked(remote))[3]


async def test_the_upstreams_own_key_replaces_the_callers_and_else_the_callers_is_passed_on() -> None:
    far = Far()
    with served(far.app) as url:
        await asked(Upstream(url, keys={"OPENAI_API_KEY": "ours"}), headers={"authorization": "Bearer theirs"})
        await asked(Upstream(url, keys={"ANTHROPIC_API_KEY": "other"}), headers={"authorization": "Bearer theirs"})
    assert [sent["authorization"] for sent, _ in far.asked] == ["Bearer ours", "Bearer theirs"]


async def test_no_more_calls_than_may_be_are_under_way() -> None:
    far = Far(usual=Step(answer=STREAM, gap_s=0.01))
    with served(far.app) as url:
        remote = Upstream(url, most=1, hold_s=0.01)
        upstreams = Upstreams([remote])
        request = Chat().read_request(asking(stream=True))
        _, answer = await upstreams.ask(Chat(), request, {}, "r")
        with pytest.raises(Busy):
            await upstreams.ask(Chat(), request, {}, "r")
        assert await whole(answer) == b"".join(STREAM)
        await whole((await upstreams.ask(Chat(), request, {}, "r"))[1])
        await upstreams.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://x", "is not an http or https address without a password"),
        ("x", "is not an http or https address without a password"),
        ("http://me:secret@x", "a name or a password"),
        ("http://h/x?key=secret", "a query"),  # its address is its name, in logs and spans
        ("http://h:99999", "a port from 1 to 65535"),
        ("http://", "no address of a host"),
    ],
)
def test_an_address_that_is_none_is_refused_without_its_secrets(url: str, why: str) -> None:
    with pytest.raises(BadInput, match=f"upstream .*{why}") as caught:
        Upstream(url)
    assert "secret" not in str(caught.value)


def test_there_must_be_one_and_each_once() -> None:
    for each in ([], [Upstream("http://x"), Upstream("http://x/v1")]):
        with pytest.raises(BadInput, match="upstream: "):
            Upstreams(each)
    with pytest.raises(BadInput, match="there is http://x"):
        Upstreams([Upstream("http://x")]).named("http://y")


OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 5\r\nX-Id: 7\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\nX-Id: 7\r\n\r\n"
CUT = None  # the server hangs up


@dataclass
class Server:
    """Says its pieces in answer to every request, each by itself."""

    pieces: Sequence[bytes | None] = (SIZED,)
    asked: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.asked.append(head + await reader.readexactly(length))
                for piece in self.pieces:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def standing(*pieces: bytes | None, read_s: float = 5.0) -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(pieces or (SIZED,))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    here = Connections(f"http://127.0.0.1:{server.port}/below", connect_s=5.0, read_s=read_s)
    try:
        yield server, here
    finally:
        here.close()
        listening.close()


async def said(here: Connections, body: bytes = b"{}") -> tuple[int, bytes]:
    answer = await here.send("POST", "/v1/x", {"content-type": "application/json"}, body)
    parts = []
    while part := await answer.read():
        parts.append(part)
    here.rest(answer)
    return answer.status, b"".join(parts)


@pytest.mark.parametrize(
    ("pieces", "expected", "connections"),
    [
        ((SIZED,), (200, b"hello"), 1),
        ((SIZED[:10], SIZED[10:50], SIZED[50:]), (200, b"hello"), 1),  # cut anywhere
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3\r\nllo\r\n", b"0\r\n\r\n"), (200, b"hello"), 1),
        ((b"HTTP/1.1 103 Early Hints\r\nX-Id: 1\r\n\r\n" + SIZED,), (200, b"hello"), 1),  # a word before the answer
        # what it says of its size is not the answer's
        ((b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n", OK + b"\r\nhello", CUT), (200, b"hello"), 2),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), (204, b""), 1),
        ((b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",), (503, b""), 1),
        ((OK + b"\r\nhel", b"lo", CUT), (200, b"hello"), 2),  # as long as the connection
        ((OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", CUT), (200, b"hello"), 2),
        ((SIZED, CUT), (200, b"hello"), 2),  # hung up after it
        ((SIZED + b"HTTP/1.1 200 OK\r\n",), (200, b"hello"), 2),  # more than was asked for: never used again
    ],
)
async def test_an_answer_is_read_whole_in_every_form_and_its_connection_kept_where_it_can_be(
    pieces: tuple[bytes | None, ...], expected: tuple[int, bytes], connections: int
) -> None:
    async with standing(*pieces) as (server, here):
        assert await said(here) == expected
        await asyncio.sleep(0.05)
        assert await said(here, b"[1]") == expected
        assert server.connections == connections
    assert (
        server.asked[1]
        == (
            f"POST /below/v1/x HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 3\r\n"
            "content-type: application/json\r\n\r\n[1]"
        ).encode()
    )


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((CUT,), "it hung up"),
        ((OK, CUT), "it hung up"),
        ((b"SSH-2.0-OpenSSH\r\n",), "is no HTTP"),
        ((OK + b"Content-Length: 9\r\n\r\nhello", CUT), "it hung up"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", CUT), "it hung up"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",), "is no HTTP"),
        ((b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",), "its status is 999"),
        ((b"HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n",), "its status is 99"),
        ((b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",), "its status is 101"),
        ((CHUNKED + b"1\r\nx\r\n0\r\n", *[b"X-More: %s\r\n" % (b"x" * 4000)] * (MOST_HEAD // 4000 + 1)), "larger than"),
        ((OK + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 4000) for n in range(MOST_HEAD // 4000 + 1)),), "larger than"),
    ],
)
async def test_what_is_not_whole_is_never_taken_for_whole(pieces: tuple[bytes | None, ...], why: str) -> None:
    async with standing(*pieces) as (server, here):
        for _ in range(2):
            with pytest.raises(BrokenConnection, match=why):
                await said(here)
        assert server.connections == 2


async def test_the_pieces_come_as_they_are_sent() -> None:
    head = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    async with standing(head, b"2\r\nhe\r\n", b"3\r\nllo\r\n", b"0\r\n\r\n") as (_, here):
        answer = await here.send("POST", "/v1/x", {}, b"{}")
        assert answer.headers == {b"transfer-encoding": b"chunked"}
        assert [await answer.read() for _ in range(3)] == [b"he", b"llo", b""]


async def test_silence_ends_an_answer_and_a_word_now_and_then_does_not() -> None:
    async with standing(OK + b"Content-Length: 9\r\n\r\nhello", read_s=0.2) as (_, here):
        answer = await here.send("POST", "/v1/x", {}, b"{}")
        assert await answer.read() == b"hello"
        with pytest.raises(TimeoutError):
            await answer.read()
        here.rest(answer)
    async with standing(OK + b"Content-Length: 160\r\n\r\n", *[b"x"] * 160, read_s=0.7) as (_, here):
        assert await said(here) == (200, b"x" * 160)  # 0.8 s in all


async def test_who_reads_slowly_makes_the_upstream_wait_and_is_not_taken_for_silent() -> None:
    size = 64 * MOST_WAITING
    async with standing(OK + b"Content-Length: %d\r\n\r\n" % size, b"x" * size, read_s=0.2) as (_, here):
        answer = await here.send("POST", "/v1/x", {}, b"{}")
        await asyncio.sleep(0.6)
        first = await answer.read()
        assert MOST_WAITING < len(first) < size / 2
        rest = [first]
        while part := await answer.read():
            rest.append(part)
        assert sum(map(len, rest)) == size


async def test_an_answer_that_nobody_wants_any_more_ends_its_connection() -> None:
    async with standing(OK + b"Content-Length: 9\r\n\r\nhello") as (server, here):
        for _ in range(2):
            here.rest(await here.send("POST", "/v1/x", {}, b"{}"))
        assert server.connections == 2


async def test_a_header_cannot_hold_another() -> None:
    async with standing() as (server, here):
        with pytest.raises(BadInput, match="header 'Authorization'"):
            await here.send("POST", "/v1/x", {"Authorization": "Bearer a\r\nX-Evil: 1"}, b"{}")
    assert server.asked == []


async def test_calls_at_the_same_time_have_a_connection_each() -> None:
    async with standing() as (server, here):
        assert await asyncio.gather(*(said(here) for _ in range(5))) == [(200, b"hello")] * 5
        assert await asyncio.gather(*(said(here) for _ in range(5))) == [(200, b"hello")] * 5
        assert server.connections == 5


async def test_what_follows_the_body_changes_nothing_that_was_said_before_it() -> None:
    trailers = b"0\r\nX-Id: 8\r\nContent-Type: text/event-stream\r\n\r\n"
    async with standing(CHUNKED + b"2\r\nhi\r\n" + trailers) as (_, here):
        answer = await here.send("POST", "/v1/x", {}, b"{}")
        assert [await answer.read(), await answer.read()] == [b"hi", b""]
        assert answer.headers == {b"transfer-encoding": b"chunked", b"x-id": b"7"}


async def test_many_small_pieces_are_not_taken_for_something_between_them() -> None:
    pieces = MOST_HEAD // 6 + 1000  # six bytes each, one of them the body's
    async with standing(CHUNKED, b"1\r\nx\r\n" * pieces, b"0\r\n\r\n") as (_, here):
        assert await said(here) == (200, b"x" * pieces)


async def test_a_word_that_came_while_nobody_asked_never_answers_the_next_request() -> None:
    stray = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 5\r\n\r\nSTRAY"
    heard: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(writer)
        while await reader.read(2**16):
            writer.write(SIZED)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    here = Connections(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", connect_s=5.0, read_s=5.0)
    try:
        assert await said(here) == (200, b"hello")
        heard[0].write(stray)  # sent at once; this loop has no time to hear it before it asks again
        assert await said(here) == (200, b"hello")
        assert len(heard) == 2
    finally:
        here.close()
        listening.close()


async def test_no_more_go_in_than_may_and_who_waits_goes_in_turn() -> None:
    gate, went = Gate(2, 10.0), list[int]()

    async def go(number: int) -> None:
        await gate.enter()
        went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(4)]
    await asyncio.sleep(0.01)
    assert (went, gate.inside) == ([0, 1], 2)
    gate.leave()
    await asyncio.sleep(0.01)
    assert (went, gate.inside) == ([0, 1, 2], 2)
    gate.leave()
    await asyncio.gather(*tasks)
    assert went == [0, 1, 2, 3]


async def test_while_it_is_held_nobody_goes_in_and_those_inside_end() -> None:
    gate = Gate(5, 10.0)
    await gate.enter()
    gate.hold()
    coming = asyncio.create_task(gate.enter())
    await asyncio.sleep(0.01)
    assert not coming.done()
    gate.leave()
    await asyncio.sleep(0.01)
    assert not coming.done() and gate.inside == 0
    gate.release()
    await coming
    assert gate.inside == 1


async def test_who_waits_too_long_is_told_so_and_takes_nobodys_place() -> None:
    gate = Gate(1, 0.02)
    await gate.enter()
    with pytest.raises(Busy, match="has 1 calls under way"):
        await gate.enter()
    gate.hold()
    with pytest.raises(Busy, match="is held"):
        await gate.enter()
    gate.release()
    gate.leave()
    await gate.enter()
    assert gate.inside == 1


async def test_one_that_leaves_while_it_waits_takes_nobodys_place() -> None:
    gate = Gate(1, 10.0)
    await gate.enter()
    waiting = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.leave()  # let in, and cancelled before it could notice
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.inside == 0
    await gate.enter()


SECRET = "sk-tell-nobody"
CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "calc", "arguments": "{}"}}


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture
def address(far: Far) -> Iterator[str]:
    with served(far.app) as at:
        yield at


@pytest.fixture
def relay(address: str) -> Relaying:
    return Relaying(address)


class Relaying:
    """Each call with connections of its own, which end with it; whatever happens, its place is given back."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __call__(self, **sampling: Any) -> ModelCall:
        async with self._open() as relay:
            return await relay(HELLO, **sampling)

    async def stream(self, **sampling: Any) -> list[Any]:
        async with self._open() as relay:
            return [piece async for piece in relay.stream(HELLO, **sampling)]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Relay]:
        remote = Upstream(self._address, keys={"OPENAI_API_KEY": SECRET}, timeout_s=5.0)
        upstreams = Upstreams([remote], backoff=QUICK)
        try:
            yield Relay(upstreams, "small", key="p@1")
        finally:
            assert remote.gate.inside == 0
            await upstreams.close()


async def test_what_was_asked_for_is_sent_under_the_models_name_and_nothing_is_added_that_it_sees(
    far: Far, relay: Relaying
) -> None:
    given = {"temperature": 0.5, "seed": 3, "response_format": {"type": "json_object"}}
    call = await relay(**given, stream_options={"include_usage": True})
    ((headers, body),) = far.asked
    extras = {"return_token_ids": True, "logprobs": True}
    assert json.loads(body) == {"model": "small", "messages": HELLO, **given, **extras}
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert (call.response["content"], call.model, call.finish_reason) == ("hello", "m@1", "stop")
    assert (call.prompt_tokens, call.completion_tokens, call.sampling) == (3, 5, given)


async def test_ids_and_log_probs_are_kept_where_the_upstream_gives_them(far: Far, relay: Relaying) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    choice |= {"token_ids": [7, 8], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}}
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    far.usual = Step(completion(choices=[choice], usage=usage, prompt_token_ids=[1]))
    call = await relay()
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == ((1,), (7, 8), (-0.5, -0.25))


async def test_a_stream_comes_piece_by_piece_and_the_finished_call_last(far: Far, relay: Relaying) -> None:
    far.usual = Step(STREAM)
    *pieces, call = await relay.stream(max_tokens=5)
    assert pieces == [{"content": "hel"}, {"content": "lo"}]
    assert isinstance(call, ModelCall) and call.response["content"] == "hello" and call.finish_reason == "stop"
    assert json.loads(far.asked[0][1])["stream"] is True


async def test_calls_of_tools_are_streamed_too(far: Far, relay: Relaying) -> None:
    far.usual = Step((chunk(tool_calls=[CALL]), chunk("tool_calls"), b"data: [DONE]\n\n"))
    piece, call = await relay.stream()
    assert piece == {"tool_calls": [CALL]}
    assert [one["function"]["name"] for one in call.response["tool_calls"]] == ["calc"]


@pytest.mark.parametrize(
    "step",
    [
        Step(WORDS[:2], breaks=True),
        Step(WORDS[:2]),  # it ends, and has not said that it is over
        Step((WORDS[0], b'data: {"error": {"message": "out of memory"}}\n\n')),
    ],
)
async def test_a_stream_that_breaks_off_is_the_upstreams_fault(far: Far, relay: Relaying, step: Step) -> None:
    far.usual = step
    with pytest.raises(Fault, match="upstream model small"):
        await relay.stream()


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (400, BadInput, "the upstream refuses it: too long"),
        (422, BadInput, "the upstream refuses it: too long"),
        (404, Fault, "HTTP 404: too long"),
        (500, Fault, "HTTP 500: too long"),
        (503, Fault, "HTTP 503: too long"),
        (401, Fault, "does not take our key"),
    ],
)
async def test_a_bad_request_is_the_callers_and_all_else_the_upstreams_fault(
    far: Far, relay: Relaying, status: int, kind: type[Exception], says: str
) -> None:
    message = "too long" if status != 401 else f"no such key: {SECRET}"
    far.usual = Step(json.dumps({"error": {"message": message}}).encode(), status)
    for ask in (relay(), relay.stream()):
        with pytest.raises(kind, match=says) as raised:
            await ask
        assert SECRET not in str(raised.value)


async def test_an_answer_that_is_none_and_an_upstream_that_is_not_there_are_faults(far: Far, relay: Relaying) -> None:
    far.usual = Step(b'{"hello": 1}')
    with pytest.raises(Fault, match="cannot be read"):
        await relay()
    nowhere = Relay(Upstreams([Upstream("http://127.0.0.1:9")], backoff=QUICK), "small", key="p@1")
    with pytest.raises(Fault, match="upstream model small"):
        await nowhere(HELLO)


OURS = {"id": "sprout", "object": "model", "owned_by": "holdfast", "tokenizer": "bytes"}
THEIRS = {"id": "llama", "object": "model", "owned_by": "vllm"}


@contextmanager
def upstreams(*fars: Far) -> Iterator[list[str]]:
    with ExitStack() as open_ones:
        yield [open_ones.enter_context(served(far.app)) for far in fars]


@asynccontextmanager
async def models_of(*remotes: Upstream, **how: Any) -> AsyncIterator[UpstreamModels]:
    models = UpstreamModels(remotes, **how)
    try:
        yield models
    finally:
        await models.close()
        for remote in remotes:
            await remote.close()


async def test_of_one_upstream_the_answer_is_its_own_byte_for_byte_with_our_key() -> None:
    far = Far(models=Step(b'{"data": [ {"id": "a"} ], "x": 1}', headers={"x-request-id": "r", "set-cookie": "no"}))
    with upstreams(far) as (url,):
        async with models_of(Upstream(url, keys={"OPENAI_API_KEY": "sk-own"})) as models:
            found = await models.listed(Chat(), {"authorization": "Bearer theirs", "openai-beta": "b"})
            far.models = Step(b"no", 401)
            refused = await models.listed(Messages(), {"x-api-key": "theirs"})
    assert (found.status, found.body) == (200, b'{"data": [ {"id": "a"} ], "x": 1}')
    assert found.headers["x-request-id"] == "r" and "set-cookie" not in found.headers
    assert (refused.status, refused.body, refused.entries) == (401, b"no", [])
    assert far.lists[0]["authorization"] == "Bearer sk-own" and far.lists[0]["openai-beta"] == "b"
    assert far.lists[1]["x-api-key"] == "theirs"  # of the other API there is no key of ours


async def test_several_upstreams_have_what_each_has_and_one_that_is_silent_takes_nothing_away() -> None:
    first, second = Far(models=listing(OURS)), Far(models=listing(THEIRS, {**OURS, "owned_by": "other"}))
    with upstreams(first, second) as urls:
        async with models_of(*(Upstream(url) for url in (*urls, NOWHERE))) as models:
            found = await models.listed(Chat(), {})
            assert sorted(found.entries, key=str) == sorted([OURS, THEIRS], key=str)
            first.models = second.models = Step(b"{}", 403)
            assert (await models.listed(Chat(), {})).status == 403
    async with models_of(Upstream(NOWHERE), Upstream("http://127.0.0.1:8")) as alone:
        with pytest.raises(Unreachable):
            await alone.listed(Chat(), {})


async def test_what_a_model_is_is_asked_once_in_a_while_and_after_a_swap(clock: Clock) -> None:
    far, sprout = Far(models=listing(THEIRS, OURS)), ModelInfo(owner="holdfast", is_spelt=True)
    with upstreams(far) as (url,):
        async with models_of(remote := Upstream(url), clock=lambda: clock.now) as models:
            about = lambda name: models.about(remote, name, Chat(), {})  # noqa: E731
            assert await about("sprout") == sprout
            assert await about("llama") == ModelInfo(owner="vllm")
            assert await about("alias") == ModelInfo(owner="vllm")  # not all of them are spelt
            assert await about("sprout") == sprout and len(far.lists) == 3
            far.models = Step(b"gone", 503)
            models.forget(remote)
            assert await about("sprout") == ModelInfo() == await about("sprout") and len(far.lists) == 4
            far.models = listing(OURS)
            clock.now += UNKNOWN_S
            assert (await about("sprout")).is_spelt and len(far.lists) == 5
            clock.now += FRESH_S
            assert (await about("sprout")).is_spelt and len(far.lists) == 6


async def test_who_leaves_while_it_is_asked_for_takes_it_from_nobody() -> None:
    far = Far(models=Step(listing(OURS).answer, pause_s=0.2))
    with upstreams(far) as (url,):
        async with models_of(remote := Upstream(url)) as models:
            one, other = (asyncio.ensure_future(models.about(remote, "sprout", Chat(), {})) for _ in range(2))
            await asyncio.sleep(0)
            one.cancel()
            assert (await other).is_spelt and len(far.lists) == 1


async def test_a_list_that_is_none_tells_nothing() -> None:
    far = Far()
    with upstreams(far) as (url,):
        for answer in (b"[]", b"nope", b'{"data": 1}', b'{"data": [1]}', b'{"data": [{"owned_by": 1}]}'):
            far.models = Step(answer)
            async with models_of(remote := Upstream(url)) as models:
                assert await models.about(remote, "m", Chat(), {}) == ModelInfo()


def test_only_our_own_tokens_are_spelt() -> None:
    assert own_token_bytes(104) == b"h" and own_token_bytes(tokens.END) == b"<|end|>"
    with pytest.raises(LookupError):
        own_token_bytes(tokens.VOCABULARY)


def test_a_client_finds_the_models_at_the_proxy_and_below_an_attempt(file_store: Store) -> None:
    far = Far(models=listing({**THEIRS, "created": 1}))
    with upstreams(far) as (upstream,), served(lambda: app(file_store, [Upstream(upstream)], token="tok")) as url:
        for base in (f"{url}/v1", f"{url}/rollout/run-1%2Fx/attempt/1/v1"):
            with openai.OpenAI(base_url=base, api_key="tok", max_retries=0) as client:
                assert [one.id for one in client.models.list()] == ["llama"]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
        with client, pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert len(far.lists) == 2 and not any("tok" in json.dumps(headers) for headers in far.lists)


def test_a_proxy_whose_upstream_is_gone_says_so(file_store: Store) -> None:
    with served(lambda: app(file_store, [Upstream(NOWHERE)])) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        with client, pytest.raises(openai.APIStatusError) as caught:
            client.models.list()
    body: Any = caught.value.body
    assert caught.value.status_code == 502 and body["code"] == "training_proxy_upstream_request_failed"
