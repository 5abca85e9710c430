from __future__ import annotations

from hashlib import sha256

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st
from scipy import stats

from holdfast.promote.bucketing import bucket

KEYS = [f"user-{n}" for n in range(8_000)]


def test_a_bucket_is_the_head_of_a_hash_of_salt_and_key() -> None:
    head = int(sha256(b"4:saltkey").hexdigest()[:16], 16)
    assert bucket("key", "salt") == (head >> 11) / 2**53


@given(st.text(st.characters()), st.text(st.characters()))
@example("\ud800", "\udfff")  # half a character, as it may come out of a file name
def test_any_key_and_salt_fall_between_0_and_1_and_always_at_the_same_place(key: str, salt: str) -> None:
    assert 0.0 <= bucket(key, salt) < 1.0
    assert bucket(key, salt) == bucket(key, salt)


def test_where_the_salt_ends_and_the_key_begins_matters() -> None:
    assert len({bucket("bc", "a"), bucket("c", "ab"), bucket("abc", ""), bucket("", "abc")}) == 4


@given(st.text(), st.text(), st.floats(0, 1), st.floats(0, 1))
def test_a_growing_share_only_adds_keys(key: str, salt: str, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert not bucket(key, salt) < small or bucket(key, salt) < large


def test_consecutive_keys_are_spread_evenly() -> None:
    found = np.array([bucket(key, "salt") for key in KEYS])
    assert stats.kstest(found, "uniform").pvalue > 0.001
    assert stats.chisquare(np.bincount((found * 100).astype(int), minlength=100)).pvalue > 0.001


def test_two_salts_have_nothing_to_do_with_one_another() -> None:
    """Else whoever is in one experiment would be in all of them."""
    one, other = (np.array([bucket(key, salt) for key in KEYS]) for salt in ("flag-a", "flag-b"))
    table = np.histogram2d(one, other, bins=10, range=[[0, 1], [0, 1]])[0]
    assert stats.chi2_contingency(table).pvalue > 0.001
    assert abs(np.corrcoef(one, other)[0, 1]) < 4 / np.sqrt(len(KEYS))
