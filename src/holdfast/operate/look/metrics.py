"""The same numbers for Prometheus: its text format, version 0.0.4, from what the views show. Nothing is kept here.

Names begin with holdfast_, units are in the names, and how many lines there are is bounded: the newest runs, the
releases that serve or are on their way, the alerts that stand.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

from holdfast.operate.look import views
from holdfast.operate.look.lessons import CURVES
from holdfast.store.store import Store

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
RUNS = 20
SERVING = ("live", "canary", "shadow")
NAME = re.compile(r"[a-z_][a-z0-9_]*")

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricFamily:
    """One metric with all its samples."""

    name: str  # without the prefix
    help: str
    kind: str = "gauge"  # or "counter"
    samples: list[Sample] = field(default_factory=list)


def metrics(store: Store, *, now: float) -> str:
    """The whole page."""
    return written(families(store, now=now))


def written(found: Iterable[MetricFamily]) -> str:
    """HELP, TYPE and the samples of each family that has any; numbers that are none are left out."""
    lines = []
    for one in found:
        name = f"holdfast_{one.name}"
        samples = [(labels, value) for labels, value in one.samples if isfinite(value)]
        if samples:
            lines += [f"# HELP {name} {_plain(one.help)}", f"# TYPE {name} {one.kind}"]
            lines += [f"{name}{_labels(labels)} {value!r}" for labels, value in samples]
    return "\n".join(lines) + "\n"


def families(store: Store, *, now: float) -> Iterator[MetricFamily]:
    told = views.overview(store, now=now)
    runs = views.runs(store, now=now, most=RUNS)["runs"]
    yield from _health(told)
    yield from _runs(runs)
    yield from _learning(store, runs, now)
    yield from _serving(store, told)
    yield MetricFamily(
        name="alerts_standing",
        help="Alerts that stand.",
        samples=[
            ({"code": one["code"], "severity": one["severity"], "run": one["run"] or ""}, 1.0) for one in told["alerts"]
        ],
    )
    kinds = store.figures.kinds()
    counted: list[Sample] = [({"kind": kind}, float(n)) for kind, n in sorted(kinds.items())]
    yield MetricFamily(name="ledger_entries_total", help="Entries of the ledger.", kind="counter", samples=counted)
    usage = shutil.disk_usage(store.folder)
    yield MetricFamily(name="disk_free_bytes", help="Free on the store's disk.", samples=[({}, float(usage.free))])
    yield MetricFamily(name="disk_size_bytes", help="Size of the store's disk.", samples=[({}, float(usage.total))])


def _health(told: Mapping[str, Any]) -> Iterator[MetricFamily]:
    health, queue = told["health"], told["queue"]
    states = ("healthy", "degraded", "failing", "unknown")
    yield MetricFamily(
        name="health",
        help="1 for the state that it is in.",
        samples=[({"state": state}, float(state == health["health_state"])) for state in states],
    )
    gate = float(health["rollout_gate"] == "pass")
    yield MetricFamily(name="rollout_gate_open", help="1 when healthy and not paused.", samples=[({}, gate)])
    yield MetricFamily(
        name="failure_streak",
        help="Attempts that failed in a row, the newest ones.",
        samples=[({}, float(health["failure_streak"]))],
    )
    yield MetricFamily(
        name="attempts_decided_per_second",
        help="Attempts that came to a decision, over the last minute.",
        samples=[({}, float(told["pace"]["per_s"]))],
    )
    waiting: list[Sample] = [({"state": name}, float(queue[name])) for name in ("waiting", "requeuing", "running")]
    yield MetricFamily(name="queue_rollouts", help="Rollouts of the newest run that are not over.", samples=waiting)
    workers = told["workers"]
    yield MetricFamily(
        name="workers",
        help="Worker processes, the newest hundred.",
        samples=[({"state": name}, float(workers[name])) for name in ("working", "silent", "stopped")],
    )
    yield MetricFamily(name="worker_slots", help="Slots of those that work.", samples=[({}, float(workers["slots"]))])


def _runs(runs: Iterable[Mapping[str, Any]]) -> Iterator[MetricFamily]:
    outcomes = MetricFamily(name="run_outcomes", help="Rollouts of a run that are over, by what came of them.")
    right = MetricFamily(name="run_right_ratio", help="Of those that were checked or failed, those that were right.")
    rollouts = MetricFamily(name="run_rollouts", help="Rollouts of a run by status.")
    success = MetricFamily(name="run_success_ratio", help="Of those that ended by themselves, those that succeeded.")
    reward = MetricFamily(name="run_reward_mean", help="Mean reward of a run.")
    beat = MetricFamily(name="run_beat_timestamp_seconds", help="Last sign of life of the run's driver.")
    state = MetricFamily(name="run_state", help="1 for the state of a run and what is wanted of it.")
    for one in runs:
        run = {"run": one["id"]}
        rollouts.samples.extend(({**run, "status": status}, float(n)) for status, n in one["counts"].items())
        outcomes.samples.extend(({**run, "outcome": outcome}, float(n)) for outcome, n in one["outcomes"].items())
        for family, name in ((right, "right"), (success, "success"), (reward, "reward")):
            told = one[name]
            for part in ("value", "low", "high"):
                if told[part] is not None:
                    family.samples.append(({**run, "bound": part}, float(told[part])))
        beat.samples.append((run, float(one["beat_at"])))
        state.samples.append(({**run, "state": one["state"], "wanted": one["wanted"]}, 1.0))
    yield from (outcomes, right, rollouts, success, reward, beat, state)


def _learning(store: Store, runs: Iterable[Mapping[str, Any]], now: float) -> Iterator[MetricFamily]:
    steps = MetricFamily(name="learning_step", help="The last step of learning of a run.")
    curves = {name: MetricFamily(name=f"learning_{name}", help=f"{name} at the last step.") for name in CURVES}
    for run in (one["id"] for one in runs if one["state"] == "running"):
        points = views.learning(store, run, now=now)["points"]
        if not points:
            continue
        steps.samples.append(({"run": run}, float(points[-1]["step"])))
        for name, family in curves.items():
            value = next((one[name] for one in reversed(points) if one[name] is not None), None)
            if value is not None:
                family.samples.append(({"run": run}, float(value)))
    yield from (steps, *curves.values())


def _serving(store: Store, told: Mapping[str, Any]) -> Iterator[MetricFamily]:
    share = MetricFamily(name="release_share_percent", help="Percent of the requests that a version answers.")
    for policy in told["policies"]:
        for one in (policy["live"], policy["under_way"]):
            if one is not None and one["stage"] in SERVING:
                labels = {"policy": one["policy"], "release": one["id"], "stage": one["stage"]}
                share.samples.append((labels, float(one["share"])))
    yield share


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    assert all(NAME.fullmatch(name) for name in labels)
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    """As the format asks for it; a carriage return would end a line for some readers."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", " ")


def _plain(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
