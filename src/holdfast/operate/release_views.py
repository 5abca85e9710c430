"""Releases with their history and guard, the evidence of each version, and experiments.

A proof is shown from its stored evidence and samples; nothing is decided here. 'holdfast release explain' recomputes
the decision.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from itertools import accumulate
from math import inf, isfinite
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import HoldfastError, NotFound
from holdfast.contracts.evidence import Episode, Evidence, Reason, Verdict
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Experiment, Release, ServedRequest, Stage
from holdfast.operate import briefs, proof_view
from holdfast.operate.briefs import Brief, decision_brief, pick, rate, release_brief
from holdfast.operate.canary_controller import compared, judge, lacking
from holdfast.operate.proof import split, thin
from holdfast.operate.proof_view import MetricSequence
from holdfast.operate.publication import sampled
from holdfast.operate.service import trial_of
from holdfast.pipeline.alpha_account import account_record
from holdfast.pipeline.promote import comparison_config_from
from holdfast.promote import experiment as design
from holdfast.promote.release import next_step
from holdfast.prove.arms import compare_arms
from holdfast.prove.guard import GuardLimits, watch
from holdfast.store.artifacts import sha256_of
from holdfast.store.store import Store

HISTORY = 100
RELEASES = 200
TASKS = 400
READ = 5_000  # requests: of more of them the guard's own reading would take too long to look at
TOO_MANY = (
    "more requests than are weighed at a look; 'holdfast release show' and 'release experiment verdict' weigh all"
)


def releases(store: Store, policy: str | None = None, *, now: float) -> Brief:
    """{"policies": [name], "policy": name|None, "live": release|None, "way_back": id|None,
     "decision": decision|None (what made the live one live),
     "releases": [release + {"decision": decision|None, "next": {"stage", "share"}|None}], newest first,
     "guard": {"release", "beside" (what it is compared with), "trial", "arms": [{"arm", "requests", "errors",
               "latency_s", "success": interval, "reward", "safety_cost"}],
               "readings": [{"metric", "title", "state": "breach"|"clear"|"open", "live", "canary",
               "n", "e", "e_within", "needs", "live_told", "canary_told" (shares, or None where nobody needs to tell),
               "quantiles": [{"quantile", "live", "canary", "live_beyond", "canary_beyond", "e", "e_within"}]}]|None,
               "breaches": [{"code", "text"}], "is_clear", "lacks": [sentence], "note"}|None: nothing is compared,
     "history": [decision + entry's "seq"], newest first, 100 at most, "is_whole",
     "account": see `pipeline.alpha_account.account_record`, or None}

    Without a policy it is the first. release, decision: see `briefs`.
    """
    policies = store.releases.policies()
    if policy is not None and policy not in policies:
        raise NotFound(f"policy {policy!r}", why="has no versions", remedy="'holdfast release list' shows them")
    chosen = policy if policy is not None else next(iter(policies), None)
    payload: Brief = {"policies": policies, "policy": chosen}
    if chosen is None:
        nothing = dict.fromkeys(("live", "way_back", "decision", "guard", "account"))
        return {**payload, **nothing, "releases": [], "history": [], "is_whole": True}
    every = store.releases.of_policy(chosen)[:RELEASES]
    history, is_whole = store.figures.decisions(chosen)
    live = next((release for release in every if release.stage is Stage.LIVE), None)
    return {
        **payload,
        **briefs.live_brief(every, live, history),
        "releases": [
            {**release_brief(release), "decision": briefs.last_decision(release.id, history), "next": _next(release)}
            for release in every
        ],
        "guard": _guard(store, every, now),
        "account": account_record(store, chosen),
        "history": [decision_brief(entry) for entry in reversed(history[-HISTORY:])],
        "is_whole": is_whole,
    }


def proofs(store: Store, *, now: float) -> Brief:
    """{"proofs": [{"release", "policy", "stage", "share", "changed_at", "decision": decision|None}]}: the versions
    that rest on evidence, last changed first, 200 at most; `decision` is the gate's, where it spoke."""
    listed: list[Brief] = []
    for policy in store.releases.policies():
        history, _ = store.figures.decisions(policy)
        for release in store.releases.of_policy(policy):
            if release.evidence is not None:
                payload = {"release": release.id, "policy": policy, "stage": str(release.stage), "share": release.share}
                decision = briefs.gate_decision(release.id, history) or briefs.last_decision(release.id, history)
                listed.append({**payload, "changed_at": release.changed_at, "decision": decision})
    return {"proofs": sorted(listed, key=lambda one: -one["changed_at"])[:RELEASES]}


def proof(store: Store, release_id: str, *, now: float) -> Brief:
    """What the gate's verdict about a version rests on.

    {"release": release, "baseline", "candidate", "suite", "primary", "episodes", "headline",
     "decision": decision|None (the gate's), "moves": [decision] (what came after it, newest first, 20 at most),
     "verdict": {"outcome", "reasons", "needs"}|None,
     "comparisons": [{"metric", "title", "difference", "low", "high", "level", "p_value", "margin", "pairs", "method",
                      "told": {"difference", "interval", "corrected", "note"}}],
     "bands": [{"kind", "within", "p_value_spread", "delta_spread", "of"}],
     "interaction": {"p_value", "lowest", "seeds"}|None, whether the gain depends on the seed,
     "findings": [{"name", "severity", "count", "of", "detail", "blocks", "about": "audit"|"golden"}], those that
                  failed, "checked": n checks of the data (failed or not),
     "missing": {"planned", "baseline", "candidate"}|None, "manifest",
     "tasks": [{"task", "baseline", "candidate", "difference"}] by difference, 400 at most, "tasks_left_out",
     "split": {"better", "worse", "same"},
     "courses": [{"metric", "title", "n": [task number], "mean", "low", "high" (lists), "bar", "level", "proved_at",
                  "refuted_at", "told"}], the confidence sequence as it grew,
     "problem": text|None}

    release, decision: see `briefs`. All differences are so that above 0 is better, `told` too, in people's units.
    NotFound when there is no such version, or it rests on no evidence.
    """
    release = store.releases.get(release_id)
    if release.evidence is None:
        raise NotFound(f"proof of {release.id}", why="it rests on no evidence", remedy="'holdfast prove run' makes it")
    history, _ = store.figures.decisions(release.policy)
    evidence = loads(Evidence, store.blobs.get(release.evidence))
    sampled, problem = _sampled(store, evidence)
    decision = briefs.gate_decision(release.id, history)
    return {
        "release": release_brief(release),
        "headline": f"{release.id} is {release.stage}." if decision is None else decision["sentence"],
        "decision": decision,
        "moves": briefs.decisions_since_gate(release.id, history),
        **_evidence(evidence),
        **sampled,
        "problem": problem,
    }


def experiments(store: Store, *, now: float) -> Brief:
    """{"experiments": [{"name", "kind", "state": "running"|"ended", "created_at", "ended_at", "metric", "why",
    "arms": [{"arm", "weight", "units"}]}]}, newest first, 200 at most; canaries and shadows among them."""
    shown = []
    for trial in store.trials.all()[:RELEASES]:
        units = store.trials.exposed(trial.name) if trial.kind == design.KIND else {}
        shown.append({**_trial(trial), "arms": [_arm(trial, arm, units) for arm in trial.arms]})
    return {"experiments": shown}


def experiment(store: Store, name: str, *, now: float) -> Brief:
    """{"experiment": as in `experiments`, its arms with {"requests", "errors", "latency_s", "success": interval,
    "reward", "safety_cost"}, "settings",
    "ruling": {"call", "arm", "needs", "reasons": [{"code", "text"}], "exposed", "told", "means", "ratio_p",
    "told_p"}|None,
    "note": why there is no ruling}"""
    trial = store.trials.get(name)
    units = store.trials.exposed(name)
    asked = {arm.arm: arm for arm in store.figures.asked(name)}
    arms = [{**_arm(trial, arm, units), **_outcomes(asked.get(arm))} for arm in trial.arms]
    ruling, note = _ruling(store, trial, sum(arm.requests for arm in asked.values()), now)
    payload = {"experiment": {**_trial(trial), "arms": arms}, "settings": dict(trial.settings)}
    return {**payload, "ruling": ruling, "note": note}


class Statistics:
    """What `promote.experiment` asks, answered by `prove`."""

    def __init__(self, asked: design.Design, now: float = inf) -> None:
        self._design, self._now = asked, now

    def compare(self, outcomes: Sequence[design.ArmOutcome], alpha: float, part: float) -> Verdict:
        width = self._design.width  # outcomes come on a scale from 0 to 1
        least, hoped = self._design.min_effect / width, self._design.worthwhile / width
        return compare_arms(outcomes, part=part, alpha=alpha, min_effect=least, worthwhile=hoped)

    def breaches(
        self, control: Sequence[ServedRequest], treatment: Sequence[ServedRequest], alpha: float
    ) -> tuple[Reason, ...]:
        limits: dict[str, Any] = dict(self._design.limits)
        usual = GuardLimits(alpha=alpha, reward_range=self._design.reward_range, mature_after=self._design.mature_after)
        return watch(control, treatment, replace(usual, **limits), now=self._now).breaches


def ruling(store: Store, trial: Experiment, now: float) -> design.Ruling:
    """Rules on the experiment as it is now."""
    statistics, name = Statistics(design.design_of(trial), now), trial.name
    how: Any = {"compare": statistics.compare, "guard": statistics.breaches, "now": now}
    return design.verdict(trial, store.trials.exposures(name), store.trials.served(name), **how)


def _ruling(store: Store, trial: Experiment, requests: int, now: float) -> tuple[Brief | None, str | None]:
    if trial.kind != design.KIND:
        return None, f"a {trial.kind}: its guard rules, see the releases"
    if requests > READ:
        return None, TOO_MANY
    try:
        made = ruling(store, trial, now)
    except HoldfastError as error:
        return None, str(error)
    maps = {name: dict(found) for name, found in pick(made, "exposed told means").items()}
    reasons = [asdict(reason) for reason in made.reasons]
    return {**pick(made, "arm needs ratio_p told_p"), **maps, "call": str(made.call), "reasons": reasons}, None


def _trial(trial: Experiment) -> Brief:
    return {
        **pick(trial, "name kind created_at ended_at"),
        "state": "running" if trial.ended_at is None else "ended",
        "metric": trial.settings.get("metric"),
        "why": trial.settings.get("why"),
    }


def _arm(trial: Experiment, arm: str, units: Mapping[str, int]) -> Brief:
    return {"arm": arm, "weight": trial.arms[arm], "units": units.get(arm)}


def _outcomes(asked: Any) -> Brief:
    if asked is None:
        nothing = dict.fromkeys(("latency_s", "reward", "safety_cost"))
        return {"requests": 0, "errors": 0, "success": rate(0, 0), **nothing}
    success = rate(asked.succeeded, asked.told)
    return {**pick(asked, "requests errors latency_s reward safety_cost"), "success": success}


def _next(release: Release) -> Brief | None:
    step = next_step(release)
    return None if step is None else {"stage": str(step[0]), "share": step[1]}


def _guard(store: Store, releases: Sequence[Release], now: float) -> Brief | None:
    if (pair := compared(releases)) is None:
        return None
    release, beside = pair
    trial = trial_of(release, beside)
    assert trial is not None  # of what is under way
    asked = store.figures.asked(trial.name)
    arms = [{"arm": arm.arm, **_outcomes(arm)} for arm in asked]
    payload: Brief = {"release": release.id, "beside": beside.id, "trial": trial.name, "arms": arms, "note": None}
    nothing: Brief = {"readings": None, "breaches": [], "is_clear": None, "lacks": []}
    if sum(arm.requests for arm in asked) > READ:
        return {**payload, **nothing, "note": TOO_MANY}
    limits = GuardLimits()
    status = judge(store, release, beside, limits, now)
    names = "metric state live canary n e e_within needs live_told canary_told"
    return {
        **payload,
        "readings": [
            {
                **pick(reading, names),
                "title": proof_view.unit(metric).title,
                "quantiles": [asdict(at) for at in reading.quantiles],
            }
            for metric, reading in status.readings.items()
        ],
        "breaches": [asdict(breach) for breach in status.breaches],
        "is_clear": status.is_clear,
        "lacks": list(lacking(status, limits, release.kind)),
    }


def _evidence(evidence: Evidence) -> Brief:
    verdict = evidence.verdict
    found = [(finding, "audit") for finding in evidence.audit or ()] + [
        (finding, "golden") for finding in evidence.golden or ()
    ]
    return {
        **pick(evidence, "baseline candidate suite primary episodes"),
        "verdict": verdict and {"outcome": str(verdict.outcome), "reasons": [*verdict.reasons], "needs": verdict.needs},
        "comparisons": [
            {
                "metric": metric,
                "title": proof_view.merit(metric),
                **pick(one, "difference corrected p_value margin pairs method"),
                **pick(one.interval, "low high level"),
                "told": {
                    "difference": proof_view.gain(metric, one.difference),
                    "interval": proof_view.gains(metric, one.interval.low, one.interval.high),
                    "corrected": "" if one.corrected is None else proof_view.gain(metric, one.corrected),
                    "note": proof_view.means(metric, one.difference),
                },
            }
            for metric, one in evidence.comparisons.items()
        ],
        "bands": [pick(band, "kind within p_value_spread delta_spread of") for band in evidence.bands.values()],
        "interaction": evidence.interaction and pick(evidence.interaction, "p_value lowest seeds"),
        "findings": [{**asdict(finding), "about": about} for finding, about in found if finding.count > 0],
        "checked": len(found),
        "missing": None if evidence.missing is None else dict(evidence.missing),
        "manifest": dict(evidence.manifest),
    }


NOTHING: Mapping[str, Any] = {
    "tasks": [],
    "tasks_left_out": 0,
    "split": {"better": 0, "worse": 0, "same": 0},
    "courses": [],
}


def _sampled(store: Store, evidence: Evidence) -> tuple[Mapping[str, Any], str | None]:
    """Computes what the samples show, or says why they show nothing."""
    if evidence.samples is None:
        return NOTHING, "its samples were not kept"
    try:
        path = store.blobs.path(evidence.samples)
    except HoldfastError as error:
        return NOTHING, str(error)
    return _drawn(path, evidence.samples, evidence.primary)


@lru_cache(maxsize=16)
def _drawn(path: Path, sha256: str, primary: str) -> tuple[Mapping[str, Any], str | None]:
    """A blob is named by its content: the same name gives the same picture."""
    if sha256_of(path) != sha256:
        return NOTHING, "its samples are not the ones that were kept; 'holdfast store check' says more"
    kept = json.loads(path.read_bytes())
    before, after = ([decode(Episode, one) for one in kept[name]] for name in ("baseline", "candidate"))
    how = comparison_config_from(kept["weighing"])
    every, *courses = sampled(before, after, how, primary)
    if not every:
        return NOTHING, "no task was done by both"
    tasks = [
        {"task": proof_task.name, **pick(proof_task, "baseline candidate difference")}
        for proof_task in sorted(every, key=lambda task: -task.difference)
    ]
    half = TASKS // 2
    return {
        "tasks": tasks if len(tasks) <= TASKS else [*tasks[:half], *tasks[-half:]],
        "tasks_left_out": max(0, len(tasks) - TASKS),
        "split": dict(zip(("better", "worse", "same"), split(every), strict=True)),
        "courses": [_course(course) for course in courses if course is not None],
    }, None


def _course(found: MetricSequence) -> Brief:
    metric, gains, bar, proved, refuted = found.metric, found.differences, found.bar, found.proved_at, found.refuted_at
    means = [total / n for n, total in enumerate(accumulate(gains), start=1)]
    places = thin(len(gains), [n - 1 for n in (proved, refuted) if n is not None])
    message = f"proved after {proved}" if proved else f"disproved after {refuted}" if refuted else "not proved yet"
    return {
        "metric": metric,
        "title": proof_view.merit(metric),
        "n": [place + 1 for place in places],
        **{
            name: [values[place] for place in places]
            for name, values in (("mean", means), ("low", found.low), ("high", found.high))
        },
        "bar": bar if isfinite(bar) else None,
        **pick(found, "level proved_at refuted_at"),
        "told": f"{proof_view.merit(metric)}: {message} of {len(gains)} tasks, however often one looks",
    }
