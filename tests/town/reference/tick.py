"""One tick of one world, and what residents can do in it, as `town.env` and `town.actions` have them."""

from __future__ import annotations

from collections.abc import Sequence

from tests.town.reference.life import arrivals, dawn, deliver, exits, gather, refill, wear, weather
from tests.town.reference.places import (
    at_hand,
    go,
    hindrance,
    meeting_of,
    move,
    progress,
    queues,
    step_aside,
    use,
    work_spot,
)
from tests.town.reference.rewards import pay
from tests.town.reference.ties import affinity, can_chat, chat, fade, help_out
from tests.town.reference.work import earn, is_at_work, is_on_shift, shifts
from tests.town.reference.world import World, units


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
