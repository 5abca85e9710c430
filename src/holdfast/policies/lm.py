"""A small decoder-only transformer over byte tokens: its shape and its parameters.

RMS norm before each part, rotary positions, SwiGLU, and one matrix for reading and writing tokens. What to sample, and
which row holds which answer, is decided in `sampling` and `decoder`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.policies.tokens import VOCABULARY

EPSILON = 1e-6
ROTARY_BASE = 10_000.0
LARGEST = {"vocabulary": 2**20, "width": 2**14, "layers": 2**10, "heads": 2**10, "context": 2**16}

CacheWriter = Callable[[int, Tensor, Tensor], None]  # layer, keys [B, H, T, D], values [B, H, T, D]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What makes two models interchangeable."""

    SCHEMA: ClassVar[int] = 1

    vocabulary: int = VOCABULARY
    width: int
    layers: int
    heads: int
    context: int  # tokens, the prompt and the answer together

    def __post_init__(self) -> None:
        for name, most in LARGEST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
                raise BadInput(f"shape.{name} = {value!r:.60}", why=f"must be a whole number from 1 to {most}")
        if self.width % self.heads or self.width // self.heads % 2:
            raise BadInput(
                f"shape.width = {self.width}",
                why=f"rotary positions turn pairs within each of {self.heads} heads",
                remedy="give a width that is an even multiple of heads",
            )

    @property
    def head(self) -> int:
        return self.width // self.heads

    @property
    def inner(self) -> int:
        """Width inside the feed-forward part: 8/3 of the outer one; three matrices then weigh as much as two of 4×."""
        return -(-8 * self.width // 3 // 32) * 32


def layout(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    """The parameters of a `Transformer` of this shape by name, without building it."""
    width, inner = shape.width, shape.inner
    block = {
        "norm1": (width,),
        "qkv.weight": (3 * width, width),
        "out.weight": (width, width),
        "norm2": (width,),
        "up.weight": (2 * inner, width),
        "down.weight": (width, inner),
    }
    blocks = {f"blocks.{layer}.{name}": size for layer in range(shape.layers) for name, size in block.items()}
    return {"embed.weight": (shape.vocabulary, width), "norm": (width,), **blocks}


SPROUT = ModelShape(width=128, layers=6, heads=4, context=832)  # 1.2 M parameters


class Block(nn.Module):
    """Attention, then a feed-forward part; both added to what came in."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.heads, self.head = shape.heads, shape.head
        self.norm1 = nn.Parameter(torch.ones(shape.width))
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.norm2 = nn.Parameter(torch.ones(shape.width))
        self.up = nn.Linear(shape.width, 2 * shape.inner, bias=False)  # the gate, then what it lets through
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys, turned by their positions, and values: x [B, T, W] -> three of [B, H, T, D]."""
        batch, length, _ = x.shape
        qkv = self.qkv(norm(x, self.norm1)).view(batch, length, 3, self.heads, self.head)
        qk = rotate(qkv[:, :, :2], cos, sin)
        return qk[:, :, 0].transpose(1, 2), qk[:, :, 1].transpose(1, 2), qkv[:, :, 2].transpose(1, 2)

    def close(self, x: Tensor, heard: Tensor) -> Tensor:
        """What the heads heard [B, T, W] is added to x, and then the feed-forward part."""
        x = x + self.out(heard)
        gate, passed = self.up(norm(x, self.norm2)).chunk(2, dim=-1)
        mixed: Tensor = x + self.down(F.silu(gate) * passed)
        return mixed


class Transformer(nn.Module):
    """Token ids in, logits of the next token out."""

    cos: Tensor  # [context, head / 2]
    sin: Tensor

    def __init__(self, shape: ModelShape, *, seed: int) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocabulary, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        angle = _angles(shape)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        self._begin(torch.Generator().manual_seed(seed))

    @torch.no_grad()
    def _begin(self, rng: torch.Generator) -> None:
        """Normal weights; the matrices that write into the stream begin smaller, since 2 × layers of them add up."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                deep = name.endswith(("out.weight", "down.weight"))
                std = 0.02 if name == "embed.weight" else weight.shape[1] ** -0.5
                weight.normal_(0.0, std / math.sqrt(2 * self.shape.layers) if deep else std, generator=rng)

    @property
    def device(self) -> torch.device:
        return self.embed.weight.device

    def hidden(self, ids: Tensor, keep: CacheWriter | None = None) -> Tensor:
        """[B, T] -> [B, T, W], each place seeing only what is left of it: padding on the right is harmless.

        `keep` is handed the keys and values of every layer, for a cache."""
        batch, length = ids.shape
        if length > self.shape.context:
            raise BadInput(f"{length} tokens", why=f"the context is {self.shape.context}", remedy="shorten the text")
        cos, sin = self.cos[:length, None, None], self.sin[:length, None, None]
        x: Tensor = self.embed(ids)
        for layer, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            q, k, v = block.project(x, cos, sin)
            if keep is not None:
                keep(layer, k, v)
            heard = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = block.close(x, heard.transpose(1, 2).reshape(batch, length, -1))
        return norm(x, self.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., W] -> [..., V], in 32 bits whatever autocast says: 8 bits of mantissa are too few for a log-prob."""
        with torch.autocast(hidden.device.type, enabled=False):
            return F.linear(hidden.to(self.embed.weight.dtype), self.embed.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, weight.shape, weight.to(x.dtype), EPSILON)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x₁, x₂) by its place's angle; the pairs are the first and the second half of a head."""
    x1, x2 = x.chunk(2, dim=-1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1)


def _angles(shape: ModelShape) -> Tensor:
    frequency = ROTARY_BASE ** (-torch.arange(0, shape.head, 2, dtype=torch.float64) / shape.head)
    return (torch.arange(shape.context, dtype=torch.float64)[:, None] * frequency).float()
