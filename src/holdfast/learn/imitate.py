"""Behaviour cloning and DAgger: a network learns to do what the script of an environment would do.

A script that can be asked anywhere is asked where the network itself goes: cloned on the script's own days it meets
states that it never saw, and lives badly however often it agrees (Ross et al. 2011, arXiv:1011.0686). Samples are kept
with a count of what they cover. Whether the result is good is measured by whoever lets it act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
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
from holdfast.policies.nets import ActionDistribution, ActorCritic, VectorActor

KIND = "demonstrations"
LEAST_ENTROPY = 0.5  # nats of the actions: a script that does one thing teaches nothing
ADJUSTED = 0.3  # τ of the logit adjustment: by how much of its prior a common action counts less
THIN = 20  # rows: what is shown less often is hardly shown
PIECE = 65536  # rows that are judged at a time
WINDOW = 16  # steps that a gradient reaches back through a memory; what is remembered goes on from window to window


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What was seen, what was allowed, and what the script would have done: [N, ...] rows; for a network with a memory
    [T, B, ...], each column an unbroken sequence. Half precision is exact enough for numbers within −1 and 1, and what
    is trained on is what is kept."""

    observations: NDArray[np.float16]
    masks: NDArray[np.bool_]
    actions: NDArray[np.int64]
    first: NDArray[np.bool_] | None = None  # [T, B]; an episode begins with this observation
    asked: NDArray[np.bool_] | None = None  # [T, B]; what there is to learn from: elsewhere there was no choice

    def __len__(self) -> int:
        return len(self.actions) if self.asked is None else int(self.asked.sum())

    def rows(self) -> Samples:
        """What there is to learn from, row by row."""
        if self.asked is None:
            return self
        parts = {name: getattr(self, name)[self.asked] for name in ("observations", "masks", "actions")}
        return Samples(**parts)

    def save(self, folder: Path, manifest: weights.Manifest) -> str:
        arrays = {name: getattr(self, name) for name in ("observations", "masks", "actions", "first", "asked")}
        tensors = {name: torch.from_numpy(array) for name, array in arrays.items() if array is not None}
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
    memory: bool = False,
) -> Samples:
    """Plays `steps` and asks the script at a share `label_rate` of them; for a network with a `memory`, at all steps of
    that share of the seats. `share` of the seats are the network's (mixed control); the others are the script's own. A
    seat without a choice has nothing to teach, nor has a script that wants what is not possible."""
    view, rows = envs.reset(seed), list[tuple[Any, ...]]()
    is_own = np.zeros(envs.count, np.bool_) if net is None else rng.random(envs.count) < share
    first, seats = np.ones(envs.count, np.bool_), np.arange(envs.count)
    followed = rng.permutation(envs.count)[: ceil(label_rate * envs.count)] if memory else seats
    playing = None if net is None else VectorActor(net, envs.count, rng)
    for step in range(steps):
        if step % 64 == 0:
            check()
        scripted = script_of(view)
        mask = np.ones((envs.count, envs.spaces.actions), np.bool_) if view.mask is None else view.mask
        asked = (mask.sum(axis=1) > 1) & mask[seats, scripted]
        kept = followed if memory else asked & (rng.random(envs.count) < label_rate)
        row = (view.values[kept].astype(np.float16), mask[kept].copy(), scripted[kept].copy())
        rows.append((*row, first[kept], asked[kept]) if memory else row)
        actions = scripted if playing is None else np.where(is_own, playing(view, first), scripted)
        result = envs.step(actions)
        view, first = result.observation, result.terminated | result.truncated
    joined = np.stack if memory else np.concatenate
    names = ("observations", "masks", "actions", "first", "asked")
    return Samples(**{name: joined(parts) for name, parts in zip(names, zip(*rows, strict=True), strict=False)})


def script_of(view: Observation) -> NDArray[np.int64]:
    if view.scripted is None:
        why = "has no script to learn from: its observations have no `scripted`"
        raise BadInput("the environment", why=why, remedy="learn by PPO alone")
    return view.scripted


def check_samples(samples: Samples) -> None:
    """Refuses what cannot teach: nothing at all, or almost only one action."""
    counts = np.bincount(samples.rows().actions)
    shares = counts[counts > 0] / max(1, counts.sum())
    entropy = abs(float((shares * np.log(shares)).sum()))
    if entropy < LEAST_ENTROPY:
        why = f"the script's actions have an entropy of {entropy:.2f} nats, and at least {LEAST_ENTROPY} is needed"
        raise BadInput("the demonstrations", why=why, remedy="capture longer, or a script that does more")


def audit(samples: Samples, covered: Mapping[str, Any]) -> tuple[Finding, ...]:
    """Checks a set of demonstrations, for the gate and for people: what would teach nonsense blocks, what is thinly
    covered (by `coverage`) is told."""
    shown, rows = samples.rows(), len(samples)
    is_odd = ~np.isfinite(shown.observations).all(axis=1)
    is_impossible = ~shown.masks[np.arange(rows), shown.actions]
    findings = [
        Finding(name="demonstrations_finite", severity="error", count=int(is_odd.sum()), of=rows),
        Finding(name="demonstrations_possible", severity="error", count=int(is_impossible.sum()), of=rows),
    ]
    for name, counts in ((name, counts) for name, counts in covered.items() if name != "rows"):
        thin = [label for label, count in counts.items() if count < THIN]
        how: dict[str, Any] = {"severity": "info", "count": len(thin), "of": len(counts), "blocks": False}
        findings.append(Finding(name=f"demonstrations_of_each_{name}", **how, detail=", ".join(thin[:8])))
    return tuple(findings)


def coverage(samples: Samples, actions: Sequence[str], parts: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """How many samples there are of each action, and of each part of what was seen (by name: a label for each of
    `samples.rows()`)."""
    counted = {
        name: {str(label): int(count) for label, count in zip(*np.unique(labels, return_counts=True), strict=True)}
        for name, labels in parts.items()
    }
    done = np.bincount(samples.rows().actions, minlength=len(actions))
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
    if net.body.memory:
        sizes = {"epochs": epochs, "columns": max(1, minibatch // WINDOW)}
        return _fit_sequences(net, adam, samples, **sizes, lr=lr, rng=rng, check=check)
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


def _fit_sequences(
    net: ActorCritic,
    adam: Adam,
    samples: Sequence[Samples],
    *,
    epochs: int,
    columns: int,
    lr: tuple[float, float],
    rng: np.random.Generator,
    check: Callable[[], None],
) -> float:
    """The same for a network with a memory: some columns from their beginning to their end, window by window, each with
    what is remembered of the windows before it (truncated backpropagation through time)."""
    names = ("observations", "masks", "actions", "first", "asked")
    parts = {name: np.concatenate([getattr(part, name) for part in samples], axis=1) for name in names}
    tensors = {name: torch.from_numpy(part) for name, part in parts.items()}
    steps, count = tensors["actions"].shape
    starts, losses = range(0, steps, WINDOW), list[Tensor]()
    total, done = epochs * -(-count // columns) * len(starts), 0
    for _ in range(epochs):
        check()
        losses = []
        order = torch.from_numpy(rng.permutation(count))
        for start_column in range(0, count, columns):
            chosen = order[start_column : start_column + columns]
            hidden = net.begin(len(chosen))
            for start in starts:
                window = {name: part[start : start + WINDOW, chosen] for name, part in tensors.items()}
                features, states = net.remember(window["observations"].float(), hidden, window["first"])
                hidden, asked, done = states[-1].detach(), window["asked"], done + 1
                if not bool(asked.any()):
                    continue
                policy = net.decide(features[asked], window["masks"][asked])
                loss = -policy.log_prob(window["actions"][asked]).mean()
                adam.descend(adam.gradient(loss), lr[0] + (lr[1] - lr[0]) * done / total)
                losses.append(loss.detach())
    return float(torch.stack(losses).mean())


def agreement(net: ActorCritic, samples: Samples, actions: Sequence[str], counts: NDArray[Any]) -> ScriptAgreement:
    """The network's choice against the script's, row by row: arg max log p(a) − τ log prior(a), the prior being the
    shares of the demonstrations' actions (logit adjustment; Menon et al. 2021, arXiv:2007.07314). The likeliest action
    alone would be to wait wherever a rare one is possible, though the network tells the rows apart."""
    prior = np.log(np.maximum(counts, 1) / max(1, counts.sum())).astype(np.float32)
    if net.body.memory:
        log_p, samples = _remembered_log_p(net, samples), samples.rows()
    else:
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
def _remembered_log_p(net: ActorCritic, samples: Samples) -> NDArray[np.float32]:
    """Of the rows that were asked about, each with what the network remembers there."""
    assert samples.first is not None and samples.asked is not None
    hidden, found = net.begin(samples.first.shape[1]), []
    for at in range(0, len(samples.first), WINDOW):
        seen, first, asked, masks = (
            torch.from_numpy(getattr(samples, name)[at : at + WINDOW])
            for name in ("observations", "first", "asked", "masks")
        )
        features, states = net.remember(seen.float(), hidden, first)
        hidden = states[-1]
        policy = net.decide(features[asked], masks[asked])
        assert isinstance(policy, ActionDistribution)
        found.append(policy.log_p.numpy())
    return np.concatenate(found)


@torch.no_grad()
def _log_p(net: ActorCritic, samples: Samples, at: int) -> NDArray[np.float32]:
    rows = slice(at, at + PIECE)
    policy = net.decide(torch.from_numpy(samples.observations[rows]).float(), torch.from_numpy(samples.masks[rows]))
    assert isinstance(policy, ActionDistribution)
    return policy.log_p.numpy()
