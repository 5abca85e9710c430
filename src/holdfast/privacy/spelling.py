"""Other spellings of a text, with the place of every character in the original.

`plain` undoes what Unicode allows (NFKC, digits of other scripts, invisible characters); `unescaped` undoes escapes of
URLs, HTML and programs; `blobs` opens base 64 and hex. What is found in a spelling is replaced in the original.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from codecs import utf_8_decode
from collections.abc import Iterable, Iterator, Sequence
from html import unescape
from typing import NamedTuple
from unicodedata import combining, is_normalized, normalize
from urllib.parse import unquote_to_bytes

ZEROS = (
    0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6,
    0xD66, 0xE50, 0xED0, 0xF20, 0x1040,
)  # fmt: skip
ALIKE = {zero + n: str(n) for zero in (*ZEROS, 0x17E0, 0x1810) for n in range(10)} | {
    **dict.fromkeys([*range(0x2010, 0x2016), 0x2212], "-"),
    **dict.fromkeys(map(ord, "“”„‟«»「」『』"), '"'),
    **dict.fromkeys(map(ord, "‘’‚‛"), "'"),
    ord("İ"): "I",  # the only letter that is longer in lower case
}
INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff]"
)
ODD = re.compile(f"[{''.join(map(chr, ALIKE))}ー]")
KATAKANA_DASH = re.compile(r"(?<=\d)ー(?=\d)")  # elsewhere a long vowel
RUN = re.compile(r"[\x00-\x7f]+(?=[\x00-\x7f])|[\x00-\x7f]?[^\x00-\x7f]+|[\x00-\x7f]")  # a letter goes with its accents
ESCAPE = re.compile(
    r"(?:%[0-9A-Fa-f]{2})+|&(?:#\d{2,6}|#[xX][0-9A-Fa-f]{2,5}|[a-z]{2,8});|\\u[0-9A-Fa-f]{4}|\\x[0-9A-Fa-f]{2}"
)
ESCAPES = ("%", "&", "\\u", "\\x")  # a text without any of them has none
_64 = "[A-Za-z0-9+/_-]"
_TEXT_64 = r"[I-Za-f][C-HS-Xi-nyz0-3][ABEFIJMNQRUVYZcdghklopstwx014589]"  # how three printable letters begin
BASE64 = re.compile(
    rf"{_TEXT_64}(?<![A-Za-z0-9+_-]...){_64}{_TEXT_64}{_64}{_64}{{4,}}+(?:\r?\n{_64}{{4,}}+)*={{0,2}}(?![A-Za-z0-9])"
)
HEX = re.compile(r"[2-7](?<![0-9A-Za-z].)[0-9A-Fa-f](?:[2-7][0-9A-Fa-f]){7,}+(?![0-9A-Za-z])")
LOOKALIKES = str.maketrans(
    "аеорсухіјѕԁһӏԛԝвкмнтАВЕКМНОРСТУХІЈЅοαενρτυιικΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "aeopcyxijsdhlqwbkmhtABEKMHOPCTYXIJSoaevptuiikABEZHIKMNOPTYX",
)
MIXED = re.compile(r"[A-Za-z]{2}[\u0370-\u052f]|[\u0370-\u052f][A-Za-z]{2}")
APART_HINT = re.compile(r" [!-~] [!-~] [!-~] [!-~]")
_KEY_BEGINS = "ghp_ gho_ ghs_ github_pat_ glpat- sk- sk_live_ xox AKIA AIza hf_ npm_ eyJ"
KEY_BEGINS = tuple(_KEY_BEGINS.split())
APART = re.compile(r"(?<!\S)[!-~](?: [!-~]){5,}(?!\S)")
DIVIDED = re.compile(
    r"(?:\n|\\|[\"'])(?<=[\w-]{6}[\n\\\"'])(?:(?<=\n)|(?<=\\)\r?\n"
    r"|(?<=[\"'])\s{0,4}[+.]?\s{1,16}[\"'])[ \t]{0,8}(?=[A-Za-z0-9_-]{6})"
)
LONGEST_PART, BOTH_PARTS = 2**16, 2**13  # letters of a long blob that are read at once, and those that are read twice
CONTINUED = bytes(range(0x80, 0xC0))  # bytes that do not begin a letter
MOST_ROUNDS = 3  # an escape may be escaped again


class Spelling(NamedTuple):
    """A text and, for each of its characters, where it starts and ends in the original."""

    text: str
    starts: Sequence[int]
    ends: Sequence[int]

    def span(self, start: int, end: int) -> tuple[int, int]:
        return self.starts[start], self.ends[end - 1]


def same(text: str) -> Spelling:
    return Spelling(text, range(len(text)), range(1, len(text) + 1))


def plain(text: str) -> Spelling:
    """The text in NFKC with ASCII digits, dashes and quotes, and without invisible characters."""
    if text.isascii():
        return same(text)
    alike = KATAKANA_DASH.sub("-", text.translate(ALIKE)) if ODD.search(text) else text
    if is_normalized("NFKC", alike) and not INVISIBLE.search(alike):
        return same(alike)
    parts, starts, ends = list[str](), list[int](), list[int]()
    for run in RUN.finditer(alike):
        at, stop = run.span()
        if run.group().isascii():
            parts.append(run.group())
            starts += range(at, stop)
            ends += range(at + 1, stop + 1)
            continue
        while at < stop:
            end = at + 1
            while end < stop and (combining(alike[end]) or "\u1160" <= alike[end] <= "\u11ff"):
                end += 1
            letters = INVISIBLE.sub("", normalize("NFKC", alike[at:end]))
            parts.append(letters)
            starts += [at] * len(letters)
            ends += [end] * len(letters)
            at = end
    return Spelling("".join(parts).translate(ALIKE), starts, ends)


def latin(text: str) -> str | None:
    """The text with letters of other scripts that look like Latin ones as those; None if no word mixes the two."""
    return text.translate(LOOKALIKES) if not text.isascii() and MIXED.search(text) else None


def unescaped(text: str) -> Spelling | None:
    """The text with the escapes of URLs, HTML and JSON undone; None if it has none."""
    found = same(text)
    for _ in range(MOST_ROUNDS):
        after = _unescaped_once(found)
        if after is None:
            break
        found = after
    return None if found.text == text else found


def _unescaped_once(before: Spelling) -> Spelling | None:
    if not any(mark in before.text for mark in ESCAPES):
        return None
    parts, starts, ends, at = list[str](), list[int](), list[int](), 0
    for match in ESCAPE.finditer(before.text):
        letters = _letters(match.group())
        if letters is None:
            continue
        start, end = match.span()
        parts += [before.text[at:start], letters]
        starts += before.starts[at:start]
        ends += before.ends[at:start]
        if len(letters) * 3 == end - start and match.group()[0] == "%":  # each letter has its own escape
            starts += [before.starts[start + 3 * n] for n in range(len(letters))]
            ends += [before.ends[start + 3 * n + 2] for n in range(len(letters))]
        else:
            starts += [before.starts[start]] * len(letters)
            ends += [before.ends[end - 1]] * len(letters)
        at = end
    if not parts:
        return None
    parts.append(before.text[at:])
    return Spelling("".join(parts), [*starts, *before.starts[at:]], [*ends, *before.ends[at:]])


def together(text: str) -> Spelling | None:
    """The text with letters that stand apart joined to words; None if there are none."""
    if not APART_HINT.search(text):
        return None
    return _without(text, (at for run in APART.finditer(text) for at in range(run.start() + 1, run.end(), 2)))


def undivided(text: str) -> Spelling | None:
    """The text with keys that a line's end or a plus divides joined; None if there are none."""
    if not any(map(text.__contains__, KEY_BEGINS)):
        return None
    return _without(text, (at for match in DIVIDED.finditer(text) for at in range(*match.span())))


def _without(text: str, gone: Iterable[int]) -> Spelling | None:
    left = frozenset(gone)
    places = [at for at in range(len(text)) if at not in left] if left else []
    return Spelling("".join(map(text.__getitem__, places)), places, [at + 1 for at in places]) if left else None


def _of_bytes(raw: bytes) -> str:
    """The letters; those at its ends may be cut."""
    try:
        return raw.decode()
    except ValueError:
        return utf_8_decode(raw.lstrip(CONTINUED), "strict", False)[0]


def _letters(escape: str) -> str | None:
    """What an escape stands for; None if it stands for nothing readable."""
    try:
        if escape[0] == "%":
            letters = _of_bytes(unquote_to_bytes(escape))
        elif escape[0] == "&":
            letters = unescape(escape)
        else:
            letters = chr(int(escape[2:], 16))
    except ValueError:
        return None
    is_readable = letters != escape and all(letter.isprintable() or letter in "\n\r\t" for letter in letters)
    return letters if is_readable else None


def blobs(text: str) -> Iterator[tuple[int, int, str]]:
    """The readable texts in base 64 and in hex: where each starts and ends, and what it says; what is long is read part
    by part."""
    for match in BASE64.finditer(text):
        is_part = match.end() - match.start() > LONGEST_PART
        for letters in _parts(text, *match.span()):
            said = _read(letters.rstrip("=").replace("-", "+").replace("_", "/"), is_part=is_part)
            if said is not None:
                yield *match.span(), said
    for match in HEX.finditer(text):
        for letters in _parts(text, *match.span()):
            yield *match.span(), bytes.fromhex(letters).decode("ascii", "replace")


def _parts(text: str, start: int, end: int) -> Iterator[str]:
    """The letters without line breaks, so many at once that they make whole bytes; each part begins with the end of the
    one before."""
    letters = ""
    for at in range(start, end, LONGEST_PART):
        letters += "".join(text[at : min(at + LONGEST_PART, end)].split())
        whole = len(letters) - len(letters) % 4 if at + LONGEST_PART < end else len(letters)
        yield letters[:whole]
        letters = letters[max(whole - BOTH_PARTS, 0) :]


def _read(letters: str, *, is_part: bool) -> str | None:
    """What base 64 says, if it is text; at the ends of a part there may be letters that it has not the whole of."""
    try:
        raw = b64decode(letters[: len(letters) - (len(letters) % 4 == 1)] + "=" * (-len(letters) % 4))
        said = _of_bytes(raw) if is_part else raw.decode()
    except (Error, ValueError):
        return None
    is_text = all(letter.isprintable() or letter in "\n\r\t" for letter in said)
    return said if is_text else None
