"""A language model whose weights are ours as a policy: where they began, and the checkpoint they have come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Engine
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Actor, files_of
from holdfast.contracts.release import PolicyKind
from holdfast.policies import registry

BASE = "0"  # the version of the weights that a model came with


@dataclass(frozen=True, slots=True)
class Model:
    """Weights by reference. `name` is a model of the package or a folder; `checkpoint` what they have become."""

    kind: ClassVar[str] = PolicyKind.WEIGHTS

    name: str
    checkpoint: str | None = None  # id, in the store's folder; None: as the model came
    lora: int = 0  # rank of the adapters that are trained; 0: all weights are
    resources: Mapping[str, Any] = field(default_factory=dict)  # named texts that go with it
    home: Artifacts | None = field(default=None, compare=False, repr=False)  # with its checkpoint, if known

    def __post_init__(self) -> None:
        if self.lora < 0:
            raise BadInput(f"lora = {self.lora}", why="must not be negative", remedy="give a rank, as in lora=16")
        if self.name not in registry.NAMES and Path(self.name).is_dir():
            # The record of a policy outlives the folder that a process was started in.
            object.__setattr__(self, "name", str(Path(self.name).absolute()))

    @property
    def manifest(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "checkpoint": self.checkpoint,
            "lora": self.lora,
            "resources": dict(self.resources),
        }

    @property
    def version(self) -> str:
        """What its calls are recorded with: what was sampled by other weights is stale."""
        return f"local/{self.name}@{self.checkpoint or BASE}"

    @property
    def source(self) -> str:
        if self.checkpoint is not None:
            return f"checkpoint:{self.checkpoint}"
        return f"shelf:{self.name}" if self.name in registry.NAMES else f"weights:{Path(self.name).absolute()}"

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Model:
        return cls(
            manifest["name"],
            checkpoint=manifest["checkpoint"],
            lora=manifest["lora"],
            resources=manifest["resources"],
        )

    def at(self, checkpoint: str | None) -> Model:
        """The same model with other weights."""
        return replace(self, checkpoint=checkpoint)

    def folder(self, files: Artifacts | None) -> Path:
        """Where its weights lie; Lost where its checkpoint is missing or damaged."""
        return registry.folder_of(self.name) if self.checkpoint is None else files_of(self.checkpoint, files)

    def export(self, folder: str | Path) -> Path:
        """Write it where nothing is yet, as a whole model that transformers and vLLM read; adapters are merged."""
        from holdfast.policies.loading import export  # needs torch

        return export(self, self.home, Path(folder))

    def open(self, engine: Engine) -> Actor:
        complete = engine.open_model(self)
        return Actor(version=self.version, model=f"local/{self.name}", complete=complete, resources=self.resources)
