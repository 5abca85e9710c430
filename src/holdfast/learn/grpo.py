"""Group-relative advantages: each attempt is judged by the others at the same task; Shao et al. 2024, arXiv:2402.03300.

A group whose members all did equally well says nothing and is skipped, whole: its tokens would only cost time. What was
not scored is missing and makes its group smaller. Rewards of single turns may be mixed in, so that a good call in a
lost game is still raised. The update itself is `train`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.learn.batch import Intake, Reading, Reason, Sample, Samples, counted, gather, pack, reward
from holdfast.learn.objective import Objective
from holdfast.learn.returns import group_relative, turn_credit
from holdfast.learn.threads import Break

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """How attempts at one task are compared."""

    scale: bool = True  # divide by the group's standard deviation
    leave_one_out: bool = False
    mix: float = 0.0  # share of the turn's own reward in its credit; the rest is the outcome's
    lam: float = 1.0  # how much a turn answers for the turns after it
    skip_zero_spread: bool = True

    def __post_init__(self) -> None:
        for name in ("mix", "lam"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise BadInput(f"grpo.{name} = {getattr(self, name)}", why="must be between 0 and 1")


OBJECTIVE = Objective(clip_low=0.2, clip_high=0.28)  # room for rare tokens to grow: DAPO, arXiv:2503.14476


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What a batch of attempts teaches by comparison."""

    samples: Samples | None  # None: nothing
    reasons: Mapping[str, Reason | None]  # why each rollout gave nothing
    groups: int  # tasks with at least two scored attempts
    skipped_groups: int  # of them, without spread
    breaks: Mapping[Break, int]  # prompts that did not go on from what was there


def compare(experiences: Iterable[Experience], intake: Intake, settings: Grpo) -> Compared:
    """Samples with advantages from attempts that are grouped by their task."""
    gathered = gather(experiences, intake)
    reasons = dict(gathered.reasons)
    teams: dict[str, list[tuple[Experience, Reading]]] = {}
    for experience, reading in gathered.kept:
        teams.setdefault(experience.task, []).append((experience, reading))
    found: list[Sample] = []
    groups = skipped = 0
    for team in teams.values():
        if len(team) < 2:
            reasons[team[0][0].rollout] = Reason.ALONE
            continue
        groups += 1
        credits = _credits([experience for experience, _ in team], intake, settings)
        if settings.skip_zero_spread and not any(credit.any() for credit in credits):
            skipped += 1
            reasons |= {experience.rollout: Reason.ZERO_SPREAD for experience, _ in team}
            continue
        for (experience, reading), credit in zip(team, credits, strict=True):
            if not credit.any():
                reasons[experience.rollout] = Reason.ZERO_WEIGHT
            found += [_credited(sample, credit) for sample in reading.samples]
    samples = pack(found) if found else None
    return Compared(samples=samples, reasons=reasons, groups=groups, skipped_groups=skipped, breaks=gathered.breaks)


def _credits(team: Sequence[Experience], intake: Intake, settings: Grpo) -> list[Floats]:
    """One number for each turn of each attempt."""
    totals = np.asarray([reward(one, intake.channels) or 0.0 for one in team], dtype=np.float64)
    outcomes = group_relative(totals[None], scale=settings.scale, leave_one_out=settings.leave_one_out)[0]
    lengths = np.asarray([len(one.calls) for one in team])
    turns = np.zeros(int(lengths.sum()))
    if settings.mix:
        turns = _turn_rewards(team, lengths, intake, settings)
    credit = turn_credit(turns, outcomes, lengths, lam=settings.lam, mix=settings.mix)
    return np.split(credit, np.cumsum(lengths)[:-1])


def _turn_rewards(team: Sequence[Experience], lengths: NDArray[np.int64], intake: Intake, settings: Grpo) -> Floats:
    """Rewards of turn k, relative to turn k of the others: what every attempt gets there says nothing."""
    rewards = [np.zeros(length) for length in lengths]
    for mine, experience in zip(rewards, team, strict=True):
        for signal in counted(experience, intake.channels):
            if signal.turn is not None:
                mine[signal.turn] += signal.value * signal.weight
    index = np.concatenate([np.arange(length) for length in lengths])
    relative = group_relative(
        np.concatenate(rewards), index, scale=settings.scale, leave_one_out=settings.leave_one_out
    )
    return relative.astype(np.float64)


def _credited(sample: Sample, credit: Floats) -> Sample:
    advantages = np.where(sample.decided, credit[np.maximum(sample.turns, 0)], 0.0).astype(np.float32)
    return replace(sample, advantages=advantages)
