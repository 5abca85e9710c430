"""How long the control room takes to answer, and to be seen, over a store with a long history; and what it keeps.

The server is `holdfast serve` itself, in a process of its own. Each panel is asked as a program would, one request
after another and no faster than its limit allows; the page is opened by a real browser, with nothing in its cache.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from urllib.parse import quote

from holdfast.contracts.commands import Role
from holdfast.contracts.rollout import RolloutState
from holdfast.operate.auth import digest, mint
from holdfast.store.store import open_store
from parts import report

CHROMIUM = "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
ADDRESS = re.compile(r"http://([^:/]+):(\d+)/")
PAUSE_S = 0.055  # between two requests: a token may ask 20 times a second
PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    host: str
    port: int
    pid: int
    token: str

    def ask(self, path: str) -> float:
        """Milliseconds until the whole answer is there."""
        return self.read(path)[0]

    def read(self, path: str) -> tuple[float, bytes]:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=120)
        began = time.perf_counter()
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        answer = connection.getresponse()
        body = answer.read()
        took = 1000.0 * (time.perf_counter() - began)
        connection.close()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        return took, body


@contextmanager
def serving(store: Path) -> Iterator[Server]:
    token = mint()
    with open_store(store) as opened:
        opened.tokens.add("benchmark", Role.ADMIN, digest(token), time.time()).result()
    words = [sys.executable, "-m", "holdfast.cli", "serve", "--port", "0", "--store", str(store)]
    log = store.with_suffix(".serve.log")
    with log.open("wb") as out:
        process = subprocess.Popen(words, stdout=out, stderr=subprocess.STDOUT)
    try:
        while (found := ADDRESS.search(log.read_text())) is None:
            if process.poll() is not None:
                raise RuntimeError(f"holdfast serve ended: {log.read_text()[-300:]}")
            time.sleep(0.05)
        yield Server(host=found[1], port=int(found[2]), pid=process.pid, token=token)
    finally:
        process.kill()
        process.wait()


def paths(store: Path) -> dict[str, str]:
    """Every panel, about what is in the store."""
    with open_store(store) as opened:
        run = opened.runs.newest(most=1)[0].id
        key, rollout = opened.figures.page(run, most=1, status=RolloutState.SUCCEEDED).rollouts[0]
        releases = [one for policy in opened.releases.policies() for one in opened.releases.of_policy(policy)]
    about = {"run": quote(run), "rollout": quote(rollout.id, safe=""), "group": quote(str(rollout.metadata["group"]))}
    found = {name: f"/api/{name}" for name in ("overview", "runs", "proofs", "experiments", "releases", "workers")}
    found |= {name: f"/api/{name}" for name in ("alerts", "audit", "flags")}
    found |= {name: f"/api/{name}?run={about['run']}" for name in ("run", "rollouts", "learning", "tools", "budgets")}
    found |= {"rollout": f"/api/rollout?rollout={about['rollout']}"}
    found |= {"group": f"/api/group?run={about['run']}&group={about['group']}&near={key}"}
    found |= {f"proof of {one.id}": f"/api/proof?release={quote(one.id)}" for one in releases if one.evidence}
    names = ("dashboard/health", "dashboard/widgets", "dashboard/queue-timeline", "dashboard/alerts")
    found |= {name: f"/{name}" for name in (*names, "gateway/training/status", "gateway/training/rollouts", "metrics")}
    return found


def answering(server: Server, store: Path, times: int) -> report.Figures:
    """Of all requests, and of each panel, in milliseconds; the first of each only warms up.

    The time on the clock is what somebody waits; the server's CPU time is what it costs, also where others are at work.
    A server that has just begun counts a long run part by part, with every look; that is told by itself.
    """
    counting = counted(server)
    every: list[float] = []
    each: dict[str, float] = {}
    cpu: dict[str, float] = {}
    for name, path in paths(store).items():
        report.progress(f"GET {path}")
        server.ask(path)
        began, took = cpu_s(server.pid), []
        for _ in range(times):
            time.sleep(PAUSE_S)
            took.append(server.ask(path))
        every += took
        each[name] = report.rounded(p95(took))
        cpu[name] = report.rounded(1000.0 * (cpu_s(server.pid) - began) / times)
    told = {"endpoint_p95_ms": report.rounded(p95(every)), "endpoints_p95_ms": each, "endpoints_cpu_ms": cpu}
    return told | {"counting_looks": len(counting), "counting_p95_ms": report.rounded(p95(counting))}


def counted(server: Server) -> list[float]:
    """How long each look took until the run was counted."""
    took = []
    for _ in range(2_000):
        ms, body = server.read("/api/overview")
        took.append(ms)
        if json.loads(body)["queue"]["is_whole"]:
            break
        time.sleep(PAUSE_S)
    return took


def cpu_s(pid: int) -> float:
    """User and system time of a process, all threads; in steps of a hundredth of a second."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def painting(server: Server, times: int) -> float | str:
    """The median of first contentful paints of the overview, in milliseconds; or why nothing can be seen."""
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as error:
        return str(error)
    origin = f"http://{server.host}:{server.port}"
    try:
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
            took = []
            for _ in range(times):
                context = browser.new_context(viewport={"width": 1320, "height": 900})
                sent = context.request.post(
                    f"{origin}/login", data={"token": server.token}, headers={"X-Holdfast": "1", "Origin": origin}
                )
                if not sent.ok:
                    return f"login: {sent.status}"
                page = context.new_page()
                page.goto(f"{origin}/")
                page.wait_for_function(PAINTED, timeout=60_000)
                took.append(float(page.evaluate(PAINTED)))
                context.close()
                time.sleep(1.0)
            browser.close()
    except Error as error:
        return str(error).splitlines()[0]
    return median(took)


def p95(took: list[float]) -> float:
    ordered = sorted(took)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))]


def resident_mb(pid: int) -> float | None:
    """What a process keeps in memory; None once it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def soak(folder: Path, for_s: float) -> dict[str, float]:
    """Megabytes that a driver under load, and a server that is asked about it, have gained since they were warm.

    Warm is the second quarter of the time, the end its last quarter; the median of each.
    """
    from holdfast.operate.drills import Load

    config = Load(tasks=int(40 * for_s) + 2_000, seconds=0.2).config()
    (folder / "config.json").write_text(json.dumps(config))
    store = folder / "soak.sqlite"
    words = ["optimize", "--config", str(folder / "config.json"), "--store", str(store)]
    with (folder / "soak.log").open("wb") as out:
        driver = subprocess.Popen([sys.executable, "-m", "holdfast.cli", *words], stdout=out, stderr=out)
    try:
        while not (folder / "status.json").is_file():
            if driver.poll() is not None:
                raise RuntimeError(f"the soak ended: {(folder / 'soak.log').read_text()[-300:]}")
            time.sleep(0.1)
        with serving(store) as server:
            pids = {"driver": driver.pid, "serve": server.pid}
            seen: dict[str, list[tuple[float, float]]] = {name: [] for name in pids}
            began = time.monotonic()
            while (past := time.monotonic() - began) < for_s:
                for path in ("/api/overview", "/api/runs", "/metrics"):
                    server.ask(path)
                for name, pid in pids.items():
                    if (found := resident_mb(pid)) is not None:
                        seen[name].append((past, found))
                time.sleep(0.5)
    finally:
        driver.kill()
        driver.wait()
    return {name: report.rounded(_grown(kept, for_s)) for name, kept in seen.items()}


def _grown(kept: list[tuple[float, float]], for_s: float) -> float:
    warm = [mb for at, mb in kept if 0.25 * for_s <= at < 0.5 * for_s]
    end = [mb for at, mb in kept if at >= 0.75 * for_s]
    return median(end) - median(warm)
