"""The engine in this process: local models that answer messages, several versions at once, each loaded once.

One thread owns a model's decoder; calls from any thread and any event loop reach it through a queue and join the rows
that are being decoded. A call finishes on the weights that it began with. A version that was unloaded for others is
loaded again when it is called. Models behind an address are opened by a function that the caller gives.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import queue
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from itertools import count
from typing import Any, Protocol

import numpy as np
import torch

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.budget import LARGEST_CAP, Mode
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, Fault, HoldfastError, Lost
from holdfast.contracts.trace import ModelCall
from holdfast.policies.chat_template import ByteTemplate, ChatTemplate, ConversationIds, thinking_tokens
from holdfast.policies.decoder import Decoder, DecodeRequest, PromptLimits, check
from holdfast.policies.grammar import grammar_of
from holdfast.policies.lm import Transformer
from holdfast.policies.model import BASE, Model, load
from holdfast.policies.sampling import Completion, Sampling

FORMS = {"response_format": {"type": "text"}, "tool_choice": "auto"}  # OpenAI's, with what leaves an answer free
NAMES = tuple(each.name for each in fields(Sampling) if each.name not in ("form", "grammar"))
BYTES = ByteTemplate()
REMEMBERED = 2048  # answers whose ids later prompts go on from

OnTokens = Callable[[list[int], list[float]], None]  # new tokens and their log-probs; called by the decoder thread


class AnswerWriter(Protocol):
    """What writes answers, many at a time: `decoder.Decoder`, or a foreign model's."""

    @property
    def capacity(self) -> int: ...
    @property
    def room(self) -> int: ...
    def admit(self, requests: Sequence[DecodeRequest]) -> list[DecodeRequest]: ...
    def step(self) -> list[tuple[Any, Completion]]: ...
    def so_far(self, ticket: Any, start: int = 0) -> tuple[list[int], list[float]]: ...
    def drop(self, tickets: Iterable[Any]) -> None: ...


class ForeignModel(PromptLimits, Protocol):
    """A model of another kind (`hub.Hub`), with its own tokens and its own way to write answers."""

    template: ChatTemplate

    def writing(self, slots: int) -> AnswerWriter: ...


@dataclass(slots=True, eq=False)
class Job:
    """An answer that somebody waits for."""

    request: DecodeRequest
    answer: Future[tuple[Completion, str]]  # and the version that gave it
    on_tokens: OnTokens | None = None  # somebody listens while it is written …
    sent: int = 0  # … and has heard so many tokens


@dataclass(slots=True, eq=False)
class WeightsGeneration:
    """One version of the weights, and the jobs that began with it."""

    decoder: AnswerWriter
    version: str
    waiting: list[Job] = field(default_factory=list)
    running: dict[int, Job] = field(default_factory=dict)


class Local:
    """`await local(messages, tools=…, temperature=…, top_p=…, top_k=…, max_tokens=…, stop=…, thinking=…, seed=…)`

    The seed of a call is the key of its random stream; without one it gets the next of this object's own, and either
    way it is recorded. `deterministic`: the same call with the same seed gives the same bits, whatever runs beside it.
    """

    def __init__(
        self,
        model: Transformer | ForeignModel,
        *,
        name: str = "local",
        version: str = "0",
        slots: int = 64,
        seed: int = 0,
        device: str | torch.device = "cpu",
        deterministic: bool = False,
    ) -> None:
        self.name, self._slots, self._seed, self._device = name, slots, seed, device
        self._deterministic = deterministic
        self._take(model)
        self._tickets, self._own = count(), count()
        self._spares: queue.SimpleQueue[Decoder] = queue.SimpleQueue()
        self._desk = DecoderThread(WeightsGeneration(self._decoder(model), version), self._spares)
        self._desk.start()

    async def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **sampling: Any,
    ) -> ModelCall:
        request, template = self._request(messages, tools, sampling), self._template
        memory = self._memory
        completion, version = await asyncio.wrap_future(self._desk.submit(request))
        return memory.add(call_of(f"{self.name}@{version}", messages, request, completion, template), tools or ())

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **sampling: Any,
    ) -> AsyncGenerator[Mapping[str, Any] | ModelCall, None]:
        """The answer while it is written: text with the tokens it came from, and the finished call last."""
        request, template = self._request(messages, tools, sampling), self._template
        memory = self._memory
        loop, news = asyncio.get_running_loop(), asyncio.Queue[tuple[list[int], list[float]] | None]()

        def on_tokens(ids: list[int], logprobs: list[float]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(news.put_nowait, (ids, logprobs))

        deltas, ids, logprobs = template.deltas(request.sampling.stop), list[int](), list[float]()
        answer = asyncio.wrap_future(self._desk.submit(request, None if deltas is None else on_tokens))
        answer.add_done_callback(lambda _: news.put_nowait(None))
        try:
            while deltas is not None and (new := await news.get()) is not None:
                ids, logprobs = ids + new[0], logprobs + new[1]
                if text := deltas.add(new[0]):
                    yield {**text, "token_ids": ids, "logprobs": logprobs}
                    ids, logprobs = [], []
            completion, version = await answer
            yield memory.add(call_of(f"{self.name}@{version}", messages, request, completion, template), tools or ())
        finally:
            answer.cancel()

    takes_seed = True  # of a call: without one it takes the next of its own

    @property
    def model(self) -> str:
        """Its name, without the version."""
        return self.name

    @property
    def thinking_scale(self) -> float:
        """What part of a tier's tokens it gets: our own model is small and thinks a quarter of its context at most."""
        return min(1.0, self._shape.context / 4 / LARGEST_CAP) if self._template is BYTES else 1.0

    @property
    def limits_thinking(self) -> bool:
        """Whether `thinking=…` can be kept to: a foreign model may have no tokens around its thoughts."""
        return self._template.think is not None

    @property
    def speaks_bytes(self) -> bool:
        """Whether its tokens are our bytes and marks, which anybody can spell."""
        return isinstance(self._template, ByteTemplate)

    def _request(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, sampling: dict[str, Any]
    ) -> DecodeRequest:
        seed = sampling.pop("seed", None)
        drawn = sampling_of(sampling)
        if drawn.form and self._is_own:
            what, why = f"sampling.{next(iter(json.loads(drawn.form)))}", "is for models in Hugging Face's format"
            raise BadInput(what, why=why, remedy="leave it out, or export the model and use that")
        if drawn.form:
            drawn = replace(drawn, grammar=grammar_of(json.loads(drawn.form), tools or (), self._template))
        ids = self._memory.prompt(messages, tools or ())
        key = self._next_key() if seed is None else seed
        request = DecodeRequest(next(self._tickets), ids, drawn, key)
        check(request, self._shape)
        return request

    def swap(self, model: Transformer | ForeignModel, version: str) -> None:
        """Calls from now on are answered by these weights, which are copied. Nobody waits."""
        self._desk.post(WeightsGeneration(self._decoder(model), version))
        self._take(model)

    def close(self) -> None:
        """Calls that are still under way fail with a Fault."""
        self._desk.stop()

    def __enter__(self) -> Local:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, model: Transformer | ForeignModel) -> None:
        self._shape: PromptLimits
        self._template: ChatTemplate
        before = getattr(self, "_template", None)
        self._is_own = isinstance(model, Transformer)
        if isinstance(model, Transformer):
            self._shape, self._template = model.shape, BYTES
        else:
            self._shape, self._template = model, model.template
        if before is not self._template:
            # What is remembered depends on what ran beside a call, where two answers read alike and have other ids.
            self._memory = ConversationIds(self._template, most=0 if self._deterministic else REMEMBERED)

    def _decoder(self, model: Transformer | ForeignModel) -> AnswerWriter:
        """A decoder whose version is done serves again: its memory is warm, and on a GPU its graphs are captured."""
        if not isinstance(model, Transformer):
            return model.writing(self._slots)
        try:
            spare = self._spares.get_nowait()
        except queue.Empty:
            spare = None
        if spare is None or spare.shape != model.shape:
            try:
                return Decoder(model, slots=self._slots, device=self._device, fixed=self._deterministic)
            except MemoryError:
                what = f"{self._slots} answers of {model.shape.context} tokens"
                remedy = "use fewer slots, or a model with a shorter context"
                raise BadInput(what, why="do not fit into memory", remedy=remedy) from None
        spare.load(model)
        return spare

    def _next_key(self) -> int:
        high, low = np.random.SeedSequence([self._seed, next(self._own)]).generate_state(2).tolist()
        return int(high) << 21 | int(low) >> 11  # 53 bits: every JSON reader keeps them


class DecoderThread(threading.Thread):
    """The thread that owns the decoders.

    What fails for one call fails that call; what fails for all that are under way fails those. Later calls are served.
    """

    WINDOW_S = 0.002  # an idle desk waits this long after the first call for those that come with it

    def __init__(self, generation: WeightsGeneration, spares: queue.SimpleQueue[Decoder]) -> None:
        super().__init__(name="holdfast-local", daemon=True)
        self._spares = spares
        self._generations = [generation]  # the last one takes new jobs, the others finish theirs
        self._inbox: queue.SimpleQueue[Job | WeightsGeneration | int | None] = queue.SimpleQueue()
        self._door = threading.Lock()
        self._closed: Fault | None = None

    def submit(self, request: DecodeRequest, on_tokens: OnTokens | None = None) -> Future[tuple[Completion, str]]:
        answer: Future[tuple[Completion, str]] = Future()
        self.post(Job(request, answer, on_tokens))
        answer.add_done_callback(lambda done: self._inbox.put(request.ticket) if done.cancelled() else None)
        return answer

    def post(self, message: Job | WeightsGeneration | None) -> None:
        with self._door:
            if self._closed is not None:
                raise self._closed
            self._inbox.put(message)

    def stop(self) -> None:
        self._inbox.put(None)
        self.join()

    def run(self) -> None:
        fault = Fault("local model", why="it was closed", remedy="open another one")
        try:
            while self._sort():
                self._work()
        except BaseException as error:
            fault = _fault(error, "open another one")
        with self._door:
            self._closed = fault
        while not self._inbox.empty():
            message = self._inbox.get()
            if isinstance(message, Job):
                self._generations[-1].waiting.append(message)
        for generation in self._generations:
            for job in (*generation.waiting, *generation.running.values()):
                _tell(job, fault)
        self._generations.clear()

    def _sort(self) -> bool:
        """Read the inbox; False: time to stop. Only an idle desk waits."""
        idle = not any(generation.waiting or generation.running for generation in self._generations)
        until = None
        while True:
            try:
                if idle:
                    message = self._inbox.get(timeout=None if until is None else max(until - time.monotonic(), 0.0))
                else:
                    message = self._inbox.get_nowait()
            except queue.Empty:
                return True
            if message is None:
                return False
            if isinstance(message, WeightsGeneration):
                self._generations.append(message)
                self._dismiss()
            elif isinstance(message, Job):
                self._generations[-1].waiting.append(message)
                until = until or time.monotonic() + self.WINDOW_S
                idle = idle and len(self._generations[-1].waiting) < self._generations[-1].decoder.capacity
            else:
                self._drop(message)

    def _drop(self, ticket: int) -> None:
        for generation in self._generations:
            generation.waiting = [job for job in generation.waiting if job.request.ticket != ticket]
            if generation.running.pop(ticket, None):
                generation.decoder.drop([ticket])

    def _work(self) -> None:
        for generation in self._generations:
            self._admit(generation)
            self._step(generation)
            for ticket, job in generation.running.items():
                if job.on_tokens is not None:
                    ids, logprobs = generation.decoder.so_far(ticket, job.sent)
                    job.sent += len(ids)
                    job.on_tokens(ids, logprobs)
        self._dismiss()

    def _admit(self, generation: WeightsGeneration) -> None:
        if not generation.waiting or not generation.decoder.room:
            return
        if _begin(generation, generation.waiting) is None:
            return
        for job in list(generation.waiting):  # one at a time, it shows whose call cannot begin
            if generation.decoder.room and (error := _begin(generation, [job])) is not None:
                generation.waiting.remove(job)
                _tell(job, error if isinstance(error, HoldfastError) else _fault(error, "ask for something else"))

    def _step(self, generation: WeightsGeneration) -> None:
        try:
            finished = generation.decoder.step()
        except Exception as error:  # nobody knows whose row it was
            lost, fault = generation.running, _fault(error, "ask again")
            generation.running = {}
            generation.decoder.drop(lost)
            for job in lost.values():
                _tell(job, fault)
            return
        for ticket, completion in finished:
            _tell(generation.running.pop(ticket), (completion, generation.version))

    def _dismiss(self) -> None:
        """Older crews go when their jobs are done."""
        if len(self._generations) == 1:
            return
        *older, newest = self._generations
        for generation in older:
            if not generation.waiting and not generation.running and isinstance(generation.decoder, Decoder):
                self._spares.put(generation.decoder)
        self._generations = [generation for generation in older if generation.waiting or generation.running] + [newest]


def _begin(generation: WeightsGeneration, jobs: Sequence[Job]) -> Exception | None:
    """Those of the jobs for which there is room begin; or, if that fails, none does."""
    room = generation.decoder.room
    try:
        left = {request.ticket for request in generation.decoder.admit([job.request for job in jobs])}
    except Exception as error:
        if generation.decoder.room != room:  # it left some of them there
            generation.decoder.drop([job.request.ticket for job in jobs])
        return error
    generation.running.update({job.request.ticket: job for job in jobs if job.request.ticket not in left})
    generation.waiting = [job for job in generation.waiting if job.request.ticket not in generation.running]
    return None


def _fault(error: BaseException, remedy: str) -> Fault:
    fault = Fault("local model", why=f"{type(error).__name__}: {error}", remedy=remedy)
    fault.__cause__ = error
    return fault


def _tell(job: Job, outcome: tuple[Completion, str] | HoldfastError) -> None:
    try:
        if isinstance(outcome, HoldfastError):
            job.answer.set_exception(outcome)
        else:
            job.answer.set_result(outcome)
    except InvalidStateError:
        pass  # cancelled in this moment


def sampling_of(given: dict[str, Any]) -> Sampling:
    """What a call asks for, with the defaults; BadInput for a name that is unknown here."""
    asked = {name: given.pop(name, None) or free for name, free in FORMS.items()}
    asked = {name: form for name, form in asked.items() if form != FORMS[name]}
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise BadInput(
            f"sampling.{unknown[0]}",
            why="is unknown to the local model",
            remedy=f"use tools, seed, {', '.join((*NAMES, *FORMS))}",
        )
    given = {name: value for name, value in given.items() if value is not None}
    stop = given.pop("stop", ())
    if not isinstance(stop, str | list | tuple):
        raise BadInput(f"sampling.stop = {stop!r:.60}", why="is neither text nor a list of texts", remedy="give a list")
    words = (stop,) if isinstance(stop, str) else tuple(stop)
    return Sampling(**given, stop=words, form=json.dumps(asked) if asked else "")


def call_of(
    model: str,
    messages: Sequence[Mapping[str, Any]],
    request: DecodeRequest,
    completion: Completion,
    template: ChatTemplate,
) -> ModelCall:
    """The record of an answer: every parameter in force is in it, and log-probs are those under them."""
    drawn = request.sampling
    response = template.read(completion.ids, drawn.stop)
    mark = hashlib.blake2s(repr((request.ids, request.key, completion.ids)).encode(), digest_size=6).hexdigest()
    for number, call in enumerate(response.get("tool_calls", ())):
        call["id"] = f"call_{mark}_{number}"
    calls = "tool_calls" in response and completion.finish == "stop"
    record = {name: getattr(drawn, name) for name in NAMES} | {"stop": list(drawn.stop), "seed": int(request.key)}
    if drawn.thinking == 0 and template.think is not None:
        record["banned"] = [template.think[0]]
    if drawn.form:
        record |= json.loads(drawn.form)
    if drawn.thinking is not None:
        record["thinking_mode"] = Mode.HARD.value
    return ModelCall(
        model=model,
        messages=tuple(messages),
        response=response,
        finish_reason="tool_calls" if calls else completion.finish,
        prompt_tokens=len(request.ids),
        completion_tokens=len(completion.ids),
        thinking_tokens=thinking_tokens(template, request.ids, completion.ids),
        prompt_ids=tuple(request.ids),
        completion_ids=completion.ids,
        logprobs=completion.logprobs,
        forced=completion.forced,
        sampling=record,
    )


KEPT = 2  # versions that stay loaded while nobody asks them: what is live, and a candidate


@dataclass(slots=True, eq=False)
class _Loaded:
    local: Local
    calls: int = 0  # under way; a version that has some is not let go


class LocalEngine:
    """`deterministic`: the same call with the same seed gives the same bits, whatever runs beside it."""

    def __init__(
        self,
        *,
        slots: int = 64,
        seed: int = 0,
        deterministic: bool = False,
        files: Artifacts | None = None,
        endpoint: Callable[[str], Complete | None] = lambda model: None,
    ) -> None:
        self.files = files  # the store's, once it is known
        self._slots, self._seed, self._deterministic = slots, seed, deterministic
        self._endpoint = endpoint
        self._loaded: dict[str, _Loaded] = {}  # by version, the one asked for last at the end
        self._lock = threading.Lock()  # of that table, held for a moment only
        self._loading = threading.Lock()  # one version at a time
        self._is_closed = False

    def open_model(self, policy: Model) -> ModelVersion:
        return ModelVersion(self, policy)

    def open_endpoint(self, model: str) -> Complete | None:
        return self._endpoint(model)

    def close(self) -> None:
        with self._loading, self._lock:
            self._is_closed = True
            for one in self._loaded.values():
                one.local.close()
            self._loaded.clear()

    def load(self, policy: Model) -> Local:
        """The version, loaded."""
        with self._loading:
            with self._lock:
                known = self._loaded.get(policy.version)
            if known is not None:
                return known.local
            if self._is_closed:
                raise Fault("local model", why="its engine was closed", remedy="open another one")
            local = self._load(policy)
            with self._lock:
                self._loaded[policy.version] = _Loaded(local)
            return local

    def take(self, version: str) -> Local | None:
        """The version, which stays loaded until it is given back; None where it has to be loaded first."""
        with self._lock:
            known = self._loaded.pop(version, None)
            if known is None:
                return None
            known.calls += 1
            self._loaded[version] = known
            return known.local

    def give_back(self, version: str) -> None:
        with self._lock:
            if version in self._loaded:  # the engine may be closed by now
                self._loaded[version].calls -= 1

    def _load(self, policy: Model) -> Local:
        """Those that nobody asks give their memory, whoever was asked longest ago first."""
        model, _ = load(policy, self.files or policy.artifacts)
        version, name = policy.checkpoint or BASE, f"local/{policy.name}"
        found: Local | None = None
        for local in self._let_go():
            if found is None and local.name == name:
                local.swap(model, version=version)  # its decoder is warm
                found = local
            else:
                local.close()
        return found or Local(
            model, name=name, version=version, slots=self._slots, seed=self._seed, deterministic=self._deterministic
        )

    def _let_go(self) -> list[Local]:
        with self._lock:
            idle = [version for version, one in self._loaded.items() if not one.calls]
            return [self._loaded.pop(version).local for version in idle[: max(0, len(self._loaded) + 1 - KEPT)]]


class ModelVersion:
    """One version of a model of ours as something that answers messages: see `local.Local`."""

    takes_seed = True

    def __init__(self, engine: LocalEngine, policy: Model) -> None:
        self._engine, self._policy = engine, policy
        local = engine.load(policy)
        self.model, self.limits_thinking, self.speaks_bytes = local.model, local.limits_thinking, local.speaks_bytes
        self.thinking_scale = local.thinking_scale

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        async with self._loaded() as local:
            return await local(messages, **sampling)

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any
    ) -> AsyncGenerator[Mapping[str, Any] | ModelCall, None]:
        """The answer while it is written, and the finished call last."""
        async with self._loaded() as local, aclosing(local.stream(messages, **sampling)) as news:
            async for new in news:
                yield new

    @asynccontextmanager
    async def _loaded(self) -> AsyncIterator[Local]:
        engine, version = self._engine, self._policy.version
        while (local := engine.take(version)) is None:
            try:
                await asyncio.to_thread(engine.load, self._policy)
            except Lost as lost:  # the agent that asks now did nothing wrong
                raise Fault(f"policy {version}", why=str(lost)) from lost
        try:
            yield local
        finally:
            engine.give_back(version)
