"""Supervised fine-tuning: examples in tokens, some updates at a time, with the loss on what is held out.

Every call is a piece of work between two checkpoints, and a function of what is recorded before it: a run that was
killed goes on from the last checkpoint and comes to the same bytes. Where the examples come from is `examples`'
business, and how pieces become a run the pipeline's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts.algorithm import SWITCHED_OFF, AlgorithmState, LearnContext
from holdfast.contracts.errors import BadInput
from holdfast.learn.batch import Samples, learnt
from holdfast.learn.checkpoints import Learner
from holdfast.learn.examples import Dataset
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies.chat_template import ByteTemplate, ChatTemplate
from holdfast.policies.lm import Transformer
from holdfast.policies.model import Model

PHASE = "sft"
PIECES = 10  # checkpoints that a run leaves where nothing else is said
FEWEST = 10  # updates between two of them
TAKEN_BACK = 3  # updates in a row that were taken back: it diverges
RECENT = 5  # updates whose loss is the loss now
TOO_FAR = (2.0, 1.0)  # so is a loss above the first one times this, plus this


@dataclass(frozen=True, kw_only=True)
class SFT:
    """How a model learns from examples. A batch counts sequences; the loss is the mean over the assistant's tokens."""

    lr: float = 1e-4
    epochs: int = 3
    batch: int = 16
    max_tokens: int | None = None  # of one example; None: what the model can read
    held_out: float = 0.1  # share of the examples that only measure
    warm_up: float = 0.05  # share of the updates; afterwards the rate falls to a tenth, by a cosine
    save_every: int | None = None  # updates between two checkpoints; None: ten of them in a run
    skip: float = 0.1  # share of the examples that may be left out because they cannot be used
    seed: int = 0
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "max_tokens", "save_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"sft.{name} = {value}", why="must be at least 1")
        for name in ("held_out", "warm_up", "skip"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise BadInput(f"sft.{name} = {getattr(self, name)}", why="is a share: at least 0 and below 1")
        if not 0.0 < self.lr < float("inf"):
            raise BadInput(f"sft.lr = {self.lr}", why="must be finite and above 0")

    def record(self) -> dict[str, Any]:
        """All that decides what is learnt; plain JSON, and `SFT(**record)` is an equal one."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "learner"}

    # How far it is ---------------------------------------------------------------------------------------------------

    def updates(self, sequences: int) -> int:
        return self.epochs * ceil(sequences / self.batch)

    def pieces(self, sequences: int) -> int:
        """How many calls of `learn` there are, each with a checkpoint at its end."""
        return ceil(self.updates(sequences) / self._every(sequences))

    def _every(self, sequences: int) -> int:
        return self.save_every or max(FEWEST, ceil(self.updates(sequences) / PIECES))

    # The pieces ------------------------------------------------------------------------------------------------------

    def template(self, policy: Model, ctx: LearnContext) -> tuple[ChatTemplate, int, int]:
        """How the model writes a conversation, and how many tokens it can read and has."""
        model = self.learner.load(policy, ctx.files)
        shape = model.shape if isinstance(model, Transformer) else model
        template = ByteTemplate() if isinstance(model, Transformer) else model.template
        return template, min(self.max_tokens or shape.context, shape.context), shape.vocabulary

    def begin(self, policy: Model, data: Dataset, ctx: LearnContext) -> AlgorithmState:
        """Before anything is learnt: the loss on what is held out."""
        loss = None if data.held_out is None else self._loss(policy, data.held_out, ctx)
        return AlgorithmState(base=policy, metrics={"phase": PHASE, HELD_OUT_LOSS: loss})

    def learn(self, state: AlgorithmState, data: Dataset, ctx: LearnContext) -> AlgorithmState:
        """The updates up to the next checkpoint."""
        if not ctx.features.learning:
            return state.next(metrics={"phase": PHASE, "skipped": SWITCHED_OFF})
        try:
            return self._learn(state, data, ctx)
        except BaseException:
            self.learner.forget()
            raise

    def _learn(self, state: AlgorithmState, data: Dataset, ctx: LearnContext) -> AlgorithmState:
        count = len(data.train)
        every, total = self._every(count), self.updates(count)
        assert isinstance(state.policy, Model)
        self.learner.load(state.policy, ctx.files)
        is_new = state.data.get("trainer") != PHASE
        trainer = self.learner.train(PHASE, lambda model: self._trainer(model, total), ctx.files, is_new=is_new)
        trainer.pause_point = ctx.check
        first = state.step * every
        losses: list[float] = []
        tokens = taken_back = in_a_row = 0
        for number in range(first, min(first + every, total)):
            update = trainer.step(data.train.pick(self._batch(number, count)))
            tokens += update.tokens
            in_a_row = in_a_row + 1 if update.restored else 0
            taken_back += bool(update.restored)
            if in_a_row == TAKEN_BACK:
                raise self._diverged(f"{in_a_row} updates in a row were taken back: {update.restored}")
            if update.loss is not None:
                losses.append(update.loss)
        began = self._check_loss(state.data.get("first_loss"), losses)
        held_out = None if data.held_out is None else _mean_loss(trainer, data.held_out)
        candidate = self.learner.save(ctx, algorithm=PHASE)
        told = {
            "phase": PHASE,
            "updates": min(first + every, total),
            "of": total,
            "loss": float(np.mean(losses)) if losses else None,
            HELD_OUT_LOSS: held_out,
            "tokens": tokens,
            "taken_back": taken_back,
            "checkpoint": candidate.checkpoint,
        }
        return state.next(candidate=candidate, metrics=told, trainer=PHASE, first_loss=began)

    def _check_loss(self, began: float | None, losses: list[float]) -> float | None:
        """The loss that it all began with; BadInput where the last ones are far above it."""
        if not losses:
            return began
        began, now = losses[0] if began is None else began, float(np.mean(losses[-RECENT:]))
        if now > TOO_FAR[0] * began + TOO_FAR[1]:
            raise self._diverged(f"the loss went from {began:.3g} to {now:.3g} nats a token")
        return began

    def _batch(self, number: int, count: int) -> NDArray[np.int64]:
        """Which sequences an update learns from: each pass has an order of its own, and all of them."""
        a_pass = ceil(count / self.batch)
        order = np.random.default_rng((self.seed, 2, number // a_pass)).permutation(count)
        place = number % a_pass * self.batch
        return order[place : place + self.batch]

    def _trainer(self, model: nn.Module, total: int) -> Trainer:
        warm_up = min(int(self.warm_up * total), total - 1)
        pace = OptimizerConfig(learning_rate=self.lr, schedule="cosine", warm_up=warm_up, total=total)
        return Trainer(model, Settings(pace=pace), seed=self.seed)

    def _loss(self, policy: Model, held_out: Samples, ctx: LearnContext) -> float:
        model = self.learner.load(policy, ctx.files)
        reader = Trainer(model, Settings(), seed=self.seed)
        reader.pause_point = ctx.check
        return _mean_loss(reader, held_out)

    def _diverged(self, why: str) -> BadInput:
        return BadInput(f"sft.lr = {self.lr:g}", why=f"it diverges: {why}", remedy="begin anew with a smaller rate")


HELD_OUT_LOSS = "held_out_loss"  # nats a token of the assistant's


def _mean_loss(trainer: Trainer, samples: Samples) -> float:
    marks = learnt(samples)
    return float(-trainer.logprobs(samples)[marks].mean(dtype=np.float64))
