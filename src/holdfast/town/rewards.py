"""The reward of a resident for one tick.

It pays for needs that are met, work done and talk that is not repeated. Shaping by a potential changes no best policy.
The price of having to leave is not squashed. Shortly before an exit no positive reward is paid.
"""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import N_NEEDS, SOCIAL
from holdfast.town.kernel import inlined
from holdfast.town.rules import MONEY, UNIT
from holdfast.town.state import ON_TIME


@inlined
def potential(law: Any, person: Any) -> int:
    """Φ = −Σ weight × deficit, in units."""
    total = 0
    for k in range(N_NEEDS):
        if k != SOCIAL or law.n.with_ties:
            total += law.n.weight[k] * (UNIT - person.need[k])
    return -(total // UNIT)


@inlined
def squash(value: int, scale: int) -> int:
    """value / (1 + |value| / scale): steep nowhere, flat nowhere."""
    return value * scale // (scale + abs(value)) if value >= 0 else -((-value) * scale // (scale - value))


@inlined
def base(law: Any, town: Any, person: Any) -> int:
    """Before shaping and the end: what is squashed."""
    total, is_well = 0, True
    for k in range(N_NEEDS):
        if k == SOCIAL and not law.n.with_ties:
            continue
        deficit = UNIT - person.need[k]
        total += law.n.weight[k] * (deficit * deficit // UNIT)
        is_well = is_well and person.need[k] >= law.n.needs_first
    value = law.n.alive - total // UNIT * law.n.deficit // UNIT
    if person.earned > 0:
        value += person.earned * law.n.wage // MONEY
        if person.shift == ON_TIME:
            value += law.n.punctual
    if law.n.with_chat and (is_well or person.chat_gain < 0):
        value += person.chat_gain
    if law.n.with_avoid:
        value += person.avoided * law.n.avoid
    return squash(value, law.n.squash)


@inlined
def is_near_exit(law: Any, person: Any) -> bool:
    is_low = person.low_ticks > 0 and person.low_ticks >= law.n.collapse_ticks - law.n.no_positive
    return bool(is_low or person.neglect >= law.n.neglect_ticks - law.n.no_positive)


@inlined
def pay(law: Any, town: Any, person: Any) -> float:
    """The reward of the tick. An empty seat gets 0, and after an exit its cost."""
    value = 0
    if person.alive:
        phi = potential(law, person)
        shaping = (law.n.gamma * phi // UNIT - person.shaped) * law.n.shaping // UNIT if not person.fresh else 0
        person.shaped = phi
        value = base(law, town, person) + shaping
        if is_near_exit(law, person):
            value = min(value, 0)
    elif person.cause:
        value = law.n.terminal[person.cause] - person.shaped * law.n.shaping // UNIT
        if value > law.n.terminal[person.cause]:
            value = law.n.terminal[person.cause]
        person.shaped = 0
    person.reward = value
    person.returned += value
    return value / UNIT
