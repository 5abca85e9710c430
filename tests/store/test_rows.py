"""Rows become records: each field from the column of its name, whatever the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
from sqlalchemy import Column, Float, Integer

from holdfast.contracts.errors import StoreCorrupt
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.store import rows, schema

WORDS = {
    "status": "running",
    "state": "failed",
    "wanted": "paused",
    "split": "val",
    "stage": "canary",
    "kind": "prompt",
}
JSON = {"input", "metadata", "settings", "body", "resources", "manifest"}


def row_of(columns: list[Column[Any]]) -> dict[str, Any]:
    """A different value in every column, so that a swap would show."""
    values: dict[str, Any] = {}
    for place, column in enumerate(columns, 1):
        if column.name in WORDS:
            values[column.name] = WORDS[column.name]
        elif isinstance(column.type, Integer):
            values[column.name] = place
        elif isinstance(column.type, Float):
            values[column.name] = place + 0.5
        else:
            values[column.name] = f'{{"at": {place}}}' if column.name in JSON else f"text {place}"
    return values


def replaced(row: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*row[:place], value, *row[place + 1 :])


@pytest.mark.parametrize(
    ("columns", "record", "elsewhere"),
    [
        (rows.ROLLOUT, lambda row: rows.rollout(row, "run-1-a", 2), {"id", "run", "final_attempt"}),
        (rows.ATTEMPT, lambda row: rows.attempt(row, "run-1-a/t"), {"id", "rollout", "token"}),
        (schema.runs.c, rows.run, set()),
        (schema.resources.c, rows.resource_version, {"id", "resources"}),
        (schema.workers.c, rows.worker, set()),
        (schema.ledger.c, rows.ledger_entry, set()),
        (schema.releases.c, rows.release, {"id", "is_known_good"}),
        (schema.trials.c, lambda row: rows.trial(replaced(row, 4, '{"a": 1.0, "b": 0.0}')), {"arms"}),
        (list(schema.exposures.c)[1:], lambda row: rows.exposure(row, "t"), {"trial"}),
        (rows.SERVED, lambda row: rows.served_request(replaced(row, 7, 0.5), "t"), {"trial", "error", "success"}),
    ],
    ids=["rollout", "attempt", "run", "resources", "worker", "ledger", "release", "trial", "exposure", "served"],
)
def test_each_field_comes_from_the_column_of_its_name(
    columns: Any, record: Callable[[Any], Any], elsewhere: set[str]
) -> None:
    values = row_of(list(columns))
    made = record(tuple(values.values()))
    for field in fields(made):
        if field.name not in elsewhere:
            expected = values[field.name]
            if field.name in JSON and isinstance(expected, str):
                expected = {"at": list(values).index(field.name) + 1}
            assert getattr(made, field.name) == expected, field.name


def test_names_are_put_together_from_run_task_and_number() -> None:
    values = row_of(list(rows.ROLLOUT))
    made = rows.rollout(tuple(values.values()), "run-1-a", 2)
    assert made.id == f"run-1-a/{values['name']}"
    assert made.final_attempt == f"run-1-a/{values['name']}:attempt-2"
    assert (made.status, made.split) == (RolloutState.RUNNING, Split.VAL)
    attempt = row_of(list(rows.ATTEMPT))
    tried = rows.attempt(tuple(attempt.values()), made.id)
    assert (tried.id, tried.token) == (f"{made.id}:attempt-{attempt['number']}", attempt["key"])
    release = row_of(list(schema.releases.c))
    kept = rows.release(tuple(release.values()))
    assert (kept.id, kept.stage, kept.kind) == (f"{release['policy']}@{release['number']}", Stage.CANARY, "prompt")
    version = row_of(list(schema.resources.c))
    assert rows.resource_version(tuple(version.values())).id == f"resources-{version['version']}"


def test_what_is_not_there_is_none_or_empty() -> None:
    values = row_of(list(rows.ROLLOUT)) | {"split": None, "metadata": None, "reward": None}
    made = rows.rollout(tuple(values.values()), "run-1-a")
    assert (made.split, made.metadata, made.reward, made.final_attempt) == (None, {}, None, None)


@pytest.mark.parametrize("stored", [0, 1])
def test_yes_and_no_are_kept_as_numbers(stored: int) -> None:
    release = row_of(list(schema.releases.c)) | {"is_known_good": stored}
    assert rows.release(tuple(release.values())).is_known_good is bool(stored)
    served = row_of(list(rows.SERVED)) | {"error": stored, "success": None}
    assert rows.served_request(tuple(served.values()), "t").error is bool(stored)


def test_a_trial_whose_arms_do_not_add_up_is_damage() -> None:
    values = row_of(list(schema.trials.c)) | {"arms": '{"a": 0.5}'}
    with pytest.raises(StoreCorrupt, match="a stored trial: cannot be read: BadRecord: .* add up to 1"):
        rows.trial(tuple(values.values()))


def test_a_state_that_no_version_knows_is_not_read() -> None:
    values = row_of(list(rows.ROLLOUT)) | {"status": "wandering"}
    with pytest.raises(StoreCorrupt, match="wandering"):
        rows.rollout(tuple(values.values()), "run-1-a")


HASH = "a" * 64


@pytest.mark.parametrize(
    ("read", "row", "why"),
    [
        (rows.judgement, ("m", "c@1", HASH, HASH, "maybe", 0.5, "", 0, 0.0, 0.0, 1.0), "maybe"),
        (rows.judgement, ("m", "c@1", HASH, "a", "yes", 0.5, "", 0, 0.0, 0.0, 1.0), "64 lower-case hex digits"),
        (rows.judgement, ("m", "c@1", HASH, HASH, "yes", None, "", 0, 0.0, 0.0, 1.0), "go together"),
        (rows.label, (HASH, "c@1", "human", "ann", 1, 1, "", 1.0), "human"),
        (rows.label, (HASH, "c@1", "person", "ann", 0, 1, "", 1.0), "version = 0: must be at least 1"),
        (rows.doubt, (HASH, "c@1", "bored", "", 1.0), "bored"),
        (rows.appointment, ("p", "m", "both", 1.0), "both"),
        (rows.artefact, ("{}",), "task"),
        (rows.calibration, ("[]",), "Calibration"),
    ],
)
def test_a_row_about_judges_that_makes_no_record_is_damage(read: Any, row: tuple[Any, ...], why: str) -> None:
    with pytest.raises(StoreCorrupt, match=f"a stored {read.__name__}: cannot be read: .*{why}"):
        read(row)


def test_rows_about_judges_become_records_field_by_field() -> None:
    one = rows.judgement(("m", "c@1", HASH, "b" * 64, "partly", 0.5, "w", 3, 0.25, 0.125, 7.0))
    assert [getattr(one, name.name) for name in rows.JUDGEMENT] == [
        *("m", "c@1", HASH, "b" * 64, "partly", 0.5, "w", 3, 0.25, 0.125, 7.0)
    ]
    label = rows.label((HASH, "c@1", "model", "gpt", 2, 0, "w", 7.0))
    assert [getattr(label, name.name) for name in rows.LABEL] == [HASH, "c@1", "model", "gpt", 2, False, "w", 7.0]
    assert rows.label((HASH, "c@1", "model", "gpt", 2, None, "w", 7.0)).holds is None
    doubt = rows.doubt((HASH, "c@1", "disputed", "w", 7.0))
    assert [getattr(doubt, name.name) for name in rows.DOUBT] == [HASH, "c@1", "disputed", "w", 7.0]
    given = rows.appointment(("p", "m", "audit", 7.0))
    assert [getattr(given, name.name) for name in rows.APPOINTMENT] == ["p", "m", "audit", 7.0]
