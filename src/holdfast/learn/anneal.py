"""Mixed control: seats pass from a script to a network share by share, and go back by themselves where that hurts.

The guard compares KPIs with those of the script alone in the same environments, share by share. It has
hysteresis: a loss beyond `worse` goes back at once, only one within `better` counts for going on, and after a return
two such windows are needed. What is measured, and where, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import isfinite
from typing import Any

from holdfast.contracts.errors import BadInput

FLOOR = 1.0  # a figure near zero is compared on this scale: a share of nothing is nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealPlan:
    """How control passes over."""

    shares: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0)  # of the seats, one after the other
    better: float = 0.2  # a loss below this share of the script's figure counts for going on
    worse: float = 0.35  # a loss above it goes back
    most_returns: int = 2  # after so many it stays where it went back to

    def __post_init__(self) -> None:
        is_rising = all(a < b for a, b in zip((0.0, *self.shares), self.shares, strict=False))
        if not self.shares or not is_rising or self.shares[-1] > 1.0:
            raise BadInput(f"anneal.shares = {self.shares}", why="must rise from above 0 to at most 1")
        if not 0.0 <= self.better <= self.worse < float("inf"):
            raise BadInput(f"anneal.better = {self.better}", why=f"must be from 0 to anneal.worse = {self.worse}")
        if self.most_returns < 1:
            raise BadInput(f"anneal.most_returns = {self.most_returns}", why="must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealWindow:
    """One window of mixed control, and what the guard made of it."""

    share: float
    kpis: Mapping[str, float]
    worst: str  # the figure that lost most
    loss: float  # of it, as a share of the script's
    action: str  # advance, hold, return or done


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnealState:
    """How far control has passed."""

    place: int = 0  # in the plan's shares; −1: all is the script's
    greens: int = 0  # windows in a row without a loss that counts
    returns: int = 0
    is_over: bool = False
    windows: tuple[AnnealWindow, ...] = ()

    def share(self, plan: AnnealPlan) -> float:
        return 0.0 if self.place < 0 else plan.shares[self.place]

    def plain(self, plan: AnnealPlan) -> dict[str, Any]:
        windows = [asdict(window) | {"kpis": dict(window.kpis)} for window in self.windows]
        return {"share": self.share(plan), "returns": self.returns, "windows": windows}


def losses(kpis: Mapping[str, float], script: Mapping[str, float]) -> dict[str, float]:
    """How much each figure lost, as a share of the script's; one that is missing or no number lost everything."""
    found = {}
    for name, value in script.items():
        now = kpis.get(name)
        is_known = now is not None and isfinite(now)
        found[name] = max(0.0, value - now) / max(abs(value), FLOOR) if is_known and now is not None else float("inf")
    return found


def advance(
    state: AnnealState, kpis: Mapping[str, float], script: Mapping[str, float], plan: AnnealPlan
) -> AnnealState:
    """The state after one window."""
    lost = losses(kpis, script)
    if not lost:
        raise BadInput("the anneal", why="nothing was measured, and what nobody measures cannot go back")
    worst = max(lost, key=lambda name: lost[name])
    share, place, loss = state.share(plan), state.place, lost[worst]
    greens, returns, is_over = state.greens, state.returns, False
    if loss > plan.worse:
        action, place, greens, returns = "return", place - 1, 0, returns + 1
        is_over = place < 0 or returns >= plan.most_returns
    elif loss > plan.better:
        action, greens = "hold", 0
        is_over = len(state.windows) + 1 >= 3 * len(plan.shares)  # neither good nor bad for ever
    else:
        action, greens = "hold", greens + 1
        if greens >= (2 if returns else 1):
            is_over = place + 1 == len(plan.shares)
            action, place, greens = ("done", place, greens) if is_over else ("advance", place + 1, 0)
    window = AnnealWindow(share=share, kpis=dict(kpis), worst=worst, loss=loss, action=action)
    windows = (*state.windows, window)
    return replace(state, place=place, greens=greens, returns=returns, is_over=is_over, windows=windows)


def has_passed(state: AnnealState) -> bool:
    """Whether all shares of the plan were reached and held."""
    return bool(state.windows) and state.windows[-1].action == "done"
