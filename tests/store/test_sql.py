"""Statements become text once, with fixed values written out; values become JSON or are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from holdfast.contracts.errors import BadRecord
from holdfast.store import schema
from holdfast.store.db import COMMITS
from holdfast.store.notifications import TOPICS
from holdfast.store.sql import Book, Transaction, among, plain_text, to_json
from holdfast.store.store import Store

_r = schema.rollouts.c
WAITING = select(_r.name).where(_r.run == bindparam("run"), _r.status == "queuing").limit(7)


def test_fixed_values_are_written_out_and_parameters_stay() -> None:
    on_sqlite = " ".join(Book(sqlite.dialect(paramstyle="named"))[WAITING].split())
    assert on_sqlite == (
        "SELECT rollouts.name FROM rollouts WHERE rollouts.run = :run AND rollouts.status = 'queuing' LIMIT 7 OFFSET 0"
    )
    on_postgres = " ".join(Book(PGDialect_psycopg(paramstyle="pyformat"))[WAITING].split())
    assert on_postgres == (
        "SELECT rollouts.name FROM rollouts WHERE rollouts.run = %(run)s::BIGINT "
        "AND rollouts.status = 'queuing'::VARCHAR LIMIT 7::INTEGER"
    )


def test_one_of_several_fixed_values_is_written_out_too() -> None:
    statement = select(_r.name).where(_r.run == bindparam("run"), among(_r.status, "queuing", "running"))
    text = " ".join(Book(sqlite.dialect(paramstyle="named"))[statement].split())
    assert text.endswith("rollouts.run = :run AND (rollouts.status = 'queuing' OR rollouts.status = 'running')")


def test_a_parameter_whose_name_begins_like_a_fixed_value_is_left_alone() -> None:
    statement = update(schema.runs).values(state="running", error=None).where(schema.runs.c.key == bindparam("state_1"))
    text = Book(sqlite.dialect(paramstyle="named"))[statement]
    assert "state='running'" in text and "error=NULL" in text and ":state_1" in text


def test_a_statement_is_compiled_once() -> None:
    book = Book(sqlite.dialect(paramstyle="named"))
    assert book[WAITING] is book[WAITING]
    assert len(book) == 1


def test_a_fixed_value_that_is_not_a_name_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError):
        Book(sqlite.dialect(paramstyle="named"))[select(_r.key).where(_r.name == "a'b")]


IS_TOPIC = among(schema.pulse.c.topic, *TOPICS, COMMITS)  # and no counter of rows, or mark of a commit


def test_a_transaction_gives_rows_and_remembers_its_topics(store: Store) -> None:
    statement = select(schema.pulse.c.topic, schema.pulse.c.n).where(IS_TOPIC).order_by(schema.pulse.c.topic)

    def look(tx: Transaction) -> tuple[Any, Any, Any, dict[str, int]]:
        tx.touch("queue")
        tx.touch("queue")
        return tx.one(statement, {}), tx.all(statement, {}), tx.run(statement, {}).fetchall(), dict(tx.topics)

    one, everything, ran, topics = store.db.write(look).result()
    assert tuple(one) == ("alerts", 0)
    assert [row[0] for row in everything] == sorted((*TOPICS, COMMITS))
    assert ran == everything
    assert topics == {"queue": 0}


def test_one_statement_for_many_values_says_how_many_rows_it_touched(store: Store) -> None:
    pulse = schema.pulse
    beat = update(pulse).where(pulse.c.topic == bindparam("of")).values(n=pulse.c.n + bindparam("by"))
    values = [{"of": "queue", "by": 1}, {"of": "nothing", "by": 1}, {"of": "done", "by": 5}, {"of": "queue", "by": 2}]
    assert store.db.write(lambda tx: tx.many(beat, values)).result() == 3
    moved = select(pulse.c.topic, pulse.c.n).where(IS_TOPIC, pulse.c.n > 0, pulse.c.topic != COMMITS)
    assert dict(store.db.all(moved, {})) == {"queue": 3, "done": 5}


@pytest.mark.parametrize(
    "value",
    [
        None,
        0,
        2**70,  # no 64-bit number
        0.1 + 0.2,  # every digit counts
        "",
        "Grüße, 世界 🐚",
        "cut off: \ud83d",  # half a character, as a model cut short gives it
        "nothing: \x00",
        {"b": [1, {"a": None}], "a": True},
    ],
)
def test_what_json_can_hold_comes_back(value: Any) -> None:
    text = to_json(value)
    assert json.loads(text) == value
    assert text.encode()  # a database takes only what can be encoded


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (float("nan"), "Out of range float values are not JSON compliant"),
        (float("-inf"), "Out of range float values are not JSON compliant"),
        ({1, 2}, "Object of type set is not JSON serializable"),
        ({"a": b"bytes"}, "Object of type bytes is not JSON serializable"),
        ({(1, 2): 3}, "keys must be str, int, float, bool or None, not tuple"),
    ],
)
def test_what_json_cannot_hold_is_refused(value: Any, why: str) -> None:
    with pytest.raises(BadRecord, match=f"^value for the store: {why}"):
        to_json(value)


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BadRecord, match="^value for the store: Circular reference detected"):
        to_json(endless)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("plain", "plain"),
        ("Grüße 🐚", "Grüße 🐚"),
        ("a\x00b", "a\ufffdb"),  # Postgres has no NUL in text
        ("\ud83d!", "\ufffd!"),  # half a character cannot be encoded
        (None, None),
    ],
)
def test_text_is_kept_as_far_as_both_engines_can(text: str | None, kept: str | None) -> None:
    assert plain_text(text) == kept
