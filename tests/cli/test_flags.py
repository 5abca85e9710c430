"""Flags from the command line: made, switched, ramped up, asked for; the ledger keeps who and why."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.flags import pair_of, rule_of, text_of, value_of
from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import ALL_ON, Condition, Flag, FlagRule, run_unit
from holdfast.contracts.records import decode, dumps
from holdfast.operate.switches import snapshot_of
from holdfast.promote.flags import SWITCHES
from holdfast.store.store import Store
from holdfast.workloads.tooluse import quickstart
from tests.cli.conftest import Answer, At, Cli, Group
from tests.cli.test_improve import config, items
from tests.conftest import Clock
from tests.store.scene import begin


@pytest.fixture
def flags(cli: Cli, url: str) -> Group:
    return Group(cli, "flags", url)


def value(flags: Group, *words: object) -> object:
    return flags("eval", *words, "--json").json["value"]


def test_a_flag_lives_from_off_to_everybody_to_killed_to_gone(flags: Group, store: Store) -> None:
    for word, why, said, is_on in (
        ("set", "try it", "made, off: on", False),
        ("enable", "go", "on, was off", True),
        ("kill", None, "killed, was on", False),
        ("enable", "no way", "killed, was killed", False),
        ("revive", "mended", "on, was killed", True),
        ("disable", "enough", "off, was on", False),
    ):
        assert flags.says(word, "parser", *(("--why", why) if why else ())) == f"parser: {said}"
        assert value(flags, "parser") is is_on
        if word == "kill":
            assert flags.says("eval", "parser") == "parser: off = false (DISABLED: killed)"
    assert flags.says("drop", "parser", "--why", "gone from the code") == "parser: dropped, was off"
    entries = [entry for entry in store.ledger.entries() if entry.kind == "flag"]
    assert {entry.who for entry in entries} == {"ann"}
    whys = ["try it", "go", "killed by an operator", "no way", "mended", "enough", "gone from the code"]
    assert [entry.body["why"] for entry in entries] == whys


def test_a_ramp_takes_the_share_up_and_keeps_who_is_in(flags: Group) -> None:
    flags.says("set", "parser", "--rule", "on if group in staff", "--rule", "on 0%")
    flags.says("enable", "parser")
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


def test_a_flag_of_several_variants_with_all_that_can_be_said_of_it(flags: Group) -> None:
    flags.says("set", "base")
    words = ["--variant", "small=10", "--variant", "large=20", "--variant", "huge=30", "--off", "small"]
    words += ["--rule", "large 50%", "--requires", "base=on", "--salt", "s", "--owner", "bob"]
    said = flags.says("set", "size", "--description", "how large", "--expires", "2030-01-31", *words)
    assert said == "size: made, off: large 50%"
    *about, last = flags("show", "size").lines
    assert about == [
        "size: off; how large",
        "  variant small = 10  (off)",
        "  variant large = 20",
        "  variant huge = 30",
        "  rule 1: large 50%",
        "  requires base = on",
    ]
    assert "owner bob, expires 2030-01-31 00:00:00, changed" in last
    flags.says("set", "size", "--description", "how huge", "--expires", "never")  # what is not given stays
    flag = decode(Flag, flags("show", "size", "--json").json)
    assert (flag.description, flag.expires_at, flag.salt, flag.owner) == ("how huge", None, "s", "bob")
    assert "flag size: has the variants large, huge; say which: --variant" in flags("rollout", "size", 60).refusal
    assert flags.says("rollout", "size", 70, "--variant", "huge") == "size: off: large 50%; huge 70%"


def test_a_flag_needs_what_it_requires_and_what_others_require_is_not_dropped(flags: Group) -> None:
    flags.says("set", "base")
    flags.says("set", "top", "--requires", "base=on")
    assert flags.says("enable", "top") == "top: on, was off\nit stays off until base = on, which is off"
    expected = "top: off = false (DEFAULT: it requires base = on, which is off (not enabled))"
    assert flags.says("eval", "top") == expected
    flags.says("enable", "base")
    assert flags.says("eval", "top") == "top: on = true (STATIC: rule 1)"
    assert "flag base: top requires it; change or drop that first" in flags("drop", "base").refusal
    assert "goes in a circle: base → top → base" in flags("set", "base", "--requires", "top=on").refusal


def test_the_environment_kills_here_and_the_list_says_so(flags: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "holdfast release flags init" in flags.says("list") and flags("list", "--json").json == []
    flags.says("set", "parser")
    flags.says("enable", "parser")
    monkeypatch.setenv("HOLDFAST_KILL_PARSER", "1")
    assert flags.says("eval", "parser") == "parser: off = false (DISABLED: killed by HOLDFAST_KILL_PARSER)"
    assert flags("list").lines[1].split() == ["parser", "killed", "here", "on", "-"]


def test_a_flag_can_be_taken_from_a_file_and_comes_out_as_it_went_in(flags: Group, tmp_path: Path) -> None:
    flags.says("set", "parser", "--rule", "on 25% if group in staff,beta")
    flag = decode(Flag, flags("show", "parser", "--json").json)
    path = tmp_path / "flag.json"
    path.write_text(dumps(flag))
    flags.says("drop", "parser")
    after = decode(Flag, flags("set", "parser", "--file", path, "--json").json)
    assert (after.rules, after.variants) == (flag.rules, flag.variants)
    said = flags("set", "parser", "--file", path, "--owner", "bob").refusal
    assert "--file: says all of it, so --owner cannot be given too" in said
    assert "name = 'parser': is not 'other'; give the same name twice" in flags("set", "other", "--file", path).refusal
    assert flags("set", "parser", "--file", tmp_path / "gone.json").code == 2


def test_the_flags_a_project_begins_with_are_made_once(
    flags: Group, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    at: dict[str, Any] = {"clock": time.time, "environment": {}}
    assert snapshot_of(store, **at).features("run") == ALL_ON
    monkeypatch.setenv("ENABLE_MODEL_JUDGES", "false")
    assert value(flags, "intelligentEvaluation.modelJudges") is False
    assert flags.says("init") == "13 flags made, off: intelligentEvaluation.modelJudges"
    assert value(flags, "intelligentEvaluation.modelJudges") is False
    assert value(flags, "agenticRL.trainingPipeline") is True
    flags.says("disable", "agenticRL.enabled")
    again = flags.says("init").splitlines()
    assert again[0] == "all 13 are there already, and stay as they are"
    assert "  # turns one off" in again and any(line.strip().startswith("--store ") for line in again)
    assert value(flags, "agenticRL.trainingPipeline") is False
    assert len(flags("list", "--json").json) == 13 and flags("list").page


def test_after_init_all_is_on_and_a_share_says_what_it_is_a_share_of_and_what_a_run_gets(
    flags: Group, store: Store, clock: Clock
) -> None:
    name, run, at = SWITCHES["learning"], begin(store, clock), {"clock": time.time, "environment": {}}
    assert flags.says("init") == "13 flags made, all of them on"
    assert snapshot_of(store, **at).features("run") == ALL_ON  # type: ignore[arg-type]
    assert flags.says("rollout", name, 90).splitlines()[-1] == "  a share is one of runs"
    assert flags("show", name).lines[-1] == "  a share is one of runs"
    assert flags.says("set", "parser") == "parser: made, off: on"  # of other flags, whoever asks gives the keys
    is_on = snapshot_of(store, **at).features(run_unit(run)).learning  # type: ignore[arg-type]
    assert value(flags, name, "--run", run) is is_on
    assert flags.says("eval", name, "--run", run) == flags.says("eval", name, "--key", run_unit(run))
    flags.says("rollout", name, "0.0001")
    assert "the key's place is" in " ".join(flags.says("eval", name, "--run", run).split())
    assert "--run: and --key were both given" in flags("eval", name, "--run", run, "--key", "x").refusal


def test_the_first_flag_may_be_the_first_thing_in_a_store(cli: Cli, nowhere: At, tmp_path: Path) -> None:
    assert cli("flags", "list", *nowhere).code != 0 and not Path(nowhere[1]).exists()
    assert cli("flags", "set", "parser", *nowhere).out == "parser: made, off: on\n"
    assert cli("flags", "list", *nowhere).lines[1].split() == ["parser", "off", "on", "-"]


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
        (
            ["enable", "gone"],
            "flag 'gone': there is none in project 'default'; 'holdfast release flags list' shows them",
        ),
        (["drop", "gone"], "flag 'gone': there is none in project 'default'"),
        (["eval", "gone"], "flag 'gone': there is none"),
    ],
)
def test_a_mistake_is_one_line_and_changes_nothing(flags: Group, store: Store, words: list[str], expected: str) -> None:
    assert expected in flags(*words).refusal
    assert store.flags.all() == [] and list(store.ledger.entries()) == []


def test_what_the_page_says_about_flags_and_experiments_runs(cli: Cli, here: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/flags.md").read_text(encoding="utf-8")
    said = {}
    for block in re.findall(r"```bash\n(.*?)```", page, re.S):
        for line in block.splitlines():
            ran = cli(*shlex.split(line)[1:])
            assert (ran.code, ran.err) == (0, ""), line
            said[line] = ran.out
    asked = [line for line in said if "flags eval" in line]
    assert said[asked[0]] == "parser: on = true (TARGETING_MATCH: rule 1)\n" and len(said) == 18
    code = re.findall(r"```python\n(.*?)```", page, re.S)
    ran = subprocess.run([sys.executable, "-c", code[0]], capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout) == (0, "True on TARGETING_MATCH rule 1\n"), ran.stderr


# A flag that is off says so in the output of whatever it stopped, with the command that turns it on again

STORE = ("--store", "s.db")
LEARNING = SWITCHES["learning"]
SAID = f"learning: switched off by flag {LEARNING} (killed); turn it on with"
REMEDY = f"holdfast release flags revive {LEARNING} --store s.db"


def optimizing(folder: Path, model: str, **given: Any) -> Path:
    """A run of four tasks with a lesson, on a very small model."""
    settings = {"agent": "holdfast.workloads.tooluse.agent:agent", "model": f"local/{model}"}
    tasks = {"optimize": items("train", 4), "validate": items("val", 2), "rl_optimizer": {"enabled": True}}
    path = folder / "run.json"
    path.write_text(json.dumps({**settings, **tasks, "worker_count": 4, **given}))
    return path


@pytest.fixture
def switches(cli: Cli, here: Path) -> Group:
    """Those of a project in the current folder."""
    group = Group(cli, "flags", "s.db")
    group("init").done()
    return group


def text(ran: Answer) -> str:
    return " ".join(ran.done().out.split())


def test_optimize_says_what_is_off_and_by_which_flag(
    cli: Cli, here: Path, switches: Group, weights: tuple[str, str]
) -> None:
    ran = cli("optimize", "--config", optimizing(here, weights[0]), *STORE)  # all are on
    assert "switched off" not in text(ran) and any(line.startswith("  learnt ") for line in ran.lines)
    switches("rollout", LEARNING, "0.0001").done()
    said = text(cli("optimize", "--config", optimizing(here, weights[0]), *STORE))
    assert "the key's place is" in said and f"holdfast release flags rollout {LEARNING} 100 --store s.db" in said
    switches("kill", LEARNING).done()
    switches("disable", SWITCHES["budgets"]).done()
    ran = cli("optimize", "--config", optimizing(here, weights[0], rl_optimizer=None), *STORE)
    assert "switched off" not in text(ran)  # what a run would not have used is not said
    path = optimizing(here, weights[0], thinking_budgets=True)
    said = text(ran := cli("optimize", "--config", path, *STORE))
    assert SAID in said and f"  {REMEDY}" in ran.lines
    assert f"budgets: switched off by flag {SWITCHES['budgets']} (not enabled)" in said
    assert "tool rewards" not in said  # they are on
    told = cli("optimize", "--config", path, *STORE, "--json").json["switched_off"]
    assert [(one["feature"], one["why"]) for one in told] == [("learning", "killed"), ("budgets", "not enabled")]


def test_improve_and_quickstart_say_it_too(
    cli: Cli, here: Path, switches: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    switches("kill", LEARNING).done()
    said = text(ran := cli("improve", config(here), *STORE))
    assert SAID in said and f"  {REMEDY}" in ran.lines and "nothing was learnt" in said
    told = cli("improve", config(here), *STORE, "--json").json
    assert [one["feature"] for one in told["switched_off"]] == ["learning"]
    monkeypatch.setattr(quickstart, "QUICK", replace(quickstart.QUICK, test_tasks=4, probe_tasks=4))
    said = text(ran := cli("quickstart", "--quick", *STORE))
    assert SAID in said and f"  {REMEDY}" in ran.lines


# Rules, as people write and read them


def condition(attribute: str, operator: str, value: Any) -> Condition:
    return Condition(attribute=attribute, operator=operator, value=value)


@pytest.mark.parametrize(
    ("text", "percent", "conditions"),
    [
        ("on", 100.0, []),
        ("on 25%", 25.0, []),
        ("on 0.5", 0.5, []),
        ("on if group in staff,beta", 100.0, [("group", "in", ["staff", "beta"])]),
        (
            "on 10% if age above 17 and plan equals 'gold and silver'",
            10.0,
            [("age", "above", 17), ("plan", "equals", "gold and silver")],
        ),
        ("on if phone prefix 41", 100.0, [("phone", "prefix", "41")]),
        ("on if id equals '\"7\"'", 100.0, [("id", "equals", "7")]),
        ("on if paid equals true", 100.0, [("paid", "equals", True)]),
        ("on if n in '[1, \"2\"]'", 100.0, [("n", "in", [1, "2"])]),
    ],
)
def test_a_rule_is_what_its_text_says_and_back(text: str, percent: float, conditions: list[Any]) -> None:
    rule = FlagRule(variant="on", percent=percent, conditions=tuple(condition(*one) for one in conditions))
    assert rule_of(text) == rule
    assert rule_of(text_of(rule)) == rule


WORDS = st.text(min_size=1)
NUMBERS = st.integers(-(10**15), 10**15) | st.floats(allow_nan=False, allow_infinity=False)
CONDITIONS = st.one_of(
    st.builds(condition, WORDS, st.just("equals"), st.text() | NUMBERS | st.booleans()),
    st.builds(condition, WORDS, st.sampled_from(["in", "not_in"]), st.lists(st.text() | NUMBERS | st.booleans())),
    st.builds(condition, WORDS, st.sampled_from(["prefix", "suffix"]), st.text()),
    st.builds(condition, WORDS, st.sampled_from(["above", "below"]), NUMBERS),
)
RULES = st.builds(
    FlagRule, variant=WORDS, percent=st.floats(0, 100), conditions=st.lists(CONDITIONS, max_size=3).map(tuple)
)


@given(RULES)
def test_every_rule_can_be_written_and_read_again(rule: FlagRule) -> None:
    again = rule_of(text_of(rule))
    assert again == rule
    assert [type(one.value) for one in again.conditions] == [type(one.value) for one in rule.conditions]


NEITHER = "is neither a share, such as 25%, nor the word if; write VARIANT [PERCENT%] [if ATTRIBUTE"
PARTS = "a condition is an attribute, an operator and one value"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "rule: is empty; write VARIANT [PERCENT%] [if ATTRIBUTE OPERATOR VALUE [and …]]"),
        ("on 101%", "percent '101%': must be a number from 0 to 100, such as 25%"),
        ("on many", f"'many' {NEITHER}"),
        ("on iff group in staff", f"'iff' {NEITHER}"),
        ("on ''", f"'' {NEITHER}"),
        ("on 5% when x", "has words where 'if' should stand"),
        ("on if", PARTS),
        ("on if group in", PARTS),
        ("on if group in staff beta", PARTS),
        ("on if group in staff and", PARTS),
        ("on if group like staff", "operator 'like': is unknown; use equals, in, not_in"),
        ("on if group in 'staff", "No closing quotation"),
    ],
)
def test_a_rule_that_cannot_be_read_is_refused_with_its_form(text: str, expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        rule_of(text)
    assert expected in str(refused.value)


def test_a_value_is_json_where_it_is_json_and_a_pair_needs_a_name() -> None:
    for text in ("gold", "NaN", "", "[" * 100_000):
        assert value_of(text) == text
    assert [value_of(text) for text in ("true", "3", '"3"')] == [True, 3, "3"]
    assert pair_of("a=b=c", "--attr") == ("a", "b=c")
    for text in ("a", "=b", " =b"):
        with pytest.raises(BadInput, match="must be NAME=VALUE"):
            pair_of(text, "--attr")
