"""Story 5, and how results look: two stored runs, prompts, models or agents are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.contracts.errors import BadInput
from tests.api import scene
from tests.api.conftest import Improved
from tests.api.scene import at_endpoint, collected
from tests.endpoint import Endpoint


def test_results_runs_and_proofs_are_shown_in_80_columns_and_as_html(accepted: Improved) -> None:
    for one in (accepted.result, accepted.result.proof, accepted.result.run, hf.runs(store=accepted.store)):
        lines = str(one).splitlines()
        assert all(len(line) <= 80 for line in lines if "/" not in line), str(one)
        assert "<" in one._repr_html_() and str(one.__rich__()) == str(one)  # type: ignore[union-attr]
    assert str(accepted.result).startswith("accepted: support@2")


def test_two_stored_runs_are_compared_without_running_anything(endpoint: Endpoint, at: Path) -> None:
    first, second = collected(endpoint, at, scene.FAIR), collected(endpoint, at, scene.GOOD)
    asked = len(endpoint.asked)
    found = hf.compare(first.id, second.id, store=at)
    assert found.is_better is True and found.difference == pytest.approx(0.5)
    assert found.comparisons["success"].pairs == 120 and found.run is None
    back = hf.compare(second, first, store=at)
    assert back.is_better is False and back.difference == pytest.approx(-0.5)
    assert len(endpoint.asked) == asked and len(hf.runs(store=at)) == 2
    text = str(found)
    assert text.startswith(f"{second.id} is better than {first.id}") and "<table>" in found._repr_html_()
    assert all(len(line) <= 80 for line in text.splitlines())


def test_runs_are_paired_by_task_and_seed_and_what_only_one_has_is_left_out(endpoint: Endpoint, at: Path) -> None:
    first = collected(endpoint, at, scene.FAIR, count=30, seeds=2)
    second = collected(endpoint, at, scene.GOOD, count=20, seeds=2)
    found = hf.compare(first, second, store=at)
    assert found.comparisons["success"].pairs == 20 and found.left_out == 10
    assert found.is_better is None and "not decided yet" in str(found)


def test_runs_that_cannot_be_compared_say_why(endpoint: Endpoint, at: Path, accepted: Improved) -> None:
    one = collected(endpoint, at, scene.FAIR, count=4)
    alone = [{"id": "other", "input": {"question": "x: what is twice 4?"}, "expected": "8"}]
    other = hf.collect(scene.agent, alone, **at_endpoint(endpoint, at))
    with pytest.raises(BadInput, match="no task in common"):
        hf.compare(one, other, store=at)
    with pytest.raises(BadInput, match="ran 3 versions"):
        hf.compare(accepted.result.run, one)
    with pytest.raises(BadInput, match="there are no tasks"):
        hf.compare(scene.agent, scene.agent)


def test_two_prompts_are_compared_on_tasks_and_nothing_is_registered(endpoint: Endpoint, at: Path) -> None:
    how = {**at_endpoint(endpoint, at), "policy": None, "agent": scene.agent, "seeds": 1}
    found = hf.compare(hf.Prompt(system=scene.FAIR), hf.Prompt(system=scene.GOOD), scene.questions(200), **how)
    assert found.is_better is True and found.run is not None and found.run.state == "completed"
    assert found.names == ("prompt (a)", "prompt (b)")


def test_two_models_are_compared(endpoint: Endpoint, at: Path) -> None:
    asked = len(endpoint.asked)
    how = {**at_endpoint(endpoint, at), "model": None, "agent": scene.agent, "seeds": 1}
    found = hf.compare("small", "large", scene.questions(30, held_out=None), **how)
    assert found.names == ("small", "large") and found.difference == 0.0
    assert {one.body["model"] for one in endpoint.asked[asked:]} == {"small", "large"}


def test_two_agents_are_compared_each_in_its_own_arm(endpoint: Endpoint, at: Path) -> None:
    def guesses(task: Any, ctx: hf.Context) -> str:
        return "nothing"

    def doubles(task: Any, ctx: hf.Context) -> str:
        return str(2 * int(task.input["question"].split()[-1].rstrip("?")))

    async def asks(task: Any, ctx: hf.Context) -> str:
        return doubles(task, ctx)

    tasks = scene.questions(30, held_out=None)
    for other in (doubles, asks):
        found = hf.compare(guesses, other, tasks, scorers=scene.correct, store=at)
        assert found.names == ("guesses", other.__name__) and found.difference == 1.0
    with pytest.raises(BadInput, match="an agent is needed"):
        hf.compare(hf.Prompt(system="a"), hf.Prompt(system="b"), tasks, scorers=scene.correct, store=at)
    same = hf.Prompt(system="a")
    with pytest.raises(BadInput, match="both are the same policy"):
        hf.compare(same, same, tasks, agent=doubles, scorers=scene.correct, store=at)
