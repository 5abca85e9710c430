"""Who is asking: a token gives its role until it is taken back, a session dies with it, and nobody asks too often."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from holdfast.contracts import limits
from holdfast.contracts.commands import Role
from holdfast.contracts.errors import StoreError
from holdfast.contracts.limits import RateLimiter
from holdfast.operate import auth
from holdfast.operate.auth import Caller, Sessions, TokenGuard, digest, mint
from holdfast.store.store import Store
from tests.conftest import Clock


@dataclass
class Door:
    store: Store
    clock: Clock
    guard: TokenGuard

    def token(self, label: str = "ann", role: Role = Role.OPERATOR, expires_at: float | None = None) -> str:
        made = mint()
        self.store.tokens.add(label, role, digest(made), self.clock.now, expires_at).result()
        return made

    def revoke(self, token: str) -> None:
        found = self.store.tokens.find(digest(token))
        assert found is not None
        self.store.tokens.revoke(found.id, "root", "lost", self.clock.now).result()


@pytest.fixture
def door(file_store: Store, clock: Clock) -> Door:
    return Door(file_store, clock, TokenGuard(file_store, lambda: clock.now))


def test_a_token_is_random_and_tells_who_asks_and_in_which_role(door: Door) -> None:
    ann, bob = door.token(), door.token("bob", Role.VIEWER)
    assert ann != bob and re.fullmatch(r"hf_[A-Za-z0-9_-]{43}", ann)  # 43 letters of 6 bits: 256 and more
    assert [door.guard.who(hashed) for hashed in (digest(ann), f"hf_{digest(ann)}")] == [None, None]
    assert door.guard.who(ann) == Caller(label="ann", role=Role.OPERATOR, token_id="tok-1")
    assert door.guard.who(bob) == Caller(label="bob", role=Role.VIEWER, token_id="tok-2")
    assert door.guard.has_tokens()


@pytest.mark.parametrize("given", [None, "", "hf_", "hf_wrong", "x", "hf_ö", "hf_" + "a" * 10_000, " ", "Bearer x"])
def test_without_a_good_token_nobody_is_anybody(door: Door, given: str | None) -> None:
    door.token()
    assert door.guard.who(given) is None


def test_what_is_revoked_or_expired_is_out_within_a_second(door: Door) -> None:
    lost, short = door.token(), door.token("bob", expires_at=door.clock.now + 0.2)
    assert door.guard.who(lost) and door.guard.who(short)
    door.revoke(lost)
    door.clock.advance(0.2)
    assert door.guard.who(short) is None  # its end was known before
    door.clock.advance(0.8)
    assert door.guard.who(lost) is None
    assert not door.guard.has_tokens()


def test_the_store_is_asked_once_and_not_for_every_request(door: Door) -> None:
    made = door.token()
    assert door.guard.who(made)
    door.revoke(made)
    door.clock.advance(auth.KNOWN_S / 2)
    assert door.guard.who(made)  # believed still; see the second above
    door.clock.advance(-10.0)
    assert door.guard.who(made) is None  # a clock that was set back does not make that last


def test_what_was_seen_just_now_is_told_without_the_store_and_nothing_else_is(door: Door) -> None:
    made = digest(door.token())
    assert door.guard.recall(made) is None  # good, and not yet looked up
    found = door.guard.by_hash(made)
    door.store.close()
    assert found is not None and door.guard.recall(made) == found
    door.clock.advance(auth.KNOWN_S)
    assert door.guard.recall(made) is None
    with pytest.raises(StoreError):
        door.guard.by_hash(made)


def test_only_so_many_tokens_are_remembered(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MOST_KNOWN", 2)
    for token in [door.token() for _ in range(4)]:
        assert door.guard.who(token)
    assert len(door.guard._known) == 2


# Sessions ------------------------------------------------------------------------------------------------------------


def test_a_session_stands_for_its_token_and_keeps_neither_it_nor_the_cookie(clock: Clock) -> None:
    sessions, made = Sessions(lambda: clock.now), mint()
    cookie = sessions.open(digest(made))
    assert sessions.token_of(cookie) == digest(made) and made not in cookie
    assert sessions.token_of("other") is sessions.token_of(None) is sessions.token_of("ö") is None
    assert cookie not in repr(vars(sessions)) and made not in repr(vars(sessions))


def test_a_session_ends_when_it_is_closed_or_old(clock: Clock) -> None:
    sessions, made = Sessions(lambda: clock.now, lifetime_s=60.0), digest(mint())
    one, other = sessions.open(made), sessions.open(made)
    assert one != other
    sessions.close(one)
    sessions.close("other")
    assert sessions.token_of(one) is None and sessions.token_of(other) == made
    clock.advance(60.0)
    assert sessions.token_of(other) is None


# How often -----------------------------------------------------------------------------------------------------------


def test_a_burst_may_pass_and_then_so_many_a_second(clock: Clock) -> None:
    limiter = RateLimiter(2.0, 3, lambda: clock.now)
    assert [limiter.take("ann") for _ in range(3)] == [0.0, 0.0, 0.0]
    assert limiter.take("ann") == limiter.take("ann") == 0.5  # who is refused does not wait the longer for it
    assert limiter.take("bob") == 0.0  # each has a bucket
    clock.advance(0.25)
    assert limiter.take("ann") == 0.25
    clock.advance(0.25)
    assert (limiter.take("ann"), limiter.take("ann")) == (0.0, 0.5)
    clock.advance(1e6)
    assert [limiter.take("ann") for _ in range(4)].count(0.0) == 3  # never more than a burst
    clock.advance(-1e6)  # a clock that is set back fills nothing, and makes nobody wait for longer
    assert limiter.take("ann") == 0.5
    clock.advance(0.5)
    assert limiter.take("ann") == 0.0


def test_failures_can_be_counted_without_counting_what_went_well(clock: Clock) -> None:
    failed = RateLimiter(0.1, 2, lambda: clock.now)
    assert [failed.wait_s("10.0.0.1") for _ in range(9)] == [0.0] * 9
    failed.spend("10.0.0.1")
    assert failed.wait_s("10.0.0.1") == 0.0
    failed.spend("10.0.0.1")
    assert (failed.wait_s("10.0.0.1"), failed.wait_s("10.0.0.2")) == (10.0, 0.0)


def test_a_limiter_remembers_so_many_callers_and_refuses_to_refuse_all(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MOST_KNOWN", 10)
    limiter = RateLimiter(1.0, 1, lambda: clock.now)
    for number in range(100):
        limiter.take(str(number))
    assert len(limiter._left) == 10
