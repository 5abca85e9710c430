"""A full disk, again and again, under two writers: they are told so, nothing acknowledged is lost, and once there is room
the same processes go on. Then `holdfast optimize` in the middle of a run: one clear line, a whole status.json, a resume.

The disk is a small tmpfs where root can mount one; then, and everywhere else, the kernel's limit on the size of files is
set from outside (journals stay below it).
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.drills import agents, roles
from tests.drills.crew import Crew, wait_until
from tests.drills.scene import Setting, Tally, scene, verdict

SIZE = "64m"
DONE, REFUSED = b'"ok":true', b'"error":"StoreFull"'


class Tmpfs:
    """Full when a ballast file fills it."""

    kind = "tmpfs"

    def __init__(self, folder: Path) -> None:
        self.folder, self._ballast = folder, folder / "ballast"

    def fill(self, pids: list[int], most: int) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue

    def free(self, pids: list[int]) -> None:
        self._ballast.unlink()


class Limits:
    """Full for processes that may not write beyond so many bytes of a file."""

    kind = "RLIMIT_FSIZE"

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self, pids: list[int], most: int) -> None:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))

    def free(self, pids: list[int]) -> None:
        for pid in pids:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[Tmpfs | None]:
    """None where we may not mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        yield None
        return
    try:
        yield Tmpfs(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="disk full")
    with small_disk(setting.folder / "disk") as disk:
        if disk is not None:
            _writers(setting, disk, tally)
            _optimize(setting, disk, tally)
    if disk is None or not setting.quick:
        limits = Limits(setting.folder / "limits")
        limits.folder.mkdir()
        _writers(setting, limits, tally)
        _optimize(setting, limits, tally)
    return tally


def _writers(setting: Setting, disk: Tmpfs | Limits, tally: Tally) -> None:
    times = 2 if setting.quick else 8
    with scene(setting, at=str(disk.folder / "store.db"), queue_limit=None) as here:
        crew = [here.crew.start(roles.writer, here.url, here.run, who, name=who) for who in ("ann", "bob")]
        pids, problems = [member.pid for member in crew], []
        for number in range(times):
            time.sleep(setting.rng.uniform(0.1, 0.4))
            before = _lines(here.folder, REFUSED)
            disk.fill(pids, 5 << 20)
            if not wait_until(lambda before=before: _lines(here.folder, REFUSED) >= before + 4, 20.0):
                problems.append(f"time {number + 1}: the disk was full and the writers were not told")
            disk.free(pids)
            done = _lines(here.folder, DONE)
            if not wait_until(lambda done=done: _lines(here.folder, DONE) > done + 10, 20.0):
                problems.append(f"time {number + 1}: there was room again and the writers did not go on")
            setting.say(f"filled {number + 1} of {times} times")
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        problems += here.crew.finish() + here.work_off(10.0)
    refused = _lines(here.folder, REFUSED)
    tally.events += times
    tally.notes.append(f"{disk.kind}: {refused} writes were told StoreFull, and were made again once there was room")
    tally.add(verdict(here.url, here.folder, problems))


def _lines(folder: Path, kind: bytes) -> int:
    """How many answers of a kind the journals have by now."""
    return sum(path.read_bytes().count(kind) for path in folder.glob("*.journal"))


def _optimize(setting: Setting, disk: Tmpfs | Limits, tally: Tally) -> None:
    """Full while a run goes on: it must end with one line and exit code 5, and be resumable."""
    folder = disk.folder / "optimize"
    folder.mkdir()
    url, config, tasks = str(folder / "store.db"), setting.folder / f"{disk.kind}.json", 150
    config.write_text(json.dumps(_settings(tasks)))
    problems: list[str] = []
    with Crew(setting.folder) as crew:
        child = crew.command("optimize", "--config", str(config), "--store", url)
        status = folder / "status.json"
        wait_until(lambda: child.poll() is not None or (status.exists() and _succeeded(status) > 10), 30.0)
        disk.fill([child.pid], 0)
        _, err = child.communicate(timeout=60.0)
        if child.returncode != 5 or not _is_one_clear_line(err):
            problems.append(f"optimize on a full disk ended with {child.returncode}: {err.strip()}")
        said = json.loads(status.read_text())
        tally.notes.append(
            f"{disk.kind}: optimize ended with {child.returncode}, status.json whole ({said['run_state']})"
        )
        disk.free([])
        problems += _resume(crew, url, said["run_id"])
        problems += crew.leftovers()
    tally.events += 1
    findings = verdict(url, folder, problems)
    if findings.rollouts != tasks:
        findings.lost.append(f"{tasks - findings.rollouts} tasks")
    tally.add(findings)


def _resume(crew: Crew, url: str, run: str) -> list[str]:
    end = time.monotonic() + 30.0
    while True:
        child = crew.command("optimize", "--resume", run, "--store", url)
        _, err = child.communicate(timeout=60.0)
        if child.returncode == 0:
            return []
        if "another process drives it" not in err or time.monotonic() > end:
            return [f"resuming once there was room ended with {child.returncode}: {err.strip()}"]
        time.sleep(0.2)


def _is_one_clear_line(err: str) -> bool:
    lines = err.strip().splitlines()
    return len(lines) == 1 and lines[0].startswith("holdfast: error: ")


def _succeeded(status: Path) -> int:
    return int(json.loads(status.read_text())["succeeded"])


def _settings(tasks: int) -> dict[str, object]:
    agent: Callable[..., object] = agents.busy
    return {
        "optimize": [{"prompt": f"task {n}", "expected": f"task {n}"} for n in range(tasks)],
        "agent": f"{agent.__module__}:{agent.__name__}",
        "max_attempts": 1000,
        "retry_initial_ms": 10,
        "retry_max_ms": 100,
        "heartbeat_interval_ms": 100,
        "lease_secs": 0.5,
    }
