"""Answers from vLLM servers, each version of a model by its own adapters.

Prompts go out as token ids and answers come back as token ids (`/v1/completions`): whatever template or parser a server
has, the ids and log-probs are those that were sampled. The adapters of a version are written as peft's folder and
loaded by vLLM's documented route, `/v1/load_lora_adapter`, under a name with the hash of their bytes. A name never
stands for other bytes, so an answer under it was computed by that version, also while the next one is being loaded.
Servers read the folder from their own disk: they share it with this process.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, TypeVar

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

KEPT = 2  # versions that stay loaded while nobody asks them: what is live, and a candidate
TRIES = 5  # of one call, over all servers
BUSY = frozenset({408, 409, 425, 429})
REMEDY = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve FOLDER --enable-lora --max-lora-rank RANK"
T = TypeVar("T")


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


@dataclass(slots=True, eq=False)
class _Adapters:
    """Of one version: where they lie, by which name they are asked for, and by how many calls just now."""

    name: str
    folder: Path
    calls: int = 0


class VllmEngine:
    """Answers for versions of one model that differ by their adapters; see `contracts.engine`."""

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
        self._versions: dict[str, _Adapters] = {}  # the one asked for last at the end
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
        """The version's adapters on every server; what is there already is not sent again."""
        with self._loading:
            if self._is_closed:
                raise Fault("vLLM", why="its engine was closed", remedy="open another one")
            if not self.servers[0].base:
                _wait(self._greet())
            with self._lock:
                known = self._versions.get(policy.version)
            if known is None:
                known = self._written(policy)
                _wait(self._make_room())
            _wait(self._send(known))
            with self._lock:
                self._versions[policy.version] = known

    def take(self, version: str) -> _Adapters | None:
        """The version, which stays loaded until it is given back; None where it has to be loaded first."""
        with self._lock:
            known = self._versions.pop(version, None)
            if known is not None:
                known.calls += 1
                self._versions[version] = known
            return known

    def give_back(self, adapters: _Adapters) -> None:
        with self._lock:
            adapters.calls -= 1

    async def complete(self, adapters: _Adapters, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """One completion by exactly these adapters, from the server with the fewest calls; another one is asked where
        that fails."""
        why, backoff = "", Backoff(initial_s=0.1, cap_s=4.0)
        tired: set[str] = set()
        for number in range(1, TRIES + 1):
            server = self._least_busy(tired)
            try:
                status, text = await server.client.fetch("POST", "/completions", {**body, "model": adapters.name})
            finally:
                with self._lock:
                    server.calls -= 1
            if status == 200:
                return _checked_answer(json.loads(text), adapters.name, server.url)
            why = text if status == NO_ANSWER else f"HTTP {status}: {complaint(text)}"
            if status == 404:  # it was started anew
                server.loaded.discard(adapters.name)
                await asyncio.to_thread(_wait, self._load_on(server, adapters))
            elif status != NO_ANSWER and status not in BUSY and status < 500:
                raise BadInput(f"vLLM {server.url}", why=why, remedy="see what it was asked for")
            else:
                tired = {server.url} if len(tired) + 1 >= len(self.servers) else tired | {server.url}
                await asyncio.sleep(0.0 if len(self.servers) > 1 and number == 1 else backoff.delay_s(number, 0.5))
        raise Fault("vLLM", why=f"{why} ({TRIES} tries)", remedy="are the servers running and reachable?")

    def _least_busy(self, tired: set[str]) -> VllmServer:
        with self._lock:
            able = [one for one in self.servers if one.url not in tired] or self.servers
            server = min(able, key=lambda one: one.calls)
            server.calls += 1
            return server

    def next_key(self) -> int:
        high, low = np.random.SeedSequence([self._seed, next(self._own)]).generate_state(2).tolist()
        return int(high) << 21 | int(low) >> 11

    # Loading -----------------------------------------------------------------------------------------------------

    async def _greet(self) -> None:
        for server in self.servers:
            try:
                await _introduce(server)
            finally:
                await server.client.close()

    def _written(self, policy: Model) -> _Adapters:
        """The model as it came has adapters, too, which change nothing: in a batch with others, vLLM 0.32 on the CPU
        answers a call without adapters by those of its neighbour."""
        self._folder = self._folder or Path(mkdtemp(prefix="holdfast-adapters-"))
        aside = replace(policy, artifacts=self.files or policy.artifacts).export(
            self._folder / f"new-{next(self._own)}", adapters=True
        )
        found = hashlib.sha256()
        for file in sorted(aside.iterdir()):
            found.update(file.name.encode() + b"\0" + file.read_bytes())
        name = f"holdfast-{found.hexdigest()[:24]}"
        folder = self._folder / name
        if folder.exists():
            shutil.rmtree(aside)
        else:
            aside.rename(folder)
        return _Adapters(name, folder)

    async def _send(self, adapters: _Adapters) -> None:
        for server in self.servers:
            await self._load_on(server, adapters)

    async def _load_on(self, server: VllmServer, adapters: _Adapters) -> None:
        if adapters.name in server.loaded:
            return
        try:
            body = {"lora_name": adapters.name, "lora_path": str(adapters.folder)}
            status, text = await server.client.fetch("POST", "/load_lora_adapter", body)
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

    async def _unload(self, adapters: _Adapters) -> None:
        for server in self.servers:
            if adapters.name in server.loaded:
                server.loaded.discard(adapters.name)
                await server.client.fetch("POST", "/unload_lora_adapter", {"lora_name": adapters.name})
                await server.client.close()
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
        if not policy.lora:
            why = "trains all of its weights, and vLLM is sent adapters alone"
            raise BadInput(f"model {policy.name}", why=why, remedy="give a rank, as in lora=16")
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
        call = call_of(self._policy.version, messages, request, _completion(answer), self._template)
        return self._memory.add(call, tools or ())

    def _request(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, given: dict[str, Any]
    ) -> DecodeRequest:
        seed = given.pop("seed", None)
        sampling = sampling_of(given)
        if sampling.is_json:
            raise BadInput("sampling.response_format", why="is not sent to vLLM", remedy="leave it out, or sample here")
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
    async def _loaded(self) -> AsyncIterator[_Adapters]:
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
    return VllmServer(base, Client("", f"{base}/v1", api_key=api_key, timeout_s=timeout_s))


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
    status, text = await server.client.fetch("GET", "/models")
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
            "POST", "/completions", {**body, "logprobs": 2, "top_k": -1, "seed": 0}
        )
        if status != 200:
            raise Fault(f"vLLM {server.url}", why=f"HTTP {status}: {complaint(text)}", remedy="is it a vLLM server?")
        told = sorted(json.loads(text)["choices"][0]["logprobs"]["top_logprobs"][0].values())
        gaps.append(told[-1] - told[-2])
    server.is_raw = not abs(gaps[1] - gaps[0] / 2.0) < 0.1 * abs(gaps[0])
    server.base = str(served[0]["id"])


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


def _checked_answer(answer: Any, name: str, url: str) -> Mapping[str, Any]:
    """Fenced: what another model answered is nobody's sample."""
    try:
        choice: Mapping[str, Any] = answer["choices"][0]
        told = len(choice["token_ids"]), len(choice["logprobs"]["token_logprobs"])
    except (LookupError, TypeError) as error:
        why = f"gives no token ids and log-probs ({type(error).__name__}): {complaint(answer)}"
        raise Fault(f"vLLM {url}", why=why, remedy="a version that knows return_token_ids is needed") from error
    if answer.get("model") != name:
        raise Fault(f"vLLM {url}", why=f"{answer.get('model')!r} answered, and {name!r} was asked")
    if told[0] != told[1]:
        raise Fault(f"vLLM {url}", why=f"gives {told[1]} log-probs for {told[0]} tokens")
    return choice


def _completion(choice: Mapping[str, Any]) -> Completion:
    logprobs = tuple(min(float(one), 0.0) for one in choice["logprobs"]["token_logprobs"])
    finish = "length" if choice.get("finish_reason") == "length" else "stop"
    return Completion(ids=tuple(choice["token_ids"]), logprobs=logprobs, finish=finish)  # type: ignore[arg-type]
