"""The registry of packaged models in Hugging Face's format: by name, by folder, or refused with a way out."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.policies.models.registry import CONFIG, NAMES, folder_of


def test_any_other_model_is_found_by_its_folder(tmp_path: Path) -> None:
    (tmp_path / CONFIG).write_text("{}")
    assert folder_of(tmp_path) == folder_of(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("name", ["huge-tools", "", "no/such/folder"])
def test_a_name_that_is_neither_packaged_nor_a_model_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=NAMES[0]):
        folder_of(tmp_path / name if name else tmp_path)


def test_a_folder_of_the_same_name_does_not_hide_a_packaged_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAMES[0]).mkdir()
    (tmp_path / NAMES[0] / CONFIG).write_text("{}")
    monkeypatch.chdir(tmp_path)
    try:
        found = folder_of(NAMES[0])
    except BadInput as error:  # not in this installation
        assert "install" in str(error.remedy)
    else:
        assert found.is_absolute() and tmp_path not in found.parents
