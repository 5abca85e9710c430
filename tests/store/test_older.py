"""A store set back to the schema before this one: refused as it is, and whole again after the migration."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput, StoreError
from holdfast.contracts.rollout import AttemptState
from holdfast.store.admin import as_before, migrate, set_back
from holdfast.store.check import check
from holdfast.store.db import HEAD, REVISIONS
from holdfast.store.export import export
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import Scene, begin, signal


def test_what_an_earlier_version_left_is_all_there_after_the_upgrade(tmp_path: Path, clock: Clock) -> None:
    url = str(tmp_path / "store.sqlite")
    with open_store(url) as store:
        scene = Scene(store, clock, begin(store, clock))
        scene.enqueue("a", "b", "c")
        held = scene.claims(2)
        store.traces.score(held[0].attempt, [signal("success", 0.0)], now=clock.now)
        scene.finish(held[0], AttemptState.SUCCEEDED, reward=1.0, output="x", outcome="wrong")
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


def test_what_an_earlier_version_could_not_hold_is_left_out_and_the_rest_is_sound(tmp_path: Path, clock: Clock) -> None:
    """Steps and their notes; a rollout is of no step then, and the step that asks for it takes it in again."""
    url = str(tmp_path / "store.sqlite")
    with open_store(url) as store:
        scene = Scene(store, clock, begin(store, clock))
        scene.enqueue("a", step="collect", version="p@1")
        store.steps.add(scene.run, "begin", {}, function="begin", now=clock.now).result()
        store.ledger.append("note", {"after": "it"}, who="ann", now=clock.now).result()
        before = _exported(store)
    set_back(url)
    migrate(url)
    with open_store(url) as store:
        assert not [text for part in check(store) for text in part.problems]
        assert store.steps.of_run(scene.run) == []
        assert [one.kind for one in store.ledger.entries()] == ["run", "note"]
        again, after = Scene(store, clock, scene.run), _exported(store)
        assert again.rollout("a").step is None
        again.enqueue("a", step="collect", version="p@1")
        assert again.rollout("a").step == "collect"
    assert before != after
    assert list(filter(None, map(as_before, before))) == list(filter(None, map(as_before, after)))


def _exported(store: Store) -> list[str]:
    lines: list[str] = []
    export(store, lines.append, version="1", now=1.0)
    return lines[1:]


def test_only_a_file_can_be_set_back(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no store file"):
        set_back(str(tmp_path / "none.sqlite"))
