"""Stores on SQLite, but where the loop itself is tested (`EACH_ENGINE`); a tiny model, and the weights that a run of it
leaves which nobody disturbs, made once for all tests."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.store import Store, open_store
from tests.conftest import Databases, Files
from tests.pipeline import learning
from tests.pipeline.scene import ran
from tests.workloads.scene import tiny


@pytest.fixture
def places(request: pytest.FixtureRequest) -> Files | Databases:
    found: Files | Databases = request.getfixturevalue(getattr(request, "param", "files"))
    return found


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="session")
def made(base: str, template: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    with open_store(Files(tmp_path_factory.mktemp("calm"), template).fresh()) as store:
        return learning.made(store, asyncio.run(ran(store, learning.model_spec(base))).run_id)


@pytest.fixture
def operator(url: str, store: Store) -> Iterator[Store]:
    """The same store as another process has it."""
    with open_store(url) as opened:
        yield opened
