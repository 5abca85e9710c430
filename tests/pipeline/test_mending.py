"""Damaged artifacts: the step that made one is computed again from its inputs. The same bytes come of it, or it is
lost; either way nothing that is on record changes. What recovery says of them is tested with it."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.errors import Lost, StoreFull
from holdfast.contracts.flag import ALL_OFF
from holdfast.contracts.run import RunState
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.promote import PromotionRequest
from holdfast.pipeline.run import Control, DurableRun
from holdfast.policies import model
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.pipeline import learning
from tests.pipeline.driving import Watched, names, spec_of
from tests.pipeline.learning import is_whole, model_spec, prompt_spec
from tests.pipeline.scene import ran
from tests.store.scene import checkpoint
from tests.workloads.scene import tiny


def torn(folder: Path) -> None:
    (file,) = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])


def swapped(folder: Path) -> None:
    """Whole, and another's: the manifest fits, but it is not what was recorded."""
    shutil.rmtree(folder)
    tiny(folder, seed=9)


def mended(store: Store, run: str) -> list[dict[str, Any]]:
    return [dict(one.body) for one in store.ledger.entries(run=run) if one.kind == "mend"]


def damaged_at(store: Store, place: str, damage: Callable[[Path], None]) -> Callable[[str], None]:
    """A hook that damages the newest checkpoint, once."""
    left = [place]

    def hook(at: str) -> None:
        if at in left:
            left.clear()
            damage(store.folder / "checkpoints" / store.checkpoints.of_run(store.runs.newest()[0].id)[-1].id)

    return hook


@pytest.mark.parametrize("damage", [torn, shutil.rmtree], ids=["torn", "gone"])
async def test_what_is_damaged_under_way_is_found_by_who_opens_it_and_made_anew(
    store: Store, base: str, made: list[str], damage: Callable[[Path], None]
) -> None:
    """The next step collects with it: its model is loaded from disk, while the learner still has it in memory."""
    status = await ran(store, model_spec(base, damaged_at(store, "ask 1", damage)))
    is_whole(store, status.run_id, made)
    first = store.checkpoints.of_run(status.run_id)[0].id
    (noted,) = mended(store, status.run_id)
    assert (noted["checkpoint"], noted["step"]) == (first, "0/0/learn")


async def stopped(store: Store, base: str, at: str) -> str:
    """A run that is stopped as it comes to this place."""
    control = Control()

    def hook(place: str) -> None:
        if place == at:
            control.stop()

    status = await ran(store, model_spec(base, hook), control)
    assert status.run_state is RunState.CANCELLED
    return status.run_id


@pytest.mark.parametrize("damage", [torn, shutil.rmtree, swapped])
async def test_what_is_read_is_verified_and_made_anew_even_if_learning_is_switched_off_by_then(
    store: Store, base: str, made: list[str], damage: Callable[[Path], None]
) -> None:
    """It was on when the step learnt. What comes after obeys the switch: the second step learns nothing."""
    run = await stopped(store, base, "ask 1")
    damage(store.folder / "checkpoints" / store.checkpoints.of_run(run)[0].id)
    status = await ran(store, model_spec(base), resume=run, features=ALL_OFF)
    assert status.run_state is RunState.COMPLETED
    assert (learning.made(store, run), len(mended(store, run))) == (made[:1], 1)
    second = store.steps.get(run, "0/1/learn")
    assert second is not None and second.body["skipped"] == "learning is switched off"


async def test_what_was_queued_before_a_feature_was_switched_off_keeps_it(store: Store, base: str) -> None:
    run = await stopped(store, base, "run practice 0")
    before = {one.name: one.metadata for one in store.views.rollouts(run, most=100)}
    status = await ran(store, model_spec(base), resume=run, features=ALL_OFF)
    assert status.run_state is RunState.COMPLETED and before
    after = {one.name: one.metadata for one in store.views.rollouts(run, most=100)}
    assert {name: after[name] for name in before} == before
    assert any("without" in given for name, given in after.items() if name not in before)


async def test_a_full_disk_fails_the_run_and_with_room_it_goes_on_to_the_same_bytes(
    store: Store, base: str, made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(folder: Path, *given: Any) -> Any:
        if "-2." in folder.name:  # the second checkpoint, as it is written aside
            folder.mkdir(parents=True)
            (folder / "weights").write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, "No space left on device")
        return save(folder, *given)

    save = model.save
    with monkeypatch.context() as patched:
        patched.setattr(model, "save", full)
        with pytest.raises(StoreFull, match="No space left on device; make room, and resume the run"):
            await ran(store, model_spec(base))
    run = store.runs.newest()[0]
    assert run.state is RunState.FAILED and names(store, run.id)[-1] == "0/1/collect"
    assert len(list((store.folder / "checkpoints").iterdir())) == 1  # nothing half done is left
    await ran(store, model_spec(base), resume=run.id)
    is_whole(store, run.id, made)


# What a proof rests on


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(b"{}"), Path.unlink], ids=["torn", "gone"])
async def test_the_episodes_of_a_look_are_read_again_from_its_rollouts(
    files: Files, damage: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(files.fresh()) as store, open_store(files.fresh()) as calm:
        with monkeypatch.context() as patched:
            patched.setattr(PromotionRequest, "weigh", on_fire)
            with pytest.raises(OSError, match="on fire"):
                await ran(store, prompt_spec(""))
        run = store.runs.newest()[0].id
        look = store.steps.get(run, "0/prove/0")
        assert look is not None
        damage(store.blobs.path(look.body["episodes"]))
        await ran(store, prompt_spec(""), resume=run)
        await ran(calm, prompt_spec(""))
        assert learning.came_of(store, run) == learning.came_of(calm, run)
        (noted,) = mended(store, run)
        assert (noted["blob"], noted["step"]) == (look.body["episodes"], "0/prove/0")


def on_fire(*given: Any) -> Any:
    raise OSError("the machine is on fire")


# A step that makes something else the second time


class Maker:
    """Writes weights whose content is a number, and counts on."""

    def __init__(self) -> None:
        self.number = 0

    def make(self, *, ctx: StepContext) -> dict[str, Any]:
        self.number += 1
        content = str(self.number).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        name = f"made-{sha256[:8]}"
        folder = ctx.folder / "checkpoints" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "weights").write_bytes(content)
        (folder / "manifest.json").write_text(json.dumps({"file": "weights", "sha256": sha256}))
        ctx.add_checkpoint(checkpoint(name, artifact=Artifact(uri=f"checkpoints/{name}", sha256=sha256)))
        return {"checkpoint": name}

    async def program(self, run: DurableRun) -> None:
        await run.step("make", self.make)


@pytest.mark.parametrize("is_same", [True, False], ids=["the same", "another"])
async def test_the_same_bytes_come_of_it_or_it_is_lost(store: Store, is_same: bool) -> None:
    maker = Maker()
    status = await Watched(store, spec_of(maker.program)).run()
    (kept,) = store.checkpoints.of_run(status.run_id)
    file = store.folder / "checkpoints" / kept.id / "weights"
    file.write_bytes(b"damaged")
    maker.number -= is_same
    again = Watched(store, spec_of(maker.program), resume=status.run_id)
    if is_same:
        assert (await again.run()).run_state is RunState.COMPLETED
        assert file.read_bytes() == b"1"
    else:
        with pytest.raises(Lost, match=f"checkpoint {kept.id}: .*; restore it from a copy, or begin a new run"):
            await again.run()
        assert again.ended()[0] is RunState.FAILED
    assert len(mended(store, status.run_id)) == is_same
    assert store.checkpoints.of_run(status.run_id) == [kept]
    assert names(store, status.run_id) == ["begin", "make"]
