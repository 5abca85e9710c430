"""A batch of worlds to act in, and one tick of it: actions in; observations, rewards, ends and masks out.

The same world comes of the same seed in a batch of any size. Arrays that come out are the batch's own and are written
again by the next step: copy what is to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town.actions import WAIT, act, allow, first_use, plan_actions
from holdfast.town.actions import names as action_names
from holdfast.town.compiled_rules import CompiledRules, compile_rules
from holdfast.town.hooks import Hooks
from holdfast.town.kernel import ORDER_STREAM, below, draw, index, jit, world_seed
from holdfast.town.life import arrivals, dawn, deliver, exits, first_morning, gather, pass_by, refill, weather
from holdfast.town.observations import RECALL, ObservationSpec, empty, observation_spec, observe, observe_world, recall
from holdfast.town.places import progress, queues
from holdfast.town.relationships import fade
from holdfast.town.rules import Rules, load
from holdfast.town.state import TownState, blank

PLANNED = ("sleep", "shower", "cook", "eat", "buy", "cafe_meal", "relax")  # what scripts know by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a step gives: [B, A, …]."""

    features: NDArray[np.float32]
    maps: NDArray[np.float32]
    mask: NDArray[np.uint8]  # [B, A, actions]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]  # the resident has left; another may come in their place
    truncated: NDArray[np.bool_]  # the days are over; the world itself would go on
    alive: NDArray[np.bool_]  # whose actions count

    @property
    def rows(self) -> NDArray[np.float32]:
        """All that each sees as one row [B, A, numbers]: the features, then the map. Without a map it is no copy."""
        if not self.maps.size:
            return self.features
        return np.concatenate((self.features, self.maps.reshape(*self.maps.shape[:2], -1)), axis=2)


class Env:
    def __init__(
        self, rules: Rules | None = None, *, worlds: int = 1, variant: str = "compact", days: int | None = None
    ) -> None:
        self.rules = rules or load()
        self.law: CompiledRules = compile_rules(self.rules)
        self.worlds, self.residents = worlds, int(self.rules["residents"])
        self.senses: ObservationSpec = observation_spec(self.rules, variant)
        self.actions = action_names(self.rules)
        self.days = days
        shape = (worlds, self.residents)
        self._features, self._maps = empty(self.senses, worlds, self.residents)
        is_recall = variant == RECALL
        plain = observation_spec(self.rules, "compact") if is_recall else self.senses
        self._row = empty(plain, worlds, self.residents)[0] if is_recall else self._features
        self._mask = np.zeros((*shape, len(self.actions)), np.uint8)
        self._reward = np.zeros(shape, np.float32)
        self._planned = np.zeros(shape, np.int64)
        ids = [entry["id"] for entry in self.rules["affordance"]]
        self._uses = np.array([ids.index(name) if name in ids else -1 for name in PLANNED], np.int64)
        hooks = Hooks(self.rules, self.law)
        self._hooks = hooks if hooks.is_used else None
        self._first_use = int(first_use(self.law))
        self.state: TownState = self._blank()
        self.reset(0)

    def _blank(self) -> TownState:
        n = self.law.n
        return blank(self.worlds, self.residents, int(n["things"]), int(n["tiles"]), int(n["slots"]))

    def reset(self, seed: int, *, first_world: int = 0) -> Seen:
        """The first morning of every world; world k is the one that `first_world + k` would be in any other batch."""
        self.state = self._blank()
        self.state.town["seed"] = [world_seed(seed, first_world + k) for k in range(self.worlds)]
        begin(self.law, *self.state.arrays.values())
        return self._seen()

    def begin_world(self, world: int, seed: int, first_world: int = 0) -> None:
        """Begins one world of the batch anew; the others stay. `look` shows what is seen then."""
        n = self.law.n
        fresh = blank(1, self.residents, int(n["things"]), int(n["tiles"]), int(n["slots"]))
        fresh.town["seed"] = world_seed(seed, first_world)
        begin(self.law, *fresh.arrays.values())
        for name, array in self.state.arrays.items():
            array[world] = fresh.arrays[name][0]

    def look(self) -> Seen:
        """What is seen now."""
        return self._seen()

    def restore(self, state: TownState) -> Seen:
        """Go on from a snapshot of as many worlds under the same rules."""
        if any(a.shape != b.shape or a.dtype != b.dtype for a, b in self._pairs(state)):
            raise ValueError("the snapshot is of other worlds: their number, residents or map differ")
        self.state = state.copy()
        return self._seen()

    def _pairs(self, state: TownState) -> Sequence[tuple[NDArray[Any], NDArray[Any]]]:
        return list(zip(self.state.arrays.values(), state.arrays.values(), strict=True))

    def step(self, actions: NDArray[np.int64]) -> Seen:
        """One tick. An action that is not possible is a tick of waiting."""
        wanted = np.asarray(actions, np.int64)
        if wanted.shape != (self.worlds, self.residents):
            raise ValueError(f"actions are {wanted.shape}, and must be {(self.worlds, self.residents)}")
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self.actions)):
            raise ValueError(f"actions go from 0 to {len(self.actions) - 1}")
        if self._hooks is None:
            self._tick(wanted)
            return self._told()
        self._hooked_tick(self._hooks, wanted)
        return self._seen()

    def _tick(self, wanted: NDArray[np.int64]) -> None:
        s, seen = self.state, (self._row, self._maps, self._mask)
        advance(self.law, s.town, s.people, s.things, s.who, s.slots, s.events, wanted, self._reward, *seen)

    def _hooked_tick(self, hooks: Hooks, wanted: NDArray[np.int64]) -> None:
        """What hooks refuse is a tick of waiting that has failed; then they hear what has happened."""
        people, seen = self.state.people, self.state.town["events"].copy()
        refused = hooks.refused(self.state, self._first_use, wanted)
        hooks.fail(self.state, refused)
        wanted = wanted.copy()
        for world, seat, _ in refused:
            wanted[world, seat] = WAIT
        self._tick(wanted)
        for world, seat, f in refused:
            people["success"][world, seat], people["last_action"][world, seat] = 0, self._first_use + f
        hooks.follow(self.state, seen)

    def scripted(self) -> NDArray[np.int64]:
        """What residents who plan would do now; they wait where a hook would refuse it."""
        s = self.state
        plan_actions(self.law, s.town, s.people, s.things, s.who, self._uses, self._planned)
        if self._hooks is not None:
            for world, seat, _ in self._hooks.refused(s, self._first_use, self._planned):
                self._planned[world, seat] = WAIT
        return self._planned

    def _seen(self) -> Seen:
        s = self.state
        observe(self.law, s.town, s.people, s.things, s.who, self._row, self._maps)
        masks(self.law, s.town, s.people, s.things, s.who, self._mask)
        return self._told()

    def _told(self) -> Seen:
        s = self.state
        if self._row is not self._features:
            width = self._row.shape[2]
            self._features[:, :, :width] = self._row
            recall(s.people, len(self.actions), self._features[:, :, width:])
        if self._hooks is not None:
            self._hooks.restrict(s, self._first_use, self._mask)
        alive = s.people["alive"] == 1
        days = self.days
        over = np.zeros(self.worlds, np.bool_) if days is None else s.town["tick"] >= days * int(self.law.n["day"])
        return Seen(
            features=self._features,
            maps=self._maps,
            mask=self._mask,
            reward=self._reward,
            terminated=s.people["cause"] > 0,
            truncated=np.repeat(over[:, None], self.residents, axis=1),
            alive=alive,
        )


@jit
def masks(law: Any, towns: Any, people: Any, things: Any, who: Any, out: Any) -> None:
    for b in range(towns.size):
        _masks(law, towns[b], people[b], things[b], who[b], out[b])


@jit
def _masks(law: Any, town: Any, people: Any, things: Any, who: Any, out: Any) -> None:
    for i in range(people.size):
        allow(law, town, people, things, who, i, out[i])


@jit
def begin(law: Any, towns: Any, people: Any, things: Any, who: Any, slots: Any, events: Any) -> None:
    """The first morning of every world."""
    for b in range(towns.size):
        first_morning(law, towns[b], people[b], things[b], who[b], slots[b], events[b])


@jit
def advance(
    law: Any,
    towns: Any,
    people: Any,
    things: Any,
    who: Any,
    slots: Any,
    events: Any,
    actions: Any,
    rewards: Any,
    features: Any,
    maps: Any,
    mask: Any,
) -> None:
    """A tick, and what is seen and possible then. World by world: what one needs is near, and one call costs as much as
    the tick of a hundred residents."""
    for b in range(towns.size):
        _tick(law, towns[b], people[b], things[b], who[b], slots[b], events[b], actions[b], rewards[b])
        observe_world(law, towns[b], people[b], things[b], who[b], features[b], maps[b])
        _masks(law, towns[b], people[b], things[b], who[b], mask[b])


@jit
def _tick(
    law: Any, town: Any, people: Any, things: Any, who: Any, slots: Any, ring: Any, actions: Any, rewards: Any
) -> None:
    weather(law, town, people, ring)
    dawn(law, town, people, ring)
    deliver(law, town, things, ring)
    arrivals(law, town, people, things, who, slots, ring)
    first = below(draw(town.seed, town.tick, ORDER_STREAM, 0), people.size)
    for k in range(people.size):  # nobody is always first
        i = first + k
        if i >= people.size:
            i -= people.size
        i = index(i)
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
    pass_by(law, town, people, ring)
    queues(law, town, people, things, ring)
    gather(law, town, people, ring)
    fade(law, town, people)
    if town.tick % 60 == 0:
        refill(law, town, people)
    exits(law, town, people, things, who, slots, ring, rewards)
    town.tick += 1
    town.time = town.time + 1 if town.time + 1 < law.n.day else 0
