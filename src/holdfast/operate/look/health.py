"""Whether what runs is well: the documented health, and how fast rollouts come to an end. Nothing is kept here."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.contracts.rollout import OPEN, AttemptState, RolloutState
from holdfast.contracts.run import DesiredState, RunRecord, RunState
from holdfast.operate.look.briefs import Brief, rate, run_brief
from holdfast.store.dashboard_queries import RECENT
from holdfast.store.store import Store

Recent = tuple[float, float | None, str]  # an attempt: when it began, ended, and how
MINUTE_S = 60.0
BUCKETS = 60  # of the pace
ENOUGH = ("succeeded", "failed")  # attempts that decided something
BROKEN = frozenset(("failed", "fault", "timeout", "unresponsive"))
JUDGED = BROKEN | {"succeeded"}
CONTROL = ("order", "command", "refusal")  # kinds of entries in the ledger: what people asked for
SHEETS = 60  # newest ones that the tasks' success is read from
STREAK = 3  # failures in a row: failing


def health(store: Store, *, now: float) -> Brief:
    """The documented health of what runs.

    {"health_state": "healthy"|"degraded"|"failing"|"unknown", "health_reason", "rollout_gate": "pass"|"hold",
     "queue_depth", "failure_streak", "last_cycle_failed", "last_cycle_completed", "processed_case_count",
     "control_audit_count", "run": id|None, "is_paused"}

    Three failures in a row are failing; one, or any in the last minute, is degraded; nothing to look at is unknown.
    The gate passes only what is healthy and not paused, and a pause makes healthy degraded. A cycle is a minute.
    """
    chosen = chosen_of(store.runs.newest(most=20))
    shown = None if chosen is None else run_brief(chosen, store.figures.totals(chosen.id), now)
    return judged(store, chosen, shown, store.figures.pace(), now)


def chosen_of(newest: Sequence[RunRecord]) -> RunRecord | None:
    """The newest that runs, else the newest."""
    return next((one for one in newest if one.state is RunState.RUNNING), next(iter(newest), None))


def pace(recent: Sequence[Recent], now: float) -> Brief:
    """Of the newest attempts; where they cover less than a minute, over as much as they do."""
    since = now - MINUTE_S
    if len(recent) >= RECENT // 2:  # there may be more than were read
        since = max(since, recent[-1][0])
    over = max(1.0, now - since)
    ended, failed = [0] * BUCKETS, [0] * BUCKETS
    decided = 0
    for _, at, status in recent:
        if at is not None and since <= at <= now and status != AttemptState.RELEASED:  # handed back, not ended
            place = min(BUCKETS - 1, int((at - now + MINUTE_S) * BUCKETS / MINUTE_S))
            ended[place] += 1
            failed[place] += status in BROKEN
            decided += status in ENOUGH
    times = [now - MINUTE_S + place * MINUTE_S / BUCKETS for place in range(BUCKETS)]
    series = [
        {"at": at, "ended": ended[place], "failed": failed[place]}
        for place, at in enumerate(times)
        if at >= since - MINUTE_S / BUCKETS
    ]
    told = {"per_s": decided / over, "over_s": over, "ended": sum(ended), "failed": sum(failed)}
    return {**told, "series": series}


def solved(store: Store, run_id: str) -> Brief:
    """Of the newest rollouts that were decided, how many solved their task, as their sheets say; see `rate`.

    To run to the end is not to solve the task: of a sheet without that signal nothing is known."""
    sheets = [store.traces.sheet(token) for _, token in store.figures.decided(run_id, most=SHEETS)]
    told = [one.value for sheet in sheets for one in sheet.signals if one.name == "success" and one.turn is None]
    return rate(sum(min(1.0, max(0.0, one)) for one in told), len(told))


def judged(store: Store, chosen: RunRecord | None, shown: Brief | None, recent: Sequence[Recent], now: float) -> Brief:
    ended = [(at, status in BROKEN) for _, at, status in recent if at is not None and status in JUDGED]
    last = [broken for at, broken in ended if at > now - MINUTE_S]
    newest = sorted(ended, key=lambda one: -one[0])
    streak = next((place for place, (_, broken) in enumerate(newest) if not broken), len(newest))
    failed = sum(last)
    is_paused = chosen is not None and chosen.state is RunState.RUNNING and chosen.wanted is not DesiredState.RUNNING
    state, why = _state(chosen, shown, streak, failed, is_paused)
    counts = {} if shown is None else shown["counts"]
    return {
        "health_state": state,
        "health_reason": why,
        "rollout_gate": "pass" if state == "healthy" and not is_paused else "hold",
        "queue_depth": sum(counts.get(str(one), 0) for one in OPEN - {RolloutState.RUNNING}),
        "failure_streak": streak,
        "last_cycle_failed": failed,
        "last_cycle_completed": len(last) - failed,
        "processed_case_count": 0 if shown is None else shown["done"],
        "control_audit_count": sum(store.figures.kinds().get(kind, 0) for kind in CONTROL),
        "run": None if chosen is None else chosen.id,
        "is_paused": is_paused,
    }


def _state(chosen: RunRecord | None, shown: Brief | None, streak: int, failed: int, is_paused: bool) -> tuple[str, str]:
    if chosen is None:
        return "unknown", "no run yet"
    if streak >= STREAK:
        return "failing", f"the last {streak} attempts failed"
    if chosen.state is RunState.FAILED:
        return "failing", f"run {chosen.id} failed: {chosen.error or 'no reason'}"
    if shown is not None and shown["is_silent"]:
        return "degraded", f"the driver of {chosen.id} is silent"
    if streak or failed:
        return "degraded", "the last attempt failed" if streak else f"{failed} attempts failed in the last minute"
    if is_paused:
        return "degraded", f"run {chosen.id} is {chosen.wanted} by order"
    return "healthy", "no failures in the last minute" if chosen.state is RunState.RUNNING else "nothing runs"
