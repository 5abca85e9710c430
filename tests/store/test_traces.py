"""Spans and reward signals: kept whole or not at all, and read back as they were. Fences are in test_leases."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, NotFound, Refused, StaleLease, StoreError
from holdfast.contracts.experience import ScoredRollout
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState, Split
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanEvent, SpanKind, ToolCall
from holdfast.store.notifications import FINISHED
from holdfast.store.sql import Transaction
from holdfast.store.traces import Rewarded
from tests.contracts import strategies
from tests.store.scene import AT_ONCE, LEASE_S, Scene, at_once, once, problems, signal, span

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


@once
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    assert [(s.name, s.source) for s in scene.store.traces.breakdown(attempt.token).signals] == [("n\ufffd", "s\ufffd")]


@once
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


@once
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
    assert scene.sweep() == 1
    with pytest.raises(StaleLease, match="it is unresponsive"):
        scene.store.traces.open(attempt, begun, now=now).result()
    with pytest.raises(StaleLease, match="it is unresponsive"):
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
    assert scene.store.traces.breakdown(a.token) == RewardBreakdown(signals=())
    assert scene.store.traces.breakdown(a.token).total is None


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
    breakdown = scene.store.traces.breakdown(attempt.token)
    assert breakdown == RewardBreakdown(signals=signals)
    assert breakdown.total == 0.875
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


def asked(model: str, seq: int = 1) -> Span:
    call = ModelCall(model=model, messages=({"role": "user", "content": "2 + 2?"},), response={"content": "4"})
    return Span(seq=seq, kind=SpanKind.MODEL, name="chat", started_at=1.0, ended_at=2.0, model=call)


def tried(scene: Scene, *spans: Span, value: float | None = 1.0, state: AttemptState = AttemptState.SUCCEEDED) -> None:
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, spans, now=scene.clock.now).result()
    if value is not None:
        scene.store.traces.score(claim.attempt, [signal(value=value)], now=scene.clock.now).result()
    scene.finish(claim, state, backoff=AT_ONCE)


def test_all_that_a_learner_needs_is_read_at_once(scene: Scene) -> None:
    scene.enqueue("a", split=Split.TRAIN)
    tried(scene, span(1), asked("m@1", 2), asked("m@1", 3), value=0.5)
    found = scene.store.experiences.get(f"{scene.run}/a")
    assert found is not None
    assert (found.rollout, found.run, found.task, found.split) == (f"{scene.run}/a", scene.run, "a", Split.TRAIN)
    assert (found.state, found.is_final, found.version) == (RolloutState.SUCCEEDED, True, "m@1")
    assert found.spans == (span(1), asked("m@1", 2), asked("m@1", 3))
    assert found.breakdown.signals == (signal(value=0.5),)


def test_of_several_attempts_the_one_that_decided_counts(scene: Scene) -> None:
    scene.enqueue("a", max_attempts=2)
    tried(scene, asked("old@1"), value=0.0, state=AttemptState.FAULT)
    scene.clock.advance(1.0)
    tried(scene, asked("new@1"), value=1.0)
    found = scene.store.experiences.get(f"{scene.run}/a")
    assert found is not None and (found.version, found.breakdown.total) == ("new@1", 1.0)
    assert [one.model.model for one in found.spans if one.model] == ["new@1"]


@once
def test_one_that_failed_on_its_last_try_is_data_too(scene: Scene) -> None:
    scene.enqueue("a", max_attempts=1)
    tried(scene, asked("m@1"), value=None, state=AttemptState.FAILED)
    found = scene.store.experiences.get(f"{scene.run}/a")
    assert found is not None and found.state is RolloutState.FAILED
    assert found.breakdown.signals == (  # it was not right, and no gate is open to it
        RewardTerm(name="success", value=0.0, source="rule:failed"),
        RewardTerm(name="gated", value=1.0, weight=0.0, source="guard:failed"),
    )


@once
def test_one_that_failed_and_was_scored_all_the_same_has_no_second_check(scene: Scene) -> None:
    scene.enqueue("a", max_attempts=1)
    claim = scene.claim()
    scene.store.traces.score(claim.attempt, [signal("success", 0.0)], now=scene.clock.now).result()
    scene.finish(claim, AttemptState.FAILED)
    found = scene.store.experiences.get(f"{scene.run}/a")
    assert found is not None and found.breakdown.signals == (signal("success", 0.0),)


@once
def test_what_no_attempt_decided_has_none(scene: Scene) -> None:
    for state in (R.QUEUING, R.REQUEUING, R.RUNNING, R.DEAD, R.CANCELLED):
        mine = scene.beside(state)
        mine.brought_to(state)
        assert mine.store.experiences.get(f"{mine.run}/t") is None
        assert mine.store.experiences.of([f"{mine.run}/t"]) == []
    with pytest.raises(NotFound, match="nothing"):
        scene.store.experiences.get(f"{scene.run}/nothing")


@once
def test_they_come_in_the_order_that_was_asked_for_without_what_is_open(scene: Scene) -> None:
    scene.enqueue("a", "b", "c", "open")
    for value in (1.0, 2.0, 3.0):
        tried(scene, value=value)
    names = [f"{scene.run}/{name}" for name in ("c", "open", "a", "b")]
    assert [one.breakdown.total for one in scene.store.experiences.of(iter(names))] == [3.0, 1.0, 2.0]


@once
def test_the_version_is_told_where_it_was_one(scene: Scene) -> None:
    for name, models, version in (("a", [], None), ("b", ["m@1"], "m@1"), ("c", ["m@1", "m@2"], None)):
        scene.enqueue(name)
        tried(scene, *(replace(asked(model), seq=place) for place, model in enumerate(models, 1)))
        found = scene.store.experiences.get(f"{scene.run}/{name}")
        assert found is not None and found.version == version


@once
def test_rollouts_of_one_group_are_of_one_task(scene: Scene) -> None:
    scene.enqueue("a#1", "a#2", metadata={"group": "a"})
    for _ in range(2):
        tried(scene)
    found = scene.store.experiences.of(f"{scene.run}/{name}" for name in ("a#1", "a#2"))
    assert [one.task for one in found] == ["a", "a"]


def page(scene: Scene, **how: Any) -> list[ScoredRollout]:
    return scene.store.experiences.scored(scene.run, **how)


def test_what_was_decided_is_read_a_page_at_a_time_with_all_that_a_scorer_needs(scene: Scene) -> None:
    scene.enqueue("a", split=Split.VAL, metadata={"expected": 4}, step="0/collect", version="m@1")
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, [asked("m@1")], now=scene.clock.now).result()
    scene.store.traces.score(claim.attempt, [signal("success", 1.0), signal("tone", 0.5)], now=scene.clock.now).result()
    scene.finish(claim, AttemptState.SUCCEEDED, reward=1.5, outcome="right", output={"answer": 4})
    whole = ScoredRollout(
        rollout=f"{scene.run}/a",
        input={"q": "a"},
        output={"answer": 4},
        error=None,
        split=Split.VAL,
        status=RolloutState.SUCCEEDED,
        metadata={"expected": 4},
        reward=1.5,
        outcome="right",
        step="0/collect",
        version="m@1",
        signals=(signal("success", 1.0), signal("tone", 0.5)),
        spans=(asked("m@1"),),
    )
    assert page(scene, spans=True) == [whole]
    assert page(scene) == [replace(whole, spans=())]


def test_only_what_an_attempt_decided_is_in_a_page_and_of_several_that_one(scene: Scene) -> None:
    for state in sorted(RolloutState, key=lambda state: state is RolloutState.QUEUING):
        scene.brought_to(state, str(state))
    scene.enqueue("tried", priority=1)
    tried(scene, asked("old@1"), value=0.0, state=AttemptState.FAULT)
    scene.clock.advance(1.0)
    tried(scene, asked("new@1"), value=1.0)
    found = page(scene, spans=True)
    assert sorted(one.rollout.partition("/")[2] for one in found) == ["failed", "succeeded", "tried"]
    (again,) = [one for one in found if one.rollout.endswith("/tried")]
    assert again.signals == (signal(value=1.0),) and again.spans == (asked("new@1"),)
    (failed,) = [one for one in found if one.status is RolloutState.FAILED]
    assert (failed.outcome, failed.output, failed.signals) == ("wrong", None, ())


def test_pages_go_on_where_the_last_one_ended(scene: Scene) -> None:
    names = [f"t{place}" for place in range(5)]
    scene.enqueue(*names, "open")
    for place, _ in enumerate(names):
        tried(scene, span(1), value=float(place))
    for most in (1, 2, 3, 100):
        found, after = list[ScoredRollout](), None
        while some := page(scene, after=after, most=most, spans=True):
            assert len(some) <= most
            found, after = found + some, some[-1].rollout
        assert [one.rollout for one in found] == [f"{scene.run}/{name}" for name in names]
        assert [one.signals for one in found] == [(signal(value=float(place)),) for place in range(5)]
    with pytest.raises(NotFound, match=f"rollout {scene.run}/ghost: there is none"):
        page(scene, after=f"{scene.run}/ghost")


@once
def test_a_page_takes_a_handful_of_statements_however_many_it_holds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.enqueue(*(f"t{place}" for place in range(50)))
    for _ in range(50):
        tried(scene, span(1))
    scene.store.runs.key(scene.run)
    ran: list[Any] = []
    whole = Transaction.all
    monkeypatch.setattr(
        Transaction, "all", lambda self, statement, params: ran.append(1) or whole(self, statement, params)
    )
    assert len(page(scene, spans=True)) == 50
    assert len(ran) == 3


R = RolloutState
TONE = RewardTerm(name="tone", value=0.5, source="person:ann")


def attach(scene: Scene, told: RewardTerm = TONE, name: str = "t") -> Rewarded:
    return scene.store.rewards.attach(f"{scene.run}/{name}", told, who="ann", now=scene.clock.now).result()


def scored(scene: Scene, name: str = "t") -> int:
    """A rollout that ended with a reward of 1; the token of its attempt."""
    scene.enqueue(name)
    attempt = scene.claim().attempt
    scene.store.traces.score(attempt, [signal("exact", 1.0)], now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED, reward=1.0)
    return attempt.token


def test_a_signal_is_added_to_the_sheet_and_the_reward_is_its_total(scene: Scene) -> None:
    token, seen = scored(scene), scene.store.changes.seen(FINISHED)
    made = attach(scene, RewardTerm(name="tone", value=0.5, weight=-2.0, source="person:ann"))
    assert (made.rollout, made.attempt) == (f"{scene.run}/t", f"{scene.run}/t:attempt-1")
    assert made.is_new and made.reward == scene.rollout("t").reward == 0.0  # 1 − 2 · 0.5
    assert [one.name for one in scene.store.traces.breakdown(token).signals] == ["exact", "tone"]
    assert scene.store.changes.wait(FINISHED, seen, 60.0)  # who waits for rewards is told
    assert problems(scene.store) == []


@once
def test_who_told_it_is_in_the_ledger(scene: Scene) -> None:
    scored(scene)
    attach(scene)
    entry = list(scene.store.ledger.entries())[-1]
    assert (entry.kind, entry.who, entry.run) == ("reward", "ann", scene.run)
    term = {"name": "tone", "value": 0.5, "weight": 1.0, "source": "person:ann", "turn": None, "feedback": None}
    change = {"before": 1.0, "reward": 1.5, "outcome_before": None, "outcome": None}
    assert entry.body == {"rollout": f"{scene.run}/t", "attempt": f"{scene.run}/t:attempt-1", **term, **change}


def test_the_same_again_changes_nothing_and_another_value_is_refused(scene: Scene) -> None:
    token = scored(scene)
    assert attach(scene).is_new
    entries = len(list(scene.store.ledger.entries()))
    again = attach(scene)
    assert (again.is_new, again.reward) == (False, 1.5)
    for other in (
        RewardTerm(name="tone", value=0.6, source="person:ann"),
        RewardTerm(name="tone", value=0.5, weight=2, source="person:ann"),
    ):
        with pytest.raises(Conflict, match=r"person:ann told tone before: 0\.5 × 1"):
            attach(scene, other)
    assert attach(scene, RewardTerm(name="tone", value=0.6, source="person:bob")).reward == 2.1
    assert len(scene.store.traces.breakdown(token).signals) == 3
    assert len(list(scene.store.ledger.entries())) == entries + 1


def test_a_rollout_without_a_reward_gets_its_first_and_a_failed_one_too(scene: Scene) -> None:
    for name, state in (("t", R.SUCCEEDED), ("u", R.FAILED)):
        assert scene.brought_to(state, name).reward is None
        assert attach(scene, name=name).reward == scene.rollout(name).reward == 0.5
    found = scene.store.experiences.get(f"{scene.run}/u")
    assert found is not None and found.breakdown is not None and found.breakdown.total == 0.5


@once
def test_what_nothing_decided_cannot_be_rewarded(scene: Scene) -> None:
    for state in (R.QUEUING, R.RUNNING, R.REQUEUING, R.DEAD, R.CANCELLED):
        mine = scene.beside(state)
        mine.brought_to(state)
        why = "no attempt decided it" if state in (R.DEAD, R.CANCELLED) else "its own worker scores it when it ends"
        with pytest.raises(Refused, match=f"is {state}: {why}"):
            attach(mine)
        assert mine.rollout("t").reward is None
    with pytest.raises(NotFound):
        attach(scene, name="nope")


@once
def test_a_turn_is_a_whole_call_of_the_model(scene: Scene) -> None:
    scene.enqueue("t")
    attempt = scene.claim().attempt
    call = ModelCall(model="m", messages=(), response={"role": "assistant", "content": "x"})
    spans = [
        Span(seq=seq, kind=SpanKind.MODEL, name="chat", started_at=1.0, ended_at=2.0, model=call, attributes=notes)
        for seq, notes in enumerate(({}, {PARTIAL: "cut"}, {}), 1)
    ]
    scene.store.traces.add(attempt, spans, now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED)
    for turn in (0, 1):
        assert attach(scene, RewardTerm(name="tone", value=1.0, source="a", turn=turn)).is_new
    assert scene.rollout("t").reward == 2.0
    with pytest.raises(BadInput, match=r"turn 2: rollout .*/t has 2 turns, the last is 1"):
        attach(scene, RewardTerm(name="tone", value=1.0, source="a", turn=2))


def test_a_total_that_is_no_number_leaves_everything_as_it_was(scene: Scene) -> None:
    scored(scene)
    huge = RewardTerm(name="a", value=1.7e308, source="s")
    attach(scene, huge)
    with pytest.raises(BadRecord, match="add up to inf"):
        attach(scene, RewardTerm(name="b", value=1.7e308, source="s"))
    assert scene.rollout("t").reward == 1.7e308


def test_of_many_who_tell_the_same_at_once_one_is_new(scene: Scene) -> None:
    token = scored(scene)
    assert sorted(one.is_new for one in at_once(lambda _: attach(scene), *range(8))) == [False] * 7 + [True]
    assert len(scene.store.traces.breakdown(token).signals) == 2 and scene.rollout("t").reward == 1.5


@once
def test_a_requeued_rollout_keeps_no_reward_of_its_failed_attempt(scene: Scene) -> None:
    scene.brought_to(R.FAILED)
    attach(scene)
    scene.requeue("t")
    with pytest.raises(Refused, match="is queuing"):
        attach(scene)
    scene.finish(scene.claim(), AttemptState.SUCCEEDED)
    assert attach(scene).attempt == f"{scene.run}/t:attempt-2"
    assert scene.rollout("t").reward == 0.5


RIGHT, WRONG, HALF = (RewardTerm(name="success", value=value, source="person:ann") for value in (1.0, 0.0, 0.5))
EXACT = RewardTerm(name="exact_match", value=1.0, source="rule:exact_match")


@once
def test_a_reward_that_checks_changes_the_outcome(scene: Scene) -> None:
    for name, signals, outcome in (
        ("a", [RIGHT], "right"),
        ("b", [HALF], "wrong"),
        ("c", [EXACT], "right"),
        ("d", [WRONG, EXACT], "wrong"),  # success says more than an exact match, whichever came first
        ("e", [TONE], None),  # a tone is no check
        ("f", [replace(RIGHT, source="agent:t")], None),  # nor is an agent's own word
    ):
        scored(scene, name)
        assert scene.rollout(name).outcome is None
        for told in signals:
            attach(scene, told, name)
        assert scene.rollout(name).outcome == outcome


@once
def test_what_its_worker_found_stands_until_a_check_says_otherwise(scene: Scene) -> None:
    scene.enqueue("t")
    scene.finish(scene.claim(), AttemptState.SUCCEEDED, outcome="wrong")
    attach(scene)
    assert scene.rollout("t").outcome == "wrong"  # a tone says nothing about it
    attach(scene, RewardTerm(name="success", value=1.0, source="person:ann"))
    assert scene.rollout("t").outcome == "right"


@once
def test_what_failed_stays_wrong_whatever_is_told_of_it(scene: Scene) -> None:
    scene.brought_to(R.FAILED)
    attach(scene, RewardTerm(name="success", value=1.0, source="person:ann"))
    assert (scene.rollout("t").outcome, scene.rollout("t").reward) == ("wrong", 1.0)


def test_feedback_in_words_is_kept_with_the_signal(scene: Scene) -> None:
    token = scored(scene)
    told = RewardTerm(name="tone", value=0.5, source="person:ann", feedback="too long, \x00 and rude")
    attach(scene, told)
    kept = scene.store.traces.breakdown(token).signals[-1]
    assert kept.feedback == "too long, \ufffd and rude"
    assert list(scene.store.ledger.entries())[-1].body["feedback"] == kept.feedback
