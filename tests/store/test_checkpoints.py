"""Checkpoints: kept once, never changed, and each leads back to its root."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.errors import Conflict, NotFound, StaleLease, StoreCorrupt
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import begin, checkpoint
from tests.store.test_check import damage

SHA = "0123456789abcdef" * 4


def add(store: Store, name: str, run: str | None = None, **fields: Any) -> None:
    store.checkpoints.add(checkpoint(name, **fields), run, now=5.0).result()


def test_what_is_added_comes_back(store: Store, clock: Clock) -> None:
    whole = checkpoint(
        "best",
        mean_reward=0.25,
        artifact=Artifact(uri="file:///w", sha256=SHA),
        metadata={"note": "Grüße \ud83d", "n": [1, 2.5, None]},
    )
    store.checkpoints.add(whole, begin(store, clock), now=5.0).result()
    assert store.checkpoints.get("best") == whole


def test_the_newest_come_first_and_those_of_a_run_in_their_order(store: Store, clock: Clock) -> None:
    mine, other = begin(store, clock), begin(store, clock)
    for name, run in (("a", mine), ("b", None), ("c", other), ("d", mine)):
        add(store, name, run)
    assert [one.id for one in store.checkpoints.newest()] == ["d", "c", "b", "a"]
    assert [one.id for one in store.checkpoints.newest(2)] == ["d", "c"]
    assert [one.id for one in store.checkpoints.of_run(mine)] == ["a", "d"]
    assert [one.id for one in store.checkpoints.of_run(other)] == ["c"]


def test_a_line_leads_from_the_root(store: Store) -> None:
    for name, parent in (("root", None), ("a", "root"), ("b", "a"), ("aside", "root")):
        add(store, name, parent=parent)
    assert [one.id for one in store.checkpoints.lineage("b")] == ["root", "a", "b"]
    assert [one.id for one in store.checkpoints.lineage("root")] == ["root"]


def test_again_is_harmless_and_other_content_a_conflict(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    add(store, "c", run)
    add(store, "c", run)
    for changed in ({"run": run, "global_step": 2}, {"run": None}, {"run": begin(store, clock)}):
        with pytest.raises(Conflict) as refused:
            add(store, "c", **changed)  # type: ignore[arg-type]
        assert str(refused.value) == (
            "checkpoint c: is there already, with other content or of another run; give it another id"
        )
    assert store.checkpoints.newest() == [checkpoint("c")]


def test_a_parent_comes_before_its_child(store: Store) -> None:
    with pytest.raises(NotFound) as refused:
        add(store, "leaf", parent="root")
    assert str(refused.value) == (
        "checkpoint root: there is none in project 'default'; add it before leaf, which grew from it"
    )
    assert store.checkpoints.newest() == []


def test_a_project_has_its_own_names_and_sees_no_others(store: Store, url: str, clock: Clock) -> None:
    add(store, "c")
    run = begin(store, clock)
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.checkpoints.newest() == []
        for look in (elsewhere.checkpoints.get, elsewhere.checkpoints.lineage):
            with pytest.raises(NotFound, match="^checkpoint c: there is none in project 'other'$"):
                look("c")
        with pytest.raises(NotFound):
            add(elsewhere, "leaf", parent="c")
        with pytest.raises(NotFound):
            add(elsewhere, "c", run)
        add(elsewhere, "c", global_step=7)
    assert store.checkpoints.get("c").global_step == 1


def test_a_driver_that_was_replaced_adds_nothing(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    store.checkpoints.add(checkpoint("first"), run, now=5.0, driver=1).result()
    store.runs.resume(run, who="t", now=clock.advance(100), silent_s=1.0).result()
    with pytest.raises(StaleLease, match="another process has taken it up"):
        store.checkpoints.add(checkpoint("late"), run, now=5.0, driver=1).result()
    assert [one.id for one in store.checkpoints.newest()] == ["first"]


def test_the_database_refuses_to_change_a_checkpoint(store: Store) -> None:
    add(store, "c")
    connection: Any = store.db.engine.connect(read_only=False)
    for column in ("project", "id", "parent", "uri", "sha256", "body"):
        with pytest.raises(Exception, match="a checkpoint is immutable"):
            connection.execute(f"UPDATE checkpoints SET {column} = 'x'")
    connection.close()


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM checkpoints WHERE id = 'root'", "its line does not lead to a root: leaf <- root"),
        (  # the root is its own grandchild
            "UPDATE checkpoints SET body = replace(body, '\"parent\":null', '\"parent\":\"leaf\"') WHERE id = 'root'",
            "its line does not lead to a root: leaf <- root <- leaf",
        ),
    ],
)
def test_a_damaged_line_is_called_so(store: Store, statement: str, why: str) -> None:
    add(store, "root")
    add(store, "leaf", parent="root")
    damage(store, statement)
    with pytest.raises(StoreCorrupt) as found:
        store.checkpoints.lineage("leaf")
    assert str(found.value) == f"checkpoint leaf: {why}; run 'holdfast store check'"
