"""The budgets that the parts are held to: how long each takes, at the sizes that were promised, and what it keeps.

Allocation, judging and collection are measured to the end of their write: what is told is on disk. What was measured
before lies in budgets.json, quick and whole runs apart; how this run compares with it is told, and asserted by nobody,
for machines differ. With --keep this run takes the place of the one before. A whole run takes forty minutes, most of
them the soak, which --soak runs alone; the quick form soaks for 100 seconds and says what it gained in that time.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.collect.agent import Context
from holdfast.collect.executors import AgentRuntime, Slot
from holdfast.collect.pool import Pool, PoolTiming
from holdfast.collect.thinking import BudgetTracker
from holdfast.contracts.judgement import EvalItem
from holdfast.contracts.rollout import Task
from holdfast.contracts.trace import ModelCall
from holdfast.reward.diff.edits import compare
from holdfast.reward.judges.ensemble import cascade
from holdfast.reward.judges.judge import CRITERIA, CachedJudge, LlmJudge, RuleJudge
from holdfast.store.notifications import FINISHED
from holdfast.store.store import Store, open_store
from parts import report
from parts.life import begin_run
from parts.looking import answering, p95, painting, serving, soak
from parts.report import Figures, progress, rounded
from reward import LANGUAGES, changes, program
from reward import p95 as diff_p95

BEFORE = Path(__file__).with_suffix(".json")  # the figures of a run before, as they are committed
LINES = 10_000  # of the program whose change is measured
TURNS = 8  # of an attempt
KEEP = "--keep"
SOAK_S = 1_800.0
SOAK = "--soak"  # nothing but the soak
SLOWER = 1.5  # so many times the figure before is told
MEANINGS = {
    "allocation_p95_ms": "a thinking budget: the task assessed, the budget allocated, and on disk",
    "diff_p95_ms": f"edit script of a small change to {LINES:,} lines, slowest language; CPU time",
    "judge_overhead_p95_ms": "one judgement, rules and keeping included, by a model that answers at once",
    "inference_p95_ms": "an answer of the embedded model, up to 80 tokens, one at a time",
    "collect_ms_per_turn": f"CPU of a turn: traced, stored, in attempts of {TURNS} turns with 8 workers",
    "endpoint_p95_ms": "of every panel of 'holdfast serve', over `rollouts` in one run",
    "endpoints_p95_ms": "the same by panel",
    "endpoints_cpu_ms": "CPU of the server for one request, by panel, in the mean",
    "counting_looks": "looks at the overview until a server that has just begun has counted the run",
    "counting_p95_ms": "the 95th percentile of these",
    "first_paint_ms": "first contentful paint of the overview in Chromium, median, over the same store",
    "rollouts": "in that store",
    "rss_growth_mb": "gained in the soak after it was warm, the larger of driver and server",
    "rss_growth": "the same by process",
    "rss_growth_mb_per_min": "the larger of them by the minute, between the middles of the two times compared",
    "soak_s": f"how long it took; the promise is about {SOAK_S:.0f} s, and a shorter soak does not tell",
    "wants": "what is expected, and whether it is so",
    "against": "this figure over the committed one, where there is one of the same size",
    "slower": f"those that are {SLOWER} times the committed ones, or more",
    "reason": "why a figure is none",
}
WANTS: Mapping[str, float] = {
    "allocation_p95_ms": 50.0,
    "diff_p95_ms": 200.0,
    "judge_overhead_p95_ms": 20.0,
    "inference_p95_ms": 1000.0,
    "collect_ms_per_turn": 5.0,
    "endpoint_p95_ms": 50.0,
    "first_paint_ms": 1000.0,
    "rss_growth_mb": 16.0,
}


def measure(quick: bool, *, keep: bool = False) -> Figures:
    sys.path.append(str(report.ROOT))
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        progress("allocation")
        figures["allocation_p95_ms"] = rounded(allocating(folder / "budgets.sqlite", 100 if quick else 1_000))
        progress("diff")
        figures["diff_p95_ms"] = rounded(differing(4 if quick else 40))
        progress("judging")
        figures["judge_overhead_p95_ms"] = rounded(judging(folder / "judges.sqlite", 100 if quick else 1_000))
        progress("inference")
        figures["inference_p95_ms"] = rounded(inferring(10 if quick else 60))
        progress("collection")
        figures["collect_ms_per_turn"] = rounded(collecting(folder / "turns.sqlite", 100 if quick else 1_000))
        figures |= looking(folder / "long.sqlite", 100_000 if quick else 1_000_000, 5 if quick else 40)
        (folder / "soak").mkdir()
        figures |= soaking(folder / "soak", 100.0 if quick else SOAK_S)
    figures["wants"] = {name: wanted(figures[name], bound) for name, bound in WANTS.items()}
    if quick:  # what a minute and a half gains says nothing about half an hour
        figures["wants"]["rss_growth_mb"]["is_met"] = None
    kind, kept = "quick" if quick else "whole", before()
    figures |= compared(figures, kept.get(kind, {}))
    if keep:
        told = {name: value for name, value in figures.items() if name not in ("wants", "against", "slower")}
        BEFORE.write_text(json.dumps({**kept, kind: told | report.machine()}, indent=2, sort_keys=True) + "\n")
    return figures


def only_soak(quick: bool) -> Figures:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        return soaking(Path(name), 100.0 if quick else SOAK_S)


def soaking(folder: Path, for_s: float) -> Figures:
    """What driver and server gain, and the pace of it: a driver that fills a cache slows down, one that leaks does
    not."""
    progress(f"soak of {for_s:.0f} s")
    grown = soak(folder, for_s)
    most = max(grown.values())
    return {
        "soak_s": for_s,
        "rss_growth": grown,
        "rss_growth_mb": most,
        "rss_growth_mb_per_min": rounded(most / (0.5 * for_s / 60.0)),
    }


def wanted(value: float | None, bound: float) -> dict[str, Any]:
    return {"at most": bound, "is_met": None if value is None else value <= bound}


def before() -> Mapping[str, Any]:
    """What is committed; nothing where nothing is."""
    try:
        found = json.loads(BEFORE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def compared(figures: Figures, old: Mapping[str, Any]) -> Figures:
    ratios = {
        name: rounded(figures[name] / old[name])
        for name in WANTS
        if name != "rss_growth_mb" and figures[name] is not None and isinstance(old.get(name), float) and old[name]
    }
    return {"against": ratios, "slower": [name for name, ratio in ratios.items() if ratio >= SLOWER]}


def allocating(path: Path, n: int) -> float:
    tasks = [{"prompt": f"Compute {i} and then look up {i + 1}.", "tools": ["lookup", "calc"]} for i in range(n)]
    took = []
    with open_store(path) as store:
        run = begin_run(store)
        named = [Task(name=f"t{i}", input=task) for i, task in enumerate(tasks)]
        store.queue.enqueue(run, named, now=time.time()).result()
        claims = store.queue.claim(run, "worker-1", now=time.time(), lease_s=600.0, most=n).result()
        for claim in claims:
            attempt = claim.attempt

            def keep(change: Any, attempt: Any = attempt) -> None:
                store.budgets.record(attempt, change, now=time.time()).result()

            purse = BudgetTracker(attempt.id, claim.rollout.input, keep, time.time)
            began = time.perf_counter()
            purse.grant([{"role": "user", "content": claim.rollout.input["prompt"]}], ())
            took.append(1000.0 * (time.perf_counter() - began))
    return p95(took)


def differing(repeats: int) -> float:
    slowest = 0.0
    for language, suffix in LANGUAGES.items():
        pairs = changes(program(suffix, LINES), repeats)
        slowest = max(slowest, diff_p95(lambda b, a, known=language: compare(b, a, known), pairs))
    return slowest


def judging(path: Path, n: int) -> float:
    async def instant(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        said = {"role": "assistant", "content": "yes\nconfidence: 0.9\nit is right"}
        return ModelCall(model="instant", messages=tuple(messages), response=said)

    async def ask() -> list[float]:
        took, rules = [], RuleJudge(clock=time.time)
        judge = CachedJudge(LlmJudge(name="instant", complete=instant, clock=time.time), store.judgements)
        for number in range(n):
            one = EvalItem(task=f"What is {number} + 2?", output=str(number + 2), context="sums")
            began = time.perf_counter()
            await cascade(CRITERIA["relevance"], one, [[judge]], rules=rules, calibrated=store.judgements.calibration)
            took.append(1000.0 * (time.perf_counter() - began))
        return took

    with open_store(path) as store:
        return p95(asyncio.run(ask()))


def inferring(n: int) -> float:
    from holdfast.policies.engine import Local
    from holdfast.policies.model import load_transformer

    model, manifest = load_transformer("sprout")
    local = Local(model, name="local/sprout", version=manifest.sha256[:12], slots=1, seed=0)

    async def ask() -> list[float]:
        took = []
        for number in range(n + 1):
            began = time.perf_counter()
            await local([{"role": "user", "content": f"What is {number} * 23?"}], max_tokens=80)
            took.append(1000.0 * (time.perf_counter() - began))
        return took[1:]  # the first warms up

    try:
        return p95(asyncio.run(ask()))
    finally:
        local.close()


async def talker(task: Any, context: Context) -> str:
    messages: list[Mapping[str, Any]] = [{"role": "user", "content": "go on"}]
    for _ in range(TURNS):
        call = await context.ask(messages)
        messages += [call.response, {"role": "user", "content": "and then?"}]
    return "done"


class Instant:
    """A model that costs next to nothing."""

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        said = {"role": "assistant", "content": "so it was"}
        ids = tuple(range(16))
        return ModelCall(
            model="instant",
            messages=tuple(messages),
            response=said,
            prompt_ids=ids,
            completion_ids=ids,
            logprobs=(-0.5,) * len(ids),
        )


async def work_off(store: Store, run: str) -> None:
    instant = Instant()
    home = AgentRuntime(talker, lambda task, output, spans: (), lambda version: instant, time.time)
    pool = Pool(store, run, lambda: Slot(home.executor()), 8, clock=time.time, pace=PoolTiming())
    working = asyncio.create_task(pool.work())
    while not store.views.is_done(run):
        await store.changes.after(FINISHED, store.changes.seen(FINISHED))
        await asyncio.sleep(0.05)
    pool.drain()
    await working
    home.close()


def collecting(path: Path, rollouts: int) -> float:
    with open_store(path) as store:
        run = begin_run(store)
        tasks = [Task(name=f"t{n}", input={"n": n}) for n in range(rollouts)]
        store.queue.enqueue(run, tasks, now=time.time()).result()
        cpu = time.process_time()
        asyncio.run(work_off(store, run))
        return 1000.0 * (time.process_time() - cpu) / (rollouts * TURNS)


def looking(path: Path, n: int, times: int) -> Figures:
    from tests.store.filled import filled

    progress(f"a store of {n:,} rollouts")
    filled(path, n)
    with serving(path) as server:
        figures = {"rollouts": n} | answering(server, path, times)
        progress("first paint")
        painted = painting(server, 3 if times < 10 else 9)
    if isinstance(painted, str):
        return figures | {"first_paint_ms": None, "reason": {"first_paint_ms": painted}}
    return figures | {"first_paint_ms": rounded(painted), "reason": {}}


if __name__ == "__main__":
    keep, alone = KEEP in sys.argv, SOAK in sys.argv
    sys.argv = [word for word in sys.argv if word not in (KEEP, SOAK)]  # the others are those of every benchmark
    measured = only_soak if alone else partial(measure, keep=keep)
    report.main("Whether every part keeps to its budget.", measured, MEANINGS)
