"""What is minimised: losses as pure functions of tensors, on any device and in any floating type.

Each gives one loss for each element; `aggregate` or `masked_mean` makes one number of them. Shapes must be equal:
[N] against [N, 1] would broadcast to [N, N] and still learn something. Advantages and returns come from `returns`,
updates are made by the learners.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from holdfast.contracts.errors import BadInput

FAR = 20.0  # e²⁰ ≈ 5·10⁸: a log-ratio beyond is cut there, because an infinite ratio times a zero gradient is NaN

Kl = Literal["k1", "k2", "k3"]
How = Literal["token", "sequence", "sequence_norm_constant"]


class Surrogate(NamedTuple):
    """One loss for each element, the ratio, and where the clip took the gradient away."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def clipped_surrogate(
    new_logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    *,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
) -> Surrogate:
    """L = −min(ρA, clip(ρ, 1 − low, 1 + high)·A),  ρ = exp(new − old);  PPO, Schulman et al. 2017, arXiv:1707.06347.

    high > low leaves room for rare tokens to grow (DAPO, Yu et al. 2025, arXiv:2503.14476). dual = c > 1 bounds the
    loss of a negative advantage at −cA, however far ρ has run away (Ye et al. 2020, arXiv:1912.09729).
    """
    _same_shape(new_logp=new_logp, old_logp=old_logp, advantages=advantages)
    _check_clip(low, high)
    if dual is not None and not dual > 1.0:
        raise BadInput(f"dual = {dual}", why="must be above 1")
    ratio = (new_logp - old_logp).clamp(-FAR, FAR).exp()
    plain, held = ratio * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages
    loss = -torch.minimum(plain, held)
    clipped = held < plain
    if dual is not None:
        bound = torch.where(advantages < 0, -dual * advantages, torch.inf)
        clipped = clipped | (bound < loss)
        loss = torch.minimum(loss, bound)
    return Surrogate(loss, ratio, clipped)


def value_loss(
    values: Tensor, returns: Tensor, *, old_values: Tensor | None = None, clip: float | None = None
) -> Tensor:
    """½(V − R)²; with clip the larger of it and ½(V_old + clip(V − V_old, ±clip) − R)², as in PPO's first code."""
    _same_shape(values=values, returns=returns)
    loss = 0.5 * (values - returns).square()
    if clip is None:
        return loss
    if old_values is None or not clip > 0.0:
        raise BadInput(f"value loss: clip = {clip}", why="must be above 0 and come with old_values")
    _same_shape(values=values, old_values=old_values)
    near = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(loss, 0.5 * (near - returns).square())


def kl(new_logp: Tensor, ref_logp: Tensor, *, how: Kl = "k3") -> Tensor:
    """An estimate of KL(new ‖ ref) from what the new policy sampled; Schulman 2020, joschu.net/blog/kl-approx.html.

    With r = ref/new: k1 = −log r (no bias, wide), k2 = ½(log r)² (small bias, narrow; its gradient is unbiased),
    k3 = r − 1 − log r (no bias, narrow, never below 0).
    """
    _same_shape(new_logp=new_logp, ref_logp=ref_logp)
    log_r = (ref_logp - new_logp).clamp(-FAR, FAR)
    if how == "k1":
        return -log_r
    if how == "k2":
        return 0.5 * log_r.square()
    if how == "k3":
        return torch.expm1(log_r) - log_r
    raise BadInput(f"kl: how = {how!r}", why="must be k1, k2 or k3")


def importance_weight(trainer_logp: Tensor, sampler_logp: Tensor, *, cap: float = 2.0) -> Tensor:
    """w = min(π_trainer / π_sampler, cap), without gradient: sampler and trainer never agree to the last bit, and w
    makes the gradient that of the trainer's own policy; truncated importance sampling, Ionides 2008, Yao et al. 2025.

    For weights of whole sequences give it the sums over their tokens.
    """
    _same_shape(trainer_logp=trainer_logp, sampler_logp=sampler_logp)
    if not cap >= 1.0:
        raise BadInput(f"cap = {cap}", why="must be at least 1: agreement has weight 1")
    return (trainer_logp - sampler_logp).detach().clamp(-FAR, FAR).exp().clamp(max=cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """How much each term of PPO weighs, and where its clips are."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    value: float = 0.5
    entropy: float = 0.01
    kl: float = 0.0
    value_clip: float | None = None

    def __post_init__(self) -> None:
        _check_clip(self.clip_low, self.clip_high)
        for name in ("value", "entropy", "kl"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"ppo: coefficient {name} = {getattr(self, name)}", why="must be finite and at least 0")


class Terms(NamedTuple):
    """PPO's loss and what it is made of: each one number. Only policy, value, entropy and total carry a gradient."""

    policy: Tensor
    value: Tensor
    entropy: Tensor
    total: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor  # share of ratios outside the range, on whichever side of it the advantage would push
    mean_ratio: Tensor


def ppo_terms(
    new_logp: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    values: Tensor,
    returns: Tensor,
    entropies: Tensor,
    coefficients: Coefficients,
    old_values: Tensor | None = None,
) -> Terms:
    """total = policy + c_v·value − c_e·entropy + c_kl·approx_kl,  approx_kl = mean ½(new − old)²;  arXiv:1707.06347.

    Plain means over all elements: take padding out before (x[mask]).
    """
    _same_shape(new_logp=new_logp, values=values, entropies=entropies)
    c = coefficients
    surrogate = clipped_surrogate(new_logp, old_logp, advantages, low=c.clip_low, high=c.clip_high)
    policy = surrogate.loss.mean()
    value = value_loss(values, returns, old_values=old_values, clip=c.value_clip).mean()
    spread = entropies.mean()
    total = policy + c.value * value - c.entropy * spread
    approx_kl = kl(new_logp, old_logp, how="k2").mean()
    if c.kl:
        total = total + c.kl * approx_kl
    ratio = surrogate.ratio.detach()
    outside = (ratio < 1.0 - c.clip_low) | (ratio > 1.0 + c.clip_high)
    return Terms(policy, value, spread, total, approx_kl.detach(), outside.to(ratio.dtype).mean(), ratio.mean())


def _same_shape(**tensors: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if shapes.count(shapes[0]) != len(shapes):
        pairs = ", ".join(f"{name} {shape}" for name, shape in zip(tensors, shapes, strict=True))
        raise BadInput("shapes differ", why=pairs, remedy="bring them to one shape: nothing is broadcast")


def _check_clip(low: float, high: float) -> None:
    if not (0.0 <= low <= 1.0 and high >= 0.0):
        raise BadInput(f"clip: low = {low}, high = {high}", why="low must be between 0 and 1, high at least 0")
