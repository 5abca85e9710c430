"""`python -m experiments privacy`: canaries in conversations, learnt without a privacy budget and with two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.trials import carry_out, check, keep
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt

if TYPE_CHECKING:
    from experiments.privacy import ArmResult, PrivacyOutcome


def privacy(
    seeds: Annotated[int, typer.Option(metavar="N", min=1, max=100, help="Every arm is run with each.")] = 3,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, two arms, few conversations: a minute.")] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="For privacy.json; else beside the store.")
    ] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Plant PINs in conversations, learn from them, and see whether the model gives them away.

    Without privacy, with epsilon 8 and with epsilon 2; each seed and arm is a run of its own: Ctrl-C stops, a second
    call goes on.
    """
    check("privacy", output)
    from experiments.privacy import ARMS, KIND, PLAIN, PrivacyTrial, is_shown, outcome, spec_for, weigh
    from experiments.privacy import quick as quickly
    from holdfast.cli.show import print_json
    from holdfast.workloads.trials import TrialKind

    arms, numbers = ((PLAIN, ARMS[-1]), range(1)) if quick else (ARMS, range(seeds))
    trials = [PrivacyTrial(arm=arm, seed=seed) for seed in numbers for arm in arms]
    trials = [quickly(trial) for trial in trials] if quick else trials
    experiment = TrialKind(
        kind=KIND, spec_for=spec_for, outcome=outcome, title=lambda trial: f"seed {trial.seed}, {trial.arm}"
    )
    options = {"seeds": seeds, "quick": quick, "output": output}
    found, folder = carry_out(trials, experiment, (store, project), options)
    weighed = weigh(found)
    record = _record(found, weighed, quick, is_shown(weighed))
    (table,) = keep(folder, "privacy", record)
    if json:
        print_json(record | {"files": [str(table)]})
    else:
        _tell(found, weighed, is_shown(weighed))
        print(f"  {table}")


def _record(
    found: Sequence[PrivacyOutcome], arms: Mapping[str, ArmResult], quick: bool, is_shown: bool
) -> dict[str, Any]:
    return {
        "experiment": "privacy",
        "is_quick": quick,
        "is_shown": is_shown,
        "arms": {name: asdict(arm) for name, arm in arms.items()},
        "runs": [asdict(one) for one in found],
    }


def _tell(found: Sequence[PrivacyOutcome], arms: Mapping[str, ArmResult], is_shown: bool) -> None:
    """At most 80 columns."""
    from math import log2

    from holdfast.cli.show import print_table

    trial = found[0].trial
    print(f"{trial.conversations} conversations and {trial.canaries} canaries a seed; ", end="")
    print(f"exposure of at most {log2(trial.candidates):.0f} bits\n")
    print_table(
        ("learnt", "extracted", "exposure", "before", "other conversations", "epsilon", "noise"),
        [
            (
                name.replace("-", " "),
                f"{arm.extracted} of {arm.canaries}",
                f"{arm.exposure:.1f}",
                f"{arm.chance:.1f}",
                f"loss {arm.before:.2f} → {arm.after:.2f}",
                "" if arm.spent is None else f"{arm.spent:.2f}",
                "" if arm.noise is None else f"{arm.noise:.2f}",
            )
            for name, arm in arms.items()
        ],
    )
    said = "is" if is_shown else "is NOT"
    print(f"\nthat a budget keeps the canaries in, and that they come out without one, {said} shown")
