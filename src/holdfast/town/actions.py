"""The actions of a resident: one fixed list for given rules, and a mask of those that are possible now.

0 waits; 1 to 4 step north, east, south, west; then one each to go home, to work, to a meeting and to every type of
thing; one for each affordance; then work, chat, help and leave.
"""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import HUNGER, MEAL
from holdfast.town.kernel import inlined, jit
from holdfast.town.places import (
    TO_HOME,
    TO_MEETING,
    TO_TYPE,
    TO_WORK,
    go,
    hindrance,
    is_invited,
    move,
    step_aside,
    use,
    within,
)
from holdfast.town.relationships import affinity, can_chat, chat, help_out
from holdfast.town.rules import Rules
from holdfast.town.work import can_earn, earn

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
    uses = first_use(law)
    last = uses + law.n.n_affs
    mask[last + LEAVE] = person.doing >= 0 or person.queue >= 0
    if person.doing >= 0:
        return
    here = law.tile[person.tile]
    has_company = False
    for way in range(4):
        mask[NORTH + way] = here.ways >> way & 1
        has_company |= here.near[way] >= 0 and who[here.near[way]] >= 0
    mask[GO + TO_HOME] = person.home >= 0 and law.far[person.home, person.tile] > 0
    if person.job >= 0:
        mask[GO + TO_WORK] = law.far[law.n.job_spot[person.job] + person.job_slot, person.tile] > 0
        mask[last + WORK] = can_earn(law, town, person)
    mask[GO + TO_MEETING] = is_invited(town, i) and law.far[town.meeting_place, person.tile] > 0
    for f in range(law.n.n_affs):
        kind = law.n.aff_type[f]
        mask[GO + TO_TYPE + kind] = kind != law.n.bed
        if here.touch >> kind & 1 or person.goal_kind == TO_TYPE + kind:
            o = within(law, person, things, i, f)
            mask[uses + f] = o >= 0 and hindrance(law, town, person, things[o], o, f) == 0
    if has_company:
        mask[last + CHAT] = chat_partner(law, town, people, who, i) >= 0
        mask[last + HELP] = in_need(law, people, who, i) >= 0
