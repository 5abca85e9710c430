"""A world in plain Python: objects, dicts and loops, written to be read, against which the kernels are tested.

The reference reads the rules and not `compiled_rules`, finds ways by itself and draws its own random numbers.
It is some hundred times slower than the kernels; what residents see and how they plan is not in it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from holdfast.town.actions import names
from holdfast.town.kernel import EVENTS, KINDS
from holdfast.town.rules import CAUSES, ITEMS, MONEY, NEEDS, TRAITS, TROUBLES, UNIT, Rules
from holdfast.town.state import COUNTS, SHIFTS, TownState

FAR = 65_535
IN_USE, NEVER = -2, -1  # of an identity
STREAMS = ("", "order", "chat", "trouble", "spawn", "script", "meeting", "start")
HARD = ("price_spike", "blackout", "outage")
PARTS = ("trust", "familiarity", "rivalry")


@dataclass(slots=True)
class Tie:
    to: int
    trust: int = 0
    familiarity: int = 0
    rivalry: int = 0
    chats: int = 0  # of this day


class Person(SimpleNamespace):
    """A resident, or the place of one who has left: the fields of `PERSON` by their names, its ties together.

    None stands where there is none.
    """


class Thing(SimpleNamespace):
    """The fields of `THING`."""


class Town(SimpleNamespace):
    """The fields of `TOWN`, its counts together."""


class TownEvent(NamedTuple):
    tick: int
    kind: str
    a: int
    b: int
    value: int


# The map ------------------------------------------------------------------------------------------------------------


class Layout:
    """Where everything is. A place is a thing, then a work spot, then a meeting place, by one number."""

    def __init__(self, rules: Rules) -> None:
        grid, table = rules.grid, rules["map"]
        self.rules, self.width, self.tiles = rules, grid.width, grid.width * grid.height
        self.walkable = [glyph in table["ground"] + table["doors"] for glyph in grid.glyphs]
        self.types: list[str] = list(dict.fromkeys(table["objects"].values()))
        self.venue: dict[int, Any] = {}
        for entry in rules["venue"]:
            left, top, right, bottom = entry["area"]
            for y in range(top, bottom + 1):
                self.venue.update({y * self.width + x: entry for x in range(left, right + 1)})
        self.kind_of: list[str | None] = [kind for kind, _ in grid.objects]
        self.tile_of = [tile for _, tile in grid.objects]
        self.things = len(self.tile_of)
        self.thing_at = {tile: place for place, tile in enumerate(self.tile_of)}
        self.first_spot = self._spots()
        self.first_meeting = len(self.tile_of)
        park = [t for t in range(self.tiles) if self.is_park(t) and self.walkable[t]] or list(grid.entries)
        self.tile_of += [park[k * len(park) // 8] for k in range(8)]
        self.kind_of += [None] * (len(self.tile_of) - self.things)
        self.entries = grid.entries[:16]
        self.names = names(rules)
        self.affordances = {entry["id"]: entry for entry in rules["affordance"]}
        self.order = list(self.affordances)
        self.steps: dict[int, dict[int, int]] = {}

    def _spots(self) -> list[int]:
        """The first work spot of each job. Jobs in one venue whose shifts do not overlap share their spots."""
        jobs = self.rules["job"]
        offset: list[int] = []
        for k, job in enumerate(jobs):
            rivals = [
                offset[j] + other["slots"]
                for j, other in enumerate(jobs[:k])
                if other["venue"] == job["venue"] and other["start"] < job["end"] and job["start"] < other["end"]
            ]
            offset.append(max(rivals, default=0))
        first: dict[str, int] = {}
        for name in dict.fromkeys(job["venue"] for job in jobs):
            many = max(offset[k] + job["slots"] for k, job in enumerate(jobs) if job["venue"] == name)
            first[name] = len(self.tile_of)
            self.tile_of += self._pairs(self._calm(name, many), many)
        return [first[job["venue"]] + offset[k] for k, job in enumerate(jobs)]

    def _calm(self, venue: str, many: int) -> list[int]:
        """Tiles of a venue to stand on for long: not in or before a door, not where a thing is used, if there are
        enough of them."""
        doors, glyphs = self.rules["map"]["doors"], self.rules.grid.glyphs
        used = {entry["object"] for entry in self.rules["affordance"]}
        floor = [t for t in range(self.tiles) if self.venue.get(t, {}).get("id") == venue and self.walkable[t]]
        inside = [t for t in floor if glyphs[t] not in doors]
        calm = [t for t in inside if not any(glyphs[near] in doors for near in self.open_beside(t))]
        busy = {near for place, at in enumerate(self.tile_of[: self.things]) if self.kind_of[place] in used
                for near in self.beside(at)}  # fmt: skip
        away = [t for t in calm if t not in busy]
        return next((found for found in (away, calm, inside) if len(found) >= many), floor)

    def _pairs(self, free: list[int], many: int) -> list[int]:
        """Spread out, but each second one beside the one before."""
        spots: list[int] = []
        for k in range(many):
            first = k * len(free) // many
            beside = [t for t in self.open_beside(spots[-1]) if t in free] if k % 2 else []
            wanted = [*beside, *free[first:], *free[:first]]
            spots.append(next((t for t in wanted if t not in spots), wanted[0]))
        return spots

    def beside(self, tile: int) -> list[int | None]:
        """North, east, south, west; None beyond the edge."""
        x, y, width = tile % self.width, tile // self.width, self.width
        north, south = tile - width if y else None, tile + width if tile + width < self.tiles else None
        return [north, tile + 1 if x < width - 1 else None, south, tile - 1 if x else None]

    def open_beside(self, tile: int) -> list[int]:
        return [near for near in self.beside(tile) if near is not None and self.walkable[near]]

    def is_park(self, tile: int) -> bool:
        return tile in self.venue and self.venue[tile]["kind"] == "park"

    def is_indoors(self, tile: int) -> bool:
        return tile in self.venue and not self.is_park(tile)

    def far(self, place: int, tile: int) -> int:
        """Steps from a tile to a place; to a thing one goes until one stands beside it. Who is on a thing, as those are
        who use it, has to get up first."""
        if place < self.things and tile == self.tile_of[place]:
            return 0
        if tile in self.thing_at:
            return min(FAR, 1 + min(self.far(place, near) for near in self.open_beside(tile)))
        if place not in self.steps:
            self.steps[place] = self._flood(place)
        return self.steps[place].get(tile, FAR)

    def _flood(self, place: int) -> dict[int, int]:
        at = self.tile_of[place]
        found = dict.fromkeys(self.open_beside(at) if place < self.things else [at], 0)
        waiting = deque(found)
        while waiting:
            here = waiting.popleft()
            for near in self.open_beside(here):
                if near not in found:
                    found[near] = found[here] + 1
                    waiting.append(near)
        return found

    def of_type(self, kind: str) -> list[int]:
        return [place for place in range(self.things) if self.kind_of[place] == kind]


# The world ----------------------------------------------------------------------------------------------------------


@dataclass
class World:
    rules: Rules
    layout: Layout
    town: Town
    people: list[Person]
    things: list[Thing]
    who: dict[int, int]  # by tile
    slots: list[int]
    events: deque[TownEvent] = field(default_factory=lambda: deque(maxlen=EVENTS))

    def on(self, stage: str) -> bool:
        return stage in self.rules["stages"]["on"]

    @property
    def time(self) -> int:
        return self.town.time

    def lasts(self, trouble: str) -> bool:
        return self.town.until[trouble] > self.town.tick

    def tell(self, kind: str, a: int | None, b: int | None = None, value: int = 0) -> None:
        self.events.append(TownEvent(self.town.tick, kind, -1 if a is None else a, -1 if b is None else b, value))
        self.town.events += 1

    def count(self, name: str, more: int = 1) -> None:
        self.town.count[name] += more

    def chance(self, stream: str, who: int, n: int, tick: int | None = None) -> int:
        """From 0 up to before n."""
        return draw(self.town.seed, self.town.tick if tick is None else tick, stream, who) * n >> 32


def draw(seed: int, tick: int, stream: str, who: int) -> int:
    """32 random bits for one question."""

    def mix(x: int) -> int:
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = ((x ^ (x >> shift)) * factor) % 2**64
        return x ^ (x >> 31)

    golden = 0x9E3779B97F4A7C15
    x = mix((seed + golden * (tick + 1)) % 2**64)
    return mix((x + golden * (STREAMS.index(stream) * 65_537 + who + 1)) % 2**64) >> 32


def units(share: float) -> int:
    return round(share * UNIT)


def coins(meals: float) -> int:
    return round(meals * MONEY)


def three(table: Any) -> tuple[int, int, int]:
    trust, familiarity, rivalry = (units(table.get(part, 0.0)) for part in PARTS)
    return trust, familiarity, rivalry


def counted_needs(w: World) -> list[str]:
    """Alone, the need of company could never be met."""
    return [need for need in NEEDS if need != "social" or w.on("ties")]


def within_unit(value: int, low: int = 0) -> int:
    return max(low, min(UNIT, value))


_NONE = {
    "left_at", "met_at", "home", "job", "job_slot", "using", "queue", "goal", "blocker", "behind",
    "holder", "held_for", "last_user", "meeting_a", "meeting_b", "meeting_place",
}  # fmt: skip


def read(state: TownState, rules: Rules, world: int = 0, layout: Layout | None = None) -> World:
    """One world of a state, as objects."""
    layout = layout or Layout(rules)
    one = state.pick(world)
    told = _records(one.town)[0]
    count = {name: told.pop(name) for name in COUNTS}
    for name in ("until", "ready"):
        told[name] = dict(zip(TROUBLES, told[name], strict=True))
    town, ring = Town(count=count, **told), one.events[0].tolist()
    recent = [ring[k % EVENTS] for k in range(max(0, town.events - EVENTS), town.events)]
    return World(
        rules=rules,
        layout=layout,
        town=town,
        people=[_person(person, layout) for person in _records(one.people[0])],
        things=[Thing(**thing) for thing in _records(one.things[0])],
        who={tile: person for tile, person in enumerate(one.who[0].tolist()) if person >= 0},
        slots=one.slots[0].tolist(),
        events=deque((TownEvent(tick, KINDS[kind], *rest) for tick, kind, *rest in recent), maxlen=EVENTS),
    )


def _records(rows: Any) -> list[dict[str, Any]]:
    plain = {name: rows[name].tolist() for name in rows.dtype.names if name != "spare"}
    for name in _NONE & plain.keys():
        plain[name] = [None if value == -1 else value for value in plain[name]]
    return [dict(zip(plain, row, strict=True)) for row in zip(*plain.values(), strict=True)]


def _person(told: dict[str, Any], layout: Layout) -> Person:
    kinds, parts = ["home", "work", "meeting", *layout.types], ("to", *PARTS, "chats")
    ties = zip(*(told.pop(f"tie_{part}") for part in parts), strict=True)
    told["ties"] = [Tie(*tie) if tie[0] >= 0 else None for tie in ties]
    for name, keys in (("need", NEEDS), ("trait", TRAITS), ("item", ITEMS)):
        told[name] = dict(zip(keys, told[name], strict=True))
    told["doing"] = layout.order[told["doing"]] if told["doing"] >= 0 else None
    told["goal_kind"] = kinds[told["goal_kind"]] if told["goal_kind"] >= 0 else None
    told["cause"] = CAUSES[told["cause"] - 1] if told["cause"] else None
    told["shift"] = SHIFTS[told["shift"]]
    return Person(**told)


def difference(kernel: World, reference: World) -> str | None:
    """The first field in which two worlds differ, by name; None where they are the same."""
    town = [("town", kernel.town, reference.town)]
    people = [(f"people[{i}]", a, b) for i, (a, b) in enumerate(zip(kernel.people, reference.people, strict=True))]
    things = [(f"things[{o}]", a, b) for o, (a, b) in enumerate(zip(kernel.things, reference.things, strict=True))]
    records: list[tuple[str, Any, Any]] = [*town, *people, *things]
    for where, a, b in records:
        for name in sorted({*vars(a), *vars(b)}) if a != b else ():
            mine, theirs = vars(a).get(name, "nothing"), vars(b).get(name, "nothing")
            if mine != theirs:
                return f"tick {kernel.town.tick}: {where}.{name}: kernel {mine!r}, reference {theirs!r}"
    for name in ("who", "slots", "events"):
        mine, theirs = getattr(kernel, name), getattr(reference, name)
        if mine != theirs:
            pairs = zip(mine, theirs, strict=False) if name != "who" else [(mine, theirs)]
            found = next(((a, b) for a, b in pairs if a != b), (len(mine), len(theirs)))
            return f"tick {kernel.town.tick}: {name}: kernel {found[0]!r}, reference {found[1]!r}"
    return None
