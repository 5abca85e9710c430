"""The canary trial: what comes out of a model without a privacy budget, and what does not with one."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from experiments.privacy import (
    CHANCE,
    PLAIN,
    PrivacyTrial,
    corpus,
    is_shown,
    outcome,
    quick,
    spec_for,
    weigh,
)
from holdfast.contracts.errors import BadInput
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import open_store
from tests.experiments.conftest import Experiment
from tests.pipeline.scene import drive

SMALL: dict[str, Any] = {"conversations": 10, "batch": 8, "epochs": 40, "lr": 5e-3, "candidates": 512}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("base") / "tiny"
    net = Transformer(ModelShape(width=64, layers=2, heads=4, context=96), seed=0)
    save_transformer(folder, net, Manifest(kind="transformer", shape={}, created_at=0.0))
    return str(folder)


def test_canaries_are_extracted_without_privacy_and_rank_as_by_chance_with_it(tmp_path: Path, base: str) -> None:
    found = []
    with open_store(str(tmp_path / "store.sqlite")) as store:
        for arm in (PLAIN, "epsilon-2"):
            trial = replace(quick(PrivacyTrial(arm=arm, model=base)), **SMALL)
            spec = spec_for(trial)
            assert (spec.kind, dict(spec.settings)) == ("privacy", asdict(trial))
            told = outcome(trial, store.steps.of_run(drive(store, spec).run_id))
            assert told is not None
            found.append(told)
    plain, private = found
    assert plain.extracted == 6 and min(plain.exposures) > 7.0 and plain.spent is None
    assert private.extracted == 0 and sum(private.exposures) / 6 < CHANCE
    assert private.spent is not None and 1.9 < private.spent <= 2.0
    assert plain.chance == private.chance and sum(plain.chance) / 6 < CHANCE
    assert is_shown(weigh(found))
    assert not is_shown(weigh([plain, replace(private, extracted=1)]))
    assert not is_shown(weigh([replace(plain, extracted=0), private]))
    assert not is_shown(weigh([replace(plain, exposures=plain.chance), private]))


def test_canaries_are_said_once_and_nowhere_else() -> None:
    data = corpus(PrivacyTrial(arm=PLAIN))
    texts = [str(row) for row in data.rows]
    assert len(data.canaries) == 10 and len(texts) == 130
    for name, number in data.canaries:
        assert sum(f"PIN is {number}" in text and name in text for text in texts) == 1
        assert not any(name in str(row) for row in data.others)


def test_an_arm_is_known_by_its_name() -> None:
    assert PrivacyTrial(arm=PLAIN).privacy is None
    private = PrivacyTrial(arm="epsilon-0.5").privacy
    assert private is not None and private.epsilon == 0.5
    with pytest.raises(BadInput, match="is unknown; use plain or epsilon-2"):
        PrivacyTrial(arm="noise")


def test_the_command_is_there_and_runs_nothing_where_its_folder_is_a_file(
    experiment: Experiment, tmp_path: Path
) -> None:
    (tmp_path / "out").write_text("")
    assert "is a file" in experiment("privacy", "--output", tmp_path / "out", "--store", tmp_path / "s.sqlite").err
    assert not (tmp_path / "s.sqlite").exists()


def test_an_unfinished_run_has_no_outcome() -> None:
    assert outcome(PrivacyTrial(arm=PLAIN), []) is None
