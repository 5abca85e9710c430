"""Events: a ring that keeps the newest and counts them all."""

from __future__ import annotations

import numpy as np

from holdfast.town import kernel
from holdfast.town.kernel import EVENTS, KINDS, tell
from holdfast.town.state import EVENT, TOWN


def test_every_kind_has_its_number() -> None:
    for number, name in enumerate(KINDS):
        assert getattr(kernel, name.upper()) == number


def test_the_ring_keeps_the_newest() -> None:
    towns, ring = np.zeros(1, TOWN), np.zeros(EVENTS, EVENT)
    for k in range(EVENTS + 3):
        towns["tick"] = 100 + k
        tell(towns[0], ring, kernel.CHAT, k, k + 1, -k)
    assert towns["events"][0] == EVENTS + 3
    assert ring[2].tolist() == (100 + EVENTS + 2, kernel.CHAT, EVENTS + 2, EVENTS + 3, -EVENTS - 2)
    assert ring[3].tolist() == (103, kernel.CHAT, 3, 4, -3)
