"""Scores each tool call, and counts over many attempts whether tools are used where they are needed, and only there.

A call is scored for structure, choice, utility and error handling. Choice is judged by what the task needed, never by
the result. A call that repeats another, or that neither served a need nor led to the answer, earns nothing and makes
the others' parts smaller. Adoption rates count tasks, never calls: several tries at one task are averaged first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import floor, isfinite
from typing import Any, ClassVar, Literal

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span, SpanKind, ToolCall
from holdfast.reward.evidence import CallEvidence, answer_of, evidence, facts

Schemas = Mapping[str, Mapping[str, Any]]  # of the arguments, by the tool's name
Idle = Literal["", "duplicate", "dummy"]

BUSY = re.compile(
    r"\b(busy|try again|timed?[- ]?out|rate.?limit(ed)?|too many requests|overloaded|temporar(y|ily)"
    r"|service unavailable|429|502|503|504)\b",
    re.IGNORECASE,
)
SHARES: Mapping[str, float] = {"choice": 0.4, "structure": 0.3, "utility": 0.2, "error_handling": 0.1}
ABSTAINING = frozenset(("unknown", "unsure", "cannot", "unable", "unavailable", "impossible", "missing"))


def is_busy(error: str) -> bool:
    """Whether the same call may do better in a moment."""
    return BUSY.search(error) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMark:
    """One call, judged; from 0 to 1, None where there is nothing to judge by."""

    turn: int | None  # None: before any model call
    tool: str
    structure: float | None  # its arguments are what the tool's schema asks for
    choice: float | None  # the task needs this tool, and not twice the same of it
    utility: float  # something new in its result led to the answer
    error_handling: float  # 1 where nothing went wrong, or the right thing was done about it
    handled_in: int | None  # the turn that had to do it
    has_worked: bool  # the tool gave a result
    is_passing: bool  # it failed, and only for the moment
    idle: Idle = ""  # why it earns nothing


def marks(
    spans: Sequence[Span],
    *,
    needs: Collection[str] | None = None,
    schemas: Schemas | None = None,
    answer: Any = None,
    found: Sequence[CallEvidence] | None = None,
) -> tuple[CallMark, ...]:
    """Every call in order. `needs` are the tools without which the answer cannot be had: () is none, None unknown.
    `found` is the evidence of the spans, where it is known already."""
    said = answer_of(spans) if answer is None else answer
    found = evidence(spans, said) if found is None else found
    passing = [call.call.error is not None and is_busy(call.call.error) for call in found]
    shapes = [f"{o.call.tool} {json.dumps(o.call.arguments, sort_keys=True, default=str)}" for o in found]
    # Said before, word for word, to a tool that was not just busy.
    twice = [
        any(shapes[before] == shapes[place] and not passing[before] for before in range(place))
        for place in range(len(found))
    ]
    serving = _serving(found, needs, passing)
    invented = any(call.call.error is not None for call in found) and _invents(spans, said, found)
    made = []
    for place, (call, is_double) in enumerate(zip(found, twice, strict=True)):
        retry = _retry(place, shapes, found) if passing[place] else None
        counts = {place, *([retry] if retry is not None else [])} & serving and not is_double
        handled, turn = _handled(place, found, shapes, retry if passing[place] else place, passing[place], invented)
        idle: Idle = "duplicate" if is_double else "" if counts else "dummy"
        mark = CallMark(
            turn=call.turn,
            tool=call.call.tool,
            structure=None if schemas is None else float(fits(call.call, schemas)),
            choice=None if needs is None else float(call.call.tool in needs and not is_double),
            utility=float(bool(call.used)),
            error_handling=float(handled),
            handled_in=turn,
            has_worked=call.call.error is None,
            is_passing=passing[place],
            idle=idle,
        )
        made.append(mark)
    return tuple(made)


def signals(
    found: Sequence[CallMark],
    needs: Collection[str] | None = None,
    shares: Mapping[str, float] = dict.fromkeys(SHARES, 1.0),
) -> tuple[RewardTerm, ...]:
    """Choice, structure, utility and error handling of every call, and a choice of 0 for each need without a call.
    Parts of each name's share are divided among all calls and missed needs. A call that met a busy tool counts only for
    error handling."""

    def term(name: str, value: float, part: float, turn: int | None) -> RewardTerm:
        return RewardTerm(name=name, value=value, weight=part * shares.get(name, 0.0), source="rule:tools", turn=turn)

    missed = [] if needs is None else sorted(set(needs) - {mark.tool for mark in found})
    if needs is not None and not found and not missed:
        return (term("choice", 1.0, 1.0, None),)
    lasting = sum(not mark.is_passing for mark in found)
    part = 1.0 / max(1, lasting + len(missed))
    terms = [term("choice", 0.0, part, None) for _ in missed]
    for mark in found:
        own = 0.0 if mark.idle or mark.is_passing else part
        if mark.choice is not None:
            terms.append(term("choice", mark.choice, own, mark.turn))
        if mark.structure is not None:
            terms.append(term("structure", mark.structure, own, mark.turn))
        terms.append(term("utility", mark.utility, own, mark.turn))
        handling = 0.0 if mark.idle else 1.0 / (len(found) + len(missed))
        terms.append(term("error_handling", mark.error_handling, handling, mark.handled_in))
    return tuple(terms)


def remarks(found: Sequence[CallMark], needs: Collection[str] | None = None) -> list[str]:
    """What is wrong with the calls, for people: those that earn nothing, and the needed tools that were not called."""
    idle = [f"{mark.tool} in turn {(mark.turn or 0) + 1}: {mark.idle}" for mark in found if mark.idle]
    missed = sorted(set(needs or ()) - {mark.tool for mark in found})
    return idle + [f"{name} was needed and not called" for name in missed]


def fits(call: ToolCall, schemas: Schemas) -> bool:
    """Whether there is such a tool, and the arguments are what it asks for."""
    return call.tool in schemas and not problems(schemas[call.tool], call.arguments)


def schemas_of(specs: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """By name, from tools as an OpenAI-compatible endpoint takes them."""
    found = {}
    for spec in specs:
        function = spec.get("function", spec)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadInput("tools", why="one has no name", remedy='give {"function": {"name": …, "parameters": …}}')
        found[function["name"]] = function.get("parameters") or {"type": "object"}
    return found


def names(given: Any) -> tuple[str, ...] | None:
    """A list of names; None (unknown) for anything else."""
    if isinstance(given, list | tuple) and all(isinstance(one, str) for one in given):
        return tuple(given)
    return None


def schemas_in(task: Mapping[str, Any], catalog: Iterable[Mapping[str, Any]] = ()) -> Schemas | None:
    """Schemas of the tools that the task offers, given in full or by a known name; None where unknown."""
    tools = task.get("tools")
    if isinstance(tools, list | tuple) and tools and all(isinstance(tool, Mapping) for tool in tools):
        try:
            return schemas_of(tools)
        except BadInput:
            return None
    known, schemas = names(tools), schemas_of(catalog)
    return schemas if known and set(known) <= set(schemas) else None


def _retry(place: int, shapes: Sequence[str], found: Sequence[CallEvidence]) -> int | None:
    """The last repetition of the same call in a later turn."""
    again = [
        after
        for after in range(place + 1, len(found))
        if shapes[after] == shapes[place] and (found[after].turn is None or found[after].turn != found[place].turn)
    ]
    return again[-1] if again else None


def _serving(found: Sequence[CallEvidence], needs: Collection[str] | None, passing: Sequence[bool]) -> set[int]:
    """The calls that count: those that led to the answer and, of a needed tool without one, the first that worked."""
    counted = {place for place, call in enumerate(found) if call.used}
    for tool in needs or ():
        mine = [place for place, call in enumerate(found) if call.call.tool == tool and not passing[place]]
        if mine and not counted.intersection(mine):
            counted.add(next((place for place in mine if found[place].call.error is None), mine[0]))
    return counted


def _handled(
    place: int,
    found: Sequence[CallEvidence],
    shapes: Sequence[str],
    retry: int | None,
    is_passing: bool,
    invented: bool,
) -> tuple[bool, int | None]:
    """Whether the right thing was done about a call's error, and in which turn."""
    call = found[place]
    if call.call.error is None:
        return True, call.turn
    later = [after for after in range(place + 1, len(found)) if found[after].turn != call.turn or call.turn is None]
    if is_passing:
        return retry is not None, found[later[0]].turn if later else call.turn
    reacted = found[later[0]].turn if later else call.turn
    if any(shapes[after] == shapes[place] for after in later):
        return False, reacted
    is_mended = any(found[after].call.tool == call.call.tool and found[after].call.error is None for after in later)
    return is_mended or not invented, reacted


def _invents(spans: Sequence[Span], answer: Any, found: Sequence[CallEvidence]) -> bool:
    """Whether the answer states a value that only the model ever said, and does not say that it is unknown."""
    heard: set[str] = set()
    for span in spans:
        if span.kind is SpanKind.MODEL and span.model is not None:
            for message in span.model.messages:
                if message.get("role") != "assistant":
                    heard |= facts(message.get("content"))
        elif span.kind is SpanKind.MESSAGE and span.attributes.get("role") in ("system", "user"):
            heard |= facts([span.attributes.get("text"), span.attributes.get("content")])
    for call in found:
        heard |= call.fresh
    stated = facts(answer)
    unheard = stated - heard
    is_abstaining = bool(stated & ABSTAINING)
    return any(any(letter.isdigit() for letter in fact) for fact in unheard) or (bool(unheard) and not is_abstaining)


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    """The validator of a schema as JSON; checking a schema costs more than checking a value."""
    from jsonschema import Draft202012Validator, SchemaError, validators  # type: ignore[import-untyped]
    from referencing import Registry

    kinds = Draft202012Validator.TYPE_CHECKER.redefine("array", lambda _, value: isinstance(value, list | tuple))
    kinds = kinds.redefine("object", lambda _, value: isinstance(value, Mapping))
    kind = validators.extend(Draft202012Validator, type_checker=kinds)
    try:
        kind.check_schema(json.loads(schema))
    except SchemaError as error:
        raise BadInput("schema", why=error.message[:200]) from None
    return kind(json.loads(schema), registry=Registry())  # an empty registry: nothing is fetched


def problems(schema: Mapping[str, Any] | bool, value: Any, where: str = "arguments") -> tuple[str, ...]:
    """What a JSON Schema does not allow about a value, each with its place."""
    from referencing.exceptions import Unresolvable

    try:
        errors = list(_validator(json.dumps(schema)).iter_errors(value))
    except Unresolvable as error:
        raise BadInput(f"schema: {error.ref}", why="cannot be resolved", remedy="write it without") from None
    return tuple(f"{where}{error.json_path[1:]}: {_message(error)}" for error in errors)


def _message(error: Any) -> str:
    """The validator's message; a long one begins with the whole value, so it is replaced by the rule."""
    is_short = len(error.message) <= 200
    return str(error.message) if is_short else f"breaks {error.validator} {error.validator_value!r:.100}"


BY = ("tool", "model", "version", "window")
DAY_S = 86_400.0
ANYTHING = Interval(low=0.0, high=1.0)  # nothing was seen

Proportion = Callable[[float, float], Interval]  # of so many successes in so many trials


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAttempt:
    """One attempt at a task, with its tool calls judged."""

    task: str
    model: str | None
    version: str | None
    at: float  # unix seconds
    needs: tuple[str, ...] | None  # None: unknown, and then nothing is said of adoption and over-use
    offered: tuple[str, ...] | None = None  # None: unknown
    marks: tuple[CallMark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionRate:
    """A share of tasks, and how sure it is."""

    SCHEMA: ClassVar[int] = 1

    of: int = 0  # tasks
    tries: int = 0  # at them
    hits: float = 0.0  # the tasks' shares of tries, added up
    interval: Interval = ANYTHING

    @property
    def share(self) -> float | None:
        """None where there was no task to count."""
        return self.hits / self.of if self.of else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionRow:
    """The rates of one tool under one model, version and window; None where they are taken together."""

    SCHEMA: ClassVar[int] = 1

    tool: str | None
    model: str | None
    version: str | None
    window: float | None  # its beginning, unix seconds
    adoption: AdoptionRate  # of tasks that need the tool: those whose first call of it was well formed
    overuse: AdoptionRate  # of tasks that have it and do not need it: those that called it
    formed: AdoptionRate  # of tasks that called it: those with no call of it that was badly formed
    worked: AdoptionRate  # of tasks that called it: those whose first call gave a result, busy ones aside
    mended: AdoptionRate  # of tasks in which it failed: those in which the right thing was done about every failure
    used: AdoptionRate  # of tasks that have it, whatever they need: those that called it


@dataclass(slots=True)
class _Count:
    """Hits and tries by task."""

    tasks: dict[str, list[int]] = field(default_factory=dict)

    def add(self, task: str, hit: bool | None) -> None:
        if hit is not None:
            found = self.tasks.setdefault(task, [0, 0])
            found[0] += hit
            found[1] += 1

    def rate(self, interval: Proportion) -> AdoptionRate:
        if not self.tasks:
            return AdoptionRate()
        hits = sum(hit / tries for hit, tries in self.tasks.values())
        hits = min(hits, float(len(self.tasks)))
        tries = sum(tries for _, tries in self.tasks.values())
        return AdoptionRate(of=len(self.tasks), tries=tries, hits=hits, interval=interval(hits, len(self.tasks)))


def adoption_rates(
    records: Iterable[ToolAttempt],
    interval: Proportion,
    *,
    by: Collection[str] = ("tool", "model", "version"),
    window_s: float = DAY_S,
) -> tuple[AdoptionRow, ...]:
    """A row for each of what `by` names, in order; what it does not name is taken together."""
    if unknown := sorted(set(by) - set(BY)):
        raise BadInput(f"adoption by {unknown[0]}", why="is unknown", remedy=f"use {', '.join(BY)}")
    if not (isfinite(window_s) and window_s > 0.0):
        raise BadInput(f"adoption: a window of {window_s} s", why="must be finite and above 0")
    counts: dict[tuple[str | float | None, ...], dict[str, _Count]] = {}
    for record in records:
        begins = floor(record.at / window_s) * window_s
        for tool in sorted({*(record.needs or ()), *(record.offered or ()), *(mark.tool for mark in record.marks)}):
            full = {"tool": tool, "model": record.model, "version": record.version, "window": begins}
            key = tuple(full[name] if name in by else None for name in BY)
            mine = counts.setdefault(key, {})
            for name, hit in _hits(record, tool).items():
                mine.setdefault(name, _Count()).add(record.task, hit)
    ordered = sorted(counts.items(), key=lambda one: [(part is not None, part) for part in one[0]])
    return tuple(_row(key, found, interval) for key, found in ordered)


def _hits(record: ToolAttempt, tool: str) -> dict[str, bool | None]:
    """What each rate makes of one attempt; None: it is no case of it."""
    mine = [mark for mark in record.marks if mark.tool == tool]
    is_needed = None if record.needs is None else tool in record.needs
    lasting = [mark for mark in mine if not mark.is_passing]
    failed = [mark for mark in mine if not mark.has_worked]
    judged = [mark.structure != 0.0 for mark in mine if mark.structure is not None]
    return {
        "adoption": bool(mine) and mine[0].structure != 0.0 if is_needed else None,
        "overuse": bool(mine) if is_needed is False else None,
        "used": bool(mine) if mine or tool in (record.offered or ()) else None,
        "formed": all(judged) if judged else None,
        "worked": bool(lasting) and lasting[0].has_worked if mine else None,
        "mended": all(mark.error_handling == 1.0 for mark in failed) if failed else None,
    }


def _row(key: tuple[str | float | None, ...], found: dict[str, _Count], interval: Proportion) -> AdoptionRow:
    tool, model, version, window = key
    rates = {name: count.rate(interval) for name, count in found.items()}
    return AdoptionRow(tool=tool, model=model, version=version, window=window, **rates)  # type: ignore[arg-type]


def rate_drop(now: AdoptionRate, before: AdoptionRate) -> float | None:
    """By how much a rate has certainly fallen: its old low end minus its new high end. None without tasks."""
    return before.interval.low - now.interval.high if now.of and before.of else None


def split_version(record: ToolAttempt) -> ToolAttempt:
    """The record of a model that is called name@version, as the name and the version apart."""
    if record.model is None or record.version is not None:
        return record
    name, at, version = record.model.rpartition("@")
    return replace(record, model=name, version=version) if at and name and version else record
