"""A picture of what giving in costs: cost and success on the way, one line for each way of learning."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from pathlib import Path
from typing import Any

from holdfast.store.artifacts import write_atomically
from holdfast.workloads.safety import ARMS, CONSTRAINED, UNCONSTRAINED, SafetyOutcome, SafetyResult

INK, GREY = "#1b2a33", "#6f7c84"
COLOURS = {UNCONSTRAINED: "#c9803a", CONSTRAINED: "#1f7a6d"}
PENALTIES = ("#b9a8d0", "#8e6bb0", "#5d3b86")  # paler ones are of smaller weights


def course(outcomes: Sequence[SafetyOutcome], arm: str, what: str) -> list[float | None]:
    """`successes`, `costs` or `multipliers` of each step, in the mean of the seeds; None where no seed has it."""
    ways = [getattr(one, what) for one in outcomes if one.trial.arm == arm]
    steps = max((len(way) for way in ways), default=0)
    columns = [[way[step] for way in ways if step < len(way) and way[step] is not None] for step in range(steps)]
    return [sum(known) / len(known) if known else None for known in columns]


def draw(path: Path, outcomes: Sequence[SafetyOutcome], weighed: SafetyResult) -> None:
    """Cost with its budget on the left, success in the middle, the multiplier on the right."""
    from io import BytesIO

    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.2), layout="constrained")
    panels = figure.subplots(1, 3)
    arms = [arm for arm in ARMS if arm in weighed.arms]
    others = [arm for arm in arms if arm not in COLOURS]
    colours = COLOURS | dict(zip(others, PENALTIES, strict=False))
    told = (("costs", "unsafe calls an attempt"), ("successes", "tasks solved"), ("multipliers", "multiplier λ"))
    for axes, (what, label) in zip(panels, told, strict=True):
        for arm in arms:
            heights = [nan if value is None else value for value in course(outcomes, arm, what)]
            axes.plot(range(1, len(heights) + 1), heights, color=colours[arm], lw=1.8, label=arm.replace("-", " "))
        axes.set(xlabel="step of practice", ylabel=label)
        axes.set_ylim(bottom=0)
        _plain(axes)
    panels[0].axhline(weighed.budget, color=INK, lw=1, ls="--")
    panels[0].annotate("budget", (1, weighed.budget), xytext=(0, 3), textcoords="offset points", color=INK, fontsize=8)
    panels[1].legend(frameon=False, fontsize=8, labelcolor=INK, loc="lower right")
    seeds = f"{len(weighed.seeds)} seed{'s' if len(weighed.seeds) > 1 else ''}"
    figure.suptitle(f"A tempting tool that is off limits, mean of {seeds}", color=INK, fontsize=11.5)
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=130)
    write_atomically(path, picture.getvalue())


def _plain(axes: Any) -> None:
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(GREY)
    axes.tick_params(colors=INK, color=GREY)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(axis="y", color=GREY, alpha=0.2)
