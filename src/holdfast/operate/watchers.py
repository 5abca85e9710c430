"""Alert rules over the numbers that the views show, evaluated after every change, and the sinks that alerts go to.

A rule fires and clears with hysteresis (`alerts`). The store keeps active alerts, so that they outlive this process and
every other sees them. Sinks (a file of JSON lines, a webhook) deliver in tasks of their own; an alert that they could
not deliver is counted. Only people and fuses (`switches`) act on an alert.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput, StoreError
from holdfast.contracts.records import encode
from holdfast.contracts.run import RunRecord, RunState
from holdfast.operate import views
from holdfast.operate.alerts import ADOPTION_DROP, QUIET, AlarmRule, AlarmState, step
from holdfast.operate.learning_views import catalog, point, record
from holdfast.operate.lifecycle import end_left_behind
from holdfast.operate.switches import conclude
from holdfast.prove.estimate import wilson
from holdfast.reward.safety import GATE
from holdfast.reward.tools import ToolAttempt, adoption_rates, rate_drop
from holdfast.store.notifications import FINISHED, ORDERS, Notifications
from holdfast.store.store import Store

LOOK_S = 1.0  # between two looks, at least
IDLE_S = 5.0  # and at most: some rules are about silence
REST = 10.0  # and at least so many times the duration of the look itself
LAST = 5  # learning steps that a rule reads
FIRST = 3  # steps that entropy is compared to
RECORDS = 400  # tasks whose tool use is compared: newer half with older half
READ_ON = 20  # of them at one look
WATCHED = 20  # runs at once
CHUNKS = 200  # of a large run, counted at one look
WAITING = 1_000  # alerts that wait for a slow sink; the oldest are dropped first

Value = tuple[float | None, int | None]  # the measured value and its number of cases; None: no evidence

RULES: Mapping[str, AlarmRule] = {
    rule.name: rule
    for rule in (
        AlarmRule(name="failure_streak", fires_above=2.0, clears_at=0.0, severity=Severity.CRITICAL),
        AlarmRule(name="backlog", fires_above=100_000.0, clears_at=80_000.0, hold_s=5.0),
        AlarmRule(name="no_heartbeat", fires_above=60.0, clears_at=30.0, severity=Severity.CRITICAL),
        AlarmRule(name="no_learning_signal", fires_below=0.05, clears_at=0.15, least=3),
        AlarmRule(name="kl_out_of_band", fires_above=0.2, clears_at=0.1, severity=Severity.CRITICAL),
        # A tenth of what it was, or ten times as much.
        AlarmRule(name="entropy_out_of_band", fires_above=log(10.0), clears_at=log(5.0), least=FIRST + 1),
        replace(ADOPTION_DROP, name="adoption_drop"),
        AlarmRule(name="judge_drift", fires_above=0.0, clears_at=0.0),
        AlarmRule(name="safety_rate", fires_above=0.05, clears_at=0.02, least=20, severity=Severity.CRITICAL),
        AlarmRule(name="budget_exhaustion", fires_above=0.5, clears_at=0.3, least=20),
        AlarmRule(name="disk_low", fires_below=0.05, clears_at=0.08, severity=Severity.CRITICAL),
    )
}
MEANINGS: Mapping[str, str] = {  # what the number means, and what to do
    "failure_streak": "attempts failed in a row; 'holdfast run rollouts RUN --status failed' says why",
    "backlog": "rollouts wait; more workers take them sooner",
    "no_heartbeat": "seconds without a sign of life of the run's driver; 'holdfast control recover RUN' takes it up",
    "no_learning_signal": "of the rollouts gave a gradient in the last steps; the signal audit says why",
    "kl_out_of_band": "is the largest KL of the last steps: the policy moves too far at once",
    "entropy_out_of_band": "is |log| of entropy over what it was at first: the policy collapses, or forgets",
    "adoption_drop": "is the least by which the use of a tool that tasks need has fallen",
    "judge_drift": "judges answer otherwise than when calibrated; 'holdfast reward judge calibrate' measures them",
    "safety_rate": "of the newest rollouts ran into the hard gate of safety",
    "budget_exhaustion": "of the newest thinking budgets were used up",
    "disk_low": "of the disk that the store lies on is free",
}


class Sink(Protocol):
    """Receives each alert when it is raised, and again with `cleared_at`."""

    async def __call__(self, alert: Alert, /) -> None: ...


@dataclass(slots=True)
class _Post:
    """The queue of one sink."""

    sink: Sink
    due: deque[Alert] = field(default_factory=lambda: deque(maxlen=WAITING))
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    lost: int = 0

    def put(self, alert: Alert) -> None:
        self.lost += len(self.due) == WAITING
        self.due.append(alert)
        self.woken.set()

    async def deliver(self) -> None:
        while True:
            await self.woken.wait()
            self.woken.clear()
            while self.due:
                try:
                    await self.sink(self.due[0])
                except OSError:  # after the sink's own retries; the store has the alert anyway
                    self.lost += 1
                if self.due:
                    self.due.popleft()


async def changed(changes: Notifications, *, most_s: float, seen: dict[str, int]) -> list[str]:
    """Waits until a topic has moved on from `seen`, at most so long; updates `seen` and returns those topics."""
    waiting = [changes.after(topic, at) for topic, at in seen.items()]
    tasks = [asyncio.ensure_future(future) for future in waiting]
    try:
        await asyncio.wait(tasks, timeout=most_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, future in zip(tasks, waiting, strict=True):
            task.cancel()
            changes.forget(future)
    found = [topic for topic, at in seen.items() if changes.seen(topic) != at]
    seen.update({topic: changes.seen(topic) for topic in found})
    return found


class AlertWatcher:
    """Evaluates the rules while `run` runs; `look` does it once."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        sinks: Sequence[Sink] = (),
        rules: Mapping[str, AlarmRule] = RULES,
        free: Callable[[], float] | None = None,
    ) -> None:
        """`free`: the free share of the disk; default: of the store's folder."""
        self._store, self._clock, self._rules = store, clock, rules
        self._free = free or (lambda: _free(store))
        self._posts = [_Post(sink) for sink in sinks]
        self._tools: dict[str, _Tools] = {}
        self._states: dict[tuple[str, str | None], AlarmState] = {
            (alert.code, alert.run): AlarmState(fired=alert) for alert in store.alerts.standing() if alert.code in rules
        }
        self._unkept: list[Alert] = []  # not stored yet, because the disk is full
        self.missed = 0  # looks that failed because the store did not answer

    @property
    def lost(self) -> int:
        """Alerts that a sink did not deliver; the store has all of them."""
        return sum(post.lost for post in self._posts)

    async def run(self) -> None:
        """Looks after every change, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for post in self._posts:
                group.create_task(post.deliver())
            while True:
                seen = {topic: self._store.changes.seen(topic) for topic in (FINISHED, ORDERS)}
                began = asyncio.get_running_loop().time()
                try:
                    alerts = await asyncio.to_thread(self.check)
                except StoreError:  # busy or gone: try again later
                    self.missed, alerts = self.missed + 1, []
                for alert in alerts:
                    for post in self._posts:
                        post.put(alert)
                took = asyncio.get_running_loop().time() - began
                await asyncio.sleep(max(LOOK_S, REST * took))
                await changed(self._store.changes, most_s=IDLE_S, seen=seen)

    def check(self) -> list[Alert]:
        """Evaluates every rule once; the raised and cleared alerts, already stored."""
        now, alerts = self._clock(), list[Alert]()
        conclude(self._store, now=now, environment=os.environ)  # experiments whose time is over
        end_left_behind(self._store, who="watcher", now=now)
        late, self._unkept = self._unkept, []
        for alert in late:
            self._keep(alert)
        runs = [run for run in self._store.runs.newest(most=WATCHED) if run.state is RunState.RUNNING]
        for run in runs:
            for code, (value, n) in self._of_run(run, now):
                alerts += self._step(code, run.id, value, n, now)
        for code, (value, n) in self._of_all(now):
            alerts += self._step(code, None, value, n, now)
        return alerts + self._over({run.id for run in runs}, now)

    def _step(self, code: str, run: str | None, value: float | None, n: int | None, now: float) -> list[Alert]:
        if code not in self._rules:
            return []
        state, alert = step(self._rules[code], self._states.get((code, run), QUIET), value, now, n=n, run=run)
        if alert is not None:
            if alert.cleared_at is None:
                alert = replace(alert, message=f"{value:.6g} {MEANINGS[code]} ({alert.message})")
            alert = self._keep(alert)
            state = AlarmState(fired=alert) if alert.cleared_at is None else state
        self._states[code, run] = state
        return [] if alert is None else [alert]

    def _keep(self, alert: Alert) -> Alert:
        """Stores an alert, raised or cleared, and returns the stored one."""
        try:
            if alert.cleared_at is None:
                return self._store.alerts.raise_(alert).result()
            self._store.alerts.clear(alert.code, alert.run, at=alert.cleared_at).result()
        except StoreError:
            self._unkept.append(alert)
        return alert

    def _over(self, running: set[str], now: float) -> list[Alert]:
        """Clears the alerts of finished runs: nothing else could."""
        alerts = []
        for (code, run), state in list(self._states.items()):
            if run is not None and run not in running:
                del self._states[code, run]
                if state.fired is not None:
                    alerts.append(self._keep(replace(state.fired, cleared_at=max(now, state.fired.at))))
        for run in self._tools.keys() - running:
            del self._tools[run]
        return alerts

    def _of_all(self, now: float) -> Iterator[tuple[str, Value]]:
        health = views.health(self._store, now=now)
        yield "failure_streak", (float(health["failure_streak"]), None)
        yield "disk_low", (self._free(), None)
        calibrated = self._store.judgements.calibrations()
        drifted = [calibration for calibration in calibrated if (calibration.biases.get("drift") or {}).get("alarm")]
        yield "judge_drift", (float(len(drifted)) if calibrated else None, len(calibrated))

    def _of_run(self, run: RunRecord, now: float) -> Iterator[tuple[str, Value]]:
        figures = self._store.figures
        totals = figures.totals(run.id)
        for _ in range(CHUNKS):  # the first look counts a large run for all later ones
            if totals.is_whole:
                break
            totals = figures.totals(run.id)
        counts = {str(state): n for state, n in totals.counts.items()}
        yield "backlog", (float(counts["queuing"] + counts["requeuing"]), None)
        yield "no_heartbeat", (max(0.0, now - run.beat_at), None)
        yield from self._of_learning(run.id)
        gated, n = figures.signalled(run.id, GATE)
        yield "safety_rate", (gated / n if n else None, n)
        tiers, _, _ = figures.budgets(run.id)
        given, empty = sum(tier.budgets for tier in tiers), sum(tier.exhausted for tier in tiers)
        yield "budget_exhaustion", (empty / given if given else None, given)
        tools = self._tools.setdefault(run.id, _Tools())
        tools.read_on(self._store, run.id)
        yield "adoption_drop", tools.drop()

    def _of_learning(self, run: str) -> Iterator[tuple[str, Value]]:
        steps, _ = self._store.figures.steps(run)
        points = [point(step_record) for step_record in steps]
        audited = [one for one in points if one["taught"] is not None and one["rollouts"]][-LAST:]
        seen = sum(one["rollouts"] for one in audited)
        taught = sum(one["taught"] for one in audited) / seen if seen else None
        yield "no_learning_signal", (taught, len(audited))
        moved = [one["kl"] for one in points if one["kl"] is not None][-FIRST:]
        yield "kl_out_of_band", (max(moved) if moved else None, None)
        entropies = [one["entropy"] for one in points if one["entropy"] is not None]
        yield "entropy_out_of_band", (_turned(entropies), len(entropies))


@dataclass(slots=True)
class _Tools:
    """Tool use of the newest tasks of a run, read a few at a time."""

    records: deque[ToolAttempt] = field(default_factory=lambda: deque(maxlen=RECORDS))
    known: deque[str] = field(default_factory=lambda: deque(maxlen=4 * RECORDS))

    def read_on(self, store: Store, run: str) -> None:
        new = [one for one in store.figures.scored(run, READ_ON) if one[0].id not in self.known]
        tools = catalog(store, run) if new else ()
        for rollout, token in reversed(new):
            self.known.append(rollout.id)
            self.records.append(record(rollout, store.traces.spans(token), tools))

    def drop(self) -> Value:
        """The largest certain fall of any tool, and the number of tasks of the smaller half.

        Where nobody says what tasks need, the share of tasks that use the tool counts."""
        half = len(self.records) // 2
        every = list(self.records)
        before, now = (
            {
                row.tool: row.adoption if row.adoption.of else row.used
                for row in adoption_rates(some, wilson, by=("tool",))
            }
            for some in (every[:half], every[half:])
        )
        falls = [
            (fall, min(now[tool].of, before[tool].of))
            for tool in now.keys() & before.keys()
            if (fall := rate_drop(now[tool], before[tool])) is not None
        ]
        return max(falls, default=(None, None), key=lambda one: one[0] or 0.0)


def _turned(entropies: Sequence[float]) -> float | None:
    """|log| of the last entropies over the first; None where there are too few, or one is 0 or below."""
    first, last = entropies[:FIRST], entropies[-FIRST:]
    if len(entropies) <= FIRST or min(fmean(first), fmean(last)) <= 0.0:
        return None
    return abs(log(fmean(last) / fmean(first)))


def _free(store: Store) -> float:
    usage: Any = shutil.disk_usage(store.folder)
    return float(usage.free / usage.total)


TRIES = 3
PAUSE_S = 0.5  # before the second try, then twice as long
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One line of JSON for each alert, appended at once: several processes may share the file."""

    path: Path

    async def __call__(self, alert: Alert, /) -> None:
        await asyncio.to_thread(self._append, json.dumps(encode(alert), ensure_ascii=False) + "\n")

    def _append(self, line: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode(errors="replace"))
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """POSTs each alert as JSON; anything below 300 is delivered. Redirects are not followed."""

    url: str
    timeout_s: float = TIMEOUT_S
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise BadInput(f"webhook {self.url!r}", why="is not an address of the web", remedy="begin with https://")

    async def __call__(self, alert: Alert, /) -> None:
        import aiohttp

        limit = aiohttp.ClientTimeout(total=self.timeout_s)
        why = ""
        async with aiohttp.ClientSession(timeout=limit) as session:
            for tried in range(TRIES):
                if tried:
                    await self.pause(PAUSE_S * 2.0 ** (tried - 1))
                try:
                    async with session.post(self.url, json=encode(alert), allow_redirects=False) as answer:
                        if answer.status < 300:
                            return
                        why = f"answered {answer.status}"
                except (aiohttp.ClientError, TimeoutError) as error:
                    why = type(error).__name__
        raise OSError(f"webhook {self.url}: {why}, after {TRIES} tries")
