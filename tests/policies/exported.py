"""What tests of exported models share: a model that was taught, and plain transformers beside the trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from holdfast.contracts.trace import ModelCall
from holdfast.learn.sft import SFT, sequences
from holdfast.learn.train import Settings, Trainer
from holdfast.pipeline.sft import result_of, sft_spec
from holdfast.policies.engine import Local
from holdfast.policies.model import Model, export, load
from holdfast.store.store import Store
from tests.pipeline.scene import drive
from tests.workloads.scene import dialogue

COUNT = 16
SHOWN = [dialogue(10**7 + place, "strong") for place in range(COUNT)]
HOW = SFT(lr=3e-3, epochs=1, batch=4, held_out=0.25)


def taught(store: Store, model: Model, examples: int = 8) -> Model:
    rows = [{"messages": list(one.messages), "tools": list(one.tools)} for one in SHOWN[:examples]]
    return result_of(store, drive(store, sft_spec(model, rows, how=HOW)).run_id).policy


def answers(model: Any, **sampling: Any) -> list[ModelCall]:
    """To the first question of each conversation."""

    async def ask() -> list[ModelCall]:
        with Local(model, slots=COUNT) as local:
            asked = [
                local(one.messages[:2], tools=one.tools, seed=seed, max_tokens=48, **sampling)
                for seed, one in enumerate(SHOWN)
            ]
            return await asyncio.gather(*asked)

    return asyncio.run(ask())


def pairs(calls: Sequence[ModelCall]) -> list[tuple[list[int], list[int]]]:
    return [(list(call.prompt_ids or ()), list(call.completion_ids or ())) for call in calls]


@torch.no_grad()
def plain_logprobs(net: Any, calls: Sequence[ModelCall]) -> list[float]:
    """Each completion's tokens, by nothing but transformers."""
    found = []
    for prompt, completion in pairs(calls):
        logits = net(input_ids=torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].float()
        found += logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()
    return found


def own_logprobs(model: Any, calls: Sequence[ModelCall]) -> list[float]:
    """The same, by the trainer."""
    some = [
        (prompt + completion, [False] * len(prompt) + [True] * len(completion)) for prompt, completion in pairs(calls)
    ]
    samples = sequences(some)
    found: list[float] = Trainer(model, Settings(), seed=0).logprobs(samples)[samples.action_mask].tolist()
    return found


def check_same(policy: Model, store: Store | None, out: Path) -> None:
    files = None if store is None else store.files
    export(policy, files, out)
    net = transformers.AutoModelForCausalLM.from_pretrained(out).eval()
    model, _ = load(policy, files)
    sampled = answers(model, temperature=1.0)
    assert len({call.completion_ids for call in sampled}) > COUNT // 2
    np.testing.assert_allclose(plain_logprobs(net, sampled), own_logprobs(model, sampled), atol=1e-4)
    for prompt, completion in pairs(answers(model, temperature=0.0))[:3]:
        chosen = net.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=48)[0, len(prompt) :]
        assert chosen.tolist() == completion
