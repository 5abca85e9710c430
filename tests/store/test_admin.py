"""Upkeep: migrations are reported, sizes are true, and pruning takes finished runs and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, IllegalMove, NotFound, StoreError, StoreTooNew
from holdfast.contracts.records import decode, encode
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.run import DesiredState, RunState
from holdfast.store import admin, schema
from holdfast.store.admin import migrate, set_back
from holdfast.store.db import HEAD, REVISIONS, engine_for, upgrade
from holdfast.store.store import Store, open_store
from holdfast.store.writer import WriteFuture
from tests.conftest import Clock, Databases, Files
from tests.store.scene import Scene, begin, checkpoint, once, ordered, problems, says, serving, signal, span

SERVING = {"releases", "trials", "exposures", "served", "flags", "checkpoints"} | {"tokens", "commands", "alerts"}


def rows(store: Store) -> dict[str, int]:
    return dict(admin.stats(store).rows)


def played(store: Store, clock: Clock, salt: str, tasks: int, *, end: RunState | None = RunState.COMPLETED) -> Scene:
    """A run whose rollouts succeeded, each with two spans and a signal."""
    scene = Scene(store, clock, begin(store, clock, salt=salt))
    scene.enqueue(*(f"t{n}" for n in range(tasks)))
    writes: list[WriteFuture[Any]] = []
    for attempt in (claim.attempt for claim in scene.claims(tasks)):
        writes.append(store.traces.add(attempt, [span(1), span(2)], now=clock.now))
        writes.append(store.traces.score(attempt, [signal()], now=clock.now))
        writes.append(store.queue.finish(attempt, AttemptState.SUCCEEDED, now=clock.now, reward=1.0))
    for write in writes:
        write.result()
    if end is not None:
        store.runs.end(scene.run, end, who="test", now=clock.now).result()
    return scene


def set_revision(url: str, revision: str) -> None:
    connection = engine_for(url).connect(read_only=False)
    connection.execute(f"UPDATE alembic_version SET version_num = '{revision}'")
    connection.close()


def first_revision(url: str) -> str:
    """A store as the first version left it; its address."""
    upgrade(engine := engine_for(url), REVISIONS[0])
    return engine.url


def test_a_migration_says_from_where_to_where(places: Files | Databases) -> None:
    url = places.blank()
    address = first_revision(url)
    assert admin.migrate(url) == admin.Migration(store=address, before=REVISIONS[0], after=HEAD)
    assert admin.migrate(url) == admin.Migration(store=address, before=HEAD, after=HEAD)


def test_a_store_that_is_missing_or_newer_is_not_migrated(places: Files | Databases) -> None:
    with pytest.raises(NotFound, match="there is none; check the path"):
        admin.migrate(places.blank())
    url = places.fresh()
    set_revision(url, "9999")
    with pytest.raises(StoreTooNew, match=f"its schema is 9999, this version knows up to {HEAD}"):
        admin.migrate(url)


def test_stats_count_rows_and_bytes(store: Store, clock: Clock) -> None:
    played(store, clock, "a", 3)
    store.blobs.put(b"12345", now=1.0)
    found = admin.stats(store)
    counted = {"runs": 1, "rollouts": 3, "attempts": 3, "spans": 6, "signals": 3, "blobs": 1, "ledger": 2}
    expected = dict.fromkeys(schema.metadata.tables.keys() - {"pulse"}, 0) | counted
    assert (found.store, found.schema, found.rows, found.bytes_blobs) == (store.url, HEAD, expected, 5)
    assert found.bytes_database > 50_000
    assert decode(admin.Stats, encode(found)) == found


def test_stats_count_the_rollouts_of_each_run_newest_first(store: Store, clock: Clock) -> None:
    played(store, clock, "a", 3)
    scene = played(store, clock, "b", 1, end=None)
    scene.enqueue("open")
    first, second = admin.stats(store).runs
    assert (first.run, first.project, first.state) == ("run-2-b", "default", RunState.RUNNING)
    assert {state: n for state, n in first.rollouts.items() if n} == {"succeeded": 1, "queuing": 1}
    assert (second.run, second.state, second.rollouts["succeeded"]) == ("run-1-a", RunState.COMPLETED, 3)
    assert [one.run for one in admin.stats(store, most=1).runs] == ["run-2-b"]
    assert admin.stats(store, project="other").runs == ()


def test_the_log_beside_a_file_counts_as_part_of_it(files: Files, clock: Clock) -> None:
    with open_store(files.fresh()) as store:
        played(store, clock, "a", 50)
        path = Path(store.url)
        both = path.stat().st_size + Path(f"{path}-wal").stat().st_size
        assert admin.stats(store).bytes_database == both > path.stat().st_size


@once
def test_only_finished_runs_of_the_project_that_ended_long_ago_may_go(store: Store, clock: Clock) -> None:
    old = played(store, clock, "old", 2)
    failed = played(store, clock, "failed", 1, end=RunState.FAILED)
    played(store, clock, "running", 1, end=None)
    busy = Scene(store, clock, begin(store, clock, salt="busy"))  # ended, and a worker has not noticed yet
    busy.enqueue("t")
    busy.claim()
    store.runs.end(busy.run, RunState.CANCELLED, who="test", now=clock.now).result()
    then = clock.now
    clock.advance(100)
    played(store, clock, "new", 1)
    assert admin.old_runs(store, before=then) == []
    assert admin.old_runs(store, before=then + 1) == [
        admin.Old(run=old.run, state=RunState.COMPLETED, ended_at=then, rollouts=2),
        admin.Old(run=failed.run, state=RunState.FAILED, ended_at=then, rollouts=1),
    ]
    other = Store(store.db, "other", store.folder)
    assert admin.old_runs(other, before=then + 1) == []


def test_pruning_takes_the_run_and_all_below_it_in_pieces(store: Store, clock: Clock) -> None:
    n = admin.CHUNK + 5
    played(store, clock, "gone", n)
    kept = played(store, clock, "kept", 2)
    (old,) = [one for one in admin.old_runs(store, before=clock.now + 1) if one.run == "run-1-gone"]
    assert list(admin.prune(store, old, who="ann", now=7.0)) == [admin.CHUNK, 5]
    left = rows(store)
    assert (left["runs"], left["rollouts"], left["attempts"], left["spans"], left["signals"]) == (1, 2, 2, 4, 2)
    assert [run.id for run in store.runs.newest()] == [kept.run]
    entry = list(store.ledger.entries())[-1]
    assert (entry.kind, entry.who, entry.at, entry.run) == ("prune", "ann", 7.0, "run-1-gone")
    assert entry.body == {"run": "run-1-gone", "state": "completed", "ended_at": clock.now, "rollouts": n}
    assert store.ledger.verify() == left["ledger"] == 5
    assert problems(store) == []


def test_pruning_takes_the_steps_and_scorings_of_a_run_and_leaves_its_checkpoints(store: Store, clock: Clock) -> None:
    gone, kept = (Scene(store, clock, begin(store, clock, salt=salt)) for salt in ("gone", "kept"))
    for scene, steps in ((gone, admin.CHUNK + 5), (kept, 2)):
        for step in range(steps):
            store.steps.add(scene.run, f"{step}/learn", {"loss": 1.0}, function="f", now=clock.now)
    store.checkpoints.add(checkpoint("root"), gone.run, now=clock.now)
    store.checkpoints.add(checkpoint("leaf", parent="root"), kept.run, now=clock.now).result()
    store.runs.end(gone.run, RunState.FAILED, who="test", now=clock.now).result()
    scored = [(f"{gone.run}/t", [signal()])]
    gone.enqueue("t")
    kept.enqueue("t")
    for name in ("first", "second"):
        store.scorings.add(gone.run, name, {}, scored, who="ann", now=clock.now)
    store.scorings.add(kept.run, "first", {}, [(f"{kept.run}/t", [signal()])], who="ann", now=clock.now)
    (old,) = admin.old_runs(store, before=clock.now + 1)
    assert list(admin.prune(store, old, who="ann", now=7.0)) == [1]
    left = rows(store)
    assert (left["scorings"], left["scored"]) == (1, 1)
    assert (left["runs"], left["steps"], left["checkpoints"]) == (1, 2, 2)
    assert [one.id for one in store.checkpoints.lineage("leaf")] == ["root", "leaf"]
    assert problems(store) == []


@once
def test_pruning_leaves_what_serves_even_what_came_of_the_run(store: Store, clock: Clock) -> None:
    scene = played(store, clock, "gone", 1, end=None)
    store.checkpoints.add(checkpoint("c"), scene.run, now=clock.now)
    store.runs.end(scene.run, RunState.COMPLETED, who="test", now=clock.now).result()
    serving(store, "checkpoint:c")
    ordered(store)
    before = {name: n for name, n in rows(store).items() if name in SERVING}
    (old,) = admin.old_runs(store, before=clock.now + 1)
    assert list(admin.prune(store, old, who="ann", now=7.0)) == [1]
    assert {name: n for name, n in rows(store).items() if name in SERVING} == before
    assert before == {**dict.fromkeys(SERVING, 1), "served": 2}
    assert problems(store) == []


@once
def test_pruning_that_was_interrupted_can_be_finished_and_nobody_resumes_the_rest(store: Store, clock: Clock) -> None:
    played(store, clock, "a", admin.CHUNK + 5, end=RunState.FAILED)
    (old,) = admin.old_runs(store, before=clock.now + 1)
    assert next(admin.prune(store, old, who="ann", now=7.0)) == admin.CHUNK
    assert store.runs.get(old.run).wanted is DesiredState.CANCELLED
    with pytest.raises(IllegalMove, match="was cancelled for good"):
        store.runs.resume(old.run, who="ann", now=8.0, silent_s=1.0).result()
    (rest,) = admin.old_runs(store, before=clock.now + 1)
    assert rest.rollouts == 5
    assert list(admin.prune(store, rest, who="ann", now=9.0)) == [5]
    assert rows(store)["runs"] == 0


@once
def test_a_run_that_was_taken_up_meanwhile_is_left_alone(store: Store, clock: Clock) -> None:
    played(store, clock, "a", 2, end=RunState.FAILED)
    (old,) = admin.old_runs(store, before=clock.now + 1)
    store.runs.resume(old.run, who="ann", now=clock.now, silent_s=0.0).result()
    with says(IllegalMove, f"run {old.run}: somebody works on it; prune it when it has ended"):
        list(admin.prune(store, old, who="ann", now=9.0))
    assert rows(store)["rollouts"] == 2
    assert store.runs.get(old.run).wanted is DesiredState.RUNNING
    assert [entry.kind for entry in store.ledger.entries()] == ["run", "run", "run"]


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
        assert after == before and problems(store) == []
        Scene(store, clock, scene.run).finish(held[1], AttemptState.SUCCEEDED, reward=1.0)  # and it goes on


def test_only_a_file_can_be_set_back(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is no store file"):
        set_back(str(tmp_path / "none.sqlite"))
