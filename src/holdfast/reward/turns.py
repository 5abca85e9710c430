"""What each turn was worth: what it found out, whether it kept its form, how far it came, how safe it was.

Nothing here is paid by length or by number: what is measured once for each turn is divided among all turns, and a turn
whose calls led nowhere earns nothing of it; what is a difference telescopes. A signal's weight is only its part among
those of its name: how much a name counts is up to `weights`, whether any of it is paid to the guard (`sheet`). What a
belief, a potential, a form or a cost is, the caller says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import isfinite
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
COMMON = frozenset(  # words that every text has
    re.findall(
        r"\w+",
        "a an and are as at be but by can do does for from had has have he her him his how i if in into is it its me "
        "my no not of on or our she so than that the their them then there they this to up us was we were what when "
        "where which who why will with you your answer error result value key name true false null none ok",
    )
)


def facts(value: Any) -> frozenset[str]:
    """Numbers, days, names and keys in a text or in the values of an object; how often each is said is no matter."""
    found: set[str] = set()
    _collect(value, found)
    return frozenset(found)


def _collect(value: Any, found: set[str]) -> None:
    if isinstance(value, str):
        for match in FACT.finditer(value):
            number = match["number"]
            text = match[0].casefold() if number is None else _number(number)
            if text not in COMMON:
                found.add(text)
    elif isinstance(value, Mapping):
        for each in value.values():
            _collect(each, found)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, found)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        found.add(_number(f"{abs(value)}"))


def _number(text: str) -> str:
    """12.50 and 12.5, 1,000 and 1000 are one number each."""
    plain = text.replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def read(spans: Iterable[Span]) -> tuple[Turn, ...]:
    """The turns as a learner counts them: a model call that was cut short decided nothing, and is none."""
    return turns(span for span in spans if span.kind is not SpanKind.MODEL or PARTIAL not in span.attributes)


def answer_of(spans: Sequence[Span]) -> str:
    """What was said last, where no tool was called with it."""
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
    """Which facts of each result were new, and led to the answer: they stand in it, or in a later call that did.

    A call is of use by what its own result led to: to copy a result into a call that leads nowhere is no use of it.
    """
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
            _collect([message.get("content") for message in told[heard if len(told) >= heard else 0 :]], known)
            _collect(span.model.response.get("content"), known)
            heard = len(told)
        elif span.kind is SpanKind.MESSAGE and span.attributes.get("role") in ("system", "user"):
            _collect([span.attributes.get("text"), span.attributes.get("content")], known)
        elif span.kind is SpanKind.TOOL and span.tool is not None:
            _collect(span.tool.arguments, known)
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
        told += _steps("information_gain", "belief", _along(spans, found, _unit("belief", belief)), 1.0)
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


def _unit(name: str, measure: Belief) -> Belief:
    def checked(history: Sequence[Span]) -> float:
        value = measure(history)
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"{name} = {value}", why="is no probability")
        return value

    return checked
