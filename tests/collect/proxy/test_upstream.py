"""Upstreams on real sockets: what is asked again and what is not, who is asked, and with which key."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest

from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.connection import Busy
from holdfast.collect.proxy.upstream import BrokenOff, Silent, Unreachable, Upstream, UpstreamAnswer, Upstreams
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import Backoff
from tests.collect.proxy.far import STREAM, WORDS, Far, Step, asking, completion
from tests.collect.proxy.street import served

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


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_what_may_pass_is_asked_again_and_then_told_as_it_is(status: int) -> None:
    far = Far(usual=Step(answer=b"{}", status=status, headers={"retry-after": "0"}))
    with served(far.app) as url:
        _, found, headers, body = await asked(Upstream(url))
        assert (found, headers["retry-after"], body, len(far.asked)) == (status, "0", b"{}", 3)
        far.steps.append(Step(answer=b"{}", status=status))
        far.usual = Step()
        assert (await asked(Upstream(url)))[1] == 200


@pytest.mark.parametrize("status", [401, 403, 500, 302])
async def test_what_will_not_pass_is_told_at_once_and_no_redirect_is_followed(status: int) -> None:
    with served(Far().app) as elsewhere:
        far = Far(usual=Step(answer=b"{}", status=status, headers={"location": elsewhere}))
        with served(far.app) as url:
            assert (await asked(Upstream(url)))[1] == status
    assert len(far.asked) == 1


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
