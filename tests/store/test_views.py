"""Looking at rollouts: pages, filters, counts, means; and looking changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import NotFound
from holdfast.contracts.rollout import AttemptState, OutcomeKind, RolloutState, Split
from holdfast.contracts.run import SplitRewards
from holdfast.store import views as views_module
from tests.conftest import Clock
from tests.store.scene import Scene, says

A, R = AttemptState, RolloutState


@pytest.fixture
def mixed(scene: Scene, clock: Clock) -> Scene:
    """Six rollouts, three of them ended, and another run beside them."""
    other = scene.beside()
    for n in range(6):
        scene.enqueue(f"t{n}", split=Split.TRAIN if n % 2 == 0 else Split.VAL, max_attempts=1)
        other.enqueue(f"t{n}")
    t0, t1, t2 = scene.claims(3)
    scene.finish(t0, A.SUCCEEDED, reward=1.0, output={"answer": 42})
    scene.finish(t1, A.SUCCEEDED)
    scene.finish(t2, A.FAILED, error="boom")
    return scene


def test_pages_are_in_the_order_of_enqueuing_and_filtered(mixed: Scene) -> None:
    wanted: list[tuple[dict[str, Any], list[str]]] = [
        ({}, ["t0", "t1", "t2", "t3", "t4", "t5"]),
        ({"most": 2}, ["t0", "t1"]),
        ({"most": 2, "after": "t1"}, ["t2", "t3"]),
        ({"after": "t5"}, []),
        ({"status": R.SUCCEEDED}, ["t0", "t1"]),
        ({"status": R.DEAD}, []),
        ({"split": Split.VAL}, ["t1", "t3", "t5"]),
        ({"split": Split.VAL, "status": R.QUEUING}, ["t3", "t5"]),
        ({"split": Split.TRAIN, "status": R.QUEUING, "after": "t2", "most": 9}, ["t4"]),
    ]
    for filters, expected in wanted:
        assert [r.name for r in mixed.store.views.rollouts(mixed.run, **filters)] == expected


def test_counts_name_every_state(mixed: Scene) -> None:
    assert mixed.store.views.counts(mixed.run) == dict.fromkeys(R, 0) | {R.SUCCEEDED: 2, R.FAILED: 1, R.QUEUING: 3}


def test_a_missing_reward_is_not_a_zero(mixed: Scene) -> None:
    assert mixed.store.views.rewards(mixed.run) == {
        "train": SplitRewards(total=3, rewarded=1, mean_reward=1.0),
        "val": SplitRewards(total=3, rewarded=0, mean_reward=None),
    }


def test_rollouts_without_a_split_stand_apart(scene: Scene) -> None:
    scene.enqueue("a", "b")
    scene.enqueue("c", split=Split.TEST)
    for reward in (0.0, 0.5):
        scene.finish(scene.claim(), A.SUCCEEDED, reward=reward)
    assert scene.store.views.rewards(scene.run) == {
        "none": SplitRewards(total=2, rewarded=2, mean_reward=0.25),
        "test": SplitRewards(total=1, rewarded=0, mean_reward=None),
    }


def test_the_deciding_attempt_is_named(mixed: Scene) -> None:
    finals = [r.final_attempt for r in mixed.store.views.rollouts(mixed.run)]
    assert finals == [f"{mixed.run}/t{n}:attempt-1" for n in range(3)] + [None] * 3
    assert mixed.rollout("t2").final_attempt == f"{mixed.run}/t2:attempt-1"


def test_attempts_are_in_order(scene: Scene) -> None:
    scene.enqueue("t")
    for _ in range(3):
        scene.finish(scene.claim(), A.RELEASED)
    assert [scene.store.views.attempt(f"{scene.run}/t", n) for n in (1, 2, 3)] == scene.attempts("t")
    assert [(a.number, a.id) for a in scene.attempts("t")] == [(n, f"{scene.run}/t:attempt-{n}") for n in (1, 2, 3)]


def test_an_output_is_read_back_and_no_output_is_none(mixed: Scene) -> None:
    assert [mixed.store.views.output(mixed.attempts(f"t{n}")[0]) for n in range(3)] == [{"answer": 42}, None, None]


def test_a_run_or_a_step_is_done_when_nothing_of_it_is_open_whatever_else_is(scene: Scene) -> None:
    views = scene.store.views
    for state in R:
        mine, done = scene.beside(state), state not in (R.QUEUING, R.REQUEUING, R.RUNNING)
        assert views.is_done(mine.run)  # nothing in it yet
        mine.brought_to(state, "mine")
        assert views.is_done(mine.run) is done
        mine.enqueue("mine", max_attempts=1, step="0/collect")  # taken in
        mine.enqueue("other", step="1/collect")
        mine.enqueue("of none")
        assert views.is_done(mine.run, step="0/collect") is done
        assert not views.is_done(mine.run, step="1/collect") and not views.is_done(mine.run)
        assert views.is_done(mine.run, step="2/collect")  # there is nothing in it


def test_the_rollouts_of_a_step_are_read_whole_and_in_their_order(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views_module, "PAGE_SIZE", 2)
    for place in range(5):
        scene.enqueue(f"t{place}", step="0/collect", version="p@1")
        scene.enqueue(f"u{place}", step="1/collect")
    scene.finish(scene.claim(), A.SUCCEEDED, reward=0.5, outcome="wrong")
    found = scene.store.views.of_step(scene.run, "0/collect")
    assert [rollout.name for rollout in found] == ["t0", "t1", "t2", "t3", "t4"]
    assert found[0] == scene.rollout("t0") and found[0].final_attempt == f"{scene.run}/t0:attempt-1"
    assert (found[0].outcome, found[0].version) == ("wrong", "p@1")
    assert scene.store.views.of_step(scene.run, "2/collect") == []


def test_outcomes_are_counted_of_what_is_over(scene: Scene) -> None:
    for place, outcome in enumerate(["right", "wrong", "wrong", None]):
        scene.enqueue(f"t{place}")
        scene.finish(scene.claim(), A.SUCCEEDED, outcome=outcome)
    for state in sorted(set(R) - {R.SUCCEEDED}, key=lambda state: state is R.QUEUING):
        scene.brought_to(state, str(state))
    assert scene.store.views.outcomes(scene.run) == {
        OutcomeKind.RIGHT: 1,
        OutcomeKind.WRONG: 2,
        OutcomeKind.NOT_CHECKED: 1,
        OutcomeKind.FAILED: 1,
        OutcomeKind.NO_ANSWER: 2,  # dead, and cancelled
    }


def test_a_rollout_that_is_not_there_is_named(scene: Scene) -> None:
    said = f"rollout {scene.run}/ghost: there is none; 'holdfast run rollouts RUN' lists them"
    for look in (scene.rollout, scene.attempts, lambda name: scene.store.views.rollouts(scene.run, after=name)):
        with says(NotFound, said):
            look("ghost")


def test_looking_changes_nothing(mixed: Scene) -> None:
    views, store = mixed.store.views, mixed.store
    seen = [store.changes.seen(topic) for topic in ("queue", "room", "done", "orders")]

    def everything() -> list[object]:
        return [
            views.rollouts(mixed.run),
            views.counts(mixed.run),
            views.rewards(mixed.run),
            views.is_done(mixed.run),
            [views.attempts(f"{mixed.run}/t{n}") for n in range(6)],
            store.queue.next_ripe(mixed.run),
            store.ledger.verify(),
        ]

    assert everything() == everything()
    assert [store.changes.seen(topic) for topic in ("queue", "room", "done", "orders")] == seen


def test_an_attempt_that_is_not_there_or_that_no_engine_could_look_for_is_named(mixed: Scene) -> None:
    assert mixed.store.views.attempt(f"{mixed.run}/t0", 1).number == 1
    for name, number in (("ghost", 1), ("t0", 2), ("t0", 2**31), ("t0", 10**40), ("t0\0", 1)):
        with pytest.raises(NotFound, match=f"attempt {number} at {mixed.run}/{name}: there is none"):
            mixed.store.views.attempt(f"{mixed.run}/{name}", number)
