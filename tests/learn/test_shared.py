from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from holdfast.learn import shared
from holdfast.learn.batch import Sample, Samples, pack, pad, reach
from holdfast.learn.objective import Objective
from holdfast.learn.shared import PrefixGroups, cut_families, pad_families, read_together
from holdfast.learn.train import Settings, Trainer
from holdfast.policies import lm
from holdfast.policies.lm import ModelShape, Transformer

torch.set_num_threads(1)
SHAPE = ModelShape(vocabulary=32, width=16, layers=2, heads=2, context=40)


def group(prompt: list[int], answers: list[list[int]], *, gap: int = 0) -> list[Sample]:
    """Answers to one prompt; with a gap, something undecided and one more decided token follow."""
    found = []
    for number, answer in enumerate(answers):
        ids = [*prompt, *answer, *([1] * gap), *([2] if gap else [])]
        decided = np.zeros(len(ids), bool)
        decided[len(prompt) : len(prompt) + len(answer)] = True
        decided[-1] = True
        returns = np.full(len(ids), np.nan, np.float32)
        returns[[len(prompt) - 1, *([len(ids) - 2] if gap else [])]] = 0.5
        found.append(
            Sample(
                rollout=f"r{number}",
                task="t",
                ids=np.asarray(ids, np.int32),
                action_mask=decided,
                turns=np.where(decided, 0, -1).astype(np.int32),
                logprobs=np.full(len(ids), -3.0, np.float32),
                advantages=np.where(decided, 1.0 - number, 0.0).astype(np.float32),
                returns=returns,
            )
        )
    return found


def batch() -> Samples:
    rng = np.random.default_rng(0)
    long, short = rng.integers(0, 32, 12).tolist(), rng.integers(0, 32, 5).tolist()
    first = group(long, [rng.integers(0, 32, n).tolist() for n in (3, 1, 6, 4)])
    second = group(short, [rng.integers(0, 32, n).tolist() for n in (2, 2, 5)], gap=3)
    return pack([*first, *second, *group([9, 9, 9], [[4, 5]])])


def test_what_begins_alike_is_a_family() -> None:
    samples = batch()
    family = PrefixGroups(samples, reach(samples))
    assert family.of.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    assert family.own.tolist() == [12, 12, 12, 12, 5, 5, 5, 3]
    rest = (2 + 0 + 5 + 3) + (5 + 5 + 8) + 1
    assert family.left == pytest.approx((12 + 5 + 3 + rest) / (4 * 12 + 3 * 5 + 3 + rest))


def test_states_are_those_of_reading_each_sample_by_itself() -> None:
    model, samples = Transformer(SHAPE, seed=0), batch()
    lengths = reach(samples)
    rows = np.arange(len(samples))
    plain, together = pad(samples, rows, lengths), pad_families(samples, PrefixGroups(samples, lengths), rows)
    assert together.targets.tolist() == plain.targets.tolist()
    assert together.beginnings is not None and together.own is not None and together.group is not None
    assert together.ids.size + together.beginnings.size < 0.8 * plain.ids.size
    with torch.no_grad():
        expected = model.hidden(torch.from_numpy(plain.ids)).flatten(0, 1)
        found = read_together(
            model, *(torch.from_numpy(x) for x in (together.beginnings, together.own, together.ids, together.group))
        )
    for ours, theirs in ((together.places, plain.places), (together.value_places, plain.value_places)):
        assert torch.allclose(found[ours], expected[theirs], atol=1e-5)


def gradient(samples: Samples, limit: int, monkeypatch: Any, worth: float) -> torch.Tensor:
    monkeypatch.setattr("holdfast.learn.train.WORTH_IT", worth)
    model = Transformer(SHAPE, seed=0)
    critic = torch.nn.Linear(16, 1)
    torch.nn.init.ones_(critic.weight)
    torch.nn.init.zeros_(critic.bias)
    objective = Objective(entropy=0.01, behaviour_kl=0.1)
    Trainer(model, Settings(objective=objective, max_tokens_per_batch=limit), seed=0, critic=critic).step(samples)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize("limit", [1000, 60, 10, 1])
def test_the_gradient_is_the_same_however_it_is_cut(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = batch()
    whole = gradient(samples, 1000, monkeypatch, 0.0)  # never together
    assert torch.allclose(gradient(samples, limit, monkeypatch, 1.0), whole, atol=1e-6, rtol=1e-4)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=12), st.integers(1, 80))
def test_a_cut_holds_every_sample_once_and_stays_within_the_limit(kin: list[tuple[int, int]], limit: int) -> None:
    samples = pack([group([family] * (family + 2), [[7] * length])[0] for family, length in kin])
    family = PrefixGroups(samples, reach(samples))
    parts = list(cut_families(family, limit))
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(samples)))
    for rows in parts:
        padded = pad_families(samples, family, rows)
        assert padded.beginnings is not None
        assert len(rows) == 1 or padded.ids.size + padded.beginnings.size <= limit


HEADS, HALF, ROWS = 2, 3, 7


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def plain_turn(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = qkv.view(ROWS, 3, HEADS, 2 * HALF).unbind(1)
    return lm.rotate(q, cos[:, None], sin[:, None]), lm.rotate(k, cos[:, None], sin[:, None]), v


def plain_gate(up: Tensor) -> Tensor:
    first, second = up.chunk(2, dim=-1)
    return F.silu(first) * second


def plain_add_norm(x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x + more, lm.norm(x + more, weight)


ANGLE = numbers(ROWS, HALF, seed=9)
Many = Tensor | Sequence[Tensor]


@pytest.mark.parametrize(
    ("ours", "theirs", "inputs"),
    [
        (shared.norm, lm.norm, [numbers(ROWS, 12), numbers(12, seed=1)]),
        (shared.add_norm, plain_add_norm, [numbers(ROWS, 12), numbers(ROWS, 12, seed=2), numbers(12, seed=1)]),
        (
            lambda x: shared.turn(x, ANGLE.cos(), ANGLE.sin(), HEADS),
            lambda x: plain_turn(x, ANGLE.cos(), ANGLE.sin()),
            [numbers(ROWS, 3 * HEADS * 2 * HALF)],
        ),
        (shared.gate, plain_gate, [numbers(ROWS, 20, scale=3.0)]),
        (shared.gate, plain_gate, [numbers(ROWS, 20, scale=60.0)]),  # where the exponential is cut
    ],
)
def test_numbers_and_gradients_are_those_of_the_plain_formula(
    ours: Callable[..., Many], theirs: Callable[..., Many], inputs: list[Tensor]
) -> None:
    results = []
    for function in (ours, theirs):
        given = [x.clone().requires_grad_() for x in inputs]
        out = function(*given)
        outs = [out] if isinstance(out, Tensor) else list(out)
        loss = sum((y * numbers(*y.shape, seed=20 + i)).sum() for i, y in enumerate(outs))
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append([*outs, *(x.grad for x in given)])
    for mine, other in zip(*results, strict=True):
        assert mine is not None and other is not None
        assert torch.allclose(mine, other, atol=2e-5, rtol=2e-5)


def test_gradients_that_come_in_another_layout_are_read_right() -> None:
    x = numbers(4, 6).requires_grad_()
    shared.gate(x).t().contiguous().square().sum().backward()  # type: ignore[no-untyped-call]
    y = x.detach().clone().requires_grad_()
    plain_gate(y).square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and y.grad is not None and torch.allclose(x.grad, y.grad, atol=1e-5)
