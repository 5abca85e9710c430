"""Stories 5 and 7: what has been running already is looked at, compared, imported and scored again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas
import pytest

import holdfast as hf
from holdfast.api.stored import COLUMNS, condition
from holdfast.contracts.errors import BadInput
from tests.api import scene
from tests.api.conftest import Improved
from tests.endpoint import Endpoint


def collected(endpoint: Endpoint, at: Path, system: str, count: int = 120, **more: Any) -> hf.Run:
    return hf.collect(
        scene.agent,
        scene.questions(count, held_out=None),
        scorers=scene.correct,
        policy=hf.Prompt(system=system),
        model="tiny",
        base_url=endpoint.url,
        store=at,
        **more,
    )


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
    other = hf.collect(
        scene.agent,
        [{"id": "other", "input": {"question": "x: what is twice 4?"}, "expected": "8"}],
        scorers=scene.correct,
        policy=hf.Prompt(system=scene.FAIR),
        model="tiny",
        base_url=endpoint.url,
        store=at,
    )
    with pytest.raises(BadInput, match="no task in common"):
        hf.compare(one, other, store=at)
    with pytest.raises(BadInput, match="ran 3 versions"):
        hf.compare(accepted.result.run, one)
    with pytest.raises(BadInput, match="there are no tasks"):
        hf.compare(scene.agent, scene.agent)


def test_two_prompts_are_compared_on_tasks_and_nothing_is_registered(endpoint: Endpoint, at: Path) -> None:
    found = hf.compare(
        hf.Prompt(system=scene.FAIR),
        hf.Prompt(system=scene.GOOD),
        scene.questions(200),
        agent=scene.agent,
        scorers=scene.correct,
        model="tiny",
        base_url=endpoint.url,
        seeds=1,
        store=at,
    )
    assert found.is_better is True and found.run is not None and found.run.state == "completed"
    assert found.names == ("prompt (a)", "prompt (b)")


def test_two_models_are_compared(endpoint: Endpoint, at: Path) -> None:
    asked = len(endpoint.asked)
    found = hf.compare(
        "small",
        "large",
        scene.questions(30, held_out=None),
        agent=scene.agent,
        policy=hf.Prompt(system=scene.FAIR),
        scorers=scene.correct,
        base_url=endpoint.url,
        store=at,
        seeds=1,
    )
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


# Tables --------------------------------------------------------------------------------------------------------------


def test_rollouts_are_a_table_that_pandas_takes(endpoint: Endpoint, at: Path) -> None:
    run = collected(endpoint, at, scene.FAIR, count=20)
    bad = run.rollouts(where="reward < 0.5 and split == 'train'")
    assert len(bad) == 12 and {row["outcome"] for row in bad} == {"wrong"}
    assert bad.columns == COLUMNS and bad[0]["task"] == "t4" and bad[0]["expected"] == "8"
    frame = bad.to_pandas()
    assert isinstance(frame, pandas.DataFrame) and list(frame.columns) == list(COLUMNS) and len(frame) == 12
    assert len(pandas.DataFrame(bad)) == 12
    assert len(run.rollouts(limit=3)) == 3
    assert "12 rollouts" in str(bad) and "<table>" in bad._repr_html_()
    (listed,) = hf.runs(store=at)
    assert listed.id == run.id and listed.state == "completed" and run.id in str(hf.runs(store=at))


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ("reward < 0.5", True),
        ("0.1 < reward <= 0.25", True),
        ("not reward > 0.1 or task in ['a', 'b']", True),
        ("error is None", True),
        ("seconds > 3", False),  # missing is neither more
        ("seconds <= 3", False),  # nor less
        ("reward == -1", False),
        ("task != 'a'", False),
    ],
)
def test_a_condition_is_read_as_python_would(where: str, fits: bool) -> None:
    row = dict.fromkeys(COLUMNS) | {"reward": 0.25, "task": "a"}
    assert condition(where, COLUMNS)(row) is fits


@pytest.mark.parametrize(
    "where",
    [
        "__import__('os').system('true')",
        "reward.__class__",
        "rewrd < 1",
        "reward <",
        "[x for x in task]",
        "(lambda: 1)()",
        "reward if task else 1",
        "reward ** 9",
        "f'{reward}'",
        "(" * 500 + "1" + ")" * 500,
    ],
)
def test_a_condition_is_never_run(where: str) -> None:
    with pytest.raises(BadInput, match="where = "):
        condition(where, COLUMNS)


# Another scoring -----------------------------------------------------------------------------------------------------


def test_a_changed_scorer_scores_stored_rollouts_and_both_scorings_stand_side_by_side(
    endpoint: Endpoint, at: Path
) -> None:
    run = collected(endpoint, at, scene.FAIR, count=20)
    asked = len(endpoint.asked)
    again = hf.rescore(run, scorers=[hf.Scorer(scene.lenient, gate=True)])
    found = again.comparison
    assert len(endpoint.asked) == asked
    assert (found.rollouts, found.became_right, found.became_wrong) == (20, 12, 0)
    assert found.agreement == pytest.approx(0.4) and len(again.changed) == 12 and again.name == "rescored-1"
    assert {row["outcome"] for row in run.rollouts()} == {"right", "wrong"}  # what they were paid stays
    assert hf.rescore(run.id, scene.lenient, store=at).name == "rescored-2"
    assert "became right" in str(again)


def test_rescoring_a_proof_says_what_the_verdict_would_have_been(improved: Improved) -> None:
    again = hf.rescore(improved.result, scorers=[hf.Scorer(scene.lenient, gate=True)], store=improved.store)
    assert again.comparison.arms is not None
    assert again.comparison.arms.old == pytest.approx(0.5, abs=0.15) and again.comparison.arms.new == 0.0
    assert again.old_verdict is not None and again.old_verdict.outcome == "promote"
    assert again.new_verdict is not None and again.new_verdict.outcome != "promote"
    assert "the verdict was promote" in str(again)


def test_a_scorer_that_raises_spoils_its_own_rollouts_alone(endpoint: Endpoint, at: Path) -> None:
    def fragile(task: Any, answer: str) -> float:
        return 1.0 / (0 if task.id == "t3" else 1)

    again = hf.rescore(collected(endpoint, at, scene.FAIR, count=5), [fragile])
    (rollout,) = again.errors
    assert "ZeroDivisionError" in again.errors[rollout] and again.comparison.rollouts == 4


# Logs ----------------------------------------------------------------------------------------------------------------


def test_chat_logs_become_rollouts_each_once(tmp_path: Path, at: Path) -> None:
    path = tmp_path / "chats.jsonl"
    said = [{"role": "user", "content": "What is 3?"}, {"role": "assistant", "content": "A number."}]
    rows = [{"messages": said, "reward": 0.2}, {"messages": [*said[:1], {**said[1], "content": "Three"}], "reward": 1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = hf.import_logs(path, store=at)
    assert len(run.rollouts()) == 2 and run.rollouts("reward < 0.5")[0]["answer"] == "A number."
    assert hf.import_logs(str(path), store=at).id == run.id and len(run.rollouts()) == 2
    path.write_text('{"messages": 3}\n')
    with pytest.raises(BadInput, match="messages is not a list"):
        hf.import_logs(path, store=at)
