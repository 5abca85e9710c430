"""What a version's name stands for: each kind is found, and what is not what it was is refused."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.errors import BadInput, Lost, NotFound
from holdfast.contracts.policy import Checkpoint, policy_record
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.trace import ModelCall
from holdfast.pipeline.versions import (
    Version,
    endpoint_model,
    open_local,
    policy_for,
    resolve,
    source_of,
)
from holdfast.policies.engine import Local
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import Model, folder_of
from holdfast.policies.prompt import Prompt
from holdfast.policies.weights import Manifest, read, save, save_transformer
from holdfast.store.store import Store

NOW = 5.0


def saved(folder: Path, seed: int = 0) -> str:
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=512), seed=seed)
    return save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0)).sha256


def checkpoint(store: Store, identity: str, sha256: str) -> None:
    record = Checkpoint(
        id=identity,
        algorithm="grpo",
        policy_version=identity,
        global_step=1,
        episode_count=0,
        artifact=Artifact(uri=f"checkpoints/{identity}", sha256=sha256),
        created_at=NOW,
    )
    store.checkpoints.add(record, now=NOW).result()


def test_a_model_of_the_package_is_found_by_name(store: Store) -> None:
    found = resolve(store, "sprout")
    assert found == Version(name="sprout", weights="sprout", sha256=read(folder_of("sprout")).sha256)
    assert Version(**asdict(found)) == found


def test_a_folder_of_weights_is_found_wherever_one_stands(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sha256 = saved(tmp_path / "mine")
    monkeypatch.chdir(tmp_path)
    found = resolve(store, "mine")
    assert (found.name, found.weights, found.sha256) == ("mine", str(tmp_path / "mine"), sha256)


def test_a_checkpoint_is_found_by_its_id_and_must_be_what_was_recorded(store: Store) -> None:
    sha256 = saved(store.folder / "checkpoints/run-1-1-ab")
    checkpoint(store, "run-1-1-ab", sha256)
    assert resolve(store, "run-1-1-ab").sha256 == sha256
    saved(store.folder / "checkpoints/run-1-1-ab", seed=1)
    with pytest.raises(BadInput, match="were recorded"):
        resolve(store, "run-1-1-ab")
    shutil.rmtree(store.folder / "checkpoints/run-1-1-ab")
    with pytest.raises(Lost, match="checkpoint run-1-1-ab: .* is missing; restore it from a copy"):
        resolve(store, "run-1-1-ab")


def released(store: Store, source: str, **manifest: Any) -> str:
    added = store.releases.add(
        policy="sprout", kind=PolicyKind.WEIGHTS, source=source, manifest=manifest, who="ada", now=NOW
    )
    return added.result().id


def test_a_release_is_found_by_what_it_was_made_from(store: Store, tmp_path: Path) -> None:
    sha256 = saved(store.folder / "checkpoints/run-1-1-ab")
    checkpoint(store, "run-1-1-ab", sha256)
    saved(tmp_path / "mine", seed=1)
    wanted = {
        "shelf:sprout-weak": read(folder_of("sprout-weak")).sha256,
        "checkpoint:run-1-1-ab": sha256,
        f"weights:{tmp_path / 'mine'}": read(tmp_path / "mine").sha256,
    }
    for source, found in wanted.items():
        identity = released(store, source)
        assert (resolve(store, identity).name, resolve(store, identity).sha256) == (identity, found)


def test_a_release_of_prompts_goes_with_the_model_they_are_given_to(store: Store) -> None:
    number = store.versions.publish({"system_prompt": "Be kind."}, now=NOW).result().version
    found = resolve(store, released(store, f"resources:{number}", model="sprout"))
    assert (found.weights, found.resources) == ("sprout", number)
    assert found.behaviour != resolve(store, "sprout").behaviour


def test_a_release_that_cannot_be_run_is_refused_with_the_reason(store: Store) -> None:
    number = store.versions.publish({"system_prompt": "Be brief."}, now=NOW).result().version
    with pytest.raises(BadInput, match="its manifest names no model"):
        resolve(store, released(store, f"resources:{number}"))
    with pytest.raises(BadInput, match="cannot be run here"):
        resolve(store, released(store, "network:1"))
    with pytest.raises(NotFound, match="sprout@99"):
        resolve(store, "sprout@99")


def test_a_release_is_registered_with_what_finds_the_same_bytes_again(store: Store, tmp_path: Path) -> None:
    folder, sha256 = tmp_path / "mine", saved(tmp_path / "mine")
    checkpoint(store, "run-1-1-ab", saved(store.folder / "checkpoints/run-1-1-ab", seed=1))
    for name, source in (("sprout", "shelf:sprout"), ("run-1-1-ab", "checkpoint:run-1-1-ab")):
        assert source_of(store, name) == (source, {"sha256": resolve(store, name).sha256})
    source, manifest = source_of(store, str(folder))
    assert (source, manifest) == (f"weights:{folder}", {"sha256": sha256})
    identity = released(store, source, **manifest)
    assert resolve(store, identity).sha256 == sha256
    saved(folder, seed=2)
    with pytest.raises(BadInput, match="and it was registered with"):
        resolve(store, identity)
    with pytest.raises(BadInput, match="is a release already"):
        source_of(store, released(store, "shelf:sprout"))


def test_prompts_may_be_given_to_a_model_that_answers_from_an_address(store: Store) -> None:
    number = store.versions.publish({"system_prompt": "Be kind."}, now=NOW).result().version
    source, manifest = source_of(store, f"resources:{number}", "openai/gpt-4o-mini")
    far = store.releases.get(released(store, source, **manifest))
    assert (manifest["model"], endpoint_model(store, far)) == ("openai/gpt-4o-mini", "gpt-4o-mini")
    found = resolve(store, far.id)
    assert policy_for(store, found) == Prompt({"system_prompt": "Be kind."}, model="openai/gpt-4o-mini")
    with pytest.raises(BadInput, match="answers from an address; holdfast release serve .* --upstream URL"):
        open_local(found, slots=1, seed=0)
    for model, wanted in (("org/model", "org/model"), ("gpt-4o-mini", "gpt-4o-mini"), ("sprout", None)):
        number = store.versions.publish({"system_prompt": model}, now=NOW).result().version
        near = store.releases.get(released(store, f"resources:{number}", model=model))
        assert endpoint_model(store, near) == wanted
    with pytest.raises(BadInput, match="version 'sprot': is no model"):  # a slip, not somebody's model
        source_of(store, source, "sprot")


def test_a_release_that_holds_its_policy_is_that_policy(store: Store) -> None:
    sha256 = saved(store.folder / "checkpoints/run-1-1-ab")
    checkpoint(store, "run-1-1-ab", sha256)
    plain, kind = Model("sprout", checkpoint="run-1-1-ab"), Prompt({"system": "Be kind."}, model="org/model")
    with_texts = Model("sprout", resources={"system_prompt": "Be brief."})
    found = [
        resolve(store, released(store, one.source, policy=policy_record(one))) for one in (plain, kind, with_texts)
    ]
    assert found[0].behaviour == resolve(store, "run-1-1-ab").behaviour  # nothing but weights is those weights
    assert policy_for(store, found[1]) == kind
    assert policy_for(store, found[2]) == with_texts
    assert found[2].behaviour != resolve(store, "sprout").behaviour
    assert [Version(**json.loads(json.dumps(asdict(one)))) for one in found] == found


def test_a_prompt_that_a_search_found_is_served_by_its_model_here_or_elsewhere(store: Store) -> None:
    near, far = (Prompt({"system": "Be kind."}, model=model) for model in ("local/sprout", "openai/gpt-4o-mini"))
    releases = [store.releases.get(released(store, one.source, policy=policy_record(one))) for one in (near, far)]
    assert [endpoint_model(store, one) for one in releases] == [None, "gpt-4o-mini"]
    with open_local(resolve(store, releases[0].id), slots=1, seed=0, files=store.files) as model:
        said = asyncio.run(_asked(model))
    assert said.completion_tokens == 1
    with pytest.raises(BadInput, match="--upstream URL"):
        open_local(resolve(store, releases[1].id), slots=1, seed=0)


async def _asked(model: Local) -> ModelCall:
    return await model([{"role": "user", "content": "hi"}], max_tokens=1)


def test_the_model_of_a_version_is_given_its_resources(store: Store) -> None:
    number = store.versions.publish({"system_prompt": "Be kind."}, now=NOW).result().version
    found = resolve(store, released(store, f"resources:{number}", model="sprout"))
    assert policy_for(store, found) == Model("sprout", resources={"system_prompt": "Be kind."})


def test_resources_are_registered_with_the_model_they_are_given_to(store: Store) -> None:
    number = store.versions.publish({"system_prompt": "Be kind."}, now=NOW).result().version
    source, manifest = source_of(store, f"resources:{number}", "sprout")
    assert resolve(store, released(store, source, **manifest)).resources == number
    for name, model in ((f"resources:{number}", None), ("resources:x", "sprout")):
        with pytest.raises(BadInput, match="resources are a number, given to a model"):
            source_of(store, name, model)
    for nobody in ("7", "01", "9" * 20, "9" * 5000, "٣"):
        with pytest.raises(NotFound, match="there is none in project 'default'"):
            source_of(store, f"resources:{nobody}", "sprout")


def test_a_name_that_stands_for_nothing_says_what_names_there_are(store: Store) -> None:
    with pytest.raises(BadInput, match="version 'oak': is no model of the package, no folder, no checkpoint"):
        resolve(store, "oak")


def test_weights_that_answer_no_messages_are_refused(store: Store, tmp_path: Path) -> None:
    save(tmp_path / "net", {}, Manifest(kind="actor-critic", shape={}, created_at=0.0))
    with pytest.raises(BadInput, match="its weights are of the kind actor-critic"):
        resolve(store, str(tmp_path / "net"))


def test_weights_that_were_changed_since_are_not_opened(store: Store, tmp_path: Path) -> None:
    saved(tmp_path / "mine")
    found = resolve(store, str(tmp_path / "mine"))
    with open_local(found, slots=1, seed=0):
        pass
    saved(tmp_path / "mine", seed=1)
    with pytest.raises(BadInput, match="any more; restore them"):
        open_local(found, slots=1, seed=0)
