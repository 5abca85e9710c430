"""Whatever producers, workers, operators and clocks do, in any order: the store does what the model does.

After every step each rollout and each attempt stands where the model has it, and what must always hold, holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import DONE, Attempt, AttemptState, Backoff, Rollout, RolloutState, Split, Task
from holdfast.contracts.run import DesiredState
from holdfast.store.check import check
from holdfast.store.queue import ENDS
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Databases, Files
from tests.store.model import Model
from tests.store.scene import begin, span

A, R = AttemptState, RolloutState
BACKOFF = Backoff(initial_s=2.0, cap_s=6.0)
EXAMPLES = {"sqlite": 35, "postgres": 7}
PLACES = st.integers(0, 11)  # which one, counted around
CHANCES = st.sampled_from([0.0, 0.25, 0.5, 0.999])
ENDINGS = st.sampled_from(sorted(ENDS))
LEASES = st.sampled_from([2.0, 5.0, 30.0])
TASKS = st.builds(
    Task,
    name=st.sampled_from([f"t{n}" for n in range(6)]),
    input=st.sampled_from([{"q": 1}, {"q": 1}, {"q": 1}, {"q": 2}]),  # mostly the same, so that a name comes back equal
    split=st.just(Split.TRAIN),
    priority=st.sampled_from([0, 0, 0, 1]),
    max_attempts=st.sampled_from([2, 2, 2, 1, 3]),
    timeout_s=st.sampled_from([None, None, 8.0]),
    step=st.sampled_from([None, None, "0/collect", "1/collect"]),
    version=st.sampled_from([None, "p@1"]),
    max_faults=st.sampled_from([5, 1, 0]),
)
OUTCOMES = st.sampled_from(["right", "wrong", None])
BATCHES = st.lists(TASKS, min_size=1, max_size=3, unique_by=lambda task: task.name)


class Lifecycle(RuleBasedStateMachine):
    places: Files | Databases

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.url = self.places.fresh()
        self.store: Store = open_store(self.url)
        self.attempts: list[Attempt] = []  # every one ever claimed: most of them are stale sooner or later
        self.written: dict[int, int] = {}  # token → spans that were accepted

    @initialize(limit=st.sampled_from([None, 3]), tasks=BATCHES)
    def start(self, limit: int | None, tasks: list[Task]) -> None:
        self.run = begin(self.store, self.clock, queue_limit=limit)
        self.model = Model(limit)
        self.enqueue(tasks, False)

    def teardown(self) -> None:
        problems = [problem for part in check(self.store) for problem in part.problems]
        self.store.close()
        self.places.clear()
        assert problems == []

    def both(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """Ask the model and the store; both give an answer, or both refuse for the same reason."""
        try:
            expected = theirs()
        except HoldfastError as refusal:
            with pytest.raises(type(refusal)):
                ours()
            return
        answer = ours()
        assert expected is None or answer == expected

    def running(self) -> list[Attempt]:
        held = {t.token for entry in self.model.entries.values() for t in entry.tries if t.status is A.RUNNING}
        return [attempt for attempt in self.attempts if attempt.token in held]

    @rule(tasks=BATCHES, up_to=st.booleans())
    def enqueue(self, tasks: list[Task], up_to: bool) -> None:
        now = self.clock.now
        self.both(
            lambda: self.store.queue.enqueue(self.run, tasks, now=now, up_to=up_to).result(),
            lambda: self.model.enqueue(tasks, now, up_to),
        )

    @precondition(lambda self: any(e.status in (R.QUEUING, R.REQUEUING) for e in self.model.entries.values()))
    @rule(worker=st.sampled_from(["ann", "bob", "cat"]), most=st.integers(1, 3), lease_s=LEASES, ripe=st.booleans())
    def claim(self, worker: str, most: int, lease_s: float, ripe: bool) -> None:
        """Now, or when the first backoff is over."""
        waiting = [entry.ready_at for entry in self.model.entries.values() if entry.status is R.REQUEUING]
        if ripe and waiting:
            self.clock.now = min(waiting)
        now = self.clock.now
        expected = self.model.claim(most, now)
        claims = self.store.queue.claim(self.run, worker, now=now, lease_s=lease_s, most=most).result()
        assert [claim.rollout.name for claim in claims] == [entry.task.name for entry in expected]
        for entry, claim in zip(expected, claims, strict=True):
            assert all(claim.attempt.token > token for token in self.written)
            self.attempts.append(claim.attempt)
            self.written[claim.attempt.token] = 0
            self.model.started(entry, claim.attempt.token, worker, now, lease_s)

    @precondition(lambda self: self.running())
    @rule(place=PLACES, state=ENDINGS, chance=CHANCES, outcome=OUTCOMES)
    def finish(self, place: int, state: A, chance: float, outcome: str | None) -> None:
        running = self.running()
        self.end(running[place % len(running)], state, chance, outcome)

    @precondition(lambda self: self.running())
    @rule(state=ENDINGS, chance=CHANCES)
    def finish_everything(self, state: A, chance: float) -> None:
        for attempt in self.running():
            self.end(attempt, state, chance)

    @precondition(lambda self: self.attempts)
    @rule(place=PLACES, write=st.sampled_from(["end", "beat", "trace"]), state=ENDINGS, lease_s=LEASES)
    def write_whatever_became_of_it(self, place: int, write: str, state: A, lease_s: float) -> None:
        attempt = self.attempts[place % len(self.attempts)]
        if write == "end":
            self.end(attempt, state, 0.5)
        elif write == "beat":
            self.beat([attempt.token, self.attempts[-1].token], lease_s)
        else:
            self.trace(attempt)

    def end(self, attempt: Attempt, state: A, chance: float, outcome: str | None = None) -> None:
        queue, now = self.store.queue, self.clock.now
        how = {"error": "e", "backoff": BACKOFF, "chance": chance, "outcome": outcome}
        self.both(
            lambda: queue.finish(attempt, state, now=now, **how).result(),
            lambda: self.model.finish(attempt.token, state, now, BACKOFF, chance, outcome),
        )

    def beat(self, tokens: list[int], lease_s: float) -> None:
        told = self.store.queue.beat(self.run, tokens, now=self.clock.now, lease_s=lease_s).result()
        assert told.alive == self.model.beat(tokens, self.clock.now, lease_s)
        assert told.wanted is self.model.wanted

    def trace(self, attempt: Attempt) -> None:
        first = self.written[attempt.token] + 1
        signal = RewardTerm(name="n", value=1.0, source="test")

        def write() -> None:
            self.store.traces.add(attempt, [span(first), span(first + 1)], now=self.clock.now).result()
            self.store.traces.score(attempt, [signal], now=self.clock.now, first=first).result()
            self.written[attempt.token] += 2

        self.both(write, lambda: self.model.write(attempt.token, self.clock.now))
        assert len(self.store.traces.spans(attempt.token)) == self.written[attempt.token]

    @precondition(lambda self: self.running())
    @rule(chance=CHANCES, late=st.booleans())
    def sweep(self, chance: float, late: bool) -> None:
        """Now, or when the first lease is over."""
        if late:
            self.clock.now = min(self.model.leases())
        now = self.clock.now
        swept = self.store.queue.sweep(now=now, backoff=BACKOFF, chance=chance).result()
        assert swept == self.model.sweep(now, BACKOFF, chance)

    @rule(seconds=st.sampled_from([0.5, 6.0, 40.0, -7.0, -100.0]), early_s=st.sampled_from([0.0, 0.25]))
    def wait(self, seconds: float, early_s: float) -> None:
        """Until the last lease is over, or just before, or for some time; clocks jump back, too."""
        leases = self.model.leases()
        self.clock.now = max(leases) - early_s if leases and seconds == 0.5 else self.clock.now + seconds

    @rule(act=st.sampled_from(["cancel", "requeue", "requeue", "hold", "go on", "open again", "over"]), place=PLACES)
    def operate(self, act: str, place: int) -> None:
        names = list(self.model.entries) or ["ghost"]
        name = names[place % len(names)]
        if act == "cancel":
            self.both(
                lambda: self.store.queue.cancel(f"{self.run}/{name}", now=self.clock.now, why="w").result(),
                lambda: self.model.cancel(name, self.clock.now),
            )
        elif act == "requeue":
            self.both(
                lambda: self.store.queue.requeue(f"{self.run}/{name}", now=self.clock.now).result(),
                lambda: self.model.requeue(name, self.clock.now),
            )
        elif act == "hold":
            self.order(DesiredState.PAUSED if place % 2 else DesiredState.DRAINING)
        elif act == "go on":
            self.order(DesiredState.RUNNING)
        elif act == "open again":
            self.store.close()
            self.store = open_store(self.url)
        elif place == 0:  # seldom: nothing can be claimed afterwards
            self.order(DesiredState.CANCELLED)
            cancelled = self.store.queue.cancel_open(self.run, now=self.clock.now, why="over").result()
            assert cancelled == self.model.cancel_open(self.clock.now)

    @precondition(lambda self: not self.model.recorded)
    @rule(step=st.sampled_from(["0/collect", "1/collect"]), place=PLACES)
    def record(self, step: str, place: int) -> None:
        """A step is done; what is left of it in the queue is claimed by nobody any more."""
        if place < 3:  # not too often: less can be claimed afterwards
            self.store.steps.add(self.run, step, {}, function="f", now=self.clock.now).result()
            self.model.recorded.add(step)

    def order(self, wanted: DesiredState) -> None:
        self.both(
            lambda: self.store.runs.want(self.run, wanted, who="op", why="w", now=self.clock.now).result(),
            lambda: self.model.want(wanted),
        )

    @invariant()
    def each_rollout_stands_where_the_model_has_it(self) -> None:
        found = self.store.views.rollouts(self.run)
        assert [rollout.name for rollout in found] == list(self.model.entries)  # none lost, none double, in order
        for rollout, entry in zip(found, self.model.entries.values(), strict=True):
            assert (rollout.status, rollout.faults, rollout.ready_at) == (entry.status, entry.faults, entry.ready_at)
            final = None if entry.final is None else f"{rollout.id}:attempt-{entry.final}"
            assert (rollout.attempt_count, rollout.final_attempt) == (len(entry.tries), final)
            assert (rollout.interruptions, rollout.outcome) == (entry.interruptions, entry.outcome)
            assert (rollout.step, rollout.version) == (entry.task.step, entry.task.version)
            attempts = self.store.views.attempts(rollout.id)
            assert [(a.number, a.token, a.worker, a.status, a.lease_until) for a in attempts] == [
                (number, held.token, held.worker, held.status, held.lease_until)
                for number, held in enumerate(entry.tries, 1)
            ]
            must_always_hold(rollout, attempts)
        for step in {entry.task.step for entry in self.model.entries.values()} - {None}:
            mine = [entry for entry in self.model.entries.values() if entry.task.step == step]
            assert [rollout.name for rollout in self.store.views.of_step(self.run, step)] == [
                entry.task.name for entry in mine
            ]
            assert self.store.views.is_done(self.run, step=step) == all(entry.status in DONE for entry in mine)
        assert self.store.ledger.verify() > 0


def must_always_hold(rollout: Rollout, attempts: list[Attempt]) -> None:
    """Without asking the model."""
    assert sum(a.status is A.RUNNING for a in attempts) == (rollout.status is R.RUNNING)
    assert sum(a.status is A.SUCCEEDED for a in attempts) == (rollout.status is R.SUCCEEDED)
    assert [a.number for a in attempts] == list(range(1, rollout.attempt_count + 1))
    assert rollout.faults <= rollout.max_attempts and rollout.interruptions <= rollout.max_faults + 1
    assert rollout.outcome is None or rollout.final_attempt is not None
    assert all(a.deadline is None or a.lease_until <= a.deadline for a in attempts)


@pytest.mark.usefixtures("untraced")
def test_the_store_does_what_the_model_does(places: Files | Databases) -> None:
    machine = type("Here", (Lifecycle,), {"places": places})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES[places.engine],
            stateful_step_count=40,
            deadline=None,
            phases=set(Phase) - {Phase.shrink, Phase.explain},  # they take minutes: for a failure, put shrink back
            suppress_health_check=list(HealthCheck),
        ),
    )
