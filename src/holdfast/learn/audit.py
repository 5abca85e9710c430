"""Why a batch taught what it taught: for every rollout the reason it gave no gradient, and what the reward was made of.

It only looks and counts; what to do about it is the reader's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from torch import nn

from holdfast.contracts.experience import Experience
from holdfast.learn.batch import Samples, SkipReason, counted, learnt
from holdfast.learn.metrics import Update
from holdfast.learn.threads import Break

DOMINANT = 0.9  # share of the reward's variance above which the other signals hardly count


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAudit:
    """What came of each rollout of a batch."""

    SCHEMA: ClassVar[int] = 1

    rollouts: int
    taught: int  # gave a gradient
    reasons: Mapping[str, str]  # by rollout, of those that gave none
    counts: Mapping[str, int]  # by reason
    samples: int
    tokens: int  # decided and weighed
    idle_tokens: int  # decided, read and without any weight
    breaks: Mapping[str, int]  # prompts that did not go on from what was there, by kind
    shares: Mapping[str, float]  # of the reward's variance, by signal; they add up to 1
    dominant: str | None  # the one signal that nearly all of the variance comes from
    zero_gradient: bool | None  # exactly no gradient came of it; None: nothing was updated
    unmoved: tuple[str, ...] = ()  # parameters whose gradient is exactly 0
    constraint: Mapping[str, Any] | None = None  # what was held to a budget, and at which price

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def lines(self) -> tuple[str, ...]:
        """For people."""
        said = [f"{self.taught} of {self.rollouts} rollouts gave a gradient, by {self.tokens} tokens"]
        said += [f"{count} gave none: {reason.replace('_', ' ')}" for reason, count in self.counts.items()]
        if self.breaks:
            kinds = ", ".join(f"{count} {kind}" for kind, count in self.breaks.items())
            said.append(f"{sum(self.breaks.values())} prompts did not go on from what was there: {kinds}")
        if self.zero_gradient:
            said.append("the gradient was exactly zero")
        if self.dominant is not None:
            said.append(f"the reward is nearly all {self.dominant}: {self.shares[self.dominant]:.0%} of its variance")
        if (held := self.constraint) is not None:
            price = held["multiplier"]["value"]
            said.append(f"{held['cost']} {held['mean_cost']:.3g} of {held['budget']:g} allowed, weighed {price:.3g}")
        return tuple(said)


def audit(
    experiences: Sequence[Experience],
    reasons: Mapping[str, SkipReason | None],
    samples: Samples | None,
    *,
    channels: tuple[str, ...] | None = None,
    breaks: Mapping[Break, int] | None = None,
    update: Update | None = None,
    model: nn.Module | None = None,
    constraint: Mapping[str, Any] | None = None,
) -> BatchAudit:
    """The account of one batch; with the model right after its update also which parameters had no gradient."""
    found = {rollout: str(reason) for rollout, reason in reasons.items() if reason is not None}
    weighed = idle = 0
    if samples is not None:
        is_weighed = learnt(samples) & _weighed(samples)
        weighed, idle = int(is_weighed.sum()), int((samples.decided & ~is_weighed).sum())
        found |= _silent(samples, is_weighed, found)
    known = {experience.rollout for experience in experiences} | set(reasons)
    shares = dominance([one for one in experiences if one.rollout not in found], channels)
    top = max(shares, key=lambda name: shares[name], default=None)
    return BatchAudit(
        rollouts=len(known),
        taught=len(known - set(found)),
        reasons=found,
        counts=dict(Counter(found.values()).most_common()),
        samples=0 if samples is None else len(samples),
        tokens=weighed,
        idle_tokens=idle,
        breaks={str(kind): count for kind, count in (breaks or {}).items()},
        shares=shares,
        dominant=top if top is not None and len(shares) > 1 and shares[top] > DOMINANT else None,
        zero_gradient=None if update is None else update.grad_norm == 0.0,
        unmoved=() if model is None else zero_gradients(model),
        constraint=constraint,
    )


def zero_gradients(model: nn.Module) -> tuple[str, ...]:
    """Names of the parameters whose gradient is absent or exactly 0 everywhere."""
    return tuple(
        name for name, p in model.named_parameters() if p.requires_grad and (p.grad is None or not bool(p.grad.any()))
    )


def dominance(experiences: Iterable[Experience], channels: tuple[str, ...] | None = None) -> dict[str, float]:
    """cov(signal, total) / var(total) for each signal by its name; empty where the total does not vary.

    The shares add up to 1; one that works against the others is below 0."""
    sheets: list[dict[str, float]] = []
    for experience in experiences:
        sums: dict[str, float] = {}
        for signal in counted(experience, channels):
            sums[signal.name] = sums.get(signal.name, 0.0) + signal.value * signal.weight
        if sums:
            sheets.append(sums)
    names = sorted({name for sheet in sheets for name in sheet})
    if len(sheets) < 2:
        return {}
    table = np.asarray([[sheet.get(name, 0.0) for name in names] for sheet in sheets])
    table = table - table.mean(axis=0)
    total = table.sum(axis=1)
    variance = float(total @ total)
    if variance <= 1e-24:
        return {}
    return {name: float(table[:, place] @ total / variance) for place, name in enumerate(names)}


def _weighed(samples: Samples) -> np.ndarray[Any, np.dtype[np.bool_]]:
    marks = np.zeros(len(samples.ids), dtype=np.bool_)
    for stream in (samples.advantages, samples.weights):
        if stream is not None:
            marks |= stream != 0.0
    return marks


def _silent(
    samples: Samples, is_weighed: np.ndarray[Any, np.dtype[np.bool_]], known: Mapping[str, str]
) -> dict[str, str]:
    """Rollouts that are in the batch, and none of whose tokens weighs anything."""
    owners = np.unique(np.repeat(np.arange(len(samples)), np.diff(samples.bounds))[is_weighed])
    loud = {samples.rollouts[owner] for owner in owners} if samples.rollouts else set()
    return {
        rollout: str(SkipReason.ZERO_WEIGHT)
        for rollout in samples.rollouts
        if rollout not in loud and rollout not in known
    }
