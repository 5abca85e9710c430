"""A better prompt for an agent on any API model: your own candidates are raced, and the winner is proved."""

import openai
from endpoint import QUESTIONS, serve

import holdfast as hf

openai_client = openai.AsyncOpenAI(api_key="none")  # made once: that takes longer than a call


async def agent(task, ctx):
    client = openai_client.with_options(base_url=ctx.base_url, api_key=ctx.api_key)
    messages = [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["question"]}]
    reply = await client.chat.completions.create(model=ctx.model, messages=messages)
    return reply.choices[0].message.content


def correct(task, answer):
    right = answer.strip() == task.expected
    return hf.Reward(float(right), feedback="" if right else f"said {answer!r}")


result = hf.improve(
    agent,
    hf.tasks(QUESTIONS, held_out=0.5),
    name="capitals",
    scorers=[hf.Scorer(correct, gate=True)],
    policy=hf.Prompt(system="You are helpful."),
    algorithm=hf.Candidates(["Be brief.", "Answer with only the word.", "You are a linguist."]),
    model="scripted",
    base_url=serve(),
)
print(result)
print("the winner:", result.candidate.texts["system"])
print("version:", result.version)
