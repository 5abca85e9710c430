"""The numbers of the views in the Prometheus text format, version 0.0.4.

Names begin with holdfast_ and end with their unit. The number of lines is bounded: the newest runs, releases in
service, active alerts.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from holdfast.operate import views
from holdfast.operate.learning_views import CURVES, learning
from holdfast.store.store import Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RUNS = 20
SERVING = ("live", "canary", "shadow")
STATES = ("healthy", "degraded", "failing", "unknown")
# A carriage return would end a line for some readers.
HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})
LABEL_ESCAPES = HELP_ESCAPES | str.maketrans({'"': '\\"', "\r": " "})


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with all its samples."""

    name: str  # without the prefix
    help: str
    samples: list[tuple[Mapping[str, str], float]] = field(default_factory=list)

    def add(self, value: float | None, **labels: str) -> None:
        if value is not None:
            self.samples.append((labels, float(value)))


def metrics(store: Store, *, now: float) -> str:
    return written(families(store, now=now))


def written(metric_families: Iterable[MetricFamily]) -> str:
    """HELP, TYPE and the samples of each family that has any; values that are not finite are left out."""
    lines = []
    for metric_family in metric_families:
        name, kind = f"holdfast_{metric_family.name}", "counter" if metric_family.name.endswith("_total") else "gauge"
        samples = [f"{name}{_labels(labels)} {value!r}" for labels, value in metric_family.samples if isfinite(value)]
        if samples:
            lines += [f"# HELP {name} {metric_family.help.translate(HELP_ESCAPES)}", f"# TYPE {name} {kind}", *samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    pairs = [f'{name}="{value.translate(LABEL_ESCAPES)}"' for name, value in labels.items()]
    return "{" + ",".join(pairs) + "}" if pairs else ""


def families(store: Store, *, now: float) -> Iterator[MetricFamily]:
    payload = views.overview(store, now=now)
    runs = views.runs(store, now=now, most=RUNS)["runs"]
    yield from _health(payload)
    yield from _runs(runs)
    yield from _learning(store, runs, now)
    share = MetricFamily("release_share_percent", "Percent of the requests that a version answers.")
    for one in (one for policy in payload["policies"] for one in (policy["live"], policy["under_way"])):
        if one is not None and one["stage"] in SERVING:
            share.add(one["share"], policy=one["policy"], release=one["id"], stage=one["stage"])
    alerts = MetricFamily("alerts_standing", "Active alerts.")
    for one in payload["alerts"]:
        alerts.add(1, code=one["code"], severity=one["severity"], run=one["run"] or "")
    entries = MetricFamily("ledger_entries_total", "Entries of the ledger.")
    for kind, n in sorted(store.figures.kinds().items()):
        entries.add(n, kind=kind)
    usage = shutil.disk_usage(store.folder)
    yield from (share, alerts, entries)
    yield MetricFamily("disk_free_bytes", "Free space on the store's disk.", [({}, float(usage.free))])
    yield MetricFamily("disk_size_bytes", "Size of the store's disk.", [({}, float(usage.total))])


def _health(told: Mapping[str, Any]) -> Iterator[MetricFamily]:
    health, workers = told["health"], told["workers"]
    single = (
        ("rollout_gate_open", "1 when healthy and not paused.", health["rollout_gate"] == "pass"),
        ("failure_streak", "Newest attempts that failed in a row.", health["failure_streak"]),
        (
            "attempts_decided_per_second",
            "Attempts that finished or failed, over the last minute.",
            told["pace"]["per_s"],
        ),
        ("worker_slots", "Slots of working workers.", workers["slots"]),
    )
    by_state = (
        ("health", "1 for the current state.", {state: state == health["health_state"] for state in STATES}),
        (
            "queue_rollouts",
            "Open rollouts of the newest run.",
            {k: v for k, v in told["queue"].items() if k != "is_whole"},
        ),
        ("workers", "Worker processes, the newest hundred.", {k: v for k, v in workers.items() if k != "slots"}),
    )
    for name, says, value in single:
        yield MetricFamily(name, says, [({}, float(value))])
    for name, says, values in by_state:
        yield MetricFamily(name, says, [({"state": state}, float(value)) for state, value in values.items()])


def _runs(runs: Iterable[Mapping[str, Any]]) -> Iterator[MetricFamily]:
    outcomes = MetricFamily("run_outcomes", "Finished rollouts of a run by outcome.")
    rollouts = MetricFamily("run_rollouts", "Rollouts of a run by status.")
    intervals = {
        "right": MetricFamily("run_right_ratio", "Right answers among rollouts that were checked or failed."),
        "success": MetricFamily("run_success_ratio", "Succeeded rollouts among those that ended by themselves."),
        "reward": MetricFamily("run_reward_mean", "Mean reward of a run."),
    }
    beat = MetricFamily("run_beat_timestamp_seconds", "Last heartbeat of the run's driver.")
    state = MetricFamily("run_state", "1 for the state and the desired state of a run.")
    for one in runs:
        run = one["id"]
        for status, n in one["counts"].items():
            rollouts.add(n, run=run, status=status)
        for outcome, n in one["outcomes"].items():
            outcomes.add(n, run=run, outcome=outcome)
        for name, family in intervals.items():
            for bound in ("value", "low", "high"):
                family.add(one[name][bound], run=run, bound=bound)
        beat.add(one["beat_at"], run=run)
        state.add(1, run=run, state=one["state"], wanted=one["wanted"])
    yield from (outcomes, rollouts, *intervals.values(), beat, state)


def _learning(store: Store, runs: Iterable[Mapping[str, Any]], now: float) -> Iterator[MetricFamily]:
    steps = MetricFamily("learning_step", "The last learning step of a run.")
    curves = {name: MetricFamily(f"learning_{name}", f"{name} at the last step.") for name in CURVES}
    for run in (run["id"] for run in runs if run["state"] == "running"):
        points = learning(store, run, now=now)["points"]
        if points:
            steps.add(points[-1]["step"], run=run)
        for name, family in curves.items():
            family.add(next((point[name] for point in reversed(points) if point[name] is not None), None), run=run)
    yield from (steps, *curves.values())
