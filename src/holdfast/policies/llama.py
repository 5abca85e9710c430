"""Our own transformer in the layout of Llama, with its bytes as a tokenizer: what other programs read and run.

Both layouts are the same function; that is checked on random tokens whenever a model is written.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.contracts.errors import BadInput
from holdfast.policies import hub, tokens
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.hub import Hub
from holdfast.policies.lm import EPSILON, ROTARY_BASE, ModelShape, Transformer

CLOSE = 1e-3  # logits of both layouts: they sum in another order
# The same as `tokens.render`, for programs that only know templates. Here, unlike there, a text can spell a mark.
TEMPLATE = """\
{%- set shown = namespace(tools='', rest=messages) -%}
{%- for tool in tools or [] -%}
    {%- set function = tool.function or tool -%}
    {%- set names = ((function.parameters or {}).properties or {}) | join(',') -%}
    {%- set shown.tools = shown.tools + ' ' + function.name + '(' + names + ')' -%}
{%- endfor -%}
{%- if shown.tools -%}
    {%- set system = '' -%}
    {%- if messages and messages[0].role in ('system', 'developer') -%}
        {%- set system = messages[0].content or '' -%}
        {%- set shown.rest = messages[1:] -%}
    {%- endif -%}
    {{- '<|system|>' + ('tools:' + shown.tools + '\\n' + system).rstrip('\\n') + '<|end|>' -}}
{%- endif -%}
{%- for message in shown.rest -%}
    {%- set role = 'system' if message.role == 'developer' else message.role -%}
    {{- '<|' + role + '|>' -}}
    {%- if role == 'assistant' and message.reasoning_content -%}
        {{- '<|think|>' + message.reasoning_content + '<|/think|>' -}}
    {%- endif -%}
    {{- message.content or '' -}}
    {%- for call in message.tool_calls or [] -%}
        {%- set function = call.function or call -%}
        {%- set given = function.arguments -%}
        {%- set given = given if given is string else (given | tojson if given else '') -%}
        {{- '<|call|>' + function.name + (' ' + given if given else '') -}}
    {%- endfor -%}
    {{- '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|assistant|>' -}}
{%- endif -%}
"""


def save(model: Transformer, folder: Path) -> Path:
    """A folder that transformers and vLLM read, with a tokenizer and a template that give our own ids."""
    net = to_llama(model, end=tokens.END, pad=tokens.END)
    return hub.save(Hub(net, ByteTemplate(_tokenizer(model.shape.context))), folder)


def config_of(shape: ModelShape, *, end: int, pad: int) -> Any:
    return hub.imported("transformers").LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=shape.context,
        rms_norm_eps=EPSILON,
        rope_parameters={"rope_type": "default", "rope_theta": ROTARY_BASE},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=pad,
    )


@torch.no_grad()
def to_llama(model: Transformer, *, end: int, pad: int) -> Any:
    """The same function in the layout of Llama; `end` is the token that ends an answer."""
    transformers = hub.imported("transformers")
    net = transformers.LlamaForCausalLM(config_of(model.shape, end=end, pad=pad)).eval()
    missing, unexpected = net.load_state_dict(_renamed(model), strict=False)
    if unexpected or set(missing) - {"lm_head.weight"}:  # which is the embedding
        raise BadInput("model", why=f"Llama's layout lacks {unexpected} and needs {missing}")
    probe = torch.randint(model.shape.vocabulary, (2, 64), generator=torch.Generator().manual_seed(0))
    probe = probe[:, : model.shape.context]
    apart = float((net(input_ids=probe).logits - model(probe)).abs().max())
    if not apart < CLOSE:
        raise BadInput("model", why=f"in Llama's layout its scores differ by {apart:.3g}")
    net.generation_config = transformers.GenerationConfig(
        do_sample=True, temperature=1.0, eos_token_id=end, pad_token_id=pad
    )
    return net


def _renamed(model: Transformer) -> dict[str, Tensor]:
    own = model.state_dict()
    named = {"model.embed_tokens.weight": own["embed.weight"], "model.norm.weight": own["norm"]}
    for layer in range(model.shape.layers):
        old, new = f"blocks.{layer}.", f"model.layers.{layer}."
        q, k, v = own[f"{old}qkv.weight"].chunk(3)
        gate, up = own[f"{old}up.weight"].chunk(2)
        named |= {
            f"{new}input_layernorm.weight": own[f"{old}norm1"],
            f"{new}self_attn.q_proj.weight": q,
            f"{new}self_attn.k_proj.weight": k,
            f"{new}self_attn.v_proj.weight": v,
            f"{new}self_attn.o_proj.weight": own[f"{old}out.weight"],
            f"{new}post_attention_layernorm.weight": own[f"{old}norm2"],
            f"{new}mlp.gate_proj.weight": gate,
            f"{new}mlp.up_proj.weight": up,
            f"{new}mlp.down_proj.weight": own[f"{old}down.weight"],
        }
    return named


def _tokenizer(context: int) -> Any:
    """Bytes and marks under the ids of `tokens`: a byte-level tokenizer that merges nothing."""
    made, transformers = hub.imported("tokenizers"), hub.imported("transformers")
    bytewise = made.Tokenizer(made.models.BPE(vocab={letter: byte for byte, letter in _letters().items()}, merges=[]))
    bytewise.pre_tokenizer = made.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    bytewise.decoder = made.decoders.ByteLevel()
    marks = [made.AddedToken(tokens.SPELLING[mark], special=True, normalized=False) for mark in sorted(tokens.SPELLING)]
    bytewise.add_special_tokens(marks)
    end = tokens.SPELLING[tokens.END]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=bytewise,
        eos_token=end,
        pad_token=end,
        clean_up_tokenization_spaces=False,
        model_max_length=context,
        chat_template=TEMPLATE,
    )


def _letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level tokenizers: its own where it can be seen, else a later one."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + n) for n, byte in enumerate(unseen)}
