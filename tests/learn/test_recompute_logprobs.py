"""The trainer reads what the sampler drew: the same log-probs by both paths, whatever the sampling."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
import torch

from holdfast.contracts.trace import ModelCall
from holdfast.learn.train import recompute_logprobs
from holdfast.policies.engine import Local
from holdfast.policies.lm import ModelShape, Transformer
from tests.learn.attempts import call

torch.set_num_threads(1)
HELLO = [{"role": "user", "content": "hello"}]


def model(seed: int = 0) -> Transformer:
    return Transformer(ModelShape(vocabulary=264, width=16, layers=1, heads=2, context=128), seed=seed)


def drawn(net: Transformer, ways: list[dict[str, Any]]) -> list[ModelCall]:
    async def asking() -> list[ModelCall]:
        with Local(net, slots=4) as local:
            return list(await asyncio.gather(*(local(HELLO, max_tokens=8, **how) for how in ways)))

    return asyncio.run(asking())


def test_sampler_and_trainer_agree_under_every_rule() -> None:
    net = model()
    ways = [{}, {"temperature": 2.0}, {"top_k": 3}, {"temperature": 0.7, "top_p": 0.6}, {"thinking": 0}]
    calls = drawn(net, ways)
    for call_, own in zip(calls, recompute_logprobs(net, calls), strict=True):
        assert own == pytest.approx(call_.logprobs, abs=1e-5)


def test_another_model_is_found_out() -> None:
    calls = drawn(model(), [{}] * 2)
    apart = [abs(a - b) for one, own in zip(calls, recompute_logprobs(model(1), calls), strict=True)
             for a, b in zip(one.logprobs or (), own, strict=True)]  # fmt: skip
    assert max(apart) > 0.01


def test_nothing_moves() -> None:
    net = model()
    before = {name: p.clone() for name, p in net.named_parameters()}
    recompute_logprobs(net, drawn(net, [{}]))
    assert all(torch.equal(before[name], p) for name, p in net.named_parameters())


def test_what_cannot_be_read_is_not_a_number() -> None:
    (own,) = recompute_logprobs(model(), [call([1, 2], [3, 4], forced=[0, 1])])
    assert len(own) == 2 and all(map(math.isnan, own))
