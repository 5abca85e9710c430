"""One attempt: whose fault it is when it fails, what is kept of an exception, and what may become a reward."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.agent import MAX_ERROR, MAX_TRACEBACK, Context, Tracer, failure, load_agent, no_model
from holdfast.collect.executors import AgentRuntime, run_one
from holdfast.contracts.agent import Agent
from holdfast.contracts.errors import BadInput, Fault, Interrupted
from holdfast.contracts.executor import Outcome
from holdfast.contracts.reward import RewardTerm, is_own
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import Span, SpanKind
from tests.collect.agents import no_score, ones
from tests.collect.scene import Sitting, assignment, home_of


def context(task: Any = None) -> Context:
    return Context(assignment=assignment(task), trace=Tracer(lambda span: None, time.time), complete=None)


async def outcome(agent: Any, score: Any = no_score, given: Context | None = None) -> Outcome:
    return await run_one(agent, given or context(), score)


def raising(error: BaseException) -> Callable[..., Any]:
    def throw(*arguments: Any) -> Any:
        raise error

    return throw


async def test_an_answer_is_recorded_as_it_was_given_and_scored() -> None:
    async def agent(task: Any, context: Context) -> Any:
        return {"text": task["prompt"], "tokens": (1, 2)}

    ended = await outcome(agent, ones, context({"prompt": "hi"}))
    assert ended.state is AttemptState.SUCCEEDED
    assert ended.output == {"text": "hi", "tokens": [1, 2]}
    assert ended.reward == 1.0
    assert ended.error is None


async def test_an_attempt_is_one_span_around_all_others() -> None:
    given = context()
    await outcome(lambda task, context: context.trace.event("inside"), given=given)
    assert [(span.name, span.parent) for span in given.trace.spans] == [("inside", 1), ("agent.run", None)]
    assert given.trace.spans[-1].attributes == {"attempt": 1}


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no idea"), "ValueError: no idea"),
        (TimeoutError(), "TimeoutError"),
        (BadInput("task", why="has no prompt"), "task: has no prompt"),
        (SystemExit(1), "SystemExit: 1"),  # a script's way to give up
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (asyncio.CancelledError(), "CancelledError"),  # a task of its own was cancelled, not this attempt
        (Mute(), "Mute: (its text cannot be had: RuntimeError)"),
    ],
)
async def test_what_an_agent_raises_is_its_own_failure(error: BaseException, text: str) -> None:
    ended = await outcome(raising(error), ones)
    assert (ended.state, ended.reward) == (AttemptState.FAILED, None)
    assert ended.error == f"{text} (test_worker.py:{raising.__code__.co_firstlineno + 2}, in throw)"


async def test_a_fault_of_ours_inside_the_agent_is_not_its_failure() -> None:
    ended = await outcome(raising(Fault("model endpoint", why="HTTP 500")), ones)
    assert (ended.state, ended.error, ended.reward) == (AttemptState.FAULT, "model endpoint: HTTP 500", None)


async def test_a_cancellation_that_we_asked_for_is_nobodys_failure() -> None:
    given = context()
    given.cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await outcome(raising(asyncio.CancelledError()), given=given)
    with pytest.raises(Interrupted):
        await outcome(raising(Interrupted()), given=given)


class Custom:
    pass


def endless() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Custom(), "the agent's answer: is of type Custom, not a JSON value; return JSON"),
        ({"a": [1, {2}]}, "the agent's answer['a'][1]: is of type set, not a JSON value; return JSON"),
        (b"bytes", "the agent's answer: is of type bytes, not a JSON value; return JSON"),
        (
            {"score": float("nan")},
            "the agent's answer['score']: is not finite; return JSON",
        ),
        ({1: 2}, "the agent's answer[1]: has a key that is not text; return JSON"),
        (endless(), "the agent's answer: maximum recursion depth exceeded"),
        (10**5000, "the agent's answer: Exceeds the limit (4300 digits) for integer string conversion"),
    ],
    ids=["object", "set", "bytes", "nan", "key", "endless", "digits"],
)
async def test_an_answer_that_is_no_json_is_a_failure_that_names_the_place(answer: Any, text: str) -> None:
    ended = await outcome(lambda task, context: answer, ones)
    assert ended.state is AttemptState.FAILED
    assert ended.reward is None
    assert ended.error is not None and ended.error.startswith(text)


# Scoring


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), asyncio.CancelledError()])
async def test_a_scorer_that_fails_is_a_fault_and_never_a_reward_of_zero(error: BaseException) -> None:
    ended = await outcome(lambda task, context: "right", raising(error))
    assert ended.state is AttemptState.FAULT
    assert ended.reward is None
    assert ended.error is not None and ended.error.startswith(f"scoring: {type(error).__name__}")


def signalling(**fields: Any) -> Callable[..., Any]:
    return lambda task, output, spans: [RewardTerm(**{"name": "n", "value": 1.0, "source": "rule:test", **fields})]


@pytest.mark.parametrize(
    ("score", "text"),
    [
        (signalling(value=float("nan")), "scoring: signal n: value = nan: must be finite"),
        (signalling(weight=float("inf")), "scoring: signal n: weight = inf: must be finite"),
        (signalling(value=1e200, weight=1e200), "scoring: reward: the signals add up to inf, which is not finite"),
        (lambda task, output, spans: 1.0, "scoring: TypeError: "),
        (lambda task, output, spans: [1.0], "scoring: AttributeError: "),
        (lambda task, output, spans: None, "scoring: TypeError: "),
    ],
)
async def test_a_score_that_is_no_finite_number_is_a_fault(score: Any, text: str) -> None:
    ended = await outcome(lambda task, context: "right", score)
    assert (ended.state, ended.reward, ended.output) == (AttemptState.FAULT, None, None)
    assert ended.error is not None and ended.error.startswith(text)


async def test_a_scorer_may_be_async_and_sees_the_task_the_answer_and_the_spans() -> None:
    seen: list[Any] = []

    async def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
        seen.append((task, output, [span.name for span in spans]))
        return ones(task, output, spans)

    ended = await outcome(lambda task, context: "answer", score, context({"q": 1}))
    assert ended.reward == 1.0
    assert seen == [({"q": 1}, "answer", ["agent.run"])]


@pytest.mark.parametrize(
    ("task", "seen"),
    [
        ({"prompt": "2 + 2?", "expected": "4"}, {"prompt": "2 + 2?"}),
        ({"expected": "4"}, {}),
        ({"prompt": "2 + 2?"}, {"prompt": "2 + 2?"}),
        ({"about": {"expected": "delays"}}, {"about": {"expected": "delays"}}),  # a word of the task's own
        (["expected"], ["expected"]),
        ("expected", "expected"),
        (None, None),
    ],
)
async def test_the_answer_key_is_the_scorers_alone(task: Any, seen: Any) -> None:
    scored = []

    def agent(given: Any, context: Context) -> Any:
        return [given, context.assignment.input]

    def score(given: Any, output: Any, spans: Sequence[Span]) -> list[RewardTerm]:
        scored.append(given)
        return []

    assert (await outcome(agent, score, context(task))).output == [seen, seen]
    assert scored == [task]


async def test_an_agent_cannot_change_what_it_is_scored_by() -> None:
    def cheat(task: Any, context: Context) -> str:
        task["expected"] = context.assignment.input["expected"] = "whatever"
        return "whatever"

    def score(task: Any, output: Any, spans: Sequence[Span]) -> list[RewardTerm]:
        return [RewardTerm(name="match", value=float(output == task["expected"]), source="rule:test")]

    assert (await outcome(cheat, score, context({"expected": "4"}))).reward == 0.0


def paying(name: str, value: float, **fields: Any) -> Callable[..., str]:
    """An agent that is wrong, and pays itself."""

    def agent(task: Any, context: Context) -> str:
        context.trace.reward(name, value, **fields)
        return "wrong"

    return agent


async def test_rewards_of_the_agents_world_count_where_no_scorer_judges() -> None:
    ended = await outcome(paying("points", 0.5, weight=2.0))
    assert ended.signals == (RewardTerm(name="points", value=0.5, weight=2.0, source="agent"),)
    assert ended.reward == 1.0
    forged = await outcome(paying("success", 1.0, source="rule:answer"))
    assert forged.signals[0].source == "agent:rule:answer" and is_own(forged.signals[0])


@pytest.mark.parametrize("name", ["bonus", "success", "gated", "safety_cost", "agent.success"])
@pytest.mark.parametrize("value", [5.0, -50.0])
async def test_what_a_scorer_judged_no_agent_pays_itself(name: str, value: float) -> None:
    """Kept, and never under a name that the scorer, or whoever reads its breakdown, might look for."""

    def score(task: Any, output: Any, spans: Sequence[Span]) -> list[RewardTerm]:
        cost = RewardTerm(name="safety_cost", value=1.0, weight=0.0, source="rule:test")
        return [RewardTerm(name="success", value=float(output == "right"), source="rule:test"), cost]

    ended = await outcome(paying(name, value, source="rule:test", weight=3.0), score)
    assert ended.reward == 0.0
    own, *measured = ended.signals
    assert own == RewardTerm(name=f"agent.{name}", value=value, weight=0.0, source="agent:rule:test")
    assert is_own(own) and [(one.name, one.value) for one in measured] == [("success", 0.0), ("safety_cost", 1.0)]


async def test_telemetry_never_becomes_a_reward() -> None:
    def agent(task: Any, context: Context) -> str:
        context.trace.event("reward.emit", reward_name="execution_success", reward_value=1.0)
        with context.trace.span("retries", reward=175.0):
            pass
        return "answer"

    given = context()
    ended = await outcome(agent, given=given)
    assert ended.reward is None
    assert ended.signals == ()
    assert {span.kind for span in given.trace.spans} == {SpanKind.TELEMETRY}


async def test_rewards_given_before_a_failure_are_not_kept() -> None:
    def agent(task: Any, context: Context) -> str:
        context.trace.reward("points", 5.0)
        raise ValueError

    ended = await outcome(agent)
    assert (ended.state, ended.signals, ended.reward) == (AttemptState.FAILED, (), None)


CODE = """\
import asyncio, json

def inner(task):
    return {}["nope"]

def plain(task, context):
    return inner(task)

async def later(task, context):
    await asyncio.sleep(0)
    return inner(task)

def awaitable(task, context):
    return later(task, context)

def reading(task, context):
    return json.loads("{")

def score(task, output, spans):
    return inner(output)
"""
PLACE = "KeyError: 'nope' (mine.py:4, in inner)"


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return f"{tmp_path}/mine.py"


def is_whole(text: str) -> bool:
    """File, line and code of the agent's frames, and none of ours before them."""
    lines = text.splitlines()
    frames = [line for line in lines if line.startswith("  File ")]
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "KeyError: 'nope'"
    assert all("mine.py" in frame for frame in frames) and frames[-1].endswith("line 4, in inner")
    return '    return {}["nope"]' in lines


@pytest.mark.parametrize("name", ["plain", "later", "awaitable"])
async def test_an_exception_leaves_its_place_and_its_traceback(mine: str, name: str) -> None:
    with home_of(load_agent(f"{mine}:{name}"), ones) as home:
        sitting = Sitting(home.executor())
        ended = await sitting.run("task")
    assert ended is not None and (ended.state, ended.error) == (AttemptState.FAILED, PLACE)
    (span,) = sitting.spans
    assert (span.name, span.attributes["error"]) == ("agent.run", PLACE)
    assert is_whole(span.attributes["traceback"])


async def test_so_does_one_in_a_scorer(mine: str) -> None:
    score: Any = load_agent(f"{mine}:plain").__globals__["score"]
    home = AgentRuntime(lambda task, context: "fine", score, no_model, time.time)
    sitting = Sitting(home.executor())
    ended = await sitting.run("task")
    home.close()
    assert ended is not None and (ended.state, ended.error) == (AttemptState.FAULT, f"scoring: {PLACE}")
    assert [span.name for span in sitting.spans] == ["agent.run", "score"]
    assert sitting.spans[1].attributes["error"] == PLACE and is_whole(sitting.spans[1].attributes["traceback"])


async def test_the_place_is_in_the_agents_own_code_and_the_library_is_in_the_traceback(mine: str) -> None:
    with home_of(load_agent(f"{mine}:reading")) as home:
        sitting = Sitting(home.executor())
        ended = await sitting.run("task")
    assert ended is not None and ended.error is not None and ended.error.startswith("JSONDecodeError: Expecting")
    assert ended.error.endswith("(mine.py:17, in reading)")
    assert f'File "{json.decoder.__file__}"' in sitting.spans[0].attributes["traceback"]


async def test_an_exception_of_one_span_is_told_whole_once() -> None:
    def agent(task: Any, context: Context) -> None:
        with context.trace.span("inside"):
            raise ValueError("no")

    with home_of(agent) as home:
        sitting = Sitting(home.executor())
        await sitting.run("task")
    inside, outside = sitting.spans
    assert set(inside.attributes) == {"error"} and "in agent" in outside.attributes["traceback"]


def raised(agent: Agent) -> dict[str, str]:
    try:
        asyncio.run(agent(None, None))
    except BaseException as error:
        return failure(error)
    raise AssertionError("it was to raise")


class Broken(Exception):
    @property
    def __notes__(self) -> Any:
        raise RuntimeError("not even notes")


async def recursing(task: Any, context: Any, depth: int = 0) -> Any:
    if depth % 2:
        return await recursing(task, context, depth + 1)
    else:
        return await recursing(task, context, depth + 1)


async def huge(task: Any, context: Any) -> Any:
    raise ValueError("ä" * 100_000)


async def unstorable(task: Any, context: Any) -> Any:
    raise ValueError("half \ud800 nothing \0")


async def broken(task: Any, context: Any) -> Any:
    raise Broken


@pytest.mark.parametrize("agent", [recursing, huge, unstorable, broken])
def test_whatever_an_exception_is_there_is_an_end_to_it_and_a_store_can_hold_it(agent: Agent) -> None:
    kept = raised(agent)
    assert 0 < len(kept["error"]) <= MAX_ERROR and "test_worker.py" in kept["error"]
    text = kept["traceback"].encode()  # strict: half a character is refused
    assert len(text) <= MAX_TRACEBACK and b"\0" not in text
    assert text.startswith(b"Traceback (most recent call last):")
