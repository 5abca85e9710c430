"""One attempt, from the agent's call to its outcome. Where spans go and what the outcome leads to is up to the pool."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.collect.agent import Agent, Context, Score
from holdfast.contracts.errors import Fault, HoldfastError
from holdfast.contracts.reward import Sheet, Signal
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.shapes import Unfit, shape

Clock = Callable[[], float]
MAX_ERROR = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended, if it ended by itself."""

    state: AttemptState  # succeeded, failed (the agent did) or fault (we did)
    output: Any = None
    signals: tuple[Signal, ...] = ()
    error: str | None = None

    @property
    def reward(self) -> float | None:
        return Sheet(signals=self.signals).total


async def run_one(agent: Agent, context: Context, score: Score) -> Outcome:
    """Call the agent, then the scorer. Only the agent's own exception is a failure; a fault of ours is never a zero."""
    trace = context.trace
    try:
        with trace.span("agent.run", attempt=context.assignment.number):
            output = agent(context.assignment.input, context)
            if inspect.isawaitable(output):
                output = await output
            output = shape(Any).encode(output)
    except Unfit as unfit:
        return _ended(AttemptState.FAILED, f"the agent's answer{unfit.path} {unfit.why}: return JSON")
    except Fault as fault:
        return _ended(AttemptState.FAULT, str(fault))
    except Exception as error:
        return _ended(AttemptState.FAILED, _told(error))
    try:
        signals = score(context.assignment.input, output, tuple(trace.spans))
        if inspect.isawaitable(signals):
            signals = await signals
        sheet = Sheet(signals=(*trace.signals, *signals))
    except Exception as error:
        return _ended(AttemptState.FAULT, f"scoring: {_told(error)}")
    return Outcome(state=AttemptState.SUCCEEDED, output=output, signals=sheet.signals)


def _ended(state: AttemptState, error: str) -> Outcome:
    return Outcome(state=state, error=error[:MAX_ERROR])


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
