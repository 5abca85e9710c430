"""A conversation with a scripted model: what is shown, what is remembered, which orders are obeyed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.cli.policy import ORDERS, ROUNDS, Quit, Talk, record
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.trace import ModelCall
from holdfast.workloads.tooluse.tools import SPECS, Toolbox, ToolWorld


class Script:
    """Answers in turn; keeps what it was asked."""

    def __init__(self, *answers: Mapping[str, Any] | Exception) -> None:
        self.answers, self.asked = list(answers), list[tuple[list[Any], dict[str, Any]]]()

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        self.asked.append((list(messages), sampling))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        response = {"role": "assistant", "content": "", **answer}
        return ModelCall(
            model="script", messages=tuple(messages), response=response, finish_reason="stop", completion_tokens=3
        )


def calls(name: str, arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}}]}


class Scene:
    def __init__(self, *answers: Mapping[str, Any] | Exception, **how: Any) -> None:
        self.script, self.shown = Script(*answers), ""
        box = Toolbox(ToolWorld(records={"oak.price": "12"}))
        how = {"tools": SPECS, "call": box.call, "sampling": {}, "think": "Think first.", **how}
        self.talk = Talk(self.script, write=self.write, **how)

    def write(self, text: str) -> None:
        self.shown += text


async def test_a_tool_really_runs_and_its_result_is_read() -> None:
    scene = Scene({"reasoning_content": "a sum", **calls("calc", '{"expression": "2+2"}')}, {"content": "It is 4."})
    made = await scene.talk.say("What is 2+2?")
    assert scene.shown == '(a sum)\n-> calc {"expression": "2+2"}\n<- 4\nIt is 4.\n'
    assert [message["role"] for message in scene.talk.messages] == ["user", "assistant", "tool", "assistant"]
    assert scene.script.asked[1][0] == scene.talk.messages[:3]
    assert [tool["function"]["name"] for tool in scene.script.asked[0][1]["tools"]] == list(SPECS)
    line = json.loads(record("What is 2+2?", scene.talk.messages, made, system="Be brief."))
    assert (line["answer"], line["tokens"], line["finish_reason"]) == ("It is 4.", 6, "stop")
    assert line["system"] == "Be brief."
    assert line["messages"][2] == {"role": "tool", "tool_call_id": "a", "content": "4"}


async def test_a_tool_that_is_off_is_neither_offered_nor_run() -> None:
    scene = Scene(calls("lookup", '{"key": "oak.price"}'), {"content": "I do not know."})
    assert scene.talk.order("/tools calc").startswith("on  calc: ")
    await scene.talk.say("How much is an oak?")
    assert "<- error: unknown tool\n" in scene.shown
    assert [tool["function"]["name"] for tool in scene.script.asked[0][1]["tools"]] == ["calc"]


async def test_without_tools_none_are_mentioned() -> None:
    scene = Scene({"content": "Hi."})
    scene.talk.order("/tools off")
    await scene.talk.say("Hello")
    assert scene.script.asked == [([{"role": "user", "content": "Hello"}], {})]
    scene.talk.order("/tools on")
    assert scene.talk.offered == list(SPECS)


async def test_a_model_that_calls_for_ever_is_stopped() -> None:
    scene = Scene(*[calls("calc", "{}")] * (ROUNDS + 1))
    assert len(await scene.talk.say("Go")) == ROUNDS


async def test_instructions_and_thinking_stand_in_the_system_message() -> None:
    scene = Scene(*[{"content": "ok"}] * 4, system="Be brief.")
    for order in ("/think on", "/think off", "/think 32", "/system"):
        scene.talk.order(order)
        await scene.talk.say("Hello")
    openings = [messages[0] for messages, _ in scene.script.asked]
    assert [opening["content"] for opening in openings] == [
        "Think first. Be brief.",
        "Be brief.",
        "Think first. Be brief.",
        "Think first.",
    ]
    assert [how.get("thinking") for _, how in scene.script.asked] == [None, 0, 32, 32]


async def test_a_seed_gives_each_answer_its_own_chance() -> None:
    scene = Scene(calls("calc", "{}"), {"content": "a"}, {"content": "b"}, sampling={"seed": 5})
    await scene.talk.say("one")
    await scene.talk.say("two")
    assert len({how["seed"] for _, how in scene.script.asked}) == 3


async def test_a_question_that_fails_is_taken_back() -> None:
    scene = Scene({"content": "Hi."}, calls("calc", "{}"), Fault("model", why="is closed"), {"content": "Again."})
    await scene.talk.say("Hello")
    before = list(scene.talk.messages)
    with pytest.raises(Fault):
        await scene.talk.say("What is 2+2?")
    assert scene.talk.messages == before
    await scene.talk.say("Hello?")
    assert scene.talk.messages[-1]["content"] == "Again."


async def test_what_a_terminal_would_obey_is_not_printed() -> None:
    scene = Scene({"content": "red\x1b[31m\nnext"})
    await scene.talk.say("Hello")
    assert scene.shown == "red�[31m\nnext\n"


def test_orders_are_listed_and_others_refused() -> None:
    talk = Scene().talk
    assert [line.split()[0] for line in talk.order("/help").splitlines()] == [order.split()[0] for order in ORDERS]
    assert talk.order("/system Be  brief. ") == "instructions: Be  brief."
    with pytest.raises(Quit):
        talk.order("/quit")
    for order, says in (
        ("/bye", "/bye: is no order; /help lists them"),
        ("/think much", "/think much: is not a number; give on, off or a number of tokens"),
        ("/tools hammer", "tool hammer: is unknown; there are calc, lookup, convert, calendar"),
    ):
        with pytest.raises(BadInput) as caught:
            talk.order(order)
        assert str(caught.value) == says


async def test_what_was_said_can_be_forgotten() -> None:
    scene = Scene({"content": "Hi."})
    await scene.talk.say("Hello")
    assert scene.talk.order("/new") == "forgotten"
    assert scene.talk.messages == []
