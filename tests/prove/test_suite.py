"""Suites: everything that is wrong is said at once and with its place, and the hash is of what is measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.prove.suite import canonical, from_document, load, to_document

SHIPPED = Path(__file__).resolve().parents[2] / "examples/suites"
GOOD: dict[str, Any] = {
    "suite_id": "sums",
    "version": "2",
    "family": "reasoning",
    "description": "Adding up.",
    "seeds": [3, 5],
    "cases": [
        {
            "case_id": "one",
            "seed": 11,
            "prompt": "1 + 1?",
            "expected_outcome": "2",
            "scoring_rubric": {"a": 0.25, "b": 0.75},
            "input": {"style": "brief"},
        },
        {"case_id": "two", "seed": 12, "prompt": "2 + 2?", "expected_outcome": "4", "scoring_rubric": {"a": 1}},
    ],
}


def changed(*edits: Callable[[Any], object]) -> Any:
    document = deepcopy(GOOD)
    for edit in edits:
        edit(document)
    return document


def problems(document: Any) -> str:
    with pytest.raises(BadInput) as caught:
        from_document(document, "s.json")
    return str(caught.value)


def test_a_suite_is_read_as_it_is_written() -> None:
    suite = from_document(GOOD)
    assert (suite.suite_id, suite.version, suite.family, suite.seeds) == ("sums", "2", "reasoning", (3, 5))
    assert suite.episodes == 4  # two cases, each with two seeds
    assert [case.case_id for case in suite.cases] == ["one", "two"]
    assert suite.cases[0].scoring_rubric == {"a": 0.25, "b": 0.75}
    assert from_document(to_document(suite)) == suite


def test_a_case_gives_its_agent_the_prompt_and_hides_what_is_expected() -> None:
    one, two = from_document(GOOD).cases
    assert one.given == {"style": "brief", "prompt": "1 + 1?", "expected": "2"}
    assert two.given == {"prompt": "2 + 2?", "expected": "4"}
    assert replace(two, input=["any", "JSON"]).given == ["any", "JSON"]
    assert from_document(changed(lambda d: d.pop("seeds"))).seeds == (1,)  # every case is done once
    assert from_document(changed(lambda d: d.pop("version"))).version == "1"


def test_the_hash_is_of_what_is_measured_and_not_of_how_it_is_written_or_how_often() -> None:
    suite = from_document(GOOD)
    turned = {name: GOOD[name] for name in reversed(GOOD)}
    assert from_document(turned).fixture_sha256 == suite.fixture_sha256
    assert replace(suite, seeds=(1,)).fixture_sha256 == suite.fixture_sha256
    other = from_document(changed(lambda d: d["cases"][1].update(expected_outcome="5")))
    assert other.fixture_sha256 != suite.fixture_sha256
    assert suite.title == f"sums@2 {suite.fixture_sha256[:12]}"


BROKEN: list[tuple[Callable[[Any], object], str]] = [
    (lambda d: d.pop("suite_id"), "suite_id: is missing"),
    (lambda d: d.update(description=" "), "description: is text, not text that says something"),
    (lambda d: d.update(version=2), "version: is a number, not text that says something"),
    (lambda d: d.update(family="poetry"), "family = 'poetry': is unknown: use reasoning or tool_use"),
    (lambda d: d.update(cases=[]), "cases: is an empty list; at least one case is needed"),
    (lambda d: d.update(colour="red"), "colour: is unknown: use suite_id"),
    (lambda d: d.update(episodes=3), "episodes = 3: 2 cases by 2 seeds are 4"),
    (lambda d: d.update(seeds=[1, 1]), "seeds[1]: 1 is there twice"),
    (lambda d: d.update(seeds=[0]), "seeds[0] = 0: must be a whole number above 0"),
    (lambda d: d.update(seeds=7), "seeds: is a number, not a list"),
    (lambda d: d["cases"].append("three"), "cases[2]: is text, not an object"),
    (lambda d: d["cases"][1].update(case_id="one"), "cases[1].case_id: 'one' is there twice"),
    (lambda d: d["cases"][1].pop("seed"), "cases[1].seed: is missing"),
    (lambda d: d["cases"][1].update(seed=-4), "cases[1].seed = -4: must be a whole number above 0"),
    (lambda d: d["cases"][1].update(seed=True), "cases[1].seed = True: must be a whole number above 0"),
    (lambda d: d["cases"][1].update(seed=2**64), "must be a whole number above 0, of at most 64 bits"),
    (lambda d: d["cases"][0].pop("prompt"), "cases[0].prompt: is missing"),
    (lambda d: d["cases"][0].update(expected_outcome=2), "cases[0].expected_outcome: is a number, not text"),
    (lambda d: d["cases"][0].update(expects="2"), "cases[0].expects: is unknown"),
    (lambda d: d["cases"][0].update(scoring_rubric={}), "cases[0].scoring_rubric: is an empty dict"),
    (lambda d: d["cases"][0]["scoring_rubric"].update(a=0.3), "cases[0].scoring_rubric: the weights add up to 1.05"),
    (lambda d: d["cases"][0]["scoring_rubric"].update(a=-1), "cases[0].scoring_rubric.a = -1: must be a named, finite"),
    (lambda d: d["cases"][0]["scoring_rubric"].update(a=True), "cases[0].scoring_rubric.a = True"),
    (lambda d: d["cases"][0]["scoring_rubric"].update(a=float("nan")), "cases[0].scoring_rubric.a = nan"),
]


@pytest.mark.parametrize(("edit", "said"), BROKEN, ids=[said for _, said in BROKEN])
def test_what_is_wrong_is_said_with_its_place(edit: Callable[[Any], object], said: str) -> None:
    assert said in problems(changed(edit))


def test_everything_that_is_wrong_is_said_at_once() -> None:
    told = problems(changed(*(edit for edit, _ in BROKEN[:3]), lambda d: d["cases"][1].update(seed=0)))
    assert told.startswith("suite s.json, 4 problems: ")
    assert all(part in told for part in ("suite_id", "description", "version", "cases[1].seed"))


def test_a_rubric_may_miss_the_sum_by_a_rounding_and_no_more() -> None:
    thirds = {"a": 0.3333333, "b": 0.3333333, "c": 0.3333333}
    assert from_document(changed(lambda d: d["cases"][0].update(scoring_rubric=thirds)))
    assert problems([GOOD]) == "suite s.json: is a list, not an object; see examples/suites"
    assert "add up to 0.99999" in problems(changed(lambda d: d["cases"][0].update(scoring_rubric={"a": 0.99999})))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is not JSON"),
        (b'{"a": "\xe9"}', "is not JSON"),
        (b'{"a": NaN}', "a must be a finite number"),
        (b'{"seeds": [1], "seeds": [2]}', "seeds is there twice in one object"),
        (b"[" * 100_000, "is nested too deeply"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "s.json").write_bytes(content)
    with pytest.raises(BadInput, match=said):
        load(tmp_path / "s.json")


@pytest.mark.parametrize(
    ("name", "seeds", "dimensions"),
    [
        ("reasoning-suite", [10101, 20202], {"task_accuracy", "reasoning_trace_quality", "constraint_compliance"}),
        ("tool-use-suite", [30303, 40404], {"task_completion", "tool_safety", "tool_efficiency"}),
    ],
)
def test_the_shipped_suites_are_as_documented(name: str, seeds: list[int], dimensions: set[str]) -> None:
    suite = load(SHIPPED / f"{name}.json")
    assert suite.suite_id == name
    assert [case.seed for case in suite.cases] == seeds
    assert all(set(case.scoring_rubric) == dimensions for case in suite.cases)


@given(st.dictionaries(st.text(max_size=5), st.integers() | st.floats(allow_nan=False, allow_infinity=False)))
def test_equal_data_has_one_text(data: dict[str, Any]) -> None:
    turned = dict(reversed(list(data.items())))
    assert canonical(turned) == canonical(data)
    assert json.loads(canonical(data)) == data
