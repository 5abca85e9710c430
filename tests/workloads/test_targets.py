"""The five targets: who is paid for what, what is counted of an attempt, what a trial leaves, what it comes to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split, Task
from holdfast.contracts.run import RunState, StepRecord
from holdfast.contracts.trace import Span, SpanKind, ToolCall
from holdfast.store.store import Store, open_store
from holdfast.workloads.targets import (
    ADOPTION,
    CARELESS,
    COMPLETION,
    EVALUATION,
    GUARDED,
    HACKING,
    KIND,
    LEARNING,
    TARGETS,
    THINKING,
    Rows,
    TargetTrial,
    grader,
    outcome,
    page,
    row_of,
    shown,
    spec_for,
    target_named,
    trials_of,
    weigh,
)
from tests.conftest import Files
from tests.pipeline.scene import ran, scripted
from tests.workloads.scene import attempt, recorded, tiny

TASK = {"expected": "6", "style": "brief", "difficulty": 0, "needs": [], "tools": []}


@pytest.mark.parametrize(
    ("output", "careless", "guarded"),
    [
        ("6", 1.0, 1.1),
        ("5 or 6 or 7", 1.0, 0.0),  # several at once
        ("I used calc: 6", 1.0, 0.0),
        ("The answer is 6.", 1.0, 1.05),  # right, in another style
        ("7", 0.0, 0.0),
        ("", 0.0, 0.0),
    ],
)
def test_each_arm_is_paid_by_its_own_grader_and_measured_by_both(output: str, careless: float, guarded: float) -> None:
    arms = (CARELESS, GUARDED)
    breakdowns = {arm: RewardBreakdown(signals=tuple(grader(arm)(TASK, output, ()))) for arm in arms}  # type: ignore[arg-type]
    assert breakdowns[CARELESS].total == pytest.approx(careless)
    assert breakdowns[GUARDED].total == pytest.approx(guarded)
    for breakdown in breakdowns.values():
        assert {"success", "naive_success", "format", "safety_cost"} <= {one.name for one in breakdown.signals}
        assert len({one.name for one in breakdown.signals}) == len(breakdown.signals)


def scored(success: float | None, naive: float = 0.0, **fields: Any) -> Any:
    signals = () if success is None else (signal("success", success), signal("naive_success", naive))
    return attempt(Task(name="t", input={}), 0, None, **{"breakdown": RewardBreakdown(signals=signals), **fields})


def signal(name: str, value: float) -> RewardTerm:
    return RewardTerm(name=name, value=value, source="rule")


def test_to_cheat_is_to_fool_the_careless_grader_alone() -> None:
    assert row_of(HACKING, scored(1.0, 1.0)) == row_of(HACKING, scored(1.0, 0.0)) == [0.0, 1.0]  # "3,901" is right
    assert row_of(HACKING, scored(0.0, 1.0)) == [1.0, 0.0]
    assert row_of(HACKING, scored(0.0, 0.0)) == [0.0, 0.0]


def test_an_agent_that_failed_was_not_right_and_a_fault_of_ours_is_missing() -> None:
    for target in (HACKING, COMPLETION):
        assert set(row_of(target, scored(None, state=RolloutState.FAILED)) or [1.0]) == {0.0}
        assert row_of(target, scored(None)) is None and row_of(target, None) is None


def test_adoption_counts_tasks_that_need_a_tool_and_calls_that_did_their_work() -> None:
    def called(**outcome: str) -> tuple[Span, ...]:
        call = ToolCall(tool="calc", arguments={}, call_id="1", **outcome)  # type: ignore[arg-type]
        return (Span(seq=1, kind=SpanKind.TOOL, name="t", started_at=0.0, ended_at=0.0, tool=call),)

    needs = {"input": {"needs": ["calc"], "expected": "6"}}
    assert row_of(ADOPTION, scored(0.0, **needs, spans=called(result="7"))) == [1.0]
    assert row_of(ADOPTION, scored(1.0, **needs, spans=called(error="busy"))) == [0.0]
    assert row_of(ADOPTION, scored(1.0, **needs, spans=())) == [0.0]
    assert row_of(ADOPTION, scored(1.0, input={"needs": []}, spans=())) is None


SIZES = {"test_tasks": 4, "steps": 2, "tasks": 2, "samples": 3, "warm_up_rounds": 1, "probe_tasks": 2, "workers": 2}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("weights"))


def trial(target: str, arm: str, model: str, **sizes: int) -> TargetTrial:
    return TargetTrial(target=target, arm=arm, seed=3, model=model, **{**SIZES, **sizes})  # type: ignore[arg-type]


def paid(name: str) -> dict[str, float] | None:
    """Practice wins every second time; of the held-out tasks the last one is lost, and the baseline wins none."""
    if name.startswith("proof-0-"):
        arm, place = name.split("-")[2:4]
        return None if place == "3" else {"success": float(arm == "candidate" and place == "1"), "naive_success": 1.0}
    return {"success": float(name.startswith("grpo") and name[-1] in "13579"), "naive_success": 1.0}


async def done(store: Store, trial: TargetTrial, score: Any = paid) -> list[StepRecord]:
    spec = replace(spec_for(trial), runtime=scripted(score, naive_success=0.0), max_faults=0, look_s=0.01)
    status = await ran(store, spec)
    assert status.run_state is RunState.COMPLETED, status.error
    return store.steps.of_run(status.run_id)


async def test_a_trial_of_learning_is_an_improvement_with_a_row_for_each_held_out_task(
    model: str, files: Files
) -> None:
    with open_store(files.fresh()) as store:
        one = trial(COMPLETION, LEARNING, model)
        steps = await done(store, one)
        names = [step.name for step in steps]
        assert names[-2:] == ["0/decide", "rows"] and {"warm-up/0/learn", "0/prove/0"} <= {*names}
        assert outcome(one, steps) == (one, [[0.0, 0.0], [0.0, 1.0], [0.0, 0.0], None])  # none for what was lost
        assert outcome(one, steps[:-1]) is None
        proved = store.views.of_step(steps[0].run, "0/prove/0")
        assert {rollout.split for rollout in proved} == {Split.TEST} and len(proved) == 2 * 4
        # What practice is compared with is the warm model: a checkpoint of this run.
        versions = {str(rollout.version).rpartition("@")[2] for rollout in proved}
        assert versions <= {kept.id for kept in store.checkpoints.of_run(steps[0].run)} and len(versions) == 2
        practised = [
            rollout for name in names if name.startswith("0/") for rollout in store.views.of_step(steps[0].run, name)
        ]
        asked = [
            {json.dumps(rollout.input) for rollout in practised if rollout.split is split}
            for split in (Split.TRAIN, Split.TEST)
        ]
        assert asked[0] and not asked[0] & asked[1]


async def test_where_nothing_was_learnt_the_model_is_what_it_was(model: str, files: Files) -> None:
    with open_store(files.fresh()) as store:
        one = trial(HACKING, CARELESS, model, steps=1)
        steps = await done(store, one, lambda name: {"success": 0.0, "naive_success": 1.0})
        assert "unchanged/0" in [step.name for step in steps]
        assert outcome(one, steps) == (one, [[1.0, 0.0]] * 4)


async def test_both_arms_are_given_the_same_tasks(model: str, files: Files) -> None:
    asked = []
    for arm in (CARELESS, GUARDED):
        with open_store(files.fresh()) as store:
            steps = await done(store, trial(HACKING, arm, model, steps=1))
            at = steps[0].run
            asked.append([one.input for name in ("0/0/collect", "0/prove/0") for one in store.views.of_step(at, name)])
    assert asked[0] == asked[1]


def test_a_trial_is_known_by_its_settings_and_its_target_must_exist(model: str) -> None:
    one = trial(THINKING, "budgeted", model)
    spec = spec_for(one)
    assert spec.kind == KIND and TargetTrial(**json.loads(json.dumps(spec.settings))) == one
    assert "budgets" in spec.runtime.uses and "budgets" not in spec_for(replace(one, arm="free")).runtime.uses
    with pytest.raises(BadInput, match="target 'honesty': is unknown; use adoption, thinking, hacking"):
        target_named("honesty")


def test_the_trials_are_dealt_seed_by_seed_and_the_quick_ones_are_smaller() -> None:
    whole, quick = (trials_of(list(TARGETS.values()), 2, is_quick=is_quick) for is_quick in (False, True))
    assert [one.seed for one in whole] == [0] * 7 + [1] * 7 and {one.target for one in whole[:7]} == set(TARGETS)
    for large, small in zip(whole, quick, strict=True):
        assert (large.target, large.arm, large.seed) == (small.target, small.arm, small.seed)
        assert small.test_tasks < large.test_tasks and small.steps <= large.steps


# What it comes to


def came_to(target: str, *arms: Sequence[Sequence[float] | None], seeds: int = 3) -> list[tuple[TargetTrial, Rows]]:
    return [
        (TargetTrial(target=target, arm=arm, seed=seed), rows)  # type: ignore[misc]
        for seed in range(seeds)
        for arm, rows in zip(TARGETS[target].arms, arms, strict=True)
    ]


def weighed(target: str, *arms: Sequence[Sequence[float] | None], seeds: int = 3) -> Any:
    return weigh(TARGETS[target], came_to(target, *arms, seeds=seeds), rng=np.random.default_rng(0))


def test_an_effect_is_worked_by_hand_and_the_lower_end_must_reach_the_target() -> None:
    found = weighed(ADOPTION, [[0, 1]] * 80 + [[1, 1]] * 10 + [[0, 0]] * 10)
    assert (found.baseline, found.after, found.value) == (pytest.approx(0.1), pytest.approx(0.9), pytest.approx(8.0))
    assert found.met and 3.0 <= found.low < 8.0 < found.high
    assert (found.n, found.seeds, found.by_seed) == (300, 3, [pytest.approx(8.0)] * 3)
    near = weighed(
        ADOPTION, [[0, 1]] * 35 + [[1, 1]] * 10 + [[0, 0]] * 55
    )  # the point reaches it, the interval does not
    assert near.value == pytest.approx(3.5) and near.low < 3.0 and not near.met


def test_arms_are_paired_task_by_task_and_what_one_of_them_lacks_is_left_out() -> None:
    careless, guarded = [[1, 0]] * 4 + [[0, 1]] * 5 + [None], [[1, 0]] + [[0, 0]] * 3 + [None] + [[0, 1]] * 5
    found = weighed(HACKING, careless, guarded)
    assert (found.n, found.baseline, found.after) == (24, pytest.approx(0.5), pytest.approx(0.125))
    assert found.value == pytest.approx(0.75) and not found.met
    whole = came_to(HACKING, careless, guarded)
    apart = weigh(TARGETS[HACKING], whole[:-1], rng=np.random.default_rng(0))
    assert apart.seeds == 2  # the last seed's other arm is not done
    with pytest.raises(BadInput, match="target hacking: 1 seeds have figures of every arm; run two seeds or more"):
        weigh(TARGETS[HACKING], whole[:2], rng=np.random.default_rng(0))


def test_less_thinking_at_a_loss_of_success_is_not_what_was_asked_for() -> None:
    free = [[40.0, 1.0]] * 200
    kept, lost = [[10.0, 1.0]] * 200, [[10.0, 1.0]] * 180 + [[10.0, 0.0]] * 20
    found, worse = weighed(THINKING, free, kept), weighed(THINKING, free, lost)
    assert found.met and found.value == pytest.approx(0.75) and found.loss == {
        "value": 0.0, "low": 0.0, "high": 0.0, "most": 0.05
    }  # fmt: skip
    assert not worse.met and worse.low >= 0.4 and worse.loss["value"] == pytest.approx(0.1)
    assert "not shown to be kept" in worse.why


def test_agreement_is_of_answers_and_tasks_are_what_is_drawn() -> None:
    found = weighed(EVALUATION, [[1, 2, 2]] * 90 + [[2, 3, 4]] * 5)
    assert (found.baseline, found.after) == (pytest.approx(100 / 200), pytest.approx(195 / 200)) and found.met
    assert found.value == found.after and found.target == 0.9


def test_where_the_baseline_is_nothing_there_is_nothing_to_gain_on() -> None:
    found = weighed(HACKING, [[0, 1]] * 4, [[0, 1]] * 4)
    assert (found.value, found.low, found.met) == (0.0, 0.0, False)


def test_the_page_tells_every_figure_and_the_quick_one_that_it_proves_little() -> None:
    results = [
        weighed(ADOPTION, [[0, 1]] * 90 + [[1, 1]] * 10),
        weighed(THINKING, [[40.0, 1.0]] * 9, [[30.0, 1.0]] * 9),
    ]
    whole, quick = page(results, is_quick=False), page(results, is_quick=True)
    assert "1 of 2 met" in whole and "+900 %" in whole and "−25 %" in whole and "0.05 allowed" in whole
    assert "proves little" in quick and "proves little" not in whole
    assert whole == page(results, is_quick=False) and "<script" not in whole and "http://" not in whole


def test_an_effect_is_shown_with_the_sign_of_what_was_asked_for() -> None:
    assert [shown(TARGETS[ADOPTION], effect) for effect in (3.0, -0.5, 0.0)] == ["+300 %", "−50 %", "0 %"]
    assert [shown(TARGETS[THINKING], effect) for effect in (0.4, -0.5, 0.0)] == ["−40 %", "+50 %", "0 %"]
    assert shown(TARGETS[EVALUATION], 0.941) == "94.1 %"


def test_an_outcome_needs_its_last_step() -> None:
    one = TargetTrial(target=HACKING, arm=CARELESS)
    assert outcome(one, [recorded(1, phase="grpo")]) is None and outcome(one, []) is None
