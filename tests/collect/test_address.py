"""Addresses are checked before they are used, and no message shows what is secret in one."""

from __future__ import annotations

import pytest

from holdfast.collect.client import checked, hidden
from holdfast.contracts.errors import BadInput


@pytest.mark.parametrize(
    "url", ["http://h", "https://api.example.com/v1", "http://127.0.0.1:8000/v1", "http://[::1]:80", "http://bücher.de"]
)
def test_an_address_is_taken_without_the_slash_at_its_end(url: str) -> None:
    assert checked("endpoint", url) == checked("endpoint", f"{url}/") == url


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://h", "is not http:// or https://"),
        ("me:tell-nobody@h", "is not http:// or https://"),
        ("http://me:tell-nobody@h/v1", "a name or a password"),
        ("http://tell-nobody@h", "a name or a password"),
        ("http://h/x?key=tell-nobody", "a query or a fragment"),
        ("http://h/x#tell-nobody", "a query or a fragment"),
        ("http://h:99999", "a port from 1 to 65535"),
        ("http://h:x", "a port from 1 to 65535"),
        ("http://h:0", "no address of a host"),
        ("http://", "no address of a host"),
        ("http:///v1", "no address of a host"),
        ("http://u%40h", "no address of a host"),
        ("http://h/ x", "a letter in it"),
        ("http://h/\r\nX: y", "a letter in it"),
        ("http://h\\x", "a letter in it"),
    ],
)
def test_what_is_none_is_refused_and_its_secrets_are_not_shown(url: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as caught:
        checked("endpoint", url)
    assert "tell-nobody" not in str(caught.value)


def test_what_is_said_back_of_a_secret_is_hidden() -> None:
    said = "bad key 'Bearer sk-tell-nobody' (sk-tell-nobody)"
    assert hidden(said, "Bearer sk-tell-nobody", None, "") == "bad key '…' (…)"
    assert hidden("a key", "key") == "a key"  # too short to be one
