"""Rules as whole numbers, which the kernels read; so every machine agrees on every bit."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from holdfast.town.hook_registry import SHARED_MEAL
from holdfast.town.rules import (
    CAUSES,
    DEPTH,
    FAR,
    GONE,
    ITEMS,
    MONEY,
    MOST_AFFORDANCES,
    MOST_CODE,
    MOST_JOBS,
    MOST_PROFILES,
    MOST_TYPES,
    NAMES,
    NEEDS,
    STAGES,
    TRAITS,
    TROUBLES,
    UNIT,
    Grid,
    Rules,
    compile_condition,
    distances,
    hooks_of,
)

Ints = NDArray[np.int64]
N_NEEDS, N_ITEMS = len(NEEDS), len(ITEMS)
HUNGER, HYGIENE, ENERGY, SOCIAL = range(N_NEEDS)
RAW, MEAL = range(N_ITEMS)
SPIKE, BLACKOUT, OUTAGE, MEETING, RAIN, FESTIVAL = range(len(TROUBLES))
N_TROUBLES = len(TROUBLES)
COLLAPSE, EVICTION, NEGLECT, JOBLESS = range(1, len(CAUSES) + 1)  # 0: none
MEETING_PLACES = 8

# Single numbers of the law, one field each: a record has one type whatever it holds, so kernels are compiled once.
NUMBERS = (
    "day", "hour", "residents", "width", "tiles", "things", "places", "first_meeting", "meetings", "n_jobs", "n_affs",
    "n_types", "n_profiles", "n_entries", "bed",
    "bed_first", "bed_count", "grace", "absent_after", "late_fine", "absent_fine", "most_absences",
    "job_exits", "rehire_after", "rent", "collapse_below", "collapse_ticks", "neglect_below", "neglect_ticks",
    "unpaid_days", "jobless_ticks", "exits_per_day", "exit_cooldown", "exit_grace", "respawn_low", "respawn_high",
    "starter_money", "slots", "slot_cooldown", "reach", "hold", "use_cooldown", "ghost_after", "conflict_after",
    "most_ties", "chat_trust", "chat_familiarity", "chat_social", "chat_base", "chat_cooldown", "diminish",
    "meal_social", "decay_every", "avoid_at", "most_at_once", "trouble_cooldown", "per_resident", "bucket", "refill",
    "alive", "deficit", "wage", "punctual", "chat", "avoid", "shaping", "gamma", "squash", "no_positive",
    "needs_first", "spike_factor", "with_work", "with_ties", "with_chat", "with_avoid", "with_trouble", "with_traits",
)  # fmt: skip
MOST_ENTRIES = 16  # by which residents come; more are not used
_AFF, _JOB, _TYPE, _TROUBLE = (MOST_AFFORDANCES,), (MOST_JOBS,), (MOST_TYPES,), (N_TROUBLES,)
TABLES: dict[str, tuple[int, ...]] = {
    "weight": (N_NEEDS,), "low": (N_NEEDS,), "decay": (MOST_PROFILES, N_NEEDS),  # of needs; decay of a tick
    "most_items": (N_ITEMS,), "starter": (N_ITEMS,),
    "traits": (MOST_PROFILES, len(TRAITS)), "profile_upto": (MOST_PROFILES,),  # cumulative share × 2³²
    "type_first": _TYPE, "type_count": _TYPE, "stock_most": _TYPE, "stock_start": _TYPE, "stock_hour": _TYPE,
    "aff_type": _AFF, "aff_duration": _AFF, "aff_per_tick": _AFF, "aff_until": _AFF, "aff_price": _AFF,
    "aff_uses": _AFF, "aff_hooks": _AFF, "aff_power": _AFF, "aff_water": _AFF, "code_first": (MOST_AFFORDANCES + 1,),
    "aff_effect": (MOST_AFFORDANCES, N_NEEDS), "aff_takes": (MOST_AFFORDANCES, N_ITEMS),
    "aff_gives": (MOST_AFFORDANCES, N_ITEMS), "code": (MOST_CODE, 2),
    "job_venue": _JOB, "job_start": _JOB, "job_end": _JOB, "job_wage": _JOB, "job_slots": _JOB, "job_spot": _JOB,
    "tie_meal": (3,), "tie_help": (3,), "tie_conflict": (3,), "tie_rebuff": (3,), "tie_meeting": (3,),
    "tie_decay": (3,),  # each: trust, familiarity, rivalry
    "trouble_chance": _TROUBLE, "trouble_low": _TROUBLE, "trouble_high": _TROUBLE, "trouble_pause": _TROUBLE,
    "terminal": (len(GONE) + 1,), "entries": (MOST_ENTRIES,),
    "stack": (DEPTH,), "values": (len(NAMES),),  # scratch of conditions
}  # fmt: skip
NUMBER = np.dtype([*((name, np.int64) for name in NUMBERS), *((name, np.int64, size) for name, size in TABLES.items())])
TILE = np.dtype(
    [("near", np.int32, (4,)),  # the tiles north, east, south and west, -1 beyond the edge
     ("touch", np.int32),  # the types of things here or beside, a bit each
     ("x", np.int16), ("y", np.int16), ("venue", np.int16), ("thing_at", np.int16),
     ("walk", np.uint8), ("ways", np.uint8),  # ways: which of those near can be walked on, a bit each
     ("is_indoors", np.uint8), ("is_park", np.uint8), ("is_door", np.uint8), ("nearest", np.int16, _TYPE)],
    align=True,
)  # fmt: skip
PLACE = np.dtype(  # kind: the type of a thing; -1: no thing stands there
    [("tile", np.int32), ("kind", np.int32), ("x", np.int32), ("y", np.int32)], align=True
)


class CompiledRules(NamedTuple):
    n: Any  # one record of NUMBER
    tile: NDArray[Any]  # [tile] of TILE
    place: NDArray[Any]  # [place] of PLACE: things, then work spots, then meeting places
    far: NDArray[np.uint16]  # [place, tile]: steps
    clock: NDArray[np.float32]  # [tick of the day, 2]: sine and cosine
    sight: NDArray[np.float32]  # [tile, 4 × type + 4]: of the nearest: dx, dy, nearness, room for one; then walls


def compile_rules(rules: Rules) -> CompiledRules:
    """The numbers of the rules."""
    grid, values = rules.grid, rules.values
    types = list(dict.fromkeys(values["map"]["objects"].values()))
    tile, (venue, park) = np.zeros(grid.width * grid.height, TILE), _venues(rules)
    thing_tile = [at for _, at in grid.objects]
    spots, first_spot = _spots(rules, venue)
    meetings = _meetings(rules, park)
    place = np.zeros(len(thing_tile) + len(spots) + len(meetings), PLACE)
    place["tile"], place["kind"] = [*thing_tile, *spots, *meetings], -1
    place["x"], place["y"] = place["tile"] % grid.width, place["tile"] // grid.width
    place["kind"][: len(thing_tile)] = [types.index(kind) for kind, _ in grid.objects]
    far = _far(grid, thing_tile, [*spots, *meetings])
    number = np.zeros(1, NUMBER)[0]
    count, first = _census(place["kind"], len(types))
    for kind in range(len(types)):
        of_kind = far[first[kind] : first[kind] + count[kind]]
        tile["nearest"][:, kind] = first[kind] + of_kind.argmin(axis=0) if count[kind] else -1
    tile["walk"], tile["venue"], tile["is_park"], tile["thing_at"] = grid.walkable, venue, park, -1
    tile["is_indoors"] = (venue >= 0) & (park == 0)
    tile["is_door"] = [glyph in values["map"]["doors"] for glyph in grid.glyphs]
    tile["thing_at"][thing_tile] = range(len(thing_tile))
    _surroundings(grid, tile, place["kind"])
    bed = types.index("bed")
    layout = {
        "width": grid.width, "tiles": len(tile), "things": len(thing_tile), "places": len(far), "n_types": len(types),
        "first_meeting": len(thing_tile) + len(spots), "meetings": len(meetings), "bed": bed, "bed_first": first[bed],
        "bed_count": count[bed], "n_jobs": len(values["job"]), "n_affs": len(values["affordance"]),
        "n_profiles": len(values["profile"]), "n_entries": len(grid.entries[:MOST_ENTRIES]),
        "type_first": first, "type_count": count, "entries": grid.entries[:MOST_ENTRIES],
    }  # fmt: skip
    parts = [_numbers(rules), layout, _affordances(rules, types), _stock(rules, types), _people(rules), _ties(rules)]
    for part in (*parts, _jobs(rules, first_spot, len(thing_tile)), _troubles(rules)):
        for name, value in part.items():
            _put(number, name, value)
    turn = 2 * np.pi * np.arange(values["ticks_per_day"]) / values["ticks_per_day"]
    clock = np.stack((np.sin(turn), np.cos(turn)), axis=1).astype(np.float32)
    return CompiledRules(
        n=number, tile=tile, place=place, far=far, clock=clock, sight=_sight(tile, place, far, len(types))
    )


def _sight(tile: NDArray[Any], place: NDArray[Any], far: NDArray[np.uint16], types: int) -> NDArray[np.float32]:
    """What `observations.bearing` would give for the nearest thing of every type, and on which sides there are walls:
    what never changes."""
    sight = np.zeros((len(tile), types + 1, 4), np.float32)
    for kind in range(types):
        o = tile["nearest"][:, kind]
        dx, dy = place["x"][o] - tile["x"], place["y"][o] - tile["y"]
        steps = np.abs(dx) + np.abs(dy) + 1
        seen = np.stack((dx / steps, dy / steps, 8 / (8.0 + far[o, range(len(tile))])), axis=1)
        sight[:, kind, :3] = np.where(o[:, None] >= 0, seen, 0)
    sight[:, types] = 1 - (tile["ways"][:, None] >> np.arange(4) & 1)
    return sight.reshape(len(tile), -1)


def _far(grid: Grid, things: list[int], spots: list[int]) -> NDArray[np.uint16]:
    """Steps from every tile to beside every thing, and to every spot; who uses a thing is on its tile."""
    far = np.stack([distances(grid, grid.beside(at)) for at in things] + [distances(grid, [at]) for at in spots])
    for at in things:  # who is on it has to get up first
        far[:, at] = np.minimum(far[:, grid.beside(at)].min(axis=1).astype(np.int64) + 1, FAR)
    far[range(len(things)), things] = 0
    return far


def _surroundings(grid: Grid, tile: NDArray[Any], kinds: NDArray[np.int32]) -> None:
    steps, here = (-grid.width, 1, grid.width, -1), np.arange(len(tile))
    tile["x"], tile["y"] = here % grid.width, here // grid.width
    inside = (tile["y"] > 0, tile["x"] < grid.width - 1, tile["y"] < grid.height - 1, tile["x"] > 0)
    for way, step in enumerate(steps):
        tile["near"][:, way] = np.where(inside[way], here + step, -1)
    for at in range(len(tile)):
        around = grid.beside(at)
        tile["ways"][at] = sum(1 << way for way, step in enumerate(steps) if at + step in around)
        o = int(tile["thing_at"][at])
        for near in (at, *around) if o >= 0 else ():
            tile["touch"][near] |= 1 << int(kinds[o])


def _put(number: Any, name: str, value: Any) -> None:
    """One field; a table is filled from its beginning."""
    if name in TABLES:
        array = np.asarray(value, np.int64)
        number[name][tuple(slice(0, size) for size in array.shape)] = array
    else:
        number[name] = round(value)


def _census(kinds: NDArray[np.int32], types: int) -> tuple[Ints, Ints]:
    """How many things of each type there are, and which is the first."""
    count = np.array([(kinds == one).sum() for one in range(types)], np.int64)
    first = np.array([int(np.argmax(kinds == one)) for one in range(types)], np.int64)
    return count, first


def _unit(value: float) -> int:
    return round(value * UNIT)


def _numbers(rules: Rules) -> dict[str, float]:
    v = rules.values
    day, life, work, ties = v["ticks_per_day"], v["lifecycle"], v["employment"], v["ties"]
    queue, plan, pay, on = v["queues"], v["scheduler"], v["rewards"], v["stages"]["on"]
    spike = next((one.get("factor", 1.0) for one in v["trouble"] if one["id"] == "price_spike"), 1.0)
    payload = {
        "day": day, "hour": day // 24, "residents": v["residents"],
        "grace": work["grace"], "absent_after": work["absent_after"], "late_fine": work["late_fine"] * MONEY,
        "absent_fine": work["absent_fine"] * MONEY, "most_absences": work["most_absences"],
        "job_exits": work["exits_per_day"], "rehire_after": work["rehire_after"], "rent": v["economy"]["rent"] * MONEY,
        "collapse_below": life["collapse_below"] * UNIT, "collapse_ticks": life["collapse_ticks"],
        "neglect_below": life["neglect_below"] * UNIT, "neglect_ticks": life["neglect_share"] * day,
        "unpaid_days": life["unpaid_days"], "jobless_ticks": life["jobless_days"] * day,
        "exits_per_day": life["exits_per_day"], "exit_cooldown": life["cooldown"], "exit_grace": life["grace"],
        "respawn_low": life["respawn"][0], "respawn_high": life["respawn"][1],
        "starter_money": life["starter_money"] * MONEY, "slots": life["slots"], "slot_cooldown": life["slot_cooldown"],
        "reach": queue["reach"], "hold": queue["hold"], "use_cooldown": queue["cooldown"],
        "ghost_after": queue["ghost_after"], "conflict_after": queue["conflict_after"],
        "most_ties": ties["most"], "chat_trust": ties["chat"]["trust"] * UNIT,
        "chat_familiarity": ties["chat"]["familiarity"] * UNIT, "chat_social": ties["chat"]["social"] * UNIT,
        "chat_base": ties["chat"]["base"] * UNIT, "chat_cooldown": ties["chat"]["cooldown"],
        "diminish": ties["diminish"], "meal_social": ties["meal"]["social"] * UNIT, "decay_every": ties["decay_every"],
        "avoid_at": ties["avoid_at"] * UNIT, "most_at_once": plan["most_at_once"],
        "trouble_cooldown": plan["cooldown"], "per_resident": plan["per_resident"], "bucket": plan["bucket"],
        "refill": plan["bucket_refill"], "alive": pay["alive"] * UNIT, "deficit": pay["deficit"] * UNIT,
        "wage": pay["wage"] * UNIT, "punctual": pay["punctual"] * UNIT, "chat": pay["chat"] * UNIT,
        "avoid": pay["avoid"] * UNIT, "shaping": pay["shaping"] * UNIT, "gamma": pay["gamma"] * UNIT,
        "squash": pay["squash"] * UNIT, "no_positive": pay["no_positive_before_exit"],
        "needs_first": pay["needs_first"] * UNIT, "spike_factor": spike * 1000,
    }  # fmt: skip
    stages = ("work", "ties", "chat_rewards", "avoidance_rewards", "trouble", "personalities")
    assert set(stages) < set(STAGES)
    names = ("work", "ties", "chat", "avoid", "trouble", "traits")
    return payload | {f"with_{name}": stage in on for name, stage in zip(names, stages, strict=True)}


def _venues(rules: Rules) -> tuple[NDArray[np.int16], NDArray[np.uint8]]:
    width, tiles = rules.grid.width, rules.grid.width * rules.grid.height
    venue = np.full(tiles, -1, np.int16)
    park = np.zeros(tiles, np.uint8)
    for place, entry in enumerate(rules["venue"]):
        left, top, right, bottom = entry["area"]
        inside = [y * width + x for y in range(top, bottom + 1) for x in range(left, right + 1)]
        venue[inside] = place
        park[inside] = entry["kind"] == "park"
    return venue, park


def _spots(rules: Rules, venue: NDArray[np.int16]) -> tuple[list[int], list[int]]:
    """A tile for each who works somewhere at one time, out of the way and spread out; jobs whose shifts do not overlap
    share them. Then, which is the first of each job."""
    grid, jobs, spots = rules.grid, rules["job"], []  # type: ignore[var-annotated]
    offset: list[int] = []
    for place, job in enumerate(jobs):
        beside = [k for k in range(place) if jobs[k]["venue"] == job["venue"] and _overlap(jobs[k], job)]
        offset.append(max((offset[k] + jobs[k]["slots"] for k in beside), default=0))
    names, first_of = [one["id"] for one in rules["venue"]], {}
    for name in dict.fromkeys(job["venue"] for job in jobs):
        count = max(offset[k] + job["slots"] for k, job in enumerate(jobs) if job["venue"] == name)
        free = _out_of_the_way(rules, np.flatnonzero(venue == names.index(name)).tolist(), count)
        first_of[name] = len(spots)
        spots += _in_pairs(grid, free, count)
    return spots, [first_of[job["venue"]] + offset[k] for k, job in enumerate(jobs)]


def _in_pairs(grid: Grid, free: list[int], count: int) -> list[int]:
    """So many of the tiles, spread out, each second one beside the one before: nobody works alone."""
    spots: list[int] = []
    for place in range(count):
        beside = grid.beside(spots[-1]) if place % 2 else []
        first = (place * len(free)) // count
        wanted = [t for t in beside if t in free] + free[first:] + free[:first]
        spots.append(next((t for t in wanted if t not in spots), wanted[0]))
    return spots


def _overlap(one: Any, other: Any) -> bool:
    return bool(one["start"] < other["end"] and other["start"] < one["end"])


def _out_of_the_way(rules: Rules, tiles: list[int], count: int) -> list[int]:
    """Tiles to stand on for long: not in doors or before them, not where a thing is used; less strict where few are."""
    grid, doors = rules.grid, rules["map"]["doors"]
    used = {entry["object"] for entry in rules["affordance"]}
    steps = (-grid.width, 1, grid.width, -1)
    busy = {at + step for kind, at in grid.objects if kind in used for step in steps}
    floor = [t for t in tiles if grid.walkable[t]]
    inside = [t for t in floor if grid.glyphs[t] not in doors]
    calm = [t for t in inside if not any(grid.glyphs[near] in doors for near in grid.beside(t))]
    away = [t for t in calm if t not in busy]
    return next((found for found in (away, calm, inside) if len(found) >= count), floor)


def _meetings(rules: Rules, park: NDArray[np.uint8]) -> list[int]:
    tiles = [int(t) for t in np.flatnonzero(park) if rules.grid.walkable[t]] or list(rules.grid.entries)
    return [tiles[(place * len(tiles)) // MEETING_PLACES] for place in range(MEETING_PLACES)]


def _affordances(rules: Rules, types: list[str]) -> dict[str, Ints]:
    entries, prices, code, first = rules["affordance"], rules["prices"], [], [0]
    needs_power, needs_water = NAMES["power"][0], NAMES["water"][0]
    power, water = [], []
    for entry in entries:
        own = compile_condition(entry["when"], NAMES) if "when" in entry else []
        code += own
        first.append(len(code))
        power.append((0, needs_power) in own)
        water.append((0, needs_water) in own)
    effect = np.zeros((len(entries), N_NEEDS), np.int64)
    for place, entry in enumerate(entries):
        for need, value in entry["effects"].items():
            share = value / entry["duration"] if entry.get("per_tick") else value
            effect[place, NEEDS.index(need)] = _unit(share)

    def each(value: Any) -> Ints:
        return np.array([value(entry) for entry in entries], np.int64)

    return {
        "aff_type": each(lambda e: types.index(e["object"])),
        "aff_duration": each(lambda e: e["duration"]),
        "aff_per_tick": each(lambda e: bool(e.get("per_tick"))),
        "aff_until": each(lambda e: NEEDS.index(e["until_full"]) if "until_full" in e else -1),
        "aff_effect": effect,
        "aff_price": each(lambda e: round(prices[e["price"]] * MONEY) if "price" in e else 0),
        "aff_takes": each(lambda e: [e.get("takes", {}).get(item, 0) for item in ITEMS]),
        "aff_gives": each(lambda e: [e.get("gives", {}).get(item, 0) for item in ITEMS]),
        "aff_uses": each(lambda e: e.get("uses", 0)),
        "aff_hooks": each(lambda e: SHARED_MEAL in hooks_of(e)["after"]),
        "aff_power": np.array(power, np.int64),
        "aff_water": np.array(water, np.int64),
        "code": np.array(code or [(0, 0)], np.int64),
        "code_first": np.array(first, np.int64),
    }


def _stock(rules: Rules, types: list[str]) -> dict[str, Ints]:
    table, hour = rules["stock"], rules["ticks_per_day"] // 24
    return {
        "stock_most": np.array([table.get(one, {}).get("most", 0) for one in types], np.int64),
        "stock_start": np.array([table.get(one, {}).get("start", 0) for one in types], np.int64),
        "stock_hour": np.array([table[one]["hour"] * hour if one in table else -1 for one in types], np.int64),
    }


def _jobs(rules: Rules, first_spot: list[int], n_things: int) -> dict[str, Ints]:
    jobs, names = rules["job"], [one["id"] for one in rules["venue"]]
    return {
        "job_venue": np.array([names.index(job["venue"]) for job in jobs], np.int64),
        "job_start": np.array([job["start"] for job in jobs], np.int64),
        "job_end": np.array([job["end"] for job in jobs], np.int64),
        "job_wage": np.array([round(job["wage"] * MONEY) for job in jobs], np.int64),
        "job_slots": np.array([job["slots"] for job in jobs], np.int64),
        "job_spot": np.array(first_spot, np.int64) + n_things,
    }


def _people(rules: Rules) -> dict[str, Any]:
    day, needs, profiles = rules["ticks_per_day"], rules["needs"], rules["profile"]
    decay = [
        [_unit(needs[n]["decay"] * profile.get("decay", {}).get(n, 1.0) / day) for n in NEEDS] for profile in profiles
    ]
    causes = rules["rewards"]["terminal"]
    return {
        "decay": np.array(decay, np.int64),
        "weight": np.array([_unit(needs[n]["weight"]) for n in NEEDS], np.int64),
        "low": np.array([_unit(needs[n]["low"]) for n in NEEDS], np.int64),
        "most_items": np.array([rules["items"][item] for item in ITEMS], np.int64),
        "starter": np.array([rules["lifecycle"]["starter_items"].get(item, 0) for item in ITEMS], np.int64),
        "traits": np.array([[_unit(profile["traits"][t]) for t in TRAITS] for profile in profiles], np.int64),
        "profile_upto": np.round(np.cumsum([profile["share"] for profile in profiles]) * 2**32).astype(np.int64),
        "terminal": np.array([0, *(_unit(causes[cause]) for cause in CAUSES)], np.int64),
    }


def _ties(rules: Rules) -> dict[str, Ints]:
    def three(table: Any) -> Ints:
        return np.array([_unit(table.get(part, 0.0)) for part in ("trust", "familiarity", "rivalry")], np.int64)

    ties = rules["ties"]
    names = ("meal", "help", "conflict", "rebuff", "meeting", "decay")
    return {f"tie_{name}": three(ties[name]) for name in names}


def _troubles(rules: Rules) -> dict[str, Ints]:
    troubles, day = {one["id"]: one for one in rules["trouble"]}, rules["ticks_per_day"]
    never = {"per_day": 0.0, "duration": [1, 1], "cooldown": 0}
    rows = [troubles.get(name, never) for name in TROUBLES]
    return {
        "trouble_chance": np.array([round(row["per_day"] / day * 2**32) for row in rows], np.int64),
        "trouble_low": np.array([row["duration"][0] for row in rows], np.int64),
        "trouble_high": np.array([row["duration"][1] for row in rows], np.int64),
        "trouble_pause": np.array([row["cooldown"] for row in rows], np.int64),
    }
