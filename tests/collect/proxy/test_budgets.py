"""Thinking budgets of calls that pass through: granted, told to the upstream, counted, and kept across restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.budgets import ModelInfo, ProxyBudgets, limited, way_of
from holdfast.collect.proxy.dialect import Chat
from holdfast.collect.proxy.responses import Responses
from holdfast.collect.thinking import ANSWER_ROOM, ThinkingControl
from holdfast.contracts.budget import BudgetEventKind, Mode, Tier
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall
from holdfast.store.store import Store
from tests.collect.proxy.far import HELLO, Far, Road, Step, asking, chunk, listing, running
from tests.collect.proxy.far import road as built
from tests.conftest import Clock

OURS, VLLM = ModelInfo(owner="holdfast"), ModelInfo(owner="vllm")
DIALECTS = (Chat(), Responses(), Messages())


@contextmanager
def road(store: Store, far: Far, **settings: Any) -> Iterator[Road]:
    with built(store, far=far, attempt=running(store, **settings), dialects=DIALECTS) as here:
        yield here


def post(here: Road, **more: Any) -> int:
    return here.post(body=asking(**more))[0]


def sent(here: Road) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(here.far.asked[-1][1])
    return found


def thought(used: int, **more: Any) -> bytes:
    usage = {"prompt_tokens": 3, "completion_tokens": used + 5}
    usage["completion_tokens_details"] = {"reasoning_tokens": used}  # type: ignore[assignment]
    choice = {"index": 0, "message": {"role": "assistant", "content": "4"}, "finish_reason": "stop"}
    return json.dumps({"model": "m@1", "choices": [choice], "usage": usage, **more}).encode()


def test_our_own_endpoint_is_told_and_what_is_used_is_counted(file_store: Store) -> None:
    far = Far(models=listing({"id": "m", "owned_by": "holdfast"}), usual=Step(thought(120)))
    with road(file_store, far, thinking_budgets=True) as here:
        assert post(here, temperature=0.5) == 200
        assert sent(here) == {"model": "m", "messages": HELLO, "temperature": 0.5, "thinking": 500}
        told = here.spans()[-1].attributes["thinking"]
        assert told == {
            "granted": 500,
            "used": 120,
            "mode": "parameter",
            "action": "continue",
            "tier": "trivial",
            "left": 380,
            "overspent": 0,
        }
        assert post(here, thinking=100) == 200  # what the agent itself wants of it
        assert sent(here)["thinking"] == 100
        assert here.spans()[-1].attributes["thinking"]["overspent"] == 20
        assert post(here) == 200 and sent(here)["thinking"] == 260
    call = here.spans()[-1].model
    assert call is not None and call.thinking_tokens == 120
    assert call.sampling == {"thinking": 260, "thinking_mode": "parameter"}
    use = file_store.budgets.get(here.attempt.token)
    assert use is not None and (use.budget.spent, use.budget.calls, use.budget.mode) == (360, 3, Mode.PARAMETER)
    (total,) = file_store.budgets.by_run()
    assert (total.allowed, total.spent, total.calls) == (500, 360, 3)


def test_others_are_asked_in_the_system_message_which_is_what_is_kept(file_store: Store) -> None:
    far = Far(models=listing({"id": "m", "owned_by": "openai"}), usual=Step(thought(700)))
    with road(file_store, far, thinking_budgets=True) as here:
        assert post(here) == 200
        word = {"role": "system", "content": "Think for at most 500 tokens, then answer."}
        assert sent(here)["messages"] == [word, *HELLO] and "thinking" not in sent(here)
        assert sent(here)["max_completion_tokens"] == 500 + ANSWER_ROOM
        span = here.spans()[-1]
        assert span.model is not None and list(span.model.messages) == [word, *HELLO]
        assert span.attributes["thinking"]["mode"] == "hint" and span.attributes["thinking"]["overspent"] == 200
        asked = len(far.asked)
        assert post(here) == 400  # it does not keep to a limit, and nothing is left
        assert len(far.asked) == asked
    use = file_store.budgets.get(here.attempt.token)
    assert use is not None and (use.budget.spent, use.budget.overspent) == (700, 200)


def test_one_that_keeps_to_its_limit_is_asked_to_answer_at_once_when_nothing_is_left(file_store: Store) -> None:
    far = Far(models=listing({"id": "m", "owned_by": "openai"}), usual=Step(thought(500)))
    with road(file_store, far, thinking_budgets=True) as here:
        assert post(here) == post(here) == 200
        assert sent(here)["messages"][0]["content"] == "Answer at once, without thinking."
        assert sent(here)["max_completion_tokens"] == ANSWER_ROOM


def test_a_count_beyond_all_is_not_counted_and_harms_no_later_call(file_store: Store) -> None:
    far = Far(models=listing({"id": "m", "owned_by": "holdfast"}), usual=Step(thought(10**19)))
    with road(file_store, far, thinking_budgets=True) as here:
        assert post(here) == 200
        far.usual = Step(thought(20))
        assert post(here) == 200
    use = file_store.budgets.get(here.attempt.token)
    assert use is not None and (use.budget.calls, use.budget.spent) == (2, 20)


async def test_a_change_that_could_not_be_written_has_not_happened(file_store: Store) -> None:
    attempt, budgets, asked = (
        running(file_store),
        ProxyBudgets(file_store, clock=time.time),
        Chat().read_request(asking()),
    )
    first, _ = await budgets.grant(attempt, asked, Chat(), "auto", [OURS])
    call = ModelCall(model="m", messages=(), response={}, thinking_tokens=100, finish_reason="stop")
    second, _ = await budgets.grant(attempt, asked, Chat(), "auto", [OURS])
    second.settle(replace(call, thinking_tokens=10**25))  # no column holds it
    with pytest.raises(Exception, match="."):
        await second.written()
    await first.written()  # another call's trouble
    first.settle(call)
    await first.written()
    for used in (10**25, 100):
        again, _ = await budgets.grant(attempt, asked, Chat(), "auto", [OURS])
        again.settle(replace(call, thinking_tokens=used))
        if used == 10**25:
            running(file_store)  # nobody waits for it, since its call broke off; this comes after it
        else:
            await again.written()
    use = file_store.budgets.get(attempt.token)
    assert use is not None and use.budget.spent == 200


def test_a_run_without_budgets_is_passed_on_byte_for_byte(file_store: Store) -> None:
    far = Far(models=listing({"id": "m", "owned_by": "holdfast"}))
    with road(file_store, far, thinking_budgets=False) as here:
        assert post(here, thinking=7) == 200
        assert far.asked[-1][1] == asking(thinking=7) and not far.lists
    assert "thinking" not in here.spans()[-1].attributes and file_store.budgets.get(here.attempt.token) is None


def test_a_stream_is_counted_too_and_one_that_breaks_as_far_as_it_came(file_store: Store) -> None:
    words = [chunk(reasoning_content="t" * 400), chunk(content="ok")]
    far = Far(usual=Step([*words, chunk("stop"), b"data: [DONE]\n\n"]))
    with road(file_store, far, thinking_budgets=True) as here:
        assert post(here, stream=True) == 200
        assert here.spans()[-1].attributes["thinking"]["used"] == 100  # four letters a token
        far.usual = Step(words, breaks=True)
        with pytest.raises(Exception, match="IncompleteRead"):
            post(here, stream=True)
        deadline = time.monotonic() + 60
        while here.spans()[-1].ended_at is None and time.monotonic() < deadline:
            time.sleep(0.01)
        span = here.spans()[-1]
    assert span.attributes["partial"].startswith("the upstream")
    use = file_store.budgets.get(here.attempt.token)
    assert use is not None and use.budget.spent >= 200 and span.attributes["thinking"]["granted"] == 400


def test_a_call_that_is_refused_gives_back_what_it_was_granted(file_store: Store) -> None:
    far = Far(models=listing({"id": "m", "owned_by": "holdfast"}), usual=Step(b'{"error": 1}', 400))
    with road(file_store, far, thinking_budgets=True) as here:
        assert post(here) == post(here) == 400
        far.usual = Step(thought(10))
        assert post(here) == 200 and sent(here)["thinking"] == 500
    kinds = [e.kind for e in file_store.budgets.events(file_store.budgets.get(here.attempt.token))]  # type: ignore[arg-type]
    assert kinds == [BudgetEventKind.ALLOCATE, BudgetEventKind.SPEND]


# The arithmetic around it.


async def test_a_proxy_that_was_started_again_goes_on_where_it_was(file_store: Store, clock: Clock) -> None:
    attempt = running(file_store, task={"traits": {"tool_count": 1}}, thinking_budgets=True)
    asked = Chat().read_request(asking())
    call = ModelCall(model="m", messages=(), response={}, thinking_tokens=700, sampling={"thinking_mode": "hint"})
    first = ProxyBudgets(file_store, clock=time.time)
    grant, _ = await first.grant(attempt, asked, Chat(), "auto", [OURS])
    second, rewritten = await first.grant(attempt, asked, Chat(), "auto", [OURS])  # at the same time: nothing is free
    assert (grant.tokens, second.tokens, rewritten.sampling["thinking"]) == (2000, 0, 0)
    assert second.settle(None) == {} and grant.settle(call)["left"] == 1300
    assert grant.settle(call) == {}  # once is enough
    await grant.written()
    again = ProxyBudgets(file_store, clock=time.time)
    grant, _ = await again.grant(attempt, asked, Chat(), "auto", [OURS])
    assert grant.tokens == 1300
    grant.settle(replace(call, thinking_tokens=100))
    await grant.written()
    third, _ = await first.grant(attempt, asked, Chat(), "auto", [OURS])  # and sees what the other has used
    assert third.tokens == 1200
    use = file_store.budgets.get(attempt.token)
    assert use is not None and (use.budget.tier, use.budget.spent) == (Tier.STANDARD, 800)


async def test_which_runs_want_what(file_store: Store) -> None:
    budgets = ProxyBudgets(file_store, clock=time.time)
    assert await budgets.thinking_mode(running(file_store, thinking_budgets=True)) == "auto"
    assert await budgets.thinking_mode(running(file_store, thinking_budgets=True, thinking_mode="hint")) == "hint"
    assert await budgets.thinking_mode(running(file_store)) is None


async def test_a_flag_reaches_the_calls_that_go_through_the_proxy(file_store: Store) -> None:
    budgets = ProxyBudgets(file_store, clock=time.time)
    assert await budgets.thinking_mode(running(file_store, thinking_budgets=True, without=["budgets"])) is None
    fixed = running(file_store, thinking_budgets=True, without=["adaptive"])
    assert await budgets.thinking_mode(fixed) == "auto"
    asked = Chat().read_request(asking())
    assert (await budgets.grant(fixed, asked, Chat(), "auto", [OURS]))[0].tokens == 2000  # for an easy task, as for all
    usual = running(file_store, thinking_budgets=True)
    assert (await budgets.grant(usual, asked, Chat(), "auto", [OURS]))[0].tokens == 500


@pytest.mark.parametrize(
    ("wanted", "known", "way"),
    [
        ("auto", [OURS], ThinkingControl(Mode.PARAMETER, "thinking")),
        ("auto", [OURS, OURS], ThinkingControl(Mode.PARAMETER, "thinking")),
        ("auto", [OURS, ModelInfo()], ThinkingControl(Mode.HINT)),  # whichever of the two is asked
        ("auto", [VLLM], ThinkingControl(Mode.HINT)),  # it would be forced, and that takes two calls
        ("forcing", [VLLM], ThinkingControl(Mode.HINT)),
        ("hint", [OURS], ThinkingControl(Mode.HINT)),
        ("parameter", [VLLM], ThinkingControl(Mode.PARAMETER, "thinking_token_budget")),
        ("auto", [ModelInfo()], ThinkingControl(Mode.HINT)),
    ],
)
def test_the_way_is_the_upstreams(wanted: str, known: list[ModelInfo], way: ThinkingControl) -> None:
    assert way_of(wanted, known) == way


TOLD = ThinkingControl(Mode.PARAMETER, "thinking")
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 5000}}


@pytest.mark.parametrize(
    ("dialect", "given", "limit", "changed", "mode"),
    [
        (Chat(), {"messages": []}, 9, {"messages": [], "thinking": 9}, "parameter"),
        (
            Responses(),
            {"instructions": "Be brief."},
            9,
            {"instructions": "Be brief.\nThink for at most 9 tokens", "max_output_tokens": 1033},
            "hint",
        ),
        (Responses(), {}, 0, {"instructions": "Answer at once, without thinking.", "max_output_tokens": 1024}, "hint"),
        (Messages(), {"max_tokens": 500}, 9, {"system": "Think for at most 9 tokens", "max_tokens": 500}, "hint"),
        (Messages(), {"max_tokens": 9000}, 9, {"system": "Think for at most 9 tokens", "max_tokens": 1033}, "hint"),
        (Messages(), THINKS, 2000, {"thinking": {"type": "enabled", "budget_tokens": 2000}}, "parameter"),
        (Messages(), THINKS, 1000, {"thinking": {"type": "disabled"}}, "parameter"),  # too few for that API
    ],
)
def test_each_dialect_says_it_in_its_own_place(
    dialect: Any, given: dict[str, Any], limit: int, changed: dict[str, Any], mode: str
) -> None:
    found, by = limited(dialect, given, limit, TOLD)
    assert by == mode and found.keys() == changed.keys()
    for name, value in changed.items():
        assert found[name] == value or (isinstance(value, str) and found[name].startswith(value))


def test_parts_of_a_system_message_get_one_more() -> None:
    parts = [{"type": "text", "text": "Be brief."}]
    found, _ = limited(Messages(), {"system": parts}, 9, TOLD)
    assert found["system"][0] == parts[0] and "at most 9" in found["system"][1]["text"]


def test_a_thinking_field_of_another_kind_is_left_to_its_owner() -> None:
    found, mode = limited(Chat(), {"messages": [], "thinking": {"type": "auto"}}, 9, TOLD)
    assert found["thinking"] == {"type": "auto"} and mode is Mode.HINT


async def test_what_cannot_be_granted_leaves_nothing_granted(file_store: Store) -> None:
    attempt, budgets = running(file_store, thinking_budgets=True), ProxyBudgets(file_store, clock=time.time)
    with pytest.raises(BadInput):
        await budgets.grant(attempt, Chat().read_request(asking(thinking=-1)), Chat(), "auto", [OURS])
    grant, _ = await budgets.grant(attempt, Chat().read_request(asking()), Chat(), "auto", [OURS])
    assert grant.tokens == 500
    await grant.written()
