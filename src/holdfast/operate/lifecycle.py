"""Runs whose driver died: found by its silence, given back to whoever takes them up, with a report of what was found.

What a worker left behind goes back into the queue, and the dead driver is refused should it wake. The learner goes on
from the last checkpoint, by `--resume` of the command that began the run; where that checkpoint is damaged, the loop
makes it anew from the one before. Where neither is whole nothing is touched. Signals and people are others' business.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from holdfast.contracts.artifacts import manifest_of
from holdfast.contracts.commands import GUARDS, ORDERS, REASONS, WANTS
from holdfast.contracts.errors import IllegalMove, StoreCorrupt
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import ANSWERED, Rollout, RolloutState
from holdfast.contracts.run import DesiredState, LedgerEntry, RunRecord, RunState, Status
from holdfast.store.blobs import write_atomically
from holdfast.store.checkpoints import damage_of
from holdfast.store.store import Store

VERSION = 1
LOOKED = 200  # of the run's entries in the ledger, the newest
STATES: Mapping[DesiredState, str] = {  # in the words of the report
    DesiredState.RUNNING: "running",
    DesiredState.PAUSED: "paused",
    DesiredState.FROZEN: "paused",
    DesiredState.DRAINING: "draining",
    DesiredState.CANCELLED: "cancelled",
}


def report(store: Store, run: RunRecord, *, principal: str, now: float) -> dict[str, Any]:
    """The control report, with `wanted`, `why` and `allowed_actions` beside what is documented; None: there is none."""
    entries, _ = store.figures.entries(most=LOOKED, run=run.id)
    ordered = next((one for one in entries if one.kind in ("command", "order")), None)
    incident = next((one for one in entries if one.kind == "incident"), None)
    recovery: Mapping[str, Any] = {} if incident is None else incident.body
    back = _rolled_back(store)
    checkpoints = store.figures.checkpoints(run.id, most=1)
    return {
        "schema_version": VERSION,
        "state_dir": str(store.folder),
        "control_state_path": store.url,
        "control_audit_path": store.url,
        "action": "status",
        "principal": principal,
        "run_id": run.id,
        "idempotent": None if ordered is None else not ordered.body.get("answer", {}).get("changes", True),
        "rollback_checkpoint": back,
        "checkpoint_run_id": run.id if checkpoints else None,
        "recovery_report_path": None if incident is None else f"{store.url}#{incident.seq}",
        "recovery_checkpoint_source": recovery.get("checkpoint_source"),
        "recovery_crash_detected": recovery.get("crash_detected"),
        "recovery_replayed_audit_events": recovery.get("replayed_audit_events"),
        "control_state": _control_state(run, ordered, back),
        "training_status": _training(store, run),
        "wanted": str(run.wanted),
        "why": None if ordered is None else ordered.body.get("why"),
        "allowed_actions": allowed(run, now=now),
    }


def allowed(run: RunRecord, *, now: float) -> list[str]:
    """The orders that would not be refused; `recover` only once nobody drives the run any more."""
    refused = set(REASONS) if is_dead(run, now=now, silent_s=SILENT_S) else {*REASONS, "?"}
    letters = GUARDS[run.state][run.wanted]
    return [order for order, letter in zip(ORDERS, letters, strict=True) if letter not in refused]


def _control_state(run: RunRecord, ordered: LedgerEntry | None, back: str | None) -> dict[str, Any]:
    if ordered is None:
        action, who, at = None, None, run.created_at
    else:
        action = ordered.body.get("action") or str(ordered.body.get("wanted"))
        who, at = ordered.who, ordered.at
    return {
        "schema_version": VERSION,
        "updated_unix_ms": int(at * 1000),
        "lifecycle_state": STATES[run.wanted],
        "last_action": action,
        "principal": who,
        "rollback_checkpoint": back,
    }


def _rolled_back(store: Store) -> str | None:
    """The version that the last rollback of the project led to."""
    decisions, _ = store.figures.decisions()
    for entry in reversed(decisions):
        if "roll_back" in entry.body or "restore" in entry.body:
            return str(entry.body.get("to") or entry.body.get("restore"))
    return None


def _training(store: Store, run: RunRecord) -> dict[str, Any]:
    counts, outcomes = store.views.counts(run.id), store.views.outcomes(run.id)
    return {
        "updated_unix_ms": int(max(run.beat_at, run.ended_at or 0.0) * 1000),
        "run_state": str(run.state),
        "model_ref": run.model_ref,
        "store_path": store.url,
        "total_rollouts": sum(counts.values()),
        "succeeded": counts[RolloutState.SUCCEEDED],
        "failed": counts[RolloutState.FAILED] + counts[RolloutState.DEAD],
        "cancelled": counts[RolloutState.CANCELLED],
        "running": counts[RolloutState.RUNNING],
        "waiting": counts[RolloutState.QUEUING] + counts[RolloutState.REQUEUING],
        "error": run.error,
        "outcomes": {str(kind): outcomes[kind] for kind in ANSWERED},
    }


UNDRIVEN = frozenset({"otlp"})  # kinds of runs that show no signs of life: who reports to them comes and goes
LEASE_S = 10.0  # of runs whose settings say nothing of it
SILENT_S = 30.0  # a run whose driver was silent for longer is dead
PAGE = 500
ACTIONS = {str(wanted): action for action, wanted in WANTS.items()}  # what is wanted → the order that says so
# What takes a run up, by its kind; the last one finds by itself which of its runs was not ended.
COMMANDS: Mapping[str, str] = {
    "optimize": "optimize --resume {run}",
    "improve": "improve --resume {run}",
    "prove": "prove run --resume {run}",
    "sft": "policy train --resume {run}",
    "quickstart": "quickstart",
}
Source = Literal["primary", "fallback", "base"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What was found, and what was done about it."""

    SCHEMA: ClassVar[int] = 1

    run: str
    recovered_at_unix_ms: int
    principal: str
    why: str
    crash_detected: bool  # it was running, and nobody drove it
    silent_s: float  # since the last sign of life
    prior_lifecycle_state: str  # what was wanted of it
    prior_training_state: str  # what it was
    state: str  # what it is now
    replayed_audit_events: int  # of this run, in the ledger
    replayed_actions: tuple[str, ...]  # the orders among them, oldest first
    requeued: int  # rollouts that nobody worked on any more
    held: int  # rollouts that another worker's lease still covers
    checkpoint: str | None = None  # what the learner goes on from; None: nothing was learnt yet
    checkpoint_source: Source | None = None  # fallback: the last one is damaged; base: and it was the first
    checkpoint_sha256: str | None = None
    checkpoint_run_id: str | None = None
    checkpoint_global_step: int | None = None
    checkpoint_optimizer_step: int | None = None  # None: it was saved without its trainer
    diagnostics: tuple[str, ...] = ()
    resume: str | None = None  # the command that takes it up; None: there is none, or nothing to take up


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """A checkpoint to go on from."""

    source: Source | None
    checkpoint: Checkpoint | None
    optimizer_step: int | None
    diagnostics: tuple[str, ...]


def lease_s(run: RunRecord) -> float:
    """How long its driver may be silent, by its own settings."""
    settings = run.settings
    if settings.get("lease_secs") is not None:
        return float(settings["lease_secs"])
    beat_ms = settings.get("heartbeat_interval_ms")
    return LEASE_S if beat_ms is None else 5 * float(beat_ms) / 1000


def is_dead(run: RunRecord, *, now: float, silent_s: float) -> bool:
    """Whether nobody drives it any more; a beat from the future is none."""
    if run.state is not RunState.RUNNING or run.kind in UNDRIVEN:
        return False
    return abs(now - run.beat_at) >= max(silent_s, lease_s(run))


def dead(store: Store, *, now: float, silent_s: float) -> list[RunRecord]:
    """Runs that are running by the record, and whose driver was silent for so long and longer than its lease."""
    return [run for run in _runs(store) if is_dead(run, now=now, silent_s=silent_s)]


def recover(store: Store, run_id: str, *, who: str, why: str, now: float, silent_s: float) -> Recovery:
    """Give a run whose driver died back: its rollouts to the queue, the run itself to whoever takes it up.

    One that is driven is refused; of one that had ended, the report only says so and what it would go on from.
    """
    run = store.runs.get(run_id)
    is_crashed = is_dead(run, now=now, silent_s=silent_s)
    if run.state is RunState.RUNNING and not is_crashed:
        raise _driven(run, now, silent_s)
    found = last_sound(store, run)  # before anything is written: without one there is nothing to recover to
    entries = list(store.ledger.entries(run=run.id))
    after, requeued, held = run, 0, 0
    diagnostics = [*found.diagnostics]
    if is_crashed:
        after, requeued, held = _taken_from(store, run, who=who, why=why, now=now, silent_s=silent_s)
    else:
        diagnostics.append(f"no crash: the run is {run.state}, and nothing was changed")
    if held:
        diagnostics.append(f"rollouts still leased to workers that may live, and swept once that runs out: {held}")
    report = Recovery(
        run=run.id,
        recovered_at_unix_ms=int(now * 1000),
        principal=who,
        why=why,
        crash_detected=is_crashed,
        silent_s=round(abs(now - run.beat_at), 3),
        prior_lifecycle_state=str(run.wanted),
        prior_training_state=str(run.state),
        state=str(after.state),
        replayed_audit_events=len(entries),
        replayed_actions=tuple(ACTIONS[str(one.body["wanted"])] for one in entries if one.kind == "order"),
        requeued=requeued,
        held=held,
        diagnostics=tuple(diagnostics),
        resume=command_of(after),
        **_named(store, run, found),
    )
    if is_crashed:
        store.ledger.append("incident", encode(report), who=who, now=now, run=run.id).result()
    return report


def _driven(run: RunRecord, now: float, silent_s: float) -> IllegalMove:
    told = f"it is driven (last sign of life {now - run.beat_at:.1f} s ago)"
    return IllegalMove(
        f"run {run.id}",
        why="nobody drives it: others report to it" if run.kind in UNDRIVEN else told,
        remedy=f"a run is dead once it was silent for {max(silent_s, lease_s(run)):g} s",
    )


def last_sound(store: Store, run: RunRecord) -> ResumePoint:
    """The newest checkpoint on the run's record, or, where its files are damaged, the one it grew from."""
    made = {one.id: one for one in store.checkpoints.of_run(run.id)}
    kept = [str(update.body["checkpoint"]) for update in store.steps.of_run(run.id) if "checkpoint" in update.body]
    last = next((made[name] for name in reversed(kept) if name in made), None)
    if last is None:
        return ResumePoint(source=None, checkpoint=None, optimizer_step=None, diagnostics=("nothing was learnt yet",))
    damage = damage_of(last, store.files)
    if damage is None:
        return ResumePoint(
            source="primary", checkpoint=last, optimizer_step=_optimizer_step(store.folder, last), diagnostics=()
        )
    told = f"checkpoint {last.id} is damaged: {damage}"
    again = "it is made anew from what was learnt from, when the run is taken up"
    if last.parent is None:
        before = f"it grew from the weights that the model came with; {again}"
        return ResumePoint(source="base", checkpoint=None, optimizer_step=None, diagnostics=(told, before))
    parent = store.checkpoints.get(last.parent)  # a checkpoint is kept only where its parent is
    if (deeper := damage_of(parent, store.files)) is not None:
        raise StoreCorrupt(
            f"run {run.id}",
            why=f"{told}; and the one before, {last.parent}: {deeper}",
            remedy="restore one of them from a copy, or begin a new run",
        )
    return ResumePoint(
        source="fallback",
        checkpoint=parent,
        optimizer_step=_optimizer_step(store.folder, parent),
        diagnostics=(told, f"the one before is whole: {again}"),
    )


def _taken_from(
    store: Store, run: RunRecord, *, who: str, why: str, now: float, silent_s: float
) -> tuple[RunRecord, int, int]:
    """The run as it is then, and how many of its rollouts wait again, or are still another's."""
    error = f"its driver was silent for {abs(now - run.beat_at):.0f} s; recovered: {why}"
    if run.wanted is DesiredState.CANCELLED:
        while store.queue.cancel_open(run.id, now=now, why="the run was cancelled").result():
            continue
        return store.runs.end(run.id, RunState.CANCELLED, who=who, now=now, error=error).result(), 0, 0
    # Refuses where somebody else was faster; from here on the dead driver is refused, should it wake.
    mine = store.runs.resume(run.id, who=who, now=now, silent_s=max(silent_s, lease_s(run))).result()
    left = [one.id for one in _rollouts(store, run.id, RolloutState.RUNNING)]
    while store.queue.sweep(now=now).result():
        continue
    held = 0
    for rollout in left:
        state = store.views.rollout(rollout).status
        held += state is RolloutState.RUNNING
        if state is RolloutState.DEAD:  # its last attempt went with the driver, which was no fault of its own
            store.queue.requeue(rollout, now=now).result()
    after = store.runs.end(run.id, RunState.FAILED, who=who, now=now, error=error, driver=mine.driver).result()
    return after, len(left) - held, held


def command_of(run: RunRecord) -> str | None:
    if run.state is RunState.COMPLETED or run.wanted is DesiredState.CANCELLED or run.kind not in COMMANDS:
        return None
    return f"holdfast {COMMANDS[run.kind]}".format(run=run.id)


def _named(store: Store, run: RunRecord, found: ResumePoint) -> dict[str, Any]:
    """The checkpoint, as the report has it."""
    kept = found.checkpoint
    if kept is None:
        return {"checkpoint_source": found.source}
    return {
        "checkpoint": kept.id,
        "checkpoint_source": found.source,
        "checkpoint_sha256": None if kept.artifact is None else kept.artifact.sha256,
        "checkpoint_run_id": _run_of(store, run, kept),
        "checkpoint_global_step": kept.global_step,
        "checkpoint_optimizer_step": found.optimizer_step,
    }


def _run_of(store: Store, run: RunRecord, checkpoint: Checkpoint) -> str | None:
    """Whose checkpoint it is: this run's, or that of the one whose version it began with."""
    if any(one.id == checkpoint.id for one in store.checkpoints.of_run(run.id)):
        return run.id
    name = checkpoint.id.rsplit("-", 2)[0]
    return name if any(one.id == name for one in _runs(store)) else None


def _runs(store: Store) -> Iterator[RunRecord]:
    before: str | None = None
    while page := store.runs.newest(most=PAGE, before=before):
        yield from page
        before = page[-1].id


def _rollouts(store: Store, run: str, status: RolloutState) -> list[Rollout]:
    found: list[Rollout] = []
    after: str | None = None
    while page := store.views.rollouts(run, most=PAGE, after=after, status=status):
        found += page
        after = page[-1].name
    return found


def _optimizer_step(folder: Path, checkpoint: Checkpoint) -> int | None:
    if checkpoint.artifact is None or not (at := folder / checkpoint.artifact.uri / "trainer").is_dir():
        return None
    return int(manifest_of(at)["notes"]["trainer"]["updates"])


def write_status(path: Path, status: Status) -> None:
    write_atomically(path, (json.dumps(encode(status), indent=2, allow_nan=False) + "\n").encode())
