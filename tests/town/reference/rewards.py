"""What a tick is worth, as `town.rewards` has it."""

from __future__ import annotations

from holdfast.town.rules import MONEY, UNIT
from tests.town.reference.world import Person, World, counted_needs, units


def potential(w: World, person: Person) -> int:
    """Φ = −Σ weight × deficit."""
    weights = {need: units(w.rules["needs"][need]["weight"]) for need in counted_needs(w)}
    return -(sum(weight * (UNIT - person.need[need]) for need, weight in weights.items()) // UNIT)


def squash(value: int, scale: int) -> int:
    size = abs(value) * scale // (scale + abs(value))
    return size if value >= 0 else -size


def base(w: World, person: Person) -> int:
    """alive − deficit × Σ weight × deficit² + wages + punctuality + talk + quarrels avoided, squashed."""
    rules, total = w.rules["rewards"], 0
    for need in counted_needs(w):
        deficit, weight = UNIT - person.need[need], units(w.rules["needs"][need]["weight"])
        total += weight * (deficit * deficit // UNIT)
    value = units(rules["alive"]) - total // UNIT * units(rules["deficit"]) // UNIT
    value += person.earned * units(rules["wage"]) // MONEY
    if person.earned > 0 and person.shift == "on_time":
        value += units(rules["punctual"])
    is_well = all(person.need[need] >= units(rules["needs_first"]) for need in counted_needs(w))
    if w.on("chat_rewards") and (is_well or person.chat_gain < 0):
        value += person.chat_gain
    if w.on("avoidance_rewards"):
        value += person.avoided * units(rules["avoid"])
    return squash(value, units(rules["squash"]))


def is_near_exit(w: World, person: Person) -> bool:
    rules, soon = w.rules["lifecycle"], w.rules["rewards"]["no_positive_before_exit"]
    neglect = round(rules["neglect_share"] * w.rules["ticks_per_day"])
    is_low = person.low_ticks > 0 and person.low_ticks >= rules["collapse_ticks"] - soon
    return bool(is_low or person.neglect >= neglect - soon)


def pay(w: World, person: Person) -> float:
    rules, value = w.rules["rewards"], 0
    share = units(rules["shaping"])
    if person.alive:
        phi = potential(w, person)
        shaping = 0 if person.fresh else (units(rules["gamma"]) * phi // UNIT - person.shaped) * share // UNIT
        person.shaped = phi
        value = base(w, person) + shaping
        if is_near_exit(w, person):
            value = min(value, 0)
    elif person.cause:
        terminal = units(rules["terminal"][person.cause])
        value = min(terminal, terminal - person.shaped * share // UNIT)
        person.shaped = 0
    person.reward = value
    person.returned += value
    return value / UNIT
