"""What runs for every rollout must not read all of them: each hot statement finds its rows by an index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from sqlalchemy import Executable
from sqlalchemy.sql import ClauseElement

from holdfast.store import artifacts, ledger, queue, runs, scorings, traces, views
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Files
from tests.store.scene import Scene, begin, run_sql

WHOLE = {  # these look at much on purpose, or at tables that stay small
    "views.COUNTS": "counts a run",
    "views.REWARDS": "counts a run",
    "views.OUTCOMES": "counts a run",
    "runs.STARTING_WITH": "what a person typed, among the runs of a project",
    "runs.NEWEST_WORKERS": "from the newest backwards, as far as the page reaches",
    "ledger.LAST": "one row, from the end of the key's own order",
    "artifacts.ALL": "a check of everything",
    "runs.WITH_SOME": "a check of everything",
    "runs.WITH_ENTRIES": "a check of everything",
    "runs.FIRST": "a check of everything",
    "runs.RUNS_NOTED": "a check of everything",
    "runs.EVERY_RUN": "a check of everything",
    "scorings.EVERY": "a check of everything",
    "scorings.NOTED": "a check of everything",
    "scorings.PRUNED": "a check of everything",
    "ledger.ANY_DECISION": "a check of everything",
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
    for module in (queue, traces, runs, views, ledger, artifacts, scorings):
        for name, value in vars(module).items():
            if isinstance(value, ClauseElement) and isinstance(value, Executable) and name.isupper():
                yield f"{module.__name__.rpartition('.')[2]}.{name}", value
    for filters in (some for n in range(len(views._fits)) for some in combinations(views._fits, n)):
        yield f"views.page_of {filters}", views.page_of(*filters)


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
    run_sql(store, "ANALYZE")
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


NUMBERS = "run rollout token most after before version number attempt seq size paid driver step span_seq counting tries"
NUMBERS += " interrupted max_faults scoring first last of begin n turn final pid slots priority max_attempts resources"
NUMBERS += (
    " queue_limit now until lease_until deadline ready_at at created_at started_at ended_at trusted added_at span_end"
)
NUMBERS += " reward value weight timeout_s"


def _sample(name: str) -> object:
    return 1 if name in NUMBERS.split() else "x"


def test_no_hot_statement_reads_a_whole_table_and_the_head_of_the_queue_needs_no_sorting(filled: Store) -> None:
    is_file = filled.db.engine.name == "sqlite"
    plans = {name: plan(filled, statement) for name, statement in STATEMENTS.items() if name in {*HOT, *SORTED}}
    whole, sorting = rf"^SCAN (?!CONSTANT)({BIG})\b" if is_file else "Seq Scan", r"TEMP B-TREE|\bSort\b"
    assert {name for name in HOT if any(re.search(whole, line) for line in plans[name])} == set()
    assert {name for name in SORTED if any(re.search(sorting, line) for line in plans[name])} == set()
    taking = plans["queue.TAKE"]  # whether the step of a rollout is recorded is found by the name of the step
    if is_file:
        (line,) = [line for line in taking if " steps " in line]
        assert line.startswith("SEARCH steps USING") and line.endswith("(run=? AND name=?)")
        assert [line for line in taking if "ix_rollouts_queue (run=?)" in line]
    else:
        assert [line for line in taking if "uq_steps_run_name on steps" in line]
        assert [line for line in taking if "ix_rollouts_queue on rollouts" in line]


def test_a_run_is_counted_and_a_step_is_found_by_their_indexes(files: Files) -> None:
    """No row is read to count, and none of another step."""
    counted, of_step = "COVERING INDEX ix_rollouts_run_status_key (run=?)", "ix_rollouts_step (run=? AND step=?"
    with open_store(files.fresh()) as store:
        assert all(counted in plan(store, statement)[0] for statement in (views.COUNTS, views.OUTCOMES))
        assert all(of_step in plan(store, statement)[0] for statement in (views.ANY_OPEN_IN, views.OF_STEP))
