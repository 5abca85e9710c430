"""The lesson of `rl_optimizer`: it moves weights that are ours, counts where they are not, and says what it did."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from holdfast.collect.plan import Learnt, Standing
from holdfast.workloads.plans import plan_for
from holdfast.workloads.pupil import where
from holdfast.workloads.rl import rl_lesson

from holdfast import loop
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.run import RunState, Status, StepRecord
from holdfast.contracts.settings import OptimizeSettings, RlOptimizer
from holdfast.policies.registry import folder_of
from holdfast.policies.weights import read
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.tasks import Dials, generate, to_input
from tests.conftest import Files
from tests.endpoint import completion, serving
from tests.workloads.scene import attempt

TOOLUSE = "holdfast.workloads.tooluse.agent:agent"
EASY = Dials(families=("trivial", "chat"), think=0.0)  # short answers
SAMPLING = {"temperature": 1.0, "max_tokens": 24}


def items(count: int, split: str = "train", **fields: Any) -> list[dict[str, Any]]:
    found = generate(split, 5, count, EASY)
    return [{**to_input(task), "sampling": SAMPLING, "max_turns": 2, **fields} for task in found]


async def ran(store: Store, **fields: Any) -> Status:
    given = {"agent": TOOLUSE, "worker_count": 4, "max_attempts": 1, **fields}
    plan = plan_for(OptimizeSettings.model_validate(given))
    return await loop.optimize(
        store, plan, loop.Control(), clock=time.time, observe=lambda status: None, who="test", salt="s"
    )


def told(status: Status) -> Mapping[str, Any]:
    assert status.rl_optimizer is not None
    return status.rl_optimizer


async def test_a_local_model_is_moved_and_its_checkpoint_is_on_record(files: Files) -> None:
    with open_store(files.fresh()) as store:
        status = await ran(
            store, model="local/sprout-weak", optimize=items(6), validate=items(2, "val"), rl_optimizer={}
        )
        summary = told(status)
        assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 8)
        assert (summary["executed"], summary["trajectories"]) == (True, 6)  # the train split alone
        assert summary["samples"] >= 6  # one a turn
        assert summary["parameter_delta_norm"] > 0.0
        assert "skipped_reason" not in summary
        assert summary["no_gradient"] == {}  # nobody expects to learn from validation
        (checkpoint,) = store.checkpoints.of_run(status.run_id)
        assert summary["checkpoint"] == checkpoint.id
        manifest = read(where(store.folder, checkpoint.id))
        assert (checkpoint.algorithm, manifest.parent) == ("ppo", read(folder_of("sprout-weak")).sha256)
        assert manifest.sha256 != manifest.parent
        (update,) = store.steps.of_run(status.run_id)
        assert (update.body["phase"], update.body["checkpoint"], update.body["reasons"]) == (
            "rl_optimizer",
            checkpoint.id,
            {},
        )
        json.dumps(dict(summary), allow_nan=False)


async def test_a_checkpoint_can_be_gone_on_from_as_a_model(files: Files) -> None:
    """`--model local/<folder>`: a lesson after a lesson, each a run of its own."""
    with open_store(files.fresh()) as store:
        block = {"ppo": {"learning_rate": 1e-3}}
        first = await ran(store, model="local/sprout-weak", optimize=items(3), rl_optimizer=block)
        folder = where(store.folder, told(first)["checkpoint"])
        second = await ran(store, model=f"local/{folder}", optimize=items(3), rl_optimizer=block)
        assert read(where(store.folder, told(second)["checkpoint"])).parent == read(folder).sha256


async def test_where_the_weights_are_out_of_reach_what_there_is_is_counted_and_nothing_is_pretended(
    files: Files,
) -> None:
    with serving() as endpoint, open_store(files.fresh()) as store:
        endpoint.reply = lambda body: completion("7", choice={"finish_reason": "stop"})
        given = items(3, sampling={**SAMPLING, "logprobs": True})
        status = await ran(
            store, model="openai/tiny", base_url=endpoint.url, optimize=given, validate=items(1, "val"), rl_optimizer={}
        )
        assert status.run_state is RunState.COMPLETED
        summary = dict(told(status))
        assert (summary["executed"], summary["skipped_reason"]) == (False, "weights_out_of_reach")
        assert (summary["trajectories"], summary["samples"]) == (3, 3)
        assert not {"parameter_delta_norm", "checkpoint", "mean_total_loss"} & set(summary)
        assert store.checkpoints.of_run(status.run_id) == []


async def test_switched_off_nothing_is_told_and_nothing_learnt(files: Files) -> None:
    with open_store(files.fresh()) as store:
        block = {"enabled": False}
        status = await ran(store, model="local/sprout-weak", optimize=items(2), rl_optimizer=block)
        assert (status.run_state, status.rl_optimizer) == (RunState.COMPLETED, None)
        assert store.checkpoints.of_run(status.run_id) == []


async def test_greedy_answers_are_no_choices_to_learn_from(files: Files) -> None:
    with open_store(files.fresh()) as store:
        given = items(2, sampling={"temperature": 0.0, "max_tokens": 12})
        status = await ran(store, model="local/sprout-weak", optimize=given, rl_optimizer={})
        summary = told(status)
        assert (summary["executed"], summary["skipped_reason"]) == (False, "no_ppo_samples_constructed")
        assert (summary["trajectories"], summary["samples"], summary["no_gradient"]) == (2, 0, {"greedy": 2})
        assert store.checkpoints.of_run(status.run_id) == []


@pytest.mark.parametrize("ppo", [{"learning_rate": 1e3, "epochs": 3}, {"learning_rate": 1e30}])
async def test_a_step_that_had_to_be_taken_back_is_told_and_leaves_no_checkpoint(
    ppo: dict[str, Any], files: Files
) -> None:
    with open_store(files.fresh()) as store:
        status = await ran(store, model="local/sprout-weak", optimize=items(3), rl_optimizer={"ppo": ppo})
        summary = told(status)
        assert status.run_state is RunState.COMPLETED
        assert (summary["executed"], summary["parameter_delta_norm"], summary["updates"]) == (True, 0.0, 0)
        assert summary["restored"]
        assert not {"checkpoint", "weights"} & set(summary)
        assert store.checkpoints.of_run(status.run_id) == []


def test_a_lesson_of_nothing_says_so(tmp_path: Path) -> None:
    standing = Standing(run="run-1", folder=tmp_path, done=[])
    found: Learnt = rl_lesson(RlOptimizer(), None, standing, seed=0)([])
    assert found.checkpoint is None
    assert found.body["rl_optimizer"] == {
        "executed": False,
        "trajectories": 0,
        "samples": 0,
        "early_stop_triggered": False,
        "skipped_reason": "no_succeeded_train_rollouts",
        "updates": 0,
        "no_gradient": {},
    }


def test_only_the_named_run_is_learnt_from(tmp_path: Path) -> None:
    standing = Standing(run="run-2", folder=tmp_path, done=[])
    given = [
        attempt(Task(name=f"t{n}", input=n, split=Split.TRAIN), n, 1.0, run=run, rollout=f"{run}/t{n}")
        for n, run in enumerate(("run-1", "run-1", "run-2"))
    ]
    for run, counted in (("run-1", 2), (None, 1)):
        found = rl_lesson(RlOptimizer(), None, standing, seed=0, run=run)(given)
        assert found.body["rl_optimizer"]["trajectories"] == counted
        assert set(found.body["reasons"].values()) == {"other_run"}


@pytest.mark.parametrize("channels", [None, ("success",)], ids=["all signals", "one of them"])
def test_the_settings_reach_the_learner(channels: tuple[str, ...] | None, tmp_path: Path) -> None:
    """Every knob of the block has one of the same name there, or it would be refused here."""
    block = RlOptimizer.model_validate({"gae": {"lambda": 0.5}, "ppo": {"epochs": 2}, "channels": channels})
    rl_lesson(block, None, Standing(run="run-1", folder=tmp_path, done=[]), seed=0)


def test_the_multiplier_of_a_constraint_goes_on_from_what_is_on_record(tmp_path: Path) -> None:
    from holdfast.workloads.rl import _multiplier

    from holdfast.learn.constrain import Constraint, Multiplier

    held = Multiplier().follow(0.7, Constraint()).follow(0.31, Constraint())
    bodies = [{"rl_optimizer": {"constraint": {"multiplier": held.to_dict()}}}, {"rl_optimizer": {}}, {"phase": "x"}]
    done = [StepRecord(run="run-1", step=n, at=0.0, body=json.loads(json.dumps(b))) for n, b in enumerate(bodies, 1)]
    assert _multiplier(Standing(run="run-1", folder=tmp_path, done=done)) == held  # to the last bit
    assert _multiplier(Standing(run="run-1", folder=tmp_path, done=[])) == Multiplier()
