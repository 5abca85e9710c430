"""Which features are on: made once from the flags, and handed as a value to whoever can do without one of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Off is what was there before the feature. Where no flag says anything, all of them are on."""

    budgets: bool = True  # how much a model may think
    minimal_diff: bool = True  # how small a change is, and whether it tampers
    judges: bool = True  # models that judge
    tool_rewards: bool = True  # shaping by how tools are used
    learning: bool = True  # moving weights by what was collected


ALL_ON = Features()
ALL_OFF = Features(budgets=False, minimal_diff=False, judges=False, tool_rewards=False, learning=False)
