"""Several algorithms one after another on the same policy: a warm-up by examples, then practice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.contracts.algorithm import Algorithm, AlgorithmState, Asked, Batch, LearnContext
from holdfast.contracts.policy import Policy

BEGAN = "began"  # in a state's data: at which step each stage began


@dataclass(frozen=True)
class Stages:
    """Each algorithm until it asks for no more; the next one begins with what it left."""

    algorithms: Sequence[Algorithm]

    def start(self, base: Policy) -> AlgorithmState:
        return replace(self.algorithms[0].start(base), data={BEGAN: [0]})

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Asked]:
        return self._turn(state, tasks)[2]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        began = list(state.data[BEGAN])
        told = self.algorithms[len(began) - 1].tell(_own(state, began), batch, ctx)
        next_state = replace(told, step=state.step + 1, data={**told.data, BEGAN: began})
        return self.onward(next_state)

    def onward(self, state: AlgorithmState) -> AlgorithmState:
        """The state with the stage that it is in: those that have nothing more to ask are over."""
        began, _, _ = self._turn(state, (None,))
        return replace(state, data={**state.data, BEGAN: began})

    def _turn(self, state: AlgorithmState, tasks: Sequence[Any]) -> tuple[list[int], AlgorithmState, Sequence[Asked]]:
        began = list(state.data[BEGAN])
        while True:
            own = _own(state, began)
            work = self.algorithms[len(began) - 1].ask(own, tasks)
            if work or len(began) == len(self.algorithms):
                return began, own, work
            began.append(state.step)


def _own(state: AlgorithmState, began: Sequence[int]) -> AlgorithmState:
    """As the algorithm of the last stage counts its steps."""
    return replace(state, step=state.step - began[-1])
