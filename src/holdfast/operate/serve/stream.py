"""Server-sent events: which topics of the store have changed, and snapshots that are sent when they differ.

An event is a hint to look again, never the news itself. A stream ends when whoever listens is no longer known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import orjson

from holdfast.store.notifications import TOPICS, Changes

BEAT_S = 10.0  # between two signs of life on a quiet stream
LOOK_S = 1.0  # between two looks whether the listener may still listen
LEAST_S = 0.25  # between two events: a busy queue changes some hundred times a second
SNAPSHOT_S = 0.75  # between two snapshots, as documented
QUIET = b": \n\n"

IsKnown = Callable[[], Awaitable[bool]]


async def changed(changes: Changes, *, most_s: float, seen: dict[str, int]) -> list[str]:
    """The topics that have moved on from `seen`, as soon as there is one; none when that takes too long."""
    waiting = [(topic, changes.after(topic, seen[topic])) for topic in TOPICS]
    tasks = [asyncio.ensure_future(_settled(pending)) for _, pending in waiting]
    try:
        await asyncio.wait(tasks, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        for _, pending in waiting:
            changes.forget(pending)
    found = [topic for topic in TOPICS if changes.seen(topic) != seen[topic]]
    seen.update({topic: changes.seen(topic) for topic in found})
    return found


async def _settled(pending: Awaitable[None]) -> None:
    await pending


async def topics(changes: Changes, is_known: IsKnown) -> AsyncGenerator[bytes, None]:
    """An event for each moment at which something changed, with the topics; a comment when all is quiet."""
    seen = {topic: changes.seen(topic) for topic in TOPICS}
    yield b"retry: 2000\n\n"
    quiet_s = 0.0
    while await is_known():
        found = await changed(changes, most_s=LOOK_S, seen=seen)
        if found:
            quiet_s = 0.0
            yield b"event: change\ndata: " + orjson.dumps(found) + b"\n\n"
            await asyncio.sleep(LEAST_S)
            continue
        quiet_s += LOOK_S
        if quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield QUIET


async def snapshots(
    look: Callable[[], Awaitable[Mapping[str, Any]]], changes: Changes, is_known: IsKnown, last_id: str | None
) -> AsyncIterator[bytes]:
    """The documented stream: a whole snapshot whenever it differs from the one before in more than its moment."""
    number, before, quiet_s = 0, b"", 0.0
    if last_id is not None:
        why = "history_not_retained_request_full_snapshot"
        reset = {"schema_version": 1, "reset": True, "last_event_id": last_id[:200], "reason": why}
        yield _event("dashboard.reset", number := number + 1, orjson.dumps(reset))
    seen = {topic: changes.seen(topic) for topic in TOPICS}
    while await is_known():
        snapshot = dict(await look())
        content = orjson.dumps({name: value for name, value in snapshot.items() if name != "generated_unix_ms"})
        if content != before:
            before, quiet_s = content, 0.0
            yield _event("dashboard.snapshot", number := number + 1, orjson.dumps(snapshot))
        elif quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield QUIET
        await asyncio.sleep(SNAPSHOT_S)
        quiet_s += SNAPSHOT_S
        if not await changed(changes, most_s=LOOK_S, seen=seen):
            quiet_s += LOOK_S


def _event(name: str, number: int, data: bytes) -> bytes:
    return f"event: {name}\nid: dashboard-{number}\ndata: ".encode() + data + b"\n\n"
