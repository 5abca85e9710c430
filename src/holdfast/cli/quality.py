"""`holdfast quality`: whether what a run collected is fit to be learnt from. Nothing changes by looking."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, StoreAt, existing

if TYPE_CHECKING:
    from holdfast.contracts.rollout import Rollout
    from holdfast.learn.quality import QualityReport, Standards
    from holdfast.store.store import Store

PAGE = 500
EPILOG = """Exit codes: 0 nothing blocks, 1 something does, 2 there is nothing to look at.

Only what is meant for training is looked at; tasks of the splits val and test are what it must not contain."""


def quality(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or the beginning of it.")],
    rubric: Annotated[
        str, typer.Option(metavar="NAMES", help="Scores that each must have, from 0 to 1: accuracy,tone.")
    ] = "",
    reward_range: Annotated[
        tuple[float, float] | None, typer.Option(metavar="LOW HIGH", help="What a reward can be.")
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs/--no-logprobs", help="Whether every model call needs them.")
    ] = True,
    versions: Annotated[
        str, typer.Option(metavar="NAMES", help="Versions that are fresh enough; without it any are.")
    ] = "",
    limit: Limit = 20,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Look through what a run collected: what must not be learnt from, and why."""
    from holdfast.learn.quality import Standards

    standards = Standards(
        rubric=_names(rubric),
        reward_range=reward_range,
        needs_logprobs=logprobs,
        versions=_names(versions) or None,
    )
    with existing(store, project) as opened:
        name = opened.runs.get(run).id
        found = audited(opened, name, standards)
    if json:
        from holdfast.contracts.records import encode

        findings = [encode(finding) for finding in found.findings]
        kept_out = {rollout: list(names) for rollout, names in found.quarantined.items()}
        clean, ready = found.is_clean, list(found.ready)
        show.print_json({"run": name, "is_clean": clean, "findings": findings, "quarantined": kept_out, "ready": ready})
    else:
        _print(name, found, limit)
    if not found.is_clean:
        raise typer.Exit(1)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _rollouts(store: Store, run: str) -> Iterator[Rollout]:
    last = None
    while page := store.views.rollouts(run, most=PAGE, after=last):
        yield from page
        last = page[-1].name


def audited(store: Store, run: str, standards: Standards | None = None) -> QualityReport:
    """What the data gates say of everything the run collected for training."""
    from holdfast.contracts.errors import NotFound
    from holdfast.contracts.rollout import Split
    from holdfast.learn.quality import audit

    every = list(_rollouts(store, run))
    kept = [rollout.input for rollout in every if rollout.split in (Split.VAL, Split.TEST)]
    train = {rollout.id: rollout.input for rollout in every if rollout.split in (Split.TRAIN, None)}
    experiences = []
    with show.progress("reading", len(train)) as bar:
        for rollout in train:
            one = store.experiences.one(rollout)
            if one is not None:
                experiences.append(one)
            bar()
    if not experiences:
        why = f"none of its {len(every)} rollouts is for training and decided"
        raise NotFound(f"experiences of {run}", why=why, remedy="let it run first")
    with show.progress("looking", None):
        return audit(experiences, inputs=train, held_out=kept, standards=standards)


def _print(run: str, found: QualityReport, limit: int) -> None:
    ready, out = len(found.ready), len(found.quarantined)
    print(f"{run}: {ready} of {show.count(ready + out, 'rollout')} ready to be learnt from, {out} quarantined")
    rows = [
        (finding.name, finding.severity, finding.count, finding.of, finding.detail.removeprefix(f"{run}/") or "-")
        for finding in sorted(found.findings, key=lambda finding: not finding.count)
    ]
    show.print_table(("gate", "severity", ">failed", ">of", "~first"), rows)
    if found.quarantined:
        print()
        kept_out = list(found.quarantined.items())[:limit]
        named = [(rollout.removeprefix(f"{run}/"), ", ".join(names)) for rollout, names in kept_out]
        show.print_table(("~quarantined", "~why"), named)
        if out > limit:
            print(f"and {out - limit} more; --limit {out} shows them all")
