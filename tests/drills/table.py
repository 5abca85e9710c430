"""The drill's table: a row for each fault, 80 columns wide, and below it what there is to say."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from tests.drills.scene import Tally

WIDTH = 80
COLUMNS = ("rounds", "events", "rollouts", "lost", "twice", "stale", "chain")
LEGEND = {
    "events": "kills, stops, fillings, tears, damages, jumps, or calls under watch",
    "lost": "acknowledged, and not there afterwards",
    "twice": "rollouts finished more than once",
    "stale": "writes accepted from an attempt that had lost its rollout",
    "chain": "ledger entries whose hashes were computed anew",
}


def render(tallies: Sequence[Tally]) -> str:
    lines = [_row("fault", COLUMNS, "verdict"), "─" * WIDTH]
    lines += [_row(t.fault, [getattr(t, name) for name in COLUMNS], "holds" if t.holds else "BROKEN") for t in tallies]
    lines += ["─" * WIDTH, *(f"{name:<8} {meaning}" for name, meaning in LEGEND.items()), ""]
    for tally in tallies:
        lines += [f"{tally.fault} ({tally.seconds:.0f} s)", *_told(tally)]
    return "\n".join(lines)


def _row(fault: str, values: Sequence[object], verdict: str) -> str:
    cells = [f"{value!s:>{len(name)}}" for value, name in zip(values, COLUMNS, strict=True)]
    return f"{fault:<25}{' '.join(cells)}  {verdict}"


def _told(tally: Tally) -> Iterator[str]:
    seen = {
        "attempts written off": tally.written_off,
        "calls whose answer nobody took": tally.unanswered,
        "writes tried after the loss": tally.tried_stale,
    }
    if any(seen.values()):
        yield from _wrapped("; ".join(f"{n} {what}" for what, n in seen.items() if n))
    for text in tally.notes:
        yield from _wrapped(text)
    for text in tally.problems:
        yield from _wrapped(f"BROKEN {text}")


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)
