"""`holdfast evaluate`: results from a file or a run, each with its reasons; quick, and nothing is asked of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.flag import Flag
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState
from holdfast.operate.switches import LATENCY, Fuse
from tests.cli.conftest import Cli
from tests.cli.test_judge import even
from tests.conftest import Files
from tests.endpoint import completion, serving
from tests.store.scene import Scene

RIGHT = {"task": "What is 2 + 2?", "output": "4", "expected": "4"}
WRONG = {"task": "What is 2 + 2?", "output": "4 or 5", "expected": "4"}
OPEN = {"task": "Say something.", "output": "Something."}
BEFORE = "def size(xs):\n    return len(xs) + 1\n"
AFTER = BEFORE.replace(" + 1", "")
PATCH = {"task": "fix size", "before": BEFORE, "after": AFTER, "reference": AFTER, "passed": True}


@pytest.fixture
def nowhere(tmp_path: Path) -> tuple[str, str]:
    return "--store", str(tmp_path / "none.db")


def lines(path: Path, *results: Any) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in results), encoding="utf-8")
    return path


def test_every_result_has_a_decision_a_score_and_reasons(cli: Cli, tmp_path: Path, nowhere: tuple[str, str]) -> None:
    ran = cli("evaluate", lines(tmp_path / "a.jsonl", RIGHT, WRONG, OPEN, PATCH), *nowhere)
    assert ran.code == 1, ran.err  # something failed
    assert max(map(len, ran.lines)) <= 80
    assert ran.lines[0] == "pass    1.000  What is 2 + 2?"
    assert ran.lines[1:3] == ["fail    0.000  What is 2 + 2?", "  rules: the answer is not the expected one"]
    assert ran.lines[3].startswith("unknown   -    Say something.")
    assert ran.lines[-1].startswith("4 results: 2 pass, 1 fail, 1 unknown, mean score 0.667; p95 ")
    assert not Path(nowhere[1]).exists()  # looking makes nothing


def test_a_fix_that_changes_an_operator_says_nothing_twice(cli: Cli, tmp_path: Path, nowhere: tuple[str, str]) -> None:
    """What went and what came differ by a sign alone, and lines of programs come again."""
    before = "def last(xs):\n    if not xs:\n        return None\n    return xs[len(xs) + 1]\n"
    after = before.replace("+ 1", "- 1")
    fix = {"task": "fix last", "before": before, "after": after, "reference": after, "passed": True}
    told = cli("evaluate", lines(tmp_path / "a.jsonl", fix), *nowhere, "--json").json["results"][0]
    assert (told["decision"], told["score"], told["reasons"]) == ("pass", 1.0, [])


def test_where_nothing_fails_it_ends_well_and_is_quick(cli: Cli, tmp_path: Path, nowhere: tuple[str, str]) -> None:
    ran = cli("evaluate", lines(tmp_path / "a.jsonl", *[RIGHT, PATCH] * 50), *nowhere, "--json")
    assert ran.code == 0, ran.err
    told = ran.json
    assert (
        told["summary"]["results"] == 100 and told["summary"]["p95_ms"] < 2000.0
    )  # about 20, where the machine is not busy
    first = told["results"][1]
    assert [one["part"] for one in first["verdicts"]] == ["rules", "safety", "tampering", "minimal diff", "judges"]
    assert first["sheet"]["signals"] and all(told["features"].values())
    assert cli("evaluate", lines(tmp_path / "a.jsonl", WRONG, RIGHT), *nowhere, "--limit", 1).code == 1


def test_judges_that_are_named_are_asked_where_they_are_calibrated(
    cli: Cli, tmp_path: Path, nowhere: tuple[str, str]
) -> None:
    """A failed check stays failed, whatever they say; who is calibrated on nothing is refused before any work."""
    known = [{"task": f"an even number, {n // 2}", "output": f"{n}."} for n in range(80)]
    known = [{**one, "holds": n % 2 == 0, "maker": "person", "who": "ann"} for n, one in enumerate(known)]
    asked = [{"task": "an even number", "output": f"{n}.", "passed": n < 200} for n in (102, 103, 204)]
    file = lines(tmp_path / "a.jsonl", *asked)
    with serving() as endpoint:
        endpoint.reply = lambda body: completion(even(body))
        there = ("--judge", "even", "--base-url", endpoint.url, *nowhere)
        labels = ("--criterion", "relevance", "--labels", lines(tmp_path / "l.jsonl", *known))
        assert cli("evaluate", file, *there).code == 2  # there is no store yet, and so no calibration
        assert cli("judge", "calibrate", *labels, *there).code == 0
        before = len(endpoint.asked)
        ran = cli("evaluate", file, *there, "--json")
        again = cli("evaluate", file, *there, "--json")
        assert len(endpoint.asked) == before + 3  # by the one criterion, once each
        refused = cli("evaluate", file, "--judge", "odd", "--base-url", endpoint.url, *nowhere)
    told = [one["verdicts"][-1] for one in ran.json["results"]]
    assert [(one["part"], one["holds"]) for one in told] == [("judges", True), ("judges", False), ("judges", True)]
    assert told[1]["reasons"] == ["relevance@1 decided: looked"]
    assert [one["decision"] for one in ran.json["results"]] == ["pass", "pass", "fail"]
    scores = [one["score"] for one in ran.json["results"]]
    assert scores[0] > scores[1] > scores[2] == 0.0
    assert [one["score"] for one in again.json["results"]] == scores
    assert refused.code == 2 and "--judge odd: is calibrated on no criterion; holdfast judge calibrate" in refused.err


def test_a_flag_switches_a_part_off(cli: Cli, scene: Scene, url: str, tmp_path: Path) -> None:
    name = "rewardHackingPrevention.astAnalysis"
    flag = Flag(name=name, variants={"on": True, "off": False}, off="off")
    scene.store.flags.put(flag, who="ann", why="test", now=1.0).result()
    ran = cli("evaluate", lines(tmp_path / "a.jsonl", PATCH), "--store", url)
    assert ran.err == "switched off by flags: minimal diff\n"
    told = cli("evaluate", tmp_path / "a.jsonl", "--store", url, "--json").json
    assert [one["part"] for one in told["results"][0]["verdicts"]] == ["rules", "safety", "tampering", "judges"]


def test_a_share_of_a_flag_is_a_share_of_the_results_and_each_keeps_what_it_got(cli: Cli, tmp_path: Path) -> None:
    at = ("--store", tmp_path / "flags.db")
    assert cli("flags", "init", *at).code == 0
    assert cli("flags", "rollout", "rewardHackingPrevention.astAnalysis", 90, *at).code == 0
    path = lines(tmp_path / "a.jsonl", *({**PATCH, "task": f"fix {number}"} for number in range(200)))
    ran = cli("evaluate", path, *at, "--json")
    with_diff = [any(part["part"] == "minimal diff" for part in one["verdicts"]) for one in ran.json["results"]]
    assert 160 <= sum(with_diff) < 200
    assert ran.json["features_on"]["minimal_diff"] == sum(with_diff) and not ran.json["features"]["minimal_diff"]
    assert ran.json["features_on"]["tool_rewards"] == 200 and ran.json["features"]["tool_rewards"]
    again = cli("evaluate", path, *at, "--json").json["results"]
    assert [any(part["part"] == "minimal diff" for part in one["verdicts"]) for one in again] == with_diff
    told = cli("evaluate", path, *at).err
    assert told == f"switched off by flags: minimal diff ({200 - sum(with_diff)} of 200 results)\n"


def test_the_results_of_a_run_are_judged_by_what_its_hidden_check_said(cli: Cli, scene: Scene, url: str) -> None:
    for name, worth in (("good", 1.0), ("bad", 0.0)):
        scene.enqueue(name, input={"prompt": "2 + 2?", "expected": "4", "needs": ["calc"]})
        attempt = scene.claim().attempt
        signals = (RewardTerm(name="success", value=worth, source="env"),)
        scene.store.traces.score(attempt, signals, now=scene.clock.now).result()
        scene.finish(attempt, AttemptState.SUCCEEDED, output="4", reward=worth)
    scene.enqueue("open")
    ran = cli("evaluate", scene.run, "--store", url)
    assert ran.lines[0] == "pass    1.000  good: 2 + 2?"
    assert ran.lines[1:3] == ["fail    0.000  bad: 2 + 2?", "  rules: the hidden check did not pass"]
    assert ran.lines[-1].startswith("2 results: 1 pass, 1 fail")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "a.jsonl:1: is not JSON: "),
        ('{"task": "q"}\n\n[]', "a.jsonl:3: is not an object"),
        ('{"task": "q", "result": 1}', "a.jsonl:1: result: is unknown"),
        ("", "a.jsonl: has no finished result"),
        ('{"task": "q"}\n{"passed": ' + "9" * 6000 + "}", "a.jsonl:2: is not JSON: Exceeds the limit (4300 digits)"),
    ],
)
def test_a_bad_line_is_named_before_anything_is_judged(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowhere: tuple[str, str], text: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(text, encoding="utf-8")
    ran = cli("evaluate", "a.jsonl", *nowhere)
    assert (ran.code, ran.out) == (2, "") and ran.err.count("\n") == 1
    assert ran.err.startswith(f"holdfast: error: {says}")


def test_a_line_ends_where_it_ends_and_a_mark_in_front_is_no_part_of_it(
    cli: Cli, tmp_path: Path, nowhere: tuple[str, str]
) -> None:
    """U+2028, U+0085 and their like may stand within JSON, and do in texts that models write."""
    line = json.dumps({"task": "q\u2028r\u0085s\x0c", "output": "4", "expected": "4"}, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{line}\r\n{line}\n".encode())
    assert cli("evaluate", tmp_path / "a.jsonl", *nowhere, "--json").json["summary"]["pass"] == 2


def test_no_agent_is_its_own_hidden_check(cli: Cli, scene: Scene, url: str) -> None:
    scene.enqueue("a", input={"prompt": "2 + 2?"})
    attempt = scene.claim().attempt
    signals = (
        RewardTerm(name="success", value=1.0, source="agent:rule:answer"),
        RewardTerm(name="exact_match", value=0.0, source="rule:exact_match"),
    )
    scene.store.traces.score(attempt, signals, now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED, output="5", reward=0.0)
    assert cli("evaluate", scene.run, "--store", url).lines[0].startswith("fail    0.000")


def test_a_file_that_cannot_be_read_is_said_so(cli: Cli, tmp_path: Path, nowhere: tuple[str, str]) -> None:
    ran = cli("evaluate", tmp_path / "none.jsonl", *nowhere)
    assert ran.code == 2 and "No such file" in ran.err
    (tmp_path / "b.jsonl").write_bytes(b"\xff\xfe")
    assert "is not UTF-8 text" in cli("evaluate", tmp_path / "b.jsonl", *nowhere).err


def test_a_part_that_is_too_slow_can_be_switched_off(
    cli: Cli, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ("--store", str(files.fresh()), "--json")
    many = lines(tmp_path / "a.jsonl", *[PATCH] * 20)
    assert cli("evaluate", many, *at, "--trip").json["tripped"] == []
    slow = replace(LATENCY["minimal_diff"].rule, fires_above=0.0, clears_at=0.0)
    monkeypatch.setitem(LATENCY, "minimal_diff", Fuse(feature="minimal_diff", rule=slow))  # type: ignore[arg-type]
    assert cli("evaluate", many, *at).json["tripped"] == []  # nobody asked for it
    told = cli("evaluate", many, *at, "--trip").json
    assert len(told["tripped"]) == 1 and told["tripped"][0].startswith("minimal-diff-slow: ")
    assert told["parts_p95_ms"]["minimal diff"] > 0.0
    assert cli("evaluate", many, *at).json["features"]["minimal_diff"] is False
