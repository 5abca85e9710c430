"""A model of 21 million parameters in the shape of Qwen3, from nothing to proved practice on tool-use tasks.

    python runs/train_qwen3_tools.py train OUT             tokenizer, conversations and pretraining (a GPU, minutes)
    python runs/train_qwen3_tools.py improve OUT           GRPO with adapters through hf.improve, exam before and after
    python runs/train_qwen3_tools.py improve OUT --vllm http://127.0.0.1:8000/v1      the same, sampled by vLLM
    python runs/train_qwen3_tools.py compare --of A.json --with B.json     two such runs, exam task by exam task
    python runs/train_qwen3_tools.py --quick train OUT     a minute on a CPU, to see that every step works

Tokenizer, template and conversations are those of `train_tiny_tools`; the model is written as a folder that
transformers and vLLM read. Like tiny-tools it is weak on purpose: most of its demonstrations guess. The figures are in
docs/log.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from train_tiny_tools import SAMPLED, Recipe, corpus, save_tokenizer, train_tokenizer

import holdfast as hf
from holdfast.collect.agent import Context
from holdfast.learn.pretrain import Pretraining, pretrain
from holdfast.policies import causal_lm
from holdfast.policies.causal_lm import CausalConfig, CausalLM
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model, export
from holdfast.store.store import open_store
from holdfast.workloads.tooluse.agent import ExamMark, examine, summary
from holdfast.workloads.tooluse.agent import agent as tool_agent
from holdfast.workloads.tooluse.score import is_right
from holdfast.workloads.tooluse.tasks import generate, to_input

RECIPE = Recipe(conversations=500_000, steps=1_500, batch=128, width=512, layers=7, heads=8, learning_rate=2e-3)
QUICK = replace(RECIPE, tokenizer_conversations=2_000, conversations=2_000, layers=2, width=128, heads=2, context=512,
                steps=30, batch=4)  # fmt: skip
RANK = 16


def config(recipe: Recipe, end: int, pad: int) -> CausalConfig:
    """Qwen3: grouped heads, norms of queries and keys, no biases, the head tied to the embedding."""
    raw = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": recipe.vocabulary,
        "hidden_size": recipe.width,
        "intermediate_size": recipe.width * 11 // 4,
        "num_hidden_layers": recipe.layers,
        "num_attention_heads": recipe.heads,
        "num_key_value_heads": recipe.heads // 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": recipe.context,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10_000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": end,
        "pad_token_id": pad,
    }
    found = CausalConfig.of(raw)
    assert found is not None
    return found


def drawn(shape: CausalConfig, seed: int, generation: dict[str, Any]) -> CausalLM:
    """Weights from nothing: normal with 0.02, smaller where a layer adds to the residual stream."""
    torch.manual_seed(seed)
    net = CausalLM(shape, generation)
    for name, one in net.named_parameters():
        if one.ndim == 2:
            is_last = name.endswith(("o_proj.weight", "down_proj.weight"))
            torch.nn.init.normal_(one, std=0.02 / (sqrt(2 * shape.layers) if is_last else 1.0))
    return net


def train(recipe: Recipe, out: Path, *, device: str, processes: int) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f} s] {text}", flush=True)

    out.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(recipe)
    save_tokenizer(tokenizer, recipe.shape, out)
    ids, decided = corpus(recipe, out / "tokenizer.json", processes=processes)
    say(f"corpus: {recipe.conversations} conversations, {ids.size} tokens, {int(decided.sum())} of the assistant")
    shape = config(recipe, tokenizer.eos_token_id, tokenizer.pad_token_id)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "do_sample": True}
    net = drawn(shape, recipe.seed, {**ends, "temperature": 1.0})
    net.to(device).angles()
    settings = Pretraining(steps=recipe.steps, batch=recipe.batch, learning_rate=recipe.learning_rate, seed=recipe.seed)
    loss = pretrain(net, ids, decided, settings, device=device, observe=lambda n, at: say(f"step {n}: {at:.4f}"))
    count = sum(one.numel() for one in net.parameters())
    causal_lm.save(net.cpu().to(torch.bfloat16), out)
    say(f"saved in {out}: loss {loss:.4f}, {count:,} parameters")


def task_rows(split: str, seed: int, count: int) -> list[dict[str, Any]]:
    rows = []
    for place, task in enumerate(generate(split, seed, count)):
        given = to_input(task)
        expected = given.pop("expected")
        name = f"{split}-{seed}-{place}"
        given |= {"sampling": dict(SAMPLED)}
        rows.append(
            {"id": name, "input": given, "expected": expected, "split": "train" if split == "train" else "test"}
        )
    return rows


async def agent(task: Any, ctx: Context) -> str:
    return await tool_agent(task.input, ctx)


def right(task: Any, answer: str) -> float:
    return float(is_right({"expected": task.expected}, answer))


def wilson(counted: tuple[int, int], z: float = 1.96) -> str:
    """The share with its 95 % interval; Wilson 1927."""
    hits, of = counted
    p = hits / of
    middle, half = p + z * z / 2 / of, z * sqrt(p * (1 - p) / of + z * z / 4 / of / of)
    low, high = ((middle + sign * half) / (1 + z * z / of) for sign in (-1, 1))
    return f"{p:.3f} ({low:.3f} to {high:.3f})"


def exam(policy: Model, files: Any, *, tasks: int) -> list[ExamMark]:
    """Sampled at temperature 1 on test wordings that nothing was learnt from."""
    engine = LocalEngine(slots=64, files=files)
    try:
        return asyncio.run(examine(engine.open_model(policy), generate("test", 7, tasks), sampling=SAMPLED))
    finally:
        engine.close()


def compare(given: argparse.Namespace) -> None:
    """Success of B − A on the exam's tasks, each task's runs averaged; the interval resamples tasks and runs."""
    arms = [[json.loads(path.read_text()) for path in paths] for paths in (given.of, given.versus)]
    told = {
        f"{name}, {when}": [round(float(np.mean(run[f"success {when}"])), 4) for run in arm]
        for name, arm in zip(("of", "with"), arms, strict=True)
        for when in ("before", "after")
    }
    first, second = (np.array([run["success after"] for run in arm], dtype=float) for arm in arms)
    assert first.shape[1] == second.shape[1], "the exams have different numbers of tasks"
    rng, count = np.random.default_rng(0), first.shape[1]

    def drawn() -> float:
        tasks = rng.integers(count, size=count)
        means = [arm[rng.integers(len(arm), size=len(arm))][:, tasks].mean() for arm in (first, second)]
        return float(means[1] - means[0])

    low, high = np.quantile([drawn() for _ in range(10_000)], [0.025, 0.975])
    gain = second.mean() - first.mean()
    print(json.dumps({**told, "tasks": count, "difference": f"{gain:+.4f} ({low:+.4f} to {high:+.4f})"}, indent=2))


def improve(out: Path, given: argparse.Namespace) -> None:
    began, store = time.monotonic(), Path(given.store)
    rows = task_rows("train", 3, given.practice) + task_rows("test", 5, given.held_out)
    base = hf.Model(str(out), lora=given.lora, device=given.device, dtype=given.dtype)
    grpo = hf.GRPO(lr=given.lr, steps=given.steps, tasks=given.tasks, samples=given.samples)
    more: dict[str, Any] = {"vllm": given.vllm} if given.vllm else {}
    how: dict[str, Any] = {"name": "qwen3-tools", "store": store, "workers": given.workers, "seeds": 1}
    how |= {"seed": given.seed, "timeout_s": 1800.0, "scorers": hf.Scorer(right, gate=True)}
    how |= {"safety": hf.Waived("arithmetic and look-ups")}
    result = hf.improve(agent, hf.tasks(rows), policy=base, algorithm=grpo, **how, **more)
    spent = time.monotonic() - began
    with open_store(store, create=False) as opened:
        learnt = [one.body for one in opened.steps.of_run(result.run.id) if one.name.endswith("/learn")]
        candidate = result.candidate
        if not isinstance(candidate, Model):
            raise SystemExit(f"nothing was learnt: {learnt}")
        marks = {
            name: exam(one, opened.files, tasks=given.exam) for name, one in (("before", base), ("after", candidate))
        }
        if given.export is not None:
            export(candidate, opened.files, given.export / "whole")
            if given.lora:
                export(candidate, opened.files, given.export / "adapters", adapters=True)
    found = {name: summary(some) for name, some in marks.items()}
    gaps = [body["update"]["trainer_gap"] for body in learnt if body.get("update")]
    told = {
        "decision": str(result.decision),
        "rewards": [round(body["reward"], 3) for body in learnt],
        "trainer_gap": [float(f"{gap:.2g}") for gap in gaps if gap is not None],
        "seconds": round(spent, 1),
        **{name: wilson((one["success"][0], one["success"][1])) for name, one in found.items()},
        **{f"adoption {name}": one["adoption"] for name, one in found.items()},
    }
    print(json.dumps(told, indent=2))
    if given.marks is not None:
        successes = {f"success {name}": [int(mark.success) for mark in some] for name, some in marks.items()}
        given.marks.write_text(json.dumps(told | successes), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "improve", "compare"))
    parser.add_argument("out", type=Path, nargs="?", default=Path("qwen3-tools"))
    parser.add_argument("--quick", action="store_true", help="a minute on a CPU; the model learns next to nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--store", default=".holdfast/qwen3/store.sqlite")
    parser.add_argument("--export", type=Path, help="a folder for the candidate, whole and as adapters")
    parser.add_argument("--lora", type=int, default=RANK, help="rank of the adapters; 0: all weights")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--seed", type=int, default=0, help="of improve: which tasks a step takes, and every draw")
    parser.add_argument("--marks", type=Path, help="a file for what improve found, with success on each exam task")
    parser.add_argument("--of", type=Path, nargs="+", help="for compare: such files, one for each run")
    parser.add_argument("--with", dest="versus", type=Path, nargs="+", help="for compare: those that are measured")
    parser.add_argument("--vllm", action="append", help="a vLLM server that samples")
    for name, value in (("steps", 20), ("tasks", 32), ("samples", 16), ("practice", 2000), ("held-out", 400),
                        ("exam", 1000), ("workers", 256)):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--lr", type=float, default=3e-4)
    given = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if given.what == "train":
        recipe = QUICK if given.quick else RECIPE
        train(recipe, given.out, device=given.device, processes=given.processes)
    elif given.what == "improve":
        improve(given.out, given)
    else:
        compare(given)


if __name__ == "__main__":
    main()
