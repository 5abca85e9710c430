"""Tokens are kept by their hash, for their project; each change is in the ledger, and no hash is."""

from __future__ import annotations

import json

import pytest

from holdfast.contracts.commands import Role, Token
from holdfast.contracts.errors import BadInput, IllegalMove, NotFound
from holdfast.contracts.records import encode
from holdfast.store.store import Store, open_store
from tests.conftest import Clock

A, B, C = "aa" * 32, "bb" * 32, "cc" * 32


def add(store: Store, clock: Clock, sha256: str = A, **how: float) -> Token:
    return store.tokens.add("ann", Role.OPERATOR, sha256, clock.now, how.get("expires_at"), who="root").result()


def test_a_token_is_found_by_its_hash_and_by_nothing_else(store: Store, url: str, clock: Clock) -> None:
    made = add(store, clock)
    assert made == Token(id="tok-1", label="ann", role=Role.OPERATOR, sha256=A, created_at=clock.now)
    assert store.tokens.find(A) == store.tokens.get("tok-1") == made
    assert store.tokens.find(B) is None
    assert store.tokens.all() == [made]
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.tokens.find(A) is None and elsewhere.tokens.all() == []
        with pytest.raises(NotFound, match="there is none in project 'other'"):
            elsewhere.tokens.revoke("tok-1", "eve", "w", clock.now).result()
        with pytest.raises(BadInput, match="known already"):  # a token is one project's
            add(elsewhere, clock)


@pytest.mark.parametrize("name", ["tok-2", "tok-01", "1", "tok-x", "", "tok-" + "9" * 30, A])
def test_what_is_not_the_id_of_a_token_is_refused(store: Store, clock: Clock, name: str) -> None:
    add(store, clock)
    with pytest.raises(NotFound, match="'holdfast tokens list' shows them"):
        store.tokens.get(name)


def test_a_token_is_revoked_once_and_stays_so(store: Store, clock: Clock) -> None:
    add(store, clock)
    gone = store.tokens.revoke("tok-1", "root", "lost", clock.advance(5)).result()
    assert gone.revoked_at == clock.now and not gone.is_good(clock.now)
    assert store.tokens.find(A) == gone
    for call in (
        lambda: store.tokens.revoke("tok-1", "root", "again", clock.now).result(),
        lambda: store.tokens.rotate("tok-1", B, "root", clock.now).result(),
    ):
        with pytest.raises(IllegalMove, match="was revoked, and stays so"):
            call()


def test_a_rotated_token_is_good_for_a_while_beside_the_new_one(store: Store, clock: Clock) -> None:
    add(store, clock)
    new = store.tokens.rotate("tok-1", B, "root", clock.now, grace_s=60.0).result()
    old = store.tokens.get("tok-1")
    assert (new.id, new.label, new.role, new.sha256, new.expires_at) == ("tok-2", "ann", Role.OPERATOR, B, None)
    assert old.is_good(clock.now + 59) and not old.is_good(clock.now + 60)
    # a second rotation does not lengthen the life of the first
    store.tokens.rotate("tok-1", C, "root", clock.advance(30), grace_s=3600.0).result()
    assert store.tokens.get("tok-1").expires_at == old.expires_at
    with pytest.raises(IllegalMove, match="has expired"):
        store.tokens.rotate("tok-1", "dd" * 32, "root", clock.advance(31)).result()
    with pytest.raises(BadInput, match="must be finite"):
        store.tokens.rotate("tok-2", "dd" * 32, "root", clock.now, grace_s=-1.0)


def test_the_new_one_lives_as_long_as_the_old_one_was_to(store: Store, clock: Clock) -> None:
    add(store, clock, expires_at=clock.now + 100)
    new = store.tokens.rotate("tok-1", B, "root", clock.advance(40)).result()
    assert new.expires_at == clock.now + 100
    again = store.tokens.rotate("tok-2", C, "root", clock.advance(5), expires_at=clock.now + 7).result()
    assert again.expires_at == clock.now + 7


@pytest.mark.parametrize("why", ["", " ", "x" * 2001], ids=["none", "blank", "long"])
def test_a_token_is_revoked_for_a_reason_that_people_can_read(store: Store, clock: Clock, why: str) -> None:
    add(store, clock)
    with pytest.raises(BadInput, match="token: why"):
        store.tokens.revoke("tok-1", "root", why, clock.now)
    assert store.tokens.get("tok-1").is_good(clock.now)


def test_the_ledger_has_every_change_and_no_hash(store: Store, clock: Clock) -> None:
    add(store, clock, expires_at=clock.now + 100)
    store.tokens.rotate("tok-1", B, "bob", clock.now, grace_s=10.0).result()
    store.tokens.revoke("tok-2", "eve", "lost", clock.now).result()
    entries = list(store.ledger.entries())
    assert [(one.kind, one.who) for one in entries] == [("token", "root"), ("token", "bob"), ("token", "eve")]
    assert entries[0].body == {"add": "tok-1", "label": "ann", "role": "operator", "expires_at": clock.now + 100}
    assert entries[1].body["rotate"] == "tok-1" and entries[1].body["old_expires_at"] == clock.now + 10
    assert entries[2].body == {"revoke": "tok-2", "why": "lost"}
    told = json.dumps([encode(one) for one in entries])
    assert A not in told and B not in told
