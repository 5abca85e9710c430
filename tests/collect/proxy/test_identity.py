"""Whose call it is."""

from __future__ import annotations

import pytest

from holdfast.collect.proxy.attribution import BadHeader, Identity, base_url, from_headers, from_path


def test_the_base_url_names_the_attempt() -> None:
    assert base_url("http://h:1/", "run-1-a/t 1", 2) == "http://h:1/rollout/run-1-a%2Ft%201/attempt/2"


def test_headers_name_the_attempt_by_its_id_or_its_number() -> None:
    for said in (b"r/t:attempt-3", b"attempt-3", b" 3 "):
        given = {b"x-rollout-id": b" r/t ", b"x-attempt-id": said, b"x-sequence-id": b"7", b"x-trace-id": b" "}
        assert from_headers(given) == Identity(rollout="r/t", number=3, sequence=7, trace=None)
    assert from_path("r/t", 1, {b"x-trace-id": b"abc"}) == Identity(rollout="r/t", number=1, trace="abc")


WHOLE = {b"x-rollout-id": b"r/t", b"x-attempt-id": b"1"}


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (b"x-rollout-id", None, "missing required header 'x-rollout-id'"),
        (b"x-attempt-id", None, "missing required header 'x-attempt-id'"),
        (b"x-rollout-id", b" ", "header 'x-rollout-id' cannot be empty"),
        (b"x-attempt-id", b"\xff", "header 'x-attempt-id' must be valid utf-8"),
        (b"x-trace-id", b"\xff", "header 'x-trace-id' must be valid utf-8"),
        (b"x-sequence-id", b"-1", "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", b"1.5", "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", b"", "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", str(2**64).encode(), "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-sequence-id", b"9" * 5000, "header 'x-sequence-id' must be an unsigned integer"),
        (b"x-attempt-id", b"x", "header 'x-attempt-id' must name an attempt of the rollout, as in r/t:attempt-1"),
        (b"x-attempt-id", b"q/t:attempt-1", "header 'x-attempt-id' must name an attempt of the rollout, as in r/t:a"),
    ],
)
def test_a_header_that_cannot_be_used_is_named(name: bytes, value: bytes | None, message: str) -> None:
    given = {key: said for key, said in {**WHOLE, name: value}.items() if said is not None}
    with pytest.raises(BadHeader) as caught:
        from_headers(given)
    assert str(caught.value).startswith(message)
