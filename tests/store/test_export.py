"""Everything in a store as lines of JSON: complete, typed, and from one moment."""

from __future__ import annotations

import json
from typing import Any

from holdfast.contracts.judgement import Doubtful, ReviewRequest
from holdfast.contracts.records import PUBLISHED, decode, encode
from holdfast.contracts.release import ServedRequest
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import Span, SpanKind, ToolCall
from holdfast.store import export as exports
from holdfast.store.db import HEAD, engine_for
from holdfast.store.store import Store
from tests.conftest import Clock, Files
from tests.store.scene import ANSWER, AT_ONCE, Scene, begin, checkpoint, judged, once, ordered, serving, signal, span
from tests.store.test_budgets import allocated

ADD = ToolCall(tool="add", arguments={"a": 1}, result=2)
CALL = Span(seq=2, kind=SpanKind.TOOL, name="add", started_at=1.0, ended_at=2.0, parent=1, tool=ADD)


def exported(store: Store, **how: Any) -> list[dict[str, Any]]:
    lines: list[str] = []
    counts = exports.export(store, lines.append, version="9", now=5.0, **how)
    data = [json.loads(line) for line in lines]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines)
    assert data[-1] == {"kind": "end", "lines": counts}
    assert {kind: sum(line["kind"] == kind for line in data) for kind in counts} == counts
    return data


def kinds(data: list[dict[str, Any]]) -> list[str]:
    return [line["kind"] for line in data]


@once
def test_an_empty_store_has_a_header_and_an_end(store: Store) -> None:
    header, end = exported(store)
    about = {"format": 1, "holdfast": "9", "schema": HEAD, "store": store.url, "exported_at": 5.0}
    assert header == {"kind": "header", **about}
    assert end == {"kind": "end", "lines": {"header": 1}}


def test_every_record_is_there_as_it_is_published(scene: Scene) -> None:
    store, now = scene.store, scene.clock.now
    store.versions.publish({"prompt": "be brief"}, now=now).result()
    scene.enqueue("t", resources=1)
    scene.finish(scene.claim(), AttemptState.FAULT, error="no answer", backoff=AT_ONCE)
    claim = scene.claim()
    store.traces.add(claim.attempt, [span(1), CALL], now=now).result()
    store.traces.score(claim.attempt, [signal(value=0.5)], now=now).result()
    change = allocated(claim.attempt)
    store.budgets.record(claim.attempt, change, now=now).result()
    scene.finish(claim, AttemptState.SUCCEEDED, reward=0.5, output={"answer": 4})
    data = exported(store)
    expected = (
        "header resource-version run rollout attempt attempt span span signal budget budget-event ledger-entry end"
    )
    assert kinds(data) == expected.split()
    records = [decode(PUBLISHED[line["kind"]], line["record"]) for line in data[1:-1]]
    first, last = scene.attempts("t")
    assert records == [
        store.versions.get(1),
        store.runs.get(scene.run),
        scene.rollout("t"),
        first,
        last,
        *store.traces.spans(last.token),
        *store.traces.breakdown(last.token).signals,
        change.budget,
        *change.events,
        *store.ledger.entries(),
    ]
    assert (data[4]["output"], data[5]["output"]) == (None, {"answer": 4})
    assert {line["attempt"] for line in data[6:9]} == {last.id}


def test_what_was_learnt_is_exported_with_its_run(store: Store, clock: Clock) -> None:
    mine, other = (begin(store, clock, salt=salt) for salt in "ab")
    for place in (1, 2):
        store.steps.add(mine, f"{place}/learn", {"loss": place / 2}, function="f", inputs_sha256="ab", now=place + 0.5)
    store.steps.add(other, "1/learn", {"loss": 9.0}, function="f", now=1.0)
    store.checkpoints.add(checkpoint("root"), now=1.0)
    store.checkpoints.add(checkpoint("leaf", parent="root"), mine, now=1.0).result()
    data = exported(store)
    found = [line for line in data if line["kind"] == "step"]
    first = {"kind": "step", "function": "f", "inputs_sha256": "ab"}
    assert found == [
        {**first, "run": mine, "step": 1, "name": "1/learn", "at": 1.5, "body": {"loss": 0.5}},
        {**first, "run": mine, "step": 2, "name": "2/learn", "at": 2.5, "body": {"loss": 1.0}},
        {**first, "run": other, "step": 1, "name": "1/learn", "at": 1.0, "body": {"loss": 9.0}, "inputs_sha256": ""},
    ]
    saved = [line for line in data if line["kind"] == "checkpoint"]
    assert [line["run"] for line in saved] == [None, mine]
    records = [decode(PUBLISHED["checkpoint"], line["record"]) for line in saved]
    assert records == store.checkpoints.lineage("leaf")
    alone = exported(store, project="default", run=mine)
    of_run = ["run", "step", "step", "checkpoint", *["ledger-entry"] * 3]
    assert kinds(alone) == ["header", *of_run, "end"]


def test_scorings_are_exported_with_their_run_each_before_its_signals(store: Store, clock: Clock) -> None:
    mine, other = (Scene(store, clock, begin(store, clock, salt=salt)) for salt in "ab")
    told = RewardTerm(name="success", value=0.5, source="rule:exact@2", feedback="nearly")
    for scene in (mine, other):
        scene.enqueue("t")
        store.scorings.add(scene.run, "again", {"exact": 2}, [(f"{scene.run}/t", [told])], who="ann", now=1.0)
    first, second, *rest = [line for line in exported(store, run=mine.run) if line["kind"] in ("scoring", "scored")]
    assert rest == []
    assert [decode(PUBLISHED["scoring"], first["record"])] == store.scorings.of_run(mine.run)
    assert (second["kind"], second["scoring"], second["rollout"]) == ("scored", "again", f"{mine.run}/t")
    assert decode(PUBLISHED["signal"], second["record"]) == told
    assert kinds(exported(store)).count("scoring") == 2


def test_what_serves_is_exported_with_its_project_and_not_with_a_run(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    serving(store)
    other = Store(store.db, "other", store.folder)
    serving(other)
    data = exported(store)
    kept = [line for line in data if line["kind"] in ("release", "trial", "exposure", "served", "flag")]
    releases = [*store.releases.of_policy("sprout"), *other.releases.of_policy("sprout")]
    trial = [store.trials.get("t"), store.trials.exposure("t", "u"), *store.trials.served("t")]
    records = [decode(PUBLISHED[line["kind"]], line["record"]) for line in kept]
    assert records == [*releases, *trial, *trial, store.flags.get("beta"), other.flags.get("beta")]
    projects = [line.get("project") or line["record"]["project"] for line in kept]
    assert projects == ["default", "other", *["default"] * 4, *["other"] * 4, "default", "other"]
    mine = kinds(exported(store, project="default"))
    assert mine[2:8] == ["release", "trial", "exposure", "served", "served", "flag"]
    assert kinds(exported(store, run=run)) == ["header", "run", "ledger-entry", "end"]


def test_what_was_judged_is_exported_with_its_project_and_not_with_a_run(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    judged(store)
    other = Store(store.db, "other", store.folder)
    judged(other)
    kinds_of_it = ("artefact", "judgement", "doubt", "label", "calibration", "appointment")
    kept = [line for line in exported(store) if line["kind"] in kinds_of_it]
    assert [(line["kind"], line["project"]) for line in kept] == [
        (kind, project) for kind in kinds_of_it for project in ("default", "other")
    ]
    records = [decode(PUBLISHED[line["kind"]], line["record"]) for line in kept if line["project"] == "default"]
    given = store.judgements
    (one,), (doubt,), (label,) = given.of("correctness@1"), doubted(store), given.labels("correctness@1")
    assert records == [given.item(one.artefact), one, doubt, label, *given.calibrations(), *given.appointments()]
    mine = [line["kind"] for line in exported(store, project="other")]
    assert all(mine.count(kind) == 1 for kind in kinds_of_it)
    assert not set(kinds_of_it) & set(kinds(exported(store, run=run)))


def test_orders_and_alerts_are_exported_and_of_a_token_all_but_its_hash(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    ordered(store)
    (command,), (alert,), (token,) = (
        [line for line in exported(store) if line["kind"] == kind] for kind in ("command", "alert", "token")
    )
    assert decode(PUBLISHED["command"], command["record"]).id == "c1"  # type: ignore[attr-defined]
    assert [decode(PUBLISHED["alert"], alert["record"])] == store.alerts.standing()
    times = {"created_at": 1.0, "expires_at": None, "revoked_at": None}
    assert token == {
        "kind": "token", "project": "default", "id": "tok-1", "label": "ann", "role": "operator", **times
    }  # fmt: skip
    assert "5e5e" not in json.dumps(exported(store))
    assert not {"command", "alert", "token"} & set(kinds(exported(store, run=run)))
    assert not {"command", "alert", "token"} & set(kinds(exported(store, project="other")))


def doubted(store: Store) -> list[ReviewRequest]:
    """Also what a person has looked at."""
    return [ReviewRequest(artefact=ANSWER.sha256, criterion="correctness@1", reason=Doubtful.ASKED, at=1.0)]


def test_a_long_trial_is_exported_in_pages(store: Store) -> None:
    serving(store)
    names = [f"more-{n:04}" for n in range(1100)]
    for name in names:
        store.trials.expose("t", name, "treatment", now=1.0)
    store.trials.record([ServedRequest(id=name, trial="t", arm="control", unit="u", at=1.0) for name in names]).result()
    data = exported(store)
    assert [line["record"]["unit"] for line in data if line["kind"] == "exposure"] == [*names, "u"]
    assert [line["record"]["id"] for line in data if line["kind"] == "served"] == ["r1", "r2", *names]


def test_a_project_or_a_run_can_be_exported_alone(store: Store, clock: Clock) -> None:
    mine = Scene(store, clock, begin(store, clock, salt="a"))
    second = Scene(store, clock, begin(store, clock, salt="b"))
    other_store = Store(store.db, "other", store.folder)
    other = Scene(other_store, clock, begin(other_store, clock, salt="c"))
    for place, scene in enumerate((mine, second, other)):
        scene.enqueue("t")
        scene.store.versions.publish({"n": place}, now=1.0).result()

    def runs(**how: Any) -> set[str]:
        data = exported(store, **how)
        named = [line["record"].get("run") or line["record"].get("id") for line in data if "record" in line]
        return {name for name in named if name.startswith("run-")}

    assert runs() == {mine.run, second.run, other.run}
    assert runs(project="default") == {mine.run, second.run}
    assert runs(project="other") == {other.run}
    assert runs(project="default", run=second.run) == {second.run}
    assert kinds(exported(store, project="other")) == [
        "header",
        "resource-version",
        "run",
        "rollout",
        "ledger-entry",
        "end",
    ]


def test_runs_that_were_filled_together_come_out_apart_and_in_order(store: Store, clock: Clock) -> None:
    scenes = [Scene(store, clock, begin(store, clock, salt=salt)) for salt in "ab"]
    n = exports.PAGE + 20  # more than a page each, their rows mixed
    for number in range(0, n, 10):
        for scene in scenes:
            scene.enqueue(*(f"t{place}" for place in range(number, number + 10)))
    done: list[int] = []
    data = exported(store, done=done.append)
    names = [line["record"]["id"] for line in data if line["kind"] == "rollout"]
    assert names == [f"{scene.run}/t{place}" for scene in scenes for place in range(n)]
    assert sum(done) == len(names) == exports.rollouts(store)


def test_what_happens_during_an_export_is_not_in_it(scene: Scene) -> None:
    scene.enqueue("before")
    lines: list[str] = []

    def write(line: str) -> None:
        if '"kind":"run"' in line:
            scene.enqueue("during")
            scene.store.runs.end(scene.run, RunState.COMPLETED, who="test", now=2.0).result()
        lines.append(line)

    exports.export(scene.store, write, version="9", now=5.0)
    data = [json.loads(line) for line in lines]
    assert [line["record"]["name"] for line in data if line["kind"] == "rollout"] == ["before"]
    assert [line["record"]["state"] for line in data if line["kind"] == "run"] == ["running"]
    assert sum(line["kind"] == "ledger-entry" for line in data) == 1


def test_a_page_costs_the_same_in_a_run_of_any_length(files: Files) -> None:
    engine = engine_for(files.fresh())
    connection = engine.connect(read_only=True)
    params = {"run": 1, "after": 1, "first": 1, "last": 2}
    for statement in (exports.ROLLOUTS, exports.ATTEMPTS, *(statement for statement, _ in exports.OF_ATTEMPTS)):
        plan = str(connection.execute(f"EXPLAIN QUERY PLAN {engine.book[statement]}", params).fetchall())
        assert "SCAN" not in plan  # by key: not over the whole table,
        assert "run=? AND key>? AND key<?" in plan  # nor over the whole run
    connection.close()


def test_the_answer_of_an_export_is_a_record() -> None:
    answer = exports.Exported(output="f.jsonl", lines={"run": 1})
    assert decode(exports.Exported, encode(answer)) == answer
