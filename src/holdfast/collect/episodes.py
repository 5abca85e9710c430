"""Episodes in environments: played by a version of a network, many side by side, and recorded as rollouts.

A rollout is claimed only after its episode was played, so a killed process leaves none behind. The same seeds, played
in the same groups, give the same episodes.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

import numpy as np

from holdfast.collect.executors import Clock
from holdfast.contracts.envs import Choose, Observation, VectorEnv
from holdfast.contracts.errors import BadInput, boundary
from holdfast.contracts.executor import Outcome
from holdfast.contracts.policy import Act
from holdfast.contracts.reward import RewardTerm, outcome_of
from holdfast.contracts.rollout import AttemptState, Claim
from holdfast.store.store import Store

SIDE_BY_SIDE = 64
LEASE_S = 10.0  # long enough to write finished episodes
CHUNK = 500
MAX_COST = 1.0  # of an episode as a proof counts it, whatever its steps cost
GROUPS = "groups"  # in an episode's output: the mean return of each group of its seats, where the environment names any


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePlayer:
    """Plays whole episodes, each with the seed in its task: `{"env": …, "seed": …}`."""

    env: str  # its name
    make: Callable[[int], VectorEnv]  # so many of them; the i-th is seeded with seed + i
    most_steps: int  # of an episode, after which it is cut
    reward_range: tuple[float, float]  # the range of an episode's return
    success_at: float | None = None  # the return from which an episode counts as solved, if known
    is_clipped: bool = False  # whether a return outside the range counts as its nearer end, or is an error
    seats: int = 1  # who act in one environment; with several, the return is their mean over all of `most_steps`

    def play(self, act: Act, tasks: Sequence[Mapping[str, Any]], check: Callable[[], None]) -> list[Outcome]:
        """The episodes of one version, in the order of the tasks. `check` is called between pieces."""
        seeds = [int(task["seed"]) for task in tasks]
        found: dict[int, Outcome] = {}
        for block in _blocks(sorted(set(seeds))):
            check()
            with boundary(BadInput, f"environment {self.env}"):
                found |= zip(block, self._play(act, block), strict=True)
        return [found[seed] for seed in seeds]

    def _play(self, act: Act, seeds: range) -> list[Outcome]:
        count = len(seeds)
        envs, choose = self.make(count), act.many(count * self.seats)
        observation = envs.reset(seeds[0])
        if self.seats > 1:
            return self._play_seats(envs, choose, observation, count)
        first, running = np.ones(count, np.bool_), np.ones(count, np.bool_)
        returns, steps, terminated = np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.bool_)
        costs: Any = None
        for _ in range(self.most_steps):
            result = envs.step(choose(observation, first))
            returns[running] += result.reward[running]
            if result.cost is not None:
                costs = (0.0 if costs is None else costs) + np.where(running, result.cost, 0.0)
            steps += running
            terminated |= running & result.terminated
            observation, first = result.observation, result.terminated | result.truncated
            running &= ~first
            if not running.any():
                break
        close = getattr(envs, "close", None)
        if close is not None:
            close()
        paid = [None] * count if costs is None else costs
        return [self._outcome(*each) for each in zip(returns, steps, terminated, paid, strict=True)]

    def _play_seats(self, envs: VectorEnv, choose: Choose, observation: Observation, count: int) -> list[Outcome]:
        """Who has to leave is replaced, and the place goes on: an episode is over when its time is, or when the
        environments say that nobody is left."""
        first, returns = np.ones(envs.count, np.bool_), np.zeros(envs.count)
        costs: Any = None
        groups = envs.seat_groups() if hasattr(envs, "seat_groups") else None  # of who is there at first
        is_over = getattr(envs, "is_over", lambda: False)
        for _ in range(self.most_steps):
            if is_over():
                break
            result = envs.step(choose(observation, first))
            returns += result.reward
            if result.cost is not None:
                costs = (0.0 if costs is None else costs) + result.cost
            observation, first = result.observation, result.terminated | result.truncated
        seats = returns.reshape(count, self.seats)
        named = [{}] * count if groups is None else _by_group(seats, groups.reshape(count, self.seats))
        paid = [None] * count if costs is None else costs.reshape(count, self.seats).mean(1)
        return [
            self._outcome(own.mean(), self.most_steps, False, cost, more)
            for own, cost, more in zip(seats, paid, named, strict=True)
        ]

    def _outcome(
        self, total: Any, steps: Any, terminated: Any, cost: Any, more: Mapping[str, Any] | None = None
    ) -> Outcome:
        raw, (low, high) = float(total), self.reward_range
        value = min(max(raw, low), high) if self.is_clipped and isfinite(raw) else raw
        if not low <= value <= high:  # NaN fails, too
            why = f"an episode of {self.env} returned {value:g}"
            raise BadInput(f"reward_range = {low:g} to {high:g}", why=why, remedy="name all that a return can be")
        # Where the environment tells no costs: a network tells no secrets, reads no orders and calls no tools.
        spent, source = (0.0, "env:acts_only") if cost is None else (min(float(cost), MAX_COST), "env:cost")
        if cost is not None and not 0.0 <= float(cost) < inf:  # NaN fails, too
            why = f"an episode of {self.env} cost {float(cost):g}"
            raise BadInput('info["cost"]', why=why, remedy="give what a step costs as a finite number, not below 0")
        safety = RewardTerm(name="safety_cost", value=spent, weight=0.0, source=source)
        signals = [RewardTerm(name="return", value=value, source="env"), safety]
        if self.success_at is not None:
            solved = float(value >= self.success_at)
            signals.append(RewardTerm(name="success", value=solved, weight=0.0, source="env:threshold"))
        output = {"return": raw, "steps": int(steps), "ended": "terminated" if terminated else "truncated"}
        output |= {} if cost is None else {"cost": float(cost)}
        output |= more or {}
        return Outcome(state=AttemptState.SUCCEEDED, output=output, signals=tuple(signals))


def _by_group(returns: Any, groups: Any) -> list[dict[str, Any]]:
    """The mean return of each group of seats, for each environment."""
    return [
        {GROUPS: {str(name): float(own[names == name].mean()) for name in np.unique(names)}}
        for own, names in zip(returns, groups, strict=True)
    ]


def _blocks(seeds: Sequence[int]) -> list[range]:
    """Runs of consecutive seeds, at most SIDE_BY_SIDE each."""
    blocks: list[range] = []
    for seed in seeds:
        if blocks and seed == blocks[-1].stop and len(blocks[-1]) < SIDE_BY_SIDE:
            blocks[-1] = range(blocks[-1].start, seed + 1)
        else:
            blocks.append(range(seed, seed + 1))
    return blocks


async def record(
    store: Store,
    run: str,
    step: str,
    outcomes: Mapping[str, Outcome],  # by the rollout's name
    *,
    clock: Clock,
    go_on: Callable[[], Awaitable[None]],
    wait_s: float,
) -> None:
    """Finishes a step's queued rollouts with their outcomes; finished ones stay."""
    worker = f"{socket.gethostname()}-{os.getpid()}-episodes"
    while not await asyncio.to_thread(store.views.is_done, run, step=step):
        claims = await store.queue.claim(run, worker, now=clock(), lease_s=LEASE_S, most=CHUNK)
        await _finish(store, claims, outcomes, clock())
        if not claims:  # the run is paused, or a killed process still holds some
            await go_on()
            await asyncio.sleep(wait_s)


async def _finish(store: Store, claims: Sequence[Claim], outcomes: Mapping[str, Outcome], now: float) -> None:
    writes: list[Any] = []
    for claim in claims:
        outcome = outcomes.get(claim.rollout.name)
        if outcome is None:
            writes.append(store.queue.cancel(claim.rollout.id, now=now, why="no step asks for it"))
            continue
        scored = store.traces.score(claim.attempt, outcome.signals, now=now)
        ended = store.queue.finish(
            claim.attempt,
            outcome.state,
            now=now,
            reward=outcome.reward,
            outcome=outcome_of(outcome.signals),
            output=outcome.output,
            after=[scored],
        )
        writes += [scored, ended]
    for write in writes:
        await write
