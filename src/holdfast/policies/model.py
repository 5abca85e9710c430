"""A language model whose weights are ours as a policy, and its weights into memory and out of it.

A model is one of the package or a folder: our own transformer, or one in Hugging Face's format. A checkpoint of a
Hugging Face model holds what was trained (its adapters, or all of it) over the folder that it came from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Engine
from holdfast.contracts.errors import BadInput, Lost
from holdfast.contracts.policy import Actor, files_of
from holdfast.contracts.release import PolicyKind
from holdfast.policies import hub, lora, weights
from holdfast.policies.device import AUTO, check, placed
from holdfast.policies.hub import Hub
from holdfast.policies.lm import Transformer
from holdfast.policies.packaged import NAMES, PACKAGED
from holdfast.policies.weights import Manifest


def folder_of(name: str | Path) -> Path:
    """Where the model of this name, or at this path, lies."""
    if str(name) in PACKAGED:
        return PACKAGED[str(name)]
    folder = Path(name)
    if not folder.is_dir():
        raise BadInput(
            f"local model {str(name)!r}",
            why="is neither in the package nor a folder",
            remedy=f"use {', '.join(NAMES)}, or the folder of a model or a checkpoint",
        )
    return folder


def load_transformer(name: str, *, device: str = "cpu") -> tuple[Transformer, Manifest]:
    """One of our own models by its name or folder."""
    return weights.transformer(folder_of(name), device=device)


def card(name: str = "sprout") -> str:
    """What a model of the package can do, as it was measured."""
    folder = folder_of(name)
    own = folder / "README.md"
    return (own if own.is_file() else folder.parent / "card.md").read_text(encoding="utf-8")


PLACED = ("device", "dtype")  # in the record of a policy only where they were asked for
BASE = "0"  # the version of the weights that a model came with


@dataclass(frozen=True, slots=True)
class Model:
    """Weights by reference. `name` is a model of the package or a folder; `checkpoint` what they have become."""

    kind: ClassVar[str] = PolicyKind.WEIGHTS

    name: str
    checkpoint: str | None = None  # id, in the store's folder; None: as the model came
    lora: int = 0  # rank of the adapters that are trained; 0: all weights are
    device: str = field(default=AUTO, compare=False)  # "auto", "cpu", "cuda", "cuda:1"; for Hugging Face models
    dtype: str = AUTO  # "auto", "float32", "bfloat16": auto is bfloat16 on a GPU
    resources: Mapping[str, Any] = field(default_factory=dict)  # named texts that go with it
    artifacts: Artifacts | None = field(default=None, compare=False, repr=False)  # with its checkpoint, if known

    def __post_init__(self) -> None:
        if self.lora < 0:
            raise BadInput(f"lora = {self.lora}", why="must not be negative", remedy="give a rank, as in lora=16")
        check(self.device, self.dtype)
        if self.name not in NAMES and Path(self.name).is_dir():
            # The record of a policy outlives the folder that a process was started in.
            object.__setattr__(self, "name", str(Path(self.name).absolute()))

    @property
    def manifest(self) -> dict[str, Any]:
        record = {"name": self.name, "checkpoint": self.checkpoint, "lora": self.lora}
        asked = {name: value for name in PLACED if (value := getattr(self, name)) != AUTO}
        return record | {"resources": dict(self.resources)} | asked

    @property
    def version(self) -> str:
        """What its calls are recorded with: what was sampled by other weights is stale."""
        return f"local/{self.name}@{self.checkpoint or BASE}"

    @property
    def source(self) -> str:
        if self.checkpoint is not None:
            return f"checkpoint:{self.checkpoint}"
        return f"shelf:{self.name}" if self.name in NAMES else f"weights:{Path(self.name).absolute()}"

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Model:
        known = ("checkpoint", "lora", "resources", *(name for name in PLACED if name in manifest))
        return cls(manifest["name"], **{name: manifest[name] for name in known})

    def at(self, checkpoint: str | None) -> Model:
        """The same model with other weights."""
        return replace(self, checkpoint=checkpoint)

    def folder(self, files: Artifacts | None) -> Path:
        """Where its weights lie; Lost where its checkpoint is missing or damaged."""
        return folder_of(self.name) if self.checkpoint is None else files_of(self.checkpoint, files)

    def export(self, folder: str | Path, *, adapters: bool = False) -> Path:
        """Write it where nothing is yet, as a whole model that transformers and vLLM read; adapters are merged.

        `adapters`: they alone, a few MB that peft and vLLM put over the model that they were trained from."""
        return export(self, self.artifacts, Path(folder), adapters=adapters)

    def open(self, engine: Engine) -> Actor:
        complete = engine.open_model(self)
        return Actor(version=self.version, model=f"local/{self.name}", complete=complete, resources=self.resources)


HUB = "hub"  # the kind of a checkpoint that lies over a Hugging Face folder
DECIDES = ("*.safetensors", "config.json", "generation_config.json", "tokenizer*", "chat_template*", "vocab*",
           "merges*", "*tokens*.json")  # fmt: skip
LORA_SEED = 0  # adapters begin alike in every process, or a resumed run would be another one


def is_hub(folder: Path) -> bool:
    """Whether a folder is in Hugging Face's format, and not in ours."""
    return (folder / "config.json").is_file() and not (folder / weights.MANIFEST).is_file()


def load(policy: Model, files: Artifacts | None) -> tuple[Transformer | Hub, str]:
    """Loads the model of a policy, with the hash of its weights; Lost where its checkpoint is missing or damaged.

    Models with adapters over one folder share its weights in memory, which rest: whoever samples, whoever learns, and
    every version of them. Only the adapters are each one's own."""
    origin = folder_of(policy.name)
    if not is_foreign(origin):
        if policy.lora:
            what = f"model {policy.name}, lora = {policy.lora}"
            raise BadInput(what, why="adapters are for Hugging Face models", remedy="leave lora out")
        folder = policy.folder(files)
        with lost_if_damaged(policy.checkpoint):
            model, manifest = weights.transformer(folder)
        return model, manifest.sha256
    if policy.checkpoint is not None:
        folder = policy.folder(files)
        with lost_if_damaged(policy.checkpoint):
            return _over(policy.name, policy.lora, folder, policy)
    return _adapted(policy.name, policy.lora, policy)


_shared: WeakValueDictionary[tuple[str, ...], Hub] = WeakValueDictionary()  # models under new adapters; they stay so
_sharing = Lock()


def _adapted(name: str, rank: int, policy: Model) -> tuple[Hub, str]:
    """The model of a folder under new adapters, over weights that are in memory once."""
    folder = folder_of(name)
    if not rank:
        return _foreign(folder, policy)
    with _sharing:
        sha256 = sha256_of(folder) if is_hub(folder) else weights.read(folder).sha256
        key = (sha256, str(rank), *map(str, placed(policy.device, policy.dtype)))
        known = _shared.get(key)
        if known is None:
            plain, sha256 = _foreign(folder, policy)
            known = _shared[key] = hub.adapt(plain, rank, seed=LORA_SEED)
    return hub.sharing(known), sha256


def is_foreign(folder: Path) -> bool:
    """Whether it holds a Hugging Face model, or a checkpoint of one."""
    return is_hub(folder) or weights.read(folder).kind == HUB


def _foreign(folder: Path, policy: Model) -> tuple[Hub, str]:
    """The model in a Hugging Face folder; that of a checkpoint's folder is a plain one, its adapters merged."""
    if is_hub(folder):
        where, dtype = placed(policy.device, policy.dtype)
        return hub.load(folder, device=where, dtype=dtype), sha256_of(folder)
    shape = weights.read(folder).shape
    model, sha256 = _over(str(shape["base"]), int(shape["lora"]), folder, policy)
    return hub.merge(hub.alone(model)) if model.is_adapted else model, sha256


def _over(name: str, rank: int, folder: Path, policy: Model) -> tuple[Hub, str]:
    """What a checkpoint's folder holds, over the model that it was trained from."""
    tensors, manifest = weights.load(folder)
    model, base = _adapted(name, rank, policy)
    if manifest.shape.get("base_sha256", base) != base:
        why = f"was trained from other files than those that lie in {folder_of(name)} now"
        raise BadInput(str(folder), why=why, remedy="restore the folder that it came from")
    _put(model, tensors, str(folder))
    return model, manifest.sha256


@contextmanager
def lost_if_damaged(checkpoint: str | None) -> Iterator[None]:
    """Raises Lost for what is wrong with the files of a checkpoint."""
    try:
        yield
    except (BadInput, OSError) as error:
        if checkpoint is None:
            raise
        why = f"{error.what}: {error.why}" if isinstance(error, BadInput) else f"{error.filename}: {error.strerror}"
        remedy = "restore it from a copy, or begin a new run"
        raise Lost(f"checkpoint {checkpoint}", why=why, remedy=remedy) from error


def save(folder: Path, model: nn.Module, policy: Model, manifest: Manifest) -> Manifest:
    """Saves all weights of our own model, and of a foreign one those that were trained."""
    if isinstance(model, Transformer):
        return weights.save_transformer(folder, model, manifest)
    origin = folder_of(policy.name)
    base = sha256_of(origin) if is_hub(origin) else weights.read(origin).sha256
    shape = {"base": policy.name, "base_sha256": base, "lora": policy.lora}
    return weights.save(folder, _trained(model), replace(manifest, kind=HUB, shape=shape))


def export(policy: Model, files: Artifacts | None, folder: Path, *, adapters: bool = False) -> Path:
    """A whole folder that transformers and vLLM read, adapters merged, or the adapters alone as peft reads them; our
    own transformer in the layout of Llama."""
    if folder.exists():
        raise BadInput(f"folder {folder}", why="is there already", remedy="choose another name")
    if adapters and not policy.lora:
        raise BadInput(f"model {policy.name}", why="has no adapters", remedy="export it whole, or train it with lora")
    if adapters:
        return hub.save_adapters(_adapters(policy, files), folder, base=policy.name)
    model, _ = load(policy, files)
    if isinstance(model, Transformer):
        return hub.save_llama(model, folder)
    return hub.save(hub.merge(hub.alone(model)) if model.is_adapted else model, folder)


def _adapters(policy: Model, files: Artifacts | None) -> dict[str, Tensor]:
    """A checkpoint has nothing else; the adapters that a model begins with are made with it."""
    if policy.checkpoint is None:
        model, _ = load(policy, files)
        assert isinstance(model, Hub)
        return lora.tensors_of(model.net)
    folder = policy.folder(files)
    with lost_if_damaged(policy.checkpoint):
        tensors, _ = weights.load(folder)
    return {lora.current_name(name).removeprefix("net."): tensor for name, tensor in tensors.items()}


def sha256_of(folder: Path) -> str:
    """The hash of a Hugging Face folder's weights, config, tokenizer and template; files are read when they changed."""
    files = sorted({file for form in DECIDES for file in folder.glob(form)})
    return _sha256(tuple((str(file), (stat := file.stat()).st_size, stat.st_mtime_ns, stat.st_ino) for file in files))


@lru_cache(maxsize=64)
def _sha256(stamps: tuple[tuple[str, int, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for file in (Path(name) for name, *_ in stamps):
        with file.open("rb") as opened:
            digest.update(file.name.encode() + b"\0" + hashlib.file_digest(opened, "sha256").digest())
    return digest.hexdigest()


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def _put(model: nn.Module, tensors: dict[str, Tensor], what: str) -> None:
    wanted, tensors = _trained(model), {lora.current_name(name): tensor for name, tensor in tensors.items()}
    if {name: tensor.shape for name, tensor in wanted.items()} != {
        name: tensor.shape for name, tensor in tensors.items()
    }:
        why = "does not fit the model that it was made from"
        raise BadInput(what, why=why, remedy="give the folder and the lora that it began with")
    with torch.no_grad():
        for name, tensor in wanted.items():
            tensor.copy_(tensors[name])
