"""Events: one for what changes, none for what does not, and none for who is no longer known."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from holdfast.contracts.commands import Alert, Severity
from holdfast.operate.serve import app
from holdfast.store.store import Store

PATIENCE_S = 60.0


def change(store: Store) -> None:
    store.alerts.raise_(Alert(code="c", severity=Severity.INFO, message="m", at=1.0)).result()


async def always() -> bool:
    return True


async def settled(store: Store) -> None:
    """The first look at a store is news of everything, once in a process."""
    await asyncio.to_thread(store.changes.wait, "queue", store.changes.seen("queue"), PATIENCE_S)


async def test_a_change_is_an_event_with_its_topic_and_a_quiet_store_sends_none(file_store: Store) -> None:
    await settled(file_store)
    events = app.topics(file_store.changes, always)
    async with asyncio.timeout(PATIENCE_S):
        assert await anext(events) == b"retry: 2000\n\n"
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await asyncio.to_thread(change, file_store)
        name, data = (await waiting).decode().splitlines()[:2]
    assert name == "event: change" and json.loads(data.removeprefix("data: ")) == ["alerts"]
    await events.aclose()


async def test_a_stream_ends_when_its_listener_is_no_longer_known(file_store: Store) -> None:
    await settled(file_store)
    known = [True, True, False]

    async def is_known() -> bool:
        return known.pop(0)

    async with asyncio.timeout(PATIENCE_S):
        found = [one async for one in app.topics(file_store.changes, is_known)]
    assert found == [b"retry: 2000\n\n"] and known == []


async def test_a_snapshot_is_sent_when_it_differs_in_more_than_its_moment(file_store: Store) -> None:
    told: list[dict[str, Any]] = [{"generated_unix_ms": k, "n": k // 3} for k in range(6)]  # 0 0 0 1 1 1

    async def look() -> Mapping[str, Any]:
        return told.pop(0)

    async def is_known() -> bool:
        if told:
            change(file_store) if len(told) % 2 else file_store.alerts.clear("c", at=2.0).result()
        return bool(told)

    async with asyncio.timeout(PATIENCE_S):
        found = [one.decode() async for one in app.snapshots(look, file_store.changes, is_known, "dashboard-7")]
    events = [(one.splitlines()[0], one.splitlines()[1], json.loads(one.splitlines()[2][6:])) for one in found]
    assert events[0][2] == {
        "schema_version": 1,
        "reset": True,
        "last_event_id": "dashboard-7",
        "reason": "history_not_retained_request_full_snapshot",
    }
    assert [(name, number, body.get("n")) for name, number, body in events[1:]] == [
        ("event: dashboard.snapshot", "id: dashboard-2", 0),
        ("event: dashboard.snapshot", "id: dashboard-3", 1),
    ]
