"""Where a drill plays: a fresh store with one run, a crew, and the verdict once it is over."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.contracts.run import DesiredState, RunState
from holdfast.store.check import check
from holdfast.store.store import Store, open_store
from tests.drills import journal, picture
from tests.drills.crew import Crew, wait_until
from tests.drills.invariants import Findings, examine

SHOWN = 5  # problems of one round that are listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a drill is given."""

    folder: Path  # empty, its own
    rng: random.Random
    quick: bool
    fresh: Callable[[], str]  # the address of a store that is not there yet
    say: Callable[[str], None]  # progress
    server: str | None = None  # the URL of the Postgres server, for who means to kill it


@dataclass(slots=True, kw_only=True)
class Tally:
    """What a drill gives back: a row of the table, and what there is to say beyond it."""

    fault: str
    rounds: int = 0
    events: int = 0  # kills, stops, tears, jumps
    kills: int = 0  # of them, kill -9 of a process at work
    rollouts: int = 0
    lost: int = 0
    twice: int = 0
    stale: int = 0
    chain: int = 0  # ledger entries whose chain was recomputed
    written_off: int = 0  # attempts whose worker fell silent
    unanswered: int = 0  # calls whose process died before the answer
    tried_stale: int = 0  # writes begun after their attempt was lost
    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        return not (self.lost or self.twice or self.stale or self.problems)

    def add(self, findings: Findings) -> None:
        """A round is over."""
        self.rounds += 1
        for name in ("rollouts", "lost", "twice", "stale", "chain", "written_off", "unanswered", "tried_stale"):
            found = getattr(findings, name)
            setattr(self, name, getattr(self, name) + (found if isinstance(found, int) else len(found)))
        self.problems += [f"round {self.rounds}: {text}" for text in findings.problems[:SHOWN]]
        if len(findings.problems) > SHOWN:
            self.problems.append(f"round {self.rounds}: … and {len(findings.problems) - SHOWN} more")


@dataclass(slots=True)
class Scene:
    """One round: its store stays open here only for looking and for orders."""

    url: str
    folder: Path
    store: Store
    run: str
    crew: Crew

    def is_done(self) -> bool:
        return self.store.views.is_done(self.run)

    def work_off(self, timeout_s: float = 600.0) -> list[str]:  # a busy machine is no fault
        """Wait until nothing is open, send everybody home, end the run; what did not go as it should."""
        problems = []
        if not wait_until(self.is_done, timeout_s):
            counts = {str(state): n for state, n in self.store.views.counts(self.run).items() if n}
            problems.append(f"not worked off after {timeout_s:g} s: {counts}")
        self.store.runs.want(self.run, DesiredState.DRAINING, who="drill", why="over", now=time.time()).result()
        problems += self.crew.finish()
        self.store.runs.end(self.run, RunState.COMPLETED, who="drill", now=time.time()).result()
        return problems


@contextmanager
def scene(setting: Setting, *, at: str | None = None, queue_limit: int | None = 200) -> Iterator[Scene]:
    """A fresh store with a running run, and its crew; all are gone afterwards but for the files."""
    url = at or setting.fresh()
    folder = setting.folder / f"round-{len(list(setting.folder.glob('round-*'))) + 1}"
    folder.mkdir()
    with open_store(url) as store, Crew(folder) as crew:
        begun = store.runs.begin(
            kind="drill", model_ref="none", settings={}, salt="d", who="drill", now=time.time(), queue_limit=queue_limit
        )
        yield Scene(url, folder, store, begun.result().id, crew)


def verdict(url: str, folder: Path, problems: list[str], *, is_over: bool = True) -> Findings:
    """The journals against the store as plain SQL sees it; then the store's own check, which must agree."""
    findings = examine(journal.read(folder), picture.take(url), is_over=is_over)
    findings.other += problems
    with open_store(url, create=False) as store:
        findings.other += [f"store check, {part.name}: {text}" for part in check(store) for text in part.problems]
    return findings
