"""GRPO: several attempts at each task, and what did better than the others becomes likelier; arXiv:2402.03300.

Advantages compare each attempt with the others at its task; a group without spread is skipped. What was not scored is
missing and makes its group smaller. Rewards of single turns may be mixed in, and terms may be normalised one by one
before they are added; where a guard ranks attempts, neither puts anybody above a better one. Data that the gates put
aside is not learnt from, but its cost counts. The audit says for every rollout why it gave no gradient. `Stages` runs
several algorithms one after another. The update is `train`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts.algorithm import (
    LATER,
    SWITCHED_OFF,
    Algorithm,
    AlgorithmState,
    Asked,
    Batch,
    LearnContext,
    Work,
)
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.checks import GATED
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import AdvantageBatch, Experience, Group, Trajectory
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import encode
from holdfast.contracts.reward import PROGRESS, outcome_of
from holdfast.contracts.rollout import Split
from holdfast.contracts.trace import ModelCall
from holdfast.learn import quality
from holdfast.learn.batch import (
    DATA_GATE,
    Break,
    Sample,
    SampleFilter,
    Samples,
    SamplesOrReason,
    SkipReason,
    advantage_batch,
    counted,
    fitted,
    gather,
    pack,
    reward,
    trained_mask,
    trained_turns,
)
from holdfast.learn.checkpoints import Learner
from holdfast.learn.constrain import Constraint, CostPrice, combine, cost_credit, describe, from_dict, mean_cost
from holdfast.learn.distributed import trainer_of
from holdfast.learn.objective import How, Objective, check_aggregate
from holdfast.learn.returns import group_relative, normalise_then_sum, turn_credit
from holdfast.learn.train import OptimizerConfig, Settings, Trainer, Update, check_dials, default_learning_rate
from holdfast.policies import model as models
from holdfast.policies.model import Model

Floats = NDArray[np.float64]
Credit = Callable[[Sequence[Experience]], Sequence[float]]  # attempts at one task → the advantage of each


@dataclass(frozen=True, slots=True, kw_only=True)
class Grpo:
    """How attempts at one task are compared."""

    scale: bool = True  # divide by the group's standard deviation
    mix: float = 0.0  # share of the turn's own reward in its credit; the rest is the outcome's
    turn_term: str = PROGRESS  # what was measured of a turn, and counts as its own reward beside what it was paid
    skip_zero_spread: bool = True
    terms: Literal["sum", "normalised"] = "sum"  # of the signals: as they are, or each by its own spread first
    outcome: str = "success"  # the signal that decides; read where the terms are normalised

    def __post_init__(self) -> None:
        if self.terms not in ("sum", "normalised"):
            raise BadInput(f"grpo.terms = {self.terms!r}", why="is unknown", remedy="use sum or normalised")
        if not 0.0 <= self.mix <= 1.0:
            raise BadInput(f"grpo.mix = {self.mix}", why="must be between 0 and 1")


ROOM = 0.25  # of the outcome's weight: the best shaped failure ends half a weight below the worst shaped success
MOST_MIX = 0.5  # where those that passed are compared with others: the outcome keeps at least as much
PASSED, FAILED, VETOED = 2, 1, 0  # ranks; what no guard judged has none
GATE, GATE_SOURCE = "safety.hard_gate", "rule:safety"
_SHUT = {0.0: PASSED, 1.0: FAILED, 2.0: VETOED}  # by the value of the guard's signal


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantages:
    """What a batch of attempts teaches by comparison."""

    samples: Samples | None  # None: nothing
    advantages: tuple[AdvantageBatch, ...]  # by attempt: what its samples weigh
    reasons: Mapping[str, SkipReason | None]  # why each rollout gave nothing
    groups: int  # tasks with at least two scored attempts
    skipped_groups: int  # of them, without spread
    breaks: Mapping[Break, int]  # prompts that did not go on from what was there
    left_out: Mapping[SkipReason, int]  # calls that were not trained on, of attempts that could be learnt from


def compare(
    experiences: Iterable[Experience],
    intake: SampleFilter,
    settings: Grpo,
    price: CostPrice | None = None,
    own: Credit | None = None,
) -> GroupAdvantages:
    """Samples with advantages from attempts that are grouped by their task; `price` is what their cost weighs.

    `own` replaces the comparison by the group's mean and spread."""
    gathered = gather(experiences, intake)
    reasons = dict(gathered.reasons)
    teams: dict[str, list[tuple[Experience, SamplesOrReason]]] = {}
    for experience, reading in gathered.kept:
        teams.setdefault(experience.task, []).append((experience, reading))
    found: list[Sample] = []
    batches: list[AdvantageBatch] = []
    groups = skipped = 0
    for task, team in teams.items():
        if len(team) < 2:
            reasons[team[0][0].rollout] = SkipReason.ALONE
            continue
        groups += 1
        group = Group(task=task, trajectories=tuple(reading.scored for _, reading in team))
        given = None if own is None else _own([experience for experience, _ in team], own)
        advantages = group_advantages(group, settings, intake.channels, price, given)
        if settings.skip_zero_spread and not any(any(advantage.advantages) for advantage in advantages):
            skipped += 1
            reasons |= {experience.rollout: SkipReason.ZERO_SPREAD for experience, _ in team}
            continue
        batches += advantages
        for (experience, reading), batch in zip(team, advantages, strict=True):
            if not any(batch.advantages):
                reasons[experience.rollout] = SkipReason.ZERO_WEIGHT
            found += [_credited(sample, batch) for sample in reading.samples]
    samples = pack(found) if found else None
    return GroupAdvantages(
        samples=samples,
        advantages=tuple(batches),
        reasons=reasons,
        groups=groups,
        skipped_groups=skipped,
        breaks=gathered.breaks,
        left_out=gathered.left_out,
    )


def group_advantages(
    group: Group,
    settings: Grpo,
    channels: tuple[str, ...] | None = None,
    price: CostPrice | None = None,
    own: list[Floats] | None = None,
) -> list[AdvantageBatch]:
    """The advantage of every turn of every attempt at one task; `own` are somebody's, in place of the comparison."""
    team = group.trajectories
    credits = _priced(_credits(team, channels, settings) if own is None else own, team, settings, price)
    is_normalised = settings.scale and own is None
    return [
        advantage_batch(trajectory, credit, is_normalised) for trajectory, credit in zip(team, credits, strict=True)
    ]


def _credits(team: Sequence[Trajectory], channels: tuple[str, ...] | None, settings: Grpo) -> list[Floats]:
    """One number for each turn of each attempt."""
    if settings.terms == "normalised":
        totals = _normalised(team, channels, settings)
    else:
        totals = np.asarray([reward(trajectory, channels) or 0.0 for trajectory in team], dtype=np.float64)
    outcomes = group_relative(totals[None], scale=settings.scale)[0]
    lengths = np.asarray([trajectory.turn_count for trajectory in team])
    turns, mix = np.zeros(int(lengths.sum())), settings.mix
    if mix:
        ranks = [_rank(trajectory) for trajectory in team]
        turns = _turn_rewards(team, lengths, channels, settings)
        if PASSED in ranks and set(ranks) - {PASSED}:
            turns = turns + _measured(team, lengths, channels, settings)
        turns, mix = _bounded(turns, outcomes, lengths, ranks, settings)
    credit = turn_credit(turns, outcomes, lengths, mix=mix)
    return np.split(credit, np.cumsum(lengths)[:-1])


def _own(team: Sequence[Experience], credit: Credit) -> list[Floats]:
    """Advantages from the user's function: every turn of an attempt gets the attempt's advantage."""
    given = [float(one) for one in credit(team)]
    if len(given) != len(team) or not np.isfinite(given).all():
        why = f"gives {len(given)} numbers for {len(team)} attempts" if len(given) != len(team) else "gives no number"
        raise BadInput("advantages", why=why, remedy="return one finite number for each attempt, in their order")
    return [np.full(len(experience.calls), advantage) for experience, advantage in zip(team, given, strict=True)]


def _bounded(
    turns: Floats, outcomes: Floats, lengths: NDArray[np.int64], ranks: Sequence[int | None], settings: Grpo
) -> tuple[Floats, float]:
    """The turns' rewards and their share, so small that no token of a lower rank has more credit than one of a higher.

    Turns may take a quarter of the outcomes' distance from either side. Where all are of one rank nothing changes."""
    known = [rank is not None for rank in ranks]
    found = sorted({rank for rank in ranks if rank is not None})
    of = {rank: outcomes[[one == rank for one in ranks]] for rank in found}
    gaps = [float(of[high].min() - of[low].max()) for low, high in combinations(found, 2)]
    gaps = [gap for gap in gaps if gap > 0.0]  # a mild veto may cost less than penalties do: then the breakdown said so
    if not gaps:
        return turns, settings.mix
    mix = min(settings.mix, MOST_MIX)
    part = turn_credit(turns, np.zeros(len(lengths)), lengths, mix=mix)
    most = float(np.abs(part[np.repeat(known, lengths)]).max(initial=0.0))
    room = ROOM * (1.0 - mix) * min(gaps)
    return (turns * (room / most) if most > room else turns), mix


def _rank(trajectory: Trajectory) -> int | None:
    """The rank of an attempt, from the guard's signal or the safety gate; an agent can write neither."""
    signals = trajectory.signals
    if any(signal.name == GATE and signal.source == GATE_SOURCE and signal.value > 0.0 for signal in signals):
        return VETOED
    told = [signal.value for signal in signals if signal.name == GATED and signal.source.startswith("guard:")]
    if told:
        return _SHUT.get(told[-1])
    outcome = outcome_of(signals)
    return None if outcome is None else PASSED if outcome == "right" else FAILED


def _normalised(team: Sequence[Trajectory], channels: tuple[str, ...] | None, settings: Grpo) -> Floats:
    """Outcome + Σₖ wₖ zₖ, where z compares those that passed with one another, those that did not, and those that were
    vetoed, which stand a whole weight below the failures."""
    outcomes, shaping = np.zeros(len(team)), dict[str, Floats]()
    weighed = dict[str, Floats]()
    for place, trajectory in enumerate(team):
        signals = counted(trajectory, channels)
        if settings.outcome not in {signal.name for signal in signals}:
            why, remedy = f"{trajectory.rollout} has no such signal", "name the signal that decides, or sum the terms"
            raise BadInput(f"grpo.outcome = {settings.outcome!r}", why=why, remedy=remedy)
        for signal in signals:
            outcomes[place] += signal.value * signal.weight if signal.name == settings.outcome else 0.0
            shaping.setdefault(signal.name, np.zeros(len(team)))[place] += signal.value * signal.weight
            weighed.setdefault(signal.name, np.zeros(len(team)))[place] += abs(signal.weight)
    of_outcome = weighed.pop(settings.outcome)
    weight = float(of_outcome[of_outcome > 0.0].min(initial=np.inf))  # a veto left some of them 0
    weight = weight if np.isfinite(weight) else 1.0
    is_vetoed = np.asarray([_rank(trajectory) == VETOED for trajectory in team])
    outcomes = np.where(is_vetoed, -weight, outcomes)
    names = sorted(weighed)
    if not names:
        return outcomes
    return outcomes + normalise_then_sum(
        np.stack([shaping[name] for name in names]),
        np.asarray([weighed[name].max() for name in names]),
        np.where(is_vetoed, VETOED, np.where(outcomes > 0.0, PASSED, FAILED)),
        limit=ROOM * weight,
    )


def _priced(credits: list[Floats], team: Sequence[Trajectory], settings: Grpo, price: CostPrice | None) -> list[Floats]:
    """Subtracts the credits of the cost, which are compared separately by the same rules."""
    if price is None:
        return credits
    costs = cost_credit(team, price.cost, scale=settings.scale, mix=settings.mix)
    return [combine(mine, cost, price.multiplier) for mine, cost in zip(credits, costs, strict=True)]


def _turn_rewards(
    team: Sequence[Trajectory], lengths: NDArray[np.int64], channels: tuple[str, ...] | None, settings: Grpo
) -> Floats:
    """Rewards of turn k relative to turn k of the other attempts."""
    starts = np.cumsum(lengths) - lengths
    terms, weights = dict[str, Floats](), dict[str, float]()
    for start, trajectory in zip(starts, team, strict=True):
        for signal in counted(trajectory, channels):
            if signal.turn is not None:
                name = signal.name if settings.terms == "normalised" else ""
                term = terms.setdefault(name, np.zeros(int(lengths.sum())))
                term[start + signal.turn] += signal.value * signal.weight
                weights[name] = max(weights.get(name, 0.0), abs(signal.weight))
    index = np.concatenate([np.arange(length) for length in lengths])
    rewards = terms.get("", np.zeros(int(lengths.sum())))
    if settings.terms == "normalised":
        for name, term in sorted(terms.items()):
            rewards = rewards + weights[name] * group_relative(term, index)
    relative = group_relative(rewards, index, scale=settings.scale)
    return relative.astype(np.float64)


def _measured(
    team: Sequence[Trajectory], lengths: NDArray[np.int64], channels: tuple[str, ...] | None, settings: Grpo
) -> Floats:
    """What was measured of turn k, relative to turn k of the other attempts, and in its own unit: small differences
    stay small. Only for attempts of which some passed and some did not: what is measured says who brought the outcome
    about, and where all failed nothing is to be earned."""
    values = np.concatenate([measured_turns(trajectory, channels, settings.turn_term) for trajectory in team])
    index = np.concatenate([np.arange(length) for length in lengths])
    return group_relative(values, index, scale=False).astype(np.float64)


def measured_turns(trajectory: Trajectory, channels: tuple[str, ...] | None, term: str = PROGRESS) -> Floats:
    """What was measured of each turn and not paid; 0 where nothing was."""
    values = np.zeros(trajectory.turn_count)
    for signal in counted(trajectory, channels):
        if signal.turn is not None and signal.name == term and not signal.weight:
            values[signal.turn] = signal.value
    return values


def _credited(sample: Sample, batch: AdvantageBatch) -> Sample:
    credit = np.asarray(batch.advantages)
    advantages = np.where(sample.action_mask, credit[np.maximum(sample.turns, 0)], 0.0).astype(np.float32)
    return replace(sample, advantages=advantages)


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
    left_out: Mapping[str, int] = field(default_factory=dict)  # calls that were not trained on, by reason

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit(
    experiences: Sequence[Experience],
    reasons: Mapping[str, str | None],
    samples: Samples | None,
    *,
    breaks: Mapping[Break, int] | None = None,
    left_out: Mapping[SkipReason, int] | None = None,
    missing: int = 0,
    update: Update | None = None,
    constraint: Mapping[str, Any] | None = None,
) -> BatchAudit:
    """What came of one batch; `missing` rollouts were given up for faults of ours, or are not over."""
    found = {rollout: str(reason) for rollout, reason in reasons.items() if reason is not None}
    weighed = idle = 0
    if samples is not None:
        is_weighed = trained_mask(samples) & _weighed(samples)
        weighed, idle = int(is_weighed.sum()), int((samples.action_mask & ~is_weighed).sum())
        found |= _silent(samples, is_weighed, found)
    known = {experience.rollout for experience in experiences} | set(reasons)
    shares = dominance([experience for experience in experiences if experience.rollout not in found])
    top = max(shares, key=lambda name: shares[name], default=None)
    counts = Counter(found.values()) + Counter({str(SkipReason.FAULT): missing})
    return BatchAudit(
        rollouts=len(known) + missing,
        taught=len(known - set(found)),
        reasons=found,
        counts=dict(counts.most_common()),
        samples=0 if samples is None else len(samples),
        tokens=weighed,
        idle_tokens=idle,
        breaks={str(kind): count for kind, count in (breaks or {}).items()},
        left_out={str(reason): count for reason, count in (left_out or {}).items()},
        shares=shares,
        dominant=top if top is not None and len(shares) > 1 and shares[top] > DOMINANT else None,
        zero_gradient=None if update is None else update.grad_norm == 0.0,
        constraint=constraint,
    )


def dominance(experiences: Iterable[Experience]) -> dict[str, float]:
    """cov(signal, total) / var(total) for each signal by its name; empty where the total does not vary.

    The shares add up to 1; one that works against the others is below 0."""
    breakdowns: list[dict[str, float]] = []
    for experience in experiences:
        sums: dict[str, float] = {}
        for signal in (term for term in counted(experience, None) if term.turn is None or term.weight):
            sums[signal.name] = sums.get(signal.name, 0.0) + signal.value * signal.weight
        if sums:
            breakdowns.append(sums)
    names = sorted({name for breakdown in breakdowns for name in breakdown})
    if len(breakdowns) < 2:
        return {}
    table = np.asarray([[breakdown.get(name, 0.0) for name in names] for breakdown in breakdowns])
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
        told = self.algorithms[len(began) - 1].tell(_stage_state(state, began), batch, ctx)
        next_state = replace(told, step=state.step + 1, data={**told.data, BEGAN: began})
        return self.onward(next_state)

    def onward(self, state: AlgorithmState) -> AlgorithmState:
        """The state with the stage that it is in: those that have nothing more to ask are over."""
        began, _, _ = self._turn(state, (None,))
        return replace(state, data={**state.data, BEGAN: began})

    def _turn(self, state: AlgorithmState, tasks: Sequence[Any]) -> tuple[list[int], AlgorithmState, Sequence[Asked]]:
        began = list(state.data[BEGAN])
        while True:
            own = _stage_state(state, began)
            work = self.algorithms[len(began) - 1].ask(own, tasks)
            if work or len(began) == len(self.algorithms):
                return began, own, work
            began.append(state.step)


def _stage_state(state: AlgorithmState, began: Sequence[int]) -> AlgorithmState:
    """As the algorithm of the last stage counts its steps."""
    return replace(state, step=state.step - began[-1])


PHASE = "practice"
INLINE = 200  # rollouts whose reasons stand in the step's own result
MULTIPLIER = "multiplier"  # where a trainer keeps it


@dataclass(frozen=True, kw_only=True)
class GrpoDials:
    """How attempts are compared and the weights follow; the block `grpo` of a config file has the same names."""

    lr: float | None = None  # at the first step, falling to a tenth; None: by the number of parameters
    turn_credit: float = 0.0  # share of a turn's own reward in its credit; the rest is the outcome's
    scale: bool = field(default=True, metadata=LATER)  # divide by the group's spread; False: Dr. GRPO
    clip_low: float = field(default=0.2, metadata=LATER)
    clip_high: float = field(default=0.28, metadata=LATER)  # more room for rare tokens to grow: DAPO, arXiv:2503.14476
    epochs: int = field(default=1, metadata=LATER)
    minibatch: int = field(default=0, metadata=LATER)  # conversations for one update; 0: all of a step
    aggregate: How = field(default="token", metadata=LATER)  # what the mean of the loss is over
    constant: float | None = field(default=None, metadata=LATER)  # tokens, for sequence_norm_constant
    reference_kl: float = field(default=0.0, metadata=LATER)  # to what the iteration began with
    behaviour_kl: float = field(default=0.0, metadata=LATER)  # to what sampled
    entropy: float = field(default=0.0, metadata=LATER)
    importance_cap: float | None = field(default=None, metadata=LATER)  # truncated importance sampling; None: none
    max_kl: float | None = field(default=None, metadata=LATER)  # a step that goes beyond is taken back
    piece_tokens: int = field(default=0, metadata=LATER)  # read at once; 0: what suits the machine

    def __post_init__(self) -> None:
        least = dict.fromkeys(("reference_kl", "behaviour_kl", "entropy", "clip_low", "clip_high"), 0.0)
        least |= {"epochs": 1, "minibatch": 0, "piece_tokens": 0, "importance_cap": 1}
        check_dials("grpo", self, above=("lr", "constant", "max_kl"), least=least)
        check_dials("grpo", self, least={"turn_credit": 0, "clip_low": 0}, most=1.0)
        for name in ("epochs", "minibatch", "piece_tokens"):
            if not isinstance(getattr(self, name), int):
                raise BadInput(f"grpo.{name} = {getattr(self, name)}", why="must be a whole number")
        check_aggregate("grpo", self.aggregate, self.constant)

    @property
    def objective(self) -> Objective:
        names = ("clip_low", "clip_high", "reference_kl", "behaviour_kl", "entropy", "importance_cap", "aggregate")
        return Objective(constant=self.constant, **{name: getattr(self, name) for name in names})


@dataclass(frozen=True, kw_only=True)
class GRPO(GrpoDials):
    """Group-relative policy optimisation of a model whose weights are ours."""

    steps: int = 8
    tasks: int = 16  # in each step, in the order they are given
    samples: int = 8  # attempts at each task
    compare: Grpo | None = None  # all of how attempts are compared, in place of `turn_credit` and `scale`
    credit: Credit | None = None  # from the attempts at one task the advantage of each, in place of the group's own
    train_on: str | None = field(default=None, metadata=LATER)  # a model's name or a tag: such calls; None: its own
    budget_s: float | None = None  # of learning, in each iteration; None: as much as it takes
    constraint: Constraint | None = None
    held_out: Sequence[Any] = ()  # inputs that must not be among the tasks
    seed: int = 0
    phase: str = PHASE  # the word that names its rollouts
    measure: Callable[[Sequence[Experience]], Mapping[str, Any]] | None = None  # more figures of each batch
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_dials("grpo", self, least={"steps": 1, "tasks": 1})
        if self.train_on is not None and not self.train_on.strip():
            raise BadInput("grpo.train_on", why="is empty", remedy="name a model or a tag, or leave it out")
        if self.samples < 2:
            raise BadInput(f"grpo.samples = {self.samples}", why="attempts are compared: there must be at least 2")

    def start(self, base: Policy) -> AlgorithmState:
        check_trainable(base)
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        return () if self._is_spent(state) else practice(state, tasks, self.phase, self.steps, self.tasks, self.samples)

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        with self.learner.undone_on_failure():
            return self._learn(state, batch, ctx)

    def _is_spent(self, state: AlgorithmState) -> bool:
        return self.budget_s is not None and float(state.data.get("learning_s", 0.0)) >= self.budget_s

    def _learn(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        experiences = ctx.experiences(batch)
        began, phase = time.perf_counter(), f"{self.phase} {state.iteration + 1}"
        intake = SampleFilter(run=ctx.run, versions=(state.policy.version,), train_on=self.train_on)
        clean, findings, aside = sift(experiences, self.held_out, intake)
        metrics: dict[str, Any] = {"phase": phase, "iteration": state.iteration, "reward": mean_reward(experiences)}
        metrics |= {"quality": [encode(finding) for finding in findings], "rollouts": len(experiences)}
        if self.measure is not None:
            metrics |= self.measure(experiences)
        if not ctx.features.learning:
            return state.next(metrics={**metrics, "skipped": SWITCHED_OFF})
        assert isinstance(state.policy, Model) and isinstance(state.base, Model)
        model = self.learner.load(state.policy, ctx.files)
        make = partial(self._trainer, base=state.base, files=ctx.files)
        trainer = self.learner.train(phase, make, ctx.files, is_new=state.data.get("trainer") != phase)
        trainer.pause_point = ctx.check
        intake = fitted(intake, model)
        held = price = None
        if self.constraint is not None:
            mean = mean_cost(experiences, intake, self.constraint.cost)
            held = from_dict(trainer.beside.get(MULTIPLIER)).updated(mean, self.constraint)
            price = CostPrice(cost=self.constraint.cost, multiplier=held.value)
            metrics["constraint"] = describe(self.constraint, held, mean)
        rules = self.compare or Grpo(mix=self.turn_credit, scale=self.scale)
        compared = compare(clean, intake, rules, price, self.credit)
        update, data = None, dict[str, Any]()
        candidate: Model | None = None
        if compared.samples is not None:
            if held is not None:
                trainer.beside[MULTIPLIER] = held.to_dict()
            update = trainer.step(compared.samples)
            metrics["update"] = update.to_dict()
            metrics["advantages"] = {"blob": ctx.save([encode(advantage) for advantage in compared.advantages])}
            candidate = self._kept(update, ctx, metrics["reward"])
        if candidate is not None:
            metrics["checkpoint"], data["trainer"] = candidate.checkpoint, phase
        found = audit(
            clean,
            {**compared.reasons, **aside},
            compared.samples,
            breaks=compared.breaks,
            left_out=compared.left_out,
            missing=max(0, batch.count - len(experiences)),
            update=update,
            constraint=metrics.get("constraint"),
        )
        metrics["audit"] = brief(found.to_dict(), ctx)
        spent = round(time.perf_counter() - began - ctx.held_s, 3)  # a pause is nobody's learning
        data["learning_s"] = round(float(state.data.get("learning_s", 0.0)) + spent, 3)
        return state.next(candidate=candidate, metrics={**metrics, "learning_s": spent}, **data)

    def _kept(self, update: Update, ctx: LearnContext, reward: float | None) -> Model | None:
        """The candidate; None where the step was taken back or moved nothing: the next one begins as the last one that
        was kept did, in this process or in another."""
        if update.restored is not None or update.delta_norm == 0.0:
            self.learner.forget()
            return None
        return self.learner.save(ctx, algorithm="grpo", mean_reward=reward)

    def _trainer(self, model: nn.Module, base: Model, files: Artifacts) -> Trainer:
        rate = default_learning_rate(model) if self.lr is None else self.lr
        parts = -(-self.tasks * self.samples // self.minibatch) if self.minibatch else 1
        settings = Settings(
            objective=self.objective,
            optimizer=OptimizerConfig(learning_rate=rate, schedule="linear", total=self.steps * self.epochs * parts),
            epochs=self.epochs,
            minibatch=self.minibatch,
            max_tokens_per_batch=self.piece_tokens,
            max_kl=self.max_kl,
            is_measured=self.max_kl is not None,
        )
        reference = models.load(base, files)[0] if self.reference_kl else None
        return trainer_of(model, settings, seed=self.seed, reference=reference)


def check_trainable(base: Policy) -> None:
    if not isinstance(base, Model):
        why = "its weights are out of reach"
        raise BadInput(f"policy {base.version}", why=why, remedy="give a local model, or improve its prompt")


def practice(
    state: AlgorithmState, tasks: Sequence[Any], phase: str, steps: int, step_tasks: int, samples: int
) -> Sequence[Work]:
    """The attempts of the next step; none where the steps are over, or nothing is there to be tried."""
    if state.step >= steps or not tasks:
        return ()
    begun, named = (state.iteration * steps + state.step) * step_tasks, f"{phase}-{state.iteration}-{state.step}"
    return [
        Work(
            name=f"{named}-{turn}-{attempt}",
            input=tasks[(begun + turn) % len(tasks)],
            policy=state.policy,
            group=f"{named}-{turn}",
            split=Split.TRAIN,
        )
        for turn in range(step_tasks)
        for attempt in range(samples)
    ]


def brief(told: Mapping[str, Any], ctx: LearnContext) -> dict[str, Any]:
    """The same, small enough for a step's result: the reasons of many rollouts are kept beside it."""
    reasons = told.get("reasons", {})
    return dict(told) if len(reasons) <= INLINE else {**told, "reasons": {"blob": ctx.save(reasons)}}


def sift(
    experiences: Sequence[Experience], held_out: Iterable[Any] = (), intake: SampleFilter | None = None
) -> tuple[list[Experience], tuple[Finding, ...], dict[str, str]]:
    """What may be learnt from, what the data gates say of that, and for each rollout put aside the gate that did it.

    A gate later asks what was learnt from: that some of it had to be put aside is worth knowing, and no reason to stay
    closed."""
    kept_out, chosen = list(held_out), partial(_trained, intake or SampleFilter())
    standards = quality.Standards(calls=chosen)
    aside = quality.audit(experiences, held_out=kept_out, standards=standards).quarantined
    clean = [experience for experience in experiences if experience.rollout not in aside]
    first = next((f"{rollout}: {', '.join(names)}" for rollout, names in aside.items()), "")
    counted = Finding(
        name="put_aside", severity="warning", count=len(aside), of=len(experiences), detail=first, blocks=False
    )
    findings = quality.audit(clean, held_out=kept_out, standards=standards).findings
    mute = {experience.rollout for experience in experiences if not experience.calls}
    reasons = {
        rollout: SkipReason.NO_TRAJECTORY if rollout in mute else f"{DATA_GATE}{names[0]}"
        for rollout, names in aside.items()
    }
    return clean, (*findings, counted), reasons


def _trained(intake: SampleFilter, experience: Experience) -> list[ModelCall]:
    return [experience.calls[turn] for turn in trained_turns(experience, intake)]


def mean_reward(experiences: Sequence[Experience]) -> float | None:
    rewards = [experience.reward for experience in experiences if experience.reward is not None]
    return sum(rewards) / len(rewards) if rewards else None
