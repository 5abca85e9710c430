"""Servers: the control room (`holdfast serve`), the capture proxy and MCP. Serving a version is in `serving`."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from holdfast.cli.options import (
    Host,
    Leave,
    Port,
    StoreOptions,
    TokenOptions,
    address_of,
    classes_left,
    ended_by_sigterm,
    hand_over,
    needing,
    who,
)
from holdfast.cli.reward import BaseUrl, named
from holdfast.contracts.commands import Role
from holdfast.contracts.errors import BadInput, HoldfastError, NotFound
from holdfast.contracts.lines import say

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from starlette.applications import Starlette

    from holdfast.collect.otlp.take import SpanReceiver
    from holdfast.collect.proxy.span_recorder import TokenPrice
    from holdfast.operate.app import TownPage
    from holdfast.operate.watchers import AlertWatcher, Sink
    from holdfast.store.store import Store


FIRST_TOKEN = "first-token"  # the file in the folder of the store, where there is no terminal
AGAIN_S = 1.0  # until what failed beside the answers is tried again


def serve(
    at: StoreOptions,
    host: Host = "127.0.0.1",
    port: Port = 8780,
    tls_proxy: Annotated[
        bool, Option("--tls-proxy", help="A proxy with TLS is before it: browsers come by https.")
    ] = False,
    town: Annotated[bool, Option("--town", help="Let a town live in this process, at /town/.")] = False,
    watch: Annotated[bool, Option(help="Look after alerts: raise them, and clear them.")] = True,
    alert_file: Annotated[Path | None, Option(metavar="FILE", help="Write alerts there too, as lines of JSON.")] = None,
    alert_webhook: Annotated[str | None, Option(metavar="URL", help="Send alerts there too.")] = None,
) -> None:
    """Serve the pages of a store: what is live and why, runs, rollouts, learning, proofs, releases, alerts, the ledger.

    Nothing answers without a token but /healthz and the login. On this machine alone, the first start makes one for an
    admin and prints it, once. To be reached from elsewhere it needs one beforehand ('holdfast control tokens add'), and
    a proxy with TLS before it (then say --tls-proxy). /openapi.json lists all that programs may ask, /metrics is for
    Prometheus.
    """
    with needing("serve"):
        from holdfast.collect import endpoint
    from holdfast.operate.watchers import AlertWatcher

    sinks = _sinks(alert_file, alert_webhook)
    with _opened(at) as opened, ExitStack() as inside:
        listening = inside.enter_context(endpoint.listen(host, port, token="kept-in-the-store-as-a-hash"))
        token = _first_token(opened, host=host, is_near=endpoint.is_loopback(host))  # now, for it is shown this once
        made = inside.enter_context(_town(opened.folder)) if town else None
        print(f"holdfast at http://{address_of(listening)}/ for {opened.url} (Ctrl-C ends it)", flush=True)
        if token is not None:
            where, more = hand_over(token, opened.folder, FIRST_TOKEN), "'holdfast control tokens' makes others"
            print(f"  sign in with {where}\n  (an admin's, told this once; {more})", flush=True)
        watchman = AlertWatcher(opened, clock=time.time, sinks=sinks) if watch else None
        _run(opened, listening, made, watchman, is_behind_tls=tls_proxy)


def _opened(at: StoreOptions) -> Store:
    """A store that is there: of a mistyped one nobody wants pages, or a token. An older one is migrated."""
    try:
        return at.open(create=False)
    except NotFound as error:
        remedy = "check --store; 'holdfast quickstart' or 'holdfast run start' makes one"
        raise NotFound(error.what, why=error.why, remedy=remedy) from None


def _first_token(store: Store, *, host: str, is_near: bool) -> str | None:
    """A token for an admin where there is none yet, and only this machine is served."""
    from holdfast.operate.auth import TokenGuard, digest, mint

    if TokenGuard(store, time.time).has_tokens():
        return None
    if not is_near:
        why = "others could reach it, and the store has no good token"
        raise BadInput(
            f"--host {host}", why=why, remedy="'holdfast control tokens add NAME --role admin' makes the first"
        )
    token = mint()
    store.tokens.add(who(), Role.ADMIN, digest(token), time.time()).result()
    return token


@contextmanager
def _town(folder: Path) -> Iterator[TownPage]:
    """Runs a town as long as this process, with tokens made for it alone."""
    from holdfast.cli.town_school import warn
    from holdfast.operate.app import TownPage
    from holdfast.workloads.townaudit import AuditFile
    from holdfast.workloads.townlife import ROLES, Life, new_recording, read_rules
    from holdfast.workloads.townobserver import StaticToken
    from holdfast.workloads.townpage import Runner
    from holdfast.workloads.townpage import app as page

    warn()
    tokens = {role: secrets.token_urlsafe(24) for role in ROLES}
    badges = [StaticToken(role=role, token=token, label=role) for role, token in tokens.items()]
    life = Life(read_rules(), seed=1)
    with tempfile.TemporaryDirectory(prefix="town-") as scratch:
        recording = new_recording(Path(scratch) / "town.frames", life)
        with Runner(life, recording, audit=AuditFile(folder / "town-audit.jsonl")) as runner:
            yield TownPage(app=page(runner, badges), badges=tokens)
        recording.close()


def _sinks(file: Path | None, webhook: str | None) -> list[Sink]:
    """Returns the sinks of alerts besides the store; a bad address is refused before anything listens."""
    from holdfast.operate.watchers import Lines, Webhook

    sinks: list[Sink] = []
    if file is not None:
        sinks.append(Lines(path=file))
    if webhook is not None:
        sinks.append(Webhook(url=webhook))
    return sinks


def _run(
    store: Store, listening: socket.socket, town: TownPage | None, watchman: AlertWatcher | None, *, is_behind_tls: bool
) -> None:
    """Serves until Ctrl-C or SIGTERM. The watcher runs beside it and starts again after a failure of the store."""
    from holdfast.collect.endpoint import server
    from holdfast.operate.app import app

    async def looking(watchman: AlertWatcher) -> None:
        while True:
            try:
                await watchman.run()
            except* HoldfastError as group:
                say(f"holdfast: alerts: {group.exceptions[0]}; trying again")
            await asyncio.sleep(AGAIN_S)

    async def main() -> None:
        beside = None if watchman is None else asyncio.create_task(looking(watchman))
        try:
            await server(app(store, town=town, is_behind_tls=is_behind_tls)).serve(sockets=[listening])
        finally:
            if beside is not None:
                beside.cancel()
                await asyncio.gather(beside, return_exceptions=True)

    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


PROXY_HOST, PROXY_PORT, TIMEOUT_MS, STATE_DIR = "127.0.0.1", 8788, 30_000, Path(".holdfast")


def proxy(
    upstream: Annotated[list[str], Option(metavar="URL", help="Where calls are answered; several share them.")],
    at: StoreOptions,
    tokens: TokenOptions,
    host: Host = PROXY_HOST,
    port: Port = PROXY_PORT,
    state_dir: Annotated[Path, Option(metavar="FOLDER", help="Where the attribution log lies.")] = STATE_DIR,
    timeout_ms: Annotated[int, Option(metavar="N", min=1, help="How long an upstream may be silent.")] = TIMEOUT_MS,
    hold_ms: Annotated[int, Option(metavar="N", min=0, help="How long a call waits for a busy upstream.")] = 30_000,
    most: Annotated[int, Option(metavar="N", min=1, help="Calls of one upstream at a time.")] = 512,
    ids: Annotated[
        bool, Option("--ids/--no-ids", help="Ask upstreams for token ids and log-probs where they give them.")
    ] = True,
    scrub: Annotated[
        bool, Option("--scrub/--no-scrub", help="Take secrets and personal data out of what is kept.")
    ] = True,
    leave: Leave = None,
    price: Annotated[
        list[str] | None, Option(metavar="MODEL=READ,WRITTEN", help="Of a million tokens, to count what calls cost.")
    ] = None,
) -> None:
    """Stand between agents and their model: pass every call on byte for byte and record it as a span of its attempt.

    An agent needs nothing but its base URL: http://HOST:PORT/rollout/RUN%2FNAME/attempt/N/v1. The key of the upstreams
    is read from OPENAI_API_KEY (ANTHROPIC_API_KEY); where it is not set, and no token is asked for, each agent's own
    key is passed on. Keys are never written anywhere.
    """
    with needing("serve"):
        from holdfast.collect import endpoint
        from holdfast.collect.otlp.take import SpanReceiver, routes
        from holdfast.collect.proxy.anthropic import Messages
        from holdfast.collect.proxy.app import app
        from holdfast.collect.proxy.dialect import Chat
        from holdfast.collect.proxy.responses import Responses
        from holdfast.collect.proxy.upstream import Upstream
    token = tokens.read()
    names = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    keys = {name: os.environ[name] for name in names if os.environ.get(name)}
    how: dict[str, Any] = {"timeout_s": timeout_ms / 1000, "hold_s": hold_ms / 1000, "most": most, "is_extended": ids}
    remotes = [Upstream(url, keys=keys, **how) for url in upstream]
    prices = dict(map(read_price, price or ()))
    with endpoint.listen(host, port, token=token) as listening, at.open(state_folder=state_dir) as opened:
        from holdfast.privacy.scrub import Scrub, key_in

        scrubbing, spelt, key = None, None, key_in(opened.folder)
        if scrub:
            from holdfast.collect.proxy.budgets import own_token_bytes

            classes = classes_left(leave)
            scrubbing, spelt = Scrub(key, leave=classes), Scrub(key, token_bytes=own_token_bytes, leave=classes)
        from holdfast.reward.turns import TurnRewards

        options: dict[str, Any] = {"scrub": None if scrubbing is None else scrubbing.span, "turns": TurnRewards()}
        taker = SpanReceiver(opened, clock=time.time, **options)
        application = app(
            opened,
            remotes,
            token=token,
            key=key,
            state_folder=state_dir,
            scrub=None if scrubbing is None else scrubbing.call,
            scrub_spelt=None if spelt is None else spelt.call,
            prices=prices,
            dialects=(Chat(), Responses(), Messages()),
            routes=routes(taker, token=token, key=key),
        )
        _serve(application, taker, listening, ", ".join(remote.name for remote in remotes))


def _serve(application: Starlette, taker: SpanReceiver, listening: socket.socket, behind: str) -> None:
    import uvloop

    from holdfast.collect import endpoint

    # What is there now stays, and need not be looked through again and again for what could go.
    gc.freeze()

    async def serve() -> None:
        print(f"proxy at http://{address_of(listening)} before {behind} (Ctrl-C ends it)", flush=True)
        try:
            await endpoint.server(application).serve(sockets=[listening])
        finally:
            await taker.close()
            await application.state.proxy.close()

    with ended_by_sigterm(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve())


def read_price(text: str) -> tuple[str, TokenPrice]:
    """`MODEL=READ,WRITTEN`."""
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
        raise BadInput(f"bind {text!r}", why="is not HOST:PORT", remedy=f"as in {PROXY_HOST}:{PROXY_PORT}")
    return host.removeprefix("[").removesuffix("]"), int(port)


TOKEN = "HOLDFAST_TOKEN"  # in the environment, never on a command line, where others could read it
MCP_EPILOG = f"""It speaks the Model Context Protocol on stdin and stdout; a client starts it, as "command": "holdfast",
"args": ["mcp", "--store", "FILE"]. Without a token it only looks; with an operator's token in {TOKEN} it takes orders
too: pause, resume, cancel, roll back."""


def mcp(
    at: StoreOptions,
    listed: Annotated[bool, typer.Option("--list", help="Print the tools that a client gets, and end.")] = False,
    judge: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Asked where rules cannot tell: verifier, or a model.")
    ] = None,
    base_url: BaseUrl = None,
) -> None:
    """Serve MCP clients: judge, compare, evaluate a diff, look up runs, decisions and budgets.

    Each --judge is asked where the rules cannot tell; what it says counts where it is calibrated ('holdfast reward
    judge calibrate'). Its key is read from OPENAI_API_KEY.
    """
    with needing("mcp"):
        import mcp.server.stdio  # noqa: F401
    from holdfast.operate.mcp import ToolFunctions, looking, ordering, serve, server

    judges = named(judge, base_url) if judge else []
    desk = ToolFunctions(at.store, at.project, clock=time.time, judges=judges, base_url=base_url)
    if listed:
        for tool in (*looking(desk), *ordering(desk, os.environ.get(TOKEN))):
            print(f"{tool.name}\n  {tool.says}")
        return
    if sys.stdin.isatty():
        say("MCP is spoken on stdin and stdout: a client starts this command. Ctrl-C ends it")
    token = os.environ.get(TOKEN)
    note = partial(desk.note, token)
    made = server(looking(desk), lambda: ordering(desk, token), version=version("holdfast"), note=note)
    asyncio.run(serve(made))
