"""Weights of a policy into memory and out of it: what is exported is what was trained, token for token."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.contracts.errors import BadInput, Lost
from holdfast.policies.hub import Hub
from holdfast.policies.loading import export, load
from holdfast.policies.model import Model
from holdfast.policies.registry import folder_of
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import Store, open_store
from tests.policies.exported import SHOWN, check_same, taught


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(str(tmp_path / "store.sqlite")) as opened:
        yield opened


def test_adapters_are_merged_into_the_exported_weights(store: Store, tmp_path: Path) -> None:
    policy = taught(store, Model("tiny-tools", lora=4))
    check_same(policy, store, tmp_path / "out")
    sets = [{*_state(folder)} for folder in (folder_of("tiny-tools"), tmp_path / "out")]
    assert sets[0] == sets[1]  # the names of a plain model: no adapters
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    own, messages = load(Model("tiny-tools"), None)[0], [dict(one) for one in SHOWN[0].messages[:2]]
    assert isinstance(own, Hub)
    ids = tokenizer.apply_chat_template(messages, tools=SHOWN[0].tools, add_generation_prompt=True, return_dict=False)
    assert ids == own.template.prompt(messages, SHOWN[0].tools)


def _state(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


def test_a_model_that_is_trained_whole_is_exported_whole(store: Store, tmp_path: Path) -> None:
    check_same(taught(store, Model("tiny-tools"), 8), store, tmp_path / "out")


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is there already"):
        export(Model("sprout"), None, tmp_path)


def test_a_checkpoint_is_a_model_by_its_folder_with_its_adapters_merged(store: Store, tmp_path: Path) -> None:
    policy = taught(store, Model("tiny-tools", lora=4), 8)
    merged, _ = load(Model(str(policy.folder(store.files))), None)
    assert isinstance(merged, Hub) and not merged.is_adapted
    ids = torch.arange(40)[None]
    with torch.no_grad():
        apart = (merged(ids) - load(policy, store.files)[0](ids)).abs().max()
        moved = (merged(ids) - load(Model("tiny-tools"), None)[0](ids)).abs().max()
    assert apart < 1e-4 < moved


def test_a_checkpoint_over_a_folder_that_changed_is_refused(store: Store, tmp_path: Path) -> None:
    """The template, too, decides what the model is asked: another one would be another policy."""
    shutil.copytree(folder_of("tiny-tools"), tmp_path / "base")
    policy = taught(store, Model(str(tmp_path / "base"), lora=4), 8)
    load(policy, store.files)
    template = tmp_path / "base" / "chat_template.jinja"
    template.write_text(template.read_text() + " ")
    with pytest.raises(Lost, match="was trained from other files"):
        load(policy, store.files)


def test_adapters_are_for_hugging_face_models_alone() -> None:
    with pytest.raises(BadInput, match="model sprout, lora = 4: adapters are for Hugging Face models"):
        load(Model("sprout", lora=4), None)


def test_a_checkpoint_needs_the_store_that_it_lies_in(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="lies in a store, and none is open"):
        load(Model("sprout", checkpoint="run-1-1-ab"), None)
    with pytest.raises(Lost, match="checkpoint run-1-1-ab: .*is missing"):
        load(Model("tiny-tools", checkpoint="run-1-1-ab"), FolderArtifacts(tmp_path))
