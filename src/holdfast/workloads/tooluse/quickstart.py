"""From a weak model to a better one at using tools: `improve` with a warm-up by examples and practice by GRPO.

The tasks of the test split are seen by the proof alone; whether the warm-up has gone far enough is read off tasks of
the validation split, and practice uses train tasks. Results (rates before and after with intervals, the difference,
and the curve) are read from the run's steps; `plots` draws them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from holdfast.collect.agent import OwnScore, Score
from holdfast.collect.pool import PoolTiming
from holdfast.contracts.algorithm import SWITCHED_OFF, Algorithm, AlgorithmState, Batch, LearnContext, Work
from holdfast.contracts.engine import Engine
from holdfast.contracts.evidence import Interval
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import LEGACY_STEP, StepRecord
from holdfast.learn.checkpoints import Learner
from holdfast.learn.grpo import BEGAN, GRPO, Stages, mean_reward
from holdfast.learn.sft import portions, sequences
from holdfast.learn.train import OptimizerConfig, Settings, Trainer
from holdfast.pipeline.context import Runtime, StepContext
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.improve import Spec, improve
from holdfast.pipeline.prove import ARMS, PHASE, ProveConfig
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.promote.gate import Criteria, SpreadLimits
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.estimate import difference, wilson
from holdfast.reward.scorers import with_safety
from holdfast.store.store import Store
from holdfast.workloads.tooluse.agent import ExamMark, agent, mark, summary
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.score import MOST, scorer
from holdfast.workloads.tooluse.tasks import ToolTask, generate, to_input

SAMPLING = {"temperature": 1.0, "max_tokens": 80}
MAX_TURNS = 5
TIMEOUT_S = 120.0
# With 200 tasks, two seeds differ by about 0.05 for no reason at all: the documented bands are for larger suites.
APART = SpreadLimits(p_value=0.05, delta=0.15)
SPREADS: dict[str, Any] = {f"{what}_p_value_spread": APART.p_value for what in ("seed", "sample")}
SPREADS |= {f"{what}_delta_spread": APART.delta for what in ("seed", "sample")}
COMPARISON = ComparisonConfig(reward_range=(0.0, MOST), **SPREADS)
CRITERIA = Criteria(min_reward_delta=0.05, max_seed_spread=APART, max_sample_spread=APART)
WARM_UP, PRACTICE, MARKS = "warm-up", "grpo", "marks"


class LocalTraining(Protocol):
    """The settings of every run that trains a local model on tools: a dataclass with these fields."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def workers(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Quickstart:
    """The settings of the quickstart."""

    model: str = "sprout-weak"
    seed: int = 0
    test_tasks: int = 200
    test_seeds: int = 2  # tries at each, before and after: does a finding hold with other chance?
    probe_tasks: int = 96  # of the validation split: has the warm-up gone far enough?
    warm_up_target: float = 0.35  # sampled accuracy
    warm_up_rounds: int = 12  # at most
    warm_up_updates: int = 5  # in each round
    warm_up_batch: int = 16  # conversations
    warm_up_rate: float = 3e-4
    grpo_steps: int = 16
    grpo_tasks: int = 16
    grpo_samples: int = 8  # attempts at each task
    grpo_rate: float = 3e-4
    turn_credit: float = 0.0  # share of a turn's own reward in its credit
    workers: int = 64


QUICK = Quickstart(test_tasks=24, probe_tasks=12, warm_up_rounds=1, grpo_steps=1, grpo_tasks=5, grpo_samples=4)


def spec_for(settings: Quickstart) -> RunSpec:
    return training_spec("quickstart", settings, OwnScore(scorer), partial(quickstart, settings))


def training_spec(
    kind: str,
    settings: LocalTraining,
    score: Score,
    program: Callable[[DurableRun], Any],
    engine: Engine | None = None,
) -> RunSpec:
    """The spec of a run that improves a local model, or its prompt, at using tools by the given program."""
    engine = engine or LocalEngine(slots=settings.workers, seed=settings.seed)
    return RunSpec(
        kind=kind,
        program=program,
        model_ref=f"local/{settings.model}",
        settings=asdict(settings),
        runtime=Runtime(agent, with_safety(score), engine),
        workers=settings.workers,
        timing=PoolTiming(heartbeat_s=1.0, lease_s=10.0),
        seed=settings.seed,
        drain_s=10.0,
    )


async def quickstart(settings: Quickstart, run: DurableRun) -> None:
    """Warms up, practises, proves on held-out tasks and promotes; then marks every answer for the report."""
    run.planned = settings.grpo_steps * settings.grpo_tasks * settings.grpo_samples
    run.planned += 2 * settings.test_tasks * settings.test_seeds
    spec = learning_spec(
        run.id,
        Model(settings.model),
        _algorithm(settings, resumed(settings, run.done)),
        practice_tasks(settings.seed, settings.grpo_steps, settings.grpo_tasks),
        [given(task) for task in generate("test", settings.seed, settings.test_tasks)],
        seeds=tuple(range(settings.test_seeds)),
        stage=Stage.LIVE,
    )
    await improve(run, spec)
    await run.step(MARKS, partial(marks, settings.test_seeds), title="marks")


def learning_spec(
    line: str,
    policy: Policy,
    algorithm: Algorithm,
    tasks: Sequence[Any],
    tests: Sequence[Mapping[str, Any]],
    *,
    seeds: Sequence[int] = (0,),
    batch: int | None = None,
    stage: Stage | None = None,
    suite: str = "tooluse",
) -> Spec:
    """A policy that learns from the tasks and is proved on the tests, `batch` of them between two looks."""
    return Spec(
        line=line,
        policy=policy,
        algorithm=algorithm,
        tasks=tasks,
        held_out=[HeldOut(id=f"{one['family']}-{place}", input=one) for place, one in enumerate(tests)],
        prove=ProveConfig(
            how=COMPARISON, seeds=seeds, batch=batch or len(tests), split=Split.TEST, timeout_s=TIMEOUT_S
        ),
        criteria=CRITERIA,
        stage=stage,
        timeout_s=TIMEOUT_S,
        suite=(suite, "1"),
    )


def practice_tasks(seed: int, steps: int, count: int) -> list[Any]:
    """The practice tasks of all steps, in order."""
    return [given(task) for step in range(steps) for task in generate("train", seed * 1000 + 1 + step, count)]


def marks(tries: int, *, ctx: StepContext) -> dict[str, Any]:
    """Marks what both versions did with each held-out task; without a proof it has only the number of tries."""
    rollouts = ctx.store.views.of_step(ctx.run, "0/prove/0")
    payload: dict[str, Any] = {"tries": tries}
    for arm in ARMS:
        some = [rollout.id for rollout in rollouts if rollout.name.startswith(f"proof-0-{arm}-")]
        payload[arm] = summary(marked(ctx.store.experiences.of(some)))
    return payload if rollouts else {"tries": tries}


def given(task: ToolTask) -> dict[str, Any]:
    return {**to_input(task), "sampling": SAMPLING, "max_turns": MAX_TURNS}


def marked(experiences: Iterable[Experience]) -> list[ExamMark]:
    """An attempt lost to an infrastructure fault is missing; an attempt whose agent failed is wrong."""
    found = []
    for experience in experiences:
        signals = experience.breakdown.signals if experience.breakdown is not None else ()
        if signals or experience.state is RolloutState.FAILED:
            found.append(mark(experience.input, signals, experience.spans))
    return found


def rates(counts: Mapping[str, Any]) -> dict[str, float | None]:
    def rate(name: str) -> float | None:
        right, of = counts[name]
        return right / of if of else None

    return {name: rate(name) for name in ("success", "adoption", "format")}


# Learning ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Tries some tasks; while too few are solved, it learns from a few examples."""

    settings: Quickstart
    learner: Learner = field(default_factory=Learner, compare=False, repr=False)

    def start(self, base: Policy) -> AlgorithmState:
        return AlgorithmState(base=base)

    def ask(self, state: AlgorithmState, tasks: Sequence[Any]) -> Sequence[Work]:
        if state.data.get("is_warm"):
            return ()
        probes = generate("val", self.settings.seed, self.settings.probe_tasks)
        names = [f"probe-{state.step}-{place}" for place in range(len(probes))]
        return [
            Work(name=name, input=given(task), policy=state.policy, group=name, split=Split.VAL)
            for name, task in zip(names, probes, strict=True)
        ]

    def tell(self, state: AlgorithmState, batch: Batch, ctx: LearnContext) -> AlgorithmState:
        experiences, settings = ctx.experiences(batch), self.settings
        found = summary(marked(experiences))
        right, of = found["success"]
        metrics: dict[str, Any] = {"phase": WARM_UP, "iteration": state.iteration, **rates(found)}
        metrics["rollouts"] = len(experiences)
        if (bool(of) and right >= settings.warm_up_target * of) or state.step >= settings.warm_up_rounds:
            return state.next(metrics=metrics, is_warm=True)
        if not ctx.features.learning:
            return state.next(metrics={**metrics, "skipped": SWITCHED_OFF}, is_warm=True)
        try:
            learnt, candidate = self._imitate(state, ctx, mean_reward(experiences))
        except BaseException:
            self.learner.forget()
            raise
        data = {} if candidate is None else {"trainer": WARM_UP}
        return state.next(candidate=candidate, metrics={**metrics, **learnt}, **data)

    def _imitate(
        self, state: AlgorithmState, ctx: LearnContext, reward: float | None
    ) -> tuple[dict[str, Any], Model | None]:
        """Makes some updates and saves the checkpoint; None when all of them were rolled back."""
        settings = self.settings
        assert isinstance(state.policy, Model)
        self.learner.load(state.policy, ctx.files)
        trainer = self.learner.train(WARM_UP, self._trainer, ctx.files, is_new=state.data.get("trainer") != WARM_UP)
        first = settings.seed * 10**6 + 1000
        examples = sequences(zip(*corpus("strong", "train", first, 2000), strict=True))
        begun = state.step * settings.warm_up_updates
        batches = portions(examples, settings.warm_up_batch, seed=settings.seed, start=begun)
        updates = []
        for _ in range(settings.warm_up_updates):
            ctx.check()
            updates.append(trainer.step(next(batches)))
        last = updates[-1]
        metrics: dict[str, Any] = {"loss": last.loss, "grad_norm": last.grad_norm, "entropy": last.entropy}
        if all(update.restored is not None for update in updates):
            self.learner.forget()  # the next round begins as the last one that was kept did
            return {**metrics, "update": last.to_dict()}, None
        candidate = self.learner.save(ctx, algorithm="sft", mean_reward=reward)
        return {**metrics, "checkpoint": candidate.checkpoint}, candidate

    def _trainer(self, model: Any) -> Trainer:
        return Trainer(
            model,
            Settings(optimizer=OptimizerConfig(learning_rate=self.settings.warm_up_rate)),
            seed=self.settings.seed,
        )


def _algorithm(settings: Quickstart, earlier: AlgorithmState | None) -> Stages | Resumed:
    practice = GRPO(
        lr=settings.grpo_rate,
        steps=settings.grpo_steps,
        tasks=settings.grpo_tasks,
        samples=settings.grpo_samples,
        turn_credit=settings.turn_credit,
        seed=settings.seed,
        phase=PRACTICE,
        measure=lambda experiences: rates(summary(marked(experiences))),
    )
    stages = Stages((WarmUp(settings=settings), practice))
    return stages if earlier is None else Resumed(stages.algorithms, earlier)


# Runs that versions before durable steps began -----------------------------------------------------------------------


@dataclass(frozen=True)
class Resumed(Stages):
    """The same stages, started where an older version stopped."""

    earlier: AlgorithmState

    def start(self, base: Policy) -> AlgorithmState:
        return replace(self.earlier, base=base)


def resumed(settings: Quickstart, done: Sequence[StepRecord]) -> AlgorithmState | None:
    """The last checkpoint and the stage of a run that an older version began."""
    bodies = [record.body for record in done if record.function == LEGACY_STEP]
    checkpoints = [str(body["checkpoint"]) for body in bodies if "checkpoint" in body]
    warm = [body for body in bodies if body.get("phase") == WARM_UP]
    practised = sum(body.get("phase") == PRACTICE for body in bodies)
    if not checkpoints:
        return None
    is_warm = any(body.get("is_warm") for body in warm)
    base = Model(settings.model)
    trainer = f"{PRACTICE} 1" if practised else WARM_UP
    began = [0, len(warm)] if is_warm else [0]
    data = {BEGAN: began, "is_warm": is_warm, "trainer": trainer}
    return AlgorithmState(base=base, candidate=base.at(checkpoints[-1]), step=len(warm) + practised, data=data)


# Results ------------------------------------------------------------------------------------------------------------

Episodic = Mapping[str, Any]  # an episode as it is kept
BASELINE, TRAINED = "baseline", "trained"  # phases of versions before durable steps

RATES = {"success": "tasks solved", "adoption": "tool adoption", "format": "style kept"}


@dataclass(frozen=True, slots=True)
class MeasuredVersions:
    """Marks and episodes of both versions."""

    tries: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    old: Sequence[Episodic]
    new: Sequence[Episodic]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRate:
    right: int
    of: int
    interval: Interval

    @property
    def value(self) -> float:
        return self.right / self.of if self.of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """One rate before and after."""

    name: str
    baseline: SuccessRate
    trained: SuccessRate

    @property
    def is_lifted(self) -> bool:
        """The intervals do not overlap."""
        return self.trained.interval.low > self.baseline.interval.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step of the curve."""

    step: int
    phase: str
    success: float | None
    adoption: float | None
    reward: float | None = None
    kl: float | None = None
    entropy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    changes: Mapping[str, RateChange]  # by rate
    families: Mapping[str, tuple[SuccessRate, SuccessRate]]  # success by family of tasks, before and after
    gain: Interval  # of the success rate, task by task
    curve: Sequence[Point]
    silent: Mapping[str, int]  # why rollouts of the practice gave no gradient
    practised: int  # rollouts


def measured(store: Store, steps: Sequence[StepRecord]) -> MeasuredVersions | None:
    """Reads what the run has kept of both versions; None while one is missing. Versions before durable steps kept
    each in a body of its own."""
    old = {str(step.body.get("phase")): step.body for step in steps if step.function == LEGACY_STEP}
    if BASELINE in old and TRAINED in old:
        kept = [old[name][part] for part in ("marks", "episodes") for name in (BASELINE, TRAINED)]
        return MeasuredVersions(int(old[BASELINE]["tries"]), *kept)
    marks = next((step.body for step in steps if step.name == MARKS), {})
    looked = [step.body for step in steps if step.body.get("phase") == PHASE and "look" in step.body]
    if not all(arm in marks for arm in ARMS) or not looked:
        return None
    kept = json.loads(store.blobs.get(looked[-1]["episodes"]))
    return MeasuredVersions(int(marks["tries"]), *(marks[arm] for arm in ARMS), *(kept[arm] for arm in ARMS))


def results(store: Store, updates: Sequence[StepRecord], *, rng: np.random.Generator) -> Results | None:
    """None while one of the two measurements is missing."""
    both = measured(store, updates)
    if both is None:
        return None
    before, after = both.before, both.after
    rate = partial(_rate, tries=both.tries)
    audits = [update.body["audit"] for update in updates if "audit" in update.body]
    silent: dict[str, int] = {}
    for found in audits:
        for reason, count in found["counts"].items():
            silent[reason] = silent.get(reason, 0) + count
    return Results(
        changes={name: RateChange(name=name, baseline=rate(before[name]), trained=rate(after[name])) for name in RATES},
        families={
            name: (rate(before["families"][name]["success"]), rate(after["families"][name]["success"]))
            for name in before["families"]
            if name in after["families"]
        },
        gain=_gain(both.old, both.new, rng),
        curve=curve(updates),
        silent=silent,
        practised=sum(found["rollouts"] for found in audits),
    )


def turned(store: Store, updates: Sequence[StepRecord]) -> list[tuple[str, str]]:
    """Rollouts of held-out tasks, before and after, that were wrong and then right; in the order of the tasks."""
    both = measured(store, updates)
    sides = ((), ()) if both is None else (both.old, both.new)
    old, new = ({(one["task"], one["seed"]): one for one in side if one["rollout"] is not None} for side in sides)
    return [
        (str(old[key]["rollout"]), str(one["rollout"]))
        for key, one in new.items()
        if key in old and not old[key]["success"] and one["success"]
    ]


def curve(updates: Sequence[StepRecord]) -> list[Point]:
    """The warm-up and the practice, step by step."""
    points = []
    for update in updates:
        body = update.body
        if str(body.get("phase")).partition(" ")[0] in (WARM_UP, PRACTICE):
            made: Mapping[str, Any] = body.get("update") or {}
            points.append(
                Point(
                    step=update.step,
                    phase=str(body["phase"]).partition(" ")[0],
                    success=body.get("success"),
                    adoption=body.get("adoption"),
                    reward=body.get("reward"),
                    kl=made.get("approx_kl"),
                    entropy=made.get("entropy", body.get("entropy")),
                )
            )
    return points


def _gain(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> Interval:
    """Over the tasks marked both times; the widest interval where there are fewer than two."""
    old, new = _solved(before), _solved(after)
    both = [task for task in old if task in new]
    if len(both) < 2:
        return Interval(low=-1.0, high=1.0)
    column = [np.asarray([[side[task]] for task in both]) for side in (old, new)]
    return difference(column[0], column[1], rng=rng)


def _solved(episodes: Sequence[Episodic]) -> dict[str, float]:
    """Computes the share of tries that solved each task."""
    tries: dict[str, list[float]] = {}
    for episode in episodes:
        tries.setdefault(str(episode["task"]), []).append(float(episode["success"] or 0.0))
    return {task: sum(some) / len(some) for task, some in tries.items()}


def _rate(counted: Sequence[int], tries: int) -> SuccessRate:
    """Several tries at one task are not independent: the interval is that of as many trials as there are tasks."""
    right, of = counted
    interval = wilson(right / tries, of / tries) if of else Interval(low=0.0, high=1.0)
    return SuccessRate(right=right, of=of, interval=interval)
