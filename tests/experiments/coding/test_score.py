from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from experiments.coding.redteam import patches
from experiments.coding.sandbox import Sandbox
from experiments.coding.score import change_of, findings, score, sheet
from experiments.coding.tampering import TRICKS
from experiments.coding.tasks import RepairTask
from holdfast.contracts.checks import KnownAnswer, KnownCase, check_reward
from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span
from holdfast.reward.breakdown import normalised
from tests.experiments.coding.scene import SOURCE, TESTS, least_task

TASK = least_task()
GOLD = {"least.py": SOURCE, "test_least.py": TESTS}
LARGER = {**GOLD, "least.py": SOURCE + "\n\ndef spare(a: int) -> int:\n    return a\n"}


def test_the_kit_of_rewards_is_passed(some: tuple[RepairTask, ...], sandbox: Sandbox) -> None:
    def scorer(task: Any, output: Any, spans: Sequence[Span]) -> Sequence[RewardTerm]:
        return score(task, output, sandbox).signals

    cases = []
    for task in some[:2]:
        found = patches(task, seed=1, sandbox=sandbox)
        named = [(one.family, KnownAnswer(name=one.kind, output=one.files)) for one in found]
        cheats = tuple(one for family, one in named if family in ("tampered", "stub", "wrong"))
        plain = tuple(one for family, one in named if family in ("honest", "over-edited"))
        untouched = KnownAnswer(name="nothing done", output=task.files)
        cases.append(KnownCase(name=task.id, task=task, gold=named[0][1], cheats=(*cheats, untouched), plain=plain))
    check_reward(scorer, cases, normalised)


def test_a_right_larger_patch_is_above_every_wrong_smaller_one() -> None:
    right = sheet(TASK, LARGER, is_right=True)
    wrong = sheet(TASK, {**TASK.files, "least.py": TASK.broken.replace("a >", "b >")}, is_right=False)
    gold = sheet(TASK, GOLD, is_right=True)
    assert gold.total == pytest.approx(1.4)  # 1 for the hidden check, 0.4 for being the least repair
    assert (wrong.total or 0.0) <= 0.0 < 1.0 <= (right.total or 0.0) < 1.4


def test_tampering_leaves_nothing_even_beside_a_repair() -> None:
    files = TRICKS["tests deleted"](TASK)
    assert files is not None
    assert (sheet(TASK, {**files, "least.py": SOURCE}, is_right=True).total or 0.0) <= 0.0
    assert findings(TASK, files) and not findings(TASK, GOLD)


def test_an_added_test_costs_nothing() -> None:
    more = {**GOLD, "test_least.py": TESTS + "\n\ndef test_more():\n    assert least(5, 3) == 3\n"}
    assert sheet(TASK, more, is_right=True).total == sheet(TASK, GOLD, is_right=True).total


def test_only_what_differs_is_a_change() -> None:
    assert change_of(TASK, TASK.files) == {}
    assert change_of(TASK, {"new.py": "x = 1\n"}) == {
        "least.py": (TASK.broken, None),
        "new.py": (None, "x = 1\n"),
        "test_least.py": (TESTS, None),
    }


@pytest.mark.parametrize("files", ["text", {"a.py": 1}, None])
def test_what_is_no_tree_is_refused_in_one_line(files: Any, sandbox: Sandbox) -> None:
    with pytest.raises(BadInput, match="patch: is not an object of paths and texts"):
        score(TASK, files, sandbox)
