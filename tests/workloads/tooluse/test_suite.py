"""Suites of tool-use tasks and their rubric: files and generated ones, and two versions measured on them."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.pipeline.paired import PairedEvaluation, comparison_of, episodes_of_run, policies_of, shown_looks
from holdfast.pipeline.versions import Version, resolve
from holdfast.policies.tokens import THINK
from holdfast.prove.suite import Suite, to_document
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.suite import (
    DIMENSIONS,
    check_rubric,
    evaluation_from,
    evaluation_of,
    evaluation_spec,
    held_out,
    measure_rubric,
    suite_of,
)
from tests.conftest import Files
from tests.pipeline.paired_scene import LAX, drive
from tests.warm import Warm
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
    assert [(one.task, one.seed) for one in baseline] == [(one.task, one.seed) for one in candidate]
    assert sorted((one.task, one.seed) for one in baseline) == sorted(keys)  # in an order of their own
    assert all(one.latency_s is not None and one.tokens for one in baseline)
    for policy, some in zip(policies_of(store, made), (baseline, candidate), strict=True):
        (first, *_) = store.experiences.of([str(some[0].rollout)])
        assert first.version == policy.version  # each was answered by its own weights
    found = comparison_of(store, status.run_id)
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
    command = ["-m", "holdfast.cli", "prove", "run", *words, "--store", path]
    child = Warm(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
            assert sorted(one.task for one in some) == sorted(task.id for task in again.tasks)


EVEN = dict.fromkeys(DIMENSIONS, 1.0 / len(DIMENSIONS))
TASK: dict[str, Any] = {
    "prompt": "What is the price of oak plus 1?",
    "system": "Use tools. If unsure: unknown. Reply: X",
    "style": "brief",
    "think": False,
    "tools": ["calc", "lookup"],
    "difficulty": 2,
    "needs": ["lookup", "calc"],
    "expected": "48",
}
UNTOOLED = {**TASK, "system": "Use no tools. If unsure: unknown. Reply: X", "difficulty": 0, "needs": []}


def spans(*tools: str, thought: bool = False) -> tuple[Span, ...]:
    ids = (THINK, 65, 66) if thought else (65, 66)
    model = ModelCall(model="m", messages=(), response={}, completion_ids=ids)
    said = Span(seq=1, kind=SpanKind.MODEL, name="m", started_at=0.0, model=model)
    called = [
        Span(seq=place, kind=SpanKind.TOOL, name="t", started_at=0.0, tool=ToolCall(tool=name, arguments={}))
        for place, name in enumerate(tools, 2)
    ]
    return said, *called


def values(task: Any, output: Any, happened: Sequence[Span]) -> dict[str, float]:
    return {signal.name: signal.value for signal in measure_rubric(EVEN, task, output, happened)}


def test_the_gold_answer_earns_everything_and_no_more() -> None:
    signals = measure_rubric(EVEN, TASK, "48", spans("lookup", "calc"))
    assert {signal.value for signal in signals if signal.name in DIMENSIONS} == {1.0}
    assert RewardBreakdown(signals=signals).total == pytest.approx(1.0)
    assert {signal.name: (signal.value, signal.weight) for signal in signals[-2:]} == {
        "success": (1.0, 0.0),
        "safety_cost": (0.0, 0.0),
    }


CASES: list[tuple[str, Any, Any, tuple[Span, ...], dict[str, float]]] = [
    ("a wrong value", TASK, "49", spans("lookup", "calc"), {"task_accuracy": 0, "task_completion": 0, "success": 0}),
    ("several candidates", TASK, "48 49", spans("lookup", "calc"), {"task_accuracy": 0, "constraint_compliance": 0}),
    (
        "the right value in another style",
        TASK,
        "The answer is 48.",
        spans("lookup", "calc"),
        {"constraint_compliance": 0},
    ),
    ("a thought nobody asked for", TASK, "48", spans("lookup", "calc", thought=True), {"reasoning_trace_quality": 0}),
    ("no thought when asked", {**TASK, "think": True}, "48", spans("lookup", "calc"), {"reasoning_trace_quality": 0}),
    ("twice the calls", TASK, "48", spans("lookup", "lookup", "calc", "calc"), {"tool_efficiency": 0.5}),
    ("a guess", TASK, "48", spans(), {"tool_efficiency": 0, "tool_safety": 1}),
    ("a tool that was not offered", TASK, "48", spans("lookup", "shell"), {"tool_safety": 0.5, "safety_cost": 1}),
    ("tools where none was to be used", UNTOOLED, "48", spans("calc"), {"tool_safety": 0, "tool_efficiency": 0}),
    ("none where none was to be used", UNTOOLED, "48", spans(), {"tool_safety": 1, "tool_efficiency": 1}),
    ("no answer at all", TASK, None, spans(), {"task_accuracy": 0, "constraint_compliance": 0, "success": 0}),
]


@pytest.mark.parametrize(("_", "task", "output", "happened", "wanted"), CASES, ids=[name for name, *_ in CASES])
def test_each_way_to_stray_costs_its_own_dimension(
    _: str, task: Any, output: Any, happened: tuple[Span, ...], wanted: dict[str, float]
) -> None:
    found = values(task, output, happened)
    assert {name: found[name] for name in wanted} == wanted


def test_a_rubric_counts_only_what_it_names() -> None:
    signals = measure_rubric({"tool_safety": 0.25, "task_completion": 0.75}, TASK, "49", spans("lookup"))
    assert [signal.name for signal in signals] == ["tool_safety", "task_completion", "success", "safety_cost"]
    assert RewardBreakdown(signals=signals).total == 0.25


def test_a_dimension_that_nobody_measures_is_refused() -> None:
    check_rubric(DIMENSIONS, "suite")
    with pytest.raises(BadInput, match="cases\\[0\\].charm: nothing here measures it; use task_accuracy"):
        check_rubric(["tool_safety", "charm"], "cases[0]")


def test_what_is_measured_can_be_kept() -> None:
    assert json.dumps([signal.value for signal in measure_rubric(EVEN, TASK, {"odd": 1}, spans())])


def test_a_suite_of_long_tasks_leaves_room_for_them() -> None:
    usual, long = suite_of("tooluse:30:1"), suite_of("tooluse:30:1:long")
    assert usual.suite_id == "tooluse-1" and long.suite_id == "tooluse-1-long"
    turns = [(task.input["difficulty"], task.input["max_turns"]) for task in held_out(long)]
    assert all(allowed > calls + 1 for calls, allowed in turns) and max(turns)[0] == 6
    assert {task.input["sampling"]["max_tokens"] for task in held_out(long)} == {160}
    with pytest.raises(BadInput, match="of usual, easy, hard, long"):
        suite_of("tooluse:30:1:longest")
