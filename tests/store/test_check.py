"""A sound store is called sound, and each kind of damage is found and named."""

from __future__ import annotations

import hashlib
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, select, text

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.commands import Role
from holdfast.contracts.errors import StoreCorrupt, StoreError
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.run import RunState
from holdfast.store import check as checking
from holdfast.store import schema
from holdfast.store.check import MOST, RULES, Finder, _due, changed_values, check, parts
from holdfast.store.db import engine_for, upgrade
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Databases, Files
from tests.store.children import run_child
from tests.store.scene import (
    AT_ONCE,
    JUDGED,
    Scene,
    begin,
    checkpoint,
    judged,
    once,
    ordered,
    run_sql,
    serving,
    signal,
    span,
)
from tests.store.tamper import damage, damaged, prompt


def broken(store: Store, **how: Any) -> dict[str, list[str]]:
    return {part.name: list(part.problems) for part in check(store, **how) if part.problems}


def attempted(look: Finder) -> list[str]:
    try:
        return list(look())
    except StoreError as error:
        return [str(error)]


@pytest.fixture
def lived(scene: Scene) -> Scene:
    """One rollout in each state, and some with a history."""
    for state in sorted(RolloutState, key=lambda state: state is RolloutState.QUEUING):  # last: else it is claimed next
        scene.brought_to(state, str(state))
    scene.enqueue("late", max_attempts=1, timeout_s=1.0, priority=1)
    scene.finish(scene.claim(), AttemptState.TIMEOUT)
    scene.enqueue("tried", max_attempts=3, priority=1)
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, [span(1), span(2)], now=scene.clock.now).result()
    scene.finish(claim, AttemptState.FAULT, backoff=AT_ONCE)
    claim = scene.claim()
    scene.store.traces.score(claim.attempt, [signal()], now=scene.clock.now).result()
    scene.finish(claim, AttemptState.SUCCEEDED, reward=1.0)
    scene.requeue("failed")
    scene.store.blobs.put(b"bytes", now=1.0)
    (file := scene.store.folder / "checkpoints/first/weights-1.safetensors").parent.mkdir(parents=True)
    file.write_bytes(b"weights")
    saved = Artifact(uri="checkpoints/first", sha256=WEIGHTS)
    scene.store.checkpoints.add(checkpoint("root", artifact=saved), now=1.0)
    scene.store.checkpoints.add(checkpoint("leaf", parent="root"), scene.run, now=1.0)
    serving(scene.store, "checkpoint:leaf")
    judged(scene.store)
    ordered(scene.store)
    for step in (1, 2):
        scene.store.steps.add(scene.run, f"{step}/learn", {"loss": 0.5}, function="f", now=1.0).result()
    scene.store.scorings.add(scene.run, "again", {}, [(f"{scene.run}/tried", [signal()])], who="t", now=1.0)
    scene.store.runs.end(begin(scene.store, scene.clock, salt="b"), RunState.COMPLETED, who="t", now=2.0).result()
    return scene


@pytest.mark.parametrize("how", ["", "quick", "deep"])
def test_a_store_that_has_lived_is_sound(lived: Scene, how: str) -> None:
    assert broken(lived.store, **({how: True} if how else {})) == {}


@once
def test_read_deeply_no_value_changes_unnoticed(lived: Scene) -> None:
    """Of each table, in its first row, each value by itself."""
    seen = 0
    with prompt(lived.store) as connection:
        for table in schema.SUMMED:
            row = connection.execute(f"SELECT * FROM {table.name} LIMIT 1").fetchone()
            if row is None:
                continue
            keys = [f'"{column.name}" IS ?' for column in table.c]
            for place, column in enumerate(table.c):
                if column.name == "key":
                    continue
                value = row[place]
                other = f"{value}x" if isinstance(value, str) else 1 if value is None else value + 1000
                connection.execute("BEGIN")
                change = f'UPDATE {table.name} SET "{column.name}" = ? WHERE {" AND ".join(keys)}'
                assert connection.execute(change, (other, *row)).rowcount == 1
                connection.execute("COMMIT")
                found, seen = list(changed_values(lived.store, [table])), seen + 1
                assert len(found) == 1 and found[0].startswith(f"{table.name}: "), (table.name, column.name, found)
                after = [other if at == place else was for at, was in enumerate(row)]
                connection.execute(change, (value, *after))
    assert list(changed_values(lived.store)) == [] and seen > 150


@once
def test_a_value_of_another_kind_is_a_problem_and_ends_no_check(lived: Scene) -> None:
    """Bytes where a text or a number should be, as pages that were swapped bring them."""
    seen = 0
    with prompt(lived.store) as connection:
        for table in schema.SUMMED:
            row = connection.execute(f"SELECT * FROM {table.name} LIMIT 1").fetchone()
            keys = " AND ".join(f'"{column.name}" IS ?' for column in table.primary_key)
            same = [] if row is None else [row[list(table.c).index(column)] for column in table.primary_key]
            for column, value in zip(table.c, row or (), strict=False):
                change = f'UPDATE {table.name} SET "{column.name}" = ? WHERE {keys}'
                if column.primary_key:
                    continue
                try:
                    connection.execute(change, (b"\x00\xff", *same))
                except sqlite3.IntegrityError:  # the schema itself refuses it
                    continue
                seen += 1
                assert any(part.problems for part in check(lived.store, deep=True)), (table.name, column.name)
                connection.execute(change, (value, *same))
    assert broken(lived.store) == {} and seen > 100


@once
def test_read_deeply_no_row_comes_or_goes_unnoticed_and_none_loses_its_checksum_or_its_number(lived: Scene) -> None:
    for table in schema.SUMMED:
        if lived.store.db.one(select(func.count()).select_from(table), {})[0] == 0:
            continue
        first = " AND ".join(f"{key.name} = (SELECT {key.name} FROM {table.name} LIMIT 1)" for key in table.primary_key)
        damages = [f"DELETE FROM {table.name} WHERE {first}", f"UPDATE {table.name} SET checksum = NULL WHERE {first}"]
        if "key" in table.c:
            damages += [f"UPDATE {table.name} SET key = {key} WHERE {first}" for key in (0, 10**6)]
        for statement in damages:
            with damaged(lived.store, statement):
                found = list(changed_values(lived.store, [table]))
                assert len(found) == 1 and found[0].startswith(f"{table.name}: "), (statement, found)
    assert list(changed_values(lived.store)) == []


@once
def test_what_is_pruned_is_not_missed(lived: Scene) -> None:
    lived.store.db.write(lambda tx: tx.run(delete(schema.flags), {}).rowcount).result()
    assert list(changed_values(lived.store)) == []


def test_rows_from_before_there_were_checksums_are_no_damage_and_no_others_go_without(files: Files) -> None:
    url = files.blank()
    upgrade(engine := engine_for(url), "0008")
    insert = "INSERT INTO flags (project, name, body, changed_at) VALUES ('default', 'old', '{}', 1.0)"
    connection = engine.connect(read_only=False)
    connection.execute(insert)
    connection.close()
    with open_store(url) as store:
        assert list(changed_values(store)) == []
        with prompt(store) as other:
            other.execute(insert.replace("old", "new"))
        assert list(changed_values(store)) == [
            "flags: has 2 rows, and 1 were written",
            "flags: 2 rows have no checksum, and 1 were written without",
        ]


@once
def test_a_lost_counter_and_a_record_that_cannot_be_read_are_problems_of_their_parts(lived: Scene) -> None:
    damage(lived.store, "DELETE FROM pulse WHERE topic = 'orders'", "UPDATE commands SET answer = '{'")
    found = broken(lived.store)
    assert found["counters"] == ["counter orders: is not there, or below 0"]
    assert found["orders"][0].startswith("a record cannot be read: JSONDecodeError: ")
    assert found.keys() == {"counters", "orders"}


def test_a_server_that_verifies_no_page_is_told(databases: Databases, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(databases.fresh()) as store:
        assert list(changed_values(store)) == []
        monkeypatch.setattr(checking, "VERIFIED", text("SELECT 'off'"))
        assert list(changed_values(store)) == [checking.UNVERIFIED]
        parts = {part.name: part for part in check(store, deep=True)}
        assert parts["values"].notes == (checking.UNVERIFIED,) and parts["values"].problems == ()


def test_a_log_that_was_deleted_or_torn_is_noticed_before_anybody_goes_on(files: Files) -> None:
    for place, spoil in enumerate((lambda log: b"", lambda log: log[: len(log) // 2], lambda log: None)):
        url = files.fresh()
        assert run_child(LEFT_OPEN, url).splitlines() == ["20"]
        log = Path(f"{url}-wal")
        left = spoil(log.read_bytes())
        if left is None:
            log.unlink()
        else:
            log.write_bytes(left)
        Path(f"{url}-shm").unlink()
        with pytest.raises(StoreCorrupt, match=r"\d+ commits are missing that were made: its -wal file was deleted"):
            open_store(url)
        with pytest.raises(StoreCorrupt, match=f"to go on without them delete {url}-mark"):
            open_store(url)
        Path(f"{url}-mark").unlink()
        with open_store(url) as store:
            assert len(store.runs.newest()) < 20, place


def test_a_log_that_a_killed_process_left_is_whole(files: Files) -> None:
    url = files.fresh()
    assert run_child(LEFT_OPEN, url).splitlines() == ["20"]
    with open_store(url) as store:
        assert len(store.runs.newest()) == 20


LEFT_OPEN = """
import os, sys
from holdfast.store.store import open_store
store = open_store(sys.argv[1])
for n in range(20):
    store.runs.begin(kind="k", model_ref="m", settings={}, salt=str(n), who="t", now=1.0).result()
print(len(store.runs.newest()), flush=True)
os._exit(0)
"""


def test_every_part_is_looked_at(store: Store) -> None:
    names = (
        "runs leases rollouts attempts spans signals budgets steps scorings checkpoints releases trials labels guards"
    )
    names += " sources arms flags judgements orders recorded noted tasks scored recount counters ledger blobs weights"
    only = ["file", "references"] if store.db.engine.name == "sqlite" else []
    assert [part.name for part in check(store)] == [*only, *names.split()]


def of(name: str) -> str:
    return f"(SELECT key FROM rollouts WHERE name = '{name}')"


def tried(name: str) -> str:
    return f"(SELECT key FROM attempts WHERE rollout = {of(name)})"


ALSO = {
    "leases": {"attempts"},
    "steps": {"references", "recorded"},
    "trials": {"references", "noted"},
    "arms": {"noted"},
    "flags": {"noted"},
    "checkpoints": {"sources"},
    "releases": {"sources", "recount"},
    "sources": {"recount"},
}
WEIGHTS = hashlib.sha256(b"weights").hexdigest()
# What is done (an update, unless it says otherwise), the part that finds it, and what it says.
DAMAGE = [
    ("runs SET ended_at = NULL WHERE state = 'completed'", "runs", "run run-2-b: state completed, wanted running"),
    ("runs SET wanted = 'sleeping' WHERE state = 'running'", "runs", "run run-1-a: state running, wanted sleeping"),
    (
        f"attempts SET status = 'fault', ended_at = 1 WHERE rollout = {of('running')}",
        *("leases", "rollout run-1-a/running: is running with 0 running attempts, not 1"),
    ),
    (
        f"attempts SET status = 'running', ended_at = NULL WHERE rollout = {of('dead')}",
        *("leases", "rollout run-1-a/dead: is dead, yet its attempt 1 is running"),
    ),
    ("rollouts SET status = 'lost' WHERE name = 'queuing'", "rollouts", "/queuing: has the unknown status 'lost'"),
    ("rollouts SET ended_at = NULL WHERE name = 'cancelled'", "rollouts", "/cancelled: is cancelled, and its time of"),
    ("rollouts SET final = NULL WHERE name = 'succeeded'", "rollouts", "/succeeded: is succeeded, but no succeeded"),
    # ran out of time, and is no success
    ("rollouts SET status = 'succeeded' WHERE name = 'late'", "rollouts", "/late: is succeeded, but no succeeded att"),
    # a fault of ours never decides
    (f"attempts SET status = 'fault' WHERE rollout = {of('late')}", "rollouts", "/late: is failed, but no failed att"),
    # the attempt of another rollout
    (f"rollouts SET final = {tried('succeeded')} WHERE name = 'tried'", "rollouts", "tried: is succeeded, but no succ"),
    (
        f"rollouts SET final = {tried('dead')} WHERE name = 'dead'",
        "rollouts",
        "/dead: is dead, yet names a deciding att",
    ),
    ("rollouts SET resources = 7 WHERE name = 'queuing'", "rollouts", "run-1-a/queuing: names resources-7, which is"),
    (
        f"attempts SET number = 3 WHERE number = 2 AND rollout = {of('tried')}",
        *("attempts", "rollout run-1-a/tried: has 2 attempts, the last is number 3, and says 2"),
    ),
    ("rollouts SET attempt_count = 1 WHERE name = 'queuing'", "attempts", "has 0 attempts, the last is number 0, and"),
    (f"attempts SET ended_at = NULL WHERE rollout = {of('dead')}", "attempts", "run-1-a/dead: attempt 1 is 'fault', a"),
    ("spans SET attempt = 99", "spans", "attempt 99: is not there, but has 2 spans"),
    ("signals SET attempt = 98", "signals", "attempt 98: is not there, but has 1 signals"),
    ("steps SET run = 97", "steps", "run 97: is not there, but has 2 steps"),
    ("DELETE FROM steps WHERE step = 1", "steps", "run run-1-a: step 1 is missing"),
    ("steps SET step = 5 WHERE step = 2", "steps", "run run-1-a: steps 2 to 4 are missing"),
    (
        "checkpoints SET parent = 'gone' WHERE id = 'leaf'",
        "checkpoints",
        "checkpoint leaf: its parent gone is not there",
    ),
    ("releases SET share = 50", "releases", "release sprout@1: live with 50 % and weights do not fit together"),
    ("releases SET kind = 'dream', evidence = NULL", "releases", "release sprout@1: live with 100 % and dream do not"),
    ("releases SET evidence = 'abcdefabcdefabcdef'", "releases", "sprout@1: its evidence abcdefabcdef is not there"),
    ("releases SET source = 'checkpoint:gone'", "sources", "release sprout@1: its source checkpoint:gone is not there"),
    ("releases SET source = 'resources:7'", "sources", "release sprout@1: its source resources:7 is not there"),
    ("releases SET parent = 'sprout@9'", "sources", "release sprout@1: its parent sprout@9 is not there"),
    ("labels SET version = 3", "labels", f"label of {JUDGED} on correctness@1 by ann: version 3 is the last of 1"),
    (
        "artefacts SET body = replace(body, '2 + 2', '2 + 3')",
        *("judgements", f"artefact {JUDGED}: is not what it was when it was kept"),
    ),
    ("calibrations SET judge = 'n'", "judgements", "calibration of n on correctness@1: its record is of m on correct"),
    ("exposures SET trial = 99", "trials", "trial 99: is not there, but has 1 exposures"),
    ("served SET trial = 98", "trials", "trial 98: is not there, but served 2 requests"),
    ("served SET project = 'other' WHERE id = 'r1'", "trials", "request r1: of project other, its trial t of default"),
    ("exposures SET arm = 'blue'", "arms", "trial t: 1 units were given 'blue', which is not one of its arms"),
    ("served SET arm = 'blue' WHERE id = 'r2'", "arms", "trial t: 1 requests were answered by 'blue', which is not"),
    ("flags SET name = 'gamma'", "flags", "flag gamma: its record is of beta at 1.0"),
    ("commands SET id = 'c9'", "orders", "order c9: is not the one that the ledger has"),
    ("commands SET answer = '{}'", "orders", "order c1: is not the one that the ledger has"),
    (
        "ledger SET who = 'nobody' WHERE seq = 2",
        "ledger",
        "ledger: entry 2 was changed after it was written; compare w",
    ),
]


def test_damage_is_found_and_named(lived: Scene) -> None:
    is_file = lived.store.db.engine.name == "sqlite"  # on a server, what SQL finds: the rest is the same code
    for statement, part, expected in [row for row in DAMAGE if is_file or row[1] in RULES]:
        with damaged(lived.store, statement if statement.startswith("DELETE") else f"UPDATE {statement}"):
            looks = (
                parts(lived.store) if is_file else [(name, look) for name, look in parts(lived.store) if name in RULES]
            )
            found = {name: problems for name, look in looks if (problems := attempted(look))}
        assert len(found[part]) == 1 and expected in found[part][0], statement
        assert set(found) <= {part} | ALSO.get(part, set()), statement  # one cause, found twice
    with damaged(lived.store, "DELETE FROM artefacts"):
        waiting = [f"artefact {JUDGED}: is not there, but has 1 {what}" for what in ("judgements", "doubts", "labels")]
        assert broken(lived.store) == {"labels": waiting}
    assert broken(lived.store) == {}


@pytest.mark.parametrize("quick", [False, True])
def test_weights_that_are_gone_or_other_ones_are_found(lived: Scene, quick: bool) -> None:
    folder = lived.store.folder / "checkpoints/first"
    said = {"weights": [f"checkpoint root: its weights are not in {folder}"]}
    (folder / "weights-1.safetensors").write_bytes(b"others")
    assert broken(lived.store, quick=quick) == ({} if quick else said)  # quickly, nothing is read
    (folder / "weights-1.safetensors").unlink()
    assert broken(lived.store, quick=quick) == said


@once
def test_a_manifest_or_what_a_trainer_needs_that_rotted_is_found(lived: Scene) -> None:
    folder = lived.store.folder / "checkpoints/first"
    trainer = folder / "trainer"
    trainer.mkdir()
    (trainer / "weights-2.safetensors").write_bytes(b"moments")
    for place, name in ((folder, "weights-1.safetensors"), (trainer, "weights-2.safetensors")):
        sha256 = hashlib.sha256((place / name).read_bytes()).hexdigest()
        (place / "manifest.json").write_text(json.dumps({"file": name, "sha256": sha256}))
    assert broken(lived.store) == {}
    for file, place in ((trainer / "weights-2.safetensors", trainer), (folder / "manifest.json", folder)):
        kept = file.read_bytes()
        file.write_bytes(kept[:5])
        (said,) = broken(lived.store)["weights"]
        assert said.startswith(f"checkpoint root: {place} is damaged: ")
        file.write_bytes(kept)


def test_a_blob_that_rotted_or_went_is_found(store: Store) -> None:
    for data in (b"one", b"two"):
        store.blobs.put(data, now=1.0)
    rotten, gone = sorted(path for path in store.blobs.folder.rglob("*") if path.is_file())
    rotten.write_bytes(b"else")
    gone.unlink()
    found = broken(store)["blobs"]
    assert found == [
        f"blob {rotten}: its content does not match its name; restore it from a copy",
        f"blob {gone.parent.name}{gone.name[:10]}: no file {gone}; restore it from a copy",
    ]


def test_two_live_releases_of_one_policy_are_found(store: Store) -> None:
    serving(store)
    add = store.releases.add(policy="sprout", kind=PolicyKind.PROMPT, source="shelf:b", who="t", now=1.0)
    add.result()
    damage(store, "DROP INDEX ux_releases_live", "UPDATE releases SET stage = 'live', share = 100")
    assert broken(store) == {
        "releases": ["policy sprout: 2 releases are live at once"],
        "guards": ["index ux_releases_live: is not there"],
        "recount": [
            "release sprout@2: stage live by its row, stage candidate by the ledger",
            "release sprout@2: share 100 by its row, share 0 by the ledger",
        ],
    }


def test_a_flag_or_a_trial_that_cannot_be_read_is_found(store: Store) -> None:
    serving(store)
    damage(store, "UPDATE flags SET body = '{}'", "UPDATE trials SET arms = '[]'")
    found = broken(store)
    assert set(found) == {"arms", "flags", "noted"}
    assert found["flags"][0].startswith("a stored flag: cannot be read: ")
    assert found["arms"][0].startswith("a stored trial: cannot be read: ")


@pytest.mark.parametrize("kind", ["token", "run", "trial", "flag", "release"])
def test_an_entry_of_the_ledger_that_cannot_be_read_is_found(store: Store, kind: str) -> None:
    """A check that ends at the first record that was forged says nothing of the others."""
    serving(store)
    begin(store, Clock())
    store.tokens.add("ann", Role.VIEWER, "a" * 64, 1.0).result()
    damage(store, f"UPDATE ledger SET body = '{{' WHERE kind = '{kind}'")
    assert {"ledger"} < set(broken(store))


def test_references_to_nothing_are_found_in_a_file(files: Files, clock: Clock) -> None:
    with open_store(files.fresh()) as store:
        scene = Scene(store, clock, begin(store, clock))
        scene.enqueue("t")
        damage(store, "DELETE FROM runs")
        assert broken(store)["references"] == ["rollouts 1: refers to a row of runs that is not there"]


def test_many_problems_of_one_kind_are_cut_short(scene: Scene) -> None:
    scene.enqueue(*(f"t{n}" for n in range(MOST + 5)))
    damage(scene.store, "UPDATE rollouts SET ended_at = 1")
    found = broken(scene.store)["rollouts"]
    assert len(found) == MOST + 1
    assert found[-1] == "… and more of the same kind: only the first 20 are listed"


def torn(path: Path, keep: Callable[[int], bool]) -> None:
    """Overwrite pages with noise, all but those to keep."""
    data, noise = bytearray(path.read_bytes()), random.Random(1)
    for page in range(len(data) // 4096):
        if not keep(page):
            data[page * 4096 : (page + 1) * 4096] = noise.randbytes(4096)
    path.write_bytes(data)


def test_a_torn_file_is_a_finding_and_the_rest_is_still_looked_at(files: Files, clock: Clock) -> None:
    path = Path(files.fresh())
    with open_store(path) as store:
        scene = Scene(store, clock, begin(store, clock))
        scene.enqueue(*(f"t{n}" for n in range(300)), input="x" * 200)
    pages = path.stat().st_size // 4096
    torn(path, lambda page: page < pages - 20)  # the schema lies at the front, the rollouts at the back
    with open_store(path) as store:
        found = broken(store)
    assert found["file"]
    assert all("\n" not in problem for part in found.values() for problem in part)
    assert "signals" not in found


def guards(store: Store) -> list[str]:
    return {part.name: list(part.problems) for part in check(store)}["guards"]


def dropped(store: Store, name: str, table: str) -> str:
    return f"DROP TRIGGER {name}" + ("" if store.db.engine.name == "sqlite" else f" ON {table}")


GUARDS = {"ledger_update": "ledger", "ledger_delete": "ledger", "releases_move": "releases", "steps_update": "steps"}
GUARDS |= {"releases_fixed": "releases", "scored_update": "scored", "served_told": "served"}


def test_a_guard_or_an_index_that_was_dropped_is_named(store: Store) -> None:
    serving(store)
    indexes = ("ux_releases_live", "ux_attempts_holder", "ix_rollouts_queue")
    run_sql(store, *(dropped(store, name, table) for name, table in GUARDS.items()))
    run_sql(store, *(f"DROP INDEX {name}" for name in indexes))
    gone = sorted([f"index {name}" for name in indexes] + [f"trigger {name}" for name in GUARDS])
    assert guards(store) == [f"{name}: is not there" for name in gone]


def test_without_any_guard_each_is_named(store: Store) -> None:
    is_file = store.db.engine.name == "sqlite"
    names = [name for kind, name in _due(is_file) if kind == "trigger"]
    tables = {name: name.rpartition("_")[0] for name in names}
    assert {"ledger_update", "resources_update", "exposures_update", "releases_birth"} <= set(names)
    run_sql(store, *(dropped(store, name, tables[name]) for name in names))
    assert guards(store)[: len(names)] == [f"trigger {name}: is not there" for name in sorted(names)][:20] + (
        ["… and more of the same kind: only the first 20 are listed"] if len(names) > 20 else []
    )


def test_an_index_that_is_another_is_named_and_one_more_does_no_harm(store: Store) -> None:
    run_sql(store, "CREATE INDEX mine ON runs (model_ref)")
    assert guards(store) == []
    run_sql(store, "DROP INDEX ux_releases_live", "CREATE INDEX ux_releases_live ON releases (project, policy)")
    assert guards(store) == ["index ux_releases_live: is not the one that was made, or is switched off"]


def test_a_guard_that_guards_nothing_is_named(store: Store) -> None:
    if store.db.engine.name == "sqlite":
        code = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        made = f"CREATE TRIGGER ledger_delete BEFORE DELETE ON ledger WHEN false {code}"
    else:
        made = (
            "CREATE TRIGGER ledger_delete BEFORE DELETE ON ledger FOR EACH ROW WHEN (false)"
            " EXECUTE FUNCTION ledger_delete()"
        )
    run_sql(store, dropped(store, "ledger_delete", "ledger"), made)
    assert guards(store) == ["trigger ledger_delete: is not the one that was made, or is switched off"]


def test_a_trigger_of_somebody_else_is_named(store: Store) -> None:
    if store.db.engine.name == "sqlite":
        run_sql(store, "CREATE TRIGGER mine AFTER INSERT ON releases BEGIN UPDATE releases SET source = 'x'; END")
    else:
        code = "$$ BEGIN NEW.source = 'x'; RETURN NEW; END $$"
        run_sql(store, f"CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS {code}")
        run_sql(store, "CREATE TRIGGER mine BEFORE INSERT ON releases FOR EACH ROW EXECUTE FUNCTION mine()")
    assert guards(store) == ["trigger mine: is not one of the store's"]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE ledger DISABLE TRIGGER ledger_update",
        "CREATE OR REPLACE FUNCTION ledger_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    ],
)
def test_a_guard_that_was_switched_off_on_the_server_is_named(databases: Any, statement: str) -> None:
    with open_store(databases.fresh()) as store:
        run_sql(store, statement)
        assert guards(store) == ["trigger ledger_update: is not the one that was made, or is switched off"]


def test_a_constraint_that_was_dropped_on_the_server_is_named(databases: Any) -> None:
    with open_store(databases.fresh()) as store:
        run_sql(store, "ALTER TABLE releases DROP CONSTRAINT uq_releases_project_policy_number")
        assert guards(store) == ["index uq_releases_project_policy_number: is not there"]
