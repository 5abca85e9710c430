"""`holdfast drill …`: accidents for real on a scratch store, their artifacts computed again, and the exit gate."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.main import PLAIN, say
from holdfast.cli.onward import folded, near, step
from holdfast.cli.options import DEFAULT_STORE, Json, StoreAt
from holdfast.cli.report_files import ReportsAt, reports_folder
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from holdfast.operate.drill.exitgate import Bundle

app = typer.Typer(help="Drills.", add_completion=False, no_args_is_help=True, **PLAIN)
DRILLS = Path(".holdfast/drills")
KINDS = {
    "crash": "Kill the driver of a run with -9, and take the run up.",
    "rollback": "Take a version back that is answering callers.",
    "pause": "Pause, freeze, resume and cancel a run while it works.",
    "disk": "Let a run go out of disk space, and take it up.",
    "upgrade": "Upgrade an earlier store, killed on the way, and go on.",
}
EXITS = "On a scratch store, under load, with our own commands. Exits 1 where a check does not hold."
Quick = Annotated[bool, typer.Option("--quick", help="A smaller one, of half a minute.")]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="FOLDER", help=f"A new folder for all of it; else one in {DRILLS}.")
]


def _command(kind: str) -> Callable[..., None]:
    def drill(quick: Quick = False, out: Out = None, json: Json = False) -> None:
        _perform(kind, quick, out, json)

    return drill


for _kind, _help in KINDS.items():
    app.command(_kind, help=f"{_help}\n\n{EXITS}")(_command(_kind))


def _perform(kind: str, quick: bool, out: Path | None, json: bool) -> None:
    from holdfast.operate.drill.drills import perform
    from holdfast.operate.drill.playbook import validate

    folder = _folder(kind, out)
    with show.progress(f"drill {kind}", None) as advance:
        began = time.monotonic()
        artifact = perform(
            kind, folder, quick=quick, clock=time.time, say=lambda text: advance(now=text), practice=_practice()
        )
        took_s = time.monotonic() - began
        told, problems = validate(artifact)
    if json:
        show.print_json({**told, "artifact": str(artifact), "took_s": round(took_s, 1), "problems": list(problems)})
    else:
        _print(told, problems, f" in {show.span_of_time(took_s)}")
        print("\n".join(["compute it all again:", *step(f"holdfast drill check {near(artifact)}")]))
    raise typer.Exit(1 if problems else 0)


def _practice() -> dict[str, Any]:
    """A run of the tool-use workload that learns."""
    from holdfast.workloads.tooluse.tasks import generate, to_input

    asked = {"sampling": {"temperature": 1.0, "max_tokens": 60}, "max_turns": 4}
    return {
        "agent": "holdfast.workloads.tooluse.agent:agent",
        "model": "local/sprout-weak",
        "optimize": [{**to_input(one), **asked} for one in generate("train", 0, 8)],
        "validate": [{**to_input(one), **asked} for one in generate("test", 0, 16)],
    }


@app.command()
def check(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="A drill's playbook.json, or the folder it lies in; of several the newest."
        ),
    ],
    json: Json = False,
) -> None:
    """Compute a drill again, from its store and ledger. Exits 1 where a check or a figure is not so."""
    from holdfast.operate.drill.playbook import NAME, validate

    path = file
    if file.is_dir() and not (path := file / NAME).exists() and (several := list(file.glob(f"*/{NAME}"))):
        path = max(several, key=lambda one: (one.stat().st_mtime, one.parent.name))
        say(f"{show.count(len(several), 'drill')} in {near(file)}; this is the newest, {path.parent.name}")
    with show.progress("computing again", None):
        told, problems = validate(path)
    if json:
        show.print_json({"file": str(path), "ok": not problems, "problems": list(problems)})
    else:
        _print(told, problems, "")
        print("true, computed again from its store and ledger" if not problems else "not true, or not passed")
    raise typer.Exit(1 if problems else 0)


@app.command()
def gate(
    drills: Annotated[Path, typer.Option("--drills", metavar="FOLDER", help="Where drills lie.")] = DRILLS,
    runbook: Annotated[
        Path | None, typer.Option("--runbook", metavar="FILE", help="How it is operated, for people.")
    ] = None,
    incidents: Annotated[
        Path | None, typer.Option("--incidents", metavar="FILE", help="What to do when it fails, for people.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FOLDER", help="Write the evidence bundle there.")
    ] = None,
    reports: ReportsAt = None,
    store: StoreAt = DEFAULT_STORE,
    json: Json = False,
) -> None:
    """The exit gate: proofs, safety, drills and runbooks.

    All of it is computed again: nothing is taken on trust. Exits 1 while it is closed.
    """
    from holdfast.operate.drill.exitgate import gather, name

    if out is not None and out.exists() and not out.is_dir():
        raise BadInput(f"--out {out}", why="is a file", remedy="name a folder")
    with show.progress("computing again", None):
        shelf = reports_folder(reports, store)
        bundle, told = gather(shelf, drills, runbook=runbook, incidents=incidents, now=time.time())
    if out is not None:
        from json import dumps

        out.mkdir(parents=True, exist_ok=True)
        (out / name(bundle)).write_text(dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    if json:
        show.print_json(told)
    else:
        _print_gate(bundle)
        if out is not None:
            print(f"the evidence bundle lies in {near(out)}")  # its name alone would be wider than the page
    raise typer.Exit(1 if bundle.reason_codes else 0)


def _folder(kind: str, out: Path | None) -> Path:
    """Empty, and there."""
    folder = out or DRILLS / f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"--out {folder}", why="is there and not empty", remedy="name a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--out {folder}", why=error.strerror or str(error), remedy="name a place to write") from None
    return folder.absolute()


def _print(told: Mapping[str, Any], problems: tuple[str, ...], took: str) -> None:
    """One page of 80 columns."""
    outcome = "passed" if not problems else "FAILED"
    print(f"{told.get('drill', '?')} drill {told.get('run_id', '?')}: {outcome}{took}")
    for one in told.get("checks") or ():
        print(f"  {'yes' if one['holds'] else 'NO ':<3}  {one['name']}")
        print("\n".join(folded(show.one_line(one["found"]), "         ")))
    if measured := told.get("measured"):
        figures = ", ".join(f"{name} {value:.3f}" for name, value in measured.items())
        print("\n".join(folded(f"measured: {figures}")))
    for problem in problems:
        print("\n".join(folded(f"- {show.one_line(problem)}", "  ")))


def _print_gate(bundle: Bundle) -> None:
    operations, benchmark, safety = bundle.operations, bundle.benchmark, bundle.safety
    counts = f"{benchmark.pass_reports} pass, {benchmark.fail_reports} fail, {benchmark.invalid_files} invalid"
    seen = "no true proof" if safety.observed_regression is None else f"regression {safety.observed_regression:+.4f}"
    shown = [f"{kind}: {why[0]}" for kind, why in operations.problems.items()]
    refs = (bundle.operator_runbook_ref, bundle.incident_playbook_ref)
    rows = [
        ("benchmark", benchmark.passes, "; ".join((counts, *benchmark.reason_codes))),
        ("safety", safety.passes, "; ".join((seen, *safety.reason_codes))),
        ("operations", operations.passes, "; ".join(shown) or "pause, rollback and recovery are proved"),
        ("runbooks", None not in refs, "; ".join(one or "missing" for one in refs)),
    ]
    print(f"exit gate: {'closed' if bundle.reason_codes else 'open'}")
    for title, holds, found in rows:
        print(f"  {'yes' if holds else 'NO ':<3}  {title}")
        print("\n".join(folded(show.one_line(found), "         ")))
    if bundle.reason_codes:
        print("\n".join(folded("reasons  " + ", ".join(bundle.reason_codes))))
