"""What residents see: declared contracts with names, ranges and a version.

`compact` is a row of numbers; `recall` adds what the resident did last and where it is bound; `hybrid` adds a small
map around the resident to the row, `full` a richer one. All numbers lie within −1 and 1. A policy names the contract it
was trained on; another contract is refused by name.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.town.actions import names as action_names
from holdfast.town.compiled_rules import FESTIVAL, N_ITEMS, N_NEEDS, RAIN, SPIKE
from holdfast.town.kernel import index, inlined, jit
from holdfast.town.places import is_invited, power, water
from holdfast.town.relationships import tie
from holdfast.town.rules import ITEMS, MONEY, NEEDS, TRAITS, UNIT, Rules
from holdfast.town.state import SHIFTS

VERSION = 1
UNITS = 1 / UNIT
NO_WARMTH = -(1 << 40)  # of a tie that is none
TIME = N_NEEDS + 1 + N_ITEMS  # where parts of a row begin
SHIFT = TIME + 2
BUSY = SHIFT + len(SHIFTS)
PLACES = BUSY + 11
SIGHT = PLACES + 9
SELF = 5 + len(TRAITS)  # in what follows the ties
WINDOW = 11
CHANNELS = {
    "compact": (),
    "recall": (),
    "hybrid": ("walkable", "residents", "things", "taken"),
    "full": ("walkable", "residents", "things", "taken", "liking", "to_home", "to_work", "indoors"),
}
VARIANTS = tuple(CHANNELS)
RECALL = "recall"


class WrongObservation(ValueError):
    """A policy is given observations that it was not made for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationSpec:
    """One contract of observation."""

    variant: str
    features: tuple[str, ...]
    channels: tuple[str, ...]
    window: int
    version: int = VERSION

    @property
    def id(self) -> str:
        """Equal ids, equal meaning of every number."""
        text = "|".join((self.variant, str(self.version), str(self.window), *self.features, *self.channels))
        return f"{self.variant}@{self.version}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"

    @property
    def size(self) -> int:
        """Numbers in all: the features, then the map, channel by channel and row by row."""
        return len(self.features) + len(self.channels) * self.window**2

    @property
    def names(self) -> tuple[str, ...]:
        """Of all numbers; a tile of the map by its channel and by how far it is to the east and to the south."""
        way = range(-(self.window // 2), self.window // 2 + 1)
        return (*self.features, *(f"{channel}({x:+d},{y:+d})" for channel in self.channels for y in way for x in way))

    @property
    def map_shape(self) -> tuple[int, int, int]:
        return (len(self.channels), self.window, self.window) if self.channels else (0, 0, 0)

    def expect(self, wanted: str) -> None:
        """Refuse a policy that was made for other senses."""
        if wanted != self.id:
            raise WrongObservation(f"the policy was made for senses {wanted}, and this town gives {self.id}")


def observation_spec(rules: Rules, variant: str) -> ObservationSpec:
    if variant not in CHANNELS:
        raise WrongObservation(f"senses {variant!r} are unknown; there are {', '.join(VARIANTS)}")
    types = list(dict.fromkeys(rules["map"]["objects"].values()))
    bearings = [f"{to}_{part}" for to in ("home", "work", "meeting") for part in ("dx", "dy", "near")]
    things = [f"{kind}_{part}" for kind in types for part in ("dx", "dy", "near", "free")]
    around = [f"{what}_{way}" for what in ("wall", "resident") for way in ("north", "east", "south", "west")]
    recalled = _recalled(rules, types) if variant == RECALL else ()
    features = (
        *NEEDS, "money", *ITEMS, "time_sin", "time_cos", *(f"shift_{name}" for name in SHIFTS),
        "until_shift", "shift_left", "worked", "busy", "left", "in_line", "waited", "called", "blocked", "succeeded",
        "fresh", *bearings, *things, *around, "beside_liking", "beside_rivalry", "ties", "mean_trust", "best_friend",
        "worst_rival", "friend_dx", "friend_dy", "rival_dx", "rival_dy", "power", "water", "dear", "rain", "festival",
        *TRAITS, "identity", "hunger_alarm", "unpaid", "neglect", *recalled,
    )  # fmt: skip
    return ObservationSpec(variant=variant, features=features, channels=CHANNELS[variant], window=WINDOW)


def _recalled(rules: Rules, types: list[str]) -> tuple[str, ...]:
    """Each action as the last one, and each goal as the current one: the script reads both, so who imitates it must."""
    return (
        *(f"did_{name}" for name in action_names(rules)),
        *(f"bound_{goal}" for goal in ("home", "work", "meeting", *types)),
    )


def recall(people: Any, actions: int, out: Any) -> None:
    """Writes what each did last and where each is bound as ones among zeros [B, A, actions + goals]."""
    out[:] = 0
    alive = people["alive"] == 1
    for numbers, first, has_one in (
        (people["last_action"], 0, alive),
        (people["goal_kind"], actions, alive & (people["goal_kind"] >= 0)),
    ):
        worlds, seats = has_one.nonzero()
        out[worlds, seats, first + numbers[worlds, seats]] = 1


GROUPS = (  # of features, in the order of the list; by the name that each begins with
    ("needs", NEEDS[0]), ("belongings", "money"), ("time and work", "time_sin"), ("doing", "busy"),
    ("places", "home_dx"), ("around", "wall_north"), ("people", "beside_liking"), ("town", "power"),
    ("self", TRAITS[0]), ("troubles", "hunger_alarm"), ("last action", "did_wait"), ("goal", "bound_home"),
)  # fmt: skip


def groups(contract: ObservationSpec) -> dict[str, range]:
    """All numbers by what they tell of: places in the row. Each channel of the map is a group of its own."""
    starts = [(name, contract.features.index(first)) for name, first in GROUPS if first in contract.features]
    tiles = contract.window**2
    starts += [(f"map: {name}", len(contract.features) + k * tiles) for k, name in enumerate(contract.channels)]
    ends = [at for _, at in starts[1:]] + [contract.size]
    return {name: range(at, end) for (name, at), end in zip(starts, ends, strict=True)}


@inlined
def share(part: int, whole: int) -> Any:
    """part / whole in 32 bits: of whole numbers below 2²⁴ it is what 64 bits, rounded, would give."""
    return np.float32(part) / np.float32(whole)


@inlined
def bearing(law: Any, here: Any, tile: int, place: int, row: Any, at: int) -> None:
    """Which way and how near: dx and dy as shares of the way, nearness from 1 (there) towards 0."""
    there = law.place[place]
    dx, dy = there.x - here.x, there.y - here.y
    steps = abs(dx) + abs(dy) + 1
    row[at], row[at + 1] = share(dx, steps), share(dy, steps)
    row[at + 2] = share(8, 8 + int(law.far[place, tile]))


@inlined
def _features(law: Any, town: Any, people: Any, things: Any, who: Any, i: int, row: Any) -> None:
    """The features of one resident up to the things; zeros for who is not there."""
    person = people[i]
    for k in range(SIGHT):
        row[k] = 0
    for k in range(N_NEEDS):
        row[k] = person.need[k] * UNITS
    at = N_NEEDS
    money = person.money
    row[at] = money / (money + 5 * MONEY)
    for k in range(N_ITEMS):
        if person.item[k]:
            row[at + 1 + k] = min(1, person.item[k] / max(1, law.n.most_items[k]))
    row[SHIFT + person.shift] = 1
    _busy(law, town, person, things, i, row)
    tile, home, job = index(person.tile), person.home, person.job
    here = law.tile[tile]
    if home >= 0:
        bearing(law, here, tile, home, row, PLACES)
    if job >= 0:
        bearing(law, here, tile, index(law.n.job_spot[job] + person.job_slot), row, PLACES + 3)
    if is_invited(town, i):
        bearing(law, here, tile, index(town.meeting_place), row, PLACES + 6)


@inlined
def _busy(law: Any, town: Any, person: Any, things: Any, i: int, row: Any) -> None:
    """Work, and what one does or waits for."""
    job, doing, queue, blocked = person.job, person.doing, person.queue, person.blocked
    if job >= 0:
        time, start, end = town.time, law.n.job_start[job], law.n.job_end[job]
        row[BUSY] = share(start - time if start >= time else start - time + law.n.day, law.n.day)
        row[BUSY + 1] = share(end - time, end - start) if start <= time < end else 0
        if person.worked:
            row[BUSY + 2] = min(1, person.worked / (end - start))
    if doing >= 0:
        row[BUSY + 3] = 1
        row[BUSY + 4] = person.left / law.n.aff_duration[doing]
    if queue >= 0:
        row[BUSY + 5] = 1
        row[BUSY + 6] = person.waited / (person.waited + 30)
        row[BUSY + 7] = things[queue].held_for == i
    if blocked:
        row[BUSY + 8] = share(blocked, blocked + 3)
    row[BUSY + 9] = person.success
    row[BUSY + 10] = person.fresh


@inlined
def _things(law: Any, tile: int, things: Any, row: Any) -> None:
    """The nearest thing of each type, and whether it is free; walls on the four sides."""
    here = law.tile[tile]
    for k in range(law.sight.shape[1]):
        row[SIGHT + k] = law.sight[tile, k]
    for kind in range(law.n.n_types):
        o = here.nearest[kind]
        row[SIGHT + 4 * kind + 3] = o >= 0 and things[o].holder < 0


@inlined
def _beside(law: Any, person: Any, who: Any, row: Any) -> None:
    """Residents on the four sides, and how one stands with them."""
    here = law.tile[index(person.tile)]
    trust, rivalry = 0, 0
    for way in range(4):
        near = here.near[way]
        other = who[near] if near >= 0 else -1
        row[way] = other >= 0
        if other >= 0:
            k = tie(law, person, other)
            if k >= 0:
                trust, rivalry = max(trust, person.tie_trust[k]), max(rivalry, person.tie_rivalry[k])
    row[4], row[5] = trust * UNITS, rivalry * UNITS


@inlined
def _ties(law: Any, people: Any, person: Any, row: Any) -> None:
    """How many, how good, and where the best friend and the worst rival are."""
    count, trust, friend, rival, warmest, worst = 0, 0, 0, 0, NO_WARMTH, -1
    for k in range(law.n.most_ties):
        if person.tie_to[k] >= 0:
            count += 1
            trust += person.tie_trust[k]
            warmth = person.tie_trust[k] + person.tie_familiarity[k]
            if warmth > warmest:
                warmest, friend = warmth, k
            if person.tie_rivalry[k] > worst:
                worst, rival = person.tie_rivalry[k], k
    if count == 0:
        for k in range(8):
            row[k] = 0
        return
    row[0] = share(count, law.n.most_ties)
    row[1] = share(trust, count * UNIT)
    row[2] = share(warmest, 2 * UNIT)
    row[3] = worst * UNITS
    here = law.tile[index(person.tile)]
    _towards(here, law.tile[index(people[index(person.tie_to[friend])].tile)], row, 4)
    _towards(here, law.tile[index(people[index(person.tie_to[rival])].tile)], row, 6)


@inlined
def _towards(here: Any, there: Any, row: Any, at: int) -> None:
    dx, dy = there.x - here.x, there.y - here.y
    steps = abs(dx) + abs(dy) + 1
    row[at], row[at + 1] = share(dx, steps), share(dy, steps)


@jit
def around(law: Any, people: Any, things: Any, who: Any, i: int, out: Any) -> None:
    """The map round one resident, channel by channel; beyond the edge it is all zeros."""
    person, width = people[i], law.n.width
    out[:] = 0
    if not person.alive:
        return
    channels, size = out.shape[0], out.shape[1]
    height = law.n.tiles // width
    left, top = law.tile[person.tile].x - size // 2, law.tile[person.tile].y - size // 2
    for v in range(size):
        y = top + v
        if y < 0 or y >= height:
            continue
        for u in range(size):
            x = left + u
            if x < 0 or x >= width:
                continue
            tile = y * width + x
            there = law.tile[tile]
            out[0, v, u] = there.walk
            other = who[tile]
            out[1, v, u] = other >= 0
            o = there.thing_at
            if o >= 0:
                out[2, v, u] = (law.place[o].kind + 1) / law.n.n_types
                out[3, v, u] = things[o].holder >= 0
            if channels > 4:
                if other >= 0 and other != i:
                    k = tie(law, person, other)
                    if k >= 0:
                        out[4, v, u] = (person.tie_trust[k] - person.tie_rivalry[k]) / UNIT
                if person.home >= 0:
                    out[5, v, u] = 8 / (8 + int(law.far[person.home, tile]))
                if person.job >= 0:
                    out[6, v, u] = 8 / (8 + int(law.far[law.n.job_spot[person.job] + person.job_slot, tile]))
                out[7, v, u] = there.is_indoors


@jit
def observe(law: Any, towns: Any, people: Any, things: Any, who: Any, features: Any, maps: Any) -> None:
    for b in range(towns.size):
        observe_world(law, towns[b], people[b], things[b], who[b], features[b], maps[b])


@jit
def observe_world(law: Any, town: Any, people: Any, things: Any, who: Any, features: Any, maps: Any) -> None:
    """Row by row; what is the same for all residents is looked up once."""
    beside = SIGHT + law.sight.shape[1]
    ties = beside + 6
    rest = ties + 8
    time_sin, time_cos = law.clock[town.time, 0], law.clock[town.time, 1]
    has_power, has_water = np.float32(power(town)), np.float32(water(town))
    is_dear, is_raining = np.float32(town.until[SPIKE] > town.tick), np.float32(town.until[RAIN] > town.tick)
    is_feast = np.float32(town.until[FESTIVAL] > town.tick)
    for i in range(people.size):
        person = people[i]
        if not person.alive:
            for k in range(features.shape[1]):
                features[i, k] = 0
            continue
        _features(law, town, people, things, who, i, features[i])
        features[i, TIME], features[i, TIME + 1] = time_sin, time_cos
        _things(law, index(person.tile), things, features[i])
        _beside(law, person, who, features[i, beside:ties])
        _ties(law, people, person, features[i, ties:rest])
        row = features[i, rest:]
        row[0], row[1], row[2], row[3], row[4] = has_power, has_water, is_dear, is_raining, is_feast
        for k in range(len(TRAITS)):
            row[5 + k] = person.trait[k] * UNITS
        row[SELF] = share(person.slot, law.n.slots)
        row[SELF + 1] = min(1, person.low_ticks / law.n.collapse_ticks) if person.low_ticks else 0
        row[SELF + 2] = min(1, person.unpaid / law.n.unpaid_days) if person.unpaid else 0
        row[SELF + 3] = min(1, person.neglect / max(1, law.n.neglect_ticks)) if person.neglect else 0
    if maps.shape[1] > 0:
        for i in range(people.size):
            around(law, people, things, who, i, maps[i])


def empty(contract: ObservationSpec, worlds: int, residents: int) -> tuple[Any, Any]:
    """Room for what is seen: [B, A, features] and [B, A, channels, window, window]."""
    features = np.zeros((worlds, residents, len(contract.features)), np.float32)
    return features, np.zeros((worlds, residents, *contract.map_shape), np.float32)
