"""Ties between residents: trust, familiarity and rivalry of a pair. Both keep it; ties are few and fade with time."""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import HUNGER, MEAL, SOCIAL
from holdfast.town.kernel import (
    AVOIDED,
    CHAT,
    CHAT_STREAM,
    CONFLICT,
    HELP,
    REBUFF,
    SHARED_MEAL,
    below,
    draw,
    inlined,
    jit,
    tell,
)
from holdfast.town.rules import UNIT

EXTROVERSION, FORGIVENESS, AMBITION = range(3)


@inlined
def clamp(value: int, low: int, high: int) -> int:
    return low if value < low else high if value > high else value


@inlined
def tie(law: Any, person: Any, other: int) -> int:
    """Where the tie to the other is kept; -1 where there is none."""
    for k in range(law.n.most_ties):
        if person.tie_to[k] == other:
            return k
    return -1


@jit
def rivalry(law: Any, person: Any, other: int) -> int:
    k = tie(law, person, other)
    return person.tie_rivalry[k] if k >= 0 else 0


@jit
def affinity(law: Any, person: Any, other: int) -> int:
    """Trust and familiarity, less rivalry."""
    k = tie(law, person, other)
    return person.tie_trust[k] + person.tie_familiarity[k] - person.tie_rivalry[k] if k >= 0 else 0


@jit
def strength(person: Any, k: int) -> int:
    return int(abs(person.tie_trust[k]) + abs(person.tie_familiarity[k]) + person.tie_rivalry[k])


@jit
def drop(person: Any, k: int) -> None:
    person.tie_to[k] = -1
    person.tie_trust[k] = 0
    person.tie_familiarity[k] = 0
    person.tie_rivalry[k] = 0
    person.tie_chats[k] = 0


@jit
def _place(law: Any, person: Any, other: int, change: int) -> int:
    """Where the tie is or can be: a free place, or that of the weakest where the new one is stronger. -1: none."""
    k = tie(law, person, other)
    if k >= 0:
        return k
    weakest, least = -1, change + 1
    for place in range(law.n.most_ties):
        if person.tie_to[place] < 0:
            weakest = place
            break
        if strength(person, place) < least:
            weakest, least = place, strength(person, place)
    if weakest >= 0:
        drop(person, weakest)
        person.tie_to[weakest] = other
    return weakest


@jit
def bump(law: Any, person: Any, other: int, trust: int, familiarity: int, hostile: int) -> None:
    """One side of a tie changes; who forgives takes less offence, who is ambitious resents more."""
    if not law.n.with_ties:
        return
    if law.n.with_traits:
        offence = UNIT - person.trait[FORGIVENESS] // 2
        if trust < 0:
            trust = trust * offence // UNIT
        if familiarity < 0:
            familiarity = familiarity * offence // UNIT
        if hostile > 0:
            hostile = hostile * offence // UNIT * (UNIT + 3 * person.trait[AMBITION] // 10) // UNIT
    k = _place(law, person, other, abs(trust) + abs(familiarity) + abs(hostile))
    if k < 0:
        return
    person.tie_trust[k] = clamp(person.tie_trust[k] + trust, -UNIT, UNIT)
    person.tie_familiarity[k] = clamp(person.tie_familiarity[k] + familiarity, 0, UNIT)
    person.tie_rivalry[k] = clamp(person.tie_rivalry[k] + hostile, 0, UNIT)
    if strength(person, k) == 0:
        drop(person, k)


@jit
def both(law: Any, people: Any, a: int, b: int, change: Any) -> None:
    bump(law, people[a], b, change[0], change[1], change[2])
    bump(law, people[b], a, change[0], change[1], change[2])


@inlined
def can_chat(law: Any, town: Any, person: Any) -> bool:
    return bool(person.alive == 1 and person.doing < 0 and town.tick - person.chat_at >= law.n.chat_cooldown)


@jit
def chat(law: Any, town: Any, people: Any, ring: Any, a: int, b: int) -> bool:
    """One talks to another. A rival, or bad luck, rebuffs; the more often they talk in a day, the less it gives."""
    speaker, listener = people[a], people[b]
    speaker.chat_at = town.tick
    mine, theirs = tie(law, speaker, b), tie(law, listener, a)
    trust = speaker.tie_trust[mine] if mine >= 0 else 0
    familiarity = speaker.tie_familiarity[mine] if mine >= 0 else 0
    hostile = max(speaker.tie_rivalry[mine] if mine >= 0 else 0, listener.tie_rivalry[theirs] if theirs >= 0 else 0)
    chance = law.n.chat_base * (UNIT + 3 * trust // 10) // UNIT * (UNIT + familiarity // 5) // UNIT
    is_lucky = below(draw(town.seed, town.tick, CHAT_STREAM, a), UNIT) < chance
    if hostile >= law.n.avoid_at or not is_lucky:
        both(law, people, a, b, law.n.tie_rebuff)
        town.rebuffs += 1
        tell(town, ring, REBUFF, a, b, hostile)
        speaker.chat_gain -= law.n.chat // 2
        return False
    listener.chat_at = town.tick
    talks = max(speaker.tie_chats[mine] if mine >= 0 else 0, listener.tie_chats[theirs] if theirs >= 0 else 0)
    quality = 500_000 + 3 * speaker.trait[EXTROVERSION] // 10 + trust // 5 + familiarity // 10 - hostile // 5
    quality = clamp(quality, UNIT // 10, UNIT) * law.n.diminish // (law.n.diminish + talks)
    for one, other in ((a, b), (b, a)):
        person = people[one]
        gain = quality * law.n.chat_trust // UNIT, quality * law.n.chat_familiarity // UNIT
        bump(law, person, other, gain[0], gain[1], 0)
        k = tie(law, person, other)
        if k >= 0:
            person.tie_chats[k] = min(person.tie_chats[k] + 1, 30_000)
        person.need[SOCIAL] = min(UNIT, person.need[SOCIAL] + quality * law.n.chat_social // UNIT)
        person.chat_gain += quality * law.n.chat // UNIT
    town.chats += 1
    tell(town, ring, CHAT, a, b, quality)
    return True


@jit
def share_meal(law: Any, town: Any, people: Any, ring: Any, a: int, b: int) -> None:
    both(law, people, a, b, law.n.tie_meal)
    for one in (a, b):
        people[one].need[SOCIAL] = min(UNIT, people[one].need[SOCIAL] + law.n.meal_social)
    town.shared_meals += 1
    tell(town, ring, SHARED_MEAL, a, b, 0)


@jit
def help_out(law: Any, town: Any, people: Any, ring: Any, a: int, b: int) -> None:
    """One gives a meal to one who is hungry and has none."""
    people[a].item[MEAL] -= 1
    people[b].item[MEAL] += 1
    both(law, people, a, b, law.n.tie_help)
    town.helps += 1
    tell(town, ring, HELP, a, b, people[b].need[HUNGER])


@jit
def clash(law: Any, town: Any, people: Any, ring: Any, a: int, b: int, share: int) -> None:
    """One has been in the other's way; `share` of 1000 of a whole conflict. It never comes to more than words."""
    change = law.n.tie_conflict
    bump(law, people[a], b, change[0] * share // 1000, change[1] * share // 1000, change[2] * share // 1000)
    bump(law, people[b], a, change[0] * share // 2000, change[1] * share // 2000, change[2] * share // 2000)
    if share < 1000:
        return  # not worth the telling
    town.conflicts += 1
    tell(town, ring, CONFLICT, a, b, rivalry(law, people[a], b))


@jit
def avoid(law: Any, town: Any, people: Any, ring: Any, a: int, b: int) -> None:
    """One has kept out of a rival's way; it counts once an hour, or going to and fro would be a trade."""
    if town.tick - people[a].avoided_at < law.n.hour:
        return
    people[a].avoided_at = town.tick
    people[a].avoided += 1
    tell(town, ring, AVOIDED, a, b, rivalry(law, people[a], b))


@jit
def fade(law: Any, town: Any, people: Any) -> None:
    """Now and then everything between residents grows a little weaker; at dawn the day's talks are forgotten."""
    is_dawn, is_due = town.time == 0, town.tick % law.n.decay_every == 0
    if not law.n.with_ties or not (is_dawn or is_due):
        return
    for i in range(people.size):
        person = people[i]
        if not person.alive:
            continue
        for k in range(law.n.most_ties):
            if person.tie_to[k] < 0:
                continue
            if is_dawn:
                person.tie_chats[k] = 0
            if is_due:
                trust, step = person.tie_trust[k], law.n.tie_decay[0]
                person.tie_trust[k] = trust - min(step, trust) if trust >= 0 else trust + min(step, -trust)
                person.tie_familiarity[k] = max(0, person.tie_familiarity[k] - law.n.tie_decay[1])
                person.tie_rivalry[k] = max(0, person.tie_rivalry[k] - law.n.tie_decay[2])
                if strength(person, k) == 0:
                    drop(person, k)
