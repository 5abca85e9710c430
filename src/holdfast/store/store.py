"""The front door: one opened store, bound to one project; and how people's abbreviated names are found in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import bindparam, func, select

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.release import Release
from holdfast.contracts.rollout import Rollout
from holdfast.store import schema
from holdfast.store.artifacts import Blobs, Checkpoints, FolderArtifacts, Versions
from holdfast.store.budgets import Budgets
from holdfast.store.commands import Alerts, Commands, OverridesFile, Tokens
from holdfast.store.dashboard_queries import DashboardQueries
from holdfast.store.db import Db, SQLite, open_db
from holdfast.store.experiments import Flags, Trials
from holdfast.store.judgements import Judgements
from holdfast.store.ledger import SEALED_BY, Ledger, LedgerCheckpoints, read_key
from holdfast.store.queue import Queue
from holdfast.store.releases import Releases
from holdfast.store.runs import Runs, Steps, Workers
from holdfast.store.scorings import Scorings
from holdfast.store.sql import from_json, given, to_json
from holdfast.store.traces import Experiences, Rewards, Traces
from holdfast.store.views import Views

STATE_FOLDER = Path(".holdfast")
LONG = 16 * 1024  # bytes of a list in the settings of a run, from which on it is kept apart
APART = "blob"  # the key of what stands in its place


class Store:
    """Everything durable. Writes return a `Pending` (`.result()` or `await`); reads return at once."""

    def __init__(self, db: Db, project: str, state_folder: Path, seal_key: Path | None = None) -> None:
        self.db, self.project = db, project
        self.url = db.engine.url
        if isinstance(db.engine, SQLite):
            self.folder, name = db.engine.path.parent, db.engine.path.name
        else:
            self.folder, name = state_folder.absolute(), db.engine.url
        key = None if seal_key is None else read_key(seal_key, apart_from=self.folder)
        anchors = LedgerCheckpoints(self.folder, name, key)
        if not isinstance(db.engine, SQLite):
            db.reading(anchors.named)  # once: an entry may be noted after its connection broke
        db.entered, db.is_sealed = anchors.note, key is not None
        self.changes, self.clock = db.changes, db.clock
        self.runs = Runs(db, project)
        self.queue = Queue(db, self.runs)
        self.traces = Traces(db)
        self.budgets = Budgets(db, self.runs, project)
        self.views = Views(db, self.runs)
        self.figures = DashboardQueries(db, self.runs)
        self.experiences = Experiences(db, self.runs, self.views, self.traces)
        self.scorings = Scorings(db, self.runs)
        self.rewards = Rewards(db, self.runs, self.views, self.experiences)
        self.versions = Versions(db, project)
        self.checkpoints = Checkpoints(db, self.runs)
        self.steps = Steps(db, self.runs)
        self.workers = Workers(db, project)
        self.ledger = Ledger(db, project, anchors)
        self.releases = Releases(db, project)
        self.trials = Trials(db, project)
        self.flags = Flags(db, project)
        self.judgements = Judgements(db, project)
        self.tokens = Tokens(db, project)
        self.commands = Commands(db, project)
        self.alerts = Alerts(db, project)
        self.overrides = OverridesFile(self.folder, project)
        self.blobs = Blobs(db, self.folder / "blobs")
        self.files: Artifacts = FolderArtifacts(self.folder)
        self.reports = reports_beside(self.folder)

    def apart(self, settings: Mapping[str, Any], *, now: float) -> dict[str, Any]:
        """Settings as a run keeps them: long lists, as of tasks, lie in blobs, so that looking at a run stays cheap."""
        kept: dict[str, Any] = {}
        for key, value in settings.items():
            text = to_json(value) if isinstance(value, list | tuple) else ""
            is_long = len(text) > LONG
            kept[key] = {APART: self.blobs.put(text.encode(), now=now), "count": len(value)} if is_long else value
        return kept

    def whole(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The same settings with their long lists in place."""
        return {
            key: from_json(self.blobs.get(value[APART])) if isinstance(value, dict) and APART in value else value
            for key, value in settings.items()
        }

    def close(self) -> None:
        """Finish what was handed over, then let go of the file."""
        self.db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def reports_beside(folder: Path) -> Path:
    """Where the reports of a store in that folder lie: what people read is not kept among the stores."""
    return (folder.parent if folder.name == "training" else folder) / "reports"


def open_store(
    url: str | Path,
    *,
    project: str = "default",
    create: bool = True,
    migrate: bool = True,
    poll_s: float = 0.05,
    state_folder: Path = STATE_FOLDER,
) -> Store:
    """Open the store at a path or a postgresql:// URL; an older one is migrated, a newer one refused."""
    if not project.strip() or len(project) > 100:
        raise BadInput(f"project {project!r}", why="must be 1 to 100 characters, not blank")
    named = os.environ.get(SEALED_BY)  # for every command and call alike: what one forgot to seal would look forged
    db = open_db(str(url), create=create, migrate=migrate, poll_s=poll_s)
    try:
        return Store(db, project, state_folder, Path(named) if named else None)
    except BadInput:
        db.close()
        raise


_r = schema.rollouts.c
NAMED = select(_r.key).where(given(_r, "run"), _r.name == bindparam("prefix"))
# Compared letter by letter: LIKE has wildcards, and in SQLite no capitals.
STARTING_WITH = (
    select(_r.name)
    .where(given(_r, "run"), func.substr(_r.name, 1, func.length(bindparam("prefix"))) == bindparam("prefix"))
    .order_by(_r.key)
    .limit(4)
)


def find_rollout(store: Store, text: str) -> Rollout:
    """From "RUN/NAME", where both may be cut short."""
    run_text, slash, prefix = text.partition("/")
    if not slash or not run_text or not prefix:
        remedy = "write RUN/NAME: 'holdfast run list' has the one, 'holdfast run rollouts RUN' the other"
        raise NotFound(f"rollout {text!r}", why="is not the id of a rollout", remedy=remedy)
    run = store.runs.get(run_text).id
    return store.views.rollout(f"{run}/{full_name(store, run, prefix)}")


def full_name(store: Store, run: str, prefix: str) -> str:
    """The name that starts so, in the run with this id; an exact match wins over longer names."""
    named = {"run": store.runs.key(run), "prefix": prefix}
    if store.db.one(NAMED, named) is not None:
        return prefix
    found = [row[0] for row in store.db.all(STARTING_WITH, named)]
    if len(found) == 1 and prefix:
        return str(found[0])
    why = f"several start so: {', '.join(found[:3])}{', …' if len(found) > 3 else ''}" if found else "there is none"
    raise NotFound(f"rollout {run}/{prefix}", why=why, remedy=f"'holdfast run rollouts {run}' lists them")


def find_release(store: Store, version: str) -> Release:
    """`policy@number`; the policy may be cut short, as the ids of runs may."""
    policy, _, number = version.rpartition("@")
    known = store.releases.policies()
    fits = [name for name in known if name.startswith(policy)] if policy and policy not in known else []
    return store.releases.get(f"{fits[0]}@{number}" if len(fits) == 1 else version)


def find_policy(store: Store, text: str) -> str:
    """Its name, which may be cut short."""
    known = store.releases.policies()
    fits = [name for name in known if name.startswith(text)] if text not in known else [text]
    if len(fits) != 1 or not text:
        why = "has no versions" if len(fits) < 2 else f"several start so: {', '.join(fits[:3])}"
        remedy = f"there is {', '.join(known)}" if known else "'holdfast release add' registers a first version"
        raise BadInput(f"policy {text!r}", why=why, remedy=remedy)
    return fits[0]
