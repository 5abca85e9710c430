"""What is drawn and with which probability: the one function that the sampler and the trainer share, and its terms.

A recorded log-prob is that of the token under the sampling in force: banned tokens out, then temperature, then top-k,
then top-p, renormalised. Temperature 0 takes the most probable token and records its log-prob at temperature 1, since
that of a certain choice would be 0 and would say nothing. Chance comes from one counter-based stream per answer, so
that an answer does not depend on which others were sampled beside it. Rows, caches and stopping are in `decoder`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.policies.tokens import THINK, UNTHINK

NO_LIMIT = 2**30
MARK = 256  # tokens from here on are marks, those below are bytes
MOST = 2**31 - 1  # of anything counted: it fits all arrays, here and on a GPU
COLDEST = 1e-3  # below, logits divided by it overflow or the temperature itself is 0 in 32 bits
HOTTEST = 1e6  # above, all tokens have the same chance, and 32 bits have an end
BELOW_ONE = np.float32(1 - 2**-23)  # times a sum of probabilities, always less than the sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How one answer is drawn."""

    temperature: float = 1.0  # 0: the most probable token
    top_p: float = 1.0
    top_k: int = 0  # 0: no limit
    max_tokens: int = 128
    stop: tuple[str, ...] = ()
    thinking: int | None = None  # tokens allowed inside <think>; None: no limit, 0: no thinking
    form: str = ""  # JSON of the `response_format` and `tool_choice` that were asked for; empty: any text
    grammar: str = ""  # of that form: tokens that no such text goes on with cannot be drawn

    def __post_init__(self) -> None:
        if self.thinking is not None:
            self._whole("thinking", least=0)
        self._whole("top_k", least=0)
        self._whole("max_tokens", least=1)
        self._number("temperature")
        self._number("top_p")
        for name, fine, rule, remedy in (
            ("temperature", 0.0 <= self.temperature <= HOTTEST, f"must be 0 or more, at most {HOTTEST:g}", ""),
            ("temperature", not 0.0 < self.temperature < COLDEST, "is too near to 0", "give 0: the likeliest token"),
            ("top_p", 0.0 < self.top_p <= 1.0, "must be above 0 and at most 1", ""),
            ("stop", all(map(_is_word, self.stop)), "must hold strings of whole letters that are not empty", ""),
        ):
            if not fine:
                raise BadInput(f"sampling.{name} = {shown(getattr(self, name))}", why=rule, remedy=remedy)

    def _whole(self, name: str, *, least: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise BadInput(f"sampling.{name} = {shown(value)}", why="must be a whole number")
        if not least <= value <= MOST:
            why = f"must be from {least} to {MOST}"
            raise BadInput(f"sampling.{name} = {shown(value)}", why=why, remedy="leave it out for the default")

    def _number(self, name: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, Real) or isinstance(value, bool):
            raise BadInput(f"sampling.{name} = {shown(value)}", why="must be a number")

    @property
    def banned(self) -> tuple[int, ...]:
        """Tokens that cannot be drawn; who recomputes the log-probs needs to know them."""
        return (THINK,) if self.thinking == 0 else ()

    @property
    def stops(self) -> tuple[bytes, ...]:
        return tuple(stop.encode() for stop in self.stop)

    @property
    def column(self) -> tuple[float, float, float, float]:
        """Its part of `SamplingRules`."""
        return self.temperature, float(self.top_k), self.top_p, float(bool(self.banned))


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One answer, as it was drawn."""

    ids: tuple[int, ...]  # its end included, when it came to one
    logprobs: tuple[float, ...]
    forced: tuple[int, ...] = ()  # places in ids that were put there and not drawn; their log-prob is 0
    finish: Literal["stop", "length"]


def log_probs(
    logits: Tensor,
    temperature: float | Tensor = 1.0,
    top_k: int | Tensor = 0,
    top_p: float | Tensor = 1.0,
    *,
    banned: Tensor | None = None,
    chosen: Tensor | None = None,
) -> Tensor:
    """Log-probs [..., V] under the sampling in force, −∞ for what could not be drawn.

    Numbers hold for all rows; tensors have the shape of the rows, logits.shape[:-1]. `banned` is a mask that broadcasts
    against the logits. `chosen` [...] is what had been drawn: it stays in where rounding would put it just outside."""
    x = logits.float()
    if banned is not None:
        x = x.masked_fill(banned, -torch.inf)
    if isinstance(temperature, Tensor):
        x = x / torch.where(temperature == 0, 1.0, temperature)[..., None]
    elif temperature not in (0, 1):
        x = x / temperature
    if isinstance(top_k, Tensor) or isinstance(top_p, Tensor) or top_k > 0 or top_p < 1.0:
        x = x.masked_fill(_outside(x.detach(), top_k, top_p, chosen), -torch.inf)
    return torch.log_softmax(x, dim=-1)


def _outside(x: Tensor, top_k: int | Tensor, top_p: float | Tensor, chosen: Tensor | None) -> Tensor:
    """Which tokens are not among the k most probable, or not in the smallest set of them that holds top_p."""
    ordered, order = x.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(x.shape[-1], device=x.device)
    if isinstance(top_k, Tensor):
        out = rank >= torch.where(top_k > 0, top_k, x.shape[-1])[..., None]
    else:
        out = rank >= (top_k or x.shape[-1])
    p = ordered.masked_fill(out, -torch.inf).softmax(dim=-1)
    before = p.cumsum(dim=-1) - p
    limit = torch.where(top_p < 1.0, top_p, 2.0)[..., None] if isinstance(top_p, Tensor) else top_p
    if isinstance(limit, Tensor) or limit < 1.0:
        out = out | ((before >= limit) & (rank > 0))
    out = torch.empty_like(x, dtype=torch.bool).scatter_(-1, order, out.expand_as(x))
    return out if chosen is None else out.scatter(-1, chosen[..., None], False)


def draw(logps: Tensor, uniform: Tensor) -> Tensor:
    """By the inverse of the distribution function: the first token whose cumulated probability exceeds the uniform."""
    cumulated = logps.exp().cumsum(dim=-1)
    return (cumulated <= uniform[..., None] * cumulated[..., -1:]).sum(dim=-1)


@dataclass(frozen=True, slots=True)
class SamplingRules:
    """How each of many rows is drawn; numbers and None where all rows ask for the same and it can be left out."""

    temperature: Tensor | float
    greedy: Tensor | None
    top_k: Tensor | int
    top_p: Tensor | float
    banned: Tensor | None  # [rows, V]

    @staticmethod
    def of(
        columns: NDArray[np.float32], vocabulary: int, device: torch.device, *, every: bool = False
    ) -> SamplingRules:
        """From `Sampling.column` of each row, side by side. `every` makes a tensor of everything, for a CUDA graph."""
        heat, top_k, top_p, bans = columns
        given = torch.from_numpy(columns).to(device)
        is_think = torch.arange(vocabulary, device=device) == THINK
        return SamplingRules(
            temperature=given[0] if every or (heat != 1).any() else 1.0,
            greedy=given[0] == 0 if every or (heat == 0).any() else None,
            top_k=given[1].long() if every or (top_k > 0).any() else 0,
            top_p=given[2] if every or (top_p < 1).any() else 1.0,
            banned=given[3, :, None].bool() & is_think if every or (bans > 0).any() else None,
        )

    @property
    def filters(self) -> bool:
        """Whether some row asks for top-k or top-p, which takes a sort."""
        return isinstance(self.top_k, Tensor) or isinstance(self.top_p, Tensor)

    def parts(self) -> list[Tensor]:
        every = (self.temperature, self.greedy, self.top_k, self.top_p, self.banned)
        return [part for part in every if isinstance(part, Tensor)]

    def copy(self, other: SamplingRules) -> None:
        """Take over the values of another one, in place."""
        for mine, new in zip(self.parts(), other.parts(), strict=True):
            mine.copy_(new)

    def first(self, rows: int, *, filtered: bool) -> SamplingRules:
        """The same for the first rows, made with `every`; without the sort if it is not needed."""
        temperature, greedy, top_k, top_p, banned = (part[:rows] for part in self.parts())
        return SamplingRules(temperature, greedy, top_k if filtered else 0, top_p if filtered else 1.0, banned)

    def decide(self, logits: Tensor, uniform: Tensor, forced: Tensor | None) -> tuple[Tensor, Tensor]:
        """The next token of each row and its log-prob; where it is forced, the end of thinking with log-prob 0."""
        logps = log_probs(logits, self.temperature, self.top_k, self.top_p, banned=self.banned)
        tokens = draw(logps, uniform)
        if self.greedy is not None:
            tokens = torch.where(self.greedy, logps.argmax(dim=-1), tokens)
        chosen = logps.gather(-1, tokens[:, None])[:, 0]
        if forced is not None:
            tokens, chosen = torch.where(forced, UNTHINK, tokens), torch.where(forced, 0.0, chosen)
        return tokens, chosen


def track_thinking(tokens: Tensor, inside: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each row is within a thought after its token, and how many more tokens it may think.

    Any mark ends a thought, as it does for who reads the answer."""
    marks = tokens >= MARK
    inside = torch.where(marks, tokens == THINK, inside)
    return inside, left - (inside & ~marks).long()


def _is_word(stop: Any) -> bool:
    """Half a letter (a lone surrogate) has no bytes: nothing that is written could ever end with it."""
    return isinstance(stop, str) and stop != "" and not any("\ud800" <= letter <= "\udfff" for letter in stop)


def shown(value: Any) -> str:
    """A value in an error's one line, however large it is."""
    try:
        text = repr(value)
    except ValueError:  # Python does not spell numbers of more than some thousand digits
        return "a number of very many digits"
    return text if len(text) <= 60 else text[:59] + "…"


def uniforms(key: int, count: int) -> NDArray[np.float32]:
    """The stream of one answer: the same key gives the same numbers, whatever else is sampled."""
    if key < 0:
        raise BadInput(f"key = {key}", why="must not be negative")
    stream = np.random.Generator(np.random.Philox(key)).random(count, dtype=np.float32)
    return np.minimum(stream, BELOW_ONE)
