"""Feature flags: what may be switched, for whom, and what else has to be on. `promote` evaluates them.

`Features` is what they come to: made once, and handed as a value to whoever can do without one of the features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord, check_fields


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


OPERATORS = ("equals", "in", "not_in", "prefix", "suffix", "above", "below")


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One thing that must hold of the context: `{"attribute": "group", "operator": "in", "value": ["staff"]}`."""

    attribute: str
    operator: str
    value: Any

    def __post_init__(self) -> None:
        if self.operator not in OPERATORS:
            raise BadRecord(f"operator {self.operator!r}", why="is unknown", remedy=f"use {', '.join(OPERATORS)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagRule:
    """Who meets every condition, and is within the share, gets the variant. The first rule that fits decides."""

    variant: str
    conditions: tuple[Condition, ...] = ()  # none: everybody
    percent: float = field(default=100.0, metadata={"minimum": 0, "maximum": 100})

    def __post_init__(self) -> None:
        check_fields(f"rule for {self.variant}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Off, killed, or without a rule that fits, it has its `off` variant: what was there before the feature."""

    SCHEMA: ClassVar[int] = 1

    name: str
    variants: Mapping[str, Any]  # value by name; all of one type
    off: str  # variant
    enabled: bool = False
    killed: bool = False  # the kill switch: stronger than everything else
    rules: tuple[FlagRule, ...] = ()
    requires: Mapping[str, str] = field(default_factory=dict)  # another flag → the variant it must have
    salt: str = ""  # of the hash; blank: the flag's name
    description: str = ""
    owner: str = ""
    expires_at: float | None = None  # after it the flag is off, and should be gone from the code
    changed_at: float = 0.0

    def __post_init__(self) -> None:
        where = f"flag {self.name!r}"
        if not self.name.strip() or any(c.isspace() for c in self.name):
            raise BadRecord(where, why="a name has no blanks in it, and is not empty")
        if not self.variants:
            raise BadRecord(f"{where}: variants", why="there is none")
        if len({type(value) for value in self.variants.values()}) > 1:
            raise BadRecord(f"{where}: variants", why="are of more than one type")
        for name in (self.off, *(rule.variant for rule in self.rules)):
            if name not in self.variants:
                known = ", ".join(self.variants)
                raise BadRecord(f"{where}: variant {name!r}", why="is not one of its variants", remedy=f"use {known}")
        if self.name in self.requires:
            raise BadRecord(f"{where}: requires", why="itself")
