"""Where residents are and what they use: steps, paths, queues, and affordances from start to end or to an abort.

One resident stands on a tile. A resident who uses a thing is on its tile and blocks nobody; a resident who stands in
the way is passed after a while (ghost step). A thing has one user; others queue in order, and nobody is pushed out.
"""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import BLACKOUT, N_ITEMS, N_NEEDS, OUTAGE, SPIKE
from holdfast.town.kernel import (
    ABORTED,
    FAILED,
    FINISHED,
    GHOST_STEP,
    HANDOVER,
    QUEUED,
    STARTED,
    index,
    inlined,
    jit,
    tell,
)
from holdfast.town.relationships import avoid, clash, rivalry, share_meal
from holdfast.town.rules import UNIT, holds
from holdfast.town.state import ABSENT, ON_TIME

NO_CONDITION, NO_MONEY, NO_ITEMS, NO_STOCK, TOO_SOON, NOT_THERE, NO_PLACE, NO_HOOK = range(1, 9)  # why it failed
REASONS = ("", "condition", "money", "items", "stock", "cooldown", "not_there", "no_place", "hook")
NOBODY, TO_HOME, TO_WORK, TO_MEETING, TO_TYPE = -1, 0, 1, 2, 3  # kinds of goals


# Steps --------------------------------------------------------------------------------------------------------------


@inlined
def move(law: Any, town: Any, people: Any, who: Any, ring: Any, i: int, way: int) -> bool:
    """One step; in another's way for long enough, the two change places."""
    person = people[i]
    tile = index(person.tile)
    if not law.tile[tile].ways >> way & 1:
        return False
    to = index(law.tile[tile].near[way])
    other = who[to]
    if other < 0:
        who[tile] = -1
        who[to] = i
        person.tile = to
        person.blocked = 0
        town.moves += 1
        return True
    person.blocked += 1
    person.blocker = other
    town.blocked += 1
    there = people[other]
    # In a file, who is first passes first, else those behind change places for ever; but nobody waits long for that.
    is_behind = there.blocked > 0 and there.blocker != i
    if person.blocked <= (4 * law.n.ghost_after if is_behind else law.n.ghost_after):
        return False
    who[tile], who[to] = other, i
    there.tile, person.tile = tile, to
    person.blocked = 0
    town.ghost_steps += 1
    tell(town, ring, GHOST_STEP, i, other, to)
    if law.n.with_ties and there.blocked > 0:
        clash(law, town, people, ring, i, other, 100)
    return True


@inlined
def walk(law: Any, town: Any, people: Any, who: Any, ring: Any, i: int, place: int) -> bool:
    """One step on the shortest way to a place; where two are as short, the one that is free."""
    tile, place = index(people[i].tile), index(place)
    far, here = law.far[place, tile], law.tile[tile]
    if far == 0:
        return True
    best = -1
    turn = i + town.tick  # so that not all take the same of two ways
    for k in range(4):
        way = (k + turn) & 3
        if here.ways >> way & 1:
            to = index(here.near[way])
            if law.far[place, to] < far:
                best = way
                if who[to] < 0:
                    break
    return best >= 0 and move(law, town, people, who, ring, i, best)


@jit
def choose(law: Any, people: Any, things: Any, i: int, kind: int) -> int:
    """The thing of a type to go to: near, free, with few who wait, and with no rival at it. -1: there is none."""
    person, kind = people[i], index(kind)
    tile, first, has_stock = index(person.tile), index(law.n.type_first[kind]), law.n.stock_hour[kind] >= 0
    best, least = -1, 1 << 40
    for o in range(first, first + index(law.n.type_count[kind])):
        far, thing = law.far[o, tile], things[o]
        if far == 65_535:
            continue
        cost = 4 * int(far) + 60 * thing.waiting
        holder = thing.holder
        if holder >= 0 and holder != i:
            cost += 40
            if law.n.with_ties and rivalry(law, person, holder) >= law.n.avoid_at:
                cost += 200
        if has_stock and thing.stock <= 0:
            cost += 1000
        if cost < least:
            best, least = o, cost
    return best


@inlined
def go(law: Any, town: Any, people: Any, things: Any, who: Any, ring: Any, i: int, kind: int) -> bool:
    """A step on the way to one's home, work, meeting or a thing of a type; the choice stays until one arrives."""
    person = people[i]
    if person.goal_kind != kind or person.goal < 0 or kind <= TO_MEETING:
        person.goal_kind = kind
        if kind == TO_HOME:
            person.goal = person.home
        elif kind == TO_WORK:
            person.goal = law.n.job_spot[person.job] + person.job_slot if person.job >= 0 else -1
        elif kind == TO_MEETING:
            person.goal = town.meeting_place if is_invited(town, i) else -1
        else:
            person.goal = choose(law, people, things, i, kind - TO_TYPE)
    if kind >= TO_TYPE and person.queue >= 0 and law.place[person.queue].kind == kind - TO_TYPE:
        person.goal = person.queue
    elif person.goal >= 0 and kind >= TO_TYPE and law.far[person.goal, person.tile] == law.n.reach + 2:
        person.goal = choose(law, people, things, i, kind - TO_TYPE)  # seen from near, it may be taken
    return person.goal >= 0 and walk(law, town, people, who, ring, i, person.goal)


@inlined
def is_invited(town: Any, i: int) -> bool:
    return bool(town.meeting_until > town.tick and (town.meeting_a == i or town.meeting_b == i))


# Using --------------------------------------------------------------------------------------------------------------


@inlined
def power(town: Any) -> int:
    return 0 if town.until[BLACKOUT] > town.tick else 1


@inlined
def water(town: Any) -> int:
    return 0 if town.until[OUTAGE] > town.tick else 1


@jit
def price(law: Any, town: Any, f: int) -> int:
    base = law.n.aff_price[f]
    return int(base * law.n.spike_factor // 1000 if base and town.until[SPIKE] > town.tick else base)


@jit
def hindrance(law: Any, town: Any, person: Any, thing: Any, o: int, f: int) -> int:
    """Why the resident cannot begin it there, or 0."""
    return lack(law, town, person, thing, f) if is_met(law, town, person, thing, o, f) else NO_CONDITION


@jit
def can_begin(law: Any, town: Any, person: Any, thing: Any, o: int, f: int) -> bool:
    """Whether nothing hinders it; what is soon told is asked first."""
    return lack(law, town, person, thing, f) == 0 and is_met(law, town, person, thing, o, f)


@inlined
def is_met(law: Any, town: Any, person: Any, thing: Any, o: int, f: int) -> bool:
    """The condition of an affordance."""
    if law.n.code_first[f] != law.n.code_first[f + 1]:
        values = law.n.values
        for k in range(N_NEEDS):
            values[k] = person.need[k]
        for k in range(N_ITEMS):
            values[N_NEEDS + k] = person.item[k]
        at = N_NEEDS + N_ITEMS
        values[at] = person.money
        values[at + 1] = thing.stock
        values[at + 2] = town.time // law.n.hour
        values[at + 3] = thing.waiting
        values[at + 4] = power(town)
        values[at + 5] = water(town)
        values[at + 6] = person.home == o
        values[at + 7] = ON_TIME <= person.shift <= ABSENT
        return holds(law.n.code, law.n.code_first[f], law.n.code_first[f + 1], values, law.n.stack)
    return True


@inlined
def lack(law: Any, town: Any, person: Any, thing: Any, f: int) -> int:
    """What it takes that is not there, or 0."""
    if person.money < price(law, town, f):
        return NO_MONEY
    for k in range(N_ITEMS):
        if person.item[k] < law.n.aff_takes[f, k]:
            return NO_ITEMS
    if thing.stock < law.n.aff_uses[f]:
        return NO_STOCK
    return 0


@inlined
def within(law: Any, person: Any, things: Any, i: int, f: int) -> int:
    """The thing that the resident would use for it: a free one here or beside, else the one that they went to and are
    near enough to wait for, else one beside. -1: none."""
    kind, tile, home, goal, found = law.n.aff_type[f], index(person.tile), person.home, person.goal, -1
    if kind == law.n.bed:
        return int(home) if home >= 0 and law.far[home, tile] == 0 else -1
    here = law.tile[tile]
    if here.touch >> kind & 1:
        for way in range(5):  # here, then around
            to = here.near[way - 1] if way else tile
            o = law.tile[to].thing_at if to >= 0 else -1
            if o >= 0 and law.place[o].kind == kind and law.far[o, tile] == 0:
                if is_free(things[o], i):
                    return int(o)
                found = int(o)
    if person.goal_kind == TO_TYPE + kind and goal >= 0 and law.far[goal, tile] <= law.n.reach:
        return int(goal)
    return found


@jit
def usable(law: Any, towns: Any, folk: Any, all_things: Any, b: int, i: int, f: int) -> int:
    """The thing that a resident of one town could begin to use for it now, or queue for; -1: none."""
    town, people, things = towns[b], folk[b], all_things[b]
    person, kind = people[i], law.n.aff_type[f]
    if not person.alive or person.doing >= 0:
        return -1
    if not law.tile[person.tile].touch >> kind & 1 and person.goal_kind != TO_TYPE + kind:
        return -1
    o = within(law, person, things, i, f)
    return o if o >= 0 and hindrance(law, town, person, things[o], o, f) == 0 else -1


@inlined
def is_free(thing: Any, i: int) -> bool:
    """Nobody uses it, and it is held for nobody else."""
    return bool(thing.holder < 0 and (thing.held_for < 0 or thing.held_for == i))


@jit
def use(law: Any, town: Any, people: Any, things: Any, who: Any, ring: Any, i: int, f: int) -> bool:
    """Begin to use a thing, or wait for it in line."""
    person = people[i]
    o = within(law, person, things, i, f)
    if o < 0:
        return fail(town, ring, i, f, NO_PLACE)
    thing = things[o]
    why = hindrance(law, town, person, thing, o, f)
    if why:
        return fail(town, ring, i, f, why)
    if not is_free(thing, i) or law.far[o, person.tile] > 0:
        return wait_for(law, town, people, things, ring, i, o)
    if thing.last_user == i and town.tick - thing.used_at < law.n.use_cooldown and thing.waiting > 0:
        return fail(town, ring, i, f, TOO_SOON)
    thing.holder = i
    leave_queue(law, town, people, things, ring, i)
    thing.held_for = -1
    begin(law, town, person, thing, o, f)
    take_place(people, who, i, law.place[o].tile)
    tell(town, ring, STARTED, i, o, f)
    return True


@jit
def begin(law: Any, town: Any, person: Any, thing: Any, o: int, f: int) -> None:
    """What it takes is taken at once and all of it."""
    person.paid = price(law, town, f)
    person.money -= person.paid
    town.treasury += person.paid
    for k in range(N_ITEMS):
        person.item[k] -= law.n.aff_takes[f, k]
    thing.stock -= law.n.aff_uses[f]
    person.doing, person.using, person.left = f, o, law.n.aff_duration[f]
    person.goal = -1


@jit
def take_place(people: Any, who: Any, i: int, to: int) -> None:
    """Onto the tile of a thing; who is there without using it makes room."""
    person, other = people[i], who[to]
    if other != i:
        who[person.tile], who[to] = other, i
        if other >= 0:
            people[other].tile = person.tile
        person.tile = to


@jit
def fail(town: Any, ring: Any, i: int, f: int, why: int) -> bool:
    town.failed += 1
    tell(town, ring, FAILED, i, f, why)
    return False


@jit
def meet_at_table(law: Any, town: Any, people: Any, ring: Any, i: int) -> None:
    """Who has eaten up near others who still eat has shared the meal with each of them; to sit down is not enough."""
    here = law.tile[people[i].tile]
    for j in range(people.size):
        other = people[j]
        if j == i or not other.alive or other.doing < 0 or not law.n.aff_hooks[other.doing] & 1:
            continue
        there = law.tile[other.tile]
        if abs(there.x - here.x) + abs(there.y - here.y) <= 3:
            share_meal(law, town, people, ring, i, j)


@jit
def progress(law: Any, town: Any, people: Any, things: Any, ring: Any) -> None:
    """Everything that is being done goes on for a tick, and what has lasted long enough ends."""
    has_power, has_water = power(town), water(town)
    for i in range(people.size):
        person = people[i]
        f = person.doing
        if f < 0 or not person.alive:
            continue
        if (law.n.aff_power[f] and not has_power) or (law.n.aff_water[f] and not has_water):
            abort(law, town, people, things, ring, i)
            continue
        person.left -= 1
        if law.n.aff_per_tick[f]:
            affect(law, person, f)
        until = law.n.aff_until[f]
        if person.left <= 0 or (until >= 0 and person.need[until] >= UNIT):
            if not law.n.aff_per_tick[f]:
                affect(law, person, f)
            for k in range(N_ITEMS):
                room = law.n.most_items[k] - person.item[k]  # a gift may have filled it meanwhile
                given = min(law.n.aff_gives[f, k], max(0, room))
                person.item[k] += given
                town.lost += law.n.aff_gives[f, k] - given
            town.finished += 1
            count_food(law, town, f, True)
            tell(town, ring, FINISHED, i, person.using, f)
            if law.n.with_ties and law.n.aff_hooks[f] & 1:
                meet_at_table(law, town, people, ring, i)
            release(law, town, people, things, ring, i)


@jit
def count_food(law: Any, town: Any, f: int, is_done: bool) -> None:
    """What is no longer in the town as stock or item has been eaten; what was not in it before has been brought."""
    gone = law.n.aff_uses[f]
    for k in range(N_ITEMS):
        gone += law.n.aff_takes[f, k]
        if is_done:
            gone -= law.n.aff_gives[f, k]
    town.eaten += max(0, gone)
    town.delivered += max(0, -gone)


@inlined
def affect(law: Any, person: Any, f: int) -> None:
    for k in range(N_NEEDS):
        value = person.need[k] + law.n.aff_effect[f, k]
        person.need[k] = 0 if value < 0 else UNIT if value > UNIT else value


@jit
def abort(law: Any, town: Any, people: Any, things: Any, ring: Any, i: int) -> None:
    """Broken off: what was taken for its end is given back; of what goes tick by tick there is nothing to give."""
    person = people[i]
    f, o = person.doing, person.using
    if not law.n.aff_per_tick[f]:
        person.money += person.paid
        town.treasury -= person.paid
        for k in range(N_ITEMS):
            person.item[k] += law.n.aff_takes[f, k]
        things[o].stock += law.n.aff_uses[f]
    else:
        count_food(law, town, f, False)
    town.aborted += 1
    tell(town, ring, ABORTED, i, o, f)
    release(law, town, people, things, ring, i)


@jit
def release(law: Any, town: Any, people: Any, things: Any, ring: Any, i: int) -> None:
    person = people[i]
    thing = things[person.using]
    thing.holder, thing.last_user, thing.used_at = -1, i, town.tick
    o = person.using
    person.doing, person.using, person.left, person.paid = -1, -1, 0, 0
    hand_over(law, town, people, things, ring, o)


# Queues -------------------------------------------------------------------------------------------------------------


@jit
def wait_for(law: Any, town: Any, people: Any, things: Any, ring: Any, i: int, o: int) -> bool:
    """Stand in line; a resident is in one line at most."""
    person = people[i]
    if person.queue == o:
        return True
    leave_queue(law, town, people, things, ring, i)
    person.queue, person.queue_since, person.waited = o, town.tick, 0
    person.behind = things[o].holder
    things[o].waiting += 1
    tell(town, ring, QUEUED, i, o, things[o].waiting)
    return True


@jit
def leave_queue(law: Any, town: Any, people: Any, things: Any, ring: Any, i: int) -> None:
    """Out of the line; what was held for one is held for the next."""
    person = people[i]
    o = person.queue
    if o >= 0:
        things[o].waiting -= 1
        person.queue, person.waited = -1, 0
        if things[o].held_for == i:
            hand_over(law, town, people, things, ring, o)


@jit
def hand_over(law: Any, town: Any, people: Any, things: Any, ring: Any, o: int) -> None:
    """A free thing waits a while for who has waited longest."""
    thing = things[o]
    if thing.holder >= 0 or thing.waiting == 0:
        thing.held_for = -1
        return
    first, since = -1, 1 << 60
    for i in range(people.size):
        person = people[i]
        if person.alive and person.queue == o and person.queue_since < since:
            first, since = i, person.queue_since
    thing.held_for, thing.held_until = first, town.tick + law.n.hold
    tell(town, ring, HANDOVER, first, o, town.tick - since)


@jit
def queues(law: Any, town: Any, people: Any, things: Any, ring: Any) -> None:
    """Who has gone away is no longer in line; who does not come when called is called last; waiting makes rivals."""
    for i in range(people.size):
        person = people[i]
        o = person.queue
        if o < 0 or not person.alive:
            continue
        if law.far[o, person.tile] > law.n.reach:
            leave_queue(law, town, people, things, ring, i)
            continue
        person.waited += 1
        town.longest_wait = max(town.longest_wait, person.waited)
        holder = things[o].holder
        if holder < 0 and things[o].held_for < 0:
            hand_over(law, town, people, things, ring, o)
        elif holder >= 0:
            person.behind = holder
            if law.n.with_ties and person.waited % law.n.conflict_after == 0:
                clash(law, town, people, ring, i, holder, 1000)
        if things[o].held_for == i and town.tick >= things[o].held_until:
            person.queue_since = town.tick
            hand_over(law, town, people, things, ring, o)


@jit
def step_aside(law: Any, town: Any, people: Any, things: Any, ring: Any, i: int) -> bool:
    """Leave what one does or waits for; away from a rival counts as having avoided a quarrel."""
    person = people[i]
    if person.doing >= 0:
        abort(law, town, people, things, ring, i)
        return True
    if person.queue >= 0:
        holder = things[person.queue].holder
        if holder >= 0 and rivalry(law, person, holder) >= law.n.avoid_at:
            avoid(law, town, people, ring, i, holder)
        leave_queue(law, town, people, things, ring, i)
        person.goal = -1
        return True
    return False
