"""Watching a town from a terminal: frame after frame on the screen, line by line into a file, or served as a page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.workloads.townlife import Life
    from holdfast.workloads.townobserver import StaticToken, TownAlarms


def badges(tokens: dict[str, str | None]) -> tuple[list[StaticToken], str]:
    """Whom to let in, and the token for the link that is printed; an operator's is made up where none is given."""
    import secrets

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
    import signal
    import tempfile

    from holdfast.cli.options import needing

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
            host, port = listening.getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"town at http://{shown}:{port}/ (Ctrl-C ends it)", flush=True)
            print(f"  operators: http://{shown}:{port}/#token={link}", flush=True)
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
    from contextlib import nullcontext

    from rich.console import Console

    from holdfast.workloads.townlife import new_recording
    from holdfast.workloads.townobserver import TownAlarms

    alarms = TownAlarms()
    console = Console(highlight=False)
    with nullcontext() if record is None else new_recording(record, life) as recording:

        def step() -> dict[str, Any]:
            moment = life.step()
            if moment.window is not None:
                alarms.look(moment.window, moment.tick)
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
    from holdfast.cli.townview import moment

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
    import time
    from collections import deque

    from rich.live import Live

    from holdfast.cli.townview import town
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
                told = [alert.code for alert in alerts.standing] if alerts is not None else []
                shown = town(legend, seen, news=news, alerts=told, state=f"{speed:g}×", is_coloured=is_coloured)
                live.update(shown, refresh=True)
                due = max(due + each / speed, time.monotonic() - 0.5)
                time.sleep(max(0.0, due - time.monotonic()))
    except StopIteration:
        pass
    except KeyboardInterrupt:
        console.print("the town goes on without you")
