"""Commands to a town, which has no store: tokens, repeated commands, alarms, stages, and a long run of it.

An order has an id: the same id again returns the same answer and does nothing. A dry run does nothing either. The audit
file (`townaudit`) has every change and every refusal. The caller decides what an order does; `town.health` defines the
figures. A soak runs one town for very long and reports memory, departures and alerts.
"""

from __future__ import annotations

import hmac
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import ceil
from typing import Any

from holdfast.contracts.commands import LONGEST, Alert, Forbidden, Role, Severity
from holdfast.contracts.errors import BadInput, Conflict, HoldfastError
from holdfast.contracts.limits import RateLimiter, RefusalLimiter, check_token
from holdfast.operate import alerts
from holdfast.operate.auth import Caller
from holdfast.workloads.townaudit import AuditFile
from holdfast.workloads.townlife import LIMITS, STAGES, Left, Life, Rules, faults

REMEMBERED = 512  # orders whose answers are kept
PER_S, BURST = 10.0, 120.0  # orders of one caller: more than anybody clicks
MOST_KEPT = 2000  # letters of the args of a refused order, which may be anything
TICK_S = 60.0  # a tick is a minute of the town's time, which is what alarms of the town go by


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticToken:
    """A token from the command line, and its role."""

    role: str
    token: str
    label: str = ""

    def __post_init__(self) -> None:
        if self.role not in list(Role):
            raise BadInput(f"role {self.role!r}", why="is unknown", remedy=f"one of {', '.join(Role)}")
        check_token(self.token, f"token of {self.role}")


def role_of(badges: Iterable[StaticToken], given: str | None) -> Caller | None:
    """The caller of this token. All tokens are compared, in constant time, because people choose guessable ones."""
    caller = None
    for badge in badges:
        if given is not None and hmac.compare_digest(badge.token.encode(), given.encode()):
            caller = Caller(label=badge.label or badge.role, role=Role(badge.role))
    return caller


# Orders --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TownOrder:
    id: str
    name: str
    caller: Caller
    args: Mapping[str, Any] = field(default_factory=dict)
    is_dry: bool = False


def read_order(body: Any, caller: Caller) -> TownOrder:
    """`{"id": "…", "name": "rain", "args": {…}, "dry_run": false}`; the token decides caller and role."""
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
    return TownOrder(id=identity, name=body["name"], caller=caller, args=args, is_dry=body.get("dry_run", False))


class TooMany(HoldfastError):
    """The caller sends orders faster than the limit; nothing was done."""

    def __init__(self, what: str, *, why: str = "", remedy: str = "", wait_s: float = 0.0) -> None:
        super().__init__(what, why=why, remedy=remedy)
        self.wait_s = wait_s  # until the next may pass


class TownCommandService:
    """Takes orders: checks the role, does each id once, and records what was done or refused."""

    def __init__(
        self,
        *,
        needs: Callable[[str], str],  # the role that an order needs; refuses what is unknown
        look: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],  # what it would come to
        do: Callable[[str, Mapping[str, Any]], Mapping[str, Any]],
        audit: AuditFile,
        clock: Callable[[], float],
    ) -> None:
        self._needs, self._look, self._do, self._audit, self._clock = needs, look, do, audit, clock
        self._limit, self._refusals = RateLimiter(PER_S, BURST, clock), RefusalLimiter(clock)
        self._answers: OrderedDict[str, tuple[str, dict[str, Any]]] = OrderedDict()

    def hear(self, body: Any, caller: Caller) -> dict[str, Any]:
        """Takes an order as it was sent. Rate-limited orders are not recorded, or they could fill the file."""
        wait_s = self._limit.take(caller.token_id or caller.label)
        if wait_s:
            raise TooMany("order", why="too many orders", remedy=f"try again in {ceil(wait_s)} s", wait_s=wait_s)
        try:
            order = read_order(body, caller)
        except BadInput as error:
            self._refuse(TownOrder(id="", name="?", caller=caller), error)
            raise
        return self.take(order)

    def take(self, order: TownOrder) -> dict[str, Any]:
        is_look = False
        try:
            wanted, role = Role(self._needs(order.name)), order.caller.role
            if not role.may(wanted):
                why = f"is for {wanted}s, and this is a {role}"
                raise Forbidden(order.name, why=why, remedy="use their token")
            is_look = order.is_dry or wanted is Role.VIEWER
            known = None if is_look else self._known(order)
            if known is not None:
                return known | {"again": True}
            payload = (self._look if order.is_dry else self._do)(order.name, order.args)
        except HoldfastError as error:
            if not is_look:
                self._refuse(order, error)
            raise
        answer = {"id": order.id, "name": order.name, **({"dry_run": True} if order.is_dry else {}), **payload}
        if not is_look:
            self._keep(order, answer)
        return answer

    def _known(self, order: TownOrder) -> dict[str, Any] | None:
        """The earlier answer to the same order."""
        if not order.id:
            raise BadInput(f"{order.name}: id", why="is missing", remedy="an order that changes something has an id")
        before, answer = self._answers.get(order.id, (None, None))
        if before is not None and before != _asked(order):
            raise Conflict(f"order {order.id}", why="was another order", remedy="give each order its own id")
        return answer

    def _keep(self, order: TownOrder, answer: dict[str, Any]) -> None:
        self._answers[order.id] = (_asked(order), answer)
        while len(self._answers) > REMEMBERED:
            self._answers.popitem(last=False)
        self._write(order, said=answer.get("said", ""))

    def _refuse(self, order: TownOrder, error: HoldfastError) -> None:
        if (why := self._refusals.record(order.caller.label, str(error))) is not None:
            self._write(order, refused=why)

    def _write(self, order: TownOrder, **more: str) -> None:
        args = dict(order.args)
        if "refused" in more and len(json.dumps(args)) > MOST_KEPT:
            args = {"…": f"{len(args)} that are not kept"}
        payload = {"what": "order", "id": order.id, "name": order.name[:LONGEST], "args": args}
        self._audit.add({"at": self._clock(), **payload, "who": order.caller.label, "role": order.caller.role, **more})


def _asked(order: TownOrder) -> str:
    return json.dumps([order.name, dict(order.args)], sort_keys=True)


# Alarms of a town ---------------------------------------------------------------------------------------------------

RULES: Mapping[str, alerts.AlarmRule] = {
    limit.kpi: alerts.AlarmRule(
        name=limit.alert,
        fires_above=limit.above,
        fires_below=limit.below,
        clears_at=limit.clear,
        hold_s=limit.hold * TICK_S,
        severity=Severity.CRITICAL if limit.is_critical else Severity.WARNING,
    )
    for limit in LIMITS
}


class TownAlarms:
    """The alarms of one town: the active ones, and those just raised or cleared."""

    def __init__(self, run: str | None = None) -> None:
        self._run, self._states = run, dict.fromkeys(RULES, alerts.QUIET)

    def update(self, numbers: Mapping[str, float | None], tick: int) -> list[Alert]:
        news = []
        for kpi, rule in RULES.items():
            now = tick * TICK_S
            self._states[kpi], alert = alerts.step(rule, self._states[kpi], numbers.get(kpi), now, run=self._run)
            if alert is not None:
                news.append(alert)
        return news

    @property
    def active(self) -> list[Alert]:
        return [state.fired for state in self._states.values() if state.fired is not None]


# Stages ---------------------------------------------------------------------------------------------------------------


def note_window(audit: AuditFile, *, stage: str, reasons: Sequence[str], at: float, **more: Any) -> None:
    """Records a window of this stage; it is green when there are no reasons against it."""
    audit.add({"at": at, "what": "window", "stage": stage, "green": not reasons, "reasons": list(reasons), **more})


def override(audit: AuditFile, *, stage: str, who: str, why: str, order: Sequence[str], at: float) -> None:
    if stage not in order:
        raise BadInput(f"stage {stage!r}", why="is unknown", remedy=f"one of {', '.join(order)}")
    if not why.strip():
        raise BadInput(f"stage {stage}", why="to unlock it by hand takes a reason", remedy="give --why")
    audit.add({"at": at, "what": "override", "stage": stage, "who": who, "why": why})


MOST_WINDOWS = 6  # that a stage gets to show that it is stable


def earn(
    audit: AuditFile,
    rules_with: Callable[[Sequence[str]], Rules],  # the rules with these stages on
    *,
    seed: int,
    clock: Callable[[], float],
    each: Callable[[], None] = lambda: None,
) -> Sequence[str]:
    """Runs the town stage by stage, each from its first morning with all stages up to it, until that one has had its
    green windows in a row; writes every window down. The stages that were reached: one whose windows are not green ends
    it."""
    for place, stage in enumerate(STAGES):
        rules = rules_with(STAGES[: place + 1])
        life, greens = Life(rules, seed=seed), 0
        for _ in range(MOST_WINDOWS):
            window = None
            while window is None:
                window = life.step().window
                each()
            reasons = faults(window)
            more = {"rules": rules.sha256, "seed": seed, "tick": life.tick, "state": life.env.state.sha256()}
            note_window(audit, stage=stage, reasons=reasons, at=clock(), **more)
            greens = 0 if reasons else greens + 1
            if greens == int(rules["stages"]["green_windows"]):
                break
        else:
            return STAGES[: place + 1]
    return STAGES


# A long run ---------------------------------------------------------------------------------------------------------

FRAME_EVERY = 60  # ticks: as if somebody looked now and then


@dataclass(frozen=True, slots=True, kw_only=True)
class SoakSample:
    """The process and the town at one tick."""

    tick: int
    seconds: float  # since the soak began
    memory_mb: float  # resident
    here: int  # residents
    state: str  # hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    seed: int
    rules: str  # hash
    ticks: int
    days: float
    looks: tuple[SoakSample, ...]
    grown_mb: float  # since the second look: what is loaded and compiled comes before it
    lost_events: int
    windows: int
    green: int  # windows with nothing against them
    alerts: tuple[str, ...]  # raised and cleared, in order
    faults: tuple[str, ...]  # of the last window
    left_for: Mapping[str, int]  # how many left, by cause
    last_left: tuple[Left, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)


def soak(
    life: Life,
    ticks: int,
    *,
    looks: int,
    memory_mb: Callable[[], float],
    clock: Callable[[], float],
    each: Callable[[], None] = lambda: None,
) -> Soak:
    """Runs so many ticks, or until Ctrl-C, and reports either way."""
    began, watch = clock(), TownAlarms()
    seen: list[SoakSample] = []
    alerts: list[str] = []
    windows = green = 0

    def look() -> None:
        state, here = life.env.state, int((life.env.state.people["alive"][0] == 1).sum())
        seconds, name = round(clock() - began, 1), state.sha256()
        seen.append(SoakSample(tick=life.tick, seconds=seconds, memory_mb=memory_mb(), here=here, state=name))

    try:
        for done in range(1, ticks + 1):
            moment = life.step()
            if done % FRAME_EVERY == 0:
                life.frame()
            if moment.window is not None:
                windows, green = windows + 1, green + (not faults(moment.window))
                alerts += [f"tick {moment.tick}: {alert.message}" for alert in watch.update(moment.window, moment.tick)]
            if done % max(1, ticks // looks) == 0:
                look()
            each()
    except KeyboardInterrupt:
        pass
    if not seen or seen[-1].tick != life.tick:
        look()
    return Soak(
        seed=life.seed,
        rules=life.rules.sha256,
        ticks=life.tick,
        days=round(life.tick / life.rules["ticks_per_day"], 1),
        looks=tuple(seen),
        grown_mb=round(seen[-1].memory_mb - seen[min(1, len(seen) - 1)].memory_mb, 1),
        lost_events=life.lost,
        windows=windows,
        green=green,
        alerts=tuple(alerts),
        faults=faults(life.kpis),
        left_for=dict(sorted(life.left_for.items())),
        last_left=tuple(life.left),
    )


def page(soak: Soak, *, command: str, date: str, machine: str) -> str:
    """The report, in Markdown."""
    last, rules = soak.looks[-1], soak.rules[:16]
    left = ", ".join(f"{count} × {cause}" for cause, count in soak.left_for.items()) or "nobody"
    rows = [
        f"| {look.tick:,} | {look.seconds:,.0f} | {look.memory_mb:.1f} | {look.here} | `{look.state[:16]}` |"
        for look in soak.looks
    ]
    lasts = [f"- tick {left.tick:,}: {left.name}, after {left.days:g} days ({left.cause})" for left in soak.last_left]
    return "\n".join(
        (
            "# A long life of the town",
            "",
            f"`{command}`, {date}, {machine}. This page is written by the command itself (`--report`).",
            "",
            f"- {soak.ticks:,} ticks ({soak.days:,} days), seed {soak.seed}, rules `{rules}`: {last.seconds:,.0f} s.",
            f"- Memory: {last.memory_mb:.1f} MB at the end, {soak.grown_mb:+.1f} MB since the second look.",
            f"- State at the end: `{last.state}`.",
            f"- Residents at the end: {last.here}. Left: {left}.",
            f"- Windows of half a day: {soak.windows:,}; green: {soak.green:,}; events lost: {soak.lost_events}.",
            f"- Alerts: {len(soak.alerts) or 'none'}.",
            *(f"  - {alert}" for alert in soak.alerts[:20]),
            *((f"  - … and {len(soak.alerts) - 20} more",) if len(soak.alerts) > 20 else ()),
            "",
            "| tick | s | memory, MB | residents | state |",
            "|---:|---:|---:|---:|---|",
            *rows,
            *(("", "The last who left:", "", *lasts) if lasts else ()),
            "",
        )
    )
