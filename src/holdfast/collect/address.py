"""Addresses that somebody gives us to call: checked before anything is sent, and never with a secret in them.

An address is shown, logged and kept as a name. What proves who we are goes into a header, and is `hidden` where the
other side says it back.
"""

from __future__ import annotations

import re

from yarl import URL

from holdfast.contracts.errors import BadInput

HOST = re.compile(r"[A-Za-z0-9._:-]+")
UNFIT = re.compile(r"[\x00-\x20\x7f\\]")
LEAST_SECRET = 6  # letters: what is shorter would hide half of what is said


def checked(what: str, url: str, *, example: str = "http://127.0.0.1:8000/v1") -> str:
    """The address without a slash at its end; BadInput shows it without a password, a query and a fragment."""
    shown = re.split(r"[?#]", url)[0].rpartition("@")[2]
    why = _wrong(url)
    if why is not None:
        raise BadInput(f"{what} {shown!r}", why=why, remedy=f"for example {example}")
    return url.rstrip("/")


def hidden(text: str, *secrets: str | None) -> str:
    """What the other side said, without what it was told in confidence."""
    for secret in secrets:
        for part in (secret, *secret.split()) if secret else ():
            if len(part) >= LEAST_SECRET:
                text = text.replace(part, "…")
    return text


def _wrong(url: str) -> str | None:
    if not url.startswith(("http://", "https://")):
        return "is not http:// or https://"
    if "@" in url:
        return "has a name or a password in it, and addresses are shown: send them in a header"
    if "?" in url or "#" in url:
        return "has a query or a fragment in it, and addresses are shown: send keys in a header"
    if UNFIT.search(url):
        return "has a letter in it that no address can hold"
    try:
        parsed = URL(url)
        host, port = parsed.raw_host or "", parsed.port
    except ValueError:
        return "is no address with a port from 1 to 65535"
    return None if HOST.fullmatch(host) and port else "is no address of a host"
