"""The one way in: nobody goes further who is not known, asks too often, or was sent by another site.

It stands before all routes, so that a route which nobody thought of is closed too. Programs bring a bearer token,
people a cookie that they were given for one; a token in an address is never read. What a cookie carries changes nothing
unless the page that asks is ours: the browser says so itself, and a header is there that no form of another site sends.
"""

from __future__ import annotations

import asyncio
from math import ceil
from typing import Any
from urllib.parse import urlsplit

import orjson
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.contracts.access import Forbidden, Role
from holdfast.operate.auth import Caller, Clock, Guard, Limiter, Sessions
from holdfast.operate.serve import pages

COOKIE = "holdfast"
HEADER = "x-holdfast"
LOOKING = frozenset({"GET", "HEAD"})  # methods that change nothing
OPEN = frozenset({"/healthz", "/login", *(f"/static/{name}" for name in pages.WAY_IN)})
TOWN = "/town/"  # its page sends no header of ours; where its orders come from is looked at all the same
LARGEST = 64 * 1024  # bytes of a body
WAIT_S = 30.0  # for all of it
PER_S, BURST = 20.0, 240.0  # requests of one token: a page that is opened asks for some twenty files at once
LOGINS_PER_S, LOGINS = 0.1, 5.0  # failed logins of one address
CODES = {400: "invalid_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
         408: "too_slow", 409: "conflict", 413: "too_large", 415: "unsupported_media_type", 429: "rate_limited",
         500: "internal_error", 503: "unavailable"}  # fmt: skip


class Refusal(HTTPException):
    """Not now, not you, or not like this; with the documented code."""

    def __init__(self, status: int, message: str, *, code: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code or CODES[status]


def refused(status: int, message: str, code: str = "", headers: dict[str, str] | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    said = {"error": {"type": kind, "code": code or CODES.get(status, "refused"), "message": message}}
    return Response(orjson.dumps(said), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


class Doorkeeper:
    """Who is known, and how often each may ask."""

    def __init__(self, guard: Guard, clock: Clock, *, requests: Limiter | None = None) -> None:
        self.guard, self.sessions = guard, Sessions(guard, clock)
        self._requests = requests or Limiter(PER_S, BURST, clock)
        self._logins = Limiter(LOGINS_PER_S, LOGINS, clock)

    def who(self, asked: Request) -> Caller | None:
        """By the token that a program brings, else by the cookie of a browser."""
        given = asked.headers.get("authorization")
        if given is not None:
            kind, _, token = given.partition(" ")
            return self.guard.who(token.strip()) if kind.lower() == "bearer" else None
        return self.sessions.who(asked.cookies.get(cookie_name(asked)))

    def admit(self, asked: Request) -> Caller:
        address = _address(asked)
        caller = self.who(asked)
        if caller is None:
            if "authorization" in asked.headers:  # a guess, as a failed login is one
                self._refuse_guesses(address)
                self._logins.spend(address)
            raise Refusal(401, "a token is needed: send 'Authorization: Bearer hf_…', or sign in at /login")
        wait_s = self._requests.take(caller.token_id or caller.label)
        if wait_s:
            raise Refusal(429, "too many requests", headers={"Retry-After": str(ceil(wait_s))})
        if asked.method not in LOOKING:
            refuse_foreign(asked, has_cookie="authorization" not in asked.headers)
        return caller

    def log_in(self, asked: Request, token: str) -> str:
        """The cookie for a token; after some that were wrong, an address has to wait."""
        address = _address(asked)
        self._refuse_guesses(address)
        cookie = self.sessions.open(token)
        if cookie is None:
            self._logins.spend(address)
            raise Refusal(401, "this token is not good: mistyped, expired or revoked")
        return cookie

    def _refuse_guesses(self, address: str) -> None:
        wait_s = self._logins.wait_s(address)
        if wait_s:
            why = f"too many wrong tokens; try again in {ceil(wait_s)} s"
            raise Refusal(429, why, headers={"Retry-After": str(ceil(wait_s))})


def cookie_name(asked: Request) -> str:
    """Browsers send a cookie to every port of a machine: two control rooms on one must not take each other's."""
    return f"{COOKIE}-{(asked.scope.get('server') or ('', 0))[1]}"


def _address(asked: Request) -> str:
    return asked.client.host if asked.client is not None else "?"


def refuse_foreign(asked: Request, *, has_cookie: bool) -> None:
    """A page of another site can send our cookie along, and neither say that it is ours nor set a header."""
    site, origin = asked.headers.get("sec-fetch-site"), asked.headers.get("origin")
    is_ours = site == "same-origin" if site is not None else urlsplit(origin or "").netloc == asked.headers.get("host")
    if (site is not None or origin is not None or has_cookie) and not is_ours:
        raise Refusal(403, "this request comes from another site")
    if has_cookie and HEADER not in asked.headers and not asked.scope["path"].startswith(TOWN):
        raise Refusal(403, "the header X-Holdfast is missing")


class Entrance:
    """Stands before the routes; what goes out has the headers that keep a page honest."""

    def __init__(self, app: ASGIApp, doorkeeper: Doorkeeper) -> None:
        self._app, self._doorkeeper = app, doorkeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"nothing but HTTP is served here, and this is {scope['type']}")

        async def kept(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in pages.SAFE.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        asked = Request(scope, receive)
        if scope["path"] not in OPEN:  # not the path of asked.url: that is made of what a caller sends as Host
            try:
                scope["caller"] = self._doorkeeper.admit(asked)
            except Refusal as error:
                await _turned_away(asked, error)(scope, receive, kept)
                return
        await self._app(scope, receive, kept)


def _turned_away(asked: Request, error: Refusal) -> Response:
    """A person who opens the page is shown the way in; everybody else is told why."""
    if error.status_code == 401 and asked.scope["path"] == "/" and "text/html" in asked.headers.get("accept", ""):
        return pages.answer(asked, pages.login(), status=401)
    return refused(error.status_code, error.detail, error.code, dict(error.headers or {}))


def caller_of(asked: Request) -> Caller:
    caller: Caller = asked.scope["caller"]
    return caller


def needs(asked: Request, role: Role) -> Caller:
    caller = caller_of(asked)
    if not caller.role.may(role):
        raise Forbidden(
            asked.scope["path"], why=f"is for {role}s, and this is a {caller.role}", remedy="use their token"
        )
    return caller


async def read_json(asked: Request) -> Any:
    """The body of a request that says it is JSON, and is; not too large, and in time."""
    if asked.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "Content-Type must be application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(WAIT_S):
            async for part in asked.stream():
                body += part
                if len(body) > LARGEST:
                    raise Refusal(413, f"the request is larger than {LARGEST} bytes")
    except TimeoutError:
        raise Refusal(408, f"the request did not come within {WAIT_S:g} s", headers={"Connection": "close"}) from None
    try:
        return orjson.loads(bytes(body))
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the request is not JSON: {error}", code="malformed_json") from None
