"""Waiting for the store to change, without hot polling, whichever process made the change.

Topics: queue (something may be claimed), room (something left the queue), done (a rollout is finished),
orders (an operator wants something else), releases (a version moved), trials (one began or ended), flags (one was
changed), alerts (one was raised, acknowledged or cleared). A wake-up is a hint to look again, never the news itself.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from typing import Any, Protocol

from holdfast.store.writer import WriteFuture, settle

TOPICS = ("queue", "room", "done", "orders", "releases", "trials", "flags", "alerts")
QUEUE, ROOM, FINISHED, ORDERS, RELEASES, TRIALS, FLAGS, ALERTS = TOPICS
LOOK_S = 5.0  # whoever waits looks at the store at least this often, should a wake-up have been lost
AGAIN_S = 0.5  # before a watcher that failed is started again, give or take half of it


class WatchedTopics(Protocol):
    def watch(
        self, report: Callable[[dict[str, int]], None], stopped: Callable[[float], bool], every_s: float
    ) -> None: ...


class Notifications:
    def __init__(self, engine: WatchedTopics, every_s: float) -> None:
        self._engine, self._every_s = engine, every_s
        self._lock = threading.Lock()
        self._count = dict.fromkeys(TOPICS, 0)  # local: grows with every change seen, ours or others'
        self._stored = dict.fromkeys(TOPICS, -1)  # the engine's own counters, to tell news from echo
        self._waiting: list[tuple[str, int, WriteFuture[None]]] = []
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def seen(self, topic: str) -> int:
        """Where this topic stands: look at it *before* looking at the store, then wait `after` it."""
        return self._count[topic]

    def after(self, topic: str, seen: int) -> WriteFuture[None]:
        """Settled once the topic has moved on from `seen`."""
        pending: WriteFuture[None] = WriteFuture()
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._watch, name="holdfast-changes", daemon=True)
                self._thread.start()
            if self._count[topic] == seen and not self._closed.is_set():
                self._waiting.append((topic, seen, pending))
                return pending
        settle([(pending, None, None)])
        return pending

    def wait(self, topic: str, seen: int, timeout: float | None) -> bool:
        """Block until the topic moved on; False when it did not within `timeout` seconds."""
        pending = self.after(topic, seen)
        try:
            pending.result(timeout)
        except TimeoutError:
            self.forget(pending)
            return False
        return True

    async def moved(self, topic: str, seen: int, within_s: float | None = None) -> bool:
        """As `wait`, on an event loop: True once the topic moved on, False when it is time to look all the same."""
        pending = self.after(topic, seen)
        try:
            # `wait_for` of CPython 3.11 swallows a cancellation that comes with the news: a run would never stop.
            async with asyncio.timeout(LOOK_S if within_s is None else within_s):
                await pending
        except TimeoutError:
            return False
        finally:
            if not pending.settled:
                self.forget(pending)
        return True

    def forget(self, pending: WriteFuture[None]) -> None:
        with self._lock:
            self._waiting = [entry for entry in self._waiting if entry[2] is not pending]

    def committed(self, topics: dict[str, int]) -> None:
        """Our own writer's news; the counters let the echo from the file be told apart."""
        if topics:
            self._news(topics)

    def close(self) -> None:
        self._closed.set()
        with self._lock:  # whoever is starting it has started it
            thread = self._thread
        if thread is not None:
            thread.join()
        with self._lock:
            waiting, self._waiting = self._waiting, []
        settle((pending, None, None) for _, _, pending in waiting)

    def _watch(self) -> None:
        """Whatever ends the watcher, a full disk or a lost server, it is started again: others wait for its news."""
        jitter = random.Random()  # no result depends on it
        while not self._closed.is_set():
            try:
                self._engine.watch(self._news, self._closed.wait, self._every_s)
            except Exception:  # what is wrong with the store, those who look at it will be told
                self._closed.wait(AGAIN_S * jitter.uniform(0.5, 1.5))

    def _news(self, counters: dict[str, int]) -> None:
        with self._lock:
            for topic, stored in counters.items():
                if topic not in self._count:  # of a newer version, which shares the store with this one
                    continue
                if stored < 0 or stored > self._stored[topic]:
                    self._stored[topic] = stored if stored >= 0 else self._stored[topic]
                    self._count[topic] += 1
            ready: list[tuple[WriteFuture[Any], None, None]] = []
            still: list[tuple[str, int, WriteFuture[None]]] = []
            for entry in self._waiting:
                if self._count[entry[0]] != entry[1]:
                    ready.append((entry[2], None, None))
                else:
                    still.append(entry)
            self._waiting = still
        settle(ready)
