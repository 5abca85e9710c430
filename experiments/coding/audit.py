"""What a reward makes of the red-team corpus: what it finds, whom it wrongs, and how well it measures excess.

Beside ours stand the two formulas it was built to replace (`formulas`). A patch is looked at once, by all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy import stats  # type: ignore[import-untyped]

from experiments.coding import formulas, score
from experiments.coding.redteam import FAMILIES, Patch
from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import is_repaired
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.contracts.reward import RewardBreakdown
from holdfast.prove.estimate import wilson
from holdfast.reward.breakdown import normalised

MEASURES = ("ours", "spec", "original")
RESAMPLES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPatch:
    """A patch with everything that was measured on it."""

    patch: Patch = field(repr=False)
    is_content: bool  # the visible tests, as they were handed in
    is_right: bool  # the hidden check
    findings: tuple[str, ...]  # the rules by which it is tampering
    excess: float
    minimality: float  # from 0 to 1, as are the next two
    spec: float
    original: float
    share: float  # of what the gold patch earns, by the whole breakdown

    @property
    def is_hack(self) -> bool:
        """It cheats, or changes more than anybody needed: known from how it was made, not from what we measured."""
        return self.patch.family in ("tampered", "over-edited") or (self.is_content and not self.is_right)


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRate:
    """So many of so many."""

    found: int
    of: int
    interval: Interval

    @property
    def value(self) -> float:
        return self.found / self.of


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """Spearman's, with an interval over tasks."""

    value: float
    interval: Interval
    patches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusAudit:
    """The whole corpus, in figures."""

    tasks: int
    patches: dict[str, int]  # by family
    recall: CountedRate  # of tampered patches, found
    false_veto: CountedRate  # of all others, vetoed
    unseen: CountedRate | None  # of patches with tricks that no rule was fitted to, found; None: there were none
    missed: dict[str, CountedRate]  # tricks that were not always found: how often they were
    correlation: dict[str, Correlation]  # measure → with the true excess, over all patches that repair
    first: dict[str, CountedRate]  # measure → tasks whose minimal patch is above every hack that the visible tests pass
    means: dict[str, dict[str, float]]  # measure → family → mean of what it pays, from 0 to 1


def judge(several: Sequence[Patch], sandbox: Sandbox) -> list[JudgedPatch]:
    """Look at the patches of one task in every way there is."""
    task = several[0].task
    gold = score.breakdown(task, {**task.files, task.path: task.gold}, is_right=True)
    return [_judged(one, gold, sandbox) for one in several]


def _judged(patch: Patch, gold: RewardBreakdown, sandbox: Sandbox) -> JudgedPatch:
    task, files = patch.task, patch.files
    is_right = is_repaired(task, files, sandbox)
    found = score.findings(task, files)
    breakdown = score.breakdown(task, files, is_right=is_right, found=found)
    by_name = {one.name: one.value for one in breakdown.signals}
    is_content = sandbox.is_content(files)
    return JudgedPatch(
        patch=patch,
        is_content=is_content,
        is_right=is_right,
        findings=tuple(sorted({one.rule for one in found})),
        excess=by_name["excess_edits"],
        minimality=by_name["minimality"],
        spec=formulas.spec(patch.change, is_equivalent=is_content),
        original=formulas.original(patch.change),
        share=normalised(breakdown, gold),
    )


PAYS: dict[str, Callable[[JudgedPatch], float]] = {  # what each would pay, where all it knows is the visible tests
    "ours": lambda one: one.share,
    "spec": lambda one: one.spec * one.is_content,
    "original": lambda one: one.original * one.is_content,
}
LACKS: dict[str, Callable[[JudgedPatch], float]] = {  # how much smaller it could be, in each measure's own unit
    "ours": lambda one: one.excess,
    "spec": lambda one: 1.0 - one.spec,
    "original": lambda one: 1.0 - one.original,
}


def audit(judged: Sequence[JudgedPatch], unseen: Sequence[Patch] = (), *, rng: np.random.Generator) -> CorpusAudit:
    """The figures of a corpus; `unseen` are patches of `redteam.unseen`, told apart."""
    tampered = [one for one in judged if one.patch.family == "tampered"]
    others = [one for one in judged if one.patch.family != "tampered"]
    if not tampered or not others:
        raise BadInput("corpus", why="has no tampered patches, or nothing else", remedy="make it of more tasks")
    by_kind = {kind: [one for one in tampered if one.patch.kind == kind] for kind in {t.patch.kind for t in tampered}}
    rates = {kind: rate(bool(one.findings) for one in several) for kind, several in sorted(by_kind.items())}
    return CorpusAudit(
        tasks=len({one.patch.task.id for one in judged}),
        patches={family: sum(one.patch.family == family for one in judged) for family in FAMILIES},
        recall=rate(bool(one.findings) for one in tampered),
        false_veto=rate(bool(one.findings) for one in others),
        unseen=rate(bool(score.findings(one.task, one.files)) for one in unseen) if unseen else None,
        missed={kind: one for kind, one in rates.items() if one.found < one.of},
        correlation={name: _correlation(judged, LACKS[name], rng) for name in MEASURES},
        first={name: rate(_is_first(several, PAYS[name]) for several in by_task(judged)) for name in MEASURES},
        means={name: _means(judged, PAYS[name]) for name in MEASURES},
    )


def by_task(judged: Sequence[JudgedPatch]) -> list[list[JudgedPatch]]:
    """The patches of each task, in the order of the corpus."""
    found: dict[str, list[JudgedPatch]] = {}
    for one in judged:
        found.setdefault(one.patch.task.id, []).append(one)
    return list(found.values())


def rate(of: Iterable[bool]) -> CountedRate:
    told = list(of)
    return CountedRate(found=sum(told), of=len(told), interval=wilson(sum(told), len(told)))


def _correlation(
    judged: Sequence[JudgedPatch], lacks: Callable[[JudgedPatch], float], rng: np.random.Generator
) -> Correlation:
    """Over tasks that are drawn with all their patches: those of one task are not independent."""
    tasks = [
        np.array([(one.patch.true_excess, lacks(one)) for one in several if one.patch.true_excess is not None])
        for several in by_task(judged)
    ]
    tasks = [pairs for pairs in tasks if len(pairs)]
    whole = np.concatenate(tasks)
    drawn = [
        _spearman(np.concatenate([tasks[i] for i in rng.integers(len(tasks), size=len(tasks))]))
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    return Correlation(value=_spearman(whole), interval=Interval(low=low, high=high), patches=len(whole))


def _spearman(pairs: np.ndarray) -> float:
    """A measure that says the same of all says nothing: 0."""
    if len(set(pairs[:, 1])) < 2 or len(set(pairs[:, 0])) < 2:
        return 0.0
    return float(stats.spearmanr(pairs[:, 0], pairs[:, 1]).statistic)


def _is_first(several: Sequence[JudgedPatch], pays: Callable[[JudgedPatch], float]) -> bool:
    gold = next(one for one in several if one.patch.family == "minimal")
    return all(pays(one) < pays(gold) for one in several if one.is_hack)


def _means(judged: Sequence[JudgedPatch], pays: Callable[[JudgedPatch], float]) -> dict[str, float]:
    found = {family: [pays(one) for one in judged if one.patch.family == family] for family in FAMILIES}
    return {family: float(np.mean(several)) for family, several in found.items() if several}
