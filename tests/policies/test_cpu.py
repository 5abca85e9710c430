"""Decoding on a CPU gives the logits that reading the whole gives, however the beginning came into its slot."""

from __future__ import annotations

import numpy as np
import torch

from holdfast.policies.cpu import Cpu
from holdfast.policies.slots import SlotPlan
from tests.policies.small import small

IDS = np.random.default_rng(0).integers(0, 264, (3, 150))
IDS[:, :100] = IDS[0, :100]
ROWS = np.arange(3)


def logits_ahead(cpu: Cpu, places: np.ndarray, bases: np.ndarray, shared: np.ndarray) -> list[torch.Tensor]:
    steps = [places + ahead for ahead in range(4)]
    return [cpu.step(IDS[ROWS, now], now, ROWS, bases, shared).clone() for now in steps]


@torch.inference_mode()
def test_prompts_from_nothing_from_a_beginning_and_from_a_copy() -> None:
    model = small()
    cpu = Cpu(model, 3, fixed=False)
    cpu.prefill([IDS[0, :110]], [SlotPlan(0, 0, 0, 0, -1)])
    cpu.prefill([IDS[1, :120], IDS[2, :105]], [SlotPlan(1, 100, 0, 64, 0), SlotPlan(2, 90, 2, 0, 0)])
    places, whole = np.array([110, 120, 105]), model(torch.from_numpy(IDS))
    for ahead, found in enumerate(logits_ahead(cpu, places, np.array([0, 0, 2]), np.array([0, 64, 0]))):
        torch.testing.assert_close(found, whole[ROWS, places + ahead], atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_fixed_layout_gives_the_same_logits_up_to_rounding() -> None:
    model = small()
    cpu = Cpu(model, 3, fixed=True)
    cpu.prefill(list(IDS[:, :130]), [SlotPlan(n, 0, n, 0, -1) for n in range(3)])
    whole = model(torch.from_numpy(IDS))
    (found, *_) = logits_ahead(cpu, np.full(3, 130), ROWS, np.zeros(3, np.int64))
    torch.testing.assert_close(found, whole[:, 130], atol=2e-4, rtol=1e-4)


@torch.inference_mode()
def test_weights_are_copied() -> None:
    model = small()
    cpu = Cpu(model, 3, fixed=False)
    before = cpu.step(IDS[:, 0], np.zeros(3, np.int64), ROWS, ROWS, np.zeros(3, np.int64)).clone()
    for weight in model.parameters():
        weight.zero_()
    after = cpu.step(IDS[:, 0], np.zeros(3, np.int64), ROWS, ROWS, np.zeros(3, np.int64))
    assert torch.equal(before, after)
    cpu.load(small(seed=4))
    assert not torch.equal(before, cpu.step(IDS[:, 0], np.zeros(3, np.int64), ROWS, ROWS, np.zeros(3, np.int64)))
