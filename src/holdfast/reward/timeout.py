"""Work that may take only so long. Whoever waits says what it means that the work did not end."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
GRACE_S = 1.0  # for a thread that was told to stop


class TooLong(Exception):
    """The work did not end in time."""


class _Stop(BaseException):
    """Raised within the work; no Exception, so that nobody in there takes it for one of theirs."""


def within(most_s: float, work: Callable[[], T]) -> T:
    """What the work gives, or raises; TooLong where it takes longer than that.

    It runs in a thread of its own, which is stopped at its next line of Python. Wall time is what counts: a machine
    that is busy with other things is slow too, so the limit should be far above what is usual.
    """
    given: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(work())
        except _Stop:
            pass
        except BaseException as error:  # told to whoever waits
            raised.append(error)

    thread = Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(most_s)
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop))
        thread.join(GRACE_S)
        raise TooLong
    if raised:
        raise raised[0]
    return given[0]
