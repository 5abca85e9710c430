"""A process per seat: it can be killed, it may crash, and it never outlives its parent."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.agent import no_model
from holdfast.collect.executors import Slot
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.errors import Fault
from holdfast.contracts.executor import Outcome
from holdfast.contracts.rollout import AttemptState, RolloutState
from tests.collect.agents import no_score, ones
from tests.collect.scene import PATIENCE_S, Bench, Sitting, until

PLAIN = ProcessRecipe("tests.collect.agents:do", no_score, no_model)
ASYNC = ProcessRecipe("tests.collect.agents:do_async", no_score, no_model)


class Booth(Sitting):
    """One attempt after another on a process's seat."""

    async def do(self, deed: str, **fields: Any) -> Outcome:
        await self.seat.prepare()
        given = {key: fields.pop(key) for key in ("size", "mark") if key in fields}
        outcome = await self.run({"do": deed, **given}, **fields)
        assert outcome is not None
        return outcome

    async def interrupted(self, deed: str, mark: Path) -> int:
        """The process that was interrupted as soon as its agent was at it."""
        await self.seat.prepare()
        running = asyncio.create_task(self.run({"do": deed, "mark": str(mark)}))
        await until(lambda: mark.exists() and mark.read_text())
        self.seat.interrupt()
        assert await running is None
        return int(mark.read_text())  # noqa: ASYNC240


@pytest.fixture(scope="module")
def place() -> Iterator[ProcessExecutor]:
    """One process for the agents that leave it as it was."""
    made = ProcessExecutor(PLAIN)
    made.prepare()  # in this thread: a child ends with the thread that started it
    yield made
    made.close()


@pytest.fixture
def open_booth() -> Iterator[Callable[[ProcessRecipe], Booth]]:
    opened: list[Booth] = []

    def open_one(recipe: ProcessRecipe = PLAIN) -> Booth:
        opened.append(Booth(ProcessExecutor(recipe)))
        return opened[-1]

    yield open_one
    for booth in opened:
        booth.seat.close()


def is_alive(pid: int) -> bool:
    """Whether any thread of it is left: the first one to end does not make a process ready to be reaped."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return False
    return state not in "ZX" or int(rest[16]) > 1


Open = Callable[..., Booth]


@pytest.mark.parametrize("recipe", [PLAIN, ASYNC], ids=["plain", "async"])
async def test_an_agent_answers_from_a_process_of_its_own(open_booth: Open, recipe: ProcessRecipe) -> None:
    booth = open_booth(ProcessRecipe(recipe.agent, ones, no_model))
    first = await booth.do("tell", resources={"tone": "kind"})
    assert first.state is AttemptState.SUCCEEDED
    assert first.output["seed"] == 7 and first.output["pid"] != os.getpid()
    assert first.reward == 1.0  # the scorer alone pays
    assert [one.name for one in first.signals] == ["agent.told", "one"]  # what its world gave is kept
    assert [(span.name, span.parent) for span in booth.spans] == [("telling", 1), ("agent.run", None)]
    assert booth.spans[0].attributes == {"resource": "kind"}
    raised, left = await booth.do("raise"), await booth.do("leave")  # is its own failure
    assert raised.state is left.state is AttemptState.FAILED
    assert (raised.error or "").startswith("ZeroDivisionError: division by zero (agents.py:")
    assert (left.error or "").startswith("SystemExit: 4 (agents.py:")
    traces = [span.attributes["traceback"] for span in booth.spans if "traceback" in span.attributes]
    assert len(traces) == 2 and all("agents.py" in text.splitlines()[1] for text in traces)
    assert (await booth.do("tell")).output["pid"] == first.output["pid"]  # the same process goes on


@pytest.mark.parametrize("recipe", [PLAIN, ASYNC], ids=["plain", "async"])
async def test_an_agents_own_clients_find_the_proxy_in_its_environment(open_booth: Open, recipe: ProcessRecipe) -> None:
    booth = open_booth(ProcessRecipe(recipe.agent, no_score, no_model, "http://127.0.0.1:8788"))
    for number in (1, 2):
        base = f"http://127.0.0.1:8788/rollout/run-1%2Ft/attempt/{number}"
        assert (await booth.do("where", number=number)).output == [f"{base}/v1", f"{base}/v1", base]


async def test_big_answers_and_spans_come_through_whole(place: ProcessExecutor) -> None:
    booth = Booth(place)
    outcome = await booth.do("big", size=8_000_000)
    assert outcome.output == "o" * 8_000_000
    assert booth.spans[0].attributes["text"] == "s" * 8_000_000


async def test_many_threads_of_an_agent_may_record_at_the_same_time(place: ProcessExecutor) -> None:
    booth = Booth(place)
    assert (await booth.do("threads")).output == "told"
    assert sorted(span.seq for span in booth.spans) == list(range(1, 162))
    assert {span.attributes["text"] for span in booth.spans if span.name == "loud"} == {"x" * 100_000}


async def test_what_an_agent_prints_does_not_get_in_the_way(
    open_booth: Open, capfd: pytest.CaptureFixture[str]
) -> None:
    assert (await open_booth().do("print")).output == "printed"
    assert capfd.readouterr().out == "printed by an agent\nwritten by an agent\n"


@pytest.mark.parametrize(
    ("deed", "error"),
    [
        ("unpicklable", "Span.attributes['found'] = <unlocked _thread.lock object"),
        ("digits", "Span: cannot be written: Exceeds the limit (4300 digits)"),
    ],
)
async def test_what_cannot_be_kept_is_refused_where_the_agent_learns_of_it(
    place: ProcessExecutor, deed: str, error: str
) -> None:
    booth = Booth(place)
    outcome = await booth.do(deed)
    assert outcome.state is AttemptState.FAILED
    assert outcome.error is not None and outcome.error.startswith(error)
    assert [span.name for span in booth.spans] == ["agent.run"]


async def test_a_thread_left_behind_does_not_talk_into_the_next_attempt(place: ProcessExecutor) -> None:
    booth = Booth(place)
    await booth.do("talker")
    of_the_first = len(booth.spans)
    await asyncio.sleep(0.2)
    await booth.do("tell", attempt="run-1/t:attempt-2")
    assert {span.name for span in booth.spans[of_the_first:]} == {"telling", "agent.run"}


# Crashes


async def test_a_process_that_is_lost_is_a_fault_and_the_seat_gets_another(open_booth: Open) -> None:
    booth = open_booth()
    for deed, how in (("exit", "exit code 3"), ("kill", "signal 9 (SIGKILL)"), ("segfault", "signal 11 (SIGSEGV)")):
        outcome = await booth.do(deed)
        assert outcome == Outcome(state=AttemptState.FAULT, error=f"the agent's process ended with {how}")
    assert (await booth.do("tell")).state is AttemptState.SUCCEEDED


async def test_a_process_that_dies_while_idle_is_replaced_before_it_is_needed(open_booth: Open) -> None:
    booth = open_booth()
    first = (await booth.do("tell")).output["pid"]
    os.kill(first, signal.SIGKILL)
    await until(lambda: not is_alive(first))
    second = (await booth.do("tell")).output["pid"]
    assert second != first and is_alive(second)
    booth.seat.close()  # ends it
    assert not is_alive(second)
    booth.seat.close()  # once more does no harm


async def test_a_crash_is_tried_again(file_bench: Bench) -> None:
    file_bench.enqueue({"do": "crash once"}, max_attempts=2)
    pool = file_bench.pool_of(lambda: Slot(ProcessExecutor(PLAIN)), 1)
    await file_bench.work_off(pool)
    assert file_bench.states() == ["fault", "succeeded"]
    assert file_bench.attempts()[0].error == "the agent's process ended with exit code 9"
    assert file_bench.output() == "second time lucky"


async def test_an_agent_whose_module_fails_in_the_child_stops_the_pool_with_a_reason(
    file_bench: Bench, capfd: pytest.CaptureFixture[str]
) -> None:
    file_bench.enqueue({})
    pool = file_bench.pool_of(
        lambda: Slot(ProcessExecutor(ProcessRecipe("tests.collect.only_at_home:agent", no_score, no_model))), 1
    )
    with pytest.raises(Fault) as caught:
        await asyncio.wait_for(pool.work(), PATIENCE_S)
    assert str(caught.value) == (
        "agent tests.collect.only_at_home:agent: its process ended with exit code 1 before it was ready; "
        "see its message above"
    )
    assert "this library cannot be loaded twice" in capfd.readouterr().err
    assert file_bench.rollout().status is RolloutState.QUEUING


# Interrupting


@pytest.mark.usefixtures("short_grace")
async def test_an_agent_that_would_never_end_is_killed_and_the_seat_gets_another(
    open_booth: Open, tmp_path: Path
) -> None:
    booth = open_booth()  # each at once: not on the process that is still dying
    pids = [await booth.interrupted(deed, tmp_path / deed) for deed in ("spin", "hold", "ignore")]
    outcome = await booth.do("tell")
    assert outcome.state is AttemptState.SUCCEEDED
    assert len({*pids, outcome.output["pid"]}) == 4
    await until(lambda: not any(map(is_alive, pids)))


# Ends

PARENT = """
import multiprocessing, sys, time
from holdfast.contracts.executor import Assignment
from holdfast.collect.agent import no_model
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from tests.collect.agents import no_score

place = ProcessExecutor(ProcessRecipe("tests.collect.agents:do", no_score, no_model))
place.prepare()
(child,) = multiprocessing.active_children()
print(child.pid, flush=True)
task = {"do": sys.argv[1], "mark": sys.argv[2]}
given = Assignment(rollout="r", attempt="a", number=1, split=None, input=task, resources={}, seed=1)
place.begin(given, print, print)
time.sleep(600)
"""


@pytest.mark.parametrize("deed", ["spin", "hold"])
def test_a_child_dies_with_its_parent(tmp_path: Path, deed: str) -> None:
    mark = tmp_path / "mark"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, deed, str(mark)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    patience = time.monotonic() + PATIENCE_S
    while not mark.exists():
        assert time.monotonic() < patience
        time.sleep(0.01)
    assert is_alive(child)
    parent.kill()
    parent.wait()
    while is_alive(child):
        assert time.monotonic() < patience, "it lives on"
        time.sleep(0.01)
    parent.stdout.close()
