from __future__ import annotations

import random

from experiments.coding.overedits import GREEDY
from experiments.coding.redteam import FAMILIES, corpus, over_edit, patches, unseen
from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import RepairTask, is_repaired
from experiments.coding.unseen import UNSEEN
from tests.experiments.coding.scene import SOURCE


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
