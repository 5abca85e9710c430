from __future__ import annotations

import pytest

from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Task
from holdfast.contracts.run import DesiredState
from holdfast.operate.look.views import health, pace, solved
from holdfast.store.dashboard_queries import RECENT
from holdfast.store.store import Store


def attempted(store: Store, *states: AttemptState) -> str:
    run = store.runs.begin(kind="o", model_ref="m", settings={}, salt="a", who="t", now=1.0).result().id
    tasks = [Task(name=f"t{place}", input=1, max_attempts=1) for place in range(len(states))]
    store.queue.enqueue(run, tasks, now=1.0).result()
    for place, state in enumerate(states):
        (claim,) = store.queue.claim(run, "w", now=float(place), lease_s=99.0).result()
        store.queue.finish(claim.attempt, state, now=place + 0.5).result()
    return run


GOOD, BAD = AttemptState.SUCCEEDED, AttemptState.FAILED


@pytest.mark.parametrize(
    ("states", "now", "state", "gate"),
    [
        ((), 2.0, "healthy", "pass"),
        ((BAD, GOOD), 2.0, "degraded", "hold"),  # one in the last minute
        ((GOOD, BAD), 2.0, "degraded", "hold"),  # the last one
        ((BAD, GOOD), 65.0, "degraded", "hold"),  # silent by then
        ((GOOD, BAD, BAD, BAD), 5.0, "failing", "hold"),
    ],
)
def test_health_is_as_documented(
    file_store: Store, states: tuple[AttemptState, ...], now: float, state: str, gate: str
) -> None:
    attempted(file_store, *states)
    told = health(file_store, now=now)
    assert (told["health_state"], told["rollout_gate"]) == (state, gate)


def test_a_pause_holds_the_gate_and_no_run_is_unknown(file_store: Store) -> None:
    assert health(file_store, now=1.0)["health_state"] == "unknown"
    run = attempted(file_store, GOOD)
    assert health(file_store, now=2.0)["rollout_gate"] == "pass"
    file_store.runs.want(run, DesiredState.PAUSED, who="ann", why="lunch", now=2.0).result()
    told = health(file_store, now=2.0)
    assert (told["health_state"], told["rollout_gate"], told["is_paused"]) == ("degraded", "hold", True)
    assert told["control_audit_count"] == 1 and told["health_reason"] == f"run {run} is paused by order"


def test_the_pace_is_over_as_much_as_was_read() -> None:
    few = [(90.0, 99.0, "succeeded"), (50.0, 55.0, "failed"), (1.0, 2.0, "succeeded"), (99.0, None, "running")]
    told = pace(few, 100.0)
    assert (told["per_s"], told["ended"], told["failed"], told["over_s"]) == (2 / 60.0, 2, 1, 60.0)
    assert len(told["series"]) == 60 and sum(one["ended"] for one in told["series"]) == 2
    many = [(90.0, 95.0, "succeeded")] * RECENT
    assert pace(many, 100.0)["over_s"] == 10.0 and pace(many, 100.0)["per_s"] == RECENT / 10.0


def test_what_was_handed_back_did_not_end() -> None:
    told = pace([(1.0, 2.0, "succeeded"), (1.0, 2.0, "released"), (1.0, None, "running")], now=3.0)
    assert (told["ended"], told["failed"]) == (1, 0)


def test_to_run_to_the_end_is_not_to_solve_the_task(file_store: Store) -> None:
    run = file_store.runs.begin(kind="o", model_ref="m", settings={}, salt="a", who="t", now=1.0).result().id
    file_store.queue.enqueue(run, [Task(name=f"t{place}", input=1) for place in range(3)], now=1.0).result()
    good, bad = (RewardTerm(name="success", value=value, source="env") for value in (1.0, 0.0))
    for signals in ((good,), (bad,), ()):
        (claim,) = file_store.queue.claim(run, "w", now=1.0, lease_s=99.0).result()
        file_store.traces.score(claim.attempt, signals, now=1.0).result()
        file_store.queue.finish(claim.attempt, GOOD, now=2.0).result()
    told = solved(file_store, run)
    assert (told["value"], told["n"]) == (0.5, 2)
