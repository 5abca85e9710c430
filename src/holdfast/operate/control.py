"""Operator commands: who may give which, what each would change, and its execution, once. The command line, HTTP and
MCP all call this module.

A command only records the desired state; the process that it concerns reads that and acts. Every command and every
refusal is in the ledger. A plan is made from the store's current state; the action checks again in its transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.contracts.commands import LONGEST, LONGEST_WHY, WANTS, Alert, Command, Forbidden, Role, check_why, guarded
from holdfast.contracts.errors import (
    BadInput,
    BadRecord,
    Conflict,
    HoldfastError,
    IllegalMove,
    NotFound,
    Refused,
    StoreCorrupt,
)
from holdfast.contracts.evidence import Reason
from holdfast.contracts.limits import RefusalLimiter
from holdfast.contracts.records import encode
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import Rollout, RolloutState
from holdfast.contracts.run import DesiredState, RunRecord, RunState
from holdfast.operate import canary_controller, lifecycle
from holdfast.operate.auth import Caller
from holdfast.operate.lifecycle import SILENT_S
from holdfast.store.artifacts import locked
from holdfast.store.commands import CommandResult
from holdfast.store.queue import ordered
from holdfast.store.releases import BY_HAND
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, find_policy, find_rollout

Facts = Mapping[str, Any]
REFUSALS = (Forbidden, Refused, NotFound, BadInput)  # any other error is a failure and not an answer
LONGEST_NAME = 500  # letters
FIELDS = ("id", "action", "subject", "args", "why", "dry_run")
NOTED = {"id": LONGEST, "action": LONGEST_NAME, "subject": LONGEST_NAME, "why": LONGEST_WHY}
LOCK = "orders.lock"  # beside the store
ALONE = frozenset({"recover"})  # these have transactions of their own: two of one command would collide
SWEPT = 20_000  # rollouts that one command cancels; the driver of the run cancels the rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """An optional argument of a command."""

    help: str
    choices: tuple[str, ...] = ()  # none: any text; else the first is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandKind:
    """A command: its least role and the kind of its subject."""

    name: str
    role: Role
    subject: str  # "run", "rollout", "policy", "flag", "alert"
    help: str
    args: Mapping[str, Argument] = field(default_factory=dict)


MODE = Argument(help="drain lets running rollouts finish; freeze hands them back.", choices=("drain", "freeze"))
TO = Argument(help="The version to go back to; else the last one known to be good.")
ACTIONS: Mapping[str, CommandKind] = {
    name: CommandKind(name=name, role=Role.OPERATOR, subject=subject, help=text, args=args)
    for name, subject, text, args in (
        ("pause", "run", "No new rollouts start until it is resumed.", {"mode": MODE}),
        ("resume", "run", "It continues.", {}),
        ("drain", "run", "No new rollouts start; the run stops when the running ones are done.", {}),
        ("cancel", "run", "It ends for good; running rollouts are interrupted.", {}),
        ("recover", "run", "Its driver died: its rollouts go back to the queue.", {}),
        ("requeue", "rollout", "A failed, dead or cancelled rollout gets a fresh set of attempts.", {}),
        ("cancel_rollout", "rollout", "One rollout ends, done or not.", {}),
        ("rollback", "policy", "Takes the canary back, or else the live version.", {"to": TO}),
        ("acknowledge", "alert", "Records who knows about it; it stays active until its cause is gone.", {}),
        ("kill", "flag", "The kill switch: off for everybody, until it is revived.", {}),
    )
}


# Reading and executing -----------------------------------------------------------------------------------------------


def answer(
    store: Store, body: Any, caller: Caller, *, now: float, refusals: RefusalLimiter | None = None
) -> dict[str, Any]:
    """Reads a command and executes it; the ledger notes one that cannot be read.

    `refusals` says how many of a caller's refusals are noted; without it, all of them.
    """
    try:
        command, is_dry = read(body, caller, now=now)
    except BadInput as error:
        if not isinstance(body, dict) or body.get("dry_run") is not True:
            note(store, body, error, who=caller.label, role=caller.role, now=now, refusals=refusals)
        raise
    return take(store, command, caller, is_dry=is_dry, refusals=refusals)


def note(
    store: Store,
    body: Any,
    error: HoldfastError,
    *,
    who: str,
    role: str,
    now: float,
    refusals: RefusalLimiter | None = None,
) -> None:
    """Records a refused request that is no valid command: its readable parts, and the reason."""
    given = body if isinstance(body, dict) else {}
    words: dict[str, Any] = {}
    for name, most in NOTED.items():
        letters = value[:most] if isinstance(value := given.get(name), str) else ""
        words[name] = "".join(letter if letter.isprintable() else "\ufffd" for letter in letters).strip() or "?"
    command = Command(**words, who=who, at=now)
    _refuse(store, command, role, error, refusals)


def _refuse(store: Store, command: Command, role: str, error: HoldfastError, refusals: RefusalLimiter | None) -> None:
    """Writes a refusal to the ledger, unless the caller has filled it with others."""
    why: str | None = str(error)[:LONGEST_WHY]
    if refusals is not None:
        why = refusals.record(command.who, str(error)[:LONGEST_WHY])
    if why is None:
        return
    if sum(len(name) + len(str(value)) for name, value in command.args.items()) > LONGEST_WHY:
        command = replace(command, args={"…": f"{len(command.args)} that are not kept"})
    kept = replace(command, why=command.why[:LONGEST_WHY])
    store.commands.refused(kept, role, why, run=_run_of(store, command)).result()


def read(body: Any, caller: Caller, *, now: float) -> tuple[Command, bool]:
    """`{"id", "action", "subject", "args", "why", "dry_run"}` as a command, and whether it is a dry run.

    The caller's token says who gives it.
    """
    remedy = f"send {', '.join(FIELDS)}"
    if not isinstance(body, dict):
        raise BadInput("order", why="is not a JSON object", remedy=remedy)
    if unknown := sorted(set(body) - set(FIELDS)):
        raise BadInput(f"order: {unknown[0][:40]!r}", why="is unknown", remedy=remedy)
    is_dry, args = body.get("dry_run", False), body.get("args", {})
    if not isinstance(is_dry, bool):
        raise BadInput("order: dry_run", why="must be true or false")
    if not isinstance(args, dict) or not all(map(_is_plain, args.values())):
        raise BadInput("order: args", why="must be names with texts")
    words = {name: _text(body, name, is_dry) for name in ("id", "action", "subject", "why")}
    try:
        return Command(**words, who=caller.label, at=now, args=args), is_dry
    except BadRecord as error:  # the caller's input, and not a stored record
        raise BadInput(error.what, why=error.why, remedy=error.remedy) from None


def _text(body: Facts, name: str, is_dry: bool) -> str:
    """A text field; a dry run needs neither an id nor a reason."""
    found = body.get(name, "dry run" if is_dry and name in ("id", "why") else None)
    if not isinstance(found, str) or not found.strip():
        raise BadInput(f"order: {name}", why="is missing, or not a text", remedy=f"send {', '.join(FIELDS)}")
    if name == "why":  # a reason may have several lines
        check_why("order", found)
    elif not _is_plain(found):
        raise BadInput(f"order: {name}", why="is too long, or has letters in it that cannot be seen")
    return found


def _is_plain(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST_NAME


def preview(store: Store, command: Command) -> dict[str, Any]:
    """The state before and after, what is affected, and why the command would be refused, if it would."""
    payload: dict[str, Any] = {"action": command.action, "subject": command.subject, "kind": None}
    try:
        payload["kind"] = _action(command).subject
        plan = _plan(store, command)
        return payload | _planned(plan) | {"affected": dict(plan.affected()), "refused": None}
    except REFUSALS as error:
        nothing: dict[str, Any] = {"before": None, "after": None, "changes": False, "affected": {}}
        return payload | nothing | {"said": str(error), "refused": refusal(error)}


def take(
    store: Store,
    command: Command,
    caller: Caller,
    *,
    is_dry: bool = False,
    refusals: RefusalLimiter | None = None,
) -> dict[str, Any]:
    """Executes the command once, or refuses it; the ledger has either. A dry run changes nothing.

    The answer has `id`, `action`, `subject` in full, `before`, `after`, `changes`, `again` (it was executed before),
    `said`, and more by action.
    """
    command = replace(command, who=caller.label)
    try:
        action = ACTIONS.get(command.action)
        if action is not None and not caller.role.may(action.role):
            why = f"is for {action.role}s, and {caller.label} is a {caller.role}"
            raise Forbidden(command.action, why=why, remedy=f"use the token of one who is {action.role}")
        if is_dry:
            return {"id": command.id, "dry_run": True, **preview(store, command)}
        check_why("order", command.why)
        _action(command)
        with locked(store.folder / LOCK) if command.action in ALONE else nullcontext():
            result, then = _execute(store, command, caller)
    except REFUSALS as error:
        if not is_dry:
            with suppress(Conflict):  # the same command was faster elsewhere: its effect is why this one is refused
                if (before := store.commands.known(command)) is not None:
                    return {**before.body, "again": True}
        _refuse(store, command, caller.role, error, refusals)
        raise
    return {**result.body, "again": result.again, **({} if result.again else then())}


def _execute(store: Store, command: Command, caller: Caller) -> tuple[CommandResult, Callable[[], Facts]]:
    """The answer, and what is done after it."""
    before = store.commands.known(command)
    if before is not None:
        return before, dict
    plan = _plan(store, command)
    payload = {"id": command.id, "action": command.action, **_planned(plan), **plan.first()}
    result = store.commands.once(command, caller.role, lambda tx: {**payload, **plan.act(tx)}, run=plan.run).result()
    return result, plan.then


def refusal(error: HoldfastError) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": error.what, "why": error.why, "remedy": error.remedy}


def _run_of(store: Store, command: Command) -> str | None:
    """The run that a command is about, if there is one."""
    if command.action in ACTIONS and ACTIONS[command.action].subject in ("run", "rollout"):
        with suppress(NotFound):
            return store.runs.get(command.subject.partition("/")[0]).id
    return None


def _action(command: Command) -> CommandKind:
    """The kind of the command, after a check of its arguments."""
    action = ACTIONS.get(command.action)
    if action is None:
        remedy = f"there are {', '.join(ACTIONS)}"
        raise BadInput(f"order {command.action[:40]!r}", why="is unknown", remedy=remedy)
    for name, value in command.args.items():
        if name not in action.args:
            remedy = f"there is {', '.join(action.args) or 'none'}"
            raise BadInput(f"{action.name}: {name[:40]!r}", why="is not an argument of it", remedy=remedy)
        if (choices := action.args[name].choices) and value not in choices:
            remedy = f"use {', '.join(choices)}"
            raise BadInput(f"{action.name}: {name} = {value!s:.40}", why="is unknown", remedy=remedy)
    return action


# Plans ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlan:
    """The effect of a command, before it is executed."""

    subject: str  # in full
    run: str | None = None
    before: Facts
    after: Facts
    is_change: bool = True  # False: it is so already, and is noted again
    affected: Callable[[], Facts] = dict  # counted only for a dry run
    first: Callable[[], Facts] = dict  # has transactions of its own, and may be repeated
    act: Callable[[Transaction], Facts] = lambda tx: {}
    then: Callable[[], Facts] = dict  # others do it, where it is interrupted


def _plan(store: Store, command: Command) -> ActionPlan:
    return PLANS[ACTIONS[command.action].subject](store, command)


def _planned(plan: ActionPlan) -> dict[str, Any]:
    now, was = _words(plan.after), _words(plan.before)
    message = "; ".join(f"{name} {now[name]}, was {was[name]}" for name in now if now[name] != was[name])
    if not plan.is_change:
        message = f"{', '.join(now.values())}, as before"
    states = {"before": dict(plan.before), "after": dict(plan.after), "changes": plan.is_change}
    return {"subject": plan.subject, **states, "said": f"{plan.subject}: {message}"}


def _words(told: Facts) -> dict[str, str]:
    plain = {None: "nobody", True: "yes", False: "no"}
    return {name.replace("_", " "): plain.get(value, str(value)) for name, value in told.items()}


def _of_run(store: Store, command: Command) -> ActionPlan:
    run = store.runs.get(command.subject)
    if command.action == "recover":
        return _recovery(store, command, run)
    is_frozen = command.action == "pause" and command.args.get("mode") == "freeze"
    action = "freeze" if is_frozen else command.action
    letter, wanted = guarded(run.id, run.state, run.wanted, action), WANTS[action]

    def act(tx: Transaction) -> Facts:
        after = store.runs.want_in(tx, run.id, wanted, who=command.who, why=command.why, now=command.at)
        return {"after": _state(after)}  # as of this transaction: others may have given commands meanwhile

    is_ended = wanted is DesiredState.CANCELLED and _is_silent(run, command.at)
    return ActionPlan(
        subject=run.id,
        run=run.id,
        before=_state(run),
        after={"state": str(RunState.CANCELLED if is_ended else run.state), "wanted": str(wanted)},
        is_change=letter == "+",
        affected=lambda: _counts(store, run.id),
        act=act,
        then=(lambda: _interrupt(store, run, command)) if wanted is DesiredState.CANCELLED else dict,
    )


def _state(run: RunRecord) -> dict[str, Any]:
    return {"state": str(run.state), "wanted": str(run.wanted)}


def _counts(store: Store, run: str) -> dict[str, int]:
    counts = store.views.counts(run)
    waiting = counts[RolloutState.QUEUING] + counts[RolloutState.REQUEUING]
    return {"running": counts[RolloutState.RUNNING], "waiting": waiting}


def _is_silent(run: RunRecord, now: float) -> bool:
    """Whether it is running by the record, without a driver."""
    return run.state is RunState.RUNNING and abs(now - run.beat_at) > SILENT_S


def _interrupt(store: Store, run: RunRecord, command: Command) -> dict[str, Any]:
    """Cancels the open rollouts, and ends a run that has no driver."""
    is_silent = _is_silent(run, command.at)
    is_driven = run.state is RunState.RUNNING and not is_silent  # its driver cancels the rest
    cancelled = 0
    while n := store.queue.cancel_open(run.id, now=command.at, why=command.why).result():
        cancelled += n
        if is_driven and cancelled >= SWEPT:
            break
    payload: dict[str, Any] = {"cancelled": cancelled}
    if is_silent:
        ended = store.runs.end(run.id, RunState.CANCELLED, who=command.who, now=command.at, error=command.why).result()
        payload["after"] = _state(ended)
    return payload


def _recovery(store: Store, command: Command, run: RunRecord) -> ActionPlan:
    is_change = guarded(run.id, run.state, run.wanted, "recover") == "?"
    after = _state(run)
    if is_change:
        lifecycle.check_dead(run, now=command.at)
        if run.wanted is DesiredState.CANCELLED:
            after["state"] = str(RunState.CANCELLED)
        else:  # whoever resumes it continues, whatever the dead driver was told
            after = {"state": str(RunState.FAILED), "wanted": str(DesiredState.RUNNING)}

    def first() -> Facts:
        with _unrecoverable():
            report = lifecycle.recover(store, run.id, who=command.who, why=command.why, now=command.at)
        return {"after": _state(store.runs.get(run.id)), "recovery": encode(report)}

    def affected() -> Facts:
        with _unrecoverable():
            point = lifecycle.last_sound(store, run)
        kept = None if point.checkpoint is None else point.checkpoint.id
        return {**_counts(store, run.id), "checkpoint": kept, "checkpoint_source": point.source}

    return ActionPlan(
        subject=run.id, run=run.id, before=_state(run), after=after, is_change=is_change, affected=affected, first=first
    )


@contextmanager
def _unrecoverable() -> Iterator[None]:
    """Damaged checkpoints refuse the command; the store itself is sound."""
    try:
        yield
    except StoreCorrupt as error:
        raise Refused(error.what, why=error.why, remedy=error.remedy) from error


def _of_rollout(store: Store, command: Command) -> ActionPlan:
    rollout = find_rollout(store, command.subject)
    run, is_requeue, notes = store.runs.get(rollout.run), command.action == "requeue", {}
    if is_requeue and run.wanted is DesiredState.CANCELLED:
        notes["note"] = "its run was cancelled for good: nobody claims it"
    elif is_requeue and run.state is not RunState.RUNNING:
        until = "" if (resume := lifecycle.command_of(run)) is None else f" until '{resume}'"
        notes["note"] = f"its run is {run.state}: nobody claims it{until}"

    def act(tx: Transaction) -> Facts:
        if is_requeue:
            _check_step(rollout, store.steps.is_recorded_in(tx, rollout.run, rollout.step))
            moved = store.queue.requeue_in(tx, rollout.id, now=command.at)
        else:
            moved = store.queue.cancel_in(tx, rollout.id, now=command.at, why=command.why)
        return {"after": {"status": str(moved.status)}, **notes}

    to = RolloutState.QUEUING if is_requeue else RolloutState.CANCELLED
    ordered(rollout.id, rollout.status, to)
    if is_requeue and rollout.step is not None:
        _check_step(rollout, store.steps.get(rollout.run, rollout.step) is not None)
    return ActionPlan(
        subject=rollout.id,
        run=rollout.run,
        before={"status": str(rollout.status)},
        after={"status": str(to)},
        affected=lambda: {"attempts": rollout.attempt_count, "reason": rollout.reason, **notes},
        act=act,
    )


def _check_step(rollout: Rollout, is_recorded: bool) -> None:
    """A rollout of a recorded step would never be claimed, and be cancelled later."""
    if is_recorded:
        why = f"its step {rollout.step} is recorded, and a recorded step is not run again"
        raise IllegalMove(f"rollout {rollout.id}", why=why, remedy="begin a new run with its task")


def _of_policy(store: Store, command: Command) -> ActionPlan:
    policy = find_policy(store, command.subject)
    failing, target = canary_controller.way_back(store, policy, command.args.get("to"))
    store.releases.check_rollback(policy, failing=failing.id, to=target.id)
    by_stage = {release.stage: release.id for release in reversed(store.releases.of_policy(policy))}
    live, canary = by_stage.get(Stage.LIVE), by_stage.get(Stage.CANARY)

    def act(tx: Transaction) -> Facts:
        reasons = (Reason(code=BY_HAND, text=command.why),)
        by = {"who": command.who, "why": command.why}
        after = store.releases.roll_back_in(
            tx, policy, failing=failing.id, to=target.id, now=command.at, reasons=reasons, **by
        )
        return {"taken_back": failing.id, "live": encode(after)}

    return ActionPlan(
        subject=policy,
        before={"live": live, "canary": canary},
        after={"live": target.id, "canary": None if canary == failing.id else canary},
        affected=lambda: {"taken_back": failing.id, "stage": str(failing.stage), "share": failing.share},
        act=act,
    )


def _of_flag(store: Store, command: Command) -> ActionPlan:
    flag = store.flags.get(command.subject)

    def act(tx: Transaction) -> Facts:
        # The current flag: a kill switch never fails because somebody else changed it meanwhile.
        now = store.flags.held(tx, flag.name) or flag
        store.flags.put_in(tx, replace(now, killed=True), who=command.who, why=command.why, now=command.at)
        return {}

    return ActionPlan(
        subject=flag.name,
        before={"enabled": flag.enabled, "killed": flag.killed},
        after={"enabled": flag.enabled, "killed": True},
        is_change=not flag.killed,
        affected=lambda: {"variant": flag.off},
        act=act,
    )


def _of_alert(store: Store, command: Command) -> ActionPlan:
    alert = _find_alert(store, command.subject)

    def act(tx: Transaction) -> Facts:
        after = store.alerts.acknowledge_in(tx, alert.code, alert.run, command.who, command.at, why=command.why)
        return {"after": {"acknowledged_by": after.acknowledged_by}}

    return ActionPlan(
        subject=_alert_name(alert),
        run=alert.run,
        before={"acknowledged_by": alert.acknowledged_by},
        after={"acknowledged_by": alert.acknowledged_by or command.who},
        is_change=alert.acknowledged_by is None,
        affected=lambda: {"severity": str(alert.severity), "message": alert.message},
        act=act,
    )


def _alert_name(alert: Alert) -> str:
    return alert.code if alert.run is None else f"{alert.code}@{alert.run}"


def _find_alert(store: Store, text: str) -> Alert:
    """The active alert CODE or CODE@RUN; without the run, the only one with that code."""
    active = store.alerts.standing()
    alerts = [alert for alert in active if _alert_name(alert) == text] or [
        alert for alert in active if alert.code == text
    ]
    if len(alerts) != 1:
        why = f"stands for {len(alerts)} runs: name one, as in {_alert_name(alerts[0])}" if alerts else "does not stand"
        raise NotFound(f"alert {text!r}", why=why, remedy="'holdfast control alerts' lists what stands")
    return alerts[0]


PLANS: Mapping[str, Callable[[Store, Command], ActionPlan]] = {
    "run": _of_run,
    "rollout": _of_rollout,
    "policy": _of_policy,
    "flag": _of_flag,
    "alert": _of_alert,
}
