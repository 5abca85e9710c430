"""Replays: one pass over a suite leaves the golden of what the version did, the same one every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from holdfast.contracts.records import encode
from holdfast.contracts.run import LEGACY_STEP, RunState
from holdfast.pipeline.golden import Replay, golden_in
from holdfast.pipeline.versions import resolve
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.prove.golden import Golden, check
from holdfast.store.store import Store
from holdfast.workloads.tooluse.suite import replay_of, replay_spec, suite_of
from tests.pipeline.scene import drive
from tests.workloads.tooluse.test_suite import short


def saved(folder: Path, seed: int) -> str:
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=512), seed=seed)
    save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
    return str(folder)


def replayed(store: Store, replay: Replay) -> Golden:
    status = drive(store, replay_spec(store, replay))
    assert status.run_state is RunState.COMPLETED
    made = golden_in(store, store.steps.of_run(status.run_id))
    assert made is not None
    return made


def test_the_same_weights_do_the_same_whatever_runs_beside_them(store: Store, tmp_path: Path) -> None:
    suite, version = short(suite_of("tooluse:6")), resolve(store, saved(tmp_path / "one", 0))
    first = replayed(store, replay_of(suite, version, name="g", workers=6))
    again = replayed(store, replay_of(suite, version, name="g", workers=1))
    assert first.sha256 == again.sha256
    assert not [one for one in check(first, again) if one.count]
    assert (first.version, first.weights_sha256, first.sampling) == (version.name, version.sha256, {"temperature": 0.0})
    assert [case.case_id for case in first.cases] == [case.case_id for case in suite.cases]

    other = resolve(store, saved(tmp_path / "two", 1))
    changed = replayed(store, replay_of(suite, other, name="g", workers=6))
    assert changed.sha256 != first.sha256
    assert {one.name for one in check(first, changed) if one.count} >= {"action_hash"}


def test_a_replay_leaves_nothing_to_chance_and_gives_the_version_its_resources(store: Store, tmp_path: Path) -> None:
    number = store.versions.publish({"system_prompt": "Be kind."}, now=0.0).result().version
    version = replace(resolve(store, saved(tmp_path / "one", 0)), resources=number)
    replay = replay_of(short(suite_of("tooluse:3")), version, name="g", workers=1)
    assert [task.input["sampling"]["temperature"] for task in replay.tasks] == [0.0] * 3
    spec = replay_spec(store, replay)
    assert spec.kind == "golden"
    run = drive(store, spec).run_id
    found = store.views.rollouts(run, most=10)
    assert [(one.name, one.resources) for one in found] == [(f"replay-{place}", number) for place in range(3)]


def test_a_golden_of_any_size_is_kept_and_one_of_then_is_read(store: Store, tmp_path: Path) -> None:
    suite, version = short(suite_of("tooluse:200")), resolve(store, saved(tmp_path / "one", 0))
    made = replayed(store, replay_of(suite, version, name="g"))
    assert len(made.cases) == 200  # more than a step's result may hold
    run = store.runs.begin(kind="golden", model_ref="m", settings={}, salt="aa", who="ada", now=0.0).result().id
    old = replace(made, cases=made.cases[:5])
    store.steps.add(run, "lesson-1", {"golden": encode(old)}, function=LEGACY_STEP, now=0.0).result()
    assert golden_in(store, store.steps.of_run(run)) == old
    assert golden_in(store, []) is None
