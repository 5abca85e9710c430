"""Flags from the command line: made, switched, ramped up, asked for; the ledger keeps who and why."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.flag import ALL_ON, Flag
from holdfast.contracts.records import decode, dumps
from holdfast.operate.switches import key_of, snapshot_of
from holdfast.store.store import Store
from tests.cli.conftest import Answer, Cli
from tests.conftest import Clock
from tests.store.scene import begin


class Flags:
    """`holdfast flags …` on one store."""

    def __init__(self, cli: Cli, url: str) -> None:
        self._cli, self._url = cli, url

    def __call__(self, *words: object) -> Answer:
        return self._cli("flags", *words, "--store", self._url)

    def says(self, *words: object) -> str:
        ran = self(*words)
        assert (ran.code, ran.err) == (0, "")
        return ran.out.rstrip("\n")


@pytest.fixture
def flags(cli: Cli, url: str, monkeypatch: pytest.MonkeyPatch) -> Flags:
    monkeypatch.setenv("LOGNAME", "ann")
    return Flags(cli, url)


def value(flags: Flags, *words: object) -> object:
    return flags("eval", *words, "--json").json["value"]


def test_a_flag_lives_from_off_to_everybody_to_killed_to_gone(flags: Flags, store: Store) -> None:
    assert flags.says("set", "parser", "--why", "try it") == "parser: made, off: on"
    assert value(flags, "parser") is False
    assert flags.says("enable", "parser", "--why", "go") == "parser: on, was off"
    assert value(flags, "parser") is True
    assert flags.says("kill", "parser") == "parser: killed, was on"
    assert flags.says("eval", "parser") == "parser: off = false (DISABLED: killed)"
    assert flags.says("enable", "parser", "--why", "no way") == "parser: killed, was killed"
    assert value(flags, "parser") is False
    assert flags.says("revive", "parser", "--why", "mended") == "parser: on, was killed"
    assert flags.says("disable", "parser", "--why", "enough") == "parser: off, was on"
    assert flags.says("drop", "parser", "--why", "gone from the code") == "parser: dropped, was off"
    entries = [entry for entry in store.ledger.entries() if entry.kind == "flag"]
    assert {entry.who for entry in entries} == {"ann"}
    whys = ["try it", "go", "killed by an operator", "no way", "mended", "enough", "gone from the code"]
    assert [entry.body["why"] for entry in entries] == whys


def test_a_ramp_takes_the_share_up_and_keeps_who_is_in(flags: Flags) -> None:
    flags.says("set", "parser", "--why", "w", "--rule", "on if group in staff", "--rule", "on 0%")
    flags.says("enable", "parser", "--why", "w")
    before: set[int] = set()
    for percent in (10, 25, 100):
        said = flags.says("rollout", "parser", percent, "--why", "more")
        assert said == f"parser: on: on if group in staff; on{'' if percent == 100 else f' {percent}%'}"
        now = {person for person in range(8) if value(flags, "parser", "--key", f"user-{person}")}
        assert before <= now
        before = now
    assert len(before) == 8
    flags.says("rollout", "parser", "0%", "--why", "back")
    assert value(flags, "parser", "--key", "user-1") is False
    assert value(flags, "parser", "--key", "user-1", "--attr", "group=staff") is True


def test_a_flag_of_several_variants_with_all_that_can_be_said_of_it(flags: Flags) -> None:
    flags.says("set", "base", "--why", "w")
    words = ["--variant", "small=10", "--variant", "large=20", "--variant", "huge=30", "--off", "small"]
    words += ["--rule", "large 50%", "--requires", "base=on", "--salt", "s", "--owner", "bob"]
    said = flags.says("set", "size", "--why", "w", "--description", "how large", "--expires", "2030-01-31", *words)
    assert said == "size: made, off: large 50%"
    assert flags("show", "size").lines[:-1] == [
        "size: off; how large",
        "  variant small = 10  (off)",
        "  variant large = 20",
        "  variant huge = 30",
        "  rule 1: large 50%",
        "  requires base = on",
    ]
    assert "owner bob, expires 2030-01-31 00:00:00, changed" in flags("show", "size").lines[-1]
    # what is not given stays
    flags.says("set", "size", "--why", "w", "--description", "how huge", "--expires", "never")
    flag = decode(Flag, flags("show", "size", "--json").json)
    assert (flag.description, flag.expires_at, flag.salt, flag.owner) == ("how huge", None, "s", "bob")
    ran = flags("rollout", "size", 60, "--why", "w")
    assert (ran.code, ran.err) == (
        2,
        "holdfast: error: flag size: has the variants large, huge; say which: --variant\n",
    )
    assert flags.says("rollout", "size", 70, "--why", "w", "--variant", "huge") == "size: off: large 50%; huge 70%"


def test_enabling_says_what_still_keeps_it_off(flags: Flags) -> None:
    flags.says("set", "base", "--why", "w")
    flags.says("set", "top", "--why", "w", "--requires", "base=on")
    said = flags.says("enable", "top", "--why", "w")
    assert said == "top: on, was off\nit stays off until base = on, which is off"
    expected = "top: off = false (DEFAULT: it requires base = on, which is off (not enabled))"
    assert flags.says("eval", "top") == expected
    flags.says("enable", "base", "--why", "w")
    assert flags.says("eval", "top") == "top: on = true (STATIC: rule 1)"


def test_the_environment_kills_here_and_the_list_says_so(flags: Flags, monkeypatch: pytest.MonkeyPatch) -> None:
    flags.says("set", "parser", "--why", "w")
    flags.says("enable", "parser", "--why", "w")
    monkeypatch.setenv("HOLDFAST_KILL_PARSER", "1")
    assert flags.says("eval", "parser") == "parser: off = false (DISABLED: killed by HOLDFAST_KILL_PARSER)"
    assert flags("list").lines[1].split() == ["parser", "killed", "here", "on", "-"]


def test_a_flag_can_be_taken_from_a_file_and_comes_out_as_it_went_in(flags: Flags, tmp_path: Path) -> None:
    flags.says("set", "parser", "--why", "w", "--rule", "on 25% if group in staff,beta")
    flag = decode(Flag, flags("show", "parser", "--json").json)
    path = tmp_path / "flag.json"
    path.write_text(dumps(flag))
    flags.says("drop", "parser", "--why", "w")
    after = decode(Flag, flags("set", "parser", "--why", "w", "--file", path, "--json").json)
    assert (after.rules, after.variants) == (flag.rules, flag.variants)
    ran = flags("set", "parser", "--why", "w", "--file", path, "--owner", "bob")
    assert (ran.code, ran.err) == (2, "holdfast: error: --file: says all of it, so --owner cannot be given too\n")
    assert flags("set", "other", "--why", "w", "--file", path).code == 2
    assert flags("set", "parser", "--why", "w", "--file", tmp_path / "gone.json").code == 2


def test_the_flags_a_project_begins_with_are_made_once(
    flags: Flags, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENABLE_MODEL_JUDGES", "false")
    assert value(flags, "intelligentEvaluation.modelJudges") is False
    assert flags.says("init") == "13 flags made, off: intelligentEvaluation.modelJudges"
    assert value(flags, "intelligentEvaluation.modelJudges") is False
    assert value(flags, "agenticRL.trainingPipeline") is True
    flags.says("disable", "agenticRL.enabled", "--why", "w")
    again = flags.says("init").splitlines()
    assert again[0] == "all 13 are there already, and stay as they are"
    assert "  # turns one off" in again and any(line.strip().startswith("--store ") for line in again)
    assert value(flags, "agenticRL.trainingPipeline") is False
    assert len(flags("list", "--json").json) == 13
    assert max(map(len, flags("list").lines)) <= 80


def test_after_init_all_is_on_that_was_on_before(flags: Flags, store: Store) -> None:
    at: dict[str, Any] = {"clock": time.time, "environment": {}}
    assert snapshot_of(store, **at).features("run") == ALL_ON
    assert flags.says("init") == "13 flags made, all of them on"
    assert snapshot_of(store, **at).features("run") == ALL_ON


def test_a_share_of_a_flag_of_ours_says_what_it_is_a_share_of_and_what_a_run_gets(
    flags: Flags, store: Store, clock: Clock
) -> None:
    name, run = "agenticRL.trainingPipeline", begin(store, clock)
    flags.says("init")
    assert flags.says("rollout", name, 90).splitlines()[-1] == "  a share is one of runs"
    assert flags("show", name).lines[-1] == "  a share is one of runs"
    assert flags.says("set", "parser") == "parser: made, off: on"  # of other flags, whoever asks gives the keys
    is_on = snapshot_of(store, clock=time.time, environment={}).features(key_of(run)).learning
    assert value(flags, name, "--run", run) is is_on
    assert flags.says("eval", name, "--run", run) == flags.says("eval", name, "--key", key_of(run))
    flags.says("rollout", name, "0.0001")
    assert "the key's place is" in " ".join(flags.says("eval", name, "--run", run).split())
    ran = flags("eval", name, "--run", run, "--key", "x")
    assert ran.code == 2 and "--run: and --key were both given" in ran.err


def test_the_first_flag_may_be_the_first_thing_in_a_store(cli: Cli, tmp_path: Path) -> None:
    at = ("--store", tmp_path / "new.db")
    assert cli("flags", "set", "parser", "--why", "w", *at).out == "parser: made, off: on\n"
    assert cli("flags", "list", *at).lines[1].split() == ["parser", "off", "on", "-"]
    ran = cli("flags", "list", "--store", tmp_path / "none.db")
    assert ran.code != 0
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["set", "two words"], "flag 'two words': a name has no blanks in it"),
        (["set", "f", "--rule", "blue"], "flag 'f': variant 'blue': is not one of its variants; use on, off"),
        (["set", "f", "--rule", "on 200%"], "percent '200%': must be a number from 0 to 100"),
        (["set", "f", "--rule", "on if age above old"], "flag f: age above 'old': above needs a number"),
        (["set", "f", "--variant", "a=1", "--variant", "b=2"], "none is called off; say which was there before"),
        (["set", "f", "--variant", "on=1", "--variant", "off=x"], "variants: are of more than one type"),
        (["set", "f", "--variant", "on"], "--variant 'on': must be NAME=VALUE"),
        (["set", "f", "--requires", "g=on"], "flag f: requires g: there is no such flag; put it first"),
        (["set", "f", "--expires", "soon"], "--expires 'soon': is not a date; write 2030-01-31, or never"),
        (["rollout", "f", "120"], "percent '120': must be a number from 0 to 100"),
        (["enable", "gone"], "flag 'gone': there is none in project 'default'; 'holdfast flags list' shows them"),
        (["drop", "gone"], "flag 'gone': there is none in project 'default'"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(flags: Flags, store: Store, words: list[str], expected: str) -> None:
    ran = flags(*words, "--why", "w")
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1)
    assert expected in ran.err
    assert store.flags.all() == [] and list(store.ledger.entries()) == []


def test_a_flag_that_others_require_is_not_dropped_and_no_circle_is_made(flags: Flags) -> None:
    flags.says("set", "base", "--why", "w")
    flags.says("set", "top", "--why", "w", "--requires", "base=on")
    ran = flags("drop", "base", "--why", "w")
    assert (ran.code, ran.err) == (
        2,
        "holdfast: error: flag base: top requires it; change or drop that first\n",
    )
    ran = flags("set", "base", "--why", "w", "--requires", "top=on")
    assert ran.code == 2 and "goes in a circle: base → top → base" in ran.err


def test_an_empty_list_says_how_to_begin(flags: Flags) -> None:
    assert "holdfast flags init" in flags.says("list")
    assert json.loads(flags("list", "--json").out) == []
    ran = flags("eval", "gone")
    assert ran.code == 2 and "flag 'gone': there is none" in ran.err


def test_what_the_page_says_about_flags_and_experiments_runs(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs/flags.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    said = {}
    for block in re.findall(r"```bash\n(.*?)```", page, re.S):
        for line in block.splitlines():
            ran = cli(*shlex.split(line)[1:])
            assert (ran.code, ran.err) == (0, ""), line
            said[line] = ran.out
    asked = [line for line in said if "flags eval" in line]
    assert said[asked[0]] == "parser: on = true (TARGETING_MATCH: rule 1)\n"
    assert len(said) == 15
    code = re.findall(r"```python\n(.*?)```", page, re.S)
    ran = subprocess.run([sys.executable, "-c", code[0]], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "True on TARGETING_MATCH rule 1\n"), ran.stderr
