"""Goldens: what a version saw, did and was worth on every case of a suite, as hashes, so that any change of it shows.

Recorded and replayed under sampling that leaves nothing to chance. Who may change a golden is not decided here: a
change counts as accepted once somebody has signed it in the ledger, with a reason.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum
from pathlib import Path
from typing import Any, ClassVar

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.records import dumps, encode, loads
from holdfast.contracts.task import canonical
from holdfast.contracts.trace import SpanKind
from holdfast.prove.suite import Suite
from holdfast.store.artifacts import write_atomically
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

KIND = "golden"  # of the ledger's entries
REPLAY = ".replay"  # ends the name of a replay, beside the golden it is compared with
SLACK = 0.10  # by so much of its value a KPI may get worse
# Which way a KPI gets better: what has gone the other way by more than the slack is out of its band.
BETTER: Mapping[str, int] = {"reward": 1, "success": 1, "safety_cost": -1, "tokens": -1, "model_calls": -1}
HASHES = ("observation", "action", "reward")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenCase:
    """One case, as it went."""

    case_id: str
    observation: str  # sha256 of all that the policy saw, in order
    action: str  # … of all that it answered
    reward: str  # … of its signals
    kpis: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class KpiLimit:
    """Where a KPI has to stay; None: it may go as far as it likes."""

    low: float | None = None
    high: float | None = None

    def holds(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")  # of a golden, and of its file


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Golden:
    SCHEMA: ClassVar[int] = 1

    name: str
    suite: str  # "tool-use-suite@1 3f2a…", for people
    suite_sha256: str
    version: str  # whose behaviour this is
    weights_sha256: str
    sampling: Mapping[str, Any]
    cases: tuple[GoldenCase, ...]
    bands: Mapping[str, KpiLimit] = field(default_factory=dict)  # of the means of the KPIs
    recorded_at: float  # unix seconds
    suite_at: str = ""  # where the suite was found: a file, or tooluse:COUNT[:SEED]

    @property
    def sha256(self) -> str:
        """Of the behaviour: who recorded it when, and under which name, is not in it."""
        cases = [[case.case_id, case.observation, case.action, case.reward] for case in self.cases]
        return hashlib.sha256(canonical([self.suite_sha256, cases]).encode()).hexdigest()

    @property
    def kpis(self) -> dict[str, float]:
        """Means over the cases that have them."""
        found: dict[str, list[float]] = {}
        for case in self.cases:
            for name, value in case.kpis.items():
                found.setdefault(name, []).append(value)
        return {name: fsum(values) / len(values) for name, values in found.items()}


def case_of(experience: Experience) -> GoldenCase:
    """What one attempt saw, did and was worth."""
    calls, signals = experience.calls, experience.signals
    values = {signal.name: signal.value for signal in signals}
    kpis: dict[str, float] = {name: values[name] for name in ("success", "safety_cost") if name in values}
    if experience.reward is not None:
        kpis["reward"] = experience.reward
    kpis["model_calls"] = float(len(calls))
    kpis["tool_calls"] = float(sum(span.kind is SpanKind.TOOL for span in experience.spans))
    kpis["tokens"] = float(sum((call.prompt_tokens or 0) + (call.completion_tokens or 0) for call in calls))
    return GoldenCase(
        case_id=experience.task,
        # The ids beside the messages: what a template or a tool's description adds is seen as well.
        observation=_hash([[list(call.messages), call.prompt_ids] for call in calls]),
        action=_hash([[call.response, call.completion_ids, call.finish_reason] for call in calls]),
        # Without what is only measured of a turn: it is computed from the rest.
        reward=_hash(sorted([s.name, s.value, s.weight, s.turn] for s in signals if s.turn is None or s.weight)),
        kpis=kpis,
    )


def golden_of(
    suite: Suite,
    experiences: Sequence[Experience],
    *,
    name: str,
    version: tuple[str, str],  # its name, and the sha256 of its weights
    sampling: Mapping[str, Any],
    now: float,
) -> Golden:
    """The golden of one pass over the suite; a case without an attempt that ended is a fault, never left out."""
    found = {experience.task: case_of(experience) for experience in experiences}
    missing = [case.case_id for case in suite.cases if case.case_id not in found]
    if missing:
        why = f"{len(missing)} of {len(suite.cases)} cases have no answer: {', '.join(missing[:3])}"
        raise BadInput(f"golden {name}", why=why, remedy="see 'holdfast run rollouts', and record again")
    golden = Golden(
        name=name,
        suite=suite.title,
        suite_sha256=suite.fixture_sha256,
        version=version[0],
        weights_sha256=version[1],
        sampling=dict(sampling),
        cases=tuple(found[case.case_id] for case in suite.cases),
        recorded_at=now,
    )
    return with_bands(golden)


def with_bands(golden: Golden) -> Golden:
    """A band for each KPI that has a better side: open there, and so far below or above its value on the other."""
    bands = {}
    for name, value in golden.kpis.items():
        side, room = BETTER.get(name), SLACK * abs(value)
        if side is not None:
            bands[name] = KpiLimit(low=value - room) if side > 0 else KpiLimit(high=value + room)
    return replace(golden, bands=bands)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenChange:
    """One case that did not go as before."""

    case_id: str
    what: tuple[str, ...]  # of HASHES
    kpis: Mapping[str, tuple[float, float]]  # those that moved: before and after


def diff(golden: Golden, replayed: Golden) -> tuple[GoldenChange, ...]:
    """The cases of both that went differently, in the golden's order."""
    again, changes = {case.case_id: case for case in replayed.cases}, []
    for before in golden.cases:
        after = again.get(before.case_id)
        if after is None:
            continue
        what = tuple(name for name in HASHES if getattr(before, name) != getattr(after, name))
        names = [name for name in before.kpis if name in after.kpis and before.kpis[name] != after.kpis[name]]
        if what:
            moved = {name: (before.kpis[name], after.kpis[name]) for name in names}
            changes.append(GoldenChange(case_id=before.case_id, what=what, kpis=moved))
    return tuple(changes)


def check(golden: Golden, replayed: Golden, *, signed: Collection[str] = ()) -> tuple[Finding, ...]:
    """Findings for the gate: what the policy saw or was worth has changed, and nobody has signed the change. Changed
    actions are reported without blocking, because learning changes them."""
    is_signed = replayed.sha256 in signed
    if golden.suite_sha256 != replayed.suite_sha256:
        detail = f"{golden.suite} against {replayed.suite}"
        return (Finding(name="golden_suite", severity="critical", count=1, of=1, detail=detail),)
    there = {case.case_id for case in replayed.cases}
    lost = [case.case_id for case in golden.cases if case.case_id not in there]
    changes, of = diff(golden, replayed), len(golden.cases)
    findings = [_finding("golden_missing", lost, of, blocks=True)]
    for name in HASHES:
        cases = [change.case_id for change in changes if name in change.what]
        findings.append(_finding(f"{name}_hash", cases, of, blocks=name != "action" and not is_signed))
    kpis = replayed.kpis
    for name, band in golden.bands.items():
        value = kpis.get(name)
        is_out = value is None or not band.holds(value)
        detail = f"{_shown(value)}, and the band is {_shown(band.low)} to {_shown(band.high)}" if is_out else ""
        findings.append(_finding(f"kpi_{name}", [detail] if is_out else [], 1, blocks=not is_signed))
    return tuple(findings)


def _finding(name: str, cases: Sequence[str], of: int, *, blocks: bool) -> Finding:
    detail = "" if not cases else f"{cases[0]}" + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
    severity = "error" if blocks else "warning"
    return Finding(name=name, severity=severity, count=len(cases), of=of, detail=detail, blocks=blocks)


def sign(
    store: Store, golden: Golden, *, who: str, why: str, now: float, before: str | None = None
) -> WriteFuture[None]:
    """Put on record that this behaviour is wanted; `before` is the sha256 of what it takes the place of."""
    if not why.strip():
        raise BadInput(f"signing golden {golden.name}", why="needs a reason", remedy="say why the change is wanted")
    about = {"sign": golden.name, "sha256": golden.sha256, "before": before}
    body = {**about, "suite": golden.suite, "version": golden.version, "why": why}
    return store.ledger.append(KIND, body, who=who, now=now)


def note(store: Store, golden: Golden, *, who: str, now: float) -> WriteFuture[None]:
    """Put on record that this behaviour was the first of its name."""
    body = {"record": golden.name, "sha256": golden.sha256, "suite": golden.suite, "version": golden.version}
    return store.ledger.append(KIND, body, who=who, now=now)


def known_sha256(store: Store, name: str) -> str | None:
    """Of the golden of that name, by the ledger: the last that was signed, else the first; None where it has none."""
    found = [
        entry.body
        for entry in store.ledger.entries()
        if entry.kind == KIND and name in (entry.body.get("sign"), entry.body.get("record"))
    ]
    return str(found[-1]["sha256"]) if found else None


def signed(store: Store) -> dict[str, str]:
    """Who signed which behaviour, by its sha256."""
    signatures = (entry for entry in store.ledger.entries() if entry.kind == KIND and "sign" in entry.body)
    return {str(signature.body["sha256"]): signature.who for signature in signatures}


def write(path: Path, golden: Golden) -> None:
    write_atomically(path, dumps(golden).encode() + b"\n")


def read(path: Path) -> Golden:
    try:
        return loads(Golden, path.read_bytes())
    except FileNotFoundError:
        name = path.name.removesuffix(".json")
        if name.endswith(REPLAY):
            name = name.removesuffix(REPLAY)
            remedy = f"'holdfast prove golden replay {name} --version VERSION' makes one"
            raise BadInput(f"golden {name}", why="was not replayed since it was recorded", remedy=remedy) from None
        remedy = "'holdfast prove golden list' shows those there are"
        raise BadInput(f"golden {name}", why="is missing", remedy=remedy) from None
    except OSError as error:
        raise BadInput(f"golden {path}", why=f"cannot be read: {error.strerror}") from None


def as_dict(golden: Golden) -> dict[str, Any]:
    """For programs: everything, and the hash and means that follow from it."""
    return {**encode(golden), "sha256": golden.sha256, "kpis": golden.kpis}


def _hash(data: Any) -> str:
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
