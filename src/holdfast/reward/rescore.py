"""Applies a changed scorer to stored rollouts without running an agent, and compares two scorings of the same rollouts.

Nothing is read or written here: the caller passes records and keeps the results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isawaitable
from math import isfinite, sqrt
from statistics import fmean, stdev
from typing import Any, Literal, TypeAlias

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import AGENT, RewardBreakdown, RewardTerm, is_own
from holdfast.contracts.scorer import RIGHT, resolve, told_error
from holdfast.contracts.trace import Span
from holdfast.reward.judges.calibration import agreement
from holdfast.reward.scorers import SUCCESS, Combined

OUTCOMES = (SUCCESS, "exact_match")  # the first of them that is there says whether an answer is right
SAME = 1e-9
MOST_ERROR = 2000  # characters
AT_ONCE = 16  # attempts whose scorers are awaited at the same time

Signals: TypeAlias = tuple[RewardTerm, ...]
Score: TypeAlias = Callable[[Any, Any, Sequence[Span]], Sequence[RewardTerm] | Awaitable[Sequence[RewardTerm]]]
Primary: TypeAlias = Literal["success", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRollout:
    """A finished rollout as it is stored: what was asked, answered and done, and what it was paid."""

    id: str
    task: Any  # with what is expected
    answer: Any
    spans: tuple[Span, ...] = ()
    signals: Signals = ()  # of the scoring that is stored
    group: str | None = None  # attempts at one task have one group; None: none but itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What a rollout gets now. With an error there are no signals: not measured is not zero."""

    id: str
    signals: Signals = ()
    error: str | None = None
    rejected: str | None = None  # why the scorer's last word rejects the attempt

    @property
    def reward(self) -> float | None:
        return RewardBreakdown(signals=self.signals).total


def rescore(rollouts: Iterable[StoredRollout], score: Score, *, at_once: int = AT_ONCE) -> list[Rescored]:
    """The terms of every rollout by this score, in the order of the rollouts. `score` is what `combine` returns or any
    other worker's score. What the agent reported of itself is kept with weight 0. A scorer that raises fails only its
    own rollout."""
    if isinstance(score, Combined) and score.is_group:
        return _by_group(list(rollouts), score)
    close = getattr(score, "close", None)
    found: list[Rescored] = []
    waiting: list[tuple[int, StoredRollout, Awaitable[Any]]] = []
    for place, rollout in enumerate(rollouts):
        try:
            given = score(rollout.task, rollout.answer, rollout.spans)
            if isawaitable(given):
                waiting.append((place, rollout, given))
                found.append(Rescored(id=rollout.id))
            else:
                found.append(_closed(rollout, given, close))
        except Exception as error:  # foreign code may raise anything
            found.append(_failed(rollout, error))
    if waiting:
        for (place, rollout, _), given in zip(waiting, resolve(_all([w for _, _, w in waiting], at_once)), strict=True):
            found[place] = _settled(rollout, given, close)
    return found


async def _all(waiting: Sequence[Awaitable[Any]], at_once: int) -> list[Any]:
    """What each comes to, or what it raised; at most so many at a time."""
    room = asyncio.Semaphore(at_once)

    async def wait(one: Awaitable[Any]) -> Any:
        async with room:
            return await one

    return await asyncio.gather(*map(wait, waiting), return_exceptions=True)


def _by_group(rollouts: Sequence[StoredRollout], score: Combined) -> list[Rescored]:
    """Groups one after the other: a group scorer has questions enough to ask at a time."""
    groups: dict[str, list[int]] = {}
    for place, rollout in enumerate(rollouts):
        groups.setdefault(rollout.id if rollout.group is None else f"group {rollout.group}", []).append(place)
    found = [Rescored(id=rollout.id) for rollout in rollouts]

    async def every() -> None:
        for places in groups.values():
            some = [rollouts[place] for place in places]
            try:
                rows: Sequence[Any] = await score.group(
                    some[0].task, [(rollout.answer, rollout.spans) for rollout in some]
                )
            except Exception as error:  # foreign code may raise anything
                rows = [error] * len(some)
            for place, rollout, given in zip(places, some, rows, strict=True):
                found[place] = _settled(rollout, given, None)

    resolve(every())
    return found


def _settled(one: StoredRollout, given: Any, close: Any) -> Rescored:
    if isinstance(given, BaseException):
        return _failed(one, given)
    try:
        return _closed(one, given, close)
    except Exception as error:  # foreign code may raise anything
        return _failed(one, error)


def _failed(one: StoredRollout, error: BaseException) -> Rescored:
    return Rescored(id=one.id, error=told_error(error)[:MOST_ERROR])


def _closed(one: StoredRollout, given: Sequence[RewardTerm], close: Any) -> Rescored:
    measured = tuple(given)
    own = [signal for signal in one.signals if is_own(signal)]
    signals: Signals = (*(_beside(signal) if measured else signal for signal in own), *measured) if own else measured
    rejected = None
    if close is not None:
        closed, rejected = close(signals, one.spans, one.answer)
        signals = tuple(closed)
    total = RewardBreakdown(signals=signals).total
    if total is not None and not isfinite(total):
        return Rescored(id=one.id, error=f"the signals add up to {total}, which is not finite")
    return Rescored(id=one.id, signals=signals, rejected=rejected)


def _beside(signal: RewardTerm) -> RewardTerm:
    """What the agent paid itself does not count where a scorer judged."""
    name = signal.name if signal.name.startswith(f"{AGENT}.") else f"{AGENT}.{signal.name}"
    return replace(signal, name=name, weight=0.0)


# Two scorings


@dataclass(frozen=True, slots=True)
class Changed:
    """A rollout that two scorings see differently."""

    id: str
    old: float | None  # reward; None: not measured
    new: float | None
    was_right: bool | None
    is_right: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmDifference:
    """Candidate minus baseline in the metric of the gate, under each scoring: mean and standard error over tasks."""

    primary: Primary
    baseline: str
    candidate: str
    tasks: int  # that both arms have, measured by both scorings
    old: float
    old_error: float | None  # None: one task alone
    new: float
    new_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringComparison:
    """Two scorings of the same rollouts. Shares and means are over the rollouts that both measured."""

    rollouts: int  # that both measured
    only_old: int  # measured by the old scoring alone
    only_new: int
    agreement: float | None  # share with the same verdict, right or wrong; None: one of them never says
    kappa: float | None  # Cohen's, of these verdicts; None: also where one says the same of everything
    became_right: int
    became_wrong: int
    same_reward: float | None  # share
    old_mean: float | None
    new_mean: float | None
    mean_change: float | None
    changed: tuple[Changed, ...]  # all of them, the largest change first
    arms: ArmDifference | None = None


def success_of(signals: Sequence[RewardTerm]) -> float | None:
    """How right the scoring calls the answer, from 0 to 1; None where it does not say."""
    values = {signal.name: signal.value for signal in signals}
    return next((values[name] for name in OUTCOMES if name in values), None)


def is_right(signals: Sequence[RewardTerm]) -> bool | None:
    """Whether the scoring calls the answer right; None where it does not say."""
    value = success_of(signals)
    return None if value is None else value >= RIGHT


def compare_scorings(
    old: Mapping[str, Sequence[RewardTerm]],
    new: Mapping[str, Sequence[RewardTerm]],
    *,
    arms: Mapping[str, tuple[str, str]] | None = None,
    baseline: str = "baseline",
    candidate: str = "candidate",
    primary: Primary = "success",
    failed: Collection[str] = (),
) -> ScoringComparison:
    """Compares the terms by rollout id under the old and the new scoring. `arms` are the arm and the task of each
    rollout. Rollouts whose agent `failed` count as 0 under both scorings."""
    if strange := sorted(set(new) - set(old)):
        raise BadInput(f"rollout {strange[0]}", why="is in the new scoring alone", remedy="compare the same rollouts")
    before = {one: RewardBreakdown(signals=tuple(signals)) for one, signals in old.items()}
    after = {one: RewardBreakdown(signals=tuple(new.get(one, ()))) for one in old}
    right = {one: (is_right(before[one].signals), is_right(after[one].signals)) for one in old}
    rows = [Changed(one, before[one].total, after[one].total, *right[one]) for one in old]
    both = [row for row in rows if row.old is not None and row.new is not None]
    judged = [row for row in both if row.was_right is not None and row.is_right is not None]
    changed = [
        row
        for row in rows
        if (row.old is None) != (row.new is None) or abs(_gap(row)) > SAME or row.was_right is not row.is_right
    ]
    verdicts = [(bool(row.was_right), bool(row.is_right)) for row in judged]
    gaps, measures = [_gap(row) for row in both], _measures(before, after, primary, failed)
    return ScoringComparison(
        rollouts=len(both),
        only_old=sum(row.old is not None and row.new is None for row in rows),
        only_new=sum(row.old is None and row.new is not None for row in rows),
        agreement=_mean([float(row.was_right == row.is_right) for row in judged]),
        kappa=agreement(*zip(*verdicts, strict=True)).kappa if verdicts else None,
        became_right=sum(row.is_right is True and row.was_right is False for row in judged),
        became_wrong=sum(row.was_right is True and row.is_right is False for row in judged),
        same_reward=_mean([float(abs(gap) <= SAME) for gap in gaps]),
        old_mean=_mean([row.old for row in both if row.old is not None]),
        new_mean=_mean([row.new for row in both if row.new is not None]),
        mean_change=_mean(gaps),
        changed=tuple(sorted(changed, key=lambda row: (-abs(_gap(row)), row.id))),
        arms=None if arms is None else _arms(measures, arms, baseline, candidate, primary),
    )


def _gap(row: Changed) -> float:
    return 0.0 if row.old is None or row.new is None else row.new - row.old


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _measures(
    before: Mapping[str, RewardBreakdown],
    after: Mapping[str, RewardBreakdown],
    primary: Primary,
    failed: Collection[str],
) -> dict[str, tuple[float, float]]:
    """The gate's metric of each rollout under both scorings, where both have it."""
    found = {}
    for one, breakdown in before.items():
        breakdowns = (breakdown, after[one])
        old, new = (
            success_of(breakdown.signals) if primary == "success" else breakdown.total for breakdown in breakdowns
        )
        if one in failed:
            found[one] = (0.0, 0.0)
        elif old is not None and new is not None:
            found[one] = (old, new)
    return found


def _arms(
    measures: Mapping[str, tuple[float, float]],
    arms: Mapping[str, tuple[str, str]],
    baseline: str,
    candidate: str,
    primary: Primary,
) -> ArmDifference | None:
    """None where the arms have no task in common, or a scoring says nothing of the metric."""
    cells: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for one, pair in measures.items():
        if one in arms:
            cells.setdefault(arms[one], []).append(pair)
    shared = sorted({task for _, task in cells if (baseline, task) in cells and (candidate, task) in cells})
    if not shared:
        return None

    def mean(arm: str, task: str, which: int) -> float:
        return fmean(pair[which] for pair in cells[arm, task])

    old, new = ([mean(candidate, task, n) - mean(baseline, task, n) for task in shared] for n in (0, 1))
    errors = [stdev(gain) / sqrt(len(gain)) if len(gain) > 1 else None for gain in (old, new)]
    found: dict[str, Any] = {"old": fmean(old), "old_error": errors[0], "new": fmean(new), "new_error": errors[1]}
    return ArmDifference(primary=primary, baseline=baseline, candidate=candidate, tasks=len(shared), **found)
