"""Requests in OpenAI's format: what was given arrives, and what is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.chat_format import DEEPEST, KNOWN, read_passing, read_request
from holdfast.contracts.errors import BadInput

HELLO = [{"role": "user", "content": "hello"}]
CALC = {"type": "function", "function": {"name": "calc", "parameters": {"properties": {"expression": {}}}}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": HELLO, **fields}


def test_the_shortest_request_leaves_everything_to_the_model() -> None:
    request = read_request(body())
    assert (request.model, request.messages, request.sampling) == ("tiny", tuple(HELLO), {})
    assert (request.choices, request.logprobs, request.token_ids, request.stream) == (1, False, False, False)


def test_sampling_arrives_as_it_was_given() -> None:
    request = read_request(
        body(temperature=0, top_p=0.5, top_k=7, max_tokens=9, stop="\n", seed=3, thinking=0, tools=[CALC], user="ann")
    )
    assert request.sampling == {
        "temperature": 0.0,
        "top_p": 0.5,
        "top_k": 7,
        "max_tokens": 9,
        "stop": ("\n",),
        "seed": 3,
        "thinking": 0,
        "tools": [CALC],
    }
    assert request.user == "ann"


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({"max_completion_tokens": 5}, {"max_tokens": 5}),
        ({"max_completion_tokens": 5, "max_tokens": 5}, {"max_tokens": 5}),
        ({"top_k": -1}, {"top_k": 0}),  # vLLM's "all"
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"tools": [CALC], "tool_choice": "none"}, {}),  # the model is not told of them
        ({"tools": [], "tool_choice": "auto"}, {}),
        ({"temperature": None, "tools": None, "stop": None, "n": None}, {}),  # null is not given
        ({"frequency_penalty": 0.0, "logit_bias": {}, "response_format": {"type": "text"}, "store": True}, {}),
    ],
)
def test_the_same_can_be_said_in_several_ways(fields: dict[str, Any], sampling: dict[str, Any]) -> None:
    assert read_request(body(**fields)).sampling == sampling


def test_several_choices_with_a_seed_are_several_answers() -> None:
    assert read_request(body(n=3, seed=7)).samplings() == [{"seed": 7}, {"seed": 8}, {"seed": 9}]
    assert read_request(body(n=2, top_k=1)).samplings() == [{"top_k": 1}] * 2


@pytest.mark.parametrize(
    "message",
    [
        {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        CALLED,
        {"role": "tool", "content": "4", "tool_call_id": "a"},
        {"role": "developer", "content": "", "name": "dan"},
        {"role": "assistant", "content": "4", "reasoning_content": "2+2"},
        {**CALLED, "tool_calls": [{"function": {"name": ""}}]},  # a model's own slip may come back to it
    ],
)
def test_messages_of_every_role_are_taken_as_they_are(message: dict[str, Any]) -> None:
    assert read_request(body(messages=[*HELLO, message])).messages == (*HELLO, message)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": None}, "model: is missing; give a string"),
        ({"model": ["tiny"]}, "model: is a list, not text; give a string"),
        ({"messages": []}, "messages: is a list, not a list with messages; give at least one"),
        ({"messages": ["hi"]}, "messages[0]: is text; give an object"),
        (
            {"messages": [{"role": "bot"}]},
            "messages[0].role = 'bot': is unknown; use system, developer, user, assistant, tool",
        ),
        (
            {"messages": [{"role": "user"}]},
            "messages[0].content: is null, not text; give a string, or a list of text parts",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0].type = 'image_url': only text is read here",
        ),
        (
            {"messages": [*HELLO, {**CALLED, "tool_calls": [{"function": {}}]}]},
            "messages[1].tool_calls[0].function.name: is missing; give a string",
        ),
        ({"top_k": 2**31}, "top_k = 2147483648: is not possible; give a whole number from -1 to 2147483647"),
        ({"temperature": 2.5}, "temperature = 2.5: is not possible; give 0 to 2"),
        ({"temperature": True}, "temperature = True: is not possible; give 0 to 2"),
        ({"temperature": 10**400}, f"temperature = 1{'0' * 58}…: is not possible; give 0 to 2"),
        ({"top_p": 0}, "top_p = 0: must be above 0; give at most 1"),
        ({"max_tokens": 0}, "max_tokens = 0: is not possible; give a whole number from 1 to 2147483647"),
        (
            {"max_tokens": 3, "max_completion_tokens": 4},
            "max_tokens: differs from max_completion_tokens; give one of the two",
        ),
        ({"seed": 1.5}, "seed = 1.5: is not possible; give a whole number from 0 to 9223372036854775679"),
        ({"n": 129}, "n = 129: is not possible; give a whole number from 1 to 128"),
        ({"stop": [""]}, "stop[0]: is empty; give a string"),
        ({"stop": ["x"] * 17}, "stop: has 17 strings; give at most 16"),
        ({"top_logprobs": 3}, "top_logprobs: need log-probs; set logprobs to true"),
        ({"logprobs": 3}, "logprobs: is a whole number; give true or false"),
        (
            {"stream_options": {"include_usage": True}},
            "stream_options: are for streams; set stream to true, or leave them out",
        ),
        ({"tool_choice": "required"}, 'tool_choice: a model here cannot be made to call a tool; give "auto" or "none"'),
        ({"tools": [{"type": "web"}]}, "tools[0].type = 'web': only functions are known; give function"),
        ({"tools": [{"function": {}}]}, "tools[0].function.name: is missing; give a string"),
        (
            {"tools": [{"function": {"name": "f", "parameters": [1]}}]},
            "tools[0].function.parameters: is a list; give an object",
        ),
        ({"response_format": {"type": "json_object"}}, "response_format: is not supported here; leave it out"),
        ({"tempature": 1}, "tempature: is unknown; did you mean temperature?"),
        ({"zzz": 1}, "zzz: is unknown; leave it out"),
    ],
)
def test_what_is_wrong_is_named_with_its_remedy(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput) as caught:
        read_request(body(**fields))
    assert str(caught.value) == says


def test_a_request_that_is_nested_too_deep_is_refused() -> None:
    nest: Any = {}
    for _ in range(DEEPEST):
        nest = [nest]
    with pytest.raises(BadInput, match="request: is nested deeper than 100 levels"):
        read_request(body(metadata=nest))
    with pytest.raises(BadInput, match="request: is a list, not an object"):
        read_request([])


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["role", "content", "function"]), inner)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(KNOWN)), anything, max_size=6))
def test_no_request_breaks_the_reading(fields: dict[str, Any]) -> None:
    try:
        read_request(body(**fields))
    except BadInput as error:
        assert error.why


def test_what_is_passed_on_keeps_all_that_shapes_the_answer_known_here_or_not() -> None:
    shaping = {"response_format": {"type": "json_object"}, "tool_choice": "required", "tools": [CALC], "seed": 4}
    asked = body(**shaping, n=2, stream=True, stream_options={"include_usage": True}, user="ann", temperature=None)
    request = read_passing(asked)
    assert request.sampling == {**shaping, "stream_options": {"include_usage": True}}
    assert (request.choices, request.stream, request.usage, request.user) == (2, True, True, "ann")
    assert [one["seed"] for one in request.samplings()] == [4, 5]
    with pytest.raises(BadInput, match="response_format"):
        read_request(asked)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ([], "request: is a list, not an object"),
        ({"messages": HELLO}, "model: is missing"),
        (body(messages=[]), "messages: is empty"),
        (body(messages=["hi"]), r"messages\[0\]: is text"),
        (body(n=0), "n = 0: is not possible"),
    ],
)
def test_what_is_passed_on_must_still_be_a_request(wrong: Any, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        read_passing(wrong)
