"""Checks: `doctor` examines an endpoint, `drill` causes accidents on a scratch store, `compat` runs the older flags."""

from __future__ import annotations

import asyncio
import json as codec
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.main import ALIASES, alias_warning
from holdfast.cli.options import CommandSet, Output, needing, written_whole
from holdfast.cli.report import ReportsOptions
from holdfast.cli.show import fold, near, progress, step
from holdfast.contracts.errors import BadInput
from holdfast.contracts.lines import folded, say
from holdfast.contracts.records import encode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.collect.doctor import Trainer
    from holdfast.collect.endpoint_probe import DoctorFinding


LOCAL = "local/"
DOCTOR_EPILOG = """Exit codes: 0 it is fit, 1 it is not or is not there, 2 nothing could be asked.

The key for an endpoint is taken from OPENAI_API_KEY. About 700 very short answers are asked for."""


def doctor(
    target: Annotated[str, Argument(metavar="URL|local/NAME", help="An endpoint, or a model of this machine.")],
    model: Annotated[
        str | None, Option(metavar="NAME", help="Which of the endpoint's models; without it, its first.")
    ] = None,
    tools: Annotated[bool, Option("--tools/--no-tools", help="Whether agents will call tools.")] = True,
    samples: Annotated[int, Option(metavar="N", min=8, max=1000, help="Answers to each opener.")] = 24,
    timeout: Annotated[float, Option(metavar="SECONDS", min=0.1, help="For each answer.")] = 60.0,
    system: Annotated[
        str | None, Option(metavar="TEXT", help="Instructions to ask under; models like sprout have usual ones.")
    ] = None,
) -> Output:
    """Send an endpoint a few hundred short questions and report whether its answers can be trained on."""
    from holdfast.cli.policy import usual_instructions

    with needing("serve"):
        from holdfast.collect.endpoint_probe import verdict
    if target.startswith(LOCAL):
        if model is not None:
            raise BadInput("--model", why=f"{target} names the model already", remedy="leave it out")
        with needing("learn"):
            from holdfast.policies.model import folder_of, is_foreign
        if system is None and not is_foreign(folder_of(target.removeprefix(LOCAL))):
            system = usual_instructions(tools=tools)
    how = {"with_tools": tools, "samples": samples, "system": system}
    if target.startswith(LOCAL):
        with serving(target.removeprefix(LOCAL)) as (url, name, trainer):
            asked, findings = asyncio.run(examined(url, name, timeout, trainer=trainer, **how))
    else:
        asked, findings = asyncio.run(examined(target, model, timeout, **how))
    decision = verdict(findings)
    about = {"endpoint": target, "model": asked, "system": system, "decision": decision}
    data = {**about, "findings": [asdict(finding) for finding in findings]}
    table = show.table(
        ("check", "state", "~found"), [(finding.check, finding.state.value, finding.detail) for finding in findings]
    )
    under = [] if system is None else [fold(f"asked under the instructions: {show.one_line(system)}")]
    fit = f"{asked} at {target}: {'fit' if decision.open else 'not fit'} to be trained on"
    reasons = [] if decision.open else [f"  {reason.code}: {reason.text}" for reason in decision.reasons]
    return Output(data, [table, "", *under, fit, *reasons], int(not decision.open))


async def examined(url: str, model: str | None, timeout_s: float, **how: Any) -> tuple[str, tuple[DoctorFinding, ...]]:
    """Examines the endpoint and returns the model's name with the findings."""
    from holdfast.collect.doctor import examine
    from holdfast.collect.endpoint_probe import CHECKS, EndpointProbe

    key = os.environ.get("OPENAI_API_KEY") if "trainer" not in how else None  # ours asks for none
    async with EndpointProbe(url, api_key=key, timeout_s=timeout_s) as probe:
        name = model or next(iter(await probe.models()), None)
        if name is None:
            raise BadInput(f"endpoint {url}", why="does not say which models it has", remedy="give --model NAME")
        with show.progress("examining", len(CHECKS)) as bar:
            findings = await examine(probe, name, heard=lambda check: bar(now=check), **how)
    return name, findings


@contextmanager
def serving(model: str) -> Iterator[tuple[str, str, Trainer]]:
    """A model of this machine behind an endpoint of its own, with what the trainer says of its answers."""
    from holdfast.cli.policy import open_model
    from holdfast.collect import endpoint

    with needing("learn"):
        from holdfast.learn.train import recompute_logprobs
        from holdfast.policies.model import Model, load
    with endpoint.listen("127.0.0.1", 0, token=None) as listening, open_model(model) as (complete, name, spell):
        net = load(Model(model), None)[0]
        server = endpoint.server(endpoint.app(complete, name=name, token_bytes=spell))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield (
                f"http://127.0.0.1:{listening.getsockname()[1]}/v1",
                name,
                lambda calls: recompute_logprobs(net, calls),
            )
        finally:
            server.should_exit = True
            thread.join()


EXCERPT = 600
compat_app = CommandSet("Check the older spellings of the command line.")


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


@compat_app.command("check")
def check_aliases(
    output_json: Annotated[Path | None, Option(metavar="FILE", help="Write the report there.")] = None,
    output_md: Annotated[Path | None, Option(metavar="FILE", help="Write it as Markdown there.")] = None,
    repo_root: Annotated[Path, Option(metavar="FOLDER", help="Where the commands are run.")] = Path(),
) -> Output:
    """Run the alias checks and report; exits 1 when one fails."""
    if not repo_root.is_dir():
        raise BadInput(f"--repo-root {repo_root}", why="is not a folder", remedy="leave it out to use this one")
    report = run_checks(repo_root.resolve())
    if output_json is not None:
        with written_whole(output_json) as file:
            file.write(codec.dumps(encode(report), indent=2) + "\n")
    if output_md is not None:
        with written_whole(output_md) as file:
            file.write(markdown(report))
    table = show.table(("check", "status", "~command"), [(c.name, c.status, c.cmd) for c in report.commands])
    passed = f"{report.summary.passed} of {report.summary.total} passed"
    return Output(report, [table, passed], int(report.summary.failed > 0))


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


def run_checks(root: Path) -> CompatReport:
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
    """Returns stderr after the warnings, one for each alias in order; None when they are missing."""
    warnings = "".join(f"{alias_warning(word)}\n" for word in words if word in ALIASES)
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
    """Checks that the older names are refused exactly as today's are, where a config is given beside them."""
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
        shlex.split(
            "--training-proxy-server --training-proxy-bind 127.0.0.1:8788 "
            "--training-proxy-upstream-url http://127.0.0.1:9 --training-proxy-state-dir {folder} "
            "--training-proxy-timeout-ms 30000 --train-config {folder}/config.json"
        ),
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
        *(f"| {command.name} | {command.status} | `{command.cmd}` |" for command in report.commands),
    ]
    for command in report.commands:
        lines += ["", f"## {command.name}", "", "```text", command.stdout_excerpt.rstrip().replace("```", "'''"), "```"]
    return "\n".join(lines) + "\n"


drill_app = CommandSet("Drills.")
DRILLS = Path(".holdfast/drills")
KINDS = {
    "crash": "Kill the driver of a run with kill -9, and resume the run.",
    "rollback": "Roll back a version that is answering callers.",
    "pause": "Pause, freeze, resume and cancel a run while it works.",
    "disk": "Let a run run out of disk space, and resume it.",
    "upgrade": "Upgrade an older store, kill the upgrade midway, and finish it.",
}
SOAK = "Collect, learn, serve and look for hours, with kills, pauses, full disks and clocks that jump."
EXITS = "On a scratch store, under load, with our own commands. Exits 1 where a check does not hold."
Quick = Annotated[bool, Option("--quick", help="A smaller one, of half a minute.")]
Out = Annotated[
    Path | None, Option("--out", metavar="FOLDER", help=f"A new folder for all of it; else one in {DRILLS}.")
]


def _command(kind: str) -> Callable[..., Output]:
    def drill(quick: Quick = False, out: Out = None) -> Output:
        return _perform(kind, quick, out)

    return drill


for _kind, _help in KINDS.items():
    drill_app.command(_kind, help=f"{_help}\n\n{EXITS}")(_command(_kind))


@drill_app.command("soak", help=f"{SOAK}\n\n{EXITS}")
def soak(
    minutes: Annotated[float, Option(metavar="N", min=0.5, help="How long; an hour or more tells of memory.")] = 120.0,
    cpu: Annotated[
        float | None,
        Option(metavar="SHARE", min=0.05, max=64.0, help="Rest between runs: at most this share of a core on average."),
    ] = None,
    quick: Quick = False,
    out: Out = None,
) -> Output:
    return _perform("soak", quick, out, minutes, cpu)


def _perform(kind: str, quick: bool, out: Path | None, minutes: float = 0.0, cpu_share: float | None = None) -> Output:
    from holdfast.operate.drills import perform
    from holdfast.operate.playbook import validate

    folder = _folder(kind, out)
    with show.progress(f"drill {kind}", None) as advance:
        began = time.monotonic()
        artifact = perform(
            kind,
            folder,
            quick=quick,
            clock=time.time,
            say=lambda text: advance(now=text),
            practice=_practice(),
            minutes=minutes,
            cpu_share=cpu_share,
        )
        took_s = time.monotonic() - began
        payload, problems = validate(artifact)
    again = ["compute it all again:", *step(f"holdfast control drill check {near(artifact)}")]
    data = {**payload, "artifact": artifact, "took_s": round(took_s, 1), "problems": problems}
    lines = [*_lines(payload, problems, f" in {show.span_of_time(took_s)}"), *again]
    return Output(data, "\n".join(lines), int(bool(problems)))


def _practice() -> dict[str, Any]:
    """A run of the tool-use workload that learns."""
    from holdfast.workloads.tooluse.tasks import generate, to_input

    asked = {"sampling": {"temperature": 1.0, "max_tokens": 60}, "max_turns": 4}
    return {
        "agent": "holdfast.workloads.tooluse.agent:agent",
        "model": "local/sprout-weak",
        "optimize": [{**to_input(task), **asked} for task in generate("train", 0, 8)],
        "validate": [{**to_input(task), **asked} for task in generate("test", 0, 16)],
    }


@drill_app.command("check")
def check_drill(
    file: Annotated[
        Path, Argument(metavar="FILE", help="A drill's playbook.json, or the folder it lies in; of several the newest.")
    ],
) -> Output:
    """Recompute a drill from its store and ledger. Exits 1 when a check or a figure differs."""
    from holdfast.operate.playbook import NAME, validate

    path = file
    if file.is_dir() and not (path := file / NAME).exists() and (several := list(file.glob(f"*/{NAME}"))):
        path = max(several, key=lambda path: (path.stat().st_mtime, path.parent.name))
        say(f"{show.count(len(several), 'drill')} in {near(file)}; this is the newest, {path.parent.name}")
    with show.progress("computing again", None):
        payload, problems = validate(path)
    last = "true, computed again from its store and ledger" if not problems else "not true, or not passed"
    lines = [*_lines(payload, problems, ""), last]
    return Output({"file": path, "ok": not problems, "problems": problems}, "\n".join(lines), int(bool(problems)))


@drill_app.command()
def gate(
    at: ReportsOptions,
    drills: Annotated[Path, Option(metavar="FOLDER", help="Where drills lie.")] = DRILLS,
    runbook: Annotated[Path | None, Option(metavar="FILE", help="How it is operated, for people.")] = None,
    incidents: Annotated[Path | None, Option(metavar="FILE", help="What to do when it fails, for people.")] = None,
    out: Annotated[Path | None, Option(metavar="FOLDER", help="Write the evidence bundle there.")] = None,
) -> Output:
    """The exit gate: proofs, safety, drills and runbooks.

    All of it is computed again: nothing is taken on trust. Exits 1 while it is closed.
    """
    from holdfast.operate.exitgate import gather, name

    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out}", why="is a file", remedy="name a folder")
    with show.progress("computing again", None):
        bundle = gather(at.folder, drills, runbook=runbook, incidents=incidents, now=time.time())
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / name(bundle)).write_text(codec.dumps(bundle, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    where = [] if out is None else [f"the evidence bundle lies in {near(out)}"]  # its name would be too wide
    return Output(bundle, "\n".join([*_gate_lines(bundle), *where]), int(not bundle["decision"]["pass"]))


def _folder(kind: str, out: Path | None) -> Path:
    """Makes the folder; one that holds something is refused."""
    folder = out or DRILLS / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--out {folder}", why="is there and not empty", remedy="name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder}", why=error.strerror or str(error), remedy="name a place to write") from None
    return folder.absolute()


def _lines(told: Mapping[str, Any], problems: tuple[str, ...], took: str) -> Iterator[str]:
    """Describes a drill on one page of 80 columns."""
    outcome = "passed" if not problems else "FAILED"
    yield f"{told.get('drill', '?')} drill {told.get('run_id', '?')}: {outcome}{took}"
    for one in told.get("checks") or ():
        yield from _check_lines(one["name"], one["holds"], one["found"])
    if measured := told.get("measured"):
        yield from folded("measured: " + ", ".join(f"{name} {value:.3f}" for name, value in measured.items()))
    for problem in problems:
        yield from folded(f"- {show.one_line(problem)}", "  ")


def _check_lines(name: str, holds: bool, found: object) -> list[str]:
    return [f"  {'yes' if holds else 'NO ':<3}  {name}", *folded(show.one_line(found), "         ")]


def _gate_lines(bundle: Mapping[str, Any]) -> Iterator[str]:
    operations, benchmark, safety = bundle["operations"], bundle["benchmark"], bundle["safety"]
    counts = "{pass_reports} pass, {fail_reports} fail, {invalid_files} invalid".format(**benchmark)
    regression, codes = safety["observed_regression"], bundle["decision"]["reason_codes"]
    seen = "no true proof" if regression is None else f"regression {regression:+.4f}"
    shown = [f"{kind}: {why[0]}" for kind, why in operations["problems"].items()]
    refs = bundle["runbooks"].values()
    rows = [
        ("benchmark", benchmark["pass"], "; ".join((counts, *benchmark["reason_codes"]))),
        ("safety", safety["pass"], "; ".join((seen, *safety["reason_codes"]))),
        ("operations", operations["pass"], "; ".join(shown) or "pause, rollback and recovery are proved"),
        ("runbooks", None not in refs, "; ".join(ref or "missing" for ref in refs)),
    ]
    yield f"exit gate: {'closed' if codes else 'open'}"
    for row in rows:
        yield from _check_lines(*row)
    if codes:
        yield from folded("reasons  " + ", ".join(codes))
