"""Iterations of improvement: practise on train tasks, measure the candidate and what is live on held-out ones, propose.

Each lesson follows from what the earlier ones recorded. The held-out tasks are run in batches, the same for both
versions, and the evidence is looked at after each: the test is one that allows it. What is promoted is where the next
iteration begins; what is not is left behind.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from holdfast.collect.plan import Follow, Learnt, Lesson, Plan, Proposal, Standing
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode, Finding, Outcome
from holdfast.contracts.experience import Experience
from holdfast.contracts.records import decode, encode
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.settings import ImproveBlock, OptimizeSettings, ProveBlock, RlOptimizer
from holdfast.learn.grpo import OBJECTIVE
from holdfast.learn.train import Pace, Settings, Trainer
from holdfast.promote.gate import Criteria, Spread
from holdfast.promote.quality import audit
from holdfast.prove.weigh import Weighing, weigh
from holdfast.workloads.episodes import episodes
from holdfast.workloads.plans import plan_for as rollouts_of
from holdfast.workloads.practice import practise
from holdfast.workloads.proof import Case, propose, summed
from holdfast.workloads.pupil import Pupil
from holdfast.workloads.rl import rl_lesson

PRACTICE, PROVE = "practice", "prove"
BASELINE, CANDIDATE = "baseline", "candidate"
SHELF, CHECKPOINT = "shelf:", "checkpoint:"


def plan_for(settings: OptimizeSettings) -> Plan:
    """A plan that only needs a store to run."""
    block = settings.improve or ImproveBlock()
    if not (settings.model or "").startswith("local/"):
        raise BadInput(
            f"model {settings.model}",
            why="its weights are out of reach, so there is nothing to improve",
            remedy="name a local one, as in --model local/sprout; prompts are not improved yet",
        )
    if not settings.val or not (settings.train or block.follow):
        missing = "validate" if not settings.val else "optimize"
        raise BadInput(
            missing, why="is empty", remedy="improvement needs tasks to learn from, and others to prove it on"
        )

    def course(pupil: Pupil | None) -> Course:
        assert pupil is not None
        return Course(settings, block, pupil)

    plan = rollouts_of(settings, course_for=lambda tasks, pupil: course(pupil).lesson)
    return replace(plan, kind="improve", policy=block.policy)


class Course:
    def __init__(self, settings: OptimizeSettings, block: ImproveBlock, pupil: Pupil) -> None:
        self._settings, self._block, self._pupil = settings, block, pupil
        self._model = str(settings.model).partition("/")[2]

    def lesson(self, standing: Standing) -> Lesson | None:
        """The next one, by what is on record."""
        number = sum("proposed" in update.body for update in standing.done)
        if number >= self._block.iterations:
            return None
        here = [update.body for update in standing.done if update.body.get("iteration") == number]
        practised = [body for body in here if body["phase"] == PRACTICE]
        if len(practised) < self._block.steps and not self._is_spent(standing):
            return self._practice(standing, number, practised)
        proved = [body for body in here if body["phase"] == PROVE]
        return self._prove(standing, number, practised, proved)

    def _is_spent(self, standing: Standing) -> bool:
        budget = self._block.budget_s
        spent = sum(float(update.body.get("learning_s", 0.0)) for update in standing.done)
        return budget is not None and spent >= budget

    def _practice(self, standing: Standing, number: int, practised: Sequence[Mapping[str, Any]]) -> Lesson:
        step, block = len(practised), self._block
        self._pupil.be(standing.folder, _candidate(practised) or _live(standing))
        begun = (number * block.steps + step) * block.step_tasks
        drawn = (
            [(begun + place) % len(self._settings.train) for place in range(block.step_tasks)]
            if not block.follow
            else []
        )
        named = [
            (f"practice-{number}-{step}-{place}-{attempt}", place, f"practice-{number}-{step}-{turn}")
            for turn, place in enumerate(drawn)
            for attempt in range(block.samples)
        ]
        tasks = [self._task(name, self._settings.train[place], Split.TRAIN, group) for name, place, group in named]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            began = time.perf_counter()
            learnt = self._learnt(standing, experiences)
            told: dict[str, Any] = {"iteration": number, "learning_s": round(time.perf_counter() - began, 3)}
            if block.follow and experiences:
                told["followed"] = experiences[-1].rollout.partition("/")[2]
            return replace(learnt, body={**learnt.body, **told})

        follow = None
        if block.follow:
            taken = [str(u.body["followed"]) for u in standing.done if "followed" in u.body]
            follow = Follow(run=block.follow, least=block.follow_least, after=taken[-1] if taken else None)
        name = f"iteration {number + 1}: {'following' if block.follow else 'practice'} {step + 1} of {block.steps}"
        return Lesson(name=name, tasks=tasks, left=self._left(step + 1), learn=learn, follow=follow)

    def _learnt(self, standing: Standing, experiences: Sequence[Experience]) -> Learnt:
        """Attempts at one task are compared with one another; conversations that were followed have nothing beside
        them, and are judged by a critic."""
        if self._block.follow is None:
            return practise(self._pupil, standing, PRACTICE, experiences, self._player)
        inspected = audit(experiences)
        clean = [one for one in experiences if one.rollout not in inspected.quarantined]
        optimizer = self._settings.rl_optimizer or RlOptimizer()
        learn = rl_lesson(optimizer, self._pupil, standing, seed=self._settings.seed, run=self._block.follow)
        learnt = learn(clean)
        told = {"phase": PRACTICE, "quality": [encode(one) for one in inspected.findings]}
        return replace(learnt, body={**learnt.body, **told})

    def _prove(
        self,
        standing: Standing,
        number: int,
        practised: Sequence[Mapping[str, Any]],
        proved: Sequence[Mapping[str, Any]],
    ) -> Lesson:
        """A batch of held-out tasks by what is live, the same batch by the candidate, a look, and the next batch."""
        how, (part, is_second) = self._block.prove, divmod(len(proved), 2)
        arm = CANDIDATE if is_second else BASELINE
        # What was live when it began: should that change meanwhile, the loop sees that the proof is of something else.
        candidate, live = _candidate(practised), proved[0]["live"] if proved else _live(standing)
        self._pupil.be(standing.folder, candidate if is_second else live)
        batch = range(part * how.batch, min((part + 1) * how.batch, len(self._settings.val)))
        places = {
            f"prove-{number}-{arm}-{place}-{seed}": (f"val-{place + 1}", seed)
            for place in batch
            for seed in range(how.seeds)
        }
        if candidate is None:  # nothing was learnt: there is nothing to measure
            places = {}
        items = {f"val-{place + 1}": self._settings.val[place] for place in batch}
        tasks = [self._task(name, items[task], Split.VAL, name) for name, (task, _) in places.items()]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            found = episodes(experiences, places)
            body: dict[str, Any] = {"phase": PROVE, "iteration": number, "arm": arm, "live": live}
            body["episodes"] = [encode(one) for one in found]
            if candidate is None:
                return Learnt(body={**body, "proposed": False})
            if not is_second:
                return Learnt(body=body)
            before, after = (_episodes([*proved, body], one) for one in (BASELINE, CANDIDATE))
            verdict = weigh(before, after, _weighing(how), versions=(BASELINE, CANDIDATE), rng=_rng()).verdict
            body["verdict"] = encode(verdict)
            is_last = batch.stop >= len(self._settings.val)
            if verdict.outcome is Outcome.HOLD and not is_last:
                return Learnt(body=body)
            proposal = self._proposal(standing, candidate, live, practised, (before, after))
            return Learnt(body={**body, "proposed": True}, proposal=proposal)

        name = f"iteration {number + 1}: proving, {arm} on tasks {batch.start + 1} to {batch.stop}"
        return Lesson(name=name, tasks=tasks, learn=learn)

    def _proposal(
        self,
        standing: Standing,
        candidate: str,
        live: str | None,
        practised: Sequence[Mapping[str, Any]],
        measured: tuple[Sequence[Episode], Sequence[Episode]],
    ) -> Proposal:
        how = self._block.prove
        case = Case(
            run=standing.run,
            policy=self._block.policy,
            suite=("validate", "1", _hash(self._settings.val)),
            baseline=f"{SHELF}{self._model}" if live is None else f"{CHECKPOINT}{live}",
            candidate=f"{CHECKPOINT}{candidate}",
            before=measured[0],
            after=measured[1],
            audit=summed([[decode(Finding, one) for one in body["quality"]] for body in practised]),
            manifest={"checkpoint": candidate, "grew_from": live, "steps": len(practised)},
        )
        criteria = Criteria(
            max_safety_regression=how.max_safety_regression,
            min_reward_delta=how.min_reward_delta,
            max_p_value=how.alpha,
            require_seed_reproducibility=how.seeds > 1,
            max_seed_spread=Spread(p_value=0.05, delta=how.max_seed_spread),
            max_sample_spread=Spread(p_value=0.04, delta=how.max_sample_spread),
        )
        return propose(
            case, _weighing(how), criteria, reports=standing.reports, now=time.time(), to=Stage(self._block.stage)
        )

    def _task(self, name: str, item: Mapping[str, Any], split: Split, group: str) -> Task:
        settings = self._settings
        return Task(
            name=name,
            input=item,
            split=split,
            max_attempts=settings.max_attempts,
            timeout_s=settings.attempt_timeout_secs,
            metadata={"group": group},
        )

    def _left(self, practised: int) -> int:
        block = self._block
        return (block.steps - practised) * block.step_tasks * block.samples

    def _player(self, model: Any) -> Trainer:
        pace = Pace(learning_rate=self._block.learning_rate, schedule="linear", total=self._block.steps)
        return Trainer(model, Settings(objective=OBJECTIVE, pace=pace), seed=self._settings.seed)


def _live(standing: Standing) -> str | None:
    """The checkpoint in service; None: the weights that the model came with."""
    if standing.live is None or standing.live.source.startswith(SHELF):
        return None
    if standing.live.source.startswith(CHECKPOINT):
        return standing.live.source.removeprefix(CHECKPOINT)
    what = f"release {standing.live.id}"
    raise BadInput(what, why=f"{standing.live.source} has no weights to go on from", remedy="name another policy")


def _candidate(practised: Sequence[Mapping[str, Any]]) -> str | None:
    made = [str(body["checkpoint"]) for body in practised if "checkpoint" in body]
    return made[-1] if made else None


def _episodes(proved: Sequence[Mapping[str, Any]], arm: str) -> list[Episode]:
    return [decode(Episode, one) for body in proved if body["arm"] == arm for one in body["episodes"]]


def _weighing(how: ProveBlock) -> Weighing:
    return Weighing(
        primary=how.primary,
        alpha=how.alpha,
        min_effect=how.min_effect,
        max_safety_regression=how.max_safety_regression,
        reward_range=how.reward_range,
        seed_delta_spread=how.max_seed_spread,
        sample_delta_spread=how.max_sample_spread,
    )


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _hash(items: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()
