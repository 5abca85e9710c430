"""A network as a policy: an actor-critic that acts in environments, by its shape and the checkpoint it has come to.

The record itself needs no torch: who only looks at releases need not load it. How the weights get better is left to
`learn.control`, and environments to `collect.gym`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.engine import Engine
from holdfast.contracts.envs import Choose, Observation, Spaces
from holdfast.contracts.errors import BadInput, Lost
from holdfast.contracts.policy import Actor, files_of
from holdfast.contracts.release import PolicyKind

if TYPE_CHECKING:
    from holdfast.policies.nets import ActorCritic, Body

KIND = "actor-critic"  # of its weights
VALUE_SCALE, DISCOUNT = "returns", "gamma"  # notes of its manifest: mean and spread of the critic's returns; γ


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Weights by reference: those that `seed` draws, or what a checkpoint has made of them."""

    kind: ClassVar[str] = PolicyKind.NETWORK

    width: int = 64  # of its layers
    memory: bool = False  # whether it remembers the episode so far (a GRU)
    seed: int = 0  # of the weights it begins with
    env: str = ""  # what it acts in; empty: to be fitted to one
    spaces: Spaces | None = None  # of that environment
    checkpoint: str | None = None  # id, in the store's folder; None: as it begins
    sampled: bool = False  # whether it draws its choices, as it learnt to, or takes the likeliest

    def __post_init__(self) -> None:
        if self.width < 1:
            raise BadInput(f"network.width = {self.width}", why="must be at least 1")

    @property
    def manifest(self) -> dict[str, Any]:
        """`sampled` is in it only where it is set: those of earlier versions keep their names."""
        kept = asdict(self)
        return kept if self.sampled else {name: value for name, value in kept.items() if name != "sampled"}

    @property
    def version(self) -> str:
        return f"network/{self.env}@{self.checkpoint or self._sha256[:16]}"

    @property
    def source(self) -> str:
        return f"network:{self._sha256}" if self.checkpoint is None else f"checkpoint:{self.checkpoint}"

    @property
    def _sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode()).hexdigest()

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Network:
        kept = manifest["spaces"]
        # JSON has no tuples, and two that are equal must be found equal.
        spaces = None if kept is None else Spaces(**{**kept, "low": tuple(kept["low"]), "high": tuple(kept["high"])})
        return cls(**{**manifest, "spaces": spaces})

    def at(self, checkpoint: str | None) -> Network:
        """The same network with other weights."""
        return replace(self, checkpoint=checkpoint)

    def fitted(self, env: str, spaces: Spaces) -> Network:
        """For this environment; BadInput where it is one for another."""
        if self.spaces is not None and self.spaces != spaces:
            why = f"was made for {self.env}, where there is {self.spaces}; {env} has {spaces}"
            raise BadInput(f"policy {self.version}", why=why, remedy="give a new hf.Network()")
        return replace(self, env=env, spaces=spaces)

    @property
    def body(self) -> Body:
        """The size and kind of the network."""
        from holdfast.policies.nets import Body

        if self.spaces is None:
            raise BadInput(
                f"policy {self.version}", why="is made for no environment yet", remedy="give it one to improve in"
            )
        s = self.spaces
        return Body(
            observation=s.observation, actions=s.actions, continuous=s.continuous, width=self.width, memory=self.memory
        )

    def load(self, files: Artifacts | None) -> ActorCritic:
        """The network with its weights; Lost where its checkpoint is missing or damaged."""
        from holdfast.policies.nets import ActorCritic
        from holdfast.policies.weights import fit, load

        net = ActorCritic(self.body, seed=self.seed)
        if self.checkpoint is None:
            return net
        what = f"checkpoint {self.checkpoint}"
        folder = files_of(self.checkpoint, files)
        try:
            tensors, manifest = load(folder)
            if manifest.kind != KIND:
                raise BadInput(what, why=f"holds weights of kind {manifest.kind}")
            fit(net, tensors, what=what)
        except BadInput as error:
            remedy = "restore it from a copy, or begin a new run"
            raise Lost(what, why=f"{error.what}: {error.why}", remedy=remedy) from error
        return net

    def open(self, engine: Engine) -> Actor:
        from holdfast.policies.nets import Acting

        net = self.load(engine.files)
        assert self.spaces is not None
        return Actor(version=self.version, act=Acting(net, self.spaces, sampled=self.sampled))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scripted:
    """Does what the environment's own script would do: the first version of a line that a network has to beat."""

    kind: ClassVar[str] = PolicyKind.NETWORK

    env: str = ""  # whose script; empty: to be fitted to one

    @property
    def manifest(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def version(self) -> str:
        return f"scripted/{self.env}"

    @property
    def source(self) -> str:
        return f"scripted:{self.env}"

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Scripted:
        return cls(**manifest)

    def fitted(self, env: str, _: Spaces) -> Scripted:
        return replace(self, env=env)

    def open(self, _: Engine) -> Actor:
        return Actor(version=self.version, act=ScriptedAct(self.env))


class ScriptedAct:
    """Takes the action that the environment's script offers with each observation."""

    def __init__(self, env: str) -> None:
        self._env = env

    def __call__(self, observation: Any, mask: Any = None) -> Any:
        why, remedy = "acts where the environment offers its script with the observation", "play it in its environment"
        raise BadInput(f"the script of {self._env}", why=why, remedy=remedy)

    def reset(self) -> None:
        pass

    def many(self, count: int) -> Choose:
        def choose(observation: Observation, first: Any, /) -> Any:
            if observation.scripted is None:
                raise BadInput(f"environment {self._env}", why="has no script", remedy="give hf.Network()")
            return observation.scripted

        return choose
