"""A scene on each engine, and two who meet in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.store.store import Store, open_store
from holdfast.store.writer import WriteFuture
from tests.conftest import Clock
from tests.store.scene import Scene, begin, held_open

Act = Callable[[Store], WriteFuture[Any]]
Race = Callable[[Act, Act], tuple[WriteFuture[Any], WriteFuture[Any]]]


@pytest.fixture
def scene(store: Store, clock: Clock) -> Scene:
    return Scene(store, clock, begin(store, clock))


@pytest.fixture
def race(store: Store, url: str) -> Iterator[Race]:
    """The second call, of another store, comes while the first one's transaction is held open, and meets its lock."""
    with open_store(url) as other:

        def meet(first: Act, second: Act) -> tuple[WriteFuture[Any], WriteFuture[Any]]:
            with held_open(store, lambda: first(store)) as (one,):
                two = second(other)
                time.sleep(0.1)
            return one, two

        yield meet
