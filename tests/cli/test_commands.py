"""Orders reach the store, are obeyed there, and leave a note."""

from __future__ import annotations

import pytest

from holdfast.contracts.records import decode
from holdfast.contracts.rollout import AttemptState, Rollout, RolloutState
from holdfast.contracts.run import DesiredState, RunRecord, RunState
from holdfast.store.queue import SWEEP_LIMIT
from tests.cli.conftest import Cli
from tests.store.scene import Scene


@pytest.fixture(autouse=True)
def ann(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ann")


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


@pytest.mark.parametrize("wanted", [DesiredState.PAUSED, DesiredState.DRAINING])
def test_a_run_that_is_told_to_stop_claiming_does(
    cli: Cli, scene: Scene, at: tuple[str, str], wanted: DesiredState
) -> None:
    scene.enqueue("t")
    ran = cli("order", "run-1", wanted, "--why", "lunch", *at)
    assert (ran.code, ran.out) == (0, f"run-1-a: wanted {wanted}, was running\n")
    assert scene.claims() == ()
    entry = list(scene.store.ledger.entries())[-2]
    assert (entry.kind, entry.who, entry.body) == (
        "order",
        "ann",
        {"wanted": wanted, "before": "running", "why": "lunch"},
    )
    assert cli("order", "run-1", "running", "--why", "back", *at).out == f"run-1-a: wanted running, was {wanted}\n"
    assert len(scene.claims()) == 1


def test_cancelling_a_run_cancels_everything_that_is_open(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    n = SWEEP_LIMIT + 100
    scene.enqueue(*(f"t{number}" for number in range(n)))
    scene.finish(scene.claim(), AttemptState.SUCCEEDED)
    held = scene.claim()
    ran = cli("order", scene.run, "cancelled", "--why", "enough", *at)
    assert (ran.code, ran.out) == (0, f"run-1-a: wanted cancelled, was running; {n - 1} rollouts cancelled\n")
    counts = scene.store.views.counts(scene.run)
    assert (counts[RolloutState.CANCELLED], counts[RolloutState.SUCCEEDED]) == (n - 1, 1)
    assert scene.beat(held) == frozenset()


def test_an_order_can_answer_with_the_run(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    ran = cli("order", scene.run, "paused", "--why", "lunch", "--json", *at)
    assert decode(RunRecord, ran.json) == scene.store.runs.get(scene.run)
    assert ran.json["wanted"] == "paused"


def test_an_order_that_cannot_be_obeyed_exits_5(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.store.runs.end(scene.run, RunState.COMPLETED, who="t", now=2.0).result()
    ran = cli("order", scene.run, "paused", "--why", "lunch", *at)
    expected = "run run-1-a: is completed; there is nothing left to order"
    assert (ran.code, ran.out, ran.err) == (5, "", f"holdfast: error: {expected}\n")
    ran = cli("order", scene.run, "asleep", "--why", "lunch", *at)
    assert ran.code == 2 and "'asleep' is not one of 'running', 'paused', 'frozen', 'draining', 'cancelled'" in ran.err


def test_a_dead_rollout_can_be_queued_again(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.brought_to(RolloutState.DEAD)
    ran = cli("requeue", "run-1/t", *at)
    assert (ran.code, ran.out) == (0, "run-1-a/t: queued again, was dead\n")
    assert scene.rollout("t").status is RolloutState.QUEUING
    entry = list(scene.store.ledger.entries())[-1]
    assert (entry.kind, entry.who, entry.run, entry.body["action"]) == ("command", "ann", scene.run, "requeue")
    assert entry.body["answer"]["before"] == {"status": "dead"}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (DesiredState.RUNNING, "its run is failed: nobody claims it until 'holdfast optimize --resume run-1-a'"),
        (DesiredState.CANCELLED, "its run was cancelled for good: nobody claims it"),
    ],
)
def test_requeueing_in_a_run_that_ended_says_so(
    cli: Cli, scene: Scene, at: tuple[str, str], wanted: DesiredState, expected: str
) -> None:
    scene.brought_to(RolloutState.FAILED)
    scene.store.runs.want(scene.run, wanted, who="t", why="w", now=1.0).result()
    scene.store.runs.end(scene.run, RunState.FAILED, who="t", now=2.0).result()
    assert cli("requeue", "run-1/t", *at).lines[1] == expected


def test_a_finished_rollout_cannot_be_queued_again(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.brought_to(RolloutState.SUCCEEDED)
    before = len(list(scene.store.ledger.entries()))
    ran = cli("requeue", "run-1/t", *at)
    expected = "cannot go from succeeded to queuing; from succeeded it may go to nothing: it is final"
    assert (ran.code, ran.err) == (5, f"holdfast: error: rollout run-1-a/t: {expected}\n")
    (noted,) = list(scene.store.ledger.entries())[before:]
    assert (noted.kind, noted.body["refused"]) == ("refusal", f"rollout run-1-a/t: {expected}")


def test_a_rollout_can_be_cancelled_while_somebody_works_on_it(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("t", "u")
    held = scene.claim()
    ran = cli("cancel", "run-1/t", "--why", "wrong question", *at)
    assert (ran.code, ran.out) == (0, "run-1-a/t: cancelled, was running\n")
    assert (scene.rollout("t").reason, scene.beat(held)) == ("wrong question", frozenset())
    entry = list(scene.store.ledger.entries())[-1]
    assert (entry.body["action"], entry.body["why"]) == ("cancel_rollout", "wrong question")
    ran = cli("cancel", "run-1/u", "--json", *at)
    assert decode(Rollout, ran.json) == scene.rollout("u")
    assert cli("requeue", "run-1/u", "--json", *at).json["status"] == "queuing"
