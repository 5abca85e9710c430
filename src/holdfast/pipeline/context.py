"""What the function of a durable step may use, and where the agents of a run are executed (`Runtime`).

Effects in the store are kept until the step is recorded, and share its transaction. A policy is opened before its work
is enqueued; attempts ask for it by the version that their rollout carries. In an experiment about a feature flag a unit
is a task, its user, or a run where learning is the subject; who is exposed is stored before the work begins, so that
work that is lost in one arm shows in the sample ratio.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from holdfast.collect.agent import Score, scored_without
from holdfast.collect.allocation import Allocation
from holdfast.collect.episodes import EpisodePlayer, record
from holdfast.collect.executors import AgentRuntime, Slot
from holdfast.contracts.agent import Agent
from holdfast.contracts.algorithm import Batch, Work
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.errors import BadInput, Fault, IllegalMove, NoSuccess
from holdfast.contracts.executor import Executor, Outcome
from holdfast.contracts.experience import Experience
from holdfast.contracts.flag import (
    ALL_ON,
    ARMS,
    WITHOUT,
    FeatureFlags,
    Features,
    features_without,
    run_unit,
    unit_of,
)
from holdfast.contracts.judgement import Calibration
from holdfast.contracts.policy import Actor, Checkpoint, Policy
from holdfast.contracts.release import ServedRequest
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.rollout import OutcomeKind, Rollout, RolloutState, Task
from holdfast.contracts.run import RunRecord
from holdfast.contracts.spending import SpendLimit, limited_by
from holdfast.contracts.task import TaskItem, task_of
from holdfast.reward.turns import TurnRewards
from holdfast.store.notifications import FINISHED, ROOM
from holdfast.store.sql import Transaction
from holdfast.store.store import Store


class Endpoints:
    """The engine of runs whose models are all behind an address: nothing of ours is loaded."""

    def __init__(self, connect: Callable[[str], Complete | None] = lambda model: None) -> None:
        self.files: Artifacts | None = None
        self._connect = connect

    def open_model(self, policy: Any) -> Complete:
        raise Fault(f"policy {policy.version}", why="its weights are ours, and this run loads none")

    def open_endpoint(self, model: str) -> Complete | None:
        return self._connect(model)

    def close(self) -> None:
        """There is nothing to let go of."""


def no_agent(task: Any, context: Any) -> Any:
    """The agent of runs whose steps do all the work themselves."""
    raise Fault("this run", why="has no agent")


class Runtime:
    """Where the agents of one run are executed in this process, and who answers for its policies."""

    def __init__(
        self,
        agent: Agent,
        score: Score,
        engine: Engine,
        *,
        executor: Callable[[], Executor] | None = None,  # makes one; None: agents run in this process
        proxy_url: str | None = None,
        has_budgets: bool = False,
        player: EpisodePlayer | None = None,  # policies that act in environments play there
        turns: TurnRewards | None = None,  # what is paid for the use of tools; None: nothing
    ) -> None:
        self.engine, self.agent, self.score, self.player = engine, agent, score, player
        scored = {"turn_rewards", *getattr(score, "uses", ())} if player is None else set[str]()
        scored |= {"tool_rewards"} if turns is not None and turns.weights else set()
        self.uses = frozenset(scored | ({"budgets", "adaptive"} if has_budgets else set()))  # features, by their names
        self.tools: Sequence[Mapping[str, Any]] = getattr(agent, "tools", ())  # that tasks may name
        self.turns = replace(turns or TurnRewards(), catalog=self.tools)
        self.is_captured = proxy_url is not None
        self.is_metered = proxy_url is None and executor is None  # else calls are made by others
        self.limit: SpendLimit | None = None  # of what calls may take, from when it is set
        self._actors: dict[str, Actor] = {}
        self._lock = threading.Lock()
        self._home = AgentRuntime(agent, score, self.complete, time.time, proxy_url=proxy_url, has_budgets=has_budgets)
        self._executor = executor or self._home.executor

    def attach(self, files: Artifacts) -> None:
        """The store's artifacts, among which are the checkpoints of policies."""
        self.engine.files = files

    def allocate_by(self, allocation: Allocation) -> None:
        """Attempts from now on get their thinking budgets by it, and not by the table."""
        self._home.allocation = allocation

    def calibrate_by(self, calibrations: Sequence[Calibration]) -> None:
        """Judges in the reward count as these calibrations have it."""
        if (calibrate := getattr(self.score, "calibrate_by", None)) is not None:
            calibrate(calibrations)

    def open(self, policy: Policy) -> Actor:
        """The policy, ready to act: attempts of its version find it from now on."""
        actor = policy.open(self.engine)
        if self.limit is not None and actor.complete is not None:
            actor = replace(actor, complete=limited_by(self.limit, actor.complete))
        with self._lock:
            self._actors[policy.version] = actor
        return actor

    def versions(self) -> list[str]:
        """Lists the versions that are open here; work of other versions is left to the process that opened them."""
        with self._lock:
            return list(self._actors)

    def complete(self, version: str | None) -> Complete | None:
        """Returns the model of a version; an old rollout without a version gets the one that was opened last."""
        with self._lock:
            if version is None:
                return next((actor.complete for actor in reversed(self._actors.values())), None)
            if version not in self._actors:
                why, remedy = "nobody has opened it in this process", "let the process that drives the run do this work"
                raise Fault(f"policy {version}", why=why, remedy=remedy)
            return self._actors[version].complete

    def check(self, features: Features) -> None:
        """BadInput where the scorers cannot do without a feature that is off."""
        scored_without(self.score, features)

    async def check_reachable(self) -> None:
        """BadInput where the model of a policy is behind an address at which nobody listens."""
        with self._lock:
            found = [getattr(actor.complete, "check_reachable", None) for actor in self._actors.values()]
        for check in dict.fromkeys(filter(None, found)):
            await check()

    def slot(self) -> Slot:
        return Slot(self._executor())

    def close(self) -> None:
        self._home.close()
        self.engine.close()


CHUNK = 500
FIRST = 16  # rollouts of a run: where they all fail by one error, nothing that follows is likely to do better
SAFETY = "safety_cost"  # a signal of this name is the cost, and is never paid


def check_first(store: Store, run: str) -> bool:
    """Whether enough has ended to see that the run works; NoSuccess where all of it has failed by the same error."""
    counts = store.views.counts(run)
    if counts[RolloutState.SUCCEEDED]:
        return True
    ends = (RolloutState.FAILED, RolloutState.DEAD)
    if sum(counts[state] for state in ends) < FIRST:
        return False
    failed = [rollout for state in ends for rollout in store.views.rollouts(run, status=state, most=FIRST)]
    whys = {re.sub(r" \(attempt .*", "", str(rollout.reason)).removeprefix("failed: ") for rollout in failed}
    if len({re.sub(r"\d+", "0", why) for why in whys}) > 1:
        return True
    first = failed[0]
    why, task = min(whys), task_of(first.input)
    given = task.input if isinstance(task, TaskItem) else task
    if "KeyError" in why and isinstance(given, Mapping):
        why += f"; the first task has {', '.join(repr(key) for key in given)}"
    remedy = f"mend the agent, the scorers or the tasks, and start anew; 'holdfast run spans {first.id}' shows one try"
    raise NoSuccess("no rollout succeeded", why=f"the first {len(failed)} all failed by {why}", remedy=remedy)


class Pacing(Protocol):
    """What steps take from a run's spec."""

    @property
    def seed(self) -> int: ...
    @property
    def max_faults(self) -> int: ...
    @property
    def look_s(self) -> float: ...
    @property
    def runtime(self) -> Runtime: ...


class Driven(Protocol):
    """The run that a step belongs to, as the step sees it."""

    store: Store
    planned: int
    is_sound: bool  # its first rollouts did not all fail by one error
    resources_id: str | None
    who: str

    @property
    def id(self) -> str: ...
    @property
    def spec(self) -> Pacing: ...
    @property
    def record(self) -> RunRecord: ...
    def clock(self) -> float: ...
    def flags(self) -> FeatureFlags: ...
    def check(self) -> None: ...
    async def go_on(self) -> None: ...


class StepContext:
    """What the function of one step may use."""

    def __init__(self, run: Driven, name: str, *, is_again: bool = False) -> None:
        self._run, self.name = run, name
        self._is_again = is_again  # what it made is damaged, and is made anew
        self.run, self.who, self.driver, self.now = run.id, run.who, run.record.driver, run.clock
        self.store, self.folder, self.files = run.store, run.store.folder, run.store.files
        self.seed, self.score = run.spec.seed, run.spec.runtime.score
        self.effects: list[Callable[[Transaction], None]] = []
        self.held_s = 0.0  # waited for a paused run

    @property
    def features(self) -> Features:
        """The features of the run now; all of them while a step that has learnt is recomputed."""
        return ALL_ON if self._is_again else self._run.flags().features(run_unit(self.run))

    @property
    def setup(self) -> tuple[Any, ...]:
        """What a try depends on besides its task and policy: the agent, the scorer, and where episodes are played."""
        runtime = self._run.spec.runtime
        return (runtime.agent, runtime.score, runtime.player)

    def open(self, policy: Policy) -> Actor:
        """The policy, ready to act."""
        return self._run.spec.runtime.open(policy)

    def check(self) -> None:
        """Between two pieces of work in a thread: waits while the run is paused, Interrupted once it is to end."""
        began = time.monotonic()
        self._run.check()
        self.held_s += time.monotonic() - began

    async def go_on(self) -> None:
        """Waits as `check` does, on the event loop."""
        await self._run.go_on()

    # Rollouts --------------------------------------------------------------------------------------------------------

    async def collect(self, work: Sequence[Work], *, max_attempts: int, timeout_s: float | None) -> Batch:
        """Run the work to its end: each rollout is answered, has failed, or is given up. What is there is not doubled.

        Every policy is opened first: after a restart nobody has loaded it yet."""
        resources: dict[int, int | None] = {}  # by identity: policies may share their weights, and so their version
        actors: dict[int, Actor] = {}
        for policy in {id(one.policy): one.policy for one in work}.values():
            actor = actors[id(policy)] = await asyncio.to_thread(self._run.spec.runtime.open, policy)
            resources[id(policy)] = await self._published(actor.resources)
        tasks = [self._task(one, resources[id(one.policy)], max_attempts, timeout_s) for one in work]
        tasks = await asyncio.to_thread(self._by_unit, tasks)
        player, look_s = self._run.spec.runtime.player, self._run.spec.look_s
        if player is None:
            await self._feed(tasks)
            await self._until_done()
        else:
            played = await asyncio.to_thread(self._play, player, work, actors)
            await self._feed(tasks)
            now = self.now
            await record(self.store, self.run, self.name, played, clock=now, go_on=self.go_on, wait_s=look_s)
        if any(ARMS in task.metadata for task in tasks):
            await tell_outcomes(self.store, self.store.views.of_step(self.run, self.name))
        await self.go_on()  # over because the rest was cancelled: nothing to learn from
        return Batch(run=self.run, step=self.name, count=len(tasks))

    def _by_unit(self, tasks: Sequence[Task]) -> list[Task]:
        """Marks each task with the features that its unit does not get, and with its arms of experiments.

        The marks are stored before anything runs, and a task that is in the store keeps its own: a flag that was
        changed while the run was down counts from the next task on."""
        runtime, flags = self._run.spec.runtime, self._run.flags()
        alike, exposed, checked = flags.everybody(), dict[tuple[str, str], str](), {ALL_ON}
        kept = {rollout.name: rollout.metadata for rollout in self.store.views.of_step(self.run, self.name)}
        marked = []
        for task in tasks:
            unit = "" if alike is not None else unit_of(task.input)
            if (before := kept.get(task.name)) is not None:
                off, arms = before.get(WITHOUT, []), before.get(ARMS, {})
            else:
                off = [name for name in (alike or flags.features(unit)).off if name in runtime.uses]
                arms = {} if alike is not None else dict(flags.exposures(unit, runtime.uses))
                exposed |= {(trial, unit): arm for trial, arm in arms.items()}
            if off and (features := features_without(off)) not in checked:
                runtime.check(features)
                checked.add(features)
            found = {name: value for name, value in ((WITHOUT, off), (ARMS, arms)) if value}
            marked.append(replace(task, metadata={**task.metadata, **found}) if found else task)
        expose(self.store, exposed, now=self.now())
        return marked

    def _play(self, player: EpisodePlayer, work: Sequence[Work], actors: Mapping[int, Actor]) -> dict[str, Outcome]:
        """Episodes in environments, by the name of each; whole before any of them is recorded."""
        found: dict[str, Outcome] = {}
        for key, actor in actors.items():
            own = [one for one in work if id(one.policy) == key]
            if actor.act is None:
                why, remedy = "acts in no environment", "give hf.Network()"
                raise BadInput(f"policy {actor.version}", why=why, remedy=remedy)
            played = player.play(actor.act, [work.input for work in own], self.check)
            found |= {work.name: outcome for work, outcome in zip(own, played, strict=True)}
        return found

    async def _published(self, resources: Mapping[str, Any]) -> int | None:
        """The version of a policy's resources: there before anything runs on it."""
        if not resources:
            return None
        version = await self.store.versions.publish(resources, now=self.now())
        self._run.resources_id = version.id
        return version.version

    def _task(self, work: Work, resources: int | None, max_attempts: int, timeout_s: float | None) -> Task:
        metadata: dict[str, Any] = {}
        if work.group != work.name:
            metadata["group"] = work.group
        if work.seed is not None:
            metadata["seed"] = work.seed
        return Task(
            name=work.name,
            input=work.input,
            split=work.split,
            max_attempts=max_attempts,
            timeout_s=timeout_s,
            resources=resources,
            metadata=metadata,
            max_faults=self._run.spec.max_faults,
            step=self.name,
            version=work.policy.version,
        )

    async def _feed(self, tasks: Sequence[Task]) -> None:
        """Put every task in, waiting for room where the queue is bounded. Those a resumed run has are not doubled."""
        store, place = self.store, 0
        while place < len(tasks):
            seen = store.changes.seen(ROOM)
            chunk = tasks[place : place + CHUNK]
            taken = await store.queue.enqueue(self.run, chunk, now=self.now(), up_to=True)
            place += taken
            if taken < len(chunk):
                await store.changes.moved(ROOM, seen)

    async def _until_done(self) -> None:
        while True:
            seen = self.store.changes.seen(FINISHED)
            if self.store.views.is_done(self.run, step=self.name):
                return
            await self.store.changes.moved(FINISHED, seen)
            limit = self._run.spec.runtime.limit
            if limit is not None and (refusal := limit.refusal) is not None:
                raise NoSuccess(refusal.what, why=refusal.why, remedy=refusal.remedy)
            if not self._run.is_sound:
                self._run.is_sound = await asyncio.to_thread(check_first, self.store, self.run)
            await asyncio.sleep(self._run.spec.look_s)

    def experiences(self, batch: Batch) -> list[Experience]:
        """Reads the experiences of a batch in the order of the work; undecided rollouts are left out."""
        if batch.ids is not None:
            ids: list[str] = json.loads(self.store.blobs.get(batch.ids))
        else:
            ids = [rollout.id for rollout in self.store.views.of_step(batch.run, batch.step)]
        return [self._with_costs(experience) for experience in self.store.experiences.of(ids)]

    def _with_costs(self, one: Experience) -> Experience:
        """An agent that failed is no safer for that: what its score says of what it did until then is measured here."""
        costs = getattr(self._run.spec.runtime.score, "costs", None)
        signals = () if one.breakdown is None else one.breakdown.signals
        if costs is None or one.state is not RolloutState.FAILED or any(s.name == SAFETY for s in signals):
            return one
        return replace(one, breakdown=RewardBreakdown(signals=(*signals, *costs(one.input, one.spans))))

    # What is kept ----------------------------------------------------------------------------------------------------

    def save(self, value: Any) -> str:
        """Data that is too large for a step's result, as a blob: its hash."""
        text = json.dumps(value, allow_nan=False, sort_keys=True, separators=(",", ":"))
        return self.store.blobs.put(text.encode(), now=self.now())

    def read(self, sha256: str) -> Any:
        return json.loads(self.store.blobs.get(sha256))

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Recorded together with the step; its files are on disk already."""
        known = {checkpoint.id for checkpoint in self.store.checkpoints.of_run(self.run)}
        if checkpoint.id not in known:
            self.effects.append(self.store.checkpoints.adding(checkpoint, self.run, now=self.now()))


# Runs as the traffic of experiments ----------------------------------------------------------------------------------


def expose(store: Store, units: Mapping[tuple[str, str], str], *, now: float) -> None:
    """Keep who was given which arm, by experiment and unit; one that ended meanwhile takes nobody more."""
    for write in [store.trials.expose(trial, unit, arm, now=now) for (trial, unit), arm in units.items()]:
        with suppress(IllegalMove):
            write.result()


async def tell_outcomes(store: Store, rollouts: Iterable[Rollout]) -> None:
    """Records the outcome of each rollout for every experiment of its unit; repeating it is harmless."""
    served = [
        ServedRequest(
            id=f"{rollout.id}@{trial}",
            trial=trial,
            arm=arm,
            unit=unit_of(rollout.input),
            at=rollout.ended_at,
            error=rollout.status is not RolloutState.SUCCEEDED,
            latency_s=None if rollout.started_at is None else max(0.0, rollout.ended_at - rollout.started_at),
            success={"right": 1.0, "wrong": 0.0}.get(str(rollout.outcome)),
            reward=rollout.reward,
        )
        for rollout in rollouts
        if rollout.ended_at is not None and rollout.status is not RolloutState.CANCELLED
        for trial, arm in rollout.metadata.get(ARMS, {}).items()
    ]
    if served:
        await store.trials.record(served)


async def tell_run(store: Store, arms: Mapping[str, str], run: str, *, now: float) -> None:
    """Records the outcome of a run that is itself a unit: its share of right answers and its mean reward."""
    if not arms:
        return
    counts, rewards = store.views.outcomes(run), store.views.rewards(run).values()
    right, wrong = counts[OutcomeKind.RIGHT], counts[OutcomeKind.WRONG] + counts[OutcomeKind.FAILED]
    paid = sum(reward.rewarded for reward in rewards)
    payload: dict[str, Any] = {
        "success": right / (right + wrong) if right + wrong else None,
        "reward": sum((reward.mean_reward or 0.0) * reward.rewarded for reward in rewards) / paid if paid else None,
    }
    served = [
        ServedRequest(id=f"{run}@{trial}", trial=trial, arm=arm, unit=run_unit(run), at=now, **payload)
        for trial, arm in arms.items()
    ]
    await store.trials.record(served)
