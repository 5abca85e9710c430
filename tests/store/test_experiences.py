"""Experiences: what the attempt that decided a rollout did, and nothing of the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import NotFound
from holdfast.contracts.experience import ScoredRollout
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.store.sql import Transaction
from tests.store.scene import AT_ONCE, Scene, signal, span


def asked(model: str, seq: int = 1) -> Span:
    call = ModelCall(model=model, messages=({"role": "user", "content": "2 + 2?"},), response={"content": "4"})
    return Span(seq=seq, kind=SpanKind.MODEL, name="chat", started_at=1.0, ended_at=2.0, model=call)


def attempt(
    scene: Scene, *spans: Span, value: float | None = 1.0, state: AttemptState = AttemptState.SUCCEEDED
) -> None:
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, spans, now=scene.clock.now).result()
    if value is not None:
        scene.store.traces.score(claim.attempt, [signal(value=value)], now=scene.clock.now).result()
    scene.finish(claim, state, backoff=AT_ONCE)


def test_all_that_a_learner_needs_is_read_at_once(scene: Scene) -> None:
    scene.enqueue("a", split=Split.TRAIN)
    attempt(scene, span(1), asked("m@1", 2), asked("m@1", 3), value=0.5)
    found = scene.store.experiences.one(f"{scene.run}/a")
    assert found is not None
    assert (found.rollout, found.run, found.task, found.split) == (f"{scene.run}/a", scene.run, "a", Split.TRAIN)
    assert (found.state, found.is_final, found.version) == (RolloutState.SUCCEEDED, True, "m@1")
    assert found.spans == (span(1), asked("m@1", 2), asked("m@1", 3))
    assert found.sheet.signals == (signal(value=0.5),)


def test_of_several_attempts_the_one_that_decided_counts(scene: Scene) -> None:
    scene.enqueue("a", max_attempts=2)
    attempt(scene, asked("old@1"), value=0.0, state=AttemptState.FAULT)
    scene.clock.advance(1.0)
    attempt(scene, asked("new@1"), value=1.0)
    found = scene.store.experiences.one(f"{scene.run}/a")
    assert found is not None and (found.version, found.sheet.total) == ("new@1", 1.0)
    assert [one.model.model for one in found.spans if one.model] == ["new@1"]


def test_one_that_failed_on_its_last_try_is_data_too(scene: Scene) -> None:
    scene.enqueue("a", max_attempts=1)
    attempt(scene, asked("m@1"), value=None, state=AttemptState.FAILED)
    found = scene.store.experiences.one(f"{scene.run}/a")
    assert found is not None and found.state is RolloutState.FAILED
    assert found.sheet.signals == (RewardTerm(name="success", value=0.0, source="rule:failed"),)  # it was not right


def test_one_that_failed_and_was_scored_all_the_same_has_no_second_check(scene: Scene) -> None:
    scene.enqueue("a", max_attempts=1)
    claim = scene.claim()
    scene.store.traces.score(claim.attempt, [signal("success", 0.0)], now=scene.clock.now).result()
    scene.finish(claim, AttemptState.FAILED)
    found = scene.store.experiences.one(f"{scene.run}/a")
    assert found is not None and found.sheet.signals == (signal("success", 0.0),)


@pytest.mark.parametrize(
    "state",
    [RolloutState.QUEUING, RolloutState.REQUEUING, RolloutState.RUNNING, RolloutState.DEAD, RolloutState.CANCELLED],
)
def test_what_no_attempt_decided_has_none(scene: Scene, state: RolloutState) -> None:
    scene.brought_to(state)
    assert scene.store.experiences.one(f"{scene.run}/t") is None
    assert scene.store.experiences.of([f"{scene.run}/t"]) == []


def test_they_come_in_the_order_that_was_asked_for_without_what_is_open(scene: Scene) -> None:
    scene.enqueue("a", "b", "c", "open")
    for value in (1.0, 2.0, 3.0):
        attempt(scene, value=value)
    names = [f"{scene.run}/{name}" for name in ("c", "open", "a", "b")]
    assert [one.sheet.total for one in scene.store.experiences.of(iter(names))] == [3.0, 1.0, 2.0]


@pytest.mark.parametrize(("models", "version"), [([], None), (["m@1"], "m@1"), (["m@1", "m@2"], None)])
def test_the_version_is_told_where_it_was_one(scene: Scene, models: list[str], version: str | None) -> None:
    scene.enqueue("a")
    attempt(scene, *(replace(asked(model), seq=place) for place, model in enumerate(models, 1)))
    found = scene.store.experiences.one(f"{scene.run}/a")
    assert found is not None and found.version == version


def test_rollouts_of_one_group_are_of_one_task(scene: Scene) -> None:
    scene.enqueue("a#1", "a#2", metadata={"group": "a"})
    for _ in range(2):
        attempt(scene)
    found = scene.store.experiences.of(f"{scene.run}/{name}" for name in ("a#1", "a#2"))
    assert [one.task for one in found] == ["a", "a"]


def test_an_unknown_rollout_is_not_found(scene: Scene) -> None:
    with pytest.raises(NotFound, match="nothing"):
        scene.store.experiences.one(f"{scene.run}/nothing")


def page(scene: Scene, **how: Any) -> list[ScoredRollout]:
    return scene.store.experiences.decided(scene.run, **how)


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
    attempt(scene, asked("old@1"), value=0.0, state=AttemptState.FAULT)
    scene.clock.advance(1.0)
    attempt(scene, asked("new@1"), value=1.0)
    found = page(scene, spans=True)
    assert sorted(one.rollout.partition("/")[2] for one in found) == ["failed", "succeeded", "tried"]
    (tried,) = [one for one in found if one.rollout.endswith("/tried")]
    assert tried.signals == (signal(value=1.0),) and tried.spans == (asked("new@1"),)
    (failed,) = [one for one in found if one.status is RolloutState.FAILED]
    assert (failed.outcome, failed.output, failed.signals) == ("wrong", None, ())


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_pages_go_on_where_the_last_one_ended(scene: Scene, most: int) -> None:
    names = [f"t{place}" for place in range(5)]
    scene.enqueue(*names, "open")
    for place, _ in enumerate(names):
        attempt(scene, span(1), value=float(place))
    found, after = list[ScoredRollout](), None
    while some := page(scene, after=after, most=most, spans=True):
        assert len(some) <= most
        found, after = found + some, some[-1].rollout
    assert [one.rollout for one in found] == [f"{scene.run}/{name}" for name in names]
    assert [one.signals for one in found] == [(signal(value=float(place)),) for place in range(5)]


def test_a_page_takes_a_handful_of_statements_however_many_it_holds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.enqueue(*(f"t{place}" for place in range(50)))
    for _ in range(50):
        attempt(scene, span(1))
    scene.store.runs.key(scene.run)
    ran: list[Any] = []
    whole = Transaction.all
    monkeypatch.setattr(
        Transaction, "all", lambda self, statement, params: ran.append(1) or whole(self, statement, params)
    )
    assert len(page(scene, spans=True)) == 50
    assert len(ran) == 3


def test_a_page_after_a_rollout_that_is_not_there_is_refused(scene: Scene) -> None:
    with pytest.raises(NotFound, match=f"rollout {scene.run}/ghost: there is none"):
        page(scene, after=f"{scene.run}/ghost")
