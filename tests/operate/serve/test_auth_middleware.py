"""The way in: sessions, requests of other sites, too many of them, and tokens that are no longer good."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy

import pytest
import requests
from starlette.requests import Request

from holdfast.collect import endpoint
from holdfast.contracts.commands import Role, Token
from holdfast.contracts.errors import StoreError
from holdfast.operate import app as control_room
from holdfast.operate import auth_middleware
from holdfast.operate.auth import TokenGuard
from holdfast.operate.auth_middleware import COOKIE, AuthMiddleware
from holdfast.store.store import Store
from tests.conftest import Clock
from tests.operate.room import PATIENCE_S, Room, listening, serving, with_token

EVIL = "http://evil.example"
PAUSE = {"id": "p-1", "action": "pause", "subject": "run-9", "why": "a test"}


@pytest.fixture
def room(file_store: Store, clock: Clock) -> Iterator[Room]:
    with serving(file_store, clock=lambda: clock.now, limit=(1.0, 30.0)) as served:
        yield served


def failing(sha256: str) -> Token | None:
    raise StoreError("store postgresql://user@db.internal/x", why="connection lost")


def test_a_token_is_exchanged_for_a_cookie_that_no_script_reads_and_no_other_site_sends(room: Room) -> None:
    session = room.browser("viewer")
    answer = session.post(f"{room.url}/login", json={"token": room.tokens["viewer"]}, timeout=60)
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}-") and "HttpOnly" in cookie and "SameSite=strict" in cookie
    assert room.tokens["viewer"] not in cookie and "Domain" not in cookie
    assert session.get(f"{room.url}/api/me", timeout=60).json()["role"] == "viewer"
    assert "<nav" in session.get(f"{room.url}/", timeout=60).text
    assert session.post(f"{room.url}/logout", json={}, timeout=60).status_code == 200
    assert session.get(f"{room.url}/api/me", timeout=60).status_code == 401
    old = requests.get(f"{room.url}/api/me", headers={"Cookie": cookie.partition(";")[0]}, timeout=60)
    assert old.status_code == 401  # not only forgotten by this browser


def test_whoever_opens_the_page_unknown_is_shown_the_way_in_at_the_same_address(room: Room) -> None:
    shown = room.ask("/", Accept="text/html,*/*")
    assert shown.status_code == 401 and 'id="token"' in shown.text and shown.headers["x-frame-options"] == "DENY"
    assert room.ask("/", Accept="application/json").json()["error"]["code"] == "unauthorized"


@pytest.mark.parametrize("host", ["x/healthz?", "x/healthz#", "x/login?y=", "127.0.0.1/static/theme.js?"])
def test_what_is_sent_as_host_opens_no_door(room: Room, host: str) -> None:
    for path in ("/api/overview", "/api/runs", "/metrics", "/"):
        assert room.ask(path, Host=host).status_code in (400, 401, 403), path


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, "another site"),
        ({"Sec-Fetch-Site": "same-site"}, "another site"),  # another port of this machine
        ({"Sec-Fetch-Site": None, "Origin": "http://evil.example"}, "another site"),
        ({"Sec-Fetch-Site": None, "Origin": "null"}, "another site"),
        ({"Sec-Fetch-Site": None, "Origin": "http://["}, "another site"),  # no address at all
        ({"Sec-Fetch-Site": None}, "another site"),  # no browser of today, and nothing that says who asks
        ({"X-Holdfast": None}, "X-Holdfast"),
    ],
)
def test_what_a_cookie_carries_changes_nothing_when_another_site_asks(
    room: Room, headers: dict[str, str | None], why: str
) -> None:
    session = room.browser("admin")
    answer = session.post(f"{room.url}/api/orders", json=PAUSE, headers=headers, timeout=60)
    assert answer.status_code == 403 and why in answer.json()["error"]["message"]
    assert session.post(f"{room.url}/logout", json={}, headers=headers, timeout=60).status_code == 403
    assert session.post(f"{room.url}/api/orders", json=PAUSE, timeout=60).status_code == 404  # ours gets further


def test_another_site_cannot_sign_somebody_in(room: Room) -> None:
    swapped = room.url.replace("http:", "https:")  # the same host: what answers there by TLS is not us
    for headers in ({"Sec-Fetch-Site": "cross-site"}, *({"Origin": one} for one in (EVIL, "http://[", "//", swapped))):
        answer = room.ask("/login", method="POST", json={"token": room.tokens["admin"]}, **headers)
        assert answer.status_code == 403 and "another site" in answer.text, headers
    ours = room.ask("/login", method="POST", json={"token": room.tokens["admin"]}, Origin=room.url)
    assert ours.status_code == 200
    form = requests.post(f"{room.url}/login", data={"token": room.tokens["admin"]}, timeout=60)
    assert form.status_code == 415


def test_one_caller_who_asks_too_often_waits_and_the_others_do_not(room: Room, clock: Clock) -> None:
    statuses = [room.ask("/api/me", role="viewer").status_code for _ in range(31)]
    assert statuses == [200] * 30 + [429]
    late = room.ask("/api/me", role="viewer")
    assert late.headers["retry-after"] == "1" and late.json()["error"]["code"] == "rate_limited"
    assert room.ask("/api/me", role="operator").status_code == 200
    clock.now += 2.0
    assert [room.ask("/api/me", role="viewer").status_code for _ in range(3)] == [200, 200, 429]


def test_who_guesses_tokens_has_to_wait_and_a_good_one_of_the_same_address_still_works(
    room: Room, clock: Clock
) -> None:
    def guess() -> int:
        return room.ask("/login", method="POST", json={"token": "hf_guess"}).status_code

    assert [guess() for _ in range(6)] == [401] * 5 + [429]
    assert room.ask("/api/me", Authorization="Bearer hf_guess").status_code == 429
    assert room.ask("/login", method="POST", json={"token": room.tokens["viewer"]}).status_code == 200
    assert room.ask("/api/me", role="viewer").status_code == 200
    clock.now += 11.0
    assert [guess() for _ in range(2)] == [401, 429]


def test_a_token_that_expires_or_is_revoked_ends_its_sessions_within_a_second(room: Room, clock: Clock) -> None:
    brief = with_token(room.store, "brief", Role.VIEWER, now=clock.now, expires_at=clock.now + 60.0)
    session = room.browser("admin")
    headers = {"Authorization": f"Bearer {brief}"}
    assert requests.get(f"{room.url}/api/me", headers=headers, timeout=60).status_code == 200
    clock.now += 61.0
    assert requests.get(f"{room.url}/api/me", headers=headers, timeout=60).status_code == 401
    assert session.get(f"{room.url}/api/me", timeout=60).status_code == 200
    admin = next(one for one in room.store.tokens.all() if one.label == "admin one")
    room.store.tokens.revoke(admin.id, "somebody", "lost", clock.now).result()
    clock.now += 1.0
    assert session.get(f"{room.url}/api/me", timeout=60).status_code == 401
    assert room.ask("/api/me", role="admin").status_code == 401
    assert room.ask("/api/me", role="viewer").status_code == 200


# Where the store hangs or fails, and where a proxy stands before it ---------------------------------------------------


@contextmanager
def heard() -> Iterator[list[str]]:
    """What a server that listens already writes into its log; it tells nobody above of it."""
    said: list[str] = []
    handler, log = logging.Handler(), logging.getLogger("uvicorn.error")
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


class Hanging(Store):
    """A store that tells nobody whose a token is before it may."""

    def __init__(self, store: Store) -> None:
        self.__dict__.update(store.__dict__)
        self.tokens, self.find, self.may = copy(store.tokens), store.tokens.find, threading.Event()
        self.tokens.find = self._find  # type: ignore[method-assign]

    def _find(self, sha256: str) -> Token | None:
        assert self.may.wait(10 * PATIENCE_S)
        return self.find(sha256)


def test_a_store_that_hangs_keeps_nobody_waiting_who_needs_none_of_it(
    file_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(file_store)
    monkeypatch.setattr(auth_middleware, "LOOK_UP_S", 0.1)
    with serving(hanging) as room, ThreadPoolExecutor(10) as others:
        try:
            late = [others.submit(room.ask, "/api/me", role="viewer") for _ in range(auth_middleware.LOOK_UPS + 4)]
            assert room.ask("/healthz").json() == {"status": "ok"} and room.ask("/login").status_code == 200
            assert room.ask("/api/me").status_code == 401
            body = {"token": room.tokens["admin"]}
            asked = [room.ask("/api/me", role="admin"), room.ask("/login", method="POST", json=body)]
            for answer in (*asked, *(one.result() for one in late)):
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        finally:
            hanging.may.set()
        monkeypatch.setattr(auth_middleware, "LOOK_UP_S", PATIENCE_S)
        assert room.ask("/api/me", role="viewer").status_code == 200


def test_while_the_store_fails_strangers_learn_nothing_of_it_and_their_guesses_count(
    room: Room, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, wrong = room.browser("viewer"), "hf_" + "x" * 43
    clock.now += 1.0  # what was known is to be looked up again
    monkeypatch.setattr(room.store.tokens, "find", failing)
    with heard() as said:
        answers = [room.ask("/api/me", Authorization=f"Bearer {wrong}") for _ in range(3)]
        answers += [room.ask("/login", method="POST", json={"token": wrong}) for _ in range(3)]
        answers += [room.ask("/api/me", role="admin"), session.get(f"{room.url}/", timeout=60)]
    assert said == []
    for answer in answers:
        assert answer.status_code == 503 and "db.internal" not in answer.text + str(answer.headers)
        assert answer.headers["content-security-policy"] == auth_middleware.CSP
        assert answer.headers["x-content-type-options"] == "nosniff"
    monkeypatch.undo()
    assert room.ask("/login", method="POST", json={"token": wrong}).status_code == 429
    assert room.ask("/login", method="POST", json={"token": room.tokens["admin"]}).status_code == 200
    assert session.get(f"{room.url}/api/me", timeout=60).status_code == 200  # the session outlived it


async def test_a_stream_ends_when_nobody_can_tell_whether_it_may_go_on(
    room: Room, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room.store.tokens, "find", failing)
    keeper = AuthMiddleware(TokenGuard(room.store, lambda: clock.now), lambda: clock.now)
    headers = [(b"authorization", f"Bearer {room.tokens['viewer']}".encode())]
    served = control_room.ControlRoom(store=room.store, clock=lambda: clock.now, authenticator=keeper)
    assert not await served._listening(Request({"type": "http", "headers": headers}))()


def test_behind_a_proxy_with_tls_the_cookie_is_sent_by_tls_alone_and_ours_is_https(file_store: Store) -> None:
    token = with_token(file_store, "ann", Role.VIEWER, now=1.0)
    for is_behind_tls, own, other in ((True, "https", "http"), (False, "http", "https")):
        with listening(endpoint.server(control_room.app(file_store, is_behind_tls=is_behind_tls))) as url:

            def log_in(scheme: str, url: str = url, told: str = other) -> requests.Response:
                origin = url.replace("http:", f"{scheme}:")
                headers = {"Origin": origin, "X-Forwarded-Proto": told}  # which anybody can send: it decides nothing
                return requests.post(f"{url}/login", json={"token": token}, headers=headers, timeout=PATIENCE_S)

            answer = log_in(own)
            assert answer.status_code == 200 and ("; secure" in answer.headers["set-cookie"].lower()) is is_behind_tls
            assert log_in(other).status_code == 403


def test_who_asks_for_a_websocket_is_answered_as_anybody_and_the_log_says_nothing(room: Room) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    with listening(endpoint.server(control_room.app(room.store))) as url, heard() as said:
        for path, token, status in (("/api/stream", "", 401), ("/town/live", "", 401), ("/nowhere", "viewer", 404)):
            known = {"Authorization": f"Bearer {room.tokens[token]}"} if token else {}
            assert requests.get(f"{url}{path}", headers=upgrade | known, timeout=PATIENCE_S).status_code == status
    assert said == []
