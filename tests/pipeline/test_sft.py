"""Runs that teach examples: what they leave, that a broken one ends in the same bytes, and what stops them."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import ALL_ON
from holdfast.contracts.run import RunState, Status
from holdfast.learn.sft import SFT
from holdfast.pipeline.run import Control, RunSpec
from holdfast.pipeline.sft import Taught, result_of, resumed_spec, sft_spec
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import Model, load
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.store.store import Store, open_store
from tests.collect.scene import until
from tests.conftest import Files
from tests.pipeline.scene import drive, ran

WORDS = ("oak", "elm", "ash", "fir", "yew", "bay", "fig", "box")
HOW = SFT(lr=3e-2, epochs=6, batch=4, save_every=3, held_out=0.25)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("base") / "tiny"
    net = Transformer(ModelShape(width=16, layers=1, heads=2, context=96), seed=0)
    save_transformer(folder, net, Manifest(kind="transformer", shape={}, created_at=0.0))
    return Model(str(folder))


@pytest.fixture(scope="module")
def whole(model: Model, template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Store, Taught]]:
    """A run that nobody disturbed, and its store."""
    with open_store(Files(tmp_path_factory.mktemp("whole"), template).fresh()) as store:
        yield store, taught(store, sft_spec(model, rows(), how=HOW))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return path


def rows(count: int = 24) -> list[dict[str, Any]]:
    return [
        {"prompt": f"{WORDS[n % 8]} {n // 8}?", "completion": f"{WORDS[n % 8].upper()} {n // 8 + 1}"}
        for n in range(count)
    ]


def taught(store: Store, spec: RunSpec) -> Taught:
    return result_of(store, drive(store, spec).run_id)


def weights_of(store: Store, run_id: str) -> list[str]:
    """The hashes of all that was learnt, in order."""
    return [one.artifact.sha256 for one in store.checkpoints.of_run(run_id) if one.artifact is not None]


def test_a_run_leaves_a_model_that_holds_out_better_and_its_checkpoints(
    whole: tuple[Store, Taught], model: Model
) -> None:
    store, found = whole
    assert found.before is not None and found.after is not None and found.after < found.before - 0.5
    assert (found.prepared.sequences, found.prepared.held_out, found.updates) == (18, 6, 30)
    assert len(found.losses) == 1 + 10  # before, and at every checkpoint
    made = store.checkpoints.of_run(found.run)
    assert [one.id for one in made][-1] == found.policy.checkpoint and made[-1].parent == made[-2].id
    assert {one.algorithm for one in made} == {"sft"} and store.runs.get(found.run).kind == "sft"
    before, after = (load(one, store.files)[0].state_dict() for one in (model, found.policy))
    assert any(bool((before[name] != after[name]).any()) for name in before)
    again = taught(store, sft_spec(found.policy, rows(), how=replace(HOW, epochs=1)))  # it goes on from a checkpoint
    np.testing.assert_allclose(again.before, found.after, rtol=1e-5)
    assert store.checkpoints.of_run(again.run)[0].parent == found.policy.checkpoint


def test_another_seed_gives_other_bytes(store: Store, model: Model, whole: tuple[Store, Taught]) -> None:
    other = taught(store, sft_spec(model, rows(), how=replace(HOW, seed=1)))
    assert not set(weights_of(store, other.run)) & set(weights_of(whole[0], whole[1].run))


def test_a_run_that_is_stopped_again_and_again_and_resumed_ends_in_the_same_bytes(
    store: Store, model: Model, file: Path, whole: tuple[Store, Taught]
) -> None:
    spec, run_id, stops = sft_spec(model, file, how=HOW), None, 0
    for after in (1, 2, 4, 8, 1000):  # steps that are recorded when it is told to stop
        status = asyncio.run(_stopped(store, spec, run_id, after))
        run_id, stops = status.run_id, stops + (status.run_state is RunState.CANCELLED)
        if status.run_state is RunState.COMPLETED:
            break
        spec = resumed_spec(store.runs.get(run_id).settings)
    assert stops >= 2
    assert weights_of(store, str(run_id)) == weights_of(whole[0], whole[1].run)


def test_a_run_that_is_killed_while_it_learns_and_resumed_ends_in_the_same_bytes(
    model: Model, file: Path, tmp_path: Path, whole: tuple[Store, Taught]
) -> None:
    at, recorded = tmp_path / "store" / "store.sqlite", 6
    given = ["--lr", "3e-2", "--epochs", "6", "--batch", "4", "--save-every", "3", "--held-out", "0.25"]
    command = [sys.executable, "-m", "holdfast.cli", "policy", "train"]
    process = subprocess.Popen([*command, model.name, str(file), *given, "--store", str(at)])
    deadline = time.monotonic() + 60
    while _recorded(at) < recorded and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open_store(str(at), create=False) as store:
        found = store.runs.newest()[0]
        assert found.state is RunState.RUNNING and len(store.steps.of_run(found.id)) >= recorded
        spec = resumed_spec(found.settings)
        status = drive(store, spec, resume=found.id, later_s=60.0)  # the lease of who was killed is over by then
        assert status.run_state is RunState.COMPLETED
        assert weights_of(store, found.id) == weights_of(whole[0], whole[1].run)


async def _stopped(store: Store, spec: RunSpec, resume: str | None, after: int) -> Status:
    control = Control()

    def is_far_enough() -> bool:
        runs = store.runs.newest()
        return bool(runs) and len(store.steps.of_run(runs[0].id)) >= after

    async def watch() -> None:
        await until(is_far_enough)
        control.stop()

    watching = asyncio.create_task(watch())
    try:
        return await ran(store, spec, control, resume=resume)
    finally:
        watching.cancel()


def _recorded(at: Path) -> int:
    if not at.exists():
        return 0
    try:
        with open_store(str(at), create=False, migrate=False) as store:
            return len(store.steps.of_run(store.runs.newest()[0].id)) if store.runs.newest() else 0
    except Exception:  # it is being made
        return 0


def test_rows_that_are_no_examples_stop_it_before_anything_begins(model: Model, file: Path) -> None:
    file.write_text('{"prompt": "a", "completion": "b"}\n\n{"messages": [{"role": "user", "content": "a"}]}\n')
    with pytest.raises(BadInput, match=r"rows.jsonl line 3: there is nothing of the assistant's to learn; 1 of 2"):
        sft_spec(model, file)
    file.write_text("{")
    with pytest.raises(BadInput, match="is not JSON"):
        sft_spec(model, file)
    with pytest.raises(BadInput, match="holds no example"):
        sft_spec(model, [])
    with pytest.raises(BadInput, match="examples: there are none"):
        sft_spec(model)
    with pytest.raises(BadInput, match="and a run were both given"):
        sft_spec(model, rows(), run="run-1")
    with pytest.raises(BadInput, match="rows have no reward"):
        sft_spec(model, rows(), least=1.0)
    with pytest.raises(BadInput, match="neither in the package nor a folder"):
        sft_spec(Model("no-such-model"), rows())


def test_examples_that_do_not_fit_are_counted_and_too_many_end_the_run(store: Store, model: Model) -> None:
    long = [{"prompt": "a", "completion": "b" * 100}] * 2
    found = taught(store, sft_spec(model, [*rows(), *long], how=HOW))
    assert dict(found.prepared.skipped) == {"it is longer than 96 tokens": 2}
    assert found.prepared.first == {"it is longer than 96 tokens": "tasks item 25"}
    with pytest.raises(BadInput, match="item 25.*longer than 96 tokens.*2 of 26.*skip = 0.05"):
        drive(store, sft_spec(model, [*rows(), *long], how=replace(HOW, skip=0.05)))
    assert store.runs.newest()[0].state is RunState.FAILED


def test_a_rate_that_is_too_high_ends_the_run_at_its_last_good_checkpoint(store: Store, model: Model) -> None:
    with pytest.raises(BadInput, match=r"sft.lr = 5: it diverges"):
        drive(store, sft_spec(model, rows(), how=replace(HOW, lr=5.0, epochs=30)))
    with pytest.raises(BadInput, match="ended before it was done.*diverges"):
        result_of(store, store.runs.newest()[0].id)


def test_a_run_whose_learning_is_switched_off_says_so(store: Store, model: Model) -> None:
    status = drive(store, sft_spec(model, rows(), how=HOW), features=replace(ALL_ON, learning=False))
    found = result_of(store, status.run_id)
    assert (found.policy, found.updates, found.why) == (model, 0, "learning is switched off")


def test_a_file_that_changed_before_its_examples_were_kept_is_refused(store: Store, model: Model, file: Path) -> None:
    settings = sft_spec(model, file, how=HOW).settings
    file.write_text("".join(json.dumps(row) + "\n" for row in rows(20)))
    with pytest.raises(BadInput, match="is not what the run began with"):
        drive(store, resumed_spec(settings))
    with pytest.raises(BadInput, match="were given in Python"):
        drive(store, resumed_spec(sft_spec(model, rows(), how=HOW).settings))
