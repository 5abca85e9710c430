from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from holdfast.contracts.errors import NotFound
from holdfast.contracts.evidence import Evidence, Finding
from holdfast.contracts.records import loads
from holdfast.contracts.release import Stage
from holdfast.operate import release_views
from holdfast.store.store import Store
from tests.operate.conftest import LIVED_AT
from tests.operate.stage import Line, proposed


def test_the_releases_of_a_policy_with_guard_and_history(lived_in: Store) -> None:
    told = release_views.releases(lived_in, "sprout", now=LIVED_AT)
    assert told["policies"] == ["sprout"] and told["is_whole"]
    newest, oldest = told["releases"]
    assert (newest["stage"], newest["share"], newest["next"]) == ("canary", 5, {"stage": "canary", "share": 25})
    assert newest["decision"]["outcome"] == "promoted" and oldest["stage"] == "live"
    guard = told["guard"]
    assert guard["release"] == "sprout@2" and {one["arm"]: one["requests"] for one in guard["arms"]} == {
        "sprout@1": 300,
        "sprout@2": 300,
    }
    assert {one["metric"]: one["n"] > 0 for one in guard["readings"]}["success"]
    assert told["history"][0]["seq"] > told["history"][-1]["seq"]
    with pytest.raises(NotFound, match="has no versions"):
        release_views.releases(lived_in, "other", now=LIVED_AT)


def test_a_guard_with_too_many_requests_only_counts_them(lived_in: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release_views, "READ", 10)
    guard = release_views.releases(lived_in, "sprout", now=LIVED_AT)["guard"]
    assert guard["readings"] is None and guard["note"] == release_views.TOO_MANY and guard["arms"]
    assert release_views.experiment(lived_in, "greeting", now=LIVED_AT)["note"] == release_views.TOO_MANY


def test_a_rollback_is_the_last_word_about_both(file_store: Store) -> None:
    line = Line(file_store, versions=2)
    line.go(2, Stage.LIVE, known_good=True)
    told = release_views.releases(file_store, now=9.0)
    assert (told["live"]["id"], told["way_back"]) == ("sprout@2", "sprout@1")
    line.back(failing=2, to=1)
    told = release_views.releases(file_store, now=9.0)
    assert told["live"]["id"] == "sprout@1" and told["guard"] is None
    assert {one["decision"]["outcome"] for one in told["releases"]} == {"taken back"}


def test_a_proof_shows_its_tasks_and_how_the_sequence_grew(lived_in: Store) -> None:
    (listed,) = release_views.proofs(lived_in, now=LIVED_AT)["proofs"]
    told = release_views.proof(lived_in, listed["release"], now=LIVED_AT)
    assert told["verdict"]["outcome"] == "promote" and told["problem"] is None
    assert (told["baseline"], told["candidate"]) == ("sprout@1", "sprout@2")
    assert told["split"] == {"better": 70, "worse": 0, "same": 30} and len(told["tasks"]) == 100
    success = next(one for one in told["comparisons"] if one["metric"] == "success")
    assert success["low"] > 0 and success["told"]["difference"] == "+70.0 points"
    course, safety = told["courses"]
    assert course["mean"][-1] == pytest.approx(success["difference"])
    assert course["low"][course["proved_at"] - 1] > course["bar"] and course["low"] == sorted(course["low"])
    assert safety["metric"] == "safety" and told["headline"] == told["decision"]["sentence"]
    assert told["decision"]["outcome"] == "promoted" and told["moves"] == []
    with pytest.raises(NotFound, match="rests on no evidence"):
        release_views.proof(lived_in, "sprout@1", now=LIVED_AT)


def test_only_what_failed_is_found_in_the_data_and_signs_are_the_same_everywhere(file_store: Store) -> None:
    Line(file_store)
    asyncio.run(proposed(file_store))
    told = release_views.proof(file_store, "sprout@2", now=9.0)
    kept = loads(Evidence, file_store.blobs.get(str(file_store.releases.get("sprout@2").evidence)))
    clean = Finding(name="no_pii", severity="critical", count=0, of=9)
    bad = Finding(name="no_secrets", severity="critical", count=2, of=9, detail="task 3")
    seen = release_views._evidence(replace(kept, audit=(clean, bad), golden=(clean,)))
    assert [(one["name"], one["count"], one["about"]) for one in seen["findings"]] == [("no_secrets", 2, "audit")]
    assert seen["checked"] == 3
    for one in told["comparisons"]:
        shown = one["told"]["difference"]
        assert shown[0] == ("+" if one["difference"] > 0 else "−" if one["difference"] < 0 else "0")
    slower = replace(kept.comparisons["success"], metric="latency", difference=-1.2)
    (latency,) = release_views._evidence(replace(kept, comparisons={"latency": slower}))["comparisons"]
    assert (latency["told"]["difference"], latency["told"]["note"]) == ("−1.20 s", "slower")


def test_samples_that_were_changed_are_not_drawn(file_store: Store) -> None:
    Line(file_store)
    asyncio.run(proposed(file_store))
    evidence = json.loads(file_store.blobs.get(str(file_store.releases.get("sprout@2").evidence)))
    path = file_store.blobs.path(evidence["samples"])
    path.chmod(0o644)
    path.write_bytes(path.read_bytes() + b" ")
    told = release_views.proof(file_store, "sprout@2", now=9.0)
    assert told["courses"] == [] and "not the ones that were kept" in told["problem"]
    path.unlink()
    assert "no file" in release_views.proof(file_store, "sprout@2", now=9.0)["problem"]


def test_experiments_are_listed_and_ruled(lived_in: Store) -> None:
    listed = release_views.experiments(lived_in, now=LIVED_AT)["experiments"]
    assert {one["kind"] for one in listed} == {"experiment", "canary"}
    told = release_views.experiment(lived_in, "greeting", now=LIVED_AT)
    control, treatment = told["experiment"]["arms"]
    assert (control["units"], control["requests"], control["success"]["value"]) == (20, 20, 0.0)
    assert treatment["success"]["value"] == 1.0
    assert told["ruling"]["call"] == "promote_treatment" and told["ruling"]["arm"] == "treatment"
    canary = next(one["name"] for one in listed if one["kind"] == "canary")
    assert release_views.experiment(lived_in, canary, now=LIVED_AT)["ruling"] is None
