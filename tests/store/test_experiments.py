"""Trials: a unit keeps its arm, a request is counted once and judged once, and all of it comes back in order."""

from __future__ import annotations

import time
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, IllegalMove, NotFound
from holdfast.contracts.release import Experiment, Exposure, ServedRequest
from holdfast.store.check import check
from holdfast.store.notifications import TRIALS
from holdfast.store.store import Store, open_store
from tests.store.children import run_child, start_child
from tests.store.scene import held_open


def trial(name: str = "t", **fields: Any) -> Experiment:
    given = {"kind": "experiment", "arms": {"control": 0.5, "treatment": 0.5}, "salt": "s", "created_at": 1.0}
    return Experiment(**{"name": name, **given, **fields})


def begin(store: Store, given: Experiment | None = None) -> Experiment:
    return store.trials.begin(given or trial(), who="ann", now=1.0).result()


def request(name: str, arm: str = "control", **fields: Any) -> ServedRequest:
    return ServedRequest(**{"id": name, "trial": "t", "arm": arm, "unit": "u", "at": 2.0, **fields})


def record(store: Store, *served: ServedRequest) -> int:
    return store.trials.record(served).result()


def tell(store: Store, name: str, **values: Any) -> bool:
    return store.trials.feedback(name, **values).result()


def names(store: Store, **how: Any) -> list[str]:
    return [one.id for one in store.trials.served("t", **how)]


def sound(store: Store) -> bool:
    return [problem for part in check(store) for problem in part.problems] == []


def test_a_trial_comes_back_and_its_first_arm_stays_the_first(store: Store) -> None:
    given = trial(arms={"z": 0.25, "a": 0.75}, settings={"metric": "success", "alpha": 0.05}, kind="canary")
    assert begin(store, given) == given
    assert store.trials.get("t") == given
    assert list(store.trials.get("t").arms) == ["z", "a"]
    begin(store, trial("other"))
    assert [one.name for one in store.trials.all()] == ["other", "t"]
    assert [one.name for one in store.trials.all("canary")] == ["t"]
    entry = next(store.ledger.entries())
    assert (entry.kind, entry.who, entry.at) == ("trial", "ann", 1.0)
    assert entry.body == {
        "begin": "t",
        "kind": "canary",
        "arms": {"z": 0.25, "a": 0.75},
        "salt": "s",
        "settings": {"metric": "success", "alpha": 0.05},
    }


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"settings": {"b": [1], "a": 2}}, True),
        ({"settings": {"a": 2, "b": (1,)}, "created_at": 9.0}, True),  # begun again by a process that came back
        ({"settings": {"a": 2, "b": [1]}, "salt": "other"}, False),
        ({"settings": {"a": 2, "b": [1]}, "kind": "canary"}, False),
        ({"settings": {"a": 3, "b": [1]}}, False),
        ({"settings": {"a": 2, "b": [1]}, "arms": {"treatment": 0.5, "control": 0.5}}, False),  # another control
    ],
)
def test_the_same_trial_again_is_the_one_that_is_there(store: Store, other: dict[str, Any], same: bool) -> None:
    first = begin(store, trial(settings={"a": 2, "b": [1]}))
    if same:
        assert begin(store, trial(**other)) == first
    else:
        with pytest.raises(Conflict, match="^trial t: is there already, with other content; give it another name$"):
            begin(store, trial(**other))
    assert store.trials.all() == [first]
    assert len(list(store.ledger.entries())) == 1


@pytest.mark.parametrize("name", ["a@1", " a", "a\u202eb", "a\x00", "x" * 101])
def test_an_experiment_has_a_name_that_can_be_read(store: Store, name: str) -> None:
    with pytest.raises(BadInput, match="^trial "):
        begin(store, trial(name))
    assert store.trials.all() == []


def test_the_trial_of_a_release_is_named_after_it(store: Store) -> None:
    name = f"canary:{'x' * 100}@2:5:{'x' * 100}@1:1.000"
    assert begin(store, trial(name, kind="canary")).name == name


def test_a_trial_ends_once_and_its_name_is_not_used_again(store: Store) -> None:
    begin(store)
    assert store.trials.end("t", who="bob", why="decided", now=5.0).result().ended_at == 5.0
    assert store.trials.end("t", who="eve", why="again", now=9.0).result().ended_at == 5.0
    assert [dict(entry.body) for entry in store.ledger.entries()][1:] == [{"end": "t", "why": "decided"}]
    with pytest.raises(Conflict, match="^trial t: has ended; give it another name$"):
        begin(store)


def test_what_is_not_there_is_not_found(store: Store) -> None:
    said = "^trial 't': there is none in project 'default'; begin it first$"
    for call in (
        lambda: store.trials.get("t"),
        lambda: store.trials.end("t", who="a", why="b", now=1.0),
        lambda: store.trials.expose("t", "u", "control", now=1.0),
        lambda: store.trials.exposure("t", "u"),
        lambda: store.trials.exposed("t"),
        lambda: store.trials.record([request("r")]),
        lambda: store.trials.served("t"),
    ):
        with pytest.raises(NotFound, match=said):
            call()


def test_a_unit_keeps_the_arm_it_was_given_first(store: Store) -> None:
    begin(store)
    assert store.trials.exposure("t", "ann") is None
    first = store.trials.expose("t", "ann", "treatment", now=2.5).result()
    assert first == Exposure(trial="t", unit="ann", arm="treatment", at=2.5)
    assert store.trials.expose("t", "ann", "control", now=9.0).result() == first
    assert store.trials.exposure("t", "ann") == first
    store.trials.expose("t", "bob", "treatment", now=3.0).result()
    assert store.trials.exposed("t") == {"control": 0, "treatment": 2}


def test_an_arm_must_be_one_of_the_trial_and_a_unit_must_be_named(store: Store) -> None:
    begin(store)
    said = "^trial t: arm 'blue': is not one of its arms; use control, treatment$"
    for call in (
        lambda: store.trials.expose("t", "u", "blue", now=1.0),
        lambda: store.trials.record([request("a"), request("b", "blue")]),
        lambda: store.trials.served("t", arm="blue"),
    ):
        with pytest.raises(BadInput, match=said):
            call()
    with pytest.raises(BadInput, match="^trial t: unit ' ': must not be blank"):
        store.trials.expose("t", " ", "control", now=1.0)
    assert names(store) == []


def test_after_its_end_nobody_new_is_given_an_arm_and_what_was_under_way_is_kept(store: Store) -> None:
    begin(store)
    old = store.trials.expose("t", "old", "control", now=2.0).result()
    store.trials.end("t", who="a", why="b", now=3.0).result()
    with pytest.raises(IllegalMove, match="^trial t: has ended; begin another$"):
        store.trials.expose("t", "new", "control", now=4.0).result()
    assert store.trials.expose("t", "old", "treatment", now=4.0).result() == old
    assert record(store, request("late")) == 1


def test_two_processes_that_expose_a_unit_agree_on_its_arm(store: Store, url: str) -> None:
    begin(store)
    expose = lambda: store.trials.expose("t", "u", "control", now=1.0)  # noqa: E731
    with open_store(url) as other:
        with held_open(store, expose) as (first,):
            second = other.trials.expose("t", "u", "treatment", now=2.0)
            time.sleep(0.1)
        assert first.result() == second.result()
    assert store.trials.exposed("t") == {"control": 1, "treatment": 0}


def test_what_was_served_comes_back_in_the_order_of_its_arrival(store: Store) -> None:
    begin(store)
    whole = request("z", "treatment", unit="ann", at=9.5, error=True, latency_s=0.25, tokens=12, success=1.0)
    bare = request("a", at=3.0)
    assert record(store, whole, bare) == 2
    assert record(store, request("m", "treatment", reward=-2.5, safety_cost=0.5)) == 1
    assert store.trials.served("t")[:2] == [whole, bare]
    assert names(store) == ["z", "a", "m"]
    assert names(store, arm="treatment") == ["z", "m"]
    assert names(store, after=1) == ["a", "m"]
    assert names(store, after=1, most=1) == ["a"]
    assert names(store, arm="treatment", after=1) == ["m"]
    assert names(store, after=3) == names(store, most=0) == []


def test_the_same_request_again_changes_nothing(store: Store) -> None:
    begin(store)
    first = request("r", latency_s=0.5)
    assert record(store, first, request("r", "treatment")) == 1
    assert record(store, request("r", "treatment", latency_s=9.0), request("s")) == 1
    assert record(store) == 0
    assert store.trials.served("t") == [first, request("s")]


def test_feedback_completes_a_request(store: Store) -> None:
    begin(store)
    record(store, request("r", latency_s=0.5), request("s"))
    assert not tell(store, "unknown", success=1.0)
    assert tell(store, "r", success=0.0)
    assert tell(store, "r", reward=0.75, safety_cost=0.0)  # the rest may come later
    assert store.trials.served("t") == [
        request("r", latency_s=0.5, success=0.0, reward=0.75, safety_cost=0.0),
        request("s"),
    ]


def test_feedback_is_told_once(store: Store) -> None:
    begin(store)
    record(store, request("r", success=1.0))
    assert tell(store, "r", success=1.0, reward=0.5)
    assert tell(store, "r", reward=0.5)  # again is harmless
    with pytest.raises(Conflict, match=r"^request r: reward was told before: 0\.5, not 0\.25$"):
        tell(store, "r", reward=0.25, safety_cost=1.0)
    with pytest.raises(Conflict, match="^request r: success was told before"):
        tell(store, "r", success=0.0)
    assert store.trials.served("t") == [request("r", success=1.0, reward=0.5)]  # nothing of a refused one is kept


def test_feedback_that_is_none_is_refused(store: Store) -> None:
    begin(store)
    record(store, request("r"))
    with pytest.raises(BadInput, match="^feedback on r: says nothing; give one of success, reward, safety_cost$"):
        store.trials.feedback("r")
    with pytest.raises(BadRecord, match=r"success = 1\.5: must be finite and at least 0 and at most 1"):
        tell(store, "r", success=1.5)
    with pytest.raises(BadRecord):
        tell(store, "r", reward=float("nan"))
    assert store.trials.served("t") == [request("r")]


def test_names_that_an_engine_cannot_hold_are_made_so_that_it_can(store: Store) -> None:
    begin(store)
    assert record(store, request("a\x00", unit="u\ud83d")) == 1
    assert [(one.id, one.unit) for one in store.trials.served("t")] == [("a\ufffd", "u\ufffd")]
    assert tell(store, "a\x00", success=1.0)
    assert store.trials.expose("t", "u\x00", "control", now=1.0).result() == store.trials.exposure("t", "u\x00")


def test_a_project_has_its_own_trials_and_requests(store: Store, url: str) -> None:
    begin(store)
    record(store, request("r"))
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.trials.all() == []
        assert not tell(elsewhere, "r", success=1.0)
        begin(elsewhere)
        assert record(elsewhere, request("r", "treatment")) == 1
        assert [one.arm for one in elsewhere.trials.served("t")] == ["treatment"]
    assert [one.arm for one in store.trials.served("t")] == ["control"]
    assert sound(store)


def test_who_begins_or_ends_a_trial_wakes_others_and_what_is_served_does_not(store: Store) -> None:
    assert store.changes.wait(TRIALS, store.changes.seen(TRIALS), 60.0)  # the watcher starts: its first look is news
    for act, wakes in (
        (lambda: begin(store), True),
        (lambda: begin(store), False),
        (lambda: record(store, request("r")), False),
        (lambda: tell(store, "r", success=1.0), False),
        (lambda: store.trials.expose("t", "u", "control", now=1.0).result(), False),
        (lambda: store.trials.end("t", who="a", why="b", now=3.0).result(), True),
    ):
        seen = store.changes.seen(TRIALS)
        act()
        assert store.changes.wait(TRIALS, seen, 60.0 if wakes else 0.05) is wakes


SERVING = """
import sys
from holdfast.contracts.release import ServedRequest
from holdfast.store.store import open_store

url, who = sys.argv[1:]
with open_store(url) as store:
    for n in range(40):
        batch = [ServedRequest(id=f"{who}-{n}-{i}", trial="t", arm="control", unit=who, at=1.0) for i in range(5)]
        store.trials.record(batch).result()
"""


def test_who_looks_while_others_serve_misses_nothing_and_sees_nothing_twice(store: Store, url: str) -> None:
    """On Postgres, too, where keys are given out before the transactions end."""
    begin(store)
    child = start_child(SERVING, url, "ann")
    other = start_child(SERVING, url, "bob")
    seen: list[str] = []
    until = time.monotonic() + 60
    while len(seen) < 400 and time.monotonic() < until:
        seen += names(store, after=len(seen))
    for process in (child, other):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
    assert len(seen) == len(set(seen)) == 400
    assert names(store) == seen


def test_what_arrives_second_is_not_seen_first(store: Store, url: str) -> None:
    """Else who has seen one request, and looks at those after it, would never see the other."""
    begin(store)
    with open_store(url) as other:
        with held_open(store, lambda: store.trials.record([request("first")])) as (first,):
            second = other.trials.record([request("second")])
            time.sleep(0.1)
            assert names(store) == []
        assert (first.result(), second.result()) == (1, 1)
    assert names(store) == ["first", "second"]


def test_a_process_that_was_killed_lost_no_answered_request(store: Store, url: str) -> None:
    begin(store)
    script = SERVING.replace(".result()", ".result(); print(n, flush=True)").replace("range(40)", "range(100_000)")
    child = start_child(script, url, "ann")
    assert child.stdout is not None
    for _ in range(20):
        last = int(child.stdout.readline())
    child.kill()
    rest, _ = child.communicate(timeout=60)
    told = [int(line) for line in rest.split("\n")[:-1]] or [last]
    found = names(store)
    assert found[: 5 * (told[-1] + 1)] == [f"ann-{n}-{i}" for n in range(told[-1] + 1) for i in range(5)]
    assert len(found) % 5 == 0  # a batch is there as a whole, or not at all
    assert run_child(SERVING, url, "ann") == ""  # who comes back and says it again changes nothing
    assert [name for name in names(store) if name in set(found)] == found
    assert sound(store)
