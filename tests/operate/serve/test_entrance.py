"""The way in: sessions, requests of other sites, too many of them, and tokens that are no longer good."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests

from holdfast.contracts.access import Role
from holdfast.operate.serve.entrance import COOKIE
from holdfast.store.store import Store
from tests.operate.room import Room, serving, with_token

PAUSE = {"id": "p-1", "action": "pause", "subject": "run-9", "why": "a test"}


class Hand:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def room(file_store: Store, hand: Hand) -> Iterator[Room]:
    with serving(file_store, clock=hand, limit=(1.0, 30.0)) as served:
        yield served


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
        assert room.ask(path, Host=host).status_code in (400, 401), path


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, "another site"),
        ({"Sec-Fetch-Site": "same-site"}, "another site"),  # another port of this machine
        ({"Sec-Fetch-Site": None, "Origin": "http://evil.example"}, "another site"),
        ({"Sec-Fetch-Site": None, "Origin": "null"}, "another site"),
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
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
        assert room.ask("/login", method="POST", json={"token": room.tokens["admin"]}, **headers).status_code == 403
    form = requests.post(f"{room.url}/login", data={"token": room.tokens["admin"]}, timeout=60)
    assert form.status_code == 415


def test_one_caller_who_asks_too_often_waits_and_the_others_do_not(room: Room, hand: Hand) -> None:
    statuses = [room.ask("/api/me", role="viewer").status_code for _ in range(31)]
    assert statuses == [200] * 30 + [429]
    late = room.ask("/api/me", role="viewer")
    assert late.headers["retry-after"] == "1" and late.json()["error"]["code"] == "rate_limited"
    assert room.ask("/api/me", role="operator").status_code == 200
    hand.now += 2.0
    assert [room.ask("/api/me", role="viewer").status_code for _ in range(3)] == [200, 200, 429]


def test_who_guesses_tokens_has_to_wait_and_a_good_one_still_works(room: Room, hand: Hand) -> None:
    def guess() -> int:
        return room.ask("/login", method="POST", json={"token": "hf_guess"}).status_code

    assert [guess() for _ in range(6)] == [401] * 5 + [429]
    assert room.ask("/api/me", Authorization="Bearer hf_guess").status_code == 429
    assert room.ask("/login", method="POST", json={"token": room.tokens["viewer"]}).status_code == 429
    assert room.ask("/api/me", role="viewer").status_code == 200
    hand.now += 11.0
    assert [guess() for _ in range(2)] == [401, 429]


def test_a_token_that_expires_or_is_revoked_ends_its_sessions_within_a_second(room: Room, hand: Hand) -> None:
    brief = with_token(room.store, "brief", Role.VIEWER, now=hand.now, expires_at=hand.now + 60.0)
    session = room.browser("admin")
    headers = {"Authorization": f"Bearer {brief}"}
    assert requests.get(f"{room.url}/api/me", headers=headers, timeout=60).status_code == 200
    hand.now += 61.0
    assert requests.get(f"{room.url}/api/me", headers=headers, timeout=60).status_code == 401
    assert session.get(f"{room.url}/api/me", timeout=60).status_code == 200
    admin = next(one for one in room.store.tokens.all() if one.label == "admin one")
    room.store.tokens.revoke(admin.id, "somebody", "lost", hand.now).result()
    hand.now += 1.0
    assert session.get(f"{room.url}/api/me", timeout=60).status_code == 401
    assert room.ask("/api/me", role="admin").status_code == 401
    assert room.ask("/api/me", role="viewer").status_code == 200
