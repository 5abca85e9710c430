"""Suites: the cases that versions are measured on, written down so that two measurements are of the same thing.

Who runs the cases, and what an answer is worth, is a workload's business; what follows from the scores is `compare`'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import fsum, isfinite
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.task import canonical
from holdfast.prove.reports.document import Problem, not_finite, parse

FAMILIES = ("reasoning", "tool_use")
TOLERANCE = 1e-6  # of the sum of a rubric's weights
MOST_TOLD = 8  # problems in one line; the rest is counted


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteCase:
    """One thing to do, and how it is scored."""

    case_id: str
    seed: int  # above 0: what its chance is drawn from
    prompt: str
    expected_outcome: str
    scoring_rubric: Mapping[str, float]  # how much each dimension counts; they add up to 1
    input: Any = None  # what the agent takes beside the prompt

    @property
    def given(self) -> Any:
        """The task as it is put into the queue; what is expected stands where agents are not shown it."""
        if self.input is None or isinstance(self.input, Mapping):
            return {**(self.input or {}), "prompt": self.prompt, "expected": self.expected_outcome}
        return self.input


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    suite_id: str
    version: str = "1"
    family: str  # one of FAMILIES
    description: str
    cases: tuple[SuiteCase, ...]
    seeds: tuple[int, ...] = (1,)  # every case is done once with each

    @property
    def episodes(self) -> int:
        """Of one version."""
        return len(self.cases) * len(self.seeds)

    @property
    def fixture_sha256(self) -> str:
        """Of everything that is measured; how often (`seeds`) is the measurer's choice, and is not in it."""
        document = to_document(self)
        del document["seeds"]
        return hashlib.sha256(canonical(document).encode()).hexdigest()

    @property
    def title(self) -> str:
        """As evidence names it: "tool-use-suite@1 3f2ab0c1d2e3"."""
        return f"{self.suite_id}@{self.version} {self.fixture_sha256[:12]}"


def load(path: Path) -> Suite:
    try:
        data = parse(path.read_bytes())
    except OSError as error:
        raise BadInput(f"suite {path}", why=f"cannot be read: {error.strerror}", remedy="give a file") from None
    if isinstance(data, Problem):
        raise BadInput(f"suite {path}", why=f"{data.where} {data.why}", remedy="give one JSON object")
    if (place := next(not_finite(data, "$"), None)) is not None:
        raise BadInput(f"suite {path}", why=f"{place} must be a finite number")
    return from_document(data, str(path))


def from_document(document: Any, where: str = "document") -> Suite:
    """The suite that the JSON spells, or one BadInput with all that is wrong with it, each with its place."""
    reader = _Reader()
    if not isinstance(document, Mapping):
        raise BadInput(f"suite {where}", why=f"is {_kind(document)}, not an object", remedy="see examples/suites")
    reader.keys(document, "", (*(field.name for field in fields(Suite)), "episodes"))
    cases = document.get("cases")
    if not isinstance(cases, list) or not cases:
        reader.say("cases", f"is {_kind(cases)}; at least one case is needed")
        cases = []
    found = [_case(reader, case, f"cases[{place}]") for place, case in enumerate(cases)]
    _unique(reader, [case.case_id for case in found], "cases[{}].case_id")
    seeds = document.get("seeds", [1])
    if not isinstance(seeds, list) or not seeds:
        reader.say("seeds", f"is {_kind(seeds)}, not a list of whole numbers above 0")
        seeds = [1]
    suite = Suite(
        suite_id=reader.text(document, "suite_id"),
        version=reader.text(document, "version", default="1"),
        family=reader.text(document, "family"),
        description=reader.text(document, "description"),
        cases=tuple(found),
        seeds=tuple(reader.seed(seed, f"seeds[{place}]") for place, seed in enumerate(seeds)),
    )
    _unique(reader, suite.seeds, "seeds[{}]")
    if suite.family not in ("", *FAMILIES):
        reader.say(f"family = {suite.family!r}", f"is unknown: use {' or '.join(FAMILIES)}")
    if document.get("episodes", suite.episodes) != suite.episodes:
        why = f"{len(cases)} cases by {len(seeds)} seeds are {suite.episodes}"
        reader.say(f"episodes = {document['episodes']!r:.40}", why)
    reader.close(where)
    return suite


def to_document(suite: Suite) -> dict[str, Any]:
    """What `from_document` reads."""
    given = ("case_id", "seed", "prompt", "expected_outcome")
    cases = [
        {name: getattr(case, name) for name in given}
        | {"scoring_rubric": dict(case.scoring_rubric)}
        | ({} if case.input is None else {"input": case.input})
        for case in suite.cases
    ]
    names = ("suite_id", "version", "family", "description")
    return {**{name: getattr(suite, name) for name in names}, "seeds": list(suite.seeds), "cases": cases}


class _Reader:
    """Collects all problems, so that they can be reported together."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def say(self, where: str, why: str) -> None:
        self.problems.append(f"{where}: {why}")

    def close(self, where: str) -> None:
        if self.problems:
            lines, more = self.problems[:MOST_TOLD], len(self.problems) - MOST_TOLD
            what = f"suite {where}, {len(self.problems)} problem{'s' if len(self.problems) > 1 else ''}"
            raise BadInput(what, why=" | ".join([*lines, *([f"and {more} more"] if more > 0 else [])]))

    def keys(self, given: Mapping[str, Any], where: str, known: Sequence[str]) -> None:
        for name in given:
            if name not in known:
                self.say(f"{where}{name}", f"is unknown: use {', '.join(known)}")

    def text(self, given: Mapping[str, Any], name: str, where: str = "", default: str | None = None) -> str:
        value = given.get(name, default)
        if isinstance(value, str) and value.strip():
            return value
        why = f"is {_kind(value)}, not text that says something" if name in given else "is missing"
        self.say(f"{where}{name}", why)
        return ""

    def seed(self, value: Any, where: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**64:
            return value
        self.say(f"{where} = {value!r:.40}", "must be a whole number above 0, of at most 64 bits")
        return 1


def _case(reader: _Reader, given: Any, where: str) -> SuiteCase:
    if not isinstance(given, Mapping):
        reader.say(where, f"is {_kind(given)}, not an object")
        return SuiteCase(case_id="", seed=1, prompt="", expected_outcome="", scoring_rubric={})
    reader.keys(given, f"{where}.", tuple(field.name for field in fields(SuiteCase)))
    if "seed" not in given:
        reader.say(f"{where}.seed", "is missing")
    return SuiteCase(
        case_id=reader.text(given, "case_id", f"{where}."),
        seed=reader.seed(given.get("seed", 1), f"{where}.seed"),
        prompt=reader.text(given, "prompt", f"{where}."),
        expected_outcome=reader.text(given, "expected_outcome", f"{where}."),
        scoring_rubric=_rubric(reader, given.get("scoring_rubric"), f"{where}.scoring_rubric"),
        input=given.get("input"),
    )


def _rubric(reader: _Reader, given: Any, where: str) -> dict[str, float]:
    if not isinstance(given, Mapping) or not given:
        reader.say(where, f"is {_kind(given)}; it must say how much each dimension counts")
        return {}
    weights = {}
    for name, value in given.items():
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
        if not name.strip() or not is_number or value < 0:
            reader.say(f"{where}.{name} = {value!r:.40}", "must be a named, finite number of at least 0")
        else:
            weights[name] = float(value)
    if len(weights) == len(given) and abs(fsum(weights.values()) - 1.0) > TOLERANCE:
        reader.say(where, f"the weights add up to {fsum(weights.values()):g}, not 1")
    return weights


def _unique(reader: _Reader, names: Sequence[Any], where: str) -> None:
    seen = set()
    for place, name in enumerate(names):
        if name and name in seen:
            reader.say(where.format(place), f"{name!r} is there twice")
        seen.add(name)


def _kind(value: Any) -> str:
    if value is None:
        return "missing"
    names = {bool: "true or false", int: "a number", float: "a number", str: "text", list: "a list", dict: "an object"}
    return f"an empty {type(value).__name__}" if value in ({}, [], "") else names.get(type(value), "something else")
