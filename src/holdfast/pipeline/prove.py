"""The steps that prove: two versions do the same tasks with the same chance, with an interim analysis after each batch.

The test allows looking as often as one likes. Each analysis is a step of its own, which keeps its episodes as a blob.
What nobody measured is missing: it counts as the worst for the candidate and as the best for the baseline.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from holdfast.contracts.algorithm import Work
from holdfast.contracts.errors import BadInput, Lost, NotFound, StoreCorrupt
from holdfast.contracts.evidence import Episode, Outcome, Verdict
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import decode, encode
from holdfast.contracts.reward import CHECKED
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import StepRecord
from holdfast.pipeline.context import SAFETY, StepContext
from holdfast.pipeline.run import DurableRun
from holdfast.prove.comparison import ComparisonConfig, pairs, reach, verdict, with_safety
from holdfast.prove.history import EarlierTries, has_drifted, is_spared, pooled
from holdfast.store.store import Store

Places = Mapping[str, tuple[str, int]]  # a rollout's name → its task and its seed
Earlier = Mapping[str, EarlierTries]  # what is known of the baseline, by task
LIVE = "live"  # in a look's blob: the baseline's fresh episodes as they were, where earlier tries are pooled in


def episode(experience: Experience, *, task: str, seed: int) -> Episode | None:
    """None where a fault of ours left it without a score: missing, not wrong. An agent that failed was not right."""
    signals = {} if experience.breakdown is None else {one.name: one.value for one in experience.breakdown.signals}
    if not signals and experience.state is not RolloutState.FAILED:
        return None
    told = next((signals[name] for name in CHECKED if name in signals), None)
    total = None if experience.breakdown is None else experience.breakdown.total
    ends = [span.ended_at for span in experience.spans if span.ended_at is not None]
    starts = [span.started_at for span in experience.spans]
    counts = [len(call.completion_ids) for call in experience.calls if call.completion_ids is not None]
    return Episode(
        task=task,
        seed=seed,
        reward=0.0 if total is None else total,
        safety_cost=signals.get(SAFETY),
        success=0.0 if experience.state is RolloutState.FAILED else told,
        latency_s=max(0.0, max(ends, default=-inf) - min(starts)) if ends and starts else None,
        tokens=sum(counts) if counts else None,
        rollout=experience.rollout,
    )


def is_checked(experience: Experience) -> bool:
    """Whether its score says if it succeeded."""
    return experience.breakdown is not None and any(one.name in CHECKED for one in experience.breakdown.signals)


def episodes(experiences: Iterable[Experience], places: Places) -> list[Episode]:
    """Of the rollouts whose names are given a task and a seed."""
    found = []
    for one in experiences:
        name = one.rollout.partition("/")[2]
        if name in places:
            task, seed = places[name]
            found.append(episode(one, task=task, seed=seed))
    return [one for one in found if one is not None]


def missing(found: Iterable[Episode], places: Places, how: ComparisonConfig, *, is_candidate: bool) -> list[Episode]:
    """What never came back, as the worst for a candidate and the best for a baseline."""
    known = {(one.task, one.seed) for one in found}
    low, high = how.reward_range
    return [
        Episode(
            task=task,
            seed=seed,
            reward=low if is_candidate else high,
            safety_cost=None if how.max_safety_regression is None else how.max_cost if is_candidate else 0.0,
            success=0.0 if is_candidate else 1.0,
        )
        for task, seed in places.values()
        if (task, seed) not in known
    ]


PHASE = "prove"
BASELINE, CANDIDATE = ARMS = ("baseline", "candidate")
KEPT = ("iteration", "tasks", "planned", "episodes")  # of an analysis, as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveConfig:
    """How two versions are measured against one another."""

    how: ComparisonConfig = field(default_factory=ComparisonConfig)
    seeds: Sequence[int] = (0, 1)  # tries at each task, by either version
    batch: int = 50  # tasks between two looks
    stop_early: bool = True  # at the first verdict
    least: int = 0  # tasks before a better candidate ends it: a gate that asks for more would stay closed
    split: Split = Split.VAL
    chance: str = ""  # names the chance of all of it
    is_null: bool = False  # the same version twice: each arm has a chance of its own
    max_attempts: int = 1
    timeout_s: float | None = 300.0
    is_timed: bool = True  # False: durations are no part of the evidence, and runs that are alike have the same bytes

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadInput(f"batch = {self.batch}", why="must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One task that is measured: what it is called in evidence, and what the agent gets."""

    id: str
    input: Any
    rng_key: str | None = None  # names its chance; None: its id

    def record(self) -> dict[str, Any]:
        return {"id": self.id, "input": self.input, **({} if self.rng_key is None else {"chance": self.rng_key})}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HeldOut:
        return cls(id=record["id"], input=record["input"], rng_key=record.get("chance"))


@dataclass(frozen=True, slots=True, kw_only=True)
class InterimAnalysis:
    """What is known after one batch: references, counts and the verdict."""

    number: int  # 1, 2, …
    iteration: int
    tasks: int  # measured so far by both
    planned: int  # episodes of each version so far
    missing: Mapping[str, int]  # by arm, episodes so far that never came back
    episodes: str  # sha256 of the blob with the episodes of this batch
    earlier: tuple[str, ...] = ()  # those of the batches before
    difference: float | None = None
    verdict: Verdict | None = None  # None: fewer than two tasks were measured by both
    history: Mapping[str, Any] | None = None  # of the baseline: episodes that were spared, and whether it has drifted

    @property
    def is_decided(self) -> bool:
        return self.verdict is not None and self.verdict.outcome is not Outcome.HOLD

    @property
    def blobs(self) -> tuple[str, ...]:
        return (*self.earlier, self.episodes)

    def record(self) -> dict[str, Any]:
        return {
            "phase": PHASE,
            "look": self.number,
            **{name: getattr(self, name) for name in KEPT},
            "missing": dict(self.missing),
            "earlier": list(self.earlier),
            "difference": self.difference,
            "verdict": None if self.verdict is None else encode(self.verdict),
            **({} if self.history is None else {"history": dict(self.history)}),
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> InterimAnalysis:
        told = record["verdict"]
        return cls(
            number=record["look"],
            **{name: record[name] for name in KEPT},
            missing=record["missing"],
            earlier=tuple(record["earlier"]),
            difference=record["difference"],
            verdict=None if told is None else decode(Verdict, told),
            history=record.get("history"),
        )


async def prove(
    run: DurableRun,
    name: str,
    baseline: Policy,
    candidate: Policy,
    tasks: Sequence[HeldOut],
    config: ProveConfig,
    *,
    iteration: int | None = None,
    prefix: str = "",
    before: InterimAnalysis | None = None,
    done: int = 0,
    history: str | None = None,
) -> InterimAnalysis:
    """Look after look until the verdict stands or the tasks are used up; the last one.

    `before` is what was known before the first of them, and `done` how many batches of these tasks that rests on.
    `history` is the blob with earlier tries of the baseline, by task."""
    title = ""
    if iteration is not None:
        prefix, title = f"proof-{iteration}-", f"iteration {iteration + 1}: "
    found, parts = before, range(0, len(tasks), config.batch)
    for number, first in list(enumerate(parts))[done:]:
        if found is not None and _is_enough(found, config):
            break
        found = await run.step(
            f"{name}/{number}",
            look,
            [baseline, candidate],
            list(tasks[first : first + config.batch]),
            config,
            {"prefix": prefix, "first": first, "iteration": iteration or 0} | ({"history": history} if history else {}),
            None if found is None else found.record(),
            title=f"{title}look {number + 1} of {len(parts)}",
        )
    if found is None:
        raise BadInput("held-out tasks", why="there are none", remedy="a proof needs tasks that are not learnt from")
    return found


def _is_enough(found: InterimAnalysis, config: ProveConfig) -> bool:
    if not (config.stop_early and found.verdict is not None and found.is_decided):
        return False
    return found.tasks >= config.least or found.verdict.outcome is Outcome.REJECT


async def look(
    policies: Sequence[Policy],
    tasks: Sequence[HeldOut],
    config: ProveConfig,
    place: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    *,
    ctx: StepContext,
) -> InterimAnalysis:
    """Run one batch by both versions, and say what all batches so far come to."""
    earlier = await ctx.in_thread(_known_before, ctx, place, before)
    work, places = _work(policies, tasks, config, place, earlier)
    batch = await ctx.collect(work, max_attempts=config.max_attempts, timeout_s=config.timeout_s)
    if earlier is not None and await ctx.in_thread(_has_drifted, ctx, batch, places[BASELINE], config, before, earlier):
        known, (work, places), earlier = {one.name for one in work}, _work(policies, tasks, config, place, None), None
        rest = [one for one in work if one.name not in known]
        batch = await ctx.collect(rest, max_attempts=config.max_attempts, timeout_s=config.timeout_s)
    return await ctx.in_thread(_analyse, ctx, batch, places, config, place, before, earlier)


def _known_before(ctx: StepContext, place: Mapping[str, Any], before: Mapping[str, Any] | None) -> Earlier | None:
    """Earlier tries of the baseline; None where there are none, or where it has drifted since."""
    kept = place.get("history")
    if kept is None or (before is not None and (before.get("history") or {}).get("has_drifted")):
        return None
    return {task: EarlierTries.from_record(one) for task, one in ctx.read(str(kept)).items()}


def _has_drifted(
    ctx: StepContext,
    batch: Any,
    places: Places,
    config: ProveConfig,
    before: Mapping[str, Any] | None,
    earlier: Earlier,
) -> bool:
    blobs = () if before is None else InterimAnalysis.from_record(before).blobs
    fresh = [*_read(ctx.store, blobs, LIVE), *episodes(ctx.experiences(batch), places)]
    metric = "safety_cost" if config.how.primary == "safety" else config.how.primary
    return has_drifted(fresh, earlier, metric, reach(config.how, config.how.primary))


def _work(
    policies: Sequence[Policy],
    tasks: Sequence[HeldOut],
    config: ProveConfig,
    place: Mapping[str, Any],
    earlier: Earlier | None = None,
) -> tuple[list[Work], dict[str, Places]]:
    work: list[Work] = []
    places: dict[str, dict[str, tuple[str, int]]] = {arm: {} for arm in ARMS}
    for number, task in enumerate(tasks, int(place["first"])):
        for seed in config.seeds:
            for arm, policy in zip(ARMS, policies, strict=True):  # side by side: both find the machine as busy
                if arm == BASELINE and is_spared(number, (earlier or {}).get(task.id), len(config.seeds)):
                    continue
                name = f"{place['prefix']}{arm}-{number}-{seed}"
                chance = f"{config.chance}/{task.rng_key or task.id}/{seed}" + (f"/{arm}" if config.is_null else "")
                places[arm][name] = (task.id, seed)
                work.append(
                    Work(name=name, input=task.input, policy=policy, group=task.id, split=config.split, seed=chance)
                )
    return work, dict(places)


def _analyse(
    ctx: StepContext,
    batch: Any,
    places: Mapping[str, Places],
    config: ProveConfig,
    place: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    earlier: Earlier | None = None,
) -> InterimAnalysis:
    experiences = ctx.experiences(batch)
    blobs = () if before is None else InterimAnalysis.from_record(before).blobs
    new, lost = {}, {}
    for arm in ARMS:
        found = episodes(experiences, places[arm])
        if not config.is_timed:
            found = [replace(one, latency_s=None) for one in found]
        imputed = missing(found, places[arm], config.how, is_candidate=arm == CANDIDATE)
        new[arm], lost[arm] = [*found, *imputed], len(imputed) + (0 if before is None else int(before["missing"][arm]))
    history, planned = None, len(places[CANDIDATE])
    if "history" in place:
        history = {**((before or {}).get("history") or {"spared": 0}), "has_drifted": earlier is None}
        history["spared"] += planned - len(places[BASELINE])
        blobs = _with_history(ctx.store, new, blobs, places[CANDIDATE], earlier)
    kept = ctx.save({arm: [encode(one) for one in some] for arm, some in new.items()})
    both = [[*_read(ctx.store, blobs, arm), *new[arm]] for arm in ARMS]
    told = {"tasks": 0, "difference": None, "verdict": None, **judged(both[0], both[1], config.how)}
    return InterimAnalysis(
        number=1 if before is None else int(before["look"]) + 1,
        iteration=int(place["iteration"]),
        planned=planned + (0 if before is None else int(before["planned"])),
        missing=lost,
        episodes=kept,
        earlier=blobs,
        history=history,
        **told,
    )


def _with_history(
    store: Store, new: dict[str, list[Episode]], blobs: tuple[str, ...], places: Places, earlier: Earlier | None
) -> tuple[str, ...]:
    """Pools the earlier tries into the new episodes of the baseline, which are kept beside as they were. Where it has
    drifted, earlier looks are taken anew without them: a task that it was not run on is not compared."""
    new[LIVE] = list(new[BASELINE])
    if earlier is not None:
        seeds: dict[str, list[int]] = {}
        for task, seed in places.values():
            seeds.setdefault(task, []).append(seed)
        new[BASELINE] = pooled(new[BASELINE], earlier, seeds)
        return blobs
    new[LIVE] = [*_read(store, blobs, LIVE), *new[LIVE]]
    new[BASELINE], new[CANDIDATE] = list(new[LIVE]), [*_read(store, blobs, CANDIDATE), *new[CANDIDATE]]
    return ()


def judged(baseline: Sequence[Episode], candidate: Sequence[Episode], how: ComparisonConfig) -> dict[str, Any]:
    """The verdict alone: workers wait while we look, and intervals are for the end."""
    tasks, before, after = pairs(baseline, candidate, how.primary)
    if len(tasks) < 2:
        return {"tasks": len(tasks)}
    _, cost, costs = pairs(*with_safety(baseline, candidate, how), "safety")
    gains = (after - before).mean(axis=1)
    found = verdict(gains, (costs - cost).mean(axis=1), how, seeds=after.shape[1])
    return {"tasks": len(tasks), "difference": float(gains.mean()), "verdict": found}


def _read(store: Store, blobs: Sequence[str], arm: str) -> list[Episode]:
    """Lost where one is missing or damaged: the look that kept it can be made anew from its rollouts."""
    kept = []
    for blob in blobs:
        try:
            kept.append(json.loads(store.blobs.get(blob)))
        except (NotFound, StoreCorrupt) as error:
            raise Lost(f"blob {blob}", why=error.why, remedy="restore it from a copy, or begin a new run") from error
    return [decode(Episode, one) for part in kept for one in part.get(arm, part[BASELINE])]


def episodes_of(store: Store, found: InterimAnalysis) -> tuple[list[Episode], list[Episode]]:
    """Of baseline and candidate, all that a look rests on."""
    return _read(store, found.blobs, BASELINE), _read(store, found.blobs, CANDIDATE)


def tried_in(store: Store, found: InterimAnalysis) -> tuple[list[Episode], list[Episode]]:
    """The same as they were measured, without what earlier tries have added."""
    return _read(store, found.blobs, LIVE), _read(store, found.blobs, CANDIDATE)


def episodes_in(store: Store, steps: Sequence[StepRecord]) -> tuple[list[Episode], list[Episode]]:
    """Of baseline and candidate, as far as a run has looked; steps of versions before held them in their own body."""
    looks = looks_in(steps)
    if looks:
        return episodes_of(store, looks[-1])
    found: dict[str, list[Episode]] = {arm: [] for arm in ARMS}
    for step in steps:
        kept = step.body.get("episodes")
        if isinstance(kept, list):
            kept = {str(step.body["arm"]): kept}
        for arm, some in (kept or {}).items():
            found[arm] += [decode(Episode, one) for one in some]
    return found[BASELINE], found[CANDIDATE]


def looks_in(steps: Sequence[StepRecord]) -> list[InterimAnalysis]:
    """Each refers to all that it rests on."""
    return [InterimAnalysis.from_record(step.body) for step in steps if isinstance(step.body.get("episodes"), str)]
