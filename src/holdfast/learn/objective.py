"""What is minimised: losses as pure functions of tensors, and one loss over the per-token streams of a batch.

loss = Σ share · (surrogate by the advantages − weights · log p + KL to the reference + KL to the behaviour − entropy)
     + mean of the critic's loss. Reinforcement, cloning, distillation and staying close are weights over the same
tokens. The shares are fixed before a batch is cut into pieces, so the cut changes nothing. Stepping is `train`. Shapes
must be equal: [N] against [N, 1] would broadcast to [N, N] and still learn something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from holdfast.contracts.errors import BadInput
from holdfast.learn import shared
from holdfast.learn.batch import Padded, Samples, SamplingRule
from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.hub import Hub
from holdfast.policies.sampling import log_probs

SCORES = 1 << 25  # scores of tokens that exist at once; more are worked through in parts
FAR = 20.0  # e²⁰ ≈ 5·10⁸: a log-ratio beyond is cut there, because an infinite ratio times a zero gradient is NaN

Kl = Literal["k2", "k3"]
How = Literal["token", "sequence", "sequence_norm_constant"]
CONSTANT = "sequence_norm_constant"  # Dr. GRPO: a sum over the tokens divided by one number, whatever their lengths


class Surrogate(NamedTuple):
    """One loss for each element, the ratio, and where the clip took the gradient away."""

    loss: Tensor
    ratio: Tensor
    clipped: Tensor


def clipped_surrogate(
    new_logp: Tensor, old_logp: Tensor, advantages: Tensor, *, low: float = 0.2, high: float = 0.2
) -> Surrogate:
    """L = −min(ρA, clip(ρ, 1 − low, 1 + high)·A),  ρ = exp(new − old);  PPO, Schulman et al. 2017, arXiv:1707.06347.

    high > low leaves room for rare tokens to grow (DAPO, Yu et al. 2025, arXiv:2503.14476)."""
    _same_shape(new_logp=new_logp, old_logp=old_logp, advantages=advantages)
    _check_clip(low, high)
    ratio = (new_logp - old_logp).clamp(-FAR, FAR).exp()
    plain, held = ratio * advantages, ratio.clamp(1.0 - low, 1.0 + high) * advantages
    return Surrogate(-torch.minimum(plain, held), ratio, held < plain)


def value_loss(values: Tensor, returns: Tensor) -> Tensor:
    """½(V − R)²"""
    _same_shape(values=values, returns=returns)
    return 0.5 * (values - returns).square()


def kl(new_logp: Tensor, ref_logp: Tensor, *, how: Kl = "k3") -> Tensor:
    """An estimate of KL(new ‖ ref) from what the new policy sampled; Schulman 2020, joschu.net/blog/kl-approx.html.

    With r = ref/new: k2 = ½(log r)² (small bias, narrow; its gradient is unbiased), k3 = r − 1 − log r (no bias,
    narrow, never below 0)."""
    _same_shape(new_logp=new_logp, ref_logp=ref_logp)
    log_r = (ref_logp - new_logp).clamp(-FAR, FAR)
    return 0.5 * log_r.square() if how == "k2" else torch.expm1(log_r) - log_r


def importance_weight(trainer_logp: Tensor, sampler_logp: Tensor, *, cap: float = 2.0) -> Tensor:
    """w = min(π_trainer / π_sampler, cap), without gradient: sampler and trainer never agree to the last bit, and w
    makes the gradient that of the trainer's own policy; truncated importance sampling, Ionides 2008, Yao et al. 2025.

    For weights of whole sequences give it the sums over their tokens."""
    _same_shape(trainer_logp=trainer_logp, sampler_logp=sampler_logp)
    if not cap >= 1.0:
        raise BadInput(f"cap = {cap}", why="must be at least 1: agreement has weight 1")
    return (trainer_logp - sampler_logp).detach().clamp(-FAR, FAR).exp().clamp(max=cap)


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
    *,
    clip: float,
    value_cost: float,
    entropy_cost: float,
) -> Terms:
    """total = policy + c_v·value − c_e·entropy,  approx_kl = mean ½(new − old)²;  arXiv:1707.06347.

    Plain means over all elements: take padding out before (x[mask])."""
    _same_shape(new_logp=new_logp, values=values, entropies=entropies)
    surrogate = clipped_surrogate(new_logp, old_logp, advantages, low=clip, high=clip)
    policy, value, spread = surrogate.loss.mean(), value_loss(values, returns).mean(), entropies.mean()
    total = policy + value_cost * value - entropy_cost * spread
    ratio = surrogate.ratio.detach()
    outside = ((ratio < 1.0 - clip) | (ratio > 1.0 + clip)).to(ratio.dtype)
    approx_kl = kl(new_logp, old_logp, how="k2").mean().detach()
    return Terms(policy, value, spread, total, approx_kl, outside.mean(), ratio.mean())


def _same_shape(**tensors: Tensor) -> None:
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if shapes.count(shapes[0]) != len(shapes):
        pairs = ", ".join(f"{name} {shape}" for name, shape in zip(tensors, shapes, strict=True))
        raise BadInput("shapes differ", why=pairs, remedy="bring them to one shape: nothing is broadcast")


def _check_clip(low: float, high: float) -> None:
    if not (0.0 <= low <= 1.0 and high >= 0.0):
        raise BadInput(f"clip: low = {low}, high = {high}", why="low must be between 0 and 1, high at least 0")


ACTION_STREAMS = ("rule", "trainer", "reference", "advantages", "weights")  # streams that are read at decided tokens
TERMS = ("surrogate", "clone", "reference_kl", "behaviour_kl", "entropy", "value")


class TrainableModel(Protocol):
    """What can be trained: our own transformer, or a foreign one with the same two methods."""

    def hidden(self, ids: Tensor, /) -> Tensor: ...

    def logits(self, hidden: Tensor, /) -> Tensor: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """How much each term weighs, and where its clips are."""

    clip_low: float = 0.2
    clip_high: float = 0.2
    reference_kl: float = 0.0  # k3, against the reference model
    behaviour_kl: float = 0.0  # k2, against the policy that sampled
    entropy: float = 0.0
    value: float = 0.5
    importance_cap: float | None = None  # None: the sampler's log-probs are taken as the trainer's own
    aggregate: How = "token"
    constant: float | None = None  # tokens, for sequence_norm_constant

    def __post_init__(self) -> None:
        for name in ("reference_kl", "behaviour_kl", "entropy", "value"):
            number = getattr(self, name)
            if not (isfinite(number) and number >= 0.0):
                raise BadInput(f"objective.{name} = {number}", why="must be finite and at least 0")
        _check_clip(self.clip_low, self.clip_high)
        check_aggregate("objective", self.aggregate, self.constant)


def check_aggregate(block: str, aggregate: str, constant: float | None) -> None:
    if aggregate not in get_args(How):
        raise BadInput(f"{block}.aggregate = {aggregate!r}", why="is unknown", remedy=f"use {', '.join(get_args(How))}")
    if (constant is not None) != (aggregate == CONSTANT):
        raise BadInput(f"{block}.constant = {constant}", why=f"goes with {CONSTANT}", remedy="give both, or neither")


class TokenSums(NamedTuple):
    """Sums over the tokens of one piece, kept on the device: reading a number back would wait for it."""

    loss: Tensor  # what is differentiated
    sums: Tensor  # the TERMS by their shares, then sums: ½(new − old)², clipped, entropy, outside, gap


def shares(samples: Samples, learnt: NDArray[np.bool_], objective: Objective) -> NDArray[np.float32]:
    """The weight of each token in the mean over all samples, whatever pieces they are cut into."""
    lengths = np.diff(samples.bounds)
    owner = np.repeat(np.arange(len(samples)), lengths)
    counts = np.bincount(owner[learnt], minlength=len(samples))
    sequences = max(int((counts > 0).sum()), 1)
    if objective.aggregate == "token":
        each = np.full(len(samples), 1.0 / max(int(counts.sum()), 1))
    elif objective.aggregate == "sequence":
        each = 1.0 / np.maximum(counts, 1) / sequences
    else:
        each = np.full(len(samples), 1.0 / float(objective.constant or 1.0) / sequences)
    return np.where(learnt, each[owner], 0.0).astype(np.float32)


def choose(
    logits: Tensor, targets: Tensor, rules: Sequence[SamplingRule], rule: Tensor | None, *, is_spread: bool = False
) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each choice, [N], under the sampling that was in force.

    The entropy has a gradient only with `is_spread`."""
    if rule is None or len(rules) == 1:
        return _chosen(logits, targets, rules[0], is_spread)
    logp, entropy = torch.zeros_like(logits[:, 0]), torch.zeros_like(logits[:, 0])
    for number, sampling_rule in enumerate(rules):
        mine = (rule == number).nonzero().squeeze(1)
        if len(mine):
            some, spread = _chosen(logits[mine], targets[mine], sampling_rule, is_spread)
            logp, entropy = logp.index_copy(0, mine, some), entropy.index_copy(0, mine, spread)
    return logp, entropy


def _chosen(logits: Tensor, targets: Tensor, rule: SamplingRule, is_spread: bool) -> tuple[Tensor, Tensor]:
    banned = None
    if rule.banned:
        banned = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
        banned[[token for token in rule.banned if 0 <= token < len(banned)]] = True  # others exist for other models
    logp = log_probs(logits, rule.temperature, rule.top_k, rule.top_p, banned=banned, chosen=targets)
    with torch.set_grad_enabled(is_spread and torch.is_grad_enabled()):
        entropy = -(logp.exp() * logp.clamp(min=-1e4)).sum(-1)  # a choice of probability 0 adds nothing
    return logp.gather(-1, targets[:, None]).squeeze(-1), entropy


class Piece(NamedTuple):
    """A padded part of a batch on the device, with its streams."""

    ids: Tensor
    places: Tensor
    targets: Tensor
    rule: Tensor | None
    share: Tensor
    behaviour: Tensor | None
    trainer: Tensor | None
    reference: Tensor | None
    advantages: Tensor | None
    weights: Tensor | None
    value_places: Tensor
    returns: Tensor | None
    beginnings: Tensor | None = None
    group: Tensor | None = None
    own: Tensor | None = None
    lengths: list[int] | None = None


def piece(samples: Samples, padded: Padded, share: NDArray[np.float32], device: torch.device) -> Piece:
    def put(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    def stream(flat: NDArray[np.int64], array: NDArray[np.generic] | None) -> Tensor | None:
        return None if array is None else put(array[flat])

    return Piece(
        ids=put(padded.ids),
        places=put(padded.places),
        targets=put(padded.targets),
        share=put(share[padded.flat]),
        behaviour=stream(padded.flat, samples.logprobs),
        value_places=put(padded.value_places),
        **{name: stream(padded.flat, getattr(samples, name)) for name in ACTION_STREAMS},
        returns=stream(padded.value_flat, samples.returns),
        **{name: None if (x := getattr(padded, name)) is None else put(x) for name in ("beginnings", "group", "own")},
        lengths=padded.lengths,
    )


def logprobs_at(
    model: TrainableModel, part: Piece, rules: Sequence[SamplingRule], *, is_spread: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probs and entropies at the decided places, and all states [rows × width, W] for a critic.

    The head is applied only where a token was decided; of a large vocabulary to some thousand tokens at a time, whose
    scores are computed again in the backward pass in place of being kept."""
    states = _states(model, part)
    decided = states.index_select(0, part.places)
    if not isinstance(model, Hub) or len(decided) * model.vocabulary <= SCORES:
        return *choose(model.logits(decided).float(), part.targets, rules, part.rule, is_spread=is_spread), states
    if decided.is_cuda and _is_plain(rules) and isinstance(model.net, CausalLM):
        from holdfast.policies.kernels import head_logprobs

        heat = rules[0].temperature or 1.0
        logp, entropy = head_logprobs(decided, model.net.lm_head.weight, part.targets, heat)
        return logp, entropy if is_spread else entropy.detach(), states
    return *_in_parts(model, part, decided, rules, is_spread), states


def _is_plain(rules: Sequence[SamplingRule]) -> bool:
    first = rules[0]
    return len(rules) == 1 and not first.banned and not first.top_k and first.top_p >= 1.0


def _in_parts(
    model: Hub, part: Piece, decided: Tensor, rules: Sequence[SamplingRule], is_spread: bool
) -> tuple[Tensor, Tensor]:
    def read(hidden: Tensor, targets: Tensor, rule: Tensor | None) -> tuple[Tensor, Tensor]:
        return choose(model.logits(hidden).float(), targets, rules, rule, is_spread=is_spread)

    size = max(SCORES // model.vocabulary, 1)
    found = []
    for start in range(0, len(decided), size):
        some = slice(start, start + size)
        rule = None if part.rule is None else part.rule[some]
        found.append(checkpoint(read, decided[some], part.targets[some], rule, use_reentrant=False))
    logp, entropy = (torch.cat(parts) for parts in zip(*found, strict=True))
    return logp, entropy


def _states(model: TrainableModel, part: Piece) -> Tensor:
    if part.lengths is not None and isinstance(model, Hub):
        return model.hidden(part.ids, part.lengths).flatten(0, 1)
    if not shared.is_readable(model, part.ids.device):
        return model.hidden(part.ids).flatten(0, 1)
    if part.beginnings is None or part.group is None or part.own is None:
        return shared.read_alone(model, part.ids)
    return shared.read_together(model, part.beginnings, part.own, part.ids, part.group)


def loss_of(
    part: Piece, logp: Tensor, entropy: Tensor, predicted: Tensor | None, objective: Objective, targets: int
) -> TokenSums:
    """The loss of this piece; `targets` is how many the critic has in the whole batch."""
    o, zero = objective, logp.new_zeros(())
    now = logp.detach()
    inside = ~now.isneginf()  # what the model would no longer sample at all has no gradient
    own = torch.where(inside, now, 0.0)  # and, where nobody told its log-prob, no number either
    behaviour = own if part.behaviour is None else torch.where(part.behaviour.isnan(), own, part.behaviour)
    new = torch.where(inside, logp, behaviour.to(logp.dtype))
    behaviour = behaviour.to(new.dtype)
    old = behaviour
    surrogate = clone = reference = near = zero
    clipped = torch.zeros_like(inside)
    if part.advantages is not None:
        advantages = part.advantages.to(new.dtype)
        if o.importance_cap is not None:
            old = now if part.trainer is None else part.trainer.to(new.dtype)
            old = torch.where(inside, old, behaviour)
            advantages = advantages * importance_weight(old, behaviour, cap=o.importance_cap)
        losses, _, clipped = clipped_surrogate(new, old, advantages, low=o.clip_low, high=o.clip_high)
        surrogate = (part.share * losses).sum()
    if part.weights is not None:
        clone = -(part.share * part.weights * new).sum()
    if part.reference is not None and o.reference_kl:
        reference = (part.share * kl(new, part.reference.to(new.dtype))).sum()
    if o.behaviour_kl:
        near = (part.share * kl(new, behaviour, how="k2")).sum()
    spread = (part.share * entropy).sum()
    value = zero
    if predicted is not None and part.returns is not None and targets:
        value = value_loss(predicted, part.returns.to(predicted.dtype)).sum() / targets
    loss = surrogate + clone + o.reference_kl * reference + o.behaviour_kl * near
    loss = loss - o.entropy * spread + o.value * value
    moved = 0.5 * (new.detach() - old).clamp(-FAR, FAR).square()
    terms = (surrogate, clone, reference, near, spread, value)
    before = now if part.trainer is None else part.trainer.to(new.dtype)
    gap = torch.where(inside, before - behaviour, 0.0).abs()
    plain = (moved.sum(), clipped.sum(), entropy.sum(), (~inside).sum(), gap.sum())
    return TokenSums(loss, torch.stack([number.detach().to(loss.dtype) for number in (*terms, *plain)]))


def values_at(critic: nn.Module, states: Tensor, places: Tensor) -> Tensor:
    """The critic's values at these places, [N]."""
    chosen = states.index_select(0, places)
    if not torch.is_autocast_enabled(chosen.device.type):
        chosen = chosen.to(next(critic.parameters()).dtype)  # its weights have 32 bits whatever the model's have
    predicted: Tensor = critic(chosen).squeeze(-1)
    return predicted.float() if predicted.dtype == torch.bfloat16 else predicted
