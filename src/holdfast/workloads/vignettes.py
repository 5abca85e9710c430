"""Small scenes of coming and going: a few lines, tick by tick, when somebody moves in or has to leave.

Pure: what is playing goes in and comes out, and no chance is drawn. One scene plays at a time, and seldom: who comes
or goes meanwhile does so unsung. Names and reasons come in as words; that they are kind is up to who says them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

PAUSE = 120  # ticks from the end of one scene to the next, at least

ARRIVALS: tuple[tuple[tuple[int, str], ...], ...] = (
    ((1, "A car pulls up at the edge of town."), (3, "{name} gets out with two bags."), (6, "{name} asks the way.")),
    ((1, "The bus stops by the road."), (2, "{name} steps down and looks about."), (5, "The bus drives on.")),
)
DEPARTURES: tuple[tuple[tuple[int, str], ...], ...] = (
    ((1, "A van waits by the road."), (3, "{name} carries out a box."), (6, "{name} leaves after {stay}: {why}.")),
    ((1, "A car comes for {name}."), (4, "The car drives off. {name} was here for {stay}: {why}.")),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """One line of a scene."""

    tick: int
    seat: int  # whom it is about
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Playing:
    """What is still to be shown, and when the next scene may begin."""

    beats: tuple[Beat, ...] = ()
    ready: int = 0

    def plain(self) -> dict[str, Any]:
        """For a snapshot."""
        return {"beats": [asdict(beat) for beat in self.beats], "ready": self.ready}


def playing(plain: Mapping[str, Any]) -> Playing:
    """What was kept."""
    return Playing(beats=tuple(Beat(**beat) for beat in plain["beats"]), ready=plain["ready"])


def arrival(now: Playing, *, tick: int, seat: int, name: str) -> Playing:
    return _begin(now, ARRIVALS, tick, seat, {"name": name})


def departure(now: Playing, *, tick: int, seat: int, name: str, days: float, why: str) -> Playing:
    return _begin(now, DEPARTURES, tick, seat, {"name": name, "stay": stay(days), "why": why})


def stay(days: float) -> str:
    """How long, in words."""
    whole = round(days)
    return "less than a day" if whole < 1 else "a day" if whole == 1 else f"{whole} days"


def due(now: Playing, tick: int) -> tuple[Playing, tuple[Beat, ...]]:
    """What is shown by this tick, and what is left."""
    if not now.beats or now.beats[0].tick > tick:
        return now, ()
    shown = tuple(beat for beat in now.beats if beat.tick <= tick)
    return Playing(beats=now.beats[len(shown) :], ready=now.ready), shown


def _begin(
    now: Playing, scenes: Sequence[tuple[tuple[int, str], ...]], tick: int, seat: int, words: Mapping[str, str]
) -> Playing:
    if now.beats or tick < now.ready:
        return now
    scene = scenes[(tick * 31 + seat * 7) % len(scenes)]
    beats = tuple(Beat(tick=tick + after, seat=seat, text=text.format(**words)) for after, text in scene)
    return Playing(beats=beats, ready=beats[-1].tick + PAUSE)
