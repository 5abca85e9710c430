"""Episodes in environments: what is played is what Gymnasium plays, and each is recorded once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.collect.episodes import EpisodePlayer, record
from holdfast.collect.gym import vector_env
from holdfast.contracts.envs import Bools, Choose, Observation
from holdfast.contracts.errors import BadInput, Interrupted
from holdfast.contracts.executor import Outcome
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState, Split, Task
from holdfast.contracts.run import DesiredState
from holdfast.store.store import Store
from tests.collect.environments import Signpost
from tests.collect.scene import fall_silent

STEP = "0/prove/0"


class Leaning:
    """Pushes the cart to where the pole leans."""

    def __call__(self, observation: Any, mask: Any = None) -> int:
        return int(observation[2] > 0)

    def reset(self) -> None:
        """It remembers nothing."""

    def many(self, count: int) -> Choose:
        def choose(observation: Observation, first: Bools, /) -> NDArray[Any]:
            assert len(observation.values) == len(first) == count
            return (observation.values[:, 2] > 0).astype(np.int64)

        return choose


def player(**changed: Any) -> EpisodePlayer:
    made = {"env": "CartPole-v1", "make": partial(vector_env, "CartPole-v1"), "most_steps": 500}
    return EpisodePlayer(**{**made, "reward_range": (0.0, 500.0), "success_at": 40.0, **changed})


def tasks(*seeds: int) -> list[Mapping[str, Any]]:
    return [{"env": "CartPole-v1", "seed": seed} for seed in seeds]


def by_hand(seed: int) -> float:
    env, total, is_over = gymnasium.make("CartPole-v1"), 0.0, False
    seen, _ = env.reset(seed=seed)
    while not is_over:
        seen, reward, terminated, truncated, _ = env.step(int(seen[2] > 0))
        total, is_over = total + float(reward), terminated or truncated
    return total


def test_an_episode_is_the_one_gymnasium_plays_with_its_seed() -> None:
    """In any order, with gaps, more than are played side by side, and one twice."""
    seeds = [7, 3, *range(100, 170), 3]
    found = player().play(Leaning(), tasks(*seeds), lambda: None)
    assert [one.output["return"] for one in found] == [by_hand(seed) for seed in seeds]
    assert all(one.output["steps"] == one.reward and one.output["ended"] == "terminated" for one in found)


def test_a_return_from_the_threshold_on_counts_as_solved_and_pays_nothing_more() -> None:
    [one] = player(success_at=by_hand(3)).play(Leaning(), tasks(3), lambda: None)
    assert {signal.name: (signal.value, signal.weight) for signal in one.signals} == {
        "return": (by_hand(3), 1.0),
        "success": (1.0, 0.0),
    }
    [one] = player(success_at=by_hand(3) + 1).play(Leaning(), tasks(3), lambda: None)
    assert [signal.value for signal in one.signals if signal.name == "success"] == [0.0]


def test_an_episode_is_cut_at_its_longest() -> None:
    [one] = player(most_steps=5).play(Leaning(), tasks(3), lambda: None)
    assert one.output == {"return": 5.0, "steps": 5, "ended": "truncated"}


def test_a_return_out_of_its_range_is_refused() -> None:
    with pytest.raises(BadInput, match=r"reward_range = 0 to 3: .* returned \d+"):
        player(reward_range=(0.0, 3.0)).play(Leaning(), tasks(3), lambda: None)


def test_what_an_environment_throws_is_said_with_its_name() -> None:
    def fails() -> Any:
        class Broken(Signpost):
            def step(self, action: Any) -> Any:
                raise ZeroDivisionError("no way on")

        return Broken()

    with pytest.raises(BadInput, match="environment broken: ZeroDivisionError: no way on"):
        player(env="broken", make=partial(vector_env, fails)).play(Pointing(), tasks(3), lambda: None)


class Pointing(Leaning):
    def many(self, count: int) -> Choose:
        return lambda observation, first, /: np.zeros(count, np.int64)


def test_a_run_that_is_to_end_is_heeded_between_pieces() -> None:
    def stop() -> None:
        raise Interrupted("the run was stopped")

    with pytest.raises(Interrupted):
        player().play(Leaning(), tasks(1), stop)


# Recorded ------------------------------------------------------------------------------------------------------------


async def run_with(store: Store, count: int) -> tuple[str, dict[str, Outcome]]:
    run = await store.runs.begin(
        kind="improve", model_ref="m", settings={}, salt="ab", who="test", now=time.time(), queue_limit=None
    )
    names = [f"episode-{n}" for n in range(count)]
    queued = [Task(name=name, input={"seed": n}, split=Split.VAL, step=STEP) for n, name in enumerate(names)]
    await store.queue.enqueue(run.id, queued, now=time.time())
    return run.id, {name: outcome(n) for n, name in enumerate(names)}


def outcome(value: float) -> Outcome:
    signals = (
        RewardTerm(name="return", value=value, source="env"),
        RewardTerm(name="success", value=float(value > 1), weight=0.0, source="env:threshold"),
    )
    return Outcome(state=AttemptState.SUCCEEDED, output={"return": value}, signals=signals)


async def recorded(store: Store, run: str, outcomes: Mapping[str, Outcome]) -> None:
    async def go_on() -> None:
        while await store.queue.sweep(now=time.time()):
            continue

    going = record(store, run, STEP, outcomes, clock=time.time, go_on=go_on, wait_s=0.01)
    await asyncio.wait_for(going, 60.0)


async def test_each_episode_is_one_rollout_with_its_return_and_outcome(store: Store) -> None:
    run, outcomes = await run_with(store, 3)
    await recorded(store, run, outcomes)
    await recorded(store, run, outcomes)  # as after a kill before the step was recorded
    found = store.views.rollouts(run)
    assert [(one.reward, one.outcome, one.status, one.attempt_count) for one in found] == [
        (0.0, "wrong", RolloutState.SUCCEEDED, 1),
        (1.0, "wrong", RolloutState.SUCCEEDED, 1),
        (2.0, "right", RolloutState.SUCCEEDED, 1),
    ]


async def test_what_a_killed_process_still_holds_is_recorded_once_it_is_written_off(store: Store) -> None:
    run, outcomes = await run_with(store, 2)
    await store.queue.claim(run, "killed", now=time.time(), lease_s=60.0, most=1)
    fall_silent(store, run)
    await recorded(store, run, outcomes)
    assert [one.reward for one in store.views.rollouts(run)] == [0.0, 1.0]
    assert [len(store.views.attempts(one.id)) for one in store.views.rollouts(run)] == [2, 1]


async def test_a_paused_run_records_nothing_until_it_goes_on(store: Store) -> None:
    run, outcomes = await run_with(store, 1)
    await store.runs.want(run, DesiredState.PAUSED, who="test", why="a test", now=time.time())
    going = asyncio.create_task(recorded(store, run, outcomes))
    await asyncio.sleep(0.1)
    assert not going.done() and store.views.rollouts(run)[0].status is RolloutState.QUEUING
    await store.runs.want(run, DesiredState.RUNNING, who="test", why="a test", now=time.time())
    await going
    assert store.views.rollouts(run)[0].status is RolloutState.SUCCEEDED


async def test_what_no_step_asked_for_is_cancelled_and_not_made_up(store: Store) -> None:
    run, outcomes = await run_with(store, 1)
    await store.queue.enqueue(run, [Task(name="stray", input=1, step="other")], now=time.time())
    await recorded(store, run, outcomes)
    stray = store.views.rollout(f"{run}/stray")
    assert (stray.status, stray.reward) == (RolloutState.CANCELLED, None)
