"""A better prompt for an agent on any API model: python story1_prompt.py [openai|pydantic-ai] [URL MODEL]"""

import sys
import time

import openai
import pydantic_ai
from endpoint import WORDS, serve
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import holdfast as hf

openai_client = openai.AsyncOpenAI(api_key="none")  # made once: that takes longer than a call


async def with_openai(task, ctx):
    client = openai_client.with_options(base_url=ctx.base_url, api_key=ctx.api_key)
    messages = [{"role": "system", "content": ctx.prompt("system")}, {"role": "user", "content": task["question"]}]
    return (await client.chat.completions.create(model=ctx.model, messages=messages)).choices[0].message.content


async def with_pydantic_ai(task, ctx):
    client = openai_client.with_options(base_url=ctx.base_url, api_key=ctx.api_key)
    model = OpenAIChatModel(ctx.model, provider=OpenAIProvider(openai_client=client))
    return (await pydantic_ai.Agent(model, system_prompt=ctx.prompt("system")).run(task["question"])).output


name, url, model = (*sys.argv[1:], *("openai", "", "scripted")[len(sys.argv) - 1 :])
tasks = [{"question": f"Please write {word}.", "expected": f"The answer is {word}."} for word in WORDS]
phrases = ["Be kind.", "Reply: The answer is X.", "Think first."]  # a bank of your own; hf.Reflection needs none
search = hf.PromptSearch(prompts=["You are a writer."], proposers=[hf.Edits(phrases=phrases), hf.Merge()])
result = hf.improve({"openai": with_openai, "pydantic-ai": with_pydantic_ai}[name], hf.tasks(tasks, held_out=0.5),
                    name="writer", scorers="exact", policy=hf.Prompt(system="You are helpful."), algorithm=search,
                    model=model, base_url=url or serve(), budget=hf.Budget(rollouts=300), seeds=1)  # fmt: skip
print(result, result.promote().id, "says", repr(hf.live("writer").prompt("system")), sep="\n")
hf.rollback("writer", why="an example")
time.sleep(1.0)
print("taken back:", repr(hf.live("writer").prompt("system")))
