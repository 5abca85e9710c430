"""Authentication of every request, the login, and the files of the pages with their security headers.

The middleware stands before all routes, so that an unlisted route is closed too. Programs send a bearer token, browsers
a cookie; a token in an address is never read. A request with a cookie may change something only if it comes from our
own page: the browser says so, and it carries a header that no form of another site can send.
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

from holdfast.collect.endpoint import is_loopback, is_this_machine, media_type_of, read_body
from holdfast.collect.http_limits import WAIT_S, address_of
from holdfast.collect.openapi import JSON
from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.limits import GUESSES, GUESSES_PER_S, RateLimiter
from holdfast.operate.auth import Caller, Clock, Sessions, TokenGuard, hash_of

KINDS = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
WAY_IN = ("login.js", "login.css", "theme.js", "mark.svg")  # files of the login page, open to everybody
MODULES = "<!-- modules -->"  # replaced by the preload links of all scripts
# No inline scripts or styles, nothing from other sites, and no way for a script to turn text into markup.
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
    """The files of `static` by name."""
    found = {}
    for path in files("holdfast.operate").joinpath("static").iterdir():
        kind = KINDS.get(path.name[path.name.rfind(".") :])
        if kind is not None and path.is_file():
            found[path.name] = _file(path.read_bytes(), kind)
    return found


@cache
def shell() -> File:
    """The page, with preload links so that a browser fetches all modules at once."""
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


def answer(request: Request, file: File, status: int = 200) -> Response:
    """The file, or 304 where the browser has it."""
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", **SAFE}
    if status == 200 and request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, status, headers, media_type=file.kind)


COOKIE = "holdfast"
HEADER = "x-holdfast"
LOOKING = frozenset({"GET", "HEAD"})  # read-only methods
OPEN = frozenset({"/healthz", "/login", *(f"/static/{name}" for name in WAY_IN)})
TOWN = "/town/"  # its page sends no header of ours; its origin is checked all the same
LARGEST, LARGEST_LOGIN = 64 * 1024, 1024  # bytes of a body; a stranger sends the second
LOOK_UP_S = 10.0  # for the store to look up a token
LOOK_UPS = 4  # threads, each with its own connection
PER_S, BURST = 20.0, 240.0  # requests of one token: opening a page takes about twenty at once
CODES = {400: "invalid_request", 401: "unauthorized", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
         408: "too_slow", 409: "conflict", 413: "too_large", 415: "unsupported_media_type", 429: "rate_limited",
         500: "internal_error", 503: "unavailable"}  # fmt: skip


class Refusal(HTTPException):
    """An error response with the documented code."""

    def __init__(self, status: int, message: str, *, code: str = "", headers: dict[str, str] | None = None) -> None:
        super().__init__(status, message, headers)
        self.code = code or CODES[status]


def refused(status: int, message: str, code: str = "", headers: dict[str, str] | None = None) -> Response:
    kind = "invalid_request_error" if status < 500 else "server_error"
    said = {"error": {"type": kind, "code": code or CODES.get(status, "refused"), "message": message}}
    safe = {**SAFE, "Cache-Control": "no-store"}  # some errors do not pass the middleware
    return Response(orjson.dumps(said), status, {**safe, **(headers or {})}, "application/json")


class AuthMiddleware:
    """Identifies callers and limits their rates."""

    def __init__(self, guard: TokenGuard, clock: Clock, *, requests: RateLimiter | None = None) -> None:
        self.guard, self.sessions = guard, Sessions(clock)
        self._threads = ThreadPoolExecutor(LOOK_UPS, thread_name_prefix="holdfast-door")
        self._requests = requests or RateLimiter(PER_S, BURST, clock)
        self._logins = RateLimiter(GUESSES_PER_S, GUESSES, clock)

    async def who(self, request: Request) -> Caller | None:
        """The caller by bearer token, else by cookie; 503 where the store does not answer."""
        given = request.headers.get("authorization")
        if given is not None:
            kind, _, token = given.partition(" ")
            return await self._look_up(hash_of(token.strip())) if kind.lower() == "bearer" else None
        cookie = request.cookies.get(cookie_name(request))
        caller = await self._look_up(self.sessions.token_of(cookie))
        if caller is None:
            self.sessions.close(cookie)
        return caller

    async def _look_up(self, sha256: str | None) -> Caller | None:
        """Looks a token up in a thread, with a time limit, so that a store that hangs blocks no other request.

        The error text does not say why: strangers must not learn the address of the store.
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

    async def admit(self, request: Request) -> Caller:
        is_guess = "authorization" in request.headers  # counted like a failed login, unless it is good
        try:
            caller = await self.who(request)
        except Refusal:
            if is_guess:
                self._logins.spend(address_of(request))
            raise
        if caller is None:
            if is_guess:
                self._refuse_guess(address_of(request))
            raise Refusal(401, "a token is needed: send 'Authorization: Bearer hf_…', or sign in at /login")
        wait_s = self._requests.take(caller.token_id or caller.label)
        if wait_s:
            raise Refusal(429, "too many requests", headers={"Retry-After": str(ceil(wait_s))})
        if request.method not in LOOKING:
            refuse_foreign(request, has_cookie="authorization" not in request.headers)
        return caller

    async def log_in(self, request: Request, token: str) -> str:
        """The cookie for a token. A good token always passes, even from an address with many wrong ones."""
        sha256 = hash_of(token)
        try:
            caller = await self._look_up(sha256)
        except Refusal:
            self._logins.spend(address_of(request))
            raise
        if sha256 is None or caller is None:
            self._refuse_guess(address_of(request))
            raise Refusal(401, "this token is not good: mistyped, expired or revoked")
        return self.sessions.open(sha256)

    def _refuse_guess(self, address: str) -> None:
        """Counts a wrong token; after some, the address gets 429."""
        wait_s = self._logins.take(address)
        if wait_s:
            why = f"too many wrong tokens; try again in {ceil(wait_s)} s"
            raise Refusal(429, why, headers={"Retry-After": str(ceil(wait_s))})


def cookie_name(request: Request) -> str:
    """A name per port: browsers send cookies to every port of a machine."""
    return f"{COOKIE}-{(request.scope.get('server') or ('', 0))[1]}"


def refuse_foreign(request: Request, *, has_cookie: bool) -> None:
    """Refuses requests of other sites: they can send our cookie, but neither our origin nor our header."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    own = f"{request.scope['scheme']}://{request.headers.get('host')}"
    is_ours = site == "same-origin" if site is not None else (origin or "").lower() == own.lower()
    if (site is not None or origin is not None or has_cookie) and not is_ours:
        raise Refusal(403, "this request comes from another site")
    if has_cookie and HEADER not in request.headers and not request.scope["path"].startswith(TOWN):
        raise Refusal(403, "the header X-Holdfast is missing")


class AdmissionMiddleware:
    """The ASGI middleware: admits callers and adds the security headers.

    `is_behind_tls`: callers use https, though a proxy reaches us by http.
    """

    def __init__(self, app: ASGIApp, authenticator: AuthMiddleware, *, is_behind_tls: bool = False) -> None:
        self._app, self._authenticator, self._is_behind_tls = app, authenticator, is_behind_tls

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

        if self._is_behind_tls:  # a setting and not a header, which anybody could send
            scope["scheme"] = "https"
        request = Request(scope, receive)
        if not self._is_behind_tls and not _is_named(request):
            foreign = Refusal(403, "Host is not this machine's name; behind a proxy, start with --tls-proxy")
            await _turned_away(request, foreign)(scope, receive, kept)
            return
        if scope["path"] not in OPEN:  # asked.url would depend on the Host header
            try:
                scope["caller"] = await self._authenticator.admit(request)
            except Refusal as error:
                await _turned_away(request, error)(scope, receive, kept)
                return
        await self._app(scope, receive, kept)


def _is_named(request: Request) -> bool:
    """Whether Host names the address that was reached; a page of another site may have given us its own name."""
    is_here = is_loopback((request.scope.get("server") or ("", 0))[0])
    return not is_here or all(map(is_this_machine, request.headers.getlist("host") or [""]))


def _turned_away(request: Request, error: Refusal) -> Response:
    """The login page for a browser; the error for everybody else."""
    if error.status_code == 401 and request.scope["path"] == "/" and "text/html" in request.headers.get("accept", ""):
        return answer(request, login(), status=401)
    return refused(error.status_code, error.detail, error.code, dict(error.headers or {}))


def caller_of(request: Request) -> Caller:
    caller: Caller = request.scope["caller"]
    return caller


async def read_json(request: Request, largest: int = LARGEST) -> Any:
    """The JSON body of a request, within the limits of size and time."""
    if media_type_of(request) != JSON:
        raise Refusal(415, f"Content-Type must be {JSON}")
    try:
        body = await read_body(request, largest=largest, wait_s=WAIT_S)
    except HTTPException as error:
        raise Refusal(error.status_code, error.detail, headers=dict(error.headers or {})) from None
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refusal(400, f"the request is not JSON: {error}", code="malformed_json") from None
