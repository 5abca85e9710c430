"""Story 2 with other clients, each as its own page shows it: story2_clients.py anthropic | pydantic-ai | openai."""

import sys

from endpoint import WORDS

import holdfast as hf

CLIENT, QUICK = sys.argv[1], "--quick" in sys.argv


async def agent(task, ctx):
    question = task["question"]
    if CLIENT == "anthropic":
        import anthropic

        client = anthropic.AsyncAnthropic(base_url=ctx.anthropic_base_url, api_key=ctx.api_key)
        messages = [{"role": "user", "content": question}]
        reply = await client.messages.create(model=ctx.model, max_tokens=24, messages=messages)
        return "".join(block.text for block in reply.content if block.type == "text")
    if CLIENT == "pydantic-ai":
        from pydantic_ai import Agent
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        model = OpenAIChatModel(ctx.model, provider=OpenAIProvider(base_url=ctx.base_url, api_key=ctx.api_key))
        return (await Agent(model, model_settings={"max_tokens": 24}, retries=0).run(question)).output
    import openai

    client = openai.AsyncOpenAI(base_url=ctx.base_url, api_key=ctx.api_key)
    reply = await client.responses.create(model=ctx.model, input=question, max_output_tokens=24)
    return reply.output_text


rows = [{"question": f"Please write {word}.", "expected": word} for word in WORDS]
tasks = hf.tasks(rows[:40] if QUICK else rows, held_out=0.5)
grpo = hf.GRPO(lr=3e-4, steps=1 if QUICK else 8, tasks=4 if QUICK else 8, samples=8)
result = hf.improve(agent, tasks, name=CLIENT, scorers="exact", policy=hf.Model("tiny-tools"), algorithm=grpo)
print(
    CLIENT, "parameters moved:", result.candidate is not None, f"{result.proof.comparisons['success'].difference:+.2f}"
)
