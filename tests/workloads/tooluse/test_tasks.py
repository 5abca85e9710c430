"""Tasks: had again by number, apart between splits, solvable by whoever uses the tools, and short."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import Split
from holdfast.workloads.tooluse.tasks import (
    EASY,
    FAMILIES,
    HARD,
    LONG,
    PER_SEED,
    SEEDS,
    SPLITS,
    STYLES,
    UNKNOWN,
    USUAL,
    Dials,
    case,
    from_input,
    generate,
    key,
    to_input,
)
from holdfast.workloads.tooluse.tools import NAMES, Toolbox, is_error
from holdfast.workloads.tooluse.wordings import SENTENCES, instructions


def test_the_splits_are_those_of_the_store() -> None:
    assert tuple(Split) == SPLITS


@pytest.mark.parametrize(("one", "other"), list(combinations(SPLITS, 2)))
def test_no_two_splits_share_a_random_key_or_a_question(one: str, other: str) -> None:
    assert SEEDS[one].stop <= SEEDS[other].start
    questions = [{task.prompt for task in generate(split, 0, 400) if task.needs} for split in (one, other)]
    assert not questions[0] & questions[1]


def test_the_same_arguments_give_the_same_tasks_and_others_do_not() -> None:
    tasks = generate("train", 3, 50)
    assert tasks == generate("train", 3, 50)
    assert tasks[:10] == generate("train", 3, 10)
    assert not {to_text(t) for t in tasks} & {to_text(t) for t in generate("train", 4, 50)}
    assert tasks[7] == case("train", 3 * PER_SEED + 7).task


def to_text(task: Any) -> str:
    return json.dumps(to_input(task))


@pytest.mark.parametrize("dials", [USUAL, EASY, HARD, LONG], ids=["usual", "easy", "hard", "long"])
def test_every_family_of_the_dials_comes_up(dials: Dials) -> None:
    found = Counter(task.family for task in generate("val", 1, 600, dials))
    assert set(found) == set(dials.families)
    assert set(FAMILIES) == {*USUAL.families, *LONG.families}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("dials", [USUAL, HARD, LONG], ids=["usual", "hard", "long"])
def test_the_way_to_the_answer_leads_there(split: str, dials: Dials) -> None:
    for place in range(500):
        drawn = case(split, place, dials)
        task = drawn.task
        box = Toolbox(task.world, task.tools)
        results = [box.call(call.tool, call.arguments) for call in drawn.calls]
        assert results == [call.result for call in drawn.calls]
        assert task.difficulty == len(results)
        if task.family in ("missing", "unoffered"):
            assert task.expected == UNKNOWN and all(map(is_error, results))
        elif results and not drawn.working:
            assert task.expected == results[-1]
        if task.family in ("flaky", "failing"):
            assert any(map(is_error, results))


def test_what_is_needed_is_offered_unless_that_is_the_point() -> None:
    offered = Counter[int]()
    for task in generate("train", 5, 1500):
        offered[len(task.tools)] += 1
        assert set(task.needs) <= set(task.tools) <= set(NAMES)
        assert ("Use no tools." in task.system) != ("Use tools." in task.system)
        assert ("Think first." in task.system) == task.think
        if task.family == "unoffered":
            assert ("lookup" in task.tools) == ("Use no tools." in task.system)
        if task.needs:
            assert "Use tools." in task.system
        if task.form == "by_calc" and task.family == "convert":
            assert "convert" not in task.tools and "calc" in task.tools
    assert set(offered) == {0, 1, 2, 3, 4}


def test_the_world_is_filled_up_with_records_nobody_asked_for() -> None:
    for place in range(300):
        drawn = case("train", place, replace(USUAL, records=6))
        if drawn.task.family == "missing":
            wanted = json.loads(drawn.calls[0].arguments)["key"]
            assert wanted not in drawn.task.world.records
        assert 3 <= len(drawn.task.world.records) <= 6


def test_a_task_travels_as_json_with_or_without_what_is_hidden() -> None:
    for task in generate("test", 2, 100):
        plain = json.loads(json.dumps(to_input(task)))
        assert from_input(plain) == task and isinstance(plain["expected"], str)
        del plain["expected"]
        assert from_input(plain) == replace(task, expected=None)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"style": "loud"}, "style"), ({"tools": ["sing"]}, "sing"), ({"needs": "calc"}, "needs"),
        ({"prompt": None}, "prompt"), ({"world": []}, "world"), ({"expected": 4}, "expected"),
    ],
)  # fmt: skip
def test_a_spoilt_task_is_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        from_input({**to_input(generate("train", 0, 1)[0]), **change})
    with pytest.raises(BadInput, match="not an object"):
        from_input("What is 2 + 2?")


@pytest.mark.parametrize(
    "dials",
    [
        {"digits": 0}, {"operations": 9}, {"busy": 0}, {"think": 2.0}, {"families": ()}, {"styles": ("loud",)},
        {"prompts": "long"},
    ],
)  # fmt: skip
def test_dials_have_ends(dials: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(dials))):
        Dials(**dials)


def test_there_is_no_other_split_and_no_end_of_a_seed_is_passed() -> None:
    with pytest.raises(BadInput, match="splits: train, val, test"):
        key("validation", 0)
    with pytest.raises(BadInput, match="does not exist"):
        generate("train", -1, 1)
    with pytest.raises(BadInput, match="another seed"):
        generate("train", 0, PER_SEED + 1)


def test_the_usual_held_out_tasks_are_those_of_the_first_version() -> None:
    """Suites, proofs and replays of older stores are made of them."""
    told = "".join(to_text(task) for split in ("val", "test") for task in generate(split, 3, 200))
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "75ec973f5bc8e663"


def test_long_tasks_take_up_to_six_calls_and_a_busy_tool_one_more() -> None:
    tasks = generate("test", 1, 600, LONG)
    by_family = {family: {task.difficulty for task in tasks if task.family == family} for family in LONG.families}
    assert [by_family[name] for name in ("two", "three", "four", "five", "six")] == [{2}, {3}, {4}, {5}, {6}]
    assert by_family["failing"] == {3, 4, 5} and by_family["steps"] == {0} and by_family["record_steps"] == {1}


@pytest.mark.parametrize("split", SPLITS)
def test_a_chain_is_worked_out_step_by_step(split: str) -> None:
    for place in range(200):
        drawn = case(split, place, Dials(families=("steps", "record_steps")))
        for step in drawn.working.split():
            done, _, result = step.partition("=")
            assert Toolbox(drawn.task.world).call("calc", json.dumps({"expression": done})) == result
        assert drawn.working.endswith(f"={drawn.task.expected}") and "calc" not in drawn.task.tools


def test_bare_tasks_say_nothing_but_the_style_and_free_ones_what_was_told() -> None:
    for place in range(300):
        bare, free = (case("test", place, Dials(prompts=name)) for name in ("bare", "free"))
        assert bare.task.system == STYLES[bare.task.style] and not bare.instructed
        for aspect in free.instructed or ():
            is_usual = "Use tools. If unsure: unknown." in free.task.system
            assert is_usual or any(text in free.task.system for text in instructions("test", aspect))
        assert free.task.think == ("think" in (free.instructed or ()) and "hurry" not in (free.instructed or ()))


def test_no_sentence_of_the_test_instructions_is_learnt_from() -> None:
    for aspect in SENTENCES:
        assert not set(instructions("train", aspect)) & set(instructions("test", aspect))
        assert len(instructions("train", aspect)) > 20
