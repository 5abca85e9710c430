"""Agents of the drills: short, traced work whose spans say when they were made. The right answer is the prompt."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span

STEPS, LONGEST_S = 3, 0.02


async def busy(task: Any, context: Context) -> str:
    """A few steps with pauses; now and then it fails, which is data, and is tried again."""
    chance = random.Random(context.assignment.seed)
    for step in range(STEPS):
        await asyncio.sleep(chance.uniform(0.0, LONGEST_S))
        context.trace.event(f"step {step}", made_ns=time.monotonic_ns())
    if chance.random() < 0.05:
        raise ValueError("this agent fails one time in twenty")
    return str(task["prompt"])


def plain(task: Any, context: Context) -> str:
    """The same without an event loop: it blocks its thread or its process."""
    chance = random.Random(context.assignment.seed)
    for step in range(STEPS):
        time.sleep(chance.uniform(0.0, LONGEST_S))
        context.trace.event(f"step {step}", made_ns=time.monotonic_ns())
    return str(task["prompt"])


def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return (RewardTerm(name="done", value=float(output == task["prompt"]), source="rule:drill"),)
