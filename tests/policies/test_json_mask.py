"""Answers that must be JSON: the automaton agrees with Python's reader, and what is sampled under it is an object."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.engine import Local
from holdfast.policies.json_mask import BEGINNING, DONE, masks_of, walk
from holdfast.policies.model import Model, load
from holdfast.policies.sampling import log_probs
from tests.policies.small import small

SAID = [{"role": "user", "content": "Give me a JSON object."}]
FORM = {"type": "json_object"}


def drawn(chance: Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 3 else 6)
    if kind < 2:
        return chance.choice([0, -1, 12.5, 1e-7, -3.25e22, 10**15])
    if kind < 4:
        return "".join(chance.choice('ab "\\/\n\t\x7fé€😀{}[],:') for _ in range(chance.randrange(6)))
    if kind < 6:
        return chance.choice([True, False, None])
    inner = [drawn(chance, depth + 1) for _ in range(chance.randrange(4))]
    return inner if kind == 6 else {str(drawn(chance, 9)): one for one in inner}


def is_object(text: bytes) -> bool:
    def refuse(name: str) -> None:
        raise ValueError(name)  # Python reads NaN, and JSON has none

    try:
        return isinstance(json.loads(text.decode(), parse_constant=refuse), dict)
    except ValueError:
        return False


def test_the_automaton_says_of_any_bytes_what_pythons_reader_says() -> None:
    chance = Random(0)
    right = wrong = 0
    for _ in range(2000):
        text = json.dumps(
            {"k": drawn(chance)}, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, 1])
        ).encode()
        if chance.random() < 0.7:
            at = chance.randrange(len(text))
            text = (
                text[:at]
                + chance.choice([b"", bytes([chance.randrange(256)]), b'"', b",", b"0", b"."])
                + text[at + 1 :]
            )
        after = walk(BEGINNING, text)
        assert (after is not None and after.kind == DONE) == is_object(text), text
        right, wrong = right + is_object(text), wrong + (not is_object(text))
    assert min(right, wrong) > 300


GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize(
    ("device", "dtype", "error"),
    [
        ("cpu", "float32", 1e-3),
        pytest.param("cuda", "float32", 1e-2, marks=GPU),  # the products of its kernels are TF32's
        pytest.param("cuda", "bfloat16", 0.2, marks=GPU),
    ],
)
@torch.inference_mode()
def test_what_is_sampled_under_it_is_an_object_and_its_log_probs_are_those_under_the_mask(
    device: str, dtype: str, error: float
) -> None:
    model, _ = load(Model("tiny-tools", device=device, dtype=dtype), None)

    async def ask(**how: Any) -> list[Any]:
        asked = [local(SAID, seed=seed, max_tokens=40, temperature=1.5, **how) for seed in range(6)]
        return await asyncio.gather(*asked)

    with Local(model, slots=8) as local:
        free, bound = asyncio.run(ask()), asyncio.run(ask(response_format=FORM))
        with pytest.raises(BadInput, match="only text and json_object are known here"):
            asyncio.run(ask(response_format={"type": "json_schema"}))
    ended = [one for one in bound if one.finish_reason == "stop"]
    assert len(ended) >= 2 and all(is_object(one.response["content"].encode()) for one in ended)
    assert not all(is_object(str(one.response.get("content") or "").encode()) for one in free)
    masks, spelled = masks_of(model.template, model.vocabulary), model.template.spelled(model.vocabulary)
    for one in bound:
        logits = model(torch.tensor([[*one.prompt_ids, *one.completion_ids]], device=device))[0]
        state, found = BEGINNING, []
        for row, token in zip(logits[len(one.prompt_ids) - 1 : -1].float().cpu(), one.completion_ids, strict=True):
            found.append(float(log_probs(row, 1.5, banned=masks.banned(state))[token]))
            state = walk(state, spelled[token] or b"")
            assert state is not None
        np.testing.assert_allclose(one.logprobs, found, atol=error)
    assert ended[0].sampling["response_format"] == FORM and "response_format" not in free[0].sampling


def test_our_own_transformer_refuses_it_before_it_begins() -> None:
    with Local(small(), slots=1) as local, pytest.raises(BadInput, match="is for models in Hugging Face's format"):
        asyncio.run(local(SAID, response_format=FORM))
