"""Tool use of stored rollouts as `reward.tools` counts it: who needed which tool, and what was called.

What a task needs and offers is what its input says; where it says nothing, nothing is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import Rollout
from holdfast.contracts.trace import Span
from holdfast.reward.tools import ToolAttempt, marks, schemas_of, split_version
from holdfast.store.store import Store

Tools = Sequence[Mapping[str, Any]]  # as OpenAI writes them


def records(store: Store, rollouts: Iterable[tuple[Rollout, int]]) -> list[ToolAttempt]:
    """One for each, from the spans of the attempt that decided it, whose token is given."""
    found = [(rollout, store.traces.spans(token)) for rollout, token in rollouts]
    known = {run: catalog(store, run) for run in {rollout.run for rollout, _ in found}}
    return [record(rollout, spans, known[rollout.run]) for rollout, spans in found]


def catalog(store: Store, run: str) -> Tools:
    """The tools that the tasks of a run may name: what its agent brought along."""
    begun = store.steps.get(run, "begin")
    return () if begun is None else tuple(begun.body.get("tools", ()))


def record(rollout: Rollout, spans: Sequence[Span], tools: Tools = ()) -> ToolAttempt:
    task = rollout.input if isinstance(rollout.input, Mapping) else {}
    needs, schemas, offered = names(task.get("needs")), schemas_in(task, tools), names(task.get("tools"))
    models = {span.model.model for span in spans if span.model is not None}
    made = ToolAttempt(
        task=f"{rollout.run}/{rollout.metadata.get('group', rollout.name)}",
        model=models.pop() if len(models) == 1 else None,
        version=None,
        at=rollout.ended_at if rollout.ended_at is not None else rollout.enqueued_at,
        needs=needs,
        offered=tuple(schemas) if offered is None and schemas is not None else offered,
        marks=marks(spans, needs=needs, schemas=schemas),
    )
    return split_version(made)


def names(given: Any) -> tuple[str, ...] | None:
    """A list of names; None where it is anything else, and so unknown."""
    if isinstance(given, list | tuple) and all(isinstance(one, str) for one in given):
        return tuple(given)
    return None


def schemas_in(task: Mapping[str, Any], catalog: Tools = ()) -> Mapping[str, Mapping[str, Any]] | None:
    """Of the tools that the task offers: written out in it, or named there and known; None where unknown."""
    tools = task.get("tools")
    if isinstance(tools, list | tuple) and tools and all(isinstance(one, Mapping) for one in tools):
        try:
            return schemas_of(tools)
        except BadInput:
            return None
    known, schemas = names(tools), schemas_of(catalog)
    return schemas if known and set(known) <= set(schemas) else None
