"""Answers that must have a form: what is sampled is JSON, keeps its schema or calls the tool, with the log-probs under
the mask; and what is no form is refused before anything is sampled."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.engine import Local
from holdfast.policies.grammar import TokenMask, grammar_of
from holdfast.policies.model import Model, load
from holdfast.policies.sampling import log_probs
from tests.policies.small import small

SAID = [{"role": "user", "content": "Give me a JSON object."}]
OBJECT = {"type": "json_object"}
UNIT = {"enum": ["m", "km"]}
SCHEMA = {
    "type": "object",
    "properties": {"unit": UNIT, "size": {"type": "integer", "minimum": 1, "maximum": 99}, "tags": {"type": "null"}},
    "required": ["unit", "size"],
    "additionalProperties": False,
}
ARGUMENTS = {"type": "object", "properties": {"unit": UNIT}, "required": ["unit"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": ARGUMENTS}} for name in ("convert", "look_up")]
GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def is_object(call: Any) -> bool:
    return isinstance(json.loads(call.response["content"], parse_constant=lambda name: 1 / 0), dict)


def keeps_schema(call: Any) -> bool:
    jsonschema.validate(json.loads(call.response["content"]), SCHEMA)
    return True


def calls_one(call: Any) -> bool:
    [made] = call.response["tool_calls"]
    jsonschema.validate(json.loads(made["function"]["arguments"]), ARGUMENTS)
    return made["function"]["name"] in ("convert", "look_up")


def calls_look_up(call: Any) -> bool:
    return calls_one(call) and call.response["tool_calls"][0]["function"]["name"] == "look_up"


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        ({"response_format": OBJECT}, is_object),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "size", "schema": SCHEMA}}}, keeps_schema),
        ({"tool_choice": "required"}, calls_one),
        ({"tool_choice": {"type": "function", "function": {"name": "look_up"}}}, calls_look_up),
    ],
    ids=["object", "schema", "any tool", "one tool"],
)
@pytest.mark.parametrize(
    ("device", "dtype", "error"),
    [
        ("cpu", "float32", 1e-3),
        pytest.param("cuda", "float32", 1e-3, marks=GPU),
        pytest.param("cuda", "bfloat16", 0.2, marks=GPU),
    ],
)
@torch.inference_mode()
def test_what_is_sampled_has_the_form_and_its_log_probs_are_those_under_the_mask(
    device: str, dtype: str, error: float, asked: Mapping[str, Any], holds: Any
) -> None:
    model, _ = load(Model("tiny-tools", device=device, dtype=dtype), None)

    async def ask(**how: Any) -> list[Any]:
        drawn = [local(SAID, tools=TOOLS, seed=n, max_tokens=60, temperature=1.5, **how) for n in range(8)]
        return await asyncio.gather(*drawn)

    with Local(model, slots=8) as local:
        free, bound = asyncio.run(ask()), asyncio.run(ask(**asked))
    ended = [one for one in bound if one.finish_reason != "length"]
    assert len(ended) >= 2 and all(holds(one) for one in ended)
    grammar = grammar_of(asked, TOOLS, model.template)
    for one in bound:
        logits = model(torch.tensor([[*one.prompt_ids, *one.completion_ids]], device=device))[0]
        mask, found = TokenMask(model.template, model.vocabulary, grammar), []
        for row, token in zip(logits[len(one.prompt_ids) - 1 : -1].float().cpu(), one.completion_ids, strict=True):
            found.append(float(log_probs(row, 1.5, banned=mask.banned)[token]))
            mask.take(token)
        np.testing.assert_allclose(one.logprobs, found, atol=error)
        assert asked.items() <= one.sampling.items()
    assert not asked.keys() & free[0].sampling.keys()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"response_format": {"type": "yaml"}}, "is neither json_object nor json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "oddity"}}}}, "oddity"),
        ({"tool_choice": "always"}, "names no tool that is offered"),
        ({"tool_choice": {"type": "function", "function": {"name": "other"}}}, "names no tool that is offered"),
        ({"tool_choice": "required", "response_format": OBJECT}, "are both given"),
    ],
)
def test_what_is_no_form_is_refused_before_anything_is_sampled(asked: Mapping[str, Any], said: str) -> None:
    with Local(load(Model("tiny-tools"), None)[0], slots=1) as local, pytest.raises(BadInput, match=said):
        asyncio.run(local(SAID, tools=TOOLS, **asked))


def test_our_own_transformer_refuses_it_before_it_begins() -> None:
    with Local(small(), slots=1) as local, pytest.raises(BadInput, match="is for models in Hugging Face's format"):
        asyncio.run(local(SAID, response_format=OBJECT))
