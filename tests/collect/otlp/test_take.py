"""What becomes of foreign spans: whose they are, what they are, and that nothing is kept or learnt from twice."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from holdfast.collect.otlp.take import FIRST, LAST, SpanReceiver, as_span, identity_of, told_once
from holdfast.collect.otlp.wire import OtelEvent, OtelSpan
from holdfast.collect.proxy.attribution import Identity
from holdfast.contracts.errors import BadRecord, NotFound, StaleLease, StoreError
from holdfast.contracts.rollout import Attempt, AttemptState, RolloutState, Task
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind
from holdfast.store.store import Store
from tests.conftest import Clock

NS = 10**9
ANSWER = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Four."}]}])
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.output.messages": ANSWER}
ME = Identity(rollout="run-1/t", number=2)


def span(number: int = 1, *, above: int | None = None, trace: str = "a" * 32, **more: Any) -> OtelSpan:
    given: dict[str, Any] = {"name": f"s{number}", "started_ns": number * NS, "ended_ns": (number + 1) * NS, **more}
    return OtelSpan(
        trace_id=trace, span_id=f"{number:016x}", parent_id=None if above is None else f"{above:016x}", **given
    )


@pytest.fixture
def attempt(file_store: Store, clock: Clock) -> Attempt:
    begun = file_store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="t", who="test", now=clock.now)
    file_store.queue.enqueue(begun.result().id, [Task(name="t", input={})], now=clock.now).result()
    return file_store.queue.claim(begun.result().id, "w", now=clock.now, lease_s=100.0).result()[0].attempt


@pytest.fixture
def taker(file_store: Store, clock: Clock) -> SpanReceiver:
    return SpanReceiver(file_store, clock=lambda: clock.now, lease_s=100.0, quiet_s=50.0)


@pytest.mark.parametrize(
    ("given", "whose"),
    [
        ({}, None),
        ({"resource": {"holdfast.rollout": "run-1/t", "holdfast.attempt": "2"}}, ME),
        ({"resource": {"holdfast.rollout": "run-1/t", "holdfast.attempt": 2}}, ME),
        ({"resource": {"holdfast.attempt": "run-1/t:attempt-2"}}, ME),
        ({"resource": {"holdfast.attempt": "2"}}, None),  # of which rollout?
        ({"resource": {"holdfast.rollout": "run-1/t"}}, None),  # which attempt?
        ({"resource": {"holdfast.rollout": "run-1/u", "holdfast.attempt": "run-1/t:attempt-2"}}, None),  # which now?
        ({"resource": {"holdfast.attempt": "run-9/x:attempt-1"}, "attributes": {"holdfast.attempt": "run-1/t:2"}}, ME),
        ({"state": "other=1,holdfast=run-1/t:attempt-2"}, ME),
        ({"state": "holdfast=nonsense"}, None),
    ],
)
def test_a_span_may_name_its_attempt_in_several_places(given: dict[str, Any], whose: Identity | None) -> None:
    assert identity_of(span(**given)) == whose


def test_a_call_that_failed_or_was_not_recorded_is_never_learnt_from() -> None:
    assert PARTIAL not in as_span(span(attributes=CHAT), 1, None).attributes
    assert as_span(span(attributes=CHAT, error="overloaded"), 1, None).attributes[PARTIAL] == "overloaded"
    silent = {name: value for name, value in CHAT.items() if "messages" not in name}
    assert as_span(span(attributes=silent), 1, None).attributes[PARTIAL] == "no answer was recorded"


def test_what_was_said_is_kept_once_and_what_was_noted_is_kept() -> None:
    message = OtelEvent(name="gen_ai.user.message", at_ns=1, attributes={"content": "hi"})
    other = OtelEvent(name="cache.miss", at_ns=2, attributes={"n": 1})
    given = {**CHAT, "server.address": "x", "holdfast.attempt": "run-1/t:1"}
    made = as_span(span(above=7, attributes=given, events=(message, other), ended_ns=0), 4, 3)
    assert made.attributes == {
        "gen_ai.operation.name": "chat",
        "server.address": "x",
        "parent_span_id": f"{7:016x}",
    }
    assert [event.name for event in made.events] == ["cache.miss"]
    assert made.ended_at == made.started_at == 1.0  # a clock that jumped back


async def test_parents_are_found_within_a_request_and_before_it(
    taker: SpanReceiver, file_store: Store, attempt: Attempt
) -> None:
    whose = Identity(rollout=attempt.rollout, number=1)
    taken = await taker.take([span(3, above=2), span(1), span(2, above=1), span(9, above=8)], whose)
    assert (taken.kept, taken.refused) == (4, 0)
    await taker.take([span(4, above=2), span(2, above=1)], whose)
    found = file_store.traces.spans(attempt.token)
    assert [(one.seq, one.name, one.parent) for one in found] == [
        (FIRST, "s1", None),
        (FIRST + 1, "s2", FIRST),
        (FIRST + 2, "s3", FIRST + 1),
        (FIRST + 3, "s9", None),
        (FIRST + 4, "s4", FIRST + 1),
    ]


async def test_another_process_goes_on_where_one_ended(
    taker: SpanReceiver, file_store: Store, attempt: Attempt, clock: Clock
) -> None:
    whose, other = Identity(rollout=attempt.rollout, number=1), SpanReceiver(file_store, clock=lambda: clock.now)
    await taker.take([span(1)], whose)
    await other.take([span(1), span(2)], whose)
    with pytest.raises(StoreError):  # it numbered without knowing of the other: who sends tries again
        await taker.take([span(3)], whose)
    await taker.take([span(3)], whose)
    assert [one.name for one in file_store.traces.spans(attempt.token)] == ["s1", "s2", "s3"]


async def test_an_attempt_that_is_over_takes_no_more(
    taker: SpanReceiver, file_store: Store, attempt: Attempt, clock: Clock
) -> None:
    whose = Identity(rollout=attempt.rollout, number=1)
    with pytest.raises(NotFound):
        await taker.take([span(1)], replace(whose, number=2))
    clock.advance(101.0)
    with pytest.raises(StaleLease):
        await taker.take([span(1)], whose)
    assert file_store.traces.spans(attempt.token) == []


def test_a_call_that_is_kept_already_is_told_once() -> None:
    call = ModelCall(model="m@1", messages=(), response={"role": "assistant", "content": "Four."})
    kept = Span(seq=LAST + 1, kind=SpanKind.MODEL, name="model.m", started_at=1.2, ended_at=1.8, model=call)
    made = as_span(span(attributes=CHAT), FIRST, None)  # from 1 to 2
    again = told_once(made, [kept])
    assert (again.kind, again.model, again.attributes["told_in_span"]) == (SpanKind.TELEMETRY, None, LAST + 1)
    later = replace(kept, started_at=2.5, ended_at=2.8)
    other = replace(kept, model=replace(call, response={"role": "assistant", "content": "Five."}))
    for stranger in (later, other, replace(kept, kind=SpanKind.TELEMETRY, model=None)):
        assert told_once(made, [stranger]) is made


async def test_one_span_that_cannot_be_kept_does_not_take_the_others_with_it(
    taker: SpanReceiver, file_store: Store
) -> None:
    bad = span(2, above=1, attributes={**CHAT, "holdfast.completion_ids": [-1]})
    taken = await taker.take([span(1), bad])
    assert (taken.kept, taken.refused) == (1, 1) and "s2" in taken.why


async def test_scrubbing_comes_before_writing(file_store: Store, clock: Clock) -> None:
    def scrub(one: Span) -> Span:
        return replace(one, name="scrubbed", attributes={})

    await SpanReceiver(file_store, clock=lambda: clock.now, scrub=scrub).take([span(1, attributes={"secret": "x"})])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    (made,) = file_store.traces.spans(file_store.views.attempts(rollout.id)[0].token)
    assert (made.name, made.attributes) == ("scrubbed", {})


async def test_a_trace_whose_root_never_comes_ends_when_it_has_long_been_quiet(
    taker: SpanReceiver, file_store: Store, clock: Clock
) -> None:
    await taker.take([span(2, above=1)])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    clock.advance(49.0)
    await taker.take([span(3, above=1, trace="b" * 32)])
    assert file_store.views.rollout(rollout.id).status is RolloutState.RUNNING
    clock.advance(2.0)
    await taker.take([span(4, above=1, trace="b" * 32)])
    assert file_store.views.rollout(rollout.id).status is RolloutState.SUCCEEDED
    assert file_store.views.attempts(rollout.id)[0].status is AttemptState.SUCCEEDED


async def test_a_trace_that_was_written_off_meanwhile_harms_nobody(
    taker: SpanReceiver, file_store: Store, clock: Clock
) -> None:
    await taker.take([span(2, above=1)])
    clock.advance(200.0)
    file_store.queue.sweep(now=clock.now).result()
    taken = await taker.take([span(1)])
    assert taken.refused == 1
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.status is RolloutState.DEAD
    await taker.close()


async def test_scores_that_are_none_are_left_out(taker: SpanReceiver, file_store: Store) -> None:
    names = ("gen_ai.evaluation.name", "gen_ai.evaluation.score.value")
    scores = (("a", 0.5), ("b", float("inf")), ("c", "good"), ("d", True), ("e", None))
    noted = tuple(
        OtelEvent(name="gen_ai.evaluation.result", at_ns=1, attributes=dict(zip(names, one, strict=True)))
        for one in scores
    )
    await taker.take([span(1, events=noted)])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.reward == 0.5


@pytest.mark.parametrize("absurd", [(10**400, 1.0), (1.0, 10**400), (1e308, 1e308), (-1e308, 1.0)])
async def test_scores_beyond_all_are_left_out(
    taker: SpanReceiver, file_store: Store, absurd: tuple[float, float]
) -> None:
    names = ("gen_ai.evaluation.score.value", "holdfast.weight")
    noted = tuple(
        OtelEvent(name="gen_ai.evaluation.result", at_ns=1, attributes=dict(zip(names, one, strict=True)))
        for one in (absurd, absurd, (0.5, 1.0))
    )
    assert (await taker.take([span(1, events=noted)])).kept == 1
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.reward == 0.5


async def test_a_trace_whose_end_could_not_be_written_ends_when_it_is_sent_again(
    file_store: Store, clock: Clock
) -> None:
    asked = 0

    def now() -> float:
        nonlocal asked
        asked += 1
        if asked == 3:  # the rollout was begun, its span was kept, and now it should end
            raise StoreError("disk", why="is full")
        return clock.now

    taker = SpanReceiver(file_store, clock=now)
    noted = OtelEvent(name="gen_ai.evaluation.result", at_ns=1, attributes={"gen_ai.evaluation.score.value": 0.5})
    with pytest.raises(StoreError, match="is full"):
        await taker.take([span(1, events=(noted,))])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.status is RolloutState.RUNNING
    assert (await taker.take([span(1, events=(noted,))])).kept == 1
    rollout = file_store.views.rollout(rollout.id)
    assert (rollout.status, rollout.reward) == (RolloutState.SUCCEEDED, 0.5)


async def test_what_was_dropped_is_told_and_refuses_nothing(taker: SpanReceiver) -> None:
    taken = await taker.take([span(1, dropped=3), span(2, above=1, dropped=4)])
    assert (taken.kept, taken.refused) == (2, 0) and taken.why.startswith("7 attributes were dropped")


async def test_others_are_served_while_many_spans_are_scrubbed(file_store: Store, clock: Clock) -> None:
    scrubbed, seen = [], list[int]()

    def scrub(one: Span) -> Span:
        scrubbed.append(one)
        return one

    async def other() -> None:
        while True:
            seen.append(len(scrubbed))
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await SpanReceiver(file_store, clock=lambda: clock.now, scrub=scrub).take([span(n, above=99) for n in range(1, 51)])
    beside.cancel()
    assert set(range(1, 50)) <= set(seen)


def test_ids_that_cannot_be_are_refused() -> None:
    with pytest.raises((BadRecord, TypeError, ValueError)):
        as_span(span(attributes={**CHAT, "holdfast.prompt_ids": [-3]}), 1, None)
