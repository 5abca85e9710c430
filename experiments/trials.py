"""What the experiments with runs have in common: each trial is a run of its own, and none is run twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.run import StepRecord
    from holdfast.pipeline.run import RunSpec
    from holdfast.store.store import Store

Trial = TypeVar("Trial")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialKind(Generic[Trial, Outcome]):
    """How a trial is run, and what it came to."""

    kind: str  # of its runs
    spec_for: Callable[[Trial], RunSpec]
    outcome: Callable[[Trial, Sequence[StepRecord]], Outcome | None]  # None: it is not at its end
    title: Callable[[Trial], str]


def check(name: str, output: Path | None) -> None:
    """What would stop it later, said before anything runs."""
    from importlib.util import find_spec

    if find_spec("torch") is None or find_spec("numba") is None:
        why = "needs PyTorch, which is not installed"
        raise BadInput(f"experiment {name}", why=why, remedy="pip install 'holdfast[learn]'")
    if output is not None and output.exists() and not output.is_dir():
        raise BadInput(f"--output {output}", why="is a file", remedy="name a folder")


def run_all(store: Store, trials: Sequence[Trial], experiment: TrialKind[Trial, Outcome]) -> tuple[list[Outcome], int]:
    """What each trial came to; those that are in the store already are not run again."""
    from holdfast.cli.drive import drive

    found: list[Outcome] = []
    for number, trial in enumerate(trials, 1):
        known = newest(store, trial, experiment.kind)
        told = None if known is None else experiment.outcome(trial, store.steps.of_run(known))
        if told is None:
            print(f"{number} of {len(trials)}: {experiment.title(trial)}", file=sys.stderr)
            status, _, code = drive(store, experiment.spec_for(trial), known)
            told = experiment.outcome(trial, store.steps.of_run(status.run_id))
            if told is None:
                return found, code or 1
        found.append(told)
    return found, 0


def newest(store: Store, trial: Any, kind: str) -> str | None:
    """The newest run of this trial, unless somebody cancelled it."""
    from holdfast.contracts.run import DesiredState

    last = None
    while page := store.runs.newest(most=100, before=last):
        for run in page:
            if run.kind == kind and dict(run.settings) == asdict(trial):
                return None if run.wanted is DesiredState.CANCELLED else run.id
        last = page[-1].id
    return None


def keep(folder: Path, name: str, record: dict[str, Any], draw: Callable[[Path], None]) -> list[Path]:
    """The picture and the table, in the folder; their places."""
    from json import dumps

    from holdfast.store.artifacts import write_atomically

    folder.mkdir(parents=True, exist_ok=True)
    table, picture = folder / f"{name}.json", folder / f"{name}.png"
    write_atomically(table, (dumps(record, indent=2, allow_nan=False) + "\n").encode())
    draw(picture)
    return [picture, table]
