"""A small head on a language model's hidden states: how probable is it that what was answered is right?

The model below it stays as it is, and one reading of the conversation is enough. How long an answer is, is not among
what the head is shown. Which answers it learns from, and what "right" means, is up to `workloads.tooluse.verifier`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import EvalItem
from holdfast.policies import weights
from holdfast.policies.lm import Transformer
from holdfast.policies.model import load_transformer
from holdfast.policies.packaged import HERE
from holdfast.policies.tokens import ASSISTANT, render
from holdfast.policies.weights import Manifest

KIND = "verifier"
PACKAGED_HEAD = HERE / "sprout" / KIND  # the one in the package
NUMBERS = 4  # log-probs that the head is shown beside the hidden states
INNER = 48
BATCH = 32  # conversations read at a time

Conversation = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]  # messages, the answer last, and tools


class VerifierHead(nn.Module):
    """What was read of an answer [N, F] in, the log-odds [N] that it is right out."""

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, inner: int, *, seed: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.first, self.last = nn.Linear(features, inner), nn.Linear(inner, 1)
        rng = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for layer in (self.first, self.last):
                layer.weight.normal_(0.0, layer.in_features**-0.5, generator=rng)
                layer.bias.zero_()

    def forward(self, read: Tensor) -> Tensor:
        odds: Tensor = self.last(F.silu(self.first((read - self.mean) / self.scale)))
        return odds[:, 0]


class Verifier:
    """A head and the model that it reads with."""

    def __init__(self, net: Transformer, head: VerifierHead, *, version: str) -> None:
        self._net, self._head, self.version = net.eval(), head.eval(), version

    def __call__(self, conversations: Sequence[Conversation]) -> list[float | None]:
        """The probability that each answer is right; None where the conversation is longer than the model reads."""
        read, places = features(self._net, conversations)
        found: list[float | None] = [None] * len(conversations)
        with torch.inference_mode():
            for place, odds in zip(places, self._head(read).double(), strict=True):
                found[place] = float(torch.sigmoid(odds))
        return found


def probabilities(using: Verifier, artefacts: Sequence[EvalItem]) -> list[float | None]:
    """What the verifier says of artefacts that hold their conversation; None of those that hold none."""
    held = [place for place, item in enumerate(artefacts) if item.detail.get("messages")]
    talks = [(artefacts[place].detail["messages"], artefacts[place].detail.get("tools") or ()) for place in held]
    found: list[float | None] = [None] * len(artefacts)
    for place, said in zip(held, using(talks), strict=True):
        found[place] = said
    return found


@torch.inference_mode()
def features(net: Transformer, conversations: Sequence[Conversation]) -> tuple[Tensor, list[int]]:
    """What a head is shown of each conversation that is short enough [N, F], and which ones these are."""
    told = [_told(*conversation) for conversation in conversations]
    kept = [place for place, (ids, _, _) in enumerate(told) if len(ids) <= net.shape.context]
    order = sorted(kept, key=lambda place: len(told[place][0]))  # alike in length: little is padded
    pooled = torch.zeros(len(conversations), width(net))
    for first in range(0, len(order), BATCH):
        some = order[first : first + BATCH]
        ids = torch.zeros(len(some), max(len(told[place][0]) for place in some), dtype=torch.long)
        for row, place in enumerate(some):
            ids[row, : len(told[place][0])] = torch.tensor(told[place][0])
        hidden = net.hidden(ids)
        logp = F.log_softmax(net.logits(hidden[:, :-1]), -1).gather(-1, ids[:, 1:, None])[..., 0]
        for row, place in enumerate(some):
            pooled[place] = _pooled(hidden[row], logp[row], *told[place][1:])
    return pooled[kept], kept


def width(net: Transformer) -> int:
    return 3 * net.shape.width + NUMBERS


def _told(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> tuple[list[int], Any, Any]:
    """The ids, the places of the last answer, and those of all that the assistant said before."""
    if not messages or messages[-1].get("role") != "assistant":
        raise BadInput("conversation", why="does not end with an answer", remedy="give the assistant's message last")
    ids, decided = render(messages, tools)
    began = max(place for place, token in enumerate(ids) if token == ASSISTANT) + 1
    return ids, torch.arange(began, len(ids)), torch.tensor([p for p in range(began) if decided[p]], dtype=torch.long)


def _pooled(hidden: Tensor, logp: Tensor, answer: Tensor, before: Tensor) -> Tensor:
    """The end of the answer, the mean over it, the mean over what came before; and how likely both were."""
    nothing = torch.zeros_like(hidden[0])
    states = [hidden[answer[-1]], hidden[answer].mean(0), hidden[before].mean(0) if len(before) else nothing]
    likely = [logp[answer - 1], logp[before - 1] if len(before) else torch.zeros(1)]
    return torch.cat([*states, torch.stack([value for tensor in likely for value in (tensor.mean(), tensor.min())])])


def fit(
    read: Tensor,
    outcomes: Sequence[bool],
    *,
    groups: Sequence[str],
    seed: int,
    inner: int = INNER,
    epochs: int = 25,
    rate: float = 2e-3,
    decay: float = 0.05,
    drop: float = 0.2,
) -> VerifierHead:
    """A head for these answers [N, F], some of them right: cross-entropy, AdamW, inputs dropped at random.

    Within each group (of one author) right and wrong count alike: who wrote it tells nothing of whether it is right."""
    right, weight = torch.tensor(outcomes, dtype=torch.float32), balanced(outcomes, groups)
    if read.shape[:1] != right.shape or not 0 < float(right.mean()) < 1:
        raise BadInput(f"{len(right)} answers", why="some must be right and some wrong", remedy="gather more")
    head, rng = VerifierHead(read.shape[1], inner, seed=seed), torch.Generator().manual_seed(seed)
    head.mean.copy_(read.mean(0))
    head.scale.copy_(read.std(0).clamp_min(1e-3))
    best = torch.optim.AdamW(head.parameters(), lr=rate, weight_decay=decay)
    course = torch.optim.lr_scheduler.CosineAnnealingLR(best, epochs)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(read), generator=rng), 256):
            kept = torch.rand(len(rows), read.shape[1], generator=rng) >= drop
            shown = torch.where(kept, read[rows], head.mean)
            best.zero_grad()
            F.binary_cross_entropy_with_logits(head(shown), right[rows], weight[rows]).backward()  # type: ignore[no-untyped-call]
            best.step()
        course.step()
    return head.eval()


def balanced(outcomes: Sequence[bool], groups: Sequence[str]) -> Tensor:
    """Weights [N] of mean 1, under which every pair of a group and an outcome weighs the same."""
    pairs = list(zip(groups, outcomes, strict=True))
    counts = Counter(pairs)
    return torch.tensor([len(pairs) / len(counts) / counts[pair] for pair in pairs])


def save(folder: Path, head: VerifierHead, manifest: Manifest) -> Manifest:
    """In half precision; the manifest's parent is the hash of the model that it reads with."""
    shape = {"features": head.first.in_features, "inner": head.first.out_features}
    return weights.save(folder, head.state_dict(), replace(manifest, kind=KIND, shape=shape), half=True)


def load(folder: Path = PACKAGED_HEAD, *, model: str = "sprout") -> Verifier:
    """The head that lies there, on the model it was made for and no other."""
    tensors, manifest = weights.load(folder)
    if manifest.kind != KIND:
        raise BadInput(str(folder), why=f"holds weights of kind {manifest.kind}", remedy="name a verifier's folder")
    net, below = load_transformer(model)
    if manifest.parent != below.sha256:
        why = f"was made for a model {str(manifest.parent)[:12]}…, and {model} is {below.sha256[:12]}…"
        raise BadInput(f"verifier {folder}", why=why, remedy="train it anew for that model")
    try:
        head = VerifierHead(int(manifest.shape["features"]), int(manifest.shape["inner"]), seed=0)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"{folder}: shape", why=f"{type(error).__name__}: {error}") from None
    if head.first.in_features != width(net):
        raise BadInput(f"{folder}: shape", why=f"{head.first.in_features} features, {model} gives {width(net)}")
    weights.fit(head, tensors, what=str(folder))
    return Verifier(net, head, version=manifest.sha256[:12])
