"""How long what towns leave behind is kept, and the removal of what is older.

Recordings, snapshots and replays are files that a user named; orders, with who gave them, are in audit files;
demonstrations lie beside the checkpoints of a school. Only files that are surely a town's are removed. An audit file
stays a chain of seals: what was removed from it is an entry of its own, and windows and overrides of stages stay,
because stages rest on them. A school that is not over keeps its demonstrations: it goes on from them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.policy import DEMONSTRATIONS, FOLDER
from holdfast.store.admin import old_runs
from holdfast.store.store import Store
from holdfast.workloads.townaudit import AuditFile, is_audit, read_audit
from holdfast.workloads.townlife import inspect_script, inspect_snapshot

DAY_S = 86_400.0
TORN = ".torn"


@dataclass(frozen=True, slots=True, kw_only=True)
class TownRetention:
    """Days that each kind of data is kept."""

    recordings: float = 30.0
    orders: float = 90.0  # in audit files: they name people
    demonstrations: float = 90.0
    snapshots: float = 180.0  # and replays

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise BadInput(f"retention.{name} = {getattr(self, name)}", why="must be a number of days from 0 on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired:
    """Something that is older than it may be."""

    kind: str  # recording, snapshot, replay, orders or demonstrations
    where: str
    days: float  # its age; of several, that of the oldest
    count: int  # files, or entries of an audit file
    size: int  # bytes


def expired_files(folder: Path, keep: TownRetention, *, now: float) -> Iterator[Expired]:
    """The files of towns in a folder, not in those within it, that are older than their kind is kept; and the orders
    within its audit files."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.is_file():
            continue
        kind, days = kind_of(path), (now - path.stat().st_mtime) / DAY_S
        if kind == "orders":
            ages = [(now - entry["at"]) / DAY_S for entry in read_audit(path) if _is_order(entry)]
            old = [age for age in ages if age > keep.orders]
            if old:
                yield Expired(kind=kind, where=str(path), days=max(old), count=len(old), size=path.stat().st_size)
        elif kind is not None and days > _kept_for(keep, kind):
            yield Expired(kind=kind, where=str(path), days=days, count=1, size=path.stat().st_size)


def _kept_for(keep: TownRetention, kind: str) -> float:
    return {"recording": keep.recordings, "torn": keep.orders}.get(kind, keep.snapshots)


def _is_order(entry: Mapping[str, Any]) -> bool:
    return entry.get("what") == "order"


def kind_of(path: Path) -> str | None:
    """Which of a town's files this is; None: none that is surely one."""
    if path.name.endswith(f".jsonl{TORN}"):
        return "torn" if path.with_name(path.name.removesuffix(TORN)).exists() else None
    try:
        with path.open("rb") as file:
            head = file.readline(2**22)
        if head.startswith(b"PK"):
            inspect_snapshot(path)
            return "snapshot"
        first = json.loads(head)
        if not isinstance(first, dict):
            return None
        if is_audit(first):
            return "orders"
        if "replay" in first:
            inspect_script(path)
            return "replay"
        return "recording" if {"schema", "town", "rules", "glyphs", "natures"} <= set(first) else None
    except (OSError, ValueError, HoldfastError):
        return None


def remove(found: Expired, keep: TownRetention, *, who: str, now: float) -> None:
    """Removes a file, or the old orders of an audit file."""
    path = Path(found.where)
    if found.kind == "orders":
        AuditFile(path).forget(lambda entry: _is_order(entry) and now - entry["at"] > keep.orders * DAY_S,
                               who=who, at=now)  # fmt: skip
    else:
        path.unlink(missing_ok=True)


# Demonstrations ------------------------------------------------------------------------------------------------------


def expired_demonstrations(store: Store, keep: TownRetention, *, now: float) -> list[tuple[str, Expired]]:
    """Of finished runs that ended so long ago: the run, and what there is of it."""
    found = []
    for run in old_runs(store, before=now - keep.demonstrations * DAY_S):
        folders = [folder for folder in _folders(store, run.run) if folder.is_dir()]
        if folders:
            size = sum(file.stat().st_size for folder in folders for file in folder.rglob("*") if file.is_file())
            days = (now - run.ended_at) / DAY_S
            expired = Expired(kind="demonstrations", where=run.run, days=days, count=len(folders), size=size)
            found.append((run.run, expired))
    return found


def remove_demonstrations(store: Store, run: str, *, who: str, now: float) -> None:
    """The weights stay, and so does the count of what the demonstrations covered, which is in the run's steps."""
    folders: Sequence[Path] = [folder for folder in _folders(store, run) if folder.is_dir()]
    store.ledger.append("retention", {"run": run, "demonstrations": len(folders)}, who=who, now=now, run=run).result()
    for folder in folders:
        shutil.rmtree(folder)


def _folders(store: Store, run: str) -> list[Path]:
    return [store.folder / FOLDER / checkpoint.id / DEMONSTRATIONS for checkpoint in store.checkpoints.of_run(run)]
