"""Feature flags: what may be switched, for whom, and what else has to be on. `promote` evaluates them.

`Features` is what they come to for one unit: a task, or the user that it is for. It is made once and handed as a value
to whoever can do without one of the features. Learning is a matter of a whole run, whose unit is the run itself.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any, ClassVar, Protocol

from holdfast.contracts.errors import BadRecord, check_fields

# Of a rollout's metadata: the features that its unit does not get, and its arms by experiment.
WITHOUT, ARMS = "without", "arms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Off is what was there before the feature. Where no flag says anything, all of them are on."""

    budgets: bool = True  # how much a model may think
    adaptive: bool = True  # by how hard the task is; off: the same number for every task
    minimal_diff: bool = True  # how small a change is, and whether it tampers
    scaffolding: bool = True  # what a change added and nothing needs makes it larger
    judges: bool = True  # models that judge
    combined: bool = True  # what judges say counts beside the rules; off: it is only kept
    tool_rewards: bool = True  # shaping by how tools are used
    turn_rewards: bool = True  # terms of single turns
    learning: bool = True  # moving weights by what was collected

    @property
    def off(self) -> tuple[str, ...]:
        return tuple(one.name for one in fields(self) if not getattr(self, one.name))

    def features(self, key: str) -> Features:
        """The same for every unit: see FeatureFlags."""
        return self

    def everybody(self) -> Features | None:
        return self

    def somebody(self) -> Features:
        return self

    def exposures(self, key: str, used: Collection[str]) -> Mapping[str, str]:
        return {}


def features_without(names: Collection[str]) -> Features:
    """All but these; names of a newer version are left alone."""
    known = {one.name for one in fields(Features)}
    return Features(**dict.fromkeys(known.intersection(names), False))


ALL_ON = Features()
ALL_OFF = features_without([one.name for one in fields(Features)])


class FeatureFlags(Protocol):
    """The flags of one moment, as a run asks them."""

    def features(self, key: str) -> Features:
        """What the unit with this key gets."""

    def everybody(self) -> Features | None:
        """What all units get alike; None: it differs, or experiments are going on, and each has to be asked for."""

    def somebody(self) -> Features:
        """What at least some units get."""

    def exposures(self, key: str, used: Collection[str]) -> Mapping[str, str]:
        """The experiments about these features that the unit takes part in, each with its arm."""


def run_unit(run: str) -> str:
    """The key of a run: the end of its id, known before the run has its number."""
    return run.rpartition("-")[2]


def unit_of(task: Any) -> str:
    """Whom a task is about: its `user`, else its own `id`, else its content. Attempts at one task have one unit, and so
    are paid by the same rules."""
    if isinstance(task, Mapping):
        parts = [one for one in (task, task.get("input"), task.get("metadata")) if isinstance(one, Mapping)]
        for given in (*(part.get("user") for part in parts), task.get("id")):
            if isinstance(given, str | int) and str(given).strip():
                return str(given)
    text = json.dumps(task, sort_keys=True, default=str, ensure_ascii=True)
    return f"task-{sha256(text.encode()).hexdigest()[:16]}"


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
