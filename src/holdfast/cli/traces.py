"""`holdfast traces`: spans out to whoever understands OpenTelemetry, and in from a file of its form."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Project, StoreAt, existing
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.collect.otlp.wire import OtelSpan
    from holdfast.contracts.rollout import Rollout
    from holdfast.store.store import Store

app = typer.Typer(
    help="OpenTelemetry in and out. A proxy that runs also takes spans, at POST /v1/traces.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)
PAGE = 100


@app.command()
def export(
    what: Annotated[str, typer.Argument(metavar="RUN[/NAME]", help="A run, or one rollout of it.")],
    to: Annotated[str, typer.Option("--to", metavar="URL|FILE", help="A collector (OTLP over HTTP), or a file.")],
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="NAME=VALUE", help="Sent along, as for a collector's key.")
    ] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Send the spans of every finished attempt, with the same ids each time; a file has a request of JSON a line."""
    import asyncio

    from holdfast.cli.files import written_whole
    from holdfast.cli.sprout import needing

    headers, is_remote = dict(map(read_header, header or ())), to.startswith(("http://", "https://"))
    if is_remote:
        from holdfast.collect.client import checked

        checked("--to", to, example="http://127.0.0.1:4318, with --header authorization='Bearer …'")
    with needing("otlp"), existing(store, project) as opened:
        from holdfast.collect.otlp import conventions, wire

        rollouts = _rollouts(opened, what)
        with show.progress("exporting rollouts", None) as advance:
            spans = _spans(opened, rollouts, advance)
            if is_remote:
                taken = asyncio.run(conventions.send(to, spans, headers=headers))
            else:
                taken = 0
                with written_whole(Path(to)) as file:
                    for batch in conventions.batches(spans):
                        file.write(wire.written(batch, wire.JSON).decode() + "\n")
                        taken += len(batch)
    if json:
        show.print_json({"to": to, "spans": taken})
    else:
        print(f"{to}: {show.count(taken, 'span')}")


@app.command("import")
def take_in(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Lines of OTLP's JSON, as collectors write them.")],
    scrub: Annotated[
        bool, typer.Option("--scrub/--no-scrub", help="Take secrets and personal data out of what is kept.")
    ] = True,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Take in traces of other tracers from a file; each becomes a finished rollout that can be learnt from."""
    import asyncio

    from holdfast.cli.sprout import needing
    from holdfast.store.store import open_store

    if not file.is_file():
        raise BadInput(f"file {file}", why="there is none", remedy="give lines of OTLP's JSON")
    with needing("serve"), open_store(store, project=project) as opened:
        from holdfast.collect.otlp.take import SpanReceiver
        from holdfast.privacy.scrub import Scrub, key_in

        scrubbing = Scrub(key_in(opened.folder)).span if scrub else None
        kept, refused, why = asyncio.run(_take(file, SpanReceiver(opened, clock=time.time, scrub=scrubbing)))
    if json:
        show.print_json({"file": str(file), "kept": kept, "refused": refused, "why": why})
    else:
        print(f"{file}: {show.count(kept, 'span')} kept" + (f", {refused} refused: {why}" if refused else ""))
    if refused:
        raise typer.Exit(1)


async def _take(file: Path, taker: Any) -> tuple[int, int, str]:
    from holdfast.collect.otlp import wire

    kept, refused, why = 0, 0, ""
    try:
        with show.progress("reading lines", None) as advance, file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                try:
                    spans, unread = wire.read(line, wire.JSON)
                except BadInput as error:
                    raise BadInput(f"{file}:{number}", why=error.why, remedy="give lines of OTLP's JSON") from None
                taken = await taker.take(spans)
                kept, refused = kept + taken.kept, refused + taken.refused + unread
                why = why or taken.why or ("spans without ids or times cannot be read" if unread else "")
                advance(1)
    finally:
        await taker.close()
    return kept, refused, why


def _rollouts(store: Store, what: str) -> Iterator[Rollout]:
    from holdfast.store.find import find_rollout

    if "/" in what:
        yield find_rollout(store, what)
        return
    run, last = store.runs.get(what).id, None
    while page := store.views.rollouts(run, most=PAGE, after=last):
        yield from page
        last = page[-1].name


def _spans(store: Store, rollouts: Iterator[Rollout], advance: Any) -> Iterator[OtelSpan]:
    from holdfast.collect.otlp.conventions import given
    from holdfast.contracts.rollout import AttemptState

    for rollout in rollouts:
        for attempt in store.views.attempts(rollout.id):
            if attempt.status is not AttemptState.RUNNING:
                yield from given(rollout, attempt, store.traces.spans(attempt.token), store.traces.sheet(attempt.token))
        advance(1)


def read_header(text: str) -> tuple[str, str]:
    """`NAME=VALUE`."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise BadInput("--header", why="is not NAME=VALUE", remedy="as in --header authorization='Bearer …'")
    return name.strip(), value.strip()
