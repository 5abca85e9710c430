"""Tokens from the command line: shown once, listed without their hash, rotated and taken back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from holdfast.contracts.commands import Role
from holdfast.operate.auth import digest
from holdfast.store.store import Store, open_store
from tests.cli.conftest import Answer, Cli
from tests.conftest import Files


@dataclass
class Tokens:
    cli: Cli
    store: Store

    def __call__(self, *words: object) -> Answer:
        return self.cli("tokens", *words, "--store", self.store.url)


@pytest.fixture
def tokens(cli: Cli, files: Files, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokens]:
    monkeypatch.setenv("LOGNAME", "root")
    with open_store(files.fresh()) as store:
        yield Tokens(cli, store)


def test_a_token_is_shown_once_and_only_its_hash_is_kept(tokens: Tokens) -> None:
    ran = tokens("add", "ann", "--role", "operator")
    told, made = ran.lines
    assert told == "tok-1: operator ann, for good; the token is shown this once:"
    assert re.fullmatch(r"hf_[\w-]{43}", made)
    kept = tokens.store.tokens.find(digest(made))
    assert kept is not None and (kept.label, kept.role) == ("ann", Role.OPERATOR)
    (entry,) = tokens.store.ledger.entries()
    assert (entry.kind, entry.who, entry.body["add"]) == ("token", "root", "tok-1")
    for listed in (tokens("list"), tokens("list", "--json")):
        assert "ann" in listed.out and made not in listed.out and digest(made) not in listed.out
    assert tokens("add", "bob").lines[0].startswith("tok-2: viewer bob")  # the least, unless more is asked for


def test_a_token_is_rotated_and_revoked(tokens: Tokens) -> None:
    first = tokens("add", "ann", "--json", "--days", "30").json
    second = tokens("rotate", first["id"], "--grace-hours", "0", "--json").json
    assert (second["id"], second["label"]) == ("tok-2", "ann")
    assert second["expires_at"] - second["created_at"] == pytest.approx(30 * 86_400)  # as long as the first was to
    assert first["token"] != second["token"]
    assert [one["good"] for one in tokens("list", "--json").json] == [False, True]
    assert tokens("revoke", "tok-2", "--why", "lost").out == "tok-2 of ann is no good any more\n"
    assert [one["good"] for one in tokens("list", "--json").json] == [False, False]
    assert "revoked" in tokens("list").lines[2]
    ran = tokens("revoke", "tok-2")
    assert (ran.code, ran.err.count("\n")) == (5, 1)


def test_what_is_no_token_is_refused_in_one_line(tokens: Tokens) -> None:
    assert tokens("list").out == "no tokens; 'holdfast tokens add LABEL --role operator' makes one\n"
    for words in (("add", " "), ("add", "ann", "--role", "king"), ("revoke", "tok-9"), ("rotate", "tok-9")):
        ran = tokens(*words)
        assert (ran.code, ran.out) == (2, "")
    for word in ("revoke", "rotate"):
        ran = tokens(word, "hf_secret")
        assert ran.code == 2 and "hf_secret" not in ran.err  # whoever reads the terminal later does not get it
    tokens("add", "ann")
    for why in ("", "x" * 100_000):
        ran = tokens("revoke", "tok-1", "--why", why)
        assert (ran.code, ran.err.count("\n")) == (2, 1) and len(ran.err) < 200
