"""Answers from vLLM servers, each version of a model by its own adapters or by all of its weights.

Prompts go out as token ids and answers come back as token ids: whatever template or parser a server has, the ids and
log-probs are those that were sampled. The adapters of a version are written as peft's folder and loaded by vLLM's
documented route, `/v1/load_lora_adapter`, under a name with the hash of their bytes. A name never stands for other
bytes, so an answer under it was computed by that version, also while the next one is being loaded.

Where all weights are trained, a server has one version at a time: it reads the next one from a folder by
`/collective_rpc` (`reload_weights`; the other routes of vLLM need CUDA on both sides) and is then told the version's
name, which comes back with every token (`/inference/v1/generate`). Calls of one version are let in together; the next
one is loaded when they have ended. Servers read folders from their own disk: they share it with this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from holdfast.collect.client import NO_ANSWER, Client, checked, complaint, listed_models
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, Fault, Lost
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.trace import ModelCall
from holdfast.policies import hub
from holdfast.policies.chat_template import ByteTemplate, ChatTemplate, ConversationIds
from holdfast.policies.decoder import DecodeRequest, check
from holdfast.policies.engine import call_of, sampling_of
from holdfast.policies.model import Model, folder_of, is_hub
from holdfast.policies.sampling import Completion, Sampling

KEPT = 2  # versions that stay loaded, or written, while nobody asks them: what is live, and a candidate
SWITCH = 8  # a server with other weights is taken where it has so many calls fewer
TRIES = 5  # of one call, over all servers
BUSY = frozenset({408, 409, 425, 429})
REMEDY = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve FOLDER --enable-lora --max-lora-rank RANK"
WHOLE_REMEDY = "VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --enable-scale-out"
UNCHANGED = "default"  # what vLLM calls the weights that it was started with
T = TypeVar("T")
Load = Callable[[], Coroutine[Any, Any, None]]


class _Turns:
    """Which weights one server has. Calls of one version are let in together; whoever asks for another one waits until
    they have ended and it is loaded, and who comes later waits behind."""

    def __init__(self) -> None:
        self.held, self._inside, self._is_loading = "", 0, False
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Load, list[Future[None]]]] = {}  # by name; who has waited longest is first

    @asynccontextmanager
    async def turn(self, name: str, load: Load) -> AsyncIterator[None]:
        """While it is open, the server has these weights; raises what `load` raised."""
        entry: Future[None] = Future()
        with self._lock:
            self._waiting.setdefault(name, (load, []))[1].append(entry)
            self._admit()
        try:
            await asyncio.wrap_future(entry)
            yield
        finally:
            with self._lock:
                if not entry.cancel() and entry.exception() is None:  # it was let in
                    self._inside -= 1
                self._admit()

    def forget(self, name: str) -> None:
        """The server has other weights than was thought."""
        with self._lock:
            if self.held == name:
                self.held = ""

    def _admit(self) -> None:
        while self._waiting and not self._is_loading:
            name, (load, _) = next(iter(self._waiting.items()))
            if name == self.held:
                self._let_in(name, None)
            elif self._inside:
                return
            else:
                self._is_loading = True
                threading.Thread(target=self._load, args=(name, load), name="holdfast-vllm", daemon=True).start()

    def _load(self, name: str, load: Load) -> None:
        error: BaseException | None = None
        try:
            asyncio.run(load())
        except BaseException as raised:
            error = raised
        with self._lock:
            self._is_loading, self.held = False, "" if error else name
            self._let_in(name, error)
            self._admit()

    def _let_in(self, name: str, error: BaseException | None) -> None:
        for entry in self._waiting.pop(name)[1]:
            if not entry.set_running_or_notify_cancel():
                continue
            if error is not None:
                entry.set_exception(error)
            else:
                self._inside += 1
                entry.set_result(None)


@dataclass(slots=True, eq=False)
class VllmServer:
    """One address: what it serves, and how many calls are under way there."""

    url: str
    client: Client
    base: str = ""  # its name for the model without adapters
    context: int = 0  # tokens
    is_raw: bool = True  # its log-probs are those before temperature, top-k and top-p
    calls: int = 0
    loaded: set[str] = field(default_factory=set)  # names of adapters
    turns: _Turns = field(default_factory=_Turns)  # of versions of all weights


@dataclass(slots=True, eq=False)
class _Weights:
    """Of one version: where they lie, by which name they are known, and by how many calls they are asked just now."""

    name: str
    folder: Path
    is_whole: bool  # all weights, and not adapters over those that the server was started with
    calls: int = 0


class VllmEngine:
    """Answers for versions of one model that differ by their adapters, or by all of their weights; see
    `contracts.engine`."""

    def __init__(
        self,
        servers: Sequence[str],
        *,
        seed: int = 0,
        api_key: str | None = None,
        timeout_s: float = 600.0,
        files: Artifacts | None = None,
        endpoint: Callable[[str], Complete | None] = lambda model: None,
    ) -> None:
        if not servers:
            raise BadInput("vllm", why="no server is named", remedy="give addresses, as in http://127.0.0.1:8000/v1")
        self.files = files
        self.servers = [_server(url, api_key, timeout_s) for url in servers]
        self._endpoint, self._seed, self._own = endpoint, seed, count()
        self._versions: dict[str, _Weights] = {}  # the one asked for last at the end
        self._is_whole: bool | None = None  # what its versions differ by; None before the first one
        self._lock, self._loading = threading.Lock(), threading.Lock()  # of tables, for a moment; one load at a time
        self._folder: Path | None = None
        self._is_closed = False

    def open_model(self, policy: Model) -> VllmVersion:
        return VllmVersion(self, policy)

    def open_endpoint(self, model: str) -> Complete | None:
        return self._endpoint(model)

    def close(self) -> None:
        """Unloads what was loaded here, where a server still answers."""
        with self._loading:
            if not self._is_closed:
                self._is_closed = True
                for version in list(self._versions):
                    _wait(self._unload(self._versions.pop(version)))
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)

    def load(self, policy: Model) -> None:
        """The version's adapters on every server; what is there already is not sent again. All weights are only
        written: a server reads them when it is asked for them."""
        with self._loading:
            if self._is_closed:
                raise Fault("vLLM", why="its engine was closed", remedy="open another one")
            if self._is_whole not in (None, not policy.lora):
                why = "adapters are for weights that rest, and other versions here change all of them"
                raise BadInput(f"model {policy.name}, lora = {policy.lora}", why=why, remedy="give both the same lora")
            if not self.servers[0].base:
                _wait(self._greet(is_whole=not policy.lora))
            self._is_whole = not policy.lora
            with self._lock:
                known = self._versions.get(policy.version)
            if known is None:
                known = self._written(policy)
                _wait(self._make_room())
            if not known.is_whole:
                _wait(self._send(known))
            with self._lock:
                self._versions[policy.version] = known

    def take(self, version: str) -> _Weights | None:
        """The version, which stays loaded until it is given back; None where it has to be loaded first."""
        with self._lock:
            known = self._versions.pop(version, None)
            if known is not None:
                known.calls += 1
                self._versions[version] = known
            return known

    def give_back(self, adapters: _Weights) -> None:
        with self._lock:
            adapters.calls -= 1

    async def complete(self, weights: _Weights, body: Mapping[str, Any]) -> Completion:
        """One completion by exactly these weights, from the server with the fewest calls; another one is asked where
        that fails."""
        why, backoff = "", Backoff(initial_s=0.1, cap_s=4.0)
        tired: set[str] = set()
        for number in range(1, TRIES + 1):
            server = self._least_busy(tired, weights)
            try:
                status, text = await self._ask(server, weights, body)
            finally:
                with self._lock:
                    server.calls -= 1
            why = text if status == NO_ANSWER else f"HTTP {status}: {complaint(text)}"
            if status == 200:
                try:
                    return _completion(json.loads(text), weights, server.url)
                except Fault as other:
                    if not weights.is_whole:
                        raise
                    why = other.why
                    server.turns.forget(weights.name)
            elif status == 404 and not weights.is_whole:  # it was started anew
                server.loaded.discard(weights.name)
                await asyncio.to_thread(_wait, self._load_on(server, weights))
            elif status != NO_ANSWER and status not in BUSY and status < 500:
                raise BadInput(f"vLLM {server.url}", why=why, remedy="see what it was asked for")
            else:
                tired = {server.url} if len(tired) + 1 >= len(self.servers) else tired | {server.url}
                await asyncio.sleep(0.0 if len(self.servers) > 1 and number == 1 else backoff.delay_s(number, 0.5))
        raise Fault("vLLM", why=f"{why} ({TRIES} tries)", remedy="are the servers running and reachable?")

    async def _ask(self, server: VllmServer, weights: _Weights, body: Mapping[str, Any]) -> tuple[int, str]:
        if not weights.is_whole:
            return await server.client.fetch("POST", "/v1/completions", {**body, "model": weights.name})
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(server.turns.turn(weights.name, lambda: _replace(server, weights)))
            except Fault as error:
                return NO_ANSWER, error.why
            return await server.client.fetch("POST", "/inference/v1/generate", _as_tokens(body))

    def _least_busy(self, tired: set[str], weights: _Weights) -> VllmServer:
        def load(one: VllmServer) -> int:
            return one.calls + (SWITCH if weights.is_whole and one.turns.held != weights.name else 0)

        with self._lock:
            able = [server for server in self.servers if server.url not in tired] or self.servers
            server = min(able, key=load)
            server.calls += 1
            return server

    def next_key(self) -> int:
        high, low = np.random.SeedSequence([self._seed, next(self._own)]).generate_state(2).tolist()
        return int(high) << 21 | int(low) >> 11

    # Loading -----------------------------------------------------------------------------------------------------

    async def _greet(self, *, is_whole: bool) -> None:
        for server in self.servers:
            try:
                await _introduce(server)
                await _check_version(server, is_whole=is_whole)
            finally:
                await server.client.close()

    def _written(self, policy: Model) -> _Weights:
        """The model as it came has adapters, too, which change nothing: in a batch with others, vLLM 0.32 on the CPU
        answers a call without adapters by those of its neighbour."""
        is_whole = not policy.lora
        if is_whole and policy.checkpoint is None:
            folder = folder_of(policy.name)
            return _Weights(_named(folder), folder, is_whole)
        self._folder = self._folder or Path(mkdtemp(prefix="holdfast-weights-" if is_whole else "holdfast-adapters-"))
        aside = replace(policy, artifacts=self.files or policy.artifacts).export(
            self._folder / f"new-{next(self._own)}", adapters=not is_whole
        )
        name = _named(aside)
        folder = self._folder / name
        if folder.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(folder)
        return _Weights(name, folder, is_whole)

    async def _send(self, adapters: _Weights) -> None:
        for server in self.servers:
            await self._load_on(server, adapters)

    async def _load_on(self, server: VllmServer, adapters: _Weights) -> None:
        if adapters.name in server.loaded:
            return
        try:
            body = {"lora_name": adapters.name, "lora_path": str(adapters.folder)}
            status, text = await server.client.fetch("POST", "/v1/load_lora_adapter", body)
        finally:
            await server.client.close()
        if status == 200 or (status == 400 and "already been loaded" in text):  # the name is of these bytes alone
            server.loaded.add(adapters.name)
            return
        why = f"does not load adapters: {text if status == NO_ANSWER else f'HTTP {status}: {complaint(text)}'}"
        raise Fault(f"vLLM {server.url}", why=why, remedy=f"start it with {REMEDY}, on a disk that both can read")

    async def _make_room(self) -> None:
        """Versions that nobody asks are unloaded, whoever was asked longest ago first."""
        with self._lock:
            idle = [version for version, one in self._versions.items() if not one.calls]
            gone = [self._versions.pop(version) for version in idle[: max(0, len(self._versions) + 1 - KEPT)]]
        for one in gone:
            await self._unload(one)

    async def _unload(self, adapters: _Weights) -> None:
        for server in self.servers:
            if adapters.name in server.loaded:
                server.loaded.discard(adapters.name)
                await server.client.fetch("POST", "/v1/unload_lora_adapter", {"lora_name": adapters.name})
                await server.client.close()
        if adapters.folder.parent == self._folder:
            shutil.rmtree(adapters.folder, ignore_errors=True)


class VllmVersion:
    """One version as something that answers messages; it takes what `policies.engine.Local` takes."""

    takes_seed = True
    limits_thinking = False
    thinking_scale = 1.0

    def __init__(self, engine: VllmEngine, policy: Model) -> None:
        folder = folder_of(policy.name)
        if not is_hub(folder):
            why = "is not in Hugging Face's format, and vLLM serves no other"
            raise BadInput(f"model {policy.name}", why=why, remedy="export it first: holdfast policy export")
        self._engine, self._policy, self.model = engine, policy, f"local/{policy.name}"
        self._template: ChatTemplate
        self._template, self._limits = hub.template_of(folder)
        self._memory = ConversationIds(self._template)
        self.speaks_bytes = isinstance(self._template, ByteTemplate)
        engine.load(policy)
        shortest = min(server.context for server in engine.servers)
        self._limits = replace(self._limits, context=min(self._limits.context, shortest))

    async def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **sampling: Any,
    ) -> ModelCall:
        request = self._request(messages, tools, sampling)
        async with self._loaded() as adapters:
            answer = await self._engine.complete(adapters, _body(request, self._limits.context, self._template))
        call = call_of(self._policy.version, messages, request, answer, self._template)
        return self._memory.add(call, tools or ())

    def _request(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, given: dict[str, Any]
    ) -> DecodeRequest:
        seed = given.pop("seed", None)
        sampling = sampling_of(given)
        if sampling.form:
            what = f"sampling.{next(iter(json.loads(sampling.form)))}"
            raise BadInput(what, why="is not sent to vLLM", remedy="leave it out, or sample here")
        if sampling.thinking is not None:
            raise BadInput("thinking", why="vLLM is not told a budget of thoughts", remedy="leave it out")
        if _is_changed(sampling) and any(server.is_raw for server in self._engine.servers):
            what = f"temperature = {sampling.temperature:g}, top_k = {sampling.top_k}, top_p = {sampling.top_p:g}"
            why = "the log-probs that vLLM tells are those before it"
            raise BadInput(what, why=why, remedy="start it with --logprobs-mode processed_logprobs")
        key = self._engine.next_key() if seed is None else seed
        request = DecodeRequest(0, self._memory.prompt(messages, tools or ()), sampling, key)
        check(request, self._limits)
        return request

    @asynccontextmanager
    async def _loaded(self) -> AsyncIterator[_Weights]:
        while (adapters := self._engine.take(self._policy.version)) is None:
            try:
                await asyncio.to_thread(self._engine.load, self._policy)
            except Lost as lost:  # the agent that asks now did nothing wrong
                raise Fault(f"policy {self._policy.version}", why=str(lost)) from lost
        try:
            yield adapters
        finally:
            self._engine.give_back(adapters)


def _server(url: str, api_key: str | None, timeout_s: float) -> VllmServer:
    base = checked("vllm", url, example="http://127.0.0.1:8000/v1").removesuffix("/v1")
    return VllmServer(base, Client("", base, api_key=api_key, timeout_s=timeout_s))


def _wait(work: Coroutine[Any, Any, T]) -> T:
    """Runs it to its end in a loop of its own, whether or not this thread has one."""
    found: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(asyncio.run(work))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="holdfast-vllm", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


async def _introduce(server: VllmServer) -> None:
    """What it serves, and what its log-probs mean; a Fault where it is no vLLM that we can use."""
    status, text = await server.client.fetch("GET", "/v1/models")
    if status != 200:
        why = text if status == NO_ANSWER else f"HTTP {status}: {complaint(text)}"
        raise Fault(f"vLLM {server.url}", why=why, remedy="is it running and reachable?")
    served = [one for one in listed_models(json.loads(text)) if not one.get("parent")]
    if not served:
        raise Fault(f"vLLM {server.url}", why="lists no model", remedy="is it a vLLM server?")
    server.context = int(served[0].get("max_model_len") or 2**31)
    gaps = []
    for temperature in (1.0, 2.0):
        body = {"model": served[0]["id"], "prompt": [1, 2, 3], "max_tokens": 1, "temperature": temperature}
        status, text = await server.client.fetch(
            "POST", "/v1/completions", {**body, "logprobs": 2, "top_k": -1, "seed": 0}
        )
        if status != 200:
            raise Fault(f"vLLM {server.url}", why=f"HTTP {status}: {complaint(text)}", remedy="is it a vLLM server?")
        told = sorted(json.loads(text)["choices"][0]["logprobs"]["top_logprobs"][0].values())
        gaps.append(told[-1] - told[-2])
    server.is_raw = not abs(gaps[1] - gaps[0] / 2.0) < 0.1 * abs(gaps[0])
    server.base = str(served[0]["id"])


async def _check_version(server: VllmServer, *, is_whole: bool) -> None:
    """Whether it can be given all weights; and where it gets adapters, that nobody has changed those below them."""
    status, text = await server.client.fetch("GET", "/weight_info")
    if not is_whole:
        if status == 200 and (held := json.loads(text).get("weight_version")) != UNCHANGED:
            why = f"has the weights {held!r}, and adapters are for those that it was started with"
            raise Fault(f"vLLM {server.url}", why=why, remedy="start it anew")
        return
    if status == 200:
        body = _as_tokens({"prompt": [1], "max_tokens": 1, "temperature": 0.0, "logprobs": 1})
        status, text = await server.client.fetch("POST", "/inference/v1/generate", body)
    if status != 200:
        why = f"does not take all weights: {text if status == NO_ANSWER else f'HTTP {status}: {complaint(text)}'}"
        raise Fault(f"vLLM {server.url}", why=why, remedy=f"start it with {WHOLE_REMEDY}, or train adapters (lora)")


async def _replace(server: VllmServer, weights: _Weights) -> None:
    """Other weights, between two answers. What was loaded halfway has a name that nobody asks for, and so has a server
    that another process takes meanwhile."""

    async def order(method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        status, text = await server.client.fetch(method, path, body)
        if status != 200:
            why = f"{path}: {text if status == NO_ANSWER else f'HTTP {status}: {complaint(text)}'}"
            raise Fault(f"vLLM {server.url}", why=why, remedy=f"start it with {WHOLE_REMEDY}, on a disk that both read")
        return json.loads(text)

    halfway = f"holdfast-loading-{uuid4().hex}"
    try:
        await order("POST", "/pause?mode=wait")  # for whoever else asks there
        await order("POST", "/update_weight_version", {"new_version": halfway})
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(weights.folder)}}
        await order("POST", "/collective_rpc", body)
        emptied = await order("POST", "/reset_prefix_cache")
        held = await order("GET", "/weight_info")
        if not emptied.get("success") or held.get("weight_version") != halfway:
            why = "keeps what it read by other weights" if not emptied.get("success") else "is given weights by others"
            raise Fault(f"vLLM {server.url}", why=why, remedy="let one run at a time have it")
        await order("POST", "/update_weight_version", {"new_version": weights.name})
    finally:
        try:
            await order("POST", "/resume")
        finally:
            await server.client.close()


def _named(folder: Path) -> str:
    """A name for the bytes of a folder's files."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file():
            with file.open("rb") as opened:
                digest.update(file.name.encode() + b"\0" + hashlib.file_digest(opened, "sha256").digest())
    return f"holdfast-{digest.hexdigest()[:24]}"


def _is_changed(sampling: Sampling) -> bool:
    """Whether tokens are drawn otherwise than the model's own scores say; the likeliest is the same either way."""
    return sampling.temperature not in (0.0, 1.0) or sampling.top_k > 0 or sampling.top_p < 1.0


def _body(request: DecodeRequest, context: int, template: ChatTemplate) -> dict[str, Any]:
    """All that decides what is drawn is said: a server takes what is not from the model's generation_config.json."""
    how = request.sampling
    return {
        "prompt": list(request.ids),
        "max_tokens": min(how.max_tokens, context - len(request.ids)),
        "temperature": how.temperature,
        "top_p": how.top_p,
        "top_k": how.top_k or -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": list(how.stop),
        "stop_token_ids": sorted(template.ends),
        "seed": int(request.key) % 2**63,
        "logprobs": 1,
        "return_token_ids": True,
        "skip_special_tokens": False,
    }


def _as_tokens(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a completion for the route that tells by which weights each token was drawn."""
    how = {name: value for name, value in body.items() if name not in ("prompt", "return_token_ids")}
    return {"token_ids": body["prompt"], "sampling_params": how}


def _completion(answer: Any, weights: _Weights, url: str) -> Completion:
    """Fenced: what other weights answered is nobody's sample."""
    try:
        choice: Mapping[str, Any] = answer["choices"][0]
        ids = tuple(choice["token_ids"])
        if weights.is_whole:
            told = [one["logprob"] for one in choice["logprobs"]["content"]]
            names = sorted({span["version"] for span in choice["weight_versions"]})
        else:
            told, names = choice["logprobs"]["token_logprobs"], [answer.get("model")]
        logprobs = tuple(min(float(one), 0.0) for one in told)
    except (LookupError, TypeError) as error:
        why = f"gives no token ids and log-probs ({type(error).__name__}): {complaint(answer)}"
        raise Fault(f"vLLM {url}", why=why, remedy="a version that knows return_token_ids is needed") from error
    if names != [weights.name]:
        raise Fault(f"vLLM {url}", why=f"{', '.join(map(repr, names))} answered, and {weights.name!r} was asked")
    if len(logprobs) != len(ids):
        raise Fault(f"vLLM {url}", why=f"gives {len(logprobs)} log-probs for {len(ids)} tokens")
    is_cut = choice.get("finish_reason") == "length"
    return Completion(ids=ids, logprobs=logprobs, finish="length" if is_cut else "stop")
