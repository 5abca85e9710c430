"""The engine in this process: models of ours, several versions at once, each loaded once and the oldest let go.

Weights are read from the store's folder. Models behind an address are somebody else's: who connects to them is given.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from holdfast.contracts.policy import Complete
from holdfast.policies.loading import load
from holdfast.policies.local import Local
from holdfast.policies.model import BASE, Model

AT_ONCE = 2  # versions that answer side by side: what is live, and a candidate


class LocalEngine:
    """`deterministic`: the same call with the same seed gives the same bits, whatever runs beside it."""

    def __init__(
        self,
        *,
        slots: int = 64,
        seed: int = 0,
        deterministic: bool = False,
        folder: Path | None = None,
        endpoint: Callable[[str], Complete | None] = lambda model: None,
    ) -> None:
        self.folder = folder  # the store's, once it is known
        self._slots, self._seed, self._deterministic = slots, seed, deterministic
        self._endpoint = endpoint
        self._loaded: dict[str, Local] = {}  # by version, the one asked for last at the end
        self._lock = threading.Lock()

    def open_model(self, policy: Model) -> Local:
        with self._lock:
            known = self._loaded.pop(policy.version, None)
            if known is None:
                known = self._load(policy)
            self._loaded[policy.version] = known
            return known

    def open_endpoint(self, model: str) -> Complete | None:
        return self._endpoint(model)

    def close(self) -> None:
        with self._lock:
            for local in self._loaded.values():
                local.close()
            self._loaded.clear()

    def _load(self, policy: Model) -> Local:
        """Whoever was asked for longest ago gives its memory: calls that it has begun finish on their own weights."""
        model, _ = load(policy, self.folder or policy.home)
        version = policy.checkpoint or BASE
        if len(self._loaded) >= AT_ONCE:
            local = self._loaded.pop(next(iter(self._loaded)))
            if local.name == f"local/{policy.name}":
                local.swap(model, version=version)
                return local
            local.close()
        return Local(
            model,
            name=f"local/{policy.name}",
            version=version,
            slots=self._slots,
            seed=self._seed,
            deterministic=self._deterministic,
        )
