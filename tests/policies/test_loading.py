"""Weights of a policy into memory and out of it: what is exported is what was trained, token for token."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from holdfast.contracts.errors import BadInput, Lost
from holdfast.contracts.policy import policy_from, policy_record
from holdfast.policies import tokens
from holdfast.policies.chat_template import ByteTemplate
from holdfast.policies.hub import Hub
from holdfast.policies.model import Model, export, folder_of, load
from holdfast.policies.prompt import Prompt
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.artifacts import FolderArtifacts
from holdfast.store.store import Store, open_store
from tests.policies.exported import SHOWN, check_same, taught
from tests.policies.small import small


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
    check_same(taught(store, Model("tiny-tools")), store, tmp_path / "out")


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is there already"):
        export(Model("sprout"), None, tmp_path)


def test_a_checkpoint_is_a_model_by_its_folder_with_its_adapters_merged(store: Store, tmp_path: Path) -> None:
    policy = taught(store, Model("tiny-tools", lora=4))
    merged, _ = load(Model(str(policy.folder(store.files))), None)
    assert isinstance(merged, Hub) and not merged.is_adapted
    ids = torch.arange(40)[None]
    with torch.no_grad():
        apart = (merged(ids) - load(policy, store.files)[0](ids)).abs().max()
        moved = (merged(ids) - load(Model("tiny-tools"), None)[0](ids)).abs().max()
    assert apart < 1e-4 < moved


def test_versions_with_adapters_share_the_weights_that_rest(store: Store, tmp_path: Path) -> None:
    base = Model("tiny-tools", lora=4)
    policy = taught(store, base)
    first, trained, again = (load(one, store.files)[0] for one in (base, policy, policy))
    places = [{n: p.data_ptr() for n, p in one.named_parameters()} for one in (first, trained, again)]
    own = {name for name in places[0] if "lora_" in name}
    assert own and all(places[0][name] == places[1][name] == places[2][name] for name in places[0].keys() - own)
    assert all(len({one[name] for one in places}) == 3 for name in own)
    assert all(p.requires_grad is (n in own) for n, p in trained.named_parameters())
    ids = torch.arange(40)[None]
    with torch.no_grad():
        before, said = first(ids), trained(ids)
        export(policy, store.files, tmp_path / "whole")  # merges adapters, and not into what others have
        for name, one in again.named_parameters():
            one.add_(1.0 if name in own else 0.0)
        assert torch.equal(first(ids), before) and torch.equal(trained(ids), said) and not torch.equal(again(ids), said)


def test_a_checkpoint_over_a_folder_that_changed_is_refused(store: Store, tmp_path: Path) -> None:
    """The template, too, decides what the model is asked: another one would be another policy."""
    shutil.copytree(folder_of("tiny-tools"), tmp_path / "base")
    policy = taught(store, Model(str(tmp_path / "base"), lora=4))
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


def test_our_own_transformer_is_exported_in_the_layout_of_llama_with_its_bytes(tmp_path: Path) -> None:
    check_same(Model("sprout"), None, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    for one in SHOWN:
        for place, message in enumerate(one.messages):
            if message["role"] == "assistant":
                before = [dict(some) for some in one.messages[:place]]
                ids = tokenizer.apply_chat_template(
                    before, tools=one.tools, add_generation_prompt=True, return_dict=False
                )
                assert ids == tokens.prompt(before, one.tools)
    again, _ = load(Model(str(tmp_path / "out")), None)
    assert isinstance(again, Hub) and isinstance(
        again.template, ByteTemplate
    )  # calls of tools are read as sprout writes them
    export(Model(str(tmp_path / "out")), None, tmp_path / "twice")
    twice = transformers.AutoTokenizer.from_pretrained(tmp_path / "twice")
    assert twice.encode("four <|end|>") == tokenizer.encode("four <|end|>") == [*b"four ", tokens.END]


def test_every_byte_is_a_token_of_the_exported_tokenizer(tmp_path: Path) -> None:
    save_transformer(tmp_path / "own", small(), Manifest(kind="transformer", shape={}, created_at=0.0))
    export(Model(str(tmp_path / "own")), None, tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "".join(map(chr, range(256))) + "€ 𝄞\n  <|call|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids == [*text.removesuffix("<|call|>").encode(), tokens.CALL]
    assert tokenizer.decode(ids) == text


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
        artifacts=FolderArtifacts(Path("/here")),
    )
    assert policy_from(policy_record(policy)) == policy and "artifacts" not in policy.manifest
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


def test_texts_are_given_by_name_or_as_one_mapping() -> None:
    named = Prompt(system="a", tone="b", model="tiny", sampling={"temperature": 0.0})
    assert named == Prompt({"system": "a", "tone": "b"}, model="tiny", sampling={"temperature": 0.0})
    assert named.version == Prompt({"tone": "b"}, system="a", model="tiny", sampling={"temperature": 0.0}).version
    assert named.version != Prompt(system="a", tone="b", model="tiny").version
    assert policy_from(policy_record(named)) == named


def test_some_texts_are_replaced_for_the_same_model() -> None:
    made = Prompt(system="a", tone="b", model="tiny").with_texts({"system": "c"})
    assert made == Prompt(system="c", tone="b", model="tiny")
    assert replace(made, model="other") == Prompt(system="c", tone="b", model="other")


@pytest.mark.parametrize("wrong", ["You answer.", {"_policy": "x"}, {"system": object()}, {"system": float("nan")}])
def test_what_cannot_be_kept_is_refused(wrong: Any) -> None:
    with pytest.raises(BadInput, match="prompt"):
        Prompt(wrong)
