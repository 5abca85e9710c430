"""Parts become a message: texts of one kind join, nothing is made up."""

from __future__ import annotations

import json

import pytest

from holdfast.collect.proxy.dialect import MessageBuilder, count, kind, part, written


def test_parts_become_one_message_in_their_order() -> None:
    said = MessageBuilder()
    said.thought("Hm. ")
    said.text("One, ")
    said.thought("Two.")
    said.text("two.")
    said.text(None)
    said.call("c1", "add", '{"a":1}')
    said.call(5, None, "")
    assert said.message() == {
        "role": "assistant",
        "content": "One, two.",
        "reasoning_content": "Hm. Two.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}},
            {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
        ],
    }


def test_nothing_said_is_no_text_and_no_calls() -> None:
    said = MessageBuilder()
    said.thought("")
    assert said.message() == {"role": "assistant", "content": None}


def test_arguments_are_written_in_one_form_and_can_be_read_back() -> None:
    assert written({"city": "Köln", "n": [1, 2]}) == '{"city":"Köln","n":[1,2]}'
    assert json.loads(written({"half": "\ud83d"})) == {"half": "\ud83d"}
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="deeply"):
        written(deep)


def test_what_may_be_anything_is_asked_without_harm() -> None:
    assert part({"a": 1}, "a") == 1 and part([], "a") is None and part({}, "a") is None
    assert (count(3), count(True), count(-1), count("3")) == (3, None, None, None)
    assert (kind({"type": "x"}), kind({"type": []}, "y"), kind(3)) == ("x", "y", "")
