"""A pupil: it answers with the weights it has learnt so far, and after a restart it goes on from those on disk."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.collect.plan import Lost, Standing
from holdfast.contracts.errors import BadInput, Interrupted, StoreError, StoreFull
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.run import StepRecord
from holdfast.learn.batch import Sample, Samples, pack
from holdfast.learn.train import Pace, Settings, Trainer
from holdfast.policies.lm import Shape, Transformer
from holdfast.policies.weights import Manifest, read, save_transformer, transformer
from holdfast.workloads.pupil import Pupil, where

SHAPE = Shape(width=16, layers=1, heads=2, context=64)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is quick to train."""
    folder = tmp_path_factory.mktemp("base") / "tiny"
    save_transformer(folder, Transformer(SHAPE, seed=3), Manifest(kind="transformer", shape={}, created_at=0.0))
    return folder


@pytest.fixture
def pupils(base: Path) -> Iterator[Callable[[], Pupil]]:
    """Makes a pupil, as a process does when it starts."""
    made: list[Pupil] = []

    def new() -> Pupil:
        made.append(Pupil(str(base), seed=0, slots=2))
        return made[-1]

    yield new
    for pupil in made:
        pupil.close()


class Record:
    """What the loop does with a run: every lesson that is over becomes an update."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.done, self.kept = folder, list[StepRecord](), list[Checkpoint]()

    @property
    def standing(self) -> Standing:
        return Standing(run="run-1-ab", folder=self.folder, done=list(self.done))

    def add(self, phase: str, checkpoint: Checkpoint | None) -> None:
        body: dict[str, Any] = {"phase": phase}
        if checkpoint is not None:
            self.kept.append(checkpoint)
            body["checkpoint"] = checkpoint.id
        self.done.append(StepRecord(run="run-1-ab", step=len(self.done) + 1, at=0.0, body=body))

    def where(self, number: int = -1) -> Path:
        return where(self.folder, self.kept[number].id)


def lesson(number: int) -> Samples:
    rng = np.random.default_rng(number)
    ids = rng.integers(0, 256, 12).astype(np.int32)
    decided = np.arange(12) >= 4
    weights = decided.astype(np.float32)
    turns = np.where(decided, 0, -1).astype(np.int32)
    return pack([Sample(rollout="r", task="t", ids=ids, decided=decided, turns=turns, weights=weights)])


def brisk(model: Transformer) -> Trainer:
    return Trainer(model, Settings(pace=Pace(learning_rate=1e-2)), seed=0)


def teach(pupil: Pupil, record: Record, phase: str = "a", *, number: int | None = None) -> Trainer:
    """One lesson as the course gives it: be where the record ends, learn, keep."""
    pupil.be_at(record.standing)
    trainer = pupil.trainer(record.standing, phase, brisk)
    trainer.step(lesson(len(record.done) if number is None else number))
    record.add(phase, pupil.keep(record.standing, algorithm="sft", mean_reward=0.5))
    return trainer


def parameters(model: Transformer) -> list[float]:
    return [float(number) for tensor in model.state_dict().values() for number in tensor.flatten()]


def test_what_is_kept_lies_on_disk_whole_and_says_where_it_came_from(
    pupils: Callable[[], Pupil], base: Path, tmp_path: Path
) -> None:
    pupil, record = pupils(), Record(tmp_path)
    teach(pupil, record)
    first = record.kept[0]
    manifest = read(record.where())
    assert first.artifact is not None
    assert (first.artifact.uri, first.artifact.sha256) == (f"checkpoints/{first.id}", manifest.sha256)
    assert first.id == f"run-1-ab-1-{manifest.sha256[:8]}"
    assert (first.algorithm, first.global_step, first.mean_reward, first.parent) == ("sft", 1, 0.5, None)
    assert (manifest.parent, manifest.step) == (read(base).sha256, 1)
    saved, _ = transformer(record.where())
    assert parameters(saved) == parameters(pupil.model)
    assert parameters(saved) != parameters(transformer(base)[0])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [first.id]  # nothing is left aside

    teach(pupil, record)
    assert (record.kept[1].parent, read(record.where()).parent) == (first.id, manifest.sha256)


async def test_it_answers_with_what_it_has_learnt(pupils: Callable[[], Pupil], base: Path, tmp_path: Path) -> None:
    pupil, record = pupils(), Record(tmp_path)
    asked = [{"role": "user", "content": "hi"}]
    before = await pupil.local(asked, max_tokens=2)
    teach(pupil, record)
    after = await pupil.local(asked, max_tokens=2)
    assert (before.model, after.model) == (f"local/{base}@0", f"local/{base}@{record.kept[0].id}")


def test_a_restart_goes_on_bit_for_bit(pupils: Callable[[], Pupil], tmp_path: Path) -> None:
    through, whole = pupils(), Record(tmp_path / "whole")
    for _ in range(3):
        last = teach(through, whole)
    record = Record(tmp_path / "cut")
    for _ in range(3):
        again = teach(pupils(), record)  # another process for each lesson
    assert again.digest() == last.digest()
    assert [one.id for one in record.kept] == [one.id for one in whole.kept]
    assert [read(record.where(n)).parent for n in range(3)] == [read(whole.where(n)).parent for n in range(3)]


async def test_a_restart_has_the_weights_of_the_last_checkpoint(
    pupils: Callable[[], Pupil], base: Path, tmp_path: Path
) -> None:
    first, record = pupils(), Record(tmp_path)
    teach(first, record)
    teach(first, record)
    record.add("measured", None)  # a lesson that left none
    again = pupils()
    again.be_at(record.standing)
    assert parameters(again.model) == parameters(first.model)
    answer = await again.local([{"role": "user", "content": "hi"}], max_tokens=1)
    assert answer.model == f"local/{base}@{record.kept[1].id}"
    model = again.model
    again.be_at(record.standing)
    assert again.model is model  # nothing is loaded twice
    again.be_at(Record(tmp_path).standing)
    assert parameters(again.model) == parameters(transformer(base)[0])


async def test_it_can_be_any_checkpoint_whichever_run_left_it(
    pupils: Callable[[], Pupil], base: Path, tmp_path: Path
) -> None:
    first, record = pupils(), Record(tmp_path)
    teach(first, record)
    teach(first, record)
    other = pupils()
    for number in (0, 1, 0):
        other.be(tmp_path, record.kept[number].id)
        assert parameters(other.model) == parameters(transformer(record.where(number))[0])
        assert other.version == f"local/{base}@{record.kept[number].id}"
        answer = await other.local([{"role": "user", "content": "hi"}], max_tokens=1)
        assert answer.model == other.version
    another = Record(tmp_path)  # a run of its own that goes on from there
    assert other.trainer(another.standing, "a", brisk).steps == 0
    assert other.keep(another.standing, algorithm="sft").parent == record.kept[0].id
    other.be(tmp_path, None)
    assert parameters(other.model) == parameters(transformer(base)[0])
    with pytest.raises(Lost, match=r"^checkpoint run-0: .* is missing"):
        other.be(tmp_path, "run-0")


def test_at_the_start_it_is_as_it_came(pupils: Callable[[], Pupil], base: Path, tmp_path: Path) -> None:
    pupil = pupils()
    model = pupil.model
    pupil.be_at(Record(tmp_path).standing)
    assert pupil.model is model
    assert parameters(model) == parameters(transformer(base)[0])


def test_each_phase_has_a_trainer_of_its_own(pupils: Callable[[], Pupil], tmp_path: Path) -> None:
    pupil, record = pupils(), Record(tmp_path)
    first = teach(pupil, record, "a")
    assert teach(pupil, record, "a") is first
    second = teach(pupil, record, "b")
    assert second is not first
    assert (first.steps, second.steps) == (2, 1)


def test_a_phase_that_left_nothing_yet_does_not_inherit_the_trainer_of_the_one_before(
    pupils: Callable[[], Pupil], tmp_path: Path
) -> None:
    record = Record(tmp_path)
    teach(pupils(), record, "a")
    record.add("b", None)  # its first lesson gave no gradient
    again = pupils()
    again.be_at(record.standing)
    assert again.trainer(record.standing, "b", brisk).steps == 0
    record.done.pop()
    other = pupils()
    other.be_at(record.standing)
    assert other.trainer(record.standing, "a", brisk).steps == 1


def test_a_phase_goes_on_after_a_lesson_that_left_nothing(pupils: Callable[[], Pupil], tmp_path: Path) -> None:
    record = Record(tmp_path)
    teach(pupils(), record, "a")
    record.add("a", None)
    again = pupils()
    again.be_at(record.standing)
    assert again.trainer(record.standing, "a", brisk).steps == 1


def test_weights_stay_and_only_the_last_two_can_be_trained_on(pupils: Callable[[], Pupil], tmp_path: Path) -> None:
    pupil, record = pupils(), Record(tmp_path)
    other = tmp_path / "checkpoints/run-2-cd-1-00000000/trainer"  # of another run
    other.mkdir(parents=True)
    for _ in range(4):
        teach(pupil, record)
    assert [(record.where(n) / "trainer").is_dir() for n in range(4)] == [False, False, True, True]
    for number in range(4):
        transformer(record.where(number))
    assert other.is_dir()


def test_what_a_killed_try_left_is_in_nobodys_way(pupils: Callable[[], Pupil], tmp_path: Path) -> None:
    first, record = pupils(), Record(tmp_path)
    teach(first, record)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    torn = tmp_path / f"checkpoints/.run-1-ab-2.{dead.pid}"
    torn.mkdir()
    (torn / "weights-00.safetensors").write_bytes(b"half of them")
    lost = Record(tmp_path)  # a process that is killed before its second lesson is on record
    lost.done, lost.kept = list(record.done), list(record.kept)
    teach(first, lost)
    teach(pupils(), record)
    assert record.kept[1].id == lost.kept[1].id
    transformer(record.where())
    assert not torn.exists()


def test_once_closed_it_learns_and_keeps_nothing_more(pupils: Callable[[], Pupil], tmp_path: Path) -> None:
    pupil, record = pupils(), Record(tmp_path)
    pupil.heed()
    pupil.close()
    with pytest.raises(Interrupted):
        pupil.heed()
    with pytest.raises(Interrupted):
        pupil.keep(record.standing, algorithm="sft")
    assert not (tmp_path / "checkpoints").exists()
    pupil.close()  # again is harmless


def test_a_checkpoint_whose_files_are_gone_is_named(pupils: Callable[[], Pupil], tmp_path: Path) -> None:
    record = Record(tmp_path)
    teach(pupils(), record)
    (record.where() / "manifest.json").unlink()
    said = (
        rf"^checkpoint {record.kept[0].id}: .*/manifest.json: is missing; restore it from a copy, or begin a new run$"
    )
    with pytest.raises(Lost, match=said):
        pupils().be_at(record.standing)


def test_a_trainer_that_should_be_there_is_not_replaced_by_a_new_one(
    pupils: Callable[[], Pupil], tmp_path: Path
) -> None:
    record = Record(tmp_path)
    teach(pupils(), record)
    (record.where() / "trainer").rename(tmp_path / "elsewhere")
    again = pupils()
    again.be_at(record.standing)
    for _ in range(2):
        with pytest.raises(Lost, match=rf"^checkpoint {record.kept[0].id}: .*/trainer/manifest.json: is missing; "):
            again.trainer(record.standing, "a", brisk)
    (tmp_path / "elsewhere").rename(record.where() / "trainer")
    assert again.trainer(record.standing, "a", brisk).steps == 1


def test_one_that_slept_takes_nothing_from_the_one_that_took_its_run_up(
    pupils: Callable[[], Pupil], tmp_path: Path
) -> None:
    sleeper, record = pupils(), Record(tmp_path)
    teach(sleeper, record)
    before = Record(tmp_path)
    before.done, before.kept = list(record.done), list(record.kept)
    heir = pupils()
    for _ in range(4):
        teach(heir, record)
    theirs = tmp_path / f"checkpoints/.run-1-ab-2.{os.getppid()}"  # of a process that is at work
    theirs.mkdir()
    inode = record.where(1).stat().st_ino
    teach(sleeper, before)
    teach(sleeper, before, number=9)  # something else than its heir learnt there
    assert [(record.where(n) / "trainer").is_dir() for n in range(5)] == [False, True, False, True, True]
    assert before.kept[2].id != record.kept[2].id
    for number in range(5):
        transformer(record.where(number))
    assert record.where(1).stat().st_ino != inode  # its trainer had been forgotten, so that it was not whole
    assert not theirs.exists()  # two steps later nobody is at it any more

    last = record.where().stat().st_ino
    before.done, before.kept = record.done[:-1], record.kept[:-1]
    teach(pupils(), before)
    assert before.kept[-1].id == record.kept[-1].id and record.where().stat().st_ino == last  # whole: not touched


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow larger, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_cannot_be_kept_for_want_of_room_says_so_and_leaves_nothing(
    pupils: Callable[[], Pupil], tmp_path: Path
) -> None:
    pupil, record = pupils(), Record(tmp_path)
    teach(pupil, record)
    with room_for(1000), pytest.raises(StoreFull) as raised:
        teach(pupil, record)
    said = str(raised.value)
    assert said.startswith(f"checkpoint 2 of run-1-ab in {tmp_path / 'checkpoints'}: File too large; make room, and ")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [record.kept[0].id]
    teach(pupils(), record)
    transformer(record.where())


def test_a_folder_that_was_taken_away_is_one_line_unless_it_is_the_business_of_another(
    pupils: Callable[[], Pupil], tmp_path: Path
) -> None:
    pupil, record = pupils(), Record(tmp_path)
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(StoreError, match=r"^checkpoint 1 of run-1-ab in .*; see that the folder is there"):
        teach(pupil, record)
    pupil.be_at(record.standing)
    pupil.close()
    with pytest.raises(Interrupted):
        pupil.keep(record.standing, algorithm="sft")


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="local model 'oak': is neither in the package nor a folder"):
        Pupil("oak", seed=0)
