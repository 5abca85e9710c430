"""A whole GRPO step on the CPU: sample answers to a few prompts, compare them, learn; and how much of it is arithmetic.

The ceiling is what one core does in a large matrix product. The shapes are arguments, so that a peer can be given the
same ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch

from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.learn.batch import SampleFilter
from holdfast.learn.grpo import GRPO, Grpo, compare
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies.decoder import Decoder
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.sampling import Completion, Sampling

Figures = dict[str, Any]
T = TypeVar("T")
TINY = ModelShape(width=128, layers=5, heads=4, context=128)  # 1.04 M parameters
MEANINGS = {
    "grpo_step_s": "CPU-seconds of one step: sampling, comparing, learning",
    "grpo_tokens_per_s": "sampled tokens for each CPU-second of the whole step",
    "grpo_sample_s": "of the step, sampling",
    "grpo_learn_s": "of the step, learning",
    "grpo_ceiling_gflops": "a large matrix product on one core",
    "grpo_ceiling_share": "arithmetic that was done, at that rate, over the time it took",
    "grpo_learn_ceiling_share": "the same for learning alone",
    "grpo_plain_share": "the same, had each prompt been read for each of its answers",
    "grpo_parameters": "of the model",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one step does."""

    shape: ModelShape = TINY
    batch: int = 64  # answers a step
    group: int = 8  # answers to one prompt
    prompt: int = 32  # tokens
    completion: int = 32  # tokens at most


def measure(quick: bool, work: Work | None = None) -> Figures:
    work = work or Work()
    torch.set_num_threads(1)
    model = Transformer(work.shape, seed=0)
    trainer = Trainer(
        model, Settings(objective=GRPO().objective, optimizer=OptimizerConfig(learning_rate=1e-5)), seed=0
    )
    rounds = 3 if quick else 10
    rng = np.random.default_rng(0)
    sampled, learnt, counts, rates = [], [], [], []
    for number in range(-1, rounds):  # the first one only warms up
        prompts = rng.integers(32, 127, (work.batch // work.group, work.prompt)).repeat(work.group, axis=0).tolist()
        keys = rng.integers(0, 2**31, work.batch).tolist()
        sampling = Sampling(max_tokens=work.completion)
        answers, sample_s = timed(lambda p=prompts, k=keys, s=sampling: Decoder(model, slots=len(p)).generate(p, s, k))
        _, learn_s = timed(lambda p=prompts, a=answers: learn(trainer, p, a, work))
        if number >= 0:
            sampled.append(sample_s)
            learnt.append(learn_s)
            counts.append(sum(len(answer.ids) for answer in answers))
            rates.append(ceiling())  # in the same breath: another's load slows both
    return figures(work, model, sampled, learnt, counts, median(rates))


def figures(
    work: Work, model: Transformer, sampled: list[float], learnt: list[float], counts: list[int], rate: float
) -> Figures:
    size, head = sum(p.numel() for p in model.parameters()), model.embed.weight.numel()
    tokens = median(counts)
    prompts = work.batch // work.group * work.prompt
    # The head is needed where something is decided, and a prompt is read once for its whole group.
    once = (size - head) * (prompts + tokens) + head * tokens
    each = size * (work.batch * work.prompt + tokens)
    sample_s, learn_s = median(sampled), median(learnt)
    step_s = median(a + b for a, b in zip(sampled, learnt, strict=True))
    return {
        "grpo_step_s": round(step_s, 4),
        "grpo_tokens_per_s": round(tokens / step_s),
        "grpo_sample_s": round(sample_s, 4),
        "grpo_learn_s": round(learn_s, 4),
        "grpo_ceiling_gflops": round(rate / 1e9, 1),
        "grpo_ceiling_share": round(
            8.0 * once / rate / step_s, 3
        ),  # 2 forward to sample; 2 forward and 4 back to learn
        "grpo_learn_ceiling_share": round(6.0 * once / rate / learn_s, 3),
        "grpo_plain_share": round(8.0 * each / rate / step_s, 3),
        "grpo_parameters": size,
    }


def learn(trainer: Trainer, prompts: list[list[int]], answers: list[Completion], work: Work) -> None:
    attempts = [
        attempt(number, work.group, ids, answer)
        for number, (ids, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    found = compare(attempts, SampleFilter(), Grpo())
    assert found.samples is not None
    trainer.step(found.samples)


def attempt(number: int, group: int, ids: list[int], answer: Completion) -> Experience:
    """Worth the share of even tokens: every group has spread."""
    call = ModelCall(
        model="tiny",
        messages=(),
        response={},
        prompt_ids=tuple(ids),
        completion_ids=answer.ids,
        logprobs=answer.logprobs,
        forced=answer.forced,
        sampling={"temperature": 1.0},
    )
    worth = sum(token % 2 == 0 for token in answer.ids) / len(answer.ids)
    return Experience(
        rollout=f"r{number}",
        run="run-1",
        task=f"t{number // group}",
        split=Split.TRAIN,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=(Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=0.0, ended_at=0.0, model=call),),
        breakdown=RewardBreakdown(signals=(RewardTerm(name="even", value=worth, source="env"),)),
    )


def ceiling(size: int = 1024) -> float:
    """Multiplications and additions a second in a large matrix product, the best of a few."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = min(timed(lambda: a @ b)[1] for _ in range(8))
    return 2.0 * size**3 / best


def timed(work: Callable[[], T]) -> tuple[T, float]:
    started = time.process_time()
    return work(), time.process_time() - started
