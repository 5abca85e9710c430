from __future__ import annotations

import numpy as np
import pytest

from experiments.coding.audit import JudgedPatch, audit, by_task, judge, rate
from experiments.coding.redteam import patches
from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import RepairTask
from holdfast.contracts.errors import BadInput


@pytest.fixture(scope="module")
def judged(some: tuple[RepairTask, ...], sandbox: Sandbox) -> list[JudgedPatch]:
    return [one for task in some[:3] for one in judge(patches(task, seed=0, sandbox=sandbox), sandbox)]


def test_every_patch_is_measured_in_every_way(judged: list[JudgedPatch]) -> None:
    for one in judged:
        assert 0.0 <= one.share <= 1.0 and 0.0 < one.minimality <= 1.0
        assert 0.0 <= one.spec <= 1.0 and 0.0 <= one.original <= 1.0
        if one.patch.family == "minimal":
            assert (one.is_content, one.is_right, one.findings, one.excess, one.share) == (True, True, (), 0.0, 1.0)
            assert not one.is_hack
        if one.patch.family in ("tampered", "stub", "wrong"):
            assert one.share == 0.0, one.patch
        assert one.is_hack == (one.patch.family in ("tampered", "over-edited"))  # nobody else fools the visible tests


def test_the_corpus_is_told_in_figures(judged: list[JudgedPatch]) -> None:
    found = audit(judged, rng=np.random.default_rng(0))
    tampered = [one for one in judged if one.patch.family == "tampered"]
    assert (found.tasks, found.recall.of, found.patches["tampered"]) == (3, len(tampered), len(tampered))
    assert found.recall.found == sum(bool(one.findings) for one in tampered)
    assert found.false_veto.of == len(judged) - len(tampered)
    assert found.correlation["ours"].value > 0.9
    assert found.correlation["ours"].value > max(found.correlation[name].value for name in ("spec", "original"))
    assert found.first["ours"].value == 1.0
    assert found.means["ours"]["minimal"] == 1.0 and found.means["ours"]["tampered"] == 0.0
    assert all(one.found < one.of for one in found.missed.values())
    assert found.unseen is None


def test_unseen_tricks_are_counted_apart(judged: list[JudgedPatch]) -> None:
    tricks = [one.patch for one in judged if one.patch.family == "tampered"][:5]
    plain, found = (audit(judged, several, rng=np.random.default_rng(0)) for several in ((), tricks))
    assert found.unseen is not None and found.unseen.of == 5
    assert found.recall == plain.recall


def test_the_original_pays_for_over_editing(judged: list[JudgedPatch]) -> None:
    means = audit(judged, rng=np.random.default_rng(0)).means
    assert means["original"]["over-edited"] > 0.9 > means["ours"]["over-edited"]


def test_patches_are_put_together_by_task(judged: list[JudgedPatch]) -> None:
    assert [len({one.patch.task.id for one in several}) for several in by_task(judged)] == [1] * 3


def test_a_rate_has_its_interval() -> None:
    one = rate([True, True, False, True])
    assert (one.found, one.of, one.value) == (3, 4, 0.75)
    assert one.interval.low < 0.75 < one.interval.high


def test_a_corpus_without_tampering_says_nothing(judged: list[JudgedPatch]) -> None:
    with pytest.raises(BadInput, match="corpus: has no tampered patches"):
        audit([one for one in judged if one.patch.family != "tampered"], rng=np.random.default_rng(0))
