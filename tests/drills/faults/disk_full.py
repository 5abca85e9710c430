"""A full disk, again and again, under two writers: they are told so, and once there is room the same processes go on.

The disk is a small tmpfs where root can mount one; the kernel's limit on the size of files, set from outside, does
elsewhere, and after it. `holdfast drill disk` does it to a run.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import StoreFull
from holdfast.contracts.rollout import Task
from holdfast.store.store import open_store
from tests.drills import roles
from tests.drills.crew import wait_until
from tests.drills.journal import Journal, Witness
from tests.drills.scene import Setting, Tally, scene, verdict

SIZE = "64m"
MOST = 5 << 20  # bytes of a file: more than a journal has, less than the store soon needs
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


Disk = Tmpfs | Limits


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
    if disk is None or not setting.quick:
        limits = Limits(setting.folder / "limits")
        limits.folder.mkdir()
        _writers(setting, limits, tally)
    return tally


def _writers(setting: Setting, disk: Disk, tally: Tally) -> None:
    times = 2 if setting.quick else 8
    with scene(setting, at=str(disk.folder / "store.db"), queue_limit=None) as here:
        pids = [here.crew.start(writer, here.url, here.run, who, name=who).pid for who in ("ann", "bob")]
        problems: list[str] = []
        for number in range(1, times + 1):
            time.sleep(setting.rng.uniform(0.1, 0.4))
            before = _lines(here.folder, REFUSED)
            disk.fill(pids, MOST)
            if not wait_until(lambda before=before: _lines(here.folder, REFUSED) >= before + 4, 20.0):
                problems.append(f"time {number}: the disk was full and the writers were not told")
            disk.free(pids)
            before = _lines(here.folder, DONE)
            if not wait_until(lambda before=before: _lines(here.folder, DONE) > before + 10, 20.0):
                problems.append(f"time {number}: there was room again and the writers did not go on")
            setting.say(f"{disk.kind} filled {number} of {times} times")
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        problems += here.crew.finish() + here.work_off(10.0)
    tally.events += times
    refused = _lines(here.folder, REFUSED)
    tally.notes.append(f"{disk.kind}: {refused} writes were told StoreFull, and made again once there was room")
    tally.add(verdict(here.url, here.folder, problems))


def _lines(folder: Path, kind: bytes) -> int:
    """How many answers of a kind the journals have by now."""
    return sum(path.read_bytes().count(kind) for path in folder.glob("*.journal"))


def writer(journal: Journal, url: str, run: str, who: str) -> None:
    """Does everything, and again when there was no room for it. Told to stop, it works off what is left."""
    told = roles.told_to_stop()
    with open_store(url, poll_s=0.02) as opened:
        store, number, claims = Witness(opened, journal), 0, ()
        while claims or not told.is_set():
            if not told.is_set():
                new = Task(name=f"{who}-{number}", input={"prompt": roles.PADDING})
                _until_there_is_room(lambda new=new: store.queue.enqueue(run, [new], now=time.time()))
                number += 1
            claims = _until_there_is_room(lambda: store.queue.claim(run, who, now=time.time(), lease_s=600.0, most=2))
            for claim in claims:
                spans = [roles.span(1), roles.span(2)]
                _until_there_is_room(lambda a=claim.attempt, s=spans: store.traces.add(a, s, now=time.time()))
                _until_there_is_room(lambda a=claim.attempt: roles.succeed(store, a))


def _until_there_is_room(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call().result()
        except StoreFull:
            time.sleep(0.02)
