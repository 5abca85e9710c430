"""How much memory training takes, before it is begun: what fits, and what to change where nothing does.

Counts of what `causal_lm` keeps. Peaks measured on a GPU lie within a tenth of them (docs/log.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.causal_lm import CausalConfig, CausalLM

GB = 10**9
AT_ONCE, FEWEST = 8192, 2048  # tokens of one piece: more than the one are hardly faster, fewer than the other slower
PIECE = 22 * GB  # that one piece may take where it need not be smaller
HEAD = 4 * GB  # scores of some tokens and their gradients
RESERVE = 0.92  # share of the free memory that is counted on; the rest is lost between the blocks
SLICE = 1 << 28  # bytes of gradients that are 32 bits wide at a time, three times


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """How training fits into a GPU."""

    is_checkpointed: bool  # whether layers are computed again in the backward pass
    tokens: int  # that are read at once
    fixed: int  # bytes of weights, masters, moments and gradients, the weights included
    each: int  # bytes a token

    @property
    def total(self) -> int:
        return self.fixed + self.each * self.tokens


def token_bytes(c: CausalConfig, itemsize: int, *, is_checkpointed: bool, is_adapted: bool) -> int:
    """What one token leaves behind in the forward pass."""
    heads = (2 * c.heads + 2 * c.kv_heads) * c.head
    layer = (4 * c.width + heads + 4 * c.inner) * itemsize + 4 * (c.heads + 2 * c.kv_heads) * c.head
    if is_adapted:  # the inputs of adapters, which plain layers share
        layer += 2 * c.width * itemsize
    ends = 3 * c.width * (itemsize + 4)
    return c.layers * c.width * itemsize + 3 * layer + ends if is_checkpointed else c.layers * layer + ends


def fixed_bytes(parameters: int, trained: int, itemsize: int) -> int:
    """Weights, and of those that are trained gradients, two moments and, under 32 bits, a master."""
    is_adapted = trained < parameters
    own = 4 if is_adapted else itemsize
    return parameters * itemsize + trained * (own + 8 + (4 if own < 4 else 0)) + 3 * SLICE + HEAD


def gathered_bytes(c: CausalConfig, itemsize: int) -> int:
    """Weights and gradients that a sharded model has whole at a time: its ends, and two layers."""
    ends = c.vocabulary * c.width * (1 if c.is_tied else 2)
    return 2 * itemsize * (ends + 2 * (c.parameters - ends) // max(c.layers, 1))


def plan(c: CausalConfig, trained: int, itemsize: int, room: int, *, most: int = 0, shards: int = 1) -> MemoryPlan:
    """For so many bytes in all on each of the GPUs it is sharded over. BadInput where not even a few tokens fit."""
    fixed, options = fixed_bytes(c.parameters, trained, itemsize), []
    if shards > 1:
        fixed = (fixed - HEAD) // shards + HEAD + gathered_bytes(c, itemsize)
    is_adapted = trained < c.parameters // 2
    for is_checkpointed in (False, True):
        each = token_bytes(c, itemsize, is_checkpointed=is_checkpointed, is_adapted=is_adapted)
        fits = max(int(RESERVE * room) - fixed, 0) // each
        wanted = most or max(min(AT_ONCE, PIECE // each), FEWEST)
        options.append(MemoryPlan(is_checkpointed=is_checkpointed, tokens=min(fits, wanted), fixed=fixed, each=each))
    whole, again = options
    chosen = whole if whole.tokens >= min(most or FEWEST, FEWEST) else again
    if chosen.tokens < min(most or 256, 256):
        need = fixed + 1024 * again.each
        what = f"training {c.parameters / 1e9:.2g} B parameters"
        why = f"takes about {need / GB:.0f} GB, and {room / GB:.0f} GB are free"
        raise BadInput(what, why=why, remedy=_remedy(c, trained, itemsize, room))
    return chosen


def _remedy(c: CausalConfig, trained: int, itemsize: int, room: int) -> str:
    """What would fit."""
    adapters = 16 * c.layers * (2 * c.heads * c.head + 2 * c.kv_heads * c.head + 6 * c.width + 3 * c.inner)
    small = fixed_bytes(c.parameters, adapters, itemsize)
    each = token_bytes(c, itemsize, is_checkpointed=True, is_adapted=True)
    if trained > adapters and small + 1024 * each < RESERVE * room:
        return f"train adapters (lora=16 takes about {(small + 1024 * each) / GB:.0f} GB)"
    if itemsize > 2:
        return "use dtype=bfloat16"
    most = max(int((RESERVE * room - HEAD - 3 * SLICE) / 2), 0)
    return f"take a model of at most {most / 1e9:.1f} B parameters, or a larger GPU"


def plan_training(net: CausalLM, trained: int, device: torch.device, *, most: int = 0, shards: int = 1) -> MemoryPlan:
    """For a model that lies on this GPU already. `most`: tokens that are read at once where somebody said so."""
    itemsize = next(net.parameters()).dtype.itemsize
    held = sum(p.nbytes for p in net.parameters()) // shards
    free = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return plan(net.config, trained, itemsize, free + held, most=most, shards=shards)
