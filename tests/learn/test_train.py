from __future__ import annotations

import asyncio
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
from holdfast.contracts.trace import ModelCall
from holdfast.learn.batch import Sample, Samples, pack, trained_mask
from holdfast.learn.objective import TERMS, Objective
from holdfast.learn.train import AdamW, OptimizerConfig, Settings, StepMetrics, Trainer, Update, recompute_logprobs
from holdfast.policies.engine import Local
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from tests.learn.attempts import call

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
                action_mask=decided,
                turns=np.where(decided, 0, -1).astype(np.int32),
                **given,
            )
        )
    return pack(found)


def weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_learning_makes_raised_tokens_likelier_and_lowered_ones_less_likely() -> None:
    model, batch = tiny(), samples()
    trainer = Trainer(model, Settings(optimizer=OptimizerConfig(learning_rate=1e-2)), seed=0)
    before = trainer.logprobs(batch)
    fresh = replace(batch, logprobs=before)
    update = trainer.step(fresh)
    after = trainer.logprobs(batch)
    assert batch.advantages is not None
    assert (~np.isnan(after) == trained_mask(batch)).all()
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
        settings = Settings(
            objective=objective, max_tokens_per_batch=limit, optimizer=OptimizerConfig(max_grad_norm=1e9)
        )
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
            action_mask=decided,
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


def stepped(**settings: Any) -> Update:
    """Many epochs with a large learning rate, from log-probs that are the model's own."""
    model, batch = tiny(), samples()
    trainer = Trainer(model, Settings(epochs=20, optimizer=OptimizerConfig(learning_rate=3e-2), **settings), seed=0)
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
        settings = Settings(objective=objective, epochs=20, optimizer=OptimizerConfig(learning_rate=1e-2))
        trainer = Trainer(model, settings, seed=0, reference=tiny())
        before = trainer.logprobs(batch)
        trainer.step(replace(batch, logprobs=before))
        return float(np.nanmean(np.square(trainer.logprobs(batch) - before)))

    assert moved(10.0) < 0.5 * moved(0.0)


def test_one_update_is_measured_where_it_ends_and_not_only_where_it_began() -> None:
    def stepped(**settings: Any) -> tuple[Update, torch.Tensor]:
        model = tiny()
        trainer = Trainer(model, Settings(optimizer=OptimizerConfig(learning_rate=3e-2), **settings), seed=0)
        batch = replace(samples(), logprobs=trainer.logprobs(samples()))
        update = trainer.step(batch)
        assert batch.logprobs is not None
        moved = (trainer.logprobs(batch) - batch.logprobs)[trained_mask(batch)]
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
    settings = Settings(
        epochs=6, optimizer=OptimizerConfig(learning_rate=3e-2), objective=Objective(importance_cap=cap)
    )
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


def test_an_ordinary_gradient_after_batches_that_taught_nearly_nothing_is_no_explosion() -> None:
    trainer = Trainer(tiny(), Settings(), seed=0)
    calm = samples()
    assert calm.advantages is not None
    for _ in range(8):
        trainer.step(replace(calm, advantages=calm.advantages * 1e-6))
    update = trainer.step(replace(calm, advantages=calm.advantages * 1e-2))
    assert update.restored is None and update.grad_norm is not None and update.grad_norm < 1.0


CHILD = """
import os, signal, sys
from pathlib import Path
from tests.learn.test_train import resumable, samples

trainer = resumable()
for number in range(20):
    trainer.step(samples(seed=number))
    trainer.beside["last"] = number
    if number == 6:
        trainer.save(Path(sys.argv[1]), created_at=0.0)
    if number == 8:
        os.kill(os.getpid(), signal.SIGKILL)  # two steps past what was saved
"""


def resumable(seed: int = 5) -> Trainer:
    """Everything that could break a resumed run: shuffled minibatches, a schedule, two epochs, a critic."""
    optimizer = OptimizerConfig(learning_rate=1e-2, schedule="cosine", total=200, warm_up=9)
    torch.manual_seed(seed)
    return Trainer(tiny(seed), Settings(minibatch=3, epochs=2, optimizer=optimizer), seed=seed, critic=nn.Linear(16, 1))


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


def test_the_critic_learns_what_the_returns_say() -> None:
    model, batch = tiny(), samples(advantages=0.0)
    returns = np.full(len(batch.ids), np.nan, np.float32)
    returns[batch.bounds[:-1]] = np.arange(len(batch))
    batch = replace(batch, returns=returns)
    critic = nn.Linear(16, 1)
    trainer = Trainer(model, Settings(epochs=60, optimizer=OptimizerConfig(learning_rate=5e-2)), seed=0, critic=critic)
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
        lambda: Trainer(tiny(), Settings(), seed=0).step(replace(samples(), action_mask=np.zeros(51, bool))),
        lambda: Trainer(tiny().requires_grad_(False), Settings(), seed=0),
    ],
)
def test_what_cannot_be_trained_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput):
        wrong()


def test_long_gradients_are_scaled_and_short_ones_left_alone() -> None:
    p = nn.Parameter(torch.zeros(2))
    adam = AdamW({"p": p}, betas=(0.9, 0.95), decay=0.0)
    p.grad = torch.tensor([3.0, 4.0])
    assert adam.clip(10.0).item() == pytest.approx(5.0) and p.grad.tolist() == [3.0, 4.0]
    assert adam.clip(1.0).item() == pytest.approx(5.0)
    assert p.grad.tolist() == pytest.approx([0.6, 0.8], abs=1e-5)


def test_adam_follows_its_formula_and_only_matrices_decay() -> None:
    rng = np.random.default_rng(0)
    matrix, vector, idle = (nn.Parameter(torch.ones(size)) for size in ((2, 2), (2,), (2, 2)))
    adam = AdamW({"matrix": matrix, "vector": vector, "idle": idle}, betas=(0.9, 0.95), decay=0.1)
    before = adam.tensors()
    states = [(matrix, 0.1, *np.zeros((2, 2, 2)), np.ones((2, 2))), (vector, 0.0, *np.zeros((2, 2)), np.ones(2))]
    for step in range(1, 6):
        for place, (p, decay, m, v, theta) in enumerate(states):
            g = rng.normal(size=theta.shape)
            p.grad = torch.from_numpy(g).float()
            m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
            moved = 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
            states[place] = (p, decay, m, v, theta * (1 - 0.01 * decay) - moved)
        adam.descend(0.01)
    for p, _, _, _, theta in states:
        assert p.detach().numpy() == pytest.approx(theta, abs=1e-6)
    assert torch.equal(idle, torch.ones(2, 2)) and adam.moved(before) > 0.0  # without a gradient it stays


def test_a_minibatch_is_one_update_epochs_repeat_them_and_the_seed_decides_their_order() -> None:
    def train(seed: int) -> tuple[Update, torch.Tensor]:
        model = tiny()
        settings = Settings(minibatch=2, epochs=3, optimizer=OptimizerConfig(learning_rate=1e-2))
        return Trainer(model, settings, seed=seed).step(samples(5)), weights(model)

    (update, one), (_, same), (_, other) = train(1), train(1), train(2)
    assert (update.updates, update.epochs) == (9, 3)
    assert torch.equal(one, same) and not torch.equal(one, other)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"advantages": float("inf")}, "not finite"),
        *(({"rate": rate}, "the parameters") for rate in (1e3, 1e30, 1e300)),  # moved further than they are long
    ],
)
def test_an_update_that_runs_away_is_taken_back_and_the_next_one_goes_on(given: dict[str, float], why: str) -> None:
    model = tiny()
    trainer = Trainer(model, Settings(optimizer=OptimizerConfig(learning_rate=given.pop("rate", 3e-4))), seed=0)
    update = trainer.step(samples(**given))
    assert update.restored is not None and why in update.restored
    assert (update.delta_norm, update.updates) == (0.0, 0) and torch.equal(weights(model), weights(tiny()))
    json.dumps(update.to_dict(), allow_nan=False)
    object.__setattr__(trainer.settings.optimizer, "learning_rate", 1e-4)
    assert trainer.step(samples()).restored is None


def test_twenty_steps_are_seven_a_kill_and_thirteen(tmp_path: Path) -> None:
    whole = resumable()
    for number in range(20):
        last = whole.step(samples(seed=number))
        whole.beside["last"] = number
    child = subprocess.run([sys.executable, "-c", CHILD, tmp_path], cwd=ROOT, env=os.environ | {"PYTHONPATH": ".:src"})
    assert child.returncode == -signal.SIGKILL
    resumed = resumable(seed=99)
    resumed.load(tmp_path)
    assert resumed.beside == {"last": 6}  # what those keep there who fill the streams
    for number in range(7, 20):
        update = resumed.step(samples(seed=number))
    assert replace(update, seconds=0.0) == replace(last, seconds=0.0)
    assert resumed.digest() == whole.digest() and resumed.steps == 20
    assert resumed.digest() != resumable().digest()


def test_a_state_of_another_model_or_of_nobody_is_refused(tmp_path: Path) -> None:
    state = Trainer(tiny(), Settings(), seed=0).state()
    for shape, why in ((replace(SHAPE, width=32), "has shape"), (replace(SHAPE, layers=2), "is missing")):
        with pytest.raises(BadInput, match=why):
            Trainer(Transformer(shape, seed=0), Settings(), seed=0).restore(state)
    save_transformer(tmp_path, tiny(), Manifest(kind="transformer", shape={}, created_at=0.0))
    with pytest.raises(BadInput, match="no trainer's state"):
        resumable().load(tmp_path)


# What is told of a step


def numbers(
    loss: float, norm: float, moved: float, clipped: float = 0.0, entropy: float = 0.0, gap: float = 0.0
) -> list[float]:
    return [loss, norm, *([loss] * len(TERMS)), moved, clipped, entropy, 0.0, gap]


def closed(account: StepMetrics) -> Update:
    return account.close(step=1, samples=2, tokens=8, delta_norm=0.1, lr=1e-3, seconds=0.0)


def test_means_are_over_minibatches_shares_over_tokens_and_the_epoch_that_went_farthest_is_observed() -> None:
    account = StepMetrics()
    account.open_epoch()
    account.add(numbers(1.0, 2.0, moved=0.5, clipped=1.0, entropy=6.0, gap=0.5), tokens=4, told=2)
    assert account.last_kl == 0.25
    account.add(numbers(3.0, 4.0, moved=0.0, clipped=0.0, entropy=2.0, gap=9.0), tokens=4, told=8)
    assert account.epoch_kl == pytest.approx(0.05)  # over ten tokens
    update = closed(account)
    assert (update.loss, update.grad_norm, update.entropy, update.clip_fraction) == (2.0, 3.0, 1.0, 0.1)
    assert update.terms == dict.fromkeys(TERMS, 2.0)
    assert update.trainer_gap == 0.25  # before anything moved
    for moved in (0.3, 0.1):
        account.open_epoch()
        account.add(numbers(0.0, 0.0, moved=moved), tokens=1, told=1)
    account.updates, account.restored = 3, "why"
    update = closed(account)
    assert (update.approx_kl, update.epochs, update.updates) == (0.3, 3, 0)  # what was taken back counts no updates


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_not_finite_is_missing_so_that_it_can_be_written_down(odd: float) -> None:
    account = StepMetrics()
    account.open_epoch()
    account.add(numbers(odd, odd, moved=odd, entropy=odd), tokens=1, told=1)
    update = closed(account)
    assert (update.loss, update.grad_norm, update.approx_kl, update.entropy) == (None, None, None, None)
    assert update.terms == dict.fromkeys(TERMS)
    json.dumps(update.to_dict(), allow_nan=False)


# The trainer reads what the sampler drew


def speaking(seed: int = 0) -> Transformer:
    return Transformer(ModelShape(vocabulary=264, width=16, layers=1, heads=2, context=128), seed=seed)


def drawn(net: Transformer, ways: list[dict[str, Any]]) -> list[ModelCall]:
    async def asking() -> list[ModelCall]:
        with Local(net, slots=4) as local:
            asked = [{"role": "user", "content": "hello"}]
            return list(await asyncio.gather(*(local(asked, max_tokens=8, **how) for how in ways)))

    return asyncio.run(asking())


def test_sampler_and_trainer_agree_under_every_rule_and_reading_moves_nothing() -> None:
    net = speaking()
    ways = [{}, {"temperature": 2.0}, {"top_k": 3}, {"temperature": 0.7, "top_p": 0.6}, {"thinking": 0}]
    calls = drawn(net, ways)
    for call_, own in zip(calls, recompute_logprobs(net, calls), strict=True):
        assert own == pytest.approx(call_.logprobs, abs=1e-5)
    assert torch.equal(weights(net), weights(speaking()))
    other = recompute_logprobs(speaking(1), calls[:1])[0]
    assert max(abs(a - b) for a, b in zip(calls[0].logprobs or (), other, strict=True)) > 0.01
    (forced,) = recompute_logprobs(net, [call([1, 2], [3, 4], forced=[0, 1])])
    assert len(forced) == 2 and all(map(math.isnan, forced))
