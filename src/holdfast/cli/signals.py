"""Ctrl-C hands running work back and stops; SIGTERM lets it finish first; a second signal of either kind stops now."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol


class Stoppable(Protocol):
    def drain(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class Caught:
    exit_code: int = 0
    count: int = 0


@contextmanager
def obeying(control: Stoppable) -> Iterator[Caught]:
    """Within the running event loop, signals become wishes to the control."""
    loop, caught = asyncio.get_running_loop(), Caught()

    def on_signal(number: signal.Signals) -> None:
        caught.count += 1
        caught.exit_code = 128 + number
        if caught.count > 2:
            os._exit(caught.exit_code)  # nothing is lost: what is unfinished is claimed again when its lease runs out
        if number is signal.SIGTERM and caught.count == 1:
            control.drain()  # before it is said: nobody may be there to hear it
            print("holdfast: finishing what runs (again to stop now)", file=sys.stderr, flush=True)
        else:
            control.stop()
            print("holdfast: stopping, running work is handed back", file=sys.stderr, flush=True)

    kinds = (signal.SIGINT, signal.SIGTERM)
    for number in kinds:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield caught
    finally:
        for number in kinds:
            loop.remove_signal_handler(number)
