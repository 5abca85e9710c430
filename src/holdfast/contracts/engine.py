"""The seam of engines: who answers for policies, and the kit that every kind passes.

A policy asks an engine for what it needs when it is opened (`contracts.policy`); agents never see one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.checks import require
from holdfast.contracts.trace import ModelCall


class Complete(Protocol):
    """Something that answers messages: an endpoint, our own model, a script. What it returns is what was sampled."""

    def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> Awaitable[ModelCall]: ...


class Engine(Protocol):
    """Answers for many versions at once. What was opened for one version is never answered by another."""

    files: Artifacts | None  # the store's own, with the checkpoints of policies; None: there is no store (yet)

    def open_model(self, policy: Any) -> Complete:
        """Weights of ours, loaded; a version that is loaded already is not loaded again. Lost where they are damaged,
        a Fault where this engine loads none."""
        ...

    def open_endpoint(self, model: str) -> Complete | None:
        """A model behind an address; None where the run has none."""
        ...

    def close(self) -> None:
        """With the run; also when it is closed already."""
        ...


# The kit for whoever writes another kind


def check_engine(
    make: Callable[[], Engine],
    policies: Sequence[Any],
    messages: Sequence[Mapping[str, Any]] = ({"role": "user", "content": "1?"},),
    **sampling: Any,
) -> None:
    """Each of at least three versions that are open at once answers as it does alone, in turn and side by side.

    `make` gives a new engine; the policies answer the messages differently from one another, and each the same every
    time: give a seed in the sampling where there is chance."""
    require(len(policies) > 2, "fewer than three versions: whether one is answered by another was not checked")
    names = [policy.version for policy in policies]
    alone = {}
    for policy in policies:
        engine = make()
        call = asyncio.run(_ask(_opened(engine, policy), messages, sampling))
        require(call.messages == tuple(messages), f"{policy.version}: the call has other messages than were asked")
        require(
            policy.kind != "weights" or call.model == policy.version,
            f"{policy.version}: its calls are recorded as those of {call.model}",
        )
        alone[policy.version] = _said(call)
        engine.close()
        engine.close()
    require(len(set(alone.values())) == len(names), "two versions say the same: what is mixed up would not be seen")
    engine = make()
    try:
        opened = [_opened(engine, policy) for policy in policies]
        for name, complete in (*zip(names, opened, strict=True), *zip(names, opened, strict=True)):
            answer = _said(asyncio.run(_ask(complete, messages, sampling)))
            require(answer == alone[name], f"{name}: is answered by another version once others are open")
        for name, answer in zip(names * 4, asyncio.run(_ask_all(opened * 4, messages, sampling)), strict=True):
            require(answer == alone[name], f"{name}: is answered otherwise while others are asked")
    finally:
        engine.close()


def _opened(engine: Engine, policy: Any) -> Complete:
    complete: Complete | None = policy.open(engine).complete
    if complete is None:
        raise AssertionError(f"{policy.version}: nobody answers for it")
    return complete


async def _ask(complete: Complete, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> ModelCall:
    return await complete(messages, **sampling)


async def _ask_all(
    opened: Sequence[Complete], messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
) -> list[str]:
    return [_said(call) for call in await asyncio.gather(*(_ask(complete, messages, sampling) for complete in opened))]


def _said(call: ModelCall) -> str:
    return repr((call.response, call.completion_ids))
