"""Story 2 with agent frameworks: python story2_frameworks.py NAME …, of pydantic-ai, openai-agents and langgraph."""

import sys

import agents
import openai
import pydantic_ai
from langchain_openai import ChatOpenAI
from langgraph.graph import MessagesState, StateGraph
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from story2_model import learn


async def with_pydantic_ai(task, ctx):
    model = OpenAIChatModel(ctx.model, provider=OpenAIProvider(base_url=ctx.base_url, api_key=ctx.api_key))
    return (await pydantic_ai.Agent(model, model_settings={"max_tokens": 24}).run(task["question"])).output


async def with_openai_agents(task, ctx):
    model = agents.OpenAIChatCompletionsModel(ctx.model, openai.AsyncOpenAI(base_url=ctx.base_url, api_key=ctx.api_key))
    agent = agents.Agent("writer", model=model, model_settings=agents.ModelSettings(max_tokens=24))
    return (await agents.Runner.run(agent, task["question"])).final_output


async def with_langgraph(task, ctx):
    model = ChatOpenAI(model=ctx.model, base_url=ctx.base_url, api_key=ctx.api_key, max_tokens=24)

    async def answer(state):
        return {"messages": await model.ainvoke(state["messages"])}

    graph = StateGraph(MessagesState).add_node(answer).set_entry_point("answer").compile()
    return (await graph.ainvoke({"messages": [("user", task["question"])]}))["messages"][-1].content


agents.set_tracing_disabled(True)  # its traces would go to OpenAI
known = {"pydantic-ai": with_pydantic_ai, "openai-agents": with_openai_agents, "langgraph": with_langgraph}
for name in (word for word in sys.argv[1:] if word != "--quick"):
    learn(known[name], name)
