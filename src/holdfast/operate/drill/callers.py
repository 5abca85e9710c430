"""People who ask a service all the while: each one after the other, and who answered is written down.

A request that fails is written down too; whether that was anybody's fault is for others to say.
"""

from __future__ import annotations

import json
import threading
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from holdfast.operate.drill.scratch import Clock


@dataclass(slots=True, kw_only=True)
class Callers:
    """Use as a context: they ask until it ends."""

    address: str  # of the service, up to /v1
    policy: str
    path: Path
    clock: Clock
    many: int = 6
    answered: Counter[str] = field(default_factory=Counter)  # by version
    _told: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Callers:
        self._threads += [threading.Thread(target=self._ask, args=(n,), daemon=True) for n in range(self.many)]
        for one in self._threads:
            one.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._told.set()
        for one in self._threads:
            one.join(60.0)

    def _ask(self, number: int) -> None:
        body = {"model": self.policy, "user": f"caller-{number}", "max_tokens": 8}
        asked = json.dumps({**body, "messages": [{"role": "user", "content": "What is 6 + 8?"}]}).encode()
        where = f"{self.address}/chat/completions"
        while not self._told.is_set():
            began, version_, error = self.clock(), "", None
            request = urllib.request.Request(where, data=asked, headers={"content-type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=60.0) as response:
                    version_ = str(json.load(response)["model"]).split("/", 1)[-1].rpartition("@")[0]
            except (OSError, HTTPException, ValueError, KeyError) as failed:
                error = f"{type(failed).__name__}: {failed}"
            line = {"caller": number, "began": began, "ended": self.clock(), "version": version_, "error": error}
            with self._lock, self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
                self.answered[version_] += 1
            self._told.wait(0.02)
