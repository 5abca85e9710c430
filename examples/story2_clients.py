"""Story 2 with other clients, each used as its own page shows: python story2_clients.py anthropic | pydantic-ai."""

import sys

import anthropic
from endpoint import WORDS
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import holdfast as hf

QUICK = "--quick" in sys.argv


async def with_anthropic(task, ctx):
    client = anthropic.AsyncAnthropic(base_url=ctx.anthropic_base_url, api_key=ctx.api_key)
    messages = [{"role": "user", "content": task["question"]}]
    reply = await client.messages.create(model=ctx.model, max_tokens=24, messages=messages)
    return "".join(block.text for block in reply.content if block.type == "text")


async def with_pydantic_ai(task, ctx):
    model = OpenAIChatModel(ctx.model, provider=OpenAIProvider(base_url=ctx.base_url, api_key=ctx.api_key))
    return (await Agent(model, model_settings={"max_tokens": 24}, retries=0).run(task["question"])).output


name = sys.argv[1]
agent = {"anthropic": with_anthropic, "pydantic-ai": with_pydantic_ai}[name]
rows = [{"question": f"Please write {word}.", "expected": word} for word in WORDS]
tasks = hf.tasks(rows[:40] if QUICK else rows, held_out=0.5)
grpo = hf.GRPO(lr=3e-4, steps=1 if QUICK else 8, tasks=4 if QUICK else 8, samples=8)
result = hf.improve(agent, tasks, name=name, scorers="exact", policy=hf.Model("tiny-tools"), algorithm=grpo)
print(f"{name} parameters moved:", result.candidate is not None and result.candidate.checkpoint is not None)
print(f"held-out success: {result.proof.comparisons['success'].difference:+.2f}")
