"""The page of one proof, in one HTML file: the verdict, what would change it, and the evidence.

It needs no network and no script, and every text in it is data: task names come from outside. Plots are SVG paths in a
frame of 1000 by 1000, which the page stretches; all words are page text beside them, readable on a phone and on paper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from math import ceil, floor, isfinite, log10
from statistics import fmean
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import MetricComparison
from holdfast.contracts.lines import printable
from holdfast.operate import proof_view
from holdfast.operate.proof_view import MetricSequence, ProofTask, ProofView

SIDE = 1000.0  # of the frame, in its own units
ROUNDING = 1e-9  # 0.3 / 0.1 is a little below 3
MOST_POINTS = 400  # of one line; more are not visible
MOST_TICKS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisScale:
    """Values from `low` to `high` along one side of the frame; values beyond are drawn at the edge."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low < self.high):
            raise BadInput(f"scale from {self.low} to {self.high}", why="the ends must be finite, and apart")

    def share(self, value: float) -> float:
        """The position along the side, from 0 to 1."""
        return min(1.0, max(0.0, (value - self.low) / (self.high - self.low)))


@dataclass(frozen=True, slots=True, kw_only=True)
class SvgMark:
    """One SVG path, its kind (which gives the colour), and its tooltip."""

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
    described: str  # in one sentence, for screen readers
    marks: tuple[SvgMark, ...]
    below: tuple[Word, ...] = ()  # along the lower side
    beside: tuple[Word, ...] = ()  # along the left side
    within: tuple[Word, ...] = ()


def ticks(scale: AxisScale) -> list[float]:
    """A few round values within the scale, evenly apart."""
    size = 10.0 ** floor(log10((scale.high - scale.low) / MOST_TICKS))
    found = list[float]()
    for step in (size * factor for factor in (1.0, 2.0, 5.0, 10.0, 20.0)):
        first, last = ceil(scale.low / step - ROUNDING), floor(scale.high / step + ROUNDING)
        found = [round(n * step, 12) + 0.0 for n in range(first, last + 1)]
        if len(found) <= MOST_TICKS:
            break
    return found


def around(values: Iterable[float]) -> AxisScale:
    """A scale with all of these values and some room at both ends."""
    held = list(values)
    low, high = min(held), max(held)
    spare = 0.08 * ((high - low) or max(abs(high), 1.0))
    return AxisScale(low=low - spare, high=high + spare)


def thin(count: int, keep: Iterable[int] = ()) -> list[int]:
    """The points of a long line to draw: first, last, those to keep, and some between."""
    if count <= MOST_POINTS:
        return list(range(count))
    spaced = {round(n * (count - 1) / (MOST_POINTS - 1)) for n in range(MOST_POINTS)}
    return sorted(spaced | {place for place in keep if 0 <= place < count})


def line(across: Sequence[float], up: Sequence[float], x: AxisScale, y: AxisScale) -> str:
    points = [f"{_right(x, a)} {_down(y, b)}" for a, b in zip(across, up, strict=True)]
    return "M" + "L".join(points) if points else ""


def band(across: Sequence[float], lows: Sequence[float], highs: Sequence[float], x: AxisScale, y: AxisScale) -> str:
    """The area between two lines."""
    there, back = line(across, highs, x, y), line(across[::-1], lows[::-1], x, y)
    return f"{there}L{back[1:]}Z" if there else ""


def level(value: float, y: AxisScale) -> str:
    """A horizontal line."""
    return f"M0 {_down(y, value)}H{SIDE:.0f}"


def upright(value: float, x: AxisScale) -> str:
    return f"M{_right(x, value)} 0V{SIDE:.0f}"


def box(left: float, right: float, bottom: float, top: float, *, x: AxisScale, y: AxisScale) -> str:
    return f"M{_right(x, left)} {_down(y, bottom)}H{_right(x, right)}V{_down(y, top)}H{_right(x, left)}Z"


def dot(across: float, up: float, x: AxisScale, y: AxisScale) -> str:
    """A line of length 0 with round ends: a circle, however the frame is stretched."""
    return f"M{_right(x, across)} {_down(y, up)}h0"


def _right(x: AxisScale, value: float) -> str:
    return f"{SIDE * x.share(value):.1f}".removesuffix(".0")


def _down(y: AxisScale, value: float) -> str:
    return f"{SIDE * (1.0 - y.share(value)):.1f}".removesuffix(".0")


MOST_FAMILIES = 24
MOST_COLOURS = 8
LONGEST_NAME = 48  # letters of a task's name that the page shows
LAST_NAMED = 1000  # tasks with a tooltip; more would make the page heavy


@cache
def pages() -> Any:
    """Templates of pages, which escape and clean every text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    def clean(value: object) -> object:
        return value if isinstance(value, Markup) or not isinstance(value, str) else printable(value)

    return Environment(
        loader=PackageLoader("holdfast.operate"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=clean,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(view: ProofView) -> str:
    """The page. The same view gives the same bytes."""
    families = _families(view.tasks)
    page = pages().get_template("proof.html")
    return str(
        page.render(
            view=view,
            standing=proof_view.status_of(view),
            headline=proof_view.headline(view),
            changes=proof_view.open_points(view),
            cards=proof_view.cards(view),
            rows=[_row(view, comparison) for comparison in view.comparisons.values()],
            families=[_family(view, name, place) for place, name in enumerate(families)],
            is_coloured=0 < len(families) <= MOST_COLOURS,
            split=split(view.tasks),
            apart=paired(view.tasks, view.primary, families),
            courses=[(sequence, sequence_plot(sequence)) for sequence in (view.sequence, view.safety) if sequence],
            tasks=[_task_row(task, view.primary) for task in sorted(view.tasks, key=lambda task: -task.difference)],
            is_turned=view.decision is not None
            and proof_view.speaks_turned([reason.text for reason in view.decision.reasons]),
            words=proof_view,
        )
    )


def paired(tasks: Sequence[ProofTask], metric: str, families: Sequence[str] = ()) -> Plot:
    """A bar for each task, best first: candidate minus baseline."""
    ordered = sorted(tasks, key=lambda task: (-task.difference, task.family))
    differences = [task.difference for task in ordered]
    x, y = AxisScale(low=0.0, high=len(ordered)), around([*differences, 0.0])
    gap = 0.12 if len(ordered) <= 120 else 0.0
    marks = [SvgMark(path=level(value, y), kind="grid") for value in ticks(y)]
    for place, task in enumerate(ordered):
        if task.difference:
            path = box(place + gap, place + 1 - gap, 0.0, task.difference, x=x, y=y)
            message = (
                f"{proof_view.short(task.name, LONGEST_NAME // 2)}: {proof_view.change(metric, task.difference)}"
                if place < LAST_NAMED
                else ""
            )
            marks.append(SvgMark(path=path, kind=_colour(task, families), name=message))
    better, worse, same = split(tasks)
    described = f"Differences of {len(tasks)} tasks, sorted: {better} better, {same} the same, {worse} worse."
    parts = ((better, "better", 0.0, "first"), (same, "the same", 50.0, ""), (worse, "worse", 100.0, "last"))
    return Plot(
        described=described,
        marks=(*marks, SvgMark(path=level(0.0, y), kind="zero")),
        beside=_heights(y, metric),
        below=tuple(Word(text=f"{many} {what}", left=left, kind=kind) for many, what, left, kind in parts),
    )


def sequence_plot(known: MetricSequence) -> Plot:
    """The running mean, its confidence sequence, the required bar, and where it was proved."""
    count = known.tasks
    places = thin(count, keep=[at - 1 for at in (known.proved_at, known.refuted_at) if at is not None])
    means = [total / n for n, total in enumerate(accumulate(known.differences), start=1)]
    # The first bounds and means are so wide that they would flatten the rest.
    shown = [*known.low[count // 2 :], *known.high[count // 2 :], *means[count // 8 :]]
    y = around([known.bar, 0.0, *shown])
    x = AxisScale(low=0.0 if count == 1 else 1.0, high=count)
    across = [place + 1.0 for place in places]
    marks = [SvgMark(path=level(value, y), kind="grid") for value in ticks(y)]
    lows, highs = ([ends[place] for place in places] for ends in (known.low, known.high))
    marks += [
        SvgMark(path=band(across, lows, highs, x, y), kind="band"),
        *([SvgMark(path=level(0.0, y), kind="zero")] if known.bar else []),
        SvgMark(path=level(known.bar, y), kind="bar"),
        SvgMark(path=line(across, [means[place] for place in places], x, y), kind="mean"),
    ]
    within = list[Word]()
    for at, what in ((known.proved_at, "proved"), (known.refuted_at, "disproved")):
        if at is not None:
            marks += [
                SvgMark(path=upright(at, x), kind="proved"),
                SvgMark(path=dot(at, means[at - 1], x, y), kind="dot"),
            ]
            left = 100.0 * x.share(at)
            within.append(Word(text=f"{what} after {at}", left=left, kind="end" if left > 60 else "begin"))
    return Plot(
        described=proof_view.course_told(known),
        marks=tuple(marks),
        beside=_heights(y, known.metric),
        below=tuple(Word(text=f"{value:.0f}", left=100.0 * x.share(value)) for value in ticks(x) if value >= x.low),
        within=tuple(within),
    )


def _row(view: ProofView, comparison: MetricComparison) -> dict[str, Any]:
    """One row of the metric table, with its interval on a scale of its own around 0."""
    low, high = comparison.interval.low, comparison.interval.high
    reach = max(abs(low), abs(high), comparison.margin) * 1.15 or 1.0
    x, y = AxisScale(low=-reach, high=reach), AxisScale(low=0.0, high=1.0)
    kind = "better" if low > 0 else "worse" if high < 0 else "open"
    marks = [SvgMark(path=upright(0.0, x), kind="zero")]
    if comparison.margin:
        marks.append(SvgMark(path=upright(-comparison.margin, x), kind="bar"))
    marks += [
        SvgMark(path=line([low, high], [0.5, 0.5], x, y), kind=f"reach {kind}"),
        SvgMark(path=dot(comparison.difference, 0.5, x, y), kind=f"dot {kind}"),
    ]
    return {
        "comparison": comparison,
        "means": view.means.get(comparison.metric),
        "adjusted": view.adjusted.get(comparison.metric),
        "plot": Plot(described=proof_view.with_interval(comparison), marks=tuple(marks)),
    }


def _family(view: ProofView, name: str, place: int) -> dict[str, Any]:
    some = [task for task in view.tasks if task.family == name]
    return {
        "name": name,
        "kind": f"family-{place}",
        "split": split(some),
        "mean": proof_view.change(view.primary, fmean(task.difference for task in some)),
    }


def _task_row(task: ProofTask, metric: str) -> tuple[str, ...]:
    values = (proof_view.amount(metric, value) for value in (task.baseline, task.candidate))
    return (proof_view.short(task.name, LONGEST_NAME), task.family, *values, proof_view.change(metric, task.difference))


def _families(tasks: Sequence[ProofTask]) -> list[str]:
    """The families to list; none where there is one, or nearly one for each task."""
    found = sorted({task.family for task in tasks if task.family})
    return found if 1 < len(found) <= MOST_FAMILIES else []


def _colour(task: ProofTask, families: Sequence[str]) -> str:
    """Colours a task by its family where there are few, else by better or worse."""
    if not families or len(families) > MOST_COLOURS:
        return "better" if task.difference > 0 else "worse"
    return f"family-{families.index(task.family)}" if task.family in families else "family-none"


def split(tasks: Sequence[ProofTask]) -> tuple[int, int, int]:
    """Counts the tasks that the candidate did better, worse and the same."""
    better = sum(task.difference > 0 for task in tasks)
    worse = sum(task.difference < 0 for task in tasks)
    return better, worse, len(tasks) - better - worse


def _heights(y: AxisScale, metric: str) -> tuple[Word, ...]:
    return tuple(Word(text=proof_view.tick(metric, value), top=100.0 * (1.0 - y.share(value))) for value in ticks(y))
