"""Chat logs come in scrubbed, through the gates, once; and a killed import goes on where it was."""

from __future__ import annotations

import json
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.rollout import Rollout, RolloutState, Split
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import SpanKind
from holdfast.pipeline import importing
from holdfast.store.store import Store, open_store
from tests.cli.conftest import At, Cli, running, until

MAIL = "ada@analytical-engine.org"
SECRET = "AK" + "IA" + "IOSFODNN7EXAMPL2"


def said(question: str, answer: str = "Yes.", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": messages, **fields}


TOOL = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Mail {MAIL} for me"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": MAIL})}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sent"},
        {"role": "assistant", "content": f"I wrote to {MAIL}."},
    ],
    "reward": 0.5,
    "model": "gpt-x",
    "tools": [{"type": "function", "function": {"name": "send"}}],
    "metadata": {"user": MAIL, "day": 3},
}


@pytest.fixture
def log(tmp_path: Path) -> Any:
    def write(*rows: Any) -> Path:
        path = tmp_path / "log.jsonl"
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return path

    return write


@pytest.fixture
def take_in(cli: Cli, url: str, store: Store, here: Path) -> Any:
    return lambda path, *words: cli("import", path, *words, "--store", url)


def rollouts(store: Store) -> list[Rollout]:
    (run,) = [run for run in store.runs.newest() if run.kind == importing.KIND]
    return store.views.rollouts(run.id, most=500)


def test_a_conversation_becomes_a_finished_rollout_without_its_secrets(take_in: Any, log: Any, store: Store) -> None:
    ran = take_in(log(TOOL, said("What is 2 + 2?", "4"))).done()
    assert ran.lines[0].endswith(": 2 conversations imported, 0 there already, 0 quarantined")
    assert ran.lines[1] == "scrubbed: 4 email"
    first, second = rollouts(store)
    assert (first.status, first.split, first.reward, second.reward) == (RolloutState.SUCCEEDED, Split.TRAIN, 0.5, None)
    assert first.metadata["given"]["day"] == 3 and first.metadata["scrubbed"] is True
    found = store.experiences.get(first.id)
    assert found is not None and found.version == "gpt-x"
    assert [span.kind for span in found.spans] == [SpanKind.MODEL, SpanKind.TOOL, SpanKind.MODEL]
    tool = found.spans[1].tool
    assert tool is not None and (tool.tool, tool.result, tool.call_id) == ("send", "sent", "c1")
    mark = tool.arguments["to"]
    assert mark.startswith("<email:")
    last = found.calls[-1]
    assert last.response["content"] == f"I wrote to {mark}." and len(last.messages) == 4
    assert last.sampling["tools"] == TOOL["tools"]
    (run,) = store.runs.newest()
    assert (run.kind, run.state) == ("import", RunState.COMPLETED)


def test_what_the_projects_config_leaves_stays_as_it_is(take_in: Any, log: Any, store: Store, here: Path) -> None:
    path = log(said("84.23.119.7 of ada@analytical-engine.org"))
    (here / "holdfast.toml").write_text('leave = ["ip"]\n')
    take_in(path).done()
    assert "84.23.119.7 of <email:" in str(rollouts(store)[0].input)
    (here / "holdfast.toml").write_text('leave = "ip"\n')
    ran = take_in(path)
    assert ran.code == 2 and "is no list of names" in ran.err
    (here / "holdfast.toml").write_text('leave = ["places"]\n')
    ran = take_in(path)
    assert ran.code == 2 and "there is no such class" in ran.err


def test_nothing_of_a_secret_is_in_the_store_or_what_is_printed(cli: Cli, log: Any, here: Path) -> None:
    path = log(TOOL, said(f"the key is {SECRET}", f"{SECRET}, thanks"), said("and?", model=f"m-{SECRET}"))
    ran = cli("import", path, "--store", here / "state" / "s.sqlite").done()
    written = b"".join(file.read_bytes() for file in (here / "state").rglob("*") if file.is_file())
    for secret in (MAIL, SECRET):
        assert secret.encode() not in written and secret not in ran.out + ran.err


def test_importing_again_is_harmless_and_more_goes_to_the_same_run(take_in: Any, log: Any, store: Store) -> None:
    one, two, three = said("a?"), said("b?"), said("c?", reward=1)
    assert take_in(log(one, two, one), "--json").json["repeated"] == 1
    again = take_in(log(one, two, three), "--json").json
    assert (again["imported"], again["repeated"]) == (1, 2)
    assert len(rollouts(store)) == 3
    (run,) = store.runs.newest()
    assert again["run"] == run.id
    assert take_in(log(one)).lines == [f"{run.id}: 0 conversations imported, 1 there already, 0 quarantined"]


def test_what_a_gate_refuses_is_reported_by_its_line_and_not_stored(take_in: Any, log: Any, store: Store) -> None:
    odd = {"messages": [{"role": "wizard", "content": "hm"}, {"role": "assistant", "content": "what?"}]}
    unanswered = {"messages": [{"role": "user", "content": "anybody?"}]}
    ran = take_in(log(said("a?", "b"), odd, "", unanswered), "--json")
    assert ran.code == 0
    assert ran.json["quarantined"] == {"2": ["known_values"], "4": ["required_fields"]}
    assert len(rollouts(store)) == 1
    shown = take_in(log(odd, unanswered), "--limit", 1)
    assert shown.code == 1  # nothing passed
    assert shown.lines[-1] == "and 1 more; --limit 2 shows them all"
    assert max(map(len, shown.lines)) <= 80


def test_a_task_that_is_kept_for_proving_is_not_trained_on(take_in: Any, log: Any, store: Store) -> None:
    assert take_in(log(said("the exam", "42")), "--split", "test").code == 0
    ran = take_in(log(said("the exam", "43"), said("another", "44")), "--json")
    assert ran.json["quarantined"] == {"1": ["held_out_leakage"]}
    assert {one.split for one in rollouts(store)} == {Split.TEST, Split.TRAIN}


def test_keeping_things_as_they_are_is_asked_for_twice_and_gates_still_hold(
    take_in: Any, log: Any, store: Store
) -> None:
    path = log(said("hello Maria"), said(f"write to {MAIL}"))
    assert "would store secrets and personal data as they are" in take_in(path, "--no-scrub").refusal
    ran = take_in(path, "--no-scrub", "--yes", "--json")
    assert ran.json["quarantined"] == {"2": ["no_pii"]} and ran.json["scrubbed"] == {}
    (kept,) = rollouts(store)
    assert kept.input["messages"][0]["content"] == "hello Maria" and kept.metadata["scrubbed"] is False


BAD = [
    ("{", "is not JSON"),
    ("[]", "is not an object"),
    ('{"messages": []}', "messages is not a list, or an empty one"),
    ('{"messages": [{"content": "x"}]}', "messages[0] is not an object with a role"),
    ('{"messages": [{"role": "user", "content": 7}]}', "messages[0].content is neither text nor a list of parts"),
    ('{"messages": [{"role": "user"}], "secret-field": 1}', "has 1 unknown field; known are messages, reward,"),
    ('{"messages": [{"role": "user"}], "reward": true}', "reward is not a finite number"),
    ('{"messages": [{"role": "user"}], "reward": NaN}', "reward is not a finite number"),
    ('{"messages": [{"role": "user"}], "reward": 1' + "0" * 400 + "}", "reward is not a finite number"),
    ('{"messages": [{"role": "user"}], "metadata": []}', "metadata is not a dict"),
    ('{"messages": [{"role": "user", "content": [' + "[" * 400 + "]" * 400 + "]}]}", "is nested more than 100 deep"),
    *(
        (
            f'{{"messages": [{{"role": "assistant", "tool_calls": [{call}]}}]}}',
            "messages[0].tool_calls holds what is not an object with a function",
        )
        for call in ("5", '{"id": "a", "function": "str"}', '{"function": ["x"]}')
    ),
]


@pytest.mark.parametrize(("line", "why"), BAD)
def test_a_line_that_cannot_be_read_is_named_before_anything_is_stored(
    cli: Cli, log: Any, nowhere: At, tmp_path: Path, line: str, why: str
) -> None:
    refused = cli("import", log(said("fine"), line), *nowhere).refusal
    assert f"log.jsonl:2: {why}" in refused and "secret-field" not in refused
    assert "holds no conversation" in cli("import", log("", " "), *nowhere).refusal
    assert "No such file" in cli("import", tmp_path / "absent", *nowhere).refusal
    assert not Path(nowhere[1]).parent.exists()


def test_a_killed_import_goes_on_where_it_was(
    cli: Cli, log: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "SILENT_S", 0.0)
    monkeypatch.setattr(importing, "BATCH", 3)
    path, at = log(*(said(f"question {n}", f"answer {n}") for n in range(8))), tmp_path / "s.sqlite"

    calls = []

    def dies(store: Store, run: str, batch: Any, clock: Any) -> None:
        """Claimed, and then no more: as if killed."""
        calls.append(batch)
        if len(calls) == 2:
            store.queue.claim(run, "import", now=time.time(), lease_s=60.0, most=2).result()
            raise KeyboardInterrupt
        finish(store, run, batch, clock)

    finish = importing._finish
    monkeypatch.setattr(importing, "_finish", dies)
    assert cli("import", path, "--store", at).code == 130
    monkeypatch.setattr(importing, "_finish", finish)
    ran = cli("import", path, "--store", at, "--json")
    assert (ran.code, ran.json["imported"], ran.json["repeated"]) == (0, 5, 3), ran.err
    with open_store(at) as opened:
        assert {one.status for one in rollouts(opened)} == {RolloutState.SUCCEEDED} and len(rollouts(opened)) == 8


def has_begun(at: Path) -> bool:
    """Whether one is finished, as another process sees it."""
    try:
        with closing(sqlite3.connect(f"file:{at}?mode=ro", uri=True)) as raw:
            return bool(raw.execute("SELECT 1 FROM rollouts WHERE status = 'succeeded' LIMIT 1").fetchone())
    except sqlite3.Error:
        return False


def test_kill_9_leaves_nothing_that_cannot_be_finished(
    log: Any, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "SILENT_S", 0.0)
    path, at = log(*(said(f"question {n}", f"answer {n}") for n in range(1500))), tmp_path / "s.sqlite"
    with running("import", path, "--store", at) as child:
        until(lambda: has_begun(at), child)
        child.kill()
    assert child.returncode == -signal.SIGKILL

    def of_run(opened: Store, **fields: Any) -> list[Rollout]:
        (run,) = opened.runs.newest()
        return opened.views.rollouts(run.id, most=2000, **fields)

    with open_store(at) as opened:
        some = of_run(opened)
        is_open = any(one.status is not RolloutState.SUCCEEDED for one in some)
        assert 0 < len(some) < 1500 or is_open  # it was in the middle of it
    told = cli("import", path, "--store", at, "--json").done().json
    assert told["imported"] + told["repeated"] == 1500
    with open_store(at) as opened:
        assert len(of_run(opened, status=RolloutState.SUCCEEDED)) == 1500
