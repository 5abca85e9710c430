"""Later prompts go on from the ids that were sampled, under the templates of five families; and each family's calls are
read in its own form."""

from __future__ import annotations

import asyncio
import json
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from holdfast.contracts.trace import ModelCall
from holdfast.policies import hub
from holdfast.policies.chat_template import ByteTemplate, ChatTemplate, ConversationIds, JinjaTemplate
from holdfast.policies.engine import Local
from holdfast.policies.model import folder_of
from holdfast.policies.tool_formats import reader_of

CHATML = """
{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n' }}{% for t in tools %}{{ t | tojson }}{% endfor %}
{{- '\\nUse <tool_call></tool_call>.<|im_end|>\\n' }}{% endif %}
{%- set last = namespace(user=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}{{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\\n' }}
{%- if m.role == 'tool' %}{{ '<tool_response>\\n' + m.content + '\\n</tool_response>' }}{% else %}
{%- if m.reasoning_content and KEEPS %}{{ '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- m.content }}{% for c in m.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' + (c.function.arguments | tojson) }}
{{- '}\\n</tool_call>' }}{% endfor %}{% endif %}{{ '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAMA = """
{{- '<|begin_of_text|>' }}{% if tools %}{{ '<|start_header_id|>system<|end_header_id|>\\n\\nEnvironment: ipython' }}
{%- for t in tools %}{{ t | tojson }}{% endfor %}{{ '<|eot_id|>' }}{% endif %}
{%- for m in messages %}{{ '<|start_header_id|>' + ('ipython' if m.role == 'tool' else m.role) }}
{{- '<|end_header_id|>\\n\\n' }}
{%- if m.tool_calls %}{% set f = m.tool_calls[0].function %}
{{- '{"name": "' + f.name + '", "parameters": ' + (f.arguments | tojson) + '}' }}
{%- else %}{{ m.content | trim }}{% endif %}
{{- '<|eot_id|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""
MISTRAL = """
{{- '<s>' }}{% if tools %}{{ '[AVAILABLE_TOOLS] ' + (tools | tojson) + '[/AVAILABLE_TOOLS]' }}{% endif %}
{%- for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}
{%- elif m.role == 'tool' %}{{ '[TOOL_RESULTS] {"content": ' + (m.content | tojson) + '}[/TOOL_RESULTS]' }}
{%- elif m.tool_calls %}{{ '[TOOL_CALLS] [' }}{% for c in m.tool_calls %}{{ '{"name": "' + c.function.name }}
{{- '", "arguments": ' + (c.function.arguments | tojson) + '}' }}{% endfor %}{{ ']</s>' }}
{%- else %}{{ ' ' + (m.content | trim) + '</s>' }}{% endif %}{% endfor %}"""
GRANITE = """
{%- if tools %}{{ '<|role|>tools<|/role|>' + (tools | tojson) + '<|end|>\\n' }}{% endif %}
{%- for m in messages %}{{ '<|role|>' + m.role + '<|/role|>' + m.content }}
{%- if m.tool_calls %}{{ '<|tool_call|>[' }}{% for c in m.tool_calls %}{{ '{"name": "' + c.function.name }}
{{- '", "arguments": ' + (c.function.arguments | tojson) + '}' }}{% endfor %}{{ ']' }}{% endif %}
{{- '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|role|>assistant<|/role|>' }}{% endif %}"""
FAMILIES = {  # the template, the marks that are tokens of their own, the end of an answer
    "qwen2": (CHATML.replace("KEEPS", "true"), ("<|im_start|>", "<|im_end|>"), "<|im_end|>"),
    "qwen3": (
        CHATML.replace("KEEPS", "loop.index0 > last.user"),
        ("<|im_start|>", "<|im_end|>", "<think>", "</think>"),
        "<|im_end|>",
    ),
    "llama": (
        LLAMA,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|python_tag|>"),
        "<|eot_id|>",
    ),
    "mistral": (MISTRAL, ("<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[TOOL_RESULTS]"), "</s>"),
    "granite": (GRANITE, ("<|role|>", "<|/role|>", "<|end|>", "<|tool_call|>"), "<|end|>"),
}
WORDS = [
    "the price of oak is seven and the weight of ash is nine",
    'tool_call {"name": "lookup", "arguments": {"key": 1}}',
]


@cache
def reader(family: str) -> Any:
    """A byte-level BPE tokenizer with some merges, and the family's template and marks."""
    template, marks, end = FAMILIES[family]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        WORDS * 4, trainers.BpeTrainer(vocab_size=400, initial_alphabet=letters, show_progress=False)
    )
    made.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, chat_template=template)


@cache
def template(family: str) -> ChatTemplate:
    if family == "bytes":
        return ByteTemplate()
    return JinjaTemplate(reader(family), frozenset({reader(family).eos_token_id}))


def answered(
    chat: ConversationIds, family: str, messages: list[Any], ids: list[int], finish: str = "stop"
) -> ModelCall:
    """The model writes these ids; the call is remembered, and its message goes back into the conversation."""
    response = template(family).read(ids)
    for number, call in enumerate(response.get("tool_calls", ())):
        call["id"] = f"call_{len(messages)}_{number}"
    prompt = tuple(chat.prompt(messages, TOOLS))
    call = ModelCall(
        model="m", messages=tuple(messages), response=response, finish_reason=finish, prompt_ids=prompt,
        completion_ids=tuple(ids), logprobs=(-1.0,) * len(ids),
    )  # fmt: skip
    return chat.add(call, TOOLS)


TOOLS = [{"type": "function", "function": {"name": "lookup", "parameters": {"properties": {"key": {}}}}}]
CALLS = {  # as a model may write them: with spaces that no template writes
    "qwen2": '<tool_call>{"name":"lookup",  "arguments": {"key":"oak"}}</tool_call>',
    "qwen3": '<tool_call>{"name":"lookup",  "arguments": {"key":"oak"}}</tool_call>',
    "llama": '{"name":"lookup", "parameters":{"key":  "oak"}}',
    "mistral": '[TOOL_CALLS][{"name":"lookup","arguments":{"key":"oak"} }]',
    "granite": '<|tool_call|>[{"name":"lookup","arguments":{"key":"oak"} }]',
}


def spelt(family: str, text: str, cuts: list[int]) -> list[int]:
    """A text in tokens as a model might draw them: cut anywhere, not only where its tokenizer would."""
    if family == "bytes":
        return list(text.encode())
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    parts = [text[a:b] for a, b in pairwise(places)]
    return [token for part in parts for token in reader(family).encode(part, add_special_tokens=False)]


@pytest.mark.parametrize("family", [*FAMILIES, "bytes"])
@settings(max_examples=15, deadline=None)
@given(
    st.text("abc oak\n{}\"'é", min_size=1, max_size=24).filter(lambda one: one.strip() == one),
    st.lists(st.integers(0, 40), max_size=6),
    st.booleans(),
)
def test_what_was_said_is_never_made_into_tokens_again(family: str, text: str, cuts: list[int], is_cut: bool) -> None:
    end = sorted(template(family).ends)
    chat = ConversationIds(template(family))
    messages: list[Any] = [{"role": "user", "content": "the price of oak?"}]
    for turn in range(3):
        is_call = turn == 0 and family in CALLS
        ids = spelt(family, CALLS[family] if is_call else text, cuts)
        ids = ids if is_cut and not is_call else [*ids, *end[:1]]
        call = answered(chat, family, messages, ids, "length" if is_cut and not is_call else "stop")
        assert ("tool_calls" in call.response) is is_call
        messages.append(call.response)
        asked = call.response.get("tool_calls")
        messages.append(
            {"role": "tool", "tool_call_id": asked[0]["id"], "content": "7"}
            if asked
            else {"role": "user", "content": "so?"}
        )
        later = chat.prompt(messages, TOOLS)
        before = [*(call.prompt_ids or ()), *(call.completion_ids or ())]
        assert later[: len(before)] == before
        added = later[len(before) :]
        assert (end[0] in added[:1]) is (is_cut and not is_call)  # an answer that was cut is ended now


@pytest.mark.parametrize("family", [*FAMILIES, "bytes"])
def test_what_is_added_are_the_templates_own_tokens(family: str) -> None:
    """An answer that a tokenizer would write in the same ids leads to the prompt that the template writes."""
    chat, own = ConversationIds(template(family)), template(family)
    messages: list[Any] = [{"role": "user", "content": "the price of oak?"}]
    for text in ("seven", "nine and the ash"):
        told = {"role": "assistant", "content": text}
        ids = own.answer([*messages, told], TOOLS)
        messages += [answered(chat, family, messages, ids).response, {"role": "user", "content": "and the weight?"}]
        assert chat.prompt(messages, TOOLS) == own.prompt(messages, TOOLS)


def test_a_template_that_leaves_out_earlier_thoughts_is_followed() -> None:
    chat, own = ConversationIds(template("qwen3")), template("qwen3")
    messages: list[Any] = [{"role": "user", "content": "the price?"}]
    ids = [*spelt("qwen3", "<think>\nhm\n</think>\n\nseven", []), *own.ends]
    messages += [answered(chat, "qwen3", messages, ids).response, {"role": "user", "content": "so?"}]
    assert messages[1]["reasoning_content"] == "hm"
    assert chat.prompt(messages, TOOLS) == own.prompt(messages, TOOLS)


def test_an_answer_that_was_changed_or_forgotten_is_written_by_the_template() -> None:
    own, messages = template("qwen2"), [{"role": "user", "content": "the price?"}]
    small, chat = ConversationIds(own, most=1), ConversationIds(own)
    odd = [*spelt("qwen2", "seven", [2]), *own.ends]
    for one in (small, chat):
        answered(one, "qwen2", messages, odd)
    edited = [*messages, {"role": "assistant", "content": "eight"}, {"role": "user", "content": "so?"}]
    assert chat.prompt(edited, TOOLS) == own.prompt(edited, TOOLS)
    answered(small, "qwen2", [{"role": "user", "content": "another"}], odd)
    later = [*messages, {"role": "assistant", "content": "seven"}, {"role": "user", "content": "so?"}]
    assert small.prompt(later, TOOLS) == own.prompt(later, TOOLS) != chat.prompt(later, TOOLS)


@pytest.mark.parametrize(
    ("form", "text", "content", "calls"),
    [
        ("<tool_call>", 'a <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "a", [("f", {"x": 1})]),
        ("<tool_call>", "<tool_call>{broken}</tool_call>", "<tool_call>{broken}</tool_call>", []),
        ("[TOOL_CALLS]", '[TOOL_CALLS] [{"name": "f", "arguments": {"x": 1}}]', "", [("f", {"x": 1})]),
        ("[TOOL_CALLS]", '[TOOL_CALLS]f[ARGS]{"x": 1}[TOOL_CALLS]g[ARGS]{}', "", [("f", {"x": 1}), ("g", {})]),
        ("[TOOL_CALLS]", "[TOOL_CALLS] [oops", "[TOOL_CALLS] [oops", []),
        ("<|python_tag|>", '<|python_tag|>{"name": "f", "parameters": {"x": 1}}; {"name": "g"}', "",
         [("f", {"x": 1}), ("g", {})]),
        ("<|python_tag|>", '{"name": "f"} and more', '{"name": "f"} and more', []),
        ("<|python_tag|>", "12", "12", []),
        ("<function=", "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", "",
         [("f", {"x": 1})]),
        ("<|tool_call|>", 'ok <|tool_call|>[{"name": "f", "arguments": {}}]', "ok", [("f", {})]),
        ("plain", '{"name": "f", "parameters": {}}', '{"name": "f", "parameters": {}}', []),
    ],
)  # fmt: skip
def test_calls_are_read_in_the_form_that_the_template_writes(
    form: str, text: str, content: str, calls: list[Any]
) -> None:
    assert reader_of(f"… {form} …")(text) == (content, calls)
    assert json.dumps(calls)


@pytest.mark.parametrize("is_remembered", [True, False])
def test_the_turns_of_a_sampled_conversation_are_one_sequence(is_remembered: bool) -> None:
    """Hot sampling spells words in tokens that the tokenizer would not choose; forgotten, they come back in others."""
    broken = 0
    with Local(hub.load(folder_of("tiny-tools")), deterministic=not is_remembered) as local:

        async def talk(seed: int) -> int:
            messages: list[Any] = [{"role": "user", "content": f"{seed}?"}]
            breaks = 0
            before: list[int] = []
            for turn in range(3):
                call = await local(messages, max_tokens=10, temperature=3.0, seed=10 * seed + turn)
                breaks += list(call.prompt_ids or ())[: len(before)] != before
                before = [*(call.prompt_ids or ()), *(call.completion_ids or ())]
                messages += [call.response, {"role": "user", "content": "so?"}]
            return breaks

        async def all_of_them() -> list[int]:
            return await asyncio.gather(*map(talk, range(8)))

        broken = sum(asyncio.run(all_of_them()))
    assert (broken == 0) is is_remembered
