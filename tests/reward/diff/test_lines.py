"""Which lines differ: right whatever the texts are, and fast when little does."""

from __future__ import annotations

import time
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.reward.diff.trees import line_changes, longest_increasing, normalise_newlines

texts = st.lists(st.sampled_from(["a", "b", "c", "d e", ""]), max_size=12)


@given(before=texts, after=texts)
def test_the_gaps_and_what_is_between_them_make_the_text_after(before: list[str], after: list[str]) -> None:
    made: list[str] = []
    at = there = 0
    for b0, b1, a0, a1 in line_changes(before, after):
        assert before[at:b0] == after[there:a0]
        made += [*before[at:b0], *after[a0:a1]]
        at, there = b1, a1
    assert before[at:] == after[there:]
    assert [*made, *before[at:]] == after


def test_equal_texts_have_no_gap() -> None:
    assert line_changes(["a", "b"], ["a", "b"]) == []


def test_a_line_in_the_middle_is_one_gap() -> None:
    assert line_changes(["a", "b", "c"], ["a", "x", "y", "c"]) == [(1, 2, 1, 3)]


def test_unique_lines_hold_their_place_among_many_equal_ones() -> None:
    before = ["}", "one", "}", "two", "}"]
    assert line_changes(before, ["}", "one", "}", "new", "}", "two", "}"]) in ([(2, 2, 2, 4)], [(3, 3, 3, 5)])


def test_many_equal_lines_do_not_take_quadratic_time() -> None:
    before = ["x = 1", "y = 2"] * 5_000
    after = [*before[:4_000], "z = 3", *before[4_001:]]
    began = time.process_time()
    assert line_changes(before, after) == [(4_000, 4_001, 4_000, 4_001)]
    assert time.process_time() - began < 1.0


def test_texts_without_anything_in_common_are_one_gap_at_once() -> None:
    before, after = [f"a{at % 7}" for at in range(9_000)], [f"b{at % 7}" for at in range(9_000)]
    began = time.process_time()
    assert line_changes(before, after) == [(0, 9_000, 0, 9_000)]
    assert time.process_time() - began < 1.0


@given(st.lists(st.integers(0, 9), max_size=9))
def test_a_rising_subsequence_is_strict_and_as_long_as_any(values: list[int]) -> None:
    found = [values[at] for at in longest_increasing(values)]
    assert all(a < b for a, b in pairwise(found))
    longest = [0] * len(values)
    for at, value in enumerate(values):
        longest[at] = 1 + max((longest[b] for b in range(at) if values[b] < value), default=0)
    assert len(found) == max(longest, default=0)


def test_line_ends_of_other_systems_are_no_difference() -> None:
    assert normalise_newlines("a\r\nb\rc\n") == "a\nb\nc\n"
