"""What runs for every rollout must not read all of them: each hot statement finds its rows by an index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Executable
from sqlalchemy.sql import ClauseElement

from holdfast.store import artifacts, ledger, queue, runs, scorings, steps, traces, views
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Files
from tests.store.scene import Scene, begin

WHOLE = {  # these look at much on purpose, or at tables that stay small
    "views.COUNTS": "counts a run",
    "views.REWARDS": "counts a run",
    "views.OUTCOMES": "counts a run",
    "runs.STARTING_WITH": "what a person typed, among the runs of a project",
    "runs.NEWEST_WORKERS": "from the newest backwards, as far as the page reaches",
    "ledger.LAST": "one row, from the end of the key's own order",
    "artifacts.ALL": "a check of everything",
    "steps.WITH_SOME": "a check of everything",
    "steps.WITH_ENTRIES": "a check of everything",
    "steps.FIRST": "a check of everything",
    "scorings.EVERY": "a check of everything",
    "scorings.NOTED": "a check of everything",
    "scorings.PRUNED": "a check of everything",
    "ledger.LOCK": "no query",
    "ledger.DATABASE": "of Postgres, about the database itself",
    "artifacts.LOCK": "no query",
}
SORTED = {
    "queue.TAKE",
    "queue.RIPEN",
    "queue.EXPIRED",
    "queue.NEXT_RIPE",
    "traces.SPANS",
    "ledger.LAST",
    "ledger.AFTER",
}
BIG = "rollouts|attempts|spans|signals|ledger|workers|resources|runs|blobs|checkpoints|steps|scorings|scored"


def statements() -> Iterator[tuple[str, Executable]]:
    for module in (queue, traces, runs, views, ledger, artifacts, steps, scorings):
        for name, value in vars(module).items():
            if isinstance(value, ClauseElement) and isinstance(value, Executable) and name.isupper():
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value
    for wanted, page in views._pages.items():
        yield f"views.page by status, split, outcome, none of it, no answer: {wanted}", page


STATEMENTS = dict(statements())
HOT = [name for name in STATEMENTS if name not in WHOLE]


def test_the_exceptions_are_still_there() -> None:
    assert set(WHOLE) <= set(STATEMENTS) and set(STATEMENTS) >= SORTED


@pytest.fixture
def filled(store: Store, clock: Clock) -> Store:
    """Enough rows that an index is worth its while, in two runs."""
    for salt in "ab":
        scene = Scene(store, clock, begin(store, clock, salt=salt))
        scene.enqueue(*(f"t{n}" for n in range(300)))
        scene.claims(100)
    store.db.write(lambda tx: [ledger.append(tx, "default", None, "k", "w", {}, 1.0) for _ in range(100)]).result()
    connection = store.db.engine.connect(read_only=False)
    connection.execute("ANALYZE")
    connection.close()
    return store


def plan(store: Store, statement: Executable) -> list[str]:
    """The engine's own account of what it would do."""
    connection = store.db.engine.connect(read_only=False)
    text = store.db.engine.book[statement]
    params: Any = {name: _sample(name) for name in re.findall(r":(\w+)|%\((\w+)\)s", text) for name in name if name}
    if store.db.engine.name == "sqlite":
        lines = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {text}", params)]
    else:
        connection.execute("SET enable_seqscan = off")  # small tables: is there an index at all?
        lines = [row[0] for row in connection.execute(f"EXPLAIN {text}", params)]
    connection.close()
    return lines


def _sample(name: str) -> object:
    numbers = (
        "run",
        "rollout",
        "token",
        "most",
        "after",
        "before",
        "version",
        "number",
        "attempt",
        "seq",
        "size",
        "paid",
        "driver",
        "step",
        "span_seq",
        "counting",
        "tries",
        "interrupted",
        "max_faults",
        "scoring",
        "first",
        "last",
        "of",
        "begin",
        "n",
    )
    times = (
        "now",
        "until",
        "lease_until",
        "deadline",
        "ready_at",
        "at",
        "created_at",
        "started_at",
        "ended_at",
        "trusted",
        "added_at",
        "span_end",
    )
    others: dict[str, object] = {
        "reward": 1.0,
        "value": 1.0,
        "weight": 1.0,
        "turn": 1,
        "final": 1,
        "pid": 1,
        "slots": 1,
    }
    others |= {"priority": 0, "max_attempts": 1, "timeout_s": 1.0, "resources": 1, "queue_limit": 1}
    if name in others:
        return others[name]
    return 1 if name in numbers else 1.0 if name in times else "x"


def test_no_hot_statement_reads_a_whole_table(filled: Store) -> None:
    scans = {}
    for name in HOT:
        lines = plan(filled, STATEMENTS[name])
        pattern = rf"^SCAN (?!CONSTANT)({BIG})\b" if filled.db.engine.name == "sqlite" else "Seq Scan"
        if found := [line for line in lines if re.search(pattern, line)]:
            scans[name] = found
    assert scans == {}


def test_whether_the_step_of_a_rollout_is_recorded_is_found_by_the_name_of_the_step(filled: Store) -> None:
    lines = plan(filled, queue.TAKE)
    if filled.db.engine.name == "sqlite":
        (line,) = [line for line in lines if " steps " in line]
        assert line.startswith("SEARCH steps USING") and line.endswith("(run=? AND name=?)")
        assert [line for line in lines if "ix_rollouts_queue (run=?)" in line]
    else:
        assert [line for line in lines if "uq_steps_run_name on steps" in line]
        assert [line for line in lines if "ix_rollouts_queue on rollouts" in line]


@pytest.mark.parametrize("statement", [views.COUNTS, views.OUTCOMES])
def test_to_count_a_run_no_row_is_read(files: Files, statement: Executable) -> None:
    with open_store(files.fresh()) as store:
        assert "COVERING INDEX ix_rollouts_run_status_key (run=?)" in plan(store, statement)[0]


@pytest.mark.parametrize("statement", [views.ANY_OPEN_IN, views.OF_STEP])
def test_the_rollouts_of_a_step_are_found_without_those_of_other_steps(files: Files, statement: Executable) -> None:
    with open_store(files.fresh()) as store:
        assert "ix_rollouts_step (run=? AND step=?" in plan(store, statement)[0]


def test_the_head_of_the_queue_is_found_without_sorting(filled: Store) -> None:
    sorts = {}
    for name in sorted(SORTED):
        lines = plan(filled, STATEMENTS[name])
        if found := [line for line in lines if re.search(r"TEMP B-TREE|\bSort\b", line)]:
            sorts[name] = found
    assert sorts == {}
