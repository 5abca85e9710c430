from __future__ import annotations

import json
from dataclasses import replace
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
    MISSING,
    REPORTS,
    Problem,
    ReportHead,
    Retention,
    active_path,
    archived_path,
    catalogue,
    differences,
    inside,
    kind_of,
    not_finite,
    parse,
    short,
)

AT = datetime(2026, 3, 9, 23, 59, 59, tzinfo=UTC)
HEAD = ReportHead(run_id="m24-a-1", generated_at=AT, suite=("s", "1", "0" * 64), state=".holdfast")


def test_files_have_the_documented_names_and_places() -> None:
    reports = [f"report-{kind}" for kind in ("baseline", "trained", "significance")]
    active = [*reports, "safety-regression", "report-summary", "proof-m24-a"]
    assert [active_path(kind, "m24-a") for kind in KINDS] == [f"m24/m24-a/m24-benchmark-{name}.json" for name in active]
    reports = [f"report-m24-a-{kind}" for kind in ("baseline", "trained", "significance")]
    archived = [*reports, "safety-regression-m24-a", "report-m24-a-summary", "proof-m24-a"]
    assert [archived_path(kind, "m24-a", AT) for kind in KINDS] == [
        f"archive/m24/2026/03/m24-benchmark-{name}.json" for name in archived
    ]


@given(st.from_regex(document.RUN_ID, fullmatch=True), st.sampled_from(KINDS))
def test_a_name_tells_its_kind_whatever_the_run_is_called(run: str, kind: str) -> None:
    assert kind_of(document.active_name(kind, run)) == kind
    assert kind_of(document.archived_name(kind, run)) == kind
    for name in ("notes.json", "m24-benchmark-report-proof.json", "m24-benchmark-report-.json", ""):
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


RUN_IDS = ["", "m24-", "M24-a", "m24-A", "m24_a", "x-m24-a", "m24-a/b", "m24-a\n", "m24-" + "a" * 120]
SUITES = [("", "1", "0" * 64), ("s", " ", "0" * 64), ("s", "1", "0" * 63), ("s", "1", "G" * 64)]


@pytest.mark.parametrize(
    ("field", "value", "why"),
    [*(("run_id", run, "must be m24-") for run in RUN_IDS), *(("suite", suite, "^suite ") for suite in SUITES)],
)
def test_a_run_id_or_a_suite_that_is_not_as_documented_is_refused(field: str, value: Any, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        replace(HEAD, **{field: value})


def test_a_moment_is_written_in_one_way_and_numbers_are_finite_and_never_booleans() -> None:
    moments = ["2026-03-09T23:59:59Z", "2024-02-29T00:00:00Z"]
    wrong = ["2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-3-9T23:59:59Z", "2026-03-09T23:59:59", 0, None]
    wrong += ["2026-03-09 23:59:59Z", "9999-12-31T00:00:00Z"]  # nothing can be kept for a year after it
    assert [value for value in (*moments, *wrong) if document.timestamp(value) is None] == moments
    rule, others = document.number(0.0, 1.0), (-0.1, 1.1, True, None, "1", float("nan"), 10**400)
    assert [value for value in (0, 1, 0.5, *others) if rule(value) is None] == [0, 1, 0.5]


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
    ours = active_path("proof", "m24-a"), archived_path("baseline", "m24-a", AT)
    for place in (*ours, "m24/m24-a/notes.json", "x.json"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("{}")
    found = [(one.kind, one.run, one.is_archived) for one in catalogue(tmp_path)]
    assert found == [("proof", "m24-a", False), ("baseline", "m24-a", True)]
    assert list(catalogue(tmp_path / "nowhere")) == []


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert list(differences(value, json.loads(json.dumps(value)), "$")) == []


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        (0.5, 0.5 + 1e-12, []),  # another machine's last digit
        (0.5, 0.5001, [("$", "is 0.5001, must be 0.5")]),
        (1.0, 1, []),
        (1, 1.0, [("$", "is 1.0, must be 1")]),  # a count is whole
        (1, True, [("$", "is true, must be 1")]),
        (1.0, True, [("$", "is true, must be 1.0")]),
        (True, 1, [("$", "is 1, must be true")]),
        (1.0, "1.0", [("$", 'is "1.0", must be 1.0')]),
        (1.0, 10**400, [("$", f"is 1{'0' * 96}…, must be 1.0")]),
        (None, 0, [("$", "is 0, must be null")]),
        ({"a": 1}, {}, [("$.a", "is missing")]),
        ({}, {"a": 1, "b c": 2}, [("$.a", "is unknown"), ('$["b c"]', "is unknown")]),
        ([1, 2], [1, 3], [("$[1]", "is 3, must be 2")]),
        ([1, 2], [1], [("$", "has 1 items, must be 2")]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, [("$.a[0].b", "is 2, must be 1")]),
        ({"a": 1}, [1], [("$", 'is [1], must be {"a": 1}')]),
    ],
)
def test_differences_are_named_leaf_by_leaf(wanted: Any, found: Any, said: list[tuple[str, str]]) -> None:
    assert list(differences(wanted, found, "$")) == [Problem(where=where, why=why) for where, why in said]


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"{'a': 1}", b"[" * 100_000])
def test_what_is_not_json_is_a_problem_and_no_crash(raw: bytes) -> None:
    assert isinstance(parse(raw), Problem)
    assert parse(b'{"a": {"b": 1, "b": 1}}') == Problem(where="$..b", why="is there twice in one object")
    data = parse(b'{"a": [1, NaN, {"b c": -Infinity}], "d": 1e999, "e": 1}')
    assert isinstance(data, dict)
    assert list(not_finite(data, "$")) == ["$.a[1]", '$.a[2]["b c"]', "$.d"]
    assert len(short("x" * 1000)) == 98 and short(MISSING) == "missing" and inside("$", "a") == "$.a"
