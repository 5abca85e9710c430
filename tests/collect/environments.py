"""Small environments in Gymnasium's form, for tests: quick to learn in, odd where environments may be odd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete


class Signpost(gymnasium.Env[Any, Any]):
    """Three times the sign points left (−1) or right (1); going where it points pays 1."""

    observation_space, action_space = Box(-1.0, 1.0, (1,), np.float32), Discrete(2)
    hook: ClassVar[Callable[[], None]] = staticmethod(lambda: None)  # called in every step

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self._sign(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        type(self).hook()
        paid = float((action == 1) == (self.sign > 0))
        self.age += 1
        return self._sign(), paid, self.age == 3, False, {}

    def _sign(self) -> Any:
        self.sign = 1.0 if self.np_random.random() < 0.5 else -1.0
        return np.array([self.sign], np.float32)


class Corridor(gymnasium.Env[Any, Any]):
    """Three rooms: forward (action 6) ends in the last, back (5) is forbidden in the first."""

    observation_space = Dict({"room": Discrete(3), "light": Box(0.0, 1.0, (1,), np.float32)})
    action_space = Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.room = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self.room += 1 if action == 6 else -1
        seen, info = self._seen()
        return seen, float(self.room), self.room == 2, False, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        seen = {"room": self.room, "light": np.array([0.5], np.float32)}
        return seen, {"action_mask": np.array([self.room > 0, True])}


class Sealed(gymnasium.Env[Any, Any]):
    """Takes two choices at once."""

    observation_space, action_space = Box(0.0, 1.0, (1,), np.float32), MultiDiscrete([2, 2])


class Fixed(gymnasium.Env[Any, Any]):
    """Pays the number that it is given, once. Cannot be pickled."""

    observation_space, action_space = Box(-9.0, 9.0, (2, 1), np.float32), Box(-1.0, 2.0, (1, 1), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.open = lambda: None
        return np.zeros((2, 1), np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full((2, 1), 3.0, np.float32), float(action[0, 0]), False, True, {}


class Shortcuts(gymnasium.Env[Any, Any]):
    """Two steps, in each of which one may take a shortcut: it pays what is seen, and where that is little it does
    harm, which costs 0.5."""

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._age = 0
        return self._seen(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        gain, self._age = float(self._now[0]), self._age + 1
        cost = 0.5 * (action == 1 and gain < 0.5)
        return self._seen(), gain * (action == 1), self._age == 2, False, {"cost": cost}

    def _seen(self) -> Any:
        self._now = self.np_random.uniform(0.0, 1.0, 1).astype(np.float32)
        return self._now
