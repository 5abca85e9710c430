"""Improve a policy: collect, learn, prove, decide; again until the iterations are spent.

What work there is to do is the algorithm's business, what it proves the statistics', and where an open gate leads the
caller's. Killed anywhere, it goes on from the last step that is recorded.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from holdfast.contracts.algorithm import Algorithm, AlgorithmState, Batch
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Acceptance, Decision, Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Act, Policy, policy_from, policy_record
from holdfast.contracts.records import decode
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.contracts.reward import CHECKED
from holdfast.contracts.run import LEGACY_STEP, StepRecord
from holdfast.learn.batch import DATA_GATE, SkipReason
from holdfast.pipeline.alpha_account import at_charge, at_test, charged, ever_promoted
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.history import history_of, setup_of
from holdfast.pipeline.leaks import refuse_taught
from holdfast.pipeline.promote import Candidate, PromotionRequest, promote, summed
from holdfast.pipeline.prompts import limit_of, limited
from holdfast.pipeline.prove import InterimAnalysis, ProveConfig, episodes_of, is_checked, prove
from holdfast.pipeline.run import DurableRun
from holdfast.promote.alpha_account import Charge
from holdfast.promote.gate import JUDGED, KPIS, WAIVED, Criteria
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

WAIVER = "waiver"  # the kind of the ledger's entry
NOTHING = "nothing was learnt, so there is nothing to prove"
NEVER_ASKED = (
    "the agent never asked the model through ctx.ask or ctx.base_url, so there are no tokens to train on; "
    "--policy prompt improves its prompt instead"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """What is improved, by what, and how it is judged."""

    line: str  # the policy's name: its versions are registered under it
    policy: Policy  # to begin with, where nothing of the line is live
    algorithm: Algorithm
    tasks: Sequence[Any]  # inputs to learn from
    held_out: Sequence[HeldOut]
    prove: ProveConfig
    criteria: Criteria
    iterations: int = 1
    stage: Stage | None = None  # where an open gate leads; None: it accepts, and nothing moves
    max_attempts: int = 1  # of a rollout that is learnt from: raising must buy no new draw of chance
    timeout_s: float | None = 300.0
    manifest: Mapping[str, Any] = field(default_factory=dict)  # more that evidence and release are to say
    suite: tuple[str, str] = ("validate", "1")  # what the held-out tasks are called in evidence, and which version
    accept: EnvAcceptance | None = None  # what the environment asks beside the return; None: nothing


class EnvAcceptance(Protocol):
    """What an environment asks of a candidate beside its return."""

    def check_signed(self, store: Store, *, line: str, who: str, now: float) -> None:
        """BadInput where the environment has changed since it was recorded, and nobody has signed the change."""
        ...

    def accept(self, act: Act, store: Store, *, line: str, now: float, check: Callable[[], None]) -> Acceptance:
        """Figures of a candidate for the bands of the gate, and what changed of the environment."""
        ...


async def improve(run: DurableRun, spec: Spec) -> IterationResult | None:
    """Collect, learn, prove, decide; again until the iterations are spent. The last decision."""
    async with held_to_budget(run, spec) as held:
        return await _improve(run, held)


async def _improve(run: DurableRun, spec: Spec) -> IterationResult | None:
    decided: IterationResult | None = None
    why = spec.manifest.get(WAIVED)
    if why and (noted := note_waiver(run.store, run.id, why, who=run.who, now=run.clock())) is not None:
        await noted
    if spec.accept is not None:
        now = run.clock()
        await asyncio.to_thread(partial(spec.accept.check_signed, run.store, line=spec.line, who=run.who, now=now))
    checkpoint = getattr(spec.policy, "checkpoint", None)
    await asyncio.to_thread(refuse_taught, run.store, run.id, checkpoint, spec.held_out)
    base: Version = await run.step("base", partial(current_version, spec))
    for n in range(finished(run.done), spec.iterations):
        state: AlgorithmState = await run.step(f"{n}/start", partial(start, spec, run.done), base, n)
        state = await learn_all(run, f"{n}", spec, state)
        if state.candidate is None:
            decided = await run.step(f"{n}/decide", partial(hold, run.done), n)
            continue
        paid = within_budget(spec, state)
        if len(paid.held_out) < 2:
            decided = await run.step(f"{n}/decide", partial(unpaid, spec), n)
            continue
        live: Version = await run.step(f"{n}/live", partial(current_version, paid, candidate=state.candidate, n=n))
        strict = with_charge(paid, live)
        asked = replace(strict.prove, criteria=strict.criteria)  # it is looked at until the gate can open
        policies, earlier = (live.policy, state.candidate), live.history
        analysis = await prove(run, f"{n}/prove", *policies, paid.held_out, asked, iteration=n, history=earlier)
        decided = await run.step(f"{n}/decide", partial(decide, strict, run.done), live, state, analysis)
        base = Version(policy=state.candidate) if decided.is_accepted else base
    return decided


@asynccontextmanager
async def held_to_budget(run: DurableRun, spec: Spec) -> AsyncIterator[Spec]:
    """Limits the spec's calls to its budget in tokens or money while the block runs."""
    limit = await asyncio.to_thread(limit_of, run, spec.algorithm, spec.iterations)
    if limit is None:
        yield spec
        return
    run.spec.runtime.limit = limit
    try:
        yield replace(spec, algorithm=limited(spec.algorithm, limit))
    finally:
        await asyncio.to_thread(limit.close)


def within_budget(spec: Spec, state: AlgorithmState) -> Spec:
    """Keeps as many held-out tasks as the rest of a budget in tokens or money pays for."""
    left_for_proof = getattr(spec.algorithm, "left_for_proof", None)
    left = None if left_for_proof is None else left_for_proof(state)
    return spec if left is None else replace(spec, held_out=spec.held_out[: left // (2 * len(spec.prove.seeds))])


def unpaid(spec: Spec, iteration: int) -> IterationResult:
    """There is a candidate, and nothing left to prove it with."""
    each = 2 * len(spec.prove.seeds)
    why = f"a candidate was found, and the budget does not pay for a proof: {each} rollouts for each held-out task"
    return IterationResult(iteration=iteration, why=why)


def note_waiver(store: Store, run: str, why: str, *, who: str, now: float) -> WriteFuture[None] | None:
    """Notes once in the ledger, before anything is decided, that safety is not measured; None: it is noted already."""
    if any(entry.kind == WAIVER for entry in store.ledger.entries(run=run)):
        return None
    return store.ledger.append(WAIVER, {"safety": "waived", "why": why}, who=who, now=now, run=run)


async def learn_all(run: DurableRun, name: str, spec: Spec, state: AlgorithmState) -> AlgorithmState:
    """Collect what the algorithm asks for and tell it what came of it, until it asks for no more."""
    step_title = getattr(spec.algorithm, "title", None)  # of an algorithm whose steps are not all alike: what each is
    while work := spec.algorithm.ask(state, spec.tasks):
        at, title = f"{name}/{state.step}", f"iteration {state.iteration + 1}, step {state.step + 1}"
        title += "" if step_title is None else f": {step_title(state)}"
        batch = await run.step(f"{at}/collect", collect, work, spec.max_attempts, spec.timeout_s, title=title)
        state = await run.step(f"{at}/learn", partial(learn, spec), state, batch, title=title)
    return state


# The steps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A policy, and the release that serves it, if one does."""

    policy: Policy
    release: str | None = None
    charge: Charge | None = None  # of the candidate's test against it
    history: str | None = None  # blob of its earlier tries at the held-out tasks
    unused: str = ""  # why other earlier tries are no part of that
    tries: int = 0  # of a run that an earlier version began: proofs of the same two that a gate had decided about

    def record(self) -> dict[str, Any]:
        payload: dict[str, Any] = {"policy": policy_record(self.policy), "release": self.release}
        payload |= {} if self.charge is None else {"account": self.charge.record()}
        payload |= {name: kept for name in ("history", "unused") if (kept := getattr(self, name))}
        return {**payload, "tries": self.tries} if self.tries else payload

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Version:
        kept = record.get("account")
        return cls(
            policy=policy_from(record["policy"]),
            release=record["release"],
            charge=None if kept is None else Charge.from_record(kept),
            history=record.get("history"),
            unused=record.get("unused", ""),
            tries=record.get("tries", 0),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationResult:
    """What became of one iteration: the gate's decision and where its evidence lies, or why there was nothing to
    decide."""

    iteration: int
    why: str | None = None  # nothing was learnt: the reason, with counts
    decision: Decision | None = None
    candidate: Policy | None = None
    details: Mapping[str, Any] | None = None  # the release, the hash of the evidence, the proof

    @property
    def is_accepted(self) -> bool:
        return self.decision is not None and self.decision.open

    def record(self) -> dict[str, Any]:
        head = {"phase": "decide", "iteration": self.iteration, "proposed": self.decision is not None}
        if self.decision is None:
            return {**head, "why": self.why}
        candidate = None if self.candidate is None else policy_record(self.candidate)
        return {**head, **(self.details or {}), "candidate": candidate}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> IterationResult:
        if not record["proposed"]:
            return cls(iteration=record["iteration"], why=record["why"])
        kept = record["candidate"]
        details = {name: record[name] for name in record if name not in ("phase", "iteration", "proposed", "candidate")}
        return cls(
            iteration=record["iteration"],
            decision=decode(Decision, record["decision"]),
            candidate=None if kept is None else policy_from(kept),
            details=details,
        )


async def current_version(
    spec: Spec, *, candidate: Policy | None = None, n: int | None = None, ctx: StepContext
) -> Version:
    """Finds the live version of the line, or what the caller began with. With a candidate, what the test of it
    against that is charged: its α is fixed before its first episode, and so are the earlier tries that it uses."""
    live = ctx.store.releases.live(spec.line)
    policy = spec.policy if live is None else policy_of(live, spec.policy)
    version = Version(policy=policy, release=None if live is None else live.id)
    if candidate is None:
        return version
    setup = await asyncio.to_thread(setup_of, ctx)
    earlier: dict[str, Any] = {"tasks": {}, "why": ""}
    if spec.prove.reuse_live:
        selected = await asyncio.to_thread(ever_promoted, ctx.store, spec.line)
        earlier = await asyncio.to_thread(history_of, ctx.store, spec.line, policy, spec.held_out, setup, selected)
    charge = await charged(
        ctx.store,
        spec.line,
        spec.held_out,
        setup=setup,
        alpha=spec.prove.how.alpha,
        run=ctx.run,
        iteration=n,
        versions=(policy.source, candidate.source),
        who=ctx.who,
        now=ctx.now(),
    )
    kept = await asyncio.to_thread(ctx.save, earlier["tasks"]) if earlier["tasks"] else None
    return replace(version, charge=charge, history=kept, unused=earlier["why"])


def with_charge(spec: Spec, live: Version) -> Spec:
    """Gives the spec the α that the account leaves to this test."""
    how = at_charge(spec.prove.how, live.charge)
    if live.tries:
        how = replace(how, alpha=how.alpha / 2**live.tries)
    return replace(spec, prove=at_test(replace(spec.prove, how=how), live.charge))


def policy_of(release: Release, like: Policy) -> Policy:
    """The policy behind a release. Those of versions before pipelines are known by their source alone."""
    kept = release.manifest.get("policy")
    if isinstance(kept, Mapping) and "type" in kept:
        return policy_from(kept)
    kind, _, name = release.source.partition(":")
    if release.source == like.source:
        return like
    if kind == "checkpoint" and hasattr(like, "at"):
        policy: Policy = like.at(name)
        return policy
    is_other = kind == "shelf"
    why = f"{release.source} is live, and {'not this model' if is_other else 'has no weights to go on from'}"
    remedy = f"name another policy{', or that model' if is_other else ''}"
    raise BadInput(f"policy {release.policy}", why=why, remedy=remedy)


def start(spec: Spec, done: Sequence[StepRecord], base: Version, iteration: int, *, ctx: StepContext) -> AlgorithmState:
    """A new iteration. One that a version before durable steps had begun goes on from its last checkpoint."""
    state = spec.algorithm.start(base.policy)
    known = [
        step.body for step in _lessons(done) if step.body.get("iteration") == iteration and "learning_s" in step.body
    ]
    made = [str(body["checkpoint"]) for body in known if "checkpoint" in body]
    data: dict[str, Any] = dict(state.data)
    if made and "followed" not in known[-1]:  # whoever followed a run kept no trainer
        data["trainer"] = known[-1]["phase"]
    if any("followed" in body for body in known):
        data["taken"] = [ctx.save([f"{spec.algorithm.follow}/{name}" for body in known for name in body["followed"]])]  # type: ignore[attr-defined]
    candidate = base.policy.at(made[-1]) if made else state.candidate  # type: ignore[attr-defined]
    step = state.step + len(known)
    metrics = {**state.metrics, "iteration": iteration} if state.metrics else {}
    return replace(state, candidate=candidate, iteration=iteration, step=step, data=data, metrics=metrics)


def learn(spec: Spec, state: AlgorithmState, batch: Batch, *, ctx: StepContext) -> AlgorithmState:
    if state.step == 0:
        _check_measured(spec.prove, ctx.experiences(batch))
    return spec.algorithm.tell(state, batch, ctx)


def _check_measured(config: ProveConfig, experiences: Sequence[Experience]) -> None:
    """Checks after the first step that what has to improve is measured."""
    how, scored = (
        config.how,
        [
            experience
            for experience in experiences
            if experience.breakdown is not None and experience.breakdown.total is not None
        ],
    )
    if how.primary == "success" and scored and not any(is_checked(experience) for experience in scored):
        why = f"no rollout has a signal called {' or '.join(CHECKED)}"
        raise BadInput("improve.prove.primary = success", why=why, remedy="score it, or use reward")
    low, high = how.reward_range
    for experience in scored if how.primary == "reward" else []:
        total = None if experience.breakdown is None else experience.breakdown.total
        if total is not None and not low <= total <= high:
            at = f"improve.prove.reward_range = [{low:g}, {high:g}]"
            raise BadInput(at, why=f"the reward of {experience.rollout} is {total:g}", remedy="name all that it can be")


def hold(done: Sequence[StepRecord], iteration: int) -> IterationResult:
    """Nothing was learnt: what was switched off or taken back, and why how many rollouts taught nothing."""
    bodies = [step.body for step in done if step.body.get("iteration") == iteration]
    skipped = [str(body["skipped"]) for body in bodies if "skipped" in body]
    silent = _silent(bodies)
    unmoved = [] if silent == [NEVER_ASKED] else _unmoved(bodies)  # which follows from that
    why = ", ".join(skipped[-1:] or [*unmoved, *silent, *_absent(done, bodies, iteration)])
    return IterationResult(iteration=iteration, why=f"{NOTHING}: {why}" if why else NOTHING)


def _unmoved(bodies: Sequence[Mapping[str, Any]]) -> list[str]:
    updates = [body.get("update") or body.get("rl_optimizer") or {} for body in bodies]
    restored = [str(update["restored"]) for update in updates if update.get("restored")]
    reasons = list(dict.fromkeys(str(update["skipped_reason"]) for update in updates if update.get("skipped_reason")))
    sentences = [reason.replace("_", " ") for reason in reasons]
    if restored:
        sentences.insert(0, f"{len(restored)} updates were taken back, the last one because {restored[-1]}")
    moved = [
        update.get("delta_norm", update.get("parameter_delta_norm")) for update in updates if not update.get("restored")
    ]
    if (idle := sum(distance == 0.0 for distance in moved)) > 0:
        sentences.append(f"{idle} updates moved nothing")
    return sentences


def _silent(bodies: Sequence[Mapping[str, Any]]) -> list[str]:
    counts: Counter[str] = Counter()
    for body in bodies:
        counts.update((body.get("audit") or {}).get("counts", {}))
        counts.update((body.get("rl_optimizer") or {}).get("no_gradient", {}))
    if counts.total() and counts.total() == counts[SkipReason.NO_TRAJECTORY]:
        return [NEVER_ASKED]
    return [_counted(reason, n) for reason, n in counts.most_common() if n]


def _counted(reason: str, n: int) -> str:
    gate = reason.removeprefix(DATA_GATE)
    return f"{n} rollouts {reason.replace('_', ' ')}" if gate == reason else f"{n} put aside by the data gate {gate}"


def _absent(done: Sequence[StepRecord], bodies: Sequence[Mapping[str, Any]], iteration: int) -> list[str]:
    """Counts the rollouts that nobody decided."""
    steps = [step for step in done if step.name.startswith(f"{iteration}/") and step.name.endswith("/collect")]
    lost = sum(step.body["rollouts"] for step in steps) - sum(body.get("rollouts", 0) for body in bodies)
    return [f"{lost} rollouts never came back"] if lost > 0 else []


async def decide(
    spec: Spec,
    done: Sequence[StepRecord],
    live: Version,
    state: AlgorithmState,
    analysis: InterimAnalysis,
    *,
    ctx: StepContext,
) -> IterationResult:
    """Bring the candidate before the gate; with a stage, an open one moves the release."""
    request = await asyncio.to_thread(request_of, spec, done, live, state, analysis, ctx)
    fence = partial(ctx.store.runs.driven_in, run_id=ctx.run, driver=ctx.driver)
    published = await promote(ctx.store, request, clock=ctx.now, who=ctx.who, fence=fence, check=ctx.check)
    published["verdict"] = None if analysis.verdict is None else analysis.record()["verdict"]
    decision = decode(Decision, published["decision"])
    return IterationResult(iteration=state.iteration, decision=decision, candidate=state.candidate, details=published)


def request_of(
    spec: Spec,
    done: Sequence[StepRecord],
    live: Version,
    state: AlgorithmState,
    analysis: InterimAnalysis,
    ctx: StepContext,
) -> PromotionRequest:
    assert state.candidate is not None
    from holdfast.pipeline.judges import judged_by  # slow to import: scipy

    before, after = episodes_of(ctx.store, analysis)
    measured = accepted(spec, state.candidate, ctx)
    judges = judged_by(ctx.score, spec.prove.how.primary)
    bodies = [step.body for step in done if step.body.get("iteration") == state.iteration and "quality" in step.body]
    candidate = Candidate(
        run=ctx.run,
        policy=spec.line,
        kind=PolicyKind(state.candidate.kind),
        suite=(*spec.suite, sha256_of([held_out.record() for held_out in spec.held_out])),
        baseline=live.policy.source,
        candidate=state.candidate.source,
        before=before,
        after=after,
        planned=analysis.planned,
        lost=analysis.missing,
        audit=summed([[decode(Finding, one) for one in body["quality"]] for body in bodies]) if bodies else None,
        golden=None if measured is None else measured.golden,
        manifest={
            "policy": policy_record(state.candidate),
            "checkpoint": getattr(state.candidate, "checkpoint", None),
            "grew_from": getattr(live.policy, "checkpoint", None),
            "steps": state.step,
            **({} if measured is None else {KPIS: {name: dict(one) for name, one in measured.kpis.items()}}),
            **({JUDGED: judges} if judges else {}),
            **({} if analysis.history is None else {"history": dict(analysis.history)}),
            **({} if analysis.order is None else {"order": analysis.order}),  # of the tasks, as they were measured
            **spec.manifest,
        },
        baseline_manifest={"policy": policy_record(live.policy)},
        charge=live.charge,
    )
    return PromotionRequest(
        candidate=candidate,
        how=spec.prove.how,
        criteria=spec.criteria,
        reports=ctx.store.reports,
        now=ctx.now(),
        to=spec.stage,
    )


def accepted(spec: Spec, candidate: Policy, ctx: StepContext) -> Acceptance | None:
    """Lets the environment measure the candidate; None where it asks for nothing."""
    if spec.accept is None:
        return None
    act = ctx.open(candidate).act
    assert act is not None
    return spec.accept.accept(act, ctx.store, line=spec.line, now=ctx.now(), check=ctx.check)


def sha256_of(items: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(items, sort_keys=True).encode()).hexdigest()


# Runs that versions before durable steps began -----------------------------------------------------------------------


def _lessons(done: Sequence[StepRecord]) -> list[StepRecord]:
    return [step for step in done if step.function == LEGACY_STEP]


def finished(done: Sequence[StepRecord]) -> int:
    """Iterations that such a version brought to their decision."""
    return sum("proposed" in step.body for step in _lessons(done))
