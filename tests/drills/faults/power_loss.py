"""Power loss cannot be had here; strace can: no call returns before its transaction is synced to the disk.

A process is traced while it writes, alone and then from many threads that share commits. It marks each answer it gets.
For every answer: the page that carries the call's own name was written to the log, then the frame that commits it, then
a sync of the log began and ended without error, and only then came the mark.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast.store.store import open_store
from tests.drills.crew import ROOT
from tests.drills.roles import task
from tests.drills.scene import Setting, Tally, verdict

WATCHED = "pwrite64,pwritev,pwritev2,write,fdatasync,fsync"
BEGUN = re.compile(r'^(\d+) +(\w+)\((\d+)<([^>]*)>(?:, "((?:\\x[0-9a-f]{2})*)")?')
RESUMED = re.compile(r"^(\d+) +<\.\.\. (\w+) resumed>")
RESULT = re.compile(r"= (-?\d+)(?: [A-Z].*)?$")
FRAME_HEADER = 24  # bytes; the four from the fourth on are not zero in the frame that commits


@dataclass(slots=True)
class Event:
    """One system call; begun and ended are places in the trace."""

    call: str
    path: str
    data: bytes
    begun: int
    ended: int = -1
    result: int = 0


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="power loss (strace)")
    for threads, calls in ((1, 20), (8, 10)) if setting.quick else ((1, 150), (16, 40)):
        folder = setting.folder / f"threads-{threads}"
        folder.mkdir()
        url = str(folder / "store.db")
        answers, syncs, problems = examine(traced(folder, url, str(threads), str(calls)))
        setting.say(f"{threads} threads: {answers} answers, {syncs} syncs")
        tally.notes.append(f"{threads} threads: {answers} answers after {syncs} syncs of the log")
        if answers != threads * calls:
            problems.append(f"{answers} answers in the trace, {threads * calls} were given")
        tally.events += answers
        findings = verdict(url, folder, [], is_over=False)
        findings.lost += problems
        tally.add(findings)
    return tally


def traced(folder: Path, *arguments: str) -> str:
    """The trace of `mark`, run in a process of its own."""
    out = folder / "trace"
    script = f"import sys; from {__name__} import mark; mark(*sys.argv[1:])"
    strace = ["strace", "-f", "-y", "-xx", "-s", "5000", "-e", f"trace={WATCHED}", "-e", "signal=none", "-o", str(out)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [*strace, sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"strace ended with {done.returncode}: {done.stderr}")
    return out.read_text()


def mark(url: str, threads: str, calls: str) -> None:
    """Enqueue from many threads at once; each writes its call's name into a file as soon as it has its answer."""
    marks = os.open(f"{url}.marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with open_store(url) as store:
        begun = store.runs.begin(kind="drill", model_ref="none", settings={}, salt="d", who="drill", now=time.time())
        run = begun.result().id

        def hand(number: int) -> None:
            for call in range(int(calls)):
                name = f"name-{number:03}-{call:05}"
                store.queue.enqueue(run, [task(name)], now=time.time()).result()
                os.write(marks, name.encode())

        hands = [threading.Thread(target=hand, args=(number,)) for number in range(int(threads))]
        for one in hands:
            one.start()
        for one in hands:
            one.join()


def examine(trace: str) -> tuple[int, int, list[str]]:
    """How many answers and syncs there are, and which answers came too early."""
    events = list(_events(trace))
    log = [event for event in events if event.path.endswith("-wal")]
    answers = [event for event in events if event.path.endswith(".marks")]
    syncs = [event for event in log if event.call in ("fsync", "fdatasync") and event.result == 0 and event.ended >= 0]
    writes = [event for event in log if event.call.startswith("pwrite")]
    problems = [text for answer in answers if (text := _unsafe(answer, writes, syncs))]
    return len(answers), len(syncs), problems


def _unsafe(answer: Event, writes: list[Event], syncs: list[Event]) -> str:
    """Why this answer came too early, or nothing."""
    name = answer.data.decode()
    first = next((place for place, write in enumerate(writes) if answer.data in write.data), None)
    if first is None or writes[first].begun > answer.begun:
        return f"{name} was answered before it was in the log"
    commits = (place for place in range(max(0, first - 1), len(writes)) if _commits(writes[place]))
    commit = next(commits, None)
    if commit is None or commit + 1 >= len(writes) or writes[commit + 1].begun > answer.begun:
        return f"{name} was answered before its commit was in the log"
    written = max(writes[commit].ended, writes[commit + 1].ended)
    if not any(sync.begun > written and sync.ended < answer.begun for sync in syncs):
        return f"{name} was answered before its commit was synced"
    return ""


def _commits(write: Event) -> bool:
    return len(write.data) == FRAME_HEADER and any(write.data[4:8])


def _events(trace: str) -> list[Event]:
    """Calls in the order in which they began; one that another thread interrupts stands on two lines."""
    events: list[Event] = []
    open_events: dict[str, Event] = {}
    for place, line in enumerate(trace.splitlines()):
        if begun := BEGUN.match(line):
            thread, call, _, path, data = begun.groups()
            event = Event(call, _text(path), bytes.fromhex((data or "").replace("\\x", "")), place)
            events.append(event)
            if line.endswith("<unfinished ...>"):
                open_events[thread] = event
                continue
        elif resumed := RESUMED.match(line):
            if resumed.group(1) not in open_events:
                continue
            event = open_events.pop(resumed.group(1))
        else:
            continue
        result = RESULT.search(line)
        event.ended, event.result = place, int(result.group(1)) if result else -1
    return events


def _text(path: str) -> str:
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path
