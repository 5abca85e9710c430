"""A world in plain Python: objects, dicts and loops, written to be read, against which the kernels are tested.

The reference reads the rules and not `compiled_rules`, finds ways by itself and draws its own random numbers.
It is some hundred times slower than the kernels; what residents see and how they plan is not in it. In order: the map,
the world, ties, work, rewards, steps and queues, needs, perturbations, coming and going, and one tick.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

from holdfast.town.actions import names
from holdfast.town.kernel import EVENTS, KINDS
from holdfast.town.rules import CAUSES, ITEMS, MONEY, MOST_TIES, NEEDS, TRAITS, TROUBLES, UNIT, Rules
from holdfast.town.state import COUNTS, PERSON, SHIFTS, TOWN, TownState

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


def tie(person: Person, other: int) -> Tie:
    """The tie to another; a tie of nothing where there is none."""
    return next((one for one in person.ties if one is not None and one.to == other), Tie(other))


def rivalry(person: Person, other: int) -> int:
    return tie(person, other).rivalry


def is_rival(w: World, person: Person, other: int) -> bool:
    return rivalry(person, other) >= units(w.rules["ties"]["avoid_at"])


def affinity(person: Person, other: int) -> int:
    one = tie(person, other)
    return one.trust + one.familiarity - one.rivalry


def strength(one: Tie) -> int:
    return abs(one.trust) + abs(one.familiarity) + one.rivalry


def bump(w: World, person: Person, other: int, change: tuple[int, int, int]) -> None:
    """One side of a tie changes, by the person's nature. Where all places are taken, the weakest tie gives way."""
    trust, familiarity, hostile = change
    if not w.on("ties"):
        return
    if w.on("personalities"):
        offence = UNIT - person.trait["forgiveness"] // 2
        trust = trust * offence // UNIT if trust < 0 else trust
        familiarity = familiarity * offence // UNIT if familiarity < 0 else familiarity
        if hostile > 0:
            hostile = hostile * offence // UNIT * (UNIT + 3 * person.trait["ambition"] // 10) // UNIT
    most, ties = w.rules["ties"]["most"], person.ties
    place = next((k for k in range(most) if (one := ties[k]) is not None and one.to == other), None)
    if place is None:
        place = next((k for k in range(most) if ties[k] is None), None)
        if place is None:
            weak = {k: strength(one) for k in range(most) if (one := ties[k]) is not None}
            place = min(weak, key=weak.__getitem__)
            if weak[place] > abs(trust) + abs(familiarity) + abs(hostile):
                return
        ties[place] = Tie(other)
    one = ties[place]
    assert one is not None
    one.trust = within_unit(one.trust + trust, -UNIT)
    one.familiarity = within_unit(one.familiarity + familiarity)
    one.rivalry = within_unit(one.rivalry + hostile)
    if strength(one) == 0:
        ties[place] = None


def both(w: World, a: int, b: int, change: tuple[int, int, int]) -> None:
    bump(w, w.people[a], b, change)
    bump(w, w.people[b], a, change)


def can_chat(w: World, person: Person) -> bool:
    is_rested = w.town.tick - person.chat_at >= w.rules["ties"]["chat"]["cooldown"]
    return bool(person.alive) and person.doing is None and is_rested


def chat(w: World, a: int, b: int) -> bool:
    speaker, listener, rules = w.people[a], w.people[b], w.rules["ties"]["chat"]
    worth = units(w.rules["rewards"]["chat"])
    speaker.chat_at = w.town.tick
    mine, theirs = tie(speaker, b), tie(listener, a)
    trust, familiarity, talks = mine.trust, mine.familiarity, max(mine.chats, theirs.chats)
    hostile = max(mine.rivalry, theirs.rivalry)
    chance = units(rules["base"]) * (UNIT + 3 * trust // 10) // UNIT * (UNIT + familiarity // 5) // UNIT
    is_lucky = w.chance("chat", a, UNIT) < chance
    if hostile >= units(w.rules["ties"]["avoid_at"]) or not is_lucky:
        both(w, a, b, three(w.rules["ties"]["rebuff"]))
        w.count("rebuffs")
        w.tell("rebuff", a, b, hostile)
        speaker.chat_gain -= worth // 2
        return False
    listener.chat_at = w.town.tick
    quality = 500_000 + 3 * speaker.trait["extroversion"] // 10 + trust // 5 + familiarity // 10 - hostile // 5
    diminish = w.rules["ties"]["diminish"]
    quality = within_unit(quality, UNIT // 10) * diminish // (diminish + talks)
    for person, other in ((speaker, b), (listener, a)):
        gain = quality * units(rules["trust"]) // UNIT, quality * units(rules["familiarity"]) // UNIT
        bump(w, person, other, (*gain, 0))
        kept = tie(person, other)
        kept.chats = min(kept.chats + 1, 30_000)
        person.need["social"] = min(UNIT, person.need["social"] + quality * units(rules["social"]) // UNIT)
        person.chat_gain += quality * worth // UNIT
    w.count("chats")
    w.tell("chat", a, b, quality)
    return True


def share_meal(w: World, a: int, b: int) -> None:
    both(w, a, b, three(w.rules["ties"]["meal"]))
    for one in (a, b):
        need = w.people[one].need
        need["social"] = min(UNIT, need["social"] + units(w.rules["ties"]["meal"]["social"]))
    w.count("shared_meals")
    w.tell("shared_meal", a, b)


def help_out(w: World, a: int, b: int) -> None:
    w.people[a].item["meal"] -= 1
    w.people[b].item["meal"] += 1
    both(w, a, b, three(w.rules["ties"]["help"]))
    w.count("helps")
    w.tell("help", a, b, w.people[b].need["hunger"])


def clash(w: World, a: int, b: int, share: int) -> None:
    """`share` of 1000 of a conflict; who was in the way takes half of it to heart."""
    trust, familiarity, hostile = three(w.rules["ties"]["conflict"])
    for one, other, of in ((a, b, 1000), (b, a, 2000)):
        bump(w, w.people[one], other, (trust * share // of, familiarity * share // of, hostile * share // of))
    if share >= 1000:  # less is not worth the telling
        w.count("conflicts")
        w.tell("conflict", a, b, rivalry(w.people[a], b))


def avoid(w: World, a: int, b: int) -> None:
    """To keep out of a rival's way counts once an hour."""
    person = w.people[a]
    if w.town.tick - person.avoided_at >= w.rules["ticks_per_day"] // 24:
        person.avoided_at = w.town.tick
        person.avoided += 1
        w.tell("avoided", a, b, rivalry(person, b))


def fade(w: World) -> None:
    is_due = w.town.tick % w.rules["ties"]["decay_every"] == 0
    decay = three(w.rules["ties"]["decay"])
    for person in w.people:
        for k, one in enumerate(person.ties):
            if one is None or not person.alive:
                continue
            if w.time == 0:
                one.chats = 0
            if is_due:
                step = min(decay[0], abs(one.trust))
                one.trust -= step if one.trust >= 0 else -step
                one.familiarity = max(0, one.familiarity - decay[1])
                one.rivalry = max(0, one.rivalry - decay[2])
                if strength(one) == 0:
                    person.ties[k] = None


def is_at_work(w: World, person: Person) -> bool:
    venue = w.layout.venue.get(person.tile)
    return person.job is not None and venue is not None and venue["id"] == w.rules["job"][person.job]["venue"]


def is_on_shift(w: World, person: Person) -> bool:
    if person.job is None:
        return False
    job = w.rules["job"][person.job]
    return bool(job["start"] <= w.time < job["end"])


def earn(w: World, person: Person) -> bool:
    if person.job is None or person.shift == "absent" or not (is_on_shift(w, person) and is_at_work(w, person)):
        return False
    wage = coins(w.rules["job"][person.job]["wage"])
    person.money += wage
    w.town.treasury -= wage
    person.earned += wage
    person.worked += 1
    person.jobless_since = w.town.tick
    w.count("worked")
    return True


def fine(w: World, person: Person, meals: float) -> None:
    taken = min(coins(meals), person.money)
    person.money -= taken
    w.town.treasury += taken


def shifts(w: World) -> None:
    for i, person in enumerate(w.people):
        if not person.alive:
            continue
        if person.job is None:
            person.shift = "off"
            if w.town.tick >= person.hire_at:
                hire(w, i)
            continue
        job = w.rules["job"][person.job]
        if w.time < job["start"]:
            person.shift = "due" if w.time >= job["start"] - 60 else "before"
            if w.time == 0:
                person.worked = person.away = person.was_late = 0
        elif w.time >= job["end"]:
            if w.time == job["end"] and person.shift in ("on_time", "late") and not is_at_work(w, person):
                w.tell("departed_early", i, person.job, person.worked)
            person.shift = "after"
        else:
            on_shift(w, i, w.time - job["start"])


def on_shift(w: World, i: int, since: int) -> None:
    person, rules = w.people[i], w.rules["employment"]
    weekday = w.town.tick // w.rules["ticks_per_day"] % 7
    if since == 0:
        person.worked = 1 if person.earned > 0 else 0
        person.away = person.was_late = person.absent[weekday] = 0
        person.shift = "due"
    if person.shift == "absent":
        return
    if is_at_work(w, person):
        person.away = 0
        if person.shift not in ("on_time", "late"):
            is_late = since > rules["grace"] or person.was_late
            person.shift = "late" if is_late else "on_time"
            if is_late and not person.was_late:
                late(w, i)
        return
    person.away += 1
    if since > rules["grace"] and person.shift == "due" and not person.was_late:
        late(w, i)
    if person.away > rules["absent_after"]:
        person.shift, person.absent[weekday] = "absent", 1
        fine(w, person, rules["absent_fine"])
        w.count("absences")
        w.tell("absent", i, person.job, person.away)
        missed = sum(person.absent)
        if missed >= rules["most_absences"] and w.town.job_exits_today < rules["exits_per_day"]:
            w.town.job_exits_today += 1
            w.tell("fired", i, person.job, missed)
            quit_job(w, person)


def late(w: World, i: int) -> None:
    person = w.people[i]
    person.was_late = 1
    fine(w, person, w.rules["employment"]["late_fine"])
    w.count("lates")
    w.tell("late", i, person.job)


def quit_job(w: World, person: Person) -> None:
    person.job, person.job_slot, person.shift = None, None, "off"
    person.hire_at = w.town.tick + w.rules["employment"]["rehire_after"]
    person.absent = [0] * 7


def hire(w: World, i: int) -> bool:
    """The first free place, beginning with another job for each resident."""
    jobs, person = w.rules["job"], w.people[i]
    taken = {(other.job, other.job_slot) for other in w.people if other.alive}
    for turn in range(len(jobs)):
        job = (i + turn) % len(jobs)
        for slot in range(jobs[job]["slots"]):
            if (job, slot) not in taken:
                person.job, person.job_slot, person.shift = job, slot, "before"
                w.tell("hired", i, job, slot)
                return True
    person.hire_at = w.town.tick + w.rules["ticks_per_day"] // 24
    person.jobless_since = w.town.tick  # nobody is blamed for that
    return False


def potential(w: World, person: Person) -> int:
    """Φ = −Σ weight × deficit."""
    weights = {need: units(w.rules["needs"][need]["weight"]) for need in counted_needs(w)}
    return -(sum(weight * (UNIT - person.need[need]) for need, weight in weights.items()) // UNIT)


def squash(value: int, scale: int) -> int:
    size = abs(value) * scale // (scale + abs(value))
    return size if value >= 0 else -size


def base(w: World, person: Person) -> int:
    """alive − deficit × Σ weight × deficit² + wages + punctuality + talk + quarrels avoided, squashed."""
    rules, total = w.rules["rewards"], 0
    for need in counted_needs(w):
        deficit, weight = UNIT - person.need[need], units(w.rules["needs"][need]["weight"])
        total += weight * (deficit * deficit // UNIT)
    value = units(rules["alive"]) - total // UNIT * units(rules["deficit"]) // UNIT
    value += person.earned * units(rules["wage"]) // MONEY
    if person.earned > 0 and person.shift == "on_time":
        value += units(rules["punctual"])
    is_well = all(person.need[need] >= units(rules["needs_first"]) for need in counted_needs(w))
    if w.on("chat_rewards") and (is_well or person.chat_gain < 0):
        value += person.chat_gain
    if w.on("avoidance_rewards"):
        value += person.avoided * units(rules["avoid"])
    return squash(value, units(rules["squash"]))


def is_near_exit(w: World, person: Person) -> bool:
    rules, soon = w.rules["lifecycle"], w.rules["rewards"]["no_positive_before_exit"]
    neglect = round(rules["neglect_share"] * w.rules["ticks_per_day"])
    is_low = person.low_ticks > 0 and person.low_ticks >= rules["collapse_ticks"] - soon
    return bool(is_low or person.neglect >= neglect - soon)


def pay(w: World, person: Person) -> float:
    rules, value = w.rules["rewards"], 0
    share = units(rules["shaping"])
    if person.alive:
        phi = potential(w, person)
        shaping = 0 if person.fresh else (units(rules["gamma"]) * phi // UNIT - person.shaped) * share // UNIT
        person.shaped = phi
        value = base(w, person) + shaping
        if is_near_exit(w, person):
            value = min(value, 0)
    elif person.cause:
        terminal = units(rules["terminal"][person.cause])
        value = min(terminal, terminal - person.shaped * share // UNIT)
        person.shaped = 0
    person.reward = value
    person.returned += value
    return value / UNIT


REASONS = ("", "condition", "money", "items", "stock", "cooldown", "not_there", "no_place")

# Steps --------------------------------------------------------------------------------------------------------------


def move(w: World, i: int, to: int | None) -> bool:
    """One step to a tile beside; whoever stands in the way is passed after a while."""
    person, patience = w.people[i], w.rules["queues"]["ghost_after"]
    if to is None or not w.layout.walkable[to]:
        return False
    other = w.who.get(to)
    if other is None:
        del w.who[person.tile]
        w.who[to], person.tile, person.blocked = i, to, 0
        w.count("moves")
        return True
    person.blocked += 1
    person.blocker = other
    w.count("blocked")
    there = w.people[other]
    is_in_file = there.blocked > 0 and there.blocker != i
    if person.blocked <= (4 * patience if is_in_file else patience):
        return False
    w.who[person.tile], w.who[to] = other, i
    there.tile, person.tile = person.tile, to
    person.blocked = 0
    w.count("ghost_steps")
    w.tell("ghost_step", i, other, to)
    if w.on("ties") and there.blocked > 0:
        clash(w, i, other, 100)
    return True


def walk(w: World, i: int, place: int) -> bool:
    """A step on a shortest way; of two that are as short, one that is free."""
    person, layout = w.people[i], w.layout
    here = layout.far(place, person.tile)
    if here == 0:
        return True
    turn = (i + w.town.tick) % 4
    around = layout.beside(person.tile)
    turned = [near for near in (*around[turn:], *around[:turn]) if near is not None and layout.walkable[near]]
    nearer = [near for near in turned if layout.far(place, near) < here]
    free = [near for near in nearer if near not in w.who]
    return bool(nearer) and move(w, i, free[0] if free else nearer[-1])


def choose(w: World, i: int, kind: str) -> int | None:
    """The cheapest of its type: near, free, few who wait, no rival at it, something left in it."""
    person, best, least = w.people[i], None, 1 << 40
    for o in w.layout.of_type(kind):
        far, thing = w.layout.far(o, person.tile), w.things[o]
        if far == FAR:
            continue
        cost = 4 * far + 60 * thing.waiting
        if thing.holder is not None and thing.holder != i:
            cost += 40
            if w.on("ties") and is_rival(w, person, thing.holder):
                cost += 200
        if kind in w.rules["stock"] and thing.stock <= 0:
            cost += 1000
        if cost < least:
            best, least = o, cost
    return best


def go(w: World, i: int, kind: str) -> bool:
    person, reach = w.people[i], w.rules["queues"]["reach"]
    is_thing = kind not in ("home", "work", "meeting")
    if person.goal_kind != kind or person.goal is None or not is_thing:
        person.goal_kind = kind
        if is_thing:
            person.goal = choose(w, i, kind)
        else:
            ends = {"home": person.home, "work": work_spot(w, person), "meeting": meeting_of(w, i)}
            person.goal = ends[kind]
    if is_thing and person.queue is not None and w.layout.kind_of[person.queue] == kind:
        person.goal = person.queue
    elif is_thing and person.goal is not None and w.layout.far(person.goal, person.tile) == reach + 2:
        person.goal = choose(w, i, kind)  # seen from near, it may be taken
    return person.goal is not None and walk(w, i, person.goal)


def work_spot(w: World, person: Person) -> int | None:
    if person.job is None or person.job_slot is None:
        return None
    return w.layout.first_spot[person.job] + person.job_slot


def meeting_of(w: World, i: int) -> int | None:
    is_on = w.town.meeting_until > w.town.tick
    return w.town.meeting_place if is_on and i in (w.town.meeting_a, w.town.meeting_b) else None


# Using --------------------------------------------------------------------------------------------------------------


def price(w: World, name: str) -> int:
    entry = w.layout.affordances[name]
    base = coins(w.rules["prices"][entry["price"]]) if "price" in entry else 0
    spike = next((one.get("factor", 1.0) for one in w.rules["trouble"] if one["id"] == "price_spike"), 1.0)
    return base * round(spike * 1000) // 1000 if w.lasts("price_spike") else base


def hindrance(w: World, person: Person, o: int, name: str) -> str:
    """Why it cannot be begun there, or ''. The condition is Python, so Python answers it."""
    entry, thing = w.layout.affordances[name], w.things[o]
    values = {
        **{need: value / UNIT for need, value in person.need.items()},
        **person.item,
        "wallet": person.money / MONEY,
        "stock": thing.stock,
        "hour": w.time // (w.rules["ticks_per_day"] // 24),
        "queue": thing.waiting,
        "power": not w.lasts("blackout"),
        "water": not w.lasts("outage"),
        "own": person.home == o,
        "on_shift": person.shift in ("on_time", "late", "absent"),
    }
    if "when" in entry and not eval(entry["when"], {"__builtins__": {}}, values):  # checked before by rules
        return "condition"
    if person.money < price(w, name):
        return "money"
    if any(person.item[item] < many for item, many in entry.get("takes", {}).items()):
        return "items"
    return "stock" if thing.stock < entry.get("uses", 0) else ""


def at_hand(w: World, i: int, name: str) -> int | None:
    """What one would use for it: a free thing here or beside, else what one went to and is near enough to wait for,
    else a thing beside."""
    person, layout, found = w.people[i], w.layout, None
    kind = layout.affordances[name]["object"]
    if kind == "bed":
        is_here = person.home is not None and layout.far(person.home, person.tile) == 0
        return person.home if is_here else None
    for near in (person.tile, *layout.beside(person.tile)):
        o = layout.thing_at.get(near) if near is not None else None
        if o is None or layout.kind_of[o] != kind or layout.far(o, person.tile) > 0:
            continue
        if is_free(w, i, o):
            return o
        found = o
    goal = person.goal
    if person.goal_kind == kind and goal is not None and layout.far(goal, person.tile) <= w.rules["queues"]["reach"]:
        return goal
    return found


def is_free(w: World, i: int, o: int) -> bool:
    return w.things[o].holder is None and w.things[o].held_for in (None, i)


def use(w: World, i: int, name: str) -> bool:
    person, entry = w.people[i], w.layout.affordances[name]
    number = w.layout.order.index(name)
    o = at_hand(w, i, name)
    why = "no_place" if o is None else hindrance(w, person, o, name)
    if o is None or why:
        return fail(w, i, number, why)
    thing = w.things[o]
    if not is_free(w, i, o) or w.layout.far(o, person.tile) > 0:
        return wait_for(w, i, o)
    has_just = thing.last_user == i and w.town.tick - thing.used_at < w.rules["queues"]["cooldown"]
    if has_just and thing.waiting > 0:
        return fail(w, i, number, "cooldown")
    thing.holder = i
    leave_queue(w, i)
    thing.held_for = None
    person.paid = price(w, name)
    person.money -= person.paid
    w.town.treasury += person.paid
    for item, many in entry.get("takes", {}).items():
        person.item[item] -= many
    thing.stock -= entry.get("uses", 0)
    person.doing, person.using, person.left, person.goal = name, o, entry["duration"], None
    take_place(w, i, w.layout.tile_of[o])
    w.tell("started", i, o, number)
    return True


def take_place(w: World, i: int, to: int) -> None:
    """Onto the tile of the thing; who is there without using it makes room."""
    person, other = w.people[i], w.who.get(to)
    if other == i:
        return
    del w.who[person.tile]
    if other is not None:
        w.who[person.tile], w.people[other].tile = other, person.tile
    w.who[to], person.tile = i, to


def fail(w: World, i: int, number: int, why: str) -> bool:
    w.count("failed")
    w.tell("failed", i, number, REASONS.index(why))
    return False


def shares_meals(entry: Any) -> bool:
    return "shared_meal" in entry.get("hooks", [])


def meet_at_table(w: World, i: int) -> None:
    width, person = w.layout.width, w.people[i]
    for j, other in enumerate(w.people):
        if j == i or not other.alive or other.doing is None or not shares_meals(w.layout.affordances[other.doing]):
            continue
        dx, dy = other.tile % width - person.tile % width, other.tile // width - person.tile // width
        if abs(dx) + abs(dy) <= 3:
            share_meal(w, i, j)


def progress(w: World) -> None:
    for i, person in enumerate(w.people):
        if person.doing is None or not person.alive:
            continue
        entry = w.layout.affordances[person.doing]
        asks = entry.get("when", "").replace("(", " ").replace(")", " ").split()
        if ("power" in asks and w.lasts("blackout")) or ("water" in asks and w.lasts("outage")):
            abort(w, i)
            continue
        person.left -= 1
        if entry.get("per_tick"):
            affect(person, entry)
        is_full = "until_full" in entry and person.need[entry["until_full"]] >= UNIT
        if person.left <= 0 or is_full:
            finish(w, i, entry)


def finish(w: World, i: int, entry: Any) -> None:
    person, takes, gives = w.people[i], entry.get("takes", {}), entry.get("gives", {})
    if not entry.get("per_tick"):
        affect(person, entry)
    for item, many in gives.items():
        given = min(many, max(0, w.rules["items"][item] - person.item[item]))
        person.item[item] += given
        w.count("lost", many - given)
    w.count("finished")
    count_food(w, entry.get("uses", 0) + sum(takes.values()) - sum(gives.values()))
    w.tell("finished", i, person.using, w.layout.order.index(entry["id"]))
    if w.on("ties") and shares_meals(entry):
        meet_at_table(w, i)
    release(w, i)


def count_food(w: World, gone: int) -> None:
    """What is no longer in the town has been eaten; what was not in it before has been brought."""
    w.count("eaten", max(0, gone))
    w.count("delivered", max(0, -gone))


def affect(person: Person, entry: Any) -> None:
    for need, share in entry["effects"].items():
        change = units(share / entry["duration"] if entry.get("per_tick") else share)
        person.need[need] = within_unit(person.need[need] + change)


def abort(w: World, i: int) -> None:
    """Broken off: what was taken for its end is given back."""
    person = w.people[i]
    assert person.doing is not None and person.using is not None
    entry = w.layout.affordances[person.doing]
    if not entry.get("per_tick"):
        person.money += person.paid
        w.town.treasury -= person.paid
        for item, many in entry.get("takes", {}).items():
            person.item[item] += many
        w.things[person.using].stock += entry.get("uses", 0)
    else:
        count_food(w, entry.get("uses", 0) + sum(entry.get("takes", {}).values()))
    w.count("aborted")
    w.tell("aborted", i, person.using, w.layout.order.index(person.doing))
    release(w, i)


def release(w: World, i: int) -> None:
    person = w.people[i]
    assert person.using is not None
    o, thing = person.using, w.things[person.using]
    thing.holder, thing.last_user, thing.used_at = None, i, w.town.tick
    person.doing, person.using, person.left, person.paid = None, None, 0, 0
    hand_over(w, o)


# Queues -------------------------------------------------------------------------------------------------------------


def wait_for(w: World, i: int, o: int) -> bool:
    person = w.people[i]
    if person.queue != o:
        leave_queue(w, i)
        person.queue, person.queue_since, person.waited = o, w.town.tick, 0
        person.behind = w.things[o].holder
        w.things[o].waiting += 1
        w.tell("queued", i, o, w.things[o].waiting)
    return True


def leave_queue(w: World, i: int) -> None:
    """Out of the line; what was held for one is held for the next."""
    person, o = w.people[i], w.people[i].queue
    if o is not None:
        w.things[o].waiting -= 1
        person.queue, person.waited = None, 0
        if w.things[o].held_for == i:
            hand_over(w, o)


def hand_over(w: World, o: int) -> None:
    """A free thing waits a while for who has waited longest."""
    thing = w.things[o]
    if thing.holder is not None or thing.waiting == 0:
        thing.held_for = None
        return
    line = [i for i, person in enumerate(w.people) if person.alive and person.queue == o]
    first = min(line, key=lambda i: w.people[i].queue_since)
    thing.held_for, thing.held_until = first, w.town.tick + w.rules["queues"]["hold"]
    w.tell("handover", first, o, w.town.tick - w.people[first].queue_since)


def queues(w: World) -> None:
    rules = w.rules["queues"]
    for i, person in enumerate(w.people):
        o = person.queue
        if o is None or not person.alive:
            continue
        thing = w.things[o]
        if w.layout.far(o, person.tile) > rules["reach"]:
            leave_queue(w, i)
            continue
        person.waited += 1
        w.town.count["longest_wait"] = max(w.town.count["longest_wait"], person.waited)
        if thing.holder is not None:
            person.behind = thing.holder
            if w.on("ties") and person.waited % rules["conflict_after"] == 0:
                clash(w, i, thing.holder, 1000)
        elif thing.held_for is None:
            hand_over(w, o)
        if thing.held_for == i and w.town.tick >= thing.held_until:  # called, and did not come: to the end of the line
            person.queue_since = w.town.tick
            hand_over(w, o)


def step_aside(w: World, i: int) -> bool:
    person = w.people[i]
    if person.doing is not None:
        abort(w, i)
        return True
    if person.queue is None:
        return False
    thing = w.things[person.queue]
    if thing.holder is not None and is_rival(w, person, thing.holder):
        avoid(w, i, thing.holder)
    leave_queue(w, i)
    person.goal = None
    return True


# Needs --------------------------------------------------------------------------------------------------------------


def wear(w: World) -> None:
    for person in w.people:
        if not person.alive:
            continue
        profile = w.rules["profile"][person.profile if w.on("personalities") else 0]
        is_wet = w.lasts("rain") and not w.layout.is_indoors(person.tile)
        is_feast = w.lasts("festival") and w.layout.is_park(person.tile)
        for need in counted_needs(w):
            factor = profile.get("decay", {}).get(need, 1.0)
            loss = units(w.rules["needs"][need]["decay"] * factor / w.rules["ticks_per_day"])
            if is_wet and need in ("hygiene", "energy"):
                loss = loss * 3 // 2
            if is_feast and need == "social":
                loss = -4 * loss
            person.need[need] = within_unit(person.need[need] - loss)


# Trouble ------------------------------------------------------------------------------------------------------------


def weather(w: World) -> None:
    town, plan = w.town, w.rules["scheduler"]
    for kind in TROUBLES:
        if town.until[kind] == town.tick and town.tick > 0:
            w.tell("trouble_ends", TROUBLES.index(kind))
            if kind in HARD:
                town.calm_at = town.tick
    active = sum(w.lasts(kind) for kind in TROUBLES)
    if active >= plan["most_at_once"] or town.tick < town.trouble_ready:
        return
    told = {one["id"]: one for one in w.rules["trouble"]}
    chance = w.chance("trouble", 0, 2**32)
    for number, kind in enumerate(TROUBLES):  # one a tick at most: the shares of chance lie one after another
        odds = round(told[kind]["per_day"] / w.rules["ticks_per_day"] * 2**32) if kind in told else 0
        if chance < odds:
            if town.tick >= town.ready[kind]:
                low, high = told[kind]["duration"]
                begin_trouble(
                    w, number, low + w.chance("trouble", 100 + number, high - low + 1), told[kind]["cooldown"]
                )
            return
        chance -= odds


def begin_trouble(w: World, number: int, length: int, pause: int) -> None:
    town, kind = w.town, TROUBLES[number]
    if kind == "meeting" and not invite(w, length):
        return
    town.until[kind] = town.tick + length
    town.ready[kind] = town.tick + length + pause
    town.trouble_ready = town.tick + w.rules["scheduler"]["cooldown"]
    w.count("troubles")
    w.tell("trouble_begins", number, town.meeting_a if kind == "meeting" else None, length)


def can_meet(w: World, person: Person, length: int) -> bool:
    """Nobody is invited too often, out of bed, or away from work."""
    is_rested = person.met_at is None or w.town.tick - person.met_at >= w.rules["scheduler"]["per_resident"]
    is_abed = person.doing is not None and "until_full" in w.layout.affordances[person.doing]
    if not person.alive or person.tokens <= 0 or is_abed or not is_rested:
        return False
    if not w.on("work") or person.job is None:
        return True
    job, end = w.rules["job"][person.job], w.time + length
    if w.time < job["start"]:
        return bool(end < job["start"])
    return bool(w.time >= job["end"] and end < job["start"] + w.rules["ticks_per_day"])


def invite(w: World, length: int) -> bool:
    """The two worst rivals of those who may be invited, else two by chance."""
    town, size = w.town, len(w.people)
    if town.meeting_until > town.tick:
        return False
    free = [i for i in range(size) if can_meet(w, w.people[i], length)]
    pairs = [(i, one) for i in free for one in w.people[i].ties if one is not None and one.to in free and one.rivalry]
    if pairs:
        a, worst = max(pairs, key=lambda pair: pair[1].rivalry)
        b = worst.to
    else:
        start = w.chance("meeting", 0, size)
        by_chance = [i for i in (*range(start, size), *range(start)) if i in free]
        if len(by_chance) < 2:
            return False
        a, b = by_chance[:2]
    for i in (a, b):
        w.people[i].tokens -= 1
        w.people[i].met_at = town.tick
    places = len(w.layout.tile_of) - w.layout.first_meeting
    town.meeting_place = w.layout.first_meeting + w.chance("meeting", 1, places)
    town.meeting_a, town.meeting_b, town.met, town.meeting_until = a, b, 0, town.tick + length
    return True


def gather(w: World) -> None:
    town = w.town
    a, b, place = town.meeting_a, town.meeting_b, town.meeting_place
    if a is None or b is None or place is None:
        return
    are_alive = all(w.people[i].alive for i in (a, b))
    if are_alive and all(w.layout.far(place, w.people[i].tile) <= 2 for i in (a, b)):
        both(w, a, b, three(w.rules["ties"]["meeting"]))
        w.count("meetings")
        w.tell("met", a, b, rivalry(w.people[a], b))
    elif town.tick + 1 < town.meeting_until and are_alive:
        return
    else:
        w.count("missed_meetings")
        w.tell("missed", a, b)
    town.meeting_a, town.meeting_b, town.meeting_until = None, None, 0
    town.until["meeting"] = min(town.until["meeting"], town.tick + 1)


def refill(w: World) -> None:
    for person in w.people:
        if person.alive and w.town.tick >= person.refill_at:
            person.tokens = min(w.rules["scheduler"]["bucket"], person.tokens + 1)
            person.refill_at = w.town.tick + w.rules["scheduler"]["bucket_refill"]


# Coming and going ---------------------------------------------------------------------------------------------------


def dawn(w: World) -> None:
    rent = coins(w.rules["economy"]["rent"])
    w.town.exits_today = w.town.job_exits_today = 0
    for i, person in enumerate(w.people):
        if not person.alive:
            continue
        person.neglect = 0
        if person.money >= rent:
            person.money -= rent
            w.town.treasury += rent
            person.unpaid = 0
        else:
            person.unpaid = min(person.unpaid + 1, 255)
            w.tell("rent_unpaid", i, None, person.unpaid)


def deliver(w: World) -> None:
    for number, kind in enumerate(w.layout.types):
        entry = w.rules["stock"].get(kind)
        if entry is None or entry["hour"] * (w.rules["ticks_per_day"] // 24) != w.time:
            continue
        brought = 0
        for o in w.layout.of_type(kind):
            more = max(0, entry["most"] - w.things[o].stock)
            w.things[o].stock += more
            brought += more
        w.count("delivered", brought)
        w.tell("restock", number, None, brought)


def cause_of(w: World, person: Person) -> str | None:
    rules, day = w.rules["lifecycle"], w.rules["ticks_per_day"]
    if person.low_ticks >= rules["collapse_ticks"]:
        return "collapse"
    if person.unpaid >= rules["unpaid_days"]:
        return "eviction"
    if person.neglect >= round(rules["neglect_share"] * day):
        return "neglect"
    if w.on("work") and w.town.tick - person.jobless_since >= rules["jobless_days"] * day:
        return "jobless"
    return None


def exits(w: World) -> None:
    rules, town = w.rules["lifecycle"], w.town
    is_grace = town.calm_at > 0 and town.tick - town.calm_at < rules["grace"]
    is_held = is_grace or any(w.lasts(kind) for kind in HARD)
    for i, person in enumerate(w.people):
        person.cause = None
        if not person.alive:
            continue
        is_low = person.need["hunger"] <= units(rules["collapse_below"])
        person.low_ticks = person.low_ticks + 1 if is_low else 0
        if any(value < units(rules["neglect_below"]) for value in person.need.values()):
            person.neglect += 1
            w.count("deficit_ticks")
        cause = cause_of(w, person)
        may = town.mortal and not is_held and town.exits_today < rules["exits_per_day"] and town.tick >= town.exit_ready
        if cause and may:
            depart(w, i, cause)


def depart(w: World, i: int, cause: str) -> None:
    person, town, rules = w.people[i], w.town, w.rules["lifecycle"]
    if person.doing is not None:
        abort(w, i)
    leave_queue(w, i)
    for thing in w.things:
        if thing.last_user == i:
            thing.last_user = None
    del w.who[person.tile]
    town.outside += person.money
    w.count("lost", sum(person.item.values()))
    person.item = dict.fromkeys(ITEMS, 0)
    for other in w.people:
        other.ties = [None if one is not None and one.to == i else one for one in other.ties]
        other.behind = None if other.behind == i else other.behind
        other.blocker = None if other.blocker == i else other.blocker
    person.ties = [None] * len(person.ties)
    w.slots[person.slot] = town.tick
    person.money, person.alive, person.cause, person.left_at = 0, 0, cause, town.tick
    person.home, person.job, person.job_slot, person.shift, person.goal = None, None, None, "off", None
    low, high = rules["respawn"]
    person.respawn_at = town.tick + low + w.chance("spawn", i, high - low + 1)
    town.exits_today += 1
    w.count("exits")
    town.exit_ready = town.tick + rules["cooldown"]
    w.tell("exit", i, 1 + CAUSES.index(cause), town.tick - person.born)


def arrivals(w: World) -> None:
    for i, person in enumerate(w.people):
        if person.alive:
            person.fresh = 0
        if person.alive or w.town.tick < person.respawn_at:
            continue
        slot = free_slot(w)
        entries = w.layout.entries
        free = [tile for k in range(len(entries)) if (tile := entries[(i + k) % len(entries)]) not in w.who]
        if slot is None or not free:
            continue
        settle(w, i, free[0], slot)
        if w.on("work") and w.chance("spawn", 1000 + i, 2) == 0:
            hire(w, i)
        w.tell("arrival", i, None, slot)


def free_slot(w: World) -> int | None:
    """One that was never used, else the one that has rested longest, if it has rested enough."""
    if NEVER in w.slots:
        return w.slots.index(NEVER)
    rested = [k for k, since in enumerate(w.slots) if since >= 0]
    best = min(rested, key=w.slots.__getitem__, default=None)
    is_rested = best is not None and w.town.tick - w.slots[best] >= w.rules["lifecycle"]["slot_cooldown"]
    return best if is_rested else None


def settle(w: World, i: int, tile: int, slot: int) -> None:
    """A new resident with a starter kit, a nature and a home. What is not named here stays as it was."""
    person, town, kit = w.people[i], w.town, w.rules["lifecycle"]
    w.slots[slot], w.who[tile] = IN_USE, i
    town.births += 1
    w.count("spawns")
    person.alive, person.tile, person.slot, person.born, person.fresh = 1, tile, slot, town.tick, 1
    person.money = coins(kit["starter_money"])
    town.outside -= person.money
    person.item = {item: kit["starter_items"].get(item, 0) for item in ITEMS}
    w.count("delivered", sum(person.item.values()))
    person.need = {need: 600_000 + w.chance("start", 10 * i + k, 350_000) for k, need in enumerate(NEEDS)}
    nature(w, person)
    beds = w.layout.of_type("bed")
    taken = {other.home for j, other in enumerate(w.people) if other.alive and j != i}
    person.home = next((o for k in range(len(beds)) if (o := beds[(i + k) % len(beds)]) not in taken), None)
    person.job = person.job_slot = None
    person.shift, person.hire_at, person.jobless_since = "off", town.tick + w.rules["ticks_per_day"] // 24, town.tick
    person.doing = person.using = person.queue = person.goal = person.blocker = person.behind = None
    person.goal_kind = person.cause = person.met_at = person.left_at = None
    person.left = person.low_ticks = person.neglect = person.worked = person.away = person.waited = 0
    person.blocked = person.avoided = person.last_action = person.unpaid = person.was_late = person.success = 0
    person.paid = person.earned = person.chat_gain = person.reward = person.returned = 0
    person.chat_at = person.avoided_at = town.tick - w.rules["ticks_per_day"]
    person.tokens, person.refill_at = 1, town.tick + w.rules["scheduler"]["bucket_refill"]
    person.shaped = potential(w, person)
    person.absent, person.ties = [0] * 7, [None] * len(person.ties)


def nature(w: World, person: Person) -> None:
    """Spread evenly over the births: their number in bits, read backwards, falls into one of the shares."""
    turned, upto = int(f"{w.town.births % 2**32:032b}"[::-1], 2), 0.0
    profiles = w.rules["profile"]
    for number, entry in enumerate(profiles):
        upto += entry["share"]
        if turned < round(upto * 2**32) or number == len(profiles) - 1:
            person.profile = number
            break
    told = profiles[person.profile]["traits"]
    person.trait = {trait: units(told[trait]) if w.on("personalities") else 0 for trait in TRAITS}


def begin(rules: Rules, seed: int) -> World:
    """The first morning: everybody is at home and has work."""
    layout = Layout(rules)
    stock = [rules["stock"].get(kind, {}).get("start", 0) for kind in layout.kind_of[: layout.things]]
    free = {"used_at": -1, "held_until": 0, "holder": None, "held_for": None, "last_user": None, "waiting": 0}
    things = [Thing(stock=many, **free) for many in stock]
    numbers = dict.fromkeys(set(TOWN.names or ()) - {*COUNTS, "spare"}, 0)
    troubles = {name: dict.fromkeys(TROUBLES, 0) for name in ("until", "ready")}
    none = dict.fromkeys(("meeting_a", "meeting_b", "meeting_place"))
    count = {**dict.fromkeys(COUNTS, 0), "delivered": sum(stock)}
    town = Town(**{**numbers, **troubles, **none, "count": count, "seed": seed, "mortal": 1})
    w = World(rules, layout, town, [_nobody() for _ in range(rules["residents"])], things, {}, [])
    w.slots = [NEVER] * rules["lifecycle"]["slots"]
    beds = layout.of_type("bed")
    for i in range(len(w.people)):
        home = beds[i % len(beds)]
        free = [tile for tile in range(layout.tiles) if layout.walkable[tile] and tile not in w.who]
        settle(w, i, min(free, key=lambda tile: layout.far(home, tile)), i % len(w.slots))
        if w.on("work"):
            hire(w, i)
    return w


def _nobody() -> Person:
    names = [name for name in PERSON.names or () if name != "spare" and not name.startswith("tie_")]
    return Person(**{**dict.fromkeys(names, 0), "ties": [None] * MOST_TIES, "shift": "off"})


def tick(w: World, actions: Sequence[int]) -> list[float]:
    """What one tick does to a world, and what it is worth to each resident."""
    if w.on("trouble"):
        weather(w)
    if w.time == 0 and w.town.tick > 0:
        dawn(w)
    deliver(w)
    arrivals(w)
    size = len(w.people)
    first = w.chance("order", 0, size)
    for i in (*range(first, size), *range(first)):
        person = w.people[i]
        person.earned = person.chat_gain = person.avoided = 0
        if person.alive:
            action = 0 if person.fresh else int(actions[i])  # who has just come has not seen anything yet
            person.switches = int(action != person.last_action and person.doing is None)
            person.last_action = action
            person.success = int(act(w, i, w.layout.names[action]))
    progress(w)
    wear(w)
    if w.on("work"):
        shifts(w)
    queues(w)
    gather(w)
    if w.on("ties"):
        fade(w)
    if w.town.tick % 60 == 0:
        refill(w)
    exits(w)
    rewards = [pay(w, person) for person in w.people]
    w.town.tick += 1
    w.town.time = w.town.tick % w.rules["ticks_per_day"]
    return rewards


# Actions ------------------------------------------------------------------------------------------------------------

WAYS = ("north", "east", "south", "west")


def act(w: World, i: int, action: str) -> bool:
    person = w.people[i]
    verb, _, what = action.partition(":")
    if verb == "leave":
        return step_aside(w, i)
    if verb == "wait":
        person.blocked = 0
        return True
    if person.doing is not None:
        return False
    if verb in WAYS:
        return move(w, i, w.layout.beside(person.tile)[WAYS.index(verb)])
    if verb == "go":
        return go(w, i, what)
    if verb == "use":
        return use(w, i, what)
    if verb == "work":
        return w.on("work") and earn(w, person)
    other = chat_partner(w, i) if verb == "chat" else in_need(w, i)
    if other is None:
        return False
    if verb == "chat":
        return chat(w, i, other)
    help_out(w, i, other)
    return True


def possible(w: World, i: int) -> set[str]:
    """Every action that can be done now, as far as one can know before trying."""
    person, layout = w.people[i], w.layout
    out = {"wait"}
    if not person.alive:
        return out
    if person.doing is not None:
        return out | {"leave"}
    if person.queue is not None:
        out.add("leave")
    ways = zip(WAYS, layout.beside(person.tile), strict=True)
    out |= {way for way, to in ways if to is not None and layout.walkable[to]}
    for name, place in (("home", person.home), ("work", work_spot(w, person)), ("meeting", meeting_of(w, i))):
        if place is not None and layout.far(place, person.tile) > 0:
            out.add(f"go:{name}")
    for name, entry in layout.affordances.items():
        if entry["object"] != "bed":
            out.add(f"go:{entry['object']}")
        o = at_hand(w, i, name)
        if o is not None and not hindrance(w, person, o, name):
            out.add(f"use:{name}")
    if w.on("work") and person.shift != "absent" and is_on_shift(w, person) and is_at_work(w, person):
        out.add("work")
    if chat_partner(w, i) is not None:
        out.add("chat")
    if in_need(w, i) is not None:
        out.add("help")
    return out


def residents_beside(w: World, i: int) -> list[int]:
    return [w.who[near] for near in w.layout.beside(w.people[i].tile) if near is not None and near in w.who]


def chat_partner(w: World, i: int) -> int | None:
    """The best liked of those beside one who are free to talk."""
    if not w.on("ties") or not can_chat(w, w.people[i]):
        return None
    free = [other for other in residents_beside(w, i) if can_chat(w, w.people[other])]
    return max(free, key=lambda other: affinity(w.people[i], other), default=None)


def in_need(w: World, i: int) -> int | None:
    """One beside who is hungry and has no meal, where one has a meal to spare."""
    low = units(w.rules["needs"]["hunger"]["low"])
    is_hungry = w.people[i].need["hunger"] < low
    if not w.on("ties") or w.people[i].item["meal"] < (2 if is_hungry else 1):
        return None
    for other in residents_beside(w, i):
        them = w.people[other]
        if them.doing is None and them.item["meal"] == 0 and them.need["hunger"] < low:
            return other
    return None
