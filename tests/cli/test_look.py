"""Runs, rollouts, spans, ledger, workers, adoption, budgets and quality as people and programs see them."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.budget import Assessment, BudgetChange, BudgetEvent, Mode, ThinkingBudget, Tier, Traits
from holdfast.contracts.budget import BudgetEventKind as EventKind
from holdfast.contracts.records import PUBLISHED, decode
from holdfast.contracts.rollout import AttemptState, RolloutState, Split
from holdfast.contracts.run import DesiredState, RunState
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.learn.quality import GATES
from holdfast.reward.tools import AdoptionRow
from holdfast.store.budgets import BudgetTotals
from holdfast.store.store import Store
from holdfast.workloads.tooluse.agent import agent
from tests.cli.conftest import Answer, At, Cli
from tests.conftest import Clock
from tests.reward.conversation import LOOKUP, lookup, talk, tool
from tests.store.scene import AT_ONCE, Scene, begin, signal, span

LONG = "A very long question\nwith a line break, [markup], 漢字 and more " * 5


def records(ran: Answer, kind: str) -> list[Any]:
    assert all(one["schema_version"] == 1 for one in ran.done().json)
    return [decode(PUBLISHED[kind], one) for one in ran.json]


def follow(cli: Cli, ran: Answer) -> Answer:
    """Run the command that the last line names."""
    line = (ran.err or ran.out).rstrip().splitlines()[-1]
    assert line.startswith("more: holdfast ")
    return cli(*shlex.split(line)[2:])


def test_an_empty_store_says_what_to_try_next(cli: Cli, store: Store, at: At) -> None:
    begins = f"in project default; to begin one: holdfast run start --config FILE --store {store.url}\n"
    assert cli("runs", *at).out == f"no runs yet {begins}"
    assert cli("runs", *at, "--status", "failed").out == f"no failed runs {begins}"
    for command, said in (("ledger", "no entries"), ("workers", "no workers yet")):
        assert cli(command, *at).out.startswith(f"{said} in project default; a run ")
    for command in ("runs", "ledger", "workers"):
        assert cli(command, *at, "--json").json == []


# Runs


def test_runs_are_listed_newest_first(cli: Cli, scene: Scene, at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")  # a run that took a little longer has a wider cell, and this one may go
    scene.enqueue("right", "wrong", "broken", "lost", "cancelled", "open", max_attempts=1, max_faults=0)
    for outcome in ("right", "wrong"):
        scene.finish(scene.claim(), AttemptState.SUCCEEDED, outcome=outcome)
    scene.finish(scene.claim(), AttemptState.FAILED)
    scene.finish(scene.claim(), AttemptState.FAULT)
    scene.cancel("cancelled")
    scene.store.runs.end(scene.run, RunState.FAILED, who="t", now=scene.clock.advance(90)).result()
    now = time.time()
    for salt, wanted in (("b", DesiredState.RUNNING), ("c", DesiredState.PAUSED)):
        run = begin(scene.store, Clock(now), salt=salt)
        scene.store.runs.want(run, wanted, who="t", why="w", now=now).result()
    begin(scene.store, Clock(now - 600), salt="d")  # its process was last seen ten minutes ago
    first, *rows = cli("runs", *at).done().page
    assert first.split() == ["run", "state", "done", "right", "wrong", "failed", "started", "took", "model"]
    states = {line.split()[0]: line for line in rows}
    assert list(states) == ["run-4-d", "run-3-c", "run-2-b", "run-1-a"]
    assert "silent 10 min" in states["run-4-d"] and "running, paused" in states["run-3-c"]
    assert " running  " in states["run-2-b"]
    words = states["run-1-a"].split()
    assert words == ["run-1-a", "failed", "5/6", "1", "1", "2", "01-12", "13:46", "90.0", "s", "m"]
    assert records(cli("runs", *at, "--json"), "run") == scene.store.runs.newest()


def test_what_came_of_the_rollouts_is_shown_however_narrow_the_terminal_is(
    cli: Cli, scene: Scene, at: At, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.enqueue("one", "two")
    scene.finish(scene.claim(), AttemptState.SUCCEEDED, outcome="wrong")
    scene.finish(scene.claim(), AttemptState.SUCCEEDED)  # an answer that nobody checked is neither
    assert "unchecked" in cli("runs", *at).lines[0]
    monkeypatch.setenv("COLUMNS", "64")
    titles, row = cli("runs", *at).lines
    assert titles.split() == ["run", "state", "done", "right", "wrong", "unchecked", "failed", "model"]
    assert row.split()[-6:] == ["2/2", "0", "1", "1", "0", "m"]


def test_runs_can_be_filtered_and_paged(cli: Cli, store: Store, clock: Clock, at: At) -> None:
    for number in range(5):
        run = begin(store, clock, salt=f"s{number}")
        if number % 2:
            store.runs.end(run, RunState.COMPLETED, who="t", now=clock.now).result()
    ran = cli("runs", *at, "--limit", 2).done()
    assert [line.split()[0] for line in ran.page[1:3]] == ["run-5-s4", "run-4-s3"]
    assert ran.lines[3] == f"more: holdfast run list --limit 2 --after run-4-s3 --store {at[1]}"
    ran = follow(cli, follow(cli, ran))
    assert [line.split()[0] for line in ran.lines[1:]] == ["run-1-s0"]
    ran = cli("runs", *at, "--limit", 1, "--status", "completed", "--json")
    assert [run.id for run in records(ran, "run")] == ["run-4-s3"]
    assert ran.err == f"more: holdfast run list --status completed --limit 1 --after run-4-s3 --store {at[1]}\n"
    assert "run-2-s1" in follow(cli, ran).out
    assert cli("runs", *at, "--after", "run-1").out.startswith("no more runs in project default")


# Rollouts


def test_rollouts_are_listed_with_what_became_of_them(cli: Cli, scene: Scene, at: At) -> None:
    scene.enqueue("train-1", split=Split.TRAIN, input={"prompt": LONG})
    scene.enqueue("val-1", split=Split.VAL, input="plain", max_attempts=1)
    scene.enqueue("x" * 200, input={"other": [1, 2]})
    scene.finish(scene.claim(), AttemptState.RELEASED)  # handed back unharmed: no try is spent
    assert " 0/3 " in cli("rollouts", "run-1", *at).lines[3]
    claim = scene.claim()
    scene.clock.advance(1.5)
    scene.finish(claim, AttemptState.SUCCEEDED, reward=0.25, outcome="wrong")
    scene.finish(scene.claim(), AttemptState.FAILED, error="it broke\nbadly")
    shown = cli("rollouts", "run-1", *at).done().page
    head = ["run-1-a: 3 rollouts", "outcome: 1 wrong, 1 failed", "status: 1 queuing, 1 succeeded, 1 failed"]
    assert shown[:4] == [*head, "reward train: mean 0.25 over 1 of 1"]
    table = [line.split()[:8] for line in shown[4:]]
    assert table[0] == ["name", "outcome", "status", "split", "tries", "reward", "took", "prompt"]
    assert table[1] == ["train-1", "wrong", "succeeded", "train", "1/3", "0.25", "1.5", "s"]
    assert table[2] == ["val-1", "failed", "failed", "val", "1/1", "-", "0.0", "ms"]
    assert shown[7].startswith("xxxxxxxx") and " queuing " in shown[7]
    assert all(line.endswith("…") for line in shown[5:7])
    assert records(cli("rollouts", "run-1", *at, "--json"), "rollout") == scene.store.views.rollouts(scene.run)


def test_rollouts_can_be_filtered_and_paged(cli: Cli, scene: Scene, at: At) -> None:
    scene.enqueue(*(f"train-{n}" for n in range(1, 6)), split=Split.TRAIN)
    scene.enqueue("val-1", split=Split.VAL)
    scene.cancel("train-2")
    ran = cli("rollouts", scene.run, *at, "--limit", 2, "--split", "train", "--status", "queuing").done()
    assert [line.split()[0] for line in ran.page[4:6]] == ["train-1", "train-3"]
    options = f"--status queuing --split train --limit 2 --after train-3 --store {at[1]}"
    assert ran.lines[6] == f"more: holdfast run rollouts {scene.run} {options}"
    assert [line.split()[0] for line in follow(cli, ran).lines] == ["name", "train-4", "train-5"]
    assert cli("rollouts", scene.run, *at, "--split", "test").lines[-1] == "no rollouts that fit"
    assert cli("rollouts", scene.run, *at, "--after", "val").out == "no more rollouts that fit\n"
    assert cli("rollouts", scene.run, *at, "--after", f"{scene.run}/val-1", "--json").json == []


def test_rollouts_can_be_filtered_by_what_came_of_them(cli: Cli, scene: Scene, at: At) -> None:
    for place, outcome in enumerate(["right", "wrong", None, "wrong"]):
        scene.enqueue(f"t{place}")
        scene.finish(scene.claim(), AttemptState.SUCCEEDED, outcome=outcome)
    for state in (RolloutState.FAILED, RolloutState.DEAD, RolloutState.CANCELLED):
        scene.brought_to(state, str(state))
    scene.enqueue("open")

    def found(outcome: str, *more: str) -> list[str]:
        return [one["name"] for one in cli("rollouts", scene.run, *at, "--outcome", outcome, *more, "--json").json]

    assert [found(one) for one in ("right", "wrong", "not_checked", "failed", "no_answer")] == [
        ["t0"], ["t1", "t3"], ["t2"], ["failed"], ["dead", "cancelled"]
    ]  # fmt: skip
    assert found("wrong", "--limit", "1") == ["t1"] and found("wrong", "--after", "t1") == ["t3"]
    assert found("wrong", "--status", "succeeded") == ["t1", "t3"] and found("wrong", "--status", "failed") == []
    assert found("no_answer", "--status", "dead") == ["dead"]


NO_RUN = "there is none in project 'default'; 'holdfast run list' lists them"
NO_ROLLOUT = "rollout run-1-a/none: there is none; 'holdfast run rollouts run-1-a' lists them"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollouts", "run-9"], f"run 'run-9': {NO_RUN}"),
        (["budgets", "run-9"], f"run 'run-9': {NO_RUN}"),
        (["adoption", "run-9"], f"run 'run-9': {NO_RUN}"),
        (["quality", "run-9"], f"run 'run-9': {NO_RUN}"),
        (["rollouts", "run-1", "--project", "other"], "run 'run-1': there is none in project 'other'; "),
        (["rollouts", "run"], "run 'run': several start so: run-1-a, run-2-b; 'holdfast run list' lists them"),
        (["rollouts", "run-1", "--after", "none"], NO_ROLLOUT),
        (["spans", "run-1/none"], NO_ROLLOUT),
        (["spans", "run-1/t", "--attempt", "2"], "attempt 2 of run-1-a/t: it has 1; leave --attempt out"),
        (["quality", "run-1"], "experiences of run-1-a: none of its 1 rollouts is for training and decided"),
        (["quality", "run-1", "--reward-range", "1", "0"], "reward_range = (1.0, 0.0): must be finite and in order"),
    ],
)
def test_names_that_fit_nothing_are_refused(
    cli: Cli, scene: Scene, clock: Clock, at: At, words: list[str], said: str
) -> None:
    begin(scene.store, clock, salt="b")
    scene.enqueue("t")
    scene.claim()
    assert cli(*words, *at).refusal.startswith(f"holdfast: error: {said}")
    assert cli("runs", *at, "--project", "other").out.startswith("no runs yet in project other")


@pytest.mark.parametrize(
    "words",
    [
        ["rollouts", "run-1", "--status", "lost"],
        ["rollouts", "run-1", "--split", "dev"],
        ["runs", "--status", "lost"],
        ["spans", "run-1/t", "--kind", "lost"],
        ["spans", "run-1/t", "--attempt", "0"],
        ["ledger", "--after", "-1"],
    ],
)
def test_values_that_are_none_of_a_flags_own_exit_2(cli: Cli, words: list[str]) -> None:
    ran = cli(*words)
    assert ran.code == 2 and f"Invalid value for '{words[-2]}'" in ran.err


# Spans


def trace(scene: Scene) -> Any:
    """An attempt that asked a model, called a tool, and was scored."""
    claim = scene.claim()
    reply = {"role": "assistant", "content": LONG}
    asked = ModelCall(model="m", messages=({"role": "user", "content": "hi"},), response=reply)
    called = ToolCall(tool="add", arguments={"a": 1, "b": [2]}, result=3)
    spans = [
        Span(seq=1, kind=SpanKind.TELEMETRY, name="agent", started_at=1.0, ended_at=4.0, attributes={"step": 1}),
        Span(seq=2, kind=SpanKind.MODEL, name="ask", started_at=1.0, ended_at=2.5, parent=1, model=asked),
        Span(seq=3, kind=SpanKind.TOOL, name="add", started_at=2.5, ended_at=2.502, parent=2, tool=called),
        Span(seq=4, kind=SpanKind.MESSAGE, name="said", started_at=3.0, parent=1, attributes={"text": "done"}),
    ]
    scene.store.traces.add(claim.attempt, spans, now=scene.clock.now).result()
    scene.store.traces.score(claim.attempt, [signal("exact", 0.5)], now=scene.clock.now).result()
    return claim


def test_spans_tell_what_happened_in_the_deciding_attempt(cli: Cli, scene: Scene, at: At) -> None:
    scene.enqueue("t")
    assert cli("spans", "run-1/t", *at).out == "run-1-a/t: queuing\nnobody has tried it yet\n"
    assert cli("spans", "run-1/t", *at, "--json").json == []
    scene.finish(scene.claim(), AttemptState.FAULT, error="no\nanswer", backoff=AT_ONCE)
    claim = trace(scene)
    assert cli("spans", "run-1/t", *at).lines[1] == "attempt 2 of 2 by ann, running"
    scene.finish(claim, AttemptState.SUCCEEDED, reward=0.5, output={"answer": 3})
    shown = cli("spans", "run-1/t", *at).done().page
    assert shown[:2] == ["run-1-a/t: not checked (succeeded)", "attempt 2 of 2 by ann, succeeded"]
    assert shown[2:4] == ["reward exact = 0.5 × 1 (rule:test)", 'output {"answer": 3}']
    table = [line.split() for line in shown[4:]]
    assert table[:2] == [["seq", "kind", "name", "took", "what"], ["1", "telemetry", "agent", "3.0", "s", "step=1"]]
    assert table[2][:6] == ["2", "model", "·", "ask", "1.5", "s"] and shown[6].endswith("…")
    assert table[3] == ["3", "tool", "·", "·", "add", "2.0", "ms", "a=1", "b=[2]", "→", "3"]
    assert table[4] == ["4", "message", "·", "said", "open", "done"]
    first = cli("spans", "run-1/t", *at, "--attempt", 1).done().page
    assert first[1:] == ["attempt 1 of 2 by ann, fault: no answer", "no spans were recorded"]
    found = records(cli("spans", "run-1/t", *at, "--json"), "span")
    assert found == scene.store.traces.spans(scene.attempts("t")[1].token)


def test_a_traceback_is_shown_whole_below_the_spans(cli: Cli, scene: Scene, at: At) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    text = f'Traceback (most recent call last):\n  File "a.py", line 12\n    raise {LONG!r}\nValueError: \x1b[31mred\n'
    failed = replace(span(1), attributes={"error": "ValueError (agent.py:12)", "traceback": text})
    scene.store.traces.add(claim.attempt, [failed], now=scene.clock.now).result()
    shown = cli("spans", "run-1/t", *at).lines
    assert shown[3].split()[-2:] == ["error=ValueError", "(agent.py:12)"]  # not the traceback, in one line
    assert shown[4:6] == ["", "1 step:"]
    assert shown[6:] == text.replace("\x1b", "�").splitlines()


def test_spans_can_be_filtered_and_paged(cli: Cli, scene: Scene, at: At) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, [span(n) for n in range(1, 6)], now=scene.clock.now).result()
    ran = cli("spans", "run-1/t", *at, "--limit", 2)
    assert ran.lines[-1] == f"more: holdfast run spans run-1-a/t --attempt 1 --limit 2 --after 2 --store {at[1]}"
    assert [line.split()[0] for line in follow(cli, ran).lines[1:3]] == ["3", "4"]
    assert cli("spans", "run-1/t", *at, "--kind", "model").lines[-1] == "no spans that fit"
    assert [one["seq"] for one in cli("spans", "run-1/t", *at, "--after", 4, "--json").json] == [5]


# Ledger and workers


def test_the_ledger_is_listed_oldest_first(cli: Cli, scene: Scene, clock: Clock, at: At) -> None:
    scene.store.runs.want(scene.run, DesiredState.PAUSED, who="ann", why=LONG, now=clock.now).result()
    other = begin(scene.store, clock, salt="b")
    shown = cli("ledger", *at).done().page
    assert shown[0].split() == ["seq", "at", "who", "what"]
    assert shown[1].split()[:6] == ["1", "1970-01-12", "13:46:40", "test", "run-1-a", "began:"]
    assert " run-1-a is to be paused" in shown[2] and shown[2].endswith("…")
    assert records(cli("ledger", *at, "--json"), "ledger-entry") == list(scene.store.ledger.entries())
    assert [one["seq"] for one in cli("ledger", *at, "--run", other, "--json").json] == [3]
    page = cli("ledger", *at, "--limit", 2)
    assert page.lines[-1] == f"more: holdfast store ledger --limit 2 --after 2 --store {at[1]}"
    assert [line.split()[0] for line in follow(cli, page).lines] == ["seq", "3"]
    assert cli("ledger", *at, "--after", 3).out.startswith("no more entries")


def test_workers_are_listed_with_their_last_sign_of_life(cli: Cli, store: Store, at: At) -> None:
    now = time.time()
    for name, seen in (("stopped", now), ("silent", now - 300), ("working", now)):
        store.workers.register(f"{name}-{'x' * 60}", host="h" * 60, pid=7, slots=2, now=seen).result()
    store.workers.stop(f"stopped-{'x' * 60}", now=now).result()
    shown = cli("workers", *at).done().page
    assert shown[0].split()[:5] == ["worker", "state", "slots", "host", "pid"]
    assert " working " in shown[1] and " silent 5 min " in shown[2] and " stopped " in shown[3]
    assert records(cli("workers", *at, "--json"), "worker") == store.workers.newest()
    assert len(cli("workers", *at, "--limit", 1).lines) == 2


# Adoption of tools

SPEC = {"type": "function", "function": {"name": "lookup", "parameters": LOOKUP}}
GOOD = lookup("oak.price", "17")
BAD = tool("lookup", error="error: bad arguments", text="{")


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


def adopted(cli: Cli, at: At) -> AdoptionRow:
    (row,) = (decode(AdoptionRow, one) for one in cli("adoption", *at, "--json").json["rows"])
    return row


def test_adoption_is_a_rate_of_tasks(cli: Cli, scene: Scene, at: At) -> None:
    for name, calls, needs in (("a", [GOOD], 1), ("b", [], 1), ("c", [BAD, GOOD], 1), ("d", [GOOD], 0), ("e", [], 0)):
        tried(scene, name, *calls, needs=["lookup"] * needs)
    scene.enqueue("open", input={"needs": ["lookup"]})
    shown = cli("adoption", scene.run, *at).done().page
    assert shown[0] == "5 attempts in 1 run, all of sprout"
    assert shown[2].split() == [
        "lookup",
        "3",
        "3",
        "33",
        "%",
        "[6-79]",
        "60",
        "%",
        "50",
        "%",
        "67",
        "%",
        "67",
        "%",
        "100",
        "%",
    ]
    for by, first in (("tool", "lookup"), ("version", "3"), ("day", "1970-01-12")):  # without a run, the newest ones
        lines = cli("adoption", *at, "--by", by).done().lines
        assert len(lines) == 3 and lines[2].split()[0] == first and "[6-79]" in lines[2]
    assert cli("adoption", scene.run, scene.run, *at, "--json").json["attempts"] == 5
    row = adopted(cli, at)
    assert (row.model, row.version, row.window) == ("sprout", "3", None)
    assert (row.adoption.hits, row.adoption.of, row.adoption.tries) == (1.0, 3, 3)
    assert (row.overuse.hits, row.overuse.of) == (1.0, 2)
    tried(scene, "f", GOOD, needs=["lookup"], model="oak@1")
    shown = cli("adoption", *at, "--by", "version", "--newest", 1).lines
    assert [line.split()[:2] for line in shown[2:]] == [["oak", "1"], ["sprout", "3"]]


def test_form_is_judged_where_somebody_says_what_it_should_be(cli: Cli, scene: Scene, at: At) -> None:
    scene.enqueue("open", input="plain text")
    assert "no decided attempt called a tool" in cli("adoption", scene.run, *at).out
    scene.finish(scene.claim(), AttemptState.SUCCEEDED)
    tried(scene, "a", BAD, tools=["lookup"], needs=["lookup"])
    tried(scene, "b", BAD, tools=[{"no": "name"}])
    row = adopted(cli, at)
    assert (row.formed.of, row.adoption.of, row.worked.share) == (0, 1, 0.0)


def test_the_tools_of_the_embedded_workload_are_known(cli: Cli, scene: Scene, at: At) -> None:
    """Tasks name them, and the run has kept what its agent brought along."""
    tried(scene, "a", tool("calc", "4", expr="2+2"), tools=["calc"], needs=["calc"], world={}, form="calc")
    tools = {"tools": list(agent.tools)}  # type: ignore[attr-defined]
    scene.store.steps.add(scene.run, "begin", tools, function="begin", now=1.0).result()
    row = adopted(cli, at)
    assert (row.adoption.share, row.formed.share, row.worked.share) == (0.0, 0.0, 1.0)


# Thinking budgets


def thought(scene: Scene, name: str, tokens: int, over: int = 0, *, reward: float | None = 1.0) -> None:
    """One attempt from its budget to its end; without a reward it breaks off."""
    scene.enqueue(name)
    attempt = scene.claim().attempt
    assessment = Assessment(tier=Tier.TRIVIAL, confidence=0.95, reasons=("none",), traits=Traits())
    times = {"created_at": 1.0, "changed_at": 1.0}
    budget = ThinkingBudget(attempt=attempt.id, assessment=assessment, ceiling=500, cap=1000, allowed=500, **times)
    used = replace(budget, spent=tokens, overspent=over, calls=1, mode=Mode.HARD, events=2)
    about: dict[str, Any] = {"attempt": attempt.id, "at": 1.0, "allowed": 500}
    events = (
        BudgetEvent(**about, seq=1, kind=EventKind.ALLOCATE, tokens=500, spent=0, overspent=0),
        BudgetEvent(**about, seq=2, kind=EventKind.SPEND, tokens=tokens, spent=tokens, overspent=over),
    )
    scene.store.budgets.record(attempt, BudgetChange(budget=used, events=events), now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.FAILED if reward is None else AttemptState.SUCCEEDED, reward=reward)


def test_budgets_tell_allocation_use_and_waste_of_a_run(cli: Cli, scene: Scene, at: At) -> None:
    for name, tokens, over, reward in (("right", 300, 0, 1.0), ("much", 700, 200, 1.0), ("broken", 250, 0, None)):
        thought(scene, name, tokens, over, reward=reward)
    shown = cli("budgets", scene.run, *at).done().page
    assert shown[0] == f"{scene.run}: 3 budgets, 1250 of 1500 thinking tokens used (83 %), 450 wasted"
    assert shown[1] == "held to it by: hard 3"
    assert shown[4].split() == ["trivial", "3", "1", "3", "0", "1", "1500", "1250", "200", "450"]
    assert [line.split() for line in shown[8:]] == [
        ["broken:attempt-1", "trivial", "failed", "hard", "500", "250", "0", "250"],
        ["much:attempt-1", "trivial", "succeeded", "hard", "500", "700", "200", "200"],
        ["right:attempt-1", "trivial", "succeeded", "hard", "500", "300", "0", "0"],
    ]
    assert len(cli("budgets", scene.run, *at, "--limit", 1).lines) == len(shown) - 2


def test_budgets_of_every_run_that_has_any_are_lines_and_records(cli: Cli, scene: Scene, at: At) -> None:
    assert cli("budgets", *at).done().out.startswith("no run has thinking budgets; ")
    assert cli("budgets", *at, "--json").json == []
    assert "no attempt has a thinking budget" in cli("budgets", scene.run, *at).out
    thought(scene, "wrong", 300, reward=0.0)
    row = cli("budgets", *at).page[1].split()
    assert row == [scene.run, "1", "1", "1", "0", "0", "500", "300", "0", "300"]
    assert "trivial  no reward  hard" in cli("budgets", scene.run, *at).lines[-1]
    told = cli("budgets", scene.run, *at, "--json").json
    assert (told["run"], told["modes"]) == (scene.run, {"hard": 1})
    (tier,), (use,) = (decode(BudgetTotals, one) for one in told["tiers"]), told["budgets"]
    assert (tier.name, tier.waste) == ("trivial", 300)
    assert decode(PUBLISHED["budget"], use["budget"]).spent == 300
    assert (use["status"], use["has_failed"], use["waste"]) == ("succeeded", True, 300)
    (total,) = cli("budgets", *at, "--json").json
    assert decode(BudgetTotals, total).name == scene.run


def test_what_the_outcomes_of_budgets_teach_is_shown(cli: Cli, scene: Scene, at: At) -> None:
    assert cli("budgets", "--allocation", *at).done().out.startswith("no attempt with a thinking budget has ended yet")
    for n in range(3):
        thought(scene, f"right{n}", 250, reward=1.0)
    thought(scene, "wrong", 250, reward=0.0)
    (row,) = cli("budgets", "--allocation", *at, "--json").json
    assert (row["context"], row["tier"], row["attempts"], row["succeeded"]) == (
        "trivial, 0 tools, 1 steps",
        "trivial",
        4,
        3,
    )
    assert row["best"] is None  # four are too few
    assert cli("budgets", "--allocation", *at).done().page[1].split()[-2:] == ["the", "table"]


# Quality of data

SECRET = "AK" + "IA" + "IOSFODNN7EXAMPL2"


def answered(scene: Scene, name: str, answer: str = "42", *, split: Split = Split.TRAIN, **how: Any) -> None:
    """One rollout from the queue to its score."""
    prompt = how.get("prompt", f"question {name}")
    scene.enqueue(name, split=split, input={"prompt": prompt})
    held = scene.claim()
    model = ModelCall(
        model="sprout-1",
        messages=({"role": "user", "content": prompt},),
        response={"role": "assistant", "content": answer},
        completion_ids=(1,),
        logprobs=how.get("logprobs", (-0.5,)),
    )
    spans = [Span(seq=1, kind=SpanKind.MODEL, name="chat", started_at=1.0, ended_at=2.0, model=model)]
    scene.store.traces.add(held.attempt, spans, now=scene.clock.now).result()
    scene.store.traces.score(held.attempt, [signal(value=how.get("reward", 1.0))], now=scene.clock.now).result()
    scene.finish(held, AttemptState.SUCCEEDED)


def test_a_clean_run_is_ready_to_be_learnt_from_by_standards_that_come_as_options(
    cli: Cli, scene: Scene, at: At
) -> None:
    answered(scene, "a", reward=0.0)
    answered(scene, "b", reward=2.0)
    answered(scene, "v", split=Split.VAL)  # not learnt from, so not looked at
    shown = cli("quality", scene.run, *at).done().page
    assert shown[0] == f"{scene.run}: 2 of 2 rollouts ready to be learnt from, 0 quarantined"
    assert [line.split()[0] for line in shown[2:]] == list(GATES)
    for words, code in (
        (("--reward-range", 0, 1), 1),
        (("--rubric", "exact"), 1),  # 2 is no score
        (("--rubric", "exact,tone"), 1),
        (("--versions", "sprout-1, sprout-2"), 0),
        (("--versions", "sprout-2"), 1),
    ):
        assert cli("quality", scene.run, *at, *words).code == code, words


def test_what_blocks_is_named_first_and_the_command_fails(cli: Cli, scene: Scene, at: At) -> None:
    answered(scene, "a", reward=0.0)
    answered(scene, "leaky", f"take {SECRET}")
    answered(scene, "taught", prompt="the exam")
    answered(scene, "exam", prompt="The  Exam", split=Split.TEST)
    ran = cli("quality", scene.run, *at)
    assert ran.code == 1 and SECRET not in ran.out
    assert ran.page[0] == f"{scene.run}: 1 of 3 rollouts ready to be learnt from, 2 quarantined"
    assert [line.split()[0] for line in ran.lines[2:4]] == ["held_out_leakage", "no_secrets"]
    assert [line.split() for line in ran.lines[-2:]] == [["leaky", "no_secrets"], ["taught", "held_out_leakage"]]
    assert cli("quality", scene.run, *at, "--limit", 1).lines[-1] == "and 1 more; --limit 2 shows them all"


def test_programs_get_the_quality_as_records(cli: Cli, scene: Scene, at: At) -> None:
    answered(scene, "a", reward=0.0)
    answered(scene, "bare", logprobs=None)
    ran = cli("quality", scene.run, *at, "--json")
    assert (ran.code, ran.json["run"], ran.json["is_clean"]) == (1, scene.run, False)
    assert ran.json["quarantined"] == {f"{scene.run}/bare": ["logprobs"]}
    assert ran.json["ready"] == [f"{scene.run}/a"]
    assert [decode(PUBLISHED["finding"], one).name for one in ran.json["findings"]] == list(GATES)
    assert cli("quality", scene.run, *at, "--no-logprobs").code == 0
