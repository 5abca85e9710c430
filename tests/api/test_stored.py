"""Story 7: what has been running already is looked at, imported and scored again."""

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
from tests.api.scene import collected
from tests.endpoint import Endpoint

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
    assert str(bad).splitlines()[1].split() == ["task", "split", "outcome", "reward", "answer", "error"]
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


def test_one_function_alone_is_the_gate_of_a_rescoring_as_of_a_run(endpoint: Endpoint, at: Path) -> None:
    run = collected(endpoint, at, scene.FAIR, count=20)
    said = hf.rescore(run, [hf.Scorer(scene.lenient, gate=True)]).comparison
    for given in (scene.lenient, [scene.lenient]):
        assert hf.rescore(run, given).comparison == said
    unsaid = hf.rescore(run, [hf.Scorer(scene.lenient)]).comparison  # an object says for itself what it is
    assert (said.became_right, unsaid.became_right) == (12, 0)


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
    path.write_text(json.dumps({"messages": [{**said[0], "content": "84.23.119.7 of ada@engine.org"}, said[1]]}) + "\n")
    hf.import_logs(path, store=at, leave=["ip"])
    asked = [str(row["input"]) for row in run.rollouts()]
    assert any("84.23.119.7" in text for text in asked) and not any("ada@" in text for text in asked)
    with pytest.raises(BadInput, match="leave places: there is no such class"):
        hf.import_logs(path, store=at, leave=["places"])
    path.write_text('{"messages": 3}\n')
    with pytest.raises(BadInput, match="messages is not a list"):
        hf.import_logs(path, store=at)
