"""Two processes at the same rows at the same moment: the second waits for the first, and then does the right thing.

One store's transaction is held open, done but not committed, while another store comes along.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.contracts.errors import IllegalMove, StaleLease
from holdfast.contracts.rollout import Attempt, AttemptState, RolloutState, Task
from holdfast.contracts.run import DesiredState, RunState
from holdfast.store.store import Store, open_store
from tests.store.conftest import Race
from tests.store.scene import LEASE_S, Scene, begin, problems, span

A, R = AttemptState, RolloutState


def test_a_cancel_that_meets_a_claim_ends_the_new_attempt(scene: Scene, race: Race) -> None:
    scene.enqueue("t")
    claimed, pending = race(
        lambda store: store.queue.claim(scene.run, "ann", now=scene.clock.now, lease_s=LEASE_S),
        lambda store: store.queue.cancel(f"{scene.run}/t", now=scene.clock.now, why="enough"),
    )
    assert pending.result().status is R.CANCELLED
    (held,) = claimed.result()
    assert scene.attempts("t")[0].status is A.CANCELLED
    with pytest.raises(StaleLease, match="it is cancelled"):
        scene.finish(held, A.SUCCEEDED)
    assert problems(scene.store) == []


def test_a_cancel_that_meets_a_finish_comes_too_late(scene: Scene, race: Race) -> None:
    scene.enqueue("t")
    held = scene.claim().attempt
    finished, pending = race(
        lambda store: store.queue.finish(held, A.SUCCEEDED, now=scene.clock.now),
        lambda store: store.queue.cancel(f"{scene.run}/t", now=scene.clock.now, why="enough"),
    )
    assert finished.result() is R.SUCCEEDED
    with pytest.raises(IllegalMove, match="cannot go from succeeded to cancelled"):
        pending.result()
    assert problems(scene.store) == []


def test_cancelling_everything_open_leaves_what_ends_meanwhile(scene: Scene, race: Race) -> None:
    scene.enqueue("ends", "waits")
    held = scene.claim().attempt
    finished, pending = race(
        lambda store: store.queue.finish(held, A.SUCCEEDED, now=scene.clock.now),
        lambda store: store.queue.cancel_open(scene.run, now=scene.clock.now, why="over"),
    )
    assert (finished.result(), pending.result() > 0) == (R.SUCCEEDED, True)
    assert [scene.rollout(name).status for name in ("ends", "waits")] == [R.SUCCEEDED, R.CANCELLED]
    assert problems(scene.store) == []


def test_two_requeues_at_once_are_one(scene: Scene, race: Race) -> None:
    scene.brought_to(R.FAILED)
    first, second = race(
        lambda store: store.queue.requeue(f"{scene.run}/t", now=scene.clock.now),
        lambda store: store.queue.requeue(f"{scene.run}/t", now=scene.clock.now),
    )
    assert first.result().status is R.QUEUING
    with pytest.raises(IllegalMove, match="is queuing, not done"):
        second.result()


def test_a_finish_that_meets_the_sweep_is_stale(scene: Scene, race: Race) -> None:
    scene.enqueue("t")
    held = scene.claim().attempt
    swept, pending = race(
        lambda store: store.queue.sweep(now=scene.clock.now + LEASE_S),
        lambda store: store.queue.finish(held, A.SUCCEEDED, now=scene.clock.now + LEASE_S - 1),
    )
    assert swept.result() == 1
    with pytest.raises(StaleLease, match="it is unresponsive"):
        pending.result()
    assert scene.rollout("t").status is R.REQUEUING
    assert problems(scene.store) == []


def test_a_sweep_that_meets_a_beat_leaves_the_beater_alone(scene: Scene, race: Race) -> None:
    scene.enqueue("t")
    held = scene.claim()
    at = scene.clock.now + LEASE_S - 1
    beaten, pending = race(
        lambda store: store.queue.beat(scene.run, [held.attempt.token], now=at, lease_s=LEASE_S),
        lambda store: store.queue.sweep(now=at + 1),
    )
    assert beaten.result().alive == {held.attempt.token}
    assert pending.result() == 0
    assert scene.rollout("t").status is R.RUNNING


def test_two_sweeps_at_once_count_each_attempt_once(scene: Scene, race: Race) -> None:
    scene.enqueue("a", "b")
    scene.claims(2)
    first, second = race(
        lambda store: store.queue.sweep(now=scene.clock.now + LEASE_S),
        lambda store: store.queue.sweep(now=scene.clock.now + LEASE_S),
    )
    assert (first.result(), second.result()) == (2, 0)
    assert [scene.rollout(name).interruptions for name in "ab"] == [1, 1]


def test_two_producers_together_keep_the_limit(scene: Scene, race: Race) -> None:
    run, now = begin(scene.store, scene.clock, queue_limit=3), scene.clock.now
    tasks = [Task(name=f"{side}{n}", input=n) for side in "ab" for n in range(2)]
    first, second = race(
        lambda store: store.queue.enqueue(run, tasks[:2], now=now),
        lambda store: store.queue.enqueue(run, tasks[2:], now=now, up_to=True),
    )
    assert (first.result(), second.result()) == (2, 1)
    assert scene.store.views.counts(run)[R.QUEUING] == 3


def test_two_publishers_get_their_own_numbers(race: Race) -> None:
    for mine, theirs, versions in (("same", "other", [1, 2]), ("new", "new", [3, 3])):
        first, second = race(
            lambda store, mine=mine: store.versions.publish({"p": mine}, now=1.0),
            lambda store, theirs=theirs: store.versions.publish({"p": theirs}, now=1.0),
        )
        assert [first.result().version, second.result().version] == versions


def test_two_writers_of_the_ledger_make_one_chain(scene: Scene, race: Race) -> None:
    first, second = race(
        lambda store: store.ledger.append("note", {"n": 1}, who="a", now=1.0),
        lambda store: store.ledger.append("note", {"n": 2}, who="b", now=1.0),
    )
    assert (first.result(), second.result()) == (None, None)
    assert scene.store.ledger.verify() == 3


def test_two_processes_cannot_both_take_up_a_run(scene: Scene, race: Race) -> None:
    scene.store.runs.end(scene.run, RunState.FAILED, who="t", now=1.0).result()
    first, second = race(
        lambda store: store.runs.resume(scene.run, who="a", now=9.0, silent_s=10.0),
        lambda store: store.runs.resume(scene.run, who="b", now=9.0, silent_s=10.0),
    )
    assert first.result().state is RunState.RUNNING
    with pytest.raises(IllegalMove, match="another process drives it"):
        second.result()


def test_an_order_cannot_undo_a_cancel_that_came_first(scene: Scene, race: Race) -> None:
    first, second = race(
        lambda store: store.runs.want(scene.run, DesiredState.CANCELLED, who="a", why="x", now=1.0),
        lambda store: store.runs.want(scene.run, DesiredState.PAUSED, who="b", why="x", now=1.0),
    )
    assert first.result().wanted is DesiredState.CANCELLED
    with pytest.raises(IllegalMove, match="is cancelled"):
        second.result()
    assert scene.store.runs.get(scene.run).wanted is DesiredState.CANCELLED


def test_claims_at_once_take_different_rollouts(scene: Scene, race: Race) -> None:
    scene.enqueue("a", "b")
    first, second = race(
        lambda store: store.queue.claim(scene.run, "ann", now=scene.clock.now, lease_s=LEASE_S),
        lambda store: store.queue.claim(scene.run, "bob", now=scene.clock.now, lease_s=LEASE_S),
    )
    assert [claims[0].rollout.name for claims in (first.result(), second.result())] == ["a", "b"]
    scene.store.traces.add(second.result()[0].attempt, [span()], now=scene.clock.now).result()
    assert problems(scene.store) == []


def test_two_writers_of_spans_of_the_same_attempts_do_not_lock_each_other(scene: Scene) -> None:
    """Their transactions hold several writes, in any order: whoever locked an attempt for a span met deadlocks, of a
    second each."""
    scene.enqueue("a", "b", "c", "d")
    held = [scene.claim().attempt for _ in range(4)]

    def work(store: Store, order: list[Attempt], first: int) -> None:
        for number in range(40):
            added = [store.traces.add(attempt, [span(first + number)], now=scene.clock.now) for attempt in order]
            for write in added:
                write.result()

    with open_store(scene.store.url) as other, ThreadPoolExecutor(2) as both:
        began = time.monotonic()
        ways = (scene.store, held, 1), (other, held[::-1], 1001)
        for done in [both.submit(work, *way) for way in ways]:
            done.result()
    assert time.monotonic() - began < 10
    assert [len(scene.store.traces.spans(attempt.token)) for attempt in held] == [80] * 4
