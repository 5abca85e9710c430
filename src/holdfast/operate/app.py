"""The control room over HTTP: routes with their parameters, event streams, and the shape of answers and errors.

`auth_middleware` decides who gets in, the views and `gateway` what is shown, `control` what is executed. Invalid
parameters are refused here, so that a view only gets values that it knows. Every error has the documented shape
{"error": {"type", "code", "message"}}. A stream event only says that something changed; a stream ends when its listener
is no longer known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from math import isfinite
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.collect.endpoint import Events, left
from holdfast.collect.openapi import EVENTS, FLAG, JSON, TEXT, ApiOperation, ApiRoute, Gives, Schema, described, obj
from holdfast.contracts.commands import LONGEST, LONGEST_WHY, Forbidden
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, NotFound, Refused
from holdfast.contracts.limits import RefusalLimiter, StreamLimiter
from holdfast.contracts.rollout import OutcomeKind, RolloutState, Split
from holdfast.operate import auth_middleware, control, conversation, learning_views, release_views, views
from holdfast.operate.auth import Clock, TokenGuard
from holdfast.operate.auth_middleware import (
    AdmissionMiddleware,
    AuthMiddleware,
    Refusal,
    caller_of,
    cookie_name,
    read_json,
)
from holdfast.operate.gateway import ACTION, CONFIG, DEEPEST, Gateway
from holdfast.operate.metrics import CONTENT_TYPE
from holdfast.operate.metrics import metrics as exposition
from holdfast.operate.watchers import changed
from holdfast.store.notifications import TOPICS, Notifications
from holdfast.store.store import Store

LONGEST_PARAM = 300  # letters of a name in an address
MOST = 200  # rows of a page
ERROR_TEXTS = {
    400: "the question is wrong: the message names the field",
    401: "the token is missing, wrong or no longer good",
    403: "the role is too low, or the request comes from another site",
    404: "there is no such thing",
    408: "the request did not come in time",
    409: "it cannot be done as things are, or was told otherwise before",
    413: "the request is too large",
    415: "the request is not JSON",
    429: "too many requests; Retry-After says when to come again",
    503: "the store cannot be asked now; ask again",
}
ERROR = obj(("error",), error=obj(("type", "code", "message"), type=TEXT, code=TEXT, message=TEXT))


def refusals(*statuses: int) -> Gives:
    return {status: (ERROR_TEXTS[status], {JSON: ERROR}) for status in statuses}


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One query parameter."""

    name: str
    says: str
    schema: Schema
    is_needed: bool = False
    into: str = ""  # the name of the view's parameter, where it differs

    def described(self) -> Mapping[str, Any]:
        payload = {"name": self.name, "in": "query", "description": self.says, "schema": self.schema}
        return payload | {"required": self.is_needed}

    def read(self, given: QueryParams) -> str | float | None:
        values = given.getlist(self.name)
        if len(values) > 1:
            raise BadInput(self.name, why="is given twice", remedy="give it once")
        if not values:
            if self.is_needed:
                raise BadInput(self.name, why="is missing", remedy=f"give {self.name}=…")
            return None
        value, given_as = values[0], f"{self.name} = {values[0][:60]!r}"
        if self.schema["type"] == "integer":
            low, high = self.schema["minimum"], self.schema["maximum"]
            if not (value.isascii() and value.isdecimal()) or len(value) > 18 or not low <= int(value) <= high:
                raise BadInput(given_as, why=f"must be a whole number from {low} to {high}")
            return int(value)
        if self.schema["type"] == "number":
            with suppress(ValueError):
                if isfinite(found := float(value)) and value.isascii() and abs(found) <= 1e12:
                    return found
            raise BadInput(given_as, why="must be a number")
        if "enum" in self.schema and value not in self.schema["enum"]:
            raise BadInput(given_as, why=f"must be one of {', '.join(self.schema['enum'])}")
        if not 0 < len(value) <= LONGEST_PARAM or "\0" in value:
            raise BadInput(self.name, why=f"must be a text of 1 to {LONGEST_PARAM} letters")
        return value


def text(name: str, says: str, *, needed: bool = False, into: str = "") -> Param:
    schema = {"type": "string", "minLength": 1, "maxLength": LONGEST_PARAM, "pattern": "^[^\\u0000]+$"}
    return Param(name=name, says=says, schema=schema, is_needed=needed, into=into)


def whole(name: str, says: str, high: int, low: int = 1) -> Param:
    return Param(name=name, says=says, schema={"type": "integer", "minimum": low, "maximum": high})


def number(name: str, says: str) -> Param:
    return Param(name=name, says=says, schema={"type": "number", "minimum": -1e12, "maximum": 1e12})


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    name: str  # /api/<name>
    says: str
    view: Callable[..., dict[str, Any]]  # (store, **params, now=…)
    takes: tuple[Param, ...] = ()

    def read(self, given: QueryParams) -> dict[str, Any]:
        unknown = sorted(set(given) - {param.name for param in self.takes})
        if unknown:
            known = ", ".join(param.name for param in self.takes) or "nothing"
            raise BadInput(unknown[0][:60], why="is unknown here", remedy=f"{self.name} takes {known}")
        read = {param.into or param.name: param.read(given) for param in self.takes}
        return {name: value for name, value in read.items() if value is not None}

    def described(self) -> ApiOperation:
        gives = {200: ("what it shows", {JSON: {"type": "object"}}), **refusals(400, 401, 403, 404, 429, 503)}
        return ApiOperation(
            name=self.name, says=self.says, gives=gives, headers=[param.described() for param in self.takes]
        )


KEY = 2**62
RUN = text("run", "A run's id, or the beginning of it.", needed=True, into="run_id")
PAGE = whole("most", "At most so many.", MOST)
FROM = text("before", "The id of the last one already seen.")
AFTER = whole("before", "The `next` of the page before.", KEY)
POLICY = text("policy", "Which; without it, the first.")


def _choice(name: str, values: Sequence[Any]) -> Param:
    schema = {"type": "string", "enum": [str(one) for one in values]}
    return Param(name=name, says="Only those.", schema=schema)


FILTERS = (
    _choice("outcome", [kind for kind in OutcomeKind if kind is not OutcomeKind.NO_ANSWER]),
    _choice("status", list(RolloutState)),
    _choice("split", list(Split)),
    text("text", "A part of the name."),
    number("least", "The least reward."),
    number("most_reward", "The most reward."),
)
ROLLOUT = (
    text("rollout", "RUN/NAME.", needed=True, into="rollout_id"),
    whole("attempt", "This attempt instead of the deciding one.", 2**31 - 1),
)
GROUP = (RUN, text("group", "Which.", needed=True, into="name"), whole("near", "The key of one of them.", KEY, low=0))
RELEASE = text("release", "POLICY@N.", needed=True, into="release_id")
ENTRIES = (PAGE, AFTER, text("run", "Only about this run.", into="run_id"), text("kind", "Only of this kind."))

PANELS: tuple[Panel, ...] = tuple(
    Panel(name=view.__name__, says=says, view=view, takes=takes)
    for view, says, takes in (
        (views.overview, "Live versions and why, health, and what is running", ()),
        (views.runs, "The runs, newest first", (PAGE, FROM)),
        (views.run, "One run", (RUN,)),
        (views.rollouts, "Rollouts of a run, newest first", (RUN, PAGE, AFTER, *FILTERS)),
        (conversation.rollout, "One rollout, turn by turn", ROLLOUT),
        (conversation.group, "The rollouts of a group side by side", GROUP),
        (learning_views.learning, "How a run learns", (RUN,)),
        (learning_views.search, "The searches of a run for a prompt: rounds, front and budget", (RUN,)),
        (views.tools, "Tool adoption of a run", (RUN, PAGE)),
        (views.budgets, "Thinking budgets of a run", (RUN, PAGE, AFTER)),
        (release_views.proofs, "Versions that rest on evidence", ()),
        (release_views.proof, "The evidence of a version's last decision", (RELEASE,)),
        (release_views.experiments, "Experiments, newest first", ()),
        (release_views.experiment, "One experiment and its verdict", (text("name", "Which.", needed=True),)),
        (release_views.releases, "The versions of a policy, its guard and its history", (POLICY,)),
        (views.workers, "Worker processes", (PAGE,)),
        (views.alerts, "Active and past alerts", (PAGE, FROM)),
        (views.audit, "The ledger, newest first", ENTRIES),
        (views.flags, "Feature flags", ()),
    )
)


BEAT_S = 10.0  # between two signs of life on a quiet stream
LOOK_S = 1.0  # between two looks whether the listener may still listen
LEAST_S = 0.25  # between two events: a busy queue changes some hundred times a second
SNAPSHOT_S = 0.75  # between two snapshots, as documented
QUIET = b": \n\n"

IsKnown = Callable[[], Awaitable[bool]]


async def topics(changes: Notifications, is_known: IsKnown) -> AsyncGenerator[bytes, None]:
    """An event with the changed topics after each change; a comment while nothing changes."""
    seen = {topic: changes.seen(topic) for topic in TOPICS}
    yield b"retry: 2000\n\n"
    quiet_s = 0.0
    while await is_known():
        found = await changed(changes, most_s=LOOK_S, seen=seen)
        if found:
            quiet_s = 0.0
            yield b"event: change\ndata: " + orjson.dumps(found) + b"\n\n"
            await asyncio.sleep(LEAST_S)
            continue
        quiet_s += LOOK_S
        if quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield QUIET


async def snapshots(
    look: Callable[[], Awaitable[Mapping[str, Any]]], changes: Notifications, is_known: IsKnown, last_id: str | None
) -> AsyncIterator[bytes]:
    """The documented stream: a whole snapshot whenever it differs from the last one, apart from its time."""
    number, before, quiet_s = 0, b"", 0.0
    if last_id is not None:
        why = "history_not_retained_request_full_snapshot"
        reset = {"schema_version": 1, "reset": True, "last_event_id": last_id[:200], "reason": why}
        yield _event("dashboard.reset", number := number + 1, orjson.dumps(reset))
    seen = {topic: changes.seen(topic) for topic in TOPICS}
    while await is_known():
        snapshot = dict(await look())
        content = orjson.dumps({name: value for name, value in snapshot.items() if name != "generated_unix_ms"})
        if content != before:
            before, quiet_s = content, 0.0
            yield _event("dashboard.snapshot", number := number + 1, orjson.dumps(snapshot))
        elif quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield QUIET
        await asyncio.sleep(SNAPSHOT_S)
        quiet_s += SNAPSHOT_S
        if not await changed(changes, most_s=LOOK_S, seen=seen):
            quiet_s += LOOK_S


def _event(name: str, number: int, data: bytes) -> bytes:
    return f"event: {name}\nid: dashboard-{number}\ndata: ".encode() + data + b"\n\n"


SAYS = "Everything that the pages of `holdfast serve` show and do: live versions, health, runs, evidence and commands."
TITLE = "holdfast serve"
STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (Forbidden, 403),
    (NotFound, 404),
    (Refused, 409),
    (BadRecord, 500),  # a damaged stored record, whatever the request
    (BadInput, 400),
    (HoldfastError, 503),
)
MOST_STREAMS = 16  # of one token, a tab of a browser has one
STREAM_S = 3600.0  # then browsers reconnect by themselves
UNBUFFERED = {"X-Accel-Buffering": "no"}  # a proxy must pass events on at once


@dataclass(frozen=True, slots=True, kw_only=True)
class TownPage:
    """A town in this process: its page, and its token for each role."""

    app: ASGIApp
    badges: Mapping[str, str]  # role → token, known to this process alone


@dataclass(slots=True, kw_only=True)
class ControlRoom:
    """What the routes share."""

    store: Store
    clock: Clock
    authenticator: AuthMiddleware
    town: TownPage | None = None
    stream_s: float = STREAM_S
    streams: StreamLimiter = field(default_factory=lambda: StreamLimiter(MOST_STREAMS))
    refusals: RefusalLimiter = field(init=False)
    gateway: Gateway = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = RefusalLimiter(self.clock)
        self.gateway = Gateway(self.store, self.clock, self.refusals)

    # Login and logout ------------------------------------------------------------------------------------------------

    async def log_in(self, request: Request) -> Response:
        auth_middleware.refuse_foreign(request, has_cookie=False)
        body = await read_json(request, auth_middleware.LARGEST_LOGIN)
        token = body.get("token") if isinstance(body, dict) else None
        if not isinstance(token, str) or set(body) != {"token"}:
            raise BadInput("token", why="is missing", remedy='send {"token": "hf_…"} and nothing else')
        answer, name = _json({"ok": True}), cookie_name(request)
        cookie = await self.authenticator.log_in(request, token)
        self.authenticator.sessions.close(request.cookies.get(name))  # the one before is over
        answer.set_cookie(name, cookie, httponly=True, samesite="strict", secure=request.scope["scheme"] == "https")
        return answer

    async def log_out(self, request: Request) -> Response:
        name = cookie_name(request)
        self.authenticator.sessions.close(request.cookies.get(name))
        answer = _json({"ok": True})
        answer.delete_cookie(name, httponly=True, samesite="strict", secure=request.scope["scheme"] == "https")
        return answer

    async def me(self, request: Request) -> Response:
        caller = caller_of(request)
        actions = [
            {"name": kind.name, "role": str(kind.role), "subject": kind.subject, "help": kind.help}
            for kind in control.ACTIONS.values()
        ]
        payload = {"label": caller.label, "role": str(caller.role), "project": self.store.project, "actions": actions}
        return _json({**payload, "version": version("holdfast"), "has_town": self.town is not None})

    def _listening(self, request: Request) -> Callable[[], Awaitable[bool]]:
        """Whether a stream continues: its token is still good, and its time is not over."""
        until = time.monotonic() + self.stream_s

        async def is_known() -> bool:
            try:
                return time.monotonic() < until and await self.authenticator.who(request) is not None
            except Refusal:  # unknown now: the stream ends, and a valid listener reconnects
                return False

        return is_known

    # Views and commands ----------------------------------------------------------------------------------------------

    def panel(self, panel: Panel) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def look(request: Request) -> Response:
            given = panel.read(request.query_params)
            found = await asyncio.to_thread(panel.view, self.store, **given, now=self.clock())
            return _json(found)

        return look

    async def order(self, request: Request) -> Response:
        body, caller = await read_json(request), caller_of(request)
        take = partial(control.answer, now=self.clock(), refusals=self.refusals)
        return _json(await asyncio.to_thread(take, self.store, body, caller))

    def _streamed(self, request: Request, events: AsyncIterator[bytes]) -> Response:
        caller = caller_of(request)
        key = caller.token_id or caller.label
        if not self.streams.open(key):
            raise Refusal(429, f"this token has {MOST_STREAMS} streams open; close one", headers={"Retry-After": "5"})
        return Events(events, headers=UNBUFFERED, ended=lambda: self.streams.close(key))

    async def stream(self, request: Request) -> Response:
        return self._streamed(request, topics(self.store.changes, self._listening(request)))

    async def snapshots(self, request: Request) -> Response:
        async def look() -> Mapping[str, Any]:
            return await asyncio.to_thread(self.gateway.show, "snapshot")

        last = request.headers.get("last-event-id")
        return self._streamed(request, snapshots(look, self.store.changes, self._listening(request), last))

    async def act(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(self.gateway.act, await read_json(request), caller_of(request)))

    async def configure(self, request: Request) -> Response:
        return _json(await asyncio.to_thread(self.gateway.configure, await read_json(request), caller_of(request)))

    async def metrics(self, request: Request) -> Response:
        text = await asyncio.to_thread(exposition, self.store, now=self.clock())
        return Response(text, media_type=CONTENT_TYPE)


async def healthz(request: Request) -> Response:
    return _json({"status": "ok"})


def _page(file: Callable[[], auth_middleware.File]) -> Callable[[Request], Awaitable[Response]]:
    async def page(request: Request) -> Response:
        return auth_middleware.answer(request, file())

    return page


async def _asset(request: Request) -> Response:
    file = auth_middleware.assets().get(request.path_params["name"])
    if file is None:
        raise Refusal(404, "there is no such file")
    return auth_middleware.answer(request, file)


class Badged:
    """The town within the control room: a caller has the same role there, for as long as here."""

    def __init__(self, town: TownPage, listening: Callable[[Request], Callable[[], Awaitable[bool]]]) -> None:
        self._town, self._listening = town, listening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        badge = self._town.badges[str(scope["caller"].role)]
        kept = [(name, value) for name, value in scope["headers"] if name not in (b"authorization", b"cookie")]
        headers = [*kept, (b"authorization", f"Bearer {badge}".encode())]
        is_known = self._listening(Request(scope))  # by the original headers, which the town does not see
        await self._town.app({**scope, "headers": headers, "is_known": is_known}, receive, send)


# The routes ----------------------------------------------------------------------------------------------------------

BODY = (400, 401, 403, 408, 413, 415, 429, 503)  # errors of any request with a body
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


def _operation(name: str, says: str, *refused: int, gives: Any = None, takes: Any = None, **more: Any) -> ApiOperation:
    """An operation that answers with JSON, or with `gives`."""
    content = gives or {JSON: ANY}
    body = {} if takes is None else {JSON: takes}
    return ApiOperation(name=name, says=says, gives={200: (says, content), **refusals(*refused)}, takes=body, **more)


def _places(room: ControlRoom) -> list[BaseRoute]:
    """The API routes with their descriptions."""
    known = (401, 403, 429, 503)
    login = _operation("login", "A session for a token", *BODY, takes=LOGIN, is_open=True)
    order = _operation("order", "A command, executed once", *BODY, 404, 409, takes=ORDER)
    events = {EVENTS: TEXT}
    return [
        ApiRoute("/healthz", healthz, _operation("healthz", "Whether the server is up", is_open=True)),
        ApiRoute("/login", room.log_in, login, method="POST"),
        ApiRoute("/logout", room.log_out, _operation("logout", "The session ends", *known), method="POST"),
        ApiRoute("/api/me", room.me, _operation("me", "The caller, and the commands", *known)),
        ApiRoute("/api/orders", room.order, order, method="POST"),
        ApiRoute("/api/stream", room.stream, _operation("stream", "An event for each change", *known, gives=events)),
        ApiRoute("/metrics", room.metrics, _operation("metrics", "Numbers for Prometheus", *known, gives=PLAIN)),
        *(ApiRoute(f"/api/{panel.name}", room.panel(panel), panel.described()) for panel in PANELS),
        *_documented(room, known),
    ]


def _documented(room: ControlRoom, known: tuple[int, ...]) -> list[BaseRoute]:
    """The documented endpoints of the dashboard and of training."""
    gateway = room.gateway

    def look(name: str, says: str, call: Callable[..., Any], params: tuple[Param, ...] = ()) -> ApiRoute:
        panel = Panel(name=name.strip("/").replace("/", "_").replace("-", "_"), says=says, view=call, takes=params)

        async def answer(request: Request) -> Response:
            return _json(await asyncio.to_thread(call, **panel.read(request.query_params)))

        return ApiRoute(name, answer, panel.described())

    act = _operation("dashboard_actions", "Pause or resume the newest run", *BODY, 404, 409, takes=ACTION)
    configure = _operation("gateway_training_config", "Overrides for the next training", *BODY, takes=CONFIG)
    snapshots = _operation("dashboard_stream", "A snapshot whenever it differs", *known, gives={EVENTS: TEXT})
    return [
        look("/dashboard/health", "Health, training, control and state", partial(gateway.show, "health")),
        look("/dashboard/widgets", "Widgets of a dashboard", gateway.widgets),
        look("/dashboard/queue-timeline", "The queue, minute by minute", partial(gateway.show, "queue_timeline")),
        look("/dashboard/alerts", "Alerts", partial(gateway.show, "alerts")),
        ApiRoute("/dashboard/actions", room.act, act, method="POST"),
        ApiRoute("/dashboard/stream", room.snapshots, snapshots),
        look("/gateway/training/status", "Status of the newest run", partial(gateway.show, "status")),
        look("/gateway/training/rollouts", "Its rollouts, newest first", gateway.rollouts, (PAGE_NUMBER, PER_PAGE)),
        ApiRoute("/gateway/training/config", room.configure, configure, method="PATCH"),
    ]


def app(
    store: Store,
    *,
    clock: Clock = time.time,
    town: TownPage | None = None,
    authenticator: AuthMiddleware | None = None,
    stream_s: float = STREAM_S,
    is_behind_tls: bool = False,
) -> Starlette:
    """The control room of a store. Without a good token only /healthz and the login answer.

    `is_behind_tls`: browsers use https, through a proxy that uses http.
    """
    keeper = authenticator or AuthMiddleware(TokenGuard(store, clock), clock)
    room = ControlRoom(store=store, clock=clock, authenticator=keeper, town=town, stream_s=stream_s)

    def admit(request: Request) -> None:
        """The middleware has admitted the caller."""

    routes = described(TITLE, SAYS, _places(room), admit, has_token=True)
    routes += [
        Route("/", _page(auth_middleware.shell)),
        Route("/login", _page(auth_middleware.login)),
        Route("/static/{name}", _asset),
    ]
    if town is not None:
        routes.append(Mount("/town", Badged(town, room._listening)))
    application = Starlette(
        routes=routes,
        middleware=[Middleware(AdmissionMiddleware, authenticator=keeper, is_behind_tls=is_behind_tls)],
        exception_handlers={
            HTTPException: _refused,
            ClientDisconnect: left,
            HoldfastError: _failed,
            Exception: _failed,
        },
    )
    application.router.redirect_slashes = False  # a redirect would go wherever Host says
    return application


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content, default=str, option=orjson.OPT_NON_STR_KEYS), status, media_type=JSON)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = error.code if isinstance(error, Refusal) else ""
    return auth_middleware.refused(error.status_code, error.detail, code, dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> Response:
    """The text of our own errors; internal failures only for known callers."""
    status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
    is_told = isinstance(error, HoldfastError) and (status < 500 or "caller" in request.scope)
    says = str(error) if is_told else f"it failed: {type(error).__name__}"
    return auth_middleware.refused(status, says)
