"""Combines judges: calibrated probabilities are pooled by precision, and what stays open is handed to a person.

A cascade asks the rules first, then small models, then large ones, and stops as soon as it is sure. Judges that abstain
are left out and named. Judges that contradict one another make a dispute, which is not settled by averaging. When no
judge can be reached, the rules decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import Calibration, Doubtful, EvalItem, Grade, Judgement, ReviewRequest
from holdfast.contracts.reward import RewardTerm
from holdfast.reward.judges.calibration import logit, probability, weight
from holdfast.reward.judges.judge import Criterion, Judge, JudgeFailed, RuleJudge, speaks_to_judge

SURE = 0.8  # a probability of so much, or of so little, ends a cascade
GAP = 0.5  # between the highest and the lowest: a dispute
EDGE = 0.01  # nobody's word is worth more than 99 to 1

Calibrated = Callable[[str, str, str], Calibration | None]  # judge, criterion, prompt


class EnsembleOutcome(StrEnum):
    DECIDED = "decided"
    ABSTAINED = "abstained"
    DISPUTED = "disputed"


@dataclass(frozen=True, slots=True)
class Opinion:
    """What all of them together say of one artefact by one criterion."""

    criterion: str
    artefact: str  # its sha256
    outcome: EnsembleOutcome
    probability: float | None  # that the criterion holds; None where nobody who counts said anything
    why: str
    by: str  # whose word it is: "rules", or the judges' names
    judgements: tuple[Judgement, ...]  # all that were given, those that do not count included
    failed: tuple[str, ...] = ()  # judges that could not be had, and why

    @property
    def holds(self) -> bool | None:
        """None unless it is decided."""
        if self.outcome is not EnsembleOutcome.DECIDED or self.probability is None:
            return None
        return self.probability >= 0.5

    @property
    def cost(self) -> float:
        return sum(judgement.cost for judgement in self.judgements)


def pool(judgements: Sequence[Judgement], calibrated: Calibrated, *, sure: float = SURE, gap: float = GAP) -> Opinion:
    """logit p = Σ wᵢ logit pᵢ / Σ wᵢ, with pᵢ through the map and wᵢ the precision of each judge, 0 where not trusted.
    It is decided when p ≥ `sure` or p ≤ 1 − `sure`, and no two judges are `gap` apart across ½."""
    if not 0.5 < sure < 1.0 or len({(judgement.criterion, judgement.artefact) for judgement in judgements}) != 1:
        raise BadInput("ensemble", why="needs judgements on one artefact by one criterion, and 0.5 < sure < 1")
    bound = [
        (judgement, calibrated(judgement.judge, judgement.criterion, judgement.prompt)) for judgement in judgements
    ]
    said = {
        judgement.judge: (probability(on, judgement.score), weight(on))
        for judgement, on in bound
        if on is not None and judgement.score is not None and weight(on) > 0.0
    }
    first = judgements[0]
    if not said:
        why = "; ".join(f"{judgement.judge}: {_silent(judgement, on)}" for judgement, on in bound)
        return _opinion(first, EnsembleOutcome.ABSTAINED, None, why, "", judgements)
    odds = sum(w * logit(p, EDGE) for p, w in said.values()) / sum(w for _, w in said.values())
    pooled, by = 1.0 / (1.0 + exp(-odds)), ", ".join(said)
    low, high = (pick(said, key=lambda name: said[name][0]) for pick in (min, max))
    if said[low][0] < 0.5 <= said[high][0] and said[high][0] - said[low][0] >= gap:
        why = f"{high} says {said[high][0]:.2f}, {low} says {said[low][0]:.2f}"
        return _opinion(first, EnsembleOutcome.DISPUTED, pooled, why, by, judgements)
    if 1.0 - sure < pooled < sure:
        return _opinion(first, EnsembleOutcome.ABSTAINED, pooled, f"unsure: {pooled:.2f}", by, judgements)
    why = next(
        (judgement.why for judgement in judgements if judgement.judge in said and judgement.why),
        f"probability {pooled:.2f}",
    )
    return _opinion(first, EnsembleOutcome.DECIDED, pooled, why, by, judgements)


def _silent(judgement: Judgement, calibration: Calibration | None) -> str:
    if judgement.score is None:
        return judgement.why or "abstained"
    if calibration is None:
        return "is not calibrated"
    return f"diagnostic only ({'; '.join(calibration.reasons)})"


def _opinion(
    about: Judgement, outcome: EnsembleOutcome, p: float | None, why: str, by: str, given: Sequence[Judgement]
) -> Opinion:
    return Opinion(about.criterion, about.artefact, outcome, p, why, by, tuple(given))


async def cascade(
    criterion: Criterion,
    artefact: EvalItem,
    tiers: Sequence[Sequence[Judge]],
    *,
    rules: RuleJudge,
    calibrated: Calibrated,
    sure: float = SURE,
    gap: float = GAP,
) -> Opinion:
    """Asks rules, then tier by tier until one is sure. A dispute goes to the next tier, and remains if there is
    none."""
    ruled = rules.judge(criterion, artefact)
    if (words := speaks_to_judge(artefact)) is not None:
        why = f"the answer speaks to its judge: {words!r}"
        return _opinion(ruled, EnsembleOutcome.DISPUTED, None, why, rules.name, [ruled])
    if ruled.grade is not None:
        p = 1.0 - EDGE if ruled.grade is Grade.YES else EDGE
        return _opinion(ruled, EnsembleOutcome.DECIDED, p, ruled.why, rules.name, [ruled])
    given, failed, opinion = [ruled], list[str](), None
    for tier in tiers:
        heard = []
        for judge in tier:
            try:
                heard.append(await judge.ask(criterion, artefact))
            except JudgeFailed as error:
                failed.append(str(error))
        given += heard
        if heard:
            found = pool(heard, calibrated, sure=sure, gap=gap)
            # A later tier that has nothing to say does not take back what an earlier one left open.
            opinion = found if opinion is None or found.probability is not None else opinion
            if found.outcome is EnsembleOutcome.DECIDED:
                break
    if opinion is None:
        why = f"{ruled.why}; no judge could be had" if tiers else ruled.why
        opinion = _opinion(ruled, EnsembleOutcome.ABSTAINED, None, why, rules.name, given)
    return replace(opinion, judgements=tuple(given), failed=tuple(failed))


def signals(opinions: Sequence[Opinion], weights: Mapping[str, float]) -> tuple[RewardTerm, ...]:
    """Reward terms: decided opinions count by their weight; the others are recorded with weight 0."""
    terms = []
    for opinion in opinions:
        name = opinion.criterion.partition("@")[0]
        about: Any = {"source": f"judge:{opinion.by or 'nobody'}:{opinion.criterion}", "feedback": opinion.why or None}
        if opinion.outcome is EnsembleOutcome.DECIDED and opinion.probability is not None:
            terms.append(RewardTerm(name=name, value=opinion.probability, weight=weights.get(name, 0.0), **about))
        else:
            terms.append(RewardTerm(name=f"{name}_{opinion.outcome}", value=1.0, weight=0.0, **about))
    return tuple(terms)


def review_request(opinion: Opinion, *, now: float) -> ReviewRequest | None:
    """What a person should look at; None where it was decided."""
    if opinion.outcome is EnsembleOutcome.DECIDED:
        return None
    reason = Doubtful.DISPUTED if opinion.outcome is EnsembleOutcome.DISPUTED else Doubtful.ABSTAINED
    return ReviewRequest(artefact=opinion.artefact, criterion=opinion.criterion, reason=reason, why=opinion.why, at=now)
