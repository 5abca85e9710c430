"""Proximal policy optimization in environments: play, estimate, improve, again; Schulman et al. 2017, arXiv:1707.06347.

`Player` plays steps in many environments at once, `Costs` estimates what is still to be paid under a constraint with a
critic of its own (a value that mixes cost and reward is wrong as soon as λ moves), `PPO` learns. The mathematics are
in `returns`, `objective` and `constrain`. How long to train, and whether the result is good, is decided by the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from holdfast.contracts.envs import Bools, Floats, VectorEnv, packed, unpacked
from holdfast.contracts.errors import BadInput
from holdfast.learn.constrain import Constraint, Multiplier, combine
from holdfast.learn.objective import Terms, kl, ppo_terms
from holdfast.learn.returns import gae, normalise
from holdfast.policies.nets import ActionDistribution, ActorCritic, action_distribution

RECENT = 100  # episodes that the mean return is taken over


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """T steps in B environments. Where an episode ended, the next row is the first of another."""

    observations: Floats  # [T, B, O]
    masks: Bools | None  # [T, B, A]
    first: Bools  # [T, B]; an episode begins with this observation
    actions: NDArray[Any]  # [T, B] of int64, or [T, B, D] of float32
    rewards: Floats  # [T, B]
    terminated: Bools  # [T, B]
    truncated: Bools  # [T, B]
    finals: Floats  # [T, B, O]; what was last seen, where truncated
    last: Floats  # [B, O]; what is seen after the last row
    hidden: Tensor  # [B, H]; what was remembered before the first row
    costs: Floats | None = None  # [T, B]; None: the environments have none


class Player:
    """Plays without end: each call continues where the last one stopped, in the middle of episodes."""

    def __init__(self, worlds: VectorEnv, net: ActorCritic, *, seed: int, env_seed: int | None = None) -> None:
        check_fit(worlds, net)
        self.worlds, self.net = worlds, net
        world_seed, chance = np.random.SeedSequence(seed).spawn(2)
        self._rng = np.random.default_rng(chance)
        self._view = worlds.reset(int(world_seed.generate_state(1)[0]) if env_seed is None else env_seed)
        self._first = np.ones(worlds.count, np.bool_)
        self._hidden = net.begin(worlds.count)
        self._so_far = np.zeros(worlds.count)  # return of each running episode
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.episodes = 0  # ended so far

    @property
    def mean_return(self) -> float | None:
        """Of the last 100 episodes; None before the first has ended."""
        return float(np.mean(self._recent)) if self._recent else None

    def play(self, steps: int) -> Played:
        count, spaces = self.worlds.count, self.worlds.spaces
        shape = (steps, count)
        observations, finals = np.empty((2, *shape, spaces.observation), np.float32)
        masks = None if self._view.mask is None else np.empty((*shape, spaces.actions), np.bool_)
        actions = np.empty((*shape, spaces.actions), np.float32) if spaces.continuous else np.empty(shape, np.int64)
        rewards = np.empty(shape, np.float32)
        first, terminated, truncated = np.empty((3, *shape), np.bool_)
        hidden, costs = self._hidden, None
        with torch.no_grad():
            for t in range(steps):
                observations[t], first[t] = self._view.values, self._first
                if masks is not None:
                    masks[t] = self._view.mask
                actions[t] = self._act()
                result = self.worlds.step(actions[t])
                rewards[t], terminated[t], truncated[t] = result.reward, result.terminated, result.truncated
                finals[t] = result.final
                if result.cost is not None:
                    costs = np.zeros(shape, np.float32) if costs is None else costs
                    costs[t] = result.cost
                self._view, self._first = result.observation, terminated[t] | truncated[t]
                self._count(result.reward)
        return Played(
            observations=observations,
            masks=masks,
            first=first,
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            finals=finals,
            last=self._view.values.copy(),
            hidden=hidden,
            costs=costs,
        )

    def state(self) -> dict[str, Tensor]:
        """All it takes to go on from here, the environments included; the network is not."""
        kept = {
            "first": self._first,
            "so_far": self._so_far,
            "recent": np.array(self._recent),
            "episodes": np.array(self.episodes),
            "rng": packed(self._rng),
            **{f"worlds.{name}": array for name, array in self.worlds.state().items()},
        }
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in kept.items()}
        return tensors | {"hidden": self._hidden.cpu().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._view = self.worlds.restore(
            {name.removeprefix("worlds."): kept.numpy() for name, kept in state.items() if name.startswith("worlds.")}
        )
        self._first = state["first"].numpy().copy()
        self._so_far = state["so_far"].numpy().copy()
        self._recent = deque(state["recent"].tolist(), maxlen=RECENT)
        self.episodes = int(state["episodes"])
        self._hidden = state["hidden"].to(self._hidden)
        self._rng.bit_generator.state = unpacked(state["rng"].numpy())

    def _act(self) -> NDArray[Any]:
        policy, self._hidden = action_distribution(self.net, self._view, self._hidden, self._first)
        return policy.draw(self._rng)

    def _count(self, reward: NDArray[np.float64]) -> None:
        self._so_far += reward
        if self._first.any():
            ended = self._so_far[self._first]
            self._recent.extend(ended.tolist())
            self.episodes += ended.size
            self._so_far[self._first] = 0.0


def check_fit(worlds: VectorEnv, net: ActorCritic) -> None:
    body, spaces = net.body, worlds.spaces
    if (body.observation, body.actions, body.continuous) != (spaces.observation, spaces.actions, spaces.continuous):
        raise BadInput(f"a network with {body}", why=f"the environment has {spaces}", remedy="make one for its spaces")


RATE, FITS = 3e-3, 8  # steps of Adam on all that was played: a critic that lags is a biased one
PREFIX = "costs."


class Costs:
    """The cost critic, the multiplier, and the state to resume both."""

    def __init__(self, net: ActorCritic, constraint: Constraint, *, seed: int) -> None:
        self.constraint, self.multiplier = constraint, Multiplier()
        self.spent: float | None = None  # by an episode of the last batch; None: none ended in it
        body = net.body
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seen = body.width if body.memory else body.observation
            self._critic = nn.Sequential(nn.Linear(seen, body.width), nn.Tanh(), nn.Linear(body.width, 1))
        self._critic.to(net.value_head.weight.device)
        self._adam = torch.optim.Adam(self._critic.parameters(), lr=RATE)

    def worth(self, features: Tensor) -> NDArray[np.float32]:
        """The expected remaining cost, from features [..., F]."""
        with torch.no_grad():
            said: NDArray[np.float32] = self._critic(features).squeeze(-1).cpu().numpy()
        return said

    def update_multiplier(self, played: Played) -> None:
        """Updates the multiplier from the mean cost of an episode.

        The cost of an episode is all that was paid by the episodes that ended: with many side by side, those that are
        still open at the end make up for those that were open before."""
        assert played.costs is not None
        ended = int((played.terminated | played.truncated).sum())
        self.spent = float(played.costs.sum(dtype=np.float64)) / ended if ended else None
        if self.spent is not None:
            self.multiplier = self.multiplier.updated(self.spent, self.constraint)

    def fit(self, features: Tensor, returns: NDArray[Any]) -> None:
        """Move the critic towards what was paid."""
        seen, wanted = features.detach().flatten(0, 1), torch.from_numpy(np.ascontiguousarray(returns)).flatten()
        for _ in range(FITS):
            self._adam.zero_grad()
            loss = (self._critic(seen).squeeze(-1) - wanted.to(seen)).square().mean()
            loss.backward()
            self._adam.step()

    def state(self) -> dict[str, Tensor]:
        kept = {
            f"{PREFIX}critic.{name}": tensor.detach().cpu().clone()
            for name, tensor in self._critic.state_dict().items()
        }
        for place, moments in self._adam.state_dict()["state"].items():
            kept |= {f"{PREFIX}adam.{place}.{name}": tensor.detach().cpu().clone() for name, tensor in moments.items()}
        held = self.multiplier
        numbers = [held.value, held.integral, held.violation, held.cost, held.seen]
        return kept | {f"{PREFIX}multiplier": torch.tensor(numbers, dtype=torch.float64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        mine = {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}
        critic = {name.removeprefix("critic."): tensor for name, tensor in mine.items() if name.startswith("critic.")}
        if "multiplier" not in mine or set(critic) != set(self._critic.state_dict()):
            raise BadInput("the state to go on from", why="holds no constraint", remedy="give one of the same settings")
        self._critic.load_state_dict(critic)
        payload = self._adam.state_dict()
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in mine.items():
            if name.startswith("adam."):
                _, place, what = name.split(".")
                moments.setdefault(int(place), {})[what] = tensor.clone()
        self._adam.load_state_dict({**payload, "state": moments})
        value, integral, violation, cost, seen = mine["multiplier"].tolist()
        self.multiplier = Multiplier(value=value, integral=integral, violation=violation, cost=cost, seen=int(seen))


EXPLODED = 1.0  # nats of approximate KL: no useful update goes as far in one go
SLOWEST = 0.05  # the least a batch of returns weighs in the running scale of the value
LEAST = 1e-4  # variance of the returns below which they are not blown up any further

ANCHORED = "anchor.hidden"  # in the learner's state
METRICS = ("policy", "value", "entropy", "approx_kl", "clip_fraction")
KL = METRICS.index("approx_kl")

Normalised = Literal["advantages", "values"]
Worth = Callable[[Tensor], NDArray[Any]]  # what features [..., F] are worth, [...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    steps: int = 64  # played in each environment before an update
    epochs: int = 4  # passes over what was played
    minibatch: int = 1024  # samples a gradient step sees
    accumulate: int = 1  # parts it is computed in where memory is short; the step stays the same
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    lr: float = 3e-3
    lr_end: float = 1e-3  # reached in a straight line after `updates`, and kept
    updates: int = 100
    grad_limit: float = 0.5  # norm of the gradient beyond which it is scaled down
    kl_limit: float = 0.03  # nats of approximate KL at which the epochs end, in the middle of one if need be
    normalise: tuple[Normalised, ...] = ("advantages", "values")

    def __post_init__(self) -> None:
        for name in ("steps", "epochs", "minibatch", "accumulate", "updates"):
            _require(self, name, getattr(self, name) >= 1, "must be at least 1")
        for name in ("gamma", "lam"):
            _require(self, name, 0.0 <= getattr(self, name) <= 1.0, "must be between 0 and 1")
        for name in ("clip", "lr", "grad_limit", "kl_limit"):
            _require(self, name, getattr(self, name) > 0.0, "must be above 0")
        for name in ("value_cost", "entropy_cost", "lr_end"):
            _require(self, name, getattr(self, name) >= 0.0, "must not be negative")
        _require(self, "minibatch", self.minibatch >= self.accumulate, "has fewer samples than parts")
        _require(self, "normalise", {*self.normalise} <= {"advantages", "values"}, "knows advantages and values")


def _require(settings: Settings, name: str, holds: bool, why: str) -> None:
    if not holds:
        raise BadInput(f"ppo.{name} = {getattr(settings, name)}", why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one update saw and did; losses, entropy, clip fraction and norm are means over its minibatches, and not
    finite where that is why it was undone."""

    number: int  # from 1
    step: int  # environment steps played so far
    episodes: int  # ended so far
    mean_return: float | None  # of the last 100 episodes; None before the first has ended
    policy_loss: float
    value_loss: float
    entropy: float
    clip_fraction: float
    kl: float  # from before the update to after it, over all it learnt from
    grad_norm: float  # before it was limited
    lr: float
    gradient_steps: int
    stopped_early: bool  # by kl_limit
    restored: str | None  # why the update was undone: the parameters are those from before it
    cost: float | None = None  # of an episode, in this batch; None: nothing is constrained, or no episode ended
    multiplier: float | None = None  # what a unit of it weighed against one of reward


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """What is learnt from: [N, ...] rows; for a network with memory [T, B, ...], each column an unbroken sequence."""

    observations: Tensor
    actions: Tensor
    log_p: Tensor  # of the actions, by the policy that took them
    advantages: Tensor
    returns: Tensor  # on the scale of the value head
    masks: Tensor | None
    first: Tensor
    hidden: Tensor  # [B, H] before the first row; [N, 0] without memory
    anchor: Tensor | None = None  # [..., A]; log-probs of the policy that it is held to

    def shuffled(self, order: Tensor, axis: int) -> TrainingBatch:
        return self._cut(lambda tensor, along: tensor.index_select(along, order), axis)

    def part(self, start: int, size: int, axis: int) -> TrainingBatch:
        return self._cut(lambda tensor, along: tensor.narrow(along, start, size), axis)

    def _cut(self, cut: Callable[[Tensor, int], Tensor], axis: int) -> TrainingBatch:
        along = {field.name: axis for field in fields(self)} | {"hidden": 0}
        tensors = {name: getattr(self, name) for name in along}
        parts: dict[str, Any] = {name: None if x is None else cut(x, along[name]) for name, x in tensors.items()}
        return TrainingBatch(**parts)


def rows(batch: TrainingBatch) -> TrainingBatch:
    """[T, B, ...] as [T · B, ...]: without memory, a step is understood by itself."""
    tensors = {field.name: getattr(batch, field.name) for field in fields(batch)}
    flat: dict[str, Any] = {name: None if tensor is None else tensor.flatten(0, 1) for name, tensor in tensors.items()}
    return TrainingBatch(**{**flat, "hidden": batch.returns.new_empty(batch.returns.numel(), 0)})


class Diverged(Exception):
    """The update must be undone: a number is not finite, or the policy moved too far."""


class ReturnScale:
    """Mean and spread of the returns, so that the value head learns numbers of about one (PopArt, arXiv:1602.07714)."""

    def __init__(self) -> None:
        self.mean, self.square, self.seen = 0.0, 1.0, 0

    @property
    def std(self) -> float:
        return float(max(self.square - self.mean**2, LEAST) ** 0.5)

    def update(self, returns: NDArray[Any], head: torch.nn.Linear) -> None:
        """Move towards these returns, and adjust the head so that what it says stays the same."""
        mean, std = self.mean, self.std
        self.seen += 1
        share = max(1.0 / self.seen, SLOWEST)
        self.mean += share * (float(returns.mean(dtype=np.float64)) - self.mean)
        self.square += share * (float(np.square(returns, dtype=np.float64).mean()) - self.square)
        with torch.no_grad():
            head.weight.mul_(std / self.std)
            head.bias.mul_(std).add_(mean - self.mean).div_(self.std)


class Adam:
    """Adam (Kingma & Ba 2015, arXiv:1412.6980) over all parameters as one vector, which they become views of.

    m ← β₁m + (1 − β₁)g,  v ← β₂v + (1 − β₂)g²,  θ ← θ − lr · m̂ / (√v̂ + ε). For networks of this size torch's own,
    tensor by tensor, takes as long as the gradient itself."""

    BETAS, EPS = (0.9, 0.999), 1e-5

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self.parameters = list(parameters)
        self.vector = parameters_to_vector(self.parameters).detach().clone()
        vector_to_parameters(self.vector, self.parameters)
        self.mean, self.square, self.steps = torch.zeros_like(self.vector), torch.zeros_like(self.vector), 0

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss, self.parameters)])

    @torch.no_grad()
    def descend(self, gradient: Tensor, lr: float) -> None:
        self.steps += 1
        first, second = self.BETAS
        self.mean.lerp_(gradient, 1.0 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
        spread = (self.square / (1.0 - second**self.steps)).sqrt_().add_(self.EPS)
        self.vector.addcdiv_(self.mean, spread, value=-lr / (1.0 - first**self.steps))


class KLAnchor:
    """A policy that the learner is held to by `cost` · KL(anchor‖π): without it, what was imitated decays before the
    critic knows what it is worth. Of choices among actions. One with a memory remembers the same episodes by itself."""

    def __init__(self, net: ActorCritic, cost: float) -> None:
        if not 0.0 <= cost < float("inf"):
            raise BadInput(f"anchor.cost = {cost}", why="must be finite and not negative")
        if net.body.continuous:
            raise BadInput("the anchor", why="must choose among actions")
        self.net, self.cost = net, cost
        self.hidden: Tensor | None = None  # [B, H] after the last row; None: before any

    @torch.no_grad()
    def log_p(self, observations: Tensor, masks: Tensor | None, first: Tensor) -> Tensor:
        """Of what was played next, [T, B, ...]."""
        hidden = self.net.begin(observations.shape[1]) if self.hidden is None else self.hidden
        features, states = self.net.remember(observations, hidden, first)
        self.hidden = states[-1]
        policy = self.net.decide(features, masks)
        assert isinstance(policy, ActionDistribution)
        return policy.log_p


def anchor_kl(anchor: Tensor, log_p: Tensor) -> Tensor:
    """KL(a‖π) = Σ a (log a − log π), mean over rows; a forbidden action adds nothing."""
    least = torch.finfo(log_p.dtype).min
    return (anchor.exp() * (anchor.clamp_min(least) - log_p.clamp_min(least))).sum(-1).mean()


class PPO:
    """Trains `net` in `worlds`, one update at a time. The same seed gives the same parameters, bit by bit."""

    def __init__(
        self,
        worlds: VectorEnv,
        net: ActorCritic,
        settings: Settings,
        *,
        seed: int,
        constraint: Constraint | None = None,
        env_seed: int | None = None,
        anchor: KLAnchor | None = None,
        warmup: int = 0,  # updates in which only the critic learns: a policy that can live already needs one first
    ) -> None:
        self.net, self.settings, self.number = net, settings, 0
        self._anchor, self._warmup = anchor, warmup
        playing, order = np.random.SeedSequence(seed).generate_state(2)
        self._player = Player(worlds, net, seed=int(playing), env_seed=env_seed)
        self._order = np.random.default_rng(order)
        self._adam = Adam(net.parameters())
        self.scale = ReturnScale()
        self.costs = None if constraint is None else Costs(net, constraint, seed=int(order))
        self._device = net.value_head.weight.device

    def step(self) -> Update:
        """Play `steps` in each environment, then learn from them."""
        player, lr = self._player, self._lr()
        batch = self._estimate(player.play(self.settings.steps))
        good = self._learnt()
        told: list[list[float]] = []
        stopped, moved, restored = False, 0.0, None
        try:
            stopped = self._improve(batch, lr, told)
            moved = self._check(batch)
        except Diverged as diverged:
            restored = f"{diverged}; the parameters are those from before update {self.number + 1}"
            self._restore_learnt(good)
        self.number += 1
        policy_loss, value_loss, entropy, _, clip_fraction, norm = np.mean(told, axis=0).tolist()
        return Update(
            number=self.number,
            step=self.number * self.settings.steps * player.worlds.count,
            episodes=player.episodes,
            mean_return=player.mean_return,
            policy_loss=policy_loss,
            value_loss=value_loss,
            entropy=entropy,
            clip_fraction=clip_fraction,
            kl=moved,
            grad_norm=norm,
            lr=lr,
            gradient_steps=len(told) - stopped,
            stopped_early=stopped,
            restored=restored,
            cost=None if self.costs is None else self.costs.spent,
            multiplier=None if self.costs is None else self.costs.multiplier.value,
        )

    def state(self) -> dict[str, Tensor]:
        """All it takes to go on bit by bit, as tensors: parameters, optimizer, chance, environments, counters."""
        player = {f"player.{name}": tensor for name, tensor in self._player.state().items()}
        own = {"order": torch.from_numpy(packed(self._order)), "number": torch.tensor(self.number)}
        remembered = None if self._anchor is None or not self._anchor.net.body.memory else self._anchor.hidden
        own |= {} if remembered is None else {ANCHORED: remembered.cpu().clone()}
        return self._learnt() | player | own | ({} if self.costs is None else self.costs.state())

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a state() of the same network, environments and settings; of any other, nothing is taken."""
        wanted = {name: tensor.shape for name, tensor in self._learnt().items()}
        wanted |= {"player.so_far": torch.Size([self._player.worlds.count])}
        for name, shape in wanted.items():
            if name not in state or state[name].shape != shape:
                found = "is missing" if name not in state else f"has shape {tuple(state[name].shape)}"
                why = f"{name} {found}, and not {tuple(shape)}"
                raise BadInput("the state to go on from", why=why, remedy="give one of the same network and worlds")
        if self.costs is not None:
            self.costs.restore(state)
        self._restore_learnt(state)
        prefix = "player."
        self._player.restore({name[len(prefix) :]: kept for name, kept in state.items() if name.startswith(prefix)})
        self._order.bit_generator.state = unpacked(state["order"].numpy())
        if self._anchor is not None and ANCHORED in state:
            self._anchor.hidden = state[ANCHORED].to(self._device)
        self.number = int(state["number"])

    def _lr(self) -> float:
        s = self.settings
        done = min(self.number / s.updates, 1.0)
        return (1.0 - done) * s.lr + done * s.lr_end

    @torch.no_grad()
    def _estimate(self, played: Played) -> TrainingBatch:
        """Values, advantages and returns of what was played, and the log-probs its actions had."""
        net, scale = self.net, self.scale
        observations, first = self._tensor(played.observations), self._tensor(played.first)
        masks = None if played.masks is None else self._tensor(played.masks)
        actions = self._tensor(played.actions)
        features, states = net.remember(observations, played.hidden, first)
        advantages, returns = self._weighed(played, played.rewards, features, states, self._worth)
        if self.costs is not None:
            advantages = self._held(advantages, played, features, states)
        if "advantages" in self.settings.normalise:
            advantages = normalise(advantages)
        if "values" in self.settings.normalise:
            scale.update(returns, net.value_head)
            returns = ((returns - scale.mean) / scale.std).astype(np.float32)
        batch = TrainingBatch(
            observations=observations,
            actions=actions,
            log_p=net.decide(features, masks).log_prob(actions),
            advantages=self._tensor(advantages),
            returns=self._tensor(returns),
            masks=masks,
            first=first,
            hidden=played.hidden,
            anchor=None if self._anchor is None else self._anchor.log_p(observations, masks, first),
        )
        return batch if net.body.memory else rows(batch)

    def _weighed(
        self, played: Played, paid: NDArray[Any], features: Tensor, states: Tensor, worth: Worth
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Advantages and returns of one stream of numbers, by what its critic says."""
        return gae(
            paid,
            worth(features),
            terminated=played.terminated,
            truncated=played.truncated,
            cut_values=self._cut_values(played, states, worth),
            end_values=self._values(self._tensor(played.last), states[-1], worth),
            gamma=self.settings.gamma,
            lam=self.settings.lam,
        )

    def _held(self, advantages: NDArray[Any], played: Played, features: Tensor, states: Tensor) -> NDArray[Any]:
        """The advantages less those of the cost, at its price; not scaled yet, or the price would mean nothing."""
        assert self.costs is not None
        if played.costs is None:
            raise BadInput("a constraint", why="these environments tell no costs", remedy="leave it out")
        self.costs.update_multiplier(played)
        dear, paid = self._weighed(played, played.costs, features, states, self.costs.worth)
        with torch.enable_grad():
            self.costs.fit(features, paid)
        return combine(advantages, dear, self.costs.multiplier.value).astype(np.float32)

    def _worth(self, features: Tensor) -> NDArray[Any]:
        values: NDArray[Any] = self.net.value(features).cpu().numpy() * self.scale.std + self.scale.mean
        return values.astype(np.float32)

    def _cut_values(self, played: Played, states: Tensor, worth: Worth) -> NDArray[Any] | None:
        """V of what was last seen, where an episode was cut short; the memory is the one it had there."""
        if not played.truncated.any():
            return None
        values = np.zeros_like(played.rewards)
        cut = self._tensor(played.truncated)
        values[played.truncated] = self._values(self._tensor(played.finals)[cut], states[cut], worth)
        return values

    def _values(self, observations: Tensor, hidden: Tensor, worth: Worth) -> NDArray[Any]:
        """V of observations [N, O], each in the middle of its episode."""
        goes_on = torch.zeros(1, len(observations), dtype=torch.bool, device=self._device)
        features, _ = self.net.remember(observations[None], hidden, goes_on)
        return worth(features[0])

    def _improve(self, batch: TrainingBatch, lr: float, told: list[list[float]]) -> bool:
        """Up to `epochs` passes in shuffled minibatches; True if the policy had moved far enough before."""
        s, axis = self.settings, int(self.net.body.memory)
        places = batch.returns.shape[axis]
        size = max(s.minibatch // len(batch.returns), 1) if axis else s.minibatch
        for _ in range(s.epochs):
            shuffled = batch.shuffled(self._tensor(self._order.permutation(places)), axis)
            for start in range(0, places, size):
                gradient, terms = self._gradient(shuffled.part(start, min(size, places - start), axis), axis)
                told.append(terms)
                if not isfinite(sum(terms)):
                    raise Diverged(f"a loss or its gradient is not finite after {len(told) - 1} gradient steps")
                if terms[KL] > EXPLODED:
                    raise Diverged(f"the policy moved by {terms[KL]:.3g} nats in {len(told) - 1} gradient steps")
                if terms[KL] > s.kl_limit:
                    return True
                self._adam.descend(gradient * min(s.grad_limit / (terms[-1] + 1e-6), 1.0), lr)
        return False

    def _gradient(self, batch: TrainingBatch, axis: int) -> tuple[Tensor, list[float]]:
        """The gradient of one minibatch, computed in parts; with it what METRICS names, and its norm."""
        places = batch.returns.shape[axis]
        size = -(-places // self.settings.accumulate)
        gradient = torch.zeros_like(self._adam.vector)
        totals = gradient.new_zeros(len(METRICS))
        for start in range(0, places, size):
            part = batch if size == places else batch.part(start, min(size, places - start), axis)
            share = part.returns.shape[axis] / places
            terms, loss = self._terms(part)
            gradient += share * self._adam.gradient(loss)
            totals += share * torch.stack([getattr(terms, name).detach() for name in METRICS])
        return gradient, [*totals.tolist(), float(gradient.norm())]

    def _terms(self, batch: TrainingBatch) -> tuple[Terms, Tensor]:
        """What METRICS names, and the loss."""
        is_warming = self.number < self._warmup
        features, _ = self.net.remember(batch.observations, batch.hidden, batch.first)
        policy = self.net.decide(features, batch.masks)
        terms = ppo_terms(
            policy.log_prob(batch.actions),
            batch.log_p,
            batch.advantages,
            self.net.value(features.detach() if is_warming else features),  # a memory below both is not the critic's
            batch.returns,
            policy.entropy(),
            clip=self.settings.clip,
            value_cost=self.settings.value_cost,
            entropy_cost=self.settings.entropy_cost,
        )
        if is_warming:
            # Times 0, and not left out: the parameters of the actor still need a gradient.
            return terms, self.settings.value_cost * terms.value + 0.0 * terms.policy
        if self._anchor is None or batch.anchor is None:
            return terms, terms.total
        assert isinstance(policy, ActionDistribution)
        return terms, terms.total + self._anchor.cost * anchor_kl(batch.anchor, policy.log_p)

    @torch.no_grad()
    def _check(self, batch: TrainingBatch) -> float:
        """How far the policy moved, if it is still one."""
        if not bool(self._adam.vector.isfinite().all()):
            raise Diverged("a parameter is not finite")
        features, _ = self.net.remember(batch.observations, batch.hidden, batch.first)
        policy = self.net.decide(features, batch.masks)
        moved = float(kl(policy.log_prob(batch.actions), batch.log_p, how="k2").mean())
        if not moved <= EXPLODED:
            raise Diverged(f"the policy moved by {moved:.3g} nats in one update")
        return moved

    def _learnt(self) -> dict[str, Tensor]:
        """Copies of what learning changes: parameters, optimizer, scale of the value."""
        kept = {f"net.{name}": tensor for name, tensor in self.net.state_dict().items()}
        kept |= {"adam.mean": self._adam.mean, "adam.square": self._adam.square}
        counts = {
            "adam.steps": torch.tensor(self._adam.steps),
            "scale": torch.tensor([self.scale.mean, self.scale.square, self.scale.seen], dtype=torch.float64),
        }
        return {name: tensor.detach().cpu().clone() for name, tensor in kept.items()} | counts

    def _restore_learnt(self, kept: Mapping[str, Tensor]) -> None:
        net = {name.removeprefix("net."): tensor for name, tensor in kept.items() if name.startswith("net.")}
        self.net.load_state_dict(net)
        self._adam.mean.copy_(kept["adam.mean"])
        self._adam.square.copy_(kept["adam.square"])
        self._adam.steps = int(kept["adam.steps"])
        self.scale.mean, self.scale.square, seen = kept["scale"].tolist()
        self.scale.seen = int(seen)

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(self._device)
