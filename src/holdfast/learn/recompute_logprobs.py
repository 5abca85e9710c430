"""The trainer's own log-probs of what a sampler drew, with nothing learnt: how far the two are apart from the start."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.learn.batch import SampleFilter, pack, read
from holdfast.learn.train import Settings, Trainer


def recompute_logprobs(model: nn.Module, calls: Sequence[ModelCall], *, device: str = "cpu") -> list[tuple[float, ...]]:
    """One log-prob for each id of each completion, by the same path as in training; nan where nothing is learnt."""
    trainer = Trainer(model, Settings(), seed=0, device=device)
    samples = [sample for call in calls for sample in read(_alone(call), SampleFilter(is_scored=False)).samples]
    if len(samples) != len(calls):  # a call without ids, or one that decided nothing
        return [(float("nan"),) * len(call.completion_ids or ()) for call in calls]
    batch = pack(samples)
    parts = np.split(trainer.logprobs(batch), batch.bounds[1:-1])
    return [tuple(part[len(call.prompt_ids or ()) :].tolist()) for part, call in zip(parts, calls, strict=True)]


def _alone(call: ModelCall) -> Experience:
    span = Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=0.0, model=call)
    return Experience(
        rollout="alone",
        run="alone",
        task="alone",
        split=Split.TRAIN,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=(span,),
        sheet=None,
    )
