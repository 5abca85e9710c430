"""Runs: one piece of work with its own rollouts, the state an operator wants it in, and the process that drives it."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from holdfast.contracts.errors import LATER, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    machine: str  # within it a number is one process's alone at a time
    pid: int
    started: str = ""  # when, as the kernel tells it: a number is given again; blank: it was not noted


def this_process() -> Process:
    return Process(machine=_machine(), pid=os.getpid(), started=_started(os.getpid()))


def is_gone(process: Process) -> bool:
    """Whether it has ended for certain: it was one of this machine, and nobody, or another one, has its number."""
    if process.machine != _machine():
        return False
    is_another = process.started not in ("", _started(process.pid))
    return is_another or not is_alive(process.pid)


def place_of_processes() -> str:
    """A short name for this machine and its pid namespace: numbers of processes mean something within it alone."""
    return hashlib.sha256(_machine().encode()).hexdigest()[:6]


def _started(pid: int) -> str:
    """The 22nd field of its line, in ticks since the machine was started; the second may have blanks in it."""
    with suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has the number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _machine() -> str:
    """Its name alone is not enough: containers may share one and still count their processes each by itself."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    return " ".join(parts)


class RunState(StrEnum):
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"


class DesiredState(StrEnum):
    """What claim and every beat obey."""

    RUNNING = "running"
    PAUSED = "paused"  # nothing new is claimed, what runs goes on
    FROZEN = "frozen"  # nothing new is claimed, what runs is handed back at once, to be run anew later
    DRAINING = "draining"  # nothing new is claimed, what runs finishes, then the run stops
    CANCELLED = "cancelled"  # what waits is cancelled, what runs is interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One piece of work, from its start to its end."""

    SCHEMA: ClassVar[int] = 1

    id: str
    project: str
    kind: str  # "optimize"
    state: RunState
    wanted: DesiredState
    model_ref: str
    settings: Mapping[str, Any]
    queue_limit: int | None  # at most so many rollouts wait; producers wait or are refused
    created_at: float
    beat_at: float  # last sign of life of the process that drives it
    ended_at: float | None
    error: str | None
    driver: int = 1  # who drives it: 1 began it, each that takes it up counts one more, and those before are refused


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitRewards:
    """Rewards of one split: a rollout without one is missing, not zero."""

    total: int  # rollouts
    rewarded: int  # those with a reward
    mean_reward: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `status.json` says of a run, at every state."""

    SCHEMA: ClassVar[int] = 1

    updated_unix_ms: int
    run_state: RunState
    run_id: str
    project: str
    model_ref: str
    store_path: str
    resources_id: str | None  # version in force
    total_rollouts: int  # planned, enqueued or not
    succeeded: int
    failed: int  # dead ones included, so that a finished run adds up
    cancelled: int
    dead: int  # of the failed: given up without an answer
    running: int
    waiting: int
    rewards: Mapping[str, SplitRewards]  # by split
    elapsed_s: float
    error: str | None = None
    lesson: str | None = None  # what is going on, or was last
    rl_optimizer: Mapping[str, Any] | None = None  # what the optimizer did; None: it is off, or has not run yet
    outcomes: Mapping[str, int] = field(default_factory=dict)  # of the succeeded: right, wrong, not_checked
    prompt_search: Mapping[str, Any] | None = field(default=None, metadata=LATER)  # rounds, front, spent and budget


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceVersion:
    """An immutable set of named resources (prompts and the like). Same content, same version."""

    SCHEMA: ClassVar[int] = 1

    id: str  # "resources-<version>"
    project: str
    version: int  # 1, 2, … within the project
    sha256: str
    resources: Mapping[str, Any]
    created_at: float


LEGACY_STEP = "lesson"  # the function of steps that versions before durable steps recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One durable step of a run that is done: a name, a function, its inputs, and its result, which is read again."""

    run: str
    step: int = field(metadata={"minimum": 0})  # 1, 2, … in the order they were recorded
    name: str  # "0/3/learn"
    function: str  # "holdfast.pipeline.collect.collect"
    inputs_sha256: str
    at: float  # unix seconds
    body: Mapping[str, Any]  # the result: references and figures

    def __post_init__(self) -> None:
        check_fields(f"step {self.step} of {self.run}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRecord:
    """One process that claims rollouts."""

    SCHEMA: ClassVar[int] = 1

    id: str
    host: str
    pid: int
    slots: int
    started_at: float
    beat_at: float
    stopped_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One line of the append-only ledger; each carries the hash of the one before."""

    SCHEMA: ClassVar[int] = 1

    seq: int
    at: float
    project: str
    run: str | None
    kind: str  # "run", "order", "requeue", "prune", …
    who: str
    body: Mapping[str, Any]
    previous: str
    sha256: str
