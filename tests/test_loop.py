"""The loop: a plan is run to its end, every state of it is told, and whatever stops it, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from holdfast.workloads.tooluse.course import Course, Quickstart

from holdfast.collect.agent import Agent, Context, Score, no_model
from holdfast.collect.plan import Learnt, Lesson, Plan, Standing, once
from holdfast.collect.pool import Pace, Tally
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.errors import BadInput, Conflict, IllegalMove, StaleLease, StoreError, StoreFull
from holdfast.contracts.experience import Experience
from holdfast.contracts.features import Features
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.reward import Signal
from holdfast.contracts.rollout import AttemptState, RolloutState, Split, Task
from holdfast.contracts.run import RunState, Status, StepRecord, Wanted
from holdfast.loop import Control, assist, optimize
from holdfast.policies.lm import Shape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import Store, open_store
from holdfast.workloads.pupil import Pupil
from holdfast.workloads.tooluse import agent as tooluse
from holdfast.workloads.tooluse.score import score as tooluse_score
from tests.collect.agents import no_score, ones
from tests.collect.scene import PACE, PATIENCE_S, fall_silent, until
from tests.conftest import Files


async def echo(task: Any, context: Context) -> Any:
    return task


async def failing(task: Any, context: Context) -> None:
    raise ValueError("no")


def tasks(count: int, **fields: Any) -> list[Task]:
    splits = [Split.TRAIN, Split.TRAIN, Split.VAL]
    return [Task(name=f"t{n}", input=n, split=splits[n % 3], **fields) for n in range(count)]


def plan_of(agent: Agent, todo: list[Task], score: Score = no_score, **fields: Any) -> Plan:
    home = Home(agent, score, no_model, time.time)
    given: dict[str, Any] = {
        "course": once(todo),
        "resources": {},
        "model_ref": "agent/test",
        "settings": {},
        "seats": lambda: Seat(home.place()),
        "close": home.close,
        "workers": 2,
        "pace": PACE,
        "report_s": 0.05,
        "look_s": 0.01,
    }
    return Plan(**{**given, **fields})


class Gate:
    """An agent that lets the first so many pass and holds the others until it is opened."""

    def __init__(self, passes: int = 0) -> None:
        self.opened, self.held, self._passes = threading.Event(), 0, passes
        self._lock = threading.Lock()

    async def __call__(self, task: Any, context: Context) -> Any:
        with self._lock:
            self._passes -= 1
            is_held = self._passes < 0
            self.held += is_held
        while is_held and not self.opened.is_set():  # noqa: ASYNC110 - the test is on another event loop
            await asyncio.sleep(0.005)
        return task


@dataclass
class Watched:
    """One call of optimize, and every status it told."""

    store: Store
    plan: Plan
    control: Control = field(default_factory=Control)
    statuses: list[Status] = field(default_factory=list)
    resume: str | None = None
    slow_s: float = 0.0  # how long an observer takes
    seen: threading.Event | None = None  # what an observer waits for, from its second look on
    is_stuck: bool = False

    def observe(self, status: Status) -> None:
        time.sleep(self.slow_s)
        self.statuses.append(status)
        if self.seen is not None and len(self.statuses) > 1:
            self.is_stuck = True
            assert self.seen.wait(PATIENCE_S)

    async def run(self) -> Status:
        optimizing = optimize(
            self.store,
            self.plan,
            self.control,
            clock=time.time,
            observe=self.observe,
            who="test",
            salt="abcd",
            resume=self.resume,
        )
        return await asyncio.wait_for(optimizing, PATIENCE_S)

    @asynccontextmanager
    async def going(self) -> AsyncIterator[asyncio.Task[Status]]:
        running = asyncio.create_task(self.run())
        await until(lambda: self.statuses or running.done())
        yield running
        await asyncio.wait([running])

    @property
    def run_id(self) -> str:
        return self.statuses[0].run_id

    def told(self) -> list[RunState]:
        """The states as told: the same one twice in a row is told once here."""
        states = [status.run_state for status in self.statuses]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] is not state]

    def ended(self) -> tuple[RunState, str | None]:
        run = self.store.runs.get(self.run_id)
        assert run.state is RunState.RUNNING or run.ended_at is not None
        return run.state, run.error


def attempts(store: Store, run: str, count: int) -> list[list[str]]:
    return [[str(a.status) for a in store.views.attempts(f"{run}/t{n}")] for n in range(count)]


# Ends


async def test_a_plan_that_is_done_is_completed(store: Store) -> None:
    watched = Watched(store, plan_of(echo, tasks(20), ones, resources={"prompt": "brief"}))
    status = await watched.run()
    assert watched.told() == [RunState.RUNNING, RunState.COMPLETED]
    assert watched.statuses[-1] == status
    assert watched.statuses[0].total_rollouts == 20  # planned, and not yet enqueued
    counts = (status.succeeded, status.failed, status.cancelled, status.dead, status.running, status.waiting)
    assert counts == (20, 0, 0, 0, 0, 0)
    found = {split: (of.total, of.rewarded, of.mean_reward) for split, of in status.rewards.items()}
    assert found == {"train": (14, 14, 1.0), "val": (6, 6, 1.0)}
    assert (status.model_ref, status.resources_id, status.error) == ("agent/test", "resources-1", None)
    assert watched.ended() == (RunState.COMPLETED, None)
    assert attempts(store, status.run_id, 20) == [["succeeded"]] * 20
    assert {store.views.rollout(f"{status.run_id}/t{n}").resources for n in range(20)} == {1}
    begun, lesson, ended = (entry.body for entry in store.ledger.entries())
    assert begun == {"begin": "optimize", "model_ref": "agent/test"}
    assert lesson["step"] == 1 and ended == {"end": "completed", "error": None}


async def test_a_run_of_which_nothing_succeeded_has_failed(store: Store) -> None:
    watched = Watched(store, plan_of(failing, tasks(3, max_attempts=1), ones))
    status = await watched.run()
    assert watched.told() == [RunState.RUNNING, RunState.FAILED]
    assert (status.failed, status.dead) == (3, 0)
    line = failing.__code__.co_firstlineno + 1
    why = f"t0: failed: ValueError: no (test_loop.py:{line}, in failing) (attempt 1 of 1)"  # the first says why
    assert status.error == f"no rollout succeeded; {why}"
    assert status.rewards["train"].mean_reward is None
    assert watched.ended() == (RunState.FAILED, status.error)


async def test_a_run_of_which_something_succeeded_is_completed(files: Files) -> None:
    async def odd(task: int, context: Context) -> int:
        return 1 // (task % 2)

    with open_store(files.fresh()) as store:
        status = await Watched(store, plan_of(odd, tasks(4, max_attempts=1))).run()
    assert (status.run_state, status.succeeded, status.failed) == (RunState.COMPLETED, 2, 2)


async def test_what_was_given_up_without_an_answer_is_told_apart(files: Files) -> None:
    def broken(*arguments: Any) -> Any:
        raise ValueError("no judge")

    with open_store(files.fresh()) as store:
        status = await Watched(store, plan_of(echo, tasks(3, max_attempts=1), broken)).run()
    assert (status.run_state, status.failed, status.dead) == (RunState.FAILED, 3, 3)
    assert status.rewards["train"].rewarded == 0


async def test_the_last_word_is_the_last_however_slow_its_observer_is(files: Files) -> None:
    with open_store(files.fresh()) as store:
        watched = Watched(store, plan_of(echo, tasks(40), report_s=0.001), slow_s=0.03)
        await watched.run()
        await asyncio.sleep(0.2)
    assert watched.told() == [RunState.RUNNING, RunState.COMPLETED]
    moments = [status.updated_unix_ms for status in watched.statuses]
    assert moments == sorted(moments)


async def test_a_run_lets_go_of_what_its_seats_share(files: Files) -> None:
    home = Home(echo, no_score, no_model, time.time)
    with open_store(files.fresh()) as store:
        plan = plan_of(echo, tasks(2), seats=lambda: Seat(home.place()), close=home.close)
        await Watched(store, plan).run()
    assert not home.current.thread.is_alive()


async def test_two_runs_on_one_store_have_nothing_in_common(store: Store) -> None:
    first, second = Watched(store, plan_of(echo, tasks(6))), Watched(store, plan_of(echo, tasks(6)))
    statuses = await asyncio.gather(first.run(), second.run())
    assert {status.succeeded for status in statuses} == {6}
    assert statuses[0].run_id != statuses[1].run_id
    assert all(attempts(store, status.run_id, 6) == [["succeeded"]] * 6 for status in statuses)


# Stopping and going on


async def stopped_half_way(store: Store, ask: Callable[[Control], None]) -> tuple[Watched, Gate]:
    """A run of ten of which three are done and two are being worked on when it is asked to end."""
    gate = Gate(passes=3)
    watched = Watched(store, plan_of(gate, tasks(10), ones))
    async with watched.going() as running:
        await until(lambda: gate.held == 2)
        ask(watched.control)
        if ask is not Control.stop:
            await asyncio.sleep(0.3)
            assert not running.done()
            gate.opened.set()
    return watched, gate


async def test_a_run_that_is_stopped_hands_back_and_can_be_finished_later(store: Store) -> None:
    stopped, _ = await stopped_half_way(store, Control.stop)
    assert stopped.told() == [RunState.RUNNING, RunState.CANCELLED]
    last = stopped.statuses[-1]
    assert (last.error, last.succeeded, last.running, last.waiting) == ("interrupted", 3, 0, 7)
    assert stopped.ended() == (RunState.CANCELLED, "interrupted")

    resumed = Watched(store, plan_of(echo, tasks(10), ones), resume=stopped.run_id)
    status = await resumed.run()
    assert resumed.told() == [RunState.RUNNING, RunState.COMPLETED]
    assert (status.run_id, status.succeeded, status.total_rollouts) == (stopped.run_id, 10, 10)
    found = attempts(store, status.run_id, 10)
    assert sorted(found) == [["released", "succeeded"]] * 2 + [["succeeded"]] * 8
    assert [entry.body for entry in store.ledger.entries()][1:3] == [
        {"end": "cancelled", "error": "interrupted"},
        {"resume": "cancelled"},
    ]


async def test_a_run_that_is_drained_finishes_what_runs(files: Files) -> None:
    with open_store(files.fresh()) as store:
        drained, _ = await stopped_half_way(store, Control.drain)
        last = drained.statuses[-1]
        assert (last.run_state, last.error) == (RunState.CANCELLED, "interrupted")
        assert (last.succeeded, last.running, last.waiting) == (5, 0, 5)
        assert {tuple(found) for found in attempts(store, last.run_id, 10)} == {("succeeded",), ()}


async def test_draining_does_not_take_for_ever(files: Files) -> None:
    gate = Gate()
    with open_store(files.fresh()) as store:
        watched = Watched(store, plan_of(gate, tasks(2), drain_s=0.3))
        async with watched.going():
            await until(lambda: gate.held == 2)
            watched.control.drain()
        assert watched.statuses[-1].waiting == 2
        assert attempts(store, watched.run_id, 2) == [["released"]] * 2


async def test_a_second_wish_to_stop_ends_a_drain(files: Files) -> None:
    gate = Gate()
    with open_store(files.fresh()) as store:
        watched = Watched(store, plan_of(gate, tasks(2), drain_s=PATIENCE_S))
        async with watched.going():
            await until(lambda: gate.held == 2)
            watched.control.drain()
            await asyncio.sleep(0.1)
            watched.control.stop()
        assert attempts(store, watched.run_id, 2) == [["released"]] * 2


async def test_a_run_over_its_time_has_timed_out_and_can_be_finished_later(store: Store) -> None:
    late = Watched(store, plan_of(Gate(passes=1), tasks(4), timeout_s=0.5))
    status = await late.run()
    assert late.told() == [RunState.RUNNING, RunState.TIMED_OUT]
    assert status.succeeded <= 1  # one, where the machine is not busy
    assert (status.error, status.running, status.waiting) == ("not done after 0.5 s", 0, 4 - status.succeeded)
    assert late.ended() == (RunState.TIMED_OUT, "not done after 0.5 s")
    again = await Watched(store, plan_of(echo, tasks(4)), resume=late.run_id).run()
    assert (again.run_state, again.succeeded) == (RunState.COMPLETED, 4)


async def test_a_run_whose_process_died_is_finished_by_another(store: Store) -> None:
    """As kill -9 leaves it: some done, some claimed, some not even enqueued."""
    todo, now = tasks(8), time.time() - 120  # longer ago than a lease lasts
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="d", who="test", now=now).result()
    await store.queue.enqueue(run.id, todo[:5], now=now)
    done, _ = await store.queue.claim(run.id, "dead", now=now, lease_s=1.0, most=2)
    await store.queue.finish(done.attempt, AttemptState.SUCCEEDED, now=now)
    with pytest.raises(IllegalMove, match="another process drives it"):
        await Watched(store, plan_of(echo, todo, pace=replace(PACE, lease_s=6000.0)), resume=run.id).run()
    status = await Watched(store, plan_of(echo, todo), resume=run.id).run()
    assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 8)
    assert attempts(store, run.id, 8) == [["succeeded"], ["unresponsive", "succeeded"], *[["succeeded"]] * 6]


async def test_a_run_that_is_driven_cannot_be_taken_up_however_slow_its_observer_is(files: Files) -> None:
    """What an observer does not end, its driver outlives: the signs of life go on."""
    gate, url, seen = Gate(), files.fresh(), threading.Event()
    with open_store(url) as store, open_store(url) as other:
        watched = Watched(store, plan_of(gate, tasks(2)), seen=seen)
        async with watched.going():
            await until(lambda: watched.is_stuck)
            for _ in range(3):
                before = other.runs.get(watched.run_id).beat_at
                await until(lambda before=before: other.runs.get(watched.run_id).beat_at > before)
            with pytest.raises(IllegalMove, match="another process drives it"):
                await Watched(other, plan_of(echo, tasks(2)), resume=watched.run_id).run()
            seen.set()
            gate.opened.set()
        assert watched.statuses[-1].run_state is RunState.COMPLETED


@pytest.mark.parametrize(
    ("heartbeat_s", "report_s"),
    [(0.05, PATIENCE_S), (PATIENCE_S, 0.05), (PATIENCE_S, PATIENCE_S)],
    ids=["as it beats", "as it tells", "as it ends"],
)
async def test_a_driver_that_was_replaced_ends_without_a_word(
    store: Store, operator: Store, heartbeat_s: float, report_s: float
) -> None:
    """As one that SIGSTOP held for longer than its lease, and that wakes when another drives its run."""
    gate = Gate()
    pace = replace(PACE, heartbeat_s=heartbeat_s, lease_s=10 * PATIENCE_S)
    watched = Watched(store, plan_of(gate, tasks(2), pace=pace, report_s=report_s))
    async with watched.going() as running:
        await until(lambda: gate.held == 2)
        awake = operator.runs.resume(watched.run_id, who="other", now=time.time(), silent_s=0.0).result()
        told = len(watched.statuses)
        if heartbeat_s == report_s:  # nothing wakes it but the end of its work
            gate.opened.set()
        with pytest.raises(StaleLease, match="another process has taken it up, and this one may not go on"):
            await running
    assert len(watched.statuses) in (told, told + (report_s < 1))  # one may have been on its way
    after = operator.runs.get(watched.run_id)
    assert (after.state, after.driver, after.error) == (RunState.RUNNING, awake.driver, None)


async def test_a_driver_that_fails_after_it_was_replaced_fails_alone(store: Store, operator: Store) -> None:
    def observe(status: Status) -> None:
        operator.runs.resume(status.run_id, who="other", now=time.time(), silent_s=0.0).result()
        told.append(status)
        raise ValueError("no room for a status")

    told: list[Status] = []
    plan = plan_of(echo, tasks(1))
    with pytest.raises(ValueError, match="no room for a status"):
        await optimize(store, plan, Control(), clock=time.time, observe=observe, who="test", salt="s")
    assert len(told) == 1
    assert operator.runs.get(told[0].run_id).state is RunState.RUNNING


AGENT = """
import asyncio
from pathlib import Path

async def agent(task, context):
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    return "4"
"""


def stand_still(process: subprocess.Popen[str], path: Path) -> None:
    """SIGSTOP, but not while it holds SQLite's one write lock: nobody could take anything over from it then."""
    while True:
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # all its threads stand still
        connection = sqlite3.connect(path, timeout=0.2, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.OperationalError:
            process.send_signal(signal.SIGCONT)
            time.sleep(0.03)
        finally:
            connection.close()


def test_a_process_that_slept_while_another_took_its_run_up_says_so_and_leaves_all_as_it_is(tmp_path: Path) -> None:
    pace = {"heartbeat_interval_ms": 100, "lease_secs": 60.0, "poll_interval_ms": 10}
    (tmp_path / "c.json").write_text(json.dumps({"optimize": [{"prompt": "2 + 2?", "expected": "4"}], **pace}))
    (tmp_path / "waiting.py").write_text(AGENT)
    words = [sys.executable, "-m", "holdfast.cli", "optimize", "--store", "s.db"]
    flags = ["--config", "c.json", "--agent", "waiting:agent"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with subprocess.Popen([*words, *flags], **pipes) as asleep:
        while not (tmp_path / "begun").exists():
            assert asleep.poll() is None
            time.sleep(0.01)
        stand_still(asleep, tmp_path / "s.db")
        try:
            with open_store(tmp_path / "s.db") as store:
                fall_silent(store, store.runs.newest()[0].id)  # it sleeps for longer than its lease
            (tmp_path / "go").touch()
            awake = subprocess.run([*words, "--resume", "run-1"], **pipes, timeout=PATIENCE_S)
            before = (tmp_path / "status.json").read_bytes()
        finally:
            asleep.send_signal(signal.SIGCONT)
        out, err = asleep.communicate(timeout=PATIENCE_S)
    assert awake.returncode == 0, awake.stderr
    assert (asleep.returncode, out) == (5, "")
    assert re.fullmatch(
        r"holdfast: error: run run-1-\w+: another process has taken it up, and .*", err.splitlines()[-1]
    )
    assert "Traceback" not in err
    assert (tmp_path / "status.json").read_bytes() == before
    assert json.loads(before)["run_state"] == "completed"
    with open_store(tmp_path / "s.db") as store:
        (run,) = store.runs.newest()
        assert (run.state, run.driver, run.error) == (RunState.COMPLETED, 2, None)


async def test_a_run_that_is_taken_up_with_other_tasks_under_the_same_names_is_refused(files: Files) -> None:
    with open_store(files.fresh()) as store:
        late = Watched(store, plan_of(Gate(), tasks(2), timeout_s=0.3))
        await late.run()
        other = [Task(name="t0", input="something else", split=Split.TRAIN)]
        again = Watched(store, plan_of(echo, other), resume=late.run_id)
        with pytest.raises(Conflict):
            await again.run()
        assert again.told() == [RunState.RUNNING, RunState.FAILED]


# Orders


@pytest.fixture
def operator(url: str, store: Store) -> Iterator[Store]:
    """The same store as another process has it."""
    with open_store(url) as opened:
        yield opened


def order(operator: Store, run: str, wanted: Wanted) -> None:
    operator.runs.want(run, wanted, who="operator", why="because", now=time.time()).result()


async def heard(store: Store) -> None:
    """Until what is on record now has reached the pool: it asks at every beat, and when there is an order."""
    for _ in range(3):
        before = store.workers.newest()[0].beat_at
        await until(lambda before=before: store.workers.newest()[0].beat_at > before)


@pytest.mark.parametrize("at_once", [True, False], ids=["all at once", "by the run itself"])
async def test_an_order_to_cancel_ends_the_run_for_good(store: Store, operator: Store, at_once: bool) -> None:
    gate = Gate(passes=2)
    # A beat that never comes: the order itself must be enough.
    slow = Pace(heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S)
    watched = Watched(store, plan_of(gate, tasks(8), pace=slow))
    async with watched.going():
        await until(lambda: gate.held == 2)
        order(operator, watched.run_id, Wanted.CANCELLED)
        if at_once:  # as `holdfast order` does it
            while operator.queue.cancel_open(watched.run_id, now=time.time(), why="enough").result():
                continue
    assert watched.told() == [RunState.RUNNING, RunState.CANCELLED]
    last = watched.statuses[-1]
    assert (last.error, last.succeeded, last.cancelled) == ("cancelled by an order", 2, 6)
    assert watched.ended() == (RunState.CANCELLED, "cancelled by an order")
    with pytest.raises(IllegalMove, match="was cancelled for good"):
        await Watched(store, plan_of(echo, tasks(8)), resume=watched.run_id).run()


async def test_an_order_to_drain_ends_the_run_and_it_can_be_taken_up_again(store: Store, operator: Store) -> None:
    gate = Gate(passes=2)
    watched = Watched(store, plan_of(gate, tasks(8)))
    async with watched.going() as running:
        await until(lambda: gate.held == 2)
        order(operator, watched.run_id, Wanted.DRAINING)
        await heard(store)
        assert not running.done()
        gate.opened.set()
    last = watched.statuses[-1]
    assert (last.run_state, last.error) == (RunState.CANCELLED, "drained by an order")
    assert (last.succeeded, last.waiting) == (4, 4)
    again = await Watched(store, plan_of(echo, tasks(8)), resume=watched.run_id).run()
    assert again.succeeded == 8


async def test_an_order_to_drain_that_is_taken_back_too_late_still_ends_the_run(files: Files) -> None:
    gate, url = Gate(), files.fresh()
    with open_store(url) as store, open_store(url) as operator:
        watched = Watched(store, plan_of(gate, tasks(4)))
        async with watched.going():
            await until(lambda: gate.held == 2)
            order(operator, watched.run_id, Wanted.DRAINING)
            await heard(store)
            order(operator, watched.run_id, Wanted.RUNNING)
            await heard(store)
            gate.opened.set()
        last = watched.statuses[-1]
        assert (last.run_state, last.error, last.succeeded) == (RunState.CANCELLED, "drained by an order", 2)


async def test_a_paused_run_waits_and_goes_on(files: Files) -> None:
    url = files.fresh()
    with open_store(url) as store, open_store(url) as operator:
        gate = Gate(passes=1)
        watched = Watched(store, plan_of(gate, tasks(6)))
        async with watched.going() as running:
            await until(lambda: gate.held == 2)
            order(operator, watched.run_id, Wanted.PAUSED)
            await heard(store)
            gate.opened.set()
            await until(lambda: store.views.counts(watched.run_id)[RolloutState.SUCCEEDED] == 3)
            await heard(store)
            assert not running.done()
            assert store.views.counts(watched.run_id)[RolloutState.QUEUING] == 3
            order(operator, watched.run_id, Wanted.RUNNING)
        assert watched.statuses[-1].run_state is RunState.COMPLETED


# A bounded queue


async def test_a_producer_waits_where_the_queue_is_bounded(store: Store) -> None:
    deepest = 0

    def depth(run: str) -> int:
        return store.views.counts(run)[RolloutState.QUEUING]

    async def slow(task: Any, context: Context) -> Any:
        await asyncio.sleep(0.02)
        return task

    watched = Watched(store, plan_of(slow, tasks(30), queue_limit=3))
    async with watched.going() as running:
        while not running.done():
            deepest = max(deepest, depth(watched.run_id))
            await asyncio.sleep(0)
    assert deepest == 3
    assert watched.statuses[-1].succeeded == 30
    assert attempts(store, watched.run_id, 30) == [["succeeded"]] * 30


async def test_a_bounded_run_that_was_stopped_is_finished_later(files: Files) -> None:
    with open_store(files.fresh()) as store:
        late = Watched(store, plan_of(Gate(passes=4), tasks(12), queue_limit=2))
        async with late.going():
            # Done, held, waiting: the rest never comes in.
            await until(lambda: sum(store.views.counts(late.run_id).values()) == 8)
            late.control.stop()
        status = await Watched(store, plan_of(echo, tasks(12), queue_limit=2), resume=late.run_id).run()
        assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 12)


# More hands


async def test_another_process_helps_until_the_run_ends(store: Store, operator: Store) -> None:
    gate = Gate()
    watched = Watched(store, plan_of(gate, tasks(6), ones))
    async with watched.going():
        await until(lambda: gate.held == 2)
        helping = asyncio.create_task(
            assist(operator, plan_of(gate, [], ones), watched.run_id, Control(), clock=time.time)
        )
        await until(lambda: gate.held == 4)
        gate.opened.set()
    tally: Tally = await asyncio.wait_for(helping, PATIENCE_S)
    assert tally.succeeded >= 2
    assert watched.statuses[-1].succeeded == 6
    assert attempts(store, watched.run_id, 6) == [["succeeded"]] * 6


async def test_a_helper_that_is_not_wanted_any_more_hands_back(files: Files) -> None:
    gate, url = Gate(), files.fresh()
    with open_store(url) as store, open_store(url) as other:
        watched = Watched(store, plan_of(gate, tasks(3), workers=1))
        async with watched.going():
            await until(lambda: gate.held == 1)
            control = Control()
            helping = asyncio.create_task(
                assist(other, plan_of(gate, [], workers=2), watched.run_id, control, clock=time.time)
            )
            await until(lambda: gate.held == 3)
            control.stop()
            assert (await asyncio.wait_for(helping, PATIENCE_S)).interrupted == 2
            gate.opened.set()
        assert watched.statuses[-1].succeeded == 3


async def test_nobody_helps_a_run_that_is_over(files: Files) -> None:
    with open_store(files.fresh()) as store:
        status = await Watched(store, plan_of(echo, tasks(2))).run()
        helping = assist(store, plan_of(echo, []), status.run_id, Control(), clock=time.time)
        assert (await asyncio.wait_for(helping, PATIENCE_S)).claimed == 0


# Lessons


def worth(task: Any, output: Any, spans: Any) -> tuple[Signal, ...]:
    return (Signal(name="worth", value=float(output), source="rule:test"),)


class School:
    """Lessons of two tasks each; what is learnt is the sum of the rewards so far, and every lesson leaves a checkpoint.

    In lesson `held`, learning waits until the school is opened."""

    def __init__(self, lessons: int = 3, held: int | None = None) -> None:
        self.lessons, self._held = lessons, held
        self.begun, self.opened, self.left = threading.Event(), threading.Event(), threading.Event()
        self.taught: list[list[str]] = []  # rollouts, by call

    def course(self, standing: Standing) -> Lesson | None:
        number = len(standing.done) + 1
        if number > self.lessons:
            return None
        todo = [Task(name=f"l{number}-{n}", input=10 * number + n, split=Split.TRAIN) for n in range(2)]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            return self._learn(standing, number, experiences)

        return Lesson(name=f"lesson {number}", tasks=todo, learn=learn)

    def _learn(self, standing: Standing, number: int, experiences: Sequence[Experience]) -> Learnt:
        self.taught.append([one.rollout.partition("/")[2] for one in experiences])
        if number == self._held:
            self.begun.set()
            assert self.opened.wait(PATIENCE_S)
        before = standing.done[-1].body if standing.done else {}
        total = before.get("sum", 0.0) + sum(one.sheet.total or 0.0 for one in experiences if one.sheet)
        self.left.set()
        made = Checkpoint(
            id=f"{standing.run}-{number}",
            algorithm="adding",
            policy_version=str(number),
            global_step=number,
            episode_count=0,
            parent=before.get("checkpoint"),
            created_at=time.time(),
        )
        return Learnt(body={"sum": total, "rl_optimizer": {"samples": 2 * number}}, checkpoint=made)


def at_school(school: School, agent: Agent = echo, **fields: Any) -> Plan:
    return plan_of(agent, [], worth, course=school.course, **fields)


def is_whole(store: Store, run: str) -> None:
    """All three lessons are on record, each once, and nothing succeeded twice."""
    updates = store.steps.of_run(run)
    assert [update.step for update in updates] == [1, 2, 3]
    assert [update.body["sum"] for update in updates] == [21.0, 62.0, 123.0]  # 10 + 11, + 20 + 21, + 30 + 31
    assert [update.body["lesson"] for update in updates] == ["lesson 1", "lesson 2", "lesson 3"]
    made = [update.body["checkpoint"] for update in updates]
    assert [one.id for one in store.checkpoints.of_run(run)] == made
    assert [one.id for one in store.checkpoints.lineage(made[-1])] == made
    rollouts = store.views.rollouts(run, most=100)
    assert sorted(one.name for one in rollouts) == ["l1-0", "l1-1", "l2-0", "l2-1", "l3-0", "l3-1"]
    for one in rollouts:
        assert [str(a.status) for a in store.views.attempts(one.id)].count("succeeded") == 1


async def test_lessons_follow_one_another_and_what_each_left_is_on_record(store: Store) -> None:
    school = School()
    watched = Watched(store, at_school(school, report_s=0.001))
    status = await watched.run()
    assert (status.run_state, status.succeeded, status.total_rollouts) == (RunState.COMPLETED, 6, 6)
    assert school.taught == [["l1-0", "l1-1"], ["l2-0", "l2-1"], ["l3-0", "l3-1"]]  # in the order of the tasks
    assert (status.lesson, status.rl_optimizer) == ("lesson 3", {"samples": 6})
    told = [one.lesson for one in watched.statuses if one.lesson is not None]
    assert told == sorted(told)
    is_whole(store, status.run_id)


async def test_a_lesson_begins_when_nothing_of_the_one_before_is_open(files: Files) -> None:
    seen: list[list[str]] = []
    with open_store(files.fresh()) as store:
        school = School()

        def course(standing: Standing) -> Lesson | None:
            assert store.views.is_done(standing.run)
            seen.append(sorted(one.name for one in store.views.rollouts(standing.run, most=100)))
            return school.course(standing)

        await Watched(store, replace(at_school(school), course=course)).run()
    assert seen == [
        [],
        ["l1-0", "l1-1"],
        ["l1-0", "l1-1", "l2-0", "l2-1"],
        sorted(f"l{n}-{k}" for n in (1, 2, 3) for k in (0, 1)),
    ]


async def test_a_learner_sees_what_was_decided_and_where_it_belongs(files: Files) -> None:
    async def moody(task: int, context: Context) -> int:
        if task == 1 or (task == 2 and context.assignment.number == 1):
            raise ValueError("no")
        return task

    seen: list[Experience] = []

    def learn(experiences: Sequence[Experience]) -> Learnt:
        seen.extend(experiences)
        return Learnt(body={})

    todo = [
        Task(name=f"t{n}", input=n, split=Split.TRAIN, max_attempts=2, metadata={"group": "pair"} if n else {})
        for n in range(3)
    ]
    with open_store(files.fresh()) as store:
        plan = plan_of(
            moody, todo, worth, course=lambda s: None if s.done else Lesson(name="l", tasks=todo, learn=learn)
        )
        status = await Watched(store, plan).run()
    assert (status.succeeded, status.failed) == (2, 1)
    assert [(one.rollout, one.task, str(one.state)) for one in seen] == [
        (f"{status.run_id}/t0", "t0", "succeeded"),
        (f"{status.run_id}/t1", "pair", "failed"),
        (f"{status.run_id}/t2", "pair", "succeeded"),
    ]
    assert [one.sheet.total if one.sheet else None for one in seen] == [0.0, None, 2.0]
    assert {(one.run, one.split, one.is_final) for one in seen} == {(status.run_id, Split.TRAIN, True)}


async def test_lessons_without_anything_to_learn_count_as_well(files: Files) -> None:
    """Else a run that is taken up would take the next step for one that is on record."""

    def course(standing: Standing) -> Lesson | None:
        number = len(standing.done) + 1
        todo = tasks(2) if number == 1 else []
        learn = None if number == 1 else (lambda experiences: Learnt(body={"number": number}))
        return Lesson(name=f"{number}", tasks=todo, learn=learn) if number <= 4 else None

    def half(standing: Standing) -> Lesson | None:
        if len(standing.done) == 2:
            raise BadInput("lesson 3", why="the teacher is ill")
        return course(standing)

    with open_store(files.fresh()) as store:
        first = Watched(store, plan_of(echo, [], course=half))
        with pytest.raises(BadInput, match="the teacher is ill"):
            await first.run()
        assert first.ended() == (RunState.FAILED, "lesson 3: the teacher is ill")
        status = await Watched(store, plan_of(echo, [], course=course), resume=first.run_id).run()
        assert (status.run_state, status.lesson, status.succeeded) == (RunState.COMPLETED, "4", 2)
        updates = store.steps.of_run(status.run_id)
    assert [(update.step, update.body.get("number")) for update in updates] == [(1, None), (2, 2), (3, 3), (4, 4)]


async def test_a_run_stopped_amid_a_lesson_goes_on_there(store: Store) -> None:
    gate, school = Gate(passes=3), School()
    stopped = Watched(store, at_school(school, gate))
    async with stopped.going():
        await until(lambda: gate.held == 1)
        stopped.control.stop()
    assert stopped.ended() == (RunState.CANCELLED, "interrupted")
    assert (stopped.statuses[-1].lesson, stopped.statuses[-1].rl_optimizer) == ("lesson 2", {"samples": 2})
    again = School()
    status = await Watched(store, at_school(again), resume=stopped.run_id).run()
    assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 6)
    assert school.taught + again.taught == [["l1-0", "l1-1"], ["l2-0", "l2-1"], ["l3-0", "l3-1"]]
    is_whole(store, status.run_id)


def of_tooluse(settings: Quickstart, gate: Gate) -> Plan:
    """The course as the quickstart gives it; whoever the gate holds has not asked the model yet."""
    pupil = Pupil(settings.model, seed=0, slots=2)

    async def agent(task: Any, context: Context) -> Any:
        await gate(task, context)
        return await tooluse.agent(task, context)

    home = Home(agent, tooluse_score, lambda version: pupil.local, time.time)

    def close() -> None:
        home.close()
        pupil.close()

    def course(standing: Standing) -> Lesson | None:
        time.sleep(0.3)  # as long as large weights take to be loaded
        return Course(settings, pupil).lesson(standing)

    return plan_of(echo, [], course=course, seats=lambda: Seat(home.place()), close=close)


def called(store: Store, run: str) -> dict[str, set[str]]:
    """Which versions of the model every rollout called, in all its attempts."""
    return {
        one.name: {
            span.model.model
            for tried in store.views.attempts(one.id)
            for span in store.traces.spans(tried.token)
            if span.model is not None
        }
        for one in store.views.rollouts(run, most=100)
    }


async def test_what_a_run_handed_back_amid_a_lesson_is_run_by_the_weights_of_that_lesson(
    files: Files, tmp_path: Path
) -> None:
    shape = Shape(width=16, layers=1, heads=2, context=512)
    manifest = Manifest(kind="transformer", shape={}, created_at=0.0)
    save_transformer(tmp_path / "tiny", Transformer(shape, seed=0), manifest)
    few = {
        "test_tasks": 1,
        "test_seeds": 1,
        "probe_tasks": 4,
        "warm_up_rounds": 1,
        "warm_up_updates": 1,
        "warm_up_batch": 2,
    }
    settings = Quickstart(model=str(tmp_path / "tiny"), **few, grpo_steps=1, grpo_tasks=1, grpo_samples=2)
    gate = Gate(passes=1 + 4 + 1)  # the baseline, the first probe, and one of the second
    with open_store(files.fresh()) as store:
        stopped = Watched(store, of_tooluse(settings, gate))
        async with stopped.going():
            await until(lambda: gate.held == 2)
            stopped.control.stop()
        assert stopped.ended() == (RunState.CANCELLED, "interrupted")
        (made,) = store.checkpoints.of_run(stopped.run_id)
        status = await Watched(store, of_tooluse(settings, Gate(passes=100)), resume=stopped.run_id).run()
        assert status.run_state is RunState.COMPLETED
        base, taught = f"local/{settings.model}@0", f"local/{settings.model}@{made.id}"
        versions = called(store, status.run_id)
        assert len(versions) == 1 + 4 + 4 + 2 + 1
        for name, found in versions.items():
            if name.startswith(("baseline", "probe-0")):
                assert found == {base}
            elif name.startswith(("probe-1", "grpo")):
                assert found == {taught}
            else:
                assert base not in found


@pytest.mark.parametrize("how", ["stop", "drain", "timeout"])
async def test_a_run_stopped_while_it_learns_ends_at_once_and_learns_again_later(files: Files, how: str) -> None:
    with open_store(files.fresh()) as store:
        for limit_s in (1.0, 5.0, 25.0):  # whatever the machine takes to come to the second lesson
            school = School(held=2)
            stopped = Watched(store, at_school(school, timeout_s=limit_s if how == "timeout" else None))
            async with stopped.going() as running:
                await until(lambda school=school, running=running: school.begun.is_set() or running.done())
                if how != "timeout":
                    getattr(stopped.control, how)()
                last = await running  # although its learner has not come back
            if school.begun.is_set():
                break
        school.opened.set()
        await until(school.left.is_set)
        await asyncio.sleep(0.1)
        assert last.run_state is (RunState.TIMED_OUT if how == "timeout" else RunState.CANCELLED)
        assert len(store.steps.of_run(last.run_id)) == 1  # what came too late is not kept
        again = School()
        status = await Watched(store, at_school(again), resume=last.run_id).run()
        assert status.run_state is RunState.COMPLETED
        assert again.taught == [["l2-0", "l2-1"], ["l3-0", "l3-1"]]
        is_whole(store, status.run_id)


async def test_a_run_stopped_between_two_lessons_goes_on_with_the_second(files: Files) -> None:
    school, asked, opened = School(), threading.Event(), threading.Event()

    def slow(standing: Standing) -> Lesson | None:
        if len(standing.done) == 1:
            asked.set()
            assert opened.wait(PATIENCE_S)
        return school.course(standing)

    with open_store(files.fresh()) as store:
        stopped = Watched(store, replace(at_school(school), course=slow))
        async with stopped.going():
            await until(asked.is_set)
            stopped.control.stop()
        opened.set()
        assert stopped.ended() == (RunState.CANCELLED, "interrupted")
        again = School()
        status = await Watched(store, at_school(again), resume=stopped.run_id).run()
        assert status.run_state is RunState.COMPLETED
        assert again.taught == [["l2-0", "l2-1"], ["l3-0", "l3-1"]]
        is_whole(store, status.run_id)


async def test_a_run_killed_between_a_checkpoint_and_its_update_keeps_the_checkpoint_once(files: Files) -> None:
    """As kill -9 leaves it: the rollouts are done, the checkpoint is on record, the update is not."""
    with open_store(files.fresh()) as store:
        now, first = time.time(), School()
        run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="d", who="test", now=now - 99).result()
        lesson = first.course(Standing(run=run.id, folder=store.folder, done=[]))
        assert lesson is not None
        assert lesson.learn is not None
        await store.queue.enqueue(run.id, lesson.tasks, now=now)
        checkpoint = lesson.learn([]).checkpoint
        assert checkpoint is not None
        await store.checkpoints.add(checkpoint, run.id, now=now)
        status = await Watched(store, at_school(School()), resume=run.id).run()
        assert status.run_state is RunState.COMPLETED
        is_whole(store, run.id)
        assert store.checkpoints.get(checkpoint.id) == checkpoint


async def test_a_run_killed_before_its_end_was_recorded_has_nothing_left_to_do(files: Files) -> None:
    with open_store(files.fresh()) as store:
        status = await Watched(store, at_school(School())).run()
        again = School()
        resumed = await Watched(store, at_school(again), resume=status.run_id).run()
        assert (resumed.run_state, again.taught) == (RunState.COMPLETED, [])
        assert (resumed.lesson, resumed.rl_optimizer) == ("lesson 3", {"samples": 6})  # what was last is still told
        is_whole(store, status.run_id)


async def test_nothing_is_learnt_from_a_lesson_that_an_order_cancelled(files: Files) -> None:
    gate, school, url = Gate(passes=3), School(), files.fresh()
    with open_store(url) as store, open_store(url) as operator:
        slow = Pace(heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S)
        watched = Watched(store, at_school(school, gate, pace=slow))
        async with watched.going():
            await until(lambda: gate.held == 1)
            order(operator, watched.run_id, Wanted.CANCELLED)
            while operator.queue.cancel_open(watched.run_id, now=time.time(), why="enough").result():
                continue
        assert watched.ended() == (RunState.CANCELLED, "cancelled by an order")
        assert school.taught == [["l1-0", "l1-1"]]
        assert len(store.steps.of_run(watched.run_id)) == 1


@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (ValueError("shapes\ndo not fit"), "ValueError: shapes do not fit"),
        (BadInput("rl_optimizer", why="no room"), "rl_optimizer: no room"),
    ],
)
async def test_a_learner_that_fails_fails_the_run_in_one_line_and_it_can_be_taken_up(
    store: Store, failure: Exception, told: str
) -> None:
    def learn(experiences: Sequence[Experience]) -> Learnt:
        raise failure

    lesson = Lesson(name="lesson 1", tasks=[Task(name=f"l1-{n}", input=10 + n, split=Split.TRAIN) for n in range(2)])
    watched = Watched(store, replace(at_school(School()), course=lambda standing: replace(lesson, learn=learn)))
    with pytest.raises(type(failure)):
        await watched.run()
    assert watched.told() == [RunState.RUNNING, RunState.FAILED]
    assert (watched.statuses[-1].error, watched.statuses[-1].succeeded) == (told, 2)
    assert watched.ended() == (RunState.FAILED, told)
    status = await Watched(store, at_school(School()), resume=watched.run_id).run()
    assert status.run_state is RunState.COMPLETED
    is_whole(store, status.run_id)


async def test_what_a_driver_learnt_after_it_was_replaced_is_not_kept(files: Files) -> None:
    school, url = School(held=1), files.fresh()
    with open_store(url) as store, open_store(url) as operator:
        asleep = replace(PACE, heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S)
        watched = Watched(store, at_school(school, pace=asleep, report_s=PATIENCE_S))
        async with watched.going() as running:
            await until(school.begun.is_set)
            operator.runs.resume(watched.run_id, who="other", now=time.time(), silent_s=0.0).result()
            school.opened.set()
            with pytest.raises(StaleLease, match="another process has taken it up"):
                await running
        assert store.steps.of_run(watched.run_id) == store.checkpoints.of_run(watched.run_id) == []


# Failing


@pytest.mark.parametrize("table", ["spans", "runs"])
async def test_a_store_that_fails_fails_the_run_and_the_error_is_raised(files: Files, table: str) -> None:
    gate = Gate()
    with open_store(files.fresh()) as store:
        watched = Watched(store, plan_of(gate, tasks(2)))
        async with watched.going() as running:
            await until(lambda: gate.held == 2)
            store.db.write(lambda tx: tx._execute(f"ALTER TABLE {table} RENAME TO lost")).result()
            gate.opened.set()
        with pytest.raises(StoreError, match=f"no such table: {table}") as caught:
            await running
        assert watched.told() == [RunState.RUNNING, RunState.FAILED]  # even where the store cannot be told
        assert watched.statuses[-1].error == str(caught.value)
        if table != "runs":
            assert watched.ended() == (RunState.FAILED, str(caught.value))


async def test_a_status_that_cannot_be_told_fails_the_run_and_leaves_it_ended(files: Files, tmp_path: Path) -> None:
    def full(status: Status) -> None:
        raise StoreFull("status.json", why="No space left on device")

    with open_store(files.fresh()) as store:
        watched = Watched(store, plan_of(echo, tasks(2)))
        with pytest.raises(StoreFull, match="No space left"):
            await optimize(store, watched.plan, Control(), clock=time.time, observe=full, who="test", salt="s")
        (run,) = store.runs.newest()
        assert (run.state, run.error) == (RunState.FAILED, "status.json: No space left on device")
        watched.plan.close()


async def test_which_features_are_on_is_asked_before_each_lesson(files: Files) -> None:
    """A switch that is flipped between two lessons holds for the second; who is asked sees what the first one left."""
    asked: list[int] = []
    given: list[bool] = []

    def features(done: Sequence[StepRecord]) -> Features:
        asked.append(len(done))
        return Features(learning=not done)

    def course(standing: Standing) -> Lesson | None:
        def learn(experiences: Sequence[Experience]) -> Learnt:
            given.append(standing.features.learning)
            return Learnt(body={})

        number = len(standing.done)
        return Lesson(name=f"{number}", tasks=[Task(name=f"t{number}", input=1)], learn=learn) if number < 2 else None

    with open_store(files.fresh()) as store:
        plan = plan_of(echo, [], course=course)
        status = await optimize(
            store, plan, Control(), clock=time.time, observe=lambda s: None, who="ann", salt="a", features=features
        )
    assert status.run_state is RunState.COMPLETED
    assert (asked, given) == ([0, 1, 2], [True, False])
