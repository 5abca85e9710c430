"""A task keeps its answer from the agent, and reads like the plain dict that older agents take."""

from __future__ import annotations

import copy
import pickle

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.records import dumps, loads
from holdfast.contracts.rollout import Split
from holdfast.contracts.task import TaskItem, canonical, task_of

FULL = TaskItem(
    id="t1",
    input={"prompt": "2 + 2?", "lang": None},
    expected={"value": 4},
    split=Split.VAL,
    family="sums",
    metadata={"from": "book"},
)


def test_it_reads_like_its_input() -> None:
    assert FULL["prompt"] == "2 + 2?" and FULL.get("prompt") == "2 + 2?"
    assert FULL.get("nope") is None and FULL.get("nope", 3) == 3 and FULL.get("lang", 3) is None
    assert "prompt" in FULL and "expected" not in FULL and "id" not in FULL
    assert dict(FULL) == {**FULL} == FULL.input and list(FULL) == ["prompt", "lang"]
    with pytest.raises(KeyError, match="expected"):
        FULL["expected"]


def test_a_task_of_text_has_no_keys() -> None:
    task = TaskItem(id="t", input="prompt")
    assert "prompt" not in task and task.get("prompt", 1) == 1 and list(task) == []
    with pytest.raises(KeyError, match="the input of task t is str, not an object"):
        task["prompt"]


def test_the_agent_sees_id_and_input_and_nothing_else() -> None:
    seen = FULL.for_agent()
    assert seen == TaskItem(id="t1", input=FULL.input)
    assert (seen.expected, seen.has_expected, seen.split, seen.family, dict(seen.metadata)) == (
        None,
        False,
        None,
        None,
        {},
    )


@pytest.mark.parametrize(
    ("task", "has"),
    [
        (TaskItem(id="t", input="a"), False),
        (TaskItem(id="t", input="a", expected=None, has_expected=True), True),  # the answer is null
        (TaskItem(id="t", input="a", expected=False), True),
        (TaskItem(id="t", input="a", expected=""), True),
        (TaskItem(id="t", input="a", expected=0, has_expected=False), True),  # an answer that is there is there
    ],
)
def test_no_answer_is_not_an_answer_of_null(task: TaskItem, has: bool) -> None:
    assert task.has_expected is has
    assert ("expected" in task.row()) is has


@pytest.mark.parametrize("name", ["", " a", "a ", "a/b", "x" * 201])
def test_ids_obey_the_queue(name: str) -> None:
    with pytest.raises(BadRecord, match="must be 1 to 200 characters"):
        TaskItem(id=name, input="a")


def test_it_survives_the_codec_pickling_and_copying() -> None:
    for task in (FULL, TaskItem(id="t", input=["a"]), TaskItem(id="t", input="a", has_expected=True)):
        assert loads(TaskItem, dumps(task)) == pickle.loads(pickle.dumps(task)) == copy.deepcopy(task) == task


def test_canonical_text_knows_no_order_of_keys_and_no_nan() -> None:
    assert canonical({"b": 1, "a": [1.5, None]}) == '{"a":[1.5,null],"b":1}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical(float("nan"))


def test_a_row_is_read_back_as_the_same_task_and_what_is_no_row_stays_as_it_is() -> None:
    for task in (FULL, TaskItem(id="t", input=["a"]), TaskItem(id="t", input="a", has_expected=True)):
        assert TaskItem.from_row(task.row()) == task_of(task.row()) == task
    for other in (
        "a question",
        {"prompt": "x", "expected": "y"},
        {"id": "t", "input": "a", "more": 1},
        {"id": 3, "input": 1},
    ):
        assert task_of(other) is other
