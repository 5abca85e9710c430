"""The exit gate of a milestone: proofs, safety, operations and runbooks, each looked at anew, and closed without them.

The documented bundle has a flag for each of them. None of the flags is taken from anybody: published proofs are
computed again from their samples, drills from their stores, and a runbook is a file with something in it. What is
missing is a reason, and so is what is not true.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.operate.drill import playbook
from holdfast.operate.drill.playbook import digest
from holdfast.prove.reports.document import PROOF, catalogue
from holdfast.prove.reports.leaves import Problem, parse
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
    """All that the gate has looked at."""

    benchmark: Benchmark
    safety: SafetyCheck
    operations: Operations
    operator_runbook_ref: str | None
    incident_playbook_ref: str | None
    generated_at_epoch_ms: int
    sha256: Mapping[str, str] = field(default_factory=dict)  # of every file it rests on

    @property
    def reason_codes(self) -> tuple[str, ...]:
        """Why the gate is closed; none: it is open."""
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
    """What there is, looked at anew, and the whole of it as the documented record."""
    proofs = sorted(
        (found.path for found in catalogue(reports) if found.kind == PROOF),
        key=lambda path: (_moment(path), str(path)),
    )
    benchmark, safety = _proved(proofs)
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
    """The file's, as documented."""
    parts = {
        "benchmark": bundle.benchmark.passes,
        "safety": bundle.safety.passes,
        "operations": bundle.operations.passes,
    }
    flags = "-".join(f"{part}-pass-{int(passes)}" for part, passes in parts.items())
    return f"m24-rl-gate-evidence-bundle-v1-{flags}-{bundle.generated_at_epoch_ms}.json"


def _proved(proofs: list[Path]) -> tuple[Benchmark, SafetyCheck]:
    passed, failed, invalid = list[Path](), list[Path](), list[Path]()
    for path in proofs:
        data = parse(path.read_bytes())
        if isinstance(data, Problem) or validate(path):
            invalid.append(path)
        else:
            (passed if data["proof_status"] == "pass" else failed).append(path)
    valid = len(passed) + len(failed)
    newest = proofs[-1] if proofs else None
    codes = []
    if len(passed) < MIN_PASSED:
        codes.append("below_min_pass_entries")
    if valid and len(failed) / valid > MAX_FAILED:
        codes.append("fail_ratio_exceeded")
    if proofs and len(invalid) / len(proofs) > MAX_INVALID:
        codes.append("invalid_file_ratio_exceeded")
    if newest is not None and newest not in passed:
        codes.append("newest_report_failed")
    benchmark = Benchmark(
        passes=not codes,
        pass_reports=len(passed),
        fail_reports=len(failed),
        invalid_files=len(invalid),
        reason_codes=tuple(codes),
        report_ref=None if newest is None else str(newest),
    )
    return benchmark, _safe(newest if newest is not None and newest not in invalid else None)


def _safe(proof: Path | None) -> SafetyCheck:
    """Of the newest proof, where it is true; the regression is above 0 where it is worse."""
    if proof is None:
        return SafetyCheck(
            passes=False,
            observed_regression=None,
            max_allowed_regression=None,
            reason_codes=("no_valid_report",),
            report_ref=None,
        )
    data = json.loads(proof.read_text(encoding="utf-8"))
    seen, most = data["failure_analysis"]["safety_regression"], data["criteria"]["max_safety_regression"]
    reasons = data["safety_benchmark"]["reason_codes"]
    codes = tuple(map(str, reasons)) + (() if seen <= most else ("safety_regression_exceeded",))
    is_allowed = data["safety_benchmark"]["promotion_allowed"] is True
    return SafetyCheck(
        passes=seen <= most and is_allowed,
        observed_regression=seen,
        max_allowed_regression=most,
        reason_codes=() if seen <= most and is_allowed else codes or ("promotion_not_allowed",),
        report_ref=str(proof),
    )


def _operated(drills: Path) -> Operations:
    """The newest drill of each kind, computed again from its own store."""
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
    """What of a drill is not so; one that gave itself more time than is usual proves nothing here."""
    artifact, found = playbook.validate(path)
    given = artifact.get("limits")
    lax = [
        f"limits: {name} must be at most {most:g}"
        for name, most in playbook.LIMITS.items()
        if not isinstance(given, Mapping) or not isinstance(given.get(name), int | float) or given[name] > most
    ]
    return (*found, *lax)


def _written(path: Path | None) -> str | None:
    """A file that has something in it."""
    is_there = path is not None and path.is_file() and bool(path.read_text(encoding="utf-8", errors="replace").strip())
    return str(path) if is_there else None


def _moment(path: Path) -> str:
    data = parse(path.read_bytes())
    return "" if isinstance(data, Problem) else str(data.get("generated_at"))


def _told(bundle: Bundle) -> dict[str, Any]:
    def section(one: Any) -> dict[str, Any]:
        data = {key: value for key, value in asdict(one).items() if key != "passes"}
        return {"pass": one.passes, **data}

    codes = bundle.reason_codes
    return {
        "schema_version": 1,
        "benchmark": section(bundle.benchmark),
        "safety": section(bundle.safety),
        "operations": section(bundle.operations),
        "runbooks": {
            "operator_runbook_ref": bundle.operator_runbook_ref,
            "incident_playbook_ref": bundle.incident_playbook_ref,
        },
        "generated_at_epoch_ms": bundle.generated_at_epoch_ms,
        "sha256": dict(bundle.sha256),
        "decision": {
            "pass": not codes,
            "benchmark_pass": bundle.benchmark.passes,
            "safety_pass": bundle.safety.passes,
            "operations_pass": bundle.operations.passes,
            "runbooks_present": None not in (bundle.operator_runbook_ref, bundle.incident_playbook_ref),
            "reason_codes": list(codes),
        },
    }
