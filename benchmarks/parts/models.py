"""A user's model on one GPU, random weights in the shapes of Qwen2 0.5 B and 7 B: sampling, training and memory.

Sampling is what `hf.Model` samples with, against `transformers.generate` with a static cache, on the same weights and
prompts in the same run. A training step is `learn.train.Trainer` with advantages. `update_gap` compares the move of 20
steps at 1e-6 with that of a plain loop: transformers' model in bfloat16, masters of 32 bits, `torch.optim.AdamW`. Wall
time, since the device has nobody else on it; the first round compiles and does not count. It needs torch, numpy,
safetensors, transformers and triton. A figure that fails is null and has its reason.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

from holdfast.learn.batch import Samples
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies import hub
from holdfast.policies.causal_lm import CausalConfig, CausalLM
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.hub import Hub
from holdfast.policies.memory import plan_training
from holdfast.policies.sampling import Sampling
from parts.report import Figures, progress, rounded

MEANINGS = {
    "models_sampling_tokens_per_s": "0.5 B, prompts of 256 and 128 new tokens, by batch, prompts included",
    "models_sampling_groups_tokens_per_s": "the same in groups of 8 with one prompt",
    "models_static_tokens_per_s": "transformers.generate, static cache, second call, by batch",
    "models_sampling_vs_static": "ours over theirs; expected at least 3 at 64 and 4 at 512",
    "models_decode_ms": "one step of all rows, by batch",
    "models_trainer_gap": "|log-prob of the sampler − of the trainer|, nats: mean and largest",
    "models_training": "tokens/s, peak GB and what was foreseen: 0.5 B 64 × 512; 7 B 32 × 1,024, whole and adapters",
    "models_update_gap": "|our move − theirs| / |theirs| after 20 steps at 1e-6, and the cosine; expected under 0.05",
    "models_device": "its name",
}
HALF: dict[str, Any] = {
    "model_type": "qwen2", "vocab_size": 151_936, "hidden_size": 896, "intermediate_size": 4864,
    "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "rope_theta": 1e6, "rms_norm_eps": 1e-6,
}  # fmt: skip
SEVEN = HALF | {
    "vocab_size": 152_064, "hidden_size": 3584, "intermediate_size": 18_944, "num_hidden_layers": 28,
    "num_attention_heads": 28, "num_key_value_heads": 4, "tie_word_embeddings": False,
}  # fmt: skip
PROMPT, NEW = 256, 128


def measure(quick: bool) -> Figures:
    if not torch.cuda.is_available():
        raise RuntimeError("torch finds no CUDA device here")
    reasons: dict[str, str] = {}
    figures: Figures = dict.fromkeys(MEANINGS) | {"models_device": torch.cuda.get_device_name()}

    def row(name: str, work: Callable[[], Figures]) -> None:
        progress(f"models: {name}")
        try:
            for key, value in work().items():
                figures[key] = (figures[key] or {}) | value if isinstance(value, dict) else value
                progress(f"  {key}: {value}")
        except Exception as error:  # recorded: a lent machine is not asked twice
            reasons[f"models: {name}"] = f"{type(error).__name__}: {error}"[:500]
            progress(f"  {reasons[f'models: {name}']}")
        gc.collect()
        torch.cuda.empty_cache()

    for batch in (64,) if quick else (64, 512):
        row(f"sampling, batch {batch}", lambda n=batch: sampling(n))
        row(f"transformers, static cache, batch {batch}", lambda n=batch: static(n))
    row("training 0.5 B", lambda: training("0.5 B", HALF, rows=64, length=512))
    row("the move of 20 steps", update_gap)
    if not quick:
        row("training 7 B, adapters", lambda: training("7 B adapters", SEVEN, rows=32, length=1024, rank=16))
        row("training 7 B", lambda: training("7 B", SEVEN, rows=32, length=1024))
    ours, theirs = figures["models_sampling_tokens_per_s"] or {}, figures["models_static_tokens_per_s"] or {}
    figures["models_sampling_vs_static"] = {n: rounded(ours[n] / theirs[n]) for n in theirs if n in ours} or None
    return figures | {"reason": reasons}


def random_model(raw: dict[str, Any], seed: int = 0) -> Hub:
    config = CausalConfig.of(raw)
    assert config is not None
    with torch.device("meta"):
        net = CausalLM(config)
    rng = torch.Generator("cuda").manual_seed(seed)
    for name, one in list(net.named_parameters()):
        drawn = torch.empty(one.shape, dtype=torch.bfloat16, device="cuda")
        drawn = drawn.fill_(1.0) if "norm" in name else drawn.normal_(0.0, 0.02, generator=rng)
        owner, _, leaf = name.rpartition(".")
        setattr(net.get_submodule(owner), leaf, nn.Parameter(drawn))
    net.tie()
    template = ByteTemplate()
    template.ends = frozenset()  # every answer has its full length
    template.think = None
    return Hub(net.eval(), template)


def now() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


def prompts(batch: int, group: int, lap: int) -> list[list[int]]:
    drawn = np.random.default_rng((lap, group)).integers(0, HALF["vocab_size"], (batch // group, PROMPT))
    return drawn.repeat(group, axis=0).tolist()


def sampling(batch: int) -> Figures:
    model = random_model(HALF)
    writer = model.writing(batch)
    rates: dict[int, list[float]] = {1: [], 8: []}
    steps, made = [], {}
    for lap in range(3):
        for group, found in rates.items():
            asked = prompts(batch, group, lap)
            began = now()
            writer.admit([DecodeRequest(n, ids, Sampling(max_tokens=NEW), n) for n, ids in enumerate(asked)])
            made = dict(writer.step())  # reads the prompts and draws the first tokens
            at = now()
            while len(made) < batch:
                made |= dict(writer.step())
            steps.append((now() - at) / (NEW - 1))
            found.append(sum(len(one.ids) for one in made.values()) / (now() - began))
    few = range(0, batch, max(batch // 16, 1))
    gap = trainer_gap(model, [(asked[n], made[n]) for n in few])
    name = str(batch)
    return {
        "models_sampling_tokens_per_s": {name: round(max(rates[1]))},
        "models_sampling_groups_tokens_per_s": {name: round(max(rates[8]))},
        "models_decode_ms": {name: rounded(1e3 * float(np.median(steps)))},
        "models_trainer_gap": {name: gap},
    }


def trainer_gap(model: Hub, made: list[tuple[list[int], Any]]) -> list[float]:
    """The trainer recomputes what was sampled."""
    texts = [[*ids, *answer.ids] for ids, answer in made]
    marks = [[False] * len(ids) + [True] * len(answer.ids) for ids, answer in made]
    batch = Samples(
        bounds=np.cumsum([0, *map(len, texts)]),
        ids=np.concatenate(texts).astype(np.int64),
        action_mask=np.concatenate(marks),
    )
    # Adapters, so that no masters and moments are made of all weights.
    reader = Trainer(hub.adapt(model, 1, seed=0), Settings(), seed=0)
    own = reader.logprobs(batch)[batch.action_mask]
    told = np.concatenate([answer.logprobs for _, answer in made])
    apart = np.abs(own - told)
    return [rounded(float(apart.mean())), rounded(float(apart.max()))]


def theirs(raw: dict[str, Any], state: dict[str, torch.Tensor]) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(**{name: value for name, value in raw.items() if name != "rope_theta"})
    config.rope_parameters = {"rope_type": "default", "rope_theta": raw["rope_theta"]}
    with torch.device("cuda"):
        net = Qwen2ForCausalLM(config).to(torch.bfloat16).eval()
    net.load_state_dict(state, strict=False)
    return net


@torch.inference_mode()
def static(batch: int) -> Figures:
    net = theirs(HALF, random_model(HALF).net.state_dict())
    rates = []
    for lap in range(3):
        ids = torch.tensor(prompts(batch, 1, lap), device="cuda")
        began = now()
        out = net.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, min_new_tokens=NEW, max_new_tokens=NEW,
            cache_implementation="static", pad_token_id=0,
        )  # fmt: skip
        rates.append(out[:, PROMPT:].numel() / (now() - began))
    return {"models_static_tokens_per_s": {str(batch): round(max(rates[1:]))}}


def batch_of(rows: int, length: int, vocabulary: int, seed: int) -> Samples:
    rng = np.random.default_rng(seed)
    decided = np.tile(np.arange(length) >= length // 4, rows)
    advantages = np.where(decided, np.repeat(rng.normal(size=rows), length), 0.0).astype(np.float32)
    ids = rng.integers(0, vocabulary, rows * length)
    return Samples(bounds=np.arange(rows + 1) * length, ids=ids, action_mask=decided, advantages=advantages)


def training(name: str, raw: dict[str, Any], *, rows: int, length: int, rank: int = 0) -> Figures:
    torch.cuda.reset_peak_memory_stats()
    model = random_model(raw)
    if rank:
        hub.adapt(model, rank, seed=0)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    plan = plan_training(model.net, trained, torch.device("cuda"))
    trainer = Trainer(model, Settings(optimizer=OptimizerConfig(learning_rate=1e-6)), seed=0)
    rates = []
    for lap in range(4):
        batch = batch_of(rows, length, raw["vocab_size"], lap)
        began = now()
        update = trainer.step(batch)
        rates.append(rows * length / (now() - began))
        assert update.restored is None, update.restored
    figures = {
        "tokens_per_s": round(max(rates[1:])),
        "peak_gb": rounded(torch.cuda.max_memory_allocated() / 1e9),
        "foreseen_gb": rounded(plan.total / 1e9),
        "is_checkpointed": plan.is_checkpointed,
        "tokens_at_once": plan.tokens,
    }
    return {"models_training": {name: figures}}


def update_gap(steps: int = 20, lr: float = 1e-6) -> Figures:
    raw = HALF | {"num_hidden_layers": 8}
    batches = [batch_of(8, 128, raw["vocab_size"], step) for step in range(steps)]
    model = random_model(raw)
    net = theirs(raw, model.net.state_dict())
    before = {name: p.detach().float().cpu() for name, p in model.net.named_parameters()}
    trainer = Trainer(model, Settings(optimizer=OptimizerConfig(learning_rate=lr)), seed=0)
    for batch in batches:
        trainer.step(batch)
    ours = {n.removeprefix("model.net."): p.float().cpu() - before[n.removeprefix("model.net.")]
            for n, p in trainer._adam.master.items()}  # fmt: skip
    del trainer, model
    masters = {name: p.detach().float().requires_grad_() for name, p in net.named_parameters()}
    adam = torch.optim.AdamW(masters.values(), lr=lr, betas=(0.9, 0.95), weight_decay=0.0)
    for batch in batches:
        plain_step(net, masters, adam, batch)
    moves = {name: (p.detach().cpu() - before[name]) for name, p in masters.items()}
    flat = [torch.cat([part[name].flatten() for name in moves]).double() for part in (ours, moves)]
    gap = float((flat[0] - flat[1]).norm() / flat[1].norm())
    cosine = float(flat[0] @ flat[1] / flat[0].norm() / flat[1].norm())
    return {"models_update_gap": {"share": rounded(gap), "cosine": rounded(cosine)}}


def plain_step(net: Any, masters: dict[str, torch.Tensor], adam: Any, batch: Samples) -> None:
    """−Σ advantage · log p over the decided tokens, divided by their number; gradients clipped to length 1."""
    ids = torch.from_numpy(batch.ids.reshape(len(batch), -1)).cuda()
    advantages = torch.from_numpy(batch.advantages.reshape(ids.shape)).cuda()
    logp = net(input_ids=ids).logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    net.zero_grad()
    (-(advantages[:, 1:] * logp).sum() / batch.tokens).backward()
    params = dict(net.named_parameters())
    for name, master in masters.items():
        master.grad = params[name].grad.float()
    torch.nn.utils.clip_grad_norm_(list(masters.values()), 1.0)
    adam.step()
    with torch.no_grad():
        for name, master in masters.items():
            params[name].copy_(master)
