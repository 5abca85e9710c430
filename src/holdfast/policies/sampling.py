"""The front door of sampling: answers to many prompts at once, and the names that they are asked for and told in.

How a token is drawn is in `choice`; how answers share the model is in `decoder`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from holdfast.policies.choice import Completion, Sampling, draw, log_probs, uniforms
from holdfast.policies.decoder import Decoder
from holdfast.policies.lm import Transformer

__all__ = ["Completion", "Sampling", "draw", "generate", "log_probs", "uniforms"]


def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]],
    samplings: Sequence[Sampling] | Sampling,
    keys: Sequence[int],
    *,
    device: str | torch.device = "cpu",
    slots: int = 256,
) -> list[Completion]:
    """An answer to each prompt, at most `slots` of them at a time. Who calls often keeps a `decoder.Decoder`."""
    decoder = Decoder(model, slots=min(slots, max(len(prompts), 1)), device=device)
    return decoder.generate(prompts, samplings, keys)
