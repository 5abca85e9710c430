"""The plot of an experiment: what giving in to a forbidden tool costs."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path

from experiments.safety import ARMS, CONSTRAINED, UNCONSTRAINED, SafetyOutcome, SafetyResult
from holdfast.workloads.plots import INK, plain, save

COLOURS = {UNCONSTRAINED: "#c9803a", CONSTRAINED: "#1f7a6d"}
PENALTIES = ("#b9a8d0", "#8e6bb0", "#5d3b86")  # paler ones are of smaller weights


def mean_course(outcomes: Sequence[SafetyOutcome], arm: str, what: str) -> list[float | None]:
    """The mean over an arm's seeds, step by step; None where no seed has a value."""
    ways = [getattr(one, what) for one in outcomes if one.trial.arm == arm]
    steps = max((len(way) for way in ways), default=0)
    columns = [[way[step] for way in ways if step < len(way) and way[step] is not None] for step in range(steps)]
    return [sum(column) / len(column) if column else None for column in columns]


def draw_safety(path: Path, outcomes: Sequence[SafetyOutcome], weighed: SafetyResult) -> None:
    """Cost with its budget on the left, success in the middle, the multiplier on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    arms = [arm for arm in ARMS if arm in weighed.arms]
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
