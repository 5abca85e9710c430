"""Waiting for changes: woken by any process, not by what does not concern the waiter, and never left waiting."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from signal import SIGCONT, SIGSTOP
from typing import Any

import psycopg
import pytest

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.release import Experiment, ServedRequest
from holdfast.contracts.rollout import AttemptState, Claim
from holdfast.contracts.run import DesiredState
from holdfast.store import db, notifications
from holdfast.store.notifications import (
    ALERTS,
    FINISHED,
    FLAGS,
    ORDERS,
    QUEUE,
    RELEASES,
    ROOM,
    TOPICS,
    TRIALS,
    Notifications,
)
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Databases, command
from tests.store.children import ended, ready, tell
from tests.store.scene import Scene, begin, serving, signal, span

LONG_S, SHORT_S = 60.0, 0.15
ALERT = Alert(code="backlog", severity=Severity.WARNING, message="many wait", at=1.0)


def settle_down(store: Store) -> None:
    """Let the watcher start and give its first report, which is news of whatever was not touched here before."""
    assert store.changes.wait(ORDERS, store.changes.seen(ORDERS), LONG_S)


def test_the_first_look_counts_as_news(store: Store) -> None:
    """Nothing that happened between looking and waiting is missed, even before the watcher runs."""
    assert store.changes.wait(QUEUE, store.changes.seen(QUEUE), LONG_S)


def test_without_a_change_the_wait_ends_at_its_time(store: Store) -> None:
    settle_down(store)
    assert not store.changes.wait(QUEUE, store.changes.seen(QUEUE), SHORT_S)


def test_a_change_between_looking_and_waiting_is_not_missed(scene: Scene) -> None:
    settle_down(scene.store)
    seen = scene.store.changes.seen(QUEUE)
    scene.enqueue("t")
    assert scene.store.changes.wait(QUEUE, seen, LONG_S)


TRIAL = Experiment(name="u", kind="experiment", arms={"a": 0.5, "b": 0.5}, salt="s", created_at=1.0)
REQUEST = ServedRequest(id="r9", trial="u", arm="a", unit="u", at=3.0)
ACTS: list[tuple[Callable[[Scene, Claim], Any], set[str]]] = [
    (lambda s, held: s.enqueue("new"), {QUEUE}),
    (lambda s, held: s.claims(), {ROOM}),
    (lambda s, held: s.finish(held, AttemptState.SUCCEEDED), {FINISHED}),
    (lambda s, held: s.finish(held, AttemptState.FAILED), {QUEUE}),  # its retry may be waited for
    (lambda s, held: s.finish(held, AttemptState.RELEASED), {QUEUE}),
    (lambda s, held: s.cancel("held"), {FINISHED, ROOM, ORDERS}),
    (lambda s, held: s.want(DesiredState.PAUSED), {ORDERS, QUEUE}),
    (lambda s, held: serving(s.store), {RELEASES, TRIALS, FLAGS}),
    (lambda s, held: s.store.trials.begin(TRIAL, who="a", now=1.0).result(), {TRIALS}),
    (lambda s, held: s.store.alerts.raise_(ALERT).result(), {ALERTS}),
    # what concerns nobody else
    (lambda s, held: s.store.traces.add(held.attempt, [span()], now=s.clock.now).result(), set()),
    (lambda s, held: s.store.traces.score(held.attempt, [signal()], now=s.clock.now).result(), set()),
    (lambda s, held: s.beat(held), set()),
    (lambda s, held: s.store.runs.beat(s.run, driver=1, now=s.clock.now).result(), set()),
    (lambda s, held: s.store.ledger.append("note", {}, who="t", now=1.0).result(), set()),
    (lambda s, held: s.store.trials.record([REQUEST]).result(), set()),
    (lambda s, held: s.store.trials.feedback("r9", success=1.0).result(), set()),
    (lambda s, held: s.store.trials.expose("u", "u", "a", now=1.0).result(), set()),
    # nothing was there to do
    (lambda s, held: s.store.trials.begin(TRIAL, who="a", now=1.0).result(), set()),
    (lambda s, held: s.store.alerts.clear("other", at=1.0).result(), set()),
    (lambda s, held: s.enqueue(), set()),
    (lambda s, held: s.sweep(), set()),
    (lambda s, held: s.store.trials.end("u", who="a", why="b", now=3.0).result(), {TRIALS}),
]


def pass_on(topic: str, store: Store, other: Store) -> None:
    """News of the topic reaches both; what was committed before has reached them, then."""
    seen = [(one, one.changes.seen(topic)) for one in (store, other)]
    store.db.write(lambda tx: tx.touch(topic)).result()
    assert all(one.changes.wait(topic, before, LONG_S) for one, before in seen)


def test_each_call_wakes_those_whom_it_concerns(scene: Scene, url: str) -> None:
    with open_store(url, poll_s=0.01) as near:
        for store in (scene.store, near):
            settle_down(store)
        for place, (act, topics) in enumerate(ACTS):
            mine = scene.beside(f"{place}")
            mine.enqueue("held", "other")
            held, mark = mine.claim(), next(topic for topic in TOPICS if topic not in topics)
            pass_on(mark, scene.store, near)
            before = {store: {topic: store.changes.seen(topic) for topic in TOPICS} for store in (scene.store, near)}
            act(mine, held)
            pass_on(mark, scene.store, near)
            for store, seen in before.items():  # our own writer's news, and another's
                woken = {topic for topic in TOPICS if store.changes.seen(topic) != seen[topic]}
                assert woken == topics | {mark}, place


CHILD = """
import sys
from holdfast.contracts.rollout import Task
from holdfast.store.store import open_store

with open_store(sys.argv[1]) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    store.queue.enqueue(sys.argv[2], [Task(name="from afar", input=1)], now=1.0).result()
    print("done", flush=True)
"""


def test_another_process_wakes_the_waiter_long_before_its_time(scene: Scene, url: str) -> None:
    settle_down(scene.store)
    child = ready(CHILD, url, scene.run)
    seen = scene.store.changes.seen(QUEUE)
    tell(child)
    began = time.monotonic()
    assert scene.store.changes.wait(QUEUE, seen, LONG_S)
    assert time.monotonic() - began < LONG_S / 2
    assert scene.claim().rollout.name == "from afar"
    ended(child)


def test_a_wait_can_be_awaited(scene: Scene) -> None:
    settle_down(scene.store)

    async def both() -> float:
        seen = scene.store.changes.seen(QUEUE)
        waiting = asyncio.ensure_future(_await(scene.store.changes.after(QUEUE, seen)))
        await asyncio.sleep(0)
        began = time.monotonic()
        await scene.store.queue.enqueue(scene.run, [], now=1.0)
        scene.enqueue("t")
        await waiting
        return time.monotonic() - began

    assert asyncio.run(both()) < LONG_S / 2


async def _await(pending: object) -> None:
    await pending  # type: ignore[misc]


def test_a_forgotten_wait_is_dropped(store: Store) -> None:
    settle_down(store)
    pending = store.changes.after(QUEUE, store.changes.seen(QUEUE))
    store.changes.forget(pending)
    assert store.changes._waiting == []
    assert not store.changes.wait(QUEUE, store.changes.seen(QUEUE), 0.01)
    assert store.changes._waiting == []  # a wait that timed out leaves nothing behind


def test_a_topic_of_a_newer_version_is_passed_over(scene: Scene) -> None:
    """It shares the store with this one, and must not end this one's watch."""
    settle_down(scene.store)
    scene.store.db.write(lambda tx: tx.touch("orders")).result()
    scene.store.changes.committed({"dreams": 1})
    seen = scene.store.changes.seen(QUEUE)
    scene.enqueue("t")
    assert scene.store.changes.wait(QUEUE, seen, LONG_S)


def test_closing_wakes_everyone(url: str, clock: Clock) -> None:
    store = open_store(url)
    settle_down(store)
    woken: list[bool] = []
    seen = store.changes.seen(QUEUE)
    waiter = threading.Thread(target=lambda: woken.append(store.changes.wait(QUEUE, seen, LONG_S)))
    waiter.start()
    while not store.changes._waiting:
        time.sleep(0.001)
    store.close()
    waiter.join(LONG_S / 2)
    assert woken == [True]
    assert store.changes.wait(QUEUE, store.changes.seen(QUEUE), LONG_S)  # after closing nobody waits


def test_a_watcher_whose_connection_was_cut_listens_again(databases: Databases, clock: Clock) -> None:
    url = databases.fresh()
    with open_store(url) as store, open_store(url) as other:
        run = begin(other, clock)
        settle_down(store)
        seen = store.changes.seen(QUEUE)
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT 1 FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchall()
        command(url, cut)
        assert store.changes.wait(QUEUE, seen, LONG_S)  # what was missed meanwhile is news
        seen = store.changes.seen(QUEUE)
        Scene(other, clock, run).enqueue("t")
        assert store.changes.wait(QUEUE, seen, LONG_S)


def test_a_watcher_whose_connection_fell_silent_listens_anew(
    databases: Databases, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing ends such a connection: the other side takes what is sent, and never answers."""
    url = databases.fresh()
    monkeypatch.setattr(db, "LOOK_S", 0.3)
    with open_store(url) as store, open_store(url) as other:
        run = begin(other, clock)
        settle_down(store)
        with psycopg.connect(url) as connection:
            found = connection.execute("SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%'").fetchone()
        assert found is not None
        os.kill(found[0], SIGSTOP)
        try:
            seen = store.changes.seen(QUEUE)
            Scene(other, clock, run).enqueue("t")
            assert store.changes.wait(QUEUE, seen, LONG_S / 2)
        finally:
            os.kill(found[0], SIGCONT)


class FailingOnce:
    """An engine whose watcher ends with an error the first time, as after one failed read."""

    def __init__(self) -> None:
        self.watched = 0

    def watch(self, report: Callable[[dict[str, int]], None], stopped: Callable[[float], bool], every_s: float) -> None:
        self.watched += 1
        if self.watched == 1:
            raise OSError("disk I/O error")
        report(dict.fromkeys(TOPICS, -1))
        stopped(LONG_S)


def test_a_watcher_that_failed_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "AGAIN_S", 0.01)
    engine = FailingOnce()
    changes = Notifications(engine, 0.01)
    try:
        assert changes.wait(FINISHED, changes.seen(FINISHED), LONG_S)
    finally:
        changes.close()
    assert engine.watched == 2


def test_whoever_waits_on_a_loop_looks_again_though_nobody_wakes_him(store: Store) -> None:
    settle_down(store)

    async def look() -> bool:
        return await store.changes.moved(QUEUE, store.changes.seen(QUEUE), SHORT_S)

    assert not asyncio.run(look())
    assert store.changes._waiting == []
