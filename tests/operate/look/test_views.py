from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Split, Task
from holdfast.contracts.run import LEGACY_STEP, DesiredState
from holdfast.operate import conversation, learning_views, release_views, views
from holdfast.operate.app import PANELS
from holdfast.operate.views import health, pace, solved
from holdfast.store.dashboard_queries import RECENT
from holdfast.store.store import Store
from tests.operate.conftest import LIVED_AT
from tests.store.filled import IMAGE, SCRIPT

NOW: dict[str, float] = {"now": LIVED_AT}
View = Callable[[Store], dict[str, Any]]


def newest(store: Store) -> str:
    return store.runs.newest(most=1)[0].id


def some(store: Store) -> dict[str, Any]:
    return views.rollouts(store, newest(store), **NOW, status="succeeded", most=1)["rollouts"][0]


VIEWS = {panel.name: panel.view for panel in PANELS} | {"health": views.health}
ALL: dict[str, View] = {
    "overview": lambda store: views.overview(store, **NOW),
    "health": lambda store: views.health(store, **NOW),
    "runs": lambda store: views.runs(store, **NOW),
    "run": lambda store: views.run(store, newest(store), **NOW),
    "rollouts": lambda store: views.rollouts(store, newest(store), **NOW),
    "rollout": lambda store: conversation.rollout(store, some(store)["id"], **NOW),
    "group": lambda store: conversation.group(
        store, newest(store), some(store)["group"], **NOW, near=some(store)["key"]
    ),
    "learning": lambda store: learning_views.learning(store, newest(store), **NOW),
    "search": lambda store: learning_views.search(store, newest(store), **NOW),
    "proofs": lambda store: release_views.proofs(store, **NOW),
    "proof": lambda store: release_views.proof(store, "sprout@2", **NOW),
    "releases": lambda store: release_views.releases(store, **NOW),
    "experiments": lambda store: release_views.experiments(store, **NOW),
    "experiment": lambda store: release_views.experiment(store, "greeting", **NOW),
    "tools": lambda store: views.tools(store, newest(store), **NOW),
    "budgets": lambda store: views.budgets(store, newest(store), **NOW),
    "alerts": lambda store: views.alerts(store, **NOW),
    "audit": lambda store: views.audit(store, **NOW),
    "flags": lambda store: views.flags(store, **NOW),
    "workers": lambda store: views.workers(store, **NOW),
}
EMPTY = ("overview", "health", "runs", "proofs", "releases", "experiments", "alerts", "audit", "flags", "workers")


@pytest.mark.parametrize("name", ALL)
def test_a_view_is_plain_json_of_the_keys_it_documents(lived_in: Store, name: str) -> None:
    assert sorted(ALL) == sorted(VIEWS)  # every one is tried
    told = ALL[name](lived_in)
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    said = str(VIEWS[name].__doc__)
    assert [key for key in told if f'"{key}"' not in said] == []
    assert len(json.dumps(told)) < 200_000


@pytest.mark.parametrize("name", EMPTY)
def test_there_is_something_to_show_of_an_empty_store(file_store: Store, name: str) -> None:
    told = ALL[name](file_store)
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_looking_changes_nothing(lived_in: Store) -> None:
    watching = sqlite3.connect(Path(lived_in.url))

    def stands() -> tuple[Any, ...]:
        files = sorted(str(path) for path in lived_in.folder.rglob("*"))
        return watching.execute("PRAGMA data_version").fetchone(), files

    for view in ALL.values():  # the first time it may be a first look
        view(lived_in)
    before = stands()
    told = {name: view(lived_in) for name, view in ALL.items()}
    assert stands() == before
    assert told == {name: view(lived_in) for name, view in ALL.items()}
    watching.close()


def test_what_is_live_and_why_is_told_in_a_sentence(lived_in: Store) -> None:
    told = views.overview(lived_in, **NOW)
    (policy,) = told["policies"]
    assert (policy["live"]["id"], policy["under_way"]["id"]) == ("sprout@1", "sprout@2")
    assert policy["decision"]["sentence"] == "sprout@1 went from candidate to live: told."
    assert policy["news"]["sentence"].startswith("sprout@2 went from candidate to canary with 5 %: ")
    assert policy["news"]["outcome"] == "promoted" and policy["way_back"] is None
    assert (policy["asked_at"], policy["is_asked"], policy["is_served"]) == (None, False, False)
    assert told["run"]["total"] == 1_000 and told["queue"]["running"] == 50
    assert told["queue"]["waiting"] + told["queue"]["requeuing"] == 50
    assert told["run"]["outcomes"] == {"right": 469, "wrong": 314, "not_checked": 45, "failed": 45, "no_answer": 27}
    assert told["right"]["n"] == 469 + 314 + 45 and told["right"]["value"] == 469 / 828
    assert told["success"]["n"] == 891 and told["success"]["low"] < 828 / 891 < told["success"]["high"]
    assert told["reward"]["low"] < told["reward"]["value"] < told["reward"]["high"]
    assert told["pace"]["per_s"] == pytest.approx(873 / 60.0)
    assert sum(one["ended"] for one in told["pace"]["series"]) == told["pace"]["ended"]
    assert [one["code"] for one in told["alerts"]] == ["told-by-hand"]
    assert told["workers"] == {"working": 4, "silent": 0, "stopped": 0, "slots": 200}


def test_scripts_are_passed_on_as_the_texts_they_are(lived_in: Store) -> None:
    asked = [one["asked"] for one in views.rollouts(lived_in, newest(lived_in), **NOW, text="task-500")["rollouts"]]
    assert asked == [f"{SCRIPT} What is 500 + 2?"]
    assert IMAGE in views.run(lived_in, newest(lived_in), **NOW)["failures"][0]["reason"]
    assert SCRIPT in views.alerts(lived_in, **NOW)["standing"][0]["message"]


def test_what_came_of_a_rollout_is_told_and_can_be_asked_for(lived_in: Store) -> None:
    every = views.rollouts(lived_in, newest(lived_in), **NOW, most=200)["rollouts"]
    assert {one["outcome"] for one in every} == {"right", "wrong", "not_checked", "failed", "no_answer", None}
    assert all((one["outcome"] is None) == (one["status"] in ("queuing", "requeuing", "running")) for one in every)
    for outcome in ("right", "wrong", "not_checked", "failed"):
        page = views.rollouts(lived_in, newest(lived_in), **NOW, most=200, outcome=outcome)
        assert {one["outcome"] for one in page["rollouts"]} == {outcome}
        assert len(page["rollouts"]) == min(200, page["outcomes"][outcome])
    page = views.rollouts(lived_in, newest(lived_in), **NOW, outcome="wrong", status="succeeded", split="val")
    assert page["rollouts"] and all((one["outcome"], one["split"]) == ("wrong", "val") for one in page["rollouts"])
    assert views.rollouts(lived_in, newest(lived_in), **NOW, outcome="wrong", status="failed")["rollouts"] == []
    with pytest.raises(BadInput, match="may be dead or cancelled"):
        views.rollouts(lived_in, newest(lived_in), **NOW, outcome="no_answer")


def test_pages_follow_one_another_without_a_gap(lived_in: Store) -> None:
    seen, before = list[str](), None
    while True:
        page = views.rollouts(lived_in, newest(lived_in), **NOW, most=200, before=before)
        seen += [one["name"] for one in page["rollouts"]]
        if (before := page["next"]) is None:
            break
    assert seen == [f"task-{place}" for place in range(1_000, 0, -1)]
    first = views.runs(lived_in, **NOW, most=1)
    assert [one["id"] for one in views.runs(lived_in, **NOW, before=first["next"])["runs"]] == ["run-1-old"]
    entries = views.audit(lived_in, **NOW, most=3)
    assert entries["next"] == entries["entries"][-1]["seq"]
    assert {one.kind for one in lived_in.ledger.entries()} == set(entries["kinds"])
    budgets = views.budgets(lived_in, newest(lived_in), **NOW, most=2)
    more = views.budgets(lived_in, newest(lived_in), **NOW, most=2, before=budgets["next"])
    assert budgets["budgets"][-1]["token"] > more["budgets"][0]["token"]


def test_who_is_asked_comes_first_and_who_is_not_is_known(file_store: Store) -> None:
    store = file_store
    for policy in ("idle", "tools"):
        added = store.releases.add(
            policy=policy, kind=PolicyKind.WEIGHTS, source="shelf:1", who="ann", now=1.0
        ).result()
        store.releases.move(added.id, Stage.LIVE, expect=added.stage, who="ann", why="first", now=1.0).result()
    run = store.runs.begin(kind="serve", model_ref="tools", settings={}, salt="s", who="ann", now=1.0).result()
    store.queue.enqueue(run.id, [Task(name="one", input={}, split=Split.TRAIN)], now=2.0).result()
    first, second = views.overview(store, now=9.0)["policies"]
    assert (first["policy"], first["asked_at"], first["is_asked"], first["is_served"]) == ("tools", 2.0, True, True)
    assert (second["policy"], second["is_asked"], second["is_served"]) == ("idle", False, False)
    later, _ = views.overview(store, now=2.0 + views.LATELY_S)["policies"]
    assert (later["policy"], later["is_asked"], later["is_served"]) == ("tools", False, False)


def test_the_run_that_learnt_is_the_newest_with_a_curve(lived_in: Store, file_store: Store) -> None:
    assert views.runs(lived_in, **NOW)["learnt"] == newest(lived_in)
    for place, body in enumerate(({"loss": 1.0}, {"difference": 0.4})):
        how: dict[str, Any] = {"kind": "prove", "model_ref": "m", "settings": {}, "who": "ann"}
        run = file_store.runs.begin(**how, salt=str(place), now=float(place)).result()
        file_store.steps.add(run.id, "lesson-1", body, function=LEGACY_STEP, who="ann", now=1.0).result()
    told = views.runs(file_store, now=9.0)
    assert told["learnt"] == told["runs"][1]["id"]


def test_tools_and_budgets_are_counted_from_the_newest(lived_in: Store) -> None:
    told = views.tools(lived_in, newest(lived_in), **NOW)
    search = next(one for one in told["rows"] if one["tool"] == "search" and one["model"] == "sprout")
    assert search["adoption"]["value"] == 1.0 and 0 < search["adoption"]["n"] <= told["attempts"]
    tiers = views.budgets(lived_in, newest(lived_in), **NOW)["tiers"]
    assert [one["name"] for one in tiers] == ["trivial", "standard", "complex"]
    own = {one.name: one for one in lived_in.budgets.by_tier(newest(lived_in))}
    assert all(one[name] == getattr(own[one["name"]], name) for one in tiers for name in one)


def test_what_is_not_there_is_said(lived_in: Store) -> None:
    for view in (views.run, views.rollouts, learning_views.learning, views.tools, views.budgets):
        with pytest.raises(NotFound):
            view(lived_in, "run-9", **NOW)


def attempted(store: Store, *states: AttemptState) -> str:
    run = store.runs.begin(kind="o", model_ref="m", settings={}, salt="a", who="t", now=1.0).result().id
    tasks = [Task(name=f"t{place}", input=1, max_attempts=1) for place in range(len(states))]
    store.queue.enqueue(run, tasks, now=1.0).result()
    for place, state in enumerate(states):
        (claim,) = store.queue.claim(run, "w", now=float(place), lease_s=99.0).result()
        store.queue.finish(claim.attempt, state, now=place + 0.5).result()
    return run


GOOD, BAD = AttemptState.SUCCEEDED, AttemptState.FAILED


@pytest.mark.parametrize(
    ("states", "now", "state", "gate"),
    [
        ((), 2.0, "healthy", "pass"),
        ((BAD, GOOD), 2.0, "degraded", "hold"),  # one in the last minute
        ((GOOD, BAD), 2.0, "degraded", "hold"),  # the last one
        ((BAD, GOOD), 65.0, "degraded", "hold"),  # silent by then
        ((GOOD, BAD, BAD, BAD), 5.0, "failing", "hold"),
    ],
)
def test_health_is_as_documented(
    file_store: Store, states: tuple[AttemptState, ...], now: float, state: str, gate: str
) -> None:
    attempted(file_store, *states)
    told = health(file_store, now=now)
    assert (told["health_state"], told["rollout_gate"]) == (state, gate)


def test_a_pause_holds_the_gate_and_no_run_is_unknown(file_store: Store) -> None:
    assert health(file_store, now=1.0)["health_state"] == "unknown"
    run = attempted(file_store, GOOD)
    assert health(file_store, now=2.0)["rollout_gate"] == "pass"
    file_store.runs.want(run, DesiredState.PAUSED, who="ann", why="lunch", now=2.0).result()
    told = health(file_store, now=2.0)
    assert (told["health_state"], told["rollout_gate"], told["is_paused"]) == ("degraded", "hold", True)
    assert told["control_audit_count"] == 1 and told["health_reason"] == f"run {run} is paused by order"


def test_the_pace_is_over_as_much_as_was_read() -> None:
    few = [(90.0, 99.0, "succeeded"), (50.0, 55.0, "failed"), (1.0, 2.0, "succeeded")]
    few += [(99.0, None, "running"), (90.0, 95.0, "released")]  # what was handed back did not end
    told = pace(few, 100.0)
    assert (told["per_s"], told["ended"], told["failed"], told["over_s"]) == (2 / 60.0, 2, 1, 60.0)
    assert len(told["series"]) == 60 and sum(one["ended"] for one in told["series"]) == 2
    many = [(90.0, 95.0, "succeeded")] * RECENT
    assert pace(many, 100.0)["over_s"] == 10.0 and pace(many, 100.0)["per_s"] == RECENT / 10.0


def test_to_run_to_the_end_is_not_to_solve_the_task(file_store: Store) -> None:
    run = file_store.runs.begin(kind="o", model_ref="m", settings={}, salt="a", who="t", now=1.0).result().id
    file_store.queue.enqueue(run, [Task(name=f"t{place}", input=1) for place in range(3)], now=1.0).result()
    good, bad = (RewardTerm(name="success", value=value, source="env") for value in (1.0, 0.0))
    for signals in ((good,), (bad,), ()):
        (claim,) = file_store.queue.claim(run, "w", now=1.0, lease_s=99.0).result()
        file_store.traces.score(claim.attempt, signals, now=1.0).result()
        file_store.queue.finish(claim.attempt, GOOD, now=2.0).result()
    told = solved(file_store, run)
    assert (told["value"], told["n"]) == (0.5, 2)
