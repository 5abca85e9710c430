"""Evaluates feature flags over one snapshot of all flags, and defines the flags of Holdfast's own features.

The order is fixed: the flag exists, it is not killed, it is enabled, it has not expired, what it requires holds, then
the first rule that fits. Whatever fails gives the `off` variant. While an experiment about a flag runs, its arms stand
in the place of the rules without conditions. The flags of our own features are all on by default; a feature needs its
group, and five features can be switched off by environment variables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from math import isfinite
from types import MappingProxyType
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import Condition, Features, Flag, FlagRule
from holdfast.contracts.release import Experiment
from holdfast.promote.bucketing import bucket
from holdfast.promote.experiment import KIND, assign, is_running

KEY = "targetingKey"  # of the context: who it is about, by OpenFeature's name
MOST_DEEP = 32  # flags that require flags that require …
KILL = "HOLDFAST_KILL_"
NEEDS = {"equals": "a text, a number, true or false", "in": "a list", "not_in": "a list"}  # by operator
NEEDS |= {"prefix": "a text", "suffix": "a text", "above": "a number", "below": "a number"}
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
    experiment: str | None = None  # that gave the variant: whoever uses the value exposes the key to it


class _Broken(Exception):
    """What a flag requires is missing, goes in a circle, or goes too deep."""


def evaluate(
    name: str,
    flags: Mapping[str, Flag],
    context: Mapping[str, Any],
    *,
    now: float,
    environment: Mapping[str, str],
    trials: Mapping[str, Experiment] = MappingProxyType({}),
) -> FlagValue:
    """The flag's value for this context. `environment` may kill: HOLDFAST_KILL_<FLAG>; `trials` are the experiments
    that run, by flag."""
    if name not in flags:
        why = f"there is no flag {name!r}"
        return FlagValue(value=None, variant=None, reason=Why.ERROR, detail=why, error="FLAG_NOT_FOUND")
    try:
        return _Look(flags, context, now, environment, trials).at(name, ())
    except _Broken as broken:
        flag = flags[name]
        return FlagValue(
            value=flag.variants[flag.off], variant=flag.off, reason=Why.ERROR, detail=str(broken), error="GENERAL"
        )


class _Look:
    """One evaluation: what several flags require is looked at once."""

    def __init__(
        self,
        flags: Mapping[str, Flag],
        context: Mapping[str, Any],
        now: float,
        environment: Mapping[str, str],
        trials: Mapping[str, Experiment],
    ) -> None:
        self._flags, self._context, self._now, self._environment = flags, context, now, environment
        self._trials = trials
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
        if switch := _switched_off(flag, self._now, self._environment):
            return _off(flag, Why.DISABLED, switch)
        if unmet := self._unmet(flag, path):
            return _off(flag, Why.DEFAULT, unmet)
        return self._by_rules(flag)

    def _unmet(self, flag: Flag, path: tuple[str, ...]) -> str:
        for other, wanted in flag.requires.items():
            if other not in self._flags:
                raise _Broken(f"it requires {other}, and there is no such flag")
            value = self.at(other, path)
            if value.variant != wanted:
                return f"it requires {other} = {wanted}, which is {value.variant} ({value.detail})"
        return ""

    def _by_rules(self, flag: Flag) -> FlagValue:
        key = self._context.get(KEY)
        known = key if isinstance(key, str) and key.strip() else None
        place = None if known is None else 100.0 * bucket(known, f"flag/{flag.salt or flag.name}")
        passed_over = ""
        widest = 0.0  # of the shares that the key is not in
        trial = None if known is None else self._trials.get(flag.name)
        for number, rule in enumerate(flag.rules, 1):
            if trial is not None and not rule.conditions:
                continue
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
        if trial is not None and known is not None:
            arm, detail = assign(trial, known), f"an arm of experiment {trial.name}"
            return FlagValue(
                value=flag.variants[arm], variant=arm, reason=Why.SPLIT, detail=detail, experiment=trial.name
            )
        outside = f"; the key's place is {place:.1f}, not below {widest:g} %" if widest else ""
        return _off(flag, Why.DEFAULT, f"no rule fits{passed_over}{outside}")


def _switched_off(flag: Flag, now: float, environment: Mapping[str, str]) -> str:
    """What switches the flag off for all keys; empty where nothing does."""
    variable = kill_variable(flag.name)
    if _is_said(environment.get(variable, "")):
        return f"killed by {variable}"
    if flag.killed:
        return "killed"
    if not flag.enabled:
        return "not enabled"
    return "expired" if flag.expires_at is not None and now >= flag.expires_at else ""


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
    for condition in (condition for rule in flag.rules for condition in rule.conditions if not _is_fit(condition)):
        what = f"flag {flag.name}: {condition.attribute} {condition.operator} {condition.value!r}"
        raise BadInput(what, why=f"{condition.operator} needs {NEEDS[condition.operator]}")
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
    """The depth of requirements below this flag; a circle, or too great a depth, is refused."""
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


GROUPS: Mapping[str, Mapping[str, str]] = {
    "extendedThinking": {
        "enabled": "thinking beyond the first answer",
        "budgetManagement": "a budget of tokens for it",
        "adaptiveAllocation": "more of it for harder tasks",
    },
    "rewardHackingPrevention": {
        "enabled": "checks that a reward was earned",
        "astAnalysis": "how small a change to code is, by its syntax tree",
        "scaffoldingDetection": "code that only looks like work",
    },
    "agenticRL": {
        "enabled": "learning from whole conversations",
        "turnLevelRewards": "rewards for single turns",
        "trainingPipeline": "training on what was collected",
        "toolTraining": "training on how tools are used",
    },
    "intelligentEvaluation": {
        "enabled": "judgements by models",
        "modelJudges": "judges for what rules cannot tell",
        "combinedScoring": "one score of rules and judges",
    },
}
VARIABLES: Mapping[str, str] = {  # 0, false, no or off in one: its part is off where no flag says anything else
    "ENABLE_THINKING_BUDGETS": "extendedThinking.budgetManagement",
    "ENABLE_MINIMAL_DIFF": "rewardHackingPrevention.astAnalysis",
    "ENABLE_RL_TRAINING": "agenticRL.trainingPipeline",
    "ENABLE_MODEL_JUDGES": "intelligentEvaluation.modelJudges",
    "ENABLE_TOOL_TRAINING": "agenticRL.toolTraining",
}
SWITCHES: Mapping[str, str] = {  # feature → the flag that decides
    "budgets": "extendedThinking.budgetManagement",
    "adaptive": "extendedThinking.adaptiveAllocation",
    "minimal_diff": "rewardHackingPrevention.astAnalysis",
    "scaffolding": "rewardHackingPrevention.scaffoldingDetection",
    "judges": "intelligentEvaluation.modelJudges",
    "combined": "intelligentEvaluation.combinedScoring",
    "tool_rewards": "agenticRL.toolTraining",
    "turn_rewards": "agenticRL.turnLevelRewards",
    "learning": "agenticRL.trainingPipeline",
}
TASKS, RUNS = "tasks", "runs"


def governed(flag: str) -> tuple[str, ...]:
    """The features that a flag switches, by itself or as the head of its group; none: it is a program's own."""
    group = flag.removesuffix(".enabled") + "." if flag.endswith(".enabled") else None
    return tuple(feature for feature, name in SWITCHES.items() if name == flag or (group and name.startswith(group)))


def units_of(flag: str) -> str:
    """What a share of one of our flags is a share of; blank: whoever asks gives keys of their own."""
    features = governed(flag)
    return "" if not features else RUNS if features == ("learning",) else TASKS


NOBODY = "nobody in particular"  # a key where only what holds for everybody is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """Why a key does not get a feature, and what would turn it on."""

    feature: str
    flag: str
    why: str  # in words, as in "killed"
    remedy: str  # what comes after "turn it on with": a command, or "unset VARIABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All flags at one moment. A key is that of a task, a user or a run, and always gets the same."""

    flags: Mapping[str, Flag]  # what is in the store, and the defaults for what is not
    kept: frozenset[str]  # names of those in the store
    now: float
    environment: Mapping[str, str]
    trials: Mapping[str, Experiment] = field(default_factory=dict)  # those that run, by flag

    def features(self, key: str) -> Features:
        return Features(**{feature: bool(self._evaluate(name, key).value) for feature, name in SWITCHES.items()})

    def everybody(self) -> Features | None:
        """What every key gets; None where a rule is for a share or has conditions, or an experiment is going on."""
        ours = [flag for flag in self.flags.values() if governed(flag.name)]
        rules = [rule for flag in ours for rule in flag.rules]
        is_divided = any(rule.conditions or 0.0 < rule.percent < 100.0 for rule in rules)
        needs_others = any(not governed(other) for flag in ours for other in flag.requires)
        return None if self.trials or is_divided or needs_others else self.features(NOBODY)

    def off(self, key: str) -> dict[str, Off]:
        """What the key does not get, by feature."""
        found = {}
        for feature, name in SWITCHES.items():
            if not (evaluated := self._evaluate(name, key)).value:
                remedy = self._remedy(self._culprit(name, key))
                found[feature] = Off(feature=feature, flag=name, why=evaluated.detail, remedy=remedy)
        return found

    def off_for_all(self) -> dict[str, Off]:
        """What nobody gets, whatever the key, by feature."""
        given = self.somebody()
        return {name: off for name, off in self.off(NOBODY).items() if not getattr(given, name)}

    def somebody(self) -> Features:
        """What at least some keys get: on where any share is above 0."""
        tried = {name: tuple(FlagRule(variant=arm) for arm in list(it.arms)[1:]) for name, it in self.trials.items()}
        whole = {
            name: replace(
                flag,
                rules=tried.get(name)
                or tuple(replace(rule, percent=100.0) for rule in flag.rules if rule.percent > 0.0),
            )
            for name, flag in self.flags.items()
        }
        return replace(self, flags=whole, trials={}).features(NOBODY)

    def exposures(self, key: str, used: Collection[str]) -> Mapping[str, str]:
        """The experiments about features that are used here, each with the arm of this key."""
        found = {}
        for name in self.trials:
            is_run = set(used) == {"learning"}
            is_asked = is_run if units_of(name) == RUNS else bool(not is_run and {*governed(name)}.intersection(used))
            if is_asked and (value := self._evaluate(name, key)).experiment is not None:
                found[value.experiment] = str(value.variant)
        return found

    def _evaluate(self, name: str, key: str) -> FlagValue:
        how: dict[str, Any] = {"now": self.now, "environment": self.environment, "trials": self.trials}
        return evaluate(name, self.flags, {KEY: key}, **how)

    def _culprit(self, name: str, key: str) -> str:
        """The flag itself, or the one it requires that is to blame."""
        flag, seen = self.flags[name], {name}
        while not _switched_off(flag, self.now, self.environment):
            unmet = (
                other
                for other, wanted in flag.requires.items()
                if other in self.flags and other not in seen and self._evaluate(other, key).variant != wanted
            )
            if (other := next(unmet, None)) is None:
                break
            seen.add(other)
            flag = self.flags[other]
        return flag.name

    def _remedy(self, name: str) -> str:
        flag = self.flags[name]
        if _is_said(self.environment.get(kill_variable(name), "")):
            return f"unset {kill_variable(name)}"
        if flag.killed:
            return f"holdfast release flags revive {name}"
        if not flag.enabled:
            variable = next((one for one, part in VARIABLES.items() if part == name), "")
            return f"holdfast release flags enable {name}" if name in self.kept else f"unset {variable}"
        if flag.expires_at is not None and self.now >= flag.expires_at:
            return f"holdfast release flags set {name} --expires never"
        return f"holdfast release flags rollout {name} 100"


def snapshot(
    flags: Iterable[Flag], *, now: float, environment: Mapping[str, str], trials: Iterable[Experiment] = ()
) -> Snapshot:
    """A flag that is there decides; one that is not is as `features` would make it."""
    there = {flag.name: flag for flag in flags}
    usual = {flag.name: flag for flag in features(environment, owner="")}
    known = running(trials, now)
    return Snapshot(flags={**usual, **there}, kept=frozenset(there), now=now, environment=environment, trials=known)


def running(trials: Iterable[Experiment], now: float) -> dict[str, Experiment]:
    """The experiments about a flag that are going on, by flag."""
    return {
        str(trial.settings["flag"]): trial
        for trial in trials
        if trial.kind == KIND and trial.settings.get("flag") and is_running(trial, now)
    }


def features(environment: Mapping[str, str], *, owner: str) -> tuple[Flag, ...]:
    """All of them, each behind the one that it requires: on, but for those whose variable says no."""
    given = {name: environment.get(variable, "").strip() for variable, name in VARIABLES.items()}
    refused = {name for name, text in given.items() if text and not _is_said(text)}
    return tuple(
        Flag(
            name=f"{group}.{part}",
            variants={"on": True, "off": False},
            off="off",
            enabled=f"{group}.{part}" not in refused,
            rules=(FlagRule(variant="on"),),
            requires={} if part == "enabled" else {f"{group}.enabled": "on"},
            description=what,
            owner=owner,
        )
        for group, parts in GROUPS.items()
        for part, what in parts.items()
    )


def _is_said(text: str) -> bool:
    return text.strip().lower() not in UNSAID
