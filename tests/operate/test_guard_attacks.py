"""Attacks on the guard and on experiments, a small dose of each; `prove calibrate` measures them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from holdfast.cli.calibrate import traffic_table
from holdfast.contracts.errors import BadInput
from holdfast.operate.guard_attacks import ATTACKS, Attack, AttackRate, attack_rate, attack_row

FEW = 4
BY_NAME = {attack.name: attack for attack in ATTACKS}


def small(name: str) -> AttackRate:
    attack: Attack = BY_NAME[name]
    if attack.traffic is not None:
        attack = replace(attack, traffic=replace(attack.traffic, requests=min(2400, attack.traffic.requests)))
    return attack_rate(attack, experiments=FEW, alpha=0.05, rng=np.random.default_rng(1))


@pytest.mark.parametrize("name", ["keyless easier", "hours harder", "few callers"])
def test_a_canary_like_live_is_not_taken_back_for_who_asks_or_when(name: str) -> None:
    assert small(name).breached == 0.0


@pytest.mark.parametrize("name", ["hours easier", "silence", "late bad news", "lost callers"])
def test_a_canary_that_is_worse_is_not_cleared_by_hours_silence_or_lost_callers(name: str) -> None:
    assert small(name).cleared == 0.0


def test_a_canary_that_hangs_is_caught_within_a_few_dozen_outcomes() -> None:
    found = small("hanging")
    assert found.breached == 1.0 and found.cleared == 0.0
    assert found.outcomes_until_breach is not None and found.outcomes_until_breach < 120


@pytest.mark.parametrize("name", ["A/B silence", "A/B worse and silent", "A/B late bad news"])
def test_an_arm_that_tells_less_is_not_promoted(name: str) -> None:
    assert small(name).promoted in (0.0, 1 / FEW)


def test_the_rows_have_names_of_their_own_and_make_a_table() -> None:
    assert len(BY_NAME) == len(ATTACKS)
    row = small("A/B equal")
    assert traffic_table([row]).splitlines()[2].startswith("| A/B equal | two equal arms | no promotion | ")
    with pytest.raises(BadInput, match="experiments = 3"):
        attack_row(0, experiments=3, alpha=0.05, seed=0)
