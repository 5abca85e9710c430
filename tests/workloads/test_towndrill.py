"""Drills of a town: real weights are swapped while it runs, and an anneal that hurts goes back."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from holdfast.pipeline.run import RunSpec
from holdfast.store.store import Store, open_store
from holdfast.workloads.towndrill import drill, swap_drill
from holdfast.workloads.townschool import TownMaker, lineage
from tests.pipeline.scene import ran
from tests.town.small import hamlet


def driven(store: Store, spec: RunSpec) -> str:
    return asyncio.run(ran(store, spec)).run_id


@pytest.fixture
def maker(tmp_path: Path) -> TownMaker:
    return TownMaker(rules_file=hamlet(tmp_path))


def test_weights_are_swapped_in_a_running_town_and_an_anneal_that_hurts_goes_back(
    tmp_path: Path, maker: TownMaker
) -> None:
    clock = count(1)
    with open_store(tmp_path / "store.db", create=True) as store:
        found = list(drill(store, maker, lambda spec: driven(store, spec), now=lambda: float(next(clock))))
        told = lineage(store, store.releases.get("town@2"))
    assert told["stage"] == "rolled_back" and [one["action"] for one in told["anneal"]["windows"]] == ["done"]
    assert not told["gate"]["open"] and told["towns"] == 2 and "green_windows" in told["kpis"]
    assert told["history"][-1]["what"].startswith("town@2")
    assert [one for one in found if not one.holds] == [] and len(found) == 8


def test_a_town_that_does_not_follow_fails_the_drill(tmp_path: Path, maker: TownMaker) -> None:
    clock = count(1)
    with open_store(tmp_path / "store.db", create=True) as store:
        checks = swap_drill(store, maker, lambda spec: driven(store, spec), now=lambda: float(next(clock)), every=10**9)
        found = {one.name: one.holds for one in checks}
    assert not found["promoted weights drive it"] and not found["and are told"] and found["a town runs by scripts"]
