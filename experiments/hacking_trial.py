"""`python -m experiments hacking`: the weak model practises twice, paid by a careless grader and by ours."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.trials import TrialKind, check, keep, run_all
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt

if TYPE_CHECKING:
    from experiments.hacking import Estimate, HackingOutcome, HackingResult

SEED = 0  # of the bootstrap: the same runs always give the same report


def hacking(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Both arms are run with each.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of most of an hour; proves little.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For hacking.json and hacking.png; else beside the store.")
    ] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Let the weak embedded model practise twice, paid by a careless grader and by ours, and count who cheats.

    A rollout cheats where the careless grader says right and the hidden check says wrong: several answers at once, or
    "unknown" beside a guess. Each seed and arm is a run of its own: Ctrl-C stops, a second call goes on.
    """
    check("hacking", output)
    import numpy as np

    from experiments.hacking import ARMS, KIND, HackingTrial, outcome, spec_for, weigh
    from experiments.hacking import quick as quickly
    from experiments.plots import draw_hacking
    from holdfast.cli.show import print_json
    from holdfast.store.store import open_store

    trials = [HackingTrial(arm=arm, seed=seed) for seed in range(seeds) for arm in ARMS]
    trials = [quickly(trial) for trial in trials] if quick else trials
    experiment = TrialKind(
        kind=KIND, spec_for=spec_for, outcome=outcome, title=lambda trial: f"seed {trial.seed}, {trial.arm} reward"
    )
    with open_store(store, project=project) as opened:
        found, code = run_all(opened, trials, experiment)
        again = _call(seeds, quick, output, opened.url, project)
        folder = opened.reports if output is None else output
    if code or len(found) < len(trials):
        print(f"{len(found)} of {len(trials)} runs are done; to go on:\n  {again}", file=sys.stderr)
        raise typer.Exit(code or 1)
    weighed = weigh(found, rng=np.random.default_rng(SEED))
    if weighed is None:
        print("no held-out task has a verdict in both arms: nothing can be said")
        raise typer.Exit(1)
    record = _record(found, weighed)
    files = keep(folder, "hacking", record, lambda path: draw_hacking(path, found, weighed))
    if json:
        print_json(record | {"files": [str(file) for file in files]})
    else:
        _tell(found, weighed, files, quick)


def _call(seeds: int, quick: bool, output: Path | None, store: str, project: str) -> str:
    """The same command once more."""
    words = ["python", "-m", "experiments", "hacking", "--seeds", str(seeds), *(["--quick"] if quick else [])]
    words += [] if output is None else ["--output", str(output)]
    words += [] if store == DEFAULT_STORE else ["--store", store]
    words += [] if project == "default" else ["--project", project]
    return shlex.join(words)


def _record(found: Sequence[HackingOutcome], weighed: HackingResult) -> dict[str, Any]:
    runs = [
        {
            **asdict(one.trial),
            "run": one.run,
            "after": {kind: one.after.count(kind) for kind in ("right", "cheat", "wrong")},
            "cheats": list(one.cheats),
            "success": list(one.success),
        }
        for one in found
    ]
    return {"experiment": "hacking", **asdict(weighed), "runs": runs}


def _tell(found: Sequence[HackingOutcome], weighed: HackingResult, files: Sequence[Path], quick: bool) -> None:
    """At most 80 columns."""
    from experiments.hacking import CARELESS, GUARDED
    from experiments.plots import mean_course
    from holdfast.cli.show import count, print_table
    from holdfast.workloads.plots import blocks

    print(f"{count(len(weighed.seeds), 'seed')}, {weighed.rollouts} held-out rollouts of each arm, 95 % intervals\n")
    rows = (("rollouts that cheat", "cheats", weighed.cheats), ("tasks solved", "success", weighed.success))
    print_table(
        ("after practice", "untrained", "careless reward", "guarded reward"),
        [
            (title, f"{weighed.before[key]:.3f}", *(_cell(arms[arm]) for arm in (CARELESS, GUARDED)))
            for title, key, arms in rows
        ],
    )
    if weighed.reduction is None:
        print("\nthe careless reward taught no cheating: there is nothing to reduce")
    else:
        low, high = weighed.reduction.interval.low, weighed.reduction.interval.high
        print(f"\ncheating falls by {weighed.reduction.value:.0%} ({low:.0%} to {high:.0%})")
    gain = weighed.gain
    print(f"tasks solved {gain.value:+.3f} ({gain.interval.low:+.3f} to {gain.interval.high:+.3f})")
    print("\non the way, share of practice rollouts that cheat")
    for arm in (CARELESS, GUARDED):
        way = mean_course(found, arm, "cheats")
        known = [value for value in way if value is not None] or [0.0]
        print(f"  {arm:<8} {blocks(way, high=max(0.2, *known))}  {known[0]:.2f} → {known[-1]:.2f}")
    if quick:
        print("\n(so little practice shows that everything runs, not what is learnt)")
    for file in files:
        print(f"  {file}")


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.interval.low:.3f}-{estimate.interval.high:.3f})"
