"""Runs that teach examples or preferences: what they leave, that a broken one ends in the same bytes, what stops them,
and what a private one spends."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
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
from holdfast.learn.dp import Mechanism, Privacy, epsilon
from holdfast.learn.dpo import DPO
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
from tests.warm import Warm

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
    assert json.loads(store.blobs.get(str(found.prepared.texts)))[0] == "\n".join(rows()[0].values())
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
    command = ["-m", "holdfast.cli", "policy", "train"]
    process = Warm([*command, model.name, str(file), *given, "--store", str(at)])
    deadline = time.monotonic() + 300
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


# Preferences ---------------------------------------------------------------------------------------------------------


def preferences(count: int = 24) -> list[dict[str, Any]]:
    return [{"prompt": row["prompt"], "chosen": row["completion"], "rejected": "no idea"} for row in rows(count)]


def test_a_run_of_preferences_lowers_their_loss_and_goes_on_where_it_stopped(store: Store, model: Model) -> None:
    how = DPO(lr=3e-3, epochs=4, batch=4, save_every=4, held_out=0.25)
    found = taught(store, sft_spec(model, preferences(), how=how))
    assert (found.kind, found.prepared.units, found.prepared.sequences, found.updates) == ("dpo", 18, 36, 20)
    assert found.before == pytest.approx(np.log(2.0)) and found.after is not None and found.after < 0.5
    run_id = None
    for after in (2, 4, 1000):
        spec = sft_spec(model, preferences(), how=DPO(**how.record()))
        status = asyncio.run(_stopped(store, spec, run_id, after))
        run_id = status.run_id
        if status.run_state is RunState.COMPLETED:
            break
    assert weights_of(store, str(run_id)) == weights_of(store, found.run)


def test_rows_without_pairs_and_pairs_of_a_run_that_cannot_be_private_are_refused(model: Model) -> None:
    with pytest.raises(BadInput, match="it is none of .*chosen"):
        sft_spec(model, rows(), how=DPO())
    with pytest.raises(BadInput, match="made of two conversations.*give the pairs as rows"):
        sft_spec(model, run="run-1", how=DPO(privacy=Privacy(epsilon=1.0)))
    with pytest.raises(BadInput, match="pairs are made of good and bad rollouts"):
        sft_spec(model, run="run-1", least=1.0, how=DPO())


# Privacy -------------------------------------------------------------------------------------------------------------

PRIVATE = replace(HOW, privacy=Privacy(epsilon=4.0, clip=0.5))


def test_a_private_run_spends_its_budget_and_says_so_with_its_versions(store: Store, model: Model) -> None:
    found = taught(store, sft_spec(model, rows(), how=PRIVATE))
    spent = found.privacy
    assert spent is not None and found.prepared.units == spent["units"] == found.prepared.sequences
    assert (
        spent["steps"] == found.updates == 6 * -(-spent["units"] // 4) and spent["sampling_rate"] == 4 / spent["units"]
    )
    assert 3.99 < spent["epsilon"] <= 4.0 and (spent["unit"], spent["delta"]) == ("conversation", 1e-5)
    assert epsilon([Mechanism.from_record(spent)], 1e-5) == spent["epsilon"]
    made = store.checkpoints.of_run(found.run)
    assert made[-1].metadata["privacy"] == spent
    on_the_way = [one.metadata["privacy"]["epsilon"] for one in made]
    assert on_the_way == sorted(on_the_way) and on_the_way[0] < 3.0  # what an earlier checkpoint gave away is less
    bodies = [one.body for one in store.steps.of_run(found.run)]
    assert all(body.get("loss") is None for body in bodies if body.get("phase") == "sft")  # losses are not private


def test_runs_on_a_version_that_was_learnt_privately_add_up(store: Store, model: Model) -> None:
    first = taught(store, sft_spec(model, rows(), how=PRIVATE))
    second = taught(store, sft_spec(first.policy, rows(), how=replace(PRIVATE, epochs=2)))
    assert first.privacy is not None and second.privacy is not None
    both = [Mechanism.from_record(one) for one in (first.privacy, second.privacy)]
    assert second.privacy["line"] == {"epsilon": pytest.approx(epsilon(both, 1e-5)), "runs": 2}
    assert second.privacy["epsilon"] < 4.01 < second.privacy["line"]["epsilon"] < 8.0
    assert first.privacy["line"] == {"epsilon": first.privacy["epsilon"], "runs": 1}


def test_a_private_run_that_was_stopped_draws_the_same_noise_again_and_another_run_draws_other(
    store: Store, model: Model, tmp_path: Path, file: Path
) -> None:
    status = asyncio.run(_stopped(store, sft_spec(model, file, how=PRIVATE), None, 4))
    assert status.run_state is RunState.CANCELLED
    shutil.copytree(store.folder, tmp_path / "copy")
    spec = resumed_spec(store.runs.get(status.run_id).settings)
    assert drive(store, spec, resume=status.run_id).run_state is RunState.COMPLETED
    with open_store(str(tmp_path / "copy" / Path(store.url).name), create=False) as copy:
        again = drive(copy, resumed_spec(copy.runs.get(status.run_id).settings), resume=status.run_id)
        assert again.run_state is RunState.COMPLETED
        assert weights_of(copy, status.run_id) == weights_of(store, status.run_id)
        assert result_of(copy, status.run_id).privacy == result_of(store, status.run_id).privacy
    other = taught(store, sft_spec(model, file, how=PRIVATE))
    assert not set(weights_of(store, other.run)) & set(weights_of(store, status.run_id))


def test_a_private_run_that_is_killed_spends_as_much_as_one_that_is_not(
    model: Model, file: Path, tmp_path: Path, store: Store
) -> None:
    how = replace(PRIVATE, privacy=Privacy(epsilon=4.0, clip=0.5, deterministic=True))
    config = tmp_path / "train.json"
    block = {name: value for name, value in HOW.record().items() if value is not None and name != "seed"}
    private = {"epsilon": 4.0, "clip": 0.5, "deterministic": True}
    config.write_text(json.dumps({"model": model.name, "sft": {"examples": file.name, **block}, "privacy": private}))
    at = tmp_path / "store" / "store.sqlite"
    process = Warm(["-m", "holdfast.cli", "policy", "train", "--config", str(config), "--store", str(at)])
    deadline = time.monotonic() + 300
    while _recorded(at) < 5 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    whole = taught(store, sft_spec(model, file, how=how))
    with open_store(str(at), create=False) as killed:
        run = killed.runs.newest()[0]
        assert run.state is RunState.RUNNING
        drive(killed, resumed_spec(run.settings), resume=run.id, later_s=60.0)
        assert result_of(killed, run.id).privacy == whole.privacy
        assert weights_of(killed, run.id) == weights_of(store, whole.run)


def test_a_user_is_a_unit_and_must_be_named(store: Store, model: Model) -> None:
    how = replace(PRIVATE, privacy=Privacy(epsilon=4.0, unit="user"))
    with pytest.raises(BadInput, match=r"item 1: names no user, and privacy.unit is user.*columns"):
        sft_spec(model, rows(), how=how)
    named = [{**row, "customer": f"c{n % 6}"} for n, row in enumerate(rows())]
    found = taught(store, sft_spec(model, named, columns={"user": "customer"}, how=how))
    assert found.privacy is not None and found.privacy["units"] == found.prepared.units <= 6 < found.prepared.sequences


def test_a_budget_that_cannot_be_kept_ends_the_run_before_anything_is_learnt(store: Store, model: Model) -> None:
    with pytest.raises(BadInput, match="privacy.epsilon = 1e-07: no noise of a useful size"):
        drive(store, sft_spec(model, rows(), how=replace(PRIVATE, privacy=Privacy(epsilon=1e-7))))
    assert not store.checkpoints.of_run(store.runs.newest()[0].id)
