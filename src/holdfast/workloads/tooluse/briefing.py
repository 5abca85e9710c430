"""Instructions where a caller gives none: sprout only knows conversations that begin with some."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from holdfast.contracts.trace import ModelCall
from holdfast.workloads.tooluse.tasks import STYLES, USE, USE_NOT

Messages = Sequence[Mapping[str, Any]]


class Speaker(Protocol):
    """What answers, at once or piece by piece, until it is closed."""

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall: ...

    def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]: ...

    def close(self) -> None: ...


class Briefed:
    def __init__(self, speaker: Speaker) -> None:
        self._speaker = speaker

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall:
        return await self._speaker(briefed(messages, sampling.get("tools")), **sampling)

    def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]:
        return self._speaker.stream(briefed(messages, sampling.get("tools")), **sampling)

    def close(self) -> None:
        self._speaker.close()


def briefed(messages: Messages, tools: Any) -> Messages:
    """The conversation, with instructions at its head."""
    if messages and messages[0].get("role") in ("system", "developer"):
        return messages
    return [{"role": "system", "content": f"{USE if tools else USE_NOT} {STYLES['full']}"}, *messages]
