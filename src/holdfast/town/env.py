"""A batch of worlds to act in: actions in; observations, rewards, ends and masks out.

The same world comes of the same seed in a batch of any size. Arrays that come out are the batch's own and are written
again by the next step: copy what is to be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.town import actions as deeds
from holdfast.town import scripts, step
from holdfast.town.actions import allow
from holdfast.town.compiled_rules import Law, law
from holdfast.town.jit import jit
from holdfast.town.observations import Senses, empty, observe, senses
from holdfast.town.rng import world_seed
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


class Env:
    def __init__(
        self, rules: Rules | None = None, *, worlds: int = 1, variant: str = "compact", days: int | None = None
    ) -> None:
        self.rules = rules or load()
        self.law: Law = law(self.rules)
        self.worlds, self.residents = worlds, int(self.rules["residents"])
        self.senses: Senses = senses(self.rules, variant)
        self.actions = deeds.names(self.rules)
        self.days = days
        shape = (worlds, self.residents)
        self._features, self._maps = empty(self.senses, worlds, self.residents)
        self._mask = np.zeros((*shape, len(self.actions)), np.uint8)
        self._reward = np.zeros(shape, np.float32)
        self._planned = np.zeros(shape, np.int64)
        ids = [entry["id"] for entry in self.rules["affordance"]]
        self._uses = np.array([ids.index(name) if name in ids else -1 for name in PLANNED], np.int64)
        self.state: TownState = self._blank()
        self.reset(0)

    def _blank(self) -> TownState:
        n = self.law.n
        return blank(self.worlds, self.residents, int(n["things"]), int(n["tiles"]), int(n["slots"]))

    def reset(self, seed: int, *, first_world: int = 0) -> Seen:
        """The first morning of every world; world k is the one that `first_world + k` would be in any other batch."""
        self.state = self._blank()
        self.state.town["seed"] = [world_seed(seed, first_world + k) for k in range(self.worlds)]
        step.begin(self.law, *self.state.arrays.values())
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
        s = self.state
        step.tick(self.law, s.town, s.people, s.things, s.who, s.slots, s.events, wanted, self._reward)
        return self._seen()

    def scripted(self) -> NDArray[np.int64]:
        """What residents who plan would do now."""
        s = self.state
        scripts.plan(self.law, s.town, s.people, s.things, s.who, self._uses, self._planned)
        return self._planned

    def _seen(self) -> Seen:
        s = self.state
        observe(self.law, s.town, s.people, s.things, s.who, self._features, self._maps)
        masks(self.law, s.town, s.people, s.things, s.who, self._mask)
        alive = s.people["alive"] == 1
        over = self.days is not None and int(s.town["tick"][0]) >= self.days * int(self.law.n["day"])
        return Seen(
            features=self._features,
            maps=self._maps,
            mask=self._mask,
            reward=self._reward,
            terminated=s.people["cause"] > 0,
            truncated=np.full(alive.shape, over),
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
