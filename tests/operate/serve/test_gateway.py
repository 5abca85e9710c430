"""The documented endpoints: their fields as documented, their numbers the store's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from holdfast.contracts.commands import Forbidden, Overrides, Role
from holdfast.contracts.limits import RefusalLimiter
from holdfast.contracts.run import DesiredState
from holdfast.operate.auth import Caller
from holdfast.operate.auth_middleware import Refusal
from holdfast.operate.gateway import Gateway
from holdfast.store.store import Store, open_store
from tests.store.filled import filled

NOW = 1_800_000_000.0
OPERATOR, VIEWER = (Caller(label=str(role), role=role) for role in (Role.OPERATOR, Role.VIEWER))
HEALTH = {"health_state", "health_reason", "rollout_gate", "queue_depth", "failure_streak", "last_cycle_failed",
          "last_cycle_completed", "processed_case_count", "control_audit_count"}  # fmt: skip
TRAINING = {"status_path", "status_present", "updated_unix_ms", "run_state", "model_ref", "store_path",
            "total_rollouts", "succeeded", "failed", "cancelled", "diagnostics", "live_learning_alerts",
            "rl_optimizer", "run_id"}  # fmt: skip
CYCLE = {"timestamp_unix_ms", "health_state", "health_reason", "reason_codes", "discovered_cases", "queued_cases",
         "backlog_cases", "applied_cases", "malformed_cases", "retryable_failures", "failed_cases",
         "control_actions_applied"}  # fmt: skip
STATE = {"dashboard_root", "state_path", "events_log_path", "actions_log_path", "control_state_path", "cycle_reports",
         "state_present", "events_log_present", "actions_log_present", "control_state_present",
         "invalid_cycle_reports", "action_audit_records", "invalid_action_audit_records", "last_reason_codes",
         "diagnostics"}  # fmt: skip

ACTED = {"schema_version", "request_id", "action", "actor", "reason", "status", "timestamp_unix_ms", "control_mode",
         "health_state", "health_reason", "rollout_gate", "actions_log_path", "control_state_path"}  # fmt: skip
RECORD = {"rollout_id", "status", "mode", "steps", "reward", "duration_ms", "updated_unix_ms"}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with open_store(filled(tmp_path_factory.mktemp("gateway") / "store.sqlite", 400, now=NOW)) as opened:
        yield opened


@pytest.fixture
def gateway(store: Store) -> Gateway:
    return Gateway(store, lambda: NOW, RefusalLimiter())


def test_every_answer_has_its_documented_parts_and_the_run_under_training(gateway: Gateway) -> None:
    parts = {
        "health": ({"health", "training", "control", "state"}, gateway.show("health")),
        "widgets": ({"widgets", "training", "state"}, gateway.widgets()),
        "queue": ({"queue_timeline", "health", "training", "state"}, gateway.show("queue_timeline")),
        "alerts": ({"alerts", "health", "training", "state"}, gateway.show("alerts")),
        "status": ({"training"}, gateway.show("status")),
    }
    for named, told in parts.values():
        assert set(told) == named | {"schema_version", "generated_unix_ms"}
        assert (told["schema_version"], told["generated_unix_ms"]) == (1, 1_800_000_000_000)
        assert set(told["training"]) == TRAINING
        assert told.get("health") is None or set(told["health"]) == HEALTH
        assert told.get("state") is None or set(told["state"]) == STATE
        json.dumps(told, allow_nan=False)


def test_training_is_what_the_store_counts(gateway: Gateway, store: Store) -> None:
    told = gateway.show("status")["training"]
    counts = {str(state): n for state, n in store.views.counts("run-2-new").items()}
    assert (told["run_id"], told["run_state"], told["total_rollouts"]) == ("run-2-new", "running", 400)
    assert told["succeeded"] == counts["succeeded"] and told["failed"] == counts["failed"] + counts["dead"] > 0
    standing = [one.code for one in store.alerts.standing() if one.run == "run-2-new"]
    assert [one["code"] for one in told["live_learning_alerts"]] == standing != []


def test_the_queue_is_told_minute_by_minute(gateway: Gateway) -> None:
    told = gateway.show("queue_timeline")["queue_timeline"]
    cycles = told["recent_cycles"]
    assert 0 < len(cycles) == told["cycle_reports"] <= 64 and all(set(one) == CYCLE for one in cycles)
    assert sum(one["failed_cases"] for one in cycles) > 0 and cycles[-1]["backlog_cases"] > 0
    failed = [one for one in cycles if one["failed_cases"]]
    assert all("case_processing_failed" in one["reason_codes"] for one in failed)
    assert told["last_reason_codes"] == cycles[-1]["reason_codes"]


def test_alerts_are_those_that_stand_and_those_that_follow_from_the_numbers(gateway: Gateway, store: Store) -> None:
    told = {one["code"]: one["severity"] for one in gateway.show("alerts")["alerts"]}
    assert {one.code: str(one.severity) for one in store.alerts.standing()}.items() <= told.items()
    assert told["dashboard_training_failures"] == "warning"
    assert told["dashboard_queue_backlog"] == "info" and "dashboard_healthy" not in told


def test_pages_of_rollouts_follow_one_another_newest_first(gateway: Gateway) -> None:
    first, second = gateway.rollouts(1, 30), gateway.rollouts(2, 30)
    assert (first["total_records"], first["total_pages"], first["invalid_records"]) == (400, 14, 0)
    names = [one["rollout_id"] for one in (*first["records"], *second["records"])]
    assert len(set(names)) == 60 and names[0] == "run-2-new/task-400" and names[59] == "run-2-new/task-341"
    assert set(first["records"][0]) == RECORD
    assert len(gateway.rollouts(14, 30)["records"]) == 10 and gateway.rollouts(15, 30)["records"] == []
    with pytest.raises(Refusal, match="page numbers reach"):
        gateway.rollouts(1000, 200)


def test_an_action_is_an_order_like_any_other(gateway: Gateway, store: Store) -> None:
    told = gateway.act({"action": "PAUSE", "reason": "lunch"}, OPERATOR)
    assert store.runs.get("run-2-new").wanted is DesiredState.PAUSED
    assert set(told) == ACTED and told["request_id"] == "dashboard-action-1800000000000"
    assert (told["control_mode"], told["rollout_gate"]) == ("paused", "hold")
    control = gateway.show("health")["control"]
    assert control["paused"] and control["last_action"]["action"] == "pause"
    assert control["last_action"]["reason"] == "lunch"
    assert "dashboard_operator_pause_active" in [one["code"] for one in gateway.show("alerts")["alerts"]]
    with pytest.raises(Forbidden):
        Gateway(store, lambda: NOW + 1, RefusalLimiter()).act({"action": "resume"}, VIEWER)
    assert (
        Gateway(store, lambda: NOW + 2, RefusalLimiter()).act({"action": "resume"}, OPERATOR)["control_mode"]
        == "running"
    )
    assert gateway.act({"action": "refresh"}, VIEWER)["status"] == "accepted"
    for body in ({}, [], {"action": "stop"}, {"action": "pause", "who": "me"}, {"action": "pause", "reason": 5}):
        with pytest.raises(Refusal) as refused:
            gateway.act(body, OPERATOR)
        assert (refused.value.status_code, refused.value.code) == (400, "invalid_dashboard_action")


def test_overrides_are_kept_one_upon_another_and_written_down(gateway: Gateway, store: Store) -> None:
    gateway.configure({"enabled": False, "update_interval_rollouts": 5}, OPERATOR)
    told = gateway.configure({"update_interval_rollouts": 7}, OPERATOR)
    assert told["applied"] == {"mode": "persisted_pending"} and told["accepted"] == {"update_interval_rollouts": 7}
    kept = json.loads((store.folder / "training-config-overrides.json").read_bytes())
    assert kept["pending_overrides"] == told["pending_overrides"] == {"enabled": False, "update_interval_rollouts": 7}
    assert store.overrides.get() == Overrides(enabled=False, update_interval_rollouts=7)  # as a learner reads it
    assert told["overrides_path"] == str(store.overrides.path)
    assert [one.kind for one in store.ledger.entries()][-2:] == ["config", "config"]
    count = "max_rollouts_per_update"
    for body in (
        {"enabled": 1},
        {"enabled": None},
        {count: 0},
        {count: True},
        {count: 2**53},
        {count: 5.0},
        {"x": 1},
        [],
    ):
        with pytest.raises(Refusal) as refused:
            gateway.configure(body, OPERATOR)
        assert refused.value.code == "invalid_training_config"
    with pytest.raises(Refusal) as refused:
        gateway.configure({}, OPERATOR)
    assert refused.value.code == "no_training_config_changes"


def test_what_nothing_takes_up_who_may_not_and_what_is_no_action_is_in_the_ledger(file_store: Store) -> None:
    gateway = Gateway(file_store, lambda: NOW, RefusalLimiter())
    for body in ({"max_failure_streak": 3}, {"enabled": True, "store_path": "a\x00b"}):
        with pytest.raises(Refusal, match="nothing takes it up; ") as refused:
            gateway.configure(body, OPERATOR)
        assert (refused.value.status_code, refused.value.code) == (400, "invalid_training_config")
    with pytest.raises(Forbidden, match="configure: is for operators, and viewer is a viewer"):
        gateway.configure({"enabled": False}, VIEWER)
    with pytest.raises(Refusal):
        gateway.act({"action": "stop", "reason": "x"}, OPERATOR)
    noted = [(one.kind, one.who, one.body["action"]) for one in file_store.ledger.entries()]
    unheard = [("refusal", "operator", "configure")] * 2
    assert noted == [*unheard, ("refusal", "viewer", "configure"), ("refusal", "operator", "stop")]
    assert not file_store.overrides.path.exists()


def test_an_empty_store_is_unknown_and_holds(file_store: Store) -> None:
    gateway = Gateway(file_store, lambda: NOW, RefusalLimiter())
    told = gateway.show("health")
    assert (told["health"]["health_state"], told["health"]["rollout_gate"]) == ("unknown", "hold")
    assert told["training"]["run_state"] == "unknown" and set(told["training"]) == TRAINING
    assert [one["code"] for one in gateway.show("alerts")["alerts"]] == ["dashboard_state_missing"]
    assert gateway.rollouts()["records"] == [] and gateway.show("snapshot")["queue_timeline"]["recent_cycles"] == []
    with pytest.raises(Refusal, match="no run yet"):
        gateway.act({"action": "pause"}, OPERATOR)
