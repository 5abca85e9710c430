"""A scratch store with our own commands at work on it: started, killed, waited for, and every step written down.

What a drill does with them, and what that proves, is `drills`' and `playbook`'s. The transcript is evidence: a line for
each command, exit and mark, with the time, in the order in which they happened.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.contracts.errors import HoldfastError
from holdfast.store.store import Store, open_store

STORE, CONFIG, TRANSCRIPT = "store.sqlite", "config.json", "operator.log"
PATIENCE_S = 120.0  # for what takes seconds: a machine may be busy with other things
OURS = ("HOLDFAST_STORE", "HOLDFAST_TOKEN")  # a drill has its own store, whatever the environment says
Clock = Callable[[], float]


class DrillFailed(HoldfastError):
    """The drill could not be gone through with: nothing is proved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEvent:
    """Something that was done, and when."""

    name: str
    at: float  # unix seconds
    facts: Mapping[str, Any] = field(default_factory=dict)


class Running:
    """One of our commands. It speaks into files: a pipe would stay open as long as any child of its lives."""

    def __init__(self, words: Sequence[str], stem: Path, folder: Path) -> None:
        self.line = shlex.join(["holdfast", *words])
        self._out, self._err = stem.with_suffix(".out"), stem.with_suffix(".err")
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        self.pid = self._process.pid

    def has_ended(self, within_s: float = 0.0) -> bool:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def has_open(self, path: Path) -> bool:
        """Whether it works on a file right now."""
        try:
            return any(each.readlink() == path for each in Path(f"/proc/{self.pid}/fd").iterdir())
        except OSError:  # it has just ended, or closed one of them
            return False

    def kill(self) -> None:
        """As `kill -9` does: it hears nothing of it."""
        self._process.kill()
        self._process.wait()

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def out(self) -> str:
        return self._out.read_text(encoding="utf-8", errors="replace").strip()

    @property
    def err(self) -> str:
        return self._err.read_text(encoding="utf-8", errors="replace").strip()


class Scratch:
    """Use as a context: whatever happens inside, nobody is left when it ends."""

    def __init__(
        self, folder: Path, *, clock: Clock, say: Callable[[str], None], practice: Mapping[str, Any] | None = None
    ) -> None:
        self.folder, self.store, self.say = folder, folder / STORE, say
        self.practice = practice  # the agent, the model and the tasks of a run that learns
        self.marks: list[TimedEvent] = []
        self._clock, self._running = clock, list[Running]()
        (folder / "output").mkdir()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for one in self._running:
            one.kill()

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """Only to look."""
        with open_store(str(self.store), create=False, migrate=False) as store:
            yield store

    def begin(self, *words: str) -> Running:
        """`holdfast …`, as a person would start it, in the drill's folder."""
        stem = self.folder / "output" / f"{len(self._running) + 1:02d}"
        self._running.append(Running(words, stem, self.folder))
        self._write(f"$ {self._running[-1].line}")
        return self._running[-1]

    def end(self, one: Running, patience_s: float = PATIENCE_S) -> int:
        """Wait until it has ended by itself; its exit code."""
        if not one.has_ended(patience_s):
            raise DrillFailed(one.line, why=f"did not end within {patience_s:g} s")
        code = one.code or 0
        last = one.err.splitlines()[-1:] or [""]
        self._write(f"exit {code}{': ' + last[0][:200] if code and last[0] else ''}")
        return code

    def call(self, *words: str, patience_s: float = PATIENCE_S) -> Running:
        """From start to end; Broken where it did not end well."""
        one = self.begin(*words)
        if self.end(one, patience_s):
            raise DrillFailed(one.line, why=f"exit {one.code}: {(one.err or one.out)[-300:]}")
        return one

    def kill(self, one: Running, **facts: Any) -> TimedEvent:
        """`kill -9`, now."""
        marked = self.mark("killed", pid=one.pid, command=f"kill -9 {one.pid}", **facts)
        one.kill()
        return marked

    def mark(self, name: str, **facts: Any) -> TimedEvent:
        self.marks.append(TimedEvent(name=name, at=self._clock(), facts=facts))
        self._write(f"* {name} {json.dumps(facts, sort_keys=True)}", self.marks[-1].at)
        self.say(name + "".join(f" {value}" for value in facts.values()))
        return self.marks[-1]

    def wait(self, what: str, is_so: Callable[[], bool], patience_s: float = PATIENCE_S) -> None:
        """Broken where it does not come to be so."""
        end = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > end:
                raise DrillFailed(what, why=f"did not come to be within {patience_s:g} s")
            for one in self._running:
                one.has_ended()  # reaped
            time.sleep(0.02)

    def _write(self, line: str, at: float | None = None) -> None:
        at = self._clock() if at is None else at
        with (self.folder / TRANSCRIPT).open("a", encoding="utf-8") as log:
            log.write(f"{at:.6f} {' '.join(line.splitlines())}\n")
