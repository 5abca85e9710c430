"""A bench on each engine, one where the engine makes no difference, and less patience with agents that will not end."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.collect import executors
from holdfast.store.store import Store, open_store
from tests.collect.scene import Bench
from tests.conftest import Files


@pytest.fixture
def bench(store: Store) -> Iterator[Bench]:
    made = Bench(store)
    yield made
    made.close()


@pytest.fixture
def file_store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh(), poll_s=0.01) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Iterator[Store]:
    """One store for all tests of a file: each begins a run of its own."""
    with open_store(shutil.copy(template, tmp_path_factory.mktemp("shared") / "store.db"), poll_s=0.01) as opened:
        yield opened


@pytest.fixture
def file_bench(file_store: Store) -> Iterator[Bench]:
    made = Bench(file_store)
    yield made
    made.close()


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "GRACE_S", 0.3)
