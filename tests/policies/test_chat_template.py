"""How a chat becomes tokens: our marks, or a tokenizer's template (a small one that only knows bytes)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.policies import tokens
from holdfast.policies.chat_template import ByteTemplate, Deltas, JinjaTemplate, thinking_tokens
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


def test_a_chat_becomes_marks_and_bytes_with_the_tools_first() -> None:
    asked = [{"role": "system", "content": "be"}, {"role": "user", "content": "é"}]
    assert prompt(asked) == [SYSTEM, *b"be", END, USER, 0xC3, 0xA9, END, ASSISTANT]
    assert prompt([{"role": "tool", "content": "7"}]) == [TOOL, *b"7", END, ASSISTANT]
    message = {"role": "assistant", "reasoning_content": "hm", "content": "", "tool_calls": [call("add", '{"a":1}')]}
    said = [THINK, *b"hm", UNTHINK, CALL, *b'add {"a":1}', END]
    assert answer(message) == said
    ids, decided = render([*asked[1:], message])
    assert ids == [USER, *"é".encode(), END, ASSISTANT, *said] and decided == [False] * 5 + [True] * len(said)
    with_system = show(prompt([{"role": "system", "content": "be brief"}], [ADD]))
    assert with_system == "<|system|>tools: add(a,b)\nbe brief<|end|><|assistant|>"
    assert show(prompt(asked[1:], [ADD])).startswith("<|system|>tools: add(a,b)<|end|><|user|>")


def test_bytes_are_our_own_tokens_and_only_they_can_be_shown_as_they_come(template: JinjaTemplate) -> None:
    own = ByteTemplate()
    assert own.prompt(HELLO) == tokens.prompt(HELLO) and own.read([*b"hi", tokens.END])["content"] == "hi"
    assert (own.token_bytes(104), own.token_bytes(tokens.END)) == (b"h", b"<|end|>")
    deltas = own.deltas((".",))
    assert deltas is not None and deltas.add(b"one") == {"content": "one"} and template.deltas() is None


def test_the_string_that_ended_an_answer_is_no_part_of_it(template: JinjaTemplate) -> None:
    for one in (ByteTemplate(), template):
        assert one.read([*b"one."], ("!", "."))["content"] == "one"
        assert one.read([*b"one"], (".",))["content"] == "one"
    assert ByteTemplate().read([*b"one"], ("\ud800",))["content"] == "one"
    assert ByteTemplate().read([*b"one\n\n"], ("\n", "\n\n"))["content"] == "one"


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


ids = st.lists(
    st.integers(0, tokens.VOCABULARY - 1)
    | st.sampled_from([*"é€".encode(), tokens.THINK, tokens.UNTHINK, tokens.CALL]),
    max_size=40,
)


def test_letters_come_whole() -> None:
    deltas = Deltas()
    assert [deltas.add([byte]) for byte in "hé".encode()] == [{"content": "h"}, {}, {"content": "é"}]


def test_thoughts_and_text_are_kept_apart_and_calls_are_not_shown() -> None:
    message = {
        "reasoning_content": "a sum",
        "content": "wait",
        "tool_calls": [{"function": {"name": "calc", "arguments": "{}"}}],
    }
    assert Deltas().add(tokens.answer(message)) == {"reasoning_content": "a sum", "content": "wait"}


def test_what_may_be_a_stop_string_is_held_back() -> None:
    deltas = Deltas(stop=("\n\n", "END"))
    assert deltas.add(b"ok EN") == {"content": "ok "}
    assert deltas.add(b"ough") == {"content": "ENou"}


@given(ids, st.integers(1, 7))
def test_what_was_shown_begins_the_message(written: list[int], size: int) -> None:
    deltas, shown = Deltas(), {"content": "", "reasoning_content": ""}
    for start in range(0, len(written), size):
        for name, text in deltas.add(written[start : start + size]).items():
            shown[name] += text
    message = tokens.read(written)
    for name, text in shown.items():
        said = message.get(name, "")
        assert said.startswith(text)
        assert len(said) - len(text) <= 3  # at most one letter that never came whole


ADD = {"type": "function", "function": {"name": "add", "parameters": {"properties": {"a": {}, "b": {}}}}}


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


texts = st.text(max_size=12)
arguments = st.text(max_size=8)
names = st.text(alphabet="abc_", min_size=1, max_size=5)


@pytest.mark.usefixtures("untraced")
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
