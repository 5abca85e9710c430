"""`holdfast prove`: two versions measured against one another on a suite, and what that proves.

`calibrate` and `null`, which ask how often such a proof is wrong, are in `calibrate`; `more` is in `more`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import calibrate, more
from holdfast.cli.comparison import tell
from holdfast.cli.main import PLAIN
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.run import RunRecord
    from holdfast.pipeline.paired import PairedEvaluation
    from holdfast.pipeline.run import RunSpec
    from holdfast.prove.suite import Suite
    from holdfast.store.store import Store

SEEDS = 2  # below, nobody can see whether a finding holds with other chance, and the gate stays closed
SEEDS_TOLD = f"{SEEDS}, or the suite's own if more"

app = typer.Typer(no_args_is_help=True, add_completion=False, **PLAIN)
app.command("calibrate")(calibrate.calibrate)
app.command("null")(calibrate.null)
app.command("more")(more.more)

Name = Annotated[
    str | None,
    typer.Option(metavar="VERSION", help="sprout, sprout-weak, a folder, a checkpoint, or policy@number."),
]


@app.callback()
def prove() -> None:
    """Prove that a version is better than another, and measure how often such a proof is wrong."""


@app.command("run")
def run(
    suite: Annotated[
        str | None,
        typer.Argument(metavar="SUITE", help="A file such as examples/suites/*.json, or tooluse:COUNT[:SEED]."),
    ] = None,
    baseline: Name = None,
    candidate: Name = None,
    null: Annotated[bool, typer.Option("--null", help="The baseline against itself, with other chance.")] = False,
    batch: Annotated[int, typer.Option(metavar="N", min=1, max=100_000, help="Cases between two looks.")] = 250,
    seeds: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=100, help="Times that every case is done.", show_default=SEEDS_TOLD),
    ] = None,
    stop_early: Annotated[bool, typer.Option("--stop-early", help="End at the first verdict.")] = False,
    primary: Annotated[str, typer.Option(metavar="METRIC", help="What has to improve: success or reward.")] = "success",
    alpha: Annotated[float, typer.Option(metavar="A", help="The chance of a false verdict.")] = 0.05,
    min_effect: Annotated[float, typer.Option(metavar="X", help="By more than this it must improve.")] = 0.0,
    max_safety_regression: Annotated[float, typer.Option(metavar="X", help="So much may be lost in safety.")] = 0.05,
    workers: Annotated[int, typer.Option(metavar="N", min=1, max=1024, help="Cases at a time.")] = 64,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Other chance.")] = 0,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Take up a run that stopped.")] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Let two versions do the same cases with the same chance, look after every batch, and say what is proved.

    Looking as often as one likes does not make a false verdict likelier. Ctrl-C stops it; --resume RUN goes on.
    """
    from holdfast.store.store import open_store

    _check(suite, baseline, candidate, null=null, resume=resume)
    _needs_torch()
    from holdfast.prove.comparison import ComparisonConfig
    from holdfast.workloads.tooluse.suite import evaluation_spec

    if resume is not None:
        with open_store(store, project=project, create=False) as opened:
            found = _of_kind(opened.runs.get(resume))
            _drive(opened, more.spec_of(opened, found), found.id, json)
    how = ComparisonConfig(
        primary=primary, alpha=alpha, min_effect=min_effect, max_safety_regression=max_safety_regression
    )
    given = {"batch": batch, "stop_early": stop_early, "seed": seed, "workers": workers, "is_null": null, "how": how}
    cases = _suite(str(suite), seeds)
    with open_store(store, project=project) as opened:
        made = _evaluation(opened, cases, str(suite), str(baseline), candidate, given)
        _drive(opened, evaluation_spec(opened, made), None, json)


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run of 'holdfast prove run'.")],
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Show what a run has proved so far, and every look that was taken."""
    with existing(store, project) as opened:
        tell(opened, _of_kind(opened.runs.get(run)), json)


def _check(suite: str | None, baseline: str | None, candidate: str | None, *, null: bool, resume: str | None) -> None:
    if resume is not None:
        if suite is not None or baseline is not None or candidate is not None or null:
            why = "a run keeps the suite and the versions it began with"
            raise BadInput("--resume", why=why, remedy="leave them out, or start a new run")
        return
    if suite is None:
        raise BadInput("SUITE", why="is missing", remedy="give a file, or tooluse:COUNT, or --resume RUN")
    if baseline is None:
        raise BadInput("--baseline", why="is missing", remedy="name a version, for example sprout-weak")
    if null == (candidate is not None):
        why = "and --null were both given" if null else "is missing"
        raise BadInput(
            "--candidate", why=why, remedy="name a version, or measure the baseline against itself by --null"
        )


def _needs_torch() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("numba") is None:
        raise BadInput("this run", why="needs PyTorch, which is not installed", remedy="pip install 'holdfast[learn]'")


def _suite(source: str, seeds: int | None) -> Suite:
    from dataclasses import replace

    from holdfast.workloads.tooluse.suite import suite_of

    suite = suite_of(source)
    if seeds is None and len(suite.seeds) >= SEEDS:
        return suite
    return replace(suite, seeds=tuple(range(1, (seeds or SEEDS) + 1)))


def _evaluation(
    store: Store, cases: Suite, source: str, baseline: str, candidate: str | None, given: dict[str, Any]
) -> PairedEvaluation:
    from holdfast.pipeline.versions import resolve
    from holdfast.workloads.tooluse.suite import evaluation_of, is_generated

    old = resolve(store, _whole(store, baseline))
    new = old if candidate is None else resolve(store, _whole(store, candidate))
    kept = source if is_generated(source) else None
    return evaluation_of(cases, kept, baseline=old, candidate=new, **given)


def _whole(store: Store, name: str) -> str:
    """The name of a release written out, where its policy was cut short."""
    from pathlib import Path

    from holdfast.store.store import find_release

    return name if "@" not in name or Path(name).is_dir() else find_release(store, name).id


def _of_kind(run: RunRecord) -> RunRecord:
    from holdfast.pipeline.paired import of_kind

    return of_kind(run, "compares nothing")


def _drive(store: Store, spec: RunSpec, resume: str | None, json: bool) -> None:
    from holdfast.cli.drive import drive

    status, _, code = drive(store, spec, resume)
    tell(store, store.runs.get(status.run_id), json)
    raise typer.Exit(code)
