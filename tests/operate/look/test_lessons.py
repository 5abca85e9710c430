from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.run import StepRecord
from holdfast.operate.learning_views import learning, point, records
from holdfast.reward.tools import names, schemas_in
from holdfast.store.store import Store
from tests.operate.conftest import LIVED_AT
from tests.store.filled import SCRIPT, STEPS


def test_a_run_that_learns_has_its_curves_audit_and_lineage(lived_in: Store) -> None:
    run = lived_in.runs.newest(most=1)[0].id
    told = learning(lived_in, run, now=LIVED_AT)
    assert told["is_whole"] and told["steps"] == STEPS and len(told["points"]) == STEPS
    rewards = [one["reward"] for one in told["points"]]
    assert rewards == sorted(rewards) and told["ranges"]["reward"] == [rewards[0], rewards[-1]]
    first = told["points"][0]
    assert first["kl"] == pytest.approx(0.012) and first["length"] == pytest.approx(31.0)
    assert told["audit"]["dominant"] == "exact" and "95%" in told["audit"]["lines"][-1]
    assert told["silent"][SCRIPT] == STEPS and told["findings"][0]["name"] == "no_secrets"
    assert [one["id"] for one in told["checkpoints"]][:2] == ["ck-60", "ck-55"]
    assert ["ck-55", "ck-60"] in told["edges"]


def test_a_run_that_does_not_learn_has_none_of_it(lived_in: Store) -> None:
    told = learning(lived_in, lived_in.runs.newest(most=2)[1].id, now=LIVED_AT)
    assert (told["points"], told["audit"], told["checkpoints"], told["ranges"]["loss"]) == ([], None, [], None)


STEP: dict[str, Any] = {"run": "r", "step": 1, "name": "0/learn", "function": "learn", "inputs_sha256": ""}


def test_a_step_of_the_optimizer_is_a_point_too() -> None:
    told = {"mean_total_loss": 0.5, "observed_approx_kl": 0.1, "restored": "nan", "grad_norm": float("nan")}
    found = point(StepRecord(**STEP, at=2.0, body={"rl_optimizer": told, "reward": True, "rollouts": 4}))
    assert (found["loss"], found["kl"], found["restored"], found["rollouts"]) == (0.5, 0.1, "nan", 4)
    assert found["grad_norm"] is None and found["reward"] is None and found["length"] is None


def test_what_was_needed_and_called_is_read_from_stored_rollouts(lived_in: Store) -> None:
    run = lived_in.runs.newest(most=1)[0].id
    found = records(lived_in, lived_in.figures.scored(run, 30))
    talking = [one for one in found if one.model is not None]  # those that failed have no spans
    assert talking and all(one.needs == ("search",) and one.offered == ("search", "sum") for one in found)
    assert {(one.model, one.version) for one in talking} == {("sprout", "2")}
    assert all([mark.tool for mark in one.marks] == ["search"] for one in talking)


@pytest.mark.parametrize(("given", "read"), [(["a"], ("a",)), ([], ()), ([1], None), ("a", None), (None, None)])
def test_names_are_a_list_of_texts_or_unknown(given: Any, read: tuple[str, ...] | None) -> None:
    assert names(given) == read


def test_schemas_are_those_written_in_the_task_or_of_the_workload() -> None:
    written = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert schemas_in({"tools": [written]}) == {"f": {"type": "object"}}
    assert schemas_in({"tools": [{"no": "name"}]}) is None and schemas_in({"tools": ["f"]}) is None
