"""`holdfast store …` on real stores, sound and damaged; traces out of one and into another; published schemas."""

from __future__ import annotations

import json
import sqlite3
import time
from pathlib import Path

import jsonschema
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.cli.store import REPORTS, SETTINGS
from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.contracts.records import PUBLISHED, decode, schema
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.run import RunState
from holdfast.contracts.settings import OptimizeSettings
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.store.admin import Migration, Pruned, Stats
from holdfast.store.check import Checked
from holdfast.store.db import HEAD, REVISIONS
from holdfast.store.export import Exported
from holdfast.store.store import Store, open_store
from tests.cli.conftest import At, Cli, Group
from tests.collect.proxy.far import running, served
from tests.conftest import Clock, Databases, Files
from tests.store.scene import Scene, begin
from tests.store.test_admin import first_revision, played, set_revision
from tests.store.test_check import damage

PARTS = """
runs leases rollouts attempts spans signals budgets steps scorings checkpoints releases trials labels guards sources
arms flags judgements orders recorded noted tasks scored recount counters ledger blobs weights
"""


@pytest.fixture(params=["files", "databases"], ids=["sqlite", "postgres"])
def both(request: pytest.FixtureRequest) -> str:
    """An empty store of each engine in turn."""
    places: Files | Databases = request.getfixturevalue(request.param)
    return places.fresh()


def test_a_ledger_is_sealed_and_witnessed_by_a_file_and_by_an_address(
    cli: Cli, files: Files, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url, elsewhere, heard = files.fresh(), tmp_path_factory.mktemp("elsewhere"), list[str]()
    key, witness = elsewhere / "key", elsewhere / "witness"
    key.write_bytes(bytes(range(32)))
    with open_store(url) as store:
        store.ledger.append("note", {}, who="ann", now=1.0).result()

    async def hear(asked: Request) -> Response:
        heard.append((await asked.body()).decode())
        return Response(status_code=500 if asked.url.path == "/full" else 204)

    on = Group(cli, "store", url)
    on("seal", "--seal-key", str(key), "--witness", str(witness)).done()
    with served(lambda: Starlette(routes=[Route("/{path:path}", hear, methods=["POST"])])) as address:
        told = on("seal", "--seal-key", str(key), "--witness", f"{address}/seals", "--json").done().json
        assert heard == [witness.read_text()] and heard[0].startswith(f"{told['entries']} {told['sha256']} ")
        refused = on("seal", "--seal-key", str(key), "--witness", f"{address}/full")
        assert refused.code == 5 and "the seal itself is kept" in " ".join(refused.err.split())
    assert on("seal", "--seal-key", str(key), "--witness", f"{address}/gone").code == 5
    on("check", "--seal-key", str(key), "--anchors", str(witness)).done()
    key.write_bytes(bytes(32))
    assert on("check", "--seal-key", str(key)).code == 5


def test_a_sound_store_is_called_sound_and_damage_is_listed(cli: Cli, both: str, clock: Clock, tmp_path: Path) -> None:
    check = Group(cli, "store", both)
    with open_store(both, state_folder=tmp_path) as store:
        Scene(store, clock, begin(store, clock)).enqueue("t")
        *lines, last = check("check").done().lines
        names = (["file", "references"] if store.db.engine.name == "sqlite" else []) + PARTS.split()
        assert [line.split() for line in lines] == [[name, "ok"] for name in names] and last == f"{store.url}: sound"
        quick = check("check", "--quick", "--json").done()
        assert decode(Checked, quick.json).ok
        jsonschema.validate(quick.json, cli("schema", "store-check").json)
        damage(store, "UPDATE rollouts SET ended_at = 1")
        ran = check("check")
        assert ran.code == 5
        place = ran.lines.index("rollouts    1 problem")
        assert ran.lines[place + 1] == "  rollout run-1-a/t: is queuing, and its time of ending says otherwise"
        assert ran.lines[-1] == f"{store.url}: damaged; keep a copy of it before anything else"
    ran = check("check", "--json")
    assert ran.code == 5 and not ran.json["ok"]


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"not a database, but long enough", 5, "is not an SQLite database; give another path, or restore a copy"),
        (b"", 2, "there is none; check the path; 'holdfast run start' creates one"),
    ],
)
@pytest.mark.parametrize("command", ["check", "migrate", "stats", "export", "prune --older-than 1"])
def test_a_file_that_is_no_store_is_refused(
    cli: Cli, tmp_path: Path, command: str, content: bytes, code: int, said: str
) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    ran = cli("store", *command.split(), "--store", path)
    assert (ran.code, ran.out, ran.err) == (code, "", f"holdfast: error: store {path}: {said}\n")
    assert path.read_bytes() == content


def test_a_store_of_another_program_or_a_newer_version_is_refused(cli: Cli, tmp_path: Path, files: Files) -> None:
    path = tmp_path / "other.db"
    sqlite3.connect(path).execute("CREATE TABLE songs (name)").connection.close()
    ran = cli("store", "migrate", "--store", path)
    expected = "this database belongs to another program; give another path or database"
    assert (ran.code, ran.err) == (5, f"holdfast: error: store {path}: {expected}\n")
    newer = files.fresh()
    set_revision(newer, "9999")
    said = f"its schema is 9999, this version knows up to {HEAD}; install the newer holdfast that wrote it"
    for words in (["store", "migrate"], ["store", "check"], ["runs"]):
        ran = cli(*words, "--store", newer)
        assert (ran.code, ran.err) == (5, f"holdfast: error: store {newer}: {said}\n")


def test_migrate_says_what_it_did(cli: Cli, url: str, files: Files) -> None:
    found = decode(Migration, cli("store", "migrate", "--json", "--store", url).json)
    assert (found.before, found.after) == (HEAD, HEAD)
    assert cli("store", "migrate", "--store", url).out == f"{found.store}: schema {HEAD} already, nothing to do\n"
    path = first_revision(files.blank())
    assert cli("store", "check", "--store", path).code == 5
    assert cli("store", "migrate", "--store", path).done().out == f"{path}: schema {REVISIONS[0]} → {HEAD}\n"
    cli("store", "check", "--store", path).done()


def test_stats_are_shown_in_80_columns_and_as_json(cli: Cli, url: str, clock: Clock, tmp_path: Path) -> None:
    at = ("--store", url)
    assert cli("store", "stats", *at).done().lines[-1].split() == ["ledger", "0"]  # an empty store has stats too
    with open_store(url, state_folder=tmp_path) as store:
        played(store, clock, "a", 3)
        scene = played(store, clock, "b", 1, end=None)
        scene.enqueue("open", max_attempts=1)
        scene.finish(scene.claim(), AttemptState.FAILED)
        shown = cli("store", "stats", *at).done().lines
        assert max(map(len, shown[1:])) <= 80 and shown[0].startswith(f"{store.url}: schema {HEAD}, ")
    assert ["spans", "8"] in [line.split() for line in shown]
    assert [line.split() for line in shown[-3:]] == [
        ["run", "project", "state", "succeeded", "failed"],
        ["run-2-b", "default", "running", "1", "1"],
        ["run-1-a", "default", "completed", "3", "0"],
    ]
    data = cli("store", "stats", "--json", *at).json
    jsonschema.validate(data, cli("schema", "store-stats").json)
    assert [one.run for one in decode(Stats, data).runs] == ["run-2-b", "run-1-a"]
    assert [one["run"] for one in cli("store", "stats", "--json", "--limit", 1, *at).json["runs"]] == ["run-2-b"]
    assert cli("store", "stats", "--json", "--project", "other", *at).json["runs"] == []


def test_an_export_goes_to_stdout_or_whole_into_a_file(cli: Cli, url: str, clock: Clock, tmp_path: Path) -> None:
    with open_store(url, state_folder=tmp_path) as store:
        played(store, clock, "a", 2)
    kinds = [json.loads(line)["kind"] for line in cli("store", "export", "--store", url).done().lines]
    each = ["rollout", "attempt", "span", "span", "signal"]
    assert kinds == ["header", "run", *each, *each, "ledger-entry", "ledger-entry", "end"]
    path = tmp_path / "out" / "store.jsonl"
    counts = "1 header, 1 run, 2 rollout, 2 attempt, 4 span, 2 signal, 2 ledger-entry"
    assert cli("store", "export", "--output", path, "--store", url).done().out == f"{path}: {counts}\n"
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == kinds
    answer = decode(Exported, cli("store", "export", "--output", path, "--json", "--store", url).json)
    assert (answer.output, answer.lines["rollout"]) == (str(path), 2)
    assert list(path.parent.iterdir()) == [path]


def test_an_export_can_be_narrowed(cli: Cli, store: Store, clock: Clock, at: At) -> None:
    for salt, one in (("a", store), ("b", store), ("c", Store(store.db, "other", store.folder))):
        played(one, clock, salt, 1)

    def runs(*words: object) -> list[str]:
        lines = map(json.loads, cli("store", "export", *words, *at).lines)
        return [line["record"]["id"] for line in lines if line["kind"] == "run"]

    assert runs() == ["run-1-a", "run-2-b", "run-3-c"]
    assert runs("--project", "other") == ["run-3-c"]
    assert runs("--run", "run-2") == ["run-2-b"]
    assert runs("--run", "run-3", "--project", "other") == ["run-3-c"]
    assert "run 'run-3': there is none in project 'default'" in cli("store", "export", "--run", "run-3", *at).refusal


def test_pruning_is_a_dry_run_until_one_says_yes(cli: Cli, url: str, tmp_path: Path) -> None:
    old, recent, prune = Clock(time.time() - 40 * 86_400), Clock(time.time() - 86_400), Group(cli, "store", url)
    with open_store(url, state_folder=tmp_path) as store:
        played(store, old, "old", 3, end=RunState.CANCELLED)
        played(store, recent, "recent", 1)
        begin(store, old, salt="running")
        shown = prune("prune", "--older-than", 30).done().page
        assert [line.split()[0] for line in shown] == ["run", "run-1-old", "1"]
        assert shown[-1] == "1 run would go; add --yes to remove them"
        assert len(store.runs.newest()) == 3
        data = prune("prune", "--older-than", 30, "--json").json
        jsonschema.validate(data, cli("schema", "store-prune").json)
        answer = decode(Pruned, data)
        assert (answer.removed, [(one.run, one.rollouts) for one in answer.runs]) == (False, [("run-1-old", 3)])
        assert prune("prune", "--older-than", 0, "--json", "--project", "other").json["runs"] == []
        gone = prune("prune", "--older-than", 30, "--yes").lines[-1]
        assert gone == "1 run removed; the ledger keeps a note, and the room they took is used again"
        assert [run.id for run in store.runs.newest()] == ["run-3-running", "run-2-recent"]
        assert list(store.ledger.entries())[-1].who == "ann"
        said = prune("prune", "--older-than", 30, "--yes").done().out
        assert said == "no finished runs in project default ended more than 30 days ago: nothing to remove\n"
        assert prune("prune", "--older-than", 0, "--yes", "--json").json["removed"]
        assert [run.id for run in store.runs.newest()] == ["run-3-running"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("", "Missing option '--older-than'."),
        ("--older-than -1", "Invalid value for '--older-than'"),
        ("--older-than soon", "Invalid value for '--older-than'"),
    ],
)
def test_days_to_prune_by_are_a_number(cli: Cli, words: str, said: str) -> None:
    ran = cli("store", "prune", *words.split())
    assert ran.code == 2 and said in ran.err


# Schemas: everything that leaves the process has one

NAMES = sorted([*PUBLISHED, *REPORTS, SETTINGS])


def test_every_published_name_has_a_valid_schema(cli: Cli) -> None:
    assert cli("schema").lines == cli("schema", "--json").json == NAMES
    for name in NAMES:
        document = cli("schema", name).json
        jsonschema.Draft202012Validator.check_schema(document)
        assert document["type"] == "object"
        assert name not in PUBLISHED or document == schema(PUBLISHED[name])
    settings = OptimizeSettings.model_validate({"optimize": ["hello"]})
    document = cli("schema", SETTINGS).json
    jsonschema.validate(json.loads(json.dumps(settings.record())), document)
    assert list(document["properties"])[:2] == ["optimize", "validate"]
    for name, remedy in (("rolout", "did you mean rollout?"), ("zzz", "'holdfast store schema' lists the names")):
        assert cli("schema", name).refusal == f"holdfast: error: schema {name!r}: is not published; {remedy}\n"


# Traces, through a file and through a collector

CALL = ModelCall(
    model="m",
    messages=({"role": "user", "content": "Write to ada.lovelace@posteo.de"},),
    response={"role": "assistant", "content": "Done."},
    finish_reason="stop",
    prompt_ids=(1, 2),
    completion_ids=(3,),
    logprobs=(-0.25,),
)


@pytest.fixture
def told(files: Files) -> str:
    """A store with one finished rollout."""
    address = files.fresh()
    with open_store(address) as store:
        attempt, now = running(store), time.time()
        span = Span(seq=1, kind=SpanKind.MODEL, name="model.m", started_at=now, ended_at=now + 1, model=CALL)
        store.traces.add(attempt, [span], now=now).result()
        store.traces.score(attempt, [RewardTerm(name="s", value=0.5, source="rule:s")], now=now).result()
        store.queue.finish(attempt, AttemptState.SUCCEEDED, now=now, reward=0.5).result()
    return address


def taken(store: Store) -> tuple[float | None, list[Span]]:
    (run,) = store.runs.newest()
    (rollout,) = store.views.rollouts(run.id)
    assert (run.kind, rollout.status) == ("otlp", RolloutState.SUCCEEDED)
    (attempt,) = store.views.attempts(rollout.id)
    return rollout.reward, store.traces.spans(attempt.token)


def test_a_file_takes_spans_from_one_store_to_another(cli: Cli, told: str, files: Files, tmp_path: Path) -> None:
    file, other, scrubbed = tmp_path / "traces.jsonl", files.fresh(), files.fresh()
    assert cli("traces", "export", "run-1", "--to", file, "--store", told).done().out == f"{file}: 2 spans\n"
    ran = cli("traces", "import", file, "--store", other, "--no-scrub", "--json")
    assert ran.json == {"file": str(file), "kept": 2, "refused": 0, "why": ""}
    with open_store(other) as store:
        reward, (_, model) = taken(store)
    assert reward == 0.5 and model.model == CALL
    cli("traces", "export", "run-1/t1", "--to", file, "--store", told).done()
    cli("traces", "import", file, "--store", scrubbed).done()  # what is taken in is scrubbed unless told otherwise
    with open_store(scrubbed) as store:
        _, (_, model) = taken(store)
    assert "ada.lovelace@posteo.de" not in repr(model) and "<email:" in repr(model)


def test_a_collector_gets_them_with_the_headers_it_asks_for(cli: Cli, told: str, store: Store) -> None:
    taking = routes(SpanReceiver(store, clock=time.time), token="tell-nobody")
    with served(lambda: Starlette(routes=taking)) as at:
        words = ("traces", "export", "run-1", "--store", told, "--to")
        refused = cli(*words, at)
        ran = cli(*words, at, "--header", "authorization=Bearer tell-nobody", "--json")
    assert refused.code == 1 and "HTTP 401" in refused.err and "tell-nobody" not in refused.err
    assert ran.json == {"to": at, "spans": 2} and len(taken(store)[1]) == 2
    said = cli(*words, "http://me:tell-nobody@127.0.0.1:9").refusal  # an address with a password
    assert "127.0.0.1:9" in said and "--header" in said and "tell-nobody" not in said


def test_what_cannot_be_taken_is_one_line(cli: Cli, told: str, tmp_path: Path) -> None:
    file, traces = tmp_path / "traces.jsonl", Group(cli, "traces", told)
    assert "run 'run-9'" in traces("export", "run-9", "--to", file).refusal and not file.exists()
    assert "NAME=VALUE" in traces("export", "run-1", "--to", file, "--header", "nonsense").refusal
    assert "there is none" in traces("import", file).refusal
    file.write_text('{"resourceSpans": []}\n{')
    assert f"{file}:2" in traces("import", file).refusal
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "no ids"}]}]}]}))
    ran = traces("import", file)
    assert ran.code == 1 and "1 refused: spans without ids" in ran.out  # which is no success


def test_a_store_is_backed_up_and_put_back_by_command(cli: Cli, clock: Clock, here: Path) -> None:
    with open_store("work/store.sqlite") as store:
        played(store, clock, "a", 2)
        blob = store.blobs.put(b"kept", now=1.0)
    on = Group(cli, "store", "work/store.sqlite")
    assert "1 file and the database" in on.says("backup", "kept") and "; sound" in on.says("backup", "kept-too")
    refused = on("backup", "kept")
    assert refused.code == 2 and "is there already" in refused.err
    assert on("restore", "kept").code == 2  # a store is there
    (here / "work").rename(here / "lost")
    assert on("restore", "kept", "--json").done().json["files"] == 1
    on("check", "--deep").done()
    (here / "kept/blobs" / blob[:2] / blob[2:]).unlink()
    damaged = Group(cli, "store", "kept/store.sqlite")("backup", "again")
    assert damaged.code == 5 and "damaged, as the store that it was made of" in damaged.out
