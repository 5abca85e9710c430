from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.contracts.errors import BadInput, Interrupted
from holdfast.learn.batch import Sample, Samples, learnt, pack
from holdfast.learn.objective import Objective
from holdfast.learn.train import OptimizerConfig, Settings, Trainer, Update
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer

ROOT = Path(__file__).resolve().parents[2]

SHAPE = ModelShape(vocabulary=32, width=16, layers=1, heads=2, context=32)
torch.set_num_threads(1)


def tiny(seed: int = 0) -> Transformer:
    return Transformer(SHAPE, seed=seed)


def samples(count: int = 6, *, seed: int = 0, **streams: Any) -> Samples:
    """Sequences of 4 to 12 tokens whose second half is decided; log-probs −3 and mixed advantages, unless told."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        length = int(rng.integers(4, 13))
        decided = np.arange(length) >= length // 2
        given = {
            "logprobs": np.full(length, -3.4, np.float32),
            "advantages": np.where(decided, rng.normal(), 0.0).astype(np.float32),
            **{name: np.full(length, number, np.float32) for name, number in streams.items()},
        }
        found.append(
            Sample(
                rollout=f"r{number}",
                task="t",
                ids=rng.integers(0, 32, length).astype(np.int32),
                decided=decided,
                turns=np.where(decided, 0, -1).astype(np.int32),
                **given,
            )
        )
    return pack(found)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_learning_makes_raised_tokens_likelier_and_lowered_ones_less_likely() -> None:
    model, batch = tiny(), samples()
    trainer = Trainer(model, Settings(pace=OptimizerConfig(learning_rate=1e-2)), seed=0)
    before = trainer.logprobs(batch)
    fresh = replace(batch, logprobs=before)
    update = trainer.step(fresh)
    after = trainer.logprobs(batch)
    assert batch.advantages is not None
    gain = np.nansum((after - before) * batch.advantages)
    assert gain > 0.1
    assert update.delta_norm == pytest.approx((weights(model) - weights(tiny())).norm().item(), rel=1e-5)
    assert (update.step, update.updates, update.samples, update.tokens) == (1, 1, 6, batch.tokens)
    assert update.approx_kl == 0.0 and update.stopped_early is None and update.restored is None


@pytest.mark.parametrize("aggregate", ["token", "sequence"])
def test_how_a_batch_is_cut_does_not_change_its_update(aggregate: Any) -> None:
    moved = []
    for limit in (1000, 24, 1):
        model = tiny()
        objective = Objective(aggregate=aggregate, entropy=0.01, behaviour_kl=0.1)
        settings = Settings(objective=objective, max_tokens_per_batch=limit, pace=OptimizerConfig(max_grad_norm=1e9))
        update = Trainer(model, settings, seed=0).step(samples(weights=0.5))
        gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        moved.append((gradient, update))
    for gradient, update in moved[1:]:
        assert torch.allclose(gradient, moved[0][0], atol=2e-7, rtol=1e-5)
        assert update.loss == pytest.approx(moved[0][1].loss, rel=1e-5)
        assert update.grad_norm == pytest.approx(moved[0][1].grad_norm, rel=1e-5)


def test_what_is_not_decided_has_exactly_no_gradient() -> None:
    """Whatever follows the last decided token, and whatever weight stands on an undecided one, changes no bit."""
    gradients = []
    for tail, weight in (([7, 8, 9], 1.0), ([1, 2, 3], 5.0)):
        ids = np.array([1, 2, 3, *tail], np.int32)
        decided = np.array([False, True, True, False, False, False])
        one = Sample(
            rollout="r",
            task="t",
            ids=ids,
            decided=decided,
            turns=np.where(decided, 0, -1).astype(np.int32),
            weights=np.where(decided, 1.0, weight).astype(np.float32),
            advantages=np.where(decided, 0.0, weight).astype(np.float32),
        )
        model = tiny()
        Trainer(model, Settings(), seed=0).step([one])
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(*gradients)


def test_an_advantage_of_zero_everywhere_moves_nothing() -> None:
    model = tiny()
    batch = samples(advantages=0.0)
    update = Trainer(model, Settings(), seed=0).step(batch)
    assert update.grad_norm == 0.0 and update.delta_norm == 0.0
    assert torch.equal(weights(model), weights(tiny()))


def test_the_same_seed_gives_the_same_weights_and_another_one_does_not() -> None:
    def train(seed: int) -> torch.Tensor:
        model = tiny()
        trainer = Trainer(model, Settings(minibatch=2, epochs=2, pace=OptimizerConfig(learning_rate=1e-2)), seed=seed)
        for number in range(3):
            trainer.step(samples(seed=number))
        return weights(model)

    assert torch.equal(train(1), train(1))
    assert not torch.equal(train(1), train(2))


def test_a_minibatch_is_one_update_and_epochs_repeat_them() -> None:
    update = Trainer(tiny(), Settings(minibatch=2, epochs=3), seed=0).step(samples(5))
    assert (update.updates, update.epochs) == (9, 3)


def stepped(**settings: Any) -> Update:
    """Many epochs with a large learning rate, from log-probs that are the model's own."""
    model, batch = tiny(), samples()
    trainer = Trainer(model, Settings(epochs=20, pace=OptimizerConfig(learning_rate=3e-2), **settings), seed=0)
    return trainer.step(replace(batch, logprobs=trainer.logprobs(batch)))


def test_too_large_a_step_away_stops_inside_the_epochs() -> None:
    free, soft, hard = stepped(), stepped(target_kl=0.01), stepped(max_kl=0.01)
    assert free.epochs == 20 and free.stopped_early is None and free.approx_kl > 0.1
    assert soft.stopped_early == "target_kl" and soft.epochs == soft.updates < 20
    assert hard.stopped_early == "max_kl" and hard.updates == hard.epochs - 1 < 20  # the last one is not applied
    assert hard.approx_kl > 0.01 and hard.delta_norm < free.delta_norm


def test_a_reference_holds_the_policy_back() -> None:
    def moved(weight: float) -> float:
        model, batch = tiny(), samples()
        objective = Objective(reference_kl=weight)
        settings = Settings(objective=objective, epochs=20, pace=OptimizerConfig(learning_rate=1e-2))
        trainer = Trainer(model, settings, seed=0, reference=tiny())
        before = trainer.logprobs(batch)
        trainer.step(replace(batch, logprobs=before))
        return float(np.nanmean(np.square(trainer.logprobs(batch) - before)))

    assert moved(10.0) < 0.5 * moved(0.0)


def test_recomputed_log_probs_are_those_of_the_model() -> None:
    model, batch = tiny(), samples()
    found = Trainer(model, Settings(), seed=0).logprobs(batch)
    for i in range(len(batch)):
        ids = torch.from_numpy(batch.ids[batch.bounds[i] : batch.bounds[i + 1]]).long()
        with torch.no_grad():
            logp = model(ids[None])[0].log_softmax(-1)
        mine = found[batch.bounds[i] : batch.bounds[i + 1]]
        for place in np.flatnonzero(~np.isnan(mine)):
            assert mine[place] == pytest.approx(logp[place - 1, ids[place]].item(), abs=1e-5)
    assert (~np.isnan(found) == learnt(batch)).all()


def test_an_update_that_is_not_finite_is_taken_back() -> None:
    model = tiny()
    trainer = Trainer(model, Settings(), seed=0)
    trainer.step(samples())
    good = weights(model)
    broken = samples(advantages=float("inf"))
    update = trainer.step(broken)
    assert update.restored is not None and "not finite" in update.restored
    assert update.delta_norm == 0.0 and update.updates == 0
    assert torch.equal(weights(model), good)
    json.dumps(update.to_dict(), allow_nan=False)
    assert trainer.step(samples()).restored is None  # and it goes on


@pytest.mark.parametrize("rate", [1e3, 1e30, 1e300])
def test_parameters_that_moved_further_than_they_are_long_are_put_back(rate: float) -> None:
    model = tiny()
    update = Trainer(model, Settings(pace=OptimizerConfig(learning_rate=rate)), seed=0).step(samples())
    assert update.restored is not None and update.restored.startswith("the parameters")
    assert (update.delta_norm, update.updates) == (0.0, 0)
    assert torch.equal(weights(model), weights(tiny()))


def test_one_update_is_measured_where_it_ends_and_not_only_where_it_began() -> None:
    def stepped(**settings: Any) -> tuple[Update, torch.Tensor]:
        model = tiny()
        trainer = Trainer(model, Settings(pace=OptimizerConfig(learning_rate=3e-2), **settings), seed=0)
        batch = replace(samples(), logprobs=trainer.logprobs(samples()))
        update = trainer.step(batch)
        assert batch.logprobs is not None
        moved = (trainer.logprobs(batch) - batch.logprobs)[learnt(batch)]
        assert moved.any() == (update.delta_norm > 0.0)
        if settings == {"is_measured": True}:
            assert update.approx_kl == pytest.approx(float(np.square(moved).mean()) / 2, rel=1e-5)
        return update, weights(model)

    blind, seen, held = stepped(max_kl=1e-3), stepped(is_measured=True), stepped(is_measured=True, max_kl=1e-3)
    assert blind[0].approx_kl == 0.0 and blind[0].restored is None
    assert seen[0].approx_kl is not None and seen[0].approx_kl > 1e-3 and torch.equal(seen[1], blind[1])
    assert held[0].restored is not None and "beyond max_kl = 0.001" in held[0].restored
    assert held[0].approx_kl == seen[0].approx_kl and torch.equal(held[1], weights(tiny()))


@pytest.mark.parametrize("cap", [None, 2.0])
def test_log_probs_that_nobody_told_are_the_models_own_at_the_start(cap: float | None) -> None:
    """Telling the trainer what it would have taken changes no bit, and no share is over 1."""
    whole = samples()
    half = np.where(np.arange(len(whole.ids)) < whole.bounds[3], np.float32(-3.4), np.float32(np.nan))
    settings = Settings(epochs=6, pace=OptimizerConfig(learning_rate=3e-2), objective=Objective(importance_cap=cap))
    own = Trainer(tiny(), settings, seed=0).logprobs(whole)
    trainers = [Trainer(tiny(), settings, seed=0) for _ in range(3)]
    batches = [replace(whole, logprobs=given) for given in (half, np.where(np.isnan(half), own, half), None)]
    untold, told, nothing = (trainer.step(batch) for trainer, batch in zip(trainers, batches, strict=True))
    assert trainers[0].digest() == trainers[1].digest()
    assert replace(untold, seconds=0.0) == replace(told, seconds=0.0)
    assert 0.0 < untold.clip_fraction <= 1.0 and 0.0 < nothing.clip_fraction <= 1.0


def test_an_exploding_gradient_takes_the_whole_step_back() -> None:
    model = tiny()
    trainer = Trainer(model, Settings(explosion=10.0), seed=0)
    for number in range(8):
        assert trainer.step(samples(seed=number)).restored is None
    good = trainer.state()
    wild = samples()
    assert wild.advantages is not None
    update = trainer.step(replace(wild, advantages=wild.advantages * 1e4))
    assert update.restored is not None and "times the usual" in update.restored
    assert all(torch.equal(tensor, trainer.state().tensors[name]) for name, tensor in good.tensors.items())


def test_a_restored_state_goes_on_bit_for_bit() -> None:
    settings = Settings(minibatch=3, pace=OptimizerConfig(learning_rate=1e-2, schedule="cosine", total=20, warm_up=3))
    trainer = Trainer(tiny(), settings, seed=5)
    for number in range(4):
        trainer.step(samples(seed=number))
    kept = trainer.state()
    went_on = [trainer.step(samples(seed=number)) for number in (4, 5)]
    other = Trainer(tiny(9), settings, seed=99)
    other.restore(kept)
    again = [other.step(samples(seed=number)) for number in (4, 5)]
    assert torch.equal(weights(trainer.model), weights(other.model))
    assert [replace(u, seconds=0.0) for u in went_on] == [replace(u, seconds=0.0) for u in again]


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.learn.test_train import resumable, samples

trainer = resumable()
for number in range(20):
    trainer.step(samples(seed=number))
    if number == 6:
        trainer.save(Path(sys.argv[1]), created_at=0.0, notes={"next": 7})
    if number == 8:
        os.kill(os.getpid(), signal.SIGKILL)  # two steps past what was saved
"""


def resumable(seed: int = 5) -> Trainer:
    """Everything that could break a resumed run: shuffled minibatches, a schedule, two epochs, a critic."""
    pace = OptimizerConfig(learning_rate=1e-2, schedule="cosine", total=200, warm_up=9)
    torch.manual_seed(seed)
    return Trainer(tiny(seed), Settings(minibatch=3, epochs=2, pace=pace), seed=seed, critic=nn.Linear(16, 1))


def test_twenty_steps_are_seven_a_kill_and_thirteen(tmp_path: Path) -> None:
    whole = resumable()
    for number in range(20):
        whole.step(samples(seed=number))
    child = subprocess.run([sys.executable, "-c", CHILD, tmp_path], cwd=ROOT, env=os.environ | {"PYTHONPATH": "."})
    assert child.returncode == -signal.SIGKILL
    resumed = resumable(seed=99)
    notes = resumed.load(tmp_path)
    for number in range(notes["next"], 20):
        resumed.step(samples(seed=number))
    assert resumed.digest() == whole.digest() and resumed.steps == 20
    assert resumed.digest() != resumable().digest()


def test_a_step_that_is_held_on_its_way_comes_to_the_same_bytes() -> None:
    calm, held, others = resumable(), resumable(), 0

    def pause_point() -> None:
        nonlocal others
        others += 1
        resumable(seed=others)  # the world goes on, and so does its chance
        torch.rand(3)

    held.pause_point = pause_point
    for number in range(3):
        calm.step(samples(seed=number))
        held.step(samples(seed=number))
    assert others >= 3 * 2 * 2  # steps, epochs, minibatches: at least once in each
    assert held.digest() == calm.digest()
    assert held.state().notes == calm.state().notes


@pytest.mark.parametrize("place", [1, 2, 4])  # before anything moved, and between two updates of the same step
def test_a_step_that_is_stopped_leaves_nothing_behind(place: int) -> None:
    trainer, whole, calls = resumable(), resumable(), 0
    for number in range(2):
        whole.step(samples(seed=number))

    def pause_point() -> None:
        nonlocal calls
        calls += 1
        if calls == place:
            raise Interrupted("the run was stopped")

    trainer.step(samples(seed=0))
    before, trainer.pause_point = trainer.digest(), pause_point
    with pytest.raises(Interrupted):
        trainer.step(samples(seed=1))
    assert trainer.digest() == before and trainer.steps == 1
    trainer.pause_point = lambda: None
    trainer.step(samples(seed=1))
    assert trainer.digest() == whole.digest()


def test_weights_that_no_trainer_saved_are_refused(tmp_path: Path) -> None:
    manifest = Manifest(kind="transformer", shape={}, created_at=0.0)
    save_transformer(tmp_path, tiny(), manifest)
    with pytest.raises(BadInput, match="no trainer's state"):
        resumable().load(tmp_path)


def test_a_state_of_another_model_is_refused() -> None:
    state = Trainer(tiny(), Settings(), seed=0).state()
    wider = Transformer(ModelShape(vocabulary=32, width=32, layers=1, heads=2, context=32), seed=0)
    with pytest.raises(BadInput, match="has shape"):
        Trainer(wider, Settings(), seed=0).restore(state)
    with pytest.raises(BadInput, match="is missing"):
        Trainer(Transformer(replace(SHAPE, layers=2), seed=0), Settings(), seed=0).restore(state)


def test_the_critic_learns_what_the_returns_say() -> None:
    model, batch = tiny(), samples(advantages=0.0)
    returns = np.full(len(batch.ids), np.nan, np.float32)
    returns[batch.bounds[:-1]] = np.arange(len(batch))
    batch = replace(batch, returns=returns)
    critic = nn.Linear(16, 1)
    trainer = Trainer(model, Settings(epochs=60, pace=OptimizerConfig(learning_rate=5e-2)), seed=0, critic=critic)
    before = np.nanmean(np.square(trainer.values(batch) - returns))
    trainer.step(batch)
    assert np.nanmean(np.square(trainer.values(batch) - returns)) < 0.2 * before


def test_the_learning_rate_warms_up_and_decays() -> None:
    cosine = OptimizerConfig(learning_rate=1.0, schedule="cosine", warm_up=2, total=12, floor=0.1)
    assert [cosine.at(n) for n in (0, 1, 2, 7, 12, 50)] == pytest.approx([0.5, 1.0, 1.0, 0.55, 0.1, 0.1])
    linear = OptimizerConfig(learning_rate=1.0, schedule="linear", total=10, floor=0.0)
    assert [linear.at(n) for n in (0, 5, 10)] == pytest.approx([1.0, 0.5, 0.0])
    assert OptimizerConfig(learning_rate=1.0).at(10_000) == 1.0


def test_training_disturbs_nobodys_chance() -> None:
    trainer = Trainer(tiny(), Settings(), seed=0)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    trainer.step(samples())
    assert torch.equal(torch.rand(2), expected)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Settings(epochs=0),
        lambda: Settings(target_kl=0.2, max_kl=0.1),
        lambda: OptimizerConfig(learning_rate=0.0),
        lambda: OptimizerConfig(learning_rate=math.nan),
        lambda: OptimizerConfig(schedule="cosine", total=5, warm_up=5),
        lambda: Trainer(tiny(), Settings(objective=Objective(reference_kl=0.1)), seed=0),
        lambda: Trainer(tiny(), Settings(), seed=0).step(replace(samples(), decided=np.zeros(51, bool))),
        lambda: Trainer(tiny().requires_grad_(False), Settings(), seed=0),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput):
        wrong()
