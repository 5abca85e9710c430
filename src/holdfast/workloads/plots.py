"""The plots of the workloads: what the quickstart learnt.

A plot is a picture in a file, or a line of blocks for a terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from pathlib import Path
from textwrap import wrap
from typing import Any

from holdfast.store.artifacts import write_atomically
from holdfast.workloads.tooluse.quickstart import RATES, Point, RateChange, Results

BLOCKS = "▁▂▃▄▅▆▇█"
INK, GREY = "#1b2a33", "#6f7c84"
BEFORE, AFTER = "#c9803a", "#1f7a6d"
COURSES = {"success": "#1f5f8b", "adoption": "#8e4585"}  # what is drawn step by step, and its colour
APART = 0.07  # two labels that are nearer than this would touch


def blocks(values: Sequence[float | None], low: float = 0.0, high: float = 1.0) -> str:
    """One character a value; a dot where there is none."""
    reach = (high - low) or 1.0
    return "".join("·" if value is None else BLOCKS[min(7, max(0, int((value - low) / reach * 8)))] for value in values)


def save(figure: Any, path: Path, *, form: str = "png") -> None:
    """Writes the whole file or nothing."""
    from io import BytesIO

    picture = BytesIO()
    figure.savefig(picture, format=form, dpi=140)
    write_atomically(path, picture.getvalue())


def plain(axes: Any, *, grid: str) -> None:
    """Axes without a frame, with a pale grid in one direction."""
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    axes.tick_params(colors=INK, color=GREY)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(axis=grid, color=GREY, alpha=0.2)
    axes.set_axisbelow(True)


def draw_quickstart(path: Path, results: Results, title: str) -> None:
    """The curve on the left; rates before and after with 95 % intervals on the right."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(11, 4.4), layout=ConstrainedLayoutEngine(wspace=0.06))
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _steps(left, results.curve)
    _change(right, list(results.changes.values()))
    figure.suptitle("\n".join(wrap(title, 110)), color=INK, fontsize=11.5)
    save(figure, path)


def _steps(axes: Any, curve: Sequence[Point]) -> None:
    warm = [point.step for point in curve if point.phase == "warm-up"]
    if warm:
        axes.axvspan(warm[0] - 0.5, warm[-1] + 0.5, color=GREY, alpha=0.13, lw=0)
    steps, ends = [point.step for point in curve], dict[str, float]()
    for name, colour in COURSES.items():
        values = [getattr(point, name) for point in curve]
        heights = [nan if value is None else value for value in values]  # the line breaks where there is none
        axes.plot(steps, heights, color=colour, marker="o", markersize=3.5, clip_on=False)
        known = [value for value in values if value is not None]
        ends |= {name: known[-1]} if known else {}
    for name, height in _spread(ends).items():
        where = {"xy": (1.01, height), "xycoords": ("axes fraction", "data"), "annotation_clip": False}
        axes.annotate(RATES[name], **where, color=COURSES[name], va="center")
    phases = ["shaded: warm-up on validation tasks"] if warm else []
    phases += ["GRPO on train tasks"] if len(warm) < len(curve) else []
    axes.set_title(", then ".join(phases) or "no step on the way", loc="left", color=GREY, fontsize=9)
    axes.set(xlabel="step", ylabel="rate, as sampled", ylim=(0, 1))
    if curve:
        axes.set_xlim(curve[0].step - 0.5, curve[-1].step + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    plain(axes, grid="y")


def _spread(ends: Mapping[str, float]) -> dict[str, float]:
    """The heights of the labels: beside the ends of their lines, and apart from one another."""
    names = sorted(ends, key=lambda name: ends[name])
    if len(names) < 2 or ends[names[1]] - ends[names[0]] >= APART:
        return dict(ends)
    middle = (ends[names[0]] + ends[names[1]]) / 2
    return {names[0]: middle - APART / 2, names[1]: middle + APART / 2}


def _change(axes: Any, changes: Sequence[RateChange]) -> None:
    for offset, colour, which in ((-0.17, BEFORE, "baseline"), (0.17, AFTER, "trained")):
        for place, change in enumerate(changes):
            rate, height = getattr(change, which), place + offset
            axes.plot([rate.interval.low, rate.interval.high], [height] * 2, color=colour, lw=3, alpha=0.45)
            axes.plot(rate.value, height, "o", color=colour, markersize=7, label=None if place else which)
            beside = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
            axes.annotate(f"{rate.value:.2f}", (rate.value, height), **beside, color=colour)
    axes.set(yticks=range(len(changes)), yticklabels=[RATES[change.name] for change in changes])
    axes.set(ylim=(len(changes) - 0.5, -0.5), xlim=(-0.06, 1.06), xlabel="rate on held-out tasks, 95 % intervals")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=9, labelcolor=INK)
    plain(axes, grid="x")
