"""`holdfast reward …`: attached once, shown turn by turn, and scored again beside the first scoring."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.contracts.records import decode
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.reward.turns import TurnRewards
from holdfast.store.store import open_store
from holdfast.store.traces import Rewarded
from holdfast.workloads.tooluse.score import score
from tests.cli.conftest import At, Cli
from tests.endpoint import serving
from tests.store.scene import Scene

HOW = ("--name", "tone", "--value", "0.5", "--source", "person:ann")


def test_a_reward_is_told_once_and_shown(cli: Cli, scene: Scene, at: At) -> None:
    scene.brought_to(RolloutState.SUCCEEDED)
    told = "run-1-a/t: tone = 0.5 × 1 (person:ann)"
    assert cli("reward", "attach", "run-1/t", *HOW, *at).done().out == f"{told}; its reward is 0.5, was none\n"
    assert cli("reward", "attach", "run-1/t", *HOW, *at).done().out == f"{told} was told before; its reward is 0.5\n"
    assert "reward tone = 0.5 × 1 (person:ann)" in cli("spans", "run-1/t", *at).out
    entry = list(scene.store.ledger.entries())[-1]
    assert (entry.kind, entry.who) == ("reward", "ann")
    words = ("--name", "more", "--value", "0.25", "--source", "person:ann", "--weight", "2", "--json")
    made = decode(Rewarded, cli("reward", "attach", "run-1/t", *words, *at).json)
    assert (made.is_new, made.reward, made.signal.weight, made.attempt) == (True, 1.0, 2.0, "run-1-a/t:attempt-1")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--value", "0.7"), 5, "person:ann told tone before: 0.5 × 1; what was told stands"),
        (("--value", "nan"), 2, "signal tone: value = nan: must be finite"),
        (("--value", "much"), 2, "Invalid value for '--value': Input should be a valid number"),
        (("--name", " "), 2, "must not be blank"),
        (("--turn", "0"), 2, "turn 0: rollout run-1-a/t has no turns; leave the turn out"),
        (("--turn", "-1"), 2, "Invalid value for '--turn': Input should be greater than or equal to 0"),
    ],
)
def test_what_cannot_be_told_is_refused_and_changes_nothing(
    cli: Cli, scene: Scene, at: At, words: tuple[str, ...], code: int, says: str
) -> None:
    scene.brought_to(RolloutState.SUCCEEDED)
    cli("reward", "attach", "run-1/t", *HOW, *at).done()
    ran = cli("reward", "attach", "run-1/t", *HOW, *words, *at)
    assert ran.code == code and says in " ".join(ran.err.split()) and not ran.out
    assert scene.rollout("t").reward == 0.5


def test_one_that_runs_or_is_not_there_is_refused(cli: Cli, scene: Scene, at: At) -> None:
    scene.brought_to(RolloutState.RUNNING)
    ran = cli("reward", "attach", "run-1/t", *HOW, *at)
    assert (ran.code, "is running: its own worker scores it when it ends; wait" in ran.err) == (5, True)
    assert cli("reward", "attach", "run-1/nope", *HOW, *at).code == cli("reward", "attach", "t", *HOW, *at).code == 2
    assert "there is none" in cli("rewards", "run-1/nothing", *at).refusal


# What a rollout was paid for

TASK = {
    "prompt": "What is the price of oak, doubled? " + "Please be so kind. " * 5,
    "system": "Use tools.",
    "expected": "24",
    "style": "brief",
    "tools": ["lookup", "calc"],
    "needs": ["lookup", "calc"],
    "difficulty": 2,
}


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


def paid(scene: Scene, output: Any, signals: tuple[RewardTerm, ...]) -> str:
    scene.enqueue("t", input=TASK)
    attempt = scene.claim().attempt
    scene.store.traces.add(attempt, SPANS, now=scene.clock.now).result()
    scene.store.traces.score(attempt, signals, now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED, output=output, reward=1.0)
    return f"{scene.run}/t"


def test_a_breakdown_is_told_turn_by_turn_and_adds_up(cli: Cli, scene: Scene, at: At) -> None:
    rollout = paid(scene, "24", TurnRewards()(TASK, "24", SPANS, score(TASK, "24", SPANS)))
    shown = cli("rewards", rollout, *at).done().page
    assert shown[0] == f"{rollout}: succeeded"
    assert shown[3] == "  expected  24  (hidden from the agent)"
    told = [line for line in shown if line.startswith(("  turn ", "            "))]
    acts = [line.split(maxsplit=2)[2] if line.startswith("  turn") else line.strip() for line in told]
    measured = ("worth:", "seen:", "progress", "safety", "error_handling", "utility")
    assert [act for act in acts if not act.startswith(measured)] == [
        "thinks    first the price",
        "calls     lookup key=oak.price",
        "is told   12",
        "calls     calc input=12 * 2",
        "is told   error: bad arguments",
        "answers   24",
    ]
    # The call that the price went into failed, so it led nowhere; one of three marks is reached: .3 + .2 / 3 + .1
    assert "            worth:  0.467 in all, information_gain 0, format 1," in told
    assert "            seen:   choice 1, utility 0, error_handling 1" in told
    turns = cli("rewards", rollout, *at, "--json").json["turn_rewards"]
    parts = {"information_gain", "format", "progress", "safety", "turn_reward"}
    assert len(turns) == 3 and all(parts <= set(turn) for turn in turns)
    assert sum(turn["progress"] for turn in turns) == pytest.approx(1.0)
    assert "  success                        1 ×       1 =       1  rule:tooluse" in shown
    assert "  efficiency                     1 ×    0.05 =    0.05  rule:tooluse" in shown
    assert next(line for line in shown if line.startswith("  total")).split() == ["total", "1.1"]
    assert shown[-1] == "  guard:tooluse@1 is open: the hidden check passed"


def test_a_wrong_answer_in_style_is_shown_as_worth_nothing(cli: Cli, scene: Scene, at: At) -> None:
    rollout = paid(scene, "25", score(TASK, "25", SPANS))
    shown = cli("rewards", rollout, *at).lines
    assert "  format                         1 ×       0 =       0  rule:tooluse" in shown
    assert shown[-1] == "  guard:tooluse@1 is closed, so nothing else is paid"
    told = cli("rewards", rollout, *at, "--json").json
    assert (told["rollout"], told["output"], told["total"]) == (rollout, "25", 0.0)
    assert [len(turn) for turn in told["turns"]] == [3, 2, 1]
    assert {one["name"] for one in told["sheet"]["signals"]} >= {"success", "format", "efficiency", "gated"}


def test_what_counts_for_a_turn_is_told_with_its_weight(cli: Cli, scene: Scene, at: At) -> None:
    signals = (
        RewardTerm(name="success", value=1.0, source="env"),
        RewardTerm(name="progress", value=0.5, weight=0.2, source="env", turn=0),
    )
    shown = cli("rewards", paid(scene, "24", signals), *at).lines
    assert "            counts: progress 0.5 × 0.2" in shown
    assert any(line.split()[:4] == ["1", "signal", "of", "turns"] and "0.1" in line for line in shown)


def test_what_was_never_tried_has_no_turns_and_no_reward(cli: Cli, scene: Scene, at: At) -> None:
    scene.enqueue("open", input="what?")
    shown = cli("rewards", f"{scene.run}/open", *at).lines
    assert shown[1:] == ["  asked     what?", "  nothing was measured, so there is no reward"]
    assert cli("rewards", f"{scene.run}/open", *at, "--json").json["sheet"] is None


# Comparing and scoring again

AGENT = """
def agent(task, ctx):
    word = task["question"].split()[-1]
    return word if ctx.prompt("system") == "good" or len(word) % 2 else word + "?"
"""
SCORE = """
def lenient(task, answer):
    return float(answer.startswith(task.expected) and len(answer) <= len(task.expected) + 1)
"""
WORDS = [f"{'a' * (n % 7 + 1)}{chr(97 + n % 26)}-{'b' * (n // 7)}" for n in range(90)]
WRONG = sum(len(word) % 2 == 0 for word in WORDS)  # by the bad prompt
STORE = ("--store", "s.db")
MEASURED = ("--tasks", "t.jsonl", "--agent", "compare_agent.py:agent", "--seeds", "1", "--json", *STORE)


@pytest.fixture
def words(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent that repeats words, its scorer and tasks."""
    monkeypatch.delitem(sys.modules, "compare_score", raising=False)  # of another test's folder
    Path("compare_agent.py").write_text(AGENT)
    Path("compare_score.py").write_text(SCORE)
    rows = [{"question": f"say {word}", "expected": word} for word in WORDS]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return here


def collected(system: str) -> str:
    how: dict[str, Any] = {"scorers": "exact", "policy": hf.Prompt(system=system), "store": "s.db", "workers": 4}
    return hf.collect("compare_agent.py:agent", "t.jsonl", **how).id


def test_two_stored_runs_get_a_paired_verdict(cli: Cli, words: Path) -> None:
    bad, good = collected("bad"), collected("good")
    assert cli("compare", bad, good, *STORE).done().page[0] == f"{good} is better than {bad} in success"
    told = cli("compare", bad, good, *STORE, "--json").json
    assert (told["a"], told["b"], told["is_better"], told["run"]) == (bad, good, True, None)
    assert told["difference"] == pytest.approx(WRONG / len(WORDS))
    assert cli("compare", good, bad, *STORE, "--json").json["is_better"] is not True


def test_two_prompts_are_measured_and_another_scorer_says_what_their_verdict_would_have_been(
    cli: Cli, words: Path
) -> None:
    Path("good.txt").write_text("good\n")
    with serving() as there:
        told = cli("compare", "bad", "@good.txt", *MEASURED, "--model", "unasked", "--base-url", there.url).done().json
    assert (told["is_better"], told["metric"]) == (True, "success")
    with open_store(words / "s.db") as store:
        assert store.runs.get(told["run"]).kind == "compare"
        assert store.releases.policies() == []  # no release moves
    again = cli("rescore", told["run"], "--scorer", "compare_score.py:lenient", *STORE, "--json").done().json
    assert (again["old_verdict"]["outcome"], again["new_verdict"]["outcome"]) == ("promote", "hold")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("a", "b", "--agent", "x:y"), "--agent: is for what is measured now"),
        (("a", "b", "--tasks", "t.jsonl"), "--agent: is missing"),
        (("a", "@no.txt", "--tasks", "t.jsonl", "--agent", "x:y", "--model", "m"), "prompt @no.txt: cannot be read"),
    ],
)
def test_what_cannot_be_compared_is_said(cli: Cli, words: Path, given: tuple[str, ...], says: str) -> None:
    assert says in cli("compare", *given).refusal


def test_a_second_scoring_is_compared_with_the_first_and_kept(cli: Cli, words: Path) -> None:
    run = collected("bad")
    ran = cli("rescore", run, "--scorer", "compare_score.py:lenient", *STORE, "--limit", "2").done()
    assert f"{WRONG} rollouts changed, the largest change first:" in ran.page
    assert sum(line.endswith("wrong → right") for line in ran.lines) == 2
    told = cli("rescore", run, "--scorer", "exact", *STORE, "--name", "again", "--json").json
    assert (told["run"], told["name"], told["comparison"]["agreement"], told["errors"]) == (run, "again", 1.0, {})
    assert cli("rescore", run, "--scorer", "exact", *STORE, "--name", "again").code != 0  # a name is given once
    assert "nobody" in cli("rescore", run, "--scorer", "compare_score.py:nobody", *STORE).refusal
    with open_store(words / "s.db") as store:
        assert [one.name for one in store.scorings.of_run(run)] == ["rescored-1", "again"]
        assert sum(one.outcome == "wrong" for one in store.views.rollouts(run, most=100)) == WRONG  # as it was
