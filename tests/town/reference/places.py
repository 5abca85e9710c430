"""Steps, ways, use and queues, as `town.places` has them."""

from __future__ import annotations

from typing import Any

from holdfast.town.rules import MONEY, UNIT
from tests.town.reference.ties import avoid, clash, is_rival, share_meal
from tests.town.reference.world import FAR, Person, World, coins, units, within_unit

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
