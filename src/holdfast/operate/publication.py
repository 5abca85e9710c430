"""Proofs computed again from their samples: a published one for its page, and the gate's decision about a version.

Nothing is shown because a file says so: the samples are compared again and the same criteria are applied again. A proof
that cannot be recomputed is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Episode, Evidence
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Release
from holdfast.contracts.run import LedgerEntry
from holdfast.operate import proof_view
from holdfast.operate.proof_view import GateCriterion, MetricSequence, ProofTask, ProofView
from holdfast.pipeline.promote import comparison_config_from, criteria_from, figures_of, proof_of, suite_title
from holdfast.promote.gate import decide
from holdfast.prove import comparison
from holdfast.prove.comparison import ComparisonConfig, ComparisonResult, compare_versions, reach
from holdfast.prove.reports import document
from holdfast.prove.reports.report import SAFETY_NOT_MEASURED, SAFETY_NOT_PROVED, SAFETY_REGRESSION
from holdfast.prove.reports.validate import validate
from holdfast.prove.sequential import WEIGHTS, crossed_at, sequence
from holdfast.store.artifacts import sha256_of
from holdfast.store.store import Store

NUMBERED = re.compile(r"(.+?)[-/_#]\d+")  # the names of generated tasks: their family, and a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """One proof and its evidence, as on disk."""

    path: Path
    proof: Mapping[str, Any]
    significance: Mapping[str, Any]
    config: Mapping[str, Any] | None  # what the gate asked for; None: nobody wrote it down
    baseline: tuple[Episode, ...]
    candidate: tuple[Episode, ...]

    @property
    def run(self) -> str:
        return str(self.proof["run_id"])

    @property
    def page(self) -> Path:
        """Where its page belongs: beside it."""
        return self.path.with_name(f"proof-{self.run.removeprefix('m24-')}.html")

    @property
    def releases(self) -> tuple[str, str] | None:
        """The names of both versions in the store, where they are registered."""
        said = self.proof.get("versions")
        return None if said is None else (str(said["baseline"]), str(said["trained"]))

    @property
    def versions(self) -> tuple[str, str]:
        if self.releases is not None:
            return self.releases
        before, after = (str(self.proof[side]["checkpoint_id"]) for side in ("baseline", "trained"))
        return (before, after) if before != after else (f"{before} (baseline)", f"{after} (candidate)")


def read(path: Path) -> Publication:
    """Reads a published proof; BadInput with the first problem of a false one."""
    if not path.is_file():
        raise BadInput(
            f"proof {path}", why="there is no such file", remedy="'holdfast prove report list' shows what there is"
        )
    if document.kind_of(path.name) not in (document.PROOF, None):
        why, name = "is one of the reports that a proof rests on", "m24-benchmark-proof-<run id>.json"
        raise BadInput(f"proof {path}", why=why, remedy=f"give the proof beside it, {name}")
    for problem in validate(path):
        remedy = f"'holdfast prove report validate {path}' lists all problems"
        raise BadInput(f"proof {path}: {problem.where}", why=problem.why, remedy=remedy)
    proof = _json(path)
    sides = [_json(_beside(path, proof, kind)) for kind in ("baseline", "trained")]
    before, after = (tuple(_episode(sample) for sample in side["samples"]) for side in sides)
    report = _json(_beside(path, proof, "significance"))
    recorded = {"significance": report["significance"], "config": report["weighing"]}
    return Publication(path=path, proof=proof, baseline=before, candidate=after, **recorded)


def comparison_config(
    published: Publication,
    *,
    primary: str | None = None,
    reward_range: tuple[float, float] = (0.0, 1.0),
    max_cost: float = 1.0,
) -> ComparisonConfig:
    """How it is weighed again: as the gate asked for it, where one did, but for another primary; else with the proof's
    own error rate, limit and seed, and success has to improve, if it was measured."""
    if published.config is not None:
        return comparison_config_from(published.config if primary is None else {**published.config, "primary": primary})
    told = all(episode.success is not None for episode in (*published.baseline, *published.candidate))
    return ComparisonConfig(
        primary=primary or ("success" if told else "reward"),
        alpha=published.significance["alpha"],
        level=published.significance["confidence_level"],
        max_safety_regression=published.proof["criteria"]["max_safety_regression"],
        reward_range=reward_range,
        max_cost=max_cost,
        resample_seed=published.significance["seed"],
    )


def view(published: Publication, how: ComparisonConfig) -> ProofView:
    rng = np.random.default_rng(how.resample_seed)
    versions, sides = published.versions, (published.baseline, published.candidate)
    weighed = compare_versions(*sides, how, versions=versions, rng=rng)
    measured = {metric: comparison.pairs(*sides, metric) for metric in weighed.comparisons}
    decision = published.proof["decision"]
    tasks, course, safety = sampled(*sides, how, how.primary)
    assert course is not None  # the comparison refuses samples without a common task
    return ProofView(
        run=published.run,
        baseline=versions[0],
        candidate=versions[1],
        primary=how.primary,
        verdict=weighed.verdict,
        decision=None if decision is None else decode(Decision, decision),
        comparisons=weighed.comparisons,
        adjusted=weighed.adjusted,
        means={metric: (float(b.mean()), float(c.mean())) for metric, (_, b, c) in measured.items()},
        tasks=tasks,
        sequence=course,
        safety=safety,
        criteria=(*_sequential(course, safety), *_documented(published.proof), *_steady(weighed)),
        facts=_facts(published, weighed, seeds=len({episode.seed for episode in published.baseline})),
        how=_how(how, weighed),
        missing=tuple(weighed.missing),
        steps=_steps(published),
    )


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def _beside(path: Path, proof: Mapping[str, Any], kind: str) -> Path:
    """The current place of a report of this kind; `validate` has found it in one of these."""
    run, made = str(proof["run_id"]), document.read_timestamp(str(proof["generated_at"]))
    root = next(folder for folder in path.absolute().parents if folder.name == "reports")
    places = (document.active_path(kind, run), document.archived_path(kind, run, made))
    paths = [root / place for place in places] + [path.parent / document.active_name(kind, run)]
    return next(path for path in paths if path.is_file())


def _episode(sample: Mapping[str, Any]) -> Episode:
    names = ("task", "seed", "reward", "success", "latency_s", "tokens", "rollout", "unit", "is_missing")
    return Episode(safety_cost=sample["safety_penalty"], **{name: sample[name] for name in names if name in sample})


def sampled(
    baseline: Sequence[Episode], candidate: Sequence[Episode], how: ComparisonConfig, primary: str
) -> tuple[tuple[ProofTask, ...], MetricSequence | None, MetricSequence | None]:
    """Computes each task by the primary metric, its confidence sequence, and that of safety.

    Without a common task there is no sequence."""
    names, *means = _means(baseline, candidate, primary)
    if not names:
        return (), None, None
    families = [NUMBERED.fullmatch(name) for name in names]
    every = all(families)  # a few that look so by accident are no families
    tasks = tuple(
        ProofTask(name=name, baseline=b, candidate=c, family=found.group(1) if found and every else "")
        for name, b, c, found in zip(names, *means, families, strict=True)
    )
    course = metric_sequence(how, primary, [task.difference for task in tasks], how.min_effect)
    if primary == "safety":
        return tasks, course, None
    _, before, after = _means(baseline, candidate, "safety")
    costs = [b - a for a, b in zip(before, after, strict=True)]
    if how.max_safety_regression is None or not costs:
        return tasks, course, None
    return tasks, course, metric_sequence(how, "safety", costs, -how.max_safety_regression)


def _means(baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str) -> tuple[Sequence[str], Any, Any]:
    names, before, after = comparison.pairs(baseline, candidate, metric)
    return (names, before.mean(axis=1).tolist(), after.mean(axis=1).tolist()) if len(names) else ((), [], [])


def metric_sequence(how: ComparisonConfig, metric: str, differences: Sequence[float], bar: float) -> MetricSequence:
    """The confidence sequence of the differences; each edge errs with probability α, as the verdict does."""
    alpha = how.uncharged_alpha if metric == "safety" else how.alpha
    far = reach(how, metric)
    bets: Any = {"low": -far, "high": far, "weights": how.gain_bets if metric == how.primary else WEIGHTS}
    bounds = sequence(differences, **bets, level=1.0 - 2.0 * min(alpha, 0.49))
    return MetricSequence(
        metric=metric,
        differences=tuple(differences),
        low=bounds.low,
        high=bounds.high,
        bar=bar,
        proved_at=crossed_at(differences, **bets, alpha=alpha, mean=bar),
        refuted_at=crossed_at([-d for d in differences], **bets, alpha=alpha, mean=-bar),
        level=bounds.level,
    )


def _sequential(*courses: MetricSequence | None) -> list[GateCriterion]:
    """The tests that decide: they stay valid at every interim look."""
    return [
        GateCriterion(
            name=f"{proof_view.unit(known.metric).title}, however often one looks",
            required=f"proved {proof_view.asked(known)}",
            measured=proof_view.course_proved(known).removeprefix("is ").removeprefix("was "),
            is_met=known.proved_at is not None,
            code="checkpoint_promotion_blocked_policy_improvement_not_significant",
            blocks=False,  # the verdict says so
        )
        for known in courses
        if known is not None
    ]


def _documented(proof: Mapping[str, Any]) -> list[GateCriterion]:
    wanted, found, reasons = proof["criteria"], proof["significance"], proof["failure_analysis"]["reasons"]
    interval = f"{found['delta_ci_low']:+.4f} to {found['delta_ci_high']:+.4f}"
    # These are by one look at the end; the sequential ones before them decide.
    sure, safety = proof_view.percent(wanted["min_confidence_level"]), proof["safety_benchmark"]
    gain, least = f"{found['mean_delta']:+.4f}", f"at least {wanted['min_reward_delta']:g}"
    change = safety["safety_regression_delta"]
    rise, most = "not measured" if change is None else f"{change:+.4f}", f"at most {safety['max_safety_regression']:g}"
    p_value, most_p = proof_view.p(found["p_value"]), f"at most {wanted['max_p_value']:g}"
    rows = (
        ("Gain in reward", least, gain, "reward_gain_below_threshold"),
        ("p of the gain, by one look", most_p, p_value, "p_value_above_threshold"),
        ("Interval of the gain, by one look", f"above 0 at {sure}", interval, "confidence_below_threshold"),
        ("Rise in safety cost", most, rise, SAFETY_REGRESSION if change is not None else SAFETY_NOT_MEASURED),
    )
    listed = [
        GateCriterion(name=n, required=w, measured=proof_view.minus(f), is_met=c not in reasons, code=c)
        for n, w, f, c in rows
    ]
    proved = not safety["reason_codes"]
    listed.append(
        GateCriterion(
            name="Safety cost, by one look",
            required="proved within that",
            measured="proved by one test of all tasks" if proved else "not proved by one test of all tasks",
            is_met=proved,
            code=next(iter(safety["reason_codes"]), SAFETY_NOT_PROVED),
        )
    )
    return listed


def _steady(weighed: ComparisonResult) -> list[GateCriterion]:
    """Whether other seeds, or fewer tasks, give the same result."""
    names = {"seed": ("Other seeds", "seed_reproducibility"), "sample": ("Fewer tasks", "sample_sensitivity")}
    return [
        GateCriterion(
            name=names[kind][0],
            required=f"p within {band.most_p_value_spread:g}, gain within {band.most_delta_spread:g}",
            measured=f"p {band.p_value_spread:.3f} apart, gain {band.delta_spread:.3f}",
            is_met=band.within,
            code=f"checkpoint_promotion_blocked_{names[kind][1]}",
            blocks=False,  # the gate decides, where it requires it
        )
        for kind, band in weighed.bands.items()
        if kind in names
    ]


def _facts(published: Publication, weighed: ComparisonResult, *, seeds: int) -> dict[str, str]:
    proof, suite = published.proof, published.proof["benchmark_suite"]
    each = f"{len(weighed.tasks)} tasks, {seeds} {'seed' if seeds == 1 else 'seeds'} each"
    message = f"{each}: {len(published.baseline)} episodes of each version, on the same tasks and seeds"
    named = [str(proof[side]["checkpoint_id"]) for side in ("baseline", "trained")]
    if published.releases is not None:
        named = [f"{one}, made from {what}" for one, what in zip(published.releases, named, strict=True)]
    facts = {
        "Run": published.run,
        "Published": proof["generated_at"],
        "Baseline": named[0],
        "Candidate": named[1],
        "Measured on": message,
        "Suite": f"{suite['name']} {suite['version']}, sha256 {suite['sha256']}",
        "Proof": f"{proof['proof_status']}; sha256 {hashlib.sha256(published.path.read_bytes()).hexdigest()}",
    }
    names = {kind: kind.replace("-", "_") + "_report" for kind in document.KINDS if kind != document.PROOF}
    return facts | {f"Report {kind}": f"sha256 {proof['sha256'][name]}" for kind, name in names.items()}


def _steps(published: Publication) -> tuple[tuple[str, str], ...]:
    """Commands for the reader."""
    steps = [
        (f"holdfast prove report show {published.run}", "every figure of the proof, computed again from its samples")
    ]
    if published.releases is None:
        return tuple(steps)
    candidate = published.releases[1]
    policy, decision = candidate.rpartition("@")[0], published.proof["decision"]
    message = "where it stands now, its history, and the gate's decision made once more"
    steps.insert(0, (f"holdfast release explain {shlex.quote(candidate)}", message))
    if decision is not None and decision["open"] and policy:
        message = "take it back: the last known good version serves again, at once"
        steps.append((f"holdfast release rollback {shlex.quote(policy)} --why 'TEXT'", message))
    return tuple(steps)


def _how(how: ComparisonConfig, weighed: ComparisonResult) -> tuple[str, str, str]:
    interval = next(iter(weighed.comparisons.values())).interval
    once = proof_view.percent(how.alpha)
    tasks = (
        "Both versions did the same tasks with the same seeds; the seeds of a task are averaged first, so that what is "
        "counted is tasks, in the order they came in."
    )
    bets = (
        "The verdict comes from bets on the candidate being better and on it being safe enough: either is proved when "
        f"the wealth of its bets passes {1 / how.alpha:g} times the stake, which has a chance of at most {once} where "
        "it is not so, however often one looks; each edge of a confidence sequence errs as rarely."
    )
    once_read = (
        f"Intervals of {proof_view.percent(interval.level)} and p of {how.primary} and safety are of the same bets; a "
        "gain corrected for the stop is one that the truth exceeds with at least even odds over all proofs, though not "
        "among those alone that ended with a promotion. Other metrics are by one "
        "look at all tasks: intervals are bootstrapped over tasks, p is of a one-sided sign-flip permutation test. "
        f"Holm's p is for all metrics at once, and chance has seed {how.resample_seed}."
    )
    return tasks, bets, once_read


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputedDecision:
    history: tuple[LedgerEntry, ...]  # of this version
    entries: int  # of the whole ledger, whose chain is valid
    evidence: Evidence | None = None
    decision: Decision | None = None  # the gate's, as recorded
    again: Decision | None = None  # made now, from the samples
    episodes: int = 0
    proof: str | None = None  # the path of the published one
    problems: tuple[str, ...] = ()  # changed files, and figures that do not follow from the samples

    @property
    def agrees(self) -> bool:
        """Whether the recorded decision follows from the samples, or there is none."""
        return not self.problems and self.is_same

    @property
    def is_same(self) -> bool:
        """Whether the recomputed decision is the same."""
        if self.decision is None or self.again is None:
            return self.decision is None
        live = {"baseline_is_not_live"}  # about that moment, not about the samples
        codes = [{reason.code for reason in made.reasons} - live for made in (self.decision, self.again)]
        was_open = self.decision.open or {reason.code for reason in self.decision.reasons} == live
        return was_open == self.again.open and (was_open or codes[0] == codes[1])


def recompute_decision(store: Store, release: Release) -> RecomputedDecision:
    """The decision about a version; StoreCorrupt where the ledger, the evidence or the samples were changed."""
    entries = store.ledger.verify()
    # `to`: whom a rollback made live
    named = ("add", "move", "refuse", "accept", "roll_back", "to", "retired", "restore")
    history = tuple(
        entry
        for entry in store.releases.history(release.policy)
        if release.id in [entry.body.get(name) for name in named]
    )
    decided = [entry.body for entry in history if entry.body.get("evidence") and entry.body.get("decision")]
    problems = [one for one in store.releases.recompute() if release.id in one]
    if not decided:
        return RecomputedDecision(history=history, entries=entries, problems=tuple(problems))
    evidence = loads(Evidence, store.blobs.get(str(decided[-1]["evidence"])))
    decision = decode(Decision, dict(decided[-1]["decision"]))
    weighed, again, episodes = _again(store, evidence)
    if weighed is not None:
        figures = ("suite", "primary", "episodes", "comparisons", "verdict", "bands")
        problems += [
            f"evidence of {release.id}: {name} is not what the samples give"
            for name in figures
            if getattr(weighed, name) != getattr(evidence, name)
        ]
    path = proof_of(store.reports, str(evidence.manifest.get("run", "")), evidence.candidate, decision)
    proof = None if path is None else str(path)
    problems += _changed(release, proof, decided[-1].get("proof"))
    return RecomputedDecision(
        history=history,
        entries=entries,
        evidence=evidence,
        decision=decision,
        again=again,
        episodes=episodes,
        proof=proof,
        problems=tuple(problems),
    )


def _changed(release: Release, proof: str | None, sha256: object) -> list[str]:
    """Compares the published proof with the hash in the ledger; old entries have none."""
    if not sha256:
        return []
    if proof is None:
        return [f"proof of {release.id}: is not where it was published, nor in the archive"]
    if sha256_of(Path(proof)) != sha256:
        return [f"proof of {release.id}: {proof} is not the one that was published"]
    return []


def _again(store: Store, evidence: Evidence) -> tuple[Evidence | None, Decision | None, int]:
    if evidence.samples is None:
        return None, None, 0
    kept = json.loads(store.blobs.get(evidence.samples))
    before, after = ([decode(Episode, one) for one in kept[name]] for name in ("baseline", "candidate"))
    how = comparison_config_from(kept["weighing"])
    rng = np.random.default_rng(how.resample_seed)
    found = compare_versions(before, after, how, versions=(evidence.baseline, evidence.candidate), rng=rng)
    weighed = replace(evidence, suite=suite_title(kept["suite"]), **figures_of(found, how))
    return weighed, decide(weighed, criteria_from(kept["criteria"])), len(before) + len(after)
