"""The documented report on the life of a run: what is wanted of it, who wanted that last, and what a recovery found.

All of it is read from the store. What may be ordered, and the ordering, is `control`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.contracts.commands import GUARDS, ORDERS, REASONS
from holdfast.contracts.rollout import ANSWERED, RolloutState
from holdfast.contracts.run import DesiredState, LedgerEntry, RunRecord
from holdfast.operate import recover
from holdfast.operate.actions import SILENT_S
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
    refused = set(REASONS) if recover.is_dead(run, now=now, silent_s=SILENT_S) else {*REASONS, "?"}
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
