"""The critic of a language model: it learns what states are worth, whatever their width and the size of rewards, and
goes on from where it was."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.learn.critic import Critic, CriticConfig, explained_variance


def states(count: int, width: int, seed: int) -> tuple[Tensor, np.ndarray]:
    """States as a model has them, all alike but for eight directions, of which two decide what they are worth."""
    rng, fixed = np.random.default_rng(seed), np.random.default_rng(99)
    inner = rng.normal(size=(count, 8))
    x = inner @ fixed.normal(size=(8, width)) * 0.3 + fixed.normal(size=width) + 0.1 * rng.normal(size=(count, width))
    return torch.tensor(x, dtype=torch.float32), (inner[:, 0] + 0.5 * inner[:, 1]).astype(np.float32)


def explained(critic: Critic, x: Tensor, returns: np.ndarray) -> float:
    with torch.no_grad():
        found = explained_variance(critic(x).squeeze(-1).numpy(), returns)
    assert found is not None
    return found


@pytest.mark.parametrize("size", [1e-1, 1.0, 1e4])
@pytest.mark.parametrize("width", [32, 128, 1024])
def test_it_explains_states_that_it_has_not_seen_after_some_batches(width: int, size: float) -> None:
    critic = Critic(width)
    x, returns = states(256, width, seed=0)
    assert explained(critic, x, size * returns) == pytest.approx(0.0, abs=1e-6)  # it says 0 of everything
    found = []
    for number in range(1, 13):
        critic.fit(x, size * returns)
        x, returns = states(256, width, seed=number)
        found.append(explained(critic, x, size * returns))
    assert found[-1] > 0.8 and found[-1] > found[0]


def test_its_first_guess_is_the_mean() -> None:
    critic = Critic(8, CriticConfig(learning_rate=1e-9))
    critic.fit(torch.randn(16, 8), np.arange(16, dtype=np.float32))
    assert critic(torch.randn(3, 8)).flatten().tolist() == pytest.approx([7.5] * 3, abs=1e-3)


def test_it_goes_on_bit_by_bit_from_what_was_kept() -> None:
    whole, cut = Critic(8), Critic(8)
    for number in range(2):
        whole.fit(*states(32, 8, seed=number))
    cut.fit(*states(32, 8, seed=0))
    tensors, notes = cut.state()
    resumed = Critic(8)
    resumed.restore(tensors, json.loads(json.dumps(notes)))
    resumed.fit(*states(32, 8, seed=1))
    x, _ = states(4, 8, seed=2)
    assert torch.equal(resumed(x), whole(x)) and not torch.equal(cut(x), whole(x))
    with pytest.raises(BadInput, match="the critic of another model"):
        Critic(4).restore(tensors, notes)


def test_explained_variance_by_hand() -> None:
    """Var(R) = 1, Var(R − V) = ¼."""
    returns = np.asarray([1.0, -1.0], np.float32)
    assert explained_variance(np.asarray([0.5, -0.5], np.float32), returns) == pytest.approx(0.75)
    assert explained_variance(returns + 3.0, returns) == pytest.approx(1.0)  # a bias that GAE's normalising takes away
    assert explained_variance(-returns, returns) == pytest.approx(-3.0)
    assert explained_variance(returns, np.ones(2, np.float32)) is None


@pytest.mark.parametrize("wrong", [{"mode": "joint"}, {"learning_rate": 0.0}, {"epochs": 0}])
def test_what_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(BadInput, match=f"critic.*{next(iter(wrong))}"):
        CriticConfig(**wrong)  # type: ignore[arg-type]
