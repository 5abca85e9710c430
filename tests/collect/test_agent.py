"""Agents: how they are found, told apart and served by their context."""

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
from typing import Any

import pytest

from holdfast.collect.agent import Context, OneModel, Tracer, load_agent
from holdfast.collect.client import Client
from holdfast.collect.executors import LoopThread
from holdfast.collect.thinking import BudgetTracker
from holdfast.contracts.agent import is_async
from holdfast.contracts.budget import BudgetChange
from holdfast.contracts.errors import BadInput, Interrupted
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from tests.collect.scene import PATIENCE_S, assignment


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


def test_a_file_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no file gone/a\.py; check the path"):
        load_agent("gone/a.py:answer")


def test_an_agent_that_does_not_say_what_it_takes_is_taken_as_it_is() -> None:
    assert load_agent("builtins:dict.update")


MODULES = {
    "empty": "",
    "two": "def one(task, context): ...\nasync def two(task, context): ...\ndef _three(): ...\nNUMBER = 4\n",
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


def test_the_context_shows_the_resources_of_its_assignment() -> None:
    given = context(assignment=assignment(resources={"system_prompt": "Be brief."}))
    assert given.resources["system_prompt"] == "Be brief."


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


def test_a_plain_agent_waits_for_what_runs_on_the_shared_loop(host: LoopThread) -> None:
    given = context(complete=echoing, loop=host.loop)
    assert given.wait(given.ask([{"role": "user", "content": "hi"}])).response["content"] == "echo: hi"


def test_a_plain_agent_waits_on_a_loop_of_its_own_where_none_is_shared() -> None:
    given = context(complete=echoing)
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


async def test_with_a_budget_a_call_may_think_what_is_left_of_it() -> None:
    model, spans = Thinker(), list[Span]()
    given, kept = thinking_about("hi", model, spans)
    for _ in range(2):
        await given.ask([{"role": "user", "content": "hi"}], temperature=0.5)
    assert [sampling for _, sampling in model.asked] == [
        {"temperature": 0.5, "thinking": 500},
        {"temperature": 0.5, "thinking": 0},
    ]
    told = [span.attributes["thinking"] for span in spans]
    assert [(one["granted"], one["used"], one["mode"]) for one in told] == [(500, 500, "hard"), (0, 0, "hard")]
    assert (kept[-1].budget.spent, kept[-1].budget.overspent, kept[-1].budget.calls) == (500, 0, 2)


async def test_an_agent_may_take_less_of_its_budget_and_never_more() -> None:
    model = Thinker()
    given, _ = thinking_about("hi", model, [])
    for wanted in (100, 9000):
        await given.ask([{"role": "user", "content": "hi"}], thinking=wanted)
    assert [sampling["thinking"] for _, sampling in model.asked] == [100, 400]


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
