"""PettingZoo's parallel environments as vector environments: all agents of all of them side by side, one row each.

One network acts for all agents, so their spaces have to be alike. An agent that is done waits, worth nothing, until its
environment begins anew. Nothing of PettingZoo is imported: whatever has its parallel API will do. Masks come from
`infos[agent]["action_mask"]`, or from an observation that is a dict with `observation` and `action_mask`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, flatdim, flatten
from numpy.typing import NDArray

from holdfast.collect.gym import frozen, spaces_of, thawed
from holdfast.contracts.envs import Bools, Described, Floats, Observation, Spaces, State, StepResult
from holdfast.contracts.errors import BadInput, boundary

MASK, SEEN = "action_mask", "observation"
Make = Callable[[], Any]


def is_zoo(env: Any) -> bool:
    """Whether this environment is one of many agents."""
    return hasattr(env, "possible_agents")


class ZooMaker:
    """Makes parallel environments of many agents: `contracts.envs.EnvMaker`. The i-th is seeded with seed + i."""

    def __init__(self, name: str, make: Make) -> None:
        self.name, self._make = name, make

    def describe(self) -> Described:
        with boundary(BadInput, f"environment {self.name}"):
            one = self._make()
        described = Described(
            spaces=_spaces_of(self.name, one),
            max_steps=getattr(one, "max_cycles", None),
            threshold=None,
            returns=None,
            seats=len(one.possible_agents),
        )
        _close(one)
        return described

    def vector_env(self, count: int) -> ZooVectorEnv:
        return ZooVectorEnv(self.name, self._make, count, begins_anew=False)

    def training_env(self, count: int) -> ZooVectorEnv:
        return ZooVectorEnv(self.name, self._make, count, begins_anew=True)


class ZooVectorEnv:
    """`count` environments, and a row for each of their agents."""

    def __init__(self, name: str, make: Make, count: int, *, begins_anew: bool) -> None:
        with boundary(BadInput, f"environment {name}"):
            self._envs = [make() for _ in range(count)]
        self.name, self._begins_anew = name, begins_anew
        self.spaces = _spaces_of(name, self._envs[0])
        self._agents: Sequence[str] = list(self._envs[0].possible_agents)
        self._rows = {agent: k for k, agent in enumerate(self._agents)}
        self.count = count * len(self._agents)
        self._seen: Floats = np.zeros((self.count, self.spaces.observation), np.float32)
        self._mask: Bools = np.ones((self.count, self.spaces.actions), np.bool_)
        self._here: Bools = np.zeros(self.count, np.bool_)

    def reset(self, seed: int) -> Observation:
        for k, env in enumerate(self._envs):
            self._begin(k, *env.reset(seed=seed + k))
        return self._view()

    def step(self, actions: NDArray[Any]) -> StepResult:
        reward = np.zeros(self.count)
        terminated, truncated = np.zeros(self.count, np.bool_), np.zeros(self.count, np.bool_)
        ended = []
        for k, env in enumerate(self._envs):
            if not env.agents:
                continue
            first = k * len(self._agents)
            sent = {agent: self._action(env, agent, actions[first + self._rows[agent]]) for agent in env.agents}
            seen, paid, over, cut, infos = env.step(sent)
            for agent in paid:
                row = first + self._rows[agent]
                reward[row], terminated[row] = paid[agent], bool(over[agent])
                truncated[row] = bool(cut[agent]) and not terminated[row]
                self._show(env, row, agent, seen[agent], infos.get(agent, {}))
            if not env.agents:
                ended.append(k)
        final = self._seen.copy()
        self._wait(terminated | truncated)
        for k in ended if self._begins_anew else ():
            self._begin(k, *self._envs[k].reset())
        return StepResult(self._view(), reward, terminated, truncated, final)

    def is_over(self) -> bool:
        """Whether no agent is left anywhere."""
        return not any(env.agents for env in self._envs)

    def state(self) -> State:
        return frozen((self._envs, self._seen, self._mask, self._here))

    def restore(self, state: State) -> Observation:
        self._envs, self._seen, self._mask, self._here = thawed(state, self._envs)
        return self._view()

    def close(self) -> None:
        for env in self._envs:
            _close(env)

    def _begin(self, k: int, seen: Mapping[str, Any], infos: Mapping[str, Any]) -> None:
        env, first = self._envs[k], k * len(self._agents)
        self._here[first : first + len(self._agents)] = False
        for agent in env.agents:
            self._show(env, first + self._rows[agent], agent, seen[agent], infos.get(agent, {}))
            self._here[first + self._rows[agent]] = True

    def _wait(self, over: Bools) -> None:
        """Who is done sees nothing any more, and may do what it likes."""
        self._here &= ~over
        self._seen[~self._here], self._mask[~self._here] = 0.0, True

    def _show(self, env: Any, row: int, agent: str, seen: Any, info: Mapping[str, Any]) -> None:
        space, mask = env.observation_space(agent), info.get(MASK)
        if _has_mask(space):
            space, mask, seen = space[SEEN], seen[MASK], seen[SEEN]
        self._seen[row] = np.asarray(flatten(space, seen), np.float32)
        if mask is not None:
            self._mask[row] = np.asarray(mask, np.bool_)

    def _action(self, env: Any, agent: str, action: Any) -> Any:
        space = env.action_space(agent)
        if isinstance(space, Discrete):
            return int(action) + self.spaces.start
        return np.clip(action, space.low.ravel(), space.high.ravel()).reshape(space.shape).astype(space.dtype)

    def _view(self) -> Observation:
        return Observation(self._seen.copy(), None if self.spaces.continuous else self._mask.copy())


def _has_mask(space: Any) -> bool:
    return isinstance(space, Dict) and {MASK, SEEN} <= set(space.spaces)


def _spaces_of(name: str, env: Any) -> Spaces:
    """Of one agent; BadInput where they differ, or where agents act in turns."""
    if not hasattr(env, "step") or hasattr(env, "agent_iter"):
        remedy = "wrap it: pettingzoo.utils.conversions.aec_to_parallel"
        raise BadInput(f"environment {name}", why="its agents act in turns", remedy=remedy)
    found = {
        agent: _spaces(name, env.observation_space(agent), env.action_space(agent)) for agent in env.possible_agents
    }
    if not found:
        raise BadInput(f"environment {name}", why="has no agents")
    (first, spaces), *others = found.items()
    other = next((agent for agent, own in others if own != spaces), None)
    if other is not None:
        why = f"{other} sees or does other things than {first}, and one network acts for all"
        raise BadInput(f"environment {name}", why=why, remedy="pad their spaces (SuperSuit's pad_observations_v0)")
    return spaces


def _spaces(name: str, seen: Any, action: Any) -> Spaces:
    if not isinstance(action, Box | Discrete):
        why, remedy = f"actions {action} are neither one choice nor a vector", "wrap it into one"
        raise BadInput(f"environment {name}", why=why, remedy=remedy)
    return spaces_of(flatdim(seen[SEEN] if _has_mask(seen) else seen), action)


def _close(env: Any) -> None:
    close = getattr(env, "close", None)
    if close is not None:
        close()
