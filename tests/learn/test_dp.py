"""Differential privacy: the accountant against a library's figures, sampling, noise, and what one unit can do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.learn.batch import Samples
from holdfast.learn.dp import Mechanism, Privacy, PrivacyBudget, PrivateTrainer, SecretNoise, epsilon, noise_for
from holdfast.learn.sft import SFT, Example, Tokenised, divide, sequences, tokenise
from holdfast.learn.train import Settings, Trainer
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.lm import ModelShape, Transformer

# Recorded from Opacus 1.6.0 (torch 2.13.0): RDPAccountant, and PRVAccountant, which is tight to 0.01.
RECORDED = [  # noise multiplier, sampling rate, steps, delta, epsilon by RDP, epsilon by PRV
    (1.0, 0.01, 1000, 1e-5, 2.1013652716430564, 1.8383716376346455),
    (0.6, 0.02, 500, 1e-5, 11.817079649089061, 10.291013302041378),
    (2.0, 0.1, 200, 1e-6, 4.117558239799327, 3.8160626862605618),
    (4.0, 0.25, 30, 1e-5, 1.5611421708265154, 1.4262181762985415),
    (1.1, 256 / 60000, 14000, 1e-5, 2.5903769658483182, 2.3859841398603088),
    (0.8, 1.0, 5, 1e-5, 16.269125946682543, 15.233349472830898),
    (10.0, 0.5, 100, 1e-6, 2.4524151541940378, 2.292102031457195),
]


@pytest.mark.parametrize(("noise", "rate", "steps", "delta", "rdp", "prv"), RECORDED)
def test_the_accountant_agrees_with_opacus_and_is_never_below_the_tight_one(
    noise: float, rate: float, steps: int, delta: float, rdp: float, prv: float
) -> None:
    found = epsilon([Mechanism(noise=noise, rate=rate, steps=steps)], delta)
    assert found == pytest.approx(rdp, rel=1e-9)
    assert prv - 0.01 <= found <= 1.2 * prv


def test_runs_one_after_the_other_add_up_as_opacus_says() -> None:
    both = [Mechanism(noise=1.0, rate=0.01, steps=1000), Mechanism(noise=0.6, rate=0.02, steps=500)]
    assert epsilon(both, 1e-5) == pytest.approx(12.025401943888612, rel=1e-9)  # RDPAccountant with this history
    assert epsilon([], 1e-5) == epsilon([replace(both[0], steps=0)], 1e-5) == 0.0


@pytest.mark.parametrize(
    ("target", "rate", "steps", "opacus"),  # its get_noise_multiplier, accountant="rdp"
    [(1.0, 0.1, 100, 4.2779541015625), (8.0, 0.05, 300, 0.9019851684570312), (3.0, 0.01, 1000, 0.8646106719970703)],
)
def test_the_noise_is_the_least_that_keeps_the_budget(target: float, rate: float, steps: int, opacus: float) -> None:
    noise = noise_for(target, 1e-5, rate=rate, steps=steps)
    assert noise == pytest.approx(opacus, rel=3e-4)
    assert epsilon([Mechanism(noise=noise, rate=rate, steps=steps)], 1e-5) <= target
    assert epsilon([Mechanism(noise=0.999 * noise, rate=rate, steps=steps)], 1e-5) > target


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"epsilon": 0.0}, "privacy.epsilon = 0.0: must be finite and above 0"),
        ({"epsilon": float("inf")}, "privacy.epsilon = inf"),
        ({"epsilon": 1.0, "clip": -1.0}, "privacy.clip = -1.0"),
        ({"epsilon": 1.0, "delta": 1.0}, "privacy.delta = 1.0: must be above 0 and below 1; 1e-5 is usual"),
        ({"epsilon": 1.0, "unit": "token"}, "privacy.unit = 'token': is unknown; use conversation or user"),
    ],
)
def test_a_budget_that_means_nothing_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        Privacy(**given)


def test_a_budget_that_no_noise_can_keep_and_a_delta_that_gives_units_away_are_refused() -> None:
    with pytest.raises(BadInput, match="no noise of a useful size.*fewer epochs"):
        PrivacyBudget.of(Privacy(epsilon=1e-6), units=10, batch=10, steps=1000)
    with pytest.raises(BadInput, match="privacy.delta = 0.01: with 200 units.*; give one well below 0.005"):
        PrivacyBudget.of(Privacy(epsilon=1.0, delta=0.01), units=200, batch=10, steps=10)
    assert PrivacyBudget.of(Privacy(epsilon=1.0), units=100, batch=10, steps=10).delta == 1e-5
    assert PrivacyBudget.of(Privacy(epsilon=1.0), units=10**6, batch=10, steps=10).delta == pytest.approx(10**-6.6)


def test_a_report_tells_the_mechanism_and_a_run_that_goes_on_adds_it_up() -> None:
    budget = PrivacyBudget.of(Privacy(epsilon=1.0), units=100, batch=10, steps=10)
    own = Mechanism(noise=budget.noise, rate=budget.rate, steps=10)
    first = budget.spent(10)
    assert Mechanism.from_record(first) == own and first["epsilon"] == epsilon([own], budget.delta) <= 1.0
    line = budget.spent(5, [first])["line"]
    assert line == {"epsilon": epsilon([own, replace(own, steps=5)], budget.delta), "runs": 2}


# Chance --------------------------------------------------------------------------------------------------------------


def test_every_unit_is_drawn_by_itself_and_a_sample_may_be_empty() -> None:
    noise, steps, count, rate = SecretNoise(b"a"), 4000, 40, 0.1
    drawn = np.zeros((steps, count), bool)
    for step in range(steps):
        drawn[step, noise.sample(step, count, rate)] = True
    sizes = drawn.sum(1)
    assert sizes.mean() == pytest.approx(4.0, abs=0.15) and sizes.var() == pytest.approx(3.6, abs=0.35)  # binomial
    assert 0 < (sizes == 0).sum() < 0.03 * steps  # 0.9⁴⁰ = 1.5 %
    assert np.abs(drawn.mean(0) - rate).max() < 5 * np.sqrt(rate * (1 - rate) / steps)
    apart = np.corrcoef(drawn.T.astype(float))[~np.eye(count, dtype=bool)]
    assert np.abs(apart).max() < 5 / np.sqrt(steps)


def test_noise_is_normal_the_same_for_the_same_step_and_another_for_any_other() -> None:
    noise = SecretNoise(b"a")
    one = noise.normal("w", 3, 200_001)
    assert len(one) == 200_001 and np.array_equal(one, SecretNoise(b"a").normal("w", 3, 200_001))
    assert abs(one.mean()) < 0.01 and abs(one.var() - 1.0) < 0.02 and abs((one**4).mean() - 3.0) < 0.1
    others = [noise.normal("w", 4, 200_001), noise.normal("v", 3, 200_001), SecretNoise(b"b").normal("w", 3, 200_001)]
    assert all(abs(np.corrcoef(one, other)[0, 1]) < 0.02 for other in others)


# One update ----------------------------------------------------------------------------------------------------------

CLIP = 0.3
OWNERS = (0, 1, 1, 2, 1, 3)  # the second unit gave three sequences


def batch(owners: tuple[int, ...] = OWNERS, *, seed: int = 0) -> Samples:
    rng = np.random.default_rng(seed)
    pairs = [(rng.integers(0, 256, 8 + n).tolist(), [False] * 3 + [True] * (5 + n)) for n in range(len(owners))]
    return replace(sequences(pairs), rollouts=tuple(map(str, owners)))


def private(noise: float, *, most_tokens: int = 0) -> PrivateTrainer:
    net = Transformer(ModelShape(width=16, layers=1, heads=2, context=32), seed=0)
    budget = PrivacyBudget(privacy=Privacy(epsilon=1.0, clip=CLIP), units=8, delta=1e-5, noise=noise, rate=0.5)
    return PrivateTrainer(net, Settings(max_tokens_per_batch=most_tokens), budget, SecretNoise(b"k"), seed=0)


def gradient(trainer: Trainer) -> NDArray[np.float64]:
    parts = [p.grad for p in trainer.model.parameters()]
    return torch.cat([part.flatten() for part in parts if part is not None]).double().numpy()


def by_hand(samples: Samples, name: str) -> NDArray[np.float64]:
    """The gradient of the mean loss over all tokens of one unit, by plain autograd."""
    net = Transformer(ModelShape(width=16, layers=1, heads=2, context=32), seed=0)
    losses = []
    for place in [n for n, owner in enumerate(samples.rollouts) if owner == name]:
        part = slice(samples.bounds[place], samples.bounds[place + 1])
        ids, marks = torch.tensor(samples.ids[part]).long(), torch.tensor(samples.action_mask[part])
        logp = net(ids[None])[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        losses.append(-logp[marks[1:]])
    torch.cat(losses).mean().backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]).double().numpy()


@pytest.mark.parametrize("most_tokens", [0, 12])  # a unit at once, and in pieces whose gradients add up
def test_each_unit_is_clipped_as_one_and_the_sum_is_divided_by_the_expected_units(most_tokens: int) -> None:
    trainer, samples = private(1e-12, most_tokens=most_tokens), batch()
    trainer.step(samples)
    each = [by_hand(samples, name) for name in "0123"]
    assert min(np.linalg.norm(one) for one in each) > CLIP  # all of them are clipped
    wanted = sum(one * CLIP / np.linalg.norm(one) for one in each) / (0.5 * 8)
    np.testing.assert_allclose(gradient(trainer), wanted, atol=2e-6)


@pytest.mark.parametrize("seed", range(3))
def test_one_unit_more_changes_the_sum_by_no_more_than_the_clip(seed: int) -> None:
    whole = batch((0, 1, 1, 2, 3, 3), seed=seed)
    for name in "0123":
        found = []
        for samples in (whole, whole.pick(np.flatnonzero(np.asarray(whole.rollouts) != name))):
            trainer = private(1e-12)
            trainer.step(samples)
            found.append(gradient(trainer) * 0.5 * 8)
        assert np.linalg.norm(found[0] - found[1]) <= CLIP * (1 + 1e-4)


def test_an_empty_sample_is_a_step_of_noise_of_the_right_size() -> None:
    trainer = private(2.0)
    update = trainer.step(batch().pick(np.zeros(0, np.int64)))
    drawn = gradient(trainer)
    assert update.updates == 1 and update.delta_norm > 0.0
    assert drawn.std() == pytest.approx(2.0 * CLIP / (0.5 * 8), rel=0.05) and abs(drawn.mean()) < 0.01


def test_noise_differs_from_step_to_step_and_is_the_same_for_a_trainer_that_goes_on_from_its_state() -> None:
    one, other, samples = private(1.0), private(1.0), batch()
    one.step(samples)
    first = gradient(one)
    other.restore(one.state())
    one.step(samples)
    other.step(samples)
    assert np.array_equal(gradient(one), gradient(other)) and one.digest() == other.digest()
    assert not np.allclose(gradient(one), first)


def test_a_unit_whose_gradient_is_not_finite_adds_nothing_and_losses_are_not_told() -> None:
    samples = batch()
    assert samples.weights is not None
    bad = np.repeat(np.asarray(OWNERS) == 3, np.diff(samples.bounds))
    trainer = private(1e-12)
    update = trainer.step(replace(samples, weights=np.where(bad, np.float32("nan"), samples.weights)))
    without = private(1e-12)
    without.step(samples.pick(np.flatnonzero(np.asarray(OWNERS) != 3)))
    assert update.restored is None and update.loss is None
    np.testing.assert_allclose(gradient(trainer), gradient(without), atol=1e-7)


# Units ---------------------------------------------------------------------------------------------------------------


def made(*texts: str, users: tuple[str | None, ...] = ()) -> list[Tokenised]:
    chats = [[{"role": "user", "content": "?"}, {"role": "assistant", "content": text}] for text in texts]
    whose = users or (None,) * len(texts)
    examples = [Example(place="", messages=chat, user=user) for chat, user in zip(chats, whose, strict=True)]
    return tokenise(ByteTemplate(), examples, longest=64)[0]


def test_copies_are_one_unit_and_so_are_the_conversations_of_one_user() -> None:
    data = divide(made("a", "b", "a", "c"), 0.0, seed=0, unit="conversation")
    assert data.owners is not None and data.owners.tolist() == [0, 1, 0, 2] and data.units == 3
    data = divide(made("a", "b", "a", "c", users=("x", "y", "y", "x")), 0.0, seed=0, unit="user")
    assert data.owners is not None and data.owners.tolist() == [0, 1, 1, 0]
    assert data.places(np.array([1])).tolist() == [1, 2] and data.pick(np.array([1, 2])).rollouts == ("1", "1")
    again = type(data).from_bytes(data.to_bytes())
    assert again.owners is not None and again.owners.tolist() == [0, 1, 1, 0] and again.held_out is None


def test_one_more_conversation_does_not_change_which_others_are_held_out() -> None:
    texts = [f"answer {n}" for n in range(60)]
    for more in ("another", "one more", "and one"):
        kept = [_held_out(texts), _held_out([*texts, more])]
        assert 5 < len(kept[0]) < 30 and kept[0] == kept[1] - {tuple(made(more)[0].sequences[0][0])}


def _held_out(texts: list[str]) -> set[tuple[int, ...]]:
    samples = divide(made(*texts), 0.25, seed=0, unit="conversation").held_out
    assert samples is not None
    return {tuple(part.tolist()) for part in np.split(samples.ids, samples.bounds[1:-1])}


def test_what_is_recorded_of_a_private_learner_makes_an_equal_one() -> None:
    how = SFT(privacy=Privacy(epsilon=3.0, unit="user"))
    assert SFT(**how.record()) == how and "privacy" not in SFT().record()
