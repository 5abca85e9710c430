"""`hf.improve(env=…)`: what belongs to agents is refused beside an environment, before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"agent": lambda task, ctx: 1}, "agent"),
        ({"scorers": ["exact"]}, "scorers"),
        ({"model": "gpt"}, "model"),
        ({"budget": hf.Budget(rollouts=10)}, "budget"),
    ],
)
def test_what_is_for_agents_is_refused_beside_an_environment(given: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(hf.BadInput, match=f"^{named}: is for agents and tasks"):
        hf.improve(env="CartPole-v1", policy=hf.Network(), store=tmp_path / "s.sqlite", **given)
    assert list(tmp_path.iterdir()) == []


def test_a_policy_that_acts_in_no_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(hf.BadInput, match=r"give hf.Network\(\)"):
        hf.improve(env="CartPole-v1", policy=hf.Prompt(system="x"), store=tmp_path / "s.sqlite")


def test_without_an_environment_a_line_has_a_name(tmp_path: Path) -> None:
    with pytest.raises(hf.BadInput, match="^name: is missing"):
        hf.improve(lambda task, ctx: 1, [{"id": "a", "input": {}}], scorers=["exact"], store=tmp_path / "s.sqlite")
