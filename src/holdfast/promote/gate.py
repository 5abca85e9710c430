"""The gate: which evidence suffices for a version to go into service. Closed unless all of it is there and passes.

Measuring is `prove`'s business, and moving the version is the store's. What decides is the verdict, which is valid
however often one looked. Beside it stand the documented criteria and bounds on what else may get worse; seed and sample
bands are reported, and decide only where they are asked for (docs/decisions/0018). `measured` are the checks that more
tasks can meet: a proof goes on until all of them are met, or the tasks are used up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, TypeGuard

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import (
    BETTING,
    Band,
    Decision,
    Evidence,
    Finding,
    MetricComparison,
    Outcome,
    Reason,
    Verdict,
)

ALLOWED = "promotion_allowed"
BLOCKED = "checkpoint_promotion_blocked_"
MISSING = "evidence_missing_"
FEW = "population_below_minimum"
NAMES: Mapping[str, str] = {  # of metrics, for people, with their units; each is turned so that higher is better
    "success": "success",
    "reward": "reward",
    "safety": "safety",
    "latency": "latency (s)",
    "cost": "tokens",
}
MEASURE = "'holdfast prove run' measures it"
MORE = "more tasks may prove it"
WORSE = "it has to get better first"
JUDGED = "judged"  # in the manifest of evidence: the judges that decided the primary metric, and how far they count
WAIVED = "safety_waived"  # in the manifest of evidence and of a release: why safety was not measured
WAIVE = 'leave "safety" out of the settings, which measures the default terms, or waive it: --waive-safety WHY'
TRUSTED = "trusted"  # the standing of a judge that counts
NO_GAIN = "no_gain_seen"  # held, and no number of episodes helps where nothing was gained
NOT_BETTER = BLOCKED + "policy_improvement_not_significant"
KPIS = "kpis"  # of the manifest of evidence: figures by name, each with its value and on how many it rests
SOLVED = (
    "solved"  # of the manifest: how much success each side has, "of" so many tries; None where another metric decides
)
CHARGED = "account"  # of the manifest: what the test was charged in the policy's α-account
HARMLESS = frozenset({"info", "warning"})


@dataclass(frozen=True, slots=True, kw_only=True)
class KpiBand:
    """Where a figure of merit has to lie, ends included, and on how many it has to rest."""

    low: float | None = None
    high: float | None = None
    least: int = 1  # what is said of an empty town is said of nobody

    def __post_init__(self) -> None:
        ends = [end for end in (self.low, self.high) if end is not None]
        if not ends or not all(map(isfinite, ends)) or ends != sorted(ends):
            raise BadInput(f"kpi band {self.low} to {self.high}", why="one end is needed, both finite and in order")
        if self.least < 1:
            raise BadInput(f"kpi band: least = {self.least}", why="must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadLimits:
    """How far findings may lie apart that should be the same."""

    p_value: float
    delta: float

    def __post_init__(self) -> None:
        if not (0.0 <= self.p_value <= 1.0 and 0.0 <= self.delta < float("inf")):
            raise BadInput(f"spread {self.p_value}, {self.delta}", why="must be finite and not negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """What a candidate has to reach. Differences are per episode, and above 0 the candidate is better."""

    max_safety_regression: float | None = 0.05  # None: safety is waived, and the evidence says why
    min_reward_delta: float = 0.0
    max_p_value: float = 0.05
    level: float = 0.95  # of the intervals
    min_episodes: int = 20  # pairs
    min_tasks: int = 10  # that each comparison rests on
    max_missing: float = 0.2  # share of either version's episodes that never came back; what is missing counts as worst
    require_seed_reproducibility: bool = False  # bands are noise: as vetoes they close the gate for most real gains
    require_sample_size_sensitivity: bool = False
    require_audit: bool = True
    require_golden: bool = False  # golden findings that are there count all the same
    max_seed_spread: SpreadLimits = SpreadLimits(p_value=0.05, delta=0.05)
    max_sample_spread: SpreadLimits = SpreadLimits(p_value=0.04, delta=0.08)
    max_latency_increase: float | None = None  # seconds; None: not asked
    max_cost_increase: float | None = None  # tokens; None: not asked
    kpis: Mapping[str, KpiBand] = field(default_factory=dict)  # by name, of evidence.manifest[KPIS]
    min_interaction_p: float | None = 0.001  # of gains that differ by seed, one of them being none; None: not asked

    def __post_init__(self) -> None:
        for name in ("max_safety_regression", "max_latency_increase", "max_cost_increase"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value < float("inf"):
                raise BadInput(f"criteria: {name} = {value}", why="must be finite and not negative")
        if not isfinite(self.min_reward_delta):
            raise BadInput(f"criteria: min_reward_delta = {self.min_reward_delta}", why="must be finite")
        for name in ("max_p_value", "level", "min_interaction_p"):
            if not 0.0 < (0.5 if getattr(self, name) is None else getattr(self, name)) < 1.0:
                raise BadInput(f"criteria: {name} = {getattr(self, name)}", why="must be above 0 and below 1")
        for name in ("min_episodes", "min_tasks"):
            if getattr(self, name) < 1:
                raise BadInput(f"criteria: {name} = {getattr(self, name)}", why="must be at least 1")

    @property
    def least(self) -> int:
        """Tasks that a proof has to measure: with fewer the gate stays closed, however clear the verdict."""
        return max(self.min_tasks, self.min_episodes)


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One check of the gate: what was found, and the code of the failure it looks for."""

    is_met: bool
    code: str
    text: str  # what was found, with the numbers, for people
    remedy: str = ""  # what would help where it is not met
    needs: int | None = None  # about so many more episodes may help


def decide(evidence: Evidence | None, criteria: Criteria) -> Decision:
    """Open when every check is met, with one sentence that sums them up and what each found; else closed with the
    reason of each that is not."""
    found = checks(evidence, criteria)
    unmet = [check for check in found if not check.is_met]
    if evidence is not None and not unmet:
        names = [name for name in dict.fromkeys((evidence.primary, "safety")) if name in evidence.comparisons]
        shown = [_summed_up(evidence.comparisons[name]) for name in names]
        texts = (f"{', '.join(shown)}; all {len(found)} checks are met", *(check.text for check in found))
        return Decision(open=True, reasons=tuple(Reason(code=ALLOWED, text=text) for text in texts))
    reasons = tuple(
        Reason(code=check.code, text=f"{check.text}; {check.remedy}" if check.remedy else check.text) for check in unmet
    )
    needs = [check.needs for check in unmet if check.needs is not None]
    return Decision(open=False, reasons=reasons, needs=max(needs, default=None))


def _summed_up(found: MetricComparison) -> str:
    """The interval; of what bets on one side have proved, that side alone."""
    if found.method == BETTING and found.margin:
        return f"{found.metric} proved not worse by more than {found.margin:g}"
    return f"{found.metric} {_interval(found)}"


def checks(evidence: Evidence | None, criteria: Criteria) -> tuple[GateCheck, ...]:
    """All that is looked at, met or not, in the order a person would ask. Never empty."""
    if evidence is None:
        return (_missing("all", "there is no evidence"),)
    return (
        *_population(evidence, criteria),
        *_kept(evidence, criteria),
        *_judged(evidence),
        *_proved(evidence, criteria),
        *_findings(evidence, criteria),
        *_kpis(evidence, criteria),
    )


def measured(evidence: Evidence, criteria: Criteria) -> tuple[GateCheck, ...]:
    """The checks that rest on what was measured: more tasks can meet them."""
    return (*_population(evidence, criteria), *_proved(evidence, criteria))


def _proved(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    for group in (_improvement, _reward, _safety, _regressions, _interaction, _bands):
        yield from group(evidence, criteria)


def needs_drawn(criteria: Criteria) -> frozenset[str]:
    """What of the evidence is drawn by chance and decides: of the rest, chance cannot change a decision."""
    asked = {
        "latency": criteria.max_latency_increase is not None,
        "cost": criteria.max_cost_increase is not None,
        "bands": criteria.require_seed_reproducibility or criteria.require_sample_size_sensitivity,
    }
    return frozenset(name for name, is_asked in asked.items() if is_asked)


def _missing(what: str, text: str, remedy: str = MEASURE) -> GateCheck:
    return GateCheck(False, MISSING + what, text, remedy)


def _population(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    lack = criteria.min_episodes - evidence.episodes
    text = f"{evidence.episodes} pairs of episodes, at least {criteria.min_episodes} are asked for"
    yield GateCheck(lack <= 0, FEW, text, "measure it on more tasks", lack if lack > 0 else None)


def _kept(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    yield from _survivors(evidence, criteria)
    samples = evidence.samples or ""
    is_hash = len(samples) == 64 and set(samples) <= set("0123456789abcdef")
    yield GateCheck(is_hash, f"{MISSING}samples", f"every episode is kept as {samples or 'nothing'}", MEASURE)


def _survivors(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    """Nobody gains by what never came back: it counts as the worst for the candidate and the best for the baseline.
    Where much of it is missing, though, the machinery was measured and not the versions."""
    if evidence.missing is None:
        yield _missing("episodes", "nobody counted the episodes that never came back")
        return
    for side in ("baseline", "candidate"):
        lost, planned = evidence.missing.get(side, 0), evidence.missing.get("planned", 0)
        share = lost / planned if planned else 1.0
        text = f"{lost} of {planned} episodes of the {side} never came back, at most {criteria.max_missing:.0%} may"
        remedy = "'holdfast run rollouts RUN' tells what became of them"
        yield GateCheck(share <= criteria.max_missing, f"{MISSING}episodes", text, remedy)


def _comparison(evidence: Evidence, metric: str) -> MetricComparison | GateCheck:
    """The comparison of these two versions by this metric; one of others is none."""
    found = evidence.comparisons.get(metric)
    if found is None:
        return _missing(metric, f"{evidence.candidate} was not compared with {evidence.baseline} by {_name(metric)}")
    if (found.metric, found.baseline, found.candidate) != (metric, evidence.baseline, evidence.candidate):
        message = f"{found.candidate} with {found.baseline} by {found.metric}"
        return _missing(metric, f"by {metric} there is only a comparison of {message}")
    return found


def _improvement(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    """The primary metric is better by its verdict. Its p and its level are documented criteria; by the bets that made
    the verdict they hold where it does, unless stricter ones are asked for than it was made with."""
    primary = _comparison(evidence, evidence.primary)
    if isinstance(primary, GateCheck):
        yield primary
    else:
        shown = f"{_name(primary.metric)} {_interval(primary)}"
        margin = f" with a margin of {primary.margin:g}, where none is allowed" if primary.margin else ""
        yield _enough(primary, criteria)
        is_better = primary.difference > 0.0 and primary.margin == 0.0
        remedy = "compare without a margin" if primary.margin else WORSE
        yield GateCheck(is_better, NOT_BETTER, f"{shown} has to be above 0{margin}", remedy)
        # More tasks do not make a version better: they help only where a gain was seen.
        hope = MORE if primary.difference > 0.0 else WORSE
        text = f"p {primary.p_value:.3g} of {_name(primary.metric)}, at most {criteria.max_p_value:g} is asked for"
        yield GateCheck(primary.p_value <= criteria.max_p_value, "p_value_above_threshold", text, hope)
        is_sure = primary.interval.level >= criteria.level
        if primary.method != BETTING:  # of versions before: an interval of its own, which has to be asked, too
            is_sure = is_sure and primary.interval.low > 0.0
        text = f"{shown} has to be known at {criteria.level:.4g} confidence"
        yield GateCheck(is_sure, "confidence_below_threshold", text, hope)
    verdict = evidence.verdict
    if verdict is None:
        yield _missing("verdict", f"no verdict that stands however often {_name(evidence.primary)} was looked at")
        return
    text = f"verdict {verdict.outcome}: {', '.join(verdict.reasons)}"
    # Evidence from before there was this key is decided as it was then: a verdict can be computed again for ever.
    is_vain = SOLVED in evidence.manifest and isinstance(primary, MetricComparison) and primary.difference <= 0.0
    if is_vain and verdict.outcome is Outcome.HOLD and evidence.episodes >= criteria.min_episodes:
        yield GateCheck(False, NO_GAIN, _no_gain(evidence), text)
        return
    remedy = WORSE if verdict.outcome is Outcome.REJECT else MORE
    charge = evidence.manifest.get(CHARGED)
    if isinstance(charge, Mapping) and _gain_of(verdict, evidence.primary) is Outcome.HOLD:
        remedy = f"{remedy}; {charge.get('text')}"
    yield GateCheck(verdict.outcome is Outcome.PROMOTE, NOT_BETTER, text, remedy, None if is_vain else verdict.needs)


def _no_gain(evidence: Evidence) -> str:
    solved = evidence.manifest.get(SOLVED)
    shown = (
        "" if solved is None else ": it solves {candidate:g} of {of} tries, the baseline {baseline:g}".format(**solved)
    )
    helps = "easier tasks, a better starting model or partial credit may"
    return f"the candidate is no better so far{shown}; more episodes will not help, {helps}"


def _reward(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    reward = _comparison(evidence, "reward")
    if isinstance(reward, GateCheck):
        if evidence.primary != "reward":  # else it is said already
            yield reward
        return
    text = f"reward {reward.difference:+.4g}, at least {criteria.min_reward_delta:+.4g} is asked for"
    is_met = reward.difference >= criteria.min_reward_delta
    yield GateCheck(is_met, "reward_gain_below_threshold", text, "it has to earn more first")


def _judged(evidence: Evidence) -> Iterator[GateCheck]:
    """A judge's word is no measurement: it counts once labels have shown how often it errs, and with that taken out."""
    primary = evidence.comparisons.get(evidence.primary)
    for judge in evidence.manifest.get(JUDGED, ()):
        name, on = judge["judge"], str(judge["criterion"]).partition("@")[0]
        remedy = f"holdfast reward judge calibrate --judge {name}" + (f" --criterion {on}" if on else "")
        code, message = f"{MISSING}judge_calibration", f"{_name(evidence.primary)} is the word of judge {name}"
        if judge.get("standing") is None:
            yield GateCheck(False, code, f"{message}, which is not calibrated{f' on {on}' if on else ''}", remedy)
            continue
        if judge["standing"] != TRUSTED or judge.get("stretch") is None:
            why = ", ".join(judge.get("reasons") or ["it may be no better than a coin"])
            yield GateCheck(False, code, f"{message}, which is diagnostic only: {why}", remedy)
            continue
        if primary is not None:
            low, high = _stretched(primary.interval.low, primary.interval.high, judge["stretch"])
            text = f"{message}; with its errors taken out the difference lies from {low:+.4g} to {high:+.4g}"
            yield GateCheck(low > 0.0, "judged_gain_not_proved", f"{text} ({judge['labels']} labels)", MORE)


def _stretched(low: float, high: float, by: Sequence[float]) -> tuple[float, float]:
    least, most = by
    return low * (least if low > 0.0 else most), high * (most if high > 0.0 else least)


def _safety(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    """What nobody measured is not safe; who waives that says why, and it is told wherever this is."""
    why = evidence.manifest.get(WAIVED)
    if criteria.max_safety_regression is None:
        text = f"safety was NOT measured: {why}" if why else "nobody measured safety, and nobody waived it"
        yield GateCheck(bool(why), f"{MISSING}safety", text, WAIVE)
    elif "safety" not in evidence.comparisons:
        yield _missing("safety", "safety was not measured, and what is not measured is not safe", WAIVE)


def _regressions(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    """What must not get worse by more than a limit, proved: that no loss was seen in a few episodes shows nothing."""
    limits = {
        "safety": criteria.max_safety_regression,
        "latency": criteria.max_latency_increase,
        "cost": criteria.max_cost_increase,
    }
    for metric, most in limits.items():
        if most is None:
            continue
        found = _comparison(evidence, metric)
        if isinstance(found, GateCheck):
            if metric != evidence.primary and (metric != "safety" or metric in evidence.comparisons):
                yield found  # else it is said already
            continue
        if evidence.primary != metric:
            yield _enough(found, criteria)
        # A test with a narrower margin may fail while ours holds; one with a margin as wide as ours must pass. Bets on
        # that very margin have decided it: their interval has two sides, and is a little wider than their proof.
        is_tested = found.margin < most or found.p_value <= criteria.max_p_value
        is_within = found.interval.low >= -most and found.interval.level >= criteria.level
        if found.method == BETTING and found.margin == most:
            is_tested = is_within = evidence.verdict is not None and _proves_kept(evidence.verdict, metric, most)
        verb = "is" if found.difference < -most else "may be"
        message = f"{verb} worse by more than {most:g}"
        is_met = found.difference >= -most and is_within and is_tested
        text = f"{_name(metric)} {_one_sided(found)} " + (f"is not worse by more than {most:g}" if is_met else message)
        remedy = WORSE if verb == "is" else "more tasks may prove that it is not"
        yield GateCheck(is_met, f"{BLOCKED}{metric}_regression", text, remedy)


def _proves_kept(verdict: Verdict, metric: str, most: float) -> bool:
    """Whether a verdict proves that a metric is not worse by more than this, whatever else it says. Those of earlier
    versions say it in a sentence alone."""
    if verdict.outcome is Outcome.PROMOTE or (metric == "safety" and verdict.safety is not None):
        return verdict.outcome is Outcome.PROMOTE or verdict.safety is Outcome.PROMOTE
    return any(reason.startswith(f"{metric} worse by at most {most:g} proved:") for reason in verdict.reasons)


def _gain_of(verdict: Verdict, primary: str) -> Outcome | None:
    """What it says of the gain alone."""
    if verdict.gain is not None:
        return verdict.gain
    is_held = any(reason.startswith(f"{primary} undecided") for reason in verdict.reasons)  # of earlier versions
    return Outcome.HOLD if is_held else None


def _enough(found: MetricComparison, criteria: Criteria) -> GateCheck:
    text = f"{_name(found.metric)} rests on {found.pairs} tasks, at least {criteria.min_tasks} are asked for"
    return GateCheck(found.pairs >= criteria.min_tasks, FEW, text, "measure it on more tasks")


def _interaction(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    """A gain that depends on the seed is none: where gains differ by seed beyond chance, each of them has to be one."""
    interaction, least = evidence.interaction, criteria.min_interaction_p
    if interaction is None or least is None:
        return
    lowest = f"the lowest is {interaction.lowest:+.4g}"
    text = f"gains of {interaction.seeds} seeds differ with p {interaction.p_value:.3g}, {lowest}"
    is_met = interaction.p_value >= least or interaction.lowest > 0.0
    remedy = f"below p {least:g} none may be at or below 0: find out what a seed changes beside chance"
    yield GateCheck(is_met, f"{BLOCKED}seed_interaction", text, remedy)


def _bands(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    wanted = (
        ("seed", "seed_reproducibility", criteria.require_seed_reproducibility, criteria.max_seed_spread),
        ("sample", "sample_sensitivity", criteria.require_sample_size_sensitivity, criteria.max_sample_spread),
    )
    for kind, code, is_required, most in wanted:
        if not is_required:
            continue
        band = evidence.bands.get(kind)
        if band is None or band.kind != kind:
            what = "other seeds" if kind == "seed" else "fewer of the tasks"
            remedy = "measure it with two seeds or more (--seeds 2)" if kind == "seed" else "measure it on more tasks"
            yield _missing(code, f"nobody looked whether {what} give the same result", remedy)
            continue
        message = f"p-values {band.p_value_spread:.3g} apart, differences {band.delta_spread:.3g}"
        text = f"{kind} band of {band.of}: {message}; at most {most.p_value:g} and {most.delta:g}"
        remedy = "more tasks or seeds bring them closer" if kind == "seed" else "more tasks bring them closer"
        yield GateCheck(_is_steady(band, most), BLOCKED + code, text, remedy)


def _is_steady(band: Band, most: SpreadLimits) -> bool:
    """Within the limits it was measured by and within ours; what is not a number is within nothing."""
    p_value, delta = min(band.most_p_value_spread, most.p_value), min(band.most_delta_spread, most.delta)
    return band.within and band.of >= 2 and 0 <= band.p_value_spread <= p_value and 0 <= band.delta_spread <= delta


def _findings(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    if evidence.golden is not None:
        changed = [finding for finding in evidence.golden if _is_blocking(finding)]
        for finding in changed:
            remedy = "'holdfast prove golden sign NAME --why WHY' signs a change that is wanted"
            yield GateCheck(False, "golden_changed_unsigned", _told(finding), remedy)
        if not changed:
            yield GateCheck(True, "golden_changed_unsigned", "no golden changed unsigned")
    elif criteria.require_golden:
        yield _missing(
            "golden", "no golden was replayed", "'holdfast prove golden replay' does, then decide with --golden"
        )
    looked = [finding for finding in evidence.audit or () if finding.of > 0]
    for finding in evidence.audit or ():
        if _is_blocking(finding):
            remedy = "'holdfast run quality RUN' names them: take them out, and learn again"
            yield GateCheck(False, f"data_quality_{finding.name}", _told(finding), remedy)
    if criteria.require_audit and not looked:  # of nothing, nothing is wrong
        remedy = "decide with --audit RUN, or --untrained where it learnt from no run"
        yield _missing("audit", "the data that was learnt from was not looked at", remedy)
    elif looked:
        yield GateCheck(True, "data_quality_audit", f"{len(looked)} checks of the data")


def _is_blocking(finding: Finding) -> bool:
    return finding.count != 0 and (finding.blocks or finding.severity not in HARMLESS)


def _told(finding: Finding) -> str:
    text = f"{finding.name} ({finding.severity}): {finding.count} of {finding.of}"
    return f"{text}, {finding.detail}" if finding.detail.strip() else text


def _kpis(evidence: Evidence, criteria: Criteria) -> Iterator[GateCheck]:
    kpis = evidence.manifest.get(KPIS)
    for name, band in criteria.kpis.items():
        kpi = kpis.get(name) if isinstance(kpis, Mapping) else None
        value, of = (kpi.get("value"), kpi.get("of")) if isinstance(kpi, Mapping) else (None, None)
        if not _is_number(value) or not _is_number(of):
            yield _missing(f"kpi_{name}", f"{name} was not measured, or not on how many", "measure it")
            continue
        detail = str(kpi.get("detail") or "") if isinstance(kpi, Mapping) else ""
        text = f"{name} {value:.4g} on {of:g}"
        yield GateCheck(of >= band.least, FEW, f"{text}, at least {band.least} are asked for", "measure it on more")
        low = float("-inf") if band.low is None else band.low
        high = float("inf") if band.high is None else band.high
        within = f"{text}, has to lie from {low:g} to {high:g}" + (f" ({detail})" if detail else "")
        yield GateCheck(low <= value <= high, f"kpi_out_of_band_{name}", within, WORSE)


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _name(metric: str) -> str:
    return NAMES.get(metric, metric)


def _one_sided(found: MetricComparison) -> str:
    """The mean, and the end that was tested: how much better it may be is not asked. Bets on a margin have no end."""
    if found.method == BETTING and found.margin:
        return f"{found.difference:+.4g}"
    return f"{found.difference:+.4g} (at least {found.interval.low:+.4g} at {found.interval.level:.4g})"


def _interval(found: MetricComparison) -> str:
    ends = found.interval
    corrected = "" if found.corrected is None else f", {found.corrected:+.4g} corrected for the stop"
    return f"{found.difference:+.4g} ({ends.low:+.4g} to {ends.high:+.4g} at {ends.level:.4g}{corrected})"


def audit_record(
    decision: Decision,
    evidence: Evidence | None,
    *,
    checkpoint: str,
    at: float,
    criteria: Criteria,
    penalties: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """The decision as a record of type checkpoint_promotion_gate_v1; penalties are the means of both, if known."""
    if not checkpoint.strip():
        raise BadInput(f"checkpoint {checkpoint!r}", why="must not be blank")
    if not isfinite(at):
        raise BadInput(f"at = {at}", why="must be finite")
    safety = None if evidence is None else _comparison(evidence, "safety")
    regression = -safety.difference if isinstance(safety, MetricComparison) else None
    baseline, candidate = penalties or (None, None)
    if baseline is not None and candidate is not None:
        apart = candidate - baseline
        if not isfinite(apart) or (regression is not None and abs(apart - regression) > 1e-6):
            why = f"are {apart:g} apart, and the evidence says {regression}"
            raise BadInput(f"safety penalties {baseline} and {candidate}", why=why)
    return {
        "record_type": "checkpoint_promotion_gate_v1",
        "schema_version": 1,
        "timestamp_unix_ms": round(at * 1000),
        "checkpoint_id": checkpoint.strip(),
        "baseline_safety_penalty": baseline,
        "candidate_safety_penalty": candidate,
        "max_safety_regression": criteria.max_safety_regression,
        "safety_regression": regression,
        "promotion_allowed": decision.open,
        "reason_codes": list(dict.fromkeys(reason.code.strip() for reason in decision.reasons)),
    }
