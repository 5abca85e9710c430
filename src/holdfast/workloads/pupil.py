"""A local model that answers calls and can be taught: which weights it has now, and the checkpoints it leaves.

A checkpoint is a folder of weights; the newest also holds what its trainer needs to go on bit for bit. What is taught,
and when, is decided by the lessons (`rl`, `tooluse.course`); that a checkpoint exists is recorded by the loop.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.collect.plan import Lost, Standing
from holdfast.contracts.errors import BadInput, Interrupted, StoreError, StoreFull
from holdfast.contracts.policy import Artifact, Checkpoint
from holdfast.contracts.run import StepRecord
from holdfast.learn.train import Trainer
from holdfast.policies import weights
from holdfast.policies.lm import Transformer
from holdfast.policies.local import Local
from holdfast.policies.registry import load
from holdfast.policies.weights import Manifest, save_transformer, sync, transformer

FOLDER = "checkpoints"
TRAINER = "trainer"
BASE = "0"  # the version of the weights it came with
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Pupil:
    def __init__(self, name: str, *, seed: int, slots: int = 64, deterministic: bool = False) -> None:
        self.model, manifest = load(name)
        self._name = name
        self.local = Local(
            self.model, name=f"local/{name}", slots=slots, seed=seed, version=BASE, deterministic=deterministic
        )
        self._root = manifest.sha256  # of the weights that are learnt from
        self._at: str | None = None  # the checkpoint whose weights these are; None: those it came with
        self._phase, self._trainer = "", None  # type: tuple[str, Trainer | None]
        self._stop = threading.Event()
        self.held_s = 0.0  # that learning waited for a paused run to go on

    @property
    def version(self) -> str:
        """What its calls are recorded with: what was sampled by other weights is stale."""
        return f"local/{self._name}@{self._at or BASE}"

    def close(self) -> None:
        """No more answers and no more learning: a lesson that is going on is interrupted at its next update."""
        self._stop.set()
        self.local.close()

    def heed(self) -> None:
        """To be called between updates."""
        if self._stop.is_set():
            raise Interrupted("the run was stopped")

    def between(self, standing: Standing) -> None:
        """For whatever trains, before each piece: waits while the run is paused, Interrupted once it is to end."""
        self.heed()
        began = time.monotonic()
        standing.between()
        self.held_s += time.monotonic() - began
        self.heed()

    def be_at(self, standing: Standing) -> None:
        """Have the weights that the last lesson left, as after a restart."""
        self.be(standing.folder, _last(standing.done))

    def be(self, folder: Path, wanted: str | None) -> None:
        """Have the weights of a checkpoint, or those it came with."""
        if wanted == self._at:
            return
        self._phase, self._trainer = "", None
        if wanted is None:
            self.model, manifest = load(self._name)
        else:
            with _found(wanted):
                self.model, manifest = transformer(where(folder, wanted))
        self._root, self._at = manifest.sha256, wanted
        self.local.swap(self.model, version=wanted or BASE)

    def trainer(self, standing: Standing, phase: str, make: Callable[[Transformer], Trainer]) -> Trainer:
        """The phase's trainer: the one at work, the one that was saved, or a new one."""
        if self._phase != phase or self._trainer is None:
            trainer = make(self.model)
            made = next((update.body for update in standing.done if update.body.get("checkpoint") == self._at), {})
            if self._at is not None and made.get("phase") == phase:
                with _found(self._at):  # a new one would go on, but elsewhere than the one that was saved
                    trainer.load(where(standing.folder, self._at) / TRAINER)
            self._phase, self._trainer = phase, trainer
        self._trainer.between = partial(self.between, standing)
        return self._trainer

    def keep(self, standing: Standing, *, algorithm: str, mean_reward: float | None = None) -> Checkpoint:
        """Save what was learnt, and answer with it from now on."""
        self.heed()  # once stopped, the run may be another's, and so is its folder
        step, now, parent = len(standing.done) + 1, time.time(), self._at
        try:
            identity, sha256 = self._save(standing, step, now)
            _forget(standing, parent)
        except OSError as error:
            self.heed()
            raise _not_kept(standing, step, error) from error
        self._root, self._at = sha256, identity
        self.local.swap(self.model, version=identity)
        _give_back()
        return Checkpoint(
            id=identity,
            algorithm=algorithm,
            policy_version=identity,
            global_step=step,
            episode_count=0,
            mean_reward=mean_reward,
            artifact=Artifact(uri=f"{FOLDER}/{identity}", sha256=sha256),
            parent=parent,
            created_at=now,
        )

    def _save(self, standing: Standing, step: int, now: float) -> tuple[str, str]:
        """All of it under another name, then in place; its id, and the hash of its weights."""
        _sweep(standing, step)
        aside = standing.folder / FOLDER / f".{standing.run}-{step}.{os.getpid()}"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            manifest = Manifest(kind="transformer", shape={}, parent=self._root, step=step, created_at=now)
            saved = save_transformer(aside, self.model, manifest)
            parts = {"": saved.sha256}
            if self._trainer is not None:
                parts[TRAINER] = self._trainer.save(aside / TRAINER, created_at=now).sha256
            identity = f"{standing.run}-{step}-{saved.sha256[:8]}"
            folder = where(standing.folder, identity)
            self.heed()  # saving takes its time
            # Left by a try that was killed before it was recorded, or made by who took the run up: not to be torn.
            if not all(_holds(folder / part, sha256) for part, sha256 in parts.items()):
                shutil.rmtree(folder, ignore_errors=True)
                aside.rename(folder)
            sync(folder.parent)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return identity, saved.sha256


def _give_back() -> None:
    """To the system, what an update has freed: glibc keeps it in pieces, and a long run would hold gigabytes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


@contextmanager
def _found(checkpoint: str) -> Iterator[None]:
    try:
        yield
    except (BadInput, OSError) as error:
        why = f"{error.what}: {error.why}" if isinstance(error, BadInput) else f"{error.filename}: {error.strerror}"
        remedy = "restore it from a copy, or begin a new run"
        raise Lost(f"checkpoint {checkpoint}", why=why, remedy=remedy) from error


def _not_kept(standing: Standing, step: int, error: OSError) -> StoreError:
    what, why = f"checkpoint {step} of {standing.run} in {standing.folder / FOLDER}", error.strerror or str(error)
    if error.errno in NO_ROOM:
        return StoreFull(what, why=why, remedy="make room, and resume the run: nothing before it is lost")
    return StoreError(what, why=why, remedy="see that the folder is there and can be written, and resume the run")


def _forget(standing: Standing, parent: str | None) -> None:
    """Only the last two can be gone on from: the trainers of earlier ones are three times their size.

    Later ones than we know of are those of who took the run up from us.
    """
    if parent is not None and (own := re.fullmatch(rf"{re.escape(standing.run)}-(\d+)-[0-9a-f]+", parent)):
        for folder, step, _ in _folders(standing, ""):
            if step < int(own[1]):
                shutil.rmtree(folder / TRAINER, ignore_errors=True)


def _sweep(standing: Standing, now_at: int) -> None:
    """Away with what killed processes left half done, but not with what another is writing right now."""
    for folder, step, pid in _folders(standing, "."):
        if step < now_at or (step == now_at and not (pid and _is_alive(int(pid)))):
            shutil.rmtree(folder, ignore_errors=True)


def _folders(standing: Standing, mark: str) -> list[tuple[Path, int, str]]:
    """Of this run, with their steps; `mark` is what those that are not in place begin with."""
    name = re.compile(rf"{re.escape(mark + standing.run)}-(\d+)(?:-[0-9a-f]+|\.(\d{{1,9}}))?")
    tried = ((folder, name.fullmatch(folder.name)) for folder in (standing.folder / FOLDER).glob("*"))
    return [(folder, int(found[1]), found[2] or "") for folder, found in tried if found]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _holds(folder: Path, sha256: str) -> bool:
    try:
        return weights.load(folder)[1].sha256 == sha256
    except (BadInput, OSError):
        return False


def _last(done: Iterable[StepRecord]) -> str | None:
    """The newest checkpoint."""
    found: Any = None
    for update in done:
        found = update.body.get("checkpoint", found)
    return None if found is None else str(found)


def where(folder: Path, checkpoint: str) -> Path:
    return folder / FOLDER / checkpoint
