"""Rows become records: each field from the column of its name, whatever the engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import pytest
from sqlalchemy import Column, Float, Integer

from holdfast.contracts.errors import StoreCorrupt
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.store import rows, schema
from holdfast.store.sql import from_json

HASH = "a" * 64
WORDS: dict[str, Any] = {"status": "running", "state": "failed", "wanted": "paused", "split": "val", "stage": "canary"}
WORDS |= {"kind": "prompt", "grade": "partly", "score": 0.5, "reason": "disputed", "maker": "model", "holds": 0}
WORDS |= {"role": "audit", "artefact": HASH, "prompt": HASH, "criterion": "c@1", "arms": '{"a": 1.0, "b": 0.0}'}
WORDS |= {"error": 0, "success": 0.5, "is_known_good": 1}
JSON = {"input", "metadata", "settings", "body", "resources", "manifest"}


def row_of(columns: Iterable[Column[Any]], **given: Any) -> tuple[Any, ...]:
    """A different value in every column, so that a swap would show."""
    values = []
    for place, column in enumerate(columns, 1):
        text = f'{{"at": {place}}}' if column.name in JSON else f"text {place}"
        usual = place if isinstance(column.type, Integer) else place + 0.5 if isinstance(column.type, Float) else text
        values.append(given.get(column.name, WORDS.get(column.name, usual)))
    return tuple(values)


@pytest.mark.parametrize(
    ("columns", "read", "elsewhere"),
    [
        (rows.ROLLOUT, lambda row: rows.rollout(row, "run-1-a", 2), {"id", "run", "final_attempt"}),
        (rows.ATTEMPT, lambda row: rows.attempt(row, "run-1-a/t"), {"id", "rollout", "token"}),
        (schema.runs.c, rows.run, set()),
        (schema.resources.c, rows.resource_version, {"id", "resources"}),
        (schema.workers.c, rows.worker, set()),
        (schema.ledger.c, rows.ledger_entry, set()),
        (schema.releases.c, rows.release, {"id"}),
        (schema.trials.c, rows.experiment, set()),
        (list(schema.exposures.c)[1:], lambda row: rows.exposure(row, "t"), {"trial"}),
        (rows.SERVED, lambda row: rows.served_request(row, "t"), {"trial"}),
        (rows.JUDGEMENT, rows.judgement, set()),
        (rows.LABEL, rows.label, set()),
        (rows.REVIEW_REQUEST, rows.review_request, set()),
        (rows.JUDGE_ASSIGNMENT, rows.judge_assignment, set()),
    ],
    ids=[
        "rollout",
        "attempt",
        "run",
        "resources",
        "worker",
        "ledger",
        "release",
        "trial",
        "exposure",
        "served",
        "judgement",
        "label",
        "doubt",
        "judge",
    ],
)
def test_each_field_comes_from_the_column_of_its_name(columns: Any, read: Any, elsewhere: set[str]) -> None:
    row = row_of(columns)
    made, values = read(row), dict(zip((column.name for column in columns), row, strict=True))
    for name in {field.name for field in fields(made)} - elsewhere:
        stored = values[name]
        is_json = name in JSON | {"arms"} and isinstance(stored, str)
        assert getattr(made, name) == (from_json(stored) if is_json else stored), name


def test_names_are_put_together_from_run_task_and_number() -> None:
    row = row_of(rows.ROLLOUT, name="t")
    made = rows.rollout(row, "run-1-a", 2)
    assert (made.id, made.final_attempt) == ("run-1-a/t", "run-1-a/t:attempt-2")
    assert (type(made.status), type(made.split)) == (RolloutState, Split)
    tried = rows.attempt(row_of(rows.ATTEMPT, number=3, key=7), made.id)
    assert (tried.id, tried.token) == ("run-1-a/t:attempt-3", 7)
    assert rows.release(row_of(schema.releases.c, policy="p", number=4)).id == "p@4"
    assert rows.resource_version(row_of(schema.resources.c, version=5)).id == "resources-5"


def test_what_is_not_there_is_none_or_empty_and_yes_and_no_are_kept_as_numbers() -> None:
    made = rows.rollout(row_of(rows.ROLLOUT, split=None, metadata=None, reward=None), "run-1-a")
    assert (made.split, made.metadata, made.reward, made.final_attempt) == (None, {}, None, None)
    for stored in (0, 1):
        assert rows.release(row_of(schema.releases.c, is_known_good=stored)).is_known_good is bool(stored)
        assert rows.served_request(row_of(rows.SERVED, error=stored, success=None), "t").error is bool(stored)
        assert rows.label(row_of(rows.LABEL, holds=stored)).holds is bool(stored)
    assert rows.label(row_of(rows.LABEL, holds=None)).holds is None


@pytest.mark.parametrize(
    ("read", "columns", "changed", "why"),
    [
        (rows.experiment, schema.trials.c, {"arms": '{"a": 0.5}'}, "BadRecord: .* add up to 1"),
        (lambda row: rows.rollout(row, "run-1-a"), rows.ROLLOUT, {"status": "wandering"}, "wandering"),
        (rows.judgement, rows.JUDGEMENT, {"grade": "maybe"}, "maybe"),
        (rows.judgement, rows.JUDGEMENT, {"artefact": "a"}, "64 lower-case hex digits"),
        (rows.judgement, rows.JUDGEMENT, {"score": None}, "go together"),
        (rows.label, rows.LABEL, {"maker": "human"}, "human"),
        (rows.label, rows.LABEL, {"version": 0}, "version = 0: must be at least 1"),
        (rows.review_request, rows.REVIEW_REQUEST, {"reason": "bored"}, "bored"),
        (rows.judge_assignment, rows.JUDGE_ASSIGNMENT, {"role": "both"}, "both"),
        (rows.eval_item, [schema.artefacts.c.body], {"body": "{}"}, "task"),
        (rows.calibration, [schema.calibrations.c.body], {"body": "[]"}, "Calibration"),
    ],
)
def test_a_row_that_makes_no_record_is_damage(read: Any, columns: Any, changed: dict[str, Any], why: str) -> None:
    name = "rollout" if read.__name__ == "<lambda>" else read.__name__
    with pytest.raises(StoreCorrupt, match=f"a stored {name}: cannot be read: .*{why}"):
        read(row_of(columns, **changed))
