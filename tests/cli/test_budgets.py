"""Thinking budgets as people and programs are told of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.contracts.budget import (
    Assessment,
    BudgetChange,
    BudgetEvent,
    BudgetEventKind,
    Mode,
    ThinkingBudget,
    Tier,
    Traits,
)
from holdfast.contracts.records import PUBLISHED, decode
from holdfast.contracts.rollout import AttemptState
from holdfast.store.budgets import BudgetTotals
from tests.cli.conftest import Cli
from tests.store.scene import Scene


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


def thought(scene: Scene, name: str, tokens: int, over: int = 0, *, reward: float | None = 1.0) -> None:
    """One attempt from its budget to its end; without a reward it breaks off."""
    scene.enqueue(name)
    attempt = scene.claim().attempt
    assessment = Assessment(tier=Tier.TRIVIAL, confidence=0.95, reasons=("none",), traits=Traits())
    times = {"created_at": 1.0, "changed_at": 1.0}
    budget = ThinkingBudget(attempt=attempt.id, assessment=assessment, ceiling=500, cap=1000, allowed=500, **times)
    used = replace(budget, spent=tokens, overspent=over, calls=1, mode=Mode.HARD, events=2)
    events = (
        BudgetEvent(attempt=attempt.id, seq=1, kind=BudgetEventKind.ALLOCATE, at=1.0, tokens=500, allowed=500, spent=0,
                    overspent=0),
        BudgetEvent(attempt=attempt.id, seq=2, kind=BudgetEventKind.SPEND, at=1.0, tokens=tokens, allowed=500,
                    spent=tokens, overspent=over),
    )  # fmt: skip
    scene.store.budgets.record(attempt, BudgetChange(budget=used, events=events), now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.FAILED if reward is None else AttemptState.SUCCEEDED, reward=reward)


def test_allocation_use_and_waste_of_a_run(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    thought(scene, "right", 300)
    thought(scene, "much", 700, 200)
    thought(scene, "broken", 250, reward=None)
    ran = cli("budgets", scene.run, *at)
    assert ran.code == 0, ran.err
    assert ran.lines[0] == f"{scene.run}: 3 budgets, 1250 of 1500 thinking tokens used (83 %), 450 wasted"
    assert ran.lines[1] == "held to it by: hard 3"
    assert ran.lines[4].split() == ["trivial", "3", "1", "3", "0", "1", "1500", "1250", "200", "450"]
    newest = [line.split() for line in ran.lines[8:]]
    assert newest == [
        ["broken:attempt-1", "trivial", "failed", "hard", "500", "250", "0", "250"],
        ["much:attempt-1", "trivial", "succeeded", "hard", "500", "700", "200", "200"],
        ["right:attempt-1", "trivial", "succeeded", "hard", "500", "300", "0", "0"],
    ]
    assert max(map(len, ran.lines)) <= 80
    assert len(cli("budgets", scene.run, *at, "--limit", 1).lines) == len(ran.lines) - 2


def test_every_run_that_has_any(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    ran = cli("budgets", *at)
    assert (ran.code, ran.lines) == (
        0,
        ['no run has thinking budgets; a config with "thinking_budgets": true asks for them'],
    )
    assert cli("budgets", *at, "--json").json == []
    assert "no attempt has a thinking budget" in cli("budgets", scene.run, *at).out
    thought(scene, "wrong", 300, reward=0.0)
    ran = cli("budgets", *at)
    assert ran.lines[1].split() == [scene.run, "1", "1", "1", "0", "0", "500", "300", "0", "300"]
    assert max(map(len, ran.lines)) <= 80
    assert "trivial  no reward  hard" in cli("budgets", scene.run, *at).lines[-1]


def test_programs_get_records(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    thought(scene, "much", 700, 200)
    told = cli("budgets", scene.run, *at, "--json").json
    assert (told["run"], told["modes"]) == (scene.run, {"hard": 1})
    (tier,) = (decode(BudgetTotals, one) for one in told["tiers"])
    assert (tier.name, tier.waste) == ("trivial", 200)
    (one,) = told["budgets"]
    assert decode(PUBLISHED["budget"], one["budget"]).spent == 700
    assert (one["status"], one["has_failed"], one["waste"]) == ("succeeded", False, 200)
    (total,) = cli("budgets", *at, "--json").json
    assert decode(BudgetTotals, total).name == scene.run


def test_a_run_that_is_not_there_is_bad_input(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    ran = cli("budgets", "run-9", *at)
    assert ran.code != 0 and "run-9" in ran.err
