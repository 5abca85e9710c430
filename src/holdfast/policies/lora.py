"""Adapters of low rank on linear layers: W + α/r · B A (Hu et al. 2021, arXiv:2106.09685), for any model of `hub`.

An adapted layer keeps its name and its weight; it only gains `lora_A` and `lora_B`, in 32 bits. Written out, adapters
are a folder that peft and vLLM read.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput

ALPHA = 2.0  # times the rank
OLDER = re.compile(r"base_model\.model\.(.*\.lora_[AB])\.default\.weight$")  # as peft named them in a checkpoint


class LoraLinear(nn.Linear):
    """A linear layer whose weight rests, and an adapter that learns."""

    lora_A: Tensor
    lora_B: Tensor

    def forward(self, x: Tensor) -> Tensor:
        small = F.linear(F.linear(x, self.lora_A.to(x.dtype)), self.lora_B.to(x.dtype))
        return F.linear(x, self.weight, self.bias) + ALPHA * small


def layers_of(net: nn.Module) -> dict[str, LoraLinear]:
    return {name: layer for name, layer in net.named_modules() if isinstance(layer, LoraLinear)}


def add(net: nn.Module, head: nn.Module, rank: int, *, seed: int) -> None:
    """Adapts all linear layers but the head. They begin as no change at all, and only they are trained from now on."""
    net.requires_grad_(False)
    rng = torch.Generator().manual_seed(seed)
    layers = [layer for layer in net.modules() if type(layer) is nn.Linear and layer is not head]
    if not layers:
        raise BadInput("lora", why="this model has no linear layers to adapt", remedy="train all of its weights")
    for layer in layers:
        bound = 1.0 / math.sqrt(layer.in_features)
        drawn = torch.empty(rank, layer.in_features).uniform_(-bound, bound, generator=rng)
        layer.lora_A = nn.Parameter(drawn.to(layer.weight.device))
        layer.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank, device=layer.weight.device))
        layer.__class__ = LoraLinear


@torch.no_grad()
def merge(net: nn.Module) -> None:
    """Adds the adapters to the weights, in place; the model is a plain one again, and trainable whole."""
    layers: list[Any] = list(layers_of(net).values())
    for layer in layers:
        change = ALPHA * (layer.lora_B.float() @ layer.lora_A.float())
        layer.weight.copy_(layer.weight.float() + change)
        del layer.lora_A, layer.lora_B
        layer.__class__ = nn.Linear
    net.requires_grad_(True)


def current_name(name: str) -> str:
    """The name of a parameter that an older checkpoint may know by peft's name."""
    return OLDER.sub(r"\1", name)


def tensors_of(net: nn.Module) -> dict[str, Tensor]:
    """The adapters alone, by layer and part."""
    parts = ("lora_A", "lora_B")
    return {f"{name}.{part}": getattr(layer, part) for name, layer in layers_of(net).items() for part in parts}


def save(tensors: Mapping[str, Tensor], folder: Path, *, base: str) -> None:
    """Writes adapters as peft's folder: adapter_config.json and adapter_model.safetensors."""
    rank = next(tensor.shape[0] for name, tensor in tensors.items() if name.endswith(".lora_A"))
    config: Mapping[str, Any] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": ALPHA * rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": sorted({name.split(".")[-2] for name in tensors}),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    named = {f"base_model.model.{name}.weight": tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(named, folder / "adapter_model.safetensors", metadata={"format": "pt"})
