"""A small stand-in for a vLLM server: the routes that `collect.vllm` calls, real down to the socket and to the weights.

It answers with our own model, under the adapters or with the weights that it was told to load. `EXCHANGE` is what a
real one was asked while it was recorded (`tests/peers/vllm_real.py --record`); tests ask this one the same and compare.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from aiohttp import web

from holdfast.policies import hub, lora
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.hub import Hub
from holdfast.policies.model import Model, folder_of, save
from holdfast.policies.sampling import Completion, Sampling
from holdfast.policies.weights import Manifest

BASE, RANK = folder_of("tiny-tools"), 4
PROMPT = hub.template_of(BASE)[0].prompt([{"role": "user", "content": "What is 4 + 4?"}])
ASKED: Mapping[str, Any] = {
    "prompt": PROMPT,
    "temperature": 0.0,
    "logprobs": 1,
    "return_token_ids": True,
    "max_tokens": 6,
}
NAME = "holdfast-a"
TOKENS: Mapping[str, Any] = {
    "token_ids": PROMPT,
    "sampling_params": {"temperature": 0.0, "logprobs": 1, "max_tokens": 6, "stop_token_ids": [1019]},
}
EXCHANGE: Sequence[tuple[str, str, Mapping[str, Any] | None]] = (
    ("GET", "/v1/models", None),
    ("POST", "/v1/completions", {**ASKED, "model": "BASE"}),
    ("POST", "/v1/completions", {**ASKED, "model": NAME}),  # it is not there yet
    ("POST", "/v1/load_lora_adapter", {"lora_name": NAME, "lora_path": "ADAPTERS"}),
    ("POST", "/v1/load_lora_adapter", {"lora_name": NAME, "lora_path": "ADAPTERS"}),
    ("POST", "/v1/load_lora_adapter", {"lora_name": "other", "lora_path": "/nowhere/at/all"}),
    ("GET", "/v1/models", None),
    ("POST", "/v1/completions", {**ASKED, "model": NAME, "stop_token_ids": [1019], "skip_special_tokens": False}),
    ("POST", "/v1/completions", {**ASKED, "model": NAME, "max_tokens": 40, "stop": ["8"]}),
    ("POST", "/v1/completions", {**ASKED, "model": "BASE", "prompt": [5] * 1100}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": NAME}),
    ("POST", "/v1/unload_lora_adapter", {"lora_name": NAME}),
    ("GET", "/weight_info", None),
    ("POST", "/inference/v1/generate", TOKENS),
    ("POST", "/pause?mode=wait", None),
    ("POST", "/update_weight_version", {"new_version": "halfway"}),
    ("POST", "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "WHOLE"}}),
    ("POST", "/reset_prefix_cache", None),
    ("POST", "/update_weight_version", {"new_version": NAME}),
    ("POST", "/resume", None),
    ("GET", "/weight_info", None),
    ("POST", "/inference/v1/generate", TOKENS),
    ("POST", "/inference/v1/generate", {**TOKENS, "token_ids": [5] * 1100}),
)


def adapted(seed: int) -> Hub:
    """The model under adapters that change what it says, the same wherever they are made."""
    model = hub.adapt(hub.load(BASE), RANK, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in lora.layers_of(model.net).values():
            layer.lora_B.copy_(torch.randn(layer.lora_B.shape, generator=rng) * 0.6)
    return model


def versions(folder: Path, count: int, *, rank: int = RANK) -> list[Model]:
    """The model as it came and others that differ by their adapters, as training leaves them in a store's folder; by
    all of their weights where there is no rank."""
    base = Model(str(BASE), lora=rank)
    for seed in range(1, count):
        manifest = Manifest(kind="transformer", shape={}, created_at=0.0)
        model = adapted(seed) if rank else hub.merge(adapted(seed))
        save(folder / "checkpoints" / f"c-{seed}", model, base, manifest)
    return [base, *(base.at(f"c-{seed}") for seed in range(1, count))]


def folders(at: Path) -> dict[str, str]:
    """What EXCHANGE names: adapters, and all weights with those adapters merged."""
    model = adapted(1)
    adapters = hub.save_adapters(lora.tensors_of(model.net), at / "a", base=str(BASE))
    return {"ADAPTERS": str(adapters), "WHOLE": str(hub.save(hub.merge(model), at / "w"))}


def filled(body: Any, names: Mapping[str, str]) -> Any:
    """A request of EXCHANGE with the names of one server."""
    if isinstance(body, Mapping):
        return {key: filled(value, names) for key, value in body.items()}
    return names.get(body, body) if isinstance(body, str) else body


@dataclass
class Server:
    folder: Path = BASE
    url: str = ""
    loaded: dict[str, tuple[str, Hub]] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)  # the model of each completion
    busy: int = 0  # so many completions are refused first
    is_raw: bool = False  # log-probs are those before the temperature
    answers_as: str | None = None  # the name that it gives itself
    weight_version: str = "default"
    is_dev: bool = True  # VLLM_SERVER_DEV_MODE=1 and --enable-scale-out
    is_stale: bool = False  # it keeps what it read by other weights
    reloads: list[str] = field(default_factory=list)  # folders

    def __post_init__(self) -> None:
        self.base = hub.load(self.folder)
        self.running = asyncio.Event()
        self.running.set()

    async def models(self, request: web.Request) -> web.Response:
        base = {"id": str(self.folder), "root": str(self.folder), "parent": None, "max_model_len": self.base.context}
        entries = [base, *({"id": n, "root": p, "parent": base["id"]} for n, (p, _) in self.loaded.items())]
        common = {"object": "model", "owned_by": "vllm", "created": 0, "permission": []}
        return web.json_response({"object": "list", "data": [{**common, **one} for one in entries]})

    async def load(self, request: web.Request) -> web.Response:
        asked = await request.json()
        name, folder = asked["lora_name"], Path(asked["lora_path"])
        if name in self.loaded:
            return _error(400, f"The lora adapter '{name}' has already been loaded.", "InvalidUserInput")
        if not (folder / "adapter_config.json").is_file():
            return _error(404, f"Loading lora {name} failed: No adapter found for {folder}", "NotFoundError")
        tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        model = hub.adapt(hub.load(self.folder), rank, seed=0)
        for layer, adapted in lora.layers_of(model.net).items():
            for part in ("lora_A", "lora_B"):
                getattr(adapted, part).data.copy_(tensors[f"base_model.model.{layer}.{part}.weight"])
        self.loaded[name] = str(folder), model
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if self.loaded.pop(name, None) is None:
            return _error(404, f"The lora adapter '{name}' cannot be found.", "NotFoundError")
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def complete(self, request: web.Request) -> web.Response:
        asked = await request.json()
        name, prompt = asked["model"], asked["prompt"]
        if self.busy:
            self.busy -= 1
            return _error(503, "busy", "ServiceUnavailableError")
        known = {str(self.folder): self.base, **{n: model for n, (_, model) in self.loaded.items()}}
        if name not in known:
            return _error(404, f"The model `{name}` does not exist.", "NotFoundError")
        if len(prompt) >= self.base.context:
            return _error(400, f"This model's maximum context length is {self.base.context} tokens.", "BadRequestError")
        self.served.append(name)
        model = known[name]
        found = _written(model, prompt, asked)
        said = [model.template.token_bytes(token).decode(errors="replace") for token in found.ids]
        top = [{word: logprob} for word, logprob in zip(said, found.logprobs, strict=True)]
        if asked["logprobs"] > 1:
            top = [_top(model, prompt, asked["logprobs"], 1.0 if self.is_raw else asked["temperature"])]
        told = {"text_offset": [0] * len(said), "token_logprobs": list(found.logprobs), "tokens": said}
        choice: dict[str, Any] = {"index": 0, "text": "".join(said), "logprobs": told | {"top_logprobs": top}}
        choice |= {"finish_reason": found.finish, "stop_reason": None, "token_ids": list(found.ids)}
        choice |= {"prompt_logprobs": None, "prompt_token_ids": list(prompt)}
        used = {"prompt_tokens": len(prompt), "completion_tokens": len(said), "total_tokens": len(prompt) + len(said)}
        head = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": self.answers_as or name}
        return web.json_response({**head, "choices": [choice], "usage": used})

    async def generate(self, request: web.Request) -> web.Response:
        """Tokens in, tokens out, with the version of the weights that drew them."""
        asked = await request.json()
        await self.running.wait()
        if self.busy:
            self.busy -= 1
            return _error(503, "busy", "ServiceUnavailableError")
        prompt, how = asked["token_ids"], asked["sampling_params"]
        if len(prompt) >= self.base.context:
            return _error(400, f"This model's maximum context length is {self.base.context} tokens.", "BadRequestError")
        if self.is_stale:
            return _error(500, "the prefix cache was computed by other weights", "InternalServerError")
        name = self.answers_as or self.weight_version
        self.served.append(name)
        found = _written(self.base, prompt, how)
        content = [
            {"token_id": token, "logprob": logprob, "rank": 1, "top_logprobs": []}
            for token, logprob in zip(found.ids, found.logprobs, strict=True)
        ]
        choice: dict[str, Any] = {"index": 0, "finish_reason": found.finish, "stop_reason": None}
        choice |= {"token_ids": list(found.ids), "logprobs": {"content": content}}
        choice |= {"weight_versions": [{"version": name, "start": 0, "end": len(found.ids)}]}
        return web.json_response({"request_id": "0", "model": str(self.folder), "choices": [choice]})

    async def order(self, request: web.Request) -> web.Response:
        """The routes of VLLM_SERVER_DEV_MODE=1."""
        asked = await request.json() if request.can_read_body else {}
        match request.path:
            case "/weight_info":
                return web.json_response({"weight_version": self.weight_version})
            case "/pause":
                self.running.clear()
                return web.json_response({"status": "paused"})
            case "/resume":
                self.running.set()
                return web.json_response({"status": "resumed"})
            case "/update_weight_version":
                self.weight_version = asked["new_version"]
                return web.json_response({"success": True, "new_version": self.weight_version})
            case "/reset_prefix_cache":
                self.is_stale = False
                return web.json_response({"success": True})
            case _:
                assert asked["method"] == "reload_weights" and not self.running.is_set()
                self.reloads.append(asked["kwargs"]["weights_path"])
                self.base, self.is_stale = hub.load(self.reloads[-1]), True
                return web.json_response({"results": [None]})


def _written(model: Hub, prompt: Sequence[int], asked: Mapping[str, Any]) -> Completion:
    names = {key: asked[key] for key in ("temperature", "top_p", "max_tokens") if key in asked}
    how = Sampling(**names, top_k=max(asked.get("top_k", 0), 0), stop=tuple(asked.get("stop") or ()))
    generator = model.writing(1)
    generator.admit([DecodeRequest(0, list(prompt), how, asked.get("seed") or 0)])
    while not (done := generator.step()):
        pass
    return done[0][1]


@torch.inference_mode()
def _top(model: Hub, prompt: Sequence[int], count: int, temperature: float) -> dict[str, float]:
    best = torch.log_softmax(model(torch.tensor([prompt]))[0, -1] / temperature, -1).topk(count)
    return {str(token): value for token, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)}


def _error(status: int, message: str, kind: str) -> web.Response:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return web.json_response({"error": error}, status=status)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The server on a free port of 127.0.0.1, in a thread of its own."""
    loop, is_up = asyncio.new_event_loop(), threading.Event()

    async def begin() -> web.AppRunner:
        app = web.Application()
        app.router.add_get("/v1/models", server.models)
        app.router.add_post("/v1/completions", server.complete)
        app.router.add_post("/v1/load_lora_adapter", server.load)
        app.router.add_post("/v1/unload_lora_adapter", server.unload)
        if server.is_dev:
            app.router.add_post("/inference/v1/generate", server.generate)
            app.router.add_get("/weight_info", server.order)
            for path in ("/pause", "/resume", "/update_weight_version", "/reset_prefix_cache", "/collective_rpc"):
                app.router.add_post(path, server.order)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def run() -> None:
        runner = loop.run_until_complete(begin())
        is_up.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    is_up.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
