"""The flags a project begins with: off, in their groups, and on where a deployment says so."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from holdfast.contracts.features import ALL_OFF, ALL_ON, Features
from holdfast.contracts.flag import Flag, Rule
from holdfast.promote.features import SWITCHES, VARIABLES, features, switched
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


def test_every_feature_has_its_documented_flag() -> None:
    assert tuple(SWITCHES) == tuple(part.name for part in fields(Features))
    assert set(SWITCHES.values()) == set(VARIABLES.values())


def test_where_no_flag_says_anything_all_is_on_unless_a_variable_kills_it() -> None:
    assert switched((), now=0.0, environment={}) == ALL_ON
    kill = {"HOLDFAST_KILL_AGENTICRL_TRAININGPIPELINE": "1"}
    assert switched((), now=0.0, environment=kill) == replace(ALL_ON, learning=False)


def test_flags_that_are_there_decide_and_are_off_to_begin_with() -> None:
    assert switched(features({}, owner="ann"), now=0.0, environment={}) == ALL_OFF
    every = features(dict.fromkeys(VARIABLES, "true"), owner="ann")
    assert switched(every, now=0.0, environment={}) == ALL_ON


@pytest.mark.parametrize(("feature", "name"), SWITCHES.items())
def test_one_switch_moves_one_feature(feature: str, name: str) -> None:
    every = features(dict.fromkeys(VARIABLES, "true"), owner="ann")
    dead = [replace(flag, killed=flag.name == name) for flag in every]
    assert switched(dead, now=0.0, environment={}) == replace(ALL_ON, **{feature: False})


def test_a_share_of_callers_can_be_given_a_feature() -> None:
    flag = Flag(
        name=SWITCHES["judges"], variants={"on": True, "off": False}, off="off", enabled=True,
        rules=(Rule(variant="on", percent=50.0),),
    )  # fmt: skip
    found = [switched([flag], now=0.0, environment={}, context={"targetingKey": f"u{n}"}).judges for n in range(200)]
    assert 60 < sum(found) < 140
    assert switched([flag], now=0.0, environment={}).judges is False  # nobody in particular is in no share
