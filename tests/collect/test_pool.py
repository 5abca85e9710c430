"""The pool: it claims what it can seat, keeps it alive, obeys, and leaves nothing behind, whatever its agents do."""

from __future__ import annotations

import asyncio
import errno
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect import pool as pool_module
from holdfast.collect.agent import Context, OneModel, no_model
from holdfast.collect.client import Client
from holdfast.collect.executors import AgentRuntime, Slot
from holdfast.collect.pool import STARTS, Pool, PoolStats
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.budget import Mode
from holdfast.contracts.errors import Fault, Killed, StoreError
from holdfast.contracts.rollout import AttemptState, Backoff, RolloutState, Split
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import ModelCall
from holdfast.store.check import check
from holdfast.store.store import Store, open_store
from tests.collect.agents import no_score, ones
from tests.collect.scene import PACE, PATIENCE_S, Bench, until
from tests.endpoint import serving

LIMITED = replace(PACE, lease_s=6.0)  # for tasks with a limit below it: that one comes first, and is looked for often


async def echo(task: Any, context: Context) -> Any:
    return task


class Gate:
    """An agent that says when it has begun, and ends when it is let go."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.begun: list[str] = []
        self.cancelled: list[str] = []
        self.let_go = threading.Event()

    async def __call__(self, task: Any, context: Context) -> Any:
        name = context.assignment.attempt.partition("/")[2]
        self.begun.append(name)
        self.running[name] += 1
        try:
            while not self.let_go.is_set():  # noqa: ASYNC110 - the test is on another event loop
                await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self.running[name] -= 1
        return task

    @property
    def now_running(self) -> int:
        return self.running.total()


async def begun(bench: Bench, tasks: int, size: int, **how: Any) -> tuple[Gate, Pool, asyncio.Task[PoolStats]]:
    """A pool that has taken up as many tasks as it has slots."""
    gate = Gate()
    bench.enqueue(*range(tasks), **how.pop("fields", {}))
    pool = bench.pool(gate, size, **how)
    working = asyncio.create_task(pool.work())
    await until(lambda: gate.now_running == size)
    return gate, pool, working


async def worked_off(bench: Bench, pool: Pool, working: asyncio.Task[PoolStats]) -> PoolStats:
    await until(lambda: bench.store.views.is_done(bench.run))
    pool.drain()
    return await working


# Faults that are no try


class Watch:
    """The time, which jumps when told: what a process sees that was paused."""

    ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead_s


async def test_a_process_that_is_paused_again_and_again_goes_on_where_it_was(bench: Bench) -> None:
    gate, watch = Gate(), Watch()
    names = bench.enqueue(*range(4), max_attempts=1)
    pool = bench.pool(gate, 4, clock=watch)
    working = asyncio.create_task(pool.work())
    await until(lambda: gate.now_running == 4)
    for _ in range(6):
        watch.ahead_s += 1.5 * PACE.lease_s
        before = bench.attempts(names[0])[0].beat_at
        await until(lambda: bench.attempts(names[0])[0].beat_at > before + PACE.lease_s)  # noqa: B023
    gate.let_go.set()
    await worked_off(bench, pool, working)
    assert [bench.states(name) for name in names] == [["succeeded"]] * 4


async def test_a_child_killed_while_it_starts_does_not_end_the_run(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = list[int]()
    start = multiprocessing.process.BaseProcess.start

    def start_and_kill(child: Any) -> None:
        start(child)
        if len(killed) < 2:
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_and_kill)
    names = bench.enqueue({"do": "tell"}, {"do": "tell"})
    recipe = ProcessRecipe("tests.collect.agents:do", no_score, no_model)
    await bench.work_off(bench.pool_of(lambda: Slot(ProcessExecutor(recipe)), 1))
    assert len(killed) == 2
    assert [bench.states(name) for name in names] == [["succeeded"]] * 2


@pytest.mark.parametrize("failing", [2, 99])
async def test_where_no_process_is_to_be_had_it_is_tried_again_and_then_told(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    failed, start = list[int](), multiprocessing.process.BaseProcess.start

    def start_or_fail(child: Any) -> None:
        if len(failed) < failing:
            failed.append(1)
            raise OSError(errno.EMFILE, "Too many open files")
        start(child)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_or_fail)
    monkeypatch.setattr(Backoff, "delay_s", lambda *_: 0.0)
    (name,) = bench.enqueue({"do": "tell"})
    pool = bench.pool_of(lambda: Slot(ProcessExecutor(ProcessRecipe("tests.collect.agents:do", no_score, no_model))), 1)
    if failing > STARTS:
        with pytest.raises(Killed, match="cannot be started: Too many open files; take fewer workers"):
            await bench.work_off(pool)
        return
    await bench.work_off(pool)
    assert bench.states(name) == ["succeeded"]


# Working off


async def test_every_task_is_done_once_with_its_spans_reward_and_answer(bench: Bench) -> None:
    names = bench.enqueue(*[{"n": n} for n in range(30)], split=Split.TRAIN)
    tally = await bench.work_off(bench.pool(echo, 4, score=ones))
    assert (tally.claimed, tally.succeeded, tally.failed, tally.interrupted) == (30, 30, 0, 0)
    for n, name in enumerate(names):
        (attempt,) = bench.attempts(name)
        rollout = bench.rollout(name)
        assert (rollout.status, rollout.reward, rollout.final_attempt) == (RolloutState.SUCCEEDED, 1.0, attempt.id)
        assert bench.output(name) == {"n": n}
        assert [span.name for span in bench.store.traces.spans(attempt.token)] == ["agent.run"]
        assert [signal.name for signal in bench.store.traces.breakdown(attempt.token).signals] == ["one"]
    assert bench.store.views.rewards(bench.run)["train"].mean_reward == 1.0


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_as_many_agents_run_at_once_as_there_are_seats(file_bench: Bench, kind: str) -> None:
    together = threading.Barrier(8)
    met = asyncio.Barrier(8) if kind == "async" else None

    async def meeting(task: Any, context: Context) -> str:
        assert met is not None
        async with met:
            return "met"

    def plain(task: Any, context: Context) -> str:
        together.wait(PATIENCE_S)
        return "met"

    file_bench.enqueue(*range(16))
    tally = await file_bench.work_off(file_bench.pool(meeting if kind == "async" else plain, 8))
    assert tally.succeeded == 16


async def test_free_seats_are_filled_by_one_claim(file_bench: Bench) -> None:
    gate, pool, working = await begun(file_bench, 8, 8)
    gate.let_go.set()
    await worked_off(file_bench, pool, working)
    started = {file_bench.attempts(f"t{n}")[0].started_at for n in range(1, 9)}
    assert len(started) <= 2  # seats may become ready in two steps, and not in eight


async def test_a_pool_takes_up_what_is_enqueued_while_it_waits(bench: Bench) -> None:
    pool = bench.pool(echo)
    working = asyncio.create_task(pool.work())
    await asyncio.sleep(0.2)
    bench.enqueue("late")
    assert (await worked_off(bench, pool, working)).succeeded == 1


async def test_two_pools_share_a_run_and_do_nothing_twice(bench: Bench) -> None:
    bench.enqueue(*range(60))
    first, second = bench.pool(echo, 3), bench.pool(echo, 3)
    working = [asyncio.create_task(pool.work()) for pool in (first, second)]
    await until(lambda: bench.store.views.is_done(bench.run))
    for pool in (first, second):
        pool.drain()
    tallies = await asyncio.gather(*working)
    assert sum(tally.succeeded for tally in tallies) == sum(tally.claimed for tally in tallies) == 60
    assert all(len(bench.attempts(f"t{n}")) == 1 for n in range(1, 61))


async def test_a_pool_is_listed_while_it_works_and_says_when_it_stopped(file_bench: Bench) -> None:
    pool = file_bench.pool(echo, 3)
    working = asyncio.create_task(pool.work())
    await until(file_bench.store.workers.newest)
    (worker,) = file_bench.store.workers.newest()
    assert (worker.id, worker.slots, worker.stopped_at) == (pool.worker, 3, None)
    await until(lambda: file_bench.store.workers.newest()[0].beat_at > worker.started_at)
    pool.drain()
    await working
    assert file_bench.store.workers.newest()[0].stopped_at is not None


async def test_any_text_of_an_agent_can_be_kept(bench: Bench) -> None:
    async def agent(task: Any, context: Context) -> Any:
        text = task[0]
        context.trace.event("said", text=text)
        if len(task) > 1:
            raise ValueError(text)
        return {"text": text, text: 1}

    texts = ["nul \x00 inside", "half \ud83d a pair", "é – ∑ 🌊", "two\nlines\t"]
    bench.enqueue(*([text] for text in texts), *([text, "raise"] for text in texts), max_attempts=1)
    await bench.work_off(bench.pool(agent))
    for n, text in enumerate(texts, 1):
        assert bench.output(f"t{n}") == {"text": text, text: 1}
        assert bench.store.traces.spans(bench.attempts(f"t{n}")[0].token)[1].attributes["text"] == text
        assert bench.rollout(f"t{n + 4}").status is RolloutState.FAILED
        assert (bench.attempts(f"t{n + 4}")[0].error or "").startswith("ValueError: ")


async def test_what_no_store_can_keep_is_the_agents_failure_and_nobody_elses(file_bench: Bench) -> None:
    odd = {"digits": 10**5000, "nan": float("nan"), "object": object()}

    async def agent(task: Any, context: Context) -> str:
        if task in odd:
            context.trace.event("look", found=odd[task])
        return "fine"

    file_bench.enqueue(*odd, "even", max_attempts=1)
    await file_bench.work_off(file_bench.pool(agent))
    ended = [str(file_bench.rollout(f"t{n}").status) for n in (1, 2, 3, 4)]
    assert ended == ["failed", "failed", "failed", "succeeded"]


# What an agent is given


async def seeds(bench: Bench, *, seed: int) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}

    async def failing(task: Any, context: Context) -> None:
        name = context.assignment.rollout.partition("/")[2]
        found.setdefault(name, []).append(context.assignment.seed)
        raise ValueError

    bench.enqueue("a", "b", max_attempts=2)
    await bench.work_off(bench.pool(failing, seed=seed))
    return found


async def test_every_attempt_has_its_own_random_key_and_the_same_one_in_every_run(file_store: Store) -> None:
    first, again, other = Bench(file_store), Bench(file_store), Bench(file_store)
    found = await seeds(first, seed=1)
    assert found == await seeds(again, seed=1)
    assert len({*found["t1"], *found["t2"]}) == 4
    assert not {*found["t1"], *found["t2"]} & set(itertools.chain(*(await seeds(other, seed=2)).values()))
    assert all(0 <= seed < 2**64 for seed in found["t1"])
    for bench in (first, again, other):
        bench.close()


async def shown(task: Any, context: Context) -> Any:
    return [dict(context.resources), context.assignment.split, context.assignment.number]


async def test_an_agent_gets_the_resources_in_force_and_keeps_its_changes_to_itself(file_bench: Bench) -> None:
    version = file_bench.store.versions.publish({"prompt": "brief", "shots": [1]}, now=time.time()).result()
    seen: list[Any] = []

    async def agent(task: Any, context: Context) -> None:
        seen.append({"prompt": context.resources["prompt"], "shots": list(context.resources["shots"])})
        context.resources["prompt"] = "mine"  # type: ignore[index]
        context.resources["shots"].append(2)

    file_bench.enqueue("a", "b", resources=version.version)
    await file_bench.work_off(file_bench.pool(agent, 1))
    assert seen == [{"prompt": "brief", "shots": [1]}] * 2
    plain = Bench(file_bench.store)
    plain.enqueue("a")  # without a version there are none
    await plain.work_off(plain.pool(shown))
    plain.close()
    assert plain.output() == [{}, None, 1]


# Failing


async def test_a_failing_agent_is_tried_again_and_then_has_failed(file_bench: Bench) -> None:
    async def failing(task: Any, context: Context) -> None:
        raise ValueError(f"try {context.assignment.number}")

    file_bench.enqueue("a", max_attempts=2)
    tally = await file_bench.work_off(file_bench.pool(failing, score=ones))
    assert file_bench.states() == ["failed", "failed"]
    rollout = file_bench.rollout()
    assert (rollout.status, rollout.reward) == (RolloutState.FAILED, None)
    line = failing.__code__.co_firstlineno + 1
    assert rollout.reason == f"failed: ValueError: try 2 (test_pool.py:{line}, in failing) (attempt 2 of 2)"
    assert tally.failed == 2


async def test_a_scorer_that_fails_leaves_the_reward_missing(file_bench: Bench) -> None:
    def broken(*arguments: Any) -> Any:
        raise ValueError("no judge")

    file_bench.enqueue("a", max_attempts=1, max_faults=1)  # a fault of ours uses up no try of the agent's
    await file_bench.work_off(file_bench.pool(echo, score=broken))
    assert file_bench.states() == ["fault", "fault"]
    rollout = file_bench.rollout()
    assert (rollout.status, rollout.reward) == (RolloutState.DEAD, None)
    line = broken.__code__.co_firstlineno + 1
    where = f"(test_pool.py:{line}, in broken)"
    assert rollout.reason == f"fault: scoring: ValueError: no judge {where} (interrupted 2 times)"


# Time


@pytest.mark.parametrize("kind", ["blocks its loop", "spins in its thread"])
async def test_a_lease_is_renewed_while_its_agent_blocks(file_bench: Bench, kind: str) -> None:
    begun, over = threading.Event(), threading.Event()

    async def blocking(task: Any, context: Context) -> str:
        begun.set()
        over.wait(PATIENCE_S)
        return "done"

    def spinning(task: Any, context: Context) -> str:
        begun.set()
        while not over.is_set():
            pass
        return "done"

    file_bench.enqueue("a")
    agent = blocking if kind == "blocks its loop" else spinning
    working = asyncio.create_task(file_bench.work_off(file_bench.pool(agent)))
    try:
        await until(begun.is_set)
        for _ in range(3):
            (before,) = file_bench.attempts()
            await until(lambda before=before: file_bench.attempts()[0].lease_until > before.lease_until)
    finally:
        over.set()
    await working
    assert file_bench.states() == ["succeeded"]


async def test_an_attempt_over_its_limit_times_out_is_tried_again_and_then_given_up(file_bench: Bench) -> None:
    gate = Gate()
    file_bench.enqueue("a", max_attempts=2, timeout_s=0.4)
    await file_bench.work_off(file_bench.pool(gate, score=ones, pace=LIMITED))
    assert gate.cancelled == ["t1:attempt-1", "t1:attempt-2"]
    assert file_bench.states() == ["timeout", "timeout"]
    rollout = file_bench.rollout()
    assert (rollout.status, rollout.reward) == (RolloutState.FAILED, None)
    assert rollout.reason == "timeout: reached its wall-clock limit (attempt 2 of 2)"


async def test_a_clock_that_is_set_back_gives_no_attempt_more_time(
    file_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_module, "LAST_LOOK_S", 0.1)
    gate, watch = Gate(), Watch()
    file_bench.enqueue("a", max_attempts=1, timeout_s=2.0)
    pool = file_bench.pool(gate, score=ones, pace=replace(PACE, lease_s=2.5), clock=watch)
    working = asyncio.create_task(file_bench.work_off(pool))
    await until(lambda: gate.now_running == 1)
    watch.ahead_s = -7200.0
    await working
    assert file_bench.states()[-1] == "timeout"  # what the jump itself ended is no try of the agent's


@pytest.fixture
def early_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LAST_LOOK_S", 0.25)


@pytest.mark.usefixtures("early_look", "short_grace", "untraced")
async def test_the_victim_of_a_blocked_loop_is_handed_back_and_it_does_not_count(file_bench: Bench) -> None:
    release = threading.Event()
    both = asyncio.Barrier(2)

    async def agent(task: Any, context: Context) -> str:
        if context.assignment.number == 1:
            async with both:
                pass
            if task == "blocks":
                release.wait(PATIENCE_S)
            await asyncio.sleep(PATIENCE_S)
        return "in the end"

    file_bench.enqueue("blocks", "waits", max_attempts=2, timeout_s=3.0)
    await file_bench.work_off(file_bench.pool(agent, 2, pace=LIMITED))
    release.set()
    assert file_bench.states("t1") == ["timeout", "succeeded"]
    assert file_bench.states("t2") == ["released", "succeeded"]
    assert file_bench.attempts("t2")[0].error == "kept from running by another agent"
    assert (file_bench.rollout("t1").faults, file_bench.rollout("t2").faults) == (1, 0)


@pytest.mark.parametrize("because", ["the run is paused", "all seats are taken"])
async def test_a_retry_that_could_not_be_taken_up_is_as_soon_as_it_can(file_bench: Bench, because: str) -> None:
    gate, queue = Gate(), file_bench.store.queue
    file_bench.enqueue("fails", "waits", max_attempts=2)
    (claim,) = await queue.claim(file_bench.run, "other", now=time.time(), lease_s=600)
    pace = pool_module.PoolTiming(heartbeat_s=0.05, lease_s=60.0, idle_s=10 * PATIENCE_S)  # it never looks just so
    pool = file_bench.pool(gate, 1, pace=pace)
    working = asyncio.create_task(pool.work())
    await until(lambda: gate.now_running == 1)
    soon = Backoff(initial_s=0.2, cap_s=0.2)
    await queue.finish(claim.attempt, AttemptState.FAILED, now=time.time(), backoff=soon)
    if because == "the run is paused":
        file_bench.order(DesiredState.PAUSED)
        gate.let_go.set()
    await asyncio.sleep(0.5)
    assert file_bench.states() == ["failed"]
    file_bench.order(DesiredState.RUNNING)
    gate.let_go.set()
    await worked_off(file_bench, pool, working)
    assert file_bench.rollout("t1").status is file_bench.rollout("t2").status is RolloutState.SUCCEEDED


async def test_a_retry_is_taken_up_as_soon_as_its_wait_is_over(file_bench: Bench) -> None:
    async def failing_once(task: Any, context: Context) -> float:
        if context.assignment.number == 1:
            raise ValueError
        return time.time()

    file_bench.enqueue("a", max_attempts=2)
    pace = pool_module.PoolTiming(
        heartbeat_s=5, lease_s=60, idle_s=PATIENCE_S, backoff=Backoff(initial_s=0.5, cap_s=0.5)
    )
    await file_bench.work_off(file_bench.pool(failing_once, pace=pace))
    first, second = file_bench.attempts()
    assert first.ended_at is not None
    assert 0.25 <= second.started_at - first.ended_at < PATIENCE_S / 2  # long before it would have looked anyway


# Orders


@pytest.fixture
def operator(url: str, store: Store) -> Any:
    """The same store as another process has it."""
    with open_store(url, poll_s=0.01) as opened:
        yield opened


@pytest.fixture
def file_operator(file_store: Store) -> Any:
    with open_store(file_store.url, poll_s=0.01) as opened:
        yield opened


SLOW = pool_module.PoolTiming(heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S)  # an order itself must be enough


def order(operator: Store, bench: Bench, wanted: DesiredState) -> None:
    operator.runs.want(bench.run, wanted, who="test", why="because", now=time.time()).result()


async def test_a_paused_run_starts_nothing_new_and_goes_on_when_it_is_told(
    file_bench: Bench, file_operator: Store
) -> None:
    gate, pool, working = await begun(file_bench, 4, 1)
    order(file_operator, file_bench, DesiredState.PAUSED)
    await until(lambda: pool.wanted is DesiredState.PAUSED)
    gate.let_go.set()
    await until(lambda: file_bench.rollout("t1").status is RolloutState.SUCCEEDED)  # what runs goes on
    await asyncio.sleep(0.3)
    assert gate.begun == ["t1:attempt-1"]
    order(file_operator, file_bench, DesiredState.RUNNING)
    assert (await worked_off(file_bench, pool, working)).succeeded == 4


@pytest.mark.parametrize("by", ["the run", "the pool"])
async def test_draining_finishes_what_runs_and_starts_nothing_new(
    file_bench: Bench, file_operator: Store, by: str
) -> None:
    gate, pool, working = await begun(file_bench, 4, 2)
    if by == "the run":
        order(file_operator, file_bench, DesiredState.DRAINING)
        await until(lambda: pool.wanted is DesiredState.DRAINING)
    else:
        pool.drain()
        await asyncio.sleep(0.1)
    assert not working.done()
    gate.let_go.set()
    tally = await asyncio.wait_for(working, PATIENCE_S)
    assert (tally.succeeded, tally.interrupted) == (2, 0)
    counts = file_bench.store.views.counts(file_bench.run)
    assert (counts[RolloutState.SUCCEEDED], counts[RolloutState.QUEUING]) == (2, 2)


async def test_a_cancelled_run_interrupts_what_runs_without_waiting_for_a_beat(bench: Bench, operator: Store) -> None:
    gate, _, working = await begun(bench, 4, 2, pace=SLOW)
    order(operator, bench, DesiredState.CANCELLED)
    tally = await asyncio.wait_for(working, PATIENCE_S / 2)
    assert sorted(gate.cancelled) == ["t1:attempt-1", "t2:attempt-1"]
    assert (tally.succeeded, tally.interrupted) == (0, 2)


async def test_a_frozen_run_hands_back_what_runs_at_no_cost_and_runs_it_anew_later(
    bench: Bench, operator: Store
) -> None:
    gate, pool, working = await begun(bench, 3, 2, pace=SLOW, fields={"max_attempts": 1})
    order(operator, bench, DesiredState.FROZEN)
    await until(lambda: bench.store.views.counts(bench.run)[RolloutState.QUEUING] == 3)
    await asyncio.sleep(0.3)
    assert sorted(gate.begun) == sorted(gate.cancelled) == ["t1:attempt-1", "t2:attempt-1"]
    assert [one.error for one in bench.attempts()] == ["handed back: the run was frozen"]
    gate.let_go.set()
    order(operator, bench, DesiredState.RUNNING)
    assert (await worked_off(bench, pool, working)).succeeded == 3
    assert [bench.states(f"t{n}") for n in (1, 2, 3)] == [["released", "succeeded"]] * 2 + [["succeeded"]]


async def test_a_cancelled_rollout_ends_its_agent_and_no_other(file_bench: Bench, file_operator: Store) -> None:
    gate, pool, working = await begun(file_bench, 2, 2)
    file_operator.queue.cancel(f"{file_bench.run}/t1", now=time.time(), why="enough").result()
    await until(lambda: gate.cancelled)
    assert gate.cancelled == ["t1:attempt-1"]
    gate.let_go.set()
    await worked_off(file_bench, pool, working)
    assert (file_bench.states("t1"), file_bench.states("t2")) == (["cancelled"], ["succeeded"])


# Leases


async def test_what_is_done_under_a_lost_lease_is_dropped(bench: Bench, operator: Store) -> None:
    begun = threading.Event()
    release = threading.Event()

    def agent(task: Any, context: Context) -> str:
        if context.assignment.number > 1:
            return "the second time"
        begun.set()
        release.wait(PATIENCE_S)
        context.trace.event("too late")
        return "the first time"

    bench.enqueue("a")
    pool = bench.pool(agent, 1, pace=replace(SLOW, backoff=Backoff(initial_s=0.0, cap_s=0.0)), score=ones)
    working = asyncio.create_task(pool.work())
    await until(begun.is_set)
    later = time.time() + 11 * PATIENCE_S  # another machine's clock, or one that jumped
    assert operator.queue.sweep(now=later, backoff=Backoff(initial_s=0.0, cap_s=0.0)).result() == 1
    release.set()
    await until(lambda: pool.tally.interrupted == 1)
    first, *_ = bench.attempts()
    assert (first.status, bench.store.views.output(first)) == (AttemptState.UNRESPONSIVE, None)
    assert bench.store.traces.spans(first.token) == []
    assert bench.store.traces.breakdown(first.token).signals == ()
    assert bench.rollout().final_attempt != first.id  # the second may be done by now
    pool.drain()
    await working


async def test_an_agent_whose_lease_was_lost_is_interrupted_at_the_next_beat(bench: Bench, operator: Store) -> None:
    gate, pool, working = await begun(bench, 1, 1, fields={"max_attempts": 1, "max_faults": 0})
    # A row that is just being beaten is passed over.
    await until(lambda: operator.queue.sweep(now=time.time() + 3600).result() == 1)
    await until(lambda: gate.cancelled)
    pool.drain()
    tally = await working
    assert (tally.interrupted, tally.failed) == (1, 0)
    assert bench.states() == ["unresponsive"]


async def test_what_a_dead_worker_left_is_taken_up(file_bench: Bench) -> None:
    file_bench.enqueue("a")
    await file_bench.store.queue.claim(file_bench.run, "a worker that died", now=time.time() - 60, lease_s=1.0)
    await file_bench.work_off(file_bench.pool(echo))
    assert file_bench.states() == ["unresponsive", "succeeded"]


# Ends


def left_running(bench: Bench, tasks: int) -> list[str]:
    states = {name: bench.states(name) for name in (f"t{n}" for n in range(1, tasks + 1))}
    return [name for name, found in states.items() if "running" in found]


async def test_stopping_hands_back_what_runs_and_it_does_not_count(file_bench: Bench) -> None:
    gate, pool, working = await begun(file_bench, 3, 2)
    pool.stop()
    tally = await asyncio.wait_for(working, PATIENCE_S)
    assert tally.interrupted == 2
    for name in ("t1", "t2"):
        rollout, (attempt,) = file_bench.rollout(name), file_bench.attempts(name)
        assert (rollout.status, rollout.faults) == (RolloutState.QUEUING, 0)
        assert (attempt.status, attempt.error) == (AttemptState.RELEASED, "handed back by a stopping worker")
    assert gate.cancelled
    gate.let_go.set()
    await file_bench.work_off(file_bench.pool(gate))
    assert file_bench.states("t1") == ["released", "succeeded"]


@pytest.mark.parametrize(
    "end", [lambda pool, working: pool.stop(), lambda pool, working: working.cancel()], ids=["stop", "cancel"]
)
async def test_however_soon_a_pool_is_ended_nothing_stays_claimed(
    file_store: Store, end: Callable[[Pool, asyncio.Task[Any]], None]
) -> None:
    async def endless(task: Any, context: Context) -> None:
        await asyncio.sleep(PATIENCE_S)

    for step in range(40):  # ended before, while and after it claims
        bench = Bench(file_store)
        bench.enqueue(*range(4))
        pool = bench.pool(endless, 4)
        working = asyncio.create_task(pool.work())
        for _ in range(step % 10):
            await asyncio.sleep(0)
        await asyncio.sleep(0 if step < 10 else step / 4000)
        end(pool, working)
        began = time.monotonic()
        await asyncio.wait([working])
        assert time.monotonic() - began < PATIENCE_S / 2, "it waited for its agents"
        assert left_running(bench, 4) == [], f"in round {step}"
        assert all(bench.rollout(f"t{n}").status is RolloutState.QUEUING for n in range(1, 5))
        bench.close()


async def test_a_pool_of_processes_that_is_ended_while_they_start_ends(file_bench: Bench) -> None:
    file_bench.enqueue({"do": "spin"})
    recipe = ProcessRecipe("tests.collect.agents:do", no_score, no_model)
    pool = file_bench.pool_of(lambda: Slot(ProcessExecutor(recipe)), 2)
    working = asyncio.create_task(pool.work())
    await asyncio.sleep(0.05)
    pool.stop()
    await asyncio.wait_for(working, PATIENCE_S)
    assert left_running(file_bench, 1) == []


# A store that fails


@pytest.mark.parametrize("table", ["attempts", "rollouts", "spans"])  # no beat, no claim, no record any more
async def test_a_store_that_fails_stops_the_pool_and_is_not_swallowed(file_bench: Bench, table: str) -> None:
    gate = Gate()
    file_bench.enqueue("a", "b")
    pool = file_bench.pool(gate, 3)
    working = asyncio.create_task(pool.work())
    await until(lambda: gate.now_running == 2)
    file_bench.store.db.write(lambda tx: tx._execute(f"ALTER TABLE {table} RENAME TO lost")).result()
    file_bench.order(DesiredState.RUNNING)  # wakes it up
    if table == "spans":
        gate.let_go.set()
    with pytest.raises(StoreError, match=f"no such table: {table}"):
        await asyncio.wait_for(working, PATIENCE_S)
    assert gate.now_running == 0  # its agents do not go on unseen


FULL = """
import asyncio, resource, signal, sys, time
from holdfast.collect.pool import Pool
from holdfast.contracts.rollout import Task
from holdfast.store.store import open_store
from tests.collect.agents import no_score
from tests.collect.scene import PACE, Bench

async def wordy(task, context):
    for _ in range(1000):
        context.trace.event("wordy", text="x" * 10_000)
        await asyncio.sleep(0.001)

async def main():
    with open_store(sys.argv[1]) as store:
        bench = Bench(store)
        bench.enqueue(*range(4))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, 3_000_000))
        await asyncio.wait_for(bench.pool(wordy).work(), 60)

try:
    asyncio.run(main())
except Exception as error:
    print(type(error).__name__)
"""


def test_a_full_disk_stops_the_pool_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL, str(tmp_path / "store.db")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "StoreFull\n", ran.stderr


# Thinking budgets


async def thinks(messages: Any, /, **sampling: Any) -> ModelCall:
    reply = {"role": "assistant", "content": "yes"}
    how = {**sampling, "thinking_mode": "hard"}
    return ModelCall(model="m", messages=tuple(messages), response=reply, sampling=how, thinking_tokens=120)


async def unlucky(task: Any, context: Context) -> str:
    """Its first attempt is lost, after it has thought."""
    await context.ask([{"role": "user", "content": "hello"}])
    if context.assignment.number == 1:
        raise Fault("the line", why="broke")
    return "yes"


async def test_budgets_are_kept_as_they_are_used_and_a_retry_has_one_of_its_own(file_bench: Bench) -> None:
    file_bench.enqueue("q", max_attempts=2)
    home = AgentRuntime(unlucky, ones, lambda version: thinks, time.time, has_budgets=True)
    file_bench.homes.append(home)
    await file_bench.work_off(file_bench.pool_of(lambda: Slot(home.executor()), 1))
    assert file_bench.states() == ["fault", "succeeded"]
    first, second = (file_bench.store.budgets.get(attempt.token) for attempt in file_bench.attempts())
    assert first is not None and second is not None
    assert [(use.budget.spent, use.has_failed, use.waste) for use in (first, second)] == [
        (120, True, 120),
        (120, False, 0),
    ]
    assert [event.kind for event in file_bench.store.budgets.events(second)] == ["allocate", "spend"]
    spans = file_bench.store.traces.spans(second.token)
    assert [span.attributes["thinking"]["mode"] for span in spans if span.model is not None] == ["hard"]
    assert [part.problems for part in check(file_bench.store) if part.problems] == []


async def test_budgets_of_agents_in_processes_come_back_to_the_store(file_bench: Bench) -> None:
    with serving() as endpoint:
        endpoint.models = {"data": [{"id": "tiny", "owned_by": "holdfast"}]}
        connect = OneModel(partial(Client, "tiny", endpoint.url))
        recipe = ProcessRecipe("tests.collect.agents:do_async", no_score, connect, has_budgets=True)
        file_bench.enqueue({"do": "ask"})
        await file_bench.work_off(file_bench.pool_of(lambda: Slot(ProcessExecutor(recipe)), 1))
        assert endpoint.asked[0].body["thinking"] == 500
    (use,) = file_bench.store.budgets.of_run(file_bench.run)
    assert (use.budget.calls, use.budget.mode, use.budget.spent) == (1, Mode.PARAMETER, 0)
    assert use.budget.attempt == file_bench.attempts()[0].id
