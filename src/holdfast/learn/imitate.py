"""Behaviour cloning and DAgger: a network learns to do what the script of an environment would do.

A script that can be asked anywhere is asked where the network itself goes: cloned on the script's own days it meets
states that it never saw, and lives badly however often it agrees (Ross et al. 2011, arXiv:1011.0686). Samples are kept
with a count of what they cover. Whether the result is good is measured by whoever lets it act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.contracts.envs import Observation, VectorEnv
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.learn.ppo import Adam
from holdfast.policies import weights
from holdfast.policies.nets import ActionDistribution, ActorCritic, action_distribution

KIND = "demonstrations"
LEAST_ENTROPY = 0.5  # nats of the actions: a script that does one thing teaches nothing
ADJUSTED = 0.3  # τ of the logit adjustment: by how much of its prior a common action counts less
THIN = 20  # rows: what is shown less often is hardly shown
PIECE = 65536  # rows that are judged at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What was seen, what was allowed, and what the script would have done: [N, ...]. Half precision is exact enough
    for numbers within −1 and 1, and what is trained on is what is kept."""

    observations: NDArray[np.float16]
    masks: NDArray[np.bool_]
    actions: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.actions)

    def save(self, folder: Path, manifest: weights.Manifest) -> str:
        tensors = {name: torch.from_numpy(getattr(self, name)) for name in ("observations", "masks", "actions")}
        return weights.save(folder, tensors, manifest).sha256

    @classmethod
    def load(cls, folder: Path) -> Samples:
        tensors, manifest = weights.load(folder)
        if manifest.kind != KIND:
            raise BadInput(str(folder), why=f"holds {manifest.kind}", remedy=f"name a folder with {KIND}")
        return cls(**{name: tensor.numpy() for name, tensor in tensors.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptAgreement:
    """How often a network would do what the script does, where it learnt from none of it."""

    rows: int
    accuracy: float
    macro_recall: float  # mean over the actions that the script takes: waiting is most of what anybody does
    recall: Mapping[str, float]  # by action
    likeliest: tuple[float, float]  # accuracy and recall where the likeliest action counts, without an adjustment

    def plain(self) -> dict[str, Any]:
        recall = {name: round(value, 4) for name, value in self.recall.items()}
        numbers = {"accuracy": round(self.accuracy, 4), "macro_recall": round(self.macro_recall, 4)}
        return {"rows": self.rows, **numbers, "recall": recall, "likeliest": [round(x, 4) for x in self.likeliest]}


def demonstrate(
    envs: VectorEnv,
    net: ActorCritic | None,
    *,
    steps: int,
    share: float,
    label_rate: float,
    seed: int,
    rng: np.random.Generator,
    check: Callable[[], None] = lambda: None,
) -> Samples:
    """Plays `steps` and asks the script at a share `label_rate` of them. `share` of the seats are the network's (mixed
    control); the others are the script's own. A seat without a choice has nothing to teach, nor has a script that wants
    what is not possible."""
    view, rows = envs.reset(seed), list[tuple[Any, Any, Any]]()
    is_own = np.zeros(envs.count, np.bool_) if net is None else rng.random(envs.count) < share
    first, seats = np.ones(envs.count, np.bool_), np.arange(envs.count)
    for step in range(steps):
        if step % 64 == 0:
            check()
        scripted = script_of(view)
        mask = np.ones((envs.count, envs.spaces.actions), np.bool_) if view.mask is None else view.mask
        asked = (mask.sum(axis=1) > 1) & mask[seats, scripted] & (rng.random(envs.count) < label_rate)
        rows.append((view.values[asked].astype(np.float16), mask[asked].copy(), scripted[asked].copy()))
        actions = scripted if net is None else np.where(is_own, drawn(net, view, first, rng), scripted)
        result = envs.step(actions)
        view, first = result.observation, result.terminated | result.truncated
    observations, masks, actions = (np.concatenate(parts) for parts in zip(*rows, strict=True))
    return Samples(observations=observations, masks=masks, actions=actions)


def script_of(view: Observation) -> NDArray[np.int64]:
    if view.scripted is None:
        why = "has no script to learn from: its observations have no `scripted`"
        raise BadInput("the environment", why=why, remedy="learn by PPO alone")
    return view.scripted


def drawn(net: ActorCritic, view: Observation, first: Any, rng: np.random.Generator) -> NDArray[np.int64]:
    with torch.no_grad():
        policy, _ = action_distribution(net, view, net.begin(len(view.values)), first)
    return policy.draw(rng).astype(np.int64)


def check_samples(samples: Samples) -> None:
    """Refuses what cannot teach: nothing at all, or almost only one action."""
    counts = np.bincount(samples.actions)
    shares = counts[counts > 0] / max(1, counts.sum())
    entropy = abs(float((shares * np.log(shares)).sum()))
    if entropy < LEAST_ENTROPY:
        why = f"the script's actions have an entropy of {entropy:.2f} nats, and at least {LEAST_ENTROPY} is needed"
        raise BadInput("the demonstrations", why=why, remedy="capture longer, or a script that does more")


def audit(samples: Samples, covered: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Checks a set of demonstrations, for the gate and for people: what would teach nonsense blocks, what is thinly
    covered (by `coverage`) is told."""
    rows = len(samples)
    is_odd = ~np.isfinite(samples.observations).all(axis=1)
    is_impossible = ~samples.masks[np.arange(rows), samples.actions]
    found = [
        Finding(name="demonstrations_finite", severity="error", count=int(is_odd.sum()), of=rows),
        Finding(name="demonstrations_possible", severity="error", count=int(is_impossible.sum()), of=rows),
    ]
    for name, counts in ((name, counts) for name, counts in covered.items() if name != "rows"):
        thin = [label for label, count in counts.items() if count < THIN]
        how: dict[str, Any] = {"severity": "info", "count": len(thin), "of": len(counts), "blocks": False}
        found.append(Finding(name=f"demonstrations_of_each_{name}", **how, detail=", ".join(thin[:8])))
    return tuple(found)


def coverage(samples: Samples, actions: Sequence[str], parts: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """How many samples there are of each action, and of each part of what was seen (by name: a label for each row)."""
    counted = {
        name: {str(label): int(count) for label, count in zip(*np.unique(labels, return_counts=True), strict=True)}
        for name, labels in parts.items()
    }
    done = np.bincount(samples.actions, minlength=len(actions))
    return {"rows": len(samples), "action": dict(zip(actions, done.tolist(), strict=True)), **counted}


def fit(
    net: ActorCritic,
    adam: Adam,
    samples: Sequence[Samples],
    *,
    epochs: int,
    minibatch: int,
    lr: tuple[float, float],
    rng: np.random.Generator,
    check: Callable[[], None] = lambda: None,
) -> float:
    """Cross-entropy with the script's actions over all samples in shuffled minibatches; the rate goes from the first
    `lr` to the second. The mean loss of the last pass."""
    observations, masks, actions = (
        torch.from_numpy(np.concatenate([getattr(part, name) for part in samples]))
        for name in ("observations", "masks", "actions")
    )
    count, losses = len(actions), list[Tensor]()
    size = min(minibatch, count)
    total, done = epochs * (count // size), 0
    for _ in range(epochs):
        check()
        order, losses = torch.from_numpy(rng.permutation(count)), []
        for start in range(0, count - size + 1, size):
            chosen = order[start : start + size]
            policy = net.decide(observations[chosen].float(), masks[chosen])
            loss = -policy.log_prob(actions[chosen]).mean()
            adam.descend(adam.gradient(loss), lr[0] + (lr[1] - lr[0]) * done / total)
            losses.append(loss.detach())
            done += 1
    return float(torch.stack(losses).mean())


def agreement(net: ActorCritic, samples: Samples, actions: Sequence[str], counts: NDArray[Any]) -> ScriptAgreement:
    """The network's choice against the script's, row by row: arg max log p(a) − τ log prior(a), the prior being the
    shares of the demonstrations' actions (logit adjustment; Menon et al. 2021, arXiv:2007.07314). The likeliest action
    alone would be to wait wherever a rare one is possible, though the network tells the rows apart."""
    prior = np.log(np.maximum(counts, 1) / max(1, counts.sum())).astype(np.float32)
    log_p = np.concatenate([_log_p(net, samples, at) for at in range(0, len(samples), PIECE)])
    taken = np.unique(samples.actions)

    def judged(chosen: NDArray[Any]) -> tuple[float, dict[str, float]]:
        is_same = chosen == samples.actions
        recall = {actions[action]: float(is_same[samples.actions == action].mean()) for action in taken}
        return float(is_same.mean()), recall

    accuracy, recall = judged((log_p - ADJUSTED * prior).argmax(axis=1))
    plain, plain_recall = judged(log_p.argmax(axis=1))
    return ScriptAgreement(
        rows=len(samples),
        accuracy=accuracy,
        macro_recall=float(np.mean(list(recall.values()))),
        recall=recall,
        likeliest=(plain, float(np.mean(list(plain_recall.values())))),
    )


@torch.no_grad()
def _log_p(net: ActorCritic, samples: Samples, at: int) -> NDArray[np.float32]:
    rows = slice(at, at + PIECE)
    policy = net.decide(torch.from_numpy(samples.observations[rows]).float(), torch.from_numpy(samples.masks[rows]))
    assert isinstance(policy, ActionDistribution)
    return policy.log_p.numpy()
