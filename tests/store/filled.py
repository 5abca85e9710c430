"""A store with a long life behind it, filled in seconds: for tests in a browser, and for benchmarks of looking.

    python -m tests.store.filled PATH [ROLLOUTS]

The rows are put there by plain SQL, past the guards of the database, as the queue would have left them: one run under
way with as many rollouts as are asked for, and a small one that ended before. Nine of ten are over, some run, the rest
waits. The newest have whole conversations, budgets and sheets. Versions, their evidence and decisions, experiments,
flags and alerts come by the store's own ways. Some texts try to be scripts: they must only ever be read.
"""

from __future__ import annotations

import asyncio
import json
import random
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.flag import Flag
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import Experiment, ServedRequest, Stage
from holdfast.contracts.run import RunState
from holdfast.store.store import Store, open_store
from tests.operate.stage import Line, proposed

SCRIPT = "<script>alert(1)</script>"
IMAGE = '"><img src=x onerror=alert(1)>'
RATE = 50.0  # rollouts that ended in each second
TALKING = 2_000  # of the newest that are over have their conversation
RUNNING, REQUEUING = 200, 50
STEPS = 60  # of learning

ROLLOUTS = """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)
INSERT INTO rollouts (run, name, input, split, status, priority, max_attempts, timeout_s, metadata, attempt_count,
    faults, enqueued_at, ready_at, started_at, ended_at, reason, final, reward, outcome)
SELECT :run, 'task-' || i,
    json_object('prompt', CASE WHEN i % 500 = 0 THEN :script || ' What is ' || i || ' + 2?'
        ELSE 'What is ' || i || ' + 2? Look it up.' END,
        'tools', json('["search","sum"]'), 'needs', json('["search"]')),
    CASE i % 10 WHEN 8 THEN 'val' WHEN 9 THEN 'test' ELSE 'train' END,
    CASE WHEN i > :over + :running + :requeuing THEN 'queuing' WHEN i > :over + :running THEN 'requeuing'
        WHEN i > :over THEN 'running' WHEN i % 100 < 92 THEN 'succeeded' WHEN i % 100 < 97 THEN 'failed'
        WHEN i % 100 < 99 THEN 'dead' ELSE 'cancelled' END,
    0, 3, 120.0, json_object('group', 'group-' || (i / 8)),
    CASE WHEN i > :over + :running OR (i <= :over AND i % 100 = 99) THEN 0 ELSE 1 END, 0,
    :now - 3600, :now - 3600,
    CASE WHEN i > :over + :running THEN NULL ELSE :now - (:over - i) / :rate - 3.0 END,
    CASE WHEN i > :over THEN NULL ELSE :now - (:over - i) / :rate END,
    CASE WHEN i > :over OR i % 100 < 92 THEN NULL WHEN i % 100 < 97 THEN 'ValueError: ' || :image
        WHEN i % 100 < 99 THEN 'given up after 3 attempts' ELSE 'enough' END,
    NULL,
    CASE WHEN i > :over OR i % 100 >= 97 THEN NULL ELSE ((i * 7919) % 1000) / 1000.0 END,
    CASE WHEN i > :over OR i % 100 >= 97 THEN NULL WHEN i % 100 >= 92 THEN 'wrong'
        WHEN i % 20 = 0 THEN NULL WHEN (i * 7919) % 1000 >= 400 THEN 'right' ELSE 'wrong' END
FROM n"""
ATTEMPTS = """INSERT INTO attempts (rollout, number, worker, status, started_at, beat_at, lease_until, ended_at, error,
    output)
SELECT key, 1, 'worker-' || (key % 8) || CASE WHEN key % 8 = 7 THEN :image ELSE '' END,
    CASE status WHEN 'dead' THEN 'timeout' ELSE status END,
    started_at, coalesce(ended_at, :now), CASE WHEN ended_at IS NULL THEN :now + 60 ELSE ended_at END, ended_at, reason,
    CASE status WHEN 'succeeded' THEN '"42"' END
FROM rollouts WHERE run = :run AND attempt_count = 1 ORDER BY key"""
FINALS = """UPDATE rollouts SET final = (SELECT a.key FROM attempts a WHERE a.rollout = rollouts.key)
WHERE run = :run AND status IN ('succeeded', 'failed')"""
TALKED = """SELECT a.key, r.key, r.started_at, r.reward FROM rollouts r JOIN attempts a ON a.key = r.final
WHERE r.run = :run AND r.status = 'succeeded' ORDER BY r.key DESC LIMIT :most"""
SPAN = "INSERT INTO spans (attempt, seq, kind, name, started_at, ended_at, body) VALUES (?, ?, ?, ?, ?, ?, ?)"
SIGNAL = "INSERT INTO signals (attempt, seq, name, value, weight, source, turn) VALUES (?, ?, ?, ?, ?, ?, ?)"
BUDGET = f"INSERT INTO budgets VALUES ({', '.join('?' * 15)}, NULL)"


def filled(path: Path, n: int, *, now: float | None = None, seed: int = 0) -> Path:
    """A store with so many rollouts in its newest run, the same for the same seed and time."""
    at = time.time() if now is None else now
    with open_store(path) as store:
        runs = _begin(store, at)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")  # only while filling: the store sets its own again
    connection.execute("PRAGMA cache_size = -262144")
    guards = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    connection.execute("BEGIN")
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    for run, many, is_over in ((runs[0], max(40, n // 100), True), (runs[1], n, False)):
        _rows(connection, run, many, at if not is_over else at - 86_400.0, is_over, random.Random(seed))
    for _, text in guards:
        connection.execute(text)
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    with open_store(path) as store:
        _grow(store, at)
    return path


def _begin(store: Store, now: float) -> list[int]:
    keys = []
    for salt, model, at in (("old", "sprout-weak", now - 90_000.0), ("new", f"sprout {SCRIPT}", now - 3_600.0)):
        settings = {"seed": 1, "note": IMAGE}
        run = store.runs.begin(
            kind="optimize", model_ref=model, settings=settings, salt=salt, who=f"ann {IMAGE}", now=at
        ).result()
        keys.append(store.runs.key(run.id))
        if salt == "old":
            store.runs.end(run.id, RunState.COMPLETED, who="ann", now=at + 2_000.0).result()
        else:
            store.runs.beat(run.id, driver=run.driver, now=now).result()
    for place in range(4):
        store.workers.register(f"worker-{place}", host=f"host {SCRIPT}", pid=100 + place, slots=50, now=now).result()
    return keys


def _rows(connection: sqlite3.Connection, run: int, n: int, now: float, is_over: bool, rng: random.Random) -> None:
    running, requeuing = (0, 0) if is_over else (min(RUNNING, n // 20), min(REQUEUING, n // 40))
    over = n if is_over else n * 9 // 10
    params = {"run": run, "n": n, "now": now, "rate": RATE, "script": SCRIPT, "image": IMAGE}
    params |= {"over": over, "running": running, "requeuing": requeuing}
    for statement in (ROLLOUTS, ATTEMPTS, FINALS):
        connection.execute(statement, params)
    talked = connection.execute(TALKED, {"run": run, "most": TALKING}).fetchall()
    connection.executemany(SPAN, (span for one in talked for span in _spans(*one, rng)))
    connection.executemany(SIGNAL, (signal for one in talked for signal in _signals(*one)))
    connection.executemany(BUDGET, (_budget(*one) for one in talked))


def _spans(token: int, key: int, started: float, reward: float, rng: random.Random) -> Iterator[tuple[Any, ...]]:
    asked = [
        {"role": "system", "content": f"Use the tools. {SCRIPT}"},
        {"role": "user", "content": f"What is {key} + 2? {IMAGE if key % 7 == 0 else ''}"},
    ]
    call = {"id": "c1", "type": "function", "function": {"name": "search", "arguments": json.dumps({"q": str(key)})}}
    first = {"role": "assistant", "content": "", "reasoning_content": "I must look it up.", "tool_calls": [call]}
    told = {"role": "tool", "tool_call_id": "c1", "content": f"{key + 2} {SCRIPT}"}
    text = f"It is {key + 2}." + (IMAGE if key % 5 == 0 else "")
    last = {"role": "assistant", "content": text}
    yield _span(token, 1, "model", "chat", started, 0.8, {"model": _model(asked, first, "<look>", rng)})
    tool = {"tool": "search", "arguments": {"q": str(key)}, "result": told["content"], "call_id": "c1"}
    if key % 20 == 0:
        tool = {"tool": "search", "arguments": {"q": str(key)}, "error": f"503 {SCRIPT}", "call_id": "c1"}
    yield _span(token, 2, "tool", "search", started + 0.8, 0.2, {"parent": 1, "tool": tool})
    yield _span(
        token, 3, "model", "chat", started + 1.0, 1.5, {"model": _model([*asked, first, told], last, text, rng)}
    )
    yield _span(token, 4, "telemetry", IMAGE, started + 2.5, 0.1, {"attributes": {"text": SCRIPT}})


def _span(token: int, seq: int, kind: str, name: str, at: float, took: float, body: Any) -> tuple[Any, ...]:
    return token, seq, kind, name, at, at + took, json.dumps(body)


def _model(messages: list[Any], response: Any, text: str, rng: random.Random) -> dict[str, Any]:
    ids = list(text.encode())
    return {
        "model": "sprout@2",
        "messages": messages,
        "response": response,
        "finish_reason": "stop",
        "prompt_tokens": 40,
        "completion_tokens": len(ids),
        "thinking_tokens": 5,
        "prompt_ids": [1, 2, 3],
        "completion_ids": ids,
        "logprobs": [-rng.expovariate(2.0) for _ in ids],
    }


def _signals(token: int, key: int, started: float, reward: float) -> Iterator[tuple[Any, ...]]:
    yield token, 1, "exact", reward, 1.0, "rule:exact_match", None
    yield token, 2, "tone", 0.5, 0.0, f"judge:{SCRIPT}@1", None
    yield token, 3, "form", 1.0, 0.0, "rule:form", 0


def _budget(token: int, key: int, started: float, reward: float) -> tuple[Any, ...]:
    tier = ("trivial", "standard", "complex")[key % 3]
    traits = {"tool_count": 2, "context_size": 40, "step_count": 1, "multi_turn": False, "external_calls": False}
    assessment = {"tier": tier, "confidence": 0.8, "reasons": ["tool_count 2"], "traits": traits}
    spent = 100 + key % 100
    return (token, tier, json.dumps(assessment), 200, 400, 200, spent, 0, 2, 0, "{}", "hard", 1, started, started + 2)


def _grow(store: Store, now: float) -> None:
    """Learning, versions with evidence and decisions, an experiment, flags and alerts."""
    run = store.runs.newest(most=1)[0]
    parent = None
    for step in range(1, STEPS + 1):
        made = f"ck-{step}"
        body = _step(step)
        if step % 5 == 0:
            artifact = Artifact(uri=f"blobs/{made}", sha256=f"{step:064x}")
            checkpoint = Checkpoint(
                id=made, algorithm="grpo", policy_version=f"sprout@{step}", global_step=step, episode_count=64 * step,
                mean_reward=body["reward"], artifact=artifact, parent=parent, created_at=now - 3_600.0 + 60.0 * step,
            )  # fmt: skip
            store.checkpoints.add(checkpoint, run.id, now=now)
            parent, body["checkpoint"] = made, made
        store.steps.add(run.id, f"{step}/learn", body, function="practice", now=now - 3_600.0 + 60.0 * step)
    line = _Line(store, now)
    asyncio.run(proposed(store, to=Stage.CANARY, now=now - 600.0))
    outcomes = [{"success": float(place % 10 < 7), "reward": 0.7, "latency_s": 0.5} for place in range(300)]
    line.serve(2, outcomes, arm=1, start=now - 500.0)
    line.serve(2, outcomes, arm=2, start=now - 500.0)
    trial = Experiment(
        name="greeting", kind="experiment", arms={"control": 0.5, "treatment": 0.5}, salt="s", created_at=now,
        settings={"metric": "success", "why": f"does it help? {SCRIPT}"},
    )  # fmt: skip
    store.trials.begin(trial, who="ann", now=now).result()
    for place in range(40):
        arm = ("control", "treatment")[place % 2]
        store.trials.expose("greeting", f"unit-{place}", arm, now=now)
        served = ServedRequest(
            id=f"q{place}", trial="greeting", arm=arm, unit=f"unit-{place}", at=now, success=place % 2
        )
        store.trials.record([served])
    flag = Flag(name="beta", variants={"on": True, "off": False}, off="off", enabled=True, description=SCRIPT)
    store.flags.put(flag, who="ann", why="try", now=now).result()
    store.alerts.raise_(
        Alert(code="told-by-hand", severity=Severity.WARNING, message=f"look at this {SCRIPT}", at=now, run=run.id)
    ).result()
    store.alerts.raise_(Alert(code="disk_low", severity=Severity.CRITICAL, message="1 % left", at=now - 60.0)).result()
    store.alerts.clear("disk_low", at=now).result()


class _Line(Line):
    """At times of these days."""

    def __init__(self, store: Store, now: float) -> None:
        self._began = now - 1_200.0
        super().__init__(store)

    @property
    def now(self) -> float:
        return self._began + next(self._moments)


def _step(step: int) -> dict[str, Any]:
    grown = 1.0 - 0.97**step
    update = {
        "step": step, "loss": 0.5 - 0.3 * grown, "approx_kl": 0.01 + 0.002 * (step % 7), "entropy": 2.0 - grown,
        "clip_fraction": 0.1, "samples": 64, "tokens": 64 * (30 + step), "grad_norm": 1.0, "delta_norm": 0.1,
        "lr": 1e-4,
    }  # fmt: skip
    silent = {"alike": step % 9, SCRIPT: 1}
    audit = {
        "rollouts": 64, "taught": 63 - step % 9, "counts": silent, "tokens": 1800, "idle_tokens": 20,
        "reasons": {f"task-{place}": "alike" for place in range(step % 9)}, "breaks": {},
        "shares": {"exact": 0.95, "tone": 0.05}, "dominant": "exact", "zero_gradient": False,
    }  # fmt: skip
    quality = [{"name": "no_secrets", "severity": "critical", "count": 0, "of": 64, "detail": "", "blocks": True}]
    told = {"lesson": f"practice {step}", "phase": "practice", "rollouts": 64, "reward": 0.3 + 0.5 * grown}
    return {**told, "update": update, "audit": audit, "quality": quality}


if __name__ == "__main__":
    began = time.perf_counter()
    filled(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 100_000)
    print(f"{sys.argv[1]}: filled in {time.perf_counter() - began:.1f} s")
