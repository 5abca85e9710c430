"""Tokens generated a second: ours, `transformers.generate` on an equal Llama-type model, and the machine's ceiling.

Every answer has 64 tokens after a prompt of 64, sampled at temperature 1; prompts are all different, so that nothing
is shared, and then in groups of eight as in GRPO. On the CPU everything runs on one thread and counts CPU-seconds; on a
GPU it is wall time. The ceiling is the larger of two times: the matrix products at the rate measured here, and the
reading of weights and of each row's keys and values at the bandwidth measured here. Prompts are part of the time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from holdfast.policies.decoder import Decoder
from holdfast.policies.lm import SPROUT, ModelShape, Transformer
from holdfast.policies.sampling import Sampling

PROMPT = NEW = 64
GPU_SHAPE = ModelShape(width=256, layers=6, heads=4, context=256)  # that of the first figures on a GPU


def measure(quick: bool, *, device: str = "cpu") -> dict[str, Any]:
    """generate_tokens_per_s: {batch: {ours, ours_groups, transformers, ceiling}}, and the ratios."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(quick, device)
    finally:
        torch.set_num_threads(threads)


def _measure(quick: bool, device: str) -> dict[str, Any]:
    on_gpu = device.startswith("cuda")
    shape = GPU_SHAPE if on_gpu else SPROUT
    batches = (64, 512, 4096) if on_gpu else (8, 64, 256)
    laps = 2 if quick else 5
    model = Transformer(shape, seed=0).to(device)
    peer = _llama(shape).to(device, torch.bfloat16 if on_gpu else torch.float32).eval()
    rates = {"flops": _matrix_rate(device), "bytes": _bandwidth(device)}
    rows = {}
    for batch in batches[:2] if quick else batches:
        decoder = Decoder(model, slots=batch, device=device)
        row = {
            "ours": _best(lambda n, d=decoder, b=batch: _ours(d, b, 1, n), laps, device),
            "ours_groups_of_8": _best(lambda n, d=decoder, b=batch: _ours(d, b, 8, n), laps, device),
            "transformers": _best(lambda n, b=batch: _theirs(peer, b, device), 1 if quick else 2, device),
            "ceiling": _ceiling(shape, batch, rates, 2 if on_gpu else 4),
        }
        rows[str(batch)] = {name: round(rate) for name, rate in row.items()}
    return {
        "generate_tokens_per_s": rows,
        "generate_vs_transformers": {b: round(r["ours"] / r["transformers"], 2) for b, r in rows.items()},
        "generate_share_of_ceiling": {b: round(r["ours"] / r["ceiling"], 2) for b, r in rows.items()},
        "generate_machine": {
            "matrix_gflops": round(rates["flops"] / 1e9),
            "read_gb_per_s": round(rates["bytes"] / 1e9, 1),
        },
        "generate_unit": "wall second" if on_gpu else "CPU-second of one thread",
    }


def _best(once: Callable[[int], int], laps: int, device: str) -> float:
    """Tokens a second in the best of some laps; the first one warms up and does not count."""
    once(0)
    rates = []
    for lap in range(1, laps + 1):
        began = _clock(device)
        tokens = once(lap)
        rates.append(tokens / (_clock(device) - began))
    return max(rates)


def _clock(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def _prompts(batch: int, group: int, seed: int) -> np.ndarray:
    different = np.random.default_rng(seed).integers(0, 256, (-(-batch // group), PROMPT))
    return different.repeat(group, axis=0)[:batch]


def _ours(decoder: Decoder, batch: int, group: int, lap: int) -> int:
    prompts = _prompts(batch, group, 1000 * group + lap).tolist()
    answers = decoder.generate(prompts, Sampling(max_tokens=NEW), [batch * lap + row for row in range(batch)])
    return sum(len(answer.ids) for answer in answers)


@torch.inference_mode()
def _theirs(peer: Any, batch: int, device: str) -> int:
    ids = torch.from_numpy(_prompts(batch, 1, 0)).to(device)
    found = peer.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=NEW, max_new_tokens=NEW
    )
    return int(found[:, PROMPT:].numel())


def _llama(shape: ModelShape) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            max_position_embeddings=shape.context,
            tie_word_embeddings=True,
            pad_token_id=0,
            eos_token_id=None,
        )
    )


def _ceiling(shape: ModelShape, batch: int, rates: dict[str, float], width: int) -> float:
    """For one answer: its products, and for each new token the weights (shared by the batch), keys and values."""
    block = shape.width * (4 * shape.width + 3 * shape.inner)
    weights = shape.layers * block + shape.vocabulary * shape.width
    length = PROMPT + NEW / 2
    products_s = 2 * (weights * (PROMPT + NEW) + 2 * shape.layers * shape.width * length * NEW) / rates["flops"]
    read_s = width * NEW * (weights / batch + 2 * shape.layers * shape.width * length) / rates["bytes"]
    return NEW / max(products_s, read_s)


def _matrix_rate(device: str) -> float:
    kind = torch.bfloat16 if device.startswith("cuda") else torch.float32
    size = 8192 if device.startswith("cuda") else 512
    a, b = (torch.randn(size, size, device=device, dtype=kind) for _ in range(2))
    return _best(lambda _: [a @ b for _ in range(20)] and 20 * 2 * size**3, 3, device)


def _bandwidth(device: str) -> float:
    """Reading 256 MB, more than the caches near a core hold."""
    x = torch.ones(64 << 20, device=device)
    return _best(lambda _: [x.sum() for _ in range(4)] and 4 * x.nbytes, 3, device)
