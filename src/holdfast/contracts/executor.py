"""The seam of executors: where the agent of one attempt runs, and the kit that every kind passes.

An executor runs one attempt at a time; a pool has one for each of its slots. It gets the agent when it is made, plain
data with each attempt, and writes nothing itself: what happens is handed to `record`, the end to `report`. Who is
interrupted, and why, is the pool's business.
"""

from __future__ import annotations

import hashlib
import hmac
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.contracts.budget import BudgetChange
from holdfast.contracts.checks import require
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One claim as the agent's side sees it: plain data, so that it can travel to another process."""

    rollout: str
    attempt: str
    number: int  # which try this is: 1, 2, …
    split: str | None
    input: Any
    resources: Mapping[str, Any]
    seed: int  # this attempt's own random key
    version: str | None = None  # of the policy that must answer; None: whichever is in force
    features: Features = ALL_ON  # what flags leave of them for this task's unit
    capability: str | None = None  # to speak for this attempt at the capture proxy, when the run has one


def capability(key: bytes, rollout: str, number: int) -> str:
    """What lets its bearer speak for one attempt, and for no other."""
    return hmac.new(key, f"attempt\n{rollout}\n{number}".encode(), hashlib.sha256).hexdigest()[:32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended, if it ended by itself."""

    state: AttemptState  # succeeded, failed (the agent did) or fault (we did)
    output: Any = None
    signals: tuple[RewardTerm, ...] = ()
    error: str | None = None

    @property
    def reward(self) -> float | None:
        return RewardBreakdown(signals=self.signals).total


Record = Callable[[Span | BudgetChange], None]
Report = Callable[[Outcome | None, BaseException | None], None]  # may be called from any thread


class Executor(Protocol):
    def is_ready(self) -> bool:
        """Whether work can begin as it is."""
        ...

    def prepare(self) -> None:
        """Get ready to begin; may take a while, and is called from a thread of its own. A Fault where it cannot."""
        ...

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        """Start the work; the iterator holds ever harder measures to end it, each step one of them.

        Spans are recorded while it goes on and before its end is reported, which happens once; after the last measure
        nobody waits for that any more, and the executor can be prepared for the next attempt. A Fault where the work
        cannot begin."""
        ...

    def hindered(self) -> Callable[[], bool]:
        """Start looking whether another agent keeps this one from running; a moment later the answer says so.

        Then all whom that agent hinders are sent away: their work is reported as not done."""
        ...

    def close(self) -> None: ...


# The kit for whoever writes another kind


AGENTS = (f"{__name__}:plain_agent", f"{__name__}:async_agent")  # what the kit has executed


def plain_agent(task: Mapping[str, Any], ctx: Any) -> Any:
    """Does what its task says: returns, raises, or spins and cannot be asked to stop."""
    if "raise" in task:
        raise ValueError(task["raise"])
    if "spin_s" in task:
        ctx.trace.event("spinning")
        end = time.monotonic() + task["spin_s"]
        while time.monotonic() < end:
            pass
    return task["say"]


async def async_agent(task: Mapping[str, Any], ctx: Any) -> Any:
    return plain_agent(task, ctx)


def check_executor(make: Callable[[str], Executor], *, within_s: float = 60.0, grace_s: float = 1.0) -> None:
    """Attempts end once and as their agent ended them, spans first; one that spins is ended, and the next one runs.

    `make` gives a new executor for an agent by name (`contracts.agent.load_named`), without a scorer. `within_s` is
    how long an attempt may take, and `grace_s` how long a measure has to work."""
    for agent in AGENTS:
        executor = make(agent)
        try:
            _Trial(executor, agent.partition(":")[2], within_s, grace_s).run()
        finally:
            executor.close()


class _Trial:
    def __init__(self, executor: Executor, name: str, within_s: float, grace_s: float) -> None:
        self._executor, self._name, self._within_s, self._grace_s = executor, name, within_s, grace_s
        self._count = 0
        self._heard: queue.Queue[Span | BudgetChange | tuple[Outcome | None, BaseException | None]]

    def run(self) -> None:
        self._answers("seven")
        self._begin({"raise": "no such thing"})
        failed = self._outcome()
        is_told = failed.state is AttemptState.FAILED and "no such thing" in (failed.error or "")
        self._require(is_told, f"an agent that raised has ended as {failed.state}: {failed.error}")
        self._answers("eight")
        measures = self._begin({"spin_s": 2 * self._within_s, "say": "nine"})
        self._require(isinstance(self._hear(), Span), "what an agent does is not recorded while it goes on")
        is_hindered = self._executor.hindered()
        time.sleep(min(0.1, self._grace_s))
        self._require(not is_hindered(), "an agent that is alone is hindered by another")
        for _ in measures:
            time.sleep(self._grace_s)
        self._answers("ten")

    def _answers(self, text: str) -> None:
        self._begin({"say": text})
        outcome = self._outcome()
        is_right = outcome.state is AttemptState.SUCCEEDED and outcome.output == text
        self._require(is_right, f"an agent that said {text!r} has ended as {outcome}")

    def _begin(self, task: Mapping[str, Any]) -> Iterator[None]:
        executor = self._executor
        if not executor.is_ready():
            executor.prepare()
            self._require(executor.is_ready(), "it was prepared and is not ready")
        self._count += 1
        heard = self._heard = queue.Queue()  # of this attempt: what an earlier one still says is no answer
        names: dict[str, Any] = {"rollout": "kit/t", "attempt": f"kit/t:attempt-{self._count}", "number": 1}
        given = Assignment(**names, split=None, input=dict(task), resources={}, seed=7)
        return executor.begin(given, heard.put, lambda outcome, error: heard.put((outcome, error)))

    def _outcome(self) -> Outcome:
        """Of an attempt that ends by itself."""
        spans = 0
        while not isinstance(heard := self._hear(), tuple):
            spans += 1
        outcome, error = heard
        if error is not None or outcome is None:
            raise AssertionError(f"{self._name}: an attempt that ended is reported as {outcome}, {error!r}")
        self._require(spans > 0, "the end of an attempt is reported before its spans")
        time.sleep(min(0.1, self._grace_s))
        self._require(self._heard.empty(), "something is reported after the end of an attempt")
        return outcome

    def _hear(self) -> Span | BudgetChange | tuple[Outcome | None, BaseException | None]:
        try:
            return self._heard.get(timeout=self._within_s)
        except queue.Empty:
            raise AssertionError(f"{self._name}: nothing is heard of an attempt for {self._within_s:g} s") from None

    def _require(self, is_so: bool, says: str) -> None:
        require(is_so, f"{self._name}: {says}")
