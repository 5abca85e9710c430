"""A step of practice: what did better becomes likelier, and what the data gates put aside is not learnt from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from holdfast.workloads.practice import constraint_of, mean_reward, practise

from holdfast.collect.plan import Learnt, Standing
from holdfast.contracts.errors import BadInput, Interrupted
from holdfast.contracts.experience import Experience
from holdfast.contracts.features import ALL_ON, Features
from holdfast.contracts.reward import Sheet, Signal
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.settings import ConstraintBlock
from holdfast.learn.constrain import Constraint
from holdfast.learn.grpo import OBJECTIVE
from holdfast.learn.train import Settings, Trainer
from holdfast.workloads.pupil import Pupil
from tests.workloads.scene import RUN, attempt, tiny


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture
def pupil(base: str) -> Iterator[Pupil]:
    made = Pupil(base, seed=0, slots=2)
    yield made
    made.close()


def tasks(count: int) -> list[Task]:
    return [Task(name=f"p-{n}", input=n, split=Split.TRAIN, metadata={"group": "g"}) for n in range(count)]


def practised(
    pupil: Pupil,
    folder: Path,
    given: Sequence[Experience],
    features: Features = ALL_ON,
    **how: Any,
) -> Learnt:
    def make(model: Any) -> Trainer:
        return Trainer(model, Settings(objective=OBJECTIVE), seed=0)

    found = practise(
        pupil, Standing(run=RUN, folder=folder, done=[], features=features), "practice", given, make, **how
    )
    json.dumps(found.body, allow_nan=False)
    return found


def counts(found: Learnt) -> dict[str, int]:
    return {one["name"]: one["count"] for one in found.body["quality"] if one["count"]}


def test_what_did_better_moves_the_weights_and_leaves_a_checkpoint(pupil: Pupil, tmp_path: Path) -> None:
    mine, before = pupil.version, pupil.model.state_dict()["embed.weight"].clone()
    won = [1.0, 0.0, 0.0]
    found = practised(pupil, tmp_path, [attempt(t, n, won[n], version=mine) for n, t in enumerate(tasks(3))])
    assert found.checkpoint is not None
    assert (found.checkpoint.algorithm, found.checkpoint.mean_reward) == ("grpo", pytest.approx(1 / 3))
    assert (found.body["phase"], found.body["reward"], counts(found)) == ("practice", pytest.approx(1 / 3), {})
    assert not pupil.model.state_dict()["embed.weight"].equal(before)
    assert found.body["audit"]["taught"] == 3
    assert found.proposal is None  # that is for another lesson


def test_while_learning_is_switched_off_nothing_moves_and_what_was_collected_is_still_looked_at(
    pupil: Pupil, tmp_path: Path
) -> None:
    mine, before = pupil.version, pupil.model.state_dict()["embed.weight"].clone()
    given = [attempt(t, n, [1.0, 0.0, 0.0][n], version=mine) for n, t in enumerate(tasks(3))]
    found = practised(pupil, tmp_path, given, Features(learning=False))
    assert found.checkpoint is None and "update" not in found.body
    assert (found.body["skipped"], found.body["reward"]) == ("learning is switched off", pytest.approx(1 / 3))
    assert counts(found) == {}
    assert pupil.model.state_dict()["embed.weight"].equal(before)
    assert practised(pupil, tmp_path, given).checkpoint is not None  # and on again


def test_what_is_quarantined_is_not_learnt_from(pupil: Pupil, tmp_path: Path) -> None:
    """With the one that told a secret left out, all others got the same: there is nothing to compare."""
    mine, before = pupil.version, pupil.model.state_dict()["embed.weight"].clone()
    todo = tasks(3)
    secret = attempt(todo[0], 0, 1.0, version=mine, asked="my key is AKIAIOSFODNN7EXAMPLE")
    found = practised(pupil, tmp_path, [secret, *(attempt(t, 1, 0.0, version=mine) for t in todo[1:])])
    assert counts(found) == {"put_aside": 1, "reward_varies": 2}  # of what is left, all were worth the same
    (aside,) = [one for one in found.body["quality"] if one["name"] == "put_aside"]
    assert "no_secrets" in aside["detail"] and not aside["blocks"]
    assert found.checkpoint is None
    assert pupil.model.state_dict()["embed.weight"].equal(before)
    assert found.body["audit"]["rollouts"] == 2
    assert found.body["reward"] == pytest.approx(1 / 3)  # it is told of all that was tried


def test_a_task_that_is_held_out_is_found_and_not_learnt_from(pupil: Pupil, tmp_path: Path) -> None:
    todo = tasks(4)
    asked = ["1?", "1?", "1?", "  2 \n?"]
    given = [attempt(t, n, float(n == 3), version=pupil.version, asked=asked[n]) for n, t in enumerate(todo)]
    found = practised(pupil, tmp_path, given, held_out=[{"prompt": "2 ?"}, {"prompt": "3?"}])
    (aside,) = [one for one in found.body["quality"] if one["name"] == "put_aside"]
    assert aside["count"] == 1 and "held_out_leakage" in aside["detail"]
    assert found.checkpoint is None


def test_a_pupil_that_was_stopped_practises_no_more(pupil: Pupil, tmp_path: Path) -> None:
    pupil.close()
    with pytest.raises(Interrupted):
        practised(pupil, tmp_path, [])


def test_the_mean_reward_is_of_those_that_have_one() -> None:
    todo = tasks(3)
    assert mean_reward([attempt(todo[0], 0, 1.0), attempt(todo[1], 1, 0.0), attempt(todo[2], 2, None)]) == 0.5
    assert mean_reward([attempt(todo[0], 0, None, sheet=None)]) is None


def test_the_nearest_constraint_holds() -> None:
    assert constraint_of(None, None) is None
    near, far = ConstraintBlock(budget=0.1), ConstraintBlock(budget=0.2)
    assert constraint_of(near, far) == Constraint(budget=0.1)
    assert constraint_of(None, far) == Constraint(budget=0.2)
    assert constraint_of(ConstraintBlock()) == Constraint()  # the same defaults


def test_practice_under_a_constraint_needs_its_cost_and_tells_what_it_did(pupil: Pupil, tmp_path: Path) -> None:
    mine = pupil.version

    def made(costs: list[float | None]) -> list[Experience]:
        found = []
        for place, (task, cost) in enumerate(zip(tasks(len(costs)), costs, strict=True)):
            signals = [Signal(name="success", value=1.0, source="r")]
            signals += [] if cost is None else [Signal(name="safety_cost", value=cost, weight=0.0, source="r")]
            found.append(attempt(task, place, 1.0, version=mine, sheet=Sheet(signals=tuple(signals))))
        return found

    with pytest.raises(BadInput, match="no attempt has a signal of that name; score it, or name one of success"):
        practised(pupil, tmp_path, made([None, None]), constraint=Constraint())
    held = practised(pupil, tmp_path, made([1.0, 0.0, 0.0]), constraint=Constraint(budget=0.0))
    assert held.checkpoint is not None  # all were right: cost alone told them apart
    assert held.body["constraint"]["mean_cost"] == pytest.approx(1 / 3)
    assert held.body["audit"]["constraint"] == held.body["constraint"]
