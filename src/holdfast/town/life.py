"""Needs that run down, dawn with rent and deliveries, why a resident has to leave, and who comes in their place.

The number of exits a day is limited, and there is a pause between two. Nobody has to leave during a perturbation or
shortly after it.
"""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import (
    COLLAPSE,
    ENERGY,
    EVICTION,
    FESTIVAL,
    HUNGER,
    HYGIENE,
    JOBLESS,
    N_ITEMS,
    N_NEEDS,
    NEGLECT,
    RAIN,
    SOCIAL,
)
from holdfast.town.kernel import (
    ARRIVAL,
    EXIT,
    RENT_UNPAID,
    RESTOCK,
    SPAWN_STREAM,
    START_STREAM,
    below,
    draw,
    inlined,
    jit,
    tell,
)
from holdfast.town.perturbations import is_hard
from holdfast.town.places import abort, leave_queue
from holdfast.town.relationships import drop
from holdfast.town.rewards import potential
from holdfast.town.rules import UNIT
from holdfast.town.state import OFF
from holdfast.town.work import hire

IN_USE, NEVER = -2, -1  # of a slot


@jit
def dawn(law: Any, town: Any, people: Any, ring: Any) -> None:
    """Once a day: rent is due, and counts begin anew."""
    if town.time or town.tick == 0:
        return
    town.exits_today = town.job_exits_today = 0
    for i in range(people.size):
        person = people[i]
        if not person.alive:
            continue
        person.neglect = 0
        if person.money >= law.n.rent:
            person.money -= law.n.rent
            town.treasury += law.n.rent
            person.unpaid = 0
        else:
            person.unpaid = min(person.unpaid + 1, 255)
            tell(town, ring, RENT_UNPAID, i, -1, person.unpaid)


@jit
def deliver(law: Any, town: Any, things: Any, ring: Any) -> None:
    """The truck: everything is filled up at its hour."""
    time = town.time
    for kind in range(law.n.n_types):
        if law.n.stock_hour[kind] != time:
            continue
        brought = 0
        for o in range(law.n.type_first[kind], law.n.type_first[kind] + law.n.type_count[kind]):
            more = max(0, law.n.stock_most[kind] - things[o].stock)
            things[o].stock += more
            brought += more
        town.delivered += brought
        tell(town, ring, RESTOCK, kind, -1, brought)


@inlined
def cause_of(law: Any, town: Any, person: Any) -> int:
    """Why the resident would have to leave, or 0."""
    if person.low_ticks >= law.n.collapse_ticks:
        return COLLAPSE
    if person.unpaid >= law.n.unpaid_days:
        return EVICTION
    if person.neglect >= law.n.neglect_ticks:
        return NEGLECT
    if law.n.with_work and town.tick - person.jobless_since >= law.n.jobless_ticks:
        return JOBLESS
    return 0


@jit
def exits(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any) -> None:
    """Needs that were too low for too long are counted, and those leave who must and may."""
    is_held = is_hard(town) or (town.calm_at > 0 and town.tick - town.calm_at < law.n.exit_grace)
    for i in range(people.size):
        person = people[i]
        person.cause = 0
        if not person.alive:
            continue
        person.low_ticks = person.low_ticks + 1 if person.need[HUNGER] <= law.n.collapse_below else 0
        for k in range(N_NEEDS):
            if person.need[k] < law.n.neglect_below:
                person.neglect += 1
                town.deficit_ticks += 1
                break
        cause = cause_of(law, town, person)
        if not cause or not town.mortal or is_held:
            continue
        if town.exits_today >= law.n.exits_per_day or town.tick < town.exit_ready:
            continue
        depart(law, town, people, things, who, slots, ring, i, cause)


@jit
def depart(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any, i: int, cause: int) -> None:
    """A resident is gone, with everything that held them here."""
    person = people[i]
    if person.doing >= 0:
        abort(law, town, people, things, ring, i)
    leave_queue(law, town, people, things, ring, i)
    for o in range(things.size):
        if things[o].last_user == i:
            things[o].last_user = -1
    who[person.tile] = -1
    town.outside += person.money
    for k in range(N_ITEMS):
        town.lost += person.item[k]
        person.item[k] = 0
    for j in range(people.size):
        for k in range(law.n.most_ties):
            if people[j].tie_to[k] == i:
                drop(people[j], k)
        if people[j].behind == i:
            people[j].behind = -1
        if people[j].blocker == i:
            people[j].blocker = -1
    for k in range(law.n.most_ties):
        drop(person, k)
    slots[person.slot] = town.tick
    person.money, person.alive, person.cause, person.left_at = 0, 0, cause, town.tick
    person.home, person.job, person.job_slot, person.shift, person.goal = -1, -1, -1, OFF, -1
    span = law.n.respawn_high - law.n.respawn_low + 1
    person.respawn_at = town.tick + law.n.respawn_low + below(draw(town.seed, town.tick, SPAWN_STREAM, i), span)
    town.exits_today += 1
    town.exits += 1
    town.exit_ready = town.tick + law.n.exit_cooldown
    tell(town, ring, EXIT, i, cause, town.tick - person.born)


@jit
def arrivals(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any) -> None:
    """New residents walk in by the road, when their time, a tile and an identity are there."""
    for i in range(people.size):
        person = people[i]
        if person.alive:
            person.fresh = 0
            continue
        if town.tick < person.respawn_at:
            continue
        slot = free_slot(law, town, slots)
        if slot < 0:
            continue
        for k in range(law.n.n_entries):
            tile = law.n.entries[(i + k) % law.n.n_entries]
            if who[tile] < 0:
                settle(law, town, people, who, slots, i, tile, slot)
                hire_now = below(draw(town.seed, town.tick, SPAWN_STREAM, 1000 + i), 2) == 0
                if law.n.with_work and hire_now:
                    hire(law, town, people, ring, i)
                tell(town, ring, ARRIVAL, i, -1, slot)
                break


@jit
def free_slot(law: Any, town: Any, slots: Any) -> int:
    """One that was never used, else the one that has rested longest; -1 where none has rested enough."""
    best, since = -1, 1 << 60
    for k in range(slots.size):
        if slots[k] == NEVER:
            return k
        if slots[k] >= 0 and slots[k] < since:
            best, since = k, slots[k]
    return best if best >= 0 and town.tick - since >= law.n.slot_cooldown else -1


@jit
def settle(law: Any, town: Any, people: Any, who: Any, slots: Any, i: int, tile: int, slot: int) -> None:
    """A new resident with a starter kit, a nature and a home."""
    person = people[i]
    slots[slot] = IN_USE
    town.births += 1
    town.spawns += 1
    person.alive, person.tile, person.slot, person.born, person.fresh = 1, tile, slot, town.tick, 1
    who[tile] = i
    person.money = law.n.starter_money
    town.outside -= law.n.starter_money
    for k in range(N_ITEMS):
        person.item[k] = law.n.starter[k]
        town.delivered += law.n.starter[k]
    for k in range(N_NEEDS):
        person.need[k] = 600_000 + below(draw(town.seed, town.tick, START_STREAM, 10 * i + k), 350_000)
    nature(law, town, person)
    person.home = free_bed(law, people, i)
    person.job, person.job_slot, person.shift, person.hire_at = -1, -1, OFF, town.tick + law.n.hour
    person.jobless_since = town.tick
    person.doing = person.using = person.queue = person.goal = person.blocker = person.behind = -1
    person.goal_kind = -1
    person.left = person.low_ticks = person.neglect = person.worked = person.away = person.waited = 0
    person.blocked = person.avoided = person.last_action = 0
    person.unpaid = person.cause = person.was_late = person.success = 0
    person.paid = person.earned = person.chat_gain = person.reward = person.returned = 0
    person.met_at = person.left_at = -1
    person.chat_at = person.avoided_at = town.tick - law.n.day
    person.shaped = potential(law, person)
    person.tokens, person.refill_at = 1, town.tick + law.n.refill
    for day in range(7):
        person.absent[day] = 0
    for k in range(person.tie_to.size):
        drop(person, k)


@jit
def nature(law: Any, town: Any, person: Any) -> None:
    """Natures come in their shares, spread evenly over the births: the bits of their number in reverse."""
    count, turned = town.births, 0
    for _ in range(32):
        turned = (turned << 1) | (count & 1)
        count >>= 1
    profile = 0
    while profile + 1 < law.n.n_profiles and turned >= law.n.profile_upto[profile]:
        profile += 1
    person.profile = profile
    for k in range(person.trait.size):
        person.trait[k] = law.n.traits[profile, k] if law.n.with_traits else 0


@jit
def free_bed(law: Any, people: Any, i: int) -> int:
    for turn in range(law.n.bed_count):
        bed = law.n.bed_first + (i + turn) % law.n.bed_count
        is_taken = False
        for j in range(people.size):
            if j != i and people[j].alive and people[j].home == bed:
                is_taken = True
                break
        if not is_taken:
            return int(bed)
    return -1


@jit
def found(law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any) -> None:
    """The first morning: everybody is at home and has work."""
    town.mortal, town.meeting_a, town.meeting_b, town.meeting_place = 1, -1, -1, -1
    for o in range(things.size):
        kind = law.place[o].kind
        things[o].holder = things[o].held_for = things[o].last_user = -1
        things[o].stock = law.n.stock_start[kind]
        town.delivered += law.n.stock_start[kind]
        things[o].used_at = -1
    for i in range(people.size):
        home = law.n.bed_first + i % law.n.bed_count
        tile, least = -1, 1 << 30
        for one in range(law.n.tiles):
            if law.tile[one].walk and who[one] < 0 and law.far[home, one] < least:
                tile, least = one, law.far[home, one]
        settle(law, town, people, who, slots, i, tile, i % slots.size)
        if law.n.with_work:
            hire(law, town, people, ring, i)


@jit
def wear(law: Any, town: Any, people: Any) -> None:
    is_raining, is_feast = town.until[RAIN] > town.tick, town.until[FESTIVAL] > town.tick
    for i in range(people.size):
        person = people[i]
        if not person.alive:
            continue
        profile = person.profile if law.n.with_traits else 0
        is_wet = is_raining and not law.tile[person.tile].is_indoors
        for k in range(N_NEEDS):
            if k == SOCIAL and not law.n.with_ties:
                continue  # alone it could never be met
            loss = law.n.decay[profile, k]
            if is_wet and (k in (HYGIENE, ENERGY)):
                loss = loss * 3 // 2
            if is_feast and k == SOCIAL and law.tile[person.tile].is_park:
                loss = -4 * loss
            value = person.need[k] - loss
            person.need[k] = 0 if value < 0 else UNIT if value > UNIT else value
