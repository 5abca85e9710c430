"""Keys and values of a `causal_lm` in blocks of 16 tokens: which block holds what, and attention over them in torch.

A full block is known by the hash of all tokens up to its end; texts that begin alike share it. Whose rows they are is
up to `paged`; on a GPU `kernels` reads and writes the same tensors.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.rows import Row

BLOCK = 16  # tokens
SHARE = 0.6  # of the free memory of a GPU that the cache may take
USUAL = 4096  # tokens of a row that the cache is made for; where rows are longer, fewer are written at a time
ON_CPU = 4 << 30  # bytes of the cache; a page of it counts from when it is written
Ints = NDArray[np.int64]


class BlockPool:
    """Which block holds what. A full block is known by the hash of all tokens up to its end, and may serve again."""

    def __init__(self, count: int) -> None:
        self._free = list(range(count - 1, 0, -1))  # block 0 is where idle rows write
        self._uses = [0] * count
        self._known: dict[bytes, int] = {}
        self._names: dict[int, bytes] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()  # known, used by nobody; the longest unused first
        self.capacity = count - 1

    @property
    def room(self) -> int:
        return len(self._free) + len(self._idle)

    def knows(self, name: bytes) -> bool:
        return name in self._known

    def shared(self, names: Sequence[bytes]) -> list[int]:
        """The known blocks of a text's beginning, which are held from now on."""
        found = []
        for name in names:
            block = self._known.get(name)
            if block is None:
                break
            self._idle.pop(block, None)
            self._uses[block] += 1
            found.append(block)
        return found

    def take(self, count: int) -> list[int]:
        """So many blocks for one row alone; there must be room for them."""
        taken = []
        for _ in range(count):
            if self._free:
                block = self._free.pop()
            else:
                block, _ = self._idle.popitem(last=False)
                del self._known[self._names.pop(block)]
            self._uses[block] = 1
            taken.append(block)
        return taken

    def name(self, blocks: Sequence[int], names: Sequence[bytes]) -> None:
        """These blocks are full, and what they hold is final."""
        for block, name in zip(blocks, names, strict=False):
            if name not in self._known and block not in self._names:
                self._known[name], self._names[block] = block, name

    def give_back(self, blocks: Iterable[int]) -> None:
        for block in blocks:
            self._uses[block] -= 1
            if not self._uses[block]:
                if block in self._names:
                    self._idle[block] = None
                else:
                    self._free.append(block)


def names_of(ids: Sequence[int], known: Sequence[bytes] = ()) -> list[bytes]:
    """One for each full block of a text: equal where everything up to its end is equal. `known`: the first of them."""
    names, start = list(known), len(known) * BLOCK
    name, content = names[-1] if names else b"", np.asarray(ids[start:], np.int64).tobytes()
    for at in range(0, len(content) - 8 * BLOCK + 1, 8 * BLOCK):
        name = hashlib.blake2b(name + content[at : at + 8 * BLOCK], digest_size=16).digest()
        names.append(name)
    return names


@dataclass(slots=True, eq=False)
class PagedRow:
    """A row with its blocks."""

    row: Row
    prompt: list[int]
    blocks: list[int]
    names: list[bytes]  # of the full blocks of the prompt
    known: int  # tokens at the beginning whose keys and values are there already
    is_dropped: bool = False  # nobody waits for it any more


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens of one row that are read now."""

    row: int
    start: int  # place of the first
    count: int
    blocks: Sequence[int]


class Cache:
    """Keys and values of each layer, [blocks × 16, heads, D]."""

    def __init__(self, net: CausalLM, slots: int) -> None:
        c, device = net.config, net.device
        self.dtype = next(net.parameters()).dtype
        token = 2 * c.layers * c.kv_heads * c.head * self.dtype.itemsize
        room = ON_CPU if device.type == "cpu" else int(SHARE * torch.cuda.mem_get_info(device)[0])
        most = max(slots * min(c.context, USUAL), c.context) // BLOCK + slots + 1
        self.count = max(min(most, room // (token * BLOCK)), 2)
        self.windows = c.windows
        size = (self.count * BLOCK, c.kv_heads, c.head)
        self.layers = [(self._empty(size, device), self._empty(size, device)) for _ in range(c.layers)]

    def _empty(self, size: tuple[int, ...], device: torch.device) -> Tensor:
        if device.type == "cpu":
            return torch.from_numpy(np.zeros(size, np.float32))  # the system gives its pages when they are written
        return torch.zeros(size, dtype=self.dtype, device=device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spans: Sequence[TokenSpan]) -> Tensor:
        """Keeps the new keys and values, then hears: q [N, H, D], k and v [N, K, D] -> [N, H, D]."""
        keys, values = self.layers[layer]
        where = torch.from_numpy(np.concatenate([_places(span, span.start) for span in spans]))
        keys[where], values[where] = k, v
        window = self.windows[layer] or 1 << 30
        if all(span.count == 1 for span in spans):
            return self._attend_one(q, keys, values, spans, window)
        heard, at = torch.empty_like(q), 0
        for span in spans:
            held = torch.from_numpy(_places(span, 0))
            back = torch.arange(span.start, span.start + span.count)[:, None] - torch.arange(len(held))
            mask = (back >= 0) & (back < window)
            part = slice(at, at + span.count)
            heard[part] = _hear(q[None, part], keys[held][None], values[held][None], mask[None, None])[0]
            at += span.count
        return heard

    def _attend_one(self, q: Tensor, keys: Tensor, values: Tensor, spans: Sequence[TokenSpan], window: int) -> Tensor:
        length = max(span.start for span in spans) + 1
        held = np.zeros((len(spans), length), np.int64)
        for row, span in enumerate(spans):
            held[row, : span.start + 1] = _places(span, 0)
        at = torch.tensor([span.start for span in spans])[:, None]
        back = at - torch.arange(length)
        mask = ((back >= 0) & (back < window))[:, None, None]
        index = torch.from_numpy(held)
        return _hear(q[:, None], keys[index], values[index], mask)[:, 0]


def _places(span: TokenSpan, start: int) -> Ints:
    """Where the cache holds the tokens of a span's row from `start` up to its end."""
    places = np.arange(start, span.start + span.count)
    blocks = np.asarray(span.blocks, np.int64)
    found: Ints = blocks[places // BLOCK] * BLOCK + places % BLOCK
    return found


def _hear(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """[B, T, heads, D] each -> [B, T, H, D]"""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    heard = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return heard.transpose(1, 2)
