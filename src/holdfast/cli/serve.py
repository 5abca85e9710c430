"""`holdfast serve`: the control room as pages and an API, for one store, in one process."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import DEFAULT_STORE, Project, StoreAt
from holdfast.contracts.errors import BadInput, NotFound

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from holdfast.operate.serve.app import TownPage
    from holdfast.operate.watchers import Sink, Watchman
    from holdfast.store.store import Store

AGAIN_S = 1.0  # until what failed beside the answers is tried again


def serve(
    host: Annotated[str, typer.Option(metavar="HOST", help="Others than this machine need a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="0: any that is free.")] = 8780,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    tls_proxy: Annotated[
        bool, typer.Option("--tls-proxy", help="A proxy with TLS is before it: browsers come by https.")
    ] = False,
    town: Annotated[bool, typer.Option("--town", help="Let a town live in this process, at /town/.")] = False,
    watch: Annotated[bool, typer.Option(help="Look after alerts: raise them, and clear them.")] = True,
    alert_file: Annotated[
        Path | None, typer.Option("--alert-file", metavar="FILE", help="Write alerts there too, as lines of JSON.")
    ] = None,
    alert_webhook: Annotated[
        str | None, typer.Option("--alert-webhook", metavar="URL", help="Send alerts there too.")
    ] = None,
) -> None:
    """Serve the pages of a store: what is live and why, runs, rollouts, learning, proofs, releases, alerts, the ledger.

    Nothing answers without a token but /healthz and the login. On this machine alone, the first start makes one for an
    admin and prints it, once; to be reached from elsewhere it needs one beforehand ('holdfast tokens add'), and a proxy
    with TLS before it (then say --tls-proxy). /openapi.json tells of all that programs may ask, /metrics is for
    Prometheus.
    """
    import time

    from holdfast.cli.sprout import needing

    with needing("serve"):
        from holdfast.collect import endpoint
    from holdfast.operate.watchers import Watchman

    sinks = _sinks(alert_file, alert_webhook)
    with _opened(store, project) as opened, ExitStack() as inside:
        listening = inside.enter_context(endpoint.listen(host, port, token="kept-in-the-store"))
        token = _first_token(opened, host=host, is_near=endpoint.is_loopback(host))  # now, for it is shown this once
        made = inside.enter_context(_town(opened.folder)) if town else None
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        print(f"holdfast at http://{shown}:{port}/ for {opened.url} (Ctrl-C ends it)", flush=True)
        if token is not None:
            print(
                f"  sign in with {token}\n  (an admin's, shown this once; 'holdfast tokens' makes others)", flush=True
            )
        watchman = Watchman(opened, clock=time.time, sinks=sinks) if watch else None
        _run(opened, listening, made, watchman, is_behind_tls=tls_proxy)


def _opened(store: str, project: str) -> Store:
    """A store that is there: of a mistyped one nobody wants pages, or a token. An older one is migrated."""
    from holdfast.store.store import open_store

    try:
        return open_store(store, project=project, create=False)
    except NotFound as error:
        remedy = "check --store; 'holdfast quickstart' or 'holdfast optimize' makes one"
        raise NotFound(error.what, why=error.why, remedy=remedy) from None


def _first_token(store: Store, *, host: str, is_near: bool) -> str | None:
    """A token for an admin where there is none yet, and only this machine is served."""
    import time

    from holdfast.cli.options import who
    from holdfast.contracts.commands import Role
    from holdfast.operate.auth import TokenGuard, digest, mint

    if TokenGuard(store, time.time).has_tokens():
        return None
    if not is_near:
        why = "others could reach it, and the store has no good token"
        raise BadInput(f"--host {host}", why=why, remedy="'holdfast tokens add NAME --role admin' makes the first")
    token = mint()
    store.tokens.add(who(), Role.ADMIN, digest(token), time.time()).result()
    return token


@contextmanager
def _town(folder: Path) -> Iterator[TownPage]:
    """A town that lives as long as this process; its badges are made up, and known to nobody else."""
    import secrets
    import tempfile

    from holdfast.operate.serve.app import TownPage
    from holdfast.workloads.townlife import ROLES, Life, is_cold, new_recording, read_rules
    from holdfast.workloads.townobserver import AuditFile, StaticToken
    from holdfast.workloads.townpage import Runner
    from holdfast.workloads.townpage import app as page

    if is_cold():
        typer.echo("compiling the rules of the town, once; this takes about a minute …", err=True)
    tokens = {role: secrets.token_urlsafe(24) for role in ROLES}
    badges = [StaticToken(role=role, token=token, label=role) for role, token in tokens.items()]
    life = Life(read_rules(), seed=1)
    with tempfile.TemporaryDirectory(prefix="town-") as scratch:
        recording = new_recording(Path(scratch) / "town.frames", life)
        with Runner(life, recording, audit=AuditFile(folder / "town-audit.jsonl")) as runner:
            yield TownPage(app=page(runner, badges), badges=tokens)
        recording.close()


def _sinks(file: Path | None, webhook: str | None) -> list[Sink]:
    """Where alerts go besides the store; an address that is none stops us before anything listens."""
    from holdfast.operate.sinks import Lines, Webhook

    found: list[Sink] = []
    if file is not None:
        found.append(Lines(path=file))
    if webhook is not None:
        found.append(Webhook(url=webhook))
    return found


def _run(
    store: Store, listening: socket.socket, town: TownPage | None, watchman: Watchman | None, *, is_behind_tls: bool
) -> None:
    """Until Ctrl-C, or SIGTERM; the watchman looks beside it, and begins again where the store failed it."""
    import asyncio

    from holdfast.cli.main import say
    from holdfast.contracts.errors import HoldfastError
    from holdfast.operate.serve.app import app, server

    async def looking(watchman: Watchman) -> None:
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

    asyncio.run(main())
