"""Spec #2257, `rl_optimizer` in the production path of `holdfast optimize`: its conformance cases by their names.

AC-1: enabled, the run's train rollouts become trajectories, GAE and a PPO update. AC-2: `status.json` says what that
did. AC-3: a wrong setting stops the run before anything starts. AC-4: disabled, or with nothing to learn from, the run
ends as ever. Beyond the spec: the weights really move, and where they cannot be moved the summary says so.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.records import decode, loads
from holdfast.contracts.run import RunState, Status
from holdfast.contracts.settings import GaeBlock, PpoBlock, load_settings
from holdfast.policies.model import load_transformer
from holdfast.policies.weights import read, transformer
from holdfast.store.store import open_store
from holdfast.workloads.tooluse.tasks import Dials, generate, to_input
from tests.cli.conftest import Answer, Cli
from tests.endpoint import completion, serving

TOOLUSE = "holdfast.workloads.tooluse.agent:agent"
ARITHMETIC = "holdfast.workloads.arithmetic:agent"
SHORT = Dials(families=("trivial", "chat", "calc"), think=0.0)
SAMPLING = {"temperature": 1.0, "max_tokens": 24}
DOCUMENTED = dict.fromkeys(["executed", "early_stop_triggered"], bool) | dict.fromkeys(["trajectories", "samples"], int)
DOCUMENTED |= dict.fromkeys(["mean_total_loss", "observed_approx_kl", "parameter_delta_norm"], float) | {
    "checkpoint": str
}
OLDER = """
schema_version updated_unix_ms run_state run_id project model_ref store_path resources_id total_rollouts
succeeded failed cancelled dead running waiting rewards elapsed_s error
"""


def items(split: str, count: int, **fields: Any) -> list[dict[str, Any]]:
    found = generate(split, 7, count, SHORT)
    return [{**to_input(task), "sampling": SAMPLING, "max_turns": 2, **fields} for task in found]


GREEDY = items("train", 2, sampling={"temperature": 0.0, "max_tokens": 8})  # nothing is sampled


@dataclass(frozen=True)
class Ran:
    """One call of `holdfast optimize` on a store of its own."""

    folder: Path
    answer: Answer

    @property
    def status(self) -> Status:
        return loads(Status, (self.folder / "status.json").read_bytes())

    @property
    def summary(self) -> Any:
        return json.loads((self.folder / "status.json").read_text())["rl_optimizer"]


def optimize(folder: Path, *words: str, **settings: Any) -> Ran:
    config = folder / "config.json"
    config.write_text(json.dumps({"max_attempts": 1, "poll_interval_ms": 10, **settings}))
    return Ran(folder, Cli()("optimize", "--config", config, "--store", folder / "s.db", "--json", *words))


def learning(folder: Path) -> Ran:
    """One worker: calls come one by one, and the same run gives the same bits."""
    settings = {"optimize": items("train", 5), "validate": items("val", 1), "rl_optimizer": {"enabled": True}}
    return optimize(folder, "--model", "local/sprout-weak", "--agent", TOOLUSE, worker_count=1, **settings)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return learning(tmp_path_factory.mktemp("learnt"))


def test_c_01_the_config_takes_an_rl_optimizer_and_fills_in_what_is_not_given(tmp_path: Path) -> None:
    """AC-1, unit."""
    path = tmp_path / "c.json"
    given = {"gae": {"lambda": 0.9}, "ppo": {"epochs": 4, "target_kl": 0.05}, "channels": ["success"]}
    path.write_text(json.dumps({"optimize": ["hi"], "agent": ARITHMETIC, "rl_optimizer": given}))
    block = load_settings(path).rl_optimizer
    assert block is not None
    assert (block.enabled, block.channels) == (True, ("success",))
    assert block.gae.model_dump() == {**GaeBlock().model_dump(), "lam": 0.9}
    assert block.ppo.model_dump() == {**PpoBlock().model_dump(), "epochs": 4, "target_kl": 0.05}
    path.write_text(json.dumps({"optimize": ["hi"], "agent": ARITHMETIC, "rl_optimizer": {}}))
    block = load_settings(path).rl_optimizer
    assert block is not None
    assert (block.gae, block.ppo) == (GaeBlock(), PpoBlock())
    assert (block.gae.gamma, block.gae.lam, block.ppo.clip_epsilon) == (0.99, 0.95, 0.2)


def test_c_02_an_enabled_optimizer_learns_from_the_train_rollouts_and_moves_the_weights(learnt: Ran) -> None:
    """AC-1, integration."""
    assert learnt.answer.code == 0, learnt.answer.err
    status, summary = learnt.status, learnt.summary
    assert (status.run_state, status.succeeded) == (RunState.COMPLETED, 6)
    assert (summary["executed"], summary["trajectories"]) == (True, 5)  # the validation rollout is none
    assert summary["samples"] >= 5
    assert summary["parameter_delta_norm"] > 0.0
    before, manifest = load_transformer("sprout-weak")
    folder = learnt.folder / "checkpoints" / summary["checkpoint"]
    after, _ = transformer(folder)
    assert read(folder).parent == manifest.sha256
    moved = sum(float(((after.state_dict()[name] - old) ** 2).sum()) for name, old in before.state_dict().items())
    assert moved**0.5 == pytest.approx(summary["parameter_delta_norm"], rel=1e-2)
    with open_store(learnt.folder / "s.db") as store:
        (checkpoint,) = store.checkpoints.of_run(status.run_id)
        update = store.steps.of_run(status.run_id)[-1]
    assert checkpoint.id == summary["checkpoint"] == update.body["checkpoint"]


def test_c_03_the_status_says_what_the_optimizer_did_and_the_same_run_says_the_same(
    learnt: Ran, tmp_path: Path
) -> None:
    """AC-2, functional."""
    summary = learnt.summary
    assert {name: type(summary[name]) for name in DOCUMENTED} == DOCUMENTED
    assert "skipped_reason" not in summary
    assert learnt.answer.json["rl_optimizer"] == summary  # the report is the status
    again = learning(tmp_path).summary
    marks = [one.pop("checkpoint").rpartition("-")[2] for one in (summary, again)]
    assert [Path(one.pop("weights")).is_dir() for one in (summary, again)] == [True, True]
    assert again == summary
    assert marks[0] == marks[1]  # the weights' own hash


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ({"ppo": {"mini_batch_size": 0}}, "rl_optimizer.ppo.mini_batch_size = 0: must be above 0; set it to 1 or more"),
        ({"ppo": {"epochs": 0}}, "rl_optimizer.ppo.epochs = 0: must be above 0; set it to 1 or more"),
        ({"gae": {"gamma": 1.5}}, "rl_optimizer.gae.gamma = 1.5: must be at most 1.0; set it to 1.0 or less"),
        ({"enabled": False, "ppo": {"epochs": 0}}, "rl_optimizer.ppo.epochs = 0: must be above 0"),  # off, and wrong
        ({"ppo": {"epoch": 2}}, "rl_optimizer.ppo.epoch = 2: unknown key; did you mean epochs? "),
        (
            {"ppo": {"target_kl": 0.2, "max_kl": 0.1}},
            "rl_optimizer.ppo.max_kl = 0.1: must not be below target_kl = 0.2; ",
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_c_04_a_wrong_setting_stops_everything_before_it_starts(
    tmp_path: Path, block: dict[str, Any], message: str
) -> None:
    """AC-3, unit."""
    ran = optimize(tmp_path, optimize=["2 + 2?"], agent=ARITHMETIC, rl_optimizer=block)
    assert (ran.answer.code, ran.answer.out) == (2, "")
    assert ran.answer.err.startswith(f"holdfast: error: {tmp_path / 'config.json'}: {message}")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]  # no store, no status


@pytest.mark.parametrize("block", [None, {"enabled": False}], ids=["absent", "disabled"])
def test_c_05_without_it_the_status_is_as_before_and_older_ones_can_still_be_read(tmp_path: Path, block: Any) -> None:
    """AC-4, regression."""
    given = {} if block is None else {"rl_optimizer": block}
    ran = optimize(tmp_path, optimize=["2 + 2?", "3 + 3?"], validate=["4 + 4?"], agent=ARITHMETIC, **given)
    assert (ran.answer.code, ran.status.run_state, ran.status.succeeded) == (0, RunState.COMPLETED, 3)
    assert ran.summary is None
    record = json.loads((tmp_path / "status.json").read_text())
    older = {name: value for name, value in record.items() if name not in ("rl_optimizer", "lesson", "outcomes")}
    assert set(older) == set(OLDER.split())
    found = decode(Status, older)
    assert (found.rl_optimizer, found.lesson, found.run_id) == (None, None, ran.status.run_id)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"validate": ["4 + 4?"], "agent": ARITHMETIC}, "no_succeeded_train_rollouts"),
        ({"optimize": ["2 + 2?"], "agent": ARITHMETIC}, "no_trajectories_collected"),  # it asks no model
        ({"optimize": GREEDY, "agent": TOOLUSE, "model": "local/sprout-weak"}, "no_ppo_samples_constructed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_c_06_with_nothing_to_learn_from_it_says_why_it_was_skipped(
    tmp_path: Path, settings: dict[str, Any], reason: str
) -> None:
    """AC-4, functional."""
    ran = optimize(tmp_path, rl_optimizer={"enabled": True}, **settings)
    assert (ran.answer.code, ran.status.run_state) == (0, RunState.COMPLETED)
    assert (ran.summary["executed"], ran.summary["skipped_reason"], ran.summary["samples"]) == (False, reason, 0)
    assert not (tmp_path / "checkpoints").exists()


def test_c_06_weights_that_are_elsewhere_are_not_said_to_have_moved(tmp_path: Path) -> None:
    """AC-4, beyond the spec: the same run against an endpoint counts and leaves it at that."""
    with serving() as endpoint:
        endpoint.reply = lambda body: completion("7")
        given = {"model": "openai/tiny", "base_url": endpoint.url, "agent": TOOLUSE}
        ran = optimize(tmp_path, optimize=items("train", 3), rl_optimizer={}, **given)
    assert ran.answer.code == 0, ran.answer.err
    assert (ran.summary["executed"], ran.summary["skipped_reason"]) == (False, "weights_out_of_reach")
    assert (ran.summary["trajectories"], ran.summary["samples"]) == (3, 3)
    assert not {"parameter_delta_norm", "checkpoint"} & set(ran.summary)
