"""The kit of engines: both built-in kinds pass, and each promise is broken once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.engine import Complete, check_engine
from holdfast.contracts.trace import ModelCall
from holdfast.pipeline.context import Endpoints
from holdfast.policies.engine import LocalEngine
from holdfast.policies.model import Model
from holdfast.policies.prompt import Prompt
from holdfast.store.artifacts import FolderArtifacts
from tests.workloads.scene import tiny

PROMPTS = [Prompt(model=name) for name in ("a", "b", "c")]


def test_models_of_ours_in_this_process_pass(tmp_path: Path) -> None:
    policies = [Model(tiny(tmp_path / "base", 9)).at(None if n == 0 else f"c-{n}") for n in range(4)]
    for n in (1, 2, 3):
        tiny(tmp_path / "checkpoints" / f"c-{n}", n)
    files = FolderArtifacts(tmp_path)
    check_engine(
        lambda: LocalEngine(slots=4, deterministic=True, files=files), policies, seed=5, temperature=1.0, max_tokens=8
    )


def answering(model: str, **fields: Any) -> Complete:
    async def complete(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        response = {"role": "assistant", "content": f"I am {model}"}
        return ModelCall(model=model, **{"messages": tuple(messages), "response": response, **fields})

    return complete


def test_models_behind_an_address_pass() -> None:
    check_engine(lambda: Endpoints(answering), PROMPTS)


class Last(Endpoints):
    """Whatever was opened last answers for all, as an engine does that keeps one model in memory."""

    def open_endpoint(self, model: str) -> Complete | None:
        self.model = model

        async def complete(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
            return await answering(self.model)(messages, **sampling)

        return complete


class Crowded(Endpoints):
    """Right as long as one is asked at a time."""

    def open_endpoint(self, model: str) -> Complete | None:
        async def complete(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
            self.asked = model
            await asyncio.sleep(0)
            return await answering(self.asked)(messages, **sampling)

        return complete


class CloseOnce(Endpoints):
    is_closed = False

    def close(self) -> None:
        if self.is_closed:
            raise AssertionError("it is closed already")
        self.is_closed = True


class Renaming(Endpoints):
    def open_model(self, policy: Any) -> Complete:
        return answering("local/other@9")


WRONG: list[tuple[Callable[[], Any], Sequence[Any], str]] = [
    (lambda: Last(), PROMPTS, "prompt:.*: is answered by another version once others are open"),
    (lambda: Crowded(), PROMPTS, "is answered otherwise while others are asked"),
    (lambda: CloseOnce(answering), PROMPTS, "it is closed already"),
    (lambda: Endpoints(), PROMPTS, "nobody answers for it"),
    (lambda: Endpoints(lambda model: answering("one")), PROMPTS, "two versions say the same"),
    (lambda: Endpoints(lambda model: answering(model, messages=())), PROMPTS, "has other messages than were asked"),
    (Renaming, [Model("sprout")] * 3, "its calls are recorded as those of local/other@9"),
    (lambda: Endpoints(answering), PROMPTS[:2], "fewer than three versions"),
]


@pytest.mark.parametrize(("make", "policies", "says"), WRONG, ids=[says for *_, says in WRONG])
def test_an_engine_that_breaks_a_promise_fails_the_kit(
    make: Callable[[], Any], policies: Sequence[Any], says: str
) -> None:
    with pytest.raises(AssertionError, match=says):
        check_engine(make, policies)
