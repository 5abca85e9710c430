"""Weights of a model policy into memory and out of it: our own transformer, or a Hugging Face folder with adapters.

A checkpoint of a Hugging Face model holds what was trained (its adapters, or all of it) over the folder that it came
from; `export` writes a whole folder that transformers and vLLM read. Which checkpoint is good is not asked here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.errors import BadInput, Lost
from holdfast.policies import hub, registry, weights
from holdfast.policies.hub import Hub, Lora
from holdfast.policies.lm import Transformer
from holdfast.policies.weights import Manifest

HUB = "hub"  # the kind of a checkpoint that lies over a Hugging Face folder
DECIDES = (
    "*.safetensors",
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "chat_template*",
    "vocab*",
    "merges*",
    "*tokens*.json",
)
LORA_SEED = 0  # adapters begin alike in every process, or a resumed run would be another one


class WeightsRef(Protocol):
    """The parts of a model policy that identify its weights."""

    @property
    def name(self) -> str: ...
    @property
    def checkpoint(self) -> str | None: ...
    @property
    def lora(self) -> int: ...
    def folder(self, files: Artifacts | None, /) -> Path: ...


def is_hub(folder: Path) -> bool:
    """Whether a folder is in Hugging Face's format, and not in ours."""
    return (folder / "config.json").is_file() and not (folder / weights.MANIFEST).is_file()


def load(policy: WeightsRef, files: Artifacts | None) -> tuple[Transformer | Hub, str]:
    """The model of a policy, and the hash of its weights; its checkpoint is among the files.

    Lost where a checkpoint is missing or damaged: whoever made it can make it anew.
    """
    origin = registry.folder_of(policy.name)
    if not is_foreign(origin):
        if policy.lora:
            what = f"model {policy.name}, lora = {policy.lora}"
            raise BadInput(what, why="adapters are for Hugging Face models", remedy="leave lora out")
        folder = policy.folder(files)
        with found(policy.checkpoint):
            model, manifest = weights.transformer(folder)
        return model, manifest.sha256
    if policy.checkpoint is not None:
        folder = policy.folder(files)
        with found(policy.checkpoint):
            return _over(policy.name, policy.lora, folder)
    foreign, sha256 = _foreign(origin)
    return (foreign if not policy.lora else _adapted(foreign, policy.lora)), sha256


def is_foreign(folder: Path) -> bool:
    """Whether it holds a Hugging Face model, or a checkpoint of one."""
    return is_hub(folder) or weights.read(folder).kind == HUB


def _foreign(folder: Path) -> tuple[Hub, str]:
    """The model in a Hugging Face folder; that of a checkpoint's folder is a plain one, its adapters merged."""
    if is_hub(folder):
        return hub.load(folder), sha256_of(folder)
    shape = weights.read(folder).shape
    model, sha256 = _over(str(shape["base"]), int(shape["lora"]), folder)
    return hub.merge(model) if model.is_adapted else model, sha256


def _over(name: str, lora: int, folder: Path) -> tuple[Hub, str]:
    """What a checkpoint's folder holds, over the model that it was trained from."""
    tensors, manifest = weights.load(folder)
    model, base = _foreign(registry.folder_of(name))
    if manifest.shape.get("base_sha256", base) != base:
        why = f"was trained from other files than those that lie in {registry.folder_of(name)} now"
        raise BadInput(str(folder), why=why, remedy="restore the folder that it came from")
    if lora:
        model = _adapted(model, lora)
    _put(model, tensors, str(folder))
    return model, manifest.sha256


def _adapted(model: Hub, rank: int) -> Hub:
    return hub.adapt(model, Lora(rank=rank, alpha=2.0 * rank), seed=LORA_SEED)


@contextmanager
def found(checkpoint: str | None) -> Iterator[None]:
    """Raises Lost for what is wrong with the files of a checkpoint."""
    try:
        yield
    except (BadInput, OSError) as error:
        if checkpoint is None:
            raise
        why = f"{error.what}: {error.why}" if isinstance(error, BadInput) else f"{error.filename}: {error.strerror}"
        remedy = "restore it from a copy, or begin a new run"
        raise Lost(f"checkpoint {checkpoint}", why=why, remedy=remedy) from error


def save(folder: Path, model: nn.Module, policy: WeightsRef, manifest: Manifest) -> Manifest:
    """Saves all weights of our own model, and of a foreign one those that were trained."""
    if isinstance(model, Transformer):
        return weights.save_transformer(folder, model, manifest)
    origin = registry.folder_of(policy.name)
    base = sha256_of(origin) if is_hub(origin) else weights.read(origin).sha256
    shape = {"base": policy.name, "base_sha256": base, "lora": policy.lora}
    return weights.save(folder, _trained(model), replace(manifest, kind=HUB, shape=shape))


def export(policy: WeightsRef, files: Artifacts | None, folder: Path) -> Path:
    """A whole folder that transformers and vLLM read, adapters merged; our own transformer in the layout of Llama."""
    if folder.exists():
        raise BadInput(f"folder {folder}", why="is there already", remedy="choose another name")
    model, _ = load(policy, files)
    if isinstance(model, Transformer):
        return hub.save_llama(model, folder)
    return hub.save(hub.merge(model) if model.is_adapted else model, folder)


def sha256_of(folder: Path) -> str:
    """The hash of a Hugging Face folder's weights, config, tokenizer and template."""
    found = hashlib.sha256()
    for file in sorted({file for form in DECIDES for file in folder.glob(form)}):
        with file.open("rb") as opened:
            found.update(file.name.encode() + b"\0" + hashlib.file_digest(opened, "sha256").digest())
    return found.hexdigest()


def _trained(model: nn.Module) -> dict[str, Tensor]:
    return {name: one for name, one in model.named_parameters() if one.requires_grad}


def _put(model: nn.Module, tensors: dict[str, Tensor], what: str) -> None:
    wanted = _trained(model)
    if {name: one.shape for name, one in wanted.items()} != {name: one.shape for name, one in tensors.items()}:
        why = "does not fit the model that it was made from"
        raise BadInput(what, why=why, remedy="give the folder and the lora that it began with")
    with torch.no_grad():
        for name, one in wanted.items():
            one.copy_(tensors[name])
