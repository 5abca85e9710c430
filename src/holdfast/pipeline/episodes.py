"""From what an attempt did to the episode that is compared: its reward, its safety cost, how long it took.

What nobody measured is missing, and in a proof nobody gains by not finishing: where a rollout of either side is still
missing at the end, it counts as the worst for the candidate and as the best for the baseline.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import inf

from holdfast.contracts.evidence import Episode
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import CHECKED
from holdfast.contracts.rollout import RolloutState
from holdfast.prove.comparison import ComparisonConfig

SAFETY = "safety_cost"  # a signal of this name is the cost, and is never paid
Places = Mapping[str, tuple[str, int]]  # a rollout's name → its task and its seed


def episode(experience: Experience, *, task: str, seed: int) -> Episode | None:
    """None where a fault of ours left it without a score: missing, not wrong. An agent that failed was not right."""
    signals = {} if experience.sheet is None else {one.name: one.value for one in experience.sheet.signals}
    if not signals and experience.state is not RolloutState.FAILED:
        return None
    told = next((signals[name] for name in CHECKED if name in signals), None)
    total = None if experience.sheet is None else experience.sheet.total
    ends = [span.ended_at for span in experience.spans if span.ended_at is not None]
    starts = [span.started_at for span in experience.spans]
    counts = [len(call.completion_ids) for call in experience.calls if call.completion_ids is not None]
    return Episode(
        task=task,
        seed=seed,
        reward=0.0 if total is None else total,
        safety_cost=signals.get(SAFETY, 0.0),
        success=0.0 if experience.state is RolloutState.FAILED else told,
        latency_s=max(0.0, max(ends, default=-inf) - min(starts)) if ends and starts else None,
        tokens=sum(counts) if counts else None,
        rollout=experience.rollout,
    )


def is_checked(experience: Experience) -> bool:
    """Whether its score says if it succeeded."""
    return experience.sheet is not None and any(one.name in CHECKED for one in experience.sheet.signals)


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
            safety_cost=how.max_cost if is_candidate else 0.0,
            success=0.0 if is_candidate else 1.0,
        )
        for task, seed in places.values()
        if (task, seed) not in known
    ]
