"""What an algorithm is given when it is told of a batch, as a step gives it, without a store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.contracts.algorithm import Algorithm, AlgorithmState, Batch
from holdfast.contracts.errors import Interrupted
from holdfast.contracts.experience import Experience
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.policy import Checkpoint
from holdfast.store.artifacts import FolderArtifacts
from tests.workloads.scene import RUN


@dataclass
class Telling:
    """A LearnContext whose batches are made up."""

    folder: Path
    features: Features = ALL_ON
    run: str = RUN
    seed: int = 0
    held_s: float = 0.0
    given: Sequence[Experience] = ()
    checkpoints: list[Checkpoint] = field(default_factory=list)
    blobs: list[Any] = field(default_factory=list)
    is_stopped: bool = False
    hook: Callable[[], None] = lambda: None

    @property
    def files(self) -> FolderArtifacts:
        return FolderArtifacts(self.folder)

    def experiences(self, batch: Batch) -> list[Experience]:
        return list(self.given)

    def check(self) -> None:
        self.hook()
        if self.is_stopped:
            raise Interrupted("the run was stopped")

    def add_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.checkpoints.append(checkpoint)

    def save_blob(self, value: Any) -> str:
        self.blobs.append(value)
        return f"blob-{len(self.blobs)}"

    def now(self) -> float:
        return 0.0

    def tell(self, algorithm: Algorithm, state: AlgorithmState, given: Sequence[Experience]) -> AlgorithmState:
        """The state as it is read again from the record of its step."""
        self.given = given
        found = algorithm.tell(state, Batch(run=self.run, step="s", count=len(given)), self)
        return AlgorithmState.from_record(json.loads(json.dumps(found.record(), allow_nan=False)))
