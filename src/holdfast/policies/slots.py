"""Which slot of a cache holds the keys and values of which tokens, and where a prompt's beginning can be taken from.

A slot depends on at most one other, which holds its first `shared` tokens.
Only the book-keeping is here; the keys and values themselves are in `cpu` and `graph`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
GRAIN = 64  # what is shared is a multiple of this, as the keys lie in tiles
WORTH = 8  # a shared beginning shorter than this is computed again: leaning on it costs as much


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Where a prompt goes, and what of it is there already."""

    slot: int
    start: int  # its first tokens, up to here, need not be computed
    base: int  # of these, the first `shared` lie in this slot …
    shared: int  # a multiple of GRAIN
    source: int  # … and the rest is to be copied from this one (-1: it is in its own slot already)


class Slots:
    """`count` slots of `context` tokens. Without `memory` every prompt begins from nothing, in the lowest free slot."""

    def __init__(self, count: int, context: int, *, memory: bool) -> None:
        self.active = np.zeros(count, bool)
        self.base, self.shared = np.arange(count), np.zeros(count, np.int64)
        self._memory = memory
        self._tokens = np.full((count, context), -1, np.int32)  # -1: nothing there
        self._dependents = np.zeros(count, np.int64)  # how many lean on it
        self._fresh = np.zeros(count, bool)  # taken, and not yet computed
        self._released = np.zeros(count, np.int64)  # when; 0: never used
        self._clock = 0

    def take(self, ids: Ints, *, wait: bool) -> SlotPlan | None:
        """A plan for the prompt; None where no slot is free, or (`wait`) a neighbour's prefix is worth waiting for."""
        known, like = self._longest(ids[:-1])
        if self._fresh[like]:
            older, than = self._longest(ids[:-1], but=self._fresh)
            if wait and known >= older + WORTH:
                return None
            known, like = older, than
        if known < WORTH:
            known, like = 0, -1
        plan = self._plan(known, like)
        if plan is not None:
            self._tokens[plan.slot, plan.start :] = -1
            self._tokens[plan.slot, plan.start : len(ids) - 1] = ids[plan.start : -1]
            self._tokens[plan.slot, : plan.start] = ids[: plan.start]
            self.active[plan.slot] = self._fresh[plan.slot] = True
            self.base[plan.slot], self.shared[plan.slot] = plan.base, plan.shared
        return plan

    def forget(self) -> None:
        """Drops all prefixes, after the weights have changed."""
        self._tokens[:] = -1
        self.base[:], self.shared[:], self._dependents[:] = np.arange(len(self.base)), 0, 0

    def computed(self) -> None:
        """Marks all taken slots as computed."""
        self._fresh[:] = False

    def fed(self, slots: Ints, places: Ints, tokens: Ints) -> None:
        self._tokens[slots, places] = tokens

    def leave(self, slot: int) -> None:
        """Releases a slot; its prefix stays until the slot is needed."""
        self._clock += 1
        self.active[slot], self._released[slot] = False, self._clock

    def _longest(self, ids: Ints, but: NDArray[np.bool_] | None = None) -> tuple[int, int]:
        """The length of the longest known prefix, and its slot."""
        if not self._memory or not len(ids):
            return 0, 0
        same = self._tokens[:, : len(ids)] == ids
        length = np.where(same.all(axis=1), len(ids), same.argmin(axis=1))
        if but is not None:
            length[but] = 0
        like = int(length.argmax())
        return int(length[like]), like

    def _plan(self, known: int, like: int) -> SlotPlan | None:
        if like < 0:
            slot = self._clear(-1)
            return None if slot < 0 else SlotPlan(slot, 0, slot, 0, -1)
        root, reach = int(self.base[like]), int(self.shared[like])
        if root == like:
            reach, source = known // GRAIN * GRAIN, like
        elif known < reach:
            reach, source = known // GRAIN * GRAIN, root
        else:
            source = like
        if self._is_free(like) and 2 * known >= (self._tokens[like] >= 0).sum():
            return self._stay(like, root, known, reach)
        self._dependents[root] += reach > 0
        slot = self._clear(keep=like)
        if slot < 0:
            self._dependents[root] -= reach > 0
            # With few slots the like one may be all there is: to wait for another would be to wait for ever.
            return self._stay(like, root, known, reach) if self._is_free(like) else None
        return SlotPlan(slot, known, root if reach else slot, reach, source if reach < known else -1)

    def _is_free(self, slot: int) -> bool:
        return not self.active[slot] and not self._dependents[slot]

    def _stay(self, slot: int, root: int, known: int, reach: int) -> SlotPlan:
        """Continues in the slot that holds the prefix."""
        if root == slot:
            return SlotPlan(slot, known, slot, 0, -1)
        if reach == 0:
            self._dependents[root] -= 1
        source = root if reach < known and known < self.shared[slot] else -1
        return SlotPlan(slot, known, root if reach else slot, reach, source)

    def _clear(self, keep: int) -> int:
        """Empties the slot that has been idle longest and that no other depends on; -1 where there is none."""
        idle = ~self.active & (self._dependents == 0)
        if keep >= 0:
            idle[keep] = False
        if not idle.any():
            return -1
        if not self._memory:
            return int(idle.argmax())
        slot = int(np.where(idle, self._released, np.iinfo(np.int64).max).argmin())
        if self.base[slot] != slot:
            self._dependents[self.base[slot]] -= 1
            self.base[slot], self.shared[slot] = slot, 0
        return slot
