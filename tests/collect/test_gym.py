"""Gymnasium environments as vector environments, and episodes in them, each recorded once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.collect.episodes import EpisodePlayer, record
from holdfast.collect.gym import POOL, RETURNS, CartPoles, Gym, describe, vector_env
from holdfast.contracts.envs import Bools, Choose, Observation
from holdfast.contracts.errors import BadInput, Interrupted
from holdfast.contracts.executor import Outcome
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState, Split, Task
from holdfast.contracts.run import DesiredState
from holdfast.store.store import Store
from tests.collect.environments import Corridor, Fixed, Sealed, Shortcuts, Signpost
from tests.collect.scene import fall_silent
from tests.learn.probes import TEMPTING, Probes


def test_a_name_makes_environments_and_cartpole_is_our_own() -> None:
    assert isinstance(vector_env("CartPole-v1", 2), CartPoles)
    made = vector_env("Acrobot-v1", 2)
    assert isinstance(made, Gym)
    assert (made.spaces.observation, made.spaces.actions, made.spaces.continuous) == (6, 3, False)


def test_they_are_gymnasiums_own_environments_seeded_one_after_the_other() -> None:
    made, theirs = Gym("Acrobot-v1", 2), gymnasium.make("Acrobot-v1")
    view = made.reset(7)
    assert np.array_equal(view.values[1], theirs.reset(seed=8)[0])
    assert np.array_equal(made.step(np.array([0, 2])).observation.values[1], theirs.step(2)[0])


def test_an_end_shows_what_was_last_seen_and_the_next_beginning() -> None:
    made = Gym(Corridor, 1)
    assert made.reset(0).values.tolist() == [[0.5, 1.0, 0.0, 0.0]]  # the light, then the room as one of three
    made.step(np.array([1]))
    result = made.step(np.array([1]))
    assert (result.terminated.tolist(), result.truncated.tolist(), result.reward.tolist()) == ([True], [False], [2.0])
    assert result.final.tolist() == [[0.5, 0.0, 0.0, 1.0]]
    assert result.observation.values.tolist() == [[0.5, 1.0, 0.0, 0.0]]


def test_costs_come_from_the_environment_those_of_a_last_step_too() -> None:
    made, told, due = Gym(Shortcuts, 3), [], []
    view = made.reset(0)
    for _ in range(4):
        due.append([0.5 * (seen < 0.5) for seen in view.values[:, 0]])
        result = made.step(np.ones(3, np.int64))
        assert result.cost is not None
        told.append(result.cost.tolist())
        view = result.observation
    assert told == due and sum(map(sum, due)) > 0
    free = Gym(Corridor, 1)
    free.reset(0)
    assert free.step(np.array([1])).cost is None


def test_masks_come_from_the_environment_and_follow_its_state() -> None:
    made = Gym(Corridor, 2)
    assert made.reset(0).mask is not None
    mask = made.step(np.array([1, 1])).observation.mask
    assert mask is not None and mask.tolist() == [[True, True], [True, True]]
    mask = made.step(np.array([0, 1])).observation.mask
    assert mask is not None and mask.tolist() == [[False, True], [False, True]]


def test_numbers_are_cut_to_the_bounds_and_shaped_as_the_environment_wants_them() -> None:
    made = Gym(Fixed, 2)
    made.reset(0)
    result = made.step(np.array([[-7.0], [1.5]], np.float32))
    assert result.reward.tolist() == [-1.0, 1.5]
    assert result.truncated.all()
    assert result.final.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_what_cannot_be_used_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match="environment Nowhere-v0"):
        vector_env("Nowhere-v0", 1)
    with pytest.raises(BadInput, match="neither one choice nor a vector"):
        Gym(Sealed, 1)
    with pytest.raises(BadInput, match="must be at least 1"):
        vector_env("Acrobot-v1", 0)
    made = Gym(Fixed, 1)
    made.reset(0)
    with pytest.raises(BadInput, match="cannot be saved"):
        made.state()


def test_an_environment_describes_itself() -> None:
    pole = describe("CartPole-v1")
    assert (pole.max_steps, pole.threshold, pole.returns) == (500, 475.0, (0.0, 500.0))
    sign = describe(Signpost)
    assert (sign.max_steps, sign.threshold, sign.returns) == (None, None, None)
    assert (describe(Corridor).spaces.start, describe(Corridor).spaces.observation) == (5, 4)
    assert (describe(Fixed).spaces.low, describe(Fixed).spaces.high) == ((-1.0,), (2.0,))


class Paying(Signpost):
    reward_range = (-1.0, 2.0)


def test_a_range_of_every_step_makes_a_range_of_the_return() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(gymnasium.envs.registration.EnvSpec("Paying-v0", Paying, max_episode_steps=10))

    assert describe(make).returns == (-10.0, 20.0)


@pytest.mark.parametrize("name", ["MountainCar-v0", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_no_episode_returns_more_or_less_than_is_known_of_its_environment(name: str) -> None:
    envs, rng = Gym(name, 2), np.random.default_rng(0)
    low, high = RETURNS[name]
    envs.reset(0)
    so_far = np.zeros(2)
    for _ in range(250):
        actions = rng.normal(size=(2, 1)) if envs.spaces.continuous else rng.integers(0, envs.spaces.actions, 2)
        result = envs.step(actions)
        so_far += result.reward
        assert (low <= so_far).all() and (so_far <= high).all()
        so_far[result.terminated | result.truncated] = 0.0


def balance(observation: NDArray[np.float32]) -> int:
    x, x_dot, angle, angle_dot = observation
    return int(angle + 0.3 * angle_dot + 0.05 * x + 0.1 * x_dot > 0.0)


@pytest.mark.parametrize("skill", [0.0, 1.0], ids=["at random", "balanced to the limit"])
def test_each_pole_is_gymnasiums_with_its_own_seed(skill: float) -> None:
    poles, rng = CartPoles(3), np.random.default_rng(1)
    theirs = [gymnasium.make("CartPole-v1") for _ in range(3)]
    seen = np.array([env.reset(seed=40 + i)[0] for i, env in enumerate(theirs)])
    assert np.array_equal(poles.reset(40).values, seen)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(1_100 if skill else 800):
        actions = np.array([balance(row) if rng.random() < skill else int(rng.integers(2)) for row in seen])
        result = poles.step(actions)
        for i, env in enumerate(theirs):
            after, reward, terminated, truncated, _ = env.step(actions[i])
            assert result.final[i] == pytest.approx(after, abs=1e-6)
            assert (result.reward[i], result.terminated[i], result.truncated[i]) == (reward, terminated, truncated)
            ends["terminated"] += terminated
            ends["truncated"] += truncated
            seen[i] = env.reset()[0] if terminated or truncated else after
        assert result.observation.values == pytest.approx(seen, abs=1e-6)
    if skill:
        assert ends == {"terminated": 0, "truncated": 6}
    else:
        assert ends["terminated"] > 3 * POOL  # so the pool of starts was drawn anew


def test_restored_poles_go_on_through_new_starts() -> None:
    poles, other = CartPoles(2), CartPoles(2)
    poles.reset(3)
    push = np.ones(2, np.int64)
    for _ in range(10 * POOL - 5):  # falling takes about ten steps, so the pool is nearly used up
        poles.step(push)
    other.restore(poles.state())
    for _ in range(10 * POOL):
        assert np.array_equal(poles.step(push).observation.values, other.step(push).observation.values)


STEP = "0/prove/0"


class Leaning:
    """Pushes the cart to where the pole leans: does what one number of what it sees says."""

    def __init__(self, place: int = 2) -> None:
        self._place = place

    def __call__(self, observation: Any, mask: Any = None) -> int:
        return int(observation[self._place] > 0)

    def reset(self) -> None:
        """It remembers nothing."""

    def many(self, count: int) -> Choose:
        def choose(observation: Observation, first: Bools, /) -> NDArray[Any]:
            assert len(observation.values) == len(first) == count
            return (observation.values[:, self._place] > 0).astype(np.int64)

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


def test_what_an_episode_cost_is_its_safety_cost() -> None:
    [one] = EpisodePlayer(
        env="shortcuts", make=lambda count: Gym(Shortcuts, count), most_steps=9, reward_range=(0.0, 2.0)
    ).play(Leaning(0), tasks(3), lambda: None)
    env = Shortcuts()
    env.reset(seed=3)
    paid = sum(env.step(1)[4]["cost"] for _ in range(2))
    assert one.output["cost"] == paid and [(term.value, term.source) for term in one.signals][1] == (paid, "env:cost")


def test_what_those_who_act_side_by_side_cost_is_counted_as_their_mean() -> None:
    [one] = EpisodePlayer(
        env="tempting", make=lambda count: Probes(TEMPTING, 2 * count), most_steps=4, reward_range=(0.0, 4.0), seats=2
    ).play(Taking(), tasks(3), lambda: None)
    assert one.output["cost"] == 2.0  # one of the two pays 1 in each of four steps
    assert [(term.value, term.source) for term in one.signals if term.name == "safety_cost"] == [(1.0, "env:cost")]


@pytest.mark.parametrize("seats", [1, 2])
@pytest.mark.parametrize("cost", [np.inf, np.nan, -1.0])
def test_a_cost_that_is_no_amount_is_refused(cost: float, seats: int) -> None:
    world = replace(TEMPTING, cost=lambda cue, age, action: np.full(len(cue), cost))
    made: Any = {"make": lambda count: Probes(world, seats * count), "most_steps": 1, "reward_range": (0.0, 1.0)}
    with pytest.raises(BadInput, match=r'info\["cost"\]: an episode of tempting cost'):
        EpisodePlayer(env="tempting", seats=seats, **made).play(Taking(), tasks(3), lambda: None)


class Taking(Leaning):
    """Every second one takes, whatever there is."""

    def many(self, count: int) -> Choose:
        return lambda observation, first, /: np.arange(count) % 2


def test_a_return_from_the_threshold_on_counts_as_solved_and_pays_nothing_more() -> None:
    [one] = player(success_at=by_hand(3)).play(Leaning(), tasks(3), lambda: None)
    assert {signal.name: (signal.value, signal.weight) for signal in one.signals} == {
        "return": (by_hand(3), 1.0),
        "success": (1.0, 0.0),
        "safety_cost": (0.0, 0.0),  # it acts in its environment alone
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

    with pytest.raises(BadInput, match="environment .*fails: ZeroDivisionError: no way on"):
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


async def test_what_a_killed_process_still_holds_is_recorded_once_it_is_written_off(file_store: Store) -> None:
    run, outcomes = await run_with(file_store, 2)
    await file_store.queue.claim(run, "killed", now=time.time(), lease_s=60.0, most=1)
    fall_silent(file_store, run)
    await recorded(file_store, run, outcomes)
    assert [one.reward for one in file_store.views.rollouts(run)] == [0.0, 1.0]
    assert [len(file_store.views.attempts(one.id)) for one in file_store.views.rollouts(run)] == [2, 1]


async def test_a_paused_run_records_nothing_until_it_goes_on(file_store: Store) -> None:
    run, outcomes = await run_with(file_store, 1)
    await file_store.runs.want(run, DesiredState.PAUSED, who="test", why="a test", now=time.time())
    going = asyncio.create_task(recorded(file_store, run, outcomes))
    await asyncio.sleep(0.1)
    assert not going.done() and file_store.views.rollouts(run)[0].status is RolloutState.QUEUING
    await file_store.runs.want(run, DesiredState.RUNNING, who="test", why="a test", now=time.time())
    await going
    assert file_store.views.rollouts(run)[0].status is RolloutState.SUCCEEDED


async def test_what_no_step_asked_for_is_cancelled_and_not_made_up(file_store: Store) -> None:
    run, outcomes = await run_with(file_store, 1)
    await file_store.queue.enqueue(run, [Task(name="stray", input=1, step="other")], now=time.time())
    await recorded(file_store, run, outcomes)
    stray = file_store.views.rollout(f"{run}/stray")
    assert (stray.status, stray.reward) == (RolloutState.CANCELLED, None)
