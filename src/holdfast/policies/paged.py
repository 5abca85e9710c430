"""Answers of a `causal_lm` being written, many at a time, over a cache of keys and values in blocks.

A row joins when there is room and leaves when it is done; nobody waits for another. Blocks of 16 tokens that begin
alike (the samples of one task, the turns of a conversation) are computed once and shared. On a GPU one step is one CUDA
graph of `kernels`, replayed several times between two looks; without one the same steps are plain torch. The weights
are those of the model, not a copy. What a drawn token means for its row (ends, stop strings, thoughts) is `rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.kv_cache import BLOCK, BlockPool, Cache, PagedRow, TokenSpan, names_of
from holdfast.policies.rows import Row, WritingModel, drawn_by
from holdfast.policies.sampling import Completion

READ = {"cpu": 1 << 12, "cuda": 1 << 14}  # tokens of prompts that are read at once


class PagedGenerator:
    """At most `slots` answers at a time."""

    def __init__(self, hub: WritingModel, *, slots: int = 16) -> None:
        net = hub.net
        assert isinstance(net, CausalLM)
        self._hub, self._net, self.capacity = hub, net, slots
        self.cache = Cache(net, slots)
        self.blocks = BlockPool(self.cache.count)
        self._rows: list[PagedRow | None] = [None] * slots
        self._waiting: list[int] = []  # rows whose prompts are still to be read
        self._unnamed: list[PagedRow] = []  # rows of which only the first block is known by its name yet
        self._device: Any = None
        if net.device.type == "cuda":
            from holdfast.policies.kernels import CudaSteps

            self._device = CudaSteps(net, self.cache, slots, hub.template)

    @property
    def room(self) -> int:
        return sum(entry is None for entry in self._rows)

    def admit(self, requests: Sequence[DecodeRequest]) -> list[DecodeRequest]:
        """Begins as many requests as there is room for, in their order, and gives back the rest."""
        rows = [Row(self._hub, request) for request in requests[: self.room]]  # refuses before anything is taken
        free = [slot for slot, entry in enumerate(self._rows) if entry is None]
        begun = 0
        for row, request, slot in zip(rows, requests, free, strict=False):
            need = -(-(len(request.ids) + row.limit) // BLOCK)
            if need > self.blocks.capacity:
                what = f"{len(request.ids)} + {row.limit} tokens"
                why = f"the cache holds {self.blocks.capacity * BLOCK}"
                raise BadInput(what, why=why, remedy="ask for fewer tokens, or use a smaller model")
            names = self._names(request.ids[:-1])  # the last token is always read: it gives the first scores
            held = self.blocks.shared(names)
            if need - len(held) > self.blocks.room:
                self.blocks.give_back(held)
                break
            own = held + self.blocks.take(need - len(held))
            self.blocks.name(own, names)  # rows that are admitted after it are read after it, or with it
            self._rows[slot] = entry = PagedRow(row, list(request.ids), own, names, len(held) * BLOCK)
            self._waiting.append(slot)
            if not held:
                self._unnamed.append(entry)
            begun += 1
        return list(requests[begun:])

    def _names(self, ids: Sequence[int]) -> list[bytes]:
        """Of all full blocks where a text begins as a known one does; else of the first alone: a GPU would wait while
        the others are hashed, which is done while it reads."""
        first = names_of(ids[:BLOCK])
        if not first or not self.blocks.knows(first[0]):
            return first
        self._name_all()
        return names_of(ids, first)

    def _name_all(self) -> None:
        for entry in self._unnamed:
            entry.names = names_of(entry.prompt[:-1], entry.names)
            self.blocks.name(entry.blocks, entry.names)
        self._unnamed = []

    @torch.inference_mode()
    def step(self) -> list[tuple[Any, Completion]]:
        """Draws one or more tokens for each row; gives the finished answers by ticket."""
        running = [slot for slot, entry in enumerate(self._rows) if entry is not None and slot not in self._waiting]
        try:
            if self._waiting:
                self._read(self._waiting)
                self._waiting = []
            if running:
                self._advance(running)
        except BaseException:  # nobody knows which blocks hold what they should
            self._rows, self._waiting, self.blocks = [None] * self.capacity, [], BlockPool(self.cache.count)
            self._unnamed = []
            raise
        return self._finished()

    def _advance(self, running: list[int]) -> None:
        entries = [entry for slot in running if (entry := self._rows[slot]) is not None]
        if self._device is not None:
            if not any(entry.row.is_masked for entry in entries):
                self._device.advance(self._rows)
                return
            self._device.pause(self._rows)  # masks are the host's: one step at a time
            entries = [entry for entry in entries if entry.row.finish is None]
            drawn_by([entry.row for entry in entries], self._last_scores(entries))
            return
        tokens = [(entry.prompt + entry.row.ids)[-1] for entry in entries]
        places = [len(entry.prompt) + len(entry.row.ids) - 1 for entry in entries]
        spans = [
            TokenSpan(row, place, 1, entry.blocks)
            for row, (place, entry) in enumerate(zip(places, entries, strict=True))
        ]
        hidden = self._net.hidden_flat(
            torch.tensor(tokens), torch.tensor(places), lambda n, q, k, v: self.cache.attend(n, q, k, v, spans)
        )
        drawn_by([entry.row for entry in entries], self._net.logits(hidden))

    def _last_scores(self, entries: Sequence[PagedRow]) -> Tensor:
        texts = [entry.prompt + entry.row.ids for entry in entries]
        spans = [TokenSpan(n, len(texts[n]) - 1, 1, entry.blocks) for n, entry in enumerate(entries)]
        ids, places = [text[-1] for text in texts], [span.start for span in spans]
        scores: Tensor = self._device.read(spans, ids, places, range(len(entries)))
        return scores

    def _read(self, waiting: Sequence[int]) -> None:
        """Reads prompts, from where they are not known, some thousand tokens at a time, and draws the first tokens."""
        limit = READ[self._net.device.type]
        entries = [entry for slot in waiting if (entry := self._rows[slot]) is not None]
        parts: list[list[PagedRow]] = []
        count = limit
        for entry in entries:
            count += len(entry.prompt) - entry.known
            if count > limit or not parts:
                parts.append([])
                count = len(entry.prompt) - entry.known
            parts[-1].append(entry)
        scores = torch.cat([self._scores(part) for part in parts])
        self._name_all()
        drawn_by([entry.row for entry in entries], scores)

    def _scores(self, entries: Sequence[PagedRow]) -> Tensor:
        """Of the tokens after these prompts, [rows, V]."""
        spans = [
            TokenSpan(n, entry.known, len(entry.prompt) - entry.known, entry.blocks) for n, entry in enumerate(entries)
        ]
        ids = np.concatenate([np.asarray(entry.prompt[entry.known :], np.int64) for entry in entries])
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
        for slot, entry in enumerate(self._rows):
            if entry is not None and (entry.row.finish is not None or entry.is_dropped):
                if not entry.is_dropped:
                    done.append((entry.row.ticket, entry.row.completion()))
                self._leave(slot, entry)
        return done

    def _leave(self, slot: int, entry: PagedRow) -> None:
        if entry.row.finish == "stop":  # only what has come to an end is gone on from; its last token was never read
            self.blocks.name(entry.blocks, names_of((entry.prompt + entry.row.ids)[:-1], entry.names))
        self.blocks.give_back(entry.blocks)
        self._rows[slot] = None

    def so_far(self, ticket: Any, start: int = 0) -> tuple[list[int], list[float]]:
        """Tokens and log-probs of an answer under way, from one of its places on."""
        row = next(entry.row for entry in self._rows if entry is not None and entry.row.ticket == ticket)
        return row.ids[start:], row.logprobs[start:]

    def drop(self, tickets: Iterable[Any]) -> None:
        """Drops answers that nobody waits for. A prompt that is still to be read is read: others may lean on it."""
        unwanted = set(tickets)
        for slot, entry in enumerate(self._rows):
            if entry is not None and entry.row.ticket in unwanted:
                if slot in self._waiting:
                    entry.is_dropped = True
                else:
                    self._leave(slot, entry)
