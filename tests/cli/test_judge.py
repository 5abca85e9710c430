"""`holdfast judge`: asked by file, calibrated on labels that say who made them, and refused where it may not judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.judgement import Calibration, JudgeStatus
from holdfast.contracts.records import decode
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Cli
from tests.endpoint import completion, serving


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    return "--store", str(tmp_path / "store.sqlite")


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def opened(at: tuple[str, str]) -> Store:
    return open_store(at[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no answers in it"),
        ("{", ":1: is not JSON"),
        ("[]", ":1: is not an object"),
        ('{"output": "4"}', "task"),
        ('{"task": "t", "output": 4}', "output"),
        ('{"task": "t", "output": "4", "score": 1}', ":1: score: is unknown"),
    ],
)
def test_a_bad_file_is_one_line_before_anybody_is_asked(
    cli: Cli, tmp_path: Path, at: tuple[str, str], text: str, message: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text, encoding="utf-8")
    ran = cli("judge", "run", file, "--judge", "verifier", *at)
    assert ran.code == 2 and message in ran.err and len(ran.err.splitlines()) == 1
    assert not Path(at[1]).exists()


def test_a_model_needs_an_endpoint_and_a_criterion_a_name(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    file = lines(tmp_path / "a.jsonl", [{"task": "t", "output": "4"}])
    ran = cli("judge", "run", file, "--judge", "gpt-x", *at)
    assert ran.code == 2 and "--judge gpt-x: needs an endpoint" in ran.err
    ran = cli("judge", "run", file, "--judge", "verifier", "--criterion", "tone", *at)
    assert ran.code == 2 and "criterion 'tone': is unknown" in ran.err
    ran = cli("judge", "run", file, "--judge", "verifier", "--role", "both", *at)
    assert ran.code == 2 and "use train or audit" in ran.err
    ran = cli("judge", "calibrate", *at)
    assert ran.code == 2 and "labels on correctness@1: there are none in the store" in ran.err


def test_a_criterion_of_ones_own_does_not_take_the_place_of_another(
    cli: Cli, tmp_path: Path, at: tuple[str, str]
) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"name": "safety", "question": "?", "anchors": {"yes": "a", "no": "b"}, "floor": 0}')
    ran = cli("judge", "calibrate", "--own", own, *at)
    assert ran.code == 2 and "safety is a criterion that everybody has; give yours another name" in ran.err


def test_rules_decide_and_the_rest_waits_for_a_person(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    rows = [
        {"task": "2+2?", "output": "4", "expected": "4"},
        {"task": "3+3?", "output": "6"},
        {"task": "x", "output": ""},
    ]
    ran = cli("judge", "run", lines(tmp_path / "a.jsonl", rows), "--judge", "verifier", *at)
    assert ran.code == 0, ran.err
    assert "correctness@1: 2 decided, 1 abstained, 0 disputed; cost 0" in ran.out
    assert ran.err == "3 of 3 answers without detail.messages, which is all that the verifier reads\n"
    assert "needs detail.messages" in ran.out
    assert ran.lines[-1] == f"  holdfast label {' '.join(at)}" and max(map(len, ran.lines[:-1])) <= 80
    with opened(at) as store:
        (waits,) = store.judgements.doubts()
        assert store.judgements.item(waits.artefact).output == "6"
    told = cli("judge", "run", tmp_path / "a.jsonl", "--judge", "verifier", *at, "--json").json
    assert [(one["outcome"], one["holds"]) for one in told] == [
        ("decided", True),
        ("abstained", None),
        ("decided", False),
    ]


def test_a_judge_that_trains_a_policy_is_refused_as_its_audit_judge(
    cli: Cli, tmp_path: Path, at: tuple[str, str]
) -> None:
    file = lines(tmp_path / "a.jsonl", [{"task": "t", "output": ""}])
    given = ("judge", "run", file, "--judge", "verifier", "--policy", "sprout", *at)
    assert cli(*given, "--role", "train").code == 0
    ran = cli(*given, "--role", "audit")
    assert ran.code == 5
    assert "judge verifier: is the train judge of policy sprout, and cannot be its audit judge" in ran.err


def even(body: Any) -> str:
    """A judge that looks whether the number is even, which is what the labels say."""
    shown = body["messages"][-1]["content"]
    if "first answer:" in shown:
        first, second = (
            int(shown.split(f"{name} answer:\n")[1].split("| ")[1].split(".")[0]) for name in ("first", "second")
        )
        return "neither" if first % 2 == second % 2 else ("first" if first % 2 == 0 else "second")
    answer = shown.split("answer:\n")[1].split("| ")[1].split("\n")[0].strip().removesuffix(".")
    is_right = answer.isdigit() and int(answer) % 2 == 0
    return f"{'yes' if is_right else 'no'}\nconfidence: 0.9\nlooked"


def test_a_model_behind_an_endpoint_is_calibrated_and_then_counts(
    cli: Cli, tmp_path: Path, at: tuple[str, str]
) -> None:
    rows = [{"task": f"an even number, {n // 2}", "output": f"{n}.", "author": "ann"} for n in range(80)]
    known = [{**row, "holds": n % 2 == 0, "maker": "person", "who": "ann"} for n, row in enumerate(rows)]
    with serving() as endpoint:
        endpoint.reply = lambda body: completion(even(body))
        there = ("--base-url", endpoint.url, *at)
        ran = cli("judge", "calibrate", "--judge", "even", "--labels", lines(tmp_path / "l.jsonl", known), *there)
        assert ran.code == 0, ran.err
        assert ran.lines[0] == "even on correctness@1: trusted"
        assert "80 (80 by a person), 0 abstained; base rate 0.500" in ran.out
        assert "  told by file labels=80" in ran.lines
        assert "kappa 1.000" in ran.out and max(map(len, ran.lines)) <= 80
        asked = cli("judge", "run", lines(tmp_path / "a.jsonl", [{"task": "an even number", "output": "102."}]),
                    "--judge", "even", *there, "--json").json  # fmt: skip
        assert (asked[0]["outcome"], asked[0]["holds"], asked[0]["by"]) == ("decided", True, "even")
        again = cli("judge", "calibrate", "--judge", "even", *there, "--json")
        assert decode(Calibration, again.json).biases["drift"] == {"n": 80, "changed": 0, "alarm": False}
    told = cli("judge", "report", *at)
    assert "even on correctness@1: 81 judgements kept, cost 0" in told.lines
    assert told.lines[-1] == "0 answers to label"
    (one,) = (decode(Calibration, one) for one in cli("judge", "report", *at, "--json").json["calibrations"])
    assert (one.standing, one.makers) == (JudgeStatus.TRUSTED, {"person": 80})


def test_labels_must_say_who_made_them(cli: Cli, tmp_path: Path, at: tuple[str, str]) -> None:
    for wrong in ({"holds": True, "maker": "human", "who": "ann"}, {"holds": 1, "maker": "person", "who": "ann"}, {}):
        ran = cli(
            "judge", "calibrate", "--labels", lines(tmp_path / "l.jsonl", [{"task": "t", "output": "4", **wrong}]), *at
        )
        assert ran.code == 2 and "l.jsonl:1: does not say what is known, and by whom" in ran.err


def test_the_embedded_verifier_is_reported_with_whose_labels_it_was_measured_on(cli: Cli, at: tuple[str, str]) -> None:
    ran = cli("judge", "calibrate", "--tooluse", 20, *at)
    assert ran.code == 0, ran.err
    assert ran.lines[0].startswith("verifier on correctness@1: ")
    assert " by a program)" in ran.out and "person" not in ran.out and "human" not in ran.out
    assert max(map(len, ran.lines)) <= 80
    (one,) = (decode(Calibration, one) for one in cli("judge", "report", *at, "--json").json["calibrations"])
    assert one.biases["padding"]["raised"] == 0 and one.biases["padding"]["mean"] < 0
    assert one.biases["order"]["corrected"] < 0.02


def test_a_verifier_is_made_and_then_asked_by_the_name_of_its_folder(
    cli: Cli, tmp_path: Path, at: tuple[str, str]
) -> None:
    """From few tasks; what is learnt is the workload's to test."""
    folder = tmp_path / "verifier"
    ran = cli("judge", "train", folder, "--tasks", 4)
    assert ran.code == 0, ran.err
    assert ran.lines[0].startswith(f"{folder}: from ") and ran.lines[-1].endswith(f"--judge {folder}")
    talk = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    file = lines(tmp_path / "a.jsonl", [{"task": "2+2?", "output": "4", "detail": {"messages": talk}}])
    (told,) = cli("judge", "run", file, "--judge", folder, *at, "--json").json
    given = told["judgements"][-1]
    assert given["judge"].startswith("verifier@") and given["score"] is not None
    assert told["why"].endswith(": is not calibrated")


def test_where_no_verifier_can_be_put_is_said_before_any_work(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/other").touch()
    for place, why in (("file", "File exists"), ("full", "holds no weights"), ("file/below", "Not a directory")):
        ran = cli("judge", "train", tmp_path / place)
        assert ran.code == 2 and why in ran.err and len(ran.err.splitlines()) == 1


def test_a_report_of_nothing_says_how_to_begin(cli: Cli, at: tuple[str, str]) -> None:
    opened(at).close()
    ran = cli("judge", "report", *at)
    assert ran.code == 0 and "holdfast judge calibrate --tooluse 300" in ran.out
    assert cli("judge", "report", "--store", f"{at[1]}.none").code == 2
