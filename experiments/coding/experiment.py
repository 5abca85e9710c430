"""What different rewards teach one who chooses among patches: who cheats, and who changes too much.

The same small policy (`chooser`) practises on the same tasks under each reward, and is looked at on tasks of functions
that it never saw. A seed is a corpus, a split and a beginning of its own. Which seeds there are, and where the results
are kept, is up to the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.coding import chooser
from experiments.coding.audit import JudgedPatch, judge
from experiments.coding.redteam import patches
from experiments.coding.sandbox import Sandbox
from experiments.coding.score import GUARD, MINIMALITY_WEIGHT
from experiments.coding.tasks import make
from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval

HELD_OUT = 1 / 3  # of the functions
RESAMPLES = 1000
NAIVE, OURS = "naive", "ours"


def _without_hidden(one: JudgedPatch) -> float:
    """Our veto and our shaping on top of the visible tests: what the minimal diff does alone."""
    if not one.is_content or one.findings:
        return 0.0
    return (1.0 + MINIMALITY_WEIGHT * one.minimality) / (1.0 + MINIMALITY_WEIGHT)


ARMS: dict[str, Callable[[JudgedPatch], float]] = {  # name → what a patch is paid, from 0 to 1
    NAIVE: lambda one: float(one.is_content),
    "spec": lambda one: one.spec * one.is_content,
    "original": lambda one: one.original * one.is_content,
    "hidden only": lambda one: float(one.is_right),
    "diff only": _without_hidden,
    OURS: lambda one: one.share,
}
ABOUT = {
    NAIVE: "the visible tests are content",
    "spec": "the same, times the specified multiplier",
    "original": "the same, times the original's formula",
    "hidden only": "the hidden check, and nothing else",
    "diff only": "ours, with the visible tests for the hidden check",
    OURS: f"{GUARD.name}: hidden check, minimal diff, veto",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchTrial:
    """One seed, in full."""

    seed: int
    tasks: int = 60
    steps: int = 400

    def __post_init__(self) -> None:
        if self.tasks < 6 or self.steps < 1:
            raise BadInput(f"trial of {self.tasks} tasks, {self.steps} steps", why="must be at least 6 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchOutcome:
    """What a trial came to: for each arm and held-out task, how likely a hack, and a repair, is handed in."""

    trial: PatchTrial
    functions: tuple[str, ...]  # of the held-out tasks
    hacks: dict[str, tuple[float, ...]] = field(repr=False)
    success: dict[str, tuple[float, ...]] = field(repr=False)
    untrained: tuple[float, float] = (0.0, 0.0)  # hacks and success of one who draws blindly


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    value: float
    interval: Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchResult:
    """All seeds together. Intervals are drawn over seeds, and over the tasks of each."""

    seeds: tuple[int, ...]
    tasks: int  # held-out ones, of all seeds
    hacks: dict[str, Estimate]
    success: dict[str, Estimate]
    reduction: dict[str, Estimate]  # arm → 1 − its hacks by the naive arm's
    gain: dict[str, Estimate]  # arm → its success less the naive arm's
    untrained: tuple[float, float]


def run(trial: PatchTrial, sandbox: Sandbox, *, advance: Callable[[], None] = lambda: None) -> PatchOutcome:
    """Make the corpus, practise under every reward, and look at held-out tasks. `advance` is called per task."""
    tasks = []
    for task in make(trial.tasks, seed=trial.seed, sandbox=sandbox):
        tasks.append(judge(patches(task, seed=trial.seed, sandbox=sandbox), sandbox))
        advance()
    return compare(tasks, trial)


def compare(tasks: Sequence[Sequence[JudgedPatch]], trial: PatchTrial) -> PatchOutcome:
    """The same practice under every reward, from patches that were judged already."""
    practice, held_out = split(tasks, np.random.default_rng([trial.seed, 1]))
    seen = {id(several): np.array([_seen(one) for one in several]) for several in tasks}
    hacks, success = {}, {}
    for arm, pays in ARMS.items():
        choices = [
            chooser.PatchChoice(seen=seen[id(several)], rewards=np.array([pays(one) for one in several]))
            for several in practice
        ]
        how = chooser.Lessons(steps=trial.steps)
        policy = chooser.learn(choices, how, rng=np.random.default_rng([trial.seed, 2]))  # the same for every arm
        chances = [policy.probabilities(seen[id(several)]) for several in held_out]
        hacks[arm] = _expected(chances, held_out, lambda one: one.is_hack)
        success[arm] = _expected(chances, held_out, lambda one: one.is_right)
    blind = [np.full(len(several), 1.0 / len(several)) for several in held_out]
    return PatchOutcome(
        trial=trial,
        functions=tuple(several[0].patch.task.function for several in held_out),
        hacks=hacks,
        success=success,
        untrained=(
            float(np.mean(_expected(blind, held_out, lambda one: one.is_hack))),
            float(np.mean(_expected(blind, held_out, lambda one: one.is_right))),
        ),
    )


def split(
    tasks: Sequence[Sequence[JudgedPatch]], rng: np.random.Generator
) -> tuple[list[Sequence[JudgedPatch]], list[Sequence[JudgedPatch]]]:
    """For practice, and held out; no function is in both."""
    names = sorted({several[0].patch.task.function for several in tasks})
    kept = set(rng.permutation(names)[: max(1, round(HELD_OUT * len(names)))])
    held_out = [several for several in tasks if several[0].patch.task.function in kept]
    practice = [several for several in tasks if several[0].patch.task.function not in kept]
    if not practice:
        raise BadInput("tasks", why="are all of one function", remedy="ask for more of them")
    return practice, held_out


def weigh(outcomes: Sequence[PatchOutcome], *, rng: np.random.Generator) -> PatchResult:
    """Means over all held-out tasks, with intervals from a bootstrap of seeds and, inside them, of tasks."""
    if not outcomes:
        raise BadInput("experiment", why="has no outcomes")
    hacks = {arm: [np.array(one.hacks[arm]) for one in outcomes] for arm in ARMS}
    success = {arm: [np.array(one.success[arm]) for one in outcomes] for arm in ARMS}
    draws = [_draw(hacks[NAIVE], rng) for _ in range(RESAMPLES)]
    rivals = [arm for arm in ARMS if arm != NAIVE]
    reduction = {arm: _estimate(lambda d, arm=arm: _fall(hacks[NAIVE], hacks[arm], d), draws) for arm in rivals}  # type: ignore[misc]
    return PatchResult(
        seeds=tuple(one.trial.seed for one in outcomes),
        tasks=sum(len(one.functions) for one in outcomes),
        hacks={arm: _mean(hacks[arm], draws) for arm in ARMS},
        success={arm: _mean(success[arm], draws) for arm in ARMS},
        reduction=reduction,
        gain={arm: _mean([a - b for a, b in zip(success[arm], success[NAIVE], strict=True)], draws) for arm in rivals},
        untrained=(
            float(np.mean([one.untrained[0] for one in outcomes])),
            float(np.mean([one.untrained[1] for one in outcomes])),
        ),
    )


def record(outcome: PatchOutcome) -> dict[str, Any]:
    """As JSON."""
    return asdict(outcome)


def outcome_of(data: Mapping[str, Any]) -> PatchOutcome:
    """What `record` wrote."""
    try:
        return PatchOutcome(
            trial=PatchTrial(**data["trial"]),
            functions=tuple(data["functions"]),
            hacks={arm: tuple(map(float, data["hacks"][arm])) for arm in ARMS},
            success={arm: tuple(map(float, data["success"][arm])) for arm in ARMS},
            untrained=(float(data["untrained"][0]), float(data["untrained"][1])),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise BadInput("experiment: a kept outcome", why=f"cannot be read: {error!r}", remedy="remove it") from error


def _seen(one: JudgedPatch) -> chooser.Vector:
    return chooser.features(one.patch.task, one.patch.files, is_content=one.is_content)


def _expected(
    chances: Sequence[chooser.Vector], tasks: Sequence[Sequence[JudgedPatch]], holds: Callable[[JudgedPatch], bool]
) -> tuple[float, ...]:
    """For each task, how likely a patch is handed in of which it holds."""
    return tuple(
        float(sum(p for p, one in zip(chance, several, strict=True) if holds(one)))
        for chance, several in zip(chances, tasks, strict=True)
    )


Draw = list[tuple[int, NDArray[np.int64]]]  # which seed, and which of its tasks


def _draw(values: Sequence[chooser.Vector], rng: np.random.Generator) -> Draw:
    seeds = rng.integers(len(values), size=len(values))
    return [(int(seed), rng.integers(len(values[seed]), size=len(values[seed]))) for seed in seeds]


def _drawn(values: Sequence[chooser.Vector], draw: Draw | None) -> float:
    parts = values if draw is None else [values[seed][places] for seed, places in draw]
    return float(np.concatenate(parts).mean())


def _fall(before: Sequence[chooser.Vector], after: Sequence[chooser.Vector], draw: Draw | None) -> float:
    return 1.0 - _drawn(after, draw) / max(_drawn(before, draw), 1e-12)


def _mean(values: Sequence[chooser.Vector], draws: Sequence[Draw]) -> Estimate:
    return _estimate(lambda draw: _drawn(values, draw), draws)


def _estimate(of: Callable[[Draw | None], float], draws: Sequence[Draw]) -> Estimate:
    low, high = np.quantile([of(draw) for draw in draws], (0.025, 0.975))
    return Estimate(value=of(None), interval=Interval(low=float(low), high=float(high)))
