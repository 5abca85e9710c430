"""The whole gate, by few seeded experiments: the thousands are for `holdfast prove calibrate`."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.contracts.evidence import Episode, Finding, Outcome
from holdfast.pipeline.calibrate import ATTACKS, POWERS, GateRate, Scenario, gate_rate
from holdfast.pipeline.promote import evidence_from
from holdfast.promote.gate import Criteria, decide
from holdfast.prove.calibrate import verdicts
from holdfast.prove.comparison import ComparisonConfig, compare_versions

NAMED = {one.name: one for one in (*ATTACKS, *POWERS)}


def rated(name: str, experiments: int, **given: float) -> GateRate:
    scenario: Scenario = replace(NAMED[name], **given)  # type: ignore[arg-type]
    return gate_rate(scenario, experiments=experiments, alpha=0.05, rng=np.random.default_rng(16))


def drawn(rate: float, rng: np.random.Generator, *, tasks: int = 200) -> list[Episode]:
    hits = (rng.random((tasks, 2)) < rate).astype(float)
    return [
        Episode(task=f"t{task}", seed=seed, reward=(hit := float(hits[task, seed])), success=hit, safety_cost=0.0)
        for task in range(tasks)
        for seed in (0, 1)
    ]


def test_the_gate_opens_for_every_gain_that_the_verdict_promotes() -> None:
    """The bands of seeds and samples closed it for two of three."""
    opened = promoted = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        how, versions = ComparisonConfig(), ("p@1", "p@2")
        found = compare_versions(drawn(0.5, rng), drawn(0.7, rng), how, versions=versions, rng=rng)
        evidence = replace(
            evidence_from(found, how, policy="p", suite="s", versions=versions),
            missing={"planned": 400, "baseline": 10, "candidate": 9},  # above 2 %: assumed to be the worst, no veto
            audit=(Finding(name="no_secrets", severity="critical", count=0, of=9),),
            samples=64 * "0",
        )
        promoted += found.verdict.outcome is Outcome.PROMOTE
        opened += decide(evidence, Criteria()).open
    assert opened == promoted >= 11


def test_gains_that_come_first_in_the_file_open_nothing() -> None:
    rng = np.random.default_rng(3)
    before, after = NAMED["gains first"].rates(rng, (40, 400, 2))
    d = ((rng.random(after.shape) < after).astype(float) - (rng.random(before.shape) < before)).mean(axis=2)
    promote, reject = verdicts(d, low=-1.0, high=1.0, mean=0.0, alpha=0.05)
    assert (promote < reject).mean() > 0.6  # as they lie in the file
    assert rated("gains first", 40).opened <= 2  # as they are measured


@pytest.mark.parametrize(("name", "units"), [("copies", 15), ("documents", 100)])
def test_what_belongs_together_counts_once(name: str, units: int) -> None:
    found = rated(name, 40)
    assert (found.units, found.is_within) == (units, True) and found.opened <= 4


def test_nobody_gains_by_what_never_comes_back() -> None:
    assert rated("hides failures", 40).opened <= 3
    assert rated("+10, faults", 10).opened >= 8  # 2 % of both are lost, and measured once more


def test_a_gain_with_one_seed_alone_opens_nothing_though_the_mean_is_proved() -> None:
    found = rated("one lucky seed", 3)
    assert (found.opened, found.verdicts > 0.5) == (0, True)


def test_the_headline_holds_the_truth_and_states_no_lucky_stop() -> None:
    found = rated("+3", 80)
    assert found.opened >= 5 and found.seen > 0.07  # far above 0.03: only those with luck stop
    assert found.covered >= 0.9 and abs(found.stated - 0.03) < 0.5 * (found.seen - 0.03)


def test_every_fault_that_the_gate_answers_names_tests_that_are_there() -> None:
    tests = Path(__file__).parents[1]
    page = (tests.parent / "docs/decisions/0018-what-decides-in-the-gate.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if re.match(r"\| \d+ \|", line)]
    assert [int(row.split("|")[1]) for row in rows] == list(range(1, 13))
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named and all(f"def {test}(" in (tests / path).read_text(encoding="utf-8") for path, test in named), row
