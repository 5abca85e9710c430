"""Drills: a real accident on a scratch store under load, with our own commands, and the evidence it leaves.

`crash` kills the driver of a run with -9 and resumes the run; `disk` lets it run out of space; `upgrade` stops it,
gives it an earlier schema, kills the migration, and continues; `pause` pauses, freezes, resumes and cancels a working
run; `rollback` takes back a version that is answering; `soak` does all of it for hours. `playbook` computes whether it
went well. The transcript has a line with the time for each command, exit and mark.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import resource
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.records import encode
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import OPEN, RolloutState
from holdfast.contracts.run import RunRecord
from holdfast.operate import playbook
from holdfast.operate.playbook import CONFIG, LIMITS, STORE, TRANSCRIPT, Story, TimedEvent, write, write_up
from holdfast.store.admin import set_back
from holdfast.store.store import Store, open_store


@dataclass(slots=True, kw_only=True)
class Callers:
    """Threads that ask a service until the context ends; each answer or failure is a line of a file."""

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
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._told.set()
        for thread in self._threads:
            thread.join(60.0)

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


# A command of a drill ends with it, however the drill is killed; and its wall clock is what the drill makes it. The
# monotonic clock stays as it is: no kernel moves it.
WITH_PARENT = """
import ctypes, mmap, os, runpy, signal, struct, sys, time
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):
    os._exit(137)
with open(sys.argv[2], "rb") as file:
    ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
def moved(true=time.time):
    return true() + struct.unpack("d", ahead)[0]
def moved_ns(true=time.time_ns):
    return true() + int(1e9 * struct.unpack("d", ahead)[0])
time.time, time.time_ns = moved, moved_ns
sys.argv[:3] = ["holdfast"]
sys.path[0] = ""
runpy.run_module("holdfast.cli", run_name="__main__", alter_sys=True)
"""
PATIENCE_S = 600.0  # for what takes seconds: at a load of 20 a start took two minutes
OURS = ("HOLDFAST_STORE", "HOLDFAST_TOKEN")  # a drill has its own store, whatever the environment says
Clock = Callable[[], float]


class DrillFailed(HoldfastError):
    """The drill could not be completed: nothing is proved."""


class Running:
    """One of our commands. Its output goes to files: a pipe would stay open as long as any of its children."""

    def __init__(self, words: Sequence[str], stem: Path, folder: Path) -> None:
        self.line = shlex.join(["holdfast", *words])
        self._out, self._err = stem.with_suffix(".out"), stem.with_suffix(".err")
        self._clock = stem.with_suffix(".clock")
        self._clock.write_bytes(struct.pack("d", 0.0))
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        begun = [sys.executable, "-c", WITH_PARENT, str(os.getpid()), str(self._clock)]
        command, nothing = [*begun, *words], subprocess.DEVNULL
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=nothing, stdout=out, stderr=err
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

    def move_clock(self, seconds: float) -> None:
        """Sets its wall clock (`time.time`) so many seconds ahead of the true time, at once."""
        with self._clock.open("r+b") as file:  # in place: it has the file mapped
            file.write(struct.pack("d", seconds))

    def kill(self) -> None:
        """kill -9."""
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
    """A scratch store and the commands at work on it; all of them are killed when the context ends."""

    def __init__(
        self,
        folder: Path,
        *,
        clock: Clock,
        say: Callable[[str], None],
        practice: Mapping[str, Any] | None = None,
        minutes: float = 120.0,
        cpu_share: float | None = None,
    ) -> None:
        self.folder, self.store, self.say = folder, folder / STORE, say
        self.practice = practice  # the agent, the model and the tasks of a run that learns
        self.minutes = minutes  # of a soak
        self.cpu_share = cpu_share  # of one core, that a soak may use on average
        self.marks: list[TimedEvent] = []
        self._clock, self._running = clock, list[Running]()
        (folder / "output").mkdir()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        for running in self._running:
            running.kill()

    @contextmanager
    def opened(self) -> Iterator[Store]:
        """Only to look."""
        with open_store(str(self.store), create=False, migrate=False) as store:
            yield store

    def begin(self, *words: str) -> Running:
        """Starts `holdfast …` in the drill's folder."""
        stem = self.folder / "output" / f"{len(self._running) + 1:02d}"
        self._running.append(Running(words, stem, self.folder))
        self._write(f"$ {self._running[-1].line}")
        return self._running[-1]

    def end(self, one: Running, patience_s: float = PATIENCE_S) -> int:
        """Waits until it has ended by itself; its exit code."""
        if not one.has_ended(patience_s):
            raise DrillFailed(one.line, why=f"did not end within {patience_s:g} s")
        code = one.code or 0
        last = " ".join(one.err[max(0, one.err.rfind("holdfast: ")) :].split())  # a message goes over several lines
        self._write(f"exit {code}{': ' + last[:200] if code and last else ''}")
        return code

    def call(self, *words: str, patience_s: float = PATIENCE_S) -> Running:
        """Runs a command to its end; DrillFailed where it fails."""
        running = self.begin(*words)
        if self.end(running, patience_s):
            raise DrillFailed(
                running.line, why=f"exit {running.code}: {' '.join((running.err or running.out).split())[-300:]}"
            )
        return running

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
        """DrillFailed where it does not happen in time."""
        end = time.monotonic() + patience_s
        while not is_so():
            if time.monotonic() > end:
                raise DrillFailed(what, why=f"did not come to be within {patience_s:g} s")
            for running in self._running:
                running.has_ended()  # reaped
            time.sleep(0.02)

    def _write(self, line: str, at: float | None = None) -> None:
        at = self._clock() if at is None else at
        with (self.folder / TRANSCRIPT).open("a", encoding="utf-8") as log:
            log.write(f"{at:.6f} {' '.join(line.splitlines())}\n")


HELD_S = 1.5  # how long a pause is kept up: longer than anything takes to obey
LEASE_S = 2.0
POLICY, SERVED = "drill", "served"
ADDRESS = re.compile(r"http://\S+/v1")
DRIVEN = "another process drives it"  # what a resume is told until the lease of the dead one has run out
WHY = "a drill"
PRACTICE = "practice.json"  # the config of a run that learns


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What runs while it happens."""

    tasks: int
    seconds: float  # of one task
    workers: int = 8

    def config(self) -> dict[str, Any]:
        # Of different length, so that they do not all end at once: half to three halves of it, evenly spread.
        lengths = [round(self.seconds * (0.5 + (n * 0.618034) % 1.0), 4) for n in range(self.tasks)]
        tasks = [{"prompt": f"task {n}", "expected": f"task {n}", "seconds": s} for n, s in enumerate(lengths)]
        pace = {"heartbeat_interval_ms": 200, "lease_secs": LEASE_S, "retry_initial_ms": 10, "retry_max_ms": 100}
        agent = f"{__name__}:busy"
        return {"optimize": tasks, "agent": agent, "worker_count": self.workers, "max_attempts": 1000, **pace}


async def busy(task: Any, context: Context) -> str:
    """The agent of the drills: works for as long as its task says, in steps on record, and knows the answer."""
    for step in range(2):
        await asyncio.sleep(float(task["seconds"]) / 2)
        context.trace.event(f"step {step}")
    return str(task["prompt"])


def perform(
    kind: str,
    folder: Path,
    *,
    quick: bool,
    clock: Clock,
    say: Callable[[str], None],
    limits: Mapping[str, float] = LIMITS,
    practice: Mapping[str, Any] | None = None,
    minutes: float = 120.0,
    cpu_share: float | None = None,
) -> Path:
    """Go through with a drill in an empty folder; where its artifact lies. Broken: that was not possible.

    `practice` are the agent, the model and the tasks of a run that learns, for drills that kill one in each phase.
    """
    began = clock()
    with Scratch(folder, clock=clock, say=say, practice=practice, minutes=minutes, cpu_share=cpu_share) as scratch:
        story = DRILLS[kind](scratch, quick)
    return write_up(kind, folder, story, scratch.marks, limits, began=began)


def crash(scratch: Scratch, quick: bool) -> Story:
    """Kills the working driver with -9, several times; and once in each phase of a learning run."""
    load = Load(tasks=80 if quick else 1200, seconds=0.05)
    run, driver = _loaded(scratch, load)
    times = 1 if quick else 3
    killed = ""
    for number in range(1, times + 1):
        _until(scratch, run, load.tasks * number // (times + 2))
        if number == 1:
            _manifest(scratch, run, driver)
        killed = str(scratch.kill(driver).facts["command"])
        driver = _taken_up(scratch, run)
    story = _ended(scratch, run, driver, killed)
    if not quick:
        if scratch.practice is not None:
            _phases(scratch, scratch.practice)
        _serving(scratch)
    return story


def _phases(scratch: Scratch, practice: Mapping[str, Any]) -> None:
    """Kills a learning run while it practises, learns and proves."""
    proof = {"seeds": 2, "batch": 8, "reward_range": [0, 1.1]}
    block = {"policy": POLICY, "iterations": 1, "steps": 2, "step_tasks": 4, "samples": 4, "prove": proof}
    config = {**practice, "worker_count": 8, "lease_secs": 5.0, "improve": block}
    write(scratch.folder / PRACTICE, config)
    driver = scratch.begin("improve", PRACTICE, "--store", str(scratch.store))
    scratch.wait("the run that learns begins", lambda: driver.has_ended() or _newest(scratch).kind == "improve")
    run = _newest(scratch).id
    for phase in PHASES:
        _reach(scratch, run, driver, phase)
        scratch.kill(driver, run=run, phase=phase)
        driver = _taken_up(scratch, run, "improve")
    if scratch.end(driver, 900.0) not in (0, 1):  # a gate that stays closed is no accident
        raise _failed(driver)
    scratch.mark("ended", run=run)


def _serving(scratch: Scratch) -> None:
    """Kills an answering service with a canary, and starts it again."""
    _two_versions(scratch, SERVED)
    _past_the_gate(scratch, f"{SERVED}@2", Stage.CANARY, share=50)
    served, address = _served(scratch, SERVED)
    with _callers(scratch, SERVED, address) as callers:
        _answered(scratch, callers)
        scratch.mark("service killed", pid=served.pid, command=f"kill -9 {served.pid}", policy=SERVED)
        served.kill()
    served, address = _served(scratch, SERVED)
    with _callers(scratch, SERVED, address) as callers:
        _answered(scratch, callers)
    served.kill()
    scratch.mark("asked", policy=SERVED)


def _two_versions(scratch: Scratch, policy: str) -> None:
    """A policy with two versions, the first of them live."""
    store = str(scratch.store)
    for source in ("sprout", "sprout-weak"):
        scratch.call("release", "add", source, "--policy", policy, "--store", store)
    scratch.call("release", "promote", f"{policy}@1", "--why", WHY, "--store", store)


def _past_the_gate(scratch: Scratch, release: str, to: Stage, share: int | None = None) -> None:
    with open_store(str(scratch.store)) as opened:
        by: dict[str, Any] = {"who": "drill", "why": "past the gate"}
        opened.releases.move(release, to, expect=Stage.CANDIDATE, share=share, now=time.time(), **by).result()


def _answered(scratch: Scratch, callers: Callers) -> None:
    """Waits until every caller got some answers."""
    scratch.wait(
        "everybody is answered", lambda: sum(n for by, n in callers.answered.items() if by) >= 20 * callers.many
    )


def _reach(scratch: Scratch, run: str, driver: Running, phase: str) -> None:
    scratch.wait(f"it is {phase}", lambda: driver.has_ended() or PHASES[phase](scratch, run), 600.0)
    if driver.has_ended():
        raise DrillFailed(driver.line, why=f"ended with {driver.code} before it was {phase}: {driver.err[-300:]}")


def _open(scratch: Scratch, run: str, split: str) -> tuple[int, int]:
    """Open rollouts of the run, and finished ones of a split."""
    with scratch.opened() as store:
        counts = store.views.counts(run)
        rewards = store.views.rewards(run)
    return sum(counts[state] for state in OPEN), rewards[split].total if split in rewards else 0


def _is_learning(scratch: Scratch, run: str) -> bool:
    """Its practice is done, and the update from it is not recorded yet."""
    with scratch.opened() as store:
        steps = sum("learning_s" in step.body for step in store.steps.of_run(run))
    left, done = _open(scratch, run, "train")
    return left == 0 and done > 0 and steps < 2 and done == (steps + 1) * 16


def _is_proving(scratch: Scratch, run: str) -> bool:
    left, begun = _open(scratch, run, "val")
    return left > 0 and begun > 0


PHASES: Mapping[str, Callable[[Scratch, str], bool]] = {
    "practising": lambda scratch, run: _open(scratch, run, "train")[0] > 0,
    "learning": _is_learning,
    "proving": _is_proving,
}


def _newest(scratch: Scratch) -> RunRecord:
    with scratch.opened() as store:
        return store.runs.newest(most=1)[0]


def disk(scratch: Scratch, quick: bool) -> Story:
    """The disk is full in the middle of a run, by the kernel's limit on file sizes; then there is space again."""
    load = Load(tasks=80 if quick else 600, seconds=0.05)
    run, driver = _loaded(scratch, load)
    _until(scratch, run, load.tasks // 4)
    _manifest(scratch, run, driver)
    unlimited = resource.RLIM_INFINITY
    command = f"prlimit --pid {driver.pid} --fsize=4096:"
    scratch.mark("stopped", pid=driver.pid, command=command)
    resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (4096, unlimited))  # a page: some for the last words
    scratch.end(driver)
    return _ended(scratch, run, _taken_up(scratch, run), command)


def upgrade(scratch: Scratch, quick: bool) -> Story:
    """The program of an earlier version is killed in the middle of a run; the new one brings its store up to date,
    is itself killed while it does, does it again, and takes the run up."""
    load = Load(tasks=80 if quick else 600, seconds=0.05)
    run, driver = _loaded(scratch, load)
    _until(scratch, run, load.tasks // 4)
    _manifest(scratch, run, driver)
    killed = scratch.kill(driver)
    store = str(scratch.store)
    scratch.call("store", "export", "--store", store, "--output", playbook.BEFORE, "--json")
    earlier = set_back(store)
    scratch.mark("earlier", schema=earlier)
    refused = scratch.begin("runs", "--store", store)
    if scratch.end(refused) == 0:
        raise DrillFailed("holdfast run list", why="a store of an earlier schema was taken for one of today's")
    for number in range(1 if quick else 3):
        _interrupted(scratch, after_s=0.005 * number)
    done = json.loads(scratch.call("store", "migrate", "--store", store, "--json").out)
    scratch.mark("upgraded", before=earlier, after=done["after"])
    scratch.call("store", "export", "--store", store, "--output", playbook.AFTER, "--json")
    return _ended(scratch, run, _taken_up(scratch, run), str(killed.facts["command"]))


def _interrupted(scratch: Scratch, after_s: float) -> None:
    """Kills a migration once it has the store open, unless it is over by then."""
    half = scratch.begin("store", "migrate", "--store", str(scratch.store))
    scratch.wait("the migration begins", lambda: half.has_ended() or half.has_open(scratch.store))
    if not half.has_ended(after_s):
        scratch.mark("interrupted", pid=half.pid, command=f"kill -9 {half.pid}")
        half.kill()


def pause(scratch: Scratch, quick: bool) -> Story:
    """Pauses, resumes, freezes, resumes and cancels a working run."""
    load = Load(tasks=200 if quick else 600, seconds=0.5)
    run, driver = _loaded(scratch, load)
    _until(scratch, run, 10)
    store = str(scratch.store)

    def order(action: str, *more: str) -> None:
        scratch.call("control", action, run, "--why", WHY, "--store", store, *more)

    for mode in ("drain", "freeze"):
        order("pause", "--mode", mode)
        scratch.wait("nothing runs", lambda: _counts(scratch, run)[RolloutState.RUNNING] == 0)
        time.sleep(HELD_S)
        scratch.mark("held", mode=mode)
        done = _counts(scratch, run)[RolloutState.SUCCEEDED]
        order("resume")
        _until(scratch, run, done + load.workers)
    order("cancel")
    scratch.end(driver)
    return Story(run=run)


def rollback(scratch: Scratch, quick: bool) -> Story:
    """An unproved version becomes live while callers are answered, and is rolled back."""
    store, least = str(scratch.store), 20 if quick else 200
    _two_versions(scratch, POLICY)
    _, address = _served(scratch, POLICY)
    with _callers(scratch, POLICY, address) as callers:
        scratch.wait("it answers", lambda: callers.answered[f"{POLICY}@1"] >= least)
        _past_the_gate(scratch, f"{POLICY}@2", Stage.LIVE)  # that is the accident
        scratch.mark("slipped through", version=f"{POLICY}@2")
        scratch.wait("the wrong one answers", lambda: callers.answered[f"{POLICY}@2"] >= least)
        before = callers.answered[f"{POLICY}@1"]
        scratch.call("control", "rollback", POLICY, "--why", WHY, "--store", store)
        end = time.monotonic() + HELD_S
        scratch.wait(
            "the right one answers again",
            lambda: callers.answered[f"{POLICY}@1"] >= before + least and time.monotonic() > end,
        )
    scratch.mark("asked", requests=callers.answered.total())
    return Story(run=None)


ROOM = re.compile(r"http://[^\s/]+")
JUMP_S = (90.0, 3 * 3600.0)  # by which a clock is moved, either way
LOOK_S = 10.0  # between two looks at the memory of the room


class SoakDrill:
    """Runs one after the other, a service that is asked and a room that is looked at, with an accident every little
    while, until the time is over. Only the room lives all along: its memory must not grow."""

    def __init__(self, scratch: Scratch, rng: random.Random) -> None:
        self._scratch, self._rng = scratch, rng
        self._looked_at = -LOOK_S
        self._began, self._began_cpu_s = time.monotonic(), _cpu_s()
        _two_versions(scratch, SERVED)
        self._room = scratch.begin("serve", "--port", "0", "--store", str(scratch.store))
        scratch.wait("the room is up", lambda: self._room.has_ended() or ROOM.search(self._room.out) is not None)
        match = ROOM.search(self._room.out)
        if match is None:
            raise _failed(self._room)
        self._health = f"{match.group()}/healthz"

    def go_on(self, minutes: float, practice: Mapping[str, Any] | None) -> str:
        """The id of its last run."""
        end, run, number = time.monotonic() + 60.0 * minutes, "", 0
        while time.monotonic() < end:
            number += 1
            if practice is not None and number % 10 == 2:
                _phases(self._scratch, practice)
            run = self._one_run(number)
            self._rest(end)
        self._look(at_once=True)
        return run

    def _rest(self, end: float) -> None:
        """Until the commands that have ended used no more than their share of a core since the soak began."""
        began, used_s = time.monotonic(), _cpu_s() - self._began_cpu_s
        until = min(end, began + pause_s(used_s, began - self._began, self._scratch.cpu_share))
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(1.0, left))
            self._look()
        self._scratch.mark("rested", seconds=round(time.monotonic() - began, 1), cpu_s=round(used_s, 1))

    def _one_run(self, number: int) -> str:
        scratch, load = self._scratch, Load(tasks=480, seconds=0.25)
        served, address = _served(scratch, SERVED)
        run, driver = _loaded(scratch, load)
        if number == 1:
            _until(scratch, run, 1)
            _manifest(scratch, run, driver)
        with _callers(scratch, SERVED, address):
            for share in sorted(self._rng.uniform(0.1, 0.9) for _ in range(3)):
                _until(scratch, run, int(load.tasks * share))
                self._look()
                driver = self._accident(run, driver, served)
        scratch.mark("service killed", pid=served.pid, command=f"kill -9 {served.pid}", policy=SERVED)
        served.kill()
        if scratch.end(driver) != 0:
            raise _failed(driver)
        scratch.mark("ended", run=run)
        return run

    def _accident(self, run: str, driver: Running, served: Running) -> Running:
        """Killed, paused for longer than its leases last, without room on the disk, or its clock moved."""
        scratch, kind = self._scratch, self._rng.choice(("kill", "kill", "pause", "disk", "clock"))
        if driver.has_ended():
            return driver
        if kind == "clock":
            return self._jump(run, driver, served)
        if kind == "pause":
            scratch.mark("paused", pid=driver.pid, command=f"kill -STOP {driver.pid}")
            os.kill(driver.pid, signal.SIGSTOP)
            time.sleep(1.5 * LEASE_S)
            os.kill(driver.pid, signal.SIGCONT)
            return driver
        if kind == "disk":
            command = f"prlimit --pid {driver.pid} --fsize=4096:"
            scratch.mark("stopped", pid=driver.pid, command=command)
            resource.prlimit(driver.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            scratch.end(driver)
        else:
            scratch.kill(driver, run=run)
        return _taken_up(scratch, run)

    def _jump(self, run: str, driver: Running, served: Running) -> Running:
        """Moves the clocks of driver and service, each for itself, for longer than a lease lasts, and back. Half of the
        drivers are killed before: what they wrote lies hours off, and the next one has the true time."""
        scratch = self._scratch
        for name, running in (("driver", driver), ("service", served)):
            seconds = round(self._rng.choice((-1.0, 1.0)) * self._rng.uniform(*JUMP_S))
            scratch.mark("clock moved", of=name, pid=running.pid, seconds=seconds)
            running.move_clock(seconds)
        time.sleep(1.5 * LEASE_S)
        served.move_clock(0.0)
        if self._rng.random() < 0.5 and not driver.has_ended():
            scratch.kill(driver, run=run)
            return _taken_up(scratch, run)
        driver.move_clock(0.0)
        return driver

    def _look(self, *, at_once: bool = False) -> None:
        """Ask the room how it is, and note how much memory it has."""
        if time.monotonic() - self._looked_at < LOOK_S and not at_once:
            return
        self._looked_at = time.monotonic()
        with urllib.request.urlopen(self._health, timeout=PATIENCE_S) as answer:
            answer.read()
        pages = int(Path(f"/proc/{self._room.pid}/statm").read_text().split()[1])
        self._scratch.mark("memory", room_mb=round(pages * resource.getpagesize() / 2**20, 1))


def pause_s(used_s: float, elapsed_s: float, share: float | None) -> float:
    """How long to rest until what was used is that share of the time; None: there is no limit."""
    return 0.0 if share is None else max(0.0, used_s / share - elapsed_s)


def _cpu_s() -> float:
    """Of this process and of what it started and has seen ending."""
    return sum(os.times()[:4])


def soak(scratch: Scratch, quick: bool) -> Story:
    """Hours of collecting, learning, serving and looking, with kills, pauses, full disks and clocks that jump."""
    seed = random.SystemRandom().randrange(10**6)
    scratch.mark("seed", seed=seed)
    minutes = 1.0 if quick else scratch.minutes
    run = SoakDrill(scratch, random.Random(seed)).go_on(minutes, None if quick else scratch.practice)
    return Story(run=run, crash="kill -9", restart=f"holdfast optimize --resume {run}")


DRILLS: Mapping[str, Callable[[Scratch, bool], Story]] = {
    "crash": crash,
    "rollback": rollback,
    "pause": pause,
    "disk": disk,
    "upgrade": upgrade,
    "soak": soak,
}


def _served(scratch: Scratch, policy: str) -> tuple[Running, str]:
    """Starts a service; returns it with its address."""
    words = ("--port", "0", "--no-record", "--no-guard", "--no-holdback", "--store", str(scratch.store))
    served = scratch.begin("release", "serve", policy, *words)
    scratch.wait("the service is up", lambda: served.has_ended() or ADDRESS.search(served.out) is not None)
    match = ADDRESS.search(served.out)
    if match is None:
        raise DrillFailed(served.line, why=f"did not begin: {served.err[-300:]}")
    return served, match.group()


def _callers(scratch: Scratch, policy: str, address: str) -> Callers:
    return Callers(address=address, policy=policy, path=scratch.folder / playbook.ANSWERS, clock=time.time)


def _loaded(scratch: Scratch, load: Load) -> tuple[str, Running]:
    """Starts a run; returns its id and its driver."""
    write(scratch.folder / CONFIG, load.config())
    driver = scratch.begin("optimize", "--config", CONFIG, "--store", str(scratch.store))
    status = scratch.folder / "status.json"
    before = status.stat().st_mtime_ns if status.is_file() else 0  # of an earlier run
    scratch.wait(
        "the run begins", lambda: driver.has_ended() or (status.is_file() and status.stat().st_mtime_ns > before)
    )
    if driver.has_ended():
        raise _failed(driver)
    run = str(json.loads(status.read_text(encoding="utf-8"))["run_id"])
    scratch.mark("under load", run=run, workers=load.workers)
    return run, driver


def _counts(scratch: Scratch, run: str) -> Mapping[RolloutState, int]:
    with scratch.opened() as store:
        return store.views.counts(run)


def _until(scratch: Scratch, run: str, done: int) -> None:
    with scratch.opened() as store:  # once: opening is most of what a look costs
        scratch.wait(f"{done} rollouts done", lambda: store.views.counts(run)[RolloutState.SUCCEEDED] >= done)


def _manifest(scratch: Scratch, run: str, driver: Running) -> None:
    """Writes the state of the run just before the accident."""
    with scratch.opened() as store:
        counts, found = store.views.counts(run), encode(store.runs.get(run))
    found.pop("settings")
    done = counts[RolloutState.SUCCEEDED]
    rollouts = {str(state): n for state, n in counts.items()}
    payload = {"schema_version": 1, "run": found, "pid": driver.pid, "succeeded": done, "rollouts": rollouts}
    write(scratch.folder / playbook.MANIFEST, payload)


def _taken_up(scratch: Scratch, run: str, command: str = "optimize") -> Running:
    """Resumes the run as soon as the lease of the dead driver has run out."""
    end = time.monotonic() + PATIENCE_S
    while True:
        driver = scratch.begin(command, "--resume", run, "--store", str(scratch.store))
        with scratch.opened() as store:  # once: opening is most of what a look costs
            is_so = partial(_is_taken_up, store, run, driver, scratch.marks[-1].at)
            scratch.wait("the run is taken up", is_so)
        if not driver.has_ended() or driver.code == 0:
            return driver
        scratch.end(driver)
        if DRIVEN not in driver.err or time.monotonic() > end:
            raise _failed(driver)
        time.sleep(0.2)


def _is_taken_up(store: Store, run: str, driver: Running, since: float) -> bool:
    """Whether a driver has resumed the run since then, or this one has ended."""
    return driver.has_ended() or any(
        "resume" in entry.body and entry.at > since for entry in store.ledger.entries(run=run) if entry.kind == "run"
    )


def _ended(scratch: Scratch, run: str, driver: Running, accident: str) -> Story:
    if scratch.end(driver) != 0:
        raise _failed(driver)
    scratch.mark("ended", run=run)
    return Story(run=run, crash=accident, restart=driver.line)


def _failed(driver: Running) -> DrillFailed:
    return DrillFailed(driver.line, why=f"ended with {driver.code}: {driver.err[-300:]}")
