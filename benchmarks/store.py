"""How fast the store is, beside what bare sqlite3 could do, Agent Lightning's in-memory store, and itself on Postgres.

All of it in one run, because the machine is shared: ours, the bare one and the peer take turns, a median is taken of
each, and they are compared per CPU-second. What a rollout does is in `parts/life.py`, how the ceiling is found in
`parts/tape.py`, how growth is measured in `parts/growth.py`.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from holdfast.store.db import Db
from holdfast.store.store import Store, open_store
from parts import report, tape
from parts.growth import growth
from parts.life import WRITES, Lap, begin_run, live
from parts.peer import Peer, PeerAbsent
from parts.report import Figures, progress, rounded

MEANINGS = {
    "rollouts_per_s": "SQLite, WAL, synchronous FULL, 32 in flight",
    "rollouts_per_cpu_s": "the same per CPU-second of this process, all threads",
    "claim_p50_ms": "half of the claims are on disk within",
    "claim_p99_ms": "99 of 100",
    "bytes_per_rollout": "file and log after a checkpoint, over an empty store; with its attempt and four spans",
    "commits_per_rollout": "each is one fsync, shared by the rollouts in flight",
    "writes_per_commit": "how many calls share it",
    "raw_rollouts_per_cpu_s": "bare sqlite3: same statements, order and commit points",
    "raw_ceiling_ratio": "ours over bare; expected at least 0.4",
    "agentlightning_rollouts_per_cpu_s": "Agent Lightning 0.3.0, in memory, nothing on disk",
    "vs_agentlightning_03": "ours over theirs; expected at least 2",
    "growth": "cost of claim + finish at growth_n rollouts over 1,000; expected at most 1.3",
    "postgres_rollouts_per_s": "the same life on a Postgres of its own, synchronous_commit on",
    "postgres_rollouts_per_cpu_s": "per CPU-second of this process; the server's own is not in it",
    "fdatasync_per_s": "what this disk can do, one after another",
    "reason": "why a figure is none",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    rounds: int
    rollouts: int  # a round
    growth_n: int
    fdatasync_s: float


FULL = Size(rounds=5, rollouts=4_000, growth_n=1_000_000, fdatasync_s=2.0)
QUICK = Size(rounds=3, rollouts=600, growth_n=100_000, fdatasync_s=0.5)
WARM = 100  # rollouts before the clock starts


def measure(quick: bool) -> Figures:
    size = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        figures = taking_turns(folder, size)
        progress(f"growth: 1,000 against {size.growth_n:,} rollouts")
        figures |= {"growth": rounded(growth(folder, size.growth_n)), "growth_n": size.growth_n}
        progress("postgres")
        figures |= on_postgres(size.rollouts)
        figures["fdatasync_per_s"] = rounded(report.fdatasync_per_s(folder, size.fdatasync_s))
    missing = {name: value for name, value in figures.items() if isinstance(value, Missing)}
    figures |= dict.fromkeys(missing)
    return figures | {"reason": {name: str(why) for name, why in missing.items()}}


class Missing(str):
    """Why a figure could not be had; it is printed as null."""


def taking_turns(folder: Path, size: Size) -> Figures:
    """Ours, bare and the peer, round by round."""
    empty = new_store(folder / "empty.sqlite")
    peer = find_peer("agent_lightning.py")
    ours: list[Lap] = []
    bare: list[float] = []
    theirs: list[float] = []
    commits: list[float] = []
    for number in range(size.rounds):
        progress(f"round {number + 1} of {size.rounds}: {size.rollouts:,} rollouts each")
        ours.append(on_sqlite(copy(empty, f"ours-{number}"), size.rollouts))
        recording = record(copy(empty, "taped"), size.rollouts)
        commits.append(tape.commits(recording) / size.rollouts)
        bare.append(size.rollouts / tape.play(recording, copy(empty, "bare")))
        if isinstance(peer, Peer):
            lap = peer.lap(size.rollouts)
            theirs.append(lap["rollouts"] / lap["cpu_s"])
    per_cpu_s = median(lap.per_cpu_s for lap in ours)
    figures: Figures = {
        "rollouts_per_s": rounded(median(lap.per_s for lap in ours)),
        "rollouts_per_cpu_s": rounded(per_cpu_s),
        "claim_p50_ms": rounded(median(lap.claim_ms(0.50) for lap in ours)),
        "claim_p99_ms": rounded(median(lap.claim_ms(0.99) for lap in ours)),
        "bytes_per_rollout": round((bytes_at(folder / "ours-0.sqlite") - bytes_at(empty)) / (size.rollouts + WARM)),
        "commits_per_rollout": rounded(median(commits)),
        "writes_per_commit": rounded(WRITES / median(commits)),
        "raw_rollouts_per_cpu_s": rounded(median(bare)),
        "raw_ceiling_ratio": rounded(per_cpu_s / median(bare)),
    }
    if isinstance(peer, Peer):
        peer.close()
        return figures | {
            "agentlightning_version": peer.about["version"],
            "agentlightning_rollouts_per_cpu_s": rounded(median(theirs)),
            "vs_agentlightning_03": rounded(per_cpu_s / median(theirs)),
        }
    names = ("agentlightning_version", "agentlightning_rollouts_per_cpu_s", "vs_agentlightning_03")
    return figures | dict.fromkeys(names, peer)


def new_store(path: Path) -> Path:
    """A store with one run and nothing in it, to copy."""
    with open_store(path) as store:
        begin_run(store)
    return path


def copy(store: Path, name: str) -> Path:
    return Path(shutil.copy(store, store.with_name(f"{name}.sqlite")))


def on_sqlite(path: Path, n: int) -> Lap:
    with open_store(path) as store:
        run = store.runs.newest()[0].id
        live(store, run, WARM, prefix="warm")  # statements compiled, caches filled
        return live(store, run, n)


def bytes_at(path: Path) -> int:
    """What is on disk once the store is closed: closing has copied the log into the file."""
    return sum(found.stat().st_size for found in path.parent.glob(f"{path.name}*"))


def record(path: Path, n: int) -> list[tape.Entry]:
    """Every statement of n rollouts' lives, in order."""
    engine = tape.Taped(path)
    with Store(Db(engine, poll_s=0.05), "default", path.parent) as store:
        run = store.runs.newest()[0].id
        del engine.tape[:]
        live(store, run, n)
    return engine.tape


def find_peer(script: str) -> Peer | Missing:
    progress(f"starting {script}")
    try:
        return Peer(script)
    except PeerAbsent as absent:
        progress(f"without {script}: {absent}")
        return Missing(str(absent))


def on_postgres(n: int) -> Figures:
    sys.path.append(str(report.ROOT))
    names = ("postgres_rollouts_per_s", "postgres_rollouts_per_cpu_s")
    try:
        import psycopg  # noqa: F401  (asked here, so that its absence is a reason and not a crash)

        from tests.postgres import binary, postgres_server

        binary("initdb")
    except (ImportError, RuntimeError) as error:
        return dict.fromkeys(names, Missing(str(error)))
    with postgres_server() as url, open_store(url) as store:
        run = begin_run(store)
        live(store, run, WARM, prefix="warm")
        lap = live(store, run, n)
    return dict(zip(names, (rounded(lap.per_s), rounded(lap.per_cpu_s)), strict=True))


if __name__ == "__main__":
    report.main("Speed of the store, against its peers.", measure, MEANINGS)
