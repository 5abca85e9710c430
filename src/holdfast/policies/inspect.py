"""What a network makes of one observation: its choices, what it expects, and which numbers made it choose.

Nothing is remembered and nothing is changed: whoever does not look pays nothing. What the numbers are called is the
environment's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.policies.nets import ActionDistribution, ActorCritic, one_thread

STEPS = 64  # of the path from nothing to what is seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One decision. Shares of the choice sum to log p(action | seen) − log p(action | nothing seen); what a network
    remembers of the episode so far is the same on both sides."""

    probabilities: NDArray[np.float64]  # [A]; 0 where an action is not allowed
    action: int  # that is explained
    value: float  # on the critic's own scale: 0 is the mean of the returns that it learnt from, 1 their spread
    saliency: NDArray[np.float64]  # [O]
    gap: float  # by how much the shares miss that sum, for the steps are finite


def explain(
    net: ActorCritic,
    seen: NDArray[np.float32],
    mask: NDArray[np.bool_] | None = None,
    *,
    action: int | None = None,
    hidden: torch.Tensor | None = None,
) -> Explained:
    """The likeliest action, or a given one, by integrated gradients (Sundararajan et al. 2017, arXiv:1703.01365):
    IGᵢ = xᵢ ∫₀¹ ∂ log p(a | αx) / ∂xᵢ dα, by the midpoint rule. `hidden` [H] is what a network with a memory
    remembers; None: nothing."""
    if net.body.continuous:
        raise BadInput("the network", why="is looked into where it chooses among actions")
    x = torch.from_numpy(np.ascontiguousarray(seen, np.float32))
    allowed = None if mask is None else torch.from_numpy(np.ascontiguousarray(mask, np.bool_))
    memory = (net.begin(1)[0] if hidden is None else hidden).detach()
    with one_thread(), torch.no_grad():
        log_p, value = _log_p(net, x[None], allowed, memory)[0], float(net.value(_features(net, x[None], memory))[0])
        chosen = int(log_p.argmax()) if action is None else action
        if not 0 <= chosen < len(log_p) or not bool(log_p[chosen].isfinite()):
            raise BadInput(f"action {chosen}", why="is not allowed now", remedy="name one that is")
        nothing = float(_log_p(net, torch.zeros_like(x)[None], allowed, memory)[0, chosen])
    with one_thread():
        shares = ((torch.arange(STEPS) + 0.5) / STEPS)[:, None]
        path = (shares * x).requires_grad_()
        [slope] = torch.autograd.grad(_log_p(net, path, allowed, memory)[:, chosen].sum(), path)
        saliency = (x * slope.mean(0)).double().numpy()
    gap = float(log_p[chosen]) - nothing - float(saliency.sum())
    return Explained(probabilities=log_p.exp().double().numpy(), action=chosen, value=value, saliency=saliency, gap=gap)


def value_of(net: ActorCritic, seen: NDArray[np.float32], hidden: torch.Tensor | None = None) -> float:
    """What the critic expects, on its own scale."""
    x = torch.from_numpy(np.ascontiguousarray(seen, np.float32))
    with one_thread(), torch.no_grad():
        memory = net.begin(1)[0] if hidden is None else hidden
        return float(net.value(_features(net, x[None], memory))[0])


def _features(net: ActorCritic, rows: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
    goes_on = torch.zeros(1, len(rows), dtype=torch.bool)
    return net.remember(rows[None], memory.expand(len(rows), -1), goes_on)[0][0]


def _log_p(net: ActorCritic, rows: torch.Tensor, allowed: torch.Tensor | None, memory: torch.Tensor) -> torch.Tensor:
    policy = net.decide(_features(net, rows, memory), allowed)
    assert isinstance(policy, ActionDistribution)
    return policy.log_p
