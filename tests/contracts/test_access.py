"""Three roles, each with all that the one before may do; tokens that are good until they are not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.contracts.commands import Role, Token
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.records import encode

TOKEN = Token(id="tok-1", label="ann", role=Role.OPERATOR, sha256="a" * 64, created_at=10.0)


def test_a_role_may_do_what_it_and_those_before_it_may() -> None:
    may = {(role.value, needed.value) for role in Role for needed in Role if role.may(needed)}
    assert may == {
        ("viewer", "viewer"),
        ("operator", "viewer"), ("operator", "operator"),
        ("admin", "viewer"), ("admin", "operator"), ("admin", "admin"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("expires_at", "revoked_at", "now", "is_good"),
    [
        (None, None, 1e12, True),  # for good
        (20.0, None, 19.9, True),
        (20.0, None, 20.0, False),  # at its end it is over
        (None, 15.0, 14.0, False),  # revoked is revoked, whatever the clock says
    ],
)
def test_a_token_is_good_until_it_expires_or_is_revoked(
    expires_at: float | None, revoked_at: float | None, now: float, is_good: bool
) -> None:
    assert replace(TOKEN, expires_at=expires_at, revoked_at=revoked_at).is_good(now) is is_good


@pytest.mark.parametrize("changes", [{"label": " "}, {"expires_at": 10.0}, {"created_at": float("nan")}])
def test_a_token_of_nobody_or_without_a_life_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadRecord):
        replace(TOKEN, **changes)  # type: ignore[arg-type]


def test_a_token_cannot_be_written_down_with_its_hash() -> None:
    with pytest.raises(TypeError, match="has no SCHEMA version"):
        encode(TOKEN)
