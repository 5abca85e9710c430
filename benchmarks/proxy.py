"""What the proxy adds to a call, and how many it takes, beside LiteLLM's and Agent Lightning's and no proxy at all.

All stand before the same scripted upstream (`parts/scripted.py`) and are asked by the same callers
(`parts/callers.py`), in turns, because the machine is shared. `holdfast` is `holdfast proxy` as it starts by itself:
every call is on disk before its last byte is sent, scrubbed, with token ids and log-probs; `unscrubbed` is the same
with --no-scrub. The peers run as they are installed in their environment, and write nothing to a disk; one that cannot
be run is null, and `reason` says why.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from parts import callers, report
from parts.callers import Lap
from parts.peer import PeerAbsent, program
from parts.report import Figures, progress, rounded
from parts.scripted import FIRST_S, PACE_S, TOKENS
from parts.ways import CALLERS, AgentLightning, Direct, LiteLLM, Ours, Way

FEW = 4  # callers where the time of one call is measured: nobody waits for another
OURS, PEERS = ("holdfast", "unscrubbed"), ("litellm", "agentlightning")
NAMES = ("direct", *OURS, *PEERS)
MEANINGS = {
    "added_p50_ms": f"to the first token ({FIRST_S * 1e3:g} ms without a proxy, {FEW} callers), half of the calls",
    "added_p99_ms": "to the first token, 99 of 100 calls; over the median without a proxy",
    "added_end_p50_ms": f"to the last byte, which waits for the record; {TOKENS} tokens, {PACE_S * 1e3:g} ms each",
    "added_end_p99_ms": "to the last byte, 99 of 100 calls",
    "requests_per_s": f"whole answers, {CALLERS} callers, all processes on this machine; by way",
    "tokens_per_s": f"streamed as fast as they come, each token an event, {CALLERS} callers; by way",
    "cpu_ms_per_call": "of the proxy's process, whole answers; expected below 1",
    "cpu_ms_per_stream": f"the same, streams of {TOKENS} tokens",
    "vs_litellm_rps": "times LiteLLM's requests/s; expected at least 10",
    "vs_agentlightning_rps": "times Agent Lightning's requests/s",
    "vs_litellm_cpu": "times less CPU a call than LiteLLM: what a busy machine changes least",
    "vs_agentlightning_cpu": "times less CPU a call than Agent Lightning",
    "vs_litellm_tokens": "times LiteLLM's streamed tokens/s",
    "vs_agentlightning_tokens": "times Agent Lightning's, which sends no token before the last has come",
    "memory_growth_mb": "resident, over the second half of memory_requests; flat once SQLite's 64 MB cache is full",
    "resident_mb": "of our proxy after all of them",
    "records_per_call": "spans that are whole in the store, over calls that passed; expected 1",
    "failed": "calls that got no whole answer, by way",
    "by_way": "the same for each proxy, and the time to the first token without one",
    "fdatasync_per_s": "what this disk can do, one after another",
    "wants": "what is expected, and whether it is so",
    "reason": "why a figure is none",
}
WANTS: Mapping[str, tuple[str, float]] = {
    "added_p50_ms": ("at most", 3.0),
    "cpu_ms_per_call": ("at most", 1.0),
    "vs_litellm_rps": ("at least", 10.0),
    "memory_growth_mb": ("at most", 10.0),
    "records_per_call": ("at least", 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    rounds: int
    lap_s: float  # of each way, whole and streamed, in a round
    paced: int  # calls of each way in a round, for the time of one
    memory: int  # requests


FULL = Size(rounds=5, lap_s=4.0, paced=400, memory=100_000)
QUICK = Size(rounds=1, lap_s=1.0, paced=80, memory=2_000)
WARM = CALLERS  # calls of each kind before the clock starts
PEERS_SHARE = 4  # of the paced calls a peer gets so many times fewer: each takes so much longer


class Tally:
    """What came of all calls that went one way."""

    def __init__(self, way: Way) -> None:
        self.way = way
        self.calls = self.failed = 0
        self.paced = Lap()
        self.rates: dict[bool, list[float]] = {False: [], True: []}  # by whether it was streamed
        self.cpu_ms: dict[bool, list[float]] = {False: [], True: []}

    def lap(self, model: str, *, is_streamed: bool, many: int = CALLERS, **until: float) -> Lap:
        way = self.way
        lap = callers.lap(way.port, way.paths[:many], way.headers, model=model, is_streamed=is_streamed, **until)
        self.calls += lap.calls
        self.failed += lap.failed
        return lap

    @property
    def is_measured(self) -> bool:
        return bool(self.paced.firsts_s) and all(median(rates) > 0 for rates in self.rates.values())

    def rush(self, is_streamed: bool, lap_s: float) -> None:
        before = self.way.cpu_s()
        lap = self.lap("instant", is_streamed=is_streamed, for_s=lap_s)
        self.rates[is_streamed].append(lap.per_s)
        self.cpu_ms[is_streamed].append(1e3 * (self.way.cpu_s() - before) / max(lap.calls, 1))

    def stroll(self, calls: int) -> None:
        lap = self.lap("paced", is_streamed=True, many=FEW, calls=calls)
        self.paced.firsts_s += lap.firsts_s
        self.paced.ends_s += lap.ends_s


def measure(quick: bool) -> Figures:
    size, reasons = QUICK if quick else FULL, dict[str, str]()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, ExitStack() as open_ways:
        folder = Path(name)
        ways = begin(folder, open_ways, reasons)
        tallies = {name: Tally(way) for name, way in ways.items()}
        progress(f"memory over {size.memory:,} requests, while the peers start")
        figures = memory(tallies["holdfast"], size.memory)
        for peer in [name for name in PEERS if name in ways]:
            start(peer, tallies, reasons)
        take_turns(tallies, size)
        for name in [name for name in PEERS if name in tallies and not tallies[name].is_measured]:
            reasons[name] = f"{tallies.pop(name).failed} of its calls failed, and of one kind all"
        figures = added(tallies, "holdfast") | rates(tallies) | figures | {"by_way": by_way(tallies)}
        figures["records_per_call"] = records(tallies)
        figures["fdatasync_per_s"] = rounded(report.fdatasync_per_s(folder, 0.5))
    figures["failed"] = {name: tally.failed for name, tally in tallies.items()}
    figures |= {"versions": versions(), "reason": reasons}
    return figures | {"wants": {name: wanted(name, figures) for name in WANTS}}


def begin(folder: Path, open_ways: ExitStack, reasons: dict[str, str]) -> dict[str, Way]:
    """All of them; ours are ready, the peers, which take longest, are about to be."""
    ways: dict[str, Way] = {}

    def add(name: str, make: Callable[[], Way]) -> None:
        try:
            ways[name] = make()
        except PeerAbsent as absent:
            reasons[name] = str(absent)
            return
        open_ways.callback(ways[name].close)

    add("direct", Direct)
    ways["direct"].ready()
    upstream = ways["direct"].port
    add("litellm", lambda: LiteLLM(upstream, folder))
    add("agentlightning", lambda: AgentLightning(upstream))
    for name in OURS:
        add(name, lambda name=name: Ours(upstream, folder / name, is_scrubbed=name == "holdfast"))  # type: ignore[misc]
    for name in OURS:
        ways[name].ready()
    return {name: ways[name] for name in NAMES if name in ways}


def start(peer: str, tallies: dict[str, Tally], reasons: dict[str, str]) -> None:
    """Until it answers as the upstream does; without it where it never will."""
    progress(f"waiting for {peer}")
    way = tallies[peer].way
    try:
        way.ready()
        for is_streamed in (False, True):
            said = callers.said(way.port, way.paths[0], way.headers, is_streamed=is_streamed)
            if not said.startswith("Order "):
                raise PeerAbsent(f"it said {said!r}")
    except (PeerAbsent, OSError, TimeoutError) as absent:
        reasons[peer] = str(absent) or type(absent).__name__
        progress(f"without {peer}: {reasons[peer]}")
        del tallies[peer]


def take_turns(tallies: Mapping[str, Tally], size: Size) -> None:
    for tally in tallies.values():
        for is_streamed in (False, True):
            tally.lap("instant", is_streamed=is_streamed, calls=WARM)
        tally.lap("paced", is_streamed=True, many=FEW, calls=FEW)
    for number in range(size.rounds):
        progress(f"round {number + 1} of {size.rounds}")
        for name, tally in tallies.items():
            tally.stroll(size.paced // PEERS_SHARE if name in PEERS else size.paced)
        for is_streamed in (False, True):
            for tally in tallies.values():
                tally.rush(is_streamed, size.lap_s)


def memory(tally: Tally, requests: int) -> Figures:
    tally.lap("instant", is_streamed=False, calls=requests // 2)
    half = tally.way.resident_mb()
    tally.lap("instant", is_streamed=False, calls=requests - requests // 2)
    end = tally.way.resident_mb()
    return {"memory_requests": requests, "memory_growth_mb": round(end - half, 2), "resident_mb": rounded(end)}


def quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def added(tallies: Mapping[str, Tally], name: str) -> Figures:
    """Milliseconds over the median without a proxy: the slow tail of the machine itself counts against us."""
    straight, lap = tallies["direct"].paced, tallies[name].paced
    return {
        f"added_{what}p{share}_ms": rounded(1e3 * (quantile(mine, share / 100) - median(theirs)))
        for what, mine, theirs in (("", lap.firsts_s, straight.firsts_s), ("end_", lap.ends_s, straight.ends_s))
        for share in (50, 99)
    }


def rates(tallies: Mapping[str, Tally]) -> Figures:
    whole = {name: median(tally.rates[False]) for name, tally in tallies.items()}
    cpu = {name: 1 / median(tally.cpu_ms[False]) for name, tally in tallies.items()}
    streams = {name: median(tally.rates[True]) for name, tally in tallies.items()}
    figures: Figures = {
        "requests_per_s": {name: rounded(whole[name]) if name in whole else None for name in NAMES},
        "tokens_per_s": {name: rounded(TOKENS * streams[name]) if name in streams else None for name in NAMES},
        "cpu_ms_per_call": rounded(median(tallies["holdfast"].cpu_ms[False])),
        "cpu_ms_per_stream": rounded(median(tallies["holdfast"].cpu_ms[True])),
    }
    for peer in PEERS:
        figures[f"vs_{peer}_rps"] = ratio(whole, peer)
        figures[f"vs_{peer}_cpu"] = ratio(cpu, peer)
        figures[f"vs_{peer}_tokens"] = ratio(streams, peer)
    return figures


def ratio(rate: Mapping[str, float], peer: str) -> float | None:
    return rounded(rate["holdfast"] / rate[peer]) if rate.get(peer) else None


def by_way(tallies: Mapping[str, Tally]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in NAMES:
        if name not in tallies:
            found[name] = None
            continue
        tally = tallies[name]
        found[name] = {
            "first_p50_ms": rounded(1e3 * median(tally.paced.firsts_s)),
            "first_p99_ms": rounded(1e3 * quantile(tally.paced.firsts_s, 0.99)),
            **(added(tallies, name) if name != "direct" else {}),
            "cpu_ms_per_call": rounded(median(tally.cpu_ms[False])),
            "cpu_ms_per_stream": rounded(median(tally.cpu_ms[True])),
            "calls": tally.calls,
        }
    return found


def records(tallies: Mapping[str, Tally]) -> float:
    """Of ours, the worse of both; the peers' are told in passing, because theirs are of another kind."""
    shares = []
    for name, tally in tallies.items():
        if (kept := tally.way.kept()) is None:
            continue
        progress(f"{name}: {kept:,} spans of {tally.calls:,} calls")
        if name in OURS:
            shares.append(kept / tally.calls)
    return min(shares)


def versions() -> dict[str, str]:
    """Of what the calls pass through."""
    found = {name: version(name) for name in ("uvicorn", "aiohttp", "starlette")}
    try:
        places = program("python").parents[1].glob("lib/python*/site-packages/*.dist-info")
    except PeerAbsent:
        return found
    known = dict(place.name.removesuffix(".dist-info").rsplit("-", 1) for place in places)
    return found | {name: known[name] for name in ("litellm", "agentlightning") if name in known}


def wanted(name: str, figures: Figures) -> dict[str, Any]:
    """Null where nobody can tell: memory is judged only when the caches have had time to fill."""
    word, bound = WANTS[name]
    value = figures[name]
    is_early = name == "memory_growth_mb" and figures["memory_requests"] < FULL.memory
    if value is None or is_early:
        return {word: bound, "is_met": None}
    return {word: bound, "is_met": value <= bound if word == "at most" else value >= bound}


if __name__ == "__main__":
    report.main("What the proxy adds to a call, against its peers.", measure, MEANINGS)
