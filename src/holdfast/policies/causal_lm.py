"""One decoder for the families that share its form: Llama, Mistral, Qwen2, Qwen2.5 and Qwen3.

Grouped heads, biases, norms of queries and keys, rotary positions with their scalings, sliding windows, and a head that
may be the embedding. Parameters have the names that they have in a Hugging Face folder, so tensors move in and out by
name. Weights are read one tensor at a time from memory-mapped safetensors. Other families are left to `hub`, adapters
to `lora`, caches and sampling to `paged`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from holdfast.contracts.errors import BadInput

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPES = ("default", "linear", "dynamic", "llama3", "yarn")
CONFIG, INDEX, SINGLE = "config.json", "model.safetensors.index.json", "model.safetensors"
SHARD = 5 * 10**9  # bytes of one file
NEEDED = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
    "max_position_embeddings",
)  # fmt: skip

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, queries, keys, values [N, heads, D] -> [N, H, D]


@dataclass(frozen=True, slots=True, kw_only=True)
class CausalConfig:
    """What a model is built from; `raw` is the folder's own record, which goes out with the weights."""

    raw: Mapping[str, Any]
    vocabulary: int
    width: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    context: int  # tokens, the prompt and the answer together
    epsilon: float
    rope: Mapping[str, Any]
    windows: tuple[int | None, ...]  # of each layer: how many tokens back it sees, itself included
    is_tied: bool
    has_qkv_bias: bool
    has_out_bias: bool
    has_mlp_bias: bool
    has_qk_norm: bool

    @staticmethod
    def of(raw: Mapping[str, Any]) -> CausalConfig | None:
        """From a config.json; None where it asks for something that is not written here."""
        family = raw.get("model_type")
        rope = _rope(raw)
        if family not in FAMILIES or any(name not in raw for name in NEEDED) or "quantization_config" in raw:
            return None
        heads = int(raw["num_attention_heads"])
        kv_heads = raw.get("num_key_value_heads") or (heads if family == "llama" else 0)
        head = raw.get("head_dim") or (128 if family == "qwen3" else int(raw["hidden_size"]) // heads)
        is_plain = raw.get("hidden_act", "silu") == "silu" and rope.get("partial_rotary_factor", 1.0) == 1.0
        if rope["rope_type"] not in ROPES or not kv_heads or not is_plain:
            return None
        is_biased = bool(raw.get("attention_bias", False))
        return CausalConfig(
            raw=raw,
            vocabulary=int(raw["vocab_size"]),
            width=int(raw["hidden_size"]),
            inner=int(raw["intermediate_size"]),
            layers=int(raw["num_hidden_layers"]),
            heads=heads,
            kv_heads=int(kv_heads),
            head=int(head),
            context=int(raw["max_position_embeddings"]),
            epsilon=float(raw.get("rms_norm_eps", 1e-6)),
            rope=rope,
            windows=_windows(raw),
            is_tied=bool(raw.get("tie_word_embeddings", False)),
            has_qkv_bias=family == "qwen2" or (family != "mistral" and is_biased),
            has_out_bias=family in ("llama", "qwen3") and is_biased,
            has_mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
            has_qk_norm=family == "qwen3",
        )

    @property
    def parameters(self) -> int:
        q, kv = self.heads * self.head, self.kv_heads * self.head
        block = self.width * (2 * q + 2 * kv + 3 * self.inner + 2)
        return self.layers * block + self.vocabulary * self.width * (1 if self.is_tied else 2)


def _rope(raw: Mapping[str, Any]) -> dict[str, Any]:
    """How positions are turned, from the present form of the record or from the older one."""
    found = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    found.setdefault("rope_theta", raw.get("rope_theta", 10_000.0))
    found["rope_type"] = found.get("rope_type") or found.get("type") or "default"
    return found


def _windows(raw: Mapping[str, Any]) -> tuple[int | None, ...]:
    layers, window = int(raw["num_hidden_layers"]), raw.get("sliding_window")
    if raw["model_type"] == "mistral":
        return (window,) * layers
    if raw["model_type"] == "llama" or not window or not raw.get("use_sliding_window", False):
        return (None,) * layers
    kinds = raw.get("layer_types")
    if kinds is None:
        first = int(raw.get("max_window_layers", 28))
        return tuple(window if layer >= first else None for layer in range(layers))
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def frequencies(config: CausalConfig) -> tuple[Tensor, float]:
    """Radians a token for each pair of a head, and the factor on cosine and sine.

    `dynamic` only changes what lies beyond the context, and nothing may lie there. llama3: Llama 3.1's piecewise
    scaling; yarn: Peng et al. 2023, arXiv:2309.00071."""
    rope, size = config.rope, config.head
    base = float(rope["rope_theta"])
    plain = 1.0 / (base ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size))
    kind, factor = rope["rope_type"], float(rope.get("factor") or 1.0)
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        low, high = float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
        turns = float(rope["original_max_position_embeddings"]) * plain / (2 * math.pi)  # within the first context
        smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0)
        return (1 - smooth) * plain / factor + smooth * plain, 1.0
    if kind == "yarn":
        return _yarn(config, plain)
    return plain, 1.0


def _yarn(config: CausalConfig, plain: Tensor) -> tuple[Tensor, float]:
    rope, size, base = config.rope, config.head, float(config.rope["rope_theta"])
    first = float(rope.get("original_max_position_embeddings") or config.context)
    factor = float(rope.get("factor") or config.context / first)

    def place(turns: float) -> float:
        return size * math.log(first / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = place(float(rope.get("beta_fast") or 32)), place(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    ramp = ((torch.arange(size // 2).float() - low) / ((high - low) or 0.001)).clamp(0, 1)

    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    strength = rope.get("attention_factor")
    if strength is None:
        several = rope.get("mscale") and rope.get("mscale_all_dim")
        strength = scale(rope["mscale"]) / scale(rope["mscale_all_dim"]) if several else scale(1.0)
    return plain / factor * ramp + plain * (1 - ramp), float(strength)


class RmsNorm(nn.Module):
    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.epsilon)


class Attention(nn.Module):
    def __init__(self, c: CausalConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = c.heads, c.kv_heads, c.head
        self.q_proj = nn.Linear(c.width, c.heads * c.head, bias=c.has_qkv_bias)
        self.k_proj = nn.Linear(c.width, c.kv_heads * c.head, bias=c.has_qkv_bias)
        self.v_proj = nn.Linear(c.width, c.kv_heads * c.head, bias=c.has_qkv_bias)
        self.o_proj = nn.Linear(c.heads * c.head, c.width, bias=c.has_out_bias)
        self.q_norm = RmsNorm(c.head, c.epsilon) if c.has_qk_norm else None
        self.k_norm = RmsNorm(c.head, c.epsilon) if c.has_qk_norm else None

    def project(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x [..., W] -> queries [..., H, D], keys and values [..., K, D], the first two turned by their positions."""
        q = self.q_proj(x).unflatten(-1, (self.heads, self.head))
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.head))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        return turn(q, cos, sin), turn(k, cos, sin), v


class FeedForward(nn.Module):
    def __init__(self, c: CausalConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.width, c.inner, bias=c.has_mlp_bias)
        self.up_proj = nn.Linear(c.width, c.inner, bias=c.has_mlp_bias)
        self.down_proj = nn.Linear(c.inner, c.width, bias=c.has_mlp_bias)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


@dataclass(frozen=True, slots=True)
class Texts:
    """Where texts that lie end to end begin and end."""

    lengths: list[int]
    bounds: Tensor  # [texts + 1], 32-bit integers on the device
    places: Tensor  # [N], each token's place in its own text

    @staticmethod
    def of(lengths: list[int], device: torch.device) -> Texts:
        counts = torch.tensor(lengths)
        ends = counts.cumsum(0)
        places = torch.arange(int(ends[-1])) - (ends - counts).repeat_interleave(counts)
        return Texts(lengths, F.pad(ends, (1, 0)).to(device, torch.int32), places.to(device))


class Layer(nn.Module):
    def __init__(self, c: CausalConfig, window: int | None) -> None:
        super().__init__()
        self.window = window
        self.input_layernorm = RmsNorm(c.width, c.epsilon)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = RmsNorm(c.width, c.epsilon)
        self.mlp = FeedForward(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, texts: Texts | None = None) -> Tensor:
        """x [B, T, W], each row a text from its beginning, padding on the right is harmless; or [1, N, W], texts end
        to end."""
        q, k, v = self.self_attn.project(self.input_layernorm(x), cos, sin)
        if texts is None:
            heard = self._attend(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2)
        elif x.is_cuda:
            heard = self._attend_packed(q[0], k[0], v[0], texts)[None]
        else:
            each = zip(*(torch.split(part, texts.lengths, 1) for part in (q, k, v)), strict=True)
            one_by_one = [self._attend(*(part.transpose(1, 2) for part in some)).transpose(1, 2) for some in each]
            heard = torch.cat(one_by_one, 1)
        return self.close(x, heard.flatten(-2))

    def _attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[B, heads, T, D] each."""
        return F.scaled_dot_product_attention(q, k, v, **self._seen(q), enable_gqa=q.shape[1] != k.shape[1])

    def _attend_packed(self, q: Tensor, k: Tensor, v: Tensor, texts: Texts) -> Tensor:
        """[N, heads, D] each, by a kernel for texts of any lengths: flash attention where it has their precision."""
        bounds, longest = texts.bounds, max(texts.lengths)
        if q.dtype == torch.float32:
            wide: Any = _WideAttention
            k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
            tensor: Tensor = wide.apply(q[None], k[None], v[None], bounds, longest, self.window)
            return tensor[0]
        left = -1 if self.window is None else self.window - 1
        heard: Tensor = torch.ops.aten._flash_attention_forward(
            q, k, v, bounds, bounds, longest, longest, 0.0, True, False, window_size_left=left, window_size_right=0
        )[0]
        return heard

    def _seen(self, q: Tensor) -> dict[str, Any]:
        if self.window is None or q.shape[2] <= self.window:
            return {"is_causal": True}
        steps = torch.arange(q.shape[2], device=q.device)
        back = steps[:, None] - steps
        return {"attn_mask": (back >= 0) & (back < self.window)}

    def close(self, x: Tensor, heard: Tensor) -> Tensor:
        """Adds what the heads heard [..., H × D] to x, and then the feed-forward part."""
        x = x + self.self_attn.o_proj(heard)
        mixed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return mixed


class Body(nn.Module):
    def __init__(self, c: CausalConfig) -> None:
        super().__init__()
        # As nn.Embedding draws them; its own way imports all of torch._dynamo on the device "meta", a second or two.
        self.embed_tokens = nn.Embedding(c.vocabulary, c.width, _weight=torch.randn(c.vocabulary, c.width))
        self.layers = nn.ModuleList(Layer(c, window) for window in c.windows)
        self.norm = RmsNorm(c.width, c.epsilon)


class CausalLM(nn.Module):
    """Token ids in, logits of the next token out."""

    def __init__(self, config: CausalConfig, generation: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.config, self.generation = config, dict(generation or {})
        self.is_checkpointed = False  # layers are computed again in the backward pass in place of being kept
        self.model = Body(config)
        self.lm_head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.tie()
        self._tables: tuple[Tensor, Tensor] | None = None

    def tie(self) -> None:
        if self.config.is_tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def layers(self) -> list[Layer]:
        return [layer for layer in self.model.layers if isinstance(layer, Layer)]

    @property
    def device(self) -> torch.device:
        return self.model.embed_tokens.weight.device

    def angles(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of every place, [context, D / 2], in 32 bits."""
        if self._tables is None or self._tables[0].device != self.device:
            with torch.inference_mode(False):  # the sampler may be the first to ask, and the trainer the next
                rates, strength = frequencies(self.config)
                angle = torch.arange(self.config.context, dtype=torch.float32)[:, None] * rates
                self._tables = (angle.cos() * strength).to(self.device), (angle.sin() * strength).to(self.device)
        return self._tables

    def hidden(self, ids: Tensor, lengths: list[int] | None = None) -> Tensor:
        """[B, T] -> [B, T, W]; with the lengths of texts that lie end to end, [1, N] -> [1, N, W]"""
        x: Tensor = self.model.embed_tokens(ids)
        texts = None if lengths is None else Texts.of(lengths, ids.device)
        places = slice(ids.shape[1]) if texts is None else texts.places
        cos, sin = (table[places][:, None] for table in self.angles())
        for layer in self.layers:
            if self.is_checkpointed and torch.is_grad_enabled():
                x = checkpoint(layer, x, cos, sin, texts, use_reentrant=False, preserve_rng_state=False)
            else:
                x = layer(x, cos, sin, texts)
        final: Tensor = self.model.norm(x)
        return final

    def hidden_flat(self, ids: Tensor, places: Tensor, attend: Attend) -> Tensor:
        """[N] -> [N, W] for tokens of any texts side by side; only `attend` knows whose they are."""
        x: Tensor = self.model.embed_tokens(ids)
        cos, sin = (table[places][:, None] for table in self.angles())
        for number, layer in enumerate(self.layers):
            heard = attend(number, *layer.self_attn.project(layer.input_layernorm(x), cos, sin))
            x = layer.close(x, heard.flatten(-2))
        final: Tensor = self.model.norm(x)
        return final

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., W] -> [..., V] in 32 bits: 8 bits of mantissa are too few for a log-prob."""
        with torch.autocast(hidden.device.type, enabled=False):
            return head_logits(hidden.to(self.lm_head.weight.dtype), self.lm_head.weight)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.hidden(ids))


def head_logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """Scores in 32 bits. Of 16-bit numbers the products are summed in 32 bits and not rounded again."""
    if weight.dtype == torch.float32:
        return F.linear(hidden, weight)
    flat = hidden.reshape(-1, hidden.shape[-1])
    if hidden.is_cuda:
        wide: Any = _WideProduct
        product: Tensor = wide.apply(flat, weight)
        return product.view(*hidden.shape[:-1], -1)
    return F.linear(hidden.float(), weight.float())


class _WideProduct(torch.autograd.Function):
    """x Wᵀ with 16-bit factors and a 32-bit result, on CUDA."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x, weight.t(), out_dtype=torch.float32)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        x, weight = ctx.saved_tensors
        grad = grads[0].to(weight.dtype)
        return grad @ weight, grad.t() @ x if ctx.needs_input_grad[1] else None


class _WideAttention(torch.autograd.Function):
    """Attention in 32 bits on CUDA, [1, N, H, D] each, texts end to end; its gradients are sums in one order."""

    CAUSAL = 1  # torch's number for it

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, longest: int, window: int | None) -> Tensor:
        heard, *kept, _, _ = torch.ops.aten._efficient_attention_forward(
            q, k, v, None, bounds, bounds, longest, longest, 0.0, _WideAttention.CAUSAL, True, window_size=window
        )
        ctx.save_for_backward(q, k, v, heard, bounds, *kept)
        ctx.longest, ctx.window = longest, window
        tensor: Tensor = heard
        return tensor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        q, k, v, heard, bounds, sums, seed, offset = ctx.saved_tensors
        found = torch.ops.aten._efficient_attention_backward(
            grads[0].contiguous(), q, k, v, None, heard, bounds, bounds, ctx.longest, ctx.longest, sums, 0.0, seed,
            offset, _WideAttention.CAUSAL, False, num_splits_key=1, window_size=ctx.window,
        )  # fmt: skip
        return *found[:3], None, None, None


def turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turns each pair (x₁, x₂), the first and the second half of a head, by its place's angle; computed in 32 bits."""
    x1, x2 = x.float().chunk(2, dim=-1)
    return torch.cat((x1 * cos - x2 * sin, x1 * sin + x2 * cos), dim=-1).to(x.dtype)


def read_config(folder: Path) -> CausalConfig | None:
    """The config of a folder; None: its family is not one of these."""
    try:
        raw = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError):
        return None
    has_weights = (folder / SINGLE).is_file() or (folder / INDEX).is_file()
    return CausalConfig.of(raw) if isinstance(raw, dict) and has_weights else None


def load(folder: Path, config: CausalConfig, *, device: torch.device, dtype: torch.dtype) -> CausalLM:
    """The model in the folder. One tensor is in memory twice at a time, no more."""
    generation = folder / "generation_config.json"
    with torch.device("meta"):
        net = CausalLM(config, json.loads(generation.read_bytes()) if generation.is_file() else {})
    wanted = {name: tuple(parameter.shape) for name, parameter in net.named_parameters()}
    for name, tensor in tensors_of(folder):
        if name not in wanted:
            if not (name == "lm_head.weight" and config.is_tied) and not name.endswith("rotary_emb.inv_freq"):
                raise BadInput(f"model {folder}", why=f"has a tensor {name} that its family has not")
            continue
        if tuple(tensor.shape) != wanted[name]:
            why = f"{name} has shape {tuple(tensor.shape)}, where its config makes it {wanted[name]}"
            raise BadInput(f"model {folder}", why=why, remedy="fetch the model again")
        del wanted[name]
        owner, _, leaf = name.rpartition(".")
        setattr(net.get_submodule(owner), leaf, nn.Parameter(tensor.to(device, dtype)))
    if wanted:
        why = f"lacks the tensor {next(iter(wanted))} and {len(wanted) - 1} more"
        raise BadInput(f"model {folder}", why=why, remedy="fetch the model again")
    net.tie()
    return net.eval()


def tensors_of(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """All tensors of a folder, each read from the mapped file when it is asked for."""
    index = folder / INDEX
    names = sorted(set(json.loads(index.read_bytes())["weight_map"].values())) if index.is_file() else [SINGLE]
    for name in names:
        if Path(name).name != name:
            why = f"its index names {name!r:.60}, which does not lie beside it"
            raise BadInput(f"model {folder}", why=why, remedy="fetch the model again")
        with safetensors.safe_open(folder / name, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  (it is no mapping)
                yield key, file.get_tensor(key)


def save(net: CausalLM, folder: Path) -> None:
    """Config, generation config and weights, in files of at most 5 GB, into a folder that is there."""
    dtype = next(net.parameters()).dtype
    raw = {**net.config.raw, "dtype": str(dtype).removeprefix("torch.")}
    raw.pop("torch_dtype", None)
    (folder / CONFIG).write_text(json.dumps(raw, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if net.generation:
        (folder / "generation_config.json").write_text(json.dumps(net.generation, indent=2) + "\n", encoding="utf-8")
    shards: list[dict[str, Tensor]] = [{}]
    for name, tensor in net.named_parameters():
        if shards[-1] and sum(tensor.nbytes for tensor in shards[-1].values()) + tensor.nbytes > SHARD:
            shards.append({})
        shards[-1][name] = tensor.detach()
    if len(shards) == 1:
        _write(folder / SINGLE, shards[0])
        return
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write(folder / name, shard)
        where |= dict.fromkeys(shard, name)
    total = sum(tensor.nbytes for shard in shards for tensor in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    kept = {name: tensor.cpu().contiguous().clone() for name, tensor in tensors.items()}
    safetensors.torch.save_file(kept, path, metadata={"format": "pt"})
