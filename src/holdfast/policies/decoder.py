"""Answers being written, many at a time: each has a slot of keys and values, joins when it comes and leaves when done.

Rows of different length advance together; a prompt that begins like something in another slot (the turn before, another
sample of the same task) takes that beginning from there. The arithmetic of a CPU is `cpu`; on a GPU (`Cuda`) some steps
with their sampling are one CUDA graph. There, matrices and cache are bfloat16, norms, the residual stream and logits
float32, as in training under autocast; graphs are captured when a number of rows or a length is first met, and new
weights are copied into place. Without a GPU the same steps run one by one in 32 bits, which is only good for tests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from numbers import Integral
from typing import Any, Literal, ParamSpec, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.policies.cpu import Cpu, SlotPlan, Slots
from holdfast.policies.lm import Block, Transformer, norm
from holdfast.policies.sampling import (
    MARK,
    NO_LIMIT,
    Completion,
    Sampling,
    SamplingRules,
    shown,
    track_thinking,
    uniforms,
)
from holdfast.policies.tokens import END, THINK

Ints = NDArray[np.int64]
EVEN = 8  # with several threads, matrix libraries round a row by its place unless the rows come in multiples of 4
P = ParamSpec("P")
T = TypeVar("T")

STRIDE = 8  # steps between two looks at what was drawn
REACH = 128  # how far back attention looks, in multiples of this
LEAST = 8  # rows of the smallest graph; the next ones double
CHUNK = 1 << 16  # tokens of prompts read at once
BRIEF = 1 << 13  # up to so many tokens, reading them is mostly asking for it
_capturing = threading.Lock()  # versions are sampled in threads of their own, and torch captures on one stream for all


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """What a stride drew, [steps, rows], and where those rows stand that took all of it."""

    ids: Ints
    logps: NDArray[np.float32]
    forced: NDArray[np.bool_]
    inside: NDArray[np.bool_]  # [rows]
    left: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPositions:
    """Where every row stands, as the host knows it."""

    token: Ints
    position: Ints
    count: Ints
    inside: NDArray[np.bool_]
    left: Ints
    uniform: NDArray[np.float32]  # [rows, context]
    columns: NDArray[np.float32]  # Sampling.column of each row


class Cuda:
    """As many rows as slots, row n in slot n."""

    def __init__(self, model: Transformer, slots: int, device: torch.device, *, fixed: bool) -> None:
        shape = model.shape
        self.slots, self.shape, self.fixed, self._device = slots, shape, fixed, device
        self._model = Transformer(shape, seed=0).to(device).requires_grad_(False)
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        for block in self._model.blocks:
            assert isinstance(block, Block)
            for layer in (block.qkv, block.out, block.up, block.down):
                layer.to(self._dtype)
        self.load(model)
        size = (slots, shape.heads, shape.context, shape.head)
        self._cache = [  # keys and values of each layer; apart, since one large tensor would be copied for each write
            (torch.zeros(size, dtype=self._dtype, device=device), torch.zeros(size, dtype=self._dtype, device=device))
            for _ in range(shape.layers)
        ]
        self._whole = torch.zeros(4, slots, dtype=torch.int64, device=device)  # token, place, count, left
        self._inside = torch.zeros(slots, dtype=torch.bool, device=device)
        self._uniform = torch.zeros(slots, shape.context, device=device)
        self._rules = SamplingRules.of(np.ones((4, slots), np.float32), shape.vocabulary, device, every=True)
        # Id, log-prob and forced of each step, then inside and left; 64 bits hold them all, and one copy brings them.
        self._drawn = torch.zeros(3 * STRIDE + 2, slots, dtype=torch.float64, device=device)
        self._graphs: dict[tuple[int, int, bool], Callable[[], None]] = {}
        self._reads: dict[torch.Size, tuple[Tensor, Callable[[], None]]] = {}  # by rows and length, with what is given

    def load(self, model: Transformer) -> None:
        """Other weights of the same shape, in the same place."""
        with torch.no_grad():
            for mine, new in zip(self._model.parameters(), model.parameters(), strict=True):
                mine.copy_(new)

    def prefill(self, prompts: Sequence[Ints], plans: Sequence[SlotPlan]) -> None:
        """Computes the keys and values of each prompt."""
        pairs = sorted(
            ((p, s.slot) for p, s in zip(prompts, plans, strict=True) if len(p)), key=lambda pair: len(pair[0])
        )
        while pairs:
            length = self.shape.context if self.fixed else min(-(-len(pairs[-1][0]) // 64) * 64, self.shape.context)
            size = 1 if self.fixed else max(CHUNK // length, 1)
            pairs, now = pairs[:-size], pairs[-size:]
            ids = np.zeros((len(now), length), np.int64)
            for row, (prompt, _) in enumerate(now):
                ids[row, : len(prompt)] = prompt
            self._read(ids, [slot for _, slot in now])

    def _read(self, ids: Ints, slots: Sequence[int]) -> None:
        """Short prompts run as a captured graph, because launching the kernels one by one takes longer."""
        if self._device.type != "cuda" or ids.size > BRIEF:
            self._remember(torch.from_numpy(ids).to(self._device), torch.tensor(slots, device=self._device))
            return
        rows = 1 << (len(ids) - 1).bit_length()
        fill = np.minimum(np.arange(rows), len(ids) - 1)  # the last one several times, into the same slot
        given = torch.from_numpy(np.column_stack([ids, slots])[fill])
        if given.shape not in self._reads:
            place = given.to(self._device)
            self._reads[given.shape] = place, captured(lambda: self._remember(place[:, :-1], place[:, -1]), ()).replay
        place, replay = self._reads[given.shape]
        place.copy_(given)
        replay()

    def _remember(self, ids: Tensor, slots: Tensor) -> None:
        def keep(layer: int, k: Tensor, v: Tensor) -> None:
            keys, values = self._cache[layer]
            keys[slots, :, : ids.shape[1]] = k.to(self._dtype)
            values[slots, :, : ids.shape[1]] = v.to(self._dtype)

        with self._autocast():
            self._model.hidden(ids, keep)

    def _autocast(self) -> torch.autocast:
        enabled = self._device.type == "cuda"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def set_rows(self, now: RowPositions) -> None:
        """Copies the host's row positions to the device after rows have changed."""
        self._whole.copy_(torch.from_numpy(np.stack([now.token, now.position, now.count, now.left])))
        self._inside.copy_(torch.from_numpy(now.inside))
        self._uniform.copy_(torch.from_numpy(now.uniform))
        self._rules.copy(SamplingRules.of(now.columns, self.shape.vocabulary, self._device, every=True))

    def run(self, rows: int, place: int, steps: int, *, filtered: bool) -> DrawnTokens:
        """Some steps for the first rows, none of which is beyond `place` now."""
        size, reach = self.slots, self.shape.context
        if not self.fixed:
            size = min(max(1 << (rows - 1).bit_length(), LEAST), self.slots)
            reach = min(-(-(place + steps + 1) // REACH) * REACH, self.shape.context)
        which = size, reach, filtered
        if which not in self._graphs:
            stride = partial(self._stride, *which)
            state = (self._whole, self._inside, self._drawn)
            self._graphs[which] = captured(stride, state).replay if self._device.type == "cuda" else stride
        self._graphs[which]()
        *drawn, inside, left = self._drawn.cpu().numpy()
        ids, logps, forced = np.stack(drawn).reshape(STRIDE, 3, -1)[:steps].transpose(1, 0, 2)
        return DrawnTokens(
            ids.astype(np.int64), logps.astype(np.float32), forced.astype(bool), inside.astype(bool), left.astype(int)
        )

    def _stride(self, size: int, reach: int, filtered: bool) -> None:
        """The last steps may be more than were asked for; they are ignored."""
        whole, inside, uniform = self._whole[:, :size], self._inside[:size], self._uniform[:size]
        cached = [(keys[:size], values[:size]) for keys, values in self._cache]
        rules = self._rules.first(size, filtered=filtered)
        is_cuda = self._device.type == "cuda"
        layer = compiled(layered) if is_cuda else layered
        choice = compiled(chosen) if is_cuda and not filtered else chosen  # a sort would be compiled for very long
        for step in range(STRIDE):
            token, place, _, _ = whole
            with self._autocast():
                x: Tensor = self._model.embed(token)
                for block, (keys, values) in zip(self._model.blocks, cached, strict=True):
                    assert isinstance(block, Block)
                    x = layer(block, x, place, self._model.cos, self._model.sin, (keys, values), reach)
            self._drawn[3 * step : 3 * step + 3, :size] = choice(self._model, x, uniform, rules, whole, inside)
        self._drawn[-2, :size] = inside
        self._drawn[-1, :size] = whole[3]


def captured(work: Callable[[], None], state: Sequence[Tensor], pool: Any = None) -> torch.cuda.CUDAGraph:
    """The work as a graph. It is tried out first: state that this moves is put back, and caches get the same again."""
    with _capturing:
        before = [tensor.clone() for tensor in state]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work()
            for tensor, old in zip(state, before, strict=True):
                tensor.copy_(old)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # others may use the GPU meanwhile
            work()
        return graph


@cache
def compiled(work: Callable[P, T]) -> Callable[P, T]:
    """For any number of rows and any reach: another one would compile for seconds again."""
    return torch.compile(work, dynamic=True)


def layered(
    block: Block, x: Tensor, place: Tensor, cos: Tensor, sin: Tensor, cached: tuple[Tensor, Tensor], reach: int
) -> Tensor:
    """One layer for one more token of each row: x [N, W] at places [N], row n in slot n of keys and values -> [N, W].

    Attention of a single query is written out: that can be fused, but for the last product, which would otherwise work
    out the shares anew for every number of a head."""
    keys, values = cached
    rows = torch.arange(len(x), device=x.device)
    q, k, v = block.project(x[:, None], cos[place][:, None, None, None], sin[place][:, None, None, None])
    keys[rows, :, place] = k[:, :, 0].to(keys.dtype)
    values[rows, :, place] = v[:, :, 0].to(values.dtype)
    seen = torch.arange(reach, device=x.device) <= place[:, None]
    scores = (q.float() * keys[:, :, :reach].float()).sum(dim=-1) * block.head**-0.5  # [N, H, reach]
    share = scores.masked_fill(~seen[:, None], -torch.inf).softmax(dim=-1)
    heard = share[:, :, None].to(values.dtype) @ values[:, :, :reach]  # [N, H, 1, D]
    return block.close(x, heard.flatten(1))


def chosen(
    model: Transformer, x: Tensor, uniform: Tensor, rules: SamplingRules, whole: Tensor, inside: Tensor
) -> Tensor:
    """The next token of each row, and every row moves on by it; ids, log-probs and which were forced, [3, N]."""
    _, place, count, left = whole
    forced = inside & (left <= 0)
    logits = model.logits(norm(x, model.norm))
    ids, logps = rules.decide(logits, uniform.gather(1, count[:, None])[:, 0], forced)
    still, less = track_thinking(ids, inside, left)
    last = uniform.shape[1] - 1
    inside.copy_(still)
    whole.copy_(torch.stack([ids, (place + 1).clamp(max=last), (count + 1).clamp(max=last), less]))
    return torch.stack([ids.double(), logps.double(), forced.double()])


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """One answer to be written."""

    ticket: Any  # whatever the caller knows it by; hashable
    ids: Sequence[int]
    sampling: Sampling
    key: int  # of its random stream


class PromptLimits(Protocol):
    """What a prompt must keep to: an `lm.Shape` says it, and so does a foreign model."""

    @property
    def context(self) -> int: ...
    @property
    def vocabulary(self) -> int: ...


class Decoder:
    """At most `slots` answers at a time from one model, whose weights are copied here.

    `fixed` computes every row in the same way whatever the others are: the same request gives the same bits."""

    def __init__(
        self,
        model: Transformer,
        *,
        slots: int,
        device: str | torch.device = "cpu",
        fixed: bool = False,
        cuda: Cuda | None = None,
    ) -> None:
        if slots < 1:
            raise BadInput(f"slots = {slots}", why="must be at least 1")
        self.shape, self.fixed, self.capacity = model.shape, fixed, slots
        device, context = torch.device(device), model.shape.context
        on_cpu = cuda is None and device.type == "cpu"
        memory = on_cpu and not fixed
        count = slots + slots // 2 if memory else slots  # some hold beginnings that others still lean on
        if on_cpu and fixed:
            count = -(-slots // EVEN) * EVEN
        self._cpu = Cpu(model, count, fixed=fixed) if on_cpu else None
        self._cuda = None if on_cpu else cuda or Cuda(model, slots, device, fixed=fixed)
        self._slots = Slots(count, context, memory=memory)
        self._requests: list[DecodeRequest | None] = [None] * count
        self._token, self._place = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._count, self._limit = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._inside, self._left = np.zeros(count, bool), np.full(count, NO_LIMIT)
        self._closing = np.zeros((count, self.shape.vocabulary), bool)  # tokens that may end the answer
        self._columns = np.tile(np.array(Sampling().column, np.float32)[:, None], count)
        self._uniform = np.zeros((count, context), np.float32)
        self._ids, self._logps = np.zeros((count, context), np.int64), np.zeros((count, context), np.float32)
        self._forced = np.zeros((count, context), bool)
        self._seated()

    @property
    def busy(self) -> int:
        return int(self._slots.active.sum())

    @property
    def room(self) -> int:
        return self.capacity - self.busy

    def generate(
        self, prompts: Sequence[Sequence[int]], samplings: Sequence[Sampling] | Sampling, keys: Sequence[int]
    ) -> list[Completion]:
        """An answer to each prompt; nothing else may be under way."""
        if isinstance(samplings, Sampling):
            samplings = [samplings] * len(prompts)
        waiting = [DecodeRequest(n, *each) for n, each in enumerate(zip(prompts, samplings, keys, strict=True))]
        for request in waiting:
            check(request, self.shape)
        done: dict[int, Completion] = {}
        while len(done) < len(prompts):
            waiting = self.admit(waiting)
            done.update(self.step())
        return [done[n] for n in range(len(prompts))]

    def load(self, model: Transformer) -> None:
        """Other weights of the same shape; all answers must be done. Much cheaper than a new decoder."""
        if self.busy or model.shape != self.shape:
            why = f"{self.busy} answers are under way" if self.busy else f"this is for {self.shape}"
            raise BadInput("new weights", why=why, remedy="take another decoder")
        (self._cpu or self._cuda).load(model)  # type: ignore[union-attr]
        self._slots.forget()

    @torch.inference_mode()
    def admit(self, requests: Sequence[DecodeRequest]) -> list[DecodeRequest]:
        """Give slots to as many of these as there is room for, and hand back the rest for after a step or two.

        If it fails, none of these has a slot, and those that were there before go on."""
        waiting, later = list(requests[: self.room]), list(requests[self.room :])
        if not waiting:
            return later
        for request in waiting:
            if len(request.ids) >= self.shape.context:  # it was checked, and the weights have been swapped since
                check(request, self.shape)
        before = self._slots.active.copy()
        try:
            waiting = self._admit(waiting)
        except BaseException:
            self._give_up(np.flatnonzero(self._slots.active & ~before))
            raise
        self._seated()
        if self._cuda:
            self._cuda.set_rows(self._standing())
        return waiting + later

    def _admit(self, waiting: list[DecodeRequest]) -> list[DecodeRequest]:
        for wait in (True, True, False):  # what begins like a neighbour waits until the neighbour has been computed
            plans = self._seats(waiting, wait=wait)
            seated = [(r, plan) for r, plan in zip(waiting, plans, strict=True) if plan is not None]
            waiting = [r for r, plan in zip(waiting, plans, strict=True) if plan is None]
            prompts = [np.asarray(request.ids[:-1], np.int64) for request, _ in seated]
            (self._cpu or self._cuda).prefill(prompts, [plan for _, plan in seated])  # type: ignore[union-attr]
            for request, plan in seated:  # while a GPU reads the prompts
                self._begin(plan.slot, request)
            self._slots.computed()
            if not waiting:
                break
        return waiting

    def _seats(self, requests: Sequence[DecodeRequest], *, wait: bool) -> list[SlotPlan | None]:
        if self._cpu:
            return [self._slots.take(np.asarray(r.ids, np.int64), wait=wait) for r in requests]
        free = np.flatnonzero(~self._slots.active)[: len(requests)]  # on a GPU nobody leans on anybody
        self._slots.active[free] = True
        return [SlotPlan(slot, 0, slot, 0, -1) for slot in free.tolist()]

    @torch.inference_mode()
    def step(self) -> list[tuple[Any, Completion]]:
        """One more token for everyone (on a GPU several); the answers that are complete with it, by their tickets.

        If it fails, all answers under way are given up, and others can be admitted."""
        if not self.busy:
            return []
        try:
            return self._stride(self._cuda) if self._cuda else self._advance()
        except BaseException:
            self._give_up(np.flatnonzero(self._slots.active))
            raise

    def _advance(self) -> list[tuple[Any, Completion]]:
        assert self._cpu
        rows = self._rows
        places = self._place[rows]
        self._slots.fed(rows, places, self._token[rows])
        logits = self._cpu.step(self._token[rows], places, rows, *self._lean)
        forced = self._inside[rows] & (self._left[rows] <= 0)
        uniform = torch.from_numpy(self._uniform[rows, self._count[rows]])
        tokens, logps = self._rules.decide(logits, uniform, torch.from_numpy(forced) if forced.any() else None)
        return self._keep(rows, tokens.numpy(), logps.numpy(), forced)

    def _stride(self, cuda: Cuda) -> list[tuple[Any, Completion]]:
        rows = np.flatnonzero(self._slots.active)
        to_go = self._limit[rows] - self._count[rows]
        steps = int(min(STRIDE, to_go.max()))
        drawn = cuda.run(int(rows[-1]) + 1, int(self._place[rows].max()), steps, filtered=self._rules.filters)
        self._keep_all(rows, drawn)
        ends = self._closing[rows, drawn.ids[:, rows]] | (np.arange(1, steps + 1)[:, None] == to_go)  # [steps, rows]
        finished = []
        for n, step in np.argwhere(ends.T).tolist():
            row = int(rows[n])
            request, all_of_it = self._requests[row], self._count[row]
            if request is None:  # it ended a step before
                continue
            self._count[row] += step + 1 - steps
            finish = self._finish(row)
            if finish is None:  # the last letter of a stop, and not the others
                self._count[row] = all_of_it
                continue
            finished.append((request.ticket, self._completion(row, finish)))
            self._leave(row)
        if finished:
            self._seated()
        return finished

    def _keep_all(self, rows: Ints, drawn: DrawnTokens) -> None:
        """Write a whole stride down. Who ends within it has the rest for nothing, and nobody uses the last place."""
        steps = len(drawn.ids)
        counts = np.minimum(self._count[rows][:, None] + np.arange(steps), self.shape.context - 1)
        self._ids[rows[:, None], counts] = drawn.ids[:, rows].T
        self._logps[rows[:, None], counts] = drawn.logps[:, rows].T
        self._forced[rows[:, None], counts] = drawn.forced[:, rows].T
        self._inside[rows], self._left[rows] = drawn.inside[rows], drawn.left[rows]
        self._token[rows] = drawn.ids[-1, rows]
        self._place[rows] = np.minimum(self._place[rows] + steps, self.shape.context - 1)
        self._count[rows] += steps

    def _standing(self) -> RowPositions:
        return RowPositions(
            token=self._token, position=self._place, count=self._count, inside=self._inside, left=self._left,
            uniform=self._uniform, columns=self._columns,
        )  # fmt: skip

    def so_far(self, ticket: Any, start: int = 0) -> tuple[list[int], list[float]]:
        """Tokens and log-probs of an answer under way, from one of its places on."""
        slot = next(n for n, request in enumerate(self._requests) if request is not None and request.ticket == ticket)
        count = int(self._count[slot])
        return self._ids[slot, start:count].tolist(), np.minimum(self._logps[slot, start:count], 0).tolist()

    def drop(self, tickets: Iterable[Any]) -> None:
        """These answers are no longer wanted."""
        unwanted = set(tickets)
        for slot, request in enumerate(self._requests):
            if request is not None and request.ticket in unwanted:
                self._leave(slot)
        self._seated()

    def _give_up(self, slots: Ints) -> None:
        """Something failed: what these slots hold may be half computed, and nobody may lean on it."""
        for slot in slots.tolist():
            self._leave(slot)
        nothing = np.full((len(slots), self.shape.context), -1)
        self._slots.fed(slots[:, None], np.arange(self.shape.context), nothing)
        self._slots.computed()
        self._seated()

    def _begin(self, slot: int, request: DecodeRequest) -> None:
        """The prompt's last token is what the first step feeds."""
        sampling, length = request.sampling, len(request.ids)
        limit = min(sampling.max_tokens, self.shape.context - length)
        self._requests[slot] = request
        self._token[slot], self._place[slot] = request.ids[-1], length - 1
        self._count[slot], self._limit[slot] = 0, limit
        self._inside[slot] = _is_inside(request.ids)
        self._left[slot] = NO_LIMIT if sampling.thinking is None else sampling.thinking
        self._columns[:, slot] = sampling.column
        self._closing[slot] = False
        self._closing[slot, [END, *(stop[-1] for stop in sampling.stops)]] = True
        self._uniform[slot, :limit] = uniforms(request.key, limit)
        self._forced[slot] = False

    def _seated(self) -> None:
        """Who is there has changed: rows that lean on one beginning go side by side."""
        active = np.flatnonzero(self._slots.active)
        self._rows: Ints = (
            np.arange(len(self._requests)) if self.fixed else active[self._slots.base[active].argsort(kind="stable")]
        )
        self._lean = self._slots.base[self._rows], self._slots.shared[self._rows]
        self._rules = SamplingRules.of(self._columns[:, self._rows], self.shape.vocabulary, torch.device("cpu"))

    def _keep(
        self, rows: Ints, tokens: Ints, logps: NDArray[np.float32], forced: NDArray[np.bool_]
    ) -> list[tuple[Any, Completion]]:
        """Write down what was drawn, count thoughts, and let those go who are done."""
        counts = self._count[rows]
        self._ids[rows, counts], self._logps[rows, counts], self._forced[rows, counts] = tokens, logps, forced
        inside, left = track_thinking(*(torch.from_numpy(a) for a in (tokens, self._inside[rows], self._left[rows])))
        self._inside[rows], self._left[rows] = inside.numpy(), left.numpy()
        self._token[rows] = tokens
        self._place[rows] += 1
        self._count[rows] = counts + 1
        if self.fixed:  # rows of nobody stay where they are
            idle = ~self._slots.active
            self._token[idle] = self._place[idle] = self._count[idle] = 0
        done = self._closing[rows, tokens] | (counts + 1 >= self._limit[rows])
        finished = []
        for row in rows[done]:
            request = self._requests[row]
            finish = self._finish(row)
            if request is not None and finish is not None:
                finished.append((request.ticket, self._completion(row, finish)))
                self._leave(row)
        if finished:
            self._seated()
        return finished

    def _finish(self, row: int) -> Literal["stop", "length"] | None:
        request, count = self._requests[row], int(self._count[row])
        if request is None:
            return None
        if self._ids[row, count - 1] == END:
            return "stop"
        for stop in request.sampling.stops:
            if count >= len(stop) and self._ids[row, count - len(stop) : count].tolist() == list(stop):
                return "stop"
        return "length" if count >= self._limit[row] else None

    def _completion(self, row: int, finish: Literal["stop", "length"]) -> Completion:
        count = int(self._count[row])
        return Completion(
            ids=tuple(self._ids[row, :count].tolist()),
            logprobs=tuple(np.minimum(self._logps[row, :count], 0).tolist()),
            forced=tuple(np.flatnonzero(self._forced[row, :count]).tolist()),
            finish=finish,
        )

    def _leave(self, slot: int) -> None:
        self._requests[slot] = None
        self._slots.leave(slot)
        self._inside[slot] = False


def check(request: DecodeRequest, shape: PromptLimits) -> None:
    """What cannot be answered is refused before it sits among others: a prompt must leave room for an answer."""
    length, context = len(request.ids), shape.context
    if not length:
        raise BadInput("prompt", why="is empty", remedy="give at least one token")
    if length > context - 1:
        raise BadInput(
            f"a prompt of {length} tokens",
            why=f"the context is {context}, so that at most {context - 1} leave room for an answer",
            remedy="shorten the conversation",
        )
    if min(request.ids) < 0 or max(request.ids) >= shape.vocabulary:
        raise BadInput("prompt", why=f"holds tokens that are not among the model's {shape.vocabulary}")
    if not isinstance(request.key, Integral) or isinstance(request.key, bool) or not 0 <= request.key < 2**64:
        raise BadInput(f"seed = {shown(request.key)}", why="must be a whole number, 0 or more, of at most 64 bits")


def _is_inside(ids: Sequence[int]) -> bool:
    """Whether the prompt breaks off within a thought."""
    for token in reversed(ids):
        if token >= MARK:
            return token == THINK
    return False
