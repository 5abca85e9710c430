"""Resource versions: named by their content, numbered within a project, never changed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, NotFound
from holdfast.contracts.run import ResourceVersion
from holdfast.store.sql import number
from holdfast.store.store import Store, open_store
from tests.conftest import Clock


def publish(store: Store, resources: Any, clock: Clock) -> ResourceVersion:
    return store.versions.publish(resources, now=clock.now).result()


def test_versions_are_numbered_from_one(store: Store, clock: Clock) -> None:
    made = [publish(store, {"prompt": text}, clock) for text in ("a", "b", "c")]
    assert [(v.id, v.version) for v in made] == [("resources-1", 1), ("resources-2", 2), ("resources-3", 3)]
    assert store.versions.get(2) == made[1]
    assert store.versions.latest() == made[2:]
    assert store.versions.latest(9) == made[::-1]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),  # the order of keys says nothing
        ({"p": {"x": 1, "y": [2]}}, {"p": {"y": [2], "x": 1}}, True),  # however deep
        ({"p": [1, 2]}, {"p": [2, 1]}, False),  # the order of a list does
        ({"p": 1}, {"p": True}, False),  # equal in Python, not in JSON
        ({"p": 1}, {"p": 1.0}, False),
        ({"p": "é"}, {"p": "e\u0301"}, False),  # looks alike
        ({}, {"p": None}, False),
    ],
)
def test_the_same_content_is_the_same_version(store: Store, clock: Clock, one: Any, other: Any, same: bool) -> None:
    first = publish(store, one, clock)
    clock.advance(5)
    second = publish(store, other, clock)
    assert (first == second) is same
    assert (first.sha256 == second.sha256) is same
    assert len(store.versions.latest(9)) == (1 if same else 2)


def test_content_comes_back_as_it_was(store: Store, clock: Clock) -> None:
    resources = {"prompt": "Grüße 🐚 \ud83d", "nested": {"list": [1, 2.5, None, True]}}
    made = publish(store, resources, clock)
    assert made.resources == store.versions.get(made.version).resources == resources
    assert (made.project, made.created_at) == ("default", clock.now)


def test_old_content_brings_the_old_number_back(store: Store, clock: Clock) -> None:
    assert [publish(store, {"p": text}, clock).version for text in ("a", "b", "a")] == [1, 2, 1]


def test_a_project_has_its_own_numbers_and_sees_no_others(store: Store, url: str, clock: Clock) -> None:
    publish(store, {"p": "mine"}, clock)
    publish(store, {"p": "both"}, clock)
    with open_store(url, project="other") as elsewhere:
        assert publish(elsewhere, {"p": "both"}, clock).version == 1
        assert [v.resources for v in elsewhere.versions.latest(9)] == [{"p": "both"}]
        with pytest.raises(NotFound) as refused:
            elsewhere.versions.get(2)
        assert str(refused.value) == "resources-2: there is none in project 'other'"
    assert len(store.versions.latest(9)) == 2


def test_the_database_refuses_to_change_a_version(store: Store, clock: Clock) -> None:
    publish(store, {"p": "a"}, clock)
    connection = store.db.engine.connect(read_only=False)
    with pytest.raises(Exception, match="a resource version is immutable"):
        connection.execute("UPDATE resources SET body = '{}'")
    connection.close()
    assert store.versions.get(1).resources == {"p": "a"}


def test_nothing_published_is_an_empty_list(store: Store) -> None:
    assert store.versions.latest() == []


def test_what_json_cannot_hold_is_refused(store: Store) -> None:
    with pytest.raises(BadRecord):
        store.versions.publish({"p": float("nan")}, now=1.0)
    assert store.versions.latest() == []


@pytest.mark.parametrize("version", [0, -1, 2, 2**31, 99999999999999999999, -(2**70)])
def test_a_number_that_nobody_was_given_is_not_found(store: Store, clock: Clock, version: int) -> None:
    store.versions.publish({"a": 1}, now=clock.now).result()
    with pytest.raises(NotFound, match=f"^resources-{version}: there is none in project 'default'$"):
        store.versions.get(version)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("999999999", 999999999), ("1234567890", None), ("9" * 5000, None)]
    + [(text, None) for text in ("", "0", "01", "-1", "+1", "1.0", "1_0", " 1", "²", "٣")],
)
def test_a_number_is_read_as_it_is_written(text: str, expected: int | None) -> None:
    assert number(text) == expected
