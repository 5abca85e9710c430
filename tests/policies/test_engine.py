"""The engine in this process: versions side by side, each loaded once, the oldest let go, damaged ones lost."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, Lost
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from tests.workloads.scene import tiny

ASKED: list[dict[str, str]] = [{"role": "user", "content": "1?"}]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    for seed in range(3):
        tiny(tmp_path / "checkpoints" / f"c-{seed}", seed)
    made = LocalEngine(slots=4, deterministic=True, folder=tmp_path)
    yield made
    made.close()


@pytest.fixture
def base(tmp_path: Path) -> Model:
    return Model(tiny(tmp_path / "base", 9))


def answer(local: Any) -> tuple[int, ...]:
    call = asyncio.run(local(ASKED, seed=5, max_tokens=8))
    return tuple(call.completion_ids)


def test_a_version_is_loaded_once_and_versions_answer_side_by_side(engine: LocalEngine, base: Model) -> None:
    first, second = engine.open_model(base), engine.open_model(base.at("c-0"))
    assert first is not second and engine.open_model(base) is first
    assert answer(first) != answer(second)
    assert asyncio.run(second(ASKED, seed=5, max_tokens=8)).model == base.at("c-0").version


def test_a_third_version_takes_the_place_of_the_one_asked_for_longest_ago(engine: LocalEngine, base: Model) -> None:
    alone = {name: answer(engine.open_model(base.at(name))) for name in ("c-0", "c-1", "c-2")}
    assert len(set(alone.values())) == 3
    for name in ("c-0", "c-1", "c-2", "c-0"):
        assert answer(engine.open_model(base.at(name))) == alone[name]


def test_a_checkpoint_that_is_gone_is_lost_by_its_name(engine: LocalEngine, base: Model, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "checkpoints" / "c-1")
    with pytest.raises(Lost, match="checkpoint c-1"):
        engine.open_model(base.at("c-1"))


def test_a_checkpoint_needs_a_store(base: Model) -> None:
    with pytest.raises(BadInput, match="lies in a store, and none is open"):
        LocalEngine().open_model(base.at("c-0"))


def test_a_model_behind_an_address_is_somebody_elses() -> None:
    assert LocalEngine().open_endpoint("gpt") is None
