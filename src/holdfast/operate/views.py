"""Runs, rollouts, tools, budgets, alerts, the ledger, flags, workers and health, as plain JSON: one function a panel.

Each takes the store and the time and returns one dict of its documented keys. Its size is bounded, and it costs the
same in a store with a million rollouts (see `store.dashboard_queries`). Times are unix seconds; an interval is
{"value", "low", "high", "n", "level"}; None is unknown. Texts of agents, users and models are data, never markup.
Looking changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.contracts.records import encode
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import OPEN, AttemptState, OutcomeKind, RolloutState, Split
from holdfast.contracts.run import DesiredState, RunRecord, RunState
from holdfast.operate import briefs
from holdfast.operate.briefs import SILENT_S, Brief, pick, rate, run_brief
from holdfast.operate.canary_controller import under_way
from holdfast.operate.learning_views import has_curves
from holdfast.operate.service import KIND as SERVED
from holdfast.store.dashboard_queries import BUDGETED, RECENT, ROWS
from holdfast.store.store import Store

Recent = tuple[float, float | None, str]  # an attempt: start, end, status
LATELY_S = 300.0  # a policy queried within this time counts as active
LISTED = 50  # of anything beside the main subject of a panel
MOST = 200  # on a page
MINUTE_S = 60.0
BUCKETS = 60  # of the pace
BROKEN = frozenset(("failed", "fault", "timeout", "unresponsive"))
CONTROL = ("order", "command", "refusal")  # ledger entries that people caused
SHEETS = 60  # newest rollouts whose success signal is read
STREAK = 3  # failures in a row: failing


def overview(store: Store, *, now: float) -> Brief:
    """Which versions are live and why, health, and what is running.

    {"now", "project", "store",
     "health": see `health`,
     "policies": [{"policy", "live": release|None, "under_way": release|None, "way_back": id|None,
                   "decision": decision|None (what made the live one live), "news": decision + {"release"}|None
                   (the newest about another version since then), "asked_at", "is_asked", "is_served"}], active ones
                   first,
     "run": run|None (the newest that runs, else the newest), "running": n runs,
     "pace": {"per_s", "over_s", "ended", "failed", "series": [{"at", "ended", "failed"}]},
     "right": interval, "success": interval (finished), "task_success": interval,
     "reward": interval (all of that run),
     "queue": {"waiting", "requeuing", "running", "is_whole"},
     "alerts": [alert], "workers": {"working", "silent", "stopped", "slots"}}

    release, run, alert, decision: see `briefs`. `way_back`: the version that would serve after a rollback.
    `asked_at`: the newest answer with feedback; `is_asked`: within the last minutes; `is_served`: a service is up.
    `pace`: finished and failed attempts over the last minute, or over the part of it that the newest ones cover.
    """
    newest = store.runs.newest(most=20)
    chosen = current_run(newest)
    recent = store.figures.recent_attempts()
    services = [run_record for run_record in newest if run_record.kind == SERVED]
    shown = None if chosen is None else run_brief(chosen, store.figures.totals(chosen.id), now)
    counts = {} if shown is None else shown["counts"]
    return {
        "now": now,
        "project": store.project,
        "store": store.url,
        "health": _judged(store, chosen, shown, recent, now),
        "policies": sorted(
            (_policy(store, policy, services, now=now) for policy in store.releases.policies()[:LISTED]),
            key=lambda one: (not one["is_asked"], not one["is_served"], -(one["asked_at"] or 0.0)),
        ),
        "run": shown,
        "running": sum(run_record.state is RunState.RUNNING for run_record in newest),
        "pace": pace(recent, now),
        **{name: None if shown is None else shown[name] for name in ("right", "success", "reward")},
        "task_success": None if chosen is None else solved(store, chosen.id),
        "queue": {
            "waiting": counts.get("queuing", 0),
            "requeuing": counts.get("requeuing", 0),
            "running": counts.get("running", 0),
            "is_whole": shown is None or shown["is_whole"],
        },
        "alerts": [briefs.alert_brief(alert) for alert in store.alerts.standing()[:LISTED]],
        "workers": workers(store, now=now)["totals"],
    }


def _policy(store: Store, policy: str, services: Sequence[RunRecord], *, now: float) -> Brief:
    every = store.releases.of_policy(policy)
    live = next((release for release in every if release.stage is Stage.LIVE), None)
    way, (history, _) = under_way(every), store.figures.decisions(policy)
    mine = [service for service in services if service.model_ref == policy]
    answered = [rollout.enqueued_at for run in mine for _, rollout in store.figures.page(run.id, most=1).rollouts]
    asked_at = max(answered, default=None)
    return {
        "policy": policy,
        **briefs.live_brief(every, live, history),
        "under_way": None if way is None else briefs.release_brief(way),
        "news": briefs.newest_other_decision("" if live is None else live.id, way, history),
        "asked_at": asked_at,
        "is_asked": asked_at is not None and now - asked_at < LATELY_S,
        "is_served": any(
            run_record.state is RunState.RUNNING and now - run_record.beat_at <= SILENT_S for run_record in mine
        ),
    }


def runs(store: Store, *, now: float, most: int = 50, before: str | None = None) -> Brief:
    """{"runs": [run], "next": id|None, "learnt": id|None}, newest first; `before` is the last id already seen.

    run: see `briefs`. `learnt`: the newest of these with steps that draw a curve.
    """
    most = min(most, MOST)
    found = store.runs.newest(most=most + 1, before=before)
    left, shown = ROWS, []
    for run_record in found[:most]:
        totals = store.figures.totals(run_record.id, most=max(500, left))
        left -= sum(totals.sizes.values())
        shown.append(run_brief(run_record, totals, now))
    learnt = next(
        (run_record.id for run_record in found[: min(most, LISTED)] if has_curves(store, run_record.id)), None
    )
    return {"runs": shown, "next": found[most - 1].id if len(found) > most else None, "learnt": learnt}


def run(store: Store, run_id: str, *, now: float) -> Brief:
    """{"run": run, "settings", "splits": {split: {"over", "reward": interval}},
     "held": [attempt] (running ones, 50 at most), "recent": [rollout] (the newest 20),
     "failures": [{"reason", "n"}] (of the newest failed ones), "ledger": [entry] (the newest 20),
     "alerts": [alert], "updates": n, "checkpoint": id|None}

    NotFound without such a run; the id may be cut short. run, attempt, rollout, entry, alert: see `briefs`.
    """
    found = store.runs.get(run_id)
    totals = store.figures.totals(found.id)
    entries, _ = store.figures.entries(most=20, run=found.id)
    steps, _ = store.figures.steps(found.id)
    checkpoints = store.figures.checkpoints(found.id, most=1)
    reasons = Counter(
        rollout.reason or "no reason"
        for status in (RolloutState.FAILED, RolloutState.DEAD)
        for _, rollout in store.figures.page(found.id, most=100, status=status).rollouts
    )
    return {
        "run": run_brief(found, totals, now),
        "settings": found.settings,
        "splits": {
            split: {"over": totals.sizes.get(split, 0), "reward": briefs.mean(paid)}
            for split, paid in sorted(totals.rewards.items())
        },
        "held": [briefs.attempt_brief(attempt, now) for attempt in store.figures.held(found.id, LISTED)],
        "recent": [
            briefs.rollout_brief(rollout, key) for key, rollout in store.figures.page(found.id, most=20).rollouts
        ],
        "failures": [{"reason": reason, "n": n} for reason, n in reasons.most_common(8)],
        "ledger": [briefs.entry_brief(entry) for entry in entries],
        "alerts": [briefs.alert_brief(alert) for alert in store.alerts.standing() if alert.run == found.id],
        "updates": len(steps),
        "checkpoint": checkpoints[0].id if checkpoints else None,
    }


def rollouts(
    store: Store,
    run_id: str,
    *,
    now: float,
    most: int = 50,
    before: int | None = None,
    status: str | None = None,
    outcome: str | None = None,
    split: str | None = None,
    text: str | None = None,
    least: float | None = None,
    most_reward: float | None = None,
) -> Brief:
    """{"run": id, "rollouts": [rollout], "next": key|None, "total", "outcomes": {outcome: n}, "counts": {status: n},
     "is_whole"}

    Newest first; `before` is the `next` of the page before. With filters (status, outcome, split, part of the name,
    least and most reward) a page may be short or empty and still have a next: a page reads a bounded number of rows.
    """
    found = store.runs.get(run_id)
    page = store.figures.page(
        found.id,
        most=min(most, MOST),
        before=before,
        status=None if status is None else RolloutState(status),
        outcome=None if outcome is None else OutcomeKind(outcome),
        split=None if split is None else Split(split),
        text=text,
        least=least,
        most_reward=most_reward,
    )
    totals = store.figures.totals(found.id)
    return {
        "run": found.id,
        "rollouts": [briefs.rollout_brief(rollout, key) for key, rollout in page.rollouts],
        "next": page.next,
        "total": sum(totals.counts.values()),
        "outcomes": {str(kind): n for kind, n in totals.outcomes.items()},
        "counts": {str(state): n for state, n in totals.counts.items()},
        "is_whole": totals.is_whole,
    }


def tools(store: Store, run_id: str, *, now: float, most: int = 40) -> Brief:
    """Tool adoption in the newest decided rollouts of a run.

    {"run": id, "attempts": n, "rows": [{"tool", "model", "version", "adoption", "used", "overuse", "formed",
     "worked", "mended"}]}: each rate an interval over n tasks; see `reward.tools.adoption_rates`.
    """
    from holdfast.operate.learning_views import records
    from holdfast.prove.estimate import wilson
    from holdfast.reward.tools import adoption_rates

    found = store.runs.get(run_id)
    made = records(store, store.figures.scored(found.id, min(most, MOST)))
    names = ("adoption", "used", "overuse", "formed", "worked", "mended")
    rows = [
        pick(row, "tool model version") | {name: rate(getattr(row, name).hits, getattr(row, name).of) for name in names}
        for row in adoption_rates(made, wilson)
    ]
    return {"run": found.id, "attempts": len(made), "rows": rows}


def budgets(store: Store, run_id: str, *, now: float, most: int = 50, before: int | None = None) -> Brief:
    """Thinking budgets of a run: tokens allowed, spent and wasted.

    {"run": id, "tiers": [{"name", "budgets", "running", "failed", "exhausted", "calls", "escalations", "allowed",
     "spent", "overspent", "waste"}], "modes": {mode|"unknown": n}, "of": rollouts read in each state at most,
     "budgets": [{"attempt", "tier", "status", "mode", "allowed", "spent", "overspent", "waste", "calls",
     "escalations", "has_failed", "token"}] newest first, "next": token|None}
    """
    found = store.runs.get(run_id)
    tiers, modes, tokens = store.figures.budgets(found.id)
    ahead = [token for token in tokens if before is None or token < before]
    uses = [use for use in map(store.budgets.get, ahead[: min(most, MOST)]) if use is not None]
    listed = [
        {
            **pick(use.budget, "attempt allowed spent overspent calls escalations"),
            **pick(use, "waste has_failed token"),
            "tier": str(use.budget.tier),
            "status": str(use.status),
            "mode": None if use.budget.mode is None else str(use.budget.mode),
        }
        for use in uses
    ]
    return {
        "run": found.id,
        "tiers": [{name: getattr(tier, name) for name in tier.__slots__} for tier in tiers],
        "modes": {mode or "unknown": n for mode, n in modes.items()},
        "of": BUDGETED,
        "budgets": listed,
        "next": listed[-1]["token"] if listed and len(ahead) > len(listed) else None,
    }


def alerts(store: Store, *, now: float, most: int = 50, before: str | None = None) -> Brief:
    """{"standing": [alert], "history": [alert], "next": id|None}, newest first; alert: see `briefs`."""
    most = min(most, MOST)
    past = store.alerts.history(most=most + 1, before=before)
    return {
        "standing": [briefs.alert_brief(alert) for alert in store.alerts.standing()[:MOST]],
        "history": [briefs.alert_brief(alert) for alert in past[:most]],
        "next": past[most - 1].id if len(past) > most else None,
    }


def audit(
    store: Store,
    *,
    now: float,
    most: int = 50,
    before: int | None = None,
    run_id: str | None = None,
    kind: str | None = None,
) -> Brief:
    """{"entries": [entry], "next": seq|None, "kinds": [kind]}, newest first; entry: see `briefs`. A page of one kind
    may be short. `kinds`: all that occur."""
    entries, after = store.figures.entries(most=min(most, MOST), before=before, run=run_id, kind=kind)
    kinds = sorted(store.figures.kinds())
    return {"entries": [briefs.entry_brief(entry) for entry in entries], "next": after, "kinds": kinds}


def flags(store: Store, *, now: float) -> Brief:
    """{"flags": [{"name", "state": "on"|"off"|"killed"|"expired", "variants", "off", "rules", "requires",
    "description", "owner", "expires_at", "changed_at"}]} by name."""
    shown = []
    for flag in store.flags.all()[:MOST]:
        is_expired = flag.expires_at is not None and now >= flag.expires_at
        state = "killed" if flag.killed else "expired" if is_expired else "on" if flag.enabled else "off"
        rules = [
            {
                **pick(rule, "variant percent"),
                "conditions": [pick(condition, "attribute operator value") for condition in rule.conditions],
            }
            for rule in flag.rules
        ]
        names = "name off description owner expires_at changed_at variants requires"
        shown.append({**pick(flag, names), "state": state, "rules": rules})
    return {"flags": shown}


def workers(store: Store, *, now: float, most: int = 100) -> Brief:
    """{"workers": [{"id", "host", "pid", "slots", "started_at", "beat_at", "stopped_at", "state"}], newest first,
    "totals": {"working", "silent", "stopped", "slots"}}; `slots` of working ones."""
    shown = []
    for record in store.workers.newest(most):
        silent = now - record.beat_at > SILENT_S
        state = "stopped" if record.stopped_at is not None else "silent" if silent else "working"
        shown.append({**encode(record), "state": state})
    counts = Counter(one["state"] for one in shown)
    slots = sum(one["slots"] for one in shown if one["state"] == "working")
    totals = {name: counts[name] for name in ("working", "silent", "stopped")}
    return {"workers": shown, "totals": {**totals, "slots": slots}}


# Health --------------------------------------------------------------------------------------------------------------


def health(store: Store, *, now: float) -> Brief:
    """The documented health of the current run.

    {"health_state": "healthy"|"degraded"|"failing"|"unknown", "health_reason", "rollout_gate": "pass"|"hold",
     "queue_depth", "failure_streak", "last_cycle_failed", "last_cycle_completed", "processed_case_count",
     "control_audit_count", "run": id|None, "is_paused"}

    Three failures in a row are failing; one, or any in the last minute, is degraded; without a run it is unknown.
    The gate passes only when healthy and not paused; a pause makes healthy degraded. A cycle is a minute.
    """
    chosen = current_run(store.runs.newest(most=20))
    shown = None if chosen is None else run_brief(chosen, store.figures.totals(chosen.id), now)
    return _judged(store, chosen, shown, store.figures.recent_attempts(), now)


def current_run(newest: Sequence[RunRecord]) -> RunRecord | None:
    """The newest that runs, else the newest."""
    return next((run_record for run_record in newest if run_record.state is RunState.RUNNING), next(iter(newest), None))


def pace(recent: Sequence[Recent], now: float) -> Brief:
    """Ends and failures of the newest attempts, over a minute or the part of it that they cover."""
    since = now - MINUTE_S
    if len(recent) >= RECENT // 2:  # there may be more than were read
        since = max(since, recent[-1][0])
    over, width = max(1.0, now - since), MINUTE_S / BUCKETS
    ended, failed, decided = [0] * BUCKETS, [0] * BUCKETS, 0
    for _, at, status in recent:
        if at is not None and since <= at <= now and status != AttemptState.RELEASED:  # handed back, not ended
            place = min(BUCKETS - 1, int((at - now + MINUTE_S) / width))
            ended[place] += 1
            failed[place] += status in BROKEN
            decided += status in ("succeeded", "failed")
    series = [
        {"at": at, "ended": ended[place], "failed": failed[place]}
        for place in range(BUCKETS)
        if (at := now - MINUTE_S + place * width) >= since - width
    ]
    payload = {"per_s": decided / over, "over_s": over, "ended": sum(ended), "failed": sum(failed)}
    return {**payload, "series": series}


def solved(store: Store, run_id: str) -> Brief:
    """The share of the newest decided rollouts that solved their task, by their success signal; see `rate`.

    A finished rollout need not have solved its task: without that signal nothing is known."""
    breakdowns = [store.traces.breakdown(token) for _, token in store.figures.scored(run_id, most=SHEETS)]
    told = [
        one.value for breakdown in breakdowns for one in breakdown.signals if one.name == "success" and one.turn is None
    ]
    return rate(sum(min(1.0, max(0.0, one)) for one in told), len(told))


def _judged(store: Store, chosen: RunRecord | None, shown: Brief | None, recent: Sequence[Recent], now: float) -> Brief:
    judged = BROKEN | {"succeeded"}
    ended = [(at, status in BROKEN) for _, at, status in recent if at is not None and status in judged]
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
        "queue_depth": sum(counts.get(str(state), 0) for state in OPEN - {RolloutState.RUNNING}),
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
