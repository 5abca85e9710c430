"""The control room over HTTP: which question goes where, and in which shape an answer or a refusal comes.

Who comes in is `entrance`'s business, what is shown `panels`' and `gateway`'s, what is ordered `control`'s, files are
`pages`'. There is one shape of refusals, the documented one: {"error": {"type", "code", "message"}}.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.collect import endpoint
from holdfast.collect.endpoint import Events
from holdfast.collect.openapi import EVENTS, FLAG, JSON, TEXT, ApiRoute, Told, described, obj, optional
from holdfast.contracts.access import Forbidden
from holdfast.contracts.commands import LONGEST, LONGEST_WHY
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, NotFound, Refused
from holdfast.operate import control
from holdfast.operate.auth import Clock, TokenGuard
from holdfast.operate.look.metrics import metrics as exposition
from holdfast.operate.serve import auth_middleware, pages, stream
from holdfast.operate.serve.auth_middleware import AuthMiddleware, Entrance, Refusal, caller_of, cookie_name, read_json
from holdfast.operate.serve.gateway import DEEPEST, Gateway
from holdfast.operate.serve.panels import PANELS, Panel, Param, refusals, whole
from holdfast.store.store import Store

SAYS = "What is live and why, whether it is well, and orders: all that the pages of `holdfast serve` show and do."
TITLE = "holdfast serve"
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (Forbidden, 403),
    (NotFound, 404),
    (Refused, 409),
    (BadRecord, 500),  # kept by what was asked, whatever was asked
    (BadInput, 400),
    (HoldfastError, 503),
)
STREAM_S = 3600.0  # a stream is begun anew then: browsers do so by themselves
UNBUFFERED = {"X-Accel-Buffering": "no"}  # a proxy before us shall pass events on as they come
LEFT = 499  # the status of an answer that nobody reads: the client is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class TownPage:
    """A town that lives in this process: its page, and the badge that stands for each role."""

    app: ASGIApp
    badges: Mapping[str, str]  # role → token, known to this process alone


@dataclass(slots=True, kw_only=True)
class ControlRoom:
    """The control room: what its routes share."""

    store: Store
    clock: Clock
    doorkeeper: AuthMiddleware
    town: TownPage | None = None
    stream_s: float = STREAM_S
    gateway: Gateway = field(init=False)

    def __post_init__(self) -> None:
        self.gateway = Gateway(self.store, self.clock)

    # Coming in and leaving -------------------------------------------------------------------------------------------

    async def log_in(self, asked: Request) -> Response:
        auth_middleware.refuse_foreign(asked, has_cookie=False)
        body = await read_json(asked)
        token = body.get("token") if isinstance(body, dict) else None
        if not isinstance(token, str) or set(body) != {"token"}:
            raise BadInput("token", why="is missing", remedy='send {"token": "hf_…"} and nothing else')
        answer, name = _json({"ok": True}), cookie_name(asked)
        cookie = await self.doorkeeper.log_in(asked, token)
        self.doorkeeper.sessions.close(asked.cookies.get(name))  # the one before is over
        answer.set_cookie(name, cookie, httponly=True, samesite="strict", secure=asked.scope["scheme"] == "https")
        return answer

    async def log_out(self, asked: Request) -> Response:
        name = cookie_name(asked)
        self.doorkeeper.sessions.close(asked.cookies.get(name))
        answer = _json({"ok": True})
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=asked.scope["scheme"] == "https")
        return answer

    async def me(self, asked: Request) -> Response:
        caller = caller_of(asked)
        actions = [
            {"name": one.name, "role": str(one.role), "subject": one.subject, "help": one.help}
            for one in control.ACTIONS.values()
        ]
        told = {"label": caller.label, "role": str(caller.role), "project": self.store.project, "actions": actions}
        return _json({**told, "version": version("holdfast"), "has_town": self.town is not None})

    def _listening(self, asked: Request) -> Callable[[], Awaitable[bool]]:
        """Whether a stream goes on: its token is still good, and it has not been open for ever."""
        until = time.monotonic() + self.stream_s

        async def is_known() -> bool:
            try:
                return time.monotonic() < until and await self.doorkeeper.who(asked) is not None
            except Refusal:  # nobody can tell now: it ends, and who may listen still begins it anew
                return False

        return is_known

    # Looking and ordering --------------------------------------------------------------------------------------------

    def panel(self, panel: Panel) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def look(asked: Request) -> Response:
            given = panel.read(asked.query_params)
            found = await asyncio.to_thread(panel.view, self.store, **given, now=self.clock())
            return _json(found)

        return look

    async def order(self, asked: Request) -> Response:
        body, caller = await read_json(asked), caller_of(asked)
        return _json(await asyncio.to_thread(control.answer, self.store, body, caller, now=self.clock()))

    async def stream(self, asked: Request) -> Response:
        return Events(stream.topics(self.store.changes, self._listening(asked)), headers=UNBUFFERED)

    async def snapshots(self, asked: Request) -> Response:
        async def look() -> Mapping[str, Any]:
            return await asyncio.to_thread(self.gateway.snapshot)

        last = asked.headers.get("last-event-id")
        return Events(stream.snapshots(look, self.store.changes, self._listening(asked), last), headers=UNBUFFERED)

    async def act(self, asked: Request) -> Response:
        return _json(await asyncio.to_thread(self.gateway.act, await read_json(asked), caller_of(asked)))

    async def configure(self, asked: Request) -> Response:
        return _json(await asyncio.to_thread(self.gateway.configure, await read_json(asked), caller_of(asked)))

    async def metrics(self, asked: Request) -> Response:
        text = await asyncio.to_thread(exposition, self.store, now=self.clock())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


async def healthz(asked: Request) -> Response:
    return _json({"status": "ok"})


async def _shell(asked: Request) -> Response:
    return pages.answer(asked, pages.shell())


async def _login(asked: Request) -> Response:
    return pages.answer(asked, pages.login())


async def _asset(asked: Request) -> Response:
    file = pages.assets().get(asked.path_params["name"])
    if file is None:
        raise Refusal(404, "there is no such file")
    return pages.answer(asked, file)


class Badged:
    """The town within the room: whoever was let in here is there who they are here, and for as long as here."""

    def __init__(self, town: TownPage, listening: Callable[[Request], Callable[[], Awaitable[bool]]]) -> None:
        self._town, self._listening = town, listening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        badge = self._town.badges[str(scope["caller"].role)]
        kept = [(name, value) for name, value in scope["headers"] if name not in (b"authorization", b"cookie")]
        headers = [*kept, (b"authorization", f"Bearer {badge}".encode())]
        is_known = self._listening(Request(scope))  # by what they have brought, which the town does not see
        await self._town.app({**scope, "headers": headers, "is_known": is_known}, receive, send)


# The routes ----------------------------------------------------------------------------------------------------------

BODY = (400, 401, 403, 408, 413, 415, 429, 503)  # what may be wrong with any request that has one
ANY = {"type": "object"}
PLAIN = {"text/plain": TEXT}
LOGIN = {**obj(("token",), token=TEXT), "additionalProperties": False}
PAGE_NUMBER = whole("page", "Which page.", DEEPEST)
PER_PAGE = whole("per_page", "Records on a page.", 200)
ORDER = {
    **obj(
        ("id", "action", "subject", "why"),
        id={"type": "string", "minLength": 1, "maxLength": LONGEST},
        action={"enum": list(control.ACTIONS)},
        subject={"type": "string", "minLength": 1},
        args={"type": "object", "additionalProperties": TEXT},
        why={"type": "string", "minLength": 1, "maxLength": LONGEST_WHY},
        dry_run=FLAG,
    ),
    "additionalProperties": False,
}
ACTION = {
    **obj(("action",), action={"enum": ["pause", "resume", "refresh"]}, reason=optional({**TEXT, "maxLength": 1000})),
    "additionalProperties": False,
}
CONFIG = {
    **obj(
        enabled=FLAG,
        update_interval_rollouts={"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
        max_rollouts_per_update={"type": "integer", "minimum": 1, "maximum": 2**53 - 1},
    ),
    "minProperties": 1,
    "additionalProperties": False,
}


def _told(name: str, says: str, *refused: int, gives: Any = None, takes: Any = None, **more: Any) -> Told:
    """An operation that answers with JSON, or with what `gives` says."""
    content = gives or {JSON: ANY}
    body = {} if takes is None else {JSON: takes}
    return Told(name=name, says=says, gives={200: (says, content), **refusals(*refused)}, takes=body, **more)


def _places(room: ControlRoom) -> list[BaseRoute]:
    """What programs may ask, each with what is to be known of it."""
    known = (401, 403, 429, 503)
    login = _told("login", "A session for a token", *BODY, takes=LOGIN, is_open=True)
    order = _told("order", "An order, obeyed once", *BODY, 404, 409, takes=ORDER)
    events = {EVENTS: TEXT}
    return [
        ApiRoute("/healthz", healthz, _told("healthz", "Whether it is up", is_open=True)),
        ApiRoute("/login", room.log_in, login, method="POST"),
        ApiRoute("/logout", room.log_out, _told("logout", "The session ends", *known), method="POST"),
        ApiRoute("/api/me", room.me, _told("me", "Who asks, and what may be ordered", *known)),
        ApiRoute("/api/orders", room.order, order, method="POST"),
        ApiRoute("/api/stream", room.stream, _told("stream", "An event for each change", *known, gives=events)),
        ApiRoute("/metrics", room.metrics, _told("metrics", "Numbers for Prometheus", *known, gives=PLAIN)),
        *(ApiRoute(f"/api/{panel.name}", room.panel(panel), panel.told()) for panel in PANELS),
        *_documented(room, known),
    ]


def _documented(room: ControlRoom, known: tuple[int, ...]) -> list[BaseRoute]:
    """The endpoints of the dashboard and of training, by their documented names."""
    gateway = room.gateway

    def look(name: str, says: str, call: Callable[..., Any], params: tuple[Param, ...] = ()) -> ApiRoute:
        panel = Panel(name=name.strip("/").replace("/", "_").replace("-", "_"), says=says, view=call, takes=params)

        async def answer(asked: Request) -> Response:
            return _json(await asyncio.to_thread(call, **panel.read(asked.query_params)))

        return ApiRoute(name, answer, panel.told())

    act = _told("dashboard_actions", "Pause or resume the newest run", *BODY, 404, 409, takes=ACTION)
    configure = _told("gateway_training_config", "Overrides for the next training", *BODY, takes=CONFIG)
    snapshots = _told("dashboard_stream", "A snapshot whenever it differs", *known, gives={EVENTS: TEXT})
    return [
        look("/dashboard/health", "Health, training, control and state", gateway.health),
        look("/dashboard/widgets", "What a dashboard may show", gateway.widgets),
        look("/dashboard/queue-timeline", "The queue, minute by minute", gateway.queue_timeline),
        look("/dashboard/alerts", "What people should know of", gateway.alerts),
        ApiRoute("/dashboard/actions", room.act, act, method="POST"),
        ApiRoute("/dashboard/stream", room.snapshots, snapshots),
        look("/gateway/training/status", "How the newest run stands", gateway.status),
        look("/gateway/training/rollouts", "Its rollouts, newest first", gateway.rollouts, (PAGE_NUMBER, PER_PAGE)),
        ApiRoute("/gateway/training/config", room.configure, configure, method="PATCH"),
    ]


def app(
    store: Store,
    *,
    clock: Clock = time.time,
    town: TownPage | None = None,
    doorkeeper: AuthMiddleware | None = None,
    stream_s: float = STREAM_S,
    is_behind_tls: bool = False,
) -> Starlette:
    """The control room of a store. Without a good token nobody gets further than /healthz and the way in.

    `is_behind_tls`: browsers reach it by https, through a proxy that reaches it by http.
    """
    keeper = doorkeeper or AuthMiddleware(TokenGuard(store, clock), clock)
    room = ControlRoom(store=store, clock=clock, doorkeeper=keeper, town=town, stream_s=stream_s)

    def admit(asked: Request) -> None:
        """The entrance has let them in."""

    routes = described(TITLE, SAYS, _places(room), admit, has_token=True)
    routes += [Route("/", _shell), Route("/login", _login), Route("/static/{name}", _asset)]
    if town is not None:
        routes.append(Mount("/town", Badged(town, room._listening)))
    application = Starlette(
        routes=routes,
        middleware=[Middleware(Entrance, doorkeeper=keeper, is_behind_tls=is_behind_tls)],
        exception_handlers={
            HTTPException: _refused,
            ClientDisconnect: _left,
            HoldfastError: _failed,
            Exception: _failed,
        },
    )
    application.router.redirect_slashes = False  # to wherever Host says
    return application


class Quiet(endpoint.HeadTimeoutProtocol):
    """A connection that answers who asks for a websocket as anybody else, and does not write of it in the log.

    uvicorn warns twice of each; nobody needs a token to ask.
    """

    def _unsupported_upgrade_warning(self) -> None:
        pass


def server(room: Starlette) -> uvicorn.Server:
    """What serves it, as `endpoint.server` says."""
    made = endpoint.server(room)
    made.config.http = Quiet
    return made


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS), status, media_type=JSON)


async def _refused(asked: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = error.code if isinstance(error, Refusal) else ""
    return auth_middleware.refused(error.status_code, error.detail, code, dict(error.headers or {}))


async def _failed(asked: Request, error: Exception) -> Response:
    """Our own errors are written for people, and what failed within for those who are known; no more than that."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    is_told = isinstance(error, HoldfastError) and (status < 500 or "caller" in asked.scope)
    says = str(error) if is_told else f"it failed: {type(error).__name__}"
    return auth_middleware.refused(status, says)


async def _left(asked: Request, error: Exception) -> Response:
    return Response(status_code=LEFT)
