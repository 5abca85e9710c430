"""`holdfast reward evaluate`: results of a file or a run, with reasons; they are kept, and may become rewards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contracts.flag import Flag
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.run import RunState
from holdfast.operate.switches import LATENCY, Fuse
from holdfast.store.store import open_store
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
    ran = cli("evaluate", jsonl(tmp_path / "a.jsonl", RIGHT, WRONG, OPEN, PATCH), *nowhere, "--no-keep")
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
    assert "--judge odd: is calibrated on no criterion; holdfast reward judge calibrate" in refused


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
    assert shown[-3].startswith("3 results: 1 pass, 2 fail")


MAIL, OVER = "jane.roe@gmail.com", "import os\n" + AFTER


def test_the_results_of_a_file_are_kept_as_a_run_scrubbed_with_their_diff_analyses(
    cli: Cli, tmp_path: Path, nowhere: At
) -> None:
    over = {**PATCH, "task": f"fix size, says {MAIL}", "after": OVER}
    file = jsonl(tmp_path / "a.jsonl", over, WRONG, OPEN)
    told = cli("evaluate", file, *nowhere, "--json").json
    run = told["kept"]["run"]
    with open_store(nowhere[1]) as store:
        assert (store.runs.get(run).kind, store.runs.get(run).state) == ("evaluate", RunState.COMPLETED)
        kept = store.views.rollouts(run, most=10)
        assert [one.outcome for one in kept] == ["right", "wrong", None]
        assert kept[2].reward is None  # not measured is not zero
        assert kept[2].metadata["evaluate"]["reasons"] == told["results"][2]["reasons"]
        assert MAIL not in str(kept) and "fix size" in str(kept[0].input)
    page = cli("rewards", f"{run}/result-000001", *nowhere).done()
    said = " ".join(page.out.split())
    assert "3 edits beyond the least fix (cost " in said and "solution.py:1 unused_import, os is never used" in said
    assert "evaluation: pass" in said and MAIL not in page.out
    scores = [one["score"] for one in told["results"]]
    again = cli("evaluate", run, *nowhere, "--json").json  # the change is read from what was stored
    assert [one["score"] for one in again["results"]] == scores
    assert [part["part"] for part in again["results"][0]["verdicts"]][2:4] == ["tampering", "minimal diff"]


def finished(scene: Scene, name: str, success: float | None) -> str:
    scene.enqueue(name, input={"prompt": "fix size", "files": {"a.py": BEFORE}, "expected": {"a.py": AFTER}})
    attempt = scene.claim().attempt
    if success is not None:
        signals = (RewardTerm(name="success", value=success, source="env"),)
        scene.store.traces.score(attempt, signals, now=scene.clock.now).result()
    scene.finish(attempt, AttemptState.SUCCEEDED, output={"a.py": OVER if success else "x"}, reward=success)
    return f"{scene.run}/{name}"


def test_a_runs_evaluation_lies_beside_its_rewards_and_counts_where_it_is_paid(cli: Cli, scene: Scene, at: At) -> None:
    good, bad, other = finished(scene, "good", 1.0), finished(scene, "bad", 0.0), finished(scene, "unchecked", None)
    told = cli("evaluate", scene.run, *at, "--json").json
    assert told["kept"]["scoring"] == "evaluated-1" and told["kept"]["comparison"]["agreement"] == 1.0
    assert [scene.store.views.rollout(one).reward for one in (good, bad, other)] == [1.0, 0.0, None]  # as they were
    rows = cli("rewards", scene.run, "--scoring", "evaluated-1", *at, "--json").done().json["rollouts"]
    assert [row["id"] for row in rows] == [bad, good]
    assert rows[0]["reward"] == 0.0 < 1.0 < rows[1]["reward"] and "unused_import" in rows[1]["feedback"]
    assert "evaluated-1" in cli("rewards", scene.run, *at).done().out
    assert "scored again: evaluated-1" in cli("rewards", good, *at).done().out
    ran = cli("evaluate", scene.run, "--pay", "0.5", "--name", "paid", *at)
    assert ran.lines[-1] == "2 rollouts paid 0.5 × score" and ran.code == 1
    score = next(one["score"] for one in told["results"] if one["decision"] == "pass")
    paid = scene.store.views.rollout(good).reward
    assert paid == pytest.approx(1.0 + 0.5 * score) and scene.store.views.rollout(bad).reward == 0.0
    again = cli("evaluate", scene.run, "--pay", "0.5", *at).lines[-1]
    assert again == "0 rollouts paid 0.5 × score; 2 had been paid before"
    assert scene.store.views.rollout(good).reward == paid
    assert [one.name for one in scene.store.scorings.of_run(scene.run)] == ["evaluated-1", "paid", "evaluated-2"]


def test_what_cannot_be_kept_is_refused_before_any_work(cli: Cli, scene: Scene, at: At, tmp_path: Path) -> None:
    finished(scene, "good", 1.0)
    file = jsonl(tmp_path / "a.jsonl", RIGHT)
    cli("evaluate", scene.run, "--name", "mine", *at).done()
    for words, says in (
        ((file, "--pay", "0.5"), "--pay: is for a run that is evaluated"),
        ((file, "--name", "x"), "--name: is for a run that is evaluated"),
        ((scene.run, "--pay", "0.5", "--no-keep"), "--pay: and --no-keep were both given"),
        ((scene.run, "--pay", "-1"), "--pay -1: must be a finite number above 0"),
    ):
        assert says in cli("evaluate", *words, *at).refusal
    taken = cli("evaluate", scene.run, "--name", "mine", *at)
    assert taken.code == 5 and "scoring mine" in taken.err
    assert "--scoring: is for a run" in cli("rewards", f"{scene.run}/good", "--scoring", "mine", *at).refusal
    assert [one.name for one in scene.store.scorings.of_run(scene.run)] == ["mine"]


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
