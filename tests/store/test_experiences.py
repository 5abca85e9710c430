"""Experiences: what the attempt that decided a rollout did, and nothing of the others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.contracts.errors import NotFound
from holdfast.contracts.rollout import AttemptState, RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind
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
    assert found is not None and found.state is RolloutState.FAILED and found.sheet.signals == ()


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
