"""A reward model: a language model with a head that says how much its reader would prefer an answer.

It is a checkpoint as others are, with the head beside the weights (`learn.reward_model` makes it). As a judge it gives
the probability that an answer is preferred to the middling one of those that it was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import EvalItem
from holdfast.policies import model as models
from holdfast.policies import weights
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.lm import Transformer
from holdfast.policies.model import Model

KIND = "reward"
HEAD = "reward"  # the head's folder within the checkpoint's
BATCH = 16  # conversations read at a time
MIDDLE = "middle"  # mean reward of what it was trained on, in the notes of the head


def new_head(model: nn.Module, *, seed: int) -> nn.Linear:
    """From the last state of a conversation to its reward; Stiennon et al. 2020, arXiv:2009.01325, draw it so."""
    reader: Any = model
    device = next(model.parameters()).device
    with torch.no_grad():
        width = reader.hidden(torch.zeros((1, 1), dtype=torch.long, device=device)).shape[-1]
    head = nn.Linear(width, 1)
    with torch.no_grad():
        head.weight.normal_(0.0, (width + 1) ** -0.5, generator=torch.Generator().manual_seed(seed))
        head.bias.zero_()
    return head.to(device)


class RewardModel:
    """A model and its head, to read with."""

    def __init__(self, model: Any, head: nn.Linear, *, middle: float, version: str) -> None:
        self._model, self._head, self._middle, self.version = model.eval(), head.eval(), middle, version
        is_own = isinstance(model, Transformer)
        self._template = ByteTemplate() if is_own else model.template
        self._context = model.shape.context if is_own else model.context

    def rewards(self, conversations: Sequence[tuple[Sequence[Any], Sequence[Any]]]) -> list[float | None]:
        """Of each conversation (messages, the answer last, and tools); None where it is longer than the model reads."""
        told = [self._ids(*conversation) for conversation in conversations]
        kept = [place for place, ids in enumerate(told) if len(ids) <= self._context]
        found: list[float | None] = [None] * len(told)
        order = sorted(kept, key=lambda place: len(told[place]))
        for first in range(0, len(order), BATCH):
            some = order[first : first + BATCH]
            for place, reward in zip(some, self._read([told[place] for place in some]).tolist(), strict=True):
                found[place] = reward
        return found

    @torch.inference_mode()
    def _read(self, rows: Sequence[Sequence[int]]) -> Tensor:
        device = next(self._model.parameters()).device
        ids = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.long)
        for row, one in zip(ids, rows, strict=True):
            row[: len(one)] = torch.tensor(one)
        ends = torch.tensor([len(row) - 1 for row in rows], device=device)
        states = self._model.hidden(ids.to(device))[torch.arange(len(rows), device=device), ends]
        rewards: Tensor = self._head(states.to(self._head.weight.dtype))[:, 0].float().cpu()
        return rewards

    def _ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        if not messages or messages[-1].get("role") != "assistant":
            remedy = "give the assistant's message last"
            raise BadInput("conversation", why="does not end with an answer", remedy=remedy)
        return [*self._template.prompt(messages[:-1], tools), *self._template.answer(messages, tools)]

    def probabilities(self, artefacts: Sequence[EvalItem]) -> list[float | None]:
        """Those of artefacts that hold their conversation; None of others."""
        held = [place for place, item in enumerate(artefacts) if item.detail.get("messages")]
        talks = [(artefacts[place].detail["messages"], artefacts[place].detail.get("tools") or ()) for place in held]
        found: list[float | None] = [None] * len(artefacts)
        for place, reward in zip(held, self.rewards(talks), strict=True):
            if reward is not None:
                found[place] = 1.0 / (1.0 + math.exp(min(max(self._middle - reward, -500.0), 500.0)))
        return found


def is_reward_model(folder: str | Path) -> bool:
    return (Path(folder) / HEAD / weights.MANIFEST).is_file()


def load(folder: str | Path) -> RewardModel:
    """The one in a checkpoint's folder."""
    folder = Path(folder)
    if not is_reward_model(folder):
        remedy = "holdfast policy train MODEL pairs.jsonl --algorithm reward_model"
        raise BadInput(str(folder), why="holds no reward model", remedy=remedy)
    tensors, manifest = weights.load(folder / HEAD)
    model, sha256 = models.load(Model(str(folder)), None)
    if manifest.parent != sha256:
        raise BadInput(str(folder), why="head and weights are of different checkpoints", remedy="restore the folder")
    head = new_head(model, seed=0)
    weights.fit(head, tensors, what=str(folder))
    return RewardModel(model, head, middle=float(manifest.notes[MIDDLE]), version=manifest.sha256[:12])
