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


def learn(agent, name):
    rows = [{"question": f"Please write {word}.", "expected": word} for word in WORDS]
    tasks = hf.tasks(rows[:24] if QUICK else rows, held_out=0.5)
    base = hf.Model("tiny-tools")  # or a folder in Hugging Face's format
    grpo = hf.GRPO(lr=3e-4, steps=1 if QUICK else 8, tasks=4 if QUICK else 8, samples=8)
    result = hf.improve(agent, tasks, name=name, scorers="exact", policy=base, algorithm=grpo)
    print(result)
    if result.candidate is not None:  # else it said why nothing was learnt
        print("parameters moved:", result.candidate.version)
        for title, policy in (("before", base), ("after", result.candidate)):
            tried = result.run.rollouts(f"split == 'val' and version == '{policy.version}'")
            print(f"held-out success {title}: {sum(row['outcome'] == 'right' for row in tried) / len(tried):.2f}")


if __name__ == "__main__":
    learn(agent, "openai")
