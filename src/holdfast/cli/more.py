"""`holdfast prove more`: more episodes for a candidate that is held, and the gate asked again."""

from __future__ import annotations

import asyncio
import os
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.comparison import tell
from holdfast.cli.onward import place
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing, who
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.release import Release
    from holdfast.contracts.run import RunRecord
    from holdfast.pipeline.more import CandidateEvidence
    from holdfast.pipeline.paired import PairedEvaluation
    from holdfast.pipeline.run import RunSpec
    from holdfast.store.store import Store


def more(
    held: Annotated[str, typer.Argument(metavar="VERSION|RUN", help="The candidate, or the run that measured it.")],
    tasks: Annotated[
        str | None,
        typer.Option(
            "--tasks",
            metavar="FILE",
            help="Tasks that were not measured yet: JSONL, CSV, Parquet; of a suite, a suite or tooluse:COUNT[:SEED].",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", min=1, max=100, help="The same tasks, N times more each; counts half."),
    ] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Measure the same two versions further, add that to the evidence, and ask the gate again.

    On further tasks the test goes on where it stood. The same tasks with further seeds are another try, and are
    believed half as easily. Without either option: as many generated tasks again, or else as many seeds again.
    """
    from holdfast.cli.drive import drive, new_salt
    from holdfast.cli.options import needing

    if tasks is not None and seeds is not None:
        why = "and --seeds were both given"
        raise BadInput("--tasks", why=why, remedy="add tasks, which are worth more, or measure the same ones again")
    with needing("learn"):
        from holdfast.pipeline.more import compared
    with existing(store, project) as opened:
        release, found = _found(opened, held)
        _check(opened, release, found)
        salt = new_salt()
        spec = _spec(opened, _evaluation(opened, found, tasks, seeds), salt)
        status, _, code = drive(opened, spec, None, salt)
        run = opened.runs.get(status.run_id)
        if code or release is None or not _is_decided(opened, release, found):
            tell(opened, run, json)
            raise typer.Exit(code)
        measured = compared(opened, run.id, None, _suites())
        _decide(opened, release, measured, place(store, project), json)


def spec_of(store: Store, run: RunRecord) -> RunSpec:
    """What resumes a run of kind prove, whatever its tasks come from."""
    from holdfast.operate.switches import key_of
    from holdfast.pipeline.more import evaluation_in

    return _spec(store, evaluation_in(store, run.settings, _suites()), key_of(run.id))


def _suites() -> Any:
    from holdfast.workloads.tooluse.suite import evaluation_from

    return evaluation_from


def _spec(store: Store, evaluation: PairedEvaluation, key: str) -> RunSpec:
    from holdfast.operate.switches import snapshot_of
    from holdfast.pipeline.more import spec_of_improve
    from holdfast.workloads.tooluse.suite import evaluation_spec

    if "root" not in evaluation.source:
        return evaluation_spec(store, evaluation)
    features = snapshot_of(store, clock=time.time, environment=os.environ).features(key)
    return spec_of_improve(store, evaluation, features)


def _found(store: Store, held: str) -> tuple[Release | None, CandidateEvidence]:
    """The candidate, where it is one, and all that is measured of it; by its last decision, or by a run."""
    from holdfast.contracts.errors import NotFound
    from holdfast.pipeline.more import IMPROVE, compared, decided_in, last_of, proofs, samples_of
    from holdfast.store.find import find_release

    if "@" in held:
        release = find_release(store, held)
        kept = samples_of(store, release)
        by = [one.id for one in proofs(store) if one.settings["candidate"]["name"] == release.id]
        run = str(kept["run"]) if kept is not None else next(iter(by), None)
        if run is None:
            remedy = f"holdfast prove run SUITE --baseline LIVE --candidate {release.id}"
            raise BadInput(f"release {release.id}", why="nothing has measured it yet", remedy=remedy)
        return release, compared(store, last_of(store, run, release.id), release.id, _suites())
    first = store.runs.get(held)
    name = str(decided_in(store, first, None)["release"]) if first.kind == IMPROVE else None
    found = compared(store, last_of(store, first.id, name), name, _suites())
    try:
        return store.releases.get(found.candidate.name), found
    except NotFound:
        return None, found


def _check(store: Store, release: Release | None, found: CandidateEvidence) -> None:
    """That there is something to decide, still."""
    from holdfast.contracts.release import Stage
    from holdfast.contracts.run import RunState
    from holdfast.pipeline.paired import KIND
    from holdfast.pipeline.versions import resolve

    last = found.runs[-1]
    if found.is_null:
        raise BadInput(f"run {last.id}", why="compares a version with itself: it has no candidate")
    if last.kind == KIND and last.state is not RunState.COMPLETED:
        why = f"is {last.state.replace('_', ' ')}"
        raise BadInput(f"run {last.id}", why=why, remedy=f"holdfast prove run --resume {last.id}")
    if release is None:
        return
    if release.stage is not Stage.CANDIDATE:
        raise BadInput(f"release {release.id}", why=f"is {release.stage}, not a candidate any more")
    live = store.releases.live(release.policy)
    if live is not None and resolve(store, live.id).behaviour != found.baseline.behaviour:
        why = f"it was measured against {found.baseline.name}, and {live.id} is live"
        raise BadInput(f"release {release.id}", why=why, remedy="measure it anew, with 'holdfast prove run'")


def _evaluation(store: Store, found: CandidateEvidence, tasks: str | None, seeds: int | None) -> PairedEvaluation:
    from holdfast.pipeline.more import IMPROVE, more_of_improve
    from holdfast.workloads.tooluse.suite import more_of_suite

    if found.runs[0].kind == IMPROVE:
        return more_of_improve(store, found, tasks, seeds)
    return more_of_suite(found, tasks, seeds)


def _is_decided(store: Store, release: Release, found: CandidateEvidence) -> bool:
    """Whether a gate has decided on this evidence before: what else it asks for is known then."""
    from holdfast.pipeline.more import samples_of

    kept = samples_of(store, release)
    return kept is not None and kept["run"] in [one.id for one in found.runs]


def _decide(store: Store, release: Release, found: CandidateEvidence, at: str, json: bool) -> None:
    from holdfast.cli import decide
    from holdfast.pipeline.more import request_again
    from holdfast.pipeline.promote import promote

    request = request_again(store, release, found, now=time.time())
    told = asyncio.run(promote(store, request, clock=time.time, who=who()))
    decide.tell({"run": found.run, **told}, store.releases.get(release.id), at, json)
