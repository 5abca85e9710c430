"""Suites of tool-use tasks: files and generated ones, and two versions measured on them by models so small that they
take no time."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.run import RunState
from holdfast.pipeline.paired import PairedEvaluation, episodes_of_run, policies_of, shown_looks, weighed
from holdfast.pipeline.versions import Version, resolve
from holdfast.prove.suite import Suite, to_document
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.suite import evaluation_from, evaluation_of, evaluation_spec, held_out, suite_of
from tests.conftest import Files
from tests.pipeline.paired_scene import LAX, drive
from tests.workloads.scene import tiny

PATIENCE_S = 60.0
SHIPPED = Path(__file__).resolve().parents[3] / "examples/suites"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Two models that know nothing."""
    return [tiny(tmp_path_factory.mktemp("weights"), seed) for seed in (0, 1)]


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh()) as opened:
        yield opened


def versions(store: Store, folders: Sequence[str]) -> tuple[Version, Version]:
    one, two = (resolve(store, folder) for folder in folders)
    return one, two


def short(suite: Suite) -> Suite:
    """The same cases, each over after a few tokens."""
    given = {"sampling": {"max_tokens": 4}, "max_turns": 1}
    return replace(suite, cases=tuple(replace(case, input={**case.input, **given}) for case in suite.cases))


@pytest.fixture
def made(store: Store, folders: list[str]) -> PairedEvaluation:
    return on(replace(short(suite_of("tooluse:6")), seeds=(1, 2)), None, *versions(store, folders))


def on(suite: Suite, source: str | None, baseline: Version, candidate: Version) -> PairedEvaluation:
    return evaluation_of(suite, source, baseline=baseline, candidate=candidate, batch=4, workers=4, how=LAX)


def test_an_evaluation_comes_back_from_the_settings_of_its_run(made: PairedEvaluation) -> None:
    assert evaluation_from(json.loads(json.dumps(made.settings))) == made
    suite = replace(suite_of("tooluse:3:5"), seeds=(1, 4))
    again = on(suite, "tooluse:3:5", made.baseline, made.candidate)
    settings = json.loads(json.dumps(again.settings))
    assert evaluation_from(settings) == again
    assert "document" not in settings["suite"]  # thousands of tasks are made again, not kept
    settings["suite"]["sha256"] = "0" * 64
    with pytest.raises(BadInput, match="makes other tasks of it"):
        evaluation_from(settings)


def test_a_generated_suite_has_tasks_that_nobody_has_learnt_from() -> None:
    suite = suite_of("tooluse:30:2")
    assert len({case.case_id for case in suite.cases}) == 30
    assert suite_of("tooluse:30:2").fixture_sha256 == suite.fixture_sha256
    assert suite_of("tooluse:30:3").fixture_sha256 != suite.fixture_sha256
    assert suite_of("tooluse:20:2").cases == suite.cases[:20]
    assert all(case.case_id.startswith(case.input["family"]) for case in suite.cases)
    assert to_document(suite)


@pytest.mark.parametrize(
    "source", ["tooluse", "tooluse:x", "tooluse:0", "tooluse:1:2:3", "tooluse:5:-1", "tooluse:9999999"]
)
def test_a_generated_suite_that_cannot_be_is_refused(source: str) -> None:
    with pytest.raises(BadInput, match=f"suite {source}"):
        suite_of(source)


def test_a_suite_that_cannot_be_run_or_scored_is_refused_before_anything_runs(tmp_path: Path) -> None:
    document = json.loads((SHIPPED / "tool-use-suite.json").read_text())
    path = tmp_path / "s.json"
    document["cases"][1]["input"]["style"] = "haiku"
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"cases\[1\].input: task.style = 'haiku' is unknown"):
        suite_of(str(path))
    document["cases"][0]["scoring_rubric"] = {"charm": 1.0}
    path.write_text(json.dumps(document))
    with pytest.raises(BadInput, match=r"cases\[0\].scoring_rubric.charm: nothing here measures it"):
        suite_of(str(path))


def test_what_a_case_asks_for_in_sampling_is_kept_and_a_replay_is_stronger() -> None:
    suite = short(suite_of("tooluse:1"))
    (usual,), (greedy,) = held_out(suite), held_out(suite, temperature=0.0)
    assert usual.input["sampling"] == {"temperature": 1.0, "max_tokens": 4}
    assert greedy.input["sampling"] == {"temperature": 0.0, "max_tokens": 4}
    assert usual.input["case"] == usual.id == suite.cases[0].case_id


def test_a_comparison_runs_to_its_end_and_its_episodes_can_be_read(store: Store, made: PairedEvaluation) -> None:
    status = drive(store, evaluation_spec(store, made))
    assert (status.run_state, status.total_rollouts, status.succeeded) == (RunState.COMPLETED, 24, 24)
    baseline, candidate = episodes_of_run(store, status.run_id)
    keys = [(case.case_id, seed) for case in suite_of("tooluse:6").cases for seed in (1, 2)]
    assert [(one.task, one.seed) for one in baseline] == [(one.task, one.seed) for one in candidate] == keys
    assert all(one.latency_s is not None and one.tokens for one in baseline)
    for policy, some in zip(policies_of(store, made), (baseline, candidate), strict=True):
        (first, *_) = store.experiences.of([str(some[0].rollout)])
        assert first.version == policy.version  # each was answered by its own weights
    found = weighed(store, status.run_id)
    assert found is not None
    assert len(found.tasks) == 6
    assert found.comparisons["success"].candidate == made.candidate.name


def test_weights_that_were_changed_since_are_not_measured(store: Store, tmp_path: Path) -> None:
    folders = [tiny(tmp_path / f"w{seed}", seed) for seed in (0, 1)]
    made = on(suite_of("tooluse:2"), None, *versions(store, folders))
    tiny(tmp_path / "w1", 2)
    with pytest.raises(BadInput, match="any more; restore them"):
        evaluation_spec(store, made)


def finals(store: Store, run: str) -> dict[str, str | None]:
    rollouts = store.views.rollouts(run, most=1000)
    return {one.name: one.final_attempt for one in rollouts if one.final_attempt is not None}


def test_a_comparison_that_was_killed_goes_on_where_it_stopped(files: Files, folders: list[str]) -> None:
    path = files.fresh()
    words = ["tooluse:16", "--baseline", folders[0], "--candidate", folders[1]]
    words += ["--seeds", "1", "--batch", "4", "--workers", "2"]
    command = [sys.executable, "-m", "holdfast.cli", "prove", "run", *words, "--store", path]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open_store(path) as store:
        patience = time.monotonic() + PATIENCE_S
        while not any(shown_looks(store, run.id) for run in store.runs.newest(most=1)):
            assert child.poll() is None
            assert time.monotonic() < patience
            time.sleep(0.02)
        child.send_signal(signal.SIGKILL)
        child.wait()
        (run,) = store.runs.newest(most=1)
        assert run.state is RunState.RUNNING  # it had no time to say anything
        before, looks = finals(store, run.id), shown_looks(store, run.id)
        assert 0 < len(looks) < 4
        again = evaluation_from(run.settings)
        # its lease has run out by then
        status = drive(store, evaluation_spec(store, again), resume=run.id, later_s=60.0)
        assert (status.run_state, status.total_rollouts) == (RunState.COMPLETED, 32)
        after = finals(store, run.id)
        assert len(after) == 32
        assert {name: after[name] for name in before} == before  # nothing was done twice
        assert shown_looks(store, run.id)[: len(looks)] == looks
        for some in episodes_of_run(store, run.id):
            assert [one.task for one in some] == [task.id for task in again.tasks]
