"""What the tests stand on: fresh stores on both engines, a Postgres server of their own, a clock that moves when told.

The server starts when the first test asks for it. No Postgres on the machine is a failure, never a skip.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings

from holdfast.store.store import Store, open_store
from tests.postgres import postgres_server

TEMPLATE = "migrated"
settings.register_profile("same", derandomize=True, deadline=None)  # whether the tests pass depends on the code alone
settings.register_profile("fuzz", deadline=None, print_blob=True)  # make fuzz: other examples every time
settings.load_profile("same")
os.environ["OMP_NUM_THREADS"] = "1"  # two test processes on two cores: more threads only wait for one another


@dataclass
class Clock:
    """Time as a test tells it: unix seconds, standing still until moved."""

    now: float = 1_000_000.0

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever is the first to live in a town may have to wait for its compiler."""
    for item in items:
        if "town" in item.path.as_posix().partition("/tests/")[2] and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture
def clock() -> Clock:
    return Clock()


class Files:
    """Places for SQLite stores, in one folder."""

    engine = "sqlite"

    def __init__(self, folder: Path, template: Path) -> None:
        self._folder, self._template, self._numbers = folder, template, count(1)

    def blank(self) -> str:
        """An address where there is no store yet."""
        return str(self._folder / f"store-{next(self._numbers)}.db")

    def fresh(self) -> str:
        """The address of an empty store of today's schema."""
        return shutil.copy(self._template, self.blank())

    def clear(self) -> None:
        pass  # pytest removes the folder


class Databases:
    """Places for Postgres stores: each a database of its own."""

    engine = "postgres"
    _numbers = count(1)

    def __init__(self, server: str) -> None:
        self._server, self._made = server, list[str]()

    def blank(self) -> str:
        return self._create("template0")

    def fresh(self) -> str:
        return self._create(TEMPLATE)

    def clear(self) -> None:
        while self._made:
            command(self._server, f"DROP DATABASE IF EXISTS {self._made.pop()} WITH (FORCE)")

    def _create(self, template: str) -> str:
        self._made.append(f"test_{next(self._numbers)}")
        command(self._server, f"CREATE DATABASE {self._made[-1]} TEMPLATE {template}")
        return database(self._server, self._made[-1])


def command(server: str, *statements: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def database(server: str, name: str) -> str:
    return f"{server.rpartition('/')[0]}/{name}"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """A Postgres server with a migrated template; without fsync, since no test pulls its plug."""
    with postgres_server() as url:
        command(url, "ALTER SYSTEM SET fsync = off", "SELECT pg_reload_conf()", f"CREATE DATABASE {TEMPLATE}")
        open_store(database(url, TEMPLATE)).close()
        yield url


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store.db"
    open_store(path).close()
    return path


@pytest.fixture
def files(tmp_path: Path, template: Path) -> Files:
    return Files(tmp_path, template)


@pytest.fixture
def databases(server: str) -> Iterator[Databases]:
    places = Databases(server)
    yield places
    places.clear()


@pytest.fixture(params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest) -> Files | Databases:
    """Addresses for stores, on each engine in turn."""
    found: Files | Databases = request.getfixturevalue({"sqlite": "files", "postgres": "databases"}[request.param])
    return found


@pytest.fixture
def url(places: Files | Databases) -> str:
    return places.fresh()


@pytest.fixture
def store(url: str, tmp_path: Path) -> Iterator[Store]:
    """A fresh, empty store, on each engine in turn."""
    with open_store(url, poll_s=0.01, state_folder=tmp_path) as opened:
        yield opened


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
