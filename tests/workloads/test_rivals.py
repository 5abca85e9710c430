"""Two rewards side by side: the mean of each arm, step by step, and a picture of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from holdfast.workloads.hacking import ARMS, CARELESS, GUARDED, HackingOutcome, HackingTrial, weigh
from holdfast.workloads.rivals import course, draw


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
    assert course(given, CARELESS, "cheats") == [0.5, 0.5, None]
    assert course(given, GUARDED, "cheats") == [0.3]
    assert course([], CARELESS, "cheats") == []


def test_a_picture_is_drawn_even_where_steps_are_missing(tmp_path: Path) -> None:
    given = [came_to(arm, seed, [0.1, None, 0.3]) for arm in ARMS for seed in (0, 1)]
    weighed = weigh(given, rng=np.random.default_rng(0))
    assert weighed is not None
    draw(tmp_path / "a.png", given, weighed)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
