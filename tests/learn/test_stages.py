"""Several algorithms one after another: each counts its own steps, and begins with what the one before it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.contracts.algorithm import AlgorithmState
from holdfast.learn.practice import GRPO, Stages
from holdfast.policies.model import Model
from tests.learn.telling import Telling
from tests.learn.test_practice import TASKS, tried
from tests.workloads.scene import tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tiny(tmp_path_factory.mktemp("base") / "tiny"))


def stages() -> Stages:
    """As a process makes it when it starts."""
    return Stages((GRPO(steps=1, tasks=1, phase="a"), GRPO(steps=2, tasks=1, phase="b")))


def test_each_stage_goes_on_from_the_one_before_until_none_asks_for_more(base: Model, tmp_path: Path) -> None:
    telling, through = Telling(tmp_path), stages()
    state = through.start(base)
    groups, acted = [], []
    while work := through.ask(state, TASKS):
        assert stages().ask(state, TASKS) == work  # it follows from the state alone
        groups.append(work[0].group)  # type: ignore[union-attr]
        acted.append(work[0].policy)  # type: ignore[union-attr]
        state = telling.tell(through, state, tried(state.policy, 1.0, 0.0))
    assert groups == ["a-0-0-0", "b-0-0-0", "b-0-1-0"]
    assert acted == [base, *(base.at(one.id) for one in telling.checkpoints[:2])]
    assert (state.step, state.candidate) == (3, base.at(telling.checkpoints[-1].id))


def test_a_stage_that_left_nothing_is_over_all_the_same(base: Model, tmp_path: Path) -> None:
    telling, through = Telling(tmp_path), stages()
    state: AlgorithmState = telling.tell(through, through.start(base), tried(base, 0.0, 0.0))
    assert state.candidate is None
    assert [one.policy for one in through.ask(state, TASKS)][:1] == [base]  # type: ignore[union-attr]
    state = telling.tell(through, state, tried(base, 1.0, 0.0))
    assert state.candidate is not None and state.metrics["phase"] == "b 1"
