"""Causal language models in Hugging Face's format from a local folder, with the interface of our own transformer.

Llama, Mistral, Qwen2, Qwen2.5 and Qwen3 are `causal_lm`; other families run in transformers. `hidden` and `logits` are
for training; `writing` samples with the function that training recomputes with. A chat becomes ids by the tokenizer's
template, or by our byte tokens where there is no tokenizer (`chat_template`). Nothing is downloaded, no code from the
folder is run, and weights are read from safetensors only. transformers is imported here and nowhere else, where a
tokenizer or another family needs it. `save_llama` writes our own transformer in the layout of Llama, and checks on
random tokens that both layouts are the same function.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.contracts.artifacts import sync
from holdfast.contracts.errors import BadInput, boundary
from holdfast.policies import causal_lm, lora, tokens
from holdfast.policies.causal_lm import CausalLM
from holdfast.policies.chat_template import ByteTemplate, ChatTemplate, JinjaTemplate, byte_letters, imported
from holdfast.policies.decoder import DecodeRequest
from holdfast.policies.lm import EPSILON, ROTARY_BASE, ModelShape, Transformer
from holdfast.policies.paged import PagedGenerator
from holdfast.policies.rows import Row, drawn_by
from holdfast.policies.sampling import Completion

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Hub(nn.Module):
    """A loaded model. Parameters that are to be trained are those that require a gradient."""

    def __init__(self, net: Any, template: ChatTemplate) -> None:
        super().__init__()
        self.net, self.template = net, template
        self._first: list[Hub] = []  # whose weights it shares; in a list, where it is no part of this one

    @property
    def is_adapted(self) -> bool:
        return bool(lora.layers_of(self.net))

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def context(self) -> int:
        """Tokens, the prompt and the answer together."""
        own = self.net.config
        return own.context if isinstance(self.net, CausalLM) else int(own.max_position_embeddings)

    @property
    def vocabulary(self) -> int:
        own = self.net.config
        return own.vocabulary if isinstance(self.net, CausalLM) else int(own.vocab_size)

    @property
    def head(self) -> nn.Module:
        """The last layer, which gives the scores of the tokens."""
        last: nn.Module = self.net.lm_head if isinstance(self.net, CausalLM) else self.net.get_output_embeddings()
        return last

    @property
    def sampling_defaults(self) -> dict[str, Any]:
        """What servers draw these weights by where a request does not say, as vLLM reads it from the model's folder."""
        found = self.net.generation if isinstance(self.net, CausalLM) else {}
        if not isinstance(self.net, CausalLM) and self.net.generation_config is not None:
            found = self.net.generation_config.to_diff_dict()
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {name: found[name] for name in names if found.get(name) is not None}

    @property
    def can_pack(self) -> bool:
        """Whether `hidden` takes texts end to end."""
        return isinstance(self.net, CausalLM)

    def hidden(self, ids: Tensor, lengths: list[int] | None = None) -> Tensor:
        """[B, T] -> [B, T, W], each place seeing only what is left of it: padding on the right is harmless. With the
        lengths of texts that lie end to end, [1, N] -> [1, N, W]: there is no padding."""
        longest = ids.shape[1] if lengths is None else max(lengths)
        if longest > self.context:
            raise BadInput(f"{longest} tokens", why=f"the context is {self.context}", remedy="shorten the text")
        if isinstance(self.net, CausalLM):
            return self.net.hidden(ids, lengths)
        states: Tensor = self.net.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., W] -> [..., V]"""
        if isinstance(self.net, CausalLM):
            return self.net.logits(hidden)
        scores: Tensor = self.head(hidden)
        return scores

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))

    def writing(self, slots: int) -> BatchGenerator | PagedGenerator:
        """What answers many calls at a time. The weights are shared with this model, not copied."""
        return (PagedGenerator if isinstance(self.net, CausalLM) else BatchGenerator)(self, slots=slots)


def load(folder: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> Hub:
    """The model in the folder, on this device and in this precision."""
    folder = _existing(folder, "config.json")
    with boundary(BadInput, f"model {folder}"):
        config = causal_lm.read_config(folder)
        if config is not None:
            net = causal_lm.load(folder, config, device=torch.device(device), dtype=dtype)
            ends = net.generation.get("eos_token_id", config.raw.get("eos_token_id"))
            return Hub(net, _template(folder, config.vocabulary, ends))
        transformers = imported("transformers")
        with _quiet(transformers):
            other = transformers.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, trust_remote_code=False, use_safetensors=True, dtype=dtype
            ).to(device)
            ends = other.generation_config.eos_token_id if other.generation_config else None
            hub = Hub(other.eval(), _template(folder, int(other.config.vocab_size), ends))
            _check_head(hub, folder)
    return hub


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What a prompt must keep to (`decoder.PromptLimits`)."""

    context: int  # tokens
    vocabulary: int


def template_of(folder: str | Path) -> tuple[ChatTemplate, ModelLimits]:
    """How the model in a folder is talked to, without its weights."""
    folder = _existing(folder, "config.json")
    with boundary(BadInput, f"model {folder}"):
        raw, generation = json.loads((folder / "config.json").read_bytes()), folder / "generation_config.json"
        told = json.loads(generation.read_bytes()) if generation.is_file() else {}
        ends = told.get("eos_token_id", raw.get("eos_token_id"))
        limits = ModelLimits(int(raw["max_position_embeddings"]), int(raw["vocab_size"]))
        return _template(folder, limits.vocabulary, ends), limits


def adapt(hub: Hub, rank: int, *, seed: int) -> Hub:
    """Adds adapters of this rank to all linear layers but the last; only they are trained from now on."""
    if hub.is_adapted:
        raise BadInput("model", why="has an adapter already", remedy="merge it first")
    lora.add(hub.net, hub.head, rank, seed=seed)
    return hub


def sharing(hub: Hub) -> Hub:
    """A copy with adapters of its own over the same resting weights, which are in memory once."""
    resting = [*(parameter for parameter in hub.parameters() if not parameter.requires_grad), *hub.buffers()]
    shared = {id(one): one for one in (*resting, hub.template)}
    if isinstance(hub.net, CausalLM):
        shared |= {id(tensor): tensor for tensor in hub.net.angles()}
    made: Hub = copy.deepcopy(hub, shared)
    made._first = [hub]
    return made


def alone(hub: Hub) -> Hub:
    """A copy that shares nothing, and whose weights may be changed."""
    return copy.deepcopy(hub, {id(hub.template): hub.template, id(hub._first): []})


def merge(hub: Hub) -> Hub:
    """The adapters added to the weights, in place; the model is a plain one again, and trainable whole."""
    if not hub.is_adapted:
        raise BadInput("model", why="has no adapter to merge")
    lora.merge(hub.net)
    return hub


def save(hub: Hub, folder: str | Path) -> Path:
    """Writes a model without adapters, with its tokenizer, where nothing is yet; the folder appears whole or not."""

    def write(aside: Path) -> None:
        if isinstance(hub.net, CausalLM):
            aside.mkdir()
            causal_lm.save(hub.net, aside)
        else:
            with _quiet(imported("transformers")):
                hub.net.save_pretrained(aside, safe_serialization=True)
        hub.template.save(aside)

    return _appear(Path(folder), write)


def save_adapters(tensors: Mapping[str, Tensor], folder: str | Path, *, base: str) -> Path:
    """Writes adapters alone (`lora.tensors_of`), in the same way."""

    def write(aside: Path) -> None:
        aside.mkdir()
        lora.save(tensors, aside, base=base)

    return _appear(Path(folder), write)


def _appear(folder: Path, write: Callable[[Path], None]) -> Path:
    if folder.exists():
        raise BadInput(f"folder {folder}", why="is there already", remedy="choose another name")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as beside:
        aside = Path(beside) / "model"
        with boundary(BadInput, f"folder {folder}"):
            write(aside)
        for file in [*aside.iterdir(), aside]:
            sync(file)
        aside.rename(folder)
    sync(folder.parent)
    return folder


class BatchGenerator:
    """Samples from models that run in transformers: answers begin together, the next ones when all have ended."""

    def __init__(self, hub: Hub, *, slots: int = 16) -> None:
        self._hub, self.capacity = hub, slots
        self._rows: list[Row] = []

    @property
    def room(self) -> int:
        return 0 if self._rows else self.capacity

    def admit(self, requests: Sequence[DecodeRequest]) -> list[DecodeRequest]:
        """Begins as many requests as there is room for, and gives back the rest."""
        room = self.room
        if room and requests:
            self._rows = [Row(self._hub, request) for request in requests[:room]]
            self._ids, self._mask = _padded([request.ids for request in requests[:room]], self._hub.device)
            self._places, self._cache = (self._mask.cumsum(1) - 1).clamp_min(0), None
        return list(requests[room:])

    @torch.inference_mode()
    def step(self) -> list[tuple[Any, Completion]]:
        """Draws one more token for each row; gives the finished answers by ticket."""
        if not self._rows:
            return []
        with _resting(self._hub):
            out = self._hub.net.get_decoder()(
                input_ids=self._ids,
                attention_mask=self._mask,
                position_ids=self._places,
                past_key_values=self._cache,
                use_cache=True,
            )
            chosen = drawn_by(self._rows, self._hub.logits(out.last_hidden_state[:, -1]))
        self._cache, self._ids, self._places = out.past_key_values, chosen[:, None], self._places[:, -1:] + 1
        self._mask = F.pad(self._mask, (0, 1), value=1)
        done = [(row.ticket, row.completion()) for row in self._rows if row.finish is not None]
        if done:
            self._keep([place for place, row in enumerate(self._rows) if row.finish is None])
        return done

    def so_far(self, ticket: Any, start: int = 0) -> tuple[list[int], list[float]]:
        """Tokens and log-probs of an answer under way, from one of its places on."""
        row = next(row for row in self._rows if row.ticket == ticket)
        return row.ids[start:], row.logprobs[start:]

    def drop(self, tickets: Iterable[Any]) -> None:
        """Drops answers that nobody waits for."""
        unwanted = set(tickets)
        self._keep([place for place, row in enumerate(self._rows) if row.ticket not in unwanted])

    def _keep(self, places: Sequence[int]) -> None:
        self._rows = [self._rows[place] for place in places]
        keep = torch.tensor(places, dtype=torch.long, device=self._hub.device)
        self._ids, self._places, self._mask = self._ids[keep], self._places[keep], self._mask[keep]
        if self._cache is not None and self._rows:
            self._cache.batch_select_indices(keep)


@contextmanager
def _resting(hub: Hub) -> Iterator[None]:
    """Turns dropout off, and restores the mode afterwards."""
    was_training = hub.training
    hub.eval()
    try:
        yield
    finally:
        hub.train(was_training)


def _padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Ids and mask, the prompts standing right: all their answers begin in the same column."""
    width = max(map(len, prompts), default=1)
    ids = torch.tensor([[0] * (width - len(p)) + list(p) for p in prompts], device=device).view(len(prompts), width)
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=device)
    return ids, mask.view(len(prompts), width)


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Without the library's progress bars and advice, and with its own settings afterwards."""
    log = transformers.utils.logging
    level, has_bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if has_bars:
            log.enable_progress_bar()


def _existing(folder: str | Path, file: str) -> Path:
    folder = Path(folder)
    if not (folder / file).is_file():
        why = f"has no {file}" if folder.is_dir() else "is not a folder on this disk"
        raise BadInput(f"model {folder}", why=why, remedy="give the folder of a downloaded model; none is fetched")
    return folder


def _template(folder: Path, vocabulary: int, ends: Any) -> ChatTemplate:
    """`ends`: the tokens that the model's record says end an answer, one or several, or None."""
    if not any((folder / name).is_file() for name in TOKENIZERS):
        if vocabulary != tokens.VOCABULARY:
            why = f"has no tokenizer, and {vocabulary} tokens where bytes and marks are {tokens.VOCABULARY}"
            raise BadInput(f"model {folder}", why=why, remedy="put its tokenizer.json into the folder")
        return ByteTemplate()
    transformers = imported("transformers")
    with _quiet(transformers):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if is_bytes(tokenizer, vocabulary):
        return ByteTemplate(tokenizer)
    if tokenizer.chat_template is None:
        raise BadInput(f"model {folder}", why="its tokenizer has no chat template", remedy="take one that can chat")
    named = [tokenizer.eos_token_id, ends]
    known = {token for one in named if one is not None for token in (one if isinstance(one, list) else [one])}
    if not known:
        raise BadInput(f"model {folder}", why="no token ends its answers", remedy="set eos_token_id")
    return JinjaTemplate(tokenizer, frozenset(known))


def is_bytes(tokenizer: Any, vocabulary: int) -> bool:
    """Whether its ids are our own: one of our models, written for other programs."""
    marks = [tokenizer.convert_tokens_to_ids(spelt) for spelt in tokens.SPELLING.values()]
    return vocabulary == tokens.VOCABULARY and marks == list(tokens.SPELLING)


@torch.no_grad()
def _check_head(hub: Hub, folder: Path) -> None:
    """Refuses architectures that transform their logits after the head: training would change them."""
    probe = torch.arange(8, device=hub.device)[None] % hub.vocabulary
    if not torch.allclose(hub(probe).float(), hub.net(input_ids=probe).logits.float(), rtol=1e-2, atol=1e-3):
        kind = type(hub.net).__name__
        raise BadInput(f"model {folder}", why=f"{kind} changes its scores after the head", remedy="take another kind")


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


def save_llama(model: Transformer, folder: Path) -> Path:
    """A folder that transformers and vLLM read, with a tokenizer and a template that give our own ids."""
    net = to_llama(model, end=tokens.END, pad=tokens.END)
    return save(Hub(net, ByteTemplate(_tokenizer(model.shape.context))), folder)


def config_of(shape: ModelShape, *, end: int, pad: int) -> Any:
    return imported("transformers").LlamaConfig(
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
    transformers = imported("transformers")
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
    made, transformers = imported("tokenizers"), imported("transformers")
    bytewise = made.Tokenizer(
        made.models.BPE(vocab={letter: byte for byte, letter in byte_letters().items()}, merges=[])
    )
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
