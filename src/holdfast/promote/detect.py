"""Secrets and personal data in text: few patterns, each precise, and checked by its own arithmetic where it has one.

Whether a hit keeps data from being learnt from is `quality`'s business. What was found is never repeated: a hit is the
name of its pattern. Names and addresses of people need more than patterns, and are not looked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Test = Callable[[str], bool]


def _luhn(text: str) -> bool:
    """Of card numbers: every second digit from the right is doubled, and the digits add up to a multiple of 10."""
    digits = [int(letter) for letter in reversed(text) if letter.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _mod97(text: str) -> bool:
    """Of bank accounts: the first four letters go last, letters become 10 to 35, and 1 is left over; ISO 13616."""
    plain = text.replace(" ", "")
    return int("".join(str(int(letter, 36)) for letter in plain[4:] + plain[:4])) % 97 == 1


def _is_phone(text: str) -> bool:
    """E.164 allows 15 digits. With one dot it is a fraction with a sign."""
    return 9 <= sum(letter.isdigit() for letter in text) <= 15 and text.count(".") != 1


def _is_somebodys(address: str) -> bool:
    """Addresses under the names that RFC 2606 reserves for examples belong to nobody."""
    domain = address.rpartition("@")[2].lower()
    return not re.search(r"(?:^|\.)(?:example(?:\.com|\.net|\.org)?|test|invalid|localhost)$", domain)


def _any(text: str) -> bool:
    return True


SECRETS: Mapping[str, tuple[re.Pattern[str], Test]] = {
    "anthropic_api_key": (re.compile(r"\bsk-ant-[A-Za-z0-9_-]{20,}"), _any),
    "openai_api_key": (re.compile(r"\bsk-(?!ant-)(?:proj-|svcacct-)?[A-Za-z0-9_-]{20,}"), _any),
    "github_token": (re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})"), _any),
    "slack_token": (re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"), _any),
    "aws_access_key": (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), _any),
    "google_api_key": (re.compile(r"\bAIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"), _any),
    "private_key_material": (re.compile(r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"), _any),
    "jwt_token": (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"), _any),
}
PERSONAL: Mapping[str, tuple[re.Pattern[str], Test]] = {
    "email": (re.compile(r"\b[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b"), _is_somebodys),
    "phone": (re.compile(r"(?<![\w+.)])\+[1-9]\d{0,2}(?:[ .-]?\(?\d{1,5}\)?){2,6}(?!\w)"), _is_phone),
    "social_security_number": (
        re.compile(r"(?<![\d-])(?!000|666|9\d\d)\d{3}-(?!00)\d{2}-(?!0000)\d{4}(?![\d-])"),
        _any,
    ),
    "card_number": (
        re.compile(
            r"(?<![\d.-])(?:4\d{3}|5[1-5]\d{2}|6011|65\d{2})([ -]?)\d{4}\1\d{4}\1\d{4}(?![\d-]|\.\d)"
            r"|(?<![\d.-])3[47]\d{2}([ -]?)\d{6}\2\d{5}(?![\d-]|\.\d)"
        ),
        _luhn,
    ),
    "bank_account": (re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b"), _mod97),
}


def secrets(text: str) -> frozenset[str]:
    """The names of the patterns that the text holds."""
    return _hits(text, SECRETS)


def personal(text: str) -> frozenset[str]:
    return _hits(text, PERSONAL)


def _hits(text: str, patterns: Mapping[str, tuple[re.Pattern[str], Test]]) -> frozenset[str]:
    found = set()
    for name, (pattern, test) in patterns.items():
        if any(test(match.group()) for match in pattern.finditer(text)):
            found.add(name)
    return frozenset(found)


def texts(data: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included; no recursion, because nobody bounds how deep it is."""
    left = [data]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            left += one
