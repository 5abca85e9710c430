"""`rl_optimizer`: GAE and PPO over the turns of a language model, with the knobs and the summary that are documented.

A model call is one transition. A critic reads the model's state at the last token of each prompt; the advantage of a
turn goes to every token decided in it. A conversation terminates where it ended by itself and is truncated where a
limit cut it: then the critic says what would have followed. Advantages are normalised over the batch, never within one
trajectory, where they would cancel. Where the weights are out of reach nothing is pretended: the counts are reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts.algorithm import SWITCHED_OFF, AlgorithmState, Batch, LearnContext, RolloutTail, Work
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import FOLDER, Policy
from holdfast.contracts.records import encode
from holdfast.learn.batch import (
    Sample,
    SampleFilter,
    Samples,
    SamplesOrReason,
    SkipReason,
    counted,
    fitted,
    gather,
    pack,
    refusal,
)
from holdfast.learn.checkpoints import Learner
from holdfast.learn.constrain import (
    Constraint,
    CostPrice,
    Multiplier,
    combine,
    describe,
    from_dict,
    mean_cost,
    turn_costs,
)
from holdfast.learn.grpo import INLINE, PHASE, mean_reward, sift
from holdfast.learn.objective import Objective, TrainableModel
from holdfast.learn.returns import gae, normalise
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.policies.model import Model

Skipped = Literal[
    "no_succeeded_train_rollouts", "no_trajectories_collected", "no_ppo_samples_constructed", "weights_out_of_reach"
]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeSettings:
    """How a turn's advantage is estimated; ranges are checked by `contracts.settings`."""

    gamma: float = 0.99
    lam: float = 0.95
    normalize_advantages: bool = True
    clip_advantages: float | None = None
    normalize_returns: bool = False
    clip_returns: float | None = None
    normalization_epsilon: float = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSettings:
    """How the parameters follow the advantages; ranges are checked by `contracts.settings`."""

    clip_epsilon: float = 0.2
    value_loss_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    mini_batch_size: int = 32  # turns
    gradient_accumulation_steps: int = 1  # minibatches for one update
    epochs: int = 1
    kl_penalty_coefficient: float = 0.0
    target_kl: float | None = None  # passed at the end of an epoch: no further epoch
    max_kl: float | None = None  # passed by a minibatch: nothing more is applied; by the whole step: it is taken back
    learning_rate: float = 1e-4
    max_grad_norm: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RlSettings:
    """The block `rl_optimizer`."""

    gae: GaeSettings = field(default_factory=GaeSettings)
    ppo: PpoSettings = field(default_factory=PpoSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSummary:
    """What the optimizer did, and what actually moved."""

    SCHEMA: ClassVar[int] = 1

    executed: bool
    trajectories: int
    samples: int  # turns in which something was decided
    mean_total_loss: float | None = None
    observed_approx_kl: float | None = None
    early_stop_triggered: bool = False  # max_kl was passed inside the epochs
    skipped_reason: Skipped | None = None
    parameter_delta_norm: float | None = None
    grad_norm: float | None = None
    updates: int = 0
    stopped_early: str | None = None  # by which limit
    restored: str | None = None  # why the update was taken back
    reasons: Mapping[str, str] = field(default_factory=dict)  # rollouts that taught nothing
    breaks: Mapping[str, int] | None = None  # prompts that did not go on from what was there, by kind; None: all did
    left_out: Mapping[str, int] | None = None  # calls that were not trained on, by reason; None: all were
    constraint: Mapping[str, Any] | None = None  # the cost that was held to a budget, and the multiplier to go on with

    def to_dict(self) -> dict[str, Any]:
        """As it is written down; what is not there is left out."""
        return {name: value for name, value in asdict(self).items() if value is not None}


def optimize_turns(
    experiences: Sequence[Experience],
    model: nn.Module | None,
    settings: RlSettings,
    *,
    seed: int,
    intake: SampleFilter | None = None,
    held: tuple[Constraint, Multiplier] | None = None,
    pause_point: Callable[[], None] = lambda: None,
) -> PpoSummary:
    """Trains the model on these attempts in place; the model is None where its weights cannot be reached.

    The critic begins at 0. The summary holds the multiplier of a constraint, to be given with the next batch."""
    intake = fitted(intake or SampleFilter(), model)
    gathered = gather(experiences, intake)
    reasons = {rollout: str(reason) for rollout, reason in gathered.reasons.items() if reason is not None}
    trajectories = sum(refusal(one, intake) is None and bool(one.calls) for one in experiences)
    breaks = {str(kind): count for kind, count in gathered.breaks.items()} or None
    left_out = {str(reason): count for reason, count in gathered.left_out.items()} or None
    turns = sum(len(_decided_turns(reading)) for _, reading in gathered.kept)
    summary = PpoSummary(
        executed=False, trajectories=trajectories, samples=turns, reasons=reasons, breaks=breaks, left_out=left_out
    )
    skipped = _skipped(gathered.reasons, model is not None, trajectories, turns)
    if skipped is not None or model is None:
        return replace(summary, skipped_reason=skipped)
    conversations = sum(len(reading.samples) for _, reading in gathered.kept)
    trainer = Trainer(model, _settings(settings.ppo, conversations / turns), seed=seed, critic=_critic(model))
    trainer.pause_point = pause_point
    told, price = None, None
    if held is not None:
        mean = mean_cost(experiences, intake, held[0].cost)
        moved = held[1].updated(mean, held[0])
        price = CostPrice(cost=held[0].cost, multiplier=moved.value)
        told = describe(held[0], moved, mean)
    update = trainer.step(_advised(gathered.kept, trainer, intake, settings.gae, price))
    return replace(
        summary,
        executed=True,
        mean_total_loss=update.loss,
        observed_approx_kl=update.approx_kl,
        early_stop_triggered=update.stopped_early == "max_kl",
        parameter_delta_norm=update.delta_norm,
        grad_norm=update.grad_norm,
        updates=update.updates,
        stopped_early=update.stopped_early,
        restored=update.restored,
        constraint=told,
    )


def _skipped(
    reasons: Mapping[str, SkipReason | None], has_model: bool, trajectories: int, turns: int
) -> Skipped | None:
    outside = {SkipReason.OTHER_RUN, SkipReason.WRONG_SPLIT, SkipReason.FAULT, SkipReason.NOT_FINAL, SkipReason.STALE}
    if all(reason in outside for reason in reasons.values()):
        return "no_succeeded_train_rollouts"
    if not trajectories:
        return "no_trajectories_collected"
    if not has_model:
        return "weights_out_of_reach"
    return None if turns else "no_ppo_samples_constructed"


def _settings(ppo: PpoSettings, conversations_per_turn: float) -> Settings:
    """A conversation is read once for all of its turns, so minibatches are whole conversations with as many turns."""
    turns = ppo.mini_batch_size * ppo.gradient_accumulation_steps
    return Settings(
        objective=Objective(
            clip_low=min(ppo.clip_epsilon, 1.0),
            clip_high=ppo.clip_epsilon,
            value=ppo.value_loss_coefficient,
            entropy=ppo.entropy_coefficient,
            behaviour_kl=ppo.kl_penalty_coefficient,
        ),
        optimizer=OptimizerConfig(learning_rate=ppo.learning_rate, max_grad_norm=ppo.max_grad_norm),
        epochs=ppo.epochs,
        minibatch=max(1, round(turns * conversations_per_turn)),
        target_kl=ppo.target_kl,
        max_kl=ppo.max_kl,
        is_measured=True,
    )


def _critic(model: nn.Module) -> nn.Linear:
    """Says 0 of everything, until it has learnt."""
    reader: TrainableModel = model  # type: ignore[assignment]
    with torch.no_grad():
        device = next(model.parameters()).device
        width = reader.hidden(torch.zeros((1, 1), dtype=torch.long, device=device)).shape[-1]
    critic = nn.Linear(width, 1)
    nn.init.zeros_(critic.weight)
    nn.init.zeros_(critic.bias)
    return critic


def _decided_turns(reading: SamplesOrReason) -> set[int]:
    return {int(turn) for sample in reading.samples for turn in np.unique(sample.turns[sample.action_mask])}


def _advised(
    kept: Sequence[tuple[Experience, SamplesOrReason]],
    trainer: Trainer,
    intake: SampleFilter,
    settings: GaeSettings,
    price: CostPrice | None = None,
) -> Samples:
    """Samples with an advantage on every decided token and a value target before every turn."""
    owners = [(experience, sample) for experience, reading in kept for sample in reading.samples]
    asked = pack([_asking(sample, experience.is_truncated) for experience, sample in owners])
    said = trainer.values(asked)
    values = np.split(said, asked.bounds[1:-1])
    by_rollout: dict[str, list[tuple[Sample, NDArray[np.float32]]]] = {}
    for (experience, sample), numbers in zip(owners, values, strict=True):
        by_rollout.setdefault(experience.rollout, []).append((sample, numbers))
    estimates = [_estimate(experience, by_rollout[experience.rollout], intake, settings) for experience, _ in kept]
    advantages, returns = (np.concatenate(parts) for parts in zip(*estimates, strict=True))
    if price is not None:  # before anything is scaled: a price is of rewards as they are
        dear = turn_costs([experience for experience, _ in kept], price.cost, gamma=settings.gamma)
        advantages = combine(advantages, dear, price.multiplier)
    advantages = _scaled(advantages, settings.normalize_advantages, settings.clip_advantages, settings)
    returns = _scaled(returns, settings.normalize_returns, settings.clip_returns, settings)
    edges = np.cumsum([len(one) for one, _ in estimates])[:-1]
    samples = []
    for (experience, _), a, r in zip(kept, np.split(advantages, edges), np.split(returns, edges), strict=True):
        samples += [_credited(one, a, r) for one, _ in by_rollout[experience.rollout]]
    return pack(samples)


def _scaled(x: Floats, is_normalised: bool, clip: float | None, settings: GaeSettings) -> Floats:
    if is_normalised:
        return normalise(x, eps=settings.normalization_epsilon, clip=clip).astype(np.float64)
    return x if clip is None else x.clip(-clip, clip)


def _asking(sample: Sample, is_truncated: bool) -> Sample:
    """The sample with a question to the critic before each turn, and after the last token where a limit cut it."""
    returns = np.full(len(sample.ids), np.nan, dtype=np.float32)
    returns[[start - 1 for _, start in sample.starts if start]] = 0.0
    if is_truncated:
        returns[-1] = 0.0
    return replace(sample, returns=returns)


def _estimate(
    experience: Experience,
    samples: Sequence[tuple[Sample, NDArray[np.float32]]],
    intake: SampleFilter,
    settings: GaeSettings,
) -> tuple[Floats, Floats]:
    """Advantage and return of each turn of one attempt."""
    count = len(experience.calls)
    rewards, values = np.zeros(count), np.zeros(count)
    for signal in counted(experience, intake.channels):
        rewards[count - 1 if signal.turn is None else signal.turn] += signal.value * signal.weight
    after = 0.0
    for sample, said in samples:
        for turn, start in sample.starts:
            values[turn] = said[start - 1] if start else 0.0
            if turn == count - 1 and experience.is_truncated:
                after = float(said[-1])
    is_end = np.arange(count) == count - 1
    advantages, returns = gae(
        rewards,
        values,
        terminated=is_end & (not experience.is_truncated),
        truncated=is_end & experience.is_truncated,
        cut_values=np.where(is_end, after, 0.0),
        gamma=settings.gamma,
        lam=settings.lam,
    )
    return advantages.astype(np.float64), returns.astype(np.float64)


def _credited(sample: Sample, advantages: Floats, returns: Floats) -> Sample:
    targets = np.full(len(sample.ids), np.nan, dtype=np.float32)
    for turn, start in sample.starts:
        if start:
            targets[start - 1] = returns[turn]
    weight = np.where(sample.action_mask, advantages[np.maximum(sample.turns, 0)], 0.0).astype(np.float32)
    return replace(sample, advantages=weight, returns=targets)


@dataclass(frozen=True, kw_only=True)
class TurnPPO:
    """The documented optimizer, with its settings as they are documented."""

    settings: RlSettings = field(default_factory=RlSettings)
    channels: tuple[str, ...] | None = None  # names of signals to learn from; None: all
    constraint: Constraint | None = None
    train_on: str | None = None  # a model's name or a tag: only such calls; None: those of the model that learns
    seed: int = 0
    steps: int = 1
    follow: str | None = None  # learn from the finished rollouts of this run, as they arrive
    follow_least: int = 128  # of them, for one step
    budget_s: float | None = None
    held_out: Sequence[Any] = ()
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def start(self, base: Policy) -> AlgorithmState:
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work | RolloutTail]:
        spent = float(state.data.get("learning_s", 0.0))
        if self.follow is None or state.step >= self.steps or (self.budget_s is not None and spent >= self.budget_s):
            return ()
        return [RolloutTail(run=self.follow, least=self.follow_least, taken=tuple(state.data.get("taken", ())))]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        """One step on conversations that have nothing beside them to be compared with: a critic judges them."""
        began, experiences = time.perf_counter(), ctx.experiences(batch)
        clean, findings, aside = sift(experiences, self.held_out, self._intake(state.policy, ctx))
        told, candidate, multiplier = self.learn(clean, state.policy, state.data.get("multiplier"), ctx, aside)
        spent = round(time.perf_counter() - began - ctx.held_s, 3)
        metrics = {
            **told,
            "phase": f"{PHASE} {state.iteration + 1}",
            "iteration": state.iteration,
            "rollouts": len(experiences),
            "reward": mean_reward(experiences),
            "quality": [encode(one) for one in findings],
            "learning_s": spent,
        }
        taken = [*state.data.get("taken", ()), *([] if batch.ids is None else [batch.ids])]
        learnt_s = round(float(state.data.get("learning_s", 0.0)) + spent, 3)
        return state.next(candidate=candidate, metrics=metrics, taken=taken, learning_s=learnt_s, multiplier=multiplier)

    def _intake(self, policy: Policy, ctx: LearnContext) -> SampleFilter:
        model = f"local/{policy.name}" if isinstance(policy, Model) else None
        return SampleFilter(run=self.follow or ctx.run, channels=self.channels, model=model, train_on=self.train_on)

    def learn(
        self,
        experiences: Sequence[Experience],
        policy: Policy,
        multiplier: Any,
        ctx: LearnContext,
        aside: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], Policy | None, Any]:
        """What is told of the step, the policy that came of it, and the constraint's multiplier to go on with; `aside`
        are the reasons of rollouts that were put aside before."""
        if not ctx.features.learning:
            return {"phase": "rl_optimizer", "skipped": SWITCHED_OFF}, None, multiplier  # as without the block
        try:
            return self._learn(experiences, policy, multiplier, ctx, aside or {})
        except BaseException:
            self.learner.forget()
            raise

    def _learn(
        self,
        experiences: Sequence[Experience],
        policy: Policy,
        multiplier: Any,
        ctx: LearnContext,
        aside: Mapping[str, str],
    ) -> tuple[dict[str, Any], Policy | None, Any]:
        model = self.learner.load(policy, ctx.files) if isinstance(policy, Model) else None
        held: tuple[Constraint, Multiplier] | None = None
        if self.constraint is not None:
            held = self.constraint, from_dict(multiplier)
        intake = self._intake(policy, ctx)
        summary = optimize_turns(
            experiences, model, self.settings, seed=self.seed, intake=intake, held=held, pause_point=ctx.check
        )
        told: dict[str, Any] = summary.to_dict()
        reasons = {
            rollout: why for rollout, why in {**told.pop("reasons"), **aside}.items() if why != SkipReason.WRONG_SPLIT
        }  # nobody expects to learn from validation
        told["no_gradient"] = dict(Counter(reasons.values()).most_common())
        candidate = self._kept(summary, ctx) if model is not None else None
        body: dict[str, Any] = {"phase": "rl_optimizer", "rl_optimizer": told}
        body["reasons"] = reasons if len(reasons) <= INLINE else {"blob": ctx.save(reasons)}
        if candidate is not None:
            body["checkpoint"] = candidate.checkpoint
            told |= {
                "checkpoint": candidate.checkpoint,
                "weights": str(ctx.folder / FOLDER / str(candidate.checkpoint)),
            }
        return body, candidate, (told.get("constraint") or {}).get("multiplier", multiplier)

    def _kept(self, summary: PpoSummary, ctx: LearnContext) -> Model | None:
        if not summary.executed or summary.restored is not None:
            self.learner.forget()
            return None
        return self.learner.save(ctx, algorithm="ppo")
