"""Spans and reward signals: kept whole or not at all, and read back as they were. Fences are in test_leases."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.contracts.errors import BadRecord, Conflict, StaleLease, StoreError
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.trace import ModelCall, Span, SpanEvent, SpanKind, ToolCall
from tests.contracts import strategies
from tests.store.scene import LEASE_S, Scene, span

MODEL = ModelCall(
    model="m",
    messages=({"role": "user", "content": "2 + 2?"},),
    response={"role": "assistant", "content": "4"},
    finish_reason="stop",
    prompt_ids=(1, 2, 3),
    completion_ids=(4, 5),
    logprobs=(-0.1, -1e-9),
    sampling={"temperature": 0.7},
)
EVERYTHING = (
    Span(seq=1, kind=SpanKind.TELEMETRY, name="bare", started_at=0.1),
    Span(seq=2, kind=SpanKind.MODEL, name="call", started_at=1.0, ended_at=2.5, parent=1, model=MODEL),
    Span(
        seq=3,
        kind=SpanKind.TOOL,
        name="add",
        started_at=3.0,
        ended_at=3.0,
        tool=ToolCall(tool="add", arguments={"a": [1, None]}, result={"sum": 2.0}, call_id="c1"),
        events=(SpanEvent(name="retried", at=3.0, attributes={"n": 1}), SpanEvent(name="done", at=3.0)),
    ),
    Span(
        seq=4,
        kind=SpanKind.MESSAGE,
        name="Grüße 🐚",
        started_at=4.0,
        attributes={"text": "cut: \ud83d", "nothing": "\x00"},
        trace_id="t",
        span_id="s",
    ),
)


def test_spans_come_back_as_they_were(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    scene.store.traces.add(attempt, EVERYTHING[2:], now=scene.clock.now).result()
    scene.store.traces.add(attempt, EVERYTHING[:2], now=scene.clock.now).result()
    assert tuple(scene.store.traces.spans(attempt.token)) == EVERYTHING  # in their own order


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=strategies.spans(), number=st.integers(1, 2**31 - 1))
def test_any_span_comes_back_as_it_was(scene: Scene, drawn: Span, number: int) -> None:
    fields = {name: getattr(drawn, name) for name in Span.__slots__}
    name = fields["name"].replace("\x00", "\ufffd")  # the one thing that not both engines can keep
    drawn = Span(**fields | {"seq": number, "parent": None, "name": name})
    scene.enqueue(f"t{scene.store.views.counts(scene.run)[RolloutState.SUCCEEDED]}")
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, [drawn], now=scene.clock.now).result()
    assert scene.store.traces.spans(claim.attempt.token) == [drawn]
    scene.finish(claim, AttemptState.SUCCEEDED)


def test_a_name_that_cannot_be_kept_is_kept_as_far_as_it_can(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    scene.store.traces.add(attempt, [span(name="a\x00b\ud83d")], now=scene.clock.now).result()
    bad = RewardTerm(name="n\x00", value=1.0, source="s\x00")
    scene.store.traces.score(attempt, [bad], now=scene.clock.now).result()
    assert [s.name for s in scene.store.traces.spans(attempt.token)] == ["a\ufffdb\ufffd"]
    assert [(s.name, s.source) for s in scene.store.traces.sheet(attempt.token).signals] == [("n\ufffd", "s\ufffd")]


def test_what_json_cannot_hold_is_refused_by_its_place_and_what_it_can_comes_back(scene: Scene) -> None:
    scene.enqueue("t")
    attempt, now = scene.claim().attempt, scene.clock.now
    far = {"n": 2**70, "half": "\ud83d", "small": 1e-300, "flag": True}
    called = replace(MODEL, messages=({"role": "user", "content": far},))
    scene.store.traces.add(attempt, [replace(EVERYTHING[1], attributes=far, model=called)], now=now).result()
    kept = scene.store.traces.spans(attempt.token)[0]
    assert kept.attributes == far and kept.model == called
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    for bad, why in ((float("nan"), "not finite"), ({1: 2}, "not text"), (object(), "object"), (deep, "recursion")):
        for unfit in (
            replace(EVERYTHING[0], attributes={"x": bad}),
            replace(EVERYTHING[1], model=replace(MODEL, messages=({"content": bad},))),
        ):
            with pytest.raises(BadRecord, match=f"span (bare|call): .*{why}"):
                scene.store.traces.add(attempt, [unfit], now=now)


def test_a_span_that_has_begun_is_numbered_amended_and_closed_once(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    traces, now = scene.store.traces, scene.clock.now
    traces.add(attempt, [span(1), span(2)], now=now).result()
    begun = Span(seq=100, kind=SpanKind.MODEL, name="a", started_at=3.0, model=MODEL)
    numbers = [traces.open(attempt, begun, now=now) for _ in range(3)]
    assert [number.result() for number in numbers] == [100, 101, 102]
    assert traces.open(attempt, replace(begun, seq=2), now=now).result() == 103  # free from its own number on
    amended = replace(begun, seq=101, name="b", attributes={"n": 1})
    traces.amend(attempt, amended, now=now).result()
    closed = replace(amended, name="c", ended_at=4.0, attributes={})
    traces.amend(attempt, closed, now=now).result()
    assert traces.spans(attempt.token)[2:4] == [begun, closed]
    for late, why in ((amended, "it has ended"), (replace(begun, seq=999), "there is none such")):
        with pytest.raises(Conflict, match=why):
            traces.amend(attempt, late, now=now).result()
    assert traces.spans(attempt.token)[3] == closed


def test_what_was_read_from_json_is_kept_as_what_is_looked_through(scene: Scene) -> None:
    """Half a character, a number beyond 64 bits and an object that is no dict are left to the longer way."""
    scene.enqueue("t")
    attempt = scene.claim().attempt
    odd = replace(MODEL, messages=({"content": "cut: \ud83d", "n": 2**70, "of": MappingProxyType({"a": 1.5})},))
    for number, model in enumerate((MODEL, odd), 1):
        begun = Span(seq=number, kind=SpanKind.MODEL, name="m", started_at=1.0, model=model, attributes={"n": [1]})
        assert scene.store.traces.open(attempt, begun, now=scene.clock.now, is_json=True).result() == number
        ended = replace(begun, ended_at=2.0)
        scene.store.traces.amend(attempt, ended, now=scene.clock.now, is_json=True).result()
        assert scene.store.traces.spans(attempt.token)[-1] == ended
    looked_through = replace(ended, seq=3)
    scene.store.traces.add(attempt, [looked_through], now=scene.clock.now).result()
    assert scene.store.traces.spans(attempt.token)[-1] == looked_through


def test_a_span_is_opened_and_amended_only_while_the_lease_lasts(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    begun = Span(seq=100, kind=SpanKind.MODEL, name="a", started_at=3.0, model=MODEL)
    scene.store.traces.open(attempt, begun, now=scene.clock.now).result()
    now = scene.clock.advance(LEASE_S)
    with pytest.raises(StaleLease, match="its lease ran out"):
        scene.store.traces.open(attempt, begun, now=now).result()
    with pytest.raises(StaleLease, match="its lease ran out"):
        scene.store.traces.amend(attempt, replace(begun, ended_at=5.0), now=now).result()
    assert scene.store.traces.spans(attempt.token) == [begun]


def test_spans_that_come_together_are_kept_together(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    scene.store.traces.add(attempt, [span(1)], now=scene.clock.now).result()
    with pytest.raises(StoreError, match=r"(?i)unique"):
        scene.store.traces.add(attempt, [span(2), span(1), span(3)], now=scene.clock.now).result()
    assert [s.seq for s in scene.store.traces.spans(attempt.token)] == [1]
    assert scene.store.traces.add(attempt, [], now=scene.clock.now).result() is None


def test_each_attempt_has_its_own_spans_and_signals(scene: Scene) -> None:
    scene.enqueue("a", "b")
    a, b = (claim.attempt for claim in scene.claims(2))
    scene.store.traces.add(a, [span(1, "of a")], now=scene.clock.now).result()
    scene.store.traces.add(b, [span(1, "of b")], now=scene.clock.now).result()
    assert [[s.name for s in scene.store.traces.spans(x.token)] for x in (a, b)] == [["of a"], ["of b"]]
    assert scene.store.traces.sheet(a.token) == RewardBreakdown(signals=())
    assert scene.store.traces.sheet(a.token).total is None


def test_signals_come_back_as_they_were_in_order(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    signals = (
        RewardTerm(name="exact", value=1.0, source="rule:exact_match"),
        RewardTerm(name="tone", value=-0.25, weight=0.5, source="judge:tone@3", turn=0),
        RewardTerm(name="tone", value=1e-300, weight=0.0, source="judge:tone@3", turn=7),
    )
    scene.store.traces.score(attempt, signals[:1], now=scene.clock.now).result()
    scene.store.traces.score(attempt, signals[1:], now=scene.clock.now, first=2).result()
    sheet = scene.store.traces.sheet(attempt.token)
    assert sheet == RewardBreakdown(signals=signals)
    assert sheet.total == 0.875
    with pytest.raises(StoreError, match=r"(?i)unique"):  # a second verdict in the place of the first
        scene.store.traces.score(attempt, signals[:1], now=scene.clock.now).result()


def test_the_traces_of_a_retried_rollout_stay_with_the_attempt_that_made_them(scene: Scene) -> None:
    scene.enqueue("t")
    first = scene.claim().attempt
    scene.store.traces.add(first, [span(1, "first try")], now=scene.clock.now).result()
    scene.finish(first, AttemptState.FAILED)
    scene.clock.advance(60)
    second = scene.claim().attempt
    scene.store.traces.add(second, [span(1, "second try")], now=scene.clock.now).result()
    assert [s.name for s in scene.store.traces.spans(first.token)] == ["first try"]
    assert [s.name for s in scene.store.traces.spans(second.token)] == ["second try"]
