"""A local model that answers calls and can be taught: which weights it has now, and the checkpoints it leaves.

A checkpoint is a folder of weights; the newest also holds what its trainer needs to go on bit for bit. What is taught,
and when, is decided by the lessons (`rl`, `tooluse.course`); that a checkpoint exists is recorded by the loop.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from holdfast.collect.plan import Standing
from holdfast.contracts.errors import Interrupted
from holdfast.contracts.policy import Artifact, Checkpoint
from holdfast.contracts.run import LearnUpdate
from holdfast.learn.train import Trainer
from holdfast.policies.lm import Transformer
from holdfast.policies.local import Local
from holdfast.policies.sprout.shelf import load
from holdfast.policies.weights import Manifest, save_transformer, transformer

FOLDER = "checkpoints"
TRAINER = "trainer"
BASE = "0"  # the version of the weights it came with


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

    def be_at(self, standing: Standing) -> None:
        """Have the weights that the last lesson left, as after a restart."""
        wanted = _last(standing.done)
        if wanted == self._at:
            return
        self._phase, self._trainer = "", None
        self.model, manifest = load(self._name) if wanted is None else transformer(where(standing.folder, wanted))
        self._root, self._at = manifest.sha256, wanted
        self.local.swap(self.model, version=wanted or BASE)

    def trainer(self, standing: Standing, phase: str, make: Callable[[Transformer], Trainer]) -> Trainer:
        """The phase's trainer: the one at work, the one that was saved, or a new one."""
        if self._phase != phase or self._trainer is None:
            self._phase, self._trainer = phase, make(self.model)
            made = next((update.body for update in standing.done if update.body.get("checkpoint") == self._at), {})
            if self._at is not None and made.get("phase") == phase:
                saved = where(standing.folder, self._at) / TRAINER
                if saved.is_dir():
                    self._trainer.load(saved)
        return self._trainer

    def keep(self, standing: Standing, *, algorithm: str, mean_reward: float | None = None) -> Checkpoint:
        """Save what was learnt, and answer with it from now on."""
        self.heed()  # once stopped, the run may be another's, and so is its folder
        step, now = len(standing.done) + 1, time.time()
        parent = _last(standing.done)
        aside = standing.folder / FOLDER / f".{standing.run}-{step}"
        shutil.rmtree(aside, ignore_errors=True)
        saved = save_transformer(
            aside,
            self.model,
            Manifest(kind="transformer", shape={}, parent=self._root, step=step, created_at=now),
        )
        if self._trainer is not None:
            self._trainer.save(aside / TRAINER, created_at=now)
        identity = f"{standing.run}-{step}-{saved.sha256[:8]}"
        folder = standing.folder / FOLDER / identity
        shutil.rmtree(folder, ignore_errors=True)  # of a try that was killed before it was recorded
        aside.rename(folder)
        _sync(folder.parent)
        self._forget(standing, but=(parent, identity))
        self._root, self._at = saved.sha256, identity
        self.local.swap(self.model, version=identity)
        return Checkpoint(
            id=identity,
            algorithm=algorithm,
            policy_version=identity,
            global_step=step,
            episode_count=0,
            mean_reward=mean_reward,
            artifact=Artifact(uri=f"{FOLDER}/{identity}", sha256=saved.sha256),
            parent=parent,
            created_at=now,
        )

    @staticmethod
    def _forget(standing: Standing, *, but: Iterable[str | None]) -> None:
        """Only the last two can be gone on from: the trainers of earlier ones are three times their size."""
        for folder in (standing.folder / FOLDER).glob(f"{standing.run}-*"):
            if folder.name not in but:
                shutil.rmtree(folder / TRAINER, ignore_errors=True)


def _last(done: Iterable[LearnUpdate]) -> str | None:
    """The newest checkpoint."""
    found: Any = None
    for update in done:
        found = update.body.get("checkpoint", found)
    return None if found is None else str(found)


def _sync(folder: Path) -> None:
    """What was renamed in it is on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def where(folder: Path, checkpoint: str) -> Path:
    return folder / FOLDER / checkpoint
