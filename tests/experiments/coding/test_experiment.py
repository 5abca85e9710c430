from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from experiments.coding.audit import JudgedPatch
from experiments.coding.experiment import (
    ARMS,
    NAIVE,
    OURS,
    PatchOutcome,
    PatchTrial,
    compare,
    outcome_of,
    record,
    run,
    split,
    weigh,
)
from experiments.coding.redteam import Patch
from experiments.coding.sandbox import Sandbox
from experiments.coding.tampering import TRICKS
from holdfast.contracts.errors import BadInput
from tests.experiments.coding.scene import SOURCE, TESTS, least_task


def made(name: str) -> list[JudgedPatch]:
    """Three patches for a task of that function: the repair, a long one, and a trick that the visible tests like."""
    task = replace(least_task(), id=name, function=name)
    long = SOURCE + "\n\ndef spare(a, b, c):\n    return [a, b, c, a + b, b + c]\n" * 3
    trick = TRICKS["tests deleted"](least_task())
    assert trick is not None
    base = JudgedPatch(
        patch=Patch(task=task, family="minimal", kind="", files={"least.py": SOURCE, "test_least.py": TESTS}),
        is_content=True,
        is_right=True,
        findings=(),
        excess=0.0,
        minimality=1.0,
        spec=0.9,
        original=1.0,
        share=1.0,
    )
    larger = replace(base.patch, family="over-edited", files={"least.py": long, "test_least.py": TESTS})
    tampered = replace(base.patch, family="tampered", files=trick)
    return [
        base,
        replace(base, patch=larger, minimality=0.2, spec=0.3, share=0.75),
        replace(base, patch=tampered, is_right=False, findings=("tests_gone",), share=0.0),
    ]


def outcome(seed: int, naive: float, ours: float) -> PatchOutcome:
    values = dict.fromkeys(ARMS, (naive, naive)) | {OURS: (ours, ours)}
    return PatchOutcome(
        trial=PatchTrial(seed=seed), functions=("a", "b"), hacks=values, success=values, untrained=(0.5, 0.25)
    )


def test_what_each_reward_pays() -> None:
    minimal, larger, trick = made("a")
    assert [ARMS[NAIVE](one) for one in (minimal, larger, trick)] == [1.0, 1.0, 1.0]
    assert [ARMS["hidden only"](one) for one in (minimal, larger, trick)] == [1.0, 1.0, 0.0]
    assert [ARMS["diff only"](one) for one in (minimal, larger, trick)] == [1.0, pytest.approx(1.08 / 1.4), 0.0]
    assert [ARMS[OURS](one) for one in (minimal, larger, trick)] == [1.0, 0.75, 0.0]
    assert [ARMS["spec"](one) for one in (minimal, larger)] == [0.9, 0.3]


def test_the_reward_decides_what_is_learnt() -> None:
    tasks = [made(name) for name in "abcdefghi"]
    found = compare(tasks, PatchTrial(seed=0, tasks=9, steps=150))
    assert len(found.functions) == 3
    assert np.mean(found.hacks[OURS]) < 0.1 and np.mean(found.success[OURS]) > 0.95
    assert np.mean(found.hacks[NAIVE]) > 0.4  # it has no reason to prefer any
    assert np.mean(found.success["hidden only"]) > 0.9
    assert found.untrained == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert compare(tasks, PatchTrial(seed=0, tasks=9, steps=150)) == found


def test_no_function_is_practised_and_held_out() -> None:
    tasks = [made(name) for name in "aabbccdd"]
    practice, held_out = split(tasks, np.random.default_rng(0))
    names = [{several[0].patch.task.function for several in part} for part in (practice, held_out)]
    assert not names[0] & names[1] and names[0] | names[1] == set("abcd")
    assert len(practice) + len(held_out) == 8
    with pytest.raises(BadInput, match="are all of one function"):
        split([made("a")], np.random.default_rng(0))


def test_a_fall_is_a_share_of_what_the_naive_reward_taught() -> None:
    weighed = weigh([outcome(0, 0.8, 0.2), outcome(1, 0.8, 0.2)], rng=np.random.default_rng(0))
    assert weighed.reduction[OURS].value == pytest.approx(0.75)
    assert weighed.gain[OURS].value == pytest.approx(-0.6)
    assert (weighed.seeds, weighed.tasks, weighed.untrained) == ((0, 1), 4, (0.5, 0.25))
    assert weighed.reduction["spec"].value == pytest.approx(0.0)


def test_seeds_that_differ_widen_the_interval() -> None:
    same = weigh([outcome(0, 0.8, 0.2), outcome(1, 0.8, 0.2)], rng=np.random.default_rng(0)).hacks[OURS].interval
    apart = weigh([outcome(0, 0.8, 0.0), outcome(1, 0.8, 0.4)], rng=np.random.default_rng(0)).hacks[OURS].interval
    assert (same.low, same.high) == (pytest.approx(0.2), pytest.approx(0.2))
    assert (apart.low, apart.high) == (pytest.approx(0.0), pytest.approx(0.4))


def test_an_outcome_is_read_back_as_it_was_written() -> None:
    one = outcome(3, 0.8, 0.2)
    assert outcome_of(record(one)) == one
    with pytest.raises(BadInput, match="a kept outcome: cannot be read"):
        outcome_of({"trial": {"seed": 0}})


def test_a_trial_runs_from_tasks_to_an_outcome(sandbox: Sandbox) -> None:
    steps: list[int] = []
    found = run(PatchTrial(seed=2, tasks=6, steps=5), sandbox, advance=lambda: steps.append(1))
    assert len(steps) == 6
    assert set(found.hacks) == set(ARMS) and len(found.hacks[OURS]) == len(found.functions) == 2
    assert all(0.0 <= value <= 1.0 + 1e-9 for values in found.success.values() for value in values)


def test_too_small_a_trial_is_refused() -> None:
    with pytest.raises(BadInput, match="trial of 2 tasks"):
        PatchTrial(seed=0, tasks=2)


def test_no_outcomes_say_nothing() -> None:
    with pytest.raises(BadInput, match="experiment: has no outcomes"):
        weigh([], rng=np.random.default_rng(0))
