"""S7: nobody fills the disk with what is refused, or a server with what is streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import requests

from holdfast.contracts.commands import Role
from holdfast.operate.app import MOST_STREAMS
from holdfast.operate.auth import Caller
from holdfast.store.store import Store
from holdfast.workloads.townaudit import AuditFile
from holdfast.workloads.townobserver import TownCommandService
from tests.conftest import Clock
from tests.operate.room import PATIENCE_S, Room, serving

BIG = {"id": "i" * 100, "action": "pause", "subject": "s" * 500, "why": "w" * 2000}
BIG["args"] = {f"name-{number}": "v" * 500 for number in range(100)}  # type: ignore[assignment]


@pytest.fixture
def room(file_store: Store) -> Iterator[Room]:
    with serving(file_store) as opened:
        yield opened


def refusals(store: Store) -> list[str]:
    return [json.dumps(dict(one.body)) for one in store.ledger.entries() if one.kind == "refusal"]


def test_a_viewers_refusals_are_recorded_a_few_at_a_time_and_cut(room: Room) -> None:
    for path, body in (("/api/orders", BIG), ("/api/orders", {"x": 1}), ("/dashboard/actions", {"action": "stop"})):
        for _ in range(40):
            assert room.ask(path, role="viewer", method="POST", json=body).status_code in (400, 403)
    found = refusals(room.store)
    assert len(found) == 30 and max(map(len, found)) < 8_000


def test_the_next_refusal_on_record_says_how_many_were_not(file_store: Store, clock: Clock) -> None:
    with serving(file_store, clock=lambda: clock.now) as room:
        for _ in range(35):
            room.ask("/api/orders", role="viewer", method="POST", json={"x": 1})
        clock.advance(61.0)
        room.ask("/api/orders", role="viewer", method="POST", json={"x": 1})
    assert "(5 more were refused since the last entry)" in refusals(file_store)[-1]


def test_so_are_refused_orders_to_a_town(clock: Clock) -> None:
    def needs(name: str) -> str:
        return "admin"

    audit = AuditFile(None)
    nothing = {"look": lambda name, args: {}, "do": lambda name, args: {}}
    desk = TownCommandService(needs=needs, audit=audit, clock=lambda: clock.now, **nothing)
    for _ in range(100):
        with pytest.raises(Exception, match="is for admins"):
            desk.hear({"name": "kill", "args": {}, "id": "1"}, Caller(label="v", role=Role.VIEWER))
    assert audit.count == 30


def test_a_token_has_so_many_streams_and_another_has_its_own(room: Room) -> None:
    def stream(role: str) -> requests.Response:
        how = {"Authorization": f"Bearer {room.tokens[role]}"}
        return requests.get(f"{room.url}/api/stream", headers=how, stream=True, timeout=PATIENCE_S)

    with ExitStack() as held:
        for _ in range(MOST_STREAMS):
            assert held.enter_context(stream("viewer")).status_code == 200
        with stream("viewer") as more:
            assert more.status_code == 429 and more.headers["Retry-After"]
        with stream("operator") as other:
            assert other.status_code == 200
