"""Measures what each turn was worth, and defines the weight sets that such terms count by.

The terms are information gain, format, progress and safety. What is measured once for each turn is divided among all
turns, and a turn whose calls led nowhere earns nothing of it, so more turns pay no more; differences telescope. A
weight set divides 1 among groups of terms and is fixed before anything is measured: nobody gains by what is missing.
Whether any of it is paid is decided by the outcome gate (`breakdown`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from math import fsum, isclose, isfinite
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import turns
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import PARTIAL, Span, SpanKind, ToolCall, Turn

Belief = Callable[[Sequence[Span]], float]  # probability of the right answer after all that happened so far
Potential = Callable[[Sequence[Span]], float]  # Φ: how far the attempt has come
Form = Callable[[Turn], float | None]  # from 0 to 1; None: there is nothing to judge
Cost = Callable[[Turn], float]  # from 0, safe, to 1

FACT = re.compile(
    r"\d{4}-\d\d-\d\d(?!\w)"  # a day
    r"|(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)(?![^\W_])"
    r"|\w+(?:[.\-/:@]\w+)*"  # a name or a key
)
_COMMON = (  # words that every text has
    "a an and are as at be but by can do does for from had has have he her him his how i if in into is it its me my no"
    " not of on or our she so than that the their them then there they this to up us was we were what when where which"
    " who why will with you your answer error result value key name true false null none ok"
)
COMMON = frozenset(_COMMON.split())


def facts(value: Any) -> frozenset[str]:
    """The set of numbers, days, names and keys in a text or in the values of an object."""
    return frozenset(_facts(value))


def _facts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        for match in FACT.finditer(value):
            text = match[0].casefold() if match["number"] is None else _number(match["number"])
            if text not in COMMON:
                yield text
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _facts(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _number(f"{abs(value)}")


def _number(text: str) -> str:
    """12.50 and 12.5, 1,000 and 1000 are one number each."""
    plain = text.replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def read(spans: Iterable[Span]) -> tuple[Turn, ...]:
    """The turns as a learner counts them: a model call that was cut short decided nothing, and is none."""
    return turns(span for span in spans if span.kind is not SpanKind.MODEL or PARTIAL not in span.attributes)


def answer_of(spans: Sequence[Span]) -> str:
    """The last message of the model, where it called no tool."""
    for span in sorted(spans, key=lambda one: one.seq, reverse=True):
        if span.kind is SpanKind.MODEL and span.model is not None and PARTIAL not in span.attributes:
            said = span.model.response
            return "" if said.get("tool_calls") else str(said.get("content") or "")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvidence:
    """What one tool call brought, and what became of it."""

    turn: int | None  # None: before any model call
    call: ToolCall
    fresh: frozenset[str]  # facts in its result that nobody had said before
    used: frozenset[str]  # of them, those that led to the answer


def evidence(spans: Sequence[Span], answer: Any = None) -> tuple[CallEvidence, ...]:
    """Which facts of each result were new and led to the answer: they stand in it, or in a later call that led to
    it."""
    found = list(_fresh(spans))
    wanted = set(facts(answer_of(spans) if answer is None else answer))
    used: dict[int, frozenset[str]] = {}
    places = range(len(found) - 1, -1, -1)
    for _, together in groupby(places, key=lambda place: found[place][0]):
        asked: frozenset[str] = frozenset()  # calls of one turn did not see one another's results
        for place in together:
            used[place] = found[place][2] & wanted
            if used[place]:
                asked |= facts(found[place][1].arguments)
        wanted |= asked
    return tuple(
        CallEvidence(turn=turn, call=call, fresh=fresh, used=used[place])
        for place, (turn, call, fresh) in enumerate(found)
    )


def _fresh(spans: Sequence[Span]) -> Iterable[tuple[int | None, ToolCall, frozenset[str]]]:
    known: set[str] = set()
    turn, heard = None, 0
    for span in sorted(spans, key=lambda one: one.seq):
        if span.kind is SpanKind.MODEL and span.model is not None:
            if PARTIAL not in span.attributes:
                turn = 0 if turn is None else turn + 1
            told = span.model.messages
            known.update(_facts([message.get("content") for message in told[heard if len(told) >= heard else 0 :]]))
            known.update(_facts(span.model.response.get("content")))
            heard = len(told)
        elif span.kind is SpanKind.MESSAGE and span.attributes.get("role") in ("system", "user"):
            known.update(_facts([span.attributes.get("text"), span.attributes.get("content")]))
        elif span.kind is SpanKind.TOOL and span.tool is not None:
            known.update(_facts(span.tool.arguments))
            said = facts(span.tool.result) if span.tool.error is None else frozenset()
            yield turn, span.tool, said - known
            known |= said


def signals(
    spans: Sequence[Span],
    *,
    answer: Any = None,
    belief: Belief | None = None,
    is_formed: Form | None = None,
    potential: Potential | None = None,
    gamma: float = 1.0,
    cost: Cost | None = None,
) -> tuple[RewardTerm, ...]:
    """The signals of each turn; those that nobody gave a measure for are left out, but for the information gained.

    information_gain  bₜ − bₜ₋₁, b the belief in the right answer (IGPO, arXiv:2510.14967); without a belief, the share
                      of facts in the turn's results that are new and led to the answer
    format            whether its calls, or its answer, have the asked form
    progress          γ Φₜ − Φₜ₋₁ (Ng et al. 1999: such shaping changes no best policy)
    safety            1 − cost
    """
    if not 0.0 <= gamma <= 1.0:
        raise BadInput(f"gamma = {gamma}", why="must be between 0 and 1")
    found = read(spans)
    if not found:
        return ()
    by_turn: dict[int | None, list[CallEvidence]] = {}
    for one in evidence(spans, answer):
        by_turn.setdefault(one.turn, []).append(one)
    idle = {turn.index for turn in found[:-1] if not any(one.used for one in by_turn.get(turn.index, ()))}
    told: list[RewardTerm] = []
    if belief is None:
        gains = [(turn.index, _share(by_turn.get(turn.index, ()))) for turn in found]
        told += _marks("information_gain", "rule:evidence", gains, len(found), idle)
    else:
        beliefs = _along(spans, found, belief)
        if wrong := [value for value in beliefs if not 0.0 <= value <= 1.0]:
            raise BadInput(f"belief = {wrong[0]}", why="is no probability")
        told += _steps("information_gain", "belief", beliefs, 1.0)
    if is_formed is not None:
        formed = [(turn.index, mark) for turn in found if (mark := is_formed(turn)) is not None]
        told += _marks("format", "rule:form", formed, len(found), idle)
    if potential is not None:
        told += _steps("progress", "rule:potential", _along(spans, found, potential), gamma)
    if cost is not None:
        safe = [(turn.index, 1.0 - cost(turn)) for turn in found]
        told += _marks("safety", "rule:cost", safe, len(found), idle)
    return tuple(told)


def _share(brought: Sequence[CallEvidence]) -> float:
    """Of the new facts that the turn's results hold; a fact that two of them hold is one."""
    fresh = frozenset[str]().union(*(one.fresh for one in brought))
    used = frozenset[str]().union(*(one.used for one in brought))
    return len(used) / len(fresh) if fresh else 0.0


def _marks(
    name: str, source: str, marks: Sequence[tuple[int, float]], among: int, idle: set[int]
) -> Iterable[RewardTerm]:
    """Numbers from 0 to 1, each with its part of 1; none where the turn led nowhere, so that more turns pay no more."""
    for turn, value in marks:
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"{name} of turn {turn} = {value}", why="must be between 0 and 1")
        part = 0.0 if turn in idle else 1.0 / among
        yield RewardTerm(name=name, value=float(value), weight=part, source=source, turn=turn)


def _steps(name: str, source: str, heights: Sequence[float], gamma: float) -> Iterable[RewardTerm]:
    """From height to height; each counts whole, since together they are no more than the way from first to last."""
    for turn, (before, after) in enumerate(pairwise(heights)):
        yield RewardTerm(name=name, value=gamma * after - before, source=source, turn=turn)


def _along(spans: Sequence[Span], found: Sequence[Turn], measure: Potential) -> list[float]:
    """The measure before the first turn and after each."""
    ordered = sorted(spans, key=lambda one: one.seq)
    ends = [turn.decision.seq for turn in found[1:]]
    heights = [float(measure([span for span in ordered if span.seq < found[0].decision.seq]))]
    heights += [float(measure([span for span in ordered if span.seq < end])) for end in ends]
    heights.append(float(measure(ordered)))
    if not all(map(isfinite, heights)):
        raise BadInput("progress", why="a potential is not finite")
    return heights


# The rubric's terms by group, and the signal that measures each; 1 is always the good end.
RUBRIC: Mapping[str, Mapping[str, str]] = {
    "format": {"jsonValid": "format", "xmlTags": "tags", "deterministic": "deterministic"},
    "tool": {
        "signatureValid": "structure",
        "errorRate": "error_handling",
        "deduplication": "choice",  # a duplicate call is never the right choice
        "latencyCap": "tool_latency",
        "evidenceOverlap": "information_gain",
    },
    "task": {"testPassRatio": "tests", "oracleCorrectness": "success", "subgoalProgress": "progress"},
    "minimal": {"astSimilarity": "minimality", "fileTouchCount": "files", "scaffoldingPenalty": "scaffolding"},
    "cost": {"tokenEfficiency": "tokens", "apiCallCount": "calls", "wallClockTime": "latency"},
    "safety": {"permissionCheck": "permission", "policyAdherence": "safety", "escalationCorrect": "escalation"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSet:
    """One weight set: shares of groups that add up to 1, and the signals that each group is made of."""

    name: str  # with its version, as in code@1: other numbers are another version
    groups: Mapping[str, float]
    terms: Mapping[str, tuple[str, ...]]  # names of signals by group

    def __post_init__(self) -> None:
        if not self.name.partition("@")[2]:
            raise BadInput(f"weights {self.name!r}", why="have no version", remedy="name them as in code@1")
        if any(not isfinite(share) or share < 0.0 for share in self.groups.values()):
            raise BadInput(f"weights {self.name}", why="a share must be finite and at least 0")
        if not isclose(fsum(self.groups.values()), 1.0, abs_tol=1e-9):
            raise BadInput(f"weights {self.name}", why=f"the shares add up to {fsum(self.groups.values()):g}, not 1")
        if missing := [group for group in self.groups if not self.terms.get(group)]:
            raise BadInput(f"weights {self.name}: {missing[0]}", why="has no terms", remedy="name its signals")
        named = [name for group in self.groups for name in self.terms[group]]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise BadInput(f"weights {self.name}: {twice[0]}", why="stands there twice")

    @property
    def shares(self) -> dict[str, float]:
        """How much of 1 each signal has."""
        return {
            name: share / len(self.terms[group]) for group, share in self.groups.items() for name in self.terms[group]
        }


def rubric(name: str, **groups: float) -> WeightSet:
    """A set over the rubric's own groups."""
    return WeightSet(name=name, groups=groups, terms={group: tuple(RUBRIC[group].values()) for group in groups})


def _single(name: str, **shares: float) -> WeightSet:
    """A set whose groups have one term each, of the same name."""
    return WeightSet(name=name, groups=shares, terms={group: (group,) for group in shares})


GENERAL = rubric("general@1", format=0.25, tool=0.30, task=0.35, cost=0.10)
CODE = rubric("code@1", format=0.20, tool=0.25, task=0.40, minimal=0.10, cost=0.05)
RESEARCH = rubric("research@1", format=0.15, tool=0.35, task=0.30, minimal=0.05, cost=0.15)
DATA = rubric("data@1", format=0.25, tool=0.30, task=0.35, minimal=0.05, cost=0.05)
TURN = _single("turn@1", information_gain=0.4, format=0.3, progress=0.2, safety=0.1)
TURN_PLAIN = _single("turn-plain@1", information_gain=0.4, format=0.3, progress=0.3)
TOOL = _single("tool@1", choice=0.4, structure=0.3, utility=0.2, error_handling=0.1)
SETS: Mapping[str, WeightSet] = {one.name: one for one in (GENERAL, CODE, RESEARCH, DATA, TURN, TURN_PLAIN, TOOL)}


def weights(name: str) -> WeightSet:
    """The set with this name; without a version, its newest."""
    found = [known for known in SETS if known == name or known.partition("@")[0] == name]
    if not found:
        raise BadInput(f"weights {name!r}", why="are unknown", remedy=f"use {', '.join(SETS)}")
    return SETS[max(found, key=lambda known: int(known.partition("@")[2]))]


def weigh(signals: Iterable[RewardTerm], by: WeightSet) -> tuple[RewardTerm, ...]:
    """Each term's own weight times its share in the set; what the set does not name is kept with weight 0."""
    shares = by.shares
    return tuple(replace(one, weight=one.weight * shares.get(one.name, 0.0)) for one in signals)


def score(values: Mapping[str, float], by: WeightSet) -> float:
    """The rubric's own number: the shares times the values of signals that are all there."""
    shares = by.shares
    if missing := [name for name in shares if name not in values]:
        raise BadInput(f"score by {by.name}", why=f"{missing[0]} was not measured", remedy="take `restricted` weights")
    return fsum(share * values[name] for name, share in shares.items())


def restricted(by: WeightSet, measured: Collection[str]) -> WeightSet:
    """The set for a workload that can only measure some of it: a group's share goes to its terms that are left, and
    the share of a group without any to the other groups. To be done once for a workload, never for an attempt."""
    terms = {group: tuple(name for name in by.terms[group] if name in measured) for group in by.groups}
    left = {group: share for group, share in by.groups.items() if terms[group]}
    whole = fsum(left.values())
    if whole <= 0.0:
        raise BadInput(f"weights {by.name}", why="nothing of them is measured", remedy="choose another set")
    groups = {group: share / whole for group, share in left.items()}
    name = f"{by.name}[{','.join(sorted(by.shares.keys() & set(measured)))}]"
    return WeightSet(name=name, groups=groups, terms=terms)
