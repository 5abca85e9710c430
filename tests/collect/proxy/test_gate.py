"""The way into an upstream."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.collect.proxy.connection import Busy, Gate


async def test_no_more_go_in_than_may_and_who_waits_goes_in_turn() -> None:
    gate, went = Gate(2, 10.0), list[int]()

    async def go(number: int) -> None:
        await gate.enter()
        went.append(number)

    tasks = [asyncio.create_task(go(number)) for number in range(4)]
    await asyncio.sleep(0.01)
    assert (went, gate.inside) == ([0, 1], 2)
    gate.leave()
    await asyncio.sleep(0.01)
    assert (went, gate.inside) == ([0, 1, 2], 2)
    gate.leave()
    await asyncio.gather(*tasks)
    assert went == [0, 1, 2, 3]


async def test_while_it_is_held_nobody_goes_in_and_those_inside_end() -> None:
    gate = Gate(5, 10.0)
    await gate.enter()
    gate.hold()
    coming = asyncio.create_task(gate.enter())
    await asyncio.sleep(0.01)
    assert not coming.done()
    gate.leave()
    await asyncio.sleep(0.01)
    assert not coming.done() and gate.inside == 0
    gate.release()
    await coming
    assert gate.inside == 1


async def test_who_waits_too_long_is_told_so_and_takes_nobodys_place() -> None:
    gate = Gate(1, 0.02)
    await gate.enter()
    with pytest.raises(Busy, match="has 1 calls under way"):
        await gate.enter()
    gate.hold()
    with pytest.raises(Busy, match="is held"):
        await gate.enter()
    gate.release()
    gate.leave()
    await gate.enter()
    assert gate.inside == 1


async def test_one_that_leaves_while_it_waits_takes_nobodys_place() -> None:
    gate = Gate(1, 10.0)
    await gate.enter()
    waiting = asyncio.create_task(gate.enter())
    await asyncio.sleep(0)
    gate.leave()  # let in, and cancelled before it could notice
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert gate.inside == 0
    await gate.enter()
