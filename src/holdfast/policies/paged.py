"""Answers of a `causal_lm` being written, many at a time, over a cache of keys and values in blocks.

A row joins when there is room and leaves when it is done; nobody waits for another. Blocks of 16 tokens that begin
alike (the samples of one task, the turns of a conversation) are computed once and shared. On a GPU one step is one CUDA
graph of `kernels`, replayed several times between two looks; without one the same steps are plain torch. The weights
are those of the model, not a copy. What a drawn token means for its row (ends, stop strings, thoughts) is `rows`.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.rows import Row, drawn_by
from holdfast.policies.sampling import Completion

if TYPE_CHECKING:
    from holdfast.policies.hub import Hub

BLOCK = 16  # tokens
READ = {"cpu": 1 << 12, "cuda": 1 << 14}  # tokens of prompts that are read at once
SHARE = 0.6  # of the free memory of a GPU that the cache may take
USUAL = 4096  # tokens of a row that the cache is made for; where rows are longer, fewer are written at a time
ON_CPU = 4 << 30  # bytes of the cache; a page of it counts from when it is written
Ints = NDArray[np.int64]


class Blocks:
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
class Seat:
    """A row with its blocks."""

    row: Row
    prompt: list[int]
    blocks: list[int]
    names: list[bytes]  # of the full blocks of the prompt
    known: int  # tokens at the beginning whose keys and values are there already
    is_dropped: bool = False  # nobody waits for it any more


class PagedGenerator:
    """At most `slots` answers at a time."""

    def __init__(self, hub: Hub, *, slots: int = 16) -> None:
        net = hub.net
        assert isinstance(net, CausalLM)
        self._hub, self._net, self.capacity = hub, net, slots
        self.cache = Cache(net, slots)
        self.blocks = Blocks(self.cache.count)
        self._seats: list[Seat | None] = [None] * slots
        self._waiting: list[int] = []  # rows whose prompts are still to be read
        self._device: Any = None
        if net.device.type == "cuda":
            from holdfast.policies.kernels import CudaSteps

            self._device = CudaSteps(net, self.cache, slots, hub.template)

    @property
    def room(self) -> int:
        return sum(seat is None for seat in self._seats)

    def admit(self, requests: Sequence[DecodeRequest]) -> list[DecodeRequest]:
        """Begins as many requests as there is room for, in their order, and gives back the rest."""
        rows = [Row(self._hub, request) for request in requests[: self.room]]  # refuses before anything is taken
        free = [slot for slot, seat in enumerate(self._seats) if seat is None]
        begun = 0
        for row, request, slot in zip(rows, requests, free, strict=False):
            need = -(-(len(request.ids) + row.limit) // BLOCK)
            if need > self.blocks.capacity:
                what = f"{len(request.ids)} + {row.limit} tokens"
                why = f"the cache holds {self.blocks.capacity * BLOCK}"
                raise BadInput(what, why=why, remedy="ask for fewer tokens, or use a smaller model")
            names = names_of(request.ids[:-1])  # the last token is always read: it gives the first scores
            held = self.blocks.shared(names)
            if need - len(held) > self.blocks.room:
                self.blocks.give_back(held)
                break
            own = held + self.blocks.take(need - len(held))
            self.blocks.name(own, names)  # rows that are admitted after it are read after it, or with it
            self._seats[slot] = Seat(row, list(request.ids), own, names, len(held) * BLOCK)
            self._waiting.append(slot)
            begun += 1
        return list(requests[begun:])

    @torch.inference_mode()
    def step(self) -> list[tuple[Any, Completion]]:
        """Draws one or more tokens for each row; gives the finished answers by ticket."""
        running = [slot for slot, seat in enumerate(self._seats) if seat is not None and slot not in self._waiting]
        try:
            if self._waiting:
                self._read(self._waiting)
                self._waiting = []
            if running:
                self._advance(running)
        except BaseException:  # nobody knows which blocks hold what they should
            self._seats, self._waiting, self.blocks = [None] * self.capacity, [], Blocks(self.cache.count)
            raise
        return self._finished()

    def _advance(self, running: list[int]) -> None:
        if self._device is not None:
            self._device.advance(self._seats)
            return
        seats = [seat for slot in running if (seat := self._seats[slot]) is not None]
        tokens = [(seat.prompt + seat.row.ids)[-1] for seat in seats]
        places = [len(seat.prompt) + len(seat.row.ids) - 1 for seat in seats]
        spans = [Span(row, place, 1, seat.blocks) for row, (place, seat) in enumerate(zip(places, seats, strict=True))]
        hidden = self._net.hidden_flat(
            torch.tensor(tokens), torch.tensor(places), lambda n, q, k, v: self.cache.attend(n, q, k, v, spans)
        )
        drawn_by([seat.row for seat in seats], self._net.logits(hidden))

    def _read(self, waiting: Sequence[int]) -> None:
        """Reads prompts, from where they are not known, some thousand tokens at a time, and draws the first tokens."""
        limit = READ[self._net.device.type]
        seats = [seat for slot in waiting if (seat := self._seats[slot]) is not None]
        parts: list[list[Seat]] = []
        count = limit
        for seat in seats:
            count += len(seat.prompt) - seat.known
            if count > limit or not parts:
                parts.append([])
                count = len(seat.prompt) - seat.known
            parts[-1].append(seat)
        drawn_by([seat.row for seat in seats], torch.cat([self._scores(part) for part in parts]))

    def _scores(self, seats: Sequence[Seat]) -> Tensor:
        """Of the tokens after these prompts, [rows, V]."""
        spans = [Span(n, seat.known, len(seat.prompt) - seat.known, seat.blocks) for n, seat in enumerate(seats)]
        ids = np.concatenate([np.asarray(seat.prompt[seat.known :], np.int64) for seat in seats])
        places = np.concatenate([np.arange(span.start, span.start + span.count) for span in spans])
        last = np.cumsum([span.count for span in spans]) - 1
        if self._device is not None:
            scores: Tensor = self._device.read(spans, ids, places, last)
            return scores
        hidden = self._net.hidden_flat(
            torch.from_numpy(ids), torch.from_numpy(places), lambda n, q, k, v: self.cache.attend(n, q, k, v, spans)
        )
        return self._net.logits(hidden[torch.from_numpy(last)])

    def _finished(self) -> list[tuple[Any, Completion]]:
        done = []
        for slot, seat in enumerate(self._seats):
            if seat is not None and (seat.row.finish is not None or seat.is_dropped):
                if not seat.is_dropped:
                    done.append((seat.row.ticket, seat.row.completion()))
                self._leave(slot, seat)
        return done

    def _leave(self, slot: int, seat: Seat) -> None:
        self.blocks.name(
            seat.blocks, names_of((seat.prompt + seat.row.ids)[:-1], seat.names)
        )  # the last was never read
        self.blocks.give_back(seat.blocks)
        self._seats[slot] = None

    def so_far(self, ticket: Any, start: int = 0) -> tuple[list[int], list[float]]:
        """Tokens and log-probs of an answer under way, from one of its places on."""
        row = next(seat.row for seat in self._seats if seat is not None and seat.row.ticket == ticket)
        return row.ids[start:], row.logprobs[start:]

    def drop(self, tickets: Iterable[Any]) -> None:
        """Drops answers that nobody waits for. A prompt that is still to be read is read: others may lean on it."""
        unwanted = set(tickets)
        for slot, seat in enumerate(self._seats):
            if seat is not None and seat.row.ticket in unwanted:
                if slot in self._waiting:
                    seat.is_dropped = True
                else:
                    self._leave(slot, seat)


@dataclass(frozen=True, slots=True)
class Span:
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

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spans: Sequence[Span]) -> Tensor:
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

    def _attend_one(self, q: Tensor, keys: Tensor, values: Tensor, spans: Sequence[Span], window: int) -> Tensor:
        length = max(span.start for span in spans) + 1
        held = np.zeros((len(spans), length), np.int64)
        for row, span in enumerate(spans):
            held[row, : span.start + 1] = _places(span, 0)
        at = torch.tensor([span.start for span in spans])[:, None]
        back = at - torch.arange(length)
        mask = ((back >= 0) & (back < window))[:, None, None]
        index = torch.from_numpy(held)
        return _hear(q[:, None], keys[index], values[index], mask)[:, 0]


def _places(span: Span, start: int) -> Ints:
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
