"""A scorer under a safety policy: what it measured, and then the last word over every signal of the attempt.

The agent's own signals are not the scorer's to see, so the worker asks for `close` when all of them are there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.collect.agent import Score
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.settings import SafetyReward
from holdfast.contracts.trace import Span
from holdfast.reward.safety import SafetyPolicy, close, find_events, judge, reported_events


@dataclass(frozen=True, slots=True)
class SafeguardedScorer:
    """The score of another, closed by a policy. It travels to other processes with it."""

    score: Score
    policy: SafetyPolicy

    def __call__(
        self, task: Any, output: Any, spans: Sequence[Span]
    ) -> Sequence[RewardTerm] | Awaitable[Sequence[RewardTerm]]:
        return self.score(task, output, spans)

    def close(
        self, signals: Sequence[RewardTerm], spans: Sequence[Span], output: Any
    ) -> tuple[tuple[RewardTerm, ...], str | None]:
        """All signals of the attempt as they count, and why it is rejected, if it is.

        What was told while it ran counts, and so does what the agent itself said, its answer included. An attempt that
        nobody scored is not scored by having been safe."""
        finding = judge((*reported_events(spans), *find_events(spans, output=output)), self.policy)
        is_rejected = finding.is_gated and self.policy.reject_rollout_on_hard_gate
        return close(signals, finding, self.policy).signals, finding.error if is_rejected else None


def watched(score: Score, block: SafetyReward | None) -> Score:
    """The same scorer where no policy is asked for."""
    return score if block is None else SafeguardedScorer(score, SafetyPolicy(**block.model_dump()))
