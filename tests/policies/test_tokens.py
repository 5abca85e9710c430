"""A chat becomes ids and comes back; text cannot spell a mark; what was sampled is the beginning of the next prompt."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.policies.tokens import (
    ASSISTANT,
    CALL,
    END,
    SYSTEM,
    THINK,
    TOOL,
    UNTHINK,
    USER,
    VOCABULARY,
    answer,
    prompt,
    read,
    render,
)  # fmt: skip
from tests.policies.small import show

ADD = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {}, "b": {}}}}}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_conversation_becomes_marks_and_bytes() -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "é"}]
    assert prompt(messages) == [SYSTEM, *b"be", END, USER, 0xC3, 0xA9, END, ASSISTANT]


def test_only_what_the_assistant_decided_is_marked_as_decided() -> None:
    ids, decided = render([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    assert ids == [USER, *b"a", END, ASSISTANT, *b"b", END]
    assert decided == [False, False, False, False, True, True]


def test_thoughts_and_calls_have_their_own_marks() -> None:
    message = {"role": "assistant", "reasoning_content": "hm", "content": "", "tool_calls": [call("add", '{"a":1}')]}
    assert answer(message) == [THINK, *b"hm", UNTHINK, CALL, *b'add {"a":1}', END]


def test_tools_stand_first_in_the_system_message() -> None:
    with_system = show(prompt([{"role": "system", "content": "be brief"}], [ADD]))
    assert with_system == "<|system|>tools: add(a,b)\nbe brief<|end|><|assistant|>"
    assert show(prompt([{"role": "user", "content": "x"}], [ADD])).startswith(
        "<|system|>tools: add(a,b)<|end|><|user|>"
    )


def test_a_tool_result_is_text_of_the_tool() -> None:
    assert prompt([{"role": "tool", "content": "7"}]) == [TOOL, *b"7", END, ASSISTANT]


texts = st.text(max_size=12)
arguments = st.text(max_size=8)
names = st.text(alphabet="abc_", min_size=1, max_size=5)


@given(thought=texts, content=texts, calls=st.lists(st.tuples(names, arguments), max_size=2))
def test_an_answer_read_back_gives_the_ids_it_was_read_from(
    thought: str, content: str, calls: list[tuple[str, str]]
) -> None:
    message = {"role": "assistant", "reasoning_content": thought, "content": content,
               "tool_calls": [call(*each) for each in calls]}  # fmt: skip
    ids = answer(message)
    assert answer(read(ids)) == ids
    assert all(token < VOCABULARY for token in ids)


@given(st.text())
def test_text_cannot_spell_a_mark(text: str) -> None:
    assert all(token < 256 for token in prompt([{"role": "user", "content": text}])[1:-2])


@given(st.lists(st.integers(0, VOCABULARY - 1), max_size=40))
def test_any_ids_can_be_read(ids: list[int]) -> None:
    message = read(ids)
    assert message["role"] == "assistant"


def test_half_a_letter_becomes_a_question_mark() -> None:
    half = "a\ud800"
    message = {"role": "assistant", "reasoning_content": half, "content": half, "tool_calls": [call(half, half)]}
    assert answer(message) == [THINK, *b"a?", UNTHINK, *b"a?", CALL, *b"a? a?", END]
    tool = {"type": "function", "function": {"name": half}}
    assert (
        show(prompt([{"role": "system", "content": half}], [tool])) == "<|system|>tools: a?()\na?<|end|><|assistant|>"
    )


def test_an_answer_that_breaks_off_keeps_what_there_is() -> None:
    assert read([*b"so", CALL, *b"add {"])["tool_calls"][0]["function"] == {"name": "add", "arguments": "{"}
    assert read([THINK, *b"hm"]) == {"role": "assistant", "content": "", "reasoning_content": "hm"}


def test_an_unknown_role_is_refused_by_its_place() -> None:
    with pytest.raises(BadInput, match=r"messages\[1\].role = 'robot'"):
        prompt([{"role": "user", "content": "x"}, {"role": "robot", "content": "y"}])
    with pytest.raises(BadInput, match="is not text"):
        prompt([{"role": "user", "content": 7}])
