"""One resident of a town as a Gymnasium environment; all others follow their script.

    env = Resident(seat=3)
    seen, info = env.reset(seed=7)      # the same world that the native Env has for 7

`town.observations` declares what is seen; `info["action_mask"]` says what is possible. An episode is terminated when
the resident has to leave, and truncated when the days are over. All residents at once are in `townzoo`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput, boundary
from holdfast.workloads.townlife import Env, Rules, Seen

Sight = NDArray[np.float32] | dict[str, NDArray[np.float32]]  # features, or features and a map
SEEDS = 2**63  # worlds to choose from where nobody names one


def lived(rules: Rules | None, variant: str, days: int) -> Env:
    """One town for some days."""
    if days < 1:
        raise BadInput(f"days = {days}", why="must be at least 1")
    with boundary(BadInput, f"senses {variant}"):
        return Env(rules, variant=variant, days=days)


def sight_space(env: Env) -> Space[Any]:
    """All numbers lie within −1 and 1; a map comes with the variants that have one."""
    features = Box(-1.0, 1.0, (len(env.senses.features),), np.float32)
    if not env.senses.channels:
        return features
    return Dict({"features": features, "map": Box(-1.0, 1.0, env.senses.map_shape, np.float32)})


def sight(env: Env, seen: Seen, seat: int) -> Sight:
    """A copy of what this resident sees now."""
    features = seen.features[0, seat].copy()
    return {"features": features, "map": seen.maps[0, seat].copy()} if env.senses.channels else features


def about(seen: Seen, seat: int) -> dict[str, Any]:
    return {"action_mask": seen.mask[0, seat].astype(np.int8)}


class Resident(gymnasium.Env[Sight, np.int64]):
    """One resident; its episode is the stay of whoever has this seat at the start."""

    metadata = {"name": "town_resident_v1", "render_modes": []}  # noqa: RUF012 (Gymnasium asks for it)

    def __init__(self, rules: Rules | None = None, *, seat: int = 0, variant: str = "compact", days: int = 1) -> None:
        self.town = lived(rules, variant, days)
        if not 0 <= seat < self.town.residents:
            raise BadInput(f"seat {seat}", why=f"is not one of {self.town.residents}", remedy="count from 0")
        self.seat = seat
        self.observation_space = sight_space(self.town)
        self.action_space = Discrete(len(self.town.actions))
        self._is_over = True

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Sight, dict[str, Any]]:
        """Starts a world; without a seed, the next one of this environment's generator."""
        super().reset(seed=seed)
        seen = self.town.reset(int(self.np_random.integers(SEEDS)) if seed is None else seed)
        self._is_over = False
        return sight(self.town, seen, self.seat), about(seen, self.seat)

    def step(self, action: np.int64) -> tuple[Sight, float, bool, bool, dict[str, Any]]:
        if self._is_over:
            raise BadInput("step", why="there is no episode, or it is over", remedy="reset first")
        actions = self.town.scripted().copy()
        actions[0, self.seat] = action
        with boundary(BadInput, f"action {action}"):
            seen = self.town.step(actions)
        terminated = bool(seen.terminated[0, self.seat])
        truncated = bool(seen.truncated[0, self.seat]) and not terminated
        self._is_over = terminated or truncated
        reward = float(seen.reward[0, self.seat])
        return sight(self.town, seen, self.seat), reward, terminated, truncated, about(seen, self.seat)
