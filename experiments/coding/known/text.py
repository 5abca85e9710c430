"""Functions on text."""

from __future__ import annotations

import random
from itertools import pairwise

from experiments.coding.functions import Function


def is_palindrome(text: str) -> bool:
    letters = [letter.lower() for letter in text if letter.isalnum()]
    left, right = 0, len(letters) - 1
    while left < right:
        if letters[left] != letters[right]:
            return False
        left += 1
        right -= 1
    return True


def caesar(text: str, shift: int) -> str:
    result = []
    for letter in text:
        if letter.islower():
            result.append(chr((ord(letter) - 97 + shift) % 26 + 97))
        elif letter.isupper():
            result.append(chr((ord(letter) - 65 + shift) % 26 + 65))
        else:
            result.append(letter)
    return "".join(result)


def run_lengths(text: str) -> list[tuple[str, int]]:
    if not text:
        return []
    runs = []
    count = 1
    for before, after in pairwise(text):
        if before == after:
            count += 1
        else:
            runs.append((before, count))
            count = 1
    runs.append((text[-1], count))
    return runs


def common_prefix(words: list[str]) -> str:
    if not words:
        return ""
    shortest = min(words, key=len)
    for place, letter in enumerate(shortest):
        if any(word[place] != letter for word in words):
            return shortest[:place]
    return shortest


def snake_case(name: str) -> str:
    result = []
    for place, letter in enumerate(name):
        if letter.isupper() and place > 0 and name[place - 1] != "_":
            result.append("_")
        result.append(letter.lower())
    return "".join(result)


def wrap_words(text: str, width: int) -> list[str]:
    lines = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        lines.append(line)
    return lines


def edit_distance(left: str, right: str) -> int:
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, start=1):
        diagonal, row[0] = row[0], i
        for j, b in enumerate(right, start=1):
            change = diagonal + (a != b)
            diagonal = row[j]
            row[j] = min(row[j] + 1, row[j - 1] + 1, change)
    return row[-1]


def _words(rng: random.Random, letters: str = "abcAB", most: int = 8) -> str:
    return "".join(rng.choice(letters) for _ in range(rng.randint(0, most)))


def _pair(rng: random.Random) -> tuple[str, str]:
    return _words(rng, "abc"), _words(rng, "abc")


def _mirrored(rng: random.Random) -> tuple[str]:
    half = _words(rng, "abA ,")
    return (half + _words(rng, "ab", 2) + half[::-1],)


def _sentence(rng: random.Random) -> tuple[str, int]:
    return " ".join("x" * rng.randint(1, 6) for _ in range(rng.randint(0, 9))), rng.randint(3, 14)


def _prefixed(rng: random.Random) -> tuple[list[str]]:
    head = _words(rng, "ab", 4)
    return ([head + _words(rng, "ab", 4) for _ in range(rng.randint(0, 4))],)


FUNCTIONS = (
    Function(
        call=is_palindrome,
        examples=((("Never odd, or even",), True), (("abca",), False), (("",), True), (("ab",), False)),
        draw=_mirrored,
    ),
    Function(
        call=caesar,
        examples=((("Zoo, abc", 3), "Crr, def"), (("Hello", 0), "Hello"), (("xyz", 5), "cde"), (("AZ", -1), "ZY")),
        draw=lambda rng: (_words(rng, "azAZmq -"), rng.randint(-30, 30)),
    ),
    Function(
        call=run_lengths,
        examples=(
            (("aab",), [("a", 2), ("b", 1)]),
            (("",), []),
            (("xyyy",), [("x", 1), ("y", 3)]),
            (("abba",), [("a", 1), ("b", 2), ("a", 1)]),
        ),
        draw=lambda rng: (_words(rng, "ab", 12),),
    ),
    Function(
        call=common_prefix,
        examples=(
            ((["flower", "flow", "flight"],), "fl"),
            (([],), ""),
            ((["dog", "cat"],), ""),
            ((["inter", "interval", "internal"],), "inter"),
        ),
        draw=_prefixed,
    ),
    Function(
        call=snake_case,
        examples=(
            (("CamelCase",), "camel_case"),
            (("aB_Cd",), "a_b_cd"),
            (("x",), "x"),
            (("HTTPPort",), "h_t_t_p_port"),
        ),
        draw=lambda rng: (_words(rng, "abAB_"),),
    ),
    Function(
        call=wrap_words,
        examples=(
            (("a bb ccc dddd", 6), ["a bb", "ccc", "dddd"]),
            (("one two", 7), ["one two"]),
            (("", 5), []),
            (("longword a", 4), ["longword", "a"]),
        ),
        draw=_sentence,
    ),
    Function(
        call=edit_distance,
        examples=((("kitten", "sitting"), 3), (("", "abc"), 3), (("abc", "abc"), 0), (("flaw", "lawn"), 2)),
        draw=_pair,
    ),
)
