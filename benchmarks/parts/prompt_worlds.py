"""Problems that are drawn by chance: what each sentence of the bank is worth is known, and no model is asked.

They cost nothing, so there can be many of them; what they lack is a model. Some sentences help, three harm, most do
little; in most worlds the helpful ones do little as long as a key sentence is missing, and length costs a little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Any

from holdfast.learn.proposers import sentences

LITTLE = (0.0, 0.0, 0.0, 0.0, -0.02, -0.05, 0.02)
WITHOUT_KEY = 0.3  # of what a helpful sentence is worth
SPREAD = 0.7  # of how hard tasks are, from end to end
SHARED = 0.5  # of outcomes that all prompts have by the same chance


@dataclass(frozen=True, eq=False)
class World:
    seed: int
    base: float  # success of the first prompt
    worth: Mapping[str, float]
    helpful: frozenset[str]
    key: str | None
    length: float  # what each sentence costs

    @classmethod
    def of(cls, seed: int, bank: Sequence[str]) -> World:
        rng = Random(f"world/{seed}")
        base, helpful = rng.uniform(0.15, 0.6), rng.sample(bank, rng.randint(2, 6))
        harmful = rng.sample([one for one in bank if one not in helpful], 3)
        worth = {one: rng.choice(LITTLE) for one in bank}
        worth |= {one: rng.uniform(0.04, 0.25) for one in helpful}
        worth |= {one: -rng.uniform(0.1, 0.4) for one in harmful}
        key = rng.choice(helpful) if rng.random() < 0.6 else None
        return cls(seed, base, worth, frozenset(helpful), key, rng.uniform(0.0, 0.01))

    def success(self, prompt: str) -> float:
        """Its share of tasks, in the mean."""
        parts = list(dict.fromkeys(sentences(prompt)))
        is_open, value = self.key is None or self.key in parts, self.base
        for one in parts:
            is_shut = one in self.helpful and one != self.key and not is_open
            value += self.worth.get(one, 0.0) * (WITHOUT_KEY if is_shut else 1.0)
        return min(0.97, max(0.02, value - self.length * len(parts)))

    def outcome(self, prompt: str, part: str, place: int) -> float:
        value = self.success(prompt)
        harder = (self._draw("hard", part, place) - 0.5) * SPREAD * min(1.0, 4 * value * (1 - value))
        is_shared = self._draw("shared", part, place, prompt) < SHARED
        chance = self._draw("chance", part, place, *(() if is_shared else (prompt,)))
        return float(chance < value + harder)

    def _draw(self, *name: Any) -> float:
        digest = sha256("/".join(map(str, (self.seed, *name))).encode()).digest()
        return int.from_bytes(digest[:6]) / 2**48
