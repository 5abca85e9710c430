"""Attempts as the store would hand them over, short to write: turns are (prompt ids, completion ids)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind

Turn = tuple[Sequence[int], Sequence[int]]
PLAINLY = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "max_tokens": 8, "stop": [], "thinking": None, "seed": 7}


def drawn(**sampling: Any) -> dict[str, Any]:
    """Parameters as our own engine writes them down: all of them."""
    return PLAINLY | sampling


def call(
    prompt: Sequence[int] | None,
    completion: Sequence[int] | None,
    *,
    logprobs: Sequence[float] | None = (),
    forced: Sequence[int] = (),
    sampling: Mapping[str, Any] | None = None,
    finish: str = "stop",
) -> ModelCall:
    """A model call; log-probs are −1 unless told, None for none."""
    if logprobs is not None and not logprobs:
        logprobs = [-1.0] * len(completion or ())
    return ModelCall(
        model="m",
        messages=(),
        response={"role": "assistant", "content": ""},
        finish_reason=finish,
        prompt_ids=None if prompt is None else tuple(prompt),
        completion_ids=None if completion is None else tuple(completion),
        logprobs=None if logprobs is None or completion is None else tuple(logprobs),
        forced=tuple(forced),
        sampling=sampling or {"temperature": 1.0},
    )


def spans(*calls: ModelCall) -> tuple[Span, ...]:
    return tuple(
        Span(seq=i + 1, kind=SpanKind.MODEL, name="llm", started_at=0.0, ended_at=1.0, model=one)
        for i, one in enumerate(calls)
    )


def signal(value: float, name: str = "right", turn: int | None = None, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(name=name, value=value, weight=weight, source="env", turn=turn)


def attempt(rollout: str, *calls: ModelCall, signals: Sequence[RewardTerm] | None = (), **fields: Any) -> Experience:
    """A final, succeeded attempt of split train; signals None is an attempt that was never scored."""
    given: dict[str, Any] = {
        "run": "run-1",
        "task": "task",
        "split": Split.TRAIN,
        "is_final": True,
        "state": RolloutState.SUCCEEDED,
        "spans": spans(*calls),
        "breakdown": None if signals is None else RewardBreakdown(signals=tuple(signals)),
    }
    return Experience(rollout=rollout, **(given | fields))
