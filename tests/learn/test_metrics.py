from __future__ import annotations

import json

import pytest

from holdfast.learn.objective import TERMS
from holdfast.learn.train import Account


def numbers(loss: float, norm: float, moved: float, clipped: float = 0.0, entropy: float = 0.0) -> list[float]:
    return [loss, norm, *([loss] * len(TERMS)), moved, clipped, entropy, 0.0]


def test_means_are_over_minibatches_and_shares_over_tokens() -> None:
    account = Account()
    account.open_epoch()
    account.add(numbers(1.0, 2.0, moved=0.5, clipped=1.0, entropy=6.0), tokens=4, told=2)
    assert account.last_kl == 0.25
    account.add(numbers(3.0, 4.0, moved=0.0, clipped=0.0, entropy=2.0), tokens=4, told=8)
    assert account.epoch_kl == pytest.approx(0.05)  # over ten tokens
    update = account.close(step=1, samples=2, tokens=8, delta_norm=0.1, lr=1e-3, seconds=0.0)
    assert (update.loss, update.grad_norm, update.entropy, update.clip_fraction) == (2.0, 3.0, 1.0, 0.1)
    assert update.terms == dict.fromkeys(TERMS, 2.0)


def test_the_epoch_that_went_farthest_is_the_one_observed() -> None:
    account = Account()
    for moved in (0.0, 0.3, 0.1):
        account.open_epoch()
        account.add(numbers(0.0, 0.0, moved=moved), tokens=1, told=1)
    update = account.close(step=1, samples=1, tokens=1, delta_norm=0.0, lr=0.0, seconds=0.0)
    assert (update.approx_kl, update.epochs) == (0.3, 3)
    assert json.loads(json.dumps(update.to_dict()))["approx_kl"] == 0.3


def test_what_was_taken_back_counts_no_updates() -> None:
    account = Account()
    account.updates, account.restored = 3, "why"
    assert account.close(step=1, samples=1, tokens=1, delta_norm=0.0, lr=0.0, seconds=0.0).updates == 0


@pytest.mark.parametrize("odd", [float("nan"), float("inf")])
def test_what_is_not_finite_is_missing_so_that_the_account_can_be_written_down(odd: float) -> None:
    account = Account()
    account.open_epoch()
    account.add(numbers(odd, odd, moved=odd, entropy=odd), tokens=1, told=1)
    update = account.close(step=1, samples=1, tokens=1, delta_norm=0.0, lr=0.0, seconds=0.0)
    assert (update.loss, update.grad_norm, update.approx_kl, update.entropy) == (None, None, None, None)
    assert update.terms == dict.fromkeys(TERMS)
    json.dumps(update.to_dict(), allow_nan=False)
