"""A function becomes a scorer, several become one reward under a gate, and names lead to them."""

from __future__ import annotations

import asyncio
import math
import pickle
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.reward import Reward, RewardBreakdown, RewardTerm
from holdfast.contracts.scorer import Trace
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.reward import ready
from holdfast.reward.scorers import Combined, Scorer, combine, load_scorer, reward_range, score_from, task_view

TASK = {"id": "t1", "question": "Capital of France?", "expected": "Paris", "family": "geography", "metadata": {"n": 1}}


def correct(task: Any, answer: Any) -> Reward:
    is_right = answer.strip().lower() == task.expected.lower()
    return Reward(float(is_right), feedback="" if is_right else f"said {answer!r}")


def brief(task: Any, answer: Any) -> float:
    return 1.0 if len(answer) < 10 else 0.0


def graded(task: Any, answer: Any) -> float:
    return len(answer) / 10.0


async def later(task: Any, answer: Any) -> float:
    await asyncio.sleep(0)
    return brief(task, answer)


def looked(task: Any, answer: Any, trace: Trace) -> float:
    return float(len(trace.tools))


def risky(task: Any, answer: Any) -> float:
    return 2.0 if "bomb" in answer else 0.0


CALL = ModelCall(model="m", messages=(), response={"role": "assistant", "content": "x"})


def span(seq: int, **part: Any) -> Span:
    kind = SpanKind.MODEL if "model" in part else SpanKind.TOOL
    return Span(seq=seq, kind=kind, name=kind.value, started_at=0.0, ended_at=0.0, **part)


def spans(tools: int = 0, calls: int = 1) -> tuple[Span, ...]:
    parts = [
        *({"model": CALL} for _ in range(calls)),
        *({"tool": ToolCall(tool="look", arguments={})} for _ in range(tools)),
    ]
    return tuple(span(n, **part) for n, part in enumerate(parts, 1))


def told(score: Any, answer: Any, done: Sequence[Span] = (), task: Any = TASK) -> tuple[RewardTerm, ...]:
    found = score(task, answer, done)
    assert not isawaitable(found)
    return tuple(found)


def values(found: Sequence[RewardTerm]) -> dict[str, tuple[float, float]]:
    return {one.name: (one.value, one.weight) for one in found}


# One function


def test_a_task_shows_what_was_asked_and_what_is_hidden() -> None:
    view = task_view(TASK)
    assert (view.id, view.expected, view.family, view.metadata) == ("t1", "Paris", "geography", {"n": 1})
    assert view["question"] == view.input["question"] == "Capital of France?"
    assert "expected" not in view and "expected" not in view.input and view.get("nothing", 3) == 3
    assert set(view) == {"id", "question", "family", "metadata"}
    assert task_view(view) is view
    assert task_view("say hi").input == "say hi" and task_view("say hi").expected is None


RETURNED: list[tuple[Any, Reward | None]] = [
    (1, Reward(1.0)),
    (True, Reward(1.0)),
    (0.25, Reward(0.25)),
    (np.float32(0.5), Reward(0.5)),
    ({"tone": 1, "length": 0.5}, Reward(1.5, {"tone": 1.0, "length": 0.5})),
    (Reward(1.0, {"a": 2.0}, "well"), Reward(1.0, {"a": 2.0}, "well")),
    ([RewardTerm(name="x", value=2.0, weight=0.5, source="s")], Reward(1.0, {"x": 2.0})),
    (None, None),
    ((), None),
    ({}, None),
]


@pytest.mark.parametrize(("given", "expected"), RETURNED)
def test_whatever_a_function_returns_becomes_a_reward(given: Any, expected: Reward | None) -> None:
    assert Scorer(lambda task, answer: given, name="any")(TASK, "x") == expected


@pytest.mark.parametrize("given", ["1", "", float("nan"), {"tone": math.inf}, ["x"], object()])
def test_what_is_no_reward_is_refused(given: Any) -> None:
    with pytest.raises(BadRecord):
        Scorer(lambda task, answer: given, name="any")(TASK, "x")


async def test_a_function_may_be_async_a_callable_object_or_take_the_trace() -> None:
    assert await Scorer(later)(TASK, "Paris") == Reward(1.0)
    assert Scorer(looked).takes_trace and not Scorer(brief).takes_trace
    assert Scorer(looked)(TASK, "x", spans(tools=2)) == Reward(2.0)
    assert Scorer(partial(looked, trace=Trace()), name="bound").takes_trace is False
    assert (Scorer(Callable_()).name, Scorer(Callable_()).takes_trace) == ("Callable_", True)


class Callable_:
    def __call__(self, task: Any, answer: Any, trace: Any = None) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("function", "fields", "message"),
    [
        (lambda task, answer: 1, {}, "scorer '<lambda>': is no name"),
        (brief, {"name": "a.b"}, "scorer 'a.b': is no name"),
        (brief, {"name": "success"}, "scorer success: this name is the gate's"),
        (brief, {"weight": math.nan}, "scorer brief: weight = nan: is not a finite number"),
        (brief, {"weight": True}, "scorer brief: weight = True: is not"),
        (brief, {"gate": True, "weight": 0.0}, "scorer brief: weight = 0: a gate must count"),
        (lambda task: 1, {"name": "one"}, "scorer one: takes (task), not (task, answer)"),
        (3, {"name": "number"}, "scorer number: is int, not a function"),
    ],
)
def test_what_cannot_score_is_refused_when_it_is_made(function: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput) as caught:
        Scorer(function, **fields)
    assert str(caught.value).startswith(message)


# Several as one


def test_without_a_gate_everything_adds_up_and_a_closed_gate_pays_nothing_for_the_others() -> None:
    score = combine([Scorer(correct), Scorer(brief, weight=0.1)])
    assert values(told(score, "Paris")) == {"correct": (1.0, 1.0), "brief": (1.0, 0.1)}
    assert RewardBreakdown(signals=told(score, "Rome")).total == pytest.approx(0.1)
    score = combine([Scorer(correct, gate=True), Scorer(brief, weight=0.1)])
    right, wrong = told(score, "paris "), told(score, "Rome")
    assert values(right) == {"success": (1.0, 1.0), "brief": (1.0, 0.1), "gated": (0.0, 0.0)}
    assert values(wrong) == {"success": (0.0, 1.0), "brief": (1.0, 0.0), "gated": (1.0, 0.0)}
    assert RewardBreakdown(signals=right).total == pytest.approx(1.1) and RewardBreakdown(signals=wrong).total == 0.0
    assert {one.name: one.source for one in right}["success"] == "scorer:correct"
    assert [[one.feedback for one in found] for found in (wrong, right)] == [["said 'Rome'", None, None], [None] * 3]
    chatty = combine([Scorer(lambda t, a: Reward(0.0, feedback="x" * 10_000), name="chatty")])
    assert len(told(chatty, "x")[0].feedback or "") == 4000


def test_a_gate_may_be_graded_and_only_one_is_right() -> None:
    score = combine([Scorer(graded, gate=True), Scorer(brief, weight=0.1)])
    assert values(told(score, "12345")) == {"success": (0.5, 1.0), "brief": (1.0, 0.0), "gated": (1.0, 0.0)}
    nearly = combine([Scorer(lambda t, a: 0.1 + 0.2 + 0.7 - 1e-12, name="sum", gate=True)])
    assert values(told(nearly, "x"))["success"] == (1.0, 1.0)
    with pytest.raises(BadRecord, match=r"gives 1\.2, and a gate gives a number from 0 to 1"):
        told(score, "x" * 12)


def test_named_numbers_count_each_and_the_terms_of_a_reward_are_only_kept() -> None:
    style = Scorer(lambda t, a: {"tone": 0.5, "form": 1.0}, name="style", weight=0.2)
    found = values(told(combine([style, Scorer(lambda t, a: Reward(2.0, {"part": 0.75}), name="sum")]), "x"))
    assert found == {"style.tone": (0.5, 0.2), "style.form": (1.0, 0.2), "sum": (2.0, 1.0), "sum.part": (0.75, 0.0)}
    with pytest.raises(BadRecord, match="gives several numbers, and a gate gives one"):
        told(combine([Scorer(lambda t, a: {"x": 1.0}, name="style", gate=True)]), "x")


def test_numbers_of_turns_share_the_weight_so_that_more_turns_pay_no_more() -> None:
    def turned(task: Any, answer: Any) -> Reward:
        return Reward(1.0, turns={0: {"found": 1.0}, 1: {"found": 0.5}})

    score = combine([Scorer(turned, weight=0.4)])
    found = [(one.name, one.value, one.weight, one.turn) for one in told(score, "x", spans(calls=2))]
    assert found == [("turned", 1.0, 0.4, None), ("turned.found", 1.0, 0.2, 0), ("turned.found", 0.5, 0.2, 1)]
    with pytest.raises(BadRecord, match="turn 1: there are 1 model calls"):
        told(score, "x", spans(calls=1))


def test_nothing_measured_is_not_zero_and_a_cost_is_kept_by_name_and_in_sum_and_never_paid() -> None:
    score = combine([Scorer(ready.exact, gate=True), Scorer(brief)], safety=[Scorer(risky)])
    assert told(score, "x", task={"question": "?"}) == ()  # nothing is expected, so nobody can be right
    assert told(combine([Scorer(ready.exact)]), "x", task={"question": "?"}) == ()
    score = combine([Scorer(correct, gate=True)], safety=[Scorer(risky), Scorer(graded)])
    found = values(told(score, "bomb bomb!"))
    assert (found.pop("success"), found.pop("gated")) == ((0.0, 1.0), (1.0, 0.0))
    assert found == {"safety_cost": (3.0, 0.0), "safety_cost.risky": (2.0, 0.0), "safety_cost.graded": (1.0, 0.0)}
    assert "safety_cost" not in values(told(combine([Scorer(correct)]), "x"))  # unmeasured is not safe
    for given in (None, -1.0):
        with pytest.raises(BadRecord, match="is a safety scorer and gives"):
            told(combine([Scorer(correct)], safety=[Scorer(lambda t, a, g=given: g, name="odd")]), "x")


def own_signals(task: Any, answer: Any) -> list[RewardTerm]:
    return [
        RewardTerm(name="success", value=float(answer == "Paris"), source="rule:own"),
        RewardTerm(name="style", value=1.0, weight=0.1, source="rule:own"),
        RewardTerm(name="safety_cost", value=0.5, weight=7.0, source="rule:own"),
        RewardTerm(name="gated", value=0.0, weight=0.0, source="guard:own"),
    ]


def test_signals_that_a_scorer_makes_itself_are_passed_on() -> None:
    alone = values(told(combine([Scorer(own_signals, weight=2.0)]), "Paris"))
    assert alone == {"success": (1.0, 2.0), "style": (1.0, 0.2), "safety_cost": (0.5, 0.0), "gated": (0.0, 0.0)}
    gate = told(combine([Scorer(own_signals, gate=True)], safety=[Scorer(risky)]), "Rome")
    assert [one.name for one in gate].count("gated") == 1
    assert values(gate) == {
        "success": (0.0, 1.0),
        "own_signals.style": (1.0, 0.0),
        "safety_cost": (0.5, 0.0),
        "safety_cost.rule:own": (0.5, 0.0),
        "safety_cost.risky": (0.0, 0.0),
        "gated": (1.0, 0.0),
    }
    beside = values(told(combine([Scorer(correct, gate=True), Scorer(own_signals)]), "Paris"))
    assert (beside["success"], beside["own_signals.success"]) == ((1.0, 1.0), (1.0, pytest.approx(0.5 / 1.1)))


async def failing(task: Any, answer: Any) -> float:
    raise KeyError("nope")


@pytest.mark.filterwarnings("error")
async def test_async_and_plain_functions_go_together_and_a_failure_leaves_nothing_unawaited() -> None:
    def at_once(task: Any, answer: Any) -> float:
        raise ValueError("now")

    found = combine([Scorer(correct, gate=True), Scorer(later, weight=0.1)])(TASK, "Paris", ())
    assert isawaitable(found)
    assert values(await found)["later"] == (1.0, 0.1)
    with pytest.raises(ValueError, match="now"):
        combine([Scorer(later), Scorer(at_once)])(TASK, "x", ())
    found = combine([Scorer(failing), Scorer(later)])(TASK, "x", ())
    assert isawaitable(found)
    with pytest.raises(KeyError, match="nope"):
        await found


@pytest.mark.parametrize(
    ("scorers", "safety", "message"),
    [
        ([], [], "scorers: there are none"),
        ([Scorer(brief), Scorer(correct, name="brief")], [], "scorers: brief: is there twice"),
        ([Scorer(brief)], [Scorer(risky), Scorer(risky)], "safety: risky: is there twice"),
        ([Scorer(brief, gate=True), Scorer(correct, gate=True)], [], "scorers: brief and correct are gates"),
        ([Scorer(brief)], [Scorer(risky, gate=True)], "safety: risky: a safety scorer measures a cost"),
    ],
)
def test_scorers_that_do_not_go_together_are_refused(scorers: Any, safety: Any, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        combine(scorers, safety=safety)
    assert str(caught.value).startswith(message)


class Longest:
    """A group scorer: the longest answer wins."""

    is_group, name = True, "longest"

    def __call__(self, task: Any, answers: Sequence[str]) -> list[float]:
        most = max(map(len, answers))
        return [float(len(answer) == most) for answer in answers]


async def test_a_group_is_scored_at_once_beside_scorers_of_single_attempts() -> None:
    score = combine([Scorer(correct, gate=True), Scorer(Longest(), weight=0.2), Scorer(later, weight=0.1)])
    assert score.is_group
    found = await score.group(TASK, [("Paris", ()), ("paris", ()), ("Paris, the capital", ())])
    assert [values(one)["longest"] for one in found] == [(0.0, 0.0), (0.0, 0.0), (1.0, 0.0)]
    assert [values(one)["success"][0] for one in found] == [1.0, 1.0, 0.0]
    with pytest.raises(BadInput, match="scorer longest: compares the attempts at a task"):
        score(TASK, "Paris", ())
    short = combine([Scorer(lambda task, answers: [1.0], name="short")])
    short.scorers[0].function.is_group = True  # type: ignore[attr-defined]
    with pytest.raises(BadRecord, match="gives 1 rewards for 2 attempts"):
        await short.group(TASK, [("a", ()), ("b", ())])
    with pytest.raises(BadInput, match="scorer longest: gate: compares attempts"):
        Scorer(Longest(), gate=True)


# By name


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith("house_"):
            del sys.modules[name]


SOURCE = """
from holdfast.reward.scorers import Scorer
def right(task, answer, extra=""): return float(answer + extra == task.expected)
made = Scorer(right, name="made", weight=0.5)
number = 3
"""


def test_a_scorer_is_found_by_module_or_file(folder: Path) -> None:
    (folder / "house_scores.py").write_text(SOURCE, encoding="utf-8")
    inner = folder / "inner"
    inner.mkdir()
    (inner / "house_more.py").write_text(SOURCE, encoding="utf-8")
    for reference in ("house_scores:right", "inner/house_more.py:right", str(inner / "house_more.py:right")):
        found = load_scorer(reference)
        assert (found.name, found.gate, found(TASK, "Paris")) == ("right", False, Reward(1.0))
        assert pickle.loads(pickle.dumps(found)) == found
    assert load_scorer("house_scores:made").weight == 0.5
    given = {"scorer": "house_scores:right", "extra": "is", "name": "ends", "weight": 2, "gate": True}
    found = load_scorer(given)
    assert (found.name, found.weight, found.gate, found(TASK, "Par")) == ("ends", 2.0, True, Reward(1.0))


def test_a_ready_one_is_found_by_its_name_with_its_options_and_travels_to_another_process() -> None:
    score = combine([Scorer(correct, gate=True), Scorer(ready.numeric(0.1))], safety=[Scorer(risky)])
    assert pickle.loads(pickle.dumps(score)) == score
    assert load_scorer("exact").function is ready.exact
    found = load_scorer({"scorer": "numeric", "tolerance": 0.01, "gate": True, "weight": 1})
    assert (found.name, found.gate, found({"expected": 100}, "100.9")) == ("numeric", True, Reward(1.0))
    assert load_scorer(found) is found and load_scorer(brief).name == "brief"


REFUSED: list[tuple[Any, str]] = [
    ("exakt", "scorer 'exakt': is unknown; did you mean exact? use module:function"),
    ("no_such_house:right", "scorer no_such_house:right: cannot import no_such_house"),
    ("house_scores:wrong", "scorer house_scores:wrong: house_scores has no wrong; it has: right"),
    ("house_scores:number", "scorer house_scores:number: is not a function"),
    ("house_broken:right", "scorer house_broken:right: importing house_broken failed: ZeroDivisionError"),
    ("nowhere/file.py:right", "scorer nowhere/file.py:right: there is no file nowhere/file.py"),
    ("a b:right", "scorer a b:right: cannot import a b"),
    (":right", "scorer ':right': is not of the form module:function"),
    ({"scorer": "exact", "tolerance": 1}, "scorer exact: tolerance: is unknown; it takes no options"),
    ({"scorer": "numeric", "tolerence": 1}, "scorer numeric: got an unexpected keyword argument 'tolerence'; it takes"),
    ({"scorer": "numeric", "tolerance": -1}, "numeric: tolerance = -1: must be finite"),
    ({"scorer": "house_scores:made", "extra": "x"}, "scorer house_scores:made: is a Scorer already"),
    ({"weight": 1}, "scorer None: is not named"),
    ({"scorer": "judge"}, "scorer judge: asks a model, and none is named"),
]


@pytest.mark.parametrize(("reference", "message"), REFUSED)
def test_what_cannot_be_found_is_said_with_a_remedy(folder: Path, reference: Any, message: str) -> None:
    (folder / "house_scores.py").write_text(SOURCE, encoding="utf-8")
    (folder / "house_broken.py").write_text("1 / 0", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        load_scorer(reference)
    assert str(caught.value).startswith(message)


TASKS = [{"prompt": f"{n} + 1?", "expected": n + 1} for n in range(12)]


def test_one_scorer_of_a_config_is_the_gate_unless_it_says_otherwise() -> None:
    found = score_from([{"scorer": "numeric"}], TASKS)
    assert isinstance(found, Combined) and found.scorers[0].gate
    assert values(told(found, "it is 4", task={"expected": 4}))["success"] == (1.0, 1.0)
    assert not score_from([{"scorer": "numeric", "gate": False}], TASKS).scorers[0].gate
    both = score_from([{"scorer": "numeric"}, {"scorer": "exact"}], TASKS)
    assert not any(one.gate for one in both.scorers)
    assert reward_range([{"scorer": "exact"}]) == (0.0, 1.0)
    assert reward_range([{"scorer": "exact", "gate": True, "weight": 2}, {"scorer": "m:f"}]) == (-1.0, 3.0)
    assert reward_range([{"scorer": "exact", "gate": False}]) is None


def connect(model: str, base_url: str | None) -> Any:
    assert (model, base_url) in (("m", None), ("m", "http://127.0.0.1:1/v1"))
    return lambda: None


JUDGE = {"scorer": "judge", "model": "m", "base_url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("block", "tasks", "message"),
    [
        ({"scorer": "exact"}, [{"prompt": "hi"}], "scorer exact: measured nothing on any task"),
        ({"scorer": "numeric"}, [{"prompt": "hi", "expected": "Paris"}], "scorer numeric: raises"),
        ({"scorer": "rank", "model": "m"}, TASKS, "scorer rank: compares the attempts at a task"),
    ],
)
def test_a_config_whose_scorer_does_not_fit_is_refused_before_the_run(block: Any, tasks: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        score_from([block], tasks, connect=connect)


def test_a_judge_of_a_config_asks_its_model() -> None:
    assert score_from([JUDGE], TASKS, connect=connect).scorers[0].asks_model


def test_an_attempt_that_failed_is_asked_for_its_costs_alone() -> None:
    def shouted(task: Any, answer: Any, trace: Trace) -> float:
        return float(any("!" in str(one.arguments) for one in trace.tools))

    def fragile(task: Any, answer: Any) -> float:
        return float(len(answer))

    tool = span(1, tool=ToolCall(tool="say", arguments={"text": "ha!"}))
    found = combine([Scorer(fragile)], safety=[shouted]).costs({}, [tool])
    assert {one.name: one.value for one in found} == {"safety_cost": 1.0, "safety_cost.shouted": 1.0}
    assert all(one.weight == 0.0 for one in found)
    (unjudged,) = combine([Scorer(fragile)], safety=[fragile]).costs({}, [])
    assert unjudged.value == 1.0 and "could not be measured" in str(unjudged.feedback)  # not measured is not safe
