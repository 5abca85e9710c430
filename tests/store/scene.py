"""The scene most tests of the store play in: one run, its tasks, and workers that claim them at the clock's time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest

from holdfast.contracts.commands import Alert, Command, Severity
from holdfast.contracts.commands import Role as Access
from holdfast.contracts.flag import Flag
from holdfast.contracts.judgement import (
    Calibration,
    Doubtful,
    EvalItem,
    Grade,
    Judgement,
    JudgeStatus,
    Label,
    Maker,
    ReviewRequest,
    Role,
)
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import Experiment, PolicyKind, ServedRequest, Stage
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import Attempt, AttemptState, Backoff, Claim, Rollout, RolloutState, Task
from holdfast.contracts.run import DesiredState, RunRecord
from holdfast.contracts.trace import Span, SpanKind
from holdfast.store.admin import ROWS
from holdfast.store.check import check
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture
from tests.conftest import Clock

LEASE_S = 30.0
AT_ONCE = Backoff(initial_s=0.0, cap_s=0.0)
once = pytest.mark.parametrize("places", ["sqlite"], indirect=True)  # what is tested lies above SQL: one engine will do


@contextmanager
def says(kind: type[Exception], text: str) -> Iterator[None]:
    """The block is refused in exactly these words."""
    with pytest.raises(kind) as refused:
        yield
    assert str(refused.value) == text


def problems(store: Store, *parts: str, **how: Any) -> list[str]:
    """What a check finds, in all parts or in these."""
    return [text for part in check(store, **how) for text in part.problems if not parts or part.name in parts]


def count(store: Store, table: str) -> int:
    """How many rows it has."""
    n: int = store.db.one(ROWS[table], {})[0]
    return n


def noted(store: Store, kind: str, run: str | None = None) -> list[Any]:
    """What the ledger says of this kind."""
    return [entry.body for entry in store.ledger.entries(run=run) if entry.kind == kind]


def at_once(call: Callable[[Any], Any], *given: Any) -> list[Any]:
    """The answers of calls in a thread each."""
    with ThreadPoolExecutor(len(given)) as threads:
        return list(threads.map(call, given))


def run_sql(store: Store, *statements: str) -> None:
    """Past our own code, but not past the guards of the database."""
    connection: Any = store.db.engine.connect(read_only=False)
    try:
        for statement in statements:
            connection.execute(statement)
    finally:
        connection.close()


def begin(store: Store, clock: Clock, *, salt: str = "a", queue_limit: int | None = None) -> str:
    run = store.runs.begin(
        kind="optimize", model_ref="m", settings={}, salt=salt, who="test", now=clock.now, queue_limit=queue_limit
    ).result()
    return run.id


def span(seq: int = 1, name: str = "step") -> Span:
    return Span(seq=seq, kind=SpanKind.TELEMETRY, name=name, started_at=1.0, ended_at=2.0)


def signal(name: str = "exact", value: float = 1.0) -> RewardTerm:
    return RewardTerm(name=name, value=value, source="rule:test")


def checkpoint(name: str = "c", **fields: Any) -> Checkpoint:
    given = {"algorithm": "grpo", "policy_version": "p1", "global_step": 1, "episode_count": 8, "created_at": 1.0}
    return Checkpoint(**{**given, "id": name, **fields})


def serving(store: Store, source: str = "shelf:a") -> None:
    """One of each: a live release, a trial with a unit and two requests, a flag."""
    at = {"who": "test", "now": 1.0}
    release = store.releases.add(policy="sprout", kind=PolicyKind.WEIGHTS, source=source, **at).result()
    evidence = store.blobs.put(b"evidence", now=1.0)
    store.releases.move(
        release.id, Stage.LIVE, expect=Stage.CANDIDATE, why="first", evidence=evidence, known_good=True, **at
    )
    arms = {"control": 0.5, "treatment": 0.5}
    store.trials.begin(Experiment(name="t", kind="experiment", arms=arms, salt="s", created_at=1.0), **at).result()
    store.trials.expose("t", "u", "control", now=2.0)
    store.trials.record([ServedRequest(id=name, trial="t", arm="control", unit="u", at=3.0) for name in ("r1", "r2")])
    flag = Flag(name="beta", variants={"on": True, "off": False}, off="off")
    store.flags.put(flag, why="try", **at).result()


ANSWER = EvalItem(task="What is 2 + 2?", output="4", author="sprout")
JUDGED = ANSWER.sha256[:12]


def judged(store: Store) -> None:
    """One of each: an answer that was judged, doubted and labelled, a calibration of the judge, and its role."""
    about = {"artefact": ANSWER.sha256, "criterion": "correctness@1", "at": 1.0}
    given = Judgement(judge="m", prompt="a" * 64, grade=Grade.YES, score=0.75, **about)
    store.judgements.record(ANSWER, given).result()
    store.judgements.request_review(ANSWER, ReviewRequest(reason=Doubtful.ASKED, **about)).result()
    store.judgements.label([Label(maker=Maker.PERSON, who="ann", holds=True, **about)]).result()
    bound = {"judge": "m", "criterion": "correctness@1", "prompt": "a" * 64, "labels": "b" * 64, "at": 1.0}
    measures = {"xs": (0.75,), "ys": (0.5,), "measures": {"kappa": 0.5}, "makers": {"person": 1}, "n": 1}
    store.judgements.calibrate(Calibration(standing=JudgeStatus.TRUSTED, **bound, **measures), who="ann").result()
    store.judgements.appoint("sprout", "m", Role.AUDIT, who="ann", now=1.0).result()


def ordered(store: Store) -> None:
    """One of each: a token, an order that was obeyed, an alert."""
    store.tokens.add("ann", Access.OPERATOR, "5e" * 32, 1.0).result()
    command = Command(id="c1", action="pause", subject="run-1", who="ann", why="lunch", at=1.0)
    store.commands.once(command, "operator", lambda tx: {"said": "done"}).result()
    store.alerts.raise_(Alert(code="backlog", severity=Severity.WARNING, message="many wait", at=1.0)).result()


@dataclass
class Scene:
    store: Store
    clock: Clock
    run: str

    def beside(self, salt: str = "b") -> Scene:
        """Another run of the same store."""
        return Scene(self.store, self.clock, begin(self.store, self.clock, salt=salt))

    def enqueue(self, *names: str, up_to: bool = False, **fields: Any) -> int:
        tasks = [Task(**{"name": name, "input": {"q": name}, **fields}) for name in names]
        return self.store.queue.enqueue(self.run, tasks, now=self.clock.now, up_to=up_to).result()

    def claims(self, most: int = 1, *, worker: str = "ann", lease_s: float = LEASE_S) -> tuple[Claim, ...]:
        return self.store.queue.claim(self.run, worker, now=self.clock.now, lease_s=lease_s, most=most).result()

    def claim(self, *, worker: str = "ann", lease_s: float = LEASE_S) -> Claim:
        (claim,) = self.claims(worker=worker, lease_s=lease_s)
        return claim

    def finish(self, held: Claim | Attempt, state: AttemptState, **how: Any) -> RolloutState:
        attempt = held.attempt if isinstance(held, Claim) else held
        return self.store.queue.finish(attempt, state, now=self.clock.now, **how).result()

    def beat(self, *held: Claim, lease_s: float = LEASE_S) -> frozenset[int]:
        tokens = [claim.attempt.token for claim in held]
        return self.store.queue.beat(self.run, tokens, now=self.clock.now, lease_s=lease_s).result().alive

    def sweep(self, *, chance: float = 0.5) -> int:
        return self.store.queue.sweep(now=self.clock.now, chance=chance).result()

    def want(self, wanted: DesiredState) -> RunRecord:
        return self.store.runs.want(self.run, wanted, who="op", why="because", now=self.clock.now).result()

    def cancel(self, name: str, why: str = "enough") -> Rollout:
        return self.store.queue.cancel(f"{self.run}/{name}", now=self.clock.now, why=why).result()

    def requeue(self, name: str) -> Rollout:
        return self.store.queue.requeue(f"{self.run}/{name}", now=self.clock.now).result()

    def rollout(self, name: str) -> Rollout:
        return self.store.views.rollout(f"{self.run}/{name}")

    def attempts(self, name: str) -> list[Attempt]:
        return self.store.views.attempts(f"{self.run}/{name}")

    def brought_to(self, state: RolloutState, name: str = "t") -> Rollout:
        """A rollout in this state, by way of the queue."""
        self.enqueue(name, max_attempts=1, max_faults=1 if state is RolloutState.REQUEUING else 0)
        if state is RolloutState.CANCELLED:
            self.cancel(name)
        elif state is not RolloutState.QUEUING:
            claim = self.claim()
            ends = {RolloutState.SUCCEEDED: AttemptState.SUCCEEDED, RolloutState.FAILED: AttemptState.FAILED}
            if state is not RolloutState.RUNNING:
                self.finish(claim, ends.get(state, AttemptState.FAULT))
        rollout = self.rollout(name)
        assert rollout.status is state
        return rollout


@contextmanager
def held_open(store: Store, *calls: Any) -> Iterator[Sequence[WriteFuture[Any]]]:
    """The calls' one transaction is done but not committed while the block lasts."""
    busy, gathered, done, release = Event(), Event(), Event(), Event()

    def hold(mine: Event, until: Event) -> WriteFuture[Any]:
        return store.db.write(lambda _: mine.set() or until.wait(20))

    hold(busy, gathered)  # keeps the writer busy, so that the calls gather into one batch behind it
    assert busy.wait(20)
    answers = [call() for call in calls]
    hold(done, release)
    gathered.set()
    assert done.wait(20)
    try:
        yield answers
    finally:
        release.set()
