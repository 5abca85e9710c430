"""The queue: what goes in, who gets it and in which order. Leases are in test_leases, ends in test_ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, Conflict, IllegalMove, NotFound, QueueFull, StoreError
from holdfast.contracts.rollout import Attempt, AttemptState, Backoff, Claim, Rollout, RolloutState, Split, Task
from holdfast.contracts.run import DesiredState
from holdfast.store.queue import CLOCKS_S, SWEEP_LIMIT
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import AT_ONCE, LEASE_S, Scene, begin, once, run_sql, says, span

A, R = AttemptState, RolloutState


def names(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.rollout.name for claim in claims]


def test_higher_priority_goes_first_and_equals_keep_their_order(scene: Scene) -> None:
    assert scene.claims(5) == ()  # an empty queue gives nothing
    scene.enqueue("low", priority=-1)
    scene.enqueue("z", "a")
    scene.enqueue("m")
    scene.enqueue("high", priority=5)
    assert [names(scene.claims()), names(scene.claims(2)), names(scene.claims(9))] == [
        ["high"],
        ["z", "a"],
        ["m", "low"],
    ]


def test_a_retried_rollout_keeps_its_place(scene: Scene) -> None:
    scene.enqueue("a", "b", "c")
    a, b = scene.claims(2)
    scene.finish(b, A.FAILED, backoff=AT_ONCE)
    scene.finish(a, A.FAULT, backoff=AT_ONCE)
    assert names(scene.claims(9)) == ["a", "b", "c"]


def test_a_claim_never_takes_more_than_asked_from_a_long_queue(scene: Scene) -> None:
    """On Postgres a planner that runs the inner query once a row would take the whole queue."""
    scene.enqueue(*(f"t{n}" for n in range(600)))
    run_sql(scene.store, "ANALYZE")
    assert names(scene.claims(3)) == ["t0", "t1", "t2"]
    assert scene.store.views.counts(scene.run)[R.RUNNING] == 3


def test_a_worker_takes_what_it_can_answer_for_and_leaves_the_rest(scene: Scene) -> None:
    """Whose version it is; what carries none is nobody's who names theirs."""
    for name, version in (("a", "p@1"), ("b", "p@10"), ("c", "p@2"), ("d", None)):
        scene.enqueue(name, version=version)

    def claimed(*versions: str) -> list[str]:
        taken = scene.store.queue.claim(scene.run, "w", now=scene.clock.now, lease_s=LEASE_S, most=9, versions=versions)
        return names(taken.result())

    assert (claimed(), claimed("p@0", "p")) == ([], [])
    assert claimed("p@2", "p@1") == ["a", "c"]
    assert (claimed("p@10"), names(scene.claims(9))) == (["b"], ["d"])


def test_a_claim_tells_the_worker_everything(scene: Scene, clock: Clock) -> None:
    given: dict[str, Any] = {"split": Split.VAL, "priority": 2, "max_attempts": 4, "timeout_s": 100.0}
    given |= {"resources": None, "metadata": {"k": [1, None]}, "step": "0/collect", "version": "p@3", "max_faults": 2}
    scene.enqueue("t", **given)
    enqueued = clock.now
    clock.advance(5.0)
    claim = scene.claim(worker="bob", lease_s=20.0)
    rollout = {"id": f"{scene.run}/t", "run": scene.run, "name": "t", "input": {"q": "t"}, **given}
    counts = {
        "attempt_count": 1,
        "faults": 0,
        "status": R.RUNNING,
        "reward": None,
        "reason": None,
        "final_attempt": None,
    }
    times = {"enqueued_at": enqueued, "ready_at": enqueued, "started_at": clock.now, "ended_at": None}
    attempt = {"id": f"{scene.run}/t:attempt-1", "rollout": f"{scene.run}/t", "number": 1, "worker": "bob"}
    attempt |= {"status": A.RUNNING, "started_at": clock.now, "beat_at": clock.now, "ended_at": None, "error": None}
    lease = {"token": claim.attempt.token, "lease_until": clock.now + 20.0, "deadline": clock.now + 100.0}
    assert claim == Claim(rollout=Rollout(**rollout, **counts, **times), attempt=Attempt(**attempt, **lease))
    assert (scene.rollout("t"), scene.attempts("t")) == (claim.rollout, [claim.attempt])


def test_tokens_grow_with_every_claim_of_the_store(scene: Scene, clock: Clock) -> None:
    other = scene.beside()
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


def test_the_same_task_twice_is_one_rollout(scene: Scene) -> None:
    fields: dict[str, Any] = {"input": {"b": 1, "a": [2]}, "metadata": {"y": 1, "x": 2}, "timeout_s": 0.1}
    assert scene.enqueue("t", **fields) == 1
    first = scene.rollout("t")
    scene.clock.advance(9)
    assert scene.enqueue("t", **fields) == 1
    assert scene.enqueue("t", **fields | {"input": {"a": [2], "b": 1}, "metadata": {"x": 2, "y": 1}}) == 1
    assert scene.rollout("t") == first
    assert len(scene.claims(9)) == 1
    assert scene.enqueue("t", "t", **fields) == 2  # whatever became of it meanwhile
    assert scene.claims(9) == ()


def test_the_same_name_with_other_content_is_a_conflict(scene: Scene) -> None:
    content: dict[str, Any] = {"split": Split.TRAIN, "metadata": {"k": 1}, "timeout_s": 5.0, "resources": 1}
    scene.enqueue("t", **content)
    before = scene.rollout("t")
    others: list[dict[str, Any]] = [{"input": {"q": "u"}}, {"input": None}, {"split": Split.VAL}, {"split": None}]
    others += [{"metadata": {}}, {"metadata": {"k": True}}]  # equal to 1 in Python, not in JSON
    others += [{"priority": 1}, {"max_attempts": 4}, {"timeout_s": None}, {"resources": 2}]
    said = f"rollout {scene.run}/t: is there already with other content; use another name or another run"
    for other in others:
        with says(Conflict, said):
            scene.enqueue("new", "t", **content | other)
    assert scene.store.views.rollouts(scene.run) == [before]  # nothing of the calls was kept
    with pytest.raises(BadRecord, match="max_faults = -1: must be at least 0"):
        scene.enqueue("u", max_faults=-1)


ANY_JSON = [None, 0, "", [], {"deep": [{"er": [1.5, None, True]}]}, "Grüße, 世界 🐚"]
ANY_JSON += ["half a character: \ud83d", "nothing: \x00", 2**80, -1e-300]


def test_any_json_goes_in_and_comes_out_as_it_was_and_what_is_none_is_refused(scene: Scene) -> None:
    for place, value in enumerate(ANY_JSON):
        scene.enqueue(f"t{place}", input=value, metadata={"m": value})
        claim = scene.claim()
        assert (claim.rollout.input, claim.rollout.metadata) == (value, {"m": value})
        scene.finish(claim, A.SUCCEEDED, output=value)
        assert scene.store.views.output(claim.attempt) == value
    scene.enqueue("held")
    held, now = scene.claim(), scene.clock.now
    for bad in (float("nan"), {1, 2}, {"k": float("inf")}):
        with pytest.raises(BadRecord, match="^value for the store: "):
            scene.store.queue.enqueue(scene.run, [Task(name="a", input=1), Task(name="b", input=bad)], now=now)
        with pytest.raises(BadRecord, match="^value for the store: "):
            scene.store.queue.finish(held.attempt, A.SUCCEEDED, now=now, output=bad)
    assert len(scene.store.views.rollouts(scene.run)) == len(ANY_JSON) + 1
    assert scene.rollout("held").status is R.RUNNING


def test_a_full_queue_refuses_and_keeps_nothing_of_the_call(store: Store, clock: Clock) -> None:
    scene = Scene(store, clock, begin(store, clock, queue_limit=3))
    scene.enqueue("a", "b")
    with says(QueueFull, f"run {scene.run}: 2 more would pass its queue limit of 3; wait until some are claimed"):
        scene.enqueue("c", "d")
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


def test_claims_and_beats_obey_the_orders(scene: Scene) -> None:
    """A run that was held goes on where it was; one that is cancelled does not."""
    scene.enqueue("a", "held", "b")
    scene.finish(scene.claim(), A.FAILED, backoff=AT_ONCE)
    _, held = scene.claims(2)
    scene.finish(scene.attempts("a")[-1], A.RELEASED)
    orders = (DesiredState.PAUSED, DesiredState.RUNNING, DesiredState.DRAINING, DesiredState.CANCELLED)
    for wanted in orders:
        scene.want(wanted)
        told = scene.store.queue.beat(scene.run, [held.attempt.token], now=scene.clock.now, lease_s=LEASE_S).result()
        assert (told.wanted, told.alive) == (wanted, {held.attempt.token})
        assert names(scene.claims()) == (["a"] if wanted is DesiredState.RUNNING else [])
    assert scene.finish(held, A.SUCCEEDED) is R.SUCCEEDED  # what runs may end


def test_runs_with_the_same_task_names_do_not_collide(scene: Scene, clock: Clock) -> None:
    other = scene.beside()
    scene.enqueue("t", input=1)
    other.enqueue("t", input=2)
    assert (scene.claim().rollout.input, other.claim().rollout.input) == (1, 2)
    scene.cancel("t")
    assert (scene.rollout("t").status, other.rollout("t").status) == (R.CANCELLED, R.RUNNING)
    assert (scene.claims(9), other.claims(9)) == ((), ())


def record(scene: Scene, step: str) -> None:
    scene.store.steps.add(scene.run, step, {}, function="collect", now=scene.clock.now).result()


def test_what_is_requeued_of_a_recorded_step_is_passed_over(scene: Scene) -> None:
    """Nobody waits for it any more, and its policy may be another by now."""
    scene.enqueue("a", "b", max_attempts=1, step="0/collect", priority=9)
    scene.enqueue("c", step="1/collect")
    scene.enqueue("d")
    for claim in scene.claims(2):
        scene.finish(claim, A.FAILED)
    record(scene, "0/collect")
    scene.requeue("a")
    assert names(scene.claims(9)) == ["c", "d"]
    assert scene.claims(9) == ()
    assert (scene.rollout("a").status, scene.rollout("a").attempt_count) == (R.QUEUING, 1)


def test_a_step_of_another_run_closes_nothing(scene: Scene, clock: Clock) -> None:
    other = scene.beside()
    record(other, "0/collect")
    scene.enqueue("a", step="0/collect")
    assert names(scene.claims()) == ["a"]


def test_a_rollout_of_no_step_is_taken_in_by_the_one_that_asks_for_it(scene: Scene) -> None:
    """So an old run goes on: what it had finished before there were steps is not run again."""
    scene.enqueue("done", "waits", "of another")
    scene.finish(scene.claim(), A.SUCCEEDED, reward=1.0)
    scene.enqueue("of another", step="1/collect", version="p@2")
    assert scene.enqueue("done", "waits", "of another", step="0/collect", version="p@1") == 3
    assert [(r.name, r.step, r.version) for r in scene.store.views.rollouts(scene.run)] == [
        ("done", "0/collect", "p@1"),
        ("waits", "0/collect", "p@1"),
        ("of another", "1/collect", "p@2"),
    ]
    assert (scene.rollout("done").status, scene.rollout("done").reward) == (R.SUCCEEDED, 1.0)
    scene.enqueue("waits")  # by nobody in particular: it stays where it is
    assert scene.rollout("waits").step == "0/collect"


A, R = AttemptState, RolloutState


# How attempts end; max_attempts and max_faults; where the rollout goes; failures of the agent, and of infrastructure;
# why; the attempt that decided it.
ENDINGS: list[tuple[list[A], tuple[int, int], R, tuple[int, int], str | None, int | None]] = [
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
]


def test_how_attempts_end_decides_where_the_rollout_goes(scene: Scene) -> None:
    for place, (ends, tries, status, counted, reason, final) in enumerate(ENDINGS):
        mine = scene.beside(f"row{place}")
        mine.enqueue("t", max_attempts=tries[0], max_faults=tries[1])
        answer = None
        for end in ends:
            error = None if end in (A.SUCCEEDED, A.RELEASED) else "boom"
            answer = mine.finish(mine.claim(), end, error=error, reward=1.0, outcome="right", backoff=AT_ONCE)
        rollout = mine.rollout("t")
        assert answer is rollout.status is status, ends
        assert (rollout.attempt_count, rollout.reason) == (len(ends), reason)
        assert (rollout.faults, rollout.interruptions) == counted
        assert rollout.final_attempt == (None if final is None else f"{rollout.id}:attempt-{final}")
        assert rollout.ended_at == (mine.clock.now if status in (R.SUCCEEDED, R.FAILED, R.DEAD) else None)
        assert rollout.reward == (1.0 if status is R.SUCCEEDED else None)
        assert rollout.outcome == {R.SUCCEEDED: "right", R.FAILED: "wrong"}.get(status)
        assert [(a.number, a.status) for a in mine.attempts("t")] == list(enumerate(ends, 1))


def test_an_end_without_a_message_is_named_by_its_state(scene: Scene) -> None:
    scene.enqueue("t", "u", max_attempts=1, max_faults=0)
    scene.finish(scene.claim(), A.FAULT)
    scene.finish(scene.claim(), A.FAILED)
    assert scene.rollout("t").reason == "fault (interrupted 1 times)"
    assert scene.rollout("u").reason == "failed (attempt 1 of 1)"


@once
def test_outcome_and_reward_are_what_the_worker_found_and_none_is_missing(scene: Scene) -> None:
    for place, (outcome, reward) in enumerate((("right", 0.0), ("wrong", -2.5), (None, 1e300), (None, None))):
        scene.enqueue(f"t{place}")
        scene.finish(scene.claim(), A.SUCCEEDED, outcome=outcome, reward=reward)
        assert (scene.rollout(f"t{place}").outcome, scene.rollout(f"t{place}").reward) == (outcome, reward)
    scene.enqueue("t")
    claim = scene.claim()
    for bad in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(BadRecord, match=rf"^attempt {claim.attempt.id}: reward {bad}: must be finite"):
            scene.finish(claim, A.SUCCEEDED, reward=bad)
    for state in (A.RUNNING, A.CANCELLED):  # which others give
        use = "use one of failed, fault, released, succeeded, timeout, unresponsive"
        with says(IllegalMove, f"attempt {claim.attempt.id}: cannot be finished as {state}; {use}"):
            scene.finish(claim, state)
    assert scene.rollout("t").status is R.RUNNING


@once
def test_whatever_an_agent_says_when_it_fails_can_be_kept(scene: Scene) -> None:
    for place, message in enumerate(("a\x00b", "half a character: \ud83d", "Grüße 🐚", "x" * 100_000)):
        scene.enqueue(f"t{place}", max_attempts=1)
        scene.finish(scene.claim(), A.FAILED, error=message)
        kept = message.replace("\x00", "\ufffd").replace("\ud83d", "\ufffd")
        assert scene.attempts(f"t{place}")[0].error == kept
        assert scene.rollout(f"t{place}").reason == f"failed: {kept} (attempt 1 of 1)"


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


def test_a_pool_that_lost_the_process_of_an_attempt_says_so_itself(scene: Scene) -> None:
    """It need not wait for the lease to run out; three of them are the agent's failure, as with the sweep."""
    scene.enqueue("t", max_attempts=3, max_faults=9)
    ends = [scene.finish(scene.claim(), A.UNRESPONSIVE, error="exit 137", backoff=AT_ONCE) for _ in range(3)]
    assert ends == [R.REQUEUING, R.REQUEUING, R.FAILED]
    assert scene.rollout("t").reason == "unresponsive: exit 137 (it took 3 workers down)"


def test_the_wait_doubles_up_to_a_cap_and_leaves_half_to_chance(scene: Scene) -> None:
    for faults, chance, wait_s in (
        (1, 0.0, 0.25),  # half of 0.5
        (1, 0.5, 0.375),
        (2, 0.5, 0.75),  # doubled
        (3, 0.0, 1.0),
        (4, 0.5, 2.25),  # half and a half of the cap of 3, not of 4
    ):
        mine = scene.beside(f"{faults}")
        mine.enqueue("t", max_attempts=9)
        for _ in range(faults - 1):
            mine.finish(mine.claim(), A.FAILED, backoff=AT_ONCE)
        mine.finish(mine.claim(), A.FAILED, backoff=Backoff(initial_s=0.5, cap_s=3.0), chance=chance)
        assert mine.rollout("t").ready_at == mine.store.queue.next_ripe(mine.run) == mine.clock.now + wait_s


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


@once
def test_a_crowd_that_one_worker_left_behind_is_spread(scene: Scene) -> None:
    scene.enqueue(*(f"t{n}" for n in range(20)))
    scene.claims(20)
    scene.clock.advance(LEASE_S)
    assert scene.sweep() == 20
    waits = sorted(r.ready_at - scene.clock.now for r in scene.store.views.rollouts(scene.run))
    assert len(set(waits)) == 20
    assert waits[0] >= 0.25 and waits[-1] < 0.5
    assert waits[-1] - waits[0] > 0.2


def test_what_is_not_done_can_be_cancelled(scene: Scene) -> None:
    for state in (R.QUEUING, R.REQUEUING, R.RUNNING):
        mine = scene.beside(state)
        before = mine.brought_to(state)
        mine.clock.advance(1.0)
        answer = mine.cancel("t", why="enough")
        assert answer == mine.rollout("t")
        assert (answer.status, answer.reason, answer.ended_at) == (R.CANCELLED, "enough", mine.clock.now)
        assert (answer.faults, answer.interruptions) == (before.faults, before.interruptions)
        assert mine.claims() == ()
        mine.clock.advance(1000)
        assert (mine.sweep(), mine.claims()) == (0, ())
    (attempt,) = mine.attempts("t")
    assert (attempt.status, attempt.error) == (A.CANCELLED, "enough")


def test_what_is_done_cannot_be_cancelled(scene: Scene) -> None:
    for state in (R.SUCCEEDED, R.FAILED, R.DEAD, R.CANCELLED):
        mine = scene.beside(state)
        before, allowed = mine.brought_to(state), "nothing: it is final" if state is R.SUCCEEDED else "queuing"
        why = f"cannot go from {state} to cancelled; from {state} it may go to {allowed}"
        with says(IllegalMove, f"rollout {mine.run}/t: {why}"):
            mine.cancel("t")
        assert mine.rollout("t") == before


def test_a_requeued_rollout_has_a_fresh_set_of_attempts_and_new_numbers(scene: Scene) -> None:
    for state in (R.FAILED, R.DEAD, R.CANCELLED):
        mine = scene.beside(state)
        tried = mine.brought_to(state).attempt_count
        mine.clock.advance(5)
        answer = mine.requeue("t")
        assert answer == mine.rollout("t")
        assert (answer.status, answer.faults, answer.reason, answer.ended_at) == (R.QUEUING, 0, None, None)
        assert (answer.interruptions, answer.outcome) == (0, None)
        assert (answer.final_attempt, answer.reward, answer.ready_at) == (None, None, mine.clock.now)
        claim = mine.claim()
        assert claim.attempt.number == tried + 1
        assert mine.finish(claim, A.SUCCEEDED) is R.SUCCEEDED


def test_only_what_ended_without_success_can_be_requeued(scene: Scene) -> None:
    final = "cannot go from succeeded to queuing; from succeeded it may go to nothing: it is final"
    for state in (R.QUEUING, R.REQUEUING, R.RUNNING, R.SUCCEEDED):  # of a running one, its attempt still holds it
        mine = scene.beside(state)
        before = mine.brought_to(state)
        why = final if state is R.SUCCEEDED else f"is {state}, not done; cancel it first"
        with says(IllegalMove, f"rollout {mine.run}/t: {why}"):
            mine.requeue("t")
        assert mine.rollout("t") == before


def test_a_rollout_that_is_not_there_is_named(scene: Scene) -> None:
    for call in (scene.cancel, scene.requeue):
        with says(NotFound, f"rollout {scene.run}/ghost: there is none; 'holdfast run rollouts RUN' lists them"):
            call("ghost")


@once
def test_everything_open_in_a_run_is_cancelled_a_few_hundred_at_a_time(scene: Scene, clock: Clock) -> None:
    other = scene.beside()
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
