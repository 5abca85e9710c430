"""A language model from nothing: next-token prediction over packed conversations, as fast as the device allows.

On a GPU everything but the parameters, their gradients' sums and the loss is bfloat16, and a step waits for nothing.
Learning from an agent's own runs is `train`; here there is one corpus, one pass after another, and nothing to resume.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.lm import Transformer
from holdfast.policies.tokens import END

IGNORE = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretraining:
    """How long, how fast, in which portions."""

    steps: int
    batch: int = 64  # rows
    learning_rate: float = 2e-3
    warm_up: int = 100  # steps
    weight_decay: float = 0.1
    clip: float = 1.0
    seed: int = 0


def pack(conversations: Iterable[tuple[Sequence[int], Sequence[bool]]], width: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows [N, width] of whole conversations, one after the other, and which of their tokens are to be predicted.

    A row begins with the beginning of a conversation, and none is cut: the model always sees what it answers to."""
    rows: list[np.ndarray] = []
    marks: list[np.ndarray] = []
    ids, decided = np.full(width, END, np.int16), np.zeros(width, bool)
    used = 0
    for tokens, is_decided in conversations:
        if len(tokens) > width:
            raise BadInput(f"a conversation of {len(tokens)} tokens", why=f"does not fit into a row of {width}")
        if used + len(tokens) > width:
            rows.append(ids)
            marks.append(decided)
            ids, decided, used = np.full(width, END, np.int16), np.zeros(width, bool), 0
        ids[used : used + len(tokens)] = tokens
        decided[used : used + len(tokens)] = is_decided
        used += len(tokens)
    return np.stack([*rows, ids]), np.stack([*marks, decided])


def pretrain(
    model: Transformer | CausalLM,
    ids: np.ndarray,
    decided: np.ndarray,
    settings: Pretraining,
    *,
    device: str = "cpu",
    observe: Callable[[int, float], None] = lambda step, loss: None,
) -> float:
    """Train in place; the mean loss of the last hundred steps, in nats per decided token."""
    if ids.shape != decided.shape or ids.ndim != 2:
        raise BadInput(f"ids {ids.shape} and decided {decided.shape}", why="must be two arrays [rows, width] alike")
    if not decided[:, 1:].any():
        raise BadInput(f"a corpus of {len(ids)} rows", why="nothing is decided in it, so there is nothing to learn")
    if settings.steps < 1 or settings.batch < 1:
        raise BadInput(f"{settings.steps} steps of {settings.batch} rows", why="must be at least 1 each")
    model.to(device).train()
    is_cuda = torch.device(device).type == "cuda"
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=settings.learning_rate,
        betas=(0.9, 0.98),
        fused=is_cuda,
    )
    rows, targets = torch.from_numpy(ids).to(device), torch.from_numpy(decided).to(device)
    order = torch.Generator(device="cpu").manual_seed(settings.seed)
    recent: list[Tensor] = []
    with _quick(model) if is_cuda else nullcontext(_loss) as forward:
        for step in range(settings.steps):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _share(step, settings)
            chosen = torch.randint(len(rows), (settings.batch,), generator=order, pin_memory=is_cuda)
            chosen = chosen.to(device, non_blocking=True)
            loss = forward(model, rows[chosen].long(), targets[chosen])
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            recent = [*recent[-99:], loss.detach()]
            if step % 100 == 99 or step == settings.steps - 1:
                observe(step + 1, _finite(step + 1, recent))
    model.eval()
    return float(torch.stack(recent).mean())


@contextmanager
def _quick(model: Transformer | CausalLM) -> Iterator[Callable[[Transformer | CausalLM, Tensor, Tensor], Tensor]]:
    """The loss on a GPU: compiled, with a residual stream of 16 bits, since reading and writing it is most of the work,
    and the product for the logits in TensorFloat-32."""
    work, before = torch.compile(_loss), torch.get_float32_matmul_precision()
    embedding = model.embed if isinstance(model, Transformer) else model.model.embed_tokens
    hook = embedding.register_forward_hook(lambda module, ids, x: x.to(torch.bfloat16))
    torch.set_float32_matmul_precision("high")

    def forward(model: Transformer | CausalLM, ids: Tensor, decided: Tensor) -> Tensor:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return work(model, ids, decided)

    try:
        yield forward
    finally:
        hook.remove()
        torch.set_float32_matmul_precision(before)


def _finite(step: int, losses: Sequence[Tensor]) -> float:
    mean = float(torch.stack(list(losses)).mean())
    if not math.isfinite(mean):
        raise BadInput(f"pretraining at step {step}", why="the loss is not finite", remedy="lower the rate")
    return mean


def _loss(model: Transformer | CausalLM, ids: Tensor, decided: Tensor) -> Tensor:
    logits = model.logits(model.hidden(ids[:, :-1])).float()
    wanted = ids[:, 1:].masked_fill(~decided[:, 1:], IGNORE)
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=IGNORE)


def _share(step: int, settings: Pretraining) -> float:
    """Up in a straight line, then down along a cosine to a hundredth."""
    if step < settings.warm_up:
        return (step + 1) / settings.warm_up
    done = (step - settings.warm_up) / max(1, settings.steps - settings.warm_up)
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done))
