"""The life of a run: its control report, the recovery of one whose driver died, and its status file.

Recovery returns abandoned rollouts to the queue and refuses the dead driver should it wake. The learner continues from
the last sound checkpoint with the `--resume` of the command that began the run; a damaged one is rebuilt from its
parent. Where both are damaged, nothing is changed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from holdfast.contracts.artifacts import manifest_of
from holdfast.contracts.commands import GUARDS, REASONS, RUN_COMMANDS, WANTS
from holdfast.contracts.errors import IllegalMove, NotFound, StoreCorrupt
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import ANSWERED, RolloutState
from holdfast.contracts.run import DesiredState, LedgerEntry, RunRecord, RunState, Status
from holdfast.store.artifacts import damage_of, write_atomically
from holdfast.store.store import Store

UNDRIVEN = frozenset({"otlp"})  # kinds of runs without a driver: others report to them
LEASE_S = 10.0  # where the settings have none
SILENT_S = 30.0  # a run whose driver was silent for longer is dead
ALL = 2**31  # more rollouts than a run has
ACTIONS = {str(wanted): action for action, wanted in WANTS.items()}  # desired state → command
# The command that resumes a run, by its kind; the last one finds its unfinished run by itself.
COMMANDS: Mapping[str, str] = {
    "optimize": "run start --resume {run}",
    "improve": "improve --resume {run}",
    "prove": "prove run --resume {run}",
    "sft": "policy train --resume {run}",
    "dpo": "policy train --resume {run}",
    "reward_model": "policy train --resume {run}",
    "quickstart": "quickstart",
}
Source = Literal["primary", "fallback", "base"]
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
    """The documented control report, with `wanted`, `why` and `allowed_actions` in addition."""
    entries, _ = store.figures.entries(most=LOOKED, run=run.id)
    ordered = next((entry for entry in entries if entry.kind in ("command", "order")), None)
    incident = next((entry for entry in entries if entry.kind == "incident"), None)
    recovery: Mapping[str, Any] = {} if incident is None else incident.body
    decisions, _ = store.figures.decisions()
    moves = [decision.body for decision in decisions if "roll_back" in decision.body or "restore" in decision.body]
    back = str(moves[-1].get("to") or moves[-1].get("restore")) if moves else None
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
    """The commands that would not be refused; `recover` only for a dead run."""
    refused = set(REASONS) if is_dead(run, now=now) else {*REASONS, "?"}
    letters = GUARDS[run.state][run.wanted]
    return [order for order, letter in zip(RUN_COMMANDS, letters, strict=True) if letter not in refused]


def _control_state(run: RunRecord, ordered: LedgerEntry | None, back: str | None) -> dict[str, Any]:
    body = {} if ordered is None else ordered.body
    return {
        "schema_version": VERSION,
        "updated_unix_ms": int((run.created_at if ordered is None else ordered.at) * 1000),
        "lifecycle_state": STATES[run.wanted],
        "last_action": None if ordered is None else body.get("action") or str(body.get("wanted")),
        "principal": None if ordered is None else ordered.who,
        "rollback_checkpoint": back,
    }


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What a recovery found and did."""

    SCHEMA: ClassVar[int] = 1

    run: str
    recovered_at_unix_ms: int
    principal: str
    why: str
    crash_detected: bool  # it was running without a driver
    silent_s: float  # since the last heartbeat
    prior_lifecycle_state: str  # the desired state
    prior_training_state: str  # the state before
    state: str  # the state after
    replayed_audit_events: int  # of this run, in the ledger
    replayed_actions: tuple[str, ...]  # the commands among them, oldest first
    requeued: int  # abandoned rollouts
    held: int  # rollouts under a lease that still holds
    checkpoint: str | None = None  # where the learner continues; None: nothing was learnt yet
    checkpoint_source: Source | None = None  # fallback: the last one is damaged; base: the damaged one was the first
    checkpoint_sha256: str | None = None
    checkpoint_run_id: str | None = None
    checkpoint_global_step: int | None = None
    checkpoint_optimizer_step: int | None = None  # None: it was saved without its trainer
    diagnostics: tuple[str, ...] = ()
    resume: str | None = None  # the command that resumes it; None: nothing can


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePoint:
    """The checkpoint that a resumed run continues from."""

    source: Source | None = None
    checkpoint: Checkpoint | None = None
    diagnostics: tuple[str, ...] = ()


def lease_s(run: RunRecord) -> float:
    """The lease of its driver, from its own settings."""
    settings = run.settings
    if settings.get("lease_secs") is not None:
        return float(settings["lease_secs"])
    beat_ms = settings.get("heartbeat_interval_ms")
    return LEASE_S if beat_ms is None else 5 * float(beat_ms) / 1000


def is_dead(run: RunRecord, *, now: float) -> bool:
    """Whether no process drives a running run; a heartbeat from the future does not count."""
    if run.state is not RunState.RUNNING or run.kind in UNDRIVEN:
        return False
    return abs(now - run.beat_at) >= max(SILENT_S, lease_s(run))


SERVED = "serve"  # the kind of runs that keep what a service heard
LISTED = 200  # runs that are looked through for those that services left


def end_left_behind(store: Store, *, who: str, now: float) -> list[str]:
    """Ends the recordings of services that were killed: nobody resumes them, and nobody else would end them."""
    left = [run for run in store.runs.newest(most=LISTED) if run.kind == SERVED and is_dead(run, now=now)]
    for run in left:
        why = f"its service was silent for {now - run.beat_at:.0f} s"
        store.runs.end(run.id, RunState.CANCELLED, who=who, now=now, error=why, driver=run.driver).result()
    return [run.id for run in left]


def check_dead(run: RunRecord, *, now: float) -> None:
    """IllegalMove for a run that is driven."""
    if is_dead(run, now=now):
        return
    driven = f"it is driven (last sign of life {now - run.beat_at:.1f} s ago)"
    why = "nobody drives it: others report to it" if run.kind in UNDRIVEN else driven
    remedy = f"a run is dead once it was silent for {max(SILENT_S, lease_s(run)):g} s"
    raise IllegalMove(f"run {run.id}", why=why, remedy=remedy)


def recover(store: Store, run_id: str, *, who: str, why: str, now: float) -> Recovery:
    """Returns the rollouts of a dead run to the queue and releases the run for whoever resumes it.

    A driven run is refused. For a run that has ended, the report only says so and names its checkpoint.
    """
    run = store.runs.get(run_id)
    if is_crashed := run.state is RunState.RUNNING:
        check_dead(run, now=now)
    point = last_sound(store, run)  # before anything is written: without one there is nothing to recover to
    entries = list(store.ledger.entries(run=run.id))
    after, requeued, held = run, 0, 0
    diagnostics = [*point.diagnostics]
    if is_crashed:
        after, requeued, held = _taken_from(store, run, who=who, why=why, now=now)
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
        replayed_actions=tuple(ACTIONS[str(entry.body["wanted"])] for entry in entries if entry.kind == "order"),
        requeued=requeued,
        held=held,
        diagnostics=tuple(diagnostics),
        resume=command_of(after),
        **_named(store, run, point),
    )
    if is_crashed:
        store.ledger.append("incident", encode(report), who=who, now=now, run=run.id).result()
    return report


def last_sound(store: Store, run: RunRecord) -> ResumePoint:
    """The newest recorded checkpoint of the run, or its parent where its files are damaged."""
    made = {checkpoint.id: checkpoint for checkpoint in store.checkpoints.of_run(run.id)}
    kept = [str(update.body["checkpoint"]) for update in store.steps.of_run(run.id) if "checkpoint" in update.body]
    last = next((made[name] for name in reversed(kept) if name in made), None)
    if last is None:
        return ResumePoint(diagnostics=("nothing was learnt yet",))
    damage = damage_of(last, store.files)
    if damage is None:
        return ResumePoint(source="primary", checkpoint=last)
    message = f"checkpoint {last.id} is damaged: {damage}"
    again = "it is made anew from what was learnt from, when the run is taken up"
    if last.parent is None:
        before = f"it grew from the weights that the model came with; {again}"
        return ResumePoint(source="base", diagnostics=(message, before))
    parent = store.checkpoints.get(last.parent)  # a checkpoint is kept only where its parent is
    if (deeper := damage_of(parent, store.files)) is not None:
        raise StoreCorrupt(
            f"run {run.id}",
            why=f"{message}; and the one before, {last.parent}: {deeper}",
            remedy="restore one of them from a copy, or begin a new run",
        )
    return ResumePoint(source="fallback", checkpoint=parent, diagnostics=(message, f"the one before is whole: {again}"))


def _taken_from(store: Store, run: RunRecord, *, who: str, why: str, now: float) -> tuple[RunRecord, int, int]:
    """The ended run, the number of its requeued rollouts, and of those under a lease that still holds."""
    error = f"its driver was silent for {abs(now - run.beat_at):.0f} s; recovered: {why}"
    if run.wanted is DesiredState.CANCELLED:
        while store.queue.cancel_open(run.id, now=now, why="the run was cancelled").result():
            continue
        return store.runs.end(run.id, RunState.CANCELLED, who=who, now=now, error=error).result(), 0, 0
    # Refuses where somebody else was faster; from here on the dead driver is refused, should it wake.
    mine = store.runs.resume(run.id, who=who, now=now, silent_s=max(SILENT_S, lease_s(run))).result()
    left = [rollout.id for rollout in store.views.rollouts(run.id, most=ALL, status=RolloutState.RUNNING)]
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
    """The checkpoint fields of the report."""
    kept = found.checkpoint
    if kept is None:
        return {"checkpoint_source": found.source}
    owner: str | None = run.id
    if all(
        checkpoint.id != kept.id for checkpoint in store.checkpoints.of_run(run.id)
    ):  # this run began with another's version
        name, owner = kept.id.rsplit("-", 2)[0], None
        with suppress(NotFound):
            owner = name if store.runs.get(name).id == name else None
    return {
        "checkpoint": kept.id,
        "checkpoint_source": found.source,
        "checkpoint_sha256": None if kept.artifact is None else kept.artifact.sha256,
        "checkpoint_run_id": owner,
        "checkpoint_global_step": kept.global_step,
        "checkpoint_optimizer_step": _optimizer_step(store.folder, kept),
    }


def _optimizer_step(folder: Path, checkpoint: Checkpoint) -> int | None:
    if checkpoint.artifact is None or not (at := folder / checkpoint.artifact.uri / "trainer").is_dir():
        return None
    return int(manifest_of(at)["notes"]["trainer"]["updates"])


def write_status(path: Path, status: Status) -> None:
    write_atomically(path, (json.dumps(encode(status), indent=2, allow_nan=False) + "\n").encode())
