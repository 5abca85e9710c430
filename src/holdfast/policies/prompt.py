"""A prompt as a policy: named texts, and the model behind an address that they are given to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.contracts.engine import Engine
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Actor
from holdfast.contracts.release import PolicyKind

LOCAL = "local/"  # how the name of a model of this machine begins
PINNED = "_policy"  # in the resources of a version: the model and the sampling that the texts are proved with


@dataclass(frozen=True, slots=True, init=False)
class Prompt:
    """Named texts and other resources, and what they are given to. An agent reads them by `ctx.prompt(name)`.

    Texts are given by name, as in `Prompt(system="You answer briefly.")`, or as one mapping."""

    kind: ClassVar[str] = PolicyKind.PROMPT

    texts: Mapping[str, Any]
    model: str | None  # "openai/gpt-4o-mini", or as its endpoint calls it; None: the agent needs none
    sampling: Mapping[str, Any]

    def __init__(
        self,
        texts: Mapping[str, Any] | None = None,
        *,
        model: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        given: Any = texts if texts is not None else {}
        if not isinstance(given, Mapping):
            why = f"is {type(given).__name__}, and its texts have names"
            raise BadInput("prompt", why=why, remedy='name it, as in hf.Prompt(system="…")')
        found = {**given, **named}
        if PINNED in found:
            raise BadInput(f"prompt {PINNED!r}", why="is a name of our own", remedy="choose another")
        try:
            json.dumps([found, sampling], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise BadInput("prompt", why=f"is not plain data: {error}", remedy="give texts, or JSON") from None
        for name, value in (("texts", found), ("model", model), ("sampling", dict(sampling or {}))):
            object.__setattr__(self, name, value)

    def with_texts(self, texts: Mapping[str, Any]) -> Prompt:
        """The same model with some texts replaced."""
        return Prompt({**self.texts, **texts}, model=self.model, sampling=self.sampling)

    @property
    def local_model(self) -> str | None:
        """The name of a model of this machine; None: it answers from an address, or there is none."""
        name = (self.model or "").removeprefix(LOCAL)
        return name if name != (self.model or "") else None

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
        return cls(manifest["texts"], model=manifest["model"], sampling=manifest["sampling"])

    def open(self, engine: Engine) -> Actor:
        complete = None if self.model is None else engine.open_endpoint(self.model)
        return Actor(version=self.version, model=self.model or "", complete=complete, resources=self.resources)
