"""Which process did something, so that another one can say later whether it is gone."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    machine: str  # within it a number is one process's alone
    pid: int


def this_process() -> Process:
    return Process(machine=_machine(), pid=os.getpid())


def is_gone(process: Process) -> bool:
    """Whether it has ended for certain: it was one of this machine, and nobody has its number."""
    return process.machine == _machine() and not is_alive(process.pid)


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
