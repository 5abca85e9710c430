from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.prove.reports import document
from holdfast.prove.reports.document import (
    KINDS,
    REPORTS,
    ReportHead,
    Retention,
    active_path,
    archived_path,
    catalogue,
    kind_of,
)

AT = datetime(2026, 3, 9, 23, 59, 59, tzinfo=UTC)
HEAD = ReportHead(run_id="m24-a-1", generated_at=AT, suite=("s", "1", "0" * 64), state=".holdfast")


def test_files_have_the_documented_names_and_places() -> None:
    assert [active_path(kind, "m24-a") for kind in KINDS] == [
        "m24/m24-a/m24-benchmark-report-baseline.json",
        "m24/m24-a/m24-benchmark-report-trained.json",
        "m24/m24-a/m24-benchmark-report-significance.json",
        "m24/m24-a/m24-benchmark-safety-regression.json",
        "m24/m24-a/m24-benchmark-report-summary.json",
        "m24/m24-a/m24-benchmark-proof-m24-a.json",
    ]
    assert [archived_path(kind, "m24-a", AT) for kind in KINDS] == [
        "archive/m24/2026/03/m24-benchmark-report-m24-a-baseline.json",
        "archive/m24/2026/03/m24-benchmark-report-m24-a-trained.json",
        "archive/m24/2026/03/m24-benchmark-report-m24-a-significance.json",
        "archive/m24/2026/03/m24-benchmark-safety-regression-m24-a.json",
        "archive/m24/2026/03/m24-benchmark-report-m24-a-summary.json",
        "archive/m24/2026/03/m24-benchmark-proof-m24-a.json",
    ]


@given(st.from_regex(document.RUN_ID, fullmatch=True), st.sampled_from(KINDS))
def test_a_name_tells_its_kind_whatever_the_run_is_called(run: str, kind: str) -> None:
    assert kind_of(document.active_name(kind, run)) == kind
    assert kind_of(document.archived_name(kind, run)) == kind


@pytest.mark.parametrize("name", ["notes.json", "m24-benchmark-report-proof.json", "m24-benchmark-report-.json", ""])
def test_other_names_are_not_ours(name: str) -> None:
    assert kind_of(name) is None


def test_the_frame_has_every_documented_group() -> None:
    assert document.frame(HEAD, "trained") == {
        "schema_version": 1,
        "report_kind": "trained",
        "run_id": "m24-a-1",
        "generated_at": "2026-03-09T23:59:59Z",
        "benchmark_suite": {"name": "s", "version": "1", "sha256": "0" * 64},
        "publication": {
            "report_path": ".holdfast/reports/m24/m24-a-1/m24-benchmark-report-trained.json",
            "archive_path": ".holdfast/reports/archive/m24/2026/03/m24-benchmark-report-m24-a-1-trained.json",
        },
        "retention": {
            "policy": "archive-then-purge",
            "retain_days": 365,
            "archive_after_days": 30,
            "purge_after": "2027-03-09T23:59:59Z",
        },
    }
    assert [kind for kind in KINDS if "report_kind" in document.frame(HEAD, kind)] == sorted(REPORTS, key=KINDS.index)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"policy": "forget"}, "retention.policy = 'forget': must be archive-then-purge or retain-only"),
        ({"retain_days": 0}, "retention.retain_days = 0: must be from 1 to 36500"),
        ({"retain_days": 1.5}, "retention.retain_days = 1.5: must be a whole number"),
        ({"retain_days": True}, "retention.retain_days = True: must be a whole number"),
        ({"archive_after_days": -1}, "retention.archive_after_days = -1: must be from 0 to 36500"),
        ({"archive_after_days": 366}, "retention.archive_after_days = 366: must not be above retain_days, 365"),
    ],
)
def test_a_retention_that_cannot_be_kept_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        Retention(**changed)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "run", ["", "m24-", "M24-a", "m24-A", "m24_a", "x-m24-a", "m24-a/b", "m24-a\n", "m24-" + "a" * 120]
)
def test_a_run_id_that_is_not_as_documented_is_refused(run: str) -> None:
    with pytest.raises(BadInput, match="must be m24-"):
        ReportHead(run_id=run, generated_at=AT, suite=("s", "1", "0" * 64), state="x")


@pytest.mark.parametrize(
    "suite", [("", "1", "0" * 64), ("s", " ", "0" * 64), ("s", "1", "0" * 63), ("s", "1", "G" * 64)]
)
def test_a_suite_without_a_name_a_version_or_a_hash_is_refused(suite: tuple[str, str, str]) -> None:
    with pytest.raises(BadInput, match="^suite "):
        ReportHead(run_id="m24-a", generated_at=AT, suite=suite, state="x")


@pytest.mark.parametrize(
    ("value", "is_one"),
    [
        ("2026-03-09T23:59:59Z", True),
        ("2024-02-29T00:00:00Z", True),
        ("2026-02-29T00:00:00Z", False),
        ("2026-13-01T00:00:00Z", False),
        ("2026-3-9T23:59:59Z", False),
        ("2026-03-09T23:59:59", False),
        ("2026-03-09 23:59:59Z", False),
        ("9999-12-31T00:00:00Z", False),  # nothing can be kept for a year after it
        (0, False),
        (None, False),
    ],
)
def test_a_moment_is_written_in_one_way(value: object, is_one: bool) -> None:
    assert (document.moment(value) is None) == is_one


def test_numbers_are_finite_and_never_booleans() -> None:
    rule = document.number(0.0, 1.0)
    assert [
        value for value in (0, 1, 0.5, -0.1, 1.1, True, None, "1", float("nan"), 10**400) if rule(value) is None
    ] == [
        0,
        1,
        0.5,
    ]


def test_a_seal_has_a_hash_for_each_member_and_each_item() -> None:
    one = {"a": {"x": 1, "y": 2}, "rows": [1, 2, 3], "n": 1}
    two = {"n": 1, "rows": [1, 5, 3], "a": {"y": 2, "x": 1}}
    before, after = document.seal(one), document.seal(two)
    assert before["a"] == after["a"]  # the order of keys says nothing
    assert [x == y for x, y in zip(before["rows"], after["rows"], strict=True)] == [True, False, True]
    assert document.seal({**one, "seal": before}) == before
    # sha256 of the text 1, by hand: printf 1 | sha256sum
    assert before["n"] == "6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b"
    assert json.loads(document.written(one))["seal"] == before


def test_the_catalogue_finds_active_and_archived_files_and_nothing_else(tmp_path: Path) -> None:
    for place in (
        active_path("proof", "m24-a"),
        archived_path("baseline", "m24-a", AT),
        "m24/m24-a/notes.json",
        "x.json",
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("{}")
    found = [(one.kind, one.run, one.is_archived) for one in catalogue(tmp_path)]
    assert found == [("proof", "m24-a", False), ("baseline", "m24-a", True)]
    assert list(catalogue(tmp_path / "nowhere")) == []
