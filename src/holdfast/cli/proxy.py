"""`holdfast proxy`: agents talk to their model through it, and what is said becomes part of their attempts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import DEFAULT_STORE, Project, StoreAt
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    import socket

    from starlette.applications import Starlette

    from holdfast.collect.otlp.take import SpanReceiver
    from holdfast.collect.proxy.span_recorder import TokenPrice

HOST, PORT, TIMEOUT_MS, STATE_DIR = "127.0.0.1", 8788, 30_000, Path(".holdfast")


def proxy(
    upstream: Annotated[
        list[str], typer.Option("--upstream", metavar="URL", help="Where calls are answered; several share them.")
    ],
    host: Annotated[str, typer.Option("--host", metavar="HOST", help="Others than this machine need a token.")] = HOST,
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65_535, help="0: any that is free.")] = PORT,
    token: Annotated[
        str | None,
        typer.Option("--token", metavar="TEXT", envvar="HOLDFAST_TOKEN", help="What agents send as their API key."),
    ] = None,
    state_dir: Annotated[
        Path, typer.Option("--state-dir", metavar="FOLDER", help="Where the attribution log lies.")
    ] = STATE_DIR,
    timeout_ms: Annotated[
        int, typer.Option("--timeout-ms", metavar="N", min=1, help="How long an upstream may be silent.")
    ] = TIMEOUT_MS,
    hold_ms: Annotated[
        int, typer.Option("--hold-ms", metavar="N", min=0, help="How long a call waits for a busy upstream.")
    ] = 30_000,
    most: Annotated[int, typer.Option("--most", metavar="N", min=1, help="Calls of one upstream at a time.")] = 512,
    ids: Annotated[
        bool, typer.Option("--ids/--no-ids", help="Ask upstreams for token ids and log-probs where they give them.")
    ] = True,
    scrub: Annotated[
        bool, typer.Option("--scrub/--no-scrub", help="Take secrets and personal data out of what is kept.")
    ] = True,
    price: Annotated[
        list[str] | None,
        typer.Option("--price", metavar="MODEL=READ,WRITTEN", help="Of a million tokens, to count what calls cost."),
    ] = None,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
) -> None:
    """Stand between agents and their model: pass every call on byte for byte, and keep it as a span of its attempt.

    An agent needs nothing but its base URL: http://HOST:PORT/rollout/RUN%2FNAME/attempt/N/v1. The key of the upstreams
    is read from OPENAI_API_KEY (ANTHROPIC_API_KEY); where it is not set, and no token is asked for, each agent's own
    key is passed on. Keys are never written anywhere.
    """
    run(
        upstreams=upstream,
        address=(host, port),
        token=token,
        state_dir=state_dir,
        timeout_s=timeout_ms / 1000,
        hold_s=hold_ms / 1000,
        most=most,
        is_extended=ids,
        is_scrubbed=scrub,
        prices=dict(map(read_price, price or ())),
        store=store,
        project=project,
    )


def run(
    *,
    upstreams: list[str],
    address: tuple[str, int],
    token: str | None,
    state_dir: Path,
    timeout_s: float,
    store: str,
    project: str,
    hold_s: float = 30.0,
    most: int = 512,
    is_extended: bool = True,
    is_scrubbed: bool = True,
    prices: dict[str, TokenPrice] | None = None,
) -> None:
    """Serve until a signal ends it."""
    import os
    import time

    from holdfast.cli.sprout import needing
    from holdfast.store.store import open_store

    with needing("serve"):
        from holdfast.collect import endpoint
        from holdfast.collect.otlp.take import SpanReceiver, routes
        from holdfast.collect.proxy.anthropic import Messages
        from holdfast.collect.proxy.app import app
        from holdfast.collect.proxy.chat import Chat
        from holdfast.collect.proxy.responses import Responses
        from holdfast.collect.proxy.upstream import Upstream
    names = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    keys = {name: os.environ[name] for name in names if os.environ.get(name)}
    remotes = [
        Upstream(url, keys=keys, timeout_s=timeout_s, hold_s=hold_s, most=most, is_extended=is_extended)
        for url in upstreams
    ]
    with (
        endpoint.listen(*address, token=token) as listening,
        open_store(store, project=project, state_folder=state_dir) as opened,
    ):
        scrub = spelt = None
        if is_scrubbed:
            from holdfast.collect.proxy.budgets import spell
            from holdfast.privacy.scrub import Scrub, key_in

            key = key_in(opened.folder)
            scrub, spelt = Scrub(key), Scrub(key, spell=spell)
        taker = SpanReceiver(opened, clock=time.time, scrub=None if scrub is None else scrub.span)
        application = app(
            opened,
            remotes,
            token=token,
            state_folder=state_dir,
            scrub=None if scrub is None else scrub.call,
            scrub_spelt=None if spelt is None else spelt.call,
            prices=prices,
            dialects=(Chat(), Responses(), Messages()),
            routes=routes(taker, token=token),
        )
        _serve(application, taker, listening, ", ".join(remote.name for remote in remotes))


def _serve(application: Starlette, taker: SpanReceiver, listening: socket.socket, behind: str) -> None:
    import asyncio
    import gc
    import signal

    import uvloop

    from holdfast.collect import endpoint

    # What is there now stays, and need not be looked through again and again for what could go.
    gc.freeze()

    async def serve() -> None:
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"proxy at http://{shown}:{port} before {behind} (Ctrl-C ends it)", flush=True)
        try:
            await endpoint.server(application).serve(sockets=[listening])
        finally:
            await taker.close()
            await application.state.proxy.close()

    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)  # by itself it would end us before the last is written
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())
    finally:
        signal.signal(signal.SIGTERM, before)


def read_price(text: str) -> tuple[str, TokenPrice]:
    """`MODEL=READ,WRITTEN`."""
    from math import isfinite

    from holdfast.collect.proxy.span_recorder import TokenPrice

    model, _, figures = text.rpartition("=")
    try:
        read, written = (float(figure) for figure in figures.split(","))
        if not model or not all(isfinite(figure) and figure >= 0 for figure in (read, written)):
            raise ValueError
    except ValueError:
        why = "is not a name and two numbers"
        raise BadInput(f"--price {text}", why=why, remedy="as in --price gpt-5=1.25,10") from None
    return model, TokenPrice(read=read, written=written)


def read_bind(text: str) -> tuple[str, int]:
    """`HOST:PORT`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise BadInput(f"bind {text!r}", why="is not HOST:PORT", remedy=f"as in {HOST}:{PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)
