"""Turn rewards in whole runs: every agent's turns are measured where its attempt ends, whichever way its calls came."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

import holdfast as hf
from holdfast.collect.agent import Context
from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import TURN_REWARD, RewardBreakdown
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.settings import settings_from
from holdfast.contracts.trace import ToolCall
from holdfast.pipeline.spec import improve_spec, optimize_spec
from holdfast.store.store import Store, open_store
from tests.collect.proxy.far import Far, Step, completion, road
from tests.endpoint import completion as endpoint_says
from tests.endpoint import serving
from tests.pipeline.scene import ran

PARTS = {"information_gain", "format", "progress", "safety", TURN_REWARD}
TASK = {"prompt": "What is oak.price?", "expected": "17", "needs": ["lookup"]}
CALL = {"id": "a", "type": "function", "function": {"name": "lookup", "arguments": '{"key": "oak.price"}'}}
SPEC = {"name": "lookup", "parameters": {"type": "object", "properties": {"key": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": SPEC}]
AGENT = f"{__name__}:own_client"


def own_client(task: Any, context: Context) -> str:
    """An agent with a client of its own, which runs its tools itself and records nothing."""
    messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
    while True:
        said = _ask(context, {"model": "m", "messages": messages, "tools": TOOLS})
        if not said.get("tool_calls"):
            return str(said["content"])
        results = [{"role": "tool", "tool_call_id": one["id"], "content": "17"} for one in said["tool_calls"]]
        messages += [said, *results]


def _ask(context: Context, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"content-type": "application/json", "authorization": f"Bearer {context.api_key}"}
    asked = Request(f"{context.base_url}/chat/completions", json.dumps(body).encode(), headers)
    with urlopen(asked, timeout=30) as answer:
        said: dict[str, Any] = json.loads(answer.read())["choices"][0]["message"]
    return said


def answering(body: dict[str, Any]) -> Step:
    """The tool first, and then what it said."""
    if body["messages"][-1]["role"] == "tool":
        return Step(completion("17"))
    message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    return Step(json.dumps({"id": "c", "model": "m@1", "choices": [choice]}).encode())


def breakdown(store: Store, status: Any) -> RewardBreakdown:
    (rollout,) = store.views.rollouts(status.run_id)
    assert rollout.status is RolloutState.SUCCEEDED
    return store.traces.breakdown(store.views.attempts(rollout.id)[-1].token)


def by_turn(found: RewardBreakdown) -> list[dict[str, float]]:
    turns = 1 + max((one.turn for one in found.signals if one.turn is not None), default=-1)
    return [{one.name: one.value for one in found.signals if one.turn == turn} for turn in range(turns)]


def settings(**given: Any) -> Any:
    return settings_from({"agent": AGENT, "optimize": [TASK], "max_attempts": 1, "worker_count": 1, **given}, "test")


async def test_the_turns_of_an_agent_behind_the_proxy_are_measured_and_its_tools_are_paid(store: Store) -> None:
    weights = {"choice": 0.1, "structure": 0.0, "utility": 0.1, "error_handling": 0.0}
    with road(store, far=Far(usual=Step(decide=answering))) as here:
        spec = optimize_spec(settings(proxy_url=here.url, tool_reward=weights))
        status = await ran(store, spec)
    found = breakdown(store, status)
    first, last = by_turn(found)
    assert set(first) >= PARTS and set(last) >= PARTS
    assert (first["information_gain"], first["progress"]) == (1.0, 1.0) and first["choice"] == first["utility"] == 1.0
    assert last["progress"] == 0.0 and first["structure"] == 1.0  # the request said what the tool takes
    assert found.total == pytest.approx(1.2)


@pytest.mark.parametrize("kind", ["tasks", "processes"])
async def test_the_turns_of_an_agent_with_a_client_of_its_own_are_measured(store: Store, kind: str) -> None:
    def reply(body: dict[str, Any]) -> dict[str, Any]:
        if body["messages"][-1]["role"] == "tool":
            return endpoint_says("16")
        message = {"role": "assistant", "content": None, "tool_calls": [CALL]}
        return endpoint_says("", choice={"message": message, "finish_reason": "tool_calls"})

    with serving() as endpoint:
        endpoint.reply = reply
        given = settings(model="openai/m", base_url=endpoint.url, worker_kind=kind, tool_reward={})
        status = await ran(store, optimize_spec(given))
    found = breakdown(store, status)
    assert [set(turn) >= PARTS for turn in by_turn(found)] == [True, True]
    assert by_turn(found)[-1]["progress"] == -1.0  # it had the price, and said another
    assert found.total == 0.0 and not any(one.weight for one in found.signals if one.turn is not None)


async def test_the_turns_of_an_agent_that_failed_are_measured_and_it_stays_unscored(store: Store) -> None:
    with serving() as endpoint:
        given = settings(agent=f"{__name__}:overflowing", model="openai/m", base_url=endpoint.url)
        status = await ran(store, optimize_spec(given))
    (rollout,) = store.views.rollouts(status.run_id)
    assert rollout.status is RolloutState.FAILED and rollout.reward is None
    found = store.traces.breakdown(store.views.attempts(rollout.id)[-1].token)
    assert [set(turn) >= PARTS for turn in by_turn(found)] == [True] and found.total is None


async def overflowing(task: Any, context: Context) -> str:
    await context.ask([{"role": "user", "content": "hi"}])
    context.trace.tool(ToolCall(tool="lookup", arguments={}, result="17"))
    raise ValueError("context overflow")


def test_what_tools_may_add_has_to_fit_the_range_of_a_proof() -> None:
    prove = {"primary": "reward", "reward_range": [0.0, 1.0]}
    others = [{**TASK, "prompt": f"What grows in garden {n}, and since when?"} for n in (1, 2)]
    asked: dict[str, Any] = {"validate": others, "model": "local/sprout-weak", "improve": {"prove": prove}}
    with pytest.raises(BadInput, match="the agent's rewards go from 0 to 1.1"):
        improve_spec(settings(agent=None, tool_reward={}, **asked))


def test_tool_rewards_are_an_option_of_the_api_and_refused_before_anything_runs(tmp_path: Any) -> None:
    def agent(task: Any, ctx: Any) -> str:
        ctx.trace.tool(ToolCall(tool="lookup", arguments={"key": "oak"}, result="17"))
        return "17"

    async def asking(task: Any, ctx: Any) -> str:
        said = await ctx.ask([{"role": "user", "content": "hi"}])
        ctx.trace.tool(ToolCall(tool="lookup", arguments={"key": "oak"}, result="17"))
        await ctx.ask([{"role": "user", "content": "hi"}])
        return "17" if said else ""

    tasks = [{"id": name, "input": {"prompt": name, "needs": ["lookup"]}, "expected": "17"} for name in "ab"]
    at = tmp_path / "store.db"
    with pytest.raises(BadInput, match="tool_reward.tone: is unknown"):
        hf.collect(agent, tasks, scorers="exact", store=at, tool_reward={"tone": 0.1})
    assert not at.exists()
    with serving() as endpoint:
        model: dict[str, Any] = {"model": "m", "base_url": endpoint.url}
        run = hf.collect(asking, tasks, scorers="exact", store=at, seeds=1, tool_reward={"choice": 0.25}, **model)
    with open_store(at) as opened:
        assert {one.reward for one in opened.views.rollouts(run.id)} == {1.25}
