"""An experiment: who gets which arm, whether the arms were filled as meant, and what follows from the outcomes.

The order is fixed: a broken assignment voids everything, a guardrail that is broken ends it, and only then is asked
which arm is better. Every unit that was given an arm counts, in the order of that and once its outcome has had the time
to come; a unit of which nothing is told is an outcome that is missing, and nobody gains by it. The statistics arrive as
functions (`prove`'s, from the command line); both answer validly however often they are asked. Who was exposed and
what came of it is kept by the store.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from math import inf, isfinite, lgamma, log
from typing import Any, ClassVar, Literal

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Outcome, Reason, Verdict
from holdfast.contracts.flag import Flag, FlagRule
from holdfast.contracts.release import Experiment, Exposure, ServedRequest
from holdfast.promote.bucketing import bucket

KIND = "experiment"  # of its trial
ALARM = 0.001  # a sample ratio that was less likely than that is no accident
CONCENTRATION = (
    100.0  # of the alternatives that the ratio is tested against: shares within a few percent of those meant
)

ArmOutcome = tuple[float | None, bool]  # from 0 to 1, None: not told; whether it is the treatment's; as units arrived
Compare = Callable[
    [Sequence[ArmOutcome], float, float], Verdict
]  # at level α, the treatment's part of the units: is it better? valid at every look; needs more units
Guard = Callable[
    [Sequence[ServedRequest], Sequence[ServedRequest], float], tuple[Reason, ...]
]  # control, treatment, α: breaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Design:
    """What an experiment is about; fixed when it begins, in its trial's settings."""

    metric: Literal["success", "reward"] = "success"
    alpha: float = 0.05  # of a wrong promotion, over all arms and looks
    min_effect: float = 0.0  # a treatment must be better by more than this
    worthwhile: float = 0.05  # the difference that decides how long a hopeless one is expected to take
    reward_range: tuple[float, float] = (0.0, 1.0)
    limits: Mapping[str, float | None] = field(default_factory=dict)  # of the guard, where they are not its own
    mature_after: float = 0.0  # seconds after a unit was given its arm that its outcome, told or not, counts
    why: str = ""  # the question it shall answer
    flag: str = ""  # that gives its arms: a unit has the variant that is its arm; blank: somebody else gives them
    until: float | None = None  # unix seconds; from then on the flag's own rules decide again
    apply: bool = False  # the verdict changes the flag; else an operator does
    live: Mapping[str, str] = field(default_factory=dict)  # policy → the release that was live when it began

    def __post_init__(self) -> None:
        low, high = self.reward_range
        if self.metric not in ("success", "reward"):
            raise BadInput(f"metric {self.metric!r}", why="cannot decide an experiment", remedy="use success or reward")
        if not 0.0 < self.alpha < 1.0:
            raise BadInput(f"alpha = {self.alpha}", why="must be above 0 and below 1")
        if not (isfinite(low) and isfinite(high) and low < high):
            raise BadInput(f"range {low}:{high}", why="must be two finite numbers, the smaller first")
        if not 0.0 <= self.min_effect < self.width:
            raise BadInput(f"min_effect = {self.min_effect}", why=f"must be from 0 to below {self.width:g}")
        if not 0.0 <= self.mature_after < inf:
            raise BadInput(f"mature_after = {self.mature_after}", why="must be seconds, from 0 on")
        if not 0.0 < self.worthwhile < self.width:
            raise BadInput(f"worthwhile = {self.worthwhile}", why=f"must be above 0 and below {self.width:g}")

    @property
    def width(self) -> float:
        """How far apart two outcomes can be."""
        return self.reward_range[1] - self.reward_range[0] if self.metric == "reward" else 1.0


OF_FLAG = ("flag", "until", "apply", "live")  # in the settings only of an experiment about a flag


def settings_of(design: Design) -> dict[str, Any]:
    given = {**asdict(design), "reward_range": list(design.reward_range), "limits": dict(design.limits)}
    if not design.mature_after:  # as those that were begun before there was one
        del given["mature_after"]
    return given if design.flag else {name: value for name, value in given.items() if name not in OF_FLAG}


def is_running(trial: Experiment, now: float) -> bool:
    until = trial.settings.get("until")
    return trial.ended_at is None and (until is None or now < until)


def arms_of(flag: Flag, share: float) -> dict[str, float]:
    """The flag's off variant is the control; the others divide the share, a part of 1, among them."""
    others = [name for name in flag.variants if name != flag.off]
    if not others:
        raise BadInput(f"flag {flag.name}", why="has one variant only", remedy="give it another: flags set --variant")
    return {flag.off: 1.0 - share, **dict.fromkeys(others, share / len(others))}


def settled(flag: Flag, ruling: Ruling) -> Flag:
    """The flag as the verdict wants it: the better arm for everybody, or the control; where nothing is proved, as it
    is. Rules with conditions stay."""
    kept = tuple(rule for rule in flag.rules if rule.conditions)
    if ruling.call is ExperimentCall.PROMOTE and ruling.arm is not None:
        return replace(flag, rules=(*kept, FlagRule(variant=ruling.arm)))
    if ruling.call in (ExperimentCall.KEEP, ExperimentCall.ROLLBACK):
        others = [name for name in flag.variants if name != flag.off]
        return replace(flag, rules=(*kept, *(FlagRule(variant=name, percent=0.0) for name in others)))
    return flag


def design_of(trial: Experiment) -> Design:
    """What the trial was begun with."""
    known = {one.name for one in fields(Design)}
    if trial.kind != KIND or not set(trial.settings) <= known:
        raise BadInput(
            f"trial {trial.name}", why=f"is a {trial.kind}, not an experiment begun by 'holdfast release experiment'"
        )
    given = dict(trial.settings)
    if "reward_range" in given:
        given["reward_range"] = tuple(given["reward_range"])
    return Design(**given)


def assign(trial: Experiment, unit: str) -> str:
    """The unit's arm: always the same, each arm for its part of the units."""
    if not unit.strip():
        raise BadInput("unit", why="is blank", remedy="name who it is about: a user, a conversation, a tenant")
    place, end = bucket(unit, trial.salt), 0.0
    arms = [arm for arm, weight in trial.arms.items() if weight > 0.0]
    for arm in arms:
        end += trial.arms[arm]
        if place < end:
            return arm
    return arms[-1]  # the weights add up to 1 only as far as floats do


def mismatch(counts: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """p of "the arms were filled by their weights", looked at once: Pearson's χ² = Σ (nᵢ − N wᵢ)² / N wᵢ."""
    from scipy.special import gammaincc  # type: ignore[import-untyped]  # slow, and flags need none of it

    total, chi_square = sum(counts.values()), 0.0
    if any(counts.get(arm, 0) and weight <= 0.0 for arm, weight in weights.items()):
        return 0.0
    filled = {arm: weight for arm, weight in weights.items() if weight > 0.0}
    if total == 0 or len(filled) < 2:
        return 1.0
    for arm, weight in filled.items():
        chi_square += (counts.get(arm, 0) - total * weight) ** 2 / (total * weight)
    return float(gammaincc((len(filled) - 1) / 2.0, chi_square / 2.0))


def log_e_mismatch(counts: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """log e against "the arms are filled by their weights", for as many looks as anybody likes.

    The likelihood of the counts under a Dirichlet mixture around the weights over that under the weights themselves:
    log e = log B(κw + n) − log B(κw) − Σ nᵢ log wᵢ;  Lindon & Malek 2022, https://arxiv.org/abs/2011.03567.
    """
    if any(n and weights.get(arm, 0.0) <= 0.0 for arm, n in counts.items()):
        return inf
    total, log_e = sum(counts.values()), 0.0
    for arm, weight in weights.items():
        if weight > 0.0:
            prior, n = CONCENTRATION * weight, counts.get(arm, 0)
            log_e += lgamma(prior + n) - lgamma(prior) - n * log(weight)
    return log_e + lgamma(CONCENTRATION) - lgamma(CONCENTRATION + total)


class ExperimentCall(StrEnum):
    PROMOTE = "promote_treatment"
    KEEP = "keep_control"
    CONTINUE = "continue_testing"
    ROLLBACK = "rollback"  # a guardrail is broken
    VOID = "void"  # the arms were not filled as meant: nothing can be concluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What to do about an experiment now, and why."""

    SCHEMA: ClassVar[int] = 1

    call: ExperimentCall
    reasons: tuple[Reason, ...]
    arm: str | None = None  # the treatment to promote, or to take back
    needs: int | None = None  # about so many more units, while testing goes on
    exposed: Mapping[str, int]  # units by arm
    told: Mapping[str, int]  # of them, those whose outcome counts
    means: Mapping[str, float | None]  # of these outcomes
    ratio_p: float  # of the sample ratio, looked at once
    told_p: float = 1.0  # of "the arms are told alike", looked at once
    ended_at: float | None = None  # unix seconds; of one that has ended, the ruling is what it came to


def verdict(
    trial: Experiment,
    exposures: Sequence[Exposure],
    served: Sequence[ServedRequest],
    *,
    compare: Compare,
    guard: Guard,
    now: float = inf,
) -> Ruling:
    """What follows. The control is the first arm; each treatment is compared with it, and α is divided among them."""
    design = design_of(trial)
    control, *treatments = trial.arms
    exposed = Counter(exposure.arm for exposure in exposures)
    counts = {arm: exposed[arm] for arm in trial.arms}
    outcomes = outcomes_of(exposures, served, design, now=now)
    by_arm = {arm: [value for of, value in outcomes if of == arm and value is not None] for arm in trial.arms}
    payload = {arm: len(values) for arm, values in by_arm.items()}
    low = design.reward_range[0] if design.metric == "reward" else 0.0
    facts: dict[str, Any] = {
        "exposed": counts,
        "told": payload,
        "means": {arm: low + design.width * sum(v) / len(v) if v else None for arm, v in by_arm.items()},
        "ratio_p": mismatch(counts, trial.arms),
        "told_p": mismatch(payload, trial.arms),
        "ended_at": trial.ended_at,
    }
    if (log_e := log_e_mismatch(exposed, trial.arms)) >= -log(ALARM):
        return Ruling(call=ExperimentCall.VOID, reasons=(_ratio(trial, counts, log_e),), **facts)
    alpha = design.alpha / len(treatments)
    requests = {arm: [request for request in served if request.arm == arm] for arm in trial.arms}
    for arm in treatments:
        if breaches := guard(requests[control], requests[arm], alpha):
            return Ruling(call=ExperimentCall.ROLLBACK, arm=arm, reasons=breaches, **facts)
    verdicts = {}
    for arm in treatments:
        part = trial.arms[arm] / (trial.arms[arm] + trial.arms[control])
        of_both = [(value, of == arm) for of, value in outcomes if of in (control, arm)]
        verdicts[arm] = compare(of_both, alpha, part)
    ruling = _ruling(verdicts, alpha, design, facts)
    if log_e_mismatch(payload, trial.arms) < -log(ALARM):
        return ruling
    return replace(ruling, reasons=(*ruling.reasons, _silence(trial, payload)))


def _ruling(verdicts: Mapping[str, Verdict], alpha: float, design: Design, facts: Mapping[str, Any]) -> Ruling:
    better = [arm for arm, one in verdicts.items() if one.outcome is Outcome.PROMOTE]
    needs = [one.needs for one in verdicts.values() if one.needs is not None]
    reasons = tuple(_reason(arm, one, alpha, design, facts) for arm, one in verdicts.items())
    if better:
        best = max(better, key=lambda arm: facts["means"][arm])
        return Ruling(call=ExperimentCall.PROMOTE, arm=best, reasons=reasons, **facts)
    if not needs:  # all of them are rejected
        return Ruling(call=ExperimentCall.KEEP, reasons=reasons, **facts)
    return Ruling(call=ExperimentCall.CONTINUE, reasons=reasons, needs=max(needs), **facts)


def outcomes_of(
    exposures: Sequence[Exposure], served: Sequence[ServedRequest], design: Design, *, now: float = inf
) -> list[tuple[str, float | None]]:
    """Arm and outcome of each unit, once, in the order in which they came: what came of its first request, from 0 to 1,
    or None. Units that came less than `mature_after` ago are left out, whatever is known of them already.

    A unit counts for the arm that it was given, whoever served it (intention to treat). Which request is told, whether
    there is a second try, and whether another arm steps in can all hang on how the first one went: neither a later
    request nor an answer of another arm therefore takes the place of what is not told.
    """
    first: dict[str, ServedRequest] = {}
    for request in sorted(served, key=lambda request: request.at - (request.latency_s or 0.0)):  # as they began
        first.setdefault(request.unit, request)
    given: dict[str, tuple[float, str]] = {}
    for exposure in exposures:
        given.setdefault(exposure.unit, (exposure.at, exposure.arm))
    for request in first.values():
        given.setdefault(request.unit, (request.at, request.arm))
    return [
        (arm, _value(first[unit], design) if unit in first and first[unit].arm == arm else None)
        for unit, (at, arm) in sorted(given.items(), key=lambda one: one[1][0])
        if at <= now - design.mature_after
    ]


def _value(served: ServedRequest, design: Design) -> float | None:
    """A request that failed is worth the least there is; leaving it out would make the arm that fails look better."""
    low, high = design.reward_range if design.metric == "reward" else (0.0, 1.0)
    found = served.reward if design.metric == "reward" else served.success
    if found is None:
        return 0.0 if served.error else None
    return min(max((found - low) / (high - low), 0.0), 1.0)


def _reason(arm: str, one: Verdict, alpha: float, design: Design, facts: Mapping[str, Any]) -> Reason:
    control = next(iter(facts["told"]))
    code, message = {
        Outcome.PROMOTE: ("experiment_treatment_better", "above"),
        Outcome.REJECT: ("experiment_treatment_not_better", "below"),
        Outcome.HOLD: ("experiment_undecided", "above"),
    }[one.outcome]
    proved = "is not proved yet" if one.outcome is Outcome.HOLD else "is proved"
    figures = [
        f"{of} {'-' if facts['means'][of] is None else format(facts['means'][of], '.4g')} ({facts['told'][of]} units)"
        for of in (arm, control)
    ]
    text = f"mean {design.metric} of {' against '.join(figures)}: a difference {message} {design.min_effect:g} {proved}"
    return Reason(code=code, text=f"{text} at α {alpha:.3g}")


def _ratio(trial: Experiment, counts: Mapping[str, int], log_e: float) -> Reason:
    total = sum(counts.values())
    shares = ", ".join(f"{arm} {counts[arm]} (meant {total * weight:.0f})" for arm, weight in trial.arms.items())
    text = f"the arms were not filled as meant: {shares}; log e = {log_e:.3g}, alarm at {-log(ALARM):.3g}"
    return Reason(code="experiment_sample_ratio_mismatch", text=f"{text}; find out who is missing, and begin again")


def _silence(trial: Experiment, told: Mapping[str, int]) -> Reason:
    counts = ", ".join(f"{arm} {told[arm]}" for arm in trial.arms)
    text = (
        f"the arms are not told alike: outcomes of {counts} units, where the arms' parts are "
        f"{', '.join(f'{weight:.4g}' for weight in trial.arms.values())}; what one arm leaves untold beyond the other "
        "counts against the treatment"
    )
    return Reason(code="experiment_told_mismatch", text=text)
