"""Runs one town for very long and reports memory, departures and alerts, as a record and as a Markdown page.

The caller gives the clock and the measure of memory, and decides how much memory may grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.workloads.townlife import Left, Life, faults
from holdfast.workloads.townobserver import TownAlarms

FRAME_EVERY = 60  # ticks: as if somebody looked now and then


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSample:
    """The process and the town at one tick."""

    tick: int
    seconds: float  # since the soak began
    memory_mb: float  # resident
    here: int  # residents
    state: str  # hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    seed: int
    rules: str  # hash
    ticks: int
    days: float
    looks: tuple[SoakSample, ...]
    grown_mb: float  # since the second look: what is loaded and compiled comes before it
    lost_events: int
    windows: int
    green: int  # windows with nothing against them
    alerts: tuple[str, ...]  # raised and cleared, in order
    faults: tuple[str, ...]  # of the last window
    left_for: Mapping[str, int]  # how many left, by cause
    last_left: tuple[Left, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def soak(
    life: Life,
    ticks: int,
    *,
    looks: int,
    memory_mb: Callable[[], float],
    clock: Callable[[], float],
    each: Callable[[], None] = lambda: None,
) -> Soak:
    """Runs so many ticks, or until Ctrl-C, and reports either way."""
    began, watch = clock(), TownAlarms()
    seen: list[SoakSample] = []
    alerts: list[str] = []
    windows = green = 0

    def look() -> None:
        state, here = life.env.state, int((life.env.state.people["alive"][0] == 1).sum())
        seen.append(
            SoakSample(
                tick=life.tick,
                seconds=round(clock() - began, 1),
                memory_mb=memory_mb(),
                here=here,
                state=state.sha256(),
            )
        )

    try:
        for done in range(1, ticks + 1):
            moment = life.step()
            if done % FRAME_EVERY == 0:
                life.frame()
            if moment.window is not None:
                windows, green = windows + 1, green + (not faults(moment.window))
                alerts += [f"tick {moment.tick}: {alert.message}" for alert in watch.look(moment.window, moment.tick)]
            if done % max(1, ticks // looks) == 0:
                look()
            each()
    except KeyboardInterrupt:
        pass
    if not seen or seen[-1].tick != life.tick:
        look()
    return Soak(
        seed=life.seed,
        rules=life.rules.sha256,
        ticks=life.tick,
        days=round(life.tick / life.rules["ticks_per_day"], 1),
        looks=tuple(seen),
        grown_mb=round(seen[-1].memory_mb - seen[min(1, len(seen) - 1)].memory_mb, 1),
        lost_events=life.lost,
        windows=windows,
        green=green,
        alerts=tuple(alerts),
        faults=faults(life.kpis),
        left_for=dict(sorted(life.left_for.items())),
        last_left=tuple(life.left),
    )


def page(soak: Soak, *, command: str, date: str, machine: str) -> str:
    """The report, in Markdown."""
    last, rules = soak.looks[-1], soak.rules[:16]
    left = ", ".join(f"{count} × {cause}" for cause, count in soak.left_for.items()) or "nobody"
    rows = [
        f"| {look.tick:,} | {look.seconds:,.0f} | {look.memory_mb:.1f} | {look.here} | `{look.state[:16]}` |"
        for look in soak.looks
    ]
    lasts = [f"- tick {one.tick:,}: {one.name}, after {one.days:g} days ({one.cause})" for one in soak.last_left]
    return "\n".join(
        (
            "# A long life of the town",
            "",
            f"`{command}`, {date}, {machine}. This page is written by the command itself (`--report`).",
            "",
            f"- {soak.ticks:,} ticks ({soak.days:,} days), seed {soak.seed}, rules `{rules}`: {last.seconds:,.0f} s.",
            f"- Memory: {last.memory_mb:.1f} MB at the end, {soak.grown_mb:+.1f} MB since the second look.",
            f"- State at the end: `{last.state}`.",
            f"- Residents at the end: {last.here}. Left: {left}.",
            f"- Windows of half a day: {soak.windows:,}; green: {soak.green:,}; events lost: {soak.lost_events}.",
            f"- Alerts: {len(soak.alerts) or 'none'}.",
            *(f"  - {alert}" for alert in soak.alerts[:20]),
            *((f"  - … and {len(soak.alerts) - 20} more",) if len(soak.alerts) > 20 else ()),
            "",
            "| tick | s | memory, MB | residents | state |",
            "|---:|---:|---:|---:|---|",
            *rows,
            *(("", "The last who left:", "", *lasts) if lasts else ()),
            "",
        )
    )
