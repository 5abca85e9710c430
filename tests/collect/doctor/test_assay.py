"""Drawing for the assay: how much is asked, and what is told as it goes on. What is found is in `test_examine`."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from holdfast.collect.doctor import OPENERS, assay
from holdfast.collect.endpoint_probe import DoctorFinding, EndpointProbe, EndpointSession, FindingState
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall
from tests.collect.doctor.toys import Toy, serving


class Counting(Toy):
    def __init__(self) -> None:
        self.asked: Counter[tuple[float, int, float]] = Counter()

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        self.asked[sampling["temperature"], sampling.get("top_k", 0), sampling.get("top_p", 1.0)] += 1
        assert sampling["max_tokens"] == 4
        return await super().__call__(messages, **sampling)


class Cold(Toy):
    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        raise BadInput("temperature", why="only 0 is known here")


def assayed(toy: Toy, samples: int, heard: list[str]) -> list[DoctorFinding]:
    async def asking(url: str) -> list[DoctorFinding]:
        async with EndpointProbe(url) as probe:
            return await assay(EndpointSession(probe, "toy", heard.append), samples, None)

    with serving(toy) as url:
        return asyncio.run(asking(url))


def test_every_way_of_drawing_is_asked_as_often() -> None:
    toy, heard = Counting(), list[str]()
    found = assayed(toy, 8, heard)
    ways = [
        (1.0, 0, 1.0),
        (1.5, 0, 1.0),
        (2.0, 0, 1.0),
        *((t, 2, 1.0) for t in (1.0, 2.0)),
        (1.0, 0, 0.6),
        (2.0, 0, 0.6),
    ]
    assert toy.asked == dict.fromkeys(ways, 8 * len(OPENERS))
    checks = ["temperature", "top_k", "top_p", "draws", "trainer_gap"]
    assert [one.check for one in found] == heard == checks
    assert found[0].figures["comparisons"] >= 3 and found[0].figures["error"] < 1e-6


def test_an_endpoint_that_does_not_sample_is_not_told_to_be_right() -> None:
    found = assayed(Cold(), 8, [])
    assert [one.state for one in found] == [FindingState.UNKNOWN] * 4 + [FindingState.SKIPPED]
    assert "only 0 is known here" in found[0].detail
