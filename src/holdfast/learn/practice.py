"""GRPO as an algorithm: several attempts at each of some tasks; what did better than the others becomes likelier.

Data that the gates put aside is not learnt from, but its cost counts. Where nothing gives a gradient, nothing moves,
and the audit (`BatchAudit`) says for every rollout why. A step that was taken back leaves no candidate. `Stages` runs
several algorithms one after another.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from torch import nn

from holdfast.contracts.algorithm import SWITCHED_OFF, Algorithm, AlgorithmState, Asked, Batch, LearnContext, Work
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import Split
from holdfast.learn import quality
from holdfast.learn.batch import Break, SampleFilter, Samples, SkipReason, counted, fitted, learnt
from holdfast.learn.checkpoints import Learner
from holdfast.learn.constrain import Constraint, CostPrice, describe, from_dict, mean_cost
from holdfast.learn.grpo import OBJECTIVE, Credit, Grpo, compare
from holdfast.learn.train import OptimizerConfig, Settings, Trainer, Update
from holdfast.policies.model import Model

DOMINANT = 0.9  # share of the reward's variance above which the other signals hardly count


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAudit:
    """What came of each rollout of a batch."""

    SCHEMA: ClassVar[int] = 1

    rollouts: int
    taught: int  # gave a gradient
    reasons: Mapping[str, str]  # by rollout, of those that gave none
    counts: Mapping[str, int]  # by reason
    samples: int
    tokens: int  # decided and weighed
    idle_tokens: int  # decided, read and without any weight
    breaks: Mapping[str, int]  # prompts that did not go on from what was there, by kind
    shares: Mapping[str, float]  # of the reward's variance, by signal; they add up to 1
    dominant: str | None  # the one signal that nearly all of the variance comes from
    zero_gradient: bool | None  # exactly no gradient came of it; None: nothing was updated
    unmoved: tuple[str, ...] = ()  # always empty: older readers expect the key
    constraint: Mapping[str, Any] | None = None  # what was held to a budget, and at which price

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit(
    experiences: Sequence[Experience],
    reasons: Mapping[str, SkipReason | None],
    samples: Samples | None,
    *,
    breaks: Mapping[Break, int] | None = None,
    update: Update | None = None,
    constraint: Mapping[str, Any] | None = None,
) -> BatchAudit:
    """What came of one batch."""
    found = {rollout: str(reason) for rollout, reason in reasons.items() if reason is not None}
    weighed = idle = 0
    if samples is not None:
        is_weighed = learnt(samples) & _weighed(samples)
        weighed, idle = int(is_weighed.sum()), int((samples.decided & ~is_weighed).sum())
        found |= _silent(samples, is_weighed, found)
    known = {experience.rollout for experience in experiences} | set(reasons)
    shares = dominance([one for one in experiences if one.rollout not in found])
    top = max(shares, key=lambda name: shares[name], default=None)
    return BatchAudit(
        rollouts=len(known),
        taught=len(known - set(found)),
        reasons=found,
        counts=dict(Counter(found.values()).most_common()),
        samples=0 if samples is None else len(samples),
        tokens=weighed,
        idle_tokens=idle,
        breaks={str(kind): count for kind, count in (breaks or {}).items()},
        shares=shares,
        dominant=top if top is not None and len(shares) > 1 and shares[top] > DOMINANT else None,
        zero_gradient=None if update is None else update.grad_norm == 0.0,
        constraint=constraint,
    )


def dominance(experiences: Iterable[Experience]) -> dict[str, float]:
    """cov(signal, total) / var(total) for each signal by its name; empty where the total does not vary.

    The shares add up to 1; one that works against the others is below 0."""
    sheets: list[dict[str, float]] = []
    for experience in experiences:
        sums: dict[str, float] = {}
        for signal in counted(experience, None):
            sums[signal.name] = sums.get(signal.name, 0.0) + signal.value * signal.weight
        if sums:
            sheets.append(sums)
    names = sorted({name for sheet in sheets for name in sheet})
    if len(sheets) < 2:
        return {}
    table = np.asarray([[sheet.get(name, 0.0) for name in names] for sheet in sheets])
    table = table - table.mean(axis=0)
    total = table.sum(axis=1)
    variance = float(total @ total)
    if variance <= 1e-24:
        return {}
    return {name: float(table[:, place] @ total / variance) for place, name in enumerate(names)}


def _weighed(samples: Samples) -> np.ndarray[Any, np.dtype[np.bool_]]:
    marks = np.zeros(len(samples.ids), dtype=np.bool_)
    for stream in (samples.advantages, samples.weights):
        if stream is not None:
            marks |= stream != 0.0
    return marks


def _silent(
    samples: Samples, is_weighed: np.ndarray[Any, np.dtype[np.bool_]], known: Mapping[str, str]
) -> dict[str, str]:
    """Rollouts that are in the batch, and none of whose tokens weighs anything."""
    owners = np.unique(np.repeat(np.arange(len(samples)), np.diff(samples.bounds))[is_weighed])
    loud = {samples.rollouts[owner] for owner in owners} if samples.rollouts else set()
    return {
        rollout: str(SkipReason.ZERO_WEIGHT)
        for rollout in samples.rollouts
        if rollout not in loud and rollout not in known
    }


BEGAN = "began"  # in a state's data: at which step each stage began


@dataclass(frozen=True)
class Stages:
    """Each algorithm until it asks for no more; the next one begins with what it left."""

    algorithms: Sequence[Algorithm]

    def start(self, base: Policy) -> AlgorithmState:
        return replace(self.algorithms[0].start(base), data={BEGAN: [0]})

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Asked]:
        return self._turn(state, tasks)[2]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        began = list(state.data[BEGAN])
        told = self.algorithms[len(began) - 1].tell(_own(state, began), batch, ctx)
        next_state = replace(told, step=state.step + 1, data={**told.data, BEGAN: began})
        return self.onward(next_state)

    def onward(self, state: AlgorithmState) -> AlgorithmState:
        """The state with the stage that it is in: those that have nothing more to ask are over."""
        began, _, _ = self._turn(state, (None,))
        return replace(state, data={**state.data, BEGAN: began})

    def _turn(self, state: AlgorithmState, tasks: Sequence[Any]) -> tuple[list[int], AlgorithmState, Sequence[Asked]]:
        began = list(state.data[BEGAN])
        while True:
            own = _own(state, began)
            work = self.algorithms[len(began) - 1].ask(own, tasks)
            if work or len(began) == len(self.algorithms):
                return began, own, work
            began.append(state.step)


def _own(state: AlgorithmState, began: Sequence[int]) -> AlgorithmState:
    """As the algorithm of the last stage counts its steps."""
    return replace(state, step=state.step - began[-1])


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
        trainer.pause_point = ctx.check
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
    return dict(told) if len(reasons) <= INLINE else {**told, "reasons": {"blob": ctx.save_blob(reasons)}}


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
