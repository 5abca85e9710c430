"""`holdfast prove targets`: the five targets of the plan, each measured against a baseline that was fixed beforehand.

What is measured is the business of `workloads.targets`, and told in docs/targets.md.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from holdfast.cli import show
from holdfast.cli.options import Output, StoreOptions, Text, check_torch, store_flags
from holdfast.cli.show import count
from holdfast.contracts.errors import BadInput
from holdfast.contracts.lines import folded

if TYPE_CHECKING:
    from holdfast.workloads.targets import TargetResult

SEED = 0  # of the bootstrap: the same runs always give the same page
NAMES = "adoption, thinking, hacking, completion, evaluation"


def targets(
    at: StoreOptions,
    quick: Annotated[bool, Option("--quick", help="Minutes instead of most of an hour; proves little.")] = False,
    only: Annotated[list[str] | None, Option(metavar="NAME", help=f"{NAMES}; may be repeated.")] = None,
    seeds: Annotated[
        int | None,
        Option(metavar="N", min=2, max=100, help="Every arm is run with each.", show_default="5; with --quick 2"),
    ] = None,
    output: Annotated[Path | None, Option(metavar="FOLDER", help="For the page; else beside the store.")] = None,
) -> Output:
    """Measure the five targets of the plan, with intervals and a page.

    Each seed and arm is a run of its own: Ctrl-C stops, a second call goes on. A target that is not met is told so,
    and is no error.
    """
    check_torch("prove targets")
    from holdfast.workloads.targets import QUICK_SEEDS, SEEDS, TARGETS, target_named, trials_of

    if output is not None and output.exists() and not output.is_dir():
        raise BadInput(f"--output {output}", why="is a file", remedy="name a folder")
    chosen = [target_named(name) for name in dict.fromkeys(only or TARGETS)]
    many = seeds or (QUICK_SEEDS if quick else SEEDS)
    trials = trials_of(chosen, many, is_quick=quick)
    again = ["holdfast", "prove", "targets", *(["--quick"] if quick else [])]
    again += [word for name in only or () for word in ("--only", name)]
    again += ([] if seeds is None else ["--seeds", str(seeds)]) + ([] if output is None else ["--output", str(output)])
    with at.open() as opened:
        found = _measured(opened, trials, shlex.join(again) + store_flags(opened.url, opened.project))
        folder = opened.reports if output is None else output
    results = _weighed(chosen, found)
    record = {target.name: asdict(target) for target in results} | {"is_quick": quick, "seeds": many}
    files = _keep(folder, record, results, is_quick=quick)
    data = record | {"files": [str(file) for file in files]}
    return Output(data, _lines(results, files, is_quick=quick))


def _measured(store: Any, trials: Sequence[Any], again: str) -> list[Any]:
    """Runs every trial. Exits where one stopped, and says how to go on."""
    from holdfast.cli.drive import drive
    from holdfast.workloads.targets import KIND, outcome, spec_for
    from holdfast.workloads.trials import TrialKind, run_all

    def title(trial: Any) -> str:
        return f"{trial.target}, seed {trial.seed}" + (f", {trial.arm}" if trial.arm != "learning" else "")

    kind = TrialKind(kind=KIND, spec_for=spec_for, outcome=outcome, title=title)
    found, code = run_all(store, trials, kind, drive, lambda line: print(line, file=sys.stderr, flush=True))
    if code:
        print(f"{len(found)} of {len(trials)} runs are done; to go on:\n  {again}", file=sys.stderr)
        raise typer.Exit(code)
    return found


def _weighed(chosen: Sequence[Any], found: Sequence[Any]) -> list[TargetResult]:
    import numpy as np

    from holdfast.workloads.targets import weigh

    return [weigh(one, found, rng=np.random.default_rng(SEED)) for one in chosen]


def _keep(folder: Path, record: dict[str, Any], results: Sequence[TargetResult], *, is_quick: bool) -> list[Path]:
    from json import dumps

    from holdfast.store.artifacts import write_atomically
    from holdfast.workloads.targets import page

    folder.mkdir(parents=True, exist_ok=True)
    table, sheet = folder / "targets.json", folder / "targets.html"
    write_atomically(table, (dumps(record, indent=2, allow_nan=False) + "\n").encode())
    write_atomically(sheet, page(results, is_quick=is_quick).encode())
    return [sheet, table]


def _lines(results: Sequence[TargetResult], files: Sequence[Path], *, is_quick: bool) -> Iterator[Text]:
    """At most 80 columns."""
    from holdfast.workloads.targets import TARGETS, shown

    yield f"{count(results[0].seeds, 'seed')}, 95 % intervals over seeds and tasks\n"
    rows = []
    for target_result in results:
        target = TARGETS[target_result.name]
        value, low, high, asked = (
            shown(target, effect)
            for effect in (target_result.value, target_result.low, target_result.high, target_result.target)
        )
        rates = f"{target_result.baseline:.3g} → {target_result.after:.3g}"
        rows.append(
            (target_result.name, asked, value, f"{low} to {high}", rates, "met" if target_result.met else "not met")
        )
    yield show.table(("target", ">asked", ">measured", "interval", "from, to", ""), rows)
    yield ""
    for target_result in results:
        target = TARGETS[target_result.name]
        lost = (
            ""
            if target_result.loss is None
            else f"; success lost {target_result.loss['value']:+.3f} (at most {target_result.loss['high']:+.3f})"
        )
        yield from folded(f"{target_result.name}: {target.title}; {target.baseline} → {target.changed}{lost}", "  ")
    if is_quick:
        yield "\n(so little shows that everything runs; what is claimed rests on the whole run)"
    for file in files:
        yield f"  {file}"
