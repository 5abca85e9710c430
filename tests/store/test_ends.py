"""How rollouts end: done, tried again after a wait, given up with the reason, cancelled, put back."""

from __future__ import annotations

import pytest

from holdfast.contracts.errors import BadRecord, IllegalMove, NotFound, StoreError
from holdfast.contracts.rollout import AttemptState, Backoff, RolloutState
from holdfast.store.queue import CLOCKS_S, SWEEP_LIMIT
from tests.conftest import Clock
from tests.store.scene import AT_ONCE, LEASE_S, Scene, begin, span

A, R = AttemptState, RolloutState


@pytest.mark.parametrize(
    ("ends", "tries", "status", "counted", "reason", "final"),
    [  # tries: max_attempts and max_faults; counted: failures of the agent, and of infrastructure
        ([A.SUCCEEDED], (1, 0), R.SUCCEEDED, (0, 0), None, 1),
        # the agent itself failed, on its last try: that is data
        ([A.FAILED], (1, 5), R.FAILED, (1, 0), "failed: boom (attempt 1 of 1)", 1),
        ([A.FAILED, A.FAILED, A.FAILED], (3, 0), R.FAILED, (3, 0), "failed: boom (attempt 3 of 3)", 3),
        # so did one that ran out of time
        ([A.TIMEOUT], (1, 5), R.FAILED, (1, 0), "timeout: boom (attempt 1 of 1)", 1),
        ([A.FAILED, A.TIMEOUT], (2, 0), R.FAILED, (2, 0), "timeout: boom (attempt 2 of 2)", 2),
        # infrastructure failed: missing, not zero, once there were more faults than are allowed
        ([A.FAULT], (3, 0), R.DEAD, (0, 1), "fault: boom (interrupted 1 times)", None),
        ([A.FAULT] * 3, (1, 2), R.DEAD, (0, 3), "fault: boom (interrupted 3 times)", None),
        ([A.FAULT] * 5, (1, 5), R.REQUEUING, (0, 5), "fault: boom", None),
        # the two are counted apart: neither uses up the other
        ([A.FAULT, A.FAULT, A.FAILED], (1, 2), R.FAILED, (1, 2), "failed: boom (attempt 1 of 1)", 3),
        ([A.FAILED, A.FAULT], (2, 1), R.REQUEUING, (1, 1), "fault: boom", None),
        ([A.FAILED, A.FAULT], (2, 0), R.DEAD, (1, 1), "fault: boom (interrupted 1 times)", None),
        ([A.FAULT, A.TIMEOUT, A.FAULT, A.FAILED], (2, 2), R.FAILED, (2, 2), "failed: boom (attempt 2 of 2)", 4),
        # there are tries left
        ([A.FAILED], (2, 0), R.REQUEUING, (1, 0), "failed: boom", None),
        ([A.FAULT, A.TIMEOUT], (3, 5), R.REQUEUING, (1, 1), "timeout: boom", None),
        # in the end it worked: what went before is no reason any more
        ([A.FAILED, A.SUCCEEDED], (2, 0), R.SUCCEEDED, (1, 0), None, 2),
        ([A.FAULT, A.FAULT, A.SUCCEEDED], (1, 2), R.SUCCEEDED, (0, 2), None, 3),
        # handed back unharmed: does not count, however often
        ([A.RELEASED], (1, 0), R.QUEUING, (0, 0), None, None),
        ([A.RELEASED, A.RELEASED, A.FAILED], (1, 0), R.FAILED, (1, 0), "failed: boom (attempt 1 of 1)", 3),
        ([A.FAILED, A.RELEASED, A.SUCCEEDED], (2, 0), R.SUCCEEDED, (1, 0), None, 3),
    ],
)
def test_how_attempts_end_decides_where_the_rollout_goes(
    scene: Scene,
    ends: list[A],
    tries: tuple[int, int],
    status: R,
    counted: tuple[int, int],
    reason: str | None,
    final: int | None,
) -> None:
    scene.enqueue("t", max_attempts=tries[0], max_faults=tries[1])
    answer = None
    for end in ends:
        error = None if end in (A.SUCCEEDED, A.RELEASED) else "boom"
        answer = scene.finish(scene.claim(), end, error=error, reward=1.0, outcome="right", backoff=AT_ONCE)
    rollout = scene.rollout("t")
    assert answer is rollout.status is status
    assert (rollout.attempt_count, rollout.reason) == (len(ends), reason)
    assert (rollout.faults, rollout.interruptions) == counted
    assert rollout.final_attempt == (None if final is None else f"{rollout.id}:attempt-{final}")
    assert rollout.ended_at == (scene.clock.now if status in (R.SUCCEEDED, R.FAILED, R.DEAD) else None)
    assert rollout.reward == (1.0 if status is R.SUCCEEDED else None)
    assert rollout.outcome == {R.SUCCEEDED: "right", R.FAILED: "wrong"}.get(status)
    assert [(a.number, a.status) for a in scene.attempts("t")] == list(enumerate(ends, 1))


def test_an_end_without_a_message_is_named_by_its_state(scene: Scene) -> None:
    scene.enqueue("t", "u", max_attempts=1, max_faults=0)
    scene.finish(scene.claim(), A.FAULT)
    scene.finish(scene.claim(), A.FAILED)
    assert scene.rollout("t").reason == "fault (interrupted 1 times)"
    assert scene.rollout("u").reason == "failed (attempt 1 of 1)"


@pytest.mark.parametrize("outcome", ["right", "wrong", None])
def test_the_outcome_of_a_finished_rollout_is_what_its_worker_found(scene: Scene, outcome: str | None) -> None:
    scene.enqueue("t")
    scene.finish(scene.claim(), A.SUCCEEDED, outcome=outcome)
    assert scene.rollout("t").outcome == outcome


@pytest.mark.parametrize("message", ["a\x00b", "half a character: \ud83d", "Grüße 🐚", "x" * 100_000])
def test_whatever_an_agent_says_when_it_fails_can_be_kept(scene: Scene, message: str) -> None:
    scene.enqueue("t", max_attempts=1)
    scene.finish(scene.claim(), A.FAILED, error=message)
    kept = message.replace("\x00", "\ufffd").replace("\ud83d", "\ufffd")
    assert scene.attempts("t")[0].error == kept
    assert scene.rollout("t").reason == f"failed: {kept} (attempt 1 of 1)"


@pytest.mark.parametrize("seqs", [[1, 2], [1, 1], [2, 1, 1]])
def test_an_attempt_does_not_succeed_without_the_writes_that_went_before(scene: Scene, seqs: list[int]) -> None:
    """All handed over at once, none waited for; a span whose number is taken is refused."""
    scene.enqueue("t")
    attempt, now = scene.claim().attempt, scene.clock.now
    spans = [scene.store.traces.add(attempt, [span(seq)], now=now) for seq in seqs]
    end = scene.store.queue.finish(attempt, A.SUCCEEDED, now=now, after=spans)
    if len(set(seqs)) == len(seqs):
        assert end.result() is R.SUCCEEDED
        return
    with pytest.raises(StoreError, match=r"(?i)unique"):
        end.result()
    assert scene.rollout("t").status is R.RUNNING
    assert sorted(s.seq for s in scene.store.traces.spans(attempt.token)) == sorted(set(seqs))


@pytest.mark.parametrize("reward", [None, 0.0, -2.5, 1e300])
def test_a_reward_is_kept_and_none_is_missing(scene: Scene, reward: float | None) -> None:
    scene.enqueue("t")
    scene.finish(scene.claim(), A.SUCCEEDED, reward=reward)
    assert scene.rollout("t").reward == reward


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), float("-inf")])
def test_a_reward_that_is_no_number_is_refused(scene: Scene, reward: float) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    with pytest.raises(BadRecord, match=rf"^attempt {claim.attempt.id}: reward {reward}: must be finite"):
        scene.finish(claim, A.SUCCEEDED, reward=reward)
    assert scene.rollout("t").status is R.RUNNING


def test_a_pool_that_lost_the_process_of_an_attempt_says_so_itself(scene: Scene) -> None:
    """It need not wait for the lease to run out; three of them are the agent's failure, as with the sweep."""
    scene.enqueue("t", max_attempts=3, max_faults=9)
    ends = [scene.finish(scene.claim(), A.UNRESPONSIVE, error="exit 137", backoff=AT_ONCE) for _ in range(3)]
    assert ends == [R.REQUEUING, R.REQUEUING, R.FAILED]
    assert scene.rollout("t").reason == "unresponsive: exit 137 (it took 3 workers down)"


@pytest.mark.parametrize("state", [A.RUNNING, A.CANCELLED])
def test_a_worker_cannot_end_an_attempt_in_a_state_that_others_give(scene: Scene, state: A) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    with pytest.raises(IllegalMove) as refused:
        scene.finish(claim, state)
    assert str(refused.value) == (
        f"attempt {claim.attempt.id}: cannot be finished as {state}; "
        "use one of failed, fault, released, succeeded, timeout, unresponsive"
    )
    assert scene.rollout("t").status is R.RUNNING


@pytest.mark.parametrize(
    ("faults", "chance", "wait_s"),
    [
        (1, 0.0, 0.25),  # half of 0.5
        (1, 0.5, 0.375),
        (2, 0.5, 0.75),  # doubled
        (3, 0.0, 1.0),
        (4, 0.5, 2.25),  # half and a half of the cap of 3, not of 4
    ],
)
def test_the_wait_doubles_up_to_a_cap_and_leaves_half_to_chance(
    scene: Scene, faults: int, chance: float, wait_s: float
) -> None:
    scene.enqueue("t", max_attempts=9)
    for n in range(1, faults + 1):
        how = {"backoff": Backoff(initial_s=0.5, cap_s=3.0), "chance": chance} if n == faults else {"backoff": AT_ONCE}
        scene.finish(scene.claim(), A.FAILED, **how)
    assert scene.rollout("t").ready_at == scene.clock.now + wait_s
    assert scene.store.queue.next_ripe(scene.run) == scene.clock.now + wait_s


def test_faults_of_infrastructure_wait_by_their_own_number(scene: Scene) -> None:
    scene.enqueue("t", max_attempts=9, max_faults=9)
    for end in (A.FAILED, A.FAILED, A.FAULT):  # two failures of the agent, and the first fault of ours
        scene.finish(scene.claim(), end, backoff=AT_ONCE)
    scene.finish(scene.claim(), A.FAULT, backoff=Backoff(initial_s=0.5, cap_s=30.0), chance=0.0)
    assert scene.rollout("t").ready_at == scene.clock.now + 0.5  # of the second, not of the fourth


def test_a_waiting_rollout_is_claimed_when_it_is_ripe_and_not_before(scene: Scene) -> None:
    scene.enqueue("t", "next")
    scene.finish(scene.claim(), A.FAILED, backoff=Backoff(initial_s=8.0), chance=0.0)
    assert [claim.rollout.name for claim in scene.claims()] == ["next"]  # nobody waits behind it
    scene.clock.advance(3.999)
    assert scene.claims() == ()
    scene.clock.advance(0.001)
    assert [claim.rollout.name for claim in scene.claims()] == ["t"]
    assert scene.store.queue.next_ripe(scene.run) is None


def test_a_crowd_that_one_worker_left_behind_is_spread(scene: Scene) -> None:
    scene.enqueue(*(f"t{n}" for n in range(20)))
    scene.claims(20)
    scene.clock.advance(LEASE_S)
    assert scene.sweep() == 20
    waits = sorted(r.ready_at - scene.clock.now for r in scene.store.views.rollouts(scene.run))
    assert len(set(waits)) == 20
    assert waits[0] >= 0.25 and waits[-1] < 0.5
    assert waits[-1] - waits[0] > 0.2


@pytest.mark.parametrize("state", [R.QUEUING, R.REQUEUING, R.RUNNING])
def test_what_is_not_done_can_be_cancelled(scene: Scene, state: R) -> None:
    before = scene.brought_to(state)
    scene.clock.advance(1.0)
    answer = scene.cancel("t", why="enough")
    assert answer == scene.rollout("t")
    assert (answer.status, answer.reason, answer.ended_at) == (R.CANCELLED, "enough", scene.clock.now)
    assert (answer.faults, answer.interruptions) == (before.faults, before.interruptions)
    assert scene.claims() == ()
    scene.clock.advance(1000)
    assert (scene.sweep(), scene.claims()) == (0, ())
    if state is R.RUNNING:
        (attempt,) = scene.attempts("t")
        assert (attempt.status, attempt.error) == (A.CANCELLED, "enough")


@pytest.mark.parametrize(
    ("state", "allowed"),
    [
        (R.SUCCEEDED, "nothing: it is final"),
        (R.FAILED, "queuing"),
        (R.DEAD, "queuing"),
        (R.CANCELLED, "queuing"),
    ],
)
def test_what_is_done_cannot_be_cancelled(scene: Scene, state: R, allowed: str) -> None:
    before = scene.brought_to(state)
    with pytest.raises(IllegalMove) as refused:
        scene.cancel("t")
    assert str(refused.value) == (
        f"rollout {scene.run}/t: cannot go from {state} to cancelled; from {state} it may go to {allowed}"
    )
    assert scene.rollout("t") == before


@pytest.mark.parametrize("state", [R.FAILED, R.DEAD, R.CANCELLED])
def test_a_requeued_rollout_has_a_fresh_set_of_attempts_and_new_numbers(scene: Scene, state: R) -> None:
    tried = scene.brought_to(state).attempt_count
    scene.clock.advance(5)
    answer = scene.requeue("t")
    assert answer == scene.rollout("t")
    assert (answer.status, answer.faults, answer.reason, answer.ended_at) == (R.QUEUING, 0, None, None)
    assert (answer.interruptions, answer.outcome) == (0, None)
    assert (answer.final_attempt, answer.reward, answer.ready_at) == (None, None, scene.clock.now)
    claim = scene.claim()
    assert claim.attempt.number == tried + 1
    assert scene.finish(claim, A.SUCCEEDED) is R.SUCCEEDED


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (R.QUEUING, "is queuing, not done; cancel it first"),
        (R.REQUEUING, "is requeuing, not done; cancel it first"),
        (R.RUNNING, "is running, not done; cancel it first"),  # its attempt still holds it
        (R.SUCCEEDED, "cannot go from succeeded to queuing; from succeeded it may go to nothing: it is final"),
    ],
)
def test_only_what_ended_without_success_can_be_requeued(scene: Scene, state: R, why: str) -> None:
    before = scene.brought_to(state)
    with pytest.raises(IllegalMove) as refused:
        scene.requeue("t")
    assert str(refused.value) == f"rollout {scene.run}/t: {why}"
    assert scene.rollout("t") == before


@pytest.mark.parametrize("call", ["cancel", "requeue"])
def test_a_rollout_that_is_not_there_is_named(scene: Scene, call: str) -> None:
    with pytest.raises(NotFound) as refused:
        getattr(scene, call)("ghost")
    assert str(refused.value) == f"rollout {scene.run}/ghost: there is none; 'holdfast rollouts RUN' lists them"


def test_everything_open_in_a_run_is_cancelled_a_few_hundred_at_a_time(scene: Scene, clock: Clock) -> None:
    other = Scene(scene.store, clock, begin(scene.store, clock, salt="b"))
    other.enqueue("t")
    scene.enqueue("done", "waits", "runs", *(f"t{n}" for n in range(SWEEP_LIMIT)))
    done, waits, _ = scene.claims(3)
    scene.finish(done, A.SUCCEEDED)
    scene.finish(waits, A.FAULT)

    def cancel_open() -> int:
        return scene.store.queue.cancel_open(scene.run, now=clock.now, why="over").result()

    assert [cancel_open(), cancel_open(), cancel_open()] == [SWEEP_LIMIT, 2, 0]
    counts = scene.store.views.counts(scene.run)
    assert (counts[R.CANCELLED], counts[R.SUCCEEDED]) == (SWEEP_LIMIT + 2, 1)
    assert scene.attempts("runs")[0].status is A.CANCELLED
    assert other.rollout("t").status is R.QUEUING


@pytest.mark.parametrize(
    ("back_s", "claimable"),
    [
        (CLOCKS_S - 1, False),  # clocks disagree by so much: it waits its time
        (CLOCKS_S + 1, True),  # its wait began in what is now the future
        (1e9, True),
    ],
)
def test_a_clock_that_is_set_back_lets_nobody_wait_for_ever(scene: Scene, back_s: float, claimable: bool) -> None:
    scene.enqueue("t", "next")
    scene.finish(scene.claim(), A.FAILED)
    scene.clock.advance(-back_s)
    assert [claim.rollout.name for claim in scene.claims()] == ["next"]  # what is there goes first
    assert bool(scene.claims()) is claimable


def test_a_long_backoff_is_not_taken_for_a_clock_that_was_set_back(scene: Scene) -> None:
    scene.enqueue("t")
    scene.finish(scene.claim(), A.FAILED, backoff=Backoff(initial_s=3600.0, cap_s=3600.0))
    assert scene.claims() == ()
    scene.clock.advance(3600)
    assert len(scene.claims()) == 1
