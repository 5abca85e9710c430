"""The step of `rl_optimizer`: it moves weights that are ours, counts where they are not, and says what it did."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.algorithm import AlgorithmState, Batch, RolloutTail
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.flag import Features
from holdfast.contracts.policy import FOLDER
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.run import RunState, Status
from holdfast.contracts.settings import OptimizeSettings, RlOptimizer
from holdfast.learn.checkpoints import CRITIC
from holdfast.learn.constrain import Constraint, from_dict
from holdfast.learn.turns import TurnPPO
from holdfast.pipeline.spec import optimize_spec, turn_ppo
from holdfast.policies.model import Model, folder_of
from holdfast.policies.prompt import Prompt
from holdfast.policies.weights import load, read
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.tasks import Dials, generate, to_input
from tests.conftest import Files
from tests.learn.telling import Telling
from tests.pipeline import scene
from tests.workloads.scene import attempt, tiny

TOOLUSE = "holdfast.workloads.tooluse.agent:agent"
EASY = Dials(families=("trivial", "chat"), think=0.0)  # short answers
SAMPLING = {"temperature": 1.0, "max_tokens": 24}


def items(count: int, split: str = "train", **fields: Any) -> list[dict[str, Any]]:
    found = generate(split, 5, count, EASY)
    return [{**to_input(task), "sampling": SAMPLING, "max_turns": 2, **fields} for task in found]


def settings(**fields: Any) -> OptimizeSettings:
    return OptimizeSettings.model_validate({"agent": TOOLUSE, "worker_count": 4, "max_attempts": 1, **fields})


async def ran(store: Store, **fields: Any) -> Status:
    return await scene.ran(store, optimize_spec(settings(**fields)))


def where(store: Store, checkpoint: str) -> Path:
    return store.folder / FOLDER / checkpoint


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
        manifest = read(where(store, checkpoint.id))
        assert (checkpoint.algorithm, manifest.parent) == ("ppo", read(folder_of("sprout-weak")).sha256)
        assert manifest.sha256 != manifest.parent
        update = store.steps.of_run(status.run_id)[-1]
        assert (update.name, update.body["phase"], update.body["checkpoint"], update.body["reasons"]) == (
            "rl_optimizer",
            "rl_optimizer",
            checkpoint.id,
            {},
        )
        json.dumps(dict(summary), allow_nan=False)


async def test_a_checkpoint_can_be_gone_on_from_as_a_model(files: Files) -> None:
    """`--model local/<folder>`: a step after a step, each a run of its own."""
    with open_store(files.fresh()) as store:
        block = {"ppo": {"learning_rate": 1e-3}}
        first = await ran(store, model="local/sprout-weak", optimize=items(3), rl_optimizer=block)
        folder = where(store, told(first)["checkpoint"])
        second = await ran(store, model=f"local/{folder}", optimize=items(3), rl_optimizer=block)
        assert read(where(store, told(second)["checkpoint"])).parent == read(folder).sha256


BASE = Prompt(model="openai/tiny")


def learnt(given: list[Experience], folder: Path, policy: Any = BASE, **fields: Any) -> dict[str, Any]:
    body, _, _ = TurnPPO(**fields).learn(given, policy, None, Telling(folder, run="run-2"))
    return body


NOTHING = {"executed": False, "early_stop_triggered": False, "updates": 0, "no_gradient": {}}


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ("", {"trajectories": 0, "samples": 0, "skipped_reason": "no_succeeded_train_rollouts"}),
        ("222", {"trajectories": 3, "samples": 3, "skipped_reason": "weights_out_of_reach"}),
    ],
)
def test_where_there_is_nothing_or_the_weights_are_out_of_reach_it_is_counted_and_nothing_is_pretended(
    tmp_path: Path, runs: str, told: dict[str, Any]
) -> None:
    body = learnt(conversations(runs, "1" * len(runs)), tmp_path)
    assert body["rl_optimizer"] == NOTHING | told and "checkpoint" not in body


@pytest.mark.parametrize("ppo", [{"learning_rate": 1e3, "epochs": 3}, {"learning_rate": 1e30}])
def test_a_step_that_had_to_be_taken_back_is_told_and_leaves_no_checkpoint(
    ppo: dict[str, Any], base: Model, tmp_path: Path
) -> None:
    telling = Telling(tmp_path, run="run-2")
    body, candidate, _ = TurnPPO(ppo=ppo).learn(conversations("222", "010"), base, None, telling)
    summary = body["rl_optimizer"]
    assert (summary["executed"], summary["parameter_delta_norm"], summary["updates"]) == (True, 0.0, 0)
    assert summary["restored"] and not {"checkpoint", "weights"} & {*summary, *body}
    assert (candidate, telling.checkpoints) == (None, [])


def test_while_learning_is_switched_off_it_is_as_without_the_block(tmp_path: Path) -> None:
    telling = Telling(tmp_path, Features(learning=False))
    body, candidate, _ = TurnPPO().learn([], BASE, None, telling)
    assert (body, candidate) == ({"phase": "rl_optimizer", "skipped": "learning is switched off"}, None)


def conversations(runs: str, won: str) -> list[Experience]:
    pairs = enumerate(zip(runs, won, strict=True))
    tasks = [(Task(name=f"t{n}", input=n, split=Split.TRAIN), f"run-{run}", float(value)) for n, (run, value) in pairs]
    return [
        attempt(task, n, value, run=run, rollout=f"{run}/{task.name}", asked=f"hello {n}")
        for n, (task, run, value) in enumerate(tasks)
    ]


def test_only_the_named_run_is_learnt_from(tmp_path: Path) -> None:
    given = conversations("112", "111")
    for run, counted in (("run-1", 2), (None, 1)):
        body = learnt(given, tmp_path, follow=run)
        assert body["rl_optimizer"]["trajectories"] == counted
        assert set(body["reasons"].values()) == {"other_run"}


def test_the_reasons_of_many_rollouts_are_kept_beside_the_step(tmp_path: Path) -> None:
    telling = Telling(tmp_path, run="run-2")
    for count in (200, 201):
        body, _, _ = TurnPPO().learn(conversations("1" * count, "1" * count), BASE, None, telling)
        assert body["rl_optimizer"]["no_gradient"] == {"other_run": count}
    assert body["reasons"] == {"blob": "blob-1"} and len(telling.blobs) == 1


@pytest.mark.parametrize("channels", [None, ("success",)], ids=["all signals", "one of them"])
def test_the_settings_reach_the_learner(channels: tuple[str, ...] | None) -> None:
    given = {"gae": {"lambda": 0.5}, "ppo": {"epochs": 2}, "critic": {"epochs": 3}, "channels": channels}
    made = turn_ppo(settings(optimize=items(1)), RlOptimizer.model_validate(given))
    assert (made.settings.gae.lam, made.settings.ppo.epochs, made.channels) == (0.5, 2, channels)
    assert made.settings.critic.epochs == 3


# Following


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tiny(tmp_path_factory.mktemp("base") / "tiny"))


def test_a_run_is_followed_and_nothing_is_taken_twice(base: Model, tmp_path: Path) -> None:
    algorithm = TurnPPO(follow="run-9", follow_least=3, steps=2)
    state, telling = algorithm.start(base), Telling(tmp_path)
    assert algorithm.ask(state, ()) == [RolloutTail(run="run-9", least=3)]
    telling.given = conversations("9999", "0101")
    state = algorithm.tell(state, Batch(run="run-9", step="s", count=4, ids="ab"), telling)
    assert state.candidate == base.at(telling.checkpoints[0].id)
    assert (telling.checkpoints[0].algorithm, state.metrics["reward"]) == ("ppo", 0.5)
    assert state.metrics["rl_optimizer"]["trajectories"] == state.metrics["rollouts"] == 4
    assert algorithm.ask(state, ()) == [RolloutTail(run="run-9", least=3, taken=("ab",))]
    telling.given = ()  # that run is over
    state = algorithm.tell(state, Batch(run="run-9", step="t", count=0, ids="cd"), telling)
    assert (algorithm.ask(state, ()), state.candidate) == ((), base.at(telling.checkpoints[0].id))


def test_a_spent_budget_ends_the_following(base: Model, tmp_path: Path) -> None:
    algorithm = TurnPPO(follow="run-9", steps=2, budget_s=1e-9)
    state = Telling(tmp_path).tell(algorithm, algorithm.start(base), conversations("99", "01"))
    assert algorithm.ask(state, ()) == ()


def test_what_is_followed_goes_through_the_data_gates(base: Model, tmp_path: Path) -> None:
    algorithm = TurnPPO(follow="run-9", held_out=[{"prompt": "hello 5"}])
    given = conversations("999999", "010111")
    given[4] = replace(given[4], spans=attempt(Task(name="x", input=1), 1, 1.0, asked="AKIAIOSFODNN7EXAMPL2").spans)
    state = Telling(tmp_path).tell(algorithm, algorithm.start(base), given)
    assert {one["name"]: one["count"] for one in state.metrics["quality"] if one["count"]} == {"put_aside": 2}
    assert state.metrics["rl_optimizer"]["trajectories"] == 4


def test_the_multiplier_of_a_constraint_goes_on_from_what_is_on_record(base: Model, tmp_path: Path) -> None:
    algorithm = TurnPPO(follow="run-9", constraint=Constraint(cost="success", budget=0.1), steps=3)
    telling, state = Telling(tmp_path), algorithm.start(base)
    values = []
    for _ in range(2):
        state = telling.tell(algorithm, state, conversations("9999", "0101"))
        values.append(state.data["multiplier"])
    first, second = (from_dict(one) for one in values)
    assert 0.0 < first.value < second.value
    assert second == first.updated(0.5, Constraint(cost="success", budget=0.1))  # to the last bit
    other = TurnPPO(follow="run-9", constraint=Constraint(cost="taste"))
    with pytest.raises(BadInput, match="no attempt has a signal of that name"):
        telling.tell(other, AlgorithmState(base=base), conversations("99", "01"))


# The critic, kept


def values(folder: Path, checkpoint: str) -> list[float]:
    tensors, _ = load(folder / FOLDER / checkpoint / CRITIC)
    return [float(one) for one in tensors["vector"]]


def test_the_critic_goes_on_from_step_to_step_and_after_a_kill(base: Model, tmp_path: Path) -> None:
    """Whoever was killed has only the record and the checkpoint, and comes to the same weights and the same critic."""
    came = []
    for name in ("whole", "killed"):
        telling, algorithm = Telling(tmp_path / name), TurnPPO(follow="run-9", steps=3)
        state, explained = algorithm.start(base), []
        for _ in range(3):
            state = telling.tell(algorithm, state, conversations("99999999", "01010101"))
            explained.append(state.metrics["rl_optimizer"]["explained_variance"])
            if name == "killed":
                algorithm = TurnPPO(follow="run-9", steps=3)
        came.append(
            ([one.id for one in telling.checkpoints], explained, values(tmp_path / name, telling.checkpoints[-1].id))
        )
    assert came[0] == came[1]
    assert came[0][1][0] == 0.0 and came[0][1][-1] > 0.1 and any(came[0][2])


def test_an_iteration_begins_with_the_critic_of_its_checkpoint(base: Model, tmp_path: Path) -> None:
    telling, algorithm = Telling(tmp_path), TurnPPO(follow="run-9", steps=3)
    given = conversations("99999999", "01010101")
    state = telling.tell(algorithm, algorithm.start(base), given)
    policy = state.candidate
    assert policy is not None
    for _ in range(2):  # those who know the checkpoint, and those who were just started
        again = telling.tell(algorithm, AlgorithmState(base=policy, iteration=1), given)
        assert again.metrics["rl_optimizer"]["explained_variance"] > 0.0
        algorithm = TurnPPO(follow="run-9", steps=3)


def test_practice_by_ppo_asks_for_tasks_and_learns_from_its_own_version_alone(base: Model, tmp_path: Path) -> None:
    algorithm = TurnPPO(steps=1, tasks=2, samples=2)
    state = algorithm.start(base)
    assert [one.group for one in algorithm.ask(state, items(3))] == ["practice-0-0-0"] * 2 + ["practice-0-0-1"] * 2
    telling = Telling(tmp_path, run="run-9")
    given = conversations("9999", "0101")
    mixed = [replace(one, version=base.version if n < 3 else "local/other@0") for n, one in enumerate(given)]
    state = telling.tell(algorithm, state, mixed)
    assert state.metrics["rl_optimizer"]["no_gradient"] == {"stale_policy": 1}
    assert state.candidate is not None and algorithm.ask(state, items(3)) == ()
    with pytest.raises(BadInput, match="out of reach"):
        algorithm.start(BASE)


def test_a_step_that_moved_nothing_is_no_candidate(base: Model, tmp_path: Path) -> None:
    """What was recorded is far from the model, so that max_kl stops before the first update."""
    algorithm = TurnPPO(follow="run-9", ppo={"max_kl": 1e-6})
    state = Telling(tmp_path).tell(algorithm, algorithm.start(base), conversations("99", "01"))
    assert state.metrics["rl_optimizer"]["updates"] == 0 and state.metrics["rl_optimizer"]["executed"]
    assert state.candidate is None
