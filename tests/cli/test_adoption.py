"""Tool adoption as people and programs are told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.records import decode
from holdfast.contracts.rollout import AttemptState
from holdfast.reward.tools import AdoptionRow
from holdfast.workloads.tooluse.agent import agent
from tests.cli.conftest import Cli
from tests.reward.conversation import LOOKUP, lookup, talk, tool
from tests.store.scene import Scene

SPEC = {"type": "function", "function": {"name": "lookup", "parameters": LOOKUP}}
GOOD = lookup("oak.price", "17")
BAD = tool("lookup", error="error: bad arguments", text="{")


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


def tried(scene: Scene, name: str, *calls: Any, model: str = "sprout@3", **task: Any) -> None:
    """One attempt, from its task to its end."""
    scene.enqueue(name, input={"prompt": "What?", "tools": [SPEC], **task})
    attempt = scene.claim().attempt
    spans = [
        span if span.model is None else replace(span, model=replace(span.model, model=model))
        for span in talk("What?", *calls, answer="17")
    ]
    scene.store.traces.add(attempt, spans, now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED, reward=1.0)


def some(scene: Scene) -> None:
    tried(scene, "a", GOOD, needs=["lookup"])
    tried(scene, "b", needs=["lookup"])
    tried(scene, "c", BAD, GOOD, needs=["lookup"])
    tried(scene, "d", GOOD, needs=[])
    tried(scene, "e", needs=[])
    scene.enqueue("open", input={"needs": ["lookup"]})


def test_rates_are_of_tasks_and_fit_the_terminal(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    some(scene)
    ran = cli("adoption", scene.run, *at)
    assert ran.code == 0, ran.err
    assert ran.lines[0] == "5 attempts in 1 run, all of sprout"
    assert ran.lines[2].split() == [
        "lookup", "3", "3", "33", "%", "[6-79]", "50", "%", "67", "%", "67", "%", "100", "%",
    ]  # fmt: skip
    assert max(map(len, ran.lines)) <= 80


@pytest.mark.parametrize(("by", "first"), [("tool", "lookup"), ("version", "3"), ("day", "1970-01-12")])
def test_the_rest_is_taken_together(cli: Cli, scene: Scene, at: tuple[str, str], by: str, first: str) -> None:
    some(scene)
    ran = cli("adoption", *at, "--by", by)  # without a run, the newest ones
    assert ran.code == 0 and len(ran.lines) == 3
    assert ran.lines[2].split()[0] == first and "[6-79]" in ran.lines[2]


def test_several_models_are_told_apart(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    tried(scene, "a", GOOD, needs=["lookup"])
    tried(scene, "b", GOOD, needs=["lookup"], model="oak@1")
    ran = cli("adoption", *at, "--by", "version", "--newest", 1)
    assert [line.split()[:2] for line in ran.lines[2:]] == [["oak", "1"], ["sprout", "3"]]


def test_programs_get_rows_with_their_denominators(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    some(scene)
    told = cli("adoption", scene.run, scene.run, *at, "--json").json
    assert told["attempts"] == 5
    (row,) = (decode(AdoptionRow, one) for one in told["rows"])
    assert (row.model, row.version, row.window) == ("sprout", "3", None)
    assert (row.adoption.hits, row.adoption.of, row.adoption.tries) == (1.0, 3, 3)
    assert (row.overuse.hits, row.overuse.of) == (1.0, 2)


def test_form_is_not_judged_where_nobody_says_what_it_should_be(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    tried(scene, "a", BAD, tools=["lookup"], needs=["lookup"])
    tried(scene, "b", BAD, tools=[{"no": "name"}])
    (row,) = (decode(AdoptionRow, one) for one in cli("adoption", *at, "--json").json["rows"])
    assert (row.formed.of, row.adoption.of, row.worked.share) == (0, 1, 0.0)


def test_the_tools_of_the_embedded_workload_are_known(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    """Tasks name them, and the run has kept what its agent brought along."""
    tried(scene, "a", tool("calc", "4", expr="2+2"), tools=["calc"], needs=["calc"], world={}, form="calc")
    tools = {"tools": list(agent.tools)}  # type: ignore[attr-defined]
    scene.store.steps.add(scene.run, "begin", tools, function="begin", now=1.0).result()
    (row,) = (decode(AdoptionRow, one) for one in cli("adoption", *at, "--json").json["rows"])
    assert (row.adoption.share, row.formed.share, row.worked.share) == (0.0, 0.0, 1.0)


def test_nothing_to_tell_is_said_in_a_line(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("open", input="plain text")
    assert "no decided attempt called a tool" in cli("adoption", scene.run, *at).out


def test_a_run_that_is_not_there_is_bad_input(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    ran = cli("adoption", "run-9", *at)
    assert ran.code == 2 and "run-9" in ran.err and len(ran.err.splitlines()) == 1
