"""A peer in its own environment: a child process that is asked for laps, so that ours and its can take turns."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from parts.report import ROOT


class PeerAbsent(Exception):
    """Why there is nothing to compare with."""


def program(name: str) -> Path:
    """One of the peers' environment."""
    path = Path(os.environ.get("HOLDFAST_PEERS", ROOT / ".venv-peers")) / "bin" / name
    if not path.exists():
        raise PeerAbsent(f"{path} is not there: run 'make peers', or set HOLDFAST_PEERS to an environment")
    return path


class Peer:
    def __init__(self, script: str) -> None:
        """Start `benchmarks/peers/<script>` and wait until it has imported what it needs."""
        command = [program("python"), ROOT / "benchmarks/peers" / script]
        self._words = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._words, text=True
        )
        self.about = self._answer()

    def lap(self, n: int) -> dict[str, Any]:
        return self.say(n)

    def say(self, value: Any) -> dict[str, Any]:
        """One line of JSON, and the one that answers it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(value)}\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.communicate()
            self._words.seek(0)
            words = self._words.read().strip().splitlines()
            raise PeerAbsent(f"it ended with code {self._process.returncode}: {words[-1] if words else 'no words'}")
        answer: dict[str, Any] = json.loads(line)
        return answer
