"""A small stand-in for a vLLM server: the routes that `collect.vllm` calls, real down to the socket and to the weights.

It answers with our own model under the adapters that it was told to load. `EXCHANGE` is what a real one was asked while
it was recorded (`tests/peers/vllm_real.py --record`); tests ask this one the same and compare.
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
)


def adapted(seed: int) -> Hub:
    """The model under adapters that change what it says, the same wherever they are made."""
    model = hub.adapt(hub.load(BASE), RANK, seed=seed)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in lora.layers_of(model.net).values():
            layer.lora_B.copy_(torch.randn(layer.lora_B.shape, generator=rng) * 0.6)
    return model


def versions(folder: Path, count: int) -> list[Model]:
    """The model as it came and others that differ by their adapters, as training leaves them in a store's folder."""
    base = Model(str(BASE), lora=RANK)
    for seed in range(1, count):
        manifest = Manifest(kind="transformer", shape={}, created_at=0.0)
        save(folder / "checkpoints" / f"c-{seed}", adapted(seed), base, manifest)
    return [base, *(base.at(f"c-{seed}") for seed in range(1, count))]


def filled(body: Any, base: str, folder: str) -> Any:
    """A request of EXCHANGE with the names of one server."""
    names = {"BASE": base, "ADAPTERS": folder}
    return body and {key: names.get(value, value) if isinstance(value, str) else value for key, value in body.items()}


@dataclass
class Server:
    folder: Path = BASE
    url: str = ""
    loaded: dict[str, tuple[str, Hub]] = field(default_factory=dict)
    served: list[str] = field(default_factory=list)  # the model of each completion
    busy: int = 0  # so many completions are refused first
    is_raw: bool = False  # log-probs are those before the temperature
    answers_as: str | None = None  # the name that it gives itself

    def __post_init__(self) -> None:
        self.base = hub.load(self.folder)

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
        found = _written(model, asked)
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


def _written(model: Hub, asked: Mapping[str, Any]) -> Completion:
    names = {key: asked[key] for key in ("temperature", "top_p", "max_tokens") if key in asked}
    how = Sampling(**names, top_k=max(asked.get("top_k", 0), 0), stop=tuple(asked.get("stop") or ()))
    generator = model.writing(1)
    generator.admit([DecodeRequest(0, list(asked["prompt"]), how, asked.get("seed") or 0)])
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
