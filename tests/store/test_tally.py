from __future__ import annotations

import random
from math import isclose

import pytest

from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import DONE, AttemptState, OutcomeKind, RolloutState, Split
from holdfast.store import tally
from tests.store.scene import AT_ONCE, Scene, begin


def assert_right(scene: Scene, *, looks: int = 1, most: int = 1_000) -> None:
    """What was counted on is what the engine counts, by status, split and reward."""
    while not (found := scene.store.figures.totals(scene.run, most=most)).is_whole:
        looks -= 1
        assert looks > 0
    assert found.counts == scene.store.views.counts(scene.run)
    assert found.outcomes == scene.store.views.outcomes(scene.run)
    assert sum(found.outcomes.values()) == sum(n for state, n in found.counts.items() if state in DONE)
    for split, told in scene.store.views.rewards(scene.run).items():
        paid = found.rewards.get(split, tally.Moments())
        assert paid.n == told.rewarded
        if told.mean_reward is not None:
            assert isclose(paid.total / paid.n, told.mean_reward, abs_tol=1e-9)


def test_a_life_of_chance_is_counted_right_at_every_look(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "HOLES", 5)
    rng, made = random.Random(7), 0
    for turn in range(75):
        for _ in range(rng.randrange(3)):
            made += 1
            scene.enqueue(f"t{made}", split=rng.choice([*Split, None]), max_attempts=2, priority=rng.randrange(2))
        for claim in scene.claims(most=rng.randrange(3)):
            state = rng.choice([AttemptState.SUCCEEDED, AttemptState.FAILED, AttemptState.FAULT])
            if rng.random() < 0.8:
                pay = None if rng.random() < 0.2 else rng.random()
                found = rng.choice(["right", "wrong", None])
                how = {"reward": pay, "outcome": found} if state is AttemptState.SUCCEEDED else {"backoff": AT_ONCE}
                scene.finish(claim, state, **how)
        if made and rng.random() < 0.2:
            name = f"t{rng.randrange(made) + 1}"
            if scene.rollout(name).status in (RolloutState.FAILED, RolloutState.DEAD, RolloutState.CANCELLED):
                scene.requeue(name)
            elif scene.rollout(name).status is RolloutState.QUEUING:
                scene.cancel(name)
            elif scene.rollout(name).status is RolloutState.SUCCEEDED:
                told = RewardTerm(name="success", value=rng.choice([0.0, 1.0]), source=f"person:{turn}")
                scene.store.rewards.attach(f"{scene.run}/{name}", told, who="ann", now=scene.clock.now).result()
        if turn % 3 == 0:  # several things happen between two looks
            assert_right(scene, looks=60, most=rng.choice([3, 1_000]))
    assert made > 40


def test_what_comes_back_and_ends_again_between_two_looks_is_seen(scene: Scene) -> None:
    scene.brought_to(RolloutState.FAILED, "again")
    assert_right(scene)
    scene.requeue("again")
    scene.finish(scene.claim(), AttemptState.SUCCEEDED, reward=0.5)
    assert_right(scene, looks=2)


def test_a_reward_that_is_told_after_the_end_counts(scene: Scene) -> None:
    for name in ("one", "two"):
        scene.brought_to(RolloutState.SUCCEEDED, name)
    assert_right(scene)
    told = RewardTerm(name="late", value=0.25, source="person:ann")
    scene.store.rewards.attach(f"{scene.run}/one", told, who="ann", now=scene.clock.now).result()
    assert_right(scene)
    more = RewardTerm(name="later", value=0.5, source="person:ann")
    scene.store.rewards.attach(f"{scene.run}/one", more, who="ann", now=scene.clock.now).result()
    assert_right(scene)


def test_a_check_that_comes_after_the_end_changes_what_is_right(scene: Scene) -> None:
    for name in ("one", "two"):
        scene.brought_to(RolloutState.SUCCEEDED, name)
    assert_right(scene)
    for value, source in ((1.0, "person:ann"), (0.0, "person:bob")):  # the last word counts
        told = RewardTerm(name="success", value=value, source=source)
        scene.store.rewards.attach(f"{scene.run}/one", told, who="ann", now=scene.clock.now).result()
    assert_right(scene)
    outcomes = scene.store.figures.totals(scene.run).outcomes
    assert outcomes == {**dict.fromkeys(OutcomeKind, 0), OutcomeKind.WRONG: 1, OutcomeKind.NOT_CHECKED: 1}


def test_what_ends_and_is_paid_more_between_two_looks_counts_once(scene: Scene) -> None:
    scene.brought_to(RolloutState.SUCCEEDED, "before")
    scene.enqueue("t")
    claim = scene.claim()
    assert_right(scene)
    scene.finish(claim, AttemptState.SUCCEEDED, reward=0.5)
    told = RewardTerm(name="late", value=0.25, source="person:ann")
    scene.store.rewards.attach(claim.rollout.id, told, who="ann", now=scene.clock.now).result()
    assert_right(scene)
    assert scene.store.figures.totals(scene.run).rewards["none"].total == 0.25


def test_a_large_run_is_counted_a_part_at_a_time(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tally, "INDEXED", 4)
    scene.enqueue(*(f"t{place}" for place in range(10)))
    for claim in scene.claims(most=9):
        scene.finish(claim, AttemptState.SUCCEEDED, reward=1.0)
    is_sqlite = scene.store.db.engine.name == "sqlite"  # the other engine counts all of it, every time
    first = scene.store.figures.totals(scene.run, most=3)
    assert first.is_whole is not is_sqlite
    assert_right(scene, looks=4, most=3)


def test_looking_at_one_run_leaves_out_the_others(scene: Scene) -> None:
    scene.brought_to(RolloutState.SUCCEEDED, "mine")
    other = Scene(scene.store, scene.clock, begin(scene.store, scene.clock, salt="b"))
    other.brought_to(RolloutState.FAILED, "theirs")
    for turn in range(2):
        assert_right(scene)
        assert_right(other)
        other.brought_to(RolloutState.CANCELLED, f"more-{turn}")
