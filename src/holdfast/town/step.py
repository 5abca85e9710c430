"""One tick of every world of a batch, phase by phase, in the order in which a day is lived."""

from __future__ import annotations

from typing import Any

from holdfast.town.actions import WAIT, act
from holdfast.town.body import wear
from holdfast.town.jit import jit
from holdfast.town.life import arrivals, dawn, deliver, exits, found
from holdfast.town.perturbations import gather, refill, weather
from holdfast.town.places import progress, queues
from holdfast.town.relationships import fade
from holdfast.town.rewards import pay
from holdfast.town.rng import ORDER, below, draw
from holdfast.town.work import shifts


@jit
def begin(law: Any, towns: Any, people: Any, things: Any, who: Any, slots: Any, events: Any) -> None:
    """The first morning of every world."""
    for b in range(towns.size):
        found(law, towns[b], people[b], things[b], who[b], slots[b], events[b])


@jit
def tick(
    law: Any, towns: Any, people: Any, things: Any, who: Any, slots: Any, events: Any, actions: Any, rewards: Any
) -> None:
    for b in range(towns.size):
        _tick(law, towns[b], people[b], things[b], who[b], slots[b], events[b], actions[b], rewards[b])


@jit
def _tick(
    law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any, actions: Any, rewards: Any
) -> None:
    weather(law, town, people, ring)
    dawn(law, town, people, ring)
    deliver(law, town, things, ring)
    arrivals(law, town, people, things, who, slots, ring)
    first = below(draw(town.seed, town.tick, ORDER, 0), people.size)
    for k in range(people.size):  # nobody is always first
        i = first + k
        if i >= people.size:
            i -= people.size
        person = people[i]
        person.earned = person.chat_gain = 0
        person.avoided = 0
        if person.alive:
            action = WAIT if person.fresh else actions[i]  # who has just come has not seen anything yet
            person.switches = action != person.last_action and person.doing < 0
            person.last_action = action
            if action == WAIT:
                person.success = 1
                person.blocked = 0
            else:
                person.success = act(law, town, people, things, who, ring, i, action)
    progress(law, town, people, things, ring)
    wear(law, town, people)
    shifts(law, town, people, ring)
    queues(law, town, people, things, ring)
    gather(law, town, people, ring)
    fade(law, town, people)
    if town.tick % 60 == 0:
        refill(law, town, people)
    exits(law, town, people, things, who, slots, ring)
    pay(law, town, people, rewards)
    town.tick += 1
    town.time = town.time + 1 if town.time + 1 < law.n.day else 0
