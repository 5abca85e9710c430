from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from holdfast.contracts.budget import (
    Assessment,
    BudgetChange,
    BudgetEvent,
    BudgetEventKind,
    ThinkingBudget,
    Tier,
    Traits,
)
from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput, StoreFull
from holdfast.contracts.judgement import Calibration, JudgeStatus
from holdfast.contracts.records import decode
from holdfast.contracts.release import Experiment
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Claim, Task
from holdfast.contracts.run import LEGACY_STEP, RunState
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.operate import watchers
from holdfast.operate.watchers import MEANINGS, RULES, AlertWatcher, Lines, Webhook
from holdfast.promote.experiment import KIND, Design, settings_of
from holdfast.reward.safety import GATE
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture, settle
from tests.conftest import Clock
from tests.store.filled import SCRIPT


@dataclass
class Site:
    """A run under way, a watchman, and a clock for both."""

    store: Store
    clock: Clock
    disk: float = 0.5

    def __post_init__(self) -> None:
        begun = self.store.runs.begin(
            kind="optimize", model_ref="m", settings={}, salt="a", who="test", now=self.clock.now
        ).result()
        self.run, self.made = begun.id, 0
        self.watchman = self.another()

    def another(self) -> AlertWatcher:
        return AlertWatcher(self.store, clock=lambda: self.clock.now, free=lambda: self.disk)

    def look(self, after_s: float = 1.0, *, beat: bool = True) -> list[tuple[str, bool]]:
        """What is raised (True) and cleared by a look."""
        self.clock.advance(after_s)
        if beat:
            self.store.runs.beat(self.run, driver=1, now=self.clock.now).result()
        return [(one.code, one.cleared_at is None) for one in self.watchman.check()]

    def do(self, many: int, end: Callable[[Claim], Any]) -> None:
        tasks = [
            Task(name=f"t{self.made + place}", input={"needs": ["search"], "tools": ["search"]}, max_attempts=1)
            for place in range(many)
        ]
        self.made += many
        self.store.queue.enqueue(self.run, tasks, now=self.clock.now).result()
        claims = self.store.queue.claim(self.run, "w", now=self.clock.now, lease_s=99.0, most=many).result()
        ends = [end(claim) for claim in claims]
        for one in ends:
            one.result()

    def finish(self, claim: Claim, state: AttemptState = AttemptState.SUCCEEDED) -> Any:
        return self.store.queue.finish(claim.attempt, state, now=self.clock.now, reward=1.0)

    def learn(self, **body: Any) -> None:
        step = len(self.store.steps.of_run(self.run)) + 1
        self.store.steps.add(self.run, f"{step}/learn", body, function=LEGACY_STEP, now=self.clock.now).result()


@pytest.fixture
def site(file_store: Store, clock: Clock) -> Site:
    return Site(file_store, clock)


def calls_tool(site: Site, does: bool) -> Callable[[Claim], Any]:
    def end(claim: Claim) -> Any:
        said = {"role": "assistant", "content": "x"}
        spans = [
            Span(seq=1, kind=SpanKind.MODEL, name="m", started_at=1.0,
                 model=ModelCall(model="m@1", messages=(), response=said)),
            Span(seq=2, kind=SpanKind.TOOL, name="search", started_at=1.0,
                 tool=ToolCall(tool="search", arguments={}, result="x")),
        ]  # fmt: skip
        site.store.traces.add(claim.attempt, spans[: 1 + does], now=site.clock.now)
        return site.finish(claim)

    return end


def gated(site: Site, is_gated: bool) -> Callable[[Claim], Any]:
    def end(claim: Claim) -> Any:
        name = GATE if is_gated else "exact"
        signal = RewardTerm(name=name, value=1.0, weight=0.0, source="rule:safety")
        site.store.traces.score(claim.attempt, [signal], now=site.clock.now)
        return site.finish(claim)

    return end


def thinks(site: Site, spent: int) -> Callable[[Claim], Any]:
    def end(claim: Claim) -> Any:
        assessed = Assessment(tier=Tier.TRIVIAL, confidence=1.0, reasons=(), traits=Traits())
        at = site.clock.now
        kept: dict[str, Any] = {"allowed": 10, "spent": spent, "overspent": max(0, spent - 10)}
        budget = ThinkingBudget(
            attempt=claim.attempt.id, assessment=assessed, ceiling=10, cap=20, created_at=at, changed_at=at, **kept
        )
        event = BudgetEvent(attempt=claim.attempt.id, seq=1, kind=BudgetEventKind.SPEND, at=at, tokens=spent, **kept)
        site.store.budgets.record(claim.attempt, BudgetChange(budget=budget, events=(event,)), now=at)
        return site.finish(claim)

    return end


def drifts(site: Site, alarm: bool) -> None:
    reasons = ("drift: it answers otherwise",) if alarm else ()
    standing = JudgeStatus.DIAGNOSTIC if alarm else JudgeStatus.TRUSTED
    bound: dict[str, Any] = {"judge": "j", "criterion": "tone@1", "prompt": "a" * 64, "labels": "b" * 64}
    measured: dict[str, Any] = {"xs": (0.5,), "ys": (0.5,), "measures": {}, "makers": {}, "n": 1}
    biases = {"drift": {"n": 9, "changed": 5, "alarm": alarm}}
    made = Calibration(**bound, **measured, biases=biases, standing=standing, reasons=reasons, at=site.clock.now)
    site.store.judgements.calibrate(made, who="ann").result()


def repeat(site: Site, times: int, **body: Any) -> None:
    for _ in range(times):
        site.learn(**body)


def read_tools(site: Site, does: bool) -> None:
    for _ in range(5):
        site.do(watchers.READ_ON, calls_tool(site, does))
        site.watchman.check()


FAIL, FINE = AttemptState.FAILED, AttemptState.SUCCEEDED
CASES: dict[str, tuple[Callable[[Site], Any], Callable[[Site], Any]]] = {  # what makes it fire, and what clears it
    "failure_streak": (
        lambda site: site.do(3, lambda claim: site.finish(claim, FAIL)),
        lambda site: site.clock.advance(1.0) and site.do(1, site.finish),
    ),
    "no_learning_signal": (
        lambda site: repeat(site, 3, audit={"taught": 0, "rollouts": 64}),
        lambda site: repeat(site, 3, audit={"taught": 32, "rollouts": 64}),
    ),
    "kl_out_of_band": (
        lambda site: repeat(site, 1, update={"approx_kl": 0.3}),
        lambda site: repeat(site, 3, update={"approx_kl": 0.01}),
    ),
    "entropy_out_of_band": (
        lambda site: (repeat(site, 3, update={"entropy": 2.0}), repeat(site, 3, update={"entropy": 0.1})),
        lambda site: repeat(site, 3, update={"entropy": 1.0}),
    ),
    "judge_drift": (lambda site: drifts(site, True), lambda site: drifts(site, False)),
    "safety_rate": (lambda site: site.do(20, gated(site, True)), lambda site: site.do(500, gated(site, False))),
    "budget_exhaustion": (lambda site: site.do(20, thinks(site, 10)), lambda site: site.do(60, thinks(site, 1))),
    "disk_low": (lambda site: setattr(site, "disk", 0.04), lambda site: setattr(site, "disk", 0.08)),
}


@pytest.mark.parametrize("code", CASES)
def test_a_rule_fires_once_and_clears(site: Site, code: str) -> None:
    fires, clears = CASES[code]
    assert site.look() == []
    fires(site)
    assert site.look() == [(code, True)] and site.look() == []
    (standing,) = site.store.alerts.standing()
    assert standing.code == code and MEANINGS[code] in standing.message
    clears(site)
    assert site.look() == [(code, False)] and site.store.alerts.standing() == []
    assert site.look() == []


def test_no_heartbeat_fires_when_the_driver_is_silent(site: Site) -> None:
    assert site.look(61.0, beat=False) == [("no_heartbeat", True)]
    assert site.store.alerts.standing()[0].run == site.run
    assert site.look() == [("no_heartbeat", False)]


def test_a_backlog_must_hold(site: Site) -> None:
    rules = {"backlog": watchers.AlarmRule(name="backlog", fires_above=2.0, clears_at=1.0, hold_s=5.0)}
    site.watchman = AlertWatcher(site.store, clock=lambda: site.clock.now, rules=rules)
    site.store.queue.enqueue(site.run, [Task(name=f"q{n}", input=1) for n in range(3)], now=1.0).result()
    assert site.look() == [] and site.look(5.0) == [("backlog", True)]
    for claim in site.store.queue.claim(site.run, "w", now=site.clock.now, lease_s=99.0, most=3).result():
        site.finish(claim).result()
    assert site.look() == [] and site.look(5.0) == [("backlog", False)]


def test_adoption_that_certainly_fell_fires(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchers, "RECORDS", 200)
    read_tools(site, True)
    assert site.look() == []
    read_tools(site, False)
    assert [one.code for one in site.store.alerts.standing()] == ["adoption_drop"]
    for _ in range(3):
        read_tools(site, True)
    assert site.store.alerts.standing() == []


def test_what_stands_outlives_the_watchman_and_ends_with_its_run(site: Site) -> None:
    site.learn(update={"approx_kl": 0.3})
    assert site.look() == [("kl_out_of_band", True)]
    site.watchman = site.another()
    assert site.look() == []  # it stands already
    site.store.runs.end(site.run, RunState.COMPLETED, who="test", now=site.clock.now).result()
    assert site.look(beat=False) == [("kl_out_of_band", False)] and site.look(beat=False) == []


def test_a_full_disk_keeps_nothing_and_loses_nothing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    raise_ = site.store.alerts.raise_
    full = StoreFull("store", why="no space left")

    def refuse(alert: Alert) -> Any:
        pending: WriteFuture[Alert] = WriteFuture()
        settle([(pending, None, full)])
        return pending

    monkeypatch.setattr(site.store.alerts, "raise_", refuse)
    site.disk = 0.01
    assert site.look() == [("disk_low", True)] and site.store.alerts.standing() == []
    assert site.look() == []
    monkeypatch.setattr(site.store.alerts, "raise_", raise_)
    assert site.look() == [] and [one.code for one in site.store.alerts.standing()] == ["disk_low"]


def test_every_rule_is_tried_and_says_what_its_number_is() -> None:
    assert {*CASES, "no_heartbeat", "backlog", "adoption_drop"} == RULES.keys() == MEANINGS.keys()
    assert RULES["entropy_out_of_band"].fires_above == log(10.0)


async def test_it_looks_again_when_something_changed_and_tells_its_sinks(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchers, "LOOK_S", 0.01)
    monkeypatch.setattr(watchers, "IDLE_S", 600.0)  # only a change can wake it
    told: asyncio.Queue[Alert] = asyncio.Queue()

    failed = asyncio.Semaphore(0)

    async def broken(alert: Alert) -> None:
        failed.release()
        raise OSError("nobody there")

    watchman = AlertWatcher(site.store, clock=lambda: site.clock.now, sinks=(broken, told.put), free=lambda: site.disk)
    task = asyncio.create_task(watchman.run())
    try:
        await asyncio.to_thread(site.do, 3, lambda claim: site.finish(claim, FAIL))
        raised = await asyncio.wait_for(told.get(), 60)
        assert (raised.code, raised.cleared_at) == ("failure_streak", None)
        site.clock.advance(1.0)
        await asyncio.to_thread(site.do, 1, site.finish)
        cleared = await asyncio.wait_for(told.get(), 60)
        assert cleared.cleared_at is not None
        for _ in range(2):
            await asyncio.wait_for(failed.acquire(), 60)
        assert watchman.lost == 2
    finally:
        task.cancel()
        await asyncio.wait([task])


ALERT = Alert(code="backlog", severity=Severity.WARNING, message=f"line\nbreak {SCRIPT} \ud800", at=1.0, run="run-1")


async def no_pause(seconds: float) -> None:
    assert seconds > 0


async def test_a_file_gets_one_line_for_each_or_an_os_error_tells(tmp_path: Path) -> None:
    sink = Lines(path=tmp_path / "new" / "alerts.jsonl")
    await sink(ALERT)
    await sink(ALERT)
    lines = sink.path.read_text(encoding="utf-8").splitlines()
    assert len(lines) == 2
    assert decode(Alert, json.loads(lines[0])).message == f"line\nbreak {SCRIPT} ?"
    with pytest.raises(FileExistsError):
        await Lines(path=sink.path / "alerts.jsonl")(ALERT)


@pytest.mark.parametrize(
    ("answers", "is_delivered", "asked"),
    [([200], True, 1), ([503, 500, 204], True, 3), ([503, 503, 503, 200], False, 3), ([302, 302, 302], False, 3)],
    ids=["at once", "the third time", "never", "elsewhere"],
)
async def test_a_webhook_is_tried_a_few_times(answers: list[int], is_delivered: bool, asked: int) -> None:
    heard = []

    async def hear(request: web.Request) -> web.Response:
        heard.append(await request.json())
        return web.Response(status=answers[len(heard) - 1], headers={"Location": "/elsewhere"})

    app = web.Application()
    app.router.add_post("/hook", hear)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        sink = Webhook(url=f"http://127.0.0.1:{port}/hook", pause=no_pause, timeout_s=60.0)
        alert = Alert(code="backlog", severity=Severity.WARNING, message=SCRIPT, at=1.0)
        if is_delivered:
            await sink(alert)
        else:
            with pytest.raises(OSError, match="after 3 tries"):
                await sink(alert)
        assert len(heard) == asked and decode(Alert, heard[0]) == alert
    finally:
        await runner.cleanup()


async def test_nobody_there_is_an_os_error_and_what_is_no_address_is_refused_at_once() -> None:
    with pytest.raises(OSError, match="ClientConnectorError"):
        await Webhook(url="http://127.0.0.1:9/hook", pause=no_pause)(ALERT)
    with pytest.raises(BadInput, match="is not an address"):
        Webhook(url="file:///etc/passwd")


def test_an_experiment_whose_time_is_over_is_ended_by_whoever_serves(site: Site) -> None:
    now = site.clock.now
    about: dict[str, Any] = {"name": "parser-1", "kind": KIND, "arms": {"off": 0.5, "on": 0.5}, "salt": "s"}
    settings = settings_of(Design(flag="parser", until=now + 30.0))
    site.store.trials.begin(Experiment(**about, created_at=now, settings=settings), who="ann", now=now).result()
    site.look(29.0)
    assert site.store.trials.get("parser-1").ended_at is None
    site.look(5.0)
    assert site.store.trials.get("parser-1").ended_at == now + 30.0


def test_a_recording_whose_service_was_killed_is_ended_and_a_silent_run_is_left(store: Store, clock: Clock) -> None:
    for kind in ("serve", "optimize"):
        store.runs.begin(kind=kind, model_ref="m", settings={}, salt=kind, who="test", now=clock.now).result()
    watcher = AlertWatcher(store, clock=lambda: clock.now, free=lambda: 0.5)
    clock.advance(20.0)
    watcher.check()
    assert {run.state for run in store.runs.newest()} == {RunState.RUNNING}
    clock.advance(20.0)
    watcher.check()
    states = {run.kind: (run.state, run.error) for run in store.runs.newest()}
    assert states["serve"] == (RunState.CANCELLED, "its service was silent for 40 s")
    assert states["optimize"] == (RunState.RUNNING, None)  # it can be resumed
