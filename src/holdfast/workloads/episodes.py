"""From what an attempt did to the episode that is compared: its reward, its safety cost, how long it took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.contracts.evidence import Episode
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState

SAFETY = "safety_cost"  # a signal of this name is the cost, and is never paid
SUCCESS = ("success", "exact_match")  # the first of them that is there


def episode(experience: Experience, *, task: str, seed: int) -> Episode | None:
    """None where a fault of ours left it without a score: missing, not wrong. An agent that failed got nothing."""
    signals = {} if experience.sheet is None else {one.name: one.value for one in experience.sheet.signals}
    if not signals and experience.state is not RolloutState.FAILED:
        return None
    done = 0.0 if experience.state is RolloutState.FAILED else None
    total = None if experience.sheet is None else experience.sheet.total
    ends = [span.ended_at for span in experience.spans if span.ended_at is not None]
    starts = [span.started_at for span in experience.spans]
    counts = [len(call.completion_ids) for call in experience.calls if call.completion_ids is not None]
    return Episode(
        task=task,
        seed=seed,
        reward=0.0 if total is None else total,
        safety_cost=signals.get(SAFETY, 0.0),
        success=next((signals[name] for name in SUCCESS if name in signals), done),
        latency_s=max(0.0, max(ends) - min(starts)) if ends and starts else None,
        tokens=sum(counts) if counts else None,
        rollout=experience.rollout,
    )


def is_told(experience: Experience) -> bool:
    """Whether its score says if it succeeded."""
    return experience.sheet is not None and any(one.name in SUCCESS for one in experience.sheet.signals)


def episodes(experiences: Iterable[Experience], places: Mapping[str, tuple[str, int]]) -> list[Episode]:
    """Of the rollouts whose names are given a task and a seed."""
    found = []
    for one in experiences:
        name = one.rollout.partition("/")[2]
        if name in places:
            task, seed = places[name]
            found.append(episode(one, task=task, seed=seed))
    return [one for one in found if one is not None]
