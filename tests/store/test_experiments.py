"""Trials: a unit keeps its arm, a request is counted once and judged once, and all of it comes back in order."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, IllegalMove, NotFound
from holdfast.contracts.flag import Condition, Flag, FlagRule
from holdfast.contracts.records import encode
from holdfast.contracts.release import Experiment, Exposure, ServedRequest
from holdfast.store.store import Store, open_store
from tests.store.children import run_child, start_child
from tests.store.conftest import Race
from tests.store.scene import held_open, once, problems, says


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


def test_the_same_trial_again_is_the_one_that_is_there(store: Store) -> None:
    first = begin(store, trial(settings={"a": 2, "b": [1]}))
    assert begin(store, trial(settings={"b": [1], "a": 2})) == first
    again = trial(settings={"a": 2, "b": (1,)}, created_at=9.0)  # begun again by a process that came back
    assert begin(store, again) == first
    same: dict[str, Any] = {"settings": {"a": 2, "b": [1]}}
    others: tuple[dict[str, Any], ...] = ({"salt": "other"}, {"kind": "canary"}, {"settings": {"a": 3, "b": [1]}})
    for other in (*others, {"arms": {"treatment": 0.5, "control": 0.5}}):  # the last has another control
        with says(Conflict, "trial t: is there already, with other content; give it another name"):
            begin(store, trial(**same | other))
    assert store.trials.all() == [first] and len(list(store.ledger.entries())) == 1


@once
def test_an_experiment_or_a_flag_has_a_name_that_can_be_read(store: Store) -> None:
    for name in ("a@1", "a\u202eb", "a\x00", "x" * 101):
        with pytest.raises(BadInput, match="^trial "):
            begin(store, trial(name))
        with pytest.raises(BadInput, match="^flag "):
            put(store, flag(name))
    with pytest.raises(BadInput, match="^trial "):
        begin(store, trial(" a"))
    assert store.trials.all() == store.flags.all() == []


@once
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


def test_two_processes_that_expose_a_unit_agree_on_its_arm(store: Store, race: Race) -> None:
    begin(store)
    first, second = race(
        lambda mine: mine.trials.expose("t", "u", "control", now=1.0),
        lambda other: other.trials.expose("t", "u", "treatment", now=2.0),
    )
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


@once
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

    def serve(who: str) -> None:
        with open_store(url) as mine:
            for n in range(40):
                record(mine, *(request(f"{who}-{n}-{place}") for place in range(5)))

    seen: list[str] = []
    until = time.monotonic() + 60
    with ThreadPoolExecutor(2) as threads:
        serving = [threads.submit(serve, who) for who in ("ann", "bob")]
        while len(seen) < 400 and time.monotonic() < until:
            seen += names(store, after=len(seen))
    assert [one.result() for one in serving] == [None, None]
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


@once
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
    assert problems(store) == []


def flag(name: str = "beta", **fields: Any) -> Flag:
    return Flag(**{"name": name, "variants": {"on": True, "off": False}, "off": "off", **fields})


def put(store: Store, given: Flag, now: float = 1.0, **how: Any) -> Flag:
    return store.flags.put(given, **{"who": "ann", "why": "a try", "now": now, **how}).result()


def test_what_is_put_comes_back_with_the_time_of_its_change(store: Store) -> None:
    rich = flag(
        variants={"a": {"n": 1}, "b": {"n": [2.5, None, "Grüße \ud83d"]}},
        off="a",
        enabled=True,
        rules=(
            FlagRule(
                variant="b", conditions=(Condition(attribute="group", operator="in", value=["staff"]),), percent=12.5
            ),
        ),
        requires={"other": "on"},
        expires_at=99.5,
        owner="ann",
    )
    kept = put(store, rich, now=7.25)
    assert kept == replace(rich, changed_at=7.25)
    assert store.flags.get("beta") == kept
    put(store, flag("alpha"))
    assert [one.name for one in store.flags.all()] == ["alpha", "beta"]


def test_putting_again_replaces_it_and_the_ledger_has_both(store: Store) -> None:
    first = put(store, flag())
    second = put(store, flag(enabled=True), now=2.0, who="bob", why="ready")
    assert store.flags.all() == [second]
    old, new = store.ledger.entries()
    assert (old.kind, old.who, old.at) == ("flag", "ann", 1.0)
    assert old.body == {"put": "beta", "why": "a try", "flag": encode(first), "before": None}
    assert (new.kind, new.who, new.at) == ("flag", "bob", 2.0)
    assert new.body == {"put": "beta", "why": "ready", "flag": encode(second), "before": encode(first)}
    assert store.ledger.verify() == 2


def test_a_dropped_flag_is_gone_but_for_the_ledger(store: Store) -> None:
    kept = put(store, flag())
    assert store.flags.drop("beta", who="ann", why="released", now=3.0).result() == kept
    assert store.flags.all() == []
    said = "flag 'beta': there is none in project 'default'; 'holdfast release flags list' shows them"
    for call in (store.flags.get, lambda name: store.flags.drop(name, who="ann", why="again", now=4.0).result()):
        with says(NotFound, said):
            call("beta")
    assert list(store.ledger.entries())[-1].body == {"drop": "beta", "why": "released", "before": encode(kept)}


def test_who_changes_what_another_has_changed_meanwhile_is_told(store: Store) -> None:
    """An operator kills it while somebody who did not see that widens its rollout."""
    seen = put(store, flag(enabled=True))
    put(store, replace(seen, killed=True), now=2.0, seen=seen)
    with pytest.raises(Conflict, match="^flag beta: was changed by another meanwhile; look at it again$"):
        put(store, replace(seen, rules=(FlagRule(variant="on"),)), now=3.0, seen=seen)
    assert store.flags.get("beta").killed
    with pytest.raises(Conflict):
        put(store, flag("gone"), seen=flag("gone"))
    assert [one.name for one in store.flags.all()] == ["beta"]


def test_of_two_changes_at_once_the_second_sees_the_first(store: Store, race: Race) -> None:
    seen = put(store, flag(enabled=True))
    first, second = race(
        lambda mine: mine.flags.put(replace(seen, killed=True), who="a", why="x", now=2.0, seen=seen),
        lambda other: other.flags.put(replace(seen, salt="new"), who="b", why="x", now=3.0, seen=seen),
    )
    assert first.result().killed
    with pytest.raises(Conflict):
        second.result()
    assert (store.flags.get("beta").killed, store.flags.get("beta").salt) == (True, "")


@once
def test_what_json_cannot_hold_is_not_kept(store: Store) -> None:
    with pytest.raises(BadRecord):
        put(store, flag(variants={"on": float("nan"), "off": 0.0}))
    assert (store.flags.all(), list(store.ledger.entries())) == ([], [])
