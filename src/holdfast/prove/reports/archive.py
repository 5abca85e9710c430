"""How long reports are kept: a plan of what is due to be archived or purged, and then the doing of it.

Archiving copies a file, reads the copy back, compares, and only then removes the original; purging removes what is in
the archive and past its time. Killed anywhere, every report is still in at least one place, and doing it again goes on.
What a report says is not computed again here: a file whose head, dates or seal are wrong is left alone, and named.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from holdfast.contracts.errors import BadInput, StoreCorrupt
from holdfast.prove.reports import document
from holdfast.prove.reports.document import ReportFile, ReportHead
from holdfast.prove.reports.validate import sound_head
from holdfast.store.artifacts import sha256_of, write_atomically


class RetentionAction(StrEnum):
    ARCHIVE = "archive"
    PURGE = "purge"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStep:
    """What is due for one file, and why."""

    action: RetentionAction
    path: Path
    why: str
    to: Path | None = None  # where it is archived
    sha256: str | None = None  # of the file when the plan was made; one that changed since is left alone
    is_wrong: bool = False  # kept because it cannot be trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    folder: Path
    at: datetime
    steps: tuple[RetentionStep, ...]

    def only(self, *actions: RetentionAction) -> RetentionPlan:
        chosen = tuple(step for step in self.steps if step.action in actions)
        return RetentionPlan(folder=self.folder, at=self.at, steps=chosen)


def due(folder: Path, now: datetime) -> RetentionPlan:
    """What a folder of reports is due for; nothing is touched. What is kept is there too, with the reason."""
    if now.tzinfo is None:
        raise BadInput(f"now = {now}", why="has no time zone", remedy="give one, such as UTC")
    steps = tuple(_step(folder, found, now) for found in document.catalogue(folder))
    return RetentionPlan(folder=folder, at=now, steps=steps)


def carry_out(plan: RetentionPlan) -> Iterator[RetentionStep]:
    """Do what is due, file by file: archive first, then purge. Each step is told once it is done and on disk."""
    for step in plan.only(RetentionAction.ARCHIVE).steps:
        _archive(step)
        yield step
    for step in plan.only(RetentionAction.PURGE).steps:
        _purge(step)
        yield step


def _step(folder: Path, found: ReportFile, now: datetime) -> RetentionStep:
    try:
        head, problems = sound_head(found.path)
        sha256 = sha256_of(found.path)
    except OSError as error:
        return _keep(found, f"cannot be read: {error.strerror or error}", is_wrong=True)
    if head is None or problems:
        first = problems[0]
        return _keep(found, f"{first.where} {first.why}", is_wrong=True)
    if head.retention.policy == "retain-only":
        return _keep(found, "its policy is retain-only")
    return (
        _purge_step(folder, found, head, sha256, now)
        if found.is_archived
        else _archive_step(folder, found, head, sha256, now)
    )


def _archive_step(folder: Path, found: ReportFile, head: ReportHead, sha256: str, now: datetime) -> RetentionStep:
    after = head.generated_at + timedelta(days=head.retention.archive_after_days)
    if now < after:
        return _keep(found, f"is archived after {after:%Y-%m-%d}")
    to = folder / document.archived_path(found.kind, head.run_id, head.generated_at)
    if to.exists() and sha256_of(to) != sha256:
        return _keep(found, f"another report lies at {to}", is_wrong=True)
    why = f"was due on {after:%Y-%m-%d}"
    return RetentionStep(action=RetentionAction.ARCHIVE, path=found.path, why=why, to=to, sha256=sha256)


def _purge_step(folder: Path, found: ReportFile, head: ReportHead, sha256: str, now: datetime) -> RetentionStep:
    after = head.generated_at + timedelta(days=head.retention.retain_days)
    if now <= after:
        return _keep(found, f"is kept until {after:%Y-%m-%d}")
    if (folder / document.active_path(found.kind, head.run_id)).exists():
        return _keep(found, "its archiving is not finished")
    return RetentionStep(
        action=RetentionAction.PURGE, path=found.path, why=f"was kept until {after:%Y-%m-%d}", sha256=sha256
    )


def _keep(found: ReportFile, why: str, *, is_wrong: bool = False) -> RetentionStep:
    return RetentionStep(action=RetentionAction.KEEP, path=found.path, why=why, is_wrong=is_wrong)


def _archive(step: RetentionStep) -> None:
    if not step.path.exists() and step.to is not None and step.to.exists() and sha256_of(step.to) == step.sha256:
        return  # another process was faster
    data = _unchanged(step)
    assert step.to is not None
    if not step.to.exists():
        folders = [folder for folder in step.to.parents if not folder.exists()]
        write_atomically(step.to, data)
        for folder in folders:  # those that are new are on disk once the folder above them is
            _sync(folder.parent)
    if sha256_of(step.to) != step.sha256:
        why = "the copy is not what was copied"
        raise StoreCorrupt(f"report {step.to}", why=why, remedy=f"look at the disk; {step.path} is as it was")
    _remove(step.path)


def _purge(step: RetentionStep) -> None:
    if step.path.exists():  # else another process was faster
        _unchanged(step)
        _remove(step.path)


def _unchanged(step: RetentionStep) -> bytes:
    data = step.path.read_bytes()
    if hashlib.sha256(data).hexdigest() != step.sha256:
        raise BadInput(f"report {step.path}", why="was changed since the plan was made", remedy="make a new plan")
    return data


def _remove(path: Path) -> None:
    """Remove a file, and the folder it leaves empty; on disk when this returns."""
    path.unlink()
    _sync(path.parent)
    with suppress(OSError):  # it is not empty
        path.parent.rmdir()
        _sync(path.parent.parent)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
