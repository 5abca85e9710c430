"""The files of the control room: the shell, the way in, scripts and styles, with the headers that keep a page honest.

Nothing is built and nothing is fetched from elsewhere. What the pages show they ask for themselves (`panels`); who may
have which file is `app`'s business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

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
