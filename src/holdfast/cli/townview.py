"""A town on a terminal of 80 columns, line by line in a pipe, or served as a page."""

from __future__ import annotations

import secrets
import signal
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from holdfast.cli.options import address_of, needing
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.workloads.townlife import Life
    from holdfast.workloads.townobserver import StaticToken, TownAlarms


NATURES = ("#4f9fe0", "#e0709f", "#e09a3f", "#5fb878", "#a98fe0", "#9aa8b0")
GROUND = {
    "wall": "#5f6f78", "door": "#9a8050", "road": "#3a4348", "grass": "#2b4a38", "floor": "#262f34", "out": "#1c2428",
    "thing": "#6f7f88",
}  # fmt: skip
NEEDS = {"hunger": "#e98c50", "hygiene": "#5fb0dd", "energy": "#d9bf46", "social": "#d884c6"}
BESIDE = 30  # columns
SHOWN = (
    ("alive", "here", "{:.0%}"),
    ("needs_met", "needs met", "{:.0%}"),
    ("attendance", "at work", "{:.0%}"),
    ("chats", "talks a day", "{:.1f}"),
    ("queue_wait", "in line, min", "{:.0f}"),
    ("lateness", "late a day", "{:.2f}"),
    ("exits", "left a day", "{:.3f}"),
)


def moment(legend: Mapping[str, Any], tick: int) -> str:
    minutes = tick % legend["day"] * 1440 // legend["day"]
    return f"day {tick // legend['day'] + 1}, {minutes // 60:02}:{minutes % 60:02}"


def town(
    legend: Mapping[str, Any],
    frame: Mapping[str, Any],
    *,
    news: Sequence[Mapping[str, Any]] = (),
    alerts: Sequence[str] = (),
    state: str = "",
    is_coloured: bool = True,
) -> Table:
    """Everything at one moment; `frame` is a folded one."""
    shown = Table.grid(padding=(0, 1))
    shown.add_column(width=legend["width"], no_wrap=True)
    shown.add_column(width=BESIDE, no_wrap=True, overflow="ellipsis")
    drawn = _coloured(legend, frame) if is_coloured else _plain(legend, frame)
    rows = (legend["height"] + 1) // 2
    shown.add_row(drawn, _beside(legend, frame, news, alerts, state, rows))
    return shown


def _tiles(legend: Mapping[str, Any]) -> list[str]:
    table = legend["legend"]
    kinds = []
    for glyph in legend["glyphs"]:
        if glyph in table["walls"]:
            kinds.append("wall")
        elif glyph in table["doors"]:
            kinds.append("door")
        elif glyph in table["objects"]:
            kinds.append("thing")
        else:
            kinds.append({table["entry"]: "road", '"': "grass", "_": "floor"}.get(glyph, "out"))
    return kinds


def _coloured(legend: Mapping[str, Any], frame: Mapping[str, Any]) -> Text:
    """▀ has the upper tile's colour before that of the lower one."""
    width, height = legend["width"], legend["height"]
    colours = [GROUND[kind] for kind in _tiles(legend)]
    for place, tile in enumerate(frame["at"]):
        if tile >= 0:
            colours[tile] = NATURES[frame["nature"][place] % len(NATURES)]
    drawn = Text()
    for y in range(0, height, 2):
        for x in range(width):
            low = colours[(y + 1) * width + x] if y + 1 < height else GROUND["out"]
            drawn.append("▀", style=f"{colours[y * width + x]} on {low}")
        drawn.append("\n")
    drawn.rstrip()
    return drawn


def _plain(legend: Mapping[str, Any], frame: Mapping[str, Any]) -> Text:
    """For terminals without colours: of two tiles, the one with more to tell."""
    width, height = legend["width"], legend["height"]
    signs = {"wall": "#", "door": "+", "road": ".", "grass": '"', "floor": " ", "out": " ", "thing": "o"}
    ranks = ' ."+#o@'
    glyphs = [signs[kind] for kind in _tiles(legend)]
    for tile in frame["at"]:
        if tile >= 0:
            glyphs[tile] = "@"
    rows = []
    for y in range(0, height, 2):
        pairs = ((glyphs[y * width + x], glyphs[min(y + 1, height - 1) * width + x]) for x in range(width))
        rows.append("".join(max(pair, key=ranks.index) for pair in pairs))
    return Text("\n".join(rows))


def _beside(
    legend: Mapping[str, Any],
    frame: Mapping[str, Any],
    news: Sequence[Mapping[str, Any]],
    alerts: Sequence[str],
    state: str,
    rows: int,
) -> Text:
    lines = [Text(f"{legend['town']} · {moment(legend, frame['tick'])}", style="bold")]
    troubles = [name for name, until in zip(legend["troubles"], frame["until"], strict=True) if until > frame["tick"]]
    lines.append(Text(", ".join(filter(None, (state, *troubles))) or "a quiet hour", style="yellow"))
    here = [place for place, tile in enumerate(frame["at"]) if tile >= 0]
    for k, need in enumerate(legend["needs"]):
        mean = sum(frame["needs"][len(legend["needs"]) * place + k] for place in here) / (255 * max(1, len(here)))
        filled = round(mean * 12)
        bar = (
            Text(f"{need:8} ").append("━" * filled, style=NEEDS.get(need, "")).append("╌" * (12 - filled), style="dim")
        )
        lines.append(bar.append(f" {mean:4.0%}"))
    numbers = frame.get("kpis", {})
    for name, title, form in SHOWN:
        value = numbers.get(name)
        lines.append(Text(f"{title:14}{'-' if value is None else form.format(value):>12}"))
    lines += [Text(f"! {one}", style="bold red") for one in alerts[:2]]
    lines.append(Text("─" * (BESIDE - 1), style="dim"))
    told: list[Text] = []
    for line in reversed(news):
        told = [*_folded(f"{moment(legend, line['tick'])[-5:]} {line['text']}", BESIDE), *told]
        if len(told) >= rows - len(lines):
            break
    lines += told[-max(0, rows - len(lines)) :] if rows > len(lines) else []
    return Text("\n").join(lines[:rows])


def _folded(text: str, width: int) -> list[Text]:
    """In lines of this width; all but the first stand further right."""
    rows, row = [], ""
    for word in text.split():
        if row and len(row) + 1 + len(word) > width:
            rows.append(row)
            row = "      " + word
        else:
            row = f"{row} {word}" if row else word
    return [Text(one[:width]) for one in (*rows, row)]


def badges(tokens: dict[str, str | None]) -> tuple[list[StaticToken], str]:
    """Whom to let in, and the token for the link that is printed; an operator's is made up where none is given."""
    from holdfast.workloads.townobserver import StaticToken

    made = tokens["admin"] or tokens["operator"] or secrets.token_urlsafe(12)
    if not (tokens["admin"] or tokens["operator"]):
        tokens = tokens | {"operator": made}
    return [StaticToken(role=role, token=text, label=role) for role, text in tokens.items() if text], made


def serve(
    life: Life,
    record: Path | None,
    *,
    address: tuple[str, int],
    tokens: dict[str, str | None],
    audit: Path,
    speed: float,
) -> None:
    with needing("serve"):
        from holdfast.collect import endpoint
        from holdfast.workloads.townobserver import AuditFile
        from holdfast.workloads.townpage import Runner
        from holdfast.workloads.townpage import app as page
    from holdfast.workloads.townlife import new_recording

    if tokens["viewer"] is None and not endpoint.is_loopback(address[0]):
        why = "everyone who reaches this machine could watch"
        raise BadInput(f"host {address[0]}", why=why, remedy="give --token, or listen at 127.0.0.1")
    admitted, link = badges(tokens)
    with (
        endpoint.listen(*address, token=tokens["viewer"]) as listening,
        tempfile.TemporaryDirectory(prefix="town-") as folder,
    ):
        # The recording is closed after the town has ended: it writes to it until then.
        with (
            new_recording(record or Path(folder) / "town.frames", life) as recording,
            Runner(life, recording, audit=AuditFile(audit), speed=speed) as runner,
        ):
            url = f"http://{address_of(listening)}/"
            print(f"town at {url} (Ctrl-C ends it)\n  operators: {url}#token={link}", flush=True)
            before = signal.signal(signal.SIGTERM, _terminate)  # by itself it would leave the recording behind
            try:
                endpoint.server(page(runner, admitted)).run(sockets=[listening])
            finally:
                signal.signal(signal.SIGTERM, before)
        if runner.error is not None:
            raise runner.error


def _terminate(*_: object) -> None:
    raise SystemExit(143)


def look(life: Life, record: Path | None, *, speed: float, ticks: int | None) -> None:
    from rich.console import Console

    from holdfast.workloads.townlife import new_recording
    from holdfast.workloads.townobserver import TownAlarms

    alarms = TownAlarms()
    console = Console(highlight=False)
    with nullcontext() if record is None else new_recording(record, life) as recording:

        def step() -> dict[str, Any]:
            moment = life.step()
            if moment.window is not None:
                alarms.update(moment.window, moment.tick)
            frame = life.frame()
            if recording is not None:
                recording.add(frame)
            return frame

        if console.is_terminal:
            animate(console, life.legend(), step, speed=speed, ticks=ticks, alerts=alarms)
        else:
            tell_lines(life, step, ticks)


def tell_lines(life: Life, step: Callable[[], dict[str, Any]], ticks: int | None) -> None:
    """Where nobody looks at a screen: a line for each thing that is told, as fast as it goes."""
    legend, done = life.legend(), 0
    while ticks is None or done < ticks:
        for line in step().get("lines", ()):
            print(f"{moment(legend, line['tick'])}  {line['text']}", flush=True)
        done += 1


def animate(
    console: Any,
    legend: dict[str, Any],
    step: Callable[[], dict[str, Any]],
    *,
    speed: float,
    ticks: int | None,
    alerts: TownAlarms | None = None,
) -> None:
    """Frame after frame on the terminal, until the last, or Ctrl-C; the terminal is left as it was."""
    from rich.live import Live

    from holdfast.workloads.townlife import fold

    is_coloured = console.color_system is not None and not console.no_color
    news: deque[Any] = deque(maxlen=30)
    seen: dict[str, Any] | None = None
    done, due = 0, time.monotonic()
    each = max(1, round(speed / 15))
    try:
        with Live(console=console, auto_refresh=False, screen=True, vertical_overflow="crop") as live:
            while ticks is None or done < ticks:
                for _ in range(each):
                    frame = step()
                    seen = fold(seen, frame)
                    news.extend(frame.get("lines", ()))
                    done += 1
                assert seen is not None
                told = [alert.code for alert in alerts.active] if alerts is not None else []
                shown = town(legend, seen, news=news, alerts=told, state=f"{speed:g}×", is_coloured=is_coloured)
                live.update(shown, refresh=True)
                due = max(due + each / speed, time.monotonic() - 0.5)
                time.sleep(max(0.0, due - time.monotonic()))
    except StopIteration:
        pass
    except KeyboardInterrupt:
        console.print("the town goes on without you")
