"""What a version's name stands for: a policy, which is weights on disk or a prompt, and the resources that go with it.

A name is a model of the package, a folder of weights, a checkpoint's id, or a release of the store. Which version is
good enough to be served is not asked here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.policy import Policy, files_of, policy_from, policy_record
from holdfast.contracts.release import Release
from holdfast.policies.packaged import NAMES
from holdfast.policies.prompt import Prompt
from holdfast.store.sql import number as number_in
from holdfast.store.store import Store

# `policies.model` brings torch, which takes seconds and which prompts do without: it is imported where it is needed.
if TYPE_CHECKING:
    from holdfast.policies.engine import Local

SOURCES = ("shelf", "checkpoint", "weights", "resources")  # what the source of a release may begin with


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    name: str  # as it was asked for
    weights: str  # a name on the shelf, or the folder they lie in; blank: they are behind an address
    sha256: str  # of the weights; of a policy without any, of all that it is made of
    resources: int | None = None  # version of the named resources in force
    policy: Mapping[str, Any] | None = None  # its record, where weights and numbered resources do not say it all

    @property
    def behaviour(self) -> tuple[str, int | str | None]:
        """Two versions of which this is equal act alike."""
        if self.resources is not None or self.policy is None:
            return self.sha256, self.resources
        kept = self.policy["manifest"].get("resources")
        return self.sha256, _digest(kept) if kept else None


def resolve(store: Store, name: str) -> Version:
    """The version, found and readable; its weights are hashed when they are loaded."""
    _, mark, place = name.rpartition("@")
    if mark and place.isdecimal() and not Path(name).is_dir():
        return _release(store, store.releases.get(name))
    if name in NAMES:
        return _at(name, name)
    if Path(name).is_dir():
        return _at(name, str(Path(name).absolute()))
    return _checkpoint(store, name, place)  # also as calls name it: model@checkpoint


def weights_of(store: Store, name: str) -> str:
    """Returns the weights of a version as settings name them: a model of the package, or a folder."""
    version = resolve(store, name)
    if version.resources is not None or version.policy is not None:
        why = "is more than a folder of weights"
        raise BadInput(f"model local/{name}", why=why, remedy="'holdfast policy export' writes one: name that folder")
    return version.weights


def endpoint_model(store: Store, release: Release) -> str | None:
    """The model of a release of texts that answers from an address; None where it is one of this machine."""
    kept = release.manifest.get("policy")
    policy = policy_from(kept) if isinstance(kept, Mapping) and "type" in kept else None
    if isinstance(policy, Prompt):
        model = policy.model if policy.local_model is None else None
    else:
        named = release.manifest.get("model")
        is_far = release.source.startswith("resources:") and isinstance(named, str) and not is_near(store, named)
        model = str(named) if is_far else None
    provider, _, name = (model or "").partition("/")
    return name if provider == "openai" and name else model  # only that is a mere prefix


def is_near(store: Store, model: str) -> bool:
    """Whether it names weights of this machine: a model of the package, a folder, a release or a checkpoint."""
    return model in NAMES or Path(model).is_dir() or "@" in model or is_checkpoint(store, model)


def is_checkpoint(store: Store, name: str) -> bool:
    try:
        store.checkpoints.get(name)
    except NotFound:
        return False
    return True


def policy_for(store: Store, version: Version) -> Policy:
    """The policy that a version is, with its resources. What lies there must still be what was resolved."""
    known = None if version.policy is None else policy_from(version.policy)
    if isinstance(known, Prompt):
        return known
    from holdfast.policies.model import Model

    policy = known or Model(version.weights)
    if isinstance(policy, Model):
        _check_same(version, _sha256(policy.folder(store.files)))
        if version.resources is not None:
            policy = replace(policy, resources=store.versions.get(version.resources).resources)
    return policy


def open_local(version: Version, *, slots: int, seed: int, files: Artifacts | None = None) -> Local:
    """The model, ready to answer; `files` are the store's. What lies there must still be what was resolved."""
    from holdfast.policies.engine import Local
    from holdfast.policies.model import Model, load

    policy = Model(version.weights) if version.policy is None else policy_from(version.policy)
    is_prompt = isinstance(policy, Prompt)
    if isinstance(policy, Prompt) and policy.local_model is not None:
        policy = Model(policy.local_model)
    if not isinstance(policy, Model):
        why = f"its model {policy.manifest.get('model')} answers from an address"
        remedy = f"holdfast release serve {version.name.rpartition('@')[0]} --upstream URL"
        raise BadInput(f"release {version.name}", why=why, remedy=remedy)
    model, sha256 = load(policy, files)
    if not is_prompt:  # a prompt names its model, and not that model's bytes
        _check_same(version, sha256)
    return Local(model, name=f"local/{version.name}", version=version.sha256[:12], slots=slots, seed=seed)


def _check_same(version: Version, sha256: str) -> None:
    if sha256 != version.sha256:
        why = f"the weights in {version.weights} are {sha256[:12]}…, not {version.sha256[:12]}… any more"
        raise BadInput(f"version {version.name}", why=why, remedy="restore them from a copy, or begin a new run")


def _at(name: str, place: str) -> Version:
    from holdfast.policies import weights
    from holdfast.policies.model import HUB, folder_of, is_hub, sha256_of

    folder = folder_of(place)
    if is_hub(folder):
        return Version(name=name, weights=place, sha256=sha256_of(folder))
    manifest = weights.read(folder)
    if manifest.kind not in ("transformer", HUB):
        raise BadInput(f"version {name}", why=f"its weights are of the kind {manifest.kind}, which answers no messages")
    return Version(name=name, weights=place, sha256=manifest.sha256)


def _sha256(folder: Path) -> str:
    from holdfast.policies import weights
    from holdfast.policies.model import is_hub, sha256_of

    return sha256_of(folder) if is_hub(folder) else weights.read(folder).sha256


def _checkpoint(store: Store, name: str, identity: str) -> Version:
    from holdfast.policies import weights
    from holdfast.policies.model import HUB, Model

    try:
        checkpoint = store.checkpoints.get(identity)
    except NotFound:
        why = "is no model of the package, no folder, no checkpoint and no release"
        remedy = f"use {' or '.join(NAMES)}, a folder of weights, a checkpoint's id, or policy@number"
        raise BadInput(f"version {name!r}", why=why, remedy=remedy) from None
    folder = files_of(checkpoint.id, store.files).absolute()
    manifest = weights.read(folder)
    if manifest.kind == HUB:  # what was trained, over the Hugging Face folder that it came from
        policy = Model(str(manifest.shape["base"]), checkpoint=checkpoint.id, lora=int(manifest.shape["lora"]))
        version = Version(name=name, weights=str(folder), sha256=manifest.sha256, policy=policy_record(policy))
    else:
        version = _at(name, str(folder))
    if checkpoint.artifact is not None and checkpoint.artifact.sha256 != version.sha256:
        why = f"its weights are {version.sha256[:12]}…, and {checkpoint.artifact.sha256[:12]}… were recorded"
        raise BadInput(f"version {name}", why=why, remedy="restore the checkpoint from a copy")
    return version


def _release(store: Store, release: Release) -> Version:
    """By the policy that its manifest holds, else by its source; where that is a set of resources, the manifest's
    `model` says what they are given to."""
    kept = release.manifest.get("policy")
    if isinstance(kept, Mapping) and "type" in kept:
        return _of_policy(store, release, policy_from(kept))
    kind, _, rest = release.source.partition(":")
    if kind == "checkpoint":
        return _checkpoint(store, release.id, rest)
    if kind in ("shelf", "weights"):
        return _registered(release, rest)
    if kind != "resources" or not rest.isdecimal():
        why = f"its source {release.source!r} cannot be run here"
        raise BadInput(f"release {release.id}", why=why, remedy=f"sources begin with {', '.join(SOURCES)}")
    model = release.manifest.get("model")
    if not isinstance(model, str):
        remedy = "register it with the model that its resources are given to"
        raise BadInput(f"release {release.id}", why="its manifest names no model", remedy=remedy)
    texts = store.versions.get(int(rest))
    if endpoint_model(store, release) is not None:
        return _of_policy(store, release, Prompt(texts.resources, model=model))
    return replace(resolve(store, model), name=release.id, resources=texts.version)


def _registered(release: Release, place: str) -> Version:
    version, kept = _at(release.id, place), release.manifest.get("sha256")
    if kept not in (None, version.sha256):
        why = f"its weights are {version.sha256[:12]}…, and it was registered with {str(kept)[:12]}…"
        raise BadInput(f"release {release.id}", why=why, remedy="restore them, or register what lies there now")
    return version


def _of_policy(store: Store, release: Release, policy: Policy) -> Version:
    """A release that holds its policy. One of nothing but weights is the same version as those weights."""
    model = None
    if not isinstance(policy, Prompt):
        from holdfast.policies.model import Model

        model = policy if isinstance(policy, Model) else None
    if model is None:
        record = policy_record(policy)
        return Version(name=release.id, weights="", sha256=_digest(record), policy=record)
    if model.checkpoint is None:
        version = _registered(release, model.source.partition(":")[2])
    else:
        version = _checkpoint(store, release.id, model.checkpoint)
    return replace(version, policy=policy_record(model)) if model.resources or model.lora else version


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def source_of(store: Store, name: str, model: str | None = None) -> tuple[str, dict[str, Any]]:
    """Returns the source and the manifest that a release is registered with; the manifest names the bytes."""
    if name.startswith("resources:"):
        text = name.partition(":")[2]
        if not text.isdecimal() or model is None:
            raise BadInput(f"source {name}", why="resources are a number, given to a model", remedy="add --model")
        number = number_in(text)
        if number is None:
            raise NotFound(f"source {name}", why=f"there is none in project {store.project!r}")
        is_far = "/" in model and not is_near(store, model)  # as in openai/gpt-4o-mini
        given_to = model if is_far else resolve(store, model).name
        return name, {"model": given_to, "resources": store.versions.get(number).sha256}
    if "@" in name and not Path(name).is_dir():
        raise BadInput(f"source {name}", why="is a release already", remedy="name what it was made of")
    version = resolve(store, name)
    manifest: dict[str, Any] = {"sha256": version.sha256}
    if name in NAMES:
        return f"shelf:{name}", manifest
    if Path(name).is_dir():
        return f"weights:{version.weights}", manifest
    return f"checkpoint:{name}", manifest
