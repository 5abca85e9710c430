"""Whatever producers, workers, operators and clocks do, in any order: the store does what the model does.

After every step each rollout and each attempt stands where the model has it, and what must always hold, holds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.reward import Signal
from holdfast.contracts.rollout import Attempt, AttemptState, Backoff, Rollout, RolloutState, Split, Task
from holdfast.contracts.run import Wanted
from holdfast.store.check import check
from holdfast.store.queue import ENDS
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Databases, Files
from tests.store.model import Model
from tests.store.scene import begin, span

R = RolloutState
BACKOFF = Backoff(initial_s=2.0, cap_s=6.0)
EXAMPLES = {"sqlite": 100, "postgres": 25}
NAMES = st.sampled_from([f"t{n}" for n in range(6)])
CHANCES = st.sampled_from([0.0, 0.25, 0.5, 0.999])
LEASES = st.sampled_from([2.0, 5.0, 30.0])
TASKS = st.builds(
    Task,
    name=NAMES,
    input=st.sampled_from([{"q": 1}, {"q": 1}, {"q": 1}, {"q": 2}]),  # mostly the same, so that a name comes back equal
    split=st.just(Split.TRAIN),
    priority=st.sampled_from([0, 0, 0, 1]),
    max_attempts=st.sampled_from([2, 2, 2, 1, 3]),
    timeout_s=st.sampled_from([None, None, None, 8.0]),
)


class Lifecycle(RuleBasedStateMachine):
    places: Files | Databases
    held = Bundle("held")  # every attempt ever claimed: most of them are stale sooner or later

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.url = self.places.fresh()
        self.store: Store = open_store(self.url)
        self.written: dict[int, int] = {}  # token → spans that were accepted

    @initialize(limit=st.sampled_from([None, 3]))
    def start(self, limit: int | None) -> None:
        self.run = begin(self.store, self.clock, queue_limit=limit)
        self.model = Model(limit)

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
            return None
        answer = ours()
        assert expected is None or answer == expected
        return answer

    @rule(tasks=st.lists(TASKS, min_size=1, max_size=3, unique_by=lambda task: task.name), up_to=st.booleans())
    def enqueue(self, tasks: list[Task], up_to: bool) -> None:
        now = self.clock.now
        self.both(
            lambda: self.store.queue.enqueue(self.run, tasks, now=now, up_to=up_to).result(),
            lambda: self.model.enqueue(tasks, now, up_to),
        )

    @rule(target=held, worker=st.sampled_from(["ann", "bob", "cat"]), most=st.integers(1, 3), lease_s=LEASES)
    def claim(self, worker: str, most: int, lease_s: float) -> Any:
        now = self.clock.now
        expected = self.model.claim(most, now)
        claims = self.store.queue.claim(self.run, worker, now=now, lease_s=lease_s, most=most).result()
        assert [claim.rollout.name for claim in claims] == [entry.task.name for entry in expected]
        for entry, claim in zip(expected, claims, strict=True):
            assert all(claim.attempt.token > token for token in self.written)
            self.written[claim.attempt.token] = 0
            self.model.started(entry, claim.attempt.token, worker, now, lease_s)
        return multiple(*(claim.attempt for claim in claims))

    @rule(attempts=st.lists(held, max_size=3), lease_s=LEASES)
    def beat(self, attempts: list[Attempt], lease_s: float) -> None:
        tokens = [attempt.token for attempt in attempts]
        told = self.store.queue.beat(self.run, tokens, now=self.clock.now, lease_s=lease_s).result()
        assert told.alive == self.model.beat(tokens, self.clock.now, lease_s)
        assert told.wanted is self.model.wanted

    @rule(attempt=held, many=st.integers(1, 2))
    def trace(self, attempt: Attempt, many: int) -> None:
        first = self.written[attempt.token] + 1
        spans = [span(first + n) for n in range(many)]
        signal = Signal(name="n", value=1.0, source="test")

        def write() -> None:
            self.store.traces.add(attempt, spans, now=self.clock.now).result()
            self.store.traces.score(attempt, [signal], now=self.clock.now, first=first).result()
            self.written[attempt.token] += many

        self.both(write, lambda: self.model.write(attempt.token, self.clock.now))
        assert len(self.store.traces.spans(attempt.token)) == self.written[attempt.token]

    @rule(attempt=held, state=st.sampled_from(sorted(ENDS)), chance=CHANCES)
    def finish(self, attempt: Attempt, state: AttemptState, chance: float) -> None:
        now, how = self.clock.now, {"backoff": BACKOFF, "chance": chance}
        self.both(
            lambda: self.store.queue.finish(attempt, state, now=now, error="e", **how).result(),  # type: ignore[arg-type]
            lambda: self.model.finish(attempt.token, state, now, BACKOFF, chance),
        )

    @rule(chance=CHANCES)
    def sweep(self, chance: float) -> None:
        now = self.clock.now
        swept = self.store.queue.sweep(now=now, backoff=BACKOFF, chance=chance).result()
        assert swept == self.model.sweep(now, BACKOFF, chance)

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        self.both(
            lambda: self.store.queue.cancel(f"{self.run}/{name}", now=self.clock.now, why="w").result(),
            lambda: self.model.cancel(name),
        )

    @rule(name=NAMES)
    def requeue(self, name: str) -> None:
        self.both(
            lambda: self.store.queue.requeue(f"{self.run}/{name}", now=self.clock.now).result(),
            lambda: self.model.requeue(name, self.clock.now),
        )

    @rule(wanted=st.sampled_from([Wanted.RUNNING, Wanted.RUNNING, Wanted.PAUSED, Wanted.DRAINING]))
    def order(self, wanted: Wanted) -> None:
        self.both(
            lambda: self.store.runs.want(self.run, wanted, who="op", why="w", now=self.clock.now).result(),
            lambda: self.model.want(wanted),
        )

    @rule(sure=st.sampled_from([False] * 9 + [True]))
    def cancel_everything(self, sure: bool) -> None:
        if sure:
            self.order(Wanted.CANCELLED)
            cancelled = self.store.queue.cancel_open(self.run, now=self.clock.now, why="over").result()
            assert cancelled == self.model.cancel_open()

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0, 2.0, 5.0, 9.0, 40.0, -1.0, -7.0]))  # clocks jump back, too
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(sure=st.sampled_from([False, False, True]))
    def open_again(self, sure: bool) -> None:
        if sure:
            self.store.close()
            self.store = open_store(self.url)

    @invariant()
    def each_rollout_stands_where_the_model_has_it(self) -> None:
        found = self.store.views.rollouts(self.run)
        assert [rollout.name for rollout in found] == list(self.model.entries)  # none lost, none double, in order
        for rollout, entry in zip(found, self.model.entries.values(), strict=True):
            assert (rollout.status, rollout.faults, rollout.ready_at) == (entry.status, entry.faults, entry.ready_at)
            final = None if entry.final is None else f"{rollout.id}:attempt-{entry.final}"
            assert (rollout.attempt_count, rollout.final_attempt) == (len(entry.tries), final)
            attempts = self.store.views.attempts(rollout.id)
            assert [(a.number, a.token, a.worker, a.status, a.lease_until) for a in attempts] == [
                (number, held.token, held.worker, held.status, held.lease_until)
                for number, held in enumerate(entry.tries, 1)
            ]
            must_always_hold(rollout, attempts)
        assert self.store.ledger.verify() > 0


def must_always_hold(rollout: Rollout, attempts: list[Attempt]) -> None:
    """Without asking the model."""
    assert sum(a.status is AttemptState.RUNNING for a in attempts) == (rollout.status is R.RUNNING)
    assert sum(a.status is AttemptState.SUCCEEDED for a in attempts) == (rollout.status is R.SUCCEEDED)
    assert [a.number for a in attempts] == list(range(1, rollout.attempt_count + 1))
    assert rollout.faults <= rollout.max_attempts
    assert all(a.deadline is None or a.lease_until <= a.deadline for a in attempts)


def test_the_store_does_what_the_model_does(places: Files | Databases) -> None:
    machine = type("Here", (Lifecycle,), {"places": places})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES[places.engine],
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
