"""kill -9 of `holdfast optimize` at random instants, from its first moment on, then `--resume` until it is completed.

Its agents run as tasks in one round and as processes in the next; those must not outlive it. What the store held as
succeeded after a kill is still so at the end, and status.json is whole at every moment and never ahead of the store.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path
from typing import Any

from holdfast.operate.drills import Running
from tests.drills import picture
from tests.drills.crew import Crew, wait_until
from tests.drills.invariants import Findings
from tests.drills.picture import Picture
from tests.drills.scene import Setting, Tally, verdict

KINDS = {  # agent, workers, tasks
    "tasks": ("tests.drills.agents:busy", 4, 900),
    "processes": ("tests.drills.agents:plain", 2, 450),
}
TOO_SOON = "another process drives it"
CPU_S, PATIENCE_S = 60.0, 900.0  # of processor, then of any time: on a busy machine two minutes are over in no time


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="main process killed")
    kills, kinds = (1, list(KINDS)) if setting.quick else (10, list(KINDS) * 2)
    for number, kind in enumerate(kinds, 1):
        folder = setting.folder / f"round-{number}"
        folder.mkdir()
        story = Story(folder, kind, KINDS[kind][2] // (10 if setting.quick else 1))
        with Crew(folder) as crew:
            while not story.is_over:
                story.live(crew, setting.rng if story.kills < kills else None)
        setting.say(f"round {number} of {len(kinds)}: {story.kills} kills of a run with {kind}")
        tally.events += story.kills
        tally.kills += story.kills
        tally.notes.append(f"{kind}: {story.kills} kills, {story.lives} starts until completed")
        tally.add(story.verdict())
    return tally


class Story:
    """One run of `holdfast optimize` over all of its lives."""

    def __init__(self, folder: Path, kind: str, tasks: int) -> None:
        self.folder, self.url, self.kind, self.tasks = folder, str(folder / "store.db"), kind, tasks
        self.kills, self.lives, self.is_over = 0, 0, False
        self._problems: list[str] = []
        self._won: dict[str, tuple[Any, Any]] = {}  # what was seen as succeeded, by which attempt, with which reward
        (folder / "config.json").write_text(json.dumps(self._settings()))

    def _settings(self) -> dict[str, Any]:
        return {
            "optimize": [{"prompt": f"task {n}", "expected": f"task {n}"} for n in range(self.tasks)],
            "resources": {"system_prompt": "hold fast"},
            "agent": KINDS[self.kind][0],
            "worker_kind": self.kind,
            "worker_count": KINDS[self.kind][1],
            "max_attempts": 10_000,
            "retry_initial_ms": 10,
            "retry_max_ms": 100,
            "poll_interval_ms": 20,
            "heartbeat_interval_ms": 100,
            "lease_secs": 0.5,
        }

    def live(self, crew: Crew, chance: random.Random | None) -> None:
        """Start or resume it, and kill it at a random instant; None: let it end by itself."""
        run = self._run()
        how = ("--config", str(self.folder / "config.json")) if run is None else ("--resume", run)
        began = time.time()
        command = crew.command("optimize", *how, "--store", self.url, "--json")
        self.lives += 1
        if chance is not None:
            within_s = chance.uniform(0.0, 1.0)
            if chance.random() < 0.8:  # the others may well die before they have begun
                wait_until(lambda: command.has_ended() or self._has_worked_since(began), 60.0)
            is_over = command.has_ended(within_s)
        else:
            wait_until(lambda: command.has_ended(1.0) or _cpu_s(command.pid) > CPU_S, PATIENCE_S)
            is_over = command.has_ended()
        if is_over:
            self._ended(command)
            return
        command.kill()
        self.kills += 1
        self._problems += crew.leftovers()
        self._look()
        if chance is None:
            self._give_up(f"did not end within {CPU_S:g} s of processor, or {PATIENCE_S:g} s")

    def _ended(self, command: Running) -> None:
        if command.code == 5 and TOO_SOON in command.err:
            self.lives -= 1
            time.sleep(0.1)
        elif command.code != 0:
            self._give_up(f"ended with {command.code}: {command.err or command.out}")
        else:
            self.is_over = True
            self._look()

    def _has_worked_since(self, began: float) -> bool:
        status = self.folder / "status.json"
        if not status.exists() or status.stat().st_mtime < began:
            return False
        return int(json.loads(status.read_text())["succeeded"]) > len(self._won)

    def _run(self) -> str | None:
        found = self._picture()
        return found.tables["runs"][0]["id"] if found and found.tables["runs"] else None

    def _picture(self) -> Picture | None:
        """None while the first life was too short to make a store."""
        with picture.connected(self.url) as connection:
            made = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'alembic_version'").fetchone()[0]
        return picture.take(self.url) if made else None

    def _look(self) -> None:
        """What a kill leaves must be whole, and may only grow."""
        found = self._picture()
        rollouts = found.rollouts if found else {}
        won = {name: (row["final"], row["reward"]) for name, row in rollouts.items() if row["status"] == "succeeded"}
        gone = [name for name, how in self._won.items() if won.get(name) != how]
        self._problems += [f"{name} had succeeded, and after a kill has not, or otherwise" for name in gone]
        self._won = won
        status = self.folder / "status.json"
        if status.exists():
            said = json.loads(status.read_text())
            if said["succeeded"] > len(won):
                self._problems.append(f"status.json says {said['succeeded']} succeeded, the store has {len(won)}")

    def _give_up(self, why: str) -> None:
        self._problems.append(f"holdfast optimize {why}")
        self.is_over = True

    def verdict(self) -> Findings:
        if self._picture() is None:  # nothing more can be said: its tables are not there to be asked
            return Findings(other=[*self._problems, "no store was made"])
        findings = verdict(self.url, self.folder, self._problems)
        findings.lost += [f"{self.tasks - findings.rollouts} tasks were never enqueued"] * (
            findings.rollouts < self.tasks
        )
        said = json.loads((self.folder / "status.json").read_text())
        if (said["run_state"], said["succeeded"]) != ("completed", self.tasks):
            findings.other.append(f"at the end status.json says {said['run_state']}, {said['succeeded']} succeeded")
        return findings


def _cpu_s(pid: int) -> float:
    """Of a process and the children that it has waited for; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
