"""Experiments as a user calls them: 80 columns, no settings from outside."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from experiments.__main__ import app
from tests.cli.conftest import Answer

Experiment = Callable[..., Answer]


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """Runs `python -m experiments` with these words, in this process."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)

    def run(*words: object) -> Answer:
        ran = CliRunner().invoke(app, [str(word) for word in words], prog_name="experiments")
        if ran.exception is not None and not isinstance(ran.exception, SystemExit):
            raise ran.exception
        return Answer(ran.exit_code, ran.stdout, ran.stderr)

    return run
