"""Pictures of learning: a block for every value, and a PNG that shows what there is, whatever is missing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from matplotlib import image

from holdfast.contracts.evidence import Interval
from holdfast.prove.estimate import wilson
from holdfast.workloads.plots import AFTER, BEFORE, COURSES, blocks, draw_quickstart
from holdfast.workloads.tooluse.quickstart import RATES, Point, RateChange, Results, SuccessRate


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], ""),
        ([0.0, 0.13, 0.26, 0.38, 0.51, 0.63, 0.76, 0.88], "▁▂▃▄▅▆▇█"),
        ([1.0, None, 0.0], "█·▁"),  # all of it is the full block, and not one more
        ([-0.5, 1.5], "▁█"),  # beyond either end
    ],
)
def test_every_value_is_one_block_and_a_missing_one_a_dot(values: list[float | None], line: str) -> None:
    assert blocks(values) == line


def test_the_ends_of_the_scale_can_be_told() -> None:
    assert blocks([10, 15, 20], low=10, high=20) == "▁▅█"
    assert blocks([3, 3], low=3, high=3) == "▁▁"  # a scale of no length


def rate(right: int, of: int) -> SuccessRate:
    return SuccessRate(right=right, of=of, interval=wilson(right, of))


def made(curve: Sequence[Point]) -> Results:
    return Results(
        changes={name: RateChange(name=name, baseline=rate(2, 20), trained=rate(15, 20)) for name in RATES},
        families={},
        gain=Interval(low=0.4, high=0.8),
        curve=curve,
        silent={},
        practised=64,
    )


def point(step: int, phase: str, success: float | None, adoption: float | None) -> Point:
    return Point(step=step, phase=phase, success=success, adoption=adoption)


WARM = [point(2, "warm-up", 0.1, 0.1), point(3, "warm-up", 0.3, 0.25)]
PRACTICE = [point(4, "grpo", 0.4, 0.45), point(5, "grpo", 0.6, 0.6)]
HOLES = [point(4, "grpo", None, None), point(5, "grpo", 0.6, None), point(6, "grpo", None, None)]


def colours(path: Path) -> dict[str, int]:
    """Those that are seen in the picture, and in how many pixels."""
    red, green, blue = (image.imread(path)[..., :3] * 255).round().astype(int).reshape(-1, 3).T
    found, counts = np.unique(red << 16 | green << 8 | blue, return_counts=True)
    return {f"#{colour:06x}": int(count) for colour, count in zip(found, counts, strict=True)}


@pytest.mark.parametrize(
    ("curve", "lines", "is_shaded"),
    [
        (WARM + PRACTICE, ["success", "adoption"], True),
        (PRACTICE, ["success", "adoption"], False),  # a course that needed no warm-up
        (HOLES, ["success"], False),  # one value among missing ones
        ([], [], False),
    ],
    ids=["whole", "without a warm-up", "with holes", "empty"],
)
def test_the_picture_shows_what_there_is(tmp_path: Path, curve: list[Point], lines: list[str], is_shaded: bool) -> None:
    path = tmp_path / "reports" / "run-1.png"  # the folder is made
    draw_quickstart(path, made(curve), "local/sprout-weak, 64 practice rollouts (run-1)")
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [each.name for each in path.parent.iterdir()] == ["run-1.png"]  # nothing is left beside it
    seen = colours(path)
    assert {BEFORE, AFTER} <= set(seen)
    assert [name for name, colour in COURSES.items() if colour in seen] == lines
    assert (seen.get("#eceeef", 0) > 20_000) is is_shaded  # a few pixels of it are in the edges of grey letters


def test_a_long_title_is_broken_and_not_cut(tmp_path: Path) -> None:
    path, title = tmp_path / "long.png", "local//" + "folder/" * 40 + "checkpoint, 64 practice rollouts (run-1)"
    draw_quickstart(path, made([]), title)
    margin = image.imread(path)[..., :3][:, [0, 1, -2, -1]]
    assert (margin == 1.0).all()  # nothing runs over the edge
