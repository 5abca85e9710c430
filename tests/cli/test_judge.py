"""`holdfast reward judge` and `label`: by file, calibrated on labels that say who made them, settled by people."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli import reward
from holdfast.cli.main import app
from holdfast.cli.options import StoreOptions
from holdfast.contracts.judgement import Calibration, Doubtful, EvalItem, JudgeStatus, Maker, ReviewRequest
from holdfast.contracts.records import decode
from holdfast.store.store import open_store
from tests.cli.conftest import At, Cli
from tests.endpoint import completion, serving

ON = "correctness@1"


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


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
    cli: Cli, tmp_path: Path, nowhere: At, text: str, message: str
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(text, encoding="utf-8")
    assert message in cli("judge", "run", file, "--judge", "verifier", *nowhere).refusal
    assert not Path(nowhere[1]).exists()


def test_what_is_missing_or_unknown_is_one_line(cli: Cli, tmp_path: Path, at: At) -> None:
    own = tmp_path / "own.json"
    own.write_text('{"name": "safety", "question": "?", "anchors": {"yes": "a", "no": "b"}, "floor": 0}')
    run = ("run", jsonl(tmp_path / "a.jsonl", {"task": "t", "output": "4"}), "--judge")
    for words, says in (
        ((*run, "gpt-x"), "--judge gpt-x: needs an endpoint"),
        ((*run, "verifier", "--criterion", "tone"), "criterion 'tone': is unknown"),
        ((*run, "verifier", "--role", "both"), "use train or audit"),
        (("calibrate",), f"labels on {ON}: there are none in the store"),
        (("calibrate", "--own", own), "safety is a criterion that everybody has; give yours another name"),
    ):
        assert says in cli("judge", *words, *at).refusal
    for wrong in ({"holds": True, "maker": "human", "who": "ann"}, {"holds": 1, "maker": "person", "who": "ann"}, {}):
        labels = jsonl(tmp_path / "l.jsonl", {"task": "t", "output": "4", **wrong})
        said = cli("judge", "calibrate", "--labels", labels, *at).refusal
        assert "l.jsonl:1: does not say what is known, and by whom" in said


def test_rules_decide_and_the_rest_waits_for_a_person(cli: Cli, tmp_path: Path, at: At) -> None:
    rows = (
        {"task": "2+2?", "output": "4", "expected": "4"},
        {"task": "3+3?", "output": "6"},
        {"task": "x", "output": ""},
    )
    words = ("judge", "run", jsonl(tmp_path / "a.jsonl", *rows), "--judge", "verifier", *at)
    ran = cli(*words).done()
    assert f"{ON}: 2 decided, 1 abstained, 0 disputed; cost 0" in ran.page
    assert ran.err == "3 of 3 answers without detail.messages, which is all that the verifier reads\n"
    assert "needs detail.messages" in ran.out and ran.lines[-1] == f"  holdfast reward label {' '.join(at)}"
    with open_store(at[1]) as store:
        (waits,) = store.judgements.doubts()
        assert store.judgements.item(waits.artefact).output == "6"
    told = cli(*words, "--json").json
    assert [(one["outcome"], one["holds"]) for one in told] == [
        ("decided", True), ("abstained", None), ("decided", False)
    ]  # fmt: skip


def test_a_judge_that_trains_a_policy_is_refused_as_its_audit_judge(cli: Cli, tmp_path: Path, at: At) -> None:
    file = jsonl(tmp_path / "a.jsonl", {"task": "t", "output": ""})
    given = ("judge", "run", file, "--judge", "verifier", "--policy", "sprout", *at)
    cli(*given, "--role", "train").done()
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


def known(count: int = 80) -> list[dict[str, Any]]:
    """Answers of which a person says whether they hold."""
    about = {"author": "ann", "maker": "person", "who": "ann"}
    return [
        {"task": f"an even number, {n // 2}", "output": f"{n}.", "holds": n % 2 == 0, **about} for n in range(count)
    ]


def test_a_model_behind_an_endpoint_is_calibrated_and_then_counts(cli: Cli, tmp_path: Path, at: At) -> None:
    with serving() as endpoint:
        endpoint.reply = lambda body: completion(even(body))
        there = ("--judge", "even", "--base-url", endpoint.url, *at)
        ran = cli("judge", "calibrate", "--labels", jsonl(tmp_path / "l.jsonl", *known()), *there).done()
        assert ran.page[0] == f"even on {ON}: trusted"
        assert "80 (80 by a person), 0 abstained; base rate 0.500" in ran.out and "kappa 1.000" in ran.out
        assert "  told by file labels=80" in ran.lines
        file = jsonl(tmp_path / "a.jsonl", {"task": "an even number", "output": "102."})
        (asked,) = cli("judge", "run", file, *there, "--json").json
        assert (asked["outcome"], asked["holds"], asked["by"]) == ("decided", True, "even")
        again = cli("judge", "calibrate", *there, "--json")
        assert decode(Calibration, again.json).biases["drift"] == {"n": 80, "changed": 0, "alarm": False}
    told = cli("judge", "report", *at)
    assert f"even on {ON}: 81 judgements kept, cost 0" in told.lines and told.lines[-1] == "0 answers to label"
    (one,) = (decode(Calibration, one) for one in cli("judge", "report", *at, "--json").json["calibrations"])
    assert (one.standing, one.makers) == (JudgeStatus.TRUSTED, {"person": 80})


@pytest.mark.usefixtures("untraced")
def test_the_embedded_verifier_is_reported_with_whose_labels_it_was_measured_on(cli: Cli, at: At) -> None:
    assert "holdfast reward judge calibrate --tooluse 300" in cli("judge", "report", *at).done().out  # how to begin
    assert cli("judge", "report", "--store", f"{at[1]}.none").code == 2
    ran = cli("judge", "calibrate", "--tooluse", 20, *at).done()
    assert ran.page[0].startswith(f"verifier on {ON}: ")
    assert " by a program)" in ran.out and "person" not in ran.out and "human" not in ran.out
    (one,) = (decode(Calibration, one) for one in cli("judge", "report", *at, "--json").json["calibrations"])
    assert one.biases["padding"]["raised"] == 0 and one.biases["padding"]["mean"] < 0
    assert one.biases["order"]["corrected"] < 0.02


def test_a_verifier_is_made_and_then_asked_by_the_name_of_its_folder(cli: Cli, tmp_path: Path, at: At) -> None:
    """From few tasks; what is learnt is the workload's to test."""
    folder = tmp_path / "verifier"
    ran = cli("judge", "train", folder, "--tasks", 4).done()
    assert ran.lines[0].startswith(f"{folder}: from ") and ran.lines[-1].endswith(f"--judge {folder}")
    talk = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
    file = jsonl(tmp_path / "a.jsonl", {"task": "2+2?", "output": "4", "detail": {"messages": talk}})
    (told,) = cli("judge", "run", file, "--judge", folder, *at, "--json").json
    given = told["judgements"][-1]
    assert given["judge"].startswith("verifier@") and given["score"] is not None
    assert told["why"].endswith(": is not calibrated")


def test_where_no_verifier_can_be_put_is_said_before_any_work(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/other").touch()
    for place, why in (("file", "File exists"), ("full", "holds no weights"), ("file/below", "Not a directory")):
        assert why in cli("judge", "train", tmp_path / place).refusal


# Labels: one answer after the other, each kept at once; whoever stops goes on where they were


@pytest.fixture
def waiting(at: At) -> At:
    """Three answers wait for a label."""
    with open_store(at[1]) as store:
        for n in range(3):
            one = EvalItem(task=f"What is {n} + 1?", output=f"{n + 1}\x1b[31m", context="none")
            about: dict[str, Any] = {"reason": Doubtful.ABSTAINED, "why": "unsure: 0.50", "at": float(n)}
            store.judgements.request_review(one, ReviewRequest(artefact=one.sha256, criterion=ON, **about)).result()
    return at


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def label(
    waiting: At, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """What is shown to ann, who types this at a terminal; then the input ends."""

    def labelled(typed: str) -> list[str]:
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        reward.label(StoreOptions(waiting[1]), name="ann")
        return capsys.readouterr().out.replace("holds? [y/n/u/s/q] ", "").splitlines()

    return labelled


def kept(at: At) -> list[tuple[bool | None, str, str]]:
    with open_store(at[1]) as store:
        found = sorted(store.judgements.labels(ON), key=lambda one: one.at)
        assert {one.maker for one in found} <= {Maker.PERSON}
        return [(one.holds, one.why, one.who) for one in found]


def test_each_is_shown_and_labelled_and_whoever_stops_goes_on_where_they_were(
    waiting: At, label: Callable[[str], list[str]]
) -> None:
    lines = label("n the sum is wrong\nq\n")
    assert kept(waiting) == [(False, "the sum is wrong", "ann")]
    assert "--- 1 of 3 · correctness@1 · abstained · unsure: 0.50" in lines
    assert "  What is 0 + 1?" in lines and "  1�[31m" in lines  # nothing of an answer reaches the terminal as it is
    assert "Is the answer right, and nothing but the answer?" in lines
    assert lines[-1] == f"1 label kept, 2 to go: holdfast reward label {' '.join(waiting)}"
    lines = label("what\nyes\ns\ny\n")
    assert lines.count("y yes, n no, u cannot be told, s skip, q quit; a reason may follow") == 2
    assert kept(waiting)[1:] == [(True, "", "ann")]  # one was skipped
    assert label("")[-1].startswith("0 labels kept, 1 to go: holdfast reward label")  # the input ended at once
    assert label("u\n")[-1] == "1 label kept, 0 to go" and kept(waiting)[2][0] is None
    assert label("") == ["nothing waits for a label"]


def test_what_is_piped_is_no_persons_word_and_programs_get_what_waits(cli: Cli, waiting: At) -> None:
    ran = CliRunner().invoke(app, ["label", *waiting, "--who", "bob"], input="n\n" * 9, prog_name="holdfast")
    said = " ".join(ran.output.split())
    assert ran.exit_code == 2 and "the input is no terminal" in said and "--labels FILE" in said
    assert kept(waiting) == []
    told = cli("label", *waiting, "--json").json
    assert [decode(ReviewRequest, one).at for one in told] == [0.0, 1.0, 2.0]
    assert len(cli("label", *waiting, "--json", "--limit", 2).json) == 2


def test_ctrl_c_loses_nothing(waiting: At) -> None:
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "label", *waiting, "--who", "ann"]
    running = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    try:
        seen = _until(outer, b"", b"holds? [y/n/u/s/q] ")
        while b"2 of 3" not in seen:  # a terminal that is just being set up may lose what is typed
            time.sleep(0.3)
            os.write(outer, b"y\n")
            while select.select([outer], [], [], 5.0)[0] and b"2 of 3" not in seen:
                seen += os.read(outer, 4096)
        seen = _until(outer, seen, b"2 of 3", b"holds? [y/n/u/s/q] ")
        while b"to go" not in seen and running.poll() is None:  # one that comes amid a clean-up of Python's is lost
            running.send_signal(signal.SIGINT)
            while select.select([outer], [], [], 10.0)[0] and b"to go" not in seen:
                seen += os.read(outer, 4096)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
        os.close(outer)
    told = re.search(rb"(\d) labels? kept, (\d) to go", seen)
    assert told is not None and int(told[1]) >= 1 and int(told[1]) + int(told[2]) == 3
    assert kept(waiting) == [(True, "", "ann")] * int(told[1])


def _until(terminal: int, seen: bytes, *texts: bytes, patience_s: float = 60.0) -> bytes:
    """All that was printed, once it holds the texts, one after the other."""
    end = time.monotonic() + patience_s
    while not re.search(b".*".join(map(re.escape, texts)), seen, re.S):
        assert select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(terminal, 4096)
    return seen
