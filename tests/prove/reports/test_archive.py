"""Reports grow old: a year is played through, killed at every step, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.prove.reports.document import KINDS, PROOF, Retention
from holdfast.prove.reports.report import Published
from holdfast.prove.reports.validate import RetentionAction, RetentionPlan, carry_out, due, validate
from tests.prove.reports.publication import AT, published, read, reports_in, write

KILLED = 77


def after(days: float) -> datetime:
    return AT + timedelta(days=days)


def actions(plan: RetentionPlan) -> list[str]:
    return [step.action.value for step in plan.steps]


def done(plan: RetentionPlan) -> int:
    return len(list(carry_out(plan)))


def contents(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*.json")}


@pytest.fixture
def here(tmp_path: Path) -> Published:
    return published(tmp_path)


def test_a_young_report_stays_and_says_until_when_and_a_plan_touches_nothing(here: Published, tmp_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    plan = due(reports_in(tmp_path), after(29.99))
    assert actions(plan) == ["keep"] * 6
    assert {step.why for step in plan.steps} == {"is archived after 2026-07-31"}
    assert done(plan) == 0
    due(reports_in(tmp_path), after(31)), due(reports_in(tmp_path), after(400))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    with pytest.raises(BadInput, match="has no time zone"):
        due(tmp_path, AT.replace(tzinfo=None))


def test_after_thirty_days_reports_move_to_the_archive_and_are_still_true(here: Published, tmp_path: Path) -> None:
    before = contents(tmp_path)
    plan = due(reports_in(tmp_path), after(30))
    assert actions(plan) == ["archive"] * 6
    assert done(plan.only(RetentionAction.PURGE)) == 0 and done(plan.only(RetentionAction.ARCHIVE)) == 6
    assert contents(tmp_path) == before
    assert not here.paths[PROOF].parent.exists()
    month = reports_in(tmp_path) / "archive/m24/2026/07"
    names = [
        "proof-m24-small",
        *(f"report-m24-small-{kind}" for kind in ("baseline", "significance", "summary", "trained")),
    ]
    assert sorted(path.name for path in month.iterdir()) == [
        f"m24-benchmark-{name}.json" for name in (*names, "safety-regression-m24-small")
    ]
    for path in month.iterdir():
        assert (tmp_path / read(path)["publication"]["archive_path"]) == path
        assert validate(path) == []
    assert done(plan) == 6  # the very same plan: each step finds itself done
    assert actions(due(reports_in(tmp_path), after(31))) == ["keep"] * 6
    assert contents(tmp_path) == before


def test_what_is_archived_is_purged_only_after_its_time(here: Published, tmp_path: Path) -> None:
    folder = reports_in(tmp_path)
    done(due(folder, after(40)))
    kept = due(folder, after(365))
    assert actions(kept) == ["keep"] * 6 and kept.steps[0].why == "is kept until 2027-07-01"
    gone = due(folder, after(365.01))
    assert actions(gone) == ["purge"] * 6 and gone.steps[0].why == "was kept until 2027-07-01"
    assert done(gone) == 6 and contents(tmp_path) == set()
    assert done(gone) == 6 and due(folder, after(366)).steps == ()


def test_what_is_not_archived_is_never_purged(here: Published, tmp_path: Path) -> None:
    late = due(reports_in(tmp_path), after(1000))
    assert actions(late) == ["archive"] * 6  # first the one, and the other at the next time
    done(late)
    assert len(contents(tmp_path)) == 6


def test_what_is_retained_only_is_never_touched(tmp_path: Path) -> None:
    published(tmp_path, retention=Retention(policy="retain-only", retain_days=1, archive_after_days=0))
    plan = due(reports_in(tmp_path), after(5000))
    assert {(step.action, step.why) for step in plan.steps} == {(RetentionAction.KEEP, "its policy is retain-only")}
    assert done(plan) == 0 and len(contents(tmp_path)) == 6


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        ("retention", "purge_after", "2026-07-02T12:00:00Z"),
        ("retention", "retain_days", 1),
        ("retention", "archive_after_days", 0),
        ("publication", "archive_path", "../../../etc/passwd"),
        ("significance", "pass", False),
    ],
)
def test_a_report_that_was_changed_is_left_alone_and_named(
    here: Published, tmp_path: Path, group: str, name: str, value: object
) -> None:
    data = read(here.paths["significance"])
    data[group][name] = value
    write(here.paths["significance"], data)
    plan = due(reports_in(tmp_path), after(3000))
    [wrong] = [step for step in plan.steps if step.is_wrong]
    assert wrong.path == here.paths["significance"] and wrong.action is RetentionAction.KEEP
    assert wrong.why.startswith(f"$.{group}")
    assert done(plan) == 5 and wrong.path.exists()
    wrong.path.write_text('{"schema_version": 1')  # torn
    [wrong] = [step for step in due(reports_in(tmp_path), after(31)).steps if step.is_wrong]
    assert wrong.why.startswith("$ is not JSON")


def test_nothing_in_the_archive_is_overwritten(here: Published, tmp_path: Path) -> None:
    there = tmp_path / here.proof["publication"]["archive_path"]
    there.parent.mkdir(parents=True)
    there.write_text("another")
    plan = due(reports_in(tmp_path), after(31))
    wrong = [step for step in plan.steps if step.is_wrong]
    assert [step.path for step in wrong] == [here.paths[PROOF], there]
    assert wrong[0].why == f"another report lies at {there}"
    done(plan)
    assert there.read_text() == "another" and here.paths[PROOF].exists()


def test_a_file_that_changed_since_the_plan_is_not_touched(here: Published, tmp_path: Path) -> None:
    plan = due(reports_in(tmp_path), after(31))
    here.paths["baseline"].write_text("changed")
    with pytest.raises(BadInput, match="was changed since the plan was made"):
        done(plan)
    assert here.paths["baseline"].read_text() == "changed"


def test_a_copy_that_was_not_removed_yet_is_not_purged(here: Published, tmp_path: Path) -> None:
    """As a kill between the copy and the removal leaves it."""
    there = tmp_path / here.proof["publication"]["archive_path"]
    there.parent.mkdir(parents=True)
    there.write_bytes(here.paths[PROOF].read_bytes())
    plan = due(reports_in(tmp_path), after(3000))
    assert {step.path: step.action.value for step in plan.steps}[there] == "keep"
    done(plan)
    assert there.exists() and not here.paths[PROOF].exists()
    assert validate(there) == []


def killed_at(event: int, work: Callable[[], object]) -> bool:
    """Do the work in a process that dies before its n-th step on the file system; whether it died."""
    child = os.fork()
    if child == 0:
        seen = 0

        def watch(name: str, args: tuple[object, ...]) -> None:
            nonlocal seen
            if name in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "tempfile.mkstemp"):
                seen += 1
                if seen == event:
                    os._exit(KILLED)

        sys.addaudithook(watch)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == KILLED


@pytest.mark.usefixtures("untraced")
def test_killed_at_any_step_nothing_is_lost_and_doing_it_again_goes_on(here: Published, tmp_path: Path) -> None:
    for kind in KINDS[2:]:
        here.paths[kind].unlink()  # two files are enough: folders are made for the first and removed after the last
    whole, deaths, seen = contents(tmp_path), 0, set[frozenset[tuple[Path, bytes]]]()
    assert len(whole) == 2
    while True:
        folder = reports_in(tmp_path / f"life-{deaths}")
        shutil.copytree(reports_in(tmp_path), folder)
        plan = due(folder, after(31))
        if not killed_at(deaths + 1, partial(done, plan)):
            break
        deaths += 1
        assert contents(folder) == whole  # each of them at least once
        left = frozenset((path.relative_to(folder), path.read_bytes()) for path in folder.rglob("*.json"))
        for path in () if left in seen else folder.rglob("*significance.json"):
            assert validate(path) == []  # half here and half there is still true
        seen.add(left)
        done(due(folder, after(31)))
        assert contents(folder) == whole and actions(due(folder, after(31))) == ["keep"] * 2
        shutil.rmtree(folder)
    assert deaths > 2 * 5
