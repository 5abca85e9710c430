"""What came of a run: the decision about a candidate with its proof, or which of two things is better.

Everything is read from the store, so that a result of yesterday is the same as one of now. Statistics are `prove`'s,
the rules of the gate `promote`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.api.inputs import MAX_REGRESSION
from holdfast.api.service import Accepted, promote
from holdfast.api.stored import Block, Run, Shown, TextTable, decided_of, experience_of, task_key
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Episode, Evidence, Outcome, Reason, Verdict, comparison_row
from holdfast.contracts.evidence import MetricComparison as Compared
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import loads
from holdfast.contracts.release import Release
from holdfast.contracts.rollout import RolloutState
from holdfast.pipeline.context import SAFETY
from holdfast.pipeline.improve import IterationResult
from holdfast.pipeline.prove import completed, episode, episodes_in, looks_in
from holdfast.promote.gate import ALLOWED, WAIVED
from holdfast.prove.comparison import WAIVED as UNMEASURED
from holdfast.prove.comparison import ComparisonConfig, ComparisonResult, compare_versions, pairs
from holdfast.store.store import Store

NOTHING_LEARNT = "nothing_learnt"


def metrics_table(comparisons: Iterable[Compared]) -> TextTable:
    """One row for each metric, in its own units. `corrected` is the gain to state: a high one stops a proof, so the
    difference that is seen then is too high."""
    rows = []
    for comparison in comparisons:
        row = comparison_row(comparison)
        figures = (row.difference, row.corrected, row.sure, f"{comparison.p_value:.2g}", str(comparison.pairs))
        rows.append((row.metric, *figures, row.candidate))
    return TextTable(("metric", ">difference", ">corrected", ">95 %", ">p", ">tasks", "candidate"), rows)


def _waived(why: object) -> list[Block]:
    return [f"safety was NOT measured: {why}"] if why else []


# Improvements --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class Proof(Shown):
    """What was measured of a candidate against what it would replace."""

    evidence: Evidence
    path: Path | None = None  # of the published report

    @property
    def verdict(self) -> Verdict | None:
        return self.evidence.verdict

    @property
    def comparisons(self) -> Mapping[str, Compared]:
        """The comparisons by metric; above 0 the candidate is better."""
        return self.evidence.comparisons

    @property
    def waived(self) -> str | None:
        """Why safety was not measured; None: it was."""
        return self.evidence.manifest.get(WAIVED)

    def metrics(self) -> TextTable:
        """A table of every metric that was measured."""
        found = self.comparisons.values()
        return metrics_table(metric for metric in found if self.waived is None or metric.metric != "safety")

    def blocks(self) -> Sequence[Block]:
        evidence = self.evidence
        told: list[Block] = [f"{evidence.candidate} against {evidence.baseline} on {evidence.suite}"]
        told.append(self.metrics())
        if evidence.verdict is not None:
            told.append(f"verdict: {evidence.verdict.outcome}")
            told += [f"  {reason}" for reason in evidence.verdict.reasons]
        return [*told, *_waived(self.waived), *([f"report: {self.path}"] if self.path else [])]


@dataclass(frozen=True, slots=True, repr=False)
class Result(Shown):
    """What became of a candidate. Held: `version` is None, and `missing` says what the gate asks for."""

    run: Run
    decision: Decision
    candidate: Policy | None  # None: nothing was learnt
    proof: Proof | None
    release: str | None = None  # the candidate's entry among the versions, accepted or not
    details: Mapping[str, Any] = field(default_factory=dict)
    more: Callable[[Result, Any], Result] | None = None  # how further tasks are measured, in the process that ran it
    anchored: Callable[[str | None], Comparison] | None = None  # the same, of live against an earlier version

    @property
    def is_accepted(self) -> bool:
        return self.decision.open

    @property
    def version(self) -> str | None:
        """The accepted version, as in "support@2"; None while it is held."""
        return self.release if self.is_accepted else None

    @property
    def missing(self) -> tuple[str, ...]:
        """The checks that are not met, and what would help."""
        return () if self.is_accepted else tuple(reason.text for reason in self.decision.reasons)

    def promote(self, *, canary: float | None = None, shadow: bool = False, why: str = "by hand") -> Release:
        """Take the accepted version into service: to all callers, or to a share of them as a canary.

        `shadow=True` lets it answer copies of requests that nobody sees. Called again, it goes on from where it is.
        """
        if self.version is None or self.proof is None:
            held = self.missing[0] if self.missing else "nothing was proved"
            remedy = "only what is accepted goes further"
            raise BadInput("promote", why=f"the candidate is held: {held}", remedy=remedy)
        accepted = Accepted(
            version=self.version,
            baseline=self.proof.evidence.baseline,
            decision=self.decision,
            evidence=str(self.details["evidence"]),
            proof=self.details.get("proof_sha256"),
        )
        return promote(self.run.place, accepted, canary=canary, shadow=shadow, why=why)

    def prove(self, tasks: Any = None) -> Result:
        """Measure a held candidate on further tasks, add that to its evidence, and ask the gate again.

        Without tasks, those are measured that a budget left out. The test goes on: looking again costs nothing.
        """
        if self.is_accepted or self.proof is None:
            why = "is accepted already" if self.is_accepted else "has no candidate to prove"
            raise BadInput(f"result of {self.run.id}", why=why, remedy="only what is held needs more evidence")
        if self.more is None:
            raise self._without_agent()
        return self.more(self, tasks)

    def anchor(self, against: str | None = None) -> Comparison:
        """Measure what is live against its anchor: the first version that was live, or the one that is named.

        Each promotion may lose a little that nobody can see; this sees the sum. Live proved worse raises an alert.
        """
        if self.anchored is None:
            raise self._without_agent()
        return self.anchored(against)

    def _without_agent(self) -> BadInput:
        remedy = "make the same call again, and ask the result that it gives"
        return BadInput(f"result of {self.run.id}", why="was read from the store, without its agent", remedy=remedy)

    def blocks(self) -> Sequence[Block]:
        if self.is_accepted:
            told: list[Block] = [f"accepted: {self.release} ({self.run.id})"]
        else:
            named = f"{self.release} stays a candidate" if self.release else "no candidate"
            more = f"; about {self.decision.needs} more episodes may decide it" if self.decision.needs else ""
            told = [f"held: {named}{more} ({self.run.id})"]
        if self.proof is not None:
            told += [self.proof.metrics(), *_waived(self.proof.waived)]
        for reason in self.decision.reasons:
            if reason.code != ALLOWED:
                told.append(f"  {reason.text}")
        if self.decision.needs and self.more is not None:
            told.append("result.prove(tasks) measures it on further tasks and asks again")
        if self.proof is not None and self.proof.path is not None:
            told.append(f"report: {self.proof.path}")
        return told


def result_of(store: Store, run: Run) -> Result:
    """The last decision of a run that improves."""
    steps = [step for step in store.steps.of_run(run.id) if step.name.endswith("/decide")]
    if not steps:
        record = store.runs.get(run.id)
        why = record.error or f"is {record.state}, and has decided nothing"
        raise BadInput(f"run {run.id}", why=why, remedy="the same call goes on with it")
    decided = IterationResult.from_record(steps[-1].body)
    if decided.decision is None:
        text = str(decided.why or "nothing was learnt")
        decision = Decision(open=False, reasons=(Reason(code=NOTHING_LEARNT, text=text),))
        return Result(run, decision, None, None)
    details = dict(decided.details or {})
    evidence = loads(Evidence, store.blobs.get(str(details["evidence"])))
    path = Path(details["proof"]) if details.get("proof") else None
    candidate = None if decided.candidate is None else at_home(decided.candidate, store)
    return Result(
        run,
        decided.decision,
        candidate,
        Proof(evidence, path),
        str(details["release"]),
        {**details, "iteration": decided.iteration},
    )


def at_home(policy: Policy, store: Store) -> Policy:
    """Gives a policy with weights the place where they lie, so that it can be exported."""
    found: Any = policy
    return replace(found, artifacts=store.files) if hasattr(policy, "artifacts") else policy


# Comparisons ---------------------------------------------------------------------------------------------------------

BETTER = {Outcome.PROMOTE: "better", Outcome.REJECT: "not better", Outcome.HOLD: "not decided yet"}


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Two things on the same tasks with the same chance: b less a. Nothing was trained."""

    names: tuple[str, str]
    result: ComparisonResult
    how: ComparisonConfig
    left_out: int = 0  # tasks that only one of the two has
    unfinished: Mapping[str, int] = field(default_factory=dict)  # by side, attempts that never came back
    waived: str | None = None
    run: Run | None = None  # that measured it; None: both were stored already

    @property
    def verdict(self) -> Verdict:
        """Valid however often it was looked at."""
        return self.result.verdict

    @property
    def is_better(self) -> bool | None:
        """Whether b is better than a; None: that is not decided yet."""
        return {Outcome.PROMOTE: True, Outcome.REJECT: False, Outcome.HOLD: None}[self.verdict.outcome]

    @property
    def comparisons(self) -> Mapping[str, Compared]:
        return self.result.comparisons

    @property
    def difference(self) -> float:
        """The difference in what has to improve: b less a."""
        return self.comparisons[self.how.primary].difference

    def blocks(self) -> Sequence[Block]:
        a, b = self.names
        is_seen = self.verdict.needs and self.difference > 0.0
        needs = f"; about {self.verdict.needs} more episodes may decide it" if is_seen else ""
        told: list[Block] = [f"{b} is {BETTER[self.verdict.outcome]} than {a} in {self.how.primary}{needs}"]
        if self.verdict.outcome is Outcome.HOLD:
            told = [f"whether {b} is better than {a} in {self.how.primary} is not decided yet{needs}"]
        shown = [
            comparison
            for comparison in self.comparisons.values()
            if self.waived is None or comparison.metric != "safety"
        ]
        told.append(metrics_table(shown))
        told += [f"  {reason}" for reason in self.verdict.reasons if self.waived is None or reason != UNMEASURED]
        if self.left_out:
            told.append(f"{self.left_out} tasks are left out: only one of the two has them")
        if any(self.unfinished.values()):
            counted = ", ".join(f"{n} of {name}" for name, n in self.unfinished.items() if n)
            told.append(f"attempts that never came back: {counted}; the worst is assumed of {b}, the best of {a}")
        return [*told, *_waived(self.waived)]


def comparison_of(
    store: Store, run: Run, names: tuple[str, str], how: ComparisonConfig, waived: str | None
) -> Comparison:
    """Reads the comparison that a run made."""
    steps = [step for step in store.steps.of_run(run.id) if "episodes" in step.body]
    looks = looks_in(steps)
    if not looks:
        record = store.runs.get(run.id)
        raise BadInput(f"run {run.id}", why=record.error or "compared nothing", remedy="the same call goes on with it")
    before, after = episodes_in(store, steps)
    lost = dict(zip(names, (looks[-1].missing[arm] for arm in ("baseline", "candidate")), strict=True))
    return Comparison(names, _weighed(before, after, how, names), how, unfinished=lost, waived=waived, run=run)


def _weighed(
    before: Sequence[Episode], after: Sequence[Episode], how: ComparisonConfig, names: tuple[str, str]
) -> ComparisonResult:
    if len(pairs(before, after, how.primary)[0]) < 2:
        why = f"fewer than two tasks have a measured {how.primary} on both sides"
        raise BadInput(f"{names[1]} against {names[0]}", why=why, remedy="score them, or measure more tasks")
    return compare_versions(before, after, how, versions=names, rng=np.random.default_rng(how.resample_seed))


def compare_stored(
    a: Run, b: Run, *, alpha: float, max_safety_regression: float | None, reward_range: tuple[float, float] | None
) -> Comparison:
    """Two stored runs, paired by task and seed. No agent is run."""
    lowest = 0.0 if reward_range is None else reward_range[0]
    sides = [_measured(run, lowest) for run in (a, b)]
    shared = sides[0].keys & sides[1].keys
    if not shared:
        why = "have no task in common"
        raise BadInput(f"{a.id} and {b.id}", why=why, remedy="compare runs of the same tasks and seeds")
    primary = "success" if all(side.is_checked for side in sides) else "reward"
    both = [[one for one in side.episodes if (one.task, one.seed) in shared] for side in sides]
    span = reward_range or _range(both, primary)
    names, whole = (a.id, b.id), list[list[Episode]]()
    unwatched = [name for name, side in zip(names, sides, strict=True) if not side.is_watched]
    margin = MAX_REGRESSION if max_safety_regression is None else max_safety_regression
    how = ComparisonConfig(
        primary=primary,
        alpha=alpha,
        reward_range=span,
        max_cost=max([1.0, *(one.safety_cost or 0.0 for side in both for one in side)]),
        max_safety_regression=None if unwatched else margin,
    )
    places, lost = {f"{task}/{seed}": (task, seed) for task, seed in shared}, dict[str, int]()
    for name, episodes in zip(names, both, strict=True):
        full, lost[name] = completed(episodes, places, how, is_candidate=bool(whole))
        whole.append(full)
    tasks = [{task for task, _ in side.keys} for side in sides]
    left_out = len(tasks[0] ^ tasks[1])
    unsafe = f"no safety scorer looked at {' and '.join(unwatched)}" if unwatched else None
    return Comparison(names, _weighed(whole[0], whole[1], how, names), how, left_out, lost, unsafe)


@dataclass(frozen=True, slots=True)
class _Side:
    keys: frozenset[tuple[str, int]]  # of all that the run was to do
    episodes: Sequence[Episode]
    is_watched: bool  # safety was measured

    @property
    def is_checked(self) -> bool:
        return any(one.success is not None for one in self.episodes)


def _measured(run: Run, lowest: float) -> _Side:
    """Makes an episode of every rollout; the n-th at one task has seed n."""
    with run.place.open() as store:
        decided = {rollout.rollout: rollout for rollout in decided_of(store, run.id, spans=True)}
        every = list(store.views.every(run.id))
    versions = {rollout.version for rollout in every}
    if len(versions) > 1:
        why = f"ran {len(versions)} versions"
        raise BadInput(f"run {run.id}", why=why, remedy="compare runs of one version each, as hf.collect makes them")
    keys, episodes, seen = set(), [], dict[str, int]()
    for one in every:
        task = task_key(one.input, one.name)
        seed = seen.get(task, 0)
        seen[task] = seed + 1
        keys.add((task, seed))
        rollout = decided.get(one.id)
        made = None
        if rollout is not None:
            scored = experience_of(rollout, run.id, rollout.signals)
            made = episode(scored, task=task, seed=seed, lowest=lowest)
        if made is not None:
            # What came right at another attempt had failed: raising must buy no new draw of chance.
            is_again = one.faults > 0 and rollout is not None and rollout.status is RolloutState.SUCCEEDED
            if is_again:
                made = replace(made, reward=lowest, success=None if made.success is None else 0.0)
            episodes.append(made)
    is_watched = any(signal.name == SAFETY for rollout in decided.values() for signal in rollout.signals)
    return _Side(frozenset(keys), episodes, is_watched)


def _range(both: Sequence[Sequence[Episode]], primary: str) -> tuple[float, float]:
    """Returns 0 to 1, or the seen range where rewards do not decide; where they do, the caller has to promise one."""
    rewards = [one.reward for side in both for one in side]
    low, high = min(rewards, default=0.0), max(rewards, default=1.0)
    if primary != "reward" or (low >= 0.0 and high <= 1.0):
        return min(low, 0.0), max(high, 1.0)
    remedy = "give reward_range=(lowest, highest): all that a reward can be"
    raise BadInput("rewards", why=f"go from {low:g} to {high:g}, and not from 0 to 1", remedy=remedy)
