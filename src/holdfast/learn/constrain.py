"""Learning under a budget of cost: a multiplier that rises while the policy costs more than it may, and falls after.

max J_r subject to J_c ≤ d is played as max (J_r − λ J_c) / (1 + λ). λ follows the violation as a PID controller does:
proportional, integral and, against overshooting, the rise of the cost; Stooke et al. 2020, arXiv:2007.03964. With the
integral alone this is dual ascent, which swings about the budget. Cost is a stream of its own: a signal's value,
whatever its weight, beside the reward. What is costly is measured in `reward`; the update itself is `train`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience, Trajectory
from holdfast.learn.batch import SampleFilter, refusal
from holdfast.learn.returns import group_relative, turn_credit

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """How much a policy may cost, in the mean of its attempts, and how hard it is held to that."""

    cost: str = "safety_cost"  # name of the signal
    budget: float = 0.05  # d
    proportional: float = 1.0  # K_P, of the violation
    integral: float = 0.2  # K_I, of all violations so far
    derivative: float = 1.0  # K_D, of a rise in cost; a fall is not held back
    smoothing: float = 0.5  # share of what was before in the violation and the cost that are followed
    most: float = 10.0  # λ and its integral: beyond this reward hardly counts, and coming back would take long

    def __post_init__(self) -> None:
        if not self.cost.strip():
            raise BadInput("constraint.cost", why="is blank", remedy="name the signal that is the cost")
        for name in ("budget", "proportional", "integral", "derivative", "most"):
            number = getattr(self, name)
            if not (isfinite(number) and number >= 0.0):
                raise BadInput(f"constraint.{name} = {number}", why="must be finite and at least 0")
        if not 0.0 <= self.smoothing < 1.0:
            raise BadInput(f"constraint.smoothing = {self.smoothing}", why="must be at least 0 and below 1")
        if not self.proportional and not self.integral:
            why, remedy = "nothing ever moves the multiplier", "give one of proportional and integral"
            raise BadInput("constraint.proportional and integral = 0", why=why, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class Multiplier:
    """λ and the state of its controller."""

    value: float = 0.0  # λ ≥ 0
    integral: float = 0.0  # Σ K_I · violation, never below 0
    violation: float = 0.0  # smoothed
    cost: float = 0.0  # smoothed
    seen: int = 0  # batches followed

    def updated(self, cost: float, constraint: Constraint) -> Multiplier:
        """Δ = J_c − d,  I ← (I + K_I Δ)₊,  λ = (K_P Δ̄ + I + K_D (J̄_c − J̄_c')₊)₊;  a bar is a running mean."""
        if not isfinite(cost):
            raise BadInput(f"constraint {constraint.cost}: cost {cost}", why="is not finite", remedy="measure it again")
        share = constraint.smoothing if self.seen else 0.0
        over = cost - constraint.budget
        violation = share * self.violation + (1.0 - share) * over
        smooth = share * self.cost + (1.0 - share) * cost
        rise = max(0.0, smooth - self.cost) if self.seen else 0.0
        integral = min(max(0.0, self.integral + constraint.integral * over), constraint.most)
        value = constraint.proportional * violation + integral + constraint.derivative * rise
        return Multiplier(
            value=min(max(0.0, value), constraint.most),
            integral=integral,
            violation=violation,
            cost=smooth,
            seen=self.seen + 1,
        )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPrice:
    """What one unit of a cost weighs against one of reward, in this update."""

    cost: str
    multiplier: float  # λ


def from_dict(kept: Mapping[str, Any] | None) -> Multiplier:
    """The multiplier from its `to_dict`; a new one for None."""
    return Multiplier() if kept is None else Multiplier(**kept)


def describe(constraint: Constraint, held: Multiplier, mean: float) -> dict[str, Any]:
    """The report of a constraint after a step: the measured cost and the multiplier."""
    return {"cost": constraint.cost, "budget": constraint.budget, "mean_cost": mean, "multiplier": held.to_dict()}


def combine(reward: NDArray[Any], cost: NDArray[Any], multiplier: float) -> NDArray[Any]:
    """(A_r − λ A_c) / (1 + λ): the size does not depend on λ, so the learning rate keeps its meaning."""
    return (reward - multiplier * cost) / (1.0 + multiplier)


def cost_of(attempt: Experience | Trajectory, name: str) -> float | None:
    """The cost of an attempt; None where it was not measured. A negative cost is refused: it would pay for another."""
    values = [signal.value for signal in attempt.signals if signal.name == name]
    if any(value < 0.0 for value in values):
        what, why = f"constraint {name}: cost {min(values):g} of {attempt.rollout}", "is below 0"
        raise BadInput(what, why=why, remedy="look at who measured it: 'holdfast reward show' shows the source")
    return sum(values) if values else None


def mean_cost(experiences: Iterable[Experience], intake: SampleFilter, name: str) -> float:
    """J_c over all attempts of the policy that learns, including those that give no gradient."""
    of_policy = [experience for experience in experiences if refusal(experience, intake) is None]
    costs = [cost for experience in of_policy if (cost := cost_of(experience, name)) is not None]
    if of_policy and not costs:
        remedy = f"score it, or name one of {', '.join(_names(of_policy)) or 'none'}"
        raise BadInput(f"constraint.cost = {name}", why="no attempt has a signal of that name", remedy=remedy)
    return float(np.mean(costs)) if costs else 0.0


def cost_credit(team: Sequence[Experience | Trajectory], name: str, *, scale: bool, mix: float) -> list[Floats]:
    """A_c of each turn of each attempt at one task, by the same rules as its reward: what cost more than the others'.

    An attempt whose cost nobody measured is neither dear nor cheap."""
    lengths = np.asarray([one.turn_count for one in team])
    told = [cost_of(one, name) for one in team]
    known = np.asarray([cost is not None for cost in told])
    outcomes = np.zeros(len(team))
    if known.any():
        costs = np.asarray([cost for cost in told if cost is not None], dtype=np.float64)
        outcomes[known] = group_relative(costs[None], scale=scale)[0]
    turns: NDArray[Any] = np.zeros(int(lengths.sum()))
    if mix:
        spent = [np.zeros(length) for length in lengths]
        for mine, one in zip(spent, team, strict=True):
            for signal in one.signals:
                if signal.name == name and signal.turn is not None and signal.turn < len(mine):
                    mine[signal.turn] += signal.value
        index = np.concatenate([np.arange(length) for length in lengths])
        turns = group_relative(np.concatenate(spent), index, scale=scale)
    credit = turn_credit(turns.astype(np.float64), outcomes, lengths, mix=mix)
    return [part.astype(np.float64) for part in np.split(credit, np.cumsum(lengths)[:-1])]


def turn_costs(attempts: Sequence[Experience | Trajectory], name: str, *, gamma: float) -> Floats:
    """A_c of every turn, attempt after attempt: Cₖ = cₖ + γ Cₖ₊₁ less its mean over the k-th turns of all attempts.

    The mean takes a critic's place: a critic of costs that begins anew with every batch, as the turns' does, says 0 of
    everything. What is of the whole attempt was paid by its last turn."""
    parts = []
    for attempt in attempts:
        spent = np.zeros(attempt.turn_count)
        for signal in attempt.signals:
            if signal.name == name and (signal.turn is None or signal.turn < len(spent)):
                spent[-1 if signal.turn is None else signal.turn] += signal.value
        for place in range(len(spent) - 2, -1, -1):
            spent[place] += gamma * spent[place + 1]
        parts.append(spent if cost_of(attempt, name) is not None else np.full(len(spent), np.nan))
    flat = np.concatenate(parts) if parts else np.zeros(0)
    index = np.concatenate([np.arange(len(part)) for part in parts]) if parts else np.zeros(0, np.int64)
    known = ~np.isnan(flat)
    relative = np.zeros(len(flat))
    relative[known] = group_relative(flat[known], index[known], scale=False)
    return relative


def _names(experiences: Iterable[Experience]) -> list[str]:
    return sorted({signal.name for experience in experiences for signal in experience.signals})
