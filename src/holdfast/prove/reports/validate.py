"""Checks published reports, archives them and purges old ones.

A report is valid when it can be built again from its samples and every leaf is the same. It is read together with the
files it rests on, active or archived. Nothing is repaired; a figure that cannot be computed again is a problem.

Archiving copies a file, reads the copy back, compares, and only then removes the original; purging removes what is in
the archive and past its time. After a crash every report is still in at least one place, and a second run continues.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from holdfast.contracts.artifacts import sync
from holdfast.contracts.errors import BadInput, StoreCorrupt
from holdfast.contracts.evidence import Decision, Episode
from holdfast.contracts.records import decode
from holdfast.prove.reports import document, report
from holdfast.prove.reports.document import (
    KINDS,
    MISSING,
    PROOF,
    SAFETY,
    Document,
    Problem,
    ReportFile,
    ReportHead,
    Retention,
    Rule,
    differences,
    short,
)
from holdfast.prove.reports.report import Findings, ProofCriteria, ReportComparison, Side
from holdfast.store.artifacts import sha256_of, write_atomically

RESTS_ON: Mapping[str, tuple[str, ...]] = {
    "baseline": (),
    "trained": (),
    SAFETY: (),
    "significance": ("baseline", "trained"),
    "summary": ("baseline", "trained", "significance", SAFETY),
    PROOF: KINDS[:-1],
}
SAMPLE: Mapping[str, Rule] = {
    "task": document.text,
    "seed": document.whole(),
    "reward": document.number(-report.MOST, report.MOST),
    "safety_penalty": document.maybe(document.number(0.0, report.MOST)),
    "success": document.maybe(document.number(0.0, 1.0)),
    "latency_s": document.maybe(document.number(0.0, report.MOST)),
    "tokens": document.maybe(document.whole(0, 2**63)),
    "rollout": document.maybe(document.text),
}
PENALTIES: Mapping[str, Rule] = {
    "task": document.text,
    "seed": document.whole(),
    "baseline": document.maybe(document.number(0.0, report.MOST)),
    "trained": document.maybe(document.number(0.0, report.MOST)),
}


@dataclass(slots=True, kw_only=True)
class _Read:
    """One file as it was found, and what is wrong with it."""

    path: Path
    kind: str
    data: Document
    sha256: str
    problems: list[Problem] = field(default_factory=list)
    head: ReportHead | None = None

    def say(self, where: str, why: str, *, is_place: bool = False) -> None:
        self.problems.append(Problem(where=where, why=why, is_place=is_place))

    def take(self, where: str, rules: Mapping[str, Rule]) -> dict[str, Any] | None:
        """The values at a place, when each keeps its rule."""
        group: Any = self.data
        for name in where.split(".")[1:]:
            group = group.get(name, MISSING) if isinstance(group, dict) else MISSING
        return self.read(group, where, rules)

    def read(self, group: object, where: str, rules: Mapping[str, Rule]) -> dict[str, Any] | None:
        if not isinstance(group, dict):
            self.say(where, "is missing" if group is MISSING else "must be an object")
            return None
        before = len(self.problems)
        for name, rule in rules.items():
            why = rule(group[name]) if name in group else "is missing"
            if why is not None:
                message = f"is {short(group[name])}, and " if name in group else ""
                self.say(f"{where}.{name}", message + why)
        return {name: group[name] for name in rules} if len(self.problems) == before else None


def validate(path: Path) -> list[Problem]:
    """What is wrong with a report, a safety report or a proof; empty when it is true."""
    asked = _load(path, None)
    if isinstance(asked, Problem):
        return [asked]
    _check_head(asked)
    files = {asked.kind: asked}
    if asked.head is not None:
        for kind in RESTS_ON[asked.kind]:
            _fetch(files, asked, kind)
    _check_all(files)
    if asked.kind != PROOF and asked.head is not None:
        _check_against_proof(asked)
    is_moved = any(problem.is_place for problem in asked.problems)  # and with it, most likely, those beside it
    beside = [files[kind] for kind in KINDS if kind in files and kind != asked.kind]
    others = [
        replace(problem, where=f"{read.path.name}: {problem.where}")
        for read in beside
        for problem in read.problems
        if not (is_moved and problem.is_place)
    ]
    return list(dict.fromkeys(asked.problems + others))


def sound_head(path: Path) -> tuple[ReportHead | None, list[Problem]]:
    """Whether a file's head, seal and dates are right, without computing anything again: enough to move it."""
    read = _load(path, None)
    if isinstance(read, Problem):
        return None, [read]
    _check_head(read)
    _check_seal(read)
    if read.head is not None:
        for name, wanted in document.frame(read.head, read.kind).items():
            read.problems += differences(wanted, read.data.get(name, MISSING), f"$.{name}")
    return read.head, read.problems


def _load(path: Path, kind: str | None) -> _Read | Problem:
    """A file of a kind we know."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        return Problem(where="$", why=f"cannot be read: {error.strerror or error}")
    data = document.parse(raw)
    if isinstance(data, Problem):
        return data
    kind = kind or document.kind_of(path.name) or _kind_by_content(data)
    if kind is None:
        return Problem(where="$", why="is neither a report, nor a safety report, nor a proof")
    read = _Read(path=path, kind=kind, data=data, sha256=hashlib.sha256(raw).hexdigest())
    for where in document.not_finite(data, "$"):
        read.say(where, "must be a finite number")
    return read


def _kind_by_content(data: Document) -> str | None:
    if "report_kind" in data:
        return str(data["report_kind"]) if data["report_kind"] in document.REPORTS else None
    return PROOF if "artifacts" in data else SAFETY if "safety_regression_delta" in data else None


def _check_head(read: _Read) -> None:
    version = read.data.get("schema_version", MISSING)
    if type(version) is not int or version != document.SCHEMA:
        read.say("$.schema_version", f"is {short(version)}, and only {document.SCHEMA} is known")
        return
    head = read.read(read.data, "$", document.HEAD)
    suite = read.take("$.benchmark_suite", document.SUITE)
    kept = read.take("$.retention", document.RETENTION)
    said = read.take("$.publication", {"report_path": document.text})
    if head is None or suite is None or kept is None or said is None:
        return
    state, _, rest = said["report_path"].partition("/")
    path = f"reports/{document.active_path(read.kind, head['run_id'])}"
    if not state or rest != path:
        why = f"is {short(said['report_path'])}, and by $.run_id must be <state>/{path}"
        read.say("$.publication.report_path", why)
        return
    at, named = document.read_timestamp(head["generated_at"]), (suite["name"], suite["version"], suite["sha256"])
    try:
        kept_so = Retention(**kept)
        read.head = ReportHead(run_id=head["run_id"], generated_at=at, suite=named, retention=kept_so, state=state)
    except BadInput as error:
        read.say("$.retention", str(error))
        return
    _check_place(read, read.head)


def _check_place(read: _Read, head: ReportHead) -> None:
    """A file lies where it says: among the active ones, or in the archive."""
    lies = document.place_of(read.path).as_posix()
    for place in _places(head, read.kind):
        if lies.endswith(f"/reports/{place}"):
            return
    why = f"says that it lies at reports/{_places(head, read.kind)[0]}, and it is at {lies}"
    read.say("$.publication", why, is_place=True)


def _places(head: ReportHead, kind: str) -> tuple[str, str]:
    active = document.active_path(kind, head.run_id)
    return active, document.archived_path(kind, head.run_id, head.generated_at)


def _fetch(files: dict[str, _Read], asked: _Read, kind: str) -> None:
    """Read a file that the asked one rests on, from wherever it lies by now."""
    path = _find(asked, kind)
    if path is None:
        name = document.active_name(kind, asked.head.run_id) if asked.head else kind
        asked.say("$", f"rests on {name}, which is neither beside it nor in the archive")
        return
    problem = _load(path, kind)
    if isinstance(problem, Problem):
        asked.say("$", f"rests on {path.name}, where {problem.where} {problem.why}")
        return
    _check_head(problem)
    files[kind] = problem


def _find(asked: _Read, kind: str) -> Path | None:
    head = asked.head
    if head is None:
        return None
    lies = document.place_of(asked.path)
    roots = [Path(*lies.parts[: place + 1]) for place, part in enumerate(lies.parts) if part == "reports"]
    tries = [root / place for root in reversed(roots) for place in _places(head, kind)]
    tries += [lies.parent / name(kind, head.run_id) for name in (document.active_name, document.archived_name)]
    return next((path for path in tries if path.is_file()), None)


def _check_all(files: Mapping[str, _Read]) -> None:
    """Builds every file again, from its own inputs and from the files it rests on."""
    for read in files.values():
        _check_seal(read)
    head = next((files[kind].head for kind in KINDS if kind in files and files[kind].head), None)
    if head is None:
        return
    if set(files) == {SAFETY}:
        _check_safety_alone(files[SAFETY], head)
        return
    sides = {kind: _read_side(files[kind]) for kind in ("baseline", "trained") if kind in files}
    for kind, side in sides.items():
        if side is not None:
            _compare(files[kind], report.side_report(head, kind, side))
    findings = _find_again(files, sides.get("baseline"), sides.get("trained")) if "significance" in files else None
    _check_built(files, head, findings)


def _check_built(files: Mapping[str, _Read], head: ReportHead, found: Findings | None) -> None:
    decision = _read_decision(files["summary"]) if "summary" in files else None
    hashes = {kind: read.sha256 for kind, read in files.items()}
    for kind in ("significance", SAFETY, "summary", PROOF):
        if kind not in files:
            continue
        if found is None or isinstance(decision, Problem) or not set(RESTS_ON[kind]) <= set(files):
            _check_references(files[kind], hashes)
            if kind == PROOF:
                _check_pass(files[kind])
        else:
            _compare(files[kind], report.build_one(kind, head, found, decision, hashes))


def _check_seal(read: _Read) -> None:
    said = read.data.get("seal", MISSING)
    if not isinstance(said, dict):
        read.say("$.seal", "is missing" if said is MISSING else "must be an object")
        return
    for problem in differences(document.seal(read.data), said, "$.seal"):
        if re.fullmatch(r"\$\.seal(\.\w+)(\[\d+\])?", problem.where) and " must be " in problem.why:
            place = "$" + problem.where.removeprefix("$.seal")
            why = f"does not have the sha256 that {problem.where} says: one of the two was changed"
            problem = Problem(where=place, why=why)
        read.problems.append(problem)


def _read_side(read: _Read) -> Side | None:
    named = read.read(read.data, "$", {"checkpoint_id": document.text})
    rows = _read_rows(read, SAMPLE)
    if named is None or rows is None:
        return None
    episodes = tuple(Episode(safety_cost=row.pop("safety_penalty"), **row) for row in rows)
    return Side(checkpoint=named["checkpoint_id"], episodes=episodes) if _are_alike(read, episodes, episodes) else None


def _read_rows(read: _Read, rules: Mapping[str, Rule]) -> list[dict[str, Any]] | None:
    rows = read.data.get("samples", MISSING)
    if not isinstance(rows, list) or not rows:
        read.say("$.samples", "must be a list, and not empty: nothing can be recomputed without samples")
        return None
    taken = [read.read(row, f"$.samples[{place}]", rules) for place, row in enumerate(rows)]
    whole = [{**row, **_later(given)} for row, given in zip(taken, rows, strict=True) if row is not None]
    return whole if len(whole) == len(taken) else None


def _later(row: Mapping[str, Any]) -> dict[str, Any]:
    """Later than the rest: the unit only where a task counts together with others, and what is missing."""
    unit = {"unit": row["unit"]} if isinstance(row.get("unit"), str) and row["unit"] else {}
    return {**unit, **({"is_missing": True} if row.get("is_missing") is True else {})}


def _are_alike(read: _Read, baseline: Sequence[Episode], trained: Sequence[Episode]) -> bool:
    try:
        report.check_alike(baseline, trained)
    except BadInput as error:
        read.say("$.samples", str(error))
        return False
    if [(episode.task, episode.seed) for episode in baseline] != [(episode.task, episode.seed) for episode in trained]:
        read.say("$.samples", "are not in the order of the baseline report")
        return False
    return True


def _find_again(files: Mapping[str, _Read], baseline: Side | None, trained: Side | None) -> Findings | None:
    read = files["significance"]
    criteria, chance = read.take("$.criteria", report.CRITERIA), read.take("$.significance", report.TEST_SETTINGS)
    named = read.take("$.versions", report.VERSIONS) if "versions" in read.data else {}
    if baseline is None or trained is None or criteria is None or chance is None or named is None:
        return None
    if not _are_alike(files["trained"], baseline.episodes, trained.episodes):
        return None
    asked = read.data.get("weighing")
    config, versions = (
        asked if isinstance(asked, dict) else None,
        (named["baseline"], named["trained"]) if named else None,
    )
    try:
        how = ReportComparison(criteria=ProofCriteria(**criteria), **chance, config=config, versions=versions)
        return report.find(baseline, trained, how)
    except BadInput as error:  # numbers so large that their sums are not finite
        files["trained"].say("$.samples", str(error))
        return None


def _read_decision(read: _Read) -> Decision | Problem | None:
    said = read.data.get("decision")
    try:
        return None if said is None else decode(Decision, said)
    except BadInput as error:
        place = re.match(r"Decision([.\[]\S*)", error.what)
        read.say(f"$.decision{place[1]}" if place else "$.decision", str(error))
        return read.problems[-1]


def _check_safety_alone(read: _Read, head: ReportHead) -> None:
    bound = read.read(read.data, "$", {"max_safety_regression": document.number(0.0)})
    chance, rows = read.take("$.test", report.TEST_SETTINGS), _read_rows(read, PENALTIES)
    if bound is None or chance is None or rows is None:
        return
    baseline, trained = (
        [
            Episode(task=row["task"], seed=row["seed"], reward=0.0, safety_cost=row[side], unit=row.get("unit"))
            for row in rows
        ]
        for side in ("baseline", "trained")
    )
    how = ReportComparison(criteria=ProofCriteria(**bound), **chance)
    if not _are_alike(read, baseline, trained):
        return
    try:
        regression = report.find_safety(baseline, trained, how)
    except BadInput as error:
        read.say("$.samples", str(error))
    else:
        _compare(read, report.safety_report(head, baseline, trained, how, regression))


def _check_references(read: _Read, hashes: Mapping[str, str]) -> None:
    """Whether the files that are there are those that it names, by their bytes."""
    for kind in set(RESTS_ON[read.kind]) & set(hashes):
        name = kind.replace("-", "_")
        keys = ("sha256", f"{name}_report") if read.kind == PROOF else ("reports", name, "sha256")
        found: Any = read.data
        for key in keys:
            found = found.get(key, MISSING) if isinstance(found, dict) else MISSING
        read.problems += differences(hashes[kind], found, f"$.{'.'.join(keys)}")


def _check_pass(read: _Read) -> None:
    """When nothing can be computed again, a pass must at least follow from the figures beside it."""
    rules = {name: document.number() for name in ("p_value", "confidence_level", "delta_ci_low")}
    figures = read.take("$.significance", rules)
    criteria = read.take("$.criteria", report.CRITERIA)
    means = {"mean_reward": document.number(), "mean_safety_penalty": document.maybe(document.number(0.0))}
    before, after = read.take("$.baseline", means), read.take("$.trained", means)
    if figures is None or criteria is None or before is None or after is None:
        return
    delta, safety_delta = (
        None if None in (before[name], after[name]) else round(after[name] - before[name], 12) for name in means
    )
    assert delta is not None
    tested = {"p_value": figures["p_value"], "level": figures["confidence_level"], "low": figures["delta_ci_low"]}
    codes = report.failed(ProofCriteria(**criteria), delta=delta, safety_delta=safety_delta, **tested)
    said = read.data["significance"].get("pass")
    if said is not (not codes):
        read.say("$.significance.pass", f"is {short(said)}, and by the figures beside it: {', '.join(codes) or 'pass'}")


def _check_against_proof(asked: _Read) -> None:
    """The proof knows every other file by its bytes."""
    path = _find(asked, PROOF)
    proof = None if path is None else _load(path, PROOF)
    if not isinstance(proof, _Read):
        return
    known = proof.data.get("sha256")
    name = f"{asked.kind.replace('-', '_')}_report"
    if not isinstance(known, dict) or known.get(name) != asked.sha256:
        asked.say("$", f"is not the file that $.sha256.{name} of {proof.path.name} names: one of the two was changed")


def _compare(read: _Read, wanted: Document) -> None:
    read.problems += differences(wanted, {name: value for name, value in read.data.items() if name != "seal"}, "$")


class RetentionAction(StrEnum):
    ARCHIVE = "archive"
    PURGE = "purge"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionStep:
    """What is due for one file, and why."""

    action: RetentionAction
    path: Path
    why: str
    to: Path | None = None  # where it is archived
    sha256: str | None = None  # of the file when the plan was made; one that changed since is left alone
    is_wrong: bool = False  # kept because it cannot be trusted


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionPlan:
    folder: Path
    at: datetime
    steps: tuple[RetentionStep, ...]

    def only(self, *actions: RetentionAction) -> RetentionPlan:
        return replace(self, steps=tuple(step for step in self.steps if step.action in actions))


def due(folder: Path, now: datetime) -> RetentionPlan:
    """What a folder of reports is due for; nothing is touched. What is kept is there too, with the reason."""
    if now.tzinfo is None:
        raise BadInput(f"now = {now}", why="has no time zone", remedy="give one, such as UTC")
    steps = tuple(_step(folder, found, now) for found in document.catalogue(folder))
    return RetentionPlan(folder=folder, at=now, steps=steps)


def carry_out(plan: RetentionPlan) -> Iterator[RetentionStep]:
    """Does what is due, archiving first, then purging. Yields each step once it is on disk."""
    for action, do in ((RetentionAction.ARCHIVE, _archive), (RetentionAction.PURGE, _purge)):
        for step in plan.only(action).steps:
            do(step)
            yield step


def _step(folder: Path, found: ReportFile, now: datetime) -> RetentionStep:
    try:
        head, problems = sound_head(found.path)
        sha256 = sha256_of(found.path)
    except OSError as error:
        return _keep(found, f"cannot be read: {error.strerror or error}", is_wrong=True)
    if head is None or problems:
        first = problems[0]
        return _keep(found, f"{first.where} {first.why}", is_wrong=True)
    if head.retention.policy == "retain-only":
        return _keep(found, "its policy is retain-only")
    step = _purge_step if found.is_archived else _archive_step
    return step(folder, found, head, sha256, now)


def _archive_step(folder: Path, found: ReportFile, head: ReportHead, sha256: str, now: datetime) -> RetentionStep:
    after = head.generated_at + timedelta(days=head.retention.archive_after_days)
    if now < after:
        return _keep(found, f"is archived after {after:%Y-%m-%d}")
    to = folder / document.archived_path(found.kind, head.run_id, head.generated_at)
    if to.exists() and sha256_of(to) != sha256:
        return _keep(found, f"another report lies at {to}", is_wrong=True)
    why = f"was due on {after:%Y-%m-%d}"
    return RetentionStep(action=RetentionAction.ARCHIVE, path=found.path, why=why, to=to, sha256=sha256)


def _purge_step(folder: Path, found: ReportFile, head: ReportHead, sha256: str, now: datetime) -> RetentionStep:
    after = head.generated_at + timedelta(days=head.retention.retain_days)
    if now <= after:
        return _keep(found, f"is kept until {after:%Y-%m-%d}")
    if (folder / document.active_path(found.kind, head.run_id)).exists():
        return _keep(found, "its archiving is not finished")
    why = f"was kept until {after:%Y-%m-%d}"
    return RetentionStep(action=RetentionAction.PURGE, path=found.path, why=why, sha256=sha256)


def _keep(found: ReportFile, why: str, *, is_wrong: bool = False) -> RetentionStep:
    return RetentionStep(action=RetentionAction.KEEP, path=found.path, why=why, is_wrong=is_wrong)


def _archive(step: RetentionStep) -> None:
    if not step.path.exists() and step.to is not None and step.to.exists() and sha256_of(step.to) == step.sha256:
        return  # another process was faster
    data = _unchanged(step)
    assert step.to is not None
    if not step.to.exists():
        folders = [folder for folder in step.to.parents if not folder.exists()]
        write_atomically(step.to, data)
        for folder in folders:  # those that are new are on disk once the folder above them is
            sync(folder.parent)
    if sha256_of(step.to) != step.sha256:
        why = "the copy is not what was copied"
        raise StoreCorrupt(f"report {step.to}", why=why, remedy=f"look at the disk; {step.path} is as it was")
    _remove(step.path)


def _purge(step: RetentionStep) -> None:
    if step.path.exists():  # else another process was faster
        _unchanged(step)
        _remove(step.path)


def _unchanged(step: RetentionStep) -> bytes:
    data = step.path.read_bytes()
    if hashlib.sha256(data).hexdigest() != step.sha256:
        raise BadInput(f"report {step.path}", why="was changed since the plan was made", remedy="make a new plan")
    return data


def _remove(path: Path) -> None:
    """Remove a file, and the folder it leaves empty; on disk when this returns."""
    path.unlink()
    sync(path.parent)
    with suppress(OSError):  # it is not empty
        path.parent.rmdir()
        sync(path.parent.parent)
