"""Workers: one row each, with its last sign of life."""

from __future__ import annotations

import pytest

from holdfast.contracts.errors import StoreError
from holdfast.contracts.run import WorkerRecord
from holdfast.store.store import Store, open_store
from tests.conftest import Clock


def register(store: Store, worker: str, clock: Clock) -> None:
    store.workers.register(worker, host="reef", pid=42, slots=8, now=clock.now).result()


def test_a_worker_is_born_beats_and_stops(store: Store, clock: Clock) -> None:
    register(store, "w1", clock)
    born = WorkerRecord(id="w1", host="reef", pid=42, slots=8, started_at=clock.now, beat_at=clock.now, stopped_at=None)
    assert store.workers.newest() == [born]
    assert store.workers.beat("w1", now=clock.advance(2)).result() is None
    (beaten,) = store.workers.newest()
    assert (beaten.started_at, beaten.beat_at, beaten.stopped_at) == (born.started_at, clock.now, None)
    assert store.workers.stop("w1", now=clock.advance(3)).result() is None
    (stopped,) = store.workers.newest()
    assert (stopped.beat_at, stopped.stopped_at) == (clock.now, clock.now)


def test_a_beat_is_of_one_worker_only(store: Store, clock: Clock) -> None:
    register(store, "w1", clock)
    register(store, "w2", clock)
    store.workers.beat("w1", now=clock.now + 5).result()
    assert [(w.id, w.beat_at) for w in store.workers.newest()] == [("w2", clock.now), ("w1", clock.now + 5)]


def test_the_newest_come_first(store: Store, clock: Clock) -> None:
    for n in range(4):
        register(store, f"w{n}", clock)
    assert [w.id for w in store.workers.newest(3)] == ["w3", "w2", "w1"]


def test_two_workers_cannot_have_one_name(store: Store, clock: Clock) -> None:
    register(store, "w1", clock)
    with pytest.raises(StoreError, match=r"(?i)unique"):
        register(store, "w1", clock)
    assert len(store.workers.newest()) == 1


def test_a_project_sees_its_own_workers(store: Store, url: str, clock: Clock) -> None:
    register(store, "w1", clock)
    with open_store(url, project="other") as elsewhere:
        register(elsewhere, "w2", clock)
        assert [w.id for w in elsewhere.workers.newest()] == ["w2"]
    assert [w.id for w in store.workers.newest()] == ["w1"]
