"""Story 2 with Anthropic's client: the same model learns, and only the base URL is another."""

import anthropic
from story2_model import learn

anthropic_client = anthropic.AsyncAnthropic(api_key="none")  # made once: that takes longer than a call


async def agent(task, ctx):
    client = anthropic_client.with_options(base_url=ctx.anthropic_base_url, api_key=ctx.api_key)
    messages = [{"role": "user", "content": task["question"]}]
    reply = await client.messages.create(model=ctx.model, max_tokens=24, messages=messages)
    return "".join(block.text for block in reply.content if block.type == "text")


learn(agent, "anthropic")
