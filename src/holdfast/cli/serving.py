"""Running a service from a terminal: the endpoint, the table of versions, the guard, and the conversations it keeps."""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.cli.options import address_of, ended_by_sigterm, who
from holdfast.cli.show import one_line
from holdfast.collect import endpoint
from holdfast.collect.chat_format import spell_byte
from holdfast.collect.proxy.budgets import own_token_bytes
from holdfast.collect.proxy.dialect import Chat
from holdfast.collect.proxy.upstream import Relay, Upstream, Upstreams
from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.lines import folded, say
from holdfast.contracts.release import Release
from holdfast.contracts.run import RunState
from holdfast.operate.briefs import happened
from holdfast.operate.canary_controller import WHO, Looked, run_controller
from holdfast.operate.lifecycle import end_left_behind
from holdfast.operate.service import KIND, Capture, ChatModel, Service
from holdfast.pipeline.versions import endpoint_model, open_local, resolve
from holdfast.privacy.scrub import Scrub, key_in
from holdfast.promote.release import HOLDBACK, Routing
from holdfast.prove.guard import GuardLimits
from holdfast.store.notifications import RELEASES
from holdfast.store.store import Store

SLOTS = 64
UPSTREAM_S = 120.0  # silence of an upstream
BEAT_S = 1.0
AGAIN_S = 1.0  # until what failed beside the answers is tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """What a service does besides answering."""

    token: str | None
    is_recorded: bool
    is_scrubbed: bool
    is_guarded: bool
    keeps_holdback: bool = True
    upstream: str | None = None  # the address that models elsewhere answer from
    key: str | None = None  # what the upstream asks for


def run(store: Store, policy: str, listening: socket.socket, how: ServiceOptions) -> None:
    with ended_by_sigterm():
        asyncio.run(_serve(store, policy, listening, how))


def loader(store: Store, upstreams: Upstreams | None) -> Callable[[Release], ChatModel]:
    """Returns what makes a version ready: it loads the weights, or passes requests on to its model."""

    def load(release: Release) -> ChatModel:
        model = None if upstreams is None else endpoint_model(store, release)
        if upstreams is not None and model is not None:
            return Relay(upstreams, model, key=release.id)
        return open_local(resolve(store, release.id), slots=SLOTS, seed=release.number, files=store.files)

    return load


def _upstreams(how: ServiceOptions) -> Upstreams | None:
    if how.upstream is None:
        return None
    keys = {} if how.key is None else {Chat.key_variable: how.key}
    return Upstreams([Upstream(how.upstream, keys=keys, timeout_s=UPSTREAM_S)])


async def _serve(store: Store, policy: str, listening: socket.socket, how: ServiceOptions) -> None:
    upstreams = _upstreams(how)
    load = loader(store, upstreams)
    service = Service(store=store, policy=policy, load=load, request_id=endpoint.REQUEST.get, clock=time.time)
    service.keeps_holdback = how.keeps_holdback
    await service.refresh()
    scrub = None
    if how.is_scrubbed:
        scrub = Scrub(key_in(store.folder), token_bytes=own_token_bytes if service.speaks_bytes else None)
        service.as_stored = scrub.text
    capture, run_id, driver = None, None, 0
    if how.is_recorded:
        await asyncio.to_thread(end_left_behind, store, who=who(), now=store.clock())
        begun = await store.runs.begin(
            kind=KIND, model_ref=policy, settings={}, salt=secrets.token_hex(2), who=who(), now=store.clock()
        )
        run_id, driver = begun.id, begun.driver
        scrubbing: dict[str, Any] = {} if scrub is None else {"scrub": scrub.call, "as_stored": scrub.text}
        capture = Capture(store, run_id, clock=time.time, **scrubbing)
        service.heard = capture.heard

    async def feedback(identity: str, values: Mapping[str, float]) -> bool:
        is_compared = await service.feedback(identity, values)
        is_kept = capture is not None and await capture.save_feedback(identity, values)
        return is_compared or is_kept

    application = endpoint.app(
        service.choose_version(""),
        name=policy,
        choose_version=service.choose_version,
        token=how.token,
        feedback=feedback,
        token_bytes=spell_byte if service.speaks_bytes else None,
        is_passed_on=upstreams is not None,
    )
    beside = [asyncio.create_task(_go_on("versions", service.run))]
    if how.is_guarded:
        watching = partial(run_controller, store, policy, GuardLimits(), clock=time.time, observe=_tell)
        beside.append(asyncio.create_task(_go_on("guard", watching)))
    news = News(store, policy, how)
    beside.append(asyncio.create_task(_go_on("news", news.tell)))
    if run_id is not None:
        beside.append(asyncio.create_task(_go_on("recording", partial(_keep_beating, store, run_id, driver))))
    lines = banner(service.routing, f"http://{address_of(listening)}/v1", policy, run_id, is_scrubbed=how.is_scrubbed)
    lines += prompted(store, service.routing)
    print("\n".join(lines), flush=True)
    server = endpoint.server(application)
    service.is_ending = lambda: server.should_exit
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        done, _ = await asyncio.wait([serving, *beside], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # what goes wrong there must not go unseen
    finally:
        for task in (serving, *beside):
            task.cancel()
        await asyncio.gather(serving, *beside, return_exceptions=True)
        await service.close()
        if upstreams is not None:
            await upstreams.close()
        if run_id is not None:
            await store.runs.end(run_id, RunState.COMPLETED, who=who(), now=store.clock(), driver=driver)


def banner(routing: Routing, address: str, policy: str, run: str | None, *, is_scrubbed: bool) -> list[str]:
    """The first line has the address; then who answers beside the live one, and what is kept."""
    lines = [f"{routing.live} at {address} as {policy!r} (Ctrl-C ends it)"]
    if routing.canary is not None:
        lines.append(f"  canary {routing.canary} answers {min(routing.share, 100 - HOLDBACK)} % of the callers")
    if routing.holdback is not None:
        lines.append(f"  {routing.holdback} still answers {HOLDBACK} % of the callers, to compare with")
    if routing.shadow is not None:
        what = "answers copies, which nobody sees" if routing.canary is None else "waits until the canary is decided"
        lines.append(f"  shadow {routing.shadow} {what}")
    if run is not None:
        lines.append(f"  conversations with feedback go to {run}, {'scrubbed' if is_scrubbed else 'as they are'}")
    return lines


def prompted(store: Store, routing: Routing) -> list[str]:
    """A line for each version whose prompts its callers have to bring: the service adds nothing to a request."""
    versions = filter(None, (routing.live, routing.canary, routing.shadow, routing.holdback))
    sources = ((version, store.releases.get(version).source) for version in versions)
    return [
        f"  {version} has prompts ({source}): agents put them in, nothing is added here"
        for version, source in sources
        if source.startswith(("resources:", "prompt:"))
    ]


async def _go_on(what: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Work that has no end, begun again where the store or a version fails it: people are answered meanwhile."""
    message = ""
    while True:
        try:
            await work()
        except HoldfastError as error:
            if str(error) != message:
                message = str(error)
                say(f"holdfast: {what}: {error}; trying again")
        await asyncio.sleep(AGAIN_S)


async def _keep_beating(store: Store, run: str, driver: int) -> None:
    while True:
        await asyncio.sleep(BEAT_S)
        await store.runs.beat(run, driver=driver, now=store.clock())


class News:
    """A line for each change of what answers that is not our own guard's, as the ledger has it."""

    def __init__(self, store: Store, policy: str, how: ServiceOptions) -> None:
        self._store, self._policy, self._how = store, policy, how
        self._last = max((entry.seq for entry in store.releases.history(policy)), default=0)

    async def tell(self) -> None:
        while True:
            seen = self._store.changes.seen(RELEASES)
            for entry in await asyncio.to_thread(self._store.releases.history, self._policy):
                if entry.seq > self._last:
                    self._last = entry.seq
                    if not (
                        entry.body.keys() & {"add", "refuse", "accept"} or (self._how.is_guarded and entry.who == WHO)
                    ):
                        what, why = happened(entry)
                        print("\n".join(folded(one_line(f"{what}, by {entry.who} ({why})"))), flush=True)
            await self._store.changes.moved(RELEASES, seen)


def _tell(looked: Looked) -> None:
    """A line for each move of the guard's; looking alone is not worth one."""
    if looked.response.step is not None and looked.response.action != "hold":
        why = looked.response.reasons[0].text
        print("\n".join(folded(f"{looked.release.id}: {looked.response.action} ({why})")), flush=True)
