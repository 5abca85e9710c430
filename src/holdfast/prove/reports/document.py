"""What all files of a published benchmark share: names and places, field rules, the head, the seal, strict reading.

A publication is the reports of one run: baseline, trained, significance, safety-regression, summary, and the proof over
them. `report` builds them, `validate` checks them and moves old ones to the archive.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from math import inf, isclose, isfinite
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.shapes import DoubledKey, unique_keys

MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    where: str  # "$.metrics.episodes"; of another file than the one asked about, its name stands before it
    why: str
    is_place: bool = False  # the file itself may be true: it only lies elsewhere than it says


def parse(raw: bytes) -> dict[str, Any] | Problem:
    """A JSON object that can be read in one way only: not cut off, and no key twice."""
    try:
        data = json.loads(raw, object_pairs_hook=unique_keys)
    except RecursionError:
        return Problem(where="$", why="is nested too deeply")
    except DoubledKey as twice:
        return Problem(where=inside("$.", str(twice)), why="is there twice in one object")
    except ValueError as error:  # of the JSON, of UTF-8, or a number of thousands of digits
        return Problem(where="$", why=f"is not JSON: {error}")
    return data if isinstance(data, dict) else Problem(where="$", why="must be an object")


def differences(wanted: Any, found: Any, where: str) -> Iterator[Problem]:
    """Leaf by leaf. Numbers may differ in the last digits, which another machine computes otherwise."""
    if found is MISSING:
        yield Problem(where=where, why="is missing")
    elif isinstance(wanted, dict) and isinstance(found, dict):
        for name in wanted:
            yield from differences(wanted[name], found.get(name, MISSING), inside(where, name))
        for name in sorted(found.keys() - wanted.keys()):
            yield Problem(where=inside(where, name), why="is unknown")
    elif isinstance(wanted, list) and isinstance(found, list):
        if len(wanted) != len(found):
            yield Problem(where=where, why=f"has {len(found)} items, must be {len(wanted)}")
        for place, (one, other) in enumerate(zip(wanted, found, strict=False)):
            yield from differences(one, other, f"{where}[{place}]")
    elif not _same(wanted, found):
        yield Problem(where=where, why=f"is {short(found)}, must be {short(wanted)}")


def inside(where: str, name: str) -> str:
    return f"{where}.{name}" if name.isidentifier() else f"{where}[{json.dumps(name)}]"


def _same(wanted: Any, found: Any) -> bool:
    if isinstance(wanted, float) and type(found) in (int, float) and abs(found) < 1e300:  # what isclose can hold
        return isclose(wanted, found, rel_tol=1e-9, abs_tol=1e-12)
    return type(wanted) is type(found) and bool(wanted == found)


def not_finite(value: object, where: str) -> Iterator[str]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from not_finite(item, inside(where, name))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from not_finite(item, f"{where}[{place}]")
    elif isinstance(value, float) and not isfinite(value):
        yield where


def short(value: object) -> str:
    if value is MISSING:
        return "missing"
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}…"


SCHEMA = 1
REPORTS = ("baseline", "trained", "significance", "summary")
SAFETY, PROOF = "safety-regression", "proof"
KINDS = ("baseline", "trained", "significance", SAFETY, "summary", PROOF)  # each rests only on those before it
POLICIES = ("archive-then-purge", "retain-only")
FAMILY = "m24"
RUN_ID = re.compile(r"m24-[a-z0-9-]+")
NAMES = re.compile(
    rf"m24-benchmark-(?:report-(?:{RUN_ID.pattern}-)?({'|'.join(REPORTS)})"
    rf"|({SAFETY})(?:-{RUN_ID.pattern})?|({PROOF})-{RUN_ID.pattern})\.json"
)
TIMESTAMP = "%Y-%m-%dT%H:%M:%SZ"

Document = dict[str, Any]  # as JSON
Rule = Callable[[object], str | None]  # why a value is refused


def text(value: object) -> str | None:
    return None if isinstance(value, str) and value.strip() else "must be text, and not blank"


def maybe(rule: Rule) -> Rule:
    return lambda value: None if value is None else rule(value)


def one_of(*allowed: str) -> Rule:
    return lambda value: None if value in allowed else f"must be {' or '.join(allowed)}"


def whole(least: int | None = None, most: int | None = None) -> Rule:
    def check(value: object) -> str | None:
        if type(value) is not int:
            return "must be a whole number"
        fits = (least is None or value >= least) and (most is None or value <= most)
        return None if fits else f"must be {_range(least, most)}"

    return check


def number(least: float = -inf, most: float = inf) -> Rule:
    def check(value: object) -> str | None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not _is_finite(value):
            return "must be a finite number"
        return None if least <= value <= most else f"must be {_range(least, most)}"

    return check


def timestamp(value: object) -> str | None:
    try:
        parsed = read_timestamp(str(value))
    except ValueError:
        return "must be a moment in UTC, such as 2026-07-01T12:00:00Z"
    # strptime lets leading zeros go, and dates so late that no report can be kept after them
    is_written_so = parsed.strftime(TIMESTAMP) == value and parsed.year < 9000
    return None if is_written_so else "must be a moment in UTC, such as 2026-07-01T12:00:00Z"


def run_id(value: object) -> str | None:
    fits = isinstance(value, str) and RUN_ID.fullmatch(value) and len(value) <= 120
    return None if fits else "must be m24- and then small letters, digits and hyphens, 120 at most"


def sha256(value: object) -> str | None:
    fits = isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value)
    return None if fits else "must be a sha256: 64 hexadecimal digits"


HEAD: Mapping[str, Rule] = {"run_id": run_id, "generated_at": timestamp}
SUITE: Mapping[str, Rule] = {"name": text, "version": text, "sha256": sha256}
RETENTION: Mapping[str, Rule] = {
    "policy": one_of(*POLICIES),
    "retain_days": whole(1, 36_500),
    "archive_after_days": whole(0, 36_500),
}


def demand(where: str, rules: Mapping[str, Rule], values: Mapping[str, object]) -> None:
    """BadInput for the first value that breaks its rule."""
    for name, rule in rules.items():
        why = rule(values[name])
        if why is not None:
            raise BadInput(f"{where}{name} = {values[name]!r}", why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a report is kept, in days since it was generated."""

    policy: str = "archive-then-purge"
    retain_days: int = 365
    archive_after_days: int = 30

    def __post_init__(self) -> None:
        demand("retention.", RETENTION, asdict(self))
        if self.archive_after_days > self.retain_days:
            why = f"must not be above retain_days, {self.retain_days}"
            raise BadInput(f"retention.archive_after_days = {self.archive_after_days}", why=why)


KEPT = Retention()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportHead:
    """Which run a file is of, and what follows from that alone."""

    run_id: str
    generated_at: datetime  # UTC, whole seconds
    suite: tuple[str, str, str]  # name, version, sha256 of its fixtures
    retention: Retention = KEPT
    state: str  # the name of the folder that holds "reports"

    def __post_init__(self) -> None:
        if self.generated_at.tzinfo is not UTC or self.generated_at.microsecond:
            raise BadInput(f"generated_at = {self.generated_at}", why="must be whole seconds of UTC")
        demand("", HEAD, {"run_id": self.run_id, "generated_at": self.written_at})
        demand("suite ", SUITE, dict(zip(SUITE, self.suite, strict=True)))

    @property
    def written_at(self) -> str:
        return self.generated_at.strftime(TIMESTAMP)


def read_timestamp(text: str) -> datetime:
    return datetime.strptime(text, TIMESTAMP).replace(tzinfo=UTC)


def active_name(kind: str, run: str) -> str:
    if kind == PROOF:
        return f"m24-benchmark-proof-{run}.json"
    return f"m24-benchmark-{kind}.json" if kind == SAFETY else f"m24-benchmark-report-{kind}.json"


def archived_name(kind: str, run: str) -> str:
    if kind == PROOF:
        return active_name(kind, run)
    return f"m24-benchmark-{kind}-{run}.json" if kind == SAFETY else f"m24-benchmark-report-{run}-{kind}.json"


def active_path(kind: str, run: str) -> str:
    """Below the folder of reports."""
    return f"{FAMILY}/{run}/{active_name(kind, run)}"


def archived_path(kind: str, run: str, generated_at: datetime) -> str:
    return f"archive/{FAMILY}/{generated_at:%Y/%m}/{archived_name(kind, run)}"


def kind_of(name: str) -> str | None:
    """What a file of this name holds: the active name, or the one in the archive."""
    word = NAMES.fullmatch(name)
    return next(filter(None, word.groups())) if word else None


def frame(head: ReportHead, kind: str) -> Document:
    """The groups that every document has."""
    purge_after = head.generated_at + timedelta(days=head.retention.retain_days)
    return {
        "schema_version": SCHEMA,
        **({"report_kind": kind} if kind in REPORTS else {}),
        "run_id": head.run_id,
        "generated_at": head.written_at,
        "benchmark_suite": dict(zip(SUITE, head.suite, strict=True)),
        "publication": {
            "report_path": f"{head.state}/reports/{active_path(kind, head.run_id)}",
            "archive_path": f"{head.state}/reports/{archived_path(kind, head.run_id, head.generated_at)}",
        },
        "retention": {**asdict(head.retention), "purge_after": purge_after.strftime(TIMESTAMP)},
    }


def seal(document: Document) -> Document:
    """A sha256 for each member and for each item of a list, so that a change is found where it is. It detects
    accidents; a changed seal is detected by recomputing and by the proof."""

    def of(value: object) -> str:
        canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    return {
        name: [of(item) for item in value] if isinstance(value, list) else of(value)
        for name, value in document.items()
        if name != "seal"
    }


def written(document: Document) -> bytes:
    """As it lies on disk, its seal at the end."""
    sealed = {**document, "seal": seal(document)}
    return (json.dumps(sealed, indent=2, allow_nan=False) + "\n").encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFile:
    """A file that bears the name of a report."""

    path: Path
    kind: str
    run: str  # as its name or its folder says
    is_archived: bool


def catalogue(folder: Path) -> Iterator[ReportFile]:
    """What lies in a folder of reports, active ones first; what it holds is not looked at."""
    for pattern, is_archived in ((f"{FAMILY}/*/*.json", False), (f"archive/{FAMILY}/*/*/*.json", True)):
        for path in sorted(folder.glob(pattern)):
            kind = kind_of(path.name)
            if kind is not None and not path.name.startswith("."):
                before, after = archived_name(kind, "/").split("/")
                run = path.name.removeprefix(before).removesuffix(after) if is_archived else path.parent.name
                yield ReportFile(path=path, kind=kind, run=run, is_archived=is_archived)


def place_of(path: Path) -> Path:
    """Where a path leads from here: `..` goes, but links stay, for a state folder is called as its user calls it."""
    return Path(os.path.abspath(path))  # noqa: PTH100


def _range(least: float | None, most: float | None) -> str:
    if most is None or most == inf:
        return f"at least {least}"
    return f"at most {most}" if least is None or least == -inf else f"from {least} to {most}"


def _is_finite(value: float) -> bool:
    try:
        return isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False
