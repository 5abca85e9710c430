"""What a step of the trainer did: numbers as they come in, and the account that is kept of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import numpy as np

from holdfast.learn.objective import TERMS


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What one step did. Loss terms are means over the minibatches that were looked at; None: not finite."""

    step: int  # 1, 2, …
    loss: float | None
    terms: Mapping[str, float | None]
    samples: int
    tokens: int  # decided ones
    updates: int  # of the parameters
    epochs: int  # begun
    approx_kl: float | None  # mean ½(new − old)² over tokens with known log-probs: the largest that was measured
    entropy: float | None  # nats a token
    clip_fraction: float
    outside: float  # share of tokens that the model would no longer sample under the sampling in force
    grad_norm: float | None  # before clipping, mean over updates
    delta_norm: float  # of the change of the parameters
    lr: float
    stopped_early: str | None  # "target_kl" or "max_kl"
    restored: str | None  # why everything was taken back
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Account:
    """Numbers of one step, as they come in."""

    def __init__(self) -> None:
        self.stopped: str | None = None
        self.restored: str | None = None
        self.updates = self.epochs = self._seen = self._tokens = self._told = 0
        self._loss = self._norm = self._clipped = self._entropy = self._outside = 0.0
        self._terms = np.zeros(len(TERMS))
        self.last_kl = self._worst = 0.0
        self._epoch = (0.0, 0)

    def open_epoch(self) -> None:
        self.epochs += 1
        self._epoch = (0.0, 0)

    @property
    def epoch_kl(self) -> float:
        total, tokens = self._epoch
        return total / max(tokens, 1)

    def add(self, numbers: Sequence[float], tokens: int, told: int) -> None:
        loss, norm, *rest = numbers
        self._terms += rest[: len(self._terms)]
        moved, clipped, entropy, outside = rest[len(self._terms) :]
        self._seen += 1
        self._tokens += tokens
        self._told += told
        self._loss += loss
        self._norm += norm
        self._clipped += clipped
        self._entropy += entropy
        self._outside += outside
        self.last_kl = moved / max(told, 1)
        self._epoch = (self._epoch[0] + moved, self._epoch[1] + told)
        self.measured(self.epoch_kl)

    def measured(self, kl: float) -> None:
        """The policy was found so far away; one that is nowhere at all (nan) is the farthest."""
        if not kl <= self._worst:
            self._worst = kl

    def close(self, *, step: int, samples: int, tokens: int, delta_norm: float, lr: float, seconds: float) -> Update:
        seen, read = max(self._seen, 1), max(self._tokens, 1)
        return Update(
            step=step,
            loss=_finite(self._loss / seen),
            terms=dict(zip(TERMS, map(_finite, (self._terms / seen).tolist()), strict=True)),
            samples=samples,
            tokens=tokens,
            updates=self.updates if self.restored is None else 0,
            epochs=self.epochs,
            approx_kl=_finite(self._worst),
            entropy=_finite(self._entropy / read),
            clip_fraction=self._clipped / max(self._told, 1),
            outside=self._outside / read,
            grad_norm=_finite(self._norm / seen),
            delta_norm=delta_norm,
            lr=lr,
            stopped_early=self.stopped,
            restored=self.restored,
            seconds=seconds,
        )


def _finite(number: float) -> float | None:
    """JSON has no word for what is not finite; what happened is then in `restored`."""
    return number if isfinite(number) else None
