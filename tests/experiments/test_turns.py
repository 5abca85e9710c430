"""The experiment on credit by turn: one run a seed with all arms, paired by seed and task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.turns import ARMS, BEFORE, TurnTrial, outcome, solved, weigh
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import StepRecord
from holdfast.store.store import open_store
from tests.conftest import Files
from tests.experiments.conftest import Experiment
from tests.workloads.scene import attempt, tiny

PHASES = (BEFORE, *ARMS)


def scores(*rates: list[float | None]) -> dict[str, list[float | None]]:
    return dict(zip(PHASES, rates, strict=True))


def test_a_gain_is_paired_by_seed_and_task_and_needs_an_interval_above_0() -> None:
    both: list[float | None] = [0.0, 1.0]
    better = scores([0.0, 0.0], both, [1.0, 1.0], both)
    told = weigh([(TurnTrial(seed=seed), better) for seed in range(5)])
    assert told["rates"]["off"]["rate"] == 0.5 and told["rates"]["turn_reward"]["by_seed"] == [1.0] * 5
    assert told["gains"]["turn_reward"] == {"gain": 0.5, "helps": True, "low": 0.5, "high": 0.5}
    assert not told["gains"]["progress"]["helps"] and told["gains"]["progress"]["gain"] == 0.0
    alone = weigh([(TurnTrial(), better)])
    assert alone["gains"]["turn_reward"]["gain"] == 0.5 and not alone["gains"]["turn_reward"]["helps"]  # one seed


def test_a_task_that_a_fault_left_without_an_answer_counts_in_no_arm() -> None:
    missing = scores([0.0, 0.0, 0.0], [1.0, None, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0])
    told = weigh([(TurnTrial(seed=seed), missing) for seed in range(2)])
    assert told["tasks"] == 2 and told["gains"]["turn_reward"]["gain"] == 0.0
    right: Any = {"breakdown": RewardBreakdown(signals=(RewardTerm(name="success", value=1.0, source="rule"),))}
    assert solved([attempt(Task(name="t", input={}), 0, None, **right), None]) == {"solved": [1.0, None]}


def test_a_trial_without_its_last_measurement_is_not_over() -> None:
    steps = [
        StepRecord(
            run="r",
            step=place,
            body={"phase": name, "solved": [1.0]},
            at=0.0,
            name=name,
            function="f",
            inputs_sha256="0" * 64,
        )
        for place, name in enumerate(PHASES)
    ]
    assert outcome(TurnTrial(), steps[:-1]) is None
    found = outcome(TurnTrial(), steps)
    assert found is not None and set(found[1]) == set(PHASES)


def test_each_seed_is_a_run_of_all_arms_and_a_second_call_runs_nothing_again(
    experiment: Experiment, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {"test_tasks": 3, "probe_tasks": 2, "warm_up_rounds": 0, "steps": 1, "tasks": 1, "samples": 2, "workers": 2}
    model = tiny(tmp_path)
    monkeypatch.setattr("experiments.turns.quick", lambda trial: TurnTrial(seed=trial.seed, model=model, **sizes))
    words = ("turns", "--quick", "--seeds", 2, "--store", str(files.fresh()))
    ran = experiment(*words)
    assert ran.code == 0, ran.err
    assert ran.lines[0] == "2 seeds, 3 held-out tasks each, 95 % intervals over seeds"
    assert max(map(len, ran.lines)) <= 80 and "1 of 2: seed 0" in ran.err
    with open_store(str(words[-1])) as store:
        assert [run.kind for run in store.runs.newest(most=50)] == ["turns", "turns"]
    again = experiment(*words, "--json")
    assert again.code == 0 and "of 2: seed" not in again.err
    assert set(again.json["gains"]) == set(ARMS[1:]) and again.json["seeds"] == 2
