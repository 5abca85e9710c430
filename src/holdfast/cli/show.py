"""How results look: tables and lines for 80 columns, JSON, the commands that come next, a progress bar."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.contracts.lines import WIDTH, folded, printable
from holdfast.contracts.records import encode

if TYPE_CHECKING:
    from rich.console import Console


PATIENCE_S = 2.0
GAP = 2  # spaces between columns
SOFTEST = 8  # a soft column stays at least so wide while others can still give way
LONGEST_TEXT = 200  # more of a text than any terminal row shows is not even looked at


def print_json(data: Any) -> None:
    print(json.dumps(plain(data), indent=2, allow_nan=False))


def plain(data: Any) -> Any:
    """Converts data to plain JSON; published records are encoded with their schema version."""
    if isinstance(data, Mapping):
        return {key: plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [plain(one) for one in data]
    return encode(data) if is_dataclass(data) else str(data) if isinstance(data, Path) else data


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """One line a row, never wider than the terminal: columns marked `~` give way first, then those marked `?` are left
    out, the last one first. `>` stands right."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    cells = [[one_line(cell) for cell in row] for row in rows]
    names = [title.lstrip(">~?") for title in columns]
    wide = [max(map(cell_len, column)) for column in zip(names, *cells, strict=True)]
    kept = kept_columns(columns, wide, console.width)
    columns, names = [columns[place] for place in kept], [names[place] for place in kept]
    wide = [wide[place] for place in kept]
    cells = [[row[place] for place in kept] for row in cells]
    fitted = fit(wide, ["~" in _marks(title) for title in columns], console.width - GAP * (len(columns) - 1))
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for title, name, width in zip(columns, names, fitted, strict=True):
        side: Any = "right" if ">" in _marks(title) else "left"
        table.add_column(name, justify=side, no_wrap=True, overflow="ellipsis", width=width)
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Callable[[], None]:
    """The table of a view, printed when it is shown."""
    return partial(print_table, columns, list(rows))


def left_out(rows: Sequence[object], limit: int) -> list[str]:
    """The line below a table that shows only the first rows."""
    return [f"and {len(rows) - limit} more; --limit {len(rows)} shows them all"] if len(rows) > limit else []


def kept_columns(columns: Sequence[str], wide: Sequence[int], room: int) -> list[int]:
    """The places of the columns that are shown: those marked `?` only where nothing has to be cut for them."""
    kept = list(range(len(columns)))
    for place in reversed(range(len(columns))):
        least = [min(wide[one], SOFTEST) if "~" in _marks(columns[one]) else wide[one] for one in kept]
        if sum(least) + GAP * (len(kept) - 1) > room and "?" in _marks(columns[place]):
            kept.remove(place)
    return kept


def _marks(title: str) -> str:
    return title[: len(title) - len(title.lstrip(">~?"))]


def fit(wide: Sequence[int], soft: Sequence[bool], room: int) -> list[int]:
    """Widths that fill at most `room`: soft columns shrink to 8, then the widest of all, one by one."""
    fitted = list(wide)
    while sum(fitted) > room and max(fitted) > 1:
        shrinking = [place for place, width in enumerate(fitted) if soft[place] and width > SOFTEST]
        widest = max(shrinking or range(len(fitted)), key=lambda place: fitted[place])
        fitted[widest] -= 1
    return fitted


def one_line(value: object, most: int = LONGEST_TEXT) -> str:
    """Any value as printable text without line breaks; nothing that is missing looks like a number."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if not isinstance(value, str):
        value = str(value) if isinstance(value, int) else json.dumps(value, ensure_ascii=False)
    return printable(" ".join(value[:most].split()))


def local_time(at: float | None) -> str:
    """Unix seconds as local time."""
    return "-" if at is None else f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def span_of_time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"


def count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def pairs(data: Mapping[str, Any]) -> str:
    """An object as `key=value` words, for people; JSON is there for programs."""
    return " ".join(f"{key}={one_line(value)}" for key, value in data.items() if value is not None)


def size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} TB"


def next_page(command: str, *words: str, **options: object) -> str:
    """The last line of a page that has a page after it."""
    given = [f"--{key} {shlex.quote(str(value))}" for key, value in options.items() if value is not None]
    return " ".join(["more: holdfast", command, *map(shlex.quote, words), *given])


class Bar(Protocol):
    def __call__(self, done: int = 1, *, now: str | None = None) -> None: ...


@contextmanager
def progress(title: str, total: int | None, console: Console | None = None) -> Iterator[Bar]:
    """A bar on stderr that appears once the work has taken two seconds, on terminals only."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = console or Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=console, transient=True)
    task = bar.add_task(title, total=total)
    timer = threading.Timer(PATIENCE_S, bar.start)
    timer.daemon = True

    def advance(done: int = 1, *, now: str | None = None) -> None:
        bar.update(task, advance=done, description=title if now is None else f"{title}: {now}")

    if console.is_terminal:
        timer.start()
    try:
        yield advance
    finally:
        timer.cancel()
        if timer.ident is not None:
            timer.join()  # else it could start the bar after it was stopped
        if bar.live.is_started:  # stopping prints a line all the same
            bar.stop()


def fold(text: str, indent: str = "") -> str:
    return "\n".join(folded(text, indent, "  "))


def step(command: str, about: str = "", indent: str = "  ") -> Iterator[str]:
    """A command with what it is for: beside it where there is room, else above; one that is too long is carried on."""
    beside = f"{indent}{command}   # {about}"
    if about and len(beside) <= WIDTH:
        yield beside
        return
    if about:
        yield f"{indent}# {about}"
    first, *options = command.split(" --")
    line = indent + first
    for word in options:
        if len(line) + len(f" --{word} \\") > WIDTH:
            yield f"{line} \\"
            line = f"{indent}  --{word}"
        else:
            line += f" --{word}"
    yield line


def left(label: str, path: Path | str, indent: str = "") -> list[str]:
    """Labels a path; a path that is too wide gets a line of its own, because paths are not folded."""
    shown = near(path)
    beside = f"{indent}{label}  {shown}"
    return [beside] if len(beside) <= WIDTH else [f"{indent}{label}", shown]


def near(path: Path | str) -> str:
    """Shortens a path relative to the current folder."""
    found, here = Path(path).absolute(), Path.cwd()
    return str(found.relative_to(here)) if found.is_relative_to(here) else str(path)
