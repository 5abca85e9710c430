"""Foreign code behind walls: no network, no file but its own, little time and memory; where that cannot be, it refuses.

The walls are Linux namespaces. A process of its own (`sandbox_supervisor`) puts them up once, and each request runs in
a fork of it, so that a judgement takes milliseconds. A verdict cannot be forged from inside: what comes back is only
what each call returned, and it is compared here, with answers that never went in. `functions` says which.
"""

from __future__ import annotations

import json
import math
import selectors
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from experiments.coding.trial import encode
from holdfast.contracts.errors import BadInput, Fault, HoldfastError

SUPERVISOR = Path(__file__).with_name("sandbox_supervisor.py")
PATIENCE_S = 30.0  # for the walls to stand, and beyond the wall clock of a request on a machine that is busy


class NoSandbox(HoldfastError):
    """This machine cannot isolate foreign code; nothing was run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """What one request may use."""

    wall_s: float = 10.0
    cpu_s: float = 1.0
    memory_bytes: int = 512 << 20  # of address space; it is one process, and can start no other
    tree_bytes: int = 4 << 20  # the work tree, which is in memory
    threads: int = 16
    answer_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise BadInput(f"sandbox: {name} = {value}", why="must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxAnswer:
    """What one call gave: a value, in the form of `trial.encode`, or the name of an error."""

    kind: str  # "value" or "error"
    what: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What is to be called, and what it must give. The answers stay on this side."""

    module: str
    function: str
    arguments: tuple[tuple[Any, ...], ...]
    expected: tuple[SandboxAnswer, ...] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxVerdict:
    """Which calls gave a wrong answer or none, and how the process ended."""

    wrong: tuple[int, ...]  # by their place, from 0
    calls: int
    ended: str  # "exit 0", "cpu", "time", "killed", "too much said" …

    @property
    def is_passed(self) -> bool:
        return self.calls > 0 and not self.wrong and self.ended == "exit 0"


class Sandbox:
    """An open sandbox; one request at a time. Used in a `with` block, which ends it."""

    def __init__(self, limits: SandboxLimits | None = None, *, python: str = sys.executable) -> None:
        self.limits = limits or SandboxLimits()
        self._python, self._lock = python, threading.Lock()
        self._supervisor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if self._supervisor is not None:
            self._supervisor.kill()  # what is inside dies with it
            self._supervisor.communicate()
            self._supervisor = None

    def judge(self, files: Mapping[str, str], calls: Calls) -> SandboxVerdict:
        """Call the function in these files; the hidden check."""
        request = {"mode": "calls", "module": calls.module, "function": calls.function}
        sent = [encode(arguments) for arguments in calls.arguments]
        said = self._ask({**request, "files": _checked(files), "calls": sent})
        answers = _answers(said["answers"], len(sent))
        pairs = enumerate(zip(answers, calls.expected, strict=True))
        wrong = tuple(place for place, (given, wanted) in pairs if not is_same(given, wanted))
        return SandboxVerdict(wrong=wrong, calls=len(sent), ended=said["ended"])

    def is_content(self, files: Mapping[str, str]) -> bool:
        """Whether the tests in these files pass where they lie. They can be forged: a careless grader's check."""
        return bool(self._ask({"mode": "tests", "files": _checked(files)})["ended"] == "exit 0")

    def _open(self) -> None:
        if not sys.platform.startswith("linux"):
            raise _no_sandbox(f"namespaces: {sys.platform} has none")
        order = [self._python, "-I", "-S", str(SUPERVISOR), json.dumps(asdict(self.limits))]
        try:
            self._supervisor = subprocess.Popen(
                order, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, cwd="/", start_new_session=True
            )
        except OSError as error:
            raise _no_sandbox(f"{self._python}: {error.strerror}") from error
        said = self._hear(PATIENCE_S)
        if said is None or "ready" not in said:
            self.close()
            raise _no_sandbox((said or {}).get("refused", "the supervisor did not start"))

    def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._supervisor is None:
                raise Fault("sandbox", why="is not open", remedy="use it in a with block")
            assert self._supervisor.stdin is not None
            try:
                self._supervisor.stdin.write(json.dumps(request).encode() + b"\n")
                self._supervisor.stdin.flush()
                said = self._hear(self.limits.wall_s + PATIENCE_S)
            except BrokenPipeError:
                said = None
            if said is None or said["ended"] == "isolation":
                self.close()
                raise Fault("sandbox", why="was lost while it worked", remedy="open another")
            return said

    def _hear(self, patience_s: float) -> dict[str, Any] | None:
        """One line of the supervisor's; None when it is gone or silent."""
        assert self._supervisor is not None and self._supervisor.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._supervisor.stdout, selectors.EVENT_READ)
            if not ready.select(patience_s):
                return None
        line = self._supervisor.stdout.readline()
        said: dict[str, Any] | None = json.loads(line) if line else None
        return said


def is_same(given: SandboxAnswer | None, wanted: SandboxAnswer) -> bool:
    """Equal in kind, type and value; floats to nine digits, because a repair may add in another order."""
    return given is not None and given.kind == wanted.kind and _is_same(given.what, wanted.what)


def _is_same(given: Any, wanted: Any) -> bool:
    if type(given) is not type(wanted):
        return False
    if isinstance(wanted, list):
        return len(given) == len(wanted) and all(map(_is_same, given, wanted))
    if not isinstance(wanted, dict):
        return bool(given == wanted)
    if given.keys() != wanted.keys() or "other" in wanted:
        return False
    ((kind, inner),) = wanted.items()
    if kind != "float":
        return _is_same(given[kind], inner)
    try:
        return math.isclose(float(given[kind]), float(inner), rel_tol=1e-9, abs_tol=1e-12) or given[kind] == inner
    except (TypeError, ValueError, OverflowError):  # it was written by foreign code, and may be anything
        return False


def _answers(said: str, calls: int) -> list[SandboxAnswer | None]:
    """What each call gave; None where nothing, or nothing that can be read, was said."""
    found: list[SandboxAnswer | None] = [None] * calls
    for place, line in enumerate(said.splitlines()[: calls + 1]):
        try:
            number, kind, what = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return [None] * calls
        if number != place or place >= calls:  # each call answers once, in order: else somebody wrote in its place
            return [None] * calls
        found[place] = SandboxAnswer(kind=str(kind), what=what)
    return found


def _checked(files: Mapping[str, str]) -> dict[str, str]:
    for path in files:
        if not path or path.startswith("/") or ".." in Path(path).parts:
            raise BadInput(f"file {path!r}", why="is not inside the work tree")
    return dict(files)


def _no_sandbox(why: str) -> NoSandbox:
    return NoSandbox(
        "sandbox: this machine cannot isolate foreign code",
        why=why,
        remedy="use Linux 5.12 or newer with user namespaces allowed; code is never run without isolation",
    )
