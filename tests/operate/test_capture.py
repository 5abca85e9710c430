"""Captured conversations: what somebody said was good or bad is a finished rollout that a learner can use as it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from holdfast.contracts.errors import Conflict, Fault, StoreFull
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import DesiredState
from holdfast.learn.batch import SampleFilter
from holdfast.learn.turns import PpoSettings, RlSettings, optimize_turns
from holdfast.operate.service import KIND, Capture
from holdfast.policies.engine import Local
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.store.store import Store
from tests.conftest import Clock
from tests.operate.stage import HELLO, call


@pytest.fixture
def run(file_store: Store) -> str:
    begun = file_store.runs.begin(kind=KIND, model_ref="sprout", settings={}, salt="a", who="test", now=1.0)
    return begun.result().id


@pytest.fixture
def capture(file_store: Store, run: str, clock: Clock) -> Capture:
    return Capture(file_store, run, clock=lambda: clock.now)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return Transformer(ModelShape(width=16, layers=1, heads=2, context=256), seed=0)


@pytest.fixture(scope="module")
def local(model: Transformer) -> Iterator[Local]:
    with Local(model, name="local/sprout@1", version="ab12", slots=2, seed=0) as opened:
        yield opened


async def test_what_was_served_and_rewarded_can_be_learnt_from(
    file_store: Store, run: str, capture: Capture, clock: Clock, model: Transformer, local: Local
) -> None:
    calls = {}
    for number in range(4):
        calls[f"r{number}"] = made = await local(HELLO, max_tokens=8, temperature=1.0, seed=number)
        capture.heard(f"r{number}", "sprout@1", HELLO, made)
    clock.advance(3600)  # people take their time
    for number, identity in enumerate(calls):
        assert await capture.told(identity, {"reward": number % 2})
    rollouts = [file_store.views.rollout(f"{run}/{identity}") for identity in calls]
    assert {(one.status, one.split) for one in rollouts} == {(RolloutState.SUCCEEDED, Split.TRAIN)}
    found = file_store.experiences.of(one.id for one in rollouts)
    assert len({one.task for one in found}) == 1  # the same question: one group
    for one, made in zip(found, calls.values(), strict=True):
        (span,) = one.spans
        assert span.model == made and span.model.completion_ids and span.model.logprobs
        assert span.ended_at == 1_000_000.0  # when it was answered, not when it was told of
    trained = Transformer(model.shape, seed=0)
    settings = RlSettings(ppo=PpoSettings(learning_rate=1e-2))
    summary = optimize_turns(found, trained, settings, seed=0, intake=SampleFilter(run=run))
    assert summary.executed, summary
    assert (summary.trajectories, summary.samples) == (4, 4) and not summary.reasons
    assert any(
        not torch.equal(before, after) for before, after in zip(model.parameters(), trained.parameters(), strict=True)
    )


@pytest.mark.parametrize(
    ("said", "total"),
    [
        ({"success": 1.0}, 1.0),
        ({"reward": 0.25, "success": 1.0}, 0.25),  # a reward is what counts
        ({"success": 0.0, "safety_cost": 3.0}, 0.0),  # a cost is never paid
        ({"reward": -2.0, "safety_cost": 1.0}, -2.0),
    ],
)
async def test_a_reward_counts_and_where_there_is_none_success_does(
    file_store: Store, run: str, capture: Capture, said: dict[str, float], total: float
) -> None:
    capture.heard("r1", "sprout@2", HELLO, call("sprout@2"))
    assert await capture.told("r1", said)
    found = file_store.experiences.get(f"{run}/r1")
    assert found is not None and found.sheet.total == total
    assert {signal.name: signal.value for signal in found.sheet.signals} == said
    assert {signal.source for signal in found.sheet.signals} == {"feedback"}
    rollout = file_store.views.rollout(f"{run}/r1")
    assert rollout.metadata["release"] == "sprout@2" and rollout.input == {"messages": HELLO}
    assert rollout.reward == total


async def test_what_is_not_known_or_not_judged_is_not_kept(file_store: Store, run: str, capture: Capture) -> None:
    assert not await capture.told("r9", {"reward": 1.0})
    capture.heard("r1", "sprout@1", HELLO, call("sprout@1"))
    assert not await capture.told("r1", {"safety_cost": 1.0})
    assert await capture.told("r1", {"reward": 1.0})  # it waited for it
    assert [one.name for one in file_store.views.rollouts(run)] == ["r1"]


async def test_the_same_again_is_harmless_and_another_value_a_conflict(
    file_store: Store, run: str, capture: Capture
) -> None:
    capture.heard("r1", "sprout@1", HELLO, call("sprout@1"))
    assert await capture.told("r1", {"success": 1.0})
    assert await capture.told("r1", {"success": 1.0})
    with pytest.raises(Conflict, match="^answer r1: success was told before: 1, not 0$"):
        await capture.told("r1", {"success": 0.0})
    assert not await capture.told("r1", {"reward": 1.0})  # too late for this one
    found = file_store.experiences.get(f"{run}/r1")
    assert found is not None and found.sheet.total == 1.0


async def test_many_at_once_each_get_their_own(file_store: Store, run: str, capture: Capture) -> None:
    names = [f"r{number}" for number in range(40)]
    for name in names:
        capture.heard(name, "sprout@1", HELLO, call(name))
    told = [capture.told(name, {"reward": float(place)}) for place, name in enumerate(names)]
    again = [capture.told(name, {"reward": float(place)}) for place, name in enumerate(names)]
    assert all(await asyncio.gather(*reversed(told), *again))
    for place, name in enumerate(names):
        found = file_store.experiences.get(f"{run}/{name}")
        assert found is not None and found.sheet.total == place
        assert [span.model.model for span in found.spans if span.model] == [name]


async def test_the_oldest_are_forgotten_first(file_store: Store, run: str, clock: Clock) -> None:
    capture = Capture(file_store, run, clock=lambda: clock.now, most=2)
    for name in ("a", "b", "c"):
        capture.heard(name, "sprout@1", HELLO, call(name))
    assert [await capture.told(name, {"reward": 1.0}) for name in ("a", "b", "c")] == [False, True, True]


async def test_what_could_not_be_written_can_be_told_again(
    file_store: Store, run: str, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture.heard("r1", "sprout@1", HELLO, call("sprout@1"))

    def refuse(*_: Any, **__: Any) -> Any:
        raise StoreFull("store", why="the disk is full")

    with monkeypatch.context() as full:
        full.setattr(file_store.db, "write", refuse)  # the disk, which cannot be filled here
        with pytest.raises(StoreFull):
            await capture.told("r1", {"reward": 1.0})
    assert await capture.told("r1", {"reward": 1.0})
    assert file_store.experiences.get(f"{run}/r1") is not None


async def test_a_telling_that_broke_off_does_not_mix_with_the_next(
    file_store: Store, run: str, capture: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("r1", "r2"):
        capture.heard(name, "sprout@1", HELLO, call(name))
    file_store.runs.want(run, DesiredState.PAUSED, who="ann", why="test", now=2.0).result()
    with pytest.raises(Fault, match="answer r1: .* takes nothing at the moment; tell it again later"):
        await capture.told("r1", {"reward": 1.0})
    file_store.runs.want(run, DesiredState.RUNNING, who="ann", why="test", now=3.0).result()
    assert await capture.told("r2", {"reward": 2.0})
    found = file_store.experiences.get(f"{run}/r2")
    assert found is not None and [span.model.model for span in found.spans if span.model] == ["r2"]
    assert file_store.experiences.get(f"{run}/r1") is None
    assert file_store.views.rollout(f"{run}/r1").status is RolloutState.DEAD  # reported as missing
