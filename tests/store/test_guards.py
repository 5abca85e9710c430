"""The guards of the database: those that the migrations make are there, and one that is gone or altered is named."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.store.check import _due, check
from holdfast.store.store import Store, open_store
from tests.store.scene import serving


def run(store: Store, *statements: str) -> None:
    connection: Any = store.db.engine.connect(read_only=False)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def found(store: Store) -> list[str]:
    return {part.name: list(part.problems) for part in check(store)}["guards"]


def dropped(store: Store, name: str, table: str) -> str:
    return f"DROP TRIGGER {name}" + ("" if store.db.engine.name == "sqlite" else f" ON {table}")


def test_a_fresh_store_has_all_its_guards(store: Store) -> None:
    assert found(store) == []


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("ledger_update", "ledger"),
        ("ledger_delete", "ledger"),
        ("releases_move", "releases"),
        ("releases_fixed", "releases"),
        ("steps_update", "steps"),
        ("scored_update", "scored"),
        ("served_told", "served"),
    ],
)
def test_a_guard_that_was_dropped_is_named(store: Store, name: str, table: str) -> None:
    serving(store)
    run(store, dropped(store, name, table))
    assert found(store) == [f"trigger {name}: is not there"]


def test_without_any_guard_each_is_named(store: Store) -> None:
    is_file = store.db.engine.name == "sqlite"
    names = [name for kind, name in _due(is_file) if kind == "trigger"]
    tables = {name: name.rpartition("_")[0] for name in names}
    assert {"ledger_update", "resources_update", "exposures_update", "releases_birth"} <= set(names)
    run(store, *(dropped(store, name, tables[name]) for name in names))
    assert found(store)[: len(names)] == [f"trigger {name}: is not there" for name in sorted(names)][:20] + (
        ["… and more of the same kind: only the first 20 are listed"] if len(names) > 20 else []
    )


@pytest.mark.parametrize("name", ["ux_releases_live", "ux_attempts_holder", "ix_rollouts_queue"])
def test_an_index_that_was_dropped_is_named(store: Store, name: str) -> None:
    run(store, f"DROP INDEX {name}")
    assert found(store) == [f"index {name}: is not there"]


def test_an_index_that_is_another_is_named_and_one_more_does_no_harm(store: Store) -> None:
    run(store, "CREATE INDEX mine ON runs (model_ref)")
    assert found(store) == []
    run(store, "DROP INDEX ux_releases_live", "CREATE INDEX ux_releases_live ON releases (project, policy)")
    assert found(store) == ["index ux_releases_live: is not the one that was made, or is switched off"]


def test_a_guard_that_guards_nothing_is_named(store: Store) -> None:
    if store.db.engine.name == "sqlite":
        code = "BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END"
        made = f"CREATE TRIGGER ledger_delete BEFORE DELETE ON ledger WHEN false {code}"
    else:
        made = (
            "CREATE TRIGGER ledger_delete BEFORE DELETE ON ledger FOR EACH ROW WHEN (false)"
            " EXECUTE FUNCTION ledger_delete()"
        )
    run(store, dropped(store, "ledger_delete", "ledger"), made)
    assert found(store) == ["trigger ledger_delete: is not the one that was made, or is switched off"]


def test_a_trigger_of_somebody_else_is_named(store: Store) -> None:
    if store.db.engine.name == "sqlite":
        run(store, "CREATE TRIGGER mine AFTER INSERT ON releases BEGIN UPDATE releases SET source = 'x'; END")
    else:
        code = "$$ BEGIN NEW.source = 'x'; RETURN NEW; END $$"
        run(store, f"CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS {code}")
        run(store, "CREATE TRIGGER mine BEFORE INSERT ON releases FOR EACH ROW EXECUTE FUNCTION mine()")
    assert found(store) == ["trigger mine: is not one of the store's"]


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE ledger DISABLE TRIGGER ledger_update",
        "CREATE OR REPLACE FUNCTION ledger_update() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NEW; END $$",
    ],
)
def test_a_guard_that_was_switched_off_on_the_server_is_named(databases: Any, statement: str) -> None:
    with open_store(databases.fresh()) as store:
        run(store, statement)
        assert found(store) == ["trigger ledger_update: is not the one that was made, or is switched off"]


def test_a_constraint_that_was_dropped_on_the_server_is_named(databases: Any) -> None:
    with open_store(databases.fresh()) as store:
        run(store, "ALTER TABLE releases DROP CONSTRAINT uq_releases_project_policy_number")
        assert found(store) == ["index uq_releases_project_policy_number: is not there"]
