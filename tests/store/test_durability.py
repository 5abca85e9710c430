"""What was answered is on disk: strace sees the fdatasync before the answer, kill -9 takes nothing that was answered.

kill -9 proves process death only; the long version, with other faults, is the drill.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.store.store import open_store
from tests.conftest import Clock, Files
from tests.store.children import start_child
from tests.store.scene import LEASE_S, Scene, begin, once, problems

TRACED = "fdatasync,fsync,write,pwrite64,rename,renameat,renameat2"

ONE_BY_ONE = """
import os, sys
from holdfast.contracts.flag import Flag
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Task
from holdfast.contracts.run import RunState, DesiredState
from holdfast.contracts.trace import Span, SpanKind
from holdfast.contracts.release import Experiment, ServedRequest
from holdfast.store.store import open_store

store = open_store(sys.argv[1])

def told(what, call):
    os.write(2, f"asked {what}\\n".encode())
    answer = call()
    answer = answer.result() if hasattr(answer, "result") else answer
    os.write(2, f"answered {what}\\n".encode())
    return answer

begun = dict(kind="k", model_ref="m", settings={}, salt="s", who="t", now=1.0)
run = told("begin", lambda: store.runs.begin(**begun)).id
store.views.counts(run)
tasks = [Task(name=f"t{n}", input=n) for n in range(3)]
told("enqueue", lambda: store.queue.enqueue(run, tasks, now=1.0))
one, two = (c.attempt for c in told("claim", lambda: store.queue.claim(run, "w", now=1.0, lease_s=9.0, most=2)))
span = Span(seq=1, kind=SpanKind.TELEMETRY, name="s", started_at=1.0)
told("span", lambda: store.traces.add(one, [span], now=1.0))
told("reward", lambda: store.traces.score(one, [RewardTerm(name="n", value=1.0, source="s")], now=1.0))
told("beat", lambda: store.queue.beat(run, [one.token], now=2.0, lease_s=9.0))
told("finish", lambda: store.queue.finish(one, AttemptState.SUCCEEDED, now=2.0, reward=1.0))
told("sweep", lambda: store.queue.sweep(now=99.0))
told("cancel", lambda: store.queue.cancel(f"{run}/t1", now=99.0, why="w"))
told("requeue", lambda: store.queue.requeue(f"{run}/t1", now=99.0))
told("publish", lambda: store.versions.publish({"p": 1}, now=1.0))
told("order", lambda: store.runs.want(run, DesiredState.PAUSED, who="t", why="w", now=1.0))
told("ledger", lambda: store.ledger.append("note", {}, who="t", now=1.0))
told("worker", lambda: store.workers.register("w", host="h", pid=1, slots=1, now=1.0))
told("blob", lambda: store.blobs.put(b"weights", now=1.0))
by = dict(who="t", now=1.0)
source = dict(policy="p", kind=PolicyKind.PROMPT, source="resources:1")
told("release", lambda: store.releases.add(**source, **by))
told("move", lambda: store.releases.move("p@1", Stage.LIVE, expect=Stage.CANDIDATE, why="w", **by))
trial = Experiment(name="t", kind="canary", arms={"a": 0.5, "b": 0.5}, salt="s", created_at=1.0)
told("trial", lambda: store.trials.begin(trial, **by))
told("exposure", lambda: store.trials.expose("t", "u", "a", now=1.0))
told("served", lambda: store.trials.record([ServedRequest(id="r", trial="t", arm="a", unit="u", at=1.0)]))
told("feedback", lambda: store.trials.feedback("r", success=1.0))
told("flag", lambda: store.flags.put(Flag(name="f", variants={"on": True}, off="on"), why="w", **by))
told("end", lambda: store.runs.end(run, RunState.COMPLETED, who="t", now=1.0))
store.close()
"""

TOGETHER = """
import os, sys, threading
from holdfast.contracts.rollout import Task
from holdfast.store.store import open_store

store = open_store(sys.argv[1])
run = store.runs.begin(kind="k", model_ref="m", settings={}, salt="s", who="t", now=1.0).result().id
store.queue.enqueue(run, [], now=1.0).result()

def produce(thread):
    for n in range(20):
        os.write(2, f"asked {thread}-{n}\\n".encode())
        store.queue.enqueue(run, [Task(name=f"{thread}-{n}", input=n)], now=1.0).result()
        os.write(2, f"answered {thread}-{n}\\n".encode())

threads = [threading.Thread(target=produce, args=(t,)) for t in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
store.close()
"""


def traced(script: str, path: str, trace: Path) -> list[str]:
    """What the child did, call by call, each in the place where it had come back."""
    strace = shutil.which("strace")
    assert strace, "strace is not on this machine (make services)"
    options = ["-f", "-y", "-s", "80", "-e", f"trace={TRACED}", "-o", str(trace)]
    done = subprocess.run(
        [strace, *options, sys.executable, "-c", script, path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return list(completed(trace.read_text(encoding="utf-8", errors="replace").splitlines()))


def completed(lines: list[str]) -> Iterator[str]:
    """Calls that others interrupted are put together again."""
    begun: dict[str, str] = {}
    for line in lines:
        process, _, call = line.partition(" ")
        call = call.strip()
        if call.endswith("<unfinished ...>"):
            begun[process] = call.removesuffix("<unfinished ...>").rstrip()
        elif resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            yield begun.pop(process) + resumed.group(1)
        else:
            yield call


def synced(call: str) -> bool:
    return re.match(r"(fdatasync|fsync)\(\d+<[^>]*-wal>\)\s+= 0$", call) is not None


def written(call: str) -> bool:
    return re.match(r"(write|pwrite64)\(\d+<[^>]*-wal>", call) is not None


def between(calls: list[str], what: str) -> list[str]:
    start, end = (
        next(n for n, call in enumerate(calls) if f'"{word} {what}\\n"' in call) for word in ("asked", "answered")
    )
    return calls[start + 1 : end]


def test_no_write_is_answered_before_it_is_on_disk(files: Files, tmp_path: Path) -> None:
    """A blob is on disk before it has its name, and its name before the record."""
    calls = traced(ONE_BY_ONE, files.fresh(), tmp_path / "trace")
    asked = re.findall(r'"asked (\w+)\\n"', "\n".join(calls))
    assert len(asked) == 23
    for what in asked:
        marks = ["w" if written(call) else "s" if synced(call) else "" for call in between(calls, what)]
        assert "".join(marks).endswith("s") and "w" in marks, f"{what}: {between(calls, what)}"
    order = []
    for call in between(calls, "blob"):
        if re.match(r"fsync\(\d+<[^>]*/blobs/../\.[^>]*>\)\s+= 0$", call):
            order.append("content")
        elif re.match(r"rename\w*\(.*/blobs/../.*\)\s+= 0$", call):
            order.append("name")
        elif re.match(r"fsync\(\d+<[^>]*/blobs/..>\)\s+= 0$", call):
            order.append("folder")
        elif synced(call):
            order.append("record")
    assert order == ["content", "name", "folder", "record"]


def test_callers_that_share_a_sync_are_answered_after_it(files: Files, tmp_path: Path) -> None:
    calls = traced(TOGETHER, files.fresh(), tmp_path / "trace")
    asked = re.findall(r'"asked ([\d-]+)\\n"', "\n".join(calls))
    assert len(asked) == 160
    assert [what for what in asked if not any(map(synced, between(calls, what)))] == []
    assert sum(map(synced, calls)) < 160


WORKER = """
import os, sys, threading
from holdfast.contracts.rollout import AttemptState, Task
from holdfast.contracts.trace import Span, SpanKind
from holdfast.store.store import open_store

url, run, first, now = sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4])
store = open_store(url)

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def work(thread):
    for n in range(100_000):
        name = f"{first}-{thread}-{n}"
        store.queue.enqueue(run, [Task(name=name, input=n)], now=now).result()
        say("enqueued", name)
        for claim in store.queue.claim(run, f"w{thread}", now=now, lease_s=30.0).result():
            token = claim.attempt.token
            say("claimed", claim.rollout.name, token)
            span = Span(seq=1, kind=SpanKind.TELEMETRY, name="s", started_at=now)
            store.traces.add(claim.attempt, [span], now=now).result()
            say("traced", claim.rollout.name, token)
            if n % 3:
                store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=now, reward=float(n)).result()
                say("finished", claim.rollout.name, token)

for thread in range(4):
    threading.Thread(target=work, args=(thread,), daemon=True).start()
threading.Event().wait()
"""


def killed(last: str, script: str, *arguments: str) -> list[list[str]]:
    """The words of a child that was killed some time after it had said the last kind of them."""
    child, said = start_child(script, *arguments), ""
    assert child.stdout is not None
    while last not in said:
        said += child.stdout.readline()
    time.sleep(random.uniform(0.0, 0.2))  # any moment will do, and must
    child.send_signal(signal.SIGKILL)
    rest, errors = child.communicate(timeout=60)
    assert (child.returncode, errors) == (-signal.SIGKILL, "")
    return [line.split() for line in (said + rest).splitlines(keepends=True) if line.endswith("\n")]


def test_a_process_that_is_killed_takes_nothing_that_was_answered(url: str, clock: Clock) -> None:
    with open_store(url) as store:
        run = begin(store, clock)
    told = [words for n in "01" for words in killed("finished", WORKER, url, run, n, str(clock.now))]
    with open_store(url) as store:
        scene = Scene(store, clock, run)
        assert problems(store) == []
        rollouts = {r.name: r for r in store.views.rollouts(run, most=1_000_000)}
        attempts = {a.token: a for name in rollouts for a in scene.attempts(name)}
        for what, name, *token in told:
            assert name in rollouts, f"{what} {name}"
            if what != "enqueued":
                assert attempts[int(token[0])].rollout == f"{run}/{name}"
            if what == "traced":
                assert len(store.traces.spans(int(token[0]))) == 1
            if what == "finished":
                assert rollouts[name].status is RolloutState.SUCCEEDED
                assert attempts[int(token[0])].status is AttemptState.SUCCEEDED
        assert {"enqueued", "claimed", "traced", "finished"} == {words[0] for words in told}
        finish_everything(scene)
        assert store.views.counts(run)[RolloutState.SUCCEEDED] == len(rollouts)  # none lost, none twice
        assert problems(store) == []


RELEASER = """
import os, sys
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.store.store import open_store

url, first = sys.argv[1:]
store = open_store(url)
by = dict(who=first, now=1.0)

def say(*words):
    os.write(1, (" ".join(words) + "\\n").encode())

for n in range(100_000):
    given = dict(policy="p", kind=PolicyKind.PROMPT, source=f"shelf:{first}-{n}")
    old, new = store.releases.live("p"), store.releases.add(**given, **by).result()
    store.releases.move(new.id, Stage.LIVE, expect=Stage.CANDIDATE, why="w", **by).result()
    say("live", new.id)
    if old is not None and n % 2:
        store.releases.roll_back("p", failing=new.id, to=old.id, why="w", reasons=(), **by).result()
        say("rolled_back", new.id)
        say("live", old.id)
"""


@once
def test_a_process_that_is_killed_while_it_moves_releases_leaves_one_live(url: str) -> None:
    told: list[list[str]] = []
    for round_ in range(2):
        told += killed("rolled_back", RELEASER, url, str(round_))
        with open_store(url) as store:
            assert problems(store) == []
            (live,) = store.releases.at("p", Stage.LIVE)
            bodies = [entry.body for entry in store.releases.history("p")]
            stages = {body["move"]: "live" for body in bodies if "move" in body}
            stages |= {body["roll_back"]: "rolled_back" for body in bodies if "roll_back" in body}
            assert all(name in stages for _, name in told)  # what was answered is there, with its entry
            taken_back = {name for what, name in told if what == "rolled_back"}
            assert all(store.releases.get(name).stage is Stage.ROLLED_BACK for name in taken_back)
            assert stages[live.id] == "live"
    assert {"live", "rolled_back"} == {words[0] for words in told}


def finish_everything(scene: Scene) -> None:
    """What the dead left behind comes back when their leases are over."""
    scene.clock.advance(LEASE_S)
    while scene.sweep():
        pass
    scene.clock.advance(60)
    while claims := scene.claims(100):
        for pending in [
            scene.store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=scene.clock.now) for claim in claims
        ]:
            pending.result()
