"""The town as a live page: a thread that runs it at a chosen speed, and an app that shows it to many viewers.

The world never waits for a viewer: the frames since the last key frame are kept once for all, each viewer takes its
next one, and a slow viewer starts again at the newest key frame. `townobserver` takes orders and `townlife` carries
them out. Without tokens the page serves this machine only. Inside an app that has authenticated somebody (`caller` in
the scope), that caller is used for as long as the app knows them (`is_known`).
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from importlib.resources import files
from math import ceil
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.collect.endpoint import Events, RequestReader, media_type_of, read_body
from holdfast.collect.http_limits import address_of
from holdfast.collect.openapi import JSON
from holdfast.contracts.commands import Forbidden, Role
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, HoldfastError, NotFound
from holdfast.contracts.limits import StreamLimiter
from holdfast.operate.auth import Caller
from holdfast.workloads.townaudit import AuditFile
from holdfast.workloads.townlife import COMMANDS, LIMITS, Life, Recording, TownMoment, described, faults, rounded
from holdfast.workloads.townobserver import StaticToken, TooMany, TownAlarms, TownCommandService, role_of

FRAMES_S = 20  # frames a second at most: faster towns do more ticks in each
FASTEST = 4096.0  # ticks a second
BEAT_S = 10.0  # between two signs of life on a quiet stream
LOOK_S = 1.0  # between two looks whether the viewer of a stream may still see it
ANSWER_S = 10.0  # that an order waits for the town
BODY_S = 30.0  # that an order may take to come
LARGEST = 64 * 1024  # bytes of an order
MOST_FRAMES = 600  # of a recording, in one answer
OWN: Mapping[str, str] = {  # orders to the runner itself
    "pause": "operator", "resume": "operator", "speed": "operator", "mind": "viewer",
}  # fmt: skip
MOST_STREAMS = 16  # live views of one caller at one address
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}
STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (TooMany, 429),
    (Forbidden, 403),
    (NotFound, 404),
    (Conflict, 409),
    (BadRecord, 500),  # the log's, whatever was asked
    (BadInput, 400),
)


class Late(HoldfastError):
    """The town did not take the order in time. Sent again with the same id, it is done once."""


class FrameHub:
    """The newest key frame and all frames since. Its size does not depend on the number of viewers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._frames: list[tuple[int, bytes]] = []
        self._waiting: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    def offer(self, frame: Mapping[str, Any]) -> None:
        """Adds a frame, from any thread, without waiting for viewers."""
        kept = (int(frame["seq"]), orjson.dumps(frame))
        with self._lock:
            self._frames = [kept] if frame["key"] else [*self._frames, kept]
            waiting = list(self._waiting)
        for loop, event in waiting:
            with suppress(RuntimeError):  # that loop has ended
                loop.call_soon_threadsafe(event.set)

    def after(self, seq: int) -> tuple[int, bytes] | None:
        """The frame after this one, or the newest key frame where that is gone."""
        with self._lock:
            if not self._frames:
                return None
            first, last = self._frames[0][0], self._frames[-1][0]
            if seq >= last:
                return None
            return self._frames[seq + 1 - first] if seq >= first - 1 and seq >= 0 else self._frames[0]

    async def stream(self) -> AsyncGenerator[tuple[int, bytes] | None, None]:
        """Yields frame after frame; None every LOOK_S seconds when there is none."""
        mine = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.add(mine)
        had = -1
        try:
            while True:
                mine[1].clear()
                found = self.after(had)
                if found is not None:
                    had = found[0]
                    yield found
                    continue
                try:
                    async with asyncio.timeout(LOOK_S):
                        await mine[1].wait()
                except TimeoutError:
                    yield None
        finally:
            with self._lock:
                self._waiting.discard(mine)


class Runner:
    """Runs a town in a thread at a chosen speed, and takes orders between two ticks."""

    def __init__(
        self,
        life: Life,
        recording: Recording,
        *,
        audit: AuditFile,
        speed: float = 8.0,
        clock: Callable[[], float] = time.time,
        observe: Callable[[TownMoment], None] | None = None,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.life, self.recording, self.hub = life, recording, FrameHub()
        self.is_paused, self.speed = False, speed
        self.alerts, self.lines, self.history = TownAlarms(), deque[Any](maxlen=60), deque[Any](maxlen=240)
        self.error: BaseException | None = None
        self._observe, self._answer_s = observe, answer_s
        self._orders = queue.SimpleQueue[tuple[Any, Caller, Future[dict[str, Any]]] | None]()
        self._desk = TownCommandService(needs=self._needs, look=self._look, do=self._do, audit=audit, clock=clock)
        self._thread = threading.Thread(target=self._live, name="town", daemon=True)
        self._is_over, self._is_up = False, False  # up: its rules are compiled, and the first tick was lived

    def __enter__(self) -> Runner:
        self._show()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._orders.put(None)
        self._thread.join()

    # In the town's thread --------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            due = time.monotonic()
            while not self._is_over:
                if self.is_paused:
                    self._obey(0.5)
                    due = time.monotonic()
                    continue
                ticks = max(1, round(self.speed / FRAMES_S))
                for _ in range(ticks):
                    self._tick()
                    self._is_up = True
                self._show()
                due = max(due + ticks / self.speed, time.monotonic() - 1.0)  # what cannot be kept up with is let go
                self._obey(due - time.monotonic())
        except BaseException as error:
            self.error = error
            raise

    def _tick(self) -> None:
        moment = self.life.step()
        if self._observe is not None:
            self._observe(moment)
        if moment.window is not None:
            self.alerts.update(moment.window, moment.tick)

    def _show(self, *, key: bool = False) -> None:
        frame = self.life.frame(key=key)
        self.lines.extend(frame.get("lines", ()))
        if "kpis" in frame and (not self.history or self.history[-1]["tick"] < frame["tick"]):
            self.history.append({"tick": frame["tick"], **frame["kpis"]})
        self.recording.add(frame)
        self.hub.offer(frame)

    def _obey(self, wait_s: float) -> None:
        """Takes waiting orders, and those that come within the time; it always looks once."""
        until = time.monotonic() + wait_s
        while True:
            try:
                left = until - time.monotonic()
                found = self._orders.get(timeout=left) if left > 0 else self._orders.get_nowait()
            except queue.Empty:
                return
            if found is None:
                return
            body, caller, answer = found
            if not answer.set_running_or_notify_cancel():  # who sent it was told that it is late, or is gone
                continue
            was = (self.is_paused, self.speed)
            try:
                answer.set_result(self._desk.hear(body, caller))
            except Exception as error:
                answer.set_exception(error)
            if (self.is_paused, self.speed) != was:
                return

    def _needs(self, name: str) -> str:
        if name in OWN:
            return OWN[name]
        if name not in COMMANDS:
            why, known = "is unknown", ", ".join((*OWN, *COMMANDS))
            raise NotFound(f"order {name[:40]!r}", why=why, remedy=f"there are {known}")
        return COMMANDS[name].role

    def _look(self, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        if name in OWN:
            return {"said": name, "actions": []}
        return self.life.answer(self.life.plan(name, args), name, args)

    def _do(self, name: str, args: Mapping[str, Any]) -> Mapping[str, Any]:
        if name == "speed":
            self.speed = _speed(args)
            return {"said": f"{self.speed:g} ticks a second"}
        if name == "mind":
            found = self.life.look_into(_whole(args.get("resident")))
            return {"said": f"the mind of {found['name']}", "mind": found}
        if name in OWN:
            self.is_paused = name == "pause"
            return {"said": "the town stands still" if self.is_paused else "the town goes on"}
        payload = self.life.order(name, args)
        if self.is_paused and COMMANDS[name].role != Role.VIEWER:
            self._show()  # else it would be seen only when the town goes on
        return payload

    # From elsewhere --------------------------------------------------------------------------------------------------

    async def take(self, body: Any, caller: Caller) -> dict[str, Any]:
        """The answer to an order; an order that is not taken in time is refused and never done."""
        answer: Future[dict[str, Any]] = Future()
        self._orders.put((body, caller, answer))
        with suppress(TimeoutError):
            async with asyncio.timeout(0 if self.error is not None else self._answer_s):
                return await asyncio.wrap_future(answer)
        if self.error is not None:
            raise Late("town", why="has stopped", remedy="start it anew")
        why = "has no time for orders" if self._is_up else "is starting: its rules are being compiled, about a minute"
        raise Late("town", why=why, remedy="send the order again, with the same id")

    def status(self, role: Role) -> dict[str, Any]:
        standing = [{"code": alert.code, "severity": str(alert.severity), "message": alert.message}
                    for alert in self.alerts.active]  # fmt: skip
        return {
            "role": role,
            "policy": getattr(self.life.mind, "version", None),
            "learning": getattr(self.life.mind, "lineage", None),
            "rollout": getattr(self.life.mind, "rollout", None),
            "paused": self.is_paused,
            "speed": self.speed,
            "ticks": list(self.recording.ticks),
            "alerts": standing,
            "faults": list(faults(self.life.kpis)),
            "kpis": rounded(self.life.kpis),
            "limits": [{"kpi": limit.kpi, "above": limit.above, "below": limit.below} for limit in LIMITS],
            "lines": list(self.lines),
            "history": list(self.history),
            "commands": [one for one in described() if role.may(Role(one["role"]))],
        }


def _speed(args: Mapping[str, Any]) -> float:
    value = args.get("ticks_per_s")
    with suppress(TypeError, ValueError):
        if value is not None and 0.1 <= float(value) <= FASTEST:
            return float(value)
    raise BadInput(f"speed: ticks_per_s = {value!s:.40}", why="is no speed", remedy=f"from 0.1 to {FASTEST:g}")


def _whole(value: Any) -> int:
    text = str(value)
    if not text.isdecimal() or len(text) > 6:
        raise BadInput(f"mind: resident = {value!s:.40}", why="is not a whole number from 0 on")
    return int(text)


# The app -------------------------------------------------------------------------------------------------------------


def app(runner: Runner, badges: Sequence[StaticToken] = (), *, body_s: float = BODY_S) -> Starlette:
    """The page and its API. With a viewer token, nothing is served without a token."""
    is_open = not any(badge.role == "viewer" for badge in badges)
    reader, streams = RequestReader(token=None), StreamLimiter(MOST_STREAMS)

    def admit(asked: Request) -> Caller:
        known = asked.scope.get("caller")
        if isinstance(known, Caller):
            return known
        given = asked.headers.get("authorization", "").removeprefix("Bearer ") or None
        caller = role_of(badges, given)
        if caller is None and given is not None:
            reader.refuse_guess(asked, "the token is wrong")
        if caller is None and not is_open:
            raise HTTPException(401, "the token is missing; send 'Authorization: Bearer …'")
        if caller is None:
            reader.admit(asked)  # only this machine
        return caller or Caller(label="anyone", role=Role.VIEWER)

    async def page(asked: Request) -> Response:
        return _file("templates/town.html", "text/html")

    async def script(asked: Request) -> Response:
        return _file("static/town.js", "text/javascript")

    async def legend(asked: Request) -> Response:
        admit(asked)
        return _json(runner.life.legend())

    async def status(asked: Request) -> Response:
        return _json(runner.status(admit(asked).role))

    async def health(asked: Request) -> Response:
        is_well = runner.error is None
        return _json({"status": "ok" if is_well else "failed"}, 200 if is_well else 503)

    async def live(asked: Request) -> Response:
        caller = admit(asked)
        key = f"{caller.token_id or caller.label} {address_of(asked)}"
        if not streams.open(key):
            raise HTTPException(429, f"you watch it {MOST_STREAMS} times already; close one")
        events = _events(runner.hub, asked.scope.get("is_known"))
        return Events(events, headers={"Cache-Control": "no-store"}, ended=lambda: streams.close(key))

    async def frames(asked: Request) -> Response:
        admit(asked)
        tick, most = (_number(asked, name, default) for name, default in (("tick", 0), ("most", 300)))
        found = await asyncio.to_thread(lambda: list(runner.recording.frames(tick, max(1, min(most, MOST_FRAMES)))))
        return _json({"ticks": list(runner.recording.ticks), "frames": found})

    async def order(asked: Request) -> Response:
        caller = admit(asked)
        if media_type_of(asked) != JSON:
            raise HTTPException(415, f"Content-Type must be {JSON}")
        try:
            said = orjson.loads(await read_body(asked, largest=LARGEST, wait_s=body_s))
        except orjson.JSONDecodeError as error:
            raise BadInput("order", why=f"is not JSON: {error}") from None
        return _json(await runner.take(said, caller))

    application = Starlette(
        routes=[
            Route("/", page),
            Route("/town.js", script),
            Route("/legend", legend),
            Route("/status", status),
            Route("/health", health),
            Route("/live", live),
            Route("/frames", frames),
            Route("/order", order, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _refused, HoldfastError: _failed, ClientDisconnect: _gone},
    )
    application.router.redirect_slashes = False
    return application


async def _events(hub: FrameHub, is_known: Callable[[], Awaitable[bool]] | None) -> AsyncGenerator[bytes, None]:
    """The frames as server-sent events while the viewer may see them; a comment when nothing happens."""
    seen = sent = time.monotonic()
    async with aclosing(hub.stream()) as frames:
        async for found in frames:
            now = time.monotonic()
            if is_known is not None and now - seen >= LOOK_S:
                if not await is_known():
                    return
                seen = now
            if found is not None or now - sent >= BEAT_S:
                sent = now
                yield b": \n\n" if found is None else b"data: " + found[1] + b"\n\n"


def _number(asked: Request, name: str, default: int) -> int:
    text = asked.query_params.get(name, str(default))
    if not text.isdecimal() or len(text) > 12:
        raise BadInput(f"{name} = {text[:40]}", why="is not a whole number from 0 on")
    return int(text)


def _file(path: str, kind: str) -> Response:
    data = files("holdfast.workloads").joinpath(path).read_bytes()
    return Response(data, media_type=kind, headers=SAFE | {"Cache-Control": "no-cache"})


def _json(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    data, more = orjson.dumps(value), {"Cache-Control": "no-store", **(headers or {})}
    return Response(data, status, media_type="application/json", headers=more)


async def _refused(asked: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json({"error": error.detail}, error.status_code, error.headers)


async def _failed(asked: Request, error: Exception) -> Response:
    code = next((code for kind, code in STATUSES if isinstance(error, kind)), 503)
    headers = {"Retry-After": str(ceil(error.wait_s))} if isinstance(error, TooMany) else None
    return _json({"error": str(error)}, code, headers)


async def _gone(asked: Request, error: Exception) -> Response:
    return Response(status_code=499)
