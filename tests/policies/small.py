"""A language model small enough for tests, whose logits differ enough for sampling to matter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.decoder import Decoder
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.sampling import Completion, Sampling, log_probs

SMALL = ModelShape(
    width=24, layers=2, heads=2, context=160
)  # a head of 12: neither the loops' eights nor fours fit evenly


@torch.no_grad()
def small(seed: int = 0, *, favour: dict[int, float] | None = None) -> Transformer:
    """`favour` adds about that much to the logits of tokens, along what the hidden states have in common."""
    model = Transformer(SMALL, seed=seed)
    model.embed.weight.mul_(15)
    model.embed.weight[:, 0] = 1.0
    ids = torch.randint(0, 256, (16, 32), generator=torch.Generator().manual_seed(1))
    common = model.hidden(ids).mean(dim=(0, 1))
    for token, amount in (favour or {}).items():
        model.embed.weight[token] += amount * common / common.square().sum()
    return model


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling] | Sampling,
    keys: Sequence[int],
    *,
    device: str = "cpu",
    slots: int = 256,
) -> list[Completion]:
    """An answer to each prompt, at most `slots` of them at a time."""
    decoder = Decoder(model, slots=min(slots, max(len(prompts), 1)), device=device)
    return decoder.generate(prompts, samplings, keys)


def show(ids: Iterable[int]) -> str:
    """The text of the ids, with the marks spelled."""
    return b"".join(map(ByteTemplate().token_bytes, ids)).decode(errors="replace")


@torch.no_grad()
def recomputed(model: Transformer, prompt: Sequence[int], completion: Completion, sampling: Sampling) -> torch.Tensor:
    """What the trainer would find for the log-probs of an answer."""
    logits = model(torch.tensor([[*prompt, *completion.ids]]))[0, len(prompt) - 1 : -1]
    banned = torch.zeros(logits.shape[-1], dtype=torch.bool)
    banned[list(sampling.banned)] = True
    chosen = torch.tensor(completion.ids)
    how = sampling.temperature, sampling.top_k, sampling.top_p
    logps = log_probs(logits, *how, banned=banned if sampling.banned else None, chosen=chosen)
    return logps.gather(-1, chosen[:, None])[:, 0]
