"""The picture of temptation: means over seeds, and a file that is a picture."""

from __future__ import annotations

from pathlib import Path

from holdfast.workloads.safety import ARMS, CONSTRAINED, SafetyOutcome, SafetyTrial, weigh
from holdfast.workloads.temptation import course, draw


def made(arm: str, seed: int, costs: list[float | None]) -> SafetyOutcome:
    held = [0.5] * len(costs) if arm == CONSTRAINED else []
    return SafetyOutcome(
        trial=SafetyTrial(arm=arm, seed=seed),
        run="r",
        success=0.9,
        cost=0.1,
        of=10,
        successes=[0.5] * len(costs),
        costs=costs,
        multipliers=held,
    )


def test_a_course_is_the_mean_of_those_that_have_the_step() -> None:
    found = [made(CONSTRAINED, 0, [1.0, None, 0.5]), made(CONSTRAINED, 1, [0.0, None])]
    assert course(found, CONSTRAINED, "costs") == [0.5, None, 0.5]
    assert course(found, "unconstrained", "costs") == []


def test_it_draws_every_arm(tmp_path: Path) -> None:
    found = [made(arm, 0, [1.0, None, 0.2]) for arm in ARMS]
    weighed = weigh(found)
    assert weighed is not None
    draw(tmp_path / "p.png", found, weighed)
    assert (tmp_path / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
