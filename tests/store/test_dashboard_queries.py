from __future__ import annotations

import random
from math import isclose
from typing import Any

import pytest
from sqlalchemy import Executable

from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import DONE, AttemptState, OutcomeKind, RolloutState, Split
from holdfast.contracts.run import LEGACY_STEP
from holdfast.store import dashboard_queries
from holdfast.store.sql import Transaction
from holdfast.store.store import open_store
from tests.conftest import Files
from tests.store.scene import AT_ONCE, Scene, checkpoint, serving, signal, span


def done(scene: Scene, *names: str, state: AttemptState = AttemptState.SUCCEEDED, **fields: object) -> None:
    reward = fields.pop("reward", None)
    scene.enqueue(*names, **{"max_attempts": 1, **fields})
    for claim in scene.claims(most=len(names)):
        scene.store.traces.add(claim.attempt, [span()], now=scene.clock.now)
        scene.store.traces.score(claim.attempt, [signal("safety.hard_gate")], now=scene.clock.now).result()
        scene.finish(claim, state, reward=reward)


def names_of(page: dashboard_queries.Page) -> list[str]:
    return [rollout.name for _, rollout in page.rollouts]


def test_a_page_is_newest_first_and_goes_on_where_it_stopped(scene: Scene) -> None:
    scene.enqueue(*(f"t{place}" for place in range(5)))
    first = scene.store.figures.page(scene.run, most=2)
    second = scene.store.figures.page(scene.run, most=2, before=first.next)
    last = scene.store.figures.page(scene.run, most=2, before=second.next)
    assert [names_of(first), names_of(second), names_of(last)] == [["t4", "t3"], ["t2", "t1"], ["t0"]]
    assert first.next is not None and last.next is None
    assert (
        names_of(scene.store.figures.page(scene.run, most=5))
        and scene.store.figures.page(scene.run, most=5).next is None
    )


def test_filters_find_what_fits_however_far_back_it_is(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_queries, "SCANNED", 4)
    done(scene, "Rare_%", split=Split.VAL, reward=0.25)
    done(scene, "failed", state=AttemptState.FAILED)
    scene.enqueue(*(f"t{place}" for place in range(11)), split=Split.TRAIN)

    def walked(**wanted: object) -> list[str]:
        found, before = list[str](), None
        for _ in range(20):
            page = scene.store.figures.page(scene.run, most=2, before=before, **wanted)  # type: ignore[arg-type]
            found, before = found + names_of(page), page.next
            if before is None:
                return found
        raise AssertionError("it never ends")

    assert walked(split=Split.VAL) == ["Rare_%"]
    assert walked(text="rare_%") == ["Rare_%"] and walked(text="_") == ["Rare_%"]  # letters, no wildcards
    assert walked(least=0.2, most_reward=0.3) == ["Rare_%"] and walked(least=0.3) == []
    assert walked(status=RolloutState.FAILED) == ["failed"]
    assert walked(status=RolloutState.QUEUING, text="t1") == ["t10", "t1"]
    assert walked(status=RolloutState.SUCCEEDED, least=0.9) == []
    assert (
        walked(outcome=OutcomeKind.FAILED)
        == walked(outcome=OutcomeKind.FAILED, status=RolloutState.FAILED)
        == ["failed"]
    )
    assert walked(outcome=OutcomeKind.FAILED, status=RolloutState.SUCCEEDED) == []  # nothing is both


def test_a_group_is_found_by_its_whole_name(scene: Scene) -> None:
    scene.enqueue("a", "b", metadata={"group": 'g"1'})
    scene.enqueue("c", metadata={"group": "g"})
    scene.enqueue("d", metadata={"group": "G"})
    assert sorted(names_of(scene.store.figures.group(scene.run, 'g"1'))) == ["a", "b"]
    found = scene.store.figures.group(scene.run, "g")
    assert names_of(found) == ["c"]
    assert names_of(scene.store.figures.group(scene.run, "g", near=found.rollouts[0][0])) == ["c"]


def test_attempts_that_run_and_those_that_ended(scene: Scene) -> None:
    done(scene, "over", reward=1.0)
    scene.enqueue("held")
    claim = scene.claim()
    scene.enqueue("waits")
    assert scene.store.figures.held(scene.run) == [claim.attempt]
    assert [status for _, _, status in scene.store.figures.recent_attempts()] == ["running", "succeeded"]
    ((rollout, token),) = scene.store.figures.scored(scene.run)
    assert rollout == scene.rollout("over") and scene.store.traces.spans(token) == [span()]
    assert scene.store.figures.signalled(scene.run, "safety.hard_gate") == (1, 1)
    assert scene.store.figures.signalled(scene.run, "other") == (0, 1)


def test_the_ledger_is_read_newest_first_and_by_kind(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    store = scene.store
    for place in range(5):
        store.ledger.append("note", {"n": place}, who="ann", now=1.0).result()
    page, after = store.figures.entries(most=2)
    assert [entry.body["n"] for entry in page] == [4, 3]
    assert [entry.body["n"] for entry in store.figures.entries(most=2, before=after)[0]] == [2, 1]
    assert [entry.kind for entry in store.figures.entries(kind="run")[0]] == ["run"]
    assert store.figures.entries(run=scene.run) == ([next(store.ledger.entries())], None)
    monkeypatch.setattr(dashboard_queries, "ENTRIES", 2)
    serving(store)
    while not (told := store.figures.decisions("sprout"))[1]:
        pass
    assert told[0] == store.releases.history("sprout")
    assert store.figures.decisions("other")[0] == []
    assert store.figures.kinds()["note"] == 5 and store.figures.kinds()["release"] == 2


def test_steps_of_learning_are_read_on_without_their_longest_parts(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard_queries, "STEPS", 2)
    store, long = scene.store, {f"t{place}": "alike" for place in range(500)}
    body = {"phase": "practice", "reward": 0.5, "episodes": ["x" * 3_000], "audit": {"taught": 1, "reasons": long}}
    for place in range(3):
        store.steps.add(scene.run, f"{place}/learn", body, function="f", now=1.0).result()
    steps, is_whole = store.figures.steps(scene.run)
    assert (len(steps), is_whole) == (2, False)
    steps, is_whole = store.figures.steps(scene.run)
    assert is_whole and [(one.step, one.name) for one in steps] == [(1, "0/learn"), (2, "1/learn"), (3, "2/learn")]
    assert all(one.body == {"phase": "practice", "reward": 0.5, "audit": {"taught": 1}} for one in steps)


def test_only_what_learnt_is_a_step_of_learning(scene: Scene) -> None:
    """Old lessons, and steps that name their phase; what only collected or decided teaches nothing."""
    store = scene.store
    store.steps.add(scene.run, "0/collect", {"rollouts": ["a"]}, function="collect", now=1.0).result()
    store.steps.add(scene.run, "0/learn", {"phase": "practice"}, function="learn", now=1.0).result()
    store.steps.add(scene.run, "lesson-3", {"loss": 0.5}, function=LEGACY_STEP, now=1.0).result()
    steps, is_whole = store.figures.steps(scene.run)
    assert is_whole and [one.name for one in steps] == ["0/learn", "lesson-3"]


def test_the_newest_checkpoints_and_what_came_of_each_arm(scene: Scene) -> None:
    store = scene.store
    for name in ("one", "two"):
        store.checkpoints.add(checkpoint(name), scene.run, now=1.0).result()
    assert [one.id for one in store.figures.checkpoints(scene.run, most=1)] == ["two"]
    serving(store)
    (asked,) = store.figures.asked("t")
    assert (asked.arm, asked.requests, asked.errors, asked.told, asked.reward) == ("control", 2, 0, 0, None)
    assert store.figures.asked("none") == []


def test_the_newest_attempts_are_walked_and_not_all_of_them(files: Files) -> None:
    """SQLite must not begin with an index of the whole run: it once took a hundred times as long."""
    with open_store(files.fresh()) as store:
        engine = store.db.engine
        connection = engine.connect(read_only=True)
        params = dict.fromkeys(("after", "to", "most", "run", "before", "scanned", "status"), 1)

        def plan(statement: Executable) -> str:
            return str(connection.execute(f"EXPLAIN QUERY PLAN {engine.book[statement]}", params).fetchall()[0][3])

        assert plan(dashboard_queries.CLAIMED) == "SEARCH attempts USING INTEGER PRIMARY KEY (rowid>?)"
        assert plan(dashboard_queries.RECENT_ATTEMPTS) == "SCAN attempts"  # from its end, as far as the limit
        assert "ix_rollouts_run_status_key (run=? AND status=? AND key<?)" in plan(dashboard_queries.BY_STATUS)
        assert "ix_rollouts_run_key (run=? AND key<?)" in plan(dashboard_queries.PAGE)
        connection.close()


def assert_right(scene: Scene, *, looks: int = 1, most: int = 1_000) -> None:
    """What was counted on is what the engine counts, by status, split and reward."""
    while not (found := scene.store.figures.totals(scene.run, most=most)).is_whole:
        looks -= 1
        assert looks > 0
    assert found.counts == scene.store.views.counts(scene.run)
    assert found.outcomes == scene.store.views.outcomes(scene.run)
    assert sum(found.outcomes.values()) == sum(n for state, n in found.counts.items() if state in DONE)
    for split, told in scene.store.views.rewards(scene.run).items():
        paid = found.rewards.get(split, dashboard_queries.Moments())
        assert paid.n == told.rewarded
        if told.mean_reward is not None:
            assert isclose(paid.total / paid.n, told.mean_reward, abs_tol=1e-9)
    if (standing := scene.store.figures.run_totals(scene.run)) is not None:
        told_by_split = scene.store.views.rewards(scene.run)
        assert {split: (it.total, it.rewarded) for split, it in standing[1].items()} == {
            split: (it.total, it.rewarded) for split, it in told_by_split.items()
        }
        assert standing[0].counts == found.counts


def test_a_life_of_chance_is_counted_right_at_every_look(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_queries, "HOLES", 5)
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
    monkeypatch.setattr(dashboard_queries, "INDEXED", 4)
    scene.enqueue(*(f"t{place}" for place in range(10)))
    for claim in scene.claims(most=9):
        scene.finish(claim, AttemptState.SUCCEEDED, reward=1.0)
    is_sqlite = scene.store.db.engine.name == "sqlite"  # the other engine counts all of it, every time
    first = scene.store.figures.totals(scene.run, most=3)
    assert first.is_whole is not is_sqlite
    assert_right(scene, looks=4, most=3)


def test_what_a_look_reads_does_not_grow_with_what_waits(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_queries, "HOLES", 5)
    if scene.store.db.engine.name != "sqlite":
        return  # the other engine counts all of it, every time
    scene.enqueue(*(f"t{place}" for place in range(60)))
    scene.enqueue("first", priority=1)
    scene.finish(scene.claim(), AttemptState.SUCCEEDED, reward=1.0)
    for _ in range(20):
        assert_right(scene)
    pages, read = list[int](), Transaction.all

    def counted(view: Transaction, statement: Any, params: Any) -> Any:
        found = read(view, statement, params)
        if statement is dashboard_queries.OPENED:
            pages.append(len(found))
        return found

    monkeypatch.setattr(Transaction, "all", counted)
    assert_right(scene)
    assert 0 < sum(pages) <= 2 * 5  # of two looks, the lowest ones


def test_looking_at_one_run_leaves_out_the_others(scene: Scene) -> None:
    scene.brought_to(RolloutState.SUCCEEDED, "mine")
    other = scene.beside()
    other.brought_to(RolloutState.FAILED, "theirs")
    for turn in range(2):
        assert_right(scene)
        assert_right(other)
        other.brought_to(RolloutState.CANCELLED, f"more-{turn}")
