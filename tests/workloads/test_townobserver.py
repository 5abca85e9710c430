"""Roles, ids, dry runs, the audit log, alarms and stages: for orders of any kind."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.commands import Forbidden, Role, Severity
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, NotFound
from holdfast.operate.auth import Caller
from holdfast.workloads import townlife
from holdfast.workloads import townobserver as observer
from holdfast.workloads.townaudit import AuditFile, read_audit
from holdfast.workloads.townlife import LIMITS, ROLES, SHIPPED, read_rules, stage_table, unlocked_stages
from holdfast.workloads.townobserver import StaticToken, TooMany, TownAlarms, TownCommandService, TownOrder
from tests.conftest import Clock
from tests.town.small import small

NEEDS = {"look": "viewer", "rain": "operator", "kill": "admin"}


class World:
    """Something that takes orders, and counts those it was given."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def needs(self, name: str) -> str:
        if name not in NEEDS:
            raise NotFound(name, why="is unknown")
        return NEEDS[name]

    def look(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        return {"said": f"would {name}"}

    def do(self, name: str, args: Mapping[str, Any]) -> dict[str, Any]:
        if args.get("bad"):
            raise BadInput(name, why="cannot be")
        self.done.append(name)
        return {"said": f"{name} {len(self.done)}"}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "audit" / "log.jsonl"


@pytest.fixture
def desk(world: World, log: Path, clock: Clock) -> TownCommandService:
    return TownCommandService(
        needs=world.needs, look=world.look, do=world.do, audit=AuditFile(log), clock=lambda: clock.now
    )


def order(name: str, role: str, identity: str = "1", **more: Any) -> TownOrder:
    return TownOrder(id=identity, name=name, caller=Caller(label="ann", role=Role(role)), **more)


@pytest.mark.parametrize(("role", "may"), [("viewer", 1), ("operator", 2), ("admin", 3)])
def test_a_role_may_do_what_those_below_it_may(role: str, may: int, desk: TownCommandService, world: World) -> None:
    for place, name in enumerate(NEEDS):
        if place < may:
            desk.take(order(name, role, name))
        else:
            with pytest.raises(Forbidden, match=f"{name}: is for {NEEDS[name]}s, and this is a {role}"):
                desk.take(order(name, role, name))
    assert world.done == list(NEEDS)[:may]


def test_the_same_id_again_gives_the_same_answer_and_does_nothing(desk: TownCommandService, world: World) -> None:
    first = desk.take(order("rain", "operator", args={"ticks": 1}))
    again = desk.take(order("rain", "operator", args={"ticks": 1}))
    assert again == first | {"again": True} and world.done == ["rain"]
    with pytest.raises(Conflict, match="order 1: was another order"):
        desk.take(order("rain", "operator", args={"ticks": 2}))
    desk.take(order("rain", "operator", "2", args={"ticks": 1}))
    assert world.done == ["rain", "rain"]


def test_what_was_refused_may_be_tried_again_under_its_id(desk: TownCommandService, world: World) -> None:
    with pytest.raises(BadInput, match="cannot be"):
        desk.take(order("rain", "operator", args={"bad": True}))
    assert desk.take(order("rain", "operator"))["said"] == "rain 1"
    with pytest.raises(BadInput, match="rain: id: is missing"):  # of what changes something
        desk.take(order("rain", "operator", ""))
    assert desk.take(order("look", "viewer", ""))["said"] == "look 2"


def test_a_dry_run_does_nothing_and_is_not_written_down(desk: TownCommandService, world: World, log: Path) -> None:
    answer = desk.take(order("kill", "admin", is_dry=True))
    assert answer["dry_run"] and answer["said"] == "would kill" and world.done == [] and not log.exists()
    with pytest.raises(Forbidden):
        desk.take(order("kill", "viewer", is_dry=True))


def test_answers_are_remembered_up_to_a_number(
    desk: TownCommandService, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "REMEMBERED", 2)
    for identity in ("1", "2", "3", "1"):
        desk.take(order("rain", "operator", identity))
    assert len(world.done) == 4  # the first was forgotten


def test_everything_done_or_refused_is_in_the_log_and_it_is_sealed(
    desk: TownCommandService, log: Path, clock: Clock
) -> None:
    desk.take(order("rain", "operator", args={"ticks": 5}))
    desk.take(order("look", "viewer"))  # changes nothing
    with pytest.raises(Forbidden):
        desk.take(order("kill", "operator", "2"))
    with pytest.raises(BadInput):
        desk.take(order("kill", "admin", "3", args={"bad": True}))
    entries = read_audit(log)
    assert [(entry["name"], entry["who"], "refused" in entry) for entry in entries] == [
        ("rain", "ann", False), ("kill", "ann", True), ("kill", "ann", True),
    ]  # fmt: skip
    assert entries[0]["args"] == {"ticks": 5} and entries[0]["at"] == clock.now


def test_whatever_is_refused_is_in_the_log_with_who_tried(desk: TownCommandService, world: World, log: Path) -> None:
    ann = Caller(label="ann", role=Role.OPERATOR)
    desk.hear({"name": "rain", "id": "1"}, ann)
    bad: list[tuple[Any, type[Exception], str]] = [
        ({"name": "fly" * 50, "id": "2", "args": {"far": "x" * 60_000}}, NotFound, "is unknown"),
        ({"name": "rain"}, BadInput, "rain: id: is missing"),
        ({"name": "rain", "id": "1", "args": {"ticks": 3}}, Conflict, "order 1: was another order"),
        ({"name": "rain", "id": "x" * 101}, BadInput, "order: id: must be"),
        ([], BadInput, "order: name: is missing"),
    ]
    for body, kind, message in bad:
        with pytest.raises(kind, match=message):
            desk.hear(body, ann)
    entries = read_audit(log)[1:]
    assert world.done == ["rain"] and [(entry["who"], entry["role"]) for entry in entries] == [("ann", "operator")] * 5
    for entry, (_, _, message) in zip(entries, bad, strict=True):
        assert message in entry["refused"] and len(json.dumps(entry)) < 1000


def test_whoever_gives_too_many_orders_waits_and_nobody_else(
    desk: TownCommandService, world: World, log: Path, clock: Clock
) -> None:
    ann, bob = (Caller(label="one", role=Role.OPERATOR, token_id=name) for name in ("ann", "bob"))
    for number in range(int(observer.BURST)):
        desk.hear({"name": "rain", "id": str(number)}, ann)
    with pytest.raises(TooMany, match="order: too many orders; try again in 1 s") as refused:
        desk.hear({"name": "rain", "id": "more"}, ann)
    assert refused.value.wait_s == pytest.approx(1 / observer.PER_S)
    desk.hear({"name": "rain", "id": "bobs"}, bob)
    clock.advance(refused.value.wait_s + 0.001)
    desk.hear({"name": "rain", "id": "more"}, ann)
    assert len(world.done) == len(read_audit(log)) == observer.BURST + 2


# Badges and bodies --------------------------------------------------------------------------------------------------


def test_only_the_right_token_gives_its_role() -> None:
    badges = [StaticToken(role="operator", token="o" * 20), StaticToken(role="admin", token="a" * 20)]
    given = ("o" * 20, "a" * 20, "o" * 21, "", None, "ö" * 20)
    roles = [found.role if (found := observer.role_of(badges, one)) else None for one in given]
    assert roles == ["operator", "admin", None, None, None, None]
    for role, token, message in (
        ("king", "12345678", "'king'"),
        ("admin", "short", "needs 20"),
        ("admin", "1234 567", "header"),
    ):
        with pytest.raises(BadInput, match=message):
            StaticToken(role=role, token=token)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "order: name: is missing"),
        ({"id": "1"}, "order: name: is missing"),
        ({"name": "rain", "role": "admin"}, "order: role: is unknown"),  # a role is not asked for
        ({"name": "rain", "args": [1]}, "order: args: must be names with plain values"),
        ({"name": "rain", "args": {"a": {}}}, "order: args"),
        ({"name": "rain", "id": 5}, "order: id"),
        ({"name": "rain", "dry_run": "yes"}, "order: dry_run"),
    ],
)
def test_what_is_no_order_is_refused(body: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        observer.read_order(body, Caller(label="eve", role=Role.VIEWER))


def test_an_order_is_its_callers() -> None:
    bob = Caller(label="bob", role=Role.OPERATOR)
    found = observer.read_order(json.loads('{"name": "rain", "id": "x", "args": {"ticks": 3}, "dry_run": true}'), bob)
    assert found == TownOrder(id="x", name="rain", args={"ticks": 3}, caller=bob, is_dry=True)


def test_a_town_has_the_roles_that_everything_has() -> None:
    """It cannot import them: nothing does below the contracts."""
    assert tuple(Role) == ROLES


# Alarms -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.alert)
def test_each_alert_fires_and_clears(limit: Any) -> None:
    watch = TownAlarms()
    edge = limit.above if limit.above is not None else limit.below
    side = 1 if limit.above is not None else -1
    assert watch.update({limit.kpi: edge}, 720) == []  # at the limit is not beyond it
    (raised,) = watch.update({limit.kpi: edge + side * 0.01}, 1440)
    assert raised.code == limit.alert and watch.active == [raised]
    assert (raised.severity is Severity.CRITICAL) == limit.is_critical
    if limit.clear != edge:
        assert watch.update({limit.kpi: (edge + limit.clear) / 2}, 2160) == []  # between the two nothing changes
    assert watch.update({limit.kpi: None}, 2880) == []  # nor where nothing was measured
    (cleared,) = watch.update({limit.kpi: limit.clear}, 3600)
    assert cleared.cleared_at == 3600 * 60 and watch.active == []


# Stages -------------------------------------------------------------------------------------------------------------

STAGES = ("needs", "work", "ties")


def test_two_green_windows_unlock_the_next_stage(log: Path) -> None:
    audit = AuditFile(log)
    assert unlocked_stages(log, 2, STAGES) == ("needs",)
    observer.note_window(audit, stage="needs", reasons=(), at=1.0)
    observer.note_window(audit, stage="needs", reasons=("exits: …",), at=2.0)
    observer.note_window(audit, stage="needs", reasons=(), at=3.0)
    assert unlocked_stages(log, 2, STAGES) == ("needs",)
    observer.note_window(audit, stage="needs", reasons=(), at=4.0)
    assert unlocked_stages(log, 2, STAGES) == ("needs", "work")


def test_a_stage_can_be_unlocked_by_hand_for_a_reason_that_is_kept(log: Path) -> None:
    audit = AuditFile(log)
    for stage, why, message in (("magic", "x", "is unknown"), ("ties", " ", "takes a reason")):
        with pytest.raises(BadInput, match=message):
            observer.override(audit, stage=stage, who="ann", why=why, order=STAGES, at=1.0)
    observer.override(audit, stage="ties", who="ann", why="a demonstration", order=STAGES, at=1.0)
    assert unlocked_stages(log, 2, STAGES) == STAGES
    assert read_audit(log)[0]["why"] == "a demonstration"


def test_the_shipped_log_is_what_the_default_town_earns(log: Path) -> None:
    """Every window of every stage again, bit by bit: whoever changes the town records it anew (town stages --earn)."""
    shipped = read_audit(SHIPPED)
    reached = observer.earn(
        AuditFile(log), lambda on: read_rules(unlocked=on), seed=shipped[0]["seed"], clock=lambda: 0.0
    )
    names = ("stage", "green", "reasons", "rules", "seed", "tick", "state")
    earned, recorded = ([{name: entry[name] for name in names} for entry in log] for log in (read_audit(log), shipped))
    assert earned == recorded and tuple(reached) == townlife.STAGES
    assert recorded[-1]["rules"] == read_rules().sha256  # so all of them are on, and the town is as its rules say


def test_a_stage_that_is_not_stable_ends_it(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "faults", lambda window: ("exits: too many",))
    assert observer.earn(AuditFile(log), lambda on: small(), seed=1, clock=lambda: 0.0) == ("needs",)
    assert len(read_audit(log)) == observer.MOST_WINDOWS and unlocked_stages(log, 2) == ("needs",)
    monkeypatch.setattr(townlife, "SHIPPED", log)
    assert read_rules()["stages"]["on"] == ["needs"]  # by default a town has only what its log allows
    assert [one["allowed"] for one in stage_table(log, small())] == [True, *[False] * 6]
    log.write_text(log.read_text().replace("too many", "none"))
    with pytest.raises(BadRecord, match="its seal is broken"):
        read_rules()
