"""The canary drill: live traffic against a service, a bad version that got past every gate, and how it is taken back.

    .venv/bin/python tests/drills/canary.py [--quick] [--json] [--degrade quality|errors]

A service answers real conversations (tools and all) from many callers at once. In the middle of it a worse version is
made a canary by somebody who bypassed the gate: one that answers badly (quality), or one whose weights are ruined and
give no answer at all (errors), where the live one has to answer in its place. The guard has to see it in the traffic
and take it back by itself, within the limit of a version rollback, and not one request may fail.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).resolve().parents[2])
if __name__ == "__main__":
    sys.path[0] = ROOT  # in place of this folder

import aiohttp  # noqa: E402

from holdfast.collect.agent import Context, Tracer  # noqa: E402
from holdfast.contracts.executor import Assignment  # noqa: E402
from holdfast.contracts.release import PolicyKind, Stage  # noqa: E402
from holdfast.contracts.trace import ModelCall  # noqa: E402
from holdfast.policies import registry  # noqa: E402
from holdfast.policies.weights import save_transformer  # noqa: E402
from holdfast.store.store import Store, open_store  # noqa: E402
from holdfast.workloads.tooluse.agent import agent  # noqa: E402
from holdfast.workloads.tooluse.score import score  # noqa: E402
from holdfast.workloads.tooluse.tasks import generate, to_input  # noqa: E402

POLICY = "drill"
SHARE = 25
LIMIT_S = 300.0  # a rollback to the last version may take five minutes
ADDRESS = re.compile(r"http://\S+/v1")


@dataclass(slots=True)
class Traffic:
    """What the callers saw."""

    requests: int = 0
    failed: list[str] = field(default_factory=list)
    versions: Counter[str] = field(default_factory=Counter)  # answers by version, as the service names them
    after: Counter[str] = field(default_factory=Counter)  # of requests begun after the rollback
    solved: Counter[str] = field(default_factory=Counter)
    rolled_back: bool = False


class Caller:
    """One conversation's model: the service, asked with the same key all along."""

    def __init__(self, session: aiohttp.ClientSession, base: str, key: str, seen: Traffic) -> None:
        self._session, self._base, self._key, self._seen = session, base, key, seen
        self.last: str | None = None

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        body = {"model": POLICY, "messages": list(messages), "user": self._key, **sampling}
        self._seen.requests += 1
        began_after = self._seen.rolled_back
        async with self._session.post(f"{self._base}/chat/completions", json=body) as response:
            answer = await response.json()
        if response.status != 200:
            self._seen.failed.append(f"{response.status}: {json.dumps(answer)[:200]}")
            raise RuntimeError("a request failed")
        version = answer["model"].split("/", 1)[-1].rpartition("@")[0]
        self._seen.versions[version] += 1
        if began_after:
            self._seen.after[version] += 1
        self.last = answer["id"]
        return ModelCall(model=answer["model"], messages=tuple(messages), response=answer["choices"][0]["message"])

    async def tell(self, success: float) -> None:
        async with self._session.post(f"{self._base}/feedback", json={"id": self.last, "success": success}) as response:
            await response.read()


async def converse(number: int, session: aiohttp.ClientSession, base: str, seen: Traffic) -> None:
    """A held-out task, answered through the service, and what came of it."""
    task = {**to_input(generate("test", 100_000 + number, 1)[0]), "sampling": {"max_tokens": 80}, "max_turns": 4}
    caller = Caller(session, base, f"caller-{number}", seen)
    trace = Tracer(record=lambda span: None, clock=time.time)
    assignment = Assignment(
        rollout="drill", attempt="drill", number=1, split=None, input=task, resources={}, seed=number
    )
    try:
        output = await agent(task, Context(assignment=assignment, trace=trace, complete=caller))
    except RuntimeError:
        return
    await caller.tell(score(task, output, trace.spans)[0].value)


async def traffic(base: str, seen: Traffic, stop: asyncio.Event, *, callers: int) -> None:
    numbers = iter(range(10**9))

    async def call_again(session: aiohttp.ClientSession) -> None:
        while not stop.is_set():
            await converse(next(numbers), session, base, seen)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=120)) as session:
        await asyncio.gather(*(call_again(session) for _ in range(callers)))


@contextmanager
def service(folder: Path) -> Iterator[str]:
    """`holdfast release serve`, as a user would start it; its address."""
    command = [sys.executable, "-m", "holdfast.cli", "release", "serve", POLICY, "--port", "0", "--store", "s.sqlite"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), ROOT]))}
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = ADDRESS.search(line)
        if found is None:
            raise RuntimeError(f"the service did not start: {line}")
        yield found.group()
    finally:
        process.terminate()
        process.wait(60)


def ruined(folder: Path) -> Path:
    """Weights as a training that diverged leaves them: they load, and every answer breaks."""
    model, manifest = registry.load("sprout")
    for each in model.parameters():
        each.data.fill_(math.nan)
    save_transformer(folder, model, replace(manifest, parent=None))
    return folder


def prepare(store: Store, degrade: str, folder: Path) -> None:
    """A live version, and a bad candidate."""
    now = time.time()
    releases = store.releases
    bad = "shelf:sprout-weak" if degrade == "quality" else f"weights:{ruined(folder / 'ruined')}"
    for source in ("shelf:sprout", bad):
        releases.add(policy=POLICY, kind=PolicyKind.WEIGHTS, source=source, who="drill", now=now).result()
    by: dict[str, Any] = {"expect": Stage.CANDIDATE, "who": "drill", "why": "first", "known_good": True}
    releases.move(f"{POLICY}@1", Stage.LIVE, now=now, **by).result()


async def drill(folder: Path, *, callers: int, degrade: str, after_s: float) -> dict[str, Any]:
    """What came of it; `taken_over`: requests that the canary failed, and the live one answered."""
    with open_store(folder / "s.sqlite") as store:
        prepare(store, degrade, folder)
        seen, stop = Traffic(), asyncio.Event()
        with service(folder) as base:
            calling = asyncio.create_task(traffic(base, seen, stop, callers=callers))
            await asyncio.sleep(2.0)  # traffic before anything happens
            began = time.time()
            await store.releases.move(
                f"{POLICY}@2", Stage.CANARY, expect=Stage.CANDIDATE, share=SHARE, who="drill", why="bypass", now=began
            )
            ended = await _rolled_back(store, began + LIMIT_S)
            await _followed(seen)
            seen.rolled_back = ended is not None
            await asyncio.sleep(after_s)
            stop.set()
            await calling
        live = store.releases.live(POLICY)
        taken_over = sum(one.error for trial in store.trials.all() for one in store.trials.served(trial.name))
        entries = [one.body for one in store.releases.history(POLICY) if "roll_back" in one.body]
    by_canary, later = seen.versions[f"{POLICY}@2"], seen.after[f"{POLICY}@2"]
    is_seen = bool(by_canary if degrade == "quality" else taken_over)
    is_back = ended is not None and not later and live is not None and live.id == f"{POLICY}@1"
    return {
        "degrade": degrade,
        "requests": seen.requests,
        "failed": seen.failed,
        "answers": dict(seen.versions),
        "seconds_to_rollback": None if ended is None else ended - began,
        "canary_answers": by_canary,
        "taken_over": taken_over,
        "reasons": [reason["code"] for body in entries for reason in body["reasons"]],
        "later_canary_answers": later,
        "live": None if live is None else live.id,
        "holds": is_seen and is_back and not seen.failed,
    }


async def _followed(seen: Traffic, patience_s: float = 60.0) -> None:
    """The service sees it in a second, or later on a busy machine: until thirty answers in a row are the live one's."""
    began = time.monotonic()
    last, at = -1, 0
    while time.monotonic() - began < patience_s:
        now, total = seen.versions[f"{POLICY}@2"], sum(seen.versions.values())
        last, at = (last, at) if now == last else (now, total)
        if total - at >= 30 and time.monotonic() - began >= 1.0:
            return
        await asyncio.sleep(0.1)


async def _rolled_back(store: Store, deadline: float) -> float | None:
    while time.time() < deadline:
        for entry in store.releases.history(POLICY):
            if "roll_back" in entry.body:
                return entry.at
        await asyncio.sleep(0.1)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description="A bad canary under live traffic, taken back by itself.")
    parser.add_argument("--quick", action="store_true", help="fewer callers")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--degrade", choices=("quality", "errors"), default="quality", help="what is wrong with it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        callers, after_s = (8, 2.0) if options.quick else (24, 5.0)
        result = asyncio.run(drill(Path(folder), callers=callers, degrade=options.degrade, after_s=after_s))
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        print("\n".join(f"{name.replace('_', ' ')}: {value}" for name, value in result.items()))
    return 0 if result["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())
