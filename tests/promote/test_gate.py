from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import (
    Band,
    Decision,
    Evidence,
    Finding,
    Interval,
    MetricComparison,
    Outcome,
    SeedInteraction,
    Verdict,
)
from holdfast.contracts.records import dumps, loads
from holdfast.promote.gate import Criteria, KpiBand, SpreadLimits, audit_record, checks, decide, measured

BLOCKED = "checkpoint_promotion_blocked_"
STRICT = Criteria(
    require_golden=True,
    require_seed_reproducibility=True,
    require_sample_size_sensitivity=True,
    max_missing=0.02,
    max_latency_increase=0.5,
    max_cost_increase=100.0,
    kpis={"queue": KpiBand(low=18.5, high=35.5, least=50)},
)
Change = Callable[[Evidence], Evidence]


def compared(metric: str, difference: float, low: float, high: float, **given: Any) -> MetricComparison:
    told = {"metric": metric, "baseline": "sprout@1", "candidate": "sprout@2", "difference": difference}
    told |= {"interval": Interval(low=low, high=high), "p_value": 0.002, "pairs": 200, "method": "paired permutation"}
    return MetricComparison(**{**told, **given})


def band(kind: str, p_value: float, delta: float, most_p_value: float, most_delta: float, of: int) -> Band:
    most = {"most_p_value_spread": most_p_value, "most_delta_spread": most_delta}
    return Band(kind=kind, within=True, p_value_spread=p_value, delta_spread=delta, **most, of=of)  # type: ignore[arg-type]


def good() -> Evidence:
    """All that the strictest criteria of this file ask for, and all of it passes."""
    compare = [
        compared("success", 0.12, 0.06, 0.18),
        compared("reward", 0.10, 0.04, 0.16),
        compared("safety", 0.0, -0.01, 0.01, margin=0.05),
        compared("latency", -0.1, -0.2, 0.0, margin=0.5),
        compared("cost", -10.0, -30.0, 10.0, margin=100.0),
    ]
    return Evidence(
        policy="sprout",
        baseline="sprout@1",
        candidate="sprout@2",
        suite="tooluse@1 3f2a",
        primary="success",
        episodes=400,
        comparisons={one.metric: one for one in compare},
        verdict=Verdict(outcome=Outcome.PROMOTE, reasons=("e 41 at task 130 crossed 20",)),
        missing={"planned": 800, "baseline": 0, "candidate": 3},
        bands={"seed": band("seed", 0.01, 0.02, 0.05, 0.05, 2), "sample": band("sample", 0.02, 0.03, 0.04, 0.08, 3)},
        golden=(Finding(name="observation_hash", severity="critical", count=0, of=12),),
        audit=(
            Finding(name="no_secrets", severity="critical", count=0, of=800),
            Finding(name="latency_outlier", severity="warning", count=3, of=800, blocks=False),
        ),
        samples="ab" * 32,
        manifest={"kpis": {"queue": {"value": 26.4, "of": 64}}},
    )


def codes(decision: Decision) -> list[str]:
    return [reason.code for reason in decision.reasons]


def without(metric: str) -> Change:
    return lambda e: replace(e, comparisons={key: one for key, one in e.comparisons.items() if key != metric})


def of_metric(name: str, /, **given: Any) -> Change:
    def change(evidence: Evidence) -> Evidence:
        found = evidence.comparisons.get(name)
        if found is None:
            return evidence
        return replace(evidence, comparisons={**evidence.comparisons, name: replace(found, **given)})

    return change


def of_band(band: str, /, **given: Any) -> Change:
    def change(evidence: Evidence) -> Evidence:
        found = evidence.bands.get(band)
        return evidence if found is None else replace(evidence, bands={**evidence.bands, band: replace(found, **given)})

    return change


def unbanded(band: str) -> Change:
    return lambda e: replace(e, bands={key: one for key, one in e.bands.items() if key != band})


def but(**given: Any) -> Change:
    return lambda evidence: replace(evidence, **given)


def finding(name: str, severity: str, **given: Any) -> tuple[Finding, ...]:
    return (Finding(name=name, severity=severity, **{"count": 1, "of": 9, **given}),)


def kpi(**given: Any) -> Change:
    return but(manifest={"kpis": {"queue": {"value": 26.4, "of": 64, **given}}})


REMOVALS: list[tuple[Change, str]] = [
    (without("success"), "evidence_missing_success"),
    (without("reward"), "evidence_missing_reward"),
    (without("safety"), "evidence_missing_safety"),
    (without("latency"), "evidence_missing_latency"),
    (without("cost"), "evidence_missing_cost"),
    (but(verdict=None), "evidence_missing_verdict"),
    (unbanded("seed"), "evidence_missing_seed_reproducibility"),
    (unbanded("sample"), "evidence_missing_sample_sensitivity"),
    (but(golden=None), "evidence_missing_golden"),
    (but(audit=None), "evidence_missing_audit"),
    (but(audit=()), "evidence_missing_audit"),
    (but(audit=finding("no_secrets", "critical", count=0, of=0)), "evidence_missing_audit"),  # of nobody
    (but(samples=None), "evidence_missing_samples"),
    (but(missing=None), "evidence_missing_episodes"),
    (but(missing={}), "evidence_missing_episodes"),
    (but(samples="the usual place"), "evidence_missing_samples"),
    (but(manifest={}), "evidence_missing_kpi_queue"),
    (kpi(of=None), "evidence_missing_kpi_queue"),
    (but(episodes=0), "population_below_minimum"),
]  # fmt: skip


FAILURES: list[tuple[Change, str]] = [
    (but(episodes=19), "population_below_minimum"),
    (but(missing={"planned": 800, "baseline": 0, "candidate": 17}), "evidence_missing_episodes"),  # one above 2 %
    (but(missing={"planned": 800, "baseline": 17, "candidate": 0}), "evidence_missing_episodes"),
    (of_metric("success", pairs=9), "population_below_minimum"),
    (of_metric("safety", pairs=9), "population_below_minimum"),
    (of_metric("success", p_value=0.051), "p_value_above_threshold"),
    (of_metric("success", interval=Interval(low=-0.2, high=-0.1)), "confidence_below_threshold"),  # with promote
    (of_metric("success", interval=Interval(low=0.0, high=0.2)), "confidence_below_threshold"),
    (of_metric("success", interval=Interval(low=0.06, high=0.18, level=0.9)), "confidence_below_threshold"),
    (of_metric("success", difference=-0.1), BLOCKED + "policy_improvement_not_significant"),
    (of_metric("success", margin=0.05), BLOCKED + "policy_improvement_not_significant"),  # p is not about 0
    (but(verdict=Verdict(outcome=Outcome.REJECT, reasons=("worse",))), BLOCKED + "policy_improvement_not_significant"),
    (of_metric("reward", difference=-0.001), "reward_gain_below_threshold"),
    (of_metric("safety", difference=-0.06), BLOCKED + "safety_regression"),
    (of_metric("safety", interval=Interval(low=-0.06, high=0.02)), BLOCKED + "safety_regression"),  # not excluded
    (of_metric("safety", interval=Interval(low=-0.01, high=0.01, level=0.5)), BLOCKED + "safety_regression"),
    (of_metric("safety", p_value=0.4), BLOCKED + "safety_regression"),
    (of_metric("latency", interval=Interval(low=-0.7, high=0.0)), BLOCKED + "latency_regression"),
    (of_metric("cost", interval=Interval(low=-101.0, high=0.0)), BLOCKED + "cost_regression"),
    (of_band("seed", within=False), BLOCKED + "seed_reproducibility"),
    (of_band("seed", delta_spread=0.06), BLOCKED + "seed_reproducibility"),  # although it says it is within
    (of_band("seed", most_delta_spread=0.01), BLOCKED + "seed_reproducibility"),  # beyond its own limit
    (of_band("seed", most_p_value_spread=0.001), BLOCKED + "seed_reproducibility"),
    (of_band("seed", delta_spread=0.06, most_delta_spread=1.0), BLOCKED + "seed_reproducibility"),  # by its own limits
    (of_band("seed", kind="sample"), "evidence_missing_seed_reproducibility"),
    (of_band("sample", within=False), BLOCKED + "sample_sensitivity"),
    (of_band("sample", p_value_spread=0.05), BLOCKED + "sample_sensitivity"),
    (but(golden=finding("observation_hash", "error")), "golden_changed_unsigned"),
    (but(audit=finding("no_secrets", "critical")), "data_quality_no_secrets"),
    (but(audit=finding("no_secrets", "critical", blocks=False)), "data_quality_no_secrets"),  # critical is critical
    (but(audit=finding("odd", "grave", blocks=False)), "data_quality_odd"),  # nobody knows how severe that is
    (but(audit=finding("no_secrets", "warning", blocks=True)), "data_quality_no_secrets"),
    (kpi(value=35.6), "kpi_out_of_band_queue"),
    (kpi(value=18.4), "kpi_out_of_band_queue"),
    (kpi(of=49), "population_below_minimum"),
    (kpi(value=nan), "evidence_missing_kpi_queue"),
    (kpi(value=inf), "evidence_missing_kpi_queue"),
    (kpi(value=True), "evidence_missing_kpi_queue"),
    (kpi(value="26.4"), "evidence_missing_kpi_queue"),
    (but(manifest={"kpis": [26.4]}), "evidence_missing_kpi_queue"),
    (of_metric("success", candidate="sprout@9"), "evidence_missing_success"),  # what others did says nothing
    (of_metric("success", baseline="sprout@0"), "evidence_missing_success"),
    (of_metric("safety", candidate="sprout@9"), "evidence_missing_safety"),
    (of_metric("safety", metric="reward"), "evidence_missing_safety"),
    (but(candidate="sprout@9"), "evidence_missing_success"),
    (but(primary="politeness"), "evidence_missing_politeness"),
]  # fmt: skip


@pytest.mark.parametrize("criteria", [Criteria(), STRICT])
def test_the_gate_opens_when_everything_is_there_and_passes_and_says_why(criteria: Criteria) -> None:
    decision = decide(good(), criteria)
    assert decision.open and set(codes(decision)) == {"promotion_allowed"} and decision.needs is None
    first, *rest = (reason.text for reason in decision.reasons)
    assert "success +0.12 (+0.06 to +0.18 at 0.95), safety +0" in first and f"all {len(rest)} checks" in first
    for number in ("+0.12 (+0.06 to +0.18 at 0.95)", "p 0.002", "400 pairs", "e 41 at task 130", "safety +0"):
        assert any(number in text for text in rest)


def test_no_evidence_keeps_it_closed() -> None:
    decision = decide(None, Criteria())
    assert not decision.open and codes(decision) == ["evidence_missing_all"]


def test_bare_evidence_keeps_it_closed_with_a_reason_for_each_piece() -> None:
    bare = Evidence(policy="p", baseline="p@1", candidate="p@2", suite="s", primary="success", episodes=0)
    assert codes(decide(bare, STRICT)) == [
        "population_below_minimum",
        *(
            f"evidence_missing_{what}"
            for what in ("episodes", "samples", "success", "verdict", "reward", "safety", "latency")
        ),
        *(f"evidence_missing_{what}" for what in ("cost", "seed_reproducibility", "sample_sensitivity", "golden")),
        *(f"evidence_missing_{what}" for what in ("audit", "kpi_queue")),
    ]


def closed(evidence: Evidence) -> list[str]:
    """Why the strict gate stays closed; every reason says what would help."""
    decision = decide(evidence, STRICT)
    unmet = [check for check in checks(evidence, STRICT) if not check.is_met]
    assert not decision.open and unmet and all(check.remedy for check in unmet)
    assert [reason.text for reason in decision.reasons] == [f"{check.text}; {check.remedy}" for check in unmet]
    return codes(decision)


@pytest.mark.parametrize(("change", "code"), REMOVALS)
def test_without_one_piece_it_is_closed_for_that_reason_alone(change: Change, code: str) -> None:
    assert set(closed(change(good()))) == {code}


@pytest.mark.parametrize(("change", "code"), FAILURES)
def test_one_figure_that_does_not_suffice_closes_it(change: Change, code: str) -> None:
    assert code in closed(change(good()))


def test_what_is_asked_for_by_nobody_may_be_missing() -> None:
    lenient = Criteria(require_seed_reproducibility=False, require_sample_size_sensitivity=False, require_audit=False)
    bare = replace(good(), bands={}, audit=None, golden=None, manifest={})
    assert decide(bare, lenient).open
    assert decide(without("latency")(without("cost")(bare)), lenient).open
    assert codes(decide(bare, Criteria())) == ["evidence_missing_audit"]


def test_bands_are_reported_and_close_the_gate_only_where_they_are_asked_for() -> None:
    apart = of_band("seed", within=False, delta_spread=0.2)(of_band("sample", within=False)(good()))
    assert decide(apart, Criteria()).open
    asked = Criteria(require_seed_reproducibility=True, require_sample_size_sensitivity=True)
    assert codes(decide(apart, asked)) == [BLOCKED + "seed_reproducibility", BLOCKED + "sample_sensitivity"]


@pytest.mark.parametrize(
    ("p_value", "lowest", "is_open"),
    [
        (0.0009, -0.01, False),
        (0.0009, 0.0, False),
        (0.0009, 0.01, True),  # a gain with every seed, if not the same one
        (0.0011, -0.3, True),  # as chance may have it
    ],
)
def test_a_gain_that_depends_on_the_seed_is_none(p_value: float, lowest: float, is_open: bool) -> None:
    seen = replace(good(), interaction=SeedInteraction(p_value=p_value, lowest=lowest, seeds=2))
    found = decide(seen, Criteria())
    assert found.open is is_open and (is_open or codes(found) == [BLOCKED + "seed_interaction"])
    assert decide(seen, Criteria(min_interaction_p=None)).open


def test_what_bets_have_proved_needs_no_second_proof_by_their_interval() -> None:
    wide = {"method": "betting e-process", "interval": Interval(low=-0.06, high=0.2)}
    proved = of_metric("safety", **wide)(of_metric("success", **wide)(good()))
    assert decide(proved, Criteria()).open
    assert not decide(of_metric("safety", margin=0.04)(proved), Criteria()).open  # of another margin it proves nothing
    assert not decide(of_metric("success", p_value=0.06)(proved), Criteria()).open


@pytest.mark.parametrize(("said", "is_blamed"), [("proved", False), ("proved worse", True), ("undecided", True)])
def test_a_gain_that_bets_did_not_prove_is_not_held_against_safety(said: str, is_blamed: bool) -> None:
    reasons = ("success undecided: evidence 3 of 40", f"safety worse by at most 0.05 {said}: evidence 41 of 40")
    outcomes = {"proved": Outcome.PROMOTE, "proved worse": Outcome.REJECT, "undecided": Outcome.HOLD}
    told = Verdict(outcome=Outcome.HOLD, reasons=reasons, needs=30)  # of earlier versions: in sentences alone
    kept = replace(told, reasons=("as kept",), gain=Outcome.HOLD, safety=outcomes[said])
    bets = of_metric("safety", method="betting e-process", interval=Interval(low=-0.06, high=0.2))(good())
    for held in (told, kept):
        found = decide(replace(bets, verdict=held), Criteria())
        assert BLOCKED + "policy_improvement_not_significant" in codes(found)
        assert (BLOCKED + "safety_regression" in codes(found)) is is_blamed
        assert not any("-0.06" in one.text for one in found.reasons)  # an end that nobody tested is not shown
    assert loads(Verdict, dumps(told)) == told and "safety" not in dumps(replace(told, reasons=("x",)))
    assert loads(Verdict, dumps(kept)).safety is outcomes[said]


def test_what_is_measured_is_all_that_more_tasks_can_meet() -> None:
    found = {check.code for check in measured(good(), STRICT)}
    assert found < {check.code for check in checks(good(), STRICT)}
    assert not {code for code in found if code.startswith(("data_quality", "golden", "kpi", "evidence_missing_s"))}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (but(golden=finding("reward_hash", "error")), "golden_changed_unsigned"),
        (but(audit=finding("no_pii", "critical")), "data_quality_no_pii"),
    ],
)
def test_what_was_found_counts_even_where_nobody_asked_for_it(change: Change, code: str) -> None:
    assert codes(decide(change(good()), Criteria(require_audit=False, require_golden=False))) == [code]


def test_a_narrow_margin_that_fails_does_not_speak_against_a_wider_limit() -> None:
    changed = of_metric("safety", margin=0.01, p_value=0.3)(good())
    assert decide(changed, Criteria()).open
    assert not decide(changed, Criteria(max_safety_regression=0.01)).open


@pytest.mark.parametrize(
    ("episodes", "verdict_needs", "needs"),
    [
        (400, 60, 60),
        (400, None, None),
        (12, None, 8),  # 20 are asked for
        (12, 60, 60),
        (12, 3, 8),
    ],
)
def test_a_closed_gate_says_how_many_more_episodes_may_open_it(
    episodes: int, verdict_needs: int | None, needs: int | None
) -> None:
    outcome = Outcome.REJECT if verdict_needs is None else Outcome.HOLD
    verdict = Verdict(outcome=outcome, reasons=("not yet",), needs=verdict_needs)
    assert decide(replace(good(), episodes=episodes, verdict=verdict), Criteria()).needs == needs


@pytest.mark.parametrize("difference", [0.0, -0.02])
def test_where_nothing_was_gained_no_number_of_episodes_is_named(difference: float) -> None:
    hold = Verdict(outcome=Outcome.HOLD, reasons=("open",), needs=360)
    seen = of_metric("success", difference=difference)(replace(good(), verdict=hold))
    seen = replace(seen, manifest={**seen.manifest, "solved": {"baseline": 0.0, "candidate": 0.0, "of": 99}})
    decision = decide(seen, Criteria())
    (told,) = (reason.text for reason in decision.reasons if reason.code == "no_gain_seen")
    assert decision.needs is None and "more episodes will not help" in told
    assert told.startswith("the candidate is no better so far: it solves 0 of 99 tries, the baseline 0; ")
    assert "easier tasks, a better starting model or partial credit may" in told
    few = decide(replace(seen, episodes=12), Criteria())  # so few say nothing yet: 20 are asked for
    assert few.needs == 8 and "no_gain_seen" not in codes(few)


# What a figure can be worth: on both sides of every limit, at it, and far off.
DIFFERENCES = st.sampled_from([-200.0, -0.3, -0.06, -0.05, -0.01, 0.0, 1e-9, 0.02, 0.1, 0.3]) | st.floats(-1, 1)
SHARES = st.sampled_from([0.0, 0.002, 0.04, 0.05, 0.051, 0.5, 1.0]) | st.floats(0, 1)
COUNTS = st.sampled_from([1, 2, 9, 10, 19, 20, 200, 400])


@st.composite
def comparisons(draw: st.DrawFn, metric: str) -> MetricComparison:
    low, high = sorted((draw(DIFFERENCES), draw(DIFFERENCES)))
    ends = Interval(low=low, high=high, level=draw(st.sampled_from([0.5, 0.9, 0.95, 0.99])))
    return compared(
        draw(st.sampled_from([metric] * 9 + ["other"])),
        draw(DIFFERENCES),
        0.0,
        0.0,
        interval=ends,
        candidate=draw(st.sampled_from(["sprout@2"] * 9 + ["sprout@9"])),
        p_value=draw(SHARES),
        pairs=draw(COUNTS),
        margin=draw(SHARES),
    )


def bands(kind: str) -> st.SearchStrategy[Band]:
    return st.builds(
        Band,
        kind=st.just(kind),
        within=st.booleans(),
        p_value_spread=SHARES,
        delta_spread=SHARES,
        most_p_value_spread=SHARES,
        most_delta_spread=SHARES,
        of=st.integers(2, 4),
    )


VERDICTS = st.sampled_from(
    [
        Verdict(outcome=Outcome.PROMOTE, reasons=("better",)),
        Verdict(outcome=Outcome.HOLD, reasons=("open",), needs=30),
        Verdict(outcome=Outcome.REJECT, reasons=("worse",)),
    ]
)
FINDINGS = st.builds(
    Finding,
    name=st.sampled_from(["no_secrets", "", "latency"]),
    severity=st.sampled_from(["info", "warning", "error", "critical", "?"]),
    count=st.integers(0, 2),
    of=st.integers(2, 3),
    detail=st.text(max_size=3),
    blocks=st.booleans(),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["value", "of", "queue"]), inner),
    max_leaves=4,
)


@st.composite
def mixed(draw: st.DrawFn) -> Evidence:
    """Good evidence with any of its pieces replaced by anything, or gone."""
    evidence = good()
    kept: dict[str, MetricComparison] = {}
    for metric, one in evidence.comparisons.items():
        if draw(st.integers(0, 9)):
            kept[metric] = one if draw(st.integers(0, 3)) else draw(comparisons(metric))
    parts: dict[str, st.SearchStrategy[Any]] = {
        "episodes": st.integers(0, 500),
        "verdict": st.none() | VERDICTS,
        "bands": st.fixed_dictionaries({}, optional={"seed": bands("seed"), "sample": bands("sample")}),
        "golden": st.none() | st.lists(FINDINGS, max_size=2).map(tuple),
        "audit": st.none() | st.lists(FINDINGS, max_size=3).map(tuple),
        "samples": st.none() | st.text(max_size=3),
        "primary": st.sampled_from(["reward", "safety", "latency", "politeness"]),
        "manifest": st.fixed_dictionaries({"kpis": JSON}),
    }
    changed = draw(st.sets(st.sampled_from(sorted(parts)), max_size=3))
    return replace(evidence, comparisons=kept, **{name: draw(parts[name]) for name in sorted(changed)})


@given(mixed(), st.sampled_from([Criteria(), STRICT]))
def test_any_evidence_leads_to_a_decision_and_an_open_one_has_everything(
    evidence: Evidence, criteria: Criteria
) -> None:
    decision = decide(evidence, criteria)
    assert decision == decide(evidence, criteria)
    assert (
        decision.open
        == (set(codes(decision)) == {"promotion_allowed"})
        == all(c.is_met for c in checks(evidence, criteria))
    )
    if not decision.open:
        return
    primary, safety = evidence.comparisons[evidence.primary], evidence.comparisons["safety"]
    assert primary.interval.low > 0 and primary.difference > 0 and primary.p_value <= 0.05 and primary.margin == 0
    assert safety.interval.low >= -0.05 and safety.difference >= -0.05
    assert {primary.candidate, safety.candidate} == {evidence.candidate}
    assert min(primary.interval.level, safety.interval.level) >= 0.95
    assert evidence.verdict is not None and evidence.verdict.outcome is Outcome.PROMOTE
    assert evidence.episodes >= 20 and min(primary.pairs, safety.pairs) >= 10
    assert all(evidence.bands[kind].within for kind in ("seed", "sample"))
    assert evidence.audit and not [one for one in evidence.audit if one.count and one.severity == "critical"]


@st.composite
def open_cases(draw: st.DrawFn) -> Evidence:
    """Evidence that opens the strictest gate, its figures anywhere within the limits."""
    unit = st.floats(0, 1)
    evidence = good()
    found = {}
    for metric, one in evidence.comparisons.items():
        floor = {"success": 1e-6, "reward": 0.0, "safety": -0.05, "latency": -0.5, "cost": -100.0}[metric]
        low = floor + draw(unit)
        difference = low + draw(unit)
        ends = Interval(low=low, high=difference + draw(unit), level=draw(st.floats(0.95, 0.999)))
        p_value, pairs = 0.05 * draw(unit), draw(st.integers(10, 10_000))
        found[metric] = replace(one, difference=difference, interval=ends, p_value=p_value, pairs=pairs)
    seed = replace(evidence.bands["seed"], p_value_spread=0.05 * draw(unit), delta_spread=0.05 * draw(unit))
    value = {"value": draw(st.floats(18.5, 35.5)), "of": draw(st.integers(50, 10**6))}
    return replace(
        evidence,
        episodes=draw(st.integers(20, 10**6)),
        comparisons=found,
        bands={**evidence.bands, "seed": seed},
        manifest={"kpis": {"queue": value}},
    )


@given(open_cases(), st.sampled_from(REMOVALS))
def test_removing_any_piece_from_any_open_case_closes_it_with_its_code(
    evidence: Evidence, removal: tuple[Change, str]
) -> None:
    assert decide(evidence, STRICT).open
    change, code = removal
    decision = decide(change(evidence), STRICT)
    assert not decision.open and set(codes(decision)) == {code}


@st.composite
def worse(draw: st.DrawFn, evidence: Evidence) -> Evidence:
    """The same evidence with one figure worse than it was, by a little or by much."""
    by = draw(st.sampled_from([1e-6, 0.01, 0.05, 0.3, 50.0]))
    metric = draw(st.sampled_from(["success", "reward", "safety", "latency", "cost"]))
    kind = draw(st.sampled_from(["seed", "sample"]))
    one, band, told = evidence.comparisons.get(metric), evidence.bands.get(kind), evidence.manifest.get("kpis")
    ways = [replace(evidence, episodes=max(0, evidence.episodes - draw(st.integers(1, 500))))]
    if one is not None:
        ends = one.interval
        ways += [
            of_metric(metric, **change)(evidence)
            for change in (
                {"difference": one.difference - by},
                {"interval": replace(ends, low=ends.low - by)},
                {"interval": replace(ends, low=ends.low - by, high=ends.high - by)},
                {"interval": replace(ends, level=ends.level * 0.9)},
                {"p_value": min(1.0, one.p_value + by)},
                {"pairs": max(1, one.pairs // 2)},
                {"margin": one.margin + by},
            )
        ]
    if band is not None:
        ways += [
            of_band(kind, **change)(evidence)
            for change in (
                {"within": False},
                {"p_value_spread": band.p_value_spread + by},
                {"delta_spread": band.delta_spread + by},
                {"of": max(2, band.of - 1)},
            )
        ]
    if evidence.verdict is not None:
        down = Verdict(outcome=Outcome.HOLD, reasons=("open",), needs=3)
        is_held = evidence.verdict.outcome is not Outcome.PROMOTE
        ways += [replace(evidence, verdict=Verdict(outcome=Outcome.REJECT, reasons=("worse",)) if is_held else down)]
    for name in ("golden", "audit"):
        for place, each in enumerate(findings := getattr(evidence, name) or ()):
            for change in ({"count": min(each.of, each.count + 1)}, {"blocks": True}, {"severity": "critical"}):
                changed = (*findings[:place], replace(each, **change), *findings[place + 1 :])
                ways.append(but(**{name: changed})(evidence))
    if isinstance(told, dict) and isinstance(told.get("queue"), dict) and set(told["queue"]) == {"value", "of"}:
        value, of = told["queue"]["value"], told["queue"]["of"]
        if isinstance(value, float) and isinstance(of, int):
            ways += [kpi(value=value, of=of - 20)(evidence)]
            ways += [kpi(value=value + (by if value >= 27 else -by), of=of)(evidence)]
    return draw(st.sampled_from(ways))


@given(st.data(), st.sampled_from([Criteria(), STRICT]))
def test_no_figure_that_gets_worse_ever_opens_it(data: st.DataObject, criteria: Criteria) -> None:
    evidence = data.draw(open_cases() | mixed())
    was_open = decide(evidence, criteria).open
    for _ in range(4):
        evidence = data.draw(worse(evidence))
        is_open = decide(evidence, criteria).open
        assert was_open or not is_open
        was_open = is_open


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_safety_regression": -0.1},
        {"max_safety_regression": nan},
        {"max_latency_increase": inf},
        {"max_cost_increase": -1.0},
        {"min_reward_delta": nan},
        {"max_p_value": 0.0},
        {"max_p_value": nan},
        {"level": 1.0},
        {"min_episodes": 0},
        {"min_tasks": 0},
    ],
)
def test_criteria_that_nothing_could_fail_or_meet_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(wrong))):
        Criteria(**wrong)


@pytest.mark.parametrize(
    "wrong", [{}, {"low": 2.0, "high": 1.0}, {"low": nan}, {"high": inf}, {"low": 1.0, "least": 0}]
)
def test_a_band_without_a_sensible_end_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="kpi band"):
        KpiBand(**wrong)


@pytest.mark.parametrize("wrong", [(nan, 0.1), (0.1, nan), (-0.1, 0.1), (0.1, inf), (1.5, 0.1)])
def test_a_spread_that_is_no_limit_is_refused(wrong: tuple[float, float]) -> None:
    with pytest.raises(BadInput, match="spread"):
        SpreadLimits(p_value=wrong[0], delta=wrong[1])


def test_a_band_may_have_one_end() -> None:
    only_low = Criteria(kpis={"queue": KpiBand(low=20.0)})
    assert decide(kpi(value=1e6)(good()), only_low).open
    assert codes(decide(kpi(value=19.0)(good()), only_low)) == ["kpi_out_of_band_queue"]


def test_the_audit_record_has_the_documented_fields() -> None:
    worse = of_metric("safety", difference=-0.25, interval=Interval(low=-0.3, high=-0.2))(good())
    decision = decide(worse, Criteria())
    record = audit_record(
        decision, worse, checkpoint=" run-1-20 ", at=1_700_000_000.25, criteria=Criteria(), penalties=(0.25, 0.5)
    )
    assert record == {
        "record_type": "checkpoint_promotion_gate_v1",
        "schema_version": 1,
        "timestamp_unix_ms": 1_700_000_000_250,
        "checkpoint_id": "run-1-20",
        "baseline_safety_penalty": 0.25,
        "candidate_safety_penalty": 0.5,
        "max_safety_regression": 0.05,
        "safety_regression": 0.25,
        "promotion_allowed": False,
        "reason_codes": ["checkpoint_promotion_blocked_safety_regression"],
    }


def test_what_was_not_measured_is_null_in_the_audit_record() -> None:
    record = audit_record(decide(None, Criteria()), None, checkpoint="c", at=0.0, criteria=Criteria())
    assert (record["safety_regression"], record["baseline_safety_penalty"]) == (None, None)
    assert record["reason_codes"] == ["evidence_missing_all"]


@pytest.mark.parametrize(
    "wrong", [{"checkpoint": " "}, {"at": nan}, {"penalties": (0.1, 0.4)}, {"penalties": (nan, 0.0)}]
)
def test_an_audit_record_that_contradicts_its_evidence_is_refused(wrong: dict[str, Any]) -> None:
    given = {"checkpoint": "c", "at": 0.0, "criteria": Criteria(), **wrong}
    with pytest.raises(BadInput):
        audit_record(decide(good(), Criteria()), good(), **given)


def test_safety_that_nobody_measured_keeps_it_closed_unless_somebody_said_why() -> None:
    bare = without("safety")(good())
    closed = decide(bare, Criteria())
    assert codes(closed) == ["evidence_missing_safety"] and "--waive-safety" in closed.reasons[0].text
    waiving = Criteria(max_safety_regression=None)
    assert codes(decide(bare, waiving)) == ["evidence_missing_safety"]  # nobody waived it
    opened = decide(replace(bare, manifest={**bare.manifest, "safety_waived": "read by people"}), waiving)
    assert opened.open and any("NOT measured: read by people" in reason.text for reason in opened.reasons)


def test_what_is_held_says_which_alpha_its_test_had() -> None:
    held = Verdict(outcome=Outcome.HOLD, reasons=("success undecided: evidence 3 of 1087",), needs=30)
    text = "α of this test 0.00092 of 0.05: the 12th candidate on these tasks; fresh held-out tasks would start anew"
    evidence = replace(good(), verdict=held, manifest={**good().manifest, "account": {"number": 12, "text": text}})
    assert any(text in reason.text for reason in decide(evidence, Criteria()).reasons)
    safe = replace(held, reasons=("success proved: all", "safety worse by at most 0.05 undecided: few"))
    told = decide(replace(evidence, verdict=safe), Criteria()).reasons
    assert not any(text in reason.text for reason in told)  # safety is asked of each alone


def judged(**given: Any) -> Evidence:
    told = {"judge": "gpt-x", "criterion": "correctness@1", "prompt": "ab" * 32, **given}
    return replace(good(), manifest={**good().manifest, "judged": [told]})


def test_a_judge_decides_only_when_it_is_calibrated_and_with_its_errors_taken_out() -> None:
    bare = decide(judged(standing=None), Criteria())
    assert codes(bare) == ["evidence_missing_judge_calibration"]
    assert "holdfast reward judge calibrate --judge gpt-x --criterion correctness" in bare.reasons[0].text
    weak = judged(
        standing="diagnostic only", reasons=["kappa 0.45, at least 0.31 at 95 %"], stretch=[1.2, 4.0], labels=50
    )
    assert "at least 0.31" in decide(weak, Criteria()).reasons[0].text and not decide(weak, Criteria()).open
    fine = decide(judged(standing="trusted", stretch=[1.25, 2.0], labels=300), Criteria())
    assert fine.open and any("from +0.075 to +0.36" in reason.text for reason in fine.reasons)
    assert codes(decide(judged(standing="trusted", stretch=None, labels=60), Criteria()))[0] == codes(bare)[0]
