"""`holdfast release decide`: a registered version before the gate, with the episodes of a run as its evidence."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.onward import left, place, step
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing, who
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.evidence import Finding
    from holdfast.contracts.release import Release, Stage
    from holdfast.pipeline.more import CandidateEvidence
    from holdfast.pipeline.proof import PromotionRequest
    from holdfast.prove.comparison import ComparisonConfig
    from holdfast.store.store import Store

STAGES = ("shadow", "canary", "live")


def decide(
    version: Annotated[str, typer.Argument(metavar="VERSION", help="A candidate, as in tools@3.")],
    run: Annotated[str, typer.Option("--run", metavar="RUN", help="The run of 'prove' or 'improve' that measured it.")],
    audit: Annotated[
        str | None, typer.Option("--audit", metavar="RUN", help="The run whose rollouts it learnt from.")
    ] = None,
    untrained: Annotated[
        bool, typer.Option("--untrained", help="It learnt from no rollouts of this store: there is nothing to audit.")
    ] = False,
    golden: Annotated[
        str | None, typer.Option("--golden", metavar="NAME", help="The last replay of this golden counts too.")
    ] = None,
    to: Annotated[str, typer.Option("--to", metavar="STAGE", help="Where an open gate leads.")] = "shadow",
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Let the gate decide about a candidate, and act on it.

    Closed is exit code 1; either way it is in the ledger.
    """
    from holdfast.cli.options import needing
    from holdfast.contracts.release import Stage

    if to not in STAGES:
        raise BadInput(f"--to {to}", why="is no stage ahead", remedy=f"use {', '.join(STAGES)}")
    with needing("learn"):
        from holdfast.pipeline.more import compared
        from holdfast.workloads.tooluse.suite import evaluation_from
    from holdfast.pipeline.promote import promote
    from holdfast.store.find import find_release

    with existing(store, project) as opened:
        release = find_release(opened, version)
        if release.stage is not Stage.CANDIDATE:
            remedy = ""
            if release.stage in (Stage.ROLLED_BACK, Stage.REJECTED):
                remedy = f"'holdfast release retry {release.id}{place(store, project)}' gives it a second try"
            raise BadInput(f"release {release.id}", why=f"is {release.stage}, not a candidate any more", remedy=remedy)
        findings = _findings(opened, release, audit, golden)
        opened.steps.verify(opened.runs.get(run).id)  # nobody has touched them since
        measured = compared(opened, run, release.id, evaluation_from)
        request = _request(opened, release, measured, findings, untrained, Stage(to))
        found = asyncio.run(promote(opened, request, clock=time.time, who=who()))
        tell(found, opened.releases.get(release.id), place(store, project), json)


def _findings(store: Store, release: Release, audit: str | None, golden: str | None) -> tuple[Any, Any]:
    """Of the data that it learnt from, and of changed behaviour; None where nobody looked."""
    from holdfast.pipeline.versions import resolve
    from holdfast.prove import golden as goldens

    data: tuple[Finding, ...] | None = None
    if audit is not None:
        from holdfast.cli.quality import audited

        learnt = store.runs.get(audit).id
        if (made_by := release.manifest.get("run")) not in (None, learnt):
            raise BadInput(f"--audit {learnt}", why=f"{release.id} was made by {made_by}", remedy="audit that run")
        data = audited(store, learnt).findings
    changed: tuple[Finding, ...] | None = None
    if golden is not None:
        folder = store.reports.parent / "golden"
        if not goldens.is_name(golden):
            raise BadInput(f"--golden {golden}", why="is no name of one", remedy="'holdfast golden list' shows them")
        kept, made = (goldens.read(folder / f"{golden}{suffix}.json") for suffix in ("", ".replay"))
        if made.weights_sha256 != resolve(store, release.id).sha256:
            remedy = f"holdfast golden replay {golden} --version {release.id}"
            raise BadInput(f"golden {golden}", why=f"its last replay is of {made.version}", remedy=remedy)
        changed = goldens.check(kept, made, signed=goldens.signed(store))
    return data, changed


def _request(
    store: Store, release: Release, found: CandidateEvidence, findings: tuple[Any, Any], is_untrained: bool, to: Stage
) -> PromotionRequest:
    from holdfast.pipeline.more import tries
    from holdfast.pipeline.proof import Candidate, PromotionRequest
    from holdfast.promote.gate import Criteria, SpreadLimits

    live = _live(store, release, found)
    measured = found.measured
    candidate = Candidate(
        run=found.run,
        policy=release.policy,
        suite=found.suite,
        baseline=live.source,
        candidate=release.source,
        before=measured.before,
        after=measured.after,
        planned=measured.planned,
        lost=measured.lost,
        audit=found.audit if findings[0] is None else findings[0],
        golden=findings[1],
        manifest=release.manifest,
        kind=release.kind,
    )
    how = _strict(found.how, tries(store, found, release))
    criteria = Criteria(
        max_safety_regression=how.max_safety_regression,
        max_p_value=how.alpha,
        require_audit=not is_untrained,
        max_seed_spread=SpreadLimits(p_value=how.seed_p_value_spread, delta=how.seed_delta_spread),
        max_sample_spread=SpreadLimits(p_value=how.sample_p_value_spread, delta=how.sample_delta_spread),
    )
    return PromotionRequest(
        candidate=candidate, how=how, criteria=criteria, reports=store.reports, now=time.time(), to=to
    )


def _live(store: Store, release: Release, found: CandidateEvidence) -> Release:
    """What is live, once it is sure that the run measured the candidate against it."""
    from holdfast.pipeline.versions import resolve

    live = store.releases.live(release.policy)
    if live is None:
        why = "nothing is live, so there is nothing to be better than"
        raise BadInput(f"policy {release.policy}", why=why, remedy=f"holdfast release promote {release.id}")
    if found.is_null or resolve(store, live.id).behaviour == resolve(store, release.id).behaviour:
        why = f"{release.id} is the same as {live.id}: there is nothing to decide"
        raise BadInput(f"run {found.run}", why=why, remedy="measure two versions that differ")
    for one, measured in ((live, found.baseline), (release, found.candidate)):
        if resolve(store, one.id).behaviour != measured.behaviour:
            why = f"measured {measured.name}, which is not {one.id}"
            remedy = f"measure {release.id} against {live.id} with 'prove run'"
            raise BadInput(f"run {found.run}", why=why, remedy=remedy)
    return live


def _strict(how: ComparisonConfig, tries: int) -> ComparisonConfig:
    """As the run was weighed, but no looser than is documented; and with half the error rate at every further try."""
    usual = type(how)()
    least = ["alpha", "max_safety_regression", "seed_p_value_spread", "seed_delta_spread"]
    least += ["sample_p_value_spread", "sample_delta_spread"]
    tight = {name: min(getattr(how, name), getattr(usual, name)) for name in least}
    return replace(how, **{**tight, "alpha": tight["alpha"] / 2 ** (tries - 1)}, min_effect=max(how.min_effect, 0.0))


def tell(found: dict[str, Any], now: Release, at: str, json: bool) -> None:
    from holdfast.cli.decision import onward, told
    from holdfast.cli.page import write_page
    from holdfast.cli.show import print_json
    from holdfast.contracts.evidence import Decision
    from holdfast.contracts.records import decode

    decision = decode(Decision, found["decision"])
    page = write_page(Path(found["proof"]))
    if json:
        print_json({**found, "page": str(page)})
    else:
        for line in told(now.id, decision, now, at=at):
            print(line)
        print("\n".join(left("page", page)))
        print("\n".join(["next:", *step(onward(now, decision) + at)]))
    raise typer.Exit(0 if decision.open else 1)
