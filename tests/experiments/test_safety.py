"""The trial of safety: its arms, what a lesson does, and what the runs of several seeds come to."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from experiments.safety import (
    ARMS,
    CONSTRAINED,
    UNCONSTRAINED,
    SafetyOutcome,
    SafetyTrial,
    outcome,
    quick,
    rates,
    spec_for,
    warm_up,
    weigh,
)
from holdfast.contracts.errors import BadInput
from holdfast.contracts.run import RunState, StepRecord
from holdfast.learn.constrain import from_dict
from holdfast.pipeline.run import Control
from holdfast.policies.model import Model
from holdfast.policies.weights import read
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.learn.telling import Telling
from tests.pipeline.scene import fresh_in, ran, scripted
from tests.workloads.scene import RUN, recorded, tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base") / "tiny")


def test_an_arm_is_known_by_its_name() -> None:
    assert SafetyTrial(arm=CONSTRAINED).constraint is not None and SafetyTrial(arm=CONSTRAINED).penalty == 0.0
    assert SafetyTrial(arm=UNCONSTRAINED).constraint is None and SafetyTrial(arm=UNCONSTRAINED).penalty == 0.0
    assert [SafetyTrial(arm=arm).penalty for arm in ARMS] == [0.0, 0.05, 0.5, 2.0, 0.0]
    with pytest.raises(BadInput, match="is unknown; use one of unconstrained"):
        SafetyTrial(arm="penalty-7")


def test_a_spec_keeps_its_trial(base: str) -> None:
    trial = SafetyTrial(arm=CONSTRAINED, model=base, workers=2)
    spec = spec_for(trial)
    assert (spec.kind, dict(spec.settings)) == ("safety", asdict(trial))


def trial(arm: str, base: str) -> SafetyTrial:
    return replace(quick(SafetyTrial(arm=arm, model=base, workers=2)), test_tasks=6)


def paid(name: str) -> dict[str, float]:
    """All are right; of the attempts at a task every second one costs something, and once measured none does."""
    return {"success": 1.0, "safety_cost": float(not name.startswith("after") and name[-1] in "02468")}


async def played(store: Store, arm: str, base: str, *, stop_at: str | None = None) -> list[StepRecord]:
    """A run whose rollouts are made up; stopped once at a rollout, and taken up by what knows the record alone."""
    run, control = None, Control()

    def stopping(name: str) -> dict[str, float]:
        if name == stop_at:
            control.stop()
        return paid(name)

    for signals, how in ((stopping, control), (paid, Control())):
        spec = replace(spec_for(trial(arm, base)), runtime=scripted(signals, safety_cost=0.0), look_s=0.01)
        status = await ran(store, spec, how, resume=run)
        run = status.run_id
        if stop_at is None:
            break
    assert status.run_state is RunState.COMPLETED
    return store.steps.of_run(status.run_id)


def bodies(steps: list[StepRecord]) -> dict[str, Any]:
    return {one.name: one.body for one in steps}


async def test_it_warms_up_practises_and_measures(base: str, files: Files) -> None:
    with open_store(files.fresh()) as store:
        found = bodies(await played(store, CONSTRAINED, base))
    assert found["warm-up"]["loss"] > 0.0
    first, second, last = found["0/0/learn"], found["0/1/learn"], found["after"]
    assert (first["success"], first["cost"]) == (1.0, 0.5)
    assert first["constraint"]["mean_cost"] == 0.5 and first["audit"]["constraint"] == first["constraint"]
    lam = [body["constraint"]["multiplier"]["value"] for body in (first, second)]
    assert 0.0 < lam[0] < lam[1]
    assert (last["phase"], last["cost"], last["of"]) == ("after", 0.0, 6)


def test_a_warm_up_whose_updates_were_all_taken_back_leaves_no_checkpoint(base: str, tmp_path: Path) -> None:
    telling: Any = Telling(tmp_path)
    strayed = warm_up(replace(trial(CONSTRAINED, base), warm_up_rate=1e30), Model(base), ctx=telling)
    assert (strayed.candidate, telling.checkpoints, "checkpoint" in strayed.metrics) == (None, [], False)
    assert strayed.metrics["update"]["restored"]
    assert warm_up(trial(CONSTRAINED, base), Model(base), ctx=telling).candidate is not None


async def test_equal_successes_teach_nothing_without_a_constraint(base: str, files: Files) -> None:
    with open_store(files.fresh()) as store:
        body = bodies(await played(store, UNCONSTRAINED, base))["0/0/learn"]
    assert "constraint" not in body and "update" not in body
    assert set(body["audit"]["counts"]) == {"zero_variance_group"}


async def test_a_resumed_run_has_the_multiplier_and_the_weights_of_the_straight_one(
    base: str, files: Files, tmp_path: Path
) -> None:
    found = []
    for stop_at in (None, "grpo-0-1-0-0"):
        folder = tmp_path / str(stop_at)
        with open_store(fresh_in(folder, files)) as store:
            steps = await played(store, CONSTRAINED, base, stop_at=stop_at)
            kept = [read(folder / "checkpoints" / one.id).sha256 for one in store.checkpoints.of_run(steps[0].run)]
        found.append((from_dict(bodies(steps)["0/1/learn"]["constraint"]["multiplier"]), kept))
    assert found[0] == found[1] and len(found[0][1]) == 3


def test_what_was_not_measured_is_missing() -> None:
    assert rates([]) == {"success": None, "cost": None, "of": 0}


def ended(arm: str, seed: int, success: float, cost: float) -> SafetyOutcome:
    trial = SafetyTrial(arm=arm, seed=seed)
    return SafetyOutcome(
        trial=trial, run=f"r-{arm}-{seed}", success=success, cost=cost, of=100, successes=[], costs=[], multipliers=[]
    )


def test_what_the_arms_come_to_by_hand() -> None:
    made = [ended(arm, seed, 0.9, 1.0) for arm in ARMS[:-1] for seed in (0, 1)]
    made += [ended(CONSTRAINED, 0, 0.9, 0.02), ended(CONSTRAINED, 1, 0.82, 0.06)]
    made += [ended(UNCONSTRAINED, 2, 0.1, 1.0)]  # a seed that lacks arms does not count
    found = weigh(made)
    assert found is not None and found.seeds == [0, 1] and found.attempts == 200
    held = found.arms[CONSTRAINED]
    assert (held.cost, held.worst_cost, held.success) == (pytest.approx(0.04), 0.06, pytest.approx(0.86))
    assert held.kept == pytest.approx(0.86 / 0.9) and held.is_held and held.is_kept and found.is_shown
    assert not found.arms[UNCONSTRAINED].is_held
    assert held.success_interval.low < 0.86 < held.success_interval.high
    assert weigh([ended(CONSTRAINED, 0, 1.0, 0.0)]) is None


def test_an_outcome_is_read_from_the_record() -> None:
    held = {"multiplier": {"value": 0.5}}
    done = [
        recorded(1, phase="warm-up"),
        recorded(2, phase="grpo 1", success=0.5, cost=0.4, constraint=held),
        recorded(3, phase="after", success=0.75, cost=0.01, of=8),
    ]
    found = outcome(SafetyTrial(arm=CONSTRAINED), done)
    assert found is not None
    assert (found.run, found.success, found.cost, found.of) == (RUN, 0.75, 0.01, 8)
    assert (found.successes, found.costs, found.multipliers) == ([0.5], [0.4], [0.5])
    assert outcome(SafetyTrial(arm=CONSTRAINED), done[:2]) is None
