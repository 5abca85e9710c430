"""Flags: what is put is there for everybody, and who changed what and why is in the ledger."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, NotFound
from holdfast.contracts.flag import Condition, Flag, FlagRule
from holdfast.contracts.records import encode
from holdfast.store.notifications import FLAGS, ORDERS
from holdfast.store.store import Store, open_store
from tests.store.children import start_child
from tests.store.scene import held_open


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
    said = "^flag 'beta': there is none in project 'default'; 'holdfast flags list' shows them$"
    with pytest.raises(NotFound, match=said):
        store.flags.get("beta")
    with pytest.raises(NotFound, match=said):
        store.flags.drop("beta", who="ann", why="again", now=4.0).result()
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


def test_of_two_changes_at_once_the_second_sees_the_first(store: Store, url: str) -> None:
    seen = put(store, flag(enabled=True))
    kill = lambda: store.flags.put(replace(seen, killed=True), who="a", why="x", now=2.0, seen=seen)  # noqa: E731
    with open_store(url) as other:
        with held_open(store, kill) as (first,):
            second = other.flags.put(replace(seen, salt="new"), who="b", why="x", now=3.0, seen=seen)
            time.sleep(0.1)
        assert first.result().killed
        with pytest.raises(Conflict):
            second.result()
    assert (store.flags.get("beta").killed, store.flags.get("beta").salt) == (True, "")


def test_what_json_cannot_hold_is_not_kept(store: Store) -> None:
    with pytest.raises(BadRecord):
        put(store, flag(variants={"on": float("nan"), "off": 0.0}))
    assert (store.flags.all(), list(store.ledger.entries())) == ([], [])


@pytest.mark.parametrize("name", ["a@1", "a\u202eb", "a\x00", "x" * 101])
def test_a_flag_has_a_name_that_can_be_read(store: Store, name: str) -> None:
    with pytest.raises(BadInput, match="^flag "):
        put(store, flag(name))
    assert store.flags.all() == []


def test_a_project_has_its_own_flags(store: Store, url: str) -> None:
    put(store, flag())
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.flags.all() == []
        put(elsewhere, flag(enabled=True))
        elsewhere.flags.drop("beta", who="ann", why="x", now=2.0).result()
    assert store.flags.get("beta").enabled is False


KILLER = """
import sys
from dataclasses import replace
from holdfast.store.store import open_store

with open_store(sys.argv[1]) as store:
    seen = store.flags.get("beta")
    print("ready", flush=True)
    sys.stdin.readline()
    store.flags.put(replace(seen, killed=True), who="ops", why="it burns", now=9.0, seen=seen).result()
"""


def test_a_kill_in_another_process_is_seen_at_once(store: Store, url: str) -> None:
    put(store, flag(enabled=True))
    child = start_child(KILLER, url)
    assert child.stdin is not None and child.stdout is not None and child.stdout.readline() == "ready\n"
    assert store.changes.wait(ORDERS, store.changes.seen(ORDERS), 60.0)  # the watcher has begun: its first look is news
    seen = store.changes.seen(FLAGS)
    child.stdin.write("go\n")
    child.stdin.flush()
    assert store.changes.wait(FLAGS, seen, 60.0)
    assert store.flags.get("beta").killed
    child.communicate(timeout=60)
