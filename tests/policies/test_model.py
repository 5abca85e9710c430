"""A model as a policy: a reference that means the same wherever it is read again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import policy_from, policy_record
from holdfast.policies.loading import load
from holdfast.policies.model import Model
from holdfast.policies.registry import folder_of
from holdfast.store.artifacts import FolderArtifacts


def test_a_model_by_its_folder_is_found_wherever_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder_of("tiny-tools"), tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    policy = Model("base")
    monkeypatch.chdir("/")
    assert policy.name == str(tmp_path / "base") and Model.from_manifest(policy.manifest) == policy
    load(policy, None)


def test_its_record_gives_an_equal_one_and_does_not_say_where_its_store_is() -> None:
    policy = Model(
        "tiny-tools",
        checkpoint="run-1-1-ab",
        lora=8,
        resources={"system": "Be brief."},
        home=FolderArtifacts(Path("/here")),
    )
    assert policy_from(policy_record(policy)) == policy and "home" not in policy.manifest
    assert (policy.version, policy.source) == ("local/tiny-tools@run-1-1-ab", "checkpoint:run-1-1-ab")


def test_a_version_is_named_by_its_weights() -> None:
    assert Model("sprout").version == "local/sprout@0" and Model("sprout").source == "shelf:sprout"
    assert Model("sprout").at("c").version == "local/sprout@c" and Model("sprout").at("c").at(None) == Model("sprout")


def test_a_rank_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput, match="lora = -1"):
        Model("tiny-tools", lora=-1)


def test_a_checkpoint_whose_store_is_not_known_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="lies in a store, and none is open"):
        Model("sprout", checkpoint="run-1-1-ab").export(tmp_path / "out")
    assert Model("sprout").export(tmp_path / "out") == tmp_path / "out"
