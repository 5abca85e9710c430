"""A store set back to the schema before this one: refused as it is, and whole again after the migration."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput, StoreError
from holdfast.contracts.rollout import AttemptState
from holdfast.store.admin import migrate
from holdfast.store.check import check
from holdfast.store.db import HEAD, REVISIONS
from holdfast.store.older import set_back
from holdfast.store.store import open_store
from tests.conftest import Clock
from tests.store.scene import Scene, begin


def test_what_an_earlier_version_left_is_all_there_after_the_upgrade(tmp_path: Path, clock: Clock) -> None:
    url = str(tmp_path / "store.sqlite")
    with open_store(url) as store:
        scene = Scene(store, clock, begin(store, clock))
        scene.enqueue("a", "b", "c")
        held = scene.claims(2)
        scene.finish(held[0], AttemptState.SUCCEEDED, reward=1.0, output="x")
        before = (store.runs.get(scene.run), store.views.rollouts(scene.run), list(store.ledger.entries()))
    assert set_back(url) == REVISIONS[-2]
    with pytest.raises(StoreError, match=f"its schema is {REVISIONS[-2]}, not {HEAD}"):
        open_store(url, migrate=False)
    done = migrate(url)
    assert (done.before, done.after) == (REVISIONS[-2], HEAD)
    with open_store(url) as store:
        after = (store.runs.get(scene.run), store.views.rollouts(scene.run), list(store.ledger.entries()))
        assert after == before and not [text for part in check(store) for text in part.problems]
        Scene(store, clock, scene.run).finish(held[1], AttemptState.SUCCEEDED, reward=1.0)  # and it goes on


def test_only_a_file_can_be_set_back(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no store file"):
        set_back(str(tmp_path / "none.sqlite"))
