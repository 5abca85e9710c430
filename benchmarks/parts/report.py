"""What every benchmark shares: its two flags, its answer on stdout, and what machine it ran on."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
Figures = dict[str, Any]


def main(about: str, measure: Callable[[bool], Figures], meanings: Mapping[str, str]) -> None:
    """Measure, then print one JSON object (--json) or a table; `meanings` says what a figure is."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--quick", action="store_true", help="end within a minute; same keys, rougher figures")
    asked = parser.parse_args()
    started = time.monotonic()
    figures = measure(asked.quick) | machine() | {"quick": asked.quick}
    figures["took_s"] = round(time.monotonic() - started, 1)
    print(json.dumps(figures, ensure_ascii=False, allow_nan=False) if asked.json else table(figures, meanings))


def table(figures: Figures, meanings: Mapping[str, str]) -> str:
    width = max(map(len, figures))
    lines = []
    for name, value in figures.items():
        shown = "none" if value is None else f"{value:,}" if isinstance(value, float | int) else str(value)
        lines.append(f"{name:{width}}  {shown:>12}  {meanings.get(name, '')}".rstrip())
    return "\n".join(lines)


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def rounded(value: float, digits: int = 3) -> float:
    """To `digits` significant places: the rest is noise."""
    return float(f"{value:.{digits}g}")


def machine() -> Figures:
    return {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cores": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "reference_ms": rounded(reference_ms()),
    }


def reference_ms() -> float:
    """CPU of a fixed piece of plain Python, the best of fifty, in milliseconds: CPU times of two machines, or of one
    that is busy, are compared in units of it."""
    rows = [{"id": place, "name": f"row {place}", "value": place / 7.0} for place in range(400)]
    took = []
    for _ in range(50):
        began = time.process_time()
        for row in json.loads(json.dumps(rows)):
            hashlib.sha256("".join(sorted(f"{row['name']}:{row['value']:.6f}")).encode()).hexdigest()
        took.append(time.process_time() - began)
    return 1000.0 * min(took)


def fdatasync_per_s(folder: Path, for_s: float) -> float:
    """How often a second this disk takes an appended page and says that it is safe."""
    path = folder / "fdatasync"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    done, until = 0, time.perf_counter() + for_s
    while time.perf_counter() < until:
        os.write(file, b"\0" * 4096)
        os.fdatasync(file)
        done += 1
    os.close(file)
    path.unlink()
    return done / for_s
