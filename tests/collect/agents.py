"""Agents for processes of their own, with their scores and models: a child finds all of it by name.

Each does what its task says. Imports are few: every child pays for them.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span


def no_score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return ()


def ones(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return (RewardTerm(name="one", value=1.0, source="rule:test"),)


def do(task: Any, context: Context) -> Any:
    return DEEDS[task["do"]](task, context)


async def do_async(task: Any, context: Context) -> Any:
    result = DEEDS[task["do"]](task, context)
    return await result if task["do"] == "ask" else result


def _tell(task: Any, context: Context) -> Any:
    with context.trace.span("telling", resource=context.resources.get("tone")):
        context.trace.reward("told", 1.0)
    return {"pid": os.getpid(), "seed": context.assignment.seed}


def _print(task: Any, context: Context) -> str:
    print("printed by an agent", flush=True)
    os.write(1, b"written by an agent\n")
    return "printed"


def _big(task: Any, context: Context) -> str:
    context.trace.event("big", text="s" * task["size"])
    return "o" * task["size"]


def _mark(task: Any) -> None:
    if "mark" in task:
        Path(task["mark"]).write_text(str(os.getpid()))


def _spin(task: Any, context: Context) -> None:
    _mark(task)
    while True:
        pass


def _hold_the_interpreter(task: Any, context: Context) -> None:
    _mark(task)
    re.match(r"(a+)+$", "a" * 60 + "b")  # years inside C, and the lock is never given up


def _ignore_and_sleep(task: Any, context: Context) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _mark(task)
    time.sleep(600)


def _segfault(task: Any, context: Context) -> None:
    ctypes.string_at(0)


def _crash_the_first_time(task: Any, context: Context) -> str:
    if context.assignment.number == 1:
        os._exit(9)
    return "second time lucky"


def _leave_a_talker(task: Any, context: Context) -> str:
    def talk() -> None:
        for _ in range(200):
            context.trace.event("late")
            time.sleep(0.005)

    threading.Thread(target=talk, daemon=True).start()
    return "left"


def _talk_from_many_threads(task: Any, context: Context) -> str:
    def talk() -> None:
        for _ in range(20):
            context.trace.event("loud", text="x" * 100_000)

    threads = [threading.Thread(target=talk) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return "told"


async def _ask(task: Any, context: Context) -> str:
    call = await context.ask([{"role": "user", "content": "hello"}])
    return str(call.response["content"])


def _use_sdks(task: Any, context: Context) -> list[str]:
    """As an agent does that has never heard of us: address and key are the environment's."""
    import openai

    hello: Any = [{"role": "user", "content": "hello"}]
    with openai.OpenAI() as client:
        first = client.chat.completions.create(model="any", messages=hello).choices[0].message.content
    import anthropic  # here: one that found no model does not wait for it

    with anthropic.Anthropic() as other:
        second = other.messages.create(model="any", messages=hello, max_tokens=9).content[0]
    return [first or "", second.text if second.type == "text" else ""]


DEEDS = {
    "tell": _tell,
    "print": _print,
    "big": _big,
    "spin": _spin,
    "hold": _hold_the_interpreter,
    "ignore": _ignore_and_sleep,
    "exit": lambda task, context: os._exit(3),
    "leave": lambda task, context: sys.exit(4),
    "kill": lambda task, context: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": _segfault,
    "crash once": _crash_the_first_time,
    "raise": lambda task, context: 1 / 0,
    "unpicklable": lambda task, context: context.trace.event("look", found=threading.Lock()),
    "digits": lambda task, context: context.trace.event("look", found=10**5000),
    "talker": _leave_a_talker,
    "threads": _talk_from_many_threads,
    "ask": _ask,
    "sdk": _use_sdks,
    "where": lambda task, context: [
        context.base_url,
        *(os.environ.get(f"{house}_BASE_URL") for house in ("OPENAI", "ANTHROPIC")),
    ],
}
