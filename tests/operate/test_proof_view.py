"""What a page is given: a difference for each task, and a course without holes."""

from __future__ import annotations

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.operate.proof_view import MetricSequence, ProofTask


def test_a_task_differs_by_what_the_candidate_has_more() -> None:
    assert ProofTask(name="one", baseline=0.25, candidate=1.0).difference == 0.75
    assert ProofTask(name="one", baseline=1.0, candidate=0.5).difference == -0.5


@pytest.mark.parametrize(
    ("differences", "low", "high"),
    [((), (), ()), ((0.0, 1.0), (0.0,), (1.0, 1.0)), ((0.0,), (0.0,), ()), ((), (0.0,), (1.0,))],
    ids=["empty", "a low bound is missing", "the high bound is missing", "bounds of nothing"],
)
def test_a_course_with_holes_is_refused(
    differences: tuple[float, ...], low: tuple[float, ...], high: tuple[float, ...]
) -> None:
    why = f"{len(differences)} differences, {len(low)} and {len(high)} bounds"
    with pytest.raises(BadInput, match=why):
        MetricSequence(metric="success", differences=differences, low=low, high=high, bar=0.0)


def test_a_course_counts_its_tasks() -> None:
    assert (
        MetricSequence(metric="success", differences=(0.0, 1.0), low=(-1.0, -1.0), high=(1.0, 1.0), bar=0.0).tasks == 2
    )
