"""Differential privacy: DP-AdamW over units, secret noise, and an accountant of what was spent.

A unit is all that one conversation, or one user, gave. In each update every unit is drawn by itself with the same
probability (Poisson sampling), its gradient is clipped as one vector, noise is added once, and the sum is divided by
the expected number of units (Abadi et al. 2016, arXiv:1607.00133). What that gives away of a unit is `epsilon`.
Neighbouring data sets differ by one unit more or less; how many units there are is not a secret.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import isfinite, log, log1p, pi, sqrt
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts.errors import BadInput
from holdfast.learn.batch import Samples, trained_mask
from holdfast.learn.objective import TERMS, shares
from holdfast.learn.train import Settings, StepMetrics, Trainer

Floats = NDArray[np.float64]
Unit = Literal["conversation", "user"]
UNITS: tuple[Unit, ...] = ("conversation", "user")
ORDERS: tuple[float, ...] = (*(1 + n / 10 for n in range(1, 100)), *map(float, range(12, 64)), 128.0, 256.0, 512.0)
LARGEST_DELTA = 1e-5  # where none is given; smaller with more units
LARGEST_NOISE = 1e4
PRECISION = 1e-4  # of the noise multiplier, which is rounded up
CHUNK = 1 << 20  # draws at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy:
    """How much the weights may give away of one unit."""

    epsilon: float
    delta: float | None = None  # None: N^-1.1 for N units, at most 1e-5
    unit: Unit = "conversation"
    clip: float = 0.1  # longest gradient of one unit; AdamW does not mind its scale
    deterministic: bool = False  # noise from the run's seed: the same bytes again, and private only while it is secret

    def __post_init__(self) -> None:
        for name in ("epsilon", "clip"):
            if not 0.0 < getattr(self, name) < float("inf"):
                raise BadInput(f"privacy.{name} = {getattr(self, name)}", why="must be finite and above 0")
        if self.delta is not None and not 0.0 < self.delta < 1.0:
            raise BadInput(f"privacy.delta = {self.delta}", why="must be above 0 and below 1", remedy="1e-5 is usual")
        if self.unit not in UNITS:
            raise BadInput(f"privacy.unit = {self.unit!r}", why="is unknown", remedy=f"use {' or '.join(UNITS)}")

    def record(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """So many steps of the Gaussian mechanism on a Poisson sample."""

    noise: float  # multiplier: the noise's standard deviation over the clip
    rate: float  # with which each unit is drawn
    steps: int

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Mechanism:
        return cls(noise=record["noise_multiplier"], rate=record["sampling_rate"], steps=record["steps"])


# The accountant ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def renyi(noise: float, rate: float) -> tuple[float, ...]:
    """Rényi divergence of one step at each of ORDERS; Mironov, Talwar & Zhang 2019, arXiv:1908.10530.

    (α − 1)·D_α = log E[(1 − q + q·exp((2z − 1)/2σ²))^α],  z ~ N(0, σ²). The integrand is smooth and falls off like a
    normal density, so that the trapezoid rule is exact to rounding, for fractional orders as well."""
    if rate == 0.0:
        return (0.0,) * len(ORDERS)
    if rate == 1.0:
        return tuple(order / (2 * noise**2) for order in ORDERS)
    step = noise / 8.0
    found = []
    for order in ORDERS:
        z = np.arange(-14.0 * noise, order + 14.0 * noise, step)
        ratio = np.logaddexp(log1p(-rate), log(rate) + (2.0 * z - 1.0) / (2.0 * noise**2))
        inside = order * ratio - z**2 / (2.0 * noise**2)
        top = float(inside.max())
        moment = top + log(float(np.exp(inside - top).sum()) * step / (noise * sqrt(2.0 * pi)))
        found.append(max(moment, 0.0) / (order - 1.0))
    return tuple(found)


def epsilon(parts: Iterable[Mechanism], delta: float) -> float:
    """ε of all parts together at this δ: Rényi divergences add up, whichever part saw which unit.

    ε = D_α + log((α − 1)/α) − (log δ + log α)/(α − 1), for the best α; Canonne et al. 2020, arXiv:2004.00010."""
    orders, total = np.asarray(ORDERS), np.zeros(len(ORDERS))
    for part in parts:
        total += part.steps * np.asarray(renyi(part.noise, part.rate))
    if not total.any():
        return 0.0
    each = total + np.log1p(-1.0 / orders) - (log(delta) + np.log(orders)) / (orders - 1.0)
    return max(0.0, float(each.min()))


def noise_for(target: float, delta: float, *, rate: float, steps: int) -> float:
    """The smallest noise multiplier, rounded up, with which so many steps spend at most `target`."""

    def spent(noise: float) -> float:
        return epsilon([Mechanism(noise=noise, rate=rate, steps=steps)], delta)

    low, high = 0.0, 1.0
    while spent(high) > target:
        low, high = high, 2.0 * high
        if high > LARGEST_NOISE:
            remedy = "raise epsilon or delta, take a smaller batch or fewer epochs, or give more data"
            raise BadInput(f"privacy.epsilon = {target:g}", why="no noise of a useful size is enough", remedy=remedy)
    while high - low > PRECISION * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if middle > 0.2 and spent(middle) <= target else (middle, high)
    return high


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivacyBudget:
    """What a private run does in each of its updates."""

    privacy: Privacy
    units: int
    delta: float
    noise: float  # multiplier
    rate: float

    @classmethod
    def of(cls, privacy: Privacy, *, units: int, batch: int, steps: int) -> PrivacyBudget:
        """The noise for this many updates, with `batch` units expected in each."""
        delta = privacy.delta or min(LARGEST_DELTA, units**-1.1)
        if delta >= 1.0 / units:
            why = f"with {units} units it allows one of them to be given away whole"
            raise BadInput(f"privacy.delta = {delta:g}", why=why, remedy=f"give one well below {1.0 / units:.1g}")
        rate = min(1.0, batch / units)
        noise = noise_for(privacy.epsilon, delta, rate=rate, steps=steps)
        return cls(privacy=privacy, units=units, delta=delta, noise=noise, rate=rate)

    def record(self) -> dict[str, Any]:
        """Without `privacy`, which is the caller's."""
        return {"units": self.units, "delta": self.delta, "noise": self.noise, "rate": self.rate}

    def spent(self, steps: int, earlier: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """What is reported after so many updates; `line` adds up the `earlier` runs that led here, by their reports."""
        own = Mechanism(noise=self.noise, rate=self.rate, steps=steps)
        line = [own, *map(Mechanism.from_record, earlier)]
        return {
            "epsilon": epsilon([own], self.delta),
            "budget": self.privacy.epsilon,
            "delta": self.delta,
            "unit": self.privacy.unit,
            "units": self.units,
            "clip": self.privacy.clip,
            "noise_multiplier": self.noise,
            "sampling_rate": self.rate,
            "steps": steps,
            "deterministic": self.privacy.deterministic,
            "line": {"epsilon": epsilon(line, self.delta), "runs": len(line)},
        }


# Chance --------------------------------------------------------------------------------------------------------------


class SecretNoise:
    """Draws that nobody can tell without the key: SHAKE-256 of key, name and step. The same step draws the same again.

    A run that was killed and goes on therefore adds no second noise to the same gradients, which would average out."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.sha256(b"holdfast dp" + key).digest()

    def uniform(self, name: str, step: int, count: int) -> Floats:
        """In (0, 1), 53 bits each."""
        parts = [self._part(name, step, start, min(CHUNK, count - start)) for start in range(0, count, CHUNK)]
        return np.concatenate(parts) if parts else np.zeros(0)

    def _part(self, name: str, step: int, start: int, count: int) -> Floats:
        seed = self._key + f"{step}:{start}:{name}".encode()
        bits = np.frombuffer(hashlib.shake_256(seed).digest(8 * count), np.uint64) >> np.uint64(11)
        return (bits.astype(np.float64) + 0.5) * 2.0**-53

    def normal(self, name: str, step: int, count: int) -> Floats:
        """Standard normal, by Box and Muller."""
        pairs = (count + 1) // 2
        drawn = self.uniform(name, step, 2 * pairs)
        length, angle = np.sqrt(-2.0 * np.log(drawn[:pairs])), 2.0 * pi * drawn[pairs:]
        return np.concatenate((length * np.cos(angle), length * np.sin(angle)))[:count]

    def sample(self, step: int, count: int, rate: float) -> NDArray[np.int64]:
        """A Poisson sample: each of `count` units by itself with this probability. It may be empty."""
        return np.flatnonzero(self.uniform("sample", step, count) < rate)


# The update ----------------------------------------------------------------------------------------------------------


class PrivateTrainer(Trainer):
    """Moves the parameters by clipped gradients and noise. The samples' `rollouts` name the unit that each belongs to.

    All that decides about an update (is it finite, is it taken back) is read from the noisy gradient, never from the
    units. Losses are not told: they are not private."""

    def __init__(
        self, model: nn.Module, settings: Settings, budget: PrivacyBudget, noise: SecretNoise, *, seed: int
    ) -> None:
        super().__init__(model, settings, seed=seed)
        self._budget, self._noise = budget, noise

    def _prepared(self, batch: Samples) -> Samples:
        return batch

    def _epochs(self, batch: Samples) -> StepMetrics:
        account = StepMetrics()
        account.open_epoch()
        self._update(batch, account)
        return account

    def _update(self, batch: Samples, account: StepMetrics) -> None:
        clip, parameters = self._budget.privacy.clip, self._adam.parameters
        total = {name: torch.zeros_like(p) for name, p in parameters.items()}
        self.model.train(batch.advantages is None)  # a preference was measured without dropout
        for unit in by_unit(batch):
            self._adam.clear()
            for tally in self._pieces(unit, shares(unit, trained_mask(unit), self.settings.objective)):
                if tally.loss.requires_grad:
                    tally.loss.backward()  # type: ignore[no-untyped-call]
            if isfinite(float(self._adam.clip(clip))):  # a unit without a gradient adds nothing
                for name, p in parameters.items():
                    if p.grad is not None:
                        total[name] += p.grad
        self._add_noise(total)
        norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(total.values())))))
        account.add([float("nan"), norm, *[0.0] * (len(TERMS) + 5)], 0, 0)
        account.restored = self._alarm(0.0, norm)
        if account.restored is None:
            self._adam.descend(self.settings.optimizer.at(self.updates))
            account.updates += 1

    @torch.no_grad()
    def _add_noise(self, total: Mapping[str, torch.Tensor]) -> None:
        """Every parameter's gradient becomes (sum + noise) / expected units, also where no unit was drawn."""
        spread, expected = self._budget.noise * self._budget.privacy.clip, self._budget.rate * self._budget.units
        for name, p in self._adam.parameters.items():
            drawn = torch.from_numpy(self._noise.normal(name, self.steps, p.numel())).view(p.shape)
            p.grad = total[name].add_(drawn.to(p), alpha=spread).div_(expected)


def by_unit(batch: Samples) -> Iterator[Samples]:
    """The samples of each unit, those that decide something."""
    owners = np.asarray(batch.rollouts)
    for name in dict.fromkeys(batch.rollouts):
        unit = batch.pick(np.flatnonzero(owners == name))
        if trained_mask(unit).any():
            yield unit
