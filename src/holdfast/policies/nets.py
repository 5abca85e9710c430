"""Actor-critic networks for environments: what to do, and what it is worth, from a vector of numbers.

Feed-forward or with a memory (GRU); a choice among actions, some of which may be forbidden, or a vector of numbers
(diagonal Gaussian). How the parameters get better is left to `learn.ppo`, and language models to `policies.lm`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import log, pi
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.contracts.envs import Bools, Choose, Observation, Spaces
from holdfast.contracts.errors import BadInput

HALF_LOG_TAU = 0.5 * log(2.0 * pi)
DRAWS = 0  # the seed of what a policy draws when it is measured or serves
FIRST_LOG_STD = -0.5  # of a continuous policy: wide enough to explore, narrow enough to stay within usual bounds


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The size and kind of a network."""

    observation: int  # numbers seen
    actions: int  # how many to choose among, or how many numbers to give
    continuous: bool = False
    width: int = 64
    memory: bool = False  # a GRU between what is seen and what is decided

    def __post_init__(self) -> None:
        for name in ("observation", "actions", "width"):
            if getattr(self, name) < 1:
                raise BadInput(f"body.{name} = {getattr(self, name)}", why="must be at least 1")


@dataclass(frozen=True, slots=True)
class ActionDistribution:
    """Categorical: log p = logits − log Σ exp(logits); a forbidden action has −inf, so exactly no chance."""

    log_p: Tensor  # [..., A], normalised

    def log_prob(self, actions: Tensor) -> Tensor:
        return self.log_p.gather(-1, actions.long().unsqueeze(-1)).squeeze(-1)

    def entropy(self) -> Tensor:
        # exp(−inf) · −inf is not a number, and neither is its gradient: forbidden actions are cut off before.
        kept = self.log_p.clamp_min(torch.finfo(self.log_p.dtype).min)
        return -(self.log_p.exp() * kept).sum(-1)

    def draw(self, rng: np.random.Generator) -> NDArray[np.int64]:
        log_p = self.log_p.detach().cpu().numpy()
        actions: NDArray[np.int64] = _inverse_cdf(log_p, rng.random((len(log_p),)))
        return actions

    def best(self) -> NDArray[np.int64]:
        return self.log_p.argmax(-1).cpu().numpy()


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Diagonal normal: log p = −Σ (½ ((a − μ) / σ)² + log σ + ½ log 2π)."""

    mean: Tensor  # [..., D]
    log_std: Tensor  # [D], the same everywhere

    def log_prob(self, actions: Tensor) -> Tensor:
        z = (actions - self.mean) * (-self.log_std).exp()
        return -(0.5 * z * z + self.log_std + HALF_LOG_TAU).sum(-1)

    def entropy(self) -> Tensor:
        return (self.log_std + 0.5 + HALF_LOG_TAU).sum(-1).expand(self.mean.shape[:-1])

    def draw(self, rng: np.random.Generator) -> NDArray[np.float32]:
        noise = rng.standard_normal(self.mean.shape, dtype=np.float32)
        actions: NDArray[np.float32] = self.best() + noise * np.exp(self.log_std.detach().cpu().numpy())
        return actions

    def best(self) -> NDArray[np.float32]:
        return self.mean.detach().cpu().numpy()


class ActorCritic(nn.Module):
    """Two towers of two tanh layers, one for what to do and one for its worth; with a memory, a GRU below both.

    Orthogonal weights as usual for PPO: gain √2 in the towers, 0.01 for the decision (so that at first everything is
    about equally likely), 1 for the value."""

    def __init__(self, body: Body, *, seed: int) -> None:
        super().__init__()
        self.body = body
        chance = torch.Generator().manual_seed(seed)
        seen = body.width if body.memory else body.observation
        self.gru = nn.GRUCell(body.observation, body.width) if body.memory else None
        self.actor = _tower(seen, body.width, body.actions)
        self.critic = _tower(seen, body.width, 1)
        self.log_std = nn.Parameter(torch.full((body.actions,), FIRST_LOG_STD)) if body.continuous else None
        with torch.no_grad():
            for tower, gain in ((self.actor, 0.01), (self.critic, 1.0)):
                for layer in (tower[0], tower[2], tower[4]):
                    assert isinstance(layer, nn.Linear)
                    nn.init.orthogonal_(layer.weight, gain if layer is tower[4] else 2.0**0.5, generator=chance)
                    layer.bias.zero_()
            if self.gru is not None:
                for weight in (self.gru.weight_ih, self.gru.weight_hh):
                    for gate in weight.chunk(3):
                        nn.init.orthogonal_(gate, generator=chance)
                self.gru.bias_ih.zero_()
                self.gru.bias_hh.zero_()

    @property
    def value_head(self) -> nn.Linear:
        """The layer the value comes from; who changes the value's scale adjusts it."""
        head = self.critic[4]
        assert isinstance(head, nn.Linear)
        return head

    def begin(self, count: int) -> Tensor:
        """What `count` fresh episodes remember: nothing. [B, H], with H = 0 for a network without memory."""
        return torch.zeros(count, self.body.width if self.gru is not None else 0, device=self.value_head.weight.device)

    def remember(self, observations: Tensor, hidden: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """[T, B, O] as the towers see it, and the memory after each step [T, B, H]; `first` [T, B] wipes it before."""
        if self.gru is None:
            return observations, hidden.expand(*observations.shape[:-1], 0)
        states = []
        keep = (~first).unsqueeze(-1)
        for seen, kept in zip(observations.unbind(), keep.unbind(), strict=True):
            hidden = self.gru(seen, hidden * kept)
            states.append(hidden)
        memory = torch.stack(states)
        return memory, memory

    def decide(self, features: Tensor, mask: Tensor | None = None) -> ActionDistribution | Gaussian:
        """What to do, from features [..., F]; `mask` [..., A] is True where an action is allowed."""
        out = self.actor(features)
        if self.log_std is not None:
            return Gaussian(out, self.log_std)
        if mask is not None:
            out = out.masked_fill(~mask, -torch.inf)
        return ActionDistribution(out.log_softmax(-1))

    def value(self, features: Tensor) -> Tensor:
        """What is still to come, from features [..., F]: [...]."""
        worth: Tensor = self.critic(features)
        return worth.squeeze(-1)


def action_distribution(
    net: ActorCritic, view: Observation, hidden: Tensor, first: Bools
) -> tuple[ActionDistribution | Gaussian, Tensor]:
    """The policy for the current observation, and the memory after it."""
    device = hidden.device
    seen = torch.from_numpy(view.values).to(device)
    mask = None if view.mask is None else torch.from_numpy(view.mask).to(device)
    if net.gru is None:
        return net.decide(seen, mask), hidden
    features, states = net.remember(seen[None], hidden, torch.from_numpy(first).to(device)[None])
    return net.decide(features[0], mask), states[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """For networks of this size: several threads are slower, and give different bits on different machines."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Playing:
    """A network's choices in many environments side by side, drawn where there is a generator, with its memory of each
    episode so far."""

    def __init__(self, net: ActorCritic, count: int, rng: np.random.Generator | None) -> None:
        self._net, self._rng = net, rng
        self.hidden = net.begin(count)  # [B, H], before what is seen next; an episode that begins there wipes its own

    def __call__(self, observation: Observation, first: Bools, /) -> NDArray[Any]:
        with torch.no_grad(), one_thread():
            policy, self.hidden = action_distribution(self._net, observation, self.hidden, first)
            return policy.best() if self._rng is None else policy.draw(self._rng)


class Acting:
    """A network that acts, in one environment or in many side by side: by what it takes for best, or by drawing. Its
    chance begins anew with each `reset` or `many`, so that the same environments see the same draws."""

    def __init__(self, net: ActorCritic, spaces: Spaces, *, sampled: bool = False) -> None:
        self._net, self._spaces, self._sampled = net, spaces, sampled
        self._choose, self._first = self.many(1), np.ones(1, np.bool_)

    def __call__(self, observation: Any, mask: Any = None) -> Any:
        """As the action space has it: a choice, or numbers within its bounds. A mask has True where one is allowed."""
        spaces = self._spaces
        seen = Observation(self._vector(observation)[None], None if mask is None else np.asarray(mask, np.bool_)[None])
        [chosen] = self._choose(seen, self._first)
        self._first = np.zeros(1, np.bool_)
        if not spaces.continuous:
            return int(chosen) + spaces.start
        return np.clip(chosen, spaces.low, spaces.high) if spaces.low else chosen

    def reset(self) -> None:
        self._choose, self._first = self.many(1), np.ones(1, np.bool_)

    def many(self, count: int) -> Choose:
        return Playing(self._net, count, np.random.default_rng(DRAWS) if self._sampled else None)

    def _vector(self, observation: Any) -> NDArray[np.float32]:
        """An observation of any shape as the network sees it; one of n things is a one among zeros."""
        size = self._spaces.observation
        if isinstance(observation, int | np.integer) and size > 1 and 0 <= observation < size:
            vector = np.zeros(size, np.float32)
            vector[int(observation)] = 1.0
            return vector
        try:
            vector = np.asarray(observation, np.float32).ravel()
        except (TypeError, ValueError):
            vector = np.zeros(0, np.float32)
        if vector.size != size:
            remedy = "flatten it as gymnasium.spaces.flatten does"
            raise BadInput("an observation", why=f"is not made of {size} numbers", remedy=remedy)
        return vector


def _tower(seen: int, width: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, out))


@numba.njit(cache=True)
def _inverse_cdf(log_p: NDArray[np.float32], uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """The first action whose cumulative probability exceeds u; one with no probability never does."""
    rows, actions = log_p.shape
    chosen = np.empty(rows, np.int64)
    for row in range(rows):
        total = 0.0
        for action in range(actions):
            total += np.exp(np.float64(log_p[row, action]))
        threshold, below = uniform[row] * total, 0.0
        chosen[row] = -1
        for action in range(actions):
            p = np.exp(np.float64(log_p[row, action]))
            below += p
            if p > 0.0:
                chosen[row] = action  # the last possible one, should rounding leave the threshold above all of them
                if below > threshold:
                    break
    return chosen
