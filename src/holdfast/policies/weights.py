"""Weights on disk: a safetensors file, and a manifest that says what they are, where they came from, and their hash.

The tensor file is named by its hash and the manifest names it; putting the manifest in place is the one step that
counts, so that a folder is always either the old version or the new one. Which checkpoint is the right one to load is
up to `contracts.policy.Checkpoint` and who keeps them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from holdfast.contracts.artifacts import sync
from holdfast.contracts.errors import BadInput
from holdfast.policies.lm import ModelShape, Transformer, layout

MANIFEST = "manifest.json"
KINDS = ("transformer", "hub", "actor-critic", "trainer", "critic", "verifier", "demonstrations", "reward")
FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")
HASH = re.compile(r"[0-9a-f]{64}")
TYPES: Mapping[str, tuple[type, ...]] = {
    "schema_version": (int,),
    "kind": (str,),
    "shape": (dict,),
    "parent": (str, type(None)),
    "step": (int,),
    "code": (str,),
    "data": (str,),
    "seeds": (dict,),
    "created_at": (int, float),
    "sha256": (str,),
    "file": (str,),
    "notes": (dict,),
}
NAMES = {int: "a whole number", float: "a number", str: "text", dict: "an object", type(None): "null"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is known of saved weights."""

    SCHEMA: ClassVar[int] = 1

    schema_version: int = SCHEMA
    kind: str  # one of KINDS
    shape: Mapping[str, Any]  # what the network is built from
    parent: str | None = None  # sha256 of the weights these grew from
    step: int = 0
    code: str = ""  # hash of the code that made them
    data: str = ""  # hash of the data they were made from
    seeds: Mapping[str, int] = field(default_factory=dict)
    created_at: float  # unix seconds
    sha256: str = ""  # of the tensor file; filled in by save
    file: str = ""  # its name; filled in by save
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.schema_version != self.SCHEMA:
            raise BadInput(
                f"weights of schema {self.schema_version!r:.60}",
                why=f"this build reads {self.SCHEMA}",
                remedy="use the version that wrote them",
            )
        if self.kind not in KINDS:
            raise BadInput(f"weights of kind {self.kind!r:.60}", why="is unknown", remedy=f"use {' or '.join(KINDS)}")


def save(folder: Path, tensors: Mapping[str, Tensor], manifest: Manifest, *, half: bool = False) -> Manifest:
    """Write both files and return the manifest with hash and name. `half` stores 16-bit floats.

    Whoever is killed on the way leaves what was there before, and perhaps a tensor file that no manifest names."""
    kept = {name: _plain(tensor, half) for name, tensor in tensors.items()}
    content = safetensors.torch.save(kept)
    sha256 = hashlib.sha256(content).hexdigest()
    manifest = replace(manifest, sha256=sha256, file=f"weights-{sha256[:16]}.safetensors")
    folder.mkdir(parents=True, exist_ok=True)
    before = _named(folder)
    _write(folder / manifest.file, content)
    _write(folder / MANIFEST, json.dumps(asdict(manifest), indent=2, sort_keys=True).encode() + b"\n")
    if before not in (None, manifest.file):
        (folder / str(before)).unlink(missing_ok=True)
    return manifest


def load(folder: Path) -> tuple[dict[str, Tensor], Manifest]:
    """The tensors as they were stored, after their hash was found to be right."""
    manifest = read(folder)
    path = folder / manifest.file
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        if read(folder) != manifest:  # saved anew while we looked
            return load(folder)
        raise BadInput(str(path), why="is missing", remedy="restore it, or save the weights again") from None
    except OSError as error:
        raise BadInput(str(path), why=f"is not readable: {error.strerror}", remedy="restore it from a copy") from None
    found = hashlib.sha256(content).hexdigest()
    if found != manifest.sha256:
        raise BadInput(
            str(path),
            why=f"is damaged: {len(content)} bytes hash to {found[:12]}…, the manifest says {manifest.sha256[:12]}…",
            remedy="restore it from a copy, or go back to its parent",
        )
    try:
        return safetensors.torch.load(content), manifest
    except (safetensors.SafetensorError, KeyError, ValueError, RuntimeError) as error:
        raise BadInput(str(path), why=f"is no safetensors file: {error}", remedy="save the weights again") from None


def read(folder: Path) -> Manifest:
    """The manifest alone; the tensors are not looked at."""
    path = folder / MANIFEST
    try:
        record = json.loads(path.read_bytes())
        if not isinstance(record, dict):
            raise ValueError("it is not an object")
    except (FileNotFoundError, NotADirectoryError):
        raise BadInput(str(path), why="is missing", remedy="name a folder that was saved to the end") from None
    except OSError as error:
        raise BadInput(str(path), why=f"is not readable: {error.strerror}", remedy="restore it from a copy") from None
    except RecursionError:
        raise BadInput(str(path), why="is nested too deeply", remedy="restore it from a copy") from None
    except ValueError as error:  # no JSON, or not even text
        raise BadInput(str(path), why=f"is not readable: {error}", remedy="restore it from a copy") from None
    names = {each.name for each in fields(Manifest)}
    if record.get("schema_version") == Manifest.SCHEMA and set(record) != names:
        wrong = ", ".join(sorted(set(record) ^ names))
        raise BadInput(str(path), why=f"missing or unknown: {wrong}", remedy="restore it from a copy")
    try:
        manifest = Manifest(**{name: value for name, value in record.items() if name in names})
    except TypeError as error:
        raise BadInput(str(path), why=str(error), remedy="restore it from a copy") from None
    _check(manifest, path)
    return manifest


def _check(manifest: Manifest, path: Path) -> None:
    """Checks the types of a manifest before anything in it is used."""
    for name, types in TYPES.items():
        value = getattr(manifest, name)
        if not isinstance(value, types) or isinstance(value, bool):
            wanted = " or ".join(NAMES[each] for each in types)
            raise BadInput(f"{path}: {name} = {value!r:.60}", why=f"must be {wanted}", remedy="restore it from a copy")
    for name, form, rule in (("file", FILE, "must name a file beside it"), ("sha256", HASH, "must be 64 hex digits")):
        if not form.fullmatch(value := getattr(manifest, name)):
            raise BadInput(f"{path}: {name} = {value!r:.60}", why=rule, remedy="restore it from a copy")


def fit(model: torch.nn.Module, tensors: Mapping[str, Tensor], *, what: str = "weights") -> None:
    """Copies the tensors into the model; BadInput where they do not fit, with the model unchanged."""
    wanted = model.state_dict()
    _compare({name: tuple(tensor.shape) for name, tensor in wanted.items()}, tensors, what)
    ready = {name: tensor.to(wanted[name].dtype) for name, tensor in tensors.items()}
    if broken := [name for name, tensor in ready.items() if not bool(torch.isfinite(tensor).all())]:
        remedy = "restore them from a copy, or go back to their parent"
        raise BadInput(what, why=f"numbers that are not finite in {_some(broken)}", remedy=remedy)
    model.load_state_dict(ready)


def _compare(wanted: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Tensor], what: str) -> None:
    for trouble, names in (
        ("needs, and they lack,", [name for name in wanted if name not in tensors]),
        ("has no place for", [name for name in tensors if name not in wanted]),
        ("has another shape for", [n for n in wanted if n in tensors and wanted[n] != tuple(tensors[n].shape)]),
    ):
        if names:
            raise BadInput(what, why=f"the model {trouble} {_some(names)}", remedy="use the shape in their manifest")


def transformer(folder: Path, *, device: str | torch.device = "cpu") -> tuple[Transformer, Manifest]:
    """The language model that was saved there."""
    tensors, manifest = load(folder)
    if manifest.kind != "transformer":
        raise BadInput(str(folder), why=f"holds weights of kind {manifest.kind}", remedy="name a transformer")
    try:
        shape = ModelShape(**manifest.shape)
    except TypeError as error:
        raise BadInput(f"{folder / MANIFEST}: shape", why=str(error), remedy="restore it from a copy") from None
    except BadInput as error:
        remedy = error.remedy or "restore it from a copy"
        raise BadInput(f"{folder / MANIFEST}: {error.what}", why=error.why, remedy=remedy) from None
    _compare(layout(shape), tensors, str(folder))  # first of all: what the shape asks for may not fit into memory
    model = Transformer(shape, seed=0)
    fit(model, tensors, what=str(folder))
    return model.to(device), manifest


def save_transformer(folder: Path, model: Transformer, manifest: Manifest, *, half: bool = False) -> Manifest:
    """The shape is the model's own."""
    return save(folder, model.state_dict(), replace(manifest, kind="transformer", shape=asdict(model.shape)), half=half)


def _some(names: Iterable[str]) -> str:
    first, *rest = names
    return f"{first} and {len(rest)} more" if rest else first


def _plain(tensor: Tensor, half: bool) -> Tensor:
    dtype = torch.float16 if half and tensor.is_floating_point() else tensor.dtype
    return tensor.detach().to("cpu", dtype).contiguous().clone()


def _named(folder: Path) -> str | None:
    try:
        return read(folder).file
    except BadInput:
        return None


def _write(path: Path, content: bytes) -> None:
    """Writes under a temporary name, syncs and renames: a reader sees all of the file or nothing."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with aside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    sync(path.parent)
