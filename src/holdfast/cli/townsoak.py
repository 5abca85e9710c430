"""`holdfast town soak`: a very long life, and whether memory stays flat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import Json
from holdfast.cli.townoptions import RulesAt, Seed, check_writable, warn

MOST_MB = 16.0  # that memory may grow by


def soak(
    ticks: Annotated[int, typer.Option("--ticks", metavar="N", min=1000, help="How many.")] = 1_000_000,
    seed: Seed = 1,
    rules: RulesAt = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write a page about it.")] = None,
    json: Json = False,
) -> None:
    """Let a town live for very long, and see that memory stays flat and residents stay."""
    import platform
    import time
    from datetime import UTC, datetime

    from holdfast.cli.files import written_whole
    from holdfast.cli.show import print_json, print_table, progress
    from holdfast.workloads import townsoak
    from holdfast.workloads.townlife import Life, read_rules

    told = read_rules(rules)
    check_writable(report)
    warn()
    with progress("living", ticks) as advance:
        done = townsoak.soak(
            Life(told, seed=seed), ticks, looks=20, memory_mb=memory_mb, clock=time.monotonic, each=advance
        )
    if report is not None:
        given = f"holdfast town soak --ticks {ticks} --seed {seed}" + (f" --rules {rules}" if rules else "")
        machine = f"Python {platform.python_version()} on {platform.machine()}"
        text = townsoak.page(done, command=given, date=f"{datetime.now(UTC):%Y-%m-%d}", machine=machine)
        with written_whole(report) as file:
            file.write(text)
    if json:
        print_json(done.plain())
    else:
        rows = [(look.tick, look.seconds, look.memory_mb, look.here, look.state[:12]) for look in done.looks]
        print_table([">tick", ">s", ">mb", ">here", "state"], rows)
        print(f"memory grew by {done.grown_mb:.1f} MB; {done.green} of {done.windows} windows were green")
        print(f"left: {', '.join(f'{count} for {cause}' for cause, count in done.left_for.items()) or 'nobody'}")
    if done.ticks < ticks:
        raise typer.Exit(130)
    if done.grown_mb > MOST_MB or not done.looks[-1].here:
        raise typer.Exit(1)


def memory_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)
