"""Checkpoints of a model that learns, on disk: weights and, of the last two, what their trainer needs to go on.

A checkpoint is a folder that appears whole or not at all. That it exists is recorded by whoever records the step that
made it; what no record names is swept away.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from torch import nn

from holdfast.contracts.algorithm import LearnContext
from holdfast.contracts.artifacts import Artifact, Artifacts
from holdfast.contracts.errors import StoreError, StoreFull
from holdfast.contracts.policy import FOLDER, Checkpoint
from holdfast.contracts.run import is_alive, place_of_processes
from holdfast.learn.critic import Critic
from holdfast.learn.train import Trainer
from holdfast.policies import model, weights
from holdfast.policies.model import Model
from holdfast.policies.reward_model import HEAD, KIND, MIDDLE
from holdfast.policies.weights import Manifest

TRAINER, CRITIC = "trainer", "critic"  # folders within a checkpoint's; the critic's is small, and stays
Write = Callable[[Path, int, float], str]  # into a folder, as this step, at this time; the hash of the weights there
ABANDONED_S = 600.0  # without a change: nobody writes there any more
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Learner:
    """The model in memory and its trainer, kept from one step to the next: only a restart reads them from disk."""

    def __init__(self) -> None:
        self._policy: Model | None = None
        self._sha256 = ""
        self._phase = ""
        self.model: Any = None
        self.trainer: Trainer | None = None

    def load(self, policy: Model, files: Artifacts) -> Any:
        """Loads the weights of a policy; Lost where a checkpoint is missing or damaged."""
        if policy != self._policy:
            self.forget()
            self.model, self._sha256 = model.load(policy, files)
            self._policy = policy
        return self.model

    def forget(self) -> None:
        """Drops the state in memory after a step that did not finish: it is not what is recorded."""
        self._policy, self.model, self.trainer, self._phase = None, None, None, ""

    @contextmanager
    def undone_on_failure(self) -> Iterator[None]:
        """Forgets the state in memory where the block fails."""
        try:
            yield
        except BaseException:
            self.forget()
            raise

    def train(self, phase: str, make: Callable[[nn.Module], Trainer], files: Artifacts, *, is_new: bool) -> Trainer:
        """Gives a new trainer where a phase begins, else the one in memory or the one saved with the checkpoint.

        The critic of a new one knows what the checkpoint's knew."""
        assert self._policy is not None
        if is_new or self.trainer is None or self._phase != phase:
            trainer = make(self.model)
            if is_new:
                if isinstance(trainer.critic, Critic):
                    self._recall(trainer.critic, files)
            else:
                # A new one would go on, but elsewhere than the one that was saved.
                saved = self._policy.folder(files) / TRAINER
                with model.lost_if_damaged(self._policy.checkpoint):
                    trainer.load(saved)
            self.trainer, self._phase = trainer, phase
        return self.trainer

    def _recall(self, critic: Critic, files: Artifacts) -> None:
        assert self._policy is not None
        folder = self._policy.folder(files) / CRITIC
        if folder.is_dir():
            with model.lost_if_damaged(self._policy.checkpoint):
                tensors, manifest = weights.load(folder)
                critic.restore(tensors, manifest.notes)

    def save(
        self,
        ctx: LearnContext,
        *,
        algorithm: str,
        mean_reward: float | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Model:
        """Saves what was learnt, to be recorded with the step; gives the new policy."""
        assert self._policy is not None
        given: dict[str, Any] = {"algorithm": algorithm, "mean_reward": mean_reward, "metadata": metadata or {}}
        identity, self._sha256 = save(ctx, self._write, parent=self._policy.checkpoint, **given)
        self._policy = self._policy.at(identity)
        _give_back()
        return self._policy

    def _write(self, folder: Path, step: int, now: float) -> str:
        assert self._policy is not None
        manifest = Manifest(kind="transformer", shape={}, parent=self._sha256, step=step, created_at=now)
        saved = model.save(folder, self.model, self._policy, manifest)
        if self.trainer is not None:
            self.trainer.save(folder / TRAINER, created_at=now)
            if isinstance(self.trainer.critic, Critic):
                tensors, notes = self.trainer.critic.state()
                kept = Manifest(kind=CRITIC, shape={}, parent=saved.sha256, step=step, created_at=now, notes=notes)
                weights.save(folder / CRITIC, tensors, kept)
            elif MIDDLE in self.trainer.beside and self.trainer.critic is not None:
                notes = {MIDDLE: self.trainer.beside[MIDDLE]}
                kept = Manifest(kind=KIND, shape={}, parent=saved.sha256, step=step, created_at=now, notes=notes)
                weights.save(folder / HEAD, self.trainer.critic.state_dict(), kept)
        return saved.sha256


def save(
    ctx: LearnContext,
    write: Write,
    *,
    parent: str | None,
    algorithm: str,
    mean_reward: float | None = None,
    episodes: int = 0,
    metadata: Mapping[str, Any] | None = None,
) -> tuple[str, str]:
    """Writes a checkpoint and hands it to the context, to be recorded with the step; gives its id and weights' hash."""
    ctx.check()  # once stopped, the run may be another's, and so is its folder
    now, step = ctx.now(), _number(ctx, parent) + 1  # follows from the parent alone: made anew, it has the same name
    try:
        identity, artifact = _put(ctx, write, step, now)
        _forget(ctx, parent)
    except OSError as error:
        ctx.check()
        raise _not_kept(ctx, step, error) from error
    ctx.add_checkpoint(
        Checkpoint(
            id=identity,
            algorithm=algorithm,
            policy_version=identity,
            global_step=step,
            episode_count=episodes,
            mean_reward=mean_reward,
            artifact=artifact,
            parent=parent,
            created_at=now,
            metadata=metadata or {},
        )
    )
    return identity, artifact.sha256


def _put(ctx: LearnContext, write: Write, step: int, now: float) -> tuple[str, Artifact]:
    """Writes the checkpoint under a temporary name, then puts it among the artifacts."""
    _sweep(ctx, step)
    aside = ctx.folder / FOLDER / f".{ctx.run}-{step}.{os.getpid()}-{place_of_processes()}"
    shutil.rmtree(aside, ignore_errors=True)
    try:
        identity = f"{ctx.run}-{step}-{write(aside, step, now)[:8]}"
        ctx.check()  # saving takes its time
        return identity, ctx.files.put(aside, f"{FOLDER}/{identity}")
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _give_back() -> None:
    """Returns freed memory to the system; glibc would keep it, and a long run would hold gigabytes."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _not_kept(ctx: LearnContext, step: int, error: OSError) -> StoreError:
    what, why = f"checkpoint {step} of {ctx.run} in {ctx.folder / FOLDER}", error.strerror or str(error)
    if error.errno in NO_ROOM:
        return StoreFull(what, why=why, remedy="make room, and resume the run: nothing before it is lost")
    return StoreError(what, why=why, remedy="see that the folder is there and can be written, and resume the run")


def _forget(ctx: LearnContext, parent: str | None) -> None:
    """Deletes trainer states older than the last two checkpoints: they are three times the size of the weights.

    Later folders belong to the process that took over the run, and are kept."""
    for folder, step, _ in _folders(ctx, ""):
        if step < _number(ctx, parent):
            shutil.rmtree(folder / TRAINER, ignore_errors=True)


def _number(ctx: LearnContext, checkpoint: str | None) -> int:
    """The number of a checkpoint of this run; 0 for any other."""
    own = None if checkpoint is None else re.fullmatch(rf"{re.escape(ctx.run)}-(\d+)-[0-9a-f]+", checkpoint)
    return int(own[1]) if own else 0


def _sweep(ctx: LearnContext, now_at: int) -> None:
    """Deletes what killed processes left unfinished, but not what a living one is writing."""
    for folder, step, owner in _folders(ctx, "."):
        if step < now_at or (step == now_at and not _is_being_written(folder, owner)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_being_written(folder: Path, owner: str) -> bool:
    """By its process, where that is one of ours to see; of another machine or container, by the time of its files."""
    pid, _, place = owner.partition("-")
    if place in ("", place_of_processes()):
        return bool(pid) and is_alive(int(pid))
    with suppress(OSError):
        return time.time() - max(path.stat().st_mtime for path in (folder, *folder.iterdir())) < ABANDONED_S
    return False


def _folders(ctx: LearnContext, mark: str) -> list[tuple[Path, int, str]]:
    """The folders of this run's checkpoints with step and owner; `mark` is the prefix of unfinished ones."""
    name = re.compile(rf"{re.escape(mark + ctx.run)}-(\d+)(?:-[0-9a-f]+)?(?:\.(\d{{1,9}}(?:-[0-9a-f]{{6}})?))?")
    tried = ((folder, name.fullmatch(folder.name)) for folder in (ctx.folder / FOLDER).glob("*"))
    return [(folder, int(match[1]), match[2] or "") for folder, match in tried if match]
