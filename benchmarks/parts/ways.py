"""The ways to the scripted upstream: straight, through our proxy, through LiteLLM's and through Agent Lightning's.

Each is a process of its own, started as its users start it. What it costs is read from /proc, so this is for Linux.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.collect.proxy.attribution import base_url
from holdfast.contracts.rollout import Task
from holdfast.store.store import open_store
from parts.life import begin_run
from parts.peer import PeerAbsent, program
from parts.report import ROOT

CALLERS = 32
STARTS_WITHIN_S = 90.0
LEASE_S = 86_400.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Way:
    """A process behind a port. `paths` are the beginnings of its addresses, one for each caller."""

    paths: Sequence[str] = ("",) * CALLERS
    headers: Mapping[str, str] = {}

    port = 0

    def __init__(
        self, command: Sequence[object], *, environment: Mapping[str, str] | None = None, is_talkative: bool = False
    ) -> None:
        """`is_talkative`: what it prints is for people, and goes where its errors go."""
        self._words = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=self._words if is_talkative else subprocess.PIPE,
            stderr=self._words,
            env={name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
            | dict(environment or {}),
            text=True,
        )

    def ready(self) -> None:
        """Until it serves; PeerAbsent where it never does."""
        raise NotImplementedError

    def line(self) -> str:
        """The next that it says; PeerAbsent where it has ended instead."""
        assert self._process.stdout is not None
        found = self._process.stdout.readline()
        if not found:
            self._process.wait(10)
            raise PeerAbsent(f"it ended with code {self._process.returncode}: {self.last_words()}")
        return found

    def last_words(self) -> str:
        self._words.seek(0)
        return next((line for line in reversed(self._words.read().strip().splitlines()) if line.strip()), "no words")

    def until_healthy(self, path: str) -> None:
        until = time.monotonic() + STARTS_WITHIN_S
        while time.monotonic() < until:
            if self._process.poll() is not None:
                raise PeerAbsent(f"it ended with code {self._process.returncode}: {self.last_words()}")
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5).close()
                return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise PeerAbsent(f"it did not serve within {STARTS_WITHIN_S:g} s")

    def cpu_s(self) -> float:
        """User and system, all threads."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_PER_S

    def resident_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def kept(self) -> int | None:
        """Spans that it has recorded; None where it records none. It ends with that."""
        return None

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


class Direct(Way):
    def __init__(self) -> None:
        super().__init__([sys.executable, Path(__file__).parent / "scripted.py"])

    def ready(self) -> None:
        self.port = int(self.line())


class Ours(Way):
    """`holdfast proxy` before it, on a new SQLite store with an attempt for each caller."""

    def __init__(self, upstream: int, folder: Path, *, is_scrubbed: bool) -> None:
        self._store = folder / "training" / "store.sqlite"
        self._store.parent.mkdir(parents=True)
        with open_store(self._store) as store:
            run = begin_run(store)
            store.queue.enqueue(run, [Task(name=f"t{n}", input={}) for n in range(CALLERS)], now=time.time()).result()
            claims = store.queue.claim(run, "benchmark", now=time.time(), lease_s=LEASE_S, most=CALLERS).result()
        self.paths = [base_url("", claim.rollout.id, claim.attempt.number) for claim in claims]
        command = [sys.executable, "-m", "holdfast.cli", "proxy", "--upstream", f"http://127.0.0.1:{upstream}"]
        command += ["--port", "0", "--store", str(self._store), "--state-dir", str(folder)]
        super().__init__([*command, "--scrub" if is_scrubbed else "--no-scrub"])

    def ready(self) -> None:
        self.port = int(self.line().split(" before ")[0].rpartition(":")[2])

    def kept(self) -> int | None:
        self.close()
        with sqlite3.connect(self._store) as found:
            count: int = found.execute("SELECT count(*) FROM spans WHERE ended_at IS NOT NULL").fetchone()[0]
        return count


class LiteLLM(Way):
    """`litellm --config`, as its documentation starts it: one process, no database."""

    def __init__(self, upstream: int, folder: Path) -> None:
        path = folder / "litellm.yaml"
        models = [_model(name, upstream) for name in ("instant", "paced")]
        general = {"master_key": "os.environ/LITELLM_MASTER_KEY"}  # it refuses to start without one
        path.write_text(json.dumps({"model_list": models, "general_settings": general}))  # JSON is YAML too
        self.port, environment = free_port(), _peer_environment()
        self.headers = {"Authorization": f"Bearer {environment['LITELLM_MASTER_KEY']}"}
        command = [program("litellm"), "--config", path, "--host", "127.0.0.1", "--port", self.port]
        super().__init__([*command, "--telemetry", "False"], environment=environment, is_talkative=True)

    def ready(self) -> None:
        self.until_healthy("/health/liveliness")


class AgentLightning(Way):
    def __init__(self, upstream: int) -> None:
        self.port, environment = free_port(), _peer_environment()
        self.headers = {"Authorization": f"Bearer {environment['LITELLM_MASTER_KEY']}"}
        script = ROOT / "benchmarks/peers/proxy_agent_lightning.py"
        command = [program("python"), script, self.port, f"http://127.0.0.1:{upstream}"]
        super().__init__(command, environment=environment)

    def ready(self) -> None:
        self.paths = json.loads(self.line())["paths"]
        self.until_healthy("/health/liveliness")

    def kept(self) -> int | None:
        """A call has several of its spans."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.stdin = None
        count: int = json.loads(self.line())["spans"]
        return count


def _model(name: str, upstream: int) -> dict[str, Any]:
    there = {"model": f"openai/{name}", "api_base": f"http://127.0.0.1:{upstream}/v1", "api_key": "none"}
    return {"model_name": name, "litellm_params": there}


def _peer_environment() -> dict[str, str]:
    """The key is made up; the price list would be asked for from the network."""
    return {"LITELLM_MASTER_KEY": f"sk-{secrets.token_hex(32)}", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
    return port
