"""`holdfast town learn`: a lesson that is told and kept, Ctrl-C that keeps it too, and what is refused before it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.policies import weights
from tests.cli.conftest import Cli
from tests.town.small import ROWS, VENUES

WORDS = ("town", "learn", "--quick")


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A hamlet whose days are short: so are its exams."""
    venues = "".join(f"[[venue]]\nid = '{one['id']}'\nkind = '{one['kind']}'\narea = {one['area']}\n" for one in VENUES)
    job = "[[job]]\nid = 'a'\nvenue = 'office'\nstart = 0\nend = 40\nwage = 1.0\nslots = 4\n"
    path = tmp_path / "hamlet.toml"
    path.write_text(f"residents = 4\nticks_per_day = 48\n[map]\nrows = '''{ROWS}'''\n{venues}{job}")
    return path


def test_a_lesson_is_told_and_kept(cli: Cli, rules: Path, tmp_path: Path) -> None:
    ran = cli(*WORDS, "--rules", rules, "--updates", 2, "--out", tmp_path / "kept")
    assert (
        ran.code in (0, 1) and max(map(len, (x for x in ran.lines if "/" not in x))) <= 80
    )  # two updates prove nothing, and need not
    assert {line.split()[0] for line in ran.lines[1:5]} == {"learnt", "random", "scripted", "untaught"}
    assert (
        ran.lines[5].startswith("paid a day: ")
        and ran.lines[6].startswith("on the way  ")
        and "2 updates" in ran.out
        and "steps" in ran.err
    )
    told = json.loads((tmp_path / "kept/lesson.json").read_text())
    assert told["updates"] == 2 and told["moved"] > 0 and set(told["scores"]) == {
        "learnt", "random", "scripted", "untaught",
    }  # fmt: skip
    assert (tmp_path / "kept/curve.png").read_bytes().startswith(b"\x89PNG")
    manifest = weights.read(tmp_path / "kept")
    assert manifest.kind == "actor-critic" and manifest.step == 2 and manifest.data == told["rules"]


def test_what_was_learnt_is_kept_though_nobody_said_where(
    cli: Cli, rules: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli(*WORDS, "--rules", rules, "--updates", 1)
    (kept,) = (tmp_path / ".holdfast/town").iterdir()
    assert weights.read(kept).step == 1 and f"kept in  .holdfast/town/{kept.name}" in ran.lines
    assert "next:" in ran.lines and any("holdfast town learn --minutes 10" in line for line in ran.lines)
    assert max(map(len, ran.lines)) <= 80 or str(rules) in ran.lines[-1]  # a path is not folded


def test_ctrl_c_ends_the_lesson_and_keeps_what_was_learnt(rules: Path, tmp_path: Path) -> None:
    words = [
        *WORDS,
        "--rules",
        str(rules),
        "--updates",
        "100000",
        "--seed",
        "2",
        "--out",
        str(tmp_path / "kept"),
        "--json",
    ]
    command, pipe = [sys.executable, "-m", "holdfast.cli", *words], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=os.environ.copy()) as taught:
        while not (tmp_path / "kept/manifest.json").exists():  # the first look, before the first update
            assert taught.poll() is None, taught.stderr and taught.stderr.read()
        taught.send_signal(signal.SIGINT)
        out, err = taught.communicate(timeout=150)
    assert taught.returncode == 130 and "ended; examining" in err and "Traceback" not in err
    told = json.loads(out)
    assert told["is_whole"] is False and weights.read(tmp_path / "kept").step == told["updates"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--out", "nowhere/kept"), "nowhere/kept: its folder does not exist; make it first"),
        (("--out", "/proc/kept"), "/proc/kept: cannot be written: "),
        (("--picture", "/proc/kept.png"), "/proc/kept.png: cannot be written: "),
        (("--picture", "a.gif"), "picture a.gif: is of no format that can be drawn; end it in .png or .svg"),
        (("--rules", "none.toml"), "none.toml"),
    ],
    ids=["out", "out-shut", "picture-shut", "picture", "rules"],
)
def test_what_cannot_be_done_is_one_line_and_code_2(
    words: tuple[str, ...], message: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran = cli(*WORDS, *words)
    assert ran.code == 2 and message in ran.err and len(ran.err.splitlines()) == 1
