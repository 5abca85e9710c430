"""Folders as drills leave them, made in a moment: every time in them is told, so that figures can be worked by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.run import DesiredState, RunState
from holdfast.operate import playbook
from holdfast.operate.drills import Scratch
from holdfast.operate.playbook import CONFIG, LIMITS, STORE, Story, write, write_up
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.operate.stage import Line
from tests.store.scene import Scene, begin

NOW = 1_000_000.0


def crashed(folder: Path, *, loses: bool = False, steps: Sequence[int] = (), served: str = "") -> Path:
    """Four tasks: two done, then the driver is killed; 8 s later another takes it up, 30 s later the rest is done."""
    folder.mkdir(parents=True)
    clock = Clock(NOW)
    with open_store(str(folder / STORE)) as store:
        scene = Scene(store, clock, begin(store, clock))
        scratch = Scratch(folder, clock=lambda: clock.now, say=lambda text: None)
        tasks = ("a", "b", "c", "d")
        write(folder / CONFIG, {"optimize": list(tasks) + (["lost"] if loses else [])})
        scene.enqueue(*tasks)
        held = scene.claims(4)
        clock.advance(1.0)
        for one in held[:2]:
            scene.finish(one, AttemptState.SUCCEEDED, reward=1.0)
        was = {"id": scene.run, "state": "running"}
        write(folder / playbook.MANIFEST, {"run": was, "succeeded": 2})
        clock.advance(1.0)
        scratch.mark("killed", pid=7, command="kill -9 7")
        clock.advance(8.0)
        store.runs.resume(scene.run, who="drill", now=clock.now, silent_s=5.0).result()
        clock.advance(29.0)
        scene.sweep()
        clock.advance(1.0)
        for one in scene.claims(4):
            scene.finish(one, AttemptState.SUCCEEDED, reward=1.0)
        store.runs.end(scene.run, RunState.COMPLETED, who="drill", now=clock.now).result()
        if steps:
            _learnt(store, clock, scratch, steps)
        if served:
            _served(folder, clock, scratch, served)
    told = Story(run=scene.run, crash="kill -9 7", restart=f"holdfast run start --resume {scene.run}")
    return write_up("crash", folder, told, scratch.marks, LIMITS, began=NOW)


def _learnt(store: Store, clock: Clock, scratch: Scratch, steps: Sequence[int]) -> None:
    """Another run, killed while it learns and taken up 8 s later; these steps of it are on record."""
    run = begin(store, clock, salt="b")
    clock.advance(1.0)
    scratch.mark("killed", pid=8, command="kill -9 8", run=run, phase="learning")
    clock.advance(8.0)
    store.runs.resume(run, who="drill", now=clock.now, silent_s=5.0).result()
    for place, step in enumerate(steps, 1):
        if step == place:
            store.steps.add(run, f"{step}/learn", {"phase": "practice"}, function="learn", now=clock.now).result()
        else:  # no way of the store's own leaves one out
            body = {"step": step, "sha256": "0" * 64}
            store.ledger.append("step", body, who="driver", now=clock.now, run=run).result()
    store.runs.end(run, RunState.COMPLETED, who="drill", now=clock.now).result()


def _served(folder: Path, clock: Clock, scratch: Scratch, versions: str) -> None:
    """A service that is killed after the first half of its answers, each by a version with a letter, 2 s apart.

    Two callers take turns.
    """
    lines = []
    for place, version in enumerate(versions):
        if place == len(versions) // 2:
            scratch.mark("service killed", pid=9, command="kill -9 9", policy="served")
        at = clock.advance(2.0)
        lines.append({"caller": place % 2, "began": at, "ended": at, "version": version, "error": None})
    (folder / playbook.ANSWERS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def paused(folder: Path, *, drains: bool = True, frozen_s: float = 0.25) -> Path:
    """Pause, resume, freeze, resume, cancel, with two or three attempts under way at each of them."""
    folder.mkdir(parents=True)
    clock = Clock(NOW)
    with open_store(str(folder / STORE)) as store:
        scene = Scene(store, clock, begin(store, clock))
        scratch = Scratch(folder, clock=lambda: clock.now, say=lambda text: None)
        scene.enqueue("a", "b", "c", "d", "e")

        def want(wanted: DesiredState, after_s: float) -> None:
            store.runs.want(scene.run, wanted, who="drill", why="a drill", now=clock.advance(after_s)).result()

        held = scene.claims(2)
        want(DesiredState.PAUSED, 1.0)
        for one in held:
            clock.advance(0.25)
            scene.finish(one, AttemptState.SUCCEEDED if drains else AttemptState.RELEASED)
        scratch.mark("held", mode="drain")
        want(DesiredState.RUNNING, 2.0)
        clock.advance(0.125)
        held = scene.claims(2)
        want(DesiredState.FROZEN, 1.0)
        clock.advance(frozen_s)
        for one in held:
            scene.finish(one, AttemptState.RELEASED)
        want(DesiredState.RUNNING, 2.0)
        clock.advance(0.5)
        scene.claims(3)
        want(DesiredState.CANCELLED, 1.0)
        store.queue.cancel_open(scene.run, now=clock.now, why="a drill").result()
        store.runs.end(scene.run, RunState.CANCELLED, who="drill", now=clock.advance(0.75)).result()
    return write_up("pause", folder, Story(run=scene.run), scratch.marks, LIMITS, began=NOW)


GOOD, BAD = "sprout@1", "sprout@2"
ANSWERS = ((3.5, GOOD), (4.2, BAD), (4.6, BAD), (4.8, BAD), (5.25, GOOD), (6.5, GOOD), (7.0, GOOD))  # began, by whom


def rolled_back(folder: Path, answers: Sequence[tuple[float, str]] = ANSWERS, **last: Any) -> Path:
    """The second version becomes live at 4, and is taken back at 5; each answer takes a quarter of a second."""
    folder.mkdir(parents=True)
    with open_store(str(folder / STORE)) as store:
        line = Line(store, 2)
        line.go(2, Stage.LIVE)
        line.back(2, 1)
    scratch = Scratch(folder, clock=lambda: 8.0, say=lambda text: None)
    scratch.mark("asked", requests=len(answers))
    rows = [{"began": at, "ended": at + 0.125, "version": by, "error": None} for at, by in answers]
    rows[-1] |= last
    (folder / playbook.ANSWERS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return write_up("rollback", folder, Story(run=None), scratch.marks, LIMITS, began=8.0)
