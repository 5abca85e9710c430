"""Experiments: arms that stick, a ratio that is watched, and the order in which an experiment is ruled upon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from math import inf, log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import betaln
from scipy.stats import chisquare

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Outcome, Reason, Verdict
from holdfast.contracts.release import Experiment, Exposure, ServedRequest
from holdfast.promote import experiment
from holdfast.promote.experiment import (
    ALARM,
    ArmOutcome,
    Design,
    ExperimentCall,
    assign,
    design_of,
    log_e_mismatch,
    mismatch,
)
from holdfast.prove.arms import compare_arms

PEOPLE = [f"user-{number}" for number in range(8_000)]
HALVES = {"control": 0.5, "treatment": 0.5}
NUMBERS = count(1)


def trial(arms: dict[str, float] = HALVES, salt: str = "trial/t", **design: Any) -> Experiment:
    settings = experiment.settings_of(Design(**design))
    return Experiment(name="t", kind="experiment", arms=arms, salt=salt, created_at=0.0, settings=settings)


def told(arm: str, unit: str, **what: Any) -> ServedRequest:
    number = next(NUMBERS)
    return ServedRequest(id=f"r{number}", trial="t", arm=arm, unit=unit, at=float(number), **what)


def exposed(arm: str, unit: str, at: float) -> Exposure:
    return Exposure(trial="t", unit=unit, arm=arm, at=at)


@given(st.text(min_size=1).filter(str.strip))
def test_a_unit_keeps_its_arm(unit: str) -> None:
    assert assign(trial(), unit) == assign(trial(), unit)


@pytest.mark.parametrize(
    "arms", [HALVES, {"a": 0.9, "b": 0.1}, {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, {"a": 0.1, "b": 0.0, "c": 0.9}]
)
def test_each_arm_gets_its_part_of_the_units(arms: dict[str, float]) -> None:
    counts, held = dict.fromkeys(arms, 0), trial(arms)
    for unit in PEOPLE:
        counts[assign(held, unit)] += 1
    assert mismatch(counts, arms) > 0.001
    assert all(counts[arm] == 0 for arm, weight in arms.items() if weight == 0.0)


def test_two_experiments_assign_independently() -> None:
    table, one, other = np.zeros((2, 2), dtype=int), trial(), trial(salt="trial/u")
    for unit in PEOPLE:
        table[assign(one, unit) == "control", assign(other, unit) == "control"] += 1
    assert mismatch({str(place): int(n) for place, n in enumerate(table.flat)}, dict.fromkeys("0123", 0.25)) > 0.001


def test_a_blank_unit_is_refused() -> None:
    with pytest.raises(BadInput, match="unit: is blank; name who it is about"):
        assign(trial(), " ")


@pytest.mark.parametrize(
    ("counts", "arms"),
    [
        ({"control": 500, "treatment": 500}, HALVES),
        ({"control": 520, "treatment": 480}, HALVES),
        ({"control": 5200, "treatment": 4800}, HALVES),
        ({"a": 10, "b": 25, "c": 65}, {"a": 0.2, "b": 0.3, "c": 0.5}),
        ({"a": 0, "b": 7}, {"a": 0.1, "b": 0.9}),
    ],
)
def test_the_ratio_is_tested_as_scipy_does(counts: dict[str, int], arms: dict[str, float]) -> None:
    total = sum(counts.values())
    oracle = chisquare([counts[arm] for arm in arms], [total * weight for weight in arms.values()]).pvalue
    assert mismatch(counts, arms) == pytest.approx(oracle, rel=1e-9)


def test_a_ratio_by_hand() -> None:
    # 60 and 40 of 100: χ² = 10²/50 + 10²/50 = 4 with one degree of freedom
    assert mismatch({"control": 60, "treatment": 40}, HALVES) == pytest.approx(0.0455, abs=1e-4)


def test_a_ratio_of_nobody_is_fine_and_a_unit_in_an_arm_without_weight_is_not() -> None:
    assert (mismatch({}, HALVES), log_e_mismatch({}, HALVES)) == (1.0, pytest.approx(0.0))
    arms = {"a": 1.0, "b": 0.0}
    assert (mismatch({"a": 9, "b": 1}, arms), log_e_mismatch({"a": 9, "b": 1}, arms)) == (0.0, inf)
    assert log_e_mismatch({"elsewhere": 1}, HALVES) == inf


@pytest.mark.parametrize("arms", [HALVES, {"a": 0.05, "b": 0.95}, {"a": 0.2, "b": 0.3, "c": 0.5}])
def test_the_bet_on_the_next_unit_is_fair_when_the_arms_are_filled_as_meant(arms: dict[str, float]) -> None:
    """Σᵢ wᵢ eₙ₊₁(i) = eₙ: a martingale, so that no number of looks makes a false alarm likelier than ALARM."""
    counts = {arm: 3 + place for place, arm in enumerate(arms)}
    after = [weight * np.exp(log_e_mismatch({**counts, arm: counts[arm] + 1}, arms)) for arm, weight in arms.items()]
    assert sum(after) == pytest.approx(np.exp(log_e_mismatch(counts, arms)), rel=1e-9)


def test_the_alarm_is_quiet_at_every_look_where_the_chi_square_is_not() -> None:
    """Of 2,000 sound experiments looked at after every unit, χ² at 0.001 cries wolf in far more than two."""
    n = np.arange(1, 2001)
    firsts = (np.random.default_rng(1).random((2000, 2000)) < 0.5).cumsum(axis=1)
    chi_square = 4.0 * (firsts - n / 2) ** 2 / n
    log_e = betaln(50 + firsts, 50 + n - firsts) - betaln(50, 50) + n * log(2)
    assert log_e[7, 99] == pytest.approx(
        log_e_mismatch({"control": firsts[7, 99], "treatment": 100 - firsts[7, 99]}, HALVES)
    )
    assert (chi_square > 10.828).any(axis=1).sum() > 10
    assert (log_e >= -log(ALARM)).any(axis=1).sum() <= 4


def test_a_lost_tenth_of_an_arm_is_found_within_a_few_thousand_units() -> None:
    assert not _is_alarm({"control": 500, "treatment": 450})
    assert _is_alarm({"control": 4000, "treatment": 3600})


def _is_alarm(counts: dict[str, int]) -> bool:
    return log_e_mismatch(counts, HALVES) >= -log(ALARM)


def test_a_design_survives_its_way_through_a_trial() -> None:
    design = Design(metric="reward", reward_range=(-1.0, 3.0), min_effect=0.1, limits={"latency": None, "errors": 0.2})
    held = Experiment(
        name="t", kind="experiment", arms=HALVES, salt="s", created_at=0.0, settings=experiment.settings_of(design)
    )
    assert design_of(held) == design


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"metric": "latency"}, "metric 'latency': cannot decide an experiment; use success or reward"),
        ({"alpha": 0.0}, "alpha = 0.0: must be above 0 and below 1"),
        ({"reward_range": (1.0, 1.0)}, "range 1.0:1.0: must be two finite numbers, the smaller first"),
        ({"min_effect": 1.0}, "min_effect = 1.0: must be from 0 to below 1"),
        ({"worthwhile": 0.0}, "worthwhile = 0.0: must be above 0 and below 1"),
        ({"mature_after": -1.0}, "mature_after = -1.0: must be seconds, from 0 on"),
    ],
)
def test_an_impossible_design_is_refused(given: dict[str, Any], expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        Design(**given)
    assert str(refused.value) == expected


def test_a_canary_is_no_experiment() -> None:
    canary = Experiment(name="c", kind="canary", arms=HALVES, salt="s", created_at=0.0)
    with pytest.raises(BadInput, match="trial c: is a canary, not an experiment"):
        design_of(canary)


def test_a_unit_counts_once_with_its_first_request_told_or_not() -> None:
    served = [
        told("control", "ann"),  # nobody has told; that she tried again may be because of how it went
        told("control", "ann", success=1.0),
        told("treatment", "bob", success=0.25),
        told("treatment", "bob", success=1.0),
    ]
    assert experiment.outcomes_of((), served, Design()) == [("control", None), ("treatment", 0.25)]
    late = [replace(served[3], at=9.0), replace(served[2], at=10.0, latency_s=8.0)]  # it began first, and took longer
    assert experiment.outcomes_of((), late, Design()) == [("treatment", 0.25)]


def test_units_count_in_the_order_in_which_they_came_told_or_not_and_when_their_time_has_come() -> None:
    exposures = [exposed("treatment", "bob", 1.0), exposed("control", "ann", 2.0), exposed("treatment", "eve", 9.0)]
    served = [told("control", "ann", success=0.0)]  # of bob nobody has told
    design = Design(mature_after=5.0)
    assert experiment.outcomes_of(exposures, served, design, now=10.0) == [("treatment", None), ("control", 0.0)]
    assert experiment.outcomes_of(exposures, served, design, now=6.5) == [("treatment", None)]
    assert len(experiment.outcomes_of(exposures, served, design)) == 3


def test_a_unit_that_two_arms_served_counts_for_the_arm_that_it_was_given() -> None:
    fell_back = [told("treatment", "ann"), told("control", "ann", success=1.0)]
    assert experiment.outcomes_of((), fell_back, Design()) == [("treatment", None)]
    given = [exposed("treatment", "ann", 0.0)]
    assert experiment.outcomes_of(given, fell_back[1:], Design()) == [("treatment", None)]
    refused = [told("treatment", "ann", success=0.0), told("control", "ann", success=1.0)]
    assert experiment.outcomes_of(given, refused, Design()) == [("treatment", 0.0)]


@pytest.mark.parametrize("does_fall_back", [False, True], ids=["tries again", "falls back"])
def test_what_follows_a_failure_promotes_no_treatment_that_is_worse(does_fall_back: bool) -> None:
    """Its failures are not told: the unit asks again, or the control answers in its place."""
    for seed in range(10):
        rng, given, served = np.random.default_rng(seed), [], []
        for number in range(1000):
            unit, arm = str(number), "treatment" if rng.random() < 0.5 else "control"
            given.append(exposed(arm, unit, float(number)))
            is_good = rng.random() < (0.35 if arm == "treatment" else 0.5)
            is_hidden = arm == "treatment" and not is_good
            served.append(told(arm, unit, success=None if is_hidden else float(is_good)))
            if is_hidden:
                next_arm = "control" if does_fall_back else arm
                served.append(told(next_arm, unit, success=1.0 if rng.random() < 0.5 else None))
        held = experiment.verdict(trial(), given, served, compare=compare, guard=lambda *_: ())
        assert held.call is not ExperimentCall.PROMOTE


def compare(outcomes: Sequence[ArmOutcome], alpha: float, part: float) -> Verdict:
    return compare_arms(outcomes, part=part, alpha=alpha, min_effect=0.0, worthwhile=0.05)


def test_a_request_that_failed_is_worth_the_least_there_is() -> None:
    served = [
        told("control", "a", error=True),
        told("control", "b", error=True, success=1.0),  # it failed, and was good all the same: as told
        told("control", "c", reward=0.0),
        told("control", "d", reward=5.0),
    ]
    values = [("control", 0.0), ("control", 1.0), ("control", None), ("control", None)]
    assert experiment.outcomes_of((), served, Design()) == values
    design = Design(metric="reward", reward_range=(-1.0, 1.0))
    assert experiment.outcomes_of((), served, design) == [
        ("control", 0.0),
        ("control", 0.0),
        ("control", 0.5),
        ("control", 1.0),
    ]


HOLD = Verdict(outcome=Outcome.HOLD, reasons=("not yet",), needs=40)
BREACH = Reason(code="canary_breach_errors", text="errors")


class Statistics:
    """Answers as told, and remembers what it was asked."""

    def __init__(self, *verdicts: Verdict, breaches: dict[str, tuple[Reason, ...]] | None = None) -> None:
        self.verdicts, self.breaches = list(verdicts), breaches or {}
        self.compared: list[tuple[Sequence[ArmOutcome], float, float]] = []

    def compare(self, outcomes: Sequence[ArmOutcome], alpha: float, part: float) -> Verdict:
        self.compared.append((outcomes, alpha, part))
        return self.verdicts.pop(0)

    def guard(
        self, control: Sequence[ServedRequest], treatment: Sequence[ServedRequest], alpha: float
    ) -> tuple[Reason, ...]:
        return self.breaches.get(treatment[0].arm, ()) if treatment else ()


def verdict_of(
    statistics: Statistics,
    exposed: dict[str, int] | None = None,
    served: Sequence[ServedRequest] = (),
    arms: dict[str, float] = HALVES,
) -> experiment.Ruling:
    of_arms = {arm: [one.unit for one in served if one.arm == arm] for arm in arms}
    given = [
        Exposure(trial="t", unit=unit, arm=arm, at=0.0)
        for arm, n in (exposed or {}).items()
        for unit in [*of_arms[arm], *(f"{arm}-{number}" for number in range(n))][:n]
    ]
    return experiment.verdict(trial(arms), given, served, compare=statistics.compare, guard=statistics.guard)


def test_a_broken_assignment_voids_everything_before_any_number_is_looked_at() -> None:
    promote = Statistics(Verdict(outcome=Outcome.PROMOTE, reasons=("better",)), breaches={"treatment": (BREACH,)})
    ruling = verdict_of(promote, {"control": 900, "treatment": 600}, [told("treatment", "a", success=1.0)])
    assert (ruling.call, [one.code for one in ruling.reasons]) == (
        ExperimentCall.VOID,
        ["experiment_sample_ratio_mismatch"],
    )
    assert "control 900 (meant 750), treatment 600 (meant 750)" in ruling.reasons[0].text
    assert promote.compared == []


def test_a_broken_guardrail_comes_before_any_gain() -> None:
    promote = Statistics(Verdict(outcome=Outcome.PROMOTE, reasons=("better",)), breaches={"treatment": (BREACH,)})
    ruling = verdict_of(promote, {}, [told("treatment", "a", success=1.0)])
    assert (ruling.call, ruling.arm, ruling.reasons) == (ExperimentCall.ROLLBACK, "treatment", (BREACH,))


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (
            Verdict(outcome=Outcome.PROMOTE, reasons=("so",)),
            (ExperimentCall.PROMOTE, "treatment", None, "experiment_treatment_better"),
        ),
        (
            Verdict(outcome=Outcome.REJECT, reasons=("so",)),
            (ExperimentCall.KEEP, None, None, "experiment_treatment_not_better"),
        ),
        (HOLD, (ExperimentCall.CONTINUE, None, 40, "experiment_undecided")),
    ],
)
def test_a_verdict_becomes_a_call(verdict: Verdict, expected: tuple[object, ...]) -> None:
    served = [told("control", "a", success=0.0), told("treatment", "b", success=1.0), told("control", "c", success=1.0)]
    statistics = Statistics(verdict)
    ruling = verdict_of(statistics, {"control": 3, "treatment": 2}, served)
    assert (ruling.call, ruling.arm, ruling.needs, ruling.reasons[0].code) == expected
    ((outcomes, alpha, part),) = statistics.compared
    assert (alpha, part, len(outcomes)) == (0.05, 0.5, 5)  # of two units nothing is told
    assert sorted(outcomes, key=str) == [(0.0, False), (1.0, False), (1.0, True), (None, False), (None, True)]
    assert ruling.exposed == {"control": 3, "treatment": 2}
    assert "mean success of treatment 1 (1 units) against control 0.5 (2 units): a difference" in ruling.reasons[0].text
    assert (ruling.told, ruling.means) == ({"control": 2, "treatment": 1}, {"control": 0.5, "treatment": 1.0})


def test_several_treatments_share_alpha_and_the_best_of_those_proved_is_promoted() -> None:
    arms = {"control": 0.25, "a": 0.25, "b": 0.25, "c": 0.25}
    promote = Verdict(outcome=Outcome.PROMOTE, reasons=("better",))
    statistics = Statistics(promote, promote, HOLD)
    served = [told("a", "1", success=0.5), told("b", "2", success=0.75), told("c", "3", success=1.0)]
    ruling = verdict_of(statistics, {}, served, arms)
    assert (ruling.call, ruling.arm) == (ExperimentCall.PROMOTE, "b")
    assert [one.code.removeprefix("experiment_") for one in ruling.reasons] == ["treatment_better"] * 2 + ["undecided"]
    assert [alpha for _, alpha, _ in statistics.compared] == [pytest.approx(0.05 / 3)] * 3
    reject = Verdict(outcome=Outcome.REJECT, reasons=("worse",))
    assert verdict_of(Statistics(reject, HOLD, reject), {}, served, arms).call is ExperimentCall.CONTINUE
    assert verdict_of(Statistics(reject, reject, reject), {}, served, arms).call is ExperimentCall.KEEP


def test_means_are_told_on_the_metrics_own_scale() -> None:
    held = trial(metric="reward", reward_range=(-1.0, 3.0))
    statistics = Statistics(HOLD)
    served = [told("control", "a", reward=0.0), told("control", "b", reward=2.0)]
    ruling = experiment.verdict(held, (), served, compare=statistics.compare, guard=statistics.guard)
    assert ruling.means == {"control": pytest.approx(1.0), "treatment": None}


def test_arms_that_are_not_told_alike_are_said_to_be() -> None:
    served = [told("control", f"c{n}", success=1.0) for n in range(300)]
    served += [told("treatment", f"t{n}", success=1.0) for n in range(100)]
    ruling = verdict_of(Statistics(HOLD), {"control": 310, "treatment": 300}, served)
    assert ruling.call is ExperimentCall.CONTINUE and ruling.told_p < 0.001 < ruling.ratio_p
    assert [one.code for one in ruling.reasons] == ["experiment_undecided", "experiment_told_mismatch"]
    assert "outcomes of control 300, treatment 100 units" in ruling.reasons[1].text
