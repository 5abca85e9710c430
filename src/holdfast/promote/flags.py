"""What a flag is for somebody, and why: pure, over one snapshot of all flags.

The order is fixed: it exists → it is not killed → it is enabled → it has not expired → what it requires holds → the
first rule that fits. Whatever fails on the way gives the `off` variant, which is what was there before the feature.
Where flags are kept is the store's business, how a program asks for them is `provider`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import Condition, Flag
from holdfast.promote.bucketing import bucket

KEY = "targetingKey"  # of the context: who it is about, by OpenFeature's name
MOST_DEEP = 32  # flags that require flags that require …
KILL = "HOLDFAST_KILL_"
UNSAID = frozenset({"", "0", "false", "no", "off"})  # a variable with any other text in it kills


class Why(StrEnum):
    """OpenFeature's reasons."""

    STATIC = "STATIC"  # a rule for everybody
    TARGETING_MATCH = "TARGETING_MATCH"  # a rule whose conditions hold
    SPLIT = "SPLIT"  # a rule for a share, and the key falls into it
    DISABLED = "DISABLED"  # killed, not enabled, or expired
    DEFAULT = "DEFAULT"  # no rule fits, or what it requires does not hold
    ERROR = "ERROR"  # there is no such flag, or what it requires cannot be told


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagValue:
    """A flag's value for one context."""

    value: Any  # None when there is no such flag
    variant: str | None
    reason: Why
    detail: str = ""  # the reason in words
    error: str | None = None  # OpenFeature's code: FLAG_NOT_FOUND, GENERAL; goes with ERROR


class _Broken(Exception):
    """What a flag requires is missing, goes in a circle, or goes too deep."""


def evaluate(
    name: str, flags: Mapping[str, Flag], context: Mapping[str, Any], *, now: float, environment: Mapping[str, str]
) -> FlagValue:
    """The flag's value for this context. `environment` may kill: HOLDFAST_KILL_<FLAG>."""
    if name not in flags:
        why = f"there is no flag {name!r}"
        return FlagValue(value=None, variant=None, reason=Why.ERROR, detail=why, error="FLAG_NOT_FOUND")
    try:
        return _Look(flags, context, now, environment).at(name, ())
    except _Broken as broken:
        flag = flags[name]
        return FlagValue(
            value=flag.variants[flag.off], variant=flag.off, reason=Why.ERROR, detail=str(broken), error="GENERAL"
        )


class _Look:
    """One evaluation: what several flags require is looked at once."""

    def __init__(
        self, flags: Mapping[str, Flag], context: Mapping[str, Any], now: float, environment: Mapping[str, str]
    ) -> None:
        self._flags, self._context, self._now, self._environment = flags, context, now, environment
        self._known: dict[str, FlagValue] = {}

    def at(self, name: str, path: tuple[str, ...]) -> FlagValue:
        if name in path:
            raise _Broken(f"what it requires goes in a circle: {' → '.join((*path[path.index(name) :], name))}")
        if len(path) > MOST_DEEP:
            raise _Broken(f"what it requires goes deeper than {MOST_DEEP} flags")
        if name not in self._known:
            self._known[name] = self._decide(self._flags[name], (*path, name))
        return self._known[name]

    def _decide(self, flag: Flag, path: tuple[str, ...]) -> FlagValue:
        if switch := self._switched_off(flag):
            return _off(flag, Why.DISABLED, switch)
        if unmet := self._unmet(flag, path):
            return _off(flag, Why.DEFAULT, unmet)
        return self._by_rules(flag)

    def _switched_off(self, flag: Flag) -> str:
        variable = kill_variable(flag.name)
        if self._environment.get(variable, "").strip().lower() not in UNSAID:
            return f"killed by {variable}"
        if flag.killed:
            return "killed"
        if not flag.enabled:
            return "not enabled"
        if flag.expires_at is not None and self._now >= flag.expires_at:
            return "expired"
        return ""

    def _unmet(self, flag: Flag, path: tuple[str, ...]) -> str:
        for other, wanted in flag.requires.items():
            if other not in self._flags:
                raise _Broken(f"it requires {other}, and there is no such flag")
            found = self.at(other, path)
            if found.variant != wanted:
                return f"it requires {other} = {wanted}, which is {found.variant} ({found.detail})"
        return ""

    def _by_rules(self, flag: Flag) -> FlagValue:
        key = self._context.get(KEY)
        known = key if isinstance(key, str) and key.strip() else None
        place = None if known is None else 100.0 * bucket(known, f"flag/{flag.salt or flag.name}")
        passed_over = ""
        widest = 0.0  # of the shares that the key is not in
        for number, rule in enumerate(flag.rules, 1):
            if rule.percent <= 0.0 or not all(holds(condition, self._context) for condition in rule.conditions):
                continue
            is_share = rule.percent < 100.0
            if is_share and place is None:
                passed_over = "; shares were passed over, for the context has no targeting key"
            elif is_share and place is not None and place >= rule.percent:
                widest = max(widest, rule.percent)
            elif not is_share or (place is not None and place < rule.percent):
                reason = Why.SPLIT if is_share else Why.TARGETING_MATCH if rule.conditions else Why.STATIC
                detail = f"rule {number}{passed_over}"
                return FlagValue(value=flag.variants[rule.variant], variant=rule.variant, reason=reason, detail=detail)
        outside = f"; the key's place is {place:.1f}, not below {widest:g} %" if widest else ""
        return _off(flag, Why.DEFAULT, f"no rule fits{passed_over}{outside}")


def _off(flag: Flag, reason: Why, detail: str) -> FlagValue:
    return FlagValue(value=flag.variants[flag.off], variant=flag.off, reason=reason, detail=detail)


@lru_cache(maxsize=1024)
def kill_variable(name: str) -> str:
    """`extendedThinking.enabled` → HOLDFAST_KILL_EXTENDEDTHINKING_ENABLED."""
    return KILL + "".join(c.upper() if c.isascii() and c.isalnum() else "_" for c in name)


def holds(condition: Condition, context: Mapping[str, Any]) -> bool:
    """Whether it holds. What the context does not tell holds for nothing, not even for `not_in`."""
    found, wanted = context.get(condition.attribute), condition.value
    if found is None or not _is_fit(condition):
        return False
    many = list(found) if isinstance(found, Sequence | set | frozenset) and not isinstance(found, str) else [found]
    match condition.operator:
        case "equals":
            return _same(found, wanted)
        case "in":
            return any(_same(one, other) for one in many for other in wanted)
        case "not_in":
            return not any(_same(one, other) for one in many for other in wanted)
        case "prefix":
            return isinstance(found, str) and found.startswith(wanted)
        case "suffix":
            return isinstance(found, str) and found.endswith(wanted)
        case _:
            number = _number(found)
            if number is None:
                return False
            return bool(number > wanted if condition.operator == "above" else number < wanted)


def _same(one: Any, other: Any) -> bool:
    """Equal, and not merely as Python has it: true is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _number(value: Any) -> float | None:
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def check(flag: Flag, flags: Mapping[str, Flag]) -> None:
    """Refuse a flag that could never be evaluated beside these others: BadInput says what to change."""
    for rule in flag.rules:
        for condition in rule.conditions:
            _check_condition(flag.name, condition)
    beside = {**flags, flag.name: flag}
    for other, variant in flag.requires.items():
        if other not in beside:
            raise BadInput(f"flag {flag.name}: requires {other}", why="there is no such flag", remedy="put it first")
        if variant not in beside[other].variants:
            known = ", ".join(beside[other].variants)
            what = f"flag {flag.name}: requires {other} = {variant}"
            raise BadInput(what, why="that flag has no such variant", remedy=f"use one of {known}")
    for one in flags.values():  # a variant that others count on may have gone
        if one.name != flag.name and one.requires.get(flag.name, flag.off) not in flag.variants:
            why = f"{one.name} requires its variant {one.requires[flag.name]}"
            raise BadInput(f"flag {flag.name}: variants", why=why, remedy=f"keep it, or change {one.name} first")
    _height(beside, flag.name, (), {})


def _check_condition(name: str, condition: Condition) -> None:
    if not _is_fit(condition):
        wanted = {"equals": "a text, a number, true or false", "in": "a list", "not_in": "a list"}
        wanted |= {"prefix": "a text", "suffix": "a text", "above": "a number", "below": "a number"}
        what = f"flag {name}: {condition.attribute} {condition.operator} {condition.value!r}"
        raise BadInput(what, why=f"{condition.operator} needs {wanted[condition.operator]}")


def _is_fit(condition: Condition) -> bool:
    match condition.operator:
        case "equals":
            return isinstance(condition.value, str | int | float)
        case "in" | "not_in":
            return isinstance(condition.value, list | tuple)
        case "prefix" | "suffix":
            return isinstance(condition.value, str)
        case _:
            return _number(condition.value) is not None and isfinite(condition.value)


def _height(flags: Mapping[str, Flag], name: str, path: tuple[str, ...], known: dict[str, int]) -> int:
    """How many flags stand on one another below this one; a circle, or too many of them, is refused."""
    if name in path:
        why = f"goes in a circle: {' → '.join((*path[path.index(name) :], name))}"
        raise BadInput(f"flag {path[0]}: requires", why=why, remedy="leave one of them out")
    if name not in known and len(path) <= MOST_DEEP:
        below = [_height(flags, other, (*path, name), known) for other in flags[name].requires if other in flags]
        known[name] = 1 + max(below, default=-1)
    if len(path) + known.get(name, 1) > MOST_DEEP:
        raise BadInput(f"flag {path[0]}: requires", why=f"goes deeper than {MOST_DEEP} flags")
    return known[name]


def needed_by(name: str, flags: Mapping[str, Flag]) -> list[str]:
    """The flags that require this one; it cannot be dropped before them."""
    return sorted(flag.name for flag in flags.values() if name in flag.requires)
