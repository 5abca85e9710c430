"""A control room that really listens, with a token for each role."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests
import uvicorn

from holdfast.collect import endpoint
from holdfast.contracts.commands import Role
from holdfast.contracts.limits import RateLimiter
from holdfast.operate.app import TownPage, app
from holdfast.operate.auth import TokenGuard, digest, mint
from holdfast.operate.auth_middleware import AuthMiddleware
from holdfast.store.store import Store

PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    url: str
    store: Store
    tokens: Mapping[str, str]  # by role

    def ask(
        self, path: str, *, role: str | None = None, method: str = "GET", json: Any = None, **headers: str
    ) -> requests.Response:
        """By a program: the token, if any, in its header."""
        if role is not None:
            headers["Authorization"] = f"Bearer {self.tokens[role]}"
        return requests.request(method, f"{self.url}{path}", json=json, headers=headers, timeout=PATIENCE_S)

    def browser(self, role: str) -> requests.Session:
        """Somebody who has signed in, and whose browser says where it comes from."""
        session = requests.Session()
        session.headers.update({"X-Holdfast": "1", "Sec-Fetch-Site": "same-origin"})
        answer = session.post(f"{self.url}/login", json={"token": self.tokens[role]}, timeout=PATIENCE_S)
        assert answer.status_code == 200, answer.text
        return session


def with_token(store: Store, label: str, role: Role, *, now: float, expires_at: float | None = None) -> str:
    token = mint()
    store.tokens.add(label, role, digest(token), now, expires_at).result()
    return token


@contextmanager
def listening(server: uvicorn.Server) -> Iterator[str]:
    """The address of a server while it serves."""
    with endpoint.listen("127.0.0.1", 0, token=None) as opened:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{opened.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def serving(
    store: Store,
    *,
    clock: Callable[[], float] = time.time,
    limit: tuple[float, float] = (1000.0, 10_000.0),
    town: TownPage | None = None,
    stream_s: float = 3600.0,
) -> Iterator[Room]:
    tokens = {str(role): with_token(store, f"{role} one", role, now=clock()) for role in Role}
    keeper = AuthMiddleware(TokenGuard(store, clock), clock, requests=RateLimiter(*limit, clock))
    application = app(store, clock=clock, authenticator=keeper, town=town, stream_s=stream_s)
    with listening(endpoint.server(application)) as url:
        yield Room(url=url, store=store, tokens=tokens)
