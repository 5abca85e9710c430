"""Whether a benchmark fell behind: every benchmark in its quick form, its ratios beside the committed ones.

    python tools/bench_check.py [NAME …] [--keep] [--json]

A ratio is what was measured over a peer, a ceiling or a reference that ran in the same call: it stays when the machine
is another one, or busy. CPU times are divided by that of a fixed piece of Python (`reference_ms`). What is missing (a
peer that is not installed) is told and fails nothing; what is committed and no longer measured fails. Exits 1 when
something fell by more than its tolerance. With --keep this run takes the place of what was committed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMMITTED = ROOT / "benchmarks" / "ratios.json"
REFERENCE = "reference_ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A figure of a benchmark, and which way is better."""

    key: str  # of its JSON; of an object, every number in it
    higher: bool
    tolerance: float  # the part by which it may be worse: 0.3 of a ratio of 2 allows 1.4, or 2.6 where lower is better
    per_reference: bool = False  # CPU time, or work by CPU time, in units of the reference


def up(key: str, tolerance: float) -> Ratio:
    return Ratio(key=key, higher=True, tolerance=tolerance)


def down(key: str, tolerance: float) -> Ratio:
    return Ratio(key=key, higher=False, tolerance=tolerance)


def cpu(key: str, tolerance: float = 0.5) -> Ratio:
    """CPU time: lower is better."""
    return Ratio(key=key, higher=False, tolerance=tolerance, per_reference=True)


def rate(key: str, tolerance: float = 0.35) -> Ratio:
    """Work by CPU time: higher is better."""
    return Ratio(key=key, higher=True, tolerance=tolerance, per_reference=True)


RATIOS: Mapping[str, tuple[Ratio, ...]] = {  # benchmark → what is held against the last time
    "attacks": (down("worst_mb", 0.5),),
    "budgets": (cpu("collect_ms_per_turn"), cpu("diff_p95_ms")),
    "collect": (cpu("overhead_ms_per_rollout"),),
    "learn": (
        up("gae_vs_numpy", 0.4),
        up("grpo_ceiling_share", 0.3),
        up("generate_share_of_ceiling", 0.35),
        up("generate_vs_transformers", 0.35),
        up("grpo_vs_trl", 0.35),
        up("ppo_sps_vs_sb3", 0.35),
    ),
    "prompts": (up("gain", 0.4), down("overspent", 0.0)),
    "prove": (down("false_promotion_rate", 1.0), up("power", 0.1), cpu("gate_ms"), cpu("guard_ms")),
    "proxy": (
        cpu("cpu_ms_per_call"),
        cpu("cpu_ms_per_stream"),
        up("records_per_call", 0.0),
        up("vs_litellm_cpu", 0.35),
    ),
    "rescore": (rate("rescored_per_cpu_s"),),
    "reward": (up("tamper_recall", 0.02), up("excess_spearman", 0.05), cpu("diff_p95_ms"), rate("turn_rewards_per_s")),
    "scrub": (up("recall_secrets", 0.02), up("recall_personal", 0.05), cpu("ms_per_message"), cpu("us_per_kb_clean")),
    "store": (
        up("raw_ceiling_ratio", 0.25),
        up("vs_agentlightning_03", 0.3),
        down("growth", 0.3),
        rate("rollouts_per_cpu_s"),
    ),
    "town": (up("vs_townlet", 0.35), rate("agent_steps_per_s_core"), cpu("tick_ms_64")),
}


def ratios_of(name: str, figures: Mapping[str, Any]) -> dict[str, tuple[Ratio, float | None]]:
    """`benchmark.key` or `benchmark.key.part` → the ratio and what it is; None: it could not be had."""
    found: dict[str, tuple[Ratio, float | None]] = {}
    for ratio in RATIOS[name]:
        for place, value in _numbers(f"{name}.{ratio.key}", figures.get(ratio.key)):
            found[place] = ratio, _scaled(ratio, value, figures.get(REFERENCE))
    return found


def _numbers(place: str, value: Any) -> Iterator[tuple[str, float | None]]:
    if isinstance(value, Mapping):
        for part, inner in value.items():
            yield from _numbers(f"{place}.{part}", inner)
    else:
        yield place, float(value) if isinstance(value, int | float) else None


def _scaled(ratio: Ratio, value: float | None, reference: float | None) -> float | None:
    if value is None or not ratio.per_reference:
        return value
    if not reference:
        return None
    return value * reference if ratio.higher else value / reference


@dataclass(frozen=True, slots=True)
class Compared:
    key: str
    before: float | None  # as committed
    now: float | None
    worst: float | None  # what would still do
    state: str  # "ok", "fell", "gone", "new", "not measured"; of a benchmark that failed "broken"

    @property
    def is_fall(self) -> bool:
        return self.state in ("fell", "gone", "broken")


def compare(
    found: Mapping[str, tuple[Ratio, float | None]], committed: Mapping[str, float], names: Mapping[str, Any]
) -> list[Compared]:
    """Each ratio beside the committed one; of the benchmarks that were run, what is committed and not there is gone."""
    rows = []
    for key, (ratio, now) in sorted(found.items()):
        before = committed.get(key)
        if before is None or now is None:
            rows.append(Compared(key, before, now, None, "not measured" if now is None else "new"))
            continue
        worst = before * (1.0 - ratio.tolerance) if ratio.higher else before * (1.0 + ratio.tolerance)
        has_fallen = now < worst if ratio.higher else now > worst
        rows.append(Compared(key, before, now, worst, "fell" if has_fallen else "ok"))
    gone = [key for key in committed if key.partition(".")[0] in names and key not in found]
    return rows + [Compared(key, committed[key], None, None, "gone") for key in sorted(gone)]


def table(rows: list[Compared]) -> str:
    width = max(len(row.key) for row in rows)
    lines = [f"{'ratio':{width}}  {'committed':>10}  {'now':>10}  {'worst':>10}"]
    for row in sorted(rows, key=lambda row: not row.is_fall):
        cells = ("-" if value is None else f"{value:.4g}" for value in (row.before, row.now, row.worst))
        lines.append(f"{row.key:{width}}  " + "  ".join(f"{cell:>10}" for cell in cells) + f"  {row.state}")
    return "\n".join(lines)


def measured(name: str) -> dict[str, Any] | None:
    """What the benchmark says of itself; None where it failed."""
    words = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), "--json", "--quick"]
    print(f"benchmarks/{name}.py …", file=sys.stderr, flush=True)
    ran = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, check=False)
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1]) if ran.returncode == 0 else {}
    return figures or None


def read() -> dict[str, float]:
    return dict(json.loads(COMMITTED.read_text(encoding="utf-8"))) if COMMITTED.exists() else {}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Whether a benchmark fell behind the committed ratios.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(RATIOS)}; else all")
    parser.add_argument("--keep", action="store_true", help="commit to what was measured now")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    given = parser.parse_args()
    if unknown := sorted(set(given.names) - set(RATIOS)):
        parser.error(f"{unknown[0]}: there is no such benchmark")
    return given


def main() -> int:
    given, rows = arguments(), list[Compared]()
    for name in given.names or sorted(RATIOS):
        if (figures := measured(name)) is None:
            rows.append(Compared(name, None, None, None, "broken"))
            continue
        found, committed = ratios_of(name, figures), read()
        rows += compare(found, committed, {name: None})
        if given.keep:  # one by one: a run that is interrupted keeps what it has measured
            kept = {key: float(f"{now:.4g}") for key, (_, now) in found.items() if now is not None}
            others = {key: value for key, value in committed.items() if key.partition(".")[0] != name}
            COMMITTED.write_text(json.dumps({**others, **kept}, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    fallen = [row.key for row in rows if row.is_fall]
    if given.json:
        listed = [{"key": row.key, "before": row.before, "now": row.now, "state": row.state} for row in rows]
        print(json.dumps({"ratios": listed, "fell": fallen}))
    else:
        print(table(rows))
        print(f"{len(fallen)} of {len(rows)} fell" if fallen else f"none of {len(rows)} fell")
    return int(bool(fallen) and not given.keep)


if __name__ == "__main__":
    sys.exit(main())
