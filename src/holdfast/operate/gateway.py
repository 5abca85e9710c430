"""The documented endpoints of the dashboard and of training: another shape of the views, for programs that know it.

A cycle is a minute. What has no source here is null, and nothing is read from files that nobody writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from holdfast.collect.openapi import FLAG, TEXT, Schema, obj, optional
from holdfast.contracts.commands import Command, Forbidden, Overrides, Role
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError
from holdfast.contracts.limits import RefusalLimiter
from holdfast.contracts.run import DesiredState, RunRecord
from holdfast.operate import control, views
from holdfast.operate.auth import Caller, Clock
from holdfast.operate.auth_middleware import Refusal
from holdfast.reward.tools import problems
from holdfast.store.store import Store

SCHEMA = 1
CYCLE_S = 60.0
STREAK = 3  # failures in a row: critical
CYCLES = 64  # in an answer
DEEPEST = 10_000  # records that page numbers reach; /api/rollouts reaches all
ACTIONS = ("pause", "resume", "refresh")
RETRYABLE = ("fault", "timeout", "unresponsive")
NO_ACTION, NO_CONFIG = "invalid_dashboard_action", "invalid_training_config"
ACTION = {
    **obj(("action",), action={"enum": list(ACTIONS)}, reason=optional({**TEXT, "maxLength": 1000})),
    "additionalProperties": False,
}
MANY = {"type": "integer", "minimum": 1, "maximum": 2**53 - 1}
CONFIG = {  # what a following learner reads
    **obj(enabled=FLAG, update_interval_rollouts=MANY, max_rollouts_per_update=MANY),
    "minProperties": 1,
    "additionalProperties": False,
}
UNHEARD = {  # documented too; refused, because nothing reads it
    "max_failure_streak": "no learner stops by itself after failures; the alert failure_streak tells of them",
    "store_path": "a run stays in the store it began in; give --store to the command that begins it",
}
WIDGETS = (  # id and kind, title, what it shows
    ("health_summary", "Health", "health"),
    ("queue_chart", "Queue", "queue_timeline"),
    ("run_timeline", "Training", "training"),
    ("alert_feed", "Alerts", "alerts"),
)
REFRESH_MS = 1000
ANSWERS = {  # the parts of each
    "health": ("health", "training", "control", "state"),
    "queue_timeline": ("queue_timeline", "health", "training", "state"),
    "alerts": ("alerts", "health", "training", "state"),
    "snapshot": ("alerts", "queue_timeline", "health", "training", "control", "state"),  # what the stream sends
    "status": ("training",),
}

Body = dict[str, Any]


class StoreSnapshot:
    """One look at the store: each part of an answer is read once."""

    def __init__(self, store: Store, now: float) -> None:
        self._store, self._now = store, now

    def answer(self, **parts: Any) -> Body:
        return {"schema_version": SCHEMA, "generated_unix_ms": _ms(self._now), **parts}

    @cached_property
    def run(self) -> RunRecord | None:
        return views.current_run(self._store.runs.newest(most=20))

    @cached_property
    def health(self) -> Body:
        payload = views.health(self._store, now=self._now)
        return {name: value for name, value in payload.items() if name not in ("run", "is_paused")}

    @cached_property
    def training(self) -> Body:
        run, path = self.run, self._store.folder / "status.json"
        payload: Body = {"status_path": str(path), "status_present": path.is_file(), "store_path": self._store.url}
        standing = [alert for alert in self._store.alerts.standing() if run is not None and alert.run == run.id]
        payload["live_learning_alerts"] = [_alert(alert.code, str(alert.severity), alert.message) for alert in standing]
        if run is None:
            nothing = dict.fromkeys(("total_rollouts", "succeeded", "failed", "cancelled"), 0)
            more = {"run_state": "unknown", "model_ref": None, "updated_unix_ms": 0, "rl_optimizer": None}
            return {**payload, **nothing, **more, "run_id": None, "diagnostics": ["no run yet"]}
        totals = self._store.figures.totals(run.id)
        counts = {str(state): n for state, n in totals.counts.items()}
        steps, _ = self._store.figures.steps(run.id)
        optimizer = next((step.body["rl_optimizer"] for step in reversed(steps) if "rl_optimizer" in step.body), None)
        return payload | {
            "run_id": run.id,
            "run_state": str(run.state),
            "model_ref": run.model_ref,
            "updated_unix_ms": _ms(run.ended_at or run.beat_at),
            "total_rollouts": sum(counts.values()),
            "succeeded": counts["succeeded"],
            "failed": counts["failed"] + counts["dead"],
            "cancelled": counts["cancelled"],
            "rl_optimizer": optimizer,
            "diagnostics": [] if totals.is_whole else ["still being counted"],
        }

    @cached_property
    def control(self) -> Body:
        run = self.run
        is_paused = run is not None and run.wanted in (DesiredState.PAUSED, DesiredState.FROZEN)
        entries, _ = self._store.figures.entries(most=1, kind="command")
        payload: Body = {"mode": "paused" if is_paused else "running", "paused": is_paused}
        payload["allowed_actions"] = list(ACTIONS)
        if entries:
            body = entries[0].body
            last = {"request_id": body.get("id"), "action": body.get("action"), "reason": body.get("why")}
            last |= {"actor": entries[0].who, "status": "accepted", "timestamp_unix_ms": _ms(entries[0].at)}
            payload["last_action"] = {"schema_version": SCHEMA, **last, "control_mode": payload["mode"]}
        return payload

    @cached_property
    def state(self) -> Body:
        """All of it is in the store: no other file could be missing or broken."""
        store, cycles = self._store.url, self.queue_timeline
        names = ("state", "events_log", "actions_log", "control_state")
        payload: Body = {f"{name}_path": store for name in names} | {f"{name}_present": True for name in names}
        payload |= {name: cycles[name] for name in ("cycle_reports", "invalid_cycle_reports", "last_reason_codes")}
        payload |= {"dashboard_root": str(self._store.folder), "diagnostics": []}
        audited = self.health["control_audit_count"]
        return payload | {"action_audit_records": audited, "invalid_action_audit_records": 0}

    @cached_property
    def queue_timeline(self) -> Body:
        """The minutes of the newest attempts, the newest last."""
        recent, health = self._store.figures.recent_attempts(), self.health
        entries, _ = self._store.figures.entries(most=200, kind="command")
        begun = Counter(int(start // CYCLE_S) for start, _, _ in recent)
        ended = Counter((int(end // CYCLE_S), status) for _, end, status in recent if end is not None)
        orders = Counter(int(entry.at // CYCLE_S) for entry in entries)
        minutes = sorted({*begun, *(minute for minute, _ in ended)})[-CYCLES:]
        cycles: list[Body] = []
        for minute in minutes:
            retryable, failed = sum(ended[minute, kind] for kind in RETRYABLE), ended[minute, "failed"]
            depth = health["queue_depth"] if minute == minutes[-1] else None
            cycles.append(
                {
                    "timestamp_unix_ms": _ms((minute + 1) * CYCLE_S),
                    "health_state": "degraded" if retryable + failed else "healthy",
                    "health_reason": f"{retryable + failed} attempts failed" if retryable + failed else "no failures",
                    "reason_codes": _codes(retryable, failed, depth or 0, orders[minute]),
                    "discovered_cases": begun[minute],
                    "queued_cases": depth,
                    "backlog_cases": depth,
                    "applied_cases": ended[minute, "succeeded"],
                    "malformed_cases": 0,
                    "retryable_failures": retryable,
                    "failed_cases": failed,
                    "control_actions_applied": orders[minute],
                }
            )
        counts = Counter(code for cycle in cycles for code in cycle["reason_codes"])
        payload = {"cycle_reports": len(cycles), "invalid_cycle_reports": 0, "reason_code_counts": dict(counts)}
        return payload | {"last_reason_codes": cycles[-1]["reason_codes"] if cycles else [], "recent_cycles": cycles}

    @cached_property
    def alerts(self) -> list[Body]:
        """The active alerts of the store, and the documented ones that follow from the numbers; or that all is well."""
        streak, depth, training = self.health["failure_streak"], self.health["queue_depth"], self.training
        failed, state = training["failed"], training["run_state"]
        severity = "critical" if streak >= STREAK else "warning"
        derived = (
            (streak, "transport_failures", severity, f"the last {streak} attempts failed"),
            (depth, "queue_backlog", "info", f"{depth} rollouts wait"),
            (self.control["paused"], "operator_pause_active", "info", "the run is paused by order"),
            (failed or state == "failed", "training_failures", "warning", f"{failed} rollouts failed"),
            (state == "unknown", "state_missing", "warning", "there is no run yet"),
        )
        told = [_alert(alert.code, str(alert.severity), alert.message) for alert in self._store.alerts.standing()]
        told += [_alert(f"dashboard_{code}", level, text) for is_so, code, level, text in derived if is_so]
        return told or [_alert("dashboard_healthy", "info", "nothing is wrong")]


class Gateway:
    """The documented answers."""

    def __init__(self, store: Store, clock: Clock, refusals: RefusalLimiter) -> None:
        self._store, self._clock, self._refusals = store, clock, refusals

    def _look(self) -> StoreSnapshot:
        return StoreSnapshot(self._store, self._clock())

    def show(self, name: str) -> Body:
        """One of ANSWERS."""
        look = self._look()
        return look.answer(**{part: getattr(look, part) for part in ANSWERS[name]})

    def widgets(self) -> Body:
        look = self._look()
        ms = look.training["updated_unix_ms"]
        shown = [
            {"widget_id": kind, "kind": kind, "title": title, "query_key": key, "refresh_interval_ms": REFRESH_MS}
            | {"last_case_key": look.training["run_id"], "updated_unix_ms": ms}
            for kind, title, key in WIDGETS
        ]
        return look.answer(widgets=shown, training=look.training, state=look.state)

    def rollouts(self, page: int = 1, per_page: int = 50) -> Body:
        """Rollouts of the newest run, newest first."""
        if page * per_page > DEEPEST:
            raise Refusal(400, f"page {page}: page numbers reach {DEEPEST} records; /api/rollouts goes on from a key")
        look, now = self._look(), self._clock()
        total, records = look.training["total_rollouts"], []
        if look.run is not None:
            found = views.rollouts(self._store, look.run.id, now=now, most=per_page)
            for _ in range(page - 1):
                if found["next"] is None:
                    found = {"rollouts": []}
                    break
                found = views.rollouts(self._store, look.run.id, now=now, most=per_page, before=found["next"])
            records = [_record(one) for one in found["rollouts"]]
        payload = {"page": page, "per_page": per_page, "total_records": total, "total_pages": -(-total // per_page)}
        return look.answer(**payload, invalid_records=0, records=records, diagnostics=[])

    def act(self, body: Any, caller: Caller) -> Body:
        """pause, resume or refresh for the newest run, through `control`."""
        now, run = self._clock(), self._look().run
        with self._noting(body, caller, now):
            action, reason = _action(body)
            if action != "refresh" and run is None:
                raise Refusal(400, f"{action}: there is no run yet", code=NO_ACTION)
        made = f"dashboard-action-{_ms(now)}"
        if action != "refresh" and run is not None:
            order = Command(id=made, action=action, subject=run.id, who=caller.label, why=reason, at=now)
            control.take(self._store, order, caller, refusals=self._refusals)
        after = self._look()
        payload: Body = {"request_id": made, "action": action, "actor": caller.label, "reason": reason}
        payload |= {"status": "accepted", "timestamp_unix_ms": _ms(now), "control_mode": after.control["mode"]}
        payload |= {name: after.health[name] for name in ("health_state", "health_reason", "rollout_gate")}
        where = {name: after.state[name] for name in ("actions_log_path", "control_state_path")}
        return {"schema_version": SCHEMA, **payload, **where}

    def configure(self, body: Any, caller: Caller) -> Body:
        """Overrides that a following learner reads before each step; noted in the ledger."""
        now, path = self._clock(), self._store.overrides.path
        with self._noting({"action": "configure", "subject": "training config"}, caller, now):
            if not caller.role.may(Role.OPERATOR):
                why = f"is for operators, and {caller.label} is a {caller.role}"
                raise Forbidden("configure", why=why, remedy="use the token of one who is operator")
            given = _overrides(body)
        pending = self._store.overrides.put(given, now=now)
        self._store.ledger.append("config", {"overrides": given}, who=caller.label, now=now).result()
        payload = {"accepted": given, "applied": {"mode": "persisted_pending"}, "pending_overrides": pending}
        return {"schema_version": SCHEMA, **payload, "overrides_path": str(path), "updated_unix_ms": _ms(now)}

    @contextmanager
    def _noting(self, body: Any, caller: Caller, now: float) -> Iterator[None]:
        """Notes refusals that `control` has not seen."""
        try:
            yield
        except (Refusal, Forbidden) as error:
            told = error if isinstance(error, HoldfastError) else BadInput(error.detail)
            whose: Body = {"who": caller.label, "role": caller.role, "now": now}
            control.note(self._store, body, told, **whose, refusals=self._refusals)
            raise


def _codes(retryable: int, failed: int, depth: int, orders: int) -> list[str]:
    found = {
        "queue_backpressure_applied": depth,
        "retryable_failures_observed": retryable,
        "case_processing_failed": failed,
        "control_actions_applied": orders,
    }
    codes = [code for code, n in found.items() if n]
    return codes if retryable or failed else ["healthy_cycle", *codes]


def _alert(code: str, severity: str, message: str) -> Body:
    return {"code": code, "severity": severity, "message": message}


def _record(one: Mapping[str, Any]) -> Body:
    at = one["ended_at"] or one["started_at"] or one["enqueued_at"]
    return {
        "rollout_id": one["id"],
        "status": one["status"],
        "mode": one["split"],
        "steps": one["attempts"],
        "reward": one["reward"],
        "duration_ms": None if one["took_s"] is None else _ms(one["took_s"]),
        "updated_unix_ms": _ms(at),
    }


def _action(body: Any) -> tuple[str, str]:
    """The requested action and its reason."""
    if isinstance(body, dict) and isinstance(name := body.get("action"), str):
        body = {**body, "action": name.lower()}
    _check(ACTION, body, "action", NO_ACTION)
    return body["action"], (body.get("reason") or "").strip() or "by the dashboard"


def _overrides(body: Any) -> Body:
    """The checked fields of a config change."""
    for name in UNHEARD.keys() & (body if isinstance(body, dict) else {}).keys():
        raise Refusal(400, f"{name}: nothing takes it up; {UNHEARD[name]}", code=NO_CONFIG)
    if body == {}:
        raise Refusal(400, f"send one or more of {', '.join(CONFIG['properties'])}", code="no_training_config_changes")
    _check(CONFIG, body, "config", NO_CONFIG)
    try:
        Overrides(**body)  # 5.0 is an integer for a schema, and not for a learner
    except BadRecord as error:
        raise Refusal(400, str(error), code=NO_CONFIG) from None
    return dict(body)


def _check(schema: Schema, body: Any, what: str, code: str) -> None:
    if wrong := problems(schema, body, what):
        raise Refusal(400, wrong[0][:400], code=code)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
