"""`holdfast compare` and `holdfast rescore`: verdicts and second scorings from a shell, in 80 columns and as JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.store.store import open_store
from tests.cli.conftest import Cli

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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "compare_score", raising=False)  # of another test's folder
    Path("compare_agent.py").write_text(AGENT)
    Path("compare_score.py").write_text(SCORE)
    rows = [{"question": f"say {word}", "expected": word} for word in WORDS]
    Path("t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def collected(system: str) -> str:
    run = hf.collect(
        "compare_agent.py:agent", "t.jsonl", scorers="exact", policy=hf.Prompt(system=system), store="s.db", workers=4
    )
    return run.id


def test_two_stored_runs_get_a_paired_verdict(cli: Cli, here: Path) -> None:
    bad, good = collected("bad"), collected("good")
    ran = cli("compare", bad, good, "--store", "s.db")
    assert (ran.code, ran.lines[0]) == (0, f"{good} is better than {bad} in success")
    assert max(map(len, ran.lines)) <= 80
    told = cli("compare", bad, good, "--store", "s.db", "--json").json
    assert (told["a"], told["b"], told["is_better"], told["run"]) == (bad, good, True, None)
    assert told["difference"] == pytest.approx(sum(len(word) % 2 == 0 for word in WORDS) / len(WORDS))
    assert cli("compare", good, bad, "--store", "s.db", "--json").json["is_better"] is not True


def test_two_prompts_are_measured_on_a_file_of_tasks(cli: Cli, here: Path) -> None:
    Path("good.txt").write_text("good\n")
    words = ("--tasks", "t.jsonl", "--agent", "compare_agent.py:agent", "--store", "s.db", "--seeds", "1", "--json")
    address = ("--model", "unasked", "--base-url", "http://127.0.0.1:9/v1")
    told = cli("compare", "bad", "@good.txt", *words, *address).json
    assert (told["is_better"], told["metric"]) == (True, "success")
    with open_store(here / "s.db") as store:
        assert store.runs.get(told["run"]).kind == "compare"
        assert store.releases.policies() == []  # no release moves


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("a", "b", "--agent", "x:y"), "--agent: is for what is measured now"),
        (("a", "b", "--tasks", "t.jsonl"), "--agent: is missing"),
        (("a", "@no.txt", "--tasks", "t.jsonl", "--agent", "x:y", "--model", "m"), "prompt @no.txt: cannot be read"),
    ],
)
def test_what_does_not_fit_is_said(cli: Cli, here: Path, words: tuple[str, ...], says: str) -> None:
    ran = cli("compare", *words)
    assert (ran.code, says in ran.err) == (2, True)


def test_a_second_scoring_is_compared_with_the_first_and_kept(cli: Cli, here: Path) -> None:
    run, wrong = collected("bad"), sum(len(word) % 2 == 0 for word in WORDS)
    ran = cli("rescore", run, "--scorer", "compare_score.py:lenient", "--store", "s.db", "--limit", "2")
    assert ran.code == 0
    assert f"{wrong} rollouts changed, the largest change first:" in ran.lines
    assert sum(line.endswith("wrong → right") for line in ran.lines) == 2
    assert max(map(len, ran.lines)) <= 80
    told = cli("rescore", run, "--scorer", "exact", "--store", "s.db", "--name", "again", "--json").json
    assert (told["name"], told["comparison"]["agreement"], told["errors"]) == ("again", 1.0, {})
    with open_store(here / "s.db") as store:
        assert [one.name for one in store.scorings.of_run(run)] == ["rescored-1", "again"]
        assert sum(one.outcome == "wrong" for one in store.views.rollouts(run, most=100)) == wrong  # as it was


def test_of_a_proof_it_is_told_what_the_verdict_would_have_been(cli: Cli, here: Path) -> None:
    address = ("--model", "unasked", "--base-url", "http://127.0.0.1:9/v1", "--seeds", "1", "--store", "s.db")
    proof = cli("compare", "bad", "good", "--tasks", "t.jsonl", "--agent", "compare_agent.py:agent", *address, "--json")
    again = cli("rescore", proof.json["run"], "--scorer", "compare_score.py:lenient", "--store", "s.db", "--json")
    assert again.code == 0, again.err
    told = again.json
    assert (told["old_verdict"]["outcome"], told["new_verdict"]["outcome"]) == ("promote", "hold")
