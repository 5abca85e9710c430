"""The engine in this process: versions side by side, each loaded once, the oldest let go, damaged ones lost."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, Fault, Lost
from holdfast.contracts.trace import ModelCall
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.store.artifacts import FolderArtifacts
from tests.workloads.scene import tiny

ASKED: list[dict[str, str]] = [{"role": "user", "content": "1?"}]


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    for seed in range(3):
        tiny(tmp_path / "checkpoints" / f"c-{seed}", seed)
    made = LocalEngine(slots=4, deterministic=True, files=FolderArtifacts(tmp_path))
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
    assert first is not second
    assert answer(first) != answer(second)
    assert asyncio.run(second(ASKED, seed=5, max_tokens=8)).model == base.at("c-0").version


NAMES = ("c-0", "c-1", "c-2")


def test_a_third_version_takes_the_place_of_the_one_asked_for_longest_ago(engine: LocalEngine, base: Model) -> None:
    alone = {name: answer(engine.open_model(base.at(name))) for name in NAMES}
    assert len(set(alone.values())) == 3
    for name in (*NAMES, "c-0"):
        assert answer(engine.open_model(base.at(name))) == alone[name]


def test_each_of_many_versions_that_are_open_answers_with_its_own_weights(engine: LocalEngine, base: Model) -> None:
    alone = {name: answer(engine.open_model(base.at(name))) for name in NAMES}
    opened = {name: engine.open_model(base.at(name)) for name in NAMES}  # as a batch of three versions does
    for name in (*NAMES, *reversed(NAMES)):
        call = asyncio.run(opened[name](ASKED, seed=5, max_tokens=8))
        assert (call.model, call.completion_ids) == (base.at(name).version, alone[name])


async def test_versions_that_are_asked_at_the_same_time_do_not_mix(engine: LocalEngine, base: Model) -> None:
    opened = {name: engine.open_model(base.at(name)) for name in NAMES}
    order = NAMES * 8
    calls = await asyncio.gather(*(opened[name](ASKED, seed=5, max_tokens=8) for name in order))
    assert [call.model for call in calls] == [base.at(name).version for name in order]
    said = {name: {call.completion_ids for call, at in zip(calls, order, strict=True) if at == name} for name in NAMES}
    assert [len(one) for one in said.values()] == [1, 1, 1] and len(set.union(*said.values())) == 3


async def test_a_stream_of_a_version_that_was_let_go_is_its_own(engine: LocalEngine, base: Model) -> None:
    opened = [engine.open_model(base.at(name)) for name in NAMES]
    async with aclosing(opened[0].stream(ASKED, seed=5, max_tokens=8)) as news:
        *_, call = [new async for new in news]
    assert isinstance(call, ModelCall) and call.model == base.at("c-0").version


def test_no_more_versions_stay_loaded_than_two_once_nobody_asks(engine: LocalEngine, base: Model) -> None:
    asyncio.run(test_versions_that_are_asked_at_the_same_time_do_not_mix(engine, base))
    before = threading.active_count()
    engine.open_model(base)
    assert threading.active_count() < before  # each has a thread of its own


def test_a_version_that_cannot_be_loaded_again_is_a_fault_of_ours(
    engine: LocalEngine, base: Model, tmp_path: Path
) -> None:
    opened = [engine.open_model(base.at(name)) for name in NAMES]
    shutil.rmtree(tmp_path / "checkpoints" / "c-0")
    with pytest.raises(Fault, match="checkpoint c-0"):  # the agent that asked did nothing wrong
        answer(opened[0])


def test_a_checkpoint_that_is_gone_is_lost_by_its_name(engine: LocalEngine, base: Model, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "checkpoints" / "c-1")
    with pytest.raises(Lost, match="checkpoint c-1"):
        engine.open_model(base.at("c-1"))


def test_a_checkpoint_needs_a_store(base: Model) -> None:
    with pytest.raises(BadInput, match="lies in a store, and none is open"):
        LocalEngine().open_model(base.at("c-0"))


def test_a_model_behind_an_address_is_somebody_elses() -> None:
    assert LocalEngine().open_endpoint("gpt") is None
