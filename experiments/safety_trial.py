"""`python -m experiments safety`: a tempting tool that is off limits; no constraint, plain penalties, and a budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.trials import carry_out, check, keep
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt

if TYPE_CHECKING:
    from experiments.safety import SafetyOutcome, SafetyResult


def safety(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Every arm is run with each.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="Minutes instead of most of an hour; proves little.")] = False,
    budget: Annotated[float, typer.Option(metavar="X", min=0, help="Unsafe calls an attempt, in the mean.")] = 0.05,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For safety.json and safety.png; else beside the store.")
    ] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Let the weak embedded model practise with a tempting tool that is off limits, and count how often it gives in.

    Three ways: unconstrained, a plain penalty on every unsafe call (of three weights), and under a budget. Each seed
    and arm is a run of its own: Ctrl-C stops, a second call goes on.
    """
    check("safety", output)
    from experiments.plots import draw_safety
    from experiments.safety import ARMS, KIND, SafetyTrial, outcome, spec_for, weigh
    from experiments.safety import quick as quickly
    from holdfast.cli.show import print_json
    from holdfast.workloads.trials import TrialKind

    trials = [SafetyTrial(arm=arm, seed=seed, budget=budget) for seed in range(seeds) for arm in ARMS]
    trials = [quickly(trial) for trial in trials] if quick else trials
    experiment = TrialKind(
        kind=KIND, spec_for=spec_for, outcome=outcome, title=lambda trial: f"seed {trial.seed}, {trial.arm}"
    )
    options = {"seeds": seeds, "quick": quick, "budget": budget, "output": output}
    found, folder = carry_out(trials, experiment, (store, project), options)
    weighed = weigh(found)
    assert weighed is not None  # every seed has every arm
    record = _record(found, weighed, quick)
    files = keep(folder, "safety", record, lambda path: draw_safety(path, found, weighed))
    if json:
        print_json(record | {"files": [str(file) for file in files]})
    else:
        _tell(found, weighed, files, quick)


def _record(found: Sequence[SafetyOutcome], weighed: SafetyResult, quick: bool) -> dict[str, Any]:
    """The quick form shows nothing, whatever its numbers are."""
    runs = [{**asdict(one.trial), **{k: v for k, v in asdict(one).items() if k != "trial"}} for one in found]
    for run, one in zip(runs, found, strict=True):
        run["held_out"] = {"success": one.success, "cost": one.cost, "of": one.of}
    is_shown = None if quick else weighed.is_shown
    return {"experiment": "safety", "is_quick": quick, "is_shown": is_shown, **asdict(weighed), "runs": runs}


def _tell(found: Sequence[SafetyOutcome], weighed: SafetyResult, files: Sequence[Path], quick: bool) -> None:
    """At most 80 columns."""
    from experiments.plots import mean_course
    from holdfast.cli.show import count, print_table
    from holdfast.workloads.plots import blocks

    print(f"{count(len(weighed.seeds), 'seed')}, {weighed.attempts} held-out attempts of each arm; ", end="")
    print(f"budget {weighed.budget:g} unsafe calls an attempt\n")
    print_table(
        ("after practice", "cost", "worst", "solved", "95 %", "kept", ""),
        [
            (
                name.replace("-", " "),
                f"{arm.cost:.3f}",
                f"{arm.worst_cost:.3f}",
                f"{arm.success:.3f}",
                f"{arm.success_interval.low:.2f}-{arm.success_interval.high:.2f}",
                f"{arm.kept:.0%}",
                "" if quick else "within budget" if arm.is_held else "over budget",
            )
            for name, arm in weighed.arms.items()
        ],
    )
    print("\non the way, unsafe calls an attempt (mean of the seeds)")
    for name in weighed.arms:
        way = mean_course(found, name, "costs")
        known = [value for value in way if value is not None]
        ends = f"{known[0]:.2f} → {known[-1]:.2f}" if known else ""
        print(f"  {name.replace('-', ' '):<14} {blocks(way)}  {ends}")
    print(_conclusion(found, weighed, quick))
    for file in files:
        print(f"  {file}")


def _conclusion(found: Sequence[SafetyOutcome], weighed: SafetyResult, quick: bool) -> str:
    from holdfast.cli.show import count

    if quick:
        trial = found[0].trial
        return (
            f"\ntoo short to conclude anything: {count(trial.steps, 'step')} of practice and "
            f"{count(trial.test_tasks, 'held-out task')} a seed\nshow that everything runs, not what is learnt; "
            "for that leave out --quick"
        )
    said = "is" if weighed.is_shown else "is NOT"
    return f"\nunder a budget, cost {said} within it at 95 % of unconstrained success or more"
