"""GRPO as an algorithm: several attempts at each of some tasks; what did better than the others becomes likelier.

What the data gates put aside is not learnt from, but what it cost counts. Where nothing gives a gradient nothing moves,
the multiplier of a constraint neither, and the audit says why. A step that was taken back leaves no candidate.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from holdfast.contracts.algorithm import SWITCHED_OFF, AlgorithmState, Batch, LearnContext, Work
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import Split
from holdfast.learn import quality
from holdfast.learn.audit import audit
from holdfast.learn.batch import SampleFilter
from holdfast.learn.checkpoints import Learner
from holdfast.learn.constrain import Constraint, CostPrice, describe, from_dict, mean_cost
from holdfast.learn.grpo import OBJECTIVE, Credit, Grpo, compare
from holdfast.learn.metrics import Update
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.learn.turns import fitted
from holdfast.policies.model import Model

PHASE = "practice"
INLINE = 200  # rollouts whose reasons stand in the step's own result
MULTIPLIER = "multiplier"  # where a trainer keeps it


@dataclass(frozen=True, kw_only=True)
class GRPO:
    """Group-relative policy optimisation of a model whose weights are ours."""

    lr: float = 3e-4
    steps: int = 8
    tasks: int = 16  # in each step, in the order they are given
    samples: int = 8  # attempts at each task
    turn_credit: float = 0.0  # share of a turn's own reward in its credit; the rest is the outcome's
    compare: Grpo | None = None  # all of how attempts are compared, in place of `turn_credit`
    credit: Credit | None = None  # from the attempts at one task the advantage of each, in place of the group's own
    budget_s: float | None = None  # of learning, in each iteration; None: as much as it takes
    constraint: Constraint | None = None
    held_out: Sequence[Any] = ()  # inputs that must not be among the tasks
    seed: int = 0
    phase: str = PHASE  # the word that names its rollouts
    measure: Callable[[Sequence[Experience]], Mapping[str, Any]] | None = None  # more figures of each batch
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("steps", "tasks"):
            if getattr(self, name) < 1:
                raise BadInput(f"grpo.{name} = {getattr(self, name)}", why="must be at least 1")
        if self.samples < 2:
            raise BadInput(f"grpo.samples = {self.samples}", why="attempts are compared: there must be at least 2")

    def start(self, base: Policy) -> AlgorithmState:
        if not isinstance(base, Model):
            why = "its weights are out of reach"
            raise BadInput(f"policy {base.version}", why=why, remedy="give a local model, or improve its prompt")
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        if state.step >= self.steps or self._is_spent(state) or not tasks:
            return ()
        begun = (state.iteration * self.steps + state.step) * self.tasks
        named = f"{self.phase}-{state.iteration}-{state.step}"
        return [
            Work(
                name=f"{named}-{turn}-{attempt}",
                input=tasks[(begun + turn) % len(tasks)],
                policy=state.policy,
                group=f"{named}-{turn}",
                split=Split.TRAIN,
            )
            for turn in range(self.tasks)
            for attempt in range(self.samples)
        ]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        try:
            return self._learn(state, ctx.experiences(batch), ctx)
        except BaseException:
            self.learner.forget()
            raise

    def _is_spent(self, state: AlgorithmState) -> bool:
        return self.budget_s is not None and float(state.data.get("learning_s", 0.0)) >= self.budget_s

    def _learn(self, state: AlgorithmState, experiences: Sequence[Experience], ctx: LearnContext) -> AlgorithmState:
        began, phase = time.perf_counter(), f"{self.phase} {state.iteration + 1}"
        clean, findings = sift(experiences, self.held_out)
        told: dict[str, Any] = {"phase": phase, "iteration": state.iteration, "reward": mean_reward(experiences)}
        told |= {"quality": [encode(one) for one in findings], "rollouts": len(experiences)}
        if self.measure is not None:
            told |= self.measure(experiences)
        if not ctx.features.learning:
            return state.next(metrics={**told, "skipped": SWITCHED_OFF})
        assert isinstance(state.policy, Model)
        model = self.learner.load(state.policy, ctx.files)
        trainer = self.learner.train(phase, self._trainer, ctx.files, is_new=state.data.get("trainer") != phase)
        trainer.between = ctx.check
        intake = fitted(SampleFilter(run=ctx.run, versions=(state.policy.version,)), model)
        held = price = None
        if self.constraint is not None:
            mean = mean_cost(experiences, intake, self.constraint.cost)
            held = from_dict(trainer.beside.get(MULTIPLIER)).follow(mean, self.constraint)
            price = CostPrice(cost=self.constraint.cost, multiplier=held.value)
            told["constraint"] = describe(self.constraint, held, mean)
        compared = compare(clean, intake, self.compare or Grpo(mix=self.turn_credit), price, self.credit)
        update, data = None, dict[str, Any]()
        candidate: Model | None = None
        if compared.samples is not None:
            if held is not None:
                trainer.beside[MULTIPLIER] = held.to_dict()
            update = trainer.step(compared.samples)
            told["update"] = update.to_dict()
            candidate = self._kept(update, ctx, told["reward"])
        if candidate is not None:
            told["checkpoint"], data["trainer"] = candidate.checkpoint, phase
        found = audit(
            clean,
            compared.reasons,
            compared.samples,
            breaks=compared.breaks,
            update=update,
            constraint=told.get("constraint"),
        )
        told["audit"] = brief(found.to_dict(), ctx)
        spent = round(time.perf_counter() - began - ctx.held_s, 3)  # a pause is nobody's learning
        data["learning_s"] = round(float(state.data.get("learning_s", 0.0)) + spent, 3)
        return state.next(candidate=candidate, metrics={**told, "learning_s": spent}, **data)

    def _kept(self, update: Update, ctx: LearnContext, reward: float | None) -> Model | None:
        """The candidate; None where the step was taken back: the next one begins as the last one that was kept did,
        in this process or in another."""
        if update.restored is not None:
            self.learner.forget()
            return None
        return self.learner.save(ctx, algorithm="grpo", mean_reward=reward)

    def _trainer(self, model: nn.Module) -> Trainer:
        pace = OptimizerConfig(learning_rate=self.lr, schedule="linear", total=max(1, self.steps))
        return Trainer(model, Settings(objective=OBJECTIVE, pace=pace), seed=self.seed)


def brief(told: Mapping[str, Any], ctx: LearnContext) -> dict[str, Any]:
    """The same, small enough for a step's result: the reasons of many rollouts are kept beside it."""
    reasons = told.get("reasons", {})
    return dict(told) if len(reasons) <= INLINE else {**told, "reasons": {"blob": ctx.keep(reasons)}}


def sift(
    experiences: Sequence[Experience], held_out: Iterable[Any] = ()
) -> tuple[list[Experience], tuple[Finding, ...]]:
    """What may be learnt from, and what the data gates say of that; what they put aside is only counted.

    A gate later asks what was learnt from: that some of it had to be put aside is worth knowing, and no reason to stay
    closed.
    """
    kept_out = list(held_out)
    aside = quality.audit(experiences, held_out=kept_out).quarantined
    clean = [one for one in experiences if one.rollout not in aside]
    first = next((f"{rollout}: {', '.join(names)}" for rollout, names in aside.items()), "")
    counted = Finding(
        name="put_aside", severity="warning", count=len(aside), of=len(experiences), detail=first, blocks=False
    )
    return clean, (*quality.audit(clean, held_out=kept_out).findings, counted)


def mean_reward(experiences: Sequence[Experience]) -> float | None:
    totals = [one.sheet.total for one in experiences if one.sheet is not None and one.sheet.total is not None]
    return sum(totals) / len(totals) if totals else None
