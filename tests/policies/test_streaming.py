"""Answers of our own model while they are written: the same tokens and words as when one waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.trace import ModelCall
from holdfast.policies.engine import Local
from holdfast.policies.lm import ModelShape, Transformer

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=128), seed=1)
    with Local(model, name="tiny", slots=4, deterministic=True) as local:
        yield local


async def heard(local: Local, **sampling: Any) -> tuple[list[Mapping[str, Any]], ModelCall]:
    *pieces, call = [piece async for piece in local.stream(HELLO, **sampling)]
    assert isinstance(call, ModelCall)
    return [piece for piece in pieces if not isinstance(piece, ModelCall)], call


async def test_a_streamed_answer_is_the_answer(local: Local) -> None:
    pieces, call = await heard(local, seed=3, max_tokens=40)
    assert call == await local(HELLO, seed=3, max_tokens=40)
    assert len(pieces) > 5
    ids = [token for piece in pieces for token in piece["token_ids"]]
    logprobs = [logprob for piece in pieces for logprob in piece["logprobs"]]
    assert call.completion_ids is not None and call.logprobs is not None
    assert (tuple(ids), tuple(logprobs)) == (call.completion_ids[: len(ids)], call.logprobs[: len(ids)])
    for name in ("content", "reasoning_content"):
        said = "".join(piece.get(name, "") for piece in pieces)
        assert (call.response.get(name) or "").startswith(said)


async def test_streams_and_calls_share_the_decoder(local: Local) -> None:
    alone = [await local(HELLO, seed=seed, max_tokens=12) for seed in range(6)]
    streams = (heard(local, seed=seed, max_tokens=12) for seed in range(6))
    calls = (local(HELLO, seed=seed, max_tokens=12) for seed in range(6))
    together = await asyncio.gather(*streams, *calls)
    assert [made[1] if isinstance(made, tuple) else made for made in together] == alone * 2


async def test_the_string_that_ends_an_answer_is_never_shown(local: Local) -> None:
    _, free = await heard(local, seed=3, max_tokens=60)
    text = str(free.response["content"])
    stop = next(
        text[n : n + 2] for n in range(8, len(text)) if text[n : n + 2].isascii() and text[n : n + 2].isprintable()
    )
    pieces, call = await heard(local, seed=3, max_tokens=60, stop=[stop])
    said = "".join(piece.get("content", "") for piece in pieces)
    assert call.finish_reason == "stop" and stop not in said
    assert str(call.response["content"]).startswith(said)


async def test_a_listener_that_leaves_frees_its_place(local: Local) -> None:
    for _ in range(8):  # twice as many as there are places
        stream = local.stream(HELLO, seed=3, max_tokens=100)
        assert not isinstance(await anext(stream), ModelCall)
        await stream.aclose()
    assert (await asyncio.wait_for(local(HELLO, max_tokens=3), 40)).completion_tokens is not None


async def test_what_is_wrong_is_said_before_anything_else(local: Local) -> None:
    with pytest.raises(BadInput, match="sampling.top_p"):
        await anext(local.stream(HELLO, top_p=0))


def test_a_closed_model_ends_its_streams() -> None:
    async def main() -> None:
        local = Local(Transformer(ModelShape(width=16, layers=1, heads=2, context=65536), seed=1), slots=1)
        stream = local.stream(HELLO, max_tokens=65000, temperature=0)
        await anext(stream)
        await asyncio.to_thread(local.close)
        with pytest.raises(Fault, match="it was closed"):
            async for _ in stream:
                pass

    asyncio.run(main())
