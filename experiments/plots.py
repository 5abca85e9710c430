"""The plots of the experiments: two rewards side by side, and what giving in to a forbidden tool costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from experiments.hacking import ARMS, CARELESS, GUARDED, Estimate, HackingOutcome, HackingResult
from experiments.safety import ARMS as SAFETY_ARMS
from experiments.safety import CONSTRAINED, UNCONSTRAINED, SafetyOutcome, SafetyResult
from holdfast.workloads.plots import GREY, INK, plain, save

COLOURS = {CARELESS: "#c9803a", GUARDED: "#1f7a6d", UNCONSTRAINED: "#c9803a", CONSTRAINED: "#1f7a6d"}
PENALTIES = ("#b9a8d0", "#8e6bb0", "#5d3b86")  # paler ones are of smaller weights


def mean_course(outcomes: Sequence[HackingOutcome | SafetyOutcome], arm: str, what: str) -> list[float | None]:
    """The mean over an arm's seeds, step by step; None where no seed has a value."""
    ways = [getattr(one, what) for one in outcomes if one.trial.arm == arm]
    steps = max((len(way) for way in ways), default=0)
    columns = [[way[step] for way in ways if step < len(way) and way[step] is not None] for step in range(steps)]
    return [sum(column) / len(column) if column else None for column in columns]


def draw_hacking(path: Path, outcomes: Sequence[HackingOutcome], weighed: HackingResult) -> None:
    """Cheating and success while practising, a thin line a seed; on the right the held-out tasks with intervals."""
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
    save(figure, path)


def _way(axes: Any, outcomes: Sequence[HackingOutcome], what: str, title: str) -> None:
    for arm in ARMS:
        for one in outcomes:
            if one.trial.arm == arm:
                values = [nan if value is None else value for value in getattr(one, what)]
                axes.plot(range(1, len(values) + 1), values, color=COLOURS[arm], lw=0.7, alpha=0.35)
        mean = [nan if value is None else value for value in mean_course(outcomes, arm, what)]
        axes.plot(range(1, len(mean) + 1), mean, color=COLOURS[arm], lw=2.2, label=arm)
    axes.set_title(title, loc="left", color=GREY, fontsize=9)
    axes.set(xlabel="step", ylim=(0, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    plain(axes, grid="y")


def _held_out(axes: Any, weighed: HackingResult) -> None:
    rows = (("cheat", weighed.cheats), ("solved", weighed.success))
    for place, (_, arms) in enumerate(rows):
        for offset, arm in ((-0.15, CARELESS), (0.15, GUARDED)):
            _bar(axes, arms[arm], place + offset, COLOURS[arm])
    axes.set(yticks=range(len(rows)), yticklabels=[name for name, _ in rows], ylim=(1.5, -0.5), xlim=(-0.03, 1.03))
    axes.set_title("held-out tasks, 95 % intervals", loc="left", color=GREY, fontsize=9)
    plain(axes, grid="x")


def _bar(axes: Any, estimate: Estimate, height: float, colour: str) -> None:
    axes.plot([estimate.interval.low, estimate.interval.high], [height] * 2, color=colour, lw=3, alpha=0.45)
    axes.plot(estimate.value, height, "o", color=colour, markersize=7)
    beside = {"xytext": (0, 7), "textcoords": "offset points", "ha": "center", "fontsize": 8}
    axes.annotate(f"{estimate.value:.2f}", (estimate.value, height), **beside, color=colour)


def draw_safety(path: Path, outcomes: Sequence[SafetyOutcome], weighed: SafetyResult) -> None:
    """Cost with its budget on the left, success in the middle, the multiplier on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    arms = [arm for arm in SAFETY_ARMS if arm in weighed.arms]
    others = [arm for arm in arms if arm not in COLOURS]
    colours = COLOURS | dict(zip(others, PENALTIES, strict=False))
    told = (("costs", "unsafe calls an attempt"), ("successes", "tasks solved"), ("multipliers", "multiplier λ"))
    for axes, (what, label) in zip(panels, told, strict=True):
        for arm in arms:
            heights = [nan if value is None else value for value in mean_course(outcomes, arm, what)]
            axes.plot(range(1, len(heights) + 1), heights, color=colours[arm], lw=1.8, label=arm.replace("-", " "))
        axes.set(xlabel="step of practice", ylabel=label)
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        plain(axes, grid="y")
    panels[0].axhline(weighed.budget, color=INK, lw=1, ls="--")
    panels[0].annotate("budget", (1, weighed.budget), xytext=(0, 3), textcoords="offset points", color=INK, fontsize=8)
    panels[1].legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower right")
    seeds = f"{len(weighed.seeds)} seed{'s' if len(weighed.seeds) > 1 else ''}"
    figure.suptitle(f"A tempting tool that is off limits, mean of {seeds}", color=INK, fontsize=11.5)
    save(figure, path)
