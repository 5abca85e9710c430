"""`rl_optimizer`: GAE and PPO over the turns of a language model, with the knobs and the summary that are documented.

A model call is one transition. A critic reads the model's state at the last token of each prompt (`critic`); it is kept
with the checkpoints, and how much of the returns it explains is reported. The advantage of a turn goes to every token
decided in it. A conversation terminates where it ended by itself and is truncated where a
limit cut it: then the critic says what would have followed. Advantages are normalised over the batch, never within one
trajectory, where they would cancel. Where the weights are out of reach nothing is pretended: the counts are reported.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts.algorithm import LATER, SWITCHED_OFF, AlgorithmState, Batch, LearnContext, RolloutTail, Work
from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import AdvantageBatch, Experience, Trajectory
from holdfast.contracts.policy import FOLDER, Policy
from holdfast.contracts.records import encode
from holdfast.learn.batch import (
    Sample,
    SampleFilter,
    Samples,
    SamplesOrReason,
    SkipReason,
    advantage_batch,
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
from holdfast.learn.critic import Critic, CriticConfig, explained_variance
from holdfast.learn.distributed import refuse
from holdfast.learn.grpo import INLINE, PHASE, check_trainable, mean_reward, measured_turns, practice, sift
from holdfast.learn.objective import How, Objective, TrainableModel, check_aggregate
from holdfast.learn.returns import gae, normalise
from holdfast.learn.train import OptimizerConfig, Settings, Trainer, check_dials, default_learning_rate
from holdfast.policies.model import Model

Skipped = Literal[
    "no_succeeded_train_rollouts", "no_trajectories_collected", "no_ppo_samples_constructed", "weights_out_of_reach"
]
Floats = NDArray[np.float64]
OPTIMIZER = "rl_optimizer"  # the phase of a run that learns once, at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeSettings:
    """How a turn's advantage is estimated."""

    gamma: float = 0.99
    lam: float = 0.95
    normalize_advantages: bool = True
    clip_advantages: float | None = None
    normalize_returns: bool = False
    clip_returns: float | None = None
    normalization_epsilon: float = 1e-8
    turn_credit: float = 0.0  # how far what was measured of a turn moves its reward

    def __post_init__(self) -> None:
        check_dials("gae", self, least={"gamma": 0.0, "lam": 0.0, "turn_credit": 0.0}, most=1.0)
        check_dials("gae", self, above=("clip_advantages", "clip_returns", "normalization_epsilon"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoSettings:
    """How the parameters follow the advantages."""

    clip_epsilon: float = 0.2
    clip_epsilon_high: float | None = None  # None: the same
    value_loss_coefficient: float = 0.5  # of a shared critic; 0: no critic learns
    entropy_coefficient: float = 0.01
    mini_batch_size: int = 32  # turns
    gradient_accumulation_steps: int = 1  # minibatches for one update
    epochs: int = 1
    kl_penalty_coefficient: float = 0.0
    target_kl: float | None = None  # passed at the end of an epoch: no further epoch
    max_kl: float | None = None  # passed by a minibatch: nothing more is applied; by the whole step: it is taken back
    learning_rate: float | None = None  # None: by the number of parameters
    max_grad_norm: float = 1.0
    aggregate: How = "token"  # what the mean of the loss is over
    constant: float | None = None  # tokens, for sequence_norm_constant
    importance_cap: float | None = None  # truncated importance sampling; None: none
    piece_tokens: int = 0  # read at once; 0: what suits the machine

    def __post_init__(self) -> None:
        least: dict[str, float] = {"mini_batch_size": 1, "gradient_accumulation_steps": 1, "epochs": 1}
        least |= {"piece_tokens": 0, "importance_cap": 1, "clip_epsilon": 0, "clip_epsilon_high": 0, "target_kl": 0}
        least |= {"max_kl": 0}
        least |= {f"{name}_coefficient": 0 for name in ("value_loss", "entropy", "kl_penalty")}
        check_dials("ppo", self, above=("learning_rate", "max_grad_norm", "constant"), least=least)
        check_aggregate("ppo", self.aggregate, self.constant)


@dataclass(frozen=True, slots=True, kw_only=True)
class RlSettings:
    """The block `rl_optimizer`."""

    gae: GaeSettings = field(default_factory=GaeSettings)
    ppo: PpoSettings = field(default_factory=PpoSettings)
    critic: CriticConfig = field(default_factory=CriticConfig)


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
    explained_variance: float | None = None  # of the returns, by the critic that the advantages were computed with
    value_loss: float | None = None  # of that critic: the mean of ½(V − R)²
    entropy: float | None = None  # nats a token
    clip_fraction: float | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)  # rollouts that taught nothing
    breaks: Mapping[str, int] | None = None  # prompts that did not go on from what was there, by kind; None: all did
    left_out: Mapping[str, int] | None = None  # calls that were not trained on, by reason; None: all were
    advantages: tuple[AdvantageBatch, ...] = ()  # what the turns of each trajectory weighed; kept beside the summary
    constraint: Mapping[str, Any] | None = None  # the cost that was held to a budget, and the multiplier to go on with

    def to_dict(self) -> dict[str, Any]:
        """As it is written down; what is not there is left out."""
        payload = asdict(replace(self, advantages=()))
        return {name: value for name, value in payload.items() if value is not None and name != "advantages"}


def optimize_turns(
    experiences: Sequence[Experience],
    model: nn.Module | None,
    settings: RlSettings,
    *,
    seed: int,
    intake: SampleFilter | None = None,
    held: tuple[Constraint, Multiplier] | None = None,
    trainer: Trainer | None = None,
) -> PpoSummary:
    """Trains the model on these attempts in place; the model is None where its weights cannot be reached.

    The trainer holds the optimiser and the critic, and goes on from batch to batch; without one, both are new. The
    summary holds the multiplier of a constraint, to be given with the next batch."""
    intake = fitted(intake or SampleFilter(), model)
    gathered = gather(experiences, intake)
    reasons = {rollout: str(reason) for rollout, reason in gathered.reasons.items() if reason is not None}
    trajectories = sum(refusal(experience, intake) is None and bool(experience.calls) for experience in experiences)
    breaks = {str(kind): count for kind, count in gathered.breaks.items()} or None
    left_out = {str(reason): count for reason, count in gathered.left_out.items()} or None
    turns = sum(len(_decided_turns(reading)) for _, reading in gathered.kept)
    summary = PpoSummary(
        executed=False, trajectories=trajectories, samples=turns, reasons=reasons, breaks=breaks, left_out=left_out
    )
    skipped = _skipped(gathered.reasons, model is not None, trajectories, turns)
    if skipped is not None or model is None:
        return replace(summary, skipped_reason=skipped)
    trainer = trainer or trainer_for(model, settings, seed=seed)
    conversations = sum(len(reading.samples) for _, reading in gathered.kept)
    per_update = settings.ppo.mini_batch_size * settings.ppo.gradient_accumulation_steps
    # A conversation is read once for all of its turns, so minibatches are whole conversations with as many turns.
    trainer.settings = replace(trainer.settings, minibatch=max(1, round(per_update * conversations / turns)))
    described, price = None, None
    if held is not None:
        mean = mean_cost(experiences, intake, held[0].cost)
        moved = held[1].updated(mean, held[0])
        price = CostPrice(cost=held[0].cost, multiplier=moved.value)
        described = describe(held[0], moved, mean)
    readings = [reading for _, reading in gathered.kept]
    batch, advantages, explained, value_loss = _advised(readings, trainer, intake.channels, settings.gae, price)
    update = trainer.step(batch)
    return replace(
        summary,
        executed=True,
        advantages=tuple(advantages),
        explained_variance=explained,
        value_loss=value_loss,
        entropy=update.entropy,
        clip_fraction=update.clip_fraction,
        mean_total_loss=update.loss,
        observed_approx_kl=update.approx_kl,
        early_stop_triggered=update.stopped_early == "max_kl",
        parameter_delta_norm=update.delta_norm,
        grad_norm=update.grad_norm,
        updates=update.updates,
        stopped_early=update.stopped_early,
        restored=update.restored,
        constraint=described,
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


def trainer_for(model: nn.Module, settings: RlSettings, *, seed: int) -> Trainer:
    """A new trainer with a critic that knows nothing yet."""
    ppo = settings.ppo
    high = ppo.clip_epsilon if ppo.clip_epsilon_high is None else ppo.clip_epsilon_high
    rate = default_learning_rate(model) if ppo.learning_rate is None else ppo.learning_rate
    made = Settings(
        objective=Objective(
            clip_low=min(ppo.clip_epsilon, 1.0),
            clip_high=high,
            value=ppo.value_loss_coefficient,
            entropy=ppo.entropy_coefficient,
            behaviour_kl=ppo.kl_penalty_coefficient,
            importance_cap=ppo.importance_cap,
            aggregate=ppo.aggregate,
            constant=ppo.constant,
        ),
        optimizer=OptimizerConfig(learning_rate=rate, max_grad_norm=ppo.max_grad_norm),
        epochs=ppo.epochs,
        max_tokens_per_batch=ppo.piece_tokens,
        target_kl=ppo.target_kl,
        max_kl=ppo.max_kl,
        is_measured=True,
    )
    refuse("PPO, with its critic,")
    return Trainer(model, made, seed=seed, critic=_critic(model, settings.critic))


def _critic(model: nn.Module, config: CriticConfig) -> nn.Module:
    """Says 0 of everything, until it has learnt."""
    reader: TrainableModel = model  # type: ignore[assignment]
    device = next(model.parameters()).device
    with torch.no_grad():
        width = reader.hidden(torch.zeros((1, 1), dtype=torch.long, device=device)).shape[-1]
    critic = Critic(width, config, device=device)
    return critic if config.mode == "separate" else critic.head


def _decided_turns(reading: SamplesOrReason) -> set[int]:
    return {int(turn) for sample in reading.samples for turn in np.unique(sample.turns[sample.action_mask])}


def _advised(
    readings: Sequence[SamplesOrReason],
    trainer: Trainer,
    channels: tuple[str, ...] | None,
    settings: GaeSettings,
    price: CostPrice | None = None,
) -> tuple[Samples, list[AdvantageBatch], float | None, float]:
    """Samples with an advantage on every decided token and a value target before every turn, and the records that have
    them by turn; and how well the critic knew the returns: the share of their variance that it explains, and its
    loss."""
    trajectories = [reading.scored for reading in readings]
    asked = pack(
        [_asking(sample, reading.scored.end == "truncated") for reading in readings for sample in reading.samples]
    )

    def estimated(said: NDArray[np.float32]) -> tuple[Floats, Floats]:
        values = iter(np.split(said, asked.bounds[1:-1]))
        pairs = ((reading.scored, [(sample, next(values)) for sample in reading.samples]) for reading in readings)
        found = [_estimate(trajectory, samples, channels, settings) for trajectory, samples in pairs]
        return np.concatenate([a for a, _ in found]), np.concatenate([r for _, r in found])

    advantages, returns = estimated(trainer.values(asked))
    explained = explained_variance(returns - advantages, returns)
    if trainer.is_first:
        blind = pack(_credited(readings, _batches(trajectories, advantages, returns, settings))).returns
        owners = np.repeat(np.arange(len(readings)), [len(reading.samples) for reading in readings])
        first = estimated(trainer.first_values(asked, blind, owners))
        known = explained_variance(first[1] - first[0], first[1])
        if known is not None and known > 0.0:  # else it knows nothing worth using yet
            (advantages, returns), explained = first, known
    loss = float(0.5 * np.square(advantages).mean())
    if price is not None:  # before anything is scaled: a price is of rewards as they are
        advantages = combine(advantages, turn_costs(trajectories, price.cost, gamma=settings.gamma), price.multiplier)
    advantages = _scaled(advantages, settings.normalize_advantages, settings.clip_advantages, settings)
    returns = _scaled(returns, settings.normalize_returns, settings.clip_returns, settings)
    batches = _batches(trajectories, advantages, returns, settings)
    return pack(_credited(readings, batches)), batches, explained, loss


def _batches(
    trajectories: Sequence[Trajectory], advantages: Floats, returns: Floats, settings: GaeSettings
) -> list[AdvantageBatch]:
    """The record of each attempt, from the numbers of all turns one after the other."""
    edges = np.cumsum([trajectory.turn_count for trajectory in trajectories])[:-1]
    parts = zip(trajectories, np.split(advantages, edges), np.split(returns, edges), strict=True)
    return [advantage_batch(trajectory, a, settings.normalize_advantages, r) for trajectory, a, r in parts]


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
    trajectory: Trajectory,
    samples: Sequence[tuple[Sample, NDArray[np.float32]]],
    channels: tuple[str, ...] | None,
    settings: GaeSettings,
) -> tuple[Floats, Floats]:
    """Advantage and return of each turn of one attempt."""
    count, is_truncated = trajectory.turn_count, trajectory.end == "truncated"
    rewards, values = np.asarray([after.reward or 0.0 for _, after in trajectory.transitions]), np.zeros(count)
    if settings.turn_credit:  # a potential that is 0 at the end: no attempt earns by it; Ng et al. 1999
        moved = settings.turn_credit * measured_turns(trajectory, channels)
        rewards += moved
        rewards[-1] -= moved.sum()
    after = 0.0
    for sample, said in samples:
        for turn, start in sample.starts:
            values[turn] = said[start - 1] if start else 0.0
            if turn == count - 1 and is_truncated:
                after = float(said[-1])
    is_end = np.arange(count) == count - 1
    advantages, returns = gae(
        rewards,
        values,
        terminated=is_end & (not is_truncated),
        truncated=is_end & is_truncated,
        cut_values=np.where(is_end, after, 0.0),
        gamma=settings.gamma,
        lam=settings.lam,
    )
    return advantages.astype(np.float64), returns.astype(np.float64)


def _credited(readings: Sequence[SamplesOrReason], batches: Sequence[AdvantageBatch]) -> list[Sample]:
    pairs = zip(readings, batches, strict=True)
    return [_credited_sample(sample, batch) for reading, batch in pairs for sample in reading.samples]


def _credited_sample(sample: Sample, batch: AdvantageBatch) -> Sample:
    targets = np.full(len(sample.ids), np.nan, dtype=np.float32)
    for turn, start in sample.starts:
        if start:
            targets[start - 1] = batch.value_targets[turn]
    credit = np.asarray(batch.advantages)[np.maximum(sample.turns, 0)]
    weight = np.where(sample.action_mask, credit, 0.0).astype(np.float32)
    return replace(sample, advantages=weight, returns=targets)


@dataclass(frozen=True, kw_only=True)
class TurnPPO:
    """Proximal policy optimisation of a model whose weights are ours: a critic judges each turn of a conversation.

    The three blocks may be given as mappings, with the names that the config file has for them."""

    gae: GaeSettings | Mapping[str, Any] = field(default_factory=GaeSettings)
    ppo: PpoSettings | Mapping[str, Any] = field(default_factory=PpoSettings)
    critic: CriticConfig | Mapping[str, Any] = field(default_factory=CriticConfig)
    channels: tuple[str, ...] | None = None  # names of signals to learn from; None: all
    constraint: Constraint | None = None
    train_on: str | None = field(default=None, metadata=LATER)  # a model's name or a tag: such calls; None: its own
    seed: int = 0
    steps: int = 8
    tasks: int = 16  # in each step, in the order they are given
    samples: int = 8  # attempts at each task
    follow: str | None = None  # learn from the finished rollouts of this run, as they arrive, instead of practising
    follow_least: int = 128  # of them, for one step
    budget_s: float | None = None
    held_out: Sequence[Any] = ()
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name, kind in BLOCKS.items():
            object.__setattr__(self, name, _block(name, kind, getattr(self, name)))
        check_dials("ppo", self, least={"steps": 1, "tasks": 1, "samples": 1})

    @property
    def settings(self) -> RlSettings:
        return RlSettings(**{name: getattr(self, name) for name in BLOCKS})

    def start(self, base: Policy) -> AlgorithmState:
        check_trainable(base)
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work | RolloutTail]:
        spent = float(state.data.get("learning_s", 0.0))
        if state.step >= self.steps or (self.budget_s is not None and spent >= self.budget_s):
            return ()
        if self.follow is None:
            return practice(state, tasks, PHASE, self.steps, self.tasks, self.samples)
        return [RolloutTail(run=self.follow, least=self.follow_least, taken=tuple(state.data.get("taken", ())))]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        began, experiences, phase = time.perf_counter(), ctx.experiences(batch), f"{PHASE} {state.iteration + 1}"
        clean, findings, aside = sift(experiences, self.held_out, self._intake(state.policy, ctx, phase))
        payload, candidate, multiplier = self.learn(
            clean,
            state.policy,
            state.data.get("multiplier"),
            ctx,
            phase=phase,
            is_new=state.data.get("trainer") != phase,
            aside=aside,
        )
        if "rl_optimizer" in payload and batch.count > len(experiences):
            payload["rl_optimizer"]["no_gradient"][str(SkipReason.FAULT)] = batch.count - len(experiences)
        spent = round(time.perf_counter() - began - ctx.held_s, 3)
        metrics = {
            **payload,
            "phase": phase,
            "iteration": state.iteration,
            "rollouts": len(experiences),
            "reward": mean_reward(experiences),
            "quality": [encode(finding) for finding in findings],
            "learning_s": spent,
        }
        data: dict[str, Any] = {} if candidate is None else {"trainer": phase}
        if self.follow is not None:
            data["taken"] = [*state.data.get("taken", ()), *([] if batch.ids is None else [batch.ids])]
        data["learning_s"] = round(float(state.data.get("learning_s", 0.0)) + spent, 3)
        return state.next(candidate=candidate, metrics=metrics, multiplier=multiplier, **data)

    def _intake(self, policy: Policy, ctx: LearnContext, phase: str) -> SampleFilter:
        return SampleFilter(
            run=self.follow or ctx.run,
            channels=self.channels,
            versions=(policy.version,) if self.follow is None and phase != OPTIMIZER else None,  # those that practised
            model=f"local/{policy.name}" if isinstance(policy, Model) else None,
            train_on=self.train_on,
        )

    def learn(
        self,
        experiences: Sequence[Experience],
        policy: Policy,
        multiplier: Any,
        ctx: LearnContext,
        *,
        phase: str = OPTIMIZER,
        is_new: bool = True,
        aside: Mapping[str, str] | None = None,
    ) -> tuple[dict[str, Any], Policy | None, Any]:
        """What is told of the step, the policy that came of it, and the constraint's multiplier to go on with.

        Within a phase the optimiser and the critic go on from step to step; a new one begins with the critic that the
        policy's checkpoint holds, if it holds one. `aside` are the reasons of rollouts that were put aside before."""
        if not ctx.features.learning:
            return {"phase": OPTIMIZER, "skipped": SWITCHED_OFF}, None, multiplier  # as without the block
        with self.learner.undone_on_failure():
            return self._learn(experiences, policy, multiplier, ctx, phase, is_new, aside or {})

    def _learn(
        self,
        experiences: Sequence[Experience],
        policy: Policy,
        multiplier: Any,
        ctx: LearnContext,
        phase: str,
        is_new: bool,
        aside: Mapping[str, str],
    ) -> tuple[dict[str, Any], Policy | None, Any]:
        model = trainer = None
        if isinstance(policy, Model):
            model = self.learner.load(policy, ctx.files)
            make = partial(trainer_for, settings=self.settings, seed=self.seed)
            trainer = self.learner.train(phase, make, ctx.files, is_new=is_new)
            trainer.pause_point = ctx.check
        held = None if self.constraint is None else (self.constraint, from_dict(multiplier))
        summary = optimize_turns(
            experiences,
            model,
            self.settings,
            seed=self.seed,
            intake=self._intake(policy, ctx, phase),
            held=held,
            trainer=trainer,
        )
        payload: dict[str, Any] = summary.to_dict()
        reasons = {
            rollout: why
            for rollout, why in {**payload.pop("reasons"), **aside}.items()
            if why != SkipReason.WRONG_SPLIT
        }  # nobody expects to learn from validation
        payload["no_gradient"] = dict(Counter(reasons.values()).most_common())
        candidate = self._kept(summary, ctx) if model is not None else None
        body: dict[str, Any] = {"phase": OPTIMIZER, "rl_optimizer": payload}
        body["reasons"] = reasons if len(reasons) <= INLINE else {"blob": ctx.save(reasons)}
        if summary.advantages:
            body["advantages"] = {"blob": ctx.save([encode(advantage) for advantage in summary.advantages])}
        if candidate is not None:
            body["checkpoint"] = candidate.checkpoint
            payload |= {
                "checkpoint": candidate.checkpoint,
                "weights": str(ctx.folder / FOLDER / str(candidate.checkpoint)),
            }
        return body, candidate, (payload.get("constraint") or {}).get("multiplier", multiplier)

    def _kept(self, summary: PpoSummary, ctx: LearnContext) -> Model | None:
        """The candidate; None where nothing was learnt, the step was taken back, or it moved nothing."""
        if not summary.executed or summary.restored is not None or not summary.parameter_delta_norm:
            self.learner.forget()
            return None
        return self.learner.save(ctx, algorithm="ppo")


BLOCKS: Mapping[str, Any] = {"gae": GaeSettings, "ppo": PpoSettings, "critic": CriticConfig}


def _block(name: str, kind: Any, given: Any) -> Any:
    """The block itself, or the one that a mapping describes."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        why = f"is {type(given).__name__}, not a mapping"
        raise BadInput(f"ppo: {name}", why=why, remedy="as in ppo={'epochs': 2}")
    plain = {"lam" if key == "lambda" else key: value for key, value in given.items()}
    known = [one.name for one in fields(kind)]
    if strange := [key for key in plain if key not in known]:
        raise BadInput(f"ppo: {name}.{strange[0]}", why="is unknown", remedy=f"there are {', '.join(known)}")
    return kind(**plain)
