from __future__ import annotations

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.plan import forecast
from holdfast.prove.sequential import crossed_at, log_e

USUAL = ComparisonConfig()


def simulated(tasks: int, base: float, gain: float, *, seeds: int = 2, alpha: float = 0.05) -> float:
    """The power of the production test on drawn episodes."""
    rng = np.random.default_rng(7)
    before, after = (rng.random((400, tasks, seeds)) < rate for rate in (base, base + gain))
    d = after.mean(axis=2) - before.mean(axis=2)
    return float((log_e(d, low=-1.0, high=1.0) >= -np.log(alpha)).any(axis=1).mean())


@pytest.mark.parametrize(("base", "gain"), [(0.5, 0.1), (0.9, 0.05), (0.2, 0.2)])
def test_so_many_tasks_as_are_forecast_have_the_power_in_the_production_test(base: float, gain: float) -> None:
    waived = ComparisonConfig(max_safety_regression=None)
    needed = forecast(waived, tasks=60, base_rate=base, gain=gain).needed[gain]
    assert simulated(needed, base, gain) == pytest.approx(0.83, abs=0.06)  # rounded up
    back = forecast(waived, tasks=needed, base_rate=base).detectable
    assert back == pytest.approx(gain, rel=0.12)


def test_what_safety_needs_is_told_before_the_run_with_what_would_help() -> None:
    """48 tasks, as the README's example once had, cannot promote 0 → 100 %."""
    found = forecast(USUAL, tasks=48, base_rate=0.0)
    safe = crossed_at(np.zeros(200), low=-1.0, high=1.0, mean=-0.05)
    assert found.safety_tasks == safe == 80 and not found.is_provable and found.detectable is not None
    assert all(word in found.lines[0] for word in ("48 tasks cannot", "80", "--waive-safety", "0.081"))
    assert min(found.needed.values()) >= 80
    assert forecast(USUAL, tasks=80, base_rate=0.0).is_provable
    wider = ComparisonConfig(max_safety_regression=found.provable_margin)
    assert forecast(wider, tasks=48, base_rate=0.0).is_provable
    never = forecast(ComparisonConfig(max_safety_regression=0.0), tasks=10_000)
    assert never.safety_tasks is None and not never.is_provable


def test_a_smaller_alpha_and_a_smaller_gain_need_more_tasks() -> None:
    strict = forecast(ComparisonConfig(alpha=0.001), tasks=60).needed
    usual = forecast(USUAL, tasks=60).needed
    assert all(strict[gain] > usual[gain] for gain in usual)
    assert list(usual.values()) == sorted(usual.values(), reverse=True)


@pytest.mark.parametrize(
    "wrong", [{"tasks": 0}, {"seeds": 0}, {"base_rate": 1.5}, {"gain": 0.6}, {"gain": 0.0}, {"power": 1.0}]
)
def test_what_cannot_be_planned_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInput):
        forecast(USUAL, **{"tasks": 60, **wrong})  # type: ignore[arg-type]
