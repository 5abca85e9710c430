"""Orders reach whoever learns, proves and promotes, not only whoever collects; and a pause changes nothing but time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.contracts.run import DesiredState, RunState, Status
from holdfast.pipeline.promote import PromotionRequest
from holdfast.store.notifications import ORDERS
from holdfast.store.store import Store, open_store
from tests.collect.scene import PACE, PATIENCE_S, until
from tests.conftest import Files
from tests.pipeline.driving import names
from tests.pipeline.learning import LINE, is_whole, model_spec
from tests.pipeline.scene import ran

# Beats never come: the order itself must be enough.
SILENT = type(PACE)(heartbeat_s=PATIENCE_S, lease_s=10 * PATIENCE_S, idle_s=PATIENCE_S)


@dataclass
class Held:
    """Stops whoever comes to this place, until it is let go."""

    at: str
    came: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    passed: list[str] = field(default_factory=list)

    def __call__(self, place: str) -> None:
        if place == self.at:
            self.came.set()
            assert self.go.wait(PATIENCE_S)
        self.passed.append(place)


@dataclass
class Going:
    """A run in this process, and an operator in another."""

    store: Store
    operator: Store
    held: Held
    task: asyncio.Task[Status]

    async def order(self, wanted: DesiredState) -> None:
        """Given there, and heard of here."""
        seen, run_id = self.store.changes.seen(ORDERS), self.operator.runs.newest()[0].id
        self.operator.runs.want(run_id, wanted, who="ann", why="because", now=time.time()).result()
        await asyncio.wait_for(self.store.changes.after(ORDERS, seen), PATIENCE_S)


@pytest.fixture
def stores(files: Files) -> Iterator[tuple[Store, Store]]:
    url = files.fresh()
    with open_store(url) as store, open_store(url) as operator:
        yield store, operator


async def begun(stores: tuple[Store, Store], base: str, held: Held) -> Going:
    """A run that has come to this place and is held there."""
    task = asyncio.create_task(ran(stores[0], model_spec(base, held, timing=SILENT)))
    await until(lambda: held.came.is_set() or task.done())
    return Going(*stores, held, task)


@pytest.mark.parametrize("wanted", [DesiredState.PAUSED, DesiredState.FROZEN])
async def test_a_learner_waits_amid_a_step_and_goes_on_to_the_same_bytes(
    stores: tuple[Store, Store], base: str, made: list[str], wanted: DesiredState
) -> None:
    going = await begun(stores, base, Held("learn 1 2"))
    await going.order(wanted)
    going.held.go.set()
    await asyncio.sleep(0.5)
    assert going.held.passed[-1] == "learn 1 2" and not going.task.done()
    await going.order(DesiredState.RUNNING)
    status = await going.task
    assert status.run_state is RunState.COMPLETED
    assert len(made) == 2
    is_whole(stores[0], status.run_id, made)
    live = stores[0].releases.live(LINE)
    assert live is not None and live.id == f"{LINE}@2"


async def test_a_cancelled_run_stops_learning_and_keeps_nothing_of_the_step(
    stores: tuple[Store, Store], base: str
) -> None:
    going = await begun(stores, base, Held("learn 1 2"))
    await going.order(DesiredState.CANCELLED)
    status = await going.task  # although its learner has not come back
    assert (status.run_state, status.error) == (RunState.CANCELLED, "cancelled by an order")
    going.held.go.set()
    await until(lambda: "learn 1 2" in going.held.passed)
    await asyncio.sleep(0.3)
    assert going.held.passed[-1] == "learn 1 2"  # what it would have done next it was kept from
    assert names(stores[0], status.run_id)[-1] == "0/1/collect"
    assert len(stores[0].checkpoints.of_run(status.run_id)) == 1
    assert len(list((stores[0].folder / "checkpoints").iterdir())) == 1


@pytest.mark.parametrize("wanted", [DesiredState.PAUSED, DesiredState.CANCELLED])
async def test_what_is_ordered_while_a_candidate_is_weighed_holds_before_it_serves(
    stores: tuple[Store, Store], base: str, wanted: DesiredState, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held("weigh")
    for call in (PromotionRequest.weigh, PromotionRequest.publish):

        def hooked(*given: Any, call: Any = call) -> Any:
            held(call.__name__)
            return call(*given)

        monkeypatch.setattr(PromotionRequest, call.__name__, hooked)
    going = await begun(stores, base, held)
    await going.order(wanted)
    going.held.go.set()
    if wanted is DesiredState.PAUSED:
        await asyncio.sleep(0.5)
        assert "publish" not in going.held.passed and not going.task.done()
        await going.order(DesiredState.RUNNING)
    status = await going.task
    live = stores[1].releases.live(LINE)
    assert live is not None
    is_paused = wanted is DesiredState.PAUSED
    assert (status.run_state, live.id) == (
        (RunState.COMPLETED, f"{LINE}@2") if is_paused else (RunState.CANCELLED, f"{LINE}@1")
    )
    assert ("publish" in going.held.passed) is is_paused
    assert (names(stores[0], status.run_id)[-1] == "0/decide") is is_paused
