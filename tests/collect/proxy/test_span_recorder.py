"""Calls as spans: opened, amended, closed, numbered apart from the worker's own, scrubbed before they are written."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.dialect import ModelRequest
from holdfast.collect.proxy.span_recorder import FIRST, CallRecord, SpanRecorder, TokenPrice
from holdfast.contracts.errors import NotFound, StaleLease
from holdfast.contracts.rollout import Attempt, AttemptState
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.store.store import Store
from tests.collect.proxy.far import HELLO, asking
from tests.collect.proxy.street import running
from tests.collect.scene import until

ASKED: ModelRequest = Chat().read_request(asking(temperature=0.5))


def answered(text: str = "hello", **more: Any) -> ModelCall:
    given = {"model": "m@1", "response": {"role": "assistant", "content": text}, "finish_reason": "stop", **more}
    return ModelCall(messages=tuple(HELLO), sampling={"temperature": 0.5}, **given)


def begin(store: Store, attempt: Attempt, **how: Any) -> CallRecord:
    return SpanRecorder(store, clock=time.time, **how).open(attempt, ASKED, trace_id="t1", notes={"path": "/v1"})


def kept(store: Store, attempt: Attempt) -> Span:
    (span,) = store.traces.spans(attempt.token)
    return span


async def test_a_call_is_there_while_it_runs_and_whole_when_it_ended(store: Store) -> None:
    attempt = running(store)
    record = begin(store, attempt, prices={"m": TokenPrice(read=2.0, written=4.0)})
    await record.opened()
    opened = kept(store, attempt)
    assert (opened.seq, opened.kind, opened.name, opened.ended_at) == (FIRST, SpanKind.MODEL, "model.m", None)
    assert opened.attributes == {"path": "/v1", "partial": "it never ended"}
    assert opened.model == ModelCall(model="m", messages=tuple(HELLO), response={}, sampling={"temperature": 0.5})
    call = answered(prompt_tokens=1000, completion_tokens=500)
    await record.close(call)
    closed = kept(store, attempt)
    assert (closed.model, closed.trace_id, closed.name) == (call, "t1", "model.m@1")
    assert closed.attributes == {"path": "/v1", "cost": 0.004}
    assert closed.started_at == opened.started_at <= (closed.ended_at or 0)
    await record.close(answered("late"))
    assert kept(store, attempt) == closed  # it ends once


async def test_a_stream_is_written_down_while_it_runs(store: Store) -> None:
    attempt = running(store)
    record = begin(store, attempt, amend_s=0.02)
    record.arrived(lambda: answered("hel", finish_reason=None), is_answer=True)  # before it is known to be open
    await until(lambda: [s for s in store.traces.spans(attempt.token) if s.model != opened_call()])
    partial = kept(store, attempt)
    assert partial.model is not None and partial.model.response["content"] == "hel"
    assert partial.ended_at is None and partial.attributes["partial"] == "it never ended"
    record.arrived(lambda: answered("hello", finish_reason=None), is_answer=True)
    await record.close(answered())
    attributes = kept(store, attempt).attributes
    assert "partial" not in attributes and 0 <= attributes["first_token_s"] < 10
    assert len(attributes["arrivals_ms"]) == 2
    await asyncio.sleep(0.05)  # what was still to be amended is not
    assert kept(store, attempt).model == answered()


def opened_call() -> ModelCall:
    return ModelCall(model="m", messages=tuple(HELLO), response={}, sampling={"temperature": 0.5})


async def test_calls_are_numbered_in_their_order_and_apart_from_the_workers_own(store: Store) -> None:
    attempt = running(store)
    own = Span(seq=1, kind=SpanKind.TELEMETRY, name="own", started_at=1.0)
    store.traces.add(attempt, [own], now=time.time()).result()
    keepers = [SpanRecorder(store, clock=time.time) for _ in range(2)]  # two proxies, or one that was started again
    records = [keepers[n % 2].open(attempt, replace(ASKED, model=f"m{n}"), trace_id=None, notes={}) for n in range(6)]
    for record in reversed(records):
        await record.close(answered())
    spans = store.traces.spans(attempt.token)
    assert [span.seq for span in spans] == [1, *range(FIRST, FIRST + 6)]
    assert [span.started_at for span in spans[1:]] == sorted(span.started_at for span in spans[1:])


async def test_an_attempt_that_does_not_run_is_refused_at_every_step(store: Store) -> None:
    attempt, keeper = running(store), SpanRecorder(store, clock=time.time)
    assert keeper.attempt(attempt.rollout, 1) == attempt
    for rollout, number in ((attempt.rollout, 2), (attempt.rollout + "x", 1), ("nothing", 1)):
        with pytest.raises(NotFound):
            keeper.attempt(rollout, number)
    late = SpanRecorder(store, clock=lambda: attempt.lease_until)
    with pytest.raises(StaleLease, match="its lease has run out"):
        late.attempt(attempt.rollout, 1)
    record = begin(store, attempt)
    await record.not_refused()
    await record.opened()
    store.queue.finish(attempt, AttemptState.FAULT, now=time.time()).result()
    with pytest.raises(StaleLease, match="it is fault"):
        keeper.attempt(attempt.rollout, 1)
    with pytest.raises(StaleLease):
        await record.close(answered())
    refused = begin(store, attempt)
    with pytest.raises(StaleLease):
        await refused.opened()
    await refused.give_up(None, "something else")  # is quiet about it
    assert kept(store, attempt).attributes["partial"] == "it never ended"


async def test_nothing_is_written_before_it_is_scrubbed(store: Store) -> None:
    def scrub(call: ModelCall) -> ModelCall:
        def clean(message: Any) -> Any:
            return {key: str(value).replace("hel", "***").replace("hi", "**") for key, value in message.items()}

        return replace(call, messages=tuple(map(clean, call.messages)), response=clean(call.response))

    attempt = running(store)
    record = begin(store, attempt, scrub=scrub, amend_s=0.01)
    await record.opened()
    seen = [kept(store, attempt)]
    record.arrived(lambda: answered("hel lo"), is_answer=True)
    await until(lambda: kept(store, attempt) != seen[0])
    seen.append(kept(store, attempt))
    await record.close(answered("hello"))
    seen.append(kept(store, attempt))
    texts = [(span.model.messages[0]["content"], span.model.response.get("content")) for span in seen if span.model]
    assert texts == [("**", None), ("**", "*** "), ("**", "***lo")]


async def test_an_answer_that_cannot_be_kept_leaves_the_call_and_the_reason(store: Store) -> None:
    attempt = running(store)
    record = begin(store, attempt)
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    await record.close(answered(response={"role": "assistant", "content": deep}))
    span = kept(store, attempt)
    assert span.model == opened_call() and span.ended_at is not None
    assert span.attributes["partial"].startswith("the answer cannot be kept: ")
    while deep:  # taken apart step by step: Python would do it by recursion
        deep = deep[0]


async def test_the_last_word_of_what_goes_on_is_held_back_for_it_may_begin_a_secret(store: Store) -> None:
    attempt = running(store)
    record = begin(store, attempt, amend_s=0.02, scrub=lambda call: call)
    so_far = answered("the key is sk-ab", finish_reason=None, completion_ids=(1, 2), logprobs=(-1.0, -1.0))
    record.arrived(lambda: so_far, is_answer=True)
    await until(lambda: [s for s in store.traces.spans(attempt.token) if s.model != opened_call()])
    partial = kept(store, attempt).model
    assert partial is not None
    assert (partial.response["content"], partial.completion_ids) == ("the key is ", None)
    await record.close(answered("the key is gone"))
    assert kept(store, attempt).model == answered("the key is gone")  # once it is whole, all of it is looked at


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
    store: Store, said: str, left: str
) -> None:
    keeper = SpanRecorder(store, clock=time.time, scrub=lambda call: call)
    item = {"type": "web search", "id": "ws 12 3", "query": said, "more": [{"text": said}]}
    response = {"role": "assistant", "content": said, "items": [item]}
    kept = keeper.scrubbed(answered(response=response), is_whole=False).response
    assert kept["content"] == left
    assert kept["items"] == [{"type": "web search", "id": "ws 12 3", "query": left, "more": [{"text": left}]}]
