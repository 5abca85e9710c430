"""A help desk as the tests see it: tasks, an agent, scorers, and an endpoint that is right as often as its prompt is
good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import holdfast as hf
from tests.endpoint import Endpoint, completion

GOOD, FAIR, POOR = "Answer with the number alone.", "You answer briefly.", "Answer at length."
RIGHT = {GOOD: 9, FAIR: 4, POOR: 1}  # of ten questions


def reply(body: dict[str, Any]) -> dict[str, Any]:
    """Right for the first so many of every ten questions, by the system prompt."""
    messages = body["messages"]
    system = next((one["content"] for one in messages if one["role"] == "system"), "")
    number = int(messages[-1]["content"].split()[-1].rstrip("?"))
    is_right = number % 10 < RIGHT.get(system, 0)
    return completion(str(2 * number) if is_right else f"I think it is {2 * number}, or so.")


def questions(count: int, held_out: float | None = 0.6) -> hf.TaskSet:
    rows = [
        {"id": f"t{n}", "input": {"question": f"{_word(n)}: what is twice {n}?"}, "expected": str(2 * n)}
        for n in range(count)
    ]
    return hf.tasks(rows, held_out=held_out, seed=0)


def _word(n: int) -> str:
    """Letters, so that no two questions are alike but for their digits."""
    return "".join(chr(97 + int(digit)) for digit in str(n))


async def agent(task: Any, ctx: Any) -> str:
    call = await ctx.ask(
        [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task.input["question"]}]
    )
    return str(call.response["content"])


def correct(task: Any, answer: str) -> hf.Reward:
    right = answer.strip().lower() == task.expected.lower()
    return hf.Reward(float(right), feedback="" if right else f"said {answer!r}")


def brief(task: Any, answer: str) -> float:
    return float(len(answer) < 10)


def lenient(task: Any, answer: str) -> float:
    """The number may stand anywhere."""
    return float(task.expected in answer.replace(",", " ").replace(".", " ").split())


def at_endpoint(endpoint: Endpoint, at: Path, system: str = FAIR) -> dict[str, Any]:
    """What every call on the help desk needs."""
    how = {"scorers": correct, "policy": hf.Prompt(system=system), "model": "tiny", "base_url": endpoint.url}
    return {**how, "store": at}


def short(endpoint: Endpoint, at: Path, **more: Any) -> dict[str, Any]:
    return {"name": "support", "algorithm": hf.Candidates([GOOD]), **at_endpoint(endpoint, at)} | more


def collected(endpoint: Endpoint, at: Path, system: str, count: int = 120, **more: Any) -> hf.Run:
    return hf.collect(agent, questions(count, held_out=None), **at_endpoint(endpoint, at, system), **more)
