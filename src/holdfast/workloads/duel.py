"""A duel: two versions do the same cases with the same chance, a batch at a time, and after each batch a look is taken.

What the episodes prove is weighed by `prove`; each look is put on record with the episodes it rests on, so that a duel
that was killed goes on where it stopped, and whoever wants to know more reads them from there.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.collect.agent import Agent, Context, Score, no_model
from holdfast.collect.plan import Learnt, Lesson, Plan, Standing
from holdfast.collect.pool import Pace
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode, Outcome, Verdict
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Complete
from holdfast.contracts.records import decode, encode
from holdfast.contracts.reward import Signal
from holdfast.contracts.rollout import Split, Task
from holdfast.contracts.run import StepRecord
from holdfast.contracts.trace import Span
from holdfast.policies.local import Local
from holdfast.prove.matrix import pairs
from holdfast.prove.suite import Case, Suite, from_document, load, to_document
from holdfast.prove.weigh import Weighed, Weighing, verdict, weigh
from holdfast.store.store import Store
from holdfast.workloads.episodes import episodes
from holdfast.workloads.tooluse import rubric
from holdfast.workloads.tooluse.agent import agent
from holdfast.workloads.tooluse.tasks import PER_SEED, SEEDS, from_input, generate, to_input
from holdfast.workloads.versions import Version, from_record, open_local, to_record

KIND = "prove"
BASELINE, CANDIDATE = ARMS = ("baseline", "candidate")
GENERATED = "tooluse"  # `tooluse:COUNT[:SEED]` names a suite of generated tasks
RUBRIC = {"task_completion": 0.9, "constraint_compliance": 0.1}
SAMPLING = {"temperature": 1.0, "max_tokens": 80}
MAX_TURNS = 5
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    suite: Suite
    source: str | None = None  # what a generated suite is made from; None: it is kept whole with the run
    baseline: Version
    candidate: Version
    is_null: bool = False  # the same version twice: each arm has a chance of its own
    batch: int = 250  # cases between two looks
    stop_early: bool = False  # at the first verdict
    seed: int = 0
    workers: int = 64
    how: Weighing

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadInput(f"batch = {self.batch}", why="must be at least 1")
        is_same = self.baseline.behaviour == self.candidate.behaviour
        if is_same and not self.is_null:
            what = f"candidate {self.candidate.name}"
            remedy = "name another version, or measure a version against itself with --null"
            raise BadInput(what, why=f"is the same as baseline {self.baseline.name}", remedy=remedy)
        if self.is_null and not is_same:
            raise BadInput("a null duel", why="is between a version and itself", remedy="name one version")

    @property
    def versions(self) -> tuple[str, str]:
        return _called(self.baseline, self.candidate)

    @property
    def looks(self) -> int:
        """At most."""
        return -(-len(self.suite.cases) // self.batch)


def suite_of(source: str) -> Suite:
    """The suite in a file, or a generated one of COUNT held-out tasks: `tooluse:COUNT[:SEED]`."""
    suite = _generated(source) if is_generated(source) else load(Path(source))
    for place, case in enumerate(suite.cases):
        rubric.check(case.scoring_rubric, f"{source}: cases[{place}].scoring_rubric")
        try:
            from_input(case.given)
        except BadInput as error:
            raise BadInput(f"{source}: cases[{place}].input", why=f"{error.what} {error.why}") from None
    return suite


def is_generated(source: str) -> bool:
    return source.partition(":")[0] == GENERATED


def plan_for(duel: Duel) -> Plan:
    models = _models(duel)
    home = Home(contestant(models), scorer(duel.suite), no_model, time.time)

    def close() -> None:
        home.close()
        for model in set(models.values()):
            model.close()

    return Plan(
        kind=KIND,
        course=partial(_lesson, duel),
        resources={},
        model_ref=f"{duel.versions[1]} against {duel.versions[0]}",
        settings=settings_of(duel),
        seats=lambda: Seat(home.place()),
        close=close,
        workers=duel.workers,
        pace=Pace(heartbeat_s=1.0, lease_s=10.0),
        seed=duel.seed,
        drain_s=10.0,
    )


def settings_of(duel: Duel) -> dict[str, Any]:
    """All that a resumed duel needs; plain JSON."""
    suite = {"source": duel.source} if duel.source is not None else {"document": to_document(duel.suite)}
    return {
        "suite": {**suite, "seeds": list(duel.suite.seeds), "sha256": duel.suite.fixture_sha256},
        "baseline": to_record(duel.baseline),
        "candidate": to_record(duel.candidate),
        **{name: getattr(duel, name) for name in ("is_null", "batch", "stop_early", "seed", "workers")},
        "how": asdict(duel.how),
    }


def duel_from(settings: Mapping[str, Any]) -> Duel:
    """The duel that the settings of a run describe."""
    kept = settings["suite"]
    source = kept.get("source")
    suite = from_document(kept["document"]) if source is None else suite_of(source)
    suite = replace(suite, seeds=tuple(kept["seeds"]))
    if suite.fixture_sha256 != kept["sha256"]:
        why = "this version makes other tasks of it than those the run began with"
        raise BadInput(f"suite {source}", why=why, remedy="begin a new run")
    names = ("is_null", "batch", "stop_early", "seed", "workers")
    return Duel(
        suite=suite,
        source=source,
        baseline=from_record(settings["baseline"]),
        candidate=from_record(settings["candidate"]),
        **{name: settings[name] for name in names},
        how=_how(settings),
    )


def _how(settings: Mapping[str, Any]) -> Weighing:
    given: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in settings["how"].items()}
    return Weighing(**given)


def _called(baseline: Version, candidate: Version) -> tuple[str, str]:
    """What both are called in evidence."""
    again = " (again)" if baseline.name == candidate.name else ""
    return baseline.name, f"{candidate.name}{again}"


def contestant(models: Mapping[str, Complete]) -> Agent:
    """The agent of both arms: the task says whose turn it is, and which chance it has."""

    async def contest(task: Any, context: Context) -> str:
        chance = replace(context.assignment, seed=int(task["chance"]))
        return await agent(task, replace(context, complete=models[task["arm"]], assignment=chance))

    return contest


def scorer(suite: Suite) -> Score:
    """By the rubric of each case, which its agent is not shown."""
    rubrics = {case.case_id: case.scoring_rubric for case in suite.cases}

    def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[Signal, ...]:
        return rubric.measured(rubrics[task["case"]], task, output, spans)

    return score


def job(case: Case, arm: str, seed: int, *, name: str, chance: int, resources: int | None = None, **dials: Any) -> Task:
    """One episode to be run. `dials` are of the sampling, and win over those that the case brings along."""
    given = case.given
    sampling = {**SAMPLING, **(given.get("sampling") or {}), **dials}
    extra = {"case": case.case_id, "arm": arm, "chance": chance, "sampling": sampling}
    return Task(
        name=name,
        input={"max_turns": MAX_TURNS, **given, **extra},
        split=Split.TEST,
        timeout_s=TIMEOUT_S,
        resources=resources,
        metadata={"group": case.case_id, "arm": arm, "seed": seed},
    )


def episodes_of(store: Store, run: str) -> tuple[list[Episode], list[Episode]]:
    """Of baseline and candidate, as far as they have been looked at."""
    found = store.runs.get(run)
    if found.kind != KIND:
        why, remedy = f"is of the kind {found.kind}, and compared nothing", "'holdfast runs' lists them"
        raise BadInput(f"run {found.id}", why=why, remedy=remedy)
    return episodes_in(store.steps.of_run(found.id))


def episodes_in(updates: Sequence[StepRecord]) -> tuple[list[Episode], list[Episode]]:
    baseline, candidate = (
        [decode(Episode, kept) for update in updates for kept in update.body["episodes"][arm]] for arm in ARMS
    )
    return baseline, candidate


def weighed(store: Store, run: str) -> Weighed | None:
    """What the episodes of a run come to; None while there is nothing to compare."""
    baseline, candidate = episodes_of(store, run)
    settings = store.runs.get(run).settings
    how, versions = _how(settings), _called(*(from_record(settings[arm]) for arm in ARMS))
    if len(pairs(baseline, candidate, how.primary)[0]) < 2:
        return None
    return weigh(baseline, candidate, how, versions=versions, rng=np.random.default_rng(how.resample_seed))


def _lesson(duel: Duel, standing: Standing) -> Lesson | None:
    """The next batch, by what is on record."""
    number, cases = len(standing.done), duel.suite.cases
    first = number * duel.batch
    if first >= len(cases) or (duel.stop_early and _is_decided(standing.done)):
        return None
    jobs = [
        job(
            case,
            arm,
            seed,
            name=f"{arm}-{first + place}-{seed}",
            chance=_chance(duel, case, seed, arm),
            resources=version.resources,
        )
        for place, case in enumerate(cases[first : first + duel.batch])
        for seed in duel.suite.seeds
        for arm, version in zip(ARMS, (duel.baseline, duel.candidate), strict=True)  # both find the machine as busy
    ]
    left = 2 * duel.suite.episodes - first * 2 * len(duel.suite.seeds) - len(jobs)
    learn = partial(_look, duel, standing, {one.name: one for one in jobs})
    return Lesson(name=f"look {number + 1} of {duel.looks}", tasks=jobs, left=left, learn=learn)


def _look(duel: Duel, standing: Standing, jobs: Mapping[str, Task], experiences: Sequence[Experience]) -> Learnt:
    """What is known after this batch, with what came to be known in it."""
    new: dict[str, list[Episode]] = {}
    for arm in ARMS:
        mine = {name: one.metadata for name, one in jobs.items() if one.metadata["arm"] == arm}
        new[arm] = episodes(experiences, {name: (str(told["group"]), int(told["seed"])) for name, told in mine.items()})
    before = episodes_in(standing.done)
    body: dict[str, Any] = {
        "phase": "look",
        "look": len(standing.done) + 1,
        "missing": len(jobs) - sum(map(len, new.values())),
        "episodes": {arm: [encode(one) for one in some] for arm, some in new.items()},
    }
    return Learnt(body=body | _judged(duel, [*before[0], *new[BASELINE]], [*before[1], *new[CANDIDATE]]))


def _judged(duel: Duel, baseline: Sequence[Episode], candidate: Sequence[Episode]) -> dict[str, Any]:
    """The verdict alone: workers wait while we look, and intervals are for the end."""
    how = duel.how
    tasks, before, after = pairs(baseline, candidate, how.primary)
    if not tasks:
        return {"tasks": 0}
    _, cost, costs = pairs(baseline, candidate, "safety")
    gains = (after - before).mean(axis=1)
    found = verdict(gains, (costs - cost).mean(axis=1), how, seeds=after.shape[1])
    return {"tasks": len(tasks), "difference": float(gains.mean()), "verdict": encode(found)}


def _is_decided(done: Sequence[StepRecord]) -> bool:
    return any(
        decode(Verdict, update.body["verdict"]).outcome is not Outcome.HOLD
        for update in done[-1:]
        if "verdict" in update.body
    )


def _chance(duel: Duel, case: Case, seed: int, arm: str) -> int:
    """The random key of an episode: the same for both arms, unless they are the same version."""
    key = f"{duel.seed}/{case.seed}/{case.case_id}/{seed}" + (f"/{arm}" if duel.is_null else "")
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]) >> 11  # 53 bits: every JSON reader keeps them


def _models(duel: Duel) -> dict[str, Local]:
    """One for each arm; where both have the same weights it is the same."""
    first = open_local(duel.baseline, slots=duel.workers, seed=duel.seed)
    if duel.baseline.sha256 == duel.candidate.sha256:
        return dict.fromkeys(ARMS, first)
    return {BASELINE: first, CANDIDATE: open_local(duel.candidate, slots=duel.workers, seed=duel.seed)}


def _generated(source: str) -> Suite:
    dials = source.split(":")[1:]
    if not 1 <= len(dials) <= 2 or not all(word.isdecimal() for word in dials):
        raise BadInput(f"suite {source}", why="is not tooluse:COUNT[:SEED]", remedy="for example tooluse:500")
    count, seed = int(dials[0]), int(dials[1]) if len(dials) > 1 else 0
    if not 1 <= count <= 10**5 or (seed + 1) * PER_SEED > len(SEEDS["test"]):
        raise BadInput(f"suite {source}", why="has from 1 to 100000 tasks, and a seed below 2 to the 32nd")
    cases = []
    for place, task in enumerate(generate("test", seed, count)):
        given = to_input(task)
        prompt, expected = given.pop("prompt"), given.pop("expected")
        name = f"{task.family}-{place:05d}"
        cases.append(
            Case(
                case_id=name,
                seed=place + 1,
                prompt=prompt,
                expected_outcome=expected,
                scoring_rubric=RUBRIC,
                input=given,
            )
        )
    return Suite(
        suite_id=f"{GENERATED}-{seed}",
        family="tool_use",
        description=f"The first {count} held-out tool-use tasks of seed {seed}.",
        cases=tuple(cases),
    )
