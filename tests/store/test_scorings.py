"""Scorings: other scorers' word on stored rollouts, kept once under a name, whole or not at all."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, NotFound, StoreCorrupt
from holdfast.contracts.records import decode, encode
from holdfast.contracts.reward import RewardTerm, Scoring
from holdfast.contracts.rollout import AttemptState
from holdfast.store import scorings
from holdfast.store.store import Store, open_store
from tests.store.scene import Scene, begin, count, once, problems, says
from tests.store.tamper import damaged, rewrite

SCORERS = {"exact": {"version": 2, "weight": 1.0}}


def told(value: float = 1.0, name: str = "success", **more: Any) -> RewardTerm:
    return RewardTerm(name=name, value=value, source="rule:exact@2", **more)


def add(scene: Scene, name: str = "exact-2", rows: Any = None, **how: Any) -> Scoring:
    rows = [(f"{scene.run}/{task}", [told()]) for task in "abc"] if rows is None else rows
    return scene.store.scorings.add(scene.run, name, how.get("scorers", SCORERS), rows, who="ann", now=scene.clock.now)


@pytest.fixture
def over(scene: Scene) -> Scene:
    """Three rollouts that are over."""
    scene.enqueue("a", "b", "c")
    for claim in scene.claims(3):
        scene.finish(claim, AttemptState.SUCCEEDED, reward=0.0, outcome="wrong")
    return scene


def left(store: Store) -> int:
    return count(store, "scorings") + count(store, "scored")


def found(store: Store) -> list[str]:
    return problems(store, "scorings", "scored")


def test_what_was_scored_is_read_back_and_the_rollouts_are_as_they_were(over: Scene) -> None:
    before = over.store.views.rollouts(over.run)
    a, b = (f"{over.run}/{name}" for name in "ab")
    rows = [(b, [told(0.5, feedback="half of it"), told(0.25, "tone", weight=-2.0, turn=3)]), (a, (told(),))]
    made = add(over, rows=rows)
    assert (made.run, made.name, made.scorers, made.who, made.at) == (
        over.run, "exact-2", SCORERS, "ann", over.clock.now
    )  # fmt: skip
    assert made.rollouts == 2 and decode(Scoring, encode(made)) == made
    kept = dict(over.store.scorings.signals(over.run, "exact-2"))
    assert kept == {rollout: tuple(signals) for rollout, signals in rows}
    assert over.store.scorings.of_run(over.run) == [made] == [over.store.scorings.get(over.run, "exact-2")]
    assert over.store.views.rollouts(over.run) == before
    over.store.scorings.verify(over.run, "exact-2")
    assert found(over.store) == []


def test_several_scorings_of_a_run_lie_side_by_side(over: Scene) -> None:
    first, second = add(over, "first"), add(over, "second", [(f"{over.run}/a", [told(0.0)])])
    assert over.store.scorings.of_run(over.run) == [first, second]
    assert [len(list(over.store.scorings.signals(over.run, name))) for name in ("first", "second")] == [3, 1]
    other = begin(over.store, over.clock, salt="b")
    assert over.store.scorings.of_run(other) == []


def test_a_name_is_used_once_in_a_run(over: Scene) -> None:
    made = add(over)
    said = f"scoring exact-2 of {over.run}: is there already; what was scored stands; give this one another name"
    with says(Conflict, said):
        add(over, rows=[])
    assert over.store.scorings.of_run(over.run) == [made]


def test_it_is_noted_in_the_ledger_with_the_hash_of_its_content(over: Scene) -> None:
    rows = [(f"{over.run}/{name}", [told()] if name != "c" else []) for name in "abc"]
    made = add(over, rows=rows)
    entry = list(over.store.ledger.entries())[-1]
    assert (entry.kind, entry.who, entry.run) == ("scoring", "ann", over.run)
    counted = {"rollouts": 2, "unscored": 1, "signals": 2}
    assert entry.body == {"name": "exact-2", **counted, "sha256": made.sha256}


def test_the_hash_is_of_the_content_and_not_of_the_order_or_the_time(over: Scene) -> None:
    rows = [(f"{over.run}/{name}", [told(0.5)]) for name in "abc"]
    first = add(over, "first", rows).sha256
    over.clock.advance(5)
    assert add(over, "second", reversed(rows)).sha256 == first
    others = (rows[:2], [(rows[0][0], [told(0.6)]), *rows[1:]], [(rows[0][0], [told(0.5, feedback="")]), *rows[1:]])
    hashes = [add(over, f"other-{place}", other).sha256 for place, other in enumerate(others)]
    hashes.append(add(over, "scorers", rows, scorers={"exact": {"version": 3}}).sha256)
    assert len({first, *hashes}) == 5


def test_many_rollouts_are_kept_in_pieces_and_read_in_pages(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorings, "CHUNK", 7)
    names = [f"t{place:03}" for place in range(40)]
    scene.enqueue(*names)
    rows = {f"{scene.run}/{name}": (told(place / 64), told(1.0, "form")) for place, name in enumerate(names)}
    add(scene, rows=rows.items())
    assert dict(scene.store.scorings.signals(scene.run, "exact-2")) == rows
    read = list(_paged(scene, 3))
    assert dict(read) == rows and len(read) == 40  # none is cut in two, though each has two signals


def _paged(scene: Scene, size: int) -> Iterator[Any]:
    key = scene.store.db.one(scorings.KEYS, {"project": "default", "run": scene.run})[0]
    return scorings.pages(lambda params: scene.store.db.all(scorings.AFTER, params)[:size], key)


def test_texts_that_no_engine_can_hold_are_kept_as_all_texts_are(over: Scene) -> None:
    add(over, rows=[(f"{over.run}/a", [told(feedback="a\x00b \ud83d"), told(1, "form")])])
    ((_, (first, second)),) = over.store.scorings.signals(over.run, "exact-2")
    assert (first.feedback, second.value) == ("a\ufffdb \ufffd", 1.0)
    over.store.scorings.verify(over.run, "exact-2")


def test_only_what_the_run_has_is_scored_and_once(over: Scene) -> None:
    for names, error, why in (
        ("aa", BadInput, "was scored twice"),
        (("a", "ghost"), NotFound, "there is none"),
        (("a", "../b"), NotFound, "there is none"),
    ):
        with pytest.raises(error, match=why):
            add(over, rows=[(f"{over.run}/{name}", [told()]) for name in names])
    with pytest.raises(BadInput, match=f"is no rollout of {over.run}"):
        add(over, rows=[("run-9-z/a", [told()])])
    assert left(over.store) == 0
    assert add(over).rollouts == 3  # and the name is free


def test_when_a_scorer_raises_nothing_stays(over: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorings, "CHUNK", 1)

    def rows() -> Iterator[Any]:
        yield f"{over.run}/a", [told()]
        yield f"{over.run}/b", [told()]
        assert over.store.scorings.of_run(over.run) == []  # nobody reads what is not whole
        with pytest.raises(NotFound, match="is being written, or was never finished"):
            over.store.scorings.signals(over.run, "exact-2")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        add(over, rows=rows())
    assert left(over.store) == 0 and "scoring" not in {one.kind for one in over.store.ledger.entries()}


def test_what_a_killed_process_left_is_in_nobodys_way(over: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorings, "CHUNK", 1)
    with monkeypatch.context() as patched:
        patched.setattr(scorings.Scorings, "_remove", lambda self, key: None)  # it had no time to

        def rows() -> Iterator[Any]:
            yield f"{over.run}/a", [told()]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            add(over, rows=rows())
    assert left(over.store) == 2
    assert over.store.scorings.of_run(over.run) == [] and found(over.store) == []
    assert add(over).rollouts == 3
    assert left(over.store) == 4


def test_of_two_at_once_under_one_name_one_is_refused(over: Scene, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scorings, "CHUNK", 1)
    begun, ended = threading.Event(), threading.Event()
    refused: list[Exception] = []

    def slowly() -> Iterator[Any]:
        yield f"{over.run}/a", [told()]
        begun.set()
        assert ended.wait(20)
        yield f"{over.run}/b", [told()]

    def first() -> None:
        try:
            add(over, rows=slowly())
        except Conflict as error:
            refused.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert begun.wait(20)
    with open_store(url) as other:
        made = add(Scene(other, over.clock, over.run))
    ended.set()
    thread.join(20)
    assert "another process began it anew" in str(refused[0])
    assert over.store.scorings.of_run(over.run) == [made] and left(over.store) == 4


def test_a_name_or_a_run_that_is_none_is_refused_before_anything_is_scored(over: Scene) -> None:
    def never() -> Iterator[Any]:
        raise AssertionError("nobody may be asked")
        yield

    for name in ("", " x", "a@b", "x" * 1000):
        with pytest.raises(BadInput):
            add(over, name, never())
    with pytest.raises(NotFound):
        over.store.scorings.add("run-9-z", "n", {}, never(), who="ann", now=1.0)
    with pytest.raises(BadRecord):
        add(over, "n", never(), scorers={"f": object()})
    for call in (over.store.scorings.get, over.store.scorings.verify, over.store.scorings.signals):
        with pytest.raises(NotFound, match=f"scoring ghost of {over.run}: there is none"):
            call(over.run, "ghost")
    assert left(over.store) == 0


@once
def test_a_change_behind_its_back_is_found(over: Scene) -> None:
    add(over)
    store, b = over.store, "WHERE rollout LIKE '%/b'"
    for statement, why, more in (
        (f"UPDATE scored SET value = 0 {b}", "was changed after it was written", []),
        (f"UPDATE scored SET feedback = 'x' {b}", "was changed after it was written", []),
        (f"DELETE FROM scored {b}", "was changed after it was written", []),
        ("UPDATE scorings SET scorers = '{}'", "was changed after it was written", []),
        ("UPDATE scorings SET sha256 = 'ab'", "was changed after it was written", []),
        ("UPDATE scorings SET rollouts = 9", "was changed after it was written", []),
        ("UPDATE scorings SET name = 'new'", "is not in the ledger", ["is in the ledger, and not in the store"]),
    ):
        said = f"scoring {'new' if more else 'exact-2'} of {over.run}: {why}"
        with damaged(store, statement):
            with says(StoreCorrupt, f"{said}; score the run again under another name"):
                store.scorings.verify(over.run, "new" if more else "exact-2")
            assert found(store) == [said, *(f"scoring exact-2 of {over.run}: {one}" for one in more)]


def test_what_is_left_over_is_found(over: Scene) -> None:
    add(over)
    for statement, said in (
        ("DELETE FROM scorings", "scoring 1: is not there, but has 3 signals"),
        ("UPDATE scorings SET run = 'run-9'", "scoring exact-2 of run-9: its run is not there"),
        ("DELETE FROM rollouts WHERE name = 'b'", "scoring exact-2 of run-1-a: scores run-1-a/b, which is not there"),
    ):
        with damaged(over.store, statement):
            assert said in found(over.store)
    last = over.store.ledger.verify()
    rewrite(over.store, last, f"UPDATE ledger SET body = '{{}}' WHERE seq = {last}")
    said = f"ledger: entry {last} says nothing about a scoring that makes sense; score the run again under another name"
    assert found(over.store) == [said]
