"""What a proof can show before it is run: the gain that so many tasks can prove, and the tasks that a gain needs.

It is the production test (`sequential`), simulated on counts of differences, so that a thousand tasks cost no more than
fifty. Both versions are taken to succeed independently at every try, which is the worst case for a given base rate:
tasks that are hard for both, and the same chance for both, need fewer. Safety is taken at its best: nothing unsafe
happens at all, and even then a margin needs its tasks.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, floor, log, log10
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.prove.comparison import ComparisonConfig, reach
from holdfast.prove.sequential import BETS, WEIGHTS, log_e

GAINS = (0.05, 0.1, 0.2)  # that are told beside what is asked
EXPERIMENTS, BLOCKS = 300, 150
MOST = 1_000_000  # tasks; beyond that it is "not with this gain"
POWER = 0.8

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What so many tasks can prove, at which chance."""

    tasks: int
    seeds: int
    alpha: float  # of this very test
    base_rate: float
    power: float
    metric: str
    detectable: float | None  # the gain that is proved with that power; None: not even the largest possible one
    needed: dict[float, int]  # tasks by gain, so that it is proved with that power; safety included
    margin: float | None  # of safety; None: waived
    safety_tasks: int | None  # that the margin needs where nothing unsafe happens; None: waived, or not provable
    provable_margin: float | None  # the smallest that these tasks can prove
    least: int  # tasks that the gate asks for

    @property
    def is_safety_provable(self) -> bool:
        return self.margin is None or (self.safety_tasks is not None and self.tasks >= self.safety_tasks)

    @property
    def is_provable(self) -> bool:
        """Whether the gate can open at all with these tasks."""
        return self.is_safety_provable and self.tasks >= self.least and self.detectable is not None

    @property
    def lines(self) -> list[str]:
        """For people, the most important first."""
        size = f"{self.tasks} tasks, {self.seeds} {'try' if self.seeds == 1 else 'tries'} each"
        told = [] if self.is_safety_provable else [*self._unsafe()]
        if self.tasks < self.least:
            told.append(f"{size}: they cannot promote anything, the gate asks for at least {self.least} tasks")
        needs = ", ".join(f"{_points(gain)} need about {tasks} tasks" for gain, tasks in self.needed.items())
        often = Fraction(self.power).limit_denominator(100)
        gain = "no gain, however large," if self.detectable is None else f"a true gain of {_points(self.detectable)}"
        can = f"{gain} is found {often.numerator} times in {often.denominator}"
        base = f"base rate {self.base_rate:.0%} of {self.metric}, α {self.alpha:.2g}"
        return [*told, f"{size}: {can}{f'; {needs}' if needs else ''} ({base})"]

    def _unsafe(self) -> list[str]:
        if self.safety_tasks is None:
            return [f"a safety margin of {self.margin:g} cannot be proved; allow more by --max-safety-regression"]
        least = self.provable_margin
        cannot = f"{self.tasks} tasks cannot prove that safety is not worse by more than {self.margin:g}, even if"
        takes = f"nothing unsafe happens: that takes {self.safety_tasks}"
        wider = "" if least is None else f"allow more by --max-safety-regression {least:.2g}, or "
        ways = f"hold out more tasks, or {wider}waive it by --waive-safety WHY"
        return [f"{cannot} {takes}; {ways} (in Python: max_safety_regression, safety=hf.Waived(WHY))"]

    def record(self) -> dict[str, Any]:
        kept = {name: getattr(self, name) for name in self.__dataclass_fields__}
        kept["needed"] = [{"gain": gain, "tasks": tasks} for gain, tasks in self.needed.items()]
        return {**kept, "is_provable": self.is_provable, "lines": self.lines}


def forecast(
    how: ComparisonConfig,
    *,
    tasks: int,
    seeds: int = 2,
    base_rate: float = 0.5,
    gain: float | None = None,
    power: float = POWER,
    least: int = 1,
    seed: int = 0,
) -> Forecast:
    """`how.alpha` is the α of this test; `gain` is told first among those that are answered."""
    for name, value, low in (("tasks", tasks, 1), ("seeds", seeds, 1)):
        if value < low:
            raise BadInput(f"{name} = {value}", why=f"must be at least {low}")
    for name, share in (("base_rate", base_rate), ("power", power)):
        if not 0.0 <= share <= 1.0 or (name == "power" and share in (0.0, 1.0)):
            raise BadInput(f"{name} = {share}", why="must be a share from 0 to 1")
    room = (1.0 - base_rate) * reach(how, how.primary)
    if gain is not None and not how.min_effect < gain <= room:
        why = f"must be above {how.min_effect:g} and at most {room:g}, from a base rate of {base_rate:g}"
        raise BadInput(f"gain = {gain:g}", why=why)
    model = _Model(how, seeds, base_rate, np.random.default_rng(seed))
    safety = _safety_tasks(how)
    asked = [gain] if gain is not None else [one * reach(how, how.primary) for one in GAINS]
    needed = {one: model.needed(one, power) for one in asked if how.min_effect < one <= room}
    return Forecast(
        tasks=tasks,
        seeds=seeds,
        alpha=how.alpha,
        base_rate=base_rate,
        power=power,
        metric=how.primary,
        detectable=model.detectable(tasks, room, power),
        needed={one: max(count, safety or 0, least) for one, count in needed.items()},
        margin=how.max_safety_regression,
        safety_tasks=safety,
        provable_margin=_provable_margin(how, tasks),
        least=least,
    )


class _Model:
    """The differences of task means where both versions succeed independently, and when the test is through."""

    def __init__(self, how: ComparisonConfig, seeds: int, base_rate: float, rng: np.random.Generator) -> None:
        self._how, self._seeds, self._rate, self._rng = how, seeds, base_rate, rng
        self._far = reach(how, how.primary)
        values = self._far * np.arange(-seeds, seeds + 1) / seeds
        self._logs: Array = np.log1p(BETS * ((values[:, None] + self._far) / (how.min_effect + self._far) - 1.0))
        self._threshold = -log(how.alpha)

    def needed(self, gain: float, power: float) -> int:
        """Tasks after which the gain is proved with that power; rounded up to two digits."""
        chances = self._chances(gain)
        growth = float(np.max(chances @ self._logs))
        if growth <= 0.0:
            return MOST
        horizon = min(MOST, ceil(4.0 * (self._threshold + 4.0) / growth))
        crossed, block = self._crossed(chances, horizon)
        if crossed[:, -1].mean() < power:
            return MOST
        at = np.where(crossed.any(axis=1), crossed.argmax(axis=1) + 1, BLOCKS)
        return _rounded(int(np.quantile(at, power, method="higher")) * block)

    def detectable(self, tasks: int, room: float, power: float) -> float | None:
        """The smallest gain that is proved within the tasks, to half a point."""
        low, high = self._how.min_effect, room
        if room <= low or self._power(tasks, room) < power:
            return None
        while high - low > 0.005 * self._far:
            middle = (low + high) / 2.0
            low, high = (low, middle) if self._power(tasks, middle) >= power else (middle, high)
        return high

    def _power(self, tasks: int, gain: float) -> float:
        return float(self._crossed(self._chances(gain), tasks)[0][:, -1].mean())

    def _chances(self, gain: float) -> Array:
        """Of each difference: of two binomial counts, the second with the gain."""
        n, rates = self._seeds, (self._rate, min(1.0, self._rate + gain / self._far))
        before, after = (
            np.array([comb(n, k) * rate**k * (1.0 - rate) ** (n - k) for k in range(n + 1)]) for rate in rates
        )
        found: Array = np.convolve(after, before[::-1])
        found /= found.sum()
        return found

    def _crossed(self, chances: Array, tasks: int) -> tuple[NDArray[np.bool_], int]:
        """[experiments, blocks]: whether the evidence has reached 1/α by the end of a block; and tasks in one."""
        block = max(1, floor(tasks / BLOCKS))
        counts = self._rng.multinomial(block, chances, size=(EXPERIMENTS, max(1, tasks // block))).cumsum(axis=1)
        wealth = counts @ self._logs + np.log(WEIGHTS)
        top = wealth.max(axis=-1)
        evidence = top + np.log(np.exp(wealth - top[..., None]).sum(axis=-1))
        return np.maximum.accumulate(evidence >= self._threshold, axis=1), block


def _safety_tasks(how: ComparisonConfig) -> int | None:
    """Tasks without any harm that prove the margin; None: waived, or never."""
    if not how.max_safety_regression:
        return None
    few, enough = 0, 1
    while not _is_safe(how, how.max_safety_regression, enough):
        few, enough = enough, 2 * enough
        if enough > MOST:
            return None
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (few, middle) if _is_safe(how, how.max_safety_regression, middle) else (middle, enough)
    return enough


def _provable_margin(how: ComparisonConfig, tasks: int) -> float | None:
    """The smallest margin that so many tasks without harm can prove, rounded up; None: waived, or none."""
    if how.max_safety_regression is None:
        return None
    low, high = 0.0, how.max_cost * (1.0 - 1e-6)
    if not _is_safe(how, high, tasks):
        return None
    while high - low > 0.0005 * how.max_cost:
        middle = (low + high) / 2.0
        low, high = (low, middle) if _is_safe(how, middle, tasks) else (middle, high)
    return min(high, ceil(high / how.max_cost * 100.0) / 100.0 * how.max_cost)


def _is_safe(how: ComparisonConfig, margin: float, tasks: int) -> bool:
    found = log_e(np.zeros(tasks), low=-how.max_cost, high=how.max_cost, mean=-margin)
    return bool(found[-1] >= -log(how.uncharged_alpha))


def _rounded(tasks: int) -> int:
    """Up, to two digits: it is a forecast."""
    step = 10 ** max(0, floor(log10(max(tasks, 1))) - 1)
    return int(step * ceil(tasks / step))


def _points(gain: float) -> str:
    return f"{100 * gain:.2g} points"
