"""The actions of a resident: one fixed list for given rules, a mask of those that are possible now, and a script.

0 waits; 1 to 4 step north, east, south, west; then one each to go home, to work, to a meeting and to every type of
thing; one for each affordance; then work, chat, help and leave. Scripted residents see the same world as anybody: they
sleep at night, work their shifts, fetch what they need before it is urgent, and avoid a queue with a rival in it.
"""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import ENERGY, FESTIVAL, HUNGER, HYGIENE, MEAL, RAW, SOCIAL
from holdfast.town.kernel import SCRIPT_STREAM, below, draw, index, inlined, jit
from holdfast.town.life import can_earn, earn, is_at_work, is_on_shift
from holdfast.town.places import (
    TO_HOME,
    TO_MEETING,
    TO_TYPE,
    TO_WORK,
    can_begin,
    go,
    hindrance,
    is_free,
    is_invited,
    move,
    power,
    price,
    step_aside,
    use,
    water,
    within,
)
from holdfast.town.relationships import affinity, can_chat, chat, help_out, rivalry
from holdfast.town.rules import UNIT, Rules
from holdfast.town.state import ABSENT

WAIT, NORTH, EAST, SOUTH, WEST, GO = range(6)
WORK, CHAT, HELP, LEAVE = range(4)  # counted from the end of the affordances


def names(rules: Rules) -> tuple[str, ...]:
    """Every action by name, in order."""
    types = list(dict.fromkeys(rules["map"]["objects"].values()))
    return (
        "wait", "north", "east", "south", "west", "go:home", "go:work", "go:meeting",
        *(f"go:{kind}" for kind in types),
        *(f"use:{entry['id']}" for entry in rules["affordance"]),
        "work", "chat", "help", "leave",
    )  # fmt: skip


@inlined
def first_use(law: Any) -> int:
    return int(GO + TO_TYPE + law.n.n_types)


@inlined
def act(law: Any, town: Any, people: Any, things: Any, who: Any, ring: Any, i: int, action: int) -> bool:
    """Does the action and says whether it was possible. A busy resident can only leave. `env` handles waiting."""
    person = people[i]
    uses = first_use(law)
    last = uses + law.n.n_affs
    if action == last + LEAVE:
        return step_aside(law, town, people, things, ring, i)
    if person.doing >= 0:
        return False
    if action < GO:
        return move(law, town, people, who, ring, i, action - NORTH)
    if action < uses:
        return go(law, town, people, things, who, ring, i, action - GO)
    if action < last:
        return use(law, town, people, things, who, ring, i, action - uses)
    if action == last + WORK:
        return earn(law, town, person)
    if action == last + CHAT:
        other = chat_partner(law, town, people, who, i)
        return other >= 0 and chat(law, town, people, ring, i, other)
    if action == last + HELP:
        other = in_need(law, people, who, i)
        if other >= 0:
            help_out(law, town, people, ring, i, other)
        return other >= 0
    return False


@jit
def chat_partner(law: Any, town: Any, people: Any, who: Any, i: int) -> int:
    """Of those beside one, who are free to talk, the one that is liked best; -1: nobody."""
    if not law.n.with_ties or not can_chat(law, town, people[i]):
        return -1
    best, most = -1, -(1 << 40)
    for way in range(4):
        to = law.tile[people[i].tile].near[way]
        other = who[to] if to >= 0 else -1
        if other >= 0 and can_chat(law, town, people[other]) and affinity(law, people[i], other) > most:
            best, most = int(other), affinity(law, people[i], other)
    return best


@jit
def in_need(law: Any, people: Any, who: Any, i: int) -> int:
    """One beside who is hungry and has nothing to eat, while one has a meal to spare; -1: nobody."""
    least = 2 if people[i].need[HUNGER] < law.n.low[HUNGER] else 1  # or the same meal would go to and fro
    if not law.n.with_ties or people[i].item[MEAL] < least:
        return -1
    for way in range(4):
        to = law.tile[people[i].tile].near[way]
        other = who[to] if to >= 0 else -1
        if other < 0 or people[other].doing >= 0 or people[other].item[MEAL] > 0:
            continue
        if people[other].need[HUNGER] < law.n.low[HUNGER]:
            return int(other)
    return -1


@inlined
def allow(law: Any, town: Any, people: Any, things: Any, who: Any, i: int, mask: Any) -> None:
    """Writes 1 for each action that is possible now. Waiting always is."""
    person = people[i]
    for k in range(mask.size):
        mask[k] = 0
    mask[WAIT] = 1
    if not person.alive:
        return
    uses = index(first_use(law))
    last = index(uses + law.n.n_affs)
    is_busy = person.doing >= 0
    mask[last + LEAVE] = is_busy or person.queue >= 0
    if is_busy:
        return
    tile, home, job, goal_kind = index(person.tile), person.home, person.job, person.goal_kind
    here = law.tile[tile]
    has_company = False
    for way in range(4):
        near = here.near[way]
        mask[NORTH + way] = here.ways >> way & 1
        has_company |= near >= 0 and who[near] >= 0
    mask[GO + TO_HOME] = home >= 0 and law.far[home, tile] > 0
    if job >= 0:
        mask[GO + TO_WORK] = law.far[index(law.n.job_spot[job] + person.job_slot), tile] > 0
        mask[last + WORK] = can_earn(law, town, person)
    mask[GO + TO_MEETING] = is_invited(town, i) and law.far[town.meeting_place, tile] > 0
    bed, kinds = law.n.bed, here.touch | (1 << (goal_kind - TO_TYPE) if goal_kind >= TO_TYPE else 0)
    for f in range(law.n.n_affs):
        kind = index(law.n.aff_type[f])
        mask[GO + TO_TYPE + kind] = kind != bed
        if kinds >> kind & 1:
            o = within(law, person, things, i, f)
            mask[uses + f] = o >= 0 and can_begin(law, town, person, things[o], o, f)
    if has_company and law.n.with_ties:
        mask[last + CHAT] = can_chat(law, town, person) and is_listened_to(law, town, people, who, here)
        mask[last + HELP] = person.item[MEAL] > 0 and in_need(law, people, who, i) >= 0


@jit
def is_listened_to(law: Any, town: Any, people: Any, who: Any, here: Any) -> bool:
    """Whether anybody beside this tile is free to talk."""
    for way in range(4):
        near = here.near[way]
        other = who[near] if near >= 0 else -1
        if other >= 0 and can_chat(law, town, people[other]):
            return True
    return False


SLEEP, SHOWER, COOK, EAT, BUY, CAFE, RELAX = range(7)  # in uses_of: the affordance, -1 where the rules have none
LONGEST_WAIT = 90  # ticks in one line
EARLY = 25  # ticks by which one wants to be there before a shift begins
MORNING = 80  # ticks to get up, eat and wash in before one sets out for work
ON_THE_WAY = 15  # ticks more than that, once one has set out: who starts for work does not turn round at the door
URGENT = 150_000  # of a need: everything else waits
HEARTY, FRESH = 650_000, 500_000  # of hunger and hygiene: below this nobody goes to bed or to work
WASHED, RESTED = 600_000, 950_000


@jit
def plan_actions(law: Any, towns: Any, people: Any, things: Any, who: Any, uses_of: Any, actions: Any) -> None:
    """What each would do now."""
    for b in range(towns.size):
        _plan_world(law, towns[b], people[b], things[b], who[b], uses_of, actions[b])


@jit
def _plan_world(law: Any, town: Any, people: Any, things: Any, who: Any, uses_of: Any, actions: Any) -> None:
    for i in range(people.size):
        actions[i] = choose(law, town, people, things, who, uses_of, i)


@jit
def choose(law: Any, town: Any, people: Any, things: Any, who: Any, uses_of: Any, i: int) -> int:
    person = people[i]
    if not person.alive:
        return WAIT
    last = first_use(law) + law.n.n_affs
    if person.doing >= 0:
        return last + LEAVE if person.doing == uses_of[SLEEP] and is_woken(law, town, person, uses_of) else WAIT
    until = until_shift(law, town, person)
    slack = until - way_to_work(law, person)  # until one has to set out
    if person.queue >= 0:
        return in_line(law, town, people, things, i, slack)
    if person.item[MEAL] > 1 and in_need(law, people, who, i) >= 0:
        return int(last + HELP)
    if lowest(person) < URGENT:
        urgent = care(law, town, person, things, uses_of, i, URGENT, URGENT // 2, URGENT // 3)
        if urgent >= 0:
            return urgent
    if slack <= EARLY + (ON_THE_WAY if person.goal_kind == TO_WORK else 0):
        return work(law, town, people, who, i, last)
    if is_invited(town, i):
        return GO + TO_MEETING if law.far[town.meeting_place, person.tile] > 1 else WAIT
    time = town.time
    is_early = time < 5 * law.n.hour or (time < 8 * law.n.hour and until > 5 * law.n.hour)  # who can, sleeps in
    is_night = is_early or time >= 22 * law.n.hour
    is_last_chance = is_night or until < MORNING + 60  # for the next seven or eight hours
    hungry = HEARTY if is_last_chance else law.n.low[HUNGER]
    dirty = FRESH if is_last_chance else law.n.low[HYGIENE]
    tired = RESTED if is_night else law.n.low[ENERGY] if time >= 20 * law.n.hour else URGENT
    cared = care(law, town, person, things, uses_of, i, hungry, tired, dirty)
    if cared >= 0:
        return cared
    talk = social(law, town, people, who, i, last, -1)
    if talk >= 0:
        return talk
    is_out = uses_of[RELAX] >= 0 and person.goal_kind == TO_TYPE + law.n.aff_type[uses_of[RELAX]]
    is_lonely = person.need[SOCIAL] < law.n.low[SOCIAL] + (300_000 if is_out else 100_000)
    stocked = provide(law, town, person, things, uses_of, i) if not is_lonely and not is_night else -1
    if stocked >= 0:
        return stocked
    return leisure(law, town, person, things, uses_of, i, is_lonely)


@inlined
def lowest(person: Any) -> int:
    """Of the needs; one can be without sleep for longer than without food, and unwashed for longer still."""
    return int(min(person.need[HUNGER], 2 * person.need[ENERGY], 3 * person.need[HYGIENE]))


@inlined
def until_shift(law: Any, town: Any, person: Any) -> int:
    """Ticks until the next shift begins; 0 while it lasts, a day where there is none."""
    if not law.n.with_work or person.job < 0:
        return int(law.n.day)
    if is_on_shift(law, town, person):
        return 0 if person.shift != ABSENT else law.n.day
    ahead = law.n.job_start[person.job] - town.time
    return int(ahead if ahead >= 0 else ahead + law.n.day)


@inlined
def way_to_work(law: Any, person: Any) -> int:
    """With a little more for those who are in the way."""
    return 5 * int(law.far[law.n.job_spot[person.job] + person.job_slot, person.tile]) // 4 if person.job >= 0 else 0


@jit
def is_woken(law: Any, town: Any, person: Any, uses_of: Any) -> bool:
    """By the shift that comes, or by a hunger that something can be done about; who is worn out sleeps on."""
    if person.need[ENERGY] <= URGENT:
        return False
    if person.need[HUNGER] < URGENT and has_food(law, town, person, uses_of):
        return True
    return person.need[ENERGY] > 2 * URGENT and until_shift(law, town, person) - way_to_work(law, person) <= MORNING


@jit
def work(law: Any, town: Any, people: Any, who: Any, i: int, last: int) -> int:
    """To one's place there, and then work, with a word now and then."""
    person = people[i]
    if not is_at_work(law, person):
        return GO + TO_WORK
    is_there = law.far[law.n.job_spot[person.job] + person.job_slot, person.tile] == 0
    if not is_there and (town.tick % 3 == 0 or not is_on_shift(law, town, person)):
        return GO + TO_WORK  # out of the way
    return social(law, town, people, who, i, last, last + WORK if is_on_shift(law, town, person) else WAIT)


@jit
def in_line(law: Any, town: Any, people: Any, things: Any, i: int, slack: int) -> int:
    """Wait, step up when it is one's turn, or go: from a rival, a line that does not move, or when work calls."""
    person = people[i]
    thing, uses, kind = things[person.queue], first_use(law), law.place[person.queue].kind
    leave = uses + law.n.n_affs + LEAVE
    is_rival = thing.holder >= 0 and rivalry(law, person, thing.holder) >= law.n.avoid_at
    if is_rival or person.waited > LONGEST_WAIT or (slack <= 0 and lowest(person) >= URGENT):
        return int(leave)
    if not is_free(thing, i):
        return WAIT
    if law.far[person.queue, person.tile] > 0:
        return int(GO + TO_TYPE + kind)
    for f in range(law.n.n_affs):
        if law.n.aff_type[f] == kind and hindrance(law, town, person, thing, person.queue, f) == 0:
            return uses + f
    return int(leave)


@jit
def fetch(law: Any, town: Any, person: Any, things: Any, i: int, f: int) -> int:
    """Go there and do it; where it is taken, stand in line."""
    kind = law.n.aff_type[f]
    o = within(law, person, things, i, f)
    if o >= 0 and (o == person.goal or (law.far[o, person.tile] == 0 and is_free(things[o], i))):
        is_turn = law.far[o, person.tile] == 0 or not is_free(things[o], i)
        if is_turn and hindrance(law, town, person, things[o], o, f) == 0:
            return first_use(law) + f
    return GO + TO_HOME if kind == law.n.bed else GO + TO_TYPE + kind


@jit
def care(
    law: Any, town: Any, person: Any, things: Any, uses_of: Any, i: int, hungry: int, tired: int, dirty: int
) -> int:
    """What the need that is below its mark asks for, the worst first; -1: nothing."""
    hunger, energy, hygiene = person.need[HUNGER], person.need[ENERGY], person.need[HYGIENE]
    if hunger < hungry and (energy > URGENT or hunger < energy):
        food = feed(law, town, person, things, uses_of, i)
        if food >= 0:
            return food
    if hygiene < dirty and energy > URGENT and can_wash(law, town, person, uses_of):
        return fetch(law, town, person, things, i, uses_of[SHOWER])
    if energy < tired and uses_of[SLEEP] >= 0 and person.home >= 0:
        return fetch(law, town, person, things, i, uses_of[SLEEP])
    return -1


@jit
def can_wash(law: Any, town: Any, person: Any, uses_of: Any) -> bool:
    f = uses_of[SHOWER]
    if f < 0 or person.money < price(law, town, f):
        return False
    return (power(town) == 1 or law.n.aff_power[f] == 0) and (water(town) == 1 or law.n.aff_water[f] == 0)


@jit
def has_food(law: Any, town: Any, person: Any, uses_of: Any) -> bool:
    """Whether there is any way to a meal."""
    can_buy = uses_of[BUY] >= 0 and person.money >= price(law, town, uses_of[BUY])
    return bool(person.item[MEAL] > 0 or person.item[RAW] > 0 or can_buy)


@jit
def feed(law: Any, town: Any, person: Any, things: Any, uses_of: Any, i: int) -> int:
    """The quickest way to a meal that can be had: eat it, cook it, buy one, or buy the makings."""
    cook, buy, cafe = uses_of[COOK], uses_of[BUY], uses_of[CAFE]
    if uses_of[EAT] >= 0 and person.item[MEAL] > 0:
        return fetch(law, town, person, things, i, uses_of[EAT])
    can_cook = cook >= 0 and (power(town) == 1 or law.n.aff_power[cook] == 0)
    if cafe >= 0 and person.money >= price(law, town, cafe):
        near = law.far[law.tile[person.tile].nearest[law.n.aff_type[cafe]], person.tile]
        if not can_cook or (near < 15 and person.money >= 2 * price(law, town, cafe) + law.n.rent):
            return fetch(law, town, person, things, i, cafe)
    if can_cook and person.item[RAW] > 0:
        return fetch(law, town, person, things, i, cook)
    if buy >= 0 and person.money >= price(law, town, buy):
        return fetch(law, town, person, things, i, buy)
    return -1


@jit
def provide(law: Any, town: Any, person: Any, things: Any, uses_of: Any, i: int) -> int:
    """Food in the house, while there is time: meals for a day, makings for two."""
    cook, buy = uses_of[COOK], uses_of[BUY]
    is_shopping = buy >= 0 and person.goal_kind == TO_TYPE + law.n.aff_type[buy]
    is_short = person.item[RAW] < (4 if is_shopping else 1)
    if buy >= 0 and is_short and person.money >= law.n.rent + price(law, town, buy):
        return fetch(law, town, person, things, i, buy)
    can_cook = cook >= 0 and (power(town) == 1 or law.n.aff_power[cook] == 0)
    if can_cook and person.item[MEAL] < 2 and person.item[RAW] > 0:
        return fetch(law, town, person, things, i, cook)
    if person.need[HYGIENE] < WASHED and person.money > law.n.rent and can_wash(law, town, person, uses_of):
        return fetch(law, town, person, things, i, uses_of[SHOWER])
    return -1


@jit
def leisure(law: Any, town: Any, person: Any, things: Any, uses_of: Any, i: int, is_lonely: bool) -> int:
    """Out on the benches, where the others are, or at home."""
    is_out = is_lonely or town.until[FESTIVAL] > town.tick
    is_out = is_out or below(draw(town.seed, town.tick // law.n.hour, SCRIPT_STREAM, i), 4) == 0
    relax = uses_of[RELAX]
    if is_out and relax >= 0:
        o = law.tile[person.tile].nearest[law.n.aff_type[relax]]
        if o >= 0 and hindrance(law, town, person, things[o], o, relax) == 0:
            return fetch(law, town, person, things, i, relax)
    if person.home >= 0 and law.far[person.home, person.tile] > 4:
        return GO + TO_HOME
    return WAIT


@jit
def social(law: Any, town: Any, people: Any, who: Any, i: int, last: int, otherwise: int) -> int:
    """Talk to who is beside one, now and then; the outgoing more often."""
    other = chat_partner(law, town, people, who, i)
    if other < 0 or rivalry(law, people[i], other) >= law.n.avoid_at:
        return otherwise
    eager = 30 + 30 * (UNIT - people[i].need[SOCIAL]) // UNIT + 40 * people[i].trait[0] // UNIT
    if below(draw(town.seed, town.tick, SCRIPT_STREAM, 500 + i), 100) < eager // 4:
        return last + CHAT
    return otherwise
