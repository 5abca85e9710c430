from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.promote.detect import PERSONAL, SECRETS, personal, secrets, texts

QUICK = settings(max_examples=200, deadline=None, derandomize=True)
# In two parts: whoever looks for secrets in this file must find none.
PLANTED = {
    "anthropic_api_key": "sk-" + "ant-api03-" + "aB3_" * 8,
    "openai_api_key": "sk-" + "proj-" + "aB3x" * 8,
    "github_token": "gh" + "p_" + "aB3x" * 9,
    "slack_token": "xo" + "xb-1234567890-abcdef",
    "aws_access_key": "AK" + "IA" + "IOSFODNN7EXAMPL2",
    "google_api_key": "AI" + "za" + "aB3_x" * 7,
    "private_key_material": "-----BEGIN " + "RSA PRIVATE KEY-----",
    "jwt_token": "ey" + "JhbGciOiJIUzI1NiJ9." + "ey" + "JzdWIiOiIxMjM0NSJ9." + "dBjftJeZ4CVPmB92K27u",
    "email": "ada.lovelace@analytical.engine.org",
    "phone": "+44 20 7946 0958",
    "social_security_number": "219-09-9999",
    "card_number": "4539 1488 0343 6467",
    "bank_account": "GB82 WEST 1234 5698 7654 32",
}


@pytest.mark.parametrize("name", [*SECRETS, *PERSONAL])
@pytest.mark.parametrize("around", ["{}", "it is {}.", '{{"key": "{}"}}', "a\n{}\nb"])
def test_what_is_planted_is_found_and_called_by_its_name(name: str, around: str) -> None:
    text = around.format(PLANTED[name])
    assert secrets(text) | personal(text) == {name}


@pytest.mark.parametrize(
    "harmless",
    [
        "ada@example.com, bob@mail.example.org, root@localhost.test",  # reserved: they belong to nobody
        "pip install holdfast@1.2.3 and sprout@3",
        "what is 4539148803436467 + 1?".replace("4539148803436467", "4539148803436468"),  # Luhn says no
        "4539.148803436467 and 1234567812345670",  # a fraction; no such issuer
        "12 + 4915 = 4927, 7+123456789012",
        "from 2024-11-15 to 2025-01-20, lines 100-200-3000",
        "000-12-3456, 666-12-3456, 900-12-3456, 219-00-9999",  # never given out
        "GB82 WEST 1234 5698 7654 33",  # its check digits are wrong
        "the sk-learn package, task-force, eyJust a word",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "-----BEGIN PUBLIC KEY-----",
        "uuid 123e4567-e89b-12d3-a456-426614174000",
        "pi is 3.14159265358979, or +3.14159265358979",
    ],
)
def test_what_only_looks_like_it_is_left_alone(harmless: str) -> None:
    assert secrets(harmless) | personal(harmless) == frozenset()


@pytest.mark.parametrize(
    "number", ["378282246310005", "5555555555554444", "4111-1111-1111-1111", "6011 0009 9013 9424"]
)
def test_card_numbers_of_every_issuer_are_found(number: str) -> None:
    assert personal(f"pay with {number}") == {"card_number"}
    assert personal(f"pay with {number[:-1]}{(int(number[-1]) + 1) % 10}") == frozenset()


@QUICK
@given(st.integers(0, 10**18), st.sampled_from("+-*/="), st.integers(0, 10**6))
def test_sums_are_hardly_ever_taken_for_personal_data(one: int, sign: str, other: int) -> None:
    """A number with an issuer's beginning and the right check digit is a card's, also in a sum."""
    assert personal(f"{one} {sign} {other}") <= {"card_number"}


@pytest.mark.parametrize("letters", ["a", "a.", "+1 ", "1-", "sk-", "4", "GB82 ", "eyJ.", "a@", "a@a."])
def test_a_long_text_is_read_in_no_time(letters: str) -> None:
    text = letters * (200_000 // len(letters))
    began = time.perf_counter()
    secrets(text), personal(text)
    assert time.perf_counter() - began < 3.0


def test_every_text_within_a_value_is_found_keys_included_and_however_deep() -> None:
    deep: object = "bottom"
    for _ in range(5000):
        deep = [deep]
    assert set(texts({"a": ["b", {"c": 1, "d": None}], "e": ("f",), "g": deep})) == set("abcdefg") | {"bottom"}
