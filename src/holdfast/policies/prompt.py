"""A prompt as a policy: named texts, and the model behind an address that they are given to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Actor, Engine
from holdfast.contracts.release import PolicyKind

PINNED = "_policy"  # in the resources of a version: the model and the sampling that the texts are proved with


@dataclass(frozen=True, slots=True)
class Prompt:
    """Named texts and other resources, and what they are given to. An agent reads them by `ctx.prompt(name)`."""

    kind: ClassVar[str] = PolicyKind.PROMPT

    texts: Mapping[str, Any] = field(default_factory=dict)
    model: str | None = None  # "openai/gpt-4o-mini", or as its endpoint calls it; None: the agent needs none
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if PINNED in self.texts:
            raise BadInput(f"prompt {PINNED!r}", why="is a name of our own", remedy="choose another")

    @property
    def resources(self) -> dict[str, Any]:
        """As they are versioned: with the model and the sampling, so that what was proved is what is served."""
        pinned = {"model": self.model, "sampling": dict(self.sampling)}
        return {**self.texts, **({PINNED: pinned} if self.sampling else {})}

    @property
    def manifest(self) -> dict[str, Any]:
        return {"texts": dict(self.texts), "model": self.model, "sampling": dict(self.sampling)}

    @property
    def version(self) -> str:
        return f"prompt:{hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()[:16]}"

    @property
    def source(self) -> str:
        return self.version

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Prompt:
        return cls(texts=manifest["texts"], model=manifest["model"], sampling=manifest["sampling"])

    def open(self, engine: Engine) -> Actor:
        complete = None if self.model is None else engine.open_endpoint(self.model)
        return Actor(version=self.version, model=self.model or "", complete=complete, resources=self.resources)
