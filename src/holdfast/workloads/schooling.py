"""A picture of how a policy learnt to live in a town: held-out returns on the way, and at the end beside others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.store.artifacts import write_atomically
from holdfast.workloads.tooluse.curves import blocks
from holdfast.workloads.townschool import TrainingRound

INK, GREY = "#1b2a33", "#6f7c84"
COLOURS = {"learnt": "#1f7a6d", "random": "#c9803a", "scripted": "#8e4585", "untaught": "#6f7c84"}
FORMATS = ("png", "svg")


def check_picture(path: Path) -> str:
    """The format that a picture's name asks for."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise BadInput(f"picture {path}", why="is of no format that can be drawn", remedy="end it in .png or .svg")
    return kind


def line_of(lesson: TrainingRound) -> str:
    """The curve as blocks, from the pay of chance to the best that is known."""
    known = [score.value for score in lesson.scores.values()] + [point.mean_return for point in lesson.curve]
    return blocks([point.mean_return for point in lesson.curve], low=min(known), high=max(known))


def draw(path: Path, lesson: TrainingRound) -> None:
    """The way on the left, with 95 % intervals; the end on the right."""
    from io import BytesIO

    from matplotlib.figure import Figure

    kind = check_picture(path)
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _way(left, lesson)
    _end(right, lesson)
    figure.suptitle(
        f"Learning to live in the town: PPO, {lesson.steps:,} agent-steps, {lesson.seconds:.0f} s, seed {lesson.seed}",
        color=INK,
        fontsize=11.5,
    )
    picture = BytesIO()
    figure.savefig(picture, format=kind, dpi=140)
    write_atomically(path, picture.getvalue())


def _way(axes: Any, lesson: TrainingRound) -> None:
    steps = [point.step / 1e6 for point in lesson.curve]
    colour = COLOURS["learnt"]
    lows, highs = [point.low for point in lesson.curve], [point.high for point in lesson.curve]
    axes.fill_between(steps, lows, highs, color=colour, alpha=0.18, lw=0)
    axes.plot(steps, [point.mean_return for point in lesson.curve], color=colour, marker="o", markersize=4)
    for name in ("random", "scripted"):
        value = lesson.scores[name].value
        axes.axhline(value, color=COLOURS[name], lw=1.2, ls="--")
        beside = {"xytext": (0, 4), "textcoords": "offset points", "ha": "right", "fontsize": 9}
        axes.annotate(name, (1, value), xycoords=("axes fraction", "data"), **beside, color=COLOURS[name])
    axes.set(xlabel="agent-steps learnt from, millions", ylabel="paid a resident and day, held-out towns")
    _plain(axes, "y")


def _end(axes: Any, lesson: TrainingRound) -> None:
    names = sorted(lesson.scores, key=lambda name: lesson.scores[name].value)
    for place, name in enumerate(names):
        score, colour = lesson.scores[name], COLOURS[name]
        axes.plot([score.interval.low, score.interval.high], [place] * 2, color=colour, lw=4, alpha=0.45)
        axes.plot(score.value, place, "o", color=colour, markersize=7)
        beside = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center", "fontsize": 9}
        axes.annotate(f"{score.value:.2f}", (score.value, place), **beside, color=colour)
    axes.set(yticks=range(len(names)), yticklabels=names, ylim=(-0.6, len(names) - 0.4))
    axes.set(xlabel="the same in other held-out towns, 95 % intervals")
    _plain(axes, "x")


def _plain(axes: Any, grid: str) -> None:
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    axes.tick_params(colors=INK, color=GREY)
    axes.grid(axis=grid, color=GREY, alpha=0.2)
    axes.set_axisbelow(True)
