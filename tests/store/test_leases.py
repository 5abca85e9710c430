"""Leases: whoever was written off can write nothing more; who beats keeps theirs, up to the attempt's deadline."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.contracts.errors import StaleLease
from holdfast.contracts.rollout import AttemptState, Claim, RolloutState
from holdfast.store.queue import CLOCKS_S, SWEEP_LIMIT
from holdfast.store.store import open_store
from tests.conftest import Clock
from tests.store.scene import LEASE_S, Scene, begin, once, says, signal, span

A, R = AttemptState, RolloutState
Act = Callable[[Scene, Claim], object]


def sweep(scene: Scene, claim: Claim) -> None:
    scene.clock.advance(LEASE_S)
    assert scene.sweep() == 1


def lose_to_another(scene: Scene, claim: Claim) -> None:
    sweep(scene, claim)
    scene.clock.advance(60)
    assert scene.claim(worker="bob").rollout.name == "t"


def requeue(scene: Scene, claim: Claim) -> None:
    scene.cancel("t")
    scene.requeue("t")


LOST: dict[str, tuple[Act, str]] = {
    "swept": (sweep, "it is unresponsive (worker ann was silent for 30.0 s)"),
    "another's": (lose_to_another, "it is unresponsive (worker ann was silent for 30.0 s)"),
    "cancelled": (lambda s, c: s.cancel("t", why="enough"), "it is cancelled (enough)"),
    "requeued": (requeue, "it is cancelled (enough)"),
    "succeeded": (lambda s, c: s.finish(c, A.SUCCEEDED), "it is succeeded"),
    "failed": (lambda s, c: s.finish(c, A.FAILED, error="boom"), "it is failed (boom)"),
    "released": (lambda s, c: s.finish(c, A.RELEASED), "it is released"),
}
WRITES: dict[str, Act] = {
    "span": lambda s, c: s.store.traces.add(c.attempt, [span()], now=s.clock.now).result(),
    "reward": lambda s, c: s.store.traces.score(c.attempt, [signal()], now=s.clock.now).result(),
    "succeed": lambda s, c: s.finish(c, A.SUCCEEDED, reward=1.0),
    "fail": lambda s, c: s.finish(c, A.FAILED, error="late"),
    "release": lambda s, c: s.finish(c, A.RELEASED),
}


@pytest.mark.parametrize("lost", LOST)
def test_whoever_lost_the_lease_can_write_nothing_more(scene: Scene, lost: str) -> None:
    scene.enqueue("t", "kept")
    claim, kept = scene.claims(2)
    scene.beat(kept, lease_s=1000.0)
    lose, became = LOST[lost]
    lose(scene, claim)
    before = (scene.rollout("t"), scene.attempts("t"))
    said = f"attempt {scene.run}/t:attempt-1: {became}; drop this work: the rollout is, or will be, someone else's"
    for write in WRITES.values():
        with says(StaleLease, said):
            write(scene, claim)
    assert scene.beat(claim, kept) == {kept.attempt.token}  # and nothing is renewed
    assert (scene.rollout("t"), scene.attempts("t")) == before
    assert scene.store.traces.spans(claim.attempt.token) == []
    assert scene.store.traces.breakdown(claim.attempt.token).signals == ()


def test_an_attempt_that_nobody_ever_claimed_is_refused(scene: Scene) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    forged = replace(claim, attempt=replace(claim.attempt, token=10**9))
    with pytest.raises(StaleLease, match="the store has no such attempt"):
        scene.finish(forged, A.SUCCEEDED)
    assert scene.beat(forged) == frozenset()


@pytest.mark.parametrize("late_s", [0.0, 0.001, 3600.0])
def test_a_lease_that_ran_out_is_renewed_while_nobody_has_taken_it(scene: Scene, late_s: float) -> None:
    """A driver that was paused goes on where it was: the token alone says whose the attempt is."""
    scene.enqueue("t", "u", "v")
    one, two, three = scene.claims(3)
    scene.clock.advance(LEASE_S + late_s)
    scene.store.traces.add(two.attempt, [span()], now=scene.clock.now).result()
    assert scene.finish(two, A.SUCCEEDED) is R.SUCCEEDED
    assert scene.beat(one) == {one.attempt.token}
    assert scene.sweep() == 1  # the third: nobody renewed it
    with pytest.raises(StaleLease, match="it is unresponsive"):
        scene.finish(three, A.SUCCEEDED)
    assert scene.finish(one, A.SUCCEEDED) is R.SUCCEEDED


def test_pauses_of_a_worker_are_no_deaths(scene: Scene) -> None:
    """Written off while it was paused, a worker that beats again has not been taken down by its task."""
    scene.enqueue("t", max_faults=9)
    scene.store.workers.register("ann", host="h", pid=1, slots=1, now=scene.clock.now).result()
    for _ in range(5):
        lose_a_worker(scene)
        scene.store.workers.beat("ann", now=scene.clock.now).result()
    rollout = scene.rollout("t")
    assert (rollout.status, rollout.faults, rollout.interruptions) == (R.REQUEUING, 0, 5)


def test_what_faults_ended_is_requeued_by_the_run_and_no_other(scene: Scene) -> None:
    other = scene.beside("b")
    for mine in (scene, other):
        mine.enqueue("dead", "failed", max_attempts=1, max_faults=0)
        dead, failed = mine.claims(2)
        assert mine.finish(dead, A.FAULT) is R.DEAD
        assert mine.finish(failed, A.FAILED) is R.FAILED
    assert scene.store.queue.requeue_dead(scene.run, now=scene.clock.now).result() == 1
    assert scene.store.queue.requeue_dead(scene.run, now=scene.clock.now).result() == 0
    assert (scene.rollout("dead").status, scene.rollout("dead").interruptions) == (R.QUEUING, 0)
    assert (scene.rollout("failed").status, other.rollout("dead").status) == (R.FAILED, R.DEAD)


def test_a_beat_renews_the_lease(scene: Scene) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    for _ in range(5):
        scene.clock.advance(20)
        assert scene.beat(claim) == {claim.attempt.token}
        (attempt,) = scene.attempts("t")
        assert (attempt.beat_at, attempt.lease_until) == (scene.clock.now, scene.clock.now + LEASE_S)
        assert scene.sweep() == 0
    scene.store.traces.add(claim.attempt, [span()], now=scene.clock.now).result()
    assert scene.finish(claim, A.SUCCEEDED) is R.SUCCEEDED


def test_a_lease_never_reaches_past_the_deadline(scene: Scene) -> None:
    for timeout_s, beat_after_s, first, renewed in (
        (None, 10.0, 30.0, 40.0),  # no deadline
        (100.0, 10.0, 30.0, 40.0),  # far from it
        (100.0, 29.0, 30.0, 59.0),
        (35.0, 10.0, 30.0, 35.0),  # a beat would reach past it
        (20.0, 10.0, 20.0, 20.0),  # the claim itself would
        (40.0, 10.0, 30.0, 40.0),  # exactly
    ):
        mine = scene.beside("a")
        mine.enqueue("t", timeout_s=timeout_s)
        start = mine.clock.now
        claim = mine.claim()
        assert claim.attempt.lease_until == mine.attempts("t")[0].lease_until == start + first
        mine.clock.advance(beat_after_s)
        mine.beat(claim)
        assert mine.attempts("t")[0].lease_until == start + renewed


def test_an_attempt_that_beats_is_still_ended_at_its_deadline(scene: Scene) -> None:
    scene.enqueue("t", timeout_s=50.0)
    claim = scene.claim()
    for _ in range(9):
        scene.clock.advance(5.5)
        assert scene.beat(claim)
    scene.clock.advance(0.5)
    assert scene.beat(claim) == frozenset()
    assert scene.sweep() == 1
    assert scene.attempts("t")[0].status is A.TIMEOUT


def test_the_sweep_tells_the_silent_from_the_overdue(scene: Scene) -> None:
    for timeout_s, waited_s, state, error in (
        (None, 30.0, A.UNRESPONSIVE, "worker ann was silent for 30.0 s"),
        (100.0, 45.5, A.UNRESPONSIVE, "worker ann was silent for 45.5 s"),
        (20.0, 20.0, A.TIMEOUT, "reached its wall-clock limit"),
        (100.0, 100.0, A.UNRESPONSIVE, "worker ann was silent for 100.0 s"),  # long before: nobody knows of the agent
    ):
        mine = scene.beside("a")
        mine.enqueue("t", timeout_s=timeout_s, max_attempts=2)
        mine.claim()
        mine.clock.advance(waited_s)
        assert mine.sweep(chance=0.0) == 1
        (attempt,), rollout = mine.attempts("t"), mine.rollout("t")
        assert (attempt.status, attempt.error, attempt.ended_at) == (state, error, mine.clock.now)
        assert (rollout.status, rollout.reason) == (R.REQUEUING, f"{state}: {error}")
        is_agents = state is A.TIMEOUT  # it had its time; a worker that falls silent says nothing about the agent
        assert (rollout.faults, rollout.interruptions) == ((1, 0) if is_agents else (0, 1))
        assert rollout.ready_at > mine.clock.now


def test_one_that_runs_out_of_time_on_its_last_try_has_failed(scene: Scene) -> None:
    scene.enqueue("t", timeout_s=20.0, max_attempts=1)
    scene.claim()
    scene.clock.advance(20)
    assert scene.sweep() == 1
    rollout = scene.rollout("t")
    assert (rollout.status, rollout.outcome, rollout.reward) == (R.FAILED, "wrong", None)
    assert (rollout.faults, rollout.interruptions) == (1, 0)
    assert rollout.final_attempt == scene.attempts("t")[0].id
    assert rollout.reason == "timeout: reached its wall-clock limit (attempt 1 of 1)"


def lose_a_worker(scene: Scene) -> None:
    scene.claim()
    scene.clock.advance(LEASE_S)
    assert scene.sweep() == 1
    scene.clock.advance(60)


@pytest.mark.parametrize("max_attempts", [1, 9])
def test_a_task_that_takes_three_workers_down_is_the_agents_failure(scene: Scene, max_attempts: int) -> None:
    """Whatever tries it has left: nobody touches it again."""
    scene.enqueue("t", max_attempts=max_attempts, max_faults=9)
    for _ in range(2):
        lose_a_worker(scene)
        assert scene.rollout("t").status is R.REQUEUING
    lose_a_worker(scene)
    rollout = scene.rollout("t")
    assert (rollout.status, rollout.outcome, rollout.attempt_count) == (R.FAILED, "wrong", 3)
    assert (rollout.faults, rollout.interruptions) == (1, 2)
    assert rollout.reason == "unresponsive: worker ann was silent for 30.0 s (it took 3 workers down)"
    assert (rollout.final_attempt, rollout.reward) == (scene.attempts("t")[-1].id, None)
    assert scene.claims() == ()


def test_tasks_that_one_worker_held_together_are_none_of_them_taken_for_its_killer(scene: Scene) -> None:
    """A driver that is killed thrice has the same tasks in hand each time: they are the next in the queue."""
    scene.enqueue("a", "b", "c", max_faults=9)
    for number in range(4):
        for name in "abc":
            assert scene.rollout(name).status in (R.QUEUING, R.REQUEUING), number
        assert len(scene.claims(3, worker=f"driver-{number}")) == 3
        scene.clock.advance(LEASE_S)
        assert scene.sweep() == 3
        scene.clock.advance(60)
    for number in range(3):  # alone, each time: that is the task's doing
        (claim,) = scene.claims(1, worker=f"alone-{number}")
        scene.clock.advance(LEASE_S)
        assert scene.sweep() == 1
        assert scene.rollout(claim.rollout.name).status is (R.FAILED if number == 2 else R.REQUEUING)
        scene.clock.advance(0.0 if number == 2 else 60)


def test_workers_lost_before_a_requeue_are_not_counted_again(scene: Scene) -> None:
    scene.enqueue("t")
    for _ in range(3):
        lose_a_worker(scene)
    assert scene.rollout("t").status is R.FAILED
    scene.requeue("t")
    for _ in range(2):
        lose_a_worker(scene)
        assert scene.rollout("t").status is R.REQUEUING
    lose_a_worker(scene)
    assert scene.rollout("t").status is R.FAILED


def test_other_faults_between_lost_workers_are_not_counted_as_such(scene: Scene) -> None:
    scene.enqueue("t", max_faults=4)
    lose_a_worker(scene)
    for end in (A.FAULT, A.RELEASED, A.FAULT):
        scene.finish(scene.claim(), end)
        scene.clock.advance(60)
    lose_a_worker(scene)
    rollout = scene.rollout("t")
    assert (rollout.status, rollout.faults, rollout.interruptions) == (R.REQUEUING, 0, 4)


def test_a_rollout_that_infrastructure_keeps_ending_is_given_up_with_the_reason(scene: Scene) -> None:
    scene.enqueue("t", max_attempts=1, max_faults=1)
    for _ in range(2):
        lose_a_worker(scene)
    rollout = scene.rollout("t")
    assert (rollout.status, rollout.outcome, rollout.interruptions) == (R.DEAD, None, 2)
    assert rollout.reason == "unresponsive: worker ann was silent for 30.0 s (interrupted 2 times)"
    assert (rollout.final_attempt, rollout.reward) == (None, None)
    assert scene.claims() == ()


def test_the_sweep_leaves_the_living_alone(scene: Scene) -> None:
    scene.enqueue("a", "b")
    _, b = scene.claims(2)
    scene.clock.advance(20)
    scene.beat(b)
    scene.clock.advance(10)
    assert (scene.sweep(), scene.sweep()) == (1, 0)
    assert [scene.rollout(name).status for name in "ab"] == [R.REQUEUING, R.RUNNING]


def test_the_sweep_reaches_every_run_and_project(scene: Scene, url: str, clock: Clock) -> None:
    with open_store(url, project="other") as elsewhere:
        other = Scene(elsewhere, clock, begin(elsewhere, clock))
        for each in (scene, other):
            each.enqueue("t")
            each.claim()
        clock.advance(LEASE_S)
        assert scene.sweep() == 2
        assert other.rollout("t").status is R.REQUEUING


@once
def test_a_large_sweep_takes_several_calls(scene: Scene) -> None:
    scene.enqueue(*(f"t{n}" for n in range(SWEEP_LIMIT + 1)))
    scene.claims(SWEEP_LIMIT + 1)
    scene.clock.advance(LEASE_S)
    assert [scene.sweep(), scene.sweep(), scene.sweep()] == [SWEEP_LIMIT, 1, 0]


def test_a_clock_that_jumps_back_frees_nobody_too_early(scene: Scene) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    scene.clock.advance(-100)
    assert scene.sweep() == 0
    assert scene.beat(claim) == {claim.attempt.token}
    assert scene.finish(claim, A.SUCCEEDED) is R.SUCCEEDED


def test_a_clock_that_is_set_back_gives_nobody_an_endless_lease(scene: Scene) -> None:
    """The dead are found an ordinary lease later; the living have that long to beat."""
    scene.enqueue("dead", "alive")
    _, alive = scene.claims(2)
    scene.clock.advance(-1e6)
    assert scene.sweep() == 0
    assert [scene.attempts(name)[0].lease_until for name in ("dead", "alive")] == [scene.clock.now + LEASE_S] * 2
    scene.clock.advance(LEASE_S - 1)
    assert scene.beat(alive) == {alive.attempt.token}
    scene.clock.advance(1)
    assert scene.sweep() == 1
    assert [scene.rollout(name).status for name in ("dead", "alive")] == [R.REQUEUING, R.RUNNING]


def test_clocks_that_disagree_a_little_do_not_shorten_a_lease(scene: Scene) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    scene.clock.advance(-CLOCKS_S)
    assert scene.sweep() == 0
    assert scene.attempts("t")[0].lease_until == claim.attempt.lease_until
