"""The desk of a town, which lives without a store: whether an order was given before, and what was ordered, in a file.

An order has an id: the same id again gives the same answer and does nothing. A dry run does nothing either. Everything
that changes something, or tried to, is in the audit log, each entry sealed with the one before it. Roles are
`contracts.access`', orders to what is in a store `control`'s; what an order does is the caller's business, and what the
numbers mean `town.health`'s.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.contracts.access import Forbidden, Role
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, HoldfastError
from holdfast.contracts.orders import LONGEST, Alert, Severity
from holdfast.operate import alerts
from holdfast.operate.auth import Caller
from holdfast.workloads.townlife import LIMITS, unlocked

REMEMBERED = 512  # orders whose answers are kept
TICK_S = 60.0  # a tick is a minute of the town's time, which is what alarms of the town go by


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A token that was given on the command line, and the role that it gives."""

    role: str
    token: str
    label: str = ""

    def __post_init__(self) -> None:
        if self.role not in list(Role):
            raise BadInput(f"role {self.role!r}", why="is unknown", remedy=f"one of {', '.join(Role)}")
        if len(self.token) < 8 or not (self.token.isascii() and self.token.isprintable()) or " " in self.token:
            raise BadInput(f"token of {self.role}", why="is too short, or cannot stand in a header",
                           remedy="use at least 8 letters and digits")  # fmt: skip


def role_of(badges: Iterable[Badge], given: str | None) -> Caller | None:
    """Whose token this is; all are compared, each in the same time, for people make up tokens that can be guessed."""
    found = None
    for badge in badges:
        if given is not None and hmac.compare_digest(badge.token.encode(), given.encode()):
            found = Caller(label=badge.label or badge.role, role=Role(badge.role))
    return found


# The audit log ------------------------------------------------------------------------------------------------------


class Audit:
    """A file of JSON lines, each with a seal over itself and the seal before."""

    def __init__(self, path: Path | None) -> None:
        self.path, self._last, self.count = path, "", 0
        if path is not None and path.exists():
            for entry in read_audit(path):
                self._last = entry["seal"]
                self.count += 1
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        sealed = {"n": self.count, **entry}
        sealed["seal"] = _seal(self._last, sealed)
        if self.path is not None:
            with self.path.open("ab") as file:
                file.write(json.dumps(sealed).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        self._last = sealed["seal"]
        self.count += 1
        return sealed


def _seal(last: str, entry: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in entry.items() if key != "seal"}, sort_keys=True)
    return hashlib.sha256(f"{last}\n{text}".encode()).hexdigest()


def read_audit(path: Path) -> list[dict[str, Any]]:
    """Every entry; refused where one was changed, removed or moved."""
    entries: list[dict[str, Any]] = []
    last = ""
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        entry = _sealed(line, last, number - 1)
        if entry is None:
            raise BadRecord(f"{path}: line {number}", why="its seal is broken", remedy="see who has changed the file")
        last = entry["seal"]
        entries.append(entry)
    return entries


def _sealed(line: str, last: str, number: int) -> dict[str, Any] | None:
    """The entry, where it is the next one after `last` and as it was written."""
    try:
        entry = json.loads(line)
        return entry if entry["seal"] == _seal(last, entry) and entry["n"] == number else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


# Orders --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    id: str
    name: str
    caller: Caller
    args: Mapping[str, Any] = field(default_factory=dict)
    is_dry: bool = False


def read_order(body: Any, caller: Caller) -> Order:
    """`{"id": "…", "name": "rain", "args": {…}, "dry_run": false}`: who and which role are the token's to say."""
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise BadInput("order: name", why="is missing", remedy="send name, args and id")
    unknown = sorted(set(body) - {"id", "name", "args", "dry_run"})
    if unknown:
        raise BadInput(f"order: {unknown[0][:40]}", why="is unknown", remedy="send id, name, args, dry_run")
    args, identity = body.get("args", {}), body.get("id", "")
    if not isinstance(args, dict) or not all(isinstance(v, str | int | float | bool) for v in args.values()):
        raise BadInput("order: args", why="must be names with plain values")
    if not isinstance(identity, str) or len(identity) > LONGEST:
        raise BadInput("order: id", why=f"must be a text of at most {LONGEST} letters")
    if not isinstance(body.get("dry_run", False), bool):
        raise BadInput("order: dry_run", why="must be true or false")
    return Order(id=identity, name=body["name"], caller=caller, args=args, is_dry=body.get("dry_run", False))


class Desk:
    """Takes orders: checks the role, does each id once, and writes down what was done or refused."""

    def __init__(
        self,
        *,
        needs: Callable[[str], str],  # the role that an order needs; refuses what is unknown
        look: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],  # what it would come to
        do: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],
        audit: Audit,
        clock: Callable[[], float],
    ) -> None:
        self._needs, self._look, self._do, self._audit, self._clock = needs, look, do, audit, clock
        self._answers: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()

    def take(self, order: Order) -> dict[str, Any]:
        wanted, role = Role(self._needs(order.name)), order.caller.role
        if not role.may(wanted):
            error = Forbidden(order.name, why=f"is for {wanted}s, and this is a {role}", remedy="use their token")
            self._write(order, refused=str(error))
            raise error
        if order.is_dry:
            return {"id": order.id, "name": order.name, "dry_run": True, **self._look(order.name, order.args)}
        if wanted is Role.VIEWER:
            return {"id": order.id, "name": order.name, **self._do(order.name, order.args)}
        if not order.id:
            raise BadInput(f"{order.name}: id", why="is missing", remedy="an order that changes something has an id")
        asked = json.dumps([order.name, dict(order.args)], sort_keys=True)
        if order.id in self._answers:
            before, answer = self._answers[order.id]
            if before != asked:
                raise Conflict(f"order {order.id}", why="was another order", remedy="give each order its own id")
            return answer | {"again": True}
        try:
            answer = {"id": order.id, "name": order.name, **self._do(order.name, order.args)}
        except HoldfastError as error:
            self._write(order, refused=str(error))
            raise
        self._answers[order.id] = (asked, answer)
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        self._write(order, said=answer.get("said", ""))
        return answer

    def _write(self, order: Order, **more: str) -> None:
        told = {"what": "order", "id": order.id, "name": order.name, "args": dict(order.args)}
        self._audit.add({"at": self._clock(), **told, "who": order.caller.label, "role": order.caller.role, **more})


# Alarms of a town ---------------------------------------------------------------------------------------------------

RULES: Mapping[str, alerts.Rule] = {
    limit.kpi: alerts.Rule(
        name=limit.alert,
        fires_above=limit.above,
        fires_below=limit.below,
        clears_at=limit.clear,
        hold_s=limit.hold * TICK_S,
        severity=Severity.CRITICAL if limit.is_critical else Severity.WARNING,
    )
    for limit in LIMITS
}


class Watch:
    """The alarms of one town: what stands, and what has just been raised or cleared."""

    def __init__(self, run: str | None = None) -> None:
        self._run, self._states = run, dict.fromkeys(RULES, alerts.QUIET)

    def look(self, numbers: Mapping[str, float | None], tick: int) -> list[Alert]:
        told = []
        for kpi, rule in RULES.items():
            now = tick * TICK_S
            self._states[kpi], alert = alerts.step(rule, self._states[kpi], numbers.get(kpi), now, run=self._run)
            if alert is not None:
                told.append(alert)
        return told

    @property
    def standing(self) -> list[Alert]:
        return [state.fired for state in self._states.values() if state.fired is not None]


# Stages ---------------------------------------------------------------------------------------------------------------


def note_window(audit: Audit, *, stage: str, reasons: Sequence[str], at: float) -> None:
    """A window of a town whose last stage was this one: green where there is nothing against it."""
    audit.add({"at": at, "what": "window", "stage": stage, "green": not reasons, "reasons": list(reasons)})


def override(audit: Audit, *, stage: str, who: str, why: str, order: Sequence[str], at: float) -> None:
    if stage not in order:
        raise BadInput(f"stage {stage!r}", why="is unknown", remedy=f"one of {', '.join(order)}")
    if not why.strip():
        raise BadInput(f"stage {stage}", why="to unlock it by hand takes a reason", remedy="give --why")
    audit.add({"at": at, "what": "override", "stage": stage, "who": who, "why": why})


def stages(path: Path, order: Sequence[str], needed: int) -> tuple[str, ...]:
    """The stages that the log unlocks."""
    entries = read_audit(path) if path.exists() else []
    windows = [(entry["stage"], entry["green"]) for entry in entries if entry["what"] == "window"]
    forced = [entry["stage"] for entry in entries if entry["what"] == "override"]
    return unlocked(order, windows, needed, forced)
