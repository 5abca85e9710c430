"""`holdfast compat check`: the older names of flags really work, really warn, and anything else really fails."""

from __future__ import annotations

import json as codec
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import typer

from holdfast.cli.aliases import ALIASES, warning
from holdfast.cli.options import Json

EXCERPT = 600
app = typer.Typer(
    help="Older spellings of the command line.", add_completion=False, no_args_is_help=True, rich_markup_mode=None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatCheck:
    """One command line that was run, and whether it did what the documentation says."""

    name: str
    cmd: str
    status: Literal["pass", "fail"]
    stdout_excerpt: str  # of stdout and stderr, at most 600 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatSummary:
    """How many there were."""

    total: int
    passed: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CompatReport:
    """Evidence that the older names of flags still do what they did."""

    SCHEMA: ClassVar[int] = 1

    generated_at: str  # ISO 8601, UTC
    repo_root: str
    commands: tuple[CompatCheck, ...]
    summary: CompatSummary


@app.callback()
def group() -> None:
    """Older spellings of the command line."""


@app.command()
def check(
    output_json: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the report there.")] = None,
    output_md: Annotated[Path | None, typer.Option(metavar="FILE", help="Write it as Markdown there.")] = None,
    repo_root: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the commands are run.")] = Path(),
    json: Json = False,
) -> None:
    """Run the alias checks and report; exits 1 when one fails."""
    from holdfast.cli import show
    from holdfast.cli.files import written_whole
    from holdfast.contracts.errors import BadInput
    from holdfast.contracts.records import encode

    if not repo_root.is_dir():
        raise BadInput(f"--repo-root {repo_root}", why="is not a folder", remedy="leave it out to use this one")
    report = run_checks(repo_root.resolve())
    data = encode(report)
    if output_json is not None:
        with written_whole(output_json) as file:
            file.write(codec.dumps(data, indent=2) + "\n")
    if output_md is not None:
        with written_whole(output_md) as file:
            file.write(markdown(report))
    if json:
        show.print_json(data)
    else:
        show.print_table(("check", "status", "~command"), [(c.name, c.status, c.cmd) for c in report.commands])
        print(f"{report.summary.passed} of {report.summary.total} passed")
    if report.summary.failed:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


def run_checks(root: Path) -> CompatReport:
    from holdfast.cli.show import progress

    done = []
    task = {"prompt": "What is 2 + 2?", "expected": "4"}
    config = {"optimize": [task], "agent": "holdfast.workloads.arithmetic:agent"}
    with progress("checking", len(CHECKS)) as advance, tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(codec.dumps(config), encoding="utf-8")
        for name, words, holds in CHECKS:
            given = [word.format(folder=folder) for word in words]
            ran = _run(given, root)
            status: Literal["pass", "fail"] = "pass" if holds(ran, given, root) else "fail"
            cmd = shlex.join(["holdfast", *given])
            done.append(CompatCheck(name=name, cmd=cmd, status=status, stdout_excerpt=(ran.out + ran.err)[:EXCERPT]))
            advance(now=name)
    passed = sum(check.status == "pass" for check in done)
    return CompatReport(
        generated_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        repo_root=str(root),
        commands=tuple(done),
        summary=CompatSummary(total=len(done), passed=passed, failed=len(done) - passed),
    )


def _run(words: list[str], root: Path) -> Ran:
    command = [sys.executable, "-m", "holdfast.cli", *words]
    ran = subprocess.run(command, cwd=root, capture_output=True, text=True, encoding="utf-8", timeout=120)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def _warned(ran: Ran, words: list[str]) -> str | None:
    """What stderr says behind the warnings, one for each alias in order; None when they are not there."""
    warnings = "".join(f"{warning(word)}\n" for word in words if word in ALIASES)
    return ran.err.removeprefix(warnings) if ran.err.startswith(warnings) else None


def _runs_as_documented(ran: Ran, words: list[str], root: Path) -> bool:
    """The config is read, the store is written, the report is JSON."""
    if ran.code != 0 or _warned(ran, words) != "":
        return False
    report = codec.loads(ran.out)
    return bool(
        report["run_state"] == "completed" and report["succeeded"] == 1 and Path(report["store_path"]).is_file()
    )


def _refused_as_canonical(ran: Ran, words: list[str], root: Path) -> bool:
    """With a config beside it, which is an error: the older names must be refused exactly as today's are."""
    today = _run([ALIASES.get(word, word) for word in words], root)
    told = "they cannot be given together" in ran.err
    return told and (ran.code, ran.out, _warned(ran, words)) == (2, today.out, today.err)


def _fails_closed(ran: Ran, words: list[str], root: Path) -> bool:
    return ran.code == 2 and f"No such option: {words[0]}" in ran.err and not ran.out


def _tells_aliases(ran: Ran, words: list[str], root: Path) -> bool:
    lines = [line.split() for line in ran.out.splitlines()]
    return ran.code == 0 and all([old, "now", new] in lines for old, new in ALIASES.items())


Holds = Callable[[Ran, list[str], Path], bool]
CHECKS: tuple[tuple[str, list[str], Holds], ...] = (
    (
        "legacy_train_alias",
        ["--train-config", "{folder}/config.json", "--train-store-sqlite", "{folder}/store.sqlite", "--train-json"],
        _runs_as_documented,
    ),
    (
        "legacy_proxy_alias",
        [
            "--training-proxy-server",
            *("--training-proxy-bind", "127.0.0.1:8788"),
            *("--training-proxy-upstream-url", "http://127.0.0.1:9"),
            *("--training-proxy-state-dir", "{folder}"),
            *("--training-proxy-timeout-ms", "30000"),
            *("--train-config", "{folder}/config.json"),
        ],
        _refused_as_canonical,
    ),
    ("unknown_flag_fail_closed", ["--train-unknown", "--train-config", "{folder}/config.json"], _fails_closed),
    ("docs_policy_discoverability", ["optimize", "--help"], _tells_aliases),
)


def markdown(report: CompatReport) -> str:
    """The report as a page."""
    passed = report.summary.passed
    lines: list[str] = [
        "# Compatibility of older flags",
        "",
        f"{passed} of {report.summary.total} passed; run in `{report.repo_root}`, {report.generated_at}.",
        "",
        "| check | status | command |",
        "|---|---|---|",
        *(f"| {check.name} | {check.status} | `{check.cmd}` |" for check in report.commands),
    ]
    for check in report.commands:
        lines += ["", f"## {check.name}", "", "```text", check.stdout_excerpt.rstrip().replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"
