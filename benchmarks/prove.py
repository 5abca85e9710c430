"""How often our proof is wrong, how soon it is right, and how long a gate takes to decide.

The rates are those of `holdfast prove calibrate`, whose whole table is in docs/calibration.md.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

import numpy as np

from holdfast.contracts.evidence import Episode, Evidence, Finding
from holdfast.contracts.release import ServedRequest
from holdfast.pipeline.calibrate import STEPS as GATES
from holdfast.pipeline.calibrate import GateRate, gate_row
from holdfast.promote.gate import Criteria, decide
from holdfast.prove.calibrate import STEPS, ErrorRates, gathered, in_processes, rate_row
from holdfast.prove.comparison import ComparisonConfig, compare_versions
from holdfast.prove.guard import GuardLimits, watch
from parts import report, sequences
from parts.report import Figures, progress, rounded

ALPHA, SEED = 0.05, 0
FULL, QUICK = 10_000, 1_000  # experiments of each shape
TASKS, SEEDS = 200, 2  # that the gate is given, of each version
REQUESTS, SHARE = 20_000, 0.05  # that the guard is given
VERSIONS = ("sprout@1", "sprout@2")

MEANINGS = {
    "false_promotion_rate": "highest of all shapes without a gain, looked at after every task",
    "z_test_false_promotion_rate": "highest of a paired z-test that is looked at as often",
    "power": "lowest of all shapes, at the stated gains",
    "mean_episodes_saved_vs_fixed_n": "mean of all shapes, against one look at the end with the same power",
    "mean_share_saved_vs_fixed_n": "the same as a share of its episodes",
    "guard_false_breach_rate": "highest of all metrics, exactly at the limit",
    "guard_false_clear_rate": "highest of all metrics, exactly at the limit",
    "guard_outcomes_until_broken": "most of all metrics, mean canary outcomes until one far off is caught",
    "gate_ms": f"weigh and decide on {TASKS} tasks with {SEEDS} seeds, both versions; median CPU time",
    "decide_ms": "decide alone",
    "guard_ms": f"one look at {REQUESTS:,} requests, {SHARE:.0%} of them the canary's; median CPU time",
    "gate_power": "lowest share of gates that open, at a true +10, base rate 0.5, 400 tasks with 2 seeds, α 0.05",
    "gate_power_missing": "the same with 2 % of all episodes lost, and again of those that are measured once more",
    "attacks": "how often the whole gate opens for a candidate that is no better, by attack, with its 99 % interval",
    "headline": "of gates that opened at a true +3: mean gain seen, mean gain stated, share of intervals that hold it",
    **sequences.MEANINGS,
    "experiments": "of each shape",
    "calibrate_cpu_s": "CPU-seconds of all of them",
    "wants": "what is expected, and whether it is so",
}
WANTS: Mapping[str, tuple[str, float]] = {
    "false_promotion_rate": ("at most", ALPHA),
    "power": ("at least", 0.8),
    "mean_episodes_saved_vs_fixed_n": ("at least", 0.0),
    "gate_power": ("at least", 0.9),
    "gate_power_missing": ("at least", 0.8),
    "guard_false_breach_rate": ("at most", ALPHA / 5),
    "guard_false_clear_rate": ("at most", ALPHA),
    **sequences.WANTS,
}


def measure(quick: bool) -> Figures:
    experiments, repeats = (QUICK, 5) if quick else (FULL, 21)
    asked = {"experiments": experiments, "alpha": ALPHA, "seed": SEED}
    figures = gate(repeats) | guard(repeats)  # what is timed comes before what keeps all cores busy
    began = _cpu_s()
    jobs: list[Any] = [partial(sequences.measure, quick, SEED)]
    jobs += [partial(rate_row, place, **asked) for place in range(STEPS)]
    jobs += [partial(gate_row, place, **asked) for place in range(GATES)]
    rows: list[Any] = []
    for one in in_processes(jobs, 1 if quick else os.cpu_count() or 1):
        rows.append(one)
        progress(f"{len(rows)} of {len(jobs)} tables")
    figures |= rows[0] | rates(gathered(rows[1 : 1 + STEPS], **asked)) | whole_gate(rows[1 + STEPS :])  # type: ignore[arg-type]
    figures |= {"experiments": experiments, "calibrate_cpu_s": rounded(_cpu_s() - began)}
    return figures | {"wants": {name: wanted(name, figures) for name in WANTS}}


def _cpu_s() -> float:
    """Of this process, and of those that it has waited for."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def rates(found: ErrorRates) -> Figures:
    return {
        "false_promotion_rate": rounded(found.false_promotion_rate),
        "z_test_false_promotion_rate": rounded(max(row.z_rate for row in found.nulls)),
        "power": rounded(min(row.power for row in found.powers)),
        "mean_episodes_saved_vs_fixed_n": rounded(mean(row.saved_episodes for row in found.powers)),
        "mean_share_saved_vs_fixed_n": rounded(mean(row.saved_share for row in found.powers)),
        "guard_false_breach_rate": rounded(max(row.false_breach for row in found.guards)),
        "guard_false_clear_rate": rounded(max(row.false_clear for row in found.guards)),
        "guard_outcomes_until_broken": rounded(max(row.outcomes_until_caught_broken for row in found.guards)),
    }


def whole_gate(found: Sequence[GateRate]) -> Figures:
    """Outcomes are simulated; order, units, looks, evidence and decision are production's."""
    rows = {one.name: one for one in found}
    small = rows["+3"]
    return {
        "gate_power": rounded(min(rows[name].rate for name in ("+10", "+10, tasks alike"))),
        "gate_power_missing": rounded(rows["+10, faults"].rate),
        "attacks": {name: _attack(row) for name, row in rows.items() if row.effect is None},
        "headline": {name: rounded(getattr(small, name)) for name in ("seen", "stated", "covered")},
    }


def _attack(row: GateRate) -> dict[str, Any]:
    ends = [rounded(row.interval.low), rounded(row.interval.high)]
    return {"rate": rounded(row.rate), "interval": ends, "is_within": row.is_within}


def wanted(name: str, figures: Figures) -> dict[str, Any]:
    word, bound = WANTS[name]
    is_met = figures[name] <= bound if word == "at most" else figures[name] >= bound
    return {word: bound, "is_met": is_met}


def gate(repeats: int) -> Figures:
    before, after = episodes(0.6, seed=1), episodes(0.75, seed=2)
    whole, alone, decision = [], [], None
    for _ in range(repeats + 1):  # the first one warms up
        began = time.process_time()
        evidence = weighed(before, after)
        between = time.process_time()
        decision = decide(evidence, Criteria())
        whole.append(time.process_time() - began)
        alone.append(time.process_time() - between)
    if decision is not None and not decision.open:
        progress(f"the gate stayed closed: {'; '.join(reason.code for reason in decision.reasons)}")
    return {"gate_ms": rounded(1e3 * median(whole[1:])), "decide_ms": rounded(1e3 * median(alone[1:]))}


def weighed(before: list[Episode], after: list[Episode]) -> Evidence:
    how = ComparisonConfig()
    found = compare_versions(before, after, how, versions=VERSIONS, rng=np.random.default_rng(how.resample_seed))
    return Evidence(
        policy="sprout",
        baseline=VERSIONS[0],
        candidate=VERSIONS[1],
        suite="drawn@1",
        primary=how.primary,
        episodes=len(found.tasks) * SEEDS,
        comparisons=found.comparisons,
        verdict=found.verdict,
        bands=found.bands,
        interaction=found.interaction,
        missing={"planned": TASKS * SEEDS, "baseline": 0, "candidate": 0},
        audit=(Finding(name="no_secrets", severity="critical", count=0, of=TASKS),),
        samples=64 * "0",
    )


def episodes(rate: float, seed: int) -> list[Episode]:
    rng = np.random.default_rng(seed)
    hits = rng.random((TASKS, SEEDS)) < rate
    return [
        Episode(
            task=f"t{task}",
            seed=column,
            reward=float(hits[task, column]),
            success=float(hits[task, column]),
            safety_cost=0.0,
            latency_s=float(rng.lognormal()),
            tokens=int(rng.integers(50, 500)),
        )
        for task in range(TASKS)
        for column in range(SEEDS)
    ]


def guard(repeats: int) -> Figures:
    rng = np.random.default_rng(3)
    served = [
        ServedRequest(
            id=str(number),
            trial="canary",
            arm="canary" if rng.random() < SHARE else "live",
            unit=str(number),
            at=float(number),
            error=bool(rng.random() < 0.01),
            latency_s=float(rng.lognormal()),
            success=float(rng.random() < 0.8),
            reward=float(rng.random()),
            safety_cost=0.0,
        )
        for number in range(REQUESTS)
    ]
    live, canary = ([one for one in served if one.arm == arm] for arm in ("live", "canary"))
    took = []
    for _ in range(repeats):
        began = time.process_time()
        watch(live, canary, GuardLimits())
        took.append(time.process_time() - began)
    return {"guard_ms": rounded(1e3 * median(took))}


if __name__ == "__main__":
    report.main("How often a proof is wrong, and how soon it is right.", measure, MEANINGS)
