"""Agents: how they are found, told apart and served by their context; the tracer; the agent that asks one question."""

from __future__ import annotations

import asyncio
import functools
import json
import pickle
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.collect.agent import Context, OneModel, Tracer, load_agent
from holdfast.collect.client import Client
from holdfast.collect.executors import LoopThread
from holdfast.collect.questions import answer, check, exact_match, prompt_of
from holdfast.collect.thinking import BudgetTracker
from holdfast.contracts.agent import is_async, own_code
from holdfast.contracts.budget import BudgetChange
from holdfast.contracts.checks import KnownAnswer, KnownCase, check_reward
from holdfast.contracts.errors import BadInput, BadRecord, Interrupted, StoreFull
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.reward.breakdown import normalised
from tests.collect.scene import PATIENCE_S, assignment
from tests.conftest import Clock


async def echoing(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
    reply = {"role": "assistant", "content": f"echo: {messages[-1]['content']}"}
    return ModelCall(model="echo", messages=tuple(messages), response=reply, sampling=sampling)


def context(spans: list[Span] | None = None, **fields: Any) -> Context:
    record = (lambda span: None) if spans is None else spans.append
    given: dict[str, Any] = {"assignment": assignment(), "trace": Tracer(record, time.time), "complete": None}
    return Context(**{**given, **fields})


def test_the_base_url_is_the_proxys_with_the_attempts_own_identity() -> None:
    given = context(assignment=assignment(rollout="run-1/t 2", number=3), proxy_url="http://127.0.0.1:8788/")
    assert given.base_url == "http://127.0.0.1:8788/rollout/run-1%2Ft%202/attempt/3/v1"
    assert given.anthropic_base_url == given.base_url.removesuffix("/v1")  # whose client adds it itself


def test_a_context_that_no_pool_runs_has_no_address_and_no_vendors_either() -> None:
    with pytest.raises(BadInput, match="has no address: no pool runs its agent; use ctx.ask"):
        _ = context().base_url


@pytest.fixture
def host() -> Iterator[LoopThread]:
    made = LoopThread()
    yield made
    made.leave()
    made.thread.join(PATIENCE_S)
    assert not made.thread.is_alive()


class Plain:
    def __call__(self, task: Any, context: Context) -> str:
        return "plain"

    async def later(self, task: Any, context: Context) -> str:
        return "later"


class Async:
    async def __call__(self, task: Any, context: Context) -> str:
        return "async"


@pytest.mark.parametrize(
    ("agent", "expected"),
    [
        (Plain(), False),
        (Async(), True),  # an object with an async __call__
        (Plain().later, True),  # a bound async method
        (functools.partial(Plain().later), True),
        (lambda task, context: Plain().later(task, context), False),  # a plain function that gives an awaitable
    ],
)
def test_an_agent_is_async_when_calling_it_gives_a_coroutine(agent: Any, expected: bool) -> None:
    assert is_async(agent) is expected


# Finding an agent


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, new and empty; what is imported from it is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def test_an_agent_is_found_in_the_current_folder(folder: Path) -> None:
    (folder / "my_team.py").write_text("class Team:\n    def answer(task, context): return 'found'\n")
    assert load_agent("my_team:Team.answer")({}, context()) == "found"


def test_an_agent_is_found_in_a_file_and_its_neighbours_with_it(folder: Path) -> None:
    (folder / "far").mkdir()
    (folder / "far" / "by.py").write_text("WORD = 'found'\n")
    (folder / "far" / "mine.py").write_text("from by import WORD\ndef answer(task, context): return WORD\n")
    agent = load_agent("far/mine.py:answer")
    assert agent({}, context()) == "found"
    assert load_agent(f"{folder}/far/mine.py:answer") is agent  # the same file is the same module
    assert pickle.loads(pickle.dumps(agent)) is agent  # and it travels to other processes by its name


@pytest.mark.parametrize("name", ["json.py", "not-a-name.py"])  # taken by a library; no name at all
def test_a_file_whose_name_is_no_free_module_name_takes_the_place_of_none(folder: Path, name: str) -> None:
    (folder / name).write_text("def answer(task, context): return 'mine'\n")
    assert load_agent(f"./{name}:answer")({}, context()) == "mine"
    assert json.loads("1") == 1 and "answer" not in vars(sys.modules["json"])


def test_files_of_one_name_in_two_folders_are_two_agents(folder: Path) -> None:
    for place in ("a", "b"):
        (folder / place).mkdir()
        (folder / place / "same.py").write_text(f"def answer(task, context): return {place!r}\n")
    agents = [load_agent(f"{place}/same.py:answer") for place in ("a", "b")]
    assert [agent({}, context()) for agent in agents] == ["a", "b"]


def test_an_agent_that_does_not_say_what_it_takes_is_taken_as_it_is() -> None:
    assert load_agent("builtins:dict.update")


MODULES = {
    "empty": "",
    "two": "def one(task, context): ...\nasync def two(task, context): ...\ndef _three(): ...\nNUMBER = 4\n",
    "shapes": "from pathlib import Path\nclass Make: ...\ndef play(): ...\nclass _Own: ...\n",
    "narrow": "def f(task): ...\n",
    "importing": "import no_such_library\n",
    "raising": "1 / 0\n",
    "leaving": "raise SystemExit(0)\n",
    "odd": "class Odd(BaseException): ...\nraise Odd('no Exception')\n",
    "mute": "class Mute(BaseException):\n    def __str__(self): raise ValueError\nraise Mute\n",
    "cancelled": "import asyncio\nraise asyncio.CancelledError\n",
    "misspelt": "def f(task, context) return 1\n",
}


@pytest.mark.parametrize("reference", ["answer", ":answer", "answer:", ""])
def test_a_reference_names_module_and_function(reference: str) -> None:
    with pytest.raises(BadInput) as caught:
        load_agent(reference)
    form = "is not of the form module:function; for example my_agents:answer, or agents/mine.py:answer"
    assert str(caught.value) == f"agent {reference!r}: {form}"


@pytest.mark.parametrize(
    ("reference", "why"),
    [
        ("gone/a.py:f", "there is no file gone/a.py; check the path"),
        ("absent:f", "cannot import absent: No module named 'absent'; check the name and the folder"),
        ("importing:f", "cannot import importing: No module named 'no_such_library'; check the name and the folder"),
        ("raising:f", "importing raising failed: ZeroDivisionError: division by zero"),
        ("leaving:f", "importing leaving failed: SystemExit: 0"),  # a script that ends where it should define
        ("odd:f", "importing odd failed: Odd: no Exception"),  # nobody who catches Exception sees it
        ("mute:f", "importing mute failed: Mute: (its text cannot be had: ValueError)"),
        ("cancelled:f", "importing cancelled failed: CancelledError"),
        ("misspelt:f", "importing misspelt failed: SyntaxError: expected ':' (misspelt.py, line 1)"),
        ("empty:f", "empty has no f; it has: none"),
        ("two:three", "two has no three; it has: one, two"),
        ("shapes:Mkae", "shapes has no Mkae; it has: Make, play"),
        ("two:NUMBER", "cannot be called with (task, context): 4 is not a callable object"),
        ("narrow:f", "cannot be called with (task, context): too many positional arguments"),
    ],
)
def test_what_is_no_agent_is_refused_in_one_line(folder: Path, reference: str, why: str) -> None:
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    with pytest.raises(BadInput) as caught:
        load_agent(reference)
    assert str(caught.value) == f"agent {reference}: {why}"


def test_ctrl_c_while_an_agent_is_imported_is_no_error_of_the_agent(folder: Path) -> None:
    (folder / "slow.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_agent("slow:f")


def test_what_a_module_prints_while_it_is_imported_does_not_reach_stdout(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "loud.py").write_text("print('hello')\ndef f(task, context): print('at work')\n")
    load_agent("loud:f")({}, context())
    assert capsys.readouterr() == ("at work\n", "hello\n")


# What the context gives


def test_a_prompt_is_a_text_of_the_version_in_force() -> None:
    given = context(assignment=assignment(resources={"system": "Be brief.", "tone": "kind", "limits": {"a": 1}}))
    assert given.prompt("system") == "Be brief."
    with pytest.raises(BadInput) as caught:
        given.prompt("sytem")
    assert str(caught.value) == "prompt 'sytem': is not among the resources of this version; it has: system, tone"
    with pytest.raises(BadInput, match="is dict, not text; it has: system, tone"):
        given.prompt("limits")
    with pytest.raises(BadInput, match="it has: none"):
        context().prompt("system")


def test_the_models_name_is_its_own_or_a_word_that_any_client_takes() -> None:
    assert context(complete=Client("tiny", "http://127.0.0.1:1")).model == "tiny"
    assert (context(complete=echoing).model, context().model) == ("default", "default")


async def test_a_reward_is_a_term_of_the_turn_in_which_it_is_given() -> None:
    given = context(complete=echoing)
    given.reward("early", 1)
    await given.ask([{"role": "user", "content": "hi"}])
    given.reward("looked_up", 0.2)
    given.trace.model(given.trace.spans[0].model, started_at=0.0, partial="cut short")  # decided nothing: no turn
    await given.ask([{"role": "user", "content": "hi"}])
    given.reward("named", 0.5)
    given.reward("first", 0.1, turn=0)
    told = [(one.name, one.value, one.turn, one.source) for one in given.trace.signals]
    assert told == [
        ("early", 1.0, None, "agent"),
        ("looked_up", 0.2, 0, "agent"),
        ("named", 0.5, 1, "agent"),
        ("first", 0.1, 0, "agent"),
    ]


def test_checking_ends_an_agent_whose_work_is_not_wanted_any_more() -> None:
    given = context()
    given.check()
    assert given.seed == given.assignment.seed
    given.cancelled.set()
    with pytest.raises(Interrupted):
        given.check()


def test_one_model_is_opened_once_and_travels_unopened() -> None:
    one = OneModel(functools.partial(Client, "tiny", "http://127.0.0.1:1"))
    assert one("v1") is one("v2") is one(None)
    there = pickle.loads(pickle.dumps(one))
    assert there(None).model == "tiny" and there(None) is not one(None)


async def test_asking_calls_the_model_and_records_the_call_as_a_decision() -> None:
    spans: list[Span] = []
    call = await context(spans, complete=echoing).ask([{"role": "user", "content": "hi"}], temperature=0.5)
    assert call.response["content"] == "echo: hi"
    (span,) = spans
    assert (span.kind, span.name, span.model, span.is_decision) == (SpanKind.MODEL, "model.echo", call, True)
    assert call.sampling == {"temperature": 0.5}


async def test_asking_without_a_model_says_what_to_give() -> None:
    with pytest.raises(BadInput) as caught:
        await context().ask([])
    assert str(caught.value) == "this agent: needs a model and none was given; give --model and --base-url"


def test_a_plain_agent_waits_for_what_runs_on_the_shared_loop_or_on_one_of_its_own(host: LoopThread) -> None:
    for loop in (host.loop, None):
        given = context(complete=echoing, loop=loop)
        assert given.wait(given.ask([{"role": "user", "content": "hi"}])).response["content"] == "echo: hi"


@pytest.mark.parametrize("error", [ValueError("no"), TimeoutError("late"), Interrupted("enough")])
def test_waiting_raises_what_the_awaited_raises(host: LoopThread, error: BaseException) -> None:
    async def failing() -> None:
        await asyncio.sleep(0.15)  # longer than one look
        raise error

    with pytest.raises(type(error)) as caught:
        context(loop=host.loop).wait(failing())
    assert str(caught.value) == str(error)


def test_a_wait_ends_when_the_work_is_no_longer_wanted_and_so_does_what_it_waited_for(host: LoopThread) -> None:
    ended = threading.Event()

    async def endless() -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()

    given = context(loop=host.loop)
    threading.Timer(0.1, given.cancelled.set).start()
    with pytest.raises(Interrupted):
        given.wait(endless())
    assert ended.wait(PATIENCE_S / 2)


async def test_an_async_agent_that_would_wait_for_itself_is_told_to_await() -> None:
    async def nothing() -> None:
        pass

    with pytest.raises(BadInput) as caught:
        context(loop=asyncio.get_running_loop()).wait(nothing())
    assert str(caught.value) == "context.wait: this is an async agent: it would wait for itself; write await instead"


# Thinking budgets


class Thinker:
    """Thinks all that it may, and is held to it while decoding, or cannot be."""

    def __init__(self, *, limits_thinking: bool = True) -> None:
        self.limits_thinking, self.fails = limits_thinking, False
        self.asked: list[tuple[list[Mapping[str, Any]], dict[str, Any]]] = []

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        self.asked.append((list(messages), sampling))
        if self.fails:
            raise RuntimeError("no answer")
        reply = {"role": "assistant", "content": "yes"}
        how = {**sampling, "thinking_mode": "hard"} if "thinking" in sampling else sampling
        used = sampling.get("thinking", 900)
        return ModelCall(model="m", messages=tuple(messages), response=reply, sampling=how, thinking_tokens=used)


def thinking_about(task: Any, model: Thinker, spans: list[Span]) -> tuple[Context, list[BudgetChange]]:
    kept: list[BudgetChange] = []
    return context(spans, complete=model, budget=BudgetTracker("a", task, kept.append, time.time)), kept


async def test_with_a_budget_a_call_may_think_what_is_left_of_it_or_less() -> None:
    model, spans = Thinker(), list[Span]()
    given, kept = thinking_about("hi", model, spans)
    for wanted in ({"thinking": 100}, {"thinking": 9000}, {}):
        await given.ask([{"role": "user", "content": "hi"}], temperature=0.5, **wanted)
    granted = (100, 400, 0)
    assert [sampling for _, sampling in model.asked] == [{"temperature": 0.5, "thinking": most} for most in granted]
    told = [span.attributes["thinking"] for span in spans]
    assert [(one["granted"], one["used"], one["mode"]) for one in told] == [(most, most, "hard") for most in granted]
    assert (kept[-1].budget.spent, kept[-1].budget.overspent, kept[-1].budget.calls) == (500, 0, 3)


async def test_a_call_that_fails_gives_its_tokens_back() -> None:
    model = Thinker()
    given, kept = thinking_about("hi", model, [])
    model.fails = True
    with pytest.raises(RuntimeError):
        await given.ask([{"role": "user", "content": "hi"}])
    model.fails = False
    await given.ask([{"role": "user", "content": "hi"}])
    assert [sampling["thinking"] for _, sampling in model.asked] == [500, 500]
    assert kept[-1].budget.calls == 1


async def test_a_model_that_cannot_be_held_to_it_is_asked_to_and_what_it_does_is_measured() -> None:
    model, spans = Thinker(limits_thinking=False), list[Span]()
    given, kept = thinking_about("hi", model, spans)
    call = await given.ask([{"role": "user", "content": "hi"}])
    ((messages, sampling),) = model.asked
    assert messages[0] == {"role": "system", "content": "Think for at most 500 tokens, then answer."}
    assert "thinking" not in sampling
    assert call.messages == tuple(messages)  # as it was sent
    assert spans[0].attributes["thinking"]["mode"] == "hint"
    assert spans[0].attributes["thinking"]["overspent"] == 400
    assert (kept[-1].budget.spent, kept[-1].budget.overspent) == (900, 400)


async def test_without_budgets_the_mode_is_told_where_thinking_was_limited() -> None:
    model, spans = Thinker(), list[Span]()
    given = context(spans, complete=model)
    await given.ask([{"role": "user", "content": "hi"}], thinking=7)
    await given.ask([{"role": "user", "content": "hi"}])
    assert [span.attributes for span in spans] == [{"thinking": {"granted": 7, "mode": "hard", "used": 7}}, {}]


@pytest.fixture
def spans() -> list[Span]:
    return []


@pytest.fixture
def trace(spans: list[Span], clock: Clock) -> Tracer:
    return Tracer(spans.append, lambda: clock.now)


def test_spans_are_numbered_when_they_begin_and_recorded_when_they_end(
    trace: Tracer, spans: list[Span], clock: Clock
) -> None:
    began = clock.now
    with trace.span("outer", place="here") as notes:
        clock.advance(1)
        with trace.span("inner"):
            clock.advance(1)
        notes["found"] = 3
    assert [(span.seq, span.name, span.parent) for span in spans] == [(2, "inner", 1), (1, "outer", None)]
    assert [(span.started_at - began, span.ended_at - began) for span in spans] == [(1, 2), (0, 2)]
    assert spans[1].attributes == {"place": "here", "found": 3}
    assert trace.spans == spans


def test_each_kind_of_happening_has_its_kind_of_span(trace: Tracer, spans: list[Span]) -> None:
    trace.message("user", "hello")
    trace.event("cache.miss", size=3)
    trace.tool(ToolCall(tool="calculator", arguments={"left": 1}))
    trace.model(ModelCall(model="m", messages=(), response={}), started_at=1.0)
    with trace.span("thinking"):
        pass
    assert [(span.kind, span.is_decision) for span in spans] == [
        (SpanKind.MESSAGE, False),
        (SpanKind.TELEMETRY, False),
        (SpanKind.TOOL, True),
        (SpanKind.MODEL, True),
        (SpanKind.TELEMETRY, False),
    ]
    assert spans[0].attributes == {"role": "user", "text": "hello"}


def test_tasks_have_their_own_nesting(trace: Tracer, spans: list[Span]) -> None:
    async def branch(name: str, pause_s: float) -> None:
        with trace.span(name):
            await asyncio.sleep(pause_s)
            trace.event(f"in {name}")

    async def both() -> None:
        await asyncio.gather(branch("slow", 0.02), branch("quick", 0.01))

    asyncio.run(both())
    seq = {span.name: span.seq for span in spans}
    parent = {span.name: span.parent for span in spans}
    assert parent == {"slow": None, "quick": None, "in slow": seq["slow"], "in quick": seq["quick"]}


def test_threads_may_record_at_the_same_time(trace: Tracer, spans: list[Span]) -> None:
    def busy() -> None:
        for _ in range(200):
            trace.event("tick")

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(span.seq for span in spans) == list(range(1, 801))


def test_a_clock_that_jumps_back_does_not_lose_the_span(trace: Tracer, spans: list[Span], clock: Clock) -> None:
    with trace.span("backwards"):
        clock.advance(-3600)
    assert spans[0].ended_at == spans[0].started_at


def test_a_reward_of_the_agents_world_becomes_a_signal_of_plain_numbers_and_no_span(
    trace: Tracer, spans: list[Span]
) -> None:
    trace.reward("points", Fraction(), weight=Fraction(), turn=1)  # type: ignore[arg-type]
    (signal,) = trace.signals
    assert (signal.name, signal.value, signal.weight, signal.source, signal.turn) == ("points", 0.25, 0.25, "agent", 1)
    assert type(signal.value) is type(signal.weight) is float
    assert spans == []


class Fraction:
    """A number of another library."""

    def __float__(self) -> float:
        return 0.25


class Custom:
    def __repr__(self) -> str:
        return "Custom()"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Custom(), "= Custom(): is of type Custom, not a JSON value"),
        ([1, float("nan")], "[1] = nan: is not finite"),
        ({1: 2}, "[1]: has a key that is not text"),
    ],
)
def test_what_no_store_could_keep_is_refused_where_the_agent_learns_of_it(
    trace: Tracer, spans: list[Span], value: Any, message: str
) -> None:
    with pytest.raises(BadRecord) as caught:
        trace.event("look", found=value)
    assert str(caught.value).startswith(f"Span.attributes['found']{' ' if message[0] == '=' else ''}{message}")
    with pytest.raises(BadRecord) as caught:
        trace.tool(ToolCall(tool="search", arguments={}, result=value))
    assert message in str(caught.value)
    assert spans == trace.spans == []


def test_a_span_that_could_not_be_recorded_is_not_shown_to_the_scorer_either(clock: Clock) -> None:
    def full(span: Span) -> None:
        raise StoreFull("disk")

    trace = Tracer(full, lambda: clock.now)
    with pytest.raises(StoreFull):
        trace.event("look")
    assert trace.spans == []


def test_an_instant_is_within_its_span_and_that_of_another_thread_within_the_outermost(
    trace: Tracer, spans: list[Span]
) -> None:
    with trace.span("agent.run"):
        with trace.span("step"):
            trace.event("inner")
        thread = threading.Thread(target=lambda: trace.event("there"))
        thread.start()
        thread.join()
    trace.event("after")
    seen = [(span.name, span.parent) for span in spans]
    assert seen == [("inner", 2), ("step", 1), ("there", 1), ("agent.run", None), ("after", None)]


@pytest.mark.parametrize("task", ["What is 2 + 2?", {"prompt": "What is 2 + 2?"}, {"prompt": "What is 2 + 2?", "x": 1}])
def test_a_task_is_a_text_or_an_object_with_one(task: Any) -> None:
    assert prompt_of(task) == "What is 2 + 2?"


@pytest.mark.parametrize("task", [None, 4, [], {}, "", "  ", {"prompt": ""}, {"prompt": 4}, {"question": "?"}])
def test_a_task_without_a_prompt_is_refused_with_its_place(task: Any) -> None:
    with pytest.raises(BadInput) as caught:
        prompt_of(task, "validate[3]")
    says = 'validate[3]: has no prompt; give a string, or an object with a "prompt" string'
    assert str(caught.value) == says


@pytest.mark.parametrize("expected", [4, 4.0, True, ["4"], {}])
def test_an_expectation_that_no_answer_could_match_is_refused(expected: Any) -> None:
    with pytest.raises(BadInput) as caught:
        check({"prompt": "2 + 2?", "expected": expected}, "optimize[0]", is_asked=False)
    why = "is not text, so no answer could match it; quote it"
    assert str(caught.value) == f"optimize[0].expected = {expected!r}: {why}"


@pytest.mark.parametrize(
    "task", ["2 + 2?", {"prompt": "2 + 2?"}, {"prompt": "?", "expected": "4"}, {"prompt": "?", "expected": None}]
)
def test_a_task_that_can_be_asked_and_scored_passes(task: Any) -> None:
    check(task, "optimize[0]", is_asked=True)


def test_only_a_task_that_a_model_is_asked_needs_a_prompt() -> None:
    check({"board": "x.o"}, "optimize[0]", is_asked=False)
    with pytest.raises(BadInput, match="has no prompt"):
        check({"board": "x.o"}, "optimize[0]", is_asked=True)


def asked(task: Any, resources: Mapping[str, Any], content: Any = "4") -> tuple[list[Any], str]:
    """The messages the model saw, and what the agent made of its answer."""
    seen: list[Any] = []

    async def model(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        seen.extend(messages)
        return ModelCall(model="m", messages=tuple(messages), response={"role": "assistant", "content": content})

    trace = Tracer(lambda span: None, time.time)
    context = Context(assignment=assignment(task, resources=resources), trace=trace, complete=model)
    return seen, asyncio.run(answer(task, context))


def test_the_model_is_asked_once_with_the_system_prompt_in_force() -> None:
    messages, found = asked({"prompt": "2 + 2?"}, {"system_prompt": "Be brief."})
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    assert found == "4"


def test_without_a_system_prompt_the_question_stands_alone_and_no_answer_is_an_empty_one() -> None:
    assert asked("2 + 2?", {"style": "kind"}, content=None) == ([{"role": "user", "content": "2 + 2?"}], "")


@pytest.mark.parametrize("task", ["6 * 7?", {"prompt": "6 * 7?"}, {"prompt": "6 * 7?", "expected": None}])
def test_where_nothing_was_expected_there_is_no_score_and_not_a_zero(task: Any) -> None:
    assert exact_match(task, "42", ()) == ()


def test_the_comparison_passes_the_kit_before_it_may_judge_anyone() -> None:
    cheats = ("5", "4 or 5", "The answer is 4.", "4\n4", "", None, ["4"])
    case = KnownCase(
        name="sum",
        task={"prompt": "What is 2 + 2?", "expected": "4"},
        gold=KnownAnswer(name="right", output="4"),
        cheats=tuple(KnownAnswer(name=repr(output), output=output) for output in cheats),
        plain=(KnownAnswer(name="with spaces", output=" 4 "), KnownAnswer(name="a number", output=4)),
    )
    (signal,) = exact_match(case.task, "4", ())
    assert (signal.name, signal.source) == ("exact_match", "rule:exact_match")
    check_reward(exact_match, [case], normalised, outcome="exact_match")


def test_the_code_of_an_agent_is_its_file_and_what_it_imports_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    (tmp_path / "beside").mkdir()
    (tmp_path / "beside/words_of_mine.py").write_text("WORD = 1\n")
    (tmp_path / "agent_of_mine.py").write_text(
        "import json, numpy\nfrom beside import words_of_mine\ndef agent(task, ctx): return 1\n"
        "class Made:\n    def __call__(self, task, ctx): return 1\nmade = Made()\n"
    )
    agent = load_agent(f"{tmp_path}/agent_of_mine.py:agent")
    code = own_code(agent)
    assert sorted(code) == ["agent_of_mine.py", "beside/words_of_mine.py"]
    assert own_code(load_agent(f"{tmp_path}/agent_of_mine.py:made")) == code
    (tmp_path / "beside/words_of_mine.py").write_text("WORD = 2\n")
    assert {name for name in code if own_code(agent)[name] != code[name]} == {"beside/words_of_mine.py"}
    (tmp_path / "beside/words_of_mine.py").unlink()
    assert sorted(own_code(agent)) == ["agent_of_mine.py"]
    assert own_code(functools.partial(agent, 1)) == own_code(agent)
    monkeypatch.setitem(sys.modules, "lazy_of_mine", Lazy("lazy_of_mine"))
    assert own_code(answer) == own_code(print) == {} != own_code(agent)


class Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        raise ImportError(name)
