"""Ties between residents, as `town.relationships` has them."""

from __future__ import annotations

from holdfast.town.rules import UNIT
from tests.town.reference.world import Person, Tie, World, three, units, within_unit


def tie(person: Person, other: int) -> Tie:
    """The tie to another; a tie of nothing where there is none."""
    return next((one for one in person.ties if one is not None and one.to == other), Tie(other))


def rivalry(person: Person, other: int) -> int:
    return tie(person, other).rivalry


def is_rival(w: World, person: Person, other: int) -> bool:
    return rivalry(person, other) >= units(w.rules["ties"]["avoid_at"])


def affinity(person: Person, other: int) -> int:
    one = tie(person, other)
    return one.trust + one.familiarity - one.rivalry


def strength(one: Tie) -> int:
    return abs(one.trust) + abs(one.familiarity) + one.rivalry


def bump(w: World, person: Person, other: int, change: tuple[int, int, int]) -> None:
    """One side of a tie changes, by the person's nature. Where all places are taken, the weakest tie gives way."""
    trust, familiarity, hostile = change
    if not w.on("ties"):
        return
    if w.on("personalities"):
        offence = UNIT - person.trait["forgiveness"] // 2
        trust = trust * offence // UNIT if trust < 0 else trust
        familiarity = familiarity * offence // UNIT if familiarity < 0 else familiarity
        if hostile > 0:
            hostile = hostile * offence // UNIT * (UNIT + 3 * person.trait["ambition"] // 10) // UNIT
    most, ties = w.rules["ties"]["most"], person.ties
    place = next((k for k in range(most) if (one := ties[k]) is not None and one.to == other), None)
    if place is None:
        place = next((k for k in range(most) if ties[k] is None), None)
        if place is None:
            weak = {k: strength(one) for k in range(most) if (one := ties[k]) is not None}
            place = min(weak, key=weak.__getitem__)
            if weak[place] > abs(trust) + abs(familiarity) + abs(hostile):
                return
        ties[place] = Tie(other)
    one = ties[place]
    assert one is not None
    one.trust = within_unit(one.trust + trust, -UNIT)
    one.familiarity = within_unit(one.familiarity + familiarity)
    one.rivalry = within_unit(one.rivalry + hostile)
    if strength(one) == 0:
        ties[place] = None


def both(w: World, a: int, b: int, change: tuple[int, int, int]) -> None:
    bump(w, w.people[a], b, change)
    bump(w, w.people[b], a, change)


def can_chat(w: World, person: Person) -> bool:
    is_rested = w.town.tick - person.chat_at >= w.rules["ties"]["chat"]["cooldown"]
    return bool(person.alive) and person.doing is None and is_rested


def chat(w: World, a: int, b: int) -> bool:
    speaker, listener, rules = w.people[a], w.people[b], w.rules["ties"]["chat"]
    worth = units(w.rules["rewards"]["chat"])
    speaker.chat_at = w.town.tick
    mine, theirs = tie(speaker, b), tie(listener, a)
    trust, familiarity, talks = mine.trust, mine.familiarity, max(mine.chats, theirs.chats)
    hostile = max(mine.rivalry, theirs.rivalry)
    chance = units(rules["base"]) * (UNIT + 3 * trust // 10) // UNIT * (UNIT + familiarity // 5) // UNIT
    is_lucky = w.chance("chat", a, UNIT) < chance
    if hostile >= units(w.rules["ties"]["avoid_at"]) or not is_lucky:
        both(w, a, b, three(w.rules["ties"]["rebuff"]))
        w.count("rebuffs")
        w.tell("rebuff", a, b, hostile)
        speaker.chat_gain -= worth // 2
        return False
    listener.chat_at = w.town.tick
    quality = 500_000 + 3 * speaker.trait["extroversion"] // 10 + trust // 5 + familiarity // 10 - hostile // 5
    diminish = w.rules["ties"]["diminish"]
    quality = within_unit(quality, UNIT // 10) * diminish // (diminish + talks)
    for person, other in ((speaker, b), (listener, a)):
        gain = quality * units(rules["trust"]) // UNIT, quality * units(rules["familiarity"]) // UNIT
        bump(w, person, other, (*gain, 0))
        kept = tie(person, other)
        kept.chats = min(kept.chats + 1, 30_000)
        person.need["social"] = min(UNIT, person.need["social"] + quality * units(rules["social"]) // UNIT)
        person.chat_gain += quality * worth // UNIT
    w.count("chats")
    w.tell("chat", a, b, quality)
    return True


def share_meal(w: World, a: int, b: int) -> None:
    both(w, a, b, three(w.rules["ties"]["meal"]))
    for one in (a, b):
        need = w.people[one].need
        need["social"] = min(UNIT, need["social"] + units(w.rules["ties"]["meal"]["social"]))
    w.count("shared_meals")
    w.tell("shared_meal", a, b)


def help_out(w: World, a: int, b: int) -> None:
    w.people[a].item["meal"] -= 1
    w.people[b].item["meal"] += 1
    both(w, a, b, three(w.rules["ties"]["help"]))
    w.count("helps")
    w.tell("help", a, b, w.people[b].need["hunger"])


def clash(w: World, a: int, b: int, share: int) -> None:
    """`share` of 1000 of a conflict; who was in the way takes half of it to heart."""
    trust, familiarity, hostile = three(w.rules["ties"]["conflict"])
    for one, other, of in ((a, b, 1000), (b, a, 2000)):
        bump(w, w.people[one], other, (trust * share // of, familiarity * share // of, hostile * share // of))
    if share >= 1000:  # less is not worth the telling
        w.count("conflicts")
        w.tell("conflict", a, b, rivalry(w.people[a], b))


def avoid(w: World, a: int, b: int) -> None:
    """To keep out of a rival's way counts once an hour."""
    person = w.people[a]
    if w.town.tick - person.avoided_at >= w.rules["ticks_per_day"] // 24:
        person.avoided_at = w.town.tick
        person.avoided += 1
        w.tell("avoided", a, b, rivalry(person, b))


def fade(w: World) -> None:
    is_due = w.town.tick % w.rules["ties"]["decay_every"] == 0
    decay = three(w.rules["ties"]["decay"])
    for person in w.people:
        for k, one in enumerate(person.ties):
            if one is None or not person.alive:
                continue
            if w.time == 0:
                one.chats = 0
            if is_due:
                step = min(decay[0], abs(one.trust))
                one.trust -= step if one.trust >= 0 else -step
                one.familiarity = max(0, one.familiarity - decay[1])
                one.rivalry = max(0, one.rivalry - decay[2])
                if strength(one) == 0:
                    person.ties[k] = None
