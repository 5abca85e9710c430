"""How a chat becomes tokens: our marks, or a tokenizer's template (a small one that only knows bytes)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.policies import tokens
from holdfast.policies.chat_template import ByteTemplate, JinjaTemplate, thinking_tokens

OPEN, CLOSE, EOS = 256, 257, 258
HELLO = [{"role": "user", "content": "hé"}]


class Tokenizer:
    """Bytes, two marks for thoughts, and an end; its template is one line a message."""

    unk_token_id = None

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return {"<think>": OPEN, "</think>": CLOSE}.get(token)

    def apply_chat_template(self, messages: Sequence[Any], *, tools: Any, **how: Any) -> list[int]:
        assert how == {"add_generation_prompt": True, "tokenize": True, "return_dict": False}
        if messages[0]["role"] == "tool":
            raise ValueError("a tool cannot begin")
        self.asked = messages
        return list(json.dumps([tools, [message["content"] for message in messages]]).encode())

    def decode(self, ids: Sequence[int]) -> str:
        marks = {OPEN: b"<think>", CLOSE: b"</think>", EOS: b"<eos>"}
        return b"".join(marks.get(token, bytes([token % 256])) for token in ids).decode(errors="replace")


@pytest.fixture
def template() -> JinjaTemplate:
    return JinjaTemplate(Tokenizer(), frozenset({EOS}))


def test_bytes_are_our_own_tokens() -> None:
    template = ByteTemplate()
    assert template.prompt(HELLO) == tokens.prompt(HELLO)
    assert template.read([*b"hi", tokens.END])["content"] == "hi"
    assert (template.token_bytes(104), template.token_bytes(tokens.END)) == (b"h", b"<|end|>")


def test_the_string_that_ended_an_answer_is_no_part_of_it(template: JinjaTemplate) -> None:
    for one in (ByteTemplate(), template):
        assert one.read([*b"one."], ("!", "."))["content"] == "one"
        assert one.read([*b"one"], (".",))["content"] == "one"
    assert ByteTemplate().read([*b"one"], ("\ud800",))["content"] == "one"
    assert ByteTemplate().read([*b"one\n\n"], ("\n", "\n\n"))["content"] == "one"


def test_only_bytes_can_be_shown_as_they_come(template: JinjaTemplate) -> None:
    deltas = ByteTemplate().deltas((".",))
    assert deltas is not None and deltas.add(b"one") == {"content": "one"}
    assert template.deltas() is None


def test_the_template_is_asked_with_text_and_with_arguments_as_objects(template: JinjaTemplate) -> None:
    call = {"id": "a", "function": {"name": "calc", "arguments": '{"expression": "2+2"}'}}
    broken = {"id": "b", "function": {"name": "calc", "arguments": "{oops"}}
    ids = template.prompt(
        [
            {"role": "user", "content": [{"type": "text", "text": "2+"}, {"type": "text", "text": "2"}]},
            {"role": "assistant", "content": None, "tool_calls": [call, broken]},
        ],
        [{"type": "function"}],
    )
    assert json.loads(bytes(ids)) == [[{"type": "function"}], ["2+2", ""]]
    first, second = template._tokenizer.asked[1]["tool_calls"]
    assert (first["function"]["arguments"], second["function"]["arguments"]) == ({"expression": "2+2"}, "{oops")


def test_what_the_template_refuses_is_bad_input(template: JinjaTemplate) -> None:
    with pytest.raises(BadInput, match="chat template: ValueError: a tool cannot begin"):
        template.prompt([{"role": "tool", "content": "4"}])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hi", {"content": "hi"}),
        ("<think>\n2+2\n</think>\n\n4", {"content": "4", "reasoning_content": "2+2"}),
        ("<think>still", {"content": "", "reasoning_content": "still"}),
        (
            'ok <tool_call>{"name": "f", "arguments": {"a": {"b": 1}}}</tool_call> <tool_call>{"name":"g"}</tool_call>',
            {
                "content": "ok",
                "tool_calls": [
                    {"id": "call_0", "type": "function", "function": {"name": "f", "arguments": '{"a": {"b": 1}}'}},
                    {"id": "call_1", "type": "function", "function": {"name": "g", "arguments": "{}"}},
                ],
            },
        ),
        ("<tool_call>{oops}</tool_call>", {"content": "<tool_call>{oops}</tool_call>"}),  # malformed stays text
        ('<tool_call>{"a": 1}</tool_call>', {"content": '<tool_call>{"a": 1}</tool_call>'}),  # without a name
    ],
)
def test_thoughts_and_calls_are_read_from_the_text(template: JinjaTemplate, text: str, message: dict[str, Any]) -> None:
    assert template.read([*text.encode(), EOS]) == {"role": "assistant", **message}


def test_the_marks_of_a_thought_are_known_where_they_are_tokens(template: JinjaTemplate) -> None:
    assert template.think == (OPEN, CLOSE)

    class Plain(Tokenizer):
        def convert_tokens_to_ids(self, token: str) -> int | None:
            return None

    assert JinjaTemplate(Plain(), frozenset({EOS})).think is None
    assert template.token_bytes(OPEN) == b"<think>"


THINK, UNTHINK, END = tokens.THINK, tokens.UNTHINK, tokens.END


@pytest.mark.parametrize(
    ("prompt", "ids", "expected"),
    [
        ([1], [THINK, 65, 66, UNTHINK, 67, END], 2),
        ([1], [65, 66, END], 0),
        ([1, THINK, 64], [65, UNTHINK, 66, END], 1),  # the prompt had begun the thought
        ([THINK, 64, UNTHINK, 1], [65, END], 0),  # and had ended it
        ([1], [THINK, 65, END], 1),  # any mark ends a thought
        ([1], [THINK, 65, tokens.CALL, 66, END], 1),
        ([1], [THINK, 65, UNTHINK, THINK, 66, 67], 3),
    ],
)
def test_tokens_inside_thoughts_are_counted(prompt: list[int], ids: list[int], expected: int) -> None:
    assert thinking_tokens(ByteTemplate(), prompt, ids) == expected


def test_a_foreign_models_thoughts_are_counted_by_its_own_marks(template: JinjaTemplate) -> None:
    assert thinking_tokens(template, [1], [OPEN, 300, 400, CLOSE, 5, EOS]) == 2
    assert thinking_tokens(template, [1, OPEN], [300, 400, CLOSE, 5]) == 2
    template.think = None
    assert thinking_tokens(template, [1], [OPEN, 300]) is None
