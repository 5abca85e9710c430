from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Episode
from holdfast.contracts.records import decode
from holdfast.prove.reports.document import KINDS, PROOF, SAFETY, Retention
from holdfast.prove.reports.report import (
    SAFETY_NOT_PROVED,
    SAFETY_REGRESSION,
    ProofCriteria,
    Published,
    ReportComparison,
    Side,
    check_alike,
    failed,
    find,
    find_safety,
    publish,
)
from holdfast.prove.reports.validate import validate
from tests.prove.reports.publication import (
    AFTER,
    AT,
    BEFORE,
    OPENED,
    RUN,
    SUITE,
    episodes,
    published,
    read,
    with_cost,
)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Published:
    return published(tmp_path_factory.mktemp("done"))


def test_a_publication_has_every_file_in_its_place(tmp_path: Path) -> None:
    done = published(tmp_path)
    names = ["report-baseline", "report-trained", "report-significance", "safety-regression", "report-summary"]
    assert [path.relative_to(tmp_path).as_posix() for path in done.paths.values()] == [
        f".holdfast/reports/m24/m24-small/m24-benchmark-{name}.json" for name in (*names, "proof-m24-small")
    ]
    assert sorted(done.paths[PROOF].parent.iterdir()) == sorted(done.paths.values())
    for path in done.paths.values():
        said = read(path)["publication"]["report_path"]
        assert (tmp_path / said) == path


@pytest.mark.parametrize("kind", ["baseline", "trained", "significance", "summary"])
def test_a_report_has_the_documented_groups(done: Published, kind: str) -> None:
    data = read(done.paths[kind])
    assert (data["schema_version"], data["report_kind"], data["run_id"]) == (1, kind, RUN)
    assert data["generated_at"] == "2026-07-01T12:00:00Z"
    assert data["benchmark_suite"] == {"name": "reasoning-suite", "version": "1", "sha256": "5" * 64}
    assert set(data["metrics"]) >= {"episodes", "mean_reward", "mean_safety_penalty"}
    assert set(data["publication"]) == {"report_path", "archive_path"}
    assert data["retention"].pop("policy") == "archive-then-purge"
    assert data["retention"] == {"retain_days": 365, "archive_after_days": 30, "purge_after": "2027-07-01T12:00:00Z"}


def test_the_sides_carry_every_episode_and_what_was_not_measured_has_no_mean(done: Published, tmp_path: Path) -> None:
    data = read(done.paths["baseline"])
    assert data["checkpoint_id"] == "sprout-weak"
    assert len(data["samples"]) == data["metrics"]["episodes"] == 5
    assert data["samples"][4] == {
        "task": "task-4", "seed": 0, "reward": 0.6, "safety_penalty": 0.0, "success": 1.0, "latency_s": 0.25,
        "tokens": 12, "rollout": "run-1/4.0",
    }  # fmt: skip
    assert data["metrics"] == {
        "episodes": 5, "tasks": 5, "seeds": 1, "mean_reward": 0.4, "mean_safety_penalty": 0.0, "success_rate": 0.2,
        "mean_latency_s": 0.25, "mean_tokens": 12.0,
    }  # fmt: skip
    before = [replace(BEFORE[0], tokens=None, success=None), *BEFORE[1:]]
    metrics = read(published(tmp_path, baseline=before).paths["baseline"])["metrics"]
    assert metrics["mean_tokens"] is None and metrics["success_rate"] is None and metrics["mean_latency_s"] == 0.25


def test_the_significance_report_has_the_documented_figures(done: Published) -> None:
    data = read(done.paths["significance"])
    low, high = data["significance"].pop("delta_ci_low"), data["significance"].pop("delta_ci_high")
    assert (low, high) == pytest.approx((0.2, 0.2))
    assert data["significance"] == {
        "method": "paired permutation, exact", "pairs": 5, "alpha": 0.05, "seed": 0, "p_value": 1 / 32,
        "confidence_level": 0.95, "mean_delta": 0.2, "pass": True, "baseline_mean_reward": 0.4,
        "trained_mean_reward": 0.6, "baseline_mean_safety_penalty": 0.0, "trained_mean_safety_penalty": 0.0,
        "safety_regression_delta": 0.0, "reasons": [],
    }  # fmt: skip
    assert data["metrics"]["mean_reward"] == 0.6  # those of the trained checkpoint
    assert data["reports"]["baseline"] == {
        "file": "m24-benchmark-report-baseline.json",
        "sha256": hashlib.sha256(done.paths["baseline"].read_bytes()).hexdigest(),
    }


def test_the_proof_names_every_artifact_by_its_bytes(done: Published) -> None:
    proof = read(done.paths[PROOF])
    del proof["seal"]
    assert proof == done.proof
    for kind in KINDS[:-1]:
        name = f"{kind.replace('-', '_')}_report"
        assert proof["artifacts"][name] == done.paths[kind].name
        assert proof["sha256"][name] == hashlib.sha256(done.paths[kind].read_bytes()).hexdigest()
    side = {"checkpoint_id": "sprout-weak", "episodes": 5, "mean_reward": 0.4, "mean_safety_penalty": 0.0}
    assert proof["baseline"] == side
    assert proof["trained"]["checkpoint_id"] == "ckpt-7"
    assert proof["proof_status"] == "pass" and done.is_pass
    assert proof["failure_analysis"]["reasons"] == []
    assert proof["failure_analysis"]["summary"] == (
        "ckpt-7 is better than sprout-weak: reward +0.2 (0.95 interval +0.2 to +0.2, p = 0.0312), "
        "safety penalty +0 (above 0 is worse), over 5 tasks"
    )
    assert decode(Decision, proof["decision"]) == OPENED


@pytest.mark.parametrize(
    ("changed", "reasons"),
    [
        ({"criteria": ProofCriteria(min_reward_delta=0.21)}, ["reward_gain_below_threshold"]),
        ({"criteria": ProofCriteria(max_p_value=0.03)}, ["p_value_above_threshold"]),
        ({"criteria": ProofCriteria(min_confidence_level=0.99)}, ["confidence_below_threshold"]),
        ({"trained": with_cost(AFTER, [0.1] * 5)}, ["checkpoint_promotion_blocked_safety_regression"]),
        (
            {"baseline": AFTER, "trained": BEFORE},
            ["reward_gain_below_threshold", "p_value_above_threshold", "confidence_below_threshold"],
        ),
    ],
)
def test_a_proof_that_fails_is_published_with_its_reasons(
    tmp_path: Path, changed: dict[str, Any], reasons: list[str]
) -> None:
    done = published(tmp_path, **changed)
    assert not done.is_pass and done.proof["proof_status"] == "fail"
    assert done.proof["significance"]["pass"] is False
    assert done.proof["failure_analysis"]["reasons"] == reasons
    assert read(done.paths["summary"])["outcome"]["reasons"] == reasons
    assert validate(done.paths[PROOF]) == []


def test_a_blocked_safety_report_says_by_how_much(tmp_path: Path) -> None:
    data = read(published(tmp_path, trained=with_cost(AFTER, [0.0, 0.0, 0.0, 0.4, 0.1])).paths[SAFETY])
    assert data["sample_count"] == 5
    assert (data["baseline_mean_safety_penalty"], data["trained_mean_safety_penalty"]) == (0.0, 0.1)
    assert (data["safety_regression_delta"], data["max_safety_regression"]) == (0.1, 0.05)
    assert data["promotion_allowed"] is False and data["test"]["proved"] is False
    assert data["reason_codes"] == ["checkpoint_promotion_blocked_safety_regression"]
    assert data["diagnostics"] == [
        "the mean penalty rose by 0.1, and may rise by 0.05",
        "the bound is broken on average",
    ]
    assert data["test"]["delta_ci_low"] <= 0.1 <= data["test"]["delta_ci_high"]
    assert data["samples"][3] == {"task": "task-3", "seed": 0, "baseline": 0.0, "trained": 0.4}


def test_a_bound_that_holds_only_on_average_blocks_the_proof_but_not_the_documented_pass(tmp_path: Path) -> None:
    before, after = with_cost(BEFORE, [0.5, 0.5, 0, 0, 0]), with_cost(AFTER, [0, 0, 0.5, 0.5, 0])
    proof = published(tmp_path, baseline=before, trained=after).proof
    assert proof["significance"]["pass"] is True
    assert proof["proof_status"] == "fail"
    assert proof["safety_benchmark"]["promotion_allowed"] is False
    assert proof["failure_analysis"]["reasons"] == ["checkpoint_promotion_blocked_safety_not_proved"]


def test_the_same_inputs_give_the_same_bytes_in_whatever_form(tmp_path: Path) -> None:
    one, two = published(tmp_path / "a"), published(tmp_path / "b", trained=AFTER[::-1])  # in whatever order
    assert [p.read_bytes() for p in one.paths.values()] == [p.read_bytes() for p in two.paths.values()]
    after: Any = [replace(one, reward=np.float32(one.reward), tokens=np.int64(3), seed=np.int64(0)) for one in AFTER]
    assert validate(published(tmp_path / "c", trained=after).paths[PROOF]) == []
    there = datetime(2026, 1, 1, 0, 30, 0, 999, tzinfo=timezone(timedelta(hours=1)))
    data = published(tmp_path / "d", generated_at=there).proof
    assert data["generated_at"] == "2025-12-31T23:30:00Z"
    assert "/archive/m24/2025/12/" in data["publication"]["archive_path"]
    kept = published(tmp_path / "e", retention=Retention(policy="retain-only", retain_days=10, archive_after_days=0))
    assert kept.proof["retention"]["purge_after"] == "2026-07-11T12:00:00Z"
    assert validate(kept.paths[PROOF]) == []


def test_a_run_is_published_once_even_when_its_proof_is_archived(tmp_path: Path) -> None:
    done = published(tmp_path)
    before = {path: path.read_bytes() for path in done.paths.values()}
    with pytest.raises(BadInput, match="run m24-small: is published already: .*choose another run id"):
        published(tmp_path, trained=BEFORE, baseline=AFTER)
    assert {path: path.read_bytes() for path in done.paths.values()} == before
    archived = tmp_path / done.proof["publication"]["archive_path"]
    archived.parent.mkdir(parents=True)
    done.paths[PROOF].rename(archived)
    with pytest.raises(BadInput, match="is published already"):
        published(tmp_path)


def test_a_publication_that_was_cut_short_is_published_anew(tmp_path: Path) -> None:
    done = published(tmp_path)
    for kind in (PROOF, "summary"):
        done.paths[kind].unlink()
    done.paths["baseline"].write_text("{")
    again = published(tmp_path, generated_at=AT + timedelta(hours=1))
    assert validate(again.paths[PROOF]) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run_id": "run-1"}, "run_id = 'run-1': must be m24-"),
        ({"suite": ("", "1", "5" * 64)}, "suite name = '': must be text"),
        ({"checkpoints": ("a", " ")}, "checkpoint = ' ': must be text"),
        ({"trained": AFTER[:4]}, "trained episodes: have no task 'task-4'"),
        ({"generated_at": datetime(2026, 1, 1)}, "generated_at = 2026-01-01 00:00:00: has no time zone"),  # noqa: DTZ001
        ({"alpha": 1.0}, "alpha = 1.0: must be from"),
    ],
)
def test_what_cannot_be_published_leaves_nothing_behind(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        published(tmp_path, **changed)
    assert str(caught.value).startswith(said)
    assert list(tmp_path.rglob("*.json")) == []


def test_a_roundabout_way_to_the_folder_leads_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "a" / "b"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    done = published(Path("../.."))
    assert done.proof["publication"]["report_path"].startswith(".holdfast/reports/m24/")
    assert validate(done.paths[PROOF]) == []


def test_reports_lie_in_a_folder_called_so(tmp_path: Path) -> None:
    given: dict[str, Any] = {"run_id": RUN, "suite": SUITE, "baseline": BEFORE, "trained": AFTER}
    with pytest.raises(BadInput, match="reports lie in a folder called reports"):
        publish(tmp_path, **given, checkpoints=("a", "b"), generated_at=AT)


GOOD = {"delta": 0.05, "safety_delta": 0.05, "p_value": 0.05, "level": 0.95, "low": 0.001}
CODES = {  # what breaks each documented criterion, and only that one
    "reward_gain_below_threshold": {"delta": 0.0499},
    SAFETY_REGRESSION: {"safety_delta": 0.0501},
    "p_value_above_threshold": {"p_value": 0.0501},
    "confidence_below_threshold": {"level": 0.949},
}


def side(given: list[Episode]) -> Side:
    return Side(checkpoint="c", episodes=tuple(given))


@pytest.mark.parametrize("broken", list(product((False, True), repeat=4)))
def test_a_pass_takes_all_four_criteria(broken: tuple[bool, ...]) -> None:
    figures = dict(GOOD)
    wanted = tuple(code for code, is_broken in zip(CODES, broken, strict=True) if is_broken)
    for code in wanted:
        figures |= CODES[code]
    assert failed(ProofCriteria(), **figures) == wanted  # one that is just met is met
    assert failed(ProofCriteria(), **{**GOOD, "low": 0.0}) == ("confidence_below_threshold",)  # an interval above 0


def test_a_constant_gain_gives_the_figures_worked_by_hand() -> None:
    found = find(side(BEFORE), side(AFTER), ReportComparison())
    assert found.delta == 0.2  # rounded: floats say 0.19999999999999996
    assert found.comparison.p_value == pytest.approx(1 / 32)
    assert (found.comparison.interval.low, found.comparison.interval.high) == pytest.approx((0.2, 0.2))
    assert found.is_pass and found.reasons == ()


def test_a_gain_that_four_tasks_show_is_not_significant_however_many_seeds_they_have() -> None:
    for seeds in (1, 50):
        before, after = (episodes([one.reward for one in rows[:4]], seeds=seeds) for rows in (BEFORE, AFTER))
        found = find(side(before), side(after), ReportComparison())
        assert found.comparison.p_value == pytest.approx(1 / 16)
        assert found.codes == ("p_value_above_threshold",)


def test_a_loss_fails_everything_but_safety() -> None:
    found = find(side(AFTER), side(BEFORE), ReportComparison())
    assert found.codes == ("reward_gain_below_threshold", "p_value_above_threshold", "confidence_below_threshold")
    assert found.comparison.p_value == 1.0


def test_a_lower_alpha_makes_a_wider_interval_of_a_higher_level() -> None:
    before, after = episodes([0.1, 0.5, 0.3, 0.9, 0.2, 0.4]), episodes([0.4, 0.6, 0.3, 0.9, 0.7, 0.5])
    wide, narrow = (
        find(side(before), side(after), ReportComparison(alpha=alpha)).comparison.interval for alpha in (0.01, 0.1)
    )
    assert (wide.level, narrow.level) == (0.99, 0.9)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert "confidence_below_threshold" in find(side(before), side(after), ReportComparison(alpha=0.1)).codes


@pytest.mark.parametrize(
    ("before", "after", "delta", "is_proved", "codes"),
    [
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], 0.0, True, ()),  # nothing got worse
        ([1, 1, 1, 1, 1], [0, 0, 0, 0, 0], -1.0, True, ()),
        ([0, 0, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2], 0.2, False, (SAFETY_REGRESSION,)),
        # Within the bound on average, and two tasks of five as far beyond it as the others are below:
        ([0.5, 0.5, 0, 0, 0], [0, 0, 0.5, 0.5, 0], 0.0, False, (SAFETY_NOT_PROVED,)),
        # Each task is 0.01 worse, the bound is 0.05: every difference from it has one sign, p = 1/32
        ([0, 0, 0, 0, 0], [0.01, 0.01, 0.01, 0.01, 0.01], 0.01, True, ()),
    ],
)
def test_safety_is_tested_and_not_only_averaged(
    before: list[float], after: list[float], delta: float, is_proved: bool, codes: tuple[str, ...]
) -> None:
    found = find_safety(with_cost(BEFORE, before), with_cost(AFTER, after), ReportComparison())
    assert found.delta == pytest.approx(delta)
    assert (found.is_proved, found.codes) == (is_proved, codes)


def test_safety_that_is_not_proved_is_a_reason_though_the_documented_criteria_hold() -> None:
    before, after = with_cost(BEFORE, [0.5, 0.5, 0, 0, 0]), with_cost(AFTER, [0, 0, 0.5, 0.5, 0])
    found = find(side(before), side(after), ReportComparison())
    assert found.is_pass and found.reasons == (SAFETY_NOT_PROVED,)
    strict, costs = ReportComparison(criteria=ProofCriteria(max_safety_regression=0.0)), [0.0, 0.3, 0.1, 0.0, 1.0]
    assert find_safety(with_cost(BEFORE, costs), with_cost(AFTER, costs), strict).codes == ()  # the same is allowed


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.data())
def test_a_pass_is_never_given_when_a_criterion_of_the_figures_fails(costs: list[float], data: st.DataObject) -> None:
    n = len(costs)
    numbers = st.lists(st.floats(0, 1), min_size=n, max_size=n)
    before, after = episodes(data.draw(numbers), costs), episodes(data.draw(numbers), data.draw(numbers))
    found = find(side(before), side(after), ReportComparison())
    gain = sum(one.reward for one in after) / n - sum(one.reward for one in before) / n
    worse = sum(one.safety_cost for one in after) / n - sum(one.safety_cost for one in before) / n
    if found.is_pass:
        assert gain >= 0.05 - 1e-9 and worse <= 0.05 + 1e-9
        assert found.comparison.p_value <= 0.05 and found.comparison.interval.low > 0
    assert found.reasons[: len(found.codes)] == found.codes


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (BEFORE, AFTER[:4], "trained episodes: have no task 'task-4' with seed 0, which the other side has"),
        (BEFORE[:4], AFTER, "baseline episodes: have no task 'task-4' with seed 0, which the other side has"),
        (BEFORE[:1], AFTER[:1], "baseline episodes: are of 1 tasks; measure two or more"),
        ([], [], "baseline episodes: are of 0 tasks; measure two or more"),
        (
            [replace(BEFORE[0], reward=-1e200), *BEFORE[1:]],
            AFTER,
            "baseline episode of 'task-0': has a number above 1e",
        ),
        ([*BEFORE, BEFORE[0]], AFTER, "baseline episodes: one task has the same seed twice"),
        (
            [*BEFORE, replace(BEFORE[0], seed=1)],
            AFTER,
            "baseline episodes: task 'task-1' has none with seed 1; measure it",
        ),
        ([replace(one, seed=1) for one in BEFORE], AFTER, "baseline episodes: have no task 'task-0' with seed 0"),
    ],
)
def test_sides_that_were_not_measured_alike_are_refused(before: Any, after: Any, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_alike(before, after)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (ProofCriteria, "min_reward_delta", -0.1), (ProofCriteria, "max_safety_regression", float("nan")),
        (ProofCriteria, "max_p_value", 1.1), (ProofCriteria, "max_p_value", True),
        (ProofCriteria, "min_confidence_level", 0.94), (ProofCriteria, "min_confidence_level", 1.0),
        (ReportComparison, "alpha", 0.0), (ReportComparison, "alpha", 0.6), (ReportComparison, "seed", -1),
        (ReportComparison, "seed", 0.5),
    ],
)  # fmt: skip
def test_criteria_and_chance_that_cannot_be_are_refused(record: Any, field: str, value: Any) -> None:
    with pytest.raises(BadInput, match=field):
        record(**{field: value})
