"""One attempt, from the agent's call to its outcome. Where spans go and what the outcome leads to is up to the pool."""

from __future__ import annotations

import copy
import inspect
from asyncio import CancelledError
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

from holdfast.collect.agent import Context, LastWord, Score
from holdfast.collect.tracer import MAX_ERROR, failure
from holdfast.contracts.agent import Agent, answer_of
from holdfast.contracts.errors import BadRecord, Fault, Interrupted
from holdfast.contracts.executor import Outcome
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.task import TaskItem, task_of
from holdfast.contracts.trace import Span

Clock = Callable[[], float]
AGENT = "agent"  # the source of what an agent reports itself, whatever else it calls it
HIDDEN = ("expected",)  # keys of a task that are the scorer's alone: an agent that saw them could answer from them


async def run_one(agent: Agent, context: Context, score: Score) -> Outcome:
    """Call the agent, then the scorer. Only the agent's own exception is a failure; a fault of ours is never a zero."""
    trace, task = context.trace, context.assignment.input
    # Scored by what was asked, whatever the agent does to its own copy.
    asked = copy.deepcopy(shown(task))
    context = replace(context, assignment=replace(context.assignment, input=asked))
    try:
        with trace.span("agent.run", attempt=context.assignment.number):
            output = agent(asked, context)
            if inspect.isawaitable(output):
                output = await output
            output = answer_of(output)
    except Fault as fault:
        return _ended(AttemptState.FAULT, str(fault))
    except BaseException as error:  # foreign code may throw anything
        if _is_ours(error, context):
            raise
        if context.access is not None and context.access.fault is not None:  # as an agent's own client told it
            return _ended(AttemptState.FAULT, str(context.access.fault))
        return _failed(failure(error)["error"], context, score)
    finally:
        context.close()  # before it is scored: what still runs of the agent adds nothing to its trace
    try:
        signals = score(task, output, tuple(trace.spans))
        if inspect.isawaitable(signals):
            signals = await signals
        return _scored(output, (*_own(trace.signals, signals), *signals), score, tuple(trace.spans))
    except BaseException as error:  # foreign code may throw anything
        if _is_ours(error, context):
            raise
        kept = failure(error)
        trace.event("score", **kept)
        return _ended(AttemptState.FAULT, f"scoring: {kept['error']}")


def shown(task: Any) -> Any:
    """The task as its agent gets it: the row of a task set as the task that its author wrote."""
    item = task_of(task)
    if isinstance(item, TaskItem):
        return item.for_agent()
    return {key: value for key, value in task.items() if key not in HIDDEN} if isinstance(task, dict) else task


def _is_ours(error: BaseException, context: Context) -> bool:
    """Interrupted always is; a CancelledError is, when we asked for it."""
    return isinstance(error, Interrupted) or (isinstance(error, CancelledError) and context.cancelled.is_set())


def is_own(signal: RewardTerm) -> bool:
    """Whether the agent itself reported it."""
    return signal.source.partition(":")[0] == AGENT


def _own(reported: Sequence[RewardTerm], measured: Sequence[RewardTerm]) -> tuple[RewardTerm, ...]:
    """What the agent paid itself. It counts where no scorer judged; elsewhere it is kept beside, under a name of its
    own and with weight 0: an agent that could pay itself, or speak for its scorer, would need no right answer."""
    marked = [one if is_own(one) else replace(one, source=f"{AGENT}:{one.source}") for one in reported]
    if not measured:
        return tuple(marked)
    return tuple(replace(one, name=f"{AGENT}.{one.name}", weight=0.0) for one in marked)


def _scored(output: Any, signals: Sequence[RewardTerm], score: Score, spans: Sequence[Span]) -> Outcome:
    """With all signals there, a scorer that has a last word (`close`) has it; what it rejects keeps its signals."""
    close: LastWord | None = getattr(score, "close", None)
    rejected = None
    if close is not None:
        signals, rejected = close(signals, spans, output)
    sheet = RewardBreakdown(signals=tuple(signals))
    if sheet.total is not None and not isfinite(sheet.total):
        raise BadRecord("reward", why=f"the signals add up to {sheet.total}, which is not finite")
    if rejected is not None:
        return Outcome(state=AttemptState.FAILED, output=output, signals=sheet.signals, error=rejected)
    return Outcome(state=AttemptState.SUCCEEDED, output=output, signals=sheet.signals)


def _failed(error: str, context: Context, score: Score) -> Outcome:
    """The agent failed, and is not scored; but what a last word finds in what it did until then is kept as data."""
    close: LastWord | None = getattr(score, "close", None)
    ended = _ended(AttemptState.FAILED, error)
    if close is None or not (found := close((), tuple(context.trace.spans), None)[0]):
        return ended
    return replace(ended, signals=tuple(found))


def _ended(state: AttemptState, error: str) -> Outcome:
    return Outcome(state=state, error=error[:MAX_ERROR])
