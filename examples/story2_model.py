"""A local model learns from an agent whose code is not changed: its own client, pointed at ctx.base_url."""

import sys

import openai
from endpoint import WORDS

import holdfast as hf

QUICK = "--quick" in sys.argv  # shows that it runs; too short to learn much
openai_client = openai.AsyncOpenAI(api_key="none")  # made once: that takes longer than a call


async def agent(task, ctx):
    client = openai_client.with_options(base_url=ctx.base_url, api_key=ctx.api_key)
    messages = [{"role": "user", "content": task["question"]}]
    reply = await client.chat.completions.create(model=ctx.model, messages=messages, max_tokens=24)
    return reply.choices[0].message.content or ""


rows = [{"question": f"Please write {word}.", "expected": word} for word in WORDS]
result = hf.improve(
    agent,
    hf.tasks(rows[:40] if QUICK else rows, held_out=0.5),
    name="words",
    scorers="exact",
    policy=hf.Model("tiny-tools"),  # or a folder in Hugging Face's format
    algorithm=hf.GRPO(lr=3e-4, steps=2 if QUICK else 8, tasks=8, samples=8),
)
print(result)
print("parameters moved:", result.candidate is not None and result.candidate.checkpoint is not None)
print("held-out success:", f"{result.proof.comparisons['success'].difference:+.2f}")
