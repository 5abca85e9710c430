"""A picture of a lesson: a line of blocks in a terminal, and a file in the format that its name asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.workloads.schooling import check_picture, draw, line_of
from holdfast.workloads.townschool import Point, Score, TrainingRound

WAY = (-20.0, -12.0, -4.0)
PAID = {"learnt": -4.0, "random": -20.0, "scripted": 5.0, "untaught": -20.0}


@pytest.fixture
def lesson() -> TrainingRound:
    points = [
        Point(update=k, step=k * 100_000, seconds=float(k), mean_return=one, low=one - 1, high=one + 1)
        for k, one in enumerate(WAY)
    ]
    scores = {
        name: Score(value=one, interval=Interval(low=one - 1, high=one + 1, level=0.95)) for name, one in PAID.items()
    }
    return TrainingRound(
        seed=1,
        rules="a",
        senses="b",
        updates=2,
        steps=200_000,
        seconds=2.0,
        moved=0.1,
        curve=tuple(points),
        scores=scores,
        over_random=Interval(low=14.0, high=18.0, level=0.95),
        is_whole=True,
    )


def test_the_line_goes_from_chance_to_the_best_that_is_known(lesson: TrainingRound) -> None:
    assert line_of(lesson) == "▁▃▆"


@pytest.mark.parametrize(("name", "begins"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")], ids=["png", "svg"])
def test_it_is_drawn_in_the_format_of_its_name(name: str, begins: bytes, lesson: TrainingRound, tmp_path: Path) -> None:
    draw(tmp_path / name, lesson)
    assert (tmp_path / name).read_bytes().startswith(begins)


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"end it in .png or .svg"):
        check_picture(tmp_path / "a.gif")
