"""What acts and can be improved: the protocols, and the checkpoints that say which policy came from which.

Resources (prompts and the like) are versioned in `run`; weights are files, and a checkpoint only names them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from holdfast.contracts.artifacts import Artifact, Artifacts
from holdfast.contracts.checks import require
from holdfast.contracts.engine import Complete, Engine
from holdfast.contracts.errors import BadInput, Lost, check_fields

if TYPE_CHECKING:  # numpy, which most of those who read policies have no use for
    from holdfast.contracts.envs import Choose

FOLDER = "checkpoints"  # among the artifacts of a store: one folder for each checkpoint, by its id
DEMONSTRATIONS = "demonstrations"  # what a school captured, in the folder of a checkpoint


def files_of(checkpoint: str | Checkpoint, files: Artifacts | None) -> Path:
    """Where the files of a checkpoint, or of the one with this id, can be read, verified; Lost by its name where they
    are missing or damaged."""
    known = None if isinstance(checkpoint, str) else checkpoint.artifact
    identity = checkpoint if isinstance(checkpoint, str) else checkpoint.id
    what = f"checkpoint {identity}"
    if files is None:
        raise BadInput(what, why="lies in a store, and none is open", remedy="open the store of its run")
    try:
        return files.get(known or f"{FOLDER}/{identity}")
    except Lost as lost:
        raise Lost(what, why=lost.why, remedy="restore it from a copy, or begin a new run") from lost


class Act(Protocol):
    """Something that acts in environments, by what it takes for best. It remembers what it saw since the last reset."""

    def __call__(self, observation: Any, mask: Any = None) -> Any:
        """What to do now in one environment, as its action space has it; `mask` says which choices are allowed."""
        ...

    def reset(self) -> None:
        """An episode begins."""
        ...

    def many(self, count: int) -> Choose:
        """The same for so many environments side by side, as `VectorEnv` takes actions; it has a memory of its own."""
        ...


class Policy(Protocol):
    """Whatever decides, as an immutable reference: a prompt, a model's weights, a network. It says which version it is.

    A class of this kind is found by its import path when a step is read again: there is nothing to register."""

    @property
    def kind(self) -> str:
        """prompt, weights or network."""
        ...

    @property
    def version(self) -> str:
        """Two policies that act alike have the same; what a rollout was run by is recorded with it."""
        ...

    @property
    def source(self) -> str:
        """What a release of it is registered with: "checkpoint:run-1-20-ab12…", "resources:3", "shelf:sprout"."""
        ...

    @property
    def manifest(self) -> Mapping[str, Any]:
        """All that it is made of, as plain JSON; `from_manifest` of its class gives an equal one."""
        ...

    def open(self, engine: Engine) -> Actor:
        """Ready to act."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """One version of a policy, ready to act."""

    version: str
    model: str = ""  # the name that agents send
    complete: Complete | None = None  # who answers messages; None: nobody
    act: Act | None = None  # who acts in environments; None: nobody
    resources: Mapping[str, Any] = field(default_factory=dict)  # named texts and the like


def policy_record(policy: Policy) -> dict[str, Any]:
    kind = type(policy)
    return {"type": f"{kind.__module__}:{kind.__qualname__}", "manifest": dict(policy.manifest)}


def policy_from(record: Mapping[str, Any]) -> Policy:
    """The policy that was recorded, by the import path of its class."""
    module, _, name = str(record["type"]).partition(":")
    try:
        kind: Any = importlib.import_module(module)
        for part in name.split("."):
            kind = getattr(kind, part)
    except (ImportError, AttributeError) as error:
        what = f"policy of type {record['type']}"
        raise BadInput(what, why=f"cannot be imported: {error}", remedy="install what defines it") from error
    policy: Policy = kind.from_manifest(record["manifest"])
    return policy


# The kit for whoever writes another kind


def check_policy(policy: Policy, engine: Engine) -> None:
    """It comes back from its record as the same version, is changed by nobody, and acts as the version that it says."""
    version = policy.version
    require(bool(version.strip()) and bool(policy.kind.strip()), f"{policy!r:.60}: has a blank version or kind")
    require(policy.version == version, f"{version}: its version is {policy.version} when it is asked again")
    try:
        record = json.dumps(policy_record(policy), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{version}: its manifest is not plain JSON: {error}") from error
    again = policy_from(json.loads(record))
    same = (again.kind, again.version, again.source) == (policy.kind, version, policy.source)
    require(same and again == policy, f"{version}: comes back from its record as {again!r:.120}")
    if isinstance(own := policy.manifest, dict):
        own["kit"] = "changed"
    require(json.dumps(policy_record(policy)) == record, f"{version}: whoever changes its manifest changes the policy")
    actor = policy.open(engine)
    require(actor.version == version, f"{version}: is opened as {actor.version}")
    require(json.dumps(policy_record(policy)) == record, f"{version}: is another one after it was opened")


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """One saved policy: what made it, how far it had come, and which one it grew from."""

    SCHEMA: ClassVar[int] = 1

    id: str
    algorithm: str
    policy_version: str
    global_step: int = field(metadata={"minimum": 0})
    episode_count: int = field(metadata={"minimum": 0})
    mean_reward: float | None = None  # None: not measured
    artifact: Artifact | None = None
    parent: str | None = None  # id of the checkpoint it grew from
    created_at: float  # unix seconds
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(f"checkpoint {self.id}", self, filled=("id", "algorithm", "policy_version", "parent"))
