"""The alias checks of seed 002, really run, and their report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema

from tests.cli.conftest import Cli

NAMES = ["legacy_train_alias", "legacy_proxy_alias", "unknown_flag_fail_closed", "docs_policy_discoverability"]


def test_every_check_passes_and_the_report_is_written_as_json_and_markdown(cli: Cli, tmp_path: Path) -> None:
    as_json, as_md = tmp_path / "reports" / "compat.json", tmp_path / "reports" / "compat.md"
    ran = cli("compat", "check", "--output-json", as_json, "--output-md", as_md, "--repo-root", tmp_path)
    assert ran.code == 0, ran.out + ran.err
    assert [line.split()[:3] for line in ran.lines[1:5]] == [[name, "pass", "holdfast"] for name in NAMES]
    assert ran.lines[-1] == "4 of 4 passed"
    assert max(map(len, ran.lines)) <= 80

    report = json.loads(as_json.read_text())
    jsonschema.validate(report, cli("schema", "compat-report").json)
    assert report["schema_version"] == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", report["generated_at"])
    assert report["repo_root"] == str(tmp_path)
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


def test_a_root_that_is_no_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    ran = cli("compat", "check", "--repo-root", tmp_path / "none")
    expected = f"--repo-root {tmp_path}/none: is not a folder; leave it out to use this one"
    assert (ran.code, ran.err) == (2, f"holdfast: error: {expected}\n")
