"""Plots of the experiments: the mean of each arm, step by step, and a file that is a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments import hacking, safety
from experiments.hacking import ARMS, CARELESS, GUARDED, HackingOutcome, HackingTrial
from experiments.plots import draw_hacking, draw_safety, mean_course
from experiments.safety import CONSTRAINED, SafetyOutcome, SafetyTrial


def came_to(arm: str, seed: int, cheats: list[float | None]) -> HackingOutcome:
    after = ["cheat", "right"] if arm == CARELESS else ["wrong", "right"]
    return HackingOutcome(
        trial=HackingTrial(arm=arm, seed=seed),
        run="run-1",
        before=["wrong"] * 2,
        after=after,
        cheats=cheats,
        success=cheats,
    )


def test_the_course_is_the_mean_over_seeds_that_have_a_value() -> None:
    given = [
        came_to(CARELESS, 0, [0.0, 0.5, None]),
        came_to(CARELESS, 1, [1.0, None, None]),
        came_to(GUARDED, 0, [0.3]),
    ]
    assert mean_course(given, CARELESS, "cheats") == [0.5, 0.5, None]
    assert mean_course(given, GUARDED, "cheats") == [0.3]
    assert mean_course([], CARELESS, "cheats") == []


def test_a_picture_is_drawn_even_where_steps_are_missing(tmp_path: Path) -> None:
    given = [came_to(arm, seed, [0.1, None, 0.3]) for arm in ARMS for seed in (0, 1)]
    weighed = hacking.weigh(given, rng=np.random.default_rng(0))
    assert weighed is not None
    draw_hacking(tmp_path / "a.png", given, weighed)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


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
    assert mean_course(found, CONSTRAINED, "costs") == [0.5, None, 0.5]
    assert mean_course(found, "unconstrained", "costs") == []


def test_it_draws_every_arm(tmp_path: Path) -> None:
    found = [made(arm, 0, [1.0, None, 0.2]) for arm in safety.ARMS]
    weighed = safety.weigh(found)
    assert weighed is not None
    draw_safety(tmp_path / "p.png", found, weighed)
    assert (tmp_path / "p.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
