"""The shelf: the shipped models by name, any other by its folder, all of them small and as their manifests say."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.policies.lm import SPROUT, ModelShape, Transformer
from holdfast.policies.model import card, folder_of, load_transformer
from holdfast.policies.packaged import HERE, NAMES
from holdfast.policies.weights import Manifest, read, save_transformer

OURS = ("sprout", "sprout-weak")
MOST = 8_000_000  # bytes of all that ships


@pytest.mark.parametrize("name", OURS)
def test_a_shipped_model_is_found_by_its_name_and_is_what_its_manifest_says(name: str) -> None:
    model, manifest = load_transformer(name)
    content = (folder_of(name) / manifest.file).read_bytes()
    assert hashlib.sha256(content).hexdigest() == manifest.sha256
    assert model.shape == SPROUT
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())


def test_the_shipped_models_differ() -> None:
    assert (*OURS, "tiny-tools") == NAMES
    assert read(folder_of("sprout")).sha256 != read(folder_of("sprout-weak")).sha256


def test_all_that_ships_is_small_and_nothing_else_lies_beside_it() -> None:
    files = [path for name in OURS for path in folder_of(name).iterdir()]
    assert len(files) == 2 * len(OURS)  # each its weights and its manifest
    assert sum(path.stat().st_size for path in (HERE / "sprout").rglob("*") if path.suffix != ".pyc") <= MOST


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    manifest = read(folder_of("sprout"))
    content = bytearray((folder_of("sprout") / manifest.file).read_bytes())
    content[-1] ^= 1
    (tmp_path / manifest.file).write_bytes(content)
    (tmp_path / "manifest.json").write_bytes((folder_of("sprout") / "manifest.json").read_bytes())
    with pytest.raises(BadInput, match="is damaged"):
        load_transformer(str(tmp_path))


def test_any_other_model_is_found_by_its_folder(tmp_path: Path) -> None:
    tiny = Transformer(ModelShape(width=8, layers=1, heads=2, context=32), seed=4)
    save_transformer(tmp_path / "mine", tiny, Manifest(kind="transformer", shape={}, step=7, created_at=0.0))
    model, manifest = load_transformer(str(tmp_path / "mine"))
    assert (model.shape, manifest.step) == (tiny.shape, 7)
    assert all(torch.equal(value, tiny.state_dict()[name]) for name, value in model.state_dict().items())


def test_a_folder_of_the_same_name_does_not_hide_a_shipped_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sprout").mkdir()
    monkeypatch.chdir(tmp_path)
    assert folder_of("sprout") == HERE / "sprout" / "sprout"


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(BadInput, match="'sprouts'.*neither in the package.*use sprout, sprout-weak, tiny-tools"):
        load_transformer("sprouts")


def test_the_card_tells_of_both_models() -> None:
    headings = [line.lstrip("#").strip() for line in card().splitlines() if line.startswith("#")]
    assert {"sprout", "sprout-weak"} <= set(headings)
