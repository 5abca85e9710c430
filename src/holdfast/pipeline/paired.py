"""Two versions measured against one another, as a run of its own: its settings, its program, what it has measured.

Such a run may continue another that left its candidate held. Its evidence is then all that both have measured, no task
twice with the same seed, and the test goes on where it stood. Which tasks, agent and scorer it is made of is the
caller's business, what the episodes prove is `prove`'s, and what follows is the gate's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from holdfast.collect.pool import PoolTiming
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.evidence import Episode
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import Split
from holdfast.contracts.run import LEGACY_STEP, RunRecord, StepRecord
from holdfast.pipeline.alpha_account import at_charge, at_test, charge_of, charged, ever_promoted
from holdfast.pipeline.context import Runtime, StepContext
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.history import history_of, setup_of
from holdfast.pipeline.promote import comparison_config_from
from holdfast.pipeline.prove import (
    ARMS,
    LIVE,
    InterimAnalysis,
    ProveConfig,
    episodes_in,
    judged,
    looks_in,
    prove,
    tried_in,
)
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.pipeline.versions import Version, policy_for, resolve
from holdfast.promote.alpha_account import ANCHOR, CANDIDATE, Charge
from holdfast.promote.gate import CHARGED, Criteria
from holdfast.prove.comparison import ComparisonConfig, ComparisonResult, compare_versions, pairs
from holdfast.store.store import Store

KIND = "prove"
TIMEOUT_S = 120.0
NAMES = ("is_null", "batch", "stop_early", "seed", "workers")  # of an evaluation, kept as they are
AGAIN = "again-"  # begins the names of rollouts in a run that a version before durable steps began


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """The run whose evidence goes on, and how far that had come."""

    run: str
    iteration: int | None = None  # of a run that improves: the one that made the candidate
    planned: int  # episodes of each version
    looks: int
    is_repeat: bool = False  # its tasks with further seeds: another try, and no further step of the same test


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEvaluation:
    """Two versions do the same tasks with the same chance, a batch at a time, with a look after each."""

    tasks: Sequence[HeldOut]
    seeds: tuple[int, ...]  # every task is done once with each, by either version
    suite: tuple[str, str, str]  # name, version, and the sha256 of all that is measured
    baseline: Version
    candidate: Version
    how: ComparisonConfig
    is_null: bool = False  # the same version twice: each arm has a chance of its own
    batch: int = 250  # tasks between two looks
    stop_early: bool = False  # at the first verdict
    least: int = Criteria().least  # tasks before a better candidate ends it; 0: of a run before this was asked
    cluster: str | None = None  # the key that says which tasks belong together
    reuse_live: bool = False  # earlier tries of live are pooled in
    seed: int = 0
    workers: int = 64
    timeout_s: float | None = TIMEOUT_S  # of one episode
    source: Mapping[str, Any] = field(default_factory=dict)  # plain JSON: what finds tasks, agent and scorer again
    continues: Continued | None = None
    is_charged: bool = False  # where the baseline is live: to that policy's α-account
    anchor_of: str | None = None  # the policy whose live version, the candidate, is measured against an earlier one

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadInput(f"batch = {self.batch}", why="must be at least 1")
        is_same = self.baseline.behaviour == self.candidate.behaviour
        if is_same and not self.is_null:
            what = f"candidate {self.candidate.name}"
            remedy = "name another version, or measure a version against itself with --null"
            raise BadInput(what, why=f"is the same as baseline {self.baseline.name}", remedy=remedy)
        if self.is_null and not is_same:
            raise BadInput("a null comparison", why="is between a version and itself", remedy="name one version")

    @property
    def versions(self) -> tuple[str, str]:
        return _called(self.baseline, self.candidate)

    @property
    def criteria(self) -> Criteria:
        """The gate's criteria for what is measured, where nobody asks for more."""
        return Criteria(max_p_value=self.how.alpha, max_safety_regression=self.how.max_safety_regression)

    @property
    def config(self) -> ProveConfig:
        return ProveConfig(
            how=self.how,
            seeds=self.seeds,
            batch=self.batch,
            stop_early=self.stop_early,
            least=self.least,
            criteria=self.criteria,
            cluster=self.cluster,
            reuse_live=self.reuse_live,
            split=Split.TEST,
            chance=str(self.seed),
            is_null=self.is_null,
            timeout_s=self.timeout_s,
        )

    @property
    def settings(self) -> dict[str, Any]:
        """All that a resumed run needs; plain JSON."""
        kept = {
            **self.source,
            "baseline": asdict(self.baseline),
            "candidate": asdict(self.candidate),
            **{name: getattr(self, name) for name in NAMES},
            "how": self.how.record(),
            **({"least": self.least} if self.least else {}),  # without it, the settings of such a run stay the same
            **({} if self.cluster is None else {"cluster": self.cluster}),
        }
        kept |= {"is_charged": True} if self.is_charged else {}
        kept |= {"reuse_live": True} if self.reuse_live else {}
        kept |= {"anchor_of": self.anchor_of} if self.anchor_of else {}
        return kept if self.continues is None else {**kept, "continues": asdict(self.continues)}


def settled(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Reads an evaluation's fields from the settings of its run, except tasks, seeds and suite."""
    continues = settings.get("continues")
    return {
        "baseline": Version(**settings["baseline"]),
        "candidate": Version(**settings["candidate"]),
        **{name: settings[name] for name in NAMES},
        "how": comparison_config_from(settings["how"]),
        "least": settings.get("least", 0),
        "cluster": settings.get("cluster"),
        "continues": None if continues is None else Continued(**continues),
        "is_charged": settings.get("is_charged", False),
        "reuse_live": settings.get("reuse_live", False),
        "anchor_of": settings.get("anchor_of"),
    }


def _called(baseline: Version, candidate: Version) -> tuple[str, str]:
    """Names both versions as evidence does."""
    again = " (again)" if baseline.name == candidate.name else ""
    return baseline.name, f"{candidate.name}{again}"


def policies_of(store: Store, evaluation: PairedEvaluation) -> tuple[Policy, Policy]:
    """One for each arm; a version against itself is one policy."""
    old = policy_for(store, evaluation.baseline)
    return old, old if evaluation.is_null else policy_for(store, evaluation.candidate)


def paired_spec(evaluation: PairedEvaluation, policies: tuple[Policy, Policy], runtime: Runtime) -> RunSpec:
    for policy in policies:
        runtime.open(policy)  # what cannot be opened is found here, not by a worker
    return RunSpec(
        kind=KIND,
        program=partial(compare, evaluation, policies),
        model_ref=f"{evaluation.versions[1]} against {evaluation.versions[0]}",
        settings=evaluation.settings,
        runtime=runtime,
        workers=evaluation.workers,
        timing=PoolTiming(heartbeat_s=1.0, lease_s=10.0),
        seed=evaluation.seed,
        drain_s=10.0,
    )


async def compare(evaluation: PairedEvaluation, policies: tuple[Policy, Policy], run: DurableRun) -> InterimAnalysis:
    """Look after look; the last one. What was measured before is the first step's to gather."""
    lessons = [step for step in run.done if step.function == LEGACY_STEP]
    done, earlier = len(lessons), evaluation.continues
    if lessons:
        planned = min(len(evaluation.tasks), done * evaluation.batch) * len(evaluation.seeds)
        earlier = Continued(run=run.id, planned=planned, looks=done)
    config, kept = evaluation.config, dict[str, Any]()
    if evaluation.is_charged:
        kept = await run.step(CHARGED, partial(charge, evaluation, policies[0]), title="α-account")
        evaluation = replace(evaluation, how=comparison_config_from(kept["how"]))
        config = at_test(evaluation.config, Charge.from_record(kept[CHARGED]) if CHARGED in kept else None)
    before = None
    if earlier is not None:
        before = await run.step("earlier", gathered, asdict(earlier), config, title="earlier episodes")
    run.planned = 2 * len(evaluation.tasks) * len(evaluation.seeds)
    analysis = await prove(
        run,
        KIND,
        *policies,
        evaluation.tasks,
        config,
        prefix=AGAIN if lessons else "",
        before=before,
        done=done,
        history=kept.get("history"),
    )
    run.planned = 0  # those that an early verdict made needless are not waited for
    return analysis


async def charge(evaluation: PairedEvaluation, live: Policy, *, ctx: StepContext) -> dict[str, Any]:
    """Charges the test, sets its α, and finds the earlier tries of the live version that it uses;
    nothing where its baseline is not live anywhere."""
    store, how, goes_on = ctx.store, evaluation.how, evaluation.continues
    before = None
    policy = evaluation.anchor_of or await asyncio.to_thread(
        served_by, store, evaluation.baseline, evaluation.candidate
    )
    if goes_on is not None and not goes_on.is_repeat:
        before = charge_in(store, goes_on.run, goes_on.iteration)
        policy = policy if before is None else before.policy
    if policy is None:
        return {"how": how.record()}
    setup = await asyncio.to_thread(setup_of, ctx)
    earlier: dict[str, Any] = {"tasks": {}, "why": ""}
    if evaluation.reuse_live:
        selected = await asyncio.to_thread(ever_promoted, store, policy)
        earlier = await asyncio.to_thread(history_of, store, policy, live, evaluation.tasks, setup, selected)
    charged_test = await charged(
        store,
        policy,
        evaluation.tasks,
        setup=setup,
        alpha=how.uncharged_alpha,
        run=ctx.run,
        versions=(source_named(store, evaluation.baseline), source_named(store, evaluation.candidate)),
        who=ctx.who,
        now=ctx.now(),
        about=CANDIDATE if evaluation.anchor_of is None else ANCHOR,
        continues=before,
    )
    kept = {"history": await asyncio.to_thread(ctx.save, earlier["tasks"])} if earlier["tasks"] else {}
    kept |= {"unused": earlier["why"]} if earlier["why"] else {}
    return {"how": at_charge(how, charged_test).record(), CHARGED: charged_test.record(), **kept}


def charge_in(store: Store, run: str, iteration: int | None = None) -> Charge | None:
    """Finds the charge of a run in any policy's account."""
    found = (charge_of(store, policy, run, iteration) for policy in store.releases.policies())
    return next((charge for charge in found if charge is not None), None)


def served_by(store: Store, version: Version, candidate: Version) -> str | None:
    """The policy whose live version acts as this one does: that of the candidate, where it is a release."""
    try:
        policies = [store.releases.get(candidate.name).policy]
    except NotFound:
        policies = store.releases.policies()
    for policy in policies:
        live = store.releases.live(policy)
        if live is not None and (live.id == version.name or resolve(store, live.id).behaviour == version.behaviour):
            return policy
    return None


def source_named(store: Store, version: Version) -> str:
    """The source of a release; of what is none, the hash that it was resolved to."""
    try:
        return store.releases.get(version.name).source
    except NotFound:
        return version.sha256


async def gathered(earlier: Mapping[str, Any], config: ProveConfig, *, ctx: StepContext) -> InterimAnalysis:
    """Gathers what a run has measured as one look: the continued run, or this one before durable steps."""
    if earlier["run"] == ctx.run:  # what it was in the midst of is done anew: those rollouts belong to no step
        why = "measured anew, by a later version of the program"
        while await ctx.store.queue.cancel_open(ctx.run, now=ctx.now(), why=why):
            continue
    return await asyncio.to_thread(_gather, Continued(**earlier), config, ctx)


def _gather(earlier: Continued, config: ProveConfig, ctx: StepContext) -> InterimAnalysis:
    ctx.store.steps.verify(earlier.run)  # nobody has touched them since
    episodes = measured(ctx.store, earlier.run, iteration=earlier.iteration, planned=earlier.planned)
    both = dict(zip(ARMS, (episodes.before, episodes.after), strict=True))
    looks = looks_in(looked(ctx.store, earlier.run, earlier.iteration))
    history = looks[-1].history if looks else None
    if history is not None:  # beside what is pooled, as it was measured: it may drift yet
        both[LIVE] = tried_in(ctx.store, looks[-1])[0]
    return InterimAnalysis(
        number=earlier.looks,
        iteration=0,
        planned=episodes.planned,
        missing=episodes.lost,
        history=history,
        episodes=ctx.save({arm: [encode(episode) for episode in some] for arm, some in both.items()}),
        **{"tasks": 0, **judged(episodes.before, episodes.after, config)},
    )


# What a run has measured ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEpisodes:
    """The episodes of both versions, as far as a run and those that it continues have looked."""

    before: Sequence[Episode]  # of the baseline
    after: Sequence[Episode]
    planned: int  # of each
    lost: Mapping[str, int]  # by arm, those of them that never came back
    looks: int


def measured(store: Store, run: str, *, iteration: int | None = None, planned: int = 0) -> PairedEpisodes:
    """Reads what a run, or one iteration of it, has measured. `planned` is for runs from before durable steps alone."""
    steps = looked(store, run, iteration)
    before, after = episodes_in(store, steps)
    looks = looks_in(steps)
    if looks:
        last = looks[-1]
        return PairedEpisodes(before=before, after=after, planned=last.planned, lost=last.missing, looks=last.number)
    lost = {arm: max(0, planned - len(some)) for arm, some in zip(ARMS, (before, after), strict=True)}
    return PairedEpisodes(before=before, after=after, planned=planned, lost=lost, looks=len(steps))


def looked(store: Store, run: str, iteration: int | None = None) -> list[StepRecord]:
    """The steps that hold looks, of versions before durable steps too."""
    steps = [step for step in store.steps.of_run(run) if "episodes" in step.body]
    return [step for step in steps if iteration is None or step.body.get("iteration") == iteration]


def shown_looks(store: Store, run: str) -> list[StepRecord]:
    """The looks that the run itself has taken."""
    return [step for step in looked(store, run) if not step.function.endswith(f".{gathered.__name__}")]


def episodes_of_run(store: Store, run: str) -> tuple[list[Episode], list[Episode]]:
    """Returns the episodes of baseline and candidate that were looked at."""
    found = of_kind(store.runs.get(run), "compared nothing")
    return episodes_in(store, looked(store, found.id))


def of_kind(run: RunRecord, lacking: str) -> RunRecord:
    if run.kind != KIND:
        why, remedy = f"is of the kind {run.kind}, and {lacking}", "'holdfast run list' lists them"
        raise BadInput(f"run {run.id}", why=why, remedy=remedy)
    return run


def how_of(store: Store, run: str) -> ComparisonConfig:
    """Reads how a run is judged, with the α that it was charged."""
    step = store.steps.get(run, CHARGED)
    return comparison_config_from(store.runs.get(run).settings["how"] if step is None else step.body["how"])


def comparison_of(store: Store, run: str) -> ComparisonResult | None:
    """Compares the episodes of a run; None while there is nothing to compare."""
    baseline, candidate = episodes_of_run(store, run)
    settings = store.runs.get(run).settings
    how, versions = how_of(store, run), _called(*(Version(**settings[arm]) for arm in ARMS))
    if len(pairs(baseline, candidate, how.primary)[0]) < 2:
        return None
    return compare_versions(baseline, candidate, how, versions=versions, rng=np.random.default_rng(how.resample_seed))
