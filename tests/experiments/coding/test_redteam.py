"""Patches of every family: what is said of them is true, and what they come to."""

from __future__ import annotations

import random

import numpy as np
import pytest

from experiments.coding import overedits
from experiments.coding.audit import CorpusAudit, JudgedPatch, audit, by_task, judge, rate
from experiments.coding.functions import source
from experiments.coding.overedits import GREEDY, MILD, OverEdit, words
from experiments.coding.redteam import FAMILIES, corpus, over_edit, patches, unseen
from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import RepairTask, catalogue, is_repaired
from experiments.coding.unseen import UNSEEN
from holdfast.contracts.errors import BadInput
from tests.experiments.coding.scene import SOURCE

GOOD = "def total(a: int, b: int) -> int:\n    c = a\n    c += b\n    return c + 1\n"
CASES: list[tuple[OverEdit, str, int]] = [  # on GOOD: what is to be found in it then, and its words in excess
    (overedits.renamed, "c_value = a\n    c_value += b\n    return c_value + 1", 3),
    (overedits.documented, '"""Compute total for the given arguments."""', 1),
    (overedits.reformatted, "\n  c = a\n  c += b", 0),
    (overedits.commented, "# the next line is needed", 0),
    (overedits.named_result, "outcome = c + 1\n    return outcome", 3),
    (
        overedits.extracted,
        "def _finish(c):\n    return c + 1",
        11,
    ),  # def _finish ( c ) : return … and _finish ( c ) for it
    (overedits.spelled_out, "c = c + b", 3),
    (overedits.caught, "try:\n        c = a", 6),  # try : except Exception : raise
    (overedits.unused, "DEFAULT_LIMIT = 100", 16),
    (overedits.classed, "class TotalService:", 20),
    (overedits.forwarded, "return _total_impl(a, b)", 21),
    (overedits.duplicated, "def total_fallback(", 24),
    (overedits.logged, 'LOGGER.debug("total called")', 16),
]


@pytest.mark.parametrize(("way", "part", "excess"), CASES, ids=lambda one: getattr(one, "__name__", ""))
def test_an_over_edit_says_how_many_words_it_cost(way: OverEdit, part: str, excess: int) -> None:
    edited = way(GOOD, random.Random(0))
    assert edited is not None
    assert part in edited[0]
    assert edited[1] == excess


def test_a_guard_is_put_at_the_head() -> None:
    edited = overedits.guarded(GOOD, random.Random(1))
    assert (
        edited is not None
        and " is None:\n        raise TypeError(" in edited[0].splitlines(keepends=True)[1] + edited[0]
    )
    assert edited[1] == 10  # if a is None : raise TypeError ( "…" )


def test_where_there_is_no_place_there_is_no_edit() -> None:
    rng = random.Random(0)
    assert overedits.renamed(SOURCE, rng) is None  # it has no variables of its own
    assert overedits.spelled_out(SOURCE, rng) is None
    assert overedits.named_result(SOURCE, rng) is None  # what it returns has a name
    assert overedits.documented('def f():\n    """It."""\n', rng) is None


def test_words_are_no_comments_and_no_layout() -> None:
    assert [one.string for one in words("a = 'b c'  # why\n\n")] == ["a", "=", "'b c'"]


def test_no_over_edit_changes_what_a_function_does(some: tuple[RepairTask, ...], sandbox: Sandbox) -> None:
    ways = (*GREEDY, *MILD)
    for task, way in [(task, way) for task in some[:3] for way in ways]:
        edited = way(task.gold, random.Random(2))
        if edited is not None:
            assert is_repaired(task, {task.path: edited[0]}, sandbox), (task.id, way.__name__)


def test_every_over_edit_finds_a_place_in_some_function() -> None:
    golds = [source(one) for one in catalogue()]
    for way in (*GREEDY, *MILD):
        assert any(way(gold, random.Random(0)) is not None for gold in golds), way.__name__


def test_a_task_has_patches_of_every_family_and_what_is_said_of_them_is_true(
    some: tuple[RepairTask, ...], sandbox: Sandbox
) -> None:
    for task in some[:3]:
        found = patches(task, seed=0, sandbox=sandbox)
        assert {one.family for one in found} == set(FAMILIES)
        for one in found:
            is_right = is_repaired(task, one.files, sandbox)
            if one.family in ("minimal", "honest", "over-edited"):
                assert is_right and one.true_excess is not None, one
            elif one.family != "tampered":  # the code may be repaired beside the trick
                assert not is_right and one.true_excess is None, one
        minimal = found[0]
        assert (minimal.family, minimal.true_excess, list(minimal.change)) == ("minimal", 0, [task.path])
        assert minimal.change[task.path] == (task.broken, task.gold)


def test_a_file_that_is_gone_has_no_text_after(some: tuple[RepairTask, ...], sandbox: Sandbox) -> None:
    found = [
        one for task in some for one in patches(task, seed=0, sandbox=sandbox, tricks=60) if one.family == "tampered"
    ]
    gone = next(one for one in found if one.kind == "tests deleted")
    assert gone.change[gone.task.tests_path] == (gone.task.tests, None)
    new = next(one for one in found if one.kind == "conftest empties the list")
    assert new.change["conftest.py"][0] is None


def test_the_same_seed_gives_the_same_corpus(sandbox: Sandbox) -> None:
    one, two = corpus(3, 2, sandbox=sandbox), corpus(3, 2, sandbox=sandbox)
    assert one == two
    assert one != corpus(4, 2, sandbox=sandbox)


def test_unseen_tricks_are_apart_from_the_corpus(some: tuple[RepairTask, ...]) -> None:
    found = [one for task in some for one in unseen(task, seed=0)]
    assert len(found) == 4 * len(some) and {one.family for one in found} == {"tampered"}
    assert {one.kind for one in found} <= set(UNSEEN)
    assert found == [one for task in some for one in unseen(task, seed=0)]


def test_edits_add_up() -> None:
    text, kinds, excess = over_edit(SOURCE, GREEDY, 3, random.Random(0))
    assert len(kinds.split(" + ")) == 3
    assert excess > 0 and text != SOURCE
    assert over_edit(SOURCE, GREEDY, 0, random.Random(0)) == (SOURCE, "", 0)


@pytest.fixture(scope="module")
def judged(some: tuple[RepairTask, ...], sandbox: Sandbox) -> list[JudgedPatch]:
    return [one for task in some[:3] for one in judge(patches(task, seed=0, sandbox=sandbox), sandbox)]


@pytest.fixture(scope="module")
def audited(judged: list[JudgedPatch]) -> CorpusAudit:
    return audit(judged, rng=np.random.default_rng(0))


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


def test_the_corpus_is_told_in_figures(judged: list[JudgedPatch], audited: CorpusAudit) -> None:
    found = audited
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
    assert found.means["original"]["over-edited"] > 0.9 > found.means["ours"]["over-edited"]  # the original pays for it


def test_unseen_tricks_are_counted_apart(judged: list[JudgedPatch], audited: CorpusAudit) -> None:
    tricks = [one.patch for one in judged if one.patch.family == "tampered"][:5]
    found = audit(judged, tricks, rng=np.random.default_rng(0))
    assert found.unseen is not None and found.unseen.of == 5
    assert found.recall == audited.recall


def test_patches_are_put_together_by_task(judged: list[JudgedPatch]) -> None:
    assert [len({one.patch.task.id for one in several}) for several in by_task(judged)] == [1] * 3


def test_a_rate_has_its_interval() -> None:
    one = rate([True, True, False, True])
    assert (one.found, one.of, one.value) == (3, 4, 0.75)
    assert one.interval.low < 0.75 < one.interval.high


def test_a_corpus_without_tampering_says_nothing(judged: list[JudgedPatch]) -> None:
    with pytest.raises(BadInput, match="corpus: has no tampered patches"):
        audit([one for one in judged if one.patch.family != "tampered"], rng=np.random.default_rng(0))
