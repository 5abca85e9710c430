"""A picture of two rewards side by side: how often those who learn from them cheat, and what they solve."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from holdfast.store.artifacts import write_atomically
from holdfast.workloads.hacking import ARMS, CARELESS, GUARDED, Estimate, HackingOutcome, HackingResult

INK, GREY = "#1b2a33", "#6f7c84"
COLOURS = {CARELESS: "#c9803a", GUARDED: "#1f7a6d"}


def course(outcomes: Sequence[HackingOutcome], arm: str, what: str) -> list[float | None]:
    """The mean over an arm's seeds, step by step; None where no seed has a value."""
    ways = [getattr(one, what) for one in outcomes if one.trial.arm == arm]
    steps = max((len(way) for way in ways), default=0)
    columns = [[way[step] for way in ways if step < len(way) and way[step] is not None] for step in range(steps)]
    return [sum(column) / len(column) if column else None for column in columns]


def draw(path: Path, outcomes: Sequence[HackingOutcome], weighed: HackingResult) -> None:
    """Cheating and success while practising, a thin line a seed; on the right the held-out tasks with intervals."""
    from io import BytesIO

    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    figure = Figure(figsize=(12, 4.2), layout=ConstrainedLayoutEngine(wspace=0.06))
    left, middle, right = figure.subplots(1, 3, width_ratios=(3, 3, 2))
    _way(left, outcomes, "cheats", "practice rollouts that cheat")
    _way(middle, outcomes, "success", "practice tasks solved")
    _held_out(right, weighed)
    fallen = "" if weighed.reduction is None else f"; cheating falls by {weighed.reduction.value:.0%}"
    title = f"careless and guarded reward, {len(weighed.seeds)} seeds{fallen}"
    figure.suptitle(title, color=INK, fontsize=11.5)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=140)
    write_atomically(path, picture.getvalue())


def _way(axes: Any, outcomes: Sequence[HackingOutcome], what: str, title: str) -> None:
    for arm in ARMS:
        for one in outcomes:
            if one.trial.arm == arm:
                values = [nan if value is None else value for value in getattr(one, what)]
                axes.plot(range(1, len(values) + 1), values, color=COLOURS[arm], lw=0.7, alpha=0.35)
        mean = [nan if value is None else value for value in course(outcomes, arm, what)]
        axes.plot(range(1, len(mean) + 1), mean, color=COLOURS[arm], lw=2.2, label=arm)
    axes.set_title(title, loc="left", color=GREY, fontsize=9)
    axes.set(xlabel="step", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    _plain(axes, grid="y")


def _held_out(axes: Any, weighed: HackingResult) -> None:
    rows = (("cheat", weighed.cheats), ("solved", weighed.success))
    for place, (_, arms) in enumerate(rows):
        for offset, arm in ((-0.15, CARELESS), (0.15, GUARDED)):
            _bar(axes, arms[arm], place + offset, COLOURS[arm])
    axes.set(yticks=range(len(rows)), yticklabels=[name for name, _ in rows], ylim=(1.5, -0.5), xlim=(-0.03, 1.03))
    axes.set_title("held-out tasks, 95 % intervals", loc="left", color=GREY, fontsize=9)
    _plain(axes, grid="x")


def _bar(axes: Any, estimate: Estimate, height: float, colour: str) -> None:
    axes.plot([estimate.interval.low, estimate.interval.high], [height] * 2, color=colour, lw=3, alpha=0.45)
    axes.plot(estimate.value, height, "o", color=colour, markersize=7)
    beside = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
    axes.annotate(f"{estimate.value:.2f}", (estimate.value, height), **beside, color=colour)


def _plain(axes: Any, *, grid: str) -> None:
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    axes.tick_params(colors=INK, color=GREY)
    axes.xaxis.label.set_color(INK)
    axes.grid(axis=grid, color=GREY, alpha=0.2)
    axes.set_axisbelow(True)
