"""Plots as shapes in a frame of 1000 by 1000, which a page stretches to whatever room it has.

Lines keep their width when they are stretched, and all words stand beside the shapes as text of the page: so a plot is
as readable on a phone as on paper. What is drawn, in which colours and with which words, is the page's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10

from holdfast.contracts.errors import BadInput

SIDE = 1000.0  # of the frame, in its own units
ROUNDING = 1e-9  # 0.3 / 0.1 is a little below 3
MOST_POINTS = 400  # more of them on one line are not seen


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Values from `low` to `high` along one side of the frame; what lies beyond is drawn at the edge."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise BadInput(f"scale from {self.low} to {self.high}", why="the ends must be finite, and apart")

    def share(self, value: float) -> float:
        """How far along the side it lies, from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgMark:
    """One shape: an SVG path, what kind of thing it is (the page gives it a colour), and its name if it has one."""

    path: str
    kind: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """A text beside the shapes, in percent from the left and the top of the frame."""

    text: str
    left: float = 0.0
    top: float = 0.0
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    described: str  # in one sentence, for those who do not see it
    marks: tuple[SvgMark, ...]
    below: tuple[Word, ...] = ()  # along the lower side
    beside: tuple[Word, ...] = ()  # along the left side
    within: tuple[Word, ...] = ()


def ticks(scale: AxisScale, most: int = 6) -> list[float]:
    """Round values within the scale, at most so many, evenly apart."""
    size = 10.0 ** floor(log10((scale.high - scale.low) / most))
    found = list[float]()
    for step in (size * factor for factor in (1.0, 2.0, 5.0, 10.0, 20.0)):
        first, last = ceil(scale.low / step - ROUNDING), floor(scale.high / step + ROUNDING)
        found = [round(n * step, 12) + 0.0 for n in range(first, last + 1)]
        if len(found) <= most:
            break
    return found


def around(values: Iterable[float], *, room: float = 0.08) -> AxisScale:
    """A scale that holds all of these, with some room at both ends."""
    held = list(values)
    low, high = min(held), max(held)
    spare = (high - low) * room or max(abs(high), 1.0) * room
    return AxisScale(low=low - spare, high=high + spare)


def thin(count: int, keep: Iterable[int] = (), most: int = MOST_POINTS) -> list[int]:
    """Places of a long line that are worth drawing: the first, the last, the ones to keep and some between."""
    if count <= most:
        return list(range(count))
    spaced = {round(n * (count - 1) / (most - 1)) for n in range(most)}
    return sorted(spaced | {place for place in keep if 0 <= place < count})


def line(across: Sequence[float], up: Sequence[float], x: AxisScale, y: AxisScale) -> str:
    points = [f"{_right(x, a)} {_down(y, b)}" for a, b in zip(across, up, strict=True)]
    return "M" + "L".join(points) if points else ""


def band(across: Sequence[float], lows: Sequence[float], highs: Sequence[float], x: AxisScale, y: AxisScale) -> str:
    """What lies between two lines."""
    there, back = line(across, highs, x, y), line(across[::-1], lows[::-1], x, y)
    return f"{there}L{back[1:]}Z" if there else ""


def level(value: float, y: AxisScale) -> str:
    """A line right across at this height."""
    return f"M0 {_down(y, value)}H{SIDE:.0f}"


def upright(value: float, x: AxisScale) -> str:
    return f"M{_right(x, value)} 0V{SIDE:.0f}"


def box(left: float, right: float, bottom: float, top: float, *, x: AxisScale, y: AxisScale) -> str:
    return f"M{_right(x, left)} {_down(y, bottom)}H{_right(x, right)}V{_down(y, top)}H{_right(x, left)}Z"


def dot(across: float, up: float, x: AxisScale, y: AxisScale) -> str:
    """A line of no length: with round ends it is a circle, however the frame is stretched."""
    return f"M{_right(x, across)} {_down(y, up)}h0"


def _right(x: AxisScale, value: float) -> str:
    return _short(SIDE * x.share(value))


def _down(y: AxisScale, value: float) -> str:
    return _short(SIDE * (1.0 - y.share(value)))


def _short(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")
