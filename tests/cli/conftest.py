"""Commands as a user calls them: 80 columns, UTC, ann's login, no settings from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.store.store import Store
from tests.conftest import Clock, Files
from tests.store.scene import Scene, begin
from tests.warm import Warm, ran

PATIENCE_S = 60.0
At = tuple[str, str]  # --store and its address


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.splitlines()]

    @property
    def page(self) -> list[str]:
        """The lines, none of them wider than 80 columns; a path cannot be folded, nor a command that names a store."""
        assert [line for line in self.lines if len(line) > 80 and not re.search(r"(^|\s)/|--store", line)] == []
        return self.lines

    @property
    def refusal(self) -> str:
        """The one sentence that bad input is answered with, before any work."""
        assert (self.code, self.out, self.err.count("\n")) == (2, "", 1), self
        return self.err

    def done(self) -> Answer:
        assert self.code == 0, self.out + self.err
        return self


def unfolded(text: str) -> str:
    """What was said on stderr, each sentence in one line again; nothing was wider than 80 columns but what must stay
    whole: a path, a command, a word."""
    wide = [line for line in text.splitlines() if len(line) > 80]
    assert [line for line in wide if not re.search(r"/|holdfast [a-z]|--|^\s*\S+$", line)] == []
    return re.sub(r"\n  (?=\S)", " ", text)


class Cli:
    """Runs commands in this process, which is quick; `real` runs them as a program."""

    def __call__(self, *words: object) -> Answer:
        done = CliRunner().invoke(app, [str(word) for word in words], prog_name="holdfast")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Answer(done.exit_code, done.stdout, unfolded(done.stderr))

    def real(self, *words: object, **how: Any) -> Answer:
        done = ran(["-m", "holdfast.cli", *map(str, words)], timeout_s=2 * PATIENCE_S, **how)
        return Answer(done.returncode, done.stdout, unfolded(done.stderr))


@dataclass(frozen=True)
class Group:
    """The commands of one group, on one store."""

    cli: Cli
    name: str
    url: str

    def __call__(self, *words: object) -> Answer:
        return self.cli(self.name, *words, "--store", self.url)

    def says(self, *words: object) -> str:
        ran = self(*words)
        assert (ran.code, ran.err) == (0, ""), ran
        return ran.out.rstrip("\n")


@contextmanager
def running(*words: object, **how: Any) -> Iterator[subprocess.Popen[str]]:
    """The program while it goes on; cold where a session or a stdin of its own is asked for."""
    command, pipe = ["-m", "holdfast.cli", *map(str, words)], subprocess.PIPE
    is_cold = bool(how.keys() - {"env", "cwd"})
    started = partial(subprocess.Popen, [sys.executable, *command]) if is_cold else partial(Warm, command)
    with started(stdout=pipe, stderr=pipe, text=True, **how) as child:
        try:
            yield child
        finally:
            child.kill()


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline()


def ended(child: subprocess.Popen[str]) -> Answer:
    out, err = child.communicate(timeout=PATIENCE_S)
    return Answer(child.returncode, out, unfolded(err))


def until(condition: Callable[[], object], child: subprocess.Popen[str] | None = None) -> None:
    """Waits for the condition, as long as the child lives."""
    deadline = time.monotonic() + 2 * PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        assert child is None or child.poll() is None, child and child.communicate()
        time.sleep(0.01)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("LOGNAME", "ann")
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)
    time.tzset()
    yield Cli()
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def places(files: Files) -> Files:
    """What a command makes of a store does not depend on the engine below it; `test_stores` looks at both."""
    return files


@pytest.fixture
def at(url: str) -> At:
    """An empty store, as commands are told of it."""
    return "--store", url


@pytest.fixture
def nowhere(tmp_path: Path) -> At:
    """A store that is not there yet."""
    return "--store", str(tmp_path / "none" / "store.sqlite")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))  # agents are looked for there
    return tmp_path


@pytest.fixture
def scene(store: Store, clock: Clock) -> Scene:
    return Scene(store, clock, begin(store, clock))


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two models that know nothing, and are quick about it."""
    from tests.workloads.scene import tiny

    folder = tmp_path_factory.mktemp("weights")
    return tiny(folder / "w0", 0), tiny(folder / "w1", 1)
