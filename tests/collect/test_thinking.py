"""A model behind an endpoint is held to a number of thinking tokens in the way that this endpoint can.

The model here writes one letter a token, and its endpoint continues an assistant's message as vLLM does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.collect.client import Client
from holdfast.collect.thinking import ThinkingControl, hinted, limited, thinking_tokens, way_for
from holdfast.contracts.budget import Mode
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens
from holdfast.policies.engine import Local
from tests.collect.test_endpoint import serving
from tests.policies.small import small

HELLO = [{"role": "user", "content": "hello"}]
FORCING = ThinkingControl(Mode.FORCING)
ASSISTANT, END = "\x01", "\x02"


def ids_of(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


@dataclass
class Writer:
    """Thinks `thought`, then says `answer`; after a thought that was closed for it, says `cut_short`."""

    thought: str = "a" * 20
    answer: str = "42"
    cut_short: str = "41"
    parses: bool = True  # the thought is told apart from the answer
    drifts: bool = False  # its template writes what it is given back in another way
    has_ids: bool = True
    asked: list[tuple[list[Mapping[str, Any]], dict[str, Any]]] = field(default_factory=list)

    async def __call__(self, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> ModelCall:
        self.asked.append((list(messages), dict(sampling)))
        *before, last = messages
        begun = last["content"] if sampling.get("continue_final_message") else ""
        said = before if sampling.get("continue_final_message") else messages
        prompt = "".join(one["content"] for one in said) + ASSISTANT
        full = f"<think>\n{self.thought}\n</think>\n\n{self.answer}{END}"
        if not begun:
            rest = full
        elif full.startswith(begun):
            rest = full[len(begun) :]
        else:  # the thought was closed for it
            rest = self.cut_short + END
        wrote = rest[: sampling.get("max_tokens", 1000)]
        if self.drifts:
            begun = begun.replace("\n", " ")
        prompt_ids = ids_of(prompt + begun)
        return ModelCall(
            model="w",
            messages=tuple(messages),
            response=self._message(wrote.removesuffix(END), begun),
            finish_reason="stop" if wrote.endswith(END) else "length",
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(wrote),
            prompt_ids=prompt_ids if self.has_ids else None,
            completion_ids=ids_of(wrote) if self.has_ids else None,
            logprobs=tuple(-0.5 for _ in wrote) if self.has_ids else None,
            sampling=dict(sampling),
        )

    def _message(self, wrote: str, begun: str) -> dict[str, Any]:
        if not self.parses or not wrote.startswith("<think>"):
            return {"role": "assistant", "content": wrote}
        thought, _, said = wrote.removeprefix("<think>\n").partition("\n</think>\n\n")
        return {"role": "assistant", "content": said or None, "reasoning_content": thought}


def ask(writer: Writer, limit: int, way: ThinkingControl = FORCING, **sampling: Any) -> ModelCall:
    return asyncio.run(limited(writer, HELLO, sampling, limit, way))


@pytest.mark.parametrize(
    ("owner", "wanted", "expected"),
    [
        ("holdfast", None, ThinkingControl(Mode.PARAMETER, "thinking")),
        ("vllm", None, ThinkingControl(Mode.FORCING, "thinking_token_budget")),
        ("sglang", None, ThinkingControl(Mode.FORCING, "thinking_token_budget")),
        ("vllm", Mode.PARAMETER, ThinkingControl(Mode.PARAMETER, "thinking_token_budget")),
        (
            "openai",
            None,
            ThinkingControl(Mode.HINT, "thinking_token_budget", "max_completion_tokens"),
        ),  # not known to obey: only asked
        (None, None, ThinkingControl(Mode.HINT, "thinking_token_budget")),
        ("holdfast", Mode.HINT, ThinkingControl(Mode.HINT, "thinking")),
    ],
)
def test_the_way_follows_from_who_serves_the_model(
    owner: str | None, wanted: Mode | None, expected: ThinkingControl
) -> None:
    assert way_for(owner, wanted) == expected


def test_an_endpoint_with_a_parameter_is_told() -> None:
    writer = Writer()
    call = ask(writer, 9, ThinkingControl(Mode.PARAMETER, "thinking_token_budget"), temperature=0.5)
    assert writer.asked == [(HELLO, {"temperature": 0.5, "thinking_token_budget": 9})]
    assert call.sampling == {"temperature": 0.5, "thinking": 9, "thinking_mode": "parameter"}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (HELLO, [{"role": "system", "content": "{}"}, *HELLO]),
        ([{"role": "system", "content": "be kind"}, *HELLO], [{"role": "system", "content": "be kind\n{}"}, *HELLO]),
        ([{"role": "developer", "content": None}], [{"role": "developer", "content": "{}"}]),
        (
            [{"role": "system", "content": [{"type": "text", "text": "be kind"}]}],
            [{"role": "system", "content": [{"type": "text", "text": "be kind"}, {"type": "text", "text": "\n{}"}]}],
        ),
        ([], [{"role": "system", "content": "{}"}]),
    ],
)
def test_a_hint_stands_in_the_systems_message(messages: Any, expected: Any) -> None:
    word = "Think for at most 9 tokens, then answer."
    assert str(hinted(messages, 9)) == str(expected).replace("{}", word)
    assert "Answer at once, without thinking." in str(hinted(messages, 0))


def test_a_hint_changes_what_is_sent_and_nothing_else() -> None:
    writer = Writer()
    call = ask(writer, 9, ThinkingControl(Mode.HINT))
    assert [one["role"] for one in writer.asked[0][0]] == ["system", "user"]
    assert call.messages == tuple(writer.asked[0][0])  # as it was sent
    assert call.sampling == {"thinking": 9, "thinking_mode": "hint"}
    assert thinking_tokens(call) > 9  # it did not listen, which is measured


@pytest.mark.parametrize("parses", [True, False])
def test_a_thought_at_its_limit_is_closed_and_the_answer_continued(parses: bool) -> None:
    writer = Writer(parses=parses)
    call = ask(writer, 15, max_tokens=100, temperature=0.5)
    opened = "<think>\naaaaaaa"
    assert len(opened) == 15
    begun = f"{opened}\n</think>\n\n"
    put = len(begun) - 15
    assert writer.asked == [
        (HELLO, {"temperature": 0.5, "max_tokens": 15}),
        (
            [*HELLO, {"role": "assistant", "content": begun}],
            {"temperature": 0.5, "max_tokens": 85, "continue_final_message": True, "add_generation_prompt": False},
        ),
    ]
    assert (call.response["content"], call.response["reasoning_content"]) == ("41", "aaaaaaa")
    assert call.messages == tuple(HELLO)
    assert call.prompt_ids == ids_of("hello" + ASSISTANT)
    assert call.completion_ids == ids_of(begun + "41" + END)
    assert call.forced == tuple(range(15, 15 + put))  # what nobody drew is not learnt from
    assert call.logprobs == (*[-0.5] * 15, *[0.0] * put, *[-0.5] * 3)
    assert call.completion_tokens == 15 + put + 3
    assert (call.thinking_tokens, call.finish_reason) == (15, "stop")
    assert call.sampling == {"max_tokens": 100, "temperature": 0.5, "thinking": 15, "thinking_mode": "forcing"}


def test_an_answer_that_ends_within_the_limit_is_left_as_it_is() -> None:
    writer = Writer(thought="a")
    call = ask(writer, 50)
    assert (len(writer.asked), call.forced, call.response["content"]) == (1, (), "42")


def test_an_answer_that_was_stopped_after_its_thought_goes_on_where_it_was() -> None:
    writer = Writer(thought="aa", answer="forty-two")
    full = "<think>\naa\n</think>\n\nforty-two"
    call = ask(writer, len(full) - 4, max_tokens=100)
    assert (call.response["content"], call.response["reasoning_content"]) == ("forty-two", "aa")
    assert call.completion_ids == ids_of(full + END)
    assert call.forced == ()  # nothing had to be put there


def test_an_answer_that_may_not_be_longer_than_the_thought_is_not_cut_twice() -> None:
    writer = Writer()
    call = ask(writer, 50, max_completion_tokens=50)
    assert [sampling for _, sampling in writer.asked] == [{"max_completion_tokens": 50}]
    assert call.sampling["thinking_mode"] == "forcing"


def test_without_a_limit_of_its_own_the_rest_has_none() -> None:
    writer = Writer()
    ask(writer, 12)
    assert "max_tokens" not in writer.asked[1][1]


def test_no_thinking_at_all_begins_with_a_closed_thought() -> None:
    writer = Writer()
    call = ask(writer, 0)
    ((sent, sampling),) = writer.asked
    assert sent[-1] == {"role": "assistant", "content": "<think>\n</think>\n\n"}
    assert sampling["continue_final_message"] is True
    assert (call.response["content"], call.forced, thinking_tokens(call)) == ("41", (), 0)
    assert call.completion_ids == ids_of("41" + END)


def test_where_the_second_prompt_is_not_what_was_drawn_the_second_part_stands_for_itself() -> None:
    writer = Writer(drifts=True)
    call = ask(writer, 15, max_tokens=100)
    assert (call.response["content"], call.response["reasoning_content"]) == ("41", "aaaaaaa")
    assert call.completion_ids == ids_of("41" + END)
    assert call.prompt_ids == ids_of("hello" + ASSISTANT + "<think> aaaaaaa </think>  ")
    assert (call.forced, call.logprobs) == ((), (-0.5,) * 3)
    assert call.messages[-1]["role"] == "assistant"  # what the ids are of


def test_an_endpoint_without_ids_is_held_to_it_all_the_same() -> None:
    call = ask(Writer(has_ids=False), 15, max_tokens=100)
    assert (call.response["content"], call.completion_ids, call.logprobs) == ("41", None, None)
    assert (call.completion_tokens, call.thinking_tokens) == (18, 15)


def test_a_reader_that_takes_the_answer_for_a_thought_is_understood() -> None:
    class Confused(Writer):
        def _message(self, wrote: str, begun: str) -> dict[str, Any]:
            message = super()._message(wrote, begun)
            return {"role": "assistant", "content": None, "reasoning_content": wrote} if begun else message

    call = ask(Confused(), 15, max_tokens=100)
    assert (call.response["content"], call.response["reasoning_content"]) == ("41", "aaaaaaa")


def test_half_a_tool_call_is_written_anew_after_the_same_thought() -> None:
    class Caller(Writer):
        def _message(self, wrote: str, begun: str) -> dict[str, Any]:
            message = super()._message(wrote, begun)
            function = {"name": "add", "arguments": "{}" if begun else "{"}
            call = {"id": "c", "type": "function", "function": function}
            return {**message, "content": None, "tool_calls": [call]}

    writer = Caller(thought="aa", answer="call")
    call = ask(writer, len("<think>\naa\n</think>\n\nca"), max_tokens=100)
    assert writer.asked[1][0][-1]["content"] == "<think>\naa\n</think>\n\n"
    assert call.response["tool_calls"][0]["function"]["arguments"] == "{}"
    assert call.response["reasoning_content"] == "aa"
    assert call.completion_ids == ids_of("call" + END)  # of the call that counts, after a prompt with the thought


def test_nothing_that_could_be_continued_is_asked_for_once_more() -> None:
    class Silent(Writer):
        def _message(self, wrote: str, begun: str) -> dict[str, Any]:
            return {"role": "assistant", "content": "" if len(self.asked) == 1 else "42"}

    assert ask(Silent(), 5).response["content"] == "42"


@pytest.mark.parametrize("limit", [-1, True, 1.5])
def test_what_is_no_limit_is_refused_before_anything_is_sent(limit: Any) -> None:
    writer = Writer()
    with pytest.raises(BadInput, match="is not a whole number of tokens"):
        ask(writer, limit)
    assert writer.asked == []


async def test_our_own_endpoint_holds_its_model_to_what_the_client_asks_for() -> None:
    model = small(favour={tokens.THINK: 4.0})
    with Local(model, slots=4) as local, serving(local) as url:
        client = Client("script", url)
        calls = [await client(HELLO, thinking=4, max_tokens=30, seed=n, return_token_ids=True) for n in range(6)]
        free = [await client(HELLO, max_tokens=30, seed=n, return_token_ids=True) for n in range(6)]
        await client.close()
    assert {call.sampling["thinking_mode"] for call in calls} == {"parameter"}
    assert any(call.forced for call in calls)
    held, loose = (max(call.thinking_tokens or 0 for call in some) for some in (calls, free))
    assert held == 4 < loose
