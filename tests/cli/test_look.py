"""Runs, rollouts, spans, ledger and workers as people and programs see them."""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.records import PUBLISHED, decode
from holdfast.contracts.rollout import AttemptState, RolloutState, Split
from holdfast.contracts.run import DesiredState, RunState
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.store.store import Store
from tests.cli.conftest import Answer, Cli
from tests.conftest import Clock
from tests.store.scene import AT_ONCE, Scene, begin, signal, span

LONG = "A very long question\nwith a line break, [markup], 漢字 and more " * 5


def fits(ran: Answer) -> Answer:
    """No table is wider than the terminal; a command to paste may be."""
    assert ran.code == 0, ran.err
    assert [line for line in ran.lines if len(line) > 80 and not line.startswith("more: ")] == []
    return ran


def records(ran: Answer, kind: str) -> list[Any]:
    assert ran.code == 0, ran.err
    assert all(one["schema_version"] == 1 for one in ran.json)
    return [decode(PUBLISHED[kind], one) for one in ran.json]


def follow(cli: Cli, ran: Answer) -> Answer:
    """Run the command that the last line names."""
    line = (ran.err or ran.out).rstrip().splitlines()[-1]
    assert line.startswith("more: holdfast ")
    return cli(*shlex.split(line)[2:])


@pytest.fixture
def at(url: str) -> tuple[str, str]:
    return "--store", url


def test_an_empty_store_says_what_to_try_next(cli: Cli, store: Store, at: tuple[str, str]) -> None:
    address = store.url
    assert cli("runs", *at).out == (
        f"no runs yet in project default; to begin one: holdfast optimize --config FILE --store {address}\n"
    )
    assert cli("runs", *at, "--status", "failed").out.startswith("no failed runs in project default; ")
    expected = "no entries in project default; a run makes the first: holdfast optimize --help\n"
    assert cli("ledger", *at).out == expected
    assert (
        cli("workers", *at).out == "no workers yet in project default; a run brings its own: holdfast optimize --help\n"
    )
    for command in ("runs", "ledger", "workers"):
        assert cli(command, *at, "--json").json == []


def test_runs_are_listed_newest_first(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
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
    ran = fits(cli("runs", *at))
    assert ran.lines[0].split() == ["run", "state", "done", "right", "wrong", "failed", "started", "took", "model"]
    states = {line.split()[0]: line for line in ran.lines[1:]}
    assert list(states) == ["run-4-d", "run-3-c", "run-2-b", "run-1-a"]
    assert "silent 10 min" in states["run-4-d"]
    assert "running, paused" in states["run-3-c"]
    assert " running  " in states["run-2-b"]
    words = states["run-1-a"].split()
    assert words == ["run-1-a", "failed", "5/6", "1", "1", "2", "01-12", "13:46", "90.0", "s", "m"]
    assert records(cli("runs", *at, "--json"), "run") == scene.store.runs.newest()


def test_what_came_of_the_rollouts_is_shown_however_narrow_the_terminal_is(
    cli: Cli, scene: Scene, at: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.enqueue("one", "two")
    scene.finish(scene.claim(), AttemptState.SUCCEEDED, outcome="wrong")
    scene.finish(scene.claim(), AttemptState.SUCCEEDED)  # an answer that nobody checked is neither
    assert "unchecked" in cli("runs", *at).lines[0]
    monkeypatch.setenv("COLUMNS", "64")
    ran = cli("runs", *at)
    assert ran.lines[0].split() == ["run", "state", "done", "right", "wrong", "unchecked", "failed", "model"]
    assert ran.lines[1].split()[-6:] == ["2/2", "0", "1", "1", "0", "m"]


def test_runs_can_be_filtered_and_paged(cli: Cli, store: Store, clock: Clock, at: tuple[str, str]) -> None:
    for number in range(5):
        run = begin(store, clock, salt=f"s{number}")
        if number % 2:
            store.runs.end(run, RunState.COMPLETED, who="t", now=clock.now).result()
    ran = fits(cli("runs", *at, "--limit", 2))
    assert [line.split()[0] for line in ran.lines[1:3]] == ["run-5-s4", "run-4-s3"]
    assert ran.lines[3] == f"more: holdfast runs --limit 2 --after run-4-s3 --store {at[1]}"
    ran = follow(cli, follow(cli, ran))
    assert [line.split()[0] for line in ran.lines[1:]] == ["run-1-s0"]
    ran = cli("runs", *at, "--limit", 1, "--status", "completed", "--json")
    assert [run.id for run in records(ran, "run")] == ["run-4-s3"]
    assert ran.err == f"more: holdfast runs --status completed --limit 1 --after run-4-s3 --store {at[1]}\n"
    assert "run-2-s1" in follow(cli, ran).out
    assert cli("runs", *at, "--after", "run-1").out.startswith("no more runs in project default")


def test_another_project_is_another_world(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    assert cli("runs", *at, "--project", "other").out.startswith("no runs yet in project other")
    ran = cli("rollouts", scene.run, *at, "--project", "other")
    expected = f"run '{scene.run}': there is none in project 'other'; 'holdfast runs' lists them"
    assert (ran.code, ran.err) == (2, f"holdfast: error: {expected}\n")


def test_rollouts_are_listed_with_what_became_of_them(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("train-1", split=Split.TRAIN, input={"prompt": LONG})
    scene.enqueue("val-1", split=Split.VAL, input="plain", max_attempts=1)
    scene.enqueue("x" * 200, input={"other": [1, 2]})
    scene.finish(scene.claim(), AttemptState.RELEASED)  # handed back unharmed: no try is spent
    assert " 0/3 " in cli("rollouts", "run-1", *at).lines[3]
    claim = scene.claim()
    scene.clock.advance(1.5)
    scene.finish(claim, AttemptState.SUCCEEDED, reward=0.25, outcome="wrong")
    scene.finish(scene.claim(), AttemptState.FAILED, error="it broke\nbadly")
    ran = fits(cli("rollouts", "run-1", *at))
    assert ran.lines[:4] == [
        "run-1-a: 3 rollouts",
        "outcome: 1 wrong, 1 failed",
        "status: 1 queuing, 1 succeeded, 1 failed",
        "reward train: mean 0.25 over 1 of 1",
    ]
    table = ran.lines[4:]
    titles = ["name", "outcome", "status", "split", "tries", "reward", "took", "prompt"]
    assert table[0].split()[:8] == titles
    assert table[1].split()[:8] == ["train-1", "wrong", "succeeded", "train", "1/3", "0.25", "1.5", "s"]
    assert table[2].split()[:8] == ["val-1", "failed", "failed", "val", "1/1", "-", "0.0", "ms"]
    assert table[3].startswith("xxxxxxxx") and " queuing " in table[3]
    assert all(line.endswith("…") for line in table[1:3])
    found = records(cli("rollouts", "run-1", *at, "--json"), "rollout")
    assert found == scene.store.views.rollouts(scene.run)


def test_rollouts_can_be_filtered_and_paged(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue(*(f"train-{n}" for n in range(1, 6)), split=Split.TRAIN)
    scene.enqueue("val-1", split=Split.VAL)
    scene.cancel("train-2")
    ran = fits(cli("rollouts", scene.run, *at, "--limit", 2, "--split", "train", "--status", "queuing"))
    assert [line.split()[0] for line in ran.lines[4:6]] == ["train-1", "train-3"]
    options = f"--status queuing --split train --limit 2 --after train-3 --store {at[1]}"
    assert ran.lines[6] == f"more: holdfast rollouts {scene.run} {options}"
    ran = follow(cli, ran)
    assert [line.split()[0] for line in ran.lines] == ["name", "train-4", "train-5"]
    assert cli("rollouts", scene.run, *at, "--split", "test").lines[-1] == "no rollouts that fit"
    assert cli("rollouts", scene.run, *at, "--after", "val").out == "no more rollouts that fit\n"
    assert cli("rollouts", scene.run, *at, "--after", f"{scene.run}/val-1", "--json").json == []


def test_rollouts_can_be_filtered_by_what_came_of_them(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    for place, outcome in enumerate(["right", "wrong", None, "wrong"]):
        scene.enqueue(f"t{place}")
        scene.finish(scene.claim(), AttemptState.SUCCEEDED, outcome=outcome)
    scene.brought_to(RolloutState.FAILED, "failed")
    scene.brought_to(RolloutState.DEAD, "dead")
    scene.brought_to(RolloutState.CANCELLED, "cancelled")
    scene.enqueue("open")

    def found(outcome: str, *more: str) -> list[str]:
        return [one["name"] for one in cli("rollouts", scene.run, *at, "--outcome", outcome, *more, "--json").json]

    assert [found(one) for one in ("right", "wrong", "not_checked", "failed", "no_answer")] == [
        ["t0"], ["t1", "t3"], ["t2"], ["failed"], ["dead", "cancelled"]
    ]  # fmt: skip
    assert found("wrong", "--limit", "1") == ["t1"] and found("wrong", "--after", "t1") == ["t3"]
    assert found("wrong", "--status", "succeeded") == ["t1", "t3"] and found("wrong", "--status", "failed") == []
    assert found("no_answer", "--status", "dead") == ["dead"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollouts", "run-9"], "run 'run-9': there is none in project 'default'; 'holdfast runs' lists them"),
        (
            ["rollouts", "run"],
            "run 'run': several start so: run-1-a, run-2-b; 'holdfast runs' lists them",
        ),
        (
            ["rollouts", "run-1", "--after", "none"],
            "rollout run-1-a/none: there is none; 'holdfast rollouts run-1-a' lists them",
        ),
        (["spans", "run-1/none"], "rollout run-1-a/none: there is none; 'holdfast rollouts run-1-a' lists them"),
        (["spans", "run-1/t", "--attempt", "2"], "attempt 2 of run-1-a/t: it has 1; leave --attempt out"),
    ],
)
def test_names_that_fit_nothing_exit_2(
    cli: Cli, scene: Scene, clock: Clock, at: tuple[str, str], words: list[str], said: str
) -> None:
    begin(scene.store, clock, salt="b")
    scene.enqueue("t")
    scene.claim()
    ran = cli(*words, *at)
    assert (ran.code, ran.out, ran.err) == (2, "", f"holdfast: error: {said}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rollouts", "run-1", "--status", "lost"], "Invalid value for '--status'"),
        (["rollouts", "run-1", "--split", "dev"], "Invalid value for '--split'"),
        (["runs", "--status", "lost"], "Invalid value for '--status'"),
        (["spans", "run-1/t", "--kind", "lost"], "Invalid value for '--kind'"),
        (["spans", "run-1/t", "--attempt", "0"], "Invalid value for '--attempt'"),
        (["ledger", "--after", "-1"], "Invalid value for '--after'"),
    ],
)
def test_values_that_are_none_of_a_flags_own_exit_2(cli: Cli, words: list[str], said: str) -> None:
    ran = cli(*words)
    assert ran.code == 2 and said in ran.err


def trace(scene: Scene) -> Any:
    """An attempt that asked a model, called a tool, and was scored."""
    claim = scene.claim()
    reply = {"role": "assistant", "content": LONG}
    asked = ModelCall(model="m", messages=({"role": "user", "content": "hi"},), response=reply)
    spans = [
        Span(seq=1, kind=SpanKind.TELEMETRY, name="agent", started_at=1.0, ended_at=4.0, attributes={"step": 1}),
        Span(seq=2, kind=SpanKind.MODEL, name="ask", started_at=1.0, ended_at=2.5, parent=1, model=asked),
        Span(
            seq=3,
            kind=SpanKind.TOOL,
            name="add",
            started_at=2.5,
            ended_at=2.502,
            parent=2,
            tool=ToolCall(tool="add", arguments={"a": 1, "b": [2]}, result=3),
        ),
        Span(seq=4, kind=SpanKind.MESSAGE, name="said", started_at=3.0, parent=1, attributes={"text": "done"}),
    ]
    scene.store.traces.add(claim.attempt, spans, now=scene.clock.now).result()
    scene.store.traces.score(claim.attempt, [signal("exact", 0.5)], now=scene.clock.now).result()
    return claim


def test_spans_tell_what_happened_in_the_deciding_attempt(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("t")
    scene.finish(scene.claim(), AttemptState.FAULT, error="no\nanswer", backoff=AT_ONCE)
    scene.finish(trace(scene), AttemptState.SUCCEEDED, reward=0.5, output={"answer": 3})
    ran = fits(cli("spans", "run-1/t", *at))
    assert ran.lines[:4] == [
        "run-1-a/t: not checked (succeeded)",
        "attempt 2 of 2 by ann, succeeded",
        "reward exact = 0.5 × 1 (rule:test)",
        'output {"answer": 3}',
    ]
    table = ran.lines[4:]
    assert table[0].split() == ["seq", "kind", "name", "took", "what"]
    assert table[1].split() == ["1", "telemetry", "agent", "3.0", "s", "step=1"]
    assert table[2].split()[:6] == ["2", "model", "·", "ask", "1.5", "s"] and table[2].endswith("…")
    assert table[3].split() == ["3", "tool", "·", "·", "add", "2.0", "ms", "a=1", "b=[2]", "→", "3"]
    assert table[4].split() == ["4", "message", "·", "said", "open", "done"]
    first = fits(cli("spans", "run-1/t", *at, "--attempt", 1))
    assert first.lines[1:] == ["attempt 1 of 2 by ann, fault: no answer", "no spans were recorded"]
    found = records(cli("spans", "run-1/t", *at, "--json"), "span")
    assert found == scene.store.traces.spans(scene.attempts("t")[1].token)


def test_a_traceback_is_shown_whole_below_the_spans(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    text = (
        f'Traceback (most recent call last):\n  File "agent.py", line 12\n    raise {LONG!r}\nValueError: \x1b[31mred\n'
    )
    failed = replace(span(1), attributes={"error": "ValueError (agent.py:12)", "traceback": text})
    scene.store.traces.add(claim.attempt, [failed], now=scene.clock.now).result()
    shown = cli("spans", "run-1/t", *at).lines
    assert shown[3].split()[-2:] == ["error=ValueError", "(agent.py:12)"]  # not the traceback, in one line
    assert shown[4:6] == ["", "1 step:"]
    assert shown[6:] == text.replace("\x1b", "�").splitlines()


def test_spans_of_a_rollout_that_waits_or_runs(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("t")
    assert cli("spans", "run-1/t", *at).out == "run-1-a/t: queuing\nnobody has tried it yet\n"
    assert cli("spans", "run-1/t", *at, "--json").json == []
    trace(scene)
    assert cli("spans", "run-1/t", *at).lines[1] == "attempt 1 of 1 by ann, running"


def test_spans_can_be_filtered_and_paged(cli: Cli, scene: Scene, at: tuple[str, str]) -> None:
    scene.enqueue("t")
    claim = scene.claim()
    scene.store.traces.add(claim.attempt, [span(n) for n in range(1, 6)], now=scene.clock.now).result()
    ran = cli("spans", "run-1/t", *at, "--limit", 2)
    assert ran.lines[-1] == f"more: holdfast spans run-1-a/t --attempt 1 --limit 2 --after 2 --store {at[1]}"
    assert [line.split()[0] for line in follow(cli, ran).lines[1:3]] == ["3", "4"]
    assert cli("spans", "run-1/t", *at, "--kind", "model").lines[-1] == "no spans that fit"
    assert [one["seq"] for one in cli("spans", "run-1/t", *at, "--after", 4, "--json").json] == [5]


def test_the_ledger_is_listed_oldest_first(cli: Cli, scene: Scene, clock: Clock, at: tuple[str, str]) -> None:
    scene.store.runs.want(scene.run, DesiredState.PAUSED, who="ann", why=LONG, now=clock.now).result()
    other = begin(scene.store, clock, salt="b")
    ran = fits(cli("ledger", *at))
    assert ran.lines[0].split() == ["seq", "at", "kind", "who", "run", "what"]
    assert ran.lines[1].split()[:6] == ["1", "1970-01-12", "13:46:40", "run", "test", "run-1-a"]
    assert " wanted=paused" in ran.lines[2] and ran.lines[2].endswith("…")
    assert records(cli("ledger", *at, "--json"), "ledger-entry") == list(scene.store.ledger.entries())
    assert [one["seq"] for one in cli("ledger", *at, "--run", other, "--json").json] == [3]
    page = cli("ledger", *at, "--limit", 2)
    assert page.lines[-1] == f"more: holdfast ledger --limit 2 --after 2 --store {at[1]}"
    assert [line.split()[0] for line in follow(cli, page).lines] == ["seq", "3"]
    assert cli("ledger", *at, "--after", 3).out.startswith("no more entries")


def test_workers_are_listed_with_their_last_sign_of_life(cli: Cli, store: Store, at: tuple[str, str]) -> None:
    now = time.time()
    for name, seen in (("stopped", now), ("silent", now - 300), ("working", now)):
        store.workers.register(f"{name}-{'x' * 60}", host="h" * 60, pid=7, slots=2, now=seen).result()
    store.workers.stop(f"stopped-{'x' * 60}", now=now).result()
    ran = fits(cli("workers", *at))
    assert ran.lines[0].split()[:5] == ["worker", "state", "slots", "host", "pid"]
    assert " working " in ran.lines[1] and " silent 5 min " in ran.lines[2] and " stopped " in ran.lines[3]
    assert records(cli("workers", *at, "--json"), "worker") == store.workers.newest()
    assert len(cli("workers", *at, "--limit", 1).lines) == 2
