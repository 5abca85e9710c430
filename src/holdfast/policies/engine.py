"""The engine in this process: models of ours, several versions at once, each loaded once.

Whoever opens a version gets that version's answers, however many others are opened after it: one that was let go for
others is loaded again. Weights are read from the store's artifacts. Models behind an address are somebody else's: who
connects to them is given.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import Fault, Lost
from holdfast.contracts.trace import ModelCall
from holdfast.policies.loading import load
from holdfast.policies.local import Local
from holdfast.policies.model import BASE, Model

KEPT = 2  # versions that stay loaded while nobody asks them: what is live, and a candidate


@dataclass(slots=True, eq=False)
class _Loaded:
    local: Local
    calls: int = 0  # under way; a version that has some is not let go


class LocalEngine:
    """`deterministic`: the same call with the same seed gives the same bits, whatever runs beside it."""

    def __init__(
        self,
        *,
        slots: int = 64,
        seed: int = 0,
        deterministic: bool = False,
        files: Artifacts | None = None,
        endpoint: Callable[[str], Complete | None] = lambda model: None,
    ) -> None:
        self.files = files  # the store's, once it is known
        self._slots, self._seed, self._deterministic = slots, seed, deterministic
        self._endpoint = endpoint
        self._loaded: dict[str, _Loaded] = {}  # by version, the one asked for last at the end
        self._lock = threading.Lock()  # of that table, held for a moment only
        self._loading = threading.Lock()  # one version at a time
        self._is_closed = False

    def open_model(self, policy: Model) -> ModelVersion:
        return ModelVersion(self, policy)

    def open_endpoint(self, model: str) -> Complete | None:
        return self._endpoint(model)

    def close(self) -> None:
        with self._loading, self._lock:
            self._is_closed = True
            for one in self._loaded.values():
                one.local.close()
            self._loaded.clear()

    def load(self, policy: Model) -> Local:
        """The version, loaded."""
        with self._loading:
            with self._lock:
                known = self._loaded.get(policy.version)
            if known is not None:
                return known.local
            if self._is_closed:
                raise Fault("local model", why="its engine was closed", remedy="open another one")
            local = self._load(policy)
            with self._lock:
                self._loaded[policy.version] = _Loaded(local)
            return local

    def take(self, version: str) -> Local | None:
        """The version, which stays loaded until it is given back; None where it has to be loaded first."""
        with self._lock:
            known = self._loaded.pop(version, None)
            if known is None:
                return None
            known.calls += 1
            self._loaded[version] = known
            return known.local

    def give_back(self, version: str) -> None:
        with self._lock:
            if version in self._loaded:  # the engine may be closed by now
                self._loaded[version].calls -= 1

    def _load(self, policy: Model) -> Local:
        """Those that nobody asks give their memory, whoever was asked longest ago first."""
        model, _ = load(policy, self.files or policy.home)
        version, name = policy.checkpoint or BASE, f"local/{policy.name}"
        found: Local | None = None
        for local in self._let_go():
            if found is None and local.name == name:
                local.swap(model, version=version)  # its decoder is warm
                found = local
            else:
                local.close()
        return found or Local(
            model,
            name=name,
            version=version,
            slots=self._slots,
            seed=self._seed,
            deterministic=self._deterministic,
        )

    def _let_go(self) -> list[Local]:
        with self._lock:
            idle = [version for version, one in self._loaded.items() if not one.calls]
            return [self._loaded.pop(version).local for version in idle[: max(0, len(self._loaded) + 1 - KEPT)]]


class ModelVersion:
    """One version of a model of ours as something that answers messages: see `local.Local`."""

    takes_seed = True

    def __init__(self, engine: LocalEngine, policy: Model) -> None:
        self._engine, self._policy = engine, policy
        local = engine.load(policy)
        self.model, self.limits_thinking, self.speaks_bytes = local.model, local.limits_thinking, local.speaks_bytes

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        async with self._loaded() as local:
            return await local(messages, **sampling)

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any
    ) -> AsyncGenerator[Mapping[str, Any] | ModelCall, None]:
        """The answer while it is written, and the finished call last."""
        async with self._loaded() as local, aclosing(local.stream(messages, **sampling)) as news:
            async for new in news:
                yield new

    @asynccontextmanager
    async def _loaded(self) -> AsyncIterator[Local]:
        engine, version = self._engine, self._policy.version
        while (local := engine.take(version)) is None:
            try:
                await asyncio.to_thread(engine.load, self._policy)
            except Lost as lost:  # the agent that asks now did nothing wrong
                raise Fault(f"policy {version}", why=str(lost)) from lost
        try:
            yield local
        finally:
            engine.give_back(version)
