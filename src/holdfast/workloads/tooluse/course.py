"""From a weak model to a better one at using tools: measure it, warm it up by examples, let it practise, measure again,
and bring it before the gate.

Each lesson follows from what the earlier ones recorded. The tasks of the test split are seen by the two measurements
alone; whether the warm-up has gone far enough is read off tasks of the validation split, and practice uses train tasks.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol

from holdfast.collect.agent import Score
from holdfast.collect.plan import Learnt, Lesson, Plan, Proposal, Standing
from holdfast.collect.pool import Pace as PoolPace
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.evidence import Episode, Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.features import ALL_ON, Features
from holdfast.contracts.records import decode, encode
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.rollout import Task as Job
from holdfast.learn.clone import portions, sequences
from holdfast.learn.grpo import OBJECTIVE
from holdfast.learn.train import Pace, Settings, Trainer
from holdfast.promote.gate import Criteria, Spread
from holdfast.prove.matrix import pairs
from holdfast.prove.weigh import Weighing
from holdfast.workloads.episodes import episodes
from holdfast.workloads.practice import SWITCHED_OFF, mean_reward, practise
from holdfast.workloads.proof import Case, propose, summed
from holdfast.workloads.pupil import Pupil
from holdfast.workloads.tooluse.agent import agent
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.exam import Mark, mark, summary
from holdfast.workloads.tooluse.score import MOST, scorer
from holdfast.workloads.tooluse.tasks import Task, generate, to_input

SAMPLING = {"temperature": 1.0, "max_tokens": 80}
MAX_TURNS = 5
# With 200 tasks, two seeds differ by about 0.05 for no reason at all: the documented bands are for larger suites.
APART = Spread(p_value=0.05, delta=0.15)
WEIGHING = Weighing(
    reward_range=(0.0, MOST),
    seed_p_value_spread=APART.p_value,
    seed_delta_spread=APART.delta,
    sample_p_value_spread=APART.p_value,
    sample_delta_spread=APART.delta,
)
CRITERIA = Criteria(min_reward_delta=0.05, max_seed_spread=APART, max_sample_spread=APART)
BASELINE, WARM_UP, PRACTICE, TRAINED = "baseline", "warm-up", "grpo", "trained"


class Schooling(Protocol):
    """What every such course is told, whatever else it is told: a dataclass with these."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def model(self) -> str: ...
    @property
    def seed(self) -> int: ...
    @property
    def workers(self) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Quickstart:
    """The dials of the course, and how many of everything."""

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
    grpo_rate: float = 1e-3
    workers: int = 64


QUICK = Quickstart(test_tasks=24, probe_tasks=12, warm_up_rounds=1, grpo_steps=1, grpo_tasks=5, grpo_samples=4)


def plan_for(settings: Quickstart, features: Features = ALL_ON) -> Plan:
    return schooled("quickstart", settings, scorer(features), lambda pupil: Course(settings, pupil).lesson)


def schooled(
    kind: str, settings: Schooling, score: Score, course: Callable[[Pupil], Callable[[Standing], Lesson | None]]
) -> Plan:
    """A local model that is taught to use tools: its plan, of whatever lessons the course has."""
    pupil = Pupil(settings.model, seed=settings.seed, slots=settings.workers)
    home = Home(agent, score, lambda version: pupil.local, time.time)

    def close() -> None:
        home.close()
        pupil.close()

    return Plan(
        kind=kind,
        course=course(pupil),
        resources={},
        model_ref=f"local/{settings.model}",
        settings=asdict(settings),
        seats=lambda: Seat(home.place()),
        close=close,
        workers=settings.workers,
        pace=PoolPace(heartbeat_s=1.0, lease_s=10.0),
        seed=settings.seed,
        drain_s=10.0,
    )


class Course:
    def __init__(self, settings: Quickstart, pupil: Pupil) -> None:
        self._settings, self._pupil = settings, pupil

    def lesson(self, standing: Standing) -> Lesson | None:
        """The next one, by what is on record."""
        self._pupil.be_at(standing)
        phases = [str(update.body.get("phase")) for update in standing.done]
        if BASELINE not in phases:
            return self._measured(standing, BASELINE)
        is_warm = any(update.body.get("is_warm") for update in standing.done)
        if not is_warm:
            return self._warm_up(standing, phases.count(WARM_UP))
        if phases.count(PRACTICE) < self._settings.grpo_steps:
            return self._practice(standing, phases.count(PRACTICE))
        return None if TRAINED in phases else self._measured(standing, TRAINED)

    def _measured(self, standing: Standing, phase: str) -> Lesson:
        """The same tasks before and after."""
        settings = self._settings
        tasks = generate("test", settings.seed, settings.test_tasks)
        named = {
            _try(phase, place, seed): (place, seed)
            for seed in range(settings.test_seeds)
            for place in range(len(tasks))
        }
        jobs = [job(name, tasks[place], Split.TEST) for name, (place, _) in named.items()]
        places = {name: (f"{tasks[place].family}-{place}", seed) for name, (place, seed) in named.items()}

        def learn(experiences: Sequence[Experience]) -> Learnt:
            marks, found = list(marked(jobs, experiences).values()), episodes(experiences, places)
            told: dict[str, Any] = {"phase": phase, "tries": settings.test_seeds, "marks": summary(marks)}
            told["episodes"] = [encode(one) for one in found]
            return Learnt(body=told, proposal=None if phase == BASELINE else self._proposal(standing, tasks, found))

        left = self._left(0) if phase == BASELINE else 0
        return Lesson(name=f"{phase}: {len(tasks)} held-out tasks", tasks=jobs, left=left, learn=learn)

    def _proposal(self, standing: Standing, tasks: Sequence[Task], after: Sequence[Episode]) -> Proposal | None:
        """What was learnt, against what it was learnt from; None where nothing was, or too little came back."""
        bodies = [update.body for update in standing.done]
        made = [str(body["checkpoint"]) for body in bodies if "checkpoint" in body]
        before = [decode(Episode, one) for body in bodies if body.get("phase") == BASELINE for one in body["episodes"]]
        if not made or len(pairs(before, after, WEIGHING.primary)[0]) < 2:
            return None
        case = Case(
            run=standing.run,
            policy=standing.run,
            suite=("tooluse", "1", _hash([to_input(task) for task in tasks])),
            baseline=f"shelf:{self._settings.model}",
            candidate=f"checkpoint:{made[-1]}",
            before=before,
            after=after,
            planned=self._settings.test_tasks * self._settings.test_seeds,
            audit=summed([[decode(Finding, one) for one in body["quality"]] for body in bodies if "quality" in body]),
            manifest={"checkpoint": made[-1], "settings": asdict(self._settings)},
        )
        return propose(case, WEIGHING, CRITERIA, reports=standing.reports, now=time.time())

    def _warm_up(self, standing: Standing, number: int) -> Lesson:
        """Try some tasks; while too few are solved, learn from a few examples."""
        settings = self._settings
        tasks = generate("val", settings.seed, settings.probe_tasks)
        jobs = [job(f"probe-{number}-{place}", task, Split.VAL) for place, task in enumerate(tasks)]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            found = summary(list(marked(jobs, experiences).values()))
            right, of = found["success"]
            told: dict[str, Any] = {"phase": WARM_UP, **rates(found)}
            is_warm = bool(of) and right >= settings.warm_up_target * of
            if is_warm or number >= settings.warm_up_rounds:
                return Learnt(body={**told, "is_warm": True})
            if not standing.features.learning:
                return Learnt(body={**told, "is_warm": True, "skipped": SWITCHED_OFF})
            trainer = self._pupil.trainer(standing, WARM_UP, self._copyist)
            first = settings.seed * 10**6 + 1000
            examples = sequences(zip(*corpus("strong", "train", first, 2000), strict=True))
            begun = number * settings.warm_up_updates
            batches = portions(examples, settings.warm_up_batch, seed=settings.seed, start=begun)
            for _ in range(settings.warm_up_updates):
                self._pupil.heed()
                update = trainer.step(next(batches))
                told |= {"loss": update.loss, "grad_norm": update.grad_norm, "entropy": update.entropy}
            checkpoint = self._pupil.keep(standing, algorithm="sft", mean_reward=mean_reward(experiences))
            return Learnt(body={**told, "is_warm": False}, checkpoint=checkpoint)

        return Lesson(name=f"warm-up {number + 1}", tasks=jobs, left=self._left(0), learn=learn)

    def _practice(self, standing: Standing, number: int) -> Lesson:
        """Several attempts at each of some tasks; what did better than the others becomes more likely."""
        settings = self._settings
        tasks = generate("train", settings.seed * 1000 + 1 + number, settings.grpo_tasks)
        jobs = [
            job(f"grpo-{number}-{place}-{attempt}", task, Split.TRAIN, group=f"grpo-{number}-{place}")
            for place, task in enumerate(tasks)
            for attempt in range(settings.grpo_samples)
        ]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            learnt = practise(self._pupil, standing, PRACTICE, experiences, self._player)
            found = rates(summary(list(marked(jobs, experiences).values())))
            return replace(learnt, body={**learnt.body, **found})

        name = f"GRPO {number + 1} of {settings.grpo_steps}"
        return Lesson(name=name, tasks=jobs, left=self._left(number + 1), learn=learn)

    def _left(self, practised: int) -> int:
        """Rollouts of the practice that is still to come, and of the last measurement."""
        settings = self._settings
        return (
            settings.grpo_steps - practised
        ) * settings.grpo_tasks * settings.grpo_samples + settings.test_tasks * settings.test_seeds

    def _copyist(self, model: Any) -> Trainer:
        return Trainer(model, Settings(pace=Pace(learning_rate=self._settings.warm_up_rate)), seed=self._settings.seed)

    def _player(self, model: Any) -> Trainer:
        pace = Pace(learning_rate=self._settings.grpo_rate, schedule="linear", total=max(1, self._settings.grpo_steps))
        return Trainer(model, Settings(objective=OBJECTIVE, pace=pace), seed=self._settings.seed)


def _try(phase: str, place: int, seed: int) -> str:
    return f"{phase}-{place}" if not seed else f"{phase}-{place}-{seed}"


def _hash(inputs: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def job(name: str, task: Task, split: Split, *, group: str | None = None) -> Job:
    given = {**to_input(task), "sampling": SAMPLING, "max_turns": MAX_TURNS}
    return Job(name=name, input=given, split=split, timeout_s=120.0, metadata={"group": group or name})


def marked(jobs: Sequence[Job], experiences: Sequence[Experience]) -> dict[str, Mark]:
    """By the job's name. Given up for a fault of ours is missing, not wrong; an agent that itself failed is wrong."""
    inputs: Mapping[str, Any] = {job.name: job.input for job in jobs}
    found = {}
    for one in experiences:
        name = one.rollout.partition("/")[2]
        signals = one.sheet.signals if one.sheet is not None else ()
        if name in inputs and (signals or one.state is RolloutState.FAILED):
            found[name] = mark(inputs[name], signals, one.spans)
    return found


def rates(found: Mapping[str, Any]) -> dict[str, float | None]:
    def rate(name: str) -> float | None:
        right, of = found[name]
        return right / of if of else None

    return {name: rate(name) for name in ("success", "adoption", "format")}
