"""Orders at hand: what another process ordered is known soon, and nothing is read while nothing was ordered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.contracts.errors import NotFound
from holdfast.contracts.run import DesiredState
from holdfast.store.runs import HELD, Orders
from holdfast.store.store import Store, open_store
from tests.collect.scene import PATIENCE_S, until
from tests.conftest import Files


def begun(store: Store) -> str:
    return store.runs.begin(kind="k", model_ref="m", settings={}, salt="a", who="t", now=time.time()).result().id


@pytest.fixture
def local(files: Files) -> Iterator[Store]:
    with open_store(files.fresh()) as opened:
        yield opened


async def test_what_another_process_orders_is_known_soon(store: Store, url: str) -> None:
    run, other = begun(store), begun(store)
    orders = Orders(store.runs, store.changes)
    assert (orders.of(run), orders.of(other)) == (DesiredState.RUNNING, DesiredState.RUNNING)
    with open_store(url) as operator:
        for wanted in (DesiredState.PAUSED, DesiredState.FROZEN, DesiredState.RUNNING, DesiredState.CANCELLED):
            operator.runs.want(run, wanted, who="ann", why="w", now=time.time()).result()
            await until(lambda now=wanted: orders.of(run) is now)  # type: ignore[misc]
    assert orders.of(other) is DesiredState.RUNNING
    assert frozenset({DesiredState.PAUSED, DesiredState.FROZEN}) == HELD
    with pytest.raises(NotFound):
        orders.of("run-99")


def test_nothing_is_read_while_nothing_was_ordered(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run, orders, read = begun(local), Orders(local.runs, local.changes), list[str]()
    get = local.runs.get

    def counted(name: str) -> object:
        read.append(name)
        return get(name)

    monkeypatch.setattr(local.runs, "get", counted)
    patience = time.monotonic() + PATIENCE_S
    before = -1
    while len(read) != before:  # the first look at the file is news to whoever begins to watch it
        assert time.monotonic() < patience
        before = len(read)
        for _ in range(50):
            orders.of(run)
            time.sleep(0.005)
    assert before <= 2
    local.runs.want(run, DesiredState.PAUSED, who="ann", why="w", now=time.time()).result()
    assert orders.of(run) is DesiredState.PAUSED  # our own order is known at once


def test_whoever_waits_wakes_with_the_next_order(local: Store) -> None:
    run, orders, woke = begun(local), Orders(local.runs, local.changes), threading.Event()
    orders.of(run)

    def wait() -> None:
        while orders.of(run) is DesiredState.RUNNING:
            orders.wait(PATIENCE_S)
        woke.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    assert not woke.wait(0.1)
    local.runs.want(run, DesiredState.FROZEN, who="ann", why="w", now=time.time()).result()
    assert woke.wait(PATIENCE_S / 2)
    orders.wait(0.0)  # not for ever
