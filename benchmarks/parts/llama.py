"""Our transformer with the weights of a Llama from `transformers`, so that a peer can be given the same ones.

Both have RMS norms, rotary positions over the halves of a head, SwiGLU and tied embeddings. Ours keeps queries, keys
and values in one matrix, gate and up in another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from holdfast.policies.lm import ModelShape, Transformer


def config(shape: ModelShape) -> dict[str, Any]:
    """What `transformers.LlamaConfig` is made of; nothing ends an answer but its length."""
    return {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.width,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "max_position_embeddings": shape.context,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": 0,
    }


def transformer(shape: ModelShape, tensors: Mapping[str, Tensor]) -> Transformer:
    """Ours with these weights, named as in a Llama's state; a weight left over would be one that is not the same."""
    left = {name.removeprefix("model."): value for name, value in tensors.items() if name != "lm_head.weight"}
    model = Transformer(shape, seed=0)
    ours = {"embed.weight": left.pop("embed_tokens.weight"), "norm": left.pop("norm.weight")}
    for n in range(shape.layers):
        theirs = f"layers.{n}."
        ours |= {
            f"blocks.{n}.{mine}": torch.cat([left.pop(theirs + name + ".weight") for name in names])
            for mine, names in (
                ("norm1", ("input_layernorm",)),
                ("qkv.weight", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
                ("out.weight", ("self_attn.o_proj",)),
                ("norm2", ("post_attention_layernorm",)),
                ("up.weight", ("mlp.gate_proj", "mlp.up_proj")),
                ("down.weight", ("mlp.down_proj",)),
            )
        }
    assert not left, f"nowhere to put {sorted(left)}"
    model.load_state_dict(ours)
    return model
