"""The queue: what goes in, who gets it and in which order. Leases are in test_leases, ends in test_ends."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, Conflict, NotFound, QueueFull, StaleLease
from holdfast.contracts.rollout import Attempt, AttemptState, Claim, Rollout, RolloutState, Split, Task
from holdfast.contracts.run import DesiredState
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import AT_ONCE, LEASE_S, Scene, begin, span

A, R = AttemptState, RolloutState


def names(claims: tuple[Claim, ...]) -> list[str]:
    return [claim.rollout.name for claim in claims]


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


def test_the_same_task_twice_in_one_call_is_one_rollout(scene: Scene) -> None:
    assert scene.enqueue("t", "t") == 2
    assert len(scene.store.views.rollouts(scene.run)) == 1


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


@pytest.mark.parametrize(
    ("wanted", "claimable"),
    [
        (DesiredState.RUNNING, True),
        (DesiredState.PAUSED, False),
        (DesiredState.DRAINING, False),
        (DesiredState.CANCELLED, False),
    ],
)
def test_claims_and_beats_obey_the_orders(scene: Scene, wanted: DesiredState, claimable: bool) -> None:
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
    for wanted in (DesiredState.PAUSED, DesiredState.RUNNING):
        assert scene.claims(9) == () if wanted is not DesiredState.PAUSED else True
        scene.store.runs.want(scene.run, wanted, who="op", why="test", now=scene.clock.now).result()
    assert names(scene.claims(9)) == ["a", "b"]


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
    other = Scene(scene.store, clock, begin(scene.store, clock, salt="b"))
    record(other, "0/collect")
    scene.enqueue("a", step="0/collect")
    assert names(scene.claims()) == ["a"]


def test_a_claim_tells_the_step_and_the_version_that_has_to_act(scene: Scene) -> None:
    scene.enqueue("a", step="0/collect", version="p@3", max_faults=2)
    claimed = scene.claim().rollout
    assert (claimed.step, claimed.version, claimed.max_faults) == ("0/collect", "p@3", 2)
    assert claimed == scene.rollout("a")


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


def test_negative_bounds_are_refused(scene: Scene) -> None:
    with pytest.raises(BadRecord, match="max_faults = -1: must be at least 0"):
        scene.enqueue("t", max_faults=-1)
