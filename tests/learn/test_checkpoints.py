"""Checkpoints: what was learnt lies on disk whole, and after a restart it goes on from there, bit for bit."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from holdfast.contracts.errors import Interrupted, Lost, StoreError, StoreFull
from holdfast.contracts.policy import Checkpoint
from holdfast.learn.batch import Sample, Samples, pack
from holdfast.learn.checkpoints import Learner
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import Model
from holdfast.policies.weights import Manifest, read, save_transformer, transformer
from holdfast.store.artifacts import FolderArtifacts
from tests.learn.telling import Telling

RUN = "run-1-ab"
SHAPE = ModelShape(width=16, layers=1, heads=2, context=64)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that is quick to train."""
    folder = tmp_path_factory.mktemp("base") / "tiny"
    save_transformer(folder, Transformer(SHAPE, seed=3), Manifest(kind="transformer", shape={}, created_at=0.0))
    return folder


class Record:
    """A run: the policy that its last step left, and the checkpoints that its steps recorded."""

    def __init__(self, base: Path, folder: Path) -> None:
        self.telling = Telling(folder, run=RUN)
        self.policies = [Model(str(base))]
        self.phase = ""  # of the trainer that was saved last

    @property
    def kept(self) -> list[Checkpoint]:
        return self.telling.checkpoints

    def where(self, number: int = -1) -> Path:
        return self.telling.folder / "checkpoints" / self.kept[number].id

    def copy(self, steps: int) -> Record:
        """The same run, as far as it was recorded then."""
        other = Record(Path(self.policies[0].name), self.telling.folder)
        other.policies, other.telling.checkpoints = self.policies[: steps + 1], self.kept[:steps]
        other.phase = self.phase if steps else ""
        return other


def lesson(number: int) -> Samples:
    rng = np.random.default_rng(number)
    ids = rng.integers(0, 256, 12).astype(np.int32)
    decided = np.arange(12) >= 4
    weights = decided.astype(np.float32)
    turns = np.where(decided, 0, -1).astype(np.int32)
    return pack([Sample(rollout="r", task="t", ids=ids, action_mask=decided, turns=turns, weights=weights)])


def brisk(model: nn.Module) -> Trainer:
    return Trainer(model, Settings(optimizer=OptimizerConfig(learning_rate=1e-2)), seed=0)


def teach(learner: Learner, record: Record, phase: str = "a", *, number: int | None = None) -> Trainer:
    """One step as an algorithm takes it: have the weights, learn, save."""
    learner.load(record.policies[-1], record.telling.files)
    trainer = learner.train(phase, brisk, record.telling.files, is_new=record.phase != phase)
    trainer.step(lesson(len(record.kept) if number is None else number))
    record.policies.append(learner.save(record.telling, algorithm="sft", mean_reward=0.5))
    record.phase = phase
    return trainer


def parameters(model: nn.Module) -> list[float]:
    return [float(number) for tensor in model.state_dict().values() for number in tensor.flatten()]


def test_what_is_kept_lies_on_disk_whole_and_says_where_it_came_from(base: Path, tmp_path: Path) -> None:
    learner, record = Learner(), Record(base, tmp_path)
    teach(learner, record)
    first = record.kept[0]
    manifest = read(record.where())
    assert first.artifact is not None
    assert (first.artifact.uri, first.artifact.sha256) == (f"checkpoints/{first.id}", manifest.sha256)
    assert first.id == f"run-1-ab-1-{manifest.sha256[:8]}"
    assert (first.algorithm, first.global_step, first.mean_reward, first.parent) == ("sft", 1, 0.5, None)
    assert (manifest.parent, manifest.step) == (read(base).sha256, 1)
    assert record.policies[-1] == Model(str(base), checkpoint=first.id)
    saved, _ = transformer(record.where())
    assert parameters(saved) == parameters(learner.model)
    assert parameters(saved) != parameters(transformer(base)[0])
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [first.id]  # nothing is left aside

    trainer = learner.trainer
    assert teach(learner, record) is trainer and teach(learner, record, "b") is not trainer
    assert (record.kept[1].parent, read(record.where(1)).parent) == (first.id, manifest.sha256)


def test_a_restart_goes_on_bit_for_bit(base: Path, tmp_path: Path) -> None:
    through, whole = Learner(), Record(base, tmp_path / "whole")
    for _ in range(3):
        last = teach(through, whole)
    record = Record(base, tmp_path / "cut")
    for _ in range(3):
        again = teach(Learner(), record)  # another process for each step
    assert again.digest() == last.digest()
    assert [one.id for one in record.kept] == [one.id for one in whole.kept]
    assert [read(record.where(n)).parent for n in range(3)] == [read(whole.where(n)).parent for n in range(3)]


def test_it_can_be_any_checkpoint_whichever_run_left_it(base: Path, tmp_path: Path) -> None:
    first, record = Learner(), Record(base, tmp_path)
    teach(first, record)
    teach(first, record)
    other = Learner()
    for number in (0, 1, 0):
        model = other.load(record.policies[number + 1], FolderArtifacts(tmp_path))
        assert parameters(model) == parameters(transformer(record.where(number))[0])
        assert other.load(record.policies[number + 1], FolderArtifacts(tmp_path)) is model  # nothing is loaded twice
    assert other.train("a", brisk, FolderArtifacts(tmp_path), is_new=True).steps == 0
    another = Telling(tmp_path, run="run-2-cd")  # a run of its own that goes on from there
    assert other.save(another, algorithm="sft").checkpoint == f"run-2-cd-1-{read(record.where(0)).sha256[:8]}"
    assert another.checkpoints[0].parent == record.kept[0].id
    assert parameters(other.load(record.policies[0], FolderArtifacts(tmp_path))) == parameters(transformer(base)[0])
    with pytest.raises(Lost, match=r"^checkpoint run-0: .* is missing"):
        other.load(Model(str(base), checkpoint="run-0"), FolderArtifacts(tmp_path))


def test_what_was_given_up_on_the_way_is_forgotten(base: Path, tmp_path: Path) -> None:
    learner, record = Learner(), Record(base, tmp_path)
    teach(learner, record)
    learner.trainer.step(lesson(7))  # type: ignore[union-attr]
    learner.forget()
    assert parameters(learner.load(record.policies[-1], FolderArtifacts(tmp_path))) == parameters(
        transformer(record.where())[0]
    )
    assert learner.train("a", brisk, FolderArtifacts(tmp_path), is_new=False).steps == 1


def test_weights_stay_and_only_the_last_two_can_be_trained_on(base: Path, tmp_path: Path) -> None:
    learner, record = Learner(), Record(base, tmp_path)
    other = tmp_path / "checkpoints/run-2-cd-1-00000000/trainer"  # of another run
    other.mkdir(parents=True)
    for _ in range(4):
        teach(learner, record)
    assert [(record.where(n) / "trainer").is_dir() for n in range(4)] == [False, False, True, True]
    for number in range(4):
        transformer(record.where(number))
    assert other.is_dir()


def test_what_a_killed_try_left_is_in_nobodys_way(base: Path, tmp_path: Path) -> None:
    first, record = Learner(), Record(base, tmp_path)
    teach(first, record)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    torn = tmp_path / f"checkpoints/.run-1-ab-2.{dead.pid}"
    torn.mkdir()
    (torn / "weights-00.safetensors").write_bytes(b"half of them")
    lost = record.copy(1)  # a process that is killed before its second step is on record
    teach(first, lost)
    teach(Learner(), record)
    assert record.kept[1].id == lost.kept[1].id
    transformer(record.where())
    assert not torn.exists()


def test_what_a_process_of_another_container_writes_is_left_alone(base: Path, tmp_path: Path) -> None:
    """Its number says nothing here, where nobody has it."""
    first, record = Learner(), Record(base, tmp_path)
    teach(first, record)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    theirs = tmp_path / f"checkpoints/.run-1-ab-2.{dead.pid}-{'0' * 6}"
    theirs.mkdir()
    teach(first, record.copy(1))
    assert theirs.is_dir()
    os.utime(theirs, (1.0, 1.0))  # nothing has been written there for long
    teach(Learner(), record)
    assert not theirs.exists()


def test_a_trainer_that_should_be_there_is_not_replaced_by_a_new_one(base: Path, tmp_path: Path) -> None:
    record = Record(base, tmp_path)
    teach(Learner(), record)
    (record.where() / "trainer").rename(tmp_path / "elsewhere")
    again = Learner()
    again.load(record.policies[-1], FolderArtifacts(tmp_path))
    for _ in range(2):
        with pytest.raises(Lost, match=rf"^checkpoint {record.kept[0].id}: .*/trainer/manifest.json: is missing; "):
            again.train("a", brisk, FolderArtifacts(tmp_path), is_new=False)
    (tmp_path / "elsewhere").rename(record.where() / "trainer")
    assert again.train("a", brisk, FolderArtifacts(tmp_path), is_new=False).steps == 1


def test_one_that_slept_takes_nothing_from_the_one_that_took_its_run_up(base: Path, tmp_path: Path) -> None:
    sleeper, record = Learner(), Record(base, tmp_path)
    teach(sleeper, record)
    before = record.copy(1)
    heir = Learner()
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
    before = record.copy(4)
    teach(Learner(), before)
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


def test_what_cannot_be_kept_for_want_of_room_says_so_and_leaves_nothing(base: Path, tmp_path: Path) -> None:
    learner, record = Learner(), Record(base, tmp_path)
    teach(learner, record)
    with room_for(1000), pytest.raises(StoreFull) as raised:
        teach(learner, record)
    said = str(raised.value)
    assert said.startswith(f"checkpoint 2 of run-1-ab in {tmp_path / 'checkpoints'}: File too large; make room, and ")
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [record.kept[0].id]
    teach(Learner(), record)
    transformer(record.where())


def test_a_checkpoint_whose_files_are_gone_is_named(base: Path, tmp_path: Path) -> None:
    record = Record(base, tmp_path)
    teach(Learner(), record)
    (record.where() / "manifest.json").unlink()
    said = rf"^checkpoint {record.kept[0].id}: .*/manifest.json: is missing; restore it from a copy"
    with pytest.raises(Lost, match=said):
        Learner().load(record.policies[-1], FolderArtifacts(tmp_path))


def test_once_the_run_is_stopped_nothing_more_is_kept_whatever_became_of_the_folder(base: Path, tmp_path: Path) -> None:
    learner, record = Learner(), Record(base, tmp_path)
    learner.load(record.policies[-1], FolderArtifacts(tmp_path))
    record.telling.is_stopped = True
    with pytest.raises(Interrupted):
        learner.save(record.telling, algorithm="sft")
    assert not (tmp_path / "checkpoints").exists()
    (tmp_path / "checkpoints").write_text("in the way")
    record.telling.hook = lambda: setattr(record.telling, "is_stopped", next(stops))
    stops = iter((False, True))  # stopped while it saved: the folder is the business of another
    with pytest.raises(Interrupted):
        learner.save(record.telling, algorithm="sft")
    record.telling.is_stopped, record.telling.hook = False, lambda: None
    with pytest.raises(StoreError, match=r"^checkpoint 1 of run-1-ab in .*; see that the folder is there"):
        teach(learner, record)
