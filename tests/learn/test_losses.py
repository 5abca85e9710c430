from __future__ import annotations

from collections.abc import Callable
from math import exp, log
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.learn.batch import PLAIN, Samples, SamplingRule
from holdfast.learn.objective import (
    Objective,
    Piece,
    choose,
    clipped_surrogate,
    importance_weight,
    kl,
    loss_of,
    ppo_terms,
    shares,
    value_loss,
)

COSTS = {"clip": 0.2, "value_cost": 0.5, "entropy_cost": 0.01}
CASE_A = [(-0.2, -0.1, 1.0, 1.2, 1.0, 0.7), (-0.3, -0.6, -0.5, -0.2, 0.1, 0.5)]  # old, new, A, R, V, H
CASE_B = [(-1.0, -0.1, 0.5, 0.2, 0.1, 0.3), (-0.1, -1.2, -0.7, -0.4, -0.2, 0.25)]


def t(*numbers: Any) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def same(found: Tensor, expected: Any) -> None:
    assert_allclose(found.detach().numpy(), np.asarray(expected), rtol=0.0, atol=1e-12)


def random(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


# --- ppo_terms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("samples", "policy", "value", "spread", "total", "ratio", "clipped", "approx_kl"),
    [
        (CASE_A, -0.35258545903782385, 0.0325, 0.6, -0.34233545903782384, 0.9229945693786827, 0.5, 0.025),
        (CASE_B, -0.02, 0.0125, 0.275, -0.0165, 1.3962370974275147, 1.0, 0.505),
    ],
)
def test_ppo_of_two_samples_is_the_one_worked_by_hand(
    samples: Any,
    policy: float,
    value: float,
    spread: float,
    total: float,
    ratio: float,
    clipped: float,
    approx_kl: float,
) -> None:
    old, new, advantages, returns, values, entropies = (t(*column) for column in zip(*samples, strict=True))
    terms = ppo_terms(new, old, advantages, values, returns, entropies, **COSTS)
    same(torch.stack(terms), [policy, value, spread, total, approx_kl, clipped, ratio])
    dear = ppo_terms(new, old, advantages, values, returns, entropies, clip=0.2, value_cost=2.0, entropy_cost=0.5)
    same(dear.total, policy + 2.0 * value - 0.5 * spread)


def test_a_ratio_outside_the_range_counts_as_clipped_even_where_it_still_has_a_gradient() -> None:
    # ρ = e > 1.2 with A < 0: the loss pulls it back, so nothing is taken away, but the policy has moved too far
    new, old = t(0.0), t(-1.0)
    assert not clipped_surrogate(new, old, t(-1.0)).clipped.any()
    assert ppo_terms(new, old, t(-1.0), t(0.0), t(0.0), t(0.0), **COSTS).clip_fraction == 1.0


# --- the surrogate -----------------------------------------------------------------------------------------------


def test_the_clip_is_asymmetric_and_says_where_it_took_the_gradient_away() -> None:
    ratios, advantages = t(1.25, 1.35, 0.85, 0.5, 1.35, 0.5), t(1.0, 1.0, 1.0, -2.0, -2.0, 1.0)
    new = ratios.log().requires_grad_()
    loss, ratio, clipped = clipped_surrogate(new, torch.zeros_like(new), advantages, low=0.2, high=0.3)
    same(ratio, ratios)
    same(loss, [-1.25, -1.3, -0.85, 1.6, 2.7, -0.5])
    assert clipped.tolist() == [False, True, False, True, False, False]
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    same(gradient, [-1.25, 0.0, -0.85, 0.0, 2.7, -0.5])  # −ρA where not clipped


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_policy_that_ran_away_still_gives_finite_losses_and_gradients(dtype: torch.dtype) -> None:
    new = torch.tensor([0.0, 0.0, -1000.0, -1000.0, 0.0], dtype=dtype, requires_grad=True)
    old = torch.tensor([-1000.0, -1000.0, 0.0, 0.0, -1000.0], dtype=dtype)
    loss = clipped_surrogate(new, old, torch.tensor([1.0, -1.0, 1.0, -1.0, 0.0], dtype=dtype)).loss
    (gradient,) = torch.autograd.grad(loss.sum(), new)
    assert loss.dtype == dtype and loss.isfinite().all() and gradient.isfinite().all()


# --- value, entropy, kl, weights ---------------------------------------------------------------------------------


def test_the_value_loss_and_the_two_estimates_of_the_divergence() -> None:
    same(value_loss(t(1.0, 3.0, 0.0), t(0.0, 2.0, 2.0)), [0.5, 0.5, 2.0])
    new, ref = t(-1.0, -2.0), t(-1.5, -1.0)
    same(kl(new, ref, how="k2"), [0.125, 0.5])
    same(kl(new, ref, how="k3"), [exp(-0.5) - 0.5, exp(1.0) - 2.0])


def test_k3_is_exact_on_average_and_so_is_the_gradient_of_k2() -> None:
    new_logits, ref_logits = random(8, 5).requires_grad_(), random(9, 5)
    new, ref = torch.log_softmax(new_logits, -1), torch.log_softmax(ref_logits, -1)
    p = new.exp().detach()
    true = (new.exp() * (new - ref)).sum()
    same((p * kl(new, ref, how="k3")).sum(), true.item())
    (wanted,) = torch.autograd.grad(true, new_logits, retain_graph=True)
    (found,) = torch.autograd.grad((p * kl(new, ref, how="k2")).sum(), new_logits)
    same(found, wanted.numpy())


# Each of six numbers x and of three fixed ones beside them.
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "surrogate": lambda x, old, a, r: clipped_surrogate(x, old, a, low=0.2, high=0.4).loss,
    "value": lambda x, old, a, r: value_loss(x, r),
    "k2": lambda x, old, a, r: kl(x, old, how="k2"),
    "k3": lambda x, old, a, r: kl(x, old, how="k3"),
    "total": lambda x, old, a, r: ppo_terms(x, old, a, 2.0 * x, r, x, **COSTS).total,
}


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_finite_differences_and_float32_stays_float32(name: str) -> None:
    x, *beside = (random(seed, 6) for seed in (10, 11, 12, 13))
    assert torch.autograd.gradcheck(LOSSES[name], (x.requires_grad_(), *beside))
    single = LOSSES[name](*(tensor.float() for tensor in (x, *beside)))
    assert single.dtype == torch.float32
    assert_allclose(single.detach(), LOSSES[name](x, *beside).detach(), rtol=1e-5, atol=1e-6)


def test_importance_weights_are_capped_and_carry_no_gradient() -> None:
    trainer = t(0.0, -1.0, -3.0).requires_grad_()
    weights = importance_weight(trainer, t(-2.0, -1.0, -2.0), cap=3.0)
    same(weights, [3.0, 1.0, exp(-1.0)])
    assert not weights.requires_grad


# --- refusals ----------------------------------------------------------------------------------------------------

N, COLUMN = torch.zeros(3), torch.zeros(3, 1)
REFUSED: dict[str, Callable[[], Any]] = {
    "old of another shape": lambda: clipped_surrogate(N, COLUMN, N),
    "advantages of another shape": lambda: clipped_surrogate(N, N, COLUMN),
    "values as a column": lambda: value_loss(COLUMN, N),
    "kl of two shapes": lambda: kl(N, COLUMN),
    "weights of two shapes": lambda: importance_weight(N, COLUMN),
    "a cap below 1": lambda: importance_weight(N, N, cap=0.5),
    "a low clip above 1": lambda: clipped_surrogate(N, N, N, low=1.1),
    "entropies as a column": lambda: ppo_terms(N, N, N, N, N, COLUMN, **COSTS),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_broadcast_or_be_guessed_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()


NOTHING = torch.zeros(0, dtype=torch.long)


def samples(lengths: list[int]) -> Samples:
    total = sum(lengths)
    return Samples(
        bounds=np.concatenate(([0], np.cumsum(lengths))),
        ids=np.zeros(total, np.int32),
        action_mask=np.ones(total, bool),
    )


def part(n: int, **streams: torch.Tensor | None) -> Piece:
    blank = dict.fromkeys(("rule", "behaviour", "trainer", "reference", "advantages", "weights", "returns"), None)
    zeros = torch.zeros(n, dtype=torch.long)
    given = {"share": torch.full((n,), 1.0 / n), **blank, **streams}
    return Piece(ids=zeros, places=zeros, targets=zeros, value_places=NOTHING, **given)  # type: ignore[arg-type]


def test_tokens_weigh_the_same_or_sequences_do() -> None:
    batch, marks = samples([3, 1]), np.array([False, True, True, True])
    assert shares(batch, marks, Objective()).tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])
    each = shares(batch, marks, Objective(aggregate="sequence"))
    assert each.tolist() == pytest.approx([0, 1 / 4, 1 / 4, 1 / 2])
    fixed = shares(batch, marks, Objective(aggregate="sequence_norm_constant", constant=10.0))
    assert fixed.tolist() == pytest.approx([0, 1 / 20, 1 / 20, 1 / 20])


def test_a_sequence_without_a_decision_does_not_count() -> None:
    batch, marks = samples([2, 2]), np.array([False, True, False, False])
    assert shares(batch, marks, Objective(aggregate="sequence")).tolist() == [0, 1, 0, 0]


def test_log_probs_are_those_of_the_sampling_in_force() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.0]])
    rules = (PLAIN, SamplingRule(temperature=0.5), SamplingRule(top_k=2, banned=(0,)))
    logp, entropy = choose(logits, torch.tensor([0, 0, 1]), rules, torch.tensor([0, 1, 2]))
    total = exp(2) + exp(1) + 1
    assert logp[0].item() == pytest.approx(2 - log(total), abs=1e-6)
    assert logp[1].item() == pytest.approx(4 - log(exp(4) + exp(2) + 1), abs=1e-6)
    assert logp[2].item() == pytest.approx(1 - log(exp(1) + 1), abs=1e-6)  # 1 and 2 are left
    p = [exp(2) / total, exp(1) / total, 1 / total]
    assert entropy[0].item() == pytest.approx(-sum(q * log(q) for q in p), abs=1e-6)


def test_every_term_is_a_weight_over_the_same_tokens() -> None:
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    mine = part(
        2,
        behaviour=torch.tensor([-1.1, -2.0]),
        reference=torch.tensor([-1.0, -1.0]),
        advantages=torch.tensor([1.0, 0.0]),
        weights=torch.tensor([0.0, 3.0]),
    )
    objective = Objective(reference_kl=0.5, behaviour_kl=2.0, entropy=0.1)
    tally = loss_of(mine, logp, torch.tensor([0.3, 0.5]), None, objective, 0)
    surrogate, clone = -exp(0.1) / 2, 3.0 * 2.0 / 2
    reference, near, spread = (exp(1) - 1 - 1) / 2, 0.5 * 0.01 / 2, 0.4
    found = dict(zip(("surrogate", "clone", "reference", "near", "spread"), tally.sums.tolist(), strict=False))
    assert found == pytest.approx(
        {"surrogate": surrogate, "clone": clone, "reference": reference, "near": near, "spread": spread}, abs=1e-6
    )
    total = surrogate + clone + 0.5 * reference + 2.0 * near - 0.1 * spread
    assert tally.loss.item() == pytest.approx(total, abs=1e-6)


def test_without_known_log_probs_the_ratio_is_one() -> None:
    logp = torch.tensor([-1.0, -2.0], requires_grad=True)
    mine = part(2, behaviour=torch.tensor([float("nan"), -2.0]), advantages=torch.tensor([1.0, 1.0]))
    tally = loss_of(mine, logp, torch.zeros(2), None, Objective(), 0)
    tally.loss.backward()  # type: ignore[no-untyped-call]
    assert tally.loss.item() == pytest.approx(-1.0)
    assert logp.grad is not None and logp.grad.tolist() == pytest.approx([-0.5, -0.5])


def test_sampler_and_trainer_are_reconciled_up_to_a_cap() -> None:
    logp = torch.tensor([-1.0, -1.0], requires_grad=True)
    behaviour = torch.tensor([-1.5, -9.0])
    mine = part(2, behaviour=behaviour, trainer=torch.tensor([-1.0, -1.0]), advantages=torch.ones(2))
    tally = loss_of(mine, logp, torch.zeros(2), None, Objective(importance_cap=2.0), 0)
    assert tally.loss.item() == pytest.approx(-(exp(0.5) + 2.0) / 2, abs=1e-6)  # ratios to the trainer are 1


def test_what_could_not_be_sampled_has_no_gradient_and_is_counted() -> None:
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    logp, entropy = choose(logits, torch.tensor([0, 1]), (SamplingRule(banned=(0,)),), None)
    mine = part(2, behaviour=torch.tensor([-1.0, -1.0]), advantages=torch.tensor([1.0, 1.0]))
    tally = loss_of(mine, logp, entropy, None, Objective(), 0)
    tally.loss.backward()  # type: ignore[no-untyped-call]
    assert tally.sums[-1].item() == 1.0
    assert logits.grad is not None and logits.grad.isfinite().all() and not logits.grad[0].any()


def test_the_critic_is_judged_over_all_targets_of_the_batch() -> None:
    mine = part(1, returns=torch.tensor([1.0, 3.0]))
    tally = loss_of(mine, torch.tensor([-1.0]), torch.zeros(1), torch.tensor([0.0, 1.0]), Objective(value=0.5), 4)
    assert tally.loss.item() == pytest.approx(0.5 * (0.5 * 1 + 0.5 * 4) / 4)


@pytest.mark.parametrize(
    "wrong",
    [
        {"entropy": -0.1},
        {"value": float("nan")},
        {"clip_low": 1.5},
        {"clip_low": -0.1},
        {"clip_high": -1.0},
        {"constant": 5.0},
    ],
)
def test_impossible_objectives_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        Objective(**wrong)  # type: ignore[arg-type]


def test_what_could_not_be_sampled_and_nobody_told_counts_nowhere() -> None:
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0]], requires_grad=True)
    rule = SamplingRule(banned=(0, 7))  # there is no token 7 to ban
    logp, entropy = choose(logits, torch.tensor([0, 1]), (rule,), None)
    mine = part(2, advantages=torch.tensor([1.0, 1.0]), weights=torch.tensor([1.0, 1.0]))
    tally = loss_of(mine, logp, entropy, None, Objective(), 0)
    tally.loss.backward()  # type: ignore[no-untyped-call]
    assert tally.loss.isfinite() and tally.sums.isfinite().all()
    assert logits.grad is not None and logits.grad.isfinite().all()
