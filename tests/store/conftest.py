"""A scene on each engine."""

from __future__ import annotations

import pytest

from holdfast.store.store import Store
from tests.conftest import Clock
from tests.store.scene import Scene, begin


@pytest.fixture
def scene(store: Store, clock: Clock) -> Scene:
    return Scene(store, clock, begin(store, clock))
