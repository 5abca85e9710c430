from __future__ import annotations

import textwrap
from functools import cache
from itertools import groupby
from string import ascii_lowercase as low
from string import ascii_uppercase as up

from experiments.coding.known.text import FUNCTIONS
from tests.experiments.coding.scene import agrees, function


def test_palindromes_read_the_same_from_behind() -> None:
    def oracle(text: str) -> bool:
        letters = [letter for letter in text.lower() if letter.isalnum()]
        return letters == letters[::-1]

    agrees(function(FUNCTIONS, "is_palindrome"), oracle)


def test_caesar_is_a_translation() -> None:
    def oracle(text: str, shift: int) -> str:
        by = shift % 26
        return text.translate(str.maketrans(low + up, low[by:] + low[:by] + up[by:] + up[:by]))

    agrees(function(FUNCTIONS, "caesar"), oracle)


def test_runs_are_groups() -> None:
    agrees(function(FUNCTIONS, "run_lengths"), lambda text: [(key, len(list(run))) for key, run in groupby(text)])


def test_the_common_prefix_is_the_longest_head_that_all_begin_with() -> None:
    def oracle(words: list[str]) -> str:
        heads = [words[0][:length] for length in range(len(words[0]) + 1)] if words else [""]
        return [head for head in heads if all(word.startswith(head) for word in words)][-1]

    agrees(function(FUNCTIONS, "common_prefix"), oracle)


def test_snake_case_puts_a_line_before_a_capital() -> None:
    def oracle(name: str) -> str:
        pairs = zip(f"_{name}", name, strict=False)
        return "".join("_" * (two.isupper() and one != "_") + two.lower() for one, two in pairs)

    agrees(function(FUNCTIONS, "snake_case"), oracle)


def test_words_are_wrapped_as_the_standard_library_wraps_them() -> None:
    def oracle(text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False)

    agrees(function(FUNCTIONS, "wrap_words"), oracle)


def test_the_edit_distance_is_the_recursive_one() -> None:
    @cache
    def oracle(left: str, right: str) -> int:
        if not left or not right:
            return len(left) + len(right)
        change = oracle(left[1:], right[1:]) + int(left[0] != right[0])
        return min(change, oracle(left[1:], right) + 1, oracle(left, right[1:]) + 1)

    agrees(function(FUNCTIONS, "edit_distance"), oracle, 60)
