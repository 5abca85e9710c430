"""Agents of the drills: short, traced work whose spans say when they were made."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.reward import Signal
from holdfast.contracts.trace import Span

SHORTEST_S, LONGEST_S = 0.002, 0.06


async def busy(task: Any, context: Context) -> dict[str, Any]:
    """A few steps with pauses; now and then it fails, which is data, and is tried again."""
    chance = random.Random(context.assignment.seed)
    for step in range(3):
        await asyncio.sleep(chance.uniform(SHORTEST_S, LONGEST_S) / 3)
        context.trace.event(f"step {step}", made_ns=time.monotonic_ns())
    if chance.random() < 0.05:
        raise ValueError("this agent fails one time in twenty")
    return {"expected": task["prompt"]}


def plain(task: Any, context: Context) -> dict[str, Any]:
    """The same without an event loop: it blocks its thread or its process."""
    chance = random.Random(context.assignment.seed)
    for step in range(3):
        time.sleep(chance.uniform(SHORTEST_S, LONGEST_S) / 3)
        context.trace.event(f"step {step}", made_ns=time.monotonic_ns())
    return {"expected": task["prompt"]}


def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[Signal, ...]:
    return (Signal(name="done", value=float(output["expected"] == task["prompt"]), source="rule:drill"),)
