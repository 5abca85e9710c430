"""`holdfast evaluate`: results from a file or a run, each with its reasons; quick, and nothing is asked of a model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contracts.flag import Flag
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState
from holdfast.operate.switches import LATENCY, Fuse
from tests.cli.conftest import At, Cli
from tests.cli.test_judge import even, jsonl, known
from tests.endpoint import completion, serving
from tests.store.scene import Scene

RIGHT = {"task": "What is 2 + 2?", "output": "4", "expected": "4"}
WRONG = {"task": "What is 2 + 2?", "output": "4 or 5", "expected": "4"}
OPEN = {"task": "Say something.", "output": "Something."}
BEFORE = "def size(xs):\n    return len(xs) + 1\n"
AFTER = BEFORE.replace(" + 1", "")
PATCH = {"task": "fix size", "before": BEFORE, "after": AFTER, "reference": AFTER, "passed": True}


def test_every_result_has_a_decision_a_score_and_reasons(cli: Cli, tmp_path: Path, nowhere: At) -> None:
    ran = cli("evaluate", jsonl(tmp_path / "a.jsonl", RIGHT, WRONG, OPEN, PATCH), *nowhere)
    assert ran.code == 1, ran.err  # something failed
    assert ran.page[0] == "pass    1.000  What is 2 + 2?"
    assert ran.lines[1:3] == ["fail    0.000  What is 2 + 2?", "  rules: the answer is not the expected one"]
    assert ran.lines[3].startswith("unknown   -    Say something.")
    assert ran.lines[-1].startswith("4 results: 2 pass, 1 fail, 1 unknown, mean score 0.667; p95 ")
    assert not Path(nowhere[1]).exists()  # looking makes nothing
    # What went and what came differ by a sign alone, and lines of programs come again: nothing is said twice.
    before = "def last(xs):\n    if not xs:\n        return None\n    return xs[len(xs) + 1]\n"
    after = before.replace("+ 1", "- 1")
    fix = {"task": "fix last", "before": before, "after": after, "reference": after, "passed": True}
    told = cli("evaluate", jsonl(tmp_path / "a.jsonl", fix), *nowhere, "--json").json["results"][0]
    assert (told["decision"], told["score"], told["reasons"]) == ("pass", 1.0, [])


def test_where_nothing_fails_it_ends_well_and_is_quick(cli: Cli, tmp_path: Path, nowhere: At) -> None:
    told = cli("evaluate", jsonl(tmp_path / "a.jsonl", *[RIGHT, PATCH] * 50), *nowhere, "--json").done().json
    assert told["summary"]["results"] == 100 and told["summary"]["p95_ms"] < 2000.0  # about 20 on a quiet machine
    first = told["results"][1]
    assert [one["part"] for one in first["verdicts"]] == ["rules", "safety", "tampering", "minimal diff", "judges"]
    assert first["sheet"]["signals"] and all(told["features"].values())
    assert cli("evaluate", jsonl(tmp_path / "a.jsonl", WRONG, RIGHT), *nowhere, "--limit", 1).code == 1


def test_judges_that_are_named_are_asked_where_they_are_calibrated(cli: Cli, tmp_path: Path, nowhere: At) -> None:
    """A failed check stays failed, whatever they say; who is calibrated on nothing is refused before any work."""
    asked = [{"task": "an even number", "output": f"{n}.", "passed": n < 200} for n in (102, 103, 204)]
    file = jsonl(tmp_path / "a.jsonl", *asked)
    with serving() as endpoint:
        endpoint.reply = lambda body: completion(even(body))
        there = ("--judge", "even", "--base-url", endpoint.url, *nowhere)
        labels = ("--criterion", "relevance", "--labels", jsonl(tmp_path / "l.jsonl", *known()))
        assert cli("evaluate", file, *there).code == 2  # there is no store yet, and so no calibration
        cli("judge", "calibrate", *labels, *there).done()
        before = len(endpoint.asked)
        ran, again = cli("evaluate", file, *there, "--json"), cli("evaluate", file, *there, "--json")
        assert len(endpoint.asked) == before + 3  # by the one criterion, once each
        refused = cli("evaluate", file, "--judge", "odd", "--base-url", endpoint.url, *nowhere).refusal
    told = [one["verdicts"][-1] for one in ran.json["results"]]
    assert [(one["part"], one["holds"]) for one in told] == [("judges", True), ("judges", False), ("judges", True)]
    assert told[1]["reasons"] == ["relevance@1 decided: looked"]
    assert [one["decision"] for one in ran.json["results"]] == ["pass", "pass", "fail"]
    scores = [one["score"] for one in ran.json["results"]]
    assert scores[0] > scores[1] > scores[2] == 0.0
    assert [one["score"] for one in again.json["results"]] == scores
    assert "--judge odd: is calibrated on no criterion; holdfast judge calibrate" in refused


def test_a_flag_switches_a_part_off(cli: Cli, scene: Scene, at: At, tmp_path: Path) -> None:
    flag = Flag(name="rewardHackingPrevention.astAnalysis", variants={"on": True, "off": False}, off="off")
    scene.store.flags.put(flag, who="ann", why="test", now=1.0).result()
    path = jsonl(tmp_path / "a.jsonl", PATCH)
    assert cli("evaluate", path, *at).err == "switched off by flags: minimal diff\n"
    told = cli("evaluate", path, *at, "--json").json
    assert [one["part"] for one in told["results"][0]["verdicts"]] == ["rules", "safety", "tampering", "judges"]


def test_a_share_of_a_flag_is_a_share_of_the_results_and_each_keeps_what_it_got(
    cli: Cli, tmp_path: Path, at: At
) -> None:
    cli("flags", "init", *at).done()
    cli("flags", "rollout", "rewardHackingPrevention.astAnalysis", 90, *at).done()
    path = jsonl(tmp_path / "a.jsonl", *({**PATCH, "task": f"fix {number}"} for number in range(200)))

    def with_diff(told: dict[str, list[dict[str, list[dict[str, str]]]]]) -> list[bool]:
        return [any(part["part"] == "minimal diff" for part in one["verdicts"]) for one in told["results"]]

    told = cli("evaluate", path, *at, "--json").json
    found = with_diff(told)
    assert 160 <= sum(found) < 200
    assert told["features_on"]["minimal_diff"] == sum(found) and not told["features"]["minimal_diff"]
    assert told["features_on"]["tool_rewards"] == 200 and told["features"]["tool_rewards"]
    assert with_diff(cli("evaluate", path, *at, "--json").json) == found
    off = f"switched off by flags: minimal diff ({200 - sum(found)} of 200 results)\n"
    assert cli("evaluate", path, *at).err == off


def test_the_results_of_a_run_are_judged_by_what_its_hidden_check_said(cli: Cli, scene: Scene, at: At) -> None:
    """No agent is its own hidden check."""
    own = RewardTerm(name="success", value=1.0, source="agent:rule:answer")
    for name, signals in (
        ("good", (RewardTerm(name="success", value=1.0, source="env"),)),
        ("bad", (RewardTerm(name="success", value=0.0, source="env"),)),
        ("vain", (own, RewardTerm(name="exact_match", value=0.0, source="rule:exact_match"))),
    ):
        scene.enqueue(name, input={"prompt": "2 + 2?", "expected": "4", "needs": ["calc"]})
        attempt = scene.claim().attempt
        scene.store.traces.score(attempt, signals, now=scene.clock.now).result()
        scene.finish(attempt, AttemptState.SUCCEEDED, output="4", reward=0.0)
    scene.enqueue("open")
    shown = cli("evaluate", scene.run, *at).lines
    assert shown[:3] == ["pass    1.000  good: 2 + 2?", "fail    0.000  bad: 2 + 2?", shown[2]]
    assert shown[2] == "  rules: the hidden check did not pass" and shown[3].startswith("fail    0.000  vain")
    assert shown[-1].startswith("3 results: 1 pass, 2 fail")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{", "a.jsonl:1: is not JSON: "),
        (b'{"task": "q"}\n\n[]', "a.jsonl:3: is not an object"),
        (b'{"task": "q", "result": 1}', "a.jsonl:1: result: is unknown"),
        (b"", "a.jsonl: has no finished result"),
        (b'{"task": "q"}\n{"passed": ' + b"9" * 6000 + b"}", "a.jsonl:2: is not JSON: Exceeds the limit (4300 digits)"),
        (b"\xff\xfe", "a.jsonl: is not UTF-8 text"),
        (None, "a.jsonl: No such file"),
    ],
)
def test_a_bad_file_is_named_before_anything_is_judged(
    cli: Cli, here: Path, nowhere: At, content: bytes | None, says: str
) -> None:
    if content is not None:
        Path("a.jsonl").write_bytes(content)
    assert cli("evaluate", "a.jsonl", *nowhere).refusal.startswith(f"holdfast: error: {says}")


def test_a_line_ends_where_it_ends_and_a_mark_in_front_is_no_part_of_it(cli: Cli, tmp_path: Path, nowhere: At) -> None:
    """U+2028, U+0085 and their like may stand within JSON, and do in texts that models write."""
    line = json.dumps({"task": "q\u2028r\u0085s\x0c", "output": "4", "expected": "4"}, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_bytes(f"\ufeff{line}\r\n{line}\n".encode())
    assert cli("evaluate", tmp_path / "a.jsonl", *nowhere, "--json").json["summary"]["pass"] == 2


def test_a_part_that_is_too_slow_can_be_switched_off(
    cli: Cli, at: At, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("evaluate", jsonl(tmp_path / "a.jsonl", *[PATCH] * 20), *at, "--json")
    assert cli(*words, "--trip").json["tripped"] == []
    slow = replace(LATENCY["minimal_diff"].rule, fires_above=0.0, clears_at=0.0)
    monkeypatch.setitem(LATENCY, "minimal_diff", Fuse(feature="minimal_diff", rule=slow))  # type: ignore[arg-type]
    assert cli(*words).json["tripped"] == []  # nobody asked for it
    told = cli(*words, "--trip").json
    assert len(told["tripped"]) == 1 and told["tripped"][0].startswith("minimal-diff-slow: ")
    assert told["parts_p95_ms"]["minimal diff"] > 0.0
    assert cli(*words).json["features"]["minimal_diff"] is False
