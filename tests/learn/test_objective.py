from __future__ import annotations

from math import exp, log

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.learn.batch import PLAIN, Samples, SamplingRule
from holdfast.learn.objective import Objective, Piece, choose, loss_of, shares

NOTHING = torch.zeros(0, dtype=torch.long)


def samples(lengths: list[int]) -> Samples:
    total = sum(lengths)
    return Samples(
        bounds=np.concatenate(([0], np.cumsum(lengths))), ids=np.zeros(total, np.int32), decided=np.ones(total, bool)
    )


def part(n: int, **streams: torch.Tensor | None) -> Piece:
    blank = dict.fromkeys(
        ("rule", "behaviour", "trainer", "reference", "advantages", "weights", "returns", "values"), None
    )
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
    [{"entropy": -0.1}, {"clone": float("nan")}, {"clip_low": 1.5}, {"constant": 5.0}],
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
