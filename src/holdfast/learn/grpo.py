"""Group-relative advantages: each attempt is judged by the others at the same task; Shao et al. 2024, arXiv:2402.03300.

A group whose members all did equally well says nothing and is skipped, whole: its tokens would only cost time. What was
not scored is missing and makes its group smaller. Rewards of single turns may be mixed in, so that a good call in a
lost game is still raised. Many terms may be normalised one by one before they are added: the outcome is then left as
it is and stays on top. Where a guard says who passed its check, who failed and who was vetoed, neither terms nor turns
put anybody above a better one. The update is `train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.checks import GATED
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.learn.batch import (
    Break,
    Sample,
    SampleFilter,
    Samples,
    SamplesOrReason,
    SkipReason,
    counted,
    gather,
    pack,
    reward,
)
from holdfast.learn.constrain import CostPrice, combine, cost_credit
from holdfast.learn.objective import Objective
from holdfast.learn.returns import group_relative, normalise_then_sum, turn_credit

Floats = NDArray[np.float64]
Credit = Callable[[Sequence[Experience]], Sequence[float]]  # attempts at one task → the advantage of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """How attempts at one task are compared."""

    scale: bool = True  # divide by the group's standard deviation
    leave_one_out: bool = False
    mix: float = 0.0  # share of the turn's own reward in its credit; the rest is the outcome's
    lam: float = 1.0  # how much a turn answers for the turns after it
    skip_zero_spread: bool = True
    terms: Literal["sum", "normalised"] = "sum"  # of the signals: as they are, or each by its own spread first
    outcome: str = "success"  # the signal that decides; read where the terms are normalised

    def __post_init__(self) -> None:
        if self.terms not in ("sum", "normalised"):
            raise BadInput(f"grpo.terms = {self.terms!r}", why="is unknown", remedy="use sum or normalised")
        for name in ("mix", "lam"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise BadInput(f"grpo.{name} = {getattr(self, name)}", why="must be between 0 and 1")


ROOM = 0.25  # of the outcome's weight: the best shaped failure ends half a weight below the worst shaped success
MOST_MIX = 0.5  # where those that passed are compared with others: the outcome keeps at least as much
PASSED, FAILED, VETOED = 2, 1, 0  # ranks; what no guard judged has none
GATE, GATE_SOURCE = "safety.hard_gate", "rule:safety"
_SHUT = {0.0: PASSED, 1.0: FAILED, 2.0: VETOED}  # by the value of the guard's signal
OBJECTIVE = Objective(clip_low=0.2, clip_high=0.28)  # room for rare tokens to grow: DAPO, arXiv:2503.14476


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantages:
    """What a batch of attempts teaches by comparison."""

    samples: Samples | None  # None: nothing
    reasons: Mapping[str, SkipReason | None]  # why each rollout gave nothing
    groups: int  # tasks with at least two scored attempts
    skipped_groups: int  # of them, without spread
    breaks: Mapping[Break, int]  # prompts that did not go on from what was there


def compare(
    experiences: Iterable[Experience],
    intake: SampleFilter,
    settings: Grpo,
    price: CostPrice | None = None,
    own: Credit | None = None,
) -> GroupAdvantages:
    """Samples with advantages from attempts that are grouped by their task; `price` is what their cost weighs.

    `own` replaces the comparison by the group's mean and spread.
    """
    gathered = gather(experiences, intake)
    reasons = dict(gathered.reasons)
    teams: dict[str, list[tuple[Experience, SamplesOrReason]]] = {}
    for experience, reading in gathered.kept:
        teams.setdefault(experience.task, []).append((experience, reading))
    found: list[Sample] = []
    groups = skipped = 0
    for team in teams.values():
        if len(team) < 2:
            reasons[team[0][0].rollout] = SkipReason.ALONE
            continue
        groups += 1
        members = [experience for experience, _ in team]
        credits = _credits(members, intake, settings) if own is None else _own(members, own)
        credits = _priced(credits, [experience for experience, _ in team], settings, price)
        if settings.skip_zero_spread and not any(credit.any() for credit in credits):
            skipped += 1
            reasons |= {experience.rollout: SkipReason.ZERO_SPREAD for experience, _ in team}
            continue
        for (experience, reading), credit in zip(team, credits, strict=True):
            if not credit.any():
                reasons[experience.rollout] = SkipReason.ZERO_WEIGHT
            found += [_credited(sample, credit) for sample in reading.samples]
    samples = pack(found) if found else None
    return GroupAdvantages(
        samples=samples, reasons=reasons, groups=groups, skipped_groups=skipped, breaks=gathered.breaks
    )


def _credits(team: Sequence[Experience], intake: SampleFilter, settings: Grpo) -> list[Floats]:
    """One number for each turn of each attempt."""
    if settings.terms == "normalised":
        totals = _normalised(team, intake, settings)
    else:
        totals = np.asarray([reward(one, intake.channels) or 0.0 for one in team], dtype=np.float64)
    outcomes = group_relative(totals[None], scale=settings.scale, leave_one_out=settings.leave_one_out)[0]
    lengths = np.asarray([len(one.calls) for one in team])
    turns, mix = np.zeros(int(lengths.sum())), settings.mix
    if mix:
        turns = _turn_rewards(team, lengths, intake, settings)
        turns, mix = _bounded(turns, outcomes, lengths, [_rank(one) for one in team], settings)
    credit = turn_credit(turns, outcomes, lengths, lam=settings.lam, mix=mix)
    return np.split(credit, np.cumsum(lengths)[:-1])


def _own(team: Sequence[Experience], credit: Credit) -> list[Floats]:
    """Advantages from the user's function: every turn of an attempt gets the attempt's advantage."""
    given = [float(one) for one in credit(team)]
    if len(given) != len(team) or not np.isfinite(given).all():
        why = f"gives {len(given)} numbers for {len(team)} attempts" if len(given) != len(team) else "gives no number"
        raise BadInput("advantages", why=why, remedy="return one finite number for each attempt, in their order")
    return [np.full(len(one.calls), advantage) for one, advantage in zip(team, given, strict=True)]


def _bounded(
    turns: Floats, outcomes: Floats, lengths: NDArray[np.int64], ranks: Sequence[int | None], settings: Grpo
) -> tuple[Floats, float]:
    """The turns' rewards and their share, so small that no token of a lower rank has more credit than one of a higher.

    Turns may take a quarter of the outcomes' distance from either side. Where all are of one rank nothing changes."""
    known = [rank is not None for rank in ranks]
    found = sorted({rank for rank in ranks if rank is not None})
    of = {rank: outcomes[[one == rank for one in ranks]] for rank in found}
    gaps = [float(of[high].min() - of[low].max()) for low, high in combinations(found, 2)]
    gaps = [gap for gap in gaps if gap > 0.0]  # a mild veto may cost less than penalties do: then the sheet said so
    if not gaps:
        return turns, settings.mix
    mix = min(settings.mix, MOST_MIX)
    part = turn_credit(turns, np.zeros(len(lengths)), lengths, lam=settings.lam, mix=mix)
    most = float(np.abs(part[np.repeat(known, lengths)]).max(initial=0.0))
    room = ROOM * (1.0 - mix) * min(gaps)
    return (turns * (room / most) if most > room else turns), mix


def _rank(experience: Experience) -> int | None:
    """The rank of an attempt, from the guard's signal or the safety gate; an agent can write neither."""
    signals = () if experience.sheet is None else experience.sheet.signals
    if any(one.name == GATE and one.source == GATE_SOURCE and one.value > 0.0 for one in signals):
        return VETOED
    told = [one.value for one in signals if one.name == GATED and one.source.startswith("guard:")]
    return _SHUT.get(told[-1]) if told else None


def _normalised(team: Sequence[Experience], intake: SampleFilter, settings: Grpo) -> Floats:
    """Outcome + Σₖ wₖ zₖ, where z compares those that passed with one another, those that did not, and those that were
    vetoed, which stand a whole weight below the failures."""
    outcomes, shaping = np.zeros(len(team)), dict[str, Floats]()
    weighed = dict[str, Floats]()
    for place, experience in enumerate(team):
        signals = counted(experience, intake.channels)
        if settings.outcome not in {signal.name for signal in signals}:
            why, remedy = f"{experience.rollout} has no such signal", "name the signal that decides, or sum the terms"
            raise BadInput(f"grpo.outcome = {settings.outcome!r}", why=why, remedy=remedy)
        for signal in signals:
            outcomes[place] += signal.value * signal.weight if signal.name == settings.outcome else 0.0
            shaping.setdefault(signal.name, np.zeros(len(team)))[place] += signal.value * signal.weight
            weighed.setdefault(signal.name, np.zeros(len(team)))[place] += abs(signal.weight)
    of_outcome = weighed.pop(settings.outcome)
    weight = float(of_outcome[of_outcome > 0.0].min(initial=np.inf))  # a veto left some of them 0
    weight = weight if np.isfinite(weight) else 1.0
    is_vetoed = np.asarray([_rank(one) == VETOED for one in team])
    outcomes = np.where(is_vetoed, -weight, outcomes)
    names = sorted(weighed)
    if not names:
        return outcomes
    return outcomes + normalise_then_sum(
        np.stack([shaping[name] for name in names]),
        np.asarray([weighed[name].max() for name in names]),
        np.where(is_vetoed, VETOED, np.where(outcomes > 0.0, PASSED, FAILED)),
        limit=ROOM * weight,
    )


def _priced(credits: list[Floats], team: Sequence[Experience], settings: Grpo, price: CostPrice | None) -> list[Floats]:
    """Subtracts the credits of the cost, which are compared separately by the same rules."""
    if price is None:
        return credits
    rules = {name: getattr(settings, name) for name in ("scale", "leave_one_out", "mix", "lam")}
    costs = cost_credit(team, price.cost, **rules)
    return [combine(mine, cost, price.multiplier) for mine, cost in zip(credits, costs, strict=True)]


def _turn_rewards(
    team: Sequence[Experience], lengths: NDArray[np.int64], intake: SampleFilter, settings: Grpo
) -> Floats:
    """Rewards of turn k relative to turn k of the other attempts."""
    starts = np.cumsum(lengths) - lengths
    terms, weights = dict[str, Floats](), dict[str, float]()
    for start, experience in zip(starts, team, strict=True):
        for signal in counted(experience, intake.channels):
            if signal.turn is not None:
                name = signal.name if settings.terms == "normalised" else ""
                term = terms.setdefault(name, np.zeros(int(lengths.sum())))
                term[start + signal.turn] += signal.value * signal.weight
                weights[name] = max(weights.get(name, 0.0), abs(signal.weight))
    index = np.concatenate([np.arange(length) for length in lengths])
    rewards = terms.get("", np.zeros(int(lengths.sum())))
    if settings.terms == "normalised":
        for name, term in sorted(terms.items()):
            rewards = rewards + weights[name] * group_relative(term, index)
    relative = group_relative(rewards, index, scale=settings.scale, leave_one_out=settings.leave_one_out)
    return relative.astype(np.float64)


def _credited(sample: Sample, credit: Floats) -> Sample:
    advantages = np.where(sample.decided, credit[np.maximum(sample.turns, 0)], 0.0).astype(np.float32)
    return replace(sample, advantages=advantages)
