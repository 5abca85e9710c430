"""S9: what a store holds is for its owner alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.contracts.release import PolicyKind, Stage
from holdfast.store.store import open_store
from tests.conftest import Files


def modes(folder: Path) -> dict[str, str]:
    return {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("usual_umask")
def test_a_new_store_its_log_and_its_anchors_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    with open_store(folder / "store.sqlite") as opened:
        opened.releases.add(policy="p", kind=PolicyKind.WEIGHTS, source="s", who="me", now=1.0).result()
        opened.releases.move("p@1", Stage.LIVE, expect=Stage.CANDIDATE, who="me", why="w", now=2.0).result()
        found = modes(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {found[name] for name in ("store.sqlite", "store.sqlite-wal", "ledger.anchors")} == {"0o600"}


@pytest.mark.usefixtures("usual_umask")
def test_an_older_store_is_closed_to_everybody_and_stays_open_to_a_group(files: Files) -> None:
    path = Path(files.fresh())
    for before, after in ((0o644, 0o640), (0o660, 0o660), (0o666, 0o660)):
        path.chmod(before)
        open_store(path).close()
        assert stat.S_IMODE(path.stat().st_mode) == after
