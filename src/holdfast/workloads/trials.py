"""Experiments of several trials: each trial is a run of its own, found again by its settings, and none is run twice.

What a trial does and what it comes to is up to the experiment; who drives a run is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from holdfast.contracts.run import DesiredState, Status, StepRecord
from holdfast.pipeline.run import RunSpec
from holdfast.store.store import Store

Setup = TypeVar("Setup")
Outcome = TypeVar("Outcome")
Drive = Callable[[Store, RunSpec, str | None], tuple[Status, Any, int]]  # the last is the exit code


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialKind(Generic[Setup, Outcome]):
    """How a trial is run, and what it came to."""

    kind: str  # of its runs
    spec_for: Callable[[Setup], RunSpec]
    outcome: Callable[[Setup, Sequence[StepRecord]], Outcome | None]  # None: it is not at its end
    title: Callable[[Setup], str]


def run_all(
    store: Store,
    trials: Sequence[Setup],
    experiment: TrialKind[Setup, Outcome],
    drive: Drive,
    say: Callable[[str], object],
) -> tuple[list[Outcome], int]:
    """Runs the trials: their outcomes, and the exit code of one that stopped. Stored trials are not run again."""
    found: list[Outcome] = []
    for number, trial in enumerate(trials, 1):
        known = newest(store, trial, experiment.kind)
        result = None if known is None else experiment.outcome(trial, store.steps.of_run(known))
        if result is None:
            say(f"{number} of {len(trials)}: {experiment.title(trial)}")
            status, _, code = drive(store, experiment.spec_for(trial), known)
            result = experiment.outcome(trial, store.steps.of_run(status.run_id))
            if result is None:
                return found, code or 1
        found.append(result)
    return found, 0


def newest(store: Store, trial: Any, kind: str) -> str | None:
    """The newest run of this trial, unless somebody cancelled it."""
    last = None
    while page := store.runs.newest(most=100, before=last):
        for run in page:
            if run.kind == kind and dict(run.settings) == asdict(trial):
                return None if run.wanted is DesiredState.CANCELLED else run.id
        last = page[-1].id
    return None
