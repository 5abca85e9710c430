"""How a model learns from examples: in which order, in how many pieces. Whole runs are in `pipeline/test_sft`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.learn.sft import SFT


def test_each_pass_has_all_sequences_once_in_an_order_of_its_own() -> None:
    how = SFT(batch=4, epochs=3, seed=5)
    assert how.updates(10) == 9
    passes = [np.concatenate([how._batch(number, 10) for number in range(3 * n, 3 * n + 3)]).tolist() for n in range(3)]
    assert [sorted(one) for one in passes] == [list(range(10))] * 3
    assert passes[0] != passes[1] != passes[2]
    assert passes[0] == np.concatenate([SFT(batch=4, epochs=9, seed=5)._batch(n, 10) for n in range(3)]).tolist()
    assert passes[0] != np.concatenate([SFT(batch=4, seed=6)._batch(n, 10) for n in range(3)]).tolist()


@pytest.mark.parametrize(
    ("sequences", "how", "pieces"),
    [
        (16, {"epochs": 1, "batch": 16}, 1),  # one update
        (160, {"epochs": 3, "batch": 16}, 3),  # thirty updates, ten at a time at least
        (16_000, {"epochs": 3, "batch": 16}, 10),
        (100, {"epochs": 1, "batch": 1, "save_every": 30}, 4),
    ],
)
def test_a_long_run_leaves_ten_checkpoints_and_a_short_one_fewer(
    sequences: int, how: dict[str, Any], pieces: int
) -> None:
    assert SFT(**how).pieces(sequences) == pieces


def test_its_record_makes_an_equal_one() -> None:
    how = SFT(lr=3e-4, max_tokens=100, save_every=7)
    assert SFT(**how.record()) == how and SFT(**how.record()).learner is not how.learner


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"lr": 0.0}, "sft.lr = 0.0: must be finite and above 0"),
        ({"lr": float("nan")}, "sft.lr = nan"),
        ({"epochs": 0}, "sft.epochs = 0: must be at least 1"),
        ({"batch": 0}, "sft.batch = 0"),
        ({"max_tokens": 0}, "sft.max_tokens = 0"),
        ({"save_every": 0}, "sft.save_every = 0"),
        ({"held_out": 1.0}, "sft.held_out = 1.0: is a share"),
        ({"skip": -0.1}, "sft.skip = -0.1"),
    ],
)
def test_what_cannot_be_learnt_by_is_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        SFT(**given)


def test_a_loss_far_above_the_first_one_is_a_divergence() -> None:
    how = SFT(lr=0.5)
    assert how._check_loss(None, [2.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0]) == 2.0  # one bad batch is none
    assert how._check_loss(0.5, []) == 0.5
    with pytest.raises(BadInput, match=r"sft.lr = 0.5: it diverges: the loss went from 0.5 to 6 nats a token"):
        how._check_loss(0.5, [0.5, 6.0, 6.0, 6.0, 6.0, 6.0])
