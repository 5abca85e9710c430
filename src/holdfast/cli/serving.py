"""Running a service from a terminal: the endpoint, the table of versions, the guard, and the conversations it keeps."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast.cli.main import say
from holdfast.cli.onward import folded
from holdfast.cli.options import who
from holdfast.cli.show import one_line
from holdfast.cli.story import happened
from holdfast.collect import endpoint
from holdfast.collect.reply import spell_byte
from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.release import Release
from holdfast.contracts.run import RunState
from holdfast.operate.capture import KIND, Capture
from holdfast.operate.keeper import WHO, Looked, keep
from holdfast.operate.service import Service, Speaker
from holdfast.pipeline.versions import open_local, resolve
from holdfast.promote.release import Routing
from holdfast.prove.guard import Limits
from holdfast.store.changes import RELEASES
from holdfast.store.store import Store

SLOTS = 64
BEAT_S = 1.0
AGAIN_S = 1.0  # until what failed beside the answers is tried again


def run(
    store: Store, policy: str, listening: socket.socket, *, token: str | None, is_recorded: bool, is_guarded: bool
) -> None:
    def terminate(*_: object) -> None:
        raise SystemExit(128 + signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, terminate)  # by itself it would end us before the last is written
    try:
        asyncio.run(_serve(store, policy, listening, token=token, is_recorded=is_recorded, is_guarded=is_guarded))
    finally:
        signal.signal(signal.SIGTERM, before)


async def _serve(
    store: Store, policy: str, listening: socket.socket, *, token: str | None, is_recorded: bool, is_guarded: bool
) -> None:
    def load(release: Release) -> Speaker:
        return open_local(resolve(store, release.id), slots=SLOTS, seed=release.number, folder=store.folder)

    service = Service(store=store, policy=policy, load=load, request_id=endpoint.REQUEST.get, clock=time.time)
    await service.refresh()
    capture, run_id, driver = None, None, 0
    if is_recorded:
        begun = await store.runs.begin(
            kind=KIND, model_ref=policy, settings={}, salt=secrets.token_hex(2), who=who(), now=time.time()
        )
        run_id, driver = begun.id, begun.driver
        capture = Capture(store, run_id, clock=time.time)
        service.heard = capture.heard

    async def feedback(identity: str, said: Mapping[str, float]) -> bool:
        is_compared = await service.feedback(identity, said)
        is_kept = capture is not None and await capture.told(identity, said)
        return is_compared or is_kept

    application = endpoint.app(
        service.choose_version(""),
        name=policy,
        choose_version=service.choose_version,
        token=token,
        feedback=feedback,
        spell=spell_byte,
    )
    beside = [asyncio.create_task(_go_on("versions", service.run))]
    if is_guarded:
        watching = partial(keep, store, policy, Limits(), clock=time.time, observe=_tell)
        beside.append(asyncio.create_task(_go_on("guard", watching)))
    news = News(store, policy, is_guarded=is_guarded)
    beside.append(asyncio.create_task(_go_on("news", news.tell)))
    if run_id is not None:
        beside.append(asyncio.create_task(_go_on("recording", partial(_keep_beating, store, run_id, driver))))
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    told = banner(service.routing, f"http://{shown}:{port}/v1", policy, run_id)
    print("\n".join(told), flush=True)
    serving = asyncio.create_task(endpoint.server(application).serve(sockets=[listening]))
    try:
        done, _ = await asyncio.wait([serving, *beside], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # what goes wrong there must not go unseen
    finally:
        for task in (serving, *beside):
            task.cancel()
        await asyncio.gather(serving, *beside, return_exceptions=True)
        await service.close()
        if run_id is not None:
            await store.runs.end(run_id, RunState.COMPLETED, who=who(), now=time.time(), driver=driver)


def banner(routing: Routing, address: str, policy: str, run: str | None) -> list[str]:
    """The first line has the address; then who answers beside the live one, and what is kept."""
    told = [f"{routing.live} at {address} as {policy!r} (Ctrl-C ends it)"]
    if routing.canary is not None:
        told.append(f"  canary {routing.canary} answers {routing.share} % of the callers")
    if routing.shadow is not None:
        what = "answers copies, which nobody sees" if routing.canary is None else "waits until the canary is decided"
        told.append(f"  shadow {routing.shadow} {what}")
    if run is not None:
        told.append(f"  conversations with feedback go to {run}")
    return told


async def _go_on(what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Work that has no end, begun again where the store or a version fails it: people are answered meanwhile."""
    said = ""
    while True:
        try:
            await work()
        except HoldfastError as error:
            if str(error) != said:
                said = str(error)
                say(f"holdfast: {what}: {error}; trying again")
        await asyncio.sleep(AGAIN_S)


async def _keep_beating(store: Store, run: str, driver: int) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        await store.runs.beat(run, driver=driver, now=time.time())


class News:
    """A line for each change of what answers that is not our own guard's, as the ledger has it."""

    def __init__(self, store: Store, policy: str, *, is_guarded: bool) -> None:
        self._store, self._policy, self._is_guarded = store, policy, is_guarded
        self._last = max((one.seq for one in store.releases.history(policy)), default=0)

    async def tell(self) -> None:
        while True:
            seen = self._store.changes.seen(RELEASES)
            for entry in await asyncio.to_thread(self._store.releases.history, self._policy):
                if entry.seq > self._last:
                    self._last = entry.seq
                    if not (entry.body.keys() & {"add", "refuse", "accept"} or (self._is_guarded and entry.who == WHO)):
                        what, why = happened(entry)
                        print("\n".join(folded(one_line(f"{what}, by {entry.who} ({why})"))), flush=True)
            await self._store.changes.after(RELEASES, seen)


def _tell(looked: Looked) -> None:
    """A line for each move of the guard's; looking alone is not worth one."""
    if looked.response.step is not None and looked.response.action != "hold":
        why = looked.response.reasons[0].text
        print("\n".join(folded(f"{looked.release.id}: {looked.response.action} ({why})")), flush=True)
