"""A way on for a candidate that is held: more episodes of the same two versions, added to the evidence that there is.

A run that continues another measures further tasks, and the test goes on: it allows looking as often as one likes. Or
it measures the same tasks with further seeds: that is another test, and is charged to the policy's α-account. Nobody
can continue one run twice and choose the better end. The gate is then asked again, as it was asked last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.collect.tasks import load
from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.evidence import Evidence, Finding, Outcome
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Release, Stage
from holdfast.contracts.run import LedgerEntry, RunRecord, RunState
from holdfast.contracts.settings import ImproveBlock, OptimizeSettings, settings_from
from holdfast.contracts.task import TaskItem, canonical, leaked_tasks
from holdfast.pipeline.alpha_account import at_charge, is_beside
from holdfast.pipeline.control import is_env_run
from holdfast.pipeline.held_out import HeldOut, united
from holdfast.pipeline.improve import sha256_of
from holdfast.pipeline.paired import (
    KIND,
    Continued,
    PairedEpisodes,
    PairedEvaluation,
    charge_in,
    comparison_of,
    looked,
    measured,
    policies_of,
    settled,
)
from holdfast.pipeline.promote import (
    Candidate,
    PromotionRequest,
    comparison_config_from,
    criteria_from,
    summed,
)
from holdfast.pipeline.run import RunSpec
from holdfast.pipeline.spec import comparison_config, evaluation_spec, held_out_of
from holdfast.pipeline.versions import Version, resolve
from holdfast.promote.alpha_account import CANDIDATE, Charge
from holdfast.promote.gate import Criteria
from holdfast.prove.comparison import RULES, ComparisonConfig
from holdfast.store.store import Store

IMPROVE = "improve"
PAGE = 100
Suites = Callable[[Mapping[str, Any]], PairedEvaluation]  # the evaluation of a suite, from the settings of its run


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateEvidence:
    """What a run, with those that it continues, has measured of one candidate."""

    runs: tuple[RunRecord, ...]  # the first one first; each continues the one before
    iteration: int | None  # of the first, where that one improves
    baseline: Version
    candidate: Version
    suite: tuple[str, str, str]
    how: ComparisonConfig  # as the first run was to be weighed
    measured: PairedEpisodes
    audit: tuple[Finding, ...] | None  # of what the first run learnt from
    tasks: Sequence[HeldOut] = ()  # those that the last run measured
    charge: Charge | None = None  # what the last test of it was charged
    is_null: bool = False

    @property
    def run(self) -> str:
        return self.runs[-1].id

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(sorted({episode.seed for episode in self.measured.before}))


def _charge(store: Store, runs: Sequence[RunRecord], iteration: int | None) -> Charge | None:
    """Finds the charge of the last run; one that continues has the α of the one before."""
    found = (charge_in(store, run.id, iteration if run.kind == IMPROVE else None) for run in reversed(runs))
    return next((charge for charge in found if charge is not None), None)


def compared(store: Store, run: str, candidate: str | None, suites: Suites) -> CandidateEvidence:
    """Gathers what a run, and those that it continues, measured of the candidate; of `improve`, of its iteration."""
    runs = _back_from(store, store.runs.get(run))
    if runs[-1].kind == KIND:
        return _by_prove(store, runs, suites)
    if runs[-1].kind != IMPROVE:
        raise _not_continued(store, runs[-1])
    body = decided_in(store, runs[-1], candidate)
    evidence = loads(Evidence, store.blobs.get(str(body["evidence"])))
    kept = json.loads(store.blobs.get(str(evidence.samples)))
    iteration, settings = int(body["iteration"]), _settings(store, runs[0])
    planned = (evidence.missing or {}).get("planned", 0)
    return CandidateEvidence(
        runs=runs,
        iteration=iteration,
        baseline=resolve(store, evidence.baseline),
        candidate=resolve(store, evidence.candidate),
        suite=tuple(kept["suite"]),
        how=comparison_config(settings),
        measured=measured(store, runs[-1].id, iteration=iteration, planned=planned),
        audit=_audit(store, runs[0].id, iteration),
        tasks=held_out_of(settings),
        charge=_charge(store, runs, iteration),
    )


def _not_continued(store: Store, run: RunRecord) -> BadInput:
    """Says why a run cannot be continued: it compared nothing, or kept no settings to measure further tasks by."""
    about = next((step.body for step in store.steps.of_run(run.id) if step.body.get("decision")), None)
    if about is None:
        why, remedy = f"is of the kind {run.kind}, and compared nothing", "'holdfast run list' lists them"
        return BadInput(f"run {run.id}", why=why, remedy=remedy)
    evidence = loads(Evidence, store.blobs.get(str(about["evidence"])))
    versions = f"--baseline {evidence.baseline} --candidate {evidence.candidate}"
    why = f"is of the kind {run.kind}, whose proof cannot be added to"
    remedy = f"measure anew: 'holdfast prove run SUITE {versions}', then 'holdfast release decide'"
    return BadInput(f"run {run.id}", why=why, remedy=remedy)


def _by_prove(store: Store, runs: tuple[RunRecord, ...], suites: Suites) -> CandidateEvidence:
    made = evaluation_in(store, runs[-1].settings, suites)
    looks = len(looked(store, runs[-1].id))
    planned = min(len(made.tasks), looks * made.batch) * len(made.seeds)
    first, iteration = runs[0], None
    if first.kind == IMPROVE:
        iteration = int(runs[1].settings["continues"]["iteration"])
        how = comparison_config(_settings(store, first))
    else:
        how = comparison_config_from(first.settings["how"])
    return CandidateEvidence(
        runs=runs,
        iteration=iteration,
        baseline=made.baseline,
        candidate=made.candidate,
        suite=made.suite,
        how=how,
        measured=measured(store, runs[-1].id, planned=planned),
        audit=None if iteration is None else _audit(store, first.id, iteration),
        tasks=made.tasks,
        charge=_charge(store, runs, iteration),
        is_null=made.is_null,
    )


def tasks_of(store: Store, evidence: CandidateEvidence, suites: Suites) -> dict[str, Any]:
    """The tasks that the evidence rests on, by name."""
    tasks: dict[str, Any] = {}
    for run in evidence.runs:
        is_proof = run.kind == KIND
        held = evaluation_in(store, run.settings, suites).tasks if is_proof else held_out_of(_settings(store, run))
        tasks |= {held_out.id: held_out.input for held_out in held}
    return tasks


def uncharged_beside(store: Store, evidence: CandidateEvidence, suites: Suites) -> int:
    """Other runs that measured some of the same tasks and are in no account, as their baseline was not live: whoever
    picks one of them by what it found has tested all. What cannot be read any more counts."""
    accounts = (store.releases.charges(policy) for policy in store.releases.policies())
    known = {charge.run for entries in accounts for charge in map(_charge_in, entries)} | {
        run.id for run in evidence.runs
    }
    mine = list(tasks_of(store, evidence, suites).values())

    def counts(run: RunRecord) -> bool:
        try:
            return is_beside(mine, [task.input for task in evaluation_in(store, run.settings, suites).tasks])
        except HoldfastError:
            return True

    return sum(counts(run) for run in proofs(store) if run.id not in known and not run.settings.get("is_null"))


def decided_in(store: Store, run: RunRecord, candidate: str | None) -> Mapping[str, Any]:
    """Finds the decision of a run that improves about the candidate; without a name, about its last one."""
    bodies = [step.body for step in store.steps.of_run(run.id) if step.body.get("decision")]
    found = [body for body in bodies if candidate in (None, body["release"])]
    if not found:
        what = "about no candidate yet" if candidate is None else f"nothing about {candidate}"
        raise BadInput(f"run {run.id}", why=f"has decided {what}", remedy=f"holdfast improve --resume {run.id}")
    return found[-1]


def _audit(store: Store, run: str, iteration: int) -> tuple[Finding, ...] | None:
    bodies = [step.body for step in store.steps.of_run(run)]
    learnt = [body for body in bodies if "quality" in body and body.get("iteration") == iteration]
    return summed([[decode(Finding, one) for one in body["quality"]] for body in learnt]) if learnt else None


def _settings(store: Store, run: RunRecord) -> OptimizeSettings:
    if is_env_run(run.settings):
        why = "plays in an environment, and has played all the episodes that it began with"
        raise BadInput(f"run {run.id}", why=why, remedy="begin another with EnvProof(episodes=…)")
    return settings_from(store.whole(run.settings), f"settings of {run.id}")


# Which run continues which -------------------------------------------------------------------------------------------


def _back_from(store: Store, run: RunRecord) -> tuple[RunRecord, ...]:
    runs = [run]
    while (continues := runs[0].settings.get("continues")) is not None and runs[0].kind == KIND:
        runs.insert(0, store.runs.get(str(continues["run"])))
    return tuple(runs)


def end_of(store: Store, run: str, candidate: str | None) -> tuple[str, RunRecord | None]:
    """The run where the evidence ends, and the run that continues it, if one was begun and is not completed."""
    later = {}
    for run_record in proofs(store):
        continues = run_record.settings.get("continues")
        if continues is not None and candidate in (None, run_record.settings["candidate"]["name"]):
            later[str(continues["run"])] = run_record
    while run in later and later[run].state is RunState.COMPLETED:
        run = later[run].id
    return run, later.get(run)


def last_of(store: Store, run: str, candidate: str | None) -> str:
    """The run where the evidence ends; only this one can be continued."""
    run, unfinished = end_of(store, run, candidate)
    if unfinished is not None:
        raise unfinished_after(run, unfinished, f"holdfast prove run --resume {unfinished.id}")
    return run


def unfinished_after(run: str, unfinished: RunRecord, remedy: str) -> BadInput:
    why = f"adds to the evidence of {run}, and is {unfinished.state.replace('_', ' ')}"
    return BadInput(f"run {unfinished.id}", why=why, remedy=remedy)


def proofs(store: Store) -> list[RunRecord]:
    """Lists all runs that compared two versions, newest first."""
    runs: list[RunRecord] = []
    last = None
    while page := store.runs.newest(most=PAGE, before=last):
        runs += [run for run in page if run.kind == KIND]
        last = page[-1].id
    return runs


# What is measured next -----------------------------------------------------------------------------------------------


def continuation(evidence: CandidateEvidence, *, is_repeat: bool) -> dict[str, Any]:
    """Builds the fields that a continuing evaluation takes from the one before."""
    continues = Continued(
        run=evidence.run,
        iteration=evidence.iteration if len(evidence.runs) == 1 else None,
        planned=evidence.measured.planned,
        looks=evidence.measured.looks,
        is_repeat=is_repeat,
    )
    how = evidence.how if is_repeat else at_charge(evidence.how, evidence.charge)
    payload = {"baseline": evidence.baseline, "candidate": evidence.candidate, "how": how, "continues": continues}
    return {**payload, "is_charged": is_repeat or evidence.charge is not None}


def next_seeds(evidence: CandidateEvidence, count: int) -> tuple[int, ...]:
    after = max(evidence.seeds, default=0) + 1
    return tuple(range(after, after + count))


def more_of_improve(store: Store, evidence: CandidateEvidence, path: str | None, seeds: int | None) -> PairedEvaluation:
    """Held-out tasks from a file, or those of before with further seeds: as many again, where nothing is said."""
    first = _settings(store, evidence.runs[0])
    known = [*held_out_of(first)]
    for run in evidence.runs[1:]:
        if not run.settings["continues"]["is_repeat"]:
            known += map(HeldOut.from_record, store.whole(run.settings)["tasks"])
    block = (first.improve or ImproveBlock()).prove
    tasks = known if path is None else unmeasured(_read(path), known, first.train, path, block.cluster)
    suite, many = evidence.suite, evidence.seeds
    if path is None:
        many = next_seeds(evidence, seeds or len(evidence.seeds))
    else:
        suite = (*evidence.suite[:2], sha256_of([evidence.suite[2], *(task.record() for task in tasks)]))
    how: dict[str, Any] = {"stop_early": True, "cluster": block.cluster, "reuse_live": block.reuse_live}
    root = evidence.runs[0].id
    return PairedEvaluation(
        **_as_improve(first, root, tasks, many, suite), **how, **continuation(evidence, is_repeat=path is None)
    )


def _as_improve(
    settings: OptimizeSettings, root: str, tasks: Sequence[HeldOut], seeds: Sequence[int], suite: Sequence[str]
) -> dict[str, Any]:
    """Builds the fields of an evaluation at the pace of the run that improves."""
    block = (settings.improve or ImproveBlock()).prove
    return {
        "tasks": tuple(tasks),
        "seeds": tuple(seeds),
        "suite": tuple(suite),
        "batch": block.batch,
        "seed": settings.seed,
        "workers": settings.worker_count,
        "timeout_s": settings.attempt_timeout_secs,
        "source": _source(root, tasks, seeds, suite),
    }


def _source(root: str, tasks: Sequence[HeldOut], seeds: Sequence[int], suite: Sequence[str]) -> dict[str, Any]:
    return {"root": root, "tasks": [task.record() for task in tasks], "seeds": list(seeds), "evidence": list(suite)}


def _read(path: str) -> list[HeldOut]:
    """Reads the held-out tasks of a file; all of them where it names no splits."""
    tasks = load(path)
    return [HeldOut(id=item.id, input=_input(item, path)) for item in tasks.held_out or tasks.train]


def _input(task: TaskItem, path: str) -> Any:
    """Writes a task as the settings of a run do: the expected answer beside the question."""
    given = {"prompt": task.input} if isinstance(task.input, str) else task.input
    if not task.has_expected:
        return given
    if not isinstance(given, Mapping):
        raise BadInput(f"{path}: task {task.id}", why="has an input that is neither text nor an object")
    return {**given, "expected": task.expected}


def unmeasured(
    tasks: Sequence[HeldOut],
    known: Sequence[HeldOut],
    learnt: Sequence[Any],
    where: str,
    cluster: str | None = None,
    *,
    remedy: str = "give others, or --seeds N",
) -> list[HeldOut]:
    """The tasks that nobody has measured yet, each under a name of its own. What was learnt from proves nothing.

    A copy of a measured task, or another one of its document or user, is no further evidence: looks that were taken
    have counted its unit, and it is left out."""
    names = {held_out.id for held_out in known}
    taught = leaked_tasks(learnt, [task.input for task in tasks])
    everything = [replace(held_out, id=str(place)) for place, held_out in enumerate((*known, *tasks))]
    heads = united(everything, cluster)[len(known) :]
    found, texts = [], set[str]()
    for place, (task, head) in enumerate(zip(tasks, heads, strict=True)):
        if place in taught:
            raise BadInput(f"{where}: task {task.id}", why="is one that it learnt from", remedy="leave it out")
        if int(head) < len(known) or (text := canonical(task.input)) in texts:
            continue
        found.append(replace(task, id=_unused(task.id, names)))
        names.add(found[-1].id)
        texts.add(text)
    if not found:
        why = "has no task that is not measured yet, as itself, a copy, or one of its document or user"
        raise BadInput(where, why=why, remedy=remedy)
    return found


def _unused(name: str, taken: set[str]) -> str:
    return next(one for one in (name, *(f"{name}+{n}" for n in range(1, len(taken) + 2))) if one not in taken)


def evaluation_in(store: Store, settings: Mapping[str, Any], suites: Suites) -> PairedEvaluation:
    """The evaluation that the settings of a run describe, whatever its tasks come from."""
    if "root" not in settings:
        return suites(settings)
    first, kept = _settings(store, store.runs.get(str(settings["root"]))), store.whole(settings)
    tasks = tuple(map(HeldOut.from_record, kept["tasks"]))
    name, version, sha256 = settings["evidence"]
    return PairedEvaluation(
        tasks=tasks,
        seeds=tuple(settings["seeds"]),
        suite=(name, version, sha256),
        timeout_s=first.attempt_timeout_secs,
        source=_source(str(settings["root"]), tasks, settings["seeds"], settings["evidence"]),
        **settled(settings),
    )


def spec_of_improve(store: Store, evaluation: PairedEvaluation) -> RunSpec:
    """Makes a run with the agent, the scorers and the pace of the one that made the candidate."""
    settings = _settings(store, store.runs.get(str(evaluation.source["root"])))
    policies = policies_of(store, evaluation)
    return evaluation_spec(settings, evaluation, policies, files=store.files)


# Live against an anchor ----------------------------------------------------------------------------------------------


def anchor_evaluation(store: Store, policy: str, against: str | None, suites: Suites) -> PairedEvaluation:
    """The live version measured against an earlier one, the first that was live where none is named, on the held-out
    tasks of the policy's last test. Many small losses, each too small to be seen, add up to one that is."""
    sides = anchor_sides(store, policy, against)
    tests = [charge for charge in map(_charge_in, store.releases.charges(policy)) if charge.about == CANDIDATE]
    if not tests:
        why, remedy = "no candidate of it was tested yet, so no held-out tasks are known", "holdfast prove run SUITE"
        names = f"--baseline {sides['baseline'].name} --candidate {sides['candidate'].name}"
        raise BadInput(f"policy {policy}", why=why, remedy=f"{remedy} {names}")
    run = store.runs.get(tests[-1].run)
    given: dict[str, Any] = {**sides, "is_charged": True, "anchor_of": policy, "stop_early": True}
    if run.kind == KIND:
        return replace(evaluation_in(store, run.settings, suites), **given, continues=None, is_null=False)
    settings = _settings_known_here(store, run)
    tasks, block = held_out_of(settings), (settings.improve or ImproveBlock()).prove
    suite = ("validate", "1", sha256_of([task.record() for task in tasks]))
    like = _as_improve(settings, run.id, tasks, range(block.seeds), suite)
    return PairedEvaluation(**like, how=comparison_config(settings), **given)


def anchor_sides(store: Store, policy: str, against: str | None) -> dict[str, Any]:
    """The anchor as the baseline, and what is live as the candidate."""
    live, anchor = store.releases.live(policy), anchor_of(store, policy, against)
    if live is None or live.id == anchor.id:
        why = "nothing is live" if live is None else f"{live.id} is live, and its own anchor"
        raise BadInput(f"policy {policy}", why=why, remedy="promote a version first, or name one by --against")
    return {"baseline": resolve(store, anchor.id), "candidate": resolve(store, live.id)}


def tell_anchor(store: Store, evaluation: PairedEvaluation, run: str, *, who: str, now: float) -> str | None:
    """Raises an alert where live is proved worse than its anchor, and gives its message; clears it where live is proved
    better."""
    comparison, code = comparison_of(store, run), f"worse_than_anchor:{evaluation.anchor_of}"
    outcome = None if comparison is None else comparison.verdict.outcome
    if outcome is Outcome.PROMOTE:
        store.alerts.clear(code, at=now, who=who).result()
    if outcome is not Outcome.REJECT:
        return None
    remedy = f"holdfast release rollback {evaluation.anchor_of} --to {evaluation.baseline.name}"
    message = f"{evaluation.candidate.name} is live, and proved worse than {evaluation.baseline.name} ({run}); {remedy}"
    store.alerts.raise_(Alert(code=code, message=message, severity=Severity.CRITICAL, at=now), who=who).result()
    return message


def anchor_of(store: Store, policy: str, against: str | None = None) -> Release:
    """The version that was named, or the first one that was live."""
    if against is not None:
        release = store.releases.get(against)
        if release.policy != policy:
            raise BadInput(f"--against {release.id}", why=f"is not one of {policy}")
        return release
    moves = (entry.body for entry in store.releases.history(policy))
    first = next((body["move"] for body in moves if body.get("to") == Stage.LIVE and "move" in body), None)
    if first is None:
        raise BadInput(
            f"policy {policy}", why="no version of it was ever live", remedy="holdfast release promote VERSION"
        )
    return store.releases.get(str(first))


def _charge_in(entry: LedgerEntry) -> Charge:
    return Charge.from_record(entry.body)


def _settings_known_here(store: Store, run: RunRecord) -> OptimizeSettings:
    """Reads the settings of a run that improves; the agent of a Python call is known to its own process alone."""
    if run.kind == IMPROVE and "api" not in run.settings:
        return _settings(store, run)
    is_call = "api" in run.settings
    why = "was begun from Python, and its agent is not known here" if is_call else f"is of the kind {run.kind}"
    remedy = "result.anchor() measures it there: make the same hf.improve call again for the result"
    raise BadInput(f"run {run.id}", why=why, remedy=remedy)


# The gate, once more -------------------------------------------------------------------------------------------------


def samples_of(store: Store, release: Release) -> Mapping[str, Any] | None:
    """Reads the samples of its last decision: run, episodes and how they were judged; None: there was none."""
    if release.evidence is None:
        return None
    evidence = loads(Evidence, store.blobs.get(release.evidence))
    kept: Mapping[str, Any] = json.loads(store.blobs.get(str(evidence.samples)))
    return kept


def request_again(
    store: Store,
    release: Release,
    measured: PairedEpisodes,
    *,
    run: str,
    suite: tuple[str, str, str],
    charge: Charge | None,
    to: Stage | None,
    now: float,
) -> PromotionRequest:
    """Asks the gate as it was asked last, with all that is measured by now; further seeds are a test of their own."""
    last, kept = loads(Evidence, store.blobs.get(str(release.evidence))), samples_of(store, release)
    assert kept is not None
    how, criteria = _by_our_rules(comparison_config_from(kept["weighing"]), criteria_from(kept["criteria"]))
    baseline, about = store.releases.get(last.baseline), {"run": run, "suite": suite, "charge": charge}
    return PromotionRequest(
        candidate=candidate_of(release, baseline, measured, audit=last.audit, golden=last.golden, **about),
        how=replace(at_charge(how, charge), asked=how.asked + 1),
        criteria=criteria,
        reports=store.reports,
        now=now,
        to=to,
    )


def _by_our_rules(how: ComparisonConfig, criteria: Criteria) -> tuple[ComparisonConfig, Criteria]:
    """Replaces old defaults that closed the gate by chance: bands, and hardly a missing episode."""
    if how.rules == RULES:
        return how, criteria
    ours = Criteria()
    return replace(how, rules=RULES), replace(
        criteria,
        max_missing=max(criteria.max_missing, ours.max_missing),
        require_seed_reproducibility=False,
        require_sample_size_sensitivity=False,
        min_interaction_p=ours.min_interaction_p,
    )


def candidate_of(release: Release, baseline: Release, measured: PairedEpisodes, **about: Any) -> Candidate:
    """Makes a candidate of a registered version, with what was measured against the baseline."""
    return Candidate(
        policy=release.policy,
        kind=release.kind,
        baseline=baseline.source,
        candidate=release.source,
        before=measured.before,
        after=measured.after,
        planned=measured.planned,
        lost=measured.lost,
        manifest=release.manifest,
        baseline_manifest=baseline.manifest,
        **about,
    )


def stage_of(store: Store, run: RunRecord) -> Stage | None:
    """Returns the stage that the first run's settings name for an open gate; a mere comparison moves nothing."""
    if run.kind != IMPROVE:
        return None
    block = _settings(store, run).improve or ImproveBlock()
    return None if block.stage is None else Stage(block.stage)
