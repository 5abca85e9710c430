"""What a drill left behind, the checks that follow from it, and its artifact with the documented fields.

A drill leaves a folder: its store, the ledger as events, a health snapshot, the transcript and the artifact. Every
check is computed from them, and `validate` computes all of it again. Only the times at which the drill itself acted (a
kill, a request) are its own word; the transcript has them as well.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput, HoldfastError, StoreError
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import Attempt, AttemptState, Rollout, RolloutState
from holdfast.contracts.run import LedgerEntry, RunRecord
from holdfast.store.check import check
from holdfast.store.store import open_store

STORE, CONFIG, TRANSCRIPT = "store.sqlite", "config.json", "operator.log"
EVENTS, HEALTH, MANIFEST, ANSWERS = "events.jsonl", "health.json", "running-manifest.json", "answers.jsonl"
BEFORE, AFTER = "before.jsonl", "after.jsonl"
ALL = 2**31  # more rollouts than a run has
NEVER_S = 1e9  # JSON knows no infinity
NO_ROOM = 5  # the exit code of a store without room


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedEvent:
    """Something that was done, and when."""

    name: str
    at: float  # unix seconds
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillCheck:
    """One condition, and what was found."""

    name: str
    holds: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a drill left behind."""

    folder: Path
    marks: tuple[TimedEvent, ...]
    limits: Mapping[str, float]  # seconds
    entries: tuple[LedgerEntry, ...]
    run: RunRecord | None
    tries: Mapping[str, tuple[Rollout, tuple[Attempt, ...]]]  # by rollout
    problems: tuple[str, ...]  # of the store
    live: Mapping[str, str | None]  # policy → version

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for _, tried in self.tries.values() for attempt in tried]

    def at(self, name: str) -> list[float]:
        """Times of these marks; those with a phase are about other runs."""
        return [mark.at for mark in self.marks if mark.name == name and "phase" not in mark.facts]

    def requested(self, wanted: str) -> list[float]:
        """When a state was requested, by the ledger."""
        return [entry.at for entry in self.entries if entry.kind == "order" and entry.body.get("wanted") == wanted]

    def taken_up(self, run: str) -> list[float]:
        return [
            entry.at for entry in self.entries if entry.kind == "run" and entry.run == run and "resume" in entry.body
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillResult:
    checks: tuple[DrillCheck, ...]
    measured: Mapping[str, float]

    @property
    def reasons(self) -> list[str]:
        return [f"{drill_check.name}: {drill_check.found}" for drill_check in self.checks if not drill_check.holds]


def gather(folder: Path, run: str | None, marks: Sequence[TimedEvent], limits: Mapping[str, float]) -> Facts:
    with open_store(str(folder / STORE), create=False, migrate=False) as store:
        problems = [f"{part.name}: {text}" for part in check(store) for text in part.problems]
        found = None if run is None else store.runs.get(run)
        rollouts = [] if found is None else store.views.rollouts(found.id, most=ALL)
        return Facts(
            folder=folder,
            marks=tuple(marks),
            limits=limits,
            entries=tuple(store.ledger.entries()),
            run=found,
            tries={rollout.id: (rollout, tuple(store.views.attempts(rollout.id))) for rollout in rollouts},
            problems=tuple(problems),
            live={one: live.id if (live := store.releases.live(one)) else None for one in store.releases.policies()},
        )


def recompute(kind: str, facts: Facts) -> DrillResult:
    """All checks and figures of a drill of this kind."""
    measured: dict[str, float] = {}
    own = {"pause": _pause, "rollback": _rollback, "soak": _soak}.get(kind, _job)
    checks = [*_evidence(facts), *own(facts, measured)]
    if kind == "crash":
        checks += [*_phases(facts, measured), *_serving(facts, measured)]
    extra = {"disk": _disk, "upgrade": _upgrade}.get(kind)
    checks += [] if extra is None else extra(facts)
    return DrillResult(checks=tuple(checks), measured={name: round(value, 6) for name, value in measured.items()})


def health(facts: Facts) -> dict[str, Any]:
    """A snapshot of the store."""
    rollouts = Counter(str(rollout.status) for rollout, _ in facts.tries.values())
    return {
        "health_state": "failing" if facts.problems else "healthy",
        "problems": list(facts.problems),
        "run_id": None if facts.run is None else facts.run.id,
        "run_state": None if facts.run is None else str(facts.run.state),
        "drivers": None if facts.run is None else facts.run.driver,
        "rollouts": dict(sorted(rollouts.items())),
        "attempts": dict(sorted(Counter(str(attempt.status) for attempt in facts.attempts).items())),
        "live": dict(facts.live),
        "ledger_entries": len(facts.entries),
        "ledger_head": facts.entries[-1].sha256 if facts.entries else None,
    }


def events(facts: Facts) -> str:
    return "".join(json.dumps(encode(entry), sort_keys=True) + "\n" for entry in facts.entries)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _evidence(facts: Facts) -> Iterator[DrillCheck]:
    """Of every drill: the store is sound, and the files agree with it."""
    yield _check("the store is sound", not facts.problems, *facts.problems[:1], "every part of the check is clean")
    is_same = (facts.folder / EVENTS).read_text(encoding="utf-8") == events(facts)
    yield _check("the events are the ledger", is_same, f"{len(facts.entries)} entries, chained")
    kept = json.loads((facts.folder / HEALTH).read_text(encoding="utf-8"))
    yield _check("the health snapshot is true", kept == health(facts), health(facts)["health_state"])
    lines = set((facts.folder / TRANSCRIPT).read_text(encoding="utf-8").splitlines())
    missing = [
        mark.name
        for mark in facts.marks
        if f"{mark.at:.6f} * {mark.name} {json.dumps(dict(mark.facts), sort_keys=True)}" not in lines
    ]
    yield _check("the transcript has every mark", not missing, *missing[:1], f"{len(facts.marks)} marks")


def _job(facts: Facts, measured: dict[str, float]) -> Iterator[DrillCheck]:
    """An interrupted run was resumed and finished: nothing lost, nothing done twice."""
    run, stopped, taken = _run(facts), facts.at("killed") or facts.at("stopped"), facts.taken_up(_run(facts).id)
    manifest = json.loads((facts.folder / MANIFEST).read_text(encoding="utf-8"))
    tasks = len(json.loads((facts.folder / CONFIG).read_text(encoding="utf-8"))["optimize"])
    was = manifest["run"]
    is_running = was["id"] == run.id and was["state"] == "running" and 0 < manifest["succeeded"] < tasks
    message = f"{manifest['succeeded']} of {tasks} were done"
    yield _check("it ran when it was stopped", is_running and bool(stopped), message)
    held = sum(_is_open(attempt, stopped[0]) for attempt in facts.attempts) if stopped else 0
    yield _check("it was under load", held > 0, f"{held} attempts were open")
    is_taken = len(taken) >= len(stopped) > 0 and run.driver == len(taken) + 1 and taken[-1] > stopped[-1]
    yield _check("another driver took it up", is_taken, f"{len(stopped)} stops, {len(taken)} times taken up")
    yield _check("it came to its end", run.state == "completed", str(run.state))
    done = [rollout for rollout, _ in facts.tries.values() if rollout.status is RolloutState.SUCCEEDED]
    yield _check("no task was lost", len(done) == len(facts.tries) == tasks, f"{len(done)} of {tasks} done")
    twice = [rollout.id for rollout, tried in facts.tries.values() if sum(map(_succeeded, tried)) != 1]
    yield _check("no task was done twice", not twice, *twice[:1], "one answer for each")
    ended = [attempt.ended_at for attempt in facts.attempts if _succeeded(attempt) and attempt.ended_at is not None]
    kept = sum(at <= stopped[0] for at in ended) if stopped else 0
    found = f"{kept} done before the first stop"
    yield _check("what was done was kept", kept >= manifest["succeeded"], found)
    ends = [_first(ended, at) for at in taken[-len(stopped) :]]
    since = facts.at("upgraded") or stopped  # a schema is brought up to date by hand: from then on it counts
    known = [end - at for at, end in zip(since, ends, strict=False) if end is not None]
    is_soon = 0 < len(known) == len(stopped) and max(known) <= facts.limits["recovery_s"]
    measured |= {"recovery_s": max(known)} if known else {}
    yield _check("it worked again in time", is_soon, f"{_seconds(known)}, at most {facts.limits['recovery_s']:g} s")


def _phases(facts: Facts, measured: dict[str, float]) -> Iterator[DrillCheck]:
    """A learning run was killed in each phase and resumed; every step is there once, and it finished."""
    killed = [mark for mark in facts.marks if mark.name == "killed" and "phase" in mark.facts]
    for mark in killed:
        phase, back = mark.facts["phase"], _first(facts.taken_up(str(mark.facts["run"])), mark.at)
        measured |= {} if back is None else {f"{phase}_s": back - mark.at}
        found = "never" if back is None else f"{back - mark.at:.2f} s after"
        yield _check(f"killed while {phase}: it was taken up", back is not None, found)
    for run in sorted({str(mark.facts["run"]) for mark in killed}):
        own = [entry for entry in facts.entries if entry.run == run]
        steps = [entry.body.get("step") for entry in own if entry.kind in ("update", "step")]
        is_whole = bool(steps) and steps == list(range(1, len(steps) + 1))
        yield _check(f"{run}: every step is there once", is_whole, f"{len(steps)} steps")
        ends = [str(entry.body["end"]) for entry in own if entry.kind == "run" and "end" in entry.body]
        yield _check(f"{run}: it came to its end", ends[-1:] == ["completed"], *ends[-1:], "it did not")


def _serving(facts: Facts, measured: dict[str, float]) -> Iterator[DrillCheck]:
    """A service was killed while a canary answered: it answers again, and each caller keeps the same version."""
    for killed in (mark for mark in facts.marks if mark.name == "service killed"):
        answers = [one for one in _answers(facts) if not one["error"]]
        back = _first([answer["ended"] for answer in answers], killed.at)
        measured |= {} if back is None else {"serving_s": back - killed.at}
        found = "never" if back is None else f"{back - killed.at:.2f} s after"
        yield _check("killed while serving: it answers again", back is not None, found)
        by: dict[int, set[str]] = {}
        for answer in answers:
            by.setdefault(answer["caller"], set()).add(answer["version"])
        moved = sorted(caller for caller, versions in by.items() if len(versions) > 1)
        found = f"{len(by)} callers, {len(moved)} with another version, {len(set().union(*by.values()))} versions"
        yield _check("killed while serving: everybody keeps their version", bool(by) and not moved, found)


def _answers(facts: Facts) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (facts.folder / ANSWERS).read_text(encoding="utf-8").splitlines()]


def _disk(facts: Facts) -> Iterator[DrillCheck]:
    """It reported a full disk in one line, with the exit code for it."""
    lines = (facts.folder / TRANSCRIPT).read_text(encoding="utf-8").splitlines()
    said = [line.partition(" ")[2] for line in lines if line.partition(" ")[2].startswith(f"exit {NO_ROOM}: holdfast:")]
    yield _check("it said that there was no room", bool(said), *said[:1], "nothing was said")


def _upgrade(facts: Facts) -> Iterator[DrillCheck]:
    """All records of the older store are there after the upgrade, unchanged."""
    before, after = (  # but for the first line, which tells of the export itself
        lines[1:]
        for lines in ((facts.folder / name).read_text(encoding="utf-8").splitlines() for name in (BEFORE, AFTER))
    )
    changed = len(set(before) ^ set(after))
    found = f"{len(before)} records, {changed} differ"
    yield _check("nothing was changed by the upgrade", len(before) > 0 and before == after, found)
    schemas = [(str(mark.facts["before"]), str(mark.facts["after"])) for mark in facts.marks if mark.name == "upgraded"]
    is_newer = bool(schemas) and schemas[-1][0] < schemas[-1][1]
    kills = sum(mark.name == "interrupted" for mark in facts.marks)
    found = f"{schemas[-1][0]} to {schemas[-1][1]}, after {kills} that were killed" if schemas else "no upgrade"
    yield _check("the schema is a newer one", is_newer, found)


def _pause(facts: Facts, measured: dict[str, float]) -> Iterator[DrillCheck]:
    """Pause drains, freeze hands back, resume continues, cancel interrupts: by the times of commands and attempts."""
    run, limit = _run(facts), facts.limits["obey_s"]
    paused, frozen, ended = (facts.requested(name)[:1] for name in ("paused", "frozen", "cancelled"))
    resumed = facts.requested("running")
    if not (paused and frozen and ended and len(resumed) >= 2):
        yield _check("every order is in the ledger", False, "pause, freeze, two resumes and a cancel are not there")
        return
    yield _check("every order is in the ledger", True, "pause, resume, freeze, resume, cancel")
    for name, at, until in (("paused", paused[0], resumed[0]), ("frozen", frozen[0], resumed[1])):
        begun = [attempt.started_at - at for attempt in facts.attempts if at < attempt.started_at < until]
        measured[f"{name}_claim_s"] = max(begun, default=0.0)
        found = f"last claim {measured[f'{name}_claim_s']:.3f} s after, {until - at:.1f} s {name}"
        yield _check(f"{name}: nothing new is begun", measured[f"{name}_claim_s"] <= limit, found)
    held = [attempt for attempt in facts.attempts if _is_open(attempt, paused[0])]
    drained = [attempt for attempt in held if attempt.status is AttemptState.SUCCEEDED and attempt.ended_at is not None]
    measured["drain_s"] = max((_after(attempt, paused[0]) for attempt in held), default=0.0)
    found = f"{len(drained)} of {len(held)} finished, the last after {measured['drain_s']:.3f} s"
    yield _check("paused: what ran was finished", 0 < len(held) == len(drained), found)
    back = [attempt for attempt in facts.attempts if _is_open(attempt, frozen[0])]
    released = [attempt for attempt in back if attempt.status is AttemptState.RELEASED]
    measured["freeze_s"] = max((_after(attempt, frozen[0]) for attempt in back), default=0.0)
    faults = sum(facts.tries[attempt.rollout][0].faults for attempt in released)
    found = f"{len(released)} of {len(back)} handed back in {measured['freeze_s']:.3f} s, {faults} attempts charged"
    yield _check("frozen: what ran was handed back", len(released) > 0 and faults == 0, found)
    yield _check("frozen: at once", measured["freeze_s"] <= limit, f"{measured['freeze_s']:.3f} s")
    starts = [attempt.started_at for attempt in facts.attempts]
    gaps = [None if (first := _first(starts, at)) is None else first - at for at in resumed[:2]]
    known = [gap for gap in gaps if gap is not None]
    measured |= {"resume_s": max(known)} if known else {}
    is_on = len(known) == 2 and max(known) <= limit
    yield _check("resumed: it goes on", is_on, f"{_seconds(known)} after")
    yield from _cancelled(facts, ended[0], limit, measured)
    yield _check("the run is cancelled", run.state == "cancelled", str(run.state))


def _cancelled(facts: Facts, at: float, limit: float, measured: dict[str, float]) -> Iterator[DrillCheck]:
    """The command itself closes the attempts; the driver's last entry shows that the work stopped."""
    cut = [
        attempt
        for attempt in facts.attempts
        if attempt.started_at <= at and (attempt.ended_at is None or attempt.ended_at >= at)
    ]
    interrupted = sum(attempt.status is AttemptState.CANCELLED for attempt in cut)
    late = sum(attempt.started_at > at + limit for attempt in facts.attempts)
    found = f"{interrupted} of {len(cut)} interrupted, {late} begun later"
    yield _check("cancelled: what ran was interrupted", bool(interrupted) and not late, found)
    ends = [entry.at - at for entry in facts.entries if entry.kind == "run" and entry.body.get("end") == "cancelled"]
    ends += [_after(attempt, at) for attempt in cut]
    measured["cancel_s"] = max(ends, default=NEVER_S)
    found = f"it was over {measured['cancel_s']:.3f} s after"
    yield _check("cancelled: at once", measured["cancel_s"] <= limit, found)
    open_ = [rollout.id for rollout, _ in facts.tries.values() if rollout.ended_at is None]
    yield _check("cancelled: nothing is left open", not open_, *open_[:1], f"{len(facts.tries)} rollouts")


def _rollback(facts: Facts, measured: dict[str, float]) -> Iterator[DrillCheck]:
    """The answering version changes in time, and no request fails."""
    limit = facts.limits["obey_s"]
    answers = _answers(facts)
    taken = [entry for entry in facts.entries if entry.kind == "release" and entry.body.get("roll_back")]
    if not taken:
        yield _check("the rollback is in the ledger", False, "there is none")
        return
    bad, at = str(taken[-1].body["roll_back"]), taken[-1].at
    good = next(iter(facts.live.values()), None)
    yield _check("the rollback is in the ledger", good is not None and good != bad, f"{bad} to {good}")
    slipped = _first([answer["ended"] for answer in answers if answer["version"] == bad], 0.0) or at
    before = Counter(answer["version"] for answer in answers if slipped <= answer["began"] and answer["ended"] < at)
    yield _check("the bad one answered before", set(before) == {bad}, _counted(before))
    failed = [answer["error"] for answer in answers if answer.get("error")]
    yield _check("no request failed", not failed, *failed[:1], f"{len(answers)} requests")
    changed = _first([answer["ended"] for answer in answers if answer["version"] == good], at)
    measured |= {} if changed is None else {"rollback_s": changed - at}
    found = "it never did" if changed is None else f"{changed - at:.3f} s after the order"
    yield _check("the good one answers in time", changed is not None and changed - at <= limit, found)
    late = Counter(answer["version"] for answer in answers if answer["began"] > at + limit)
    yield _check("and only it, from then on", set(late) == {good}, _counted(late))


WARM = 0.25  # of a soak, after which its memory must not grow any more


def _soak(facts: Facts, measured: dict[str, float]) -> Iterator[DrillCheck]:
    """Of every run: all tasks once; and the room that lived all along did not grow."""
    runs = [str(mark.facts["run"]) for mark in facts.marks if mark.name == "ended"]
    lost, twice, done, open_ = 0, 0, 0, list[str]()
    with open_store(str(facts.folder / STORE), create=False, migrate=False) as store:
        for run in runs:
            record = store.runs.get(run)
            open_ += [run] if record.state == "running" else []
            if record.kind != "optimize":
                continue
            for rollout in store.views.every(run):
                answers = sum(map(_succeeded, store.views.attempts(rollout.id)))
                lost, twice, done = lost + (answers == 0), twice + (answers > 1), done + (answers == 1)
    accidents = Counter(mark.name for mark in facts.marks if mark.name in ACCIDENTS)
    measured |= {"rollouts": done, "runs": len(runs), **{name.replace(" ", "_"): n for name, n in accidents.items()}}
    yield _check("there were accidents", accidents["killed"] > 0, _counted(accidents))
    yield _check("every run came to its end", bool(runs) and not open_, *open_[:1], f"{len(runs)} runs")
    yield _check("no task was lost", not lost, f"{lost} of {done + lost + twice} lost")
    yield _check("no task was done twice", not twice, f"{twice} of {done + lost + twice} twice")
    looks = [(mark.at, float(mark.facts["room_mb"])) for mark in facts.marks if mark.name == "memory"]
    warm = [mb for _, mb in looks[int(WARM * len(looks)) :]]
    grown = max(warm[len(warm) // 2 :]) - max(warm[: len(warm) // 2 + 1]) if len(warm) > 1 else 0.0
    minutes = (facts.marks[-1].at - facts.marks[0].at) / 60
    measured |= {"grown_mb": grown, "minutes": minutes}
    used = [float(mark.facts["cpu_s"]) for mark in facts.marks if mark.name == "rested"]
    measured |= {"cpu_share": used[-1] / (60 * minutes)} if used else {}
    limit = facts.limits.get("grown_mb", LIMITS["grown_mb"])
    yield _check("the room did not grow", grown <= limit, f"{grown:+.1f} MB in its second half, at most {limit:g}")


ACCIDENTS = ("killed", "paused", "stopped", "service killed", "clock moved")


def _check(name: str, holds: bool, *found: str) -> DrillCheck:
    """A check with the first of these findings."""
    return DrillCheck(name=name, holds=holds, found=found[0])


def _run(facts: Facts) -> RunRecord:
    if facts.run is None:
        raise StoreError("the drill's run", why="is not named")
    return facts.run


def _is_open(one: Attempt, at: float) -> bool:
    return one.started_at <= at and (one.ended_at is None or one.ended_at > at)


def _after(one: Attempt, at: float) -> float:
    return NEVER_S if one.ended_at is None else one.ended_at - at


def _succeeded(one: Attempt) -> bool:
    return one.status is AttemptState.SUCCEEDED


def _first(times: Sequence[float | None], after: float) -> float | None:
    return min((at for at in times if at is not None and at > after), default=None)


def _seconds(known: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f} s" for value in known) or "never"


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{n} by {name}" for name, n in sorted(counts.items(), key=str)) or "none"


NAME = "playbook.json"
KEPT = (CONFIG, TRANSCRIPT, EVENTS, HEALTH, MANIFEST, ANSWERS, BEFORE, AFTER)  # evidence, beside the store
KINDS = {
    "crash": "m24_rl_resume_after_crash_playbook",
    "rollback": "m24_rl_rollback_drill",
    "pause": "m24_rl_pause_resume_drill",
    "disk": "m24_rl_disk_full_drill",
    "upgrade": "m24_rl_upgrade_drill",
    "soak": "m24_rl_soak",
}
RECOVERED = "job_recovered_after_restart"
REASONS = dict.fromkeys(("crash", "disk", "upgrade"), RECOVERED) | {
    "pause": "run_obeyed_its_operator",
    "rollback": "version_taken_back",
    "soak": "nothing_lost_nothing_twice",
}
# Within which it works again, within which an order is obeyed, and by how much a room may grow.
LIMITS = {"recovery_s": 60.0, "obey_s": 1.0, "grown_mb": 16.0}
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
    """What a drill returns, beside its marks."""

    run: str | None
    crash: str = ""  # the command that was the accident
    restart: str = ""  # the command that ended it


def write_up(
    kind: str, folder: Path, told: Story, marks: Sequence[TimedEvent], limits: Mapping[str, float], *, began: float
) -> Path:
    """Writes the artifact of a finished drill and the evidence beside it; returns its path."""
    facts = gather(folder, told.run, marks, limits)
    (folder / EVENTS).write_text(events(facts), encoding="utf-8")
    write(folder / HEALTH, health(facts))
    result = recompute(kind, facts)
    kept = [name for name in KEPT if (folder / name).is_file()]
    moment = datetime.fromtimestamp(began, UTC)
    artifact = {
        "schema_version": 1,
        "artifact_kind": KINDS[kind],
        "run_id": f"m24-recovery-{moment:%Y%m%d-%H%M%S}",
        "drill": kind,
        "generated_at": f"{moment:%Y-%m-%dT%H:%M:%SZ}",
        "holdfast_version": version("holdfast"),
        "crash_drill": {"state_dir": ".", "running_manifest_path": MANIFEST, "crash_simulation_command": told.crash},
        "resume_drill": {"restart_command": told.restart, "resumed_job_id": told.run, "checkpoint_path": STORE},
        "evidence": {
            "events_log_path": EVENTS,
            "health_snapshot_path": HEALTH,
            "operator_log_path": TRANSCRIPT,
            "sha256": {name: digest(folder / name) for name in kept},
        },
        "marks": [asdict(mark) for mark in marks],
        "limits": dict(limits),
        "measured": dict(result.measured),
        "checks": [asdict(drill_check) for drill_check in result.checks],
        "outcome": outcome(kind, result),
    }
    write(folder / NAME, artifact)
    return folder / NAME


def validate(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The artifact, and its problems; none: it is true, and the drill passed."""
    artifact = _read(path)
    problems = list(_shape(artifact))
    if problems:
        return artifact, tuple(problems)
    folder, kind = path.parent, str(artifact["drill"])
    marks = [TimedEvent(name=one["name"], at=one["at"], facts=one["facts"]) for one in artifact["marks"]]
    try:
        facts = gather(folder, artifact["resume_drill"]["resumed_job_id"], marks, artifact["limits"])
        result = recompute(kind, facts)
    except (HoldfastError, OSError, ValueError, KeyError, IndexError) as error:
        return artifact, (f"cannot be computed again: {error}",)
    told = [asdict(drill_check) for drill_check in result.checks]
    for was, now in zip(artifact["checks"], told, strict=False):
        if was != now:
            problems.append(f"{now['name']}: the artifact says {was.get('found')!r}, the evidence {now['found']!r}")
    if len(told) != len(artifact["checks"]):
        problems.append(f"checks: the artifact has {len(artifact['checks'])}, the evidence gives {len(told)}")
    if dict(artifact["measured"]) != dict(result.measured):
        problems.append(f"measured: the artifact says {artifact['measured']}, the evidence {result.measured}")
    for name, sha256 in artifact["evidence"]["sha256"].items():
        if not (folder / name).is_file() or digest(folder / name) != sha256:
            problems.append(f"{name}: is not the file that the drill left")
    if outcome(kind, result) != artifact["outcome"]:
        problems.append("outcome: does not follow from the checks")
    return artifact, (*problems, *result.reasons)


def outcome(kind: str, found: DrillResult) -> dict[str, Any]:
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
        found, why = json.loads(path.read_text(encoding="utf-8")), "is not an object"
    except OSError as error:
        found, why = None, error.strerror or str(error)
    except ValueError as error:
        found, why = None, f"is not JSON: {error}"
    if not isinstance(found, dict):
        raise BadInput(str(path), why=why, remedy=f"give a drill's {NAME}")
    return found


def write(path: Path, told: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(told, indent=2, sort_keys=True, allow_nan=False) + "\n", encoding="utf-8")
