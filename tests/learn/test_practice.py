"""GRPO as an algorithm: what did better becomes likelier, and what the data gates put aside is not learnt from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.contracts.algorithm import AlgorithmState
from holdfast.contracts.errors import BadInput, Interrupted
from holdfast.contracts.experience import Experience
from holdfast.contracts.flag import Features
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Split, Task
from holdfast.learn import train
from holdfast.learn.constrain import Constraint
from holdfast.learn.grpo import GRPO, Stages, mean_reward
from holdfast.learn.train import default_learning_rate
from holdfast.policies.model import Model, load
from holdfast.policies.prompt import Prompt
from holdfast.store.artifacts import FolderArtifacts
from holdfast.workloads.tooluse.quickstart import Quickstart
from tests.learn.telling import Telling
from tests.workloads.scene import attempt, tiny

TASKS = [{"prompt": f"train {n}"} for n in range(5)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tiny(tmp_path_factory.mktemp("base") / "tiny"))


def tasks(count: int) -> list[Task]:
    return [Task(name=f"p-{n}", input=n, split=Split.TRAIN, metadata={"group": "g"}) for n in range(count)]


def tried(policy: Any, *won: float | None, **fields: Any) -> list[Experience]:
    """Attempts at one task that were worth that."""
    found = zip(tasks(len(won)), won, strict=True)
    return [attempt(task, n, one, version=policy.version, **fields) for n, (task, one) in enumerate(found)]


def counts(state: AlgorithmState) -> dict[str, int]:
    return {one["name"]: one["count"] for one in state.metrics["quality"] if one["count"]}


def weights(policy: Any, folder: Path) -> list[float]:
    return [
        float(number)
        for tensor in load(policy, FolderArtifacts(folder))[0].parameters()
        for number in tensor.detach().flatten()
    ]


# Its dials


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lr": 0.0}, "grpo.lr = 0.0: must be a number above 0"),
        ({"clip_low": 1.5}, "grpo.clip_low = 1.5: must be a number from 0 to 1"),
        ({"turn_credit": -0.1}, "grpo.turn_credit = -0.1: must be a number from 0 to 1"),
        ({"epochs": 0}, "grpo.epochs = 0: must be a number of at least 1"),
        ({"minibatch": 2.5}, "grpo.minibatch = 2.5: must be a whole number"),
        ({"importance_cap": 0.5}, "grpo.importance_cap = 0.5: must be a number of at least 1"),
        ({"aggregate": "all"}, "grpo.aggregate = 'all': is unknown; use token, sequence, sequence_norm_constant"),
        ({"constant": 64.0}, "grpo.constant = 64.0: goes with sequence_norm_constant"),
    ],
)
def test_a_dial_that_cannot_be_is_refused_before_any_work(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as refused:
        GRPO(**wrong)
    assert str(refused.value).startswith(said)


def test_every_dial_reaches_the_trainer(base: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "APART", 9.0)  # what was sampled here is made up
    numbers: dict[str, Any] = {"clip_low": 0.1, "clip_high": 0.3, "reference_kl": 0.01, "behaviour_kl": 0.02}
    numbers |= {"entropy": 0.03, "importance_cap": 2.0, "aggregate": "sequence_norm_constant", "constant": 64.0}
    algorithm = GRPO(
        **numbers, lr=1e-2, epochs=2, minibatch=2, max_kl=9.0, piece_tokens=256, steps=3, tasks=2, samples=2
    )
    telling = Telling(tmp_path)
    state = telling.tell(algorithm, AlgorithmState(base=base), tried(base, 1.0, 0.0, 0.0, 1.0))
    trainer = algorithm.learner.trainer
    assert trainer is not None and trainer.reference is not None
    how = trainer.settings
    assert all(getattr(how.objective, name) == value for name, value in numbers.items())
    assert (how.epochs, how.minibatch, how.max_kl, how.is_measured, how.max_tokens_per_batch) == (2, 2, 9.0, True, 256)
    assert (how.optimizer.learning_rate, how.optimizer.total) == (1e-2, 3 * 2 * 2)  # as many updates as there will be
    assert state.metrics["update"]["updates"] == 4 and state.metrics["update"]["terms"]["reference_kl"] is not None


def test_advantages_are_scaled_by_the_spread_or_not(base: Model, tmp_path: Path) -> None:
    """Rewards of 0.1 and 0 are ±1 by their spread, and ±0.05 without."""
    norms = []
    for scale in (True, False):
        telling = Telling(tmp_path / str(scale))
        state = telling.tell(GRPO(scale=scale), AlgorithmState(base=base), tried(base, 0.1, 0.0))
        norms.append(state.metrics["update"]["grad_norm"])
    assert norms[0] == pytest.approx(20.0 * norms[1], rel=1e-3)


def test_a_larger_model_learns_more_slowly_and_adapters_faster() -> None:
    class Sized(nn.Module):
        def __init__(self, count: float, share: float = 1.0) -> None:
            super().__init__()
            whole, trained = int(count), int(count * share)
            self.held = nn.Parameter(torch.empty(whole - trained, device="meta"), requires_grad=False)
            self.free = nn.Parameter(torch.empty(trained, device="meta"))

    sizes = (1e4, 1e6, 1.35e8, 1.5e9, 7e9, 7e10)
    rates = [default_learning_rate(Sized(size)) for size in sizes]
    assert rates == pytest.approx([3e-4, 3e-4, 1.27e-5, 2.7e-6, 1e-6, 1e-6], rel=0.01)
    assert default_learning_rate(Sized(7e9, 0.01)) == pytest.approx(1e-5, rel=0.01)
    weak = load(Model("sprout-weak"), None)[0]  # at 1e-3 it forgets in the end what it has learnt
    assert Quickstart().grpo_rate == pytest.approx(default_learning_rate(weak), rel=0.2)


# What it asks for


def test_each_task_is_tried_several_times_in_a_group_of_its_own(base: Model) -> None:
    def asked(algorithm: GRPO, **at: int) -> list[str]:
        return [one.input["prompt"] for one in algorithm.ask(replace(AlgorithmState(base=base), **at), TASKS)]

    algorithm = GRPO(tasks=2, samples=2, steps=2)
    first = algorithm.ask(algorithm.start(base), TASKS)
    assert all((one.split, one.policy) == (Split.TRAIN, base) for one in first)
    assert [one.group for one in first] == ["practice-0-0-0"] * 2 + ["practice-0-0-1"] * 2
    assert asked(algorithm) == [f"train {n}" for n in (0, 0, 1, 1)]
    assert asked(algorithm, step=1) == [f"train {n}" for n in (2, 2, 3, 3)] and not asked(algorithm, step=2)
    assert asked(algorithm, iteration=1)[::2] == ["train 4", "train 0"]
    long = GRPO(tasks=7, samples=2)  # a file shorter than a step is gone through again, under other names
    assert asked(long)[::2] == [f"train {n % 5}" for n in range(7)]
    work = long.ask(AlgorithmState(base=base), TASKS)
    assert len({one.name for one in work}) == 14 and [one.group for one in work[10:12]] == ["practice-0-0-5"] * 2


@pytest.mark.parametrize(("field", "wrong"), [("steps", 0), ("tasks", 0), ("samples", 1)])
def test_what_cannot_be_practised_is_refused(field: str, wrong: int) -> None:
    with pytest.raises(BadInput, match=rf"^grpo\.{field} = {wrong}: "):
        GRPO(**{field: wrong})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"its weights are out of reach; give a local model"):
        GRPO().start(Prompt(model="openai/tiny"))


def test_what_other_weights_or_another_run_did_is_not_learnt_from(base: Model, tmp_path: Path) -> None:
    given = tried(base, 1.0, 0.0)
    stale = [replace(one, rollout=f"{one.rollout}-old", version="local/other@7") for one in given]
    other = [replace(one, rollout=f"{one.rollout}-else", run="run-9") for one in given]
    state = Telling(tmp_path).tell(GRPO(), AlgorithmState(base=base), [*given, *stale, *other])
    assert state.metrics["audit"]["counts"] == {"stale_policy": 2, "other_run": 2}
    assert state.metrics["audit"]["taught"] == 2 and state.candidate is not None


def test_a_spent_budget_ends_the_practice(base: Model, tmp_path: Path) -> None:
    algorithm, state = GRPO(budget_s=1e-9), AlgorithmState(base=base)
    assert algorithm.ask(state, TASKS)
    state = Telling(tmp_path).tell(algorithm, state, tried(base, 1.0, 0.0))
    assert state.candidate is not None
    assert algorithm.ask(state, TASKS) == ()


# What it is told


def test_what_did_better_moves_the_weights_and_leaves_a_checkpoint(base: Model, tmp_path: Path) -> None:
    telling = Telling(tmp_path)
    state = telling.tell(GRPO(), AlgorithmState(base=base), tried(base, 1.0, 0.0, 0.0))
    (checkpoint,) = telling.checkpoints
    assert (checkpoint.algorithm, checkpoint.mean_reward) == ("grpo", pytest.approx(1 / 3))
    assert state.candidate == base.at(checkpoint.id)
    assert state.metrics["checkpoint"] == checkpoint.id
    assert (state.step, state.metrics["phase"], state.metrics["reward"]) == (1, "practice 1", pytest.approx(1 / 3))
    assert counts(state) == {}
    assert weights(state.candidate, tmp_path) != weights(base, tmp_path)
    assert state.metrics["audit"]["taught"] == state.metrics["rollouts"] == 3


def test_while_learning_is_switched_off_nothing_moves_and_what_was_collected_is_still_looked_at(
    base: Model, tmp_path: Path
) -> None:
    telling, given = Telling(tmp_path, Features(learning=False)), tried(base, 1.0, 0.0, 0.0)
    state = telling.tell(GRPO(), AlgorithmState(base=base), given)
    assert (state.candidate, telling.checkpoints) == (None, [])
    assert (state.metrics["skipped"], state.metrics["reward"]) == ("learning is switched off", pytest.approx(1 / 3))
    assert "update" not in state.metrics and counts(state) == {}
    assert Telling(tmp_path).tell(GRPO(), AlgorithmState(base=base), given).candidate is not None  # and on again


def test_an_update_that_was_taken_back_leaves_no_candidate_and_what_was_there_stays(
    base: Model, tmp_path: Path
) -> None:
    telling = Telling(tmp_path)
    algorithm = GRPO(lr=1e30)
    state = telling.tell(algorithm, AlgorithmState(base=base), tried(base, 1.0, 0.0))
    assert state.metrics["update"]["restored"] and "checkpoint" not in state.metrics
    assert (state.candidate, telling.checkpoints, "trainer" in state.data) == (None, [], False)
    assert not (tmp_path / "checkpoints").exists()

    good = telling.tell(GRPO(), AlgorithmState(base=base), tried(base, 1.0, 0.0))
    after = telling.tell(algorithm, good, tried(good.policy, 1.0, 0.0))
    assert after.candidate == good.candidate
    assert [one.id for one in telling.checkpoints] == [str(good.metrics["checkpoint"])]


def test_after_an_update_that_was_taken_back_a_process_goes_on_as_another_would(base: Model, tmp_path: Path) -> None:
    def went_on(folder: Path, *, is_new: bool) -> list[float]:
        telling, algorithm = Telling(folder), GRPO(lr=1e-2)
        state = telling.tell(algorithm, AlgorithmState(base=base), tried(base, 1.0, 0.0))
        object.__setattr__(algorithm.learner.trainer.settings.optimizer, "learning_rate", 1e30)  # type: ignore[union-attr]
        back = telling.tell(algorithm, state, tried(state.policy, 1.0, 0.0))
        assert back.metrics["update"]["restored"]
        again = GRPO(lr=1e-2) if is_new else algorithm
        last = telling.tell(again, back, tried(back.policy, 0.0, 1.0))
        assert last.metrics["update"]["restored"] is None
        return weights(last.policy, folder)

    assert went_on(tmp_path / "one", is_new=False) == went_on(tmp_path / "two", is_new=True)


def test_a_step_without_any_difference_changes_nothing_and_says_why(base: Model, tmp_path: Path) -> None:
    telling = Telling(tmp_path)
    state = telling.tell(GRPO(), AlgorithmState(base=base), tried(base, 0.0, 0.0))
    assert (state.candidate, telling.checkpoints) == (None, [])
    assert state.metrics["audit"]["counts"] == {"zero_variance_group": 2}
    assert set(state.metrics["audit"]["reasons"].values()) == {"zero_variance_group"}


def test_the_reasons_of_many_rollouts_are_kept_beside_the_step(base: Model, tmp_path: Path) -> None:
    telling = Telling(tmp_path)
    few = telling.tell(GRPO(), AlgorithmState(base=base), tried(base, *[0.0] * 200))
    assert len(few.metrics["audit"]["reasons"]) == 200 and telling.blobs == []
    many = telling.tell(GRPO(), AlgorithmState(base=base), tried(base, *[0.0] * 201))
    assert many.metrics["audit"]["reasons"] == {"blob": "blob-1"}
    assert many.metrics["audit"]["counts"] == {"zero_variance_group": 201}
    assert len(telling.blobs[0]) == 201


def test_what_is_quarantined_is_not_learnt_from(base: Model, tmp_path: Path) -> None:
    """With the one that told a secret left out, all others got the same: there is nothing to compare."""
    secret = tried(base, 1.0, asked="my key is AKIAIOSFODNN7EXAMPL2")
    telling = Telling(tmp_path)
    state = telling.tell(GRPO(), AlgorithmState(base=base), [*secret, *tried(base, None, 0.0, 0.0)[1:]])
    assert counts(state) == {"put_aside": 1, "reward_varies": 2}  # of what is left, all were worth the same
    (aside,) = [one for one in state.metrics["quality"] if one["name"] == "put_aside"]
    assert "no_secrets" in aside["detail"] and not aside["blocks"]
    assert (state.candidate, telling.checkpoints) == (None, [])
    assert state.metrics["audit"]["counts"] == {"zero_variance_group": 2, "gate:no_secrets": 1}
    assert state.metrics["reward"] == pytest.approx(1 / 3)  # it is told of all that was tried


def test_a_task_that_is_held_out_is_found_and_not_learnt_from(base: Model, tmp_path: Path) -> None:
    asked = ["1?", "1?", "1?", "  2 \n?"]
    given = [attempt(task, n, float(n == 3), version=base.version, asked=asked[n]) for n, task in enumerate(tasks(4))]
    algorithm = GRPO(held_out=[{"prompt": "2 ?"}, {"prompt": "3?"}])
    state = Telling(tmp_path).tell(algorithm, AlgorithmState(base=base), given)
    (aside,) = [one for one in state.metrics["quality"] if one["name"] == "put_aside"]
    assert aside["count"] == 1 and "held_out_leakage" in aside["detail"]
    assert state.candidate is None


def test_a_run_that_was_stopped_practises_no_more(base: Model, tmp_path: Path) -> None:
    telling, algorithm = Telling(tmp_path), GRPO()
    state, given = AlgorithmState(base=base), tried(base, 1.0, 0.0)
    telling.is_stopped = True
    with pytest.raises(Interrupted):
        telling.tell(algorithm, state, given)
    assert not (tmp_path / "checkpoints").exists()
    telling.is_stopped = False  # and taken up: nothing of the step that was given up is left
    state = telling.tell(algorithm, state, given)
    other = Telling(tmp_path / "other").tell(GRPO(), AlgorithmState(base=base), given)
    assert weights(state.policy, tmp_path) == weights(other.policy, tmp_path / "other")


def test_an_iteration_has_a_trainer_of_its_own(base: Model, tmp_path: Path) -> None:
    """Else the second would go on at the pace that the first ended with."""
    telling, algorithm = Telling(tmp_path), GRPO()
    state = AlgorithmState(base=base)
    for _ in range(2):
        state = telling.tell(algorithm, state, tried(state.policy, 1.0, 0.0))
    assert algorithm.learner.trainer is not None and algorithm.learner.trainer.steps == 2
    state = replace(AlgorithmState(base=state.policy), iteration=1)
    telling.tell(algorithm, state, tried(state.policy, 1.0, 0.0))
    assert algorithm.learner.trainer.steps == 1


def test_more_figures_of_a_batch_stand_beside_the_others(base: Model, tmp_path: Path) -> None:
    algorithm = GRPO(measure=lambda experiences: {"seen": len(experiences)}, phase="grpo")
    state = Telling(tmp_path).tell(algorithm, AlgorithmState(base=base), tried(base, 1.0, 0.0))
    assert (state.metrics["seen"], state.metrics["phase"]) == (2, "grpo 1")


def test_the_mean_reward_is_of_those_that_have_one(base: Model) -> None:
    assert mean_reward(tried(base, 1.0, 0.0, None)) == 0.5
    assert mean_reward(tried(base, None, breakdown=None)) is None


def test_practice_under_a_constraint_needs_its_cost_and_tells_what_it_did(base: Model, tmp_path: Path) -> None:
    def made(costs: Sequence[float | None]) -> list[Experience]:
        found = []
        for one, cost in zip(tried(base, *[1.0] * len(costs)), costs, strict=True):
            signals = [RewardTerm(name="success", value=1.0, source="r")]
            signals += [] if cost is None else [RewardTerm(name="safety_cost", value=cost, weight=0.0, source="r")]
            found.append(replace(one, breakdown=RewardBreakdown(signals=tuple(signals))))
        return found

    telling, state = Telling(tmp_path), AlgorithmState(base=base)
    with pytest.raises(BadInput, match="no attempt has a signal of that name; score it, or name one of success"):
        telling.tell(GRPO(constraint=Constraint()), state, made([None, None]))
    held = telling.tell(GRPO(constraint=Constraint(budget=0.0)), state, made([1.0, 0.0, 0.0]))
    assert held.candidate is not None  # all were right: cost alone told them apart
    assert held.metrics["constraint"]["mean_cost"] == pytest.approx(1 / 3)
    assert held.metrics["audit"]["constraint"] == held.metrics["constraint"]


def stages() -> Stages:
    """As a process makes it when it starts."""
    return Stages((GRPO(steps=1, tasks=1, phase="a"), GRPO(steps=2, tasks=1, phase="b")))


def test_each_stage_goes_on_from_the_one_before_until_none_asks_for_more(base: Model, tmp_path: Path) -> None:
    telling, through = Telling(tmp_path), stages()
    state = through.start(base)
    groups, acted = [], []
    while work := through.ask(state, TASKS):
        assert stages().ask(state, TASKS) == work  # it follows from the state alone
        groups.append(work[0].group)  # type: ignore[union-attr]
        acted.append(work[0].policy)  # type: ignore[union-attr]
        state = telling.tell(through, state, tried(state.policy, 1.0, 0.0))
    assert groups == ["a-0-0-0", "b-0-0-0", "b-0-1-0"]
    assert acted == [base, *(base.at(one.id) for one in telling.checkpoints[:2])]
    assert (state.step, state.candidate) == (3, base.at(telling.checkpoints[-1].id))


def test_a_stage_that_left_nothing_is_over_all_the_same(base: Model, tmp_path: Path) -> None:
    telling, through = Telling(tmp_path), stages()
    state: AlgorithmState = telling.tell(through, through.start(base), tried(base, 0.0, 0.0))
    assert state.candidate is None
    assert [one.policy for one in through.ask(state, TASKS)][:1] == [base]  # type: ignore[union-attr]
    state = telling.tell(through, state, tried(base, 1.0, 0.0))
    assert state.candidate is not None and state.metrics["phase"] == "b 1"
