"""Checkpoints are whole, their lines lead to one root, and anything that answers fits the protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.envs import Spaces
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.experience import Step, begin
from holdfast.contracts.policy import Actor, Checkpoint, Policy, check_policy
from holdfast.contracts.trace import ModelCall
from holdfast.pipeline.context import Endpoints
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.policies.network import Network
from holdfast.policies.prompt import Prompt

SHA = "0123456789abcdef" * 4


def checkpoint(id: str = "c", parent: str | None = None, **changes: Any) -> Checkpoint:
    given = {"algorithm": "ppo", "policy_version": "p1", "global_step": 0, "episode_count": 0, "created_at": 1.0}
    return Checkpoint(**{**given, "id": id, "parent": parent, **changes})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"id": " "}, "checkpoint  : id: must not be blank"),
    ({"algorithm": ""}, "checkpoint c: algorithm: must not be blank"),
    ({"policy_version": "\t"}, "checkpoint c: policy_version: must not be blank"),
    ({"parent": ""}, "checkpoint c: parent: must not be blank"),
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


# The kit


@dataclass(frozen=True)
class Table:
    """A policy as somebody writes one; the wrong ones below change one thing each."""

    answers: Mapping[str, str]
    note: str = ""

    kind: ClassVar[str] = "prompt"

    @property
    def manifest(self) -> Mapping[str, Any]:
        return {"answers": dict(self.answers), "note": self.note}

    @property
    def version(self) -> str:
        return f"table@{sorted(self.answers.items())}{self.note}"

    @property
    def source(self) -> str:
        return f"resources:{self.version}"

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Table:
        return cls(manifest["answers"], manifest["note"])

    def open(self, engine: Engine) -> Actor:
        return Actor(version=self.version)


class Unnamed(Table):
    version = " "  # type: ignore[assignment]


drawn = count()


class Drawn(Table):
    @property
    def version(self) -> str:
        return f"table@{next(drawn)}"


class Binary(Table):
    @property
    def manifest(self) -> Mapping[str, Any]:
        return {"answers": dict(self.answers), "note": b"bytes"}


class Careless(Table):
    """Not all that decides what it says is in its record."""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Table:
        return cls(manifest["answers"])


class Own(Table):
    """Hands out what it is made of."""

    @property
    def manifest(self) -> Mapping[str, Any]:
        return vars(self).setdefault("kept", {"answers": dict(self.answers), "note": self.note})


class Other(Table):
    def open(self, engine: Engine) -> Actor:
        return Actor(version="table@other")


class Aging(Table):
    def open(self, engine: Engine) -> Actor:
        actor = Actor(version=self.version)
        object.__setattr__(self, "note", "opened")
        return actor


@pytest.mark.parametrize(
    "policy",
    [
        Table({"1?": "2"}, "a note"),
        Prompt(system="Be brief.", model="m", sampling={"temperature": 0.0}),
        Prompt(),
        Network(width=4).fitted("sign", Spaces(observation=2, actions=3)),
        Model("sprout", resources={"system": "Be brief."}),
        Model("sprout", lora=0).at(None),
    ],
    ids=lambda policy: policy.version,
)
def test_a_policy_of_each_kind_passes_the_kit(policy: Policy) -> None:
    engine = LocalEngine(slots=1) if policy.kind == "weights" else Endpoints()
    try:
        check_policy(policy, engine)
    finally:
        engine.close()


WRONG: list[tuple[Any, str]] = [
    (Unnamed, "has a blank version"),
    (Drawn, "when it is asked again"),
    (Binary, "its manifest is not plain JSON"),
    (Careless, "comes back from its record as"),
    (Own, "whoever changes its manifest changes the policy"),
    (Other, "is opened as table@other"),
    (Aging, "is another one after it was opened"),
]


@pytest.mark.parametrize(("kind", "says"), WRONG, ids=[kind.__name__ for kind, _ in WRONG])
def test_a_policy_that_breaks_a_promise_fails_the_kit(kind: type[Table], says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_policy(kind({"1?": "2"}, "a note"), Endpoints())
