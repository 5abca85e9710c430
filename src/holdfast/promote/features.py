"""The flags of the parts of learning that may be switched; all of them are on where nobody has said anything else.

A part needs its group: `agenticRL.trainingPipeline` is on only while `agenticRL.enabled` is. Five of them can be off
from the beginning, by the environment variables that deployments have for them. A flag that is not in the store is what
`features` would make of it, so writing the defaults down changes nothing. A `Snapshot` tells which features somebody
gets, and why not; who reads flags, and when, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from holdfast.contracts.flag import Features, Flag, FlagRule
from holdfast.promote.flags import KEY, UNSAID, FlagValue, evaluate, kill_variable

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
    "minimal_diff": "rewardHackingPrevention.astAnalysis",
    "judges": "intelligentEvaluation.modelJudges",
    "tool_rewards": "agenticRL.toolTraining",
    "learning": "agenticRL.trainingPipeline",
}
RUNS, RESULTS = "runs", "the results of 'evaluate'"
KEYED: Mapping[str, tuple[str, ...]] = {  # flag → what a share of it is a share of
    SWITCHES["budgets"]: (RUNS,),
    SWITCHES["minimal_diff"]: (RESULTS,),
    SWITCHES["judges"]: (RESULTS,),
    SWITCHES["tool_rewards"]: (RUNS, RESULTS),
    SWITCHES["learning"]: (RUNS,),
}


NOBODY = "nobody in particular"  # a key where only what holds for everybody is asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """Why somebody does not get a feature, and what would turn it on."""

    feature: str
    flag: str
    why: str  # in words, as in "killed"
    remedy: str  # what comes after "turn it on with": a command, or "unset VARIABLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All flags at one moment. A key stands for whoever gets a feature or not: a run, a rollout; always the same."""

    flags: Mapping[str, Flag]  # what is in the store, and the defaults for what is not
    kept: frozenset[str]  # names of those in the store
    now: float
    environment: Mapping[str, str]

    def features(self, key: str) -> Features:
        return Features(**{feature: bool(self._evaluate(name, key).value) for feature, name in SWITCHES.items()})

    def off(self, key: str) -> dict[str, Off]:
        """What the key does not get, by feature."""
        found = {}
        for feature, name in SWITCHES.items():
            if not (evaluated := self._evaluate(name, key)).value:
                remedy = self._remedy(self._culprit(name, key))
                found[feature] = Off(feature=feature, flag=name, why=evaluated.detail, remedy=remedy)
        return found

    def somebody(self) -> Features:
        """What at least some keys get: on where any share is above 0."""
        whole = {
            name: replace(flag, rules=tuple(replace(rule, percent=100.0) for rule in flag.rules if rule.percent > 0.0))
            for name, flag in self.flags.items()
        }
        return replace(self, flags=whole).features(NOBODY)

    def _evaluate(self, name: str, key: str) -> FlagValue:
        return evaluate(name, self.flags, {KEY: key}, now=self.now, environment=self.environment)

    def _culprit(self, name: str, key: str) -> str:
        """The flag itself, or the one it requires that is to blame."""
        flag, seen = self.flags[name], {name}
        while _is_open(flag, self.now, self.environment):
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
            return f"holdfast flags revive {name}"
        if not flag.enabled:
            variable = next((one for one, part in VARIABLES.items() if part == name), "")
            return f"holdfast flags enable {name}" if name in self.kept else f"unset {variable}"
        if flag.expires_at is not None and self.now >= flag.expires_at:
            return f"holdfast flags set {name} --expires never"
        return f"holdfast flags rollout {name} 100"


def snapshot(flags: Iterable[Flag], *, now: float, environment: Mapping[str, str]) -> Snapshot:
    """A flag that is there decides; one that is not is as `features` would make it."""
    there = {flag.name: flag for flag in flags}
    usual = {flag.name: flag for flag in features(environment, owner="")}
    return Snapshot(flags={**usual, **there}, kept=frozenset(there), now=now, environment=environment)


def features(environment: Mapping[str, str], *, owner: str) -> tuple[Flag, ...]:
    """All of them, each behind the one that it requires: on, but for those whose variable says no."""
    refused = {name for variable, name in VARIABLES.items() if _is_refused(environment.get(variable, ""))}
    return tuple(
        _feature(group, part, what, is_on=f"{group}.{part}" not in refused, owner=owner)
        for group, parts in GROUPS.items()
        for part, what in parts.items()
    )


def _feature(group: str, part: str, what: str, *, is_on: bool, owner: str) -> Flag:
    return Flag(
        name=f"{group}.{part}",
        variants={"on": True, "off": False},
        off="off",
        enabled=is_on,
        rules=(FlagRule(variant="on"),),
        requires={} if part == "enabled" else {f"{group}.enabled": "on"},
        description=what,
        owner=owner,
    )


def _is_open(flag: Flag, now: float, environment: Mapping[str, str]) -> bool:
    """Whether nothing about the flag itself switches it off for everybody."""
    is_over = flag.expires_at is not None and now >= flag.expires_at
    return flag.enabled and not (flag.killed or is_over or _is_said(environment.get(kill_variable(flag.name), "")))


def _is_said(text: str) -> bool:
    return text.strip().lower() not in UNSAID


def _is_refused(text: str) -> bool:
    """Said, and it is no: a variable that is empty says nothing."""
    return bool(text.strip()) and not _is_said(text)
