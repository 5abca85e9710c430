"""The kit that every reward passes before it may judge anyone: gold answers earn 1, known cheats 0, plain ones between.

A workload's test gives its scorer and its cases; what fails is told as an AssertionError that names case and answer.
How a total becomes a share is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import fsum, isclose
from typing import Any

from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.trace import Span

Score = Callable[[Any, Any, Sequence[Span]], Sequence[RewardTerm]]  # task, output, spans
Share = Callable[[RewardBreakdown, RewardBreakdown], float]  # a breakdown's, from 0 to 1 of the gold one's
GATED = "gated"  # the signal by which a guard says that nothing is to be earned


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """What an agent might hand in, and what it did for it."""

    name: str  # for people: "right", "lists every number"
    output: Any
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCase:
    """One task with answers of known worth."""

    name: str
    task: Any
    gold: KnownAnswer  # right, and as well made as can be
    cheats: tuple[KnownAnswer, ...]  # wrong, or got by means that must not pay
    plain: tuple[KnownAnswer, ...] = ()  # right, and less well made


def check_reward(score: Score, cases: Sequence[KnownCase], share: Share, *, outcome: str = "success") -> None:
    """Gold is 1 and every cheat 0, by the outcome and by the whole breakdown; what is right is above what is not.

    Besides, a scorer says the same twice, changes nothing that it was given, and its totals can be computed again."""
    require(bool(cases), "no cases: nothing was checked")
    for case in cases:
        says = f"{case.name}: has no cheats: a reward that was never tempted is not known to be honest"
        require(bool(case.cheats), says)
        gold = _breakdown(score, case, case.gold)
        earned = gold.total or 0.0
        require(earned > 0.0, f"{case.name}: the gold answer {case.gold.name!r} earns {earned:g}")
        require(_outcome(gold, outcome, case, case.gold) == 1.0, f"{case.name}: the gold answer fails {outcome}")
        require(share(gold, gold) == 1.0, f"{case.name}: the gold answer's share is {share(gold, gold):g}, not 1")
        for answer in case.plain:
            breakdown = _breakdown(score, case, answer)
            where = f"{case.name}: the right answer {answer.name!r}"
            require(_outcome(breakdown, outcome, case, answer) == 1.0, f"{where} fails {outcome}")
            require(0.0 < share(breakdown, gold) <= 1.0, f"{where} has a share of {share(breakdown, gold):g}")
            require((breakdown.total or 0.0) <= earned, f"{where} earns more than the gold one")
        for answer in case.cheats:
            breakdown = _breakdown(score, case, answer)
            where = f"{case.name}: the cheat {answer.name!r}"
            require((breakdown.total or 0.0) <= 0.0, f"{where} earns {breakdown.total:g}")
            require(share(breakdown, gold) == 0.0, f"{where} has a share of {share(breakdown, gold):g}")
            is_gated = any(signal.name == GATED and signal.value > 0.0 for signal in breakdown.signals)
            has_passed = _outcome(breakdown, outcome, case, answer) != 0.0
            require(is_gated or not has_passed, f"{where} passes {outcome}, and no guard says that it is gated")


def _breakdown(score: Score, case: KnownCase, answer: KnownAnswer) -> RewardBreakdown:
    where = f"{case.name}: {answer.name!r}"
    before = deepcopy((case.task, answer.output, answer.spans))
    breakdown, again = (RewardBreakdown(signals=tuple(score(case.task, answer.output, answer.spans))) for _ in range(2))
    require((case.task, answer.output, answer.spans) == before, f"{where}: the scorer changed what it was given")
    require(breakdown == again, f"{where}: the scorer says something else each time")
    require(bool(breakdown.signals), f"{where}: nothing was measured")
    recomputed = fsum(signal.value * signal.weight for signal in breakdown.signals)
    require(isclose(breakdown.total or 0.0, recomputed, abs_tol=1e-9), f"{where}: the total cannot be computed again")
    return breakdown


def _outcome(breakdown: RewardBreakdown, name: str, case: KnownCase, answer: KnownAnswer) -> float:
    found = [signal.value for signal in breakdown.signals if signal.name == name]
    require(len(found) == 1, f"{case.name}: {answer.name!r} has {len(found)} signals called {name}, not one")
    require(found[0] in (0.0, 1.0), f"{case.name}: {name} of {answer.name!r} is {found[0]:g}, neither 0 nor 1")
    return found[0]


def require(is_so: bool, says: str) -> None:
    """A promise of a kit; what breaks it is an AssertionError that says so."""
    if not is_so:  # no assert: a kit that -O leaves nothing of would pass everything
        raise AssertionError(says)
