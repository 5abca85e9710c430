"""The one way in: nobody goes further who is not known, asks too often, or was sent by another site.

It stands before all routes, so that a route which nobody thought of is closed too. Programs bring a bearer token,
people a cookie that they were given for one; a token in an address is never read. What a cookie carries changes nothing
unless the page that asks is ours: the browser says so itself, and a header is there that no form of another site sends.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import ceil
from typing import Any

import orjson
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.contracts.errors import HoldfastError
from holdfast.operate.auth import Caller, Clock, RateLimiter, Sessions, TokenGuard, hash_of

KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
WAY_IN = ("login.js", "login.css", "theme.js", "mark.svg")  # what the login page needs before anybody is known
MODULES = "<!-- modules -->"  # where the shell names the scripts that it will need
# No inline scripts or styles, nothing from elsewhere, and no way for a script to make markup out of text.
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
SAFE: Mapping[str, str] = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    data: bytes
    kind: str
    etag: str


@cache
def assets() -> Mapping[str, File]:
    """By name: all that lies in `static`."""
    found = {}
    for path in files("holdfast.operate").joinpath("static").iterdir():
        kind = KINDS.get(path.name[path.name.rfind(".") :])
        if kind is not None and path.is_file():
            found[path.name] = _file(path.read_bytes(), kind)
    return found


@cache
def shell() -> File:
    """The one page, with all its modules named, so that a browser asks for them at once and not one after another."""
    names = sorted(name for name in assets() if name.endswith(".js") and name not in (*WAY_IN, "serve.js"))
    links = "\n".join(f'<link rel="modulepreload" href="/static/{name}">' for name in names)
    return _file(_template("serve.html").replace(MODULES, links).encode(), "text/html")


@cache
def login() -> File:
    return _file(_template("login.html").encode(), "text/html")


def _template(name: str) -> str:
    return files("holdfast.operate").joinpath("templates", name).read_text(encoding="utf-8")


def _file(data: bytes, kind: str) -> File:
    return File(data=data, kind=kind, etag=f'"{hashlib.sha256(data).hexdigest()[:20]}"')


def answer(asked: Request, file: File, status: int = 200) -> Response:
    """The file, or that it is still the same: a browser asks each time, and is told in a few bytes."""
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", **SAFE}
    if status == 200 and asked.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, status, headers, media_type=file.kind)


COOKIE = "holdfast"
HEADER = "x-holdfast"
LOOKING = frozenset({"GET", "HEAD"})  # methods that change nothing
OPEN = frozenset({"/healthz", "/login", *(f"/static/{name}" for name in WAY_IN)})
TOWN = "/town/"  # its page sends no header of ours; where its orders come from is looked at all the same
LARGEST = 64 * 1024  # bytes of a body
WAIT_S = 30.0  # for all of it
LOOK_UP_S = 10.0  # that the store may take to tell whose a token is
LOOK_UPS = 4  # at once: threads, each with its own connection
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
    safe = {**SAFE, "Cache-Control": "no-store"}  # here too: not all that fails goes out by the entrance
    return Response(orjson.dumps(said), status, {**safe, **(headers or {})}, "application/json")


class AuthMiddleware:
    """Who is known, and how often each may ask."""

    def __init__(self, guard: TokenGuard, clock: Clock, *, requests: RateLimiter | None = None) -> None:
        self.guard, self.sessions = guard, Sessions(clock)
        self._threads = ThreadPoolExecutor(LOOK_UPS, thread_name_prefix="holdfast-door")
        self._requests = requests or RateLimiter(PER_S, BURST, clock)
        self._logins = RateLimiter(LOGINS_PER_S, LOGINS, clock)

    async def who(self, asked: Request) -> Caller | None:
        """By the token that a program brings, else by the cookie of a browser; 503 when that cannot be told."""
        given = asked.headers.get("authorization")
        if given is not None:
            kind, _, token = given.partition(" ")
            return await self._look_up(hash_of(token.strip())) if kind.lower() == "bearer" else None
        cookie = asked.cookies.get(cookie_name(asked))
        caller = await self._look_up(self.sessions.token_of(cookie))
        if caller is None:
            self.sessions.close(cookie)
        return caller

    async def _look_up(self, sha256: str | None) -> Caller | None:
        """Beside the loop, and not for ever: a store that hangs must not keep those waiting who need none of it.

        Why it failed is not told. Nobody is known yet, and strangers have no business with the address of the store.
        """
        caller = None if sha256 is None else self.guard.recall(sha256)
        if sha256 is None or caller is not None:
            return caller
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(LOOK_UP_S):
                return await loop.run_in_executor(self._threads, self.guard.by_hash, sha256)
        except (HoldfastError, TimeoutError):
            raise Refusal(503, "the store does not answer, so nobody is known; try again later") from None

    async def admit(self, asked: Request) -> Caller:
        is_guess = "authorization" in asked.headers  # unless it is good, as a failed login is one
        try:
            caller = await self.who(asked)
        except Refusal:
            if is_guess:
                self._logins.spend(_address(asked))
            raise
        if caller is None:
            if is_guess:
                self._refuse_guess(_address(asked))
            raise Refusal(401, "a token is needed: send 'Authorization: Bearer hf_…', or sign in at /login")
        wait_s = self._requests.take(caller.token_id or caller.label)
        if wait_s:
            raise Refusal(429, "too many requests", headers={"Retry-After": str(ceil(wait_s))})
        if asked.method not in LOOKING:
            refuse_foreign(asked, has_cookie="authorization" not in asked.headers)
        return caller

    async def log_in(self, asked: Request, token: str) -> str:
        """The cookie for a token. A good one always passes: who shares an address with a guesser is not locked out."""
        sha256 = hash_of(token)
        try:
            caller = await self._look_up(sha256)
        except Refusal:
            self._logins.spend(_address(asked))
            raise
        if sha256 is None or caller is None:
            self._refuse_guess(_address(asked))
            raise Refusal(401, "this token is not good: mistyped, expired or revoked")
        return self.sessions.open(sha256)

    def _refuse_guess(self, address: str) -> None:
        """Count a wrong token; after some, an address has to wait before the next is told to be one."""
        wait_s = self._logins.take(address)
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
    own = f"{asked.scope['scheme']}://{asked.headers.get('host')}"
    is_ours = site == "same-origin" if site is not None else (origin or "").lower() == own.lower()
    if (site is not None or origin is not None or has_cookie) and not is_ours:
        raise Refusal(403, "this request comes from another site")
    if has_cookie and HEADER not in asked.headers and not asked.scope["path"].startswith(TOWN):
        raise Refusal(403, "the header X-Holdfast is missing")


class Entrance:
    """Stands before the routes; what goes out has the headers that keep a page honest.

    Behind a proxy with TLS (`is_behind_tls`) whoever asks did so by https, though it comes to us by http.
    """

    def __init__(self, app: ASGIApp, doorkeeper: AuthMiddleware, *, is_behind_tls: bool = False) -> None:
        self._app, self._doorkeeper, self._is_behind_tls = app, doorkeeper, is_behind_tls

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"nothing but HTTP is served here, and this is {scope['type']}")

        async def kept(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SAFE.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        if self._is_behind_tls:  # told at the start, and not by a header, which anybody could send
            scope["scheme"] = "https"
        asked = Request(scope, receive)
        if scope["path"] not in OPEN:  # not the path of asked.url: that is made of what a caller sends as Host
            try:
                scope["caller"] = await self._doorkeeper.admit(asked)
            except Refusal as error:
                await _turned_away(asked, error)(scope, receive, kept)
                return
        await self._app(scope, receive, kept)


def _turned_away(asked: Request, error: Refusal) -> Response:
    """A person who opens the page is shown the way in; everybody else is told why."""
    if error.status_code == 401 and asked.scope["path"] == "/" and "text/html" in asked.headers.get("accept", ""):
        return answer(asked, login(), status=401)
    return refused(error.status_code, error.detail, error.code, dict(error.headers or {}))


def caller_of(asked: Request) -> Caller:
    caller: Caller = asked.scope["caller"]
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
