"""The kit of executors: all three built-in kinds pass, and each promise is broken once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.collect.agent import load_agent, no_model
from holdfast.collect.executors import AgentRuntime
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.agent import is_async
from holdfast.contracts.executor import Assignment, Executor, Outcome, Record, Report, check_executor
from holdfast.contracts.rollout import AttemptState
from tests.collect.agents import no_score


@pytest.fixture
def homes() -> Iterator[list[AgentRuntime]]:
    opened: list[AgentRuntime] = []
    yield opened
    for home in opened:
        home.close()


def test_threads_and_loops_in_this_process_pass(homes: list[AgentRuntime]) -> None:
    def make(agent: str) -> Executor:
        homes.append(AgentRuntime(load_agent(agent), no_score, no_model, time.time))
        return homes[-1].executor()

    check_executor(make, within_s=20.0, grace_s=0.3)
    assert [is_async(home.agent) for home in homes] == [False, True]  # a thread for one, a loop for the other


def test_processes_pass() -> None:
    check_executor(lambda agent: ProcessExecutor(ProcessRecipe(agent, no_score, no_model)), within_s=30.0, grace_s=0.3)


class Simple:
    """Runs plain agents in threads, and the rest of the kit's on loops: the least that passes nearly all of it."""

    def __init__(self, home: AgentRuntime) -> None:
        self._executor = home.executor()

    def is_ready(self) -> bool:
        return self._executor.is_ready()

    def prepare(self) -> None:
        self._executor.prepare()

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        return self._executor.begin(assignment, record, report)

    def hindered(self) -> Callable[[], bool]:
        return lambda: False

    def close(self) -> None:
        self._executor.close()


class NeverReady(Simple):
    def is_ready(self) -> bool:
        return False


class Silent(Simple):
    """Tells of what happened only in the end, and then not at all."""

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        return super().begin(assignment, lambda span: None, report)


class Late(Simple):
    """Tells of what happened once it is over."""

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        kept: list[Any] = []

        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            report(outcome, error)
            for span in kept:
                record(span)

        return super().begin(assignment, kept.append, end)


class AtTheEnd(Simple):
    """Tells of what happens only when it has ended."""

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        kept: list[Any] = []

        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            for span in kept:
                record(span)
            report(outcome, error)

        return super().begin(assignment, kept.append, end)


class Twice(Simple):
    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            report(outcome, error)
            report(outcome, error)

        return super().begin(assignment, record, end)


class Raising(Simple):
    """An agent that fails is an error of the executor's."""

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            is_failed = outcome is not None and outcome.state is AttemptState.FAILED
            report(None if is_failed else outcome, ValueError("it failed") if is_failed else error)

        return super().begin(assignment, record, end)


class Forgiving(Simple):
    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            report(outcome and Outcome(state=AttemptState.SUCCEEDED, output=outcome.output or "fine"), error)

        return super().begin(assignment, record, end)


class Repeating(Simple):
    """Gives every attempt the first one's answer."""

    first: Outcome | None = None

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            if outcome is not None and outcome.state is AttemptState.SUCCEEDED:
                outcome = self.first = self.first or outcome
            report(outcome, error)

        return super().begin(assignment, record, end)


class Accusing(Simple):
    def hindered(self) -> Callable[[], bool]:
        return lambda: True


class Queueing(Simple):
    """Ends nobody: whoever comes next waits."""

    def __init__(self, home: AgentRuntime) -> None:
        super().__init__(home)
        self._turn = threading.Lock()

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        def end(outcome: Outcome | None, error: BaseException | None) -> None:
            self._turn.release()
            report(outcome, error)

        def start() -> None:
            self._turn.acquire()
            Simple.begin(self, assignment, record, end)

        threading.Thread(target=start, daemon=True).start()
        return iter(())


WRONG: list[tuple[type[Simple], str]] = [
    (NeverReady, "it was prepared and is not ready"),
    (Silent, "the end of an attempt is reported before its spans"),
    (Late, "the end of an attempt is reported before its spans"),
    (AtTheEnd, "nothing is heard of an attempt for 1 s"),
    (Twice, "something is reported after the end"),
    (Raising, "an attempt that ended is reported as None, ValueError"),
    (Forgiving, "an agent that raised has ended as succeeded"),
    (Repeating, "an agent that said 'eight' has ended as .*'seven'"),
    (Accusing, "an agent that is alone is hindered by another"),
    (Queueing, "nothing is heard of an attempt for 1 s"),
]


@pytest.mark.parametrize(("kind", "says"), WRONG, ids=[kind.__name__ for kind, _ in WRONG])
def test_an_executor_that_breaks_a_promise_fails_the_kit(
    kind: type[Simple], says: str, homes: list[AgentRuntime]
) -> None:
    def make(agent: str) -> Executor:
        homes.append(AgentRuntime(load_agent(agent), no_score, no_model, time.time))
        return kind(homes[-1])

    with pytest.raises(AssertionError, match=says):
        check_executor(make, within_s=1.0, grace_s=0.1)
