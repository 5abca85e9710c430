"""From a weak model to a better one at using tools: measure it, warm it up by examples, let it practise, measure again.

Each lesson follows from what the earlier ones recorded. The tasks of the test split are seen by the two measurements
alone; whether the warm-up has gone far enough is read off tasks of the validation split, and practice uses train tasks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.collect.plan import Learnt, Lesson, Plan, Standing
from holdfast.collect.pool import Pace as PoolPace
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.rollout import Task as Job
from holdfast.learn.audit import audit
from holdfast.learn.batch import Intake
from holdfast.learn.clone import portions, sequences
from holdfast.learn.grpo import OBJECTIVE, Grpo, compare
from holdfast.learn.train import Pace, Settings, Trainer
from holdfast.learn.turns import fitted
from holdfast.workloads.pupil import Pupil
from holdfast.workloads.tooluse.agent import agent
from holdfast.workloads.tooluse.dialogues import corpus
from holdfast.workloads.tooluse.exam import Mark, mark, summary
from holdfast.workloads.tooluse.score import score
from holdfast.workloads.tooluse.tasks import Task, generate, to_input

SAMPLING = {"temperature": 1.0, "max_tokens": 80}
MAX_TURNS = 5
BASELINE, WARM_UP, PRACTICE, TRAINED = "baseline", "warm-up", "grpo", "trained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quickstart:
    """The dials of the course, and how many of everything."""

    model: str = "sprout-weak"
    seed: int = 0
    test_tasks: int = 200
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


def plan_for(settings: Quickstart) -> Plan:
    pupil = Pupil(settings.model, seed=settings.seed, slots=settings.workers)
    home = Home(agent, score, pupil.local, time.time)

    def close() -> None:
        home.close()
        pupil.close()

    return Plan(
        kind="quickstart",
        course=Course(settings, pupil).lesson,
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
            return self._measured(BASELINE)
        is_warm = any(update.body.get("is_warm") for update in standing.done)
        if not is_warm:
            return self._warm_up(standing, phases.count(WARM_UP))
        if phases.count(PRACTICE) < self._settings.grpo_steps:
            return self._practice(standing, phases.count(PRACTICE))
        return None if TRAINED in phases else self._measured(TRAINED)

    def _measured(self, phase: str) -> Lesson:
        """The same tasks before and after."""
        tasks = generate("test", self._settings.seed, self._settings.test_tasks)
        jobs = [_job(f"{phase}-{place}", task, Split.TEST) for place, task in enumerate(tasks)]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            marks = _marks(jobs, experiences)
            scores = {name: float(one.success) for name, one in marks.items()}
            told = {"phase": phase, "marks": summary(list(marks.values()))}
            return Learnt(body={**told, "scores": [scores.get(job.name) for job in jobs]})

        left = self._left(0) if phase == BASELINE else 0
        return Lesson(name=f"{phase}: {len(jobs)} held-out tasks", tasks=jobs, left=left, learn=learn)

    def _warm_up(self, standing: Standing, number: int) -> Lesson:
        """Try some tasks; while too few are solved, learn from a few examples."""
        settings = self._settings
        tasks = generate("val", settings.seed, settings.probe_tasks)
        jobs = [_job(f"probe-{number}-{place}", task, Split.VAL) for place, task in enumerate(tasks)]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            found = summary(list(_marks(jobs, experiences).values()))
            right, of = found["success"]
            told: dict[str, Any] = {"phase": WARM_UP, **_rates(found)}
            is_warm = bool(of) and right >= settings.warm_up_target * of
            if is_warm or number >= settings.warm_up_rounds:
                return Learnt(body={**told, "is_warm": True})
            trainer = self._pupil.trainer(standing, WARM_UP, self._copyist)
            first = settings.seed * 10**6 + 1000
            examples = sequences(zip(*corpus("strong", "train", first, 2000), strict=True))
            begun = number * settings.warm_up_updates
            batches = portions(examples, settings.warm_up_batch, seed=settings.seed, start=begun)
            for _ in range(settings.warm_up_updates):
                self._pupil.heed()
                update = trainer.step(next(batches))
                told |= {"loss": update.loss, "grad_norm": update.grad_norm, "entropy": update.entropy}
            checkpoint = self._pupil.keep(standing, algorithm="sft", mean_reward=_reward(experiences))
            return Learnt(body={**told, "is_warm": False}, checkpoint=checkpoint)

        return Lesson(name=f"warm-up {number + 1}", tasks=jobs, left=self._left(0), learn=learn)

    def _practice(self, standing: Standing, number: int) -> Lesson:
        """Several attempts at each of some tasks; what did better than the others becomes more likely."""
        settings = self._settings
        tasks = generate("train", settings.seed * 1000 + 1 + number, settings.grpo_tasks)
        jobs = [
            _job(f"grpo-{number}-{place}-{attempt}", task, Split.TRAIN, group=f"grpo-{number}-{place}")
            for place, task in enumerate(tasks)
            for attempt in range(settings.grpo_samples)
        ]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            self._pupil.heed()
            told: dict[str, Any] = {"phase": PRACTICE, **_rates(summary(list(_marks(jobs, experiences).values())))}
            told["reward"] = _reward(experiences)
            intake = fitted(Intake(run=standing.run, versions=(self._pupil.version,)), self._pupil.model)
            compared = compare(experiences, intake, Grpo())
            checkpoint = update = None
            if compared.samples is not None:
                trainer = self._pupil.trainer(standing, PRACTICE, self._player)
                update = trainer.step(compared.samples)
                told["update"] = update.to_dict()
                checkpoint = self._pupil.keep(standing, algorithm="grpo", mean_reward=told["reward"])
            found = audit(experiences, compared.reasons, compared.samples, breaks=compared.breaks, update=update)
            return Learnt(body={**told, "audit": found.to_dict()}, checkpoint=checkpoint)

        name = f"GRPO {number + 1} of {settings.grpo_steps}"
        return Lesson(name=name, tasks=jobs, left=self._left(number + 1), learn=learn)

    def _left(self, practised: int) -> int:
        """Rollouts of the practice that is still to come, and of the last measurement."""
        settings = self._settings
        return (settings.grpo_steps - practised) * settings.grpo_tasks * settings.grpo_samples + settings.test_tasks

    def _copyist(self, model: Any) -> Trainer:
        return Trainer(model, Settings(pace=Pace(learning_rate=self._settings.warm_up_rate)), seed=self._settings.seed)

    def _player(self, model: Any) -> Trainer:
        pace = Pace(learning_rate=self._settings.grpo_rate, schedule="linear", total=max(1, self._settings.grpo_steps))
        return Trainer(model, Settings(objective=OBJECTIVE, pace=pace), seed=self._settings.seed)


def _job(name: str, task: Task, split: Split, *, group: str | None = None) -> Job:
    given = {**to_input(task), "sampling": SAMPLING, "max_turns": MAX_TURNS}
    return Job(name=name, input=given, split=split, timeout_s=120.0, metadata={"group": group or name})


def _marks(jobs: Sequence[Job], experiences: Sequence[Experience]) -> dict[str, Mark]:
    """By the job's name. Given up for a fault of ours is missing, not wrong; an agent that itself failed is wrong."""
    inputs: Mapping[str, Any] = {job.name: job.input for job in jobs}
    found = {}
    for one in experiences:
        name = one.rollout.partition("/")[2]
        signals = one.sheet.signals if one.sheet is not None else ()
        if signals or one.state is RolloutState.FAILED:
            found[name] = mark(inputs[name], signals, one.spans)
    return found


def _rates(found: Mapping[str, Any]) -> dict[str, float | None]:
    def rate(name: str) -> float | None:
        right, of = found[name]
        return right / of if of else None

    return {name: rate(name) for name in ("success", "adoption", "format")}


def _reward(experiences: Sequence[Experience]) -> float | None:
    totals = [one.sheet.total for one in experiences if one.sheet is not None and one.sheet.total is not None]
    return sum(totals) / len(totals) if totals else None
