"""The flags that a project can begin with: one for each part of learning that may be switched, all of them off.

A part needs its group: `agenticRL.trainingPipeline` is on only while `agenticRL.enabled` is. Five of them can be on
from the beginning, by the environment variables that deployments have set for them. `switched` makes of the flags the
value that is handed to whoever can do without a feature; who reads flags, and when, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.contracts.features import Features
from holdfast.contracts.flag import Flag, Rule
from holdfast.promote.flags import UNSAID, evaluate, kill_variable

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
VARIABLES: Mapping[str, str] = {
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


def switched(
    flags: Iterable[Flag], *, now: float, environment: Mapping[str, str], context: Mapping[str, Any] | None = None
) -> Features:
    """One snapshot. A flag that is there decides; where there is none the feature is on, unless a variable kills it."""
    known = {flag.name: flag for flag in flags}

    def is_on(name: str) -> bool:
        if name not in known:
            return not _is_set(environment.get(kill_variable(name), ""))
        return bool(evaluate(name, known, context or {}, now=now, environment=environment).value)

    return Features(**{feature: is_on(name) for feature, name in SWITCHES.items()})


def features(environment: Mapping[str, str], *, owner: str) -> tuple[Flag, ...]:
    """All of them, each behind the one that it requires."""
    wanted = {name for variable, name in VARIABLES.items() if _is_set(environment.get(variable, ""))}
    wanted |= {f"{name.partition('.')[0]}.enabled" for name in wanted}
    return tuple(
        _feature(group, part, what, is_on=f"{group}.{part}" in wanted, owner=owner)
        for group, parts in GROUPS.items()
        for part, what in parts.items()
    )


def _feature(group: str, part: str, what: str, *, is_on: bool, owner: str) -> Flag:
    return Flag(
        name=f"{group}.{part}",
        variants={"on": True, "off": False},
        off="off",
        enabled=is_on,
        rules=(Rule(variant="on"),),
        requires={} if part == "enabled" else {f"{group}.enabled": "on"},
        description=what,
        owner=owner,
    )


def _is_set(text: str) -> bool:
    return text.strip().lower() not in UNSAID
