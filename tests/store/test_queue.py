"""The queue on both engines: order, claims, ends, retries, cancelling, orders. Leases are in test_leases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, Conflict, IllegalMove, NotFound, QueueFull, StaleLease
from holdfast.contracts.rollout import Attempt, AttemptState, Backoff, Claim, Rollout, RolloutState, Split, Task
from holdfast.contracts.run import Wanted
from holdfast.store.queue import SWEEP_LIMIT
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import AT_ONCE, LEASE_S, Scene, begin, span

A, R = AttemptState, RolloutState


def names(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.rollout.name for claim in claims]


# Order


def test_first_in_first_out(scene: Scene) -> None:
    scene.enqueue("z", "a")
    scene.enqueue("m")
    assert [names(scene.claims()) for _ in range(4)] == [["z"], ["a"], ["m"], []]


def test_higher_priority_goes_first_and_equals_keep_their_order(scene: Scene) -> None:
    scene.enqueue("low", priority=-1)
    scene.enqueue("first", "second")
    scene.enqueue("high", priority=5)
    assert names(scene.claims(9)) == ["high", "first", "second", "low"]


def test_a_retried_rollout_keeps_its_place(scene: Scene) -> None:
    scene.enqueue("a", "b", "c")
    a, b = scene.claims(2)
    scene.finish(b, A.FAILED, backoff=AT_ONCE)
    scene.finish(a, A.FAULT, backoff=AT_ONCE)
    assert names(scene.claims(9)) == ["a", "b", "c"]


def test_a_claim_takes_one_unless_asked_for_more(scene: Scene) -> None:
    scene.enqueue("a", "b", "c", "d")
    assert [names(scene.claims()), names(scene.claims(2)), names(scene.claims(2))] == [["a"], ["b", "c"], ["d"]]


def test_a_claim_never_takes_more_than_asked_from_a_long_queue(scene: Scene) -> None:
    """On Postgres a planner that runs the inner query once a row would take the whole queue."""
    scene.enqueue(*(f"t{n}" for n in range(600)))
    connection = scene.store.db.engine.connect(read_only=False)
    connection.execute("ANALYZE")
    connection.close()
    assert names(scene.claims(3)) == ["t0", "t1", "t2"]
    assert scene.store.views.counts(scene.run)[R.RUNNING] == 3


def test_an_empty_queue_gives_nothing(scene: Scene) -> None:
    assert scene.claims(5) == ()


def test_a_claim_tells_the_worker_everything(scene: Scene, clock: Clock) -> None:
    scene.enqueue(
        "t", split=Split.VAL, priority=2, max_attempts=4, timeout_s=100.0, resources=None, metadata={"k": [1, None]}
    )
    enqueued = clock.now
    clock.advance(5.0)
    claim = scene.claim(worker="bob", lease_s=20.0)
    assert claim == Claim(
        rollout=Rollout(
            id=f"{scene.run}/t",
            run=scene.run,
            name="t",
            input={"q": "t"},
            split=Split.VAL,
            status=R.RUNNING,
            priority=2,
            max_attempts=4,
            timeout_s=100.0,
            resources=None,
            metadata={"k": [1, None]},
            attempt_count=1,
            faults=0,
            enqueued_at=enqueued,
            ready_at=enqueued,
            started_at=clock.now,
            ended_at=None,
            reason=None,
            final_attempt=None,
            reward=None,
        ),
        attempt=Attempt(
            id=f"{scene.run}/t:attempt-1",
            rollout=f"{scene.run}/t",
            number=1,
            worker="bob",
            token=claim.attempt.token,
            status=A.RUNNING,
            started_at=clock.now,
            beat_at=clock.now,
            lease_until=clock.now + 20.0,
            deadline=clock.now + 100.0,
            ended_at=None,
            error=None,
        ),
    )
    assert scene.rollout("t") == claim.rollout
    assert scene.attempts("t") == [claim.attempt]


def test_tokens_grow_with_every_claim_of_the_store(scene: Scene, clock: Clock) -> None:
    other = Scene(scene.store, clock, begin(scene.store, clock, salt="b"))
    scene.enqueue("a", "b")
    other.enqueue("a")
    tokens = [claim.attempt.token for claim in (*scene.claims(2), other.claim())]
    scene.finish(scene.attempts("a")[0], A.RELEASED)
    tokens.append(scene.claim().attempt.token)
    assert tokens == sorted(set(tokens))


def test_many_workers_at_once_never_hold_the_same_rollout(scene: Scene, url: str) -> None:
    scene.enqueue(*(f"t{n}" for n in range(80)))

    def work(store: Store, worker: str) -> list[str]:
        mine = Scene(store, scene.clock, scene.run)
        held: list[str] = []
        while claims := mine.claims(3, worker=worker):
            for claim in claims:
                held.append(claim.rollout.name)
                mine.finish(claim, A.SUCCEEDED)
        return held

    with open_store(url) as other, ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(work, store, f"w{n}") for n in range(3) for store in (scene.store, other)]
        held = [name for future in futures for name in future.result()]
    assert sorted(held) == sorted(f"t{n}" for n in range(80))
    assert scene.store.views.counts(scene.run)[R.SUCCEEDED] == 80


# Putting tasks in


def test_the_same_task_twice_is_one_rollout(scene: Scene) -> None:
    fields: dict[str, Any] = {"input": {"b": 1, "a": [2]}, "metadata": {"y": 1, "x": 2}, "timeout_s": 0.1}
    assert scene.enqueue("t", **fields) == 1
    first = scene.rollout("t")
    scene.clock.advance(9)
    assert scene.enqueue("t", **fields) == 1
    assert scene.enqueue("t", **fields | {"input": {"a": [2], "b": 1}, "metadata": {"x": 2, "y": 1}}) == 1
    assert scene.rollout("t") == first
    assert len(scene.claims(9)) == 1
    assert scene.enqueue("t", **fields) == 1  # whatever became of it meanwhile
    assert scene.claims(9) == ()


@pytest.mark.parametrize(
    "other",
    [
        {"input": {"q": "u"}},
        {"input": None},
        {"split": Split.VAL},
        {"split": None},
        {"metadata": {}},
        {"metadata": {"k": True}},  # equal to 1 in Python, not in JSON
        {"priority": 1},
        {"max_attempts": 4},
        {"timeout_s": None},
        {"resources": 2},
    ],
)
def test_the_same_name_with_other_content_is_a_conflict(scene: Scene, other: dict[str, Any]) -> None:
    content: dict[str, Any] = {"split": Split.TRAIN, "metadata": {"k": 1}, "timeout_s": 5.0, "resources": 1}
    scene.enqueue("t", **content)
    before = scene.rollout("t")
    with pytest.raises(Conflict) as refused:
        scene.enqueue("new", "t", **content | other)
    assert str(refused.value) == (
        f"rollout {scene.run}/t: is there already with other content; use another name or another run"
    )
    assert scene.store.views.rollouts(scene.run) == [before]  # nothing of the call was kept


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        "",
        [],
        {"deep": [{"er": [1.5, None, True]}]},
        "Grüße, 世界 🐚",
        "half a character: \ud83d",
        "nothing: \x00",
        2**80,
        -1e-300,
    ],
)
def test_any_json_goes_in_and_comes_out_as_it_was(scene: Scene, value: Any) -> None:
    scene.enqueue("t", input=value, metadata={"m": value})
    claim = scene.claim()
    assert (claim.rollout.input, claim.rollout.metadata) == (value, {"m": value})
    scene.finish(claim, A.SUCCEEDED, output=value)
    assert scene.store.views.output(claim.attempt) == value


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, {"k": float("inf")}])
def test_what_json_cannot_hold_is_refused_before_anything_is_written(scene: Scene, value: Any) -> None:
    with pytest.raises(BadRecord, match="^value for the store: "):
        scene.store.queue.enqueue(scene.run, [Task(name="a", input=1), Task(name="b", input=value)], now=1.0)
    assert scene.store.views.rollouts(scene.run) == []
    scene.enqueue("t")
    claim = scene.claim()
    with pytest.raises(BadRecord, match="^value for the store: "):
        scene.store.queue.finish(claim.attempt, A.SUCCEEDED, now=scene.clock.now, output=value)
    assert scene.rollout("t").status is R.RUNNING


def test_a_full_queue_refuses_and_keeps_nothing_of_the_call(store: Store, clock: Clock) -> None:
    scene = Scene(store, clock, begin(store, clock, queue_limit=3))
    scene.enqueue("a", "b")
    with pytest.raises(QueueFull) as refused:
        scene.enqueue("c", "d")
    assert str(refused.value) == (
        f"run {scene.run}: 2 more would pass its queue limit of 3; wait until some are claimed"
    )
    assert [r.name for r in store.views.rollouts(scene.run)] == ["a", "b"]
    assert scene.enqueue("c") == 1


def test_a_full_queue_takes_as_many_as_there_is_room_for(store: Store, clock: Clock) -> None:
    scene = Scene(store, clock, begin(store, clock, queue_limit=3))
    assert scene.enqueue("a", "b", "c", "d", "e", up_to=True) == 3
    assert scene.enqueue("d", "e", up_to=True) == 0
    assert names(scene.claims(1)) == ["a"]  # what is claimed makes room
    assert scene.enqueue("d", "e", up_to=True) == 1
    assert names(scene.claims(9)) == ["b", "c", "d"]
    assert scene.enqueue("e", up_to=True) == 1


def test_a_task_that_is_there_needs_no_room(store: Store, clock: Clock) -> None:
    """A producer that lost the answer may call again, however full the queue is."""
    scene = Scene(store, clock, begin(store, clock, queue_limit=2))
    scene.enqueue("a", "b")
    assert scene.enqueue("a", "b") == 2
    assert scene.enqueue("a", "b", "c", up_to=True) == 2
    with pytest.raises(QueueFull):
        scene.enqueue("a", "b", "c")
    with pytest.raises(Conflict):
        scene.enqueue("a", input="other", up_to=True)


# Ends


@pytest.mark.parametrize(
    ("ends", "max_attempts", "status", "faults", "reason", "final"),
    [
        ([A.SUCCEEDED], 1, R.SUCCEEDED, 0, None, 1),
        # the agent itself failed, on its last try: that is data
        ([A.FAILED], 1, R.FAILED, 1, "failed: boom (attempt 1 of 1)", 1),
        ([A.FAILED, A.FAILED, A.FAILED], 3, R.FAILED, 3, "failed: boom (attempt 3 of 3)", 3),
        # our side failed: missing, not zero
        ([A.FAULT], 1, R.DEAD, 1, "fault: boom (attempt 1 of 1)", None),
        ([A.TIMEOUT], 1, R.DEAD, 1, "timeout: boom (attempt 1 of 1)", None),
        # the last attempt decides which of the two it is
        ([A.FAILED, A.FAULT], 2, R.DEAD, 2, "fault: boom (attempt 2 of 2)", None),
        ([A.FAULT, A.FAILED], 2, R.FAILED, 2, "failed: boom (attempt 2 of 2)", 2),
        # there are tries left
        ([A.FAILED], 2, R.REQUEUING, 1, "failed: boom", None),
        ([A.FAULT, A.TIMEOUT], 3, R.REQUEUING, 2, "timeout: boom", None),
        # in the end it worked: what went before is no reason any more
        ([A.FAILED, A.SUCCEEDED], 2, R.SUCCEEDED, 1, None, 2),
        # handed back unharmed: does not count, however often
        ([A.RELEASED], 1, R.QUEUING, 0, None, None),
        ([A.RELEASED, A.RELEASED, A.FAILED], 1, R.FAILED, 1, "failed: boom (attempt 1 of 1)", 3),
        ([A.FAILED, A.RELEASED, A.SUCCEEDED], 2, R.SUCCEEDED, 1, None, 3),
    ],
)
def test_how_attempts_end_decides_where_the_rollout_goes(
    scene: Scene, ends: list[A], max_attempts: int, status: R, faults: int, reason: str | None, final: int | None
) -> None:
    scene.enqueue("t", max_attempts=max_attempts)
    answer = None
    for end in ends:
        error = None if end in (A.SUCCEEDED, A.RELEASED) else "boom"
        answer = scene.finish(scene.claim(), end, error=error, reward=1.0, backoff=AT_ONCE)
    rollout = scene.rollout("t")
    assert answer is rollout.status is status
    assert (rollout.attempt_count, rollout.faults, rollout.reason) == (len(ends), faults, reason)
    assert rollout.final_attempt == (None if final is None else f"{rollout.id}:attempt-{final}")
    assert rollout.ended_at == (scene.clock.now if status in (R.SUCCEEDED, R.FAILED, R.DEAD) else None)
    assert rollout.reward == (1.0 if status is R.SUCCEEDED else None)
    assert [(a.number, a.status) for a in scene.attempts("t")] == list(enumerate(ends, 1))


def test_an_end_without_a_message_is_named_by_its_state(scene: Scene) -> None:
    scene.enqueue("t", max_attempts=1)
    scene.finish(scene.claim(), A.FAULT)
    assert scene.rollout("t").reason == "fault (attempt 1 of 1)"


@pytest.mark.parametrize("message", ["a\x00b", "half a character: \ud83d", "Grüße 🐚", "x" * 100_000])
def test_whatever_an_agent_says_when_it_fails_can_be_kept(scene: Scene, message: str) -> None:
    scene.enqueue("t", max_attempts=1)
    scene.finish(scene.claim(), A.FAILED, error=message)
    kept = message.replace("\x00", "\ufffd").replace("\ud83d", "\ufffd")
    assert scene.attempts("t")[0].error == kept
    assert scene.rollout("t").reason == f"failed: {kept} (attempt 1 of 1)"


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


@pytest.mark.parametrize("state", [A.RUNNING, A.UNRESPONSIVE, A.CANCELLED])
def test_a_worker_cannot_end_an_attempt_in_a_state_that_others_give(scene: Scene, state: A) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    with pytest.raises(IllegalMove) as refused:
        scene.finish(claim, state)
    assert str(refused.value) == (
        f"attempt {claim.attempt.id}: cannot be finished as {state}; "
        "use one of failed, fault, released, succeeded, timeout"
    )
    assert scene.rollout("t").status is R.RUNNING


# Waiting for a retry


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


def test_a_waiting_rollout_is_claimed_when_it_is_ripe_and_not_before(scene: Scene) -> None:
    scene.enqueue("t", "next")
    scene.finish(scene.claim(), A.FAILED, backoff=Backoff(initial_s=8.0), chance=0.0)
    assert names(scene.claims()) == ["next"]  # nobody waits behind it
    scene.clock.advance(3.999)
    assert scene.claims() == ()
    scene.clock.advance(0.001)
    assert names(scene.claims()) == ["t"]
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


# Cancel, requeue


@pytest.mark.parametrize("state", [R.QUEUING, R.REQUEUING, R.RUNNING])
def test_what_is_not_done_can_be_cancelled(scene: Scene, state: R) -> None:
    before = scene.brought_to(state)
    scene.clock.advance(1.0)
    answer = scene.cancel("t", why="enough")
    assert answer == scene.rollout("t")
    assert (answer.status, answer.reason, answer.ended_at) == (R.CANCELLED, "enough", scene.clock.now)
    assert answer.faults == before.faults
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


# Orders


@pytest.mark.parametrize(
    ("wanted", "claimable"),
    [(Wanted.RUNNING, True), (Wanted.PAUSED, False), (Wanted.DRAINING, False), (Wanted.CANCELLED, False)],
)
def test_claims_and_beats_obey_the_orders(scene: Scene, wanted: Wanted, claimable: bool) -> None:
    scene.enqueue("held", "next")
    held = scene.claim()
    scene.store.runs.want(scene.run, wanted, who="op", why="test", now=scene.clock.now).result()
    assert bool(scene.claims()) is claimable
    told = scene.store.queue.beat(scene.run, [held.attempt.token], now=scene.clock.now, lease_s=LEASE_S).result()
    assert (told.wanted, told.alive) == (wanted, {held.attempt.token})
    assert scene.finish(held, A.SUCCEEDED) is R.SUCCEEDED  # what runs may end


def test_a_paused_run_goes_on_where_it_was(scene: Scene) -> None:
    scene.enqueue("a", "b")
    scene.finish(scene.claim(), A.FAILED, backoff=AT_ONCE)
    for wanted in (Wanted.PAUSED, Wanted.RUNNING):
        assert scene.claims(9) == () if wanted is not Wanted.PAUSED else True
        scene.store.runs.want(scene.run, wanted, who="op", why="test", now=scene.clock.now).result()
    assert names(scene.claims(9)) == ["a", "b"]


# Runs and projects


def test_runs_with_the_same_task_names_do_not_collide(scene: Scene, clock: Clock) -> None:
    other = Scene(scene.store, clock, begin(scene.store, clock, salt="b"))
    scene.enqueue("t", input=1)
    other.enqueue("t", input=2)
    assert (scene.claim().rollout.input, other.claim().rollout.input) == (1, 2)
    scene.cancel("t")
    assert (scene.rollout("t").status, other.rollout("t").status) == (R.CANCELLED, R.RUNNING)
    assert (scene.claims(9), other.claims(9)) == ((), ())


def test_a_project_does_not_see_the_runs_of_another(scene: Scene, url: str, clock: Clock) -> None:
    scene.enqueue("t", "u")
    scene.claim()
    with open_store(url, project="other") as elsewhere:
        stranger = Scene(elsewhere, clock, scene.run)
        rollout_id = f"{scene.run}/t"
        for call in (
            lambda: stranger.enqueue("x"),
            lambda: stranger.claims(),
            lambda: stranger.beat(),
            lambda: stranger.cancel("t"),
            lambda: stranger.requeue("t"),
            lambda: elsewhere.queue.cancel_open(scene.run, now=1.0, why="x").result(),
            lambda: elsewhere.queue.next_ripe(scene.run),
            lambda: elsewhere.views.rollout(rollout_id),
            lambda: elsewhere.views.rollouts(scene.run),
            lambda: elsewhere.views.attempts(rollout_id),
            lambda: elsewhere.views.counts(scene.run),
            lambda: elsewhere.views.rewards(scene.run),
            lambda: elsewhere.views.is_done(scene.run),
        ):
            with pytest.raises(NotFound, match=rf"^run '{scene.run}': there is none in project 'other'"):
                call()
    assert scene.store.views.counts(scene.run) == dict.fromkeys(R, 0) | {R.QUEUING: 1, R.RUNNING: 1}


def test_a_claim_can_do_nothing_for_an_attempt_of_another_rollout(scene: Scene) -> None:
    scene.enqueue("a", "b")
    a, b = scene.claims(2)
    scene.finish(a, A.SUCCEEDED)
    with pytest.raises(StaleLease):
        scene.store.traces.add(a.attempt, [span()], now=scene.clock.now).result()
    assert scene.rollout("b").status is R.RUNNING
    assert scene.store.traces.spans(b.attempt.token) == []
