"""What each order comes to: what was, what will be, who is affected; and the deed, which only writes what is wanted.

A plan is made from what the store says now, and refuses what may not be; the deed asks again within its transaction.
Who may order, and that an order is obeyed once, is `control`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from holdfast.contracts.commands import WANTS, Alert, Command, guarded
from holdfast.contracts.errors import IllegalMove, NotFound, Refused, StoreCorrupt
from holdfast.contracts.evidence import Reason
from holdfast.contracts.records import encode
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import Rollout, RolloutState
from holdfast.contracts.run import DesiredState, RunRecord, RunState
from holdfast.operate import recover, steps
from holdfast.store.queue import ordered
from holdfast.store.releases import BY_HAND
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, find_policy, find_rollout

SILENT_S = 30.0  # after that nobody drives the run any more, and it has to be ended from here
ALONE = frozenset({"recover"})  # has transactions of its own: two of one order would be in each other's way
SWEPT = 20_000  # rollouts that one order cancels; the driver of the run goes on with the others


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionPlan:
    """What an order comes to, before it is obeyed."""

    subject: str  # in full
    run: str | None = None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    is_change: bool = True  # False: it is so already, and is noted again
    affected: Callable[[], Mapping[str, Any]] = dict  # counted only for those who look
    first: Callable[[], Mapping[str, Any]] = dict  # what has transactions of its own, and may be done twice
    act: Callable[[Transaction], Mapping[str, Any]] = lambda tx: {}
    then: Callable[[], Mapping[str, Any]] = dict  # what may as well be left to others, should it not come to that


# Runs ----------------------------------------------------------------------------------------------------------------


def _of_run(store: Store, command: Command) -> ActionPlan:
    run = store.runs.get(command.subject)
    if command.action == "recover":
        return _recovery(store, command, run)
    is_frozen = command.args.get("mode") == "freeze"
    order = "freeze" if command.action == "pause" and is_frozen else command.action
    letter = guarded(run.id, run.state, run.wanted, order)
    wanted = WANTS[order]

    def act(tx: Transaction) -> Mapping[str, Any]:
        after = store.runs.want_in(tx, run.id, wanted, who=command.who, why=command.why, now=command.at)
        return {"after": _told(after)}  # as it is by then: others may have given orders meanwhile

    is_ended = wanted is DesiredState.CANCELLED and _is_silent(run, command.at)
    return ActionPlan(
        subject=run.id,
        run=run.id,
        before=_told(run),
        after={"state": str(RunState.CANCELLED if is_ended else run.state), "wanted": str(wanted)},
        is_change=letter == "+",
        affected=lambda: _counts(store, run.id),
        act=act,
        then=(lambda: _interrupt(store, run, command)) if wanted is DesiredState.CANCELLED else dict,
    )


def _told(run: RunRecord) -> dict[str, Any]:
    return {"state": str(run.state), "wanted": str(run.wanted)}


def _counts(store: Store, run: str) -> dict[str, int]:
    counts = store.views.counts(run)
    waiting = counts[RolloutState.QUEUING] + counts[RolloutState.REQUEUING]
    return {"running": counts[RolloutState.RUNNING], "waiting": waiting}


def _is_silent(run: RunRecord, now: float) -> bool:
    """Whether it runs by the record, and nobody drives it."""
    return run.state is RunState.RUNNING and abs(now - run.beat_at) > SILENT_S


def _interrupt(store: Store, run: RunRecord, command: Command) -> dict[str, Any]:
    """Cancel what is open; a run that nobody drives is ended from here."""
    is_left = run.state is RunState.RUNNING and not _is_silent(run, command.at)  # its driver does the rest
    cancelled = 0
    while n := store.queue.cancel_open(run.id, now=command.at, why=command.why).result():
        cancelled += n
        if is_left and cancelled >= SWEPT:
            break
    told: dict[str, Any] = {"cancelled": cancelled}
    if _is_silent(run, command.at):
        ended = store.runs.end(run.id, RunState.CANCELLED, who=command.who, now=command.at, error=command.why).result()
        told["after"] = _told(ended)
    return told


def _recovery(store: Store, command: Command, run: RunRecord) -> ActionPlan:
    letter = guarded(run.id, run.state, run.wanted, "recover")
    is_change = letter == "?"
    if is_change and not recover.is_dead(run, now=command.at, silent_s=SILENT_S):
        least_s = max(SILENT_S, recover.lease_s(run))
        why = f"it is driven (last sign of life {command.at - run.beat_at:.1f} s ago)"
        raise IllegalMove(f"run {run.id}", why=why, remedy=f"a run is dead once it was silent for {least_s:g} s")
    after = _told(run)
    if is_change and run.wanted is DesiredState.CANCELLED:
        after["state"] = str(RunState.CANCELLED)
    elif is_change:  # whoever takes it up goes on, whatever was wanted of the one who died
        after = {"state": str(RunState.FAILED), "wanted": str(DesiredState.RUNNING)}

    def first() -> Mapping[str, Any]:
        with _unrecoverable():
            report = recover.recover(store, run.id, who=command.who, why=command.why, now=command.at, silent_s=SILENT_S)
        return {"after": _told(store.runs.get(run.id)), "recovery": encode(report)}

    def affected() -> Mapping[str, Any]:
        with _unrecoverable():
            found = recover.last_sound(store, run)
        kept = None if found.checkpoint is None else found.checkpoint.id
        return {**_counts(store, run.id), "checkpoint": kept, "checkpoint_source": found.source}

    return ActionPlan(
        subject=run.id,
        run=run.id,
        before=_told(run),
        after=after,
        is_change=is_change,
        affected=affected,
        first=first,
    )


@contextmanager
def _unrecoverable() -> Iterator[None]:
    """Without a checkpoint that is whole the order is refused; the store itself is sound enough to say so."""
    try:
        yield
    except StoreCorrupt as error:
        raise Refused(error.what, why=error.why, remedy=error.remedy) from error


# Rollouts ------------------------------------------------------------------------------------------------------------


def _of_rollout(store: Store, command: Command) -> ActionPlan:
    rollout = find_rollout(store, command.subject)
    run = store.runs.get(rollout.run)
    is_again = command.action == "requeue"
    notes = {}
    if is_again and run.wanted is DesiredState.CANCELLED:
        notes["note"] = "its run was cancelled for good: nobody claims it"
    elif is_again and run.state is not RunState.RUNNING:
        until = "" if (taken_up := recover.command_of(run)) is None else f" until '{taken_up}'"
        notes["note"] = f"its run is {run.state}: nobody claims it{until}"

    def act(tx: Transaction) -> Mapping[str, Any]:
        if is_again:
            _check_step(rollout, store.steps.is_recorded_in(tx, rollout.run, rollout.step))
            moved = store.queue.requeue_in(tx, rollout.id, now=command.at)
        else:
            moved = store.queue.cancel_in(tx, rollout.id, now=command.at, why=command.why)
        return {"after": {"status": str(moved.status)}, **notes}

    to = RolloutState.QUEUING if is_again else RolloutState.CANCELLED
    ordered(rollout.id, rollout.status, to)
    if is_again and rollout.step is not None:
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
    """Nobody claims a rollout of a step that is recorded, whoever resumes its run: it would be cancelled later."""
    if is_recorded:
        why = f"its step {rollout.step} is recorded, and a recorded step is not run again"
        raise IllegalMove(f"rollout {rollout.id}", why=why, remedy="begin a new run with its task")


# Policies, flags and alerts ------------------------------------------------------------------------------------------


def _of_policy(store: Store, command: Command) -> ActionPlan:
    policy = find_policy(store, command.subject)
    failing, target = steps.way_back(store, policy, command.args.get("to"))
    store.releases.check_rollback(policy, failing=failing.id, to=target.id)
    releases = store.releases.of_policy(policy)
    live = next((one.id for one in releases if one.stage is Stage.LIVE), None)
    canary = next((one.id for one in releases if one.stage is Stage.CANARY), None)

    def act(tx: Transaction) -> Mapping[str, Any]:
        after = store.releases.roll_back_in(
            tx,
            policy,
            failing=failing.id,
            to=target.id,
            who=command.who,
            why=command.why,
            now=command.at,
            reasons=(Reason(code=BY_HAND, text=command.why),),
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

    def act(tx: Transaction) -> Mapping[str, Any]:
        # As it is by now: a kill switch never fails because somebody else was faster.
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
    alert = find_alert(store, command.subject)

    def act(tx: Transaction) -> Mapping[str, Any]:
        after = store.alerts.acknowledge_in(tx, alert.code, alert.run, command.who, command.at, why=command.why)
        return {"after": {"acknowledged_by": after.acknowledged_by}}

    return ActionPlan(
        subject=alert_name(alert),
        run=alert.run,
        before={"acknowledged_by": alert.acknowledged_by},
        after={"acknowledged_by": alert.acknowledged_by or command.who},
        is_change=alert.acknowledged_by is None,
        affected=lambda: {"severity": str(alert.severity), "message": alert.message},
        act=act,
    )


def alert_name(alert: Alert) -> str:
    """What an alert is called in an order: its code, and which run it is of."""
    return alert.code if alert.run is None else f"{alert.code}@{alert.run}"


def find_alert(store: Store, text: str) -> Alert:
    """The standing alert CODE or CODE@RUN; without the run, the only one with that code."""
    standing = store.alerts.standing()
    found = [one for one in standing if alert_name(one) == text] or [one for one in standing if one.code == text]
    if len(found) != 1:
        why = "does not stand" if not found else f"stands for {len(found)} runs: name one, as in {alert_name(found[0])}"
        raise NotFound(f"alert {text!r}", why=why, remedy="'holdfast control alerts' lists what stands")
    return found[0]


PLANS: Mapping[str, Callable[[Store, Command], ActionPlan]] = {
    "run": _of_run,
    "rollout": _of_rollout,
    "policy": _of_policy,
    "flag": _of_flag,
    "alert": _of_alert,
}
