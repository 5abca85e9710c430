"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.options import DEFAULT_STORE, existing, who
from holdfast.contracts.errors import NotFound, StoreError
from holdfast.store.db import REVISIONS, engine_for
from tests.cli.conftest import Cli
from tests.conftest import Files


def test_the_store_may_come_from_the_environment(cli: Cli, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", files.fresh())
    assert cli("runs").code == 0
    assert cli("runs", "--store", files.blank()).code == 2  # a flag wins


def test_looking_for_a_store_creates_none(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotFound):
        existing(DEFAULT_STORE)
    assert list(tmp_path.iterdir()) == []


def test_looking_at_an_older_store_does_not_change_it(files: Files) -> None:
    path = files.fresh()
    connection = engine_for(path).connect(read_only=False)
    connection.execute("UPDATE alembic_version SET version_num = ?", (REVISIONS[0],))
    connection.close()
    with pytest.raises(StoreError) as caught:
        existing(path)
    expected = f"its schema is {REVISIONS[0]}, not {REVISIONS[-1]}; run 'holdfast store migrate'"
    assert str(caught.value) == f"store {path}: {expected}"


@pytest.mark.parametrize("project", ["", " ", "x" * 101])
def test_a_project_has_a_name(cli: Cli, files: Files, project: str) -> None:
    ran = cli("runs", "--store", files.fresh(), "--project", project)
    assert ran.code == 2
    assert ran.err == f"holdfast: error: project {project!r}: must be 1 to 100 characters, not blank\n"


def test_orders_are_given_by_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    assert who() == "ann"
