"""Secrets and personal data in text: few patterns, each precise, and checked by its own arithmetic where it has one.

A hit is the name of its pattern; the text found is never repeated. `ASSIGNED` and `WIDE` find more, for callers who
replace what they find. Names and addresses of people are in `people`. `DetectionRule` is a caller's own pattern with
the reason that a hit gives.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import log2
from typing import Any, NamedTuple

from holdfast.contracts.errors import BadInput

Test = Callable[[str], bool]
MOST_GAPS = 7  # separators in a telephone number


class Sign(NamedTuple):
    """The pattern of one kind. A text without any of the hints, or without the trait, is not searched."""

    pattern: re.Pattern[str]  # the group `it`, if any, is the thing; the rest is its context
    test: Test
    hints: tuple[str, ...] = ()  # most texts contain none of them
    trait: re.Pattern[str] | None = None  # matches every such thing and is faster; kinds may share one
    any_case: bool = False  # the hints are in lower case and match any case


def _any(text: str) -> bool:
    return True


def sign(
    pattern: str, hints: str = "", *, test: Test = _any, trait: re.Pattern[str] | None = None, any_case: bool = False
) -> Sign:
    """Makes a sign; the hints are separated by bars."""
    return Sign(re.compile(pattern), test, tuple(filter(None, hints.split("|"))), trait, any_case)


@dataclass(frozen=True, slots=True)
class Detection:
    """Where in a text something was found, and what kind of thing it is."""

    kind: str
    start: int
    end: int  # before it


def _luhn(text: str) -> bool:
    """The check of card numbers: doubling every second digit from the right gives a multiple of 10."""
    digits = [int(letter) for letter in reversed(text) if letter.isdigit()]
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[1::2]]
    return (sum(digits[::2]) + sum(doubled)) % 10 == 0


def _mod97(text: str) -> bool:
    """The check of bank accounts, ISO 13616: first four letters last, letters as 10 to 35, modulo 97 is 1."""
    plain = text.replace(" ", "")
    return int("".join(str(int(letter, 36)) for letter in plain[4:] + plain[:4])) % 97 == 1


def _is_phone(text: str) -> bool:
    """E.164 allows 15 digits. One dot makes it a decimal; many separators make it a list of numbers."""
    return 9 <= sum(letter.isdigit() for letter in text) <= 15 and text.count(".") != 1 and is_grouped(text)


def is_grouped(text: str) -> bool:
    """Whether it has no more separators than telephone numbers have."""
    return sum(letter in " .-" for letter in text) <= MOST_GAPS


def _is_somebodys(address: str) -> bool:
    """False for the domains that RFC 2606 reserves for examples."""
    domain = address.rpartition("@")[2].lower()
    return not re.search(r"(?:^|\.)(?:example(?:\.com|\.net|\.org)?|test|invalid|localhost)$", domain)


STAND_IN = re.compile(
    r"<[^<>]*>?|\*+|\$[A-Z_]+|\$[{(].*|[\[{].*|%[sd]|%\(.*|%\w+%|(?i:pass|password|passwd|pw|secret|token|x+)\W?"
)


def is_given(text: str) -> bool:
    """False for placeholders such as <password>, $PASSWORD, ***."""
    return not STAND_IN.fullmatch(text)


def _bits(text: str) -> float:
    """Entropy per character."""
    return -sum(n / len(text) * log2(n / len(text)) for n in Counter(text).values())


def _is_password(text: str) -> bool:
    """Not an identifier, a call or a word: letters mixed with digits or signs, or random letters."""
    if not is_given(text) or re.search(r"[()\[\]{}]|^\w+\.\w+$|^[A-Z][A-Z_]+$|^(?:https?|file):|::", text):
        return False
    is_mixed = any(letter.isdigit() or letter in "!@#$%^&*+=?~" for letter in text) and any(map(str.isalpha, text))
    return is_mixed or (len(text) >= 16 and _bits(text) >= 3.5 and not text.islower())


def _is_random(text: str) -> bool:
    """Whether it looks random, as keys do and names, paths and hex hashes do not."""
    kinds = (str.isupper, str.islower, str.isdigit)
    if not all(any(map(kind, text)) for kind in kinds) or NO_SECRET.match(text):
        return False
    if text.count("/") > max(2, len(text) // 32):  # a path; in base 64 one character in 64 is a slash
        return False
    return _bits(text) >= 3.7 and sum(letter.isdigit() for letter in text) >= 3


NO_SECRET = re.compile(  # ids of calls; PNG, JPEG, GIF, WebP or WAV, PDF and MP3 as they begin in base 64
    r"(?:call|toolu|chatcmpl|msg|resp|req|run|fc|rs|item)[_-]|iVBORw0KGgo|/9j/|R0lGOD|UklGR|JVBERi0|SUQz"
)
_LONG_NUMBER = re.compile(r"\d\d{3}[ -]?\d{4}[ -]?\d{2}")  # how every card's begins
_COUNTRY = re.compile(r"\d(?<=[A-Za-z]{2}\d)\d")  # a country's two letters and two digits, found by the digits
# What follows a repeated part never begins as the part does, so that a search takes linear time.
SECRETS: Mapping[str, Sign] = {
    "anthropic_api_key": sign(r"\bsk-ant-[A-Za-z0-9_-]{20,}", "sk-ant-"),
    "openai_api_key": sign(r"\bsk-(?!ant-)(?:proj-|svcacct-)?[A-Za-z0-9_-]{20,}", "sk-"),
    "github_token": sign(
        r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,})", "ghp_|gho_|ghu_|ghs_|ghr_|github_pat_"
    ),
    "slack_token": sign(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}", "xox"),
    "aws_access_key": sign(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b", "AKIA|ASIA"),
    "google_api_key": sign(r"\bAIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])", "AIza"),
    "stripe_key": sign(r"\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}", "k_live_|k_test_"),
    "gitlab_token": sign(r"\bglpat-[A-Za-z0-9_-]{20,}", "glpat-"),
    "huggingface_token": sign(r"\bhf_[A-Za-z0-9]{30,}", "hf_"),
    "npm_token": sign(r"\bnpm_[A-Za-z0-9]{36}\b", "npm_"),
    "pypi_token": sign(r"\bpypi-[A-Za-z0-9_-]{50,}", "pypi-"),
    "sendgrid_key": sign(r"\bSG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}", "SG."),
    "google_oauth_token": sign(r"\bya29\.[A-Za-z0-9_-]{20,}", "ya29."),
    "telegram_token": sign(r"\b\d{8,10}:AA[A-Za-z0-9_-]{30,40}", ":AA"),
    "digitalocean_token": sign(r"\bdo[opr]_v1_[a-f0-9]{64}\b", "_v1_"),
    "slack_webhook": sign(r"\bhttps://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}", "hooks.slack"),
    "private_key_material": sign(
        r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"
        r"(?:(?:[^-]|-(?!----))+-----END (?:[A-Z]+ )*PRIVATE KEY(?: BLOCK)?-----"
        r"|(?:(?:\s|\\[nr])*[A-Za-z0-9+/=]{16,})*)",
        "PRIVATE KEY",
    ),
    "url_password": sign(r"\b[a-z][a-z0-9+]{1,15}://[^\s:/@]{0,64}:(?P<it>[^\s/@]{3,256})@", "://", test=is_given),
    "jwt_token": sign(r"\beyJ[A-Za-z0-9_-]{8,2048}+\.eyJ[A-Za-z0-9_-]{8,16384}+\.[A-Za-z0-9_-]{8,}", ".eyJ"),
}
PERSONAL: Mapping[str, Sign] = {
    "email": sign(r"\b[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}\b", "@", test=_is_somebodys),
    "phone": sign(r"\+(?<![\w+.)].)[1-9](?:[ .-]?\(?\d\)?){8,14}(?!\w)", "+", test=_is_phone),
    "social_security_number": sign(r"[0-8](?<![\d-].)\d\d(?<!000)(?<!666)-(?!00)\d{2}-(?!0000)\d{4}(?![\d-])", "-"),
    "card_number": sign(
        r"[3-6](?<![\d.-].)(?:(?<=4)\d{3}|(?<=5)[1-5]\d{2}|(?<=6)011|(?<=6)5\d{2})"
        r"([ -]?)\d{4}\1\d{4}\1\d{4}(?![\d-]|\.(?!0(?!\d))\d)"
        r"|3(?<![\d.-].)[47]\d{2}([ -]?)\d{6}\2\d{5}(?![\d-]|\.(?!0(?!\d))\d)",
        test=_luhn,
        trait=_LONG_NUMBER,
    ),
    "bank_account": sign(
        r"[A-Z](?<!\w.)[A-Z]\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b", test=_mod97, trait=_COUNTRY
    ),
}
_NAMES = (
    r"passw(?:or)?[dt]|pass(?:phrase|code)|\b(?:pwd?|pass)\b|mot de passe|contraseña|secret|token|api[_ -]?key"
    r"|(?:access|auth|account|private)[_ -]?key|credential"
)
ASSIGNED: Mapping[str, Sign] = {
    "assigned_secret": sign(
        rf"(?=[pmcstaPMCSTA])(?i:{_NAMES})(?:[sS]?[\w-]{{0,24}})[\"'`*]{{0,3}}\s{{0,4}}"
        r"(?:[:=|]{1,2}>?"
        r"|(?i:\b(?:is|are|was|ist|est|es)\b:?|\b(?:has been |was |is )?(?:set |changed |reset )?to\b))"
        r"\s{0,4}[\"'`]?(?P<it>[^\s\"'`,;|]{6,512})",
        "pass|pw|contrase|ecret|oken|key|redential",
        test=_is_password,
        any_case=True,
    ),
    "flag_secret": sign(
        rf"--?[\w-]{{0,20}}(?:{_NAMES}|key)[\w-]{{0,10}}[ =][\"']?(?P<it>[^\s\"'`,;|-][^\s\"'`,;|]{{5,511}})",
        "-",
        test=_is_password,
    ),
    "bearer_token": sign(
        r"(?:[Bb]earer|BEARER|[Bb]asic|BASIC)\s{1,4}(?P<it>[A-Za-z0-9._~+/-]{16,}={0,2})",
        "earer|asic",
        test=_is_password,
        any_case=True,
    ),
    "random_string": sign(
        r"[A-Za-z0-9+/_-](?<![A-Za-z0-9+/_=-].)[A-Za-z0-9+/_-]{31,}+={0,2}(?![A-Za-z0-9+/_-])", test=_is_random
    ),
}


_DOT = r"\s{0,2}(?:[\[(]\s?(?:dot|punkt)\s?[\])]|\.)\s{0,2}"
WIDE: Mapping[str, Sign] = {  # other forms of what PERSONAL holds
    "wide_email": sign(
        r"[\w.%+'’-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}"
        rf"|[\w.+-]{{1,64}}\s?[\[(]\s?(?:at|AT|ät)\s?[\])]\s?[\w-]{{1,63}}(?:{_DOT}[\w-]{{2,63}}){{1,5}}",
        "@|(at|[at|( at|[ at|(AT|[AT|(ät",
        test=_is_somebodys,
    ),
    "wide_card": sign(
        r"3(?<![\w.-].)(?:0[0-5]|[68]\d)\d([ -]?)\d{6}\1\d{4}(?![\w-]|\.\d)"
        r"|[36](?<![\w.-].)(?:(?<=3)5(?:2[89]|[3-8]\d)|(?<=6)2\d\d)([ -]?)\d{4}\2\d{4}\2\d{4}(?![\w-]|\.\d)",
        test=_luhn,
        trait=_LONG_NUMBER,
    ),
    "wide_iban": sign(
        r"[a-z][a-z]\d(?<!\w...)\d(?: ?[a-z0-9]{4}){2,7}(?: ?[a-z0-9]{1,3})?\b",
        test=lambda text: _mod97(text.upper()),
        trait=_COUNTRY,
    ),
    "told_ssn": sign(
        r"(?i)\b(?:ssn|social(?: security)?(?: number| no)?)\W{1,4}(?:is )?(?P<it>\d{3}[ -]?\d{2}[ -]?\d{4})(?!\w)",
        "ssn|ocial",
        any_case=True,
    ),
}


def secrets(text: str) -> frozenset[str]:
    """The names of the patterns that the text contains."""
    return _hits(text, SECRETS)


def personal(text: str) -> frozenset[str]:
    return _hits(text, PERSONAL)


def _hits(text: str, signs: Mapping[str, Sign]) -> frozenset[str]:
    return frozenset(found.kind for found in find(text, signs))


def find(text: str, signs: Mapping[str, Sign]) -> Iterator[Detection]:
    """All hits, sign by sign; hits of different signs may overlap."""
    return _found(text, signs.items())


def _found(text: str, signs: Iterable[tuple[str, Sign]]) -> Iterator[Detection]:
    for name, sign in signs:
        searched = text.lower() if sign.any_case else text
        for hint in sign.hints:
            if hint in searched:
                break
        else:
            if sign.hints:
                continue
        part = "it" if "it" in sign.pattern.groupindex else 0
        for match in sign.pattern.finditer(text):
            if sign.test(match.group(part)):
                yield Detection(name, *match.span(part))


class Search:
    """Finds many signs at once with the result of `find`; cheap tests that most texts fail come first."""

    def __init__(self, *groups: Mapping[str, Sign]) -> None:
        alike: dict[tuple[Any, ...], list[tuple[str, Sign]]] = {}
        for group in groups:
            for name, sign in group.items():
                key = _common(sign.hints), sign.trait, sign.any_case, bool(sign.hints)
                alike.setdefault(key, []).append((name, sign))
        self._alike = [
            (letter, trait, any_case, tuple(hint for _, sign in signs for hint in sign.hints) or ("",), signs)
            for (letter, trait, any_case, _), signs in alike.items()
        ]

    def find(self, text: str) -> list[Detection]:
        has, has_small, found = text.__contains__, text.lower().__contains__, list[Detection]()
        for letter, trait, any_case, hints, signs in self._alike:
            is_there = has_small if any_case else has
            if letter in text and (trait is None or trait.search(text)) and any(map(is_there, hints)):
                found += _found(text, signs)
        return found


def _common(hints: tuple[str, ...]) -> str:
    """A character that is rare in prose and in every hint; empty if there is none."""
    return next((letter for letter in "_-:@+" if hints and all(letter in hint for hint in hints)), "")


def texts(data: Any) -> Iterator[str]:
    """Every text in a JSON value, keys included; without recursion, since the depth is unbounded."""
    left = [data]
    while left:
        one = left.pop()
        if isinstance(one, str):
            yield one
        elif isinstance(one, Mapping):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple):
            left += one


LONGEST_PATTERN = 4096
BEFORE = 40  # characters before a hit in which `unless` is searched


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionRule:
    """A literal text (any case) or a pattern to find, and the reason that a hit gives."""

    rule_id: str
    reason_code: str  # "prompt_injection.ignore_instructions"
    pattern: str
    matcher: str = "literal"  # or regex
    enabled: bool = True
    hints: tuple[str, ...] = ()  # in lower case: a text without any of them is not searched
    unless: str = ""  # pattern right before a hit that cancels it: "do not" ignore …

    def __post_init__(self) -> None:
        if not self.rule_id.strip() or not self.reason_code.strip():
            raise BadInput(f"safety rule {self.rule_id!r}", why="rule_id and reason_code must not be blank")
        if self.matcher not in ("literal", "regex"):
            what = f"safety rule {self.rule_id}: matcher = {self.matcher!r}"
            raise BadInput(what, why="is unknown", remedy="use literal or regex")
        if not 0 < len(self.pattern) <= LONGEST_PATTERN:
            why = f"has {len(self.pattern)} characters, and may have 1 to {LONGEST_PATTERN}"
            raise BadInput(f"safety rule {self.rule_id}: pattern", why=why)
        try:
            compiled = self.compiled()
        except re.error as error:
            what, why = f"safety rule {self.rule_id}: pattern", f"is no regular expression: {error}"
            raise BadInput(what, why=why, remedy="correct it, or use literal") from None
        if compiled.match("") is not None:
            raise BadInput(f"safety rule {self.rule_id}: pattern", why="matches nothing at all, and so everywhere")

    def compiled(self) -> re.Pattern[str]:
        """The compiled pattern; `re` caches it."""
        return re.compile(re.escape(self.pattern) if self.matcher == "literal" else self.pattern, re.IGNORECASE)


def scan(text: str, rules: Iterable[DetectionRule]) -> Iterator[Detection]:
    """All hits of the enabled rules; a hit's kind is the reason code."""
    small = text.lower()
    for rule in rules:
        if not rule.enabled or (rule.hints and not any(hint in small for hint in rule.hints)):
            continue
        unless = re.compile(f"(?:{rule.unless})$", re.IGNORECASE) if rule.unless else None
        for match in rule.compiled().finditer(text):
            start = match.start()
            if unless is None or not unless.search(text[max(0, start - BEFORE) : start]):
                yield Detection(rule.reason_code, start, match.end())
