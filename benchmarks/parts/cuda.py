"""The same Llama on one GPU, in our hands and in those of `transformers`: sampling and training, tokens a second.

Sampling is `policies.decoder`, CUDA graphs of compiled steps, against `generate`; training is `learn.pretrain`, also
compiled, against an eager step with the same optimizer and clipping. Wall time, since the device has nobody else on it.
It needs torch, numpy, numba, safetensors and transformers, nothing else. A figure that fails is null and has its
reason, so that it does not cost the others; `device` may be "cpu", which says nothing about speed and shows that
everything runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.learn.pretrain import Pretraining, pretrain
from holdfast.policies.decoder import Decoder, DecodeRequest
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.sampling import Sampling
from parts.llama import config, transformer
from parts.report import Figures, progress, rounded

MEANINGS = {
    "cuda_generate_tokens_per_s": "sampling, by batch: 64 prompt + 64 new tokens, all the work on the host included",
    "cuda_decode_tokens_per_s": "the same from when the prompts have been read",
    "transformers_generate_tokens_per_s": "transformers.generate, bfloat16, same weights and lengths, by batch",
    "cuda_generate_vs_transformers": "ours over theirs, by batch, prompts included; expected at least 10",
    "cuda_decode_ceiling_tokens_per_s": "weights and cache read once a step, at the rate of a copy, by batch",
    "cuda_decode_ceiling_share": "decode over that",
    "cuda_train_tokens_per_s": "learn.pretrain, 512 rows of 256 tokens, compiled, bfloat16 but for parameters and loss",
    "transformers_train_tokens_per_s": "the same step, eager, by precision: autocast, or all in bfloat16",
    "cuda_train_vs_transformers": "ours over the better of theirs; expected at least 5",
    "cuda_copy_tb_per_s": "device to device, read and written",
    "cuda_parameters": "of the model",
    "cuda_device": "its name",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured."""

    width: int = 256
    layers: int = 6
    heads: int = 4
    prompt: int = 64  # tokens
    answer: int = 64  # tokens at most
    batches: tuple[int, ...] = (64, 512, 4096)
    their_batches: tuple[int, ...] = (64, 512)
    rows: int = 512  # of a training step
    row: int = 256  # tokens
    steps: int = 500  # of training; the first hundred compile and warm up
    laps: int = 5
    copied: int = 1 << 31  # bytes

    def shape(self, context: int) -> ModelShape:
        return ModelShape(width=self.width, layers=self.layers, heads=self.heads, context=context)


SMALL = Plan(
    width=32, layers=2, heads=2, prompt=6, answer=5, batches=(2, 4), their_batches=(2,), rows=2, row=16, steps=102,
    laps=2, copied=1 << 20,
)  # fmt: skip


def measure(quick: bool, device: str = "cuda", plan: Plan | None = None) -> Figures:
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    plan = plan or (Plan(steps=250, laps=3) if quick else Plan())
    reasons: dict[str, str] = {}
    figures: Figures = dict.fromkeys(MEANINGS)

    def row(name: str, work: Callable[[], Figures]) -> None:
        """What comes by batch, or by precision, is added to what is there."""
        progress(f"cuda: {name}")
        try:
            for key, value in work().items():
                figures[key] = (figures[key] or {}) | value if isinstance(value, dict) else value
        except Exception as error:  # recorded: a lent machine is not asked twice
            reasons[f"cuda: {name}"] = f"{type(error).__name__}: {error}"[:300]
        if device == "cuda":
            torch.cuda.empty_cache()

    llama, ours = models(plan)
    row("copy", lambda: copying(device, plan))
    bandwidth = 1e12 * (figures["cuda_copy_tb_per_s"] or float("nan"))
    for size in plan.batches:
        row(f"sampling, batch {size}", lambda n=size: sampling(ours, n, device, plan, bandwidth))
    for size in plan.their_batches:
        row(f"transformers.generate, batch {size}", lambda n=size: their_sampling(llama, n, device, plan))
    row("training", lambda: training(device, plan))
    for precision in ("autocast", "bfloat16"):
        row(f"transformers, eager, {precision}", lambda p=precision: their_training(device, p, plan))
    name = torch.cuda.get_device_name() if device == "cuda" else device
    figures |= {"cuda_device": name, "cuda_parameters": sum(p.numel() for p in ours.parameters())}
    return figures | ratios(figures) | {"reason": reasons}


def ratios(figures: Figures) -> Figures:
    ours, theirs = figures["cuda_generate_tokens_per_s"], figures["transformers_generate_tokens_per_s"]
    trained, eager = figures["cuda_train_tokens_per_s"], figures["transformers_train_tokens_per_s"]
    return {
        "cuda_generate_vs_transformers": {n: rounded(ours[n] / theirs[n]) for n in theirs or () if n in (ours or ())}
        or None,
        "cuda_train_vs_transformers": rounded(trained / max(eager.values())) if trained and eager else None,
    }


def models(plan: Plan) -> tuple[Any, Transformer]:
    """A Llama, and ours with its weights; they must agree about a probe."""
    shape = plan.shape(plan.prompt + plan.answer)
    llama = new_llama(shape).eval()
    ours = transformer(shape, llama.state_dict())
    probe = torch.arange(32, 32 + plan.prompt)[None]
    with torch.no_grad():
        gap = float((llama(probe).logits - ours(probe)).abs().max())
    assert gap < 1e-3, f"the two models differ by {gap}"
    return llama, ours


def new_llama(shape: ModelShape) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM  # asked here, so that ours is importable without

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**config(shape)))


def now(device: str) -> float:
    """When everything asked for so far has been done."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def copying(device: str, plan: Plan) -> Figures:
    source = torch.zeros(plan.copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(5):
        began = now(device)
        for _ in range(10):
            target.copy_(source)
        best = min(best, (now(device) - began) / 10)
    return {"cuda_copy_tb_per_s": rounded(2 * plan.copied / best / 1e12)}


# Sampling ------------------------------------------------------------------------------------------------------------


def sampling(model: Transformer, batch: int, device: str, plan: Plan, bandwidth: float) -> Figures:
    """One decoder that is kept, as who calls often does; its first lap compiles and captures."""
    rng = np.random.default_rng(batch)
    decoder = Decoder(model, slots=batch, device=device)
    laps = [lap(decoder, requests(batch, rng, plan), device) for _ in range(plan.laps + 1)][1:]
    whole, decode = (median(rates) for rates in zip(*laps, strict=True))
    most = ceiling(model, batch, bandwidth, plan)
    named = {
        "cuda_generate_tokens_per_s": whole,
        "cuda_decode_tokens_per_s": decode,
        "cuda_decode_ceiling_tokens_per_s": most,
        "cuda_decode_ceiling_share": decode / most,
    }
    return {name: {str(batch): rounded(value)} for name, value in named.items() if isfinite(value)}


def requests(batch: int, rng: np.random.Generator, plan: Plan) -> list[DecodeRequest]:
    prompts, keys = rng.integers(32, 127, (batch, plan.prompt)).tolist(), rng.integers(0, 2**31, batch).tolist()
    how = Sampling(max_tokens=plan.answer)
    return [DecodeRequest(n, prompt, how, key) for n, (prompt, key) in enumerate(zip(prompts, keys, strict=True))]


def lap(decoder: Decoder, asked: list[DecodeRequest], device: str) -> tuple[float, float]:
    """Tokens a second, of the whole and from when the prompts have been read. What ends early counts as it is."""
    began = now(device)
    left = decoder.admit(asked)
    read, tokens = now(device), 0
    while decoder.busy:
        tokens += sum(len(answer.ids) for _, answer in decoder.step())
        left = decoder.admit(left)
    done = now(device)
    return tokens / (done - began), tokens / (done - read)


def ceiling(model: Transformer, batch: int, bandwidth: float, plan: Plan) -> float:
    """Each step reads all weights once and, for each row, the keys and values of what came before; 2 bytes a number."""
    weights = 2 * sum(p.numel() for p in model.parameters())
    before = plan.prompt + plan.answer / 2
    cache = 2 * 2 * plan.layers * plan.width * before
    return batch * bandwidth / (weights + batch * cache)


def their_sampling(llama: Any, batch: int, device: str, plan: Plan) -> Figures:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32  # bfloat16 products are not for every CPU
    llama = llama.to(device, dtype).eval()
    rng, rates = np.random.default_rng(batch), []
    for _ in range(plan.laps + 1):
        ids = torch.from_numpy(rng.integers(32, 127, (batch, plan.prompt))).to(device)
        began = now(device)
        with torch.inference_mode():
            answers = llama.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=plan.answer,
                pad_token_id=0,
            )
        tokens = batch * (answers.shape[1] - plan.prompt)
        rates.append(tokens / (now(device) - began))
    assert tokens == batch * plan.answer, f"{tokens} tokens"
    return {"transformers_generate_tokens_per_s": {str(batch): rounded(median(rates[1:]))}}


# Training ------------------------------------------------------------------------------------------------------------


def corpus(plan: Plan) -> np.ndarray:
    return np.random.default_rng(0).integers(32, 127, (4 * plan.rows, plan.row + 1)).astype(np.int16)


def training(device: str, plan: Plan) -> Figures:
    """From the hundredth step to the last, both of which wait for the device."""
    stamps: list[tuple[int, float]] = []
    ids = corpus(plan)
    pretrain(
        Transformer(plan.shape(plan.row), seed=0),
        ids,
        np.ones(ids.shape, bool),
        Pretraining(steps=plan.steps, batch=plan.rows),
        device=device,
        observe=lambda step, loss: stamps.append((step, now(device))),
    )
    (first, began), (last, done) = stamps[0], stamps[-1]
    return {"cuda_train_tokens_per_s": rounded((last - first) * plan.rows * plan.row / (done - began))}


def their_training(device: str, precision: str, plan: Plan) -> Figures:
    """What is written with `transformers` and a loop: the model gives the loss, AdamW as it comes."""
    llama = new_llama(plan.shape(plan.row)).to(device).train()
    if precision == "bfloat16" and device == "cuda":
        llama = llama.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(llama.parameters(), lr=2e-3, betas=(0.9, 0.98), weight_decay=0.1)
    rows = torch.from_numpy(corpus(plan)[:, :-1]).to(device)
    warm, steps = 5, max(plan.steps // 10, 1)
    for step in range(warm + steps):
        if step == warm:
            began = now(device)
        ids = rows[torch.randint(len(rows), (plan.rows,)).to(device)].long()
        is_cast = precision == "autocast" and device == "cuda"
        with torch.autocast("cuda", dtype=torch.bfloat16) if is_cast else nullcontext():
            loss: Tensor = llama(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(llama.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    spent = now(device) - began
    return {"transformers_train_tokens_per_s": {precision: rounded(steps * plan.rows * plan.row / spent)}}
