"""Proofs to look at, made of chance: what a page shows must not depend on how the figures came about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from holdfast.contracts.evidence import Decision, Interval, MetricComparison, Outcome, Reason, Verdict
from holdfast.operate.proof_view import GateCriterion, MetricSequence, ProofTask, ProofView

OUTCOMES = ("promote", "hold", "reject", "blocked")
FAMILIES = ("lookup", "chain", "missing", "trivial")


def comparison(
    metric: str, difference: float, reach: float, *, p: float = 0.003, margin: float = 0.0
) -> MetricComparison:
    ends = Interval(low=difference - reach, high=difference + reach)
    of: dict[str, Any] = {"baseline": "sprout@1", "candidate": "sprout@2", "method": "paired permutation"}
    return MetricComparison(
        metric=metric, difference=difference, interval=ends, p_value=p, pairs=200, margin=margin, **of
    )


def course(metric: str, differences: Sequence[float], *, bar: float, wide: float = 2.2) -> MetricSequence:
    means = np.cumsum(differences) / np.arange(1, len(differences) + 1)
    reach = wide / np.sqrt(np.arange(1, len(differences) + 1))
    low, high = (np.clip(means + sign * reach, -1.0, 1.0) for sign in (-1.0, 1.0))
    low, high = np.maximum.accumulate(low), np.minimum.accumulate(high)
    ends: dict[str, Any] = {"low": tuple(low.tolist()), "high": tuple(high.tolist())}
    ends |= {"proved_at": _first(low > bar), "refuted_at": _first(high < bar)}
    return MetricSequence(metric=metric, differences=tuple(differences), bar=bar, **ends)


def _first(held: np.ndarray) -> int | None:
    return int(held.argmax()) + 1 if held.any() else None


def view(kind: str = "promote", *, tasks: int = 200, families: bool = True, seed: int = 1, **other: Any) -> ProofView:
    """A proof of this standing; what is given by name replaces what was made."""
    rng = np.random.default_rng(seed)
    gain = {"promote": 0.3, "blocked": 0.3, "hold": 0.05, "reject": -0.35}[kind]
    baseline = rng.integers(0, 3, tasks) / 2
    candidate = np.clip(baseline + rng.choice([-0.5, 0.0, 0.5, 1.0], tasks, p=_moves(gain)), 0.0, 1.0)
    measured = [
        ProofTask(name=f"tooluse-{n:04d}", baseline=b, candidate=c, family=FAMILIES[n % 4] if families else "")
        for n, (b, c) in enumerate(zip(baseline.tolist(), candidate.tolist(), strict=True))
    ]
    differences = [task.difference for task in measured]
    mean = float(np.mean(differences))
    outcome = {"blocked": Outcome.PROMOTE}.get(kind) or Outcome(kind)
    needs = 140 if kind == "hold" else None
    given: dict[str, Any] = {
        "run": "m24-run-7-c0ffee-2",
        "baseline": "sprout@1",
        "candidate": "sprout@2",
        "primary": "success",
        "verdict": Verdict(outcome=outcome, reasons=("as the figures say",), needs=needs),
        "decision": decision(kind, needs),
        "comparisons": {
            "success": comparison("success", mean, 0.07),
            "reward": comparison("reward", 0.09, 0.05, p=0.00002),
            "safety": comparison("safety", -0.004, 0.012, p=0.0004, margin=0.05),
            "latency": comparison("latency", -0.21, 0.13, p=0.98),
            "cost": comparison("cost", 41.0, 66.0, p=0.11),
        },
        "adjusted": {"success": 0.009, "reward": 0.0001, "safety": 0.0012, "latency": 0.98, "cost": 0.22},
        "means": {
            "success": (float(baseline.mean()), float(candidate.mean())),
            "reward": (0.41, 0.5),
            "safety": (-0.01, -0.014),
            "latency": (-1.1, -1.31),
            "cost": (-1812.0, -1771.0),
        },
        "tasks": measured,
        "sequence": course("success", differences, bar=0.0, wide=1.1),
        "safety": course("safety", (rng.random(tasks) * 0.02 - 0.012).tolist(), bar=-0.05, wide=0.5),
        "criteria": criteria(kind),
        "facts": {
            "Baseline": "sprout@1, checkpoint ck-4411",
            "Candidate": "sprout@2, checkpoint ck-9fe2",
            "Suite": "tooluse-suite@1, sha256 " + "3f2a9c" * 10 + "beef",
            "Made": "2026-03-04 05:06:07 UTC",
        },
        "how": ("Seeds of one task are averaged first.", "Every look is paid for.", "Chance has seed 0."),
    }
    return ProofView(**given | other)


def decision(kind: str, needs: int | None) -> Decision:
    if kind == "promote":
        return Decision(open=True, reasons=(Reason(code="promotion_allowed", text="all 9 checks hold"),))
    codes = {
        "hold": ("p_value_above_threshold", "p 0.11 is above 0.05"),
        "reject": ("checkpoint_promotion_blocked_policy_improvement_not_significant", "success fell by 12.0 points"),
        "blocked": ("golden_changed_unsigned", "3 of 40 golden rewards changed, and nobody signed them"),
    }
    code, text = codes[kind]
    return Decision(open=False, reasons=(Reason(code=code, text=text),), needs=needs)


def criteria(kind: str) -> tuple[GateCriterion, ...]:
    met, code = kind in ("promote", "blocked"), "p_value_above_threshold"
    return (
        GateCriterion(name="reward gain", required="at least 0.05", measured="0.09", is_met=True),
        GateCriterion(name="safety regression", required="at most 0.05", measured="0.004", is_met=True),
        GateCriterion(name="p-value", required="at most 0.05", measured="0.003", is_met=met, code="" if met else code),
        GateCriterion(name="confidence", required="interval of 95 % above 0", measured="0.04 to 0.14", is_met=True),
    )


def _moves(gain: float) -> list[float]:
    up, down = max(0.0, gain) + 0.12, max(0.0, -gain) + 0.12
    return [down, 1.0 - up - down, up * 0.7, up * 0.3]
