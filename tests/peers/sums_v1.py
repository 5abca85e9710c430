"""An environment written to the API of verifiers 0.4: a task set, its rewards, and the program that plays it.

The harnesses that come with that package fetch their packages when they run; this one only asks, in the same process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["AskHarness", "SumsTaskset"]

COUNT = 60
NAMES = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hal", "Ida", "Jo", "Kim", "Lea"]


class SumData(vf.TaskData):
    answer: str


class SumTask(vf.Task[SumData]):
    @vf.reward
    async def sentence(self, trace: vf.Trace) -> float:
        return float(re.fullmatch(r"The answer is \d+\.", trace.last_reply) is not None)

    @vf.reward(weight=0.1)
    async def brief(self, trace: vf.Trace) -> float:
        return float(0 < len(trace.last_reply) < 24)


class SumsTaskset(vf.Taskset[SumTask]):
    def load(self) -> Iterator[SumTask]:
        for n in range(COUNT):
            who = f"{NAMES[n % 12]} and {NAMES[(n // 12 + 5) % 12]}"
            asked = f"{who} have {n + 10} and {2 * n + 3} coins. What is {n + 10} + {2 * n + 3}?"
            yield SumTask(SumData(prompt=asked, answer=str(3 * n + 13)), self.config.task)


class AskHarness(vf.Harness[vf.HarnessConfig]):
    APPENDS_SYSTEM_PROMPT = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
        **_: Any,
    ) -> vf.ProgramResult:
        system, prompt = self.resolve_prompt(data)
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": str(prompt)})
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            await client.chat.completions.create(model=ctx.model, messages=messages)
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
