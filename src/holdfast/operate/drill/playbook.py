"""The artifact of a drill with its documented fields, and whether it is true: all of it is computed again.

A drill leaves a folder: its store, the ledger as events, a snapshot of health, the transcript, and this artifact.
Nothing that it claims is believed; what follows from the folder is `aftermath`'s to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.operate.drill.aftermath import (
    AFTER,
    ANSWERS,
    BEFORE,
    EVENTS,
    HEALTH,
    MANIFEST,
    Recount,
    digest,
    events,
    gather,
    health,
    recount,
)
from holdfast.operate.drill.scratch import CONFIG, STORE, TRANSCRIPT, TimedEvent

NAME = "playbook.json"
KEPT = (CONFIG, TRANSCRIPT, EVENTS, HEALTH, MANIFEST, ANSWERS, BEFORE, AFTER)  # evidence, beside the store
KINDS = {
    "crash": "m24_rl_resume_after_crash_playbook",
    "rollback": "m24_rl_rollback_drill",
    "pause": "m24_rl_pause_resume_drill",
    "disk": "m24_rl_disk_full_drill",
    "upgrade": "m24_rl_upgrade_drill",
}
RECOVERED = "job_recovered_after_restart"
REASONS = dict.fromkeys(("crash", "disk", "upgrade"), RECOVERED) | {
    "pause": "run_obeyed_its_operator",
    "rollback": "version_taken_back",
}
LIMITS = {"recovery_s": 60.0, "obey_s": 1.0}  # within which it works again, and within which an order is obeyed
RUN_ID = re.compile(r"m24-recovery-[0-9-]+")
FIELDS = {
    "crash_drill.state_dir": "",
    "crash_drill.running_manifest_path": ".json",
    "crash_drill.crash_simulation_command": "",
    "resume_drill.restart_command": "",
    "resume_drill.resumed_job_id": "",
    "resume_drill.checkpoint_path": ".sqlite",
    "evidence.events_log_path": "events.jsonl",
    "evidence.health_snapshot_path": ".json",
    "evidence.operator_log_path": ".log",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What a drill hands on, beside its marks."""

    run: str | None
    crash: str = ""  # the command that was the accident
    restart: str = ""  # the command that ended it


def write_up(
    kind: str, folder: Path, told: Story, marks: Sequence[TimedEvent], limits: Mapping[str, float], *, began: float
) -> Path:
    """The artifact of a drill that is over, with the evidence beside it; where it lies."""
    facts = gather(folder, told.run, marks, limits)
    (folder / EVENTS).write_text(events(facts), encoding="utf-8")
    write(folder / HEALTH, health(facts))
    found = recount(kind, facts)
    kept = [name for name in KEPT if (folder / name).is_file()]
    moment = datetime.fromtimestamp(began, UTC)
    artifact = {
        "schema_version": 1,
        "artifact_kind": KINDS[kind],
        "run_id": f"m24-recovery-{moment:%Y%m%d-%H%M%S}",
        "drill": kind,
        "generated_at": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        "holdfast_version": version("holdfast"),
        "crash_drill": {
            "state_dir": ".",
            "running_manifest_path": MANIFEST,
            "crash_simulation_command": told.crash,
        },
        "resume_drill": {
            "restart_command": told.restart,
            "resumed_job_id": told.run,
            "checkpoint_path": STORE,
        },
        "evidence": {
            "events_log_path": EVENTS,
            "health_snapshot_path": HEALTH,
            "operator_log_path": TRANSCRIPT,
            "sha256": {name: digest(folder / name) for name in kept},
        },
        "marks": [{"name": one.name, "at": one.at, "facts": dict(one.facts)} for one in marks],
        "limits": dict(limits),
        "measured": dict(found.measured),
        "checks": [asdict(one) for one in found.checks],
        "outcome": outcome(kind, found),
    }
    write(folder / NAME, artifact)
    return folder / NAME


def validate(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The artifact, and what of it is not true or does not pass; nothing: it is as it says, and the drill passed."""
    artifact = _read(path)
    problems = [*_shape(artifact)]
    if problems:
        return artifact, tuple(problems)
    folder, kind = path.parent, str(artifact["drill"])
    marks = [TimedEvent(name=one["name"], at=one["at"], facts=one["facts"]) for one in artifact["marks"]]
    try:
        facts = gather(folder, artifact["resume_drill"]["resumed_job_id"], marks, artifact["limits"])
        found = recount(kind, facts)
    except (HoldfastError, OSError, ValueError, KeyError, IndexError) as error:
        return artifact, (f"cannot be computed again: {error}",)
    told = [{"name": one.name, "holds": one.holds, "found": one.found} for one in found.checks]
    for was, now in zip(artifact["checks"], told, strict=False):
        if was != now:
            problems.append(f"{now['name']}: the artifact says {was.get('found')!r}, the evidence {now['found']!r}")
    if len(told) != len(artifact["checks"]):
        problems.append(f"checks: the artifact has {len(artifact['checks'])}, the evidence gives {len(told)}")
    if dict(artifact["measured"]) != dict(found.measured):
        problems.append(f"measured: the artifact says {artifact['measured']}, the evidence {found.measured}")
    for name, sha256 in artifact["evidence"]["sha256"].items():
        if not (folder / name).is_file() or digest(folder / name) != sha256:
            problems.append(f"{name}: is not the file that the drill left")
    if outcome(kind, found) != artifact["outcome"]:
        problems.append("outcome: does not follow from the checks")
    return artifact, (*problems, *found.reasons)


def outcome(kind: str, found: Recount) -> dict[str, Any]:
    passed = not found.reasons
    return {
        "resume_status": "succeeded" if passed else "failed",
        "recovery_reason_code": REASONS[kind] if passed else "drill_failed",
        "pass": passed,
        "reasons": found.reasons,
    }


def _shape(artifact: Mapping[str, Any]) -> Iterator[str]:
    """The documented fields."""
    if artifact.get("schema_version") != 1 or artifact.get("drill") not in KINDS:
        yield f"schema_version and drill: must be 1 and one of {', '.join(KINDS)}"
        return
    kind = str(artifact["drill"])
    if artifact.get("artifact_kind") != KINDS[kind]:
        yield f"artifact_kind: must be {KINDS[kind]}"
    if not RUN_ID.fullmatch(str(artifact.get("run_id"))):
        yield "run_id: must be m24-recovery- and digits"
    for place, end in FIELDS.items():
        section, _, name = place.partition(".")
        value = artifact.get(section, {}).get(name) if isinstance(artifact.get(section), Mapping) else None
        is_needed = kind in ("crash", "disk", "upgrade") or section == "evidence"
        if is_needed and not (isinstance(value, str) and value.strip() and value.endswith(end)):
            yield f"{place}: must be text{f' that ends with {end}' if end else ''}"
    for name, wanted in (("marks", list), ("checks", list), ("measured", dict), ("limits", dict), ("outcome", dict)):
        if not isinstance(artifact.get(name), wanted):
            yield f"{name}: is missing"


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(str(path), why=error.strerror or str(error), remedy=f"give a drill's {NAME}") from None
    except ValueError as error:
        raise BadInput(str(path), why=f"is not JSON: {error}", remedy=f"give a drill's {NAME}") from None
    if not isinstance(found, dict):
        raise BadInput(str(path), why="is not an object", remedy=f"give a drill's {NAME}")
    return found


def write(path: Path, told: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(told, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
