"""What a drawn token means for the answer that it belongs to: ends, stop strings, budgets of thoughts, limits."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.policies.chat_template import ChatTemplate
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.grammar import TokenMask
from holdfast.policies.sampling import Completion, draw, log_probs, uniforms


class WritingModel(Protocol):
    """What a row needs to know of the model that writes it."""

    net: Any
    template: ChatTemplate

    @property
    def context(self) -> int: ...


class Row:
    """One answer being written."""

    def __init__(self, hub: WritingModel, request: DecodeRequest) -> None:
        prompt, sampling = request.ids, request.sampling
        if not 1 <= len(prompt) < hub.context:
            raise BadInput(f"{len(prompt)} tokens", why=f"the context is {hub.context}", remedy="shorten the text")
        if sampling.thinking is not None and hub.template.think is None:
            raise BadInput("thinking", why="no token of this model begins or ends a thought", remedy="leave it out")
        self.ticket, self.sampling, self._template = request.ticket, sampling, hub.template
        self.limit = min(sampling.max_tokens, hub.context - len(prompt))
        self._key = request.key
        self.ids, self.logprobs, self._forced = list[int](), list[float](), list[int]()
        self.finish: Literal["stop", "length"] | None = None
        self.left = sampling.thinking
        self.is_inside = sampling.thinking is not None and self._is_open(prompt)
        self._mask: TokenMask | None = None
        self._is_thought = self.is_masked and self._is_open(prompt)  # what is thought first is free
        self._stops = [stop.encode() for stop in sampling.stop]
        self._written = b""

    def _is_open(self, prompt: Sequence[int]) -> bool:
        """Whether the template has begun the thought already."""
        marks = [token for token in prompt if token in (self._template.think or ())]
        return bool(marks) and marks[-1] == (self._template.think or (-1,))[0]

    @property
    def banned(self) -> list[int]:
        return [self._template.think[0]] if self.sampling.thinking == 0 and self._template.think else []

    def take(self, token: int, logprob: float) -> int:
        """The token that comes next: the one that was drawn, or the end of a thought that has used up its budget."""
        if self.is_inside and self.left == 0 and self._template.think:
            token, logprob = self._template.think[1], 0.0
            self._forced.append(len(self.ids))
        if self._template.think and token in self._template.think:
            self.is_inside = token == self._template.think[0]
        elif self.is_inside and self.left:
            self.left -= 1
        self.ids.append(token)
        self.logprobs.append(min(logprob, 0.0))
        if self._is_thought:
            self._is_thought = token != (self._template.think or (0, -1))[1]
        elif self._mask is not None:
            self._mask.take(token)
        if self._stops:
            self._written += self._template.token_bytes(token)
        if token in self._template.ends or any(stop in self._written for stop in self._stops):
            self.finish = "stop"
        elif len(self.ids) == self.limit:
            self.finish = "length"
        return token

    @property
    def is_masked(self) -> bool:
        return bool(self.sampling.grammar)

    def mask(self, vocabulary: int) -> Tensor | None:
        """[V], the tokens that may not come next; None where all may."""
        if not self.is_masked or self._is_thought:
            return None
        self._mask = self._mask or TokenMask(self._template, vocabulary, self.sampling.grammar)
        return self._mask.banned

    @cached_property
    def uniform(self) -> NDArray[np.float32]:
        """Its chance; drawn when it is needed, while a GPU reads the prompts."""
        return uniforms(self._key, self.limit)

    @property
    def is_plain(self) -> bool:
        """Whether only an end or the limit can end it, and nothing is forced."""
        return not self._stops and not self.is_masked and (self.left is None or self._template.think is None)

    def extend(self, ids: Sequence[int], logprobs: Sequence[float]) -> None:
        """Takes several tokens of a plain row at once, of which only the last may end it."""
        self.ids += ids
        self.logprobs += logprobs
        if ids and ids[-1] in self._template.ends:
            self.finish = "stop"
        elif len(self.ids) == self.limit:
            self.finish = "length"

    def completion(self) -> Completion:
        assert self.finish is not None
        logprobs, forced = tuple(self.logprobs), tuple(self._forced)
        return Completion(ids=tuple(self.ids), logprobs=logprobs, forced=forced, finish=self.finish)


def drawn_by(rows: Sequence[Row], logits: Tensor) -> Tensor:
    """One more token for each row, by the scores [N, V] of its last one."""
    device = logits.device
    how = [row.sampling for row in rows]
    temperature = torch.tensor([sampling.temperature for sampling in how], device=device)
    top_k: Tensor | int = 0
    top_p: Tensor | float = 1.0
    if any(sampling.top_k > 0 or sampling.top_p < 1.0 for sampling in how):  # they take a sort
        top_k = torch.tensor([sampling.top_k for sampling in how], device=device)
        top_p = torch.tensor([sampling.top_p for sampling in how], device=device)
    banned = None
    if any(row.banned or row.is_masked for row in rows):
        banned = torch.zeros_like(logits, dtype=torch.bool)
        for place, row in enumerate(rows):
            if (mask := row.mask(logits.shape[-1])) is not None:
                banned[place] = mask.to(device)
            banned[place, row.banned] = True
    logps = log_probs(logits, temperature, top_k, top_p, banned=banned)
    uniform = torch.tensor([float(row.uniform[len(row.ids)]) for row in rows], device=device)
    drawn = torch.where(temperature == 0, logps.argmax(dim=-1), draw(logps, uniform).clamp_max(logps.shape[-1] - 1))
    chances = logps.gather(-1, drawn[:, None])[:, 0].tolist()
    taken = [row.take(*each) for row, *each in zip(rows, drawn.tolist(), chances, strict=True)]
    return torch.tensor(taken, device=device)
