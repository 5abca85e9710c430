"""The exit gate of a milestone: proofs, safety, operations and runbooks, each checked again.

The documented bundle has a flag for each. Published proofs are recomputed from their samples and drills from their
stores; a runbook is a file with content. Missing or false evidence closes the gate, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.operate.drill import playbook
from holdfast.operate.drill.playbook import digest
from holdfast.prove.reports.document import PROOF, Problem, catalogue, parse
from holdfast.prove.reports.validate import validate

MIN_PASSED, MAX_FAILED, MAX_INVALID = 1, 0.5, 0.2  # of the published proofs, as documented
PROVES = {"pause": "pause_resume_proven", "rollback": "rollback_proven", "crash": "recovery_drill_proven"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    passes: bool
    pass_reports: int
    fail_reports: int
    invalid_files: int
    reason_codes: tuple[str, ...]
    report_ref: str | None  # the newest


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetyCheck:
    passes: bool
    observed_regression: float | None
    max_allowed_regression: float | None
    reason_codes: tuple[str, ...]
    report_ref: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Operations:
    pause_resume_proven: bool
    rollback_proven: bool
    recovery_drill_proven: bool
    recovery_log_ref: str | None
    problems: Mapping[str, tuple[str, ...]]  # drill → why it proves nothing
    playbooks: Mapping[str, str]  # drill → its artifact

    @property
    def passes(self) -> bool:
        return self.pause_resume_proven and self.rollback_proven and self.recovery_drill_proven


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The evidence of the gate."""

    benchmark: Benchmark
    safety: SafetyCheck
    operations: Operations
    operator_runbook_ref: str | None
    incident_playbook_ref: str | None
    generated_at_epoch_ms: int
    sha256: Mapping[str, str] = field(default_factory=dict)  # of every file of evidence

    @property
    def reason_codes(self) -> tuple[str, ...]:
        """Why the gate is closed; empty: it is open."""
        rows = (
            (self.benchmark.passes, "benchmark_failed"),
            (self.safety.passes, "safety_failed"),
            (self.operations.passes, "operations_failed"),
            (self.operator_runbook_ref is not None, "operator_runbook_missing"),
            (self.incident_playbook_ref is not None, "incident_playbook_missing"),
        )
        return tuple(code for holds, code in rows if not holds)


def gather(
    reports: Path, drills: Path, *, runbook: Path | None, incidents: Path | None, now: float
) -> tuple[Bundle, dict[str, Any]]:
    """The evidence, checked again, and the documented record of it."""
    read = {one.path: parse(one.path.read_bytes()) for one in catalogue(reports) if one.kind == PROOF}
    times = {path: "" if isinstance(data, Problem) else str(data.get("generated_at")) for path, data in read.items()}
    proofs = sorted(read, key=lambda path: (times[path], str(path)))
    benchmark, safety = _proved({path: read[path] for path in proofs})
    operations = _operated(drills)
    refs = [_written(one) for one in (runbook, incidents)]
    rests = [*proofs[-1:], *map(Path, operations.playbooks.values()), *(Path(one) for one in refs if one)]
    bundle = Bundle(
        benchmark=benchmark,
        safety=safety,
        operations=operations,
        operator_runbook_ref=refs[0],
        incident_playbook_ref=refs[1],
        generated_at_epoch_ms=int(now * 1000),
        sha256={str(path): digest(path) for path in rests},
    )
    return bundle, _told(bundle)


def name(bundle: Bundle) -> str:
    """The documented file name."""
    parts = ("benchmark", "safety", "operations")
    flags = "-".join(f"{part}-pass-{int(getattr(bundle, part).passes)}" for part in parts)
    return f"m24-rl-gate-evidence-bundle-v1-{flags}-{bundle.generated_at_epoch_ms}.json"


def _proved(proofs: Mapping[Path, Any]) -> tuple[Benchmark, SafetyCheck]:
    """The proofs, oldest first."""
    status = {
        path: "invalid" if isinstance(data, Problem) or validate(path) else data["proof_status"]
        for path, data in proofs.items()
    }
    counts, newest = Counter(status.values()), next(reversed(status), None)
    passed, invalid = counts["pass"], counts["invalid"]
    failed = len(status) - passed - invalid
    codes = {
        "below_min_pass_entries": passed < MIN_PASSED,
        "fail_ratio_exceeded": failed > MAX_FAILED * (passed + failed),
        "invalid_file_ratio_exceeded": invalid > MAX_INVALID * len(status),
        "newest_report_failed": newest is not None and status[newest] != "pass",
    }
    benchmark = Benchmark(
        passes=not any(codes.values()),
        pass_reports=passed,
        fail_reports=failed,
        invalid_files=invalid,
        reason_codes=tuple(code for code, is_so in codes.items() if is_so),
        report_ref=None if newest is None else str(newest),
    )
    return benchmark, _safe(None if newest is None or status[newest] == "invalid" else newest)


def _safe(proof: Path | None) -> SafetyCheck:
    """From the newest proof, if it is valid; a regression above 0 is worse."""
    if proof is None:
        nothing: Any = dict.fromkeys(("observed_regression", "max_allowed_regression", "report_ref"))
        return SafetyCheck(passes=False, reason_codes=("no_valid_report",), **nothing)
    data = json.loads(proof.read_text(encoding="utf-8"))
    seen, most = data["failure_analysis"]["safety_regression"], data["criteria"]["max_safety_regression"]
    codes = tuple(map(str, data["safety_benchmark"]["reason_codes"]))
    codes += () if seen <= most else ("safety_regression_exceeded",)
    passes = seen <= most and data["safety_benchmark"]["promotion_allowed"] is True
    return SafetyCheck(
        passes=passes,
        observed_regression=seen,
        max_allowed_regression=most,
        reason_codes=() if passes else codes or ("promotion_not_allowed",),
        report_ref=str(proof),
    )


def _operated(drills: Path) -> Operations:
    """The newest drill of each kind, recomputed from its own store."""
    newest: dict[str, tuple[str, Path]] = {}
    broken: dict[str, tuple[str, ...]] = {}
    for path in sorted(drills.glob(f"**/{playbook.NAME}")):
        data = parse(path.read_bytes())
        kind = None if isinstance(data, Problem) else data.get("drill")
        if isinstance(data, Problem) or kind not in playbook.KINDS:
            broken[str(path)] = ("is no artifact of a drill",)
            continue
        newest[kind] = max(newest.get(kind, ("", path)), (str(data.get("generated_at")), path))
    problems = {kind: _problems(path) for kind, (_, path) in newest.items()}
    missing = {kind: ("there is none",) for kind in PROVES if kind not in newest}
    flags = {flag: kind in newest and not problems[kind] for kind, flag in PROVES.items()}
    log = newest["crash"][1].with_name("operator.log") if "crash" in newest else None
    return Operations(
        **flags,
        recovery_log_ref=None if log is None else str(log),
        problems={**{kind: found for kind, found in problems.items() if found}, **missing, **broken},
        playbooks={kind: str(path) for kind, (_, path) in newest.items()},
    )


def _problems(path: Path) -> tuple[str, ...]:
    """The problems of a drill; one with laxer limits than the default proves nothing."""
    artifact, found = playbook.validate(path)
    given = artifact.get("limits")
    lax = [
        f"limits: {name} must be at most {most:g}"
        for name, most in playbook.LIMITS.items()
        if not isinstance(given, Mapping) or not isinstance(given.get(name), int | float) or given[name] > most
    ]
    return (*found, *lax)


def _written(path: Path | None) -> str | None:
    """The path of a file with content."""
    is_there = path is not None and path.is_file() and bool(path.read_text(encoding="utf-8", errors="replace").strip())
    return str(path) if is_there else None


def _told(bundle: Bundle) -> dict[str, Any]:
    parts: dict[str, Any] = {name: getattr(bundle, name) for name in ("benchmark", "safety", "operations")}
    sections: dict[str, Any] = {name: {**asdict(one), "pass": one.passes} for name, one in parts.items()}
    for one in sections.values():
        one.pop("passes", None)
    books = {name: getattr(bundle, name) for name in ("operator_runbook_ref", "incident_playbook_ref")}
    return {
        "schema_version": 1,
        **sections,
        "runbooks": books,
        "generated_at_epoch_ms": bundle.generated_at_epoch_ms,
        "sha256": dict(bundle.sha256),
        "decision": {
            "pass": not bundle.reason_codes,
            **{f"{name}_pass": one.passes for name, one in parts.items()},
            "runbooks_present": None not in books.values(),
            "reason_codes": list(bundle.reason_codes),
        },
    }
