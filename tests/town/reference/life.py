"""Needs, trouble, coming and going, as `town.life` and `town.perturbations` have them."""

from __future__ import annotations

from holdfast.town.rules import CAUSES, ITEMS, MOST_TIES, NEEDS, TRAITS, TROUBLES, Rules
from holdfast.town.state import COUNTS, PERSON, TOWN
from tests.town.reference.places import abort, leave_queue
from tests.town.reference.rewards import potential
from tests.town.reference.ties import both, rivalry
from tests.town.reference.work import hire
from tests.town.reference.world import (
    HARD,
    IN_USE,
    NEVER,
    Layout,
    Person,
    Thing,
    Town,
    World,
    coins,
    counted_needs,
    three,
    units,
    within_unit,
)

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
