"""`holdfast prove more`: what is held gets more episodes, all runs count together, and the gate is asked again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.evidence import Evidence
from holdfast.contracts.records import loads
from holdfast.pipeline.paired import episodes_of_run
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import open_store
from tests.cli.conftest import Answer, Cli
from tests.cli.test_improve import config, items

SUITE = Path(__file__).resolve().parents[2] / "examples/suites/tool-use-suite.json"


@pytest.fixture
def at(tmp_path: Path, cli: Cli) -> tuple[object, ...]:
    """Two models that know nothing: one is live, and nothing proves the other to be better."""
    store = ("--store", str(tmp_path / "s.sqlite"))
    for seed in (0, 1):
        model = Transformer(ModelShape(width=16, layers=1, heads=2, context=512), seed=seed)
        save_transformer(tmp_path / f"w{seed}", model, Manifest(kind="transformer", shape={}, created_at=0.0))
        assert cli("release", "add", tmp_path / f"w{seed}", "--policy", "tools", *store).code == 0
    assert cli("release", "promote", "tools@1", *store).code == 0
    return store


def measured(cli: Cli, at: tuple[object, ...], suite: object = "tooluse:4") -> str:
    ran = cli("prove", "run", suite, "--baseline", "tools@1", "--candidate", "tools@2", *at)
    assert ran.code == 0, ran.err
    return ran.lines[0].split()[0]


def held(cli: Cli, at: tuple[object, ...], suite: object = "tooluse:4") -> str:
    run = measured(cli, at, suite)
    decided = cli("release", "decide", "tools@2", "--run", run, "--untrained", *at)
    assert decided.code == 1, decided.err
    assert decided.lines[0].startswith("tools@2: held; it stays candidate")
    assert "holdfast prove more tools@2" in decided.out
    return run


def evidence(at: tuple[object, ...]) -> tuple[Evidence, float]:
    """What the last decision rests on, and the error rate it was made by."""
    with open_store(str(at[1])) as store:
        found = loads(Evidence, store.blobs.get(str(store.releases.get("tools@2").evidence)))
        return found, json.loads(store.blobs.get(str(found.samples)))["weighing"]["alpha"]


def refused(ran: Answer) -> str:
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1), ran.err
    return ran.err


def test_further_tasks_are_added_and_the_gate_decides_on_all_of_them(cli: Cli, at: tuple[object, ...]) -> None:
    first = held(cli, at)
    ran = cli("prove", "more", "tools@2", "--json", *at)
    assert ran.code == 1, ran.err
    second = ran.json["run"]
    assert second != first
    found, alpha = evidence(at)
    assert (found.episodes, found.missing, alpha) == (8, {"planned": 16, "baseline": 0, "candidate": 0}, 0.05)
    with open_store(str(at[1])) as store:
        (before, _), (_, both) = episodes_of_run(store, first), episodes_of_run(store, second)
        assert [one.task for one in both[:8]] == [one.task for one in before]  # order kept, the new ones after them
        assert len({(one.task, one.seed) for one in both}) == len(both) == 16
    shown = cli("prove", "show", second, *at)
    assert shown.lines[3] == "HOLD after 8 tasks, 2 looks"
    assert cli("prove", "run", "--resume", second, *at).lines[3] == shown.lines[3]  # what is done is read
    explained = cli("release", "explain", "tools@2", "--json", *at)
    assert explained.code == 0 and explained.json["agrees"]
    assert len(explained.json["history"]) == 3  # registered, and decided about twice


def test_evidence_goes_on_at_its_end_and_nowhere_else(cli: Cli, at: tuple[object, ...]) -> None:
    first = held(cli, at)
    assert cli("prove", "more", first, "--tasks", "tooluse:6", *at).code == 1  # the four of before are not done again
    assert evidence(at)[0].episodes == 6
    again = refused(cli("prove", "more", first, "--tasks", "tooluse:6", *at))
    assert "tooluse:6: has no task that is not measured yet" in again
    assert cli("prove", "more", first, "--tasks", "tooluse:3:1", *at).code == 1  # other tasks under the same names
    assert evidence(at)[0].episodes == 9


def test_further_seeds_are_another_try_and_count_half(cli: Cli, at: tuple[object, ...]) -> None:
    held(cli, at, SUITE)
    assert cli("prove", "more", "tools@2", *at).code == 1  # a suite in a file has no further tasks
    found, alpha = evidence(at)
    assert (found.episodes, found.bands["seed"].of, alpha) == (2, 4, 0.025)
    assert cli("prove", "more", "tools@2", "--seeds", 1, *at).code == 1
    found, alpha = evidence(at)
    assert (found.bands["seed"].of, alpha) == (5, 0.0125)
    with open_store(str(at[1])) as store:
        last = store.runs.newest(most=1)[0]
    decided = cli("release", "decide", "tools@2", "--run", last.id, "--untrained", *at)
    assert decided.code == 1
    assert evidence(at)[1] == 0.0125  # however it is brought before the gate


def test_what_no_gate_has_decided_about_is_measured_and_shown(cli: Cli, at: tuple[object, ...]) -> None:
    run = measured(cli, at)
    assert f"holdfast prove more {run}" in " ".join(cli("prove", "show", run, *at).out.split())
    ran = cli("prove", "more", run, *at)
    assert ran.code == 0, ran.err
    assert ran.lines[3] == "HOLD after 8 tasks, 2 looks"
    assert "holdfast release decide tools@2 --run" in " ".join(ran.out.replace("\\\n", " ").split())


def test_what_cannot_be_measured_further_is_one_line(cli: Cli, at: tuple[object, ...]) -> None:
    assert "nothing has measured it yet" in refused(cli("prove", "more", "tools@2", *at))
    ran = cli("prove", "run", "tooluse:2", "--baseline", "tools@1", "--null", *at)
    null = ran.lines[0].split()[0]
    assert "compares a version with itself" in refused(cli("prove", "more", null, *at))
    run = held(cli, at)
    assert "and --seeds were both given" in refused(cli("prove", "more", run, "--seeds", 1, "--tasks", "f", *at))
    assert "there is none" in refused(cli("prove", "more", "tools@9", *at))
    with open_store(str(at[1])) as store:
        other = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="aa", who="ada", now=0.0).result()
    assert "is of the kind optimize, and compared nothing" in refused(cli("prove", "more", other.id, *at))


def lines(tasks: list[dict[str, Any]]) -> str:
    """As a file of tasks has them."""
    split = [({name: one[name] for name in one if name != "expected"}, one["expected"]) for one in tasks]
    return "\n".join(json.dumps({"input": given, "expected": expected}) for given, expected in split)


def test_a_candidate_that_improve_left_held_goes_on_with_tasks_from_a_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at = ("--store", "s.db")
    ran = cli("improve", config(tmp_path, stage="shadow"), "--policy", "tools", "--model", "local/sprout-weak", *at)
    assert ran.code == 0, ran.err
    assert "holdfast prove more tools@2 --tasks FILE --store s.db" in ran.out
    run = ran.lines[0].split()[0]
    Path("more.jsonl").write_text(lines([*items("test", 5), items("val", 1)[0]]))
    more = cli("prove", "more", "tools@2", "--tasks", "more.jsonl", *at)
    assert more.code == 1, more.err
    found, _ = evidence(at)
    assert (found.episodes, found.baseline) == (9, "tools@1")  # one of them was measured before
    assert found.audit is not None  # what it learnt from was looked at by the run that made it
    assert cli("release", "explain", "tools@2", "--json", *at).json["agrees"]
    again = cli("prove", "run", "--resume", "run-2", *at)  # it is made from its settings, and what is done is read
    assert again.code == 0 and again.lines[3] == "HOLD after 9 tasks, 3 looks", again.err
    Path("learnt.jsonl").write_text(lines(items("train", 1)))
    assert "is one that it learnt from" in refused(cli("prove", "more", run, "--tasks", "learnt.jsonl", *at))
    alone = cli("release", "decide", "tools@2", "--run", run, *at)  # a run of kind improve compared something, too
    assert alone.code == 1 and "population_below_minimum" in alone.out
    assert evidence(at)[0].episodes == 4
