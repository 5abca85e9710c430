"""Combines reward terms: one hidden outcome check gates all shaping, and a veto ends everything.

An attempt that failed the check never has more than 0, and one that passed it never less than the gate keeps for it.
Under a graded gate a partly right answer has its grade and nothing else. The gate only lowers weights: every term keeps
the value that was measured, and the total stays the weighted sum, so anybody can compute it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from holdfast.contracts.checks import GATED
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.reward import RIGHT, RewardBreakdown, RewardTerm, check_in

VETOED = 2.0  # the value of `gated` for an attempt that a veto ended; 1: it failed its check, 0: it passed


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeGate:
    """Which signal decides, how much all others together may move, and which ones end everything."""

    name: str = "outcome@1"  # with its version: a total is only comparable under the same guard
    outcome: str = "success"  # 1: the hidden check passed; 0: it did not
    cap: float = 0.5  # of the outcome's weight: what all shaping together may add or take
    vetoes: tuple[str, ...] = ()  # signals that, above 0, leave nothing to be earned
    graded: bool = False  # the check may also say anything between 0 and 1; only 1 is passed

    def __post_init__(self) -> None:
        if not 0.0 <= self.cap < 1.0:
            raise BadInput(f"guard {self.name}: cap = {self.cap}", why="must be at least 0 and below 1")
        if self.outcome in self.vetoes:
            raise BadInput(f"guard {self.name}: {self.outcome}", why="cannot be outcome and veto at once")


def total(signals: Sequence[RewardTerm], guard: OutcomeGate) -> RewardBreakdown:
    """The breakdown of an attempt. What was gated keeps its value with weight 0; a signal of weight 0 says by whom."""
    if not signals:
        return RewardBreakdown(signals=())
    outcome = _outcome(signals, guard)
    vetoes = [signal for signal in signals if signal.name in guard.vetoes]
    if wrong := next((veto for veto in vetoes if veto.value < 0.0), None):  # its weight is negative, so it would pay
        why = f"is {wrong.value:g}; a veto is 0 (nothing was found) or above"
        raise BadRecord(f"sheet under {guard.name}: {wrong.name}", why=why)
    is_vetoed = any(veto.value > 0.0 for veto in vetoes)
    is_open = outcome.value == 1.0 and not is_vetoed
    shaping = [signal for signal in signals if signal.name != outcome.name and signal.name not in guard.vetoes]
    paid = [term for term in shaping if term.value * term.weight < 0.0 or (is_open and term.value * term.weight > 0.0)]
    moved, most = sum(abs(term.value * term.weight) for term in paid), guard.cap * outcome.weight
    scale = min(1.0, most / moved) if moved > 0.0 else 1.0
    kept = {id(term): term.weight * scale for term in paid}
    kept |= {id(veto): -abs(veto.weight) for veto in vetoes}
    kept[id(outcome)] = 0.0 if is_vetoed else outcome.weight
    weighed = tuple(replace(signal, weight=kept.get(id(signal), 0.0)) for signal in signals)
    shut = VETOED if is_vetoed else float(not is_open)
    verdict = RewardTerm(name=GATED, value=shut, weight=0.0, source=f"guard:{guard.name}")
    breakdown = RewardBreakdown(signals=(*weighed, verdict))
    if breakdown.total is None or not isfinite(breakdown.total):
        raise BadRecord(f"sheet under {guard.name}", why=f"adds up to {breakdown.total}, which is not finite")
    return breakdown


def add_shaping(signals: Sequence[RewardTerm], shaping: Sequence[RewardTerm]) -> tuple[RewardTerm, ...]:
    """Adds terms to a breakdown that was judged before. Their weights are shares of what the hidden check counts.

    They are paid where the check passed, and with all other shaping at most the gate's cap of it. Where it failed,
    where a veto or a hard gate ended the attempt, and where nobody checked it, they count 0."""
    check = check_in(signals)
    is_open = check is not None and check.value >= RIGHT and not any(s.name == GATED and s.value for s in signals)
    whole = check.weight if check is not None and is_open else 0.0
    before = sum(abs(signal.value * signal.weight) for signal in signals if signal is not check)
    moved = sum(abs(term.value * term.weight) for term in shaping) * whole
    scale = min(1.0, max(0.0, OutcomeGate().cap * whole - before) / moved) if moved > 0.0 else 0.0
    return (*signals, *(replace(term, weight=term.weight * whole * scale) for term in shaping))


def normalised(breakdown: RewardBreakdown, gold: RewardBreakdown) -> float:
    """The total as a share, from 0 to 1, of what the gold answer earns under the same guard."""
    if breakdown.total is None or gold.total is None or gold.total <= 0.0:
        raise BadRecord("sheet", why="a share needs a total, and a gold answer that earns something")
    return min(1.0, max(0.0, breakdown.total / gold.total))


def _outcome(signals: Sequence[RewardTerm], guard: OutcomeGate) -> RewardTerm:
    terms = [signal for signal in signals if signal.name == guard.outcome]
    if len(terms) != 1:
        raise BadRecord(f"sheet under {guard.name}", why=f"has {len(terms)} signals called {guard.outcome}, not one")
    value = terms[0].value
    is_verdict = 0.0 <= value <= 1.0 if guard.graded else value in (0.0, 1.0)
    if not is_verdict or terms[0].weight <= 0.0:
        wanted = "a grade is from 0 to 1" if guard.graded else "a check passes (1) or not (0)"
        why = f"is {value:g} with weight {terms[0].weight:g}; {wanted}, and must count"
        raise BadRecord(f"sheet under {guard.name}: {guard.outcome}", why=why)
    return terms[0]
