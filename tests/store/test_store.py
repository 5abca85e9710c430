"""The front door: everything behind it belongs to one project and is closed with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput, NotFound, StoreError
from holdfast.store.store import open_store
from tests.conftest import Clock, Databases, Files
from tests.store.scene import begin


@pytest.mark.parametrize("project", ["", "  ", "x" * 101])
def test_a_project_needs_a_name(tmp_path: Path, project: str) -> None:
    with pytest.raises(BadInput) as refused:
        open_store(tmp_path / "store.db", project=project)
    assert str(refused.value) == f"project {project!r}: must be 1 to 100 characters, not blank"
    assert not (tmp_path / "store.db").exists()


def test_leaving_the_block_closes_it(url: str, clock: Clock) -> None:
    with open_store(url) as store:
        run = begin(store, clock)
    with pytest.raises(StoreError, match="the store is closed"):
        store.runs.get(run)
    with pytest.raises(NotFound), open_store(url) as store:
        store.runs.get(f"{run}-not")
    with pytest.raises(StoreError, match="the store is closed"):
        store.runs.get(run)


def test_files_lie_beside_the_store_or_in_the_state_folder(files: Files, databases: Databases, tmp_path: Path) -> None:
    with open_store(files.fresh(), state_folder=tmp_path / "elsewhere") as store:
        assert store.folder == tmp_path
        assert store.blobs.folder == tmp_path / "blobs"
    with open_store(databases.fresh(), state_folder=tmp_path / "elsewhere") as store:
        assert store.folder == tmp_path / "elsewhere"


def test_reports_lie_beside_a_folder_of_training_and_else_beside_the_store(
    places: Files | Databases, tmp_path: Path
) -> None:
    for folder, reports in (("state/training", "state/reports"), ("state/trained", "state/trained/reports")):
        (tmp_path / folder).mkdir(parents=True)
        at = places.fresh()
        if places.engine == "sqlite":
            at = str(Path(at).rename(tmp_path / folder / "store.db"))
        with open_store(at, state_folder=tmp_path / folder) as store:
            assert store.reports == tmp_path / reports
            assert not store.reports.exists()  # made by whoever writes there


def test_the_address_is_shown_without_its_password(databases: Databases) -> None:
    url = databases.fresh()
    with open_store(url.replace("//holdfast@", "//holdfast:secret@")) as store:
        assert store.url == url.replace("//holdfast@", "//holdfast:***@")


def test_a_path_may_be_a_path_or_text(files: Files) -> None:
    path = files.fresh()
    with open_store(Path(path)) as one, open_store(path) as other:
        assert one.url == other.url == path


def test_a_second_run_on_the_same_store_keeps_the_first(url: str, clock: Clock) -> None:
    runs = []
    for _ in range(2):
        with open_store(url) as store:
            runs.append(begin(store, clock))
    with open_store(url) as store:
        assert [run.id for run in store.runs.newest()] == runs[::-1]
