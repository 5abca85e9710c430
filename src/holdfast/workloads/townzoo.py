"""All residents of a town at once, each an agent of its own, as PettingZoo's `ParallelEnv`.

The agents are the residents of the first morning, named by their seats. A resident who has to leave is terminated and
does not come back; whoever moves in later follows the script. When the days are over, the rest are truncated. Masks are
in `infos[agent]["action_mask"]`; an impossible or missing action is a tick of waiting.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Discrete

from holdfast.contracts.errors import BadInput, boundary
from holdfast.workloads.townenv import SEEDS, Sight, about, lived, sight, sight_space
from holdfast.workloads.townlife import Rules

try:
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    raise BadInput("the town for many agents", why="needs PettingZoo", remedy="pip install pettingzoo") from error

Infos = dict[str, dict[str, Any]]


class TownZoo(ParallelEnv):  # type: ignore[misc]
    """A town whose residents get their actions from outside."""

    metadata = {"name": "town_v1", "render_modes": [], "is_parallelizable": True}  # noqa: RUF012 (PettingZoo's)

    def __init__(self, rules: Rules | None = None, *, variant: str = "compact", days: int = 1) -> None:
        self.town = lived(rules, variant, days)
        self.possible_agents = [f"resident_{seat}" for seat in range(self.town.residents)]
        self.agents: list[str] = []
        self._seats = {agent: seat for seat, agent in enumerate(self.possible_agents)}
        self.observation_spaces: dict[str, Space[Any]] = {a: sight_space(self.town) for a in self.possible_agents}
        self.action_spaces = {agent: Discrete(len(self.town.actions)) for agent in self.possible_agents}
        self._rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Sight], Infos]:
        """Starts a world; without a seed, the next one of this environment's generator."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        seen = self.town.reset(int(self._rng.integers(SEEDS)) if seed is None else seed)
        self.agents = list(self.possible_agents)
        infos = {agent: about(seen, seat) for agent, seat in self._seats.items()}
        return {agent: sight(self.town, seen, seat) for agent, seat in self._seats.items()}, infos

    def step(
        self, actions: dict[str, np.int64]
    ) -> tuple[dict[str, Sight], dict[str, float], dict[str, bool], dict[str, bool], Infos]:
        if not self.agents:
            raise BadInput("step", why="there is no episode, or it is over", remedy="reset first")
        unknown = sorted(set(actions) - set(self.agents))
        if unknown:
            raise BadInput(f"agent {unknown[0]}", why="is not in town", remedy="act for those in agents")
        seats = {agent: self._seats[agent] for agent in self.agents}
        wanted = self.town.scripted().copy()
        for agent, seat in seats.items():
            wanted[0, seat] = actions.get(agent, 0)
        with boundary(BadInput, "actions"):
            seen = self.town.step(wanted)
        ended = {agent: bool(seen.terminated[0, seat]) for agent, seat in seats.items()}
        cut = {agent: bool(seen.truncated[0, seat]) and not ended[agent] for agent, seat in seats.items()}
        self.agents = [agent for agent in self.agents if not (ended[agent] or cut[agent])]
        return (
            {agent: sight(self.town, seen, seat) for agent, seat in seats.items()},
            {agent: float(seen.reward[0, seat]) for agent, seat in seats.items()},
            ended,
            cut,
            {agent: about(seen, seat) for agent, seat in seats.items()},
        )
