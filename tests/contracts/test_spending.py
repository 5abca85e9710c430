"""A limit in tokens or money that no call can pass, whoever asks when and whatever is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from random import Random
from typing import Any

import pytest

from holdfast.contracts.errors import Fault
from holdfast.contracts.spending import OutOfBudget, SpendLimit, bound, limited_by
from holdfast.contracts.trace import ModelCall

ASKED = [{"role": "user", "content": "Grüße an alle"}]


class Writer:
    """Writes as much as it may, or a little; now and then it fails after it has written."""

    def __init__(self, seed: int) -> None:
        self.chance, self.taken = Random(seed), 0

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        wrote = self.chance.choice((1, sampling["max_tokens"]))
        self.taken += 20 + wrote
        await asyncio.sleep(0)
        if self.chance.random() < 0.1:
            raise Fault("model", why="it broke off")
        counts: dict[str, Any] = {"prompt_tokens": 20, "completion_tokens": wrote}
        return ModelCall(model="m", messages=messages, response={"content": "x"}, finish_reason="stop", **counts)


async def _until_refused(limit: SpendLimit, model: Writer, *, calls: int) -> int:
    """Eight at a time; how many were refused."""
    asked, refused = limited_by(limit, model), 0

    async def one() -> None:
        nonlocal refused
        for _ in range(calls):
            try:
                await asked(ASKED, max_tokens=50)
            except OutOfBudget:
                refused += 1
                return
            except Fault:
                continue

    await asyncio.gather(*(one() for _ in range(8)))
    return refused


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("limits", "prices"), [({"tokens": 30_000}, None), ({"money": 0.03}, (1.0, 1.0))])
def test_calls_side_by_side_never_pass_a_limit_also_where_they_fail_and_after_kills(
    seed: int, limits: dict[str, float], prices: tuple[float, float] | None
) -> None:
    model, noted = Writer(seed), list[Mapping[str, float]]()
    for _ in range(3):  # killed: what was under way is known to nobody, and what was noted last is there
        limit = SpendLimit(limits, prices, spent=noted[-1] if noted else None, note=noted.append)
        asyncio.run(_until_refused(limit, model, calls=3))
    limit = SpendLimit(limits, prices, spent=noted[-1], note=noted.append)
    assert asyncio.run(_until_refused(limit, model, calls=10**6)) == 8
    assert 15_000 < model.taken <= 30_000 and limit.refusal is not None
    assert len(noted) < 40


def test_what_a_call_can_read_is_counted_by_bytes_with_its_tools() -> None:
    read, wrote = bound(ASKED, {"max_tokens": 7, "n": 2})
    assert len("Grüße an alle".encode()) < read < 200 and wrote == 14
    tools = [{"type": "function", "function": {"name": "look_up", "description": "x" * 1000}}]
    assert bound(ASKED, {"tools": tools})[0] > read + 1000
    assert bound([{"role": "user", "content": [{"type": "image_url"}]}], {})[0] > 50_000


def test_an_answer_that_only_our_own_bound_cut_is_refused() -> None:
    async def cut(messages: Any, /, **sampling: Any) -> ModelCall:
        counts: dict[str, Any] = {"prompt_tokens": 20, "completion_tokens": sampling["max_tokens"]}
        return ModelCall(model="m", messages=messages, response={"content": "x"}, finish_reason="length", **counts)

    limit = SpendLimit({"tokens": 8000})
    model = limited_by(limit, cut)
    asyncio.run(model(ASKED, max_tokens=40))  # as its caller wants it
    with pytest.raises(OutOfBudget, match="longer than the 1000 tokens"):
        asyncio.run(model(ASKED))
    assert limit.spent["tokens"] == 65 + 60 + 1020
