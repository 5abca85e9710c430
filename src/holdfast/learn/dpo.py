"""Direct preference optimisation: of two answers to one prompt the better one becomes likelier than the other.

L = −log σ(β·m),  m = (log π(y_w) − log π_ref(y_w)) − (log π(y_l) − log π_ref(y_l));  Rafailov et al. 2023,
arXiv:2305.18290. Its gradient is −β·σ(−β·m)·(∇log π(y_w) − ∇log π(y_l)): each update measures m and gives it to the
trainer as advantages, so that pairs are cut into pieces, clipped and resumed as everything else. The reference is the
model that it all began with. Pairs are rows, or rollouts of one task with different rewards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.algorithm import LearnContext
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.learn.batch import Samples, reward, trained_mask
from holdfast.learn.objective import Objective
from holdfast.learn.sft import SFT, Dataset, SkippedRows, Tokenised, recorded
from holdfast.learn.train import Settings, Trainer, Update
from holdfast.policies.chat_template import ChatTemplate

PAIRS_ONLY = Objective(aggregate="sequence_norm_constant", constant=0.5)  # two sequences a pair: the mean over pairs
NO_PAIR = "its task has no two succeeded train attempts with different rewards"
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class DPO(SFT):
    """How a model learns from preferences. A batch counts pairs; what is held out is measured by the same loss."""

    phase: ClassVar[str] = "dpo"
    is_pairs: ClassVar[bool] = True

    lr: float = 1e-5
    epochs: int = 1
    beta: float = 0.1  # how hard it is held to where it began

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.beta < float("inf"):
            raise BadInput(f"dpo.beta = {self.beta}", why="must be finite and above 0", remedy="0.1 is usual")

    def _settings(self, total: int) -> Settings:
        return replace(super()._settings(total), objective=PAIRS_ONLY)

    def _notes(self, reader: Trainer, data: Dataset, ctx: LearnContext) -> Any:
        """Log-probs of whole answers under the reference."""
        parts = {"train": data.train, "held_out": data.held_out}
        return {name: [] if some is None else sums(reader, some).tolist() for name, some in parts.items()}

    def _step(
        self, trainer: Trainer, batch: Samples, notes: Any, places: NDArray[np.int64]
    ) -> tuple[Update, float | None]:
        if not len(batch):  # a Poisson sample may be empty; the noise is added all the same
            return trainer.step(replace(batch, weights=None)), None
        margin = self._margins(trainer, batch, np.asarray(notes["train"])[places])
        update = trainer.step(with_advantages(batch, self.beta, margin))
        return update, None if self.privacy is not None else float(preference_loss(self.beta, margin).mean())

    def _held_out(self, trainer: Trainer, data: Dataset, notes: Any) -> float | None:
        if data.held_out is None:
            return None
        margin = self._margins(trainer, data.held_out, np.asarray(notes["held_out"]))
        return float(preference_loss(self.beta, margin).mean())

    def _margins(self, trainer: Trainer, batch: Samples, reference: Floats) -> Floats:
        gain = sums(trainer, batch) - reference
        return gain[0::2] - gain[1::2]


def preference_loss(beta: float, margin: Floats) -> Floats:
    """−log σ(β·m), of each pair."""
    found: Floats = np.logaddexp(0.0, -beta * margin)
    return found


def with_advantages(batch: Samples, beta: float, margin: Floats) -> Samples:
    """The pairs with the advantages whose policy gradient is that of the loss; chosen and rejected take turns."""
    force = beta / (1.0 + np.exp(np.clip(beta * margin, -500.0, 500.0)))
    each = np.repeat(np.stack((force, -force), axis=1).ravel(), np.diff(batch.bounds))
    return replace(batch, weights=None, advantages=np.where(batch.action_mask, each, 0.0).astype(np.float32))


def sums(trainer: Trainer, batch: Samples) -> Floats:
    """log π of each answer: the sum over its tokens."""
    marks = trained_mask(batch)
    owner = np.repeat(np.arange(len(batch)), np.diff(batch.bounds))
    logp = trainer.logprobs(batch)[marks].astype(np.float64)
    found: Floats = np.bincount(owner[marks], weights=logp, minlength=len(batch)).astype(np.float64)
    return found


# Pairs of recorded attempts ------------------------------------------------------------------------------------------


def recorded_pairs(
    template: ChatTemplate,
    experiences: Iterable[Experience],
    *,
    longest: int,
    vocabulary: int,
    pause_point: Callable[[], None] = lambda: None,
) -> tuple[list[Tokenised], SkippedRows]:
    """Of each task the best attempt and the worst, where they differ in reward; one pair a task."""
    groups: dict[str, list[Experience]] = defaultdict(list)
    for experience in experiences:
        groups[experience.task].append(experience)
    found: list[Tokenised] = []
    skipped = SkippedRows()
    for group in groups.values():
        made, left = recorded(
            template, _ends(group), least=None, longest=longest, vocabulary=vocabulary, pause_point=pause_point
        )
        skipped = skipped.and_also(left)
        if len(made) == 2 and all(len(tokenised.sequences) == 1 for tokenised in made):
            found.append(Tokenised(sequences=[*made[0].sequences, *made[1].sequences]))
        elif not left.total:
            reason = NO_PAIR if not made else "it is more than one sequence of tokens"
            skipped = skipped.and_also(SkippedRows(counts={reason: len(group)}, first={reason: group[0].rollout}))
    return found, skipped


def _ends(group: list[Experience]) -> list[Experience]:
    """The best and the worst that succeeded; none where they are as good as each other."""
    usable = [
        experience
        for experience in group
        if experience.state is RolloutState.SUCCEEDED and experience.split is Split.TRAIN
    ]
    scored = [(worth, experience) for experience in usable if (worth := reward(experience)) is not None]
    best = max(scored, key=lambda pair: pair[0], default=None)
    worst = min(scored, key=lambda pair: pair[0], default=None)
    return [] if best is None or worst is None or best[0] == worst[0] else [best[1], worst[1]]
