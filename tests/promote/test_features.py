"""The flags a project begins with: off, in their groups, and on where a deployment says so."""

from __future__ import annotations

import pytest

from holdfast.promote.features import VARIABLES, features
from holdfast.promote.flags import check, evaluate

DOCUMENTED = {
    "extendedThinking": {"enabled", "budgetManagement", "adaptiveAllocation"},
    "rewardHackingPrevention": {"enabled", "astAnalysis", "scaffoldingDetection"},
    "agenticRL": {"enabled", "turnLevelRewards", "trainingPipeline"},
    "intelligentEvaluation": {"enabled", "modelJudges", "combinedScoring"},
}


def on(**environment: str) -> set[str]:
    flags = {flag.name: flag for flag in features(environment, owner="ann")}
    return {name for name in flags if evaluate(name, flags, {}, now=0.0, environment={}).value}


def test_the_documented_flags_are_all_there_and_off() -> None:
    names = {flag.name for flag in features({}, owner="ann")}
    assert names - {"agenticRL.toolTraining"} == {
        f"{group}.{part}" for group in DOCUMENTED for part in DOCUMENTED[group]
    }
    assert on() == set()


def test_each_can_be_put_in_the_order_they_are_given() -> None:
    before = {}
    for flag in features({}, owner="ann"):
        check(flag, before)
        before[flag.name] = flag
        assert flag.owner == "ann" and flag.description


@pytest.mark.parametrize(("variable", "name"), VARIABLES.items())
def test_a_documented_variable_turns_its_part_and_its_group_on_and_nothing_else(variable: str, name: str) -> None:
    assert on(**{variable: "true"}) == {name, f"{name.partition('.')[0]}.enabled"}
    assert on(**{variable: "0"}) == set()


def test_a_part_is_off_without_its_group() -> None:
    flags = {flag.name: flag for flag in features({"ENABLE_RL_TRAINING": "1"}, owner="ann")}
    kill = {"HOLDFAST_KILL_AGENTICRL_ENABLED": "1"}
    assert evaluate("agenticRL.trainingPipeline", flags, {}, now=0.0, environment=kill).value is False
