"""Measures what each turn of an attempt was worth, whoever ran it, and pays for how its tools were used.

A turn has information gain, format, progress, safety, and their total by fixed weights. They are kept with weight 0:
a learner divides an attempt's credit among its turns by them (`learn.grpo`), and no attempt earns more for them. A
tool call has choice, structure, utility and error handling (`tools`); these are paid where a config gives them weights,
under the law of the outcome gate (`breakdown.add_shaping`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import fsum, isfinite
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import Features
from holdfast.contracts.reward import TURN_REWARD, TURN_SOURCES, RewardTerm, check_in, is_own
from holdfast.contracts.scorer import told_error
from holdfast.contracts.task import TaskItem, task_of
from holdfast.contracts.trace import PARTIAL, Span, SpanKind, Turn
from holdfast.privacy.detect import texts
from holdfast.reward import safety, tools
from holdfast.reward.breakdown import OutcomeGate, add_shaping
from holdfast.reward.evidence import CallEvidence, answer_of, evidence, facts, read, with_tool_calls

TURN: Mapping[str, float] = {"information_gain": 0.4, "format": 0.3, "progress": 0.2, "safety": 0.1}
TURN_SOURCE, EVIDENCE = TURN_SOURCES
SCREENED = "secrets_told"  # the ready scorer
MAX_FEEDBACK = 500  # characters


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRewards:
    """What is measured at the end of every attempt. `weights` are shares of what the hidden check counts."""

    weights: Mapping[str, float] = field(
        default_factory=dict
    )  # of the terms in `tools.SHARES`; what is not named is not paid
    catalog: Sequence[Mapping[str, Any]] = ()  # tools that tasks may name
    has_tools: bool = True  # False: how tools were used is not looked at

    def __post_init__(self) -> None:
        if not isinstance(self.weights, Mapping):
            raise BadInput(f"tool_reward = {self.weights!r}", why="is not a table", remedy='as in {"choice": 0.04}')
        for name, weight in self.weights.items():
            if name not in tools.SHARES:
                raise BadInput(f"tool_reward.{name}", why="is unknown", remedy=f"use {', '.join(tools.SHARES)}")
            if type(weight) not in (int, float) or not (isfinite(weight) and weight >= 0.0):
                raise BadInput(f"tool_reward.{name} = {weight}", why="must be finite and at least 0")
        if (whole := fsum(self.weights.values())) > OutcomeGate().cap:
            why = f"its weights add up to {whole:g}, and shaping moves at most {OutcomeGate().cap:g} of the outcome"
            raise BadInput("tool_reward", why=why, remedy="lower them")

    def without(self, features: Features) -> TurnRewards:
        """What is measured for a unit that does not get every feature."""
        return replace(self, has_tools=self.has_tools and features.tool_rewards)

    def __call__(
        self, task: Any, output: Any, spans: Sequence[Span], signals: Sequence[RewardTerm]
    ) -> tuple[RewardTerm, ...]:
        """The signals of an attempt, those of its turns and tool calls behind them.

        The trace may hold anything that an agent or its endpoint wrote: where it cannot be measured, that is said."""
        try:
            return self._measured(task, output, spans, signals)
        except Exception as error:
            message = f"could not be measured: {told_error(error)}"[:MAX_FEEDBACK]
            none = RewardTerm(name=TURN_REWARD, value=0.0, weight=0.0, source=TURN_SOURCE, turn=0, feedback=message)
            return (*signals, none)

    def _measured(
        self, task: Any, output: Any, spans: Sequence[Span], signals: Sequence[RewardTerm]
    ) -> tuple[RewardTerm, ...]:
        spans = with_tool_calls(spans)
        turns = read(spans)
        if not turns:
            return tuple(signals)
        item = _view(task)
        schemas, needs = self._offered(item, spans), tools.names(item.get("needs"))
        answer = answer_of(spans) if output is None else output
        facts_found = evidence(spans, answer)
        own = _terms(turns, facts_found, item, needs, schemas, answer, spans, signals)
        if not self.has_tools:
            return (*signals, *own)
        marks = tools.marks(spans, needs=needs, schemas=schemas, answer=answer, found=facts_found)
        used = tools.signals(marks, needs, self.weights)
        if self.weights:
            return (*add_shaping(signals, used), *own)
        return (*signals, *own, *(term for term in used if term.turn is not None))

    def _offered(self, item: Mapping[str, Any], spans: Sequence[Span]) -> tools.Schemas | None:
        """As the last request with tools gave them, else as the task names them; None where nothing is known."""
        calls = (span.model for span in reversed(spans) if span.model is not None)
        requested = next((given for call in calls if (given := call.sampling.get("tools"))), None)
        if requested is not None:
            return _requested(requested)
        named, known = tools.names(item.get("tools")), tools.schemas_in(item, self.catalog)
        if named is None or known is None:
            return {} if named == () else known
        return {name: known[name] for name in named}


def _requested(given: Any) -> tools.Schemas | None:
    """The tools of a request, those of the server by their type; None where one cannot be checked against."""
    try:
        found = tools.schemas_of(one if "function" in one else {"name": one.get("type"), **one} for one in given)
        for schema in found.values():
            tools.problems(schema, {})
    except BadInput:
        return None
    return found


def _view(task: Any) -> Mapping[str, Any]:
    """What the task says of tools, needs and its answer, whichever way it is written."""
    item = task_of(task)
    if isinstance(item, TaskItem):
        return {**(item.input if isinstance(item.input, Mapping) else {}), **item.metadata, "expected": item.expected}
    return item if isinstance(item, Mapping) else {}


def _terms(
    found: Sequence[Turn],
    facts_found: Sequence[CallEvidence],
    item: Mapping[str, Any],
    needs: Sequence[str] | None,
    schemas: tools.Schemas | None,
    answer: Any,
    spans: Sequence[Span],
    signals: Sequence[RewardTerm],
) -> list[RewardTerm]:
    """Five terms for each turn."""
    by_turn: dict[int, list[CallEvidence]] = {turn.index: [] for turn in found}
    for call in facts_found:
        by_turn.get(call.turn if call.turn is not None else 0, []).append(call)
    judged = [signal for signal in signals if signal.turn is None and not is_own(signal)]
    whole = {term.name.rpartition(".")[2]: term.value for term in judged}
    heights = _heights(by_turn, item, needs, check_in(judged), is_answered=bool(answer))
    is_screened = whole.get(SCREENED) == 0.0  # a scorer has looked for secrets, and found none
    costs = _costs(found, spans, schemas, answer, whole.get("safety_cost", 0.0), is_screened=is_screened)
    terms: list[RewardTerm] = []
    for turn in found:
        at = turn.index
        is_last = at == len(found) - 1
        values = {
            "information_gain": _gain(by_turn[at]),
            "format": _format(turn, schemas, whole.get("format") if is_last else None),
            "progress": heights[at + 1] - heights[at],
            "safety": 1.0 - costs.get(at, 0.0),
        }
        values[TURN_REWARD] = fsum(TURN[name] * value for name, value in values.items())
        terms += [
            RewardTerm(
                name=n, value=v, weight=0.0, source=EVIDENCE if n == "information_gain" else TURN_SOURCE, turn=at
            )
            for n, v in values.items()
        ]
    return terms


def _gain(brought: Sequence[CallEvidence]) -> float:
    """The share of the new facts in a turn's results that led to the answer; a fact that two of them hold is one."""
    fresh = frozenset[str]().union(*(call.fresh for call in brought))
    used = frozenset[str]().union(*(call.used for call in brought))
    return len(used) / len(fresh) if fresh else 0.0


def _format(turn: Turn, schemas: tools.Schemas | None, asked_style: float | None) -> float:
    """Whether its calls are what their tools ask for, or its answer is whole and has the style that was asked for."""
    call, calls = turn.decision.model, [span.tool for span in turn.effects if span.tool is not None]
    assert call is not None
    if call.finish_reason == "length":
        return 0.0
    if calls:
        return float(schemas is None or all(tools.fits(call, schemas) for call in calls))
    if not call.response.get("content"):
        return 0.0
    return 1.0 if asked_style is None else min(1.0, max(0.0, asked_style))


def _heights(
    by_turn: Mapping[int, Sequence[CallEvidence]],
    item: Mapping[str, Any],
    needs: Sequence[str] | None,
    check: RewardTerm | None,
    *,
    is_answered: bool,
) -> list[float]:
    """Φ before the first turn and after each: the share of needed tools that gave a result, and of facts of the
    expected answer that results hold; after the last turn, what the hidden check says. The steps add up to that."""
    expected = facts(item.get("expected"))
    of = len(set(needs or ())) + len(expected)
    tools_seen, facts_seen, heights = set[str](), set[str](), [0.0]
    for brought in by_turn.values():
        tools_seen |= {
            call.call.tool for call in brought if call.call.error is None and call.call.tool in (needs or ())
        }
        facts_seen |= expected & frozenset[str]().union(*(call.fresh for call in brought))
        heights.append((len(tools_seen) + len(facts_seen)) / of if of else 0.0)
    if check is not None or not is_answered:  # without an answer nothing was reached
        heights[-1] = 0.0 if check is None else min(1.0, max(0.0, check.value))
    return heights


def _costs(
    found: Sequence[Turn],
    spans: Sequence[Span],
    schemas: tools.Schemas | None,
    answer: Any,
    whole: float,
    *,
    is_screened: bool,
) -> dict[int, float]:
    """What was unsafe, by turn: an event that was reported or found, a tool that was not offered. A cost of the whole
    attempt that no turn explains is the last turn's."""
    complete = [span for span in spans if span.kind is not SpanKind.MODEL or PARTIAL not in span.attributes]
    events = list(safety.reported_events(complete))
    if not is_screened and _has_secrets(complete, answer):  # in all at once first: hardly any attempt has one
        events += safety.find_events(complete, output=answer)
    costs = {event.turn or 0: 1.0 for event in events}
    for turn in found if schemas is not None else ():
        if any(span.tool is not None and span.tool.tool not in (schemas or {}) for span in turn.effects):
            costs[turn.index] = 1.0
    if whole > 0.0 and not costs:
        costs[found[-1].index] = min(1.0, whole)
    return costs


def _has_secrets(spans: Sequence[Span], answer: Any) -> bool:
    """Whether anything that left the agent looks like a secret."""
    left = [span.model.response for span in spans if span.model is not None]
    left += [span.tool.arguments for span in spans if span.tool is not None]
    left += [span.attributes for span in spans if span.kind is SpanKind.MESSAGE]
    return bool(safety.screen("\n\n".join({*texts([*left, answer])}), safety.SafetyStage.OUTBOUND))
