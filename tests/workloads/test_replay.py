"""Replays: one pass over a suite leaves the golden of what the version did, the same one every time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from holdfast.workloads.duel import suite_of
from holdfast.workloads.replay import Replay, plan_for

from holdfast.collect.plan import Standing
from holdfast.contracts.records import decode
from holdfast.contracts.run import RunState
from holdfast.pipeline.versions import resolve
from holdfast.policies.lm import Shape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.prove.golden import Golden, check
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.workloads.test_duel import drive, short


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh()) as opened:
        yield opened


def saved(folder: Path, seed: int) -> str:
    model = Transformer(Shape(width=16, layers=1, heads=2, context=512), seed=seed)
    save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
    return str(folder)


def replayed(store: Store, replay: Replay) -> Golden:
    status = drive(store, plan_for(replay))
    assert status.run_state is RunState.COMPLETED
    (update,) = store.steps.of_run(status.run_id)
    return decode(Golden, update.body["golden"])


def test_the_same_weights_do_the_same_whatever_runs_beside_them(store: Store, tmp_path: Path) -> None:
    suite, version = short(suite_of("tooluse:6")), resolve(store, saved(tmp_path / "one", 0))
    first = replayed(store, Replay(name="g", suite=suite, version=version, workers=6))
    again = replayed(store, Replay(name="g", suite=suite, version=version, workers=1))
    assert first.sha256 == again.sha256
    assert not [one for one in check(first, again) if one.count]
    assert (first.version, first.weights_sha256, first.sampling) == (version.name, version.sha256, {"temperature": 0.0})
    assert [case.case_id for case in first.cases] == [case.case_id for case in suite.cases]

    other = resolve(store, saved(tmp_path / "two", 1))
    changed = replayed(store, Replay(name="g", suite=suite, version=other, workers=6))
    assert changed.sha256 != first.sha256
    assert {one.name for one in check(first, changed) if one.count} >= {"action_hash"}


def test_a_replay_leaves_nothing_to_chance_and_is_over_after_one_pass(store: Store, tmp_path: Path) -> None:
    version = replace(resolve(store, saved(tmp_path / "one", 0)), resources=3)
    plan = plan_for(Replay(name="g", suite=suite_of("tooluse:3"), version=version, workers=1))
    plan.close()
    lesson = plan.course(Standing(run="run-1", folder=tmp_path, done=[]))
    assert lesson is not None
    assert [task.input["sampling"]["temperature"] for task in lesson.tasks] == [0.0] * 3
    assert {task.resources for task in lesson.tasks} == {3}
    assert plan.kind == "golden"
