"""What the tests of learning workloads play in: a model that learns in no time, and attempts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Task
from holdfast.contracts.run import StepRecord
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.policies import tokens
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.weights import Manifest, save_transformer
from holdfast.workloads.tooluse.dialogues import demonstration
from holdfast.workloads.tooluse.tools import specs

RUN = "run-1"


def tiny(folder: Path, seed: int = 0) -> str:
    """The weights of a very small model, in that folder."""
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=512), seed=seed)
    save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
    return str(folder)


def attempt(task: Task, place: int, won: float | None, *, asked: str = "1?", **fields: Any) -> Experience:
    """One call, and whether it succeeded; None: it was never scored."""
    prompt, completion = tokens.prompt([{"role": "user", "content": asked}]), (*str(place).encode(), tokens.END)
    call = ModelCall(
        model="m",
        messages=({"role": "user", "content": asked},),
        response={"role": "assistant", "content": str(place)},
        finish_reason="stop",
        prompt_ids=tuple(prompt),
        completion_ids=completion,
        logprobs=(-5.0,) * len(completion),
        sampling={"temperature": 1.0},
    )
    signals = () if won is None else (RewardTerm(name="success", value=won, source="rule"),)
    given: dict[str, Any] = {
        "rollout": f"{RUN}/{task.name}",
        "run": RUN,
        "task": str(task.metadata.get("group", task.name)),
        "split": task.split,
        "is_final": True,
        "state": RolloutState.SUCCEEDED,
        "spans": (Span(seq=1, kind=SpanKind.MODEL, name="llm", started_at=1.0, ended_at=3.5, model=call),),
        "breakdown": RewardBreakdown(signals=signals),
    }
    return Experience(**given | fields)


def recorded(step: int, **body: Any) -> StepRecord:
    """A step that is on record."""
    return StepRecord(run=RUN, step=step, name=f"s{step}", function="f", inputs_sha256="", at=0.0, body=body)


def dialogue(place: int, kind: str) -> SimpleNamespace:
    """A whole demonstration: its messages, and the tools that it is offered."""
    drawn, answers = demonstration(place, kind)
    return SimpleNamespace(messages=[*drawn.task.messages, *answers], tools=specs(drawn.task.tools))
