"""Driving a run: its program comes to its end, every state of it is told, and whatever stops it, nothing is lost or
doubled."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.agent import Context
from holdfast.collect.pool import PoolStats, PoolTiming
from holdfast.contracts.algorithm import Batch, Work
from holdfast.contracts.errors import BadInput, Conflict, IllegalMove, StaleLease, StoreError, StoreFull
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.rollout import AttemptState, RolloutState, Split, Task
from holdfast.contracts.run import DesiredState, RunState, Status, StepRecord, this_process
from holdfast.operate import views
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.run import Control, DurableRun, assist, drive
from holdfast.policies.prompt import Prompt
from holdfast.store.store import Store, open_store
from tests.collect.agents import ones
from tests.collect.scene import PACE, PATIENCE_S, fall_silent, until
from tests.conftest import Files
from tests.pipeline.driving import (
    ASLEEP,
    EACH_ENGINE,
    SCHOOL,
    Gate,
    School,
    Watched,
    all_of,
    at_school,
    attempts,
    echo,
    failing,
    is_whole,
    names,
    order,
    spec_of,
    work,
)
from tests.store.filled import filled

# Ends


def test_telling_how_a_run_stands_does_not_read_what_is_over_again(tmp_path: Path) -> None:
    """Every rollout was read at every tick: the larger the run, the more of its pages were kept."""
    with open_store(filled(tmp_path / "long.sqlite", 8_000)) as store:
        record = store.runs.newest(most=1)[0]
        watched = Watched(store, spec_of(all_of(work(1)), echo, ones))
        how: Any = {"clock": time.time, "who": "test", "observe": watched.observe}
        run = DurableRun(store, record, watched.spec, features=lambda done: ALL_ON, **how)
        run.tell(RunState.RUNNING)
        steps = itertools.count()  # tens of instructions of SQLite's machine
        store.db.reading(lambda view: view._connection.set_progress_handler(lambda: next(steps) < 0, 10))
        before = next(steps)
        status = run.tell(RunState.RUNNING)
        between = next(steps)
        whole = run.tell(RunState.COMPLETED)
        assert 10 * (between - before) < next(steps) - between
    assert replace(whole, run_state=RunState.RUNNING, rewards={}, updated_unix_ms=0, elapsed_s=0.0) == replace(
        status, rewards={}, updated_unix_ms=0, elapsed_s=0.0
    )
    for split, of in whole.rewards.items():
        assert status.rewards[split].mean_reward == pytest.approx(of.mean_reward)
        assert (status.rewards[split].total, status.rewards[split].rewarded) == (of.total, of.rewarded)


@EACH_ENGINE
async def test_a_program_that_is_done_is_completed(store: Store) -> None:
    policy = Prompt({"prompt": "brief"})
    watched = Watched(store, spec_of(all_of(work(20, policy)), echo, ones))
    status = await watched.run()
    assert watched.told() == [RunState.RUNNING, RunState.COMPLETED]
    assert watched.statuses[-1] == status
    counts = (status.succeeded, status.failed, status.cancelled, status.dead, status.running, status.waiting)
    assert counts == (20, 0, 0, 0, 0, 0)
    found = {split: (of.total, of.rewarded, of.mean_reward) for split, of in status.rewards.items()}
    assert found == {"train": (14, 14, 1.0), "val": (6, 6, 1.0)}
    assert (status.model_ref, status.resources_id, status.error) == ("agent/test", "resources-1", None)
    assert (status.total_rollouts, status.lesson) == (20, "rollouts")
    assert watched.ended() == (RunState.COMPLETED, None)
    assert attempts(store, status.run_id, 20) == [["succeeded"]] * 20
    rollouts = [store.views.rollout(f"{status.run_id}/t{n}") for n in range(20)]
    assert {(one.resources, one.step, one.version) for one in rollouts} == {(1, "collect", policy.version)}
    begun, first, collected, ended = (entry.body for entry in store.ledger.entries())
    assert begun == {
        "begin": "optimize",
        "model_ref": "agent/test",
        "settings": hashlib.sha256(b"{}").hexdigest(),
        "process": asdict(this_process()),
    }
    assert (first["step"], first["name"], collected["step"], collected["name"]) == (1, "begin", 2, "collect")
    assert ended == {"end": "completed", "error": None}


async def test_looking_at_a_run_of_many_tasks_reads_none_of_them(store: Store) -> None:
    given = {"seed": 3, "optimize": [{"prompt": f"task {n}", "expected": "x" * 40} for n in range(20_000)]}
    status = await Watched(store, spec_of(all_of(work(2)), settings=given)).run()
    kept = store.runs.get(status.run_id).settings
    assert kept["seed"] == 3 and kept["optimize"]["count"] == 20_000
    assert len(json.dumps(views.run(store, status.run_id, now=time.time()), default=str)) < 64 * 1024  # megabytes once
    assert store.whole(kept) == given


async def odd(task: int, context: Context) -> int:
    return 1 // (task % 2)


def unscored(*arguments: Any) -> Any:
    raise ValueError("no judge")


@pytest.mark.parametrize(
    ("agent", "score", "counts"),
    [
        (failing, ones, (RunState.FAILED, 0, 3, 0)),  # nothing succeeded
        (odd, ones, (RunState.COMPLETED, 1, 2, 0)),  # something did
        (echo, unscored, (RunState.FAILED, 0, 3, 3)),  # given up without an answer is told apart
    ],
)
async def test_a_run_of_which_nothing_succeeded_has_failed(
    store: Store, agent: Any, score: Any, counts: tuple[Any, ...]
) -> None:
    watched = Watched(store, spec_of(all_of(work(3), max_attempts=1), agent, score, max_faults=0))
    status = await watched.run()
    assert (status.run_state, status.succeeded, status.failed, status.dead) == counts
    assert watched.told() == [RunState.RUNNING, status.run_state]
    assert watched.ended() == (status.run_state, status.error)
    line = failing.__code__.co_firstlineno + 1
    why = f"t0: failed: ValueError: no (driving.py:{line}, in failing) (attempt 1 of 1)"  # the first says why
    assert agent is not failing or status.error == f"no rollout succeeded; {why}"
    assert agent is not echo or status.rewards["train"].rewarded == 0


async def misspelt(task: dict[str, str], context: Context) -> str:
    return task["question"]


async def test_where_the_first_rollouts_all_fail_by_one_error_the_rest_is_not_run(store: Store) -> None:
    asked = [replace(one, input={"qestion": f"what is {one.name}?"}) for one in work(300)]
    status = await Watched(store, spec_of(all_of(asked, max_attempts=1), misspelt, workers=4)).run()
    assert status.run_state is RunState.FAILED and status.error is not None
    line = misspelt.__code__.co_firstlineno + 1
    why = f"KeyError: 'question' (test_run.py:{line}, in misspelt); the first task has 'qestion'; mend the agent, "
    assert status.error.startswith(f"no rollout succeeded: the first 16 all failed by {why}")
    assert 16 <= status.failed < 100 and status.cancelled == 300 - status.failed


async def test_errors_that_differ_and_a_single_success_let_a_run_go_on(store: Store) -> None:
    """A failure is data: what fails in many ways, or not always, is the agent's own business."""

    async def various(task: int, context: Context) -> int:
        raise (ValueError, KeyError, LookupError)[task % 3]("no")

    for agent, state, failed in ((various, RunState.FAILED, 40), (odd, RunState.COMPLETED, 20)):
        status = await Watched(store, spec_of(all_of(work(40), max_attempts=1), agent, workers=1)).run()
        assert (status.run_state, status.failed) == (state, failed)


async def test_a_program_without_rollouts_is_completed(store: Store) -> None:
    def note() -> dict[str, Any]:
        return {"a": 1}

    async def program(run: DurableRun) -> None:
        await run.step("note", note)

    status = await Watched(store, spec_of(program)).run()
    assert (status.run_state, status.total_rollouts, status.lesson) == (RunState.COMPLETED, 0, "note")


async def test_the_last_word_is_the_last_however_slow_its_observer_is(store: Store) -> None:
    watched = Watched(store, spec_of(all_of(work(40)), report_s=0.001), slow_s=0.03)
    await watched.run()
    await asyncio.sleep(0.2)
    assert watched.told() == [RunState.RUNNING, RunState.COMPLETED]
    moments = [status.updated_unix_ms for status in watched.statuses]
    assert moments == sorted(moments)


async def test_a_clock_that_is_set_does_not_silence_the_status(store: Store) -> None:
    gate = Gate()
    watched = Watched(store, spec_of(all_of(work(2)), gate, report_s=0.001), jumps_s=3 * 3600.0)
    async with watched.going():
        await until(lambda: len(watched.statuses) > 4)
        gate.opened.set()
    assert watched.statuses[-1].succeeded == 2


@pytest.mark.parametrize("is_refused", [False, True], ids=["that ended", "that was refused"])
async def test_a_run_lets_go_of_what_its_workers_share(store: Store, is_refused: bool) -> None:
    spec = spec_of(all_of(work(2)))
    home = spec.runtime._home
    assert home.current.thread.is_alive()
    if is_refused:
        with pytest.raises(StoreError):
            await Watched(store, spec, resume="run-9").run()
    else:
        await Watched(store, spec).run()
    assert not home.current.thread.is_alive()


@EACH_ENGINE
async def test_two_runs_on_one_store_have_nothing_in_common(store: Store) -> None:
    first, second = Watched(store, spec_of(all_of(work(6)))), Watched(store, spec_of(all_of(work(6))))
    statuses = await asyncio.gather(first.run(), second.run())
    assert {status.succeeded for status in statuses} == {6}
    assert statuses[0].run_id != statuses[1].run_id
    assert all(attempts(store, status.run_id, 6) == [["succeeded"]] * 6 for status in statuses)


# Stopping and going on


async def stopped_half_way(store: Store, ask: Callable[[Control], None]) -> Watched:
    """A run of ten of which three are done and two are being worked on when it is asked to end."""
    gate = Gate(passes=3)
    watched = Watched(store, spec_of(all_of(work(10)), gate, ones))
    async with watched.going() as running:
        await until(lambda: gate.held == 2)
        ask(watched.control)
        if ask is not Control.stop:
            await asyncio.sleep(0.3)
            assert not running.done()
            gate.opened.set()
    return watched


@EACH_ENGINE
async def test_a_run_that_is_stopped_hands_back_and_can_be_finished_later(store: Store) -> None:
    stopped = await stopped_half_way(store, Control.stop)
    assert stopped.told() == [RunState.RUNNING, RunState.CANCELLED]
    last = stopped.statuses[-1]
    assert (last.error, last.succeeded, last.running, last.waiting) == ("interrupted", 3, 0, 7)
    assert stopped.ended() == (RunState.CANCELLED, "interrupted")
    assert names(store, stopped.run_id) == ["begin"]  # what was not finished is not on record

    resumed = Watched(store, spec_of(all_of(work(10)), echo, ones), resume=stopped.run_id)
    status = await resumed.run()
    assert resumed.told() == [RunState.RUNNING, RunState.COMPLETED]
    assert (status.run_id, status.succeeded, status.total_rollouts) == (stopped.run_id, 10, 10)
    found = attempts(store, status.run_id, 10)
    assert sorted(found) == [["released", "succeeded"]] * 2 + [["succeeded"]] * 8
    told = [entry.body for entry in store.ledger.entries() if entry.kind == "run"]
    assert told[1:3] == [
        {"end": "cancelled", "error": "interrupted"},
        {"resume": "cancelled", "process": asdict(this_process())},
    ]


async def test_resuming_a_run_requeues_what_faults_ended(store: Store) -> None:
    stopped = await stopped_half_way(store, Control.stop)
    dead, now = f"{stopped.run_id}/t9", time.time()
    while store.views.rollout(dead).status is not RolloutState.DEAD:
        now += 60.0  # its backoff is over
        for claim in await store.queue.claim(stopped.run_id, "w", now=now, lease_s=60.0, most=10):
            end = AttemptState.FAULT if claim.rollout.id == dead else AttemptState.RELEASED
            await store.queue.finish(claim.attempt, end, now=now, error="no endpoint")
    status = await Watched(store, spec_of(all_of(work(10)), echo, ones), resume=stopped.run_id).run()
    assert (status.succeeded, status.failed) == (10, 0)


async def test_a_run_that_is_drained_finishes_what_runs(store: Store) -> None:
    drained = await stopped_half_way(store, Control.drain)
    last = drained.statuses[-1]
    assert (last.run_state, last.error) == (RunState.CANCELLED, "interrupted")
    assert (last.succeeded, last.running, last.waiting) == (5, 0, 5)
    assert {tuple(found) for found in attempts(store, last.run_id, 10)} == {("succeeded",), ()}


async def test_draining_does_not_take_for_ever(store: Store) -> None:
    gate = Gate()
    watched = Watched(store, spec_of(all_of(work(2)), gate, drain_s=0.3))
    async with watched.going():
        await until(lambda: gate.held == 2)
        watched.control.drain()
    assert watched.statuses[-1].waiting == 2
    assert attempts(store, watched.run_id, 2) == [["released"]] * 2


async def test_a_second_wish_to_stop_ends_a_drain(store: Store) -> None:
    gate = Gate()
    watched = Watched(store, spec_of(all_of(work(2)), gate, drain_s=PATIENCE_S))
    async with watched.going():
        await until(lambda: gate.held == 2)
        watched.control.drain()
        await asyncio.sleep(0.1)
        watched.control.stop()
    assert attempts(store, watched.run_id, 2) == [["released"]] * 2


async def test_a_run_over_its_time_has_timed_out_and_can_be_finished_later(store: Store) -> None:
    late = Watched(store, spec_of(all_of(work(4)), Gate(passes=1), timeout_s=0.5))
    status = await late.run()
    assert late.told() == [RunState.RUNNING, RunState.TIMED_OUT]
    assert status.succeeded <= 1  # one, where the machine is not busy
    assert (status.error, status.running) == ("not done after 0.5 s", 0)
    assert late.ended() == (RunState.TIMED_OUT, "not done after 0.5 s")
    again = await Watched(store, spec_of(all_of(work(4))), resume=late.run_id).run()
    assert (again.run_state, again.succeeded) == (RunState.COMPLETED, 4)


@EACH_ENGINE
async def test_a_run_whose_process_died_is_finished_by_another(store: Store) -> None:
    """As kill -9 leaves it: some done, some claimed, some not even enqueued; those of a version before steps."""
    now = time.time() - 120  # longer ago than a lease lasts
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="d", who="test", now=now).result()
    given: dict[str, Any] = {"max_attempts": 3, "max_faults": 5}
    splits = (Split.TRAIN, Split.TRAIN, Split.VAL)
    todo = [Task(name=f"t{n}", input=n, split=splits[n % 3], **given) for n in range(5)]
    await store.queue.enqueue(run.id, todo, now=now)
    done, _ = await store.queue.claim(run.id, "dead", now=now, lease_s=1.0, most=2)
    await store.queue.finish(done.attempt, AttemptState.SUCCEEDED, now=now)
    with pytest.raises(IllegalMove, match="another process drives it"):
        await Watched(store, spec_of(all_of(work(8)), timing=replace(PACE, lease_s=6000.0)), resume=run.id).run()
    status = await Watched(store, spec_of(all_of(work(8))), resume=run.id).run()
    assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 8)
    assert attempts(store, run.id, 8) == [["succeeded"], ["unresponsive", "succeeded"], *[["succeeded"]] * 6]


async def test_a_run_that_is_driven_cannot_be_taken_up_however_slow_its_observer_is(files: Files) -> None:
    """Whatever an observer does, heartbeats go on."""
    gate, url, seen = Gate(), files.fresh(), threading.Event()
    with open_store(url) as store, open_store(url) as other:
        watched = Watched(store, spec_of(all_of(work(2)), gate), seen=seen)
        async with watched.going():
            await until(lambda: watched.is_stuck)
            await beats(other, watched.run_id)
            with pytest.raises(IllegalMove, match="another process drives it"):
                await Watched(other, spec_of(all_of(work(2))), resume=watched.run_id).run()
            seen.set()
            gate.opened.set()
        assert watched.statuses[-1].run_state is RunState.COMPLETED


async def beats(store: Store, run: str, count: int = 3) -> None:
    """Until its driver has given so many signs of life."""
    for _ in range(count):
        before = store.runs.get(run).beat_at
        await until(lambda before=before: store.runs.get(run).beat_at > before)


@EACH_ENGINE
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
    watched = Watched(store, spec_of(all_of(work(2)), gate, timing=pace, report_s=report_s))
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
    assert names(operator, watched.run_id) == ["begin"]


async def test_a_driver_that_fails_after_it_was_replaced_fails_alone(store: Store, operator: Store) -> None:
    def observe(status: Status) -> None:
        operator.runs.resume(status.run_id, who="other", now=time.time(), silent_s=0.0).result()
        told.append(status)
        raise ValueError("no room for a status")

    told: list[Status] = []
    spec = spec_of(all_of(work(1)))
    with pytest.raises(ValueError, match="no room for a status"):
        await drive(store, spec, Control(), clock=time.time, observe=observe, who="test", salt="s")
    assert len(told) == 1
    assert operator.runs.get(told[0].run_id).state is RunState.RUNNING


AGENT = """
import asyncio
import hashlib
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
    said = r"holdfast: error: run run-1-\w+: another process has taken it up, and .*"
    assert re.fullmatch(said, " ".join(err.split()))
    assert "Traceback" not in err
    assert (tmp_path / "status.json").read_bytes() == before
    assert json.loads(before)["run_state"] == "completed"
    with open_store(tmp_path / "s.db") as store:
        (run,) = store.runs.newest()
        assert (run.state, run.driver, run.error) == (RunState.COMPLETED, 2, None)


async def test_a_run_that_is_taken_up_with_other_tasks_under_the_same_names_is_refused(store: Store) -> None:
    """Where its settings do not show it: the step was not done, so its inputs are not on record."""
    late = Watched(store, spec_of(all_of(work(2)), Gate(), timeout_s=0.3))
    await late.run()
    other = [Work(name="t0", input="something else", policy=Prompt(), group="t0")]
    again = Watched(store, spec_of(all_of(other)), resume=late.run_id)
    with pytest.raises(Conflict):
        await again.run()
    assert again.told() == [RunState.RUNNING, RunState.FAILED]


# Orders


async def heard(store: Store) -> None:
    """Until what is on record now has reached the pool: it asks at every beat, and when there is an order."""
    for _ in range(3):
        before = store.workers.newest()[0].beat_at
        await until(lambda before=before: store.workers.newest()[0].beat_at > before)


@EACH_ENGINE
@pytest.mark.parametrize("at_once", [True, False], ids=["all at once", "by the run itself"])
async def test_an_order_to_cancel_ends_the_run_for_good(store: Store, operator: Store, at_once: bool) -> None:
    gate = Gate(passes=2)
    # A beat that never comes: the order itself must be enough.
    watched = Watched(store, spec_of(all_of(work(8)), gate, timing=PoolTiming(**ASLEEP)))
    async with watched.going():
        await until(lambda: gate.held == 2)
        order(operator, watched.run_id, DesiredState.CANCELLED)
        if at_once:  # as `holdfast order` does it
            while operator.queue.cancel_open(watched.run_id, now=time.time(), why="enough").result():
                continue
    assert watched.told() == [RunState.RUNNING, RunState.CANCELLED]
    last = watched.statuses[-1]
    assert (last.error, last.succeeded, last.cancelled) == ("cancelled by an order", 2, 6)
    assert watched.ended() == (RunState.CANCELLED, "cancelled by an order")
    assert names(store, watched.run_id) == ["begin"]
    with pytest.raises(IllegalMove, match="was cancelled for good"):
        await Watched(store, spec_of(all_of(work(8))), resume=watched.run_id).run()


async def test_an_order_to_drain_ends_the_run_and_it_can_be_taken_up_again(store: Store, operator: Store) -> None:
    gate = Gate(passes=2)
    watched = Watched(store, spec_of(all_of(work(8)), gate))
    async with watched.going() as running:
        await until(lambda: gate.held == 2)
        order(operator, watched.run_id, DesiredState.DRAINING)
        await heard(store)
        assert not running.done()
        gate.opened.set()
    last = watched.statuses[-1]
    assert (last.run_state, last.error) == (RunState.CANCELLED, "drained by an order")
    assert (last.succeeded, last.waiting) == (4, 4)
    again = await Watched(store, spec_of(all_of(work(8))), resume=watched.run_id).run()
    assert again.succeeded == 8


async def test_an_order_to_drain_that_is_taken_back_too_late_still_ends_the_run(store: Store, operator: Store) -> None:
    gate = Gate()
    watched = Watched(store, spec_of(all_of(work(4)), gate))
    async with watched.going():
        await until(lambda: gate.held == 2)
        order(operator, watched.run_id, DesiredState.DRAINING)
        await heard(store)
        order(operator, watched.run_id, DesiredState.RUNNING)
        await heard(store)
        gate.opened.set()
    last = watched.statuses[-1]
    assert (last.run_state, last.error, last.succeeded) == (RunState.CANCELLED, "drained by an order", 2)


@pytest.mark.parametrize("wanted", [DesiredState.PAUSED, DesiredState.FROZEN])
async def test_a_held_run_waits_and_goes_on(store: Store, operator: Store, wanted: DesiredState) -> None:
    """Paused, it finishes what runs; frozen, it hands that back."""
    done = 3 if wanted is DesiredState.PAUSED else 1
    gate = Gate(passes=1)
    watched = Watched(store, spec_of(all_of(work(6)), gate))
    async with watched.going() as running:
        await until(lambda: gate.held == 2)
        order(operator, watched.run_id, wanted)
        await heard(store)
        gate.opened.set()
        await until(lambda: store.views.counts(watched.run_id)[RolloutState.QUEUING] == 6 - done)
        await heard(store)
        assert not running.done()
        assert store.views.counts(watched.run_id)[RolloutState.SUCCEEDED] == done
        order(operator, watched.run_id, DesiredState.RUNNING)
    assert watched.statuses[-1].run_state is RunState.COMPLETED


# A bounded queue


@EACH_ENGINE
async def test_a_producer_waits_where_the_queue_is_bounded(store: Store) -> None:
    deepest = 0

    def depth(run: str) -> int:
        return store.views.counts(run)[RolloutState.QUEUING]

    async def slow(task: Any, context: Context) -> Any:
        await asyncio.sleep(0.02)
        return task

    watched = Watched(store, spec_of(all_of(work(30)), slow, queue_limit=3))
    async with watched.going() as running:
        while not running.done():
            deepest = max(deepest, depth(watched.run_id))
            await asyncio.sleep(0)
    assert deepest == 3
    assert watched.statuses[-1].succeeded == 30
    assert attempts(store, watched.run_id, 30) == [["succeeded"]] * 30


async def test_a_bounded_run_that_was_stopped_is_finished_later(store: Store) -> None:
    late = Watched(store, spec_of(all_of(work(12)), Gate(passes=4), queue_limit=2))
    async with late.going():
        # Done, held, waiting: the rest never comes in.
        await until(lambda: sum(store.views.counts(late.run_id).values()) == 8)
        late.control.stop()
    status = await Watched(store, spec_of(all_of(work(12)), queue_limit=2), resume=late.run_id).run()
    assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 12)


# More workers


@EACH_ENGINE
async def test_another_process_helps_until_the_run_ends(store: Store, operator: Store) -> None:
    gate, policy = Gate(), Prompt()
    watched = Watched(store, spec_of(all_of(work(6)), gate, ones))
    async with watched.going():
        await until(lambda: gate.held == 2)
        helper = spec_of(all_of([]), gate, ones)
        helper.runtime.open(policy)
        helping = asyncio.create_task(assist(operator, helper, watched.run_id, Control(), clock=time.time))
        await until(lambda: gate.held == 4)
        gate.opened.set()
    tally: PoolStats = await asyncio.wait_for(helping, PATIENCE_S)
    assert tally.succeeded >= 2
    assert watched.statuses[-1].succeeded == 6
    assert attempts(store, watched.run_id, 6) == [["succeeded"]] * 6


async def test_a_helper_ends_after_its_driver_has_died(store: Store) -> None:
    long_ago = time.time() - 3600
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="d", who="test", now=long_ago).result()
    helping = assist(store, spec_of(all_of([]), echo), run.id, Control(), clock=time.time)
    with pytest.raises(StaleLease, match="its driver gave no sign of life for 3600 s"):
        await asyncio.wait_for(helping, PATIENCE_S)


async def test_a_helper_leaves_work_of_a_policy_that_it_has_not_opened_to_the_driver(files: Files) -> None:
    """A fault would use up what the rollout may meet of them, and the work would be given up."""
    gate, url = Gate(), files.fresh()
    with open_store(url) as store, open_store(url) as other:
        watched = Watched(store, spec_of(all_of(work(4)), gate, workers=1, max_faults=0))
        async with watched.going():
            await until(lambda: gate.held == 1)
            helper = spec_of(all_of([]), echo)
            helper.runtime.open(Prompt({"system": "another"}))
            helping = asyncio.create_task(assist(other, helper, watched.run_id, Control(), clock=time.time))
            await heard(other)
            gate.opened.set()
        assert (await asyncio.wait_for(helping, PATIENCE_S)).claimed == 0
        assert attempts(store, watched.run_id, 4) == [["succeeded"]] * 4


async def test_a_helper_that_is_not_wanted_any_more_hands_back(files: Files) -> None:
    gate, url = Gate(), files.fresh()
    with open_store(url) as store, open_store(url) as other:
        watched = Watched(store, spec_of(all_of(work(3)), gate, workers=1))
        async with watched.going():
            await until(lambda: gate.held == 1)
            control, helper = Control(), spec_of(all_of([]), gate, workers=2)
            helper.runtime.open(Prompt())
            helping = asyncio.create_task(assist(other, helper, watched.run_id, control, clock=time.time))
            await until(lambda: gate.held == 3)
            control.stop()
            assert (await asyncio.wait_for(helping, PATIENCE_S)).interrupted == 2
            gate.opened.set()
        assert watched.statuses[-1].succeeded == 3


async def test_nobody_helps_a_run_that_is_over(store: Store) -> None:
    status = await Watched(store, spec_of(all_of(work(2)))).run()
    helping = assist(store, spec_of(all_of([])), status.run_id, Control(), clock=time.time)
    assert (await asyncio.wait_for(helping, PATIENCE_S)).claimed == 0


# Learning


@EACH_ENGINE
async def test_steps_follow_one_another_and_what_each_left_is_on_record(store: Store) -> None:
    school = School()
    watched = Watched(store, at_school(school, report_s=0.001))
    status = await watched.run()
    assert (status.run_state, status.succeeded, status.total_rollouts) == (RunState.COMPLETED, 6, 6)
    assert school.taught == [["l1-0", "l1-1"], ["l2-0", "l2-1"], ["l3-0", "l3-1"]]  # in the order of the work
    assert (status.lesson, status.rl_optimizer) == ("lesson 3", {"samples": 6})
    told = [one.lesson for one in watched.statuses if one.lesson not in (None, "begin")]
    assert told == sorted(told)
    is_whole(store, status.run_id)


async def test_a_run_stopped_amid_a_step_goes_on_there(store: Store) -> None:
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


@pytest.mark.parametrize("how", ["stop", "drain", "timeout"])
async def test_a_run_stopped_while_it_learns_ends_at_once_and_learns_again_later(store: Store, how: str) -> None:
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
    assert names(store, last.run_id) == SCHOOL[:4]  # what came too late is not kept
    assert len(store.checkpoints.of_run(last.run_id)) == 1
    again = School()
    status = await Watched(store, at_school(again), resume=last.run_id).run()
    assert status.run_state is RunState.COMPLETED
    assert again.taught == [["l2-0", "l2-1"], ["l3-0", "l3-1"]]
    is_whole(store, status.run_id)


async def test_a_run_killed_before_its_end_was_recorded_has_nothing_left_to_do(store: Store) -> None:
    status = await Watched(store, at_school(School())).run()
    again = School()
    resumed = await Watched(store, at_school(again), resume=status.run_id).run()
    assert (resumed.run_state, again.taught) == (RunState.COMPLETED, [])
    assert (resumed.lesson, resumed.rl_optimizer) == ("lesson 3", {"samples": 6})  # what was last is still told
    is_whole(store, status.run_id)


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
    class Ill(School):
        is_ill = True

        def learn(self, number: int, batch: Batch, before: dict[str, Any], *, ctx: StepContext) -> dict[str, Any]:
            if self.is_ill:
                raise failure
            return super().learn(number, batch, before, ctx=ctx)

    watched = Watched(store, at_school(Ill()))
    with pytest.raises(type(failure)):
        await watched.run()
    assert watched.told() == [RunState.RUNNING, RunState.FAILED]
    assert (watched.statuses[-1].error, watched.statuses[-1].succeeded) == (told, 2)
    assert watched.ended() == (RunState.FAILED, told)
    assert names(store, watched.run_id) == SCHOOL[:2]
    well = Ill()
    well.is_ill = False
    status = await Watched(store, at_school(well), resume=watched.run_id).run()
    assert status.run_state is RunState.COMPLETED
    is_whole(store, status.run_id)


async def test_which_features_are_on_is_asked_before_each_step_that_learns(store: Store) -> None:
    """A switch that is flipped between two steps holds for the second; who is asked sees what the first one left."""
    asked: list[list[str]] = []
    given: list[bool] = []

    def features(done: Sequence[StepRecord]) -> Features:
        asked.append([one.name for one in done])
        return Features(learning="learn-0" not in asked[-1])

    def learn(number: int, *, ctx: StepContext) -> dict[str, Any]:
        given.append(ctx.features.learning)
        return {}

    async def program(run: DurableRun) -> None:
        for number in range(2):
            await run.step(f"learn-{number}", learn, number)

    status = await Watched(store, spec_of(program), features=features).run()
    assert status.run_state is RunState.COMPLETED
    assert (asked[2:], given) == ([["begin"], ["begin", "learn-0"]], [True, False])


# Failing


@pytest.mark.parametrize("table", ["spans", "runs"])
async def test_a_store_that_fails_fails_the_run_and_the_error_is_raised(store: Store, table: str) -> None:
    gate = Gate()
    watched = Watched(store, spec_of(all_of(work(2)), gate))
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


async def test_a_status_that_cannot_be_told_fails_the_run_and_leaves_it_ended(store: Store) -> None:
    def full(status: Status) -> None:
        raise StoreFull("status.json", why="No space left on device")

    spec = spec_of(all_of(work(2)))
    with pytest.raises(StoreFull, match="No space left"):
        await drive(store, spec, Control(), clock=time.time, observe=full, who="test", salt="s")
    (run,) = store.runs.newest()
    assert (run.state, run.error) == (RunState.FAILED, "status.json: No space left on device")
    assert not spec.runtime._home.current.thread.is_alive()
