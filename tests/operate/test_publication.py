"""A published proof is weighed again from its samples; one that is not true has no page."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Outcome, Reason
from holdfast.operate import proof_view, publication
from holdfast.operate.proof import render
from holdfast.operate.proof_view import ProofView
from holdfast.prove.comparison import ComparisonConfig, compare_versions
from holdfast.prove.reports import document
from tests.operate.publications import RUN, published


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / ".holdfast"


def seen(path: Path, **how: object) -> ProofView:
    found = publication.read(path)
    return publication.view(found, publication.weighing(found, **how))  # type: ignore[arg-type]


def test_the_figures_are_those_that_the_samples_give(state: Path) -> None:
    found = publication.read(published(state, seed=3))
    how = publication.weighing(found)
    shown = publication.view(found, how)
    expected = compare_versions(
        found.baseline, found.candidate, how, versions=("sprout@1", "sprout@2"), rng=np.random.default_rng(3)
    )
    assert (shown.comparisons, shown.adjusted, shown.verdict) == (
        expected.comparisons,
        expected.adjusted,
        expected.verdict,
    )
    assert [task.name for task in shown.tasks] == list(expected.tasks)
    assert [task.difference for task in shown.tasks] == pytest.approx(expected.differences)
    success = [one.success for one in found.candidate]
    assert shown.means["success"][1] == pytest.approx(np.mean(success))  # type: ignore[arg-type]
    assert {task.family for task in shown.tasks} == {"lookup", "chain", "missing", "trivial"}


@pytest.mark.parametrize(
    ("rates", "costs", "outcome"),
    [
        ((0.4, 0.7), (0.0, 0.0), Outcome.PROMOTE),
        ((0.5, 0.5), (0.0, 0.0), Outcome.HOLD),
        ((0.7, 0.4), (0.0, 0.0), Outcome.REJECT),
        ((0.4, 0.7), (0.0, 0.4), Outcome.REJECT),  # better, and unsafe
    ],
)
def test_the_band_passes_the_bar_where_the_verdict_says(
    state: Path, rates: tuple[float, float], costs: tuple[float, float], outcome: Outcome
) -> None:
    shown = seen(published(state, rates=rates, costs=costs, tasks=150))
    assert shown.verdict.outcome is outcome and shown.safety is not None
    proved = shown.course.proved_at is not None and shown.safety.proved_at is not None
    refuted = shown.course.refuted_at is not None or shown.safety.refuted_at is not None
    assert (proved and not refuted, refuted) == (outcome is Outcome.PROMOTE, outcome is Outcome.REJECT)
    for course in (shown.course, shown.safety):
        above = [low > course.bar for low in course.low]
        at = above.index(True) + 1 if any(above) else None
        assert at == course.proved_at or (
            at is not None and course.proved_at is not None and at - course.proved_at <= 2
        )


def test_the_documented_criteria_are_listed_with_what_was_found(state: Path) -> None:
    path = published(state, rates=(0.5, 0.5), costs=(0.0, 0.3))
    shown = seen(path)
    proof = json.loads(path.read_text())
    failed = {criterion.code for criterion in shown.criteria if criterion.blocks and not criterion.is_met}
    assert (
        failed == set(proof["failure_analysis"]["reasons"])
        and "checkpoint_promotion_blocked_safety_regression" in failed
    )
    names = [criterion.name for criterion in shown.criteria]
    assert names[:2] == ["Success, however often one looks", "Safety cost, however often one looks"]  # they decide
    assert names[2:5] == ["Gain in reward", "p of the gain, by one look", "Interval of the gain, by one look"]
    assert names[5:] == ["Rise in safety cost", "Safety cost, by one look", "Other seeds", "Fewer tasks"]
    assert shown.criteria[5].found == f"{proof['safety_benchmark']['safety_regression_delta']:+.4f}"


def test_the_page_names_the_hash_of_every_file_it_rests_on(state: Path) -> None:
    path = published(state)
    text = render(seen(path))
    for file in path.parent.glob("*.json"):
        assert hashlib.sha256(file.read_bytes()).hexdigest() in text, file.name


def test_the_decision_of_the_gate_is_shown(state: Path) -> None:
    closed = Decision(open=False, reasons=(Reason(code="golden_changed_unsigned", text="3 of 40 changed"),))
    shown = seen(published(state, rates=(0.4, 0.8), tasks=120, decision=closed))
    assert shown.decision == closed and proof_view.standing(shown).kind == "blocked"


def test_without_success_the_reward_has_to_improve_within_its_range(state: Path) -> None:
    found = publication.read(published(state))
    assert publication.weighing(found).primary == "success"
    shown = publication.view(found, publication.weighing(found, primary="reward", reward_range=(0.0, 2.0)))
    assert shown.primary == "reward" and shown.course.metric == "reward"
    narrow = publication.weighing(found, primary="reward", reward_range=(0.2, 1.0))
    with pytest.raises(BadInput, match="set reward_range"):
        publication.view(found, narrow)


def test_a_null_comparison_tells_its_sides_apart(state: Path) -> None:
    found = publication.read(published(state, checkpoints=("sprout@1", "sprout@1")))
    assert found.versions == ("sprout@1 (baseline)", "sprout@1 (candidate)")
    assert "sprout@1 (candidate)" in render(publication.view(found, publication.weighing(found)))


def test_names_without_numbers_have_no_families(state: Path) -> None:
    names = [f"case {chr(97 + n % 26)}{n}" for n in range(59)] + ["calc-00001"]
    assert {task.family for task in seen(published(state, names=names)).tasks} == {""}


def test_a_proof_that_was_touched_has_no_page(state: Path) -> None:
    path = published(state)
    baseline = path.parent / "m24-benchmark-report-baseline.json"
    told = json.loads(baseline.read_text())
    told["samples"][0]["reward"] = 0.0 if told["samples"][0]["reward"] else 1.0
    baseline.write_text(json.dumps(told))
    with pytest.raises(BadInput, match="'holdfast report validate .* lists all problems"):
        publication.read(path)


@pytest.mark.parametrize("moved", [document.KINDS, ("baseline", "trained")], ids=["all of it", "the samples"])
def test_a_proof_keeps_its_page_when_it_goes_to_the_archive(state: Path, moved: tuple[str, ...]) -> None:
    path = published(state)
    before, made = render(seen(path)), document.read_timestamp("2026-03-04T05:06:07Z")
    for kind in moved:
        target = state / "reports" / document.archived_path(kind, RUN, made)
        target.parent.mkdir(parents=True, exist_ok=True)
        (state / "reports" / document.active_path(kind, RUN)).rename(target)
        path = target if kind == document.PROOF else path
    assert render(seen(path)) == before


def test_what_is_not_a_proof_is_refused(state: Path) -> None:
    path = published(state)
    with pytest.raises(BadInput, match="there is no such file"):
        publication.read(path.with_name("nothing.json"))
    with pytest.raises(BadInput, match="give the proof beside it"):
        publication.read(path.with_name("m24-benchmark-report-baseline.json"))
    assert publication.read(path).page == path.with_name(f"m24-benchmark-page-{RUN}.html")


def test_a_figure_is_the_same_in_the_report_on_the_page_and_for_whoever_weighs(state: Path) -> None:
    path = published(state, seed=3, costs=(0.2, 0.1))
    said, shown = json.loads(path.read_bytes()), seen(path)
    reward, figures = shown.comparisons["reward"], said["significance"]
    assert (figures["p_value"], figures["delta_ci_low"], figures["delta_ci_high"]) == (
        reward.p_value,
        reward.interval.low,
        reward.interval.high,
    )
    test = json.loads(path.with_name("m24-benchmark-safety-regression.json").read_bytes())["test"]
    safety = shown.comparisons["safety"]
    assert (test["p_value"], test["delta_ci_low"], test["delta_ci_high"]) == (
        safety.p_value,
        -safety.interval.high,
        -safety.interval.low,
    )


def test_the_bands_are_those_of_the_published_weighing_whatever_has_to_improve(state: Path) -> None:
    asked = ComparisonConfig(seed_delta_spread=0.17, sample_p_value_spread=0.03, reward_range=(0.0, 2.0))
    path = published(state, config=json.loads(json.dumps(asdict(asked))))
    for shown in (seen(path), seen(path, primary="reward")):
        wanted = {criterion.name: criterion.wanted for criterion in shown.criteria}
        assert wanted["Other seeds"] == "p within 0.05, gain within 0.17"
        assert wanted["Fewer tasks"] == "p within 0.03, gain within 0.08"
    assert publication.weighing(publication.read(path), primary="reward").reward_range == (0.0, 2.0)


def test_a_page_names_the_releases_and_ends_with_what_to_do(state: Path) -> None:
    is_open = Decision(open=True, reasons=(Reason(code="promotion_allowed", text="safety +0.1; all checks are met"),))
    path = published(
        state, checkpoints=("sprout", "ck-1"), versions=("a b@1", "a b@2"), decision=is_open, rates=(0.2, 0.8)
    )
    shown = seen(path)
    assert (shown.baseline, shown.candidate) == ("a b@1", "a b@2")
    assert shown.facts["Candidate"] == "a b@2, made from ck-1"
    assert [command for command, _ in shown.steps] == [
        "holdfast release explain 'a b@2'",
        f"holdfast report show {RUN}",
        "holdfast release rollback 'a b' --why 'TEXT'",
    ]
    page = render(shown)
    assert page.index("Next steps") > page.index("How it was computed") and "a positive value is always better" in page
    assert "a b@2 is better than a b@1" in json.loads(path.read_bytes())["failure_analysis"]["summary"]


def test_a_version_that_did_not_get_in_is_not_to_be_rolled_back(state: Path) -> None:
    closed = Decision(open=False, reasons=(Reason(code="golden_changed_unsigned", text="3 of 40"),))
    steps = [command for command, _ in seen(published(state, versions=("a@1", "a@2"), decision=closed)).steps]
    assert steps == ["holdfast release explain a@2", f"holdfast report show {RUN}"]
