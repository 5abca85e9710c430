"""Older spellings become today's, with one warning each; the alias checks of seed 002, really run, and their report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest

from holdfast.cli.main import ALIASES, rewrite_aliases
from tests.cli.conftest import Cli

NAMES = ["legacy_train_alias", "legacy_proxy_alias", "unknown_flag_fail_closed", "docs_policy_discoverability"]
DOCUMENTED = [  # seed 002, "Flag Notes"
    *((f"--train-{name}", f"--prompt-optimization-{name}") for name in ("config", "store-sqlite", "json")),
    *(
        (f"--training-proxy-{name}", f"--prompt-optimization-proxy-{name}")
        for name in ("server", "bind", "upstream-url", "state-dir", "timeout-ms")
    ),
]


def test_every_check_passes_and_the_report_is_written_as_json_and_markdown(cli: Cli, tmp_path: Path) -> None:
    as_json, as_md = tmp_path / "reports" / "compat.json", tmp_path / "reports" / "compat.md"
    ran = cli("compat", "check", "--output-json", as_json, "--output-md", as_md, "--repo-root", tmp_path).done()
    assert [line.split()[:3] for line in ran.page[1:5]] == [[name, "pass", "holdfast"] for name in NAMES]
    assert ran.lines[-1] == "4 of 4 passed" and max(map(len, ran.lines)) <= 80

    report = json.loads(as_json.read_text())
    jsonschema.validate(report, cli("schema", "compat-report").json)
    assert (report["schema_version"], report["repo_root"]) == (1, str(tmp_path))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["generated_at"])
    assert report["summary"] == {"total": 4, "passed": 4, "failed": 0}
    assert [(check["name"], check["status"]) for check in report["commands"]] == [(name, "pass") for name in NAMES]
    assert all(set(check) == {"name", "cmd", "status", "stdout_excerpt"} for check in report["commands"])
    assert all(0 < len(check["stdout_excerpt"]) <= 600 for check in report["commands"])

    page = as_md.read_text()
    assert page.startswith("# Compatibility of older flags\n\n4 of 4 passed; ")
    assert all(f"| {name} | pass | `holdfast " in page and f"\n## {name}\n" in page for name in NAMES)
    assert sorted(tmp_path.rglob("*")) == [tmp_path / "reports", as_json, as_md]  # nothing else was left behind


def test_a_check_that_fails_is_reported_and_exits_1(cli: Cli, tmp_path: Path) -> None:
    package = tmp_path / "holdfast"  # found first when commands run in this folder: a program with no such flags
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text("print('hello')")
    ran = cli("compat", "check", "--repo-root", tmp_path, "--json")
    assert ran.code == 1
    assert ran.json["summary"] == {"total": 4, "passed": 0, "failed": 4}
    assert {check["stdout_excerpt"] for check in ran.json["commands"]} == {"hello\n"}
    expected = f"--repo-root {tmp_path}/none: is not a folder; leave it out to use this one"
    assert cli("compat", "check", "--repo-root", tmp_path / "none").refusal == f"holdfast: error: {expected}\n"


@pytest.mark.parametrize("spelling", ["{} value", "{}=value", "{}=a=b", "{}="])
def test_an_alias_becomes_todays_flag_and_warns(spelling: str) -> None:
    assert list(ALIASES.items()) == DOCUMENTED
    for old, new in DOCUMENTED:
        words, warnings = rewrite_aliases(["optimize", *spelling.format(old).split(" ")])
        assert words == ["optimize", *spelling.format(new).split(" ")]
        assert warnings == [f"deprecated CLI alias '{old}' detected; use '{new}' instead"]


def test_an_alias_given_twice_warns_once_and_warnings_keep_their_order() -> None:
    words, warnings = rewrite_aliases(["--train-json", "--train-config", "a", "--train-config=b", "--", "--train-json"])
    today = ["--prompt-optimization-json", "--prompt-optimization-config", "a", "--prompt-optimization-config=b"]
    assert words == ["optimize", *today, "--", "--train-json"]  # behind -- nothing is a flag
    assert [warning.split("'")[1] for warning in warnings] == ["--train-json", "--train-config"]


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--help",
        "--version",
        "--bogus x",
        "runs --limit 3",
        # only optimize has older names: elsewhere they are as unknown as any other
        "runs --train-config x",
        "optimise --train-config x",
        "optimize --train-configs x",
        "optimize --config train-config",
        "optimize -- --train-config x",
        "-- --train-config --prompt-optimization-json",
        "runs --prompt-optimization-control-status",
    ],
)
def test_everything_else_stays_as_it_is(words: str) -> None:
    assert rewrite_aliases(words.split()) == (words.split(), [])


C = "--prompt-optimization-control-"


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        # without a command a documented flag means optimize, whatever it is the value of
        ("--model m --prompt-optimization-config f", "optimize --model m --prompt-optimization-config f"),
        ("--prompt-optimization-config=f", "optimize --prompt-optimization-config=f"),
        ("--prompt-optimization-bogus", "optimize --prompt-optimization-bogus"),
        ("--model runs --prompt-optimization-json", "optimize --model runs --prompt-optimization-json"),
        # those of control are commands to the newest run
        (f"{C}status", "control status newest"),
        (f"{C}json {C}pause {C}state-dir d", f"control pause newest --why by_{C}pause --json --store d/store.sqlite"),
        (f"{C}state-dir=d {C}status", "control status newest --store d/store.sqlite"),
        # one at a time, and nothing that is none: both are refused as unknown
        (f"{C}status {C}pause", f"control status newest {C}pause"),
        (f"{C}resume {C}principal x", f"control resume newest --why by_{C}resume {C}principal x"),
        (f"{C}rollback f", f"optimize {C}rollback f"),
        (f"{C}json", f"optimize {C}json"),
    ],
)
def test_documented_flags_need_no_command(words: str, becomes: str) -> None:
    assert rewrite_aliases(words.split()) == ([word.replace("by_", "by ") for word in becomes.split()], [])
