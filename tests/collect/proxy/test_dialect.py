"""What all dialects read with."""

from __future__ import annotations

import json

import pytest

from holdfast.collect.proxy.dialect import loads, read_object, spliced, token_ids
from holdfast.contracts.errors import BadInput


def test_members_are_added_and_nothing_else_is_touched() -> None:
    body = b' {"a" : 1.50, "b": false}\n'
    made = spliced(body, json.loads(body), {"b": True, "c": [1]})
    assert made == b' {"c":[1],"a" : 1.50, "b": false}\n'  # what it says already it goes on saying
    assert spliced(body, json.loads(body), {"a": 1}) is None
    assert spliced(b"{}", {}, {"a": 1}) is None


@pytest.mark.parametrize("body", [b"", b"nope", b"[1]", b'"x"', b"\xff"])
def test_a_request_that_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput, match="request: is not"):
        read_object(body)


def test_half_a_character_is_read_and_what_is_no_json_is_not() -> None:
    assert loads(b'"\\ud83d"') == "\ud83d"
    for text in (b"NaN", b"{", b"[" * 100_000, b"[1e999]", b"-1e999"):
        with pytest.raises(ValueError, match="no JSON|Expecting|nested"):
            loads(text)


def test_only_ids_are_ids() -> None:
    assert token_ids([1, 0]) == (1, 0)
    assert [token_ids(value) for value in (None, [True], [-1], [1.0], "1", [None])] == [None] * 6
