"""What the tests stand on: fresh stores on both engines, a Postgres server of their own, a clock that moves when told.

The server starts when the first test asks for it. No Postgres on the machine is a failure, never a skip.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg
import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from holdfast.store.store import Store, open_store
from tests.postgres import postgres_server

TEMPLATE = "migrated"
MEMORY = Path("/dev/shm")


def has_room(folder: Path) -> bool:
    """Whether the stores of the tests may lie there: in memory, thousands of commits wait for no disk."""
    if not os.access(folder, os.W_OK):
        return False
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize > 4 * 2**30 and not found.f_flag & os.ST_NOEXEC


settings.register_profile("same", derandomize=True, deadline=None, max_examples=50)  # passing depends on the code alone
settings.register_profile("fuzz", deadline=None, print_blob=True)  # make fuzz: other and more examples every time
settings.register_profile("long", deadline=None, print_blob=True, max_examples=3000)  # make fuzz-bytes
settings.load_profile("same")
# Hypothesis takes the constants of all modules that happen to be imported for examples: which these are depends on the
# tests that the process ran before, and reading them takes it ten seconds.
providers._get_local_constants = lambda: providers._local_constants  # type: ignore[attr-defined]
if "TMPDIR" not in os.environ and has_room(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)
if "PYTEST_XDIST_WORKER" in os.environ:  # tracing every program that a test starts would take a quarter longer
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell that starts the tests in the background ignores Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)  # for them and for all that they start: some send it
os.environ["OMP_NUM_THREADS"] = "1"  # as many test processes as cores, or more: more threads only wait for one another


@dataclass
class Clock:
    """Time as a test tells it: unix seconds, standing still until moved."""

    now: float = 1_000_000.0

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests begin first: the guide's commands, then the stories of the examples."""
    first = ("tests/test_readme.py::test_the_commands", "tests/test_examples.py")
    items.sort(key=lambda item: next((n for n, name in enumerate(first) if item.nodeid.startswith(name)), len(first)))


def pytest_collectstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What was imported stays: nobody who collects garbage now or later has to walk through the whole of it."""
    gc.collect()
    gc.freeze()
    gc.enable()


COUNTED = set[str]()  # tests of which a case was run under coverage
WHOLE = (  # what they run, rooms have tests of
    "tests/browser/",
    "tests/drills/",
    "tests/experiments/",
    "tests/test_",
    *(f"tests/cli/test_{name}.py" for name in ("calibrate", "improve", "prove", "serving", "town")),
    *(f"tests/api/test_{name}.py" for name in ("calls", "driving", "evaluation")),
    *(f"tests/pipeline/test_{name}.py" for name in ("alpha_account", "history", "sft", "whole_runs")),
    "tests/learn/test_school.py",
    "tests/operate/test_recover.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Coverage counts the first case of each test, and nothing of whole runs (`WHOLE`, `untraced`).

    CPython 3.11 takes up to twice as long for whatever it traces. The floor that a part of the tests reaches is
    reached by all of them."""
    ours, others, test = sys.gettrace(), threading.gettrace(), item.nodeid.partition("[")[0]
    is_counted = test not in COUNTED and "untraced" not in getattr(item, "fixturenames", ())
    if ours is None or (is_counted and not test.startswith(WHOLE)):
        COUNTED.add(test)
        return (yield)
    sys.settrace(None)
    threading.settrace(None)  # type: ignore[arg-type]
    try:
        return (yield)
    finally:
        threading.settrace(others)  # type: ignore[arg-type]
        sys.settrace(ours)


@pytest.fixture(scope="session")
def untraced() -> None:
    """Without coverage: for whole runs, whose lines are counted by the tests of the rooms; and where agents are broken
    into: CPython 3.11 keeps a traced thread from going on while an exception waits for one inside C."""


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
        # To copy the files is twice as quick as to write them all to the log.
        command(self._server, f"CREATE DATABASE {self._made[-1]} TEMPLATE {template} STRATEGY file_copy")
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
