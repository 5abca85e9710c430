"""Commands as a user calls them: 80 columns, UTC, no settings from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.store.store import Store
from tests.conftest import Clock, Files
from tests.store.scene import Scene, begin


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


class Cli:
    """Runs commands in this process, which is quick; `real` runs them as a program."""

    def __call__(self, *words: object) -> Answer:
        ran = CliRunner().invoke(app, [str(word) for word in words], prog_name="holdfast")
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return Answer(ran.exit_code, ran.stdout, ran.stderr)

    def real(self, *words: object, **how: Any) -> Answer:
        command = [sys.executable, "-m", "holdfast.cli", *map(str, words)]
        ran = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, **how)
        return Answer(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TZ", "UTC")
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
def scene(store: Store, clock: Clock) -> Scene:
    return Scene(store, clock, begin(store, clock))
