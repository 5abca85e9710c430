"""A rollout by as much of its id as it takes."""

from __future__ import annotations

import pytest

from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.release import PolicyKind
from holdfast.store.store import find_policy, find_rollout, full_name
from tests.store.scene import Scene, begin


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run-1-a/train-10", "train-10"),
        ("run-1-a/train-1", "train-1"),  # whole names win over longer ones
        ("run-1/val", "val-1"),
        ("r/v", "val-1"),
        ("run-1-a/50%_a", "50%_about"),  # no wildcards
        ("run-1-a/Val", "Val"),  # capitals count
    ],
)
def test_both_parts_may_be_cut_short(scene: Scene, text: str, name: str) -> None:
    scene.enqueue("train-1", "train-10", "val-1", "Val", "50%_about", "50xxabout")
    assert find_rollout(scene.store, text).id == f"{scene.run}/{name}"


HELP = "write RUN/NAME: 'holdfast runs' has the one, 'holdfast rollouts RUN' the other"
NO_ID = f"is not the id of a rollout; {HELP}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run-1-a/t", "rollout run-1-a/t: several start so: t1, t2, t3, …; 'holdfast rollouts run-1-a' lists them"),
        ("run-1-a/u", "rollout run-1-a/u: several start so: u1, u2; 'holdfast rollouts run-1-a' lists them"),
        ("run-1-a/x", "rollout run-1-a/x: there is none; 'holdfast rollouts run-1-a' lists them"),
        ("no/x", "run 'no': there is none in project 'default'; 'holdfast runs' lists them"),
        ("run-1-a", f"rollout 'run-1-a': {NO_ID}"),
        ("run-1-a/", f"rollout 'run-1-a/': {NO_ID}"),
    ],
)
def test_what_fits_none_or_several_is_refused(scene: Scene, text: str, expected: str) -> None:
    scene.enqueue("t1", "t2", "t3", "t4", "u1", "u2")
    with pytest.raises(NotFound) as caught:
        find_rollout(scene.store, text)
    assert str(caught.value) == expected


def test_names_of_other_runs_are_not_looked_at(scene: Scene) -> None:
    other = begin(scene.store, scene.clock, salt="b")
    scene.enqueue("only-here")
    with pytest.raises(NotFound, match="there is none"):
        full_name(scene.store, other, "only")


def test_a_policy_may_be_cut_short_while_only_one_fits(scene: Scene) -> None:
    for policy in ("tools", "tools-2", "writer"):
        scene.store.releases.add(policy=policy, kind=PolicyKind.PROMPT, source="s:1", who="t", now=1.0).result()
    assert [find_policy(scene.store, text) for text in ("w", "tools", "tools-")] == ["writer", "tools", "tools-2"]
    for text, why in (("to", "several start so: tools, tools-2"), ("x", "has no versions"), ("", "several start so")):
        with pytest.raises(BadInput, match=f"policy '{text}': {why}.*; there is tools, tools-2, writer"):
            find_policy(scene.store, text)
