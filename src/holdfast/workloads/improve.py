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
from holdfast.contracts.features import ALL_ON, Features
from holdfast.contracts.records import decode, encode
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.settings import ImproveBlock, OptimizeSettings, ProveBlock, RlOptimizer
from holdfast.learn.grpo import OBJECTIVE
from holdfast.learn.train import Pace, Settings, Trainer
from holdfast.promote.gate import Criteria, Spread
from holdfast.prove.bands import SAMPLE_P_VALUE_SPREAD, SEED_P_VALUE_SPREAD
from holdfast.prove.matrix import pairs
from holdfast.prove.weigh import Weighing, weigh
from holdfast.workloads.episodes import SUCCESS, episodes, is_told
from holdfast.workloads.plans import plan_for as rollouts_of
from holdfast.workloads.plans import rewards_of
from holdfast.workloads.practice import constraint_of, mean_reward, practise, sift
from holdfast.workloads.proof import Case, propose, summed
from holdfast.workloads.pupil import Pupil
from holdfast.workloads.rl import rl_lesson

PRACTICE, PROVE = "practice", "prove"
BASELINE, CANDIDATE = "baseline", "candidate"
SHELF, CHECKPOINT = "shelf:", "checkpoint:"


def plan_for(settings: OptimizeSettings, features: Features = ALL_ON) -> Plan:
    """A plan that only needs a store to run."""
    block = settings.improve or ImproveBlock()
    if not (settings.model or "").startswith("local/"):
        raise BadInput(
            f"model {settings.model}",
            why="its weights are out of reach, so there is nothing to improve",
            remedy="name a local one, as in --model local/sprout; prompts are not improved yet",
        )
    if len(settings.val) < 2:
        why = "has one task" if settings.val else "is empty"
        raise BadInput(
            "validate", why=why, remedy="improvement is proved on tasks that are not learnt from, many of them"
        )
    if not (settings.train or block.follow):
        raise BadInput("optimize", why="is empty", remedy="give tasks to learn from, or a run to follow")
    low, high = block.prove.reward_range
    least, most = rewards_of(settings.agent, settings.scorers)
    if block.prove.primary == "reward" and not (low <= least and most <= high):
        raise BadInput(
            f"improve.prove.reward_range = [{low:g}, {high:g}]",
            why=f"the agent's rewards go from {least:g} to {most:g}",
            remedy="a proof by reward needs all of them in it",
        )

    def course(pupil: Pupil | None) -> Course:
        assert pupil is not None
        return Course(settings, block, pupil)

    plan = rollouts_of(settings, course_for=lambda tasks, pupil: course(pupil).lesson, features=features)
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
        practised = [body for body in here if body["phase"] == _phase(number)]
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
        self._pupil.be(standing.folder, _candidate(practised) or self._live(standing))
        begun = (number * block.steps + step) * block.step_tasks
        drawn = (
            [(begun + place) % len(self._settings.train) for place in range(block.step_tasks)]
            if not block.follow
            else []
        )
        named = [
            (f"practice-{number}-{step}-{turn}-{attempt}", place, f"practice-{number}-{step}-{turn}")
            for turn, place in enumerate(drawn)
            for attempt in range(block.samples)
        ]
        tasks = [self._task(name, self._settings.train[place], Split.TRAIN, group) for name, place, group in named]

        def learn(experiences: Sequence[Experience]) -> Learnt:
            began, held = time.perf_counter(), self._pupil.held_s
            self._check(experiences)
            learnt = self._learnt(standing, number, experiences)
            spent = time.perf_counter() - began - (self._pupil.held_s - held)  # a pause is nobody's learning
            told: dict[str, Any] = {"iteration": number, "learning_s": round(spent, 3)}
            if block.follow:
                told["followed"] = [one.rollout.partition("/")[2] for one in experiences]
            return replace(learnt, body={**learnt.body, **told})

        follow = None
        if block.follow:
            taken = frozenset(str(name) for update in standing.done for name in update.body.get("followed", ()))
            follow = Follow(run=block.follow, least=block.follow_least, taken=taken)
        name = f"iteration {number + 1}: {'following' if block.follow else 'practice'} {step + 1} of {block.steps}"
        return Lesson(name=name, tasks=tasks, left=self._left(step + 1), learn=learn, follow=follow)

    def _check(self, experiences: Sequence[Experience]) -> None:
        """That what has to improve can be measured: better said after the first step than after the last."""
        how, scored = self._block.prove, [one for one in experiences if one.sheet is not None and one.sheet.signals]
        if how.primary == "success" and scored and not any(is_told(one) for one in scored):
            why = f"no rollout has a signal called {' or '.join(SUCCESS)}"
            raise BadInput("improve.prove.primary = success", why=why, remedy="score it, or use reward")
        low, high = how.reward_range
        for one in scored if how.primary == "reward" else []:
            total = None if one.sheet is None else one.sheet.total
            if total is not None and not low <= total <= high:
                at = f"improve.prove.reward_range = [{low:g}, {high:g}]"
                raise BadInput(at, why=f"the reward of {one.rollout} is {total:g}", remedy="name all that it can be")

    def _learnt(self, standing: Standing, number: int, experiences: Sequence[Experience]) -> Learnt:
        """Attempts at one task are compared with one another; conversations that were followed have nothing beside
        them, and are judged by a critic."""
        phase, held_out = _phase(number), self._settings.val
        if self._block.follow is None:
            return practise(
                self._pupil,
                standing,
                phase,
                experiences,
                self._player,
                held_out=held_out,
                constraint=constraint_of(self._block.constraint, self._settings.constraint),
            )
        clean, findings = sift(experiences, held_out)
        optimizer = self._settings.rl_optimizer or RlOptimizer()
        constraint = constraint_of(self._block.constraint, optimizer.constraint, self._settings.constraint)
        learn = rl_lesson(
            optimizer,
            self._pupil,
            standing,
            seed=self._settings.seed,
            run=self._block.follow,
            constraint=constraint,
        )
        learnt = learn(clean)
        told = {
            "phase": phase,
            "reward": mean_reward(experiences),
            "quality": [encode(one) for one in findings],
        }
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
        candidate, live = _candidate(practised), proved[0]["live"] if proved else self._live(standing)
        self._pupil.be(standing.folder, candidate if is_second else live)
        version = self._pupil.version
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
            # Taken up after another version went live, some may be of the one before.
            found = episodes([one for one in experiences if one.version in (version, None)], places)
            body: dict[str, Any] = {"phase": PROVE, "iteration": number, "arm": arm, "live": live}
            body["episodes"] = [encode(one) for one in found]
            if candidate is None:
                why = "nothing was learnt, so there is nothing to prove"
                return Learnt(body={**body, "proposed": False, "why": why})
            if not is_second:
                return Learnt(body=body)
            before, after = (_episodes([*proved, body], one) for one in (BASELINE, CANDIDATE))
            is_last = batch.stop >= len(self._settings.val)
            if len(pairs(before, after, how.primary)[0]) < 2:  # nothing can be said of them
                why = f"fewer than two tasks have a {how.primary} of both versions"
                return Learnt(body={**body, "proposed": False, "why": why} if is_last else body)
            verdict = weigh(before, after, weighing(how), versions=(BASELINE, CANDIDATE), rng=_rng()).verdict
            body["verdict"] = encode(verdict)
            if verdict.outcome is Outcome.HOLD and not is_last:
                return Learnt(body=body)
            planned = batch.stop * how.seeds
            proposal = self._proposal(standing, candidate, live, practised, (before, after), planned)
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
        planned: int,
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
            planned=planned,
            audit=summed([[decode(Finding, one) for one in body["quality"]] for body in practised]),
            manifest={"checkpoint": candidate, "grew_from": live, "steps": len(practised)},
        )
        criteria = Criteria(
            max_safety_regression=how.max_safety_regression,
            min_reward_delta=how.min_reward_delta,
            max_p_value=how.alpha,
            require_seed_reproducibility=how.seeds > 1,
            max_seed_spread=Spread(p_value=SEED_P_VALUE_SPREAD, delta=how.max_seed_spread),
            max_sample_spread=Spread(p_value=SAMPLE_P_VALUE_SPREAD, delta=how.max_sample_spread),
        )
        return propose(
            case, weighing(how), criteria, reports=standing.reports, now=time.time(), to=Stage(self._block.stage)
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
        return 0 if block.follow else (block.steps - practised) * block.step_tasks * block.samples

    def _live(self, standing: Standing) -> str | None:
        """The checkpoint in service; None: the weights that the model came with."""
        live = standing.live
        if live is None or live.source == f"{SHELF}{self._model}":
            return None
        if live.source.startswith(CHECKPOINT):
            return live.source.removeprefix(CHECKPOINT)
        is_other = live.source.startswith(SHELF)
        why = f"{live.source} is live, and {'not this model' if is_other else 'has no weights to go on from'}"
        raise BadInput(
            f"policy {live.policy}", why=why, remedy=f"name another policy{', or that model' if is_other else ''}"
        )

    def _player(self, model: Any) -> Trainer:
        pace = Pace(learning_rate=self._block.learning_rate, schedule="linear", total=self._block.steps)
        return Trainer(model, Settings(objective=OBJECTIVE, pace=pace), seed=self._settings.seed)


def _phase(number: int) -> str:
    """One a piece for the iterations: what a trainer knows of its pace does not outlive its candidate."""
    return f"{PRACTICE} {number + 1}"


def _candidate(practised: Sequence[Mapping[str, Any]]) -> str | None:
    made = [str(body["checkpoint"]) for body in practised if "checkpoint" in body]
    return made[-1] if made else None


def _episodes(proved: Sequence[Mapping[str, Any]], arm: str) -> list[Episode]:
    return [decode(Episode, one) for body in proved if body["arm"] == arm for one in body["episodes"]]


def weighing(how: ProveBlock) -> Weighing:
    return Weighing(
        primary=how.primary,
        alpha=how.alpha,
        min_effect=how.min_effect,
        max_safety_regression=how.max_safety_regression,
        reward_range=how.reward_range,
        max_cost=how.max_cost,
        seed_delta_spread=how.max_seed_spread,
        sample_delta_spread=how.max_sample_spread,
    )


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _hash(items: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()
