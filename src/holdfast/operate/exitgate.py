"""The exit gate of a milestone: proofs, safety, operations and runbooks, each checked again.

The documented bundle has a flag for each. Published proofs are recomputed from their samples and drills from their
stores; a runbook is a file with content. Missing or false evidence closes the gate, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.operate import playbook
from holdfast.operate.playbook import digest
from holdfast.prove.reports.document import PROOF, Problem, catalogue, parse
from holdfast.prove.reports.validate import validate

MIN_PASSED, MAX_FAILED, MAX_INVALID = 1, 0.5, 0.2  # of the published proofs, as documented
PROVES = {"pause": "pause_resume_proven", "rollback": "rollback_proven", "crash": "recovery_drill_proven"}
PARTS = ("benchmark", "safety", "operations")
Section = dict[str, Any]  # of the bundle


def gather(reports: Path, drills: Path, *, runbook: Path | None, incidents: Path | None, now: float) -> Section:
    """The documented bundle: the evidence, checked again, and the decision that follows from it."""
    read = {report.path: parse(report.path.read_bytes()) for report in catalogue(reports) if report.kind == PROOF}
    times = {path: "" if isinstance(data, Problem) else str(data.get("generated_at")) for path, data in read.items()}
    proofs = sorted(read, key=lambda path: (times[path], str(path)))
    benchmark, safety = _proved({path: read[path] for path in proofs})
    bundle: Section = {"benchmark": benchmark, "safety": safety, "operations": _operated(drills)}
    books = {"operator_runbook_ref": _written(runbook), "incident_playbook_ref": _written(incidents)}
    playbooks = bundle["operations"]["playbooks"].values()
    rests = [*proofs[-1:], *map(Path, playbooks), *(Path(book) for book in books.values() if book)]
    codes = [f"{part}_failed" for part in PARTS if not bundle[part]["pass"]]
    codes += [f"{name.removesuffix('_ref')}_missing" for name, one in books.items() if one is None]
    return {
        "schema_version": 1,
        **bundle,
        "runbooks": books,
        "generated_at_epoch_ms": int(now * 1000),
        "sha256": {str(path): digest(path) for path in rests},
        "decision": {
            "pass": not codes,
            **{f"{part}_pass": bundle[part]["pass"] for part in PARTS},
            "runbooks_present": None not in books.values(),
            "reason_codes": codes,
        },
    }


def name(bundle: Mapping[str, Any]) -> str:
    """The documented file name."""
    flags = "-".join(f"{part}-pass-{int(bundle[part]['pass'])}" for part in PARTS)
    return f"m24-rl-gate-evidence-bundle-v1-{flags}-{bundle['generated_at_epoch_ms']}.json"


def _proved(proofs: Mapping[Path, Any]) -> tuple[Section, Section]:
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
    benchmark = {
        "pass": not any(codes.values()),
        "pass_reports": passed,
        "fail_reports": failed,
        "invalid_files": invalid,
        "reason_codes": tuple(code for code, is_so in codes.items() if is_so),
        "report_ref": None if newest is None else str(newest),
    }
    return benchmark, _safe(None if newest is None or status[newest] == "invalid" else newest)


def _safe(proof: Path | None) -> Section:
    """From the newest proof, if it is valid; a regression above 0 is worse."""
    if proof is None:
        nothing = dict.fromkeys(("observed_regression", "max_allowed_regression", "report_ref"))
        return {"pass": False, "reason_codes": ("no_valid_report",), **nothing}
    data = json.loads(proof.read_text(encoding="utf-8"))
    seen, most = data["failure_analysis"]["safety_regression"], data["criteria"]["max_safety_regression"]
    codes = tuple(map(str, data["safety_benchmark"]["reason_codes"]))
    is_within = seen is not None and seen <= most
    codes += () if is_within or seen is None else ("safety_regression_exceeded",)
    passes = is_within and data["safety_benchmark"]["promotion_allowed"] is True
    return {
        "pass": passes,
        "observed_regression": seen,
        "max_allowed_regression": most,
        "reason_codes": () if passes else codes or ("promotion_not_allowed",),
        "report_ref": str(proof),
    }


def _operated(drills: Path) -> Section:
    """The newest drill of each kind, recomputed from its own store; `problems`: why a drill proves nothing."""
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
    return {
        "pass": all(flags.values()),
        **flags,
        "recovery_log_ref": None if log is None else str(log),
        "problems": {**{kind: found for kind, found in problems.items() if found}, **missing, **broken},
        "playbooks": {kind: str(path) for kind, (_, path) in newest.items()},
    }


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
