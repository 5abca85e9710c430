"""Work within a limit: what it gives, what it raises, and that it is stopped when it takes too long."""

from __future__ import annotations

import threading
import time

import pytest

from holdfast.reward.evaluation import TooLong, within


def test_work_that_ends_in_time_gives_what_it_gives_and_raises_what_it_raises() -> None:
    assert within(5.0, lambda: [1, 2]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        within(5.0, lambda: 1 // 0)


def test_work_that_takes_too_long_is_stopped_even_where_it_catches_all_exceptions() -> None:
    turns = [0]

    def stubborn() -> None:
        while True:
            try:
                turns[0] += 1
            except Exception:
                continue

    with pytest.raises(TooLong):
        within(0.05, stubborn)
    assert not any(thread.name == "within" for thread in threading.enumerate())
    counted = turns[0]
    time.sleep(0.02)
    assert turns[0] == counted > 0
