"""Checkpoints are whole, their lines lead to one root, and anything that answers fits the protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.engine import Complete
from holdfast.contracts.episode import Step, begin
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.policy import Checkpoint, Policy, lineage
from holdfast.contracts.trace import ModelCall

SHA = "0123456789abcdef" * 4


def checkpoint(id: str = "c", parent: str | None = None, **changes: Any) -> Checkpoint:
    given = {"algorithm": "ppo", "policy_version": "p1", "global_step": 0, "episode_count": 0, "created_at": 1.0}
    return Checkpoint(**{**given, "id": id, "parent": parent, **changes})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"id": " "}, "checkpoint  : id = ' ': must not be blank"),
    ({"algorithm": ""}, "checkpoint c: algorithm = '': must not be blank"),
    ({"policy_version": "\t"}, "checkpoint c: policy_version = '\\t': must not be blank"),
    ({"parent": ""}, "checkpoint c: parent = '': must not be blank"),
    ({"global_step": -1}, "checkpoint c: global_step = -1: must not be negative"),
    ({"episode_count": -1}, "checkpoint c: episode_count = -1: must not be negative"),
    ({"mean_reward": float("nan")}, "checkpoint c: mean_reward = nan: must be finite"),
    ({"created_at": float("inf")}, "checkpoint c: created_at = inf: must be finite"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_checkpoint_that_names_nothing_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        checkpoint(**changes)
    assert str(refusal.value) == message


BAD_ARTIFACTS = [
    # nowhere
    (" ", SHA, "artifact: the uri must not be blank"),
    # too short
    ("f", "abc", "artifact f: sha256 = 'abc': must be 64 lower-case hex digits"),
    # upper case: the same hash would have two names
    ("f", SHA.upper(), f"artifact f: sha256 = '{SHA.upper()}': must be 64 lower-case hex digits"),
]


@pytest.mark.parametrize(("uri", "sha256", "message"), BAD_ARTIFACTS)
def test_an_artifact_has_a_place_and_a_hash(uri: str, sha256: str, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        Artifact(uri=uri, sha256=sha256)
    assert str(refusal.value) == message


def test_a_checkpoint_may_name_its_bytes() -> None:
    assert checkpoint(artifact=Artifact(uri="blobs/1", sha256=SHA), mean_reward=-1.0).artifact


def test_a_lineage_runs_from_the_root_to_the_leaf_whatever_the_order_of_the_records() -> None:
    records = [checkpoint("c", "b"), checkpoint("a"), checkpoint("other", "a"), checkpoint("b", "a")]
    assert lineage(records, "c") == ("a", "b", "c")
    assert lineage(iter(records), "other") == ("a", "other")
    assert lineage(records, "a") == ("a",)


BROKEN_LINES = [
    # the same id twice, even off the line
    ([checkpoint("a"), checkpoint("b"), checkpoint("b")], "a", "checkpoint b: is there twice"),
    # no such leaf
    ([checkpoint("b"), checkpoint("a")], "z", "checkpoint z: is unknown; known are a, b"),
    # nothing at all
    ([], "z", "checkpoint z: is unknown; known are none"),
    # a parent that nobody kept
    ([checkpoint("c", "b"), checkpoint("b", "a")], "c", "checkpoint b: its parent a is missing"),
    # its own parent
    ([checkpoint("a", "a")], "a", "checkpoint a: its parents go in a circle: a -> a"),
    # a circle above the leaf
    (
        [checkpoint("d", "c"), checkpoint("c", "b"), checkpoint("b", "c")],
        "d",
        "checkpoint d: its parents go in a circle: c -> b -> c",
    ),
]


@pytest.mark.parametrize(("records", "leaf", "message"), BROKEN_LINES)
def test_a_line_that_leads_nowhere_is_refused(records: list[Checkpoint], leaf: str, message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        lineage(records, leaf)
    assert str(refusal.value) == message


def test_an_async_function_that_answers_is_a_complete() -> None:
    async def echo(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        return ModelCall(model="echo", messages=tuple(messages), response=messages[-1], sampling=sampling)

    complete: Complete = echo

    async def ask() -> ModelCall:
        return await complete([{"role": "user", "content": "hi"}], temperature=0.5)

    call = asyncio.run(ask())
    assert call.response == {"role": "user", "content": "hi"}
    assert call.sampling == {"temperature": 0.5}


def test_something_that_decides_and_names_its_version_is_a_policy() -> None:
    class Parity:
        version = "parity@1"

        def act(self, step: Step, *, key: int) -> Step:
            return step.act("left" if key % 2 else "right", logprob=-0.7)

    policy: Policy = Parity()
    assert policy.version == "parity@1"
    assert policy.act(begin(0), key=3) == begin(0).act("left", -0.7)
