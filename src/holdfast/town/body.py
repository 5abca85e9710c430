"""Needs: they run down with time, faster in the rain and by one's nature; a festival does good to who is there."""

from __future__ import annotations

from typing import Any

from holdfast.town.compiled_rules import ENERGY, FESTIVAL, HYGIENE, N_NEEDS, RAIN, SOCIAL
from holdfast.town.jit import jit
from holdfast.town.rules import UNIT


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
