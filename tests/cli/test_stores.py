"""`holdfast store …` on real stores, sound and damaged."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import jsonschema
import pytest

from holdfast.contracts.records import decode
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.run import RunState
from holdfast.store.admin import Migration, Pruned, Stats
from holdfast.store.check import Checked
from holdfast.store.db import HEAD, REVISIONS
from holdfast.store.export import Exported
from holdfast.store.store import Store
from tests.cli.conftest import Cli
from tests.conftest import Clock, Databases, Files
from tests.store.scene import Scene, begin
from tests.store.test_admin import first_revision, played, set_revision
from tests.store.test_check import damage

PARTS = [
    "runs",
    "leases",
    "rollouts",
    "attempts",
    "spans",
    "signals",
    "budgets",
    "steps",
    "scorings",
    "checkpoints",
    "releases",
    "trials",
    "labels",
    "guards",
    "sources",
    "arms",
    "flags",
    "judgements",
    "orders",
    "recorded",
    "scored",
    "recount",
    "ledger",
    "blobs",
    "weights",
]


@pytest.fixture(params=["files", "databases"], ids=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest) -> Files | Databases:
    found: Files | Databases = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


def test_a_sound_store_is_called_sound(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("t")
    ran = cli("store", "check", *at)
    names = (["file", "references"] if scene.store.db.engine.name == "sqlite" else []) + PARTS
    assert ran.code == 0
    assert [line.split() for line in ran.lines[:-1]] == [[name, "ok"] for name in names]
    assert ran.lines[-1] == f"{scene.store.url}: sound"
    quick = cli("store", "check", "--quick", "--json", *at)
    assert quick.code == 0 and decode(Checked, quick.json).ok
    jsonschema.validate(quick.json, cli("schema", "store-check").json)


def test_damage_is_listed_and_exits_5(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("t")
    damage(scene.store, "UPDATE rollouts SET ended_at = 1")
    ran = cli("store", "check", *at)
    assert ran.code == 5
    place = ran.lines.index("rollouts    1 problem")
    assert ran.lines[place + 1] == "  rollout run-1-a/t: is queuing, and its time of ending says otherwise"
    assert ran.lines[-1] == f"{scene.store.url}: damaged; keep a copy of it before anything else"
    ran = cli("store", "check", "--json", *at)
    assert ran.code == 5 and not ran.json["ok"]


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"not a database, but long enough", 5, "is not an SQLite database; give another path, or restore a copy"),
        (b"", 2, "there is none; check the path; 'holdfast optimize' creates one"),
    ],
)
@pytest.mark.parametrize("command", [["check"], ["migrate"], ["stats"], ["export"], ["prune", "--older-than", "1"]])
def test_a_file_that_is_no_store_is_refused(
    cli: Cli, tmp_path: Path, command: list[str], content: bytes, code: int, said: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    ran = cli("store", *command, "--store", path)
    assert (ran.code, ran.out, ran.err) == (code, "", f"holdfast: error: store {path}: {said}\n")
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    sqlite3.connect(path).execute("CREATE TABLE songs (name)").connection.close()
    ran = cli("store", "migrate", "--store", path)
    expected = "this database belongs to another program; give another path or database"
    assert (ran.code, ran.err) == (5, f"holdfast: error: store {path}: {expected}\n")


def test_migrate_says_what_it_did(cli: Cli, store: Store, at: tuple[str, str]) -> None:
    ran = cli("store", "migrate", *at)
    assert (ran.code, ran.out) == (0, f"{store.url}: schema {HEAD} already, nothing to do\n")
    found = decode(Migration, cli("store", "migrate", "--json", *at).json)
    assert found == Migration(store=store.url, before=HEAD, after=HEAD)


def test_an_older_store_is_brought_up_to_date(cli: Cli, files: Files) -> None:
    path = first_revision(files.blank())
    assert cli("store", "check", "--store", path).code == 5
    ran = cli("store", "migrate", "--store", path)
    assert (ran.code, ran.out) == (0, f"{path}: schema {REVISIONS[0]} → {HEAD}\n")
    assert cli("store", "check", "--store", path).code == 0


def test_a_newer_store_is_refused_by_every_command(cli: Cli, files: Files) -> None:
    path = files.fresh()
    set_revision(path, "9999")
    said = (
        f"store {path}: its schema is 9999, this version knows up to {HEAD}; install the newer holdfast that wrote it"
    )
    for words in (["store", "migrate"], ["store", "check"], ["runs"]):
        ran = cli(*words, "--store", path)
        assert (ran.code, ran.err) == (5, f"holdfast: error: {said}\n")


def test_stats_are_shown_in_80_columns_and_as_json(cli: Cli, store: Store, clock: Clock, at: tuple[str, str]) -> None:
    played(store, clock, "a", 3)
    scene = played(store, clock, "b", 1, end=None)
    scene.enqueue("open", max_attempts=1)
    scene.finish(scene.claim(), AttemptState.FAILED)
    ran = cli("store", "stats", *at)
    assert ran.code == 0
    assert max(map(len, ran.lines[1:])) <= 80
    assert ran.lines[0].startswith(f"{store.url}: schema {HEAD}, ")
    assert ["spans", "8"] in [line.split() for line in ran.lines]
    assert [line.split() for line in ran.lines[-3:]] == [
        ["run", "project", "state", "succeeded", "failed"],
        ["run-2-b", "default", "running", "1", "1"],
        ["run-1-a", "default", "completed", "3", "0"],
    ]
    data = cli("store", "stats", "--json", *at).json
    jsonschema.validate(data, cli("schema", "store-stats").json)
    assert [one.run for one in decode(Stats, data).runs] == ["run-2-b", "run-1-a"]
    assert [one["run"] for one in cli("store", "stats", "--json", "--limit", 1, *at).json["runs"]] == ["run-2-b"]
    assert cli("store", "stats", "--json", "--project", "other", *at).json["runs"] == []


def test_an_empty_store_has_stats_too(cli: Cli, store: Store, at: tuple[str, str]) -> None:
    ran = cli("store", "stats", *at)
    assert ran.code == 0 and ran.lines[-1].split() == ["ledger", "0"]


def test_an_export_goes_to_stdout_or_whole_into_a_file(
    cli: Cli, store: Store, clock: Clock, at: tuple[str, str], tmp_path: Path
) -> None:
    played(store, clock, "a", 2)
    ran = cli("store", "export", *at)
    kinds = [json.loads(line)["kind"] for line in ran.lines]
    each = ["rollout", "attempt", "span", "span", "signal"]
    assert (ran.code, kinds) == (0, ["header", "run", *each, *each, "ledger-entry", "ledger-entry", "end"])
    path = tmp_path / "out" / "store.jsonl"
    ran = cli("store", "export", "--output", path, *at)
    counts = "1 header, 1 run, 2 rollout, 2 attempt, 4 span, 2 signal, 2 ledger-entry"
    assert (ran.code, ran.out) == (0, f"{path}: {counts}\n")
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == kinds
    answer = decode(Exported, cli("store", "export", "--output", path, "--json", *at).json)
    assert (answer.output, answer.lines["rollout"]) == (str(path), 2)
    assert list(path.parent.iterdir()) == [path]


def test_an_export_can_be_narrowed(cli: Cli, store: Store, clock: Clock, at: tuple[str, str]) -> None:
    played(store, clock, "a", 1)
    played(store, clock, "b", 1)
    other = Store(store.db, "other", store.folder)
    played(other, clock, "c", 1)

    def runs(*words: object) -> list[str]:
        lines = map(json.loads, cli("store", "export", *words, *at).lines)
        return [line["record"]["id"] for line in lines if line["kind"] == "run"]

    assert runs() == ["run-1-a", "run-2-b", "run-3-c"]
    assert runs("--project", "other") == ["run-3-c"]
    assert runs("--run", "run-2") == ["run-2-b"]
    assert runs("--run", "run-3", "--project", "other") == ["run-3-c"]
    ran = cli("store", "export", "--run", "run-3", *at)
    expected = "run 'run-3': there is none in project 'default'; 'holdfast runs' lists them"
    assert (ran.code, ran.out, ran.err) == (2, "", f"holdfast: error: {expected}\n")


def test_pruning_is_a_dry_run_until_one_says_yes(
    cli: Cli, store: Store, at: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "ann")
    old, recent = Clock(time.time() - 40 * 86_400), Clock(time.time() - 86_400)
    played(store, old, "old", 3)
    played(store, recent, "recent", 1)
    begin(store, old, salt="running")
    ran = cli("store", "prune", "--older-than", 30, *at)
    assert ran.code == 0
    assert [line.split()[0] for line in ran.lines] == ["run", "run-1-old", "1"]
    assert ran.lines[-1] == "1 run would go; add --yes to remove them"
    assert max(map(len, ran.lines)) <= 80
    assert len(store.runs.newest()) == 3
    ran = cli("store", "prune", "--older-than", 30, "--yes", *at)
    assert ran.lines[-1] == "1 run removed; the ledger keeps a note, and the room they took is used again"
    assert [run.id for run in store.runs.newest()] == ["run-3-running", "run-2-recent"]
    assert list(store.ledger.entries())[-1].who == "ann"
    ran = cli("store", "prune", "--older-than", 30, "--yes", *at)
    expected = "no finished runs in project default ended more than 30 days ago: nothing to remove"
    assert (ran.code, ran.out) == (0, f"{expected}\n")


def test_pruning_answers_in_json_and_keeps_to_its_project(cli: Cli, store: Store, at: tuple[str, str]) -> None:
    played(store, Clock(time.time() - 100), "a", 2, end=RunState.CANCELLED)
    data = cli("store", "prune", "--older-than", 0, "--json", *at).json
    jsonschema.validate(data, cli("schema", "store-prune").json)
    answer = decode(Pruned, data)
    assert (answer.removed, [(one.run, one.rollouts) for one in answer.runs]) == (False, [("run-1-a", 2)])
    assert cli("store", "prune", "--older-than", 0, "--json", "--project", "other", *at).json["runs"] == []
    assert cli("store", "prune", "--older-than", 0, "--yes", "--json", *at).json["removed"]
    assert store.runs.newest() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["prune"], "Missing option '--older-than'."),
        (["prune", "--older-than", "-1"], "Invalid value for '--older-than'"),
        (["prune", "--older-than", "soon"], "Invalid value for '--older-than'"),
        (["bogus"], "No such command 'bogus'."),
    ],
)
def test_a_wrong_command_line_exits_2(cli: Cli, words: list[str], said: str) -> None:
    ran = cli("store", *words)
    assert ran.code == 2 and said in ran.err
