"""Roles, ids, dry runs, the audit log, alarms and stages: for orders of any kind."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.commands import Forbidden, Role, Severity
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, NotFound, StoreError
from holdfast.operate.auth import Caller
from holdfast.workloads import townobserver as observer
from holdfast.workloads.townlife import LIMITS, ROLES
from holdfast.workloads.townobserver import AuditFile, StaticToken, TooMany, TownAlarms, TownCommandService, TownOrder
from tests.conftest import Clock

TORN = b'{"n": 1, "what": "b", "se'
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
    entries = observer.read_audit(log)
    assert [(entry["name"], entry["who"], "refused" in entry) for entry in entries] == [
        ("rain", "ann", False), ("kill", "ann", True), ("kill", "ann", True),
    ]  # fmt: skip
    assert entries[0]["args"] == {"ticks": 5} and entries[0]["at"] == clock.now


@pytest.mark.parametrize("harm", ["change", "remove", "swap", "junk"])
def test_a_log_that_was_tampered_with_is_refused(harm: str, log: Path) -> None:
    audit = AuditFile(log)
    for number in range(4):
        audit.add({"what": "order", "value": number})
    lines = log.read_text().splitlines()
    if harm == "change":
        lines[1] = lines[1].replace('"value": 1', '"value": 7')
    elif harm == "remove":
        del lines[1]
    elif harm == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[1] = "{}"
    log.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadRecord, match="line 2: its seal is broken"):
        AuditFile(log)


def test_several_that_write_to_one_log_go_on_from_one_another(log: Path) -> None:
    first, second = AuditFile(log), AuditFile(log)
    for audit in (first, second, first, second, AuditFile(log)):
        audit.add({"what": "a"})
    assert [entry["n"] for entry in observer.read_audit(log)] == [0, 1, 2, 3, 4]


def test_who_writes_waits_for_whoever_has_the_log(log: Path, tmp_path: Path) -> None:
    audit, other = AuditFile(log), AuditFile(tmp_path / "other.jsonl")
    for one in (audit, other):
        one.add({"what": "a"})
    other.add({"what": "b"})
    with ThreadPoolExecutor() as pool, log.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waiting = pool.submit(audit.add, {"what": "c"})
        wait([waiting], timeout=0.3)  # long enough to go wrong; to go right it need not even have begun
        file.write((tmp_path / "other.jsonl").read_bytes().splitlines(keepends=True)[1])
        file.flush()
        fcntl.flock(file, fcntl.LOCK_UN)
        assert waiting.result(60)["n"] == 2
    assert [entry["what"] for entry in observer.read_audit(log)] == ["a", "b", "c"]


@pytest.mark.parametrize("was_open", [True, False], ids=["open", "closed"])
def test_a_line_that_was_never_ended_is_kept_aside_and_told_of(was_open: bool, log: Path) -> None:
    audit = AuditFile(log)
    audit.add({"what": "a"})
    with log.open("ab") as file:
        file.write(TORN)
    assert [entry["what"] for entry in observer.read_audit(log)] == ["a"]
    (audit if was_open else AuditFile(log)).add({"what": "c"})
    entries = observer.read_audit(log)
    assert [entry["what"] for entry in entries] == ["a", "torn", "c"]
    assert log.with_name(entries[1]["kept"]).read_bytes() == TORN + b"\n" and entries[1]["bytes"] == len(TORN)


def test_an_entry_that_lacks_its_end_alone_stays_where_it_is(log: Path) -> None:
    AuditFile(log).add({"what": "a"})
    log.write_bytes(log.read_bytes().rstrip())
    AuditFile(log).add({"what": "b"})
    assert [entry["what"] for entry in observer.read_audit(log)] == ["a", "b"]


def test_a_log_that_others_shorten_or_that_cannot_be_written_is_one_line(log: Path) -> None:
    audit = AuditFile(log)
    audit.add({"what": "a"})
    log.write_bytes(b"")
    with pytest.raises(BadRecord, match="is shorter than it was"):
        audit.add({"what": "b"})
    log.unlink()
    log.mkdir()
    for write in (lambda: audit.add({"what": "b"}), lambda: AuditFile(log)):
        with pytest.raises(StoreError, match="audit .*: IsADirectoryError"):
            write()


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
    entries = observer.read_audit(log)[1:]
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
    assert len(world.done) == len(observer.read_audit(log)) == observer.BURST + 2


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
    assert observer.stages(log, STAGES, 2) == ("needs",)
    observer.note_window(audit, stage="needs", reasons=(), at=1.0)
    observer.note_window(audit, stage="needs", reasons=("exits: …",), at=2.0)
    observer.note_window(audit, stage="needs", reasons=(), at=3.0)
    assert observer.stages(log, STAGES, 2) == ("needs",)
    observer.note_window(audit, stage="needs", reasons=(), at=4.0)
    assert observer.stages(log, STAGES, 2) == ("needs", "work")


def test_a_stage_can_be_unlocked_by_hand_for_a_reason_that_is_kept(log: Path) -> None:
    audit = AuditFile(log)
    for stage, why, message in (("magic", "x", "is unknown"), ("ties", " ", "takes a reason")):
        with pytest.raises(BadInput, match=message):
            observer.override(audit, stage=stage, who="ann", why=why, order=STAGES, at=1.0)
    observer.override(audit, stage="ties", who="ann", why="a demonstration", order=STAGES, at=1.0)
    assert observer.stages(log, STAGES, 2) == STAGES
    assert observer.read_audit(log)[0]["why"] == "a demonstration"
