"""`holdfast rewards`: what a rollout was paid for, turn by turn, in 80 columns."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.workloads.tooluse.score import score
from tests.cli.conftest import Cli
from tests.store.scene import Scene

TASK = {
    "prompt": "What is the price of oak, doubled? " + "Please be so kind. " * 5,
    "system": "Use tools.",
    "expected": "24",
    "style": "brief",
    "tools": ["lookup", "calc"],
    "needs": ["lookup", "calc"],
    "difficulty": 2,
}


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


def asked(seq: int, **response: Any) -> Span:
    call = ModelCall(model="m", messages=(), response={"role": "assistant", **response})
    return Span(seq=seq, kind=SpanKind.MODEL, name="m", started_at=0.0, ended_at=0.0, model=call)


def called(seq: int, tool: str, result: str | None, error: str | None = None, **arguments: str) -> Span:
    call = ToolCall(tool=tool, arguments=arguments, result=result, error=error)
    return Span(seq=seq, kind=SpanKind.TOOL, name=tool, started_at=0.0, ended_at=0.0, tool=call)


SPANS = [
    asked(1, content=None, tool_calls=[{}], reasoning_content="first the price"),
    called(2, "lookup", "12", key="oak.price"),
    asked(3, content=None, tool_calls=[{}]),
    called(4, "calc", None, "error: bad arguments", input="12 * 2"),
    asked(5, content="24"),
]


def done(scene: Scene, name: str, output: Any, signals: tuple[RewardTerm, ...], spans: list[Span]) -> str:
    scene.enqueue(name, input=TASK)
    attempt = scene.claim().attempt
    scene.store.traces.add(attempt, spans, now=scene.clock.now).result()
    scene.store.traces.score(attempt, signals, now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED, output=output, reward=1.0)
    return f"{scene.run}/{name}"


def test_a_sheet_is_told_turn_by_turn_and_adds_up(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    rollout = done(scene, "t", "24", score(TASK, "24", SPANS), SPANS)
    ran = cli("rewards", rollout, *at)
    assert ran.code == 0, ran.err
    assert max(map(len, ran.lines)) <= 80
    assert ran.lines[0] == f"{rollout}: succeeded"
    assert ran.lines[3] == "  expected  24  (hidden from the agent)"
    told = [line for line in ran.lines if line.startswith(("  turn ", "            "))]
    acts = [line.split(maxsplit=2)[2] if line.startswith("  turn") else line.strip() for line in told]
    assert [act for act in acts if not act.startswith(("seen:", "counts:", "error_handling", "utility"))] == [
        "thinks    first the price",
        "calls     lookup key=oak.price",
        "is told   12",
        "calls     calc input=12 * 2",
        "is told   error: bad arguments",
        "answers   24",
    ]
    assert any(line.strip().startswith("seen:") and "information_gain" in line for line in told)
    assert "  success                        1 ×       1 =       1  rule:tooluse" in ran.lines
    assert "  efficiency                     1 ×    0.05 =    0.05  rule:tooluse" in ran.lines
    total = next(line for line in ran.lines if line.startswith("  total"))
    assert total.split() == ["total", "1.1"]
    assert ran.lines[-1] == "  guard:tooluse@1 is open: the hidden check passed"


def test_a_wrong_answer_in_style_is_shown_as_worth_nothing(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    rollout = done(scene, "t", "25", score(TASK, "25", SPANS), SPANS)
    ran = cli("rewards", rollout, *at)
    assert "  format                         1 ×       0 =       0  rule:tooluse" in ran.lines
    assert ran.lines[-1] == "  guard:tooluse@1 is closed, so nothing else is paid"
    told = cli("rewards", rollout, *at, "--json").json
    assert (told["rollout"], told["output"], told["total"]) == (rollout, "25", 0.0)
    assert [len(turn) for turn in told["turns"]] == [3, 2, 1]
    assert {one["name"] for one in told["sheet"]["signals"]} >= {"success", "format", "efficiency", "gated"}


def test_what_counts_for_a_turn_is_told_with_its_weight(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    signals = (
        RewardTerm(name="success", value=1.0, source="env"),
        RewardTerm(name="progress", value=0.5, weight=0.2, source="env", turn=0),
    )
    ran = cli("rewards", done(scene, "t", "24", signals, SPANS), *at)
    assert "            counts: progress 0.5 × 0.2" in ran.lines
    assert any(line.split()[:4] == ["1", "signal", "of", "turns"] and "0.1" in line for line in ran.lines)


def test_what_was_never_scored_has_no_reward_and_what_was_never_tried_no_turns(
    cli: Cli, scene: Scene, at: tuple[str, str]
) -> None:
    scene.enqueue("open", input="what?")
    ran = cli("rewards", f"{scene.run}/open", *at)
    assert ran.lines[1:] == ["  asked     what?", "  nothing was measured, so there is no reward"]
    assert cli("rewards", f"{scene.run}/open", *at, "--json").json["sheet"] is None


def test_a_rollout_that_is_not_there_is_said_so_in_one_line(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    ran = cli("rewards", f"{scene.run}/nothing", *at)
    assert ran.code == 2 and ran.err.count("\n") == 1 and "there is none" in ran.err
