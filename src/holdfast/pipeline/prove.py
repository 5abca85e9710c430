"""The steps that prove: two versions do the same tasks with the same chance, with an interim analysis after each batch.

The test allows looking as often as one likes. Each analysis is a step of its own, which keeps its episodes as a blob.
Looking ends when the candidate is proved worse, or when all that a gate asks of what is measured is met. What nobody
measured is missing: it counts as the worst for the candidate and as the best for the baseline, and the other way round
before the candidate is called worse. Where that may be why nothing is decided in the end, what infrastructure lost is
measured once more.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

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
from holdfast.pipeline.held_out import HeldOut, batches, mixed
from holdfast.pipeline.promote import evidence_from
from holdfast.pipeline.run import DurableRun
from holdfast.promote import gate
from holdfast.promote.gate import Criteria
from holdfast.prove.comparison import (
    METRICS,
    ComparisonConfig,
    at_best,
    compare_versions,
    pairs,
    reach,
    verdict,
    with_safety,
)
from holdfast.prove.estimate import is_alike
from holdfast.prove.history import EarlierTries, has_drifted, is_spared, pooled
from holdfast.store.store import Store

Places = Mapping[str, tuple[str, int]]  # a rollout's name → its task and its seed
Earlier = Mapping[str, EarlierTries]  # what is known of the baseline, by task
LIVE = "live"  # in a look's blob: the baseline's fresh episodes as they were, where earlier tries are pooled in


def episode(experience: Experience, *, task: str, seed: int, lowest: float = 0.0) -> Episode | None:
    """None where a fault of ours left it without a score: missing, not wrong. An agent that failed was not right, and
    earned the lowest reward that there is: below 0 nothing would be the best."""
    signals = (
        {} if experience.breakdown is None else {signal.name: signal.value for signal in experience.breakdown.signals}
    )
    if not signals and experience.state is not RolloutState.FAILED:
        return None
    told = next((signals[name] for name in CHECKED if name in signals), None)
    total = None if experience.breakdown is None else experience.breakdown.total
    counts = [len(call.completion_ids) for call in experience.calls if call.completion_ids is not None]
    return Episode(
        task=task,
        seed=seed,
        reward=lowest if total is None else total,
        safety_cost=signals.get(SAFETY),
        success=0.0 if experience.state is RolloutState.FAILED else told,
        latency_s=experience.latency_s,
        tokens=sum(counts) if counts else None,
        rollout=experience.rollout,
    )


def is_checked(experience: Experience) -> bool:
    """Whether its score says if it succeeded."""
    return experience.breakdown is not None and any(signal.name in CHECKED for signal in experience.breakdown.signals)


def episodes(experiences: Iterable[Experience], places: Places, lowest: float = 0.0) -> list[Episode]:
    """Makes episodes of the rollouts that have a place, which is a task and a seed."""
    found = []
    for experience in experiences:
        name = experience.rollout.partition("/")[2]
        if name in places:
            task, seed = places[name]
            found.append(episode(experience, task=task, seed=seed, lowest=lowest))
    return [one for one in found if one is not None]


def missing(measured: Iterable[Episode], places: Places, how: ComparisonConfig, *, is_candidate: bool) -> list[Episode]:
    """Imputes what never came back: the worst for a candidate, the best for a baseline."""
    known = {(one.task, one.seed) for one in measured}
    low, high = how.reward_range
    is_safety = how.max_safety_regression is not None or how.primary == "safety"
    return [
        Episode(
            task=task,
            seed=seed,
            reward=low if is_candidate else high,
            safety_cost=(how.max_cost if is_candidate else 0.0) if is_safety else None,
            success=0.0 if is_candidate else 1.0,
            is_missing=True,
        )
        for task, seed in places.values()
        if (task, seed) not in known
    ]


def is_told(episode: Episode, how: ComparisonConfig) -> bool:
    """Whether it says anything of what has to improve."""
    return METRICS[how.primary](episode) is not None


def completed(
    measured: Iterable[Episode], places: Places, how: ComparisonConfig, *, is_candidate: bool
) -> tuple[list[Episode], int]:
    """All of the places in their order, and how many are missing there. What was scored without the primary metric is
    missing, too: a task that is left out where the score lacks it would hide failures that are scored so."""
    told = [one for one in measured if is_told(one, how)]
    imputed = missing(told, places, how, is_candidate=is_candidate)
    whole = {(one.task, one.seed): one for one in (*told, *imputed)}
    return [whole[place] for place in places.values()], len(imputed)


PHASE = "prove"
BASELINE, CANDIDATE = ARMS = ("baseline", "candidate")
RETRY = "-retry"  # ends the names of rollouts that measure again what infrastructure lost
LATER = ("unmet", "order", "history", "retried")  # of an analysis: left out of its record where they are not set


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveConfig:
    """How two versions are measured against one another."""

    how: ComparisonConfig = field(default_factory=ComparisonConfig)
    seeds: Sequence[int] = (0, 1)  # tries at each task, by either version
    batch: int = 50  # tasks between two looks
    stop_early: bool = True  # at the first verdict
    least: int = 0  # tasks before a better candidate ends it, in a run of versions before; `criteria` say it now
    criteria: Criteria | None = None  # what the gate will ask: looking goes on until it is met
    cluster: str | None = None  # the key that says which tasks belong together; None: usual names in the metadata
    reuse_live: bool = False  # earlier tries of live are pooled in
    confirm_live: bool = True  # what is proved by them is proved by fresh pairs, too: live may have drifted unseen
    split: Split = Split.VAL
    chance: str = ""  # names the chance of all of it
    is_null: bool = False  # the same version twice: each arm has a chance of its own
    max_attempts: int = 1
    timeout_s: float | None = 300.0
    is_timed: bool = True  # False: durations are no part of the evidence, and runs that are alike have the same bytes

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadInput(f"batch = {self.batch}", why="must be at least 1")

    def record(self) -> dict[str, Any]:
        """Returns what a step records of it; later fields are left out where they are not set."""
        later = ("criteria", "cluster")
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        payload = {name: value for name, value in named.items() if name not in later or value is not None}
        if not self.reuse_live:
            del payload["reuse_live"], payload["confirm_live"]
        return {
            **payload,
            "how": self.how.record(),
            **({} if self.criteria is None else {"criteria": asdict(self.criteria)}),
        }

    @property
    def as_before(self) -> ProveConfig:
        """The configuration for a run that an earlier version began: its analyses go on as they were."""
        return replace(self, how=replace(self.how, rules=1), criteria=None, cluster=None)


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
    unmet: tuple[str, ...] | None = None  # codes of the gate's checks that more tasks may meet; None: not asked
    order: str | None = None  # sha256 of the blob with the order of the tasks; None: that of their file
    history: Mapping[str, Any] | None = None  # of the baseline: episodes that were spared, and whether it has drifted
    retried: Mapping[str, int] | None = None  # by arm, lost episodes that were measured in the end; None: not tried

    @property
    def is_decided(self) -> bool:
        return self.verdict is not None and self.verdict.outcome is not Outcome.HOLD

    @property
    def blobs(self) -> tuple[str, ...]:
        return (*self.earlier, self.episodes)

    def record(self) -> dict[str, Any]:
        kept = {one.name: getattr(self, one.name) for one in fields(self)}
        kept |= {"look": kept.pop("number"), "earlier": list(self.earlier)}
        kept["verdict"] = None if self.verdict is None else encode(self.verdict)
        kept["unmet"] = None if self.unmet is None else list(self.unmet)
        return {
            "phase": PHASE,
            **{name: value for name, value in kept.items() if name not in LATER or value is not None},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> InterimAnalysis:
        kept, unmet = {**record, "number": record["look"], "earlier": tuple(record["earlier"])}, record.get("unmet")
        kept["verdict"] = None if record["verdict"] is None else decode(Verdict, record["verdict"])
        kept["unmet"] = None if unmet is None else tuple(unmet)
        return cls(**{one.name: kept[one.name] for one in fields(cls) if one.name in kept})


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
    """Look after look until it is decided or the tasks are used up; the last one.

    `before` is what was known before the first of them, and `done` how many batches of these tasks that rests on. The
    order of the tasks is the first step. A run that a version before has begun has none, and keeps the file's.
    `history` is the blob with earlier tries of the baseline, by task."""
    title = ""
    if iteration is not None:
        prefix, title = f"proof-{iteration}-", f"iteration {iteration + 1}: proof, "
    known = {step.name for step in run.done}
    place: dict[str, Any] = {"prefix": prefix, "iteration": iteration or 0, **({"history": history} if history else {})}
    kept: Mapping[str, Any] = {}
    if done or (f"{name}/0" in known and f"{name}/order" not in known):
        config = config.as_before
    else:
        kept = await run.step(f"{name}/order", order, list(tasks), str(run.spec.seed), config.cluster)
        tasks, place["order"] = _in_order(run.store, kept, tasks), kept["order"]
    analysis, parts, first = before, batches(tasks, config.batch), 0
    policies = [baseline, candidate]

    async def confirmed(analysis: InterimAnalysis, count: int) -> InterimAnalysis:
        """Confirms by fresh tries alone what earlier tries have proved; from then on those count."""
        if not is_pooled(analysis, config):
            return analysis
        given = (policies, list(tasks[:count]), config, {**place, "first": 0}, analysis.record())
        shown: InterimAnalysis = await run.step(f"{name}/confirm", confirm, *given, title=f"{title}live beside it")
        return shown

    for number, part in enumerate(parts):
        if analysis is not None and is_enough(analysis, config):
            analysis = await confirmed(analysis, first)
            if is_enough(analysis, config):
                break
        if number >= done:
            analysis = await run.step(
                f"{name}/{number}",
                look,
                policies,
                part,
                config,
                {**place, "first": first},
                None if analysis is None else analysis.record(),
                title=f"{title}look {number + 1} of {len(parts)}",
            )
        first += len(part)
    if analysis is None:
        raise BadInput("held-out tasks", why="there are none", remedy="a proof needs tasks that are not learnt from")
    analysis = await confirmed(analysis, first)
    if not kept.get("retries") or is_enough(analysis, config) or not any(analysis.missing.values()):
        return analysis
    given = (policies, list(tasks), config, {**place, "first": 0}, analysis.record())
    mended: InterimAnalysis = await run.step(f"{name}/lost", measure_lost, *given, title=f"{title}what was lost")
    return await confirmed(mended, first)


def is_enough(analysis: InterimAnalysis, config: ProveConfig) -> bool:
    if not (config.stop_early and analysis.verdict is not None and analysis.is_decided):
        return False
    is_met = analysis.tasks >= config.least if analysis.unmet is None else not analysis.unmet
    return is_met or analysis.verdict.outcome is Outcome.REJECT


def is_pooled(analysis: InterimAnalysis, config: ProveConfig) -> bool:
    """Whether it rests on earlier tries of the baseline, and has to be shown without them."""
    is_used = analysis.history is not None and not (
        analysis.history["has_drifted"] or analysis.history.get("is_confirmed")
    )
    return (
        config.confirm_live and is_used and analysis.verdict is not None and analysis.verdict.outcome is Outcome.PROMOTE
    )


def order(tasks: Sequence[HeldOut], seed: str, cluster: str | None, *, ctx: StepContext) -> dict[str, Any]:
    """Mixed by the seed of the run, families side by side, copies and clusters as one unit; kept as a blob."""
    place = {task.id: at for at, task in enumerate(tasks)}
    found = mixed(tasks, seed=seed, cluster=cluster)
    units = len({task.unit or task.id for task in found})
    places = [[place[task.id], task.unit] for task in found]
    return {
        "order": ctx.save({"seed": seed, "cluster": cluster, "units": units, "places": places}),
        "tasks": len(tasks),
        "units": units,
        "retries": True,  # what is lost is measured again; runs of versions before do not
    }


def _in_order(store: Store, kept: Mapping[str, Any], tasks: Sequence[HeldOut]) -> list[HeldOut]:
    return [replace(tasks[place], unit=unit) for place, unit in _blob(store, kept["order"])["places"]]


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
    earlier = await asyncio.to_thread(_known_before, ctx, place, before, _value(config.how))
    work, places = _work(policies, tasks, config, place, earlier)
    batch = await ctx.collect(work, max_attempts=config.max_attempts, timeout_s=config.timeout_s)
    if earlier is not None and await asyncio.to_thread(
        _has_drifted, ctx, batch, places[BASELINE], config, before, earlier
    ):
        known, (work, places), earlier = {one.name for one in work}, _work(policies, tasks, config, place, None), None
        rest = [one for one in work if one.name not in known]
        batch = await ctx.collect(rest, max_attempts=config.max_attempts, timeout_s=config.timeout_s)
    units = {task.id: task.unit for task in tasks}
    return await asyncio.to_thread(_analyse, ctx, batch, places, units, config, place, before, earlier)


async def measure_lost(
    policies: Sequence[Policy],
    tasks: Sequence[HeldOut],
    config: ProveConfig,
    place: Mapping[str, Any],
    before: Mapping[str, Any],
    *,
    ctx: StepContext,
) -> InterimAnalysis:
    """Measures again, with the same seeds, what infrastructure lost; an agent that failed has had its try. It counted
    as the worst for the candidate so far, so no look was too kind. Where the candidate lost more than the baseline,
    beyond accident, losing may be its own doing and another try would be a gift: then it stays lost."""
    work, places = _work(policies, tasks, config, place)
    dead = await asyncio.to_thread(_dead, ctx)
    lost = {arm: {name: at for name, at in some.items() if name in dead} for arm, some in places.items()}
    again = [replace(one, name=one.name + RETRY) for one in work if any(one.name in some for some in lost.values())]
    previous = InterimAnalysis.from_record(before)
    tried = await asyncio.to_thread(tried_in, ctx.store, previous)
    known = [{(one.task, one.seed) for one in side} for side in tried]
    attempts = [sum(at in some for at in places[arm].values()) for arm, some in zip(ARMS, known, strict=True)]
    if not again or not is_alike([len(lost[arm]) for arm in ARMS], attempts):
        return replace(previous, retried=dict.fromkeys(ARMS, 0))
    batch = await ctx.collect(again, max_attempts=config.max_attempts, timeout_s=config.timeout_s)
    retries = {arm: {name + RETRY: at for name, at in some.items()} for arm, some in lost.items()}
    return await asyncio.to_thread(_mended, ctx, batch, retries, config, place, previous)


def _dead(ctx: StepContext) -> set[str]:
    """The rollouts that were given up without an answer."""
    return {rollout.name for rollout in ctx.store.views.every(ctx.run, status=RolloutState.DEAD)}


def _mended(
    ctx: StepContext,
    batch: Any,
    places: Mapping[str, Places],
    config: ProveConfig,
    place: Mapping[str, Any],
    before: InterimAnalysis,
) -> InterimAnalysis:
    """The last look with what was measured since in its place."""
    experiences, how = ctx.experiences(batch), config.how
    new, retried = {}, {}
    for arm, known in zip(ARMS, tried_in(ctx.store, before), strict=True):
        fresh = [one for one in episodes(experiences, places[arm], how.reward_range[0]) if is_told(one, how)]
        whole = {(one.task, one.seed): one for one in known}
        units = {one.task: one.unit for one in known}
        for one in fresh:
            timed = one if config.is_timed else replace(one, latency_s=None)
            whole[one.task, one.seed] = replace(timed, unit=units.get(one.task))
        new[arm], retried[arm] = list(whole.values()), len(fresh)
    earlier = _known_before(ctx, place, before.record(), _value(how))
    if "history" in place:
        new |= {LIVE: new[BASELINE], BASELINE: _pooled(new[BASELINE], new[CANDIDATE], earlier)}
    judgement = {"unmet": None, **judged(new[BASELINE], new[CANDIDATE], config)}
    return replace(
        before,
        number=before.number + 1,
        missing={arm: count - retried[arm] for arm, count in before.missing.items()},
        episodes=ctx.save({arm: [encode(one) for one in some] for arm, some in new.items()}),
        earlier=(),
        retried=retried,
        **judgement,
    )


async def confirm(
    policies: Sequence[Policy],
    tasks: Sequence[HeldOut],
    config: ProveConfig,
    place: Mapping[str, Any],
    before: Mapping[str, Any],
    *,
    ctx: StepContext,
) -> InterimAnalysis:
    """Runs the baseline where it was spared, and says what fresh tries alone come to. Whatever it has become since its
    earlier tries, the candidate's try and its own are of the same day; when that is looked at, the earlier ones say."""
    work, places = _work(policies, tasks, config, place)
    tried = await asyncio.to_thread(tried_in, ctx.store, InterimAnalysis.from_record(before))
    known = {(one.task, one.seed) for one in tried[0]}
    spared = {name: at for name, at in places[BASELINE].items() if at not in known}
    rest = [one for one in work if one.name in spared]
    batch = await ctx.collect(rest, max_attempts=config.max_attempts, timeout_s=config.timeout_s)
    return await asyncio.to_thread(_confirmed, ctx, batch, spared, tried, config, InterimAnalysis.from_record(before))


def _confirmed(
    ctx: StepContext,
    batch: Any,
    spared: Places,
    tried: tuple[list[Episode], list[Episode]],
    config: ProveConfig,
    before: InterimAnalysis,
) -> InterimAnalysis:
    found, lost = _new(ctx.experiences(batch), {BASELINE: spared, CANDIDATE: {}}, config, before.record())
    live, candidate = tried
    units = {one.task: one.unit for one in candidate}
    whole = {(one.task, one.seed): one for one in (*live, *found[BASELINE])}
    fresh = [replace(whole[at], unit=units[at[0]]) for one in candidate if (at := (one.task, one.seed)) in whole]
    new = {BASELINE: fresh, CANDIDATE: candidate, LIVE: fresh}
    judgement = {"unmet": None, **judged(fresh, candidate, config)}
    return replace(
        before,
        number=before.number + 1,
        missing=lost,
        episodes=ctx.save({arm: [encode(one) for one in some] for arm, some in new.items()}),
        earlier=(),
        history={**(before.history or {}), "spared": 0, "is_confirmed": True},
        **judgement,
    )


def _pooled(live: Sequence[Episode], candidate: Sequence[Episode], earlier: Earlier | None) -> list[Episode]:
    """The baseline's episodes with its earlier tries, where they count."""
    if earlier is None:
        return list(live)
    seeds: dict[str, list[int]] = {}
    for one in candidate:
        seeds.setdefault(one.task, []).append(one.seed)
    return pooled(live, earlier, seeds)


def _value(how: ComparisonConfig) -> str:
    """The value of an episode that the primary metric is read from."""
    return "safety_cost" if how.primary == "safety" else how.primary


def _known_before(
    ctx: StepContext, place: Mapping[str, Any], before: Mapping[str, Any] | None, value: str
) -> Earlier | None:
    """Earlier tries of the baseline that tell the value; None where there are none, or where they count no longer."""
    kept, used = place.get("history"), ((before or {}).get("history") or {})
    if kept is None or used.get("has_drifted") or used.get("is_confirmed"):
        return None
    known = {task: EarlierTries.from_record(one) for task, one in ctx.read(str(kept)).items()}
    return {task: tries for task, tries in known.items() if value in tries.means}


def _has_drifted(
    ctx: StepContext,
    batch: Any,
    places: Places,
    config: ProveConfig,
    before: Mapping[str, Any] | None,
    earlier: Earlier,
) -> bool:
    blobs = () if before is None else InterimAnalysis.from_record(before).blobs
    fresh = [*_read(ctx.store, blobs, LIVE), *episodes(ctx.experiences(batch), places, config.how.reward_range[0])]
    return has_drifted(fresh, earlier, _value(config.how), reach(config.how, config.how.primary))


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
    units: Mapping[str, str | None],
    config: ProveConfig,
    place: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    earlier: Earlier | None = None,
) -> InterimAnalysis:
    experiences = ctx.experiences(batch)
    blobs = () if before is None else InterimAnalysis.from_record(before).blobs
    new, lost = _new(experiences, places, config, before)
    history, planned = (before or {}).get("history"), len(places[CANDIDATE])
    if "history" in place:
        history = {"spared": 0, **(history or {})}
        history["has_drifted"] = earlier is None and not history.get("is_confirmed")
        history["spared"] += planned - len(places[BASELINE])
        blobs = _with_history(ctx.store, new, blobs, earlier)
    new = {arm: [replace(one, unit=units.get(one.task, one.unit)) for one in some] for arm, some in new.items()}
    kept = ctx.save({arm: [encode(one) for one in some] for arm, some in new.items()})
    both = [[*_read(ctx.store, blobs, arm), *new[arm]] for arm in ARMS]
    judgement = {"tasks": 0, "difference": None, "verdict": None, **judged(both[0], both[1], config)}
    return InterimAnalysis(
        number=1 if before is None else int(before["look"]) + 1,
        iteration=int(place["iteration"]),
        order=place.get("order"),
        planned=planned + (0 if before is None else int(before["planned"])),
        missing=lost,
        episodes=kept,
        earlier=blobs,
        history=history,
        **judgement,
    )


def _new(
    experiences: Sequence[Experience],
    places: Mapping[str, Places],
    config: ProveConfig,
    before: Mapping[str, Any] | None,
) -> tuple[dict[str, list[Episode]], dict[str, int]]:
    """The episodes of this batch by arm, and how many are missing so far. Where no task of either version was ever told
    the primary metric, there is nothing to compare, and nobody is worse by it."""
    how = config.how
    found = {arm: episodes(experiences, places[arm], how.reward_range[0]) for arm in ARMS}
    if not config.is_timed:
        found = {arm: [replace(one, latency_s=None) for one in some] for arm, some in found.items()}
    is_known = any(is_told(one, how) for some in found.values() for one in some) or bool(before and before["tasks"])
    new, lost = {}, {}
    for arm, some in found.items():
        if is_known:
            new[arm], count = completed(some, places[arm], how, is_candidate=arm == CANDIDATE)
        else:
            imputed = missing(some, places[arm], how, is_candidate=arm == CANDIDATE)
            new[arm], count = [*some, *imputed], len(imputed)
        lost[arm] = count + (0 if before is None else int(before["missing"][arm]))
    return new, lost


def _with_history(
    store: Store, new: dict[str, list[Episode]], blobs: tuple[str, ...], earlier: Earlier | None
) -> tuple[str, ...]:
    """Pools the earlier tries into the new episodes of the baseline, which are kept beside as they were. Where it has
    drifted, earlier looks are taken anew without them: a task that it was not run on is not compared."""
    new[LIVE] = list(new[BASELINE])
    if earlier is not None:
        new[BASELINE] = _pooled(new[LIVE], new[CANDIDATE], earlier)
        return blobs
    new[LIVE] = [*_read(store, blobs, LIVE), *new[LIVE]]
    new[BASELINE], new[CANDIDATE] = list(new[LIVE]), [*_read(store, blobs, CANDIDATE), *new[CANDIDATE]]
    return ()


def judged(baseline: Sequence[Episode], candidate: Sequence[Episode], config: ProveConfig) -> dict[str, Any]:
    """The verdict alone: workers wait while we look, and the rest is for the end, or for a gate that might open."""
    how = config.how
    tasks, before, after = pairs(baseline, candidate, how.primary)
    if len(tasks) < 2:
        return {"tasks": len(tasks)}
    _, cost, costs = pairs(*with_safety(baseline, candidate, how), "safety")
    gains, best = (after - before).mean(axis=1), at_best(baseline, candidate, how)
    found = verdict(gains, (costs - cost).mean(axis=1), how, seeds=after.shape[1], best=best)
    judgement = {"tasks": len(tasks), "difference": float(gains.mean()), "verdict": found}
    if config.criteria is None or found.outcome is not Outcome.PROMOTE:
        return judgement
    return {**judgement, "unmet": unmet(baseline, candidate, how, config.criteria)}


def unmet(
    baseline: Sequence[Episode], candidate: Sequence[Episode], how: ComparisonConfig, criteria: Criteria
) -> tuple[str, ...]:
    """The codes of what the gate would ask of these episodes, and does not find, of what may be asked again and again.
    The limits of latency and tokens are tests for one look: who samples until they pass errs with every look."""
    criteria = replace(criteria, max_latency_increase=None, max_cost_increase=None)
    rng = np.random.default_rng(how.resample_seed)
    comparison = compare_versions(baseline, candidate, how, versions=ARMS, rng=rng, drawn=gate.needs_drawn(criteria))
    evidence = evidence_from(comparison, how, policy=PHASE, suite=PHASE, versions=ARMS)
    return tuple(dict.fromkeys(check.code for check in gate.measured(evidence, criteria) if not check.is_met))


def _read(store: Store, blobs: Sequence[str], arm: str) -> list[Episode]:
    """Lost where one is missing or damaged: the look that kept it can be made anew from its rollouts."""
    kept = [_blob(store, blob) for blob in blobs]
    return [decode(Episode, one) for part in kept for one in part.get(arm, part[BASELINE])]


def _blob(store: Store, blob: str) -> Any:
    try:
        return json.loads(store.blobs.get(blob))
    except (NotFound, StoreCorrupt) as error:
        raise Lost(f"blob {blob}", why=error.why, remedy="restore it from a copy, or begin a new run") from error


def episodes_of(store: Store, analysis: InterimAnalysis) -> tuple[list[Episode], list[Episode]]:
    """Returns the episodes of baseline and candidate that an analysis rests on."""
    return _read(store, analysis.blobs, BASELINE), _read(store, analysis.blobs, CANDIDATE)


def tried_in(store: Store, analysis: InterimAnalysis) -> tuple[list[Episode], list[Episode]]:
    """Returns the same episodes as they were measured, without what earlier tries have added."""
    return _read(store, analysis.blobs, LIVE), _read(store, analysis.blobs, CANDIDATE)


def episodes_in(store: Store, steps: Sequence[StepRecord]) -> tuple[list[Episode], list[Episode]]:
    """Returns the episodes of baseline and candidate that a run has looked at; older steps hold them in their body."""
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
    """Reads the analyses of the steps; each refers to all that it rests on."""
    return [InterimAnalysis.from_record(step.body) for step in steps if isinstance(step.body.get("episodes"), str)]
