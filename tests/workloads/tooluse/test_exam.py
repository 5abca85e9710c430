"""Marks: what they count, and what the two shipped models get when they are asked directly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.policies.engine import Local
from holdfast.policies.model import load_transformer
from holdfast.policies.tokens import END, THINK, UNTHINK
from holdfast.workloads.tooluse.agent import ExamMark, examine, mark, summary
from holdfast.workloads.tooluse.tasks import Dials, ToolTask, generate

CALC = {"family": "calc", "needs": ["calc"], "expected": "3901"}
FEW = 40
SEED = 10**6  # of train tasks that no recipe and no quickstart comes to
GREEDY, SAMPLED = ({"temperature": temperature, "max_tokens": 80} for temperature in (0.0, 1.0))


def signals(success: float, style: float) -> list[RewardTerm]:
    named = {"success": success, "format": style}
    return [RewardTerm(name=name, value=value, source="rule:tooluse") for name, value in named.items()]


def thought(text: str) -> Span:
    call = ModelCall(model="m", messages=(), response={}, completion_ids=(THINK, *text.encode(), UNTHINK, END))
    return Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=0.0, ended_at=0.0, model=call)


def used(tool: str, error: str | None = None) -> Span:
    call = ToolCall(tool=tool, arguments={}, result=None if error else "3901", error=error)
    return Span(seq=2, kind=SpanKind.TOOL, name=tool, started_at=0.0, ended_at=0.0, tool=call)


def test_a_mark_says_what_was_paid_and_how_it_came_about() -> None:
    found = mark(CALC, signals(1.0, 0.0), [thought("417 by 23"), used("calc")])
    assert found == ExamMark(family="calc", success=True, format=False, adoption=True, thinking=9, calls=1)
    found = mark({"family": "chat", "needs": [], "expected": "hello"}, (), ())  # without signals nothing is right
    assert found == ExamMark(family="chat", success=False, format=False, adoption=None, thinking=0, calls=0)


def test_a_tool_that_failed_was_called_and_not_adopted() -> None:
    found = mark(CALC, signals(0.0, 1.0), [used("calc", error="error: bad expression")])
    assert found == ExamMark(family="calc", success=False, format=True, adoption=False, thinking=0, calls=1)


def marked(family: str, success: bool, adoption: bool | None, thinking: int = 0, calls: int = 0) -> ExamMark:
    return ExamMark(family=family, success=success, format=True, adoption=adoption, thinking=thinking, calls=calls)


def test_the_summary_counts_over_all_and_by_family_and_asks_adoption_only_where_a_tool_is_needed() -> None:
    calc = [marked("calc", True, True, thinking=9, calls=1), marked("calc", False, False)]
    found = summary([*calc, marked("chat", True, None, thinking=1)])
    families = found.pop("families")
    counts = {"success": [2, 3], "format": [3, 3], "adoption": [1, 2]}
    assert found == {**counts, "thinking_tokens": 3.33, "tool_calls": 0.333}
    assert list(families) == ["calc", "chat"]
    assert (families["calc"]["success"], families["calc"]["adoption"]) == ([1, 2], [1, 2])
    assert (families["chat"]["success"], families["chat"]["adoption"]) == ([1, 1], [0, 0])
    nothing = summary([])
    assert nothing["success"] == nothing["adoption"] == [0, 0] and nothing["families"] == {}


async def test_the_exam_asks_each_task_once_by_its_own_seed_and_keeps_the_order() -> None:
    asked: list[tuple[str, Any]] = []

    async def echo(messages: Sequence[Any], /, **given: Any) -> ModelCall:
        asked.append((messages[-1]["content"], given["seed"]))
        await asyncio.sleep(0.001 * (len(asked) % 3))  # they do not end as they began
        answer = {"role": "assistant", "content": "12"}
        return ModelCall(model="m", messages=tuple(messages), response=answer, finish_reason="stop", sampling=given)

    tasks = generate("train", SEED, 20, Dials(families=("calc", "chat")))
    marks = await examine(echo, tasks, seed=7, sampling=GREEDY)
    assert sorted(asked, key=lambda one: one[1]) == [(task.prompt, 7 + place) for place, task in enumerate(tasks)]
    assert [one.family for one in marks] == [task.family for task in tasks]
    assert [one.success for one in marks] == [task.expected == "12" for task in tasks]


def sat(name: str, sampling: dict[str, Any], tasks: Sequence[ToolTask] = (), turns: int = 6) -> dict[str, Any]:
    model, _ = load_transformer(name)
    tasks = tasks or generate("train", SEED, FEW)
    with Local(model, slots=FEW) as local:
        return summary(asyncio.run(examine(local, tasks, sampling=sampling, max_turns=turns)))


def test_sprout_solves_nine_of_ten_tasks_in_wordings_that_it_has_never_seen() -> None:
    found = sat("sprout", GREEDY, generate("test", SEED, FEW))
    assert found["success"][0] >= 0.9 * FEW
    lookups = sat("sprout", GREEDY, generate("test", SEED, 12, Dials(families=("lookup",))))
    assert lookups["success"][0] >= 10  # the first sprout solved none of them


def test_sprout_goes_six_steps_and_round_tools_that_fail() -> None:
    tasks = generate("test", SEED, 16, Dials(families=("six", "failing")))
    assert sat("sprout", GREEDY, tasks, turns=10)["success"][0] >= 14


def test_thinking_helps_where_there_are_steps_and_is_waste_where_there_are_none() -> None:
    longer = {**GREEDY, "max_tokens": 160}
    chains = generate("test", SEED, 24, Dials(families=("steps",), think=1.0))
    right = {limit: sat("sprout", {**longer, "thinking": limit}, chains)["success"][0] for limit in (8, 32, 128)}
    assert right[8] < 12 < 20 <= right[128] and right[8] <= right[32] <= right[128]
    sums = generate("test", SEED, 16, Dials(families=("trivial",), think=1.0))
    assert sat("sprout", {**longer, "thinking": 0}, sums)["success"][0] >= 14


def test_what_sprout_is_told_decides_how_much_it_solves() -> None:
    bare = generate("test", SEED, 32, Dials(families=("calc", "lookup", "two", "flaky", "missing"), prompts="bare"))
    good = "Get all facts by tool calls. If a tool fails, try once more. Work through all steps. Never guess: unknown."
    told = [replace(task, system=f"{good} {task.system}") for task in bare]
    assert sat("sprout", GREEDY, bare)["success"][0] <= 12
    assert sat("sprout", GREEDY, told)["success"][0] >= 27


def test_sprout_solves_nine_of_ten_train_tasks() -> None:
    found = sat("sprout", GREEDY)
    assert found["success"][1] == FEW
    assert found["success"][0] >= 0.9 * FEW
    assert found["adoption"][0] >= 0.9 * found["adoption"][1]


def test_sprout_weak_adopts_tools_rarely_and_leaves_much_to_learn() -> None:
    found = sat("sprout-weak", SAMPLED)
    assert found["adoption"][1] > FEW / 2
    assert found["adoption"][0] < 0.3 * found["adoption"][1]
    assert 0 < found["success"][0] < 0.5 * FEW  # yet not so weak that nothing could be built on it
